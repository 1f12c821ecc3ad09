/* What goes before and after the kernels for f16 matrix units (f16-rows.c), on any Vulkan device: weights repacked into
 * fragments have the values that they had, rows of F16 are those of F32 rounded, in their places, and bounds are
 * bounds; shapes from a file are those that are known, and of these none has more than there is room for. The kernels
 * themselves need such units and are proven where they are used (prove-f16.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/f16.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/vulkan.h"

#define COLS 320u /* five chunks */
#define N_PANELS 3u
#define N_TOKENS (N_PANELS * TDM_PANEL_ROWS)
#define N_ROWS 11u
#define PLACE (UINT64_C(1) << 20)
enum place { A, B, C, D, E };

static _Atomic uint64_t heartbeat;
static struct tdm_vk_device *device;

static uint32_t random_u32(void)
{
        static uint64_t state = 1;

        return tdm_vk_prove_random(&state);
}

static uint8_t *at(enum place place)
{
        return device->stages[0].map + place * PLACE;
}

static uint64_t address(enum place place)
{
        return device->stages[0].address + place * PLACE;
}

static void run(enum tdm_vk_shader shader, uint32_t c0, uint32_t c1, uint32_t c2, const void *push, uint32_t push_bytes,
                uint32_t x, uint32_t y)
{
        struct tdm_error err = {};

        assert_int_equal(tdm_vk_pipeline_need(device, shader, (const uint32_t[]){ c0, c1, c2, 0 }, &err), 0);
        assert_int_equal(tdm_vk_once_dispatch(device, tdm_vk_pipeline_get(device, shader, c0, c1, c2, 0), push,
                                              push_bytes, x, y, "testing", &err),
                         0);
}

/* As in a segment: scales of 2^-9 to 2^-6, of either sign. */
static void random_panels(enum place place, uint32_t type)
{
        uint32_t panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, COLS);

        for (uint32_t panel = 0; panel < N_PANELS; panel++) {
                uint8_t *bytes = at(place) + panel * panel_bytes;

                for (uint32_t i = 0; i < panel_bytes; i++)
                        bytes[i] = (uint8_t)random_u32();
                for (uint32_t i = 0; i < COLS / TDM_BLOCK_VALUES * TDM_PANEL_ROWS; i++)
                        ((uint16_t *)bytes)[i] = (uint16_t)((6 + random_u32() % 4) << 10 | (random_u32() & 0x83ff));
        }
}

/* Every value of rows of this many columns as embed.comp reads it. */
static void values_of(enum place weights, uint32_t form, uint32_t cols, enum place to)
{
        struct tdm_vk_row *rows = (struct tdm_vk_row *)at(D);
        const struct tdm_vk_embed_push push = { .weights = address(weights),
                                                .hidden = address(to),
                                                .rows = address(D),
                                                .d = cols,
                                                .panel_bytes = (uint32_t)tdm_weights_panel_bytes(form & 63u, cols),
                                                .scale = 1 };

        for (uint32_t i = 0; i < N_TOKENS; i++)
                rows[i] = (struct tdm_vk_row){ .token = i };
        run(TDM_VK_EMBED, form, 0, 0, &push, sizeof(push), N_TOKENS, TDM_DIV_UP(cols, 256u));
}

static void values(enum place weights, uint32_t form, enum place to)
{
        values_of(weights, form, COLS, to);
}

/* Where fragments.glsl says that scales lie, times what f16.glsl says. */
static void expect_scales(uint32_t type, float divisor, enum place was, enum place repacked)
{
        uint32_t panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, COLS);

        for (uint32_t out = 0; out < N_TOKENS; out++)
                for (uint32_t b = 0; b < COLS / TDM_BLOCK_VALUES; b++) {
                        uint32_t panel = out / TDM_PANEL_ROWS * panel_bytes, lane = out % TDM_PANEL_ROWS;
                        float factor = type != TDM_TYPE_Q4_0 ? 1 :
                                       lane < 8              ? 0x1p24f :
                                                               0x1p20f,
                              scale = tdm_f16_to_f32(((const uint16_t *)(at(was) + panel))[b * TDM_PANEL_ROWS + lane]),
                              got = tdm_f16_to_f32(
                                      ((const uint16_t *)(at(repacked) +
                                                          panel))[b / 2 * 32 + lane % 8 * 4 + lane / 8 * 2 + b % 2]);

                        if (got != scale / divisor * factor)
                                fail_msg("type %u: scale of block %u of row %u is %g, was %g", type, b, out,
                                         (double)got, (double)scale);
                }
}

