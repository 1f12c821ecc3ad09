/* POST /v1/messages and count_tokens. Input that the prefix cache had counts as read from a cache, not as input. */
#include "http-gateway/anthropic.h"

#include "http-gateway/format.h"
#include "http-gateway/messages.h"
#include "http-gateway/sse.h"
#include "http-gateway/thinking.h"

static const char *stop_reason(const struct choice *c)
{
        return c->stop >= 0                      ? "stop_sequence" :
               c->reason == TANDEM_REASON_LENGTH ? "max_tokens" :
               c->calls.n > 0                    ? "tool_use" :
                                                   "end_turn";
}

static json_t *stop_sequence(const struct choice *c)
{
        return c->stop >= 0 ? json_string(c->stopper.texts[c->stop]) : json_null();
}

static json_t *usage(const struct generation *g)
{
        uint64_t prompt, cached, generated;

        generation_usage(g, &prompt, &cached, &generated);
        return json_pack("{s:I, s:i, s:I, s:I}", "input_tokens", (json_int_t)(prompt - cached),
                         "cache_creation_input_tokens", 0, "cache_read_input_tokens", (json_int_t)cached,
                         "output_tokens", (json_int_t)generated);
}

static json_t *message(struct exchange *x, json_t *content, json_t *reason, json_t *sequence)
{
        const struct generation *g = x->generation;

        return json_pack("{s:s+, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "id", "msg_", x->id + 4, "type", "message",
                         "role", "assistant", "model", json_get_string(g->request->json, "model", ""), "content",
                         content, "stop_reason", reason, "stop_sequence", sequence, "usage", usage(g));
}

/* The block that is open in a stream. */
struct blocks {
        int index;
        enum block { NO_BLOCK, TEXT_BLOCK, TOOL_BLOCK, THINKING_BLOCK } open;
        struct signature signature; /* of the thought */
};

static void close_block(struct exchange *x, struct blocks *b)
{
        char signature[SIGNATURE_BYTES];

        if (b->open == NO_BLOCK)
                return;
        if (b->open == THINKING_BLOCK) {
                signature_write(&b->signature, signature);
                sse_add(&x->out, "content_block_delta",
                        json_pack("{s:s, s:i, s:{s:s, s:s}}", "type", "content_block_delta", "index", b->index, "delta",
                                  "type", "signature_delta", "signature", signature));
        }
        sse_add(&x->out, "content_block_stop",
                json_pack("{s:s, s:i}", "type", "content_block_stop", "index", b->index));
        b->index++;
        b->open = NO_BLOCK;
}

/* The JSON of a block at its beginning. */
static json_t *new_block(enum block kind, const struct tandem_call_delta *call)
{
        switch (kind) {
        case THINKING_BLOCK:
                return json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
        case TOOL_BLOCK:
                return json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", call ? call->id : "", "name",
                                 call ? call->name : "", "input");
        default:
                return json_pack("{s:s, s:s}", "type", "text", "text", "");
        }
}

/* Goes on with a block of this kind, or begins one: always for a call, whose first piece is given. NULL: no memory, and
 * the exchange fails for it. */
static struct blocks *open_block(struct exchange *x, struct choice *c, enum block kind,
                                 const struct tandem_call_delta *call)
{
        struct blocks *b = c->state ? c->state : calloc(1, sizeof(*b));

        c->state = b;
        if (!b) {
                x->out.failed = true;
                return NULL;
        }
        if (b->open == kind && !call)
                return b;
        close_block(x, b);
        b->open = kind;
        signature_init(&b->signature);
        sse_add(&x->out, "content_block_start",
                json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", b->index, "content_block",
                          new_block(kind, call)));
        return b;
}

/* message_start's input_tokens are those that are known by then; message_delta has the final ones. Whether the first
 * token is there already is chance, so none is counted. */
static void messages_begin(struct exchange *x)
{
        json_t *start = message(x, json_array(), json_null(), json_null());

        json_object_set_new(json_object_get(start, "usage"), "output_tokens", json_integer(0));
        sse_add(&x->out, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", start));
        if (!x->generation->request->options.tools && !x->generation->request->with_thinking)
                open_block(x, &x->generation->choices[0], TEXT_BLOCK, NULL);
        sse_add(&x->out, "ping", json_pack("{s:s}", "type", "ping"));
}

static void messages_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                          size_t size)
{
        struct blocks *b;

        if (!x->generation->request->stream || size == 0)
                return;
        b = open_block(x, c, TEXT_BLOCK, NULL);
        if (b)
                sse_add(&x->out, "content_block_delta",
                        json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", "content_block_delta", "index", b->index, "delta",
                                  "type", "text_delta", "text", json_text(text, size)));
}

