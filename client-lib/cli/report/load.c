/* See report.h. Each of the jobs that run at once is followed by another, whose prompt no other has, so that nothing
 * is answered from the prefix cache. What the machine does meanwhile is looked at once a second. */
#include "client-lib/cli/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>

enum { MAX_JOBS = 16, TOKENS = 128, MAX_TIMES = 65536 };

static const char story[] =
        "of the small fox who lived at the edge of a great forest. Every morning she walked down to the "
        "river, looked at the water and asked herself where it came from and where it went. One day a "
        "grey heron said: \"Follow it upward and you will find snow; follow it downward and you will "
        "find the sea.\" The fox thought about this for three days, packed some bread and left.";

struct load_job {
        struct load *load;
        struct tandem_job *job;
        uint64_t start_ns, first_ns;
        bool done;
};

struct load {
        struct load_job jobs[MAX_JOBS];
        float *first_ms; /* [n_first] */
        size_t n_first, capacity;
        uint64_t n_tokens, n_done, n_failed, recoveries;
        char failure[256];
};

static void on_load_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct load_job *j = userdata;

        j->load->n_tokens++;
        if (j->first_ns > 0)
                return;
        j->first_ns = tdm_now_ns();
        if (j->load->n_first < j->load->capacity)
                j->load->first_ms[j->load->n_first++] = (float)((double)(j->first_ns - j->start_ns) / 1e6);
}

static void on_load_done(struct tandem_job *job, const struct tandem_result *result, void *userdata)
{
        struct load_job *j = userdata;

        j->done = true;
        j->load->recoveries += result->recoveries;
        if (result->reason == TANDEM_REASON_ERROR) {
                j->load->n_failed++;
                snprintf(j->load->failure, sizeof(j->load->failure), "%s: %.200s", result->error.name,
                         result->error.message);
        } else {
                j->load->n_done++;
        }
}

static bool start_load_job(struct tandem *tandem, const char *model, struct load_job *j, uint64_t number,
                           struct tandem_error *err)
{
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        char prompt[sizeof(story) + 64];

        snprintf(prompt, sizeof(prompt), "Number %" PRIu64 " is the tale %s", number, story);
        tandem_generate_options_init(&options);
        options.model = model;
        options.prompt = prompt;
        options.max_tokens = TOKENS;
        options.ignore_end = true;
        tandem_callbacks_init(&callbacks);
        callbacks.on_token = on_load_token;
        callbacks.on_done = on_load_done;
        j->done = false;
        j->first_ns = 0;
        j->start_ns = tdm_now_ns();
        return tandem_generate(tandem, &options, &callbacks, j, &j->job, err) == TANDEM_OK;
}

/* Asks the workers: in which share of the time each was in blocks, and what its device's sensors say. */
static void look_at_status(struct tandem *tandem, struct sensors *sensors, struct tandem_status **last,
                           uint64_t *last_ns)
{
        struct tandem_status *now_status;
        struct tandem_error err;
        uint64_t now = tdm_now_ns();

        sensors_sample(sensors, now);
        if (tandem_get_status(tandem, &now_status, &err) != TANDEM_OK)
                return;
        for (size_t i = 0; i < now_status->n_workers; i++) {
                const struct tandem_worker *w = now_status->workers[i];
                char name[64];

                for (size_t k = 0; *last && k < (*last)->n_workers; k++) {
                        const struct tandem_worker *old = (*last)->workers[k];

                        if (strcmp(old->name, w->name) != 0 || w->busy_ns < old->busy_ns || now <= *last_ns)
                                continue;
                        snprintf(name, sizeof(name), "%.8s worker, in blocks", w->name);
                        sensors_tell(sensors, name, "% of the time",
                                     fmin((double)(w->busy_ns - old->busy_ns) / (double)(now - *last_ns), 1) * 100);
                }
                if (!w->use || !w->use->has_telemetry)
                        continue;
                snprintf(name, sizeof(name), "%.8s device", w->name);
                if (w->use->utilisation >= 0)
                        sensors_tell(sensors, name, "% of the time", w->use->utilisation * 100);
                snprintf(name, sizeof(name), "%.8s device power", w->name);
                if (w->use->power_w >= 0)
                        sensors_tell(sensors, name, "W", w->use->power_w);
                snprintf(name, sizeof(name), "%.8s device temperature", w->name);
                if (w->use->temperature_c >= 0)
                        sensors_tell(sensors, name, "C", w->use->temperature_c);
        }
        tandem_status_free(*last);
        *last = now_status;
        *last_ns = now;
}