static void repacked(void **state)
{
        static const uint32_t types[] = { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 },
                              forms[] = { TDM_VK_DEINTERLEAVED, TDM_VK_FRAGMENTS };

        for (unsigned i = 0; i < 2 * TDM_ARRAY_SIZE(types); i++) {
                uint32_t type = types[i / 2], form = forms[i % 2], words = type == TDM_TYPE_Q4_0 ? 4 : 8;
                float divisor = form == TDM_VK_FRAGMENTS ? 16 : 1;
                const struct tdm_vk_repack_push push = { .weights = address(A),
                                                         .panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, COLS),
                                                         .cols = COLS,
                                                         .scale = 1 / divisor };
                const float *before = (const float *)at(B), *after = (const float *)at(C);

                random_panels(A, type);
                memcpy(at(E), at(A), N_PANELS * push.panel_bytes);
                values(A, type, B);
                run(TDM_VK_REPACK, words, form, 0, &push, sizeof(push),
                    TDM_DIV_UP(COLS / TDM_BLOCK_VALUES * words * 16, 256u), N_PANELS);
                values(A, type | form, C);
                for (uint32_t k = 0; k < N_TOKENS * COLS; k++)
                        if (before[k] != after[k] * divisor)
                                fail_msg("type %u form %u: weight %u of row %u is %g, was %g", type, form, k % COLS,
                                         k / COLS, (double)after[k], (double)before[k]);
                assert_true(before[0] != before[1] || before[1] != before[2]);
                if (form == TDM_VK_FRAGMENTS)
                        expect_scales(type, divisor, E, A);
        }
}

/* Weights of 16 bits: the same values, where embed.comp and where the proofs take them from; those of BF16 times a
 * power of two have a place in f16. */
static void repacked_plain(void **state)
{
        static const uint32_t types[] = { TDM_TYPE_F16, TDM_TYPE_BF16 };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                uint32_t type = types[i];
                float scale = type == TDM_TYPE_F16 ? 1 : 0x1p20f;
                const struct tdm_vk_repack_push push = { .weights = address(A),
                                                         .panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, COLS),
                                                         .cols = COLS,
                                                         .scale = scale };
                const float *before = (const float *)at(B), *after = (const float *)at(C);

                /* F16: any that is a number, small ones too. BF16: 2^-35 to 2^-5. */
                for (uint32_t k = 0; k < N_TOKENS * COLS; k++)
                        ((uint16_t *)at(A))[k] =
                                type == TDM_TYPE_F16 ?
                                        (uint16_t)(random_u32() % 0x7c00) :
                                        (uint16_t)((92 + random_u32() % 31) << 7 | (random_u32() & 0x807f));
                values(A, type, B);
                run(TDM_VK_REPACK, 16, type | TDM_VK_FRAGMENTS, 0, &push, sizeof(push), COLS / TDM_VK_CHUNK_COLS,
                    N_PANELS);
                values(A, type | TDM_VK_FRAGMENTS, C);
                for (uint32_t k = 0; k < N_TOKENS * COLS; k++)
                        if (before[k] * scale != after[k])
                                fail_msg("type %u: weight %u of row %u is %g, was %g", type, k % COLS, k / COLS,
                                         (double)after[k], (double)before[k]);
                assert_true(before[0] != before[1] || before[1] != before[2]);
        }
}

/* As in a segment: any bits, but for d, below 2^-15, and m, 2^-14 to 2^-11, of either sign: IQ4_XS has other bits for
 * m. The exponents of MXFP4 are those that an f16 holds, divided by 16 or not. */
