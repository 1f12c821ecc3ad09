/* Building what tokenizers with merges need: the pieces' texts as bytes, and the table of merges.
 *
 * A merge is two pieces and its rank. Files name all three as text; here they become ids once, so that encoding never
 * looks at texts again. A merge that names what is no piece is refused: the original tokenizers refuse it too. */
#include "engine/text/tokenizer-private.h"

#include <inttypes.h>
#include "common/utf8.h"
#include "engine/text/unicode.h"

#define CHECK_EVERY 4096u /* merges between two looks at the flag */

static const char model_key[] = "tokenizer.ggml.model", pre_key[] = "tokenizer.ggml.pre",
                  merges_key[] = "tokenizer.ggml.merges";

/* A string of the file for a message: ASCII alone. */
static const char *show(struct tdm_gguf_string s, char *shown, size_t size)
{
        size_t n = TDM_MIN(s.size, size - 1);

        for (size_t i = 0; i < n; i++)
                shown[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i] : '?';
        shown[n] = 0;
        return shown;
}

static bool is(struct tdm_gguf_string s, const char *text)
{
        return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static int read_pretokenizer(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string s = { 0 };
        char shown[40];

        if (tdm_gguf_get_string(g, pre_key, &s) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a string", pre_key);
        s = tdm_form_pre(g, s);
        if (s.size == 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the key %s is missing, so it is not known how text is cut into words "
                                     "(convert the model again with a newer converter)",
                                     pre_key);
        t->pretokenizer = tdm_pretokenizer_find(s.data, s.size);
        if (!t->pretokenizer)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the way in which it cuts text into words, \"%s\" (%s), is not known",
                                     show(s, shown, sizeof(shown)), pre_key);
        t->add_bos = t->pretokenizer->add_bos;
        return 0;
}

/* Ollama's converter calls Gemma 4's tokenizer "llama" and tells it by this name; its scores are numbers of pieces. */
static bool is_gemma4(const struct tdm_gguf *g)
{
        struct tdm_gguf_string s;

        return tdm_gguf_get_string(g, pre_key, &s) == 0 && is(s, "gemma4");
}

int tdm_tokenizer_read_kind(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string s;
        char shown[40];

        if (tdm_gguf_get_string(g, model_key, &s) < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing or not a string", model_key);
        if (is(s, "gemma4") || (is(s, "llama") && is_gemma4(g))) {
                t->kind = TDM_TOKENIZER_GEMMA4;
                t->add_bos = true;
                t->has_plain_markers = is(s, "llama");
                return 0;
        }
        if (is(s, "llama")) {
                t->kind = TDM_TOKENIZER_SPM;
                t->add_bos = true;
                /* The default belongs to the family: Gemma's put no space in front, and some converters leave it at
                 * that. */
                t->add_space_prefix = !tdm_form_is_gemma(g);
                return 0;
        }
        if (is(s, "gpt2")) {
                t->kind = TDM_TOKENIZER_BYTES;
                return read_pretokenizer(t, g, err);
        }
        if (is(s, "bert")) {
                t->kind = TDM_TOKENIZER_WORDPIECE;
                t->add_bos = t->add_eos = true;
                return 0;
        }
        if (is(s, "t5")) {
                t->kind = TDM_TOKENIZER_UNIGRAM;
                t->add_bos = tdm_form_is_bert(g); /* XLM-RoBERTa's kind; T5 has no such piece */
                t->add_eos = t->add_space_prefix = true;
                return 0;
        }
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "its tokenizer is \"%s\", only \"llama\" (SentencePiece), \"gpt2\" (byte-level BPE), "
                             "\"gemma4\", \"bert\" (WordPiece) and \"t5\" (Unigram) are supported",
                             show(s, shown, sizeof(shown)));
}

/* GPT-2 writes a byte as the character of that number where it can be seen (33 to 126, 161 to 172, 174 to 255), and
 * the other 68 as U+0100 and so on. */
static bool is_seen(uint32_t byte)
{
        return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

static int byte_of(uint32_t c)
{
        if (c < 256)
                return is_seen(c) ? (int)c : -1;
        for (uint32_t byte = 0, n = 256; byte < 256 && c < 256 + 68; byte++) {
                if (is_seen(byte))
                        continue;
                if (n++ == c)
                        return (int)byte;
        }
        return -1;
}

ssize_t tdm_bpe_to_bytes(uint8_t *text, size_t size)
{
        size_t n = 0;

        for (size_t at = 0; at < size;) {
                int length = tdm_utf8_length(text + at, size - at), byte;

                if (length <= 0)
                        return -1;
                byte = byte_of(tdm_unicode_character(text + at, length));
                if (byte < 0)
                        return -1;
                text[n++] = (uint8_t)byte; /* never behind at */
                at += (size_t)length;
        }
        return (ssize_t)n;
}

static uint32_t slot_of(const struct tdm_merges *m, uint64_t seed, uint64_t key)
{
        unsigned __int128 p = (unsigned __int128)(key ^ seed) * UINT64_C(0x9e3779b97f4a7c15);

        return (uint32_t)((uint64_t)p ^ (uint64_t)(p >> 64)) & m->slot_mask;
}

uint32_t tdm_bpe_find_merge(const struct tdm_tokenizer *t, uint32_t left, uint32_t right)
{
        const struct tdm_merges *m = &t->merges;
        uint64_t key = (uint64_t)left << 21 | right;

        for (uint32_t i = slot_of(m, t->hash_seed, key);; i = (i + 1) & m->slot_mask) {
                if (m->slots[i] == TDM_NO_MERGE_SLOT)
                        return TDM_NO_MERGE;
                if (m->slots[i] >> 22 == key)
                        return (uint32_t)(m->slots[i] & ((1u << 22) - 1));
        }
}

/* A part of a merge as it stands in running text. -1: no piece can read like this. */
static ssize_t to_running(const struct tdm_tokenizer *t, const char *data, size_t size, uint8_t *text)
{
        size_t n = 0;

        if (t->kind == TDM_TOKENIZER_BYTES) {
                memcpy(text, data, size);
                return tdm_bpe_to_bytes(text, size);
        }
        for (size_t i = 0; i < size; i++) {
                if (size - i >= 3 && memcmp(data + i, "\xe2\x96\x81", 3) == 0) {
                        text[n++] = ' ';
                        i += 2;
                } else
                        text[n++] = (uint8_t)data[i];
        }
        return (ssize_t)n;
}

static bool is_control(const uint8_t *text, ssize_t size)
{
        return tdm_tokenizer_is_control_text((const char *)text, (size_t)size);
}

static int read_merge(struct tdm_tokenizer *t, uint32_t rank, struct tdm_gguf_string s, struct tdm_error *err)
{
        uint8_t text[2 * TDM_PIECE_BYTES_MAX];
        const char *space = s.size > 1 ? memchr(s.data + 1, ' ', s.size - 1) : NULL;
        size_t left_size = space ? (size_t)(space - s.data) : 0, right_size = space ? s.size - left_size - 1 : 0;
        uint32_t left = TDM_NO_PIECE, right = TDM_NO_PIECE, id = TDM_NO_PIECE;
        ssize_t n_left, n_right;
        char shown[40];

        if (left_size > TDM_PIECE_BYTES_MAX || right_size > TDM_PIECE_BYTES_MAX || right_size == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "merge %u is not two pieces with a space in between", rank);
        n_left = to_running(t, s.data, left_size, text);
        n_right = n_left < 0 ? -1 : to_running(t, space + 1, right_size, text + n_left);
        if (n_left > 0 && n_right > 0) {
                left = tdm_tokenizer_find(t, text, (size_t)n_left);
                right = tdm_tokenizer_find(t, text + n_left, (size_t)n_right);
                id = tdm_tokenizer_find(t, text, (size_t)(n_left + n_right));
        }
        t->merges.ids[rank] = id;
        if ((left == TDM_NO_PIECE || right == TDM_NO_PIECE || id == TDM_NO_PIECE) && n_left > 0 && n_right > 0 &&
            (is_control(text, n_left) || is_control(text + n_left, n_right) || is_control(text, n_left + n_right)))
                return 0; /* text never forms those */
        if (left == TDM_NO_PIECE || right == TDM_NO_PIECE || id == TDM_NO_PIECE)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "merge %u (\"%s\") %s no piece", rank,
                                     show(s, shown, sizeof(shown)),
                                     left == TDM_NO_PIECE || right == TDM_NO_PIECE ? "joins what is" : "makes");
        if (tdm_bpe_find_merge(t, left, right) == TDM_NO_MERGE) { /* else a lower rank has it */
                uint64_t key = (uint64_t)left << 21 | right;
                uint32_t i = slot_of(&t->merges, t->hash_seed, key);

                while (t->merges.slots[i] != TDM_NO_MERGE_SLOT)
                        i = (i + 1) & t->merges.slot_mask;
                t->merges.slots[i] = key << 22 | rank;
        }
        return 0;
}

int tdm_bpe_build(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_array merges = { 0 };
        struct tdm_merges *m = &t->merges;
        uint64_t n, n_slots = 16;
        int r;

        r = tdm_gguf_get_array_size(g, merges_key, &n);
        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is missing or not an array", merges_key);
        if (n > TDM_MERGES_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it has %" PRIu64 " merges, at most %u are allowed", n,
                                     TDM_MERGES_MAX);
        while (n_slots < 2 * n)
                n_slots *= 2;
        r = tdm_parse_charge(&t->account, n_slots * sizeof(*m->slots) + n * sizeof(*m->ids), err);
        if (r)
                return r;
        m->slots = malloc(n_slots * sizeof(*m->slots));
        m->ids = malloc(TDM_MAX(n, UINT64_C(1)) * sizeof(*m->ids));
        if (!m->slots || !m->ids)
                return tdm_error_set(err, -ENOMEM, "out of memory for %" PRIu64 " merges", n);
        memset(m->slots, 0xff, n_slots * sizeof(*m->slots));
        m->slot_mask = (uint32_t)(n_slots - 1);
        m->n = (uint32_t)n;
        (void)tdm_gguf_array_begin(&merges, g, merges_key);
        for (uint32_t rank = 0; rank < m->n; rank++) {
                struct tdm_gguf_string s;

                if (rank % CHECK_EVERY == 0 && (r = tdm_parse_check(&t->account, err)))
                        return r;
                if (tdm_gguf_array_next_string(&merges, &s) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of strings", merges_key);
                r = read_merge(t, rank, s, err);
                if (r)
                        return r;
        }
        return 0;
}
