/* Waiting for jobs, in one place for all commands: the connection, Ctrl-C and a reader that goes away are watched
 * together, so that none of them ever waits for another. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <sys/stat.h>

/* How long a cancelled job may take to say how it ended. Ctrl-C has to end us within 100 ms. */
#define LAST_WORD_NS (40 * TDM_NSEC_PER_MSEC)

static bool all_done(struct tandem_job *const *jobs, size_t n_jobs)
{
        for (size_t i = 0; i < n_jobs; i++)
                if (!tandem_job_done(jobs[i]))
                        return false;
        return true;
}

static void cancel_all(struct tandem_job *const *jobs, size_t n_jobs)
{
        for (size_t i = 0; i < n_jobs; i++)
                (void)tandem_cancel(jobs[i]);
}

/* A pipe or socket says when its other end is closed; a file never is. */
static bool output_can_close(void)
{
        struct stat st;

        return fstat(STDOUT_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

enum run_outcome run_jobs(struct tandem *tandem, struct tandem_job *const *jobs, size_t n_jobs, enum signal_mode mode)
{
        enum run_outcome outcome = RUN_DONE;
        uint64_t deadline = UINT64_MAX;
        bool watch_output = output_can_close();

        signal_set_mode(mode);
        while (!all_done(jobs, n_jobs)) {
                struct pollfd fds[] = {
                        { .fd = tandem_fd(tandem), .events = tandem_events(tandem) },
                        { .fd = signal_fd(), .events = POLLIN },
                        { .fd = watch_output && outcome == RUN_DONE ? STDOUT_FILENO : -1 },
                };
                uint64_t now = tdm_now_ns();
                int timeout_ms = -1;

                if (deadline != UINT64_MAX) {
                        if (now >= deadline)
                                break;
                        timeout_ms = (int)TDM_DIV_UP(deadline - now, TDM_NSEC_PER_MSEC);
                }
                (void)poll(fds, TDM_ARRAY_SIZE(fds), timeout_ms);
                if (outcome == RUN_DONE && (out_broken() || (fds[2].revents & (POLLERR | POLLHUP | POLLNVAL)))) {
                        outcome = RUN_OUTPUT_GONE;
                        deadline = tdm_now_ns() + LAST_WORD_NS;
                        cancel_all(jobs, n_jobs);
                }
                if (signal_take()) {
                        outcome = RUN_INTERRUPTED;
                        if (mode != SIGNAL_ANSWER && deadline == UINT64_MAX)
                                deadline = tdm_now_ns() + LAST_WORD_NS;
                        cancel_all(jobs, n_jobs);
                }
                (void)tandem_dispatch(tandem, 0); /* its end reaches every job */
                out_flush();
        }
        progress_clear();
        if (signal_take())
                outcome = RUN_INTERRUPTED;
        if (outcome == RUN_DONE && out_broken())
                outcome = RUN_OUTPUT_GONE;
        /* In SIGNAL_ANSWER mode more follows an answer: a Ctrl-C that comes just after it must not end the program. */
        signal_set_mode(mode == SIGNAL_ANSWER ? mode : SIGNAL_EXIT);
        return outcome;
}

/* At the speed that was seen. Rows late in a prompt cost more, so it is less than will be. */
static double seconds_left(const struct run_progress *show, uint64_t done, uint64_t total, uint64_t now_ns)
{
        double passed = (double)(now_ns - show->reading_since_ns) / 1e9;

        if (passed < 1 || done <= show->reading_first)
                return 0;
        return passed * (double)(total - done) / (double)(done - show->reading_first);
}

void run_describe_reading(struct run_progress *show, uint64_t done, uint64_t total, uint64_t now_ns, char *to,
                          size_t size)
{
        char n_done[32], n_total[32], left[32] = "";
        double seconds;

        if (show->reading_since_ns == 0 || done < show->reading_first) {
                show->reading_since_ns = now_ns;
                show->reading_first = done;
        }
        format_count(n_done, sizeof(n_done), done);
        format_count(n_total, sizeof(n_total), total);
        seconds = ceil(seconds_left(show, done, total, now_ns));
        if (seconds >= 120)
                format_duration(left, sizeof(left), seconds);
        else if (seconds > 0)
                snprintf(left, sizeof(left), "%.0f s", seconds);
        snprintf(to, size, "reading the prompt: %s of %s tokens (%.0f%%)%s%s%s", n_done, n_total,
                 floor((double)done * 100 / (double)total), *left ? ", " : "", left, *left ? " left" : "");
}

void run_show_progress(struct tandem_job *job, const struct tandem_progress *p, void *userdata)
{
        struct run_progress *show = userdata;
        const char *model = "the model", *slash;
        char text[160];

        if (p->state != TANDEM_JOB_PREFILL)
                show->reading_since_ns = 0;
        if (show->off)
                return;
        switch (p->state) {
        case TANDEM_JOB_QUEUED:
                if (p->queue_position > 0)
                        progress_show("queued, %" PRIu32 " before this one", p->queue_position);
                else
                        progress_show("queued");
                break;
        case TANDEM_JOB_LOADING:
                if (show->model && *show->model) {
                        slash = strrchr(show->model, '/');
                        model = slash && slash[1] ? slash + 1 : show->model;
                }
                if (p->total > 0)
                        progress_show("loading %s… %u%%", term_safe(model),
                                      (unsigned)TDM_MIN((double)p->done * 100 / (double)p->total, 100.0));
                else
                        progress_show("loading %s…", term_safe(model));
                break;
        case TANDEM_JOB_PREFILL:
                if (p->done >= p->total)
                        break;
                run_describe_reading(show, p->done, p->total, tdm_now_ns(), text, sizeof(text));
                progress_show("%s", text);
                break;
        case TANDEM_JOB_RECOVERING:
                if (!p->daemon_lost)
                        progress_show("recovering: a worker was restarted…");
                else if (p->total > 0)
                        progress_show("tandemd is back; going on… %u%%",
                                      (unsigned)TDM_MIN((double)p->done * 100 / (double)p->total, 100.0));
                else
                        progress_show("tandemd is gone; going on as soon as it is back…");
                break;
        default:
                progress_clear();
                break;
        }
}
