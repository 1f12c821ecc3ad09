/* Where a file's tensors lie in the segment of weights.h, and checking and reading what was packed there
 * (build.c). */
#include <assert.h>
#include <inttypes.h>
#include "common/f16.h"
#include "engine/weights/memory.h"
#include "engine/weights/subblock.h"
#include "engine/weights/weights-private.h"

#define TYPE_IDS 64u /* more than the largest of enum tdm_type */
#define MAX_TENSORS (TDM_N_TENSOR_KINDS * TDM_MAX_LAYERS)
/* Values of a row of the file that are read together: one block of a K-quant, or several blocks of another type. */
#define FILE_ROW_VALUES 256u
#define FILE_ROW_PANEL_BYTES (FILE_ROW_VALUES * TDM_PANEL_ROWS * 2)
#define SINGLE_MULTIPLE 64u /* rows and columns that lie by themselves are a multiple: no scales are padded */

static_assert(sizeof(struct tdm_weights_tensor) == 56, "part of the segment's layout");
static_assert(sizeof(struct tdm_weights_header) % 8 == 0, "part of the segment's layout");

static bool is_vector(uint32_t kind)
{
        return tdm_tensor_role((enum tdm_tensor_kind)kind) == TDM_ROLE_VECTOR;
}

bool tdm_weights_type_supported(uint32_t type)
{
        switch (type) {
        case TDM_TYPE_F32:
        case TDM_TYPE_F16:
        case TDM_TYPE_BF16:
        case TDM_TYPE_Q8_0:
        case TDM_TYPE_Q4_0:
                return true;
        default:
                return tdm_subblock_type(type);
        }
}

uint64_t tdm_weights_memory_bytes(uint32_t type, uint64_t file_bytes)
{
        const struct tdm_type_info *from = tdm_type_info(type), *to = tdm_type_info(tdm_weights_packed_type(type));

        return from && to ? file_bytes / from->block_bytes * to->block_bytes : file_bytes;
}

bool tdm_weights_type_quantised(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 || type == TDM_TYPE_Q4_0 || tdm_subblock_type(type);
}

/* Bytes of the quants of one block of 32 columns and 16 rows. */
static uint64_t block_bytes(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 ? 512 : 256;
}

uint64_t tdm_weights_panel_bytes(uint32_t type, uint32_t cols)
{
        if (tdm_subblock_type(type)) {
                const struct tdm_subblock_info info = tdm_subblock_info(type);

                return tdm_subblock_panel_bytes(&info, cols);
        }
        if (tdm_weights_type_quantised(type))
                return tdm_weights_scales_bytes(cols) + (uint64_t)cols / TDM_BLOCK_VALUES * block_bytes(type);
        return TDM_ALIGN_UP((uint64_t)cols * TDM_PANEL_ROWS * (type == TDM_TYPE_F32 ? 4 : 2), TDM_WEIGHTS_ALIGNMENT);
}

/* If few neurons live, only their rows of ffn_up and their columns of ffn_down are read. */
static enum tdm_layout matrix_layout(const struct tdm_weights_tensor *tensor, const struct tdm_recipe *recipe)
{
        bool is_up = tensor->kind == TDM_TENSOR_UP;

        if ((!is_up && tensor->kind != TDM_TENSOR_DOWN) || !recipe->layers[tensor->layer].is_sparse ||
            (tensor->type != TDM_TYPE_Q4_0 && tensor->type != TDM_TYPE_Q8_0) || tensor->rows % SINGLE_MULTIPLE ||
            tensor->cols % SINGLE_MULTIPLE)
                return TDM_LAYOUT_PANEL16;
        return is_up ? TDM_LAYOUT_BY_ROW : TDM_LAYOUT_BY_COLUMN;
}

static bool is_by_row_or_column(const struct tdm_weights_tensor *tensor)
{
        return tensor->layout == TDM_LAYOUT_BY_ROW || tensor->layout == TDM_LAYOUT_BY_COLUMN;
}

