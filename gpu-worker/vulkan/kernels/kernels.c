/* Which kernels a model wants, and which one a dispatch takes: all are compiled when it is loaded, so that none is
 * later. */
#include <assert.h>
#include "engine/host/kernels.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"

/* ---- matrices ---- */

/* Rows of one workgroup of matvec. A CPU takes seconds to compile the big ones. */
static const uint32_t rows_variants[] = { 1, 2, 4, 8, 16 }, rows_variants_cpu[] = { 1, 4 };
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

/* Not where it would write what it reads: there is one buffer for each way of rounding. */
bool tdm_vk_gelu_fits(const struct tdm_vk_layer *l, uint32_t n_rows)
{
        if (tdm_vk_is_f16(&l->gate))
                return l->gate.type == l->up.type && tdm_vk_is_f16(&l->up) && l->gate.n_panels == l->up.n_panels;
        return n_rows == 1 && l->gate.type == l->up.type && l->gate.act == l->up.act &&
               l->gate.n_panels == l->up.n_panels && l->gate.act != TDM_ACT_F32 && l->down.act != TDM_ACT_F32 &&
               l->gate.act != l->down.act && !tdm_subblock_type(l->gate.type);
}

struct tdm_vk_pipeline *tdm_vk_gelu_kernel(struct tdm_vk_device *device, const struct tdm_vk_layer *l, uint32_t n_rows,
                                           uint32_t *ret_panels, uint32_t *ret_rows)
{
        if (tdm_vk_is_f16(&l->gate))
                return tdm_vk_f16_kernel(device, &l->gate, l->gate.n_panels * 2, n_rows, 1 + l->activation, ret_panels,
                                         ret_rows);
        *ret_panels = 2;
        *ret_rows = 1;
        return tdm_vk_pipeline_get(device, TDM_VK_MATVEC_GELU, l->gate.type, l->gate.act,
                                   TDM_VK_GELU_OUT(l->down.act, l->activation), gelu_shape_of(device, l));
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

/* PANELS of it, as many as registers hold: a workgroup takes about as long as that many and three more. */
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

static struct tdm_vk_pipeline *int8_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                           uint32_t n_panels, uint32_t n_rows)
{
        uint32_t tiles = int8_tiles(n_rows);

        return tdm_vk_pipeline_proven(device, TDM_VK_MATMUL_INT8, a->type, a->act, tiles, int8_panels(n_panels, tiles));
}

/* Of 128 rows only where that pays, and not for 16-bit input, which has no room for as many. */
static struct tdm_vk_pipeline *int8_wide_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                                uint32_t n_panels, uint32_t n_rows)
{
        uint32_t across = TDM_DIV_UP(n_panels, 8),
                 waves = TDM_DIV_UP(across * TDM_DIV_UP(n_rows, 64), TDM_VK_UNITS_AT_ONCE),
                 large_waves = TDM_DIV_UP(across * TDM_DIV_UP(n_rows, 128), TDM_VK_UNITS_AT_ONCE);
        struct tdm_vk_pipeline *large = NULL;

        if (a->cols < TDM_VK_WIDE_BLOCKS * TDM_BLOCK_VALUES)
                return NULL;
        if (a->act == TDM_ACT_I8 && large_waves * 3 <= waves * 2)
                large = tdm_vk_pipeline_proven(device, TDM_VK_MATMUL_INT8_WIDE, a->type, a->act, 2 * WIDE_THREADS, 0);
        return large ? large :
                       tdm_vk_pipeline_proven(device, TDM_VK_MATMUL_INT8_WIDE, a->type, a->act, WIDE_THREADS, 0);
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
                 workgroups = TDM_DIV_UP(n_rows, row_groups * tiles * TDM_VK_TILES_M(device->any_units));

        if (halves && !info.has_min && a->act == TDM_ACT_I8 && n_rows > 64 && workgroups % 2 == 0) {
                row_groups = 4;
                out_groups = 2;
        }
        /* Of types with two minima a block, each subgroup loads both blocks of a panel. */
        assert(!halves || !info.has_min ||
               (ANY_BLOCKS == 2 &&
                2 * out_groups * TDM_VK_TILES_N(device->any_units) % (16 * row_groups * out_groups) == 0));
        ret[0] = TDM_VK_TILES(tiles, 2u, row_groups, ANY_BLOCKS) | device->any_units;
        ret[1] = row_groups * out_groups * TDM_VK_TILES_SUBGROUP(device->any_units);
}

