/* The passes over logits, written once and compiled for each instruction set (lanes-plain.c, lanes-avx2.c,
 * lanes-avx512.c). All give the same bits. Private to this folder. */
#ifndef TDM_ENGINE_SAMPLING_LANES_TABLE_H
#define TDM_ENGINE_SAMPLING_LANES_TABLE_H

#include "engine/sampling/noise.h"

struct tdm_lanes_table {
        /* The sum of e^(logit - max) over each block of TDM_SAMPLE_SUM_BLOCK. */
        void (*sum_exp)(const float *logits, uint32_t n, float max, float *block_sum);
        /* Fills in the greatest of each block of TDM_SAMPLE_MAX_BLOCK. Returns the greatest of all, -inf where none is
         * finite, NAN when a logit is NaN or +inf. */
        float (*find_maxima)(const float *logits, uint32_t n, float *block_max);
        /* The same of maxima that were found elsewhere, where NAN stands for a block with such a logit. */
        float (*greatest_of)(const float *block_max, uint32_t n_blocks);
        /* As noise.h has them. */
        void (*noise_scores)(const struct tdm_noise *noise, const float *logits, const uint32_t *ids, uint32_t n,
                             float greatest, float *scores);
        void (*noise_bounds)(const struct tdm_noise *noise, const float *maxima, const uint32_t *blocks, uint32_t n,
                             float greatest, float *bounds);
        void (*noise_weights)(const struct tdm_noise *noise, const float *logits, uint32_t n, float greatest,
                              float *weights);
};

extern const struct tdm_lanes_table tdm_lanes_plain, tdm_lanes_avx2, tdm_lanes_avx512;

/* The widest that the machine has. */
const struct tdm_lanes_table *tdm_lanes(void);

#endif
