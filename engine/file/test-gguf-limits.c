/* What a GGUF file may cost: files that announce more than they hold, holes, budgets, cancelling, counting. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "engine/file/test-gguf-builder.h"

#define TEBIBYTE (UINT64_C(1) << 40)

static uint64_t blocks_of(int fd)
{
        struct stat st;

        assert_int_equal(fstat(fd, &st), 0);
        return (uint64_t)st.st_blocks;
}

/* The builder's bytes, then a hole up to size. */
static int sparse_fd(struct gguf_builder *b, uint64_t size)
{
        int fd = build_fd(b->data, b->size);

        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        build_reset(b);
        return fd;
}

/* Refused, nothing is held, and no page of the file came into being. */
static void assert_refused_unread(struct gguf_builder *b, const char *text)
{
        _Atomic uint64_t n_bytes = 0;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes };
        _cleanup_(closep) int fd = sparse_fd(b, TEBIBYTE);
        uint64_t blocks = blocks_of(fd);
        struct tdm_error err = { 0 };
        struct tdm_gguf *g = NULL;
        int r = tdm_gguf_open_within(&g, fd, "sparse", &limits, &err);

        if (r != TDM_E_BAD_MODEL || !strstr(err.message, text))
                fail_msg("wanted \"%s\", got %d: %s", text, r, err.message);
        assert_int_equal(n_bytes, 0);
        assert_int_equal(blocks_of(fd), blocks);
}

static void test_terabyte(void **state)
{
        struct gguf_builder b = { 0 };

        build_header(&b, 0, 1);
        build_key(&b, "text", VALUE_STRING);
        build_u64(&b, TEBIBYTE / 2);
        assert_refused_unread(&b, "at most 67108864 bytes are allowed");
        build_header(&b, 0, 1);
        build_array(&b, "strings", VALUE_STRING, TEBIBYTE / 16);
        assert_refused_unread(&b, "announces 68719476736 strings; metadata may have 67108864 bytes in all");
        build_header(&b, 0, 1);
        build_array(&b, "bytes", VALUE_U8, TEBIBYTE / 2);
        assert_refused_unread(&b, "announces 549755813888 elements; metadata may have");
        /* Each length is small, all together are not. */
        build_header(&b, 0, 3);
        for (unsigned i = 0; i < 3; i++) {
                char key[2] = { (char)('a' + i), 0 };

                build_array(&b, key, VALUE_U8, i == 2 ? 1u << 30 : 100);
                if (i < 2)
                        build_bytes(&b, (char[100]){ 0 }, 100);
        }
        assert_refused_unread(&b, "announces 1073741824 elements");
        build_header(&b, 0, 1);
        build_array(&b, "strings", VALUE_STRING, 3);
        build_string(&b, "first");
        build_u64(&b, TEBIBYTE / 2);
        assert_refused_unread(&b, "at most 67108864 bytes are allowed");
}

static void test_counts(void **state)
{
        struct gguf_builder b = { 0 };
        char name[TDM_GGUF_KEY_NAME_MAX + 2];

        build_header(&b, 0, TDM_GGUF_KEYS_MAX + 1);
        assert_refused_unread(&b, "announces 4097 keys, at most 4096");
        build_header(&b, TDM_GGUF_TENSORS_MAX + 1, 0);
        assert_refused_unread(&b, "announces 16385 tensors, at most 16384");
        memset(name, 'k', sizeof(name));
        name[TDM_GGUF_KEY_NAME_MAX + 1] = 0;
        build_header(&b, 0, 1);
        build_key_u32(&b, name, 1);
        assert_refused_unread(&b, "257 characters, 1 to 256 are allowed");
}

/* 4 Mi empty strings in a hole of 32 MiB: allowed, counted, and the hole stays one. */
static void test_hole(void **state)
{
        struct gguf_builder b = { 0 };
        uint64_t n = UINT64_C(1) << 22, blocks, before, after, held;
        _Atomic uint64_t n_bytes = 5;
        atomic_bool cancelled = false;
        struct tdm_parse_limits limits = { .n_bytes = &n_bytes, .cancelled = &cancelled };
        _cleanup_(closep) int fd = -1;
        struct tdm_gguf *g = NULL;
        struct tdm_gguf_string s;
        struct tdm_error err;

        build_header(&b, 0, 1);
        build_array(&b, "strings", VALUE_STRING, n);
        fd = sparse_fd(&b, 24 + 64 + 8 * n);
        blocks = blocks_of(fd);

        limits.max_bytes = 1 << 20;
        assert_int_equal(tdm_gguf_open_within(&g, fd, "hole", &limits, &err), TDM_E_NO_MEMORY);
        assert_int_equal(n_bytes, 5);
        limits.max_bytes = 0;
        cancelled = true;
        assert_int_equal(tdm_gguf_open_within(&g, fd, "hole", &limits, &err), TDM_E_CANCELLED);
        assert_non_null(strstr(err.message, "cancelled"));
        assert_int_equal(n_bytes, 5);
        assert_null(g);
        cancelled = false;

        before = mallinfo2().uordblks + mallinfo2().hblkhd;
        assert_int_equal(tdm_gguf_open_within(&g, fd, "hole", &limits, &err), 0);
        after = mallinfo2().uordblks + mallinfo2().hblkhd;
        held = tdm_gguf_memory(g);
        assert_int_equal(n_bytes, 5 + held);
        assert_true(held >= 8 * n && held < 8 * n + 8 * n / 64);
#ifndef __SANITIZE_ADDRESS__ /* has its own allocator */
        assert_true(after - before > held / 10 * 9 && after - before < held / 10 * 11);
#endif
        assert_int_equal(blocks_of(fd), blocks);
        assert_int_equal(tdm_gguf_get_array_string(g, "strings", n - 1, &s), 0);
        assert_int_equal(s.size, 0);
        assert_int_equal(tdm_gguf_get_array_string(g, "strings", n, &s), -ERANGE);
        tdm_gguf_close(g);
}

