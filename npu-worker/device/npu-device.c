/* The NPU behind engine/device/device.h: see npu-device.h for what runs where.
 *
 * Which layers go to the NPU follows from the budget and the model alone, and the numerics id names everything that
 * could change a bit: kind of device, type, the set of programs, the budget. */
#include "npu-worker/device/private.h"
#include "npu-worker/telemetry/telemetry.h"

#include <assert.h>

#include "common/log.h"

#define NUMERICS "1" /* changes when an order of operations or a rounding does */

#define BIT(feature) TDM_FEATURE_BIT(TDM_FEATURE_##feature)
/* What a model may ask for beyond Gemma 3 where whole attention blocks run on the NPU: its programs know norms of
 * heads, angles that they are handed, and a window. FFNs are the host device's. */
#define BLOCK_FEATURES                                                                                                 \
        (BIT(NO_NORM_AFTER) | BIT(ROPE_DIVISORS) | BIT(ROPE_YARN) | BIT(ROPE_MAGNITUDE) | BIT(ROPE_BY_LAYER) |         \
         BIT(WINDOW_BY_LAYER) | BIT(SILU) | BIT(SWIGLU_CLAMPED) | BIT(FF_BY_LAYER) | BIT(SPARSITY) | BIT(EXPERTS))
/* The same where the products alone do: what lies between them is the host device's code. */
#define PRODUCT_FEATURES                                                                                               \
        (BLOCK_FEATURES | BIT(NO_QK_NORM) | BIT(V_NORM) | BIT(BIASES) | BIT(NO_ROPE) | BIT(ROPE_PARTIAL) |             \
         BIT(ATTENTION_SOFTCAP) | BIT(SINKS))

struct tdm_npu_device {
        struct tdm_device public;
        struct tdm_device *host;
        struct tdm_npu *npu;
        enum tdm_npu_type type;
        char *description, *numerics_id;
        struct tdm_device_counters *counters, own_counters; /* the first may be the second */
        struct tdm_npu_telemetry telemetry;
};

/* struct tdm_device_model is never defined: its address is that of our struct. */
static struct tdm_npu_model *npu_model_of(const struct tdm_device_model *model)
{
        return (struct tdm_npu_model *)model;
}

/* ---- opening ---- */

static int read_settings(struct tdm_npu_device *device, const struct tdm_device_config *from,
                         struct tdm_npu_config *config, struct tdm_error *err)
{
        const char *format = from->number_format ? from->number_format : getenv("TANDEM_NPU_FORMAT");
        const char *memory = from->memory_bytes ? NULL : getenv("TANDEM_NPU_MEMORY_MB");
        const char *programs = from->programs ? from->programs : getenv("TANDEM_NPU_PROGRAMS");
        int type = format && *format ? tdm_npu_type_from_name(format) : TDM_NPU_BF16;
        unsigned long long mb = 0;
        char *end = NULL;

        if (type < 0 || type == TDM_NPU_INT4A16)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "number format %.32s for the NPU: there is bf16, int8 and int4", format);
        if (memory && *memory) {
                errno = 0;
                mb = strtoull(memory, &end, 10);
                if (errno != 0 || *end || mb == 0 || mb > 1u << 24)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "TANDEM_NPU_MEMORY_MB=%.32s is not a number of MiB", memory);
        }
        device->type = (enum tdm_npu_type)type;
        config->budget_bytes = from->memory_bytes ? from->memory_bytes : (uint64_t)mb << 20;
        config->programs = programs && *programs ? programs : NULL;
        return 0;
}

static void npu_close(struct tdm_device *public)
{
        struct tdm_npu_device *device = (struct tdm_npu_device *)public;

        if (!device)
                return;
        tdm_npu_close(device->npu);
        tdm_npu_telemetry_close(&device->telemetry);
        if (device->host)
                device->host->ops->close(device->host);
        free(device->description);
        free(device->numerics_id);
        free(device);
}

