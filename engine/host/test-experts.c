/* Mixtures of experts: the sum that a row gets is what the same steps give one by one, for every table of kernels,
 * number of threads and company of rows, with 1 to 64 rows on one expert; choices follow the router's numbers, of equal
 * ones the lower expert comes first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sys/mman.h>
#include "engine/host/experts.h"

#define MAX_ROWS 100u
#define MAX_EXPERTS 24u
#define MAX_USED 5u
#define D_MODEL 96u
#define D_EXPERT 160u

static const char *const names[] = { "c", "avx2", "avx512" };
static uint64_t random_state = 11;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

static float random_float(void) /* in (-1, 1) */
{
        return (float)((int32_t)random_u32() >> 8) * 0x1p-23f;
}

static float *random_floats(size_t n)
{
        float *x = malloc(n * sizeof(float));

        assert_non_null(x);
        for (size_t i = 0; i < n; i++)
                x[i] = random_float();
        return x;
}

/* Q8_0, MXFP4 or F32, of values of about 1 / sqrt(cols). */
static void matrix_new(struct tdm_matrix *matrix, uint32_t type, uint32_t rows, uint32_t cols)
{
        uint32_t n_panels = TDM_DIV_UP(rows, TDM_PANEL_ROWS);
        uint8_t *data;

        *matrix = (struct tdm_matrix){
                .panel_bytes = tdm_weights_panel_bytes(type, cols), .type = type, .rows = rows, .cols = cols
        };
        matrix->data = data = aligned_alloc(64, n_panels * matrix->panel_bytes);
        assert_non_null(data);
        for (size_t i = 0; i < n_panels * matrix->panel_bytes; i++)
                data[i] = (uint8_t)random_u32();
        for (uint32_t p = 0; p < n_panels; p++, data += matrix->panel_bytes)
                for (uint32_t i = 0; i < cols / 32 * TDM_PANEL_ROWS; i++)
                        if (type == TDM_TYPE_MXFP4)
                                data[i] = (uint8_t)(122 + random_u32() % 3);
                        else if (type == TDM_TYPE_Q8_0)
                                ((uint16_t *)(void *)data)[i] = (uint16_t)(0x1400 + random_u32() % 0x400);
        if (type == TDM_TYPE_F32)
                for (size_t i = 0; i < n_panels * matrix->panel_bytes / 4; i++)
                        ((float *)(void *)(uintptr_t)matrix->data)[i] = random_float() * 0.15f;
}

struct fixture {
        struct tdm_experts_layer layer;
        float *x; /* [MAX_ROWS][D_MODEL] */
        float *z; /* [MAX_ROWS][MAX_EXPERTS] */
};

static void fixture_init(struct fixture *f, uint32_t type, enum tdm_act act, uint32_t n_experts, uint32_t n_used,
                         enum tdm_activation activation)
{
        struct tdm_experts_layer *l = &f->layer;

        *l = (struct tdm_experts_layer){
                .gate_act = tdm_matmul_act(type, act),
                .up_act = tdm_matmul_act(type, act),
                .down_act = tdm_matmul_act(type, act),
                .n_experts = n_experts,
                .n_used = n_used,
                .d_expert = D_EXPERT,
                .gate_panels = D_EXPERT / TDM_PANEL_ROWS,
                .router = TDM_ROUTER_SOFTMAX_CHOSEN,
                .activation = activation,
        };
        matrix_new(&l->gate, type, n_experts * D_EXPERT, D_MODEL);
        matrix_new(&l->up, type, n_experts * D_EXPERT, D_MODEL);
        matrix_new(&l->down, type, n_experts * D_MODEL, D_EXPERT);
        if (activation == TDM_ACTIVATION_SWIGLU_CLAMPED) {
                l->gate_bias = random_floats((size_t)n_experts * D_EXPERT);
                l->up_bias = random_floats((size_t)n_experts * D_EXPERT);
                l->down_bias = random_floats((size_t)n_experts * D_MODEL);
                l->scales = random_floats(n_experts);
                l->router = TDM_ROUTER_SOFTMAX_ALL;
        }
        f->x = random_floats(MAX_ROWS * D_MODEL);
        f->z = random_floats((size_t)MAX_ROWS * MAX_EXPERTS);
}

