/* The sampler: known answers, ties, edges; and that its sums are in the order it says.
 */
#include "engine/sampling/test-sampler.h"

/* From the Random123 distribution's known-answer file. */
static void test_philox(void **state)
{
        static const struct {
                uint32_t counter[4], key[2], wanted[4];
        } cases[] = {
                { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
                { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
                  { 0xffffffff, 0xffffffff },
                  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
                { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
                  { 0xa4093822, 0x299f31d0 },
                  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
        };
        uint32_t out[4];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                tdm_philox_4x32(cases[i].counter, cases[i].key, out);
                assert_memory_equal(out, cases[i].wanted, sizeof(out));
        }
}

static void test_greedy(void **state)
{
        static float logits[5000];
        struct tdm_result r;

        for (uint32_t n = 1; n <= 5000; n = n < 200 ? n + 1 : n + 977) {
                uint32_t best = 0;
                double sum = 0.0;

                for (uint32_t i = 0; i < n; i++) {
                        logits[i] = 4.0f * random_normal();
                        if (logits[i] > logits[best])
                                best = i;
                }
                for (uint32_t i = 0; i < n; i++)
                        sum += exp((double)logits[i] - (double)logits[best]);
                r = sample(logits, n, greedy, NULL, 0, 0, n / 2);
                assert_int_equal(r.token, best);
                assert_int_equal(r.n_top, 0);
                assert_true(fabs((double)r.logprob + log(sum)) < 1e-6);
                assert_true(fabs((double)r.target_logprob - ((double)logits[n / 2] - (double)logits[best] - log(sum))) <
                            3e-6);
                r = sample(logits, n, greedy, NULL, 0, 0, UINT32_MAX);
                assert_true(isnan(r.target_logprob));
        }
}

static void test_ties(void **state)
{
        static float logits[3000];
        struct tdm_sampling s = greedy;
        struct tdm_result r;

        for (uint32_t i = 0; i < 3000; i++)
                logits[i] = -1.0f;
        logits[77] = logits[1999] = logits[78] = logits[2500] = 0.0f;
        logits[1998] = -0.0f; /* equal to 0 */
        s.n_top = 7;
        r = sample(logits, 3000, s, NULL, 0, 0, UINT32_MAX);
        assert_int_equal(r.token, 77);
        assert_int_equal(r.n_top, 7);
        assert_int_equal(r.top[0].id, 77);
        assert_int_equal(r.top[1].id, 78);
        assert_int_equal(r.top[2].id, 1998);
        assert_int_equal(r.top[3].id, 1999);
        assert_int_equal(r.top[4].id, 2500);
        assert_int_equal(r.top[5].id, 0);
        assert_int_equal(r.top[6].id, 1);
        for (uint32_t i = 0; i < 3000; i++)
                logits[i] = 2.0f;
        r = sample(logits, 3000, s, NULL, 0, 0, UINT32_MAX);
        assert_int_equal(r.token, 0);
        for (uint32_t i = 0; i < 7; i++)
                assert_int_equal(r.top[i].id, i);
        s.n_top = TDM_MAX_TOP;
        r = sample(logits, 5, s, NULL, 0, 0, UINT32_MAX);
        assert_int_equal(r.n_top, 5);
}

static const float *sorted_logits;

static int compare_ids(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        if (sorted_logits[x] != sorted_logits[y])
                return sorted_logits[x] > sorted_logits[y] ? -1 : 1;
        return x < y ? -1 : 1;
}

/* The alternatives against a full sort; values from a coarse grid, so that ties are everywhere. */
static void test_top(void **state)
{
        for (unsigned round = 0; round < 60; round++) {
                uint32_t n = round < 30 ? 1 + (uint32_t)(random_uniform() * 300) :
                                          1000 + (uint32_t)(random_uniform() * 90000);
                _cleanup_(freep) float *logits = malloc(n * sizeof(float));
                _cleanup_(freep) uint32_t *order = malloc(n * sizeof(uint32_t));
                struct tdm_sampling s = greedy;
                struct tdm_result r;

                assert_true(logits && order);
                for (uint32_t i = 0; i < n; i++) {
                        float v = 3.0f * random_normal();

                        logits[i] = round % 3 == 0 ? v : round % 3 == 1 ? rintf(v) : rintf(v * 50.0f) - (float)i;
                        if (round % 5 == 0 && i % 3 == 0)
                                logits[i] = -INFINITY;
                        order[i] = i;
                }
                if (round % 5 == 0)
                        logits[n - 1] = 1.0f;
                sorted_logits = logits;
                qsort(order, n, sizeof(*order), compare_ids);
                s.n_top = 1 + (uint32_t)(random_uniform() * TDM_MAX_TOP);
                r = sample(logits, n, s, NULL, 0, 0, UINT32_MAX);
                assert_int_equal(r.n_top, TDM_MIN(s.n_top, n));
                assert_int_equal(r.token, order[0]);
                for (uint32_t i = 0; i < r.n_top; i++) {
                        assert_int_equal(r.top[i].id, order[i]);
                        assert_true(fabs((double)r.top[i].logprob - (double)r.logprob -
                                         ((double)logits[order[i]] - (double)logits[order[0]])) < 1e-5 ||
                                    logits[order[i]] < -100.0f);
                }
        }
}

/* The documented order of sums, in the plainest code. The bits must be the same, whatever vectors the sampler used. */
static float plain_exp(float x)
{
        float c = x < -87.0f ? 0.0f : x, shifted = c * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
        float r = (c - n * 0.693359375f) - n * -2.12194440e-4f, p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;

        p = p * r + 1.0f / 120.0f;
        p = p * r + 1.0f / 24.0f;
        p = p * r + 1.0f / 6.0f;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        p = p * r + 1.0f;
        return x < -87.0f ? 0.0f : ldexpf(p, (int)n);
}

static double plain_sum(const float *logits, uint32_t n, float max)
{
        double total = 0.0;

        for (uint32_t at = 0; at < n; at += 256) {
                float lanes[16] = { 0 };
                double tree[16];

                for (uint32_t i = at; i < n && i < at + 256; i++)
                        lanes[i % 16] += plain_exp(logits[i] - max);
                for (unsigned i = 0; i < 16; i++)
                        tree[i] = (double)lanes[i];
                for (unsigned half = 8; half > 0; half /= 2) {
                        for (unsigned i = 0; i < half; i++)
                                tree[i] += tree[i + half];
                }
                total += tree[0];
        }
        return total;
}

static void test_order(void **state)
{
        for (unsigned round = 0; round < 40; round++) {
                uint32_t n = 1 + (uint32_t)(random_uniform() * 20000);
                _cleanup_(freep) float *logits = malloc(n * sizeof(float));
                float max = -INFINITY, wanted;
                struct tdm_result r;

                assert_non_null(logits);
                for (uint32_t i = 0; i < n; i++) {
                        logits[i] = (float)(1 + round % 4 * 12) * random_normal();
                        max = fmaxf(max, logits[i]);
                }
                wanted = (float)((double)logits[0] - ((double)max + log(plain_sum(logits, n, max))));
                r = sample(logits, n, greedy, NULL, 0, 0, 0);
                assert_memory_equal(&r.target_logprob, &wanted, sizeof(wanted));
        }
        for (float x = -90.0f; x <= 0.0f; x += 0.00371f)
                assert_true(x < -87.0f ? plain_exp(x) == 0.0f :
                                         fabs((double)plain_exp(x) / exp((double)x) - 1.0) < 2e-7);
}

/* A rewarded token far down must be found, a penalised one must make room: against a full copy. */
static void test_penalty_reach(void **state)
{
        static float logits[20000], changed[20000];

        for (unsigned round = 0; round < 40; round++) {
                uint32_t history[300], best = 0, n = 500 + round * 480;
                struct tdm_sampling s = greedy;

                for (uint32_t i = 0; i < n; i++)
                        logits[i] = changed[i] = rintf(40.0f * random_normal()) / 8.0f;
                s.repeat_penalty = round % 2 ? 0.05f : 3.0f;
                for (uint32_t i = 0; i < 300; i++)
                        history[i] = (uint32_t)(random_uniform() * n);
                if (round % 4 < 2) { /* the very best ones */
                        for (uint32_t i = 0; i < 300; i++) {
                                uint32_t top = 0;

                                for (uint32_t k = 0; k < n; k++)
                                        top = changed[k] > changed[top] ? k : top;
                                history[i] = top;
                                changed[top] = -1000.0f;
                        }
                }
                memcpy(changed, logits, sizeof(changed));
                for (uint32_t i = 300 - TDM_HISTORY_MAX; i < 300; i++) {
                        float v = logits[history[i]];

                        changed[history[i]] = v > 0.0f ? v / s.repeat_penalty : v * s.repeat_penalty;
                }
                for (uint32_t i = 0; i < n; i++)
                        best = changed[i] > changed[best] ? i : best;
                assert_int_equal(sample(logits, n, s, history, 300, 0, UINT32_MAX).token, best);
        }
}

static void test_bad_logits(void **state)
{
        float logits[100];
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(100));
        struct tdm_result r = { .token = 4711 };
        struct tdm_sampling s = plain;

        assert_non_null(scratch);
        for (unsigned at = 0; at < 100; at++) {
                for (unsigned i = 0; i < 100; i++)
                        logits[i] = (float)i;
                logits[at] = NAN;
                assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, UINT32_MAX, scratch, &r), -EDOM);
                logits[at] = INFINITY;
                assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, UINT32_MAX, scratch, &r), -EDOM);
                logits[at] = -INFINITY;
                assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, at, scratch, &r), 0);
                assert_true(r.token != at && r.target_logprob == -FLT_MAX); /* results are finite */
                r.token = 4711;
        }
        for (unsigned i = 0; i < 100; i++)
                logits[i] = -INFINITY;
        assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, UINT32_MAX, scratch, &r), -EDOM);
        assert_int_equal(r.token, 4711); /* outputs are written on success only */
        logits[63] = -FLT_MAX;
        s.repeat_penalty = 2.0f;
        assert_int_equal(
                tdm_sample(logits, 100, &s, NULL, PAST(((uint32_t[]){ 63, 1 }), 2), 0, UINT32_MAX, scratch, &r), 0);
        assert_int_equal(r.token, 63);
        assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, 100, scratch, &r), -EINVAL);
        assert_int_equal(tdm_sample(logits, 0, &s, NULL, NULL, 0, UINT32_MAX, scratch, &r), -EINVAL);
        for (unsigned i = 0; i < 100; i++)
                logits[i] = i == 50 ? FLT_MAX : -FLT_MAX;
        assert_int_equal(tdm_sample(logits, 100, &s, NULL, NULL, 0, UINT32_MAX, scratch, &r), 0);
        assert_int_equal(r.token, 50);
        assert_true(r.logprob == 0.0f);
}