static bool any_takes(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a)
{
        uint32_t type = a->type & ~TDM_VK_DEINTERLEAVED;

        return device->any_units && a->act != TDM_ACT_F32 && !tdm_vk_is_f16(a) &&
               a->cols >= ANY_BLOCKS * TDM_BLOCK_VALUES &&
               (type == TDM_TYPE_Q4_0 || type == TDM_TYPE_Q8_0 || tdm_subblock_type(type));
}

static struct tdm_vk_pipeline *any_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_rows)
{
        uint32_t shape[2];

        if (n_rows < ANY_ROWS_MIN || !any_takes(device, a))
                return NULL;
        tdm_vk_any_shape(device, a, n_rows, shape);
        return tdm_vk_pipeline_proven(device, TDM_VK_MATMUL_INT8_ANY, a->type, a->act, shape[0], shape[1]);
}

struct tdm_vk_pipeline *tdm_vk_choose_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                             uint32_t n_panels, uint32_t n_rows, uint32_t *ret_panels,
                                             uint32_t *ret_rows)
{
        struct tdm_vk_pipeline *pipeline = NULL;
        uint32_t variant, shape;

        if (tdm_vk_is_f16(a))
                return tdm_vk_f16_kernel(device, a, n_panels, n_rows, false, ret_panels, ret_rows);
        variant = rows_variant(device, a, n_rows);
        shape = shape_of(device, a, n_panels, variant);
        if (n_rows > 32 &&
            (n_rows > TDM_VK_INT8_ROWS_MAX || TDM_DIV_UP(n_panels, 8) * TDM_DIV_UP(n_rows, 64) >= WIDE_GROUPS_MIN))
                pipeline = int8_wide_kernel(device, a, n_panels, n_rows);
        if (!pipeline && n_rows >= INT8_ROWS_MIN && n_rows <= TDM_VK_INT8_ROWS_MAX)
                pipeline = int8_kernel(device, a, n_panels, n_rows);
        if (!pipeline)
                pipeline = any_kernel(device, a, n_rows);
        if (pipeline) {
                tdm_vk_matrix_tile(pipeline, ret_panels, ret_rows);
                return pipeline;
        }
        *ret_rows = variant;
        *ret_panels = 1;
        if (tdm_subblock_type(a->type))
                return tdm_vk_pipeline_get(device, TDM_VK_MATVEC_SUBBLOCK, a->type, a->act, variant, 0);
        *ret_panels = TDM_VK_MATVEC_PANELS(shape);
        return tdm_vk_pipeline_get(device, TDM_VK_MATVEC, a->type, a->act, variant, shape);
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

bool tdm_vk_gelu_flags(const struct tdm_vk_device *device, const struct tdm_vk_layer *l)
{
        return tdm_vk_gelu_fits(l, 1) &&
               (tdm_vk_is_f16(&l->gate) || tdm_vk_shape_flags(gelu_shape_of(device, l), l->gate.act));
}

/* ---- all of them ---- */

uint32_t tdm_vk_norm_per(const struct tdm_vk_model *m)
{
        return TDM_DIV_UP(m->hp.d_model, 2048u);
}

static int need(struct tdm_vk_model *m, enum tdm_vk_shader shader, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                struct tdm_error *err)
{
        return tdm_vk_pipeline_need(m->device, shader, (const uint32_t[]){ c0, c1, c2, c3 }, err);
}

/* Not being able to compile one is no error here. */
static int need_units(struct tdm_vk_model *m, const struct tdm_vk_matrix *a, uint32_t n_panels, struct tdm_error *err)
{
        static const uint32_t any_rows[] = { 32, 64, 128, 256 };
        uint32_t type = a->type & ~TDM_VK_DEINTERLEAVED, shape[2];

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(any_rows) && any_takes(m->device, a); i++) {
                tdm_vk_any_shape(m->device, a, any_rows[i], shape);
                need(m, TDM_VK_MATMUL_INT8_ANY, a->type, a->act, shape[0], shape[1], NULL);
        }
        if (any_takes(m->device, a))
                return tdm_vk_prove_need(m->device, a->type, a->act, err);
        if (!m->device->matrix_units || (type != TDM_TYPE_Q4_0 && type != TDM_TYPE_Q8_0) || a->act == TDM_ACT_F32)
                return 0;
        need(m, TDM_VK_MATMUL_INT8_WIDE, a->type, a->act, WIDE_THREADS, 0, NULL);
        if (a->act == TDM_ACT_I8)
                need(m, TDM_VK_MATMUL_INT8_WIDE, a->type, a->act, 2 * WIDE_THREADS, 0, NULL);
        for (uint32_t tiles = 1; tiles <= 4; tiles *= 2)
                need(m, TDM_VK_MATMUL_INT8, a->type, a->act, tiles, int8_panels(n_panels, tiles), NULL);
        return tdm_vk_prove_need(m->device, a->type, a->act, err);
}

