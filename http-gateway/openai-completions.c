/* POST /v1/completions: raw text, or ids, goes on; no template is applied. */
#include "http-gateway/format.h"
#include "http-gateway/openai.h"

#include <math.h>

#define DEFAULT_MAX_TOKENS 16 /* as OpenAI documents it */

/* What a choice of a completion has shown so far; log-probabilities come as columns, with offsets into the text. */
struct column {
        size_t offset; /* in characters */
};

static const char *const column_names[MAX_COLUMNS] = { "tokens", "token_logprobs", "top_logprobs", "text_offset" };

static size_t n_characters(const char *text, size_t size)
{
        size_t n = 0;

        for (size_t i = 0; i < size; i++)
                n += ((unsigned char)text[i] & 0xc0) != 0x80;
        return n;
}

static json_t *columns(const struct generation_request *r)
{
        json_t *top = r->options.top_logprobs > 0 ? json_array() : json_null();

        return json_pack("{s:[], s:[], s:o, s:[]}", "tokens", "token_logprobs", "top_logprobs", top, "text_offset");
}

static void add_column(json_t *to, const struct tandem_token *token, size_t offset)
{
        json_t *tops = json_object_get(to, "top_logprobs"), *top = json_is_array(tops) ? json_object() : NULL;

        json_array_append_new(json_object_get(to, "tokens"), json_text(token->piece, token->piece_size));
        json_array_append_new(json_object_get(to, "token_logprobs"), json_real(openai_logprob(token->logprob)));
        for (size_t i = 0; i < token->n_top && top; i++) {
                json_t *text = json_text(token->top[i].text, token->top[i].size);

                json_object_set_new(top, json_string_value(text), json_real(openai_logprob(token->top[i].logprob)));
                json_decref(text);
        }
        if (top)
                json_array_append_new(tops, top);
        json_array_append_new(json_object_get(to, "text_offset"), json_integer((json_int_t)offset));
}

/* One token's columns to those of an answer that is not a stream. */
static void keep_columns(struct choice *c, json_t *columns)
{
        for (unsigned i = 0; i < MAX_COLUMNS; i++) {
                json_t *value = json_array_get(json_object_get(columns, column_names[i]), 0);

                if (value && c->columns[i].size > 0)
                        buffer_add_text(&c->columns[i], ",");
                if (value)
                        json_write(&c->columns[i], json_incref(value));
        }
        json_decref(columns);
}

static void write_columns(struct buffer *out, const struct generation_request *r, struct choice *c)
{
        for (unsigned i = 0; i < MAX_COLUMNS; i++) {
                bool none = r->options.top_logprobs == 0 && strcmp(column_names[i], "top_logprobs") == 0;

                buffer_printf(out, "%s\"%s\":%s", i == 0 ? "{" : ",", column_names[i], none ? "null" : "[");
                buffer_move(out, &c->columns[i]);
                buffer_add_text(out, none ? "" : "]");
        }
        buffer_add_text(out, "}");
}

/* choices NULL: they are added as text. */
static json_t *chunk(struct exchange *x, json_t *choices, json_t *usage)
{
        const struct generation *g = x->generation;
        json_t *json =
                json_pack("{s:s+, s:s, s:I, s:s, s:s, s:o*}", "id", "cmpl-", x->id + 4, "object", "text_completion",
                          "created", (json_int_t)g->created, "model", json_get_string(g->request->json, "model", ""),
                          "system_fingerprint", "tandem", "choices", choices);

        if (json && (g->request->with_usage || !g->request->stream))
                json_object_set_new(json, "usage", usage ? usage : json_null());
        return json;
}

static json_t *text_chunk(struct exchange *x, const struct choice *c, const char *text, size_t size, json_t *logprobs)
{
        return chunk(x,
                     json_pack("[{s:i, s:o, s:o, s:n}]", "index", (int)c->index, "text", json_text(text, size),
                               "logprobs", logprobs, "finish_reason"),
                     NULL);
}

static void completion_begin(struct exchange *x)
{
}

static void completion_progress(struct exchange *x, struct choice *c)
{
        sse_add(&x->out, NULL, openai_with_progress(text_chunk(x, c, "", 0, json_null()), c));
}

/* `echo`: the prompt in front of what a choice says first. It counts with what is kept for the answer. */
static void choice_echo(struct exchange *x, struct choice *c)
{
        const struct generation_request *r = x->generation->request;
        const struct prompt *p = &r->prompts[c->index / r->n];

        if (c->kept_bytes > 0 || !json_get_bool(r->json, "echo", false))
                return;
        c->kept_bytes = p->size;
        if (r->stream)
                sse_add(&x->out, NULL, text_chunk(x, c, p->text, p->size, json_null()));
}

/* The text of a whole answer. */
static json_t *choice_text(const struct generation *g, unsigned i)
{
        const struct choice *c = &g->choices[i];
        const struct prompt *p = &g->request->prompts[i / g->request->n];
        _cleanup_(buffer_free) struct buffer text = { 0 };

        if (!json_get_bool(g->request->json, "echo", false))
                return json_text(c->text.data, c->text.size);
        buffer_add(&text, p->text, p->size);
        buffer_add(&text, c->text.data, c->text.size);
        return text.failed ? NULL : json_text(text.data, text.size);
}

