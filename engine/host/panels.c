/* Panels of matrices that lie otherwise: see panels.h. */
#include <assert.h>

#include "engine/host/panels.h"

#define ROWS_UNIT 2u    /* panels: chunks of a product have an even number */
#define COLUMNS_UNIT 8u /* of nibbles, 128 rows are a cache line */

uint32_t tdm_panels_unit(const struct tdm_matrix *m)
{
        return m->order == TDM_ORDER_COLUMNS ? COLUMNS_UNIT : ROWS_UNIT;
}

static void of_rows(const struct tdm_kernels *kernels, const struct tdm_matrix *m, uint32_t panel, uint8_t *dst)
{
        const uint8_t *rows[TDM_PANEL_ROWS];

        for (uint32_t lane = 0; lane < TDM_PANEL_ROWS; lane++)
                rows[lane] = tdm_matrix_row(m, panel * TDM_PANEL_ROWS + lane);
        kernels->interleave(rows, m->cols / TDM_BLOCK_VALUES, tdm_matrix_quant_bytes(m), dst,
                            dst + tdm_panel_scales_bytes(m->cols));
}

static void of_columns(const struct tdm_kernels *kernels, const struct tdm_matrix *m, uint32_t panel, uint32_t n,
                       uint8_t *dst)
{
        uint32_t n_blocks = m->cols / TDM_BLOCK_VALUES, row = panel * TDM_PANEL_ROWS;

        for (uint32_t b = 0; b < n_blocks; b++) {
                const uint16_t *scales = tdm_matrix_column_scales(m, b, row);

                for (uint32_t i = 0; i < n; i++)
                        memcpy(dst + i * m->panel_bytes + b * TDM_PANEL_ROWS * sizeof(*scales),
                               scales + (size_t)i * TDM_PANEL_ROWS, TDM_PANEL_ROWS * sizeof(*scales));
        }
        kernels->turn_columns(m->type, tdm_matrix_column(m, 0, row), tdm_matrix_column_bytes(m), n_blocks, n,
                              dst + tdm_panel_scales_bytes(m->cols), m->panel_bytes);
}

void tdm_panels_make(const struct tdm_kernels *kernels, const struct tdm_matrix *m, uint32_t first, uint32_t n,
                     uint8_t *dst)
{
        assert(m->order != TDM_ORDER_PANELS && (first + n) * TDM_PANEL_ROWS <= m->rows);
        if (m->order == TDM_ORDER_COLUMNS) {
                assert(first % 2 == 0 && n % 2 == 0);
                of_columns(kernels, m, first, n, dst);
                return;
        }
        for (uint32_t i = 0; i < n; i++)
                of_rows(kernels, m, first + i, dst + i * m->panel_bytes);
}
