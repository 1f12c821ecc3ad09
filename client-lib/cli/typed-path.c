/* See typed-path.h. */
#include "client-lib/cli/typed-path.h"
#include "common/util.h"

static bool begins_with(const char *text, size_t size, const char *with)
{
        size_t n = strlen(with);

        return size >= n && memcmp(text, with, n) == 0;
}

static bool is_blank(char c)
{
        return c == ' ' || c == '\t' || c == '\n';
}

static int hex_of(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Of file:///a%20b and file://localhost/a. False: another machine's, or bytes that no path has. */
static bool read_url(char *path)
{
        char *from = path + strlen("file://"), *to = path;

        if (begins_with(from, strlen(from), "localhost/"))
                from += strlen("localhost");
        if (*from != '/')
                return false;
        for (; *from; from++) {
                int high = *from == '%' ? hex_of(from[1]) : -1, low = high >= 0 ? hex_of(from[2]) : -1;

                if (low < 0) {
                        *to++ = *from;
                        continue;
                }
                if (high == 0 && low == 0)
                        return false;
                *to++ = (char)(high << 4 | low);
                from += 2;
        }
        *to = '\0';
        return true;
}

/* Takes over the text. */
static char *path_of(char *text)
{
        const char *home = getenv("HOME");
        char *path = NULL;

        if (begins_with(text, strlen(text), "file://")) {
                if (read_url(text))
                        return text;
        } else if (begins_with(text, strlen(text), "~/") && home && *home) {
                if (asprintf(&path, "%s%s", home, text + 1) < 0)
                        path = NULL;
        } else {
                return text;
        }
        free(text);
        return path;
}

char *typed_plain(const char *text, size_t size)
{
        char *copy = strndup(text, size);

        return copy ? path_of(copy) : NULL;
}

size_t typed_word(const char *text, size_t size, char **ret)
{
        char *word = malloc(size + 1), quote = '\0';
        size_t at = 0, n = 0;

        if (!word)
                return 0;
        for (; at < size && (quote || !is_blank(text[at])); at++) {
                char c = text[at];
                bool more = at + 1 < size;

                if (quote && c == quote)
                        quote = '\0';
                else if (!quote && (c == '\'' || c == '"'))
                        quote = c;
                else if (c == '\\' && more && (!quote || (quote == '"' && strchr("\"\\$`", text[at + 1]))))
                        word[n++] = text[++at];
                else
                        word[n++] = c;
        }
        word[n] = '\0';
        if (quote || n == 0) {
                free(word);
                return 0;
        }
        *ret = path_of(word);
        return *ret ? at : 0;
}

bool typed_is_path(const char *text, size_t size)
{
        static const char *const begins[] = { "/", "~/", "./", "../", "file://" };

        if (size > 0 && (*text == '\'' || *text == '"'))
                text++, size--;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(begins); i++)
                if (begins_with(text, size, begins[i]) && size > strlen(begins[i]))
                        return true;
        return false;
}
