/* What is drawn: the distribution under every filter, penalty and bias, its independence, the noise behind it, and that
 * blocks are skipped only where they cannot hold the choice. An argument: draws from the large vocabulary. */
#include "engine/sampling/test-sampler.h"

/* Draws n times at different positions; counts of each token. */
static void count_draws(const float *logits, uint32_t n_vocab, struct tdm_sampling s, const uint32_t *history,
                        uint32_t n_history, unsigned n, unsigned *counts)
{
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n_vocab));
        struct tdm_result r;

        assert_non_null(scratch);
        memset(counts, 0, n_vocab * sizeof(*counts));
        for (unsigned i = 0; i < n; i++) {
                assert_int_equal(
                        tdm_sample(logits, n_vocab, &s, NULL, PAST(history, n_history), i, UINT32_MAX, scratch, &r), 0);
                counts[r.token]++;
        }
}

/* Chi-squared of counts against weights; tokens of weight 0 must not have been drawn. */
static double chi_squared(const unsigned *counts, const double *weights, uint32_t n_vocab, unsigned n)
{
        double sum = 0.0, chi = 0.0;

        for (uint32_t i = 0; i < n_vocab; i++)
                sum += weights[i];
        for (uint32_t i = 0; i < n_vocab; i++) {
                double wanted = (double)n * weights[i] / sum;

                if (weights[i] == 0.0)
                        assert_int_equal(counts[i], 0);
                else
                        chi += ((double)counts[i] - wanted) * ((double)counts[i] - wanted) / wanted;
        }
        return chi;
}

#define N_DRAWS 200000u

static void test_distribution(void **state)
{
        static const float p[8] = { 0.05f, 0.3f, 0.02f, 0.25f, 0.13f, 0.05f, 0.15f, 0.05f };
        float logits[8];
        double weights[8];
        unsigned counts[8];
        struct tdm_sampling s = plain;

        for (unsigned i = 0; i < 8; i++)
                logits[i] = logf(p[i]) + 3.0f;

        for (unsigned i = 0; i < 8; i++)
                weights[i] = (double)p[i];
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 24.3); /* 7 degrees of freedom, p = 0.001 */

        s.temperature = 2.0f;
        for (unsigned i = 0; i < 8; i++)
                weights[i] = sqrt((double)p[i]);
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 24.3);

        s = plain;
        s.top_k = 3; /* 1, 3, 6 */
        for (unsigned i = 0; i < 8; i++)
                weights[i] = i == 1 || i == 3 || i == 6 ? (double)p[i] : 0.0;
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 13.8);
        s.top_k = 6; /* of 0, 5, 7 with equal weights the lowest two */
        for (unsigned i = 0; i < 8; i++)
                weights[i] = i == 2 || i == 7 ? 0.0 : (double)p[i];
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 20.5);

        s = plain;
        s.top_p = 0.6f; /* 0.3 + 0.25 is not enough */
        for (unsigned i = 0; i < 8; i++)
                weights[i] = i == 1 || i == 3 || i == 6 ? (double)p[i] : 0.0;
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 13.8);
        s.top_p = 1e-30f;
        count_draws(logits, 8, s, NULL, 0, 100, counts);
        assert_int_equal(counts[1], 100);

        s = plain;
        s.min_p = 0.4f; /* of 0.3: 0.12 */
        for (unsigned i = 0; i < 8; i++)
                weights[i] = p[i] > 0.12f ? (double)p[i] : 0.0;
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 16.3);
        s.min_p = 0.9999f;
        count_draws(logits, 8, s, NULL, 0, 100, counts);
        assert_int_equal(counts[1], 100);

        s = plain; /* all filters: top-k leaves 1, 3, 6, 4 and 0; top-p 1, 3, 6 and 4; min-p 1, 3 and 6 */
        s.top_k = 5;
        s.top_p = 0.9f;
        s.min_p = 0.5f;
        for (unsigned i = 0; i < 8; i++)
                weights[i] = i == 1 || i == 3 || i == 6 ? (double)p[i] : 0.0;
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 13.8);
        s.min_p = 0.05f;
        weights[4] = (double)p[4];
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 16.3);
        s.temperature = 0.5f; /* squares: 0.09, 0.0625 and 0.0225 are not enough of 0.1944 */
        s.top_p = 0.95f;
        s.min_p = 0.0f;
        for (unsigned i = 0; i < 8; i++)
                weights[i] *= weights[i];
        count_draws(logits, 8, s, NULL, 0, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 8, N_DRAWS) < 16.3);

        s = plain;
        s.top_k = 1;
        count_draws(logits, 8, s, NULL, 0, 100, counts);
        assert_int_equal(counts[1], 100);
        s.top_k = UINT32_MAX;
        count_draws(logits, 8, s, NULL, 0, 100, counts);
        assert_true(counts[1] < 60);
        s = plain;
        s.temperature = 1e-6f;
        count_draws(logits, 8, s, NULL, 0, 100, counts);
        assert_int_equal(counts[1], 100);
}

