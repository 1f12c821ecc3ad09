/* Jobs: generate and score, and of all kinds the way from the request to the last event.
 *
 * A job's handle belongs to the caller, its request to the connection; the struct lives as long as either needs it. So
 * a handle freed early leaves a silent job behind that swallows its replies, and a connection closed early leaves
 * finished jobs behind that still hold their text. Tokens must come without gaps: the index is checked, because a lost
 * or doubled token is the one thing this system promises never to happen. */
#include "client-lib/job.h"

#include "common/id-list.h"

#include <inttypes.h>

void job_unref(struct tandem_job *job)
{
        if (--job->refs > 0)
                return;
        free(job->text.data);
        free(job->ids.data);
        call_list_deinit(&job->calls);
        score_deinit(&job->score);
        vector_forget(job);
        job_drop_request(job);
        free(job->numerics_id);
        free(job->unguessed);
        free(job);
}

void job_unrefp(struct tandem_job **job)
{
        if (*job)
                job_unref(*job);
}

bool job_is_heard(const struct tandem_job *job)
{
        return !job->released && !(job->tandem && job->tandem->closed);
}

void job_send_cancel(struct tandem_job *job)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Cancel cancel = TANDEM__CANCEL__INIT;

        cancel.job = job->id;
        request.kind_case = TANDEM__REQUEST__KIND_CANCEL;
        request.cancel = &cancel;
        job->cancel_sent = lib_send(job->tandem, &request, -1, NULL, NULL) == TANDEM_OK;
}

/* The daemon's number for a job comes with whatever it says first. */
static void learn_id(struct tandem_job *job, uint64_t id)
{
        if (job->id == 0 || job->is_stale)
                job->id = id;
        job->is_stale = false;
        if (job->first_id == 0)
                job->first_id = id;
        if (job->cancel_wanted && !job->cancel_sent && job->id != 0 && !job->done)
                job_send_cancel(job);
}

/* The result is filled; drops the request's reference, so job may be gone afterwards. */
static void finish_job(struct tandem_job *job, bool silent)
{
        bool tell = job_is_heard(job) && !silent;

        if (job->call.linked)
                lib_call_unlink(job->tandem, &job->call);
        job->done = true;
        job->tandem = NULL;
        job_drop_request(job);
        job->result.job = job->id;
        if (!job->result.numerics_id)
                job->result.numerics_id = "";
        if (!job->result.unguessed)
                job->result.unguessed = "";
        if (!job->result.tail)
                job->result.tail = "";
        if (tell && job->callbacks.on_done)
                job->callbacks.on_done(job, &job->result, job->userdata);
        job_unref(job);
}

void job_finish_error(struct tandem_job *job, const struct tandem_error *err, bool silent)
{
        job->result.reason = TANDEM_REASON_ERROR;
        lib_error_copy(&job->result.error, err);
        job->result.generated_tokens = job->scoring ? 0 : (uint32_t)job->ids.n;
        finish_job(job, silent);
}

void job_finish_cancelled(struct tandem_job *job, bool silent)
{
        job->result.reason = TANDEM_REASON_CANCELLED;
        job->result.generated_tokens = job->scoring ? 0 : (uint32_t)job->ids.n;
        finish_job(job, silent);
}

/* How a job ends that tandemd never accepted. */
static void got_error(struct tandem_job *job, const Tandem__Error *wire)
{
        struct tandem_error err;

        if (job_goes_on_after(job, wire))
                return;
        if (lib_error_from_wire(&err, wire) != TANDEM_E_CANCELLED)
                job_finish_error(job, &err, false);
        else
                job_finish_cancelled(job, false);
}

static void on_lost(struct call *call, const struct tandem_error *err, bool silent)
{
        struct tandem_job *job = (struct tandem_job *)((char *)call - offsetof(struct tandem_job, call));
        struct tandem_error mine;

        if (err->code == TANDEM_E_CANCELLED && silent) {
                job_finish_cancelled(job, true);
                return;
        }
        if (job->cancel_wanted && job->call.again) { /* and no daemon is there that could answer */
                job_finish_cancelled(job, silent);
                return;
        }
        if (err->code == TANDEM_E_DAEMON_LOST && job->id != 0)
                lib_error(&mine, err->code, "job %" PRIu64 " is lost after %zu tokens: %.900s", job->id,
                          job->scoring ? job->score.n : job->ids.n, err->message);
        else
                lib_error_copy(&mine, err);
        job_finish_error(job, &mine, silent);
}

