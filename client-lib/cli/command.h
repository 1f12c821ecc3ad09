/* A command of the program: its name, its options, what help says of it, and its function, all in one file,
 * commands/NAME.c. The list in CMakeLists.txt is the only other place that names it. Help, manual and completions are
 * made from what stands here. */
#ifndef TANDEM_CLI_COMMAND_H
#define TANDEM_CLI_COMMAND_H

#include "client-lib/cli/args.h"
#include "client-lib/cli/json.h"

struct cli;

enum job_args_kind { JOB_ARGS_NONE, JOB_ARGS_ALL, JOB_ARGS_BENCH };

struct command {
        const char *name;
        const char *summary; /* a line of `tandem help` */
        const char *usage;   /* what comes behind the name: "[-m MODEL] [TEXT|-]" */
        /* Paragraphs, with an empty line between two. Help and manual break the lines. A line that begins with two
         * spaces stays as it is. */
        const char *about;
        const char *examples; /* the same, below the options; may be NULL */
        const struct arg *args;
        size_t n_args;
        /* Which rows of common/job-options.def it takes too. Its options then begin with a struct job_args. */
        enum job_args_kind job_args;
        /* What a shell offers for its arguments. */
        enum arg_offer offer;
        const char *const *choices;                         /* NULL at the end */
        int (*run)(struct cli *cli, int argc, char **argv); /* argv[0] is the name; returns an exit status */
};

#define COMMAND_ARGS(table) .args = (table), .n_args = TDM_ARRAY_SIZE(table)

extern const struct command *const *commands; /* [n_commands]; none before commands_register() */
extern size_t n_commands;
void commands_register(void); /* registry.c; main() calls it first */

const struct command *command_find(const char *name); /* NULL: there is none */

/* Says that there is none of this name, and what was meant; an exit status. */
int command_complain_unknown(const char *name);

/* help.c */
extern const struct arg args_of_all[]; /* the options that every command has */
extern const size_t n_args_of_all;
void help_write(struct buf *to, const struct command *command); /* NULL: of the whole program */
int help_print(const struct command *command);                  /* to standard output; an exit status */
/* What an option does: "only the K likeliest tokens (default 40); 0: off". */
void help_write_option(struct buf *to, const struct arg *arg);

/* job-args.c: the rows that a command takes, as options of a struct job_args. */
const struct arg *job_args_table(enum job_args_kind kind, size_t *ret_n);

#endif