/* The value that chi-squared is above with probability 0.001 (Wilson and Hilferty). */
static double chi_limit(double degrees)
{
        double v = 1.0 - 2.0 / (9.0 * degrees) + 3.0902 * sqrt(2.0 / (9.0 * degrees));

        return degrees * v * v * v;
}

/* Draws are independent: at one seed from position to position, at one position from seed to seed. */
static void test_independent(void **state)
{
        static const float logits[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
        struct tdm_sampling s = plain;

        for (unsigned kind = 0; kind < 3; kind++) {
                unsigned pairs[64] = { 0 }, before = 0;
                double even[64];

                for (unsigned i = 0; i <= N_DRAWS; i++) {
                        uint32_t position = kind == 0 ? i : 7;
                        uint32_t token;

                        s.top_k = kind == 2 ? 8 : 0;
                        s.seed = kind == 0 ? 1 : kind == 1 ? i : (uint64_t)i << 32;
                        token = sample(logits, 8, s, NULL, 0, position, UINT32_MAX).token;
                        if (i > 0)
                                pairs[before * 8 + token]++;
                        before = token;
                }
                for (unsigned i = 0; i < 64; i++)
                        even[i] = 1.0;
                assert_true(chi_squared(pairs, even, 64, N_DRAWS) < chi_limit(63));
        }
}

/* ---- a large vocabulary ---- */

#define N_LARGE 262144u
static unsigned n_large_draws = 5000; /* of 200,000 where asked for */

/* Tokens in classes: each of the likely ones is one, the others by their place in a block and by parts of the
 * vocabulary. */
static void check_large(const float *logits, struct tdm_sampling s, bool over_seeds)
{
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(N_LARGE));
        _cleanup_(freep) uint32_t *class_of = calloc(N_LARGE, sizeof(uint32_t));
        enum { N_LIKELY = 100, N_LANES = 64, N_PARTS = 8, N_CLASSES = N_LIKELY + N_LANES * N_PARTS };
        static double weights[N_CLASSES];
        static unsigned counts[N_CLASSES];
        double total = 0.0;
        uint32_t n_likely = 0, n_classes = 0;

        assert_true(scratch && class_of);
        memset(weights, 0, sizeof(weights));
        memset(counts, 0, sizeof(counts));
        for (uint32_t i = 0; i < N_LARGE; i++)
                total += exp((double)logits[i] / (double)s.temperature);
        for (uint32_t i = 0; i < N_LARGE; i++) {
                double p = exp((double)logits[i] / (double)s.temperature) / total;

                class_of[i] = p > 0.002 && n_likely < N_LIKELY ?
                                      n_likely++ :
                                      N_LIKELY + i % N_LANES * N_PARTS + i / (N_LARGE / N_PARTS);
                weights[class_of[i]] += p;
        }
        for (unsigned i = 0; i < n_large_draws; i++) {
                struct tdm_result r;

                if (over_seeds)
                        s.seed = i * UINT64_C(0x100000001);
                assert_int_equal(
                        tdm_sample(logits, N_LARGE, &s, NULL, NULL, over_seeds ? 5 : i, UINT32_MAX, scratch, &r), 0);
                counts[class_of[r.token]]++;
        }
        for (uint32_t i = 0; i < N_CLASSES; i++)
                n_classes += weights[i] > 0.0;
        assert_true(chi_squared(counts, weights, N_CLASSES, n_large_draws) < chi_limit(n_classes - 1));
}

