/* Gumbel noise. See noise.h for why a token's noise is made of its block's, and lanes-noise.h for how. Its keys come
 * from Philox, once a row: they carry seed and position. */
#include "engine/sampling/noise.h"

#include <string.h>

#include "engine/sampling/lanes-table.h"

void tdm_philox_4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
        uint32_t c[4] = { counter[0], counter[1], counter[2], counter[3] };
        uint32_t k0 = key[0], k1 = key[1];

        for (int round = 0; round < 10; round++) {
                uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
                uint32_t c1 = c[1], c3 = c[3];

                c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
                c[1] = (uint32_t)b;
                c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
                c[3] = (uint32_t)a;
                k0 += 0x9e3779b9u;
                k1 += 0xbb67ae85u;
        }
        memcpy(ret, c, sizeof(c));
}

void tdm_noise_init(struct tdm_noise *noise, float temperature, uint64_t seed, uint32_t position)
{
        uint32_t counter[4] = { position, 0, 0, 0 }, key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };

        noise->inverse = 1.0f / TDM_MAX(temperature, TDM_NOISE_MIN_TEMPERATURE);
        tdm_philox_4x32(counter, key, noise->keys);
}

void tdm_noise_scores(const struct tdm_noise *noise, const float *logits, const uint32_t *ids, uint32_t n,
                      float greatest, float *scores)
{
        tdm_lanes()->noise_scores(noise, logits, ids, n, greatest, scores);
}

void tdm_noise_bounds(const struct tdm_noise *noise, const float *maxima, const uint32_t *blocks, uint32_t n,
                      float greatest, float *bounds)
{
        tdm_lanes()->noise_bounds(noise, maxima, blocks, n, greatest, bounds);
}

void tdm_noise_weights(const struct tdm_noise *noise, const float *logits, uint32_t n, float greatest, float *weights)
{
        tdm_lanes()->noise_weights(noise, logits, n, greatest, weights);
}
