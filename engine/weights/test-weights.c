/* The weights segment: what is packed from a GGUF made here reads back as the file's block formats say, by formulae of
 * their own; damaged, unsupported and shrinking files are refused; a segment with flipped bits is refused or harmless.
 *
 * Longer than 800 lines: every case packs the file that is made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include "common/f16.h"
#include "common/sigbus.h"
#include "common/test-hugepage.h"
#include "engine/weights/weights-private.h"
#include "engine/weights/weights.h"

static uint64_t random_state = 3;

static uint32_t random_u32(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(random_state >> 32);
}

/* ---- formats, restated ---- */

static double f16_value(const uint8_t *p)
{
        unsigned h = p[0] | p[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
        double v = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);

        return h >> 15 ? -v : v;
}

static double bf16_value(const uint8_t *p)
{
        unsigned h = p[0] | p[1] << 8, exponent = h >> 7 & 255, fraction = h & 127;
        double v = exponent ? ldexp(128 + fraction, (int)exponent - 134) : ldexp(fraction, -133);

        return h >> 15 ? -v : v;
}

static double file_value(uint32_t type, const uint8_t *row, uint32_t col)
{
        const uint8_t *block;
        float f;

        switch (type) {
        case TDM_TYPE_F32:
                memcpy(&f, row + 4 * col, 4);
                return f;
        case TDM_TYPE_F16:
                return f16_value(row + 2 * col);
        case TDM_TYPE_BF16:
                return bf16_value(row + 2 * col);
        case TDM_TYPE_Q8_0: /* f16 d, then 32 signed bytes */
                block = row + col / 32 * 34;
                return f16_value(block) * (int8_t)block[2 + col % 32];
        default: /* Q4_0: f16 d, then 16 bytes: low nibbles are the first 16 values, high ones the others; 8 is zero */
                block = row + col / 32 * 18;
                return f16_value(block) *
                       (col % 32 < 16 ? (block[2 + col % 16] & 15) - 8 : (block[2 + col % 16] >> 4) - 8);
        }
}

/* ---- a file ---- */

#define N_LAYERS 2u
#define N_TENSORS 32u
#define N_VOCAB 37u

static struct tdm_hparams hparams = {
        /* n_vocab is the test's */
        .n_layers = N_LAYERS, .d_model = 192,     .n_heads = 2, .n_kv_heads = 1, .head_dim = 48,
        .d_ff = 320,          .n_vocab = N_VOCAB, .n_ctx = 64,  .window = 16,
};

/* Whether few of a layer's neurons live: its ffn_up and ffn_down then lie otherwise. */
static bool is_sparse, wants_panels;
/* Not 0: RoPE turns this many neighbouring dimensions of a head, or the halves of these. */
static uint32_t n_neighbours;
static bool has_halves;
/* Not 0: logits are multiplied by it. */
static float logit_scale;

static const struct {
        uint32_t kind, rows /* 0: n_vocab */, cols;
        uint32_t type[2]; /* of layers 0 and 1 */
} shapes[] = {
        { TDM_TENSOR_TOKEN_EMBD, 0, 192, { TDM_TYPE_Q8_0 } },
        { TDM_TENSOR_OUTPUT, 0, 192, { TDM_TYPE_BF16 } },
        { TDM_TENSOR_OUTPUT_NORM, 1, 192, { TDM_TYPE_F32 } },
        { TDM_TENSOR_ATTN_NORM, 1, 192, { TDM_TYPE_F32, TDM_TYPE_F16 } },
        { TDM_TENSOR_Q, 96, 192, { TDM_TYPE_Q4_0, TDM_TYPE_Q8_0 } },
        { TDM_TENSOR_K, 48, 192, { TDM_TYPE_F16, TDM_TYPE_F32 } },
        { TDM_TENSOR_V, 48, 192, { TDM_TYPE_BF16, TDM_TYPE_Q4_0 } },
        { TDM_TENSOR_Q_NORM, 1, 48, { TDM_TYPE_BF16, TDM_TYPE_F32 } },
        { TDM_TENSOR_K_NORM, 1, 48, { TDM_TYPE_F32, TDM_TYPE_F32 } },
        { TDM_TENSOR_O, 192, 96, { TDM_TYPE_F32, TDM_TYPE_Q4_0 } },
        { TDM_TENSOR_POST_ATTN_NORM, 1, 192, { TDM_TYPE_F32, TDM_TYPE_F32 } },
        { TDM_TENSOR_FFN_NORM, 1, 192, { TDM_TYPE_F32, TDM_TYPE_F32 } },
        { TDM_TENSOR_GATE, 320, 192, { TDM_TYPE_Q8_0, TDM_TYPE_F16 } },
        { TDM_TENSOR_UP, 320, 192, { TDM_TYPE_Q4_0, TDM_TYPE_F32 } },
        { TDM_TENSOR_DOWN, 192, 320, { TDM_TYPE_Q8_0, TDM_TYPE_Q4_0 } },
        { TDM_TENSOR_POST_FFW_NORM, 1, 192, { TDM_TYPE_F32, TDM_TYPE_F32 } },
};

