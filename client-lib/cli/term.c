/* See term.h.
 *
 * Standard output is written with write(2) from an own buffer: stdio loses data when a signal interrupts it, and a
 * reader that went away must be told from a full disk. Nothing here may keep Ctrl-C waiting: a terminal that is stopped
 * (Ctrl-S) or a pipe that is not read blocks write(2), so a timer that the signal handler starts ends the process. */
#include "client-lib/cli/term.h"
#include "client-lib/cli/json.h"
#include "client-lib/cli/wrap.h"

#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <wchar.h>

#define OUT_BUFFER_BYTES 8192u
#define CANCEL_GRACE_US 70000

bool term_stdin_tty, term_stdout_tty, term_stderr_tty;

static char out_buffer[OUT_BUFFER_BYTES];
static size_t out_used;
static int out_error;
static bool out_at_line_start = true;

/* Where the model's text stands on the terminal's line, and the word that it ends in. */
static struct {
        unsigned column, columns_of_word;
        size_t bytes_of_word;
        char word[192];
        bool off;
        /* What the line begins with: blanks, then the mark of a list's item. Lines that go on stand below its text. */
        enum { MARGIN_BLANKS, MARGIN_DIGITS, MARGIN_MARK, MARGIN_OVER } margin;
        unsigned hang;
} wrap;

/* The line that is being written, while lines are broken (out_lines()). */
static struct buf begun_line;
static bool lines_are_wrapped;

static bool term_dumb, term_colours;
static bool progress_on, progress_below;
/* Takes the progress line off the screen. The signal handler reads it. */
static const char *volatile progress_erase;

static volatile sig_atomic_t signal_seen, signal_count, signal_mode;
static void (*volatile signal_restore)(void);
static int signal_pipe[2] = { -1, -1 };

void term_init(void)
{
        const char *term = getenv("TERM");

        /* Texts are UTF-8 whatever the locale says; numbers stay as C has them. */
        if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
                (void)setlocale(LC_CTYPE, "C.UTF-8");
        term_stdin_tty = isatty(STDIN_FILENO);
        term_stdout_tty = isatty(STDOUT_FILENO);
        term_stderr_tty = isatty(STDERR_FILENO);
        term_dumb = !term || !*term || strcmp(term, "dumb") == 0;
        term_set_colour(TERM_COLOUR_AUTO);
}

void term_set_colour(enum term_colour when)
{
        const char *no_color = getenv("NO_COLOR"); /* https://no-color.org */
        bool automatic = term_stdout_tty && !term_dumb && (!no_color || !*no_color);

        term_colours = when == TERM_COLOUR_ALWAYS || (when == TERM_COLOUR_AUTO && automatic);
}

/* ---- standard output --------------------------------------------------------------------------------------------- */

void out_flush(void)
{
        size_t done = 0;

        while (done < out_used && !out_error) {
                ssize_t n = write(STDOUT_FILENO, out_buffer + done, out_used - done);

                if (n >= 0) {
                        done += (size_t)n;
                } else if (errno == EAGAIN) { /* somebody left it non-blocking */
                        struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };

                        (void)poll(&p, 1, -1);
                } else if (errno != EINTR) {
                        out_error = errno;
                }
                if (done < out_used && signal_seen && signal_mode == SIGNAL_CANCEL)
                        break; /* Ctrl-C while nobody reads: the job's end matters more than its text */
        }
        out_used = 0;
}

/* One column less than there are: at the very edge terminals differ in where the cursor is. 0: nothing is wrapped. */
static unsigned columns_of_terminal(int fd)
{
        struct winsize size = { 0 };

        return term_dumb || ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_col < 10 ? 0 : size.ws_col - 1u;
}

