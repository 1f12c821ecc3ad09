/* Text to ids.
 *
 * From left to right: where a special piece matches, the longest one is taken. What lies between is a run, which the
 * tokenizer's kind encodes (spm.c, bpe.c, wordpiece.c, unigram.c). */
#include "engine/text/encode-private.h"

#define TEXT_MAX_BYTES ((size_t)INT32_MAX)
#define WINDOW_BYTES 16384u /* special pieces are looked for in this many bytes at a time */
#define SMALL_BYTES 256u    /* a text for which nothing is allocated */

int tdm_encoder_settle(struct tdm_encoder *e)
{
        struct tdm_encode_budget *b = e->budget;
        uint64_t steps = e->steps;

        e->steps = 0;
        if (!b)
                return 0;
        if (b->cancelled && atomic_load_explicit(b->cancelled, memory_order_relaxed))
                return -ECANCELED;
        if (steps > b->steps) {
                b->steps = 0;
                return -ETIME;
        }
        b->steps -= steps;
        return 0;
}

void tdm_encoder_emit_bytes(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                if (e->t->byte_ids[text[i]] != TDM_NO_PIECE)
                        continue;
                if (e->t->unknown >= 0)
                        tdm_encoder_emit(e, (uint32_t)e->t->unknown);
                else /* a byte that UTF-8 never has, in a vocabulary that lacks it */
                        tdm_encoder_emit_bytes(e, (const uint8_t *)"\xef\xbf\xbd", 3);
                return;
        }
        for (size_t i = 0; i < size; i++)
                tdm_encoder_emit(e, e->t->byte_ids[text[i]]);
}

int tdm_encoder_grow(void **array, size_t *capacity, size_t n, size_t element)
{
        size_t wanted = TDM_MAX(*capacity + *capacity / 2, (size_t)64);
        void *p;

        if (n < *capacity)
                return 0;
        p = realloc(*array, wanted * element);
        if (!p)
                return -ENOMEM;
        *array = p;
        *capacity = wanted;
        return 0;
}

static int encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size, bool prefix)
{
        if (size == 0)
                return 0;
        switch (e->t->kind) {
        case TDM_TOKENIZER_SPM:
                return tdm_spm_encode_run(e, text, size, prefix);
        case TDM_TOKENIZER_WORDPIECE:
                return tdm_wordpiece_encode_run(e, text, size);
        case TDM_TOKENIZER_UNIGRAM:
                return tdm_unigram_encode_run(e, text, size, prefix);
        default:
                return tdm_bpe_encode_run(e, text, size);
        }
}

/* Whether SentencePiece's space goes in front of what follows: at the start, and behind control pieces. */
static bool wants_prefix(const struct tdm_tokenizer *t, uint32_t behind)
{
        return t->add_space_prefix && (behind == TDM_NO_PIECE || t->pieces[behind].type != TDM_PIECE_USER_DEFINED);
}

/* Special pieces that begin at bytes from begin to end of a text. */
struct specials_window {
        size_t begin, end;
        uint32_t *matches; /* [end - begin], at most WINDOW_BYTES */
};

/* The special piece that begins at a place of the text, which is read up to size; or TDM_NO_PIECE. Places come in
 * order. */
static int special_at(struct tdm_encoder *e, struct specials_window *w, const uint8_t *text, size_t at, size_t size,
                      bool controls, uint32_t *ret)
{
        const struct tdm_tokenizer *t = e->t;
        int r;

        if (at >= w->end) {
                w->begin = at;
                w->end = at + TDM_MIN(size - at, (size_t)WINDOW_BYTES);
                r = tdm_encoder_spend(e, TDM_MIN(w->end - at + t->specials.max_bytes, size - at));
                if (r < 0)
                        return r;
                tdm_tokenizer_match_specials(t, text + at, size - at, w->end - at, controls, w->matches);
        }
        *ret = w->matches[at - w->begin];
        return 0;
}