struct file {
        uint8_t bytes[16 << 20];
        size_t size;
        size_t data; /* where the first tensor's data starts */
        struct {
                char name[16];
                uint32_t kind, layer, rows, cols, type;
                size_t offset, size; /* from data */
        } tensors[N_TENSORS];
        unsigned n_tensors;
};

static void put(struct file *f, const void *p, size_t n)
{
        assert_true(f->size + n <= sizeof(f->bytes));
        memcpy(f->bytes + f->size, p, n);
        f->size += n;
}

static void put_u32(struct file *f, uint32_t v)
{
        put(f, &v, 4);
}

static void put_u64(struct file *f, uint64_t v)
{
        put(f, &v, 8);
}

static size_t type_bytes(uint32_t type, size_t n)
{
        const struct tdm_type_info *info = tdm_type_info(type);

        return n / info->block_values * info->block_bytes;
}

/* Random bytes, then every float made finite. */
static void random_tensor(uint8_t *p, uint32_t type, size_t size)
{
        size_t step = tdm_type_info(type)->block_bytes;
        unsigned exponent_byte = type == TDM_TYPE_F32 ? 3 : 1;

        for (size_t i = 0; i < size; i++)
                p[i] = (uint8_t)random_u32();
        for (size_t i = 0; i < size; i += step)
                p[i + exponent_byte] &=
                        random_u32() % 8 ? 0xbf : 0x83; /* clears the exponent's top bit, or most of it */
}

static void file_make(struct file *f, int kind_changed, uint32_t type_changed)
{
        size_t offset = 0;

        memset(f, 0, sizeof(*f));
        for (unsigned s = 0; s < TDM_ARRAY_SIZE(shapes); s++)
                for (uint32_t layer = 0; layer < (s < 3 ? 1 : N_LAYERS); layer++) {
                        uint32_t type = shapes[s].type[layer], rows = shapes[s].rows ? shapes[s].rows : hparams.n_vocab;

                        if ((int)shapes[s].kind == kind_changed && layer == 0)
                                type = type_changed;
                        snprintf(f->tensors[f->n_tensors].name, 16, "t%u.%u", shapes[s].kind, layer);
                        f->tensors[f->n_tensors].kind = shapes[s].kind;
                        f->tensors[f->n_tensors].layer = layer;
                        f->tensors[f->n_tensors].rows = rows;
                        f->tensors[f->n_tensors].cols = shapes[s].cols;
                        f->tensors[f->n_tensors].type = type;
                        f->tensors[f->n_tensors].offset = offset;
                        f->tensors[f->n_tensors].size = type_bytes(type, (size_t)rows * shapes[s].cols);
                        offset = TDM_ALIGN_UP(offset + f->tensors[f->n_tensors].size, (size_t)32);
                        f->n_tensors++;
                }
        put(f, "GGUF", 4);
        put_u32(f, 3);
        put_u64(f, f->n_tensors);
        put_u64(f, 1);
        put_u64(f, 20);
        put(f, "general.architecture", 20);
        put_u32(f, 8); /* string */
        put_u64(f, 6);
        put(f, "gemma3", 6);
        for (unsigned i = 0; i < f->n_tensors; i++) {
                put_u64(f, strlen(f->tensors[i].name));
                put(f, f->tensors[i].name, strlen(f->tensors[i].name));
                put_u32(f, f->tensors[i].rows == 1 ? 1 : 2);
                put_u64(f, f->tensors[i].cols);
                if (f->tensors[i].rows != 1)
                        put_u64(f, f->tensors[i].rows);
                put_u32(f, f->tensors[i].type);
                put_u64(f, f->tensors[i].offset);
        }
        f->size = f->data = TDM_ALIGN_UP(f->size, (size_t)32);
        for (unsigned i = 0; i < f->n_tensors; i++)
                random_tensor(f->bytes + f->data + f->tensors[i].offset, f->tensors[i].type, f->tensors[i].size);
        f->size = f->data + offset;
        assert_true(f->size <= sizeof(f->bytes));
}

struct opened {
        int fd;
        struct tdm_gguf *gguf;
        struct tdm_tensor_ref refs[N_TENSORS];
        struct tdm_model_description model;
};