static void out_plain(const void *data, size_t size)
{
        const char *p = data;

        if (size > 0)
                out_at_line_start = p[size - 1] == '\n';
        if (out_at_line_start) {
                wrap.column = wrap.columns_of_word = wrap.hang = 0;
                wrap.bytes_of_word = 0;
                wrap.margin = MARGIN_BLANKS;
        }
        while (size > 0 && !out_error) {
                size_t n = TDM_MIN(size, OUT_BUFFER_BYTES - out_used);

                memcpy(out_buffer + out_used, p, n);
                out_used += n;
                p += n;
                size -= n;
                if (out_used == OUT_BUFFER_BYTES)
                        out_flush();
        }
}

/* Whole lines go out wrapped; the rest waits for its end. */
static void out_line_part(const char *text, size_t size)
{
        while (size > 0) {
                const char *end = memchr(text, '\n', size);
                size_t n = end ? (size_t)(end - text) : size;
                struct buf wrapped = { 0 };

                buf_add(&begun_line, text, n);
                if (!end)
                        return;
                wrap_line(&wrapped, begun_line.data, begun_line.size, columns_of_terminal(STDOUT_FILENO), 2);
                buf_puts(&wrapped, "\n");
                if (wrapped.failed || begun_line.failed)
                        out_error = ENOMEM;
                else
                        out_plain(wrapped.data, wrapped.size);
                buf_free(&wrapped);
                buf_free(&begun_line);
                text += n + 1;
                size -= n + 1;
        }
}

void out_write(const void *data, size_t size)
{
        if (lines_are_wrapped)
                out_line_part(data, size);
        else
                out_plain(data, size);
}

void out_lines(bool wrapped)
{
        struct buf rest = begun_line;

        begun_line = (struct buf){ 0 };
        lines_are_wrapped = wrapped && term_stdout_tty;
        if (rest.size > 0)
                out_plain(rest.data, rest.size);
        buf_free(&rest);
}

void out_puts(const char *text)
{
        out_write(text, strlen(text));
}

void out_printf(const char *fmt, ...)
{
        _cleanup_(freep) char *text = NULL;
        va_list args;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0) {
                text = NULL;
                out_error = ENOMEM;
        }
        va_end(args);
        if (text)
                out_puts(text);
}

void out_wrap(bool on)
{
        wrap.off = !on;
}

static unsigned wrap_width(void)
{
        return wrap.off ? 0 : columns_of_terminal(STDOUT_FILENO);
}

unsigned out_columns(void)
{
        return term_stdout_tty ? columns_of_terminal(STDOUT_FILENO) : 0;
}

static unsigned columns_of(const char *text, size_t size)
{
        mbstate_t state = { 0 };
        unsigned columns = 0;
        wchar_t c;

        for (size_t i = 0, n; i < size; i += n) {
                n = mbrtowc(&c, text + i, size - i, &state);
                if (n == 0 || n > size - i)
                        return columns + 1;
                columns += (unsigned)TDM_MAX(wcwidth(c), 0);
        }
        return columns;
}

/* A character that comes at wrap.column, as part of what the line begins with. */
static void note_margin(const char *text, size_t size)
{
        bool bullet = (size == 1 && strchr("-*+", *text)) || (size == 3 && memcmp(text, "\xe2\x80\xa2", 3) == 0);
        bool blank = *text == ' ';

        switch (wrap.margin) {
        case MARGIN_BLANKS:
                if (blank)
                        break;
                wrap.hang = wrap.column;
                wrap.margin = bullet ? MARGIN_MARK : *text >= '0' && *text <= '9' ? MARGIN_DIGITS : MARGIN_OVER;
                break;
        case MARGIN_DIGITS:
                if (*text == '.' || *text == ')')
                        wrap.margin = MARGIN_MARK;
                else if (*text < '0' || *text > '9')
                        wrap.margin = MARGIN_OVER;
                break;
        case MARGIN_MARK:
                if (blank)
                        wrap.hang = wrap.column + 1;
                wrap.margin = MARGIN_OVER;
                break;
        case MARGIN_OVER:
                break;
        }
}

