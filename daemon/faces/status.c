#include "daemon/faces/status.h"

#include <time.h>

static const char *or_empty(const char *s)
{
        return s ? s : "";
}

/* Other users' names are not looked up: that may ask a server on the network, and this is the event loop. */
void tdm_status_asked_by(char *to, size_t size, uint32_t uid)
{
        if (uid == 0)
                snprintf(to, size, "asked for by root");
        else
                snprintf(to, size, "asked for by user %u", (unsigned)uid);
}

void tdm_status_of_worker(const struct tdm_status_source *source, enum tdm_worker_index index,
                          struct tdm_worker_shown *ret)
{
        const struct tdm_worker_status *s = &ret->from;
        uint64_t now = tdm_now_ns();

        tdm_fleet_worker_status(source->fleet, index, &ret->from);
        ret->fields = (struct tdm_worker_fields){
                .name = or_empty(s->name),
                .requested = or_empty(s->requested),
                .device = or_empty(s->device),
                .detail = or_empty(s->detail),
                .state = tdm_worker_state_name(s->state),
                .pid = s->pid > 0 ? (uint64_t)s->pid : 0,
                .restarts = s->restarts,
                .last_exit = or_empty(s->last_exit),
                .busy_s = (double)s->busy_ns / 1e9,
                .uptime_s = s->pid > 0 && s->started_ns ? (double)(now - s->started_ns) / 1e9 : 0,
                .sandbox = or_empty(s->sandbox),
                .numerics_id = or_empty(s->numerics_id),
                .handovers = s->handovers,
                .handover_ns = s->handover_ns,
                .waiting_ns = s->waiting_ns,
                .busy_ns = s->busy_ns,
                .reason = or_empty(s->reason),
                .plan = s->plan,
        };
}

static const char *placement_text(const struct tdm_status_source *source, const struct tdm_model *model, char *buffer,
                                  size_t size)
{
        enum tdm_placement placement = tdm_scheduler_placement(source->scheduler);
        struct tdm_placement_workers workers;
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        bool degraded = false;

        if (!source->fleet || !tdm_model_is_described(model))
                return "";
        if (placement == TDM_PLACEMENT_ANY) {
                snprintf(buffer, size, "measured: %s%s",
                         tdm_placement_text(tdm_fleet_measured(source->fleet, model->id)),
                         tdm_fleet_is_degraded(source->fleet) ? ", degraded" : "");
                return buffer;
        }
        tdm_fleet_placement_workers(source->fleet, model->id, &workers);
        if (tdm_placement_plan(&workers, tdm_model_hparams(model), placement, plan, &degraded) < 0)
                return "none: no worker can run it";
        snprintf(buffer, size, "%s%s", tdm_placement_text(placement), degraded ? ", degraded" : "");
        return buffer;
}

/* 0 to 1. */
static double model_progress(const struct tdm_model *model)
{
        uint64_t done, total;

        if (model->state == TDM_MODEL_READY)
                return 1;
        tdm_model_progress(model, &done, &total);
        return total ? (double)TDM_MIN(done, total) / (double)total : 0;
}

static void fill_cache(const struct tdm_model *model, struct tdm_model_fields *f)
{
        f->kv_bytes = model->geometry.size_bytes;
        f->kv_pages_full = tdm_pages_total(model->pages, TDM_KV_FULL);
        f->kv_pages_full_used = tdm_pages_used(model->pages, TDM_KV_FULL);
        f->kv_pages_full_idle = tdm_pages_idle(model->pages, TDM_KV_FULL);
        f->kv_pages_window = tdm_pages_total(model->pages, TDM_KV_WINDOW);
        f->kv_pages_window_used = tdm_pages_used(model->pages, TDM_KV_WINDOW);
        f->kv_pages_window_idle = tdm_pages_idle(model->pages, TDM_KV_WINDOW);
        f->kv_used_bytes = f->kv_pages_full_used * model->geometry.page_bytes[TDM_KV_FULL] +
                           f->kv_pages_window_used * model->geometry.page_bytes[TDM_KV_WINDOW] +
                           tdm_pages_used(model->pages, TDM_KV_STATE) * model->geometry.page_bytes[TDM_KV_STATE];
}

const char *tdm_status_name_of(const struct tdm_status_source *source, const struct tdm_model *model)
{
        const char *name = source->sees_all ? model->name : tdm_model_name_for(model, source->viewer);

        return name ? name : TDM_STATUS_UNNAMED;
}

/* "": nothing that the viewer may read. */
static const char *shown_path(const struct tdm_status_source *source, const struct tdm_model *model)
{
        const char *path = tdm_model_path_for(model, source->sees_all ? model->account : source->viewer);

        return path ? path : "";
}

