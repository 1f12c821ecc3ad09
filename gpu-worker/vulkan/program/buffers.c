/* Work buffers of a model: how large each must be for its program's largest operation, whether all of them fit the
 * device, and their allocation. After a model is loaded nothing is allocated. */
#include "engine/host/kernels.h"
#include "gpu-worker/vulkan/program/program.h"

#define MATRIX_ROWS 64u /* that a kernel for matrix units reads together, at most */

struct need {
        struct tdm_vk_buffer *buffer;
        uint64_t bytes;
        enum tdm_vk_place place;
        const char *what;
};
#define MAX_NEEDS (32u + TDM_VK_N_ARRAYS + 2u * TDM_STEP_SLOTS)

/* ---- the largest of any operation ---- */

/* Rows that an operation leaves at most. */
static uint64_t op_rows_max(const struct tdm_vk_model *m, const struct tdm_vk_op *op)
{
        switch (op->rows) {
        case TDM_VK_ROWS_STEP:
                return m->limits.max_rows;
        case TDM_VK_ROWS_SLOTS:
                return (uint64_t)m->tile_rows * tdm_vk_op_layer(m, op)->experts.n_used;
        case TDM_VK_ROWS_LOGITS:
                return m->logits.rows;
        default:
                return m->tile_rows;
        }
}

/* Rows that a product reads. Of experts only `down` has a row for each slot. */
static uint64_t input_rows(const struct tdm_vk_model *m, const struct tdm_vk_op *op)
{
        return op->kind == TDM_VK_OP_EXPERTS_GATE_UP ? m->tile_rows : op_rows_max(m, op);
}

/* Matrices whose rounded rows an operation reads: a kind that is missing here may have no room for them. Their scales
 * and sums are for those without experts. */
static unsigned n_inputs(const struct tdm_vk_op *op, bool *ret_has_sums)
{
        *ret_has_sums = false;
        switch (op->kind) {
        case TDM_VK_OP_MULTIPLY:
        case TDM_VK_OP_DOWN:
                *ret_has_sums = true;
                return op->x.array == TDM_VK_EMBEDDED ? 0 : op->n_matrices;
        case TDM_VK_OP_GATE_UP:
                *ret_has_sums = true;
                return 2;
        case TDM_VK_OP_ROUTE:
        case TDM_VK_OP_EXPERTS_DOWN:
                return 1;
        case TDM_VK_OP_EXPERTS_GATE_UP:
                return 2;
        default:
                return 0;
        }
}

/* Whole tiles of rows: matrix units read what they do not use. */
static void size_acts(const struct tdm_vk_model *m, struct need *acts, struct need *scale_sums)
{
        for (uint32_t i = 0; i < m->program->n_ops; i++) {
                const struct tdm_vk_op *op = &m->program->ops[i];
                bool has_sums;
                unsigned n = n_inputs(op, &has_sums);

                for (unsigned k = 0; k < n; k++) {
                        const struct tdm_vk_matrix *a = op->matrices[k];

                        acts[a->act].bytes =
                                TDM_MAX(acts[a->act].bytes, TDM_ALIGN_UP(input_rows(m, op), (uint64_t)MATRIX_ROWS) *
                                                                    TDM_VK_ACT_STRIDE(a->act, (uint64_t)a->cols));
                        if (has_sums && (a->act == TDM_VK_ACT_I8 || a->act == TDM_VK_ACT_I16))
                                scale_sums[a->act].bytes =
                                        TDM_MAX(scale_sums[a->act].bytes,
                                                (uint64_t)m->rounded.sums_rows * a->cols / TDM_BLOCK_VALUES * 8);
                }
        }
}

static void size_arrays(const struct tdm_vk_model *m, uint64_t ret[TDM_VK_N_ARRAYS])
{
        memset(ret, 0, TDM_VK_N_ARRAYS * sizeof(*ret));
        for (uint32_t i = 0; i < m->program->n_ops; i++) {
                const struct tdm_vk_op *op = &m->program->ops[i];

                ret[op->y.array] =
                        TDM_MAX(ret[op->y.array], op_rows_max(m, op) * op->y.stride * (uint64_t)sizeof(float));
        }
        if (m->recipe.per_layer_width > 0)
                ret[TDM_VK_EMBEDDED] = TDM_DIV_UP((uint64_t)m->limits.max_rows, m->tile_rows) * m->side.embedded_bytes;
}