/* Fills layout, panel_bytes and size_bytes from kind, type and shape. */
static void layout_tensor(struct tdm_weights_tensor *tensor, const struct tdm_recipe *recipe)
{
        if (tdm_tensor_role((enum tdm_tensor_kind)tensor->kind) == TDM_ROLE_FILE) {
                const struct tdm_type_info *info = tdm_type_info(tensor->type);

                tensor->layout = TDM_LAYOUT_FILE;
                tensor->panel_bytes = (uint64_t)tensor->cols / info->block_values * info->block_bytes;
                tensor->size_bytes = 0;
        } else if (is_vector(tensor->kind)) {
                tensor->layout = TDM_LAYOUT_ROWS;
                tensor->panel_bytes = 0;
                tensor->size_bytes = (uint64_t)tensor->rows * tensor->cols * sizeof(float);
        } else {
                tensor->layout = matrix_layout(tensor, recipe);
                tensor->panel_bytes = tdm_weights_panel_bytes(tensor->type, tensor->cols);
                tensor->size_bytes = tensor->panel_bytes * TDM_DIV_UP(tensor->rows, TDM_PANEL_ROWS);
        }
}

/* ---- planning ---- */

/* Whether a message names the type: one that a file may have, and of two of one name one. */
static bool type_is_listed(uint32_t type, bool vector)
{
        uint32_t packed = tdm_weights_packed_type(type);

        return type != TDM_TYPE_MXFP4_PAIRS && !tdm_subblock_grid(type) && tdm_weights_type_supported(packed) &&
               !(vector && tdm_weights_type_quantised(packed));
}

/* "F32, F16, …": what a vector, or any tensor, may be. */
static const char *list_types(bool vector, char *buffer, size_t size)
{
        size_t n = 0;

        for (uint32_t type = 0; type < TYPE_IDS && n < size; type++)
                if (type_is_listed(type, vector))
                        n += (size_t)snprintf(buffer + n, size - n, "%s%s", n ? ", " : "", tdm_type_info(type)->name);
        return buffer;
}

/* Values of the file's tensor in which this one lies. */
static uint64_t source_values(const struct tdm_tensor_ref *ref)
{
        uint64_t row = is_vector(ref->kind) ? 1 : ref->cols, rows = (uint64_t)ref->rows * ref->cols / row;

        return (ref->cut.apart ? rows / ref->cut.rows * ref->cut.part_rows : rows) * row;
}

static int plan_tensor(struct tdm_weights_tensor *tensor, const struct tdm_tensor_ref *ref,
                       const struct tdm_recipe *recipe, uint64_t *offset, struct tdm_error *err)
{
        const struct tdm_gguf_tensor *source = ref->tensor;
        const struct tdm_type_info *info = tdm_type_info(source->type);
        bool vector = is_vector(ref->kind);
        /* What stays in the file is read there as it is. */
        uint32_t type = tdm_tensor_role((enum tdm_tensor_kind)ref->kind) == TDM_ROLE_FILE ?
                                source->type :
                                tdm_weights_packed_type(source->type);
        char supported[256];

        if (!tdm_weights_type_supported(type) || (vector && tdm_weights_type_quantised(type)))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "tensor %.*s has the type %s, which is not supported here: use a file with %s",
                                     tdm_weights_name_length(source), source->name.data, info ? info->name : "unknown",
                                     list_types(vector, supported, sizeof(supported)));
        if (!info || ref->cols % info->block_values ||
            source->size_bytes != source_values(ref) / info->block_values * info->block_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "tensor %.*s has %" PRIu64 " bytes, which is not what %u x %u values "
                                     "take",
                                     tdm_weights_name_length(source), source->name.data, source->size_bytes, ref->rows,
                                     ref->cols);
        *tensor = (struct tdm_weights_tensor){
                .kind = ref->kind,
                .layer = ref->layer,
                .type = vector ? TDM_TYPE_F32 : type,
                .rows = ref->rows,
                .cols = ref->cols,
                .offset = *offset,
        };
        layout_tensor(tensor, recipe);
        *offset = TDM_ALIGN_UP(*offset + tensor->size_bytes, TDM_WEIGHTS_ALIGNMENT);
        return 0;
}

/* Whether the tensor's rows, or values, belong to dimensions that RoPE turns. */
static bool is_turned(uint32_t kind)
{
        return kind == TDM_TENSOR_Q || kind == TDM_TENSOR_K || kind == TDM_TENSOR_Q_NORM || kind == TDM_TENSOR_K_NORM ||
               kind == TDM_TENSOR_Q_BIAS || kind == TDM_TENSOR_K_BIAS;
}

