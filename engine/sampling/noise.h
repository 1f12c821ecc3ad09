/* The noise of a draw. The largest of (logit - greatest) / temperature + noise is distributed as the softmax, where the
 * noise of each token is an independent Gumbel number: noise = -ln E, and E is exponentially distributed.
 *
 * It is counter-based: a function of (seed, position, token) only. A replayed, batched or moved row draws the same
 * token, and two models that see the same position draw with the same noise.
 *
 * A block is 64 tokens, and its greatest noise is known before any of them is looked at. The least of 64 exponential
 * numbers is an exponential number / 64, it belongs to each of the 64 with the same probability, and what the others
 * have beyond it is exponential again. So E of a token is least(block) + (0 if it is the token with the least, else its
 * own number). Blocks that cannot hold the largest are skipped.
 *
 * Exponential numbers are made of 32 bits, symmetric about one half and never 0: noise is from -3.2 to 27.1.
 *
 * gpu-worker/vulkan/shaders/sampling/gather.comp computes bounds and scores by the same operations: additions and
 * multiplications of floats in one order, never contracted. So both choose the same token from the same logits. Plain
 * C, any thread. */
#ifndef TDM_ENGINE_SAMPLING_NOISE_H
#define TDM_ENGINE_SAMPLING_NOISE_H

#include "common/error.h"

#define TDM_NOISE_BLOCK 64u
/* Bounds are above every score by at least the rounding of the logarithm. */
#define TDM_NOISE_SLACK 0x1p-10f
/* Lower temperatures count as this one: distances between logits stay finite when multiplied by its inverse. */
#define TDM_NOISE_MIN_TEMPERATURE 1e-6f

struct tdm_noise {
        float inverse; /* of the temperature */
        uint32_t keys[4];
};

void tdm_noise_init(struct tdm_noise *noise, float temperature, uint64_t seed, uint32_t position);

/* scores [n]: (logits[i] - greatest) * inverse + noise of token ids[i]. Logits are finite or -inf. */
void tdm_noise_scores(const struct tdm_noise *noise, const float *logits, const uint32_t *ids, uint32_t n,
                      float greatest, float *scores);
/* bounds [n]: what no score in block blocks[i] is above, where maxima[i] is the greatest of its logits. blocks NULL:
 * block i. Both arrays may be one. */
void tdm_noise_bounds(const struct tdm_noise *noise, const float *maxima, const uint32_t *blocks, uint32_t n,
                      float greatest, float *bounds);
/* weights [n]: e^((logits[i] - greatest) * inverse) for logits up to greatest, with the error of exp_negative() in
 * lanes.h. */
void tdm_noise_weights(const struct tdm_noise *noise, const float *logits, uint32_t n, float greatest, float *weights);

/* The generator of the keys: Philox 4x32-10, Salmon et al. 2011, known-answer tested. */
void tdm_philox_4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

#endif