/* Thoughts are told to those who asked for them: clients of this API expect none else. */
static void messages_thinking(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        struct blocks *b;

        if (token->thinking_size == 0 || !x->generation->request->with_thinking)
                return;
        b = open_block(x, c, THINKING_BLOCK, NULL);
        if (!b)
                return;
        signature_add(&b->signature, token->thinking, token->thinking_size);
        sse_add(&x->out, "content_block_delta",
                json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", "content_block_delta", "index", b->index, "delta", "type",
                          "thinking_delta", "thinking", json_text(token->thinking, token->thinking_size)));
}

static void messages_calls(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        messages_thinking(x, c, token);
        for (size_t i = 0; i < token->n_calls; i++) {
                const struct tandem_call_delta *d = token->calls[i];
                struct blocks *b = open_block(x, c, TOOL_BLOCK, d->name[0] ? d : NULL);

                if (b && d->arguments_size > 0)
                        sse_add(&x->out, "content_block_delta",
                                json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", "content_block_delta", "index", b->index,
                                          "delta", "type", "input_json_delta", "partial_json",
                                          json_text(d->arguments, d->arguments_size)));
        }
}

static void messages_choice_end(struct exchange *x, struct choice *c)
{
        if (c->state)
                close_block(x, c->state);
        sse_add(&x->out, "message_delta",
                json_pack("{s:s, s:{s:s, s:o}, s:o}", "type", "message_delta", "delta", "stop_reason", stop_reason(c),
                          "stop_sequence", stop_sequence(c), "usage", usage(x->generation)));
}

static json_t *thinking_block(const char *data, size_t size)
{
        char text[SIGNATURE_BYTES];
        struct signature s;

        signature_init(&s);
        signature_add(&s, data, size);
        signature_write(&s, text);
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", json_text(data, size), "signature", text);
}

/* NULL: it was cut off, so it is none. */
static json_t *tool_block(const struct choice_call *call, struct exact *texts)
{
        json_t *input = choice_call_arguments(call, texts);

        return input ? json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", call->id, "name", call->name,
                                 "input", input) :
                       NULL;
}

/* Where the text that begins with a piece ends: thoughts that are not told do not end it. */
static size_t text_end(const struct choice *c, size_t *piece, bool with_thinking)
{
        size_t to = c->pieces[*piece].to;

        while (*piece + 1 < c->n_pieces) {
                const struct choice_piece *next = &c->pieces[*piece + 1];

                if (next->kind == PIECE_CALL || (next->kind == PIECE_THINKING && with_thinking))
                        break;
                if (next->kind == PIECE_TEXT)
                        to = next->to;
                ++*piece;
        }
        return to;
}

/* The blocks of an answer that is no stream: as a stream has them. */
static json_t *content_json(const struct exchange *x, const struct choice *c, struct exact *texts)
{
        bool with_thinking = x->generation->request->with_thinking;
        json_t *content = json_array();

        for (size_t i = 0; i < c->n_pieces; i++) {
                const struct choice_piece *p = &c->pieces[i];
                json_t *block = NULL;

                if (p->kind == PIECE_CALL)
                        block = tool_block(&c->calls.items[p->from], texts);
                else if (p->kind == PIECE_TEXT)
                        block = json_pack("{s:s, s:o}", "type", "text", "text",
                                          json_text(c->text.data + p->from, text_end(c, &i, with_thinking) - p->from));
                else if (with_thinking)
                        block = thinking_block(c->thinking.data + p->from, p->to - p->from);
                if (block)
                        json_array_append_new(content, block);
        }
        if (c->calls.n == 0 && json_array_size(content) == 0)
                json_array_append_new(content, json_pack("{s:s, s:s}", "type", "text", "text", ""));
        return content;
}

static void messages_end(struct exchange *x)
{
        _cleanup_(exact_free) struct exact texts = { 0 };
        struct choice *c = &x->generation->choices[0];
        json_t *content;

        if (x->generation->request->stream) {
                sse_add(&x->out, "message_stop", json_pack("{s:s}", "type", "message_stop"));
                return;
        }
        content = content_json(x, c, &texts);
        exchange_answer_exact(x, 200, message(x, content, json_string(stop_reason(c)), stop_sequence(c)), &texts);
}

static void messages_error(struct exchange *x, const struct failure *f)
{
        sse_add(&x->out, "error", failure_json(f, DIALECT_ANTHROPIC, x->id));
}

