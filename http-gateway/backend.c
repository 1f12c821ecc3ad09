/* Connections to tandemd that are kept for the next request, and questions on threads: see backend.h. A connection
 * whose answer was not waited for is closed, since its answer may come yet. */
#include "http-gateway/backend.h"

#include "common/background.h"
#include "common/log.h"

/* As many as ran at once a moment ago, so that the next wave of requests need not connect; a few of them for long. */
#define MAX_KEPT 64u
#define MAX_KEPT_LONG 16u
#define KEPT_NS (30 * TDM_NSEC_PER_SEC)
#define QUESTION_TIMEOUT_MS 10000
#define N_THREADS 4u               /* for each kind */
#define ASK_BYTES ((uint64_t)4096) /* charged beside its text */

struct kept {
        struct tandem *tandem;
        const char *label;
        uint64_t since_ns;
};

struct backend {
        struct tdm_loop *loop;
        const char *socket;
        struct tdm_background *connects, *questions, *loads; /* a load takes long; nothing else waits behind it */
        struct kept kept[MAX_KEPT];                          /* the oldest first */
        unsigned n_kept;
        unsigned n_asks; /* on threads, or waiting for one */
        bool warned;
        bool missed; /* tandemd: the log has said where it was looked for */
};

int backend_new(struct backend **ret, struct tdm_loop *loop, const char *socket)
{
        struct backend *b = calloc(1, sizeof(*b));
        int r;

        if (!b)
                return -ENOMEM;
        b->loop = loop;
        b->socket = socket;
        r = tdm_background_new_pool(&b->connects, loop, N_THREADS);
        if (r == 0)
                r = tdm_background_new_pool(&b->questions, loop, N_THREADS);
        if (r == 0)
                r = tdm_background_new_pool(&b->loads, loop, N_THREADS);
        if (r < 0) {
                backend_free(b);
                return r;
        }
        *ret = b;
        return 0;
}

void backend_free(struct backend *b)
{
        if (!b)
                return;
        tdm_background_destroy(b->connects);
        tdm_background_destroy(b->questions);
        tdm_background_destroy(b->loads);
        for (unsigned i = 0; i < b->n_kept; i++)
                tandem_close(b->kept[i].tandem);
        free(b);
}

unsigned backend_n_asks(const struct backend *b)
{
        return b ? b->n_asks : 0;
}

static struct tandem *remove_kept(struct backend *b, unsigned i)
{
        struct tandem *t = b->kept[i].tandem;

        b->n_kept--;
        memmove(&b->kept[i], &b->kept[i + 1], (b->n_kept - i) * sizeof(b->kept[0]));
        return t;
}

void backend_keep(struct backend *b, struct tandem *t, const char *label)
{
        if (tandem_connection_error(t)) {
                tandem_close(t);
                return;
        }
        if (b->n_kept == MAX_KEPT)
                tandem_close(remove_kept(b, 0));
        b->kept[b->n_kept++] = (struct kept){ t, label, tdm_now_ns() };
}

void backend_drop_kept(struct backend *b)
{
        while (b->n_kept > 0)
                tandem_close(remove_kept(b, b->n_kept - 1));
}

void backend_tick(struct backend *b)
{
        while (b->n_kept > MAX_KEPT_LONG && tdm_now_ns() - b->kept[0].since_ns > KEPT_NS)
                tandem_close(remove_kept(b, 0));
        for (unsigned i = b->n_kept; i-- > 0;)
                if (tandem_dispatch(b->kept[i].tandem, 0) != TANDEM_OK)
                        tandem_close(remove_kept(b, i));
}

/* NULL and the same text are the same label. */
static bool same_label(const char *a, const char *b)
{
        return a && b ? strcmp(a, b) == 0 : a == b;
}

static struct tandem *take_kept(struct backend *b, const char *label)
{
        for (unsigned i = b->n_kept; i-- > 0;) {
                struct tandem *t;

                if (!same_label(b->kept[i].label, label))
                        continue;
                t = remove_kept(b, i);
                if (tandem_dispatch(t, 0) == TANDEM_OK)
                        return t;
                tandem_close(t);
        }
        return NULL;
}

/* ---- questions ---- */

static void ask_free(struct ask *a)
{
        if (a->tandem) {
                if (a->code == TANDEM_E_TIMEOUT)
                        tandem_close(a->tandem); /* its answer may come yet */
                else
                        backend_keep(a->backend, a->tandem, a->label);
        }
        if (a->held_bytes > 0)
                owner_release(a->owner, a->held_bytes);
        owner_unref(a->owner);
        tandem_model_list_free(a->models);
        tandem_status_free(a->status);
        tandem_job_list_free(a->jobs);
        tandem_free(a->ids);
        free(a->model);
        free(a->text);
        free(a);
}

