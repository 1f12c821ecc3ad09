/* Embed: texts as vectors, in one call. Rerank: how well texts answer a query. Classify: of which class texts are. Each
 * text is a job; the call is answered
 * when all have ended. A caller that leaves ends its jobs. */
#include "daemon/faces/dbus/private.h"

#define MAX_TEXTS 64u /* of a call, which begins a job for each at once */
#define MAX_CALLS 16u /* of one caller */

struct bus_embed {
        struct tdm_list node; /* of the peer's */
        struct bus_peer *peer;
        DBusMessage *call;
        struct tdm_model *model;
        struct tdm_job_params params; /* of each job, but for its text. Texts lie in the call */
        bool starting;                /* not all of its jobs are begun */
        struct tdm_error err;
        int failed; /* 0: none of its jobs has */
        unsigned n_jobs, n_done;
        struct tdm_job *jobs[MAX_TEXTS]; /* referenced */
};

static void embed_free(struct bus_embed *e)
{
        for (unsigned i = 0; i < e->n_jobs; i++) {
                struct tdm_job *job = e->jobs[i];

                if (job->events) {
                        tdm_job_listen(job, NULL, NULL);
                        tdm_scheduler_cancel(e->peer->bus->scheduler, job, NULL);
                }
                tdm_job_unref(job);
        }
        tdm_list_remove(&e->node);
        dbus_message_unref(e->call);
        tdm_model_unref(e->model);
        free(e);
}

void bus_embed_peer_left(struct bus_peer *peer)
{
        struct bus_embed *e;

        tdm_list_for_each(e, &peer->embeds, struct bus_embed, node)
                embed_free(e);
}

/* Of the first job: all have the same model. */
static void write_labels(struct bus_writer *w, const struct tdm_labels *labels)
{
        bus_open(w, DBUS_TYPE_ARRAY, "s");
        for (uint32_t i = 0; labels && i < labels->n; i++)
                bus_write_string(w, labels->names[i]);
        bus_close(w);
}

/* Answers once all jobs have ended, and is gone then. */
static void answer(struct bus_embed *e)
{
        struct tdm_dbus *bus = e->peer->bus;
        bool is_flat = e->params.kind == TDM_JOB_RERANK;
        struct bus_writer w;

        if (e->starting || e->n_done < e->n_jobs)
                return;
        if (e->failed != 0) {
                bus_reply_failed(bus, e->call, e->failed, e->err.message);
                embed_free(e);
                return;
        }
        bus_writer_init(&w, bus_reply_new(e->call));
        if (e->params.kind == TDM_JOB_CLASSIFY)
                write_labels(&w, e->jobs[0]->labels);
        bus_open(&w, DBUS_TYPE_ARRAY, is_flat ? "d" : "ad");
        for (unsigned i = 0; i < e->n_jobs; i++) {
                if (!is_flat)
                        bus_open(&w, DBUS_TYPE_ARRAY, "d");
                for (uint32_t k = 0; k < e->jobs[i]->n_vector; k++)
                        bus_write_double(&w, (double)e->jobs[i]->vector[k]);
                if (!is_flat)
                        bus_close(&w);
        }
        bus_close(&w);
        bus_reply_finish(bus, e->call, &w);
        embed_free(e);
}

static void on_embed_accepted(struct tdm_job *job, void *userdata)
{
}

static void on_embed_progress(struct tdm_job *job, void *userdata)
{
}

static void on_embed_done(struct tdm_job *job, void *userdata)
{
        struct bus_embed *e = userdata;

        tdm_job_listen(job, NULL, NULL);
        e->n_done++;
        if (e->failed == 0 && job->end == TDM_JOB_END_ERROR) {
                e->failed = job->error.code;
                e->err = job->error;
        } else if (e->failed == 0 && job->end != TDM_JOB_END_STOP)
                e->failed = tdm_error_set(&e->err, TDM_E_CANCELLED, "the job was cancelled");
        answer(e);
}

static const struct tdm_job_events events = {
        .accepted = on_embed_accepted,
        .progress = on_embed_progress,
        .done = on_embed_done,
};

static int start_text(struct bus_embed *e, const char *text, struct tdm_error *err)
{
        struct bus_peer *peer = e->peer;
        struct tdm_job_params params = e->params;
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = NULL;
        int r;

        if (params.kind == TDM_JOB_CLASSIFY && params.text) /* it is the second one of a pair */
                params.query = text;
        else
                params.text = text;
        params.text_size = strlen(params.text);
        params.query_size = params.query ? strlen(params.query) : 0;
        r = tdm_job_new(&job, &params, err);
        if (r != 0)
                return r;
        tdm_job_listen(job, &events, e);
        r = tdm_scheduler_submit(peer->bus->scheduler, job, e->model, err);
        if (r == 0)
                e->jobs[e->n_jobs++] = steal_ptr(&job);
        return r;
}

static int start_texts(struct bus_embed *e, DBusMessageIter *texts, struct tdm_error *err)
{
        DBusMessageIter at;
        int r = 0;

        dbus_message_iter_recurse(texts, &at);
        for (; r == 0 && dbus_message_iter_get_arg_type(&at) == DBUS_TYPE_STRING; dbus_message_iter_next(&at)) {
                const char *text;

                if (e->n_jobs == MAX_TEXTS)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "more than %u texts in one call", MAX_TEXTS);
                dbus_message_iter_get_basic(&at, &text);
                r = start_text(e, text, err);
        }
        if (r == 0 && e->n_jobs == 0)
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "there are no texts");
        return r;
}

void bus_embed_call(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, enum tdm_job_kind kind)
{
        DBusMessageIter texts;
        struct bus_embed *e = NULL;
        struct tdm_job_params params = { .kind = kind, .identity = peer->uid, .account = peer->account };
        const char *name = NULL;
        struct tdm_error err = { 0 };
        unsigned n = 0;
        int r;

        if (kind == TDM_JOB_RERANK) {
                dbus_message_iter_get_basic(args, &params.query);
                dbus_message_iter_next(args);
        }
        texts = *args;
        dbus_message_iter_next(args);
        r = bus_read_embed(args, &name, &params, &err);
        for (const struct tdm_list *at = peer->embeds.next; at != &peer->embeds; at = at->next)
                n++;
        if (r == 0 && n >= MAX_CALLS)
                r = tdm_error_set(&err, TDM_E_QUOTA, "%u calls of this caller wait for vectors or scores already", n);
        if (r == 0 && peer->bus->draining)
                r = tdm_error_set(&err, TDM_E_DRAINING, "tandemd is shutting down and takes no jobs; call again");
        if (r == 0) {
                e = calloc(1, sizeof(*e));
                r = e ? 0 : tdm_error_set(&err, TDM_E_NO_MEMORY, "out of memory");
        }
        if (r == 0) {
                r = tdm_models_open(peer->bus->models, peer->account, name, -1, &e->model, &err);
                if (r != 0)
                        free(e);
        }
        if (r != 0) {
                bus_reply_failed(peer->bus, message, r, err.message);
                return;
        }
        e->peer = peer;
        e->call = dbus_message_ref(message);
        e->params = params;
        e->starting = true;
        tdm_list_append(&peer->embeds, &e->node);
        r = start_texts(e, &texts, &err);
        e->starting = false;
        if (r != 0 && e->failed == 0) {
                e->failed = r;
                e->err = err;
                for (unsigned i = 0; i < e->n_jobs; i++)
                        tdm_scheduler_cancel(peer->bus->scheduler, e->jobs[i], NULL);
        }
        answer(e);
}
