/* A generation is the jobs of one request for text, from the request until its answer is complete (generation.h).
 *
 * libtandem's callbacks only note what happened and format text. They never free a job or close the connection, since
 * libtandem still uses both until tandem_dispatch() returns. generation_look() does that after it. */
#include "http-gateway/generation.h"

#include <poll.h>
#include <sys/epoll.h>
#include "common/log.h"
#include "http-gateway/backend.h"
#include "http-gateway/handoff.h"
#include "http-gateway/reading.h"
#include "http-gateway/thinking.h"

#define PAUSE_BYTES ((size_t)64 << 10) /* unread by the client: no more is taken from the daemon */
#define RESUME_BYTES ((size_t)16 << 10)
#define MAX_TAIL_BYTES (MAX_STOPS * MAX_STOP_BYTES) /* that a peer may have held back at the end */
#define QUIET_NS TDM_NSEC_PER_SEC                   /* a stream that says nothing for so long gets a sign of life */

/* ---- ends ---- */

static void let_go(struct generation *g)
{
        bool clean = g->tandem && !g->failed;

        tdm_source_destroyp(&g->io);
        if (g->connecting)
                backend_forget(steal_ptr(&g->connecting));
        for (unsigned i = 0; i < g->n_choices; i++) {
                clean = clean && g->choices[i].job && tandem_job_done(g->choices[i].job);
                handoff_free(steal_ptr(&g->choices[i].handoff));
        }
        if (g->tandem && !clean)
                tandem_close(steal_ptr(&g->tandem)); /* the daemon stops what still runs */
        for (unsigned i = 0; i < g->n_choices; i++) {
                tandem_job_free(g->choices[i].job);
                g->choices[i].job = NULL;
        }
        if (g->tandem)
                backend_keep(g->x->server->backend, steal_ptr(&g->tandem), g->x->label);
}

void generation_free(struct generation *g)
{
        if (!g)
                return;
        let_go(g);
        for (unsigned i = 0; i < g->n_choices; i++) {
                struct choice *c = &g->choices[i];

                stops_free(&c->stopper);
                buffer_free(&c->text);
                buffer_free(&c->thinking);
                choice_calls_free(&c->calls);
                sse_form_free(&c->form);
                buffer_free(&c->tail);
                free(c->told);
                for (unsigned k = 0; k < MAX_COLUMNS; k++)
                        buffer_free(&c->columns[k]);
                free(c->state);
        }
        reading_free_request(g->x->server, g->request);
        free(g);
}

static void note_failure(struct generation *g, const struct tandem_error *err)
{
        if (g->failed)
                return;
        g->failed = true;
        failure_from_tandem(&g->failure, err, json_get_string(g->request->json, "model", ""));
        failure_name_thinking(&g->failure, g->request);
}

/* Whether a peer can make the rest of it. */
static bool may_go_on(const struct generation *g)
{
        const struct generation_request *r = g->request;

        return g->x->server->config->n_peers > 0 && !r->taken_over && !r->inputs && !r->count_only;
}

/* The daemon has gone, or is about to, and not for something that is wrong with the request. */
static bool is_a_death(int code)
{
        return code == TANDEM_E_DAEMON_LOST || code == TANDEM_E_NO_DAEMON || code == TANDEM_E_DRAINING;
}

/* A loss that a peer makes up for is no failure yet, but what is said if none can. */
static void note_loss(struct generation *g, const struct tandem_error *err)
{
        if (g->lost && g->failure.status == 0)
                failure_from_tandem(&g->failure, err, json_get_string(g->request->json, "model", ""));
        if (!g->lost)
                note_failure(g, err);
}

static void fail_now(struct generation *g)
{
        struct exchange *x = g->x;

        g->over = true;
        let_go(g);
        if (!g->begun) {
                exchange_fail(x, &g->failure);
                return;
        }
        x->server->metrics.stream_errors++;
        tdm_log_info("%s: the stream ends with an error: %s", x->id, g->failure.message);
        g->ops->error(x, &g->failure);
        exchange_end_stream(x);
}

