/* Errors: names are stable and round-trip, messages are cut cleanly. Log: one line, no forged lines, levels. */
#include "common/error.h"
#include "common/log.h"
#include "common/utf8.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <setjmp.h>
#include <cmocka.h>

static void test_names(void **state)
{
        for (int i = 0; i < TDM_E_MAX; i++) {
                const char *name = tdm_error_name(i);

                assert_non_null(name);
                assert_true(strlen(name) > 0);
                assert_int_equal(tdm_error_from_name(name), i);
        }
        assert_string_equal(tdm_error_name(-ENOMEM), "internal");
        assert_string_equal(tdm_error_name(TDM_E_MAX), "internal");
        assert_string_equal(tdm_error_name(TDM_E_DEVICE_FAULT), "device-fault");
        assert_int_equal(tdm_error_from_name("no such name"), TDM_E_INTERNAL);
        assert_int_equal(tdm_error_from_name(""), TDM_E_INTERNAL);
}

static void test_set_and_prefix(void **state)
{
        struct tdm_error e = { 0 };

        assert_int_equal(tdm_error_set(NULL, TDM_E_BUSY, "x"), TDM_E_BUSY);
        assert_int_equal(tdm_error_set(&e, -ENOENT, "cannot open %s", "a.gguf"), -ENOENT);
        assert_int_equal(e.code, -ENOENT);
        assert_string_equal(e.message, "cannot open a.gguf");
        assert_int_equal(tdm_error_prefix(&e, "model %d", 7), -ENOENT);
        assert_string_equal(e.message, "model 7: cannot open a.gguf");
        /* an argument may be the message itself */
        tdm_error_set(&e, TDM_E_NO_MODEL, "again, %s", e.message);
        assert_string_equal(e.message, "again, model 7: cannot open a.gguf");
        tdm_error_prefix(&e, "%s", e.message);
        assert_string_equal(e.message, "again, model 7: cannot open a.gguf: again, model 7: cannot open a.gguf");
}

/* Every cut ends in the ellipsis and never in half a character, at every alignment. */
static void test_cut(void **state)
{
        char big[2000];

        for (unsigned shift = 0; shift < 4; shift++) {
                struct tdm_error e;
                size_t n = 0, len;

                while (n < shift)
                        big[n++] = 'x';
                while (n + 3 < sizeof(big)) {
                        memcpy(big + n, "\xe2\x82\xac", 3);
                        n += 3;
                }
                big[n] = '\0';
                tdm_error_set(&e, 1, "%s", big);
                len = strlen(e.message);
                assert_true(len < TDM_ERROR_MESSAGE_MAX);
                assert_true(len > TDM_ERROR_MESSAGE_MAX - 8);
                assert_string_equal(e.message + len - 3, "\xe2\x80\xa6");
                assert_int_equal((len - 3 - shift) % 3, 0);

                tdm_error_prefix(&e, "p");
                assert_memory_equal(e.message, "p: ", 3);
                len = strlen(e.message);
                assert_string_equal(e.message + len - 3, "\xe2\x80\xa6");
                tdm_error_prefix(&e, "%s", big);
                assert_true(strlen(e.message) < TDM_ERROR_MESSAGE_MAX);
        }
}

static size_t log_to_socket(char *out, size_t size, bool to_socket, enum tdm_log_level level, const char *text)
{
        int fds[2], keep = dup(STDERR_FILENO);
        ssize_t n;

        if (to_socket)
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        else
                assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        assert_true(dup2(fds[1], STDERR_FILENO) >= 0);
        tdm_log_init("testing");
        errno = EXDEV;
        tdm_log(level, "%s", text);
        assert_int_equal(errno, EXDEV);
        dup2(keep, STDERR_FILENO);
        n = read(fds[0], out, size - 1);
        close(fds[0]);
        close(fds[1]);
        close(keep);
        if (n < 0)
                n = 0;
        out[n] = '\0';
        return (size_t)n;
}

static size_t log_to(char *out, size_t size, enum tdm_log_level level, const char *text)
{
        return log_to_socket(out, size, false, level, text);
}

/* What is quoted from outside never makes a message that is not UTF-8. */
static void test_mended(void **state)
{
        struct tdm_error e;

        tdm_error_set(&e, 1, "no model \"%s\"", "a\xff\xc3[\xed\xa0\x80z");
        assert_string_equal(e.message, "no model \"a??[???z\"");
        tdm_error_set(&e, 1, "no model \"%.4s\"", "abc\xe2\x82\xac");
        assert_string_equal(e.message, "no model \"abc?\"");
        tdm_error_prefix(&e, "\xe2\x82\xac %.1s", "\xc3\xa9");
        assert_string_equal(e.message, "\xe2\x82\xac ?: no model \"abc?\"");
}

