/* tandem status: the daemon, its workers and models, as tables or as JSON. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

struct status_options {
        bool json, verbose;
};

extern const struct command command_status;

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

/* "host" is what the workers call the CPU. */
static const char *device_name(const char *device)
{
        return strcmp(device, "host") == 0 ? "the CPU" : *device ? term_safe(device) : "nothing";
}

static void print_worker(const struct tandem_worker *w)
{
        char uptime[32], busy[32];
        unsigned n_kinds = 0;

        out_printf("\n%s worker: ", term_safe(w->name));
        out_state(w->state);
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
                out_printf("  lost     %s\n", term_safe(name_users(w->last_exit)));
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

/* If the file was removed, its name means another file by now, or none. */
static const char *model_standing(const struct tandem_model *m)
{
        if (m->path[0] == '/' && access(m->path, F_OK) < 0 && errno == ENOENT)
                return ", its file was removed (`tandem unload` forgets it)";
        return m->is_default ? ", the default" : "";
}

static void print_model(const struct tandem_model *m)
{
        out_printf("\nmodel %s: ", term_safe(m->name));
        out_state(m->state);
        out_printf("%s\n", model_standing(m));
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

/* Answers what a person asks first: does it run, on what, with which models. */
static void print_short(const struct tandem_status *s)
{
        char uptime[32];

        format_duration(uptime, sizeof(uptime), s->uptime_s);
        out_printf("tandemd %s, up %s, on %s%s\n", term_safe(s->version), uptime, term_safe(s->socket),
                   s->draining ? ", shutting down" : "");
        out_printf("jobs: %" PRIu32 " running, %" PRIu32 " queued, %" PRIu64 " done, %" PRIu64 " cancelled, %" PRIu64
                   " failed; %" PRIu64 " tokens generated\n",
                   s->jobs_running, s->jobs_queued, s->jobs_done, s->jobs_cancelled, s->jobs_failed,
                   s->tokens_generated);
        for (size_t i = 0; i < s->n_workers; i++) {
                const struct tandem_worker *w = s->workers[i];

                out_printf("%s worker: ", term_safe(w->name));
                out_state(w->state);
                out_printf(", on %s", device_name(w->device));
                if (strcmp(w->device, "host") != 0 && *w->detail)
                        out_printf(" (%s)", term_safe(w->detail));
                if (w->restarts > 0)
                        out_printf(", %" PRIu32 " %s, the last: %s", w->restarts,
                                   w->restarts == 1 ? "restart" : "restarts",
                                   *w->last_exit ? term_safe(name_users(w->last_exit)) : "as asked");
                out_puts("\n");
        }
        for (size_t i = 0; i < s->n_models; i++) {
                const struct tandem_model *m = s->models[i];

                out_printf("model %s: ", term_safe(m->name));
                out_state(m->state);
                out_printf("%s%s%s, %s\n", *m->error ? ": " : "", term_safe(m->error), model_standing(m),
                           human_bytes(m->resident_bytes));
        }
        if (s->n_models == 0)
                out_puts("no model in memory: the first job loads one\n");
        out_puts("-v tells more.\n");
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
                   " %s (epoch %" PRIu32 "); shared memory %s\n",
                   s->prompt_tokens, s->tokens_generated, s->steps_done, s->recoveries,
                   s->recoveries == 1 ? "recovery" : "recoveries", s->epoch, human_bytes(s->arena_bytes));
        for (size_t i = 0; i < s->n_workers; i++)
                print_worker(s->workers[i]);
        for (size_t i = 0; i < s->n_models; i++)
                print_model(s->models[i]);
}

static int run_status(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct status_options options = { 0 };
        struct tandem_status *answer;
        struct tandem_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_status, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_get_status(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (options.json) {
                json_status(&b, answer);
                status = print_json(&b);
        } else {
                if (options.verbose)
                        print_status(answer);
                else
                        print_short(answer);
                status = out_finish();
        }
        tandem_status_free(answer);
        return status;
}

static const struct arg args[] = {
        ARG_JSON(struct status_options, json, "one JSON object, with the field names of tandem.proto"),
        {
                .letter = 'v',
                .name = "verbose",
                .at = offsetof(struct status_options, verbose),
                .brief = "all that is known of workers, models and memory",
        },
};

const struct command command_status = {
        .name = "status",
        .summary = "the daemon, its workers, its models",
        .usage = "[-v|--json]",
        .about = "Shows whether the daemon and its workers run, on what, and the models in memory. With -v: each "
                 "worker's device and why, process, restarts and what it ran, the models' memory, recoveries.",
        COMMAND_ARGS(args),
        .run = run_status,
};
