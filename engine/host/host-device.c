/* The host device: opens a thread pool and the best kernels the CPU has, loads models (tables of their weights, all
 * scratch), and walks through the blocks of a step. The blocks themselves are in forward.c.
 *
 * All host devices give the same bits, whatever their kernels and threads: hence one numerics id. It changes when an
 * order of operations or a rounding does. */
#include <assert.h>

#include "engine/host/early.h"
#include "engine/host/delta.h"
#include "engine/host/short-conv.h"
#include "engine/host/streams.h"

#define NUMERICS_ID "host-2"
/* A step of fewer multiplications is one thread's. With more threads, each of its many short jobs wakes some or waits
 * for them, and what one core has written comes late to the next. Three passes of a draft model, behind a step that
 * leaves nothing of it in a cache: with 1.8 million a pass 0.32 ms on one thread, 0.35 on two; with 5.4 million 1.01
 * and 0.68. The other cores are free for tandemd meanwhile. */
#define ALONE_MACS (UINT64_C(2) << 20)

/* The one place that says how the input of each matrix is rounded. What each costs is measured in docs/performance.md.
 * Float weights take f32 whatever is said here. */
static const enum tdm_act input_acts[][TDM_HOST_N_INPUTS] = {
        [TDM_PRECISION_DEFAULT] = {
                [TDM_HOST_QKV] = TDM_ACT_I8,
                [TDM_HOST_ATTN_OUT] = TDM_ACT_I16,
                [TDM_HOST_GATE_UP] = TDM_ACT_I8,
                [TDM_HOST_DOWN] = TDM_ACT_I16,
                [TDM_HOST_HEAD] = TDM_ACT_I8,
                [TDM_HOST_SIDE] = TDM_ACT_I16,
        },
        [TDM_PRECISION_PRECISE] = {
                [TDM_HOST_QKV] = TDM_ACT_I16,
                [TDM_HOST_ATTN_OUT] = TDM_ACT_I16,
                [TDM_HOST_GATE_UP] = TDM_ACT_I16,
                [TDM_HOST_DOWN] = TDM_ACT_I16,
                [TDM_HOST_HEAD] = TDM_ACT_I16,
                [TDM_HOST_SIDE] = TDM_ACT_I16,
        },
        [TDM_PRECISION_F32] = {
                [TDM_HOST_QKV] = TDM_ACT_F32,
                [TDM_HOST_ATTN_OUT] = TDM_ACT_F32,
                [TDM_HOST_GATE_UP] = TDM_ACT_F32,
                [TDM_HOST_DOWN] = TDM_ACT_F32,
                [TDM_HOST_HEAD] = TDM_ACT_F32,
                [TDM_HOST_SIDE] = TDM_ACT_F32,
        },
};

struct host_device {
        struct tdm_device public;
        const struct tdm_kernels *kernels;
        struct tdm_pool *pool, *alone;
        char description[96];
};

static void host_close(struct tdm_device *device)
{
        struct host_device *host = (struct host_device *)device;

        if (!host)
                return;
        tdm_pool_destroy(host->pool);
        tdm_pool_destroy(host->alone);
        free(host);
}

static int host_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        const struct tdm_kernels *kernels = tdm_kernels_choose(err);
        struct host_device *host;
        unsigned n_threads;
        int r;

        if (!kernels)
                return err && err->code ? err->code : -EINVAL;
        host = calloc(1, sizeof(*host));
        if (!host)
                return tdm_error_set(err, -ENOMEM, "host device: no memory");
        host->public.ops = &tdm_host_device_ops;
        host->kernels = kernels;
        r = tdm_pool_new(&host->pool, config->n_threads, config->heartbeat);
        if (r == 0)
                r = tdm_pool_new(&host->alone, 1, config->heartbeat);
        if (r < 0) {
                host_close(&host->public);
                return tdm_error_set(err, r, "host device: cannot start %u threads: %s", config->n_threads,
                                     strerror(-r));
        }
        n_threads = tdm_pool_n_threads(host->pool);
        snprintf(host->description, sizeof(host->description), "%s, %u thread%s", kernels->describe, n_threads,
                 n_threads == 1 ? "" : "s");
        *ret = &host->public;
        return 0;
}

static const char *host_describe(const struct tdm_device *device)
{
        return ((const struct host_device *)device)->description;
}

static const char *host_numerics_id(const struct tdm_device *device)
{
        return NUMERICS_ID;
}

