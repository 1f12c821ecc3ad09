/* See args.h. getopt_long() is not used: it takes abbreviations, and its messages cannot say what a value should be. */
#include "client-lib/cli/args.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

int args_usage_error(const char *command, const char *fmt, ...)
{
        va_list args;

        fprintf(stderr, "tandem: %s: ", command);
        va_start(args, fmt);
        vfprintf(stderr, fmt, args);
        va_end(args);
        fprintf(stderr, " (see `tandem help %s`)\n", command);
        return ARGS_USAGE;
}

bool parse_u64(const char *text, uint64_t max, uint64_t *ret)
{
        uint64_t value = 0;

        if (!*text)
                return false;
        for (; *text; text++) {
                unsigned digit = (unsigned)(*text - '0');

                if (digit > 9 || value > (UINT64_MAX - digit) / 10)
                        return false;
                value = value * 10 + digit;
        }
        if (value > max)
                return false;
        *ret = value;
        return true;
}

bool parse_double(const char *text, double min, double max, double *ret)
{
        char *end;
        double value;

        /* strtod() would take spaces, hexadecimal, "inf" and "nan". */
        if (strspn(text, "0123456789+-.eE") != strlen(text) || !*text)
                return false;
        value = strtod(text, &end);
        if (*end || end == text || !isfinite(value) || value < min || value > max)
                return false;
        *ret = value;
        return true;
}

static bool parse_u32_list(const char *text, double min, double max, struct arg_u32_list *ret)
{
        struct arg_u32_list list = { 0 };
        char item[16];

        for (;;) {
                size_t n = strcspn(text, ",");
                uint64_t value;

                if (n >= sizeof(item) || list.n == TDM_ARRAY_SIZE(list.items))
                        return false;
                memcpy(item, text, n);
                item[n] = '\0';
                if (!parse_u64(item, (uint64_t)max, &value) || (double)value < min)
                        return false;
                list.items[list.n++] = (uint32_t)value;
                if (!text[n])
                        break;
                text += n + 1;
        }
        *ret = list;
        return true;
}

static int bad_choice(const char *command, const char *spelling, const struct arg *arg, const char *value)
{
        char names[256] = "";
        size_t used = 0;

        for (unsigned i = 0; arg->choices[i] && used < sizeof(names); i++) {
                int n = snprintf(names + used, sizeof(names) - used, "%s%s",
                                 i == 0              ? "" :
                                 arg->choices[i + 1] ? ", " :
                                                       " or ",
                                 arg->choices[i]);
                used += n > 0 ? (size_t)n : 0;
        }
        return args_usage_error(command, "%s: '%s' is not %s", spelling, value, names);
}

static int store(const char *command, const char *spelling, const struct arg *arg, const char *value)
{
        uint64_t u;
        double d;

        switch (arg->kind) {
        case ARG_FLAG:
                *(bool *)arg->to = true;
                break;
        case ARG_STRING:
                *(const char **)arg->to = value;
                break;
        case ARG_LIST: {
                struct arg_list *list = arg->to;
                const char **items = realloc(list->items, (list->n + 1) * sizeof(*items));

                if (!items) {
                        fprintf(stderr, "tandem: no memory for the command line\n");
                        return 1;
                }
                list->items = items;
                list->items[list->n++] = value;
                break;
        }
        case ARG_U32:
        case ARG_U64:
                if (!parse_u64(value, arg->kind == ARG_U32 ? UINT32_MAX : UINT64_MAX, &u) ||
                    (arg->max > 0 && ((double)u < arg->min || (double)u > arg->max)))
                        return args_usage_error(command, "%s: '%s' is not a whole number from %.0f to %.0f", spelling,
                                                value, arg->min,
                                                arg->max > 0         ? arg->max :
                                                arg->kind == ARG_U32 ? (double)UINT32_MAX :
                                                                       0x1p64 - 1);
                if (arg->kind == ARG_U32)
                        *(uint32_t *)arg->to = (uint32_t)u;
                else
                        *(uint64_t *)arg->to = u;
                break;
        case ARG_F32:
                if (!parse_double(value, arg->min, arg->max, &d))
                        return args_usage_error(command, "%s: '%s' is not a number from %g to %g", spelling, value,
                                                arg->min, arg->max);
                *(float *)arg->to = (float)d;
                break;
        case ARG_CHOICE:
                for (int i = 0; arg->choices[i]; i++) {
                        if (strcmp(value, arg->choices[i]) != 0)
                                continue;
                        *(int *)arg->to = i;
                        goto stored;
                }
                return bad_choice(command, spelling, arg, value);
        case ARG_U32_LIST:
                if (!parse_u32_list(value, arg->min, arg->max, arg->to))
                        return args_usage_error(command,
                                                "%s: '%s' is not a list like 1,8,32 of numbers from %.0f to %.0f",
                                                spelling, value, arg->min, arg->max);
                break;
        }
stored:
        if (arg->given)
                *arg->given = true;
        return ARGS_OK;
}

int args_parse(const struct arg *args, size_t n_args, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional)
{
        const char *command = argv[0];
        unsigned n_positional = 0;
        bool options = true;
        int k;

        for (int i = 1; i < argc; i++) {
                const char *word = argv[i], *value = NULL;
                const struct arg *arg = NULL;
                char spelling[64];

                if (!options || word[0] != '-' || !word[1]) {
                        if (n_positional == max_positional)
                                return args_usage_error(command, "'%.60s' is one argument too many%s", word,
                                                        max_positional ? " (quote text that has spaces)" : "");
                        positional[n_positional++] = word;
                        continue;
                }
                if (strcmp(word, "--") == 0) {
                        options = false;
                        continue;
                }
                if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
                        return ARGS_HELP;

                if (word[1] == '-') {
                        size_t n = strcspn(word + 2, "=");

                        for (size_t a = 0; a < n_args && !arg; a++)
                                if (strlen(args[a].long_name) == n && memcmp(args[a].long_name, word + 2, n) == 0)
                                        arg = &args[a];
                        snprintf(spelling, sizeof(spelling), "--%.*s", (int)TDM_MIN(n, (size_t)60), word + 2);
                        if (word[2 + n] == '=')
                                value = word + 2 + n + 1;
                } else {
                        for (size_t a = 0; a < n_args && !arg; a++)
                                if (args[a].short_name == word[1])
                                        arg = &args[a];
                        snprintf(spelling, sizeof(spelling), "-%c", word[1]);
                        if (word[2])
                                value = word + 2;
                }
                if (!arg)
                        return args_usage_error(command, "there is no option %.60s%s", word,
                                                max_positional ? "; text that begins with '-' goes behind --" : "");
                if (arg->kind == ARG_FLAG && value)
                        return args_usage_error(command, "%s takes no value", spelling);
                if (arg->kind != ARG_FLAG && !value) {
                        if (i + 1 == argc)
                                return args_usage_error(command, "%s needs a value", spelling);
                        value = argv[++i];
                }
                k = store(command, spelling, arg, value);
                if (k != ARGS_OK)
                        return k;
        }
        *ret_n_positional = n_positional;
        return ARGS_OK;
}

void arg_list_free(struct arg_list *list)
{
        free(list->items);
        *list = (struct arg_list){ 0 };
}
