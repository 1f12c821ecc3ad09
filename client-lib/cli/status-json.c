/* Status, models and jobs as JSON, with the wire's field names. */
#include "client-lib/cli/cli.h"

/* By the type of a row of common/status-fields.def. */
#define json_field_TEXT json_field_string
#define json_field_U32 json_field_u64
#define json_field_U64 json_field_u64
#define json_field_REAL json_field_number
#define json_field_BOOL json_field_bool

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
#define WORKER_FIELD(TYPE, field, ...) json_field_##TYPE(b, #field, w->field);
#include "common/status-fields.def"
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
        if (w->use)
                json_use(b, w->use);
        buf_puts(b, "}");
}

static void json_model(struct buf *b, const struct tandem_model *m)
{
        buf_puts(b, "{");
#define MODEL_FIELD(TYPE, field, ...) json_field_##TYPE(b, #field, m->field);
#include "common/status-fields.def"
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
#define JOB_FIELD(TYPE, field, ...) json_field_##TYPE(b, #field, j->field);
#include "common/status-fields.def"
                json_field_string(b, "state", tandem_job_state_name(j->state));
                json_field_string(b, "priority", tandem_priority_name(j->priority));
                buf_puts(b, "}");
        }
        buf_puts(b, "]");
}

static void json_parts(struct buf *b, const struct tandem_status *s)
{
        json_key(b, "workers");
        buf_puts(b, "[");
        for (size_t i = 0; i < s->n_workers; i++) {
                if (i)
                        buf_puts(b, ",");
                json_worker(b, s->workers[i]);
        }
        buf_puts(b, "]");
        json_model_array(b, s->models, s->n_models);
}

void json_status(struct buf *b, const struct tandem_status *s)
{
        buf_puts(b, "{");
        /* workers and models come in front of the counters */
#define DAEMON_FIELD(TYPE, field, ...)                                                                                 \
        if (strcmp(#field, "jobs_running") == 0)                                                                       \
                json_parts(b, s);                                                                                      \
        json_field_##TYPE(b, #field, s->field);
#include "common/status-fields.def"
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
