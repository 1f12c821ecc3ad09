/* Loading a model: its weights onto the device (or used where they lie), every buffer that a step will need, every
 * kernel. After this nothing is allocated or compiled. What does not fit is told with sizes before anything is
 * uploaded. */
#include <assert.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/private.h"

#define REGION_BYTES (UINT64_C(1) << 30) /* a region of several tensors, at most */
#define TILE_ROWS 512u                   /* rows that go through a block together */
#define LOGITS_BYTES_MAX (UINT64_C(64) << 20)
#define MATRIX_ROWS 64u     /* that a kernel for matrix units reads together, at most */
#define PARTIALS_MIN 32768u /* partial results of attention: for a few rows behind a long context */
#define SUBMISSION_ROW_BLOCKS 2048u
#define D_MODEL_MAX 14336u /* what norm.comp keeps of a row in 32 KiB of shared memory */

/* As the host device's: the one place that says how the input of each matrix is rounded. */
enum input { QKV, ATTN_OUT, GATE_UP, DOWN, HEAD, N_INPUTS };
static const enum tdm_act input_acts[][N_INPUTS] = {
        [TDM_PRECISION_DEFAULT] = { TDM_ACT_I8, TDM_ACT_I16, TDM_ACT_I8, TDM_ACT_I16, TDM_ACT_I8 },
        [TDM_PRECISION_PRECISE] = { TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16 },
        [TDM_PRECISION_F32] = { TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32 },
};

static bool type_known(uint32_t type)
{
        return type == TDM_TYPE_F32 || type == TDM_TYPE_F16 || type == TDM_TYPE_BF16 || type == TDM_TYPE_Q8_0 ||
               type == TDM_TYPE_Q4_0 || tdm_subblock_type(type);
}

/* The cache's geometry comes from a peer: it must be what the model's sizes make of it. */
static bool geometry_fits(const struct tdm_kv_geometry *kv, const struct tdm_hparams *hp)
{
        struct tdm_kv_geometry want;

        if (!tdm_kv_type_name((enum tdm_kv_type)kv->type) ||
            tdm_kv_geometry_init(&want, hp, (enum tdm_kv_type)kv->type, kv->n_pages[TDM_KV_FULL],
                                 kv->n_pages[TDM_KV_WINDOW]) < 0)
                return false;
        return memcmp(kv->n_layers, want.n_layers, sizeof(want.n_layers)) == 0 &&
               memcmp(kv->n_pages, want.n_pages, sizeof(want.n_pages)) == 0 &&
               memcmp(kv->page_bytes, want.page_bytes, sizeof(want.page_bytes)) == 0 &&
               memcmp(kv->offset, want.offset, sizeof(want.offset)) == 0 && kv->n_kv_heads == want.n_kv_heads &&
               kv->head_dim == want.head_dim && kv->part_bytes == want.part_bytes && kv->size_bytes == want.size_bytes;
}

static int check(const struct tdm_device_model_config *config, const struct tdm_hparams *hp, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(config->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(config->weights + header->tensors_offset);
        int r;

        if ((unsigned)config->precision >= TDM_ARRAY_SIZE(input_acts))
                return tdm_error_set(err, TDM_E_PROTOCOL, "vulkan device: no precision %u",
                                     (unsigned)config->precision);
        r = tdm_steps_limits_check(&config->limits, err);
        if (r == 0) /* Gemma 3 and nothing else */
                r = tdm_recipe_check_device(&header->recipe, hp, 0, "vulkan", err);
        if (r)
                return r;
        if (!geometry_fits(&config->kv, hp))
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "vulkan device: the KV cache's geometry does not fit the model's sizes");
        if (hp->n_heads * hp->head_dim % TDM_BLOCK_VALUES || hp->d_ff % TDM_BLOCK_VALUES || hp->head_dim % 16 ||
            hp->head_dim > TDM_VK_HEAD_DIM_MAX)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "vulkan device: %u heads of %u values, %u in the FFN: heads of at most %u, a "
                                     "multiple of 16, and both products multiples of %u are known",
                                     hp->n_heads, hp->head_dim, hp->d_ff, TDM_VK_HEAD_DIM_MAX, TDM_BLOCK_VALUES);
        if (hp->d_model > D_MODEL_MAX)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "vulkan device: rows of %u values: at most %u are known",
                                     hp->d_model, D_MODEL_MAX);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                if (tensors[i].layout == TDM_LAYOUT_PANEL16 && !type_known(tensors[i].type))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "vulkan device: no kernels for weights in %s; TANDEM_GPU=host runs them "
                                             "on the CPU",
                                             tdm_type_info(tensors[i].type)->name);
        return 0;
}

