/* tandem top: what the daemon does now. Status and jobs are asked for once a round; whatever is a rate or a share is
 * the difference of two rounds, so that any program could show the same. */
#include "client-lib/cli/table.h"
#include "client-lib/cli/top.h"

#include <inttypes.h>

#define ANSWER_MS 10000

struct top_options {
        float delay_s;
        uint32_t n_rounds;
};

extern const struct command command_top;

/* One round's answers. */
struct sample {
        struct tandem_status *status;
        struct tandem_job_list *jobs;
        uint64_t time_ns;
};

static void sample_drop(struct sample *s)
{
        tandem_status_free(s->status);
        tandem_job_list_free(s->jobs);
        *s = (struct sample){ .time_ns = 0 };
}

static int sample_take(struct tandem *tandem, struct sample *ret, struct tandem_error *err)
{
        int code = tandem_get_status(tandem, &ret->status, err);

        ret->time_ns = tdm_now_ns();
        if (code == TANDEM_OK)
                code = tandem_list_jobs(tandem, &ret->jobs, err);
        if (code != TANDEM_OK)
                sample_drop(ret);
        return code;
}

/* ---- differences ------------------------------------------------------------------------------------------------- */

static double seconds_between(const struct sample *a, const struct sample *b)
{
        return a->status ? (double)(b->time_ns - a->time_ns) / 1e9 : 0;
}

static uint64_t counter_rise(uint64_t from, uint64_t to)
{
        return to > from ? to - from : 0; /* another daemon counts from 0 again */
}

/* "98.1/s", or "-" before there are two rounds. */
static const char *format_rise_rate(uint64_t from, uint64_t to, double seconds)
{
        static char ring[8][24];
        static unsigned next;
        char *text = ring[next++ % TDM_ARRAY_SIZE(ring)];

        if (seconds <= 0)
                return "-";
        snprintf(text, sizeof(ring[0]), "%.1f/s", (double)counter_rise(from, to) / seconds);
        return text;
}

static const struct tandem_worker *find_worker(const struct sample *s, const char *name)
{
        for (size_t i = 0; s->status && i < s->status->n_workers; i++)
                if (strcmp(s->status->workers[i]->name, name) == 0)
                        return s->status->workers[i];
        return NULL;
}

