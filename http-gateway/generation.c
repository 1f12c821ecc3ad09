/* A generation is the jobs of one request for text, from the request until its answer is complete (generation.h).
 *
 * What its jobs tell is noted in generation-choice.c. generation_look() does what follows from it, after
 * tandem_dispatch(). */
#include "http-gateway/generation-private.h"

#include <poll.h>
#include <sys/epoll.h>
#include "common/log.h"
#include "http-gateway/backend.h"
#include "http-gateway/base64.h"
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
                free(c->pieces);
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

void generation_note_failure(struct generation *g, const struct tandem_error *err)
{
        if (g->failed)
                return;
        g->failed = true;
        failure_from_tandem(&g->failure, err, json_get_string(g->request->json, "model", ""));
        failure_name_thinking(&g->failure, g->request);
        failure_name_picture(&g->failure, g->request);
}

/* Whether a peer can make the rest of it. */
bool generation_may_go_on(const struct generation *g)
{
        const struct generation_request *r = g->request;

        return g->x->server->config->n_peers > 0 && !r->taken_over && !r->inputs && !r->count_only;
}

/* The daemon has gone, or is about to, and not for something that is wrong with the request. */
bool generation_code_is_a_death(int code)
{
        return code == TANDEM_E_DAEMON_LOST || code == TANDEM_E_NO_DAEMON || code == TANDEM_E_DRAINING;
}

/* A loss that a peer makes up for is no failure yet, but what is said if none can. */
void generation_note_loss(struct generation *g, const struct tandem_error *err)
{
        if (g->lost && g->failure.status == 0)
                failure_from_tandem(&g->failure, err, json_get_string(g->request->json, "model", ""));
        if (!g->lost)
                generation_note_failure(g, err);
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

void generation_begin_stream(struct generation *g)
{
        g->begun = true;
        g->spoke_ns = tdm_now_ns();
        g->ops->begin(g->x);
        for (unsigned i = 0; i < g->n_choices; i++)
                if (g->choices[i].progress.runs)
                        g->ops->progress(g->x, &g->choices[i]);
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
        choice_take_token(c, &token);
        if (c->cut)
                choice_take_done(c, &(struct tandem_result){ .reason = TANDEM_REASON_CANCELLED,
                                                             .prompt_tokens = c->prompt_tokens,
                                                             .tail = "" });
}

/* A peer reads most of what the client has, draws the rest of it again and goes on. An older one draws all. What comes
 * again is compared, what is new goes to the client. */
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
                if (line->drawn > 0 && (line->drawn != c->n_given || c->n_again > 0)) {
                        handoff_next(c->handoff, "it reads other tokens than it was given");
                        return;
                }
                c->n_again += line->drawn;
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
                choice_take_done(c, &result);
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

static uint64_t pictures_json_bytes(const struct request_pictures *p)
{
        return BASE64_BYTES(p->size_bytes) + 4 * p->n;
}

/* Made once for all choices, and charged before it is. False: the owner's share has no room for it, or there is no
 * memory. */
static bool pictures_for_peers(struct generation *g, json_t **ret)
{
        const struct request_pictures *p = &g->request->pictures;
        struct failure f;

        if (p->n == 0)
                return true;
        if (exchange_hold(g->x, pictures_json_bytes(p), &f) != 0)
                return false;
        *ret = request_pictures_json(p);
        return *ret != NULL;
}

/* Continues unfinished choices on a peer, from the text that the client has. */
static void go_on_elsewhere(struct generation *g)
{
        json_t *pictures = NULL;
        bool made = false;

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
                        choice_take_done(c, &(struct tandem_result){ .reason = TANDEM_REASON_CANCELLED,
                                                                     .prompt_tokens = c->prompt_tokens,
                                                                     .tail = "" });
                        continue;
                }
                if (!made && !pictures_for_peers(g, &pictures)) {
                        g->failed = true;
                        break;
                }
                made = true;
                request = takeover_request(g->request, i, pictures);
                if (takeover_give_drawn(c, request) < 0)
                        json_decref(steal_ptr(&request));
                if (!request || handoff_new(&c->handoff, g->x, c, request, on_peer) < 0)
                        g->failed = true;
        }
        if (pictures) {
                json_decref(pictures);
                exchange_release(g->x, pictures_json_bytes(&g->request->pictures));
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
                generation_note_failure(g, &err);
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
                generation_begin_stream(g);
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

                g->lost = g->lost || (generation_code_is_a_death(err->code) && generation_may_go_on(g));
                generation_note_loss(g, err);
        }
        generation_look(g);
        return 0;
}

