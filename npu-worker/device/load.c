/* Decides which part of a model's attention goes to the NPU, and puts its weights into the NPU's buffers.
 *
 * It is decided when the model is loaded, from the programs of the set, the budget and the model alone, so that the
 * same model gives the same bits after a restart. Whole blocks where the set has programs for them, else products;
 * layers that the budget has no room for run on the CPU. The decision is logged, and plan() tells it. */
#include "npu-worker/device/private.h"

#include "common/log.h"

#define BIT(feature) TDM_FEATURE_BIT(TDM_FEATURE_##feature)
/* Features beyond Gemma 3 that a model may have where whole attention blocks run on the NPU: its programs know norms of
 * heads, angles that they are handed, and a window. FFNs are the host device's. */
#define BLOCK_FEATURES                                                                                                 \
        (BIT(NO_NORM_AFTER) | BIT(ROPE_STILL) | BIT(ROPE_DIVISORS) | BIT(ROPE_YARN) | BIT(ROPE_MAGNITUDE) |            \
         BIT(ROPE_BY_LAYER) | BIT(WINDOW_BY_LAYER) | TDM_ACTIVATION_FEATURES | BIT(FF_BY_LAYER) | BIT(SPARSITY) |      \
         BIT(EXPERTS))
/* The same where the products alone do: what lies between them is the host device's code. */
#define PRODUCT_FEATURES                                                                                               \
        (BLOCK_FEATURES | BIT(NO_NORM_BEFORE) | BIT(NO_QK_NORM) | BIT(QK_NORM_WIDE) | BIT(QK_NORM_LATE) |              \
         BIT(QUERY_GROWTH) | BIT(V_NORM) | BIT(BIASES) | BIT(NO_ROPE) | BIT(ROPE_PARTIAL) | BIT(ATTENTION_SOFTCAP) |   \
         BIT(SINKS))

struct fill {
        const struct tdm_host_model *host;
        struct tdm_npu_weights *weights;             /* of a product, or */
        struct tdm_npu_block_weights *block;         /* of a block: the output, or q, k and v */
        bool out, q4;                                /* q4: numbers of 4 bits go as they are */
        const struct tdm_weights_tensor *tensors[3]; /* one below the other */
        unsigned n_tensors;
        float *rows; /* [n_threads][cols] */
        uint32_t cols;
};

#define FILL_ROWS 16u /* even: two outputs of int4 share bytes */

static void fill_rows(void *arg, unsigned chunk, unsigned thread)
{
        const struct fill *fill = arg;
        float *values = fill->rows + (size_t)thread * fill->cols;
        uint32_t n_rows = 0;

        for (unsigned i = 0; i < fill->n_tensors; i++)
                n_rows += fill->tensors[i]->rows;
        for (uint32_t output = chunk * FILL_ROWS; output < TDM_MIN((chunk + 1) * FILL_ROWS, n_rows); output++) {
                uint32_t row = output;
                unsigned t = 0;

                while (row >= fill->tensors[t]->rows)
                        row -= fill->tensors[t++]->rows;
                if (fill->q4) {
                        int8_t *q = (int8_t *)values;
                        uint16_t *scales = (uint16_t *)(values + fill->cols / 2);

                        tdm_weights_row_q4_0(fill->host->weights, fill->tensors[t], row, q, scales);
                        tdm_npu_weights_fill_q4(fill->weights, output, q, scales);
                        continue;
                }
                tdm_weights_row(fill->host->weights, fill->tensors[t], row, values);
                if (fill->block)
                        tdm_npu_block_weights_fill(fill->block, fill->out, output, values);
                else
                        tdm_npu_weights_fill(fill->weights, output, values);
        }
}

/* Tensors, one below the other, to where fill says. */
static int convert(struct fill *fill, uint32_t layer, const enum tdm_tensor_kind *kinds, unsigned n_kinds,
                   struct tdm_error *err)
{
        const struct tdm_host_model *host = fill->host;
        uint32_t n_rows = 0;

        fill->n_tensors = n_kinds;
        for (unsigned i = 0; i < n_kinds; i++) {
                fill->tensors[i] = tdm_weights_find(host->weights, kinds[i], layer);
                n_rows += fill->tensors[i]->rows;
        }
        fill->cols = fill->tensors[0]->cols;
        fill->rows = malloc((size_t)tdm_pool_n_threads(host->pool) * fill->cols * sizeof(float));
        if (!fill->rows)
                return tdm_error_set(err, -ENOMEM, "no memory to convert weights for the NPU");
        tdm_pool_run(host->pool, TDM_DIV_UP(n_rows, FILL_ROWS), fill_rows, fill);
        free(fill->rows);
        return 0;
}

