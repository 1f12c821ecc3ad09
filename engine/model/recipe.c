/* Recipes: checking one that a peer or a file made, and naming what it asks of a device. */
#include <math.h>
#include "engine/model/private.h"

#define SPARSITY_SCALE_MAX 10.0 /* deviations: the share of a normal distribution beyond it is 1e-23 */

#define FEATURE_NAME(name, all, words) [TDM_FEATURE_##name] = (words),
#define ACTIVATION_NAME(name, number, words, largest) [TDM_FEATURE_##name] = (words),
static const char *const feature_names[TDM_N_FEATURES] = { TDM_FEATURES(FEATURE_NAME)
                                                                   TDM_ACTIVATIONS(ACTIVATION_NAME) };

/* ---- activations ---- */

#define FEATURE_OF(name, number, words, largest) [TDM_ACTIVATION_##name] = TDM_FEATURE_BIT(TDM_FEATURE_##name),

/* 0: GELU, or no known one. */
static uint64_t activation_features(uint32_t activation)
{
        static const uint64_t features[] = { TDM_ACTIVATIONS(FEATURE_OF) };

        return activation < TDM_ARRAY_SIZE(features) ? features[activation] : 0;
}

#define LARGEST_OF(name, number, words, largest) [TDM_ACTIVATION_##name] = (largest),

float tdm_activation_largest(enum tdm_activation activation, float product)
{
        static const float largest_of[] = { TDM_ACTIVATIONS(LARGEST_OF) };
        float largest = activation < TDM_ARRAY_SIZE(largest_of) ? largest_of[activation] : 0;

        return largest > 0 ? largest : product;
}

/* ---- checking ---- */

static int bad(struct tdm_error *err, const char *what)
{
        return tdm_error_set(err, TDM_E_BAD_MODEL, "its recipe has %s", what);
}

static int check_rope(const struct tdm_rope_recipe *rope, struct tdm_error *err)
{
        if (rope->style != TDM_ROPE_HALVES && rope->style != TDM_ROPE_NEIGHBOURS)
                return bad(err, "a RoPE of no known style");
        if (rope->n_dims % 2)
                return bad(err, "a RoPE of an odd number of dimensions");
        if (rope->n_still % 2 || rope->n_still >= rope->n_dims)
                return bad(err, "a RoPE that turns an impossible number of dimensions");
        if (rope->has_divisors > TDM_DIVISORS_SHORT)
                return bad(err, "divisors of RoPE of no known name");
        if (!(rope->magnitude >= 1e-3f && rope->magnitude <= 1e3f))
                return bad(err, "a RoPE with an impossible magnitude");
        switch (rope->scaling) {
        case TDM_ROPE_LINEAR:
                if (rope->yarn_beta_fast != 0 || rope->yarn_beta_slow != 0 || rope->yarn_n_ctx != 0 ||
                    rope->yarn_is_rounded != 0)
                        return bad(err, "numbers of YaRN without YaRN");
                return 0;
        case TDM_ROPE_YARN:
                if (!(rope->yarn_beta_slow > 0 && rope->yarn_beta_slow < rope->yarn_beta_fast &&
                      rope->yarn_beta_fast <= 1e6f) ||
                    rope->yarn_n_ctx < 1 || rope->yarn_n_ctx > TDM_CTX_MAX || rope->yarn_is_rounded > 1 ||
                    rope->base <= 1)
                        return bad(err, "impossible numbers of YaRN");
                return 0;
        default:
                return bad(err, "a RoPE of no known scaling");
        }
}