/* Returns the size of what device/chain.c needs: flagged words of what operations leave that may be flagged, then those
 * of what they read. */
static uint64_t place_flagged(struct tdm_vk_model *m)
{
        const struct tdm_vk_program *p = m->program;
        uint32_t columns = 0;
        uint64_t end;

        for (uint32_t i = 0; i < p->n_ops; i++)
                if (p->ops[i].is_measured && p->ops[i].rows == TDM_VK_ROWS_TILE && p->ops[i].kind != TDM_VK_OP_GATE_UP)
                        columns = TDM_MAX(columns, p->ops[i].y.stride);
        end = TDM_VK_FLAGGED_Y + columns * sizeof(uint64_t);
        for (uint32_t act = 0; act < TDM_VK_N_ACTS; act++) {
                uint32_t words = 0;

                for (uint32_t i = 0; i < p->n_ops && act != TDM_ACT_F32; i++)
                        if (p->ops[i].is_measured && p->ops[i].rows == TDM_VK_ROWS_TILE &&
                            p->ops[i].matrices[0]->act == act)
                                words = TDM_MAX(words, TDM_VK_ACT_STRIDE(act, p->ops[i].matrices[0]->cols) / 4);
                m->flagged.acts[act] = words ? end = TDM_ALIGN_UP(end, (uint64_t)64) : 0;
                end += words * sizeof(uint64_t);
        }
        m->flagged.stride = (uint32_t)TDM_ALIGN_UP(end - TDM_VK_FLAGGED_Y, (uint64_t)64);
        return TDM_VK_FLAGGED_Y + (m->f16_rows ? TDM_VK_FLAGGED_ROWS : 1ull) * m->flagged.stride;
}

uint64_t tdm_vk_partial_flagged(const struct tdm_vk_model *m)
{
        return TDM_VK_ARRIVALS_BYTES +
               (uint64_t)m->attention.max_slots * TDM_VK_PARTIAL_WIDTH(m->hp.head_dim) * sizeof(float);
}

struct tdm_vk_experts_lists tdm_vk_experts_lists(const struct tdm_vk_model *m)
{
        const uint64_t n_slots = (uint64_t)m->tile_rows * m->program->slots_of_row,
                       list = TDM_ALIGN_UP(n_slots * sizeof(uint32_t), (uint64_t)64);
        struct tdm_vk_experts_lists lists;

        lists = (struct tdm_vk_experts_lists){
                .weights = list, .slots = 2 * list, .slot_rows = 3 * list, .items = 4 * list
        };
        /* an item for each slot, at most */
        lists.size_bytes = lists.items + TDM_VK_ITEMS_HEAD + list * 4;
        return lists;
}

/* ---- all buffers ---- */

static unsigned list_arrays(struct tdm_vk_model *m, struct need *needs, unsigned n)
{
        const struct tdm_vk_matrix *proj = &m->side.per_layer_proj;
        const uint64_t n_tiles = TDM_DIV_UP((uint64_t)m->limits.max_rows, m->tile_rows);
        uint64_t bytes[TDM_VK_N_ARRAYS];

        m->side.embedded_bytes =
                TDM_ALIGN_UP((uint64_t)m->tile_rows, MATRIX_ROWS) * TDM_VK_ACT_STRIDE(proj->act, m->hp.d_model);
        size_arrays(m, bytes);
        for (int i = TDM_VK_STEP_INPUTS + 1; i < TDM_VK_N_ARRAYS; i++)
                needs[n++] = (struct need){ &m->arrays[i], bytes[i], TDM_VK_DEVICE_MEMORY, "what operations leave" };
        if (bytes[TDM_VK_ROUTER_Y])
                needs[n++] = (struct need){ &m->choices, tdm_vk_experts_lists(m).size_bytes, TDM_VK_DEVICE_MEMORY,
                                            "experts" };
        if (bytes[TDM_VK_EMBEDDED])
                needs[n++] = (struct need){ &m->side.embedded_sums,
                                            n_tiles * m->rounded.sums_rows * (m->hp.d_model / TDM_BLOCK_VALUES) * 8,
                                            TDM_VK_DEVICE_MEMORY, "inputs of layers" };
        return n;
}