static void test_check(void **state)
{
        struct tdm_sampling s;
        struct tdm_error err;

        assert_int_equal(tdm_sampling_check(&plain, NULL), 0);
        assert_int_equal(tdm_sampling_check(&greedy, NULL), 0);
#define REFUSED(change, text)                                                                                          \
        do {                                                                                                           \
                s = plain;                                                                                             \
                s.change;                                                                                              \
                assert_int_equal(tdm_sampling_check(&s, &err), TDM_E_BAD_REQUEST);                                     \
                assert_non_null(strstr(err.message, text));                                                            \
        } while (0)
        REFUSED(temperature = -0.1f, "temperature: -0.1 is not a number from 0 to 100");
        REFUSED(temperature = NAN, "temperature");
        REFUSED(temperature = INFINITY, "temperature");
        REFUSED(top_p = 0.0f, "top-p: 0 is not above 0");
        REFUSED(top_p = 1.1f, "top-p");
        REFUSED(top_p = NAN, "top-p");
        REFUSED(min_p = 1.0f, "min-p");
        REFUSED(min_p = -0.5f, "min-p");
        REFUSED(min_p = NAN, "min-p");
        REFUSED(repeat_penalty = 0.0f, "penalty");
        REFUSED(repeat_penalty = NAN, "penalty");
        REFUSED(repeat_penalty = INFINITY, "penalty");
        REFUSED(frequency_penalty = NAN, "frequency-penalty: nan is not a number from -2 to 2");
        REFUSED(frequency_penalty = -2.1f, "frequency-penalty: -2.1");
        REFUSED(presence_penalty = 2.1f, "presence-penalty: 2.1");
        REFUSED(presence_penalty = INFINITY, "presence-penalty: inf");
        REFUSED(n_top = TDM_MAX_TOP + 1, "65 alternatives");
}