static int open_device(struct tdm_device **ret, const struct tdm_device_config *config,
                       const struct tdm_device_ops *ops, struct tdm_error *err)
{
        struct tdm_npu_device *device = calloc(1, sizeof(*device));
        struct tdm_npu_config npu_config = { .emulated = ops == &tdm_emulated_device_ops,
                                             .heartbeat = config->heartbeat };
        const struct tdm_npu_manifest *manifest;
        uint32_t n = 0;
        int r;

        if (!device)
                return tdm_error_set(err, -ENOMEM, "no memory for the NPU");
        device->public.ops = ops;
        device->telemetry.fd = -1;
        if (ops == &tdm_xrt_device_ops)
                tdm_npu_telemetry_open(&device->telemetry);
        device->counters = config->counters ? config->counters : &device->own_counters;
        r = read_settings(device, config, &npu_config, err);
        if (r == 0) {
                r = tdm_npu_open(&device->npu, &npu_config, err);
                if (r != 0)
                        tdm_error_prefix(err, "no %s device", ops->name);
        }
        if (r == 0)
                r = tdm_host_device_ops.open(&device->host, config, err);
        if (r != 0) {
                /* Here in full: where it is shown there may be less room. */
                tdm_log_error("%s", err ? err->message : ops->name);
                npu_close(&device->public);
                return r;
        }
        manifest = tdm_npu_manifest(device->npu);
        for (uint32_t i = 0; i < manifest->n_programs; i++)
                n += manifest->programs[i].type == device->type ||
                     (device->type == TDM_NPU_INT4 && manifest->programs[i].type == TDM_NPU_INT4A16);
        if (asprintf(&device->description, "%s NPU, %u %s programs, %s; beside it %s", manifest->generation, n,
                     tdm_npu_type_name(device->type), tdm_npu_flavour(device->npu),
                     device->host->ops->describe(device->host)) < 0)
                device->description = NULL;
        if (asprintf(&device->numerics_id, "%s-" NUMERICS "-%s-%016llx-%llu+%s", ops->name,
                     tdm_npu_type_name(device->type), (unsigned long long)manifest->hash,
                     (unsigned long long)(tdm_npu_budget(device->npu) >> 20),
                     device->host->ops->numerics_id(device->host)) < 0)
                device->numerics_id = NULL;
        if (!device->description || !device->numerics_id) {
                npu_close(&device->public);
                return tdm_error_set(err, -ENOMEM, "no memory for the NPU");
        }
        *ret = &device->public;
        return 0;
}

static int xrt_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        return open_device(ret, config, &tdm_xrt_device_ops, err);
}

static int emulated_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        return open_device(ret, config, &tdm_emulated_device_ops, err);
}

static const char *npu_numerics_id(const struct tdm_device *device)
{
        return ((const struct tdm_npu_device *)device)->numerics_id;
}

/* ---- models ---- */

static double share_of(const struct tdm_npu_model *model)
{
        uint64_t all = model->npu_macs + model->host_macs;

        return all ? 100.0 * (double)model->npu_macs / (double)all : 0;
}

static const char *npu_describe(const struct tdm_device *public)
{
        return ((const struct tdm_npu_device *)public)->description;
}

static const char *npu_plan(const struct tdm_device_model *public)
{
        return npu_model_of(public)->plan;
}

static void npu_unload(struct tdm_device_model *public)
{
        struct tdm_npu_model *model = npu_model_of(public);
        const struct tdm_npu_counters *c;

        if (!model)
                return;
        c = tdm_npu_counters(model->npu);
        if (model->npu_macs + model->host_macs > 0)
                tdm_log_info("npu: %.1f%% of attention's multiplications ran on the NPU; %llu submissions of %llu "
                             "commands in all, "
                             "%llu repeated, %llu contexts made anew",
                             share_of(model), (unsigned long long)c->n_submissions, (unsigned long long)c->n_commands,
                             (unsigned long long)c->n_retries, (unsigned long long)c->n_contexts);
        for (uint32_t i = 0; model->layers && i < model->host->hp.n_layers; i++) {
                tdm_npu_weights_destroy(model->layers[i].qkv);
                tdm_npu_weights_destroy(model->layers[i].out);
                tdm_npu_block_weights_destroy(model->layers[i].block);
        }
        free(model->layers);
        free(model->reads);
        free(model->writes);
        tdm_npu_block_destroy(model->block);
        tdm_npu_product_destroy(model->qkv);
        tdm_npu_product_destroy(model->out);
        tdm_host_device_ops.model_unload((struct tdm_device_model *)model->host);
        free(model);
}

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

/* Of a product's programs. int4 only where the file has the matrices in Q4_0: other weights would lose too much. Then
 * rows are rounded as the host rounds them, so that an order of blocks32 gives the host's bits. */
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