/* matches has room for min(size, WINDOW_BYTES) ids. behind: the special piece before the text, or TDM_NO_PIECE. */
static int encode_text(struct tdm_encoder *e, const uint8_t *text, size_t size, bool controls, uint32_t behind,
                       uint32_t *matches)
{
        const struct tdm_tokenizer *t = e->t;
        bool prefix = wants_prefix(t, behind);
        struct specials_window window = { .matches = matches };
        size_t start = 0, at = 0;
        int r, length;

        while (at < size) {
                uint32_t id;

                r = special_at(e, &window, text, at, size, controls, &id);
                if (r < 0)
                        return r;
                if (id == TDM_NO_PIECE) {
                        length = tdm_character_length(text + at, size - at);
                        at += length > 0 ? (size_t)length : 1;
                        continue;
                }
                r = encode_run(e, text + start, at - start, prefix);
                if (r < 0)
                        return r;
                tdm_encoder_emit(e, id);
                prefix = wants_prefix(t, id);
                at += t->pieces[id].size;
                start = at;
        }
        return encode_run(e, text + start, size - start, prefix);
}

static int encode(struct tdm_encoder *e, const uint8_t *text, size_t size, bool controls, uint32_t behind)
{
        _cleanup_(freep) uint32_t *many = NULL;
        uint32_t few[SMALL_BYTES], *matches = few;

        if (controls ? e->t->specials.max_bytes == 0 : !e->t->specials.has_user_defined)
                return encode_run(e, text, size, wants_prefix(e->t, behind));
        if (size > SMALL_BYTES) {
                matches = many = malloc(TDM_MIN(size, (size_t)WINDOW_BYTES) * sizeof(*many));
                if (!many)
                        return -ENOMEM;
        }
        return encode_text(e, text, size, controls, behind, matches);
}

/* A text in spans, as far as it is encoded. */
struct spans_walk {
        const uint8_t *text;
        size_t start;      /* of what waits to be encoded */
        uint32_t behind;   /* the special piece before it, or TDM_NO_PIECE */
        uint32_t *matches; /* [WINDOW_BYTES] */
};

static int walk_flush(struct tdm_encoder *e, struct spans_walk *w, size_t end)
{
        return end > w->start ? encode(e, w->text + w->start, end - w->start, false, w->behind) : 0;
}

/* Pieces that any text may form do not cut the text: they may reach over the end of the span, or begin before it. */
static int walk_trusted(struct tdm_encoder *e, struct spans_walk *w, size_t at, size_t end)
{
        const struct tdm_tokenizer *t = e->t;
        struct specials_window window = { at, at, w->matches };
        int r, length;

        while (at < end) {
                uint32_t id;

                r = special_at(e, &window, w->text, at, end, true, &id);
                if (r < 0)
                        return r;
                if (id == TDM_NO_PIECE) {
                        length = tdm_character_length(w->text + at, end - at);
                        at += length > 0 ? (size_t)length : 1;
                        continue;
                }
                at += t->pieces[id].size;
                if (tdm_tokenizer_may_form(t, id))
                        continue;
                r = walk_flush(e, w, at - t->pieces[id].size);
                if (r < 0)
                        return r;
                tdm_encoder_emit(e, id);
                w->behind = id;
                w->start = at;
        }
        return 0;
}

static int encode_spans(struct tdm_encoder *e, const uint8_t *text, size_t size, const struct tdm_text_span *spans,
                        size_t n_spans)
{
        _cleanup_(freep) uint32_t *matches = malloc(TDM_MIN(size + 1, (size_t)WINDOW_BYTES) * sizeof(*matches));
        struct spans_walk w = { .text = text, .behind = TDM_NO_PIECE, .matches = matches };
        size_t at = 0;
        int r = matches ? 0 : -ENOMEM;

        for (size_t i = 0; i < n_spans && r == 0; at = spans[i++].end)
                if (spans[i].is_trusted && e->t->specials.max_bytes > 0)
                        r = walk_trusted(e, &w, at, spans[i].end);
        return r == 0 ? walk_flush(e, &w, size) : r;
}