static void fixture_deinit(struct fixture *f)
{
        free((void *)f->layer.gate.data), free((void *)f->layer.up.data), free((void *)f->layer.down.data);
        free((void *)f->layer.gate_bias), free((void *)f->layer.up_bias), free((void *)f->layer.down_bias);
        free((void *)f->layer.scales), free(f->x), free(f->z);
}

/* Rows `rows` of the fixture in one call. */
static void run(const struct fixture *f, const char *cpu, unsigned n_threads, const uint32_t *rows, uint32_t n,
                float *y)
{
        const struct tdm_kernels *kernels = tdm_kernels_get(cpu);
        struct tdm_experts_sizes sizes = { .max_rows = MAX_ROWS,
                                           .n_experts = f->layer.n_experts,
                                           .n_used = f->layer.n_used,
                                           .d_expert = D_EXPERT,
                                           .d_out = D_MODEL,
                                           .down_forms = 1u << f->layer.down_act };
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;
        _cleanup_(freep) float *z = malloc((size_t)n * MAX_EXPERTS * sizeof(float));
        struct tdm_experts *experts;
        struct tdm_acts acts;

        assert_int_equal(tdm_pool_new(&pool, n_threads, NULL), 0);
        assert_int_equal(tdm_experts_new(&experts, &sizes), 0);
        assert_int_equal(tdm_acts_init(&acts, 1u << f->layer.gate_act, MAX_ROWS, D_MODEL), 0);
        for (uint32_t i = 0; i < n; i++) {
                tdm_acts_prepare_row(&acts, kernels, i, f->x + (size_t)rows[i] * D_MODEL, D_MODEL);
                memcpy(z + (size_t)i * MAX_EXPERTS, f->z + (size_t)rows[i] * MAX_EXPERTS, MAX_EXPERTS * sizeof(float));
        }
        tdm_experts_run(experts, &f->layer, pool, kernels, &acts, n, z, MAX_EXPERTS, y, D_MODEL);
        tdm_acts_deinit(&acts);
        tdm_experts_destroy(experts);
}

static double weight(const struct tdm_matrix *matrix, uint32_t row, uint32_t col)
{
        struct tdm_weights_tensor tensor = { .type = matrix->type,
                                             .layout = TDM_LAYOUT_PANEL16,
                                             .rows = matrix->rows,
                                             .cols = matrix->cols,
                                             .panel_bytes = matrix->panel_bytes };

        return (double)tdm_weights_value(matrix->data, &tensor, row, col);
}

/* One row in double, of an unrounded input: the chosen experts are found by sorting. */
static void reference(const struct fixture *f, uint32_t row, double *y)
{
        const struct tdm_experts_layer *l = &f->layer;
        const float *z = f->z + (size_t)row * MAX_EXPERTS, *x = f->x + (size_t)row * D_MODEL;
        bool used[MAX_EXPERTS] = { false };
        double sum = 0, all = 0;

        memset(y, 0, D_MODEL * sizeof(*y));
        for (uint32_t e = 0; e < l->n_experts; e++)
                all += exp((double)z[e]);
        for (uint32_t k = 0; k < l->n_used; k++) {
                uint32_t best = UINT32_MAX;

                for (uint32_t e = 0; e < l->n_experts; e++)
                        if (!used[e] && (best == UINT32_MAX || z[e] > z[best]))
                                best = e;
                used[best] = true;
                sum += exp((double)z[best]);
        }
        for (uint32_t e = 0; e < l->n_experts; e++) {
                double h[D_EXPERT], w = exp((double)z[e]) / (l->router == TDM_ROUTER_SOFTMAX_ALL ? all : sum);

                if (!used[e])
                        continue;
                for (uint32_t i = 0; i < D_EXPERT; i++) {
                        double g = l->gate_bias ? (double)l->gate_bias[e * D_EXPERT + i] : 0,
                               u = l->up_bias ? (double)l->up_bias[e * D_EXPERT + i] : 0;

                        for (uint32_t c = 0; c < D_MODEL; c++) {
                                g += weight(&l->gate, e * D_EXPERT + i, c) * (double)x[c];
                                u += weight(&l->up, e * D_EXPERT + i, c) * (double)x[c];
                        }
                        if (l->activation == TDM_ACTIVATION_SILU)
                                h[i] = g / (1 + exp(-g)) * u;
                        else
                                h[i] = fmin(g, 7) / (1 + exp(-1.702 * fmin(g, 7))) * (fmax(fmin(u, 7), -7) + 1);
                }
                for (uint32_t o = 0; o < D_MODEL; o++) {
                        double out = l->down_bias ? (double)l->down_bias[e * D_MODEL + o] : 0;

                        for (uint32_t i = 0; i < D_EXPERT; i++)
                                out += weight(&l->down, e * D_MODEL + o, i) * h[i];
                        y[o] += w * (l->scales ? (double)l->scales[e] : 1) * out;
                }
        }
}