static int load_npu(struct tdm_npu_device *device, struct tdm_npu_model *model, uint32_t n_pages, struct tdm_error *err)
{
        const struct tdm_hparams *hp = &model->host->hp;
        uint32_t q_width = hp->n_heads * hp->head_dim, qkv_width = q_width + 2 * hp->n_kv_heads * hp->head_dim;
        struct tdm_npu_block_plan blocks;
        enum tdm_npu_type qkv_type, out_type;
        struct tdm_npu_plan qkv = {}, out = {};
        struct tdm_error why = {};
        const char *no_blocks = "";
        int r;

        if (tdm_recipe_check_device(&model->host->recipe, hp, PRODUCT_FEATURES, "npu", &why) != 0) {
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
        r = plan_product(device, qkv_type, qkv_width, hp->d_model, &qkv, &why);
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
        if (r != 0)
                return r;
        snprintf(model->plan, sizeof(model->plan),
                 "%u of %u attention layers on the NPU in %s%s: qkv %u command%s of %ux%u, output %u "
                 "of %ux%u, up to %u rows; %llu of %llu MiB used; rows copied (rounded on the way)%s%s",
                 model->n_npu_layers, hp->n_layers, tdm_npu_type_name(qkv.type == out.type ? qkv.type : device->type),
                 !tdm_npu_type_is_int4(device->type)              ? "" :
                 qkv_type == out_type && out_type == TDM_NPU_BF16 ? " (int4 is for Q4_0)" :
                 qkv_type == TDM_NPU_BF16                         ? " (qkv in bf16: not all of it is Q4_0)" :
                 out_type == TDM_NPU_BF16                         ? " (output in bf16: not all of it is Q4_0)" :
                                                                    "",
                 tdm_npu_plan_commands(&qkv), tdm_npu_plan_commands(&qkv) == 1 ? "" : "s", qkv.k, qkv.n,
                 tdm_npu_plan_commands(&out), out.k, out.n, tdm_npu_product_rows(model->qkv),
                 (unsigned long long)((tdm_npu_budget(device->npu) - tdm_npu_budget_left(device->npu)) >> 20),
                 (unsigned long long)(tdm_npu_budget(device->npu) >> 20), no_blocks[0] ? "; " : "", no_blocks);
        tdm_log_info("npu: %s", model->plan);
        return 0;
}

static void say_on_cpu(struct tdm_npu_model *model, enum tdm_precision precision)
{
        snprintf(model->plan, sizeof(model->plan),
                 "attention on the CPU: precision %s promises more than an NPU's formats hold",
                 tdm_precision_name(precision));
        tdm_log_info("npu: %s", model->plan);
}

static void npu_set_kv(struct tdm_device_model *public, uint8_t *kv_base)
{
        struct tdm_npu_model *model = npu_model_of(public);
        struct tdm_error err = {};

        /* There is room: planning saw to that. Going on without it would change bits. */
        if (model->block && tdm_npu_block_set_cache(model->block, kv_base, &err) != 0)
                tdm_npu_leave(model->npu, err.message);
        tdm_host_device_ops.set_kv((struct tdm_device_model *)model->host, kv_base);
}

static int npu_load(struct tdm_device *public, const struct tdm_device_model_config *config,
                    struct tdm_device_model **ret, struct tdm_error *err)
{
        struct tdm_npu_device *device = (struct tdm_npu_device *)public;
        struct tdm_npu_model *model = calloc(1, sizeof(*model));
        int r;

        if (!model)
                return tdm_error_set(err, -ENOMEM, "no memory for a model on the NPU");
        model->device = device;
        model->npu = device->npu;
        r = tdm_host_device_ops.model_load(device->host, config, (struct tdm_device_model **)&model->host, err);
        if (r != 0) {
                free(model);
                return r;
        }
        model->layers = calloc(model->host->hp.n_layers, sizeof(*model->layers));
        if (!model->layers)
                r = tdm_error_set(err, -ENOMEM, "no memory for a model on the NPU");
        else if (config->precision != TDM_PRECISION_DEFAULT)
                say_on_cpu(model, config->precision);
        else
                r = load_npu(device, model, config->limits.table_entries, err);
        if (r == 0 && config->kv_base)
                npu_set_kv((struct tdm_device_model *)model, config->kv_base);
        if (r != 0) {
                npu_unload((struct tdm_device_model *)model);
                return r;
        }
        *ret = (struct tdm_device_model *)model;
        return 0;
}

static uint64_t npu_scratch_bytes(const struct tdm_device_model *public)
{
        const struct tdm_npu_model *model = npu_model_of(public);

        return tdm_host_device_ops.model_scratch_bytes((const struct tdm_device_model *)model->host) +
               tdm_npu_budget(model->npu) - tdm_npu_budget_left(model->npu);
}

static uint64_t npu_n_saturated(const struct tdm_device_model *public)
{
        return tdm_host_device_ops.n_saturated((const struct tdm_device_model *)npu_model_of(public)->host);
}

/* ---- running ---- */

static uint64_t projection_macs(const struct tdm_hparams *hp, uint32_t n_rows)
{
        return (uint64_t)n_rows * hp->d_model * hp->head_dim * (2 * hp->n_heads + 2 * hp->n_kv_heads);
}

static void set(_Atomic uint64_t *word, uint64_t value)
{
        atomic_store_explicit(word, value, memory_order_relaxed);
}

static void add(_Atomic uint64_t *word, uint64_t n)
{
        set(word, atomic_load_explicit(word, memory_order_relaxed) + n);
}

static void count(struct tdm_npu_model *model, uint64_t npu_macs, uint64_t host_macs)
{
        struct tdm_device_counters *to = model->device->counters;
        const struct tdm_npu_counters *c = tdm_npu_counters(model->npu);

        model->npu_macs += npu_macs;
        model->host_macs += host_macs;
        add(&to->device_macs, npu_macs);
        add(&to->host_macs, host_macs);
        add(&to->blocks, npu_macs > 0);
        set(&to->submissions, c->n_submissions);
        set(&to->commands, c->n_commands);
        set(&to->repeats, c->n_retries);
        set(&to->contexts, c->n_contexts);
        tdm_npu_telemetry_sample(&model->device->telemetry, tdm_now_ns(), to);
}

static int run_attention(struct tdm_npu_model *model, const struct tdm_step *step, uint32_t block, float *hidden,
                         struct tdm_error *err)
{
        const struct tdm_hparams *hp = &model->host->hp;
        uint32_t layer = tdm_block_layer(block);
        uint64_t products = projection_macs(hp, step->head.n_rows), attend = tdm_npu_attend_macs(hp, step, layer);

        if (!model->layers[layer].out && !model->layers[layer].block) {
                count(model, 0, products + attend);
                return tdm_host_device_ops.run((struct tdm_device_model *)model->host, step, block, 1, hidden, NULL,
                                               NULL, NULL, err);
        }
        if (!model->host->kv_base)
                return tdm_error_set(err, -EINVAL, "NPU: asked for attention without a KV cache");
        if (model->layers[layer].block) {
                tdm_npu_attention_block(model, step, layer, hidden);
                count(model, products + attend, 0);
        } else {
                tdm_npu_attention(model, step, layer, hidden);
                count(model, products, attend);
        }
        return 0;
}

static int npu_run(struct tdm_device_model *public, const struct tdm_step *step, uint32_t first, uint32_t n,
                   float *hidden, struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata),
                   void *userdata, struct tdm_error *err)
{
        struct tdm_npu_model *model = npu_model_of(public);
        const struct tdm_hparams *hp = &model->host->hp;

        assert(first + n <= tdm_model_n_blocks(hp));
        for (uint32_t block = first; block < first + n; block++) {
                int r;

                if (tdm_block_kind(hp, block) == TDM_BLOCK_ATTENTION)
                        r = run_attention(model, step, block, hidden, err);
                else
                        r = tdm_host_device_ops.run((struct tdm_device_model *)model->host, step, block, 1, hidden,
                                                    results, NULL, NULL, err);
                if (r)
                        return r;
                if (on_block)
                        on_block(block, userdata);
        }
        return 0;
}

void tdm_npu_device_share(const struct tdm_device_model *public, struct tdm_npu_share *ret)
{
        const struct tdm_npu_model *model = npu_model_of(public);

        *ret = (struct tdm_npu_share){ .n_layers = model->host->hp.n_layers,
                                       .n_npu_layers = model->n_npu_layers,
                                       .npu_macs = model->npu_macs,
                                       .host_macs = model->host_macs,
                                       .counters = *tdm_npu_counters(model->npu) };
}

#define NPU_OPS(its_name, its_open)                                                                                    \
        {                                                                                                              \
                .name = its_name, .open = its_open, .close = npu_close, .describe = npu_describe,                      \
                .numerics_id = npu_numerics_id, .model_load = npu_load, .model_unload = npu_unload,                    \
                .set_kv = npu_set_kv, .model_scratch_bytes = npu_scratch_bytes, .run = npu_run,                        \
                .n_saturated = npu_n_saturated, .plan = npu_plan,                                                      \
        }
const struct tdm_device_ops tdm_xrt_device_ops = NPU_OPS("xrt", xrt_open);
const struct tdm_device_ops tdm_emulated_device_ops = NPU_OPS("emulated", emulated_open);
