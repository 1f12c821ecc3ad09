/* The planner, and the conversion of f32 into what programs read: see plan.h. No device is touched here. */
#include "npu-worker/plan/plan.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include "common/f16.h"
#include "engine/host/kernels.h"

/* The cost of a command beside its weights, in weights: a decoding NPU reads about two million in a tenth of a
 * millisecond. Costs are only compared, so a round number does. */
#define COMMAND_COST (UINT64_C(1) << 21)

static bool same_family(const struct tdm_npu_program *a, const struct tdm_npu_program *b)
{
        return a->k == b->k && a->n == b->n && a->type == b->type && a->b.kind == b->b.kind &&
               a->b.tile_rows == b->b.tile_rows && a->b.tile_cols == b->b.tile_cols && strcmp(a->order, b->order) == 0;
}

static bool is_product(const struct tdm_npu_program *p)
{
        return p->op == TDM_NPU_GEMM || p->op == TDM_NPU_GEMV;
}

static void add_variant(struct tdm_npu_plan *plan, const struct tdm_npu_program *p)
{
        uint32_t i = plan->n_variants;

        for (uint32_t j = 0; j < plan->n_variants; j++)
                if (plan->variants[j]->m == p->m)
                        return; /* the first one serves */
        if (i == TDM_NPU_MAX_VARIANTS)
                return;
        for (; i > 0 && plan->variants[i - 1]->m > p->m; i--)
                plan->variants[i] = plan->variants[i - 1];
        plan->variants[i] = p;
        plan->n_variants++;
}

uint32_t tdm_npu_plan_variant(const struct tdm_npu_plan *plan, uint32_t n_rows)
{
        uint32_t v = 0;

        while (v + 1 < plan->n_variants && plan->variants[v]->m < n_rows)
                v++;
        return v;
}

int tdm_npu_plan_matrix(const struct tdm_npu_manifest *manifest, enum tdm_npu_type type, uint32_t rows, uint32_t cols,
                        struct tdm_npu_plan *ret, struct tdm_error *err)
{
        const struct tdm_npu_program *best = NULL;
        uint64_t best_cost = UINT64_MAX;
        struct tdm_npu_plan plan;

        for (uint32_t i = 0; i < manifest->n_programs; i++) {
                const struct tdm_npu_program *p = &manifest->programs[i];
                uint64_t n_commands, cost;

                if (!is_product(p) || p->type != type)
                        continue;
                n_commands = (uint64_t)TDM_DIV_UP(rows, p->n) * TDM_DIV_UP(cols, p->k);
                cost = n_commands * (COMMAND_COST + (uint64_t)p->k * p->n);
                if (n_commands <= TDM_NPU_MAX_COMMANDS && cost < best_cost) {
                        best = p;
                        best_cost = cost;
                }
        }
        if (!best)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the NPU programs of %s have none that makes a %s product of %u x %u in at "
                                     "most %u commands",
                                     manifest->directory[0] ? manifest->directory : "this set", tdm_npu_type_name(type),
                                     cols, rows, TDM_NPU_MAX_COMMANDS);
        plan = (struct tdm_npu_plan){ .rows = rows,
                                      .cols = cols,
                                      .k = best->k,
                                      .n = best->n,
                                      .type = type,
                                      .b = best->b,
                                      .n_tiles = TDM_DIV_UP(rows, best->n),
                                      .n_segments = TDM_DIV_UP(cols, best->k) };
        for (uint32_t i = 0; i < manifest->n_programs; i++)
                if (is_product(&manifest->programs[i]) && same_family(&manifest->programs[i], best))
                        add_variant(&plan, &manifest->programs[i]);
        *ret = plan;
        return 0;
}

int tdm_npu_plan_block(const struct tdm_npu_manifest *manifest, uint32_t d_model, uint32_t n_heads, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t n_pages, struct tdm_npu_block_plan *ret)
{
        struct tdm_npu_block_plan plan = {
                .d_model = d_model, .n_heads = n_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim
        };

        for (uint32_t i = 0; i < manifest->n_programs && plan.n_variants < TDM_NPU_MAX_VARIANTS; i++) {
                const struct tdm_npu_program *p = &manifest->programs[i];
                uint32_t at = plan.n_variants;

                if (p->op != TDM_NPU_ATTENTION || p->k != d_model || p->n_heads != n_heads ||
                    p->n_kv_heads != n_kv_heads || p->head_dim != head_dim || p->pages < n_pages)
                        continue;
                if (plan.n_variants > 0 && (p->pages != plan.pages || strcmp(p->order, plan.variants[0]->order) != 0))
                        continue; /* of another family: other bits */
                plan.pages = p->pages;
                plan.width = p->n;
                for (; at > 0 && plan.variants[at - 1]->m > p->m; at--)
                        plan.variants[at] = plan.variants[at - 1];
                plan.variants[at] = p;
                plan.n_variants++;
        }
        if (plan.n_variants == 0)
                return TDM_E_UNSUPPORTED;
        *ret = plan;
        return 0;
}

/* ---- conversion ---- */

