/* Weights: the segment's tensors in a few regions, imported where memory is unified, else uploaded and repacked into
 * the order in which kernels read them. Finds each matrix of the model, and how its input is rounded. */
#include <assert.h>
#include <math.h>

#include "engine/host/matmul.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/model/model.h"

#define REGION_BYTES (UINT64_C(1) << 30) /* a region of several tensors, at most */
#define PANELS_BYTES (UINT64_C(4) << 20) /* made at once of a matrix that lies otherwise */

/* As the host device's: the one place that says how the input of each matrix is rounded. QKV_PLAIN: where no norm
 * follows attention. GATE_SPARSE: its numbers decide which neurons live. */
enum input { QKV, ATTN_OUT, GATE_UP, DOWN, HEAD, QKV_PLAIN, SIDE, GATE_SPARSE = SIDE, N_INPUTS };
static const enum tdm_act input_acts[][N_INPUTS] = {
        [TDM_PRECISION_DEFAULT] = { TDM_ACT_I8, TDM_ACT_I16, TDM_ACT_I8, TDM_ACT_I16, TDM_ACT_I8, TDM_ACT_I16,
                                    TDM_ACT_I16 },
        [TDM_PRECISION_PRECISE] = { TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16, TDM_ACT_I16,
                                    TDM_ACT_I16 },
        [TDM_PRECISION_F32] = { TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32, TDM_ACT_F32,
                                TDM_ACT_F32 },
};

static_assert(TDM_ARRAY_SIZE(input_acts) == TDM_PRECISION_F32 + 1, "a row for each precision");

enum tdm_act tdm_vk_weights_side_act(enum tdm_precision precision)
{
        return input_acts[precision][SIDE];
}

#define OR_OF_TYPE(name, type_, kind) || type == TDM_TYPE_##type_

bool tdm_vk_type_known(uint32_t type)
{
        return type == TDM_TYPE_F32 || type == TDM_TYPE_F16 || type == TDM_TYPE_BF16 || type == TDM_TYPE_Q8_0 ||
               type == TDM_TYPE_Q4_0 TDM_SUBBLOCK_TYPES_OF_GPUS(OR_OF_TYPE) TDM_SUBBLOCK_GRIDS(OR_OF_TYPE);
}

bool tdm_vk_type_plain(uint32_t type)
{
        return type == TDM_TYPE_F16 || type == TDM_TYPE_BF16;
}

bool tdm_vk_type_f16(uint32_t type)
{
        return type == TDM_TYPE_Q4_0 || type == TDM_TYPE_Q8_0 || tdm_vk_type_plain(type) ||
               (tdm_subblock_type(type) && !tdm_subblock_grid(type));
}

/* Whether a tensor lies as those of layers with sparse activations do (engine/weights/weights.h). Kernels here compute
 * all neurons, and read panels. */
static bool lies_otherwise(const struct tdm_weights_tensor *tensor)
{
        return tensor->layout == TDM_LAYOUT_BY_ROW || tensor->layout == TDM_LAYOUT_BY_COLUMN;
}

/* Cuts the segment into regions of whole tensors. They lie in rising order, with gaps below a page at most. What lies
 * otherwise is a region of its own. */
