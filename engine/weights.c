/* Repacks a file's tensors into the layout of weights.h, and checks and reads what was packed.
 *
 * Packing is a transposition of 4-byte groups (or of elements), so it runs at memory speed in plain C; a panel is
 * written once and checked for scales and weights that are not finite while it is in cache. What is checked is the
 * copy, not the mapped file, which may change meanwhile.
 *
 * Does not compress, convert or round: every weight keeps its exact value. */
#include <assert.h>
#include <inttypes.h>
#include "common/hugepage.h"
#include "common/sigbus.h"
#include "engine/half.h"
#include "engine/host/pool.h"
#include "engine/weights-k.h"
#include "engine/weights.h"

#define ALIGNMENT UINT64_C(64)
#define PROGRESS_BYTES (UINT64_C(4) << 20)
#define CHUNK_BYTES (UINT64_C(1) << 14) /* that a thread packs at a time */
#define MAX_TENSORS (TDM_N_TENSOR_KINDS * TDM_MAX_LAYERS)

static_assert(sizeof(struct tdm_weights_tensor) == 56, "part of the segment's layout");
static_assert(sizeof(struct tdm_weights_header) % 8 == 0, "part of the segment's layout");

struct tdm_weights_plan {
        struct tdm_weights_header header;
        struct tdm_weights_tensor *tensors;            /* [header.n_tensors] */
        const struct tdm_gguf_tensor **sources;        /* [header.n_tensors], owned by the gguf */
};

/* Sizes of the model that a tensor's shape is made of. */
enum dim { DIM_ONE, DIM_MODEL, DIM_VOCAB, DIM_FF, DIM_Q, DIM_KV, DIM_HEAD };

static const struct kind_info {
        uint8_t rows, cols; /* enum dim */
        bool is_vector;
        bool is_per_layer;
        bool is_optional;
        const char *name;
} kinds[TDM_N_TENSOR_KINDS] = {
        [TDM_TENSOR_TOKEN_EMBD] = {DIM_VOCAB, DIM_MODEL, false, false, false, "token_embd"},
        [TDM_TENSOR_OUTPUT] = {DIM_VOCAB, DIM_MODEL, false, false, true, "output"},
        [TDM_TENSOR_OUTPUT_NORM] = {DIM_ONE, DIM_MODEL, true, false, false, "output_norm"},
        [TDM_TENSOR_ATTN_NORM] = {DIM_ONE, DIM_MODEL, true, true, false, "attn_norm"},
        [TDM_TENSOR_Q] = {DIM_Q, DIM_MODEL, false, true, false, "attn_q"},
        [TDM_TENSOR_K] = {DIM_KV, DIM_MODEL, false, true, false, "attn_k"},
        [TDM_TENSOR_V] = {DIM_KV, DIM_MODEL, false, true, false, "attn_v"},
        [TDM_TENSOR_Q_NORM] = {DIM_ONE, DIM_HEAD, true, true, false, "attn_q_norm"},
        [TDM_TENSOR_K_NORM] = {DIM_ONE, DIM_HEAD, true, true, false, "attn_k_norm"},
        [TDM_TENSOR_O] = {DIM_MODEL, DIM_Q, false, true, false, "attn_output"},
        [TDM_TENSOR_POST_ATTN_NORM] = {DIM_ONE, DIM_MODEL, true, true, false, "post_attention_norm"},
        [TDM_TENSOR_FFN_NORM] = {DIM_ONE, DIM_MODEL, true, true, false, "ffn_norm"},
        [TDM_TENSOR_GATE] = {DIM_FF, DIM_MODEL, false, true, false, "ffn_gate"},
        [TDM_TENSOR_UP] = {DIM_FF, DIM_MODEL, false, true, false, "ffn_up"},
        [TDM_TENSOR_DOWN] = {DIM_MODEL, DIM_FF, false, true, false, "ffn_down"},
        [TDM_TENSOR_POST_FFW_NORM] = {DIM_ONE, DIM_MODEL, true, true, false, "post_ffw_norm"},
};