static int check_experts(const struct tdm_layer_recipe *l, struct tdm_error *err)
{
        if (l->n_experts == 0) {
                if (l->n_experts_used || l->d_expert || l->router || l->has_dense_beside || l->gate_up_is_one ||
                    l->d_shared || l->has_shared_gate || (l->biases & (TDM_BIAS_ROUTER | TDM_BIAS_CHOICE)))
                        return bad(err, "sizes of experts without experts");
                return 0;
        }
        if (l->n_experts_used < 1 || l->n_experts_used > l->n_experts)
                return bad(err, "an impossible number of experts in use");
        if (l->d_expert < 1 || l->d_expert > TDM_WIDTH_MAX || l->d_expert % 32)
                return bad(err, "experts of an impossible width");
        if (l->router < TDM_ROUTER_SOFTMAX_CHOSEN || l->router > TDM_ROUTER_SIGMOID)
                return bad(err, "a router of no known kind");
        if (l->biases & TDM_BIAS_CHOICE && l->router != TDM_ROUTER_SIGMOID)
                return bad(err, "a bias of a choice without a sigmoid");
        if (l->gate_up_is_one && !l->has_dense_beside)
                return bad(err, "experts of one tensor without a dense FFN beside them");
        if (l->d_shared > TDM_WIDTH_MAX || l->d_shared % 32)
                return bad(err, "a shared expert of an impossible width");
        if (l->d_shared ? l->has_dense_beside : l->has_shared_gate)
                return bad(err, "a shared expert beside a dense FFN, or a gate of none");
        if (l->has_dense_beside &&
            l->biases & (TDM_BIAS_GATE | TDM_BIAS_UP | TDM_BIAS_DOWN | TDM_BIAS_ROUTER | TDM_BIAS_CHOICE))
                return bad(err, "biases of experts beside a dense FFN");
        return 0;
}

/* What belongs to attention stays as it is where there is none. */
static int check_mixer(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t i, struct tdm_error *err)
{
        const struct tdm_layer_recipe *l = &recipe->layers[i];
        const uint32_t norms = TDM_NORM_Q | TDM_NORM_K | TDM_NORM_V,
                       biases = TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V | TDM_BIAS_O;

        switch (l->mixer) {
        case TDM_MIXER_ATTENTION:
                if (l->conv_taps || l->delta_size || l->delta_k_heads || l->delta_v_heads || l->delta_in_groups ||
                    hp->layers[i].n_state)
                        return bad(err, "a state beside attention");
                return l->has_gate && (l->biases & TDM_BIAS_Q || tdm_recipe_is_whole(recipe)) ?
                               bad(err, "gated attention with a bias of queries, or to both sides") :
                               0;
        case TDM_MIXER_SHORT_CONV:
                if (l->delta_size || l->delta_k_heads || l->delta_v_heads || l->delta_in_groups)
                        return bad(err, "heads of a convolution");
                break;
        case TDM_MIXER_GATED_DELTA:
                if (l->delta_size < 16 || l->delta_size > 256 || l->delta_size % 16 || l->delta_k_heads < 1 ||
                    l->delta_k_heads > l->delta_v_heads || l->delta_v_heads > 1024 ||
                    l->delta_v_heads % l->delta_k_heads)
                        return bad(err, "impossible heads of a gated delta net");
                break;
        default:
                return bad(err, "no known mixer");
        }
        if (l->conv_taps < 2 || l->conv_taps > TDM_MAX_CONV_TAPS)
                return bad(err, "a convolution of an impossible length");
        if (hp->layers[i].n_state != tdm_recipe_n_state(l, hp->d_model))
                return bad(err, "a state that does not fit its mixer");
        if (l->norms & norms || l->has_gate || l->biases & biases || l->rope != TDM_ROPE_NONE ||
            l->attention_softcap != 0 || l->has_sinks || l->v_is_k || recipe->residual != TDM_RESIDUAL_PLAIN ||
            recipe->laurel_rank || tdm_recipe_is_whole(recipe))
                return bad(err, "parts of attention beside a state");
        return 0;
}