static void random_subblocks(enum place place, uint32_t type, uint32_t cols)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        uint32_t panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, cols),
                 n_halves = cols / info.unit_values * info.halves * TDM_PANEL_ROWS;

        for (uint32_t panel = 0; panel < N_PANELS; panel++) {
                uint8_t *bytes = at(place) + panel * panel_bytes;

                for (uint32_t i = 0; i < panel_bytes; i++)
                        bytes[i] = (uint8_t)random_u32();
                for (uint32_t i = 0; i < cols / TDM_BLOCK_VALUES * TDM_PANEL_ROWS && type == TDM_TYPE_MXFP4; i++)
                        bytes[i] = (uint8_t)(103 + random_u32() % 22);
                for (uint32_t i = 0; i < n_halves && type != TDM_TYPE_MXFP4; i++)
                        if (type != TDM_TYPE_IQ4_XS || i / TDM_PANEL_ROWS % 2 == 0)
                                ((uint16_t *)bytes)[i] =
                                        i / TDM_PANEL_ROWS % info.halves == 0 ?
                                                (uint16_t)(random_u32() & 0x81ff) :
                                                (uint16_t)((1 + random_u32() % 4) << 10 | (random_u32() & 0x83ff));
        }
}

/* Weights of sub-blocks: those of the segment are the values that embed.comp reads of them when they are repacked, bit
 * for bit; and what the proofs take for a weight is one of these that is rounded to f16. That takes three roundings, of
 * a scale, a minimum and the weight. */
static void repacked_subblocks(void **state)
{
#define TYPE(name, type, kind) TDM_TYPE_##type,
        static const uint32_t types[] = { TDM_SUBBLOCK_TYPES_OF_GPUS(TYPE) };
#undef TYPE

        for (unsigned i = 0; i < 2 * TDM_ARRAY_SIZE(types); i++) {
                uint32_t type = types[i / 2];

                if (!tdm_vk_type_f16(type))
                        continue;
                const struct tdm_subblock_info info = tdm_subblock_info(type);
                uint32_t cols = info.unit_values == 256 ? 768 : COLS;
                float divisor = i % 2 ? 16 : 1;
                const struct tdm_vk_repack_push push = { .weights = address(A),
                                                         .panel_bytes = (uint32_t)tdm_weights_panel_bytes(type, cols),
                                                         .cols = cols,
                                                         .scale = 1 / divisor };
                const float *before = (const float *)at(B), *after = (const float *)at(C);

                random_subblocks(A, type, cols);
                values_of(A, type, cols, B);
                run(TDM_VK_REPACK_SUBBLOCK, type, 0, 0, &push, sizeof(push),
                    cols / TDM_MAX(info.unit_values, TDM_VK_CHUNK_COLS), N_PANELS);
                values_of(A, type | TDM_VK_FRAGMENTS, cols, C);
                for (uint32_t k = 0, n_different = 0; k < N_TOKENS * cols; k++) {
                        uint32_t lane = k / cols % TDM_PANEL_ROWS;
                        const uint8_t *panel = at(A) + k / cols / TDM_PANEL_ROWS * push.panel_bytes;
                        double rounded = tdm_vk_prove_subblock_weight(panel, type, cols, lane, k % cols),
                               /* a product with a scale is below 2^-2, in IQ4_XS 2^-3; a minimum below 2^-4 */
                                bound = 0x1p-11 * (fabs((double)after[k]) + 0x1p-2 / (double)divisor) + 0x1p-24;
                        /* of what is divided some m is rounded, and d of table types */
                        float lost = divisor == 1 ? 0 : info.offset == 128 ? 0x1p-8f : 0x1p-14f;

                        if (!(fabsf(before[k] - after[k] * divisor) <= lost))
                                fail_msg("type %u: weight %u of row %u is %g, was %g", type, k % cols, k / cols,
                                         (double)after[k], (double)before[k]);
                        if (!(fabs(rounded - (double)after[k]) <= bound))
                                fail_msg("type %u: weight %u of row %u is %g in a proof, not %g", type, k % cols,
                                         k / cols, rounded, (double)after[k]);
                        n_different += before[k] != before[0];
                        assert_true(k < N_TOKENS * cols - 1 || n_different > N_TOKENS * cols / 2);
                }
        }
}

