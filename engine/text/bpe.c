/* Words of tokenizers with merges: byte-level BPE and Gemma 4's kind.
 *
 * A word starts as its bytes (or characters), and the two neighbours whose merge has the lowest rank become one, the
 * leftmost of equals first, until no neighbours have a merge. A short word is searched again for each merge. A long one
 * has a heap of its pairs, so that a text of one word takes O(n log n) time. */
#include "engine/text/encode-private.h"

#include "engine/text/unicode.h"

#define SHORT_WORD 24u /* symbols: below, searching is faster than a heap */

/* The heap has four children to a node: they share a cache line, which counts in a word of a megabyte. */
#define CHILDREN 4u

static int push_pair(struct tdm_encoder *e, uint32_t rank, uint32_t left)
{
        uint64_t pair = (uint64_t)rank << 32 | left;
        size_t i = e->bpe.n_pairs;

        if (tdm_encoder_grow((void **)&e->bpe.pairs, &e->bpe.pairs_capacity, i, sizeof(*e->bpe.pairs)) < 0)
                return -ENOMEM;
        e->bpe.n_pairs++;
        for (; i > 0 && pair < e->bpe.pairs[(i - 1) / CHILDREN]; i = (i - 1) / CHILDREN)
                e->bpe.pairs[i] = e->bpe.pairs[(i - 1) / CHILDREN];
        e->bpe.pairs[i] = pair;
        return 0;
}

static uint64_t pop_pair(struct tdm_encoder *e)
{
        uint64_t *pairs = e->bpe.pairs, top = pairs[0], last = pairs[--e->bpe.n_pairs];
        size_t n = e->bpe.n_pairs, i = 0, first;

        while ((first = CHILDREN * i + 1) < n) {
                size_t least = first, end = TDM_MIN(first + CHILDREN, n);

                for (size_t k = first + 1; k < end; k++)
                        least = pairs[k] < pairs[least] ? k : least;
                if (last <= pairs[least])
                        break;
                pairs[i] = pairs[least];
                i = least;
        }
        pairs[i] = last;
        return top;
}

/* The merge of the symbol left with its next one. */
static int try_pair(struct tdm_encoder *e, uint32_t left)
{
        struct tdm_bpe_symbol *s = &e->bpe.symbols[left];

        s->rank = TDM_NO_MERGE;
        if (s->next != TDM_NO_SYMBOL && s->id != TDM_NO_PIECE && e->bpe.symbols[s->next].id != TDM_NO_PIECE)
                s->rank = tdm_bpe_find_merge(e->t, s->id, e->bpe.symbols[s->next].id);
        return s->rank == TDM_NO_MERGE ? 0 : push_pair(e, s->rank, left);
}

/* The piece of one byte (of one character in Gemma 4's kind), or TDM_NO_PIECE. */
static uint32_t first_piece(const struct tdm_tokenizer *t, const uint8_t *text, size_t size)
{
        return t->kind == TDM_TOKENIZER_BYTES ? t->byte_ids[text[0]] : tdm_tokenizer_find(t, text, size);
}

/* The bytes of a word's first symbol: a byte, or a character. A stray byte is a symbol of its own. */
static size_t first_size(const struct tdm_tokenizer *t, const uint8_t *text, size_t size)
{
        int length = t->kind == TDM_TOKENIZER_BYTES ? 1 : tdm_character_length(text, size);

        return length > 0 ? (size_t)length : 1;
}