/* ---- weights ---- */

/* Cuts the segment into regions of whole tensors. They lie in rising order, with gaps below a page at most. */
static int find_regions(struct tdm_vk_model *m, uint64_t align, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(m->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(m->weights + header->tensors_offset);

        for (uint32_t i = 0; i < header->n_tensors; i++) {
                uint64_t begin = tensors[i].offset & ~(align - 1),
                         end = TDM_ALIGN_UP(tensors[i].offset + tensors[i].size_bytes, align);
                unsigned last = m->n_regions - 1;

                if (m->n_regions && begin >= m->region_begin[last] && begin <= m->region_end[last] &&
                    end - m->region_begin[last] <= REGION_BYTES) {
                        m->region_end[last] = TDM_MAX(m->region_end[last], end);
                        continue;
                }
                if (m->n_regions == TDM_VK_MAX_REGIONS)
                        return tdm_error_set(err, TDM_E_NO_MEMORY,
                                             "vulkan device: weights of %llu bytes lie in too many pieces",
                                             (unsigned long long)header->size_bytes);
                m->region_begin[m->n_regions] = begin;
                m->region_end[m->n_regions++] = end;
        }
        return 0;
}

/* Weights are used where they lie, if the driver takes all of them so. */
static void import_weights(struct tdm_vk_model *m)
{
        struct tdm_vk_device *device = m->device;
        unsigned n = 0;

        while (n < m->n_regions &&
               tdm_vk_buffer_import(device, &m->regions[n], (uint8_t *)m->weights + m->region_begin[n],
                                    m->region_end[n] - m->region_begin[n]) == 0)
                n++;
        m->weights_imported = n == m->n_regions;
        for (unsigned i = 0; i < m->n_regions && !m->weights_imported; i++)
                tdm_vk_buffer_deinit(device, &m->regions[i]);
}

/* Memory of the device for all weights. */
static int allocate_weights(struct tdm_vk_model *m, struct tdm_error *err)
{
        for (unsigned i = 0; i < m->n_regions; i++) {
                uint64_t n = m->region_end[i] - m->region_begin[i];
                int r = tdm_vk_buffer_init(m->device, &m->regions[i], n, TDM_VK_DEVICE_MEMORY, "weights", err);

                if (r != 0)
                        return r;
                m->memory_bytes += n;
        }
        return 0;
}

/* On their way to the device are [0, uploaded_bytes) of the segment; now up to n_bytes. */
static int upload_weights(struct tdm_vk_model *m, uint64_t n_bytes, struct tdm_error *err)
{
        int r = 0;

        n_bytes = TDM_MIN(n_bytes, tdm_weights_header(m->weights)->size_bytes);
        for (unsigned i = 0; i < m->n_regions && r == 0; i++) {
                uint64_t begin = TDM_MAX(m->region_begin[i], m->uploaded_bytes),
                         end = TDM_MIN(m->region_end[i], n_bytes);

                if (begin < end)
                        r = tdm_vk_upload(m->device, &m->regions[i], begin - m->region_begin[i], m->weights + begin,
                                          end - begin, err);
        }
        m->uploaded_bytes = TDM_MAX(m->uploaded_bytes, n_bytes);
        return r;
}

static uint64_t address_of(const struct tdm_vk_model *m, const struct tdm_weights_tensor *tensor)
{
        for (unsigned i = 0; i < m->n_regions; i++)
                if (tensor->offset >= m->region_begin[i] &&
                    tensor->offset + tensor->size_bytes <= m->region_begin[i] + m->regions[i].size_bytes)
                        return m->regions[i].address + (tensor->offset - m->region_begin[i]);
        assert(false);
        return 0;
}

/* How it is turned: TDM_VK_TURNED, TDM_VK_FRAGMENTS, or 0 for not at all. */
static uint32_t form_of(const struct tdm_vk_model *m, const struct tdm_weights_tensor *tensor)
{
        if (m->weights_imported || tensor->layout != TDM_LAYOUT_PANEL16 ||
            (tensor->type != TDM_TYPE_Q4_0 && tensor->type != TDM_TYPE_Q8_0))
                return 0;
        return m->half && tensor->cols % TDM_VK_CHUNK_COLS == 0 ? TDM_VK_FRAGMENTS : TDM_VK_TURNED;
}

/* WORDS of turn.comp. */
static uint32_t turn_words(const struct tdm_weights_tensor *tensor)
{
        return tensor->type == TDM_TYPE_Q4_0 ? 4 : 8;
}

/* Turns (shaders/turn.comp) every matrix that is better read so, all in one submission. */
static int turn_weights(struct tdm_vk_model *m, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(m->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(m->weights + header->tensors_offset);
        const char *what = "turning the weights";
        struct tdm_vk_device *device = m->device;
        struct tdm_vk *vk = &device->vk;
        VkCommandBuffer commands;
        int r;

        if (m->weights_imported)
                return 0;
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                uint32_t form = form_of(m, &tensors[i]);

                r = form ? tdm_vk_pipeline_need(device, TDM_VK_TURN,
                                                (const uint32_t[]){ turn_words(&tensors[i]), form, 0, 0 }, err) :
                           0;
                if (r != 0)
                        return r;
        }
        r = tdm_vk_once_begin(device, &commands, what, err);
        if (r != 0)
                return r;
        for (int end = 0; end < 2; end++) { /* after the uploads, and before whoever reads */
                tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
                for (uint32_t i = 0; i < header->n_tensors && end == 0; i++) {
                        const struct tdm_weights_tensor *t = &tensors[i];
                        uint32_t words = turn_words(t), form = form_of(m, t),
                                 n_panels = TDM_DIV_UP(t->rows, TDM_PANEL_ROWS);
                        struct tdm_vk_matmul_push push = { .w0 = address_of(m, t),
                                                           .panel_bytes = (uint32_t)t->panel_bytes,
                                                           .cols = t->cols,
                                                           .y_scale = m->half ? 1 / tdm_vk_half_divisor(m, t) : 1 };

                        if (!form)
                                continue;
                        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                            tdm_vk_pipeline_get(device, TDM_VK_TURN, words, form, 0, 0)->pipeline);
                        for (uint32_t n; push.panel0 < n_panels; push.panel0 += n) {
                                n = TDM_MIN(n_panels - push.panel0, 65535u);
                                vk->CmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                                     sizeof(push), &push);
                                vk->CmdDispatch(commands, TDM_DIV_UP(t->cols / TDM_BLOCK_VALUES * words * 16, 256u), n,
                                                1);
                        }
                }
        }
        return tdm_vk_once_end(device, what, err);
}