/* Known draws: a change here changes everybody's stories. */
static void test_known(void **state)
{
        static float logits[1000];
        static const struct tdm_sampling s = { 0.8f, 0.95f, 0.02f, 1.1f, 40, 3, 7 };
        static const uint32_t wanted[16] = { 605, 914, 667, 778, 235, 494, 210, 926,
                                             852, 642, 309, 704, 457, 531, 136, 840 };
        uint32_t history[16], tokens[16], again[16];

        for (uint32_t i = 0; i < 1000; i++)
                logits[i] = (float)((i * 7919u) % 1000u) / 100.0f;
        for (uint32_t i = 0; i < 16; i++) {
                tokens[i] = sample(logits, 1000, s, history, i, i, UINT32_MAX).token;
                history[i] = tokens[i];
        }
        for (uint32_t i = 16; i-- > 0;) /* in any order */
                again[i] = sample(logits, 1000, s, history, i, i, UINT32_MAX).token;
        assert_memory_equal(tokens, again, sizeof(tokens));
        assert_memory_equal(tokens, wanted, sizeof(tokens));
}

/* ---- logits that were looked at elsewhere ---- */

static uint32_t key_of(float v)
{
        uint32_t bits;

        v += 0.0f;
        memcpy(&bits, &v, sizeof(bits));
        return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static int falling(const void *a, const void *b)
{
        uint32_t x = key_of(*(const float *)a), y = key_of(*(const float *)b);

        return x < y ? 1 : x > y ? -1 : 0;
}

/* Only the blocks that sampler.h names are there; the rest is NaN. The result is that of all logits, to the bit. */
static void test_seen(void **state)
{
        for (unsigned round = 0; round < 60; round++) {
                uint32_t n = 1 + (uint32_t)(random_uniform() * (round % 2 ? 40000 : 700)), n_history = round % 5 * 20,
                         n_blocks = TDM_DIV_UP(n, TDM_SAMPLE_MAX_BLOCK), n_sums = TDM_DIV_UP(n, TDM_SAMPLE_SUM_BLOCK);
                _cleanup_(freep) float *logits = calloc(n, sizeof(float)), *seen = calloc(n, sizeof(float)),
                                       *block_max = calloc(n_blocks, sizeof(float)),
                                       *sorted = calloc(n_blocks, sizeof(float)),
                                       *lanes = calloc((size_t)n_sums * TDM_SAMPLE_LANES, sizeof(float)),
                                       *sums = calloc(n_sums, sizeof(float));
                _cleanup_(freep) uint32_t *blocks = calloc(n_blocks, sizeof(uint32_t));
                uint32_t n_seen = 0, n_equal = 0;
                _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n));
                struct tdm_sampling s = { round % 3 ? 0.8f : 0.0f, 0.95f,     0.01f, round % 4 ? 1.0f : 1.3f,
                                          round % 7 * 10,          round % 6, round };
                uint32_t history[80], target = round % 2 ? (uint32_t)(random_uniform() * n) : UINT32_MAX, wanted;
                struct tdm_result want, got;
                float max = -INFINITY;

                for (uint32_t i = 0; i < n; i++) {
                        logits[i] = round % 10 == 9 ? rintf(random_normal()) : 6.0f * random_normal();
                        max = logits[i] > max ? logits[i] : max;
                }
                for (uint32_t i = 0; i < n_history; i++)
                        history[i] = (uint32_t)(random_uniform() * n);
                for (uint32_t b = 0; b < n_blocks; b++) {
                        block_max[b] = -INFINITY;
                        for (uint32_t i = b * TDM_SAMPLE_MAX_BLOCK; i < TDM_MIN(n, (b + 1) * TDM_SAMPLE_MAX_BLOCK); i++)
                                block_max[b] = logits[i] > block_max[b] ? logits[i] : block_max[b];
                }
                for (uint32_t i = 0; i < n; i++)
                        lanes[i / TDM_SAMPLE_SUM_BLOCK * TDM_SAMPLE_LANES + i % TDM_SAMPLE_LANES] +=
                                plain_exp(logits[i] - max);
                for (uint32_t b = 0; b < n_sums; b++) {
                        float *lane = lanes + (size_t)b * TDM_SAMPLE_LANES;

                        for (uint32_t half = TDM_SAMPLE_LANES / 2; half > 0; half /= 2)
                                for (uint32_t i = 0; i < half; i++)
                                        lane[i] += lane[i + half];
                        sums[b] = lane[0];
                }
                memcpy(sorted, block_max, n_blocks * sizeof(float));
                qsort(sorted, n_blocks, sizeof(float), falling);
                wanted = TDM_MIN(tdm_sample_n_wanted(&s, false, n, s.repeat_penalty == 1.0f ? 0 : n_history), n_blocks);
                for (uint32_t b = 0; b < n_blocks; b++)
                        n_equal += key_of(block_max[b]) > key_of(sorted[wanted - 1]); /* so far those above */
                n_equal = wanted - n_equal;
                for (uint32_t b = 0; b < n_blocks; b++) {
                        uint32_t end = TDM_MIN(n, (b + 1) * TDM_SAMPLE_MAX_BLOCK);
                        bool above = key_of(block_max[b]) > key_of(sorted[wanted - 1]), counts = above,
                             named = target / TDM_SAMPLE_MAX_BLOCK == b;

                        /* the first ones are enough */
                        if (!above && key_of(block_max[b]) == key_of(sorted[wanted - 1]) && n_equal > 0) {
                                counts = true;
                                n_equal--;
                        }
                        for (uint32_t k = 0; k < n_history && s.repeat_penalty != 1.0f; k++)
                                named |= history[k] / TDM_SAMPLE_MAX_BLOCK == b;
                        if (counts)
                                blocks[n_seen++] = b;
                        for (uint32_t i = b * TDM_SAMPLE_MAX_BLOCK; i < end; i++)
                                seen[i] = named || counts ? logits[i] : NAN;
                }
                assert_int_equal(n_seen, wanted);
                want = sample(logits, n, s, history, n_history, round, target);
                memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n));
                memset(&got, 0x5a, sizeof(got));
                tdm_sample_take(block_max, n_blocks, sums, blocks, n_seen, scratch);
                assert_int_equal(
                        tdm_sample_finish(seen, n, &s, NULL, PAST(history, n_history), round, target, scratch, &got),
                        0);
                assert_memory_equal(&got, &want, sizeof(got));
                block_max[n_blocks / 2] = NAN;
                tdm_sample_take(block_max, n_blocks, sums, blocks, n_seen, scratch);
                assert_int_equal(
                        tdm_sample_finish(seen, n, &s, NULL, PAST(history, n_history), round, target, scratch, &got),
                        -EDOM);
        }
}

