/* Text to ids.
 *
 * From left to right: where a special piece matches, the longest one is taken; what lies between is cut into words at
 * borders that no piece spans, and each word's characters are merged, the best-scored pair first, the leftmost of
 * equals. Cutting into words changes nothing (a merge across such a border would need a piece that does not exist), but
 * keeps the heap small. A word without borders costs O(n log n).
 *
 * What has no piece is written byte by byte. So are bytes that are not UTF-8, and U+2581 itself: SentencePiece would
 * take it for a space, here it comes back as what it was. */
#include "engine/text/tokenizer-private.h"

#include "common/utf8.h"

#define TEXT_MAX_BYTES ((size_t)INT32_MAX)
#define WINDOW_BYTES 16384u /* special pieces are looked for in so many bytes at a time */
#define SMALL_BYTES 256u    /* a text for which nothing is allocated */
#define CHECK_STEPS 4096u   /* between two looks at the budget */
#define NONE UINT32_MAX

struct symbol {
        uint32_t start, size; /* bytes of the word; size 0: merged into the one before */
        uint32_t prev, next;  /* indices or NONE; of a merged symbol next is when that happened */
        uint32_t id;
};

/* Two neighbours that could become the piece id. Stale when either has changed size since. */
struct pair {
        float score;
        uint32_t left;
        uint32_t size;
        uint32_t id;
};

struct encoder {
        const struct tdm_tokenizer *t;
        uint32_t *ids;
        size_t capacity;
        size_t n_ids;
        struct symbol *symbols;
        size_t symbols_capacity;
        struct pair *pairs; /* a heap */
        size_t n_pairs, pairs_capacity;
        struct tdm_encode_budget *budget; /* or NULL */
        uint64_t steps;                   /* taken since the budget was last looked at */
};

static int settle(struct encoder *e)
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

static inline int spend(struct encoder *e, uint64_t steps)
{
        e->steps += steps;
        return e->steps < CHECK_STEPS ? 0 : settle(e);
}

/* As tdm_utf8_length(); most characters are ASCII. */
static inline int character_length(const uint8_t *text, size_t size)
{
        return text[0] < 0x80 ? 1 : tdm_utf8_length(text, size);
}

static void emit(struct encoder *e, uint32_t id)
{
        if (e->n_ids < e->capacity)
                e->ids[e->n_ids] = id;
        e->n_ids++;
}

/* One character (or one stray byte) without a piece. */
static void emit_bytes(struct encoder *e, const uint8_t *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                if (e->t->byte_ids[text[i]] == TDM_NO_PIECE) {
                        emit(e, (uint32_t)e->t->unknown);
                        return;
                }
        }
        for (size_t i = 0; i < size; i++)
                emit(e, e->t->byte_ids[text[i]]);
}

static bool pair_before(const struct pair *a, const struct pair *b)
{
        if (a->score != b->score)
                return a->score > b->score;
        return a->left < b->left;
}

static int grow(void **array, size_t *capacity, size_t n, size_t element)
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

static int push_pair(struct encoder *e, struct pair pair)
{
        size_t i = e->n_pairs;

        if (grow((void **)&e->pairs, &e->pairs_capacity, e->n_pairs, sizeof(*e->pairs)) < 0)
                return -ENOMEM;
        e->n_pairs++;
        for (; i > 0 && pair_before(&pair, &e->pairs[(i - 1) / 2]); i = (i - 1) / 2)
                e->pairs[i] = e->pairs[(i - 1) / 2];
        e->pairs[i] = pair;
        return 0;
}

static struct pair pop_pair(struct encoder *e)
{
        struct pair top = e->pairs[0], last = e->pairs[--e->n_pairs];
        size_t i = 0, child;

        while ((child = 2 * i + 1) < e->n_pairs) {
                if (child + 1 < e->n_pairs && pair_before(&e->pairs[child + 1], &e->pairs[child]))
                        child++;
                if (!pair_before(&e->pairs[child], &last))
                        break;
                e->pairs[i] = e->pairs[child];
                i = child;
        }
        e->pairs[i] = last;
        return top;
}

