/* The SIMD matrix kernels for the types of engine/weights/subblock.h, as far as they do not depend on the vector's
 * width: written once, included by the file of one ISA, which defines the operations named below and the tiles.
 *
 * 256 columns of a pair of panels at a time are unpacked to one byte a weight, with their scales and minima in f32,
 * into scratch that stays in the first-level cache; then every row of the call passes over it, its float sums waiting
 * on the stack. So unpacking is shared by all rows, and the inner loops are the same for all types: they differ in the
 * size of a sub-block, whether there is a minimum, and the offset. One or two rows, and groups of up to eight where
 * there are no more than SOME_ROWS_MAX, are multiplied as the weights are unpacked, in registers. With more rows,
 * unpacking once for each group is more work.
 *
 * ORDER: see kernels-c-matmul-subblock.c.
 *
 * Wanted: VI, VF (vectors of V_BYTES bytes), vi_load, vi_store (aligned), vi_set8, vi_set32, vi_and, vi_or, vi_sub32,
 * vi_sll16, vi_srl16, vi_srl32, vi_sra32, vi_sll32 (by a constant), vi_table (16 bytes, for vi_look_up), vi_look_up,
 * vi_u16 (V_BYTES / 4 u16 from memory), vf_f16 (the same of f16), vf_e8 (the same of bytes e: 2^(e - 128)), vf_e4m3
 * (half of the first or second byte of each of V_BYTES / 4 pairs, as E4M3), vf_set, vf_from_int, vf_store, vf_mul,
 * vf_neg, prefetch; SOME_ROWS_MAX. */
#include "engine/host/kernels-fill.h"
#include "engine/weights/subblock.h"

#define LANES TDM_PANEL_ROWS
#define BLOCK TDM_BLOCK_VALUES
#define CHUNK_VALUES 256u
#define CHUNK_BLOCKS (CHUNK_VALUES / BLOCK)
#define CHUNK_SUBS (CHUNK_VALUES / 16)
#define PANELS 2u      /* unpacked at a time */
#define GROUP_ROWS 96u /* that pass over them */
#define FEW_ROWS 2u    /* that are multiplied while unpacking instead, where an ISA has a way of its own for them */
#define SOME_ROWS 8u   /* that are multiplied from registers, a group of at most this many at a time */
#define PREFETCH_BYTES 4608
#define V_LANES (V_BYTES / 4)

/* 256 columns of a panel, unpacked. */
struct chunk {
        uint8_t q[CHUNK_VALUES / 4][LANES][4];
        float scale[CHUNK_SUBS][LANES]; /* [sub-block] */
        float min[CHUNK_SUBS][LANES];   /* where the type has one */
} __attribute__((aligned(64)));

/* The numbers of a row in a chunk besides its x. */
struct row_info {
        const float *scale;        /* of blocks */
        int32_t start[CHUNK_SUBS]; /* -offset * (sum of x), by sub-block */
        float sum[CHUNK_SUBS];     /* scale * (sum of x), where the type has a minimum */
};

/* ---- unpacking ---- */

INLINE VI vi_shift16(VI v, const int left)
{
        if (left > 0)
                return vi_sll16(v, left);
        return left < 0 ? vi_srl16(v, -left) : v;
}