static uint32_t dim_size(const struct tdm_hparams *hp, enum dim dim)
{
        switch (dim) {
        case DIM_ONE:
                return 1;
        case DIM_MODEL:
                return hp->d_model;
        case DIM_VOCAB:
                return hp->n_vocab;
        case DIM_FF:
                return hp->d_ff;
        case DIM_Q:
                return hp->n_heads * hp->head_dim;
        case DIM_KV:
                return hp->n_kv_heads * hp->head_dim;
        case DIM_HEAD:
                return hp->head_dim;
        }
        abort();
}

bool tdm_weights_type_supported(uint32_t type)
{
        switch (type) {
        case TDM_TYPE_F32:
        case TDM_TYPE_F16:
        case TDM_TYPE_BF16:
        case TDM_TYPE_Q8_0:
        case TDM_TYPE_Q4_0:
                return true;
        default:
                return tdm_k_type(type);
        }
}

bool tdm_weights_type_quantised(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 || type == TDM_TYPE_Q4_0 || tdm_k_type(type);
}

/* Bytes of the quants of one block of 32 columns and 16 rows. */
static uint64_t block_bytes(uint32_t type)
{
        return type == TDM_TYPE_Q8_0 ? 512 : 256;
}

static uint64_t scales_bytes(uint32_t cols)
{
        return TDM_ALIGN_UP((uint64_t)cols / TDM_BLOCK_VALUES * TDM_PANEL_ROWS * 2, ALIGNMENT);
}

uint64_t tdm_weights_panel_bytes(uint32_t type, uint32_t cols)
{
        if (tdm_k_type(type)) {
                const struct tdm_k_info info = tdm_k_info(type);

                return tdm_k_panel_bytes(&info, cols);
        }
        if (tdm_weights_type_quantised(type))
                return scales_bytes(cols) + (uint64_t)cols / TDM_BLOCK_VALUES * block_bytes(type);
        return TDM_ALIGN_UP((uint64_t)cols * TDM_PANEL_ROWS * (type == TDM_TYPE_F32 ? 4 : 2), ALIGNMENT);
}

/* Fills layout, panel_bytes and size_bytes from kind, type and shape. */
static void layout_tensor(struct tdm_weights_tensor *tensor)
{
        if (kinds[tensor->kind].is_vector) {
                tensor->layout = TDM_LAYOUT_ROWS;
                tensor->panel_bytes = 0;
                tensor->size_bytes = (uint64_t)tensor->rows * tensor->cols * sizeof(float);
        } else {
                tensor->layout = TDM_LAYOUT_PANEL16;
                tensor->panel_bytes = tdm_weights_panel_bytes(tensor->type, tensor->cols);
                tensor->size_bytes = tensor->panel_bytes * TDM_DIV_UP(tensor->rows, TDM_PANEL_ROWS);
        }
}

/* ---- building ---- */

static int name_length(const struct tdm_gguf_tensor *source)
{
        return (int)TDM_MIN(source->name.size, (size_t)128);
}

static int plan_tensor(struct tdm_weights_tensor *tensor, const struct tdm_tensor_ref *ref, uint64_t *offset,
                       struct tdm_error *err)
{
        const struct tdm_gguf_tensor *source = ref->tensor;
        const struct tdm_type_info *info = tdm_type_info(source->type);
        bool is_vector = kinds[ref->kind].is_vector;

        if (!tdm_weights_type_supported(source->type) || (is_vector && tdm_weights_type_quantised(source->type)))
                return tdm_error_set(
                        err, TDM_E_UNSUPPORTED,
                        "tensor %.*s has the type %s, which is not supported here: use a file with %s",
                        name_length(source), source->name.data, info ? info->name : "unknown",
                        is_vector ? "F32, F16 or BF16"
                                  : "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
                                    "IQ4_NL or IQ4_XS");
        if (!info || ref->cols % info->block_values ||
            source->size_bytes != (uint64_t)ref->rows * (ref->cols / info->block_values) * info->block_bytes)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "tensor %.*s has %" PRIu64 " bytes, which is not what %u x %u values "
                                     "take",
                                     name_length(source), source->name.data, source->size_bytes, ref->rows, ref->cols);
        *tensor = (struct tdm_weights_tensor){
                .kind = ref->kind,
                .layer = ref->layer,
                .type = is_vector ? TDM_TYPE_F32 : source->type,
                .rows = ref->rows,
                .cols = ref->cols,
                .offset = *offset,
        };
        layout_tensor(tensor);
        *offset = TDM_ALIGN_UP(*offset + tensor->size_bytes, ALIGNMENT);
        return 0;
}