static void test_large(void **state)
{
        float *logits = calloc(N_LARGE, sizeof(float));
        struct tdm_sampling s = plain;

        assert_non_null(logits);
        check_large(logits, s, false); /* all are equally likely */
        check_large(logits, s, true);
        for (uint32_t i = 0; i < N_LARGE; i++)
                logits[i] = 2.0f * random_normal() + (i % 5000 == 77 ? 12.0f : 0.0f);
        check_large(logits, s, false);
        s.temperature = 1.5f;
        check_large(logits, s, true);
        free(logits);
}

/* ---- noise ---- */

/* The operations of lanes-noise.h in the plainest code. */
static float plain_fraction(uint32_t bits)
{
        float low = (float)(bits & 0xffffu) + 0.5f, high = (float)(bits >> 16);

        return high * 0x1p-16f + low * 0x1p-32f;
}

static float plain_log(float z, float n)
{
        static const float factors[] = { -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                                         -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f };
        float p = z * 7.0376836292e-2f + factors[0];

        for (unsigned i = 1; i < 8; i++)
                p = p * z + factors[i];
        p = p * z;
        p = p * (z * z) + n * -2.12194440e-4f;
        p = p - z * z * 0.5f;
        return z + p + n * 0.693359375f;
}

static float plain_log_of(float v)
{
        int n;
        float m = frexpf(v, &n) * 2.0f;

        n--;
        if (m >= 1.41421366f) { /* the first float above the root of 2, halved */
                m /= 2.0f;
                n++;
        }
        return plain_log(m - 1.0f, (float)n);
}

static float plain_exponential(uint32_t bits)
{
        return -(bits < 0x40000000u ? plain_log(-plain_fraction(bits), 0.0f) : plain_log_of(plain_fraction(~bits)));
}

static uint32_t plain_hash(uint32_t x, uint32_t a, uint32_t b)
{
        uint32_t h = x * 0x9e3779b9u + a;

        h = ((h ^ h >> 16) * 0x21f0aaadu);
        h = ((h ^ h >> 15 ^ b) * 0xd35a2d97u);
        return h ^ h >> 15;
}

static float plain_noise(const struct tdm_noise *noise, uint32_t id)
{
        const uint32_t *k = noise->keys;
        float least = plain_exponential(plain_hash(id / 64, k[2], k[3])) / 64.0f;
        bool has_least = plain_hash(id / 64 | 0x80000000u, k[2], k[3]) >> 26 == id % 64;

        return -plain_log_of((has_least ? 0.0f : plain_exponential(plain_hash(id, k[0], k[1]))) + least);
}

/* The bits of plain code, whatever vectors were used; the logarithm is one; the noise of many tokens has the mean and
 * the variance of Gumbel's distribution, and the bound of a block is above all of its scores. */
static void test_noise(void **state)
{
        enum { N = 262144 };
        uint32_t *numbers = calloc(N, sizeof(*numbers));
        float *zeros = calloc(N, sizeof(float)), *scores = calloc(N, sizeof(float)),
              *bounds = calloc(N / 64, sizeof(float));
        double sum = 0.0, squares = 0.0, worst = -1.0;
        struct tdm_noise noise;

        assert_true(numbers && zeros && scores && bounds);
        for (uint32_t i = 0; i < N; i++)
                numbers[i] = i;
        for (uint32_t round = 0; round < 8; round++) {
                uint32_t n = round ? N : 100003;

                tdm_noise_init(&noise, 0.7f, round * UINT64_C(0x123456789), round);
                tdm_noise_scores(&noise, zeros, numbers, n, 0.0f, scores);
                tdm_noise_bounds(&noise, zeros, NULL, n / 64, 0.0f, bounds);
                for (uint32_t i = 0; i < n; i++) {
                        float want = plain_noise(&noise, i);

                        assert_memory_equal(&scores[i], &want, sizeof(want));
                        assert_true(want > -3.3f && want < 27.1f);
                        if (i / 64 < n / 64) {
                                assert_true(scores[i] < bounds[i / 64]);
                                worst = TDM_MAX(worst, (double)(scores[i] - bounds[i / 64]));
                        }
                        sum += round ? (double)want : 0.0;
                        squares += round ? (double)want * (double)want : 0.0;
                }
        }
        sum /= 7.0 * N;
        squares = squares / (7.0 * N) - sum * sum;
        assert_true(fabs(sum - 0.57722) < 0.005);     /* five standard deviations of the mean */
        assert_true(fabs(squares - 1.64493) < 0.014); /* and of the variance */
        assert_true(worst < 0.0 && worst > -2.0 * (double)TDM_NOISE_SLACK);
        for (uint32_t bits = 0; bits < 0xfff00000u; bits += 65537) {
                double exact = -log1p(-((double)bits + 0.5) * 0x1p-32);

                assert_true(fabs((double)plain_exponential(bits) / exact - 1.0) < 1e-6);
        }
        assert_true(plain_exponential(0) > 0.0f && plain_exponential(UINT32_MAX) < 23.0f);
        free(numbers);
        free(zeros);
        free(scores);
        free(bounds);
}

