/* A model loaded on the host device, and its blocks. host-device.c makes and frees it, forward.c runs it. Private to
 * engine/host, and to devices that leave to it what their hardware does not do (npu-worker/). */
#ifndef TDM_ENGINE_HOST_FORWARD_H
#define TDM_ENGINE_HOST_FORWARD_H

#include "engine/device/device.h"
#include "engine/host/attention.h"
#include "engine/host/experts.h"
#include "engine/host/matmul.h"
#include "engine/host/pooling.h"
#include "engine/host/rope.h"
#include "engine/host/sparse.h"

/* Rows that go through a block together: bounds the scratch; a step with more rows is taken in several such tiles. */
#define TDM_HOST_TILE_ROWS TDM_TILE_ROWS
/* Logits held at once, at most (but always one row): 64 rows of Gemma's vocabulary, for which a pass over the output
 * matrix is bound by arithmetic already. */
#define TDM_HOST_LOGITS_BYTES_MAX (UINT64_C(64) << 20)

/* The inputs of matrices. Which form each takes in which precision is one table, in host-device.c. */
enum tdm_host_input {
        TDM_HOST_QKV,
        TDM_HOST_ATTN_OUT,
        TDM_HOST_GATE_UP,
        TDM_HOST_DOWN,
        TDM_HOST_HEAD,
        TDM_HOST_SIDE, /* the small ones of streams.h */
        TDM_HOST_N_INPUTS
};

struct tdm_host_weight {
        struct tdm_matrix matrix;
        enum tdm_act act;
        const float *bias; /* [matrix.rows]; NULL: none */
};

/* Of a gated delta net (delta.h); all zero where a layer has none. */
struct tdm_host_delta_layer {
        struct tdm_host_weight z, alpha, beta;
        const float *dt, *a, *norm;
};

/* A shared expert; all zero where a layer has none. */
struct tdm_host_shared {
        struct tdm_host_weight gate, up, down;
        struct tdm_host_weight scale; /* its gate, of one row; takes f32 */
};

struct tdm_host_layer {
        struct tdm_host_weight q, k, v, o; /* with a short convolution: its first product is q, its second o */
        struct tdm_host_delta_layer delta;
        const float *conv;                     /* [taps][d_model] of a short convolution; else NULL */
        struct tdm_host_weight gate, up, down; /* of a dense FFN; else empty */
        struct tdm_host_weight router;         /* takes f32 */
        struct tdm_experts_layer experts;      /* n_experts 0: none */
        struct tdm_host_shared shared;
        struct tdm_sparse_layer sparse; /* up.data NULL: runs densely */
        const float *sinks;             /* [n_heads]; NULL: none */
        const float *attn_norm, *ffn_norm;
        const float *q_norm, *k_norm, *post_attn_norm, *post_ffw_norm; /* NULL: the recipe has no norm there */
        const float *post_attn_bias, *post_ffw_bias;                   /* of norms of sums; else NULL */
        /* See streams.h; all zero where the recipe has none of it. */
        struct tdm_host_weight laurel_l, laurel_r, altup_router, input_gate, input_proj;
        const float *laurel_norm, *altup_norm, *predict, *correct, *correct_scale, *input_norm;
        float output_scale;
        /* Where experts run beside a dense FFN; else NULL. */
        const float *router_scale, *experts_norm, *post_dense_norm, *post_experts_norm;
};

struct tdm_host_early;

/* A model's weights and rows for streams.c. */
struct tdm_host_streams {
        struct tdm_host_weight altup_proj, altup_unembd, per_layer_proj;
        const float *per_layer_norm;
        uint32_t per_layer_type;   /* of the rows in the step's inputs */
        struct tdm_acts embedded;  /* rows of the embedding, of the tokens in embedded_token */
        uint32_t *embedded_token;  /* [tile_rows]; UINT32_MAX: none */
        float *y;                  /* [tile_rows or logits_rows][d_model] */
        float *folded;             /* [logits_rows][d_model] */
        float *rank, *altup;       /* [tile_rows][laurel_rank], [tile_rows][TDM_MAX_STREAMS] */
        float *input, *input_gate; /* [tile_rows][per_layer_width] */
};

/* Sines and cosines of a tile's rows, for each of the recipe's ropes. */
struct tdm_host_angles {
        uint32_t *position[TDM_MAX_ROPES]; /* [tile_rows]: whose angles rows holds; UINT32_MAX: nobody's */
        float *rows[TDM_MAX_ROPES];        /* [tile_rows][2][n_dims / 2] */
};

/* Rows of an attention block's heads. */
struct tdm_host_heads {
        float *q, *attn; /* [tile_rows][n_heads * head_dim], attn also [tile_rows][d_model] of what a state gives */
        float *k, *v;    /* [tile_rows][n_kv_heads * head_dim] */
};

/* Short convolutions (short-conv.h). */
struct tdm_host_conv {
        float *in;      /* [tile_rows][3 * d_model]; NULL: no layer has one */
        float *kernels; /* of all layers */
        float *zeros;   /* [d_model] */
};

/* Gated delta nets and gated attention (delta.h). */
struct tdm_host_delta {
        float *in, *conv, *z, *alpha, *beta, *kernels, *zeros, *ones;
        uint32_t v_stride;
};

