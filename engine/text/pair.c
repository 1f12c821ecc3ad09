/* A query and a document as one text for rerankers.
 *
 * A file of a model that makes text says how they are put together. Of its form the pieces that stand for turns become
 * their tokens, and none that the query or the document spells: what people wrote cannot pass itself off as the form.
 * Neither can a query that spells the place of the document: places are found once, in the form. */
#include "engine/text/encode-private.h"

#define PAIR_BYTES_MAX ((size_t)INT32_MAX)

static const char form_key[] = "tokenizer.chat_template.rerank", sep_key[] = "tokenizer.ggml.add_sep_token";

/* The only place of the form with this name; -1: there is none, or there are several. */
static ssize_t find_place(struct tdm_gguf_string form, const char *name)
{
        const char *at = memmem(form.data, form.size, name, strlen(name));
        size_t behind = at ? (size_t)(at - form.data) + strlen(name) : 0;

        if (!at || memmem(form.data + behind, form.size - behind, name, strlen(name)))
                return -1;
        return at - form.data;
}

static int read_form(struct tdm_tokenizer *t, struct tdm_gguf_string form, struct tdm_error *err)
{
        static const char query[] = "{query}", document[] = "{document}";
        const ssize_t q = find_place(form, query), d = find_place(form, document);
        struct tdm_pair_form *pair = &t->pair;
        size_t first, second, first_size, second_size;
        int r;

        if (form.size > TDM_PAIR_FORM_BYTES_MAX || q < 0 || d < 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the key %s has not one {query} and one {document} in at most %u bytes", form_key,
                                     TDM_PAIR_FORM_BYTES_MAX);
        r = tdm_parse_charge(&t->account, form.size, err);
        if (r)
                return r;
        pair->text = malloc(form.size);
        if (!pair->text)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        pair->query_is_second = q > d;
        first = (size_t)TDM_MIN(q, d);
        second = (size_t)TDM_MAX(q, d);
        first_size = strlen(pair->query_is_second ? document : query);
        second_size = strlen(pair->query_is_second ? query : document);
        memcpy(pair->text, form.data, first);
        memcpy(pair->text + first, form.data + first + first_size, second - first - first_size);
        pair->ends[0] = first;
        pair->ends[1] = second - first_size;
        memcpy(pair->text + pair->ends[1], form.data + second + second_size, form.size - second - second_size);
        pair->ends[2] = form.size - first_size - second_size;
        return 0;
}

int tdm_pair_read(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string form;

        /* WordPiece's kinds have one piece between two texts. The key tells RoBERTa's kinds from them, where it is
         * there. */
        t->pair.ends_twice = t->kind != TDM_TOKENIZER_WORDPIECE;
        if (t->pair.ends_twice && tdm_gguf_get_bool(g, sep_key, &t->pair.ends_twice) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a boolean, nor 0 or 1", sep_key);
        return tdm_gguf_get_string(g, form_key, &form) == 0 ? read_form(t, form, err) : 0;
}

size_t tdm_tokenizer_pair_bytes(const struct tdm_tokenizer *t)
{
        return t->pair.ends[2];
}

/* A text in the making, and which of it is the form's own. */
struct pair_text {
        char *data;
        size_t size;
        struct tdm_text_span spans[5];
        size_t n_spans;
};

static void pair_text_add(struct pair_text *text, const char *data, size_t size, bool is_trusted)
{
        if (size == 0)
                return;
        memcpy(text->data + text->size, data, size);
        text->size += size;
        if (text->n_spans == 0 || text->spans[text->n_spans - 1].is_trusted != is_trusted)
                text->n_spans++;
        text->spans[text->n_spans - 1] = (struct tdm_text_span){ text->size, is_trusted };
}

ssize_t tdm_tokenizer_encode_pair(const struct tdm_tokenizer *t, const char *query, size_t query_size,
                                  const char *document, size_t document_size, struct tdm_encode_budget *budget,
                                  uint32_t *ids, size_t capacity, uint32_t *ret_second)
{
        const struct tdm_pair_form *pair = &t->pair;
        const bool turned = pair->query_is_second;
        _cleanup_(freep) char *data = NULL;
        struct pair_text text = { 0 };

        if (query_size > PAIR_BYTES_MAX || document_size > PAIR_BYTES_MAX - query_size)
                return -E2BIG;
        if (!pair->text)
                return tdm_tokenizer_encode_two(t, query, query_size, document, document_size, pair->ends_twice, budget,
                                                ids, capacity, ret_second);
        data = text.data = malloc(pair->ends[2] + query_size + document_size + 1);
        if (!data)
                return -ENOMEM;
        pair_text_add(&text, pair->text, pair->ends[0], true);
        pair_text_add(&text, turned ? document : query, turned ? document_size : query_size, false);
        pair_text_add(&text, pair->text + pair->ends[0], pair->ends[1] - pair->ends[0], true);
        pair_text_add(&text, turned ? query : document, turned ? query_size : document_size, false);
        pair_text_add(&text, pair->text + pair->ends[1], pair->ends[2] - pair->ends[1], true);
        *ret_second = 0;
        return tdm_tokenizer_encode_spans(t, text.data, text.size, text.spans, text.n_spans, budget, ids, capacity);
}