static void file_open(const struct file *f, struct opened *o)
{
        struct tdm_error err = { 0 };

        o->fd = memfd_create("test", MFD_CLOEXEC);
        assert_int_equal(write(o->fd, f->bytes, f->size), f->size);
        if (tdm_gguf_open(&o->gguf, o->fd, "test.gguf", &err) != 0)
                fail_msg("%s", err.message);
        o->model = (struct tdm_model_description){ .hparams = hparams, .n_tensors = f->n_tensors, .tensors = o->refs };
        tdm_hparams_all_layers(&o->model.hparams);
        o->model.hparams.layers[1].window = 0;
        tdm_gemma3_recipe(&o->model.recipe, &o->model.hparams);
        for (unsigned i = 0; i < N_LAYERS && is_sparse; i++) {
                o->model.recipe.layers[i].is_sparse = true;
                o->model.recipe.layers[i].sparsity_scale = 1.5f;
        }
        for (unsigned i = 0; n_neighbours != 0 && i < o->model.recipe.n_ropes; i++) {
                o->model.recipe.ropes[i].style = has_halves ? TDM_ROPE_HALVES : TDM_ROPE_NEIGHBOURS;
                o->model.recipe.ropes[i].n_dims = n_neighbours;
        }
        o->model.recipe.logit_scale = logit_scale;
        for (unsigned i = 0; i < f->n_tensors; i++) {
                o->refs[i] = (struct tdm_tensor_ref){
                        .kind = f->tensors[i].kind,
                        .layer = f->tensors[i].layer,
                        .rows = f->tensors[i].rows,
                        .cols = f->tensors[i].cols,
                        .tensor = tdm_gguf_find_tensor(o->gguf, f->tensors[i].name),
                };
                assert_non_null(o->refs[i].tensor);
        }
}

static void file_close(struct opened *o)
{
        tdm_gguf_close(o->gguf);
        close(o->fd);
}

/* Packs f; returns what build() did. *ret is allocated to the very size, so that a step outside is seen. */
static int pack(const struct file *f, uint8_t **ret, uint64_t *ret_size, struct tdm_error *err)
{
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        struct opened o;
        int r;

        file_open(f, &o);
        r = tdm_weights_plan_new(&plan, &o.model, err);
        if (r == 0 && wants_panels)
                tdm_weights_plan_panels(plan);
        if (r == 0) {
                *ret_size = tdm_weights_plan_size(plan);
                *ret = aligned_alloc(64, *ret_size);
                assert_non_null(*ret);
                r = tdm_weights_build(plan, o.gguf, *ret, 3, NULL, NULL, err);
        }
        if (r == 0) { /* by one thread the same */
                _cleanup_(freep) uint8_t *alone = aligned_alloc(64, *ret_size);

                memset(alone, 0xa5, *ret_size);
                assert_int_equal(tdm_weights_build(plan, o.gguf, alone, 1, NULL, NULL, err), 0);
                for (unsigned i = 0; i < 8; i++) { /* the helpers do not get a piece each time */
                        memset(*ret, 0xa5, *ret_size);
                        assert_int_equal(tdm_weights_build(plan, o.gguf, *ret, 3, NULL, NULL, err), 0);
                        assert_memory_equal(alone, *ret, *ret_size);
                }
        }
        file_close(&o);
        return r;
}

static struct file file; /* large: not on the stack */

/* Which row of the file, or value of a vector, lies at i: of queries and keys that turn neighbours the even ones of
 * what a head turns begin its first half, the odd ones its second. */
static uint32_t from_file(uint32_t kind, uint32_t i)
{
        uint32_t d = i % hparams.head_dim;
        bool turned =
                kind == TDM_TENSOR_Q || kind == TDM_TENSOR_K || kind == TDM_TENSOR_Q_NORM || kind == TDM_TENSOR_K_NORM;

        if (!turned || n_neighbours == 0)
                return i;
        for (uint32_t pair = 0, half = hparams.head_dim / 2; pair < n_neighbours / 2; pair++)
                if (d == pair || d == half + pair)
                        return has_halves ? i - d + pair + (d >= half ? n_neighbours / 2 : 0) :
                                            i - d + 2 * pair + (d >= half);
        return i - d + (d < hparams.head_dim / 2 ? n_neighbours / 2 + d : d);
}

