/* The operations of the emulated NPU. Plain loops that the compiler can turn into vectors; each is compiled once for
 * the machine's base and once for AVX2, and since every product and sum is rounded apart (or exact) both give the same
 * bits. Speed matters only so far that a small model answers while somebody waits. */
#include "npu-worker/emulated/program.h"

#define LANES 8u
#define ROWS 4u /* of A that share a pass over a column of B */

bool tdm_emulated_program_check(const void *instructions, uint32_t n_words, struct tdm_emulated_program *ret)
{
        struct tdm_emulated_program p = {};

        if (n_words != TDM_EMULATED_GEMM_WORDS && n_words != sizeof(p) / sizeof(uint32_t))
                return false;
        memcpy(&p, instructions, n_words * sizeof(uint32_t));
        if ((p.op == TDM_EMULATED_OP_ATTENTION) != (n_words != TDM_EMULATED_GEMM_WORDS))
                return false;
        if (p.op == TDM_EMULATED_OP_ATTENTION &&
            (p.type != TDM_EMULATED_BF16 || p.n_kv_heads == 0 || p.n_heads % p.n_kv_heads != 0 || p.head_dim == 0 ||
             p.head_dim % 16 != 0 || p.head_dim > 1024 || p.n_heads > 256 || p.pages == 0 || p.pages > 4096 ||
             p.n != (p.n_heads + 2 * p.n_kv_heads) * p.head_dim))
                return false;
        if (p.magic != TDM_EMULATED_MAGIC || (p.op != TDM_EMULATED_OP_GEMM && p.op != TDM_EMULATED_OP_ATTENTION) ||
            p.m == 0 || p.k == 0 || p.n == 0 || p.m > TDM_EMULATED_MAX_SIZE || p.k > TDM_EMULATED_MAX_SIZE ||
            p.n > TDM_EMULATED_MAX_SIZE || p.k % LANES != 0 || p.n % TDM_EMULATED_TILE != 0)
                return false;
        if (p.type == TDM_EMULATED_BF16 ? p.b_layout != TDM_EMULATED_COLUMNS :
                                          p.type != TDM_EMULATED_INT8 || p.b_layout != TDM_EMULATED_TILES)
                return false;
        *ret = p;
        return true;
}

unsigned tdm_emulated_program_bytes(const struct tdm_emulated_program *p, uint64_t *bytes)
{
        uint64_t value = p->type == TDM_EMULATED_BF16 ? 2 : 1;

        bytes[0] = (uint64_t)p->m * p->k * value;
        bytes[1] = (uint64_t)p->k * p->n * value;
        bytes[2] = (uint64_t)p->m * p->n * 4;
        if (p->op == TDM_EMULATED_OP_GEMM)
                return 3;
        bytes[1] += (uint64_t)p->k * p->n_heads * p->head_dim * value;
        bytes[2] = (uint64_t)p->m * p->k * 4;
        bytes[3] = tdm_npu_attention_table_bytes(p->m, p->head_dim, p->pages);
        bytes[4] = 1;
        return 5;
}

uint64_t tdm_emulated_program_macs(const struct tdm_emulated_program *p)
{
        uint64_t macs = (uint64_t)p->m * p->k * p->n;

        return p->op == TDM_EMULATED_OP_GEMM ? macs : macs + (uint64_t)p->m * p->k * p->n_heads * p->head_dim;
}

static inline __attribute__((always_inline)) float bf16(uint16_t h)
{
        uint32_t bits = (uint32_t)h << 16;
        float f;

        memcpy(&f, &bits, sizeof(f));
        return f;
}

static inline __attribute__((always_inline)) float fold(const float *s)
{
        return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Rows first … first + n_rows - 1 of A against one column of B. */
static inline __attribute__((always_inline)) void dot_rows(const uint16_t *a, const uint16_t *b, uint32_t k_size,
                                                           uint32_t n_rows, float *c, size_t c_stride)
{
        float sums[ROWS][LANES] = {};

        for (uint32_t k = 0; k < k_size; k += LANES)
                for (uint32_t r = 0; r < n_rows; r++)
                        for (uint32_t i = 0; i < LANES; i++)
                                sums[r][i] += bf16(a[(size_t)r * k_size + k + i]) * bf16(b[k + i]);
        for (uint32_t r = 0; r < n_rows; r++)
                c[r * c_stride] = fold(sums[r]);
}

static inline __attribute__((always_inline)) void gemm_bf16(const struct tdm_emulated_program *p, const uint16_t *a,
                                                            const uint16_t *b, float *c)
{
        for (uint32_t n = 0; n < p->n; n++) {
                const uint16_t *column = b + (size_t)n * p->k;
                uint32_t m = 0;

                for (; m + ROWS <= p->m; m += ROWS)
                        dot_rows(a + (size_t)m * p->k, column, p->k, ROWS, c + (size_t)m * p->n + n, p->n);
                for (; m < p->m; m++)
                        dot_rows(a + (size_t)m * p->k, column, p->k, 1, c + (size_t)m * p->n + n, p->n);
        }
}

static inline __attribute__((always_inline)) void gemm_int8(const struct tdm_emulated_program *p, const int8_t *a,
                                                            const int8_t *b, int32_t *c)
{
        const uint32_t tile = TDM_EMULATED_TILE, n_tiles = p->n / tile;

        for (uint32_t m = 0; m < p->m; m++)
                for (uint32_t t = 0; t < n_tiles; t++) {
                        int32_t sums[TDM_EMULATED_TILE] = {};

                        for (uint32_t k = 0; k < p->k; k++) {
                                const int8_t *row = b + (((size_t)(k / tile) * n_tiles + t) * tile + k % tile) * tile;
                                int32_t x = a[(size_t)m * p->k + k];

                                for (uint32_t i = 0; i < tile; i++)
                                        sums[i] += x * row[i];
                        }
                        memcpy(c + (size_t)m * p->n + t * tile, sums, sizeof(sums));
                }
}

static void run_base(const struct tdm_emulated_program *p, const void *a, const void *b, void *c)
{
        if (p->type == TDM_EMULATED_BF16)
                gemm_bf16(p, a, b, c);
        else
                gemm_int8(p, a, b, c);
}

#if defined(__x86_64__)
static __attribute__((target("avx2"))) void run_avx2(const struct tdm_emulated_program *p, const void *a, const void *b,
                                                     void *c)
{
        if (p->type == TDM_EMULATED_BF16)
                gemm_bf16(p, a, b, c);
        else
                gemm_int8(p, a, b, c);
}
#endif

void tdm_emulated_program_gemm(const struct tdm_emulated_program *p, const void *a, const void *b, void *c)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2")) {
                run_avx2(p, a, b, c);
                return;
        }
#endif
        run_base(p, a, b, c);
}

bool tdm_emulated_program_run(const struct tdm_emulated_program *p, void *const *data, uint64_t cache_bytes)
{
        if (p->op == TDM_EMULATED_OP_ATTENTION)
                return tdm_emulated_program_attention(p, data, cache_bytes);
        tdm_emulated_program_gemm(p, data[0], data[1], data[2]);
        return true;
}