/* A mask chooses as if the other logits were -inf, and changes no log-probability. Blocks that are all allowed, not at
 * all, and by single tokens. */
static void test_mask(void **state)
{
        static const uint32_t sizes[] = { 1, 63, 64, 65, 1000, 4096, 20011 };

        for (uint32_t round = 0; round < 400; round++) {
                uint32_t n = sizes[round % TDM_ARRAY_SIZE(sizes)], n_history = round % 9 * 10, n_allowed = 0;
                uint32_t n_words = TDM_DIV_UP(n, 64u), at = (uint32_t)(random_uniform() * n);
                _cleanup_(freep) float *logits = calloc(n, sizeof(float)), *masked = calloc(n, sizeof(float));
                _cleanup_(freep) uint64_t *allowed = calloc(n_words, sizeof(uint64_t));
                _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n));
                struct tdm_sampling s = { round % 3 ? 1.5f : 0.0f, 0.95f,     0.01f, round % 4 ? 1.0f : 1.3f,
                                          round % 7 * 10,          round % 6, round };
                struct tdm_result want, raw, got;
                uint32_t history[80];

                for (uint32_t i = 0; i < n; i++)
                        logits[i] = round % 10 == 9 ? rintf(random_normal()) : 6.0f * random_normal();
                for (uint32_t i = 0; i < n_history; i++)
                        history[i] = (uint32_t)(random_uniform() * n);
                for (uint32_t w = 0; w < n_words; w++)
                        allowed[w] = round % 5 == 0 ? 0 :
                                     w % 3 == 0     ? ~UINT64_C(0) :
                                     w % 3 == 1     ? UINT64_C(1) << w % 64 :
                                                      0;
                allowed[at / 64] |= UINT64_C(1) << at % 64;
                if (round % 11 == 0)
                        memset(allowed, 0xff, n_words * sizeof(*allowed)); /* bits beyond the vocabulary too */
                for (uint32_t i = 0; i < n; i++) {
                        bool is_allowed = allowed[i / 64] >> i % 64 & 1;

                        masked[i] = is_allowed ? logits[i] : -INFINITY;
                        n_allowed += is_allowed;
                }
                raw = sample(logits, n, s, history, n_history, round, 0);
                want = sample(masked, n, s, history, n_history, round, 0);
                memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n));
                memset(&got, 0x5a, sizeof(got));
                assert_int_equal(tdm_sample(logits, n, &s, allowed, PAST(history, n_history), round, 0, scratch, &got),
                                 0);
                assert_int_equal(got.token, want.token);
                assert_true(allowed[got.token / 64] >> got.token % 64 & 1);
                assert_memory_equal(&got.target_logprob, &raw.target_logprob, sizeof(float));
                assert_int_equal(got.n_top, raw.n_top);
                assert_memory_equal(got.top, raw.top, raw.n_top * sizeof(got.top[0]));
                if (n_allowed == n)
                        assert_memory_equal(&got, &raw, sizeof(got));
                /* the log-probability is the model's, not that among the allowed ones */
                raw = sample(logits, n, s, history, n_history, round, got.token);
                assert_memory_equal(&got.logprob, &raw.target_logprob, sizeof(float));

                memset(allowed, 0, n_words * sizeof(*allowed));
                assert_int_equal(tdm_sample(logits, n, &s, allowed, PAST(history, n_history), round, 0, scratch, &got),
                                 -ENODATA);
                /* the model holds the only allowed token impossible */
                if (n > 1) {
                        allowed[at / 64] = UINT64_C(1) << at % 64;
                        logits[at] = -INFINITY;
                        assert_int_equal(
                                tdm_sample(logits, n, &s, allowed, PAST(history, n_history), round, 0, scratch, &got),
                                0);
                        assert_int_equal(got.token, at);
                }
        }
}