/* Without a filter: the largest score of all tokens, found one by one. With masks and penalties, and where only the
 * blocks that sampler.h names are there. */
static void test_unfiltered(void **state)
{
        uint64_t n_all_seen = 0, n_all_blocks = 0;

        for (uint32_t round = 0; round < 300; round++) {
                uint32_t n = 1 + (uint32_t)(random_uniform() * (round % 2 ? 30000 : 300)),
                         n_blocks = TDM_DIV_UP(n, TDM_SAMPLE_MAX_BLOCK), n_sums = TDM_DIV_UP(n, TDM_SAMPLE_SUM_BLOCK),
                         n_history = round % 3 == 0 ? 60 : 0, n_seen = 0, history[60], best = UINT32_MAX;
                _cleanup_(freep) float *logits = calloc(n, sizeof(float)), *seen = calloc(n, sizeof(float)),
                                       *moved = calloc(n, sizeof(float)), *scores = calloc(n, sizeof(float)),
                                       *block_max = calloc(n_blocks, sizeof(float)),
                                       *bounds = calloc(n_blocks, sizeof(float)), *sums = calloc(n_sums, sizeof(float));
                _cleanup_(freep) uint32_t *numbers = calloc(n, sizeof(uint32_t)),
                                          *blocks = calloc(n_blocks, sizeof(uint32_t));
                _cleanup_(freep) uint64_t *allowed = calloc(n_blocks, sizeof(uint64_t));
                _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n));
                bool masked = round % 4 == 1, any = false;
                struct tdm_sampling s = plain;
                float max = -INFINITY, greatest = -INFINITY, floor = -INFINITY;
                struct tdm_result want, got;
                struct tdm_noise noise;

                s.temperature = (float[]){ 0.3f, 1.0f, 5.0f }[round % 3];
                s.repeat_penalty = n_history ? round % 2 ? 1.4f : 0.3f : 1.0f;
                s.seed = round;
                for (uint32_t i = 0; i < n; i++) {
                        numbers[i] = i;
                        moved[i] = logits[i] = round % 10 == 9 ? rintf(random_normal()) : 6.0f * random_normal();
                        max = logits[i] > max ? logits[i] : max;
                        if (masked && random_uniform() < 0.2)
                                allowed[i / 64] |= UINT64_C(1) << i % 64;
                        else if (!masked)
                                allowed[i / 64] |= UINT64_C(1) << i % 64;
                }
                allowed[0] |= 1;
                for (uint32_t i = 0; i < n_history; i++)
                        history[i] = (uint32_t)(random_uniform() * n);
                for (uint32_t i = 0; i < n_history; i++) {
                        float v = logits[history[i]];

                        moved[history[i]] = v > 0.0f ? v / s.repeat_penalty : v * s.repeat_penalty;
                }
                for (uint32_t i = 0; i < n; i++)
                        if (allowed[i / 64] >> i % 64 & 1)
                                greatest = logits[i] > greatest ? logits[i] : greatest;
                tdm_noise_init(&noise, s.temperature, s.seed, round + 3);
                tdm_noise_scores(&noise, moved, numbers, n, greatest, scores);
                for (uint32_t i = 0; i < n; i++)
                        if ((allowed[i / 64] >> i % 64 & 1) && (best == UINT32_MAX || scores[i] > scores[best]))
                                best = i;
                memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n));
                memset(&want, 0, sizeof(want));
                assert_int_equal(tdm_sample(logits, n, &s, masked ? allowed : NULL, PAST(history, n_history), round + 3,
                                            UINT32_MAX, scratch, &want),
                                 0);
                assert_int_equal(want.token, best);
                assert_int_equal(tdm_sample_noise(&s, masked, round + 3, &noise), !masked);
                if (masked)
                        continue;

                for (uint32_t b = 0; b < n_blocks; b++) {
                        block_max[b] = -INFINITY;
                        for (uint32_t i = b * 64; i < TDM_MIN(n, b * 64 + 64); i++)
                                block_max[b] = logits[i] > block_max[b] ? logits[i] : block_max[b];
                }
                for (uint32_t b = 0; b < n_sums; b++)
                        sums[b] = 1.0f;
                tdm_noise_bounds(&noise, block_max, NULL, n_blocks, max, bounds);
                tdm_noise_scores(&noise, logits, numbers, n, max, scores);
                for (uint32_t i = 0; i < n; i++) { /* the score of any token that is not in the history */
                        bool penalised = false;

                        for (uint32_t k = 0; k < n_history; k++)
                                penalised |= history[k] == i;
                        if (!penalised && (!any || i % 7 == 0)) {
                                floor = scores[i] > floor ? scores[i] : floor;
                                any = true;
                        }
                }
                for (uint32_t b = 0; b < n_blocks; b++) {
                        bool counts = bounds[b] >= floor, named = false;

                        for (uint32_t k = 0; k < n_history; k++)
                                named |= history[k] / 64 == b;
                        if (counts)
                                blocks[n_seen++] = b;
                        for (uint32_t i = b * 64; i < TDM_MIN(n, b * 64 + 64); i++)
                                seen[i] = counts || named ? logits[i] : NAN;
                }
                n_all_seen += n_seen;
                n_all_blocks += n_blocks;
                memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n));
                assert_int_equal(tdm_sample_n_wanted(&s, false, n, n_history), 0);
                tdm_sample_take(block_max, n_blocks, sums, blocks, n_seen, scratch);
                assert_int_equal(tdm_sample_finish(seen, n, &s, NULL, PAST(history, n_history), round + 3, UINT32_MAX,
                                                   scratch, &got),
                                 0);
                assert_int_equal(got.token, want.token);
        }
        assert_true(n_all_seen < n_all_blocks / 2); /* blocks were left out */
}