/* What every row gets alone, from the C reference; checked against doubles. */
static float *rows_alone(const struct fixture *f, double bound)
{
        float *y = malloc(MAX_ROWS * D_MODEL * sizeof(float));

        for (uint32_t row = 0; row < MAX_ROWS; row++) {
                double want[D_MODEL], off = 0, size = 0;

                run(f, "c", 1, &row, 1, y + (size_t)row * D_MODEL);
                if (row % 9)
                        continue;
                reference(f, row, want);
                for (uint32_t i = 0; i < D_MODEL; i++) {
                        off = fmax(off, fabs((double)y[(size_t)row * D_MODEL + i] - want[i]));
                        size = fmax(size, fabs(want[i]));
                }
                assert_true(off <= bound * size);
        }
        return y;
}

static void check_company(const struct fixture *f, const char *cpu, unsigned n_threads, uint32_t n, const float *alone)
{
        float y[MAX_ROWS][D_MODEL];
        uint32_t rows[MAX_ROWS];

        for (uint32_t i = 0; i < n; i++)
                rows[i] = random_u32() % MAX_ROWS;
        run(f, cpu, n_threads, rows, n, &y[0][0]);
        for (uint32_t i = 0; i < n; i++)
                assert_memory_equal(y[i], alone + (size_t)rows[i] * D_MODEL, sizeof(y[i]));
}

static void company(void **state)
{
        static const struct {
                uint32_t type;
                enum tdm_act act;
                enum tdm_activation activation;
                double bound; /* of the largest output: what rounding the inputs costs */
        } cases[] = {
                { TDM_TYPE_F32, TDM_ACT_F32, TDM_ACTIVATION_SILU, 1e-5 },
                { TDM_TYPE_Q8_0, TDM_ACT_I8, TDM_ACTIVATION_SILU, 0.05 },
                { TDM_TYPE_Q8_0, TDM_ACT_I16, TDM_ACTIVATION_SWIGLU_CLAMPED, 3e-4 },
                { TDM_TYPE_MXFP4, TDM_ACT_F32, TDM_ACTIVATION_SWIGLU_CLAMPED, 1e-5 },
                { TDM_TYPE_MXFP4, TDM_ACT_I8, TDM_ACTIVATION_SWIGLU_CLAMPED, 0.05 },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                _cleanup_(freep) float *alone = NULL;
                struct fixture f;

                fixture_init(&f, cases[i].type, cases[i].act, MAX_EXPERTS, MAX_USED, cases[i].activation);
                alone = rows_alone(&f, cases[i].bound);
                for (unsigned k = 0; k < TDM_ARRAY_SIZE(names); k++)
                        for (unsigned n_threads = 1; n_threads <= 3 && tdm_kernels_get(names[k]); n_threads++)
                                for (uint32_t n = 1; n <= MAX_ROWS; n += 1 + n * 2 / 3)
                                        check_company(&f, names[k], n_threads, n, alone);
                fixture_deinit(&f);
        }
}

/* Whole pages of the weights of every expert but one: a read of them ends the test. */
static void protect_others(const struct tdm_matrix *matrix, uint32_t n_experts, uint32_t but, int how)
{
        const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        size_t bytes = matrix->rows / n_experts / TDM_PANEL_ROWS * matrix->panel_bytes;

        for (uint32_t e = 0; e < n_experts; e++) {
                uintptr_t first = TDM_ALIGN_UP((uintptr_t)matrix->data + e * bytes, page),
                          end = ((uintptr_t)matrix->data + (e + 1) * bytes) & ~(page - 1);

                if (e != but && first < end)
                        assert_int_equal(mprotect((void *)first, end - first, how), 0);
        }
}

