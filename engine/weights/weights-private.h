/* What weights.c (where everything lies, and reading it), build.c (all tensors of a file) and pack.c
 * (one panel) share. */
#ifndef TDM_ENGINE_WEIGHTS_WEIGHTS_PRIVATE_H
#define TDM_ENGINE_WEIGHTS_WEIGHTS_PRIVATE_H

#include "engine/weights/subblock.h"

/* More ids of enum tdm_type, of types that nothing but their rewriting knows. */
enum tdm_type_of_grids {
        TDM_TYPE_IQ2_XXS = 16,
        TDM_TYPE_IQ2_XS = 17,
        TDM_TYPE_IQ3_XXS = 18,
        TDM_TYPE_IQ1_S = 19,
        TDM_TYPE_IQ3_S = 21,
        TDM_TYPE_IQ2_S = 22,
        TDM_TYPE_IQ1_M = 29,
};

#define TDM_WEIGHTS_ALIGNMENT UINT64_C(64)

/* In which order a tensor's rows, or the values of a vector, are packed: as in the file where n_dims is 0, else the
 * first n_dims of each head's come from neighbours, or from halves of these n_dims, to the halves of a head: pair i is
 * i and i + head_dim / 2. Behind the pairs come those that are not turned. The file may have these rows among those of
 * other tensors (cut). */
struct tdm_weights_order {
        uint32_t head_dim;
        uint32_t n_dims; /* even */
        bool has_halves; /* the file's pairs are i and i + n_dims / 2, not 2 i and 2 i + 1 */
        bool is_gated;   /* every second block of head_dim rows is a gate, which is not turned */
        float scale;     /* a vector's values are multiplied by it; 0: not */
        struct tdm_tensor_cut cut;
};

struct tdm_weights_plan {
        struct tdm_weights_header header;
        struct tdm_weights_tensor *tensors;     /* [header.n_tensors] */
        struct tdm_weights_order *orders;       /* [header.n_tensors] */
        const struct tdm_gguf_tensor **sources; /* [header.n_tensors], owned by the gguf */
};

/* Which row of the file's tensor is row `row` of the one that lies in it. Grows with the row. */
static inline uint32_t tdm_weights_cut_row(const struct tdm_tensor_cut *cut, uint32_t row)
{
        return cut->apart ? row / cut->rows * cut->part_rows + cut->first + row % cut->rows * cut->apart : row;
}

/* Which row of a tensor of its own is packed as `row`: one of the same head. */
static inline uint32_t tdm_weights_turned_row(const struct tdm_weights_order *order, uint32_t row)
{
        uint32_t i = order->n_dims ? row % order->head_dim : 0, half = order->head_dim / 2, n_pairs = order->n_dims / 2;
        uint32_t step = order->has_halves ? 1 : 2, second = order->has_halves ? n_pairs : 1;

        if (order->n_dims == 0 || (order->is_gated && row / order->head_dim % 2))
                return row;
        if (i < half)
                return row - i + (i < n_pairs ? step * i : order->n_dims + (i - n_pairs));
        i -= half;
        return row - half - i + (i < n_pairs ? step * i + second : order->n_dims + (half - n_pairs) + (i - n_pairs));
}

/* Which row of the file's tensor is packed as `row`. */
static inline uint32_t tdm_weights_source_row(const struct tdm_weights_order *order, uint32_t row)
{
        return tdm_weights_cut_row(&order->cut, tdm_weights_turned_row(order, row));
}

/* How far apart the rows of a panel that begins with `row` are in the file; 0: not equally far, as where the panel
 * holds the end of a half or of an expert. */
static inline uint32_t tdm_weights_rows_apart(const struct tdm_weights_order *order, uint32_t row, uint32_t n_rows)
{
        uint32_t from = tdm_weights_source_row(order, row),
                 apart = n_rows > 1 ? tdm_weights_source_row(order, row + 1) - from : 1;

        for (uint32_t i = 1; i < n_rows; i++)
                if (tdm_weights_source_row(order, row + i) != from + i * apart)
                        return 0;
        return apart;
}

static inline uint64_t tdm_weights_scales_bytes(uint32_t cols)
{
        return TDM_ALIGN_UP((uint64_t)cols / TDM_BLOCK_VALUES * TDM_PANEL_ROWS * 2, TDM_WEIGHTS_ALIGNMENT);
}

/* Bytes of the quants of one column in 32 rows, or of one row in 32 columns. */
static inline uint32_t tdm_weights_quant_bytes(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 ? TDM_BLOCK_VALUES : TDM_BLOCK_VALUES / 2;
}

/* As which type the weights are packed. Where it is another one, blocks of both have as many values. */
static inline uint32_t tdm_weights_packed_type(uint32_t type)
{
        switch (type) {
        case TDM_TYPE_MXFP4_PAIRS:
                return TDM_TYPE_MXFP4;
        case TDM_TYPE_TQ1_0:
        case TDM_TYPE_TQ2_0:
                return TDM_TYPE_Q2_K;
        case TDM_TYPE_IQ1_S:
        case TDM_TYPE_IQ1_M:
                return TDM_TYPE_GRID1;
        case TDM_TYPE_IQ2_XXS:
        case TDM_TYPE_IQ2_XS:
        case TDM_TYPE_IQ2_S:
                return TDM_TYPE_GRID2;
        case TDM_TYPE_IQ3_XXS:
                return TDM_TYPE_GRID3_XXS;
        case TDM_TYPE_IQ3_S:
                return TDM_TYPE_GRID3_S;
        default:
                return type;
        }
}

/* For messages. */
static inline int tdm_weights_name_length(const struct tdm_gguf_tensor *source)
{
        return (int)TDM_MIN(source->name.size, (size_t)128);
}

static inline uint32_t tdm_load_u32(const uint8_t *p)
{
        uint32_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline void tdm_store_u32(uint8_t *p, uint32_t word)
{
        memcpy(p, &word, sizeof(word));
}

static inline uint16_t tdm_load_u16(const uint8_t *p)
{
        uint16_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

/* Blocks of a type that is packed as another one become blocks of that. */
void tdm_weights_rewrite(uint32_t type, uint8_t *dst, const uint8_t *src, size_t n_blocks);
/* One block of IQ1, IQ2 or IQ3; false: of another type. */
bool tdm_weights_rewrite_grid(uint32_t type, uint8_t *dst, const uint8_t *src);
/* Rows as tdm_weights_pack_panel() takes them, as layout BY_ROW has them. */
bool tdm_weights_pack_rows(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                           uint32_t cols);
/* Rows first … first + n_rows - 1 of a tensor in layout BY_COLUMN, both multiples of 32. dst: the tensor. */
bool tdm_weights_pack_columns(const struct tdm_weights_tensor *tensor, uint8_t *dst, uint32_t first, uint32_t n_rows,
                              const uint8_t *src, uint64_t row_bytes);
/* dst [n], 64-byte aligned; type F32, F16 or BF16. The same. */
bool tdm_weights_pack_vector(uint32_t type, float *dst, const uint8_t *src, uint32_t n,
                             const struct tdm_weights_order *order);

#endif