static void test_penalty(void **state)
{
        float logits[6] = { 2.0f, 1.9f, -1.0f, 0.5f, -3.0f, 1.0f };
        const uint32_t history[] = { 0, 0, 0, 4, 999, 0 };
        struct tdm_sampling s = greedy;
        struct tdm_result r;
        double weights[6];
        unsigned counts[6];

        s.repeat_penalty = 1.1f;
        r = sample(logits, 6, s, history, 6, 0, UINT32_MAX);
        assert_int_equal(r.token, 1); /* 2 / 1.1 < 1.9, and once is enough */
        s.n_top = 2;
        r = sample(logits, 6, s, history, 6, 0, UINT32_MAX);
        assert_int_equal(r.token, 1);
        assert_int_equal(r.top[0].id, 0); /* reports are of the model itself */
        assert_true(r.logprob == r.top[1].logprob);
        s.repeat_penalty = 1.04f; /* 1.923 */
        assert_int_equal(sample(logits, 6, s, history, 6, 0, UINT32_MAX).token, 0);

        s = plain;
        s.repeat_penalty = 1.5f;
        for (unsigned i = 0; i < 6; i++)
                weights[i] = exp(i == 0 ? 2.0 / 1.5 : i == 4 ? -4.5 : (double)logits[i]);
        count_draws(logits, 6, s, history, 6, N_DRAWS, counts);
        assert_true(chi_squared(counts, weights, 6, N_DRAWS) < 20.5);
}

