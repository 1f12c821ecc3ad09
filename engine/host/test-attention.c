/* Attention over a paged cache with scattered pages, against a softmax in double precision, and for equal bits from any
 * cut of the rows, any number of threads (so: by items and by spans) and any kernels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/host/attention.h"

#define N_CTX 1600u

struct shape {
        uint32_t n_heads, n_kv_heads, head_dim, window;
        enum tdm_kv_type type;
};

static const struct shape shapes[] = {
        { 4, 1, 32, 0, TDM_KV_F16 },    { 4, 2, 48, 300, TDM_KV_F32 },  { 3, 3, 16, 33, TDM_KV_F16 },
        { 70, 1, 16, 500, TDM_KV_F16 }, { 2, 1, 256, 0, TDM_KV_F32 },   { 4, 2, 80, 300, TDM_KV_Q8_0 },
        { 2, 1, 64, 0, TDM_KV_Q8_0 },   { 4, 2, 100, 300, TDM_KV_F16 }, { 3, 1, 20, 0, TDM_KV_F32 },
        { 5, 1, 120, 33, TDM_KV_Q8_0 },
};

/* Two sequences: a chunk of rows in the middle, and one row at the far end. */
static const struct tdm_step_seq seqs[] = { { 0, 0, 37, 0 }, { 1, 37, 1, 0 } };
static const uint32_t starts[] = { 490, N_CTX - 1 };
#define N_ROWS 38u
/* Longer than the smallest window, and over the end of a span. Rows before it and behind it see it as they see text. */
static struct tdm_step_picture picture = { 1, 35 };

static uint64_t state = 88172645463325252u;
static uint32_t rnd(void)
{
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (uint32_t)(state >> 16);
}

static float eighths(void) /* held exactly by f16 */
{
        return (float)((int)(rnd() % 33) - 16) / 8;
}

/* Held exactly by the type, |x| <= 2: a q8_0 block has one ±127. */
static float element(enum tdm_kv_type type, uint32_t d)
{
        if (type != TDM_KV_Q8_0)
                return eighths();
        return (float)(d % 16 == 7 ? 127 : (int)(rnd() % 255) - 127) / 64;
}

#define MAX_HEADS 128u

struct fixture {
        struct tdm_hparams hp;
        struct tdm_kv_geometry kv;
        struct tdm_step step;
        uint8_t *kv_base;
        float *k, *v; /* [2][N_CTX][n_kv_heads][head_dim] */
        float *q;     /* [N_ROWS][n_heads][head_dim] */
        size_t out_bytes;
        const float *sinks; /* NULL: none */
        float softcap;      /* 0: none */
};

static void fixture_init(struct fixture *f, const struct shape *shape, bool has_picture)
{
        const struct tdm_kernels *kernels = tdm_kernels_get("c");
        uint32_t n_pages = N_CTX / TDM_KV_PAGE_TOKENS, row = 0;
        size_t kv_width = (size_t)shape->n_kv_heads * shape->head_dim;
        enum tdm_kv_group group;

        *f = (struct fixture){ .hp = { .n_layers = 3,
                                       .n_heads = shape->n_heads,
                                       .n_kv_heads = shape->n_kv_heads,
                                       .head_dim = shape->head_dim,
                                       .n_ctx = N_CTX,
                                       .window = shape->window } };
        tdm_hparams_all_layers(&f->hp);
        group = tdm_kv_group_of(&f->hp, 1);
        assert_int_equal(tdm_kv_geometry_init(&f->kv, &f->hp, shape->type, 2 * n_pages, 2 * n_pages, 0), 0);
        f->kv_base = malloc(f->kv.size_bytes);
        memset(f->kv_base, 0xff, f->kv.size_bytes); /* NaN */
        f->k = malloc(2 * N_CTX * kv_width * sizeof(float));
        f->v = malloc(2 * N_CTX * kv_width * sizeof(float));
        f->out_bytes = (size_t)N_ROWS * shape->n_heads * shape->head_dim * sizeof(float);
        f->q = malloc(f->out_bytes);
        for (size_t i = 0; i < f->out_bytes / sizeof(float); i++)
                f->q[i] = ((float)(rnd() % 1001) - 500) / 1500;

        f->step.head.n_rows = N_ROWS;
        f->step.head.n_seqs = 2;
        f->step.rows = calloc(N_ROWS, sizeof(*f->step.rows));
        f->step.seqs = (struct tdm_step_seq *)seqs;
        f->step.table_entries = n_pages;
        f->step.pictures = &picture;
        f->step.head.n_pictures = has_picture;
        f->step.tables[group] = malloc(2 * n_pages * sizeof(uint32_t));
        for (uint32_t s = 0; s < 2; s++) {
                for (uint32_t i = 0; i < seqs[s].n_rows; i++, row++) {
                        f->step.rows[row] = (struct tdm_step_row){ 0, starts[s] + i, s, UINT32_MAX, 0 };
                        if (has_picture && row >= picture.first_row && row - picture.first_row < picture.n_rows)
                                f->step.rows[row].picture = 1;
                }
                for (uint32_t i = 0; i < n_pages; i++)
                        f->step.tables[group][s * n_pages + i] = (i * 2 + s) * 7 % (2 * n_pages);
                for (uint32_t t = 0; t < starts[s] + seqs[s].n_rows; t++)
                        for (uint32_t h = 0; h < shape->n_kv_heads; h++) {
                                size_t at = ((size_t)s * N_CTX + t) * kv_width + (size_t)h * shape->head_dim;
                                uint32_t page = f->step.tables[group][s * n_pages + t / TDM_KV_PAGE_TOKENS];

                                for (uint32_t d = 0; d < shape->head_dim; d++) {
                                        f->k[at + d] = element(shape->type, d);
                                        f->v[at + d] = element(shape->type, d);
                                }
                                if (t >= tdm_window_first(&f->hp, group, starts[s])) /* before: slid out */
                                        kernels->kv_store(f->kv_base + tdm_kv_part_offset(&f->kv, 1, page, h),
                                                          shape->type, shape->head_dim, t % TDM_KV_PAGE_TOKENS,
                                                          f->k + at, f->v + at);
                        }
        }
}