/* units: those for matrix units; else the others, where none of the former does the same. */
static int need_matrices(struct tdm_vk_model *m, const struct tdm_vk_matrix *const *matrices, unsigned n_matrices,
                         bool units, struct tdm_error *err)
{
        const uint32_t *variants = m->device->few_kernels ? rows_variants_cpu : rows_variants;
        unsigned n_variants =
                m->device->few_kernels ? TDM_ARRAY_SIZE(rows_variants_cpu) : TDM_ARRAY_SIZE(rows_variants);
        int r = 0;

        for (unsigned i = 0; i < n_matrices && r == 0;) {
                const struct tdm_vk_matrix *a = matrices[i];
                uint32_t n_panels;

                i += tdm_vk_group_of(matrices + i, n_matrices - i, &n_panels);
                if (tdm_vk_is_f16(a)) /* they are there: tdm_vk_kernels_need_f16() */
                        continue;
                if (units)
                        r = need_units(m, a, n_panels, err);
                for (unsigned v = 0; v < n_variants && r == 0 && !units; v++) {
                        if (variants[v] >= INT8_ROWS_MIN && int8_kernel(m->device, a, n_panels, variants[v]) &&
                            (variants[v] < 16 || int8_kernel(m->device, a, n_panels, 32)) &&
                            int8_wide_kernel(m->device, a, n_panels, 1))
                                continue;
                        if (rows_variant(m->device, a, variants[v]) != variants[v])
                                continue;
                        r = tdm_subblock_type(a->type) ?
                                    need(m, TDM_VK_MATVEC_SUBBLOCK, a->type, a->act, variants[v], 0, err) :
                                    need(m, TDM_VK_MATVEC, a->type, a->act, variants[v],
                                         shape_of(m->device, a, n_panels, variants[v]), err);
                }
        }
        return r;
}

/* router.comp takes it; else it is a matrix like others. */
static bool has_own_kernel(const struct tdm_vk_matrix *router)
{
        return router->type == TDM_TYPE_F32 && router->act == TDM_ACT_F32;
}

struct tdm_vk_pipeline *tdm_vk_router_kernel(struct tdm_vk_device *device, const struct tdm_vk_matrix *router,
                                             uint32_t n_rows, uint32_t *ret_rows)
{
        if (!has_own_kernel(router))
                return NULL;
        *ret_rows = n_rows == 1 ? 1 : n_rows <= ROUTER_FEW || device->few_kernels ? 8 : 16;
        return tdm_vk_pipeline_get(device, TDM_VK_ROUTER, *ret_rows, 0, 0, 0);
}

uint32_t tdm_vk_item_rows(const struct tdm_vk_experts *experts, uint32_t n_rows)
{
        if (tdm_vk_is_f16(&experts->gate))
                return tdm_vk_f16_item_rows(experts, n_rows);
        /* as many as an expert has on average; more kernels than these are not worth their compilation */
        return n_rows * experts->n_used >= 2 * experts->n ? TDM_VK_ITEM_ROWS : n_rows == 1 ? 1 : 2;
}

