/* Which kernels can compute a product of rows of F16 (f16-rows.c), the best first. All but the spare ones must be
 * proven before a model's rows are F16. */
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels-private.h"

#define WIDE_F16_PANELS_MIN 1500u            /* with which MATMUL_F16_WIDE is faster for 17 to 32 rows too */
#define WIDE_F16_SUBGROUPS_MAX 11u           /* of a workgroup for this many rows: what its registers leave room for */
#define WIDE_F16_SUBGROUPS_TWO_CHUNKS_MAX 8u /* with which types of engine/weights/subblock.h have two on their way */

#define WIDE_F16_TILES 8u       /* of 8 rows a workgroup, of more than TDM_VK_F16_ROWS_MAX rows */
#define WIDE_F16_TILES_FEW 6u   /* where that leaves less idle */
#define WIDE_F16_ROWS_MANY 512u /* of a whole step of a prompt */

#define SHARED_K_ROWS_MAX 256u /* up to here MATMUL_F16 may be faster than MATMUL_F16_WIDE */

#define F16_SHARED_BYTES (48u << 10) /* that a device with such units has for a workgroup: device/gpu.c */

/* How many subgroups have segments of K, if each takes `rounds` of them. */
static uint32_t f16_subgroups(const struct tdm_vk_matrix *a, uint32_t rounds)
{
        uint32_t n_segments = TDM_DIV_UP(a->cols / TDM_VK_CHUNK_COLS, TDM_VK_SEGMENT_CHUNKS(a->cols));

        return TDM_DIV_UP(n_segments <= 14 ? 14u : TDM_VK_SEGMENTS, rounds);
}

/* Bytes of s_table in shared memory (shaders/common/f16-subblock.glsl). */
static uint32_t table_bytes(const struct tdm_vk_matrix *a)
{
        uint32_t type = TDM_VK_FORM_TYPE(a->type);

        return type == TDM_TYPE_IQ4_NL || type == TDM_TYPE_IQ4_XS ? 1024 : tdm_subblock_type(type) ? 4 : 0;
}

bool tdm_vk_f16_shaped(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                       const struct tdm_vk_shape *shape, uint32_t gelu, uint32_t rows, uint32_t ret[TDM_VK_N_CONSTANTS])
{
        uint32_t parts = f16_subgroups(a, TDM_MAX(shape->ahead, 1)), segments = parts * shape->ahead,
                 chunks = TDM_MAX(TDM_VK_SEGMENT_CHUNKS(a->cols), TDM_VK_F16_CHUNKS_MIN),
                 all = TDM_MAX(a->cols / TDM_VK_CHUNK_COLS, TDM_VK_F16_CHUNKS_ALL_MIN), /* a row in shared memory */
                in_row = rows == 1 ? segments * chunks : TDM_MIN(segments * chunks, all),
                 slots = rows == 1 ? segments : segments - shape->ahead + 1; /* sums of segments there */

        ret[0] = a->type;
        ret[1] = TDM_VK_MATVEC_F16_SHAPE((uint32_t)shape->groups, (uint32_t)shape->panels, (uint32_t)shape->ahead,
                                         (uint32_t)shape->sets, gelu);
        ret[2] = parts * shape->groups * 32;
        ret[3] = TDM_VK_MATVEC_F16_ROOM(chunks, rows == 1 ? 0 : in_row, rows);
        return shape->groups > 0 && ret[2] <= device->properties.limits.maxComputeWorkGroupInvocations &&
               /* s_part, s_row and s_table */
               rows * (slots * shape->groups * shape->panels * 64u + in_row * 128) + table_bytes(a) <= F16_SHARED_BYTES;
}

enum tdm_vk_shader tdm_vk_f16_tile_shader(const struct tdm_vk_shape *shape)
{
        return shape->sets > 1 ? TDM_VK_MATVEC_F16 : TDM_VK_MATMUL_F16;
}

