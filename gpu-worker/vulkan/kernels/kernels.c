/* Which kernels can compute a product, the best first: those for integer matrix units, then those for any GPU. choose.c
 * says which of an operation's are compiled, and which one a dispatch takes. */
#include <assert.h>
#include "engine/host/kernels.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"

/* ---- matrices ---- */

#define INT8_ROWS_MIN 2u        /* from here on matrix units are faster: measured on an H200, as the next four */
#define WIDE_GROUPS_MIN 96u     /* workgroups of MATMUL_INT8_WIDE that keep a GPU busy */
#define WIDE_THREADS 256u       /* of 64 rows; twice as many of 128 take half as long again */
#define ROUTER_FEW 64u          /* rows with which eight a workgroup of the router are faster than 16 */
#define STAGE_BYTES (24u << 10) /* of a single row in shared memory, of which there may be 32 KiB */

/* About as many registers as Mesa's compiler takes for matvec.comp on Intel's GPUs (tests/gpu-compilers). A panel has
 * its address, a block's weights and these as bytes, a row its sums and its address; where several blocks are on their
 * way there are values of many rows, too. */
static uint32_t registers_of(const struct tdm_vk_matrix *a, uint32_t rows, const struct tdm_vk_shape *shape)
{
        const uint32_t blocks = shape->panels * shape->ahead * shape->sets;
        const bool is_q8 = TDM_VK_FORM_TYPE(a->type) == TDM_TYPE_Q8_0;
        const uint32_t words = is_q8 ? 8 : 4, whole = (a->type & TDM_VK_DEINTERLEAVED) ? words : 0;

        if (a->act == TDM_ACT_F32)
                return 24 + 7 * rows;
        return (rows == 1 ? 30 : 45) + (a->act == TDM_ACT_I16 ? 15 : 0) + (is_q8 ? 8 : 0) + rows * (shape->panels + 2) +
               shape->panels * (words + 12 + whole) + (blocks - shape->panels) * (words + 9) +
               (rows > 4 ? rows * 3 * (shape->ahead - 1u) : 0);
}

bool tdm_vk_fits_registers(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t rows,
                           const struct tdm_vk_shape *shape)
{
        return !device->few_registers || registers_of(a, rows, shape) < 128;
}

/* Rows of a workgroup: as many as leave registers for two panels. Weights of sub-blocks have one. */
static uint32_t rows_variant(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_rows)
{
        static const struct tdm_vk_shape two = { 2, 1, 1 };
        uint32_t variant = 1, most = 16;

        if (device->few_kernels)
                return n_rows == 1 ? 1 : 4;
        while (!tdm_subblock_type(a->type) && !tdm_vk_fits_registers(device, a, most, &two))
                most /= 2;
        while (variant < n_rows && variant < most)
                variant *= 2;
        return variant;
}

uint32_t tdm_vk_shape_with(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t panels,
                           uint32_t ahead, uint32_t sets, bool stage)
{
        uint32_t length = TDM_VK_SEGMENT_BLOCKS(a->cols), staged = 0, most;

        if (stage) {
                /* Tests, which run on CPU implementations, see several passes. */
                most = device->is_cpu ? 3 : STAGE_BYTES / (TDM_VK_SEGMENTS * (a->act == TDM_ACT_I16 ? 72 : 40));
                staged = TDM_ALIGN_UP(TDM_DIV_UP(length, TDM_DIV_UP(length, most)), sets * ahead);
        }
        return TDM_VK_MATVEC_SHAPE(ahead, panels, sets, staged) | (device->few_registers ? TDM_VK_MATVEC_ROLLED : 0);
}

/* The more panels a workgroup has the less is loaded of rows, but there must be workgroups enough to keep a GPU busy.
 * Blocks loaded ahead: passes along a segment of K as few as may be, and those full. Found on an H200; of a single row
 * this is for where nothing was measured (tune.c). */
static struct tdm_vk_shape wanted_shape(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                        uint32_t n_panels, uint32_t variant)
{
        uint32_t length = TDM_VK_SEGMENT_BLOCKS(a->cols), panels = variant == 16 || variant == 2 ? 2 : 4;
        const struct tdm_vk_tuned *tuned = variant == 1 ? tdm_vk_tuned(device, TDM_VK_MATVEC, a, n_panels) : NULL;

