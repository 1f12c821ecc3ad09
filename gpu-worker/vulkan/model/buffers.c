/* Work buffers of a model: how large each must be for its longest step, whether all of them fit the device, and their
 * allocation. After a model is loaded nothing is allocated. */
#include "engine/host/kernels.h"
#include "gpu-worker/vulkan/model/model.h"

#define TILE_ROWS 512u /* rows that go through a block together */
#define LOGITS_BYTES_MAX (UINT64_C(64) << 20)
#define MATRIX_ROWS 64u     /* that a kernel for matrix units reads together, at most */
#define PARTIALS_MIN 32768u /* partial results of attention: for a few rows behind a long context */

struct need {
        struct tdm_vk_buffer *buffer;
        uint64_t bytes;
        enum tdm_vk_place place;
        const char *what;
};
#define MAX_NEEDS (56u + 2u * TDM_STEP_SLOTS)

int tdm_vk_kinds_find(struct tdm_vk_model *m, struct tdm_error *err)
{
        for (uint32_t i = m->hp.n_layers; i-- > 0;) {
                const struct tdm_layer_sizes *sizes = &m->hp.layers[i];
                const struct tdm_layer_recipe *l = &m->recipe.layers[i];
                struct tdm_vk_kind *kind = &m->kinds[tdm_vk_kind_of(m, i)];
                uint32_t window = !m->recipe.is_bidirectional ? sizes->window : l->reach ? l->reach + 1 : 0;

                if (kind->used &&
                    (kind->n_heads != sizes->n_heads || kind->n_kv_heads != sizes->n_kv_heads ||
                     kind->head_dim != sizes->head_dim || kind->rope != l->rope || kind->window != window))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: layers %u and %u, which both have %s, differ in their "
                                             "heads, their RoPE or their window; TANDEM_GPU=host runs them on the CPU",
                                             i, kind->layer, window ? "a window" : "none");
                *kind = (struct tdm_vk_kind){ .used = true,
                                              .group = tdm_kv_group_of(&m->hp, i),
                                              .layer = i,
                                              .n_heads = sizes->n_heads,
                                              .n_kv_heads = sizes->n_kv_heads,
                                              .head_dim = sizes->head_dim,
                                              .rope = l->rope,
                                              .window = window,
                                              .both = m->recipe.is_bidirectional != 0 };
        }
        return 0;
}

static void size_items(const struct tdm_vk_model *m, struct tdm_vk_kind *kind)
{
        uint32_t heads_per_kv = kind->n_heads / kind->n_kv_heads,
                 queries_max = kind->head_dim > 256 || m->device->few_kernels || m->device->few_registers ? 4 : 8;

        for (uint32_t heads = 1; heads <= TDM_MIN(heads_per_kv, queries_max); heads++)
                if (heads_per_kv % heads == 0)
                        kind->queries_heads = heads;
        kind->many_rows = queries_max / kind->queries_heads;
}

void tdm_vk_buffers_size(struct tdm_vk_model *m)
{
        const char *logits = getenv("TANDEM_VULKAN_LOGITS");
        const struct tdm_hparams *hp = &m->hp;

        /* Where rows see those behind them, all keys are stored before the first query: the step is one tile. */
        m->tile_rows = m->recipe.is_bidirectional ? m->limits.max_rows : TDM_MIN(m->limits.max_rows, TILE_ROWS);
        m->scale_sums_rows = m->device->matrix_units ? TDM_VK_INT8_ROWS_MAX : 0;
        for (unsigned i = 0; i < TDM_VK_KINDS; i++)
                if (m->kinds[i].used)
                        size_items(m, &m->kinds[i]);
        m->max_slots = TDM_MAX(m->tile_rows * hp->n_heads, PARTIALS_MIN);
        m->max_items = TDM_MAX(m->tile_rows, m->max_slots / hp->n_heads);
        m->logits_stride = TDM_ALIGN_UP(hp->n_vocab, 16u);
        m->logits_rows = (uint32_t)TDM_MIN(TDM_MAX(LOGITS_BYTES_MAX / (m->logits_stride * sizeof(float)), 1u),
                                           m->limits.max_logits);
        m->y_stride_max = TDM_MAX(TDM_MAX(tdm_vk_q_width(hp) + 2 * tdm_vk_kv_width(hp), 2 * hp->d_ff), hp->d_model);
        /* Tests that compare can have all logits: the choice changes no bit of what is drawn. */
        m->logits_whole = m->recipe.logit_softcap > 0 || (logits && strcmp(logits, "whole") == 0);
        m->maxima_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_MAX_BLOCK);
        m->sums_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_SUM_BLOCK);
        m->tops_stride = TDM_DIV_UP(hp->n_vocab, TDM_VK_LOGITS_EACH);
        m->sampler_stride = TDM_ALIGN_UP(tdm_sampler_scratch_bytes(hp->n_vocab), (size_t)64);
}

