/* Kernels that are only used where they are proven: those for integer matrix units must give the bits of the one that
 * every device has, on random weights and rows with odd tails, on this very device and driver. Where they do not, or
 * where there are no such units, many rows take the other: slower, never different. Runs when a model is loaded, for
 * each kernel once. */
#include <assert.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/proof/proof.h"

#define N_BLOCKS 37u   /* of a row: segments of 3, the last ones short or empty */
#define N_BLOCKS_K 40u /* where a type's blocks come by eights */
#define N_OUT 200u     /* 13 panels, the last half empty: two workgroups of the largest tile, either way */
#define N_ROWS 267u
#define SCALE_SUMS_ROWS 288u
#define PLACE (UINT64_C(2) << 20) /* of each thing in the staging buffer */

static uint32_t blocks_of(uint32_t type)
{
        return tdm_subblock_info(type).unit_values > TDM_BLOCK_VALUES ? N_BLOCKS_K : N_BLOCKS;
}

static uint32_t cols_of(uint32_t type)
{
        return blocks_of(type) * TDM_BLOCK_VALUES;
}

uint32_t tdm_vk_prove_random(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(*state >> 32);
}

static uint16_t random_scale(uint64_t *state) /* 2^-8 to 2^-4 */
{
        return (uint16_t)((7 + tdm_vk_prove_random(state) % 4) << 10 | (tdm_vk_prove_random(state) & 0x3ff));
}

/* The numbers in front of a panel: scales of blocks, or what engine/weights/subblock.h has there. */
static void random_front(uint8_t *panel, uint32_t type, uint64_t *state)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        uint32_t halves = tdm_subblock_type(type) ? info.halves : 1,
                 units = cols_of(type) / TDM_MAX(info.unit_values, TDM_BLOCK_VALUES);

        for (uint32_t i = 0; i < units * TDM_PANEL_ROWS && halves == 0; i++) /* exponents of MXFP4 */
                panel[i] = (uint8_t)(120 + tdm_vk_prove_random(state) % 6);
        for (uint32_t i = 0; i < units * halves * TDM_PANEL_ROWS; i++)
                if (type != TDM_TYPE_IQ4_XS || i / TDM_PANEL_ROWS % 2 == 0) /* the others are bits */
                        ((uint16_t *)panel)[i] = random_scale(state);
}

static void random_weights(uint8_t *panels, uint32_t type, uint64_t *state)
{
        uint64_t panel_bytes = tdm_weights_panel_bytes(type, cols_of(type));

        for (uint32_t panel = 0; panel < TDM_DIV_UP(N_OUT, TDM_PANEL_ROWS); panel++, panels += panel_bytes) {
                for (uint64_t i = 0; i < panel_bytes; i++)
                        panels[i] = (uint8_t)tdm_vk_prove_random(state);
                random_front(panels, type, state);
        }
}

/* scale_sums: as in tdm_vk_matmul_push. */
static void random_rows(uint8_t *rows, uint32_t *scale_sums, uint32_t n_blocks, uint32_t act, uint64_t *state)
{
        uint32_t cols = n_blocks * TDM_BLOCK_VALUES, most = act == TDM_VK_ACT_I8 ? 127 : TDM_VK_I16_MOST;

        for (uint32_t r = 0; r < N_ROWS; r++, rows += TDM_VK_ACT_STRIDE(act, cols))
                for (uint32_t b = 0; b < n_blocks; b++) {
                        int32_t sum = 0;

                        for (uint32_t i = b * TDM_BLOCK_VALUES; i < (b + 1) * TDM_BLOCK_VALUES; i++) {
                                int32_t q = (int32_t)(tdm_vk_prove_random(state) % (2 * most + 1)) - (int32_t)most,
                                        high = (q + TDM_VK_I16_STEP / 2) >> 7;

                                sum += q;
                                rows[i] = (uint8_t)(act == TDM_VK_ACT_I8 ? q : high);
                                if (act == TDM_VK_ACT_I16)
                                        rows[cols + i] = (uint8_t)(q - TDM_VK_I16_STEP * high);
                        }
                        ((float *)(rows + TDM_VK_ACT_SCALES(act, cols)))[b] =
                                (float)(1 + tdm_vk_prove_random(state) % 1000) / 65536.0f;
                        ((int32_t *)(rows + TDM_VK_ACT_SUMS(act, cols)))[b] = sum;
                        memcpy(scale_sums + (b * SCALE_SUMS_ROWS + r) * 2,
                               rows + TDM_VK_ACT_SCALES(act, cols) + b * sizeof(float), sizeof(float));
                        scale_sums[(b * SCALE_SUMS_ROWS + r) * 2 + 1] = (uint32_t)sum;
                }
}

