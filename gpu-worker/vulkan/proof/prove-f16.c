/* Kernels for f16 matrix units are only used where they are proven, as those for integer ones are (prove.c): the
 * reference is matmul-f16.comp with eight rows and one panel, whose results must be the products of random weights and
 * rows (so the order of elements in registers is what fragments.glsl takes for granted, and f16 is kept as it is), and
 * every other must give its bits. */
#include <math.h>

#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/proof/proof.h"

/* Twelve segments of TDM_VK_F16_CHUNKS_MIN chunks and one of half as many, the others empty; all even, as a kernel may
 * want. Of types with units of 256 columns the last segment is whole. */
#define COLS ((12 * TDM_VK_F16_CHUNKS_MIN + TDM_VK_F16_CHUNKS_MIN / 2) * TDM_VK_CHUNK_COLS)
#define UNIT_COLS (13 * TDM_VK_F16_CHUNKS_MIN * TDM_VK_CHUNK_COLS)
#define N_PANELS 12u /* of each of two matrices beside each other */
#define N_EACH_OUT (N_PANELS * TDM_PANEL_ROWS)
#define N_OUT (2 * N_EACH_OUT)
#define N_ROWS 75u /* more than one workgroup has at most, and no multiple of 8 */
#define ROWS_ROOM 128u
#define PLACE (UINT64_C(5) << 19) /* of each thing in the staging buffer */
static const char what[] = "proving a kernel";
enum place { WEIGHTS, X, REFERENCE, Y, HIDDEN_REFERENCE, HIDDEN, N_PLACES };
static_assert(N_PLACES * PLACE <= TDM_VK_STAGE_BYTES && 2 * N_PANELS * COLS * TDM_PANEL_ROWS * 2ul <= PLACE,
              "there is room for weights of 16 bits");
#define MOST_ERROR 2e-5 /* of the root of the sum of the products' squares: f32's own is 3e-6 here */

static bool type_is_plain(uint32_t type)
{
        return type == TDM_TYPE_F16 || type == TDM_TYPE_BF16;
}

static uint32_t cols_of(uint32_t type)
{
        return tdm_subblock_info(type).unit_values == 256 ? UNIT_COLS : COLS;
}

static uint32_t panel_bytes_of(uint32_t type)
{
        return (uint32_t)tdm_weights_panel_bytes(type, cols_of(type));
}

/* tdm_fragment_factor() of the shaders; in a chunk the scales of outputs g and g + 8 take turns, two of each. */
static float fragment_factor(uint32_t type, uint32_t lane)
{
        return type != TDM_TYPE_Q4_0 ? 1 : lane < 8 ? 0x1p24f : 0x1p20f;
}

/* As fragments.glsl has them. Weights of F16 and BF16 are 2^-9 to 2^-6 or, some, less than 2^-14. Scales of Q8_0 are
 * 2^-9 to 2^-6, those that count of Q4_0 2^-15 to 2^-9, multiples of 2^-24, stored times fragment_factor(). */