int tdm_vk_weights_find_regions(struct tdm_vk_model *m, struct tdm_error *err)
{
        uint64_t align = m->device->memory.import ? m->device->memory.import_align : 64;
        const struct tdm_weights_header *header = tdm_weights_header(m->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(m->weights + header->tensors_offset);

        for (uint32_t i = 0; i < header->n_tensors; i++) {
                uint64_t begin = tensors[i].offset & ~(align - 1),
                         end = TDM_ALIGN_UP(tensors[i].offset + tensors[i].size_bytes, align);
                unsigned last = m->regions.n - 1;
                bool is_single = lies_otherwise(&tensors[i]);

                if (tensors[i].layout == TDM_LAYOUT_FILE)
                        continue;
                if (is_single) {
                        begin = tensors[i].offset;
                        end = begin + tensors[i].size_bytes;
                }
                if (m->regions.n && !is_single && !m->regions.tensors[last] && begin >= m->regions.begin[last] &&
                    begin <= m->regions.end[last] && end - m->regions.begin[last] <= REGION_BYTES) {
                        m->regions.end[last] = TDM_MAX(m->regions.end[last], end);
                        continue;
                }
                if (m->regions.n == TDM_VK_MAX_REGIONS)
                        return tdm_error_set(err, TDM_E_NO_MEMORY,
                                             "vulkan device: weights of %llu bytes lie in too many pieces",
                                             (unsigned long long)header->size_bytes);
                m->regions.tensors[m->regions.n] = is_single ? &tensors[i] : NULL;
                m->regions.begin[m->regions.n] = begin;
                m->regions.end[m->regions.n++] = end;
        }
        return 0;
}

/* Weights are used where they lie, if the driver takes all of them so. */
void tdm_vk_weights_import(struct tdm_vk_model *m)
{
        struct tdm_vk_device *device = m->device;
        unsigned n = 0;

        while (n < m->regions.n &&
               (m->regions.tensors[n] ||
                tdm_vk_buffer_import(device, &m->regions.buffers[n], (uint8_t *)m->weights + m->regions.begin[n],
                                     m->regions.end[n] - m->regions.begin[n]) == 0))
                n++;
        m->regions.are_imported = n == m->regions.n;
        for (unsigned i = 0; i < m->regions.n && !m->regions.are_imported; i++)
                tdm_vk_buffer_deinit(device, &m->regions.buffers[i]);
}

/* Whether a region lies in memory of the device. */
static bool is_copied(const struct tdm_vk_model *m, unsigned i)
{
        return !m->regions.are_imported || m->regions.tensors[i];
}

int tdm_vk_weights_allocate(struct tdm_vk_model *m, struct tdm_error *err)
{
        for (unsigned i = 0; i < m->regions.n; i++) {
                uint64_t n = m->regions.end[i] - m->regions.begin[i];
                int r;

                if (!is_copied(m, i))
                        continue;
                r = tdm_vk_buffer_init(m->device, &m->regions.buffers[i], n, TDM_VK_DEVICE_MEMORY, "weights", err);

                if (r != 0)
                        return r;
                m->memory_bytes += n;
        }
        return 0;
}

/* A matrix that lies otherwise goes to the device as panels. */
static int upload_panels(struct tdm_vk_model *m, unsigned region, struct tdm_error *err)
{
        const struct tdm_kernels *kernels = tdm_kernels_choose(err);
        _cleanup_(freep) uint8_t *panels = NULL;
        struct tdm_matrix matrix;
        uint32_t n_panels, each;
        int r = 0;

        tdm_matrix_init(&matrix, m->weights, m->regions.tensors[region]);
        n_panels = matrix.rows / TDM_PANEL_ROWS;
        each = (uint32_t)TDM_MAX(PANELS_BYTES / matrix.panel_bytes & ~7u, 8u);
        panels = malloc(each * matrix.panel_bytes);
        if (!kernels || !panels)
                return tdm_error_set(err, -ENOMEM, "vulkan device: no memory for %u panels of weights", each);
        for (uint32_t first = 0, n; first < n_panels && r == 0; first += n) {
                n = TDM_MIN(each, n_panels - first);
                tdm_panels_make(kernels, &matrix, first, n, panels);
                r = tdm_vk_upload(m->device, &m->regions.buffers[region], first * matrix.panel_bytes, panels,
                                  n * matrix.panel_bytes, err);
        }
        return r;
}

/* On their way to the device are [0, uploaded_bytes) of the segment; now up to n_bytes. */
int tdm_vk_weights_upload(struct tdm_vk_model *m, uint64_t n_bytes, struct tdm_error *err)
{
        int r = 0;

        n_bytes = TDM_MIN(n_bytes, tdm_weights_header(m->weights)->size_bytes);
        for (unsigned i = 0; i < m->regions.n && r == 0; i++) {
                uint64_t begin = TDM_MAX(m->regions.begin[i], m->regions.uploaded_bytes),
                         end = TDM_MIN(m->regions.end[i], n_bytes);

                if (!is_copied(m, i))
                        continue;
                if (m->regions.tensors[i]) { /* once it is there as a whole */
                        if (m->regions.end[i] > m->regions.uploaded_bytes && m->regions.end[i] <= n_bytes)
                                r = upload_panels(m, i, err);
                } else if (begin < end)
                        r = tdm_vk_upload(m->device, &m->regions.buffers[i], begin - m->regions.begin[i],
                                          m->weights + begin, end - begin, err);
        }
        m->regions.uploaded_bytes = TDM_MAX(m->regions.uploaded_bytes, n_bytes);
        return r;
}

static uint64_t address_of(const struct tdm_vk_model *m, const struct tdm_weights_tensor *tensor)
{
        for (unsigned i = 0; i < m->regions.n; i++)
                if (!m->regions.tensors[i] == !lies_otherwise(tensor) && tensor->offset >= m->regions.begin[i] &&
                    tensor->offset + tensor->size_bytes <= m->regions.begin[i] + m->regions.buffers[i].size_bytes)
                        return m->regions.buffers[i].address + (tensor->offset - m->regions.begin[i]);
        assert(false);
        return 0;
}

/* matvec-experts.comp and the router's kernel read panels as the segment has them. */
static bool is_of_experts(const struct tdm_weights_tensor *tensor)
{
        return tensor->kind == TDM_TENSOR_GATE_EXPS || tensor->kind == TDM_TENSOR_UP_EXPS ||
               tensor->kind == TDM_TENSOR_DOWN_EXPS || tensor->kind == TDM_TENSOR_GATE_UP_EXPS ||
               tensor->kind == TDM_TENSOR_ROUTER;
}

/* How it is repacked: TDM_VK_DEINTERLEAVED, TDM_VK_FRAGMENTS, or 0 for not at all. */
static uint32_t form_of(const struct tdm_vk_model *m, const struct tdm_weights_tensor *tensor)
{
        bool stays = tdm_subblock_type(tensor->type) || tdm_vk_type_plain(tensor->type);

        if (m->regions.are_imported || (tensor->layout != TDM_LAYOUT_PANEL16 && !lies_otherwise(tensor)) ||
            (is_of_experts(tensor) && (!m->f16_rows || tensor->kind == TDM_TENSOR_ROUTER)) ||
            !tdm_vk_type_f16(tensor->type))
                return 0;
        return m->f16_rows && tensor->cols % TDM_VK_CHUNK_COLS == 0 ? TDM_VK_FRAGMENTS :
               stays                                                ? 0 :
                                                                      TDM_VK_DEINTERLEAVED;
}

/* The divisor of a tensor's weights when they are repacked: for rows of F16 a power of two. */
static float divisor_of(const struct tdm_vk_model *m, const struct tdm_weights_tensor *t)
{
        const struct tdm_vk_layer *l = &m->layers[t->layer];

        switch (t->kind) {
        case TDM_TENSOR_Q:
        case TDM_TENSOR_K:
        case TDM_TENSOR_V:
                return l->q.divisor;
        case TDM_TENSOR_GATE:
        case TDM_TENSOR_UP:
                return l->gate.divisor;
        case TDM_TENSOR_O:
                return l->o.divisor;
        case TDM_TENSOR_DOWN:
                return l->down.divisor;
        case TDM_TENSOR_GATE_EXPS:
        case TDM_TENSOR_UP_EXPS:
                return l->experts.gate.divisor;
        case TDM_TENSOR_DOWN_EXPS:
                return l->experts.down.divisor;
        default:
                return m->embedding.divisor;
        }
}

/* The kernel that repacks a tensor, with ret_groups workgroups a panel. form: form_of() of the tensor. */
static enum tdm_vk_shader repack_kernel(const struct tdm_weights_tensor *tensor, uint32_t form,
                                        uint32_t ret_constants[TDM_VK_N_CONSTANTS], uint32_t *ret_groups)
{
        uint32_t words = tensor->type == TDM_TYPE_Q4_0 ? 4 : tdm_vk_type_plain(tensor->type) ? 16 : 8;

        memset(ret_constants, 0, TDM_VK_N_CONSTANTS * sizeof(*ret_constants));
        if (tdm_subblock_type(tensor->type)) {
                ret_constants[0] = tensor->type;
                *ret_groups = tensor->cols / TDM_MAX(tdm_subblock_info(tensor->type).unit_values, TDM_VK_CHUNK_COLS);
                return TDM_VK_REPACK_SUBBLOCK;
        }
        ret_constants[0] = words;
        ret_constants[1] = words == 16 ? form | tensor->type : form;
        *ret_groups = words == 16 ? tensor->cols / TDM_VK_CHUNK_COLS :
                                    TDM_DIV_UP(tensor->cols / TDM_BLOCK_VALUES * words * 16, 256u);
        return TDM_VK_REPACK;
}

/* Repacks (shaders/weights/repack.comp) every matrix that is better read in another order, all in one submission. */
int tdm_vk_weights_repack(struct tdm_vk_model *m, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(m->weights);
        const struct tdm_weights_tensor *tensors =
                (const struct tdm_weights_tensor *)(m->weights + header->tensors_offset);
        const char *what = "repacking the weights";
        struct tdm_vk_device *device = m->device;
        struct tdm_vk *vk = &device->vk;
        VkCommandBuffer commands;
        bool is_all_imported = m->regions.are_imported;
        int r;

        for (unsigned i = 0; i < m->regions.n; i++)
                is_all_imported = is_all_imported && !is_copied(m, i);
        if (is_all_imported)
                return 0;
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                uint32_t form = form_of(m, &tensors[i]), c[TDM_VK_N_CONSTANTS], groups;
                enum tdm_vk_shader shader = repack_kernel(&tensors[i], form, c, &groups);

                r = form ? tdm_vk_pipeline_need(device, shader, c, err) : 0;
                if (r != 0)
                        return r;
        }
        r = tdm_vk_once_begin(device, &commands, what, err);
        if (r != 0)
                return r;
        for (int end = 0; end < 2; end++) { /* a barrier after the uploads, and one before the first reader */
                tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
                for (uint32_t i = 0; i < header->n_tensors && end == 0; i++) {
                        const struct tdm_weights_tensor *t = &tensors[i];
                        uint32_t c[TDM_VK_N_CONSTANTS], groups, form = form_of(m, t),
                                                                n_panels = TDM_DIV_UP(t->rows, TDM_PANEL_ROWS);
                        enum tdm_vk_shader shader = repack_kernel(t, form, c, &groups);
                        struct tdm_vk_repack_push push = { .weights = address_of(m, t),
                                                           .panel_bytes = (uint32_t)t->panel_bytes,
                                                           .cols = t->cols,
                                                           .scale = m->f16_rows ? 1 / divisor_of(m, t) : 1 };

                        if (!form)
                                continue;
                        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                            tdm_vk_pipeline_get(device, shader, c[0], c[1], 0, 0)->pipeline);
                        for (uint32_t n; push.panel0 < n_panels; push.panel0 += n) {
                                n = TDM_MIN(n_panels - push.panel0, 65535u);
                                vk->CmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                                     sizeof(push), &push);
                                vk->CmdDispatch(commands, groups, n, 1);
                        }
                }
        }
        return tdm_vk_once_end(device, what, err);
}

