/* What is known of all logits before a token is looked for: the greatest of each block, and the sums for the
 * log-probabilities. In floats, in one order, with vectors of whatever width the machine has. */
#include "engine/sampling/scan.h"

#include <assert.h>
#include <float.h>

#include "engine/sampling/lanes.h"
#include "engine/sampling/sampler.h"

#define SUM_BLOCK TDM_SAMPLE_SUM_BLOCK
#define MAX_BLOCK TDM_SAMPLE_MAX_BLOCK

static_assert(LANES == TDM_SAMPLE_LANES, "the lanes that sampler.h promises");

inline_always void keep_greater(lanes_f *greatest, const lanes_f *v)
{
        lanes_i more = *v > *greatest;

        *greatest = (lanes_f)(((lanes_i)*v & more) | ((lanes_i)*greatest & ~more));
}

/* As a tree: each of the first half with its twin in the second. */
inline_always float sum_lanes(const lanes_f *sum)
{
        typedef float eight_f __attribute__((vector_size(32))), four_f __attribute__((vector_size(16)));
        eight_f eight[2];
        four_f four[2];

        memcpy(eight, sum, sizeof(eight));
        eight[0] += eight[1];
        memcpy(four, eight, sizeof(four));
        four[0] += four[1];
        return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

/* Of each block of 256, the sum of e^(logit - max). */
inline_always void sum_exp_generic(const float *logits, uint32_t n, float max, float *block_sum)
{
        for (uint32_t at = 0; at < n; at += SUM_BLOCK) {
                uint32_t end = TDM_MIN(at + SUM_BLOCK, n);
                lanes_f sum = { 0 }, v;

                for (uint32_t i = at; i < end; i += LANES) {
                        load_lanes(&v, logits + i, end - i);
                        v -= max;
                        exp_negative(&v);
                        sum += v;
                }
                block_sum[at / SUM_BLOCK] = sum_lanes(&sum);
        }
}

/* The greatest of each block of 64. Returns the greatest of all, NAN when a logit is NaN or +inf. */
inline_always float find_maxima_generic(const float *logits, uint32_t n, float *block_max)
{
        float max = -INFINITY;
        lanes_i fine = ~(lanes_i){ 0 };

        for (uint32_t at = 0; at < n; at += MAX_BLOCK) {
                uint32_t end = TDM_MIN(at + MAX_BLOCK, n);
                lanes_f greatest, v;
                float most;

                load_lanes(&greatest, logits + at, end - at);
                fine &= greatest <= FLT_MAX;
                for (uint32_t i = at + LANES; i < end; i += LANES) {
                        load_lanes(&v, logits + i, end - i);
                        fine &= v <= FLT_MAX;
                        keep_greater(&greatest, &v);
                }
                most = greatest[0];
                for (uint32_t lane = 1; lane < LANES; lane++)
                        most = greatest[lane] > most ? greatest[lane] : most;
                block_max[at / MAX_BLOCK] = most;
                max = most > max ? most : max;
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
                if (!fine[lane])
                        return NAN;
        }
        return max;
}

/* The greatest of maxima that were found elsewhere, where NAN stands for a block with such a logit. Of them too. */
inline_always float greatest_of_generic(const float *block_max, uint32_t n_blocks)
{
        lanes_f greatest, v;
        lanes_i fine = ~(lanes_i){ 0 };
        float max = -INFINITY;

        load_lanes(&greatest, block_max, 0);
        for (uint32_t b = 0; b < n_blocks; b += LANES) {
                load_lanes(&v, block_max + b, n_blocks - b);
                fine &= v == v;
                keep_greater(&greatest, &v);
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
                if (!fine[lane])
                        return NAN;
                max = greatest[lane] > max ? greatest[lane] : max;
        }
        return max;
}

/* The same source three times; the widest that the machine has. Contraction is off, so all give the same bits. */
#define VARIANT(suffix, attribute)                                                                                     \
        attribute static void sum_exp##suffix(const float *logits, uint32_t n, float max, float *block_sum)            \
        {                                                                                                              \
                sum_exp_generic(logits, n, max, block_sum);                                                            \
        }                                                                                                              \
        attribute static float find_maxima##suffix(const float *logits, uint32_t n, float *block_max)                  \
        {                                                                                                              \
                return find_maxima_generic(logits, n, block_max);                                                      \
        }                                                                                                              \
        attribute static float greatest_of##suffix(const float *block_max, uint32_t n_blocks)                          \
        {                                                                                                              \
                return greatest_of_generic(block_max, n_blocks);                                                       \
        }                                                                                                              \
        static const struct tdm_scan_functions functions##suffix = { sum_exp##suffix, find_maxima##suffix,             \
                                                                     greatest_of##suffix };
VARIANT(_plain, )
#ifdef __x86_64__
VARIANT(_avx2, __attribute__((target("avx2"))))
VARIANT(_avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))))
#endif

const struct tdm_scan_functions *tdm_scan_functions(void)
{
#ifdef __x86_64__
        if (has_avx512())
                return &functions_avx512;
        if (__builtin_cpu_supports("avx2"))
                return &functions_avx2;
#endif
        return &functions_plain;
}
