/* What libtandem tells of a generation's jobs, and a peer's gateway in its place: a choice's tokens and its end.
 *
 * The callbacks only note what happened and format text. They never free a job or close the connection, since libtandem
 * still uses both until tandem_dispatch() returns. */
#include "http-gateway/generation-private.h"

#include "common/log.h"
#include "http-gateway/takeover.h"
#include "http-gateway/thinking.h"

/* A request that names no model gets the default one, and the answer says which that was. */
static void name_the_model(struct generation_request *r, const char *model)
{
        if (r->model)
                return;
        r->model = strdup(model);
        json_object_set_new(r->json, "model", json_string(model));
}

static void on_accepted(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata)
{
        struct choice *c = userdata;
        struct generation *g = c->generation;
        uint32_t limit = g->request->context_limit;

        c->accepted = true;
        c->prompt_tokens = accepted->prompt_tokens;
        g->n_accepted++;
        name_the_model(g->request, accepted->model);
        if (limit > 0 && c->prompt_tokens >= limit && !g->failed && !g->request->count_only) {
                g->failed = true;
                failure_set(&g->failure, 400, "context_length_exceeded", NULL,
                            "the prompt has %u tokens, and num_ctx leaves room for %u with the answer",
                            c->prompt_tokens, limit);
                failure_set_too_long(&g->failure, c->prompt_tokens, limit);
        }
}

static void choice_lacks_memory(struct choice *c)
{
        c->generation->failed = true;
        failure_set(&c->generation->failure, 503, "no_memory", NULL, "no memory for this answer");
}

/* Goes on with the last piece if it is of this kind: but each call is one of its own. */
static void piece_note(struct choice *c, enum choice_piece_kind kind, size_t from, size_t to)
{
        struct choice_piece *last = c->n_pieces > 0 ? &c->pieces[c->n_pieces - 1] : NULL;

        if (last && last->kind == kind && kind != PIECE_CALL) {
                last->to = to;
                return;
        }
        if (c->n_pieces == c->pieces_capacity) {
                size_t capacity = TDM_MAX(c->pieces_capacity * 2, (size_t)4);
                struct choice_piece *pieces = reallocarray(c->pieces, capacity, sizeof(*pieces));

                if (!pieces) {
                        choice_lacks_memory(c);
                        return;
                }
                c->pieces = pieces;
                c->pieces_capacity = capacity;
        }
        c->pieces[c->n_pieces++] = (struct choice_piece){ kind, from, to };
}

static void piece_add(struct choice *c, enum choice_piece_kind kind, struct buffer *to, const char *data, size_t size)
{
        size_t from = to->size;

        if (size == 0)
                return;
        buffer_add(to, data, size);
        piece_note(c, kind, from, to->size);
}

static void send_text(struct choice *c, const struct tandem_token *token, const char *text, size_t size)
{
        struct generation *g = c->generation;

        if (!g->request->stream)
                piece_add(c, PIECE_TEXT, &c->text, text, size);
        else if (!g->begun)
                generation_begin_stream(g);
        g->ops->text(g->x, c, token, text, size);
}

static void token_measure(struct generation *g, struct choice *c)
{
        uint64_t now_ns = tdm_now_ns();
        struct metrics *m = &g->x->server->metrics;

        if (c->last_token_ns == 0)
                histogram_add(&m->first_token, (double)(now_ns - g->x->begun_ns) / 1e9);
        else
                histogram_add(&m->between_tokens, (double)(now_ns - c->last_token_ns) / 1e9);
        c->last_token_ns = now_ns;
        g->spoke_ns = now_ns;
}

static void choice_cut(struct choice *c, enum tandem_reason reason)
{
        c->cut = true;
        c->reason = reason;
        if (c->job)
                (void)tandem_cancel(c->job);
}

static void take_calls(struct choice *c, const struct tandem_token *token)
{
        struct generation *g = c->generation;

        if (!g->request->taken_over) /* they are passed on, and may have begun elsewhere */
                choice_calls_add(&c->calls, token);
        if (c->calls.failed) {
                choice_lacks_memory(c);
                return;
        }
        if (!g->request->stream) {
                piece_add(c, PIECE_THINKING, &c->thinking, token->thinking, token->thinking_size);
                for (size_t i = 0; i < token->n_calls; i++)
                        if (token->calls[i]->name[0])
                                piece_note(c, PIECE_CALL, token->calls[i]->call, 0);
                return;
        }
        if (!g->begun)
                generation_begin_stream(g);
        if (g->ops->calls)
                g->ops->calls(g->x, c, token);
}

