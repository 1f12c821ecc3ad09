/* tandem report: one text that says what this machine is and what Tandem does on it, for the people who make Tandem. It
 * is shown whole before it is written, and nothing is sent anywhere. */
#include "client-lib/cli/doctor.h"
#include "client-lib/cli/report/report.h"
#include "client-lib/cli/roofline.h"

#include <fcntl.h>
#include <math.h>
#include <time.h>

struct report_options {
        const char *model, *llama, *output, *root;
        float minutes;
        uint32_t jobs;
        bool yes;
};

extern const struct command command_report;

static void write_roofline(struct buf *to)
{
        struct roofline roofline;

        progress_show("memory and CPU…");
        roofline_measure(&roofline);
        roofline_measure_cpu(&roofline);
        buf_printf(to, "- Memory: %.1f GB/s read by %u threads\n", roofline.memory_bytes_per_s / 1e9,
                   roofline.n_threads);
        buf_printf(to, "- CPU: %.3f T multiplications and additions of f32 a second (%s)\n",
                   roofline.cpu_macs_per_s / 1e12, roofline.cpu_how);
        report_gpu_memory(to);
        progress_clear();
}

static int ask_daemon(struct buf *to, struct cli *cli, const struct report_options *given)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_status *status;
        struct tandem_error err;
        int r;

        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK) {
                buf_printf(to, "\nNothing else was measured, as the daemon does not answer: %s\n", err.message);
                return EXIT_OK;
        }
        buf_puts(to, "\n## Distance from the demo model's reference\n\n");
        progress_show("the demo model's distance…");
        report_distance(to, tandem);
        progress_clear();
        buf_puts(to, "\n## Speed\n\n");
        r = report_speeds(to, cli, given->model, given->llama);
        progress_clear();
        if (r != EXIT_OK)
                return r;
        if (given->minutes > 0) {
                buf_puts(to, "\n## Under load\n\n");
                r = report_load(to, tandem, given->model, (double)given->minutes * 60, given->jobs,
                                given->root ? given->root : "");
                if (r != EXIT_OK)
                        return r;
        }
        /* Last: it counts what the measurements did, too. */
        buf_puts(to, "\n## Status\n\n```\n");
        if (tandem_get_status(tandem, &status, &err) == TANDEM_OK) {
                json_status(to, status);
                tandem_status_free(status);
        } else {
                buf_printf(to, "%s", err.message);
        }
        buf_puts(to, "\n```\n");
        return EXIT_OK;
}

/* A file that is there already stays. */
static int write_file(const char *path, const struct buf *text)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
        int r;

        if (fd < 0)
                return complain("cannot write %s: %s", path, strerror(errno));
        r = write_all(fd, text->data, text->size);
        if (r < 0) {
                close(fd);
                unlink(path);
                return complain("cannot write %s: %s", path, strerror(-r));
        }
        if (close(fd) != 0)
                return complain("cannot write %s: %s", path, strerror(errno));
        fprintf(stderr, "tandem: written to %s\n", term_safe(path));
        return EXIT_OK;
}

/* Whether the file can be made, before minutes are spent on what it is to hold. */
static bool can_be_made(const char *path)
{
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);

        if (fd < 0) {
                complain("cannot write %s: %s", path, strerror(errno));
                return false;
        }
        close(fd);
        unlink(path);
        return true;
}

