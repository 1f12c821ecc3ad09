/* The operations of the emulated NPU. Plain loops that the compiler can turn into vectors; each is compiled once for
 * the machine's base and once for AVX2, and since every product and sum is rounded apart (or exact, or one fmaf) both
 * give the same bits. It need only be fast enough for tests with small models. */
#include "npu-worker/emulated/program.h"

#include <assert.h>
#include <math.h>

#include "common/f16.h"

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
        switch (p.type) {
        case TDM_EMULATED_BF16:
                if (p.b_layout != TDM_EMULATED_COLUMNS)
                        return false;
                break;
        case TDM_EMULATED_INT8:
                if (p.b_layout != TDM_EMULATED_TILES)
                        return false;
                break;
        case TDM_EMULATED_INT4:
        case TDM_EMULATED_INT4A16:
                if (p.b_layout != TDM_EMULATED_BLOCKS || p.k % TDM_NPU_INT4_PIECE != 0 || p.n % TDM_NPU_INT4_BLOCK != 0)
                        return false;
                break;
        default:
                return false;
        }
        *ret = p;
        return true;
}

unsigned tdm_emulated_program_bytes(const struct tdm_emulated_program *p, uint64_t *bytes)
{
        enum tdm_npu_type type = (enum tdm_npu_type)p->type; /* the same numbers */

        static_assert(TDM_EMULATED_INT8 == (int)TDM_NPU_INT8 && TDM_EMULATED_INT4A16 == (int)TDM_NPU_INT4A16, "types");
        bytes[0] = p->m * tdm_npu_row_bytes(type, p->k);
        bytes[1] = tdm_npu_weights_bytes(type, p->k, p->n);
        bytes[2] = (uint64_t)p->m * p->n * 4;
        if (p->op == TDM_EMULATED_OP_GEMM)
                return 3;
        bytes[1] += tdm_npu_weights_bytes(type, p->k, p->n_heads * p->head_dim);
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

/* A block of B as int8 [32 k][32 n]. */
static inline __attribute__((always_inline)) void unpack_block(const uint8_t *nibbles, int8_t *w)
{
        enum { B = TDM_NPU_INT4_BLOCK, TR = TDM_EMULATED_BLOCK_K, TC = TDM_EMULATED_BLOCK_N };

        for (uint32_t i = 0; i < B * B / 2; i++) {
                uint32_t tile = 2 * i / (TR * TC), k = tile / (B / TC) * TR + 2 * i % (TR * TC) / TC,
                         n = tile % (B / TC) * TC + 2 * i % TC;

                w[k * B + n] = (int8_t)((int8_t)(nibbles[i] << 4) >> 4);
                w[k * B + n + 1] = (int8_t)((int8_t)nibbles[i] >> 4);
        }
}

static inline __attribute__((always_inline)) void block_sums(const int8_t *w, const int8_t *x, int32_t *sums)
{
        enum { B = TDM_NPU_INT4_BLOCK };

        for (uint32_t n = 0; n < B; n++)
                sums[n] = 0;
        for (uint32_t k = 0; k < B; k++)
                for (uint32_t n = 0; n < B; n++)
                        sums[n] += (int32_t)x[k] * w[k * B + n];
}

static inline __attribute__((always_inline)) void gemm_int4(const struct tdm_emulated_program *p, const uint8_t *a,
                                                            const uint8_t *b, float *c)
{
        enum { B = TDM_NPU_INT4_BLOCK, P = TDM_NPU_INT4_PIECE };
        uint32_t piece_bytes = tdm_npu_int4_piece_bytes((enum tdm_npu_type)p->type);
        size_t row_bytes = (size_t)p->k / P * piece_bytes;

        memset(c, 0, (size_t)p->m * p->n * sizeof(*c));
        for (uint32_t first_n = 0; first_n < p->n; first_n += B)
                for (uint32_t k = 0; k < p->k; k += B, b += TDM_NPU_INT4_BLOCK_BYTES) {
                        int8_t w[B * B];
                        float w_scales[B];

                        for (uint32_t n = 0; n < B; n++) {
                                uint16_t half;

                                memcpy(&half, b + 2 * n, sizeof(half));
                                w_scales[n] = tdm_f16_to_f32(half);
                        }
                        unpack_block(b + 2 * B, w);
                        for (uint32_t m = 0; m < p->m; m++) {
                                const uint8_t *piece = a + m * row_bytes + (size_t)(k / P) * piece_bytes;
                                const int8_t *x = (const int8_t *)piece + 16 + k % P;
                                float *to = c + (size_t)m * p->n + first_n, x_scale;
                                int32_t sums[B], low[B];

                                memcpy(&x_scale, piece + k % P / B * 4, sizeof(x_scale));
                                block_sums(w, x, sums);
                                if (p->type == TDM_EMULATED_INT4A16) {
                                        block_sums(w, x + P, low);
                                        for (uint32_t n = 0; n < B; n++)
                                                sums[n] = 256 * sums[n] + low[n];
                                }
                                for (uint32_t n = 0; n < B; n++)
                                        to[n] = fmaf((float)sums[n], w_scales[n] * x_scale, to[n]);
                        }
                }
}

static inline __attribute__((always_inline)) void run(const struct tdm_emulated_program *p, const void *a,
                                                      const void *b, void *c)
{
        if (p->type == TDM_EMULATED_BF16)
                gemm_bf16(p, a, b, c);
        else if (p->type == TDM_EMULATED_INT8)
                gemm_int8(p, a, b, c);
        else
                gemm_int4(p, a, b, c);
}

static void run_base(const struct tdm_emulated_program *p, const void *a, const void *b, void *c)
{
        run(p, a, b, c);
}

#if defined(__x86_64__)
static __attribute__((target("avx2,fma"))) void run_avx2(const struct tdm_emulated_program *p, const void *a,
                                                         const void *b, void *c)
{
        run(p, a, b, c);
}
#endif

void tdm_emulated_program_gemm(const struct tdm_emulated_program *p, const void *a, const void *b, void *c)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
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