static int check_layer(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t i, struct tdm_error *err)
{
        const struct tdm_layer_recipe *l = &recipe->layers[i];
        uint32_t ways = l->norms & (TDM_NORM_QK_WIDE | TDM_NORM_QK_LATE | TDM_NORM_QK_EACH); /* at most one */
        int r;

        if (l->norms & ~(uint32_t)TDM_NORM_ALL || l->biases & ~(uint32_t)TDM_BIAS_ALL)
                return bad(err, "norms or biases of no known place");
        if (ways && ((l->norms & (TDM_NORM_Q | TDM_NORM_K)) != (TDM_NORM_Q | TDM_NORM_K) || l->norms & TDM_NORM_V ||
                     ways & (ways - 1)))
                return bad(err, "an impossible place of the norms of queries and keys");
        if (l->rope != TDM_ROPE_NONE && l->rope >= recipe->n_ropes)
                return bad(err, "a RoPE that it does not describe");
        if (l->rope != TDM_ROPE_NONE && recipe->ropes[l->rope].n_dims > hp->layers[i].head_dim)
                return bad(err, "a RoPE of more dimensions than a head has");
        if (l->norms & TDM_NORM_QK_LATE && l->rope != TDM_ROPE_NONE && recipe->ropes[l->rope].magnitude != 1)
                return bad(err, "a RoPE with a magnitude before norms");
        if (l->has_gate > 1 || l->has_sinks > 1 || l->v_is_k > 1 || l->is_sparse > 1 || l->has_dense_beside > 1 ||
            l->has_input > 1 || l->gate_up_is_one > 1 || l->has_output_scale > 1 || l->has_shared_gate > 1 ||
            l->delta_in_groups > 1)
                return bad(err, "a flag that is neither 0 nor 1");
        if (l->v_is_k && (l->biases & TDM_BIAS_V))
                return bad(err, "a bias for values that have no matrix");
        if (l->v_is_k && l->rope != TDM_ROPE_NONE &&
            (recipe->ropes[l->rope].style == TDM_ROPE_NEIGHBOURS ||
             recipe->ropes[l->rope].n_dims != hp->layers[i].head_dim))
                return bad(err, "values that are keys turned by neighbours or in part");
        if (hp->layers[i].kv_layer != i && (l->v_is_k || l->biases & (TDM_BIAS_K | TDM_BIAS_V)))
                return bad(err, "a way to make keys and values that it reads from another layer");
        if (l->activation != TDM_ACTIVATION_GELU_TANH && !activation_features(l->activation))
                return bad(err, "no known activation");
        if (l->is_sparse ? !(fabsf(l->sparsity_scale) <= (float)SPARSITY_SCALE_MAX) : l->sparsity_scale != 0)
                return bad(err, "an impossible sparsity");
        if (l->has_input && recipe->per_layer_width == 0)
                return bad(err, "a layer with an input of no width");
        if (l->reach && !recipe->is_bidirectional)
                return bad(err, "a reach of causal attention");
        r = check_mixer(recipe, hp, i, err);
        return r ? r : check_experts(l, err);
}

static int check_residual(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        switch (recipe->residual) {
        case TDM_RESIDUAL_PLAIN:
        case TDM_RESIDUAL_PARALLEL:
                if (recipe->n_streams != 1)
                        return bad(err, "several streams in a residual of one");
                break;
        case TDM_RESIDUAL_ALTUP:
                if (recipe->n_streams < 2 || recipe->n_streams > TDM_MAX_STREAMS)
                        return bad(err, "an impossible number of streams");
                break;
        default:
                return bad(err, "no known residual");
        }
        if (recipe->active_stream >= recipe->n_streams)
                return bad(err, "an active stream that is not there");
        if (hp->residual_width != tdm_recipe_residual_width(recipe, hp->d_model))
                return bad(err, "streams that do not fill the residual");
        if (recipe->laurel_rank > hp->d_model)
                return bad(err, "a low-rank branch of an impossible rank");
        if (recipe->per_layer_width > TDM_WIDTH_MAX)
                return bad(err, "inputs of layers of an impossible width");
        if (recipe->laurel_rank % 32 || recipe->per_layer_width % 32)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "a low-rank branch of rank %u and inputs of layers of width %u: only multiples of "
                                     "32 are supported",
                                     recipe->laurel_rank, recipe->per_layer_width);
        return 0;
}