/* ---- models ---- */

/* struct tdm_device_model is never defined: its address is that of our struct. */
static struct tdm_host_model *host_model_of(const struct tdm_device_model *model)
{
        return (struct tdm_host_model *)model;
}

static void host_unload(struct tdm_device_model *public)
{
        struct tdm_host_model *model = host_model_of(public);

        if (!model)
                return;
        for (int i = 0; i < TDM_HOST_N_INPUTS; i++)
                tdm_acts_deinit(&model->acts[i]);
        for (unsigned i = 0; i < TDM_MAX_ROPES; i++) {
                tdm_rope_deinit(&model->rope[i]);
                free(model->angles.position[i]);
                free(model->angles.rows[i]);
        }
        tdm_attention_destroy(model->attention);
        tdm_experts_destroy(model->routed.experts);
        tdm_pooler_destroy(model->pooling);
        tdm_host_short_conv_free(model);
        tdm_host_delta_free(model);
        free(model->heads.q);
        free(model->heads.attn);
        free(model->heads.k);
        free(model->heads.v);
        free(model->y);
        free(model->gate);
        free(model->up);
        free(model->neutral.ones);
        free(model->neutral.zeros);
        tdm_sparse_destroy(model->sparse);
        free(model->panels.memory);
        tdm_host_streams_free(model);
        tdm_host_early_free(model->early);
        free(model->routed.router);
        free(model->routed.y);
        free(model->row);
        free(model->logits);
        free(model->sampler.scratch);
        free(model->layers);
        free(model);
}

/* NULL: the layer's recipe has no use for it. */
static const float *vector(const struct tdm_host_model *model, enum tdm_tensor_kind kind, uint32_t layer)
{
        if (tdm_tensor_presence(kind, &model->recipe, &model->hp, layer) < TDM_TENSOR_OPTIONAL)
                return NULL;
        return (const float *)(model->weights + tdm_weights_find(model->weights, kind, layer)->offset);
}

static void matrix_init(const struct tdm_host_model *model, enum tdm_tensor_kind kind, uint32_t layer,
                        enum tdm_act wanted, struct tdm_host_weight *ret)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(model->weights, kind, layer);

        tdm_matrix_init(&ret->matrix, model->weights, tensor);
        ret->act = tdm_matmul_act(tensor->type, wanted);
}

static void experts_init(const struct tdm_host_model *model, uint32_t layer, const enum tdm_act *acts,
                         struct tdm_host_layer *l)
{
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[layer];
        struct tdm_host_weight gate, up, down;

        matrix_init(model, TDM_TENSOR_ROUTER, layer, TDM_ACT_F32, &l->router);
        l->router.bias = vector(model, TDM_TENSOR_ROUTER_BIAS, layer);
        if (recipe->gate_up_is_one) {
                matrix_init(model, TDM_TENSOR_GATE_UP_EXPS, layer, acts[TDM_HOST_GATE_UP], &gate);
                up = gate;
                up.matrix.data += recipe->d_expert / TDM_PANEL_ROWS * gate.matrix.panel_bytes;
        } else {
                matrix_init(model, TDM_TENSOR_GATE_EXPS, layer, acts[TDM_HOST_GATE_UP], &gate);
                matrix_init(model, TDM_TENSOR_UP_EXPS, layer, acts[TDM_HOST_GATE_UP], &up);
        }
        matrix_init(model, TDM_TENSOR_DOWN_EXPS, layer, acts[TDM_HOST_DOWN], &down);
        l->experts = (struct tdm_experts_layer){
                .gate = gate.matrix,
                .up = up.matrix,
                .down = down.matrix,
                .gate_act = gate.act,
                .up_act = up.act,
                .down_act = down.act,
                .gate_bias = vector(model, TDM_TENSOR_GATE_EXPS_BIAS, layer),
                .up_bias = vector(model, TDM_TENSOR_UP_EXPS_BIAS, layer),
                .down_bias = vector(model, TDM_TENSOR_DOWN_EXPS_BIAS, layer),
                .choice_bias = vector(model, TDM_TENSOR_CHOICE_BIAS, layer),
                .scales = vector(model, TDM_TENSOR_EXPERT_SCALES, layer),
                .n_experts = recipe->n_experts,
                .n_used = recipe->n_experts_used,
                .d_expert = recipe->d_expert,
                .gate_panels = (recipe->gate_up_is_one ? 2 : 1) * recipe->d_expert / TDM_PANEL_ROWS,
                .router = (enum tdm_router)recipe->router,
                .activation = (enum tdm_activation)recipe->activation,
        };
}

