/* What clients ask: every number and every length is checked before it goes further. */
#include "daemon/faces/socket/private.h"

#include <fcntl.h>
#include "common/log.h"
#include "daemon/faces/status.h"
#include "daemon/jobs/request.h"

#define PROTOCOL 1u

/* ---- requests that are open ---- */

static struct request *request_new(struct client *c, uint32_t id, enum request_kind kind)
{
        struct request *r = calloc(1, sizeof(*r));

        if (!r)
                return NULL;
        r->client = c;
        r->id = id;
        r->kind = kind;
        r->fd = -1;
        tdm_list_append(&c->requests, &r->node);
        c->n_requests++;
        return r;
}

/* A long text on its way through the tokenizer; the request may go meanwhile. */
struct tokenizing {
        struct request *request;     /* NULL: the client waits no longer */
        struct tdm_model *model;     /* referenced: its tokenizer is in use */
        struct tdm_account *account; /* referenced: is charged for the text */
        uint64_t charged_bytes;
        atomic_bool cancelled;
        char *text;
        size_t text_size;
        unsigned flags;
        uint32_t *ids;
        ssize_t n;
};

void request_free(struct request *r)
{
        tdm_list_remove(&r->node);
        r->client->n_requests--;
        if (r->question) {
                r->client->face->authority.forget(r->question);
                tdm_account_release(r->client->account, TDM_RESOURCE_CALLS, 1);
        }
        if (r->tokenizing) {
                r->tokenizing->request = NULL;
                atomic_store_explicit(&r->tokenizing->cancelled, true, memory_order_relaxed);
        }
        render_forget(r->rendering);
        tdm_account_release(r->client->account, TDM_RESOURCE_WAITING_BYTES, r->charged_bytes);
        if (r->text)
                explicit_bzero(r->text, r->text_size);
        free(r->text);
        free(r->name);
        tdm_models_close_file(r->client->face->models, r->client->account, steal_fd(&r->fd));
        tdm_job_unref(r->job);
        tdm_model_unref(r->model);
        face_trace_free(r->trace);
        free(r);
}

/* True when the request may be opened; else the client has been told. */
bool request_may_open(struct client *c, uint32_t id)
{
        struct request *r;
        char message[128];

        if (c->n_requests >= MAX_OPEN_REQUESTS) {
                snprintf(message, sizeof(message), "%u requests are open on this connection already", c->n_requests);
                face_send_error(c, id, TDM_E_BUSY, message);
                return false;
        }
        tdm_list_for_each(r, &c->requests, struct request, node)
                if (r->id == id) {
                        face_protocol_error(c, "two open requests have the same id");
                        return false;
                }
        return true;
}

/* ---- models ---- */

/* The file that a client passed for a model, if it did. */
static int check_passed(const Tandem__ModelRef *ref, const int *fds, unsigned n_fds, struct tdm_error *err)
{
        if (!ref || !ref->from_fd)
                return 0;
        if (n_fds != 1)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a model passed as a file needs exactly one fd; %u came",
                                     n_fds);
        if (fds[0] < -1)
                return tdm_gate_explain((enum tdm_gate_verdict)fds[0], ref->name, err);
        return 0;
}

static int open_model(struct client *c, const Tandem__ModelRef *ref, const int *fds, unsigned n_fds,
                      struct tdm_model **ret, struct tdm_error *err)
{
        int r = check_passed(ref, fds, n_fds, err);

        if (r != 0)
                return r;
        if (!ref || !ref->from_fd)
                return tdm_models_open(c->face->models, c->account, ref ? ref->name : NULL, -1, ret, err);
        return tdm_models_open(c->face->models, c->account, ref->name, fds[0], ret, err);
}

/* ---- jobs ---- */

static struct tdm_chat_text request_take_bytes(ProtobufCBinaryData bytes)
{
        return (struct tdm_chat_text){ (const char *)bytes.data, bytes.len };
}

static struct tdm_chat_text take_string(const char *string)
{
        return (struct tdm_chat_text){ string, strlen(string) };
}

static int take_chat(const Tandem__Generate *g, struct tdm_chat_message **ret, struct tdm_chat_call **ret_calls,
                     struct tdm_error *err)
{
        _cleanup_(freep) struct tdm_chat_message *messages = NULL;
        _cleanup_(freep) struct tdm_chat_call *calls = NULL;
        size_t n_calls = 0;