static int check_pooling(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        if (recipe->pooling > TDM_POOLING_LAST || recipe->is_bidirectional > 1)
                return bad(err, "no known pooling");
        if (recipe->pooling == TDM_POOLING_NONE && (recipe->is_bidirectional || recipe->dense_width))
                return bad(err, "parts of a model of vectors without a pooling");
        if (recipe->dense_width > TDM_WIDTH_MAX || recipe->dense_width % 32)
                return bad(err, "matrices behind the pooling of an impossible width");
        if (recipe->pooling != TDM_POOLING_NONE && recipe->residual != TDM_RESIDUAL_PLAIN)
                return bad(err, "a pooling of several streams");
        for (uint32_t i = 0; recipe->is_bidirectional && i < hp->n_layers; i++)
                if (hp->layers[i].window || hp->layers[i].kv_layer != i || recipe->layers[i].v_is_k)
                        return bad(err, "a window or shared keys where attention is not causal");
        return 0;
}

/* Norms that take the mean off: those before blocks, the last one, and of heads those with gains of each head's own. No
 * model has others beside them. */
static int check_centered(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        const uint32_t before = TDM_NORM_ATTN_BEFORE | TDM_NORM_FFN_BEFORE,
                       of_heads = TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_EACH;
        bool fits = recipe->residual != TDM_RESIDUAL_ALTUP && !recipe->laurel_rank && !recipe->per_layer_width &&
                    recipe->pooling == TDM_POOLING_NONE;

        if (recipe->norm_kind != TDM_NORMS_CENTERED)
                return 0;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                uint32_t others = recipe->layers[i].norms & ~before;

                fits = fits && (!others || others == of_heads) && !recipe->layers[i].has_dense_beside;
        }
        return fits ? 0 : bad(err, "norms that take the mean off where none is known to");
}

static int check_labels(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        bool has_row = recipe->pooling == TDM_POOLING_FIRST || recipe->pooling == TDM_POOLING_LAST;

        /* Classes take the place of a vector, so there are not more of them than it has numbers. */
        if (recipe->tells_classes > 1 || recipe->label_dense > TDM_LABEL_DENSE_RELU ||
            recipe->n_labels > (recipe->tells_classes ? hp->d_model : 2) ||
            (recipe->tells_classes && (recipe->n_labels < 2 || recipe->label > 0)) ||
            recipe->label >= TDM_MAX(recipe->n_labels, 1u))
                return bad(err, "labels of an impossible number");
        if (recipe->n_labels == 0 && recipe->label_dense)
                return bad(err, "a matrix before a head without labels");
        if (recipe->n_labels > 0 && (!has_row || recipe->dense_width))
                return bad(err, "labels of what is no single row");
        return 0;
}

/* Encoders of BERT's kind: what goes together. */
static int check_encoder(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        bool is_of_sums = recipe->norm_kind == TDM_NORMS_OF_SUMS;

        if (recipe->norm_kind > TDM_NORMS_CENTERED || recipe->ffn > TDM_FFN_GELU || recipe->has_positions > 1)
                return bad(err, "no known kind of norms or FFN");
        if (recipe->n_token_types > TDM_MAX_TOKEN_TYPES)
                return bad(err, "too many types of tokens");
        if (is_of_sums &&
            (recipe->pooling == TDM_POOLING_NONE || recipe->residual != TDM_RESIDUAL_PLAIN || recipe->per_layer_width))
                return bad(err, "norms of sums in a model that makes text");
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];

                if (is_of_sums && (l->norms != (TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER) || l->has_output_scale))
                        return bad(err, "other norms beside those of sums");
                if (recipe->ffn == TDM_FFN_GELU && (l->activation != TDM_ACTIVATION_GELU_TANH || l->n_experts ||
                                                    l->is_sparse || l->biases & TDM_BIAS_GATE))
                        return bad(err, "parts of a gate in an FFN without one");
        }
        return 0;
}

