/* Status and lists: gathered from their owners when asked for, never kept here. */
#include "daemon/faces/socket/private.h"

#include "daemon/faces/status.h"

static struct tdm_status_source face_status_source(const struct client *c)
{
        const struct tdm_face *face = c->face;

        return (struct tdm_status_source){
                .models = face->models,
                .scheduler = face->scheduler,
                .fleet = face->fleet,
                .socket = face->socket,
                .started_ns = face->started_ns,
                .draining = face->draining,
                .sees_all = (!face->system && c->identity == c->uid) || client_is_admin(c),
                .viewer = c->account,
        };
}

/* A row of common/status-fields.def: the same name on both sides. Protobuf's strings are not const. */
#define COPY_TEXT(field) to->field = (char *)(uintptr_t)from->field;
#define COPY_U32(field) to->field = from->field;
#define COPY_U64(field) to->field = from->field;
#define COPY_REAL(field) to->field = from->field;
#define COPY_BOOL(field) to->field = from->field;
#define COPY(TYPE, field, ...) COPY_##TYPE(field)

static void put_model(Tandem__ModelStatus *to, const struct tdm_model_fields *from)
{
        tandem__model_status__init(to);
#define MODEL_FIELD COPY
#include "common/status-fields.def"
}

static void put_worker(Tandem__WorkerStatus *to, const struct tdm_worker_fields *from)
{
        tandem__worker_status__init(to);
#define WORKER_FIELD COPY
#include "common/status-fields.def"
}

static void put_daemon(Tandem__Status *to, const struct tdm_daemon_fields *from)
{
        tandem__status__init(to);
#define DAEMON_FIELD COPY
#include "common/status-fields.def"
}

/* ---- status ---- */

struct worker_scratch {
        Tandem__WorkerStatus status;
        struct tdm_worker_shown shown;
        Tandem__DeviceUse use;
        Tandem__DeviceTelemetry telemetry;
        Tandem__BlockCount counts[TDM_N_BLOCK_KINDS], *list[TDM_N_BLOCK_KINDS];
};

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

static void fill_worker(const struct tdm_status_source *source, enum tdm_worker_index index, struct worker_scratch *w)
{
        const struct tdm_worker_status *s = &w->shown.from;

        tdm_status_of_worker(source, index, &w->shown);
        put_worker(&w->status, &w->shown.fields);
        fill_use(w, &s->use, tdm_now_ns());
        for (int k = 0; k < TDM_N_BLOCK_KINDS; k++) {
                tandem__block_count__init(&w->counts[k]);
                w->counts[k].kind = (char *)tdm_block_kind_name((enum tdm_block_kind)k);
                w->counts[k].blocks = s->done[k].blocks;
                w->counts[k].rows = s->done[k].rows;
                w->counts[k].seconds = (double)s->done[k].ns / 1e9;
                w->list[k] = &w->counts[k];
        }
        w->status.n_blocks = TDM_N_BLOCK_KINDS;
        w->status.blocks = w->list;
}

char *face_model_name(const struct client *c, const struct tdm_model *model)
{
        const struct tdm_status_source source = face_status_source(c);

        return (char *)tdm_status_name_of(&source, model);
}

void face_send_status(struct client *c, uint32_t id)
{
        const struct tdm_status_source source = face_status_source(c);
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Status status;
        struct tdm_daemon_fields fields;
        struct worker_scratch workers[TDM_N_WORKERS];
        Tandem__WorkerStatus *worker_list[TDM_N_WORKERS];
        struct tdm_model_shown shown[TDM_MAX_MODELS];
        Tandem__ModelStatus models[TDM_MAX_MODELS], *model_list[TDM_MAX_MODELS];
        struct tdm_model *model;

        tdm_status_of_daemon(&source, &fields);
        put_daemon(&status, &fields);
        for (int i = 0; i < TDM_N_WORKERS && source.fleet; i++) {
                fill_worker(&source, (enum tdm_worker_index)i, &workers[i]);
                worker_list[i] = &workers[i].status;
        }
        status.n_workers = source.fleet ? TDM_N_WORKERS : 0;
        status.workers = worker_list;
        tdm_list_for_each(model, tdm_models_list(source.models), struct tdm_model, node) {
                if (status.n_models == TDM_MAX_MODELS)
                        break;
                tdm_status_of_model(&source, model, &shown[status.n_models]);
                put_model(&models[status.n_models], &shown[status.n_models].fields);
                model_list[status.n_models] = &models[status.n_models];
                status.n_models++;
        }
        status.models = model_list;
        reply.kind_case = TANDEM__REPLY__KIND_STATUS;
        reply.status = &status;
        face_send(c, id, &reply);
}

/* ---- models ---- */

/* The replies' array holds pointers, so an entry stays where it is. */
struct listed {
        Tandem__ModelStatus status;
        struct tdm_model_shown shown;
        char *name, *path; /* of a file; NULL: the model's */
};

struct model_scan {
        struct tdm_status_source source;
        struct listed **listed;     /* [n] */
        Tandem__ModelStatus **list; /* [n] */
        size_t n, capacity;
        bool failed;
};