        if (g->n_chat == 0)
                return 0;
        if (g->n_chat > TDM_MAX_CHAT_MESSAGES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu messages; at most %u are taken", g->n_chat,
                                     TDM_MAX_CHAT_MESSAGES);
        for (size_t i = 0; i < g->n_chat; i++)
                n_calls += g->chat[i]->n_calls;
        if (n_calls > TDM_MAX_CHAT_CALLS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu calls of tools; at most %u are taken", n_calls,
                                     TDM_MAX_CHAT_CALLS);
        messages = calloc(g->n_chat, sizeof(*messages));
        calls = calloc(n_calls + 1, sizeof(*calls));
        if (!messages || !calls)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < g->n_chat; i++) {
                int role = tdm_request_role(g->chat[i]->role);

                if (role < 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "role \"%.*s\" of message %zu is none of system, user, assistant, tool",
                                             TDM_UTF8_CUT(g->chat[i]->role, 40), i + 1);
                messages[i] = (struct tdm_chat_message){ .role = (enum tdm_chat_role)role,
                                                         .text = (const char *)g->chat[i]->text.data,
                                                         .size = g->chat[i]->text.len,
                                                         .thinking = request_take_bytes(g->chat[i]->thinking),
                                                         .call_id = take_string(g->chat[i]->call_id),
                                                         .name = take_string(g->chat[i]->name) };
                n_calls -= g->chat[i]->n_calls;
                messages[i].calls = calls + n_calls;
                messages[i].n_calls = g->chat[i]->n_calls;
                for (size_t k = 0; k < g->chat[i]->n_calls; k++)
                        calls[n_calls + k] = (struct tdm_chat_call){ .id = take_string(g->chat[i]->calls[k]->id),
                                                                     .name = take_string(g->chat[i]->calls[k]->name),
                                                                     .arguments = request_take_bytes(
                                                                             g->chat[i]->calls[k]->arguments) };
        }
        *ret_calls = steal_ptr(&calls);
        *ret = steal_ptr(&messages);
        return 0;
}

static int take_texts(const struct tdm_job_option *option, const ProtobufCBinaryData *texts, size_t n,
                      struct tdm_stop_string *room, const struct tdm_stop_string **ret, size_t *ret_n,
                      struct tdm_error *err)
{
        if (n > TDM_JOB_MAX_TEXTS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %zu texts are more than %u", option->name, n,
                                     TDM_JOB_MAX_TEXTS);
        for (size_t i = 0; i < n; i++)
                room[i] = (struct tdm_stop_string){ (const char *)texts[i].data, texts[i].len };
        *ret = room;
        *ret_n = n;
        return 0;
}

/* From a message's field to the member of the same name. Ranges are tdm_job_new()'s to check. */
#define TAKE_NUMBER(m, field) (ret->field = (__typeof__(ret->field))(m)->field, 0)
#define TAKE_BOOL(option, m, field) TAKE_NUMBER(m, field)
#define TAKE_U32(option, m, field) TAKE_NUMBER(m, field)
#define TAKE_U64(option, m, field) TAKE_NUMBER(m, field)
#define TAKE_REAL(option, m, field) TAKE_NUMBER(m, field)
#define TAKE_CHOICE(option, m, field) TAKE_NUMBER(m, field)
#define TAKE_NAME(option, m, field) tdm_job_option_choose(option, (m)->field, &ret->field, err)
#define TAKE_TEXT(option, m, field) (ret->field = (m)->field[0] ? (m)->field : NULL, 0)
#define TAKE_TEXTS(option, m, field)                                                                                   \
        take_texts(option, (m)->field, (m)->n_##field, stops, &ret->field, &ret->n_##field, err)

static int take_generate_options(const Tandem__Generate *generate, struct tdm_stop_string *stops,
                                 struct tdm_job_options *ret, struct tdm_error *err)
{
        static const Tandem__Sampling no_sampling = TANDEM__SAMPLING__INIT;
        const Tandem__Sampling *sampling = generate->sampling ? generate->sampling : &no_sampling;
        int r = 0;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (r == 0)                                                                                                    \
                r = TAKE_##TYPE(&tdm_job_options[TDM_JOB_OPTION_##field], message, field);
#include "common/job-options.def"
#undef OPTION
        ret->left_open = sampling->left_open;
        return r;
}

static int take_pictures(const Tandem__Generate *g, struct tdm_picture_file **ret, struct tdm_error *err)
{
        struct tdm_picture_file *files;

        if (g->n_pictures == 0)
                return 0;
        if (g->n_pictures > TDM_MAX_JOB_PICTURES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%zu pictures; at most %u are taken", g->n_pictures,
                                     TDM_MAX_JOB_PICTURES);
        files = calloc(g->n_pictures, sizeof(*files));
        if (!files)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < g->n_pictures; i++)
                files[i] = (struct tdm_picture_file){ .file = request_take_bytes(g->pictures[i]->file),
                                                      .message = g->pictures[i]->message,
                                                      .offset = g->pictures[i]->offset };
        *ret = files;
        return 0;
}

