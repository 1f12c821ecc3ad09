/* The table of tensors. A kind that a recipe's feature needs gets its row here together with the first device that
 * computes the feature. */
#include "engine/model/tensors.h"

/* The sizes that a shape is made of. */
enum dim {
        ONE,
        MODEL,
        VOCAB,
        FF,
        Q_WIDTH,
        KV_WIDTH,
        Q_GAINS,
        K_GAINS,
        Q_GAIN_ROWS,
        K_GAIN_ROWS,
        TURNED_PAIRS,
        HEADS,
        EXPERTS,
        EXPERT,
        TWO_EXPERT,
        SHARED,
        STREAMS,
        STREAMS_SQUARED,
        OTHER_STREAMS,
        RANK,
        INPUT,
        ALL_INPUTS,
        DENSE_PAIR,
        TAPS,
        THREE_MODEL,
        DELTA_WIDTH,
        DELTA_V_WIDTH,
        DELTA_V_HEADS,
        DELTA_SIZE,
        QUERIES,
        CTX,
        TYPES,
        LABELS
};

enum { GLOBAL = false, LAYER = true };
enum { MATRIX = TDM_ROLE_MATRIX, VECTOR = TDM_ROLE_VECTOR, IN_FILE = TDM_ROLE_FILE };
enum { NEEDED = false, MAYBE = true };
/* Layers have a dense FFN, experts, or both. */
enum ffn { ANY_FFN, DENSE, OF_EXPERTS };
/* Layers have attention or a short convolution. */
enum mixer { ANY_MIXER, OF_ATTENTION, OF_SHORT_CONV, OF_DELTA };