static const char *capabilities(const struct tdm_model *model, const struct tdm_model_metadata *metadata)
{
        static const char *const words[2][2][2] = {
                { { "completion", "completion vision" }, { "completion thinking", "completion vision thinking" } },
                { { "completion tools", "completion vision tools" },
                  { "completion tools thinking", "completion vision tools thinking" } }
        };
        struct tdm_error why_not;
        bool sees;

        if (tdm_model_recipe(model)->n_labels > 0)
                return tdm_model_recipe(model)->tells_classes ? "classify" : "rerank";
        if (tdm_model_recipe(model)->pooling != TDM_POOLING_NONE)
                return "embedding";
        sees = tdm_model_check_pictures(model, &why_not) == 0;
        return words[tdm_chat_has_tools(metadata->chat)][tdm_chat_thoughts_of(metadata->chat) != TDM_CHAT_THOUGHTS_NONE]
                    [sees];
}

/* Pages in use tell how long others' texts are: to eighths of all. */
static uint32_t eighths(uint32_t used, uint32_t total)
{
        uint32_t eighth = TDM_DIV_UP(total, 8u);

        return eighth ? TDM_MIN(total, TDM_DIV_UP(used, eighth) * eighth) : used;
}

static void hide_cache(struct tdm_model_fields *f)
{
        f->kv_pages_full_used = eighths(f->kv_pages_full_used, f->kv_pages_full);
        f->kv_pages_full_idle = eighths(f->kv_pages_full_idle, f->kv_pages_full);
        f->kv_pages_window_used = eighths(f->kv_pages_window_used, f->kv_pages_window);
        f->kv_pages_window_idle = eighths(f->kv_pages_window_idle, f->kv_pages_window);
        f->kv_used_bytes = f->kv_bytes / 8 * TDM_DIV_UP(f->kv_used_bytes, TDM_MAX(f->kv_bytes / 8, UINT64_C(1)));
}

static uint64_t modified_s(const struct tdm_file_identity *identity)
{
        return identity->mtime_ns > 0 ? (uint64_t)identity->mtime_ns / TDM_NSEC_PER_SEC : 0;
}

/* The machine's time of the day when the model leaves unless it is used; 0: it does not leave by itself. */
static uint64_t expires_s(const struct tdm_model *model)
{
        uint64_t at_ns = tdm_model_leaves_at(model), now_ns = tdm_now_ns();

        if (at_ns == UINT64_MAX)
                return 0;
        return (uint64_t)time(NULL) + (at_ns > now_ns ? (at_ns - now_ns) / TDM_NSEC_PER_SEC : 0);
}

/* What the head of the file said, of a model that is not described: it is about to load, or failed before that. */
static void fill_summary(struct tdm_model_fields *f, const struct tdm_model_summary *summary)
{
        f->architecture = summary->architecture;
        f->quantisation = summary->quantisation;
        f->parameters = summary->n_parameters;
        f->context = summary->context;
        if (summary->file_bytes > 0)
                f->file_bytes = summary->file_bytes;
}

void tdm_status_of_model(const struct tdm_status_source *source, struct tdm_model *model, struct tdm_model_shown *ret)
{
        struct tdm_model_fields *f = &ret->fields;
        const struct tdm_model_metadata *metadata = model->metadata;
        const struct tdm_model_summary *summary =
                metadata ? NULL : tdm_models_known_summary(source->models, &model->identity);

        *f = (struct tdm_model_fields){
                .name = tdm_status_name_of(source, model),
                .path = shown_path(source, model),
                .state = tdm_model_state_name(model->state),
                .error = tdm_model_shown_error(model),
                .architecture = metadata ? metadata->architecture : "",
                .quantisation = metadata ? metadata->quantisation : "",
                .file_bytes = tdm_model_file_bytes(model),
                .weights_bytes = model->weights ? model->weights->size_bytes : 0,
                .context = metadata ? tdm_model_hparams(model)->n_ctx : 0,
                .placement = metadata ? placement_text(source, model, ret->placement, sizeof(ret->placement)) : "",
                .precision = tdm_precision_name(model->precision),
                .kv_type = tdm_kv_type_name(model->kv_type),
                .chat = metadata ? tdm_chat_state(metadata->chat) : "",
                .capabilities = metadata ? capabilities(model, metadata) : "",
                .load_ms = model->way.load_ms,
                .progress = model_progress(model),
                .resident_bytes = tdm_model_resident_bytes(model),
                .is_default = tdm_model_is_default(model),
                .modified_s = modified_s(&model->identity),
                .expires_s = expires_s(model),
                .parameters = metadata ? metadata->n_parameters : 0,
        };
        if (summary)
                fill_summary(f, summary);
        if (model->activations)
                f->activations_bytes =
                        model->activations->size_bytes + model->steps->size_bytes + model->results->size_bytes;
        if (model->in_fleet && source->fleet)
                f->scratch_bytes = tdm_fleet_model_scratch(source->fleet, model->id);
        if (model->pages)
                fill_cache(model, f);
        if (!source->sees_all)
                hide_cache(f);
}