/* Whole tiles of rows: matrix units read what they do not use. */
static void need_act(struct need *needs, const struct tdm_vk_matrix *matrix, uint32_t rows, uint32_t scale_sums_rows)
{
        uint32_t cols = matrix->cols;

        needs[matrix->act].bytes = TDM_MAX(needs[matrix->act].bytes, TDM_ALIGN_UP((uint64_t)rows, MATRIX_ROWS) *
                                                                             TDM_VK_ACT_STRIDE(matrix->act, cols));
        if (scale_sums_rows && (matrix->act == TDM_VK_ACT_I8 || matrix->act == TDM_VK_ACT_I16))
                needs[TDM_VK_N_ACTS + matrix->act].bytes =
                        TDM_MAX(needs[TDM_VK_N_ACTS + matrix->act].bytes,
                                (uint64_t)scale_sums_rows * cols / TDM_BLOCK_VALUES * 8);
}

/* Returns the size of what device/chain.c needs. */
static uint64_t place_flagged(struct tdm_vk_model *m)
{
        uint64_t end =
                TDM_VK_FLAGGED_Y +
                TDM_MAX(tdm_vk_q_width(&m->hp) + 2ull * tdm_vk_kv_width(&m->hp), m->hp.d_model) * sizeof(uint64_t);

        for (uint32_t act = 0; act < TDM_VK_N_ACTS; act++) {
                uint32_t words = 0;

                for (uint32_t i = 0; i < m->hp.n_layers && act != TDM_ACT_F32; i++) {
                        const struct tdm_vk_layer *l = &m->layers[i];
                        const struct tdm_vk_matrix *matrices[] = { &l->q, &l->o, &l->gate, &l->down };

                        for (unsigned k = 0; k < TDM_ARRAY_SIZE(matrices); k++)
                                if (matrices[k]->act == act)
                                        words = TDM_MAX(words, TDM_VK_ACT_STRIDE(act, matrices[k]->cols) / 4);
                }
                m->flagged_acts[act] = words ? end = TDM_ALIGN_UP(end, (uint64_t)64) : 0;
                end += words * sizeof(uint64_t);
        }
        m->flag_stride = (uint32_t)TDM_ALIGN_UP(end - TDM_VK_FLAGGED_Y, (uint64_t)64);
        return TDM_VK_FLAGGED_Y + (m->f16_rows ? TDM_VK_FLAGGED_ROWS : 1ull) * m->flag_stride;
}

uint64_t tdm_vk_partial_flagged(const struct tdm_vk_model *m)
{
        return TDM_VK_ARRIVALS_BYTES + (uint64_t)m->max_slots * TDM_VK_PARTIAL_WIDTH(m->hp.head_dim) * sizeof(float);
}

/* The largest of any layer. */
static struct tdm_vk_experts largest_experts(const struct tdm_vk_model *m)
{
        struct tdm_vk_experts most = { 0 };

        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_experts *e = &m->layers[i].experts;

                most.n = TDM_MAX(most.n, e->n);
                most.n_used = TDM_MAX(most.n_used, e->n_used);
                most.d_expert = TDM_MAX(most.d_expert, e->d_expert);
        }
        return most;
}

struct tdm_vk_experts_lists tdm_vk_experts_lists(const struct tdm_vk_model *m)
{
        const struct tdm_vk_experts most = largest_experts(m);
        uint64_t list = TDM_ALIGN_UP((uint64_t)m->tile_rows * most.n_used * sizeof(uint32_t), (uint64_t)64);
        struct tdm_vk_experts_lists lists = {
                .weights = list, .slots = 2 * list, .slot_rows = 3 * list, .items = 4 * list
        };

        /* an item for each slot, at most */
        lists.size_bytes = lists.items + TDM_VK_ITEMS_HEAD + list * 4;
        return lists;
}

