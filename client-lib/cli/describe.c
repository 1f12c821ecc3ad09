/* A tool of the build: fills completions and manual pages from the tables of commands and options. It copies a template
 * to standard output and puts text in the place of each line that is nothing but @NAME@. Not installed. */
#include "client-lib/cli/cli.h"

#include <ctype.h>

/* The groups of options that a command has. */
static size_t groups_of(const struct command *command, struct arg_group groups[2])
{
        groups[0] = (struct arg_group){ command->args, command->n_args, NULL };
        groups[1].args = job_args_table(command->job_args, &groups[1].n_args);
        return 2;
}

#define FOR_EACH_ARG(arg, command)                                                                                     \
        for (struct {                                                                                                  \
                     struct arg_group groups[2];                                                                       \
                     size_t n, g;                                                                                      \
             } at_ = { .n = groups_of(command, at_.groups) };                                                          \
             at_.g < at_.n; at_.g++)                                                                                   \
                for (const struct arg *arg = at_.groups[at_.g].args;                                                   \
                     arg < at_.groups[at_.g].args + at_.groups[at_.g].n_args; arg++)

/* text between single quotes of a shell, with a backslash before each of special. */
static void write_quoted(struct buf *to, const char *text, const char *special)
{
        for (; *text; text++) {
                if (*text == '\'')
                        buf_puts(to, "'\\'");
                else if (strchr(special, *text))
                        buf_puts(to, "\\");
                buf_add(to, text, 1);
        }
}

static void write_choices(struct buf *to, const char *const *choices, const char *between)
{
        for (size_t i = 0; choices[i]; i++)
                buf_printf(to, "%s%s", i ? between : "", choices[i]);
}

static void write_command_names(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++)
                buf_printf(to, "%s%s", i ? " " : "", commands[i]->name);
}

/* ---- bash ---- */

static void bash_command_names(struct buf *to)
{
        buf_puts(to, "_tandem_commands='");
        write_command_names(to);
        buf_puts(to, "'\n");
}

/* The words that may follow each command. */
static void bash_words(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                const struct command *c = commands[i];

                buf_printf(to, "        %s) words=\"", c->name);
                if (c->offer == OFFER_MODELS)
                        buf_puts(to, "$(_tandem_names models name) ");
                else if (c->offer == OFFER_JOBS)
                        buf_puts(to, "$(_tandem_names jobs job) ");
                else if (c->offer == OFFER_COMMANDS)
                        buf_puts(to, "$_tandem_commands ");
                if (c->choices) {
                        write_choices(to, c->choices, " ");
                        buf_puts(to, " ");
                }
                FOR_EACH_ARG(arg, c)
                buf_printf(to, "--%s ", arg->name);
                buf_printf(to, "--socket --color --help\"%s ;;\n",
                           c->offer == OFFER_FILES  ? " files=all" :
                           c->offer == OFFER_MODELS ? " files=models" :
                                                      "");
        }
}

/* The values of an option, for the word after it. */
static void bash_values(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                const struct command *c = commands[i];

                FOR_EACH_ARG(arg, c)
                {
                        if (!arg->range.choices && arg->offer == OFFER_NOTHING)
                                continue;
                        buf_printf(to, "        %s:--%s", c->name, arg->name);
                        if (arg->letter)
                                buf_printf(to, " | %s:-%c", c->name, arg->letter);
                        buf_puts(to, ")\n");
                        if (arg->range.choices) {
                                buf_puts(to, "                _tandem_offer '");
                                write_choices(to, arg->range.choices, " ");
                                buf_puts(to, "'\n");
                        } else if (arg->offer == OFFER_MODELS) {
                                buf_puts(to, "                _tandem_offer_models\n");
                        } else {
                                buf_puts(to, "                _tandem_offer_files\n");
                        }
                        buf_puts(to, "                return\n                ;;\n");
                }
        }
}

/* ---- fish ---- */

