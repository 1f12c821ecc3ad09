/* See args.h. getopt_long() is not used: it takes abbreviations, and its messages cannot say what a value should be. */
#include "client-lib/cli/args.h"
#include "client-lib/cli/term.h"
#include "common/suggest.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

int args_usage_error(const char *command, const char *fmt, ...)
{
        _cleanup_(freep) char *text = NULL;
        va_list args;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0)
                text = NULL;
        va_end(args);
        if (command[0] == '/') /* of a chat */
                complain("%s: %s (%s alone lists the options)", command, text ? text : fmt, command);
        else
                complain("%s: %s (see `tandem help %s`)", command, text ? text : fmt, command);
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

bool parse_real(const char *text, double *ret)
{
        char *end;
        double value;

        /* strtod() would take spaces, hexadecimal, "inf" and "nan". */
        if (strspn(text, "0123456789+-.eE") != strlen(text) || !*text)
                return false;
        value = strtod(text, &end);
        if (*end || end == text || !isfinite(value))
                return false;
        *ret = value;
        return true;
}

static bool parse_u32_list(const char *text, const struct tdm_range *range, struct arg_u32_list *ret)
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
                if (!parse_u64(item, UINT64_MAX, &value) || !tdm_range_has_u64(range, value))
                        return false;
                list.items[list.n++] = (uint32_t)value;
                if (!text[n])
                        break;
                text += n + 1;
        }
        *ret = list;
        return true;
}

static int add_text(struct arg_list *list, const char *value)
{
        const char **items = realloc(list->items, (list->n + 1) * sizeof(*items));

        if (!items) {
                fprintf(stderr, "tandem: no memory for the command line\n");
                return 1;
        }
        list->items = items;
        list->items[list->n++] = value;
        return ARGS_OK;
}

/* false: the value is not in the range. */
static bool convert_value(const struct arg *arg, const char *value, void *to)
{
        const struct tdm_range *range = &arg->range;
        uint64_t u;
        double d;
        int i;

        switch (range->type) {
        case TDM_VALUE_BOOL:
                *(bool *)to = true;
                return true;
        case TDM_VALUE_U32:
                if (!parse_u64(value, UINT32_MAX, &u) || !tdm_range_has_u64(range, u))
                        return false;
                *(uint32_t *)to = (uint32_t)u;
                return true;
        case TDM_VALUE_U64:
                if (!parse_u64(value, UINT64_MAX, &u) || !tdm_range_has_u64(range, u))
                        return false;
                *(uint64_t *)to = u;
                return true;
        case TDM_VALUE_REAL:
                if (!parse_real(value, &d) || !tdm_range_has_real(range, d))
                        return false;
                *(float *)to = (float)d;
                return true;
        case TDM_VALUE_CHOICE:
        case TDM_VALUE_NAME:
                i = tdm_range_choice(range, value);
                if (i < 0)
                        return false;
                if (range->type == TDM_VALUE_CHOICE)
                        *(uint32_t *)to = (uint32_t)i;
                else
                        *(const char **)to = range->choices[i];
                return true;
        case TDM_VALUE_TEXT:
                if (!tdm_range_has_size(range, strlen(value)))
                        return false;
                *(const char **)to = value;
                return true;
        case TDM_VALUE_TEXTS:
                return tdm_range_has_size(range, strlen(value));
        case TDM_VALUE_U32_LIST:
                return parse_u32_list(value, range, to);
        }
        return false;
}

/* Who gives a number below 0 means "the default" or "no limit": so what stands for these is said too. */
static int refuse_value(const char *command, const char *spelling, const struct arg *arg, const char *value)
{
        char wanted[TDM_RANGE_TEXT_MAX];
        bool negative = value[0] == '-' && value[1] >= '0' && value[1] <= '9';

        return args_usage_error(command, "%s: '%s' is not %s%s%s%s", spelling, value,
                                tdm_range_text(&arg->range, wanted), arg->minus_one ? " or -1" : "",
                                negative && arg->more ? "; " : "", negative && arg->more ? arg->more : "");
}

static int store_value(const char *command, const char *spelling, const struct arg *arg, const char *value, char *base)
{
        int k;

        if (arg->minus_one && strcmp(value, "-1") == 0) {
                if (!*arg->minus_one) {
                        if (arg->given_at)
                                *(bool *)(base + arg->given_at) = false;
                        return ARGS_OK;
                }
                value = arg->minus_one;
        }
        if (!convert_value(arg, value, base + arg->at))
                return refuse_value(command, spelling, arg, value);
        if (arg->range.type == TDM_VALUE_TEXTS) {
                k = add_text((struct arg_list *)(void *)(base + arg->at), value);
                if (k != ARGS_OK)
                        return k;
        }
        if (arg->given_at)
                *(bool *)(base + arg->given_at) = true;
        return ARGS_OK;
}

void args_set_defaults(const struct arg_group *group)
{
        for (size_t i = 0; i < group->n_args; i++) {
                const struct arg *arg = &group->args[i];
                void *to = (char *)group->base + arg->at;

                if (arg->default_value == 0)
                        continue;
                if (arg->range.type == TDM_VALUE_U32)
                        *(uint32_t *)to = (uint32_t)arg->default_value;
                else if (arg->range.type == TDM_VALUE_U64)
                        *(uint64_t *)to = (uint64_t)arg->default_value;
                else if (arg->range.type == TDM_VALUE_REAL)
                        *(float *)to = (float)arg->default_value;
        }
}