static int try_pair(struct encoder *e, const uint8_t *word, uint32_t left, uint32_t right)
{
        uint32_t id, size;

        if (left == NONE || right == NONE)
                return 0;
        size = e->symbols[left].size + e->symbols[right].size;
        id = tdm_tokenizer_find(e->t, word + e->symbols[left].start, size);
        if (id == TDM_NO_PIECE)
                return 0;
        return push_pair(e, (struct pair){ e->t->pieces[id].score, left, size, id });
}

/* A piece that the vocabulary keeps but does not use, made of symbols [first, end), is taken apart where it was put
 * together last, and so are its parts, as SentencePiece does. The order of the merges makes a tree with the last one at
 * its root; it is built from left to right in linear time, with the right edge of what is there on a stack. */
static void emit_unused(struct encoder *e, const uint8_t *word, uint32_t first, uint32_t end)
{
        uint16_t left[TDM_PIECE_BYTES_MAX], right[TDM_PIECE_BYTES_MAX], edge[TDM_PIECE_BYTES_MAX]; /* 0: none */
        struct part {
                uint16_t from, to, split; /* symbols behind first; the split is the last merge in between, or 0 */
        } parts[TDM_PIECE_BYTES_MAX + 1];
        const struct symbol *symbols = e->symbols + first;
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
                        emit_bytes(e, word + start, size);
                else if (part.split == 0 || e->t->pieces[id].type != TDM_PIECE_UNUSED)
                        emit(e, id);
                else {
                        parts[n_parts++] = (struct part){ part.split, part.to, right[part.split] };
                        parts[n_parts++] = (struct part){ part.from, part.split, left[part.split] };
                }
        }
}

/* Symbols [first, end) have become one piece. */
static void emit_symbols(struct encoder *e, const uint8_t *word, uint32_t first, uint32_t end)
{
        uint32_t id = e->symbols[first].id;

        if (id == TDM_NO_PIECE)
                emit_bytes(e, word + e->symbols[first].start, e->symbols[first].size);
        else if (e->t->pieces[id].type != TDM_PIECE_UNUSED || end - first == 1)
                emit(e, id);
        else
                emit_unused(e, word, first, end);
}

/* word is well-formed UTF-8. */
static int encode_word(struct encoder *e, const uint8_t *word, size_t size)
{
        uint32_t n = 0, when = 0;
        int r;

        r = spend(e, size);
        if (r < 0)
                return r;
        if ((size_t)character_length(word, size) == size) {
                uint32_t id = tdm_tokenizer_find(e->t, word, size);

                if (id == TDM_NO_PIECE)
                        emit_bytes(e, word, size);
                else
                        emit(e, id);
                return 0;
        }
        e->n_pairs = 0;
        for (size_t at = 0;; n++) { /* the last one is a sentinel of size 0 */
                uint32_t length = at < size ? (uint32_t)character_length(word + at, size - at) : 0;

                if (grow((void **)&e->symbols, &e->symbols_capacity, n, sizeof(*e->symbols)) < 0)
                        return -ENOMEM;
                e->symbols[n] = (struct symbol){ (uint32_t)at, length, n ? n - 1 : NONE, n + 1, TDM_NO_PIECE };
                if (length == 0)
                        break;
                e->symbols[n].id = tdm_tokenizer_find(e->t, word + at, length);
                at += length;
        }
        e->symbols[n - 1].next = NONE;
        for (uint32_t i = 1; i < n; i++) {
                r = try_pair(e, word, i - 1, i);
                if (r < 0)
                        return r;
        }
        while (e->n_pairs > 0) {
                struct pair pair = pop_pair(e);
                struct symbol *left = &e->symbols[pair.left], *right;

                r = spend(e, 1);
                if (r < 0)
                        return r;
                if (left->size == 0 || left->next == NONE)
                        continue;
                right = &e->symbols[left->next];
                if (left->size + right->size != pair.size)
                        continue;
                left->size = pair.size;
                left->id = pair.id;
                left->next = right->next;
                if (right->next != NONE)
                        e->symbols[right->next].prev = pair.left;
                right->size = 0;
                right->next = when++;
                r = try_pair(e, word, left->prev, pair.left);
                if (r == 0)
                        r = try_pair(e, word, pair.left, left->next);
                if (r < 0)
                        return r;
        }
        for (uint32_t i = 0; i != NONE; i = e->symbols[i].next)
                emit_symbols(e, word, i, e->symbols[i].next == NONE ? n : e->symbols[i].next);
        return 0;
}