/* Whether the file's pairs are others than halves of whole heads. */
static bool is_reordered(const struct tdm_rope_recipe *rope, uint32_t head_dim)
{
        return rope->style == TDM_ROPE_NEIGHBOURS || rope->n_dims != head_dim;
}

static struct tdm_weights_order plan_order(const struct tdm_tensor_ref *ref, const struct tdm_model_description *model)
{
        uint32_t head_dim = model->hparams.layers[ref->layer].head_dim, which = model->recipe.layers[ref->layer].rope;
        const struct tdm_rope_recipe *rope = which == TDM_ROPE_NONE ? NULL : &model->recipe.ropes[which];

        if (!is_turned(ref->kind) || !rope || !is_reordered(rope, head_dim))
                return (struct tdm_weights_order){
                        .cut = ref->cut, .scale = ref->kind == TDM_TENSOR_OUTPUT_NORM ? model->recipe.logit_scale : 0
                };
        return (struct tdm_weights_order){ .head_dim = head_dim,
                                           .n_dims = rope->n_dims,
                                           .has_halves = rope->style == TDM_ROPE_HALVES,
                                           .is_gated = ref->kind == TDM_TENSOR_Q &&
                                                       model->recipe.layers[ref->layer].has_gate,
                                           .cut = ref->cut };
}

/* Makes what devices see of RoPE: halves of whole heads, of which the last pairs may stay as they are. */
static void take_halves(struct tdm_recipe *recipe, const struct tdm_hparams *hp)
{
        for (uint32_t i = 0; i < hp->n_layers; i++) {
                struct tdm_rope_recipe *rope = &recipe->ropes[recipe->layers[i].rope % TDM_MAX_ROPES];

                if (recipe->layers[i].rope == TDM_ROPE_NONE || !is_reordered(rope, hp->layers[i].head_dim))
                        continue;
                rope->style = TDM_ROPE_HALVES;
                rope->n_still += hp->layers[i].head_dim - rope->n_dims;
                rope->n_dims = hp->layers[i].head_dim;
        }
        for (uint32_t i = 0; i < recipe->n_ropes; i++)
                recipe->ropes[i].style = TDM_ROPE_HALVES;
}

int tdm_weights_plan_new(struct tdm_weights_plan **ret, const struct tdm_model_description *model,
                         struct tdm_error *err)
{
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        uint64_t offset;

        assert(model->n_tensors > 0 && model->n_tensors <= MAX_TENSORS);
        plan = calloc(1, sizeof(*plan));
        if (!plan)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        plan->tensors = calloc(model->n_tensors, sizeof(*plan->tensors));
        plan->orders = calloc(model->n_tensors, sizeof(*plan->orders));
        plan->sources = calloc(model->n_tensors, sizeof(*plan->sources));
        if (!plan->tensors || !plan->orders || !plan->sources)
                return tdm_error_set(err, -ENOMEM, "out of memory");

        plan->header = (struct tdm_weights_header){
                .magic = TDM_WEIGHTS_MAGIC,
                .abi = TDM_WEIGHTS_ABI,
                .hparams = model->hparams,
                .recipe = model->recipe,
                .n_tensors = model->n_tensors,
                .tensors_offset = TDM_ALIGN_UP((uint64_t)sizeof(plan->header), TDM_WEIGHTS_ALIGNMENT),
        };
        offset = TDM_ALIGN_UP(plan->header.tensors_offset + model->n_tensors * sizeof(*plan->tensors),
                              TDM_WEIGHTS_ALIGNMENT);
        for (uint32_t i = 0; i < model->n_tensors; i++) {
                int r = plan_tensor(&plan->tensors[i], &model->tensors[i], &model->recipe, &offset, err);

                if (r != 0)
                        return r;
                plan->orders[i] = plan_order(&model->tensors[i], model);
                plan->sources[i] = model->tensors[i].tensor;
        }
        take_halves(&plan->header.recipe, &plan->header.hparams);
        plan->header.recipe.logit_scale = 0; /* in the gains of the last norm */
        plan->header.size_bytes = offset;
        *ret = steal_ptr(&plan);
        return 0;
}

uint64_t tdm_weights_plan_size(const struct tdm_weights_plan *plan)
{
        return plan->header.size_bytes;
}

void tdm_weights_plan_panels(struct tdm_weights_plan *plan)
{
        for (uint32_t i = 0; i < plan->header.n_tensors; i++)
                if (is_by_row_or_column(&plan->tensors[i]))
                        plan->tensors[i].layout = TDM_LAYOUT_PANEL16;
}

