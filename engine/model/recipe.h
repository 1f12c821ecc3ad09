/* The recipe of a model: which operations its layers consist of. An architecture is such data; a device branches on it
 * when it loads a model, and for each block, never for each number.
 *
 * It travels beside the sizes (hparams.h) in the head of the weights segment. Plain data without pointers: the same
 * bytes in every process. A recipe can say more than a device computes: tdm_recipe_check_device() refuses at load what
 * a device does not do, by the feature's name. Operations for which there is no field here are refused when a file is
 * described (model.h).
 *
 * A layer, with x the residual, d = d_model, W a matrix, RMS(x) = x / sqrt(mean(x²) + norm_eps) times a gain where
 * there is one:
 *
 *   h = RMS(x)                                  TDM_NORM_ATTN_BEFORE
 *   q, k, v = Wq h, Wk h, Wv h (+ biases); for each head: RMS(q), RMS(k), RMS(v)     TDM_NORM_Q, _K, _V
 *   q and k are turned by RoPE; scores = query_scale q·k, soft-capped; softmax (+ sink); o = sum of v
 *   (a query at position p is also multiplied by 1 + query_growth ln(1 + floor(p / query_growth_every)))
 *   x = x + RMS(Wo o)                           TDM_NORM_ATTN_AFTER
 *   f = RMS(x)                                  TDM_NORM_FFN_BEFORE
 *   x = x + RMS(Wdown (act(Wgate f) * Wup f))   TDM_NORM_FFN_AFTER
 *
 * With TDM_NORMS_CENTERED, the norms before blocks, the last one and those of queries and keys take the mean off first.
 * With TDM_RESIDUAL_PARALLEL attention and FFN read the same x, and their results are added to it together.
 *
 * A short convolution takes the place of attention (TDM_MIXER_SHORT_CONV), element by element over a row:
 *
 *   b, c, u = the three thirds of Win h; s_t = b_t u_t; o = c_t (sum over j of k_j s_(t - taps + 1 + j))
 *   x = x + Wout o; s before the first row is 0. The layer's state is the last taps - 1 of s.
 *
 * A gated delta net takes it too (TDM_MIXER_GATED_DELTA). Of h: u for the heads of queries, keys and values below each
 * other, z, and for each head of values a and b:
 *
 *   c_t = silu(sum over j of k_j u_(t - taps + 1 + j)); q and k of length 1 for each head, q by 1 / sqrt(size)
 *   g = exp(A log(1 + exp(a + dt))), e = sigmoid(b) (v - g Mᵀk); M = g M + k eᵀ; o = Mᵀq; M before the first row is 0
 *   x = x + Wout (RMS(o) silu(z)); head j of values has the queries and keys of head j modulo their number, or, with
 *   delta_in_groups, of head j / (heads of values / heads of keys)
 *   The state is the last taps - 1 of u, then M of each head.
 *
 * Experts e take the place of the dense FFN: the sum of w_e FFN_e(f), with w of a router's numbers z = Wr f. With
 * TDM_ROUTER_SIGMOID s = sigmoid(z) and w_e = s_e / (sum of s of the chosen + 1e-6); chosen are the largest s_e + b_e.
 *
 * Where a dense FFN runs beside them (has_dense_beside), every norm has a gain of its own and every expert a scale s_e:
 *
 *   w_e = s_e router(Wr RMS(x) / sqrt(d)), y = RMS(FFN(f)) + RMS(sum of w_e FFN_e(RMS(x)))
 *   x = x + RMS(y)                              TDM_NORM_FFN_AFTER
 *
 * A shared expert is one that every row uses beside those that it chose. It has neurons of its own (d_shared), and no
 * scale, or that of a gate, of a vector r:
 *
 *   y = sum of w_e FFN_e(f) + s FFN_shared(f), s = 1 or sigmoid(r·f)
 *
 * The head: logit_scale Woutput RMS(x), soft-capped. A model with a pooling has none: RMS(x) of a text's rows is made
 * one vector v, then v = Wdense3 (Wdense2 v) where there is such a pair, then v is brought to the length 1.
 *
 * A model with labels makes of v how well a document answers a query, or of which class a text is, and no vector. With
 * z of n_labels numbers:
 *
 *   v = a(Wcls v + b), where label_dense is there; z = Wclsout v (+ b); the score is z where there is one label, and
 *   softmax(z) of `label` where there are two. Where tells_classes, all of z is the result
 *
 * With TDM_NORMS_OF_SUMS, LN(x) = (x - mean(x)) / sqrt(variance(x) + norm_eps) times a gain, plus a bias:
 *
 *   x0 = LN(token's row + position's row + the type's row); a token is of the first type, and of the second one in the
 *   document of a pair
 *   x = LN(x + Wo o)                            TDM_NORM_ATTN_AFTER
 *   x = LN(x + Wdown gelu(Wup x))               TDM_NORM_FFN_AFTER, with TDM_FFN_GELU
 *
 * An input of the layer's own (has_input), with e_l what of a second embedding's row of the token is layer l's, of
 * width P, and x0 the token's row of the first embedding, scaled:
 *
 *   p = (RMS(Wp_l x0 / sqrt(d)) + sqrt(P) e_l) / sqrt 2
 *   x = x + RMS(Wproj (gelu(Wgate x) * p)), then x = output_scale x
 *
 * TDM_RESIDUAL_ALTUP keeps n_streams residuals h_i. With router(v) = tanh(Wr RMS(v) / d) and a the active stream:
 *
 *   h_0 = x0; h_i = W_i x0, made as long as x0
 *   h_i = h_i + sum over j of c_ij h_j, c = Wc router(h_a)                            before attention, which reads h_a
 *   m = (h_a + RMS(Wo o) + z + RMS(Wlr Wll z)) / sqrt 2, z = RMS(h_a)                 after it: x of the FFN
 *   h_i = h_i + (1 + Wk router(x)) (x - h_a)                                          after the FFN
 *   the layer's input, of h_a times a gain, is added to h_1 and those behind it
 *   the head reads the mean of h_0 and of U_i h_i, made as long as h_0. */