static uint64_t vector(const struct tdm_vk_model *m, enum tdm_tensor_kind kind, uint32_t layer)
{
        return address_of(m, tdm_weights_find(m->weights, kind, layer));
}

static struct tdm_vk_matrix matrix(const struct tdm_vk_model *m, enum tdm_tensor_kind kind, uint32_t layer,
                                   enum input input)
{
        const struct tdm_weights_tensor *t = tdm_weights_find(m->weights, kind, layer);
        uint32_t form = form_of(m, t);

        return (struct tdm_vk_matrix){
                .address = address_of(m, t),
                .type = t->type | form,
                .act = form == TDM_VK_FRAGMENTS ?
                               (input == ATTN_OUT || input == DOWN ? TDM_VK_ACT_F16_AFTER : TDM_VK_ACT_F16) :
                       tdm_weights_type_quantised(t->type) ? (uint32_t)input_acts[m->precision][input] :
                                                             TDM_VK_ACT_F32,
                .x_scale = 1,
                .y_scale = 1,
                .rows = t->rows,
                .cols = t->cols,
                .n_panels = TDM_DIV_UP(t->rows, TDM_PANEL_ROWS),
                .panel_bytes = (uint32_t)t->panel_bytes,
        };
}

static void find_tensors(struct tdm_vk_model *m)
{
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                struct tdm_vk_layer *l = &m->layers[i];

                l->q = matrix(m, TDM_TENSOR_Q, i, QKV);
                l->k = matrix(m, TDM_TENSOR_K, i, QKV);
                l->v = matrix(m, TDM_TENSOR_V, i, QKV);
                l->o = matrix(m, TDM_TENSOR_O, i, ATTN_OUT);
                l->gate = matrix(m, TDM_TENSOR_GATE, i, GATE_UP);
                l->up = matrix(m, TDM_TENSOR_UP, i, GATE_UP);
                l->down = matrix(m, TDM_TENSOR_DOWN, i, DOWN);
                l->attn_norm = vector(m, TDM_TENSOR_ATTN_NORM, i);
                l->q_norm = vector(m, TDM_TENSOR_Q_NORM, i);
                l->k_norm = vector(m, TDM_TENSOR_K_NORM, i);
                l->post_attn_norm = vector(m, TDM_TENSOR_POST_ATTN_NORM, i);
                l->ffn_norm = vector(m, TDM_TENSOR_FFN_NORM, i);
                l->post_ffw_norm = vector(m, TDM_TENSOR_POST_FFW_NORM, i);
        }
        m->output = matrix(
                m, tdm_weights_find(m->weights, TDM_TENSOR_OUTPUT, 0) ? TDM_TENSOR_OUTPUT : TDM_TENSOR_TOKEN_EMBD, 0,
                HEAD);
        m->embedding = matrix(m, TDM_TENSOR_TOKEN_EMBD, 0, HEAD);
        m->output_norm = vector(m, TDM_TENSOR_OUTPUT_NORM, 0);
}

