/* Describing models: the ones in the tree, the published sizes, and files that lie. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "engine/file/test-gguf-builder.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

static const struct build_shape shape_a = { 7, 64, 4, 2, 16, 96, BUILD_N_PIECES };

static int describe_bytes(const struct gguf_builder *b, struct tdm_model_description *d, struct tdm_error *err)
{
        _cleanup_(closep) int fd = build_fd(b->data, b->size);
        struct tdm_gguf *g = NULL;
        int r;

        r = tdm_gguf_open(&g, fd, "test.gguf", err);
        if (r)
                fail_msg("not even a GGUF: %s", err->message);
        r = tdm_model_describe(g, d, err);
        for (uint32_t i = 0; r == 0 && i < d->n_tensors; i++)
                d->tensors[i].tensor = NULL; /* gone with the gguf */
        tdm_gguf_close(g);
        return r;
}

static void test_tale(void **state)
{
        _cleanup_(closep) int fd = open("models/tale.gguf", O_RDONLY | O_CLOEXEC);
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        struct tdm_model_description d = { 0 };
        const struct tdm_hparams *hp = &d.hparams;
        const struct tdm_recipe *recipe = &d.recipe;
        struct tdm_error err;
        unsigned seen[TDM_N_TENSOR_KINDS] = { 0 };

        assert_int_equal(tdm_gguf_open(&g, fd, "tale.gguf", &err), 0);
        assert_int_equal(tdm_model_describe(g, &d, &err), 0);
        assert_int_equal(hp->n_layers, 12);
        assert_int_equal(hp->d_model, 256);
        assert_int_equal(hp->n_heads, 4);
        assert_int_equal(hp->n_kv_heads, 1);
        assert_int_equal(hp->head_dim, 64);
        assert_int_equal(hp->d_ff, 1024);
        assert_int_equal(hp->n_vocab, 6144);
        assert_int_equal(hp->n_ctx, 4096);
        assert_int_equal(hp->window, 128);
        assert_int_equal(hp->residual_width, 256);
        assert_string_equal(recipe->architecture, "gemma3");
        assert_true(recipe->norm_eps == 1e-6f && recipe->ropes[0].base == 1e6f && recipe->ropes[1].base == 1e4f);
        assert_true(recipe->ropes[0].factor == 1.0f && recipe->ropes[1].factor == 1.0f);
        assert_true(recipe->embed_scale == 16.0f && recipe->logit_softcap == 0.0f);
        for (uint32_t i = 0; i < 12; i++) {
                bool is_full = i == 5 || i == 11;

                assert_int_equal(hp->layers[i].window, is_full ? 0 : 128);
                assert_int_equal(hp->layers[i].n_heads, 4);
                assert_int_equal(hp->layers[i].n_kv_heads, 1);
                assert_int_equal(hp->layers[i].d_ff, 1024);
                assert_int_equal(hp->layers[i].kv_layer, i);
                assert_int_equal(recipe->layers[i].rope, is_full ? 0 : 1);
                assert_true(recipe->layers[i].query_scale == 0.125f);
        }
        assert_int_equal(tdm_recipe_features(recipe, hp), 0);
        assert_int_equal(d.n_tensors, 2 + 12 * 13);
        for (uint32_t i = 0; i < d.n_tensors; i++) {
                const struct tdm_tensor_ref *t = &d.tensors[i];

                assert_true(t->kind < TDM_N_TENSOR_KINDS && t->layer < 12);
                assert_int_equal((uint64_t)t->rows * t->cols,
                                 t->tensor->dims[0] * t->tensor->dims[1] * t->tensor->dims[2] * t->tensor->dims[3]);
                seen[t->kind]++;
        }
        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++)
                assert_int_equal(seen[kind], kind == TDM_TENSOR_OUTPUT || kind > TDM_TENSOR_POST_FFW_NORM ? 0 :
                                             kind < TDM_TENSOR_ATTN_NORM                                  ? 1 :
                                                                                                            12);
        tdm_model_description_deinit(&d);
        tdm_model_description_deinit(&d);
}