bool tdm_vk_f16_tile_shaped(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                            const struct tdm_vk_shape *shape, uint32_t gelu, uint32_t rows,
                            uint32_t ret[TDM_VK_N_CONSTANTS])
{
        uint32_t subgroups = shape->groups > 0 ? f16_subgroups(a, shape->ahead) : 0;

        if (tdm_vk_f16_tile_shader(shape) == TDM_VK_MATVEC_F16)
                return rows <= TDM_VK_FLAGGED_ROWS && tdm_vk_f16_shaped(device, a, shape, gelu, rows, ret);
        ret[0] = a->type;
        ret[1] = TDM_VK_MATMUL_F16_SHAPE(1u, (uint32_t)shape->panels, (uint32_t)shape->ahead, gelu);
        ret[2] = subgroups * 32;
        ret[3] = 0;
        return subgroups > 0 && ret[2] <= device->properties.limits.maxComputeWorkGroupInvocations &&
               /* s_part and s_table */
               subgroups * (gelu ? shape->panels / 2u : shape->panels) * (8 * 20 * 4) + table_bytes(a) <=
                       F16_SHARED_BYTES;
}

/* The panels of each matrix that a workgroup computes. */
static uint32_t panels_of(const struct tdm_vk_shape *shape, uint32_t gelu)
{
        return (uint32_t)shape->groups * shape->panels / (gelu ? 2 : 1);
}

static struct tdm_vk_kernel f16_single(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                       const struct tdm_vk_shape *shape, uint32_t gelu)
{
        struct tdm_vk_kernel k = { .shader = TDM_VK_MATVEC_F16, .panels = panels_of(shape, gelu), .rows = 1 };

        k.fits = tdm_vk_f16_shaped(device, a, shape, gelu, 1, k.constants);
        return k;
}

/* The kernel for several rows: in the shape that was found best, or in the first that fits where nothing was measured.
 * false: there is none. */
static bool f16_rows(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                     uint32_t n_rows, uint32_t gelu, struct tdm_vk_kernel *ret)
{
        uint32_t rows = tdm_vk_rows_class(n_rows);
        const struct tdm_vk_tuned key = { .shader = TDM_VK_TUNED_ROWS(gelu ? TDM_VK_MATVEC_GELU : TDM_VK_MATVEC, rows),
                                          .act = a->act };
        const struct tdm_vk_tuned *tuned = tdm_vk_tuned(device, key.shader, a, gelu ? n_panels / 2 : n_panels);
        const struct tdm_vk_shape *shapes = NULL;
        unsigned n = 0;

        if (rows < 2 || rows > TDM_VK_FLAGGED_ROWS)
                return false;
        if (tuned && tuned->shape.groups > 0) {
                shapes = &tuned->shape;
                n = 1;
        } else if (tdm_vk_few_rows_forced() == TDM_VK_ROWS_FORCED_ON)
                n = tdm_vk_tuned_shapes(&key, &shapes);
        for (unsigned i = 0; i < n; i++) {
                *ret = (struct tdm_vk_kernel){
                        .shader = TDM_VK_MATVEC_F16, .panels = panels_of(&shapes[i], gelu), .rows = rows, .spare = true
                };
                ret->fits = tdm_vk_f16_shaped(device, a, &shapes[i], gelu, rows, ret->constants);
                if (ret->fits)
                        return true;
        }
        return false;
}

/* The shape that was found best (tune.c), where it is proven: else the rule's, which always is. false: none. */
static bool f16_tuned(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                      uint32_t gelu, struct tdm_vk_kernel *ret)
{
        const struct tdm_vk_tuned *tuned =
                tdm_vk_tuned(device, gelu ? TDM_VK_MATVEC_GELU : TDM_VK_MATVEC, a, gelu ? n_panels / 2 : n_panels);

        if (!tuned)
                return false;
        *ret = f16_single(device, a, &tuned->shape, gelu);
        ret->spare = true;
        return ret->fits;
}

/* The kernel for up to eight rows that are not flagged: in the shape that was found best; in tests, without measuring,
 * in the first of MATVEC_F16. false: there is none, and the rule's shape is taken. */
