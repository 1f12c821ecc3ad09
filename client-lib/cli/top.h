/* The two halves of `tandem top`: top.c says what is on the screen, top-screen.c puts it there. Main thread only. */
#ifndef TANDEM_CLI_TOP_H
#define TANDEM_CLI_TOP_H

#include "client-lib/cli/cli.h"

#define SCREEN_HEADING '\001' /* first byte of a line that is to be shown inverted */

enum screen_event {
        SCREEN_DUE,    /* the time has come */
        SCREEN_NOW,    /* a key asks for it at once */
        SCREEN_REDRAW, /* another size, or back from Ctrl-Z: the same once more */
        SCREEN_QUIT,
};

/* Takes the terminal; any end of the process gives it back. */
void screen_begin(void);
void screen_end(void);
void screen_size(unsigned *ret_rows, unsigned *ret_columns);
/* Lines, cut to the window. */
void screen_show(const char *text, size_t size);
enum screen_event screen_wait(uint64_t deadline_ns);

#endif
