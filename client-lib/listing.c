/* Status, models and jobs as plain structs. The unpacked reply is kept behind each answer and its strings are pointed
 * at, so an answer is one allocation beside it and one free. The public structs come as arrays of pointers, so that
 * they can grow at their end without breaking programs that walk them. */
#include "client-lib/internal.h"

/* In front of every answer. */
struct answer {
        Tandem__Reply *reply;
        void *items; /* the structs that the arrays point at */
        void *ptrs;
        void *more_items, *more_ptrs;
        void *blocks, *block_ptrs;
        struct tandem_device_use *uses;
};

struct status_answer {
        struct answer answer;
        struct tandem_status pub;
};

struct models_answer {
        struct answer answer;
        struct tandem_model_list pub;
};

struct jobs_answer {
        struct answer answer;
        struct tandem_job_list pub;
};

static void answer_free(struct answer *answer)
{
        if (!answer)
                return;
        free(answer->items);
        free(answer->ptrs);
        free(answer->more_items);
        free(answer->more_ptrs);
        free(answer->blocks);
        free(answer->block_ptrs);
        free(answer->uses);
        free_reply(answer->reply);
        free(answer);
}

static void answer_freep(void *p)
{
        answer_free(*(struct answer **)p);
}

/* n items of item_bytes and n pointers to them. */
static bool make_array(size_t n, size_t item_bytes, void **ret_items, void **ret_ptrs)
{
        void **ptrs;

        *ret_items = calloc(n + 1, item_bytes);
        *ret_ptrs = ptrs = calloc(n + 1, sizeof(*ptrs));
        if (!*ret_items || !ptrs)
                return false;
        for (size_t i = 0; i < n; i++)
                ptrs[i] = (char *)*ret_items + i * item_bytes;
        return true;
}

/* A row of common/status-fields.def: the same name on both sides. */
#define COPY(TYPE, field, ...) .field = w->field,

static void fill_model(struct tandem_model *m, const Tandem__ModelStatus *w)
{
        *m = (struct tandem_model){
#define MODEL_FIELD COPY
#include "common/status-fields.def"
        };
}

static void fill_use(struct tandem_device_use *out, const Tandem__DeviceUse *w)
{
        const Tandem__DeviceTelemetry *t = w->telemetry;

        *out = (struct tandem_device_use){
                .device_macs = w->device_macs,
                .host_macs = w->host_macs,
                .blocks = w->blocks,
                .submissions = w->submissions,
                .commands = w->commands,
                .repeats = w->repeats,
                .contexts = w->contexts,
                .has_telemetry = t != NULL,
                .age_s = t ? t->age_s : 0,
                .power_w = t ? t->power_w : -1,
                .utilisation = t ? t->utilisation : -1,
                .temperature_c = t ? t->temperature_c : -1,
                .driver_contexts = t ? t->contexts : 0,
                .context_errors = t ? t->context_errors : 0,
        };
}

static void fill_worker(struct tandem_worker *out, const Tandem__WorkerStatus *w, struct tandem_block_count *blocks,
                        const struct tandem_block_count **block_ptrs, struct tandem_device_use *use)
{
        if (w->use)
                fill_use(use, w->use);
        for (size_t i = 0; i < w->n_blocks; i++) {
                blocks[i] = (struct tandem_block_count){ .kind = w->blocks[i]->kind,
                                                         .blocks = w->blocks[i]->blocks,
                                                         .rows = w->blocks[i]->rows,
                                                         .seconds = w->blocks[i]->seconds };
                block_ptrs[i] = &blocks[i];
        }
        *out = (struct tandem_worker){
#define WORKER_FIELD COPY
#include "common/status-fields.def"
                .n_blocks = w->n_blocks,
                .blocks = block_ptrs,
                .use = w->use ? use : NULL,
        };
}

static void fill_job(struct tandem_job_info *j, const Tandem__JobStatus *w)
{
        *j = (struct tandem_job_info){
#define JOB_FIELD COPY
#include "common/status-fields.def"
                .state = (int)w->state,
                .priority = (int)w->priority,
        };
}

/* Sends request and makes an answer of size bytes around the reply. */
static int ask_listing(struct tandem *t, Tandem__Request *request, Tandem__Reply__KindCase wanted, size_t size,
                       void *ret, struct tandem_error *err)
{
        Tandem__Reply *reply;
        struct answer *answer;
        int code = lib_request(t, request, -1, t->timeout_ms, wanted, &reply, err);

        if (code != TANDEM_OK)
                return code;
        answer = calloc(1, size);
        if (!answer) {
                free_reply(reply);
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for tandemd's answer");
        }
        answer->reply = reply;
        *(struct answer **)ret = answer;
        return TANDEM_OK;
}

static int fill_models(struct answer *answer, size_t n, Tandem__ModelStatus **wire, void **items, void **ptrs,
                       struct tandem_error *err)
{
        if (!make_array(n, sizeof(struct tandem_model), items, ptrs))
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for %zu models", n);
        for (size_t i = 0; i < n; i++)
                fill_model((struct tandem_model *)*items + i, wire[i]);
        return TANDEM_OK;
}