int tdm_weights_plan_new(struct tdm_weights_plan **ret, const struct tdm_model_description *model,
                         struct tdm_error *err)
{
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        uint64_t offset;

        assert(model->n_tensors > 0 && model->n_tensors <= MAX_TENSORS);
        plan = calloc(1, sizeof(*plan));
        if (!plan)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        plan->tensors = calloc(model->n_tensors, sizeof(*plan->tensors));
        plan->sources = calloc(model->n_tensors, sizeof(*plan->sources));
        if (!plan->tensors || !plan->sources)
                return tdm_error_set(err, -ENOMEM, "out of memory");

        plan->header = (struct tdm_weights_header){
                .magic = TDM_WEIGHTS_MAGIC,
                .abi = TDM_WEIGHTS_ABI,
                .hparams = model->hparams,
                .n_tensors = model->n_tensors,
                .tensors_offset = TDM_ALIGN_UP((uint64_t)sizeof(plan->header), ALIGNMENT),
        };
        offset = TDM_ALIGN_UP(plan->header.tensors_offset + model->n_tensors * sizeof(*plan->tensors), ALIGNMENT);
        for (uint32_t i = 0; i < model->n_tensors; i++) {
                int r = plan_tensor(&plan->tensors[i], &model->tensors[i], &offset, err);

                if (r != 0)
                        return r;
                plan->sources[i] = model->tensors[i].tensor;
        }
        plan->header.size_bytes = offset;
        *ret = steal_ptr(&plan);
        return 0;
}

uint64_t tdm_weights_plan_size(const struct tdm_weights_plan *plan)
{
        return plan->header.size_bytes;
}

void tdm_weights_plan_destroy(struct tdm_weights_plan *plan)
{
        if (!plan)
                return;
        free(plan->tensors);
        free(plan->sources);
        free(plan);
}

void tdm_weights_plan_destroyp(struct tdm_weights_plan **plan)
{
        tdm_weights_plan_destroy(*plan);
}

static inline uint32_t load_u32(const uint8_t *p)
{
        uint32_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline uint16_t load_u16(const uint8_t *p)
{
        uint16_t v;

        memcpy(&v, p, sizeof(v));
        return v;
}

static inline void store_u32(uint8_t *p, uint32_t v)
{
        memcpy(p, &v, sizeof(v));
}

static inline void store_u16(uint8_t *p, uint16_t v)
{
        memcpy(p, &v, sizeof(v));
}

static bool all_finite_16(const uint8_t *p, size_t n, uint16_t exponent)
{
        unsigned n_bad = 0;

        for (size_t i = 0; i < n; i++)
                n_bad += (load_u16(p + 2 * i) & exponent) == exponent;
        return n_bad == 0;
}

static bool all_finite_32(const uint8_t *p, size_t n)
{
        const uint32_t exponent = 0x7f800000;
        unsigned n_bad = 0;

        for (size_t i = 0; i < n; i++)
                n_bad += (load_u32(p + 4 * i) & exponent) == exponent;
        return n_bad == 0;
}

/* src: n_rows <= 16 rows of the file, row_bytes apart. False: a scale or weight is not finite. */
static bool pack_panel_q8_0(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES;
        uint8_t *quants = dst + scales_bytes(cols);

        for (uint32_t b = 0; b < nb; b++, quants += 512) {
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *block = src + row * row_bytes + (uint64_t)b * 34;

                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, load_u16(block));
                        for (uint32_t g = 0; g < 8; g++)
                                store_u32(quants + 64 * g + 4 * row, load_u32(block + 2 + 4 * g) ^ 0x80808080);
                }
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++) {
                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, 0);
                        for (uint32_t g = 0; g < 8; g++)
                                store_u32(quants + 64 * g + 4 * row, 0x80808080);
                }
        }
        return all_finite_16(dst, (size_t)nb * TDM_PANEL_ROWS, 0x7c00);
}