static int need_experts(struct tdm_vk_model *m, const struct tdm_vk_experts *e, bool units, struct tdm_error *err)
{
        static const uint32_t item_rows[] = { 1, 2, TDM_VK_ITEM_ROWS };
        const struct tdm_vk_matrix *router[] = { &e->router }, *matrices[] = { &e->gate, &e->up, &e->down };
        int r = has_own_kernel(&e->router) ? 0 : need_matrices(m, router, 1, units, err);

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(matrices) && !units && !tdm_vk_is_f16(&e->gate); i++)
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(item_rows) && r == 0; k++)
                        r = need(m, TDM_VK_MATVEC_EXPERTS, matrices[i]->type, matrices[i]->act, item_rows[k], 0, err);
        return r;
}

static int need_side(struct tdm_vk_model *m, uint32_t layer, bool units, struct tdm_error *err)
{
        const struct tdm_vk_layer *l = &m->layers[layer];
        const struct tdm_vk_matrix proj = tdm_vk_matrix_rows(&m->per_layer_proj, 0, m->recipe.per_layer_width);
        const struct tdm_vk_matrix *matrices[] = { &proj, &l->input_gate, &l->input_proj };
        int r = 0;

        const struct tdm_vk_matrix *of_streams[] = { &l->laurel_l, &l->laurel_r, &l->altup_router };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(matrices) && r == 0 && m->recipe.layers[layer].has_input; i++)
                r = need_matrices(m, matrices + i, 1, units, err);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(of_streams) && r == 0 && tdm_vk_has_streams(m); i++)
                r = need_matrices(m, of_streams + i, 1, units, err);
        return r;
}

static int list_matrices(struct tdm_vk_model *m, bool units, struct tdm_error *err)
{
        int r = need_matrices(m, (const struct tdm_vk_matrix *[]){ &m->output }, 1, units, err);

        if (tdm_vk_has_streams(m)) {
                const struct tdm_vk_matrix proj = tdm_vk_matrix_rows(&m->altup_proj, 0, m->hp.d_model),
                                           unembd = tdm_vk_matrix_rows(&m->altup_unembd, 0, m->hp.d_model);

                if (r == 0)
                        r = need_matrices(m, (const struct tdm_vk_matrix *[]){ &proj }, 1, units, err);
                if (r == 0)
                        r = need_matrices(m, (const struct tdm_vk_matrix *[]){ &unembd }, 1, units, err);
        }

        for (uint32_t i = 0; i < m->hp.n_layers && r == 0; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v }, *gate_up[] = { &l->gate, &l->up },
                                           *o[] = { &l->o }, *down[] = { &l->down };

                r = need_matrices(m, qkv, l->n_qkv, units, err);
                if (r == 0)
                        r = need_side(m, i, units, err);
                if (r == 0)
                        r = need_matrices(m, o, 1, units, err);
                if (r == 0 && l->experts.n > 0)
                        r = need_experts(m, &l->experts, units, err);
                if (!tdm_vk_has_dense(l))
                        continue;
                if (r == 0)
                        r = need_matrices(m, gate_up, 2, units, err);
                if (r == 0 && !units && !tdm_vk_is_f16(&l->gate) && tdm_vk_gelu_fits(l, 1))
                        r = need(m, TDM_VK_MATVEC_GELU, l->gate.type, l->gate.act,
                                 TDM_VK_GELU_OUT(l->down.act, l->activation), gelu_shape_of(m->device, l), err);
                if (r == 0)
                        r = need_matrices(m, down, 1, units, err);
        }
        return r;
}

int tdm_vk_kernels_need_single(struct tdm_vk_model *m, struct tdm_error *err)
{
        int r = 0;

        /* rows of F16 have theirs since choose_rows() */
        for (uint32_t i = 0; i < m->hp.n_layers && r == 0 && !m->f16_rows; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v };

                if (l->experts.n > 0)
                        continue;
                for (unsigned k = 0; k < l->n_qkv && r == 0;) {
                        const struct tdm_vk_matrix *a = qkv[k];
                        uint32_t n_panels;

                        k += tdm_vk_group_of(qkv + k, l->n_qkv - k, &n_panels);
                        r = need(m, TDM_VK_MATVEC, a->type, a->act, 1, shape_of(m->device, a, n_panels, 1), err);
                }
                if (r == 0)
                        r = need(m, TDM_VK_MATVEC, l->o.type, l->o.act, 1, shape_of(m->device, &l->o, l->o.n_panels, 1),
                                 err);
                if (r == 0)
                        r = need(m, TDM_VK_MATVEC, l->down.type, l->down.act, 1,
                                 shape_of(m->device, &l->down, l->down.n_panels, 1), err);
                if (r == 0)
                        r = need(m, TDM_VK_MATVEC_GELU, l->gate.type, l->gate.act,
                                 TDM_VK_GELU_OUT(l->down.act, l->activation), gelu_shape_of(m->device, l), err);
        }
        return r;
}