static unsigned list_experts(struct tdm_vk_model *m, struct need *needs, unsigned n)
{
        const struct tdm_vk_experts most = largest_experts(m);
        uint64_t n_slots = (uint64_t)m->tile_rows * most.n_used;

        if (most.n == 0)
                return n;
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_experts *e = &m->layers[i].experts;

                if (e->n == 0)
                        continue;
                need_act(needs, &e->router, m->tile_rows, 0);
                need_act(needs, &e->gate, m->tile_rows, 0);
                need_act(needs, &e->up, m->tile_rows, 0);
                need_act(needs, &e->down, m->tile_rows * e->n_used, 0);
        }
        needs[n++] = (struct need){ &m->router, (uint64_t)m->tile_rows * most.n * sizeof(float), TDM_VK_DEVICE_MEMORY,
                                    "experts" };
        needs[n++] = (struct need){ &m->choices, tdm_vk_experts_lists(m).size_bytes, TDM_VK_DEVICE_MEMORY, "experts" };
        needs[n++] = (struct need){ &m->hidden_exps, n_slots * 2 * most.d_expert * sizeof(float), TDM_VK_DEVICE_MEMORY,
                                    "experts" };
        needs[n++] = (struct need){ &m->experts_y, (uint64_t)m->tile_rows * m->hp.d_model * sizeof(float),
                                    TDM_VK_DEVICE_MEMORY, "experts" };
        needs[n++] = (struct need){ &m->parts_exps, n_slots * m->hp.d_model * sizeof(float), TDM_VK_DEVICE_MEMORY,
                                    "experts" };
        return n;
}