static void test_blocks(void **state)
{
        struct tdm_hparams hp = { .n_layers = 2 };
        static const enum tdm_block_kind kinds[] = { TDM_BLOCK_EMBED,     TDM_BLOCK_ATTENTION, TDM_BLOCK_FFN,
                                                     TDM_BLOCK_ATTENTION, TDM_BLOCK_FFN,       TDM_BLOCK_HEAD,
                                                     TDM_BLOCK_SAMPLE };

        assert_int_equal(tdm_model_n_blocks(&hp), TDM_ARRAY_SIZE(kinds));
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++)
                assert_int_equal(tdm_block_kind(&hp, i), kinds[i]);
        assert_int_equal(tdm_block_layer(3), 1);
        assert_int_equal(tdm_block_layer(4), 1);
        assert_string_equal(tdm_block_kind_name(TDM_BLOCK_EMBED), "embed");
        assert_string_equal(tdm_block_kind_name(TDM_BLOCK_SAMPLE), "sample");
        assert_string_equal(tdm_block_kind_name(TDM_N_BLOCK_KINDS), "unknown");
}

/* The keys only; extra() adds n_extra more. */
static void build_keys(struct gguf_builder *b, const struct build_shape *s, void (*extra)(struct gguf_builder *),
                       uint32_t n_extra, uint32_t n_tensors)
{
        build_header(b, n_tensors, BUILD_N_MODEL_KEYS + n_extra);
        build_model_keys(b, s);
        if (extra)
                extra(b);
}

/* What a file of a shape says, with some more keys; its tensors are gone. */
static struct tdm_model_description described(const struct build_shape *s, void (*extra)(struct gguf_builder *),
                                              uint32_t n_extra)
{
        struct gguf_builder b = { 0 };
        struct tdm_model_description d = { 0 };
        struct tdm_error err = { 0 };
        uint64_t size;

        build_keys(&b, s, extra, n_extra, BUILD_N_MODEL_TENSORS(s->n_layers));
        size = build_model_tensors(&b, s, TDM_TYPE_Q4_0);
        build_data(&b, size);
        if (describe_bytes(&b, &d, &err))
                fail_msg("%s", err.message);
        tdm_model_description_deinit(&d);
        build_reset(&b);
        return d;
}

static void scaled(struct gguf_builder *b)
{
        build_key_string(b, "gemma3.rope.scaling.type", "linear");
        build_key_f32(b, "gemma3.rope.scaling.factor", 8.0f);
        build_key_f32(b, "gemma3.rope.freq_base", 500000.0f);
        build_key_f32(b, "gemma3.rope.freq_base_swa", 20000.0f);
        build_key_f32(b, "gemma3.final_logit_softcapping", 30.0f);
        build_key_u32(b, "gemma3.attention.sliding_window_pattern", 3);
}

static void array_pattern(struct gguf_builder *b)
{
        build_array(b, "gemma3.attention.sliding_window_pattern", VALUE_BOOL, 8);
        build_bytes(b, "\1\0\0\1\1\1\0\1", 8); /* true: slides; one more than there are layers */
        build_key_string(b, "gemma3.rope.scaling.type", "none");
        build_key_f32(b, "gemma3.rope.scaling.factor", 8.0f);
        build_key_f32(b, "gemma3.attention.scale", 0.5f);
        build_key_u32(b, "gemma3.attention.query_pre_attn_scalar", 64);
}

static void query_scalar(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.attention.query_pre_attn_scalar", 64);
        build_array(b, "gemma3.dimension", VALUE_U32, 0);
}

static void test_keys(void **state)
{
        static const struct build_shape large = { 62, 64, 1, 1, 32, 32, BUILD_N_PIECES };
        struct tdm_model_description d = described(&shape_a, NULL, 0);
        const struct tdm_rope_recipe *ropes = d.recipe.ropes;

        assert_true(ropes[0].base == 1e6f && ropes[0].factor == 1.0f && d.recipe.layers[0].query_scale == 0.25f);
        for (uint32_t i = 0; i < 7; i++)
                assert_int_equal(d.hparams.layers[i].window == 0, i == 5);
        d = described(&shape_a, scaled, 6);
        assert_true(ropes[0].base == 500000.0f && ropes[1].base == 20000.0f && ropes[0].factor == 8.0f);
        assert_true(ropes[1].factor == 1.0f);
        assert_true(d.recipe.logit_softcap == 30.0f && d.recipe.embed_scale == 8.0f);
        for (uint32_t i = 0; i < 7; i++)
                assert_int_equal(d.hparams.layers[i].window == 0, i == 2 || i == 5);
        d = described(&shape_a, array_pattern, 5);
        assert_true(ropes[0].factor == 1.0f);
        for (uint32_t i = 0; i < 7; i++) {
                assert_int_equal(d.hparams.layers[i].window == 0, i == 1 || i == 2 || i == 6);
                assert_true(d.recipe.layers[i].query_scale == 0.5f);
        }
        d = described(&shape_a, query_scalar, 2);
        assert_true(d.recipe.layers[6].query_scale == 0.125f);
        d = described(&large, NULL, 0);
        assert_true(d.recipe.layers[61].query_scale == 0.125f); /* 62 layers: by the embedding, not by the head */
}