#ifndef TDM_ENGINE_MODEL_RECIPE_H
#define TDM_ENGINE_MODEL_RECIPE_H

#include "engine/model/hparams.h"

#define TDM_MAX_ROPES 4u
#define TDM_MAX_STREAMS 8u
#define TDM_MAX_EXPERTS 1024u
#define TDM_MAX_EXPERTS_USED 64u /* real models use up to 10 */
#define TDM_ROPE_NONE UINT32_MAX
#define TDM_MAX_TOKEN_TYPES 1024u /* real models have 1 and 2 */

/* Where RMS norms stand. All but V have gains in the file. */
enum tdm_norm {
        TDM_NORM_ATTN_BEFORE = 1 << 0,
        TDM_NORM_ATTN_AFTER = 1 << 1,
        TDM_NORM_Q = 1 << 2, /* of each head, before RoPE */
        TDM_NORM_K = 1 << 3,
        TDM_NORM_V = 1 << 4, /* of each head, no gain */
        TDM_NORM_FFN_BEFORE = 1 << 5,
        TDM_NORM_FFN_AFTER = 1 << 6,
        /* Those of Q and K, which both are there, otherwise: */
        TDM_NORM_QK_WIDE = 1 << 7, /* one of all heads together */
        TDM_NORM_QK_LATE = 1 << 8, /* behind RoPE */
        TDM_NORM_QK_EACH = 1 << 9, /* each head has gains of its own */
        TDM_NORM_ALL = (1 << 10) - 1
};

/* Which products have a bias added. */
enum tdm_bias {
        TDM_BIAS_Q = 1 << 0,
        TDM_BIAS_K = 1 << 1,
        TDM_BIAS_V = 1 << 2,
        TDM_BIAS_O = 1 << 3,
        TDM_BIAS_GATE = 1 << 4,
        TDM_BIAS_UP = 1 << 5,
        TDM_BIAS_DOWN = 1 << 6,
        TDM_BIAS_ROUTER = 1 << 7,
        TDM_BIAS_CHOICE = 1 << 8, /* of what experts are chosen by, not of their weights; with TDM_ROUTER_SIGMOID */
        TDM_BIAS_ALL = (1 << 9) - 1
};

