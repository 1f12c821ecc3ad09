/* POST /v1/chat/completions, and what the other endpoints of OpenAI take from here. */
#include "http-gateway/format.h"
#include "http-gateway/openai.h"
#include "http-gateway/thinking.h"

#include <math.h>

const char *openai_finish_reason(const struct choice *c)
{
        return c->reason == TANDEM_REASON_LENGTH ? "length" : c->calls.n > 0 ? "tool_calls" : "stop";
}

json_t *openai_usage(const struct generation *g)
{
        uint64_t prompt, cached, generated, drafted = 0, accepted = 0;
        json_t *json, *details;

        generation_usage(g, &prompt, &cached, &generated);
        for (unsigned i = 0; i < g->n_choices; i++) {
                drafted += g->choices[i].drafted;
                accepted += g->choices[i].accepted_guesses;
        }
        json = json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                         (json_int_t)generated, "total_tokens", (json_int_t)(prompt + generated),
                         "prompt_tokens_details", "cached_tokens", (json_int_t)cached, "completion_tokens_details",
                         "reasoning_tokens", (json_int_t)generation_thinking_tokens(g));
        details = json_object_get(json, "completion_tokens_details");
        if (g->request->with_guesses && drafted > 0) {
                json_object_set_new(details, "accepted_prediction_tokens", json_integer((json_int_t)accepted));
                json_object_set_new(details, "rejected_prediction_tokens",
                                    json_integer((json_int_t)(drafted - accepted)));
        }
        return json;
}

void openai_add_text(struct exchange *x, struct choice *c, openai_chunk_fn *chunk, const char *text, size_t size)
{
        if (c->form.before.size == 0)
                sse_form_make(&c->form, NULL, chunk(x, c, SSE_FORM_TEXT, strlen(SSE_FORM_TEXT), json_null()));
        sse_form_add(&x->out, &c->form, text, size);
}

void openai_stream_error(struct exchange *x, const struct failure *f)
{
        sse_add(&x->out, NULL, failure_json(f, DIALECT_OPENAI, x->id));
}

void openai_ping(struct exchange *x)
{
        sse_add_comment(&x->out, "wait");
}

void openai_recovering(struct exchange *x)
{
        sse_add_comment(&x->out, "recovering");
}

json_t *openai_with_progress(json_t *chunk, const struct choice *c)
{
        const struct prompt_progress *p = &c->progress;
        uint64_t ms = (tdm_now_ns() - p->began_ns) / TDM_NSEC_PER_MSEC;

        json_object_set_new(chunk, "prompt_progress",
                            json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)p->total, "cache",
                                      (json_int_t)p->cached, "processed", (json_int_t)p->processed, "time_ms",
                                      (json_int_t)ms));
        return chunk;
}

/* JSON has no infinity. */
double openai_logprob(float logprob)
{
        return isfinite(logprob) ? (double)logprob : -9999.0;
}

void openai_take_sampling(struct generation_request *r)
{
        double penalty = json_get_number(r->json, "repetition_penalty", json_get_number(r->json, "repeat_penalty", 1));

        r->options.temperature = 1;
        r->options.top_p = 1;
        r->options.top_k = 0;
        r->options.min_p = 0;
        r->options.repeat_penalty = (float)penalty;
        request_take_sampling(r, r->json);
        r->n = (unsigned)json_get_integer(r->json, "n", 1);
}

int openai_take_limit(struct generation_request *r, const char *name, struct failure *f)
{
        json_int_t limit = json_get_integer(r->json, name, r->options.max_tokens);

        if (json_get(r->json, name) && limit == 0)
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be 1 or more, or -1: no limit", name);
        r->options.max_tokens = (uint32_t)TDM_MAX(limit, (json_int_t)0);
        return 0;
}

/* ---- chunks ---- */

static json_t *chunk(struct exchange *x, json_t *choices, json_t *usage)
{
        const struct generation *g = x->generation;
        json_t *json = json_pack("{s:s+, s:s, s:I, s:s, s:s, s:o}", "id", "chatcmpl-", x->id + 4, "object",
                                 "chat.completion.chunk", "created", (json_int_t)g->created, "model",
                                 json_get_string(g->request->json, "model", ""), "system_fingerprint", "tandem",
                                 "choices", choices);

        if (g->request->with_usage && json)
                json_object_set_new(json, "usage", usage ? usage : json_null());
        return json;
}