/* To Ollama's clients a model that is not in memory is unloaded already; only one that is not on disk is missing. */
static int ask_unload(struct ask *a)
{
        struct tandem_model_list *models = NULL;
        struct tandem_error why;
        int code = tandem_unload_model(a->tandem, a->model, &a->error);

        if (code != TANDEM_E_NO_MODEL || tandem_list_models(a->tandem, &models, &why) != TANDEM_OK)
                return code;
        for (size_t i = 0; i < models->n_models; i++)
                if (a->model && strcmp(models->models[i]->name, a->model) == 0)
                        code = TANDEM_OK;
        tandem_model_list_free(models);
        return code;
}

/* Asks the questions that have no answer yet. */
static int ask_questions(struct ask *a)
{
        int code = TANDEM_OK;

        tandem_set_timeout(a->tandem, a->what & ASK_LOAD ? -1 : QUESTION_TIMEOUT_MS);
        if (a->what & ASK_STATUS && !a->status)
                code = tandem_get_status(a->tandem, &a->status, &a->error);
        if (code == TANDEM_OK && a->what & ASK_TOKENIZE && !a->ids)
                code = tandem_tokenize(a->tandem, a->model, a->text, a->text_size, a->flags, &a->ids, &a->n_ids,
                                       &a->error);
        if (code == TANDEM_OK && a->what & ASK_MODELS && !a->models)
                code = tandem_list_models(a->tandem, &a->models, &a->error);
        if (code == TANDEM_OK && a->what & ASK_JOBS && !a->jobs)
                code = tandem_list_jobs(a->tandem, &a->jobs, &a->error);
        if (code == TANDEM_OK && a->what & ASK_LOAD)
                code = tandem_load_model(a->tandem, a->model, &a->error);
        if (code == TANDEM_OK && a->what & ASK_UNLOAD)
                code = ask_unload(a);
        tandem_set_timeout(a->tandem, -1);
        return code;
}

/* On a thread. A daemon that ends loads nothing; the next one gets a connection that the service manager's socket
 * holds. */
static void ask_run(void *task)
{
        struct ask *a = task;
        struct tandem_error other;
        struct tandem *next;

        a->code = TANDEM_OK;
        if (a->forgotten)
                return;
        if (!a->tandem)
                a->code = tandem_connect_for(&a->tandem, a->backend->socket, a->label, &a->error);
        if (a->code == TANDEM_OK)
                a->code = ask_questions(a);
        if (a->code == TANDEM_E_DRAINING && !a->forgotten &&
            tandem_connect_for(&next, a->backend->socket, a->label, &other) == TANDEM_OK) {
                tandem_close(a->tandem);
                a->tandem = next;
                a->code = ask_questions(a);
        }
}

static void ask_done(void *task, bool ran)
{
        struct ask *a = task;

        a->backend->n_asks--;
        if (a->label && !a->tandem && !a->backend->warned &&
            (a->code == TANDEM_E_DENIED || a->code == TANDEM_E_UNSUPPORTED)) {
                a->backend->warned = true;
                tdm_log_warning("requests with keys are refused: %s", a->error.message);
        }
        if (ran && !a->forgotten && a->code == TANDEM_E_NO_DAEMON && !a->backend->missed)
                tdm_log_warning("%s", a->error.message); /* clients are told no paths */
        if (ran && !a->forgotten)
                a->backend->missed = a->code == TANDEM_E_NO_DAEMON;
        if (a->answered && ran)
                a->answered(a, a->userdata);
        ask_free(a);
}

int backend_ask(struct backend *b, struct owner *owner, const char *label, unsigned what, char *model, char *text,
                size_t text_size, unsigned flags, void (*answered)(struct ask *ask, void *userdata), void *userdata,
                struct ask **ret, struct failure *f)
{
        struct ask *a = calloc(1, sizeof(*a));
        int r;

        if (!a) {
                free(model);
                free(text);
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        }
        *a = (struct ask){ .backend = b,
                           .answered = answered,
                           .userdata = userdata,
                           .what = what,
                           .label = label,
                           .owner = owner_ref(owner),
                           .model = model,
                           .text = text,
                           .text_size = text_size,
                           .flags = flags };
        if (owner_hold(owner, ASK_BYTES + text_size, f) != 0) {
                ask_free(a);
                return f->status;
        }
        a->held_bytes = ASK_BYTES + text_size;
        a->tandem = take_kept(b, label);
        *ret = a;
        b->n_asks++;
        if (a->tandem && what == ASK_CONNECT) {
                ask_done(a, true);
                return 0;
        }
        r = tdm_background_add_for(what == ASK_CONNECT ? b->connects :
                                   what & ASK_LOAD     ? b->loads :
                                                         b->questions,
                                   owner->id, ask_run, ask_done, a);
        if (r < 0) {
                *ret = NULL;
                b->n_asks--;
                ask_free(a);
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        }
        return 0;
}

void backend_forget(struct ask *ask)
{
        ask->answered = NULL;
        ask->forgotten = true;
}