static void stream_begin(struct generation *g)
{
        g->begun = true;
        g->spoke_ns = tdm_now_ns();
        g->ops->begin(g->x);
        exchange_begin_stream(g->x, g->ops->content_type);
}

static void end_now(struct generation *g)
{
        struct exchange *x = g->x;
        struct metrics *m = &x->server->metrics;
        uint64_t prompt, cached, generated;

        g->over = true;
        generation_usage(g, &prompt, &cached, &generated);
        m->prompt_tokens += prompt;
        m->cached_tokens += cached;
        m->generated_tokens += generated;
        let_go(g);
        g->ops->end(x);
        if (g->begun)
                exchange_end_stream(x);
}

void generation_usage(const struct generation *g, uint64_t *ret_prompt, uint64_t *ret_cached, uint64_t *ret_generated)
{
        *ret_prompt = *ret_cached = *ret_generated = 0;
        for (unsigned i = 0; i < g->n_choices; i++) {
                *ret_generated += g->choices[i].generated_tokens;
                if (i % g->request->n != 0)
                        continue; /* the n choices of one prompt share it, so it counts once */
                *ret_prompt += g->choices[i].prompt_tokens;
                *ret_cached += g->choices[i].cached_tokens;
        }
}

uint64_t generation_thinking_tokens(const struct generation *g)
{
        uint64_t n = 0;

        for (unsigned i = 0; i < g->n_choices; i++)
                n += TDM_MIN(g->choices[i].thinking_tokens, g->choices[i].generated_tokens);
        return n;
}

/* ---- what libtandem tells ---- */

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

static void send_text(struct choice *c, const struct tandem_token *token, const char *text, size_t size)
{
        struct generation *g = c->generation;

        if (!g->request->stream)
                buffer_add(&c->text, text, size);
        else if (!g->begun)
                stream_begin(g);
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

        choice_calls_add(&c->calls, token);
        if (c->calls.failed) {
                g->failed = true;
                failure_set(&g->failure, 503, "no_memory", NULL, "no memory for this answer");
                return;
        }
        if (!g->request->stream) {
                buffer_add(&c->thinking, token->thinking, token->thinking_size);
                return;
        }
        if (!g->begun)
                stream_begin(g);
        if (g->ops->calls)
                g->ops->calls(g->x, c, token);
}

/* For a peer, in case that the daemon dies. */
static void token_remember(struct choice *c, const struct tandem_token *token)
{
        struct generation *g = c->generation;

        if (!may_go_on(g))
                return;
        if (c->n_told == c->told_capacity) {
                size_t capacity = TDM_MAX(c->told_capacity * 2, (size_t)64);
                struct told *told = reallocarray(c->told, capacity, sizeof(*told));

                if (!told) {
                        g->failed = true;
                        failure_set(&g->failure, 503, "no_memory", NULL, "no memory for this answer");
                        return;
                }
                c->told = told;
                c->told_capacity = capacity;
        }
        c->told[c->n_told++] = (struct told){ token->id, token->logprob };
}

/* What is kept until the answer is whole, and then lies in the answer too. */
static void choice_charge(struct choice *c)
{
        struct generation *g = c->generation;
        uint64_t bytes = c->text.size + c->thinking.size + c->calls.bytes + c->kept_bytes;

        for (unsigned i = 0; i < MAX_COLUMNS; i++)
                bytes += c->columns[i].size;
        bytes = 2 * bytes + c->n_told * sizeof(c->told[0]);
        if (g->failed || bytes <= c->held_bytes)
                return;
        if (exchange_hold(g->x, bytes - c->held_bytes, &g->failure) == 0)
                c->held_bytes = bytes;
        else
                g->failed = true;
}

static void take_token(struct choice *c, const struct tandem_token *token)
{
        struct generation *g = c->generation;
        _cleanup_(buffer_free) struct buffer out = { 0 };
        struct tandem_token thought = *token, calls = *token;

        if (g->failed || c->cut)
                return;
        token_remember(c, token);
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
        take_token(userdata, token);
}