/* A valid model, but the value of one key (of 4 bytes) is another. */
static void refuse_value(const char *key, uint32_t value, int code, const char *text)
{
        struct gguf_builder b = { 0 };
        struct tdm_model_description d = { 0 };
        struct tdm_error err = { 0 };
        uint8_t *at;
        int r;

        build_model(&b, &shape_a, TDM_TYPE_Q4_0);
        at = memmem(b.data, b.size, key, strlen(key));
        assert_non_null(at);
        memcpy(at + strlen(key) + 4, &value, 4);
        r = describe_bytes(&b, &d, &err);
        if (r != code || err.code != code || !strstr(err.message, text))
                fail_msg("%s = %u: wanted %s with \"%s\", got %d: %s", key, value, tdm_error_name(code), text, r,
                         err.message);
        assert_non_null(strstr(err.message, "cannot use model test.gguf: "));
        build_reset(&b);
}

/* Without a window every layer is full, whatever the pattern. */
static void test_no_window(void **state)
{
        static const char key[] = "gemma3.attention.sliding_window";
        struct gguf_builder b = { 0 };
        struct tdm_model_description d = { 0 };
        uint8_t *at;

        build_model(&b, &shape_a, TDM_TYPE_Q4_0);
        at = memmem(b.data, b.size, key, strlen(key));
        assert_non_null(at);
        memset(at + strlen(key) + 4, 0, 4);
        assert_int_equal(describe_bytes(&b, &d, NULL), 0);
        assert_int_equal(d.hparams.window, 0);
        for (uint32_t i = 0; i < 7; i++) {
                assert_int_equal(d.hparams.layers[i].window, 0);
                assert_int_equal(d.recipe.layers[i].rope, 0);
        }
        tdm_model_description_deinit(&d);
        build_reset(&b);
}

static uint32_t float_bits(float f)
{
        uint32_t bits;

        memcpy(&bits, &f, 4);
        return bits;
}

static void test_ranges(void **state)
{
        const char *eps = "gemma3.attention.layer_norm_rms_epsilon";

        refuse_value("gemma3.block_count", 0, TDM_E_BAD_MODEL, "it must be from 1 to 256");
        refuse_value("gemma3.block_count", 257, TDM_E_BAD_MODEL, "block_count is 257");
        refuse_value("gemma3.block_count", 8, TDM_E_BAD_MODEL, "tensor blk.7.attn_norm.weight is missing");
        refuse_value("gemma3.block_count", 6, TDM_E_UNSUPPORTED, "tensor blk.6.attn_norm.weight is not part");
        refuse_value("gemma3.embedding_length", 0, TDM_E_BAD_MODEL, "embedding length");
        refuse_value("gemma3.embedding_length", 131072, TDM_E_BAD_MODEL, "embedding length is 131072");
        refuse_value("gemma3.embedding_length", 48, TDM_E_UNSUPPORTED, "not a multiple of 32");
        refuse_value("gemma3.embedding_length", 96, TDM_E_BAD_MODEL,
                     "tensor token_embd.weight has the shape 64 x 276 x 1 x 1, the model's keys want 96 x 276");
        refuse_value("gemma3.attention.head_count", 0, TDM_E_BAD_MODEL, "head_count is 0");
        refuse_value("gemma3.attention.head_count", UINT32_MAX, TDM_E_BAD_MODEL, "head_count is 4294967295");
        refuse_value("gemma3.attention.head_count", 5, TDM_E_BAD_MODEL, "5 heads cannot share 2 key heads");
        refuse_value("gemma3.attention.head_count", 8192, TDM_E_BAD_MODEL, "8192 heads of dimension 16 are more than");
        refuse_value("gemma3.attention.head_count", 2, TDM_E_BAD_MODEL, "tensor blk.0.attn_q.weight has the shape");
        refuse_value("gemma3.attention.head_count_kv", 0, TDM_E_BAD_MODEL, "key heads");
        refuse_value("gemma3.attention.head_count_kv", 8, TDM_E_BAD_MODEL, "key heads is 8");
        refuse_value("gemma3.attention.key_length", 32, TDM_E_UNSUPPORTED, "keys of 32 and values of 16 dimensions");
        refuse_value("gemma3.attention.value_length", 0, TDM_E_UNSUPPORTED, "values of 0");
        refuse_value("gemma3.feed_forward_length", 0, TDM_E_BAD_MODEL, "feed-forward length is 0");
        refuse_value("gemma3.feed_forward_length", 65537, TDM_E_BAD_MODEL, "feed-forward length is 65537");
        refuse_value("gemma3.feed_forward_length", 80, TDM_E_UNSUPPORTED, "feed-forward length 80 is not");
        refuse_value("gemma3.feed_forward_length", 128, TDM_E_BAD_MODEL, "tensor blk.0.ffn_gate.weight has the shape");
        refuse_value("gemma3.context_length", 0, TDM_E_BAD_MODEL, "context length");
        refuse_value("gemma3.context_length", (1u << 20) + 1, TDM_E_BAD_MODEL, "context length is 1048577");
        refuse_value("gemma3.attention.sliding_window", UINT32_MAX, TDM_E_BAD_MODEL, "window");
        refuse_value(eps, float_bits(0.0f), TDM_E_BAD_MODEL, "epsilon");
        refuse_value(eps, float_bits(-1e-6f), TDM_E_BAD_MODEL, "epsilon");
        refuse_value(eps, float_bits(NAN), TDM_E_BAD_MODEL, "not a usable number");
        refuse_value(eps, float_bits(INFINITY), TDM_E_BAD_MODEL, "not a usable number");
}

