/* POST /v1/responses: an answer is a list of items: thoughts where the model has them, a message, calls of tools.
 * Nothing is kept on the server. Every event carries a number. */
#include "http-gateway/format.h"
#include "http-gateway/openai.h"
#include "http-gateway/responses.h"
#include "http-gateway/thinking.h"

enum item_kind { REASONING_ITEM, MESSAGE_ITEM, CALL_ITEM, CUSTOM_ITEM };

struct item {
        enum item_kind kind;
        unsigned number; /* among those of its kind; of a call: which of the choice's */
        size_t from, to; /* of the texts of its kind */
        bool cut;
};

struct response {
        unsigned n_events;
        struct item *items; /* [n_items] */
        size_t n_items, capacity;
        bool open;                    /* the last one may grow */
        struct buffer text, thinking; /* of a stream, which repeats both whole */
};

static void response_free(void *state)
{
        struct response *r = state;

        if (r) {
                buffer_free(&r->text);
                buffer_free(&r->thinking);
                free(r->items);
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

/* ---- items ---- */

#define ITEM_ID_BYTES 64u

static bool is_call(enum item_kind kind)
{
        return kind == CALL_ITEM || kind == CUSTOM_ITEM;
}

static void item_id(const struct exchange *x, const struct item *item, char to[ITEM_ID_BYTES])
{
        static const char *const prefixes[] = {
                [REASONING_ITEM] = "rs", [MESSAGE_ITEM] = "msg", [CALL_ITEM] = "fc", [CUSTOM_ITEM] = "ctc"
        };

        snprintf(to, ITEM_ID_BYTES, "%s_%s", prefixes[item->kind], x->id + 4);
        if (item->number > 0)
                snprintf(to + strlen(to), ITEM_ID_BYTES - strlen(to), "_%u", item->number);
}

/* The text of an item of thoughts or of a message, as it is now. */
static json_t *item_text(const struct exchange *x, const struct item *item)
{
        const struct choice *c = &x->generation->choices[0];
        const struct response *r = x->state;
        bool stream = x->generation->request->stream;
        const struct buffer *all = item->kind == REASONING_ITEM ? stream ? &r->thinking : &c->thinking :
                                   stream                       ? &r->text :
                                                                  &c->text;

        return json_text(item->to > item->from ? all->data + item->from : "", item->to - item->from);
}

/* text is taken over. */
static json_t *part(enum item_kind kind, json_t *text)
{
        if (kind == REASONING_ITEM)
                return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
        return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text, "annotations", "logprobs");
}

/* What a custom tool is given; "" of a call that was cut off. */
static json_t *custom_input(const struct choice_call *call)
{
        json_t *arguments = json_loadb(call->arguments.data, call->arguments.size, JSON_ALLOW_NUL, NULL);
        json_t *input = json_incref(json_object_get(arguments, "input"));

        json_decref(arguments);
        if (json_is_string(input))
                return input;
        json_decref(input);
        return json_string("");
}

static json_t *call_json(struct exchange *x, const struct item *item, const char *id, const char *status, bool whole)
{
        const struct choice_call *call = &x->generation->choices[0].calls.items[item->number];
        struct responses_tool tool = responses_find_tool(x->generation->request, call->name);
        json_t *json;

        if (item->kind == CUSTOM_ITEM)
                return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "custom_tool_call", "status",
                                 status, "call_id", call->id, "name", tool.name, "input",
                                 whole ? custom_input(call) : json_string(""));
        json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "function_call", "status", status,
                         "call_id", call->id, "name", tool.name, "arguments",
                         json_text(call->arguments.data, whole ? call->arguments.size : 0));
        if (json && tool.space)
                json_object_set_new(json, "namespace", json_string(tool.space));
        return json;
}

/* whole: with what it holds; else as it begins. */
static json_t *item_json(struct exchange *x, const struct item *item, bool whole)
{
        const char *status = !whole ? "in_progress" : item->cut ? "incomplete" : "completed";
        json_t *content, *json;
        char id[ITEM_ID_BYTES];

        item_id(x, item, id);
        if (is_call(item->kind))
                return call_json(x, item, id, status, whole);
        content = whole ? json_pack("[o]", part(item->kind, item_text(x, item))) : json_array();
        if (item->kind == MESSAGE_ITEM)
                return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role",
                                 "assistant", "content", content);
        json = json_pack("{s:s, s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "status", status, "summary",
                         "content", content);
        if (json && whole && x->generation->request->seal_thinking) {
                json_t *text = item_text(x, item);

                json_object_set_new(json, "encrypted_content",
                                    thinking_seal(json_string_value(text), json_string_length(text)));
                json_decref(text);
        }
        return json;
}

