/* What a model thinks before it answers, as a person sees it: dimmed, with an empty line behind it. Where standard
 * output is no terminal it is left out, so that a script gets the answer alone. */
#ifndef TANDEM_CLI_THOUGHT_H
#define TANDEM_CLI_THOUGHT_H

#include "client-lib/cli/term.h"

struct thought_view {
        bool open; /* it has begun, and nothing of the answer has come */
};

void thought_write(struct thought_view *view, const char *text, size_t size);
/* Before anything else is printed. */
void thought_end(struct thought_view *view);
/* If an answer without any text was all thoughts: says so on standard error, and what to do. */
void thought_complain_alone(const struct tandem_result *result);

#endif