static json_t *one_logprob(const char *text, size_t size, float logprob)
{
        json_t *bytes = json_array();

        for (size_t i = 0; i < size; i++)
                json_array_append_new(bytes, json_integer((unsigned char)text[i]));
        return json_pack("{s:o, s:f, s:o}", "token", json_text(text, size), "logprob", openai_logprob(logprob), "bytes",
                         bytes);
}

static json_t *token_logprob(const struct tandem_token *token)
{
        json_t *one = one_logprob(token->piece, token->piece_size, token->logprob), *top = json_array();

        for (size_t i = 0; i < token->n_top; i++)
                json_array_append_new(top, one_logprob(token->top[i].text, token->top[i].size, token->top[i].logprob));
        json_object_set_new(one, "top_logprobs", top);
        return one;
}

static void chat_begin(struct exchange *x)
{
        for (unsigned i = 0; i < x->generation->n_choices; i++)
                sse_add(&x->out, NULL,
                        chunk(x,
                              json_pack("[{s:i, s:{s:s, s:s, s:n}, s:n, s:n}]", "index", (int)i, "delta", "role",
                                        "assistant", "content", "", "refusal", "logprobs", "finish_reason"),
                              NULL));
}

static json_t *text_chunk(struct exchange *x, const struct choice *c, const char *text, size_t size, json_t *logprobs)
{
        return chunk(x,
                     json_pack("[{s:i, s:{s:o}, s:o, s:n}]", "index", (int)c->index, "delta", "content",
                               json_text(text, size), "logprobs", logprobs, "finish_reason"),
                     NULL);
}

static void chat_progress(struct exchange *x, struct choice *c)
{
        json_t *choices = json_pack("[{s:i, s:{s:s, s:n}, s:n, s:n}]", "index", (int)c->index, "delta", "role",
                                    "assistant", "content", "logprobs", "finish_reason");

        sse_add(&x->out, NULL, openai_with_progress(chunk(x, choices, NULL), c));
}

static void chat_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                      size_t size)
{
        const struct generation_request *r = x->generation->request;
        json_t *logprobs = NULL;

        if (r->with_logprobs && token) {
                json_t *entry = token_logprob(token);

                if (r->stream) {
                        logprobs = json_pack("{s:[o], s:n}", "content", entry, "refusal");
                } else {
                        if (c->columns[0].size > 0)
                                buffer_add_text(&c->columns[0], ",");
                        json_write(&c->columns[0], entry);
                }
        }
        if (!r->stream)
                return;
        if (size == 0 && !logprobs)
                return; /* the middle of a character */
        if (logprobs)
                sse_add(&x->out, NULL, text_chunk(x, c, text, size, logprobs));
        else
                openai_add_text(x, c, text_chunk, text, size);
}

static void chat_calls(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        json_t *delta = json_object(), *calls = json_array();

        for (size_t i = 0; i < token->n_calls; i++) {
                const struct tandem_call_delta *d = token->calls[i];
                json_t *arguments = json_text(d->arguments, d->arguments_size);

                json_array_append_new(
                        calls,
                        d->name[0] ?
                                json_pack("{s:i, s:s, s:s, s:{s:s, s:o}}", "index", (int)d->call, "id", d->id, "type",
                                          "function", "function", "name", d->name, "arguments", arguments) :
                                json_pack("{s:i, s:{s:o}}", "index", (int)d->call, "function", "arguments", arguments));
        }
        if (token->thinking_size > 0)
                json_object_set_new(delta, "reasoning_content", json_text(token->thinking, token->thinking_size));
        if (json_array_size(calls) > 0)
                json_object_set(delta, "tool_calls", calls);
        json_decref(calls);
        sse_add(&x->out, NULL,
                chunk(x,
                      json_pack("[{s:i, s:o, s:n, s:n}]", "index", (int)c->index, "delta", delta, "logprobs",
                                "finish_reason"),
                      NULL));
}