static void refuse_keys(void (*extra)(struct gguf_builder *), uint32_t n_extra, int code, const char *text)
{
        struct gguf_builder b = { 0 };
        struct tdm_model_description d = { 0 };
        struct tdm_error err = { 0 };
        uint64_t size;
        int r;

        build_keys(&b, &shape_a, extra, n_extra, BUILD_N_MODEL_TENSORS(shape_a.n_layers));
        size = build_model_tensors(&b, &shape_a, TDM_TYPE_Q4_0);
        build_data(&b, size);
        r = describe_bytes(&b, &d, &err);
        if (r != code || !strstr(err.message, text))
                fail_msg("wanted %s with \"%s\", got %d: %s", tdm_error_name(code), text, r, err.message);
        build_reset(&b);
}

static void yarn(struct gguf_builder *b)
{
        build_key_string(b, "gemma3.rope.scaling.type", "yarn");
}

static void experts(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.expert_count", 8);
}

static void partial_rope(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.rope.dimension_count", 8);
}

static void attention_cap(struct gguf_builder *b)
{
        build_key_f32(b, "gemma3.attn_logit_softcapping", 50.0f);
}

static void not_causal(struct gguf_builder *b)
{
        build_key_bool(b, "gemma3.attention.causal", false);
}

static void parts(struct gguf_builder *b)
{
        build_key_u32(b, "split.count", 4);
}

static void short_pattern(struct gguf_builder *b)
{
        build_array(b, "gemma3.attention.sliding_window_pattern", VALUE_BOOL, 2);
        build_bytes(b, "\1\1", 2);
}

static void float_pattern(struct gguf_builder *b)
{
        build_array(b, "gemma3.attention.sliding_window_pattern", VALUE_F32, 7);
        for (int i = 0; i < 7; i++)
                build_f32(b, 1.0f);
}

static void zero_pattern(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.attention.sliding_window_pattern", 0);
}

static void zero_base(struct gguf_builder *b)
{
        build_key_f32(b, "gemma3.rope.freq_base", 0.0f);
}

static void zero_scalar(struct gguf_builder *b)
{
        build_key_f32(b, "gemma3.attention.query_pre_attn_scalar", 0.0f);
}

static void negative_scalar(struct gguf_builder *b)
{
        build_key_f32(b, "gemma3.attention.query_pre_attn_scalar", -1.0f);
}

static void other_vocab(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.vocab_size", 99);
}

static void long_vocab(struct gguf_builder *b)
{
        build_array(b, "tokenizer.ggml.tokens", VALUE_U8, BUILD_N_PIECES + 1025);
        for (uint32_t i = 0; i < BUILD_N_PIECES + 1025; i++)
                build_bytes(b, "x", 1);
}