int tandem_get_status(struct tandem *t, struct tandem_status **ret, struct tandem_error *err)
{
        _cleanup_(answer_freep) struct status_answer *a = NULL;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__GetStatus get = TANDEM__GET_STATUS__INIT;
        const Tandem__Status *w;
        size_t n_blocks = 0;
        int code;

        request.kind_case = TANDEM__REQUEST__KIND_STATUS;
        request.status = &get;
        code = ask_listing(t, &request, TANDEM__REPLY__KIND_STATUS, sizeof(*a), &a, err);
        if (code != TANDEM_OK)
                return code;
        w = a->answer.reply->status;
        for (size_t i = 0; i < w->n_workers; i++)
                n_blocks += w->workers[i]->n_blocks;
        if (!make_array(w->n_workers, sizeof(struct tandem_worker), &a->answer.items, &a->answer.ptrs) ||
            !make_array(n_blocks, sizeof(struct tandem_block_count), &a->answer.blocks, &a->answer.block_ptrs) ||
            !(a->answer.uses = calloc(w->n_workers + 1, sizeof(*a->answer.uses))))
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for tandemd's status");
        n_blocks = 0;
        for (size_t i = 0; i < w->n_workers; i++) {
                fill_worker((struct tandem_worker *)a->answer.items + i, w->workers[i],
                            (struct tandem_block_count *)a->answer.blocks + n_blocks,
                            (const struct tandem_block_count **)a->answer.block_ptrs + n_blocks, &a->answer.uses[i]);
                n_blocks += w->workers[i]->n_blocks;
        }
        code = fill_models(&a->answer, w->n_models, w->models, &a->answer.more_items, &a->answer.more_ptrs, err);
        if (code != TANDEM_OK)
                return code;
        a->pub = (struct tandem_status){
#define DAEMON_FIELD COPY
#include "common/status-fields.def"
                .n_workers = w->n_workers,
                .workers = a->answer.ptrs,
                .n_models = w->n_models,
                .models = a->answer.more_ptrs,
        };
        *ret = &steal_ptr(&a)->pub;
        return TANDEM_OK;
}

int tandem_list_models(struct tandem *t, struct tandem_model_list **ret, struct tandem_error *err)
{
        _cleanup_(answer_freep) struct models_answer *a = NULL;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__ListModels list = TANDEM__LIST_MODELS__INIT;
        const Tandem__Models *w;
        int code;

        request.kind_case = TANDEM__REQUEST__KIND_MODELS;
        request.models = &list;
        code = ask_listing(t, &request, TANDEM__REPLY__KIND_MODELS, sizeof(*a), &a, err);
        if (code != TANDEM_OK)
                return code;
        w = a->answer.reply->models;
        code = fill_models(&a->answer, w->n_models, w->models, &a->answer.items, &a->answer.ptrs, err);
        if (code != TANDEM_OK)
                return code;
        a->pub = (struct tandem_model_list){ .n_models = w->n_models, .models = a->answer.ptrs };
        *ret = &steal_ptr(&a)->pub;
        return TANDEM_OK;
}

int tandem_list_jobs(struct tandem *t, struct tandem_job_list **ret, struct tandem_error *err)
{
        _cleanup_(answer_freep) struct jobs_answer *a = NULL;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__ListJobs list = TANDEM__LIST_JOBS__INIT;
        const Tandem__Jobs *w;
        int code;

        request.kind_case = TANDEM__REQUEST__KIND_JOBS;
        request.jobs = &list;
        code = ask_listing(t, &request, TANDEM__REPLY__KIND_JOBS, sizeof(*a), &a, err);
        if (code != TANDEM_OK)
                return code;
        w = a->answer.reply->jobs;
        if (!make_array(w->n_jobs, sizeof(struct tandem_job_info), &a->answer.items, &a->answer.ptrs))
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for %zu jobs", w->n_jobs);
        for (size_t i = 0; i < w->n_jobs; i++)
                fill_job((struct tandem_job_info *)a->answer.items + i, w->jobs[i]);
        a->pub = (struct tandem_job_list){ .n_jobs = w->n_jobs, .jobs = a->answer.ptrs };
        *ret = &steal_ptr(&a)->pub;
        return TANDEM_OK;
}

void tandem_status_free(struct tandem_status *status)
{
        if (status)
                answer_free(&((struct status_answer *)((char *)status - offsetof(struct status_answer, pub)))->answer);
}

void tandem_model_list_free(struct tandem_model_list *list)
{
        if (list)
                answer_free(&((struct models_answer *)((char *)list - offsetof(struct models_answer, pub)))->answer);
}

void tandem_job_list_free(struct tandem_job_list *list)
{
        if (list)
                answer_free(&((struct jobs_answer *)((char *)list - offsetof(struct jobs_answer, pub)))->answer);
}
