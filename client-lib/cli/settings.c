/* See settings.h. */
#include "client-lib/cli/settings.h"

#include <inttypes.h>

#define LIST_COLUMN 20 /* of the option's value */
#define LIST_NAME 15   /* columns of a name in the list of all */
#define LIST_WIDTH 79u

/* A value as it would be typed. */
static void write_value(struct buf *to, const struct arg *arg, const void *at)
{
        switch (arg->range.type) {
        case TDM_VALUE_BOOL:
                buf_puts(to, *(const bool *)at ? "on" : "off");
                break;
        case TDM_VALUE_U32:
                buf_printf(to, "%" PRIu32, *(const uint32_t *)at);
                break;
        case TDM_VALUE_U64:
                buf_printf(to, "%" PRIu64, *(const uint64_t *)at);
                break;
        case TDM_VALUE_REAL:
                buf_printf(to, "%g", (double)*(const float *)at);
                break;
        case TDM_VALUE_CHOICE:
                buf_puts(to, arg->range.choices[*(const uint32_t *)at]);
                break;
        case TDM_VALUE_NAME:
        case TDM_VALUE_TEXT:
                buf_puts(to, term_safe(*(const char *const *)at ? *(const char *const *)at : ""));
                break;
        case TDM_VALUE_TEXTS:
                buf_printf(to, "%zu texts", ((const struct arg_list *)at)->n);
                break;
        case TDM_VALUE_U32_LIST:
                buf_printf(to, "%zu numbers", ((const struct arg_u32_list *)at)->n);
                break;
        }
}

/* Not of a chat: what only --json prints, what goes on with one answer of another place, and what is for tests. */
static bool is_for_chat(const struct arg *arg)
{
        static const size_t others[] = {
                offsetof(struct job_args, given.top_logprobs),
                offsetof(struct job_args, given.drawn),
                offsetof(struct job_args, given.drawn_numerics),
                offsetof(struct job_args, given.may_degrade),
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(others); i++)
                if (arg->given_at == others[i])
                        return false;
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++)
                if (tdm_job_options[i].for_tests && strcmp(tdm_job_option_flag(&tdm_job_options[i]), arg->name) == 0)
                        return false;
        return true;
}

/* By its name, or by its letter alone. */
static const struct arg *find_setting(const char *name, size_t size)
{
        size_t n;
        const struct arg *args = job_args_table(JOB_ARGS_ALL, &n), *by_name = args_find(args, n, name, size, 0);

        return by_name || size != 1 ? by_name : args_find(args, n, NULL, 0, name[0]);
}

static bool is_set(const struct job_args *set, const struct arg *arg)
{
        return arg->given_at && *(const bool *)((const char *)set + arg->given_at);
}

static void list_set(const struct job_args *set, const struct arg *args, size_t n)
{
        _cleanup_(buf_freep) struct buf text = { 0 };
        size_t n_set = 0;

        for (size_t i = 0; i < n; i++) {
                if (!is_set(set, &args[i]))
                        continue;
                n_set++;
                text.size = 0;
                write_value(&text, &args[i], (const char *)set + args[i].at);
                buf_add(&text, "", 1);
                if (!text.failed)
                        out_printf("%-*s  %s\n", LIST_COLUMN, args[i].name, text.data);
        }
        out_puts(n_set > 0 ? "\n" : "Nothing is set.\n\n");
}

void settings_list(const struct job_args *set)
{
        unsigned width = TDM_MIN(out_columns() ? out_columns() : LIST_WIDTH, LIST_WIDTH), at = 0;
        size_t n;
        const struct arg *args = job_args_table(JOB_ARGS_ALL, &n);

        out_lines(true);
        list_set(set, args, n);
        out_puts("/set NAME VALUE sets an option, /set NAME explains it, /set NAME default takes it back:\n");
        for (size_t i = 0; i < n; i++) {
                unsigned columns = (unsigned)TDM_MAX(text_columns(args[i].name), LIST_NAME);

                if (!is_for_chat(&args[i]))
                        continue;
                if (at > 0 && at + 2 + columns > width) {
                        out_puts("\n");
                        at = 0;
                }
                out_printf("  %-*s", LIST_NAME, args[i].name);
                at += 2 + columns;
        }
        out_puts("\n");
        out_lines(false);
        out_flush();
}

bool settings_explain(const struct job_args *set, const char *name, size_t size)
{
        const struct arg *arg = find_setting(name, size);
        _cleanup_(buf_freep) struct buf text = { 0 };

        if (!arg || arg->range.type == TDM_VALUE_BOOL)
                return false;
        help_write_option(&text, arg);
        buf_puts(&text, is_set(set, arg) ? ". It is set to " : ". It is not set");
        if (is_set(set, arg))
                write_value(&text, arg, (const char *)set + arg->at);
        buf_add(&text, "", 1);
        out_lines(true);
        if (!text.failed)
                out_printf("%s %s  %s.\n", arg->name, arg->value ? arg->value : "", text.data);
        out_lines(false);
        out_flush();
        return true;
}

bool settings_is_for_json(const char *name, size_t size)
{
        const struct arg *arg = find_setting(name, size);

        return arg && arg->given_at == offsetof(struct job_args, given.top_logprobs);
}

bool settings_take_back(struct job_args *set, const char *name, size_t size)
{
        const struct arg *arg = find_setting(name, size);

        if (arg)
                job_args_take_back(set, arg);
        return arg != NULL;
}

bool settings_switch(struct job_args *set, const char *name, size_t size, const char *word)
{
        const struct arg *arg = find_setting(name, size);
        bool on = strcmp(word, "on") == 0;

        if (!arg || arg->range.type != TDM_VALUE_BOOL || (!on && strcmp(word, "off") != 0))
                return false;
        *(bool *)((char *)set + arg->at) = on;
        if (arg->given_at)
                *(bool *)((char *)set + arg->given_at) = true;
        return job_args_finish(set);
}

bool settings_is_given(const struct job_args *set, const char *name, size_t size)
{
        const struct arg *arg = find_setting(name, size);

        return arg && is_set(set, arg);
}

const char *settings_to_stop_thinking(const struct job_args *set)
{
        if (set->options.thinking != TANDEM_THINKING_AUTO && set->options.thinking != TANDEM_THINKING_OFF)
                return "think auto";
        return set->options.thinking_budget > 0 ? "think-budget 0" : NULL;
}
