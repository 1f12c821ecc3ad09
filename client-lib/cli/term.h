/* The CLI's ends: standard output, the terminal's progress line, and signals. One process, one of each, so the state is
 * the file's own. Main thread only, but for the signal handler, which only touches what is marked for it. */
#ifndef TANDEM_CLI_TERM_H
#define TANDEM_CLI_TERM_H

#include "client-lib/cli/json.h"
#include "client-lib/include/tandem.h"
#include "common/util.h"

extern bool term_stdin_tty, term_stdout_tty, term_stderr_tty;

void term_init(void);

/* Standard output. Errors are kept and told once by out_finish(); after one, output is dropped. */
void out_write(const void *data, size_t size);
void out_puts(const char *text);
void out_printf(const char *fmt, ...) _printf_(1, 2);
/* A model's text: as it is, but on a terminal control characters other than \n and \t become \x1b and the like. */
void out_text(const char *text, size_t size);
/* On a terminal lines of such text break between words, unless it is switched off. */
void out_wrap(bool on);
/* On a terminal lines from here on are broken between words and indented (wrap.h), until it is switched off. */
void out_lines(bool wrapped);
/* Whether text on standard output may be styled. Auto: on a terminal that has colours, unless NO_COLOR is set. */
enum term_colour { TERM_COLOUR_AUTO, TERM_COLOUR_ALWAYS, TERM_COLOUR_NEVER };
void term_set_colour(enum term_colour when);
/* Text from here on looks so: several of the enum, 0 for plain. Nothing where text may not be styled. */
enum term_style { TERM_BOLD = 1, TERM_DIM = 2, TERM_GREEN = 4, TERM_YELLOW = 8, TERM_RED = 16, TERM_CYAN = 32 };
void term_style(unsigned style);
/* A word that the daemon has for the state of a worker, a model or a job: green where it works, yellow where it waits
 * or mends itself, red where it failed. */
void out_state(const char *state);
void buf_add_state(struct buf *to, const char *state);
/* How many columns a line of standard output may take; 0: as many as it needs. */
unsigned out_columns(void);
bool term_has_colours(void);
bool out_mid_line(void); /* the last character that went out was not a newline */
void out_flush(void);
bool out_broken(void);
/* Flushes; 0, or 1 when output was lost (said on stderr). A reader that went away is no error: 0. */
int out_finish(void);

/* The progress line on stderr; nothing unless stderr is a terminal. */
void progress_show(const char *fmt, ...) _printf_(1, 2);
void progress_clear(void);

/* All of it, in as many calls as that takes. 0 or a negative errno. */
int write_all(int fd, const char *data, size_t size);

/* "tandem: …" on stderr, without control characters. Returns 1. */
int complain(const char *fmt, ...) _printf_(1, 2);
/* text without control characters, in a ring of static buffers. */
const char *term_safe(const char *text);

/* Signals. SIGINT and SIGTERM end the process with 130 at once, unless it has a job to cancel first. */
enum signal_mode {
        SIGNAL_EXIT,   /* exit at once */
        SIGNAL_CANCEL, /* tell signal_fd(); exit 70 ms later, whatever holds the process up */
        SIGNAL_ANSWER, /* tell signal_fd(); a second one exits at once */
};
void signal_init(void);
void signal_set_mode(enum signal_mode mode);
/* What a signal that ends the process calls first: async-signal-safe functions only. NULL: nothing. */
void signal_set_restore(void (*restore)(void));
int signal_fd(void);    /* readable after a signal */
bool signal_take(void); /* whether one came since the last call */

#endif
