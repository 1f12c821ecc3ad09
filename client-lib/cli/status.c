/* tandem status, models, jobs: tables for people, objects with the wire's field names for programs. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <pwd.h>

void format_duration(char *to, size_t size, double seconds)
{
        uint64_t s = seconds > 0 && seconds < 1e15 ? (uint64_t)seconds : 0;

        if (s < 120)
                snprintf(to, size, "%.*f s", seconds < 10 ? 1 : 0, seconds >= 0 && seconds < 120 ? seconds : 0.0);
        else if (s < 7200)
                snprintf(to, size, "%" PRIu64 " min", s / 60);
        else if (s < 172800)
                snprintf(to, size, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
        else
                snprintf(to, size, "%" PRIu64 " days", s / 86400);
}

static double device_share(const struct tandem_device_use *use)
{
        uint64_t all = use->device_macs + use->host_macs;

        return all ? (double)use->device_macs / (double)all : 0;
}

static void json_use(struct buf *b, const struct tandem_device_use *use)
{
        json_key(b, "device_use");
        buf_puts(b, "{");
        json_field_number(b, "share", device_share(use));
        json_field_u64(b, "device_macs", use->device_macs);
        json_field_u64(b, "host_macs", use->host_macs);
        json_field_u64(b, "blocks", use->blocks);
        json_field_u64(b, "submissions", use->submissions);
        json_field_u64(b, "commands", use->commands);
        json_field_u64(b, "repeats", use->repeats);
        json_field_u64(b, "contexts_renewed", use->contexts);
        if (use->has_telemetry) {
                json_key(b, "telemetry");
                buf_puts(b, "{");
                json_field_number(b, "age_s", use->age_s);
                if (use->power_w >= 0)
                        json_field_number(b, "power_w", use->power_w);
                if (use->utilisation >= 0)
                        json_field_number(b, "utilisation", use->utilisation);
                if (use->temperature_c >= 0)
                        json_field_number(b, "temperature_c", use->temperature_c);
                json_field_u64(b, "contexts", use->driver_contexts);
                json_field_u64(b, "context_errors", use->context_errors);
                buf_puts(b, "}");
        }
        buf_puts(b, "}");
}

static void json_worker(struct buf *b, const struct tandem_worker *w)
{
        buf_puts(b, "{");
        json_field_string(b, "name", w->name);
        json_field_string(b, "requested", w->requested);
        json_field_string(b, "device", w->device);
        json_field_string(b, "detail", w->detail);
        json_field_string(b, "state", w->state);
        json_field_u64(b, "pid", w->pid);
        json_field_u64(b, "restarts", w->restarts);
        json_field_string(b, "last_exit", w->last_exit);
        json_key(b, "blocks");
        buf_puts(b, "[");
        for (size_t i = 0; i < w->n_blocks; i++) {
                const struct tandem_block_count *c = w->blocks[i];

                buf_puts(b, i ? ",{" : "{");
                json_field_string(b, "kind", c->kind);
                json_field_u64(b, "blocks", c->blocks);
                json_field_u64(b, "rows", c->rows);
                json_field_number(b, "seconds", c->seconds);
                buf_puts(b, "}");
        }
        buf_puts(b, "]");
        json_field_number(b, "busy_s", w->busy_s);
        json_field_number(b, "uptime_s", w->uptime_s);
        json_field_string(b, "sandbox", w->sandbox);
        json_field_string(b, "numerics_id", w->numerics_id);
        json_field_u64(b, "handovers", w->handovers);
        json_field_u64(b, "handover_ns", w->handover_ns);
        json_field_u64(b, "waiting_ns", w->waiting_ns);
        json_field_u64(b, "busy_ns", w->busy_ns);
        json_field_string(b, "reason", w->reason);
        json_field_string(b, "plan", w->plan);
        if (w->use)
                json_use(b, w->use);
        buf_puts(b, "}");
}

static void json_model(struct buf *b, const struct tandem_model *m)
{
        buf_puts(b, "{");
        json_field_string(b, "name", m->name);
        json_field_string(b, "path", m->path);
        json_field_string(b, "state", m->state);
        json_field_string(b, "error", m->error);
        json_field_string(b, "architecture", m->architecture);
        json_field_string(b, "quantisation", m->quantisation);
        json_field_u64(b, "file_bytes", m->file_bytes);
        json_field_u64(b, "weights_bytes", m->weights_bytes);
        json_field_u64(b, "kv_bytes", m->kv_bytes);
        json_field_u64(b, "kv_used_bytes", m->kv_used_bytes);
        json_field_u64(b, "activations_bytes", m->activations_bytes);
        json_field_u64(b, "scratch_bytes", m->scratch_bytes);
        json_field_u64(b, "context", m->context);
        json_field_string(b, "placement", m->placement);
        json_field_string(b, "precision", m->precision);
        json_field_string(b, "kv_type", m->kv_type);
        json_field_string(b, "chat", m->chat);
        json_field_u64(b, "kv_pages_full", m->kv_pages_full);
        json_field_u64(b, "kv_pages_full_used", m->kv_pages_full_used);
        json_field_u64(b, "kv_pages_window", m->kv_pages_window);
        json_field_u64(b, "kv_pages_window_used", m->kv_pages_window_used);
        json_field_number(b, "load_ms", m->load_ms);
        json_field_bool(b, "is_default", m->is_default);
        buf_puts(b, "}");
}

static void json_models(struct buf *b, const struct tandem_model *const *models, size_t n)
{
        json_key(b, "models");
        buf_puts(b, "[");
        for (size_t i = 0; i < n; i++) {
                if (i)
                        buf_puts(b, ",");
                json_model(b, models[i]);
        }
        buf_puts(b, "]");
}

static void json_jobs(struct buf *b, const struct tandem_job_list *list)
{
        json_key(b, "jobs");
        buf_puts(b, "[");
        for (size_t i = 0; i < list->n_jobs; i++) {
                const struct tandem_job_info *j = list->jobs[i];

                buf_puts(b, i ? ",{" : "{");
                json_field_u64(b, "job", j->job);
                json_field_string(b, "state", tandem_job_state_name(j->state));
                json_field_string(b, "model", j->model);
                json_field_u64(b, "uid", j->uid);
                json_field_string(b, "priority", tandem_priority_name(j->priority));
                json_field_u64(b, "prompt_tokens", j->prompt_tokens);
                json_field_u64(b, "prefilled_tokens", j->prefilled_tokens);
                json_field_u64(b, "generated_tokens", j->generated_tokens);
                json_field_u64(b, "max_tokens", j->max_tokens);
                json_field_number(b, "age_s", j->age_s);
                json_field_u64(b, "recoveries", j->recoveries);
                buf_puts(b, "}");
        }
        buf_puts(b, "]");
}

static void json_status(struct buf *b, const struct tandem_status *s)
{
        buf_puts(b, "{");
        json_field_string(b, "version", s->version);
        json_field_u64(b, "pid", s->pid);
        json_field_number(b, "uptime_s", s->uptime_s);
        json_key(b, "workers");
        buf_puts(b, "[");
        for (size_t i = 0; i < s->n_workers; i++) {
                if (i)
                        buf_puts(b, ",");
                json_worker(b, s->workers[i]);
        }
        buf_puts(b, "]");
        json_models(b, s->models, s->n_models);
        json_field_u64(b, "jobs_running", s->jobs_running);
        json_field_u64(b, "jobs_queued", s->jobs_queued);
        json_field_u64(b, "jobs_done", s->jobs_done);
        json_field_u64(b, "jobs_failed", s->jobs_failed);
        json_field_u64(b, "jobs_cancelled", s->jobs_cancelled);
        json_field_u64(b, "tokens_generated", s->tokens_generated);
        json_field_u64(b, "prompt_tokens", s->prompt_tokens);
        json_field_u64(b, "epoch", s->epoch);
        json_field_u64(b, "recoveries", s->recoveries);
        json_field_u64(b, "steps_done", s->steps_done);
        json_field_u64(b, "arena_bytes", s->arena_bytes);
        json_field_string(b, "socket", s->socket);
        json_field_bool(b, "draining", s->draining);
        json_field_u64(b, "steps_in_flight", s->steps_in_flight);
        json_field_u64(b, "prefill_tokens", s->prefill_tokens);
        json_field_u64(b, "decode_tokens", s->decode_tokens);
        json_field_u64(b, "prefix_hits", s->prefix_hits);
        json_field_u64(b, "cached_tokens", s->cached_tokens);
        json_field_u64(b, "evictions", s->evictions);
        json_field_u64(b, "reread_tokens", s->reread_tokens);
        buf_puts(b, "}");
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void print_use(const struct tandem_device_use *use)
{
        out_printf("  use      %.1f%% of its blocks' multiplications on the device; %" PRIu64 " submissions of %" PRIu64
                   " commands in %" PRIu64 " blocks",
                   100 * device_share(use), use->submissions, use->commands, use->blocks);
        if (use->repeats + use->contexts > 0)
                out_printf("; after faults %" PRIu64 " sent again, %" PRIu64 " contexts made anew", use->repeats,
                           use->contexts);
        out_puts("\n");
        if (!use->has_telemetry)
                return;
        out_printf("  driver   %" PRIu32 " %s, %" PRIu64 " errors", use->driver_contexts,
                   use->driver_contexts == 1 ? "context" : "contexts", use->context_errors);
        if (use->utilisation >= 0)
                out_printf(", %.0f%% used", 100 * use->utilisation);
        if (use->power_w >= 0)
                out_printf(", %.2f W", use->power_w);
        if (use->temperature_c >= 0)
                out_printf(", %.0f degrees C", use->temperature_c);
        out_printf(" (%.0f s ago)\n", use->age_s);
}

static void print_worker(const struct tandem_worker *w)
{
        char uptime[32], busy[32];
        unsigned n_kinds = 0;

        out_printf("\n%s worker: %s", term_safe(w->name), term_safe(w->state));
        if (w->pid)
                out_printf(", pid %" PRIu64, w->pid);
        format_duration(uptime, sizeof(uptime), w->uptime_s);
        format_duration(busy, sizeof(busy), w->busy_s);
        if (w->pid)
                out_printf(", up %s, busy %s", uptime, busy);
        out_printf(", %" PRIu32 " %s\n", w->restarts, w->restarts == 1 ? "restart" : "restarts");
        out_printf("  device   %s (asked for: %s)%s%s\n", *w->device ? term_safe(w->device) : "none",
                   term_safe(w->requested), *w->detail ? ", " : "", term_safe(w->detail));
        if (*w->reason)
                out_printf("  because  %s\n", term_safe(w->reason));
        if (*w->plan)
                out_printf("  plan     %s\n", term_safe(w->plan));
        if (w->use)
                print_use(w->use);
        if (*w->last_exit)
                out_printf("  lost     %s\n", term_safe(w->last_exit));
        if (*w->sandbox)
                out_printf("  sandbox  %s\n", term_safe(w->sandbox));
        if (*w->numerics_id)
                out_printf("  numerics %s\n", term_safe(w->numerics_id));
        for (size_t i = 0; i < w->n_blocks; i++) {
                const struct tandem_block_count *c = w->blocks[i];

                if (c->blocks > 0)
                        out_printf("  %s%-12s %12" PRIu64 " blocks %12" PRIu64 " rows %10.3f s\n",
                                   n_kinds++ ? "         " : "ran      ", term_safe(c->kind), c->blocks, c->rows,
                                   c->seconds);
        }
        if (n_kinds == 0)
                out_puts("  ran      no blocks yet\n");
}

static void print_model(const struct tandem_model *m)
{
        out_printf("\nmodel %s: %s%s\n", term_safe(m->name), term_safe(m->state), m->is_default ? ", the default" : "");
        if (*m->error)
                out_printf("  error    %s\n", term_safe(m->error));
        if (*m->path)
                out_printf("  file     %s, %s, %s %s\n", term_safe(m->path), human_bytes(m->file_bytes),
                           term_safe(m->architecture), term_safe(m->quantisation));
        if (strcmp(m->state, "loaded") != 0)
                return;
        out_printf("  context  %" PRIu32 " tokens, chat template: %s, loaded in %.0f ms\n", m->context,
                   *m->chat ? term_safe(m->chat) : "none", m->load_ms);
        out_printf("  plan     %s, precision %s, KV %s\n", term_safe(m->placement), term_safe(m->precision),
                   *m->kv_type ? term_safe(m->kv_type) : "unknown");
        out_printf("  memory   weights %s, KV %s of %s used, activations %s, scratch %s\n",
                   human_bytes(m->weights_bytes), human_bytes(m->kv_used_bytes), human_bytes(m->kv_bytes),
                   human_bytes(m->activations_bytes), human_bytes(m->scratch_bytes));
        out_printf("  pages    full layers %" PRIu32 "/%" PRIu32 ", window layers %" PRIu32 "/%" PRIu32 "\n",
                   m->kv_pages_full_used, m->kv_pages_full, m->kv_pages_window_used, m->kv_pages_window);
}

static void print_status(const struct tandem_status *s)
{
        char uptime[32];

        format_duration(uptime, sizeof(uptime), s->uptime_s);
        out_printf("tandemd %s, pid %" PRIu64 ", up %s, on %s%s\n", term_safe(s->version), s->pid, uptime,
                   term_safe(s->socket), s->draining ? ", shutting down" : "");
        out_printf("jobs: %" PRIu32 " running, %" PRIu32 " queued, %" PRIu64 " done, %" PRIu64 " cancelled, %" PRIu64
                   " failed\n",
                   s->jobs_running, s->jobs_queued, s->jobs_done, s->jobs_cancelled, s->jobs_failed);
        out_printf("tokens: %" PRIu64 " read, %" PRIu64 " generated in %" PRIu64 " steps; %" PRIu64
                   " recoveries (epoch %" PRIu32 "); shared memory %s\n",
                   s->prompt_tokens, s->tokens_generated, s->steps_done, s->recoveries, s->epoch,
                   human_bytes(s->arena_bytes));
        for (size_t i = 0; i < s->n_workers; i++)
                print_worker(s->workers[i]);
        for (size_t i = 0; i < s->n_models; i++)
                print_model(s->models[i]);
}

static void print_models(const struct tandem_model_list *list)
{
        int width = 4;

        if (list->n_models == 0) {
                out_puts("no models (put .gguf files into a model directory, or name a file: -m ./model.gguf)\n");
                return;
        }
        for (size_t i = 0; i < list->n_models; i++)
                width = TDM_MAX(width, (int)TDM_MIN(strlen(list->models[i]->name), (size_t)40));
        out_printf("%-*s  %-9s  %10s  %-12s  %s\n", width, "NAME", "STATE", "SIZE", "TYPE", "FILE");
        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];

                out_printf("%-*s  %-9s  %10s  %-12s  %s%s%s%s\n", width, term_safe(m->name), term_safe(m->state),
                           human_bytes(m->file_bytes), term_safe(m->quantisation), term_safe(m->path),
                           m->is_default ? " (default)" : "", *m->error ? ": " : "", term_safe(m->error));
        }
}

const char *user_name(uint32_t uid)
{
        static char number[16];
        const struct passwd *pw = getpwuid(uid);

        if (pw)
                return pw->pw_name;
        snprintf(number, sizeof(number), "%" PRIu32, uid);
        return number;
}

static void print_jobs(const struct tandem_job_list *list)
{
        if (list->n_jobs == 0) {
                out_puts("no jobs\n");
                return;
        }
        out_printf("%8s  %-10s  %-16s  %-10s  %-11s  %13s  %13s  %9s  %s\n", "JOB", "STATE", "MODEL", "USER",
                   "PRIORITY", "PROMPT", "TOKENS", "AGE", "RECOVERIES");
        for (size_t i = 0; i < list->n_jobs; i++) {
                const struct tandem_job_info *j = list->jobs[i];
                char read[32], made[32], age[32];

                snprintf(read, sizeof(read), "%" PRIu32 "/%" PRIu32, j->prefilled_tokens, j->prompt_tokens);
                snprintf(made, sizeof(made), "%" PRIu32 "/%" PRIu32, j->generated_tokens, j->max_tokens);
                format_duration(age, sizeof(age), j->age_s);
                out_printf("%8" PRIu64 "  %-10s  %-16s  %-10s  %-11s  %13s  %13s  %9s  %" PRIu32 "\n", j->job,
                           tandem_job_state_name(j->state), term_safe(j->model), user_name(j->uid),
                           tandem_priority_name(j->priority), read, made, age, j->recoveries);
        }
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* Parses the one option these three have. */
static bool simple_args(struct cli *cli, int argc, char **argv, bool *json, int *ret_status)
{
        const struct arg args[] = { { 0, "json", ARG_FLAG, json }, ARG_SOCKET(cli) };
        unsigned n;

        return !cli_parse(args, TDM_ARRAY_SIZE(args), argc, argv, NULL, 0, &n, ret_status);
}