/* With a mask all blocks are wanted, and then the order in which they are named is of no account. */
static void test_mask_seen(void **state)
{
        enum { N = 5000, N_BLOCKS = (N + TDM_SAMPLE_MAX_BLOCK - 1) / TDM_SAMPLE_MAX_BLOCK };
        static float logits[N], maxima[N_BLOCKS], sums[N / TDM_SAMPLE_SUM_BLOCK + 1];
        static uint64_t allowed[N / 64 + 1];
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(N));
        struct tdm_sampling s = plain;
        struct tdm_result want, got;
        uint32_t blocks[N_BLOCKS];

        for (uint32_t i = 0; i < N; i++) {
                logits[i] = 3.0f * random_normal();
                maxima[i / TDM_SAMPLE_MAX_BLOCK] = fmaxf(maxima[i / TDM_SAMPLE_MAX_BLOCK], logits[i]);
                if (random_uniform() < 0.1)
                        allowed[i / 64] |= UINT64_C(1) << i % 64;
        }
        for (uint32_t b = 0; b < N_BLOCKS; b++)
                blocks[b] = N_BLOCKS - 1 - b;
        assert_int_equal(tdm_sample_n_wanted(&s, true, N, 0), N);
        assert_int_equal(tdm_sample(logits, N, &s, allowed, NULL, 7, UINT32_MAX, scratch, &want), 0);
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(sums); i++)
                sums[i] = 1.0f;
        tdm_sample_take(maxima, N_BLOCKS, sums, blocks, N_BLOCKS, scratch);
        assert_int_equal(tdm_sample_finish(logits, N, &s, allowed, NULL, 7, UINT32_MAX, scratch, &got), 0);
        assert_int_equal(got.token, want.token);
}