static unsigned list_inputs(struct tdm_vk_model *m, struct need *needs, unsigned n)
{
        const struct tdm_vk_matrix *proj = &m->per_layer_proj;
        uint64_t rows = m->limits.max_rows, n_tiles = TDM_DIV_UP(rows, m->tile_rows), d = m->hp.d_model,
                 width = (uint64_t)m->tile_rows * m->recipe.per_layer_width * sizeof(float);

        if (m->recipe.per_layer_width == 0 && !tdm_vk_has_streams(m))
                return n;
        needs[n++] = (struct need){ &m->x0, rows * d * sizeof(float), TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        if (m->recipe.per_layer_width == 0)
                return n;
        for (uint32_t i = 0; i < m->hp.n_layers; i++)
                if (m->recipe.layers[i].has_input) {
                        need_act(needs, &m->layers[i].input_gate, m->tile_rows, m->scale_sums_rows);
                        need_act(needs, &m->layers[i].input_proj, m->tile_rows, m->scale_sums_rows);
                }
        m->embedded_bytes = TDM_ALIGN_UP((uint64_t)m->tile_rows, MATRIX_ROWS) * TDM_VK_ACT_STRIDE(proj->act, d);
        needs[n++] =
                (struct need){ &m->embedded, n_tiles * m->embedded_bytes, TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        needs[n++] = (struct need){ &m->embedded_sums, n_tiles * m->scale_sums_rows * (d / TDM_BLOCK_VALUES) * 8,
                                    TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        needs[n++] = (struct need){ &m->input, width, TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        needs[n++] = (struct need){ &m->input_gate, width, TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        return n;
}

static unsigned list_streams(struct tdm_vk_model *m, struct need *needs, unsigned n)
{
        uint64_t rows = m->tile_rows, most = TDM_MAX(rows, m->logits_rows), d = m->hp.d_model * sizeof(float);

        if (!tdm_vk_has_streams(m))
                return n;
        need_act(needs, &m->altup_proj, m->tile_rows, m->scale_sums_rows);
        need_act(needs, &m->altup_unembd, m->logits_rows, m->scale_sums_rows);
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                need_act(needs, &m->layers[i].laurel_l, m->tile_rows, m->scale_sums_rows);
                need_act(needs, &m->layers[i].laurel_r, m->tile_rows, m->scale_sums_rows);
                need_act(needs, &m->layers[i].altup_router, m->tile_rows, m->scale_sums_rows);
        }
        needs[n++] =
                (struct need){ &m->altup, rows * TDM_VK_STREAMS_MAX * sizeof(float), TDM_VK_DEVICE_MEMORY, "streams" };
        needs[n++] = (struct need){ &m->rank, rows * m->recipe.laurel_rank * sizeof(float), TDM_VK_DEVICE_MEMORY,
                                    "streams" };
        needs[n++] = (struct need){ &m->side_y, most * d, TDM_VK_DEVICE_MEMORY, "streams" };
        needs[n++] = (struct need){ &m->folded, m->logits_rows * d, TDM_VK_DEVICE_MEMORY, "streams" };
        needs[n++] = (struct need){ &m->unfolded, m->logits_rows * d, TDM_VK_DEVICE_MEMORY, "streams" };
        return n;
}

static unsigned list_needs(struct tdm_vk_model *m, uint64_t step_bytes, struct need *needs)
{
        const struct tdm_hparams *hp = &m->hp;
        uint64_t hidden_bytes = (uint64_t)m->limits.max_rows * hp->residual_width * sizeof(float);
        uint64_t logits_bytes = (uint64_t)m->logits_rows * m->logits_stride * sizeof(float),
                 scan_row = ((uint64_t)m->maxima_stride + m->tops_stride) * sizeof(float);
        unsigned n = 0;

        memset(needs, 0, MAX_NEEDS * sizeof(*needs));
        for (; n < TDM_VK_N_ACTS; n++)
                needs[n] = (struct need){ &m->acts[n], 0, TDM_VK_DEVICE_MEMORY, "rounded activations" };
        for (; n < 2 * TDM_VK_N_ACTS; n++)
                needs[n] = (struct need){ &m->scale_sums[n - TDM_VK_N_ACTS], 0, TDM_VK_DEVICE_MEMORY, "their scales" };
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *matrices[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(matrices); k++)
                        need_act(needs, matrices[k], m->tile_rows, m->scale_sums_rows);
        }
        need_act(needs, &m->output, m->logits_rows, m->scale_sums_rows);
        n = list_experts(m, needs, n);
        n = list_inputs(m, needs, n);
        n = list_streams(m, needs, n);
        needs[n++] = (struct need){ &m->y, (uint64_t)m->tile_rows * m->y_stride_max * sizeof(float),
                                    TDM_VK_DEVICE_MEMORY, "matrix products" };
        needs[n++] =
                (struct need){ &m->partial,
                               tdm_vk_partial_flagged(m) +
                                       (m->attend_f16 ? (uint64_t)m->max_slots * TDM_VK_PARTIAL_WIDTH(hp->head_dim) *
                                                                sizeof(uint64_t) :
                                                        0),
                               TDM_VK_DEVICE_MEMORY, "attention" };
        needs[n++] = (struct need){ &m->logits, logits_bytes, TDM_VK_DEVICE_MEMORY, "logits" };
        needs[n++] = (struct need){ &m->logits_host, logits_bytes, TDM_VK_HOST_MEMORY, "logits" };
        needs[n++] = (struct need){ &m->scan, m->logits_rows * scan_row, TDM_VK_DEVICE_MEMORY, "logits" };
        needs[n++] =
                (struct need){ &m->scan_host,
                               tdm_vk_scan_found(m) + m->logits_rows * (m->maxima_stride + 1ull) * sizeof(uint32_t),
                               TDM_VK_HOST_MEMORY, "logits" };
        needs[n++] = (struct need){ &m->counters, 64, TDM_VK_HOST_MEMORY, "counters" };
        needs[n++] = (struct need){ &m->chain, place_flagged(m), TDM_VK_DEVICE_MEMORY, "counters" };
        needs[n++] =
                (struct need){ &m->biases,
                               tdm_vk_weights_biased(m) ? hp->n_layers * sizeof(float) *
                                                                  (tdm_vk_q_width(hp) + 2ull * tdm_vk_kv_width(hp)) :
                                                          0,
                               TDM_VK_SHARED_MEMORY, "biases" };
        needs[n++] = (struct need){ &m->rotations, m->attend_f16 ? hp->n_layers * sizeof(struct tdm_vk_rotation) : 0,
                                    TDM_VK_SHARED_MEMORY, "attention" };
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                needs[n++] = (struct need){ &m->slots[i].step, step_bytes, TDM_VK_SHARED_MEMORY, "steps" };
                if (!m->activations_buffer.buffer)
                        needs[n++] = (struct need){ &m->slots[i].hidden_buffer, hidden_bytes, TDM_VK_DEVICE_MEMORY,
                                                    "hidden rows" };
        }
        if (m->shorter) {
                needs[n++] = (struct need){ &m->early_slot.step, step_bytes, TDM_VK_SHARED_MEMORY, "steps" };
                needs[n++] = (struct need){ &m->early_slot.hidden_buffer, hidden_bytes, TDM_VK_DEVICE_MEMORY,
                                            "hidden rows" };
        }
        if (!m->activations_buffer.buffer)
                needs[n++] = (struct need){ &m->hidden_host, hidden_bytes, TDM_VK_HOST_MEMORY, "hidden rows" };
        return n;
}

/* Everything that will lie on the device, before anything is put there. */
static int check_memory(struct tdm_vk_model *m, const struct need *needs, unsigned n, struct tdm_error *err)
{
        uint64_t weights = 0, cache = 0, work = 0, left, total;

        for (unsigned i = 0; i < m->n_regions; i++)
                if (!m->device->import || m->region_tensor[i])
                        weights += m->region_end[i] - m->region_begin[i];
        for (unsigned i = 0; i < n; i++)
                work += needs[i].place == TDM_VK_DEVICE_MEMORY ? needs[i].bytes : 0;
        if (m->cache.base && !m->device->import)
                cache = m->kv.size_bytes;
        tdm_vk_memory_left(m->device, &left, &total);
        if (weights + cache + work <= left)
                return 0;
        return tdm_error_set(
                err, TDM_E_NO_MEMORY,
                "the model needs %.1f MiB on the GPU (weights %.1f, KV cache %.1f, work %.1f) and %.1f of its "
                "%.1f MiB are free: a smaller model, fewer pages, more gpu-memory or gpu = host",
                (double)(weights + cache + work) / 0x1p20, (double)weights / 0x1p20, (double)cache / 0x1p20,
                (double)work / 0x1p20, (double)left / 0x1p20, (double)total / 0x1p20);
}

/* See TDM_VK_ARRIVALS: no item has arrived, no partial result is there. */
int tdm_vk_partial_clear(struct tdm_vk_model *m, struct tdm_error *err)
{
        const char *what = "clearing a buffer";
        struct tdm_vk_device *device = m->device;
        VkCommandBuffer commands;
        int r = tdm_vk_once_begin(device, &commands, what, err);

        if (r != 0)
                return r;
        m->step_serial = 0;
        device->vk.CmdFillBuffer(commands, m->partial.buffer, 0, VK_WHOLE_SIZE, 0);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        return tdm_vk_once_end(device, what, err);
}

static int allocate(struct tdm_vk_model *m, const struct need *needs, unsigned n, struct tdm_error *err)
{
        int r;

        for (unsigned i = 0; i < n; i++) {
                r = needs[i].bytes ? tdm_vk_buffer_init(m->device, needs[i].buffer, needs[i].bytes, needs[i].place,
                                                        needs[i].what, err) :
                                     0;

                if (r != 0)
                        return r;
                m->memory_bytes += needs[i].bytes;
        }
        memset(m->counters.map, 0, 64);
        r = tdm_vk_partial_clear(m, err);
        /* so that every model comes past the last one soon, not after hours alone */
        m->step_serial = TDM_VK_SERIALS - 3;
        return r;
}

int tdm_vk_buffers_import_activations(struct tdm_vk_model *m, const struct tdm_device_model_config *config,
                                      struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        bool imported = false;

        if (!config->activations)
                return 0;
        if (config->activations_dmabuf && (device->unified || config->dmabuf_only)) {
                imported = tdm_vk_buffer_import_dmabuf(device, &m->activations_buffer, config->activations_dmabuf,
                                                       config->activations_bytes, &m->no_dmabuf) == 0;
                m->activations_dmabuf = imported ? config->activations_dmabuf : 0;
        } else if (config->activations_dmabuf)
                m->no_dmabuf = "the GPU's memory is its own";
        if (!imported && config->dmabuf_only)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "activations = dma-buf, but %s cannot take one: %s",
                                     device->properties.deviceName, m->no_dmabuf ? m->no_dmabuf : "none came");
        if (!imported && device->import)
                imported = tdm_vk_buffer_import(device, &m->activations_buffer, config->activations,
                                                TDM_ALIGN_UP(config->activations_bytes, device->import_align)) == 0;
        if (imported) {
                m->activations = config->activations;
                m->activations_bytes = config->activations_bytes;
        }
        return 0;
}

int tdm_vk_buffers_angles(struct tdm_vk_model *m, struct tdm_error *err)
{
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++) {
                bool turns = m->kinds[kind].used && m->kinds[kind].rope != TDM_ROPE_NONE;
                const struct tdm_rope_recipe *rope = turns ? &m->recipe.ropes[m->kinds[kind].rope] : NULL;
                const struct tdm_weights_tensor *divisors =
                        rope && rope->has_divisors ? tdm_weights_find(m->weights, TDM_TENSOR_ROPE_FREQS, 0) : NULL;
                int r = rope ? tdm_rope_init(&m->rope[kind], rope, m->hp.n_ctx,
                                             divisors ? (const float *)(m->weights + divisors->offset) : NULL) :
                               0;

                if (r == -EDOM)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "vulkan device: tensor rope_freqs.weight holds a number by which no "
                                             "angle can be divided");
                if (r < 0)
                        return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
        }
        return 0;
}

