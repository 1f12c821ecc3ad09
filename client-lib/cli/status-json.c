/* Status, models and jobs as JSON, with the wire's field names. */
#include "client-lib/cli/cli.h"

double device_share(const struct tandem_device_use *use)
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

static void json_model_array(struct buf *b, const struct tandem_model *const *models, size_t n)
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

void json_jobs(struct buf *b, const struct tandem_job_list *list)
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

void json_status(struct buf *b, const struct tandem_status *s)
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
        json_model_array(b, s->models, s->n_models);
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

void json_models(struct buf *b, const struct tandem_model_list *list)
{
        json_model_array(b, list->models, list->n_models);
}

int print_json(struct buf *b)
{
        if (b->failed)
                return complain("no memory for the answer");
        out_write(b->data, b->size);
        out_puts("\n");
        return out_finish();
}
