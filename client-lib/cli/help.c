/* What `tandem help` prints, from the tables of the commands. Lines are broken at 80 columns. */
#include "client-lib/cli/cli.h"

#define WIDTH 80
#define COMMAND_COLUMNS 15
#define OPTION_COLUMN_MAX 28 /* where the text of an option begins at the latest */

static const char program_end[] =
        "A MODEL is a name from `tandem models`, or a file: a path with a '/', or a name ending in .gguf that exists. "
        "Files are opened here and handed to the daemon, so it needs no right to read them. No -m: the default model.\n"
        "\n"
        "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted (the job is cancelled).";

static const char *const colours[] = { "auto", "always", "never", NULL };

const struct arg args_of_all[] = {
        {
                .name = "socket",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct cli, socket),
                .value = "PATH",
                .brief = "where tandemd listens",
                .more = "otherwise $TANDEM_SOCKET, else $XDG_RUNTIME_DIR/tandem/socket, else /run/tandem/socket",
                .offer = OFFER_FILES,
        },
        {
                .name = "color",
                .range = { TDM_VALUE_CHOICE, .choices = colours },
                .at = offsetof(struct cli, colour),
                .value = "WHEN",
                .brief = "auto: colours on a terminal, unless $NO_COLOR is set; always; never",
        },
};
const size_t n_args_of_all = TDM_ARRAY_SIZE(args_of_all);

/* Characters, not bytes. */
static unsigned columns_of(const char *text, size_t size)
{
        unsigned n = 0;

        for (size_t i = 0; i < size; i++)
                n += ((unsigned char)text[i] & 0xc0) != 0x80;
        return n;
}

static void pad_columns(struct buf *to, unsigned n)
{
        buf_printf(to, "%*s", (int)n, "");
}

/* One line of text, broken between words; column is where the first one begins, the others begin at indent. */
static void write_wrapped(struct buf *to, const char *text, size_t size, unsigned column, unsigned indent)
{
        bool first = true;

        for (size_t i = 0; i < size;) {
                size_t n = strcspn(text + i, " \n");
                unsigned width;

                n = TDM_MIN(n, size - i);
                width = columns_of(text + i, n);
                if (!first && column + 1 + width > WIDTH) {
                        buf_puts(to, "\n");
                        pad_columns(to, indent);
                        column = indent;
                        first = true;
                }
                if (!first)
                        buf_puts(to, " ");
                buf_add(to, text + i, n);
                column += width + !first;
                first = false;
                i += n;
                while (i < size && text[i] == ' ')
                        i++;
        }
        buf_puts(to, "\n");
}

/* Paragraphs; see struct command. */
static void write_paragraphs(struct buf *to, const char *text)
{
        while (*text) {
                size_t n = strcspn(text, "\n");

                if (strncmp(text, "  ", 2) == 0) {
                        buf_add(to, text, n);
                        buf_puts(to, "\n");
                } else {
                        write_wrapped(to, text, n, 0, 0);
                }
                text += n + (text[n] == '\n');
        }
}

void help_write_option(struct buf *to, const struct arg *arg)
{
        const struct tdm_range *range = &arg->range;
        bool ranged = range->max > 0 && (range->type == TDM_VALUE_U32 || range->type == TDM_VALUE_U64 ||
                                         range->type == TDM_VALUE_REAL || range->type == TDM_VALUE_U32_LIST);

        buf_puts(to, arg->brief);
        if (ranged)
                buf_printf(to, " (%s%.10g to %s%.10g", range->or_zero ? "0, or " : "", range->min,
                           range->below_max ? "less than " : "", range->max);
        if (arg->default_value != 0)
                buf_printf(to, "%sdefault %.10g", ranged ? "; " : " (", arg->default_value);
        if (ranged || arg->default_value != 0)
                buf_puts(to, ")");
        if (arg->more)
                buf_printf(to, "; %s", arg->more);
        if (arg->minus_one)
                buf_printf(to, "; -1: as %s", *arg->minus_one ? arg->minus_one : "if it was not given");
}