static void completion_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                            size_t size)
{
        const struct generation_request *r = x->generation->request;
        json_t *logprobs = NULL;

        choice_echo(x, c);
        if (r->with_logprobs && token) {
                if (!c->state)
                        c->state = calloc(1, sizeof(struct column));
                logprobs = columns(r);
                if (c->state && logprobs) {
                        struct column *column = c->state;

                        add_column(logprobs, token, column->offset);
                        column->offset += n_characters(token->piece, token->piece_size);
                }
                if (!r->stream)
                        keep_columns(c, logprobs);
        }
        if (!r->stream || (size == 0 && !logprobs))
                return;
        if (logprobs)
                sse_add(&x->out, NULL, text_chunk(x, c, text, size, logprobs));
        else
                openai_add_text(x, c, text_chunk, text, size);
}

static void completion_choice_end(struct exchange *x, struct choice *c)
{
        choice_echo(x, c);
        sse_add(&x->out, NULL,
                chunk(x,
                      json_pack("[{s:i, s:s, s:n, s:s}]", "index", (int)c->index, "text", "", "logprobs",
                                "finish_reason", openai_finish_reason(c)),
                      NULL));
}

static void completion_end(struct exchange *x)
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
        json_write_open(&out, chunk(x, NULL, openai_usage(g)));
        for (unsigned i = 0; i < g->n_choices; i++) {
                struct choice *c = &g->choices[i];

                buffer_add_text(&out, i == 0 ? ",\"choices\":[" : ",");
                json_write_open(&out, json_pack("{s:i, s:o, s:s}", "index", (int)i, "text", choice_text(g, i),
                                                "finish_reason", openai_finish_reason(c)));
                buffer_add_text(&out, ",\"logprobs\":");
                if (r->with_logprobs)
                        write_columns(&out, r, c);
                buffer_add_text(&out, r->with_logprobs ? "}" : "null}");
        }
        buffer_add_text(&out, "]}");
        exchange_answer_text(x, 200, "application/json", &out);
}

static const struct generation_ops completion_ops = { .content_type = SSE_CONTENT_TYPE,
                                                      .begin = completion_begin,
                                                      .text = completion_text,
                                                      .choice_end = completion_choice_end,
                                                      .end = completion_end,
                                                      .error = openai_stream_error,
                                                      .ping = openai_ping,
                                                      .progress = completion_progress,
                                                      .recovering = openai_recovering };

static int take_ids(struct prompt *p, const json_t *ids, struct failure *f)
{
        size_t n = json_array_size(ids);

        p->ids = calloc(n, sizeof(*p->ids));
        if (!p->ids)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        for (size_t i = 0; i < n; i++) {
                const json_t *id = json_array_get(ids, i);

                if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
                        return failure_set(f, 400, "invalid_value", "prompt", "'prompt' has an id that is none");
                p->ids[i] = (uint32_t)json_integer_value(id);
        }
        p->n_ids = n;
        return 0;
}

static int take_one(struct generation_request *r, const json_t *value, struct failure *f)
{
        struct prompt *p = &r->prompts[r->n_prompts++];

        if (json_is_array(value) && json_array_size(value) > 0)
                return take_ids(p, value, f);
        if (!json_is_string(value) || json_string_length(value) == 0)
                return failure_set(
                        f, 400, "invalid_value", "prompt",
                        "'prompt' has to be a text, an array of ids, or an array of these; none of them empty");
        p->text = json_string_value(value);
        p->size = json_string_length(value);
        return 0;
}

static int take_prompts(struct generation_request *r, struct failure *f)
{
        const json_t *prompt = json_get(r->json, "prompt");

        if (!prompt)
                return failure_set(f, 400, "missing_required_parameter", "prompt", "'prompt' is missing");
        if (!json_is_array(prompt) || json_is_integer(json_array_get(prompt, 0)))
                return take_one(r, prompt, f);
        if (json_array_size(prompt) == 0 || json_array_size(prompt) > MAX_PROMPTS)
                return failure_set(f, 400, "invalid_value", "prompt", "'prompt' has to hold 1 to %u prompts",
                                   MAX_PROMPTS);
        for (size_t i = 0; i < json_array_size(prompt); i++)
                if (take_one(r, json_array_get(prompt, i), f) != 0)
                        return f->status;
        return 0;
}

static int take_completion(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 || take_prompts(r, f) != 0 || request_take_response_format(r, f) != 0 ||
            request_take_grammar(r, f) != 0 || request_take_logit_bias(r, f) != 0 ||
            request_take_speculation(r, r->json, "", f) != 0 ||
            request_take_stops(r, json_get(r->json, "stop"), "stop", f) != 0 || request_take_stream_options(r, f) != 0)
                return f->status;
        openai_take_sampling(r);
        r->with_logprobs = json_is_integer(json_get(r->json, "logprobs"));
        for (size_t i = 0; i < r->n_prompts && json_get_bool(r->json, "echo", false); i++)
                if (r->with_logprobs || !r->prompts[i].text)
                        return failure_set(f, 400, "unsupported_parameter", "echo",
                                           "'echo' repeats texts alone: not ids, and not with 'logprobs'");
        r->options.top_logprobs = (uint32_t)json_get_integer(r->json, "logprobs", 0);
        r->options.max_tokens = DEFAULT_MAX_TOKENS;
        return openai_take_limit(r, "max_tokens", f);
}

static void start_completion(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &completion_ops);
}

const struct reader openai_completions_reader = { &params_completions, take_completion, start_completion };

void openai_completions(struct exchange *x)
{
        exchange_read(x, &openai_completions_reader);
}
