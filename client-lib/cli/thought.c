#include "client-lib/cli/thought.h"

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
