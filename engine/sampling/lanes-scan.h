/* What is known of all logits before a token is looked for: the greatest of each block, and the sums for the
 * log-probabilities. In floats, in one order: 16 partial sums, whatever the number of lanes. */
#ifndef TDM_ENGINE_SAMPLING_LANES_SCAN_H
#define TDM_ENGINE_SAMPLING_LANES_SCAN_H

#include <assert.h>
#include <float.h>

#include "engine/sampling/lanes.h"
#include "engine/sampling/sampler.h"

#define SUM_BLOCK TDM_SAMPLE_SUM_BLOCK
#define MAX_BLOCK TDM_SAMPLE_MAX_BLOCK
#define PARTS TDM_SAMPLE_LANES
#define VECTORS (PARTS / LANES) /* that hold the parts */
#define UNROLL _Pragma("GCC unroll 4")

static_assert(PARTS == 16 && PARTS % LANES == 0, "sum_lanes() folds 16");

/* 16 logits, of which n are there; the others are -inf. */
inline_always void load_parts(lanes_f v[VECTORS], const float *logits, uint32_t n)
{
        float some[PARTS];

        if (n < PARTS) {
                for (uint32_t i = 0; i < PARTS; i++)
                        some[i] = i < n ? logits[i] : -INFINITY;
                logits = some;
        }
        UNROLL for (uint32_t k = 0; k < VECTORS; k++) v[k] = *(const lanes_f *)(logits + k * LANES);
}

inline_always void keep_greater(lanes_f *greatest, const lanes_f *v)
{
        lanes_i more = *v > *greatest;

        *greatest = (lanes_f)(((lanes_i)*v & more) | ((lanes_i)*greatest & ~more));
}

/* As a tree: each of the first half with its twin in the second. */
inline_always float sum_lanes(const lanes_f sum[VECTORS])
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

/* The sum of e^(logit - max) over each block of 256. */
static void sum_exp(const float *logits, uint32_t n, float max, float *block_sum)
{
        for (uint32_t at = 0; at < n; at += SUM_BLOCK) {
                uint32_t end = TDM_MIN(at + SUM_BLOCK, n);
                lanes_f sum[VECTORS] = { 0 }, v[VECTORS];

                for (uint32_t i = at; i < end; i += PARTS) {
                        load_parts(v, logits + i, end - i);
                        UNROLL for (uint32_t k = 0; k < VECTORS; k++)
                        {
                                v[k] -= max;
                                exp_negative(&v[k]);
                                sum[k] += v[k];
                        }
                }
                block_sum[at / SUM_BLOCK] = sum_lanes(sum);
        }
}

/* The greatest of each block of 64. Returns the greatest of all, NAN when a logit is NaN or +inf. */
static float find_maxima(const float *logits, uint32_t n, float *block_max)
{
        float max = -INFINITY;
        lanes_i fine = ~(lanes_i){ 0 };

        for (uint32_t at = 0; at < n; at += MAX_BLOCK) {
                uint32_t end = TDM_MIN(at + MAX_BLOCK, n);
                lanes_f greatest[VECTORS], v[VECTORS];
                float parts[PARTS], most;

                load_parts(greatest, logits + at, 0);
                for (uint32_t i = at; i < end; i += PARTS) {
                        load_parts(v, logits + i, end - i);
                        UNROLL for (uint32_t k = 0; k < VECTORS; k++)
                        {
                                fine &= v[k] <= FLT_MAX;
                                keep_greater(&greatest[k], &v[k]);
                        }
                }
                memcpy(parts, greatest, sizeof(parts));
                most = parts[0];
                for (uint32_t i = 1; i < PARTS; i++)
                        most = parts[i] > most ? parts[i] : most;
                block_max[at / MAX_BLOCK] = most;
                max = most > max ? most : max;
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
                if (!fine[lane])
                        return NAN;
        }
        return max;
}

/* The greatest of maxima that were found elsewhere. NAN stands for a block with such a logit, and is returned then. */
static float greatest_of(const float *block_max, uint32_t n_blocks)
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

#endif
