/* Rotation angles from two small tables: see rope.h. */
#include <assert.h>
#include <math.h>

#include "engine/host/rope.h"

#define FINE 256u

/* Dimensions whose pairs are turned. */
static uint32_t n_turned(const struct tdm_rope_recipe *recipe)
{
        return recipe->n_dims - recipe->n_still;
}

/* The pair that turns `turns` times over the context of the first training, as a number between pairs. */
static double yarn_pair(const struct tdm_rope_recipe *recipe, double turns)
{
        return n_turned(recipe) * log(recipe->yarn_n_ctx / (turns * 2 * M_PI)) / (2 * log((double)recipe->base));
}

/* How much of pair i's frequency is left as it was: 1 of fast ones, 0 of slow ones, which are divided by the factor. */
static double yarn_kept(const struct tdm_rope_recipe *recipe, uint32_t i)
{
        double first = yarn_pair(recipe, (double)recipe->yarn_beta_fast),
               last = yarn_pair(recipe, (double)recipe->yarn_beta_slow), share;

        if (recipe->yarn_is_rounded) {
                first = floor(first);
                last = ceil(last);
        }
        first = fmax(first, 0);
        last = fmin(last, n_turned(recipe) - 1);
        share = (i - first) / fmax(last - first, 0.001);
        return 1 - fmin(fmax(share, 0), 1);
}

/* By how much pair i is turned further at each position. */
static double frequency_of(const struct tdm_rope_recipe *recipe, uint32_t i, const float *divisors)
{
        double frequency = pow((double)recipe->base, -2.0 * i / n_turned(recipe)), kept;

        if (divisors)
                frequency /= (double)divisors[i];
        if (recipe->scaling == TDM_ROPE_LINEAR)
                return frequency / (double)recipe->factor;
        kept = yarn_kept(recipe, i);
        return frequency * kept + frequency / (double)recipe->factor * (1 - kept);
}

int tdm_rope_init(struct tdm_rope *rope, const struct tdm_rope_recipe *recipe, uint32_t n_positions,
                  const float *divisors)
{
        uint32_t half = recipe->n_dims / 2, n_coarse = TDM_DIV_UP(n_positions, FINE);
        size_t bytes = (size_t)2 * (n_coarse + FINE) * half * sizeof(double);
        struct tdm_rope r = {
                .half = half, .n_positions = n_positions, .memory = malloc(bytes), .memory_bytes = bytes
        };

        for (uint32_t i = 0; divisors && i < n_turned(recipe) / 2; i++)
                if (!(divisors[i] > 0) || !isfinite(frequency_of(recipe, i, divisors))) {
                        free(r.memory);
                        return -EDOM;
                }
        if (!r.memory)
                return -ENOMEM;
        r.coarse_cos = r.memory;
        r.coarse_sin = r.coarse_cos + (size_t)n_coarse * half;
        r.fine_cos = r.coarse_sin + (size_t)n_coarse * half;
        r.fine_sin = r.fine_cos + (size_t)FINE * half;
        for (uint32_t i = 0; i < half; i++) {
                bool is_still = i >= n_turned(recipe) / 2;
                double frequency = is_still ? 0 : frequency_of(recipe, i, divisors),
                       magnitude = is_still ? 1 : (double)recipe->magnitude;

                for (uint32_t c = 0; c < n_coarse; c++) {
                        r.coarse_cos[(size_t)c * half + i] = magnitude * cos((double)c * FINE * frequency);
                        r.coarse_sin[(size_t)c * half + i] = magnitude * sin((double)c * FINE * frequency);
                }
                for (uint32_t f = 0; f < FINE; f++) {
                        r.fine_cos[(size_t)f * half + i] = cos(f * frequency);
                        r.fine_sin[(size_t)f * half + i] = sin(f * frequency);
                }
        }
        *rope = r;
        return 0;
}

void tdm_rope_deinit(struct tdm_rope *rope)
{
        free(rope->memory);
        *rope = (struct tdm_rope){};
}

void tdm_rope_row(const struct tdm_rope *rope, uint32_t position, float *cos, float *sin)
{
        size_t coarse = (size_t)(position / FINE) * rope->half, fine = (size_t)(position % FINE) * rope->half;

        assert(position < rope->n_positions);
        for (uint32_t i = 0; i < rope->half; i++) {
                double ca = rope->coarse_cos[coarse + i], sa = rope->coarse_sin[coarse + i];
                double cb = rope->fine_cos[fine + i], sb = rope->fine_sin[fine + i];

                cos[i] = (float)(ca * cb - sa * sb);
                sin[i] = (float)(sa * cb + ca * sb);
        }
}
