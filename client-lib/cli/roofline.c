#include "client-lib/cli/roofline.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#define MAX_THREADS 64u
/* Each thread reads this much, which is more than its share of any cache. */
#define BLOCK_BYTES ((size_t)64 << 20)
#define MEASURE_NS (UINT64_C(200) * 1000000)

struct reader {
        pthread_t thread;
        const uint64_t *block; /* [n_words] */
        size_t n_words;
        uint64_t bytes, ns, sum;
};

static void *read_memory(void *userdata)
{
        struct reader *r = userdata;
        uint64_t begin = tdm_now_ns(), a = 0, b = 0, c = 0, d = 0;

        do {
                for (size_t i = 0; i + 4 <= r->n_words; i += 4) {
                        a += r->block[i];
                        b += r->block[i + 1];
                        c += r->block[i + 2];
                        d += r->block[i + 3];
                }
                r->bytes += r->n_words * sizeof(uint64_t);
                r->ns = tdm_now_ns() - begin;
        } while (r->ns < MEASURE_NS);
        r->sum = a ^ b ^ c ^ d; /* so that the reads are not left out */
        return NULL;
}

static void read_meminfo(struct roofline *ret)
{
        FILE *f = fopen("/proc/meminfo", "re");
        unsigned long long kib;
        char line[128];

        while (f && fgets(line, sizeof(line), f))
                if (sscanf(line, "MemTotal: %llu", &kib) == 1)
                        ret->total_bytes = (uint64_t)kib << 10;
                else if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
                        ret->available_bytes = (uint64_t)kib << 10;
        if (f)
                fclose(f);
}

void roofline_measure(struct roofline *ret)
{
        struct reader readers[MAX_THREADS] = { 0 };
        unsigned n, n_started = 0;
        cpu_set_t cpus;
        size_t size;
        char *memory;

        *ret = (struct roofline){ 0 };
        read_meminfo(ret);
        n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
        n = TDM_MIN(n, MAX_THREADS);
        size = TDM_MIN(BLOCK_BYTES, (size_t)(ret->available_bytes / 4 / n) & ~(size_t)4095);
        memory = size ? mmap(NULL, n * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
        if (memory == MAP_FAILED)
                return;
        memset(memory, 1, n * size); /* pages that were never written are all one page */
        for (; n_started < n; n_started++) {
                struct reader *r = &readers[n_started];

                r->block = (const uint64_t *)(memory + n_started * size);
                r->n_words = size / sizeof(uint64_t);
                if (pthread_create(&r->thread, NULL, read_memory, r) != 0)
                        break;
        }
        for (unsigned i = 0; i < n_started; i++) {
                (void)pthread_join(readers[i].thread, NULL);
                ret->memory_bytes_per_s += (double)readers[i].bytes * 1e9 / (double)readers[i].ns;
        }
        ret->n_threads = n_started;
        munmap(memory, n * size);
}

/* ---- multiplications ---- */

enum { CHAINS = 12, ROUNDS = 4096 }; /* independent sums, more than the latency of an instruction needs */

struct multiplier {
        pthread_t thread;
        double (*round)(float seed, float *ret); /* returns its multiplications */
        double macs;
        uint64_t ns;
        float sum;
};

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double round_avx512(float seed, float *ret)
{
        __m512 sums[CHAINS], by = _mm512_set1_ps(0.999f), add = _mm512_set1_ps(seed);

        for (int i = 0; i < CHAINS; i++)
                sums[i] = _mm512_set1_ps((float)i);
        for (int n = 0; n < ROUNDS; n++)
#pragma GCC unroll 12
                for (int i = 0; i < CHAINS; i++)
                        sums[i] = _mm512_fmadd_ps(sums[i], by, add);
        for (int i = 1; i < CHAINS; i++)
                sums[0] = _mm512_add_ps(sums[0], sums[i]);
        *ret = _mm512_reduce_add_ps(sums[0]);
        return 16.0 * CHAINS * ROUNDS;
}

__attribute__((target("avx2,fma"))) static double round_avx2(float seed, float *ret)
{
        __m256 sums[CHAINS], by = _mm256_set1_ps(0.999f), add = _mm256_set1_ps(seed);
        float lanes[8];

        for (int i = 0; i < CHAINS; i++)
                sums[i] = _mm256_set1_ps((float)i);
        for (int n = 0; n < ROUNDS; n++)
#pragma GCC unroll 12
                for (int i = 0; i < CHAINS; i++)
                        sums[i] = _mm256_fmadd_ps(sums[i], by, add);
        for (int i = 1; i < CHAINS; i++)
                sums[0] = _mm256_add_ps(sums[0], sums[i]);
        _mm256_storeu_ps(lanes, sums[0]);
        *ret = lanes[0] + lanes[7];
        return 8.0 * CHAINS * ROUNDS;
}
#endif

static double round_c(float seed, float *ret)
{
        float sums[CHAINS];

        for (int i = 0; i < CHAINS; i++)
                sums[i] = (float)i;
        for (int n = 0; n < ROUNDS; n++)
#pragma GCC unroll 12
                for (int i = 0; i < CHAINS; i++)
                        sums[i] = sums[i] * 0.999f + seed;
        for (int i = 1; i < CHAINS; i++)
                sums[0] += sums[i];
        *ret = sums[0];
        return 1.0 * CHAINS * ROUNDS;
}

static void *multiply_matrices(void *userdata)
{
        struct multiplier *m = userdata;
        uint64_t begin = tdm_now_ns();

        do {
                float sum;

                m->macs += m->round((float)(begin & 7), &sum);
                m->sum += sum; /* so that nothing is left out */
                m->ns = tdm_now_ns() - begin;
        } while (m->ns < MEASURE_NS);
        return NULL;
}

void roofline_measure_cpu(struct roofline *ret)
{
        struct multiplier all[MAX_THREADS] = { 0 };
        double (*round)(float seed, float *to) = round_c;
        unsigned n, n_started = 0;
        cpu_set_t cpus;

        ret->cpu_how = "plain C";
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f")) {
                round = round_avx512;
                ret->cpu_how = "AVX-512";
        } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
                round = round_avx2;
                ret->cpu_how = "AVX2";
        }
#endif
        n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1;
        n = TDM_MIN(n, MAX_THREADS);
        for (; n_started < n; n_started++) {
                all[n_started].round = round;
                if (pthread_create(&all[n_started].thread, NULL, multiply_matrices, &all[n_started]) != 0)
                        break;
        }
        ret->cpu_macs_per_s = 0;
        for (unsigned i = 0; i < n_started; i++) {
                (void)pthread_join(all[i].thread, NULL);
                ret->cpu_macs_per_s += all[i].macs * 1e9 / (double)all[i].ns;
        }
}
