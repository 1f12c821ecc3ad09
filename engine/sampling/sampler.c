/* From logits to a token.
 *
 * Orders of sums, which no thread count or batch changes:
 *   log-sum-exp: 16 lanes (lane = index mod 16) over blocks of 256 values and a tree over the lanes in float, then the
 *     blocks by index in double;
 *   candidates: by falling (penalised) logit, then rising id, in double.
 * The lanes are written so that a compiler can use vectors of any width up to 16 and still get the same bits; the build
 * forbids contraction.
 *
 * Only the best few candidates are ever looked at: a first pass keeps the greatest of every 64 logits, so the pass that
 * collects them touches few blocks. The past moves few tokens, so one more candidate for each of them and
 * those tokens themselves are enough for the exact answer. */
#include "engine/sampling/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include "common/job-options.h"
#include "engine/sampling/lanes-table.h"

#define SUM_BLOCK TDM_SAMPLE_SUM_BLOCK
#define MAX_BLOCK TDM_SAMPLE_MAX_BLOCK
#define KEYS_CAPACITY 4096u

/* A logit and its id in one number that sorts by logit, then by falling id. */
struct selection {
        uint64_t *keys; /* [KEYS_CAPACITY] */
        size_t n;
        size_t wanted;
        /* that are kept at once: the fewer, the sooner a floor is known, and the more often it is sought */
        size_t most;
        uint64_t floor;    /* keys up to this one are not among the best */
        float floor_logit; /* logits below this one are not, either */
};

/* A token whose logit the past moves. */
struct moved {
        uint32_t id;
        uint32_t n_counted; /* times in the counted past */
        float bias;
        float logit; /* as moved */
        bool repeated;
};

struct scratch {
        uint64_t keys[KEYS_CAPACITY];
        uint64_t adjusted[TDM_MAX_TOP_K + 2 * TDM_MAX_MOVED];
        /* of candidates, or of moved tokens */
        uint32_t ids[TDM_MAX_TOP_K];
        float logits[TDM_MAX_TOP_K];
        float scores[TDM_MAX_TOP_K];       /* or weights */
        struct moved moved[TDM_MAX_MOVED]; /* by rising id */
        float max;                         /* of all logits; NAN: there is one that is none, or none that is one */
        const float *block_sum;            /* [n_vocab / SUM_BLOCK], rounded up */
        const uint32_t *seen; /* [n_seen]: blocks of MAX_BLOCK that hold the best; NULL: own_block_max says which */
        uint32_t n_seen;
        float own_block_sum[]; /* then own_block_max and bounds, each [n_vocab / MAX_BLOCK]; all rounded up */
};

static_assert(MAX_BLOCK == TDM_NOISE_BLOCK, "one block for maxima and noise");

static float *own_block_max(struct scratch *scratch, uint32_t n_vocab)
{
        return scratch->own_block_sum + TDM_DIV_UP((size_t)n_vocab, SUM_BLOCK);
}

static float *bounds_of(struct scratch *scratch, uint32_t n_vocab)
{
        return own_block_max(scratch, n_vocab) + TDM_DIV_UP((size_t)n_vocab, MAX_BLOCK);
}

/* By the table of options, which has the bounds. 0 stands for a default there, which a worker does not know. */
static int check_option(enum tdm_job_option_index index, float value, bool or_zero, struct tdm_error *err)
{
        const struct tdm_job_option *option = &tdm_job_options[index];
        char text[TDM_RANGE_TEXT_MAX];

        if (tdm_range_has_real(&option->range, (double)value) && (or_zero || value != 0.0f))
                return 0;
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %g is not %s%s", option->name, (double)value,
                             or_zero ? "" : "above 0 and ", tdm_range_text(&option->range, text));
}

