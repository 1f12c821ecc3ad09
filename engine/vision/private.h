/* Shared by tower-weights.c, which copies weights from the file, and tower.c, which runs. */
#ifndef TDM_ENGINE_VISION_PRIVATE_H
#define TDM_ENGINE_VISION_PRIVATE_H

#include "engine/vision/tower.h"

struct tower_matrix {
        struct tdm_matrix matrix; /* cols are padded to a multiple of 32, with zeros */
        enum tdm_act act;
        float *bias; /* NULL: none */
};

struct tower_norm {
        float *gain, *bias;
};

struct tower_layer {
        struct tower_norm before_attention, before_ffn;
        struct tower_matrix q, k, v, out, up, down;
};

/* Pieces of memory that are freed together. */
struct tower_memory {
        void **pieces;
        size_t n, bytes;
};

struct tower_weights {
        struct tower_memory memory;
        struct tower_matrix patch, projection;
        float *positions; /* [grid * grid][d_model] */
        struct tower_norm last;
        float *soft_gain;
        struct tower_layer *layers; /* [n_layers] */
};

/* Zeros, 64-byte aligned. NULL: no memory. */
void *tower_take(struct tower_memory *memory, size_t bytes);
void tower_memory_deinit(struct tower_memory *memory);
int tower_weights_load(struct tower_weights *ret, const struct tdm_projector *projector, const struct tdm_gguf *gguf,
                       enum tdm_act act, struct tdm_error *err);
void tower_weights_deinit(struct tower_weights *weights);

#endif