static int encode_long(struct tdm_encoder *e, const uint8_t *word, size_t size)
{
        struct tdm_bpe_symbol *symbols;
        uint32_t last = TDM_NO_SYMBOL;
        int r;

        /* A symbol stands at its first byte's place. */
        while (e->bpe.symbols_capacity < size) {
                if (tdm_encoder_grow((void **)&e->bpe.symbols, &e->bpe.symbols_capacity, e->bpe.symbols_capacity,
                                     sizeof(*e->bpe.symbols)) < 0)
                        return -ENOMEM;
        }
        symbols = e->bpe.symbols;
        for (size_t at = 0, n; at < size; at += n) {
                n = first_size(e->t, word + at, size - at);
                symbols[at] =
                        (struct tdm_bpe_symbol){ first_piece(e->t, word + at, n), last, TDM_NO_SYMBOL, TDM_NO_MERGE };
                if (last != TDM_NO_SYMBOL)
                        symbols[last].next = (uint32_t)at;
                last = (uint32_t)at;
        }
        e->bpe.n_pairs = 0;
        for (uint32_t i = 0; i != TDM_NO_SYMBOL; i = symbols[i].next) {
                if ((r = tdm_encoder_spend(e, 1)) < 0 || (r = try_pair(e, i)) < 0)
                        return r;
        }
        while (e->bpe.n_pairs > 0) {
                uint64_t pair = pop_pair(e);
                struct tdm_bpe_symbol *left = &symbols[(uint32_t)pair], *right;

                r = tdm_encoder_spend(e, 1);
                if (r < 0)
                        return r;
                if (left->rank != pair >> 32) /* one of the two has been merged since */
                        continue;
                right = &symbols[left->next];
                left->id = e->t->merges.ids[left->rank];
                left->next = right->next;
                if (right->next != TDM_NO_SYMBOL)
                        symbols[right->next].prev = (uint32_t)pair;
                right->rank = TDM_NO_MERGE;
                r = left->prev == TDM_NO_SYMBOL ? 0 : try_pair(e, left->prev);
                if (r == 0)
                        r = try_pair(e, (uint32_t)pair);
                if (r < 0)
                        return r;
        }
        for (uint32_t i = 0; i != TDM_NO_SYMBOL; i = symbols[i].next) {
                if (symbols[i].id != TDM_NO_PIECE)
                        tdm_encoder_emit(e, symbols[i].id);
                else
                        tdm_encoder_emit_bytes(e, word + i, first_size(e->t, word + i, size - i));
        }
        return 0;
}

/* At most SHORT_WORD bytes. */
static void encode_short(struct tdm_encoder *e, const uint8_t *word, size_t size)
{
        struct part {
                uint32_t id, rank; /* of the merge with the next one */
                uint32_t at;
        } parts[SHORT_WORD];
        unsigned n = 0;

        for (size_t at = 0; at < size; n++) {
                size_t length = first_size(e->t, word + at, size - at);

                parts[n] = (struct part){ first_piece(e->t, word + at, length), TDM_NO_MERGE, (uint32_t)at };
                at += length;
        }
#define MERGE_OF(a, b)                                                                                                 \
        ((a).id == TDM_NO_PIECE || (b).id == TDM_NO_PIECE ? TDM_NO_MERGE : tdm_bpe_find_merge(e->t, (a).id, (b).id))
        for (unsigned i = 0; i + 1 < n; i++)
                parts[i].rank = MERGE_OF(parts[i], parts[i + 1]);
        for (;;) {
                unsigned best = 0;

                for (unsigned i = 1; i < n; i++)
                        best = parts[i].rank < parts[best].rank ? i : best;
                if (n < 2 || parts[best].rank == TDM_NO_MERGE)
                        break;
                parts[best].id = e->t->merges.ids[parts[best].rank];
                n--;
                for (unsigned i = best + 1; i < n; i++)
                        parts[i] = parts[i + 1];
                parts[best].rank = best + 1 < n ? MERGE_OF(parts[best], parts[best + 1]) : TDM_NO_MERGE;
                if (best > 0)
                        parts[best - 1].rank = MERGE_OF(parts[best - 1], parts[best]);
        }
#undef MERGE_OF
        for (unsigned i = 0; i < n; i++) {
                if (parts[i].id != TDM_NO_PIECE)
                        tdm_encoder_emit(e, parts[i].id);
                else
                        tdm_encoder_emit_bytes(e, word + parts[i].at,
                                               first_size(e->t, word + parts[i].at, size - parts[i].at));
        }
}