/* Where fragments.glsl says that a row's value lies. */
static float f16_at(enum place acts, uint32_t row, uint32_t k)
{
        uint32_t lane = row % 8 * 4 + k % 8 / 2, j = k / 16 % 4,
                 i = row / 8 * (COLS * 8) + k / 64 * 512 + j / 2 * 256 + lane * 8 + j % 2 * 4 + k / 8 % 2 * 2 + k % 2;

        return tdm_f16_to_f32(((const uint16_t *)at(acts))[i]);
}

/* Of a single row whose words are flagged. */
static float flagged_at(enum place acts, uint32_t k, uint32_t flag)
{
        uint32_t j = k / 16 % 4;
        uint64_t word = ((const uint64_t *)at(acts))[k / 64 * 32 + j / 2 * 16 + k % 8 / 2 * 4 + j % 2 * 2 + k / 8 % 2];

        assert_int_equal(word >> 32, flag);
        return tdm_f16_to_f32((uint16_t)(word >> k % 2 * 16));
}

static void expect_rows(enum place exact, enum place rounded, float scale)
{
        for (uint32_t row = 0; row < N_ROWS; row++)
                for (uint32_t k = 0; k < COLS; k++) {
                        float x = ((const float *)at(exact))[row * COLS + k] * scale,
                              want = tdm_f16_to_f32(tdm_f32_to_f16(x > 65504  ? 65504 :
                                                                   x < -65504 ? -65504 :
                                                                                x)),
                              got = f16_at(rounded, row, k);

                        if (want != got)
                                fail_msg("row %u, value %u: %g instead of %g", row, k, (double)got, (double)want);
                }
}

static void rows(void **state)
{
        float *x = (float *)at(A), *gain = (float *)at(B);
        struct tdm_vk_norm_push norm = {
                .hidden = address(A), .gain = address(B), .acts = address(C), .d = COLS, .eps = 1e-6f
        };
        struct tdm_vk_gelu_push gelu = { .y = address(A), .acts = address(C), .d_ff = COLS };

        for (uint32_t i = 0; i < N_ROWS * 2 * COLS; i++)
                x[i] = (float)((int)(random_u32() % 2001) - 1000) / 100.0f;
        for (uint32_t i = 0; i < COLS; i++)
                /* some leave f16: they end at its end */
                gain[i] = i % 50 == 7 ? 60000.0f : (float)(random_u32() % 1000) / 300.0f;
        run(TDM_VK_NORM, 0, TDM_VK_ACT_F32, 1, &norm, sizeof(norm), N_ROWS, 1);
        norm.acts = address(D);
        norm.act_scale = 0.5f;
        run(TDM_VK_NORM, 0, TDM_VK_ACT_F16, 1, &norm, sizeof(norm), N_ROWS, 1);
        expect_rows(C, D, 0.5f);
        norm.chain_index = 5 | TDM_VK_CHAIN_FLAGS;
        norm.acts = address(E);
        run(TDM_VK_NORM, 0, TDM_VK_ACT_F16, 1, &norm, sizeof(norm), 1, 1);
        for (uint32_t k = 0; k < COLS; k++)
                assert_true(flagged_at(E, k, 5) == f16_at(D, 0, k));
        run(TDM_VK_GELU, 0, TDM_VK_ACT_F32, 0, &gelu, sizeof(gelu), TDM_DIV_UP(COLS, 1024u), N_ROWS);
        gelu.acts = address(D);
        gelu.act_scale = 64;
        run(TDM_VK_GELU, 0, TDM_VK_ACT_F16_AFTER, 0, &gelu, sizeof(gelu), TDM_DIV_UP(COLS, 1024u), N_ROWS);
        expect_rows(C, D, 64);
}

/* The largest over outputs of the root of the sum of (scale gain)², times another matrix' where there is one; the
 * largest scale. */
