/* Files that have several tensors as one, or MXFP4 in another order, give the same tensors in the segment, byte for
 * byte, as files that have each by itself: of every type, with heads that RoPE turns and without. So no device sees a
 * difference. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/file/test-gguf-builder.h"
#include "engine/weights/weights-private.h"
#include "common/sigbus.h"

#define D_MODEL 256u
#define N_EXPERTS 3u
#define D_EXPERT 256u
#define MAX_MEMBERS 3u

enum form { APART, FUSED, IN_TURN };

/* Rows that a file has under one name. Vectors: rows are values. */
struct tensor {
        const char *name;
        uint32_t type, cols, n_parts; /* cols 0: a vector */
        bool in_turn;
        struct {
                const char *name; /* what the rows are made of: the same in every form */
                uint32_t rows;
        } members[MAX_MEMBERS];
};

static uint32_t hash_of(const char *name, uint32_t part, uint32_t row)
{
        uint32_t h = 2166136261u ^ part * 40503u ^ row * 2654435761u;

        for (; *name; name++)
                h = (h ^ (uint8_t)*name) * 16777619u;
        return h | 1;
}

static uint64_t row_size(uint32_t type, uint32_t cols)
{
        const struct tdm_type_info *info = tdm_type_info(type);

        return cols == 0 ? sizeof(float) : (uint64_t)cols / info->block_values * info->block_bytes;
}

/* The blocks of a row of MXFP4 with neighbours in one byte, value by value. */
static void pair_up(uint8_t *row, uint64_t size)
{
        for (uint8_t *block = row; block < row + size; block += 17) {
                uint8_t values[32];

                for (unsigned i = 0; i < 16; i++) {
                        values[i] = block[1 + i] & 15;
                        values[16 + i] = block[1 + i] >> 4;
                }
                for (unsigned i = 0; i < 16; i++)
                        block[1 + i] = (uint8_t)(values[2 * i] | values[2 * i + 1] << 4);
        }
}

/* Random bytes without the bit that would make a float infinite, wherever it lies. */
static void build_row(struct gguf_builder *b, const struct tensor *t, unsigned member, uint32_t part, uint32_t row)
{
        uint8_t bytes[4 * D_MODEL];
        uint64_t size = row_size(t->type, t->cols);
        uint32_t h = hash_of(t->members[member].name, part, row);

        assert_true(size <= sizeof(bytes));
        for (uint64_t i = 0; i < size; i++) {
                h ^= h << 13, h ^= h >> 17, h ^= h << 5;
                bytes[i] = h >> 8 & 0xbf;
        }
        for (uint64_t i = 0; t->type == TDM_TYPE_NVFP4 && i < size; i++)
                bytes[i] &= i % 36 < 4 ? 0x3f : 0xff; /* no sign */
        if (t->type == TDM_TYPE_MXFP4_PAIRS)
                pair_up(bytes, size);
        build_bytes(b, bytes, size);
}

static uint32_t part_rows(const struct tensor *t)
{
        uint32_t n = 0;

        for (unsigned i = 0; i < MAX_MEMBERS; i++)
                n += t->members[i].rows;
        return n;
}

static void build_values(struct gguf_builder *b, const struct tensor *t)
{
        for (uint32_t part = 0; part < t->n_parts; part++) {
                for (uint32_t row = 0; t->in_turn && row < t->members[0].rows; row++)
                        for (unsigned i = 0; i < 2; i++)
                                build_row(b, t, i, part, row);
                for (unsigned i = 0; !t->in_turn && i < MAX_MEMBERS; i++)
                        for (uint32_t row = 0; row < t->members[i].rows; row++)
                                build_row(b, t, i, part, row);
        }
        while (b->size % 32)
                build_bytes(b, "", 1);
}

/* The names and shapes of all tensors, then their values. */
static void build_tensors(struct gguf_builder *b, const struct tensor *tensors, unsigned n)
{
        uint64_t offset = 0;

        for (unsigned i = 0; i < n; i++) {
                const struct tensor *t = &tensors[i];
                uint32_t rows = part_rows(t), has_parts = t->n_parts > 1;

                build_string(b, t->name);
                build_u32(b, (t->cols ? 2 : 1) + has_parts);
                if (t->cols)
                        build_u64(b, t->cols);
                build_u64(b, rows);
                if (has_parts)
                        build_u64(b, t->n_parts);
                build_u32(b, t->type);
                build_u64(b, offset);
                offset = TDM_ALIGN_UP(offset + row_size(t->type, t->cols) * rows * t->n_parts, UINT64_C(32));
        }
        while (b->size % 32)
                build_bytes(b, "", 1);
        for (unsigned i = 0; i < n; i++)
                build_values(b, &tensors[i]);
}

