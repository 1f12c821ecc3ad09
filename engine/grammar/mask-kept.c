/* Masks of states, kept with a parser's tables.
 *
 * A mask is some 16 KiB, and most are nearly those of a slice of the vocabulary, or nearly empty. So one is kept as the
 * words in which it differs from such a base: a few hundred bytes to a few KiB. Where the room is used
 * up all are forgotten, which costs time alone. */
#include "engine/grammar/mask.h"

enum {
        BLOCK = 8,        /* words that are compared together */
        WORDS_MAX = 8192, /* of a vocabulary whose masks are kept */
        KEPT_BYTES_MAX = 128 << 10,
        WORD_BYTES = sizeof(uint64_t) + sizeof(uint16_t),
};

static const uint64_t *base_words(const struct tdm_vocabulary *v, unsigned base)
{
        if (base == TDM_MASK_BASE_NONE)
                return NULL;
        if (base <= TDM_GROUPS)
                return v->groups[base - 1].slice;
        return tdm_vocabulary_slice(v, base - TDM_GROUPS);
}

void tdm_masks_forget(struct tdm_parser *p)
{
        struct tdm_kept_masks *m = &p->masks;

        for (uint32_t i = 0; i < m->n; i++)
                p->states[m->items[i].state].mask = 0;
        m->n = 0;
        m->n_words = 0;
}

void tdm_masks_deinit(struct tdm_kept_masks *m)
{
        free(m->items);
        free(m->places);
        free(m->words);
        *m = (struct tdm_kept_masks){ 0 };
}

size_t tdm_masks_bytes(const struct tdm_kept_masks *m)
{
        return m->capacity * sizeof(*m->items) + (size_t)m->words_capacity * WORD_BYTES;
}

/* Room for one more mask of n words. False: there is no memory. */
static bool masks_grow(struct tdm_kept_masks *m, uint32_t n)
{
        uint32_t capacity = m->words_capacity;
        void *more;

        if (m->n == m->capacity) {
                more = realloc(m->items, TDM_MAX(m->capacity * 2, 16u) * sizeof(*m->items));
                if (!more)
                        return false;
                m->items = more;
                m->capacity = TDM_MAX(m->capacity * 2, 16u);
        }
        if (m->n_words + n <= capacity)
                return true;
        capacity = TDM_MAX(TDM_MAX(capacity * 2, 512u), m->n_words + n);
        more = realloc(m->places, capacity * sizeof(*m->places));
        if (!more)
                return false;
        m->places = more;
        more = realloc(m->words, capacity * sizeof(*m->words));
        if (!more)
                return false;
        m->words = more;
        m->words_capacity = capacity;
        return true;
}

void tdm_masks_shrink(struct tdm_kept_masks *m)
{
        void *fewer = m->n_words > 0 ? realloc(m->words, m->n_words * sizeof(*m->words)) : NULL;

        if (!fewer)
                return;
        m->words = fewer;
        m->words_capacity = m->n_words;
        fewer = realloc(m->places, m->n_words * sizeof(*m->places));
        m->places = fewer ? fewer : m->places;
}

static bool block_differs(const uint64_t *words, const uint64_t *base)
{
        uint64_t any = 0;

        for (unsigned i = 0; i < BLOCK; i++)
                any |= words[i] ^ base[i];
        return any != 0;
}

/* The places of the words that differ from the base, and how many there are. */
static uint32_t places_find(const uint64_t *words, const uint64_t *base, uint32_t n_words, uint16_t *ret_places)
{
        static const uint64_t zeros[BLOCK];
        uint32_t n = 0;

        for (uint32_t at = 0; at < n_words; at += BLOCK) {
                const uint64_t *b = base ? base + at : zeros;
                uint32_t size = TDM_MIN(n_words - at, (uint32_t)BLOCK);

                if (size == BLOCK && !block_differs(words + at, b))
                        continue;
                for (uint32_t i = 0; i < size; i++) {
                        ret_places[n] = (uint16_t)(at + i);
                        n += words[at + i] != b[i];
                }
        }
        return n;
}

void tdm_mask_keep(struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state, unsigned base,
                   const uint64_t *words)
{
        struct tdm_kept_masks *m = &p->masks;
        size_t max = TDM_MIN((size_t)KEPT_BYTES_MAX, p->grammar->limits.max_matcher_bytes / 16);
        uint16_t places[WORDS_MAX + 1];
        uint32_t n;

        if (v->n_words > WORDS_MAX)
                return;
        n = places_find(words, base_words(v, base), v->n_words, places);
        if ((size_t)(m->n_words + n) * WORD_BYTES + m->n * sizeof(*m->items) > max)
                tdm_masks_forget(p);
        if ((size_t)n * WORD_BYTES > max || !masks_grow(m, n))
                return;
        for (uint32_t i = 0; i < n; i++) {
                m->places[m->n_words + i] = places[i];
                m->words[m->n_words + i] = words[places[i]];
        }
        m->items[m->n++] = (struct tdm_kept_mask){ .state = state, .base = base, .at = m->n_words, .n = n };
        m->n_words += n;
        p->states[state].mask = m->n;
}

bool tdm_mask_recall(const struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state, uint64_t *words)
{
        const struct tdm_kept_masks *m = &p->masks;
        const struct tdm_kept_mask *mask;
        const uint64_t *base;

        if (p->states[state].mask == 0)
                return false;
        mask = &m->items[p->states[state].mask - 1];
        base = base_words(v, mask->base);
        if (base)
                memcpy(words, base, v->n_words * sizeof(*words));
        else
                memset(words, 0, v->n_words * sizeof(*words));
        for (uint32_t i = mask->at; i < mask->at + mask->n; i++)
                words[m->places[i]] = m->words[i];
        return true;
}

uint32_t tdm_mask_n_differing(const struct tdm_parser *p, uint32_t state)
{
        return p->states[state].mask == 0 ? 0 : p->masks.items[p->states[state].mask - 1].n;
}

uint64_t tdm_mask_differing(const struct tdm_parser *p, const struct tdm_vocabulary *v, uint32_t state, uint32_t i,
                            uint32_t *ret_place)
{
        const struct tdm_kept_mask *mask = &p->masks.items[p->states[state].mask - 1];
        const uint64_t *base = base_words(v, mask->base);
        uint32_t place = p->masks.places[mask->at + i];

        *ret_place = place;
        return p->masks.words[mask->at + i] & ~(base ? base[place] : 0);
}