/* A terminal or a log that shows a message must not obey what it quotes. */
static void test_escaped(void **state)
{
        struct tdm_error e;
        char name[41] = "";

        tdm_error_set(&e, 1, "no model \"%s\"", "a\x1b[2J\nb\x7f\xc2\x9b\xc3\xa9");
        assert_string_equal(e.message, "no model \"a\\x1b[2J\\x0ab\\x7f\\x9b\xc3\xa9\"");
        memset(name, 1, 40);
        tdm_error_set(&e, 1, "%40s%40s%40s%40s%40s%40s%40s%40s%40s%40s", name, name, name, name, name, name, name, name,
                      name, name);
        assert_true(strlen(e.message) < TDM_ERROR_MESSAGE_MAX);
        assert_string_equal(e.message + strlen(e.message) - 3, "\xe2\x80\xa6");
        assert_int_equal(tdm_utf8_cut("abc\xe2\x82\xac", 9), 6);
        for (size_t size = 3; size < 6; size++)
                assert_int_equal(tdm_utf8_cut("abc\xe2\x82\xacz", size), 3);
        assert_int_equal(tdm_utf8_cut("abc\xe2\x82\xacz", 6), 6);
        tdm_error_set(&e, 1, "no model \"%.*s\"", TDM_UTF8_CUT("abc\xe2\x82\xac", 4));
        assert_string_equal(e.message, "no model \"abc\"");
}

/* Text that is kept is cut between characters, and bytes that are not UTF-8 become question marks. */
static void test_utf8(void **state)
{
        static const struct {
                const char *from, *to;
                size_t size;
        } copies[] = {
                { "", "", 1 },
                { "a", "", 1 },
                { "abc", "ab", 3 },
                { "abc", "abc", 4 },
                { "a\xc3\xa9", "a", 3 },
                { "a\xc3\xa9", "a\xc3\xa9", 4 },
                { "\xf0\x9f\xa6\x8a!", "", 4 },
                { "\xf0\x9f\xa6\x8a!", "\xf0\x9f\xa6\x8a", 5 },
                { "\xa2\xff!", "?\?!", 9 },
                { "\xa2\xff!", "??", 3 },
                { "x\xe2\x82", "x??", 9 },
                { "\xed\xa0\x80", "???", 9 },
        };
        char text[16];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(copies); i++) {
                memset(text, 0x7e, sizeof(text));
                tdm_utf8_copy(text, copies[i].size, copies[i].from);
                assert_string_equal(text, copies[i].to);
                for (size_t k = copies[i].size; k < sizeof(text); k++)
                        assert_int_equal(text[k], 0x7e);
        }
        assert_true(tdm_utf8_is_valid("a\xe2\x82\xac", 4));
        assert_false(tdm_utf8_is_valid("a\xe2\x82\xac", 3));
        assert_false(tdm_utf8_is_valid("\xa2", 1));
        snprintf(text, sizeof(text), "%s", "a\xa2\xe2\x82\xac\xe2");
        assert_ptr_equal(tdm_utf8_mend(text), text);
        assert_string_equal(text, "a?\xe2\x82\xac?");
}

static void test_log(void **state)
{
        char out[8192], big[5000];

        unsetenv("TANDEM_LOG");
        unsetenv("JOURNAL_STREAM");
        log_to(out, sizeof(out), TDM_LOG_WARNING, "hello");
        assert_string_equal(out, "testing: hello\n");
        log_to(out, sizeof(out), TDM_LOG_INFO, "evil\n<0>forged\x1b[31m");
        assert_string_equal(out, "testing: evil?<0>forged?[31m\n");
        /* The journal reads the level from the line. */
        log_to_socket(out, sizeof(out), true, TDM_LOG_WARNING, "hello");
        assert_string_equal(out, "<4>testing: hello\n");
        assert_int_equal(log_to(out, sizeof(out), TDM_LOG_DEBUG, "quiet"), 0);

        memset(big, 'a', sizeof(big) - 1);
        big[sizeof(big) - 1] = '\0';
        assert_true(log_to(out, sizeof(out), TDM_LOG_ERROR, big) <= 2048);
        assert_int_equal(out[strlen(out) - 1], '\n');
        assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);

        setenv("TANDEM_LOG", "debug", 1);
        log_to(out, sizeof(out), TDM_LOG_DEBUG, "loud");
        assert_string_equal(out, "testing: loud\n");
        assert_true(tdm_log_enabled(TDM_LOG_DEBUG));
        setenv("TANDEM_LOG", "error", 1);
        assert_int_equal(log_to(out, sizeof(out), TDM_LOG_WARNING, "quiet"), 0);
        setenv("TANDEM_LOG", "chatty", 1);
        tdm_log_set_level(TDM_LOG_INFO);
        log_to(out, sizeof(out), TDM_LOG_DEBUG, "quiet");
        assert_non_null(strstr(out, "TANDEM_LOG=chatty is not a level"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),  cmocka_unit_test(test_set_and_prefix), cmocka_unit_test(test_cut),
                cmocka_unit_test(test_mended), cmocka_unit_test(test_escaped),        cmocka_unit_test(test_utf8),
                cmocka_unit_test(test_log),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
