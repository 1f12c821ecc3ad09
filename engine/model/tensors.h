/* The tensors that models consist of: one table of their names, shapes and roles (tensors.c). Who describes a file, who
 * lays out the weights segment and who checks it ask this table. */
#ifndef TDM_ENGINE_MODEL_TENSORS_H
#define TDM_ENGINE_MODEL_TENSORS_H

#include "engine/model/recipe.h"

/* Numbers are part of the weights segment's layout. */
enum tdm_tensor_kind {
        TDM_TENSOR_TOKEN_EMBD, /* [n_vocab][d_model] */
        TDM_TENSOR_OUTPUT,     /* [n_vocab][d_model]; absent: TOKEN_EMBD serves */
        TDM_TENSOR_OUTPUT_NORM,
        TDM_TENSOR_ATTN_NORM,
        TDM_TENSOR_Q, /* [n_heads * head_dim][d_model], sizes of the layer; so below */
        TDM_TENSOR_K, /* [n_kv_heads * head_dim][d_model] */
        TDM_TENSOR_V,
        TDM_TENSOR_Q_NORM, /* [head_dim], or of all heads together */
        TDM_TENSOR_K_NORM,
        TDM_TENSOR_O, /* [d_model][n_heads * head_dim] */
        TDM_TENSOR_POST_ATTN_NORM,
        TDM_TENSOR_FFN_NORM,
        TDM_TENSOR_GATE, /* [d_ff][d_model] */
        TDM_TENSOR_UP,
        TDM_TENSOR_DOWN, /* [d_model][d_ff] */
        TDM_TENSOR_POST_FFW_NORM,
        TDM_TENSOR_ROPE_FREQS, /* [pairs that are turned] of the RoPE that has divisors, whatever the file calls them */
        TDM_TENSOR_Q_BIAS,     /* [n_heads * head_dim] */
        TDM_TENSOR_K_BIAS,     /* [n_kv_heads * head_dim] */
        TDM_TENSOR_V_BIAS,
        TDM_TENSOR_O_BIAS,    /* [d_model] */
        TDM_TENSOR_GATE_BIAS, /* [d_ff] */
        TDM_TENSOR_UP_BIAS,
        TDM_TENSOR_DOWN_BIAS, /* [d_model] */
        TDM_TENSOR_SINKS,     /* [n_heads] */
        TDM_TENSOR_ROUTER,    /* [n_experts][d_model] */
        TDM_TENSOR_ROUTER_BIAS,
        TDM_TENSOR_GATE_EXPS, /* [n_experts][d_expert][d_model]: the experts' matrices one below the other */
        TDM_TENSOR_UP_EXPS,
        TDM_TENSOR_DOWN_EXPS,      /* [n_experts][d_model][d_expert] */
        TDM_TENSOR_GATE_EXPS_BIAS, /* [n_experts][d_expert] */
        TDM_TENSOR_UP_EXPS_BIAS,
        TDM_TENSOR_DOWN_EXPS_BIAS, /* [n_experts][d_model] */
        /* P: per_layer_width, A: n_streams of the recipe. */
        TDM_TENSOR_PER_LAYER_EMBD,      /* [n_vocab][n_layers * P]; stays in the file */
        TDM_TENSOR_PER_LAYER_PROJ,      /* [n_layers * P][d_model] */
        TDM_TENSOR_PER_LAYER_PROJ_NORM, /* [P] */
        TDM_TENSOR_INPUT_GATE,          /* [P][d_model] */
        TDM_TENSOR_INPUT_PROJ,          /* [d_model][P] */
        TDM_TENSOR_INPUT_NORM,          /* [d_model] */
        TDM_TENSOR_ALTUP_PROJ,          /* [(A - 1) * d_model][d_model]: a matrix for each stream but the first */
        TDM_TENSOR_ALTUP_UNEMBD,
        TDM_TENSOR_ALTUP_ROUTER,        /* [A][d_model] */
        TDM_TENSOR_ALTUP_ROUTER_NORM,   /* [d_model] */
        TDM_TENSOR_ALTUP_PREDICT,       /* [A * A][A] */
        TDM_TENSOR_ALTUP_CORRECT,       /* [A][A] */
        TDM_TENSOR_ALTUP_CORRECT_SCALE, /* [d_model] */
        TDM_TENSOR_LAUREL_L,            /* [laurel_rank][d_model] */
        TDM_TENSOR_LAUREL_R,            /* [d_model][laurel_rank] */
        TDM_TENSOR_LAUREL_NORM,         /* [d_model] */
        TDM_TENSOR_OUTPUT_SCALE,        /* [1] */
        TDM_TENSOR_GATE_UP_EXPS,        /* [n_experts][2 * d_expert][d_model]: an expert's gate, then its up */
        TDM_TENSOR_EXPERT_SCALES,       /* [n_experts] */
        TDM_TENSOR_ROUTER_SCALE,        /* [d_model]; so the three below */
        TDM_TENSOR_EXPERTS_NORM,
        TDM_TENSOR_POST_DENSE_NORM,
        TDM_TENSOR_POST_EXPERTS_NORM,
        TDM_TENSOR_DENSE_2, /* [dense_width][d_model] */
        TDM_TENSOR_DENSE_3, /* [d_model][dense_width] */
        /* Names under which files have ROPE_FREQS; the other of the two is not read. */
        TDM_TENSOR_ROPE_LONG,
        TDM_TENSOR_ROPE_SHORT,
        TDM_TENSOR_SHORT_CONV,     /* [d_model][conv_taps] */
        TDM_TENSOR_SHORT_CONV_IN,  /* [3 * d_model][d_model] */
        TDM_TENSOR_SHORT_CONV_OUT, /* [d_model][d_model] */
        /* Of a gated delta net with K heads of keys and V of values, of S numbers each, W = (2 K + V) S. */
        TDM_TENSOR_DELTA_QKV,     /* [W][d_model] */
        TDM_TENSOR_DELTA_Z,       /* [V * S][d_model] */
        TDM_TENSOR_DELTA_CONV,    /* [W][conv_taps] */
        TDM_TENSOR_DELTA_BETA,    /* [V][d_model] */
        TDM_TENSOR_DELTA_ALPHA,   /* [V][d_model] */
        TDM_TENSOR_DELTA_DT,      /* [V] */
        TDM_TENSOR_DELTA_A,       /* [V] */
        TDM_TENSOR_DELTA_NORM,    /* [S] */
        TDM_TENSOR_DELTA_OUT,     /* [d_model][V * S] */
        TDM_TENSOR_POSITION_EMBD, /* [n_ctx][d_model] */
        TDM_TENSOR_TOKEN_TYPES,   /* [n_token_types][d_model] */
        TDM_TENSOR_EMBD_NORM,     /* [d_model]; so the three below */
        TDM_TENSOR_EMBD_NORM_BIAS,
        TDM_TENSOR_POST_ATTN_NORM_BIAS,
        TDM_TENSOR_POST_FFW_NORM_BIAS,
        TDM_TENSOR_GATE_SHEXP, /* [d_shared][d_model] */
        TDM_TENSOR_UP_SHEXP,
        TDM_TENSOR_DOWN_SHEXP,  /* [d_model][d_shared] */
        TDM_TENSOR_SHARED_GATE, /* [1][d_model] */
        TDM_TENSOR_LABEL_DENSE, /* [d_model][d_model] */
        TDM_TENSOR_LABEL_DENSE_BIAS,
        TDM_TENSOR_LABELS, /* [n_labels][d_model] */
        TDM_TENSOR_LABELS_BIAS,
        TDM_TENSOR_CHOICE_BIAS, /* [n_experts] */
        TDM_N_TENSOR_KINDS
};

