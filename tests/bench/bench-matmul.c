/* How fast the matrix kernels are: GMAC/s and GB/s of weights for the shapes of a 1B model and some of a 4B one, whose
 * widths blocks of 256 divide.
 *
 *   bench-matmul [-t THREADS] [-k c|avx2|avx512] [-w q8_0|q4_k|f16|… any type] [-a i8|i16|f32] [-r ROWS] [-s MS] [-m
 * MIB] [-x OUTPUTSxINPUTS: this shape alone]
 *
 * Weights rotate through 256 MiB, so that they come from memory as they do in a model, in huge pages as there. Less
 * (-m) than the cache holds shows what the instructions alone take. The best of several rounds counts: the machine may
 * be busy with other things. */
#include <getopt.h>
#include <inttypes.h>
#include <strings.h>
#include "common/hugepage.h"
#include "engine/host/matmul.h"

#define MATRIX_BYTES_MAX (UINT64_C(256) << 20) /* in the widest type */

static uint64_t rotate_bytes = UINT64_C(256) << 20;

static struct shape {
        const char *name;
        uint32_t rows, cols;
} shapes[] = {
        { "gate/up", 6912, 1152 }, { "down", 1152, 6912 },   { "qkv", 1536, 1152 },
        { "head/8", 32768, 1152 }, { "4b up", 10240, 2560 }, { "4b down", 2560, 10240 },
};

static const char *const act_names[TDM_N_ACTS] = { "f32", "i8", "i16" };

static uint64_t matrix_bytes(struct tdm_matrix *matrix)
{
        matrix->panel_bytes = tdm_weights_panel_bytes(matrix->type, matrix->cols);
        return matrix->panel_bytes * TDM_DIV_UP(matrix->rows, TDM_PANEL_ROWS);
}

/* UINT32_MAX: no such type, or no kernel for it. */
static uint32_t type_of_name(const char *name)
{
        for (uint32_t type = 0; type < 64; type++)
                if (tdm_type_info(type) && tdm_kernels_type_index(type) >= 0 &&
                    strcasecmp(tdm_type_info(type)->name, name) == 0)
                        return type;
        return UINT32_MAX;
}

static void bench(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct shape *shape, uint32_t type,
                  enum tdm_act act, uint32_t n_rows, uint64_t budget_ns, const uint8_t *memory)
{
        struct tdm_matrix matrix = { .type = type, .rows = shape->rows, .cols = shape->cols };
        uint64_t bytes = matrix_bytes(&matrix), at = 0, best_ns = UINT64_MAX, end_ns;
        _cleanup_(freep) float *x = calloc((size_t)n_rows * shape->cols, sizeof(float));
        _cleanup_(freep) float *y = calloc((size_t)n_rows * shape->rows, sizeof(float));
        struct tdm_matmul_out out = { &matrix, act, y, shape->rows };
        struct tdm_acts acts;
        double macs = (double)shape->rows * shape->cols * n_rows;

        if (!x || !y || tdm_acts_init(&acts, 1u << act, n_rows, shape->cols) < 0) {
                fprintf(stderr, "out of memory\n");
                exit(1);
        }
        for (size_t i = 0; i < (size_t)n_rows * shape->cols; i++)
                x[i] = (float)(i % 113) - 56;
        tdm_acts_prepare(&acts, kernels, pool, x, shape->cols, n_rows, shape->cols);
        end_ns = tdm_now_ns() + budget_ns;
        do {
                uint64_t start_ns, n = 0;

                /* At least 2 ms a round, to be above the clock's and the scheduler's grain. */
                start_ns = tdm_now_ns();
                do {
                        matrix.data = memory + at;
                        tdm_matmul(pool, kernels, &acts, n_rows, &out, 1);
                        at = at + 2 * bytes <= rotate_bytes ? at + bytes : 0;
                        n++;
                } while (tdm_now_ns() - start_ns < 2 * TDM_NSEC_PER_MSEC);
                best_ns = TDM_MIN(best_ns, (tdm_now_ns() - start_ns) / n);
        } while (tdm_now_ns() < end_ns);
        printf("%-8s %6u x %-6u %5u rows %9.3f ms %8.1f GMAC/s %6.1f GB/s\n", shape->name, shape->rows, shape->cols,
               n_rows, (double)best_ns * 1e-6, macs / (double)best_ns, (double)bytes / (double)best_ns);
        tdm_acts_deinit(&acts);
}

