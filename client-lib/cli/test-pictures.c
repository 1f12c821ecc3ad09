/* Paths as terminals write them, and which of them are pictures. */
#include <setjmp.h>
#include <stdarg.h>

#include "client-lib/cli/pictures.h"
#include "client-lib/cli/typed-path.h"

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>

static void test_words(void **state)
{
        static const struct {
                const char *text;
                size_t n;
                const char *path;
        } cases[] = {
                { "/a/b.png rest", 8, "/a/b.png" },
                { "'/a b.png' rest", 10, "/a b.png" },
                { "'/it'\\''s.png'", 14, "/it's.png" },
                { "\"/a \\\"b\\\" \\x\"", 13, "/a \"b\" \\x" },
                { "/a\\ b\\'c", 8, "/a b'c" },
                { "file:///a%20b%C3%A9.png", 23, "/a b\xc3\xa9.png" },
                { "file://localhost/a%2fb%zz%2", 27, "/a/b%zz%2" },
                { "/a\\", 3, "/a\\" },
                { "~/x", 3, "/home/of mine/x" },
                { "~", 1, "~" },
                { "'/open", 0, NULL },
                { "file://elsewhere/a", 0, NULL },
                { "file:///a%00b", 0, NULL },
                { "''", 0, NULL },
                { "", 0, NULL },
                { " /a", 0, NULL },
        };

        setenv("HOME", "/home/of mine", 1);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                char *path = NULL;

                assert_int_equal(typed_word(cases[i].text, strlen(cases[i].text), &path), cases[i].n);
                if (cases[i].n > 0)
                        assert_string_equal(path, cases[i].path);
                free(path);
        }
        assert_true(typed_is_path("'/a", 3));
        assert_true(typed_is_path("../a", 4));
        assert_true(typed_is_path("file:///a", 9));
        assert_false(typed_is_path("/", 1));
        assert_false(typed_is_path("a/b.png", 7));
        assert_false(typed_is_path("", 0));
}

static void test_kinds(void **state)
{
        static const struct {
                const char *head;
                size_t size;
                const char *kind, *other;
        } cases[] = {
                { "\x89PNG\r\n\x1a\n", 8, "PNG", NULL },
                { "\x89PNG\r\n\x1a\n", 7, NULL, NULL },
                { "\xff\xd8\xff\xe0", 4, "JPEG", NULL },
                { "RIFF\0\0\0\0WEBPVP8 ", 16, "WebP", NULL },
                { "XXXX\0\0\0\0WEBP", 12, NULL, NULL },
                { "RIFF\0\0\0\0WAVE", 12, NULL, NULL },
                { "GIF89a", 6, NULL, "GIF" },
                { "\0\0\0\x1c"
                  "ftypavif",
                  12, NULL, "AVIF" },
                { "\0\0\0\x1c"
                  "ftypheic",
                  12, NULL, "HEIC" },
                { "", 0, NULL, NULL },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                const char *other = "?", *kind = picture_kind(cases[i].head, cases[i].size, &other);

                assert_true(kind ? cases[i].kind && strcmp(kind, cases[i].kind) == 0 : !cases[i].kind);
                assert_true(other ? cases[i].other && strcmp(other, cases[i].other) == 0 : !cases[i].other);
        }
}

static void make_file(const char *name, const char *data, size_t size)
{
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, size), size);
        close(fd);
}

/* Text and places of what is found in lines. A number in `places` is the byte, and the letter behind it the file. */
static void test_lines(void **state)
{
        static const struct {
                const char *line;
                enum typed_pictures typed;
                const char *text, *places;
        } cases[] = {
                { "what is ./a.png?", TYPED_PICTURES, "what is ?", "8a" },
                { "  ./a.png  ", TYPED_PICTURES, "", "0a" },
                { "./a.png what", TYPED_PICTURES, "what", "0a" },
                { "what './b c.jpg' './a.png'", TYPED_PICTURES, "what", "4b4a" },
                { "./b c.jpg ", TYPED_PICTURES, "", "0b" },
                { "./b c.jpg is", TYPED_NO_PICTURES, NULL, NULL },
                { "see ./b\\ c.jpg, then (./a.png) and ./a.png.", TYPED_PICTURES, "see , then (./a.png) and .",
                  "4b25a" },
                { "a.png is not taken, nor ./text or ./folder or ./pipe or ./none.png", TYPED_NO_PICTURES, NULL, NULL },
                { "don't ./a.png", TYPED_PICTURES, "don't", "5a" },
                { "'./a.png", TYPED_NO_PICTURES, NULL, NULL },
                { "", TYPED_NO_PICTURES, NULL, NULL },
                { "a ./x.gif", TYPED_REFUSED, NULL, NULL },
        };
        char folder[] = "/tmp/tandem-test-pictures-XXXXXX";

        assert_non_null(mkdtemp(folder));
        assert_int_equal(chdir(folder), 0);
        make_file("a.png", "\x89PNG\r\n\x1a\n", 8);
        make_file("b c.jpg", "\xff\xd8\xff\xe0", 4);
        make_file("x.gif", "GIF89a", 6);
        make_file("text", "a text", 6);
        assert_int_equal(mkdir("folder", 0700), 0);
        assert_int_equal(mkfifo("pipe", 0600), 0);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct cli_pictures found = { 0 };
                struct buf text = { 0 };
                char places[64] = "";
                size_t n = 0;

                assert_int_equal(pictures_find(cases[i].line, strlen(cases[i].line), &text, &found), cases[i].typed);
                if (cases[i].text) {
                        assert_int_equal(text.size, strlen(cases[i].text));
                        assert_memory_equal(text.data, cases[i].text, text.size);
                        for (size_t k = 0; k < found.n; k++)
                                n += (size_t)snprintf(places + n, sizeof(places) - n, "%zu%c", found.items[k].offset,
                                                      found.items[k].picture->name[0]);
                        assert_string_equal(places, cases[i].places);
                }
                cli_pictures_free(&found);
                buf_free(&text);
        }
        assert_true(picture_begins("./b c.jpg", 9));
        assert_true(picture_begins("./a.png what", 12));
        assert_false(picture_begins("/image ./a.png", 14));
        for (size_t i = 0; i < 4; i++)
                assert_int_equal(unlink((const char *const[]){ "a.png", "b c.jpg", "x.gif", "text" }[i]), 0);
        assert_int_equal(unlink("pipe"), 0);
        assert_int_equal(rmdir("folder"), 0);
        assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_words),
                cmocka_unit_test(test_kinds),
                cmocka_unit_test(test_lines),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