/* Text without special pieces. */
static int encode_plain(struct encoder *e, const uint8_t *text, size_t size)
{
        size_t start = 0, at = 0;
        int r = 0;

        while (at < size) {
                int length = character_length(text + at, size - at);
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
                        r = spend(e, 1);
                        if (r < 0)
                                return r;
                        emit_bytes(e, text + start, at - start);
                        start = at;
                }
        }
        return at > start ? encode_word(e, text + start, at - start) : 0;
}

/* A run between special pieces. Some vocabularies want a space in front of it. */
static int encode_run(struct encoder *e, const uint8_t *text, size_t size, bool prefix)
{
        _cleanup_(freep) uint8_t *copy = NULL;

        if (size == 0)
                return 0;
        if (!prefix)
                return encode_plain(e, text, size);
        copy = malloc(size + 1);
        if (!copy)
                return -ENOMEM;
        copy[0] = ' ';
        memcpy(copy + 1, text, size);
        return encode_plain(e, copy, size + 1);
}

/* matches has room for min(size, WINDOW_BYTES) ids. */
static int encode_text(struct encoder *e, const uint8_t *text, size_t size, bool controls, uint32_t *matches)
{
        const struct tdm_tokenizer *t = e->t;
        bool prefix = t->add_space_prefix; /* at the start and behind control pieces */
        size_t start = 0, at = 0, window = 0, window_end = 0;
        int r, length;

        while (at < size) {
                uint32_t id;

                if (at >= window_end) {
                        window = at;
                        window_end = at + TDM_MIN(size - at, (size_t)WINDOW_BYTES);
                        r = spend(e, window_end - window + t->specials.max_bytes);
                        if (r < 0)
                                return r;
                        tdm_tokenizer_match_specials(t, text + at, size - at, window_end - window, controls, matches);
                }
                id = matches[at - window];
                if (id == TDM_NO_PIECE) {
                        length = character_length(text + at, size - at);
                        at += length > 0 ? (size_t)length : 1;
                        continue;
                }
                r = encode_run(e, text + start, at - start, prefix);
                if (r < 0)
                        return r;
                emit(e, id);
                prefix = t->add_space_prefix && t->pieces[id].type != TDM_PIECE_USER_DEFINED;
                at += t->pieces[id].size;
                start = at;
        }
        return encode_run(e, text + start, size - start, prefix);
}

static int encode(struct encoder *e, const uint8_t *text, size_t size, bool controls)
{
        _cleanup_(freep) uint32_t *many = NULL;
        uint32_t few[SMALL_BYTES], *matches = few;

        if (controls ? e->t->specials.max_bytes == 0 : !e->t->specials.has_user_defined)
                return encode_run(e, text, size, e->t->add_space_prefix);
        if (size > SMALL_BYTES) {
                matches = many = malloc(TDM_MIN(size, (size_t)WINDOW_BYTES) * sizeof(*many));
                if (!many)
                        return -ENOMEM;
        }
        return encode_text(e, text, size, controls, matches);
}

ssize_t tdm_tokenizer_encode_within(const struct tdm_tokenizer *tokenizer, const char *text, size_t size,
                                    unsigned flags, struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity)
{
        struct encoder e = { .t = tokenizer, .ids = ids, .capacity = capacity, .budget = budget };
        int r = 0, settled;

        if (flags & ~(unsigned)(TDM_TOKENIZE_BOS | TDM_TOKENIZE_SPECIAL))
                return -EINVAL;
        if (size > TEXT_MAX_BYTES)
                return -E2BIG;
        if (flags & TDM_TOKENIZE_BOS && tokenizer->add_bos && tokenizer->bos >= 0)
                emit(&e, (uint32_t)tokenizer->bos);
        if (size > 0) /* text may be NULL otherwise */
                r = encode(&e, (const uint8_t *)text, size, flags & TDM_TOKENIZE_SPECIAL);
        settled = settle(&e);
        free(e.symbols);
        free(e.pairs);
        if (r == 0)
                r = settled;
        return r < 0 ? r : (ssize_t)e.n_ids;
}

ssize_t tdm_tokenizer_encode(const struct tdm_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                             uint32_t *ids, size_t capacity)
{
        return tdm_tokenizer_encode_within(tokenizer, text, size, flags, NULL, ids, capacity);
}
