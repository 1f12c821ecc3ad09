/* A tower's tensors as the host device's kernels read them: matrices in panels, columns padded to whole blocks. Of real
 * towers neither the 588 numbers of a patch nor the 4304 neurons of the FFN are a multiple of 32; zeros behind them
 * change no sum. */
#include "common/sigbus.h"
#include "engine/vision/private.h"

struct loading {
        const struct tdm_gguf *gguf;
        struct tower_weights *weights;
        enum tdm_act act;
        struct tdm_error *err;
};

void *tower_take(struct tower_memory *memory, size_t bytes)
{
        void **pieces = realloc(memory->pieces, (memory->n + 1) * sizeof(*pieces));
        void *piece;

        if (!pieces)
                return NULL;
        memory->pieces = pieces;
        bytes = TDM_ALIGN_UP(TDM_MAX(bytes, (size_t)1), (size_t)64);
        piece = aligned_alloc(64, bytes);
        if (!piece)
                return NULL;
        memset(piece, 0, bytes);
        memory->pieces[memory->n++] = piece;
        memory->bytes += bytes;
        return piece;
}

static int no_memory(const struct loading *loading)
{
        return tdm_error_set(loading->err, TDM_E_NO_MEMORY, "not enough memory for the vision tower of %s",
                             tdm_gguf_name(loading->gguf));
}

/* Of a layer. It has passed tdm_projector_describe(), so it is there with its shape. */
static const struct tdm_gguf_tensor *layer_tensor(const struct loading *loading, unsigned layer, const char *name,
                                                  const char *what)
{
        char whole[64];

        snprintf(whole, sizeof(whole), "v.blk.%u.%s.%s", layer, name, what);
        return tdm_gguf_find_tensor(loading->gguf, whole);
}

static bool is_float(uint32_t type)
{
        return type == TDM_TYPE_F32 || type == TDM_TYPE_F16 || type == TDM_TYPE_BF16;
}

static int unsupported(const struct loading *loading, const struct tdm_gguf_tensor *tensor)
{
        return tdm_error_set(
                loading->err, TDM_E_UNSUPPORTED, "tensor %.*s has the type %s, which is not supported there",
                (int)TDM_MIN(tensor->name.size, (size_t)64), tensor->name.data, tdm_type_info(tensor->type)->name);
}

/* What a reading of the file came to: damage of the values, or a file that became shorter. */
static int end_reading(const struct loading *loading, const struct tdm_gguf_tensor *tensor,
                       struct tdm_sigbus_guard *guard, bool finite)
{
        bool hit = tdm_sigbus_guard_hit(guard);
        int name_length = (int)TDM_MIN(tensor->name.size, (size_t)64);

        tdm_sigbus_guard_end(guard);
        if (hit)
                return tdm_error_set(loading->err, TDM_E_MODEL_CHANGED, "%s became shorter while it was read",
                                     tdm_gguf_name(loading->gguf));
        if (!finite)
                return tdm_error_set(loading->err, TDM_E_BAD_MODEL, "tensor %.*s has numbers that are not finite",
                                     name_length, tensor->name.data);
        return 0;
}

static int load_vector(const struct loading *loading, const struct tdm_gguf_tensor *tensor, float **ret)
{
        size_t n = (size_t)(tensor->dims[0] * tensor->dims[1]);
        const uint8_t *data = tdm_gguf_tensor_data(loading->gguf, tensor);
        float *values = tower_take(&loading->weights->memory, n * sizeof(*values));
        struct tdm_sigbus_guard guard;
        bool finite = true;
        int r;

        if (!is_float(tensor->type))
                return unsupported(loading, tensor);
        if (!values)
                return no_memory(loading);
        r = tdm_sigbus_guard_begin(&guard, data, tensor->size_bytes);
        if (r < 0)
                return r;
        for (uint64_t row = 0; row < tensor->dims[1]; row++)
                tdm_weights_file_row(tensor->type, data + row * (tensor->size_bytes / tensor->dims[1]), 0,
                                     (uint32_t)tensor->dims[0], values + row * tensor->dims[0]);
        for (size_t i = 0; i < n; i++)
                finite = finite && values[i] - values[i] == 0;
        *ret = values;
        return end_reading(loading, tensor, &guard, finite);
}

/* A matrix as the file has it: rows of cols values, or turned (the file's columns are its rows). */
struct source {
        const struct tdm_gguf_tensor *tensor;
        uint32_t rows, cols;
        bool turned;
};

/* Up to 16 rows from first on, padded with zeros, into rows [16][row_bytes]. */
static void copy_rows(const struct source *source, const uint8_t *data, uint32_t first, uint32_t n, uint8_t *rows,
                      size_t row_bytes)
{
        const struct tdm_type_info *info = tdm_type_info(source->tensor->type);
        size_t bytes = info->block_bytes; /* of a value: turned ones are floats */
        size_t file_row = (size_t)source->cols / info->block_values * info->block_bytes;

        for (uint32_t r = 0; r < n; r++) {
                if (!source->turned) {
                        memcpy(rows + r * row_bytes, data + (first + r) * file_row, file_row);
                        continue;
                }
                for (uint32_t c = 0; c < source->cols; c++)
                        memcpy(rows + r * row_bytes + c * bytes, data + ((size_t)c * source->rows + first + r) * bytes,
                               bytes);
        }
}

