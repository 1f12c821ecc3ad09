/* Status and lists: gathered from their owners when asked for, never kept here. */
#include "daemon/faces/socket/private.h"

#define MAX_LISTED_MODELS 1024u

static const char *placement_text(struct tdm_face *face, const struct tdm_model *model, char *buffer, size_t size)
{
        enum tdm_placement placement = tdm_scheduler_placement(face->scheduler);
        struct tdm_placement_workers workers;
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        bool degraded = false;

        if (!face->fleet || !tdm_model_is_described(model))
                return "";
        if (placement == TDM_PLACEMENT_ANY) {
                snprintf(buffer, size, "measured: %s%s", tdm_placement_text(tdm_fleet_measured(face->fleet, model->id)),
                         tdm_fleet_is_degraded(face->fleet) ? ", degraded" : "");
                return buffer;
        }
        tdm_fleet_placement_workers(face->fleet, &workers);
        if (tdm_placement_plan(&workers, tdm_model_hparams(model), placement, plan, &degraded) < 0)
                return "none: no worker can run it";
        snprintf(buffer, size, "%s%s", tdm_placement_text(placement), degraded ? ", degraded" : "");
        return buffer;
}

struct model_strings {
        char placement[48];
};

static void fill_model(struct tdm_face *face, struct tdm_model *model, Tandem__ModelStatus *m,
                       struct model_strings *strings)
{
        tandem__model_status__init(m);
        m->name = model->name;
        m->path = model->path;
        m->state = (char *)tdm_model_state_name(model->state);
        m->error = model->state == TDM_MODEL_FAILED ? model->error.message : (char *)"";
        m->file_bytes = model->identity.size_bytes;
        m->is_default = strcmp(model->name, tdm_models_default_name(face->models)) == 0;
        m->precision = (char *)tdm_precision_name(model->precision);
        m->kv_type = (char *)tdm_kv_type_name(model->kv_type);
        m->load_ms = model->load_ms;
        if (model->metadata) {
                m->architecture = model->metadata->architecture;
                m->quantisation = model->metadata->quantisation;
                m->context = tdm_model_hparams(model)->n_ctx;
                m->chat = (char *)tdm_chat_family_name(model->metadata->chat);
                m->placement = (char *)placement_text(face, model, strings->placement, sizeof(strings->placement));
        }
        if (model->weights)
                m->weights_bytes = model->weights->size_bytes;
        if (model->activations)
                m->activations_bytes =
                        model->activations->size_bytes + model->steps->size_bytes + model->results->size_bytes;
        if (model->in_fleet && face->fleet)
                m->scratch_bytes = tdm_fleet_model_scratch(face->fleet, model->id);
        if (model->pages) {
                m->kv_bytes = model->geometry.size_bytes;
                m->kv_pages_full = tdm_pages_total(model->pages, TDM_KV_FULL);
                m->kv_pages_full_used = tdm_pages_used(model->pages, TDM_KV_FULL);
                m->kv_pages_full_idle = tdm_pages_idle(model->pages, TDM_KV_FULL);
                m->kv_pages_window_idle = tdm_pages_idle(model->pages, TDM_KV_WINDOW);
                m->kv_pages_window = tdm_pages_total(model->pages, TDM_KV_WINDOW);
                m->kv_pages_window_used = tdm_pages_used(model->pages, TDM_KV_WINDOW);
                m->kv_used_bytes = m->kv_pages_full_used * model->geometry.page_bytes[TDM_KV_FULL] +
                                   m->kv_pages_window_used * model->geometry.page_bytes[TDM_KV_WINDOW];
        }
}

/* ---- status ---- */

struct worker_scratch {
        Tandem__WorkerStatus status;
        struct tdm_worker_status from;
        Tandem__DeviceUse use;
        Tandem__DeviceTelemetry telemetry;
        Tandem__BlockCount counts[TDM_N_BLOCK_KINDS], *list[TDM_N_BLOCK_KINDS];
};

static char *or_empty(const char *s)
{
        return (char *)(s ? s : "");
}

static double thousandths(uint32_t value)
{
        return value == TDM_DEVICE_UNKNOWN ? -1 : value / 1e3;
}

static void fill_use(struct worker_scratch *w, const struct tdm_device_use *use, uint64_t now)
{
        Tandem__DeviceTelemetry *t = &w->telemetry;

        if (use->blocks + use->submissions + use->host_macs + use->sampled_ns == 0)
                return;
        tandem__device_use__init(&w->use);
        w->use.device_macs = use->device_macs;
        w->use.host_macs = use->host_macs;
        w->use.blocks = use->blocks;
        w->use.submissions = use->submissions;
        w->use.commands = use->commands;
        w->use.repeats = use->repeats;
        w->use.contexts = use->contexts;
        w->status.use = &w->use;
        if (use->sampled_ns == 0)
                return;
        tandem__device_telemetry__init(t);
        t->age_s = now > use->sampled_ns ? (double)(now - use->sampled_ns) / 1e9 : 0;
        t->power_w = thousandths(use->power_mw);
        t->utilisation = thousandths(use->utilisation_permille);
        t->temperature_c = thousandths(use->temperature_mc);
        t->contexts = use->n_contexts;
        t->context_errors = use->context_errors;
        w->use.telemetry = t;
}