/* A tensor of its own. */
static struct tensor one(const char *name, uint32_t type, uint32_t cols, uint32_t n_parts, uint32_t rows)
{
        return (struct tensor){ name, type, cols, n_parts, false, { { name, rows } } };
}

static unsigned add_qkv(struct tensor *t, enum form form, uint32_t type, uint32_t q, uint32_t kv, bool biases)
{
        struct tensor fused = { "blk.0.attn_qkv.weight",
                                type,
                                D_MODEL,
                                1,
                                false,
                                { { "blk.0.attn_q.weight", q },
                                  { "blk.0.attn_k.weight", kv },
                                  { "blk.0.attn_v.weight", kv } } },
                      bias = {
                              "blk.0.attn_qkv.bias",
                              TDM_TYPE_F32,
                              0,
                              1,
                              false,
                              { { "blk.0.attn_q.bias", q }, { "blk.0.attn_k.bias", kv }, { "blk.0.attn_v.bias", kv } }
                      };
        unsigned n = 0;

        if (form != APART) {
                t[n++] = fused;
                if (biases)
                        t[n++] = bias;
                return n;
        }
        for (unsigned i = 0; i < 3; i++)
                t[n++] = one(fused.members[i].name, type, D_MODEL, 1, fused.members[i].rows);
        for (unsigned i = 0; i < 3 && biases; i++)
                t[n++] = one(bias.members[i].name, TDM_TYPE_F32, 0, 1, bias.members[i].rows);
        return n;
}

static unsigned add_gate_up(struct tensor *t, enum form form, uint32_t type, bool biases)
{
        static const char *const names[] = { "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
                                             "blk.0.ffn_gate_exps.bias", "blk.0.ffn_up_exps.bias" };
        unsigned n = 0;

        for (unsigned i = 0; i < (biases ? 2 : 1); i++) {
                uint32_t of = i ? TDM_TYPE_F32 : type, cols = i ? 0 : D_MODEL;

                if (form != APART) {
                        t[n++] = (struct tensor){ i ? "blk.0.ffn_gate_up_exps.bias" : "blk.0.ffn_gate_up_exps.weight",
                                                  of,
                                                  cols,
                                                  N_EXPERTS,
                                                  form == IN_TURN,
                                                  { { names[2 * i], D_EXPERT }, { names[2 * i + 1], D_EXPERT } } };
                        continue;
                }
                t[n++] = one(names[2 * i], of, cols, N_EXPERTS, D_EXPERT);
                t[n++] = one(names[2 * i + 1], of, cols, N_EXPERTS, D_EXPERT);
        }
        return n;
}

struct shape {
        const char *architecture;
        uint32_t n_heads, n_kv_heads, head_dim, n_dims; /* n_dims of a head that are turned */
        bool has_experts, is_gpt_oss;
};

static void build_keys(struct gguf_builder *b, const struct shape *s, unsigned n_tensors)
{
        static const struct {
                const char *name;
                uint32_t value;
        } numbers[] = { { "block_count", 1 },
                        { "embedding_length", D_MODEL },
                        { "context_length", 64 },
                        { "feed_forward_length", D_EXPERT },
                        { "expert_count", N_EXPERTS },
                        { "expert_used_count", 2 },
                        { "expert_feed_forward_length", D_EXPERT },
                        { "attention.sliding_window", 64 } };
        const struct {
                const char *name;
                uint32_t value;
        } own[] = { { "attention.head_count", s->n_heads },
                    { "attention.head_count_kv", s->n_kv_heads },
                    { "attention.key_length", s->head_dim },
                    { "attention.value_length", s->head_dim },
                    { "rope.dimension_count", s->n_dims } };
        char key[96];

        build_header(b, n_tensors, 3 + TDM_ARRAY_SIZE(numbers) + TDM_ARRAY_SIZE(own) - (s->has_experts ? 0 : 3));
        build_key_string(b, "general.architecture", s->architecture);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(numbers); i++) {
                if (!s->has_experts && memcmp(numbers[i].name, "expert", 6) == 0)
                        continue;
                snprintf(key, sizeof(key), "%s.%s", s->architecture, numbers[i].name);
                build_key_u32(b, key, numbers[i].value);
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(own); i++) {
                snprintf(key, sizeof(key), "%s.%s", s->architecture, own[i].name);
                build_key_u32(b, key, own[i].value);
        }
        snprintf(key, sizeof(key), "%s.rope.freq_base", s->architecture);
        build_key_f32(b, key, 1e4f);
        snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", s->architecture);
        build_key_f32(b, key, 1e-5f);
}

