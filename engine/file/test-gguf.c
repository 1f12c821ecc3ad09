/* Opening GGUF files: right ones, and every way of being wrong. */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <cmocka.h>
#include "common/sigbus.h"
#include "engine/file/test-gguf-builder.h"

static int open_bytes(struct tdm_gguf **ret, const void *data, size_t size, struct tdm_error *err)
{
        _cleanup_(closep) int fd = build_fd(data, size);

        return tdm_gguf_open(ret, fd, "test.gguf", err);
}

static void assert_refused(struct gguf_builder *b, int code, const char *text)
{
        struct tdm_error err = { 0 };
        struct tdm_gguf *g = NULL;
        int r = open_bytes(&g, b->data, b->size, &err);

        if (r != code || err.code != code || !strstr(err.message, text))
                fail_msg("wanted %s with \"%s\", got %d: %s", tdm_error_name(code), text, r, err.message);
        assert_null(g);
        assert_non_null(strstr(err.message, "cannot open model test.gguf: "));
        build_reset(b);
}

static void test_tale(void **state)
{
        _cleanup_(closep) int fd = open("models/tale.gguf", O_RDONLY | O_CLOEXEC);
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        const struct tdm_gguf_tensor *t;
        struct tdm_gguf_string s;
        struct tdm_error err;
        uint64_t v;
        double f;

        assert_true(fd >= 0);
        assert_int_equal(tdm_gguf_open(&g, fd, "tale.gguf", &err), 0);
        assert_int_equal(tdm_gguf_n_tensors(g), 2 + 12 * 13);
        assert_int_equal(tdm_gguf_file_size(g), lseek(fd, 0, SEEK_END));
        assert_string_equal(tdm_gguf_name(g), "tale.gguf");
        t = tdm_gguf_find_tensor(g, "blk.11.ffn_down.weight");
        assert_non_null(t);
        assert_int_equal(t->type, TDM_TYPE_Q8_0);
        assert_int_equal(t->dims[0], 1024);
        assert_int_equal(t->dims[1], 256);
        assert_int_equal(t->dims[2], 1);
        assert_int_equal(t->size_bytes, 1024 / 32 * 34 * 256);
        assert_int_equal(t->offset % 32, 0);
        assert_ptr_equal(tdm_gguf_tensor_data(g, t),
                         tdm_gguf_tensor_data(g, tdm_gguf_tensor(g, 0)) + t->offset - tdm_gguf_tensor(g, 0)->offset);
        assert_null(tdm_gguf_find_tensor(g, "blk.12.ffn_down.weight"));
        assert_null(tdm_gguf_find_tensor(g, ""));
        for (uint64_t i = 0; i < tdm_gguf_n_tensors(g); i++) {
                char name[129] = { 0 };

                t = tdm_gguf_tensor(g, i);
                memcpy(name, t->name.data, t->name.size);
                assert_ptr_equal(tdm_gguf_find_tensor(g, name), t);
        }
        assert_null(tdm_gguf_tensor(g, tdm_gguf_n_tensors(g)));
        assert_int_equal(tdm_gguf_get_u64(g, "gemma3.block_count", &v), 0);
        assert_int_equal(v, 12);
        assert_int_equal(tdm_gguf_get_f64(g, "gemma3.rope.freq_base", &f), 0);
        assert_true(f == 1e6);
        assert_int_equal(tdm_gguf_get_array_string(g, "tokenizer.ggml.tokens", 2, &s), 0);
        assert_memory_equal(s.data, "<bos>", 5);
        tdm_gguf_unmap_data(g);
        assert_null(tdm_gguf_tensor_data(g, tdm_gguf_tensor(g, 0)));
        assert_int_equal(tdm_gguf_get_array_string(g, "tokenizer.ggml.tokens", 6143, &s), 0);
}