static void fish_commands(struct buf *to)
{
        buf_puts(to, "set -l commands ");
        write_command_names(to);
        buf_puts(to, "\n\n");
        for (size_t i = 0; i < n_commands; i++) {
                buf_printf(to, "complete -c tandem -n \"not __fish_seen_subcommand_from $commands\" -a %s -d '",
                           commands[i]->name);
                for (const char *at = commands[i]->summary; *at; at++)
                        buf_printf(to, "%s%c", *at == '\'' || *at == '\\' ? "\\" : "", *at);
                buf_puts(to, "'\n");
        }
}

static void fish_options(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                const struct command *c = commands[i];

                if (c->offer == OFFER_FILES) {
                        buf_printf(to, "complete -c tandem -n '__fish_seen_subcommand_from %s' -F\n", c->name);
                } else if (c->offer != OFFER_NOTHING || c->choices) {
                        buf_printf(to, "complete -c tandem -n '__fish_seen_subcommand_from %s' %s-a ", c->name,
                                   c->offer == OFFER_MODELS ? "-F " : "");
                        if (c->choices) {
                                buf_puts(to, "'");
                                write_choices(to, c->choices, " ");
                                buf_puts(to, "'\n");
                        } else {
                                buf_puts(to, c->offer == OFFER_MODELS ? "'(__tandem_names models name)'\n" :
                                             c->offer == OFFER_JOBS   ? "'(__tandem_names jobs job)'\n" :
                                                                        "\"$commands\"\n");
                        }
                }
                FOR_EACH_ARG(arg, c)
                {
                        buf_printf(to, "complete -c tandem -n '__fish_seen_subcommand_from %s'", c->name);
                        if (arg->letter)
                                buf_printf(to, " -s %c", arg->letter);
                        buf_printf(to, " -l %s", arg->name);
                        if (arg->range.choices) {
                                buf_puts(to, " -x -a '");
                                write_choices(to, arg->range.choices, " ");
                                buf_puts(to, "'");
                        } else if (arg->offer == OFFER_MODELS) {
                                buf_puts(to, " -r -F -a '(__tandem_names models name)'");
                        } else if (arg->offer == OFFER_FILES) {
                                buf_puts(to, " -r -F");
                        } else if (arg->range.type != TDM_VALUE_BOOL) {
                                buf_puts(to, " -x");
                        }
                        buf_puts(to, " -d '");
                        for (const char *at = arg->brief; *at; at++)
                                buf_printf(to, "%s%c", *at == '\'' || *at == '\\' ? "\\" : "", *at);
                        buf_puts(to, "'\n");
                }
        }
}

/* ---- zsh ---- */

static void zsh_commands(struct buf *to)
{
        buf_puts(to, "        commands=(");
        for (size_t i = 0; i < n_commands; i++) {
                buf_printf(to, "%s%s:'", i ? "\n                " : "", commands[i]->name);
                write_quoted(to, commands[i]->summary, ":\\");
                buf_puts(to, "'");
        }
        buf_puts(to, ")\n");
}

static void zsh_option(struct buf *to, const struct arg *arg)
{
        bool many = arg->range.type == TDM_VALUE_TEXTS;

        if (arg->letter)
                buf_printf(to, " {-%c,--%s}'[", arg->letter, arg->name);
        else
                buf_printf(to, " '%s--%s[", many ? "*" : "", arg->name);
        write_quoted(to, arg->brief, "[]\\");
        buf_puts(to, "]");
        if (arg->range.type != TDM_VALUE_BOOL) {
                buf_puts(to, ":");
                write_quoted(to, arg->value, ":\\");
                buf_puts(to, ":");
        }
        if (arg->range.choices) {
                buf_puts(to, "(");
                write_choices(to, arg->range.choices, " ");
                buf_puts(to, ")");
        } else if (arg->offer == OFFER_MODELS) {
                buf_puts(to, "_tandem_models");
        } else if (arg->offer == OFFER_FILES) {
                buf_puts(to, "_files");
        }
        buf_puts(to, "'");
}