bool tdm_status_of_file(const struct tdm_status_source *source, const char *name, const char *path, uint64_t size_bytes,
                        const struct tdm_file_identity *identity, struct tdm_model_shown *ret,
                        struct tdm_model **ret_model)
{
        struct tdm_model *model = tdm_models_find_file(source->models, identity);
        const struct tdm_model_summary *summary = model ? NULL : tdm_models_summary_of(source->models, path, identity);

        if (model && strcmp(model->name, name) == 0)
                return false;
        if (model)
                tdm_status_of_model(source, model, ret);
        else
                ret->fields = (struct tdm_model_fields){ .state = "available",
                                                         .error = "",
                                                         .architecture = "",
                                                         .quantisation = "",
                                                         .placement = "",
                                                         .precision = "",
                                                         .kv_type = "",
                                                         .chat = "",
                                                         .capabilities = "",
                                                         .file_bytes = size_bytes,
                                                         .modified_s = modified_s(identity) };
        if (summary)
                fill_summary(&ret->fields, summary);
        ret->fields.name = name;
        ret->fields.path = path;
        ret->fields.is_default = strcmp(name, tdm_models_default_name(source->models)) == 0;
        *ret_model = model;
        return true;
}

/* Rounds up to a power of two what others do. So a user sees whether there is little or much to do, and no single job,
 * prompt or answer. 0 stays 0. */
static uint64_t coarse(uint64_t n)
{
        uint64_t power = 1;

        while (power < n && power < UINT64_C(1) << 63)
                power *= 2;
        return n == 0 ? 0 : power;
}

/* The viewer's own jobs as they are, and those of others coarsely. */
static void hide_jobs(const struct tdm_status_source *source, struct tdm_scheduler_stats *s)
{
        uint32_t running = 0, queued = 0;
        struct tdm_job *job;

        tdm_list_for_each(job, tdm_scheduler_jobs(source->scheduler), struct tdm_job, node) {
                if (!source->viewer || job->identity != source->viewer->identity || job->state == TDM_JOB_DONE)
                        continue;
                if (job->state == TDM_JOB_PREFILL || job->state == TDM_JOB_DECODE || job->state == TDM_JOB_RECOVERING)
                        running++;
                else
                        queued++;
        }
        running = TDM_MIN(running, s->n_running);
        queued = TDM_MIN(queued, s->n_queued);
        s->n_running = running + (uint32_t)coarse(s->n_running - running);
        s->n_queued = queued + (uint32_t)coarse(s->n_queued - queued);
}

static void hide_others(const struct tdm_status_source *source, struct tdm_scheduler_stats *s)
{
        uint64_t *const sums[] = { &s->n_done,      &s->n_failed,      &s->n_cancelled,  &s->tokens_generated,
                                   &s->steps_done,  &s->prompt_tokens, &s->prefill_rows, &s->decode_rows,
                                   &s->prefix_hits, &s->cached_tokens, &s->evictions,    &s->reread_tokens,
                                   &s->disk_tokens, &s->disk_refused };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(sums); i++)
                *sums[i] = coarse(*sums[i]);
        s->n_in_flight = (uint32_t)coarse(s->n_in_flight);
        hide_jobs(source, s);
}

void tdm_status_stats(const struct tdm_status_source *source, struct tdm_scheduler_stats *ret)
{
        tdm_scheduler_stats(source->scheduler, ret);
        if (!source->sees_all)
                hide_others(source, ret);
}

void tdm_status_of_daemon(const struct tdm_status_source *source, struct tdm_daemon_fields *ret)
{
        struct tdm_scheduler_stats stats;

        tdm_status_stats(source, &stats);
        *ret = (struct tdm_daemon_fields){
                .version = TANDEM_VERSION,
                .pid = (uint64_t)getpid(),
                .uptime_s = (double)(tdm_now_ns() - source->started_ns) / 1e9,
                .jobs_running = stats.n_running,
                .jobs_queued = stats.n_queued,
                .jobs_done = stats.n_done,
                .jobs_failed = stats.n_failed,
                .jobs_cancelled = stats.n_cancelled,
                .tokens_generated = stats.tokens_generated,
                .prompt_tokens = stats.prompt_tokens,
                .epoch = source->fleet ? tdm_fleet_epoch(source->fleet) : 0,
                .recoveries = source->fleet ? tdm_fleet_recoveries(source->fleet) : 0,
                .steps_done = stats.steps_done,
                .arena_bytes = tdm_models_resident_bytes(source->models),
                .socket = or_empty(source->socket),
                .draining = source->draining,
                .steps_in_flight = stats.n_in_flight,
                .prefill_tokens = stats.prefill_rows,
                .decode_tokens = stats.decode_rows,
                .prefix_hits = stats.prefix_hits,
                .cached_tokens = stats.cached_tokens,
                .disk_tokens = stats.disk_tokens,
                .disk_refused = stats.disk_refused,
                .evictions = stats.evictions,
                .reread_tokens = stats.reread_tokens,
        };
}