static void bounds(void **state)
{
        uint32_t panel_bytes = (uint32_t)tdm_weights_panel_bytes(TDM_TYPE_Q4_0, COLS);
        float *gain = (float *)at(C);
        struct tdm_vk_bound_push push = { .gains = address(C),
                                          .bounds = address(D),
                                          .w0 = address(A),
                                          .panel_bytes = panel_bytes,
                                          .panel_bytes1 = panel_bytes,
                                          .cols = COLS };

        random_panels(A, TDM_TYPE_Q4_0);
        random_panels(B, TDM_TYPE_Q4_0);
        for (uint32_t i = 0; i < COLS; i++)
                gain[i] = (float)(random_u32() % 1000) / 300.0f;
        for (unsigned n = 1; n <= 2; n++) {
                const float *got = (const float *)at(D);
                double most = 0, largest = 0;

                for (uint32_t out = 0; out < N_TOKENS; out++) {
                        double sums[2] = { 0, 0 };

                        for (unsigned i = 0; i < n; i++)
                                for (uint32_t k = 0; k < COLS; k++) {
                                        const uint16_t *scales =
                                                (const uint16_t *)(at(i ? B : A) + out / 16 * panel_bytes);
                                        double d = (double)tdm_f16_to_f32(scales[k / 32 * 16 + out % 16]);

                                        sums[i] += d * d * (double)gain[k] * (double)gain[k];
                                        largest = fmax(largest, fabs(d));
                                }
                        most = fmax(most, sqrt(sums[0]) * (n == 2 ? sqrt(sums[1]) : 1));
                }
                memset(at(D), 0, 8);
                push.w1 = n == 2 ? address(B) : 0;
                run(TDM_VK_BOUND, 0, 0, 0, &push, sizeof(push), N_PANELS, 1);
                assert_true(fabs((double)got[0] - most) < 1e-5 * most && most > 0);
                assert_true((double)got[1] == largest);
        }
}

/* Of 16 bits: a block's largest weight is what a scale is of other types, and the largest of all counts 2^-24 times. */
static void bounds_plain(void **state)
{
        const uint16_t *weights = (const uint16_t *)at(A);
        const float *got = (const float *)at(D);
        const struct tdm_vk_bound_push push = { .bounds = address(D),
                                                .w0 = address(A),
                                                .panel_bytes = (uint32_t)tdm_weights_panel_bytes(TDM_TYPE_F16, COLS),
                                                .cols = COLS };
        double most = 0, largest = 0;

        for (uint32_t k = 0; k < N_TOKENS * COLS; k++)
                ((uint16_t *)at(A))[k] = (uint16_t)((6 + random_u32() % 4) << 10 | (random_u32() & 0x83ff));
        for (uint32_t out = 0; out < N_TOKENS; out++) {
                double sum = 0;

                for (uint32_t b = 0; b < COLS / TDM_BLOCK_VALUES; b++) {
                        double of_block = 0;

                        for (uint32_t k = b * TDM_BLOCK_VALUES; k < (b + 1) * TDM_BLOCK_VALUES; k++)
                                of_block = fmax(of_block, fabs((double)tdm_f16_to_f32(
                                                                  weights[(out / 16 * COLS + k) * 16 + out % 16])));
                        sum += of_block * of_block * TDM_BLOCK_VALUES;
                        largest = fmax(largest, of_block);
                }
                most = fmax(most, sqrt(sum));
        }
        memset(at(D), 0, 8);
        run(TDM_VK_BOUND, TDM_TYPE_F16, 0, 0, &push, sizeof(push), N_PANELS, 1);
        assert_true(fabs((double)got[0] - most) < 1e-5 * most && most > 0);
        assert_true((double)got[1] == largest * 0x1p-24);
}