int tdm_sampling_check(const struct tdm_sampling *s, struct tdm_error *err)
{
        int r = check_option(TDM_JOB_OPTION_temperature, s->temperature, true, err);

        if (r == 0)
                r = check_option(TDM_JOB_OPTION_top_p, s->top_p, false, err);
        if (r == 0)
                r = check_option(TDM_JOB_OPTION_min_p, s->min_p, true, err);
        if (r == 0)
                r = check_option(TDM_JOB_OPTION_repeat_penalty, s->repeat_penalty, false, err);
        if (r == 0)
                r = check_option(TDM_JOB_OPTION_frequency_penalty, s->frequency_penalty, true, err);
        if (r == 0)
                r = check_option(TDM_JOB_OPTION_presence_penalty, s->presence_penalty, true, err);
        if (r != 0)
                return r;
        if (s->n_top > TDM_MAX_TOP)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%u alternatives are asked for, at most %u are reported",
                                     s->n_top, TDM_MAX_TOP);
        return 0;
}

size_t tdm_sampler_scratch_bytes(uint32_t n_vocab)
{
        return TDM_ALIGN_UP(sizeof(struct scratch) + (TDM_DIV_UP((size_t)n_vocab, SUM_BLOCK) +
                                                      2 * TDM_DIV_UP((size_t)n_vocab, MAX_BLOCK)) *
                                                             sizeof(float),
                            (size_t)64);
}

static uint64_t make_key(float logit, uint32_t id)
{
        float v = logit + 0.0f; /* -0 becomes 0: they are equal, so the id decides */
        uint32_t bits;

        memcpy(&bits, &v, sizeof(bits));
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        return (uint64_t)bits << 32 | (UINT32_MAX - id);
}

static uint32_t key_id(uint64_t key)
{
        return UINT32_MAX - (uint32_t)key;
}

static float key_logit(uint64_t key)
{
        uint32_t bits = (uint32_t)(key >> 32);
        float v;

        bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
        memcpy(&v, &bits, sizeof(v));
        return v;
}

static void sift(uint64_t *keys, size_t at, size_t n)
{
        uint64_t key = keys[at];

        for (size_t child; (child = 2 * at + 1) < n; at = child) {
                if (child + 1 < n && keys[child + 1] < keys[child])
                        child++;
                if (keys[child] >= key)
                        break;
                keys[at] = keys[child];
        }
        keys[at] = key;
}

/* Falling order. Heap sort: no allocation, no bad case. */
static void sort_keys(uint64_t *keys, size_t n)
{
        for (size_t i = n / 2; i-- > 0;)
                sift(keys, i, n);
        for (size_t i = n; i-- > 1;) {
                uint64_t least = keys[0];

                keys[0] = keys[i];
                keys[i] = least;
                sift(keys, 0, i);
        }
}

/* Brings the wanted greatest of n > wanted keys to the front, in any order. Keys are distinct. */
static void select_greatest(uint64_t *keys, size_t n, size_t wanted)
{
        size_t low = 0, high = n;
        uint32_t random = 1;

        while (high - low > 1) {
                uint64_t pivot;
                size_t i = low, j = high - 1;

                random = random * 1664525u + 1013904223u;
                pivot = keys[low + (random >> 8) % (high - low)];
                for (;;) {
                        uint64_t swap;

                        while (keys[i] > pivot)
                                i++;
                        while (keys[j] < pivot)
                                j--;
                        if (i >= j)
                                break;
                        swap = keys[i];
                        keys[i] = keys[j];
                        keys[j] = swap;
                }
                /* The pivot is at i now: all before are greater. */
                if (i == wanted || i + 1 == wanted)
                        return;
                if (i > wanted)
                        high = i;
                else
                        low = i + 1;
        }
}

static void selection_shrink(struct selection *s)
{
        if (s->n <= s->wanted)
                return;
        select_greatest(s->keys, s->n, s->wanted);
        s->n = s->wanted;
        s->floor = s->keys[0];
        for (size_t i = 1; i < s->n; i++)
                s->floor = TDM_MIN(s->floor, s->keys[i]);
        s->floor_logit = key_logit(s->floor);
}

static inline void selection_add(struct selection *s, float logit, uint32_t id)
{
        uint64_t key;

        if (logit < s->floor_logit) /* nearly all; the rest is slower */
                return;
        key = make_key(logit, id);
        if (key <= s->floor)
                return;
        if (s->n == s->most)
                selection_shrink(s);
        s->keys[s->n++] = key;
}