/* If no norm follows attention, an error in it goes into the residual at its full size: int8 for queries, keys and
 * values alone would be half of such a model's distance from the reference. The same holds where no norm stands before
 * their product or between it and RoPE. Where a router reads the residual itself, an error in it may choose another
 * expert. */
static enum tdm_act qkv_act(const struct tdm_layer_recipe *layer, const enum tdm_act *acts)
{
        const uint32_t around = TDM_NORM_ATTN_BEFORE | TDM_NORM_Q | TDM_NORM_ATTN_AFTER;
        bool is_fine = (layer->norms & around) != around || layer->has_dense_beside;

        return acts[TDM_HOST_QKV] == TDM_ACT_I8 && is_fine ? TDM_ACT_I16 : acts[TDM_HOST_QKV];
}

/* In a sparse layer the gate's numbers decide which neurons live: one that is rounded to int8 lets others live than
 * the reference. */
static enum tdm_act gate_act(const struct tdm_layer_recipe *layer, const enum tdm_act *acts)
{
        return acts[TDM_HOST_GATE_UP] == TDM_ACT_I8 && layer->is_sparse ? TDM_ACT_I16 : acts[TDM_HOST_GATE_UP];
}

static bool has_dense(const struct tdm_layer_recipe *layer)
{
        return layer->n_experts == 0 || layer->has_dense_beside;
}