static bool f16_tile_tuned(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                           uint32_t n_rows, uint32_t gelu, struct tdm_vk_kernel *ret)
{
        uint32_t rows = tdm_vk_rows_class(n_rows);
        const struct tdm_vk_tuned key = { .shader = TDM_VK_TUNED_ROWS(TDM_VK_MATMUL_F16, rows) |
                                                    (gelu ? TDM_VK_TUNED_GELU : 0) };
        const struct tdm_vk_tuned *tuned =
                rows < 2 ? NULL : tdm_vk_tuned(device, key.shader, a, gelu ? n_panels / 2 : n_panels);
        const struct tdm_vk_shape *shapes = NULL;
        unsigned n = 0;

        if (tuned) {
                shapes = &tuned->shape;
                n = 1;
        } else if (rows >= 2 && tdm_vk_few_rows_forced() == TDM_VK_ROWS_FORCED_APART)
                n = tdm_vk_tuned_shapes(&key, &shapes);
        for (unsigned i = 0; i < n; i++) {
                enum tdm_vk_shader shader = tdm_vk_f16_tile_shader(&shapes[i]);

                if (!tuned && shader == TDM_VK_MATMUL_F16)
                        continue;
                *ret = (struct tdm_vk_kernel){ .shader = shader,
                                               .panels = panels_of(&shapes[i], gelu),
                                               .rows = shader == TDM_VK_MATMUL_F16 ? 8 : rows,
                                               .spare = true };
                ret->fits = tdm_vk_f16_tile_shaped(device, a, &shapes[i], gelu, rows, ret->constants);
                if (ret->fits)
                        return true;
        }
        return false;
}

unsigned tdm_vk_f16_rows_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                                 uint32_t n_rows, uint32_t gelu, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES])
{
        return tdm_vk_is_f16(a) && f16_rows(device, a, n_panels, n_rows, gelu, ret) ? 1 : 0;
}

/* Weights of 16 bits are on their way in four times the registers that Q4_0's take. */
static bool matrix_is_plain(const struct tdm_vk_matrix *a)
{
        return tdm_vk_type_plain(TDM_VK_FORM_TYPE(a->type));
}

/* n_panels: of all that the dispatch multiplies, with GELU of both. Where there are few, a workgroup takes as few of
 * them as let all workgroups run at once: more would leave each subgroup fewer registers for what is on its way. Else
 * it takes two, or four for more than 8 rows. Up to 16 rows one panel each was faster up to 264 panels, measured with
 * Q4_0 alone. */
static struct tdm_vk_kernel f16_few(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                    uint32_t n_panels, uint32_t n_rows, uint32_t gelu)
{
        uint32_t tiles = n_rows <= 8 ? 1 : n_rows <= 16 ? 2 : 4, panels = tiles > 1 ? 4 : 2, rounds;

        if (n_panels <= 3 * TDM_VK_UNITS_AT_ONCE && !gelu)
                panels = tiles == 4                           ? TDM_DIV_UP(n_panels, TDM_VK_UNITS_AT_ONCE) :
                         n_panels <= 2 * TDM_VK_UNITS_AT_ONCE ? 1 :
                                                                3;
        if (matrix_is_plain(a))
                panels = TDM_MIN(panels, 2u);
        rounds = tiles == 4 || n_panels >= 1024 || (tiles == 2 && n_panels > 3 * TDM_VK_UNITS_AT_ONCE) ? 2 : 1;
        if (n_rows == 1)
                return f16_single(device, a,
                                  &(struct tdm_vk_shape){
                                          .panels = (uint8_t)panels, .ahead = (uint8_t)rounds, .sets = 2, .groups = 1 },
                                  gelu);
        return (struct tdm_vk_kernel){ .shader = TDM_VK_MATMUL_F16,
                                       .constants = { a->type, TDM_VK_MATMUL_F16_SHAPE(tiles, panels, rounds, gelu),
                                                      f16_subgroups(a, rounds) * 32, 0 },
                                       .panels = gelu ? panels / 2 : panels,
                                       .rows = tiles * 8,
                                       .fits = true };
}

/* The number of subgroups with which all multiprocessors work to the end, in one wave of workgroups or in several. */
static uint32_t wide_subgroups(uint32_t n_panels)
{
        uint32_t at_once = 2 * TDM_VK_UNITS_AT_ONCE, times = TDM_DIV_UP(n_panels, at_once * WIDE_F16_SUBGROUPS_MAX);

        return TDM_DIV_UP(n_panels, at_once * times);
}

/* Of these types a gate and an up of many rows have two chunks on their way, which takes 3 to 13% less time. Others
 * are slower so. */
static bool many_rows_have_two(const struct tdm_vk_matrix *a, uint32_t gelu)
{
        uint32_t type = TDM_VK_FORM_TYPE(a->type);

        return gelu && (type == TDM_TYPE_Q2_K || type == TDM_TYPE_Q5_K);
}

/* How many workgroups each multiprocessor has, times 100. */
static uint64_t groups_of_unit(uint32_t n_panels, uint32_t panels, uint32_t n_rows, uint32_t rows)
{
        return (uint64_t)TDM_DIV_UP(n_panels, panels) * TDM_DIV_UP(n_rows, rows) * 100 / TDM_VK_UNITS_AT_ONCE;
}

