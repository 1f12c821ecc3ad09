/* POST /v1/responses: one message of text as the output, behind an item of thoughts where the model has them. Nothing
 * is kept on the server. Every event carries a number. */
#include "http-gateway/format.h"
#include "http-gateway/openai.h"
#include "http-gateway/thinking.h"

struct response {
        unsigned n_events;
        int index; /* of the item that is open, or comes next */
        enum item { NO_ITEM, REASONING_ITEM, MESSAGE_ITEM } open;
        bool has_thoughts;
        struct buffer text, thinking; /* of a stream, which repeats both whole */
};

static void response_free(void *state)
{
        struct response *r = state;

        if (r) {
                buffer_free(&r->text);
                buffer_free(&r->thinking);
        }
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

static json_t *part(enum item kind, const struct buffer *text)
{
        json_t *value = json_text(text->data ? text->data : "", text->size);

        if (kind == REASONING_ITEM)
                return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", value);
        return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", value, "annotations", "logprobs");
}

static const char *item_prefix(enum item kind)
{
        return kind == REASONING_ITEM ? "rs_" : "msg_";
}

/* content is taken over. */
static json_t *item(struct exchange *x, enum item kind, const char *status, json_t *content)
{
        if (kind == REASONING_ITEM)
                return json_pack("{s:s+, s:s, s:s, s:[], s:o}", "id", item_prefix(kind), x->id + 4, "type", "reasoning",
                                 "status", status, "summary", "content", content);
        return json_pack("{s:s+, s:s, s:s, s:s, s:o}", "id", item_prefix(kind), x->id + 4, "type", "message", "status",
                         status, "role", "assistant", "content", content);
}

static json_t *usage(const struct generation *g)
{
        uint64_t prompt, cached, generated;

        generation_usage(g, &prompt, &cached, &generated);
        return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)prompt,
                         "input_tokens_details", "cached_tokens", (json_int_t)cached, "output_tokens",
                         (json_int_t)generated, "output_tokens_details", "reasoning_tokens",
                         (json_int_t)generation_thinking_tokens(g), "total_tokens", (json_int_t)(prompt + generated));
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
               *details = json_null(), *reasoning = json_get(r->json, "reasoning");

        if (strcmp(status, "incomplete") == 0)
                details = json_pack("{s:s}", "reason", "max_output_tokens");
        json = json_pack("{s:s+, s:s, s:I, s:s, s:n, s:o, s:s, s:o}", "id", "resp_", x->id + 4, "object", "response",
                         "created_at", (json_int_t)g->created, "status", status, "error", "incomplete_details", details,
                         "model", json_get_string(r->json, "model", ""), "output", output);
        if (!json)
                return NULL;
        json_object_set_new(json, "usage", used ? used : json_null());
        /* What the request leaves open, the model's file may decide in the daemon, which does not tell. */
        json_object_set_new(json, "temperature", said(r, "temperature", json_null()));
        json_object_set_new(json, "top_p", said(r, "top_p", json_null()));
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
        json_object_set_new(json, "reasoning",
                            json_is_object(reasoning) ? json_incref(reasoning) :
                                                        json_pack("{s:n, s:n}", "effort", "summary"));
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
}

/* An event of the part of text in the item that is open. */
static void add_part_event(struct exchange *x, const char *type, const char *key, json_t *value)
{
        struct response *r = x->state;
        json_t *event = json_pack("{s:s+, s:i, s:i, s:o}", "item_id", item_prefix(r->open), x->id + 4, "output_index",
                                  r->index, "content_index", 0, key, value);

        if (event && r->open == MESSAGE_ITEM && strcmp(key, "part") != 0)
                json_object_set_new(event, "logprobs", json_array());
        add_event(x, type, event);
}

static void open_item(struct exchange *x, enum item kind)
{
        static const struct buffer nothing = { 0 };
        struct response *r = x->state;

        r->open = kind;
        add_event(
                x, "response.output_item.added",
                json_pack("{s:i, s:o}", "output_index", r->index, "item", item(x, kind, "in_progress", json_array())));
        add_part_event(x, "response.content_part.added", "part", part(kind, &nothing));
}

static void close_item(struct exchange *x, const char *status)
{
        struct response *r = x->state;
        const struct buffer *text = r->open == REASONING_ITEM ? &r->thinking : &r->text;

        if (r->open == NO_ITEM)
                return;
        add_part_event(x, r->open == REASONING_ITEM ? "response.reasoning_text.done" : "response.output_text.done",
                       "text", json_text(text->data ? text->data : "", text->size));
        add_part_event(x, "response.content_part.done", "part", part(r->open, text));
        add_event(x, "response.output_item.done",
                  json_pack("{s:i, s:o}", "output_index", r->index, "item",
                            item(x, r->open, status, json_pack("[o]", part(r->open, text)))));
        r->index++;
        r->open = NO_ITEM;
}

static void response_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                          size_t size)
{
        struct response *r = x->state;

        if (!x->generation->request->stream || size == 0)
                return;
        if (r->open == REASONING_ITEM)
                close_item(x, "completed");
        if (r->open == NO_ITEM)
                open_item(x, MESSAGE_ITEM);
        buffer_add(&r->text, text, size);
        c->kept_bytes += size;
        add_part_event(x, "response.output_text.delta", "delta", json_text(text, size));
}