int main(int argc, char **argv)
{
        uint32_t all_rows[] = { 1, 8, 32, 128, 512 };
        size_t n_all_rows = TDM_ARRAY_SIZE(all_rows), n_shapes = TDM_ARRAY_SIZE(shapes);
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;
        _cleanup_(freep) uint8_t *memory = NULL;
        const struct tdm_kernels *kernels = tdm_kernels_choose(NULL);
        unsigned n_threads = 0;
        uint32_t type = TDM_TYPE_Q8_0;
        uint64_t budget_ns = 60 * TDM_NSEC_PER_MSEC;
        enum tdm_act act = TDM_ACT_I8;
        int c;

        while ((c = getopt(argc, argv, "t:k:w:a:r:s:m:x:")) != -1) {
                switch (c) {
                case 't':
                        n_threads = (unsigned)atoi(optarg);
                        break;
                case 'k':
                        kernels = tdm_kernels_get(optarg);
                        break;
                case 'w':
                        type = type_of_name(optarg);
                        if (type == UINT32_MAX) {
                                fprintf(stderr, "no type %s\n", optarg);
                                return 2;
                        }
                        break;
                case 'a':
                        for (unsigned i = 0; i < TDM_N_ACTS; i++)
                                if (strcmp(optarg, act_names[i]) == 0)
                                        act = i;
                        break;
                case 'r':
                        all_rows[0] = TDM_MAX((uint32_t)atoi(optarg), 1u);
                        n_all_rows = 1;
                        break;
                case 's':
                        budget_ns = (unsigned)atoi(optarg) * TDM_NSEC_PER_MSEC;
                        break;
                case 'm':
                        rotate_bytes = (uint64_t)TDM_MAX(atoi(optarg), 1) << 20;
                        break;
                case 'x':
                        shapes[0].name = "";
                        if (sscanf(optarg, "%" SCNu32 "x%" SCNu32, &shapes[0].rows, &shapes[0].cols) != 2 ||
                            shapes[0].rows == 0 || shapes[0].cols == 0)
                                return 2;
                        n_shapes = 1;
                        break;
                default:
                        return 2;
                }
        }
        act = tdm_matmul_act(type, act);
        memory = aligned_alloc(TDM_HUGEPAGE_BYTES,
                               TDM_ALIGN_UP(TDM_MAX(rotate_bytes, MATRIX_BYTES_MAX), TDM_HUGEPAGE_BYTES));
        if (!kernels || !memory || tdm_pool_new(&pool, n_threads, NULL) < 0) {
                fprintf(stderr, "no such kernels, or out of memory\n");
                return 1;
        }
        for (uint64_t at = 0; at < rotate_bytes && tdm_hugepage_make(memory + at, 1) == 0; at += TDM_HUGEPAGE_BYTES)
                ;
        for (uint64_t i = 0; i < TDM_MAX(rotate_bytes, MATRIX_BYTES_MAX); i++)
                /* any byte pair is a small f16, any byte of MXFP4 a scale that makes no denormal */
                memory[i] = (uint8_t)(i * 7 % 61 + (type == TDM_TYPE_MXFP4 ? 100 : 0));
        printf("%s, %u threads, activations %s\n", kernels->describe, tdm_pool_n_threads(pool), act_names[act]);
        for (size_t s = 0; s < n_shapes; s++)
                for (size_t r = 0; r < n_all_rows; r++)
                        if (shapes[s].cols % tdm_type_info(type)->block_values == 0)
                                bench(pool, kernels, &shapes[s], type, act, all_rows[r], budget_ns, memory);
        return 0;
}