static void got_accepted(struct tandem_job *job, const Tandem__Accepted *wire)
{
        struct tandem_accepted accepted = {
                .job = wire->job,
                .prompt_tokens = wire->prompt_tokens,
                .max_tokens = wire->max_tokens,
                .model = wire->model,
        };

        job->result.prompt_tokens = wire->prompt_tokens;
        job->n_most = wire->max_tokens;
        if (job->n_asked > 0 && (job->n_most == 0 || job->n_most > job->n_asked))
                job->n_most = job->n_asked;
        learn_id(job, wire->job);
        if (job->told_accepted)
                return;
        job->told_accepted = true;
        if (job_is_heard(job) && job->callbacks.on_accepted)
                job->callbacks.on_accepted(job, &accepted, job->userdata);
}

static void got_progress(struct tandem_job *job, const Tandem__Progress *wire)
{
        struct tandem_progress progress = {
                .job = wire->job,
                .state = (int)wire->state,
                .done = wire->done,
                .total = wire->total,
                .queue_position = wire->queue_position,
        };

        learn_id(job, wire->job);
        if (job->n_again > 0 && job->ids.n > 0 && wire->state != TANDEM__JOB_STATE__JOB_DECODE) {
                progress.state = TANDEM_JOB_RECOVERING; /* it was further already */
                progress.daemon_lost = true;
        }
        if (job_is_heard(job) && job->callbacks.on_progress)
                job->callbacks.on_progress(job, &progress, job->userdata);
}

#define MAX_TOP 64 /* of a token, whatever a daemon sends */

/* Deltas for the callback: out->calls[0] is to be freed. false: the connection has ended. */
static bool take_deltas(struct tandem_job *job, const Tandem__Token *token, struct tandem_token *out)
{
        struct tandem_call_delta *deltas = calloc(token->n_calls, sizeof(*deltas) + sizeof(*out->calls));
        const struct tandem_call_delta **list = (const struct tandem_call_delta **)(deltas + token->n_calls);
        const char *wrong = deltas ? NULL : "no memory for a token's calls";

        for (size_t i = 0; i < token->n_calls && !wrong; i++) {
                const Tandem__CallDelta *from = token->calls[i];

                wrong = call_list_add(&job->calls, from, job->n_given > 0);
                deltas[i] = (struct tandem_call_delta){ from->call, from->id, from->name,
                                                        from->arguments.len ? (const char *)from->arguments.data : "",
                                                        from->arguments.len };
                list[i] = &deltas[i];
        }
        if (wrong) {
                free(deltas);
                lib_protocol_error(job->tandem, "%s", wrong);
                return false;
        }
        out->calls = list;
        out->n_calls = token->n_calls;
        return true;
}

static void got_tokens(struct tandem_job *job, const Tandem__Tokens *wire)
{
        struct tandem *t = job->tandem;

        if (job->scoring) {
                lib_protocol_error(t, "tokens came for a score job");
                return;
        }
        if (wire->numerics_id[0])
                snprintf(job->drew, sizeof(job->drew), "%.191s", wire->numerics_id);
        if (wire->index == 0 && job->n_again == 0 && job->ids.n > 0 && job->ids.n == job->n_given) {
                lib_protocol_error(t, "it draws the tokens anew that job %" PRIu64 " was to go on from: it is too old",
                                   job->id);
                return;
        }
        if (wire->index > job->ids.n || (wire->index < job->ids.n && job->n_again == 0)) {
                lib_protocol_error(t, "token %u of job %" PRIu64 " came where token %zu was due", wire->index, job->id,
                                   job->ids.n);
                return;
        }
        for (size_t i = 0; i < wire->n_tokens; i++) {
                const Tandem__Token *token = wire->tokens[i];
                struct tandem_alternative top[MAX_TOP];
                size_t text_at = job->text.size;
                struct tandem_token out = { .index = (uint32_t)job->ids.n,
                                            .id = token->id,
                                            .logprob = token->logprob,
                                            .size = token->text.len,
                                            .top = top,
                                            .n_top = token->n_top < MAX_TOP ? token->n_top : MAX_TOP };

                if (wire->index + i < job->ids.n) {
                        if (!job_has_token(job, wire->index + i, token))
                                return;
                        continue;
                }
                if (job->n_most > 0 && job->ids.n >= job->n_most) {
                        lib_protocol_error(t, "it tells more tokens of job %" PRIu64 " than the %u that may come",
                                           job->id, job->n_most);
                        return;
                }
                for (size_t k = 0; k < out.n_top; k++)
                        top[k] = (struct tandem_alternative){ .id = token->top[k]->id,
                                                              .logprob = token->top[k]->logprob,
                                                              .text = (const char *)token->top[k]->text.data,
                                                              .size = token->top[k]->text.len };
                if (id_buf_add(&job->ids, &token->id, 1) < 0 ||
                    text_add(&job->text, token->text.data, token->text.len) < 0) {
                        lib_protocol_error(t, "job %" PRIu64 " has more text than this library can hold", job->id);
                        return;
                }
                job_note_logprob(job, token->logprob);
                out.text = job->text.data + text_at;
                out.thinking = token->thinking.len ? (const char *)token->thinking.data : "";
                out.thinking_size = token->thinking.len;
                out.piece = token->piece.len ? (const char *)token->piece.data : out.text;
                out.piece_size = token->piece.len ? token->piece.len : out.size;
                out.numerics_id = job->drew;
                if (token->n_calls > 0 && !take_deltas(job, token, &out))
                        return;
                if (job_is_heard(job) && job->callbacks.on_token)
                        job->callbacks.on_token(job, &out, job->userdata);
                if (out.n_calls > 0)
                        free((void *)(uintptr_t)out.calls[0]); /* the first of all, in one piece */
                if (job->done)                                 /* the callback closed the connection */
                        return;
        }
}