/* Whether some block of the model ends with a sum of this kind: TDM_VK_NORM_PLAIN or 0. */
static bool adds(const struct tdm_vk_model *m, uint32_t plain)
{
        for (uint32_t i = 0; i < m->hp.n_layers; i++)
                if ((m->layers[i].post_attn_norm == 0) == (plain != 0) ||
                    (m->layers[i].post_ffw_norm == 0) == (plain != 0))
                        return true;
        return false;
}

uint32_t tdm_vk_heads_of(const struct tdm_vk_layer *l)
{
        return l->qkv_bias   ? TDM_VK_HEADS_BIASED :
               !l->q_norm    ? TDM_VK_HEADS_PLAIN :
               !l->v_norm    ? TDM_VK_HEADS_NORMED :
               l->n_qkv == 2 ? TDM_VK_HEADS_V_IS_K :
                               TDM_VK_HEADS_VALUES;
}

static int need_side_kernels(struct tdm_vk_model *m, const struct tdm_vk_layer *l, struct tdm_error *err)
{
        int r = 0;

        if (l->input_norm) {
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_COPY, m->per_layer_proj.act, 0, 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_COPY, l->input_gate.act, 0, 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_GATED, l->input_proj.act, 0, 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_INPUT, 0, 0, 0, err);
        }
        if (r == 0 && l->experts.beside)
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_BOTH, 0, 0, 0, err);
        if (r == 0 && l->experts.beside)
                r = need(m, TDM_VK_GELU, l->activation, l->down.act, 0, 0, err);
        if (r == 0 && (l->input_norm || l->output_scale))
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_ADD, 0, 0, 0, err);
        return r;
}

static int need_streams_kernels(struct tdm_vk_model *m, struct tdm_error *err)
{
        int r = need(m, TDM_VK_NORM, 0, m->output.act, tdm_vk_norm_per(m), 0, err);

        for (uint32_t op = 0; op <= TDM_VK_STREAMS_CUT && r == 0; op++)
                r = need(m, TDM_VK_STREAMS, op, 0, 0, 0, err);
        if (r == 0)
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_COPY, m->altup_proj.act, 0, 0, err);
        if (r == 0)
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_COPY, m->altup_unembd.act, 0, 0, err);
        for (uint32_t i = 0; i < m->hp.n_layers && r == 0; i++) {
                r = need(m, TDM_VK_SIDE, TDM_VK_SIDE_COPY, m->layers[i].laurel_r.act, 0, 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_NORM, 0, m->layers[i].laurel_l.act, tdm_vk_norm_per(m), 0, err);
        }
        return r;
}

