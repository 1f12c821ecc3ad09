/* tandem doctor: what of this machine is used, why not more, and what mends it. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/doctor.h"

struct doctor_options {
        const char *root;
};

extern const struct command command_doctor;

/* Each line begins with its mark: how it looks. */
static unsigned style_of_mark(const char *line, size_t size)
{
        static const struct {
                const char *mark;
                unsigned style;
        } marks[] = {
                { "ok ", TERM_GREEN },
                { "note ", TERM_YELLOW },
                { "MEND ", TERM_RED | TERM_BOLD },
                { "FIRST ", TERM_RED | TERM_BOLD },
                { "TIP ", TERM_YELLOW },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(marks); i++)
                if (size > strlen(marks[i].mark) && memcmp(line, marks[i].mark, strlen(marks[i].mark)) == 0)
                        return marks[i].style;
        return 0;
}

static void print_lines(const char *text, size_t size)
{
        out_lines(true);
        while (size > 0) {
                const char *end = memchr(text, '\n', size);
                size_t n = end ? (size_t)(end - text) + 1 : size;
                unsigned style = style_of_mark(text, n);
                size_t n_mark = style ? strcspn(text, " ") : 0;

                term_style(style);
                out_write(text, n_mark);
                term_style(0);
                out_write(text + n_mark, n - n_mark);
                text += n;
                size -= n;
        }
        out_lines(false);
}

static int run_doctor(struct cli *cli, int argc, char **argv)
{
        struct doctor_options options = { 0 };
        _cleanup_(buf_freep) struct buf b = { 0 };
        unsigned n, n_problems;
        int status;

        if (cli_parse(cli, &command_doctor, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        n_problems = doctor_write(&b, cli, options.root ? options.root : "", !options.root);
        if (b.failed)
                return complain("no memory");
        print_lines(b.data, b.size);
        if (n_problems)
                out_printf("%u to mend: the line below each says how\n", n_problems);
        else
                out_puts("nothing to mend\n");
        return out_finish() != 0 || n_problems ? EXIT_FAILED : EXIT_OK;
}

static const struct arg args[] = {
        {
                .name = "root",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct doctor_options, root),
                .value = "FOLDER",
                .brief = "look at the /sys, /dev, /proc, /usr and /etc in this folder",
                .more = "the daemon is not asked then",
                .offer = OFFER_FILES,
        },
};

const struct command command_doctor = {
        .name = "doctor",
        .summary = "what of this machine is used, why not more, and what mends it",
        .usage = "[--root FOLDER]",
        .about = "Looks at CPU, memory, kernel, GPUs, NPU, their drivers and device nodes, this user's groups and "
                 "limits, and at the daemon. Says what each worker uses. What keeps a device from being used is "
                 "marked MEND, with the command that helps below it. "
                 "What matters most is said above all else, as FIRST; where "
                 "nothing needs mending, a TIP says what would make it faster. Nothing is changed, and no device is "
                 "started.\n"
                 "\n"
                 "The exit status is 0 when there is nothing to mend, else 1.",
        COMMAND_ARGS(args),
        .run = run_doctor,
};