/* The next one; NULL: no memory, and the exchange fails for it. number: of a call. */
static struct item *item_add(struct exchange *x, enum item_kind kind, unsigned number)
{
        struct response *r = x->state;

        if (r->n_items == r->capacity) {
                size_t capacity = TDM_MAX(r->capacity * 2, (size_t)4);
                struct item *items = reallocarray(r->items, capacity, sizeof(*items));

                if (!items) {
                        x->out.failed = true;
                        return NULL;
                }
                r->items = items;
                r->capacity = capacity;
        }
        for (size_t i = 0; i < r->n_items && !is_call(kind); i++)
                number += r->items[i].kind == kind;
        r->items[r->n_items] = (struct item){ .kind = kind, .number = number };
        return &r->items[r->n_items++];
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
        json_object_set_new(json, "tools", said(r, "tools", json_array()));
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

/* An event of the item that is open. value is taken over. */
static void add_item_event(struct exchange *x, const char *type, const char *key, json_t *value)
{
        struct response *r = x->state;
        const struct item *item = &r->items[r->n_items - 1];
        char id[ITEM_ID_BYTES];
        json_t *event;

        item_id(x, item, id);
        event = json_pack("{s:s, s:i, s:o}", "item_id", id, "output_index", (int)r->n_items - 1, key, value);
        if (event && !is_call(item->kind))
                json_object_set_new(event, "content_index", json_integer(0));
        if (event && item->kind == MESSAGE_ITEM && strcmp(key, "part") != 0)
                json_object_set_new(event, "logprobs", json_array());
        add_event(x, type, event);
}

static void close_item(struct exchange *x, bool cut)
{
        struct response *r = x->state;
        struct item *item = r->open ? &r->items[r->n_items - 1] : NULL;
        const struct choice_call *call;

        if (!item)
                return;
        item->cut = cut;
        if (is_call(item->kind)) {
                call = &x->generation->choices[0].calls.items[item->number];
                if (item->kind == CUSTOM_ITEM)
                        add_item_event(x, "response.custom_tool_call_input.delta", "delta", custom_input(call));
                if (item->kind == CUSTOM_ITEM)
                        add_item_event(x, "response.custom_tool_call_input.done", "input", custom_input(call));
                else
                        add_item_event(x, "response.function_call_arguments.done", "arguments",
                                       json_text(call->arguments.data, call->arguments.size));
        } else {
                add_item_event(
                        x, item->kind == REASONING_ITEM ? "response.reasoning_text.done" : "response.output_text.done",
                        "text", item_text(x, item));
                add_item_event(x, "response.content_part.done", "part", part(item->kind, item_text(x, item)));
        }
        add_event(x, "response.output_item.done",
                  json_pack("{s:i, s:o}", "output_index", (int)r->n_items - 1, "item", item_json(x, item, true)));
        r->open = false;
}

/* Closes the one before. number: of a call. NULL: no memory. */
static struct item *open_item(struct exchange *x, enum item_kind kind, unsigned number)
{
        struct response *r = x->state;
        struct item *item;

        close_item(x, false);
        item = item_add(x, kind, number);
        if (!item)
                return NULL;
        r->open = true;
        x->generation->choices[0].kept_bytes += sizeof(*item);
        if (!is_call(kind))
                item->from = item->to = kind == REASONING_ITEM ? r->thinking.size : r->text.size;
        add_event(x, "response.output_item.added",
                  json_pack("{s:i, s:o}", "output_index", (int)r->n_items - 1, "item", item_json(x, item, false)));
        if (!is_call(kind))
                add_item_event(x, "response.content_part.added", "part", part(kind, json_string("")));
        return item;
}

/* The item that is open, if it is of this kind; else the next. */
static struct item *item_of(struct exchange *x, enum item_kind kind)
{
        struct response *r = x->state;

        if (r->open && r->items[r->n_items - 1].kind == kind)
                return &r->items[r->n_items - 1];
        return open_item(x, kind, 0);
}

static void response_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                          size_t size)
{
        struct response *r = x->state;
        struct item *item;

        if (!x->generation->request->stream || size == 0)
                return;
        item = item_of(x, MESSAGE_ITEM);
        if (!item)
                return;
        buffer_add(&r->text, text, size);
        item->to += size;
        c->kept_bytes += size;
        add_item_event(x, "response.output_text.delta", "delta", json_text(text, size));
}