static void random_inputs(struct tdm_vk_device *device, uint32_t type)
{
        uint8_t *map = device->stages[0].map, *panels = map + WEIGHTS * PLACE;
        uint16_t *rows = (uint16_t *)(map + X * PLACE);
        uint64_t state = 1;

        for (uint32_t panel = 0; panel < 2 * N_PANELS; panel++, panels += panel_bytes_of(type)) {
                if (tdm_subblock_type(type)) {
                        tdm_vk_prove_random_subblock(panels, type, cols_of(type), &state);
                        continue;
                }
                if (type_is_plain(type)) {
                        for (uint32_t i = 0; i < COLS * TDM_PANEL_ROWS; i++)
                                ((uint16_t *)panels)[i] =
                                        (uint16_t)((i % 61 == 0 ? 0 : 6 + tdm_vk_prove_random(&state) % 4) << 10 |
                                                   (tdm_vk_prove_random(&state) & 0x83ff));
                        continue;
                }
                for (uint32_t i = 0; i < panel_bytes_of(type); i++)
                        panels[i] = (uint8_t)tdm_vk_prove_random(&state);
                for (uint32_t i = 0; i < COLS / TDM_BLOCK_VALUES * TDM_PANEL_ROWS; i++)
                        ((uint16_t *)panels)[i] =
                                type == TDM_TYPE_Q4_0 ?
                                        tdm_f32_to_f16(ldexpf(512 + (float)(tdm_vk_prove_random(&state) % 512),
                                                              -24 + (int)(tdm_vk_prove_random(&state) % 7)) *
                                                       fragment_factor(type, i % 4 / 2 * 8)) :
                                        (uint16_t)((6 + tdm_vk_prove_random(&state) % 4) << 10 |
                                                   (tdm_vk_prove_random(&state) & 0x3ff));
        }
        for (uint32_t i = 0; i < ROWS_ROOM * cols_of(type); i++) /* of either sign, 2^-6 to 8 */
                rows[i] = (uint16_t)((9 + tdm_vk_prove_random(&state) % 9) << 10 |
                                     (tdm_vk_prove_random(&state) & 0x83ff));
}

static double weight_of(const uint8_t *panel, uint32_t type, uint32_t lane, uint32_t k)
{
        if (tdm_subblock_type(type))
                return tdm_vk_prove_subblock_weight(panel, type, cols_of(type), lane, k);
        if (type_is_plain(type)) {
                uint32_t word = k / 16 * 128 + (lane % 8 * 4 + k % 8 / 2) * 4 + lane / 8 * 2 + k / 8 % 2;

                return (double)tdm_f16_to_f32(((const uint16_t *)panel)[word * 2 + k % 2]);
        }

        const uint16_t *scales = (const uint16_t *)panel;
        const uint32_t *words = (const uint32_t *)(panel + COLS / TDM_BLOCK_VALUES * TDM_PANEL_ROWS * sizeof(uint16_t));
        uint32_t chunk = k / 64, j = k / 16 % 4, thread = lane % 8 * 4 + k % 8 / 2, late = k / 8 % 2;
        double scale = (double)(tdm_f16_to_f32(scales[chunk * 32 + lane % 8 * 4 + lane / 8 * 2 + k / 32 % 2]) /
                                fragment_factor(type, lane));
        int q = type == TDM_TYPE_Q4_0 ?
                        (int)(words[chunk * 128 + thread * 4 + j] >> (lane / 8 * 4 + late * 8 + k % 2 * 16) & 15) - 8 :
                        (int)(words[chunk * 256 + j / 2 * 128 + thread * 4 + j % 2 * 2 + lane / 8] >>
                                      (late * 8 + k % 2 * 16) &
                              255) -
                                128;

        return (double)tdm_f16_to_f32(tdm_f32_to_f16((float)(q * scale)));
}

static double value_of(const uint16_t *rows, uint32_t cols, uint32_t row, uint32_t k)
{
        uint32_t in_tile = k / 64 * 512 + k / 32 % 2 * 256 + (row % 8 * 4 + k % 8 / 2) * 8 + k / 16 % 2 * 4 +
                           k / 8 % 2 * 2 + k % 2;

        return (double)tdm_f16_to_f32(rows[row / 8 * (cols * 8) + in_tile]);
}

