/* See report.h. The words are looked for in the finished text, so that no section can forget one. */
#include "client-lib/cli/report/report.h"

#include <ctype.h>
#include <pwd.h>

static bool is_word(char c)
{
        return isalnum((unsigned char)c) || c == '_';
}

static void become_text(struct buf *text, struct buf *made)
{
        made->failed |= text->failed;
        buf_free(text);
        *text = *made;
}

/* Puts `by` where `what` stands; a word only where no letter, digit or _ is beside it. */
static void replace_text(struct buf *text, const char *what, const char *by, bool word)
{
        struct buf made = { 0 };
        size_t n = strlen(what), at = 0;

        if (n == 0 || text->failed)
                return;
        while (at < text->size) {
                char *found = memmem(text->data + at, text->size - at, what, n);
                size_t here = found ? (size_t)(found - text->data) : text->size;
                bool apart = found && (!word || ((here == 0 || !is_word(text->data[here - 1])) &&
                                                 (here + n == text->size || !is_word(text->data[here + n]))));

                buf_add(&made, text->data + at, here - at);
                if (found)
                        buf_puts(&made, apart ? by : what);
                at = here + (found ? n : 0);
        }
        become_text(text, &made);
}

/* After `from` everything up to one of the bytes in `until` goes; `by` stands for both. */
static void cut_names(struct buf *text, const char *from, const char *until, const char *by)
{
        struct buf made = { 0 };
        size_t n = strlen(from), at = 0;

        while (at < text->size && !text->failed) {
                char *found = memmem(text->data + at, text->size - at, from, n);
                size_t here = found ? (size_t)(found - text->data) : text->size;

                buf_add(&made, text->data + at, here - at);
                at = here;
                if (!found)
                        break;
                buf_puts(&made, by);
                at += n;
                while (at < text->size && !strchr(until, text->data[at]))
                        at++;
        }
        become_text(text, &made);
}

/* "path":"/somewhere/x.gguf" becomes "path":"x.gguf". */
static void cut_folders(struct buf *text)
{
        static const char key[] = "\"path\":\"";
        struct buf made = { 0 };
        size_t at = 0;

        while (at < text->size && !text->failed) {
                char *found = memmem(text->data + at, text->size - at, key, sizeof(key) - 1);
                size_t here = found ? (size_t)(found - text->data) + sizeof(key) - 1 : text->size, name;

                buf_add(&made, text->data + at, here - at);
                at = name = here;
                while (at < text->size && text->data[at] != '"')
                        if (text->data[at++] == '/')
                                name = at;
                buf_add(&made, text->data + name, at - name);
        }
        become_text(text, &made);
}

void report_redact(struct buf *text)
{
        const char *home = getenv("HOME");
        const struct passwd *user = getpwuid(geteuid());
        char host[256] = "";

        buf_add(text, "", 0);
        if (text->failed)
                return;
        cut_folders(text);
        if (home && strlen(home) > 1)
                replace_text(text, home, "~", false);
        cut_names(text, "/home/", "/ \"'`\n:,)", "~");
        cut_names(text, "/run/user/", "/ \"'`\n:,)", "/run/user/UID");
        /* root and tandem are words of the report itself */
        if (user && strcmp(user->pw_name, "root") != 0 && strcmp(user->pw_name, "tandem") != 0)
                replace_text(text, user->pw_name, "USER", true);
        if (gethostname(host, sizeof(host) - 1) == 0 && strcmp(host, "localhost") != 0)
                replace_text(text, host, "HOST", true);
}
