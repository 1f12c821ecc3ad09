/* POST /v1/responses: one message of text as the output, nothing kept on the server. Every event carries a number. */
#include "http-gateway/format.h"
#include "http-gateway/openai.h"

struct response {
        unsigned n_events;
        struct buffer text; /* of a stream, which repeats it whole at its end */
};

static void response_free(void *state)
{
        struct response *r = state;

        if (r)
                buffer_free(&r->text);
        free(r);
}

static void add_event(struct exchange *x, const char *type, json_t *event)
{
        struct response *r = x->state;

        if (event) {
                json_object_set_new(event, "type", json_string(type));
                json_object_set_new(event, "sequence_number", json_integer(r->n_events++));
        }
        sse_add_exact(&x->out, type, event, &x->generation->request->numbers);
}

static json_t *part(const char *text, size_t size)
{
        return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", json_text(text, size), "annotations",
                         "logprobs");
}

static json_t *item(struct exchange *x, const char *status, json_t *content)
{
        return json_pack("{s:s+, s:s, s:s, s:s, s:o}", "id", "msg_", x->id + 4, "type", "message", "status", status,
                         "role", "assistant", "content", content);
}

static json_t *usage(const struct generation *g)
{
        uint64_t prompt, cached, generated;

        generation_usage(g, &prompt, &cached, &generated);
        return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)prompt,
                         "input_tokens_details", "cached_tokens", (json_int_t)cached, "output_tokens",
                         (json_int_t)generated, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                         (json_int_t)(prompt + generated));
}

/* What the request says, or what the API has where it says nothing. otherwise is taken over. */
static json_t *said(const struct generation_request *r, const char *key, json_t *otherwise)
{
        json_t *value = json_get(r->json, key);

        if (!value)
                return otherwise;
        json_decref(otherwise);
        return json_incref(value);
}

/* output and used are taken over; used NULL: not known yet. */
static json_t *response(struct exchange *x, const char *status, json_t *output, json_t *used)
{
        const struct generation *g = x->generation;
        const struct generation_request *r = g->request;
        json_t *metadata = json_get(r->json, "metadata"), *instructions = json_get(r->json, "instructions");
        json_t *most = json_get(r->json, "max_output_tokens"), *text = json_get(r->json, "text"), *json,
               *details = json_null();

        if (strcmp(status, "incomplete") == 0)
                details = json_pack("{s:s}", "reason", "max_output_tokens");
        json = json_pack("{s:s+, s:s, s:I, s:s, s:n, s:o, s:s, s:o}", "id", "resp_", x->id + 4, "object", "response",
                         "created_at", (json_int_t)g->created, "status", status, "error", "incomplete_details", details,
                         "model", json_get_string(r->json, "model", ""), "output", output);
        if (!json)
                return NULL;
        json_object_set_new(json, "usage", used ? used : json_null());
        json_object_set_new(json, "temperature", said(r, "temperature", json_integer(1)));
        json_object_set_new(json, "top_p", said(r, "top_p", json_integer(1)));
        json_object_set_new(json, "tool_choice", said(r, "tool_choice", json_string("auto")));
        json_object_set_new(json, "parallel_tool_calls", said(r, "parallel_tool_calls", json_true()));
        json_object_set_new(json, "tools", json_array());
        json_object_set_new(json, "truncation", json_string("disabled"));
        json_object_set_new(json, "store", json_false());
        json_object_set_new(json, "previous_response_id", json_null());
        json_object_set_new(json, "text",
                            json_is_object(text) && json_get(text, "format") ?
                                    json_incref(text) :
                                    json_pack("{s:{s:s}}", "format", "type", "text"));
        json_object_set_new(json, "metadata", metadata ? json_incref(metadata) : json_object());
        json_object_set_new(json, "instructions", instructions ? json_incref(instructions) : json_null());
        json_object_set_new(json, "max_output_tokens", most ? json_incref(most) : json_null());
        return json;
}

static void response_begin(struct exchange *x)
{
        add_event(x, "response.created",
                  json_pack("{s:o}", "response", response(x, "in_progress", json_array(), NULL)));
        add_event(x, "response.in_progress",
                  json_pack("{s:o}", "response", response(x, "in_progress", json_array(), NULL)));
        add_event(x, "response.output_item.added",
                  json_pack("{s:i, s:o}", "output_index", 0, "item", item(x, "in_progress", json_array())));
        add_event(x, "response.content_part.added",
                  json_pack("{s:s+, s:i, s:i, s:o}", "item_id", "msg_", x->id + 4, "output_index", 0, "content_index",
                            0, "part", part("", 0)));
}

