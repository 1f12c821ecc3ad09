/* Random weights in the segment's layout: see random-model.h. One panel is made for each type and number of columns,
 * and copied: 16 GB are written in a second or two, and no two neighbouring panels are the same, since each begins
 * elsewhere. */
#include <math.h>
#include <sys/mman.h>

#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/tests/random-model.h"

#define N_PANELS 61u                   /* different ones */
#define ALL_BYTES (UINT64_C(32) << 20) /* a matrix of this many is random from end to end */

bool random_model_hparams(const char *size, struct tdm_hparams *ret)
{
        static const struct {
                const char *name;
                uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, window, n_vocab, n_ctx;
        } sizes[] = {
                { "tiny", 3, 160, 6, 2, 48, 352, 64, 1003, 1024 },
                { "tiny-20", 1, 160, 8, 4, 20, 96, 64, 259, 512 }, /* heads of no multiple of 8 */
                { "tiny-100", 2, 160, 8, 2, 100, 96, 64, 259, 1024 },
                { "tiny-128", 2, 256, 4, 2, 128, 512, 64, 515, 1024 },
                { "tiny-k", 1, 256, 4, 2, 64, 256, 64, 259, 512 },        /* everything a multiple of 256 */
                { "tiny-k-1280", 1, 1280, 4, 2, 64, 1280, 64, 259, 512 }, /* segments of three blocks */
                { "tiny-256", 2, 128, 4, 1, 256, 256, 64, 515, 1024 },
                /* more blocks of logits than gather.comp takes at once */
                { "tiny-vocab", 1, 64, 2, 1, 32, 96, 64, 300007, 512 },
                { "1b", 26, 1152, 4, 1, 256, 6912, 512, 262144, 32768 },
                { "4b", 34, 2560, 8, 4, 256, 10240, 1024, 262144, 131072 },
                { "12b", 48, 3840, 16, 8, 256, 15360, 1024, 262144, 131072 },
                { "12b-4", 4, 3840, 16, 8, 256, 15360, 1024, 32768, 131072 },
                { "27b-4", 4, 5376, 32, 16, 128, 21504, 1024, 32768, 131072 }, /* a quick look at its kernels */
                { "27b", 62, 5376, 32, 16, 128, 21504, 1024, 262144, 131072 },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(sizes); i++) {
                if (strcmp(sizes[i].name, size) != 0)
                        continue;
                *ret = (struct tdm_hparams){
                        .n_layers = sizes[i].n_layers,
                        .d_model = sizes[i].d_model,
                        .n_heads = sizes[i].n_heads,
                        .n_kv_heads = sizes[i].n_kv_heads,
                        .head_dim = sizes[i].head_dim,
                        .d_ff = sizes[i].d_ff,
                        .n_vocab = sizes[i].n_vocab,
                        .n_ctx = sizes[i].n_ctx,
                        .window = sizes[i].window,
                };
                tdm_hparams_all_layers(ret);
                for (uint32_t l = 0; l < ret->n_layers; l++)
                        if (sizes[i].n_layers < 6 ? l == 1 : (l + 1) % 6 == 0)
                                ret->layers[l].window = 0;
                return true;
        }
        return false;
}