int tdm_recipe_check(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        static const struct tdm_layer_recipe no_layer;
        static const struct tdm_rope_recipe no_rope;
        int r;

        if (recipe->architecture[0] == 0 || !memchr(recipe->architecture, 0, sizeof(recipe->architecture)))
                return bad(err, "no name of an architecture");
        if (recipe->logit_scale != 0 && !(recipe->logit_scale >= 1e-6f && recipe->logit_scale <= 1e6f))
                return bad(err, "an impossible scale of logits");
        if (!(recipe->query_growth >= 0 && recipe->query_growth <= 100) ||
            (recipe->query_growth > 0) != (recipe->query_growth_every > 0) || recipe->query_growth_every > TDM_CTX_MAX)
                return bad(err, "impossible numbers of queries that grow");
        if (recipe->n_ropes > TDM_MAX_ROPES)
                return bad(err, "more kinds of RoPE than there may be");
        if ((r = tdm_keys_check_recipe(recipe, hp, err)) || (r = check_residual(recipe, hp, err)) ||
            (r = check_pooling(recipe, hp, err)) || (r = check_centered(recipe, hp, err)) ||
            (r = check_labels(recipe, hp, err)) || (r = check_encoder(recipe, hp, err)))
                return r;
        for (uint32_t i = 0; i < TDM_MAX_ROPES; i++) {
                if (i < recipe->n_ropes && (r = check_rope(&recipe->ropes[i], err)))
                        return r;
                if (i >= recipe->n_ropes && memcmp(&recipe->ropes[i], &no_rope, sizeof(no_rope)) != 0)
                        return bad(err, "a RoPE behind its last one");
        }
        for (uint32_t i = 0; i < TDM_MAX_LAYERS; i++) {
                if (i < hp->n_layers && (r = check_layer(recipe, hp, i, err)))
                        return err ? tdm_error_prefix(err, "layer %u", i) : r;
                if (i >= hp->n_layers && memcmp(&recipe->layers[i], &no_layer, sizeof(no_layer)) != 0)
                        return bad(err, "a layer behind its last one");
        }
        return 0;
}

/* ---- what a step reads ---- */

bool tdm_recipe_has_state(const struct tdm_recipe *recipe, const struct tdm_hparams *hp)
{
        for (uint32_t i = 0; i < hp->n_layers; i++)
                if (recipe->layers[i].mixer != TDM_MIXER_ATTENTION)
                        return true;
        return false;
}

bool tdm_recipe_takes_pictures(const struct tdm_recipe *recipe, const struct tdm_hparams *hp)
{
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];

                if (l->mixer != TDM_MIXER_ATTENTION || l->v_is_k || l->has_gate || l->has_input ||
                    hp->layers[i].kv_layer != i)
                        return false;
        }
        return recipe->pooling == TDM_POOLING_NONE && recipe->residual == TDM_RESIDUAL_PLAIN &&
               recipe->laurel_rank == 0 && recipe->per_layer_width == 0 && recipe->norm_kind == TDM_NORMS_RMS &&
               !recipe->has_positions && recipe->n_token_types == 0;
}

