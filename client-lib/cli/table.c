/* See table.h. */
#include "client-lib/cli/table.h"
#include "client-lib/cli/cli.h"

#define GAP 2u /* columns between two texts; 1 where room is short */

struct layout {
        unsigned widths[TABLE_COLUMNS_MAX]; /* 0: the column is left out */
        unsigned gap;
};

void table_add(struct table *t, const char *const *cells)
{
        char **grown = t->failed ? NULL : realloc(t->cells, (t->n_rows + 1) * t->n_columns * sizeof(*grown));

        if (!grown) {
                t->failed = true;
                return;
        }
        t->cells = grown;
        for (size_t i = 0; i < t->n_columns; i++) {
                grown[t->n_rows * t->n_columns + i] = strdup(cells[i]);
                t->failed = t->failed || !grown[t->n_rows * t->n_columns + i];
        }
        t->n_rows++;
}

static unsigned whole_width(const struct table *t, const struct layout *l)
{
        unsigned sum = 0, n = 0;

        for (size_t i = 0; i < t->n_columns; i++) {
                sum += l->widths[i];
                n += l->widths[i] > 0;
        }
        return sum + (n > 0 ? (n - 1) * l->gap : 0);
}

/* Takes a column from the widest text that may be shorter. False: there is none. */
static bool shrink_widest(const struct table *t, struct layout *l)
{
        size_t widest = t->n_columns;

        for (size_t i = 0; i < t->n_columns; i++)
                if (t->columns[i].shrinks_to > 0 && l->widths[i] > t->columns[i].shrinks_to &&
                    (widest == t->n_columns || l->widths[i] > l->widths[widest]))
                        widest = i;
        if (widest == t->n_columns)
                return false;
        l->widths[widest]--;
        return true;
}

static bool leave_out_one(const struct table *t, struct layout *l)
{
        size_t first = t->n_columns;

        for (size_t i = 0; i < t->n_columns; i++)
                if (l->widths[i] > 0 && t->columns[i].leaves > 0 &&
                    (first == t->n_columns || t->columns[i].leaves > t->columns[first].leaves))
                        first = i;
        if (first == t->n_columns)
                return false;
        l->widths[first] = 0;
        return true;
}

static struct layout natural_layout(const struct table *t)
{
        struct layout l = { .gap = GAP };

        for (size_t i = 0; i < t->n_columns; i++) {
                l.widths[i] = (unsigned)text_columns(t->columns[i].heading);
                for (size_t row = 0; row < t->n_rows; row++)
                        l.widths[i] = TDM_MAX(l.widths[i], (unsigned)text_columns(t->cells[row * t->n_columns + i]));
        }
        return l;
}

/* Texts are cut before a column goes. */
static struct layout fitting_layout(const struct table *t, unsigned width)
{
        struct layout natural = natural_layout(t), l = natural;

        if (width == 0 || whole_width(t, &l) <= width)
                return l;
        natural.gap = 1;
        for (;;) {
                l = natural;
                while (whole_width(t, &l) > width && shrink_widest(t, &l))
                        ;
                if (whole_width(t, &l) <= width || !leave_out_one(t, &natural))
                        return l;
        }
}

/* As much of the text as so many columns hold. */
static void write_cell(struct buf *to, const char *text, unsigned width, const struct table_column *column, bool last)
{
        unsigned columns = (unsigned)text_columns(text), used = 0;
        size_t bytes = 0, size = strlen(text);

        if (columns <= width) {
                if (column->right)
                        buf_printf(to, "%*s", (int)(width - columns), "");
                if (column->state)
                        buf_add_state(to, text);
                else
                        buf_puts(to, text);
                if (!column->right && !last)
                        buf_printf(to, "%*s", (int)(width - columns), "");
                return;
        }
        while (bytes < size) {
                size_t n = TDM_MAX(utf8_char_bytes((const unsigned char *)text + bytes, size - bytes), (size_t)1);
                char one[8] = "";

                memcpy(one, text + bytes, TDM_MIN(n, sizeof(one) - 1));
                if (used + (unsigned)text_columns(one) + 1 > width)
                        break;
                used += (unsigned)text_columns(one);
                bytes += n;
        }
        buf_add(to, text, bytes);
        buf_puts(to, "…");
        if (!last)
                buf_printf(to, "%*s", (int)(width - TDM_MIN(used + 1, width)), "");
}

static void write_row(const struct table *t, const struct layout *l, const char *const *cells, struct buf *to)
{
        size_t last = t->n_columns;
        bool begun = false;

        while (last > 0 && l->widths[last - 1] == 0)
                last--;
        for (size_t i = 0; i < last; i++) {
                if (l->widths[i] == 0)
                        continue;
                if (begun)
                        buf_printf(to, "%*s", (int)l->gap, "");
                begun = true;
                write_cell(to, cells ? cells[i] : t->columns[i].heading, l->widths[i], &t->columns[i], i + 1 == last);
        }
        buf_puts(to, "\n");
}

void table_write(const struct table *t, unsigned width, struct buf *to)
{
        struct layout l;

        if (t->failed) {
                to->failed = true;
                return;
        }
        l = fitting_layout(t, width);
        write_row(t, &l, NULL, to);
        for (size_t row = 0; row < t->n_rows; row++)
                write_row(t, &l, (const char *const *)t->cells + row * t->n_columns, to);
}

void table_free(struct table *t)
{
        for (size_t i = 0; i < t->n_rows * t->n_columns; i++)
                free(t->cells[i]);
        free(t->cells);
        *t = (struct table){ 0 };
}
