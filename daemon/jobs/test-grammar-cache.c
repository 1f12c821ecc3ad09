/* The cache of compiled grammars: what is found, and that no user takes more than its share or pushes out another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/jobs/grammar-cache.h"

static struct tdm_grammar_key key_of(uint64_t uid, const char *source)
{
        return (struct tdm_grammar_key){ .identity = uid, .name = "", .source = source, .source_size = strlen(source) };
}

static struct tdm_grammar *compile(const char *source)
{
        struct tdm_grammar *g = NULL;
        struct tdm_error err;

        assert_int_equal(tdm_grammar_new_regex(&g, source, strlen(source), NULL, &err), 0);
        return g;
}

static void keep(struct tdm_grammar_cache *c, uint64_t uid, const char *source)
{
        struct tdm_grammar_key key = key_of(uid, source);
        struct tdm_grammar *g = compile(source);

        tdm_grammar_cache_keep(c, &key, g);
        tdm_grammar_unref(g);
}

static bool has(struct tdm_grammar_cache *c, uint64_t uid, const char *source)
{
        struct tdm_grammar_key key = key_of(uid, source);
        struct tdm_grammar *g = tdm_grammar_cache_find(c, &key);

        tdm_grammar_unref(g);
        return g != NULL;
}

static void test_found(void **state)
{
        struct tdm_grammar_cache c = { 0 };
        struct tdm_grammar_key key = key_of(1, "a+"), other;
        struct tdm_grammar *g = compile("a+"), *found;

        assert_null(tdm_grammar_cache_find(&c, &key));
        tdm_grammar_cache_keep(&c, &key, g);
        found = tdm_grammar_cache_find(&c, &key);
        assert_ptr_equal(found, g);
        tdm_grammar_unref(found);
        tdm_grammar_cache_keep(&c, &key, g); /* it is there */
        assert_int_equal(c.n, 1);
        assert_false(has(&c, 2, "a+"));
        assert_false(has(&c, 1, "a"));
        other = key;
        other.kind = 1;
        assert_null(tdm_grammar_cache_find(&c, &other));
        other = key;
        other.model = 1;
        assert_null(tdm_grammar_cache_find(&c, &other));
        other = key;
        other.flags = 1;
        assert_null(tdm_grammar_cache_find(&c, &other));
        other = key;
        other.name = "f";
        assert_null(tdm_grammar_cache_find(&c, &other));
        assert_int_equal(c.n_found, 1);
        tdm_grammar_cache_deinit(&c);
        assert_int_equal(c.bytes, 0);
        assert_true(tdm_grammar_bytes(g) > 0); /* this reference holds it */
        tdm_grammar_unref(g);
}

/* A user's 17th grammar takes the place of the one used longest ago. Another user's stay. */
static void test_user_entries(void **state)
{
        struct tdm_grammar_cache c = { 0 };
        char source[16];

        keep(&c, 2, "other");
        keep(&c, 1, "first");
        keep(&c, 1, "second");
        for (unsigned i = 2; i < TDM_GRAMMAR_CACHE_USER_ENTRIES; i++) {
                snprintf(source, sizeof(source), "n%u", i);
                keep(&c, 1, source);
        }
        assert_int_equal(c.n, TDM_GRAMMAR_CACHE_USER_ENTRIES + 1);
        assert_true(has(&c, 1, "first"));
        keep(&c, 1, "new");
        assert_int_equal(c.n, TDM_GRAMMAR_CACHE_USER_ENTRIES + 1);
        assert_true(has(&c, 1, "first"));
        assert_false(has(&c, 1, "second"));
        assert_true(has(&c, 1, "new"));
        assert_true(has(&c, 2, "other"));
        tdm_grammar_cache_deinit(&c);
}

/* A source of so many bytes, with a number of its own. */
static char *large(size_t size, unsigned number)
{
        char *source = malloc(size + 1);

        assert_non_null(source);
        memset(source, 'a', size);
        for (unsigned i = 0; i < 8; i++)
                source[i] = (char)('b' + (number >> i * 3 & 7));
        source[size] = 0;
        return source;
}

static void keep_large(struct tdm_grammar_cache *c, uint64_t uid, size_t size, unsigned number, struct tdm_grammar *g)
{
        char *source = large(size, number);
        struct tdm_grammar_key key = key_of(uid, source);

        tdm_grammar_cache_keep(c, &key, g);
        free(source);
}

static void test_bytes(void **state)
{
        struct tdm_grammar_cache c = { 0 };
        struct tdm_grammar *g = compile("a");
        size_t third = TDM_GRAMMAR_CACHE_USER_BYTES / 3 - 4096 - tdm_grammar_bytes(g) - TDM_GRAMMAR_CACHE_TABLES_BYTES;
        uint64_t before;
        unsigned number = 0;

        keep_large(&c, 1, TDM_GRAMMAR_CACHE_USER_BYTES, number++, g); /* alone too large */
        assert_int_equal(c.n, 0);
        keep(&c, 99, "small");
        for (unsigned i = 0; i < 10; i++) {
                keep_large(&c, 1, third, number++, g);
                assert_true(tdm_grammar_cache_bytes_of(&c, 1) <= TDM_GRAMMAR_CACHE_USER_BYTES);
        }
        assert_int_equal(c.n, 4);
        for (uint64_t uid = 2; uid < 20; uid++) {
                for (unsigned i = 0; i < 3; i++) {
                        keep_large(&c, uid, third, number++, g);
                        assert_true(c.bytes <= TDM_GRAMMAR_CACHE_BYTES);
                }
        }
        assert_true(has(&c, 99, "small")); /* it has less than any other */
        before = tdm_grammar_cache_bytes_of(&c, 99);
        for (unsigned i = 0; i < 100; i++)
                keep_large(&c, 1000 + i, 10, number++, g);
        assert_true(c.n <= TDM_GRAMMAR_CACHE_ENTRIES);
        assert_int_equal(tdm_grammar_cache_bytes_of(&c, 99), before);
        tdm_grammar_cache_deinit(&c);
        assert_int_equal(c.bytes, 0);
        assert_int_equal(c.n, 0);
        tdm_grammar_unref(g);
}

/* One user with all the entries it may have, and more users than there is room for. */
static void test_many_users(void **state)
{
        struct tdm_grammar_cache c = { 0 };
        char source[16];

        for (unsigned i = 0; i < TDM_GRAMMAR_CACHE_USER_ENTRIES; i++) {
                snprintf(source, sizeof(source), "n%u", i);
                keep(&c, 1, source);
        }
        for (uint64_t uid = 2; uid < 2 + TDM_GRAMMAR_CACHE_ENTRIES; uid++) {
                keep(&c, uid, "its own");
                assert_true(c.n <= TDM_GRAMMAR_CACHE_ENTRIES);
                if (uid < TDM_GRAMMAR_CACHE_ENTRIES)
                        assert_true(has(&c, 2, "its own"));
        }
        assert_int_equal(c.n, TDM_GRAMMAR_CACHE_ENTRIES);
        tdm_grammar_cache_deinit(&c);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_found),
                cmocka_unit_test(test_user_entries),
                cmocka_unit_test(test_bytes),
                cmocka_unit_test(test_many_users),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
