/* Tables for people: columns as wide as what stands in them, and no wider together than the terminal. */
#ifndef TANDEM_CLI_TABLE_H
#define TANDEM_CLI_TABLE_H

#include "client-lib/cli/json.h"

#define TABLE_COLUMNS_MAX 12u

struct table_column {
        const char *heading;
        bool state;          /* in its colour (buf_add_state()) */
        bool right;          /* numbers: below each other's last digits */
        unsigned shrinks_to; /* where room is short, a longer text is cut to this width and gets a …; 0: never */
        unsigned leaves;     /* where that is not enough, the column with the highest number goes first; 0: it stays */
};

struct table {
        const struct table_column *columns;
        size_t n_columns, n_rows;
        char **cells; /* [n_rows][n_columns] */
        bool failed;  /* no memory */
};

/* One text for each column, copied. */
void table_add(struct table *table, const char *const *cells);
/* The heading and each row as a line; width 0: as wide as they are. */
void table_write(const struct table *table, unsigned width, struct buf *to);
void table_free(struct table *table);

#endif
