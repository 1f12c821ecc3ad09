#include "daemon/speculate/lookup.h"

#define NONE UINT32_MAX
/* Ids that one call reads at most: the loop's thread has other things to do. */
#define READ_AT_MOST 4096u
/* Places that one call compares at most. A text that repeats three tokens endlessly has many. */
#define COMPARE_AT_MOST 32u
#define FIRST_PLACES 1024u

struct tdm_lookup {
        uint32_t *newest;     /* [n_heads]: 1 + the last place with this hash; 0: none */
        uint32_t *before;     /* [capacity]: of a place, 1 + the one before it with the same hash; 0: none */
        uint32_t n_heads;     /* a power of two */
        uint32_t n, capacity; /* places that are known: ids that were read */
        uint32_t distance;    /* of the last guesses from the place where they stood; 0: there were none */
};

int tdm_lookup_new(struct tdm_lookup **ret)
{
        struct tdm_lookup *lookup = calloc(1, sizeof(*lookup));

        if (!lookup)
                return -ENOMEM;
        *ret = lookup;
        return 0;
}

void tdm_lookup_destroy(struct tdm_lookup *lookup)
{
        if (!lookup)
                return;
        free(lookup->newest);
        free(lookup->before);
        free(lookup);
}

/* A hash of the three tokens that end at a place. */
static uint32_t hash(const struct tdm_lookup *lookup, const uint32_t *ids, uint32_t place)
{
        uint64_t h = ids[place - 2];

        h = (h * UINT64_C(0x9e3779b97f4a7c15)) ^ ids[place - 1];
        h = (h * UINT64_C(0x9e3779b97f4a7c15)) ^ ids[place];
        h *= UINT64_C(0x9e3779b97f4a7c15);
        return (uint32_t)(h >> 40) & (lookup->n_heads - 1);
}

static void lookup_enter_place(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t place)
{
        uint32_t *head;

        lookup->before[place] = 0;
        if (place + 1 < TDM_LOOKUP_LEAST)
                return;
        head = &lookup->newest[hash(lookup, ids, place)];
        lookup->before[place] = *head;
        *head = place + 1;
}

static int lookup_make_room(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids)
{
        uint32_t capacity = TDM_MAX(lookup->capacity, FIRST_PLACES), *before, *newest;

        if (n_ids <= lookup->capacity)
                return 0;
        while (capacity < n_ids)
                capacity *= 2;
        before = realloc(lookup->before, capacity * sizeof(*before));
        if (!before)
                return -ENOMEM;
        lookup->before = before;
        newest = calloc(capacity, sizeof(*newest));
        if (!newest)
                return -ENOMEM;
        free(lookup->newest);
        lookup->newest = newest;
        lookup->n_heads = lookup->capacity = capacity;
        for (uint32_t i = 0; i < lookup->n; i++)
                lookup_enter_place(lookup, ids, i);
        return 0;
}

/* How many tokens before and at a and b are equal. a < b. */
static uint32_t agreement(const uint32_t *ids, uint32_t a, uint32_t b)
{
        uint32_t n = 0;

        while (n < TDM_LOOKUP_MOST && n <= a && ids[a - n] == ids[b - n])
                n++;
        return n;
}

/* The same over one token that differs; 0: too few agree before that one. *ret_behind: it is the last one. */
static uint32_t agreement_over_change(const uint32_t *ids, uint32_t a, uint32_t b, bool *ret_behind)
{
        uint32_t after = agreement(ids, a, b), before;

        *ret_behind = after == 0;
        if (after >= TDM_LOOKUP_MOST || after >= a)
                return 0;
        before = agreement(ids, a - after - 1, b - after - 1);
        return before < TDM_LOOKUP_BEFORE_CHANGE ? 0 : TDM_MIN(after + before, TDM_LOOKUP_MOST);
}

uint32_t tdm_lookup_guess(struct tdm_lookup *lookup, const uint32_t *ids, uint32_t n_ids, uint32_t most, uint32_t *ret,
                          struct tdm_lookup_match *match)
{
        uint32_t until, best = NONE, length = TDM_LOOKUP_LEAST - 1, n, at;
        bool behind = false;

        if (lookup_make_room(lookup, ids, n_ids) < 0)
                return 0;
        until = lookup->n + TDM_MIN(n_ids - TDM_MIN(n_ids, lookup->n), READ_AT_MOST);
        for (; lookup->n < until; lookup->n++)
                lookup_enter_place(lookup, ids, lookup->n);
        if (lookup->n < n_ids || n_ids <= TDM_LOOKUP_LEAST)
                return 0;
        at = lookup->before[n_ids - 1];
        for (uint32_t i = 0; at != 0 && i < COMPARE_AT_MOST; i++, at = lookup->before[at - 1]) {
                uint32_t agree = agreement(ids, at - 1, n_ids - 1);

                if (agree <= length)
                        continue;
                length = agree;
                best = at;
                if (length == TDM_LOOKUP_MOST)
                        break;
        }
        if (lookup->distance > 0 && lookup->distance < n_ids && length < TDM_LOOKUP_MOST) {
                bool behind_last;
                uint32_t from = n_ids - lookup->distance,
                         agree = agreement_over_change(ids, from - 1, n_ids - 1, &behind_last);

                if (agree > length) {
                        length = agree;
                        best = from;
                        behind = behind_last;
                }
        }
        if (best == NONE)
                return 0;
        lookup->distance = n_ids - best;
        /* The text may repeat with a period that is shorter than the guesses: then they repeat with it. */
        for (n = 0; n < most; n++)
                ret[n] = best + n < n_ids ? ids[best + n] : ret[best + n - n_ids];
        *match = (struct tdm_lookup_match){ .length = length, .behind_changed = behind };
        return n;
}
