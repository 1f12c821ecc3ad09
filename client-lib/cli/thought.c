#include "client-lib/cli/thought.h"

#include <inttypes.h>

void thought_write(struct thought_view *view, const char *text, size_t size)
{
        if (size == 0 || !term_stdout_tty)
                return;
        term_style(TERM_DIM);
        out_text(text, size);
        term_style(0);
        view->open = true;
}

void thought_end(struct thought_view *view)
{
        if (!view->open)
                return;
        view->open = false;
        out_puts(out_mid_line() ? "\n\n" : "\n");
}

void thought_complain_alone(const struct tandem_result *result)
{
        if (result->thinking_tokens == 0)
                return;
        complain("the answer has no text: the model only thought, for %" PRIu32 " tokens%s", result->thinking_tokens,
                 result->reason == TANDEM_REASON_LENGTH ?
                         ", and was cut off (-n takes more tokens, --think-budget N ends its thoughts, --think off "
                         "asks for none)" :
                         "");
}