/* Nanoseconds of MATMUL_F16_WIDE for a chunk of K. Fitted to an H200's, as what follows. */
static uint64_t wide_chunk_ns(uint64_t groups, uint32_t tiles)
{
        return TDM_MAX(650 + groups, 49 * groups / 10) * (tiles == WIDE_F16_TILES_FEW ? 80 : 100) / 100;
}

/* The same in units of its own, to compare numbers of tiles. Two workgroups run on a multiprocessor at once. Of more,
 * the last run alone. */
static uint64_t wide_tiles_cost(const struct tdm_vk_matrix *a, uint32_t n_panels, uint32_t panels, uint32_t n_rows,
                                uint32_t gelu, uint32_t tiles)
{
        uint64_t groups = groups_of_unit(n_panels, panels, n_rows, tiles * 8),
                 cost = groups <= 200 ? wide_chunk_ns(groups, WIDE_F16_TILES) : 543 + 434 * groups / 100;

        return cost * (tiles != WIDE_F16_TILES_FEW                        ? 100 :
                       gelu && TDM_VK_FORM_TYPE(a->type) == TDM_TYPE_Q4_0 ? 90 :
                                                                            80);
}

/* Tiles of 8 rows that a workgroup of MATMUL_F16_WIDE has. Of more rows than SHARED_K_ROWS_MAX all have as many as a
 * whole step has. */
static uint32_t wide_tiles(const struct tdm_vk_matrix *a, uint32_t n_panels, uint32_t panels, uint32_t n_rows,
                           uint32_t gelu)
{
        if (n_rows <= TDM_VK_F16_ROWS_MAX || matrix_is_plain(a)) /* weights of 16 bits leave no registers for more */
                return 4;
        if (n_rows > SHARED_K_ROWS_MAX)
                n_rows = WIDE_F16_ROWS_MANY;
        return wide_tiles_cost(a, n_panels, panels, n_rows, gelu, WIDE_F16_TILES_FEW) <
                               wide_tiles_cost(a, n_panels, panels, n_rows, gelu, WIDE_F16_TILES) ?
                       WIDE_F16_TILES_FEW :
                       WIDE_F16_TILES;
}

/* n_panels: with GELU of both matrices. */
static struct tdm_vk_kernel f16_wide(const struct tdm_vk_matrix *a, uint32_t n_panels, uint32_t n_rows, uint32_t gelu)
{
        /* Registers for two chunks at once: types of 16 bits leave none, those of engine/weights/subblock.h where a
         * workgroup has few subgroups. */
        bool few = n_rows <= TDM_VK_F16_ROWS_MAX;
        uint32_t subgroups = few ? wide_subgroups(n_panels) : 4, threads = 32 * subgroups,
                 tiles = wide_tiles(a, n_panels, 2 * subgroups, n_rows, gelu);
        bool two = (few || many_rows_have_two(a, gelu)) && !matrix_is_plain(a) &&
                   (!tdm_subblock_type(TDM_VK_FORM_TYPE(a->type)) || subgroups <= WIDE_F16_SUBGROUPS_TWO_CHUNKS_MAX) &&
                   a->cols % (2 * TDM_VK_CHUNK_COLS) == 0 && TDM_VK_SEGMENT_CHUNKS(a->cols) % 2 == 0;

        return (struct tdm_vk_kernel){ .shader = TDM_VK_MATMUL_F16_WIDE,
                                       .constants = { a->type, TDM_VK_MATMUL_F16_WIDE_SHAPE(tiles, two ? 2u : 1u, gelu),
                                                      threads, 0 },
                                       .panels = threads / 32 * (gelu ? 1 : 2),
                                       .rows = tiles * 8,
                                       .fits = true };
}

/* Whether MATMUL_F16 is faster for more rows than one workgroup has: its workgroups share K among their subgroups, and
 * one after the other runs on a multiprocessor. A subgroup of MATMUL_F16_WIDE passes all of K, however few workgroups
 * there are, but weights are unpacked for twice as many rows. Nanoseconds, fitted to an H200's. */
