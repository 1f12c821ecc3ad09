/* Rotation angles: cos and sin of position · base^(-2i / head_dim), i = 0 … head_dim/2 - 1, as f32.
 *
 * A position is 256 c + f; the tables hold the angles of 256 c and of f in double, and the sum's cosine and sine come
 * from the addition theorem in double, rounded once. So the tables grow with n_ctx / 256 only, and a value is a
 * function of base, factor, head_dim and the absolute position alone. Read-only after init: any thread. */
#ifndef TDM_ENGINE_HOST_ROPE_H
#define TDM_ENGINE_HOST_ROPE_H

#include "common/error.h"

struct tdm_rope {
        uint32_t half; /* head_dim / 2 */
        uint32_t n_positions;
        double *coarse_cos, *coarse_sin; /* [ceil(n_positions / 256)][half] */
        double *fine_cos, *fine_sin;     /* [256][half] */
        void *memory;
        size_t memory_bytes;
};

/* Positions are divided by factor. -ENOMEM. */
int tdm_rope_init(struct tdm_rope *rope, uint32_t head_dim, uint32_t n_positions, double base, double factor);
void tdm_rope_deinit(struct tdm_rope *rope);
/* cos, sin [half]; position < n_positions. */
void tdm_rope_row(const struct tdm_rope *rope, uint32_t position, float *cos, float *sin);

#endif