static int host_memory_init(struct tdm_vk_model *m, struct tdm_error *err)
{
        size_t bytes = tdm_pool_n_threads(m->device->threads) * m->sampler_stride;

        if (m->recipe.pooling != TDM_POOLING_NONE) {
                const struct tdm_kernels *kernels = tdm_kernels_choose(err);

                if (!kernels)
                        return -EINVAL;
                if (tdm_pooler_new(&m->pooling, m->weights, m->device->threads, kernels, m->limits.max_logits,
                                   tdm_vk_weights_side_act(m->precision)) < 0)
                        return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
                m->memory_bytes += tdm_pooler_bytes(m->pooling);
        }
        m->sampler_scratch = aligned_alloc(64, bytes);
        m->memory_bytes += bytes;
        if (!m->sampler_scratch)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
        return 0;
}

int tdm_vk_buffers_init(struct tdm_vk_model *m, uint64_t step_bytes, struct tdm_error *err)
{
        struct need needs[MAX_NEEDS];
        unsigned n = list_needs(m, step_bytes, needs);
        int r = check_memory(m, needs, n, err);

        /* Regions that nothing is allocated for yet have a size but no address. */
        memset(m->regions, 0, sizeof(m->regions));
        if (r == 0)
                r = allocate(m, needs, n, err);
        return r == 0 ? host_memory_init(m, err) : r;
}