static const struct tandem_job_info *find_job(const struct sample *s, uint64_t id)
{
        for (size_t i = 0; s->jobs && i < s->jobs->n_jobs; i++)
                if (s->jobs->jobs[i]->job == id)
                        return s->jobs->jobs[i];
        return NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void draw_bar(char *to, unsigned width, double part)
{
        unsigned n = (unsigned)(TDM_MIN(TDM_MAX(part, 0.0), 1.0) * width + 0.5);

        for (unsigned i = 0; i < width; i++)
                to[i] = i < n ? '#' : '.';
        to[width] = '\0';
}

static void show_head(struct buf *b, const struct sample *was, const struct sample *is)
{
        const struct tandem_status *s = is->status, *old = was->status ? was->status : s;
        double seconds = seconds_between(was, is);
        char uptime[32];

        format_duration(uptime, sizeof(uptime), s->uptime_s);
        buf_printf(b, "tandemd %s, pid %" PRIu64 ", up %s%s\n", term_safe(s->version), s->pid, uptime,
                   s->draining ? ", shutting down" : "");
        buf_printf(b,
                   "jobs    %" PRIu32 " running, %" PRIu32 " queued; %" PRIu64 " done, %" PRIu64 " cancelled, %" PRIu64
                   " failed\n",
                   s->jobs_running, s->jobs_queued, s->jobs_done, s->jobs_cancelled, s->jobs_failed);
        buf_printf(b, "tokens  %s generated, %s read\n",
                   format_rise_rate(old->decode_tokens, s->decode_tokens, seconds),
                   format_rise_rate(old->prefill_tokens, s->prefill_tokens, seconds));
        buf_printf(b, "steps   %s, %" PRIu32 " in flight; %" PRIu64 " %s\n",
                   format_rise_rate(old->steps_done, s->steps_done, seconds), s->steps_in_flight, s->recoveries,
                   s->recoveries == 1 ? "recovery" : "recoveries");
}

static void show_worker(struct buf *b, const struct sample *was, const struct sample *is, const struct tandem_worker *w)
{
        const struct tandem_worker *old = find_worker(was, w->name);
        double seconds = seconds_between(was, is);
        uint64_t n = old ? counter_rise(old->handovers, w->handovers) : 0,
                 ns = old ? counter_rise(old->handover_ns, w->handover_ns) : 0;
        char graph[21], busy[16] = "   -", hand[48] = "-";

        draw_bar(graph, 20, 0);
        if (old && seconds > 0) {
                double part = TDM_MIN((double)counter_rise(old->busy_ns, w->busy_ns) / 1e9 / seconds, 1.0);

                draw_bar(graph, 20, part);
                snprintf(busy, sizeof(busy), "%3.0f%%", part * 100);
        }
        if (n > 0)
                snprintf(hand, sizeof(hand), "%.1f us, %.0f/s", (double)ns / (double)n / 1e3, (double)n / seconds);
        buf_printf(b, "%-7s busy [%s] %s  %-11s %-6s  hand-over %s\n", term_safe(w->name), graph, busy,
                   term_safe(w->state), *w->device ? term_safe(w->device) : "-", hand);
        if (w->restarts > 0 || strcmp(w->state, "quarantined") == 0)
                buf_printf(b, "        %" PRIu32 " %s, last: %s\n", w->restarts,
                           w->restarts == 1 ? "restart" : "restarts",
                           *w->last_exit ? term_safe(name_users(w->last_exit)) : "-");
}

static void show_pages(struct buf *b, const char *name, uint32_t used, uint32_t total)
{
        char graph[21];

        if (total == 0)
                return;
        draw_bar(graph, 20, (double)used / total);
        buf_printf(b, " %s [%s] %" PRIu32 "/%" PRIu32 " ", name, graph, used, total);
}

static void show_model(struct buf *b, const struct tandem_model *m)
{
        buf_printf(b, "model   %s: %s", term_safe(m->name), term_safe(m->state));
        if (strcmp(m->state, "loaded") == 0) {
                buf_printf(b, ", %s\n  KV pages", term_safe(m->placement));
                show_pages(b, "full", m->kv_pages_full_used, m->kv_pages_full);
                show_pages(b, "window", m->kv_pages_window_used, m->kv_pages_window);
        } else if (*m->error) {
                buf_printf(b, ": %s", term_safe(m->error));
        }
        buf_puts(b, "\n");
}

static const struct table_column job_columns[] = {
        { "JOB", .right = true },     { "STATE" },
        { "MODEL", .shrinks_to = 8 }, { "USER", .shrinks_to = 4, .leaves = 2 },
        { "PRIORITY", .leaves = 3 },  { "PROMPT", .right = true, .leaves = 1 },
        { "TOKENS", .right = true },  { "TOKENS/S", .right = true },
        { "AGE", .right = true },     { "", .leaves = 4 }, /* that it was recovered */
};

static void add_job(struct table *table, const struct sample *was, const struct sample *is,
                    const struct tandem_job_info *j)
{
        const struct tandem_job_info *old = find_job(was, j->job);
        double seconds = seconds_between(was, is);
        char id[24], read[32], made[32], age[32], speed[24] = "-", recovered[40] = "";
        uint32_t n, n_old;

        /* Count the tokens that it is busy with: it reads its prompt, or it generates. */
        n = j->generated_tokens > 0 ? j->generated_tokens : j->prefilled_tokens;
        n_old = !old ? 0 : j->generated_tokens > 0 ? old->generated_tokens : old->prefilled_tokens;
        if (!old)
                seconds = TDM_MIN(seconds, j->age_s);
        if (seconds > 0 && j->state != TANDEM_JOB_QUEUED)
                format_rate(speed, sizeof(speed), (double)counter_rise(n_old, n) / seconds);
        snprintf(id, sizeof(id), "%" PRIu64, j->job);
        snprintf(read, sizeof(read), "%" PRIu32 "/%" PRIu32, j->prefilled_tokens, j->prompt_tokens);
        snprintf(made, sizeof(made), "%" PRIu32 "/%" PRIu32, j->generated_tokens, j->max_tokens);
        format_duration(age, sizeof(age), j->age_s);
        if (j->recoveries > 0)
                snprintf(recovered, sizeof(recovered), "recovered %" PRIu32 " %s", j->recoveries,
                         j->recoveries == 1 ? "time" : "times");
        table_add(table, (const char *const[]){ id, tandem_job_state_name(j->state), term_safe(j->model),
                                                term_safe(user_name(j->uid)), tandem_priority_name(j->priority), read,
                                                made, speed, age, recovered });
}

static unsigned lines_in(const struct buf *b)
{
        unsigned n = 0;

        for (size_t i = 0; i < b->size; i++)
                n += b->data[i] == '\n';
        return n;
}

static unsigned model_lines(const struct tandem_model *m)
{
        return strcmp(m->state, "loaded") == 0 ? 2 : 1;
}

/* At most max_rows lines of them. */
static void show_models(struct buf *b, const struct tandem_status *s, unsigned max_rows)
{
        unsigned n_lines = 0, used = 0;
        size_t n_shown = 0;

        for (size_t i = 0; i < s->n_models; i++)
                n_lines += model_lines(s->models[i]);
        for (; n_shown < s->n_models; n_shown++) {
                used += model_lines(s->models[n_shown]);
                if (used + (n_lines > max_rows) > max_rows) /* the last line says how many more there are */
                        break;
                show_model(b, s->models[n_shown]);
        }
        if (n_shown < s->n_models && max_rows > 0)
                buf_printf(b, "        and %zu more\n", s->n_models - n_shown);
}

/* Jobs that run come before jobs that wait. */
static void show_jobs(struct buf *b, const struct sample *was, const struct sample *is, unsigned max_rows,
                      unsigned columns, char heading)
{
        struct table table = { .columns = job_columns, .n_columns = TDM_ARRAY_SIZE(job_columns) };
        size_t n_jobs = is->jobs->n_jobs, room = max_rows, n_shown = 0;
        const char mark[2] = { heading, '\0' };

        if (n_jobs > room)
                room = room > 0 ? room - 1 : 0;
        for (int waiting = 0; waiting < 2; waiting++)
                for (size_t i = 0; i < n_jobs && n_shown < room; i++)
                        if ((is->jobs->jobs[i]->state == TANDEM_JOB_QUEUED) == waiting) {
                                add_job(&table, was, is, is->jobs->jobs[i]);
                                n_shown++;
                        }
        buf_printf(b, "\n%s", mark);
        table_write(&table, columns, b);
        table_free(&table);
        if (n_shown < n_jobs)
                buf_printf(b, "        and %zu more\n", n_jobs - n_shown);
        if (n_jobs == 0)
                buf_puts(b, "        no jobs\n");
}

#define JOBS_FIRST 3u /* so many jobs go before models, where rows are few */

/* All of it; at most max_rows lines. heading: the byte in front of the table's heading, or 0. */
static void show_sample(struct buf *b, const struct sample *was, const struct sample *is, unsigned max_rows,
                        unsigned columns, char heading)
{
        const struct tandem_status *s = is->status;
        size_t n_jobs = is->jobs->n_jobs;
        unsigned wanted = 2 + (unsigned)TDM_MAX(TDM_MIN(n_jobs, (size_t)JOBS_FIRST), (size_t)1);

        show_head(b, was, is);
        for (size_t i = 0; i < s->n_workers; i++)
                show_worker(b, was, is, s->workers[i]);
        show_models(b, s, max_rows > lines_in(b) + wanted ? max_rows - lines_in(b) - wanted : 0);
        show_jobs(b, was, is, max_rows > lines_in(b) + 2 ? max_rows - lines_in(b) - 2 : 0, columns, heading);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static void draw_sample(const struct sample *was, const struct sample *is)
{
        _cleanup_(buf_freep) struct buf b = { 0 };
        unsigned rows, columns;

        screen_size(&rows, &columns);
        show_sample(&b, was, is, rows, columns, SCREEN_HEADING);
        if (!b.failed)
                screen_show(b.data, b.size);
}

/* n_rounds 0: without end. */
static int run_screen(struct tandem *tandem, uint64_t delay_ns, uint32_t n_rounds, struct tandem_error *err)
{
        struct sample was = { .time_ns = 0 }, is = { .time_ns = 0 };
        enum screen_event event = SCREEN_DUE;
        int code = TANDEM_OK;

        screen_begin();
        for (uint32_t round = 0; event != SCREEN_QUIT;) {
                uint64_t due;

                if (event != SCREEN_REDRAW) {
                        sample_drop(&was);
                        was = is;
                        is = (struct sample){ .time_ns = 0 };
                        code = sample_take(tandem, &is, err);
                        if (code != TANDEM_OK)
                                break;
                        /* The first one has no rates: it only fills the screen while one waits. */
                        if (was.status)
                                round++;
                }
                draw_sample(&was, &is);
                if (n_rounds > 0 && round >= n_rounds)
                        break;
                due = is.time_ns + delay_ns;
                event = screen_wait(due);
        }
        screen_end();
        sample_drop(&was);
        sample_drop(&is);
        return code;
}

static int run_plain(struct tandem *tandem, uint64_t delay_ns, uint32_t n_rounds, struct tandem_error *err)
{
        struct sample was = { .time_ns = 0 }, is = { .time_ns = 0 };
        int code = sample_take(tandem, &was, err);

        for (uint32_t round = 0; code == TANDEM_OK && (n_rounds == 0 || round < n_rounds) && !out_broken(); round++) {
                struct timespec wait = { .tv_sec = (time_t)(delay_ns / TDM_NSEC_PER_SEC),
                                         .tv_nsec = (long)(delay_ns % TDM_NSEC_PER_SEC) };
                struct buf b = { 0 };

                (void)nanosleep(&wait, NULL);
                code = sample_take(tandem, &is, err);
                if (code != TANDEM_OK)
                        break;
                buf_puts(&b, round ? "\n" : "");
                show_sample(&b, &was, &is, UINT32_MAX, 0, '\0');
                if (!b.failed)
                        out_write(b.data, b.size);
                out_flush();
                buf_free(&b);
                sample_drop(&was);
                was = is;
                is = (struct sample){ .time_ns = 0 };
        }
        sample_drop(&was);
        sample_drop(&is);
        return code;
}

static int run_top(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        const char *term = getenv("TERM");
        bool screen = term_stdout_tty && term && *term && strcmp(term, "dumb") != 0;
        struct tandem_error err;
        struct top_options options = { 0 };
        unsigned n;
        int status, code;

        if (cli_parse(cli, &command_top, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        tandem_set_timeout(tandem, ANSWER_MS);
        code = (screen ? run_screen : run_plain)(tandem, (uint64_t)((double)options.delay_s * 1e9), options.n_rounds,
                                                 &err);
        status = out_finish();
        return code == TANDEM_OK ? status : complain_error(&err);
}

static const struct arg args[] = {
        {
                .letter = 'd',
                .name = "delay",
                .range = { TDM_VALUE_REAL, .min = 0.1, .max = 3600 },
                .at = offsetof(struct top_options, delay_s),
                .default_value = 1,
                .value = "SECONDS",
                .brief = "time between two rounds",
        },
        {
                .letter = 'n',
                .name = "rounds",
                .range = { TDM_VALUE_U32, .min = 1, .max = 1u << 30 },
                .at = offsetof(struct top_options, n_rounds),
                .value = "N",
                .brief = "end after N rounds",
                .more = "otherwise with q or Ctrl-C",
        },
};

const struct command command_top = {
        .name = "top",
        .summary = "what runs now, on one screen",
        .usage = "[-d SECONDS] [-n N]",
        .about = "Shows what the daemon does, again and again: jobs with their speed, tokens a second, cache "
                 "pages, how busy each worker is, how long it takes to hand a step over. Rates and shares "
                 "are those of the last interval. On a terminal it fills the screen and q ends it. Otherwise "
                 "each round is printed as plain text. Shown are your own jobs; root sees the jobs of every "
                 "user.",
        COMMAND_ARGS(args),
        .run = run_top,
};
