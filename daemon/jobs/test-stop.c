/* The matcher of stop strings against the plain definition: the text up to the earliest match, whatever the pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/jobs/stop.h"

static struct tdm_stop *make(const char *const *strings, size_t n)
{
        struct tdm_stop_string s[TDM_MAX_STOPS];
        struct tdm_stop *stop;

        for (size_t i = 0; i < n; i++)
                s[i] = (struct tdm_stop_string){ strings[i], strlen(strings[i]) };
        assert_int_equal(tdm_stop_new(&stop, s, n, NULL), 0);
        return stop;
}

/* Feeds text in pieces of random size; out gets everything that came out. */
static size_t feed(struct tdm_stop *stop, const char *text, size_t size, unsigned seed, char *out, bool *ret_hit)
{
        char room[TDM_MAX_STOP_BYTES + 4096];
        size_t at = 0, n = 0;

        *ret_hit = false;
        while (at < size && !*ret_hit) {
                size_t piece = 1 + (size_t)rand_r(&seed) % 5, k;

                piece = TDM_MIN(piece, size - at);
                k = tdm_stop_push(stop, text + at, piece, room, ret_hit);
                memcpy(out + n, room, k);
                n += k;
                at += piece;
        }
        if (!*ret_hit)
                n += tdm_stop_finish(stop, out + n);
        return n;
}

static void test_plain(void **state)
{
        const char *strings[] = { "\n\n", "END" };
        struct tdm_stop *stop = make(strings, 2);
        char out[256];
        bool hit;

        assert_int_equal(tdm_stop_push(stop, "abcE", 4, out, &hit), 3); /* E may begin END */
        assert_false(hit);
        assert_int_equal(tdm_stop_push(stop, "N", 1, out, &hit), 0);
        assert_int_equal(tdm_stop_push(stop, "x", 1, out, &hit), 3);
        assert_memory_equal(out, "ENx", 3);
        assert_int_equal(tdm_stop_push(stop, "\n", 1, out, &hit), 0);
        assert_int_equal(tdm_stop_push(stop, "\nmore", 5, out, &hit), 0);
        assert_true(hit);
        tdm_stop_destroy(stop);

        stop = make(strings, 2);
        assert_int_equal(tdm_stop_push(stop, "EN", 2, out, &hit), 0);
        assert_int_equal(tdm_stop_finish(stop, out), 2);
        assert_memory_equal(out, "EN", 2);
        tdm_stop_destroy(stop);
}

static void test_random(void **state)
{
        unsigned seed = 1;

        for (int round = 0; round < 20000; round++) {
                char text[65], out[512], strings[3][8];
                const char *list[3];
                size_t n = 1 + (size_t)rand_r(&seed) % 3, size = 1 + (size_t)rand_r(&seed) % 64, want, got;
                struct tdm_stop *stop;
                bool hit, want_hit = false;

                for (size_t i = 0; i < n; i++) {
                        size_t len = 1 + (size_t)rand_r(&seed) % 6;

                        for (size_t k = 0; k < len; k++)
                                strings[i][k] = "ab"[rand_r(&seed) % 2];
                        strings[i][len] = '\0';
                        list[i] = strings[i];
                }
                for (size_t k = 0; k < size; k++)
                        text[k] = "aabc"[rand_r(&seed) % 4];
                text[size] = '\0';
                /* The text ends at the first moment at which a string is complete, before the earliest one that is.
                 * Pieces of one byte make that moment unique. */
                want = size;
                for (size_t end = 1; end <= size && !want_hit; end++)
                        for (size_t i = 0; i < n; i++) {
                                size_t len = strlen(strings[i]);

                                if (end >= len && memcmp(text + end - len, strings[i], len) == 0) {
                                        want = want_hit ? TDM_MIN(want, end - len) : end - len;
                                        want_hit = true;
                                }
                        }
                stop = make(list, n);
                got = 0;
                hit = false;
                for (size_t k = 0; k < size && !hit; k++)
                        got += tdm_stop_push(stop, text + k, 1, out + got, &hit);
                if (!hit)
                        got += tdm_stop_finish(stop, out + got);
                assert_int_equal(hit, want_hit);
                assert_int_equal(got, want);
                assert_memory_equal(out, text, got);
                tdm_stop_destroy(stop);

                /* In pieces: never a stop string in what came out, and nothing of the text before it lost. */
                stop = make(list, n);
                got = feed(stop, text, size, (unsigned)round, out, &hit);
                assert_int_equal(hit, want_hit);
                assert_memory_equal(out, text, got);
                assert_true(got <= want);
                for (size_t i = 0; i < n; i++)
                        assert_null(memmem(out, got, strings[i], strlen(strings[i])));
                tdm_stop_destroy(stop);
        }
}

static void test_refused(void **state)
{
        static char big[TDM_MAX_STOP_BYTES + 1];
        struct tdm_stop_string empty = { "", 0 }, long_one = { big, sizeof(big) }, half = { "\xc3", 1 };
        struct tdm_stop_string many[TDM_MAX_STOPS + 1];
        struct tdm_stop *stop;
        struct tdm_error err;

        memset(big, 'x', sizeof(big));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(many); i++)
                many[i] = (struct tdm_stop_string){ "x", 1 };
        assert_int_equal(tdm_stop_new(&stop, &empty, 1, &err), TDM_E_BAD_REQUEST);
        assert_int_equal(tdm_stop_new(&stop, &long_one, 1, &err), TDM_E_BAD_REQUEST);
        assert_int_equal(tdm_stop_new(&stop, &half, 1, &err), TDM_E_BAD_REQUEST);
        assert_int_equal(tdm_stop_new(&stop, many, TDM_ARRAY_SIZE(many), &err), TDM_E_BAD_REQUEST);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_plain),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