void tdm_weights_plan_destroy(struct tdm_weights_plan *plan)
{
        if (!plan)
                return;
        free(plan->tensors);
        free(plan->orders);
        free(plan->sources);
        free(plan);
}

void tdm_weights_plan_destroyp(struct tdm_weights_plan **plan)
{
        tdm_weights_plan_destroy(*plan);
}

/* ---- reading ---- */

static int bad(struct tdm_error *err, const char *what)
{
        return tdm_error_set(err, TDM_E_PROTOCOL, "the weights segment is refused: %s", what);
}

static int check_tensor(const struct tdm_weights_header *header, const struct tdm_weights_tensor *tensor, uint64_t *end,
                        struct tdm_error *err)
{
        const struct tdm_hparams *hp = &header->hparams;
        struct tdm_weights_tensor wanted = *tensor;
        enum tdm_tensor_kind kind = (enum tdm_tensor_kind)tensor->kind;
        uint32_t rows, cols;

        if (tensor->kind >= TDM_N_TENSOR_KINDS)
                return bad(err, "a tensor of no known kind");
        if (tensor->layer >= tdm_tensor_n(kind, hp))
                return bad(err, "a tensor of a layer that the model does not have");
        if (tdm_tensor_presence(kind, &header->recipe, hp, tensor->layer) < TDM_TENSOR_OPTIONAL)
                return bad(err, "a tensor that its recipe has no use for");
        if (!tdm_weights_type_supported(tensor->type) || (is_vector(kind) && tensor->type != TDM_TYPE_F32))
                return bad(err, "a tensor of a type that is not supported");
        tdm_tensor_shape(kind, &header->recipe, hp, tensor->layer, &rows, &cols);
        if (tensor->rows != rows || tensor->cols != cols)
                return bad(err, "a tensor's shape is not the model's");
        if (tensor->cols % tdm_type_info(tensor->type)->block_values)
                return bad(err, "a tensor's rows do not end with a block");
        layout_tensor(&wanted, &header->recipe);
        if (is_by_row_or_column(&wanted) && tensor->layout == TDM_LAYOUT_PANEL16)
                wanted.layout = TDM_LAYOUT_PANEL16;
        if (tensor->layout != wanted.layout || tensor->panel_bytes != wanted.panel_bytes ||
            tensor->size_bytes != wanted.size_bytes || tensor->reserved != 0)
                return bad(err, "a tensor's layout is not what its type and shape ask for");
        /* Tensors lie in the table's order, so one that starts behind the last one's end overlaps none. */
        if (tensor->offset % TDM_WEIGHTS_ALIGNMENT || tensor->offset < *end || tensor->offset > header->size_bytes ||
            tensor->size_bytes > header->size_bytes - tensor->offset)
                return bad(err, "a tensor lies outside of the segment or over another");
        *end = tensor->offset + tensor->size_bytes;
        return 0;
}

static int check_complete(const struct tdm_weights_header *header, uint8_t seen[TDM_N_TENSOR_KINDS][TDM_MAX_LAYERS],
                          struct tdm_error *err)
{
        for (uint32_t i = 0; i < TDM_N_TENSOR_KINDS; i++) {
                enum tdm_tensor_kind kind = (enum tdm_tensor_kind)i;
                char name[TDM_TENSOR_NAME_MAX];

                for (uint32_t layer = 0; layer < tdm_tensor_n(kind, &header->hparams); layer++) {
                        if (seen[i][layer] ||
                            tdm_tensor_presence(kind, &header->recipe, &header->hparams, layer) != TDM_TENSOR_REQUIRED)
                                continue;
                        tdm_tensor_name(kind, layer, name);
                        return tdm_error_set(err, TDM_E_PROTOCOL,
                                             "the weights segment is refused: tensor %s is missing", name);
                }
        }
        return 0;
}