/* Every value of every tensor, against the file. */
static void check_values(const struct file *f, const uint8_t *base, uint64_t size)
{
        struct tdm_error err = { 0 };

        if (tdm_weights_check(base, size, size, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(tdm_weights_header(base)->n_tensors, f->n_tensors);
        for (unsigned i = 0; i < f->n_tensors; i++) {
                const struct tdm_weights_tensor *t = tdm_weights_find(base, f->tensors[i].kind, f->tensors[i].layer);
                size_t row_bytes = f->tensors[i].size / f->tensors[i].rows;
                float y[320];

                assert_non_null(t);
                assert_int_equal(t->rows, f->tensors[i].rows);
                assert_int_equal(t->cols, f->tensors[i].cols);
                for (uint32_t row = 0; row < t->rows; row++) {
                        uint32_t kind = f->tensors[i].kind, of_file = t->rows == 1 ? row : from_file(kind, row);
                        const uint8_t *from = f->bytes + f->data + f->tensors[i].offset + of_file * row_bytes;

                        tdm_weights_row(base, t, row, y);
                        for (uint32_t col = 0; col < t->cols; col++) {
                                double want =
                                        file_value(f->tensors[i].type, from, t->rows == 1 ? from_file(kind, col) : col);

                                if (kind == TDM_TENSOR_OUTPUT_NORM && logit_scale != 0)
                                        want = (double)((float)want * logit_scale);
                                if (y[col] != want || tdm_weights_value(base, t, row, col) != want)
                                        fail_msg("tensor %u row %u column %u: %g, should be %g", i, row, col,
                                                 (double)y[col], want);
                        }
                        if (t->type == TDM_TYPE_Q4_0 && t->layout == TDM_LAYOUT_PANEL16) {
                                int8_t q[320];
                                uint16_t scales[320 / 32];

                                tdm_weights_row_q4_0(base, t, row, q, scales);
                                for (uint32_t col = 0; col < t->cols; col++)
                                        assert_true((float)q[col] * tdm_f16_to_f32(scales[col / 32]) == y[col]);
                        }
                }
        }
        assert_null(tdm_weights_find(base, TDM_TENSOR_Q, N_LAYERS));
}

static void test_values(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL;
        struct tdm_error err = { 0 };
        uint64_t size;

        file_make(&file, -1, 0);
        assert_int_equal(pack(&file, &base, &size, &err), 0);
        check_values(&file, base, size);
}

/* Pieces of a row as a file has it are the values of the packed row, wherever they begin. */
static void test_file_row(void **state)
{
        enum { N = 768 };
        static const uint32_t types[] = { TDM_TYPE_F32,  TDM_TYPE_F16,  TDM_TYPE_BF16, TDM_TYPE_Q8_0,
                                          TDM_TYPE_Q4_0, TDM_TYPE_Q4_K, TDM_TYPE_Q6_K, TDM_TYPE_IQ4_NL };
        _Alignas(64) static uint8_t panel[N * 64 + 4096];

        for (size_t t = 0; t < TDM_ARRAY_SIZE(types); t++) {
                const struct tdm_type_info *info = tdm_type_info(types[t]);
                struct tdm_weights_tensor tensor = { .type = types[t],
                                                     .layout = TDM_LAYOUT_PANEL16,
                                                     .rows = 1,
                                                     .cols = N,
                                                     .panel_bytes = tdm_weights_panel_bytes(types[t], N) };
                size_t size = N / info->block_values * info->block_bytes;
                uint8_t row[N * 4 + 64]; /* read ahead, never used */
                float want[N], got[N];

                assert_true(tensor.panel_bytes <= sizeof(panel));
                random_tensor(row, types[t], size);
                assert_true(tdm_weights_pack_panel(types[t], panel, row, size, 1, N));
                tdm_weights_row(panel, &tensor, 0, want);
                for (uint32_t first = 0; first < N; first += 96)
                        for (uint32_t n = 32; first + n <= N; n += 224) {
                                tdm_weights_file_row(types[t], row, first, n, got);
                                assert_memory_equal(got, want + first, n * sizeof(float));
                        }
        }
}

/* Devices turn halves of whole heads alone: what makes queries and keys is packed so that they may. */
static void test_neighbours(void **state)
{
        static const uint32_t turned[] = { 32, 48, 46, 2, 20 }; /* of 48; all but the first end within a panel */
        struct tdm_error err = { 0 };
        uint64_t size;

        file_make(&file, -1, 0);
        for (size_t i = 0; i < 2 * TDM_ARRAY_SIZE(turned); i++) {
                _cleanup_(freep) uint8_t *base = NULL;

                n_neighbours = turned[i / 2];
                has_halves = i % 2;
                assert_int_equal(pack(&file, &base, &size, &err), 0);
                check_values(&file, base, size);
                for (unsigned rope = 0; rope < TDM_MAX_ROPES; rope++)
                        assert_int_not_equal(tdm_weights_header(base)->recipe.ropes[rope].style, TDM_ROPE_NEIGHBOURS);
                assert_int_equal(tdm_weights_header(base)->recipe.ropes[0].n_dims, 48);
                assert_int_equal(tdm_weights_header(base)->recipe.ropes[0].n_still, 48 - turned[i / 2]);
        }
        n_neighbours = 0;
        has_halves = false;
}

/* No device scales logits: the last norm's gains are packed times the scale, and the header says that none is left. */
static void test_logit_scale(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL;
        struct tdm_error err = { 0 };
        uint64_t size;

        file_make(&file, -1, 0);
        logit_scale = 0.3f;
        assert_int_equal(pack(&file, &base, &size, &err), 0);
        check_values(&file, base, size);
        assert_true(tdm_weights_header(base)->recipe.logit_scale == 0);
        logit_scale = 0;
}

#define LAYOUT_OF(kind, layer) tdm_weights_find(base, TDM_TENSOR_##kind, layer)->layout

/* ffn_up by rows and ffn_down by columns, where types and sizes allow it: the same values, at the same places. */
static void test_sparse(void **state)
{
        struct tdm_error err = { 0 };

        for (unsigned i = 0; i < 2; i++) {
                _cleanup_(freep) uint8_t *panels = NULL, *base = NULL;
                uint64_t panels_size, size;

                file_make(&file, TDM_TENSOR_UP, i ? TDM_TYPE_Q8_0 : TDM_TYPE_Q4_0);
                assert_int_equal(pack(&file, &panels, &panels_size, &err), 0);
                is_sparse = true;
                assert_int_equal(pack(&file, &base, &size, &err), 0);
                assert_int_equal(size, panels_size);
                assert_int_equal(LAYOUT_OF(UP, 0), TDM_LAYOUT_BY_ROW);
                assert_int_equal(LAYOUT_OF(UP, 1), TDM_LAYOUT_PANEL16); /* F32 */
                for (uint32_t layer = 0; layer < 2; layer++)
                        assert_int_equal(LAYOUT_OF(DOWN, layer), TDM_LAYOUT_BY_COLUMN);
                check_values(&file, base, size);
                /* A segment may have panels all the same; another matrix may not lie so. */
                for (unsigned layout = TDM_LAYOUT_ROWS; layout <= TDM_LAYOUT_BY_COLUMN; layout++) {
                        struct tdm_weights_tensor *up = (void *)tdm_weights_find(base, TDM_TENSOR_UP, 0),
                                                  *gate = (void *)tdm_weights_find(base, TDM_TENSOR_GATE, 0);

                        up->layout = layout;
                        assert_int_equal(tdm_weights_check(base, size, size, &err),
                                         layout == TDM_LAYOUT_PANEL16 || layout == TDM_LAYOUT_BY_ROW ? 0 :
                                                                                                       TDM_E_PROTOCOL);
                        up->layout = TDM_LAYOUT_BY_ROW;
                        gate->layout = layout;
                        assert_int_equal(tdm_weights_check(base, size, size, &err),
                                         layout == TDM_LAYOUT_PANEL16 ? 0 : TDM_E_PROTOCOL);
                        gate->layout = TDM_LAYOUT_PANEL16;
                }
                is_sparse = false;
        }
}

/* For a device that wants panels a plan has them, whatever lives. */
static void test_sparse_in_panels(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL;
        struct tdm_error err = { 0 };
        uint64_t size;

        file_make(&file, -1, 0);
        is_sparse = wants_panels = true;
        assert_int_equal(pack(&file, &base, &size, &err), 0);
        is_sparse = wants_panels = false;
        assert_int_equal(LAYOUT_OF(UP, 0), TDM_LAYOUT_PANEL16);
        assert_int_equal(LAYOUT_OF(DOWN, 1), TDM_LAYOUT_PANEL16);
        check_values(&file, base, size);
}

/* More than three huge pages of tensors, whose borders lie inside of them. */
static void test_huge_pages(void **state)
{
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        _cleanup_(tdm_segment_destroyp) struct tdm_segment *small = NULL, *s = NULL;
        struct tdm_error err = { 0 };
        struct opened o;

        hparams.n_vocab = 24037;
        file_make(&file, -1, 0);
        file_open(&file, &o);
        assert_int_equal(tdm_weights_plan_new(&plan, &o.model, &err), 0);
        assert_int_equal(tdm_segment_create(&small, "one", TDM_HUGEPAGE_BYTES), 0);
        for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
                assert_int_equal(tdm_segment_create(&s, "weights", tdm_weights_plan_size(plan)), 0);
                assert_true(s->size_bytes > 3 * TDM_HUGEPAGE_BYTES && s->size_bytes % TDM_HUGEPAGE_BYTES != 0);
                if (tdm_weights_build(plan, o.gguf, s->base, n_threads, NULL, NULL, &err) != 0)
                        fail_msg("%s", err.message);
                check_values(&file, s->base, tdm_weights_plan_size(plan));
                if (tdm_hugepage_make(small->base, 1) == 0)
                        assert_int_equal(test_huge_bytes(s), s->size_bytes / TDM_HUGEPAGE_BYTES * TDM_HUGEPAGE_BYTES);
                tdm_segment_destroyp(&s);
        }
        file_close(&o);
        hparams.n_vocab = N_VOCAB;
}

/* Lanes behind the last row are zero weights: a product with them is 0, never NaN. */
static void test_padding(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL;
        struct tdm_error err = { 0 };
        uint64_t size;

        for (unsigned v = 0; v < 5; v++) {
                static const uint32_t types[] = { TDM_TYPE_F32, TDM_TYPE_F16, TDM_TYPE_BF16, TDM_TYPE_Q8_0,
                                                  TDM_TYPE_Q4_0 };
                struct tdm_weights_tensor t;

                file_make(&file, TDM_TENSOR_TOKEN_EMBD, types[v]);
                assert_int_equal(pack(&file, &base, &size, &err), 0);
                t = *tdm_weights_find(base, TDM_TENSOR_TOKEN_EMBD, 0);
                assert_int_equal(t.rows, 37);
                t.rows = 48;
                for (uint32_t row = 37; row < 48; row++)
                        for (uint32_t col = 0; col < t.cols; col++)
                                assert_true(tdm_weights_value(base, &t, row, col) == 0);
                free(steal_ptr(&base));
        }
}

static void test_unsupported(void **state)
{
        static const struct {
                int kind;
                uint32_t type;
                const char *tensor, *name;
        } cases[] = {
                { TDM_TENSOR_UP, 9, "t13.0", "Q8_1" },
                { TDM_TENSOR_O, 9, "t9.0", "Q8_1" },
                { TDM_TENSOR_ATTN_NORM, TDM_TYPE_Q8_0, "t3.0", "Q8_0" },
        };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                _cleanup_(freep) uint8_t *base = NULL;
                struct tdm_error err = { 0 };
                uint64_t size;

                file_make(&file, cases[i].kind, cases[i].type);
                assert_int_equal(pack(&file, &base, &size, &err), TDM_E_UNSUPPORTED);
                assert_non_null(strstr(err.message, cases[i].tensor));
                assert_non_null(strstr(err.message, cases[i].name));
        }
        assert_false(tdm_weights_type_supported(9));
        assert_false(tdm_weights_type_supported(12345));
        assert_true(tdm_weights_type_supported(TDM_TYPE_Q4_0));
}