/* Every 101st element: each lane of a result, each kind of place of a row and column. */
static bool is_right(const struct tdm_vk_device *device, uint32_t type)
{
        const uint8_t *map = device->stages[0].map;
        const float *y = (const float *)(map + REFERENCE * PLACE);

        for (uint32_t i = 0; i < N_ROWS * N_OUT; i += 101) {
                uint32_t row = i / N_OUT, out = i % N_OUT;
                double sum = 0, squares = 0;

                for (uint32_t k = 0; k < cols_of(type); k++) {
                        double product = weight_of(map + WEIGHTS * PLACE +
                                                           (uint64_t)(out / TDM_PANEL_ROWS) * panel_bytes_of(type),
                                                   type, out % TDM_PANEL_ROWS, k) *
                                         value_of((const uint16_t *)(map + X * PLACE), cols_of(type), row, k);

                        sum += product;
                        squares += product * product;
                }
                if (!(fabs((double)y[i] - sum) <= MOST_ERROR * sqrt(squares)))
                        return false;
        }
        return true;
}

static struct tdm_vk_matmul_push push_of(const struct tdm_vk_device *device, uint32_t type, enum place y,
                                         enum place acts)
{
        uint64_t base = device->stages[0].address;

        return (struct tdm_vk_matmul_push){ .x = base + X * PLACE,
                                            .y = base + y * PLACE,
                                            .w0 = base + WEIGHTS * PLACE,
                                            .w1 = base + WEIGHTS * PLACE + N_PANELS * (uint64_t)panel_bytes_of(type),
                                            .panel1 = N_PANELS,
                                            .panel2 = UINT32_MAX,
                                            .panel_bytes = panel_bytes_of(type),
                                            .cols = cols_of(type),
                                            .n_out = N_OUT,
                                            .n_rows = N_ROWS,
                                            .y_stride = N_OUT,
                                            .y_scale = 1,
                                            .act_scale = 0x1p-3f,
                                            .acts = base + acts * PLACE };
}

#define REFERENCE_CONSTANTS(type)                                                                                      \
        {                                                                                                              \
                (type) | TDM_VK_FRAGMENTS, TDM_VK_MATMUL_F16_SHAPE(1, 1, 1, 0), 512, 0                                 \
        }

int tdm_vk_prove_f16_need(struct tdm_vk_device *device, uint32_t type, uint32_t gelu, struct tdm_error *err)
{
        const uint32_t reference[] = REFERENCE_CONSTANTS(type), after[] = { gelu - 1, TDM_VK_ACT_F16_AFTER, 0, 0 };
        int r = tdm_vk_pipeline_need(device, TDM_VK_MATMUL_F16, reference, err);

        return r || !gelu ? r : tdm_vk_pipeline_need(device, TDM_VK_GELU, after, err);
}

/* Makes the rows that the matrix behind reads: the activation of the reference's two halves. */
static int make_hidden(struct tdm_vk_device *device, uint32_t type, uint32_t activation, struct tdm_error *err)
{
        const struct tdm_vk_matmul_push push = push_of(device, type, REFERENCE, HIDDEN_REFERENCE);
        const struct tdm_vk_gelu_push gelu = {
                .y = push.y, .acts = push.acts, .d_ff = N_EACH_OUT, .act_scale = push.act_scale
        };

        memset(device->stages[0].map + HIDDEN_REFERENCE * PLACE, 0xff, PLACE);
        return tdm_vk_once_dispatch(device,
                                    tdm_vk_pipeline_get(device, TDM_VK_GELU, activation, TDM_VK_ACT_F16_AFTER, 0, 0),
                                    &gelu, sizeof(gelu), TDM_DIV_UP(N_EACH_OUT, 1024u), N_ROWS, what, err);
}

/* false: it is not what it must be. */
static int make_reference(struct tdm_vk_device *device, uint32_t type, bool *ret, struct tdm_error *err)
{
        const uint32_t c[] = REFERENCE_CONSTANTS(type);
        struct tdm_vk_pipeline *p = tdm_vk_pipeline_compiled(device, TDM_VK_MATMUL_F16, c[0], c[1], c[2], c[3]);
        const struct tdm_vk_matmul_push push = push_of(device, type, REFERENCE, HIDDEN_REFERENCE);
        int r = 0;

        *ret = false;
        if (!p)
                return 0;
        memset(device->stages[0].map + REFERENCE * PLACE, 0xff, PLACE);
        r = tdm_vk_once_dispatch(device, p, &push, sizeof(push), 2 * N_PANELS, TDM_DIV_UP(N_ROWS, 8u), what, err);
        *ret = r == 0 && is_right(device, type);
        p->tried = true;
        p->proven = *ret;
        return r;
}