int tdm_weights_check(const uint8_t *base, uint64_t size_bytes, uint64_t there_bytes, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(base);
        uint8_t seen[TDM_N_TENSOR_KINDS][TDM_MAX_LAYERS] = { { 0 } };
        const struct tdm_weights_tensor *tensors;
        uint64_t end;
        int r;

        if ((uintptr_t)base % TDM_WEIGHTS_ALIGNMENT)
                return bad(err, "it is not aligned");
        there_bytes = TDM_MIN(there_bytes, size_bytes);
        if (there_bytes < sizeof(*header))
                return bad(err, "it is shorter than its header");
        if (header->magic != TDM_WEIGHTS_MAGIC)
                return bad(err, "wrong magic");
        if (header->abi != TDM_WEIGHTS_ABI)
                return bad(err, "wrong ABI version: daemon and worker are of different builds");
        if (header->size_bytes > size_bytes || header->size_bytes < sizeof(*header))
                return bad(err, "its size is not what its header says");
        r = tdm_hparams_check(&header->hparams, err);
        if (r == 0)
                r = tdm_recipe_check(&header->recipe, &header->hparams, err);
        if (r != 0)
                return err ? tdm_error_prefix(err, "the weights segment is refused") : r;
        if (header->n_tensors == 0 || header->n_tensors > MAX_TENSORS || header->reserved != 0)
                return bad(err, "impossible number of tensors");
        if (header->tensors_offset % sizeof(uint64_t) || header->tensors_offset < sizeof(*header) ||
            header->tensors_offset > header->size_bytes ||
            header->n_tensors * sizeof(*tensors) > header->size_bytes - header->tensors_offset)
                return bad(err, "its table lies outside");
        if (header->tensors_offset + header->n_tensors * sizeof(*tensors) > there_bytes)
                return bad(err, "its table has not come with its header");

        tensors = (const struct tdm_weights_tensor *)(const void *)(base + header->tensors_offset);
        end = header->tensors_offset + header->n_tensors * sizeof(*tensors);
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                if ((r = check_tensor(header, &tensors[i], &end, err)))
                        return r;
                if (seen[tensors[i].kind][tensors[i].layer]++)
                        return bad(err, "a tensor is there twice");
        }
        return check_complete(header, seen, err);
}

const struct tdm_weights_tensor *tdm_weights_find(const uint8_t *base, enum tdm_tensor_kind kind, uint32_t layer)
{
        const struct tdm_weights_header *header = tdm_weights_header(base);
        const struct tdm_weights_tensor *tensors = (const void *)(base + header->tensors_offset);

        for (uint32_t i = 0; i < header->n_tensors; i++)
                if (tensors[i].kind == (uint32_t)kind && tensors[i].layer == layer)
                        return &tensors[i];
        return NULL;
}

/* A value of a matrix of the layout BY_ROW or BY_COLUMN. */
static float single_value(const uint8_t *data, const struct tdm_weights_tensor *tensor, uint32_t row, uint32_t col)
{
        uint32_t nb = tensor->cols / TDM_BLOCK_VALUES, n = tdm_weights_quant_bytes(tensor->type);
        uint32_t b = col / TDM_BLOCK_VALUES, i = col % TDM_BLOCK_VALUES, r = row % TDM_BLOCK_VALUES;
        bool is_q4 = tensor->type == TDM_TYPE_Q4_0;
        const uint8_t *quants;

        if (tensor->layout == TDM_LAYOUT_BY_ROW) {
                data += (size_t)row * nb * (n + 2);
                quants = data + (size_t)b * n;
                return (float)(is_q4 ? (quants[i % 16] >> i / 16 * 4 & 15) - 8 : quants[i] - 128) *
                       tdm_f16_to_f32(tdm_load_u16(data + (size_t)nb * n + 2 * (size_t)b));
        }
        quants = data + 2 * (size_t)nb * tensor->rows +
                 ((size_t)col * (tensor->rows / TDM_BLOCK_VALUES) + row / TDM_BLOCK_VALUES) * n;
        return (float)(is_q4 ? (quants[r % 16] >> r / 16 * 4 & 15) - 8 : (int8_t)quants[r]) *
               tdm_f16_to_f32(tdm_load_u16(data + 2 * ((size_t)b * tensor->rows + row)));
}