static int take_generate(const struct client *c, const Tandem__Generate *g, struct tdm_job **ret, struct tdm_error *err)
{
        _cleanup_(freep) struct tdm_chat_message *messages = NULL;
        _cleanup_(freep) struct tdm_chat_call *calls = NULL;
        _cleanup_(freep) struct tdm_picture_file *pictures = NULL;
        struct tdm_stop_string stops[TDM_JOB_MAX_TEXTS];
        struct tdm_job_params p = { .kind = TDM_JOB_GENERATE, .identity = c->identity, .account = c->account };
        int r;

        r = take_chat(g, &messages, &calls, err);
        if (r == 0)
                r = take_generate_options(g, stops, &p.options, err);
        if (r == 0)
                r = take_pictures(g, &pictures, err);
        if (r != 0)
                return r;
        p.picture_files = pictures;
        p.n_picture_files = g->n_pictures;
        p.text = (const char *)g->prompt.data;
        p.text_size = g->prompt.len;
        p.messages = messages;
        p.n_messages = g->n_chat;
        p.ids = g->prompt_ids;
        p.n_ids = g->n_prompt_ids;
        return tdm_job_new(ret, &p, err);
}

static int take_score(const struct client *c, const Tandem__Score *score, struct tdm_job **ret, struct tdm_error *err)
{
        struct tdm_job_params p = {
                .kind = TDM_JOB_SCORE,
                .identity = c->identity,
                .account = c->account,
                .text = (const char *)score->text.data,
                .text_size = score->text.len,
                .ids = score->ids,
                .n_ids = score->n_ids,
                .n_top = score->top,
        };

        return tdm_job_new(ret, &p, err);
}

/* Takes over job. */
static int start_job(struct client *c, uint32_t id, struct tdm_job *own_job, const Tandem__ModelRef *ref,
                     const int *fds, unsigned n_fds, struct tdm_error *err)
{
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = own_job;
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        struct request *request;
        int r = open_model(c, ref, fds, n_fds, &model, err);

        if (r != 0)
                return r;
        request = request_new(c, id, REQUEST_JOB);
        if (!request)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        tdm_job_listen(job, &face_job_events, request);
        r = tdm_scheduler_submit(c->face->scheduler, job, model, err);
        if (r != 0) {
                tdm_log_debug("job of user %u refused: %s", (unsigned)c->uid, err->message);
                request_free(request);
                return r;
        }
        request->job = steal_ptr(&job);
        request->model = steal_ptr(&model);
        return 0;
}

static int handle_generate(struct client *c, uint32_t id, const Tandem__Generate *g, const int *fds, unsigned n_fds,
                           struct tdm_error *err)
{
        struct tdm_job *job;
        int r = take_generate(c, g, &job, err);

        return r != 0 ? r : start_job(c, id, job, g->model, fds, n_fds, err);
}

static int handle_score(struct client *c, uint32_t id, const Tandem__Score *score, const int *fds, unsigned n_fds,
                        struct tdm_error *err)
{
        struct tdm_job *job;
        int r = take_score(c, score, &job, err);

        return r != 0 ? r : start_job(c, id, job, score->model, fds, n_fds, err);
}

static int handle_cancel(struct client *c, uint32_t id, const Tandem__Cancel *cancel, struct tdm_error *err)
{
        struct tdm_job *job = tdm_scheduler_find(c->face->scheduler, cancel->job);

        if (!job || !client_may_touch(c, job->identity))
                return tdm_error_set(err, TDM_E_NO_JOB, "no job %llu; see `tandem jobs`",
                                     (unsigned long long)cancel->job);
        tdm_scheduler_cancel(c->face->scheduler, job, NULL);
        face_send_ok(c, id);
        return 0;
}

