/* Rotation angles from two small tables: see rope.h. */
#include <assert.h>
#include <math.h>

#include "engine/host/rope.h"

#define FINE 256u

int tdm_rope_init(struct tdm_rope *rope, uint32_t head_dim, uint32_t n_positions, double base, double factor)
{
        uint32_t half = head_dim / 2, n_coarse = TDM_DIV_UP(n_positions, FINE);
        size_t bytes = (size_t)2 * (n_coarse + FINE) * half * sizeof(double);
        struct tdm_rope r = {
                .half = half, .n_positions = n_positions, .memory = malloc(bytes), .memory_bytes = bytes
        };

        if (!r.memory)
                return -ENOMEM;
        r.coarse_cos = r.memory;
        r.coarse_sin = r.coarse_cos + (size_t)n_coarse * half;
        r.fine_cos = r.coarse_sin + (size_t)n_coarse * half;
        r.fine_sin = r.fine_cos + (size_t)FINE * half;
        for (uint32_t i = 0; i < half; i++) {
                double frequency = pow(base, -2.0 * i / head_dim) / factor;

                for (uint32_t c = 0; c < n_coarse; c++) {
                        r.coarse_cos[(size_t)c * half + i] = cos((double)c * FINE * frequency);
                        r.coarse_sin[(size_t)c * half + i] = sin((double)c * FINE * frequency);
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