static int load_matrix(const struct loading *loading, const struct source *source, struct tower_matrix *ret)
{
        const struct tdm_gguf_tensor *tensor = source->tensor;
        const struct tdm_type_info *info = tdm_type_info(tensor->type);
        const uint8_t *data = tdm_gguf_tensor_data(loading->gguf, tensor);
        uint32_t cols = TDM_ALIGN_UP(source->cols, TDM_BLOCK_VALUES),
                 n_panels = TDM_DIV_UP(source->rows, TDM_PANEL_ROWS);
        size_t row_bytes = (size_t)cols / info->block_values * info->block_bytes;
        struct tdm_sigbus_guard guard;
        _cleanup_(freep) uint8_t *rows = NULL;
        uint64_t panel_bytes;
        uint8_t *panels;
        bool finite = true;
        int r;

        if (!tdm_weights_type_supported(tensor->type) || source->cols % info->block_values ||
            cols % info->block_values || (source->turned && !is_float(tensor->type)))
                return unsupported(loading, tensor);
        panel_bytes = tdm_weights_panel_bytes(tensor->type, cols);
        panels = tower_take(&loading->weights->memory, n_panels * panel_bytes);
        rows = calloc(TDM_PANEL_ROWS, row_bytes);
        if (!panels || !rows)
                return no_memory(loading);
        r = tdm_sigbus_guard_begin(&guard, data, tensor->size_bytes);
        if (r < 0)
                return r;
        for (uint32_t p = 0; p < n_panels; p++) {
                uint32_t first = p * TDM_PANEL_ROWS, n = TDM_MIN(source->rows - first, TDM_PANEL_ROWS);

                copy_rows(source, data, first, n, rows, row_bytes);
                finite = tdm_weights_pack_panel(tensor->type, panels + p * panel_bytes, rows, row_bytes, n, cols) &&
                         finite;
        }
        ret->matrix = (struct tdm_matrix){
                .data = panels, .panel_bytes = panel_bytes, .type = tensor->type, .rows = source->rows, .cols = cols
        };
        ret->act = tdm_matmul_act(tensor->type, loading->act);
        return end_reading(loading, tensor, &guard, finite);
}

static int load_norm(const struct loading *loading, unsigned layer, const char *name, struct tower_norm *ret)
{
        int r = load_vector(loading, layer_tensor(loading, layer, name, "weight"), &ret->gain);

        return r == 0 ? load_vector(loading, layer_tensor(loading, layer, name, "bias"), &ret->bias) : r;
}

static int load_linear(const struct loading *loading, unsigned layer, const char *name, struct tower_matrix *ret)
{
        struct source source = { .tensor = layer_tensor(loading, layer, name, "weight") };
        int r;

        source.cols = (uint32_t)source.tensor->dims[0];
        source.rows = (uint32_t)source.tensor->dims[1];
        r = load_matrix(loading, &source, ret);
        return r == 0 ? load_vector(loading, layer_tensor(loading, layer, name, "bias"), &ret->bias) : r;
}

static int load_layer(const struct loading *loading, unsigned layer, struct tower_layer *ret)
{
        const struct {
                const char *name;
                struct tower_matrix *matrix;
        } linears[] = {
                { "attn_q", &ret->q },     { "attn_k", &ret->k },  { "attn_v", &ret->v },
                { "attn_out", &ret->out }, { "ffn_up", &ret->up }, { "ffn_down", &ret->down },
        };
        int r = load_norm(loading, layer, "ln1", &ret->before_attention);

        if (r == 0)
                r = load_norm(loading, layer, "ln2", &ret->before_ffn);
        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(linears); i++)
                r = load_linear(loading, layer, linears[i].name, linears[i].matrix);
        return r;
}

/* The matrices that are not a layer's, and the vectors beside them. */
static int load_ends(const struct loading *loading, const struct tdm_projector *p)
{
        const struct tdm_gguf *g = loading->gguf;
        struct tower_weights *w = loading->weights;
        const struct source patch = { .tensor = tdm_gguf_find_tensor(g, "v.patch_embd.weight"),
                                      .rows = p->d_model,
                                      .cols = 3 * p->image.patch * p->image.patch };
        const struct source projection = { .tensor = tdm_gguf_find_tensor(g, "mm.input_projection.weight"),
                                           .rows = p->n_out,
                                           .cols = p->d_model,
                                           .turned = true };
        int r = load_matrix(loading, &patch, &w->patch);

        if (r == 0)
                r = load_vector(loading, tdm_gguf_find_tensor(g, "v.patch_embd.bias"), &w->patch.bias);
        if (r == 0)
                r = load_vector(loading, tdm_gguf_find_tensor(g, "v.position_embd.weight"), &w->positions);
        if (r == 0)
                r = load_vector(loading, tdm_gguf_find_tensor(g, "v.post_ln.weight"), &w->last.gain);
        if (r == 0)
                r = load_vector(loading, tdm_gguf_find_tensor(g, "v.post_ln.bias"), &w->last.bias);
        if (r == 0)
                r = load_vector(loading, tdm_gguf_find_tensor(g, "mm.soft_emb_norm.weight"), &w->soft_gain);
        return r == 0 ? load_matrix(loading, &projection, &w->projection) : r;
}

int tower_weights_load(struct tower_weights *ret, const struct tdm_projector *projector, const struct tdm_gguf *gguf,
                       enum tdm_act act, struct tdm_error *err)
{
        const struct loading loading = { .gguf = gguf, .weights = ret, .act = act, .err = err };
        int r;

        ret->layers = tower_take(&ret->memory, projector->n_layers * sizeof(*ret->layers));
        if (!ret->layers)
                return no_memory(&loading);
        r = load_ends(&loading, projector);
        for (unsigned layer = 0; r == 0 && layer < projector->n_layers; layer++)
                r = load_layer(&loading, layer, &ret->layers[layer]);
        return r;
}

void tower_memory_deinit(struct tower_memory *memory)
{
        for (size_t i = 0; i < memory->n; i++)
                free(memory->pieces[i]);
        free(memory->pieces);
}

void tower_weights_deinit(struct tower_weights *weights)
{
        tower_memory_deinit(&weights->memory);
}