/* The file's block has value j in the low and value j + 16 in the high nibble of byte j: already groups v and v + 4. */
static bool pack_panel_q4_0(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        uint32_t nb = cols / TDM_BLOCK_VALUES;
        uint8_t *quants = dst + scales_bytes(cols);

        for (uint32_t b = 0; b < nb; b++, quants += 256) {
                for (uint32_t row = 0; row < n_rows; row++) {
                        const uint8_t *block = src + row * row_bytes + (uint64_t)b * 18;

                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, load_u16(block));
                        for (uint32_t v = 0; v < 4; v++)
                                store_u32(quants + 64 * v + 4 * row, load_u32(block + 2 + 4 * v));
                }
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++) {
                        store_u16(dst + (b * TDM_PANEL_ROWS + row) * 2, 0);
                        for (uint32_t v = 0; v < 4; v++)
                                store_u32(quants + 64 * v + 4 * row, 0x88888888);
                }
        }
        return all_finite_16(dst, (size_t)nb * TDM_PANEL_ROWS, 0x7c00);
}

static bool pack_panel_16(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols,
                          uint16_t exponent)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 32) { /* a few lines of every row at a time */
                uint32_t c1 = TDM_MIN(c0 + 32, cols);

                for (uint32_t row = 0; row < n_rows; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u16(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2,
                                          load_u16(src + row * row_bytes + (uint64_t)c * 2));
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u16(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 2, 0);
        }
        return all_finite_16(dst, (size_t)cols * TDM_PANEL_ROWS, exponent);
}

static bool pack_panel_32(uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows, uint32_t cols)
{
        for (uint32_t c0 = 0; c0 < cols; c0 += 16) {
                uint32_t c1 = TDM_MIN(c0 + 16, cols);

                for (uint32_t row = 0; row < n_rows; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u32(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4,
                                          load_u32(src + row * row_bytes + (uint64_t)c * 4));
                for (uint32_t row = n_rows; row < TDM_PANEL_ROWS; row++)
                        for (uint32_t c = c0; c < c1; c++)
                                store_u32(dst + ((uint64_t)c * TDM_PANEL_ROWS + row) * 4, 0);
        }
        return all_finite_32(dst, (size_t)cols * TDM_PANEL_ROWS);
}

static bool pack_panel(uint32_t type, uint8_t *dst, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                       uint32_t cols)
{
        switch (type) {
        case TDM_TYPE_Q8_0:
                return pack_panel_q8_0(dst, src, row_bytes, n_rows, cols);
        case TDM_TYPE_Q4_0:
                return pack_panel_q4_0(dst, src, row_bytes, n_rows, cols);
        case TDM_TYPE_F16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7c00);
        case TDM_TYPE_BF16:
                return pack_panel_16(dst, src, row_bytes, n_rows, cols, 0x7f80);
        case TDM_TYPE_F32:
                return pack_panel_32(dst, src, row_bytes, n_rows, cols);
        default: /* the plan has only supported types */
                return tdm_k_pack_panel(type, dst, src, row_bytes, n_rows, cols);
        }
}

static bool convert_vector(uint32_t type, float *dst, const uint8_t *src, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                dst[i] = type == TDM_TYPE_F16    ? tdm_f16_to_f32(load_u16(src + 2 * (size_t)i))
                         : type == TDM_TYPE_BF16 ? tdm_bf16_to_f32(load_u16(src + 2 * (size_t)i))
                                                 : tdm_bits_to_f32(load_u32(src + 4 * (size_t)i));
        return all_finite_32((const uint8_t *)dst, n);
}

struct build {
        struct tdm_pool *threads; /* NULL: the caller alone */
        uint64_t total_bytes, told_bytes;
        _Atomic uint64_t done_bytes;
        uint8_t *not_huge; /* up to here there are huge pages, or it was tried */
        _Atomic uint32_t n_not_huge;
        _Atomic bool stop; /* cancelled, or something was wrong: what is left is not touched */
        int (*progress)(uint64_t done, uint64_t total, void *userdata);
        void *userdata;
};

/* Of the thread that asked for all this only. */
static void tell_progress(struct build *build)
{
        uint64_t done = atomic_load_explicit(&build->done_bytes, memory_order_relaxed);

        if (!build->progress || (done - build->told_bytes < PROGRESS_BYTES && done < build->total_bytes))
                return;
        build->told_bytes = done;
        if (build->progress(done, build->total_bytes, build->userdata) != 0)
                atomic_store_explicit(&build->stop, true, memory_order_relaxed);
}