/* Every row wants the same experts, and no row another one. */
static void one_expert(void **state)
{
        struct fixture f;

        fixture_init(&f, TDM_TYPE_Q8_0, TDM_ACT_I8, 8, 1, TDM_ACTIVATION_SILU);
        for (uint32_t row = 0; row < MAX_ROWS; row++)
                f.z[row * MAX_EXPERTS + 5] = 2;
        protect_others(&f.layer.down, 8, 5, PROT_NONE); /* weights that no row wants are not read */
        {
                _cleanup_(freep) float *alone = rows_alone(&f, 0.05);

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(names); k++)
                        for (uint32_t n = 1; n <= 64 && tdm_kernels_get(names[k]); n++)
                                check_company(&f, names[k], 1 + n % 3, n, alone);
        }
        protect_others(&f.layer.down, 8, 5, PROT_READ | PROT_WRITE);
        fixture_deinit(&f);
}

/* All experts are in use. */
static void every_expert(void **state)
{
        struct fixture f;

        fixture_init(&f, TDM_TYPE_MXFP4, TDM_ACT_I16, 4, 4, TDM_ACTIVATION_SILU);
        {
                _cleanup_(freep) float *alone = rows_alone(&f, 3e-4);

                for (uint32_t n = 1; n <= 20; n++)
                        check_company(&f, "c", 2, n, alone);
        }
        fixture_deinit(&f);
}

static void choices(void **state)
{
        static const struct {
                float z[6];
                uint32_t ids[3];
        } cases[] = {
                { { 1, 5, 3, 2, 4, 0 }, { 1, 4, 2 } },
                { { 0, 0, 0, 0, 0, 0 }, { 0, 1, 2 } },
                { { 1, 2, 2, 2, 2, 3 }, { 5, 1, 2 } },
                { { 7, 2, 7, 2, 7, 2 }, { 0, 2, 4 } },
                { { -1, -2, -3, -4, -5, -1 }, { 0, 5, 1 } },
                { { -0.0f, 0, -0.0f, 0, 0, 0 }, { 0, 1, 2 } },
                { { NAN, 1, NAN, 0, NAN, NAN }, { 1, 3, 0 } },
                { { NAN, NAN, NAN, NAN, NAN, NAN }, { 0, 1, 2 } },
                { { -INFINITY, 1, 2, -INFINITY, -INFINITY, -INFINITY }, { 2, 1, 0 } },
        };
        struct tdm_experts_layer layer = { .n_experts = 6, .n_used = 3, .router = TDM_ROUTER_SOFTMAX_CHOSEN };
        const float scales[6] = { 2, 2, 2, 2, 2, 2 };
        const struct tdm_kernels *kernels = tdm_kernels_get("c");

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                uint32_t ids[3];
                float weights[3];

                tdm_experts_choose(&layer, kernels, cases[i].z, ids, weights);
                assert_memory_equal(ids, cases[i].ids, sizeof(ids));
        }
        for (unsigned round = 0; round < 4; round++) {
                const float *z = cases[0].z;
                double sum = exp(5) + exp(4) + exp(3);
                uint32_t ids[3];
                float weights[3];

                layer.router = round % 2 ? TDM_ROUTER_SOFTMAX_ALL : TDM_ROUTER_SOFTMAX_CHOSEN;
                layer.scales = round / 2 ? scales : NULL;
                if (round % 2)
                        sum += exp(1) + exp(2) + exp(0);
                tdm_experts_choose(&layer, kernels, z, ids, weights);
                for (unsigned k = 0; k < 3; k++)
                        assert_true(fabs((double)weights[k] * sum / (round / 2 ? 2 : 1) - exp(5.0 - k)) < 1e-4);
        }
}