static uint16_t to_bf16(float f)
{
        uint32_t bits = tdm_f32_to_bits(f);

        if ((bits & 0x7fffffff) > 0x7f800000)
                return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one */
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* NaN counts as zero, infinity as the largest number, as in the host's kernels. */
static float saturated(float x)
{
        return x != x ? 0 : fmaxf(fminf(x, FLT_MAX), -FLT_MAX);
}

static float scale_of(const float *values, uint32_t n)
{
        float largest = 0;

        for (uint32_t i = 0; i < n; i++)
                largest = fmaxf(largest, fabsf(saturated(values[i])));
        return largest > 0 ? largest / 127 : 1;
}

static int8_t to_int8(float x, float scale)
{
        /* A scale that is subnormal may be rounded down so far that the quotient passes 127. */
        return (int8_t)rintf(fmaxf(fminf(saturated(x) / scale, 127), -127));
}

/* The place of value k of output `column` in a tile, in values. */
static size_t place(const struct tdm_npu_plan *plan, uint32_t k, uint32_t column)
{
        uint32_t tr = plan->b.tile_rows, tc = plan->b.tile_cols;

        switch (plan->b.kind) {
        case TDM_NPU_COLUMNS:
                return (size_t)column * plan->k + k;
        case TDM_NPU_TILES:
                return ((size_t)(k / tr) * (plan->n / tc) + column / tc) * tr * tc + (size_t)(k % tr) * tc +
                       column % tc;
        default:
                return (size_t)k * plan->n + column;
        }
}

float tdm_npu_put_weights(const struct tdm_npu_plan *plan, const float *values, uint32_t n_values, uint32_t column,
                          void *tile)
{
        float scale = 1;

        assert(!tdm_npu_type_is_int4(plan->type));
        if (plan->type == TDM_NPU_BF16) {
                for (uint32_t k = 0; k < plan->k; k++)
                        ((uint16_t *)tile)[place(plan, k, column)] = k < n_values ? to_bf16(values[k]) : 0;
                return scale;
        }
        scale = scale_of(values, n_values);
        for (uint32_t k = 0; k < plan->k; k++)
                ((int8_t *)tile)[place(plan, k, column)] = k < n_values ? to_int8(values[k], scale) : 0;
        return scale;
}

void tdm_npu_put_q4(const struct tdm_npu_plan *plan, const int8_t *q, const uint16_t *scales, uint32_t n_values,
                    uint32_t column, void *tile)
{
        enum { B = TDM_NPU_INT4_BLOCK };
        uint32_t tr = plan->b.tile_rows, tc = plan->b.tile_cols, n = column % B;
        uint8_t *block = (uint8_t *)tile + (size_t)(column / B) * (plan->k / B) * TDM_NPU_INT4_BLOCK_BYTES;

        assert(tdm_npu_type_is_int4(plan->type) && plan->b.kind == TDM_NPU_BLOCKS && n_values % B == 0);
        for (uint32_t first = 0; first < plan->k; first += B, block += TDM_NPU_INT4_BLOCK_BYTES) {
                bool there = first < n_values;
                uint16_t scale = there ? scales[first / B] : 0;
                uint8_t *nibbles = block + 2 * B;

                memcpy(block + 2 * n, &scale, sizeof(scale));
                for (uint32_t k = 0; k < B; k++) {
                        uint32_t at = (k / tr * (B / tc) + n / tc) * tr * tc + k % tr * tc + n % tc;
                        unsigned shift = at % 2 * 4, value = there ? (unsigned)q[first + k] & 15 : 0;

                        nibbles[at / 2] = (uint8_t)((nibbles[at / 2] & ~(15u << shift)) | value << shift);
                }
        }
}

/* A row of int4 programs: pieces of 128 values, each behind its four scales. */
static void put_row_int4(const struct tdm_npu_plan *plan, const float *values, uint32_t n_values, uint8_t *row)
{
        enum { P = TDM_NPU_INT4_PIECE, N_SCALES = P / TDM_NPU_INT4_BLOCK };
        uint32_t piece_bytes = tdm_npu_int4_piece_bytes(plan->type);

        static_assert(TDM_NPU_INT4_BLOCK == TDM_BLOCK_VALUES, "the host's blocks");
        assert(plan->kernels && n_values % TDM_BLOCK_VALUES == 0);
        for (uint32_t first = 0; first < plan->k; first += P, row += piece_bytes) {
                uint32_t n = first < n_values ? TDM_MIN(P, n_values - first) : 0;
                int32_t start[N_SCALES], sum_16[2 * N_SCALES];
                float scales[N_SCALES] = { 0 }, sum[N_SCALES];
                _Alignas(64) int8_t high[P] = { 0 }, low[P] = { 0 };
                const struct tdm_act_blocks blocks = { scales, start, sum, sum_16 };

                if (n > 0 && plan->type == TDM_NPU_INT4)
                        plan->kernels->quantise_i8(values + first, n, high, &blocks);
                else if (n > 0)
                        plan->kernels->quantise_i16(values + first, n, high, low, &blocks);
                memcpy(row, scales, sizeof(scales));
                memcpy(row + sizeof(scales), high, P);
                if (plan->type == TDM_NPU_INT4A16)
                        memcpy(row + sizeof(scales) + P, low, P);
        }
}

float tdm_npu_put_row(const struct tdm_npu_plan *plan, const float *values, uint32_t n_values, void *row)
{
        float scale = 1;

        if (tdm_npu_type_is_int4(plan->type)) {
                put_row_int4(plan, values, n_values, row);
        } else if (plan->type == TDM_NPU_BF16) {
                uint16_t *to = row;

                for (uint32_t k = 0; k < n_values; k++)
                        to[k] = to_bf16(values[k]);
                memset(to + n_values, 0, (plan->k - n_values) * sizeof(*to));
        } else {
                int8_t *to = row;

                scale = scale_of(values, n_values);
                for (uint32_t k = 0; k < n_values; k++)
                        to[k] = to_int8(values[k], scale);
                memset(to + n_values, 0, plan->k - n_values);
        }
        return scale;
}