static int encode_word(struct tdm_encoder *e, const uint8_t *word, size_t size, bool whole)
{
        int r;

        if (whole || size == 1) {
                uint32_t id = tdm_tokenizer_find(e->t, word, size);

                if (id != TDM_NO_PIECE) {
                        tdm_encoder_emit(e, id);
                        return tdm_encoder_spend(e, 1);
                }
        }
        if (size > SHORT_WORD)
                return encode_long(e, word, size);
        r = tdm_encoder_spend(e, 3 * size);
        if (r == 0)
                encode_short(e, word, size);
        return r;
}

static int check_budget(void *encoder)
{
        return tdm_encoder_settle(encoder);
}

/* Byte-level: words by the pre-tokenizer. A byte of text takes a step here, and the rest where it is merged. */
static int encode_bytes(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        const struct tdm_pretokenizer *p = e->t->pretokenizer;
        _cleanup_(freep) uint8_t *normal = NULL;
        _cleanup_(freep) uint16_t *many = NULL;
        const struct tdm_text_watch watch = { check_budget, e };
        uint16_t few[256], *marks = few;
        size_t start = 0;
        int r;

        r = tdm_encoder_spend(e, size);
        if (r < 0)
                return r;
        if (p->nfc) {
                r = tdm_unicode_nfc(text, size, &watch, &normal, &size);
                if (r < 0)
                        return r;
                text = normal ? normal : text;
        }
        if (size > TDM_ARRAY_SIZE(few)) {
                marks = many = malloc(size * sizeof(*many));
                if (!many)
                        return -ENOMEM;
        }
        r = tdm_pretokenize(p, text, size, &watch, marks);
        if (r < 0)
                return r;
        for (size_t at = 1; at <= size; at++) {
                if (at < size && !(marks[at] & TDM_MARK_START))
                        continue;
                r = encode_word(e, text + start, at - start, p->whole_words);
                if (r < 0)
                        return r;
                start = at;
        }
        return 0;
}

/* The original tokenizer turns spaces into U+2581, and cannot tell them from those of the text. *ret is NULL where
 * there are none. */
static int turn_marks(const uint8_t *text, size_t size, uint8_t **ret, size_t *ret_size)
{
        static const char mark[3] = { '\xe2', '\x96', '\x81' };
        const uint8_t *at = memmem(text, size, mark, 3), *end = text + size;
        size_t n = 0;

        *ret = NULL;
        if (!at)
                return 0;
        *ret = malloc(size);
        if (!*ret)
                return -ENOMEM;
        for (;;) {
                memcpy(*ret + n, text, (size_t)(at - text));
                n += (size_t)(at - text);
                if (at == end)
                        break;
                (*ret)[n++] = ' ';
                text = at + 3;
                at = memmem(text, (size_t)(end - text), mark, 3);
                at = at ? at : end;
        }
        *ret_size = n;
        return 0;
}

/* Gemma 4's kind: [^\n]+|[\n]+; line ends that are one piece together are taken as that. */
static int encode_lines(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        _cleanup_(freep) uint8_t *turned = NULL;

        if (turn_marks(text, size, &turned, &size) < 0)
                return -ENOMEM;
        text = turned ? turned : text;
        for (size_t at = 0, end; at < size; at = end) {
                bool line_ends = text[at] == '\n';
                int r;

                for (end = at + 1; end < size && (text[end] == '\n') == line_ends; end++)
                        ;
                r = encode_word(e, text + at, end - at, line_ends);
                if (r < 0)
                        return r;
        }
        return 0;
}

int tdm_bpe_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        return e->t->kind == TDM_TOKENIZER_BYTES ? encode_bytes(e, text, size) : encode_lines(e, text, size);
}