static void layers_init(struct tdm_host_model *model, const enum tdm_act *acts)
{
        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                struct tdm_host_layer *l = &model->layers[i];
                enum tdm_act qkv = qkv_act(&model->recipe.layers[i], acts);

                const bool has_state = model->hp.layers[i].n_state > 0;
                const bool is_delta = model->recipe.layers[i].mixer == TDM_MIXER_GATED_DELTA;

                matrix_init(model,
                            is_delta  ? TDM_TENSOR_DELTA_QKV :
                            has_state ? TDM_TENSOR_SHORT_CONV_IN :
                                        TDM_TENSOR_Q,
                            i, qkv, &l->q);
                l->k = l->v = l->q; /* neither is used where the layer reads another's, or has a state */
                if (model->hp.layers[i].kv_layer == i && !has_state) {
                        matrix_init(model, TDM_TENSOR_K, i, qkv, &l->k);
                        if (!model->recipe.layers[i].v_is_k)
                                matrix_init(model, TDM_TENSOR_V, i, qkv, &l->v);
                }
                matrix_init(model,
                            is_delta  ? TDM_TENSOR_DELTA_OUT :
                            has_state ? TDM_TENSOR_SHORT_CONV_OUT :
                                        TDM_TENSOR_O,
                            i, acts[TDM_HOST_ATTN_OUT], &l->o);
                l->conv = vector(model, is_delta ? TDM_TENSOR_DELTA_CONV : TDM_TENSOR_SHORT_CONV, i);
                if (is_delta) {
                        matrix_init(model, TDM_TENSOR_DELTA_Z, i, qkv, &l->delta.z);
                        matrix_init(model, TDM_TENSOR_DELTA_ALPHA, i, qkv, &l->delta.alpha);
                        matrix_init(model, TDM_TENSOR_DELTA_BETA, i, qkv, &l->delta.beta);
                        l->delta.dt = vector(model, TDM_TENSOR_DELTA_DT, i);
                        l->delta.a = vector(model, TDM_TENSOR_DELTA_A, i);
                        l->delta.norm = vector(model, TDM_TENSOR_DELTA_NORM, i);
                }
                if (model->recipe.layers[i].n_experts > 0) {
                        experts_init(model, i, acts, l);
                        if (model->recipe.layers[i].d_shared > 0) {
                                matrix_init(model, TDM_TENSOR_GATE_SHEXP, i, acts[TDM_HOST_GATE_UP], &l->shared.gate);
                                matrix_init(model, TDM_TENSOR_UP_SHEXP, i, acts[TDM_HOST_GATE_UP], &l->shared.up);
                                matrix_init(model, TDM_TENSOR_DOWN_SHEXP, i, acts[TDM_HOST_DOWN], &l->shared.down);
                        }
                        if (model->recipe.layers[i].has_shared_gate)
                                matrix_init(model, TDM_TENSOR_SHARED_GATE, i, TDM_ACT_F32, &l->shared.scale);
                        l->router_scale = vector(model, TDM_TENSOR_ROUTER_SCALE, i);
                        l->experts_norm = vector(model, TDM_TENSOR_EXPERTS_NORM, i);
                        l->post_dense_norm = vector(model, TDM_TENSOR_POST_DENSE_NORM, i);
                        l->post_experts_norm = vector(model, TDM_TENSOR_POST_EXPERTS_NORM, i);
                }
                if (has_dense(&model->recipe.layers[i])) {
                        if (model->recipe.ffn == TDM_FFN_GATED)
                                matrix_init(model, TDM_TENSOR_GATE, i, gate_act(&model->recipe.layers[i], acts),
                                            &l->gate);
                        matrix_init(model, TDM_TENSOR_UP, i, acts[TDM_HOST_GATE_UP], &l->up);
                        matrix_init(model, TDM_TENSOR_DOWN, i, acts[TDM_HOST_DOWN], &l->down);
                }
                l->sinks = vector(model, TDM_TENSOR_SINKS, i);
                l->q.bias = vector(model, TDM_TENSOR_Q_BIAS, i);
                l->k.bias = vector(model, TDM_TENSOR_K_BIAS, i);
                l->v.bias = vector(model, TDM_TENSOR_V_BIAS, i);
                l->o.bias = vector(model, TDM_TENSOR_O_BIAS, i);
                l->gate.bias = vector(model, TDM_TENSOR_GATE_BIAS, i);
                l->up.bias = vector(model, TDM_TENSOR_UP_BIAS, i);
                l->down.bias = vector(model, TDM_TENSOR_DOWN_BIAS, i);
                l->attn_norm = vector(model, TDM_TENSOR_ATTN_NORM, i);
                l->q_norm = vector(model, TDM_TENSOR_Q_NORM, i);
                l->k_norm = vector(model, TDM_TENSOR_K_NORM, i);
                l->post_attn_norm = vector(model, TDM_TENSOR_POST_ATTN_NORM, i);
                l->ffn_norm = vector(model, TDM_TENSOR_FFN_NORM, i);
                l->post_ffw_norm = vector(model, TDM_TENSOR_POST_FFW_NORM, i);
                l->post_attn_bias = vector(model, TDM_TENSOR_POST_ATTN_NORM_BIAS, i);
                l->post_ffw_bias = vector(model, TDM_TENSOR_POST_FFW_NORM_BIAS, i);
        }
        matrix_init(model,
                    tdm_weights_find(model->weights, TDM_TENSOR_OUTPUT, 0) ? TDM_TENSOR_OUTPUT : TDM_TENSOR_TOKEN_EMBD,
                    0, acts[TDM_HOST_HEAD], &model->output);
        model->output_norm = vector(model, TDM_TENSOR_OUTPUT_NORM, 0);
        model->embedding.positions = vector(model, TDM_TENSOR_POSITION_EMBD, 0);
        model->embedding.types = vector(model, TDM_TENSOR_TOKEN_TYPES, 0);
        model->embedding.norm = vector(model, TDM_TENSOR_EMBD_NORM, 0);
        model->embedding.bias = vector(model, TDM_TENSOR_EMBD_NORM_BIAS, 0);
        model->embedding.tokens = tdm_weights_find(model->weights, TDM_TENSOR_TOKEN_EMBD, 0);
        tdm_host_streams_weights(model, acts[TDM_HOST_QKV], acts[TDM_HOST_SIDE]);
}

static uint64_t weight_macs(const struct tdm_host_weight *weight)
{
        return (uint64_t)weight->matrix.rows * weight->matrix.cols;
}

static uint64_t expert_macs(const struct tdm_experts_layer *l)
{
        uint64_t all = (uint64_t)l->gate.rows * l->gate.cols + (uint64_t)l->up.rows * l->up.cols +
                       (uint64_t)l->down.rows * l->down.cols;

        return l->n_experts > 0 ? all / l->n_experts * l->n_used : 0;
}