/* ---- work buffers ---- */

struct need {
        struct tdm_vk_buffer *buffer;
        uint64_t bytes;
        enum tdm_vk_place place;
        const char *what;
};
#define MAX_NEEDS (28u + 2u * TDM_STEP_SLOTS)

static void sizes_init(struct tdm_vk_model *m)
{
        const char *logits = getenv("TANDEM_VULKAN_LOGITS");
        const struct tdm_hparams *hp = &m->hp;
        uint32_t heads_per_kv = hp->n_heads / hp->n_kv_heads,
                 queries_max = hp->head_dim > 256 || m->device->few_kernels ? 4 : 8;

        m->tile_rows = TDM_MIN(m->limits.max_rows, TILE_ROWS);
        m->side_rows = m->device->matrix_units ? TDM_VK_DIRECT_ROWS_MAX : 0;
        for (uint32_t heads = 1; heads <= TDM_MIN(heads_per_kv, queries_max); heads++)
                if (heads_per_kv % heads == 0)
                        m->queries_heads = heads;
        m->many_rows = queries_max / m->queries_heads;
        m->max_slots = TDM_MAX(m->tile_rows * hp->n_heads, PARTIALS_MIN);
        m->max_items = TDM_MAX(m->tile_rows, m->max_slots / hp->n_heads);
        m->logits_stride = TDM_ALIGN_UP(hp->n_vocab, 16u);
        m->logits_rows = (uint32_t)TDM_MIN(TDM_MAX(LOGITS_BYTES_MAX / (m->logits_stride * sizeof(float)), 1u),
                                           m->limits.max_logits);
        m->y_stride_max = TDM_MAX(TDM_MAX(tdm_vk_q_width(hp) + 2 * tdm_vk_kv_width(hp), 2 * hp->d_ff), hp->d_model);
        /* Whoever compares can have all logits: the choice changes no bit of what is drawn. */
        m->logits_whole = m->recipe.logit_softcap > 0 || (logits && strcmp(logits, "whole") == 0);
        m->maxima_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_MAX_BLOCK);
        m->sums_stride = TDM_DIV_UP(hp->n_vocab, TDM_SAMPLE_SUM_BLOCK);
        m->tops_stride = TDM_DIV_UP(hp->n_vocab, TDM_VK_LOGITS_EACH);
        m->sampler_stride = TDM_ALIGN_UP(tdm_sampler_scratch_bytes(hp->n_vocab), (size_t)64);
}

