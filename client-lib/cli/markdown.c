/* See markdown.h. A mark is a run of up to three * or `, or of up to six # at a line's begin. Its length is known when
 * another character comes, so a run at the end of a piece is held back until then. */
#include "client-lib/cli/markdown.h"
#include "client-lib/cli/term.h"

static void show_style(const struct markdown *m)
{
        bool of_code = m->code || m->fenced;

        term_style(((m->bold || m->heading) && !of_code ? TERM_BOLD : 0) | (of_code ? TERM_CYAN : 0));
}

/* Whether c goes on with the marks that are held, or begins some. */
static bool is_mark(const struct markdown *m, char c)
{
        if (m->n_held > 0 && m->held[0] != c)
                return false;
        if (c == '#')
                return !m->fenced && (m->n_held > 0 ? m->n_held < 6 : !m->in_line);
        return (c == '*' || c == '`') && m->n_held < 3;
}

/* next: the character behind the run; 0 at the text's end. */
static void flush_marks(struct markdown *m, char next)
{
        size_t n = m->n_held;
        bool tick = n > 0 && m->held[0] == '`', blank = next == 0 || next == ' ' || next == '\n';
        bool begins = false, ends = false;

        if (n == 0)
                return;
        m->n_held = 0;
        if (m->held[0] == '#') {
                begins = m->heading = next == ' ';
        } else if (tick && n == 3 && !m->in_line) {
                begins = !m->fenced;
                ends = m->fenced;
                m->fenced = !m->fenced;
                out_wrap(!m->fenced); /* lines of code stay whole for who copies them */
                m->bold = m->code = false;
        } else if (tick && n == 1 && !m->fenced) {
                begins = !m->code;
                ends = m->code;
                m->code = !m->code;
        } else if (!tick && n == 2 && !m->fenced && !m->code && (m->bold || !blank)) {
                begins = !m->bold;
                ends = m->bold;
                m->bold = !m->bold;
        }
        if (begins)
                show_style(m);
        out_text(m->held, n);
        if (ends)
                show_style(m);
        m->in_line = true;
}

void markdown_write(struct markdown *m, const char *text, size_t size)
{
        size_t begin = 0;

        for (size_t i = 0; i < size; i++) {
                char c = text[i];

                if (!is_mark(m, c))
                        flush_marks(m, c);
                if (is_mark(m, c)) {
                        out_text(text + begin, i - begin);
                        m->held[m->n_held++] = c;
                        begin = i + 1;
                } else if (c == '\n') {
                        out_text(text + begin, i + 1 - begin);
                        begin = i + 1;
                        m->in_line = false;
                        if (m->bold || m->code || m->heading) { /* never carried over a line's end */
                                m->bold = m->code = m->heading = false;
                                show_style(m);
                        }
                } else {
                        m->in_line = m->in_line || c != ' ';
                }
        }
        out_text(text + begin, size - begin);
}

void markdown_end(struct markdown *m)
{
        flush_marks(m, 0);
        if (m->bold || m->code || m->fenced || m->heading)
                term_style(0);
        out_wrap(true);
        *m = (struct markdown){ 0 };
}