/* Counts the products that matter: those of matrices and keys. */
static void count_macs(struct tdm_host_model *model)
{
        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const struct tdm_host_layer *l = &model->layers[i];
                const struct tdm_layer_sizes *sizes = &model->hp.layers[i];

                model->row_macs += weight_macs(&l->q) + weight_macs(&l->o) + weight_macs(&l->gate) +
                                   weight_macs(&l->up) + weight_macs(&l->down) + expert_macs(&l->experts) +
                                   weight_macs(&l->shared.gate) + weight_macs(&l->shared.up) +
                                   weight_macs(&l->shared.down);
                if (sizes->n_state > 0)
                        continue;
                model->row_macs += weight_macs(&l->k) + weight_macs(&l->v);
                model->key_macs += UINT64_C(2) * sizes->n_heads * sizes->head_dim;
        }
}

/* n floats on a cache line; counted. Not touched: pages that a split placement never uses cost nothing. */
static bool scratch_take(struct tdm_host_model *model, float **ret, size_t n)
{
        size_t bytes = TDM_ALIGN_UP(n * sizeof(float), (size_t)64);

        *ret = aligned_alloc(64, bytes);
        model->scratch_bytes += bytes;
        return *ret != NULL;
}

static bool acts_take(struct tdm_host_model *model, enum tdm_host_input input, unsigned forms, uint32_t max_rows,
                      uint32_t cols)
{
        if (tdm_acts_init(&model->acts[input], forms, max_rows, cols) < 0)
                return false;
        model->scratch_bytes += model->acts[input].memory_bytes;
        return true;
}

/* 0, -ENOMEM or -EDOM. */
static int ropes_init(struct tdm_host_model *model)
{
        for (uint32_t i = 0; i < model->recipe.n_ropes; i++) {
                const struct tdm_rope_recipe *rope = &model->recipe.ropes[i];
                int r = tdm_rope_init(&model->rope[i], rope, model->hp.n_ctx,
                                      rope->has_divisors ? vector(model, TDM_TENSOR_ROPE_FREQS, 0) : NULL);

                if (r < 0)
                        return r;
                if (!scratch_take(model, (float **)&model->angles.position[i], model->tile_rows) ||
                    !scratch_take(model, &model->angles.rows[i], (size_t)model->tile_rows * rope->n_dims))
                        return -ENOMEM;
                memset(model->angles.position[i], 0xff, model->tile_rows * sizeof(uint32_t));
                model->scratch_bytes += model->rope[i].memory_bytes;
        }
        return 0;
}

/* Scratch of the layers with experts, if there are any. */
static bool experts_scratch_init(struct tdm_host_model *model)
{
        struct tdm_experts_sizes most = { .max_rows = model->tile_rows, .d_out = model->hp.d_model };
        bool has_beside = false;

        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const struct tdm_layer_recipe *recipe = &model->recipe.layers[i];
                const struct tdm_experts_layer *l = &model->layers[i].experts;

                if (l->n_experts == 0)
                        continue;
                most.n_experts = TDM_MAX(most.n_experts, l->n_experts);
                most.n_used = TDM_MAX(most.n_used, l->n_used);
                most.d_expert = TDM_MAX(most.d_expert, l->d_expert);
                most.down_forms |= 1u << l->down_act;
                has_beside = has_beside || recipe->has_dense_beside || recipe->d_shared > 0;
        }
        if (most.n_experts == 0)
                return true;
        model->routed.gate_at = TDM_ALIGN_UP(most.n_experts, 16u);
        model->routed.router_stride = model->routed.gate_at + 16;
        if (tdm_experts_new(&model->routed.experts, &most) < 0 ||
            !scratch_take(model, &model->routed.router, model->tile_rows * model->routed.router_stride) ||
            (has_beside && !scratch_take(model, &model->routed.y, (size_t)model->tile_rows * model->hp.d_model)))
                return false;
        model->scratch_bytes += tdm_experts_scratch_bytes(model->routed.experts);
        return true;
}

/* Matrices that do not lie in panels, and which of their layers are run sparsely. TANDEM_SPARSE=off: none, for
 * comparison. */