/* r is what encoding returned. */
static ssize_t encoder_finish(struct tdm_encoder *e, int r)
{
        int settled = tdm_encoder_settle(e);

        free(e->spm.symbols);
        free(e->spm.pairs);
        free(e->bpe.symbols);
        free(e->bpe.pairs);
        free(e->unigram.text);
        free(e->unigram.best);
        if (r == 0)
                r = settled;
        return r < 0 ? r : (ssize_t)e->n_ids;
}

ssize_t tdm_tokenizer_encode_spans(const struct tdm_tokenizer *tokenizer, const char *text, size_t size,
                                   const struct tdm_text_span *spans, size_t n_spans, struct tdm_encode_budget *budget,
                                   uint32_t *ids, size_t capacity)
{
        struct tdm_encoder e = { .t = tokenizer, .ids = ids, .capacity = capacity, .budget = budget };

        if (size > TEXT_MAX_BYTES)
                return -E2BIG;
        return encoder_finish(&e, encode_spans(&e, (const uint8_t *)text, size, spans, n_spans));
}

ssize_t tdm_tokenizer_encode_within(const struct tdm_tokenizer *tokenizer, const char *text, size_t size,
                                    unsigned flags, struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity)
{
        struct tdm_encoder e = { .t = tokenizer, .ids = ids, .capacity = capacity, .budget = budget };
        int r = 0;

        if (flags & ~(unsigned)(TDM_TOKENIZE_BOS | TDM_TOKENIZE_EOS | TDM_TOKENIZE_SPECIAL))
                return -EINVAL;
        if (size > TEXT_MAX_BYTES)
                return -E2BIG;
        if (flags & TDM_TOKENIZE_BOS && tokenizer->add_bos && tokenizer->bos >= 0)
                tdm_encoder_emit(&e, (uint32_t)tokenizer->bos);
        if (size > 0) /* text may be NULL otherwise */
                r = encode(&e, (const uint8_t *)text, size, flags & TDM_TOKENIZE_SPECIAL, TDM_NO_PIECE);
        if (r == 0 && flags & TDM_TOKENIZE_EOS && tokenizer->add_eos && tokenizer->eos >= 0)
                tdm_encoder_emit(&e, (uint32_t)tokenizer->eos);
        return encoder_finish(&e, r);
}

static void emit_end(struct tdm_encoder *e)
{
        if (e->t->add_eos && e->t->eos >= 0)
                tdm_encoder_emit(e, (uint32_t)e->t->eos);
}

ssize_t tdm_tokenizer_encode_two(const struct tdm_tokenizer *tokenizer, const char *first, size_t first_size,
                                 const char *second, size_t second_size, bool ends_twice,
                                 struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity, uint32_t *ret_second)
{
        struct tdm_encoder e = { .t = tokenizer, .ids = ids, .capacity = capacity, .budget = budget };
        int r = 0;

        if (tokenizer->add_bos && tokenizer->bos >= 0)
                tdm_encoder_emit(&e, (uint32_t)tokenizer->bos);
        if (first_size > 0)
                r = encode(&e, (const uint8_t *)first, first_size, false, TDM_NO_PIECE);
        emit_end(&e);
        if (ends_twice)
                emit_end(&e);
        *ret_second = (uint32_t)e.n_ids;
        if (r == 0 && second_size > 0)
                r = encode(&e, (const uint8_t *)second, second_size, false, TDM_NO_PIECE);
        emit_end(&e);
        return encoder_finish(&e, r);
}

ssize_t tdm_tokenizer_encode(const struct tdm_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                             uint32_t *ids, size_t capacity)
{
        return tdm_tokenizer_encode_within(tokenizer, text, size, flags, NULL, ids, capacity);
}