static void zsh_options(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                const struct command *c = commands[i];

                buf_printf(to, "                %s) _arguments $common", c->name);
                FOR_EACH_ARG(arg, c)
                zsh_option(to, arg);
                if (c->choices) {
                        buf_puts(to, " '1:which:(");
                        write_choices(to, c->choices, " ");
                        buf_puts(to, ")'");
                } else if (c->offer == OFFER_MODELS) {
                        buf_puts(to, " '1:model:_tandem_models'");
                } else if (c->offer == OFFER_JOBS) {
                        buf_puts(to, " '1:job:_tandem_jobs'");
                } else if (c->offer == OFFER_COMMANDS) {
                        buf_puts(to, " '1:command:(");
                        write_command_names(to);
                        buf_puts(to, ")'");
                } else if (c->offer == OFFER_FILES) {
                        buf_puts(to, " '*:file:_files'");
                } else if (strstr(c->usage, "|-]")) {
                        buf_puts(to, " '*:text:'");
                }
                buf_puts(to, " ;;\n");
        }
}

/* ---- manual pages, in the markup of scdoc ---- */

static void write_escaped(struct buf *to, const char *text)
{
        for (; *text; text++) {
                if (strchr("\\*_`<>[]#", *text))
                        buf_puts(to, "\\");
                buf_add(to, text, 1);
        }
}

/* A usage line: literal words bold, WORDS that stand for something underlined. */
static void write_usage(struct buf *to, const char *usage)
{
        while (*usage) {
                size_t n = strspn(usage, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");

                if (n > 0) {
                        buf_printf(to, "_%.*s_", (int)n, usage);
                } else if ((n = strspn(usage, "abcdefghijklmnopqrstuvwxyz-")) > 0) {
                        buf_printf(to, "*%.*s*", (int)n, usage);
                } else {
                        n = 1;
                        buf_printf(to, "%s%c", strchr("[]", *usage) ? "\\" : "", *usage);
                }
                usage += n;
        }
}

/* The paragraphs of about, each with a tab in front. */
static void write_indented(struct buf *to, const char *text)
{
        while (*text) {
                size_t n = strcspn(text, "\n");
                char *line = strndup(text, n);

                if (!line) {
                        to->failed = true;
                        return;
                }
                if (n > 0)
                        buf_puts(to, "\t");
                write_escaped(to, line);
                buf_puts(to, "\n");
                free(line);
                text += n + (text[n] == '\n');
        }
}

static void man_commands(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                buf_printf(to, "%s*tandem %s*%s", i ? "\n" : "", commands[i]->name, *commands[i]->usage ? " " : "");
                write_usage(to, commands[i]->usage);
                buf_puts(to, "\n");
                write_indented(to, commands[i]->about);
        }
}

/* Text of a table as a sentence: a capital in front, a full stop behind. */
static void write_sentence(struct buf *to, const struct arg *arg)
{
        _cleanup_(buf_freep) struct buf text = { 0 };

        help_write_option(&text, arg);
        if (text.failed) {
                to->failed = true;
                return;
        }
        text.data[0] = (char)toupper((unsigned char)text.data[0]);
        buf_puts(to, "\t");
        write_escaped(to, text.data);
        buf_puts(to, ".\n");
}

static void man_options_of(struct buf *to, const struct arg *args, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                buf_puts(to, "\n");
                if (args[i].letter)
                        buf_printf(to, "*-%c*, ", args[i].letter);
                buf_printf(to, "*--%s*", args[i].name);
                if (args[i].value)
                        buf_printf(to, " _%s_", args[i].value);
                buf_puts(to, "\n");
                write_sentence(to, &args[i]);
        }
}

static void man_options(struct buf *to)
{
        const struct arg *args;
        size_t n;

        buf_puts(to, "## Of generate and chat\n");
        args = job_args_table(JOB_ARGS_ALL, &n);
        man_options_of(to, args, n);
        for (size_t i = 0; i < n_commands; i++) {
                args = commands[i]->args;
                n = commands[i]->n_args;
                if (n == 0)
                        continue;
                buf_printf(to, "\n## Of %s\n", commands[i]->name);
                man_options_of(to, args, n);
                if (commands[i]->job_args == JOB_ARGS_BENCH) {
                        args = job_args_table(JOB_ARGS_BENCH, &n);
                        man_options_of(to, args, n);
                }
        }
}