/* Buffers for the part of logits that comes to the host. */
static unsigned list_logits(struct tdm_vk_model *m, struct need *needs, unsigned n)
{
        uint64_t logits_bytes = (uint64_t)m->logits.rows * m->logits.stride * sizeof(float),
                 scan_row = ((uint64_t)m->logits.maxima_stride + m->logits.tops_stride) * sizeof(float);

        needs[n++] = (struct need){ &m->logits.host, logits_bytes, TDM_VK_HOST_MEMORY, "logits" };
        needs[n++] = (struct need){ &m->logits.scan, m->logits.rows * scan_row, TDM_VK_DEVICE_MEMORY, "logits" };
        needs[n++] = (struct need){ &m->logits.scan_host,
                                    tdm_vk_scan_found(m) +
                                            m->logits.rows * (m->logits.maxima_stride + 1ull) * sizeof(uint32_t),
                                    TDM_VK_HOST_MEMORY, "logits" };
        return n;
}

static unsigned list_steps(struct tdm_vk_model *m, uint64_t step_bytes, struct need *needs, unsigned n)
{
        uint64_t hidden_bytes = (uint64_t)m->limits.max_rows * m->hp.residual_width * sizeof(float);

        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                needs[n++] = (struct need){ &m->slots[i].step, step_bytes, TDM_VK_SHARED_MEMORY, "steps" };
                if (!m->activations.buffer.buffer)
                        needs[n++] = (struct need){ &m->slots[i].hidden_buffer, hidden_bytes, TDM_VK_DEVICE_MEMORY,
                                                    "hidden rows" };
        }
        if (m->early.shorter) {
                needs[n++] = (struct need){ &m->early.slot.step, step_bytes, TDM_VK_SHARED_MEMORY, "steps" };
                needs[n++] = (struct need){ &m->early.slot.hidden_buffer, hidden_bytes, TDM_VK_DEVICE_MEMORY,
                                            "hidden rows" };
        }
        if (!m->activations.buffer.buffer)
                needs[n++] = (struct need){ &m->hidden_host, hidden_bytes, TDM_VK_HOST_MEMORY, "hidden rows" };
        return n;
}

static unsigned list_needs(struct tdm_vk_model *m, uint64_t step_bytes, struct need *needs)
{
        const struct tdm_hparams *hp = &m->hp;
        const uint64_t flagged_bytes =
                m->attention.is_f16 ?
                        (uint64_t)m->attention.max_slots * TDM_VK_PARTIAL_WIDTH(hp->head_dim) * sizeof(uint64_t) :
                        0;
        unsigned n = 0;

        memset(needs, 0, MAX_NEEDS * sizeof(*needs));
        for (; n < TDM_VK_N_ACTS; n++)
                needs[n] = (struct need){ &m->rounded.acts[n], 0, TDM_VK_DEVICE_MEMORY, "rounded activations" };
        for (; n < 2 * TDM_VK_N_ACTS; n++)
                needs[n] =
                        (struct need){ &m->rounded.sums[n - TDM_VK_N_ACTS], 0, TDM_VK_DEVICE_MEMORY, "their scales" };
        size_acts(m, needs, needs + TDM_VK_N_ACTS);
        n = list_arrays(m, needs, n);
        n = list_logits(m, needs, n);
        needs[n++] = (struct need){ &m->attention.partial, tdm_vk_partial_flagged(m) + flagged_bytes,
                                    TDM_VK_DEVICE_MEMORY, "attention" };
        needs[n++] = (struct need){ &m->counters, 64, TDM_VK_HOST_MEMORY, "counters" };
        needs[n++] = (struct need){ &m->chain, place_flagged(m), TDM_VK_DEVICE_MEMORY, "counters" };
        needs[n++] =
                (struct need){ &m->biases,
                               tdm_vk_weights_biased(m) ? hp->n_layers * sizeof(float) *
                                                                  (tdm_vk_q_width(hp) + 2ull * tdm_vk_kv_width(hp)) :
                                                          0,
                               TDM_VK_SHARED_MEMORY, "biases" };
        needs[n++] = (struct need){ &m->attention.rotations,
                                    m->attention.is_f16 ? hp->n_layers * sizeof(struct tdm_vk_rotation) : 0,
                                    TDM_VK_SHARED_MEMORY, "attention" };
        return list_steps(m, step_bytes, needs, n);
}