float tdm_weights_value(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, uint32_t col)
{
        const uint8_t *data = base + tensor->offset;
        uint32_t lane = row % TDM_PANEL_ROWS, b = col / TDM_BLOCK_VALUES, g = col % TDM_BLOCK_VALUES / 4, i = col % 4;
        const uint8_t *quants;
        float scale;

        assert(row < tensor->rows && col < tensor->cols);
        if (tensor->layout == TDM_LAYOUT_ROWS)
                return tdm_bits_to_f32(tdm_load_u32(data + ((uint64_t)row * tensor->cols + col) * 4));
        if (is_by_row_or_column(tensor))
                return single_value(data, tensor, row, col);

        data += row / TDM_PANEL_ROWS * tensor->panel_bytes;
        switch (tensor->type) {
        case TDM_TYPE_F32:
                return tdm_bits_to_f32(tdm_load_u32(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 4));
        case TDM_TYPE_F16:
                return tdm_f16_to_f32(tdm_load_u16(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 2));
        case TDM_TYPE_BF16:
                return tdm_bf16_to_f32(tdm_load_u16(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 2));
        default:
                break;
        }
        if (tdm_subblock_type(tensor->type)) {
                const struct tdm_subblock_info info = tdm_subblock_info(tensor->type);
                struct tdm_subblock_slice block;

                tdm_subblock_read(tensor->type, data, tensor->cols, b, lane, &block);
                return tdm_subblock_value(&info, &block, col % TDM_BLOCK_VALUES);
        }
        scale = tdm_f16_to_f32(tdm_load_u16(data + ((uint64_t)b * TDM_PANEL_ROWS + lane) * 2));
        quants = data + tdm_weights_scales_bytes(tensor->cols) + b * block_bytes(tensor->type);
        if (tensor->type == TDM_TYPE_Q8_0)
                return (float)(quants[64 * g + 4 * lane + i] - 128) * scale;
        return (float)((quants[64 * (g % 4) + 4 * lane + i] >> (g < 4 ? 0 : 4) & 15) - 8) * scale;
}

/* One lane of every block: a cache line for 4 values (Q8_0) or 8 (Q4_0). */
static void row_quantised(const uint8_t *panel, const struct tdm_weights_tensor *tensor, uint32_t lane, float *y)
{
        const uint8_t *quants = panel + tdm_weights_scales_bytes(tensor->cols);

        for (uint32_t b = 0; b < tensor->cols / TDM_BLOCK_VALUES; b++, y += TDM_BLOCK_VALUES) {
                float scale = tdm_f16_to_f32(tdm_load_u16(panel + ((uint64_t)b * TDM_PANEL_ROWS + lane) * 2));

                if (tensor->type == TDM_TYPE_Q8_0) {
                        for (uint32_t i = 0; i < TDM_BLOCK_VALUES; i++)
                                y[i] = (float)(quants[i / 4 * 64 + 4 * lane + i % 4] - 128) * scale;
                        quants += 512;
                } else {
                        for (uint32_t i = 0; i < TDM_BLOCK_VALUES / 2; i++) {
                                uint8_t q = quants[i / 4 * 64 + 4 * lane + i % 4];

                                y[i] = (float)((q & 15) - 8) * scale;
                                y[i + 16] = (float)((q >> 4) - 8) * scale;
                        }
                        quants += 256;
                }
        }
}

static void row_subblocks(const uint8_t *panel, const struct tdm_weights_tensor *tensor, uint32_t lane, float *y)
{
        const struct tdm_subblock_info info = tdm_subblock_info(tensor->type);

        for (uint32_t b = 0; b < tensor->cols / TDM_BLOCK_VALUES; b++, y += TDM_BLOCK_VALUES) {
                struct tdm_subblock_slice block;

                tdm_subblock_read(tensor->type, panel, tensor->cols, b, lane, &block);
                for (uint32_t i = 0; i < TDM_BLOCK_VALUES; i++)
                        y[i] = tdm_subblock_value(&info, &block, i);
        }
}

void tdm_weights_row(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, float *y)
{
        const uint8_t *data = base + tensor->offset;
        uint32_t lane = row % TDM_PANEL_ROWS;

        assert(row < tensor->rows);
        assert(tensor->layout != TDM_LAYOUT_FILE);
        if (tensor->layout == TDM_LAYOUT_ROWS) {
                memcpy(y, data + (uint64_t)row * tensor->cols * sizeof(float), tensor->cols * sizeof(float));
                return;
        }
        if (is_by_row_or_column(tensor)) {
                for (uint32_t col = 0; col < tensor->cols; col++)
                        y[col] = single_value(data, tensor, row, col);
                return;
        }
        data += row / TDM_PANEL_ROWS * tensor->panel_bytes;
        if (tdm_subblock_type(tensor->type)) {
                row_subblocks(data, tensor, lane, y);
                return;
        }
        if (tdm_weights_type_quantised(tensor->type)) {
                row_quantised(data, tensor, lane, y);
                return;
        }
        for (uint64_t col = 0; col < tensor->cols; col++)
                y[col] = tensor->type == TDM_TYPE_F32 ?
                                 tdm_bits_to_f32(tdm_load_u32(data + (col * TDM_PANEL_ROWS + lane) * 4)) :
                         tensor->type == TDM_TYPE_F16 ?
                                 tdm_f16_to_f32(tdm_load_u16(data + (col * TDM_PANEL_ROWS + lane) * 2)) :
                                 tdm_bf16_to_f32(tdm_load_u16(data + (col * TDM_PANEL_ROWS + lane) * 2));
}