static void fill_worker(struct tdm_face *face, enum tdm_worker_index index, struct worker_scratch *w, uint64_t now)
{
        struct tdm_worker_status s;

        tdm_fleet_worker_status(face->fleet, index, &w->from);
        s = w->from;
        tandem__worker_status__init(&w->status);
        w->status.name = or_empty(s.name);
        w->status.requested = or_empty(s.requested);
        w->status.device = or_empty(s.device);
        w->status.detail = or_empty(s.detail);
        w->status.state = (char *)tdm_worker_state_name(s.state);
        w->status.pid = s.pid > 0 ? (uint64_t)s.pid : 0;
        w->status.restarts = s.restarts;
        w->status.last_exit = or_empty(s.last_exit);
        w->status.busy_s = (double)s.busy_ns / 1e9;
        w->status.uptime_s = s.pid > 0 && s.started_ns ? (double)(now - s.started_ns) / 1e9 : 0;
        w->status.sandbox = or_empty(s.sandbox);
        w->status.numerics_id = or_empty(s.numerics_id);
        w->status.reason = or_empty(s.reason);
        w->status.plan = w->from.plan;
        fill_use(w, &s.use, now);
        w->status.handovers = s.handovers;
        w->status.handover_ns = s.handover_ns;
        w->status.waiting_ns = s.waiting_ns;
        w->status.busy_ns = s.busy_ns;
        for (int k = 0; k < TDM_N_BLOCK_KINDS; k++) {
                tandem__block_count__init(&w->counts[k]);
                w->counts[k].kind = (char *)tdm_block_kind_name((enum tdm_block_kind)k);
                w->counts[k].blocks = s.done[k].blocks;
                w->counts[k].rows = s.done[k].rows;
                w->counts[k].seconds = (double)s.done[k].ns / 1e9;
                w->list[k] = &w->counts[k];
        }
        w->status.n_blocks = TDM_N_BLOCK_KINDS;
        w->status.blocks = w->list;
}

void face_send_status(struct client *c, uint32_t id)
{
        struct tdm_face *face = c->face;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Status status = TANDEM__STATUS__INIT;
        struct worker_scratch workers[TDM_N_WORKERS];
        Tandem__WorkerStatus *worker_list[TDM_N_WORKERS];
        Tandem__ModelStatus models[TDM_MAX_MODELS], *model_list[TDM_MAX_MODELS];
        struct model_strings strings[TDM_MAX_MODELS];
        struct tdm_scheduler_stats stats;
        uint64_t now = tdm_now_ns();
        struct tdm_model *model;

        tdm_scheduler_stats(face->scheduler, &stats);
        status.version = (char *)TANDEM_VERSION;
        status.pid = (uint64_t)getpid();
        status.uptime_s = (double)(now - face->started_ns) / 1e9;
        for (int i = 0; i < TDM_N_WORKERS && face->fleet; i++) {
                fill_worker(face, (enum tdm_worker_index)i, &workers[i], now);
                worker_list[i] = &workers[i].status;
        }
        status.n_workers = face->fleet ? TDM_N_WORKERS : 0;
        status.workers = worker_list;
        tdm_list_for_each(model, tdm_models_list(face->models), struct tdm_model, node)
        {
                if (status.n_models == TDM_MAX_MODELS)
                        break;
                fill_model(face, model, &models[status.n_models], &strings[status.n_models]);
                model_list[status.n_models] = &models[status.n_models];
                status.n_models++;
        }
        status.models = model_list;
        status.jobs_running = stats.n_running;
        status.jobs_queued = stats.n_queued;
        status.jobs_done = stats.n_done;
        status.jobs_failed = stats.n_failed;
        status.jobs_cancelled = stats.n_cancelled;
        status.tokens_generated = stats.tokens_generated;
        status.prompt_tokens = stats.prompt_tokens;
        status.steps_done = stats.steps_done;
        status.steps_in_flight = stats.n_in_flight;
        status.prefill_tokens = stats.prefill_rows;
        status.decode_tokens = stats.decode_rows;
        status.prefix_hits = stats.prefix_hits;
        status.cached_tokens = stats.cached_tokens;
        status.evictions = stats.evictions;
        status.reread_tokens = stats.reread_tokens;
        status.epoch = face->fleet ? tdm_fleet_epoch(face->fleet) : 0;
        status.recoveries = face->fleet ? tdm_fleet_recoveries(face->fleet) : 0;
        status.arena_bytes = tdm_models_resident_bytes(face->models);
        status.socket = face->socket;
        status.draining = face->draining;
        reply.kind_case = TANDEM__REPLY__KIND_STATUS;
        reply.status = &status;
        face_send(c, id, &reply);
}

/* ---- models ---- */

