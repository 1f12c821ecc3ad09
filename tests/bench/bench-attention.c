/* How fast attention is for the shapes of a 1B and a 4B model: one row behind a short and a long context, many
 * sequences, a chunk of a prompt. For each: the best time of several rounds, on the wall and of the processor (the
 * machine may be busy with other things), the bytes of cache read per second and the multiplications and additions per
 * second.
 *
 *   bench-attention [-t THREADS] [-k c|avx2|avx512] [-v f16|f32|q8_0] [-m 1b|4b] [-s MS]
 *
 * Layers rotate through up to 256 MiB, so that a long context comes from memory as it does behind a model's weights. */
#include <getopt.h>
#include <time.h>

#include "engine/host/attention.h"

#define ROTATE_BYTES (UINT64_C(256) << 20)
#define MAX_LAYERS 32u

static const struct shape {
        const char *name;
        uint32_t n_heads, n_kv_heads, head_dim;
} shapes[] = { { "1b", 4, 1, 256 }, { "4b", 8, 4, 256 } };

static const struct load {
        const char *name;
        uint32_t n_seqs, n_rows, n_ctx; /* rows of each sequence, its positions with them */
} loads[] = {
        { "1 row at 128", 1, 1, 128 },      { "1 row at 512", 1, 1, 512 },
        { "1 row at 2048", 1, 1, 2048 },    { "1 row at 8192", 1, 1, 8192 },
        { "1 row at 32768", 1, 1, 32768 },  { "8 rows at 2048", 8, 1, 2048 },
        { "32 rows at 2048", 32, 1, 2048 }, { "chunk of 256 at 2048", 1, 256, 2048 },
};

static uint64_t cpu_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void bench(struct tdm_pool *pool, const struct tdm_kernels *kernels, const struct shape *shape,
                  const struct load *load, enum tdm_kv_type type, uint64_t budget_ns)
{
        struct tdm_hparams hp = { .n_layers = 1,
                                  .n_heads = shape->n_heads,
                                  .n_kv_heads = shape->n_kv_heads,
                                  .head_dim = shape->head_dim,
                                  .n_ctx = load->n_ctx };
        uint32_t n_pages = TDM_DIV_UP(load->n_ctx, TDM_KV_PAGE_TOKENS), n_rows = load->n_seqs * load->n_rows, layer = 0;
        struct tdm_step step = { .head = { .n_rows = n_rows, .n_seqs = load->n_seqs }, .table_entries = n_pages };
        size_t width = (size_t)shape->n_heads * shape->head_dim;
        uint64_t best_ns = UINT64_MAX, best_cpu_ns = UINT64_MAX, end_ns;
        struct tdm_attention *attention;
        struct tdm_kv_geometry kv;
        double macs = 0, bytes;
        float *q, *out, *row;
        uint8_t *base;

        tdm_hparams_all_layers(&hp);
        if (tdm_kv_geometry_init(&kv, &hp, type, load->n_seqs * n_pages, 0, 0) < 0)
                abort();
        hp.n_layers = (uint32_t)TDM_MIN(TDM_MAX(ROTATE_BYTES / kv.size_bytes, 1u), MAX_LAYERS);
        tdm_hparams_all_layers(&hp);
        if (tdm_kv_geometry_init(&kv, &hp, type, load->n_seqs * n_pages, 0, 0) < 0 ||
            tdm_attention_new(&attention, &hp, n_rows, tdm_pool_n_threads(pool)) < 0)
                abort();
        base = aligned_alloc(4096, kv.size_bytes);
        q = aligned_alloc(64, n_rows * width * sizeof(float));
        out = aligned_alloc(64, n_rows * width * sizeof(float));
        row = aligned_alloc(64, shape->head_dim * sizeof(float));
        step.rows = calloc(n_rows, sizeof(*step.rows));
        step.seqs = calloc(load->n_seqs, sizeof(*step.seqs));
        step.tables[TDM_KV_FULL] = calloc((size_t)load->n_seqs * n_pages, sizeof(uint32_t));
        for (uint32_t i = 0; i < load->n_seqs * n_pages; i++)
                step.tables[TDM_KV_FULL][i] = i;
        for (uint32_t s = 0; s < load->n_seqs; s++) {
                step.seqs[s] = (struct tdm_step_seq){ s, s * load->n_rows, load->n_rows, 0 };
                for (uint32_t i = 0; i < load->n_rows; i++) {
                        uint32_t position = load->n_ctx - load->n_rows + i;

                        step.rows[s * load->n_rows + i] = (struct tdm_step_row){ 0, position, s, UINT32_MAX };
                        macs += 2.0 * (double)width * (position + 1);
                }
        }
        for (uint32_t page = 0; page < load->n_seqs * n_pages; page++)
                for (uint32_t l = 0; l < hp.n_layers; l++)
                        for (uint32_t h = 0; h < shape->n_kv_heads; h++)
                                for (uint32_t t = 0; t < TDM_KV_PAGE_TOKENS; t++) {
                                        for (uint32_t d = 0; d < shape->head_dim; d++)
                                                row[d] = (float)((page * 31 + t * 7 + d * 3) % 113) / 56 - 1;
                                        kernels->kv_store(base + tdm_kv_part_offset(&kv, l, page, h), type,
                                                          shape->head_dim, t, row, row);
                                }
        for (size_t i = 0; i < n_rows * width; i++)
                q[i] = ((float)(i % 101) - 50) / 800;

        bytes = (double)load->n_seqs * n_pages * (double)tdm_kv_layer_bytes(&kv, 0);
        end_ns = tdm_now_ns() + budget_ns;
        for (int round = 0; round < 2 || tdm_now_ns() < end_ns; round++) {
                uint64_t begin_ns = tdm_now_ns(), begin_cpu_ns = cpu_ns();

                tdm_attention_run(attention, pool, kernels, &hp, &kv, base, &step, layer, 0, n_rows, q, NULL, 0, out);
                best_cpu_ns = TDM_MIN(best_cpu_ns, cpu_ns() - begin_cpu_ns);
                best_ns = TDM_MIN(best_ns, tdm_now_ns() - begin_ns);
                layer = (layer + 1) % hp.n_layers;
        }
        printf("%-3s %-22s wall %10.1f us  processor %10.1f us  %7.2f GB/s  %7.2f GMAC/s  (by processor time: %6.2f "
               "GB/s %7.2f GMAC/s)\n",
               shape->name, load->name, (double)best_ns / 1e3, (double)best_cpu_ns / 1e3, bytes / (double)best_ns,
               macs / (double)best_ns, bytes / (double)best_cpu_ns, macs / (double)best_cpu_ns);
        fflush(stdout);
        tdm_attention_destroy(attention);
        free(base), free(q), free(out), free(row), free(step.rows), free(step.seqs), free(step.tables[TDM_KV_FULL]);
}