        if (tuned)
                return tuned->shape;
        if (device->few_kernels || a->act == TDM_ACT_F32)
                return (struct tdm_vk_shape){ 1, 1, 1 };
        if (variant == 1 && a->act == TDM_ACT_I16)
                return length >= 32 && n_panels >= 300 ? (struct tdm_vk_shape){ 2, 2, 2 } :
                                                         (struct tdm_vk_shape){ 1, length <= 8 ? 2 : 4, 2 };
        while (panels > 1 && n_panels / panels < (device->is_cpu ? 2 : 400))
                panels /= 2;
        if (panels == 4 || variant > 2)
                return (struct tdm_vk_shape){ (uint8_t)panels, panels == 4 || variant == 16 ? 1 : 2, 1 };
        return (struct tdm_vk_shape){ (uint8_t)panels, (uint8_t)TDM_DIV_UP(length, TDM_DIV_UP(length, 4)), 1 };
}

/* SHAPE, with less on its way than is wanted where registers are few. */
static uint32_t shape_of(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                         uint32_t variant)
{
        struct tdm_vk_shape shape = wanted_shape(device, a, n_panels, variant);

        while (!tdm_vk_fits_registers(device, a, variant, &shape) && shape.panels * shape.ahead * shape.sets > 1)
                if (shape.sets > 1)
                        shape.sets--;
                else if (shape.ahead > 1)
                        shape.ahead--;
                else
                        shape.panels--;
        return tdm_vk_shape_with(device, a, shape.panels, shape.ahead, shape.sets,
                                 variant == 1 && a->act != TDM_ACT_F32);
}

/* SHAPE of matvec-gelu.comp: two panels of each. */
static uint32_t gelu_shape_of(const struct tdm_vk_device *device, const struct tdm_vk_layer *l)
{
        const struct tdm_vk_tuned *tuned = tdm_vk_tuned(device, TDM_VK_MATVEC_GELU, &l->gate, l->gate.n_panels);

        return tuned ? tdm_vk_shape_with(device, &l->gate, tuned->shape.panels, tuned->shape.ahead, tuned->shape.sets,
                                         true) :
                       tdm_vk_shape_with(device, &l->gate, 4, 1, 1, true);
}

/* ---- gate, up and GELU ---- */

/* A kernel must not write what it reads, and there is one buffer for each way of rounding. */
bool tdm_vk_gate_up_fuses(const struct tdm_vk_layer *l, uint32_t n_rows)
{
        if (tdm_vk_is_f16(&l->gate))
                return l->gate.type == l->up.type && tdm_vk_is_f16(&l->up) && l->gate.n_panels == l->up.n_panels;
        return n_rows == 1 && l->gate.type == l->up.type && l->gate.act == l->up.act &&
               l->gate.n_panels == l->up.n_panels && l->gate.act != TDM_ACT_F32 && l->down.act != TDM_ACT_F32 &&
               l->gate.act != l->down.act && !tdm_subblock_type(l->gate.type);
}

unsigned tdm_vk_gate_up_kernels(const struct tdm_vk_device *device, const struct tdm_vk_layer *l, uint32_t n_rows,
                                struct tdm_vk_kernel ret[TDM_VK_CANDIDATES])
{
        if (tdm_vk_is_f16(&l->gate))
                return tdm_vk_f16_kernels(device, &l->gate, l->gate.n_panels * 2, n_rows, 1 + l->activation, ret);
        ret[0] = (struct tdm_vk_kernel){ .shader = TDM_VK_MATVEC_GELU,
                                         .constants = { l->gate.type, l->gate.act,
                                                        TDM_VK_GELU_OUT(l->down.act, l->activation),
                                                        gelu_shape_of(device, l) },
                                         .panels = 2,
                                         .rows = 1,
                                         .fits = true };
        return 1;
}

unsigned tdm_vk_group_of(const struct tdm_vk_matrix *const *matrices, unsigned n_matrices, uint32_t *ret_panels)
{
        unsigned n = 1;

        *ret_panels = matrices[0]->n_panels;
        for (; n < 3 && n < n_matrices && matrices[n]->type == matrices[0]->type &&
               matrices[n]->act == matrices[0]->act && matrices[n - 1]->rows % TDM_PANEL_ROWS == 0;
             n++)
                *ret_panels += matrices[n]->n_panels;
        return n;
}

/* TILES of matmul-int8.comp. */
static uint32_t int8_tiles(uint32_t n_rows)
{
        return n_rows <= 8 ? 1 : n_rows <= 16 ? 2 : 4;
}

/* PANELS of it, at most as many as registers hold. A workgroup of n panels takes about as long as n + 3 of them. */
static uint32_t int8_panels(uint32_t n_panels, uint32_t tiles)
{
        uint32_t best = 1, least = UINT32_MAX;

        for (uint32_t panels = 1; panels <= (tiles == 1 ? 8u : tiles == 2 ? 4u : 3u); panels++) {
                uint32_t cost = TDM_DIV_UP(TDM_DIV_UP(n_panels, panels), TDM_VK_UNITS_AT_ONCE) * (panels + 3);

                if (cost > least)
                        continue;
                least = cost;
                best = panels;
        }
        return best;
}