static const enum tdm_tensor_kind qkv_kinds[] = { TDM_TENSOR_Q, TDM_TENSOR_K, TDM_TENSOR_V },
                                  out_kinds[] = { TDM_TENSOR_O };

static int put_block(struct tdm_npu_model *model, uint32_t layer, struct tdm_npu_block_weights **ret,
                     struct tdm_error *err)
{
        struct fill fill = { .host = model->host };
        int r = tdm_npu_block_weights_new(model->block, &fill.block, err);

        if (r != 0)
                return r;
        r = convert(&fill, layer, qkv_kinds, TDM_ARRAY_SIZE(qkv_kinds), err);
        fill.out = true;
        if (r == 0)
                r = convert(&fill, layer, out_kinds, TDM_ARRAY_SIZE(out_kinds), err);
        if (r == 0)
                r = tdm_npu_block_weights_finish(fill.block, err);
        if (r != 0)
                tdm_npu_block_weights_destroy(fill.block);
        else
                *ret = fill.block;
        return r;
}

/* Into buffers of the device. */
static int put_weights(struct tdm_npu_model *model, struct tdm_npu_product *product, uint32_t layer,
                       const enum tdm_tensor_kind *kinds, unsigned n_kinds, struct tdm_npu_weights **ret,
                       struct tdm_error *err)
{
        struct fill fill = { .host = model->host, .q4 = tdm_npu_type_is_int4(tdm_npu_product_type(product)) };
        int r = tdm_npu_weights_new(product, &fill.weights, err);

        if (r != 0)
                return r;
        r = convert(&fill, layer, kinds, n_kinds, err);
        if (r == 0)
                r = tdm_npu_weights_finish(fill.weights, err);
        if (r != 0) {
                tdm_npu_weights_destroy(fill.weights);
                return r;
        }
        *ret = fill.weights;
        return 0;
}

static int load_layers(struct tdm_npu_model *model, struct tdm_error *err)
{
        for (uint32_t i = 0; i < model->host->hp.n_layers; i++) {
                struct tdm_npu_layer layer = {};
                struct tdm_error why = {};
                int r;

                if (model->block)
                        r = put_block(model, i, &layer.block, &why);
                else
                        r = put_weights(model, model->qkv, i, qkv_kinds, TDM_ARRAY_SIZE(qkv_kinds), &layer.qkv, &why);
                if (r == 0 && !model->block)
                        r = put_weights(model, model->out, i, out_kinds, TDM_ARRAY_SIZE(out_kinds), &layer.out, &why);
                if (r != 0) {
                        tdm_npu_weights_destroy(layer.qkv);
                        if (r != TDM_E_NO_MEMORY)
                                return tdm_error_set(err, r, "%s", why.message);
                        tdm_log_warning("npu: layers from %u on run on the CPU: %s", i, why.message);
                        return 0;
                }
                model->layers[i] = layer;
                model->n_npu_layers++;
        }
        return 0;
}

/* The type of a product's programs. It is int4 only where the file has the matrices in Q4_0: other weights would lose
 * too much. Then rows are rounded as the host rounds them, so that an order of blocks32 gives the host's bits. */
static enum tdm_npu_type product_type(const struct tdm_npu_device *device, const struct tdm_npu_model *model,
                                      const enum tdm_tensor_kind *kinds, unsigned n_kinds)
{
        const struct tdm_host_model *host = model->host;
        enum tdm_npu_type type = device->type;

        for (uint32_t i = 0; type != TDM_NPU_BF16 && tdm_npu_type_is_int4(device->type) && i < host->hp.n_layers; i++) {
                const struct tdm_host_layer *layer = &host->layers[i];
                enum tdm_act act = kinds[0] == TDM_TENSOR_Q ? layer->q.act : layer->o.act;

                if (act == TDM_ACT_I16)
                        type = TDM_NPU_INT4A16;
                for (unsigned k = 0; k < n_kinds; k++)
                        if (tdm_weights_find(host->weights, kinds[k], i)->type != TDM_TYPE_Q4_0)
                                type = TDM_NPU_BF16;
        }
        return type;
}