static bool sparse_init(struct tdm_host_model *model)
{
        const char *wanted = getenv("TANDEM_SPARSE");
        unsigned n_threads = tdm_pool_n_threads(model->pool);
        bool is_off = wanted && strcmp(wanted, "off") == 0, has = false;

        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                struct tdm_host_layer *l = &model->layers[i];
                const struct tdm_matrix *matrices[] = { &l->up.matrix, &l->down.matrix };
                struct tdm_sparse_layer sparse = { l->up.matrix, l->down.matrix, l->up.act, l->down.act };

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(matrices); k++)
                        if (matrices[k]->order != TDM_ORDER_PANELS)
                                model->panels.stride = TDM_MAX(model->panels.stride,
                                                               tdm_panels_unit(matrices[k]) * matrices[k]->panel_bytes);
                if (is_off || !model->recipe.layers[i].is_sparse || l->up.bias || l->down.bias ||
                    !tdm_sparse_can(&sparse))
                        continue;
                l->sparse = sparse;
                has = true;
        }
        if (model->panels.stride > 0 &&
            !scratch_take(model, (float **)&model->panels.memory, n_threads * model->panels.stride / sizeof(float)))
                return false;
        return !has || tdm_sparse_new(&model->sparse, model->hp.d_ff, model->hp.d_model, n_threads) == 0;
}

static bool scratch_init(struct tdm_host_model *model, const struct tdm_steps_limits *limits)
{
        const struct tdm_hparams *hp = &model->hp;
        size_t rows = model->tile_rows = TDM_MIN(limits->max_rows, TDM_HOST_TILE_ROWS),
               n_threads = tdm_pool_n_threads(model->pool);
        uint32_t q_width = 0, kv_width = 0, d_ff = hp->d_ff; /* the largest of any layer */
        unsigned forms[TDM_HOST_N_INPUTS] = {};
        bool is_sparse = false, has_gate = model->recipe.ffn == TDM_FFN_GATED;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_host_layer *l = &model->layers[i];
                const struct tdm_layer_sizes *sizes = &hp->layers[i];

                q_width = TDM_MAX(q_width, sizes->n_state > 0 ?
                                                   TDM_MAX(hp->d_model, model->recipe.layers[i].delta_v_heads *
                                                                                model->recipe.layers[i].delta_size) :
                                                   sizes->n_heads * sizes->head_dim);
                kv_width = TDM_MAX(kv_width, sizes->n_kv_heads * sizes->head_dim);
                is_sparse = is_sparse || model->recipe.layers[i].is_sparse;
                forms[TDM_HOST_QKV] |= 1u << l->q.act | 1u << l->k.act | 1u << l->v.act;
                if (model->recipe.laurel_rank > 0)
                        forms[TDM_HOST_QKV] |= 1u << l->laurel_l.act;
                forms[TDM_HOST_ATTN_OUT] |= 1u << l->o.act;
                if (model->recipe.layers[i].mixer == TDM_MIXER_GATED_DELTA)
                        forms[TDM_HOST_QKV] |=
                                1u << l->delta.z.act | 1u << l->delta.alpha.act | 1u << l->delta.beta.act;
                if (l->experts.n_experts > 0) {
                        forms[TDM_HOST_GATE_UP] |=
                                1u << l->router.act | 1u << l->experts.gate_act | 1u << l->experts.up_act;
                }
                if (model->recipe.layers[i].d_shared > 0) {
                        forms[TDM_HOST_GATE_UP] |= 1u << l->shared.gate.act | 1u << l->shared.up.act;
                        forms[TDM_HOST_DOWN] |= 1u << l->shared.down.act;
                        d_ff = TDM_MAX(d_ff, model->recipe.layers[i].d_shared);
                }
                if (has_dense(&model->recipe.layers[i])) {
                        forms[TDM_HOST_GATE_UP] |= 1u << l->up.act;
                        if (has_gate)
                                forms[TDM_HOST_GATE_UP] |= 1u << l->gate.act;
                        forms[TDM_HOST_DOWN] |= 1u << l->down.act;
                }
        }
        model->logits_stride = TDM_ALIGN_UP(hp->n_vocab, 16u);
        model->logits_rows = (uint32_t)TDM_MIN(
                TDM_MAX(TDM_HOST_LOGITS_BYTES_MAX / (model->logits_stride * sizeof(float)), 1u), limits->max_logits);
        model->row_stride = TDM_ALIGN_UP(TDM_MAX(hp->d_model, model->recipe.per_layer_width), 16u);
        model->sampler.stride = TDM_ALIGN_UP(tdm_sampler_scratch_bytes(hp->n_vocab), (size_t)64);

        if (!acts_take(model, TDM_HOST_QKV, forms[TDM_HOST_QKV], rows, hp->d_model) ||
            !acts_take(model, TDM_HOST_ATTN_OUT, forms[TDM_HOST_ATTN_OUT], rows, q_width) ||
            !acts_take(model, TDM_HOST_GATE_UP, forms[TDM_HOST_GATE_UP], rows, hp->d_model) ||
            (forms[TDM_HOST_DOWN] != 0 &&
             !acts_take(model, TDM_HOST_DOWN, forms[TDM_HOST_DOWN], rows, TDM_ALIGN_UP(d_ff, 32u))) ||
            !acts_take(model, TDM_HOST_HEAD, 1u << model->output.act, model->logits_rows, hp->d_model) ||
            !scratch_take(model, &model->heads.q, rows * q_width) ||
            !scratch_take(model, &model->heads.attn, rows * q_width) ||
            !scratch_take(model, &model->heads.k, rows * kv_width) ||
            !scratch_take(model, &model->heads.v, rows * kv_width) ||
            !scratch_take(model, &model->neutral.ones, hp->head_dim) ||
            (model->recipe.norm_kind == TDM_NORMS_CENTERED &&
             !scratch_take(model, &model->neutral.zeros, TDM_MAX(hp->d_model, hp->head_dim))) ||
            (is_sparse && !scratch_take(model, &model->gate, rows * hp->d_ff)) ||
            ((is_sparse || !has_gate) && !scratch_take(model, &model->up, rows * hp->d_ff)) ||
            !scratch_take(model, &model->y, rows * hp->d_model) ||
            !scratch_take(model, &model->row, n_threads * model->row_stride) ||
            !scratch_take(model, &model->logits, (size_t)model->logits_rows * model->logits_stride) ||
            !scratch_take(model, (float **)&model->sampler.scratch, n_threads * model->sampler.stride / sizeof(float)))
                return false;
        for (uint32_t i = 0; i < hp->head_dim; i++)
                model->neutral.ones[i] = 1;
        if (model->neutral.zeros)
                memset(model->neutral.zeros, 0, TDM_MAX(hp->d_model, hp->head_dim) * sizeof(float));
        if (tdm_host_early_new(&model->early, model, limits) < 0 || !tdm_host_streams_scratch(model) ||
            !sparse_init(model) || !experts_scratch_init(model) || !tdm_host_short_conv_init(model) ||
            !tdm_host_delta_init(model))
                return false;
        if (tdm_attention_new(&model->attention, hp, rows, n_threads) < 0)
                return false;
        model->scratch_bytes += tdm_attention_scratch_bytes(model->attention);
        return true;
}

