/* A model's Markdown on a terminal: headings and **bold** are bold, `code` and fenced blocks have a colour. Every
 * character stays, the marks too, so nothing is lost where a mark was meant as text. Elsewhere the text goes out as it
 * is. */
#ifndef TANDEM_CLI_MARKDOWN_H
#define TANDEM_CLI_MARKDOWN_H

#include "common/util.h"

struct markdown {
        bool bold, code, fenced, heading;
        bool in_line; /* the line has a character already */
        char held[8]; /* marks whose end has not come */
        size_t n_held;
};

/* Text in pieces, as it comes; a piece may end anywhere. */
void markdown_write(struct markdown *markdown, const char *text, size_t size);
/* The text is over: what is held goes out, and the style ends. */
void markdown_end(struct markdown *markdown);

#endif
