/* Words of a SentencePiece tokenizer.
 *
 * Text is cut into words at borders that no piece spans, and each word's characters are merged, the best-scored pair
 * first, the leftmost of equals. Cutting into words changes nothing (a merge across such a border would need a piece
 * that does not exist), but keeps the heap small. A word without borders costs O(n log n).
 *
 * Three things are written byte by byte: what has no piece, bytes that are not UTF-8, and U+2581. SentencePiece would
 * take that for a space. Here it comes back as what it was. */
#include "engine/text/encode-private.h"

static bool pair_before(const struct tdm_spm_pair *a, const struct tdm_spm_pair *b)
{
        if (a->score != b->score)
                return a->score > b->score;
        return a->left < b->left;
}

static int push_pair(struct tdm_encoder *e, struct tdm_spm_pair pair)
{
        size_t i = e->spm.n_pairs;

        if (tdm_encoder_grow((void **)&e->spm.pairs, &e->spm.pairs_capacity, e->spm.n_pairs, sizeof(*e->spm.pairs)) < 0)
                return -ENOMEM;
        e->spm.n_pairs++;
        for (; i > 0 && pair_before(&pair, &e->spm.pairs[(i - 1) / 2]); i = (i - 1) / 2)
                e->spm.pairs[i] = e->spm.pairs[(i - 1) / 2];
        e->spm.pairs[i] = pair;
        return 0;
}

static struct tdm_spm_pair pop_pair(struct tdm_encoder *e)
{
        struct tdm_spm_pair top = e->spm.pairs[0], last = e->spm.pairs[--e->spm.n_pairs];
        size_t i = 0, child;

        while ((child = 2 * i + 1) < e->spm.n_pairs) {
                if (child + 1 < e->spm.n_pairs && pair_before(&e->spm.pairs[child + 1], &e->spm.pairs[child]))
                        child++;
                if (!pair_before(&e->spm.pairs[child], &last))
                        break;
                e->spm.pairs[i] = e->spm.pairs[child];
                i = child;
        }
        e->spm.pairs[i] = last;
        return top;
}

static int try_pair(struct tdm_encoder *e, const uint8_t *word, uint32_t left, uint32_t right)
{
        uint32_t id, size;

        if (left == TDM_NO_SYMBOL || right == TDM_NO_SYMBOL)
                return 0;
        size = e->spm.symbols[left].size + e->spm.symbols[right].size;
        id = tdm_tokenizer_find(e->t, word + e->spm.symbols[left].start, size);
        if (id == TDM_NO_PIECE)
                return 0;
        return push_pair(e, (struct tdm_spm_pair){ e->t->pieces[id].score, left, size, id });
}

/* A piece that the vocabulary keeps but does not use, made of symbols [first, end), is taken apart where it was put
 * together last, and so are its parts, as SentencePiece does. The order of the merges makes a tree with the last one at
 * its root; it is built from left to right in linear time, with the right edge of what is there on a stack. */
static void emit_unused(struct tdm_encoder *e, const uint8_t *word, uint32_t first, uint32_t end)
{
        uint16_t left[TDM_PIECE_BYTES_MAX], right[TDM_PIECE_BYTES_MAX], edge[TDM_PIECE_BYTES_MAX]; /* 0: none */
        struct part {
                uint16_t from, to, split; /* symbols behind first; the split is the last merge in between, or 0 */
        } parts[TDM_PIECE_BYTES_MAX + 1];
        const struct tdm_spm_symbol *symbols = e->spm.symbols + first;
        uint32_t n = end - first, n_edge = 0, n_parts = 0;

        for (uint32_t i = 1; i < n; i++) { /* symbol i was merged into the one before when symbols[i].next says */
                left[i] = right[i] = 0;
                while (n_edge > 0 && symbols[edge[n_edge - 1]].next < symbols[i].next)
                        left[i] = edge[--n_edge];
                if (n_edge > 0)
                        right[edge[n_edge - 1]] = (uint16_t)i;
                edge[n_edge++] = (uint16_t)i;
        }
        parts[n_parts++] = (struct part){ 0, (uint16_t)n, edge[0] };
        while (n_parts > 0) {
                struct part part = parts[--n_parts];
                size_t start = symbols[part.from].start, size = symbols[part.to].start - start;
                uint32_t id = tdm_tokenizer_find(e->t, word + start, size);

                if (id == TDM_NO_PIECE) /* a single character: only those have no piece */
                        tdm_encoder_emit_bytes(e, word + start, size);
                else if (part.split == 0 || e->t->pieces[id].type != TDM_PIECE_UNUSED)
                        tdm_encoder_emit(e, id);
                else {
                        parts[n_parts++] = (struct part){ part.split, part.to, right[part.split] };
                        parts[n_parts++] = (struct part){ part.from, part.split, left[part.split] };
                }
        }
}