static void test_values(void **state)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        struct gguf_builder b = { 0 };
        struct tdm_gguf_string s;
        uint64_t u;
        int64_t i;
        double f;
        bool flag;

        build_header(&b, 0, 18);
        build_key(&b, "u8", VALUE_U8);
        build_bytes(&b, "\xff", 1);
        build_key(&b, "i8", VALUE_I8);
        build_bytes(&b, "\xff", 1);
        build_key(&b, "u16", VALUE_U16);
        build_bytes(&b, "\xfe\xff", 2);
        build_key(&b, "i16", VALUE_I16);
        build_bytes(&b, "\xfe\xff", 2);
        build_key_u32(&b, "u32", UINT32_MAX);
        build_key(&b, "i32", VALUE_I32);
        build_u32(&b, (uint32_t)-7);
        build_key_f32(&b, "f32", 0.5f);
        build_key_bool(&b, "yes", true);
        build_key_string(&b, "text", "words");
        build_key(&b, "u64", VALUE_U64);
        build_u64(&b, UINT64_MAX);
        build_key(&b, "i64", VALUE_I64);
        build_u64(&b, (uint64_t)INT64_MIN);
        build_key(&b, "f64", VALUE_F64);
        build_u64(&b, UINT64_C(0x3ff8000000000000));
        build_array(&b, "numbers", VALUE_I16, 3);
        build_bytes(&b, "\x01\x00\xff\xff\x03\x00", 6);
        build_array(&b, "strings", VALUE_STRING, 3);
        build_string(&b, "");
        build_string(&b, "x");
        build_string(&b, "yz");
        build_array(&b, "none", VALUE_STRING, 0);
        build_array(&b, "flags", VALUE_BOOL, 2);
        build_bytes(&b, "\x01\x00", 2);
        build_array(&b, "big", VALUE_U64, 1);
        build_u64(&b, UINT64_MAX);
        build_array(&b, "floats", VALUE_F32, 2);
        build_f32(&b, 1.5f);
        build_f32(&b, -2.5f);
        assert_int_equal(open_bytes(&g, b.data, b.size, NULL), 0);
        build_reset(&b);

        assert_int_equal(tdm_gguf_get_u64(g, "u8", &u), 0);
        assert_int_equal(u, 255);
        assert_int_equal(tdm_gguf_get_u64(g, "i8", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_f64(g, "i8", &f), 0);
        assert_true(f == -1.0);
        assert_int_equal(tdm_gguf_get_u64(g, "u16", &u), 0);
        assert_int_equal(u, 65534);
        assert_int_equal(tdm_gguf_get_f64(g, "i16", &f), 0);
        assert_true(f == -2.0);
        assert_int_equal(tdm_gguf_get_u64(g, "u32", &u), 0);
        assert_int_equal(u, UINT32_MAX);
        assert_int_equal(tdm_gguf_get_f64(g, "i32", &f), 0);
        assert_true(f == -7.0);
        assert_int_equal(tdm_gguf_get_u64(g, "u64", &u), 0);
        assert_true(u == UINT64_MAX);
        assert_int_equal(tdm_gguf_get_f64(g, "u64", &f), 0);
        assert_true(f == 0x1p64);
        assert_int_equal(tdm_gguf_get_f64(g, "i64", &f), 0);
        assert_true(f == -0x1p63);
        assert_int_equal(tdm_gguf_get_f64(g, "f32", &f), 0);
        assert_true(f == 0.5);
        assert_int_equal(tdm_gguf_get_f64(g, "f64", &f), 0);
        assert_true(f == 1.5);
        assert_int_equal(tdm_gguf_get_u64(g, "f32", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_u64(g, "yes", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_bool(g, "yes", &flag), 0);
        assert_true(flag);
        assert_int_equal(tdm_gguf_get_bool(g, "u8", &flag), -EINVAL);
        assert_int_equal(tdm_gguf_get_string(g, "text", &s), 0);
        assert_int_equal(s.size, 5);
        assert_memory_equal(s.data, "words", 5);
        assert_int_equal(tdm_gguf_get_string(g, "u8", &s), -EINVAL);
        assert_int_equal(tdm_gguf_get_u64(g, "text", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_u64(g, "numbers", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_u64(g, "nothing", &u), -ENOENT);
        assert_int_equal(tdm_gguf_get_array_size(g, "nothing", &u), -ENOENT);
        assert_int_equal(tdm_gguf_get_array_size(g, "u8", &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_array_size(g, "numbers", &u), 0);
        assert_int_equal(u, 3);
        assert_int_equal(tdm_gguf_get_array_i64(g, "numbers", 1, &i), 0);
        assert_int_equal(i, -1);
        assert_int_equal(tdm_gguf_get_array_u64(g, "numbers", 1, &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_array_u64(g, "numbers", 2, &u), 0);
        assert_int_equal(u, 3);
        assert_int_equal(tdm_gguf_get_array_u64(g, "numbers", 3, &u), -ERANGE);
        assert_int_equal(tdm_gguf_get_array_f64(g, "floats", 1, &f), 0);
        assert_true(f == -2.5);
        assert_int_equal(tdm_gguf_get_array_i64(g, "big", 0, &i), -EINVAL);
        assert_int_equal(tdm_gguf_get_array_u64(g, "flags", 0, &u), 0);
        assert_int_equal(u, 1);
        assert_int_equal(tdm_gguf_get_array_string(g, "strings", 0, &s), 0);
        assert_int_equal(s.size, 0);
        assert_int_equal(tdm_gguf_get_array_string(g, "strings", 2, &s), 0);
        assert_int_equal(s.size, 2);
        assert_memory_equal(s.data, "yz", 2);
        assert_int_equal(tdm_gguf_get_array_string(g, "strings", 3, &s), -ERANGE);
        assert_int_equal(tdm_gguf_get_array_string(g, "numbers", 0, &s), -EINVAL);
        assert_int_equal(tdm_gguf_get_array_u64(g, "strings", 0, &u), -EINVAL);
        assert_int_equal(tdm_gguf_get_array_size(g, "none", &u), 0);
        assert_int_equal(u, 0);
        assert_int_equal(tdm_gguf_get_array_string(g, "none", 0, &s), -ERANGE);
}

static void test_types(void **state)
{
        assert_string_equal(tdm_type_info(TDM_TYPE_Q4_0)->name, "Q4_0");
        assert_int_equal(tdm_type_info(TDM_TYPE_Q6_K)->block_bytes, 210);
        assert_int_equal(tdm_type_info(TDM_TYPE_BF16)->block_bytes, 2);
        for (uint32_t i = 0; i < 64; i++) {
                const struct tdm_type_info *info = tdm_type_info(i);

                assert_true(!info || (info->block_values > 0 && info->block_bytes > 0));
        }
        assert_null(tdm_type_info(5)); /* withdrawn */
        assert_null(tdm_type_info(1000));
        assert_null(tdm_type_info(UINT32_MAX));
}

static void test_bad_headers(void **state)
{
        struct gguf_builder b = { 0 };

        build_bytes(&b, "GGUF", 4);
        assert_refused(&b, TDM_E_BAD_MODEL, "only 4 bytes");
        build_header(&b, 0, 0);
        memcpy(b.data, "GGML", 4);
        assert_refused(&b, TDM_E_UNSUPPORTED, "not a GGUF file");
        build_header(&b, 0, 0);
        memcpy(b.data, "FUGG", 4);
        assert_refused(&b, TDM_E_UNSUPPORTED, "big-endian");
        build_header(&b, 0, 0);
        memcpy(b.data, "tjgg", 4);
        assert_refused(&b, TDM_E_UNSUPPORTED, "older than GGUF");
        build_header(&b, 0, 0);
        memcpy(b.data + 4, "\0\0\0\3", 4);
        assert_refused(&b, TDM_E_UNSUPPORTED, "big-endian");
        build_header(&b, 0, 0);
        b.data[4] = 1;
        assert_refused(&b, TDM_E_UNSUPPORTED, "version 1");
        build_header(&b, 0, 0);
        b.data[4] = 4;
        assert_refused(&b, TDM_E_UNSUPPORTED, "version 4");
        build_header(&b, 0, UINT64_C(1) << 60);
        assert_refused(&b, TDM_E_BAD_MODEL, "1152921504606846976 keys");
        build_header(&b, UINT64_MAX, 0);
        assert_refused(&b, TDM_E_BAD_MODEL, "18446744073709551615 tensors");
        build_header(&b, 0, 2);
        build_key_u32(&b, "a", 1);
        assert_refused(&b, TDM_E_BAD_MODEL, "2 keys");
}

static void build_one_key(struct gguf_builder *b)
{
        build_header(b, 0, 1);
}

static void test_bad_keys(void **state)
{
        struct gguf_builder b = { 0 };
        uint8_t padding[64] = { 0 };

        build_one_key(&b);
        build_u64(&b, UINT64_MAX);
        build_bytes(&b, padding, sizeof(padding));
        assert_refused(&b, TDM_E_BAD_MODEL, "a key at byte 24 has 18446744073709551615 characters");
        build_one_key(&b);
        build_u64(&b, 0);
        build_bytes(&b, padding, sizeof(padding));
        assert_refused(&b, TDM_E_BAD_MODEL, "0 characters");
        build_one_key(&b);
        build_u64(&b, 60000);
        build_bytes(&b, padding, sizeof(padding));
        assert_refused(&b, TDM_E_BAD_MODEL, "60000 characters, 1 to 256 are allowed");
        build_one_key(&b);
        build_u64(&b, 200);
        build_bytes(&b, padding, sizeof(padding));
        assert_refused(&b, TDM_E_BAD_MODEL, "more bytes than the file has");
        build_one_key(&b);
        build_key_u32(&b, "a\nb", 1);
        assert_refused(&b, TDM_E_BAD_MODEL, "0x0a");
        build_one_key(&b);
        build_key(&b, "key", 13);
        build_u64(&b, 0);
        assert_refused(&b, TDM_E_BAD_MODEL, "key key has a value of type 13");
        build_one_key(&b);
        build_array(&b, "key", 77, 1);
        assert_refused(&b, TDM_E_BAD_MODEL, "array of type 77");
        build_one_key(&b);
        build_array(&b, "key", VALUE_ARRAY, 1);
        assert_refused(&b, TDM_E_UNSUPPORTED, "array of arrays");
        build_one_key(&b);
        build_array(&b, "key", VALUE_F64, UINT64_C(1) << 60);
        assert_refused(&b, TDM_E_BAD_MODEL, "announces 1152921504606846976 elements, the file has room for 0");
        build_one_key(&b);
        build_array(&b, "key", VALUE_U32, UINT64_C(0x4000000000000001)); /* times 4 is 4 */
        build_bytes(&b, padding, sizeof(padding));
        assert_refused(&b, TDM_E_BAD_MODEL, "room for 16");
        build_one_key(&b);
        build_array(&b, "key", VALUE_STRING, UINT64_C(1) << 60);
        assert_refused(&b, TDM_E_BAD_MODEL, "strings, the file has room for 0");
        build_one_key(&b);
        build_array(&b, "key", VALUE_STRING, 2);
        build_u64(&b, 1);
        build_bytes(&b, "x", 1);
        build_u64(&b, UINT64_MAX - 4);
        assert_refused(&b, TDM_E_BAD_MODEL, "a string in an array");
        build_one_key(&b);
        build_key(&b, "key", VALUE_STRING);
        build_u64(&b, UINT64_MAX - 40);
        assert_refused(&b, TDM_E_BAD_MODEL, "a string value");
        build_one_key(&b);
        build_key(&b, "key", VALUE_BOOL);
        build_bytes(&b, "\2", 1);
        assert_refused(&b, TDM_E_BAD_MODEL, "key key: a boolean is 2");
        build_one_key(&b);
        build_array(&b, "key", VALUE_BOOL, 3);
        build_bytes(&b, "\1\0\3", 3);
        assert_refused(&b, TDM_E_BAD_MODEL, "a boolean is 3");
        build_header(&b, 0, 3);
        build_key_u32(&b, "same", 1);
        build_key_u32(&b, "other", 1);
        build_key_u32(&b, "same", 2);
        assert_refused(&b, TDM_E_BAD_MODEL, "the key same is there twice");
        for (unsigned i = 0; i < 4; i++) {
                static const uint32_t alignments[] = { 0, 4, 48, 131072 };

                build_one_key(&b);
                build_key_u32(&b, "general.alignment", alignments[i]);
                assert_refused(&b, TDM_E_BAD_MODEL, "power of two from 8 to 65536");
        }
        build_one_key(&b);
        build_key_f32(&b, "general.alignment", 32.0f);
        assert_refused(&b, TDM_E_BAD_MODEL, "not a whole number");
}

/* One tensor given field by field. */
static void build_raw_tensor(struct gguf_builder *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                             uint32_t type, uint64_t offset)
{
        build_string(b, name);
        build_u32(b, n_dims);
        for (uint32_t i = 0; i < n_dims && i < 8; i++)
                build_u64(b, dims[i]);
        build_u32(b, type);
        build_u64(b, offset);
}

static void test_bad_tensors(void **state)
{
        static const struct {
                uint32_t n_dims;
                uint64_t dims[5];
                uint32_t type;
                uint64_t offset;
                int code;
                const char *text;
        } cases[] = {
                { 0, { 0 }, 0, 0, TDM_E_BAD_MODEL, "tensor bad has 0 dimensions" },
                { 5, { 1, 1, 1, 1, 1 }, 0, 0, TDM_E_BAD_MODEL, "tensor bad has 5 dimensions" },
                { UINT32_MAX, { 1 }, 0, 0, TDM_E_BAD_MODEL, "4294967295 dimensions" },
                { 2, { 32, 0 }, 0, 0, TDM_E_BAD_MODEL, "dimension 1 is 0" },
                { 2, { UINT64_MAX, 1 }, 0, 0, TDM_E_BAD_MODEL, "impossible dimensions" },
                { 3, { UINT64_C(1) << 32, UINT64_C(1) << 31, 2 }, 0, 0, TDM_E_BAD_MODEL, "impossible dimensions" },
                { 2, { UINT64_C(1) << 32, UINT64_C(1) << 31 }, 0, 0, TDM_E_BAD_MODEL, "size overflows" },
                { 2, { 33, 2 }, TDM_TYPE_Q8_0, 0, TDM_E_BAD_MODEL, "Q8_0 needs a multiple of 32" },
                { 2, { 128, 2 }, TDM_TYPE_Q4_K, 0, TDM_E_BAD_MODEL, "Q4_K needs a multiple of 256" },
                { 1, { 32 }, 5, 0, TDM_E_UNSUPPORTED, "tensor bad has the type with number 5" },
                { 1, { 32 }, 4711, 0, TDM_E_UNSUPPORTED, "tensor bad has the type with number 4711" },
                { 1, { 32 }, 0, 16, TDM_E_BAD_MODEL, "not a multiple of the alignment 32" },
                { 1, { 32 }, 0, UINT64_MAX - 31, TDM_E_BAD_MODEL, "impossible offset" },
                { 1, { 32 }, 0, UINT64_C(1) << 62, TDM_E_BAD_MODEL, "more bytes than the file has" },
                { 1,
                  { 64 },
                  0,
                  928,
                  TDM_E_BAD_MODEL,
                  "tensor bad needs 160 more bytes than the file has (truncated download?)" },
                { 1, { 8 }, 0, 0, TDM_E_BAD_MODEL, "overlap" },
                { 1, { 1 }, 0, 96, TDM_E_BAD_MODEL, "overlap" },
        };
        struct gguf_builder b = { 0 };
        char name[131];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                build_header(&b, 2, 0);
                build_tensor(&b, "good", TDM_TYPE_F32, 32, 0, 0);
                build_raw_tensor(&b, "bad", cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset);
                build_data(&b, 1024);
                assert_refused(&b, cases[i].code, cases[i].text);
        }
        build_header(&b, 2, 0);
        build_tensor(&b, "same", TDM_TYPE_F32, 8, 0, 0);
        build_tensor(&b, "same", TDM_TYPE_F32, 8, 0, 32);
        build_data(&b, 64);
        assert_refused(&b, TDM_E_BAD_MODEL, "two tensors are called same");
        memset(name, 'n', sizeof(name));
        name[129] = 0;
        build_header(&b, 1, 0);
        build_tensor(&b, name, TDM_TYPE_F32, 8, 0, 0);
        build_data(&b, 64);
        assert_refused(&b, TDM_E_BAD_MODEL, "129 characters");
        name[128] = 0;
        build_header(&b, 1, 0);
        build_tensor(&b, name, TDM_TYPE_F32, 8, 0, 0);
        build_data(&b, 32);
        {
                _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;

                assert_int_equal(open_bytes(&g, b.data, b.size, NULL), 0);
                assert_non_null(tdm_gguf_find_tensor(g, name));
        }
        build_reset(&b);
}

static void test_not_files(void **state)
{
        _cleanup_(closep) int directory = open("/", O_RDONLY | O_CLOEXEC);
        struct tdm_gguf *g = NULL;
        struct tdm_error err;

        assert_int_equal(tdm_gguf_open(&g, directory, "dir", &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "not a regular file"));
        assert_int_equal(tdm_gguf_open(&g, -1, "nothing", &err), -EBADF);
        assert_null(g);
}

/* Reads everything that can be read; values must be in bounds (ASan) and look-ups must agree with themselves. */
static void visit(const struct tdm_gguf *g)
{
        struct tdm_gguf_string s;
        uint64_t sum = 0, n, v;

        for (uint64_t i = 0; i < tdm_gguf_n_tensors(g); i++) {
                const struct tdm_gguf_tensor *t = tdm_gguf_tensor(g, i);

                assert_true(t->offset + t->size_bytes <= tdm_gguf_file_size(g));
                sum += tdm_gguf_tensor_data(g, t)[0] + tdm_gguf_tensor_data(g, t)[t->size_bytes - 1];
        }
        if (tdm_gguf_get_array_size(g, "tokenizer.ggml.tokens", &n) == 0) {
                for (uint64_t i = 0; i < n; i++) {
                        if (tdm_gguf_get_array_string(g, "tokenizer.ggml.tokens", i, &s) == 0 && s.size > 0)
                                sum += (uint8_t)s.data[0] + (uint8_t)s.data[s.size - 1];
                        if (tdm_gguf_get_array_u64(g, "tokenizer.ggml.token_type", i, &v) == 0)
                                sum += v;
                }
        }
        *(volatile uint64_t *)&sum = sum;
}

static void test_truncated(void **state)
{
        struct gguf_builder b = { 0 };
        struct tdm_error err;
        struct tdm_gguf *g = NULL;

        build_model(&b, &build_smallest, TDM_TYPE_Q8_0);
        assert_int_equal(open_bytes(&g, b.data, b.size, &err), 0);
        visit(g);
        tdm_gguf_close(g);
        g = NULL;
        /* Every prefix of the metadata, then some of the data. */
        for (size_t size = 0; size < b.size; size += size < b.data_start ? 1 : 97) {
                if (open_bytes(&g, b.data, size, &err) != TDM_E_BAD_MODEL)
                        fail_msg("a file of %zu bytes gives: %s", size, err.message);
                assert_non_null(strstr(err.message, "truncated"));
        }
        assert_int_equal(open_bytes(&g, b.data, b.size - 1, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "needs 1 more bytes than the file has (truncated download?)"));
        build_reset(&b);
}

static uint64_t next_random(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return *state >> 33;
}

static void test_flipped(void **state)
{
        struct gguf_builder b = { 0 };
        _cleanup_(freep) uint8_t *copy = NULL;
        uint64_t random = 1;
        unsigned n_opened = 0, n_refused = 0;

        build_model(&b, &build_smallest, TDM_TYPE_Q4_0);
        copy = malloc(b.size);
        assert_non_null(copy);
        for (unsigned i = 0; i < 6000; i++) {
                unsigned n = 1 + (unsigned)next_random(&random) % 8;
                struct tdm_gguf *g = NULL;
                struct tdm_error err = { 0 };
                size_t before, after;
                int r;

                memcpy(copy, b.data, b.size);
                while (n-- > 0) {
                        size_t at = next_random(&random) % b.data_start;

                        /* Half of them where the structure is dense: the header, the keys, the tensor table. */
                        if (next_random(&random) & 1)
                                at = next_random(&random) & 1 ? at % 600 : b.data_start - 1 - at % 900;
                        copy[at] = (uint8_t)next_random(&random);
                }
                before = mallinfo2().uordblks + mallinfo2().hblkhd;
                r = open_bytes(&g, copy, b.size, &err);
                after = mallinfo2().uordblks + mallinfo2().hblkhd;
                if (r == 0) {
                        assert_true(after - before < 8 * b.size + 65536);
                        visit(g);
                        n_opened++;
                } else {
                        assert_true(r == TDM_E_BAD_MODEL || r == TDM_E_UNSUPPORTED);
                        assert_true(err.code == r && err.message[0]);
                        assert_null(g);
                        n_refused++;
                }
                tdm_gguf_close(g);
        }
        assert_true(n_opened > 100 && n_refused > 100);
        build_reset(&b);
}

/* cmocka puts its own handler in front of every test. */
static struct sigaction sigbus_action;

static void use_sigbus_handler(void)
{
        assert_int_equal(sigaction(SIGBUS, &sigbus_action, NULL), 0);
}

static void test_cut_while_open(void **state)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct gguf_builder b = { 0 };
        struct tdm_sigbus_guard guard;
        const struct tdm_gguf_tensor *t;
        struct tdm_gguf_string s;
        volatile uint8_t byte;

        use_sigbus_handler();
        build_model(&b, &build_smallest, TDM_TYPE_F32);
        fd = build_fd(b.data, b.size);
        assert_int_equal(tdm_gguf_open(&g, fd, "cut.gguf", NULL), 0);
        assert_int_equal(ftruncate(fd, 4096), 0);
        t = tdm_gguf_find_tensor(g, "blk.0.post_ffw_norm.weight");
        assert_int_equal(tdm_sigbus_guard_begin(&guard, tdm_gguf_tensor_data(g, t), t->size_bytes), 0);
        byte = tdm_gguf_tensor_data(g, t)[0];
        (void)byte;
        assert_true(tdm_sigbus_guard_hit(&guard));
        tdm_sigbus_guard_end(&guard);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(tdm_gguf_get_array_string(g, "tokenizer.ggml.tokens", 2, &s), 0);
        assert_memory_equal(s.data, "<bos>", 5);
        build_reset(&b);
}

struct cutter {
        int fd;
        const struct gguf_builder *b;
        atomic_bool stop;
};

static void *cut_and_restore(void *arg)
{
        struct cutter *c = arg;

        while (!atomic_load(&c->stop)) {
                if (ftruncate(c->fd, 0) < 0 || pwrite(c->fd, c->b->data, c->b->size, 0) != (ssize_t)c->b->size)
                        abort();
        }
        return NULL;
}

/* A file that another process keeps cutting and rewriting: any outcome but a crash or a lie. */
static void test_cut_while_opening(void **state)
{
        struct gguf_builder b = { 0 };
        struct cutter c = { .b = &b };
        pthread_t thread;

        use_sigbus_handler();
        build_model(&b, &build_smallest, TDM_TYPE_F32);
        c.fd = build_fd(b.data, b.size);
        assert_int_equal(pthread_create(&thread, NULL, cut_and_restore, &c), 0);
        for (unsigned i = 0; i < 1000; i++) {
                struct tdm_error err = { 0 };
                struct tdm_gguf *g = NULL;
                int r = tdm_gguf_open(&g, c.fd, "cut.gguf", &err);

                if (r != 0 && r != TDM_E_BAD_MODEL && r != TDM_E_MODEL_CHANGED && r != TDM_E_UNSUPPORTED)
                        fail_msg("%d: %s", r, err.message);
                tdm_gguf_close(g);
        }
        atomic_store(&c.stop, true);
        pthread_join(thread, NULL);
        close(c.fd);
        build_reset(&b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tale),
                cmocka_unit_test(test_values),
                cmocka_unit_test(test_types),
                cmocka_unit_test(test_bad_headers),
                cmocka_unit_test(test_bad_keys),
                cmocka_unit_test(test_bad_tensors),
                cmocka_unit_test(test_not_files),
                cmocka_unit_test(test_truncated),
                cmocka_unit_test(test_flipped),
                cmocka_unit_test(test_cut_while_open),
                cmocka_unit_test(test_cut_while_opening),
        };

        if (tdm_sigbus_init() < 0 || sigaction(SIGBUS, NULL, &sigbus_action) < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