/* Runs a kernel over the staging buffer, its outputs to `place`. */
static int run_kernel(struct tdm_vk_device *device, struct tdm_vk_pipeline *pipeline, uint32_t type, uint32_t x,
                      uint32_t y, unsigned place, struct tdm_error *err)
{
        const struct tdm_vk_buffer *stage = &device->stages[0];
        const struct tdm_vk_matmul_push push = {
                .x = stage->address + PLACE,
                .y = stage->address + place * PLACE,
                .w0 = stage->address,
                .scale_sums = stage->address + 4 * PLACE,
                .scale_sums_rows = SCALE_SUMS_ROWS,
                .panel1 = UINT32_MAX,
                .panel2 = UINT32_MAX,
                .panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, cols_of(type)),
                .cols = cols_of(type),
                .n_out = N_OUT,
                .n_rows = N_ROWS,
                .y_stride = N_OUT,
        };

        return tdm_vk_once_dispatch(device, pipeline, &push, sizeof(push), x, y, "proving a kernel", err);
}

/* The matvec that the others must equal, of 4 rows. */
static enum tdm_vk_shader reference_of(uint32_t form, uint32_t act, uint32_t constants[TDM_VK_N_CONSTANTS])
{
        const bool subblock = tdm_subblock_type(TDM_VK_FORM_TYPE(form));

        constants[0] = form;
        constants[1] = act;
        constants[2] = 4;
        constants[3] = subblock ? 0 : TDM_VK_MATVEC_SHAPE(4, 1, 1, 0);
        return subblock ? TDM_VK_MATVEC_SUBBLOCK : TDM_VK_MATVEC;
}

int tdm_vk_prove_need(struct tdm_vk_device *device, uint32_t type, uint32_t act, struct tdm_error *err)
{
        uint32_t constants[TDM_VK_N_CONSTANTS];
        enum tdm_vk_shader shader = reference_of(type, act, constants);

        return tdm_vk_pipeline_need(device, shader, constants, err);
}

/* Weights, rows and the outputs of the reference, in places 0, 1 and 4, and 2. */
static int make_reference(struct tdm_vk_device *device, uint32_t form, uint32_t act, struct tdm_error *err)
{
        uint32_t type = TDM_VK_FORM_TYPE(form), c[TDM_VK_N_CONSTANTS];
        enum tdm_vk_shader shader = reference_of(form, act, c);
        uint8_t *map = device->stages[0].map;
        uint64_t state = 1;

        random_weights(map, type, &state);
        random_rows(map + PLACE, (uint32_t *)(map + 4 * PLACE), blocks_of(type), act, &state);
        memset(map + 2 * PLACE, 0xff, PLACE);
        return run_kernel(device, tdm_vk_pipeline_get(device, shader, c[0], c[1], c[2], c[3]), type,
                          TDM_DIV_UP(N_OUT, TDM_PANEL_ROWS), TDM_DIV_UP(N_ROWS, c[2]), 2, err);
}

static int prove_kernel(struct tdm_vk_device *device, struct tdm_vk_pipeline *p, struct tdm_error *err)
{
        uint8_t *map = device->stages[0].map;
        uint32_t panels, rows;
        int r;

        p->tried = true;
        tdm_vk_matrix_tile(p, &panels, &rows);
        memset(map + 3 * PLACE, 0xff, PLACE);
        r = run_kernel(device, p, TDM_VK_FORM_TYPE(p->constants[0]),
                       TDM_DIV_UP(TDM_DIV_UP(N_OUT, TDM_PANEL_ROWS), panels), TDM_DIV_UP(N_ROWS, rows), 3, err);
        p->proven = r == 0 && memcmp(map + 2 * PLACE, map + 3 * PLACE, PLACE) == 0;
        return r;
}

static bool integer_kernel(enum tdm_vk_shader shader)
{
        return shader == TDM_VK_MATMUL_INT8 || shader == TDM_VK_MATMUL_INT8_WIDE || shader == TDM_VK_MATMUL_INT8_ANY;
}

/* Not finding it so is no error. */
int tdm_vk_prove(struct tdm_vk_device *device, struct tdm_error *err)
{
#define TYPE(name, type, kind) TDM_TYPE_##type,
        static const uint32_t types[] = { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0, TDM_TYPE_Q4_0 | TDM_VK_DEINTERLEAVED,
                                          TDM_TYPE_Q8_0 | TDM_VK_DEINTERLEAVED, TDM_SUBBLOCK_TYPES_OF_GPUS(TYPE) },
                              acts[] = { TDM_VK_ACT_I8, TDM_VK_ACT_I16 };
        int r = 0;

        for (unsigned k = 0; k < 2 * TDM_ARRAY_SIZE(types) && r == 0; k++) {
                bool made = false;

                for (unsigned i = 0; i < device->n_pipelines && r == 0; i++) {
                        struct tdm_vk_pipeline *p = &device->pipelines[i];

                        if (!integer_kernel(p->shader) || p->tried || !p->pipeline || p->constants[0] != types[k / 2] ||
                            p->constants[1] != acts[k % 2])
                                continue;
                        if (!made)
                                r = make_reference(device, types[k / 2], acts[k % 2], err);
                        made = true;
                        if (r == 0)
                                r = prove_kernel(device, p, err);
                }
        }
        return r;
}