static int compare_times(const void *a, const void *b)
{
        return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static double load_quantile(const struct load *load, double q)
{
        return (double)load->first_ms[TDM_MIN((size_t)(q * (double)load->n_first), load->n_first - 1)];
}

static void write_result(struct buf *to, struct load *load, unsigned n_jobs, double seconds)
{
        buf_printf(to,
                   "%u jobs at once, %d tokens each, for %.0f s: %" PRIu64 " jobs ended, %" PRIu64 " failed, %.1f "
                   "tokens/s together, %" PRIu64 " recoveries.\n",
                   n_jobs, TOKENS, seconds, load->n_done, load->n_failed, (double)load->n_tokens / seconds,
                   load->recoveries);
        if (load->n_failed > 0)
                buf_printf(to, "The last failure: %s\n", load->failure);
        if (load->n_first > 0) {
                qsort(load->first_ms, load->n_first, sizeof(*load->first_ms), compare_times);
                buf_printf(to,
                           "First token, ms: half within %.0f, 90%% within %.0f, 99%% within %.0f, the last %.0f.\n",
                           load_quantile(load, 0.5), load_quantile(load, 0.9), load_quantile(load, 0.99),
                           load_quantile(load, 1));
        }
        buf_puts(to, "\n");
}

int report_load(struct buf *to, struct tandem *tandem, const char *model, double seconds, unsigned n_jobs,
                const char *root)
{
        struct load load = { .capacity = MAX_TIMES };
        struct sensors sensors;
        struct tandem_status *last = NULL;
        struct tandem_error err = { 0 };
        uint64_t begin, now, number, last_ns = 0, end, looked_ns = 0;
        int status = EXIT_OK;

        load.first_ms = calloc(load.capacity, sizeof(*load.first_ms));
        if (!load.first_ms)
                return complain("no memory");
        n_jobs = TDM_MIN(n_jobs, (unsigned)MAX_JOBS);
        sensors_find(&sensors, root);
        if (tandem_get_status(tandem, &last, &err) == TANDEM_OK) {
                sensors_add_process(&sensors, "tandemd", last->pid);
                for (size_t i = 0; i < last->n_workers; i++) {
                        char name[32];

                        snprintf(name, sizeof(name), "the %.8s worker", last->workers[i]->name);
                        sensors_add_process(&sensors, name, last->workers[i]->pid);
                }
        }
        begin = now = number = last_ns = tdm_now_ns();
        end = begin + (uint64_t)(seconds * 1e9);
        signal_set_mode(SIGNAL_ANSWER);
        for (unsigned i = 0; i < n_jobs && status == EXIT_OK; i++) {
                load.jobs[i].load = &load;
                if (!start_load_job(tandem, model, &load.jobs[i], number++, &err))
                        status = complain_error(&err);
        }
        while (status == EXIT_OK && now < end) {
                struct pollfd fds[] = { { .fd = tandem_fd(tandem), .events = tandem_events(tandem) },
                                        { .fd = signal_fd(), .events = POLLIN } };

                (void)poll(fds, TDM_ARRAY_SIZE(fds), 200);
                if (signal_take())
                        status = EXIT_INTERRUPTED;
                (void)tandem_dispatch(tandem, 0);
                now = tdm_now_ns();
                for (unsigned i = 0; i < n_jobs && status == EXIT_OK; i++) {
                        if (!load.jobs[i].done)
                                continue;
                        tandem_job_free(load.jobs[i].job);
                        load.jobs[i].job = NULL;
                        if (load.n_failed > 10) /* it will not become better */
                                end = now;
                        else if (!start_load_job(tandem, model, &load.jobs[i], number++, &err))
                                status = complain_error(&err);
                }
                if (now - looked_ns >= TDM_NSEC_PER_SEC) {
                        looked_ns = now;
                        look_at_status(tandem, &sensors, &last, &last_ns);
                        progress_show("under load for %.0f s more, %" PRIu64 " tokens so far…",
                                      end > now ? (double)(end - now) / 1e9 : 0, load.n_tokens);
                }
        }
        progress_clear();
        signal_set_mode(SIGNAL_EXIT);
        for (unsigned i = 0; i < n_jobs; i++)
                tandem_job_free(load.jobs[i].job);
        if (status == EXIT_OK || status == EXIT_INTERRUPTED) {
                write_result(to, &load, n_jobs, (double)(now - begin) / 1e9);
                sensors_write(&sensors, to);
        }
        tandem_status_free(last);
        free(load.first_ms);
        return status;
}