/* Which two numbers of a head make a pair. Rows of matrices that make neighbours, or of which a part is turned, are
 * packed in the order of halves of whole heads, and the recipe in the weights segment says so
 * (engine/weights/weights.h): devices see those alone. */
enum tdm_rope_style {
        TDM_ROPE_HALVES = 1,    /* i and i + n_dims / 2 */
        TDM_ROPE_NEIGHBOURS = 2 /* 2 i and 2 i + 1 */
};
enum tdm_rope_scaling { TDM_ROPE_LINEAR = 1, TDM_ROPE_YARN = 2 };
/* By which tensor angles are divided. Some files have two: one for contexts longer than that of the first training. */
enum tdm_rope_divisors {
        TDM_DIVISORS_NONE = 0,
        TDM_DIVISORS_FREQS = 1, /* rope_freqs */
        TDM_DIVISORS_LONG = 2,  /* rope_factors_long */
        TDM_DIVISORS_SHORT = 3  /* rope_factors_short */
};

/* Pair i of a query or key at position p is turned by the angle p / factor * base^(-2 i / (n_dims - n_still)), divided
 * by the i-th number of a tensor where has_divisors names one. YaRN (Peng and others, 2023) applies factor to low
 * frequencies only. */
struct tdm_rope_recipe {
        uint32_t style;        /* enum tdm_rope_style */
        uint32_t n_dims;       /* of a head that are turned, from the first on; even */
        uint32_t scaling;      /* enum tdm_rope_scaling */
        uint32_t has_divisors; /* enum tdm_rope_divisors */
        float base;
        float factor;    /* 1: none */
        float magnitude; /* cos and sin are multiplied by it; 1: not */
        /* YaRN; all zero where scaling is linear. A pair's turns are counted over yarn_n_ctx positions. */
        float yarn_beta_fast; /* a pair with at least this many turns is not scaled */
        float yarn_beta_slow; /* a pair with at most this many turns is scaled in full */
        uint32_t yarn_n_ctx;  /* context of the model's first training */
        /* The pairs between which it is scaled in part are whole numbers, rounded outward. */
        uint32_t yarn_is_rounded;
        /* How many of n_dims stay as they are; even. They belong to the last pairs. RoPE of a part of each head is
         * packed in this way: as pairs of the whole head, of which the last ones are not turned. */
        uint32_t n_still;
};

/* The one list of activations beside GELU. Each is a feature that all devices have; its words name it in messages.
 * X(name, number, words, largest): what the activation leaves of gate g and up u is at most `largest`. 0: it is at most
 * |g| |u|. INFINITY: it may be more than that.
 * Clamped SwiGLU (gpt-oss): g = min(g, 7), u = clamp(u, ±7): g sigmoid(1.702 g) (u + 1). */
#define TDM_ACTIVATIONS(X)                                                                                             \
        X(SILU, 2, "SiLU", 0)                                                                                          \
        X(SWIGLU_CLAMPED, 3, "clamped SwiGLU", 56)

#define TDM_ACTIVATION_VALUE(name, number, words, largest) TDM_ACTIVATION_##name = (number),
enum tdm_activation { TDM_ACTIVATIONS(TDM_ACTIVATION_VALUE) TDM_ACTIVATION_GELU_TANH = 1 };

/* From a router's numbers z to the weights of the experts that are used. */
enum tdm_router {
        TDM_ROUTER_NONE = 0,
        TDM_ROUTER_SOFTMAX_CHOSEN = 1, /* softmax over the chosen ones, which are the largest */
        TDM_ROUTER_SOFTMAX_ALL = 2,    /* softmax over all, not scaled to the sum 1 */
        TDM_ROUTER_SIGMOID = 3         /* sigmoid of each, divided by the sum of the chosen ones; as above */
};