/* Zero rows that the file lost meanwhile look like data: the guard is asked before anything read is believed. */
static int changed(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *source, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_MODEL_CHANGED,
                             "model %s: tensor %.*s could not be read to its end: the file was cut "
                             "short while it was in use",
                             tdm_gguf_name(gguf), name_length(source), source->name.data);
}

static int not_finite(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *source, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_MODEL,
                             "model %s: tensor %.*s holds a scale or weight that is not a finite number "
                             "(damaged file?)",
                             tdm_gguf_name(gguf), name_length(source), source->name.data);
}

static void make_huge(void *arg, unsigned i, unsigned thread)
{
        struct build *build = arg;

        if (!atomic_load_explicit(&build->stop, memory_order_relaxed))
                tdm_hugepage_try(build->not_huge + i * TDM_HUGEPAGE_BYTES, 1, &build->n_not_huge);
}

/* Nothing behind not_huge has been written yet. What is not a whole huge page at the end of everything stays as it is. */
static void make_huge_until(struct build *build, const uint8_t *until, const uint8_t *end)
{
        uint64_t bytes = TDM_ALIGN_UP((uint64_t)TDM_MAX(until - build->not_huge, 0), TDM_HUGEPAGE_BYTES);
        unsigned n = (unsigned)(TDM_MIN(bytes, (uint64_t)TDM_MAX(end - build->not_huge, 0)) / TDM_HUGEPAGE_BYTES);

        if (build->threads)
                tdm_pool_run(build->threads, n, make_huge, build);
        else
                for (unsigned i = 0; i < n; i++)
                        make_huge(build, i, 0);
        build->not_huge += n * TDM_HUGEPAGE_BYTES;
}

/* One tensor's panels, by several threads. */
struct pack_job {
        struct build *build;
        const struct tdm_weights_tensor *tensor;
        const uint8_t *data;
        uint64_t row_bytes;
        uint8_t *dst;
        uint32_t n_panels, chunk_panels;
        _Atomic bool not_finite;
};

static void pack_chunk(void *arg, unsigned chunk, unsigned thread)
{
        struct pack_job *job = arg;
        const struct tdm_weights_tensor *tensor = job->tensor;
        uint32_t first = chunk * job->chunk_panels, end = TDM_MIN(first + job->chunk_panels, job->n_panels);

        for (uint32_t panel = first; panel < end; panel++) {
                uint32_t row = panel * TDM_PANEL_ROWS;

                if (atomic_load_explicit(&job->build->stop, memory_order_relaxed))
                        return;
                if (!pack_panel(tensor->type, job->dst + panel * tensor->panel_bytes, job->data + row * job->row_bytes,
                                job->row_bytes, TDM_MIN(tensor->rows - row, TDM_PANEL_ROWS), tensor->cols)) {
                        atomic_store_explicit(&job->not_finite, true, memory_order_relaxed);
                        atomic_store_explicit(&job->build->stop, true, memory_order_relaxed);
                        return;
                }
                atomic_fetch_add_explicit(&job->build->done_bytes, tensor->panel_bytes, memory_order_relaxed);
                if (thread == 0)
                        tell_progress(job->build);
        }
}

static int build_tensor(struct build *build, const struct tdm_weights_tensor *tensor, const struct tdm_gguf *gguf,
                        const struct tdm_gguf_tensor *source, const struct tdm_sigbus_guard *guard, const uint8_t *data,
                        uint8_t *dst, struct tdm_error *err)
{
        struct pack_job job = { .build = build,
                                .tensor = tensor,
                                .data = data,
                                .row_bytes = source->size_bytes / tensor->rows,
                                .dst = dst,
                                .n_panels = TDM_DIV_UP(tensor->rows, TDM_PANEL_ROWS) };
        bool finite = true;

        if (tensor->layout == TDM_LAYOUT_ROWS) {
                finite = convert_vector(source->type, (float *)(void *)dst, data, tensor->rows * tensor->cols);
                atomic_fetch_add_explicit(&build->done_bytes, tensor->size_bytes, memory_order_relaxed);
        } else {
                unsigned n_chunks;

                job.chunk_panels = (uint32_t)TDM_MAX(CHUNK_BYTES / tensor->panel_bytes, UINT64_C(1));
                n_chunks = TDM_DIV_UP(job.n_panels, job.chunk_panels);
                if (build->threads)
                        tdm_pool_run(build->threads, n_chunks, pack_chunk, &job);
                else
                        for (unsigned i = 0; i < n_chunks; i++)
                                pack_chunk(&job, i, 0);
                finite = !atomic_load_explicit(&job.not_finite, memory_order_relaxed);
        }
        if (tdm_sigbus_guard_hit(guard))
                return changed(gguf, source, err);
        if (!finite)
                return not_finite(gguf, source, err);
        tell_progress(build);
        return atomic_load_explicit(&build->stop, memory_order_relaxed)
                       ? tdm_error_set(err, -ECANCELED, "loading was cancelled")
                       : 0;
}

