/* The emulated NPU's attention over pages: npu-worker/manifest/attention-abi.h says what it does.
 * Written to be followed, one row at a time; nothing but the two products is fast. The head comes from the worker's
 * side and is checked against what the command was given: a driver's IOMMU would stop what goes beyond. */
#include "npu-worker/emulated/program.h"

#include <math.h>

#include "common/f16.h"

struct attention {
        const struct tdm_emulated_program *p;
        const struct tdm_npu_attention_head *head;
        const float *gains;        /* [2][head_dim] */
        const uint32_t *positions; /* [m] */
        const float *cos_sin;      /* [m][2][head_dim / 2] */
        const uint32_t *pages;     /* [m][pages] */
        uint8_t *cache;
        float *scores; /* [pages * 32] */
};

static uint32_t first_seen(const struct attention *at, uint32_t position)
{
        uint32_t window = at->head->window;

        return window && position + 1 > window ? position + 1 - window : 0;
}

static bool check(const struct attention *at, uint64_t cache_bytes)
{
        const struct tdm_npu_attention_head *h = at->head;
        uint64_t part = (uint64_t)TDM_NPU_ATTENTION_PAGE * at->p->head_dim * 4,
                 limit = TDM_MIN(h->cache_bytes, cache_bytes);

        if (h->n_rows > at->p->m || h->part_bytes < part || h->layer_offset > h->page_bytes ||
            h->page_bytes - h->layer_offset < at->p->n_kv_heads * h->part_bytes || h->part_bytes > limit ||
            h->page_bytes > limit || h->pages_offset > limit)
                return false;
        for (uint32_t r = 0; r < h->n_rows; r++) {
                uint32_t position = at->positions[r];

                if (position / TDM_NPU_ATTENTION_PAGE >= at->p->pages)
                        return false;
                for (uint32_t i = first_seen(at, position) / TDM_NPU_ATTENTION_PAGE;
                     i <= position / TDM_NPU_ATTENTION_PAGE; i++)
                        if (at->pages[(size_t)r * at->p->pages + i] >= (limit - h->pages_offset) / h->page_bytes)
                                return false;
        }
        return true;
}

static uint8_t *part_of(const struct attention *at, uint32_t row, uint32_t position, uint32_t kv_head)
{
        uint32_t page = at->pages[(size_t)row * at->p->pages + position / TDM_NPU_ATTENTION_PAGE];

        return at->cache + at->head->pages_offset + page * at->head->page_bytes + at->head->layer_offset +
               kv_head * at->head->part_bytes;
}

