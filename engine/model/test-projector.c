/* Descriptions of projectors: a small one that is right in every way, and each way of being wrong by its message. The
 * numbers that a right one computes are the business of tests/golden/test_tower.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/sigbus.h"
#include "engine/file/test-gguf-builder.h"
#include "engine/model/projector.h"

#define D 32u
#define FF 48u
#define OUT 40u

/* What is wrong with a file. NULL: nothing. */
struct wrong {
        const char *key; /* missing, unless it has another value */
        const char *text;
        uint32_t number;
        const char *missing, *narrow; /* tensors */
};

struct file {
        struct gguf_builder keys, tensors;
        uint64_t n_keys, n_tensors, data_bytes;
        const struct wrong *wrong;
};

static bool is_named(const char *a, const char *b)
{
        return a && b && strcmp(a, b) == 0;
}

static bool has_key(struct file *file, const char *key)
{
        bool here = !is_named(file->wrong->key, key) || file->wrong->text || file->wrong->number;

        file->n_keys += here;
        return here;
}

static void add_text(struct file *file, const char *key, const char *value)
{
        if (has_key(file, key))
                build_key_string(&file->keys, key, is_named(file->wrong->key, key) ? file->wrong->text : value);
}

static void add_number(struct file *file, const char *key, uint32_t value)
{
        if (has_key(file, key))
                build_key_u32(&file->keys, key, is_named(file->wrong->key, key) ? file->wrong->number : value);
}

static void add_flag(struct file *file, const char *key)
{
        if (has_key(file, key))
                build_key_bool(&file->keys, key, true);
}

static void add_channels(struct file *file, const char *key)
{
        if (!has_key(file, key))
                return;
        build_array(&file->keys, key, VALUE_F32, 3);
        for (unsigned i = 0; i < 3; i++)
                build_f32(&file->keys, is_named(file->wrong->key, key) ? 0.0f : 0.5f);
}

static void add_tensor(struct file *file, const char *name, uint32_t n_dims, const uint64_t dims[4])
{
        uint64_t n = 1;

        if (is_named(file->wrong->missing, name))
                return;
        build_string(&file->tensors, name);
        build_u32(&file->tensors, n_dims);
        for (uint32_t i = 0; i < n_dims; i++) {
                uint64_t side = dims[i] - (i == 0 && is_named(file->wrong->narrow, name));

                build_u64(&file->tensors, side);
                n *= side;
        }
        build_u32(&file->tensors, TDM_TYPE_F32);
        build_u64(&file->tensors, file->data_bytes);
        file->data_bytes = TDM_ALIGN_UP(file->data_bytes + 4 * n, UINT64_C(32));
        file->n_tensors++;
}

static void add_linear(struct file *file, const char *name, uint32_t cols, uint32_t rows)
{
        char whole[64];

        snprintf(whole, sizeof(whole), "v.blk.0.%s.weight", name);
        add_tensor(file, whole, rows ? 2 : 1, (uint64_t[4]){ cols, rows });
        snprintf(whole, sizeof(whole), "v.blk.0.%s.bias", name);
        add_tensor(file, whole, 1, (uint64_t[4]){ rows ? rows : cols });
}