/* The same kernel, with the panels and rows that one workgroup of it makes. */
static struct tdm_vk_kernel with_tile(enum tdm_vk_shader shader, const struct tdm_vk_matrix *a, uint32_t c2,
                                      uint32_t c3)
{
        const struct tdm_vk_pipeline of = { .shader = shader, .constants = { a->type, a->act, c2, c3 } };
        struct tdm_vk_kernel k = {
                .shader = shader, .constants = { a->type, a->act, c2, c3 }, .spare = true, .fits = true
        };

        tdm_vk_matrix_tile(&of, &k.panels, &k.rows);
        return k;
}

static bool int8_takes(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a)
{
        uint32_t type = a->type & ~TDM_VK_DEINTERLEAVED;

        return device->units.int8 && (type == TDM_TYPE_Q4_0 || type == TDM_TYPE_Q8_0) && a->act != TDM_ACT_F32 &&
               !tdm_vk_is_f16(a);
}

/* A kernel for 128 rows is taken only where that pays, and never for 16-bit input, which has no room for 128 rows. */
static unsigned int8_wide_kernels(const struct tdm_vk_matrix *a, uint32_t n_panels, uint32_t n_rows,
                                  struct tdm_vk_kernel *ret)
{
        uint32_t across = TDM_DIV_UP(n_panels, 8),
                 waves = TDM_DIV_UP(across * TDM_DIV_UP(n_rows, 64), TDM_VK_UNITS_AT_ONCE),
                 large_waves = TDM_DIV_UP(across * TDM_DIV_UP(n_rows, 128), TDM_VK_UNITS_AT_ONCE);
        unsigned n = 0;

        if (a->cols < TDM_VK_WIDE_BLOCKS * TDM_BLOCK_VALUES)
                return 0;
        if (a->act == TDM_ACT_I8 && large_waves * 3 <= waves * 2)
                ret[n++] = with_tile(TDM_VK_MATMUL_INT8_WIDE, a, 2 * WIDE_THREADS, 0);
        ret[n++] = with_tile(TDM_VK_MATMUL_INT8_WIDE, a, WIDE_THREADS, 0);
        return n;
}

static unsigned int8_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                             uint32_t n_rows, struct tdm_vk_kernel *ret)
{
        uint32_t tiles = int8_tiles(n_rows);
        unsigned n = 0;

        if (!int8_takes(device, a))
                return 0;
        if (n_rows > 32 &&
            (n_rows > TDM_VK_INT8_ROWS_MAX || TDM_DIV_UP(n_panels, 8) * TDM_DIV_UP(n_rows, 64) >= WIDE_GROUPS_MIN))
                n = int8_wide_kernels(a, n_panels, n_rows, ret);
        if (n_rows >= INT8_ROWS_MIN && n_rows <= TDM_VK_INT8_ROWS_MAX)
                ret[n++] = with_tile(TDM_VK_MATMUL_INT8, a, tiles, int8_panels(n_panels, tiles));
        return n;
}

/* ---- units of a shape that the device names ---- */

#define ANY_ROWS_MIN 17u /* fewer are one workgroup's of matvec, which loads weights once as well */
#define ANY_BLOCKS 2u    /* of 32 columns in shared memory at once */

/* Registers hold four tiles of rows a subgroup; where blocks have minima beside 16-bit input, three. A workgroup is two
 * groups of subgroups with rows of their own by four with outputs of their own, or four by two where unpacking weights
 * is much of the work and no more rows are computed for it. */
void tdm_vk_any_shape(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_rows,
                      uint32_t ret[2])
{
        const struct tdm_subblock_info info = tdm_subblock_info(a->type);
        bool halves = info.sub_values == 16;
        uint32_t most = info.has_min && a->act == TDM_ACT_I16 ? 3 : 4, tiles = n_rows <= 64 ? 2 : most,
                 row_groups = n_rows <= 32 ? 1 : 2, out_groups = 4,
                 workgroups = TDM_DIV_UP(n_rows, row_groups * tiles * TDM_VK_TILES_M(device->units.any));

        if (halves && !info.has_min && a->act == TDM_ACT_I8 && n_rows > 64 && workgroups % 2 == 0) {
                row_groups = 4;
                out_groups = 2;
        }
        /* Where a type has two minima for each block, each subgroup loads both blocks of a panel. */
        assert(!halves || !info.has_min ||
               (ANY_BLOCKS == 2 &&
                2 * out_groups * TDM_VK_TILES_N(device->units.any) % (16 * row_groups * out_groups) == 0));
        ret[0] = TDM_VK_TILES(tiles, 2u, row_groups, ANY_BLOCKS) | device->units.any;
        ret[1] = row_groups * out_groups * TDM_VK_TILES_SUBGROUP(device->units.any);
}