/* What a layer does in its attention block. */
enum tdm_mixer {
        TDM_MIXER_ATTENTION = 0,  /* keys and values of all positions, or of a window of them */
        TDM_MIXER_SHORT_CONV = 1, /* a causal convolution of each number with a few rows before, between two gates */
        TDM_MIXER_GATED_DELTA = 2 /* a matrix for each head, corrected by each row */
};
#define TDM_MAX_CONV_TAPS 8u /* real models have 3 and 4 */

struct tdm_layer_recipe {
        uint32_t mixer;  /* enum tdm_mixer */
        uint32_t norms;  /* enum tdm_norm, several */
        uint32_t biases; /* enum tdm_bias, several; with experts those of gate, up and down are the experts' */
        uint32_t rope;   /* which of the recipe's; TDM_ROPE_NONE: positions do not matter */
        float query_scale;
        float attention_softcap; /* scores become c tanh(s / c); 0: not */
        uint32_t has_sinks;      /* a number for each head joins the softmax's sum */
        uint32_t v_is_k;         /* no Wv: v is Wk h */
        uint32_t activation;     /* enum tdm_activation */
        uint32_t is_sparse;      /* of gate's outputs, what is below mean + sparsity_scale * deviation becomes zero */
        float sparsity_scale;    /* 0 where it is not sparse */
        /* Experts; all zero: none. */
        uint32_t n_experts, n_experts_used;
        uint32_t d_expert;         /* neurons of an expert; a multiple of 32 */
        uint32_t router;           /* enum tdm_router */
        uint32_t has_dense_beside; /* a dense FFN runs beside the experts, as above */
        uint32_t gate_up_is_one;   /* an expert's gate and up are one tensor; only beside a dense FFN */
        uint32_t d_shared;         /* neurons of the shared expert; a multiple of 32; 0: there is none */
        uint32_t has_shared_gate;  /* what it gives is scaled by its gate */
        /* Where attention is not causal: a row sees those at most so far from it, on both sides; 0: all. */
        uint32_t reach;
        uint32_t has_input;        /* takes part in the per-layer inputs */
        uint32_t has_output_scale; /* the residual is multiplied by a number at the layer's end */
        uint32_t has_gate;         /* what attention gives is multiplied by sigmoid of a gate; Wq makes of each head the
                                      query, then the gate */
        /* Of a gated delta net: heads of keys, of values, and the numbers of each. */
        uint32_t delta_k_heads, delta_v_heads, delta_size;
        uint32_t delta_in_groups; /* heads of values with the same head of keys lie beside each other, not in turn */
        uint32_t conv_taps;       /* rows that a convolution reads, its own the last; 0: the mixer has none */
};

enum tdm_residual {
        TDM_RESIDUAL_PLAIN = 1,   /* x, as above */
        TDM_RESIDUAL_ALTUP = 2,   /* Gemma 3n: several streams, predicted and corrected around each layer, as above */
        TDM_RESIDUAL_PARALLEL = 3 /* behind x a row carries x with attention's result added, from there to the FFN */
};

/* How the rows of a text become its vector. */
enum tdm_pooling {
        TDM_POOLING_NONE = 0, /* the model makes text */
        TDM_POOLING_MEAN = 1,
        TDM_POOLING_FIRST = 2, /* the row of the first position */
        TDM_POOLING_LAST = 3
};

/* What stands before the head of a model with labels: a matrix with this activation a. */
enum tdm_label_dense {
        TDM_LABEL_DENSE_NONE = 0,
        TDM_LABEL_DENSE_TANH = 1, /* BERT's pooler, RoBERTa's classifier.dense */
        TDM_LABEL_DENSE_RELU = 2  /* DistilBERT's pre_classifier */
};

/* What the norms are, and of what. */
enum tdm_norm_kind {
        TDM_NORMS_RMS = 0, /* of what goes into a block and of what comes out, and one at the end */
        /* LayerNorm with a bias: of the embedding's rows, and of the residual behind each block */
        TDM_NORMS_OF_SUMS = 1,
        TDM_NORMS_CENTERED = 2 /* LayerNorm without a bias, where the others have RMS norms; none behind blocks */
};