int tdm_weights_build(const struct tdm_weights_plan *plan, const struct tdm_gguf *gguf, uint8_t *dst,
                      unsigned n_threads, int (*progress)(uint64_t done, uint64_t total, void *userdata),
                      void *userdata, struct tdm_error *err)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *threads = NULL;
        struct build build = { .progress = progress, .userdata = userdata };
        const struct tdm_weights_header *header = &plan->header;

        assert((uintptr_t)dst % ALIGNMENT == 0);
        build.not_huge = (uint8_t *)TDM_ALIGN_UP((uintptr_t)dst, (uintptr_t)TDM_HUGEPAGE_BYTES);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                build.total_bytes += plan->tensors[i].size_bytes;
        /* Without helpers it only takes longer. */
        if (n_threads > 1 && build.total_bytes > 2 * CHUNK_BYTES && tdm_pool_new(&threads, n_threads, NULL) == 0)
                build.threads = threads;

        for (uint32_t i = 0; i < header->n_tensors; i++) {
                const struct tdm_gguf_tensor *source = plan->sources[i];
                const uint8_t *data = tdm_gguf_tensor_data(gguf, source);
                struct tdm_sigbus_guard guard;
                int r;

                if (!data)
                        return tdm_error_set(err, -EINVAL, "model %s is not mapped", tdm_gguf_name(gguf));
                r = tdm_sigbus_guard_begin(&guard, data, source->size_bytes);
                if (r < 0)
                        return tdm_error_set(err, r, "cannot guard the mapping of model %s: %s", tdm_gguf_name(gguf),
                                             strerror(-r));
                make_huge_until(&build, dst + plan->tensors[i].offset + plan->tensors[i].size_bytes, dst + header->size_bytes);
                r = build_tensor(&build, &plan->tensors[i], gguf, source, &guard, data, dst + plan->tensors[i].offset,
                                 err);
                tdm_sigbus_guard_end(&guard);
                if (r != 0)
                        return r;
        }
        memcpy(dst + header->tensors_offset, plan->tensors, header->n_tensors * sizeof(*plan->tensors));
        memcpy(dst, header, sizeof(*header));
        return 0;
}

/* ---- reading ---- */

static int bad(struct tdm_error *err, const char *what)
{
        return tdm_error_set(err, TDM_E_PROTOCOL, "the weights segment is refused: %s", what);
}

static int check_tensor(const struct tdm_weights_header *header, const struct tdm_weights_tensor *tensor, uint64_t *end,
                        struct tdm_error *err)
{
        const struct tdm_hparams *hp = &header->hparams;
        struct tdm_weights_tensor wanted = *tensor;
        const struct kind_info *kind;

        if (tensor->kind >= TDM_N_TENSOR_KINDS)
                return bad(err, "a tensor of no known kind");
        kind = &kinds[tensor->kind];
        if (tensor->layer >= (kind->is_per_layer ? hp->n_layers : 1))
                return bad(err, "a tensor of a layer that the model does not have");
        if (!tdm_weights_type_supported(tensor->type) || (kind->is_vector && tensor->type != TDM_TYPE_F32))
                return bad(err, "a tensor of a type that is not supported");
        if (tensor->rows != dim_size(hp, kind->rows) || tensor->cols != dim_size(hp, kind->cols))
                return bad(err, "a tensor's shape is not the model's");
        if (tensor->cols % tdm_type_info(tensor->type)->block_values)
                return bad(err, "a tensor's rows do not end with a block");
        layout_tensor(&wanted);
        if (tensor->layout != wanted.layout || tensor->panel_bytes != wanted.panel_bytes ||
            tensor->size_bytes != wanted.size_bytes || tensor->reserved != 0)
                return bad(err, "a tensor's layout is not what its type and shape ask for");
        /* Tensors lie in the table's order, so one that starts behind the last one's end overlaps none. */
        if (tensor->offset % ALIGNMENT || tensor->offset < *end || tensor->offset > header->size_bytes ||
            tensor->size_bytes > header->size_bytes - tensor->offset)
                return bad(err, "a tensor lies outside of the segment or over another");
        *end = tensor->offset + tensor->size_bytes;
        return 0;
}