double tdm_recipe_share_read(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t n_rows)
{
        double all = (double)hp->n_vocab, read = all; /* in rows of d_model weights: first the head */

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];
                const struct tdm_layer_sizes *sizes = &hp->layers[i];
                double kept = 2.0 * (sizes->n_heads + sizes->n_kv_heads) * sizes->head_dim,
                       experts = 3.0 * l->d_expert * l->n_experts;

                if (l->mixer == TDM_MIXER_SHORT_CONV)
                        kept = 4.0 * hp->d_model;
                if (l->mixer == TDM_MIXER_GATED_DELTA)
                        kept = tdm_recipe_delta_width(l) + 2.0 * l->delta_v_heads * (l->delta_size + 1);
                if (l->n_experts == 0 || l->has_dense_beside)
                        kept += (recipe->ffn == TDM_FFN_GELU ? 2.0 : 3.0) * sizes->d_ff;
                kept += 3.0 * l->d_shared;
                all += kept + experts;
                read += kept;
                if (l->n_experts > 0)
                        read += experts * (1 - pow(1 - (double)l->n_experts_used / l->n_experts, n_rows));
        }
        return read / all;
}

/* ---- what a device takes ---- */

/* A number that goes into a product is kept in up to three forms (f32, 16 and 8 bits), with what belongs to a block. */
#define FORMS_BYTES 9u
/* What each expert of a row takes beside its numbers: which one it is, where its row lies, and gaps up to cache lines.
 */
#define SLOT_BYTES 1024u

/* engine/host/rope.h: two tables, of every 256th position and of 256 positions. */
static uint64_t rope_bytes(const struct tdm_rope_recipe *rope, uint32_t n_ctx, uint64_t rows)
{
        return (TDM_DIV_UP(n_ctx, 256u) + UINT64_C(256)) * rope->n_dims * sizeof(double) +
               rows * rope->n_dims * sizeof(float);
}

uint64_t tdm_recipe_scratch_bytes(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t max_rows)
{
        uint64_t rows = TDM_MIN(max_rows, TDM_TILE_ROWS), q_width = 0, kv_width = 0, bytes = 0;
        uint64_t n_experts = 0, n_used = 0, d_expert = 0, d_ff = hp->d_ff, state_width = 0, in, out;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_sizes *sizes = &hp->layers[i];
                const struct tdm_layer_recipe *l = &recipe->layers[i];

                q_width = TDM_MAX(q_width, (uint64_t)sizes->n_heads * sizes->head_dim);
                if (l->mixer == TDM_MIXER_SHORT_CONV) { /* three numbers of each of a row, and what becomes of them */
                        state_width = 3 * (uint64_t)hp->d_model;
                        q_width = TDM_MAX(q_width, (uint64_t)hp->d_model);
                }
                if (l->mixer == TDM_MIXER_GATED_DELTA) {
                        state_width =
                                TDM_MAX(state_width, 2 * (uint64_t)tdm_recipe_delta_width(l) +
                                                             2 * (uint64_t)l->delta_v_heads * (l->delta_size + 16));
                        q_width = TDM_MAX(q_width, (uint64_t)l->delta_v_heads * l->delta_size);
                }
                if (l->has_gate)
                        state_width = TDM_MAX(state_width, 2 * (uint64_t)sizes->n_heads * sizes->head_dim);
                kv_width = TDM_MAX(kv_width, (uint64_t)sizes->n_kv_heads * sizes->head_dim);
                /* Behind the router's numbers there may be a gate's, and what fills a vector. */
                n_experts = TDM_MAX(n_experts, (uint64_t)l->n_experts + (l->has_shared_gate ? 32 : 0));
                n_used = TDM_MAX(n_used, (uint64_t)l->n_experts_used);
                d_expert = TDM_MAX(d_expert, (uint64_t)l->d_expert);
                d_ff = TDM_MAX(d_ff, (uint64_t)l->d_shared);
        }
        for (uint32_t i = 0; i < recipe->n_ropes; i++)
                bytes += rope_bytes(&recipe->ropes[i], hp->n_ctx, rows);
        /* Inputs of products: of Q, K and V, of gate and up, of the head (of twice as many rows), of O, of down, of a
         * layer's input. Outputs: q, k, v and what attention makes of them, gate and up, what a block adds, the
         * router's numbers, layers' inputs. */
        in = 4 * (uint64_t)hp->residual_width + q_width + d_ff + recipe->per_layer_width;
        out = 2 * q_width + 2 * kv_width + 2 * d_ff + 2 * (uint64_t)hp->residual_width + n_experts +
              2 * (uint64_t)recipe->per_layer_width + state_width;
        bytes += rows * (in * FORMS_BYTES + out * sizeof(float));
        bytes += rows * n_used * (d_expert * FORMS_BYTES + hp->d_model * sizeof(float) + SLOT_BYTES);
        return bytes;
}