enum tdm_tensor_role {
        TDM_ROLE_MATRIX, /* multiplied with rows; of any supported type, in panels */
        TDM_ROLE_VECTOR, /* f32, as gains are; a few have rows */
        TDM_ROLE_FILE    /* a row is read from the file for each token, and travels in the step */
};

/* Unused: files may have it, and it is not read. */
enum tdm_tensor_presence { TDM_TENSOR_ABSENT, TDM_TENSOR_UNUSED, TDM_TENSOR_OPTIONAL, TDM_TENSOR_REQUIRED };

/* Forms in which a file has several of the tensors above as one. */
enum tdm_fused {
        TDM_FUSED_QKV = 1 << 0,             /* attn_qkv: rows of queries, then keys, then values; their biases too */
        TDM_FUSED_GATE_UP_EXPS = 1 << 1,    /* ffn_gate_up_exps: of each expert the rows of gate, then those of up */
        TDM_FUSED_GATE_UP_IN_TURN = 1 << 2, /* the same name: one row of gate, one of up, and so on */
        TDM_FUSED_GATE_UP = 1 << 3,         /* ffn_up: the rows of gate, then those of up */
        TDM_FUSED_DELTA = 1 << 4,           /* ssm_ba: of each head of keys, the betas of its heads, then the alphas */
        TDM_FUSED_ALL = (1 << 5) - 1
};