static void add_block(struct selection *s, const float *logits, uint32_t n, uint32_t block)
{
        for (uint32_t i = block * MAX_BLOCK; i < TDM_MIN(n, (block + 1) * MAX_BLOCK); i++)
                selection_add(s, logits[i], i);
}

/* allowed: the block's word of the mask. */
static void add_allowed(struct selection *s, const float *logits, uint32_t n, uint32_t block, uint64_t allowed)
{
        for (; allowed; allowed &= allowed - 1) {
                uint32_t i = block * MAX_BLOCK + (uint32_t)__builtin_ctzll(allowed);

                if (i < n)
                        selection_add(s, logits[i], i);
        }
}

/* The least of the blocks' maxima. */
static float least_maximum(const float *logits, uint32_t n, const uint32_t *blocks, uint32_t n_listed)
{
        const struct tdm_lanes_table *functions = tdm_lanes();
        float least = INFINITY;

        for (uint32_t i = 0; i < n_listed; i++) {
                uint32_t at = blocks[i] * MAX_BLOCK;
                float greatest = -INFINITY;

                if (blocks[i] < TDM_DIV_UP(n, MAX_BLOCK))
                        functions->find_maxima(logits + at, TDM_MIN(n - at, MAX_BLOCK), &greatest);
                least = TDM_MIN(least, greatest);
        }
        return least;
}

/* The wanted best of all logits, sorted into scratch->keys. Returns how many there are. */
static size_t find_best(const float *logits, uint32_t n, size_t wanted, struct scratch *scratch)
{
        uint32_t n_blocks = TDM_DIV_UP(n, MAX_BLOCK);
        const float *block_max = own_block_max(scratch, n);
        struct selection s = { .keys = scratch->keys, .wanted = TDM_MIN(wanted, (size_t)n), .floor_logit = -INFINITY };

        s.most = TDM_MIN(4 * s.wanted + 64, (size_t)KEYS_CAPACITY);
        if (scratch->seen) {
                /* As many logits as blocks are not less than the least of the blocks' maxima. */
                if (scratch->n_seen >= s.wanted)
                        s.floor_logit = least_maximum(logits, n, scratch->seen, scratch->n_seen);
                for (uint32_t i = 0; i < scratch->n_seen; i++)
                        if (scratch->seen[i] < n_blocks)
                                add_block(&s, logits, n, scratch->seen[i]);
        } else {
                /* As many logits as wanted are not less than the wanted-th greatest block maximum. */
                if (n_blocks > s.wanted) {
                        for (uint32_t b = 0; b < n_blocks; b++)
                                selection_add(&s, block_max[b], b);
                        selection_shrink(&s);
                        s.floor = (s.floor >> 32 << 32) - 1;
                        s.n = 0;
                }
                for (uint32_t b = 0; b < n_blocks; b++)
                        if (!(block_max[b] < s.floor_logit) && make_key(block_max[b], b * MAX_BLOCK) > s.floor)
                                add_block(&s, logits, n, b);
        }
        selection_shrink(&s);
        sort_keys(s.keys, s.n);
        return s.n;
}

/* The same of the logits that a mask allows. Here every block counts, so all logits must be there. */
static size_t find_best_allowed(const float *logits, uint32_t n, size_t wanted, const uint64_t *allowed,
                                struct scratch *scratch)
{
        const float *block_max = scratch->seen ? NULL : own_block_max(scratch, n);
        struct selection s = { .keys = scratch->keys, .wanted = TDM_MIN(wanted, (size_t)n), .floor_logit = -INFINITY };

        s.most = TDM_MIN(4 * s.wanted + 64, (size_t)KEYS_CAPACITY);
        for (uint32_t b = 0; b < TDM_DIV_UP(n, MAX_BLOCK); b++)
                if (allowed[b] && !(block_max && block_max[b] < s.floor_logit))
                        add_allowed(&s, logits, n, b, allowed[b]);
        selection_shrink(&s);
        sort_keys(s.keys, s.n);
        return s.n;
}