/* A daemon that ends takes nothing new. The next one gets a connection that the service manager's socket holds. */
static bool may_ask_anew(const struct choice *c, const struct tandem_error *err)
{
        const struct generation *g = c->generation;

        return err->code == TANDEM_E_DRAINING && !g->anew && !g->lost && c->generated_tokens == 0 && !c->cut;
}

static bool may_go_without_thinking(const struct choice *c, const struct tandem_error *err)
{
        struct generation *g = c->generation;

        if (g->lost || c->cut || c->generated_tokens > 0 || !request_goes_without_thinking(g->request, err))
                return false;
        snprintf(g->x->warning, sizeof(g->x->warning), "%s", g->request->warnings.text);
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

static void take_done(struct choice *c, const struct tandem_result *result)
{
        struct generation *g = c->generation;
        _cleanup_(buffer_free) struct buffer out = { 0 };

        if (g->failed || c->ended)
                return;
        if (result->reason == TANDEM_REASON_ERROR) {
                if (is_a_death(result->error.code) && may_go_on(g))
                        g->lost = true;
                if (may_ask_anew(c, &result->error) || may_go_without_thinking(c, &result->error))
                        choice_refused(c, &result->error);
                else
                        note_loss(g, &result->error);
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

                g->ops->vector(g->x, c, vector, n);
                choice_charge(c);
                g->n_ended++;
                return;
        }
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
                stream_begin(g);
        g->ops->choice_end(g->x, c);
}

static void on_done(struct tandem_job *job, const struct tandem_result *result, void *userdata)
{
        take_done(userdata, result);
}

/* ---- the connection to the daemon ---- */

static void generation_watch(struct generation *g)
{
        short events = g->tandem ? tandem_events(g->tandem) : 0;

        g->paused = g->paused ? buffer_left(&g->x->out) > RESUME_BYTES : buffer_left(&g->x->out) > PAUSE_BYTES;
        for (unsigned i = 0; i < g->n_choices && g->elsewhere; i++)
                if (g->choices[i].handoff)
                        handoff_pause(g->choices[i].handoff, g->paused);
        if (g->paused)
                events &= ~POLLIN;
        if (events != g->watched && g->io && tdm_source_set_io_events(g->io, (uint32_t)events) == 0)
                g->watched = events;
}

static int start_choice(struct generation *g, unsigned i, struct tandem_error *err);

/* All choices at once; of many texts that become vectors some, and the next one when one has ended. */
static int start_choices(struct generation *g, struct tandem_error *err)
{
        int code = TANDEM_OK;

        for (unsigned i = 0; code == TANDEM_OK && i < g->n_started && g->n_refused > 0; i++) {
                if (!g->choices[i].refused)
                        continue;
                code = start_choice(g, i, err);
                g->choices[i].refused = false;
                g->n_refused--;
        }
        while (code == TANDEM_OK && g->n_started < g->n_choices &&
               (!g->request->inputs || g->n_started - g->n_ended < MAX_INPUTS_AT_ONCE))
                code = start_choice(g, g->n_started++, err);
        return code;
}

static void generation_look(struct generation *g);

/* Where a peer's token cannot be one of this job's. NULL: it can. */
static const char *wrong_in_peers_token(const struct choice *c, const struct tandem_token *token)
{
        const struct generation_request *r = c->generation->request;

        if (r->options.max_tokens > 0 && c->n_told >= r->options.max_tokens)
                return "it tells more tokens than were asked for";
        if (!choice_calls_fit(&c->calls, token))
                return "it tells calls in an order in which none are made";
        return NULL;
}

static void take_peers_token(struct choice *c, const struct tandem_token *given)
{
        struct tandem_token token = *given;

        token.index = (uint32_t)c->n_told;
        c->n_again++;
        take_token(c, &token);
        if (c->cut)
                take_done(c, &(struct tandem_result){ .reason = TANDEM_REASON_CANCELLED,
                                                      .prompt_tokens = c->prompt_tokens,
                                                      .tail = "" });
}

/* A peer tells the job from its first token on: what the client has is compared, what is new goes to the client. */
static void on_peer(struct choice *c, const struct takeover_line *line, const char *why)
{
        struct generation *g = c->generation;

        if (!line) {
                tdm_log_info("%s: no peer can go on with it: %s", g->x->id, why);
                g->failed = true;
        } else if (line->kind == TAKEOVER_ACCEPTED) {
                c->prompt_tokens = line->prompt_tokens;
                if (!c->accepted)
                        g->n_accepted++;
                c->accepted = true;
        } else if (line->kind == TAKEOVER_TOKEN && c->n_again < c->n_told) {
                const struct told *was = &c->told[c->n_again++];

                if (was->id != line->token.id || memcmp(&was->logprob, &line->token.logprob, sizeof(was->logprob)) != 0)
                        handoff_next(c->handoff, "it tells other tokens; its model or its arithmetic is another one");
                return;
        } else if (line->kind == TAKEOVER_TOKEN) {
                const char *wrong = wrong_in_peers_token(c, &line->token);

                if (wrong) {
                        handoff_next(c->handoff, wrong);
                        return;
                }
                take_peers_token(c, &line->token);
        } else if (line->kind == TAKEOVER_DONE) {
                struct tandem_result result = line->result;

                if (c->n_again < c->n_told) {
                        handoff_next(c->handoff, "its text ends earlier; its model or its arithmetic is another one");
                        return;
                }
                result.tail = c->tail.data ? c->tail.data : "";
                result.tail_size = c->tail.size;
                result.generated_tokens = (uint32_t)c->n_told;
                take_done(c, &result);
        } else if (line->kind == TAKEOVER_TAIL) {
                if (c->tail.size + line->result.tail_size > MAX_TAIL_BYTES)
                        handoff_next(c->handoff, "it holds more text back than any stop text is long");
                else
                        buffer_add(&c->tail, line->result.tail, line->result.tail_size);
                return;
        }
        if (c->ended)
                handoff_free(steal_ptr(&c->handoff));
        generation_look(g);
}

/* What has not ended goes on elsewhere, from what the client has. */
static void go_on_elsewhere(struct generation *g)
{
        tdm_source_destroyp(&g->io);
        if (g->tandem)
                tandem_close(steal_ptr(&g->tandem));
        for (unsigned i = 0; i < g->n_choices && !g->failed; i++) {
                struct choice *c = &g->choices[i];
                json_t *request;

                tandem_job_free(steal_ptr(&c->job));
                if (c->ended || c->handoff)
                        continue;
                if (c->cut) { /* its end was on the way */
                        take_done(c, &(struct tandem_result){ .reason = TANDEM_REASON_CANCELLED,
                                                              .prompt_tokens = c->prompt_tokens,
                                                              .tail = "" });
                        continue;
                }
                request = takeover_request(g->request, i);
                if (!request || handoff_new(&c->handoff, g->x, c, request, on_peer) < 0)
                        g->failed = true;
        }
        g->n_started = g->n_choices;
        g->x->server->metrics.handoffs++;
        for (unsigned i = 0; i < g->n_choices && !g->failed; i++)
                if (g->choices[i].handoff)
                        handoff_next(g->choices[i].handoff, "");
}

static void on_connected(struct ask *ask, void *userdata);

/* What an ending daemon refused is asked for once more, when the rest of the request has ended there. */
static void ask_anew(struct generation *g)
{
        struct exchange *x = g->x;

        g->anew = true;
        g->request->thinking_else = NULL; /* all that were refused are asked for without */
        tdm_source_destroyp(&g->io);
        tandem_close(steal_ptr(&g->tandem));
        for (unsigned i = 0; i < g->n_started; i++)
                if (g->choices[i].refused)
                        tandem_job_free(steal_ptr(&g->choices[i].job));
        backend_drop_kept(x->server->backend);
        if (backend_ask(x->server->backend, x->owner, x->label, ASK_CONNECT, NULL, NULL, 0, 0, on_connected, g,
                        &g->connecting, &g->failure) != 0) {
                g->failed = true;
                fail_now(g);
        }
}

/* After every dispatch: ends the generation if an error or its last choice was noted, else goes on. */
static void generation_look(struct generation *g)
{
        bool accepted = g->n_accepted == g->n_choices;
        struct tandem_error err;

        if (g->over)
                return;
        if (g->lost && !g->elsewhere && !g->failed) {
                g->elsewhere = true;
                go_on_elsewhere(g); /* looks again when it has failed at once */
                if (g->over)
                        return;
        }
        if (!g->failed && g->n_refused == 0 && g->n_started < g->n_choices && start_choices(g, &err) != TANDEM_OK)
                note_failure(g, &err);
        if (g->failed) {
                fail_now(g);
                return;
        }
        if (g->n_refused > 0 && g->tandem && g->n_refused + g->n_ended == g->n_started) {
                ask_anew(g);
                return;
        }
        if (g->request->count_only && accepted) {
                end_now(g);
                return;
        }
        if (g->request->stream && !g->begun && accepted)
                stream_begin(g);
        if (g->n_ended == g->n_choices) {
                end_now(g);
                return;
        }
        generation_watch(g);
        if (g->begun && buffer_left(&g->x->out) > 0)
                exchange_wake(g->x);
}

static int on_io(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct generation *g = userdata;

        if (tandem_dispatch(g->tandem, 0) != TANDEM_OK && !g->failed && g->n_ended < g->n_choices &&
            (g->n_refused == 0 || g->n_refused + g->n_ended < g->n_started)) {
                const struct tandem_error *err = tandem_connection_error(g->tandem);

                g->lost = g->lost || (is_a_death(err->code) && may_go_on(g));
                note_loss(g, err);
        }
        generation_look(g);
        return 0;
}

/* What libtandem copies of the request for a choice, and sends as fast as tandemd reads. */
static size_t prompt_bytes(const struct generation_request *r, unsigned i)
{
        const struct prompt *p = &r->prompts[i / r->n % MAX_PROMPTS];
        size_t bytes = p->size + p->n_ids * sizeof(p->ids[0]);

        if (r->inputs)
                return json_string_length(json_array_get(r->inputs, i));
        for (size_t k = 0; k < r->n_messages; k++)
                bytes += r->messages[k].size;
        return bytes;
}

static int start_choice(struct generation *g, unsigned i, struct tandem_error *err)
{
        struct generation_request *r = g->request;
        struct tandem_generate_options o = r->options;
        struct choice *c = &g->choices[i];
        struct tandem_callbacks callbacks;
        struct failure f;

        if (!c->refused && exchange_hold(g->x, prompt_bytes(r, i), &f) != 0) {
                *err = (struct tandem_error){ .code = TANDEM_E_QUOTA };
                snprintf(err->message, sizeof(err->message), "%.250s", f.message);
                return err->code;
        }
        tandem_callbacks_init(&callbacks);
        callbacks.on_accepted = on_accepted;
        callbacks.on_token = on_token;
        callbacks.on_done = on_done;
        if (r->inputs) {
                const json_t *text = json_array_get(r->inputs, i);
                struct tandem_embed_options e;

                tandem_embed_options_init(&e);
                e.model = r->model;
                e.text = json_string_value(text);
                e.text_size = json_string_length(text);
                e.dimensions = r->dimensions;
                return tandem_embed(g->tandem, &e, &callbacks, c, &c->job, err);
        }
        o.model = r->model;
        o.seed += i % r->n; /* else the choices of one prompt would be the same text */
        if (r->name_the_stop) {
                c->stopper.texts = r->stops;
                c->stopper.n = r->n_stops;
        } else {
                o.stop = r->stops;
                o.n_stop = r->n_stops;
        }
        if (r->n_messages > 0) {
                o.chat = r->messages;
                o.n_chat = r->n_messages;
                o.chat_details = request_details(r);
        } else {
                const struct prompt *p = &r->prompts[i / r->n];

                o.prompt = p->text;
                o.prompt_size = p->size;
                o.prompt_ids = p->ids;
                o.n_prompt_ids = p->n_ids;
        }
        return tandem_generate(g->tandem, &o, &callbacks, c, &c->job, err);
}

static void on_connected(struct ask *ask, void *userdata)
{
        struct generation *g = userdata;
        struct tandem_error err = ask->error;
        int code = ask->code, r;

        g->connecting = NULL;
        if (code == TANDEM_OK) {
                g->tandem = steal_ptr(&ask->tandem);
                g->watched = POLLIN;
                r = tdm_loop_add_io(g->x->server->loop, tandem_fd(g->tandem), EPOLLIN, on_io, g, &g->io);
                if (r == 0)
                        code = start_choices(g, &err);
                if (r < 0) {
                        code = TANDEM_E_INTERNAL;
                        err = (struct tandem_error){ .code = code };
                        snprintf(err.message, sizeof(err.message), "cannot watch tandemd: %s", strerror(-r));
                }
        }
        if (code != TANDEM_OK && g->anew) {
                g->failed = true; /* by what the last daemon said */
                generation_look(g);
                return;
        }
        if (code != TANDEM_OK) {
                g->lost = is_a_death(code) && may_go_on(g);
                note_loss(g, &err);
                generation_look(g);
                return;
        }
        generation_watch(g);
}

void generation_start(struct exchange *x, struct generation_request *request, const struct generation_ops *ops)
{
        _cleanup_(generation_request_freep) struct generation_request *r = request;
        unsigned n_prompts = r->n_messages > 0 ? 1 : (unsigned)r->n_prompts,
                 n = r->inputs ? (unsigned)json_array_size(r->inputs) : n_prompts * r->n;
        struct generation *g;
        struct failure f;

        if (n > MAX_CHOICES && !r->inputs) {
                failure_set(&f, 400, "invalid_value", "n", "at most %u choices are made in all", MAX_CHOICES);
                exchange_fail(x, &f);
                return;
        }
        if (r->model && !model_is_a_name(r->model)) {
                struct tandem_error err = { .code = TANDEM_E_NO_MODEL };

                failure_from_tandem(&f, &err, json_get_string(r->json, "model", ""));
                exchange_fail(x, &f);
                return;
        }
        g = calloc(1, sizeof(*g) + n * sizeof(g->choices[0]));
        if (!g) {
                failure_set(&f, 503, "no_memory", NULL, "no memory for this request");
                exchange_fail(x, &f);
                return;
        }
        g->x = x;
        g->ops = ops;
        g->request = steal_ptr(&r);
        g->n_choices = n;
        g->created = time(NULL);
        g->started_ns = g->spoke_ns = tdm_now_ns();
        for (unsigned i = 0; i < n; i++) {
                g->choices[i].generation = g;
                g->choices[i].index = i;
                g->choices[i].stop = -1;
        }
        x->generation = g;
        if (backend_ask(x->server->backend, x->owner, x->label, ASK_CONNECT, NULL, NULL, 0, 0, on_connected, g,
                        &g->connecting, &f) != 0)
                exchange_fail(x, &f);
}

void generation_drained(struct generation *g)
{
        if (!g->over && (g->tandem || g->elsewhere) && g->paused)
                generation_watch(g);
}

void generation_tick(struct generation *g, uint64_t now_ns)
{
        for (unsigned i = 0; i < g->n_choices && g->elsewhere && !g->over; i++)
                if (g->choices[i].handoff)
                        handoff_tick(g->choices[i].handoff, now_ns);
        if (g->over || !g->request->stream || (!g->tandem && !g->elsewhere && !g->anew))
                return;
        if (!g->begun && g->request->model && now_ns - g->started_ns >= QUIET_NS)
                stream_begin(g);
        if (g->begun && g->ops->ping && now_ns - g->spoke_ns >= QUIET_NS - QUIET_NS / 10 &&
            buffer_left(&g->x->out) == 0) {
                g->spoke_ns = now_ns;
                g->ops->ping(g->x);
                exchange_wake(g->x);
        }
}