static struct {
        const char *key;
        uint32_t type;
        float value;
} one_key;

static void one(struct gguf_builder *b)
{
        if (one_key.type == VALUE_F32)
                build_key_f32(b, one_key.key, one_key.value);
        else if (one_key.type == VALUE_BOOL)
                build_key_bool(b, one_key.key, one_key.value != 0);
        else
                build_key_u32(b, one_key.key, (uint32_t)one_key.value);
}

/* A key that would change the result is refused by its name, whatever architecture it was made for, and let pass where
 * its value changes nothing. */
static void test_unfollowed(void **state)
{
        static const struct {
                const char *key;
                uint32_t type;
                float value, neutral;
        } cases[] = {
                { "gemma3.logit_scale", VALUE_F32, 0.0625f, 1 },
                { "gemma3.embedding_scale", VALUE_F32, 12, 1 },
                { "gemma3.residual_scale", VALUE_F32, 0.22f, 0 },
                { "gemma3.attention.clamp_kqv", VALUE_F32, 8, 0 },
                { "gemma3.attention.max_alibi_bias", VALUE_F32, 8, 0 },
                { "gemma3.attention.temperature_scale", VALUE_F32, 0.1f, 0 },
                { "gemma3.attention.shared_kv_layers", VALUE_U32, 2, 0 },
                { "gemma3.attention.key_length_swa", VALUE_U32, 32, 16 },
                { "gemma3.rope.dimension_count_swa", VALUE_U32, 8, 16 },
                { "gemma3.rope.freq_scale", VALUE_F32, 0.125f, 1 },
                { "gemma3.embedding_length_per_layer_input", VALUE_U32, 256, 0 },
                { "gemma3.use_parallel_residual", VALUE_BOOL, 1, 0 },
                { "gemma3.leading_dense_block_count", VALUE_U32, 1, 0 },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                one_key.key = cases[i].key;
                one_key.type = cases[i].type;
                one_key.value = cases[i].value;
                refuse_keys(one, 1, TDM_E_UNSUPPORTED, cases[i].key);
                one_key.value = cases[i].neutral;
                (void)described(&shape_a, one, 1);
        }
}

static void of_other_activation(struct gguf_builder *b)
{
        build_key_string(b, "gemma3.hidden_activation", "relu2");
}

static void of_other_type(struct gguf_builder *b)
{
        build_key_string(b, "general.type", "adapter");
}

/* As Ollama's converter writes Gemma 3: other names for both bases, and no epsilon. */
static void ollamas_bases(struct gguf_builder *b)
{
        build_key_f32(b, "gemma3.rope.global.freq_base", 500000.0f);
        build_key_f32(b, "gemma3.rope.local.freq_base", 20000.0f);
}

static struct tdm_model_description described_without_epsilon(const struct build_shape *s)
{
        static const char key[] = "gemma3.attention.layer_norm_rms_epsilon";
        struct gguf_builder b = { 0 };
        struct tdm_model_description d = { 0 };
        struct tdm_error err = { 0 };
        uint8_t *at;

        build_model(&b, s, TDM_TYPE_Q4_0);
        at = memmem(b.data, b.size, key, strlen(key));
        assert_non_null(at);
        at[strlen(key) - 1] = 'X';
        if (describe_bytes(&b, &d, &err))
                fail_msg("%s", err.message);
        tdm_model_description_deinit(&d);
        build_reset(&b);
        return d;
}

static void test_ollamas_gemma3(void **state)
{
        static const struct build_shape like_4b = { 34, 64, 1, 1, 32, 32, BUILD_N_PIECES };
        struct tdm_model_description d = described(&shape_a, ollamas_bases, 2);

        assert_true(d.recipe.ropes[0].base == 500000.0f && d.recipe.ropes[1].base == 20000.0f);
        d = described_without_epsilon(&shape_a);
        assert_true(d.recipe.norm_eps == 1e-6f && d.recipe.ropes[0].factor == 1);
        d = described_without_epsilon(&like_4b);
        assert_true(d.recipe.norm_eps == 1e-6f && d.recipe.ropes[0].factor == 8);
        d = described(&like_4b, NULL, 0); /* what the file says goes before */
        assert_true(d.recipe.ropes[0].factor == 1);
        refuse_keys(of_other_activation, 1, TDM_E_UNSUPPORTED, "its activation is \"relu2\"");
        refuse_keys(of_other_type, 1, TDM_E_UNSUPPORTED, "of the type \"adapter\"");
}

