/* The screen of `tandem top`: the terminal's other page, keys without Enter, and everything as it was before when the
 * program leaves, whichever way it does. Only escape sequences that every terminal of the last forty years knows; no
 * library. One process, one screen, so the state is the file's own. */
#include "client-lib/cli/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[0m\033[?25h\033[?1049l"

static struct termios before;
static volatile sig_atomic_t on, raw, resized, stopped;
static sigset_t unblocked; /* what poll may be woken by */

static void put_text(const char *text, size_t size)
{
        while (size > 0) {
                ssize_t n = write(STDOUT_FILENO, text, size);

                if (n < 0 && errno != EINTR)
                        return;
                if (n > 0) {
                        text += n;
                        size -= (size_t)n;
                }
        }
}

/* Async-signal-safe. */
static void restore_screen(void)
{
        if (!on)
                return;
        on = 0;
        put_text(LEAVE, sizeof(LEAVE) - 1);
        if (raw)
                (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void enter_screen(void)
{
        struct termios t;

        if (raw) {
                t = before;
                t.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* ISIG stays: Ctrl-C and Ctrl-Z are signals */
                t.c_cc[VMIN] = 0;
                t.c_cc[VTIME] = 0;
                (void)tcsetattr(STDIN_FILENO, TCSANOW, &t);
        }
        put_text(ENTER, sizeof(ENTER) - 1);
        on = 1;
}

static void on_resize(int signo)
{
        resized = 1;
}

/* Dies of the signal as it would have, but on a terminal that is in order. */
static void on_deadly(int signo)
{
        restore_screen();
        (void)signal(signo, SIG_DFL);
        (void)raise(signo);
}

static void on_stop(int signo)
{
        stopped = 1;
}

void screen_begin(void)
{
        static const int deadly[] = { SIGHUP, SIGQUIT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
        struct sigaction action = { .sa_handler = on_deadly, .sa_flags = (int)SA_RESETHAND };
        sigset_t set;

        /* A window that changes, or Ctrl-Z, while something else is going on waits until screen_wait(). */
        sigemptyset(&set);
        sigaddset(&set, SIGWINCH);
        sigaddset(&set, SIGTSTP);
        (void)sigprocmask(SIG_BLOCK, &set, &unblocked);
        sigdelset(&unblocked, SIGWINCH);
        sigdelset(&unblocked, SIGTSTP);
        sigemptyset(&action.sa_mask);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(deadly); i++)
                (void)sigaction(deadly[i], &action, NULL);
        action.sa_flags = 0;
        action.sa_handler = on_resize;
        (void)sigaction(SIGWINCH, &action, NULL);
        action.sa_handler = on_stop;
        (void)sigaction(SIGTSTP, &action, NULL);

        raw = term_stdin_tty && tcgetattr(STDIN_FILENO, &before) == 0;
        signal_set_restore(restore_screen);
        enter_screen();
}

void screen_end(void)
{
        restore_screen();
        signal_set_restore(NULL);
}

void screen_size(unsigned *ret_rows, unsigned *ret_columns)
{
        struct winsize size = { 0 };
        bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

        *ret_rows = known && size.ws_row > 0 ? size.ws_row : 24;
        *ret_columns = known && size.ws_col > 0 ? size.ws_col : 80;
}

/* Bytes of the first columns characters: every character of what we print is one column wide, near enough. */
static size_t cut_line(const char *line, size_t size, unsigned columns)
{
        size_t bytes = 0;

        for (unsigned c = 0; bytes < size && c < columns; c++) {
                size_t n = utf8_char_bytes((const unsigned char *)line + bytes, size - bytes);

                bytes += TDM_MAX(n, (size_t)1);
        }
        return TDM_MIN(bytes, size);
}

void screen_show(const char *text, size_t size)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        unsigned rows, columns;

        screen_size(&rows, &columns);
        buf_puts(&b, "\033[H");
        for (unsigned row = 0; row < rows && size > 0; row++) {
                const char *end = memchr(text, '\n', size);
                size_t n = end ? (size_t)(end - text) : size;
                /* A line that begins with this letter is a heading. */
                bool heading = n > 0 && text[0] == SCREEN_HEADING;

                buf_puts(&b, row ? "\r\n" : "");
                if (heading)
                        buf_puts(&b, "\033[7m");
                buf_add(&b, text + heading, cut_line(text + heading, n - heading, columns));
                for (size_t c = n - heading; heading && c < columns; c++)
                        buf_puts(&b, " ");
                buf_puts(&b, heading ? "\033[0m\033[K" : "\033[K");
                text += end ? n + 1 : n;
                size -= end ? n + 1 : n;
        }
        buf_puts(&b, "\033[J");
        if (!b.failed)
                put_text(b.data, b.size);
}

enum screen_event screen_wait(uint64_t deadline_ns)
{
        for (;;) {
                struct pollfd p = { .fd = raw ? STDIN_FILENO : -1, .events = POLLIN };
                uint64_t now = tdm_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
                struct timespec wait = { .tv_sec = (time_t)(left / TDM_NSEC_PER_SEC),
                                         .tv_nsec = (long)(left % TDM_NSEC_PER_SEC) };
                int n = ppoll(&p, 1, &wait, &unblocked);

                if (stopped) {
                        stopped = 0;
                        restore_screen();
                        (void)raise(SIGSTOP);
                        enter_screen();
                        return SCREEN_REDRAW;
                }
                if (resized) {
                        resized = 0;
                        return SCREEN_REDRAW;
                }
                if (n > 0) {
                        char key;
                        ssize_t k = read(STDIN_FILENO, &key, 1);

                        if (k <= 0 && (p.revents & (POLLHUP | POLLERR)))
                                return SCREEN_QUIT; /* the terminal is gone */
                        if (k == 1 && (key == 'q' || key == 'Q'))
                                return SCREEN_QUIT;
                        if (k == 1 && key == ' ')
                                return SCREEN_NOW;
                }
                if (left == 0)
                        return SCREEN_DUE;
        }
}