static void messages_ping(struct exchange *x)
{
        sse_add(&x->out, "ping", json_pack("{s:s}", "type", "ping"));
}

static const struct generation_ops messages_ops = { .content_type = SSE_CONTENT_TYPE,
                                                    .begin = messages_begin,
                                                    .text = messages_text,
                                                    .calls = messages_calls,
                                                    .choice_end = messages_choice_end,
                                                    .end = messages_end,
                                                    .error = messages_error,
                                                    .ping = messages_ping };

/* How many tokens a prompt has is told when its job is accepted; nothing of it runs. */
static void count_end(struct exchange *x)
{
        exchange_answer_json(x, 200,
                             json_pack("{s:I}", "input_tokens", (json_int_t)x->generation->choices[0].prompt_tokens));
}

static const struct generation_ops count_ops = { .text = messages_text, .end = count_end };

/* What is to be left out of a long conversation. Which thoughts stay is the template's to say, so what is said of them
 * is taken. Everything else would be left in the prompt, and so is refused. */
static int check_context_management(const struct generation_request *r, struct failure *f)
{
        static const char *const known[] = { "edits", NULL };
        const char name[] = "context_management", clear_thinking[] = "clear_thinking_";
        const json_t *management = json_get(r->json, name), *edits = json_get(management, "edits");

        if (!management)
                return 0;
        if (json_check_members(management, name, known, f) != 0)
                return f->status;
        if (edits && !json_is_array(edits))
                return failure_set(f, 400, "invalid_type", name, "'%s.edits' has to be an array", name);
        for (size_t i = 0; i < json_array_size(edits); i++) {
                const char *type = json_get_string(json_array_get(edits, i), "type", "");

                if (strncmp(type, clear_thinking, strlen(clear_thinking)) != 0)
                        return failure_set(f, 400, "unsupported_parameter", name,
                                           "'%s.edits[%zu]' is '%.40s': a prompt is never shortened", name, i, type);
        }
        return 0;
}

static int take_prompt(struct generation_request *r, struct failure *f)
{
        const json_t *system = json_get(r->json, "system");

        if (request_take_model(r, f) != 0 ||
            (system && request_add_message(r, "system", system, "\n\n", "system", f) != 0) ||
            request_take_anthropic_messages(r, json_get(r->json, "messages"), &params_anthropic_message, f) != 0 ||
            request_check_messages(r, "messages", f) != 0 || request_take_nested_format(r, "output_config", f) != 0 ||
            request_take_flat_format(r, "output_format", f) != 0 || request_take_anthropic_tools(r, f) != 0 ||
            request_take_anthropic_thinking(r, f) != 0 || check_context_management(r, f) != 0)
                return f->status;
        return 0;
}

static int take_messages(struct generation_request *r, struct failure *f)
{
        if (take_prompt(r, f) != 0)
                return f->status;
        if (!json_get(r->json, "max_tokens"))
                return failure_set(f, 400, "missing_required_parameter", "max_tokens", "'max_tokens' is missing");
        if (request_take_speculation(r, r->json, "", f) != 0 ||
            request_take_stops(r, json_get(r->json, "stop_sequences"), "stop_sequences", f) != 0)
                return f->status;
        r->options.temperature = 1;
        r->options.top_p = 1;
        r->options.top_k = 0;
        request_take_sampling(r, r->json);
        r->options.max_tokens = (uint32_t)json_get_integer(r->json, "max_tokens", 0);
        if (r->options.thinking_budget >= r->options.max_tokens && r->options.max_tokens > 0)
                return failure_set(f, 400, "invalid_value", "thinking.budget_tokens",
                                   "'thinking.budget_tokens' has to be less than 'max_tokens'");
        r->name_the_stop = r->n_stops > 0;
        return 0;
}

static void start_messages(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &messages_ops);
}

static int take_count(struct generation_request *r, struct failure *f)
{
        if (take_prompt(r, f) != 0)
                return f->status;
        r->count_only = true;
        r->options.max_tokens = 1;
        r->options.priority = TANDEM_PRIORITY_BACKGROUND;
        return 0;
}

static void start_count(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &count_ops);
}

const struct reader anthropic_messages_reader = { &params_anthropic, take_messages, start_messages },
                    anthropic_count_reader = { &params_count_tokens, take_count, start_count };

void anthropic_messages(struct exchange *x)
{
        exchange_read(x, &anthropic_messages_reader);
}

void anthropic_count_tokens(struct exchange *x)
{
        exchange_read(x, &anthropic_count_reader);
}