/* Features that go together here. */
static int check_streams(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        bool has_streams = recipe->residual == TDM_RESIDUAL_ALTUP, fits = (recipe->laurel_rank > 0) == has_streams;

        for (uint32_t i = 0; i < hp->n_layers && has_streams; i++)
                fits = fits && recipe->layers[i].norms & TDM_NORM_ATTN_BEFORE &&
                       recipe->layers[i].norms & TDM_NORM_ATTN_AFTER;
        return fits ? 0 :
                      tdm_error_set(err, TDM_E_UNSUPPORTED,
                                    "host device: a residual of several streams goes with a low-rank branch and with "
                                    "norms before and after attention");
}

static int host_load(struct tdm_device *device, const struct tdm_device_model_config *config,
                     struct tdm_device_model **ret, struct tdm_error *err)
{
        struct host_device *host = (struct host_device *)device;
        const struct tdm_weights_header *header = tdm_weights_header(config->weights);
        const struct tdm_hparams *hp = &header->hparams;
        struct tdm_host_model *model;
        int r;

        r = tdm_device_check_model(config, TDM_HOST_FEATURES, "host", err);
        if (r == 0)
                r = check_streams(&header->recipe, hp, err);
        if (r)
                return r;
        static_assert(TDM_ARRAY_SIZE(input_acts) == TDM_PRECISION_F32 + 1, "a row for each precision");