/* Thoughts in the midst of the answer are told as text of neither. */
static void response_thinking(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        struct response *r = x->state;

        if (token->thinking_size == 0 || r->open == MESSAGE_ITEM)
                return;
        if (r->open == NO_ITEM)
                open_item(x, REASONING_ITEM);
        r->has_thoughts = true;
        buffer_add(&r->thinking, token->thinking, token->thinking_size);
        c->kept_bytes += token->thinking_size;
        add_part_event(x, "response.reasoning_text.delta", "delta", json_text(token->thinking, token->thinking_size));
}

static const char *status_of(const struct choice *c)
{
        return c->reason == TANDEM_REASON_LENGTH ? "incomplete" : "completed";
}

static void response_choice_end(struct exchange *x, struct choice *c)
{
        struct response *r = x->state;

        if (r->open == NO_ITEM && !r->has_thoughts)
                open_item(x, MESSAGE_ITEM);
        close_item(x, status_of(c));
}

/* An answer that ended in its thoughts has no message. */
static json_t *output_of(struct exchange *x, const struct choice *c)
{
        const struct response *r = x->state;
        bool stream = x->generation->request->stream;
        const struct buffer *text = stream ? &r->text : &c->text, *thinking = stream ? &r->thinking : &c->thinking;
        json_t *output = json_array();

        if (thinking->size > 0)
                json_array_append_new(output, item(x, REASONING_ITEM, text->size > 0 ? "completed" : status_of(c),
                                                   json_pack("[o]", part(REASONING_ITEM, thinking))));
        if (text->size > 0 || thinking->size == 0)
                json_array_append_new(output,
                                      item(x, MESSAGE_ITEM, status_of(c), json_pack("[o]", part(MESSAGE_ITEM, text))));
        return output;
}

static void response_end(struct exchange *x)
{
        struct generation *g = x->generation;
        struct choice *c = &g->choices[0];
        json_t *json = response(x, status_of(c), output_of(x, c), usage(g));

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
                                                    .calls = response_thinking,
                                                    .choice_end = response_choice_end,
                                                    .end = response_end,
                                                    .error = response_error,
                                                    .ping = openai_ping };

static int check_thoughts(struct generation_request *r, const json_t *thoughts, struct failure *f)
{
        static const char *const names[] = { "type", "text", NULL };
        const json_t *content = json_get(thoughts, "content");

        if (params_check(&params_reasoning_item, thoughts, &r->warnings, f) != 0)
                return f->status;
        for (size_t i = 0; i < json_array_size(content); i++) {
                const json_t *given = json_array_get(content, i);

                if (json_check_members(given, "input[].content[]", names, f) != 0)
                        return f->status;
                if (strcmp(json_get_string(given, "type", ""), "reasoning_text") != 0)
                        return failure_set(f, 400, "invalid_value", "input",
                                           "'input' has an item 'reasoning' with a part that is no 'reasoning_text'");
                if (!json_get_string(given, "text", NULL))
                        return failure_set(f, 400, "invalid_value", "input",
                                           "'input' has an item 'reasoning' with a part that has no text");
        }
        return 0;
}

/* An item of thoughts belongs to the message behind it. */
static int take_thoughts(struct generation_request *r, const json_t *thoughts, struct failure *f)
{
        const json_t *content = json_get(thoughts, "content");
        struct buffer texts = { 0 };

        for (size_t i = 0; i < json_array_size(content); i++)
                thinking_join(&texts, json_get_string(json_array_get(content, i), "text", ""));
        return request_add_thinking(r, &texts, f);
}

static int take_input(struct generation_request *r, struct failure *f)
{
        const json_t *input = json_get(r->json, "input"), *instructions = json_get(r->json, "instructions");
        const json_t *thoughts = NULL;

        if (instructions && request_add_message(r, "system", instructions, "", "instructions", f) != 0)
                return f->status;
        if (json_is_string(input))
                return request_add_message(r, "user", input, "", "input", f);
        if (!json_is_array(input))
                return failure_set(f, 400, input ? "invalid_type" : "missing_required_parameter", "input",
                                   "'input' has to be a text or an array of messages");
        if (json_array_size(input) > MAX_MESSAGES)
                return failure_set(f, 400, "invalid_value", "input", "'input' has more than %u items", MAX_MESSAGES);
        for (size_t i = 0; i < json_array_size(input); i++) {
                const json_t *given = json_array_get(input, i);
                const char *type = json_get_string(given, "type", "message");
                char where[64];

                snprintf(where, sizeof(where), "input[%zu].type", i);
                if (json_get(given, "type") && !json_is_string(json_get(given, "type")))
                        return failure_set(f, 400, "invalid_type", where, "'%s' has to be a string", where);
                if (strcmp(type, "reasoning") == 0) {
                        if (check_thoughts(r, given, f) != 0)
                                return f->status;
                        thoughts = given;
                        continue;
                }
                if (strcmp(type, "message") != 0)
                        return failure_set(f, 400, "unsupported_parameter", "input",
                                           "'input[%zu]' is of type '%.40s'; messages and reasoning are taken", i,
                                           type);
                if (request_take_message(r, given, "input", i, &params_message, f) != 0)
                        return f->status;
                if (thoughts && strcmp(json_get_string(given, "role", ""), "assistant") == 0 &&
                    take_thoughts(r, thoughts, f) != 0)
                        return f->status;
                thoughts = NULL;
        }
        return request_check_messages(r, "input", f);
}

static int take_response(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 || take_input(r, f) != 0 ||
            request_take_speculation(r, r->json, "", f) != 0 || request_take_nested_format(r, "text", f) != 0 ||
            request_take_reasoning(r, f) != 0)
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