/* The 8 groups of a block, one vector's width of their 64 bytes. */
INLINE void block_groups(const uint32_t type, const uint8_t *from, VI *w)
{
        const VI low4 = vi_set8(15);

        if (type == TDM_TYPE_Q2_K || type == TDM_TYPE_Q3_K || type == TDM_TYPE_GRID1 || type == TDM_TYPE_GRID2) {
                UNROLL for (int g = 0; g < 8; g++)
                {
                        w[g] = vi_and(vi_shift16(vi_load(from + g / 4 * 64), -2 * (g % 4)), vi_set8(3));
                        if (type != TDM_TYPE_Q2_K)
                                w[g] = vi_or(w[g], vi_and(vi_shift16(vi_load(from + 128), 2 - g), vi_set8(4)));
                        if (tdm_subblock_grid(type))
                                w[g] = vi_look_up(vi_table(tdm_subblock_grid_values[type - TDM_TYPE_GRID1]), w[g]);
                }
                return;
        }
        UNROLL for (int v = 0; v < 4; v++)
        {
                VI both = vi_load(from + 64 * v), low = vi_and(both, low4), high = vi_and(vi_srl16(both, 4), low4);

                if (type == TDM_TYPE_Q5_0 || type == TDM_TYPE_Q5_1 || type == TDM_TYPE_Q5_K) {
                        VI bits = vi_load(from + 256);

                        low = vi_or(low, vi_and(vi_shift16(bits, 4 - v), vi_set8(16)));
                        high = vi_or(high, vi_and(vi_shift16(bits, -v), vi_set8(16)));
                } else if (type == TDM_TYPE_Q6_K) {
                        low = vi_or(low, vi_and(vi_shift16(vi_load(from + 256), 4 - 2 * v), vi_set8(48)));
                        high = vi_or(high, vi_and(vi_shift16(vi_load(from + 320), 4 - 2 * v), vi_set8(48)));
                } else if (type == TDM_TYPE_IQ4_NL || type == TDM_TYPE_IQ4_XS) {
                        const VI table = vi_table(tdm_subblock_iq4_values);

                        low = vi_look_up(table, low);
                        high = vi_look_up(table, high);
                } else if (type == TDM_TYPE_MXFP4 || type == TDM_TYPE_NVFP4) {
                        const VI table = vi_table(tdm_subblock_mxfp4_values);

                        low = vi_look_up(table, low);
                        high = vi_look_up(table, high);
                } else if (tdm_subblock_grid(type)) {
                        const VI table = vi_table(tdm_subblock_grid_values[type - TDM_TYPE_GRID1]);

                        low = vi_look_up(table, low);
                        high = vi_look_up(table, high);
                }
                w[v] = low;
                w[v + 4] = high;
        }
}

INLINE VI byte_of(VI v, const int i)
{
        return vi_and(vi_srl32(v, 8 * i), vi_set32(255));
}

/* to[4 * at + i] = d * byte i of s, for all 4; the bytes signed or less bias. */
INLINE void scale_bytes(VF d, VI s, const bool is_signed, const int bias, float (*to)[LANES], unsigned at)
{
        UNROLL for (int i = 0; i < 4; i++)
        {
                VI v = is_signed ? vi_sra32(vi_sll32(s, 24 - 8 * i), 24) : byte_of(s, i);

                if (bias)
                        v = vi_sub32(v, vi_set32(bias));
                vf_store(to[4 * at + (unsigned)i], vf_mul(d, vf_from_int(v)));
        }
}

/* Scales and minima of a unit of 256 columns, one vector's width of lanes: front and scales are at the first of them.
 */
INLINE void unpack_scales(const uint32_t type, const uint8_t *front, const uint8_t *scales, float (*scale)[LANES],
                          float (*min)[LANES])
{
        const VI low4 = vi_set8(15), low2 = vi_set8(3), low6 = vi_set8(63);
        VF d = vf_f16(front);

        if (type == TDM_TYPE_Q4_K || type == TDM_TYPE_Q5_K) {
                VI a = vi_load(scales), b = vi_load(scales + 64), c = vi_load(scales + 128);
                VF d_min = vf_neg(vf_f16(front + 2 * LANES));

                scale_bytes(d, vi_and(a, low6), false, 0, scale, 0);
                scale_bytes(d, vi_or(vi_and(c, low4), vi_and(vi_srl16(a, 2), vi_set8(48))), false, 0, scale, 1);
                scale_bytes(d_min, vi_and(b, low6), false, 0, min, 0);
                scale_bytes(d_min, vi_or(vi_and(vi_srl16(c, 4), low4), vi_and(vi_srl16(b, 2), vi_set8(48))), false, 0,
                            min, 1);
        } else if (type == TDM_TYPE_Q2_K) {
                VF d_min = vf_neg(vf_f16(front + 2 * LANES));

                UNROLL for (unsigned i = 0; i < 4; i++)
                {
                        VI s = vi_load(scales + 64 * i);

                        scale_bytes(d, vi_and(s, low4), false, 0, scale, i);
                        scale_bytes(d_min, vi_and(vi_srl16(s, 4), low4), false, 0, min, i);
                }
        } else if (type == TDM_TYPE_Q3_K) {
                VI high = vi_load(scales + 128);

                UNROLL for (int i = 0; i < 4; i++)
                {
                        VI s = vi_and(vi_shift16(vi_load(scales + i % 2 * 64), i < 2 ? 0 : -4), low4);

                        s = vi_or(s, vi_sll16(vi_and(vi_shift16(high, -2 * i), low2), 4));
                        scale_bytes(d, s, false, 32, scale, (unsigned)i);
                }
        } else if (tdm_subblock_grid(type)) {
                d = vf_mul(d, vf_set(tdm_subblock_grid_factor(type)));
                UNROLL for (int i = 0; i < 4; i++)
                {
                        VI s = vi_and(vi_shift16(vi_load(scales + i % 2 * 64), i < 2 ? 0 : -4), low4);

                        scale_bytes(d, vi_or(vi_sll16(s, 1), vi_set8(1)), false, 0, scale, (unsigned)i);
                }
        } else if (type == TDM_TYPE_Q6_K) {
                UNROLL for (unsigned i = 0; i < 4; i++) scale_bytes(d, vi_load(scales + 64 * i), true, 0, scale, i);
        } else if (type == TDM_TYPE_IQ4_XS) {
                VI low = vi_load(scales), high = vi_u16(front + 2 * LANES);

                UNROLL for (int b = 0; b < 8; b++)
                {
                        VI s = vi_and(vi_srl32(low, 4 * b), vi_set32(15));

                        s = vi_or(s, vi_and(vi_sll32(vi_srl32(high, 2 * b), 4), vi_set32(48)));
                        vf_store(scale[b], vf_mul(d, vf_from_int(vi_sub32(s, vi_set32(32)))));
                }
        }
}