static void test_not_finite(void **state)
{
        for (unsigned i = 0; i < 200; i++) {
                _cleanup_(freep) uint8_t *base = NULL;
                struct tdm_error err = { 0 };
                uint64_t size;
                uint32_t type;
                uint8_t *p;
                unsigned t;

                file_make(&file, -1, 0);
                is_sparse = i >= file.n_tensors;
                t = i < file.n_tensors ? i : random_u32() % file.n_tensors;
                type = file.tensors[t].type;
                p = file.bytes + file.data + file.tensors[t].offset;
                p += random_u32() % (file.tensors[t].size / type_bytes(type, 32)) * type_bytes(type, 32);
                if (type != TDM_TYPE_Q8_0 && type != TDM_TYPE_Q4_0)
                        p += random_u32() % 32 * type_bytes(type, 1);
                if (type == TDM_TYPE_F32) {
                        p[3] = 0x7f | (i & 0x80);
                        p[2] |= 0x80;
                } else if (type == TDM_TYPE_BF16) {
                        p[1] = 0x7f;
                        p[0] |= 0x80;
                } else {
                        p[1] = 0x7c | (i & 0x83);
                }
                assert_int_equal(pack(&file, &base, &size, &err), TDM_E_BAD_MODEL);
                is_sparse = false;
                assert_non_null(strstr(err.message, file.tensors[t].name));
        }
}

