/* The page at /, for people: page.html, which is compiled in. */
#ifndef TDM_HTTP_PAGE_H
#define TDM_HTTP_PAGE_H

#include "http-gateway/exchange.h"

extern const char page_html[]; /* made of page.html */

/* GET /: the page where a browser asks and it is not turned off, else a line of text, as clients of Ollama expect. */
void page_root(struct exchange *x);

#endif
