/* Command lines: a table of options for each command, parsed strictly. A number has to be one from its first to its
 * last character and inside its range; what is wrong is told with the option's name and where its help is.
 *
 * The tables are constant: help, manual and completions are made from them. Where a value goes is an offset into the
 * struct of options that the command hands over. */
#ifndef TANDEM_CLI_ARGS_H
#define TANDEM_CLI_ARGS_H

#include "common/value-range.h"

struct arg_list {
        const char **items;
        size_t n;
};

struct arg_u32_list {
        uint32_t items[32];
        size_t n;
};

/* What a shell offers for a value, unless it is one of some choices. */
enum arg_offer { OFFER_NOTHING, OFFER_FILES, OFFER_MODELS, OFFER_JOBS, OFFER_COMMANDS };

struct arg {
        char letter;      /* 0: none */
        const char *name; /* without the -- */
        /* Kept as: bool, uint32_t, uint64_t, float, the index of a choice (uint32_t), the choice itself or a text
         * (const char *), struct arg_list, struct arg_u32_list. */
        struct tdm_range range;
        size_t at;            /* offset of that */
        double default_value; /* of numbers */
        /* The value that -1 stands for, as other programs have it; "": as if the option was not given. NULL: -1 is no
         * value. */
        const char *minus_one;
        const char *value; /* what stands for it in help: "N" */
        const char *brief; /* what it does, in a few words */
        const char *more;  /* what else to know; may be NULL */
        enum arg_offer offer;
        size_t given_at; /* offset of a bool that becomes true; 0: none */
};

/* Options of one struct. */
struct arg_group {
        const struct arg *args;
        size_t n_args;
        void *base;
};

enum { ARGS_OK = 0, ARGS_USAGE = 2, ARGS_HELP = 100 };

/* argv[0] is the command's name. Options and positional arguments may be mixed; "--" ends options, "-" is positional.
 * The caller frees the lists (arg_list_free). Returns ARGS_*; usage errors have been printed. */
int args_parse(const struct arg_group *groups, size_t n_groups, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional);
/* By name [size] (letter 0) or by letter; NULL: there is none. */
const struct arg *args_find(const struct arg *args, size_t n_args, const char *name, size_t size, char letter);
/* Writes the default of each number that has one. */
void args_set_defaults(const struct arg_group *group);
void arg_list_free(struct arg_list *list);

/* Prints "tandem: COMMAND: …" and where help is; returns ARGS_USAGE. */
int args_usage_error(const char *command, const char *fmt, ...) _printf_(2, 3);

/* Strict: no spaces, no sign but for floats, nothing behind. */
bool parse_u64(const char *text, uint64_t max, uint64_t *ret);
bool parse_real(const char *text, double *ret); /* finite */

#endif