static const struct kind {
        const char *name;
        bool per_layer;
        uint8_t role;       /* enum tdm_tensor_role */
        uint8_t rows, cols; /* enum dim */
        bool is_optional;
        uint32_t norm;    /* there is one where the layer's recipe has this norm; 0: in every layer */
        uint32_t bias;    /* the same of enum tdm_bias; its name ends in ".bias" */
        uint8_t ffn;      /* enum ffn: which layers have it */
        uint8_t parts;    /* enum dim: matrices below each other, of which rows and cols are each one's */
        bool is_scale;    /* its name ends in ".scale" */
        uint8_t mixer;    /* enum mixer: which layers have it */
        bool is_own_bias; /* its name ends in ".bias", and no layer's recipe tells of it */
} kinds[TDM_N_TENSOR_KINDS] = {
        [TDM_TENSOR_TOKEN_EMBD] = { "token_embd", GLOBAL, MATRIX, VOCAB, MODEL, NEEDED, 0 },
        [TDM_TENSOR_OUTPUT] = { "output", GLOBAL, MATRIX, VOCAB, MODEL, MAYBE, 0 },
        [TDM_TENSOR_OUTPUT_NORM] = { "output_norm", GLOBAL, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_ATTN_NORM] = { "attn_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_ATTN_BEFORE },
        [TDM_TENSOR_Q] = { "attn_q", LAYER, MATRIX, QUERIES, MODEL, NEEDED, 0, .mixer = OF_ATTENTION },
        [TDM_TENSOR_K] = { "attn_k", LAYER, MATRIX, KV_WIDTH, MODEL, NEEDED, 0, .mixer = OF_ATTENTION },
        [TDM_TENSOR_V] = { "attn_v", LAYER, MATRIX, KV_WIDTH, MODEL, NEEDED, 0, .mixer = OF_ATTENTION },
        [TDM_TENSOR_Q_NORM] = { "attn_q_norm", LAYER, VECTOR, Q_GAIN_ROWS, Q_GAINS, NEEDED, TDM_NORM_Q },
        [TDM_TENSOR_K_NORM] = { "attn_k_norm", LAYER, VECTOR, K_GAIN_ROWS, K_GAINS, NEEDED, TDM_NORM_K },
        [TDM_TENSOR_O] = { "attn_output", LAYER, MATRIX, MODEL, Q_WIDTH, NEEDED, 0, .mixer = OF_ATTENTION },
        [TDM_TENSOR_POST_ATTN_NORM] = { "post_attention_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_ATTN_AFTER },
        [TDM_TENSOR_FFN_NORM] = { "ffn_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_FFN_BEFORE },
        [TDM_TENSOR_GATE] = { "ffn_gate", LAYER, MATRIX, FF, MODEL, NEEDED, 0, 0, DENSE },
        [TDM_TENSOR_UP] = { "ffn_up", LAYER, MATRIX, FF, MODEL, NEEDED, 0, 0, DENSE },
        [TDM_TENSOR_DOWN] = { "ffn_down", LAYER, MATRIX, MODEL, FF, NEEDED, 0, 0, DENSE },
        [TDM_TENSOR_POST_FFW_NORM] = { "post_ffw_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_FFN_AFTER },
        [TDM_TENSOR_ROPE_FREQS] = { "rope_freqs", GLOBAL, VECTOR, ONE, TURNED_PAIRS, NEEDED, 0 },
        [TDM_TENSOR_Q_BIAS] = { "attn_q", LAYER, VECTOR, ONE, Q_WIDTH, NEEDED, 0, TDM_BIAS_Q },
        [TDM_TENSOR_K_BIAS] = { "attn_k", LAYER, VECTOR, ONE, KV_WIDTH, NEEDED, 0, TDM_BIAS_K },
        [TDM_TENSOR_V_BIAS] = { "attn_v", LAYER, VECTOR, ONE, KV_WIDTH, NEEDED, 0, TDM_BIAS_V },
        [TDM_TENSOR_O_BIAS] = { "attn_output", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, TDM_BIAS_O },
        [TDM_TENSOR_GATE_BIAS] = { "ffn_gate", LAYER, VECTOR, ONE, FF, NEEDED, 0, TDM_BIAS_GATE, DENSE },
        [TDM_TENSOR_UP_BIAS] = { "ffn_up", LAYER, VECTOR, ONE, FF, NEEDED, 0, TDM_BIAS_UP, DENSE },
        [TDM_TENSOR_DOWN_BIAS] = { "ffn_down", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, TDM_BIAS_DOWN, DENSE },
        [TDM_TENSOR_SINKS] = { "attn_sinks", LAYER, VECTOR, ONE, HEADS, NEEDED, 0 },
        [TDM_TENSOR_ROUTER] = { "ffn_gate_inp", LAYER, MATRIX, EXPERTS, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_ROUTER_BIAS] = { "ffn_gate_inp", LAYER, VECTOR, ONE, EXPERTS, NEEDED, 0, TDM_BIAS_ROUTER,
                                     OF_EXPERTS },
        [TDM_TENSOR_GATE_EXPS] = { "ffn_gate_exps", LAYER, MATRIX, EXPERT, MODEL, NEEDED, 0, 0, OF_EXPERTS, EXPERTS },
        [TDM_TENSOR_UP_EXPS] = { "ffn_up_exps", LAYER, MATRIX, EXPERT, MODEL, NEEDED, 0, 0, OF_EXPERTS, EXPERTS },
        [TDM_TENSOR_DOWN_EXPS] = { "ffn_down_exps", LAYER, MATRIX, MODEL, EXPERT, NEEDED, 0, 0, OF_EXPERTS, EXPERTS },
        [TDM_TENSOR_GATE_EXPS_BIAS] = { "ffn_gate_exps", LAYER, VECTOR, EXPERTS, EXPERT, NEEDED, 0, TDM_BIAS_GATE,
                                        OF_EXPERTS },
        [TDM_TENSOR_UP_EXPS_BIAS] = { "ffn_up_exps", LAYER, VECTOR, EXPERTS, EXPERT, NEEDED, 0, TDM_BIAS_UP,
                                      OF_EXPERTS },
        [TDM_TENSOR_DOWN_EXPS_BIAS] = { "ffn_down_exps", LAYER, VECTOR, EXPERTS, MODEL, NEEDED, 0, TDM_BIAS_DOWN,
                                        OF_EXPERTS },
        [TDM_TENSOR_PER_LAYER_EMBD] = { "per_layer_token_embd", GLOBAL, IN_FILE, VOCAB, ALL_INPUTS, NEEDED, 0 },
        [TDM_TENSOR_PER_LAYER_PROJ] = { "per_layer_model_proj", GLOBAL, MATRIX, ALL_INPUTS, MODEL, NEEDED, 0 },
        [TDM_TENSOR_PER_LAYER_PROJ_NORM] = { "per_layer_proj_norm", GLOBAL, VECTOR, ONE, INPUT, NEEDED, 0 },
        [TDM_TENSOR_INPUT_GATE] = { "inp_gate", LAYER, MATRIX, INPUT, MODEL, NEEDED, 0 },
        [TDM_TENSOR_INPUT_PROJ] = { "proj", LAYER, MATRIX, MODEL, INPUT, NEEDED, 0 },
        [TDM_TENSOR_INPUT_NORM] = { "post_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_ALTUP_PROJ] = { "altup_proj", GLOBAL, MATRIX, MODEL, MODEL, NEEDED, 0, .parts = OTHER_STREAMS },
        [TDM_TENSOR_ALTUP_UNEMBD] = { "altup_unembd_proj", GLOBAL, MATRIX, MODEL, MODEL, NEEDED, 0,
                                      .parts = OTHER_STREAMS },
        [TDM_TENSOR_ALTUP_ROUTER] = { "altup_router", LAYER, MATRIX, STREAMS, MODEL, NEEDED, 0 },
        [TDM_TENSOR_ALTUP_ROUTER_NORM] = { "altup_router_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_ALTUP_PREDICT] = { "altup_predict_coef", LAYER, VECTOR, STREAMS_SQUARED, STREAMS, NEEDED, 0 },
        [TDM_TENSOR_ALTUP_CORRECT] = { "altup_correct_coef", LAYER, VECTOR, STREAMS, STREAMS, NEEDED, 0 },
        [TDM_TENSOR_ALTUP_CORRECT_SCALE] = { "altup_correct_scale", LAYER, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_LAUREL_L] = { "laurel_l", LAYER, MATRIX, RANK, MODEL, NEEDED, 0 },
        [TDM_TENSOR_LAUREL_R] = { "laurel_r", LAYER, MATRIX, MODEL, RANK, NEEDED, 0 },
        [TDM_TENSOR_LAUREL_NORM] = { "laurel_post_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_OUTPUT_SCALE] = { "layer_output_scale", LAYER, VECTOR, ONE, ONE, NEEDED, 0 },
        [TDM_TENSOR_GATE_UP_EXPS] = { "ffn_gate_up_exps", LAYER, MATRIX, TWO_EXPERT, MODEL, NEEDED, 0, 0, OF_EXPERTS,
                                      EXPERTS },
        [TDM_TENSOR_EXPERT_SCALES] = { "ffn_down_exps", LAYER, VECTOR, ONE, EXPERTS, NEEDED, 0, 0, OF_EXPERTS,
                                       .is_scale = true },
        [TDM_TENSOR_ROUTER_SCALE] = { "ffn_gate_inp", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, 0, OF_EXPERTS,
                                      .is_scale = true },
        [TDM_TENSOR_EXPERTS_NORM] = { "pre_ffw_norm_2", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_POST_DENSE_NORM] = { "post_ffw_norm_1", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_DENSE_2] = { "dense_2", GLOBAL, MATRIX, DENSE_PAIR, MODEL, NEEDED, 0 },
        [TDM_TENSOR_DENSE_3] = { "dense_3", GLOBAL, MATRIX, MODEL, DENSE_PAIR, NEEDED, 0 },
        [TDM_TENSOR_POST_EXPERTS_NORM] = { "post_ffw_norm_2", LAYER, VECTOR, ONE, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_ROPE_LONG] = { "rope_factors_long", GLOBAL, VECTOR, ONE, TURNED_PAIRS, MAYBE, 0 },
        [TDM_TENSOR_ROPE_SHORT] = { "rope_factors_short", GLOBAL, VECTOR, ONE, TURNED_PAIRS, MAYBE, 0 },
        [TDM_TENSOR_SHORT_CONV] = { "shortconv.conv", LAYER, VECTOR, MODEL, TAPS, NEEDED, 0, .mixer = OF_SHORT_CONV },
        [TDM_TENSOR_SHORT_CONV_IN] = { "shortconv.in_proj", LAYER, MATRIX, THREE_MODEL, MODEL, NEEDED, 0,
                                       .mixer = OF_SHORT_CONV },
        [TDM_TENSOR_POSITION_EMBD] = { "position_embd", GLOBAL, VECTOR, CTX, MODEL, NEEDED, 0 },
        [TDM_TENSOR_TOKEN_TYPES] = { "token_types", GLOBAL, VECTOR, TYPES, MODEL, NEEDED, 0 },
        [TDM_TENSOR_EMBD_NORM] = { "token_embd_norm", GLOBAL, VECTOR, ONE, MODEL, NEEDED, 0 },
        [TDM_TENSOR_EMBD_NORM_BIAS] = { "token_embd_norm", GLOBAL, VECTOR, ONE, MODEL, NEEDED, 0, .is_own_bias = true },
        [TDM_TENSOR_POST_ATTN_NORM_BIAS] = { "attn_output_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_ATTN_AFTER,
                                             .is_own_bias = true },
        [TDM_TENSOR_POST_FFW_NORM_BIAS] = { "layer_output_norm", LAYER, VECTOR, ONE, MODEL, NEEDED, TDM_NORM_FFN_AFTER,
                                            .is_own_bias = true },
        [TDM_TENSOR_LABEL_DENSE] = { "cls", GLOBAL, MATRIX, MODEL, MODEL, NEEDED, 0 },
        [TDM_TENSOR_LABEL_DENSE_BIAS] = { "cls", GLOBAL, VECTOR, ONE, MODEL, MAYBE, 0, .is_own_bias = true },
        [TDM_TENSOR_LABELS] = { "cls.output", GLOBAL, MATRIX, LABELS, MODEL, NEEDED, 0 },
        [TDM_TENSOR_LABELS_BIAS] = { "cls.output", GLOBAL, VECTOR, ONE, LABELS, MAYBE, 0, .is_own_bias = true },
        [TDM_TENSOR_SHORT_CONV_OUT] = { "shortconv.out_proj", LAYER, MATRIX, MODEL, MODEL, NEEDED, 0,
                                        .mixer = OF_SHORT_CONV },
        [TDM_TENSOR_GATE_SHEXP] = { "ffn_gate_shexp", LAYER, MATRIX, SHARED, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_UP_SHEXP] = { "ffn_up_shexp", LAYER, MATRIX, SHARED, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_DOWN_SHEXP] = { "ffn_down_shexp", LAYER, MATRIX, MODEL, SHARED, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_SHARED_GATE] = { "ffn_gate_inp_shexp", LAYER, MATRIX, ONE, MODEL, NEEDED, 0, 0, OF_EXPERTS },
        [TDM_TENSOR_CHOICE_BIAS] = { "exp_probs_b", LAYER, VECTOR, ONE, EXPERTS, NEEDED, 0, TDM_BIAS_CHOICE,
                                     OF_EXPERTS },
        [TDM_TENSOR_DELTA_QKV] = { "attn_qkv", LAYER, MATRIX, DELTA_WIDTH, MODEL, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_Z] = { "attn_gate", LAYER, MATRIX, DELTA_V_WIDTH, MODEL, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_CONV] = { "ssm_conv1d", LAYER, VECTOR, DELTA_WIDTH, TAPS, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_BETA] = { "ssm_beta", LAYER, MATRIX, DELTA_V_HEADS, MODEL, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_ALPHA] = { "ssm_alpha", LAYER, MATRIX, DELTA_V_HEADS, MODEL, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_DT] = { "ssm_dt", LAYER, VECTOR, ONE, DELTA_V_HEADS, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_A] = { "ssm_a", LAYER, VECTOR, ONE, DELTA_V_HEADS, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_NORM] = { "ssm_norm", LAYER, VECTOR, ONE, DELTA_SIZE, NEEDED, 0, .mixer = OF_DELTA },
        [TDM_TENSOR_DELTA_OUT] = { "ssm_out", LAYER, MATRIX, MODEL, DELTA_V_WIDTH, NEEDED, 0, .mixer = OF_DELTA },
};

/* Tensors that some files have as one: below each other in this order, or their rows in turn. */
static const struct fusion {
        uint32_t form; /* enum tdm_fused */
        const char *name;
        uint8_t n;
        uint8_t kinds[3];
        bool in_turn;
} fusions[] = {
        { TDM_FUSED_QKV, "attn_qkv.weight", 3, { TDM_TENSOR_Q, TDM_TENSOR_K, TDM_TENSOR_V }, false },
        { TDM_FUSED_QKV, "attn_qkv.bias", 3, { TDM_TENSOR_Q_BIAS, TDM_TENSOR_K_BIAS, TDM_TENSOR_V_BIAS }, false },
        { TDM_FUSED_GATE_UP, "ffn_up.weight", 2, { TDM_TENSOR_GATE, TDM_TENSOR_UP }, false },
        { TDM_FUSED_GATE_UP_EXPS, "ffn_gate_up_exps.weight", 2, { TDM_TENSOR_GATE_EXPS, TDM_TENSOR_UP_EXPS }, false },
        { TDM_FUSED_GATE_UP_EXPS,
          "ffn_gate_up_exps.bias",
          2,
          { TDM_TENSOR_GATE_EXPS_BIAS, TDM_TENSOR_UP_EXPS_BIAS },
          false },
        { TDM_FUSED_GATE_UP_IN_TURN, "ffn_gate_up_exps.weight", 2, { TDM_TENSOR_GATE_EXPS, TDM_TENSOR_UP_EXPS }, true },
        { TDM_FUSED_GATE_UP_IN_TURN,
          "ffn_gate_up_exps.bias",
          2,
          { TDM_TENSOR_GATE_EXPS_BIAS, TDM_TENSOR_UP_EXPS_BIAS },
          true },
        { TDM_FUSED_DELTA, "ssm_ba.weight", 2, { TDM_TENSOR_DELTA_BETA, TDM_TENSOR_DELTA_ALPHA }, false },
};

/* The only RoPE that has divisors, or one that has none. */
static const struct tdm_rope_recipe *divided_rope(const struct tdm_recipe *recipe)
{
        static const struct tdm_rope_recipe none;

        for (uint32_t i = 0; i < recipe->n_ropes; i++)
                if (recipe->ropes[i].has_divisors)
                        return &recipe->ropes[i];
        return &none;
}

static uint32_t dim_size(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t layer, enum dim dim)
{
        const struct tdm_layer_sizes *sizes = &hp->layers[layer];
        bool is_wide = recipe->layers[layer].norms & TDM_NORM_QK_WIDE,
             is_each = recipe->layers[layer].norms & TDM_NORM_QK_EACH;

        switch (dim) {
        case ONE:
                return 1;
        case MODEL:
                return hp->d_model;
        case VOCAB:
                return hp->n_vocab;
        case FF:
                return sizes->d_ff;
        case Q_WIDTH:
                return sizes->n_heads * sizes->head_dim;
        case KV_WIDTH:
                return sizes->n_kv_heads * sizes->head_dim;
        case Q_GAINS:
                return (is_wide ? sizes->n_heads : 1) * sizes->head_dim;
        case K_GAINS:
                return (is_wide ? sizes->n_kv_heads : 1) * sizes->head_dim;
        case Q_GAIN_ROWS:
                return is_each ? sizes->n_heads : 1;
        case K_GAIN_ROWS:
                return is_each ? sizes->n_kv_heads : 1;
        case TURNED_PAIRS:
                return (divided_rope(recipe)->n_dims - divided_rope(recipe)->n_still) / 2;
        case HEADS:
                return sizes->n_heads;
        case EXPERTS:
                return recipe->layers[layer].n_experts;
        case EXPERT:
                return recipe->layers[layer].d_expert;
        case TWO_EXPERT:
                return 2 * recipe->layers[layer].d_expert;
        case SHARED:
                return recipe->layers[layer].d_shared;
        case STREAMS:
                return recipe->n_streams;
        case STREAMS_SQUARED:
                return recipe->n_streams * recipe->n_streams;
        case OTHER_STREAMS:
                return recipe->n_streams - 1;
        case RANK:
                return recipe->laurel_rank;
        case INPUT:
                return recipe->per_layer_width;
        case ALL_INPUTS:
                return recipe->per_layer_width * hp->n_layers;
        case DENSE_PAIR:
                return recipe->dense_width;
        case TAPS:
                return recipe->layers[layer].conv_taps;
        case THREE_MODEL:
                return 3 * hp->d_model;
        case DELTA_WIDTH:
                return tdm_recipe_delta_width(&recipe->layers[layer]);
        case DELTA_V_WIDTH:
                return recipe->layers[layer].delta_v_heads * recipe->layers[layer].delta_size;
        case DELTA_V_HEADS:
                return recipe->layers[layer].delta_v_heads;
        case DELTA_SIZE:
                return recipe->layers[layer].delta_size;
        case QUERIES:
                return (1 + recipe->layers[layer].has_gate) * sizes->n_heads * sizes->head_dim;
        case CTX:
                return hp->n_ctx;
        case TYPES:
                return recipe->n_token_types;
        case LABELS:
                return recipe->n_labels;
        }
        abort();
}

enum tdm_tensor_role tdm_tensor_role(enum tdm_tensor_kind kind)
{
        return (enum tdm_tensor_role)kinds[kind].role;
}

uint32_t tdm_tensor_n(enum tdm_tensor_kind kind, const struct tdm_hparams *hp)
{
        return kinds[kind].per_layer ? hp->n_layers : 1;
}

void tdm_tensor_name(enum tdm_tensor_kind kind, uint32_t layer, char ret[static TDM_TENSOR_NAME_MAX])
{
        const char *ending = kinds[kind].bias || kinds[kind].is_own_bias ? "bias" :
                             kinds[kind].is_scale                        ? "scale" :
                                                                           "weight";

        if (kinds[kind].per_layer)
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.%s.%s", layer, kinds[kind].name, ending);
        else
                snprintf(ret, TDM_TENSOR_NAME_MAX, "%s.%s", kinds[kind].name, ending);
}

bool tdm_tensor_alias(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, uint32_t layer,
                      char ret[static TDM_TENSOR_NAME_MAX])
{
        switch (kind) {
        case TDM_TENSOR_DENSE_2: /* some files of embedding models number the pair from 0 */
        case TDM_TENSOR_DENSE_3:
                snprintf(ret, TDM_TENSOR_NAME_MAX, "dense.%d.weight", kind == TDM_TENSOR_DENSE_3);
                return true;
        case TDM_TENSOR_OUTPUT_NORM: /* it is no norm of the embedding's rows */
                if (strcmp(recipe->architecture, "lfm2") != 0 && strcmp(recipe->architecture, "lfm2moe") != 0)
                        return false;
                snprintf(ret, TDM_TENSOR_NAME_MAX, "token_embd_norm.weight");
                return true;
        case TDM_TENSOR_DELTA_DT:
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.ssm_dt.bias", layer);
                return true;
        case TDM_TENSOR_DELTA_A:
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.ssm_a", layer);
                return true;
        case TDM_TENSOR_POST_ATTN_NORM: /* and the one below: BERT's, of sums */
        case TDM_TENSOR_POST_FFW_NORM:
                if (recipe->norm_kind != TDM_NORMS_OF_SUMS)
                        return false;
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.%s_output_norm.weight", layer,
                         kind == TDM_TENSOR_POST_ATTN_NORM ? "attn" : "layer");
                return true;
        case TDM_TENSOR_FFN_NORM:                                /* gpt-oss calls it after what comes before it */
                if (recipe->residual == TDM_RESIDUAL_PARALLEL) { /* it is attention's */
                        tdm_tensor_name(TDM_TENSOR_ATTN_NORM, layer, ret);
                        return true;
                }
                if (recipe->layers[layer].norms & TDM_NORM_ATTN_AFTER)
                        return false;
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.%s.weight", layer, kinds[TDM_TENSOR_POST_ATTN_NORM].name);
                return true;
        case TDM_TENSOR_EXPERT_SCALES: /* Ollama's Gemma 4 */
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.ffn_gate_inp.per_expert_scale", layer);
                return true;
        case TDM_TENSOR_O: /* and the two below: Ollama's gpt-oss */
        case TDM_TENSOR_O_BIAS:
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.attn_out.%s", layer, kinds[kind].bias ? "bias" : "weight");
                return true;
        case TDM_TENSOR_SINKS:
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.attn_sinks", layer);
                return true;
        case TDM_TENSOR_ROPE_FREQS:
                if (divided_rope(recipe)->has_divisors <= TDM_DIVISORS_FREQS)
                        return false;
                tdm_tensor_name(divided_rope(recipe)->has_divisors == TDM_DIVISORS_LONG ? TDM_TENSOR_ROPE_LONG :
                                                                                          TDM_TENSOR_ROPE_SHORT,
                                0, ret);
                return true;
        default:
                return false;
        }
}

/* Rows of each part of a matrix, values of each row of a vector: what a fused tensor has below each other. */
static uint32_t part_length(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                            uint32_t layer)
{
        uint8_t dim = kinds[kind].role == VECTOR ? kinds[kind].cols : kinds[kind].rows;

        if (kind == TDM_TENSOR_DELTA_BETA || kind == TDM_TENSOR_DELTA_ALPHA) /* each head of keys has a part */
                return recipe->layers[layer].delta_v_heads / recipe->layers[layer].delta_k_heads;
        return dim_size(recipe, hp, layer, (enum dim)dim);
}

static struct tdm_tensor_cut fusion_cut(const struct fusion *f, enum tdm_tensor_kind kind,
                                        const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t layer)
{
        struct tdm_tensor_cut cut = { .apart = f->in_turn ? f->n : 1, .rows = part_length(kind, recipe, hp, layer) };

        for (uint8_t i = 0; i < f->n; i++) {
                if (f->kinds[i] == kind)
                        cut.first = f->in_turn ? i : cut.part_rows;
                cut.part_rows += part_length((enum tdm_tensor_kind)f->kinds[i], recipe, hp, layer);
        }
        return cut;
}

bool tdm_tensor_fused(enum tdm_tensor_kind kind, uint32_t forms, const struct tdm_recipe *recipe,
                      const struct tdm_hparams *hp, uint32_t layer, char ret[static TDM_TENSOR_NAME_MAX],
                      struct tdm_tensor_cut *ret_cut)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(fusions); i++) {
                const struct fusion *f = &fusions[i];

                if (!(f->form & forms) || !memchr(f->kinds, kind, f->n))
                        continue;
                snprintf(ret, TDM_TENSOR_NAME_MAX, "blk.%u.%s", layer, f->name);
                if (ret_cut)
                        *ret_cut = fusion_cut(f, kind, recipe, hp, layer);
                return true;
        }
        return false;
}

uint32_t tdm_tensor_bias(enum tdm_tensor_kind kind)
{
        return kinds[kind].bias;
}

uint32_t tdm_tensor_n_parts(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, uint32_t layer)
{
        return kinds[kind].parts == EXPERTS       ? recipe->layers[layer].n_experts :
               kinds[kind].parts == OTHER_STREAMS ? recipe->n_streams - 1 :
                                                    1;
}

void tdm_tensor_shape(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, const struct tdm_hparams *hp,
                      uint32_t layer, uint32_t *ret_rows, uint32_t *ret_cols)
{
        *ret_rows = dim_size(recipe, hp, layer, (enum dim)kinds[kind].rows) * tdm_tensor_n_parts(kind, recipe, layer);
        *ret_cols = dim_size(recipe, hp, layer, (enum dim)kinds[kind].cols);
}

/* Whether what the tensor is for is in the recipe. */
static bool tensor_is_wanted(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe, uint32_t layer)
{
        const struct tdm_layer_recipe *l = &recipe->layers[layer];

        switch (kind) {
        case TDM_TENSOR_V:
                return !l->v_is_k;
        case TDM_TENSOR_SINKS:
                return l->has_sinks;
        case TDM_TENSOR_GATE:
                return recipe->ffn == TDM_FFN_GATED;
        case TDM_TENSOR_OUTPUT_NORM:
                return recipe->norm_kind != TDM_NORMS_OF_SUMS;
        case TDM_TENSOR_POSITION_EMBD:
                return recipe->has_positions;
        case TDM_TENSOR_TOKEN_TYPES:
                return recipe->n_token_types > 0;
        case TDM_TENSOR_EMBD_NORM:
        case TDM_TENSOR_EMBD_NORM_BIAS:
        case TDM_TENSOR_POST_ATTN_NORM_BIAS:
        case TDM_TENSOR_POST_FFW_NORM_BIAS:
                return recipe->norm_kind == TDM_NORMS_OF_SUMS;
        case TDM_TENSOR_DENSE_2:
        case TDM_TENSOR_DENSE_3:
                return recipe->dense_width > 0;
        case TDM_TENSOR_LABEL_DENSE:
        case TDM_TENSOR_LABEL_DENSE_BIAS:
                return recipe->label_dense != TDM_LABEL_DENSE_NONE;
        case TDM_TENSOR_LABELS:
        case TDM_TENSOR_LABELS_BIAS:
                return recipe->n_labels > 0;
        case TDM_TENSOR_ROPE_FREQS:
                return divided_rope(recipe)->has_divisors != TDM_DIVISORS_NONE;
        case TDM_TENSOR_ROPE_LONG:
        case TDM_TENSOR_ROPE_SHORT:
                return divided_rope(recipe)->has_divisors > TDM_DIVISORS_FREQS;
        case TDM_TENSOR_PER_LAYER_EMBD:
        case TDM_TENSOR_PER_LAYER_PROJ:
        case TDM_TENSOR_PER_LAYER_PROJ_NORM:
                return recipe->per_layer_width > 0;
        case TDM_TENSOR_INPUT_GATE:
        case TDM_TENSOR_INPUT_PROJ:
        case TDM_TENSOR_INPUT_NORM:
                return l->has_input;
        case TDM_TENSOR_ALTUP_PROJ:
        case TDM_TENSOR_ALTUP_UNEMBD:
        case TDM_TENSOR_ALTUP_ROUTER:
        case TDM_TENSOR_ALTUP_ROUTER_NORM:
        case TDM_TENSOR_ALTUP_PREDICT:
        case TDM_TENSOR_ALTUP_CORRECT:
        case TDM_TENSOR_ALTUP_CORRECT_SCALE:
                return recipe->residual == TDM_RESIDUAL_ALTUP;
        case TDM_TENSOR_LAUREL_L:
        case TDM_TENSOR_LAUREL_R:
        case TDM_TENSOR_LAUREL_NORM:
                return recipe->laurel_rank > 0;
        case TDM_TENSOR_OUTPUT_SCALE:
                return l->has_output_scale;
        case TDM_TENSOR_GATE_EXPS:
        case TDM_TENSOR_UP_EXPS:
                return !l->gate_up_is_one;
        case TDM_TENSOR_GATE_UP_EXPS:
                return l->gate_up_is_one;
        case TDM_TENSOR_GATE_SHEXP:
        case TDM_TENSOR_UP_SHEXP:
        case TDM_TENSOR_DOWN_SHEXP:
                return l->d_shared > 0;
        case TDM_TENSOR_SHARED_GATE:
                return l->has_shared_gate;
        case TDM_TENSOR_EXPERT_SCALES:
        case TDM_TENSOR_ROUTER_SCALE:
        case TDM_TENSOR_EXPERTS_NORM:
        case TDM_TENSOR_POST_DENSE_NORM:
        case TDM_TENSOR_POST_EXPERTS_NORM:
                return l->has_dense_beside;
        default:
                return true;
        }
}

enum tdm_tensor_presence tdm_tensor_presence(enum tdm_tensor_kind kind, const struct tdm_recipe *recipe,
                                             const struct tdm_hparams *hp, uint32_t layer)
{
        static const uint8_t mixers[] = { [TDM_MIXER_ATTENTION] = OF_ATTENTION,
                                          [TDM_MIXER_SHORT_CONV] = OF_SHORT_CONV,
                                          [TDM_MIXER_GATED_DELTA] = OF_DELTA };
        const struct tdm_layer_recipe *l = &recipe->layers[layer];

        if (!tensor_is_wanted(kind, recipe, layer))
                return TDM_TENSOR_ABSENT;
        if (kinds[kind].mixer != ANY_MIXER && kinds[kind].mixer != mixers[l->mixer])
                return TDM_TENSOR_ABSENT;
        if (kinds[kind].norm != 0 && !(l->norms & kinds[kind].norm))
                return TDM_TENSOR_ABSENT;
        if (kinds[kind].bias != 0 && !(l->biases & kinds[kind].bias))
                return TDM_TENSOR_ABSENT;
        if (kinds[kind].ffn == OF_EXPERTS && l->n_experts == 0)
                return TDM_TENSOR_ABSENT;
        /* If a layer has a dense FFN and experts, the biases are the experts'. */
        if (kinds[kind].ffn == DENSE && l->n_experts > 0 && (!l->has_dense_beside || kinds[kind].bias != 0))
                return TDM_TENSOR_ABSENT;
        if ((kind == TDM_TENSOR_K || kind == TDM_TENSOR_V || kind == TDM_TENSOR_K_NORM) &&
            hp->layers[layer].kv_layer != layer)
                return TDM_TENSOR_UNUSED;
        if (kind == TDM_TENSOR_ROPE_LONG || kind == TDM_TENSOR_ROPE_SHORT) /* the one in use is TDM_TENSOR_ROPE_FREQS */
                return TDM_TENSOR_UNUSED;
        if (kind == TDM_TENSOR_OUTPUT && recipe->pooling != TDM_POOLING_NONE)
                return TDM_TENSOR_UNUSED;
        return kinds[kind].is_optional ? TDM_TENSOR_OPTIONAL : TDM_TENSOR_REQUIRED;
}
