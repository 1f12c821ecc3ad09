/* Loading a model: its weights onto the device (or used where they lie), every buffer that a step will need, every
 * kernel. After this nothing is allocated or compiled. What does not fit is told with sizes before anything is
 * uploaded. */
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/load/load.h"

#define SUBMISSION_ROW_BLOCKS 2048u
#define D_MODEL_MAX 14336u /* for the rounding of this many values norm.comp has room in 32 KiB of shared memory */

/* Checks what a layer has by itself. Kernels have one place for a norm's gains or biases (rotate.comp, norm.comp), and
 * gate and up have none. */
static int check_layers(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        const uint32_t qkv = TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V, qk_norms = TDM_NORM_Q | TDM_NORM_K;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];
                uint32_t norms = l->norms & qk_norms;

                if (l->n_experts > TDM_VK_EXPERTS_MAX || l->n_experts_used > TDM_VK_EXPERTS_USED_MAX)
                        return tdm_error_set(
                                err, TDM_E_UNSUPPORTED,
                                "vulkan device: layer %u uses %u of %u experts: at most %u of %u are known", i,
                                l->n_experts_used, l->n_experts, TDM_VK_EXPERTS_USED_MAX, TDM_VK_EXPERTS_MAX);

                if (norms != 0 && norms != qk_norms)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: layer %u has a norm of queries or of keys: both or none "
                                             "is known",
                                             i);
                if ((l->biases & qkv && norms) || (l->biases & TDM_BIAS_O && l->norms & TDM_NORM_ATTN_AFTER) ||
                    (l->biases & TDM_BIAS_DOWN && l->norms & TDM_NORM_FFN_AFTER) ||
                    (l->n_experts == 0 && l->biases & (TDM_BIAS_GATE | TDM_BIAS_UP)))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: layer %u has biases before a norm or in its FFN's first "
                                             "half, which it does not compute; TANDEM_GPU=host runs them on the CPU",
                                             i);
        }
        return 0;
}

/* Whether what a recipe asks for goes together here: the message says what does. */
static int check_combinations(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err)
{
        bool has_streams = recipe->residual == TDM_RESIDUAL_ALTUP, fits = (recipe->laurel_rank > 0) == has_streams;

        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_recipe *l = &recipe->layers[i];

                if (l->is_sparse && (l->n_experts > 0 || l->activation != TDM_ACTIVATION_GELU_TANH))
                        fits = false;
                if (l->has_dense_beside &&
                    (l->biases & (TDM_BIAS_GATE | TDM_BIAS_UP | TDM_BIAS_DOWN) || !(l->norms & TDM_NORM_FFN_AFTER)))
                        fits = false;
                if (has_streams && (!(l->norms & TDM_NORM_ATTN_AFTER) || l->has_output_scale || l->n_experts > 0))
                        fits = false;
        }
        return fits ? 0 :
                      tdm_error_set(err, TDM_E_UNSUPPORTED,
                                    "vulkan device: a residual of several streams goes with a low-rank branch and a "
                                    "norm after attention, without experts and scaled outputs, sparse activations with "
                                    "GELU, and experts beside a dense FFN with a norm after both and without biases");
}

static int check_model(const struct tdm_device_model_config *config, const struct tdm_hparams *hp,
                       struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(config->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(config->weights + header->tensors_offset);
        int r;

        r = tdm_device_check_model(config, 0, "vulkan", err);
        if (r == 0)
                r = check_layers(&header->recipe, hp, err);
        if (r == 0)
                r = check_combinations(&header->recipe, hp, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_layer_sizes *l = &hp->layers[i];

                if (l->n_heads * l->head_dim % TDM_BLOCK_VALUES || l->d_ff % TDM_BLOCK_VALUES || l->head_dim % 4 ||
                    l->head_dim > TDM_VK_HEAD_DIM_MAX)
                        return tdm_error_set(
                                err, TDM_E_UNSUPPORTED,
                                "vulkan device: %u heads of %u values, %u in the FFN: heads of at most "
                                "%u, a multiple of 4, and both products multiples of %u are known; TANDEM_GPU=host "
                                "runs them on the CPU",
                                l->n_heads, l->head_dim, l->d_ff, TDM_VK_HEAD_DIM_MAX, TDM_BLOCK_VALUES);
        }
        if (hp->d_model > D_MODEL_MAX)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "vulkan device: rows of %u values: at most %u are known",
                                     hp->d_model, D_MODEL_MAX);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                if (tensors[i].layout != TDM_LAYOUT_ROWS && tensors[i].layout != TDM_LAYOUT_FILE &&
                    !tdm_vk_type_known(tensors[i].type))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: no kernels for weights in %s; TANDEM_GPU=host runs them "
                                             "on the CPU",
                                             tdm_type_info(tensors[i].type)->name);
        return 0;
}

