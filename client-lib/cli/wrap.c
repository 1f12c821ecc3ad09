/* See wrap.h. */
#include "client-lib/cli/wrap.h"

#include <wchar.h>

#define COLUMN_MOST 40u /* where a text begins at the latest */

/* The bytes of the character or escape sequence at text, and how many columns it takes. */
static size_t measure_character(const char *text, size_t size, unsigned *ret_columns)
{
        mbstate_t state = { 0 };
        wchar_t c;
        size_t n;

        *ret_columns = 0;
        if (size > 1 && text[0] == '\033' && text[1] == '[') {
                for (n = 2; n < size && (text[n] < '@' || text[n] > '~');)
                        n++;
                return TDM_MIN(n + 1, size);
        }
        n = mbrtowc(&c, text, size, &state);
        if (n == 0 || n > size) {
                *ret_columns = 1;
                return 1;
        }
        *ret_columns = (unsigned)TDM_MAX(wcwidth(c), 0);
        return n;
}

static unsigned columns_of_word(const char *text, size_t size)
{
        unsigned sum = 0, columns;

        for (size_t i = 0; i < size; sum += columns)
                i += measure_character(text + i, size - i, &columns);
        return sum;
}

/* The column at which the text behind the last gap begins; 0: there is no gap. */
static unsigned text_column(const char *line, size_t size)
{
        unsigned column = 0, found = 0, spaces = 0, columns;

        for (size_t i = 0; i < size && column <= COLUMN_MOST; column += columns) {
                bool space = line[i] == ' ';

                if (!space && spaces >= 2)
                        found = column;
                spaces = space ? spaces + 1 : 0;
                i += measure_character(line + i, size - i, &columns);
        }
        return found;
}

void wrap_line(struct buf *to, const char *line, size_t size, unsigned width, unsigned indent)
{
        unsigned column = 0, hang = text_column(line, size);
        bool at_begin = true; /* nothing but the indent stands on this line */

        hang = hang ? hang : indent;
        if (hang * 2 > width)
                hang = 2;
        if (width == 0 || size == 0 || line[0] == ' ') {
                buf_add(to, line, size);
                return;
        }
        for (size_t i = 0; i < size;) {
                size_t n_spaces = 0, n = 0;
                unsigned columns;

                while (i + n_spaces < size && line[i + n_spaces] == ' ')
                        n_spaces++;
                while (i + n_spaces + n < size && line[i + n_spaces + n] != ' ')
                        n++;
                columns = columns_of_word(line + i + n_spaces, n);
                if (!at_begin && n > 0 && column + n_spaces + columns > width) {
                        buf_printf(to, "\n%*s", (int)hang, "");
                        column = hang;
                        i += n_spaces;
                        n_spaces = 0;
                }
                buf_add(to, line + i, n_spaces + n);
                column += (unsigned)n_spaces + columns;
                at_begin = false;
                i += n_spaces + n;
        }
}