/* NULL: no memory. */
static struct listed *add_listed(struct model_scan *scan)
{
        struct listed *one = calloc(1, sizeof(*one));

        if (scan->n == scan->capacity) {
                size_t capacity = TDM_MAX((size_t)64, 2 * scan->capacity);
                struct listed **listed = reallocarray(scan->listed, capacity, sizeof(*listed));
                Tandem__ModelStatus **list = NULL;

                if (listed) {
                        scan->listed = listed;
                        list = reallocarray(scan->list, capacity, sizeof(*list));
                }
                if (!list) {
                        free(one);
                        scan->failed = true;
                        return NULL;
                }
                scan->list = list;
                scan->capacity = capacity;
        }
        if (!one) {
                scan->failed = true;
                return NULL;
        }
        scan->listed[scan->n] = one;
        scan->list[scan->n++] = &one->status;
        return one;
}

static void on_scanned(const char *name, const char *path, uint64_t size_bytes,
                       const struct tdm_file_identity *identity, void *userdata)
{
        struct model_scan *scan = userdata;
        struct tdm_model *model;
        struct tdm_model_shown shown;
        struct listed *one;

        if (!tdm_status_of_file(&scan->source, name, path, size_bytes, identity, &shown, &model))
                return;
        for (size_t i = 0; i < scan->n && !scan->listed[i]->name; i++)
                if (strcmp(scan->listed[i]->status.name, name) == 0)
                        return; /* a failed one's, or a client's */
        one = add_listed(scan);
        if (!one)
                return;
        one->name = strdup(name);
        one->path = strdup(path);
        if (!one->name || !one->path) {
                scan->failed = true;
                return;
        }
        if (model)
                (void)tdm_status_of_file(&scan->source, name, path, size_bytes, identity, &one->shown, &model);
        else
                one->shown = shown;
        one->shown.fields.name = one->name;
        one->shown.fields.path = tdm_utf8_mend(one->path);
        put_model(&one->status, &one->shown.fields);
}

void face_send_models(struct client *c, uint32_t id)
{
        struct model_scan scan = { .source = face_status_source(c) };
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__Models models = TANDEM__MODELS__INIT;
        struct tdm_model *model;

        tdm_list_for_each(model, tdm_models_list(c->face->models), struct tdm_model, node) {
                struct listed *one = add_listed(&scan);

                if (!one)
                        break;
                tdm_status_of_model(&scan.source, model, &one->shown);
                put_model(&one->status, &one->shown.fields);
        }
        if (tdm_models_scan(c->face->models, on_scanned, &scan) < 0)
                scan.failed = true;
        models.n_models = scan.n;
        models.models = scan.list;
        reply.kind_case = TANDEM__REPLY__KIND_MODELS;
        reply.models = &models;
        if (scan.failed)
                face_send_error(c, id, TDM_E_INTERNAL, "out of memory");
        else
                face_send(c, id, &reply);
        for (size_t i = 0; i < scan.n; i++) {
                free(scan.listed[i]->name);
                free(scan.listed[i]->path);
                free(scan.listed[i]);
        }
        free(scan.listed);
        free(scan.list);
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

        tdm_list_for_each(job, all, struct tdm_job, node)
                n++;
        own = calloc(n + 1, sizeof(*own));
        list = calloc(n + 1, sizeof(*list));
        if (!own || !list) {
                face_send_error(c, id, TDM_E_INTERNAL, "out of memory");
                return;
        }
        tdm_list_for_each(job, all, struct tdm_job, node) {
                Tandem__JobStatus *s = &own[jobs.n_jobs];

                if (!client_may_touch(c, job->identity) || job->state == TDM_JOB_DONE)
                        continue;
                tandem__job_status__init(s);
                s->job = job->id;
                s->state = (Tandem__JobState)job->state;
                s->model = face_model_name(c, job->model);
                s->uid = (uint32_t)job->identity;
                s->label = (char *)tdm_account_label(job->account);
                s->priority = job->request.priority == TDM_JOB_BACKGROUND ? TANDEM__PRIORITY__PRIORITY_BACKGROUND :
                                                                            TANDEM__PRIORITY__PRIORITY_INTERACTIVE;
                s->prompt_tokens = job->prompt_tokens;
                s->prefilled_tokens = job->progress.prefilled_tokens;
                s->generated_tokens = job->generated;
                s->max_tokens = job->max_tokens;
                s->age_s = (double)(now - job->stats.created_ns) / 1e9;
                s->recoveries = job->stats.recoveries;
                s->cached_tokens = job->stats.cached_tokens;
                s->evictions = job->stats.evictions;
                s->drafted = job->stats.n_drafted;
                s->accepted = job->stats.n_accepted;
                s->guesses = job->stats.n_guesses;
                s->unguessed = (char *)tdm_unguessed_text(job->stats.unguessed);
                list[jobs.n_jobs++] = s;
        }
        jobs.jobs = list;
        reply.kind_case = TANDEM__REPLY__KIND_JOBS;
        reply.jobs = &jobs;
        face_send(c, id, &reply);
}