/* ---- requests that wait for a model ---- */

static void tokenize(void *task)
{
        struct tokenizing *t = task;
        struct tdm_encode_budget budget = { TDM_ENCODE_STEPS(t->text_size), &t->cancelled };
        size_t capacity = t->text_size + 16; /* BOS, and a token for each byte at most */

        t->ids = malloc(capacity * sizeof(*t->ids));
        t->n = t->ids ? tdm_tokenizer_encode_within(t->model->metadata->tokenizer, t->text, t->text_size, t->flags,
                                                    &budget, t->ids, capacity) :
                        -ENOMEM;
        if (t->n >= 0 && (size_t)t->n > capacity)
                t->n = -EOVERFLOW;
}

static void answer_tokenize(struct request *request, const struct tokenizing *t)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__TokenizeReply tokenized = TANDEM__TOKENIZE_REPLY__INIT;

        if (t->n < 0) {
                face_send_error(request->client, request->id, TDM_E_INTERNAL,
                                "the text cannot be tokenized: out of memory");
                return;
        }
        tokenized.n_ids = (size_t)t->n;
        tokenized.ids = t->ids;
        reply.kind_case = TANDEM__REPLY__KIND_TOKENIZE;
        reply.tokenize = &tokenized;
        face_send(request->client, request->id, &reply);
}

static void on_tokenized(void *task, bool ran)
{
        struct tokenizing *t = task;

        if (t->request) {
                t->request->tokenizing = NULL;
                if (ran)
                        answer_tokenize(t->request, t);
                request_free(t->request);
        }
        tdm_account_release(t->account, TDM_RESOURCE_WAITING_BYTES, t->charged_bytes);
        tdm_account_unref(t->account);
        explicit_bzero(t->text, t->text_size);
        free(t->text);
        free(t->ids);
        tdm_model_unref(t->model);
        free(t);
}

/* A short text now, any other beside the loop. Frees the request, then or later. */
static void start_tokenize(struct request *request)
{
        struct tdm_face *face = request->client->face;
        struct tokenizing *t = calloc(1, sizeof(*t));
        struct tdm_model *model = request->model;
        uint64_t begin;

        if (!t) {
                face_send_error(request->client, request->id, TDM_E_INTERNAL, "out of memory");
                request_free(request);
                return;
        }
        *t = (struct tokenizing){ .request = request,
                                  .model = tdm_model_ref(model),
                                  .account = tdm_account_ref(request->client->account),
                                  .charged_bytes = request->charged_bytes,
                                  .text = steal_ptr(&request->text),
                                  .text_size = request->text_size,
                                  .flags = request->flags };
        request->text_size = request->charged_bytes = 0; /* counted in t from here on */
        request->tokenizing = t;
        if (!tdm_model_encodes_here(model, t->text_size)) {
                if (tdm_background_add_for(face->background, t->account->identity, tokenize, on_tokenized, t) < 0) {
                        face_send_error(request->client, request->id, TDM_E_BUSY,
                                        "too many texts wait to be tokenized; try again later");
                        request->tokenizing = NULL;
                        request_free(request);
                        t->request = NULL;
                        on_tokenized(t, false);
                }
                return;
        }
        begin = tdm_model_encode_begin();
        tokenize(t);
        tdm_model_encode_end(model, begin);
        on_tokenized(t, true);
}

void request_model_changed(struct request *request)
{
        const struct tdm_model *model = request->model;

        if (request->tokenizing)
                return; /* it has all it needs */
        if (request->kind == REQUEST_TOKENIZE && tdm_model_is_described(model) && model->state != TDM_MODEL_GONE) {
                start_tokenize(request);
                return;
        }
        if (request->kind == REQUEST_RENDER && tdm_model_is_described(model) && model->state != TDM_MODEL_GONE) {
                render_start(request);
                return;
        }
        if (model->state == TDM_MODEL_FAILED)
                face_send_error(request->client, request->id, model->error.code, model->error.message);
        else if (model->state == TDM_MODEL_GONE)
                face_send_error(request->client, request->id, TDM_E_NO_MODEL, "the model was unloaded meanwhile");
        else if (request->kind == REQUEST_LOAD && model->state == TDM_MODEL_READY && !request->question)
                face_send_ok(request->client, request->id);
        else
                return;
        request_free(request);
}