static bool shared_k_is_faster(const struct tdm_vk_matrix *a, uint32_t n_panels, uint32_t n_rows,
                               const struct tdm_vk_kernel *shared_k, const struct tdm_vk_kernel *wide)
{
        uint64_t chunks = a->cols / TDM_VK_CHUNK_COLS,
                 groups = groups_of_unit(n_panels, wide->panels, n_rows, wide->rows),
                 turns = TDM_DIV_UP(groups_of_unit(n_panels, shared_k->panels, n_rows, shared_k->rows), UINT64_C(100));

        return turns * (6000 + 31 * shared_k->panels * chunks) < 3000 + wide_chunk_ns(groups, wide->rows / 8) * chunks;
}

/* Found on an H200. */
static struct tdm_vk_kernel f16_rule(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                     uint32_t n_panels, uint32_t n_rows, uint32_t gelu)
{
        const struct tdm_vk_kernel few = f16_few(device, a, n_panels, n_rows, gelu),
                                   wide = f16_wide(a, n_panels, n_rows, gelu);

        if (n_rows <= 16 || (n_rows <= TDM_VK_F16_ROWS_MAX && n_panels < WIDE_F16_PANELS_MIN))
                return few;
        return !gelu && n_panels < WIDE_F16_PANELS_MIN && n_rows > TDM_VK_F16_ROWS_MAX && n_rows <= SHARED_K_ROWS_MAX &&
                               shared_k_is_faster(a, n_panels, n_rows, &few, &wide) ?
                       few :
                       wide;
}

unsigned tdm_vk_f16_kernels(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a, uint32_t n_panels,
                            uint32_t n_rows, uint32_t gelu, struct tdm_vk_kernel ret[TDM_VK_CANDIDATES])
{
        unsigned n = (n_rows == 1 ? f16_tuned(device, a, n_panels, gelu, ret) :
                                    f16_tile_tuned(device, a, n_panels, n_rows, gelu, ret)) ?
                             1 :
                             0;

        ret[n] = f16_rule(device, a, n_panels, n_rows, gelu);
        return n + 1;
}

/* ---- of experts ---- */

/* Slots of an item by how many an expert has on average: more than there are would be multiplied in vain. */
uint32_t tdm_vk_f16_item_rows(const struct tdm_vk_experts *e, uint32_t n_rows)
{
        uint32_t average = n_rows * e->n_used / e->n;

        return n_rows == 1 ? 1 : average < 6 ? 8 : average < 14 ? 16 : average < 48 ? 32 : 64;
}

/* gelu: of a layer's gate, with up beside it. Found on an H200. */
struct tdm_vk_kernel tdm_vk_expert_kernel(const struct tdm_vk_device *device, const struct tdm_vk_matrix *a,
                                          uint32_t item_rows, uint32_t gelu)
{
        /* of a short K a subgroup has little to do: fewer of them, with more segments each */
        bool is_short = TDM_VK_SEGMENT_CHUNKS(a->cols) == 1;
        const struct tdm_vk_shape shape = {
                .panels = 2, .ahead = is_short ? 4 : 2, .sets = 2, .groups = is_short ? 4 : 1
        };
        uint32_t tiles = item_rows / 8, panels = gelu && !matrix_is_plain(a) ? 4 : 2, rounds = 4,
                 threads = item_rows <= 32 ? 64 : 128;
        struct tdm_vk_kernel k;

        if (item_rows == 1) {
                k = f16_single(device, a, &shape, gelu);
                k.shader = TDM_VK_MATVEC_F16_EXPERTS;
                return k;
        }
        if (item_rows <= 16)
                return (struct tdm_vk_kernel){ .shader = TDM_VK_MATMUL_F16_EXPERTS,
                                               .constants = { a->type,
                                                              TDM_VK_MATMUL_F16_SHAPE(tiles, panels, rounds, gelu),
                                                              f16_subgroups(a, rounds) * 32, 0 },
                                               .panels = gelu ? panels / 2 : panels,
                                               .rows = item_rows,
                                               .fits = true };
        return (struct tdm_vk_kernel){ .shader = TDM_VK_MATMUL_F16_WIDE_EXPERTS,
                                       .constants = { a->type, TDM_VK_MATMUL_F16_WIDE_SHAPE(tiles, 1u, gelu), threads,
                                                      0 },
                                       .panels = threads / 32 * (gelu ? 1 : 2),
                                       .rows = item_rows,
                                       .fits = true };
}

/* Whether gate, up and what follows them are one kernel: they are of one type, then. */
bool tdm_vk_experts_fuse(const struct tdm_vk_experts *e)
{
        return e->gate.type == e->up.type;
}