static void got_done(struct tandem_job *job, const Tandem__Done *wire)
{
        struct tandem_result *result = &job->result;
        size_t text_at = job->text.size;
        const char *wrong;

        learn_id(job, wire->job);
        if (wire->reason == TANDEM__DONE_REASON__DONE_ERROR && job_goes_on_after(job, wire->error))
                return;
        if (text_add(&job->text, wire->text.data, wire->text.len) < 0) {
                lib_protocol_error(job->tandem, "job %" PRIu64 " has more text than this library can hold", job->id);
                return;
        }
        result->tail = job->text.data + text_at;
        result->tail_size = wire->text.len;
        result->prompt_tokens = wire->prompt_tokens;
        result->cached_tokens = wire->cached_tokens;
        result->generated_tokens = wire->generated_tokens;
        result->ttft_ms = wire->ttft_ms;
        result->prefill_tps = wire->prefill_tps;
        result->decode_tps = wire->decode_tps;
        result->recoveries = wire->recoveries + job->n_again;
        result->degraded = wire->degraded || job->degrades;
        result->incomplete = wire->incomplete;
        result->drafted = wire->drafted;
        result->thinking_tokens = TDM_MIN(wire->thinking_tokens, wire->generated_tokens);
        result->accepted = wire->accepted;
        result->picture_tokens = TDM_MIN(wire->picture_tokens, wire->prompt_tokens);
        /* An empty array is NULL, which memcpy() must not get. */
        if (wire->n_drafted_at > 0)
                memcpy(result->drafted_at, wire->drafted_at,
                       TDM_MIN(sizeof(result->drafted_at), wire->n_drafted_at * sizeof(*wire->drafted_at)));
        if (wire->n_accepted_at > 0)
                memcpy(result->accepted_at, wire->accepted_at,
                       TDM_MIN(sizeof(result->accepted_at), wire->n_accepted_at * sizeof(*wire->accepted_at)));
        job->unguessed = strdup(wire->unguessed);
        result->unguessed = job->unguessed;
        job->numerics_id = strdup(wire->numerics_id);
        result->numerics_id = job->numerics_id;

        switch (wire->reason) {
        case TANDEM__DONE_REASON__DONE_STOP:
        case TANDEM__DONE_REASON__DONE_LENGTH:
        case TANDEM__DONE_REASON__DONE_CANCELLED:
                result->reason = (enum tandem_reason)wire->reason;
                break;
        case TANDEM__DONE_REASON__DONE_ERROR:
                result->reason = TANDEM_REASON_ERROR;
                lib_error_from_wire(&result->error, wire->error);
                break;
        default:
                result->reason = TANDEM_REASON_ERROR;
                lib_error(&result->error, TANDEM_E_PROTOCOL,
                          "the job ended for a reason that this library does not know (%d): update it",
                          (int)wire->reason);
                break;
        }
        if (job->embedding && result->reason <= TANDEM_REASON_LENGTH && !job->vector) {
                lib_protocol_error(job->tandem, "a job ended without its vector or scores");
                return;
        }
        if (job->scoring && result->reason <= TANDEM_REASON_LENGTH) {
                wrong = score_finish(job);
                if (wrong) {
                        lib_protocol_error(job->tandem, "%s", wrong);
                        return;
                }
        } else if (job->n_again > 0 && result->reason <= TANDEM_REASON_LENGTH && wire->generated_tokens < job->ids.n) {
                job_finish_changed(job, wire->generated_tokens);
                return;
        } else if (!job->scoring && result->reason <= TANDEM_REASON_LENGTH && wire->generated_tokens != job->ids.n) {
                lib_protocol_error(job->tandem, "job %" PRIu64 " ended with %u tokens, but %zu came", job->id,
                                   wire->generated_tokens, job->ids.n);
                return;
        }
        finish_job(job, false);
}