static void shapes(void **state)
{
        static const uint32_t cols[] = { 64, 2560, 5376, 10240, 21504, 65536 };
        unsigned n_sane = 0, n_fit = 0, n_long = 0;

        for (uint32_t i = 0; i < 2u << 24; i++) {
                struct tdm_vk_tuned tuned = {
                        .shader = i >> 24 ? TDM_VK_MATVEC_GELU : TDM_VK_MATVEC,
                        .act = TDM_VK_ACT_F16,
                        .shape = { .panels = i & 15, .ahead = i >> 4 & 31, .sets = i >> 9 & 15, .groups = i >> 13 & 31 }
                };
                const struct tdm_vk_shape *shape = &tuned.shape;

                if (i >> 18 & 63 || !tdm_vk_tuned_sane(&tuned))
                        continue;
                n_sane++;
                assert_true(shape->groups >= 1 && shape->groups <= 16);
                assert_true(shape->panels >= 1 && shape->ahead < 16 && shape->sets >= 1);
                assert_true(i >> 24 == 0 || shape->panels % 2 == 0);
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(cols); k++) {
                        const struct tdm_vk_matrix matrix = { .type = TDM_TYPE_Q4_0 | TDM_VK_FRAGMENTS,
                                                              .cols = cols[k] };
                        uint32_t c[TDM_VK_N_CONSTANTS], chunks = cols[k] / TDM_VK_CHUNK_COLS,
                                                        length = TDM_VK_SEGMENT_CHUNKS(cols[k]);
                        bool fits = tdm_vk_f16_shaped(device, &matrix, shape, i >> 24, 1, c);

                        if (!fits) {
                                n_long += cols[k] == 65536;
                                continue;
                        }
                        n_fit++;
                        assert_true(cols[k] < 65536); /* 64 KiB in shared memory */
                        assert_true(c[2] >= 32 && c[2] <= 1024);
                        assert_true(c[2] / 32 / shape->groups * shape->ahead * length >= chunks && c[3] >= length);
                        assert_int_equal(c[1], TDM_VK_MATVEC_F16_SHAPE((uint32_t)shape->groups, (uint32_t)shape->panels,
                                                                       (uint32_t)shape->ahead, (uint32_t)shape->sets,
                                                                       i >> 24));
                }
        }
        assert_true(n_sane > 10 && n_fit > 3 * n_sane && n_long == n_sane);
}

/* Of two rows and of four, at the sizes of a 4B, 12B and 27B: some shape fits, and each that does takes all of K. */
static void shapes_of_few(void **state)
{
        static const uint32_t cols[] = { 2048, 2560, 3840, 4096, 5376 };

        (void)state;
        for (uint32_t i = 0; i < 2 * 2 * TDM_ARRAY_SIZE(cols); i++) {
                uint32_t rows = i % 2 ? 4 : 2, gelu = i / 2 % 2, n_fit = 0;
                const struct tdm_vk_matrix matrix = { .type = TDM_TYPE_Q4_0 | TDM_VK_FRAGMENTS, .cols = cols[i / 4] };
                const struct tdm_vk_tuned key = { .shader = TDM_VK_TUNED_ROWS(gelu ? TDM_VK_MATVEC_GELU : TDM_VK_MATVEC,
                                                                              rows),
                                                  .act = TDM_VK_ACT_F16 };
                uint32_t chunks = matrix.cols / TDM_VK_CHUNK_COLS, length = TDM_VK_SEGMENT_CHUNKS(matrix.cols),
                         c[TDM_VK_N_CONSTANTS];
                const struct tdm_vk_shape *tried;
                unsigned n = tdm_vk_tuned_shapes(&key, &tried);

                for (unsigned k = 0; k < n; k++) {
                        struct tdm_vk_tuned tuned = key;

                        tuned.shape = tried[k];
                        assert_true(tdm_vk_tuned_sane(&tuned) && (!gelu || tried[k].panels % 2 == 0));
                        if (!tdm_vk_f16_shaped(device, &matrix, &tried[k], gelu, rows, c))
                                continue;
                        n_fit++;
                        assert_true(c[2] >= 32 && c[2] <= 1024);
                        assert_true(c[2] / 32 / tried[k].groups * tried[k].ahead * length >= chunks);
                        assert_true(TDM_VK_MATVEC_F16_ROWS(c[3]) == rows && TDM_VK_MATVEC_F16_CHUNKS(c[3]) >= length &&
                                    TDM_VK_MATVEC_F16_ALL(c[3]) >= chunks);
                }
                assert_true(n_fit > 1);
        }
}