static uint64_t random_u64(uint64_t *state)
{
        uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

/* An f16 between 0.75 and 1.25 times 2^-exponent, of either sign for weights. */
static uint16_t random_f16(uint64_t random, unsigned exponent, bool any_sign)
{
        return (uint16_t)((15 - exponent) << 10 | (random & 0x3ff) | (any_sign ? random >> 10 & 1 : 0) << 15);
}

/* How many places further down the 16-bit numbers in front of a type of engine/weights/subblock.h must be for values
 * of that size. */
static void k_exponents(uint32_t type, unsigned ret[2])
{
        static const struct {
                uint32_t type;
                unsigned exponents[2];
        } known[] = {
                { TDM_TYPE_Q4_1, { 3, 0 } },      { TDM_TYPE_Q5_0, { 4, 0 } },    { TDM_TYPE_Q5_1, { 4, 0 } },
                { TDM_TYPE_Q2_K, { 4, 3 } },      { TDM_TYPE_Q3_K, { 5, 0 } },    { TDM_TYPE_Q4_K, { 8, 5 } },
                { TDM_TYPE_Q5_K, { 9, 5 } },      { TDM_TYPE_Q6_K, { 10, 0 } },   { TDM_TYPE_IQ4_NL, { 6, 0 } },
                { TDM_TYPE_IQ4_XS, { 10, 0 } },   { TDM_TYPE_GRID1, { 6, 0 } },   { TDM_TYPE_GRID2, { 6, 0 } },
                { TDM_TYPE_GRID3_XXS, { 7, 0 } }, { TDM_TYPE_GRID3_S, { 7, 0 } },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(known); i++)
                if (known[i].type == type)
                        memcpy(ret, known[i].exponents, sizeof(known[i].exponents));
}

static void make_k_panel(uint8_t *panel, uint32_t type, uint32_t cols, uint64_t bytes, unsigned exponent,
                         uint64_t *state)
{
        const struct tdm_subblock_info info = tdm_subblock_info(type);
        unsigned down[2] = {};

        k_exponents(type, down);
        for (uint64_t i = 0; i + 8 <= bytes; i += 8)
                memcpy(panel + i, &(uint64_t){ random_u64(state) }, 8);
        if (type == TDM_TYPE_MXFP4) {
                for (uint32_t i = 0; i < cols / info.unit_values * TDM_PANEL_ROWS; i++)
                        panel[i] =
                                (uint8_t)(127 - 1 - exponent + random_u64(state) % 2); /* values are 3 times as much */
                return;
        }
        for (uint32_t i = 0; i < cols / info.unit_values * info.halves * TDM_PANEL_ROWS; i++) {
                uint32_t h = i / TDM_PANEL_ROWS % info.halves;
                bool is_min = h == 1 && (type == TDM_TYPE_Q4_1 || type == TDM_TYPE_Q5_1);
                uint16_t f16 = random_f16(random_u64(state), TDM_MIN(exponent + down[h], 14u), false);

                if (h == 0 || type != TDM_TYPE_IQ4_XS) /* there it is bits of scales */
                        ((uint16_t *)panel)[i] = is_min ? f16 | 0x8000 : f16;
        }
}

static void make_panel(uint8_t *panel, uint32_t type, uint32_t cols, uint64_t bytes, uint64_t *state)
{
        uint64_t scales = (uint64_t)cols / TDM_BLOCK_VALUES * TDM_PANEL_ROWS;
        /* Outputs should be of the size of inputs: values of about 1 / sqrt(cols). */
        unsigned exponent = (unsigned)lrint(log2(sqrt(cols)));

        if (type == TDM_TYPE_Q4_0 || type == TDM_TYPE_Q8_0) {
                for (uint64_t i = 0; i + 8 <= bytes; i += 8)
                        memcpy(panel + i, &(uint64_t){ random_u64(state) }, 8);
                for (uint64_t i = 0; i < scales; i++)
                        ((uint16_t *)panel)[i] =
                                random_f16(random_u64(state), exponent + (type == TDM_TYPE_Q4_0 ? 2 : 6), false);
                return;
        }
        if (tdm_subblock_type(type)) {
                make_k_panel(panel, type, cols, bytes, exponent, state);
                return;
        }
        for (uint64_t i = 0; i < (uint64_t)cols * TDM_PANEL_ROWS; i++) {
                uint64_t random = random_u64(state);
                float value = ((float)(random & 0xffffff) / 0x1p23f - 1) / sqrtf((float)cols);

                if (type == TDM_TYPE_F16)
                        ((uint16_t *)panel)[i] = random_f16(random, exponent, true);
                else if (type == TDM_TYPE_BF16)
                        ((uint16_t *)panel)[i] = (uint16_t)((uint32_t)(*(uint32_t *)&value) >> 16);
                else
                        ((float *)panel)[i] = value;
        }
}

static void make_matrix(uint8_t *to, const struct tdm_weights_tensor *t)
{
        uint32_t n_panels = TDM_DIV_UP(t->rows, TDM_PANEL_ROWS),
                 n = t->size_bytes <= ALL_BYTES ? n_panels : TDM_MIN(n_panels, N_PANELS);
        uint64_t state = (uint64_t)t->kind << 32 | t->layer;

        for (uint32_t i = 0; i < n; i++)
                make_panel(to + i * t->panel_bytes, t->type, t->cols, t->panel_bytes, &state);
        for (uint32_t i = n; i < n_panels; i++)
                memcpy(to + i * t->panel_bytes, to + (i - n) * t->panel_bytes, t->panel_bytes);
}

static void add(struct tdm_weights_tensor *tensors, uint32_t *n, uint64_t *at, uint32_t kind, uint32_t layer,
                uint32_t type, uint32_t rows, uint32_t cols)
{
        struct tdm_weights_tensor t = { .kind = kind,
                                        .layer = layer,
                                        .type = rows == 1 ? TDM_TYPE_F32 : type,
                                        .layout = rows == 1 ? TDM_LAYOUT_ROWS : TDM_LAYOUT_PANEL16,
                                        .rows = rows,
                                        .cols = cols,
                                        .offset = *at };

        t.panel_bytes = rows == 1 ? 0 : tdm_weights_panel_bytes(type, cols);
        t.size_bytes = rows == 1 ? (uint64_t)cols * sizeof(float) : TDM_DIV_UP(rows, TDM_PANEL_ROWS) * t.panel_bytes;
        *at = TDM_ALIGN_UP(*at + t.size_bytes, UINT64_C(64));
        tensors[(*n)++] = t;
}

static uint32_t list(const struct tdm_hparams *hp, uint32_t type, uint32_t more_type, uint32_t embedding_type,
                     struct tdm_weights_tensor *tensors, uint64_t *at)
{
        uint32_t q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim, d = hp->d_model, n = 0;

        add(tensors, &n, at, TDM_TENSOR_TOKEN_EMBD, 0, embedding_type, hp->n_vocab, d);
        add(tensors, &n, at, TDM_TENSOR_OUTPUT_NORM, 0, type, 1, d);
        for (uint32_t l = 0; l < hp->n_layers; l++) {
                uint32_t more = l % 2 ? more_type : type;

                add(tensors, &n, at, TDM_TENSOR_ATTN_NORM, l, type, 1, d);
                add(tensors, &n, at, TDM_TENSOR_Q, l, type, q, d);
                add(tensors, &n, at, TDM_TENSOR_K, l, type, kv, d);
                add(tensors, &n, at, TDM_TENSOR_V, l, more, kv, d);
                add(tensors, &n, at, TDM_TENSOR_Q_NORM, l, type, 1, hp->head_dim);
                add(tensors, &n, at, TDM_TENSOR_K_NORM, l, type, 1, hp->head_dim);
                add(tensors, &n, at, TDM_TENSOR_O, l, type, d, q);
                add(tensors, &n, at, TDM_TENSOR_POST_ATTN_NORM, l, type, 1, d);
                add(tensors, &n, at, TDM_TENSOR_FFN_NORM, l, type, 1, d);
                add(tensors, &n, at, TDM_TENSOR_GATE, l, type, hp->d_ff, d);
                add(tensors, &n, at, TDM_TENSOR_UP, l, type, hp->d_ff, d);
                add(tensors, &n, at, TDM_TENSOR_DOWN, l, more, d, hp->d_ff);
                add(tensors, &n, at, TDM_TENSOR_POST_FFW_NORM, l, type, 1, d);
        }
        return n;
}

uint8_t *random_model_new(const struct tdm_hparams *hp, uint32_t type, uint32_t embedding_type)
{
        return random_model_new_mixed(hp, type, type, embedding_type);
}

uint8_t *random_model_new_mixed(const struct tdm_hparams *hp, uint32_t type, uint32_t more_type,
                                uint32_t embedding_type)
{
        uint32_t n_max = 2 + 13 * hp->n_layers, n;
        uint64_t begin = TDM_ALIGN_UP(sizeof(struct tdm_weights_header) + 64 +
                                              n_max * sizeof(struct tdm_weights_tensor),
                                      UINT64_C(64)),
                 at = begin;
        struct tdm_weights_tensor *tensors = calloc(n_max, sizeof(*tensors));
        struct tdm_weights_header *header;
        struct tdm_error err = {};
        uint8_t *base;

        n = list(hp, type, more_type, embedding_type, tensors, &at);
        base = mmap(NULL, at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
                perror("mmap");
                free(tensors);
                return NULL;
        }
        header = (struct tdm_weights_header *)base;
        *header = (struct tdm_weights_header){ .magic = TDM_WEIGHTS_MAGIC,
                                               .abi = TDM_WEIGHTS_ABI,
                                               .size_bytes = at,
                                               .hparams = *hp,
                                               .n_tensors = n,
                                               .tensors_offset = TDM_ALIGN_UP(sizeof(*header), (size_t)64) };
        tdm_gemma3_recipe(&header->recipe, hp);
        header->recipe.ropes[0].factor = 8;
        for (uint32_t i = 0; i < hp->n_layers; i++)
                header->recipe.layers[i].query_scale = 1 / sqrtf((float)hp->head_dim);
        memcpy(base + header->tensors_offset, tensors, n * sizeof(*tensors));
        for (uint32_t i = 0; i < n; i++)
                if (tensors[i].rows > 1)
                        make_matrix(base + tensors[i].offset, &tensors[i]);
                else
                        for (uint32_t k = 0; k < tensors[i].cols; k++)
                                ((float *)(base + tensors[i].offset))[k] = 0.75f + (float)(k * 7 % 16) / 32;
        free(tensors);
        if (tdm_weights_check(base, at, at, &err) != 0) {
                fprintf(stderr, "random model: %s\n", err.message);
                munmap(base, at);
                return NULL;
        }
        return base;
}

void random_model_destroy(uint8_t *weights)
{
        munmap(weights, tdm_weights_header(weights)->size_bytes);
}