static int list_others(struct tdm_vk_model *m, struct tdm_error *err)
{
        static const enum tdm_vk_shader of_experts[] = { TDM_VK_CHOOSE, TDM_VK_GROUP, TDM_VK_SUM_EXPERTS };
        static const uint32_t router_rows[] = { 1, 8, 16 };
        const bool chains = tdm_vk_chain_wanted(m->device);
        uint32_t norms[10] = { 0 };
        unsigned n_norms = 1;
        int r = need(m, TDM_VK_EMBED, m->embedding.type, 0, 0, 0, err);

        for (uint32_t plain = 0; plain <= TDM_VK_NORM_PLAIN; plain += TDM_VK_NORM_PLAIN) {
                if (!adds(m, plain))
                        continue;
                norms[n_norms++] = TDM_VK_NORM_ADD | plain;
                if (!chains)
                        continue;
                norms[n_norms++] = TDM_VK_NORM_ADD | TDM_VK_NORM_REHEARSES | plain;
                norms[n_norms++] = TDM_VK_NORM_ADD | TDM_VK_NORM_FEW | plain;
                norms[n_norms++] = TDM_VK_NORM_ADD | TDM_VK_NORM_REHEARSES | TDM_VK_NORM_FEW | plain;
        }
        if (chains)
                norms[n_norms++] = TDM_VK_NORM_FEW;
        for (uint32_t i = 0; i < m->hp.n_layers && r == 0; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const bool has_experts = l->experts.n > 0;
                const struct tdm_vk_matrix *normed[] = { &l->q,
                                                         &l->k,
                                                         &l->v,
                                                         has_experts ? &l->experts.gate : &l->gate,
                                                         has_experts ? &l->experts.up : &l->up,
                                                         has_experts ? &l->experts.router : &l->up,
                                                         tdm_vk_has_dense(l) ? &l->gate : &l->q,
                                                         tdm_vk_has_dense(l) ? &l->up : &l->q };

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(normed) && r == 0; k++)
                        for (unsigned v = 0; v < n_norms && r == 0; v++)
                                r = need(m, TDM_VK_NORM,
                                         norms[v] | (has_experts && normed[k]->act == TDM_VK_ACT_F16 && k >= 3 ?
                                                             TDM_VK_NORM_BESIDE :
                                                             0),
                                         normed[k]->act, tdm_vk_norm_per(m), 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_MERGE, 0, l->o.act, 0, 0, err);
                if (r == 0)
                        r = need(m, TDM_VK_GELU, l->activation, has_experts ? l->experts.down.act : l->down.act, 0, 0,
                                 err);
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(of_experts) && r == 0 && has_experts; k++)
                        r = need(m, of_experts[k], 0, 0, 0, 0, err);
                for (unsigned k = 0; k < (m->device->few_kernels ? 2u : 3u) && r == 0 && has_experts; k++)
                        if (has_own_kernel(&l->experts.router))
                                r = need(m, TDM_VK_ROUTER, router_rows[k], 0, 0, 0, err);
                if (r == 0)
                        r = need_side_kernels(m, l, err);
                if (r == 0)
                        r = need(m, TDM_VK_ROTATE, m->kv.type, tdm_vk_heads_of(l), 0, 0, err);
        }
        if (r == 0 && tdm_vk_has_streams(m))
                r = need_streams_kernels(m, err);
        if (r == 0)
                r = need(m, TDM_VK_NORM, TDM_VK_NORM_GATHER, m->output.act, tdm_vk_norm_per(m), 0, err);
        for (unsigned v = 1; v < n_norms && r == 0; v++)
                r = need(m, TDM_VK_NORM, norms[v], TDM_VK_ACT_NONE, tdm_vk_norm_per(m), 0, err);
        for (uint32_t phase = 0; phase < 2 && r == 0; phase++)
                r = need(m, TDM_VK_LOGITS, phase, 0, 0, 0, err);
        if (r == 0)
                r = need(m, TDM_VK_GATHER, 0, 0, 0, 0, err);
        return r ? r : tdm_vk_kernels_need_attend(m, err);
}

/* Kernels for matrix units first, together with all that has nothing to do with them: what they are proven for needs no
 * other. */
int tdm_vk_kernels_prepare_units(struct tdm_vk_model *m, struct tdm_error *err)
{
        int r;

        m->device->deferring = true;
        r = list_others(m, err);
        if (r == 0)
                r = list_matrices(m, true, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(m->device, err);
        if (r == 0)
                r = tdm_vk_prove(m->device, err);
        m->device->deferring = false;
        return r;
}

int tdm_vk_kernels_prepare_rest(struct tdm_vk_model *m, struct tdm_error *err)
{
        int r;

        m->device->deferring = true;
        r = list_matrices(m, false, err);
        if (r == 0 && m->f16_rows) /* in shapes that were tuned just now */
                r = tdm_vk_kernels_need_f16(m, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(m->device, err);
        m->device->deferring = false;
        return r == 0 && m->f16_rows ? tdm_vk_prove_f16(m->device, err) : r;
}