int main(int argc, char **argv)
{
        const struct tdm_kernels *kernels = tdm_kernels_choose(NULL);
        enum tdm_kv_type type = TDM_KV_F16;
        const char *only = NULL;
        uint64_t budget_ns = 300000000;
        unsigned n_threads = 0;
        struct tdm_pool *pool;
        int c;

        while ((c = getopt(argc, argv, "t:k:v:m:s:")) != -1) {
                if (c == 't')
                        n_threads = (unsigned)atoi(optarg);
                else if (c == 'k')
                        kernels = tdm_kernels_get(optarg);
                else if (c == 'v')
                        type = (enum tdm_kv_type)tdm_kv_type_from_name(optarg);
                else if (c == 'm')
                        only = optarg;
                else if (c == 's')
                        budget_ns = (uint64_t)atoi(optarg) * 1000000;
                else
                        return fprintf(stderr, "usage: bench-attention [-t THREADS] [-k KERNELS] [-v KV_TYPE] [-m "
                                               "1b|4b] [-s MS]\n"),
                               2;
        }
        if (!kernels || (int)type < 0 || tdm_pool_new(&pool, n_threads, NULL) < 0)
                return fprintf(stderr, "bench-attention: no such kernels or cache, or no threads\n"), 1;
        printf("%s, %u threads\n", kernels->describe, tdm_pool_n_threads(pool));
        for (size_t s = 0; s < TDM_ARRAY_SIZE(shapes); s++)
                for (size_t l = 0; l < TDM_ARRAY_SIZE(loads); l++)
                        if (!only || strcmp(only, shapes[s].name) == 0)
                                bench(pool, kernels, &shapes[s], &loads[l], type, budget_ns);
        tdm_pool_destroy(pool);
        return 0;
}