static int handle_tokenize(struct client *c, uint32_t id, const Tandem__Tokenize *t, const int *fds, unsigned n_fds,
                           struct tdm_error *err)
{
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        struct request *request;
        int r;

        if (t->text.len > MAX_TOKENIZE_BYTES)
                return tdm_error_set(err, TDM_E_TOO_LONG, "the text has %zu bytes; at most %u are tokenized at once",
                                     t->text.len, MAX_TOKENIZE_BYTES);
        r = open_model(c, t->model, fds, n_fds, &model, err);
        if (r != 0)
                return r;
        request = request_new(c, id, REQUEST_TOKENIZE);
        if (!request)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = tdm_account_charge(c->account, TDM_RESOURCE_WAITING_BYTES, t->text.len + TOKENIZE_BYTES, err);
        if (r != 0) {
                request_free(request);
                return r;
        }
        request->charged_bytes = t->text.len + TOKENIZE_BYTES;
        request->text = malloc(t->text.len + 1);
        if (!request->text) {
                request_free(request);
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        if (t->text.len)
                memcpy(request->text, t->text.data, t->text.len);
        request->text_size = t->text.len;
        request->flags = (t->special ? TDM_TOKENIZE_SPECIAL : 0u) | (t->no_bos ? 0u : TDM_TOKENIZE_BOS);
        request->model = steal_ptr(&model);
        request_model_changed(request);
        return 0;
}

static int handle_render(struct client *c, uint32_t id, const Tandem__Generate *chat, const int *fds, unsigned n_fds,
                         struct tdm_error *err)
{
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = NULL;
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        struct request *request;
        int r;

        if (chat->n_chat == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "there is no chat to render; give messages");
        r = take_generate(c, chat, &job, err);
        if (r == 0)
                r = open_model(c, chat->model, fds, n_fds, &model, err);
        if (r != 0)
                return r;
        request = request_new(c, id, REQUEST_RENDER);
        if (!request)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (render_new(&request->rendering, request, job, request_free) < 0) {
                request_free(request);
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        request->model = steal_ptr(&model);
        request_model_changed(request);
        return 0;
}

/* The request may be answered at once, and gone. */
static int start_load(struct request *request, struct tdm_error *err)
{
        tdm_model_keep(request->model, request->client->account, 0);
        if (request->model->state != TDM_MODEL_READY)
                return tdm_model_want(request->model, request->client->account, err);
        request_model_changed(request);
        return 0;
}

static void on_may_load(bool yes, const char *why, void *userdata)
{
        struct request *request = userdata;
        struct client *c = request->client;
        struct tdm_error err = { 0 };
        int r;

        request->question = NULL;
        tdm_account_release(c->account, TDM_RESOURCE_CALLS, 1);
        if (!yes)
                r = tdm_error_set(&err, TDM_E_DENIED, "%s", why);
        else if (c->face->draining)
                r = tdm_error_set(&err, TDM_E_DRAINING, REQUEST_NO_LOADS);
        else
                r = tdm_models_open(c->face->models, c->account, request->name, request->fd, &request->model, &err);
        if (r == 0)
                r = start_load(request, &err);
        if (r == 0)
                return;
        face_send_error(c, request->id, r > 0 ? r : TDM_E_INTERNAL, err.message);
        request_free(request);
}

static int cannot_ask(const char *why, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_DENIED,
                             "only root or the daemon's own user may load models where polkit cannot be asked (%s); "
                             "just ask for text: that loads the model",
                             why);
}

/* Who may load over the bus may over the socket: polkit is asked about the process that connected. Nothing is opened
 * before it has said yes. */
static int ask_to_load(struct request *request, const Tandem__ModelRef *ref, const int *fds, struct tdm_error *err)
{
        struct client *c = request->client;
        const struct tdm_face_authority *authority = &c->face->authority;
        struct tdm_face_process who;
        int r;

        request->name = strdup(ref && ref->name ? ref->name : "");
        if (!request->name)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (ref && ref->from_fd) {
                request->fd = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
                if (request->fd < 0)
                        return tdm_error_set(err, -errno, "cannot keep the file passed: %s", strerror(errno));
        }
        r = tdm_account_charge(c->account, TDM_RESOURCE_CALLS, 1, err);
        if (r != 0)
                return r;
        r = process_identify(c, &who);
        if (r == 0)
                r = authority->ask(&who, on_may_load, request, &request->question, authority->userdata);
        if (r == 0)
                return 0;
        tdm_account_release(c->account, TDM_RESOURCE_CALLS, 1);
        return cannot_ask(r == -ENOTCONN ? "there is no bus" : strerror(-r), err);
}

static int handle_load(struct client *c, uint32_t id, const Tandem__LoadModel *load, const int *fds, unsigned n_fds,
                       struct tdm_error *err)
{
        const bool may = !c->face->system || client_is_admin(c);
        struct request *request;
        int r;