int tdm_weights_check(const uint8_t *base, uint64_t size_bytes, struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(base);
        uint8_t seen[TDM_N_TENSOR_KINDS][TDM_MAX_LAYERS] = {{0}};
        const struct tdm_weights_tensor *tensors;
        uint64_t end;
        int r;

        if ((uintptr_t)base % ALIGNMENT)
                return bad(err, "it is not aligned");
        if (size_bytes < sizeof(*header))
                return bad(err, "it is shorter than its header");
        if (header->magic != TDM_WEIGHTS_MAGIC)
                return bad(err, "wrong magic");
        if (header->abi != TDM_WEIGHTS_ABI)
                return bad(err, "wrong ABI version: daemon and worker are of different builds");
        if (header->size_bytes > size_bytes || header->size_bytes < sizeof(*header))
                return bad(err, "its size is not what its header says");
        r = tdm_hparams_check(&header->hparams, err);
        if (r != 0)
                return err ? tdm_error_prefix(err, "the weights segment is refused") : r;
        if (header->n_tensors == 0 || header->n_tensors > MAX_TENSORS || header->reserved != 0)
                return bad(err, "impossible number of tensors");
        if (header->tensors_offset % sizeof(uint64_t) || header->tensors_offset < sizeof(*header) ||
            header->tensors_offset > header->size_bytes ||
            header->n_tensors * sizeof(*tensors) > header->size_bytes - header->tensors_offset)
                return bad(err, "its table lies outside");

        tensors = (const struct tdm_weights_tensor *)(const void *)(base + header->tensors_offset);
        end = header->tensors_offset + header->n_tensors * sizeof(*tensors);
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                if ((r = check_tensor(header, &tensors[i], &end, err)))
                        return r;
                if (seen[tensors[i].kind][tensors[i].layer]++)
                        return bad(err, "a tensor is there twice");
        }
        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++)
                for (uint32_t layer = 0; layer < (kinds[kind].is_per_layer ? header->hparams.n_layers : 1); layer++)
                        if (!seen[kind][layer] && !kinds[kind].is_optional)
                                return tdm_error_set(err, TDM_E_PROTOCOL,
                                                     "the weights segment is refused: tensor %s of layer "
                                                     "%u is missing",
                                                     kinds[kind].name, layer);
        return 0;
}

const struct tdm_weights_tensor *tdm_weights_find(const uint8_t *base, enum tdm_tensor_kind kind, uint32_t layer)
{
        const struct tdm_weights_header *header = tdm_weights_header(base);
        const struct tdm_weights_tensor *tensors = (const void *)(base + header->tensors_offset);

        for (uint32_t i = 0; i < header->n_tensors; i++)
                if (tensors[i].kind == (uint32_t)kind && tensors[i].layer == layer)
                        return &tensors[i];
        return NULL;
}