static void add_keys(struct file *file)
{
        add_text(file, "general.architecture", "clip");
        add_flag(file, "clip.has_vision_encoder");
        add_text(file, "clip.projector_type", "gemma3");
        add_number(file, "clip.vision.image_size", 56);
        add_number(file, "clip.vision.patch_size", 14);
        add_number(file, "clip.vision.embedding_length", D);
        add_number(file, "clip.vision.feed_forward_length", FF);
        add_number(file, "clip.vision.block_count", 1);
        add_number(file, "clip.vision.attention.head_count", 2);
        add_number(file, "clip.vision.projection_dim", OUT);
        add_channels(file, "clip.vision.image_mean");
        add_channels(file, "clip.vision.image_std");
        add_flag(file, "clip.use_gelu");
        if (has_key(file, "clip.vision.attention.layer_norm_epsilon"))
                build_key_f32(&file->keys, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
        if (is_named(file->wrong->key, "clip.vision.projector.scale_factor"))
                add_number(file, "clip.vision.projector.scale_factor", 0);
}

static void add_tensors(struct file *file)
{
        add_tensor(file, "v.patch_embd.weight", 4, (uint64_t[4]){ 14, 14, 3, D });
        add_tensor(file, "v.patch_embd.bias", 1, (uint64_t[4]){ D });
        add_tensor(file, "v.position_embd.weight", 2, (uint64_t[4]){ D, 16 });
        add_tensor(file, "v.post_ln.weight", 1, (uint64_t[4]){ D });
        add_tensor(file, "v.post_ln.bias", 1, (uint64_t[4]){ D });
        add_tensor(file, "mm.soft_emb_norm.weight", 1, (uint64_t[4]){ D });
        add_tensor(file, "mm.input_projection.weight", 2, (uint64_t[4]){ OUT, D });
        add_linear(file, "ln1", D, 0);
        add_linear(file, "ln2", D, 0);
        add_linear(file, "attn_q", D, D);
        add_linear(file, "attn_k", D, D);
        add_linear(file, "attn_v", D, D);
        add_linear(file, "attn_out", D, D);
        add_linear(file, "ffn_up", D, FF);
        add_linear(file, "ffn_down", FF, D);
}

static int describe(const struct wrong *wrong, struct tdm_projector *ret, struct tdm_error *err)
{
        struct file file = { .wrong = wrong };
        struct gguf_builder whole = { 0 };
        struct tdm_gguf *gguf = NULL;
        int fd, r;

        add_keys(&file);
        add_tensors(&file);
        build_header(&whole, file.n_tensors, file.n_keys);
        build_bytes(&whole, file.keys.data, file.keys.size);
        build_bytes(&whole, file.tensors.data, file.tensors.size);
        build_data(&whole, file.data_bytes);
        fd = build_fd(whole.data, whole.size);
        if (tdm_gguf_open(&gguf, fd, "mmproj", err) != 0)
                fail_msg("%s", err->message);
        r = tdm_projector_describe(ret, gguf, err);
        tdm_gguf_close(gguf);
        close(fd);
        build_reset(&whole);
        build_reset(&file.keys);
        build_reset(&file.tensors);
        return r;
}

static void test_described(void **state)
{
        static const struct wrong nothing = { 0 };
        struct tdm_projector p;
        struct tdm_error err = { 0 };

        if (describe(&nothing, &p, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(p.image.rule, TDM_IMAGE_STRETCH);
        assert_int_equal(p.image.filter, TDM_RESIZE_BILINEAR);
        assert_int_equal(p.image.side, 56);
        assert_int_equal(p.image.merge, 4);
        assert_int_equal(p.grid, 4);
        assert_int_equal(p.d_model, D);
        assert_int_equal(p.d_ff, FF);
        assert_int_equal(p.n_layers, 1);
        assert_int_equal(p.head_dim, 16);
        assert_int_equal(p.n_out, OUT);
        assert_true(p.image.mean[2] == 0.5 && p.image.std[0] == 0.5 && !p.image.doubled);
        assert_int_equal(tdm_projector_check_text(&p, "gemma3", OUT, &err), 0);
        assert_int_equal(tdm_projector_check_text(&p, "gemma3", OUT + 1, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "rows of 40 numbers and the model has 41"));
        assert_int_equal(tdm_projector_check_text(&p, "llama", OUT, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "\"gemma3\", not \"llama\""));
}

static void test_refused(void **state)
{
        static const struct {
                struct wrong wrong;
                int code;
                const char *says;
        } files[] = {
                { { .key = "general.architecture", .text = "gemma3" }, TDM_E_UNSUPPORTED, "no projector" },
                { { .key = "clip.has_vision_encoder" }, TDM_E_UNSUPPORTED, "no vision tower" },
                { { .key = "clip.projector_type" }, TDM_E_BAD_MODEL, "clip.projector_type is missing" },
                { { .key = "clip.projector_type", .text = "gemma4v" },
                  TDM_E_UNSUPPORTED,
                  "its projector is \"gemma4v\"" },
                { { .key = "clip.vision.image_size" }, TDM_E_BAD_MODEL, "image_size is missing" },
                { { .key = "clip.vision.image_size", .number = 57 }, TDM_E_BAD_MODEL, "no whole number" },
                { { .key = "clip.vision.image_size", .number = 42 }, TDM_E_BAD_MODEL, "no whole number" },
                { { .key = "clip.vision.image_size", .number = 20000 }, TDM_E_BAD_MODEL, "not 1 to 16384" },
                { { .key = "clip.vision.image_size", .number = 14 * 1000 }, TDM_E_UNSUPPORTED, "1000 x 1000 patches" },
                { { .key = "clip.vision.patch_size", .number = 1000 }, TDM_E_BAD_MODEL, "not 1 to 128" },
                { { .key = "clip.vision.embedding_length", .number = 33 }, TDM_E_UNSUPPORTED, "33 numbers in 2 heads" },
                { { .key = "clip.vision.attention.head_count", .number = 4 }, TDM_E_UNSUPPORTED, "a head has 16" },
                { { .key = "clip.vision.block_count", .number = 200 }, TDM_E_BAD_MODEL, "not 1 to 128" },
                { { .key = "clip.vision.block_count", .number = 2 }, TDM_E_BAD_MODEL, "v.blk.1.ln1.weight is missing" },
                { { .key = "clip.vision.image_std", .number = 1 }, TDM_E_BAD_MODEL, "out of range" },
                { { .key = "clip.vision.image_mean" }, TDM_E_BAD_MODEL, "an array of 3 numbers" },
                { { .key = "clip.vision.attention.layer_norm_epsilon" }, TDM_E_BAD_MODEL, "layer_norm_epsilon" },
                { { .key = "clip.use_gelu" }, TDM_E_UNSUPPORTED, "clip.use_gelu" },
                { { .key = "clip.vision.projector.scale_factor", .number = 3 }, TDM_E_BAD_MODEL, "no whole number" },
                { { .missing = "v.blk.0.attn_k.bias" }, TDM_E_BAD_MODEL, "v.blk.0.attn_k.bias is missing" },
                { { .missing = "v.patch_embd.weight" }, TDM_E_BAD_MODEL, "v.patch_embd.weight is missing" },
                { { .narrow = "v.blk.0.ffn_down.weight" }, TDM_E_BAD_MODEL, "v.blk.0.ffn_down.weight is 47 x 32" },
                { { .narrow = "mm.input_projection.weight" }, TDM_E_BAD_MODEL, "39 x 32" },
                { { .narrow = "v.patch_embd.weight" }, TDM_E_BAD_MODEL, "13 x 14 x 3 x 32" },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(files); i++) {
                struct tdm_projector p = { .n_out = 7 };
                struct tdm_error err = { 0 };
                int r = describe(&files[i].wrong, &p, &err);

                if (r != files[i].code || !strstr(err.message, files[i].says))
                        fail_msg("case %zu gives %d: %s", i, r, err.message);
                assert_int_equal(p.n_out, 7);
        }
}

static int set_up(void **state)
{
        return tdm_sigbus_init();
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_described), cmocka_unit_test(test_refused) };

        return cmocka_run_group_tests(tests, set_up, NULL);
}