        if (c->face->draining)
                return tdm_error_set(err, TDM_E_DRAINING, REQUEST_NO_LOADS);
        if (!may && !c->face->authority.ask)
                return cannot_ask("there is no bus", err);
        r = check_passed(load->model, fds, n_fds, err);
        if (r != 0)
                return r;
        request = request_new(c, id, REQUEST_LOAD);
        if (!request)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = may ? open_model(c, load->model, fds, n_fds, &request->model, err) :
                  ask_to_load(request, load->model, fds, err);
        if (r == 0 && may)
                r = start_load(request, err);
        if (r != 0)
                request_free(request);
        return r;
}

static int handle_unload(struct client *c, uint32_t id, const Tandem__UnloadModel *unload, struct tdm_error *err)
{
        int r;

        if (!client_is_admin(c))
                return tdm_error_set(err, TDM_E_DENIED, "only root or the daemon's own user may unload models");
        r = tdm_models_unload(c->face->models, unload->name, err);
        if (r == 0)
                face_send_ok(c, id);
        return r;
}

static int handle_restart(struct client *c, uint32_t id, const Tandem__RestartWorker *restart, struct tdm_error *err)
{
        enum tdm_worker_index index;
        char reason[64];
        int r;

        if (!client_is_admin(c))
                return tdm_error_set(err, TDM_E_DENIED, "only root or the daemon's own user may restart workers");
        if (strcmp(restart->worker, "npu") == 0)
                index = TDM_WORKER_NPU;
        else if (strcmp(restart->worker, "gpu") == 0)
                index = TDM_WORKER_GPU;
        else
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "worker \"%.*s\" is none of npu, gpu",
                                     TDM_UTF8_CUT(restart->worker, 40));
        tdm_status_asked_by(reason, sizeof(reason), c->uid);
        r = c->face->fleet ? tdm_fleet_restart(c->face->fleet, index, reason) : -ENOENT;
        if (r == -ENOENT)
                return tdm_error_set(err, TDM_E_NO_WORKER, "worker %s is off", restart->worker);
        if (r < 0)
                return tdm_error_set(err, r, "cannot restart worker %s: %s", restart->worker, strerror(-r));
        tdm_log_info("worker %s is restarted, %s", restart->worker, reason);
        face_send_ok(c, id);
        return 0;
}

static int handle_trace(struct client *c, uint32_t id, const Tandem__Trace *trace, struct tdm_error *err)
{
        struct request *request;
        int r = face_trace_check(c, trace->duration_ms, err);

        if (r != 0)
                return r;
        request = request_new(c, id, REQUEST_TRACE);
        if (!request)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = face_trace_start(request, trace->duration_ms, trace->past, err);
        if (r != 0)
                request_free(request);
        return r;
}

static int handle_stop_trace(struct client *c, uint32_t id, const Tandem__StopTrace *stop, struct tdm_error *err)
{
        struct request *r;

        tdm_list_for_each(r, &c->requests, struct request, node)
                if (r->id == stop->request && r->trace) {
                        face_trace_stop(r->trace);
                        break;
                }
        /* One that has just ended by itself is as good as stopped. */
        face_send_ok(c, id);
        return 0;
}

static int handle_hello(struct client *c, uint32_t id, const Tandem__Hello *hello, struct tdm_error *err)
{
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__HelloReply greeting = TANDEM__HELLO_REPLY__INIT;

        if (hello->protocol != PROTOCOL)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "protocol %u is not spoken here, only %u; use the client of version %s",
                                     hello->protocol, PROTOCOL, TANDEM_VERSION);
        if (hello->speaks_for[0]) {
                int r = face_speak_for(c, hello->speaks_for, err);

                if (r != 0)
                        return r;
        }
        snprintf(c->name, sizeof(c->name), "%.*s", TDM_UTF8_CUT(hello->client, 31));
        greeting.speaks_for = (char *)tdm_account_label(c->account);
        greeting.protocol = PROTOCOL;
        greeting.version = (char *)TANDEM_VERSION;
        greeting.max_frame_bytes = TDM_CLIENT_MAX_FRAME_BYTES;
        reply.kind_case = TANDEM__REPLY__KIND_HELLO;
        reply.hello = &greeting;
        face_send(c, id, &reply);
        return 0;
}