/* The same line goes on below, where its text began. */
static void break_line(unsigned width)
{
        unsigned hang = wrap.hang * 2 > width ? 0 : wrap.hang, whole = wrap.hang;

        out_puts("\n");
        if (hang > 0)
                out_printf("%*s", (int)hang, "");
        wrap.column = hang;
        wrap.hang = whole;
        wrap.margin = MARGIN_OVER;
}

/* One character as it is shown. Where a word does not fit the line's rest, it is taken back and begins the next one: so
 * it can be shown as it comes, piece by piece. */
static void out_character(const char *text, size_t size, unsigned width)
{
        unsigned columns = columns_of(text, size);
        bool blank = size == 1 && (*text == ' ' || *text == '\t' || *text == '\n');

        note_margin(text, size);
        if (width > 0 && *text == ' ' && wrap.column >= width) {
                break_line(width); /* in the place of the space */
                return;
        }
        if (width > 0 && !blank && wrap.column + columns > width && wrap.column > 0) {
                size_t bytes = wrap.bytes_of_word;
                unsigned moved = wrap.columns_of_word;

                if (bytes > 0 && moved < wrap.column && moved <= width / 2) {
                        char word[sizeof(wrap.word)];

                        memcpy(word, wrap.word, bytes);
                        out_printf("\033[%uD\033[K", moved);
                        break_line(width);
                        out_write(word, bytes);
                        memcpy(wrap.word, word, bytes);
                        wrap.bytes_of_word = bytes;
                        wrap.columns_of_word = moved;
                        wrap.column += moved;
                } else {
                        break_line(width);
                }
        }
        out_write(text, size);
        if (*text == '\n')
                return;
        wrap.column = *text == '\t' ? (wrap.column / 8 + 1) * 8 : wrap.column + columns;
        if (blank || wrap.bytes_of_word + size > sizeof(wrap.word)) {
                wrap.bytes_of_word = wrap.columns_of_word = 0;
        } else {
                memcpy(wrap.word + wrap.bytes_of_word, text, size);
                wrap.bytes_of_word += size;
                wrap.columns_of_word += columns;
        }
}

void out_text(const char *text, size_t size)
{
        unsigned width;

        const unsigned char *s = (const unsigned char *)text;

        if (!term_stdout_tty) {
                out_write(text, size);
                return;
        }
        width = wrap_width();
        for (size_t i = 0; i < size;) {
                size_t n = utf8_char_bytes(s + i, size - i);
                char escaped[8];

                if (n == 0) {
                        out_character("\xef\xbf\xbd", 3, width);
                        n = 1;
                } else if ((s[i] < 0x20 && s[i] != '\n' && s[i] != '\t') || s[i] == 0x7f) {
                        snprintf(escaped, sizeof(escaped), "\\x%02x", s[i]);
                        out_character(escaped, strlen(escaped), width);
                } else if (n == 2 && s[i] == 0xc2 && s[i + 1] < 0xa0) { /* C1, which some terminals obey */
                        snprintf(escaped, sizeof(escaped), "\\u%04x", s[i + 1]);
                        out_character(escaped, strlen(escaped), width);
                } else {
                        out_character(text + i, n, width);
                }
                i += n;
        }
}

void term_style(unsigned style)
{
        static unsigned before;
        bool at_line_start = out_at_line_start;

        if (!term_colours || style == before)
                return;
        if (before & (TERM_BOLD | TERM_DIM))
                out_puts("\033[22m"); /* neither of them */
        if (before & (TERM_GREEN | TERM_YELLOW | TERM_RED | TERM_CYAN))
                out_puts("\033[39m");
        before = style;
        if (style & TERM_BOLD)
                out_puts("\033[1m");
        if (style & TERM_DIM)
                out_puts("\033[2m");
        if (style & TERM_GREEN)
                out_puts("\033[32m");
        if (style & TERM_YELLOW)
                out_puts("\033[33m");
        if (style & TERM_RED)
                out_puts("\033[31m");
        if (style & TERM_CYAN)
                out_puts("\033[36m");
        out_at_line_start = at_line_start;
}