void tdm_vk_buffers_deinit(struct tdm_vk_model *m)
{
        struct tdm_vk_device *device = m->device;

        for (unsigned i = 0; i < m->n_regions; i++)
                tdm_vk_buffer_deinit(device, &m->regions[i]);
        for (unsigned i = 0; i < TDM_VK_N_ACTS; i++) {
                tdm_vk_buffer_deinit(device, &m->acts[i]);
                tdm_vk_buffer_deinit(device, &m->scale_sums[i]);
        }
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                tdm_vk_buffer_deinit(device, &m->slots[i].step);
                tdm_vk_buffer_deinit(device, &m->slots[i].hidden_buffer);
        }
        tdm_vk_buffer_deinit(device, &m->early_slot.step);
        tdm_vk_buffer_deinit(device, &m->early_slot.hidden_buffer);
        tdm_vk_buffer_deinit(device, &m->activations_buffer);
        tdm_vk_buffer_deinit(device, &m->y);
        tdm_vk_buffer_deinit(device, &m->partial);
        tdm_vk_buffer_deinit(device, &m->logits);
        tdm_vk_buffer_deinit(device, &m->logits_host);
        tdm_vk_buffer_deinit(device, &m->scan);
        tdm_vk_buffer_deinit(device, &m->scan_host);
        tdm_vk_buffer_deinit(device, &m->hidden_host);
        tdm_vk_buffer_deinit(device, &m->counters);
        tdm_vk_buffer_deinit(device, &m->chain);
        tdm_vk_buffer_deinit(device, &m->biases);
        tdm_vk_buffer_deinit(device, &m->rotations);
        tdm_vk_buffer_deinit(device, &m->x0);
        tdm_vk_buffer_deinit(device, &m->embedded);
        tdm_vk_buffer_deinit(device, &m->embedded_sums);
        tdm_vk_buffer_deinit(device, &m->altup);
        tdm_vk_buffer_deinit(device, &m->rank);
        tdm_vk_buffer_deinit(device, &m->side_y);
        tdm_vk_buffer_deinit(device, &m->folded);
        tdm_vk_buffer_deinit(device, &m->unfolded);
        tdm_vk_buffer_deinit(device, &m->input);
        tdm_vk_buffer_deinit(device, &m->input_gate);
        tdm_vk_buffer_deinit(device, &m->router);
        tdm_vk_buffer_deinit(device, &m->choices);
        tdm_vk_buffer_deinit(device, &m->hidden_exps);
        tdm_vk_buffer_deinit(device, &m->parts_exps);
        tdm_vk_buffer_deinit(device, &m->experts_y);
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                tdm_rope_deinit(&m->rope[kind]);
        tdm_pooler_destroy(m->pooling);
        free(m->sampler_scratch);
}