/* A model of one layer. type: of what may be fused, and of the experts. */
static struct gguf_builder build_file(const struct shape *s, enum form form, uint32_t type)
{
        struct gguf_builder b = { 0 };
        struct tensor t[40];
        uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim, norm = TDM_TYPE_F32;
        unsigned n = 0;

        t[n++] = one("token_embd.weight", TDM_TYPE_F16, D_MODEL, 1, 40);
        t[n++] = one("output_norm.weight", norm, 0, 1, D_MODEL);
        t[n++] = one("blk.0.attn_norm.weight", norm, 0, 1, D_MODEL);
        t[n++] = one("blk.0.ffn_norm.weight", norm, 0, 1, D_MODEL);
        t[n++] = one("blk.0.attn_output.weight", TDM_TYPE_F16, q, 1, D_MODEL);
        n += add_qkv(t + n, form, type == TDM_TYPE_MXFP4_PAIRS ? TDM_TYPE_BF16 : type, q, kv, s->is_gpt_oss);
        if (s->has_experts) {
                n += add_gate_up(t + n, form, type, s->is_gpt_oss);
                t[n++] = one("blk.0.ffn_down_exps.weight", type, D_EXPERT, N_EXPERTS, D_MODEL);
                t[n++] = one("blk.0.ffn_gate_inp.weight", norm, D_MODEL, 1, N_EXPERTS);
        } else {
                t[n++] = one("blk.0.ffn_gate.weight", type, D_MODEL, 1, D_EXPERT);
                t[n++] = one("blk.0.ffn_up.weight", type, D_MODEL, 1, D_EXPERT);
                t[n++] = one("blk.0.ffn_down.weight", type, D_EXPERT, 1, D_MODEL);
        }
        if (s->is_gpt_oss) {
                t[n++] = one("blk.0.attn_output.bias", norm, 0, 1, D_MODEL);
                t[n++] = one("blk.0.attn_sinks.weight", norm, 0, 1, s->n_heads);
                t[n++] = one("blk.0.ffn_gate_inp.bias", norm, 0, 1, N_EXPERTS);
                t[n++] = one("blk.0.ffn_down_exps.bias", norm, 0, N_EXPERTS, D_MODEL);
        } else if (s->has_experts) {
                t[n++] = one("blk.0.attn_q_norm.weight", norm, 0, 1, s->head_dim);
                t[n++] = one("blk.0.attn_k_norm.weight", norm, 0, 1, s->head_dim);
        }
        build_keys(&b, s, n);
        build_tensors(&b, t, n);
        return b;
}

/* The segment of a file, which is freed. */
static uint8_t *pack_file(struct gguf_builder *b, uint64_t *ret_size)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        _cleanup_(closep) int fd = build_fd(b->data, b->size);
        struct tdm_model_description d = { 0 };
        struct tdm_error err;
        uint8_t *segment;

        build_reset(b);
        if (tdm_gguf_open(&g, fd, "test", &err) || tdm_model_describe(g, &d, &err) ||
            tdm_weights_plan_new(&plan, &d, &err))
                fail_msg("%s", err.message);
        *ret_size = tdm_weights_plan_size(plan);
        segment = aligned_alloc(TDM_WEIGHTS_ALIGNMENT, TDM_ALIGN_UP(*ret_size, TDM_WEIGHTS_ALIGNMENT));
        assert_non_null(segment);
        memset(segment, 0x5a, *ret_size);
        if (tdm_weights_build(plan, g, segment, 2, NULL, NULL, &err) ||
            tdm_weights_check(segment, *ret_size, *ret_size, &err))
                fail_msg("%s", err.message);
        tdm_model_description_deinit(&d);
        return segment;
}