static_assert(MAX_BLOCK == 64, "a block of logits is a word of the mask");

/* The first moved token whose id is not below this one. */
static uint32_t find_moved(const struct moved *moved, uint32_t n, uint32_t id)
{
        uint32_t low = 0, high = n;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (moved[middle].id < id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static struct moved *put_moved(struct moved *moved, uint32_t *n, uint32_t id)
{
        uint32_t at = find_moved(moved, *n, id);

        if (at == *n || moved[at].id != id) {
                memmove(moved + at + 1, moved + at, (*n - at) * sizeof(*moved));
                moved[at] = (struct moved){ .id = id };
                (*n)++;
        }
        return &moved[at];
}

/* A repeated token becomes less likely for penalty > 1, whatever the sign of its logit. */
static float penalise(float logit, float penalty)
{
        float v = logit > 0.0f ? logit / penalty : logit * penalty;

        if (logit == -INFINITY)
                return logit;
        return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
}

static uint32_t n_repeated_of(const struct tdm_sampling *s, const struct tdm_past *past)
{
        return s->repeat_penalty == 1.0f ? 0 : TDM_MIN(past->n_repeated, past->n_history);
}

static uint32_t n_counted_of(const struct tdm_sampling *s, const struct tdm_past *past)
{
        if (s->frequency_penalty == 0.0f && s->presence_penalty == 0.0f)
                return 0;
        return TDM_MIN(past->n_counted, past->n_history);
}

uint32_t tdm_sample_moved(const struct tdm_sampling *sampling, const struct tdm_past *past, uint32_t n_vocab,
                          uint32_t *ret_ids)
{
        uint32_t n_used, n = 0;

        if (!past)
                return 0;
        n_used = TDM_MAX(n_repeated_of(sampling, past), n_counted_of(sampling, past));
        n_used = TDM_MIN(n_used, TDM_HISTORY_MAX);
        for (uint32_t i = past->n_history - n_used; i < past->n_history; i++)
                if (past->history[i] < n_vocab)
                        ret_ids[n++] = past->history[i];
        for (uint32_t i = 0; i < TDM_MIN(past->n_biases, TDM_MAX_BIASES); i++)
                if (past->biases[i].id < n_vocab)
                        ret_ids[n++] = past->biases[i].id;
        return n;
}

/* Fills scratch->moved with what the past moves and the mask allows. Penalties first, then the bias. */
static uint32_t move(const float *logits, uint32_t n_vocab, const struct tdm_sampling *s, const struct tdm_past *past,
                     const uint64_t *allowed, struct scratch *scratch)
{
        struct moved *moved = scratch->moved;
        uint32_t n = 0, n_repeated, n_counted, n_kept = 0;

        if (!past)
                return 0;
        n_repeated = TDM_MIN(n_repeated_of(s, past), TDM_HISTORY_MAX);
        n_counted = TDM_MIN(n_counted_of(s, past), TDM_HISTORY_MAX);
        for (uint32_t i = past->n_history - n_repeated; i < past->n_history; i++)
                if (past->history[i] < n_vocab)
                        put_moved(moved, &n, past->history[i])->repeated = true;
        for (uint32_t i = past->n_history - n_counted; i < past->n_history; i++)
                if (past->history[i] < n_vocab)
                        put_moved(moved, &n, past->history[i])->n_counted++;
        for (uint32_t i = 0; i < TDM_MIN(past->n_biases, TDM_MAX_BIASES); i++)
                if (past->biases[i].id < n_vocab)
                        put_moved(moved, &n, past->biases[i].id)->bias = past->biases[i].bias;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t id = moved[i].id;
                float v = logits[id];

                if (allowed && !(allowed[id / 64] >> id % 64 & 1))
                        continue;
                if (moved[i].repeated)
                        v = penalise(v, s->repeat_penalty);
                if (moved[i].n_counted > 0) {
                        v -= s->frequency_penalty * (float)moved[i].n_counted;
                        v -= s->presence_penalty;
                }
                v += moved[i].bias;
                moved[i].logit = logits[id] == -INFINITY ? logits[id] : TDM_MIN(TDM_MAX(v, -FLT_MAX), FLT_MAX);
                moved[n_kept++] = moved[i];
        }
        return n_kept;
}

/* The n_best best raw candidates (sorted, in scratch->keys) and the moved tokens, as moved and sorted into
 * scratch->adjusted. */
static size_t adjust(size_t n_best, uint32_t n_moved, struct scratch *scratch)
{
        const struct moved *moved = scratch->moved;
        size_t n = 0;

        for (size_t i = 0; i < n_best; i++) {
                uint32_t id = key_id(scratch->keys[i]), at = find_moved(moved, n_moved, id);

                if (at == n_moved || moved[at].id != id)
                        scratch->adjusted[n++] = scratch->keys[i];
        }
        for (uint32_t i = 0; i < n_moved; i++)
                scratch->adjusted[n++] = make_key(moved[i].logit, moved[i].id);
        if (n_moved > 0)
                sort_keys(scratch->adjusted, n);
        return n;
}

/* The candidate with the largest score so far. */
struct best {
        float score;
        uint32_t id;
};

static inline void consider(struct best *best, float score, uint32_t id)
{
        if (score > best->score || (score == best->score && id < best->id))
                *best = (struct best){ score, id };
}

/* How many of the n candidates, by falling logit, top-p and min-p leave: at least one. */
static size_t filter(const struct tdm_sampling *s, const struct tdm_noise *noise, size_t n, struct scratch *scratch)
{
        const float *weights = scratch->scores;
        double total = 0.0, kept = 0.0;

        if (s->top_p >= 1.0f && s->min_p <= 0.0f)
                return n;
        tdm_noise_weights(noise, scratch->logits, (uint32_t)n, scratch->logits[0], scratch->scores);
        if (s->top_p < 1.0f) {
                size_t n_kept = 0;

                for (size_t i = 0; i < n; i++)
                        total += (double)weights[i];
                while (n_kept < n && kept < total * (double)s->top_p)
                        kept += (double)weights[n_kept++];
                n = n_kept;
        }
        while (n > 1 && weights[n - 1] < s->min_p)
                n--;
        return n;
}

/* candidates: sorted keys, at least one. */
static uint32_t draw_candidate(const uint64_t *candidates, size_t n, const struct tdm_sampling *s, uint32_t position,
                               struct scratch *scratch)
{
        struct best best = { -INFINITY, UINT32_MAX };
        struct tdm_noise noise;

        if (key_logit(candidates[0]) == -INFINITY) /* a mask left none that the model holds possible */
                return key_id(candidates[0]);
        tdm_noise_init(&noise, s->temperature, s->seed, position);
        for (size_t i = 0; i < n; i++) {
                scratch->logits[i] = key_logit(candidates[i]);
                scratch->ids[i] = key_id(candidates[i]);
        }
        n = filter(s, &noise, n, scratch);
        tdm_noise_scores(&noise, scratch->logits, scratch->ids, (uint32_t)n, scratch->logits[0], scratch->scores);
        for (size_t i = 0; i < n; i++)
                consider(&best, scratch->scores[i], scratch->ids[i]);
        return best.id;
}

/* ---- no filter: every token may be drawn, and blocks that cannot hold the largest score are skipped ---- */

static bool is_unfiltered(const struct tdm_sampling *s)
{
        return s->temperature > 0.0f && s->top_k == 0 && s->top_p >= 1.0f && s->min_p <= 0.0f;
}

bool tdm_sample_noise(const struct tdm_sampling *sampling, bool masked, uint32_t position, struct tdm_noise *ret)
{
        if (masked || !is_unfiltered(sampling))
                return false;
        tdm_noise_init(ret, sampling->temperature, sampling->seed, position);
        return true;
}

/* Which tokens of a block the mask allows and the past does not move. */
static uint64_t usable_of(uint32_t block, uint32_t n_vocab, const uint64_t *allowed, const struct moved *moved,
                          uint32_t n_moved)
{
        uint32_t at = block * MAX_BLOCK;
        uint64_t usable = allowed ? allowed[block] : UINT64_MAX;

        if (n_vocab - at < MAX_BLOCK)
                usable &= (UINT64_C(1) << (n_vocab - at)) - 1;
        for (uint32_t i = find_moved(moved, n_moved, at); i < n_moved && moved[i].id - at < MAX_BLOCK; i++)
                usable &= ~(UINT64_C(1) << (moved[i].id - at));
        return usable;
}

static float greatest_usable(const float *logits, uint32_t block, uint64_t usable)
{
        float greatest = -INFINITY;

        for (; usable; usable &= usable - 1) {
                float v = logits[block * MAX_BLOCK + (uint32_t)__builtin_ctzll(usable)];

                greatest = v > greatest ? v : greatest;
        }
        return greatest;
}

static void consider_block(struct best *best, const struct tdm_noise *noise, const float *logits, uint32_t n_vocab,
                           uint32_t block, uint64_t usable, float greatest)
{
        uint32_t at = block * MAX_BLOCK, n = TDM_MIN(n_vocab - at, MAX_BLOCK), ids[MAX_BLOCK];
        float scores[MAX_BLOCK];

        for (uint32_t i = 0; i < n; i++)
                ids[i] = at + i;
        tdm_noise_scores(noise, logits + at, ids, n, greatest, scores);
        for (; usable; usable &= usable - 1) {
                uint32_t i = (uint32_t)__builtin_ctzll(usable);

                consider(best, scores[i], at + i);
        }
}

/* Fills the greatest logit of each listed block into ret_maxima; of the usable ones alone where there is a mask.
 * Returns the greatest of all. */
static float list_maxima(const float *logits, uint32_t n_vocab, const uint64_t *allowed, const uint32_t *blocks,
                         uint32_t n, float *ret_maxima)
{
        float greatest = -INFINITY;

        for (uint32_t i = 0; i < n; i++) {
                uint32_t b = blocks ? blocks[i] : i, at = b * MAX_BLOCK;

                if (allowed)
                        ret_maxima[i] = greatest_usable(logits, b, usable_of(b, n_vocab, allowed, NULL, 0));
                else
                        tdm_lanes()->find_maxima(logits + at, TDM_MIN(n_vocab - at, MAX_BLOCK), &ret_maxima[i]);
                greatest = ret_maxima[i] > greatest ? ret_maxima[i] : greatest;
        }
        return greatest;
}

static void consider_moved(struct best *best, const struct tdm_noise *noise, uint32_t n_moved, float greatest,
                           struct scratch *scratch)
{
        for (uint32_t i = 0; i < n_moved; i++) {
                scratch->ids[i] = scratch->moved[i].id;
                scratch->logits[i] = scratch->moved[i].logit;
        }
        tdm_noise_scores(noise, scratch->logits, scratch->ids, n_moved, greatest, scratch->scores);
        for (uint32_t i = 0; i < n_moved; i++)
                consider(best, scratch->scores[i], scratch->ids[i]);
}

/* -ENODATA: the mask allows none; -EDOM: these are not the logits that the maxima are of. */
static int draw_unfiltered(const float *logits, uint32_t n_vocab, const struct tdm_sampling *s, const uint64_t *allowed,
                           uint32_t n_moved, uint32_t position, struct scratch *scratch, uint32_t *ret)
{
        const uint32_t *blocks = allowed ? NULL : scratch->seen;
        uint32_t n_all = TDM_DIV_UP(n_vocab, MAX_BLOCK), n = blocks ? TDM_MIN(scratch->n_seen, n_all) : n_all,
                 first = 0;
        float *bounds = bounds_of(scratch, n_vocab),
              *maxima = allowed || blocks ? bounds : own_block_max(scratch, n_vocab);
        struct best best = { -INFINITY, UINT32_MAX };
        float greatest = scratch->max;
        struct tdm_noise noise;

        for (uint32_t i = 0; blocks && i < n; i++)
                if (blocks[i] >= n_all)
                        return -EDOM;
        if (allowed)
                greatest = list_maxima(logits, n_vocab, allowed, NULL, n, maxima);
        else if (blocks)
                list_maxima(logits, n_vocab, NULL, blocks, n, maxima);
        if (greatest == -INFINITY) { /* none is allowed that the model holds possible */
                for (uint32_t b = 0; b < n_all; b++) {
                        uint64_t usable = usable_of(b, n_vocab, allowed, NULL, 0);

                        if (usable) {
                                *ret = b * MAX_BLOCK + (uint32_t)__builtin_ctzll(usable);
                                return 0;
                        }
                }
                return -ENODATA;
        }
        tdm_noise_init(&noise, s->temperature, s->seed, position);
        tdm_noise_bounds(&noise, maxima, blocks, n, greatest, bounds);
        consider_moved(&best, &noise, n_moved, greatest, scratch);
        for (uint32_t i = 1; i < n; i++)
                first = bounds[i] > bounds[first] ? i : first;
        /* The block with the greatest bound first: most others are below its largest score. */
        for (uint32_t i = 0; i < n + 1 && n > 0; i++) {
                uint32_t at = i == 0 ? first : i - 1, b = blocks ? blocks[at] : at;

                if ((i == 0 || at != first) && bounds[at] >= best.score)
                        consider_block(&best, &noise, logits, n_vocab, b,
                                       usable_of(b, n_vocab, allowed, scratch->moved, n_moved), greatest);
        }
        if (best.id == UINT32_MAX)
                return allowed ? -ENODATA : -EDOM;
        *ret = best.id;
        return 0;
}

static uint32_t top_k_of(const struct tdm_sampling *s)
{
        if (s->temperature == 0.0f)
                return 1;
        return s->top_k == 0 ? TDM_MAX_TOP_K : TDM_MIN(s->top_k, TDM_MAX_TOP_K);
}

static uint32_t n_top_of(const struct tdm_sampling *s, uint32_t n_vocab)
{
        return TDM_MIN(TDM_MIN(s->n_top, TDM_MAX_TOP), n_vocab);
}

/* How many of the greatest logits are looked at. */
static size_t n_wanted(const struct tdm_sampling *s, uint32_t n_vocab, uint32_t n_moved)
{
        if (is_unfiltered(s))
                return n_top_of(s, n_vocab);
        return TDM_MAX(n_top_of(s, n_vocab), top_k_of(s) + n_moved);
}

/* ---- with maxima and sums that the device has computed ---- */

static float greatest_or_nan(float max)
{
        return max > -INFINITY ? max : NAN;
}

void tdm_sample_take(const float *maxima, uint32_t n_maxima, const float *block_sums, const uint32_t *seen,
                     uint32_t n_seen, void *scratch)
{
        struct scratch *sc = scratch;

        sc->max = greatest_or_nan(tdm_lanes()->greatest_of(maxima, n_maxima));
        sc->block_sum = block_sums;
        sc->seen = seen;
        sc->n_seen = n_seen;
}

uint32_t tdm_sample_n_wanted(const struct tdm_sampling *sampling, bool masked, uint32_t n_vocab, uint32_t n_moved)
{
        if (masked)
                return n_vocab;
        return (uint32_t)TDM_MIN(n_wanted(sampling, n_vocab, TDM_MIN(n_moved, TDM_MAX_MOVED)), (size_t)n_vocab);
}

/* ---- with those of this processor ---- */

float tdm_sample_maxima(const float *logits, uint32_t n_vocab, uint32_t first, uint32_t n, void *scratch)
{
        assert(first % SUM_BLOCK == 0 && n <= n_vocab - first);
        return tdm_lanes()->find_maxima(logits + first, n, own_block_max(scratch, n_vocab) + first / MAX_BLOCK);
}

void tdm_sample_sums(const float *logits, uint32_t first, uint32_t n, float max, void *scratch)
{
        struct scratch *sc = scratch;

        if (max > -INFINITY)
                tdm_lanes()->sum_exp(logits + first, n, max, sc->own_block_sum + first / SUM_BLOCK);
}

void tdm_sample_take_own(float max, void *scratch)
{
        struct scratch *sc = scratch;

        sc->max = greatest_or_nan(max);
        sc->block_sum = sc->own_block_sum;
        sc->seen = NULL;
}

void tdm_sample_scan(const float *logits, uint32_t n_vocab, void *scratch)
{
        float max = tdm_sample_maxima(logits, n_vocab, 0, n_vocab, scratch);

        tdm_sample_sums(logits, 0, n_vocab, max, scratch);
        tdm_sample_take_own(max, scratch);
}

int tdm_sample(const float *logits, uint32_t n_vocab, const struct tdm_sampling *sampling, const uint64_t *allowed,
               const struct tdm_past *past, uint32_t position, uint32_t target, void *scratch, struct tdm_result *ret)
{
        tdm_sample_scan(logits, n_vocab, scratch);
        return tdm_sample_finish(logits, n_vocab, sampling, allowed, past, position, target, scratch, ret);
}

/* A model's logit may be -inf, or so far down that a float cannot hold it. Results hold finite numbers alone. */
static float logprob_of(float logit, double log_sum)
{
        return (float)TDM_MAX((double)logit - log_sum, -(double)FLT_MAX);
}

int tdm_sample_finish(const float *logits, uint32_t n_vocab, const struct tdm_sampling *sampling,
                      const uint64_t *allowed, const struct tdm_past *past, uint32_t position, uint32_t target,
                      void *scratch, struct tdm_result *ret)
{
        struct scratch *sc = scratch;
        bool greedy = sampling->temperature == 0.0f, unfiltered = is_unfiltered(sampling);
        uint32_t top_k = top_k_of(sampling);
        uint32_t n_moved = 0, n_top = n_top_of(sampling, n_vocab);
        size_t n_best = 0, n_candidates;
        double log_sum = 0.0;

        if (n_vocab == 0 || (target != UINT32_MAX && target >= n_vocab))
                return -EINVAL;
        if (isnan(sc->max))
                return -EDOM;
        for (uint32_t i = 0; i < TDM_DIV_UP(n_vocab, SUM_BLOCK); i++)
                log_sum += sc->block_sum[i];
        log_sum = (double)sc->max + log(log_sum);
        n_moved = move(logits, n_vocab, sampling, past, allowed, sc);
        if (n_top > 0 || (!allowed && !unfiltered)) {
                n_best = find_best(logits, n_vocab, n_wanted(sampling, n_vocab, n_moved), sc);
                if (n_best < TDM_MAX(n_top, 1u))
                        return -EDOM; /* these are not the logits that the maxima are of */
        }

        ret->n_top = n_top;
        for (uint32_t i = 0; i < n_top; i++) {
                uint32_t id = key_id(sc->keys[i]);

                ret->top[i] = (struct tdm_top){ id, logprob_of(logits[id], log_sum) };
        }
        if (unfiltered) {
                uint32_t token;
                int r = draw_unfiltered(logits, n_vocab, sampling, allowed, n_moved, position, sc, &token);

                if (r < 0)
                        return r;
                ret->token = token;
                ret->logprob = logprob_of(logits[token], log_sum);
                ret->target_logprob = target == UINT32_MAX ? NAN : logprob_of(logits[target], log_sum);
                return 0;
        }
        if (allowed) {
                n_best = find_best_allowed(logits, n_vocab, (size_t)top_k + n_moved, allowed, sc);
                if (n_best == 0)
                        return -ENODATA;
        }
        n_candidates = adjust(TDM_MIN(n_best, (size_t)top_k + n_moved), n_moved, sc);
        n_candidates = TDM_MIN(n_candidates, (size_t)top_k);
        ret->token =
                greedy ? key_id(sc->adjusted[0]) : draw_candidate(sc->adjusted, n_candidates, sampling, position, sc);
        ret->logprob = logprob_of(logits[ret->token], log_sum);
        ret->target_logprob = target == UINT32_MAX ? NAN : logprob_of(logits[target], log_sum);
        return 0;
}
