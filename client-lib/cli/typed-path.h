/* Paths in a line that was typed or pasted. No shell has read the line, so quotes, backslashes and ~ are still in it.
 * Terminals write a file that was dropped on them as a shell or a browser would: 'a b.png', a\ b.png, file:///a%20b.
 * Nothing here looks at a file. */
#ifndef TANDEM_CLI_TYPED_PATH_H
#define TANDEM_CLI_TYPED_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* The word that the text begins with, up to a blank outside of quotes: its length. *ret, to be freed, is the path that
 * it means. 0: there is none, as with a quote that nothing ends; or no memory. */
size_t typed_word(const char *text, size_t size, char **ret);
/* Whether the path says by its first characters that it is one: "/a", "~/a", "./a", "../a", also in quotes, and
 * "file:///a". */
bool typed_is_path(const char *text, size_t size);
/* A path as it stands, with blanks and backslashes in it, but for ~ and a file URL. To be freed. NULL: no memory, or an
 * URL of another machine. */
char *typed_plain(const char *text, size_t size);

#endif