/* The first or the second text of an input, which is a text or an array of texts. NULL: it has none. */
static const json_t *input_text(const struct generation_request *r, unsigned i, size_t part)
{
        const json_t *input = json_array_get(r->inputs, i);

        return json_is_array(input) ? json_array_get(input, part) : part == 0 ? input : NULL;
}

/* What libtandem copies of the request for a choice, and sends as fast as tandemd reads. */
static size_t prompt_bytes(const struct generation_request *r, unsigned i)
{
        const struct prompt *p = &r->prompts[i / r->n % MAX_PROMPTS];
        size_t bytes = p->size + p->n_ids * sizeof(p->ids[0]) + r->pictures.size_bytes;

        if (r->inputs)
                return json_string_length(input_text(r, i, 0)) + json_string_length(input_text(r, i, 1)) +
                       json_string_length(r->query);
        for (size_t k = 0; k < r->n_messages; k++)
                bytes += r->messages[k].size;
        return bytes;
}

static int start_classes(struct generation *g, struct choice *c, const struct tandem_callbacks *callbacks,
                         struct tandem_error *err)
{
        const struct generation_request *r = g->request;
        const json_t *text = input_text(r, c->index, 0), *second = input_text(r, c->index, 1);
        struct tandem_classify_options o;

        tandem_classify_options_init(&o);
        o.model = r->model;
        o.text = json_string_value(text);
        o.text_size = json_string_length(text);
        o.second = json_string_value(second);
        o.second_size = json_string_length(second);
        o.raw = r->raw;
        return tandem_classify(g->tandem, &o, callbacks, c, &c->job, err);
}

/* The vector of a text, or how well it answers the query, or of which class it is. */
static int start_input(struct generation *g, struct choice *c, const struct tandem_callbacks *callbacks,
                       struct tandem_error *err)
{
        const struct generation_request *r = g->request;
        const json_t *text = json_array_get(r->inputs, c->index);
        struct tandem_rerank_options k;
        struct tandem_embed_options e;

        if (r->classifies)
                return start_classes(g, c, callbacks, err);
        if (r->query) {
                tandem_rerank_options_init(&k);
                k.model = r->model;
                k.query = json_string_value(r->query);
                k.query_size = json_string_length(r->query);
                k.document = json_string_value(text);
                k.document_size = json_string_length(text);
                return tandem_rerank(g->tandem, &k, callbacks, c, &c->job, err);
        }
        tandem_embed_options_init(&e);
        e.model = r->model;
        e.text = json_string_value(text);
        e.text_size = json_string_length(text);
        e.dimensions = r->dimensions;
        return tandem_embed(g->tandem, &e, callbacks, c, &c->job, err);
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
        generation_listen(&callbacks);
        if (r->inputs)
                return start_input(g, c, &callbacks, err);
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
        o.pictures = r->pictures.items;
        o.n_pictures = r->pictures.n;
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
                /* A daemon that is lost is waited for where its socket stays. Where that is gone, peers go on. */
                tandem_set_reattach(g->tandem, generation_may_go_on(g) ? 1 : -1);
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
                g->lost = generation_code_is_a_death(code) && generation_may_go_on(g);
                generation_note_loss(g, &err);
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

void generation_forgive(struct generation *g, uint64_t late_ns, uint64_t now_ns)
{
        for (unsigned i = 0; i < g->n_choices; i++)
                if (g->choices[i].handoff)
                        handoff_forgive(g->choices[i].handoff, late_ns, now_ns);
}

void generation_tick(struct generation *g, uint64_t now_ns)
{
        for (unsigned i = 0; i < g->n_choices && g->elsewhere && !g->over; i++)
                if (g->choices[i].handoff)
                        handoff_tick(g->choices[i].handoff, now_ns);
        if (g->over || !g->request->stream || (!g->tandem && !g->elsewhere && !g->anew))
                return;
        if (!g->begun && g->request->model && now_ns - g->started_ns >= QUIET_NS)
                generation_begin_stream(g);
        if (g->begun && g->ops->ping && now_ns - g->spoke_ns >= QUIET_NS - QUIET_NS / 10 &&
            buffer_left(&g->x->out) == 0) {
                g->spoke_ns = now_ns;
                g->ops->ping(g->x);
                exchange_wake(g->x);
        }
}