/* Whole tiles of rows: matrix units read what they do not use. */
static void need_act(struct need *needs, const struct tdm_vk_matrix *matrix, uint32_t rows, uint32_t side_rows)
{
        uint32_t cols = matrix->cols;

        needs[matrix->act].bytes = TDM_MAX(needs[matrix->act].bytes, TDM_ALIGN_UP((uint64_t)rows, MATRIX_ROWS) *
                                                                             TDM_VK_ACT_STRIDE(matrix->act, cols));
        if (side_rows && (matrix->act == TDM_VK_ACT_I8 || matrix->act == TDM_VK_ACT_I16))
                needs[TDM_VK_N_ACTS + matrix->act].bytes = TDM_MAX(needs[TDM_VK_N_ACTS + matrix->act].bytes,
                                                                   (uint64_t)side_rows * cols / TDM_BLOCK_VALUES * 8);
}

/* Returns the size of what chain.c needs. */
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
        return end;
}

uint64_t tdm_vk_partial_flagged(const struct tdm_vk_model *m)
{
        return TDM_VK_ARRIVALS_BYTES + (uint64_t)m->max_slots * TDM_VK_PARTIAL_WIDTH(m->hp.head_dim) * sizeof(float);
}

static unsigned list_needs(struct tdm_vk_model *m, struct need *needs)
{
        const struct tdm_hparams *hp = &m->hp;
        struct tdm_vk_step_layout layout;
        uint64_t hidden_bytes = (uint64_t)m->limits.max_rows * hp->residual_width * sizeof(float);
        uint64_t logits_bytes = (uint64_t)m->logits_rows * m->logits_stride * sizeof(float),
                 scan_row = ((uint64_t)m->maxima_stride + m->tops_stride) * sizeof(float);
        unsigned n = 0;

        memset(needs, 0, MAX_NEEDS * sizeof(*needs));
        for (; n < TDM_VK_N_ACTS; n++)
                needs[n] = (struct need){ &m->acts[n], 0, TDM_VK_DEVICE_MEMORY, "rounded activations" };
        for (; n < 2 * TDM_VK_N_ACTS; n++)
                needs[n] = (struct need){ &m->sides[n - TDM_VK_N_ACTS], 0, TDM_VK_DEVICE_MEMORY, "their scales" };
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *matrices[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(matrices); k++)
                        need_act(needs, matrices[k], m->tile_rows, m->side_rows);
        }
        need_act(needs, &m->output, m->logits_rows, m->side_rows);
        needs[n++] = (struct need){ &m->y, (uint64_t)m->tile_rows * m->y_stride_max * sizeof(float),
                                    TDM_VK_DEVICE_MEMORY, "matrix products" };
        needs[n++] =
                (struct need){ &m->partial,
                               tdm_vk_partial_flagged(m) +
                                       (m->attend_half ? (uint64_t)m->max_slots * TDM_VK_PARTIAL_WIDTH(hp->head_dim) *
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
        needs[n++] = (struct need){ &m->rotations, m->attend_half ? hp->n_layers * sizeof(struct tdm_vk_rotation) : 0,
                                    TDM_VK_SHARED_MEMORY, "attention" };
        tdm_vk_step_layout(m, &layout);
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                needs[n++] = (struct need){ &m->slots[i].step, layout.size_bytes, TDM_VK_SHARED_MEMORY, "steps" };
                if (!m->activations_buffer.buffer)
                        needs[n++] = (struct need){ &m->slots[i].hidden_buffer, hidden_bytes, TDM_VK_DEVICE_MEMORY,
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

        for (unsigned i = 0; i < m->n_regions && !m->device->import; i++)
                weights += m->region_end[i] - m->region_begin[i];
        for (unsigned i = 0; i < n; i++)
                work += needs[i].place == TDM_VK_DEVICE_MEMORY ? needs[i].bytes : 0;
        if (m->kv_base && !m->device->import)
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

/* See TDM_VK_ARRIVALS: nobody has come, no partial result is there. */
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

static int buffers_init(struct tdm_vk_model *m, const struct need *needs, unsigned n, struct tdm_error *err)
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

static int recordings_init(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        VkCommandBuffer commands[TDM_VK_RECORDINGS];
        const VkCommandBufferAllocateInfo info = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                   .commandPool = device->pool,
                                                   .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                   .commandBufferCount = TDM_VK_RECORDINGS };
        VkResult r;

        m->recordings = calloc(TDM_VK_RECORDINGS, sizeof(*m->recordings));
        if (!m->recordings)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for command buffers");
        r = device->vk.AllocateCommandBuffers(device->vk.device, &info, commands);
        if (r != VK_SUCCESS)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no command buffers: %s",
                                     tdm_vk_result_name(r));
        for (unsigned i = 0; i < TDM_VK_RECORDINGS; i++)
                m->recordings[i].commands = commands[i];
        return 0;
}

static int host_memory_init(struct tdm_vk_model *m, struct tdm_error *err)
{
        const struct tdm_hparams *hp = &m->hp;
        size_t n_tables = m->limits.n_tables, bytes = tdm_pool_n_threads(m->device->threads) * m->sampler_stride;

        m->sampler_scratch = aligned_alloc(64, bytes);
        m->sequences = calloc(n_tables, sizeof(*m->sequences));
        m->known_pages = calloc(n_tables * TDM_KV_GROUPS, m->limits.table_entries * sizeof(uint32_t));
        m->memory_bytes += bytes;
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                const struct tdm_rope_recipe *rope = tdm_kv_group_rope(hp, &m->recipe, (enum tdm_kv_group)group);

                if (rope && tdm_rope_init(&m->rope[group], hp->head_dim, hp->n_ctx, rope->base, rope->factor) < 0)
                        m->rope[group].memory = NULL;
                if (rope && !m->rope[group].memory)
                        return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
        }
        if (!m->sampler_scratch || !m->sequences || !m->known_pages)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a model's tables");
        return 0;
}