/* Whether the first n_rows rows are the same. */
static bool same_rows(const struct tdm_vk_device *device, uint32_t n_rows, bool hidden)
{
        const uint8_t *map = device->stages[0].map;

        if (!hidden)
                return memcmp(map + REFERENCE * PLACE, map + Y * PLACE, (size_t)n_rows * N_OUT * sizeof(float)) == 0 &&
                       (n_rows != N_ROWS || memcmp(map + REFERENCE * PLACE, map + Y * PLACE, PLACE) == 0);
        if (n_rows == N_ROWS)
                return memcmp(map + HIDDEN_REFERENCE * PLACE, map + HIDDEN * PLACE, PLACE) == 0;
        for (uint32_t i = 0; i < n_rows * N_EACH_OUT; i += 8) { /* of a row: 16 bytes for each of its four threads */
                uint32_t k = i % N_EACH_OUT,
                         at = k / 64 * 1024 + k / 32 % 2 * 512 + i / N_EACH_OUT * 64 + k / 8 % 4 * 16;

                if (memcmp(map + HIDDEN_REFERENCE * PLACE + at, map + HIDDEN * PLACE + at, 16) != 0)
                        return false;
        }
        return true;
}

/* The row behind the first n_rows. */
static bool is_untouched(const struct tdm_vk_device *device, uint32_t n_rows, bool hidden)
{
        const uint8_t *map = device->stages[0].map;

        for (uint32_t i = 0; i < N_OUT * sizeof(float) && !hidden; i++)
                if (map[Y * PLACE + n_rows * N_OUT * sizeof(float) + i] != 0xff)
                        return false;
        for (uint32_t i = 0; i < N_EACH_OUT * 2 && hidden; i++)
                if (map[HIDDEN * PLACE + i / 128 * 1024 + i / 64 % 2 * 512 + n_rows * 64 + i % 64] != 0xff)
                        return false;
        return true;
}

/* ---- of experts ---- */

/* For a kernel without GELU, the reference's two matrices are two experts, and each row is a slot of both, in another
 * order. With GELU they are the gate and up of the second expert. */
#define N_SLOTS (2 * N_ROWS)

static uint32_t row_of_slot(uint32_t slot)
{
        return slot < N_ROWS ? slot * 7 % N_ROWS : (slot - N_ROWS) * 11 % N_ROWS;
}

static bool same_slots(const struct tdm_vk_device *device, const uint32_t *rows, uint32_t n_slots, bool gelu)
{
        const uint8_t *map = device->stages[0].map;

        for (uint32_t slot = 0; slot < n_slots; slot++) {
                uint32_t row = rows[slot], second = n_slots == 2 ? slot : slot / N_ROWS;

                if (!gelu && memcmp(map + REFERENCE * PLACE + (row * N_OUT + second * N_EACH_OUT) * sizeof(float),
                                    map + Y * PLACE + (uint64_t)slot * N_EACH_OUT * sizeof(float),
                                    N_EACH_OUT * sizeof(float)) != 0)
                        return false;
                for (uint32_t k = 0; k < N_EACH_OUT && gelu; k += 8) {
                        uint32_t at = k / 64 * 1024 + k / 32 % 2 * 512 + k / 8 % 4 * 16;

                        if (memcmp(map + HIDDEN_REFERENCE * PLACE + row / 8 * (N_EACH_OUT * 16) + row % 8 * 64 + at,
                                   map + HIDDEN * PLACE + slot / 8 * (N_EACH_OUT * 16) + slot % 8 * 64 + at, 16) != 0)
                                return false;
                }
        }
        return true;
}