/* 0: the layer has no such vector. */
static uint64_t find_vector(const struct tdm_vk_model *m, enum tdm_tensor_kind kind, uint32_t layer)
{
        const struct tdm_weights_tensor *t = tdm_weights_find(m->weights, kind, layer);

        return t ? address_of(m, t) : 0;
}

#define QKV_BIASES ((uint32_t)(TDM_BIAS_Q | TDM_BIAS_K | TDM_BIAS_V))

static uint64_t biases_bytes(const struct tdm_vk_model *m)
{
        return (tdm_vk_q_width(&m->hp) + 2ull * tdm_vk_kv_width(&m->hp)) * sizeof(float);
}

bool tdm_vk_weights_biased(const struct tdm_vk_model *m)
{
        for (uint32_t i = 0; i < m->hp.n_layers; i++)
                if (m->recipe.layers[i].biases & QKV_BIASES)
                        return true;
        return false;
}

void tdm_vk_weights_biases(struct tdm_vk_model *m)
{
        static const enum tdm_tensor_kind kinds[] = { TDM_TENSOR_Q_BIAS, TDM_TENSOR_K_BIAS, TDM_TENSOR_V_BIAS };
        const uint32_t widths[] = { tdm_vk_q_width(&m->hp), tdm_vk_kv_width(&m->hp), tdm_vk_kv_width(&m->hp) };
        uint8_t *to = m->biases.map;

        for (uint32_t i = 0; i < m->hp.n_layers && m->biases.size_bytes; i++)
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(kinds); to += widths[k++] * sizeof(float)) {
                        const struct tdm_weights_tensor *t = tdm_weights_find(m->weights, kinds[k], i);

                        if (t)
                                memcpy(to, m->weights + t->offset, widths[k] * sizeof(float));
                        else
                                memset(to, 0, widths[k] * sizeof(float));
                }
}