/* Frequency, presence and bias: what is drawn most and how often, against logits that are moved by hand. */
static void test_moved(void **state)
{
        static const float logits[6] = { 2.0f, 1.9f, -1.0f, 0.5f, -3.0f, 1.0f };
        static const uint32_t history[] = { 3, 0, 0, 0, 4, 999, 0 };
        static const struct tdm_logit_bias biases[] = { { 0, 0.25f }, { 2, 1.5f }, { 5, -100.0f }, { 900, 5.0f } };
        struct tdm_past past = { history, 7, 2, 6, 0, NULL };
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(6));
        struct tdm_sampling s = greedy;
        uint32_t ids[TDM_MAX_MOVED];
        struct tdm_result r, raw;
        double weights[6];
        unsigned counts[6];

        assert_non_null(scratch);
        s.frequency_penalty = 0.02f; /* 2 - 4 * 0.02 > 1.9 */
        assert_int_equal(sample(logits, 6, s, history, 7, 0, UINT32_MAX).token, 0);
        s.frequency_penalty = 0.03f;
        assert_int_equal(sample(logits, 6, s, history, 7, 0, UINT32_MAX).token, 1);
        past.n_counted = 3; /* 0 once */
        assert_int_equal(tdm_sample(logits, 6, &s, NULL, &past, 0, UINT32_MAX, scratch, &r), 0);
        assert_int_equal(r.token, 0);
        s.frequency_penalty = 0.0f;
        s.presence_penalty = 0.11f;
        assert_int_equal(sample(logits, 6, s, history, 7, 0, UINT32_MAX).token, 1);
        s.presence_penalty = -3.0f; /* a reward */
        assert_int_equal(sample(logits, 6, s, (uint32_t[]){ 2 }, 1, 0, UINT32_MAX).token, 0);
        assert_int_equal(sample(logits, 6, s, (uint32_t[]){ 3 }, 1, 0, UINT32_MAX).token, 3);

        s = greedy;
        past = (struct tdm_past){ history, 7, 7, 7, 4, biases };
        assert_int_equal(tdm_sample_moved(&s, &past, 6, ids), 3); /* no penalty: the biases alone */
        assert_int_equal(tdm_sample(logits, 6, &s, NULL, NULL, 0, 5, scratch, &raw), 0);
        assert_int_equal(tdm_sample(logits, 6, &s, NULL, &past, 0, 5, scratch, &r), 0);
        assert_int_equal(r.token, 0);
        assert_memory_equal(&r.target_logprob, &raw.target_logprob, sizeof(float)); /* of the model itself */

        s = plain;
        s.repeat_penalty = 1.5f;
        s.frequency_penalty = 0.3f;
        s.presence_penalty = 0.2f;
        past.n_repeated = 2;
        past.n_counted = 6;
        assert_int_equal(tdm_sample_moved(&s, &past, 6, ids), 8);
        weights[0] = exp(2.0 / 1.5 - 4 * 0.3 - 0.2 + 0.25);
        weights[1] = exp(1.9);
        weights[2] = exp(0.5);
        weights[3] = exp(0.5); /* before the counted past */
        weights[4] = exp(-3.0 - 0.3 - 0.2);
        weights[5] = 0.0;
        for (unsigned filtered = 0; filtered < 2; filtered++) {
                s.top_k = filtered ? 6 : 0;
                memset(counts, 0, sizeof(counts));
                for (unsigned i = 0; i < N_DRAWS; i++) {
                        assert_int_equal(tdm_sample(logits, 6, &s, NULL, &past, i, UINT32_MAX, scratch, &r), 0);
                        counts[r.token]++;
                }
                assert_true(chi_squared(counts, weights, 6, N_DRAWS) < 18.5); /* 4 degrees of freedom, p = 0.001 */
        }
}

int main(int argc, char *argv[])
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_distribution), cmocka_unit_test(test_independent), cmocka_unit_test(test_large),
                cmocka_unit_test(test_noise),        cmocka_unit_test(test_unfiltered),  cmocka_unit_test(test_penalty),
                cmocka_unit_test(test_moved),
        };

        if (argc > 1)
                n_large_draws = (unsigned)strtoul(argv[1], NULL, 10);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