static int prove_experts(struct tdm_vk_device *device, uint32_t type, struct tdm_vk_pipeline *p, struct tdm_error *err)
{
        const struct tdm_vk_matmul_push dense = push_of(device, type, Y, HIDDEN);
        bool single = p->shader == TDM_VK_MATVEC_F16_EXPERTS, wide = p->shader == TDM_VK_MATMUL_F16_WIDE_EXPERTS,
             gelu = TDM_VK_F16_SHAPE_GELU(p->constants[1]);
        uint32_t shape = p->constants[1], item_rows = single ? 1 : 8 * TDM_VK_MATMUL_F16_TILES(shape),
                 panels = single ? TDM_VK_MATVEC_F16_GROUPS(shape) * TDM_VK_MATVEC_F16_PANELS(shape) :
                          wide   ? p->constants[2] / 16 :
                                   TDM_VK_MATMUL_F16_PANELS(shape),
                 first_expert = gelu ? 1 : 0, n_experts = gelu ? 1 : 2,
                 n_slots = single ? n_experts : n_experts * N_ROWS, n_items = 0;
        uint64_t matrix_bytes = N_PANELS * (uint64_t)panel_bytes_of(type);
        uint8_t *lists = device->stages[0].map + (HIDDEN + 1) * PLACE;
        uint32_t *slot_rows = (uint32_t *)lists, *items = slot_rows + TDM_ALIGN_UP(N_SLOTS, 4u),
                 *first_item = items + TDM_VK_ITEMS_HEAD / sizeof(uint32_t);
        uint64_t lists_at = device->stages[0].address + (HIDDEN + 1) * PLACE;
        const struct tdm_vk_experts_f16_push push = { .x = dense.x,
                                                      .y = dense.y,
                                                      .w0 = dense.w0 - first_expert * matrix_bytes,
                                                      .w1 = dense.w1 - first_expert * matrix_bytes,
                                                      .acts = dense.acts,
                                                      .items = lists_at + ((uint8_t *)items - lists),
                                                      .slot_rows = lists_at,
                                                      .panel1 = N_PANELS,
                                                      .panel_bytes = dense.panel_bytes,
                                                      .cols = dense.cols,
                                                      .n_out = gelu ? 2 * N_EACH_OUT : N_EACH_OUT,
                                                      .y_stride = N_EACH_OUT,
                                                      .y_scale = dense.y_scale,
                                                      .act_scale = dense.act_scale };
        int r;

        for (uint32_t slot = 0; slot < n_slots; slot++)
                slot_rows[slot] = single ? 0 : row_of_slot(slot);
        for (uint32_t slot = 0, n; slot < n_slots && !single; slot += n) {
                n = TDM_MIN(item_rows, N_ROWS - slot % N_ROWS);
                memcpy(first_item + n_items++ * 4, (const uint32_t[]){ first_expert + slot / N_ROWS, slot, n, 0 },
                       4 * sizeof(uint32_t));
        }
        items[0] = n_items;
        for (uint32_t i = 0; i < n_experts && single; i++)
                items[i] = first_expert + i;
        memset(device->stages[0].map + Y * PLACE, 0xff, PLACE);
        memset(device->stages[0].map + HIDDEN * PLACE, 0xff, PLACE);
        /* one workgroup more than there are items */
        r = tdm_vk_once_dispatch(device, p, &push, sizeof(push), TDM_DIV_UP(N_PANELS, gelu ? panels / 2 : panels),
                                 single ? n_slots : n_items + 1, what, err);
        p->proven = r == 0 && same_slots(device, slot_rows, n_slots, gelu);
        return r;
}