/* The FFN of a layer without experts. */
enum tdm_ffn {
        TDM_FFN_GATED = 0,
        TDM_FFN_GELU = 1 /* no gate: Wdown gelu(Wup f), gelu(x) = x (1 + erf(x / sqrt(2))) / 2 */
};

struct tdm_recipe {
        char architecture[32]; /* as files call it; ends in a NUL */
        float norm_eps;
        float embed_scale;           /* rows of the embedding are multiplied by it */
        float logit_softcap;         /* logits become c tanh(l / c); 0: not */
        float logit_scale;           /* logits are multiplied by it; 0: not. Packed into the gains of the last norm */
        float query_growth;          /* of queries with their position, as above; 0: none */
        uint32_t query_growth_every; /* positions; 0 where queries do not grow */
        uint32_t residual;           /* enum tdm_residual */
        uint32_t n_streams;          /* 1 where it is plain */
        uint32_t active_stream;
        uint32_t laurel_rank;      /* of the low-rank branch beside attention; 0: none */
        uint32_t per_layer_width;  /* of a token's own input to each layer; 0: none */
        uint32_t pooling;          /* enum tdm_pooling */
        uint32_t dense_width;      /* of what is between the two matrices behind the pooling; 0: there are none */
        uint32_t n_labels;         /* numbers of the head behind the pooling; 0: it makes vectors, or text */
        uint32_t tells_classes;    /* the head tells n_labels classes of texts apart; else it ranks, and has 1 or 2 */
        uint32_t label;            /* which of a reranker's two is the one of a document that answers; else 0 */
        uint32_t label_dense;      /* enum tdm_label_dense */
        uint32_t is_bidirectional; /* attention: rows see those behind them too; only with a pooling */
        uint32_t norm_kind;        /* enum tdm_norm_kind */
        uint32_t ffn;              /* enum tdm_ffn; without a gate the layers' activation is TDM_ACTIVATION_GELU_TANH */
        uint32_t has_positions;    /* rows of an embedding of positions are added to those of the tokens */
        uint32_t n_token_types;    /* rows of an embedding of types, one of which is added too; 0: there is none */
        uint32_t n_ropes;
        struct tdm_rope_recipe ropes[TDM_MAX_ROPES];    /* all zero from n_ropes on */
        struct tdm_layer_recipe layers[TDM_MAX_LAYERS]; /* all zero from n_layers on */
};

/* Goes up with every change of what a recipe's bytes mean: it is part of TDM_WEIGHTS_ABI. */
#define TDM_RECIPE_LAYOUT 11u
static_assert(sizeof(struct tdm_rope_recipe) == 48 && sizeof(struct tdm_layer_recipe) == 112 &&
                      sizeof(struct tdm_recipe) == 124 + 48 * TDM_MAX_ROPES + 112 * TDM_MAX_LAYERS,
              "part of the weights segment's layout");

/* Numbers that a row carries from block to block: its streams; behind them, where the residual is not plain, what lies
 * between attention and FFN. */
static inline uint32_t tdm_recipe_residual_width(const struct tdm_recipe *recipe, uint32_t d_model)
{
        return (recipe->n_streams + (recipe->residual != TDM_RESIDUAL_PLAIN)) * d_model;
}

/* A vector depends on all rows of the text in such a way that they have to be in one step. */
static inline bool tdm_recipe_is_whole(const struct tdm_recipe *recipe)
{
        return recipe->is_bidirectional || recipe->pooling == TDM_POOLING_MEAN || recipe->pooling == TDM_POOLING_FIRST;
}

/* Width of what a gated delta net convolves: its queries, keys and values. */
static inline uint32_t tdm_recipe_delta_width(const struct tdm_layer_recipe *l)
{
        return (2 * l->delta_k_heads + l->delta_v_heads) * l->delta_size;
}
/* What a layer keeps of a text. */
static inline uint32_t tdm_recipe_n_state(const struct tdm_layer_recipe *l, uint32_t d_model)
{
        return l->mixer == TDM_MIXER_SHORT_CONV  ? (l->conv_taps - 1) * d_model :
               l->mixer == TDM_MIXER_GATED_DELTA ? (l->conv_taps - 1) * tdm_recipe_delta_width(l) +
                                                           l->delta_v_heads * l->delta_size * l->delta_size :
                                                   0;
}