struct told {
        const uint8_t *base;
        struct tdm_weights_progress last;
        unsigned n, cancel_at;
        struct {
                uint64_t ready_bytes, sum;
        } seen[512];
};

static uint64_t sum_of(const uint8_t *p, uint64_t n)
{
        uint64_t sum = 0;

        for (uint64_t i = 0; i < n; i++)
                sum = sum * 31 + p[i];
        return sum;
}

static int tell(const struct tdm_weights_progress *progress, void *userdata)
{
        struct told *told = userdata;

        assert_true(progress->done_bytes >= told->last.done_bytes && progress->done_bytes <= progress->total_bytes);
        assert_true(progress->ready_bytes >= told->last.ready_bytes);
        told->last = *progress;
        if (told->n < TDM_ARRAY_SIZE(told->seen)) {
                told->seen[told->n].ready_bytes = progress->ready_bytes;
                told->seen[told->n].sum = sum_of(told->base, progress->ready_bytes);
        }
        return ++told->n == told->cancel_at;
}

static void test_progress(void **state)
{
        for (unsigned cancel = 0; cancel < 2; cancel++) {
                _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
                _cleanup_(freep) uint8_t *base = NULL;
                static struct told told;
                uint64_t size;
                struct tdm_error err = { 0 };
                struct opened o;

                file_make(&file, -1, 0);
                file_open(&file, &o);
                assert_int_equal(tdm_weights_plan_new(&plan, &o.model, &err), 0);
                size = tdm_weights_plan_size(plan);
                base = aligned_alloc(64, size);
                memset(base, 0xa5, size);
                told = (struct told){ .base = base, .cancel_at = cancel };
                assert_int_equal(tdm_weights_build(plan, o.gguf, base, 3, tell, &told, &err), cancel ? -ECANCELED : 0);
                assert_int_equal(told.n, cancel ? 1 : told.n);
                if (!cancel) {
                        assert_int_equal(told.last.done_bytes, told.last.total_bytes);
                        assert_int_equal(told.last.ready_bytes, size);
                        assert_true(told.n >= file.n_tensors && told.n <= TDM_ARRAY_SIZE(told.seen));
                        /* what was ready then is what it is now, and can be checked */
                        for (unsigned i = 0; i < told.n; i++) {
                                assert_int_equal(sum_of(base, told.seen[i].ready_bytes), told.seen[i].sum);
                                assert_int_equal(tdm_weights_check(base, size, told.seen[i].ready_bytes, &err), 0);
                        }
                        assert_true(tdm_weights_check(base, size, tdm_weights_header(base)->tensors_offset, &err) > 0);
                        assert_true(tdm_weights_check(base, size, sizeof(struct tdm_weights_header) - 1, &err) > 0);
                }
                tdm_gguf_unmap_data(o.gguf);
                assert_int_equal(tdm_weights_build(plan, o.gguf, base, 3, NULL, NULL, &err), -EINVAL);
                file_close(&o);
        }
}