/* ---- features ---- */

const char *tdm_feature_name(enum tdm_feature feature)
{
        return (unsigned)feature < TDM_N_FEATURES ? feature_names[feature] : "an unknown feature";
}

#define BIT(feature) TDM_FEATURE_BIT(TDM_FEATURE_##feature)

static uint64_t rope_features(const struct tdm_rope_recipe *rope, const struct tdm_layer_sizes *sizes)
{
        return (rope->style == TDM_ROPE_NEIGHBOURS ? BIT(ROPE_NEIGHBOURS) : 0) |
               (rope->n_dims != sizes->head_dim ? BIT(ROPE_PARTIAL) : 0) | (rope->n_still ? BIT(ROPE_STILL) : 0) |
               (rope->has_divisors ? BIT(ROPE_DIVISORS) : 0) | (rope->scaling == TDM_ROPE_YARN ? BIT(ROPE_YARN) : 0) |
               (rope->magnitude != 1 ? BIT(ROPE_MAGNITUDE) : 0);
}

static uint64_t mixer_features(const struct tdm_layer_recipe *l, const struct tdm_layer_sizes *sizes)
{
        bool is_delta = l->mixer == TDM_MIXER_GATED_DELTA;
        uint32_t width = is_delta ? l->delta_v_heads * l->delta_size : sizes->n_heads * sizes->head_dim;

        return (width % 32 && (is_delta || l->mixer == TDM_MIXER_ATTENTION) ? BIT(ODD_HEADS) : 0) |
               (l->mixer == TDM_MIXER_SHORT_CONV ? BIT(SHORT_CONV) : 0) | (is_delta ? BIT(GATED_DELTA) : 0) |
               (l->has_gate ? BIT(ATTENTION_GATE) : 0);
}

static uint64_t layer_features(const struct tdm_layer_recipe *l)
{
        const uint32_t before = TDM_NORM_ATTN_BEFORE | TDM_NORM_FFN_BEFORE,
                       after = TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER;
        bool is_sigmoid = l->router == TDM_ROUTER_SIGMOID; /* its bias is a part of it */

        return ((l->norms & before) != before ? BIT(NO_NORM_BEFORE) : 0) |
               ((l->norms & after) != after ? BIT(NO_NORM_AFTER) : 0) |
               (l->norms & TDM_NORM_QK_WIDE ? BIT(QK_NORM_WIDE) : 0) |
               (l->norms & TDM_NORM_QK_LATE ? BIT(QK_NORM_LATE) : 0) |
               (l->norms & TDM_NORM_QK_EACH ? BIT(QK_NORM_EACH) : 0) | (l->norms & TDM_NORM_V ? BIT(V_NORM) : 0) |
               (l->biases & ~(uint32_t)TDM_BIAS_CHOICE ? BIT(BIASES) : 0) |
               (l->attention_softcap > 0 ? BIT(ATTENTION_SOFTCAP) : 0) | (l->has_sinks ? BIT(SINKS) : 0) |
               (l->v_is_k ? BIT(V_IS_K) : 0) | activation_features(l->activation) | (l->is_sparse ? BIT(SPARSITY) : 0) |
               (l->n_experts && !l->has_dense_beside && !l->d_shared && !is_sigmoid ? BIT(EXPERTS) : 0) |
               (l->has_dense_beside ? BIT(DENSE_BESIDE) : 0) | (l->d_shared ? BIT(SHARED_EXPERT) : 0) |
               (is_sigmoid ? BIT(ROUTER_SIGMOID) : 0) | (l->has_input ? BIT(PER_LAYER_INPUT) : 0) |
               (l->has_output_scale ? BIT(OUTPUT_SCALE) : 0);
}