static bool on_reply(struct call *call, Tandem__Reply *reply)
{
        struct tandem_job *job = (struct tandem_job *)((char *)call - offsetof(struct tandem_job, call));
        _cleanup_(job_unrefp) struct tandem_job *held = job;
        const char *wrong;

        held->refs++;
        switch (reply->kind_case) {
        case TANDEM__REPLY__KIND_ACCEPTED:
                got_accepted(job, reply->accepted);
                break;
        case TANDEM__REPLY__KIND_PROGRESS:
                got_progress(job, reply->progress);
                break;
        case TANDEM__REPLY__KIND_TOKENS:
                got_tokens(job, reply->tokens);
                break;
        case TANDEM__REPLY__KIND_SCORE:
                wrong = job->scoring ? score_add_chunk(job, reply->score) : "scores came for a generate job";
                if (wrong)
                        lib_protocol_error(job->tandem, "%s", wrong);
                break;
        case TANDEM__REPLY__KIND_VECTOR:
                wrong = vector_take(job, reply->vector);
                if (wrong)
                        lib_protocol_error(job->tandem, "%s", wrong);
                break;
        case TANDEM__REPLY__KIND_DONE:
                got_done(job, reply->done);
                break;
        case TANDEM__REPLY__KIND_ERROR:
                got_error(job, reply->error);
                break;
        case TANDEM__REPLY__KIND__NOT_SET:
                break; /* an event that a newer daemon has and this library does not know */
        default:
                lib_protocol_error(job->tandem, "a reply of kind %d came for a job", (int)reply->kind_case);
                break;
        }
        return false;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

void tandem_score_options_init_sized(struct tandem_score_options *options, size_t size)
{
        struct tandem_score_options full = { .struct_size = size, .text_size = SIZE_MAX };

        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

void tandem_callbacks_init_sized(struct tandem_callbacks *callbacks, size_t size)
{
        memset(callbacks, 0, size);
        if (size >= sizeof(callbacks->struct_size))
                callbacks->struct_size = size;
}

static struct tandem_job *job_new(struct tandem *t, const struct tandem_callbacks *callbacks, void *userdata)
{
        struct tandem_job *job = calloc(1, sizeof(*job));

        if (!job)
                return NULL;
        job->refs = 1;
        job->tandem = t;
        job->model_fd = -1;
        job->call = (struct call){ .on_reply = on_reply, .on_lost = on_lost };
        job->userdata = userdata;
        if (callbacks)
                memcpy(&job->callbacks, callbacks, TDM_MIN(callbacks->struct_size, sizeof(job->callbacks)));
        return job;
}

int job_open(struct tandem *t, const struct tandem_callbacks *callbacks, void *userdata, const char *model,
             struct tandem_job **ret, Tandem__ModelRef *ret_ref, int *ret_fd, struct tandem_error *err)
{
        _cleanup_(job_unrefp) struct tandem_job *job = job_new(t, callbacks, userdata);
        int code;

        if (!job)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job");
        code = lib_model_ref(ret_ref, model, ret_fd, err);
        if (code == TANDEM_OK)
                *ret = steal_ptr(&job);
        return code;
}

int job_send(struct tandem *t, struct tandem_job **job, Tandem__Request *request, int fd, struct tandem_job **ret,
             struct tandem_error *err)
{
        int code;

        request->reattaches = t->reattach_ms > 0;
        if (request->reattaches && job_keep_request(*job, request, fd) < 0)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job's request");
        code = lib_send(t, request, fd, &(*job)->call, err);
        if (code != TANDEM_OK)
                return code;
        (*job)->was_sent = (*job)->call.id != 0;
        (*job)->refs++; /* the request's */
        *ret = steal_ptr(job);
        return TANDEM_OK;
}

/* The ids that come first are those it goes on from. What is wrong in the list tandemd says. */
static bool job_take_drawn(struct tandem_job *job, const char *list)
{
        uint32_t id;

        while (list && *list && tdm_id_list_next(&list, &id))
                if (id_buf_add(&job->ids, &id, 1) < 0)
                        return false;
        job->n_given = (uint32_t)job->ids.n;
        return true;
}

int tandem_generate(struct tandem *t, const struct tandem_generate_options *given,
                    const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                    struct tandem_error *err)
{
        _cleanup_(generate_wire_deinit) struct generate_wire wire = { 0 };
        _cleanup_(job_unrefp) struct tandem_job *job = NULL;
        _cleanup_(closep) int fd = -1;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__ModelRef ref;
        int code;

        code = generate_wire_init(&wire, given, err);
        if (code == TANDEM_OK)
                code = job_open(t, callbacks, userdata, wire.options.model, &job, &ref, &fd, err);
        if (code != TANDEM_OK)
                return code;
        if (!job_take_drawn(job, wire.options.drawn))
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job's tokens");
        job->may_degrade = wire.generate.may_degrade;
        job->n_asked = job->n_most = wire.generate.max_tokens;
        wire.generate.model = &ref;
        request.kind_case = TANDEM__REQUEST__KIND_GENERATE;
        request.generate = &wire.generate;
        return job_send(t, &job, &request, fd, ret, err);
}

int tandem_score(struct tandem *t, const struct tandem_score_options *given, const struct tandem_callbacks *callbacks,
                 void *userdata, struct tandem_job **ret, struct tandem_error *err)
{
        struct tandem_score_options o;
        _cleanup_(job_unrefp) struct tandem_job *job = NULL;
        _cleanup_(closep) int fd = -1;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Score score = TANDEM__SCORE__INIT;
        Tandem__ModelRef ref;
        int code;

        tandem_score_options_init(&o);
        memcpy(&o, given, TDM_MIN(given->struct_size, sizeof(o)));
        if ((o.text != NULL) + (o.n_ids > 0) != 1)
                return lib_error(err, TANDEM_E_BAD_REQUEST,
                                 o.text ? "a score job takes a text or ids, not both" :
                                          "there is nothing to score: give a text or ids");
        if (o.n_ids > LIB_MAX_TOKENS)
                return lib_error(err, TANDEM_E_TOO_LONG, "%zu ids are more than any model takes", o.n_ids);
        if (o.top > 64)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "at most 64 alternatives come for each position, not %u",
                                 o.top);

        code = job_open(t, callbacks, userdata, o.model, &job, &ref, &fd, err);
        if (code != TANDEM_OK)
                return code;
        job->scoring = true;
        job->score.top = o.top;
        job->score.n_expected = o.n_ids;
        score.model = &ref;
        score.n_ids = o.n_ids;
        score.ids = (uint32_t *)(uintptr_t)o.ids;
        if (o.text)
                score.text = lib_bytes(o.text, o.text_size);
        score.top = o.top;
        request.kind_case = TANDEM__REQUEST__KIND_SCORE;
        request.score = &score;
        return job_send(t, &job, &request, fd, ret, err);
}

/* ---- the handle -------------------------------------------------------------------------------------------------- */

int tandem_wait(struct tandem_job *job, int timeout_ms)
{
        int code;

        if (job->done)
                return TANDEM_OK;
        job->refs++; /* a callback may free the handle */
        code = lib_wait(job->tandem, &job->done, timeout_ms, NULL);
        job_unref(job);
        return code;
}

int tandem_cancel(struct tandem_job *job)
{
        if (job->done || job->cancel_sent)
                return TANDEM_OK;
        if (job->tandem->dead)
                return job->tandem->dead_error.code;
        job->cancel_wanted = true;
        if (job->call.id == 0)
                lib_wake(job->tandem);
        else if (job->id != 0 && !job->is_stale)
                job_send_cancel(job);
        return TANDEM_OK;
}

void tandem_job_free(struct tandem_job *job)
{
        if (!job || job->released)
                return;
        if (!job->done)
                (void)tandem_cancel(job);
        job->released = true;
        job_unref(job);
}

uint64_t tandem_job_id(const struct tandem_job *job)
{
        return job->id;
}

bool tandem_job_done(const struct tandem_job *job)
{
        return job->done;
}

const struct tandem_result *tandem_job_result(const struct tandem_job *job)
{
        return job->done ? &job->result : NULL;
}

const char *tandem_job_text(const struct tandem_job *job, size_t *ret_size)
{
        if (ret_size)
                *ret_size = job->text.size;
        return job->text.data ? job->text.data : "";
}

const uint32_t *tandem_job_ids(const struct tandem_job *job, size_t *ret_n)
{
        if (ret_n)
                *ret_n = job->ids.n;
        return job->ids.data;
}

const struct tandem_scores *tandem_job_scores(const struct tandem_job *job)
{
        return job->done && job->scores.n > 0 ? &job->scores : NULL;
}