/* A set may have int4a16 alone, which is finer. */
static int plan_product(const struct tdm_npu_device *device, enum tdm_npu_type type, uint32_t rows, uint32_t cols,
                        struct tdm_npu_plan *ret, struct tdm_error *err)
{
        const struct tdm_npu_manifest *manifest = tdm_npu_manifest(device->npu);
        int r = tdm_npu_plan_matrix(manifest, type, rows, cols, ret, err);

        if (r == TDM_E_UNSUPPORTED && type == TDM_NPU_INT4)
                r = tdm_npu_plan_matrix(manifest, TDM_NPU_INT4A16, rows, cols, ret, err);
        return r;
}

/* NULL: whole blocks run on the NPU in bf16; else why not, "" where the set has no programs for it. */
static const char *why_no_blocks(struct tdm_npu_device *device, const struct tdm_npu_model *model, uint32_t n_pages,
                                 struct tdm_npu_block_plan *ret)
{
        const struct tdm_hparams *hp = &model->host->hp;

        if (tdm_recipe_features(&model->host->recipe, hp) & ~BLOCK_FEATURES ||
            tdm_npu_plan_block(tdm_npu_manifest(device->npu), hp->d_model, hp->n_heads, hp->n_kv_heads, hp->head_dim,
                               n_pages, ret) != 0)
                return "";
        if (model->host->kv.type != TDM_KV_F16)
                return "attention over pages wants kv-type f16";
        return NULL;
}

static int load_blocks(struct tdm_npu_device *device, struct tdm_npu_model *model,
                       const struct tdm_npu_block_plan *plan, struct tdm_error *err)
{
        uint64_t limit = tdm_npu_memlock(device->npu), cache_bytes = model->host->kv.size_bytes;
        char path[128] = "imported (user memory)";
        size_t n_parts;
        int r = tdm_npu_block_new(device->npu, plan, model->host->tile_rows, cache_bytes, &model->block, err);

        if (r != 0)
                return r;
        n_parts = (size_t)tdm_npu_block_rows(model->block) * (plan->pages + 1);
        model->reads = calloc(n_parts, sizeof(*model->reads));
        model->writes = calloc(n_parts, sizeof(*model->writes));
        if (!model->reads || !model->writes)
                return tdm_error_set(err, -ENOMEM, "no memory for an attention block on the NPU");
        r = load_layers(model, err);
        if (r != 0)
                return r;
        if (cache_bytes > limit)
                snprintf(path, sizeof(path),
                         "copied: RLIMIT_MEMLOCK is %llu KiB, importing it takes %llu (LimitMEMLOCK=, kv-memory=)",
                         (unsigned long long)limit >> 10, (unsigned long long)cache_bytes >> 10);
        snprintf(model->plan, sizeof(model->plan),
                 "%u of %u attention layers on the NPU in bf16, 1 command a block over the cache's "
                 "pages, up to %u rows; %llu of %llu MiB used; rows copied, cache %s",
                 model->n_npu_layers, model->host->hp.n_layers, tdm_npu_block_rows(model->block),
                 (unsigned long long)((tdm_npu_budget(device->npu) - tdm_npu_budget_left(device->npu)) >> 20),
                 (unsigned long long)(tdm_npu_budget(device->npu) >> 20), path);
        tdm_log_info("npu: %s", model->plan);
        return 0;
}

static void say_why_on_cpu(struct tdm_npu_model *model, const char *why)
{
        tdm_log_warning("npu: this model's attention runs on the CPU: %s", why);
        snprintf(model->plan, sizeof(model->plan), "attention on the CPU: %.350s", why);
}

static void say_on_cpu(struct tdm_npu_model *model, enum tdm_precision precision)
{
        snprintf(model->plan, sizeof(model->plan),
                 "attention on the CPU: precision %s promises more than an NPU's formats hold",
                 tdm_precision_name(precision));
        tdm_log_info("npu: %s", model->plan);
}