/* What takes the place of attention, or goes around it. */
struct tdm_host_mixers {
        struct tdm_host_conv conv;
        struct tdm_host_delta delta;
};

/* Rows that go to experts. */
struct tdm_host_routed {
        struct tdm_experts *experts; /* NULL: no layer has any */
        float *router; /* [tile_rows][router_stride]: its numbers; at gate_at that of a shared expert's gate */
        size_t router_stride, gate_at;
        float *y; /* [tile_rows][d_model]; NULL: no layer has a dense FFN or a shared expert beside its experts */
};

/* Each thread's scratch for sampling. */
struct tdm_host_sampler {
        uint8_t *scratch; /* [n_threads][stride] */
        size_t stride;
};

/* What makes the first row of a token. All but tokens are encoders'; else NULL. */
struct tdm_host_embedding {
        const struct tdm_weights_tensor *tokens;
        const float *positions;   /* [n_ctx][d_model] */
        const float *types;       /* [n_token_types][d_model], of which the first two are used */
        const float *norm, *bias; /* [d_model] */
};

/* What norms take where a model has no gains, or no biases. */
struct tdm_host_neutral {
        float *ones;  /* [head_dim] */
        float *zeros; /* [d_model] or, if it is more, [head_dim]; NULL: no norm needs them */
};

struct tdm_host_model {
        struct tdm_pool *pool;             /* of the device; in a small step the one below */
        struct tdm_pool *alone;            /* of the device: the caller is its only thread */
        const struct tdm_kernels *kernels; /* of the device */
        const uint8_t *weights;
        struct tdm_hparams hp;
        struct tdm_recipe recipe;
        struct tdm_kv_geometry kv;
        uint8_t *kv_base; /* NULL: no attention blocks here */

        struct tdm_host_embedding embedding;
        struct tdm_host_weight output;
        const float *output_norm;
        struct tdm_host_layer *layers; /* [n_layers] */
        struct tdm_host_streams streams;

        /* Scratch, allocated at load. */
        uint32_t tile_rows, logits_rows, logits_stride;
        struct tdm_acts acts[TDM_HOST_N_INPUTS];
        struct tdm_attention *attention;
        struct tdm_rope rope[TDM_MAX_ROPES]; /* of the recipe */
        struct tdm_host_angles angles;
        struct tdm_host_heads heads;
        struct tdm_host_mixers mixers;
        float *y;                  /* [tile_rows][d_model]: a block's output before its norm */
        float *gate;               /* [tile_rows][d_ff]; NULL: no layer is sparse */
        float *up;                 /* the same; NULL: no layer is sparse, and FFNs have a gate */
        struct tdm_sparse *sparse; /* NULL: no layer is run sparsely */
        struct tdm_panels panels;  /* memory NULL: all matrices lie in panels */
        struct tdm_host_neutral neutral;
        struct tdm_host_early *early; /* NULL: every layer has keys of its own */
        struct tdm_host_routed routed;
        float *row; /* [n_threads][row_stride]: a row on its way into acts */
        size_t row_stride;
        float *logits;               /* [logits_rows][logits_stride] */
        uint64_t row_macs, key_macs; /* what a row needs, and with each position that it looks at */
        struct tdm_steps_limits limits;
        struct tdm_pooler *pooling; /* in place of head and sample; NULL: the model makes text */
        struct tdm_host_sampler sampler;
        size_t scratch_bytes;
        _Atomic uint64_t n_saturated;
};

/* The embedding of a row's type: documents of pairs are of the second one, where the model has it. */
static inline const float *tdm_host_row_type(const struct tdm_host_model *model, const struct tdm_step *step,
                                             uint32_t row)
{
        const struct tdm_step_seq *seq = &step->seqs[step->rows[row].seq];
        bool is_second = seq->second_from > 0 && row - seq->first_row >= seq->second_from;

        return model->embedding.types + (is_second && model->recipe.n_token_types > 1 ? model->hp.d_model : 0);
}

/* Each runs one block on all rows of the step. hidden [n_rows][residual_width], in place; head and sample only read
 * it. */
void tdm_host_embed(struct tdm_host_model *model, const struct tdm_step *step, float *hidden);
void tdm_host_attention(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, float *hidden);
/* The middle of an attention block, for a device that makes its matrix products elsewhere: model->heads.q, k and v of
 * rows first … first + n - 1 (n <= tile_rows), as the products with their biases leave them, to model->heads.attn; keys
 * and values go into the cache. */
void tdm_host_attend(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                     uint32_t n);
/* Ends a block: h += y, or its norm where the block has a gain. y, h [d_model]. */
void tdm_host_add(const struct tdm_host_model *model, const float *y, const float *gain, float *h);
void tdm_host_ffn(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, float *hidden);
/* The logits stay in the model until sample. Where they would not fit (logits_rows), sample makes them tile by tile. */
void tdm_host_head(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden);
/* results [n_logits]. -EDOM where a row's logits hold a NaN: the error names it. */
int tdm_host_sample(struct tdm_host_model *model, const struct tdm_step *step, const float *hidden,
                    struct tdm_result *results, struct tdm_error *err);

#endif