static void response_thinking(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        struct response *r = x->state;
        struct item *item;

        if (token->thinking_size == 0)
                return;
        item = item_of(x, REASONING_ITEM);
        if (!item)
                return;
        buffer_add(&r->thinking, token->thinking, token->thinking_size);
        item->to += token->thinking_size;
        c->kept_bytes += token->thinking_size;
        add_item_event(x, "response.reasoning_text.delta", "delta", json_text(token->thinking, token->thinking_size));
}

/* The pieces of a custom tool's input come at the end, when the string that holds it is whole. */
static void response_calls(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        struct response *r = x->state;

        response_thinking(x, c, token);
        for (size_t i = 0; i < token->n_calls; i++) {
                const struct tandem_call_delta *d = token->calls[i];
                bool custom = d->name[0] && responses_find_tool(x->generation->request, d->name).custom;

                if (d->name[0] && !open_item(x, custom ? CUSTOM_ITEM : CALL_ITEM, d->call))
                        return;
                if (d->arguments_size > 0 && r->open && r->items[r->n_items - 1].kind == CALL_ITEM)
                        add_item_event(x, "response.function_call_arguments.delta", "delta",
                                       json_text(d->arguments, d->arguments_size));
        }
}

static bool is_cut(const struct choice *c)
{
        return c->reason == TANDEM_REASON_LENGTH;
}

static void response_choice_end(struct exchange *x, struct choice *c)
{
        struct response *r = x->state;

        if (r->n_items == 0)
                open_item(x, MESSAGE_ITEM, 0);
        close_item(x, is_cut(c));
}

/* One more item, or more of the last one: as a stream has them. */
static void make_item(struct exchange *x, const struct choice *c, const struct choice_piece *piece)
{
        static const enum item_kind kinds[] = { [PIECE_THINKING] = REASONING_ITEM, [PIECE_TEXT] = MESSAGE_ITEM };
        struct response *r = x->state;
        struct item *item = r->n_items > 0 ? &r->items[r->n_items - 1] : NULL;

        if (piece->kind == PIECE_CALL) {
                bool custom = responses_find_tool(x->generation->request, c->calls.items[piece->from].name).custom;

                item_add(x, custom ? CUSTOM_ITEM : CALL_ITEM, (unsigned)piece->from);
                return;
        }
        if (!item || item->kind != kinds[piece->kind]) {
                item = item_add(x, kinds[piece->kind], 0);
                if (!item)
                        return;
                item->from = piece->from;
        }
        item->to = piece->to;
}

/* The items of an answer that is no stream. One that ended in its thoughts, or with calls alone, has no message. */
static void make_items(struct exchange *x, const struct choice *c)
{
        struct response *r = x->state;

        for (size_t i = 0; i < c->n_pieces; i++)
                make_item(x, c, &c->pieces[i]);
        if (c->n_pieces == 0)
                item_add(x, MESSAGE_ITEM, 0);
        if (r->n_items > 0)
                r->items[r->n_items - 1].cut = is_cut(c);
}

static void response_end(struct exchange *x)
{
        struct generation *g = x->generation;
        struct choice *c = &g->choices[0];
        struct response *r = x->state;
        json_t *output = json_array(), *json;

        if (!g->request->stream)
                make_items(x, c);
        for (size_t i = 0; i < r->n_items; i++)
                json_array_append_new(output, item_json(x, &r->items[i], true));
        json = response(x, is_cut(c) ? "incomplete" : "completed", output, usage(g));
        if (g->request->stream)
                add_event(x, is_cut(c) ? "response.incomplete" : "response.completed",
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
                                                    .calls = response_calls,
                                                    .choice_end = response_choice_end,
                                                    .end = response_end,
                                                    .error = response_error,
                                                    .ping = openai_ping,
                                                    .recovering = openai_recovering };

static int take_response(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 || responses_take_input(r, f) != 0 ||
            request_take_speculation(r, r->json, "", f) != 0 || request_take_nested_format(r, "text", f) != 0 ||
            responses_take_tools(r, f) != 0 || responses_take_rest(r, f) != 0 ||
            request_take_openai_effort(r, f) != 0 || request_take_template_kwargs(r, f) != 0)
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