        model = calloc(1, sizeof(*model));
        if (!model)
                return tdm_error_set(err, -ENOMEM, "host device: no memory");
        model->pool = host->pool;
        model->alone = host->alone;
        model->kernels = host->kernels;
        model->weights = config->weights;
        model->hp = *hp;
        model->recipe = header->recipe;
        model->kv = config->kv;
        model->kv_base = config->kv_base;
        model->limits = config->limits;
        model->layers = calloc(hp->n_layers, sizeof(*model->layers));
        if (model->layers) {
                layers_init(model, input_acts[config->precision]);
                count_macs(model);
        }
        r = model->layers && scratch_init(model, &config->limits) ? ropes_init(model) : -ENOMEM;
        if (r == 0 && model->recipe.pooling != TDM_POOLING_NONE) {
                r = tdm_pooler_new(&model->pooling, model->weights, model->pool, model->kernels,
                                   model->limits.max_logits, input_acts[config->precision][TDM_HOST_SIDE]);
                model->scratch_bytes += r == 0 ? tdm_pooler_bytes(model->pooling) : 0;
        }
        if (r != 0) {
                if (r == -EDOM)
                        r = tdm_error_set(err, TDM_E_BAD_MODEL,
                                          "host device: tensor rope_freqs.weight holds a number by which no angle can "
                                          "be divided");
                else
                        tdm_error_set(err, r, "host device: no memory for a model's scratch of over %zu bytes",
                                      model->scratch_bytes);
                host_unload((struct tdm_device_model *)model);
                return r;
        }
        *ret = (struct tdm_device_model *)model;
        return 0;
}

static void host_set_kv(struct tdm_device_model *public, uint8_t *kv_base)
{
        host_model_of(public)->kv_base = kv_base;
}

static uint64_t host_scratch_bytes(const struct tdm_device_model *public)
{
        return host_model_of(public)->scratch_bytes;
}

static uint64_t host_n_saturated(const struct tdm_device_model *public)
{
        return atomic_load_explicit(&host_model_of(public)->n_saturated, memory_order_relaxed);
}

static int run_block(struct tdm_host_model *model, const struct tdm_step *step, uint32_t block, float *hidden,
                     struct tdm_result *results, struct tdm_error *err)
{
        switch (tdm_block_kind(&model->hp, block)) {
        case TDM_BLOCK_EMBED:
                tdm_host_embed(model, step, hidden);
                return 0;
        case TDM_BLOCK_ATTENTION:
                if (!model->kv_base)
                        return tdm_error_set(err, -EINVAL, "host device: asked for attention without a KV cache");
                tdm_host_attention(model, step, tdm_block_layer(block), hidden);
                return 0;
        case TDM_BLOCK_FFN:
                tdm_host_ffn(model, step, tdm_block_layer(block), hidden);
                return 0;
        case TDM_BLOCK_HEAD:
                if (!model->pooling)
                        tdm_host_head(model, step, hidden);
                return 0;
        default:
                if (model->pooling) {
                        memset(results, 0, step->head.n_logits * sizeof(*results));
                        return tdm_pooler_run(model->pooling, step, hidden, tdm_steps_vectors(results, &model->limits),
                                              err);
                }
                return tdm_host_sample(model, step, hidden, results, err);
        }
}

/* Windows and rows that stop early are left out: then it counts too much. */
static bool is_small(const struct tdm_host_model *model, const struct tdm_step *step)
{
        uint64_t macs = step->head.n_rows * model->row_macs + step->head.n_logits * weight_macs(&model->output);

        for (uint32_t row = 0; row < step->head.n_rows && macs < ALONE_MACS; row++)
                macs += (step->rows[row].position + UINT64_C(1)) * model->key_macs;
        return macs < ALONE_MACS;
}

static int host_run(struct tdm_device_model *public, const struct tdm_step *step, uint32_t first, uint32_t n,
                    float *hidden, struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata),
                    void *userdata, struct tdm_error *err)
{
        struct tdm_host_model *model = host_model_of(public);

        struct tdm_pool *all = model->pool;
        int r = 0;

        assert(first + n <= tdm_model_n_blocks(&model->hp));
        if (is_small(model, step))
                model->pool = model->alone;
        for (uint32_t block = first; r == 0 && block < first + n; block++) {
                const struct tdm_step *shorter = NULL;
                float *rows = hidden;

                if (tdm_host_early_has(model->early, block))
                        shorter = tdm_host_early_begin(model->early, step, hidden, &rows);
                r = run_block(model, shorter ? shorter : step, block, rows, results, err);
                if (shorter)
                        tdm_host_early_end(model->early, hidden);
                if (r == 0 && on_block)
                        on_block(block, userdata);
        }
        model->pool = all;
        return r;
}

const struct tdm_device_ops tdm_host_device_ops = {
        .name = "host",
        .open = host_open,
        .close = host_close,
        .describe = host_describe,
        .numerics_id = host_numerics_id,
        .model_load = host_load,
        .model_unload = host_unload,
        .set_kv = host_set_kv,
        .model_scratch_bytes = host_scratch_bytes,
        .run = host_run,
        .n_saturated = host_n_saturated,
};