/* Of rows that are not flagged, for gate and up: kernels of a few rows are among the shapes of up to four, and of no
 * more. */
static void shapes_of_tiles(void **state)
{
        static const uint32_t cols[] = { 2048, 2560, 3840, 4096, 5376 }, n_rows[] = { 2, 4, 8 };

        (void)state;
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(cols) * TDM_ARRAY_SIZE(n_rows); i++) {
                uint32_t rows = n_rows[i % TDM_ARRAY_SIZE(n_rows)], n_tile = 0, n_vec = 0, c[TDM_VK_N_CONSTANTS];
                const struct tdm_vk_matrix matrix = { .type = TDM_TYPE_Q4_0 | TDM_VK_FRAGMENTS,
                                                      .cols = cols[i / TDM_ARRAY_SIZE(n_rows)] };
                struct tdm_vk_tuned key = { .shader = TDM_VK_TUNED_ROWS(TDM_VK_MATMUL_F16, rows) | TDM_VK_TUNED_GELU,
                                            .act = TDM_VK_ACT_F16 };
                const struct tdm_vk_shape *tried;
                unsigned n = tdm_vk_tuned_shapes(&key, &tried);

                for (unsigned k = 0; k < n; k++) {
                        bool is_vec = tdm_vk_f16_tile_shader(&tried[k]) == TDM_VK_MATVEC_F16;

                        key.shape = tried[k];
                        assert_true(tdm_vk_tuned_sane(&key) && tried[k].panels % 2 == 0);
                        if (!tdm_vk_f16_tile_shaped(device, &matrix, &tried[k], 1, rows, c))
                                continue;
                        *(is_vec ? &n_vec : &n_tile) += 1;
                        assert_true(c[2] >= 32 && c[2] <= 1024);
                        assert_true(!is_vec || TDM_VK_MATVEC_F16_ROWS(c[3]) == rows);
                }
                assert_true(n_tile > 1 && (rows == 2 ? n_vec > 0 : rows == 4 || n_vec == 0));
        }
}

static void not_used(void **state)
{
        const struct tdm_vk_tuned rows = { .shader = TDM_VK_TUNED_ROWS(TDM_VK_MATVEC, 2), .act = TDM_VK_ACT_F16 },
                                  single = { .shader = TDM_VK_MATVEC, .act = TDM_VK_ACT_F16 };
        const struct tdm_vk_matrix matrix = { .type = TDM_TYPE_Q4_0 | TDM_VK_FRAGMENTS, .cols = 2560 };
        uint32_t c[TDM_VK_N_CONSTANTS];

        (void)state;
        assert_true(tdm_vk_tuned_sane(&rows) && !tdm_vk_tuned_sane(&single));
        assert_false(tdm_vk_f16_shaped(device, &matrix, &rows.shape, 0, 2, c));
        assert_false(tdm_vk_f16_tile_shaped(device, &matrix, &rows.shape, 0, 2, c));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(shapes),         cmocka_unit_test(repacked),      cmocka_unit_test(repacked_subblocks),
                cmocka_unit_test(repacked_plain), cmocka_unit_test(bounds_plain),  cmocka_unit_test(rows),
                cmocka_unit_test(bounds),         cmocka_unit_test(shapes_of_few), cmocka_unit_test(shapes_of_tiles),
                cmocka_unit_test(not_used),
        };
        const struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *opened;
        struct tdm_error err = {};
        int r;

        setenv("TANDEM_VULKAN_CHAIN", "on", 0); /* the other kernels leave no flagged words */
        if (tdm_vulkan_device_ops.open(&opened, &config, &err) != 0) {
                fprintf(stderr, "skipped: %s\n", err.message);
                return 77;
        }
        device = (struct tdm_vk_device *)opened;
        r = cmocka_run_group_tests(tests, NULL, NULL);
        tdm_vulkan_device_ops.close(opened);
        return r;
}
