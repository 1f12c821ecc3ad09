/* The passes over all logits of a row. Private to this folder. */
#ifndef TDM_ENGINE_SAMPLING_SCAN_H
#define TDM_ENGINE_SAMPLING_SCAN_H

#include <stdint.h>

struct tdm_scan_functions {
        /* Of each block of TDM_SAMPLE_SUM_BLOCK, the sum of e^(logit - max). */
        void (*sum_exp)(const float *logits, uint32_t n, float max, float *block_sum);
        /* Fills in the greatest of each block of TDM_SAMPLE_MAX_BLOCK. Returns the greatest of all, -inf where none is
         * finite, NAN when a logit is NaN or +inf. */
        float (*find_maxima)(const float *logits, uint32_t n, float *block_max);
        /* The same of maxima that were found elsewhere, where NAN stands for a block with such a logit. */
        float (*greatest_of)(const float *block_max, uint32_t n_blocks);
};

/* The widest that the machine has; all give the same bits. */
const struct tdm_scan_functions *tdm_scan_functions(void);

#endif