float tdm_weights_value(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, uint32_t col)
{
        const uint8_t *data = base + tensor->offset;
        uint32_t lane = row % TDM_PANEL_ROWS, b = col / TDM_BLOCK_VALUES, g = col % TDM_BLOCK_VALUES / 4, i = col % 4;
        const uint8_t *quants;
        float scale;

        assert(row < tensor->rows && col < tensor->cols);
        if (tensor->layout == TDM_LAYOUT_ROWS)
                return tdm_bits_to_f32(load_u32(data + ((uint64_t)row * tensor->cols + col) * 4));

        data += row / TDM_PANEL_ROWS * tensor->panel_bytes;
        switch (tensor->type) {
        case TDM_TYPE_F32:
                return tdm_bits_to_f32(load_u32(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 4));
        case TDM_TYPE_F16:
                return tdm_f16_to_f32(load_u16(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 2));
        case TDM_TYPE_BF16:
                return tdm_bf16_to_f32(load_u16(data + ((uint64_t)col * TDM_PANEL_ROWS + lane) * 2));
        default:
                break;
        }
        if (tdm_k_type(tensor->type)) {
                const struct tdm_k_info info = tdm_k_info(tensor->type);
                struct tdm_k_block block;

                tdm_k_read_block(tensor->type, data, tensor->cols, b, lane, &block);
                return tdm_k_value(&info, &block, col % TDM_BLOCK_VALUES);
        }
        scale = tdm_f16_to_f32(load_u16(data + ((uint64_t)b * TDM_PANEL_ROWS + lane) * 2));
        quants = data + scales_bytes(tensor->cols) + b * block_bytes(tensor->type);
        if (tensor->type == TDM_TYPE_Q8_0)
                return (float)(quants[64 * g + 4 * lane + i] - 128) * scale;
        return (float)((quants[64 * (g % 4) + 4 * lane + i] >> (g < 4 ? 0 : 4) & 15) - 8) * scale;
}

/* One lane of every block: a cache line for 4 values (Q8_0) or 8 (Q4_0). */
static void row_quantised(const uint8_t *panel, const struct tdm_weights_tensor *tensor, uint32_t lane, float *y)
{
        const uint8_t *quants = panel + scales_bytes(tensor->cols);

        for (uint32_t b = 0; b < tensor->cols / TDM_BLOCK_VALUES; b++, y += TDM_BLOCK_VALUES) {
                float scale = tdm_f16_to_f32(load_u16(panel + ((uint64_t)b * TDM_PANEL_ROWS + lane) * 2));

                if (tensor->type == TDM_TYPE_Q8_0) {
                        for (uint32_t i = 0; i < TDM_BLOCK_VALUES; i++)
                                y[i] = (float)(quants[i / 4 * 64 + 4 * lane + i % 4] - 128) * scale;
                        quants += 512;
                } else {
                        for (uint32_t i = 0; i < TDM_BLOCK_VALUES / 2; i++) {
                                uint8_t q = quants[i / 4 * 64 + 4 * lane + i % 4];

                                y[i] = (float)((q & 15) - 8) * scale;
                                y[i + 16] = (float)((q >> 4) - 8) * scale;
                        }
                        quants += 256;
                }
        }
}

static void row_k(const uint8_t *panel, const struct tdm_weights_tensor *tensor, uint32_t lane, float *y)
{
        const struct tdm_k_info info = tdm_k_info(tensor->type);

        for (uint32_t b = 0; b < tensor->cols / TDM_BLOCK_VALUES; b++, y += TDM_BLOCK_VALUES) {
                struct tdm_k_block block;

                tdm_k_read_block(tensor->type, panel, tensor->cols, b, lane, &block);
                for (uint32_t i = 0; i < TDM_BLOCK_VALUES; i++)
                        y[i] = tdm_k_value(&info, &block, i);
        }
}

void tdm_weights_row(const uint8_t *base, const struct tdm_weights_tensor *tensor, uint32_t row, float *y)
{
        const uint8_t *data = base + tensor->offset;
        uint32_t lane = row % TDM_PANEL_ROWS;

        assert(row < tensor->rows);
        if (tensor->layout == TDM_LAYOUT_ROWS) {
                memcpy(y, data + (uint64_t)row * tensor->cols * sizeof(float), tensor->cols * sizeof(float));
                return;
        }
        data += row / TDM_PANEL_ROWS * tensor->panel_bytes;
        if (tdm_k_type(tensor->type)) {
                row_k(data, tensor, lane, y);
                return;
        }
        if (tdm_weights_type_quantised(tensor->type)) {
                row_quantised(data, tensor, lane, y);
                return;
        }
        for (uint64_t col = 0; col < tensor->cols; col++)
                y[col] = tensor->type == TDM_TYPE_F32
                                 ? tdm_bits_to_f32(load_u32(data + (col * TDM_PANEL_ROWS + lane) * 4))
                         : tensor->type == TDM_TYPE_F16
                                 ? tdm_f16_to_f32(load_u16(data + (col * TDM_PANEL_ROWS + lane) * 2))
                                 : tdm_bf16_to_f32(load_u16(data + (col * TDM_PANEL_ROWS + lane) * 2));
}