static void test_features(void **state)
{
        refuse_keys(yarn, 1, TDM_E_UNSUPPORTED, "\"yarn\"");
        refuse_keys(experts, 1, TDM_E_UNSUPPORTED, "8 experts");
        refuse_keys(partial_rope, 1, TDM_E_UNSUPPORTED, "rotates 8 of 16");
        refuse_keys(attention_cap, 1, TDM_E_UNSUPPORTED, "soft-caps");
        refuse_keys(not_causal, 1, TDM_E_UNSUPPORTED, "not causal");
        refuse_keys(parts, 1, TDM_E_UNSUPPORTED, "it is part 1 of 4");
        refuse_keys(short_pattern, 1, TDM_E_BAD_MODEL, "for 2 layers, the model has 7");
        refuse_keys(float_pattern, 1, TDM_E_BAD_MODEL, "neither a number nor an array");
        refuse_keys(zero_pattern, 1, TDM_E_BAD_MODEL, "sliding_window_pattern is 0");
        refuse_keys(zero_base, 1, TDM_E_BAD_MODEL, "RoPE base");
        refuse_keys(zero_scalar, 1, TDM_E_BAD_MODEL, "query scale");
        refuse_keys(negative_scalar, 1, TDM_E_BAD_MODEL, "query scale");
        refuse_keys(other_vocab, 1, TDM_E_BAD_MODEL, "vocab_size is 99");
        refuse_keys(long_vocab, 1, TDM_E_BAD_MODEL, "its tokenizer has 1301 pieces");
}

static void test_architecture(void **state)
{
        struct gguf_builder b = { 0 };
        struct tdm_model_description d;
        struct tdm_error err = { 0 };

        build_header(&b, 0, 1);
        build_key_string(&b, "general.architecture", "mamba");
        assert_int_equal(describe_bytes(&b, &d, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "its architecture is \"mamba\""));
        build_reset(&b);
        build_header(&b, 0, 1);
        build_key_string(&b, "general.architecture",
                         "\x1b[31m a long name that goes on and on and on and on, far too long to be shown");
        assert_int_equal(describe_bytes(&b, &d, &err), TDM_E_UNSUPPORTED);
        assert_null(strchr(err.message, 0x1b));
        assert_non_null(strstr(err.message, "..."));
        build_reset(&b);
        build_header(&b, 0, 0);
        assert_int_equal(describe_bytes(&b, &d, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "general.architecture is missing"));
        build_reset(&b);
}

/* One more tensor in a valid model. */
static int describe_with_tensor(const char *name, uint64_t rows, struct tdm_model_description *d, struct tdm_error *err)
{
        struct gguf_builder b = { 0 };
        uint64_t size;
        int r;

        build_keys(&b, &shape_a, NULL, 0, BUILD_N_MODEL_TENSORS(shape_a.n_layers) + 1);
        size = build_model_tensors(&b, &shape_a, TDM_TYPE_Q4_0);
        size = build_tensor(&b, name, TDM_TYPE_F32, 64, rows, size);
        build_data(&b, size);
        r = describe_bytes(&b, d, err);
        build_reset(&b);
        return r;
}