/* A layer keeps a state of a sequence: it has no positions, so it cannot be cut back (docs/state.md). */
bool tdm_recipe_has_state(const struct tdm_recipe *recipe, const struct tdm_hparams *hp);

/* Steps of the model may have rows of pictures: what they leave out is the token's embedding alone, and every layer
 * makes keys and values by two matrices of its own. Both have passed their checks. */
bool tdm_recipe_takes_pictures(const struct tdm_recipe *recipe, const struct tdm_hparams *hp);

/* Checks every field's range and that the fields fit each other and the sizes. hp has passed tdm_hparams_check().
 * Workers run it on what they were handed. TDM_E_BAD_MODEL. */
int tdm_recipe_check(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err);

/* The share of the model's matrices that a step of n_rows rows reads. With experts it grows with the rows: one of
 * n_rows rows wants a given expert with the probability 1 - (1 - used / experts)^n_rows, if routers favour none.
 * Without experts it is 1. Both have passed their checks. */
double tdm_recipe_share_read(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t n_rows);

/* Memory that a device of this processor takes for the model's steps of max_rows rows beside the segments, at most, but
 * for what is bounded whatever the sizes are (64 MiB of logits, 16 MiB of partial sums). Both have passed their checks.
 */
#define TDM_TILE_ROWS 256u /* this many rows of a step are computed at once */
uint64_t tdm_recipe_scratch_bytes(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t max_rows);

/* What a model may ask of a device beyond what every device does, which is Gemma 3: norms before and after attention
 * and FFN and of queries and keys, GELU, a plain residual, RoPE by halves of whole heads, layers of the same sizes with
 * one window or none. X(name, all, words): all is 1 where every device that runs whole models computes it; of the
 * others each device has a list. The words name it in messages. Activations are features, too. */