/* The scales of the i-th sub-block of a unit of 32 columns, one vector's width of lanes from `lane` on. */
INLINE VF unit_scale(const uint32_t type, const uint8_t *front, unsigned lane, const unsigned i)
{
        if (type == TDM_TYPE_NVFP4)
                return vf_e4m3(front + 2 * lane, i);
        return type == TDM_TYPE_MXFP4 ? vf_e8(front + lane) : vf_f16(front + 2 * lane);
}

/* Chunk c of a panel: n_blocks of 32 columns. */
INLINE void unpack_chunk(const uint32_t type, const struct tdm_matrix *matrix, uint32_t panel, uint32_t c,
                         uint32_t n_blocks, struct chunk *to)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        const unsigned n_subs = BLOCK / info.sub_values;
        const uint8_t *front = matrix->data + panel * matrix->panel_bytes;
        const uint8_t *body = front + tdm_subblock_front_bytes(&info, matrix->cols);
        uint32_t first_unit = c * (CHUNK_VALUES / info.unit_values);

        front += first_unit * tdm_subblock_unit_front_bytes(&info);
        body += first_unit * tdm_subblock_unit_bytes(&info);
        if (info.unit_values == CHUNK_VALUES)
                UNROLL for (unsigned h = 0; h < LANES; h += V_LANES)
                        unpack_scales(type, front + 2 * h, body + 4 * h, (float(*)[LANES])(void *)&to->scale[0][h],
                                      (float(*)[LANES])(void *)&to->min[0][h]);
        body += info.scale_bytes;
        for (uint32_t b = 0; b < n_blocks; b++, body += info.block_bytes) {
                UNROLL for (unsigned at = 0; at < info.block_bytes; at += 64) prefetch(body + at + PREFETCH_BYTES);
                UNROLL for (unsigned h = 0; h < LANES; h += V_LANES)
                {
                        VI w[8];

                        block_groups(type, body + 4 * h, w);
                        UNROLL for (unsigned g = 0; g < 8; g++) vi_store(to->q[8 * b + g][h], w[g]);
                        if (info.unit_values != BLOCK)
                                continue;
                        UNROLL for (unsigned i = 0; i < n_subs; i++)
                                vf_store(&to->scale[b * n_subs + i][h], unit_scale(type, front, h, i));
                        if (info.has_min)
                                vf_store(&to->min[b][h], vf_f16(front + 2 * (LANES + h)));
                }
                if (info.unit_values == BLOCK)
                        front += tdm_subblock_unit_front_bytes(&info);
        }
}

/* ---- rows ---- */

/* first: the chunk's first block. offset: 0 or a multiple of 8. */
INLINE void row_info_block32(const struct tdm_act_row *row, size_t first, uint32_t n_blocks, int32_t offset,
                             struct row_info *ret)
{
        ret->scale = row->scale + first;
        for (uint32_t b = 0; b < n_blocks; b++) {
                ret->start[b] = offset / 8 * row->start[first + b];
                ret->sum[b] = row->sum[first + b];
        }
}

INLINE void row_info_subs16(const bool has_min, const struct tdm_act_row *row, size_t first, const uint32_t n_subs,
                            int32_t offset, struct row_info *ret)
{
        const int32_t *sum = row->sum_16 + 2 * first;

        ret->scale = row->scale + first;
        for (unsigned s = 0; s < n_subs; s++)
                ret->start[s] = -offset * sum[s];
        for (unsigned s = 0; has_min && s < n_subs; s++)
                ret->sum[s] = ret->scale[s / 2] * (float)sum[s];
}