static uint16_t round_bf16(float f)
{
        uint32_t bits = tdm_f32_to_bits(f);

        return (bits & 0x7fffffff) > 0x7f800000 ? (uint16_t)(bits >> 16 | 0x40) :
                                                  (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void norm_and_rotate(const struct attention *at, float *x, const float *gain, uint32_t row)
{
        uint32_t n = at->p->head_dim, half = n / 2;
        const float *cos = at->cos_sin + (size_t)row * n, *sin = cos + half;
        float squares = 0, scale;

        for (uint32_t i = 0; i < n; i++)
                squares += x[i] * x[i];
        scale = 1 / sqrtf(squares / (float)n + at->head->eps);
        for (uint32_t i = 0; i < n; i++)
                x[i] *= scale * gain[i];
        for (uint32_t i = 0; i < half; i++) {
                float a = x[i], b = x[half + i];

                x[i] = a * cos[i] - b * sin[i];
                x[half + i] = b * cos[i] + a * sin[i];
        }
}

/* To the nearest f16, ties to even, saturated; a NaN is zero. Adding a power of two leaves as many bits as f16 has
 * there. */
static uint16_t saturated_f16(float x)
{
        uint32_t sign = tdm_f32_to_bits(x) >> 16 & 0x8000, exponent;
        float y = x != x ? 0 : fminf(fabsf(x), 65504), step;

        exponent = TDM_MAX(tdm_f32_to_bits(y) >> 23, 127u - 14); /* biased; what is smaller is subnormal */
        step = tdm_bits_to_f32((exponent + 13) << 23);           /* 2^23 times f16's last place there */
        y = y + step - step;
        exponent = tdm_f32_to_bits(y) >> 23;
        if (exponent < 127 - 14)
                return (uint16_t)(sign | (uint32_t)(y * 0x1p24f));
        return (uint16_t)(sign | ((exponent - (127 - 15)) << 10) | (tdm_f32_to_bits(y) >> 13 & 0x3ff));
}

static void store(const struct attention *at, uint32_t row, uint32_t kv_head, const float *k, const float *v)
{
        uint32_t n = at->p->head_dim, slot = at->positions[row] % TDM_NPU_ATTENTION_PAGE;
        uint16_t *keys = (uint16_t *)part_of(at, row, at->positions[row], kv_head);
        uint16_t *values = keys + (size_t)TDM_NPU_ATTENTION_PAGE * n;

        for (uint32_t i = 0; i < n; i++) {
                keys[((size_t)(slot / 16) * n + i) * 16 + slot % 16] = saturated_f16(k[i]);
                values[(size_t)slot * n + i] = saturated_f16(v[i]);
        }
}

/* q: rounded. out [head_dim], which q may be. */
static void attend(const struct attention *at, uint32_t row, uint32_t kv_head, const float *q, float *out)
{
        uint32_t n = at->p->head_dim, position = at->positions[row], first = first_seen(at, position);
        float largest = -INFINITY, sum = 0, result[1024];

        for (uint32_t p = first; p <= position; p++) {
                const uint16_t *keys = (const uint16_t *)part_of(at, row, p, kv_head);
                uint32_t slot = p % TDM_NPU_ATTENTION_PAGE;
                float score = 0;

                for (uint32_t i = 0; i < n; i++)
                        score += q[i] * tdm_f16_to_f32(keys[((size_t)(slot / 16) * n + i) * 16 + slot % 16]);
                at->scores[p - first] = score;
                largest = fmaxf(largest, score);
        }
        memset(result, 0, n * sizeof(*result));
        for (uint32_t p = first; p <= position; p++) {
                const uint16_t *values = (const uint16_t *)part_of(at, row, p, kv_head) +
                                         (size_t)TDM_NPU_ATTENTION_PAGE * n + (size_t)(p % TDM_NPU_ATTENTION_PAGE) * n;
                float weight = expf(at->scores[p - first] - largest);

                sum += weight;
                for (uint32_t i = 0; i < n; i++)
                        result[i] += weight * tdm_f16_to_f32(values[i]);
        }
        for (uint32_t i = 0; i < n; i++)
                out[i] = result[i] / sum;
}

static void run_rows(const struct attention *at, void *const *data, float *qkv, uint16_t *attended)
{
        const struct tdm_emulated_program *p = at->p;
        uint32_t d = p->head_dim, q_width = p->n_heads * d, n_rows = at->head->n_rows;
        struct tdm_emulated_program product = *p;

        product.m = n_rows;
        tdm_emulated_program_gemm(&product, data[0], data[1], qkv);
        for (uint32_t r = 0; r < n_rows; r++) {
                float *row = qkv + (size_t)r * p->n;

                for (uint32_t h = 0; h < p->n_heads; h++) {
                        norm_and_rotate(at, row + h * d, at->gains, r);
                        for (uint32_t i = 0; i < d; i++)
                                row[h * d + i] = tdm_bf16_to_f32(round_bf16(row[h * d + i] * at->head->query_scale));
                }
                for (uint32_t h = 0; h < p->n_kv_heads; h++) {
                        float *k = row + q_width + h * d;

                        norm_and_rotate(at, k, at->gains + d, r);
                        store(at, r, h, k, k + p->n_kv_heads * d);
                }
        }
        for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t h = 0; h < p->n_heads; h++) {
                        float *q = qkv + (size_t)r * p->n + h * d;

                        attend(at, r, h / (p->n_heads / p->n_kv_heads), q, q);
                        for (uint32_t i = 0; i < d; i++)
                                attended[(size_t)r * q_width + h * d + i] = round_bf16(q[i]);
                }
        product.k = q_width;
        product.n = p->k;
        tdm_emulated_program_gemm(&product, attended, (const uint16_t *)data[1] + (size_t)p->k * p->n, data[2]);
}

bool tdm_emulated_program_attention(const struct tdm_emulated_program *p, void *const *data, uint64_t cache_bytes)
{
        struct attention at = { .p = p, .head = data[3], .cache = data[4] };
        _cleanup_(freep) float *qkv = malloc((size_t)p->m * p->n * sizeof(*qkv));
        _cleanup_(freep) uint16_t *attended = malloc((size_t)p->m * p->n_heads * p->head_dim * sizeof(*attended));
        _cleanup_(freep) float *scores = malloc((size_t)p->pages * TDM_NPU_ATTENTION_PAGE * sizeof(*scores));

        at.gains = (const float *)(at.head + 1);
        at.positions = (const uint32_t *)(at.gains + 2 * p->head_dim);
        at.cos_sin = (const float *)(at.positions + p->m);
        at.pages = (const uint32_t *)(at.cos_sin + (size_t)p->m * p->head_dim);
        at.scores = scores;
        if (!qkv || !attended || !scores || !check(&at, cache_bytes))
                return false;
        run_rows(&at, data, qkv, attended);
        return true;
}