/* Finds the matrices, and what is done with them. */
static int find_program(struct tdm_vk_model *m, struct tdm_error *err)
{
        tdm_vk_weights_find(m);
        return tdm_vk_program_build(m) < 0 ?
                       tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables") :
                       0;
}

/* Finds the model's matrices, as yet without addresses: with rows of F16 where the model and every kernel for them
 * allow it. */
static int choose_rows(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        int r;

        m->f16_rows = tdm_vk_f16_wanted(m);
        r = find_program(m, err);
        if (r != 0 || !m->f16_rows)
                return r;
        device->deferring = true;
        r = tdm_vk_kernels_need_f16(m, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(device, err);
        device->deferring = false;
        if (r == 0)
                r = tdm_vk_prove_f16(device, err);
        if (r == 0 && !tdm_vk_kernels_f16_proven(m)) {
                m->f16_rows = false;
                r = find_program(m, err);
        }
        return r == 0 && m->f16_rows ? tdm_vk_kernels_attend_f16(m, err) : r;
}

/* Everything that can be done before the weights are there. */
static int begin_load(struct tdm_vk_model *m, const struct tdm_device_model_config *config, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        struct tdm_vk_step_layout layout;
        int r = tdm_vk_weights_find_regions(m, err);

        if (r != 0)
                return r;
        r = tdm_vk_buffers_import_activations(m, config, err);
        if (r != 0)
                return r;
        r = tdm_vk_kinds_find(m, err);
        if (r != 0)
                return r;
        tdm_vk_sizes_find(m);
        /* Addresses are not known yet, but shapes are: what is needed is found without them. */
        for (unsigned i = 0; i < m->regions.n; i++)
                m->regions.buffers[i].size_bytes = m->regions.end[i] - m->regions.begin[i];
        r = choose_rows(m, err);
        if (r != 0)
                return r;
        m->cache.clear = m->attention.is_f16;
        tdm_vk_step_layout(m, &layout);
        r = tdm_vk_buffers_init(m, layout.size_bytes, err);
        if (r == 0 && !device->memory.import)
                r = tdm_vk_weights_allocate(m, err);
        return r;
}

int tdm_vk_model_begin(struct tdm_device *public, const struct tdm_device_model_config *config,
                       struct tdm_device_model **ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = (struct tdm_vk_device *)public;
        const struct tdm_hparams *hp = &tdm_weights_header(config->weights)->hparams;
        const char *submission = tdm_vk_switch(TDM_VK_SWITCH_SUBMISSION); /* tests make many of a small step */
        struct tdm_error ignored;
        struct tdm_vk_model *m;
        int r = check_model(config, hp, err);

        if (r != 0)
                return r;
        m = calloc(1, sizeof(*m));
        if (m)
                m->layers = calloc(hp->n_layers, sizeof(*m->layers));
        if (!m || !m->layers) {
                free(m);
                return tdm_error_set(err, -ENOMEM, "vulkan device: no memory");
        }
        m->device = device;
        m->weights = config->weights;
        m->hp = *hp;
        m->recipe = tdm_weights_header(config->weights)->recipe;
        m->kv = config->kv;
        m->limits = config->limits;
        m->precision = config->precision;
        m->submission_row_blocks = submission ? (uint32_t)strtoul(submission, NULL, 10) : SUBMISSION_ROW_BLOCKS;
        r = tdm_vk_kv_init(&m->cache, device, &m->hp, &m->kv, &m->limits);
        if (r == 0)
                r = tdm_vk_early_init(m);
        m->cache.base = config->kv_base; /* counted in what the device must hold; set when the model is loaded */
        if (r != 0)
                r = tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
        else
                r = begin_load(m, config, err ? err : &ignored);
        if (r != 0) {
                tdm_vk_model_unload((struct tdm_device_model *)m);
                return r;
        }
        *ret = (struct tdm_device_model *)m;
        return 0;
}

int tdm_vk_model_weights(struct tdm_device_model *public, uint64_t n_bytes, struct tdm_error *err)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;

        /* Imported memory was imported whole. */
        return m->device->memory.import ? 0 : tdm_vk_weights_upload(m, n_bytes, err);
}