/* Symbols [first, end) have become one piece. */
static void emit_symbols(struct tdm_encoder *e, const uint8_t *word, uint32_t first, uint32_t end)
{
        uint32_t id = e->spm.symbols[first].id;

        if (id == TDM_NO_PIECE)
                tdm_encoder_emit_bytes(e, word + e->spm.symbols[first].start, e->spm.symbols[first].size);
        else if (e->t->pieces[id].type != TDM_PIECE_UNUSED || end - first == 1)
                tdm_encoder_emit(e, id);
        else
                emit_unused(e, word, first, end);
}

/* word is well-formed UTF-8. */
static int encode_word(struct tdm_encoder *e, const uint8_t *word, size_t size)
{
        uint32_t n = 0, when = 0;
        int r;

        r = tdm_encoder_spend(e, size);
        if (r < 0)
                return r;
        if ((size_t)tdm_character_length(word, size) == size) {
                uint32_t id = tdm_tokenizer_find(e->t, word, size);

                if (id == TDM_NO_PIECE)
                        tdm_encoder_emit_bytes(e, word, size);
                else
                        tdm_encoder_emit(e, id);
                return 0;
        }
        e->spm.n_pairs = 0;
        for (size_t at = 0;; n++) { /* the last one is a sentinel of size 0 */
                uint32_t length = at < size ? (uint32_t)tdm_character_length(word + at, size - at) : 0;

                if (tdm_encoder_grow((void **)&e->spm.symbols, &e->spm.symbols_capacity, n, sizeof(*e->spm.symbols)) <
                    0)
                        return -ENOMEM;
                e->spm.symbols[n] =
                        (struct tdm_spm_symbol){ (uint32_t)at, length, n ? n - 1 : TDM_NO_SYMBOL, n + 1, TDM_NO_PIECE };
                if (length == 0)
                        break;
                e->spm.symbols[n].id = tdm_tokenizer_find(e->t, word + at, length);
                at += length;
        }
        e->spm.symbols[n - 1].next = TDM_NO_SYMBOL;
        for (uint32_t i = 1; i < n; i++) {
                r = try_pair(e, word, i - 1, i);
                if (r < 0)
                        return r;
        }
        while (e->spm.n_pairs > 0) {
                struct tdm_spm_pair pair = pop_pair(e);
                struct tdm_spm_symbol *left = &e->spm.symbols[pair.left], *right;

                r = tdm_encoder_spend(e, 1);
                if (r < 0)
                        return r;
                if (left->size == 0 || left->next == TDM_NO_SYMBOL)
                        continue;
                right = &e->spm.symbols[left->next];
                if (left->size + right->size != pair.size)
                        continue;
                left->size = pair.size;
                left->id = pair.id;
                left->next = right->next;
                if (right->next != TDM_NO_SYMBOL)
                        e->spm.symbols[right->next].prev = pair.left;
                right->size = 0;
                right->next = when++;
                r = try_pair(e, word, left->prev, pair.left);
                if (r == 0)
                        r = try_pair(e, word, pair.left, left->next);
                if (r < 0)
                        return r;
        }
        for (uint32_t i = 0; i != TDM_NO_SYMBOL; i = e->spm.symbols[i].next)
                emit_symbols(e, word, i, e->spm.symbols[i].next == TDM_NO_SYMBOL ? n : e->spm.symbols[i].next);
        return 0;
}

/* Text without special pieces. */
static int encode_plain(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        size_t start = 0, at = 0;
        int r = 0;

        while (at < size) {
                int length = tdm_character_length(text + at, size - at);
                bool stray = length <= 0;
                uint8_t byte = text[at];

                if (at > start && (stray || !(e->t->joins[text[at - 1]][byte / 8] & 1u << byte % 8))) {
                        r = encode_word(e, text + start, at - start);
                        if (r < 0)
                                return r;
                        start = at;
                }
                at += length > 0 ? (size_t)length : 1;
                if (stray) {
                        r = tdm_encoder_spend(e, 1);
                        if (r < 0)
                                return r;
                        tdm_encoder_emit_bytes(e, text + start, at - start);
                        start = at;
                }
        }
        return at > start ? encode_word(e, text + start, at - start) : 0;
}

/* Some vocabularies want a space in front of a run. */
int tdm_spm_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size, bool prefix)
{
        _cleanup_(freep) uint8_t *copy = NULL;

        if (!prefix)
                return encode_plain(e, text, size);
        copy = malloc(size + 1);
        if (!copy)
                return -ENOMEM;
        copy[0] = ' ';
        memcpy(copy + 1, text, size);
        return encode_plain(e, copy, size + 1);
}