static void response_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                          size_t size)
{
        struct response *r = x->state;

        if (!x->generation->request->stream || size == 0)
                return;
        buffer_add(&r->text, text, size);
        c->kept_bytes += size;
        add_event(x, "response.output_text.delta",
                  json_pack("{s:s+, s:i, s:i, s:o, s:[]}", "item_id", "msg_", x->id + 4, "output_index", 0,
                            "content_index", 0, "delta", json_text(text, size), "logprobs"));
}

static const char *status_of(const struct choice *c)
{
        return c->reason == TANDEM_REASON_LENGTH ? "incomplete" : "completed";
}

static void response_choice_end(struct exchange *x, struct choice *c)
{
        struct response *r = x->state;
        const char *text = r->text.data ? r->text.data : "";

        add_event(x, "response.output_text.done",
                  json_pack("{s:s+, s:i, s:i, s:o, s:[]}", "item_id", "msg_", x->id + 4, "output_index", 0,
                            "content_index", 0, "text", json_text(text, r->text.size), "logprobs"));
        add_event(x, "response.content_part.done",
                  json_pack("{s:s+, s:i, s:i, s:o}", "item_id", "msg_", x->id + 4, "output_index", 0, "content_index",
                            0, "part", part(text, r->text.size)));
        add_event(x, "response.output_item.done",
                  json_pack("{s:i, s:o}", "output_index", 0, "item",
                            item(x, status_of(c), json_pack("[o]", part(text, r->text.size)))));
}

static void response_end(struct exchange *x)
{
        struct generation *g = x->generation;
        struct choice *c = &g->choices[0];
        struct response *r = x->state;
        const struct buffer *text = g->request->stream ? &r->text : &c->text;
        json_t *content = json_pack("[o]", part(text->data ? text->data : "", text->size));
        json_t *json = response(x, status_of(c), json_pack("[o]", item(x, status_of(c), content)), usage(g));

        if (g->request->stream)
                add_event(x, c->reason == TANDEM_REASON_LENGTH ? "response.incomplete" : "response.completed",
                          json_pack("{s:o}", "response", json));
        else
                exchange_answer_exact(x, 200, json, &g->request->numbers);
}

static void response_error(struct exchange *x, const struct failure *f)
{
        json_t *json = response(x, "failed", json_array(), NULL);

        json_object_set_new(json, "error", json_pack("{s:s, s:s}", "code", f->code, "message", f->message));
        add_event(x, "error", json_pack("{s:s, s:s, s:n}", "code", f->code, "message", f->message, "param"));
        add_event(x, "response.failed", json_pack("{s:o}", "response", json));
}

static const struct generation_ops response_ops = { .content_type = SSE_CONTENT_TYPE,
                                                    .begin = response_begin,
                                                    .text = response_text,
                                                    .choice_end = response_choice_end,
                                                    .end = response_end,
                                                    .error = response_error,
                                                    .ping = openai_ping };

static int take_input(struct generation_request *r, struct failure *f)
{
        const json_t *input = json_get(r->json, "input"), *instructions = json_get(r->json, "instructions");

        if (instructions && request_add_message(r, "system", instructions, "", "instructions", f) != 0)
                return f->status;
        if (json_is_string(input))
                return request_add_message(r, "user", input, "", "input", f);
        if (!json_is_array(input))
                return failure_set(f, 400, input ? "invalid_type" : "missing_required_parameter", "input",
                                   "'input' has to be a text or an array of messages");
        for (size_t i = 0; i < json_array_size(input); i++) {
                const char *type = json_get_string(json_array_get(input, i), "type", "message");

                if (strcmp(type, "message") != 0)
                        return failure_set(f, 400, "unsupported_parameter", "input",
                                           "'input[%zu]' is of type '%.40s'; only messages are taken", i, type);
        }
        if (request_take_messages(r, input, "input", &params_message, f) != 0)
                return f->status;
        return request_check_messages(r, "input", f);
}

static int take_response(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 || take_input(r, f) != 0 ||
            request_take_speculation(r, r->json, "", f) != 0 || request_take_nested_format(r, "text", f) != 0)
                return f->status;
        openai_take_sampling(r);
        r->options.max_tokens = (uint32_t)json_get_integer(r->json, "max_output_tokens", 0);
        return 0;
}

static void start_response(struct exchange *x, struct generation_request *r)
{
        struct failure f;

        x->state = calloc(1, sizeof(struct response));
        x->free_state = response_free;
        if (x->state) {
                generation_start(x, r, &response_ops);
                return;
        }
        generation_request_free(r);
        failure_set(&f, 503, "no_memory", NULL, "no memory for this request");
        exchange_fail(x, &f);
}

const struct reader openai_responses_reader = { &params_responses, take_response, start_response };

void openai_responses(struct exchange *x)
{
        exchange_read(x, &openai_responses_reader);
}