static int prove_kernel(struct tdm_vk_device *device, uint32_t type, struct tdm_vk_pipeline *p, struct tdm_error *err)
{
        bool wide = p->shader == TDM_VK_MATMUL_F16_WIDE, single = p->shader == TDM_VK_MATVEC_F16,
             gelu = TDM_VK_F16_SHAPE_GELU(p->constants[1]);
        uint32_t shape = p->constants[1], rows = 8 * TDM_VK_MATMUL_F16_TILES(shape), /* of a workgroup */
                panels = single ? TDM_VK_MATVEC_F16_GROUPS(shape) * TDM_VK_MATVEC_F16_PANELS(shape) :
                         wide   ? p->constants[2] / 16 :
                                  TDM_VK_MATMUL_F16_PANELS(shape);
        struct tdm_vk_matmul_push push = push_of(device, type, Y, HIDDEN);
        int r;

        p->tried = true;
        if (gelu) {
                r = make_hidden(device, type, TDM_VK_F16_SHAPE_ACTIVATION(shape), err);
                if (r != 0)
                        return r;
        }
        if (tdm_vk_experts_f16_kernel(p->shader))
                return prove_experts(device, type, p, err);
        if (single)
                push.n_rows = rows = TDM_VK_MATVEC_F16_ROWS(p->constants[3]);
        memset(device->stages[0].map + Y * PLACE, 0xff, PLACE);
        memset(device->stages[0].map + HIDDEN * PLACE, 0xff, PLACE);
        r = tdm_vk_once_dispatch(device, p, &push, sizeof(push),
                                 TDM_DIV_UP(gelu ? N_PANELS : 2 * N_PANELS, gelu ? panels / 2 : panels),
                                 TDM_DIV_UP(push.n_rows, rows), what, err);
        p->proven = r == 0 && same_rows(device, push.n_rows, gelu);
        if (!p->proven || !single || rows < 4)
                return r;
        /* with a row that is not there: nothing comes of it */
        push.n_rows = rows - 1;
        memset(device->stages[0].map + Y * PLACE, 0xff, PLACE);
        memset(device->stages[0].map + HIDDEN * PLACE, 0xff, PLACE);
        r = tdm_vk_once_dispatch(device, p, &push, sizeof(push),
                                 TDM_DIV_UP(gelu ? N_PANELS : 2 * N_PANELS, gelu ? panels / 2 : panels), 1, what, err);
        p->proven = r == 0 && same_rows(device, push.n_rows, gelu) && is_untouched(device, push.n_rows, gelu);
        return r;
}

static bool is_untried(const struct tdm_vk_pipeline *p, uint32_t type)
{
        return (p->shader == TDM_VK_MATVEC_F16 || p->shader == TDM_VK_MATMUL_F16 ||
                p->shader == TDM_VK_MATMUL_F16_WIDE || tdm_vk_experts_f16_kernel(p->shader)) &&
               p->pipeline && !p->tried && p->constants[0] == (type | TDM_VK_FRAGMENTS);
}

static int prove_type(struct tdm_vk_device *device, uint32_t type, struct tdm_error *err)
{
        bool made = false, right = true;
        int r = 0;

        for (unsigned i = 0; i < device->n_pipelines && r == 0 && right; i++) {
                if (!is_untried(&device->pipelines[i], type))
                        continue;
                if (!made) {
                        random_inputs(device, type);
                        r = make_reference(device, type, &right, err);
                }
                made = true;
                if (r == 0 && right && is_untried(&device->pipelines[i], type)) /* the reference is one of them */
                        r = prove_kernel(device, type, &device->pipelines[i], err);
        }
        return r;
}

int tdm_vk_prove_f16(struct tdm_vk_device *device, struct tdm_error *err)
{
#define TYPE(name, type, kind) TDM_TYPE_##type,
        static const uint32_t types[] = { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0, TDM_TYPE_F16, TDM_TYPE_BF16,
                                          TDM_SUBBLOCK_TYPES_OF_GPUS(TYPE) };
        int r = 0;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types) && r == 0; i++)
                r = prove_type(device, types[i], err);
        return r;
}