static const char *bus_type(enum tdm_value_type type)
{
        static const char *const types[] = {
                [TDM_VALUE_BOOL] = "b",   [TDM_VALUE_U32] = "u",  [TDM_VALUE_U64] = "t",  [TDM_VALUE_REAL] = "d",
                [TDM_VALUE_CHOICE] = "s", [TDM_VALUE_NAME] = "s", [TDM_VALUE_TEXT] = "s", [TDM_VALUE_TEXTS] = "as",
        };

        return types[type];
}

/* On D-Bus what is not given is 0, so the command's defaults are left out. */
static void bus_options(struct buf *to)
{
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++) {
                const struct tdm_job_option *row = &tdm_job_options[i];
                const struct arg arg = { .range = row->range, .brief = row->brief, .more = row->more };

                buf_printf(to, "%s*%s* (_%s_)\n", i ? "\n" : "", row->name, bus_type(row->range.type));
                write_sentence(to, &arg);
        }
}

static void write_properties(struct buf *to, const char *const *names, size_t n)
{
        for (size_t i = 0; i < n; i++)
                buf_printf(to, "*%s*%s\n", names[i], i + 1 < n ? "," : ".");
}

static void bus_worker(struct buf *to)
{
        static const char *const names[] = {
#define WORKER_FIELD(TYPE, field, BUS_TYPE, bus_name, ...) bus_name,
#include "common/status-fields.def"
        };

        write_properties(to, names, TDM_ARRAY_SIZE(names));
}

static void bus_model(struct buf *to)
{
        static const char *const names[] = {
#define MODEL_FIELD(TYPE, field, BUS_TYPE, bus_name, ...) bus_name,
#include "common/status-fields.def"
        };

        write_properties(to, names, TDM_ARRAY_SIZE(names));
}

/* ---- the template ---- */

static const struct {
        const char *name;
        void (*write)(struct buf *to);
} parts[] = {
        { "BASH_COMMANDS", bash_command_names }, { "BASH_WORDS", bash_words },     { "BASH_VALUES", bash_values },
        { "FISH_COMMANDS", fish_commands },      { "FISH_OPTIONS", fish_options }, { "ZSH_COMMANDS", zsh_commands },
        { "ZSH_OPTIONS", zsh_options },          { "MAN_COMMANDS", man_commands }, { "MAN_OPTIONS", man_options },
        { "BUS_OPTIONS", bus_options },          { "BUS_WORKER", bus_worker },     { "BUS_MODEL", bus_model },
};

static bool write_part(struct buf *to, const char *name, size_t size)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(parts); i++) {
                if (strlen(parts[i].name) != size || memcmp(parts[i].name, name, size) != 0)
                        continue;
                parts[i].write(to);
                return true;
        }
        return false;
}

int main(int argc, char **argv)
{
        _cleanup_(fclosep) FILE *template = NULL;
        _cleanup_(freep) char *line = NULL;
        _cleanup_(buf_freep) struct buf out = { 0 };
        size_t capacity = 0;
        ssize_t n;

        if (argc != 2) {
                fprintf(stderr, "usage: %s TEMPLATE\n", argv[0]);
                return 2;
        }
        commands_register();
        template = fopen(argv[1], "re");
        if (!template) {
                fprintf(stderr, "%s: cannot open %s: %s\n", argv[0], argv[1], strerror(errno));
                return 1;
        }
        while ((n = getline(&line, &capacity, template)) > 0) {
                if (n > 3 && line[0] == '@' && line[n - 2] == '@') {
                        if (!write_part(&out, line + 1, (size_t)n - 3)) {
                                fprintf(stderr, "%s: %s has an unknown part: %s", argv[0], argv[1], line);
                                return 1;
                        }
                        continue;
                }
                buf_add(&out, line, (size_t)n);
        }
        if (out.failed || fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout) != 0) {
                fprintf(stderr, "%s: cannot write\n", argv[0]);
                return 1;
        }
        return 0;
}