/* ---- which of them it is ---- */

/* A job that was begun now; it may be gone already. */
static int note_reattaches(struct client *c, const Tandem__Request *request)
{
        struct request *r;

        tdm_list_for_each(r, &c->requests, struct request, node)
                if (r->id == request->id && r->job)
                        r->job->reattaches = request->reattaches;
        return 0;
}

static int handle_vector(struct client *c, const Tandem__Request *request, const int *fds, unsigned n_fds,
                         struct tdm_error *err)
{
        const Tandem__ModelRef *model;
        struct tdm_job *job;
        int r;

        if (request->kind_case == TANDEM__REQUEST__KIND_EMBED) {
                r = vector_take_embed(c, request->embed, &job, err);
                model = request->embed->model;
        } else if (request->kind_case == TANDEM__REQUEST__KIND_RERANK) {
                r = vector_take_rerank(c, request->rerank, &job, err);
                model = request->rerank->model;
        } else {
                r = vector_take_classify(c, request->classify, &job, err);
                model = request->classify->model;
        }
        return r != 0 ? r : start_job(c, request->id, job, model, fds, n_fds, err);
}

static int request_begin_job(struct client *c, const Tandem__Request *request, const int *fds, unsigned n_fds,
                             struct tdm_error *err)
{
        uint32_t id = request->id;
        int r;

        if (request->kind_case == TANDEM__REQUEST__KIND_GENERATE)
                r = handle_generate(c, id, request->generate, fds, n_fds, err);
        else if (request->kind_case == TANDEM__REQUEST__KIND_SCORE)
                r = handle_score(c, id, request->score, fds, n_fds, err);
        else
                r = handle_vector(c, request, fds, n_fds, err);
        return r != 0 ? r : note_reattaches(c, request);
}

int request_dispatch(struct client *c, const Tandem__Request *request, const int *fds, unsigned n_fds,
                     struct tdm_error *err)
{
        uint32_t id = request->id;

        switch (request->kind_case) {
        case TANDEM__REQUEST__KIND_HELLO:
                return handle_hello(c, id, request->hello, err);
        case TANDEM__REQUEST__KIND_GENERATE:
        case TANDEM__REQUEST__KIND_SCORE:
        case TANDEM__REQUEST__KIND_EMBED:
        case TANDEM__REQUEST__KIND_RERANK:
        case TANDEM__REQUEST__KIND_CLASSIFY:
                return request_begin_job(c, request, fds, n_fds, err);
        case TANDEM__REQUEST__KIND_RENDER:
                return handle_render(c, id, request->render, fds, n_fds, err);
        case TANDEM__REQUEST__KIND_TOKENIZE:
                return handle_tokenize(c, id, request->tokenize, fds, n_fds, err);
        case TANDEM__REQUEST__KIND_CANCEL:
                return handle_cancel(c, id, request->cancel, err);
        case TANDEM__REQUEST__KIND_STATUS:
                face_send_status(c, id);
                return 0;
        case TANDEM__REQUEST__KIND_MODELS:
                face_send_models(c, id);
                return 0;
        case TANDEM__REQUEST__KIND_JOBS:
                face_send_jobs(c, id);
                return 0;
        case TANDEM__REQUEST__KIND_RESTART:
                return handle_restart(c, id, request->restart, err);
        case TANDEM__REQUEST__KIND_LOAD:
                return handle_load(c, id, request->load, fds, n_fds, err);
        case TANDEM__REQUEST__KIND_UNLOAD:
                return handle_unload(c, id, request->unload, err);
        case TANDEM__REQUEST__KIND_TRACE:
                return handle_trace(c, id, request->trace, err);
        case TANDEM__REQUEST__KIND_STOP_TRACE:
                return handle_stop_trace(c, id, request->stop_trace, err);
        default:
                face_protocol_error(
                        c, "the request is of no kind that is known here; is the client newer than the daemon?");
                return 0;
        }
}