const struct arg *args_find(const struct arg *args, size_t n_args, const char *name, size_t size, char letter)
{
        for (size_t i = 0; i < n_args; i++)
                if (letter ? args[i].letter == letter :
                             strlen(args[i].name) == size && memcmp(args[i].name, name, size) == 0)
                        return &args[i];
        return NULL;
}

static const struct arg *find_arg(const struct arg_group *groups, size_t n_groups, const char *name, size_t size,
                                  char letter, char **ret_base)
{
        for (size_t g = 0; g < n_groups; g++) {
                const struct arg *arg = args_find(groups[g].args, groups[g].n_args, name, size, letter);

                if (!arg)
                        continue;
                *ret_base = groups[g].base;
                return arg;
        }
        return NULL;
}

/* Our name of an option that other programs name differently. */
static const char *arg_synonym(const char *name)
{
        static const char *const pairs[][2] = {
                { "temperature", "temp" },
                { "num-predict", "max-tokens" },
                { "n-predict", "max-tokens" },
                { "tokens", "max-tokens" },
                { "max-length", "max-tokens" },
                { "format", "schema" },
                { "json-schema", "schema" },
                { "keepalive", "keep-alive" },
                { "repeat-last-n", "repeat-last" },
                { "system-prompt", "system" },
                { "sys", "system" },
                { "host", "socket" },
                { "grammar-file", "grammar" },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(pairs); i++)
                if (strcmp(name, pairs[i][0]) == 0)
                        return pairs[i][1];
        return NULL;
}

static int no_option(const struct arg_group *groups, size_t n_groups, const char *command, const char *word,
                     bool takes_text)
{
        char name[TDM_SUGGEST_MAX + 1];
        struct tdm_suggestion near = tdm_suggest_for(name);
        const char *meant = NULL, *other, *marks = command[0] == '/' ? "" : "--";
        char *base;

        if (command[0] == '/') /* typed without */
                word += strspn(word, "-");
        else if (takes_text && (strcmp(word, "-p") == 0 || strcmp(word, "--prompt") == 0))
                return args_usage_error(command, "there is no option %s: the text is given without one", word);
        if (strncmp(word, "--", 2) == 0 || command[0] == '/') {
                const char *from = word + strspn(word, "-");

                snprintf(name, sizeof(name), "%.*s", (int)strcspn(from, "="), from);
                for (char *p = name; *p; p++)
                        *p = *p == '_' ? '-' : *p;
                other = arg_synonym(name);
                for (size_t g = 0; g < n_groups; g++)
                        for (size_t a = 0; a < groups[g].n_args; a++)
                                tdm_suggest(&near, groups[g].args[a].name);
                meant = other && find_arg(groups, n_groups, other, strlen(other), 0, &base) ? other :
                                                                                              tdm_suggest_best(&near);
        }
        if (meant)
                return args_usage_error(command, "there is no option %.60s; did you mean %s%s?", word, marks, meant);
        return args_usage_error(command, "there is no option %.60s%s", word,
                                takes_text ? "; text that begins with '-' goes behind --" : "");
}

/* A command that takes no text may be given a model's name as if it did. */
static int too_many(const struct arg_group *groups, size_t n_groups, const char *command, const char *word,
                    unsigned max_positional)
{
        char *base;

        if (max_positional > 0)
                return args_usage_error(command, "'%.60s' is one argument too many; quote text that has spaces", word);
        if (find_arg(groups, n_groups, "model", 5, 0, &base))
                return args_usage_error(command, "'%.60s' is one argument too many; a model: -m %.60s", word, word);
        return args_usage_error(command, "'%.60s' is one argument too many", word);
}

int args_parse(const struct arg_group *groups, size_t n_groups, int argc, char **argv, const char **positional,
               unsigned max_positional, unsigned *ret_n_positional)
{
        const char *command = argv[0];
        unsigned n_positional = 0;
        bool options = true;
        int k;

        for (int i = 1; i < argc; i++) {
                const char *word = argv[i], *value = NULL;
                const struct arg *arg;
                char spelling[64], *base;

                if (!options || word[0] != '-' || !word[1]) {
                        if (n_positional == max_positional)
                                return too_many(groups, n_groups, command, word, max_positional);
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

                        arg = find_arg(groups, n_groups, word + 2, n, 0, &base);
                        snprintf(spelling, sizeof(spelling), "--%.*s", (int)TDM_MIN(n, (size_t)60), word + 2);
                        if (word[2 + n] == '=')
                                value = word + 2 + n + 1;
                } else {
                        arg = find_arg(groups, n_groups, NULL, 0, word[1], &base);
                        snprintf(spelling, sizeof(spelling), "-%c", word[1]);
                        if (word[2])
                                value = word + 2;
                }
                if (!arg)
                        return no_option(groups, n_groups, command, word, max_positional > 0);
                if (arg->range.type == TDM_VALUE_BOOL && value)
                        return args_usage_error(command, "%s takes no value", spelling);
                if (arg->range.type != TDM_VALUE_BOOL && !value) {
                        if (i + 1 == argc)
                                return args_usage_error(command, "%s needs a value%s", spelling,
                                                        command[0] == '/' ? "; default takes it back" : "");
                        value = argv[++i];
                }
                k = store_value(command, spelling, arg, value ? value : "", base);
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