struct model_scan {
        struct tdm_face *face;
        size_t n;
        Tandem__ModelStatus *models, **list;
        struct model_strings *strings;
        struct {
                char *name, *path;
        } * own;
};

static void on_scanned(const char *name, const char *path, uint64_t size_bytes, void *userdata)
{
        struct model_scan *scan = userdata;
        Tandem__ModelStatus *m;

        for (size_t i = 0; i < scan->n; i++)
                if (strcmp(scan->models[i].name, name) == 0)
                        return;
        if (scan->n == MAX_LISTED_MODELS)
                return;
        m = &scan->models[scan->n];
        scan->own[scan->n].name = strdup(name);
        scan->own[scan->n].path = strdup(path);
        if (!scan->own[scan->n].name || !scan->own[scan->n].path) {
                free(steal_ptr(&scan->own[scan->n].name));
                free(steal_ptr(&scan->own[scan->n].path));
                return;
        }
        tandem__model_status__init(m);
        m->name = scan->own[scan->n].name;
        m->path = tdm_utf8_mend(scan->own[scan->n].path);
        m->state = (char *)"available";
        m->file_bytes = size_bytes;
        m->is_default = strcmp(name, tdm_models_default_name(scan->face->models)) == 0;
        scan->list[scan->n++] = m;
}

void face_send_models(struct client *c, uint32_t id)
{
        struct model_scan scan = { .face = c->face };
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Models models = TANDEM__MODELS__INIT;
        struct tdm_model *model;

        scan.models = calloc(MAX_LISTED_MODELS, sizeof(*scan.models));
        scan.list = calloc(MAX_LISTED_MODELS, sizeof(*scan.list));
        scan.strings = calloc(TDM_MAX_MODELS, sizeof(*scan.strings));
        scan.own = calloc(MAX_LISTED_MODELS, sizeof(*scan.own));
        if (!scan.models || !scan.list || !scan.strings || !scan.own) {
                face_send_error(c, id, TDM_E_INTERNAL, "out of memory");
                goto out;
        }
        tdm_list_for_each(model, tdm_models_list(c->face->models), struct tdm_model, node)
        {
                if (scan.n == TDM_MAX_MODELS)
                        break;
                fill_model(c->face, model, &scan.models[scan.n], &scan.strings[scan.n]);
                scan.list[scan.n] = &scan.models[scan.n];
                scan.n++;
        }
        (void)tdm_models_scan(c->face->models, on_scanned, &scan); /* what cannot be listed is left out */
        models.n_models = scan.n;
        models.models = scan.list;
        reply.kind_case = TANDEM__REPLY__KIND_MODELS;
        reply.models = &models;
        face_send(c, id, &reply);
out:
        for (size_t i = 0; scan.own && i < scan.n; i++) {
                free(scan.own[i].name);
                free(scan.own[i].path);
        }
        free(scan.own);
        free(scan.strings);
        free(scan.list);
        free(scan.models);
}

/* ---- jobs ---- */

void face_send_jobs(struct client *c, uint32_t id)
{
        struct tdm_list *all = tdm_scheduler_jobs(c->face->scheduler);
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Jobs jobs = TANDEM__JOBS__INIT;
        _cleanup_(freep) Tandem__JobStatus *own = NULL;
        _cleanup_(freep) Tandem__JobStatus **list = NULL;
        uint64_t now = tdm_now_ns();
        struct tdm_job *job;
        size_t n = 0;

        tdm_list_for_each(job, all, struct tdm_job, node) n++;
        own = calloc(n + 1, sizeof(*own));
        list = calloc(n + 1, sizeof(*list));
        if (!own || !list) {
                face_send_error(c, id, TDM_E_INTERNAL, "out of memory");
                return;
        }
        tdm_list_for_each(job, all, struct tdm_job, node)
        {
                Tandem__JobStatus *s = &own[jobs.n_jobs];

                if (!client_may_touch(c, job->uid) || job->state == TDM_JOB_DONE)
                        continue;
                tandem__job_status__init(s);
                s->job = job->id;
                s->state = (Tandem__JobState)job->state;
                s->model = job->model->name;
                s->uid = (uint32_t)job->uid;
                s->priority = job->priority == TDM_JOB_BACKGROUND ? TANDEM__PRIORITY__PRIORITY_BACKGROUND :
                                                                    TANDEM__PRIORITY__PRIORITY_INTERACTIVE;
                s->prompt_tokens = job->prompt_tokens;
                s->prefilled_tokens = job->prefilled_tokens;
                s->generated_tokens = job->generated;
                s->max_tokens = job->max_tokens;
                s->age_s = (double)(now - job->created_ns) / 1e9;
                s->recoveries = job->recoveries;
                s->cached_tokens = job->cached_tokens;
                s->evictions = job->evictions;
                list[jobs.n_jobs++] = s;
        }
        jobs.jobs = list;
        reply.kind_case = TANDEM__REPLY__KIND_JOBS;
        reply.jobs = &jobs;
        face_send(c, id, &reply);
}
