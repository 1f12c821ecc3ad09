/* Command lines: a table of options for each command, parsed strictly. A number has to be one from its first to its
 * last character and inside its range; what is wrong is told with the option's name and where its help is. */
#ifndef TANDEM_CLI_ARGS_H
#define TANDEM_CLI_ARGS_H

#include "common/util.h"

enum arg_kind { ARG_FLAG, ARG_STRING, ARG_LIST, ARG_U32, ARG_U64, ARG_F32, ARG_CHOICE, ARG_U32_LIST };

struct arg_list {
        const char **items;
        size_t n;
};

struct arg_u32_list {
        uint32_t items[32];
        size_t n;
};

struct arg {
        char short_name; /* 0: none */
        const char *long_name;
        enum arg_kind kind;
        void *to;        /* bool, const char *, struct arg_list, uint32_t, uint64_t, float, int, struct arg_u32_list */
        double min, max; /* of numbers */
        const char *const *choices; /* ARG_CHOICE: names, NULL at the end; *to is the index */
        bool *given;
};

enum { ARGS_OK = 0, ARGS_USAGE = 2, ARGS_HELP = 100 };

/* argv[0] is the command's name. Options and positional arguments may be mixed; "--" ends options, "-" is positional.
 * The caller frees the lists (arg_list_free). Returns ARGS_*; usage errors have been printed. */
int args_parse(const struct arg *args, size_t n_args, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional);
void arg_list_free(struct arg_list *list);

/* Prints "tandem: COMMAND: …" and where help is; returns ARGS_USAGE. */
int args_usage_error(const char *command, const char *fmt, ...) _printf_(2, 3);

/* Strict: no spaces, no sign but for floats, nothing behind. */
bool parse_u64(const char *text, uint64_t max, uint64_t *ret);
bool parse_double(const char *text, double min, double max, double *ret);

#endif
