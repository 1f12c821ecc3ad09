/* What the way to an NPU costs beside its arithmetic, on the emulated one: a product through planner, buffers and the
 * real XRT front end, against the same program called directly; and what the NPU's number formats cost a model's
 * attention weights, in bytes and in error. The times say nothing about an NPU, only about what stands before it.
 *
 * usage: bench-npu [MODEL.gguf]      a second model in Q4_0 shows more (tools/mkgguf.py) */
#include <math.h>

#include "common/f16.h"
#include "npu-worker/emulated/program.h"
#include "npu-worker/npu/npu.h"
#include "tests/golden/runner.h"

#define SECONDS_NS (TDM_NSEC_PER_SEC / 2)

static _Atomic uint64_t heartbeat;

static void bench_product(struct tdm_npu *npu, uint32_t m, uint32_t k, uint32_t n)
{
        struct tdm_emulated_program program = { .op = TDM_EMULATED_OP_GEMM,
                                                .type = TDM_EMULATED_BF16,
                                                .b_layout = TDM_EMULATED_COLUMNS,
                                                .m = m,
                                                .k = k,
                                                .n = n };
        uint16_t *a = calloc((size_t)m * k, 2), *b = calloc((size_t)k * n, 2);
        float *c = calloc((size_t)m * n, 4), *x = calloc(k, 4);
        struct tdm_npu_product *product;
        struct tdm_npu_weights *weights;
        double direct = INFINITY, through = INFINITY; /* the best: a machine is never as alone as one thinks */
        struct tdm_npu_plan plan;
        struct tdm_error err;
        uint64_t begin;

        if (tdm_npu_plan_matrix(tdm_npu_manifest(npu), TDM_NPU_BF16, n, k, &plan, &err) ||
            tdm_npu_product_new(npu, &plan, m, &product, &err) || tdm_npu_weights_new(product, &weights, &err)) {
                fprintf(stderr, "%s\n", err.message);
                exit(1);
        }
        for (uint32_t i = 0; i < n; i++)
                tdm_npu_weights_fill(weights, i, x);
        if (tdm_npu_weights_finish(weights, &err))
                exit(1);
        for (uint64_t end = tdm_now_ns() + SECONDS_NS; (begin = tdm_now_ns()) < end;) {
                tdm_emulated_program_gemm(&program, a, b, c);
                direct = fmin(direct, (double)(tdm_now_ns() - begin) / 1e3);
        }
        for (uint64_t end = tdm_now_ns() + SECONDS_NS; (begin = tdm_now_ns()) < end;) {
                tdm_npu_product_run(product, weights, m);
                through = fmin(through, (double)(tdm_now_ns() - begin) / 1e3);
        }
        printf("bf16 %ux%ux%u: called directly %.1f us, through XRT %.1f us: %.1f us a submission\n", m, k, n, direct,
               through, through - direct);
        tdm_npu_weights_destroy(weights);
        tdm_npu_product_destroy(product);
        free(a);
        free(b);
        free(c);
        free(x);
}

/* Relative error (root mean square) of attention's weights in a format, one scale for each output. */
static void bench_formats(const char *path)
{
        static const enum tdm_tensor_kind kinds[] = { TDM_TENSOR_Q, TDM_TENSOR_K, TDM_TENSOR_V, TDM_TENSOR_O };
        static const enum tdm_npu_type types[] = { TDM_NPU_BF16, TDM_NPU_INT8 };
        struct runner_model model;

        runner_model_load(&model, path);
        for (size_t t = 0; t < TDM_ARRAY_SIZE(types); t++) {
                double error = 0, square = 0;
                uint64_t n = 0, file_bytes = 0;

                for (uint32_t layer = 0; layer < model.hp->n_layers; layer++)
                        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                                const struct tdm_weights_tensor *tensor =
                                        tdm_weights_find(model.weights, kinds[i], layer);
                                const struct tdm_npu_plan plan = {
                                        .k = tensor->cols, .n = 1, .type = types[t], .b = { .kind = TDM_NPU_COLUMNS }
                                };
                                float *row = malloc(tensor->cols * sizeof(float));
                                void *put = malloc((size_t)tensor->cols * 2);

                                file_bytes += tensor->size_bytes;
                                for (uint32_t r = 0; r < tensor->rows; r++) {
                                        float scale;

                                        tdm_weights_row(model.weights, tensor, r, row);
                                        scale = tdm_npu_put_weights(&plan, row, tensor->cols, 0, put);
                                        for (uint32_t c = 0; c < tensor->cols; c++) {
                                                double y = types[t] == TDM_NPU_BF16 ?
                                                                   tdm_bf16_to_f32(((uint16_t *)put)[c]) :
                                                                   ((int8_t *)put)[c] * scale;

                                                error += (y - row[c]) * (y - row[c]);
                                                square += (double)row[c] * row[c];
                                                n++;
                                        }
                                }
                                free(row);
                                free(put);
                        }
                printf("%s: attention's weights in %s: relative error %.5f, %.2f bytes a weight (%.2f in the file)\n",
                       path, tdm_npu_type_name(types[t]), sqrt(error / square), (double)tdm_npu_row_bytes(types[t], 1),
                       (double)file_bytes / (double)n);
        }
        runner_model_unload(&model);
}

int main(int argc, char **argv)
{
        const struct tdm_npu_config config = { .emulated = true, .heartbeat = &heartbeat };
        struct tdm_error err = {};
        struct tdm_npu *npu;

        if (tdm_npu_open(&npu, &config, &err)) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
        }
        bench_product(npu, 1, 128, 128);
        bench_product(npu, 1, 256, 384);
        bench_product(npu, 1, 1152, 1536);
        tdm_npu_close(npu);
        bench_formats("models/tale.gguf");
        if (argc > 1)
                bench_formats(argv[1]);
        return 0;
}
