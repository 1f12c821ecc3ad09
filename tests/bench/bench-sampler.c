/* How long a draw takes, in microseconds of one core.
 *
 *   bench-sampler [-v VOCABULARY] [-r ROUNDS] [-f FILE]
 *
 * Logits: flat (all equal), wide (normal, with a few likely tokens), and those in FILE (f32, whole rows of VOCABULARY;
 * the first row is taken). A vocabulary has 262,144 tokens unless -v says otherwise. The kinds of draws take turns in
 * each round, so what else the machine does falls on all of them. Prints the median of each, and what it takes beyond
 * greedy: the median of the differences within a round. */
#include <getopt.h>
#include <math.h>
#include <time.h>
#include "engine/sampling/sampler.h"

static const struct {
        const char *name;
        struct tdm_sampling sampling;
} kinds[] = {
        { "greedy", { 0.0f, 1.0f, 0.0f, 1.0f, 0, 0, 1 } },
        { "top-k 40", { 0.8f, 1.0f, 0.0f, 1.0f, 40, 0, 1 } },
        { "top-k 40, top-p 0.95, min-p 0.02", { 0.8f, 0.95f, 0.02f, 1.0f, 40, 0, 1 } },
        { "top-p 0.95", { 0.8f, 0.95f, 0.0f, 1.0f, 0, 0, 1 } },
        { "no filter, temperature 0.8", { 0.8f, 1.0f, 0.0f, 1.0f, 0, 0, 1 } },
        { "no filter, temperature 1.5", { 1.5f, 1.0f, 0.0f, 1.0f, 0, 0, 1 } },
};
#define N_KINDS TDM_ARRAY_SIZE(kinds)
#define MAX_ROUNDS 10000u

static double now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t n)
{
        qsort(values, n, sizeof(*values), compare);
        return values[n / 2];
}

static int measure(const char *name, const float *logits, uint32_t n_vocab, uint32_t n_rounds)
{
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n_vocab));
        _cleanup_(freep) double *took = calloc(N_KINDS * (size_t)n_rounds, sizeof(*took)),
                                *beyond = calloc(n_rounds, sizeof(*beyond));

        if (!scratch || !took || !beyond)
                return -ENOMEM;
        for (uint32_t round = 0; round < n_rounds; round++) {
                for (unsigned kind = 0; kind < N_KINDS; kind++) {
                        struct tdm_result result;
                        double start = now_us();
                        int r = tdm_sample(logits, n_vocab, &kinds[kind].sampling, NULL, NULL, round, UINT32_MAX,
                                           scratch, &result);

                        if (r != 0)
                                return r;
                        took[kind * (size_t)n_rounds + round] = now_us() - start;
                }
        }
        for (unsigned kind = N_KINDS; kind-- > 0;) { /* greedy last: medians sort the times */
                double *own = took + kind * (size_t)n_rounds;

                for (uint32_t i = 0; i < n_rounds; i++)
                        beyond[i] = own[i] - took[i];
                printf("%-6s %-34s %8.1f us, beyond greedy %8.1f us\n", name, kinds[kind].name, median(own, n_rounds),
                       median(beyond, n_rounds));
        }
        return 0;
}

int main(int argc, char *argv[])
{
        uint32_t n_vocab = 262144, n_rounds = 301;
        const char *path = NULL;
        uint64_t random_state = 1;
        float *logits;
        int r = 0;

        for (int option; (option = getopt(argc, argv, "v:r:f:")) != -1;) {
                if (option == 'v')
                        n_vocab = (uint32_t)strtoul(optarg, NULL, 10);
                else if (option == 'r')
                        n_rounds = (uint32_t)strtoul(optarg, NULL, 10);
                else if (option == 'f')
                        path = optarg;
                else
                        return 2;
        }
        if (n_vocab == 0 || n_vocab > 1u << 24 || n_rounds == 0 || n_rounds > MAX_ROUNDS)
                return 2;
        logits = calloc(n_vocab, sizeof(*logits));
        if (!logits)
                return 1;
        r = measure("flat", logits, n_vocab, n_rounds);
        for (uint32_t i = 0; i < n_vocab; i++) {
                float sum = 0.0f;

                for (unsigned k = 0; k < 12; k++) {
                        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                        sum += (float)(random_state >> 40) * 0x1p-24f;
                }
                logits[i] = (sum - 6.0f) * 3.0f + (i % 20011 == 1234 ? 14.0f : 0.0f);
        }
        if (r == 0)
                r = measure("wide", logits, n_vocab, n_rounds);
        if (r == 0 && path) {
                FILE *f = fopen(path, "re");

                if (!f || fread(logits, sizeof(*logits), n_vocab, f) != n_vocab) {
                        fprintf(stderr, "cannot read %u logits from %s\n", n_vocab, path);
                        return 1;
                }
                fclose(f);
                r = measure("file", logits, n_vocab, n_rounds);
        }
        free(logits);
        if (r != 0)
                fprintf(stderr, "cannot draw: %s\n", strerror(-r));
        return r != 0;
}