void buf_add_state(struct buf *to, const char *state)
{
        static const struct {
                const char *state, *begin;
        } looks[] = {
                { "ready", "\033[32m" },       { "loaded", "\033[32m" },     { "decode", "\033[32m" },
                { "prefill", "\033[32m" },     { "starting", "\033[33m" },   { "loading", "\033[33m" },
                { "restarting", "\033[33m" },  { "recovering", "\033[33m" }, { "queued", "\033[33m" },
                { "quarantined", "\033[31m" }, { "failed", "\033[31m" },
        };
        const char *begin = NULL;

        for (size_t i = 0; term_colours && i < TDM_ARRAY_SIZE(looks); i++)
                if (strcmp(looks[i].state, state) == 0)
                        begin = looks[i].begin;
        buf_printf(to, "%s%s%s", begin ? begin : "", term_safe(state), begin ? "\033[39m" : "");
}

void out_state(const char *state)
{
        struct buf text = { 0 };

        buf_add_state(&text, state);
        if (!text.failed)
                out_write(text.data, text.size);
        buf_free(&text);
}

bool term_has_colours(void)
{
        return term_colours;
}

bool out_mid_line(void)
{
        return !out_at_line_start;
}

bool out_broken(void)
{
        return out_error != 0;
}

int out_finish(void)
{
        out_flush();
        if (out_error == 0 || out_error == EPIPE)
                return 0;
        return complain("cannot write to standard output: %s", strerror(out_error));
}

/* ---- stderr ------------------------------------------------------------------------------------------------------ */

static void stderr_write(const char *text, size_t size)
{
        while (size > 0) {
                ssize_t n = write(STDERR_FILENO, text, size);

                if (n < 0 && errno != EINTR)
                        return;
                if (n > 0) {
                        text += n;
                        size -= (size_t)n;
                }
                if (size > 0 && signal_seen && signal_mode == SIGNAL_CANCEL)
                        return;
        }
}

/* If the model's text stands in the middle of a line, the progress goes on the line below: ESC D makes room without
 * moving sideways, ESC 7 and ESC 8 remember where the text goes on. */
void progress_show(const char *fmt, ...)
{
        bool below = term_stdout_tty && out_mid_line();
        struct winsize size = { 0 };
        struct buf line = { 0 };
        _cleanup_(freep) char *text = NULL;
        size_t columns, bytes = 0;
        va_list args;
        int n;

        if (!term_stderr_tty || term_dumb)
                return;
        va_start(args, fmt);
        n = vasprintf(&text, fmt, args);
        va_end(args);
        if (n < 0) {
                text = NULL;
                return;
        }
        out_flush();
        columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
        for (size_t c = 0; text[bytes] && c < columns; c++) {
                size_t char_bytes = utf8_char_bytes((const unsigned char *)text + bytes, strlen(text + bytes));

                bytes += TDM_MAX(char_bytes, (size_t)1);
        }
        if (below || progress_below)
                progress_clear(); /* on one line the new text simply replaces the old */
        progress_below = below;
        buf_puts(&line, below ? "\033D\033[A\0337\033D\r" : "\r");
        buf_add(&line, text, bytes);
        buf_puts(&line, "\033[K");
        if (!line.failed) {
                progress_erase = below ? "\r\033[K\0338" : "\r\033[K";
                progress_on = true;
                stderr_write(line.data, line.size);
        }
        buf_free(&line);
}

void progress_clear(void)
{
        if (!progress_on)
                return;
        stderr_write(progress_erase, strlen(progress_erase));
        progress_erase = NULL;
        progress_on = false;
}

