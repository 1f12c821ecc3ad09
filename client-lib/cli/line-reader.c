/* See line-reader.h.
 *
 * libedit keeps one line on the screen and cannot show a newline in it. So a pasted newline stands as ␤ and a tab as ␉
 * while the line is edited, and both become what they were when it is sent. Terminals mark a paste by escape sequences
 * (bracketed paste), which are recognised here, before libedit sees them. */
#include "client-lib/cli/line-reader.h"
#include "client-lib/cli/cli.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <wchar.h>
#include "common/cache-dir.h"

#define HISTORY_ENTRIES 1000
#define PASTED_NEWLINE L'\u2424'
#define PASTED_TAB L'\u2409'
#define PASTED_NEWLINE_UTF8 "\xe2\x90\xa4"
#define PASTED_TAB_UTF8 "\xe2\x90\x89"
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"
/* How long the rest of an escape sequence may take that came in two pieces. */
#define ESCAPE_WAIT_MS 50

struct line_reader {
        struct tandem *tandem;
        char bytes[4096]; /* read and not taken yet */
        size_t at, end;
        bool ended;
        enum line why; /* no more characters come: set by whoever noticed */

        EditLine *edit; /* NULL: nothing is edited */
        History *history;
        char *history_path;
        char shown_prompt[32];
        unsigned prompt_columns, window_columns; /* as the line was drawn */
        sigset_t unblocked;                      /* a window that changes is heard of only while keys are waited for */
        bool in_paste, pasted, begun;
        bool hides;           /* what is typed */
        struct termios shown; /* the terminal's settings before that */
        char *offered;        /* begins the next line; may be NULL */
        size_t ahead;         /* this many of the bytes were typed before the prompt came */
};

/* The terminal's settings before ours: a signal that ends the process puts them back. */
static struct termios terminal_before;
static volatile sig_atomic_t terminal_changed;

static volatile sig_atomic_t window_changed;

static void on_window_change(int signo)
{
        window_changed = 1;
}

static void restore_terminal(void)
{
        static const char end_of_marks[] = "\033[?2004l";

        if (!terminal_changed)
                return;
        terminal_changed = 0;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
        (void)!write(STDOUT_FILENO, end_of_marks, sizeof(end_of_marks) - 1);
}