/* By a sigmoid the bias chooses and does not weigh. */
static void sigmoids(void **state)
{
        static const struct {
                float z[6], bias[6];
                uint32_t ids[3];
        } cases[] = {
                { { 1, 5, 3, 2, 4, 0 }, { 0 }, { 1, 4, 2 } },
                { { 1, 5, 3, 2, 4, 0 }, { 0, 0, 0, 0, 0, 1 }, { 5, 1, 4 } },
                { { 1, 5, 3, 2, 4, 0 }, { 0.5f, -1, -0.25f, 0, 0, 0 }, { 0, 4, 3 } },
                { { 0, 0, 0, 0, 0, 0 }, { 0, 0, 1, 0, 1, 0 }, { 2, 4, 0 } },
                { { 100, 200, 300, -300, 0, 0 }, { 0 }, { 0, 1, 2 } }, /* all of the largest are 1 */
                { { -300, -300, -300, -300, -300, -300 }, { 0, 0, 0, 3, 2, 1 }, { 3, 4, 5 } },
                { { NAN, 1, NAN, 0, NAN, NAN }, { 0 }, { 1, 3, 0 } },
                { { 1, 2, 3, 4, 5, 6 }, { 0, 0, 0, 0, NAN, -INFINITY }, { 3, 2, 1 } },
        };
        const float scales[6] = { 2, 2, 2, 2, 2, 2 };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++)
                for (unsigned cpu = 0; cpu < TDM_ARRAY_SIZE(names); cpu++) {
                        struct tdm_experts_layer layer = { .n_experts = 6,
                                                           .n_used = 3,
                                                           .router = TDM_ROUTER_SIGMOID,
                                                           .choice_bias = cases[i].bias,
                                                           .scales = cpu ? scales : NULL };
                        const struct tdm_kernels *kernels = tdm_kernels_get(names[cpu]);
                        double sum = 1e-6;
                        uint32_t ids[3];
                        float weights[3];

                        if (!kernels)
                                continue;
                        tdm_experts_choose(&layer, kernels, cases[i].z, ids, weights);
                        assert_memory_equal(ids, cases[i].ids, sizeof(ids));
                        for (unsigned k = 0; k < 3; k++)
                                sum += 1 / (1 + exp(-(double)cases[i].z[ids[k]]));
                        for (unsigned k = 0; k < 3 && !isnan(sum); k++)
                                assert_true(fabs((double)weights[k] * sum / (cpu ? 2 : 1) -
                                                 1 / (1 + exp(-(double)cases[i].z[ids[k]]))) < 1e-6);
                }
}

/* tandemd plans for what they take. */
static void planned(void **state)
{
        static struct tdm_recipe recipe = { .n_streams = 1 };
        const struct tdm_experts_sizes sizes = {
                .max_rows = TDM_TILE_ROWS,
                .n_experts = 128,
                .n_used = TDM_MAX_EXPERTS_USED,
                .d_expert = 64,
                .d_out = 2048,
                .down_forms = 1u << TDM_ACT_F32 | 1u << TDM_ACT_I16 | 1u << TDM_ACT_I8,
        };
        struct tdm_hparams hp = { .n_layers = 1, .d_model = 2048, .n_heads = 1, .n_kv_heads = 1, .head_dim = 32 };
        uint64_t without, with, taken;
        struct tdm_experts *experts;

        hp.n_ctx = 1024;
        tdm_hparams_all_layers(&hp);
        without = tdm_recipe_scratch_bytes(&recipe, &hp, 4096);
        recipe.layers[0].n_experts = sizes.n_experts;
        recipe.layers[0].n_experts_used = sizes.n_used;
        recipe.layers[0].d_expert = sizes.d_expert;
        with = tdm_recipe_scratch_bytes(&recipe, &hp, 4096);
        assert_int_equal(tdm_experts_new(&experts, &sizes), 0);
        taken = tdm_experts_scratch_bytes(experts);
        tdm_experts_destroy(experts);
        assert_true(with - without >= taken);
        assert_true(with - without <= taken + taken / 4);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(choices),      cmocka_unit_test(company), cmocka_unit_test(one_expert),
                cmocka_unit_test(every_expert), cmocka_unit_test(planned), cmocka_unit_test(sigmoids),
        };

        unsetenv("TANDEM_CPU");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