static void test_more_tensors(void **state)
{
        static const char *const ignored[] = { "v.patch_embd.weight",       "mm.input_projection.weight",
                                               "mm.a.mlp.1.weight",         "a.blk.0.ffn_up.weight",
                                               "mtp.layers.0.norm.weight",  "nextn.pre_projection.weight",
                                               "blk.7.nextn.eh_proj.weight" };
        struct tdm_model_description d = { 0 };
        struct tdm_error err = { 0 };
        bool found = false;

        assert_int_equal(describe_with_tensor("blk.0.attn_q.bias", 0, &d, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "tensor blk.0.attn_q.bias is not part"));
        assert_int_equal(describe_with_tensor("rope_freqs.weight", 0, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("blk.00.attn_q.weight", 0, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("output.weight", 5, &d, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "tensor output.weight has the shape 64 x 5 x 1 x 1"));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(ignored); i++) {
                assert_int_equal(describe_with_tensor(ignored[i], 5, &d, &err), 0);
                tdm_model_description_deinit(&d);
        }
        /* A block behind the layers without a draft head's projection, one within them, and names that only look so. */
        assert_int_equal(describe_with_tensor("blk.7.attn_norm.weight", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("blk.6.nextn.eh_proj.weight", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "tensor blk.6.nextn.eh_proj.weight is a draft head's, but the key "
                                            "gemma3.block_count counts its block"));
        assert_int_equal(describe_with_tensor("blk.07.nextn.eh_proj.weight", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("blk.7", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("blk.99999999999.x", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("mtpx.weight", 5, &d, &err), TDM_E_UNSUPPORTED);
        assert_int_equal(describe_with_tensor("output.weight", BUILD_N_PIECES, &d, &err), 0);
        for (uint32_t i = 0; i < d.n_tensors; i++)
                found |= d.tensors[i].kind == TDM_TENSOR_OUTPUT && d.tensors[i].rows == BUILD_N_PIECES;
        assert_true(found);
        tdm_model_description_deinit(&d);
}

static uint32_t n_draft;

static void drafts(struct gguf_builder *b)
{
        build_key_u32(b, "gemma3.nextn_predict_layers", n_draft);
}

/* The last blocks of a file are a draft head's: the model is what a file of fewer blocks says. */
static void test_draft_blocks(void **state)
{
        struct build_shape shape = shape_a;
        struct tdm_model_description without, with;
        struct gguf_builder b = { 0 };
        struct tdm_error err = { 0 };
        uint64_t size;

        shape.n_layers = shape_a.n_layers - 2;
        without = described(&shape, NULL, 0);
        n_draft = 2;
        with = described(&shape_a, drafts, 1);
        assert_int_equal(with.n_tensors, without.n_tensors);
        assert_memory_equal(&with.hparams, &without.hparams, sizeof(with.hparams));
        assert_memory_equal(&with.recipe, &without.recipe, sizeof(with.recipe));
        for (n_draft = shape_a.n_layers; n_draft != 1; n_draft = n_draft == UINT32_MAX ? 1 : UINT32_MAX) {
                build_keys(&b, &shape_a, drafts, 1, BUILD_N_MODEL_TENSORS(shape_a.n_layers));
                size = build_model_tensors(&b, &shape_a, TDM_TYPE_Q4_0);
                build_data(&b, size);
                assert_int_equal(describe_bytes(&b, &with, &err), TDM_E_UNSUPPORTED);
                assert_non_null(strstr(err.message, "it is a draft head and not a model: of 7 blocks the key "
                                                    "gemma3.nextn_predict_layers takes"));
                build_reset(&b);
        }
}

static void test_check(void **state)
{
        struct tdm_hparams good = described(&shape_a, NULL, 0).hparams, hp;

        assert_int_equal(tdm_hparams_check(&good, NULL), 0);
#define REFUSED(change)                                                                                                \
        do {                                                                                                           \
                hp = good;                                                                                             \
                hp.change;                                                                                             \
                assert_true(tdm_hparams_check(&hp, NULL) > 0);                                                         \
        } while (0)
        REFUSED(n_layers = 0);
        REFUSED(n_layers = TDM_MAX_LAYERS + 1);
        REFUSED(n_layers = UINT32_MAX);
        REFUSED(d_model = 0);
        REFUSED(d_model = 33);
        REFUSED(n_heads = 0);
        REFUSED(n_kv_heads = 0);
        REFUSED(n_kv_heads = 3);
        REFUSED(head_dim = 0);
        REFUSED(head_dim = 8);
        REFUSED(head_dim = 0x40000000);
        REFUSED(d_ff = 0);
        REFUSED(n_vocab = 0);
        REFUSED(n_vocab = (1u << 21) + 1);
        REFUSED(n_ctx = 0);
        REFUSED(window = 0);  /* with sliding layers */
        REFUSED(window = 17); /* no layer's */
        REFUSED(d_ff = 128);
        REFUSED(residual_width = 0);
        REFUSED(residual_width = 96); /* a stream and a half */
        REFUSED(residual_width = 64 * (TDM_MAX_STREAMS + 2));
        REFUSED(residual_width = UINT32_MAX);
        REFUSED(layers[0].n_heads = 0);
        REFUSED(layers[0].n_heads = 3);
        REFUSED(layers[0].n_kv_heads = 8);
        REFUSED(layers[0].head_dim = 24);
        REFUSED(layers[0].head_dim = 0x40000000);
        REFUSED(layers[0].d_ff = 0);
        REFUSED(layers[0].d_ff = 80);
        REFUSED(layers[0].window = (1u << 20) + 1);
        REFUSED(layers[0].kv_layer = 1);
        REFUSED(layers[1].kv_layer = UINT32_MAX);
        REFUSED(layers[5].kv_layer = 0); /* full, and layer 0 slides */
        REFUSED(layers[7].window = 1);
#undef REFUSED
        /* The largest heads, whose tables of angles a worker makes while it loads, and larger ones. */
        for (uint32_t head_dim = 1024; head_dim <= 1040; head_dim += 16) {
                struct tdm_error err = { 0 };

                hp = good;
                for (uint32_t i = 0; i < hp.n_layers; i++)
                        hp.layers[i].head_dim = head_dim;
                tdm_hparams_take_largest(&hp);
                assert_int_equal(tdm_hparams_check(&hp, &err), head_dim == 1024 ? 0 : TDM_E_BAD_MODEL);
                if (head_dim > 1024)
                        assert_non_null(strstr(err.message, "the head dimension is 1040, it must be from 1 to 1024"));
        }
        /* Layers may differ, and share keys and values. */
        hp = good;
        hp.layers[3].d_ff = 32;
        hp.layers[4].n_heads = 2;
        hp.layers[6].kv_layer = 4;
        assert_int_equal(tdm_hparams_check(&hp, NULL), 0);
        hp.layers[4].kv_layer = 3; /* which layer 6 then cannot read */
        assert_int_equal(tdm_hparams_check(&hp, NULL), TDM_E_BAD_MODEL);
}

/* Files with random bytes changed, all the way to a tokenizer. */
static void test_flipped(void **state)
{
        struct gguf_builder b = { 0 };
        _cleanup_(freep) uint8_t *copy = NULL;
        uint64_t random = 7;
        unsigned n_good = 0;

        build_model(&b, &build_smallest, TDM_TYPE_Q8_0);
        copy = malloc(b.size);
        assert_non_null(copy);
        for (unsigned i = 0; i < 4000; i++) {
                _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
                _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
                _cleanup_(closep) int fd = -1;
                struct tdm_model_description d;
                struct tdm_error err;
                uint32_t ids[64];

                memcpy(copy, b.data, b.size);
                for (unsigned n = 1 + i % 3; n > 0; n--) {
                        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                        copy[(random >> 33) % b.data_start] ^= (uint8_t)(1u << (random >> 20) % 8);
                }
                fd = build_fd(copy, b.size);
                if (tdm_gguf_open(&g, fd, "flipped.gguf", &err))
                        continue;
                if (tdm_model_describe(g, &d, &err) == 0) {
                        assert_int_equal(tdm_hparams_check(&d.hparams, &err), 0);
                        assert_int_equal(tdm_recipe_check(&d.recipe, &d.hparams, &err), 0);
                        tdm_model_description_deinit(&d);
                        n_good++;
                }
                if (tdm_tokenizer_new(&t, g, &err) == 0)
                        assert_true(tdm_tokenizer_encode(t, "abc <bos> cab", 13, TDM_TOKENIZE_SPECIAL, ids, 64) > 0);
        }
        assert_true(n_good > 100);
        build_reset(&b);
}

/* A number for each layer may be an array, but no file makes Tandem walk one of millions. */
static void test_long_array(void **state)
{
        struct tdm_model_description d;
        struct gguf_builder b = { 0 };
        struct tdm_error err = { 0 };
        static uint8_t layers[1 << 20];

        memset(layers, 1, sizeof(layers));
        build_header(&b, 0, 2);
        build_key_string(&b, "general.architecture", "gemma3");
        build_array(&b, "gemma3.block_count", VALUE_U8, sizeof(layers));
        build_bytes(&b, layers, sizeof(layers));
        assert_int_equal(describe_bytes(&b, &d, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "gemma3.block_count has 1048576 numbers, at most one for each of 256"));
        build_reset(&b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tale),           cmocka_unit_test(test_blocks),
                cmocka_unit_test(test_keys),           cmocka_unit_test(test_ranges),
                cmocka_unit_test(test_features),       cmocka_unit_test(test_unfollowed),
                cmocka_unit_test(test_ollamas_gemma3), cmocka_unit_test(test_architecture),
                cmocka_unit_test(test_more_tensors),   cmocka_unit_test(test_draft_blocks),
                cmocka_unit_test(test_check),          cmocka_unit_test(test_flipped),
                cmocka_unit_test(test_no_window),      cmocka_unit_test(test_long_array),
        };

        if (tdm_sigbus_init() < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