/* Sub-blocks of 16. Nearly all chunks are whole ones, whose number of sub-blocks the compiler knows. */
INLINE void row_info_block16(const bool has_min, const struct tdm_act_row *row, size_t first, uint32_t n_blocks,
                             int32_t offset, struct row_info *ret)
{
        if (n_blocks == CHUNK_BLOCKS)
                row_info_subs16(has_min, row, first, CHUNK_SUBS, offset, ret);
        else
                row_info_subs16(has_min, row, first, 2 * n_blocks, offset, ret);
}

/* ---- calls ---- */

#define TILE_ARGS                                                                                                      \
        const struct chunk *chunks, const struct tdm_act_row *rows, uint32_t n_rows, uint32_t first_block,             \
                uint32_t n_blocks, int32_t offset, float(*acc)[PANELS][LANES]

typedef void (*tile_fn)(TILE_ARGS);

struct kernel {
        /* At most FEW_ROWS rows times PANELS panels without scratch; NULL: no such way. */
        void (*few)(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows, uint32_t panel,
                    float *y, size_t y_stride);
        /* At most SOME_ROWS rows times one panel without scratch; NULL: no such way. */
        void (*some)(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows, uint32_t panel,
                     float *y, size_t y_stride);
        void (*unpack)(const struct tdm_matrix *matrix, uint32_t panel, uint32_t c, uint32_t n_blocks,
                       struct chunk *to);
        tile_fn const *tiles; /* [MAX_TILE_ROWS], of rows - 1 */
        int32_t offset;
};

static void run(const struct kernel *kernel, const struct tdm_matrix *matrix, const struct tdm_act_row *rows,
                uint32_t n_rows, uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)
{
        float acc[GROUP_ROWS][PANELS][LANES] __attribute__((aligned(64)));
        uint32_t nb = matrix->cols / BLOCK;
        struct chunk chunks[PANELS];

        if (kernel->some && (n_rows > FEW_ROWS || !kernel->few) && n_rows <= SOME_ROWS_MAX) {
                uint32_t n_groups = TDM_DIV_UP(n_rows, SOME_ROWS);

                for (uint32_t p = 0; p < n_panels; p++)
                        for (uint32_t g = 0, r = 0, n; g < n_groups; g++, r += n) {
                                n = (n_rows - r) / (n_groups - g);
                                kernel->some(matrix, rows + r, n, first_panel + p, y + r * y_stride + p * LANES,
                                             y_stride);
                        }
                return;
        }
        for (uint32_t p = 0, n_p; p < n_panels; p += n_p) {
                n_p = TDM_MIN(n_panels - p, PANELS);
                if (n_p < PANELS) /* tiles are of PANELS panels; what is computed for this one is not looked at */
                        memset(&chunks[n_p], 0, sizeof(chunks[0]));
                if (kernel->few && n_rows <= FEW_ROWS && n_p == PANELS) {
                        kernel->few(matrix, rows, n_rows, first_panel + p, y + p * LANES, y_stride);
                        continue;
                }
                for (uint32_t r0 = 0, n; r0 < n_rows; r0 += n) {
                        uint32_t n_tiles;

                        n = TDM_MIN(n_rows - r0, GROUP_ROWS);
                        n_tiles = TDM_DIV_UP(n, MAX_TILE_ROWS);
                        memset(acc, 0, n * sizeof(acc[0]));
                        for (uint32_t b = 0; b < nb; b += CHUNK_BLOCKS) {
                                uint32_t n_blocks = TDM_MIN(nb - b, CHUNK_BLOCKS);

                                for (uint32_t i = 0; i < n_p; i++)
                                        kernel->unpack(matrix, first_panel + p + i, b / CHUNK_BLOCKS, n_blocks,
                                                       &chunks[i]);
                                /* Tiles of nearly equal size, so that 8 rows are 4 + 4, not 6 + 2. */
                                for (uint32_t t = 0, r = 0, n_r; t < n_tiles; t++, r += n_r) {
                                        n_r = (n - r) / (n_tiles - t);
                                        kernel->tiles[n_r - 1](chunks, rows + r0 + r, n_r, b, n_blocks, kernel->offset,
                                                               acc + r);
                                }
                        }
                        for (uint32_t r = 0; r < n; r++) {
                                uint32_t first = (first_panel + p) * LANES;

                                memcpy(y + (r0 + r) * y_stride + p * LANES, acc[r],
                                       TDM_MIN(n_p * LANES, matrix->rows - first) * sizeof(float));
                        }
                }
        }
}