/* A message of a whole answer. content is null where there are calls alone. */
static json_t *chat_message(const struct choice *c)
{
        bool empty = c->text.size == 0 && c->calls.n > 0;
        json_t *message =
                json_pack("{s:s, s:o, s:n, s:[]}", "role", "assistant", "content",
                          empty ? json_null() : json_text(c->text.data, c->text.size), "refusal", "annotations");
        json_t *calls = json_array();

        for (size_t i = 0; i < c->calls.n; i++) {
                const struct choice_call *call = &c->calls.items[i];

                json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", call->id, "type", "function",
                                                       "function", "name", call->name, "arguments",
                                                       json_text(call->arguments.data, call->arguments.size)));
        }
        if (c->calls.n > 0)
                json_object_set(message, "tool_calls", calls);
        json_decref(calls);
        if (c->thinking.size > 0)
                json_object_set_new(message, "reasoning_content", json_text(c->thinking.data, c->thinking.size));
        return message;
}

static void chat_choice_end(struct exchange *x, struct choice *c)
{
        sse_add(&x->out, NULL,
                chunk(x,
                      json_pack("[{s:i, s:{}, s:n, s:s}]", "index", (int)c->index, "delta", "logprobs", "finish_reason",
                                openai_finish_reason(c)),
                      NULL));
}

static void chat_end(struct exchange *x)
{
        struct generation *g = x->generation;
        const struct generation_request *r = g->request;
        struct buffer out = { 0 };

        if (r->stream) {
                if (r->with_usage)
                        sse_add(&x->out, NULL, chunk(x, json_array(), openai_usage(g)));
                sse_add_text(&x->out, "[DONE]");
                return;
        }
        json_write_open(&out, json_pack("{s:s+, s:s, s:I, s:s, s:s, s:s, s:o}", "id", "chatcmpl-", x->id + 4, "object",
                                        "chat.completion", "created", (json_int_t)g->created, "model",
                                        json_get_string(r->json, "model", ""), "service_tier", "default",
                                        "system_fingerprint", "tandem", "usage", openai_usage(g)));
        for (unsigned i = 0; i < g->n_choices; i++) {
                struct choice *c = &g->choices[i];

                buffer_add_text(&out, i == 0 ? ",\"choices\":[" : ",");
                json_write_open(&out, json_pack("{s:i, s:o, s:s}", "index", (int)i, "message", chat_message(c),
                                                "finish_reason", openai_finish_reason(c)));
                buffer_add_text(&out, r->with_logprobs ? ",\"logprobs\":{\"refusal\":null,\"content\":[" :
                                                         ",\"logprobs\":null}");
                if (r->with_logprobs) {
                        buffer_move(&out, &c->columns[0]);
                        buffer_add_text(&out, "]}}");
                }
        }
        buffer_add_text(&out, "]}");
        exchange_answer_text(x, 200, "application/json", &out);
}

static const struct generation_ops chat_ops = { .content_type = SSE_CONTENT_TYPE,
                                                .begin = chat_begin,
                                                .text = chat_text,
                                                .calls = chat_calls,
                                                .choice_end = chat_choice_end,
                                                .end = chat_end,
                                                .error = openai_stream_error,
                                                .ping = openai_ping,
                                                .progress = chat_progress,
                                                .recovering = openai_recovering };

static int take_chat_request(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 ||
            request_take_messages(r, json_get(r->json, "messages"), "messages", &params_message, f) != 0 ||
            request_check_messages(r, "messages", f) != 0 || request_take_continuation(r, f) != 0 ||
            request_take_response_format(r, f) != 0 || request_take_grammar(r, f) != 0 ||
            request_take_logit_bias(r, f) != 0 || request_take_speculation(r, r->json, "", f) != 0 ||
            request_take_openai_tools(r, f) != 0 || request_take_chat_thinking(r, f) != 0 ||
            request_take_template_kwargs(r, f) != 0 ||
            request_take_stops(r, json_get(r->json, "stop"), "stop", f) != 0 || request_take_stream_options(r, f) != 0)
                return f->status;
        openai_take_sampling(r);
        r->with_logprobs = json_get_bool(r->json, "logprobs", false);
        r->options.top_logprobs = (uint32_t)json_get_integer(r->json, "top_logprobs", 0);
        if (r->options.top_logprobs > 0 && !r->with_logprobs)
                return failure_set(f, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
        r->options.max_tokens = 0;
        return openai_take_limit(r, "max_tokens", f) != 0 ? f->status :
                                                            openai_take_limit(r, "max_completion_tokens", f);
}

static void start_chat(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &chat_ops);
}

const struct reader openai_chat_reader = { &params_chat, take_chat_request, start_chat };

void openai_chat(struct exchange *x)
{
        exchange_read(x, &openai_chat_reader);
}