#define TDM_FEATURES(X)                                                                                                \
        X(NO_NORM_BEFORE, 1, "layers without a norm before attention or FFN")                                          \
        X(NO_NORM_AFTER, 1, "layers without a norm after attention or FFN")                                            \
        X(NO_QK_NORM, 1, "queries or keys without a norm")                                                             \
        X(QK_NORM_WIDE, 1, "one norm of all heads of queries or keys")                                                 \
        X(QK_NORM_LATE, 1, "norms of queries and keys behind RoPE")                                                    \
        X(QK_NORM_EACH, 0, "norms of queries and keys with gains of each head's own")                                  \
        X(V_NORM, 1, "values with a norm")                                                                             \
        X(BIASES, 1, "biases")                                                                                         \
        X(NO_ROPE, 1, "layers without RoPE")                                                                           \
        X(ROPE_NEIGHBOURS, 0, "RoPE of neighbouring dimensions")                                                       \
        X(ROPE_PARTIAL, 0, "RoPE of a part of each head")                                                              \
        X(ROPE_STILL, 1, "RoPE that leaves the last pairs of each head as they are")                                   \
        X(ROPE_DIVISORS, 1, "RoPE with a divisor for each pair")                                                       \
        X(ROPE_YARN, 1, "YaRN")                                                                                        \
        X(ROPE_MAGNITUDE, 1, "RoPE with a magnitude")                                                                  \
        /* two of the full layers, or two of the sliding ones, turn differently */                                     \
        X(ROPE_BY_LAYER, 1, "RoPE that differs between layers of one kind")                                            \
        X(ATTENTION_SOFTCAP, 1, "soft-capped attention")                                                               \
        X(SINKS, 1, "attention sinks")                                                                                 \
        X(V_IS_K, 1, "values that are the keys")                                                                       \
        X(SHARED_KV, 1, "layers that share keys and values")                                                           \
        X(HEADS_BY_LAYER, 1, "heads that differ between layers") /* numbers or sizes of heads */                       \
        X(FF_BY_LAYER, 1, "FFN widths that differ between layers")                                                     \
        X(WINDOW_BY_LAYER, 0, "attention windows that differ between layers") /* two different windows */              \
        X(SPARSITY, 1, "sparse activations")                                                                           \
        X(EXPERTS, 1, "experts")                                                                                       \
        X(DENSE_BESIDE, 1, "experts beside a dense FFN")                                                               \
        X(SHARED_EXPERT, 0, "shared experts")                                                                          \
        X(ROUTER_SIGMOID, 0, "experts chosen by a sigmoid")                                                            \
        X(STREAMS, 1, "a residual of several streams")                                                                 \
        X(LAUREL, 1, "a low-rank branch beside attention")                                                             \
        X(PER_LAYER_INPUT, 1, "an input for each layer")                                                               \
        X(OUTPUT_SCALE, 1, "scaled outputs of layers")                                                                 \
        X(QUERY_GROWTH, 1, "queries that grow with their position")                                                    \
        X(PARALLEL, 1, "attention and FFN of the same rows")                                                           \
        X(CENTERED, 1, "norms that take the mean off")                                                                 \
        X(LOGIT_SCALE, 0, "scaled logits")                                                                             \
        X(POOLING, 1, "vectors of texts")                                                                              \
        X(BIDIRECTIONAL, 1, "attention that is not causal")                                                            \
        X(SHORT_CONV, 0, "short convolutions")                                                                         \
        X(GATED_DELTA, 0, "gated delta nets")                                                                          \
        X(ATTENTION_GATE, 0, "gated attention")                                                                        \
        X(ODD_HEADS, 0, "heads whose values together are no multiple of 32")                                           \
        X(NORMS_OF_SUMS, 0, "LayerNorm behind each block")                                                             \
        X(FFN_GELU, 0, "FFNs without a gate")                                                                          \
        X(POSITIONS, 0, "embeddings of positions or of types")                                                         \
        /* no recipe asks for it, but the limits of steps (engine/step/step.h) */                                      \
        X(PICTURES, 0, "pictures")

#define TDM_FEATURE_NUMBER(name, all, words) TDM_FEATURE_##name,
#define TDM_ACTIVATION_FEATURE(name, number, words, largest) TDM_FEATURE_##name,
enum tdm_feature { TDM_FEATURES(TDM_FEATURE_NUMBER) TDM_ACTIVATIONS(TDM_ACTIVATION_FEATURE) TDM_N_FEATURES };
#define TDM_FEATURE_BIT(feature) (UINT64_C(1) << (feature))
/* The features of all activations. */
#define TDM_ACTIVATION_FEATURE_BIT(name, number, words, largest) | TDM_FEATURE_BIT(TDM_FEATURE_##name)
#define TDM_ACTIVATION_FEATURES (UINT64_C(0) TDM_ACTIVATIONS(TDM_ACTIVATION_FEATURE_BIT))
/* The features that every device that runs whole models has. */
#define TDM_FEATURE_BIT_OF_ALL(name, all, words) | ((all) ? TDM_FEATURE_BIT(TDM_FEATURE_##name) : 0)
#define TDM_FEATURES_OF_ALL (TDM_ACTIVATION_FEATURES TDM_FEATURES(TDM_FEATURE_BIT_OF_ALL))

/* A bound of what the activation leaves where |g| |u| is at most `product`. INFINITY: none is known. */
float tdm_activation_largest(enum tdm_activation activation, float product);

const char *tdm_feature_name(enum tdm_feature feature); /* "attention sinks"; never NULL */
/* Bits of enum tdm_feature. Both have passed their checks. */
uint64_t tdm_recipe_features(const struct tdm_recipe *recipe, const struct tdm_hparams *hp);
/* TDM_E_UNSUPPORTED with the names of the features that are not among `supported` and of the device. */
int tdm_recipe_check_device(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint64_t supported,
                            const char *device, struct tdm_error *err);

#endif