static struct sigaction sigbus_action; /* common/sigbus.c's; cmocka puts its own over it */

static void test_shrinks(void **state)
{
        assert_int_equal(sigaction(SIGBUS, &sigbus_action, NULL), 0);
        for (unsigned i = 0; i < 20; i++) {
                _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
                _cleanup_(freep) uint8_t *base = NULL;
                struct tdm_error err = { 0 };
                struct opened o;

                file_make(&file, -1, 0);
                file_open(&file, &o);
                assert_int_equal(tdm_weights_plan_new(&plan, &o.model, &err), 0);
                base = aligned_alloc(64, tdm_weights_plan_size(plan));
                assert_int_equal(ftruncate(o.fd, random_u32() % (file.size - 8192)), 0);
                assert_int_equal(tdm_weights_build(plan, o.gguf, base, 3, NULL, NULL, &err), TDM_E_MODEL_CHANGED);
                assert_non_null(strstr(err.message, "test.gguf"));
                file_close(&o);
        }
}

/* Whatever the check lets pass can be read from end to end. */
static void read_all(const uint8_t *base)
{
        const struct tdm_weights_header *header = tdm_weights_header(base);
        float y[320], sum = 0;

        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++)
                for (uint32_t layer = 0; layer < header->hparams.n_layers; layer++) {
                        const struct tdm_weights_tensor *t = tdm_weights_find(base, kind, layer);

                        for (uint32_t row = 0; t && row < t->rows; row++) {
                                assert_true(t->cols <= 320);
                                tdm_weights_row(base, t, row, y);
                                sum += y[0] + y[t->cols - 1] + tdm_weights_value(base, t, row, t->cols - 1);
                        }
                }
        (void)sum;
}

static void test_flips(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL, *mutated = NULL;
        struct tdm_error err = { 0 };
        unsigned n_refused = 0;
        size_t head_bytes;
        uint64_t size;

        file_make(&file, -1, 0);
        assert_int_equal(pack(&file, &base, &size, &err), 0);
        head_bytes = tdm_weights_header(base)->tensors_offset + file.n_tensors * sizeof(struct tdm_weights_tensor);
        mutated = aligned_alloc(64, size);
        for (unsigned i = 0; i < 6000; i++) {
                unsigned n_flips = 1 + random_u32() % 3;

                memcpy(mutated, base, size);
                for (unsigned n = 0; n < n_flips; n++) {
                        size_t at = random_u32() % head_bytes;

                        if (random_u32() % 2)
                                mutated[at] ^= (uint8_t)(1u << random_u32() % 8);
                        else
                                mutated[at] = (uint8_t)random_u32();
                }
                if (tdm_weights_check(mutated, size, size, random_u32() % 2 ? &err : NULL) == 0)
                        read_all(mutated);
                else
                        n_refused++;
        }
        assert_true(n_refused > 3000);
}

/* n_bytes of a field, of which the first eight at most are written. */
static void refuse(const uint8_t *base, uint64_t size, size_t at, uint64_t value, unsigned n_bytes)
{
        uint8_t *mutated = aligned_alloc(64, TDM_ALIGN_UP(size, UINT64_C(64)));
        struct tdm_error err = { 0 };

        memcpy(mutated, base, size);
        memcpy(mutated + at, &value, TDM_MIN(n_bytes, sizeof(value)));
        assert_true(tdm_weights_check(mutated, size, size, &err) > 0);
        assert_true(strlen(err.message) > 0);
        free(mutated);
}

#define REFUSE_HEADER(field, value)                                                                                    \
        refuse(base, size, offsetof(struct tdm_weights_header, field), value,                                          \
               sizeof(((struct tdm_weights_header *)0)->field))
