/* The passes over logits give the same bits with every instruction set that this machine has. */
#include "engine/sampling/lanes-table.h"
#include "engine/sampling/test-sampler.h"

#define N_MAX 700u
#define N_BLOCKS (N_MAX / 64 + 1)

/* What all functions of a table make of some logits. */
struct made {
        float sum[N_BLOCKS], maxima[N_BLOCKS], max, greatest;
        float scores[N_MAX], bounds[N_BLOCKS], bounds_by_id[N_BLOCKS], weights[N_MAX];
};

static void make(const struct tdm_lanes_table *table, const float *logits, const uint32_t *ids, uint32_t n,
                 struct made *ret)
{
        uint32_t n_blocks = TDM_DIV_UP(n, TDM_SAMPLE_MAX_BLOCK);
        struct tdm_noise noise;

        memset(ret, 0, sizeof(*ret));
        tdm_noise_init(&noise, 0.8f, 5, 17);
        ret->max = table->find_maxima(logits, n, ret->maxima);
        ret->greatest = table->greatest_of(ret->maxima, n_blocks);
        if (isnan(ret->max)) { /* nothing else is looked at then */
                memset(ret, 0, sizeof(*ret));
                ret->max = NAN;
                return;
        }
        table->sum_exp(logits, n, ret->max, ret->sum);
        table->noise_scores(&noise, logits, ids, n, ret->max, ret->scores);
        table->noise_bounds(&noise, ret->maxima, NULL, n_blocks, ret->max, ret->bounds);
        table->noise_bounds(&noise, ret->maxima, ids, n_blocks, ret->max, ret->bounds_by_id);
        table->noise_weights(&noise, logits, n, ret->max, ret->weights);
}

static unsigned tables(const struct tdm_lanes_table **ret)
{
        unsigned n = 0;

        ret[n++] = &tdm_lanes_plain;
#ifdef __x86_64__
        if (__builtin_cpu_supports("avx2"))
                ret[n++] = &tdm_lanes_avx2;
#endif
        if (tdm_lanes() != ret[n - 1])
                ret[n++] = tdm_lanes();
        return n;
}

static void test_tables_agree(void **state)
{
        const struct tdm_lanes_table *all[3];
        unsigned n_tables = tables(all);
        float logits[N_MAX];
        uint32_t ids[N_MAX];
        struct made want, got;

        for (uint32_t round = 0; round < 3 * N_MAX; round++) {
                uint32_t n = 1 + round % N_MAX;

                for (uint32_t i = 0; i < n; i++) {
                        logits[i] = random_normal() * (round % 2 ? 40.0f : 3.0f);
                        ids[i] = (uint32_t)(random_uniform() * 262144);
                }
                for (unsigned i = 0; i < round % 4; i++)
                        logits[(uint32_t)(random_uniform() * n)] = -INFINITY;
                if (round % 50 == 1)
                        logits[(uint32_t)(random_uniform() * n)] = round % 100 == 1 ? NAN : INFINITY;
                make(all[0], logits, ids, n, &want);
                for (unsigned i = 1; i < n_tables; i++) {
                        make(all[i], logits, ids, n, &got);
                        assert_memory_equal(&got, &want, sizeof(got));
                }
                if (round % 50 == 1)
                        assert_true(isnan(want.max));
                else
                        assert_true(want.max == want.greatest);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_tables_agree) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
