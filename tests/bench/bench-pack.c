/* How fast a file's rows become panels: GB/s of the file's bytes for each type and number of threads, beside memcpy()
 * by the same threads, of pieces as large as panels of Q8_0.
 *
 *   bench-pack [-t THREADS_MAX] [-w q4_0|q8_0|f16|… any type] [-c COLS] [-m MIB] [-n ROUNDS]
 *
 * Rows lie in small pages, as a mapped file does, panels in huge ones. The types take turns and the median of the
 * rounds counts: the machine may be busy with other things. Fewer MiB (-m) than the cache holds show what the
 * instructions alone take. */
#include <getopt.h>
#include <strings.h>
#include "common/hugepage.h"
#include "common/pool.h"
#include "engine/weights/weights-private.h"

#define CHUNK_BYTES (UINT64_C(1) << 14) /* as engine/weights/build.c */
#define ROUNDS_MAX 99
#define COPY UINT32_MAX

struct job {
        uint32_t type, cols, n_panels, chunk_panels; /* type COPY: memcpy() */
        uint64_t row_bytes, panel_bytes;
        uint8_t *dst;
        const uint8_t *src;
};

static void pack_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct job *job = arg;
        uint32_t first = chunk * job->chunk_panels, end = TDM_MIN(first + job->chunk_panels, job->n_panels);

        for (uint32_t panel = first; panel < end; panel++) {
                const uint8_t *src = job->src + panel * TDM_PANEL_ROWS * job->row_bytes;
                uint8_t *dst = job->dst + panel * job->panel_bytes;

                if (job->type == COPY)
                        memcpy(dst, src, TDM_PANEL_ROWS * job->row_bytes);
                else if (!tdm_weights_pack_panel(job->type, dst, src, job->row_bytes, TDM_PANEL_ROWS, job->cols))
                        abort(); /* the rows have no such scale */
        }
}

/* GB/s */
static double measure(struct tdm_pool *pool, struct job *job, uint64_t bytes)
{
        uint32_t layout_type = job->type == COPY ? TDM_TYPE_Q8_0 : job->type;
        const struct tdm_type_info *info = tdm_type_info(layout_type);
        uint64_t start_ns = tdm_now_ns(), n = 0, ns;

        job->row_bytes = job->cols / info->block_values * info->block_bytes;
        job->panel_bytes = tdm_weights_panel_bytes(layout_type, job->cols);
        job->n_panels = (uint32_t)(bytes / job->panel_bytes);
        job->chunk_panels = (uint32_t)TDM_MAX(CHUNK_BYTES / job->panel_bytes, UINT64_C(1));
        do {
                tdm_pool_run(pool, TDM_DIV_UP(job->n_panels, job->chunk_panels), pack_chunk, job);
                n++;
                ns = tdm_now_ns() - start_ns;
        } while (ns < 10 * TDM_NSEC_PER_MSEC);
        return (double)(n * job->n_panels * TDM_PANEL_ROWS * job->row_bytes) / (double)ns;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
        uint32_t types[64] = { COPY, TDM_TYPE_Q4_0, TDM_TYPE_Q8_0, TDM_TYPE_F16, TDM_TYPE_BF16, TDM_TYPE_F32 };
        static double speeds[64][ROUNDS_MAX];
        unsigned n_types = 6, n_threads_max = 0, n_rounds = 7;
        uint64_t bytes = UINT64_C(1024) << 20, random = 1;
        struct job job = { .cols = 5376 };
        _cleanup_(freep) uint8_t *src = NULL, *dst = NULL;
        int c;

        while ((c = getopt(argc, argv, "t:w:c:m:n:")) != -1) {
                switch (c) {
                case 't':
                        n_threads_max = (unsigned)atoi(optarg);
                        break;
                case 'w':
                        n_types = 1;
                        for (uint32_t type = 0; type < 64; type++)
                                if (tdm_weights_type_supported(type) &&
                                    strcasecmp(tdm_type_info(type)->name, optarg) == 0)
                                        types[n_types++] = type;
                        if (n_types == 1) {
                                fprintf(stderr, "no type %s\n", optarg);
                                return 2;
                        }
                        break;
                case 'c':
                        job.cols = (uint32_t)TDM_MAX(atoi(optarg), 1);
                        break;
                case 'm':
                        bytes = (uint64_t)TDM_MAX(atoi(optarg), 1) << 20;
                        break;
                case 'n':
                        n_rounds = (unsigned)TDM_MIN(TDM_MAX(atoi(optarg), 1), ROUNDS_MAX);
                        break;
                default:
                        return 2;
                }
        }
        for (unsigned t = 0; t < n_types; t++)
                if (types[t] != COPY && job.cols % tdm_type_info(types[t])->block_values != 0) {
                        fprintf(stderr, "%u columns are no whole blocks of %s\n", job.cols,
                                tdm_type_info(types[t])->name);
                        return 2;
                }
        bytes = TDM_ALIGN_UP(bytes, TDM_HUGEPAGE_BYTES);
        src = malloc(bytes);
        dst = aligned_alloc(TDM_HUGEPAGE_BYTES, bytes);
        if (!src || !dst) {
                fprintf(stderr, "out of memory\n");
                return 1;
        }
        for (uint64_t i = 0; i < bytes; i += sizeof(random)) {
                uint64_t word = random & UINT64_C(0x3f3f3f3f3f3f3f3f); /* finite in every type */

                random = random * UINT64_C(6364136223846793005) + 1;
                memcpy(src + i, &word, sizeof(word));
        }
        for (uint64_t at = 0; at < bytes && tdm_hugepage_make(dst + at, 1) == 0; at += TDM_HUGEPAGE_BYTES)
                ;
        memset(dst, 0, bytes);
        job.src = src;
        job.dst = dst;
        if (n_threads_max == 0) {
                _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

                n_threads_max = tdm_pool_new(&pool, 0, NULL) < 0 ? 1 : tdm_pool_n_threads(pool);
        }
        for (unsigned n_threads = 1; n_threads <= n_threads_max; n_threads *= 2) {
                _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

                if (tdm_pool_new(&pool, n_threads, NULL) < 0)
                        return 1;
                for (unsigned round = 0; round < n_rounds; round++)
                        for (unsigned t = 0; t < n_types; t++) {
                                job.type = types[t];
                                speeds[t][round] = measure(pool, &job, bytes);
                        }
                printf("%2u threads", n_threads);
                for (unsigned t = 0; t < n_types; t++) {
                        qsort(speeds[t], n_rounds, sizeof(double), compare);
                        printf("  %s %.1f", types[t] == COPY ? "memcpy" : tdm_type_info(types[t])->name,
                               speeds[t][n_rounds / 2]);
                }
                printf(" GB/s\n");
        }
        return 0;
}
