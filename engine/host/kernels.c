/* Assembles the tables of kernels and chooses one. The tables are built on first use and never change afterwards: C
 * first, then AVX2 over it, then AVX-512 over that, so a kernel that an ISA does not bring is the next lower one's.
 * That is safe because all of them give the same bits.
 *
 * Does not measure anything: a machine's table depends on its CPU only, never on its mood. */
#include <pthread.h>
#include "engine/host/kernels-fill.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#define ENV_NAME "TANDEM_CPU"

enum { TABLE_C, TABLE_AVX2, TABLE_AVX512, N_TABLES };

static struct tdm_kernels tables[N_TABLES];
static bool table_works[N_TABLES];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__
/* Which register files the operating system saves: without it the instructions exist but fault. */
static uint64_t saved_register_files(void)
{
        unsigned a, b, c, d;
        uint32_t low, high;

        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
                return 0;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (uint64_t)high << 32 | low;
}

static bool cpu_has_avx2(void)
{
        const uint64_t ymm = 0x6; /* SSE, AVX */
        unsigned a, b, c = 0, d;

        /* Not every compiler's __builtin_cpu_supports() knows f16c. */
        return (saved_register_files() & ymm) == ymm && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool cpu_has_avx512(void)
{
        const uint64_t zmm = 0xe6; /* SSE, AVX, mask registers, upper halves, registers 16 to 31 */

        return cpu_has_avx2() && (saved_register_files() & zmm) == zmm && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

static void fill_c(struct tdm_kernels *kernels)
{
        kernels->name = "c";
        kernels->describe = "portable C";
        tdm_kernels_c_matmul_fill(kernels);
        tdm_kernels_c_matmul_subblock_fill(kernels);
        tdm_kernels_c_ops_fill(kernels);
}

#ifdef __x86_64__
static void fill_avx2(struct tdm_kernels *kernels)
{
        fill_c(kernels);
        kernels->name = "avx2";
        kernels->describe = "AVX2";
        tdm_kernels_avx2_matmul_fill(kernels);
        tdm_kernels_avx2_matmul_subblock_fill(kernels);
        tdm_kernels_avx2_ops_fill(kernels);
}

static void fill_avx512(struct tdm_kernels *kernels)
{
        fill_avx2(kernels);
        kernels->name = "avx512";
        kernels->describe = "AVX-512 VNNI";
        tdm_kernels_avx512_matmul_fill(kernels);
        tdm_kernels_avx512_matmul_subblock_fill(kernels);
        tdm_kernels_avx512_ops_fill(kernels);
}
#endif

static void build_tables(void)
{
        fill_c(&tables[TABLE_C]);
        table_works[TABLE_C] = true;
        tables[TABLE_AVX2].name = "avx2";
        tables[TABLE_AVX512].name = "avx512";
#ifdef __x86_64__
        __builtin_cpu_init();
        if (cpu_has_avx2()) {
                fill_avx2(&tables[TABLE_AVX2]);
                table_works[TABLE_AVX2] = true;
        }
        if (cpu_has_avx512()) {
                fill_avx512(&tables[TABLE_AVX512]);
                table_works[TABLE_AVX512] = true;
        }
#endif
}

const struct tdm_kernels *tdm_kernels_get(const char *name)
{
        pthread_once(&tables_once, build_tables);
        for (unsigned i = 0; i < N_TABLES; i++)
                if (table_works[i] && strcmp(tables[i].name, name) == 0)
                        return &tables[i];
        return NULL;
}

const struct tdm_kernels *tdm_kernels_choose(struct tdm_error *err)
{
        const char *wanted = getenv(ENV_NAME);
        unsigned best = TABLE_C;

        pthread_once(&tables_once, build_tables);
        for (unsigned i = 0; i < N_TABLES; i++)
                if (table_works[i])
                        best = i;
        if (!wanted || !*wanted)
                return &tables[best];

        for (unsigned i = 0; i < N_TABLES; i++) {
                if (strcmp(tables[i].name, wanted) != 0)
                        continue;
                if (table_works[i])
                        return &tables[i];
                tdm_error_set(err, TDM_E_UNSUPPORTED,
                              ENV_NAME "=%s: this CPU or its kernel lacks it; the best here is %s", wanted,
                              tables[best].name);
                return NULL;
        }
        tdm_error_set(err, TDM_E_BAD_REQUEST, ENV_NAME "=%s is not known: use c, avx2 or avx512, or leave it unset",
                      wanted);
        return NULL;
}

int tdm_kernels_type_index(uint32_t type)
{
#define ID(name, type, kind) TDM_TYPE_##type,
        static const uint32_t types[] = { TDM_TYPE_F32,  TDM_TYPE_F16,  TDM_TYPE_BF16,
                                          TDM_TYPE_Q4_0, TDM_TYPE_Q8_0, TDM_SUBBLOCK_TYPES(ID) };
        static_assert(TDM_ARRAY_SIZE(types) == TDM_N_MATMUL_TYPES, "one place in a table of kernels for each");

        for (int i = 0; i < TDM_N_MATMUL_TYPES; i++)
                if (types[i] == type)
                        return i;
        return -1;
}
