/* Words of a WordPiece tokenizer, as BERT's own has them.
 *
 * Text is brought to a simple form first: accents and capitals go where the file says so, control characters always.
 * White space ends a word. A mark of punctuation is a word, and so is an ideograph. A word begins with a space, which
 * stands for U+2581 of the file, and becomes the longest pieces from left to right. Where no piece goes on, and where
 * the word is longer than WORD_CHARACTERS, the whole word is the unknown piece. Bytes that are not UTF-8 are left out,
 * as the original leaves out U+FFFD. */
#include "engine/text/encode-private.h"
#include "engine/text/unicode.h"

/* ---- the file ---- */

static int find_special(const struct tdm_tokenizer *t, const struct tdm_gguf *g, const char *const keys[],
                        const char *text, int32_t *id, struct tdm_error *err)
{
        for (; *id < 0 && *keys; keys++) {
                uint64_t value;
                int r = tdm_gguf_get_u64(g, *keys, &value);

                if (r < 0 && r != -ENOENT)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not the number of a piece", *keys);
                if (r == 0 && value < t->n_pieces)
                        *id = (int32_t)value;
        }
        if (*id < 0)
                *id = tdm_form_find_piece(g, text);
        if (*id >= 0 && (uint32_t)*id < t->n_pieces)
                return 0;
        return tdm_error_set(err, TDM_E_BAD_MODEL,
                             "its vocabulary has no piece %s, which belongs to every text of a WordPiece tokenizer",
                             text);
}

static int read_flag(const struct tdm_gguf *g, const char *key, bool *v, struct tdm_error *err)
{
        if (tdm_gguf_get_bool(g, key, v) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a boolean, nor 0 or 1", key);
        return 0;
}

int tdm_wordpiece_read(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        static const char *const first[] = { "tokenizer.ggml.cls_token_id", NULL },
                                 /* as converters spell it */
                *const last[] = { "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id", NULL },
                                 *const none[] = { NULL };
        struct tdm_wordpiece *w = &t->wordpiece;
        int r;

        t->eos = -1; /* files may have another piece there, and what ends a text is this one. The key add_sep_token is
                        about pairs of texts. */
        w->lowers = true;
        if ((r = find_special(t, g, first, "[CLS]", &t->bos, err)) ||
            (r = find_special(t, g, last, "[SEP]", &t->eos, err)) ||
            (r = find_special(t, g, none, "[UNK]", &t->unknown, err)) ||
            (r = read_flag(g, "tokenizer.ggml.normalizer.lowercase", &w->lowers, err)))
                return r;
        w->strips_accents = w->lowers;
        return read_flag(g, "tokenizer.ggml.normalizer.strip_accents", &w->strips_accents, err);
}

/* ---- text ---- */

#define WORD_CHARACTERS 100u
#define LOOKUPS_A_STEP 8u /* of pieces; one takes some 30 ns */

struct wordpiece_word {
        uint8_t text[1 + 4 * WORD_CHARACTERS];
        size_t size;
        uint32_t n_characters; /* one more than fit: the rest is not kept */
};

static bool is_border(const struct wordpiece_word *w, size_t at)
{
        return at == w->size || (w->text[at] & 0xc0) != 0x80;
}

/* The longest piece from a byte of the word on; *ret_end: where it ends. */
static uint32_t longest_piece(const struct tdm_encoder *e, const struct wordpiece_word *w, size_t at, size_t *ret_end,
                              uint64_t *n_lookups)
{
        size_t least = TDM_MAX(at, (size_t)1); /* the space alone is no part of a word */

        for (size_t end = TDM_MIN(w->size, at + e->t->max_merge_bytes); end > least; end--) {
                uint32_t id;

                if (!is_border(w, end))
                        continue;
                ++*n_lookups;
                id = tdm_tokenizer_find(e->t, w->text + at, end - at);
                if (id != TDM_NO_PIECE) {
                        *ret_end = end;
                        return id;
                }
        }
        return TDM_NO_PIECE;
}

/* Emits the word and empties it. */
static int word_end(struct tdm_encoder *e, struct wordpiece_word *w)
{
        size_t n_before = e->n_ids, at = 0;
        uint64_t n_lookups = 0;
        uint32_t id = TDM_NO_PIECE;

        if (w->n_characters == 0)
                return 0;
        while (w->n_characters <= WORD_CHARACTERS && at < w->size) {
                id = longest_piece(e, w, at, &at, &n_lookups);
                if (id == TDM_NO_PIECE)
                        break;
                tdm_encoder_emit(e, id);
        }
        if (id == TDM_NO_PIECE) {
                e->n_ids = n_before;
                tdm_encoder_emit(e, (uint32_t)e->t->unknown);
        }
        w->size = 1;
        w->n_characters = 0;
        return tdm_encoder_spend(e, 1 + n_lookups / LOOKUPS_A_STEP);
}

static void word_add(struct wordpiece_word *w, uint32_t c)
{
        if (w->n_characters < WORD_CHARACTERS)
                w->size += tdm_unicode_put(w->text + w->size, c);
        if (w->n_characters <= WORD_CHARACTERS)
                w->n_characters++;
}

/* A word of one character. */
static int add_alone(struct tdm_encoder *e, struct wordpiece_word *w, uint32_t c)
{
        int r = word_end(e, w);

        if (r < 0)
                return r;
        word_add(w, c);
        return word_end(e, w);
}

static int add_character(struct tdm_encoder *e, struct wordpiece_word *w, uint32_t c)
{
        const struct tdm_wordpiece *form = &e->t->wordpiece;
        enum tdm_wordpiece_kind kind = tdm_unicode_wordpiece_kind(c);
        uint32_t parts[TDM_UNICODE_PARTS_MAX] = { c };
        size_t n = form->strips_accents && c >= 0x80 ? tdm_unicode_take_apart(c, parts) : 1;
        int r = 0;

        if (kind == TDM_WORDPIECE_DROP)
                return 0;
        if (kind == TDM_WORDPIECE_WHITE)
                return word_end(e, w);
        for (size_t i = 0; r == 0 && i < n; i++) {
                enum tdm_wordpiece_kind of_part = c < 0x80 ? kind : tdm_unicode_wordpiece_kind(parts[i]);

                if (of_part == TDM_WORDPIECE_ACCENT && form->strips_accents)
                        continue;
                if (form->lowers)
                        parts[i] = tdm_unicode_lower(parts[i]);
                if (kind == TDM_WORDPIECE_IDEOGRAPH || of_part == TDM_WORDPIECE_PUNCT)
                        r = add_alone(e, w, parts[i]);
                else
                        word_add(w, parts[i]);
        }
        return r;
}

int tdm_wordpiece_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        struct wordpiece_word w = { .text = { ' ' }, .size = 1 };
        int r = 0;

        for (size_t at = 0; r == 0 && at < size;) {
                int length = tdm_character_length(text + at, size - at);

                if (length > 0)
                        r = add_character(e, &w, tdm_unicode_character(text + at, length));
                at += length > 0 ? (size_t)length : 1;
                if (r == 0)
                        r = tdm_encoder_spend(e, 1);
        }
        return r < 0 ? r : word_end(e, &w);
}