void tdm_weights_row_q4_0(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, int8_t *q,
                          uint16_t *scales)
{
        const uint8_t *panel = base + tensor->offset + row / TDM_PANEL_ROWS * tensor->panel_bytes;
        const uint8_t *quants = panel + tdm_weights_scales_bytes(tensor->cols);
        uint32_t lane = row % TDM_PANEL_ROWS;

        assert(row < tensor->rows && tensor->type == TDM_TYPE_Q4_0 && tensor->layout == TDM_LAYOUT_PANEL16);
        for (uint32_t b = 0; b < tensor->cols / TDM_BLOCK_VALUES; b++, q += TDM_BLOCK_VALUES, quants += 256) {
                scales[b] = tdm_load_u16(panel + ((uint64_t)b * TDM_PANEL_ROWS + lane) * 2);
                for (uint32_t i = 0; i < TDM_BLOCK_VALUES / 2; i++) {
                        uint8_t two = quants[i / 4 * 64 + 4 * lane + i % 4];

                        q[i] = (int8_t)((two & 15) - 8);
                        q[i + 16] = (int8_t)((two >> 4) - 8);
                }
        }
}

/* A panel of one row with the blocks that the columns touch, some at a time. */
static void file_row_quantised(uint32_t type, const uint8_t *row, uint32_t first, uint32_t n, float *y)
{
        const struct tdm_type_info *info = tdm_type_info(type);
        _Alignas(64) uint8_t panel[FILE_ROW_PANEL_BYTES];
        struct tdm_weights_tensor tensor = { .type = type, .layout = TDM_LAYOUT_PANEL16, .rows = 1 };
        uint32_t block = info->block_values, each = FILE_ROW_VALUES / block * block;
        float values[FILE_ROW_VALUES];

        for (uint32_t begin = first / block * block, end; begin < first + n; begin = end) {
                uint32_t from = TDM_MAX(begin, first), to;

                end = TDM_MIN(begin + each, TDM_ALIGN_UP(first + n, block));
                to = TDM_MIN(end, first + n);
                tensor.cols = end - begin;
                tensor.panel_bytes = tdm_weights_panel_bytes(type, tensor.cols);
                assert(tensor.panel_bytes <= sizeof(panel));
                /* Numbers that are not finite stay so: their row then reports a NaN among its logits. */
                (void)tdm_weights_pack_panel(type, panel, row + (uint64_t)begin / block * info->block_bytes, 0, 1,
                                             tensor.cols);
                tdm_weights_row(panel, &tensor, 0, values);
                memcpy(y + (from - first), values + (from - begin), (to - from) * sizeof(float));
        }
}

void tdm_weights_file_row(uint32_t type, const uint8_t *row, uint32_t first, uint32_t n, float *y)
{
        if (tdm_weights_type_quantised(type)) {
                file_row_quantised(type, row, first, n, y);
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                size_t at = (size_t)first + i;

                y[i] = type == TDM_TYPE_F32 ? tdm_bits_to_f32(tdm_load_u32(row + 4 * at)) :
                       type == TDM_TYPE_F16 ? tdm_f16_to_f32(tdm_load_u16(row + 2 * at)) :
                                              tdm_bf16_to_f32(tdm_load_u16(row + 2 * at));
        }
}

uint32_t tdm_weights_input_bytes(const uint8_t *base)
{
        const struct tdm_weights_tensor *tensor = tdm_weights_find(base, TDM_TENSOR_PER_LAYER_EMBD, 0);

        return tensor ? (uint32_t)tensor->panel_bytes : 0;
}