const char *term_safe(const char *text)
{
        static char ring[8][1200];
        static unsigned next;
        char *to = ring[next++ % TDM_ARRAY_SIZE(ring)];
        size_t used = 0;

        while (*text && used + 4 < sizeof(ring[0])) {
                size_t n = utf8_char_bytes((const unsigned char *)text, strnlen(text, 4));
                unsigned char c = (unsigned char)*text;

                if (n == 0 || c < 0x20 || c == 0x7f || (n == 2 && c == 0xc2 && (unsigned char)text[1] < 0xa0))
                        to[used++] = '?';
                else
                        for (size_t i = 0; i < n; i++)
                                to[used++] = text[i];
                text += TDM_MAX(n, (size_t)1);
        }
        to[used] = '\0';
        return to;
}

int write_all(int fd, const char *data, size_t size)
{
        while (size > 0) {
                ssize_t n = write(fd, data, size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                data += n;
                size -= (size_t)n;
        }
        return 0;
}

int complain(const char *fmt, ...)
{
        _cleanup_(freep) char *text = NULL;
        struct buf line = { 0 }, wrapped = { 0 };
        va_list args;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0)
                text = NULL;
        va_end(args);
        out_flush();
        progress_clear();
        if (term_stdout_tty && term_stderr_tty && out_mid_line())
                stderr_write("\n", 1);
        buf_printf(&line, "tandem: %s", term_safe(text ? text : fmt));
        if (!line.failed)
                wrap_line(&wrapped, line.data, line.size, term_stderr_tty ? columns_of_terminal(STDERR_FILENO) : 0, 8);
        buf_puts(&wrapped, "\n");
        if (!wrapped.failed)
                stderr_write(wrapped.data, wrapped.size);
        buf_free(&wrapped);
        buf_free(&line);
        return 1;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static void leave_now(void)
{
        const char *erase = progress_erase;

        if (signal_restore)
                signal_restore();
        if (erase) {
                /* Never wait for a terminal that does not take it. */
                struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

                if (poll(&p, 1, 0) > 0 && (p.revents & POLLOUT))
                        (void)!write(STDERR_FILENO, erase, strlen(erase));
        }
        _exit(130);
}

static void on_alarm(int signo)
{
        leave_now();
}

static void on_end_signal(int signo)
{
        static const struct itimerval grace = { .it_value = { .tv_usec = CANCEL_GRACE_US } };
        int saved = errno;

        signal_seen = 1;
        signal_count = signal_count + 1;
        if (signal_mode == SIGNAL_EXIT || (signal_mode == SIGNAL_ANSWER && signal_count > 1))
                leave_now();
        if (signal_mode == SIGNAL_CANCEL && signal_count == 1)
                (void)setitimer(ITIMER_REAL, &grace, NULL);
        (void)!write(signal_pipe[1], "", 1);
        errno = saved;
}

void signal_init(void)
{
        struct sigaction action = { .sa_handler = on_end_signal };
        sigset_t set;

        if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) < 0)
                signal_pipe[0] = signal_pipe[1] = -1;
        sigemptyset(&action.sa_mask);
        sigaddset(&action.sa_mask, SIGINT);
        sigaddset(&action.sa_mask, SIGTERM);
        (void)sigaction(SIGINT, &action, NULL);
        (void)sigaction(SIGTERM, &action, NULL);
        action.sa_handler = on_alarm;
        (void)sigaction(SIGALRM, &action, NULL);
        (void)signal(SIGPIPE, SIG_IGN);
        /* The parent process may have blocked them. */
        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGALRM);
        (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void signal_set_mode(enum signal_mode mode)
{
        signal_count = 0;
        signal_mode = mode;
        if (mode == SIGNAL_EXIT && signal_seen)
                leave_now();
}

void signal_set_restore(void (*restore)(void))
{
        signal_restore = restore;
}

int signal_fd(void)
{
        return signal_pipe[0];
}

bool signal_take(void)
{
        char bytes[16];
        sigset_t set, before;
        bool seen;

        /* Flag and pipe are taken together, or one Ctrl-C would count twice or not at all. */
        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
        (void)sigprocmask(SIG_BLOCK, &set, &before);
        seen = signal_seen;
        signal_seen = 0;
        while (read(signal_pipe[0], bytes, sizeof(bytes)) > 0)
                ;
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        return seen;
}
