/* Matrices of sparse layers lie by rows or by columns (engine/weights/weights.h), so that one row alone reads live
 * neurons only. Kernels read panels: this makes some panels of such a matrix at a time, for rows that read all of it.
 * What it costs is shared by all rows that meet the panels while they are in a cache.
 *
 * Any thread, any number at once. Copies weights, never rounds. Private to engine/host and to devices that take such
 * matrices from the segment. */
#ifndef TDM_ENGINE_HOST_PANELS_H
#define TDM_ENGINE_HOST_PANELS_H

#include "engine/host/kernels.h"

/* Room for the panels of each thread, where a matrix that lies otherwise gets them. */
struct tdm_panels {
        uint8_t *memory; /* [n_threads][stride], 64-byte aligned */
        size_t stride;
};

/* Bytes of the quants of 32 rows of a column, or of 32 columns of a row. */
static inline uint32_t tdm_matrix_quant_bytes(const struct tdm_matrix *m)
{
        return m->type == TDM_TYPE_Q8_0 ? TDM_BLOCK_VALUES : TDM_BLOCK_VALUES / 2;
}

/* By rows: quants first, then scales. */
static inline size_t tdm_matrix_row_bytes(const struct tdm_matrix *m)
{
        return (size_t)m->cols / TDM_BLOCK_VALUES * (tdm_matrix_quant_bytes(m) + 2);
}

static inline const uint8_t *tdm_matrix_row(const struct tdm_matrix *m, uint32_t row)
{
        return m->data + row * tdm_matrix_row_bytes(m);
}

/* By columns: the scales of all blocks, then the columns. first: a multiple of 32. */
static inline const uint16_t *tdm_matrix_column_scales(const struct tdm_matrix *m, uint32_t block, uint32_t first)
{
        return (const uint16_t *)(const void *)m->data + (size_t)block * m->rows + first;
}

static inline size_t tdm_matrix_column_bytes(const struct tdm_matrix *m)
{
        return (size_t)m->rows / TDM_BLOCK_VALUES * tdm_matrix_quant_bytes(m);
}

static inline const uint8_t *tdm_matrix_column(const struct tdm_matrix *m, uint32_t col, uint32_t first)
{
        return (const uint8_t *)tdm_matrix_column_scales(m, m->cols / TDM_BLOCK_VALUES, 0) +
               col * tdm_matrix_column_bytes(m) + first / TDM_BLOCK_VALUES * tdm_matrix_quant_bytes(m);
}

/* Where a panel's quants begin: its scales are padded. */
static inline uint64_t tdm_panel_scales_bytes(uint32_t cols)
{
        return TDM_ALIGN_UP((uint64_t)cols / TDM_BLOCK_VALUES * TDM_PANEL_ROWS * 2, UINT64_C(64));
}

/* How many panels are made at once. Where the matrix lies by columns, a column's piece of them is a cache line. */
uint32_t tdm_panels_unit(const struct tdm_matrix *m);
/* Panels first … first + n - 1, to dst [n][panel_bytes]; m does not lie in panels. By columns, first and n are even. */
void tdm_panels_make(const struct tdm_kernels *kernels, const struct tdm_matrix *m, uint32_t first, uint32_t n,
                     uint8_t *dst);

#endif