#define REFUSE_TENSOR(field, value)                                                                                    \
        refuse(base, size, table + offsetof(struct tdm_weights_tensor, field), value,                                  \
               sizeof(((struct tdm_weights_tensor *)0)->field))

static void test_refused(void **state)
{
        _cleanup_(freep) uint8_t *base = NULL;
        struct tdm_error err = { 0 };
        uint64_t size;
        size_t table;

        file_make(&file, -1, 0);
        assert_int_equal(pack(&file, &base, &size, &err), 0);
        table = tdm_weights_header(base)->tensors_offset +
                5 * sizeof(struct tdm_weights_tensor); /* attn_q of layer 0 */
        REFUSE_HEADER(magic, 1);
        REFUSE_HEADER(abi, TDM_WEIGHTS_ABI + 1);
        REFUSE_HEADER(abi, TDM_WEIGHTS_ABI - 1);
        REFUSE_HEADER(size_bytes, size + 1);
        REFUSE_HEADER(size_bytes, 100);
        REFUSE_HEADER(size_bytes, 0);
        REFUSE_HEADER(n_tensors, 0);
        REFUSE_HEADER(n_tensors, UINT32_MAX);
        REFUSE_HEADER(n_tensors, file.n_tensors - 1);
        REFUSE_HEADER(tensors_offset, UINT64_MAX - 7);
        REFUSE_HEADER(tensors_offset, size - 8);
        REFUSE_HEADER(tensors_offset, 0);
        REFUSE_HEADER(hparams.d_model, 128);
        REFUSE_HEADER(hparams.n_layers, 3);
        REFUSE_HEADER(hparams.n_layers, 1);
        REFUSE_HEADER(hparams.n_heads, 0);
        REFUSE_HEADER(hparams.residual_width, 384); /* two streams */
        REFUSE_HEADER(hparams.layers[0].n_heads, 4);
        REFUSE_HEADER(hparams.layers[1].d_ff, 96);
        REFUSE_HEADER(hparams.layers[1].kv_layer, 0); /* which slides; layer 1 does not */
        REFUSE_HEADER(recipe.architecture, 0);
        REFUSE_HEADER(recipe.n_ropes, TDM_MAX_ROPES + 1);
        REFUSE_HEADER(recipe.n_ropes, UINT32_MAX);
        REFUSE_HEADER(recipe.layers[0].rope, 2);
        REFUSE_HEADER(recipe.layers[0].norms, TDM_NORM_ALL + 1);
        REFUSE_HEADER(recipe.layers[0].norms, 0); /* its tensors are there */
        REFUSE_HEADER(recipe.layers[1].norms, TDM_NORM_ALL & ~TDM_NORM_FFN_AFTER);
        REFUSE_HEADER(recipe.layers[N_LAYERS].norms, 1);
        REFUSE_HEADER(recipe.n_streams, 2);
        REFUSE_TENSOR(kind, TDM_N_TENSOR_KINDS);
        REFUSE_TENSOR(kind, TDM_TENSOR_K);
        REFUSE_TENSOR(layer, 1);
        REFUSE_TENSOR(layer, 2);
        REFUSE_TENSOR(type, TDM_TYPE_Q4_1);
        REFUSE_TENSOR(type, TDM_TYPE_Q8_0 + 1000);
        REFUSE_TENSOR(layout, 3);
        REFUSE_TENSOR(rows, 97);
        REFUSE_TENSOR(cols, 0);
        REFUSE_TENSOR(offset, size);
        REFUSE_TENSOR(offset, 0);
        REFUSE_TENSOR(offset, UINT64_MAX - 63);
        REFUSE_TENSOR(size_bytes, UINT64_MAX);
        REFUSE_TENSOR(panel_bytes, 64);
        for (uint64_t cut = 0; cut < size; cut += 1 + cut / 3)
                assert_true(tdm_weights_check(base, cut, cut, &err) > 0);
        assert_int_equal(tdm_weights_check(base, size, size, &err), 0);
        /* segments are rounded up to pages */
        assert_int_equal(tdm_weights_check(base, size + 4096, size + 4096, &err), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values),     cmocka_unit_test(test_file_row),
                cmocka_unit_test(test_neighbours), cmocka_unit_test(test_logit_scale),
                cmocka_unit_test(test_sparse),     cmocka_unit_test(test_sparse_in_panels),
                cmocka_unit_test(test_padding),    cmocka_unit_test(test_unsupported),
                cmocka_unit_test(test_not_finite), cmocka_unit_test(test_progress),
                cmocka_unit_test(test_shrinks),    cmocka_unit_test(test_flips),
                cmocka_unit_test(test_refused),    cmocka_unit_test(test_huge_pages),
        };

        if (tdm_sigbus_init() < 0 || sigaction(SIGBUS, NULL, &sigbus_action) < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
