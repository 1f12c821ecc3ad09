/* Rotation angles: cos and sin of position · f(i), times a magnitude, as f32, for the pairs i = 0 … n_dims/2 - 1 of a
 * head. f(i) is base^(-2i / n_dims) with what the recipe says of it: a factor, YaRN, divisors, pairs that stay as they
 * are (engine/model/recipe.h).
 *
 * A position is 256 c + f; the tables hold the angles of 256 c and of f in double, and the sum's cosine and sine come
 * from the addition theorem in double, rounded once. So the tables grow with n_ctx / 256 only, and a value is a
 * function of the recipe, the divisors and the absolute position alone. Read-only after init: any thread. */
#ifndef TDM_ENGINE_HOST_ROPE_H
#define TDM_ENGINE_HOST_ROPE_H

#include "engine/step/kv.h"

struct tdm_rope {
        uint32_t half; /* n_dims / 2 */
        uint32_t n_positions;
        double *coarse_cos, *coarse_sin; /* [ceil(n_positions / 256)][half] */
        double *fine_cos, *fine_sin;     /* [256][half] */
        void *memory;
        size_t memory_bytes;
};

/* divisors [n_dims / 2] where the recipe has them, else NULL. -ENOMEM; -EDOM: a divisor is not a positive number. */
int tdm_rope_init(struct tdm_rope *rope, const struct tdm_rope_recipe *recipe, uint32_t n_positions,
                  const float *divisors);
void tdm_rope_deinit(struct tdm_rope *rope);
/* cos, sin [half]; position < n_positions. */
void tdm_rope_row(const struct tdm_rope *rope, uint32_t position, float *cos, float *sin);

#endif