static struct tdm_vk_matrix find_matrix(const struct tdm_vk_model *m, enum tdm_tensor_kind kind, uint32_t layer,
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

static void find_experts(const struct tdm_vk_model *m, uint32_t layer, struct tdm_vk_experts *ret)
{
        const struct tdm_layer_recipe *recipe = &m->recipe.layers[layer];

        *ret = (struct tdm_vk_experts){
                .n = recipe->n_experts,
                .n_used = recipe->n_experts_used,
                .d_expert = recipe->d_expert,
                .router = find_matrix(m, TDM_TENSOR_ROUTER, layer, GATE_UP),
                .gate = find_matrix(m, recipe->gate_up_is_one ? TDM_TENSOR_GATE_UP_EXPS : TDM_TENSOR_GATE_EXPS, layer,
                                    GATE_UP),
                .up = find_matrix(m, recipe->gate_up_is_one ? TDM_TENSOR_GATE_UP_EXPS : TDM_TENSOR_UP_EXPS, layer,
                                  GATE_UP),
                .beside = recipe->has_dense_beside,
                .gate_up_is_one = recipe->gate_up_is_one,
                .z_scale = recipe->has_dense_beside ? 1.0f / sqrtf((float)m->hp.d_model) : 1,
                .scales = find_vector(m, TDM_TENSOR_EXPERT_SCALES, layer),
                .router_gain = find_vector(m, TDM_TENSOR_ROUTER_SCALE, layer),
                .norm = find_vector(m, TDM_TENSOR_EXPERTS_NORM, layer),
                .post_dense = find_vector(m, TDM_TENSOR_POST_DENSE_NORM, layer),
                .post_experts = find_vector(m, TDM_TENSOR_POST_EXPERTS_NORM, layer),
                .down = find_matrix(m, TDM_TENSOR_DOWN_EXPS, layer, DOWN),
                .router_bias = find_vector(m, TDM_TENSOR_ROUTER_BIAS, layer),
                .gate_bias = find_vector(m, TDM_TENSOR_GATE_EXPS_BIAS, layer),
                .up_bias = find_vector(m, TDM_TENSOR_UP_EXPS_BIAS, layer),
                .down_bias = find_vector(m, TDM_TENSOR_DOWN_EXPS_BIAS, layer),
        };
        ret->router.act = TDM_VK_ACT_F32; /* another expert would be another model */
}

/* As the host device's qkv_act(). If values have a norm (Gemma 3n and 4), int8 for queries, keys and values is a third
 * of such a model's distance from the reference. */
static bool is_fine(const struct tdm_layer_recipe *layer)
{
        const uint32_t around = TDM_NORM_ATTN_BEFORE | TDM_NORM_Q | TDM_NORM_ATTN_AFTER;

        return (layer->norms & around) != around || layer->norms & TDM_NORM_V;
}

void tdm_vk_weights_find(struct tdm_vk_model *m)
{
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                struct tdm_vk_layer *l = &m->layers[i];

                enum input qkv = is_fine(&m->recipe.layers[i]) ? QKV_PLAIN : QKV;

                l->v_norm = m->recipe.layers[i].norms & TDM_NORM_V;
                l->n_qkv = !tdm_vk_owns_kv(m, i) ? 1 : m->recipe.layers[i].v_is_k ? 2 : 3;
                l->q = l->k = l->v = find_matrix(m, TDM_TENSOR_Q, i, qkv);
                if (l->n_qkv > 1)
                        l->k = find_matrix(m, TDM_TENSOR_K, i, qkv);
                if (l->n_qkv > 2)
                        l->v = find_matrix(m, TDM_TENSOR_V, i, qkv);
                l->o = find_matrix(m, TDM_TENSOR_O, i, ATTN_OUT);
                if (m->recipe.layers[i].n_experts > 0) {
                        find_experts(m, i, &l->experts);
                }
                if (tdm_vk_has_dense(l)) {
                        l->gate = find_matrix(m, TDM_TENSOR_GATE, i,
                                              m->recipe.layers[i].is_sparse ? GATE_SPARSE : GATE_UP);
                        l->up = find_matrix(m, TDM_TENSOR_UP, i, GATE_UP);
                        l->down = find_matrix(m, TDM_TENSOR_DOWN, i, DOWN);
                }
                l->attn_norm = find_vector(m, TDM_TENSOR_ATTN_NORM, i);
                l->q_norm = find_vector(m, TDM_TENSOR_Q_NORM, i);
                l->k_norm = find_vector(m, TDM_TENSOR_K_NORM, i);
                l->q_wide = l->k_wide = 0;
                l->is_late = m->recipe.layers[i].norms & TDM_NORM_QK_LATE;
                if (m->recipe.layers[i].norms & TDM_NORM_QK_WIDE) {
                        l->q_wide = l->q_norm;
                        l->k_wide = l->k_norm;
                        l->q_norm = l->k_norm = 0;
                }
                l->post_attn_norm = find_vector(m, TDM_TENSOR_POST_ATTN_NORM, i);
                l->ffn_norm = find_vector(m, TDM_TENSOR_FFN_NORM, i);
                l->post_ffw_norm = find_vector(m, TDM_TENSOR_POST_FFW_NORM, i);
                l->qkv_bias = m->recipe.layers[i].biases & QKV_BIASES ? m->biases.address + i * biases_bytes(m) : 0;
                l->o_bias = find_vector(m, TDM_TENSOR_O_BIAS, i);
                l->down_bias = find_vector(m, TDM_TENSOR_DOWN_BIAS, i);
                l->activation = m->recipe.layers[i].activation;
                if (m->recipe.layers[i].has_input) {
                        l->input_gate = find_matrix(m, TDM_TENSOR_INPUT_GATE, i, SIDE);
                        l->input_proj = find_matrix(m, TDM_TENSOR_INPUT_PROJ, i, SIDE);
                        l->input_norm = find_vector(m, TDM_TENSOR_INPUT_NORM, i);
                }
                if (tdm_vk_has_streams(m)) {
                        l->laurel_l = find_matrix(m, TDM_TENSOR_LAUREL_L, i, qkv);
                        l->laurel_r = find_matrix(m, TDM_TENSOR_LAUREL_R, i, SIDE);
                        l->altup_router = find_matrix(m, TDM_TENSOR_ALTUP_ROUTER, i, SIDE);
                        l->altup_router.act = TDM_VK_ACT_F32;
                        l->laurel_norm = find_vector(m, TDM_TENSOR_LAUREL_NORM, i);
                        l->altup_norm = find_vector(m, TDM_TENSOR_ALTUP_ROUTER_NORM, i);
                        l->predict = find_vector(m, TDM_TENSOR_ALTUP_PREDICT, i);
                        l->correct = find_vector(m, TDM_TENSOR_ALTUP_CORRECT, i);
                        l->correct_scale = find_vector(m, TDM_TENSOR_ALTUP_CORRECT_SCALE, i);
                }
                l->output_scale = find_vector(m, TDM_TENSOR_OUTPUT_SCALE, i);
                l->sinks = find_vector(m, TDM_TENSOR_SINKS, i);
                m->attention.has_sinks |= m->recipe.layers[i].has_sinks;
        }
        m->output = find_matrix(
                m, tdm_weights_find(m->weights, TDM_TENSOR_OUTPUT, 0) ? TDM_TENSOR_OUTPUT : TDM_TENSOR_TOKEN_EMBD, 0,
                HEAD);
        m->embedding = find_matrix(m, TDM_TENSOR_TOKEN_EMBD, 0, HEAD);
        if (m->recipe.per_layer_width > 0) {
                m->side.per_layer_proj = find_matrix(m, TDM_TENSOR_PER_LAYER_PROJ, 0, SIDE);
                m->side.per_layer_norm = find_vector(m, TDM_TENSOR_PER_LAYER_PROJ_NORM, 0);
        }
        if (tdm_vk_has_streams(m)) {
                m->side.altup_proj = find_matrix(m, TDM_TENSOR_ALTUP_PROJ, 0, SIDE);
                m->side.altup_unembd = find_matrix(m, TDM_TENSOR_ALTUP_UNEMBD, 0, SIDE);
        }
        m->output_norm = find_vector(m, TDM_TENSOR_OUTPUT_NORM, 0);
}