/* Where hidden rows are used in place: as a dma-buf, else as memory of this process, else not at all. A device with
 * memory of its own is faster with a copy there, unless it was told otherwise. */
static int import_activations(struct tdm_vk_model *m, const struct tdm_device_model_config *config,
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

/* Finds the model's matrices, as yet without addresses: with rows of F16 where the model and every kernel for them
 * allow it. */
static int choose_rows(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        int r;

        m->half = tdm_vk_half_wanted(m);
        find_tensors(m);
        if (!m->half)
                return 0;
        device->deferring = true;
        r = tdm_vk_kernels_need_half(m, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(device, err);
        device->deferring = false;
        if (r == 0)
                r = tdm_vk_prove_half(device, err);
        if (r == 0 && !tdm_vk_kernels_half_proven(m)) {
                m->half = false;
                find_tensors(m);
        }
        return r == 0 && m->half ? tdm_vk_kernels_attend_half(m, err) : r;
}

/* Everything that can be done before the weights are there. */
static int begin(struct tdm_vk_model *m, const struct tdm_device_model_config *config, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        uint64_t align = device->import ? device->import_align : 64;
        struct need needs[MAX_NEEDS];
        unsigned n;
        int r = find_regions(m, align, err);

        if (r != 0)
                return r;
        r = import_activations(m, config, err);
        if (r != 0)
                return r;
        sizes_init(m);
        /* Addresses are not known yet, but shapes are: what is needed is found without them. */
        for (unsigned i = 0; i < m->n_regions; i++)
                m->regions[i].size_bytes = m->region_end[i] - m->region_begin[i];
        r = choose_rows(m, err);
        if (r != 0)
                return r;
        n = list_needs(m, needs);
        r = check_memory(m, needs, n, err);
        memset(m->regions, 0, sizeof(m->regions));
        if (r == 0)
                r = buffers_init(m, needs, n, err);
        if (r == 0)
                r = host_memory_init(m, err);
        if (r == 0 && !device->import)
                r = allocate_weights(m, err);
        return r;
}

int tdm_vk_model_begin(struct tdm_device *public, const struct tdm_device_model_config *config,
                       struct tdm_device_model **ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = (struct tdm_vk_device *)public;
        const struct tdm_hparams *hp = &tdm_weights_header(config->weights)->hparams;
        const char *submission = getenv("TANDEM_VULKAN_SUBMISSION"); /* tests make many of a small step */
        struct tdm_error ignored;
        struct tdm_vk_model *m;
        int r = check(config, hp, err);

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
        m->kv_base = config->kv_base;
        m->limits = config->limits;
        m->precision = config->precision;
        m->submission_row_blocks =
                submission && *submission ? (uint32_t)strtoul(submission, NULL, 10) : SUBMISSION_ROW_BLOCKS;
        r = begin(m, config, err ? err : &ignored);
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

        /* What is imported is imported whole. */
        return m->device->import ? 0 : upload_weights(m, n_bytes, err);
}

int tdm_vk_model_end(struct tdm_device_model *public, struct tdm_error *err)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;
        struct tdm_vk_device *device = m->device;
        int r = 0;

        if (device->import)
                import_weights(m);
        if (device->import && !m->weights_imported) {
                r = allocate_weights(m, err);
                if (r == 0)
                        r = upload_weights(m, UINT64_MAX, err);
        }
        if (r != 0)
                return r;
        find_tensors(m);
        tdm_vk_attend_rotations(m);
        r = tdm_vk_half_scales(m, err);
        if (r == 0)
                r = turn_weights(m, err);
        if (r == 0)
                r = recordings_init(m, err);
        if (r == 0)
                r = tdm_vk_kernels_prepare(m, err);
        tdm_vk_cache_save(device);
        return r;
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
                const struct tdm_error *kv_error = &((struct tdm_vk_model *)m)->kv_error;

                tdm_vk_kv_set((struct tdm_vk_model *)m, config->kv_base);
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
        if (m->recordings) {
                for (unsigned i = 0; i < TDM_VK_RECORDINGS && m->recordings[i].commands; i++)
                        device->vk.FreeCommandBuffers(device->vk.device, device->pool, 1, &m->recordings[i].commands);
                free(m->recordings);
        }
        tdm_vk_kv_deinit(m);
        for (unsigned i = 0; i < m->n_regions; i++)
                tdm_vk_buffer_deinit(device, &m->regions[i]);
        for (unsigned i = 0; i < TDM_VK_N_ACTS; i++) {
                tdm_vk_buffer_deinit(device, &m->acts[i]);
                tdm_vk_buffer_deinit(device, &m->sides[i]);
        }
        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                tdm_vk_buffer_deinit(device, &m->slots[i].step);
                tdm_vk_buffer_deinit(device, &m->slots[i].hidden_buffer);
        }
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
        tdm_vk_buffer_deinit(device, &m->rotations);
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                tdm_rope_deinit(&m->rope[group]);
        free(m->sampler_scratch);
        free(m->sequences);
        free(m->known_pages);
        free(m->layers);
        free(m);
}
