/* The NPU behind engine/device/device.h: see npu-device.h for what runs where. A model's weights are put onto it in
 * load.c. The numerics id names everything that could change a bit: kind of device, type, the set of programs, the
 * budget. */
#include "npu-worker/device/private.h"

#include <assert.h>

#include "common/log.h"

#define NUMERICS "1" /* changes when an order of operations or a rounding does */

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
        else
                r = tdm_npu_load(model, config->limits.table_entries, config->precision, err);
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