/* First the kernels for matrix units and the chain: shapes are measured in layers that use both. */
static int prepare_kernels(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        int r = tdm_vk_kernels_prepare_units(m, err);

        if (r == 0 && tdm_vk_chain_wanted(device)) {
                uint32_t c[TDM_VK_N_CONSTANTS];

                tdm_vk_kernels_probe(m, c);
                r = tdm_vk_chain_try(device, tdm_vk_pipeline_get(device, TDM_VK_GELU, c[0], c[1], c[2], c[3]),
                                     &m->chain, err);
        }
        if (r == 0)
                r = tdm_vk_tune(m, err);
        if (r == 0)
                r = tdm_vk_kernels_prepare_rest(m, err);
        tdm_vk_few_rows_find(m);
        return r == 0 ? tdm_vk_record_all_dry(m, err) : r;
}

int tdm_vk_model_end(struct tdm_device_model *public, struct tdm_error *err)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;
        struct tdm_vk_device *device = m->device;
        struct tdm_vk_step_layout layout;
        uint32_t angles[TDM_VK_KINDS];
        int r = 0;

        if (device->memory.import)
                tdm_vk_weights_import(m);
        if (device->memory.import) { /* what was not imported */
                r = tdm_vk_weights_allocate(m, err);
                if (r == 0)
                        r = tdm_vk_weights_upload(m, UINT64_MAX, err);
        }
        if (r != 0)
                return r;
        r = find_program(m, err);
        if (r != 0)
                return r;
        tdm_vk_weights_biases(m);
        tdm_vk_step_layout(m, &layout);
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                angles[kind] = (uint32_t)(layout.angles[kind] - layout.rows);
        tdm_vk_attend_rotations(m, angles);
        r = tdm_vk_buffers_angles(m, err);
        if (r == 0)
                r = tdm_vk_f16_scales(m, err);
        if (r == 0)
                r = tdm_vk_weights_repack(m, err);
        if (r == 0)
                r = tdm_vk_recordings_init(m, err);
        if (r == 0)
                r = prepare_kernels(m, err);
        tdm_vk_cache_save(device);
        return r;
}

void tdm_vk_model_set_kv(struct tdm_device_model *public, uint8_t *kv_base)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;

        if (m->recordings) /* they know the old addresses; a model that is not loaded has none */
                tdm_vk_record_forget(m);
        tdm_vk_kv_set(&m->cache, kv_base);
}

int tdm_vk_model_load(struct tdm_device *public, const struct tdm_device_model_config *config,
                      struct tdm_device_model **ret, struct tdm_error *err)
{
        struct tdm_device_model *m;
        struct tdm_error ignored;
        int r = tdm_vk_model_begin(public, config, &m, err);

        if (r != 0)
                return r;
        err = err ? err : &ignored;
        r = tdm_vk_model_weights(m, UINT64_MAX, err);
        if (r == 0)
                r = tdm_vk_model_end(m, err);
        if (r == 0 && config->kv_base) {
                const struct tdm_error *kv_error = &((struct tdm_vk_model *)m)->cache.error;

                tdm_vk_model_set_kv(m, config->kv_base);
                if (kv_error->code) {
                        *err = *kv_error;
                        r = err->code;
                }
        }
        if (r != 0) {
                tdm_vk_model_unload(m);
                return r;
        }
        *ret = m;
        return 0;
}

void tdm_vk_model_unload(struct tdm_device_model *public)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;
        struct tdm_vk_device *device;

        if (!m)
                return;
        device = m->device;
        if (!device->lost)
                device->vk.DeviceWaitIdle(device->vk.device);
        tdm_vk_recordings_deinit(m);
        tdm_vk_kv_deinit(&m->cache);
        tdm_vk_buffers_deinit(m);
        tdm_vk_early_deinit(m);
        tdm_vk_program_free(m->program);
        free(m->layers);
        free(m);
}