static unsigned columns_of_window(void)
{
        struct winsize size = { 0 };

        return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

/* Draws the line for another width. Some terminals have moved its rows by then, others have cut them off. As many rows
 * are cleared as it takes in both cases, so nothing above it is lost. */
static void draw_line_anew(struct line_reader *r)
{
        static const char clear[] = "\r\033[J";
        const LineInfoW *line = el_wline(r->edit);
        char up[24];
        unsigned now = columns_of_window(), before = r->window_columns, columns = r->prompt_columns, rows;

        window_changed = 0;
        if (now == before)
                return;
        for (const wchar_t *c = line->buffer; c < line->cursor; c++)
                columns += (unsigned)TDM_MAX(wcwidth(*c), 0);
        rows = columns / TDM_MAX(now, before);
        r->window_columns = now;
        if (rows > 0)
                (void)write_all(STDOUT_FILENO, up, (size_t)snprintf(up, sizeof(up), "\033[%uA", rows));
        (void)write_all(STDOUT_FILENO, clear, sizeof(clear) - 1);
        el_resize(r->edit);
        (void)el_set(r->edit, EL_REFRESH);
}

/* Waits for input at most timeout_ms (-1: as long as it takes), and reads what there is. False: nothing came; why says
 * whether the line is over. */
static bool fill_bytes(struct line_reader *r, int timeout_ms)
{
        if (r->at > 0) {
                r->ahead -= TDM_MIN(r->ahead, r->at);
                memmove(r->bytes, r->bytes + r->at, r->end - r->at);
                r->end -= r->at;
                r->at = 0;
        }
        for (;;) {
                bool lost = tandem_connection_error(r->tandem) != NULL;
                struct pollfd fds[] = {
                        { .fd = STDIN_FILENO, .events = POLLIN },
                        { .fd = signal_fd(), .events = POLLIN },
                        { .fd = lost ? -1 : tandem_fd(r->tandem), .events = lost ? 0 : tandem_events(r->tandem) },
                };
                struct timespec limit = { timeout_ms / 1000, timeout_ms % 1000 * (long)TDM_NSEC_PER_MSEC };
                int n = ppoll(fds, TDM_ARRAY_SIZE(fds), timeout_ms < 0 ? NULL : &limit, r->edit ? &r->unblocked : NULL);
                ssize_t got;

                if (window_changed)
                        draw_line_anew(r);
                if (signal_take()) {
                        r->why = LINE_INTERRUPTED;
                        return false;
                }
                if (n == 0)
                        return false;
                if (fds[2].revents)
                        (void)tandem_dispatch(r->tandem, 0);
                if (!fds[0].revents)
                        continue;
                got = read(STDIN_FILENO, r->bytes + r->end, sizeof(r->bytes) - r->end);
                if (got < 0 && (errno == EINTR || errno == EAGAIN))
                        continue;
                if (got < 0) {
                        complain("cannot read standard input: %s", strerror(errno));
                        r->why = LINE_FAILED;
                        return false;
                }
                r->ended = got == 0;
                r->end += (size_t)got;
                return got > 0;
        }
}

/* ---- what libedit asks for ---- */

/* Whether the bytes begin with the mark, which is then taken. */
static bool take_mark(struct line_reader *r, const char *mark)
{
        size_t n = strlen(mark);

        while (r->end - r->at < n && memcmp(r->bytes + r->at, mark, r->end - r->at) == 0)
                if (!fill_bytes(r, ESCAPE_WAIT_MS))
                        return false;
        if (r->end - r->at < n || memcmp(r->bytes + r->at, mark, n) != 0)
                return false;
        r->at += n;
        return true;
}

/* The next character of a paste; 0: it is dropped. */
static wchar_t of_paste(struct line_reader *r, wchar_t c)
{
        r->pasted = true;
        if (c == '\r' || c == '\n')
                return PASTED_NEWLINE;
        if (c == '\t')
                return PASTED_TAB;
        return c < 0x20 || c == 0x7f ? 0 : c;
}

static int get_character(EditLine *edit, wchar_t *ret)
{
        struct line_reader *r;

        if (el_get(edit, EL_CLIENTDATA, &r) != 0)
                return -1;
        for (;;) {
                mbstate_t state = { 0 };
                wchar_t c;
                size_t n;

                if (r->at == r->end && !r->begun && r->ahead == 0 && fill_bytes(r, 0))
                        r->ahead = r->end;
                if (r->at == r->end && (r->why != LINE_OK || r->ended || !fill_bytes(r, -1))) {
                        if (r->ended && r->why == LINE_OK)
                                return 0;
                        if (r->why == LINE_OK)
                                continue;
                        errno = EIO;
                        return -1;
                }
                if (take_mark(r, r->in_paste ? PASTE_END : PASTE_BEGIN)) {
                        r->in_paste = !r->in_paste;
                        continue;
                }
                if (r->why != LINE_OK) {
                        errno = EIO;
                        return -1;
                }
                n = mbrtowc(&c, r->bytes + r->at, r->end - r->at, &state);
                if (n == (size_t)-2 && !r->ended && fill_bytes(r, -1))
                        continue; /* the rest of a character that came in two pieces */
                /* A Ctrl-D that was typed before the prompt came stands as NUL in what the terminal kept. */
                if (n == 0 && r->at < r->ahead && !r->begun) {
                        r->at++;
                        *ret = 4;
                        return 1;
                }
                if (n == (size_t)-1 || n == (size_t)-2 || n == 0) {
                        r->at++; /* no character of this locale */
                        continue;
                }
                r->at += n;
                if (r->in_paste) {
                        c = of_paste(r, c);
                        if (c == 0)
                                continue;
                }
                r->begun = true;
                *ret = c;
                return 1;
        }
}

static char *get_prompt(EditLine *edit)
{
        struct line_reader *r;

        return el_get(edit, EL_CLIENTDATA, &r) == 0 ? r->shown_prompt : (char *)(uintptr_t) "";
}

/* In bold. PROMPT_ESCAPE stands around what takes no columns. */
#define PROMPT_ESCAPE '\1'
static void dress_prompt(struct line_reader *r, const char *prompt)
{
        r->prompt_columns = (unsigned)text_columns(prompt);
        snprintf(r->shown_prompt, sizeof(r->shown_prompt), term_has_colours() ? "\1\033[1m\1%s\1\033[22m\1" : "%s",
                 prompt);
}

/* ---- history ---- */

/* DIR/tandem/chat_history, with the folders made. NULL: there is no such place. */
static char *history_path(void)
{
        const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
        char *path = NULL;

        if (state && state[0] == '/') {
                if (asprintf(&path, "%s/tandem/chat_history", state) < 0)
                        return NULL;
        } else if (home && home[0] == '/') {
                if (asprintf(&path, "%s/.local/state/tandem/chat_history", home) < 0)
                        return NULL;
        } else {
                return NULL;
        }
        tdm_make_parents(path);
        return path;
}

static void open_history(struct line_reader *r)
{
        HistEvent event;

        r->history = history_init();
        if (!r->history)
                return;
        (void)history(r->history, &event, H_SETSIZE, HISTORY_ENTRIES);
        (void)history(r->history, &event, H_SETUNIQUE, 1);
        r->history_path = history_path();
        if (r->history_path)
                (void)history(r->history, &event, H_LOAD, r->history_path); /* the first time there is none */
        (void)el_set(r->edit, EL_HIST, history, r->history);
}

/* The file has mode 0600, because nobody else may read what a person asks a model. */
static void save_history(struct line_reader *r)
{
        HistEvent event;
        int fd;

        if (!r->history || !r->history_path)
                return;
        fd = open(r->history_path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return;
        (void)fchmod(fd, 0600);
        close(fd);
        (void)history(r->history, &event, H_SAVE, r->history_path);
}

/* ---- the reader ---- */

static bool can_edit(void)
{
        const char *term = getenv("TERM");

        return term_stdin_tty && term_stdout_tty && term && *term && strcmp(term, "dumb") != 0 &&
               tcgetattr(STDIN_FILENO, &terminal_before) == 0;
}

struct line_reader *line_reader_new(struct tandem *tandem)
{
        struct sigaction action = { .sa_handler = on_window_change, .sa_flags = SA_RESTART };
        struct line_reader *r = calloc(1, sizeof(*r));

        if (!r) {
                complain("no memory to read lines");
                return NULL;
        }
        r->tandem = tandem;
        if (!can_edit())
                return r;
        r->edit = el_init("tandem", stdin, stdout, stderr);
        if (!r->edit)
                return r; /* lines are read as the terminal gives them */
        (void)el_set(r->edit, EL_CLIENTDATA, r);
        (void)el_set(r->edit, EL_EDITOR, "emacs");
        (void)el_set(r->edit, EL_GETCFN, get_character);
        (void)el_set(r->edit, EL_PROMPT_ESC, get_prompt, PROMPT_ESCAPE);
        (void)el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
        open_history(r);
        (void)el_source(r->edit, NULL); /* ~/.editrc */
        signal_set_restore(restore_terminal);
        sigemptyset(&action.sa_mask);
        (void)sigaction(SIGWINCH, &action, NULL);
        return r;
}

void line_reader_free(struct line_reader *r)
{
        if (!r)
                return;
        if (r->edit) {
                line_reader_hide_typing(r, false);
                save_history(r);
                if (r->history)
                        history_end(r->history);
                el_end(r->edit);
                signal_set_restore(NULL);
                restore_terminal();
        }
        free(r->history_path);
        free(r->offered);
        free(r);
}

void line_reader_set_connection(struct line_reader *r, struct tandem *tandem)
{
        r->tandem = tandem;
}

bool line_reader_edits(const struct line_reader *r)
{
        return r->edit != NULL;
}

void line_reader_hide_typing(struct line_reader *r, bool hide)
{
        struct termios hidden;

        if (!r->edit || hide == r->hides)
                return;
        if (!hide) {
                (void)tcsetattr(STDIN_FILENO, TCSANOW, &r->shown);
                terminal_changed = 0;
                r->hides = false;
                return;
        }
        if (tcgetattr(STDIN_FILENO, &r->shown) < 0)
                return;
        hidden = r->shown;
        hidden.c_lflag &= ~(tcflag_t)ECHO;
        hidden.c_lflag |= NOFLSH;
        terminal_changed = 1;
        r->hides = tcsetattr(STDIN_FILENO, TCSANOW, &hidden) == 0;
}

void line_offer(struct line_reader *r, const char *text)
{
        struct buf marked = { 0 };

        if (!r->edit)
                return;
        for (; *text; text++)
                if (*text == '\n')
                        buf_puts(&marked, PASTED_NEWLINE_UTF8);
                else if (*text == '\t')
                        buf_puts(&marked, PASTED_TAB_UTF8);
                else if ((unsigned char)*text >= 0x20 && *text != 0x7f)
                        buf_add(&marked, text, 1);
        buf_add(&marked, "", 1);
        free(r->offered);
        r->offered = marked.failed ? NULL : marked.data;
        if (marked.failed)
                buf_free(&marked);
}

bool line_was_begun(const struct line_reader *r)
{
        return r->begun;
}

void line_remember(struct line_reader *r, const char *text)
{
        HistEvent event;

        if (r->history && *text)
                (void)history(r->history, &event, H_ENTER, text);
}

/* Adds a line as it was edited, with the paste's newlines and tabs back in it. */
static void add_edited(const struct line_reader *r, const char *line, size_t size, struct buf *to)
{
        for (size_t i = 0; i < size;) {
                bool mark = r->pasted && size - i >= 3 && (line[i] & 0xff) == 0xe2 && (line[i + 1] & 0xff) == 0x90;

                if (mark && (line[i + 2] & 0xff) == 0xa4) {
                        buf_add(to, "\n", 1);
                        i += 3;
                } else if (mark && (line[i + 2] & 0xff) == 0x89) {
                        buf_add(to, "\t", 1);
                        i += 3;
                } else {
                        buf_add(to, line + i++, 1);
                }
        }
}

static enum line read_edited(struct line_reader *r, struct buf *to)
{
        static const char marks_on[] = "\033[?2004h", marks_off[] = "\033[?2004l";
        const char *line;
        sigset_t change;
        int n = 0;

        out_flush();
        line_reader_hide_typing(r, false);
        terminal_changed = 1;
        (void)!write(STDOUT_FILENO, marks_on, sizeof(marks_on) - 1);
        if (r->offered) {
                r->begun = r->pasted = true;
                el_push(r->edit, r->offered);
                free(r->offered);
                r->offered = NULL;
        }
        sigemptyset(&change);
        sigaddset(&change, SIGWINCH);
        (void)sigprocmask(SIG_BLOCK, &change, &r->unblocked);
        window_changed = 0;
        r->window_columns = columns_of_window();
        line = el_gets(r->edit, &n);
        (void)sigprocmask(SIG_SETMASK, &r->unblocked, NULL);
        terminal_changed = 0;
        if (r->why == LINE_OK && line && n > 0)
                line_reader_hide_typing(r, true); /* before anybody can see that the answer begins */
        (void)!write(STDOUT_FILENO, marks_off, sizeof(marks_off) - 1);
        if (r->why != LINE_OK) {
                el_reset(r->edit);
                return r->why;
        }
        if (!line || n <= 0)
                return LINE_END;
        if (line[n - 1] == '\n')
                n--;
        add_edited(r, line, (size_t)n, to);
        return LINE_OK;
}

static enum line read_plain(struct line_reader *r, struct buf *to)
{
        for (;;) {
                const char *newline = memchr(r->bytes + r->at, '\n', r->end - r->at);
                size_t n = newline ? (size_t)(newline - (r->bytes + r->at)) : r->end - r->at;

                if (n > LINE_MAX_BYTES - TDM_MIN(to->size, LINE_MAX_BYTES))
                        return LINE_OK; /* the caller sees that it is too long */
                buf_add(to, r->bytes + r->at, n);
                r->at += n + (newline != NULL);
                if (newline)
                        return LINE_OK;
                if (r->ended)
                        return to->size > 0 ? LINE_OK : LINE_END;
                if (!fill_bytes(r, -1) && !r->ended)
                        return r->why;
        }
}

enum line line_read(struct line_reader *r, const char *prompt, struct buf *to)
{
        enum line k;

        dress_prompt(r, prompt);
        r->begun = r->pasted = r->in_paste = false;
        if (r->at == r->end)
                r->ahead = 0; /* the line before took all of what was typed ahead of it */
        r->why = LINE_OK;
        if (r->edit) {
                k = read_edited(r, to);
        } else {
                if (term_stdin_tty && term_stdout_tty) {
                        out_puts(prompt);
                        out_flush();
                } else if (term_stdin_tty) {
                        fputs(prompt, stderr);
                }
                k = read_plain(r, to);
        }
        if (k == LINE_OK && to->size >= LINE_MAX_BYTES) {
                complain("a message has at most %zu KiB", LINE_MAX_BYTES >> 10);
                return LINE_FAILED;
        }
        return k;
}
