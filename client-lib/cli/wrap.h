/* Long lines on a terminal: broken between words, and indented below where their last column of text begins. */
#ifndef TANDEM_CLI_WRAP_H
#define TANDEM_CLI_WRAP_H

#include "client-lib/cli/json.h"

/* Appends one line, without its newline, in lines of at most width columns; 0: as it is. What goes on stands below the
 * text behind the last gap of two spaces or more near the line's begin, else at indent. A word that is wider than a
 * line stays whole, and so does a line that begins with a space: it may be a command that is copied. Escape sequences
 * take no columns. */
void wrap_line(struct buf *to, const char *line, size_t size, unsigned width, unsigned indent);

#endif
