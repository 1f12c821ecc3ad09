/* Random rows and weights as the worker hands them to a program of a manifest, and what must come out: for
 * test_programs.py, so that the sources of programs are held against the worker's own packing.
 *
 * usage: npu-programs-pack MANIFEST PROGRAM DIRECTORY     writes a, b and (in double) c there */
#include <math.h>

#include "common/f16.h"
#include "common/test-write-file.h"
#include "engine/host/kernels.h"
#include "npu-worker/manifest/files.h"
#include "npu-worker/plan/plan.h"

static uint32_t state = 1;

static float random_float(void)
{
        state = state * 1664525 + 1013904223;
        return (float)(int32_t)state * 0x1p-31f;
}

static _Noreturn void fail(const char *what)
{
        fprintf(stderr, "npu-programs-pack: %s\n", what);
        exit(1);
}

/* Value k of a row as a program reads it. */
static double row_value(const struct tdm_npu_plan *plan, const uint8_t *row, uint32_t k)
{
        const uint8_t *piece = row + (size_t)(k / TDM_NPU_INT4_PIECE) * tdm_npu_int4_piece_bytes(plan->type);
        float scale;

        switch (plan->type) {
        case TDM_NPU_BF16:
                return (double)tdm_bf16_to_f32(((const uint16_t *)row)[k]);
        case TDM_NPU_INT8:
                return ((const int8_t *)row)[k];
        default:
                k %= TDM_NPU_INT4_PIECE;
                memcpy(&scale, piece + k / TDM_NPU_INT4_BLOCK * 4, sizeof(scale));
                return (double)scale *
                       (256 * ((const int8_t *)piece)[16 + k] + ((const int8_t *)piece)[16 + TDM_NPU_INT4_PIECE + k]);
        }
}

/* One output's weights, into the buffer and as numbers. */
static void put_output(const struct tdm_npu_plan *plan, uint32_t output, uint8_t *tile, double *w)
{
        float *values = malloc(plan->k * sizeof(*values)), scale;
        int8_t *q = malloc(plan->k);
        uint16_t *scales = malloc(plan->k / 32 * sizeof(*scales));

        if (!values || !q || !scales)
                fail("no memory");
        for (uint32_t k = 0; k < plan->k; k++) {
                values[k] = random_float();
                q[k] = (int8_t)floorf(values[k] * 8);
                /* Of either sign, as files have them, and zero. */
                scales[k / 32] = tdm_f32_to_f16(k / 32 % 7 == 3 ? 0 : 0.01f * values[k / 32] + 0.02f);
                if (k / 32 % 5 == 1)
                        scales[k / 32] |= 0x8000;
        }
        if (tdm_npu_type_is_int4(plan->type)) {
                tdm_npu_put_q4(plan, q, scales, plan->k, output, tile);
                for (uint32_t k = 0; k < plan->k; k++)
                        w[k] = q[k] * (double)tdm_f16_to_f32(scales[k / 32]);
        } else {
                scale = tdm_npu_put_weights(plan, values, plan->k, output, tile);
                for (uint32_t k = 0; k < plan->k; k++)
                        w[k] = plan->type == TDM_NPU_INT8 ?
                                       (double)rintf(fmaxf(fminf(values[k] / scale, 127), -127)) :
                                       (double)tdm_bf16_to_f32((uint16_t)((tdm_f32_to_bits(values[k]) + 0x7fff +
                                                                           (tdm_f32_to_bits(values[k]) >> 16 & 1)) >>
                                                                          16));
        }
        free(values);
        free(q);
        free(scales);
}

/* Rows, weights and their product in double, as files a, b and c. */
static void write_case(const struct tdm_npu_program *p, const char *directory, struct tdm_error *err)
{
        const struct tdm_npu_plan plan = {
                .k = p->k, .n = p->n, .type = p->type, .b = p->b, .kernels = tdm_kernels_choose(err)
        };
        size_t row_bytes = tdm_npu_row_bytes(p->type, p->k), c_bytes = (size_t)p->m * p->n * sizeof(double);
        _cleanup_(freep) float *values = malloc(p->k * sizeof(*values));
        _cleanup_(freep) uint8_t *a = calloc(p->m, row_bytes), *b = calloc(1, tdm_npu_plan_tile_bytes(&plan));
        _cleanup_(freep) double *c = calloc(1, c_bytes), *w = malloc(p->k * sizeof(*w));

        if (!plan.kernels)
                fail(err->message);
        if (!values || !a || !b || !c || !w)
                fail("no memory");
        for (uint32_t m = 0; m < p->m; m++) {
                for (uint32_t k = 0; k < p->k; k++)
                        values[k] = random_float();
                tdm_npu_put_row(&plan, values, p->k, a + m * row_bytes);
        }
        for (uint32_t n = 0; n < p->n; n++) {
                put_output(&plan, n, b, w);
                for (uint32_t m = 0; m < p->m; m++)
                        for (uint32_t k = 0; k < p->k; k++)
                                c[(size_t)m * p->n + n] += w[k] * row_value(&plan, a + m * row_bytes, k);
        }
        test_write_file(directory, "a", a, p->m * row_bytes);
        test_write_file(directory, "b", b, tdm_npu_plan_tile_bytes(&plan));
        test_write_file(directory, "c", c, c_bytes);
}

int main(int argc, char **argv)
{
        _cleanup_(freep) struct tdm_npu_manifest *manifest = NULL;
        _cleanup_(freep) void *text = NULL;
        const struct tdm_npu_program *program = NULL;
        struct tdm_error err = {};
        size_t size;

        if (argc != 4)
                fail("usage: npu-programs-pack MANIFEST PROGRAM DIRECTORY");
        if (tdm_npu_read_file(argv[1], 1 << 20, &text, &size, &err) != 0 ||
            tdm_npu_manifest_parse(text, size, argv[1], NULL, &manifest, &err) != 0)
                fail(err.message);
        for (uint32_t i = 0; i < manifest->n_programs; i++)
                if (strcmp(manifest->programs[i].name, argv[2]) == 0)
                        program = &manifest->programs[i];
        if (!program)
                fail("no such program");
        write_case(program, argv[3], &err);
        return 0;
}