/* For people: what runs where; no_blocks: why whole blocks do not, "" where the set has none. */
static void say_products(struct tdm_npu_model *model, const struct tdm_npu_plan *qkv, const struct tdm_npu_plan *out,
                         const char *no_blocks)
{
        enum tdm_npu_type asked = model->device->type;
        const char *note = "";

        if (tdm_npu_type_is_int4(asked))
                note = qkv->type == TDM_NPU_BF16 && out->type == TDM_NPU_BF16 ? " (int4 is for Q4_0)" :
                       qkv->type == TDM_NPU_BF16 ? " (qkv in bf16: not all of it is Q4_0)" :
                       out->type == TDM_NPU_BF16 ? " (output in bf16: not all of it is Q4_0)" :
                                                   "";
        snprintf(model->plan, sizeof(model->plan),
                 "%u of %u attention layers on the NPU in %s%s: qkv %u command%s of %ux%u, output %u "
                 "of %ux%u, up to %u rows; %llu of %llu MiB used; rows copied (rounded on the way)%s%s",
                 model->n_npu_layers, model->host->hp.n_layers,
                 tdm_npu_type_name(qkv->type == out->type ? qkv->type : asked), note, tdm_npu_plan_commands(qkv),
                 tdm_npu_plan_commands(qkv) == 1 ? "" : "s", qkv->k, qkv->n, tdm_npu_plan_commands(out), out->k, out->n,
                 tdm_npu_product_rows(model->qkv),
                 (unsigned long long)((tdm_npu_budget(model->npu) - tdm_npu_budget_left(model->npu)) >> 20),
                 (unsigned long long)(tdm_npu_budget(model->npu) >> 20), no_blocks[0] ? "; " : "", no_blocks);
        tdm_log_info("npu: %s", model->plan);
}

static int load_products(struct tdm_npu_device *device, struct tdm_npu_model *model, enum tdm_npu_type qkv_type,
                         enum tdm_npu_type out_type, const char *no_blocks, struct tdm_error *err)
{
        const struct tdm_hparams *hp = &model->host->hp;
        uint32_t q_width = hp->n_heads * hp->head_dim, qkv_width = q_width + 2 * hp->n_kv_heads * hp->head_dim;
        struct tdm_npu_plan qkv = {}, out = {};
        struct tdm_error why = {};
        int r = plan_product(device, qkv_type, qkv_width, hp->d_model, &qkv, &why);

        if (r == 0)
                r = plan_product(device, out_type, hp->d_model, q_width, &out, &why);
        qkv.kernels = out.kernels = model->host->kernels;
        if (r == 0)
                r = tdm_npu_product_new(device->npu, &qkv, model->host->tile_rows, &model->qkv, &why);
        if (r == 0)
                r = tdm_npu_product_new(device->npu, &out, model->host->tile_rows, &model->out, &why);
        if (r == TDM_E_UNSUPPORTED || r == TDM_E_NO_MEMORY) {
                say_why_on_cpu(model, why.message);
                return 0;
        }
        if (r != 0)
                return tdm_error_set(err, r, "%s", why.message);
        r = load_layers(model, err);
        if (r == 0)
                say_products(model, &qkv, &out, no_blocks);
        return r;
}

int tdm_npu_load(struct tdm_npu_model *model, uint32_t n_pages, enum tdm_precision precision, struct tdm_error *err)
{
        struct tdm_npu_device *device = model->device;
        struct tdm_npu_block_plan blocks;
        enum tdm_npu_type qkv_type, out_type;
        struct tdm_error why = {};
        const char *no_blocks = "";
        int r;

        if (precision != TDM_PRECISION_DEFAULT) {
                say_on_cpu(model, precision);
                return 0;
        }
        if (model->host->limits.max_pictures > 0) {
                say_why_on_cpu(model, "npu device: pictures are left to the CPU");
                return 0;
        }
        if (tdm_recipe_check_device(&model->host->recipe, &model->host->hp, PRODUCT_FEATURES, "npu", &why) != 0) {
                say_why_on_cpu(model, why.message);
                return 0;
        }
        qkv_type = product_type(device, model, qkv_kinds, TDM_ARRAY_SIZE(qkv_kinds));
        out_type = product_type(device, model, out_kinds, TDM_ARRAY_SIZE(out_kinds));
        if (qkv_type == TDM_NPU_BF16 && out_type == TDM_NPU_BF16)
                no_blocks = why_no_blocks(device, model, n_pages, &blocks);
        if (!no_blocks) {
                r = load_blocks(device, model, &blocks, &why);
                if (r != TDM_E_NO_MEMORY || model->block)
                        return r == 0 ? 0 : tdm_error_set(err, r, "%s", why.message);
                no_blocks = "attention over pages does not fit npu-memory";
        }
        if (no_blocks[0])
                tdm_log_warning("npu: no attention over pages: %s", no_blocks);
        return load_products(device, model, qkv_type, out_type, no_blocks, err);
}