/* Where a tensor lies in one of the file that has more rows: row r of part p is row p * part_rows + first + r * apart
 * of it. Of vectors these are values, and each row is a part. */
struct tdm_tensor_cut {
        uint32_t first;
        uint32_t apart; /* 0: it is a tensor of its own, and the other fields are 0 */
        uint32_t rows;  /* of one part of the tensor */
        uint32_t part_rows;
};

#define TDM_TENSOR_NAME_MAX 64u

/* kind < TDM_N_TENSOR_KINDS in all of these. */
enum tdm_tensor_role tdm_tensor_role(enum tdm_tensor_kind kind);
/* How many of the kind a model can have: one for each layer, or one. */
uint32_t tdm_tensor_n(enum tdm_tensor_kind kind, const struct tdm_hparams *hp);
/* "blk.<layer>.<name>.weight", or without the layer; biases end in ".bias", and two vectors in ".scale". */
void tdm_tensor_name(enum tdm_tensor_kind kind, uint32_t layer, char ret[static TDM_TENSOR_NAME_MAX]);
/* Another name under which files have it. False: there is none in models of this recipe. */
bool tdm_tensor_alias(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, uint32_t layer,
                      char ret[static TDM_TENSOR_NAME_MAX]);
/* The name under which files have it together with others, in one of the forms of enum tdm_fused in `forms`; ret_cut:
 * which of its rows it is, NULL where only the name is wanted, and then recipe and hp are too. False: there is none. */
bool tdm_tensor_fused(enum tdm_tensor_kind kind, uint32_t forms, const struct tdm_recipe *recipe,
                      const struct tdm_hparams *hp, uint32_t layer, char ret[static TDM_TENSOR_NAME_MAX],
                      struct tdm_tensor_cut *ret_cut);
/* The bias of `kind` that a layer's recipe asks for with this bit of enum tdm_bias; 0: it is not a bias. */
uint32_t tdm_tensor_bias(enum tdm_tensor_kind kind);
/* layer < tdm_tensor_n(). Rows are those of all parts together, and 1 for most vectors. */
void tdm_tensor_shape(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                      uint32_t layer, uint32_t *ret_rows, uint32_t *ret_cols);
/* Matrices of which the tensor consists, each of as many rows: one for each expert in a file's third dimension, else 1.
 */
uint32_t tdm_tensor_n_parts(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, uint32_t layer);
/* Whether this layer of this model has it. */
enum tdm_tensor_presence tdm_tensor_presence(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe,
                                             const struct tdm_hparams *hp, uint32_t layer);

#endif