static bool is_agreed(const char *path)
{
        char line[64];

        fprintf(stderr, "Write this to %s? [y/N] ", term_safe(path));
        return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

/* It takes longer than any other command: that is said first. */
static void announce_report(const struct report_options *given)
{
        char rest[64] = "";

        if (!term_stderr_tty)
                return;
        if (given->minutes >= 2)
                snprintf(rest, sizeof(rest), " (--minutes 1 is shorter)");
        fprintf(stderr,
                "tandem: this takes about %.0f minutes%s. The report is shown before it is written, and is sent\n"
                "nowhere: whoever wants to help attaches it to an issue of the project. Ctrl-C stops measuring.\n",
                ceil((double)given->minutes + 1), rest);
}

static int run_report(struct cli *cli, int argc, char **argv)
{
        struct report_options given = { .jobs = 4, .minutes = 10 };
        _cleanup_(buf_freep) struct buf text = { 0 };
        char path[64], date[32];
        time_t now = time(NULL);
        struct tm tm;
        unsigned n, n_problems;
        int status;

        if (cli_parse(cli, &command_report, argc, argv, &given, NULL, 0, &n, &status))
                return status;
        strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &tm));
        snprintf(path, sizeof(path), "tandem-report-%s.md", date);
        if (!given.output)
                given.output = path;
        else if (!given.yes && !(term_stdin_tty && term_stdout_tty))
                return args_usage_error(argv[0], "--output without a terminal to ask on needs --yes");

        if ((given.yes || (term_stdin_tty && term_stdout_tty)) && !can_be_made(given.output))
                return EXIT_FAILED;
        announce_report(&given);
        buf_printf(&text, "# Tandem %s on this machine, %s\n\n## What was found\n\n```\n", tandem_version(), date);
        n_problems = doctor_write(&text, cli, given.root ? given.root : "", !given.root);
        if (n_problems)
                buf_printf(&text, "%u to mend", n_problems);
        else
                buf_puts(&text, "nothing to mend");
        buf_puts(&text, "\n```\n\n## What this machine can do\n\n");
        write_roofline(&text);
        status = ask_daemon(&text, cli, &given);
        if (status == EXIT_INTERRUPTED && term_stderr_tty) {
                complain("stopped: what was measured so far follows; Ctrl-C once more throws it away");
                buf_puts(&text, "\nStopped here by hand.\n");
        } else if (status != EXIT_OK) {
                return status;
        }
        report_redact(&text);
        if (text.failed)
                return complain("no memory");

        out_wrap(false);
        out_text(text.data, text.size);
        if (out_finish() != 0)
                return EXIT_FAILED;
        if (given.yes || (term_stdin_tty && term_stdout_tty && is_agreed(given.output)))
                return write_file(given.output, &text);
        if (term_stdout_tty)
                fprintf(stderr, "tandem: nothing was written\n");
        return EXIT_OK;
}

static const struct arg args[] = {
        ARG_MODEL(struct report_options, model),
        {
                .name = "minutes",
                .range = { .type = TDM_VALUE_REAL, .max = 1440 },
                .at = offsetof(struct report_options, minutes),
                .default_value = 10,
                .value = "M",
                .brief = "how long the load lasts",
                .more = "0: no load",
        },
        {
                .name = "jobs",
                .range = { .type = TDM_VALUE_U32, .min = 1, .max = 16 },
                .at = offsetof(struct report_options, jobs),
                .default_value = 4,
                .value = "N",
                .brief = "how many jobs run at once under load",
        },
        {
                .name = "llama",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct report_options, llama),
                .value = "FILE",
                .brief = "the model's file, for llama-bench",
                .more = "compared in turns where llama-bench is in $PATH",
                .offer = OFFER_FILES,
        },
        {
                .letter = 'o',
                .name = "output",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct report_options, output),
                .value = "FILE",
                .brief = "where it is written",
                .more = "otherwise tandem-report-DATE.md here; a file that is there stays",
                .offer = OFFER_FILES,
        },
        {
                .letter = 'y',
                .name = "yes",
                .at = offsetof(struct report_options, yes),
                .brief = "write it without asking",
        },
        {
                .name = "root",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct report_options, root),
                .value = "FOLDER",
                .brief = "look at the /sys, /dev, /proc, /usr and /etc in this folder",
                .offer = OFFER_FILES,
        },
};

const struct command command_report = {
        .name = "report",
        .summary = "measure this machine, for a report to Tandem's makers",
        .usage = "[OPTIONS]",
        .about = "Writes one text file: what `tandem doctor` finds, how fast memory, CPU and GPU are, how near the "
                 "demo model comes to its reference, speeds (in turns with llama.cpp where that is installed), ten "
                 "minutes of load with the time to the first token, the shares of NPU, GPU and CPU, watts, "
                 "temperatures and clocks, and the daemon's status.\n"
                 "\n"
                 "This user's name and home, the machine's name and the folders of models are left out. The whole "
                 "text is shown first, and written only when you agree. Nothing is sent. Where standard output is "
                 "no terminal, the text goes there and no file is written unless --yes is given.",
        .examples = "  tandem report\n"
                    "  tandem report --minutes 1 -m gemma3-1b --llama ~/.local/share/tandem/models/gemma3-1b.gguf",
        COMMAND_ARGS(args),
        .run = run_report,
};