/* The tables of keys, tensors and strings: in the same order as what they describe. */
static void test_memory(void **state)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        uint64_t offset = 0;
        char name[16];

        build_header(&b, TDM_GGUF_TENSORS_MAX, TDM_GGUF_KEYS_MAX);
        for (unsigned i = 0; i < TDM_GGUF_KEYS_MAX; i++) {
                snprintf(name, sizeof(name), "%x", i);
                build_key_bool(&b, name, true);
        }
        for (unsigned i = 0; i < TDM_GGUF_TENSORS_MAX; i++) {
                snprintf(name, sizeof(name), "%x", i);
                offset = build_tensor(&b, name, TDM_TYPE_F32, 1, 0, offset);
        }
        build_data(&b, offset);
        fd = build_fd(b.data, b.size);
        assert_int_equal(tdm_gguf_open(&g, fd, "tables", NULL), 0);
        assert_true(tdm_gguf_memory(g) < 5 * b.data_start);
        tdm_gguf_close(g);
        build_reset(&b);
}

/* Walking an array gives what asking for each element gives, on both sides of the marks. */
static void test_arrays(void **state)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *g = NULL;
        _cleanup_(closep) int fd = -1;
        struct tdm_gguf_array strings, numbers;
        struct tdm_gguf_string s, same;
        uint64_t u, v;
        double f;
        char text[8];

        build_header(&b, 0, 3);
        build_array(&b, "strings", VALUE_STRING, 200);
        for (unsigned i = 0; i < 200; i++) {
                snprintf(text, sizeof(text), "%u", i * i % 1000);
                build_string(&b, text);
        }
        build_array(&b, "numbers", VALUE_U16, 200);
        for (uint16_t i = 0; i < 200; i++)
                build_bytes(&b, &i, sizeof(i));
        build_key_u32(&b, "scalar", 1);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        assert_int_equal(tdm_gguf_open(&g, fd, "arrays", NULL), 0);
        assert_int_equal(tdm_gguf_array_begin(&strings, g, "nothing"), -ENOENT);
        assert_int_equal(tdm_gguf_array_begin(&strings, g, "scalar"), -EINVAL);
        assert_int_equal(tdm_gguf_array_begin(&strings, g, "strings"), 0);
        assert_int_equal(tdm_gguf_array_begin(&numbers, g, "numbers"), 0);
        assert_int_equal(tdm_gguf_array_next_u64(&strings, &u), -EINVAL);
        assert_int_equal(tdm_gguf_array_next_f64(&strings, &f), -EINVAL);
        assert_int_equal(tdm_gguf_array_next_string(&numbers, &s), -EINVAL);
        for (unsigned i = 0; i < 200; i++) {
                snprintf(text, sizeof(text), "%u", i * i % 1000);
                assert_int_equal(tdm_gguf_array_next_string(&strings, &s), 0);
                assert_int_equal(tdm_gguf_get_array_string(g, "strings", i, &same), 0);
                assert_ptr_equal(s.data, same.data);
                assert_true(s.size == strlen(text) && same.size == s.size && memcmp(s.data, text, s.size) == 0);
                if (i % 2) {
                        assert_int_equal(tdm_gguf_array_next_u64(&numbers, &u), 0);
                        assert_int_equal(tdm_gguf_get_array_u64(g, "numbers", i, &v), 0);
                        assert_true(u == v && u == i);
                } else {
                        assert_int_equal(tdm_gguf_array_next_f64(&numbers, &f), 0);
                        assert_true(f == i);
                }
        }
        assert_int_equal(tdm_gguf_array_next_string(&strings, &s), -ERANGE);
        assert_int_equal(tdm_gguf_array_next_u64(&numbers, &u), -ERANGE);
        assert_int_equal(tdm_gguf_array_next_f64(&numbers, &f), -ERANGE);
        tdm_gguf_close(g);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_terabyte), cmocka_unit_test(test_counts), cmocka_unit_test(test_hole),
                cmocka_unit_test(test_memory),   cmocka_unit_test(test_arrays),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