static int print_json(struct buf *b)
{
        if (b->failed)
                return complain("no memory for the answer");
        out_write(b->data, b->size);
        out_puts("\n");
        return out_finish();
}

int cli_status(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct tandem_status *answer;
        struct tandem_error err;
        bool json = false;
        int status;

        if (!simple_args(cli, argc, argv, &json, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_get_status(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (json) {
                json_status(&b, answer);
                status = print_json(&b);
        } else {
                print_status(answer);
                status = out_finish();
        }
        tandem_status_free(answer);
        return status;
}

int cli_models(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct tandem_model_list *answer;
        struct tandem_error err;
        bool json = false;
        int status;

        if (!simple_args(cli, argc, argv, &json, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_models(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (json) {
                buf_puts(&b, "{");
                json_models(&b, answer->models, answer->n_models);
                buf_puts(&b, "}");
                status = print_json(&b);
        } else {
                print_models(answer);
                status = out_finish();
        }
        tandem_model_list_free(answer);
        return status;
}

int cli_jobs(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct tandem_job_list *answer;
        struct tandem_error err;
        bool json = false;
        int status;

        if (!simple_args(cli, argc, argv, &json, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_jobs(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (json) {
                buf_puts(&b, "{");
                json_jobs(&b, answer);
                buf_puts(&b, "}");
                status = print_json(&b);
        } else {
                print_jobs(answer);
                status = out_finish();
        }
        tandem_job_list_free(answer);
        return status;
}