/* Everything that will lie on the device, before anything is put there. */
static int check_memory(struct tdm_vk_model *m, const struct need *needs, unsigned n, struct tdm_error *err)
{
        uint64_t weights = 0, cache = 0, work = 0, left, total;

        for (unsigned i = 0; i < m->regions.n; i++)
                if (!m->device->memory.import || m->regions.tensors[i])
                        weights += m->regions.end[i] - m->regions.begin[i];
        for (unsigned i = 0; i < n; i++)
                work += needs[i].place == TDM_VK_DEVICE_MEMORY ? needs[i].bytes : 0;
        if (m->cache.base && !m->device->memory.import)
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
        m->attention.step_serial = 0;
        device->vk.CmdFillBuffer(commands, m->attention.partial.buffer, 0, VK_WHOLE_SIZE, 0);
        tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        return tdm_vk_once_end(device, what, err);
}

static int allocate_buffers(struct tdm_vk_model *m, const struct need *needs, unsigned n, struct tdm_error *err)
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
        m->attention.step_serial = TDM_VK_SERIALS - 3;
        return r;
}

int tdm_vk_buffers_import_activations(struct tdm_vk_model *m, const struct tdm_device_model_config *config,
                                      struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        bool imported = false;

        if (!config->activations)
                return 0;
        if (config->activations_dmabuf && (device->memory.unified || config->dmabuf_only)) {
                imported = tdm_vk_buffer_import_dmabuf(device, &m->activations.buffer, config->activations_dmabuf,
                                                       config->activations_bytes, &m->activations.no_dmabuf) == 0;
                m->activations.dmabuf = imported ? config->activations_dmabuf : 0;
        } else if (config->activations_dmabuf)
                m->activations.no_dmabuf = "the GPU's memory is its own";
        if (!imported && config->dmabuf_only)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "activations = dma-buf, but %s cannot take one: %s",
                                     device->properties.deviceName,
                                     m->activations.no_dmabuf ? m->activations.no_dmabuf : "none came");
        if (!imported && device->memory.import)
                imported =
                        tdm_vk_buffer_import(device, &m->activations.buffer, config->activations,
                                             TDM_ALIGN_UP(config->activations_bytes, device->memory.import_align)) == 0;
        if (imported) {
                m->activations.base = config->activations;
                m->activations.size_bytes = config->activations_bytes;
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
        memset(m->regions.buffers, 0, sizeof(m->regions.buffers));
        if (r == 0)
                r = allocate_buffers(m, needs, n, err);
        return r == 0 ? host_memory_init(m, err) : r;
}

void tdm_vk_buffers_deinit(struct tdm_vk_model *m)
{
        struct tdm_vk_device *device = m->device;

        for (unsigned i = 0; i < m->regions.n; i++)
                tdm_vk_buffer_deinit(device, &m->regions.buffers[i]);
        for (unsigned i = 0; i < TDM_VK_N_ACTS; i++) {
                tdm_vk_buffer_deinit(device, &m->rounded.acts[i]);
                tdm_vk_buffer_deinit(device, &m->rounded.sums[i]);
        }
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                tdm_vk_buffer_deinit(device, &m->slots[i].step);
                tdm_vk_buffer_deinit(device, &m->slots[i].hidden_buffer);
        }
        tdm_vk_buffer_deinit(device, &m->early.slot.step);
        tdm_vk_buffer_deinit(device, &m->early.slot.hidden_buffer);
        tdm_vk_buffer_deinit(device, &m->activations.buffer);
        for (unsigned i = 0; i < TDM_VK_N_ARRAYS; i++)
                tdm_vk_buffer_deinit(device, &m->arrays[i]);
        tdm_vk_buffer_deinit(device, &m->attention.partial);
        tdm_vk_buffer_deinit(device, &m->logits.host);
        tdm_vk_buffer_deinit(device, &m->logits.scan);
        tdm_vk_buffer_deinit(device, &m->logits.scan_host);
        tdm_vk_buffer_deinit(device, &m->hidden_host);
        tdm_vk_buffer_deinit(device, &m->counters);
        tdm_vk_buffer_deinit(device, &m->chain);
        tdm_vk_buffer_deinit(device, &m->biases);
        tdm_vk_buffer_deinit(device, &m->attention.rotations);
        tdm_vk_buffer_deinit(device, &m->choices);
        tdm_vk_buffer_deinit(device, &m->side.embedded_sums);
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                tdm_rope_deinit(&m->rope[kind]);
        tdm_pooler_destroy(m->pooling);
        free(m->sampler_scratch);
}