/* What is kept until the answer is whole, and then lies in the answer too. */
static void choice_charge(struct choice *c)
{
        struct generation *g = c->generation;
        uint64_t bytes = c->text.size + c->thinking.size + c->calls.bytes + c->kept_bytes;

        for (unsigned i = 0; i < MAX_COLUMNS; i++)
                bytes += c->columns[i].size;
        bytes = 2 * bytes + c->n_told * sizeof(c->told[0]) + c->pieces_capacity * sizeof(c->pieces[0]);
        if (g->failed || bytes <= c->held_bytes)
                return;
        if (exchange_hold(g->x, bytes - c->held_bytes, &g->failure) == 0)
                c->held_bytes = bytes;
        else
                g->failed = true;
}

/* ---- how much of a prompt has been read ---- */

/* A stream that begins tells what is read by then. */
static void choice_tell_progress(struct choice *c)
{
        struct generation *g = c->generation;

        if (!g->begun) {
                generation_begin_stream(g);
                return;
        }
        g->spoke_ns = tdm_now_ns();
        g->ops->progress(g->x, c);
}

/* Before the first token the whole prompt has been read, whether the daemon came to say so or not. */
static void choice_end_progress(struct choice *c)
{
        c->generation->told_recovering = false;
        if (!c->progress.runs)
                return;
        c->progress.processed = c->progress.total;
        choice_tell_progress(c);
        c->progress.runs = false;
}

static void on_progress(struct tandem_job *job, const struct tandem_progress *told, void *userdata)
{
        struct choice *c = userdata;
        struct generation *g = c->generation;
        struct prompt_progress *p = &c->progress;

        if (g->failed || c->cut || !g->request->stream)
                return;
        if (told->state == TANDEM_JOB_RECOVERING) {
                p->runs = false; /* what is read again is counted anew */
                if (g->begun && g->ops->recovering && !g->told_recovering) {
                        g->ops->recovering(g->x);
                        g->told_recovering = true;
                }
        }
        if (told->state != TANDEM_JOB_PREFILL || !g->request->with_progress || !g->ops->progress ||
            told->done >= told->total)
                return;
        if (!p->runs)
                *p = (struct prompt_progress){ .runs = true, .cached = told->done, .began_ns = tdm_now_ns() };
        p->total = told->total;
        p->processed = told->done;
        if (g->begun || g->n_accepted == g->n_choices)
                choice_tell_progress(c);
}

void choice_take_token(struct choice *c, const struct tandem_token *token)
{
        struct generation *g = c->generation;
        _cleanup_(buffer_free) struct buffer out = { 0 };
        struct tandem_token thought = *token, calls = *token;

        if (g->failed || c->cut)
                return;
        if (generation_may_go_on(g) && takeover_remember(c, token) < 0) {
                choice_lacks_memory(c);
                return;
        }
        choice_end_progress(c);
        c->generated_tokens = token->index + 1;
        token_measure(g, c);
        thought.n_calls = calls.thinking_size = 0;
        if (thought.thinking_size > 0) /* a piece that ends a thought may begin the text behind it */
                take_calls(c, &thought);
        if (c->stopper.n == 0) {
                send_text(c, token, token->text, token->size);
        } else {
                c->stop = stops_add(&c->stopper, token->text, token->size, &out);
                if (out.size > 0)
                        send_text(c, token, out.data, out.size);
                if (c->stop >= 0)
                        choice_cut(c, TANDEM_REASON_STOP);
        }
        if (!c->cut && calls.n_calls > 0)
                take_calls(c, &calls);
        choice_charge(c);
        if (!c->cut && g->request->context_limit > 0 &&
            c->prompt_tokens + c->generated_tokens >= g->request->context_limit)
                choice_cut(c, TANDEM_REASON_LENGTH);
}

static void on_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        choice_take_token(userdata, token);
}

/* A daemon that ends takes nothing new. The next one gets a connection that the service manager's socket holds. */
static bool may_ask_anew(const struct choice *c, const struct tandem_error *err)
{
        const struct generation *g = c->generation;

        return err->code == TANDEM_E_DRAINING && !g->anew && !g->lost && c->generated_tokens == 0 && !c->cut;
}