static void fixture_deinit(struct fixture *f, enum tdm_kv_group group)
{
        free(f->kv_base), free(f->k), free(f->v), free(f->q), free(f->step.rows), free(f->step.tables[group]);
}

/* In calls of at most max_rows rows. */
static float *run(const struct fixture *f, const char *cpu, unsigned n_threads, uint32_t max_rows)
{
        struct tdm_attention *attention;
        struct tdm_pool *pool;
        float *out = malloc(f->out_bytes);
        size_t width = (size_t)f->hp.n_heads * f->hp.head_dim;

        memset(out, 0xff, f->out_bytes);
        assert_int_equal(tdm_pool_new(&pool, n_threads, NULL), 0);
        assert_int_equal(tdm_attention_new(&attention, &f->hp, max_rows, n_threads), 0);
        for (uint32_t first = 0, n; first < N_ROWS; first += n) {
                n = TDM_MIN(max_rows, N_ROWS - first);
                tdm_attention_run(attention, pool, tdm_kernels_get(cpu), &f->hp, &f->kv, f->kv_base, &f->step, 1, first,
                                  n, f->q + first * width, f->sinks, f->softcap, out + first * width);
        }
        tdm_attention_destroy(attention);
        tdm_pool_destroy(pool);
        return out;
}

static void check_values(const struct fixture *f, enum tdm_kv_group group, const float *out)
{
        uint32_t head_dim = f->hp.head_dim, heads_per_kv = f->hp.n_heads / f->hp.n_kv_heads;

        for (uint32_t row = 0; row < N_ROWS; row++)
                for (uint32_t h = 0; h < f->hp.n_heads; h++) {
                        const float *q = f->q + ((size_t)row * f->hp.n_heads + h) * head_dim;
                        uint32_t position = f->step.rows[row].position;
                        uint32_t first = tdm_window_first(&f->hp, group, position), last = position;
                        double l = f->sinks ? exp((double)f->sinks[h]) : 0, o[256] = {};

                        if (f->step.rows[row].picture) {
                                first = TDM_MIN(first, starts[0] + picture.first_row);
                                last = starts[0] + picture.first_row + picture.n_rows - 1;
                        }
                        for (uint32_t t = first; t <= last; t++) {
                                size_t at = (((size_t)f->step.rows[row].seq * N_CTX + t) * f->hp.n_kv_heads +
                                             h / heads_per_kv) *
                                            head_dim;
                                double s = 0, p;

                                for (uint32_t d = 0; d < head_dim; d++)
                                        s += (double)q[d] * f->k[at + d];
                                p = exp(f->softcap > 0 ? f->softcap * tanh(s / f->softcap) : s);
                                l += p;
                                for (uint32_t d = 0; d < head_dim; d++)
                                        o[d] += p * f->v[at + d];
                        }
                        /* |v| <= 2; a score of head_dim products below 2/3 is off by their roundings */
                        for (uint32_t d = 0; d < head_dim; d++)
                                assert_true(fabs(out[((size_t)row * f->hp.n_heads + h) * head_dim + d] - o[d] / l) <=
                                            4 * (head_dim + 16) * 0x1p-24);
                }
}

static void check_all(bool has_sinks, float softcap, bool has_picture)
{
        static const char *const names[] = { "c", "avx2", "avx512" };
        const size_t every = softcap > 0 ? 3 : 1; /* a cap meets each score by itself: a few shapes are enough */
        float sinks[MAX_HEADS];

        for (size_t i = 0; i < MAX_HEADS; i++) /* less than all scores, like them, more than all */
                sinks[i] = ((float)(rnd() % 1001) - 500) / 50;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(shapes); i += every) {
                struct fixture f;
                enum tdm_kv_group group = shapes[i].window ? TDM_KV_WINDOW : TDM_KV_FULL;
                float *want;

                fixture_init(&f, &shapes[i], has_picture);
                assert_true(f.hp.n_heads <= MAX_HEADS);
                f.sinks = has_sinks ? sinks : NULL;
                f.softcap = softcap;
                want = run(&f, "c", 1, N_ROWS);
                check_values(&f, group, want);
                for (size_t k = 0; k < TDM_ARRAY_SIZE(names); k++)
                        for (unsigned n_threads = k ? 1 : 3; n_threads <= 3 && tdm_kernels_get(names[k]); n_threads++)
                                for (uint32_t max_rows = 1; max_rows <= N_ROWS; max_rows += 1 + max_rows * 3) {
                                        float *got = run(&f, names[k], n_threads, max_rows);

                                        assert_memory_equal(want, got, f.out_bytes);
                                        free(got);
                                }
                free(want);
                fixture_deinit(&f, group);
        }
}

static void test_attention(void **unused)
{
        check_all(false, 0, false);
}

static void test_picture(void **unused)
{
        check_all(false, 0, true);
}

static void test_sinks(void **unused)
{
        check_all(true, 0, false);
}

/* Less than most scores. */
static void test_softcap(void **unused)
{
        check_all(false, 1.5f, false);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_attention), cmocka_unit_test(test_picture),
                                            cmocka_unit_test(test_sinks), cmocka_unit_test(test_softcap) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
