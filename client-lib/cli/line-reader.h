/* Lines of standard input: typed on a terminal, with editing and a history (libedit), or from a pipe.
 *
 * While it waits it serves the connection and watches signals too, so Ctrl-C is noticed at once. A connection that ends
 * meanwhile ends no line: the next request fails. */
#ifndef TANDEM_CLI_LINE_READER_H
#define TANDEM_CLI_LINE_READER_H

#include "client-lib/cli/json.h"
#include "client-lib/include/tandem.h"

/* The longest line. */
#define LINE_MAX_BYTES ((size_t)1 << 20)

enum line {
        LINE_OK,
        LINE_END,         /* of input: Ctrl-D, or the pipe's end */
        LINE_INTERRUPTED, /* a signal came; what was typed is dropped */
        LINE_FAILED       /* has been complained about */
};

struct line_reader;

/* With a history where people type: kept from run to run in tandem/chat_history of the state folder
 * ($XDG_STATE_HOME, or ~/.local/state). NULL: no memory, complained about. tandem outlives the reader. */
struct line_reader *line_reader_new(struct tandem *tandem);
void line_reader_free(struct line_reader *reader); /* puts the terminal back; NULL is fine */

/* Adds one line without its newline to *to. prompt is shown where people type. A text pasted in one piece is one line,
 * with its newlines in it. */
enum line line_read(struct line_reader *reader, const char *prompt, struct buf *to);
/* Another connection instead of one that was lost. */
void line_reader_set_connection(struct line_reader *reader, struct tandem *tandem);
/* While an answer comes, what is typed is not shown in its midst, and Ctrl-C takes none of it: it stands at the next
 * prompt. On from the end of one line to the reading of the next; a caller may turn it off between. Nothing where
 * lines are not edited. */
void line_reader_hide_typing(struct line_reader *reader, bool hide);
bool line_reader_edits(const struct line_reader *reader);
/* The next line begins with this text, as if it had been typed. Nothing where lines are not edited. */
void line_offer(struct line_reader *reader, const char *text);
/* Whether something had been typed when the last line was interrupted. */
bool line_was_begun(const struct line_reader *reader);
/* The text becomes the newest entry of the history. */
void line_remember(struct line_reader *reader, const char *text);

#endif