/* Compared with the model's largest, and with the first layer that has a window where this one has, or none. */
static uint64_t size_features(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint32_t i)
{
        const struct tdm_layer_sizes *l = &hp->layers[i];
        uint32_t first = 0;

        if (l->n_state > 0) /* what belongs to attention stands in it for nothing */
                return l->d_ff != hp->d_ff ? BIT(FF_BY_LAYER) : 0;
        while (!hp->layers[first].window != !l->window || hp->layers[first].n_state > 0)
                first++;
        return (l->n_heads != hp->n_heads || l->n_kv_heads != hp->n_kv_heads || l->head_dim != hp->head_dim ?
                        BIT(HEADS_BY_LAYER) :
                        0) |
               (l->d_ff != hp->d_ff ? BIT(FF_BY_LAYER) : 0) |
               (l->window && l->window != hp->window ? BIT(WINDOW_BY_LAYER) : 0) |
               (l->kv_layer != i ? BIT(SHARED_KV) : 0) |
               (recipe->layers[i].rope != recipe->layers[first].rope ? BIT(ROPE_BY_LAYER) : 0);
}

uint64_t tdm_recipe_features(const struct tdm_recipe *recipe, const struct tdm_hparams *hp)
{
        uint64_t features =
                (recipe->residual == TDM_RESIDUAL_ALTUP ? BIT(STREAMS) : 0) |
                (recipe->residual == TDM_RESIDUAL_PARALLEL ? BIT(PARALLEL) : 0) |
                (recipe->laurel_rank ? BIT(LAUREL) : 0) | (recipe->per_layer_width ? BIT(PER_LAYER_INPUT) : 0) |
                (recipe->logit_scale != 0 ? BIT(LOGIT_SCALE) : 0) | (recipe->query_growth > 0 ? BIT(QUERY_GROWTH) : 0) |
                (recipe->norm_kind == TDM_NORMS_OF_SUMS ? BIT(NORMS_OF_SUMS) : 0) |
                (recipe->norm_kind == TDM_NORMS_CENTERED ? BIT(CENTERED) : 0) |
                (recipe->ffn != TDM_FFN_GATED ? BIT(FFN_GELU) : 0) |
                (recipe->has_positions || recipe->n_token_types ? BIT(POSITIONS) : 0) |
                (recipe->is_bidirectional ? BIT(BIDIRECTIONAL) :
                 recipe->pooling          ? BIT(POOLING) :
                                            0);

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];

                features |= layer_features(l) | mixer_features(l, &hp->layers[i]) | size_features(recipe, hp, i);
                if (l->mixer != TDM_MIXER_ATTENTION)
                        continue;
                features |= (l->rope == TDM_ROPE_NONE ? BIT(NO_ROPE) : 0) |
                            ((l->norms & (TDM_NORM_Q | TDM_NORM_K)) != (TDM_NORM_Q | TDM_NORM_K) ? BIT(NO_QK_NORM) : 0);
                if (l->rope != TDM_ROPE_NONE)
                        features |= rope_features(&recipe->ropes[l->rope], &hp->layers[i]);
        }
        return features;
}

int tdm_recipe_check_device(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, uint64_t supported,
                            const char *device, struct tdm_error *err)
{
        uint64_t left = tdm_recipe_features(recipe, hp) & ~supported;
        char names[512] = "";
        size_t n = 0;

        if (!left)
                return 0;
        for (unsigned i = 0; i < TDM_N_FEATURES; i++)
                if (left >> i & 1 && n < sizeof(names))
                        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", feature_names[i]);
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "%s device: a %s model like this needs what it does not compute: %s", device,
                             recipe->architecture, names);
}