/* As tdm_sample(), with logits looked at in parts of this many, the last parts first. */
static int sample_in_parts(const float *logits, uint32_t n, const struct tdm_sampling *s, uint32_t part, void *scratch,
                           struct tdm_result *ret)
{
        float max = -INFINITY, of;
        uint32_t n_parts = TDM_DIV_UP(n, part);

        for (uint32_t i = n_parts; i-- > 0;) {
                of = tdm_sample_maxima(logits, n, i * part, TDM_MIN(part, n - i * part), scratch);
                max = isnan(max) || max > of ? max : of;
        }
        for (uint32_t i = n_parts; i-- > 0;)
                tdm_sample_sums(logits, i * part, TDM_MIN(part, n - i * part), max, scratch);
        tdm_sample_take_own(max, scratch);
        return tdm_sample_finish(logits, n, s, NULL, PAST(NULL, 0), 5, n - 1, scratch, ret);
}

/* Parts give the bits of the whole; one of them may have no finite logit, and one bad logit is found in any. */
static void test_parts(void **state)
{
        enum { N_MOST = 5000 };
        static float logits[N_MOST];
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(N_MOST));
        struct tdm_sampling drawn = { .temperature = 0.8f, .top_p = 1, .repeat_penalty = 1, .top_k = 40, .n_top = 5 };
        const struct tdm_sampling *of[] = { &greedy, &drawn };
        struct tdm_result got, want;

        assert_non_null(scratch);
        for (uint32_t n = TDM_SAMPLE_SUM_BLOCK + 1; n <= N_MOST; n += 433) {
                uint32_t part = TDM_SAMPLE_SUM_BLOCK * (1 + n % 3), bad;

                for (uint32_t i = 0; i < n; i++)
                        logits[i] = n % 2 && n > part && i < part ? -INFINITY : 4.0f * random_normal();
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(of); k++) {
                        want = sample(logits, n, *of[k], NULL, 0, 5, n - 1);
                        memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n));
                        memset(&got, 0x5a, sizeof(got));
                        assert_int_equal(sample_in_parts(logits, n, of[k], part, scratch, &got), 0);
                        assert_memory_equal(&got, &want, sizeof(got));
                }
                bad = (uint32_t)(random_uniform() * (n - 1));
                logits[bad] = n % 4 < 2 ? NAN : INFINITY;
                assert_int_equal(sample_in_parts(logits, n, of[0], part, scratch, &got), -EDOM);
        }
        for (uint32_t i = 0; i < N_MOST; i++)
                logits[i] = -INFINITY;
        assert_int_equal(sample_in_parts(logits, N_MOST, of[0], TDM_SAMPLE_SUM_BLOCK, scratch, &got), -EDOM);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_philox),     cmocka_unit_test(test_greedy), cmocka_unit_test(test_ties),
                cmocka_unit_test(test_top),        cmocka_unit_test(test_order),  cmocka_unit_test(test_penalty_reach),
                cmocka_unit_test(test_bad_logits), cmocka_unit_test(test_check),  cmocka_unit_test(test_known),
                cmocka_unit_test(test_seen),       cmocka_unit_test(test_mask),   cmocka_unit_test(test_mask_seen),
                cmocka_unit_test(test_parts),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