/* The head has gone, so it comes as a comment among the events. Ollama's API has no such warning. */
static void warn_late(struct generation *g, const char *warning)
{
        char text[256];

        if (!g->begun || !*warning || strcmp(g->ops->content_type, SSE_CONTENT_TYPE) != 0)
                return;
        snprintf(text, sizeof(text), "x-tandem-warning: %s", warning);
        sse_add_comment(&g->x->out, text);
}

static bool may_go_without_thinking(const struct choice *c, const struct tandem_error *err)
{
        struct generation *g = c->generation;
        const char *warning = g->request->thinking_else;

        if (g->lost || c->cut || c->generated_tokens > 0 || !request_goes_without_thinking(g->request, err))
                return false;
        snprintf(g->x->warning, sizeof(g->x->warning), "%s", g->request->warnings.text);
        warn_late(g, warning);
        return true;
}

static void choice_refused(struct choice *c, const struct tandem_error *err)
{
        struct generation *g = c->generation;

        c->refused = true;
        g->n_refused++;
        failure_from_tandem(&g->failure, err, json_get_string(g->request->json, "model", ""));
        if (c->accepted)
                g->n_accepted--;
        c->accepted = false;
}

void choice_take_done(struct choice *c, const struct tandem_result *result)
{
        struct generation *g = c->generation;
        _cleanup_(buffer_free) struct buffer out = { 0 };

        if (g->failed || c->ended)
                return;
        if (result->reason == TANDEM_REASON_ERROR) {
                if (generation_code_is_a_death(result->error.code) && generation_may_go_on(g))
                        g->lost = true;
                if (may_ask_anew(c, &result->error) || may_go_without_thinking(c, &result->error))
                        choice_refused(c, &result->error);
                else
                        generation_note_loss(g, &result->error);
                return;
        }
        if (result->reason == TANDEM_REASON_CANCELLED && !c->cut) {
                g->failed = true;
                failure_set(&g->failure, 500, "cancelled", NULL,
                            "the job was cancelled by the service's administrator");
                return;
        }
        c->ended = true;
        c->prompt_tokens = result->prompt_tokens;
        if (g->request->inputs && !g->failed) {
                size_t n = 0;
                const float *vector = tandem_job_vector(c->job, &n);

                g->probabilities = result->probability;
                g->ops->vector(g->x, c, vector, n);
                choice_charge(c);
                g->n_ended++;
                return;
        }
        if (g->request->stream && !c->cut && result->reason != TANDEM_REASON_CANCELLED)
                choice_end_progress(c); /* the first token that is drawn may be the end */
        c->cached_tokens = result->cached_tokens;
        c->thinking_tokens = result->thinking_tokens;
        c->drafted = result->drafted;
        c->accepted_guesses = TDM_MIN(result->accepted, result->drafted);
        if (!c->cut) {
                c->reason = result->reason;
                c->generated_tokens = result->generated_tokens;
                if (c->stopper.n > 0) {
                        c->stop = stops_add(&c->stopper, result->tail, result->tail_size, &out);
                        if (c->stop < 0)
                                stops_flush(&c->stopper, &out);
                        else
                                c->reason = TANDEM_REASON_STOP;
                } else {
                        buffer_add(&out, result->tail, result->tail_size);
                }
        } else if (c->stop < 0) {
                stops_flush(&c->stopper, &out);
        }
        if (out.size > 0)
                send_text(c, NULL, out.data, out.size);
        choice_charge(c);
        c->prefill_s = result->prefill_tps > 0 ? (c->prompt_tokens - c->cached_tokens) / result->prefill_tps : 0;
        c->decode_s = result->decode_tps > 0 ? c->generated_tokens / result->decode_tps : 0;
        c->load_s = TDM_MAX(0.0, result->ttft_ms / 1e3 - c->prefill_s);
        g->n_ended++;
        if (!g->request->stream)
                return;
        if (!g->begun)
                generation_begin_stream(g);
        g->ops->choice_end(g->x, c);
}

static void on_done(struct tandem_job *job, const struct tandem_result *result, void *userdata)
{
        choice_take_done(userdata, result);
}

void generation_listen(struct tandem_callbacks *callbacks)
{
        tandem_callbacks_init(callbacks);
        callbacks->on_accepted = on_accepted;
        callbacks->on_progress = on_progress;
        callbacks->on_token = on_token;
        callbacks->on_done = on_done;
}