static bool any_takes(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a)
{
        uint32_t type = a->type & ~TDM_VK_DEINTERLEAVED;

        return device->units.any && a->act != TDM_ACT_F32 && !tdm_vk_is_f16(a) &&
               a->cols >= ANY_BLOCKS * TDM_BLOCK_VALUES &&
               (type == TDM_TYPE_Q4_0 || type == TDM_TYPE_Q8_0 || tdm_subblock_type(type)) && !tdm_subblock_grid(type);
}

static unsigned any_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_rows,
                            struct tdm_vk_kernel *ret)
{
        uint32_t shape[2];

        if (n_rows < ANY_ROWS_MIN || !any_takes(device, a))
                return 0;
        tdm_vk_any_shape(device, a, n_rows, shape);
        ret[0] = with_tile(TDM_VK_MATMUL_INT8_ANY, a, shape[0], shape[1]);
        return 1;
}

unsigned tdm_vk_matrix_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                               uint32_t n_rows, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES])
{
        uint32_t variant, shape;
        unsigned n;

        if (tdm_vk_is_f16(a))
                return tdm_vk_f16_kernels(device, a, n_panels, n_rows, 0, ret);
        variant = rows_variant(device, a, n_rows);
        shape = shape_of(device, a, n_panels, variant);
        n = int8_kernels(device, a, n_panels, n_rows, ret);
        n += any_kernels(device, a, n_rows, ret + n);
        if (tdm_subblock_type(a->type))
                ret[n++] = (struct tdm_vk_kernel){ .shader = TDM_VK_MATVEC_SUBBLOCK,
                                                   .constants = { a->type, a->act, variant, 0 },
                                                   .panels = 1,
                                                   .rows = variant,
                                                   .fits = true };
        else
                ret[n++] = (struct tdm_vk_kernel){ .shader = TDM_VK_MATVEC,
                                                   .constants = { a->type, a->act, variant, shape },
                                                   .panels = TDM_VK_MATVEC_PANELS(shape),
                                                   .rows = variant,
                                                   .fits = true };
        return n;
}

bool tdm_vk_shape_flags(uint32_t shape, uint32_t act)
{
        uint32_t staged = TDM_VK_MATVEC_STAGED(shape),
                 words = TDM_VK_SEGMENTS * (act == TDM_ACT_I16 ? 2 : 1) * staged * 2;

        return staged && TDM_DIV_UP(words, 256u) <= TDM_VK_FLAGGED_LOADS;
}

bool tdm_vk_matrices_flag(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels)
{
        return a->act != TDM_ACT_F32 && !tdm_subblock_type(a->type) && n_panels <= device->max_groups_x &&
               (tdm_vk_is_f16(a) || tdm_vk_shape_flags(shape_of(device, a, n_panels, 1), a->act));
}

bool tdm_vk_gate_up_flags(const struct tdm_vk_device *device, const struct tdm_vk_layer *l)
{
        return tdm_vk_gate_up_fuses(l, 1) &&
               (tdm_vk_is_f16(&l->gate) || tdm_vk_shape_flags(gelu_shape_of(device, l), l->gate.act));
}

uint32_t tdm_vk_norm_per(const struct tdm_vk_model *m)
{
        return TDM_DIV_UP(m->hp.d_model, 2048u);
}

/* router.comp takes it; else it is a matrix like others. */
bool tdm_vk_router_takes(const struct tdm_vk_matrix *router)
{
        return router->type == TDM_TYPE_F32 && router->act == TDM_ACT_F32;
}

uint32_t tdm_vk_router_rows(const struct tdm_vk_device *device, uint32_t n_rows)
{
        return n_rows == 1 ? 1 : n_rows <= ROUTER_FEW || device->few_kernels ? 8 : 16;
}

uint32_t tdm_vk_item_rows(const struct tdm_vk_experts *experts, uint32_t n_rows)
{
        if (tdm_vk_is_f16(&experts->gate))
                return tdm_vk_f16_item_rows(experts, n_rows);
        /* as many as an expert has on average; more kernels than these are not worth their compilation */
        return n_rows * experts->n_used >= 2 * experts->n ? TDM_VK_ITEM_ROWS : n_rows == 1 ? 1 : 2;
}

uint32_t tdm_vk_heads_of(const struct tdm_vk_layer *l)
{
        return l->qkv_bias   ? TDM_VK_HEADS_BIASED :
               !l->q_norm    ? TDM_VK_HEADS_PLAIN :
               !l->v_norm    ? TDM_VK_HEADS_NORMED :
               l->n_qkv == 2 ? TDM_VK_HEADS_V_IS_K :
                               TDM_VK_HEADS_VALUES;
}