static void check_same(const struct shape *apart, const struct shape *other, enum form form, uint32_t type,
                       uint32_t other_type)
{
        struct gguf_builder a = build_file(apart, APART, type), b = build_file(other, form, other_type);
        uint64_t size, other_size;
        _cleanup_(freep) uint8_t *want = pack_file(&a, &size), *got = pack_file(&b, &other_size);
        const struct tdm_weights_header *header = tdm_weights_header(want);

        assert_int_equal(size, other_size);
        assert_int_equal(header->n_tensors, tdm_weights_header(got)->n_tensors);
        for (uint32_t i = 0; i < header->n_tensors; i++) {
                const struct tdm_weights_tensor *t =
                        (const struct tdm_weights_tensor *)(const void *)(want + header->tensors_offset) + i;

                assert_memory_equal(t, got + (((const uint8_t *)t) - want), sizeof(*t));
                if (memcmp(want + t->offset, got + t->offset, t->size_bytes) != 0)
                        fail_msg("%s, form %d, type %s: tensor of kind %u differs", other->architecture, form,
                                 tdm_type_info(type)->name, t->kind);
        }
}

static const uint32_t types[] = { TDM_TYPE_F32,   TDM_TYPE_F16,   TDM_TYPE_BF16,  TDM_TYPE_Q8_0,   TDM_TYPE_Q4_0,
                                  TDM_TYPE_Q4_1,  TDM_TYPE_Q5_0,  TDM_TYPE_Q5_1,  TDM_TYPE_Q2_K,   TDM_TYPE_Q3_K,
                                  TDM_TYPE_Q4_K,  TDM_TYPE_Q5_K,  TDM_TYPE_Q6_K,  TDM_TYPE_IQ4_NL, TDM_TYPE_IQ4_XS,
                                  TDM_TYPE_MXFP4, TDM_TYPE_TQ1_0, TDM_TYPE_TQ2_0, TDM_TYPE_NVFP4 };

/* Neighbours are turned, all of a head and a part of it, which ends inside a panel. */
static void test_turned(void **state)
{
        static const struct shape shapes[] = { { "llama", 4, 2, 64, 64, false, false },
                                               { "llama", 4, 2, 40, 24, false, false },
                                               { "qwen3moe", 4, 2, 64, 64, true, false } };

        for (size_t s = 0; s < TDM_ARRAY_SIZE(shapes); s++)
                for (size_t i = 0; i < TDM_ARRAY_SIZE(types); i++)
                        check_same(&shapes[s], &shapes[s], FUSED, types[i], types[i]);
}

/* With biases, and experts below each other or in turn. */
static void test_gpt_oss(void **state)
{
        static const struct shape shape = { "gpt-oss", 4, 2, 64, 64, true, true },
                                  of_ollama = { "gptoss", 4, 2, 64, 64, true, true };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(types); i++) {
                check_same(&shape, &shape, FUSED, types[i], types[i]);
                check_same(&shape, &of_ollama, IN_TURN, types[i], types[i]);
        }
}

/* The order of MXFP4 of its first files; then queries, keys and values are of bf16. */
static void test_pairs(void **state)
{
        static const struct shape of_ollama = { "gptoss", 4, 2, 64, 64, true, true };
        struct gguf_builder ab = build_file(&of_ollama, IN_TURN, TDM_TYPE_MXFP4_PAIRS), bb;
        uint64_t size, other_size;
        _cleanup_(freep) uint8_t *got = pack_file(&ab, &size), *want = NULL;

        bb = build_file(&of_ollama, APART, TDM_TYPE_MXFP4);
        want = pack_file(&bb, &other_size);
        for (uint32_t kind = TDM_TENSOR_GATE_EXPS; kind <= TDM_TENSOR_DOWN_EXPS; kind++) {
                const struct tdm_weights_tensor *a = tdm_weights_find(got, (enum tdm_tensor_kind)kind, 0),
                                                *b = tdm_weights_find(want, (enum tdm_tensor_kind)kind, 0);

                assert_int_equal(a->type, TDM_TYPE_MXFP4);
                assert_int_equal(a->size_bytes, b->size_bytes);
                assert_memory_equal(got + a->offset, want + b->offset, a->size_bytes);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_turned),
                cmocka_unit_test(test_gpt_oss),
                cmocka_unit_test(test_pairs),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