/* "  -n, --max-tokens N"; returns its width. */
static unsigned write_spelling(struct buf *to, const struct arg *arg)
{
        size_t begin = to->size;

        if (arg->letter)
                buf_printf(to, "  -%c, ", arg->letter);
        else
                buf_puts(to, "      ");
        buf_printf(to, "--%s%s%s", arg->name, arg->value ? " " : "", arg->value ? arg->value : "");
        return to->failed ? 0 : columns_of(to->data + begin, to->size - begin);
}

static void write_options(struct buf *to, const struct arg *args, size_t n, unsigned column)
{
        for (size_t i = 0; i < n; i++) {
                _cleanup_(buf_freep) struct buf text = { 0 };
                unsigned width = write_spelling(to, &args[i]);

                help_write_option(&text, &args[i]);
                if (to->failed || text.failed)
                        return;
                if (width + 2 > column) {
                        buf_puts(to, "\n");
                        pad_columns(to, column);
                } else {
                        pad_columns(to, column - width);
                }
                write_wrapped(to, text.data, text.size, column, column);
        }
}

static unsigned widest_arg(const struct arg *args, size_t n)
{
        unsigned most = 0;

        for (size_t i = 0; i < n; i++) {
                _cleanup_(buf_freep) struct buf spelling = { 0 };

                most = TDM_MAX(most, write_spelling(&spelling, &args[i]));
        }
        return most;
}

static bool is_for_tests(const struct arg *arg)
{
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++)
                if (strcmp(tdm_job_option_flag(&tdm_job_options[i]), arg->name) == 0)
                        return tdm_job_options[i].for_tests;
        return false;
}

static void write_command(struct buf *to, const struct command *command)
{
        size_t n_job_args, n_plain = 0;
        const struct arg *job_args = job_args_table(command->job_args, &n_job_args);
        unsigned column = TDM_MAX(widest_arg(command->args, command->n_args), widest_arg(job_args, n_job_args)) + 2;

        column = TDM_MIN(column, OPTION_COLUMN_MAX);
        buf_printf(to, "usage: tandem %s%s%s\n\n", command->name, *command->usage ? " " : "", command->usage);
        write_paragraphs(to, command->about);
        if (command->examples) {
                buf_puts(to, "\nexamples:\n");
                write_paragraphs(to, command->examples);
        }
        if (command->n_args + n_job_args > 0)
                buf_puts(to, "\noptions:\n");
        write_options(to, command->args, command->n_args, column);
        while (n_plain < n_job_args && !is_for_tests(&job_args[n_plain]))
                n_plain++;
        write_options(to, job_args, n_plain, column);
        if (n_plain < n_job_args)
                buf_puts(to, "\nfor tests:\n");
        write_options(to, job_args + n_plain, n_job_args - n_plain, column);
}

/* The command that stands first below a heading. */
static const struct {
        const char *command, *heading;
} headings[] = {
        { "run", "talk to a model" }, { "models", "models" }, { "status", "what runs here" },
        { "launch", "for programs" }, { "bench", "measure" },
};

static void write_commands(struct buf *to)
{
        for (size_t i = 0; i < n_commands; i++) {
                for (size_t k = 0; k < TDM_ARRAY_SIZE(headings); k++)
                        if (strcmp(headings[k].command, commands[i]->name) == 0)
                                buf_printf(to, "%s%s:\n", k ? "\n" : "", headings[k].heading);
                buf_printf(to, "  %-*s  %s\n", COMMAND_COLUMNS, commands[i]->name, commands[i]->summary);
        }
}

static void write_program(struct buf *to)
{
        static const struct arg version = { .name = "version", .brief = "versions of the program and the library" };

        buf_puts(to, "tandem - run language models on the NPU and the GPU together\n"
                     "\n"
                     "usage: tandem [--socket PATH] [--color WHEN] COMMAND [ARGUMENTS]\n"
                     "\n");
        write_commands(to);
        buf_puts(to, "\n");
        write_options(to, args_of_all, n_args_of_all, 21);
        write_options(to, &version, 1, 21);
        buf_puts(to, "\n");
        write_paragraphs(to, program_end);
}

void help_write(struct buf *to, const struct command *command)
{
        if (command)
                write_command(to, command);
        else
                write_program(to);
}

int help_print(const struct command *command)
{
        _cleanup_(buf_freep) struct buf text = { 0 };

        help_write(&text, command);
        if (text.failed)
                return complain("no memory for the text");
        out_write(text.data, text.size);
        return out_finish();
}
