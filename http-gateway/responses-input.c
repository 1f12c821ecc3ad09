/* See responses.h. Items of one turn of the model's become one message: thoughts, a text, calls. */
#include "http-gateway/responses.h"

#include "http-gateway/params.h"
#include "http-gateway/thinking.h"

struct items {
        struct generation_request *r;
        char where[48];         /* "input[3]" */
        struct buffer thoughts; /* that have come, and whose message has not */
        struct buffer of_turn;  /* those before calls of the last message, which get it when its turn is over */
        bool turn;              /* the last message is the model's, and calls that follow belong to it */
};

/* ---- thoughts ---- */

static int parts_take(struct items *in, const json_t *content, struct failure *f)
{
        static const char *const names[] = { "type", "text", NULL };

        for (size_t i = 0; i < json_array_size(content); i++) {
                const json_t *part = json_array_get(content, i);
                const char *type = json_get_string(part, "type", "");
                char where[96];

                snprintf(where, sizeof(where), "%s.content[%zu]", in->where, i);
                if (json_check_members(part, where, names, f) != 0)
                        return f->status;
                if (strcmp(type, "reasoning_text") != 0 && strcmp(type, "text") != 0)
                        return failure_set(f, 400, "invalid_value", where,
                                           "'%s' is a part of an item 'reasoning' and no 'reasoning_text'", where);
                if (!json_get_string(part, "text", NULL))
                        return failure_set(f, 400, "invalid_value", where,
                                           "'%s' is a part of an item 'reasoning' and has no text", where);
                thinking_join(&in->thoughts, json_get_string(part, "text", ""));
        }
        return 0;
}

/* Another provider's are a secret to us. */
static int sealed_take(struct items *in, const char *sealed, struct failure *f)
{
        const char *text;

        if (thinking_unseal(sealed, &text)) {
                thinking_join(&in->thoughts, text);
                return 0;
        }
        if (strncmp(sealed, SIGNATURE_PREFIX, strlen(SIGNATURE_PREFIX)) == 0)
                return failure_set(f, 400, "invalid_value", "input",
                                   "'%s.encrypted_content' was changed: send the item as it came, or leave it out",
                                   in->where);
        if (!strstr(in->r->warnings.text, "encrypted_content"))
                params_warn(&in->r->warnings, "encrypted_content of others is not used here");
        return 0;
}

static int thoughts_take(struct items *in, const json_t *item, struct failure *f)
{
        const char *sealed = json_get_string(item, "encrypted_content", "");

        if (params_check_at(&params_reasoning_item, in->where, item, &in->r->warnings, f) != 0 ||
            parts_take(in, json_get(item, "content"), f) != 0)
                return f->status;
        return *sealed && json_array_size(json_get(item, "content")) == 0 ? sealed_take(in, sealed, f) : 0;
}

/* One text for all calls of a turn: a copy for each would take the square of what came. */
static void thoughts_collect(struct items *in)
{
        if (in->thoughts.size > 0)
                thinking_join(&in->of_turn, in->thoughts.data);
        in->of_turn.failed |= in->thoughts.failed;
        buffer_free(&in->thoughts);
}

static int turn_end(struct items *in, struct failure *f)
{
        in->turn = false;
        return request_add_thinking(in->r, &in->of_turn, f);
}

/* ---- messages, calls and answers ---- */

static int message_take(struct items *in, const json_t *item, size_t i, struct failure *f)
{
        if (turn_end(in, f) != 0)
                return f->status;
        if (request_take_message(in->r, item, "input", i, &params_message, f) != 0)
                return f->status;
        in->turn = strcmp(json_get_string(item, "role", ""), "assistant") == 0;
        if (in->turn)
                return request_add_thinking(in->r, &in->thoughts, f);
        buffer_free(&in->thoughts);
        return 0;
}

/* {"input": TEXT}: a custom tool's call as the model knows it. */
static const char *custom_arguments(struct generation_request *r, const json_t *input)
{
        struct buffer text = { 0 };

        buffer_add_text(&text, "{\"input\":");
        json_write_text(&text, json_string_value(input), json_string_length(input));
        buffer_add_text(&text, "}");
        return request_keep_text(r, &text);
}

static const char *name_keep(struct generation_request *r, const json_t *item)
{
        char name[RESPONSES_NAME_BYTES];
        struct buffer text = { 0 };

        responses_join_name(json_get_string(item, "namespace", ""), json_get_string(item, "name", ""), name);
        buffer_add_text(&text, name);
        return request_keep_text(r, &text);
}

static int call_take(struct items *in, const json_t *item, struct failure *f)
{
        bool custom = strcmp(json_get_string(item, "type", ""), "custom_tool_call") == 0;
        const char *member = custom ? "input" : "arguments", *id = json_get_string(item, "call_id", NULL);
        const char *text = json_get_string(item, member, NULL);

        if (params_check_at(custom ? &params_custom_item : &params_call_item, in->where, item, &in->r->warnings, f) !=
            0)
                return f->status;
        if (!id || !text || !json_get_string(item, "name", NULL))
                return failure_set(f, 400, "missing_required_parameter", in->where, "'%s' lacks call_id, name or %s",
                                   in->where, member);
        if (!in->turn && request_add_message(in->r, "assistant", NULL, "", in->where, f) != 0)
                return f->status;
        in->turn = true;
        thoughts_collect(in);
        if (custom)
                text = custom_arguments(in->r, json_get(item, "input"));
        return request_add_call(in->r, id, name_keep(in->r, item), text && !*text ? "{}" : text, f);
}

static int answer_take(struct items *in, const json_t *item, struct failure *f)
{
        const char *id = json_get_string(item, "call_id", NULL);

        if (params_check_at(&params_answer_item, in->where, item, &in->r->warnings, f) != 0)
                return f->status;
        if (!id || !json_get(item, "output"))
                return failure_set(f, 400, "missing_required_parameter", in->where, "'%s' lacks call_id or output",
                                   in->where);
        buffer_free(&in->thoughts);
        if (turn_end(in, f) != 0)
                return f->status;
        if (request_add_message(in->r, "tool", json_get(item, "output"), "\n", in->where, f) != 0)
                return f->status;
        return request_add_answer(in->r, id, NULL, f);
}

static int item_take(struct items *in, const json_t *item, size_t i, struct failure *f)
{
        const char *type = json_get_string(item, "type", "message");

        snprintf(in->where, sizeof(in->where), "input[%zu]", i);
        if (json_get(item, "type") && !json_is_string(json_get(item, "type"))) {
                snprintf(in->where, sizeof(in->where), "input[%zu].type", i);
                return failure_set(f, 400, "invalid_type", in->where, "'%s' has to be a string", in->where);
        }
        if (strcmp(type, "message") == 0)
                return message_take(in, item, i, f);
        if (strcmp(type, "reasoning") == 0)
                return thoughts_take(in, item, f);
        if (strcmp(type, "function_call") == 0 || strcmp(type, "custom_tool_call") == 0)
                return call_take(in, item, f);
        if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
                return answer_take(in, item, f);
        if (strcmp(type, "item_reference") == 0)
                return failure_set(f, 400, "unsupported_parameter", "input",
                                   "'%s' is of type 'item_reference', and no earlier response is kept here: send the "
                                   "item itself (in clients that have it, set store to false)",
                                   in->where);
        return failure_set(f, 400, "unsupported_parameter", "input",
                           "'%s' is of type '%.40s'; message, reasoning, function_call, function_call_output, "
                           "custom_tool_call and custom_tool_call_output are taken",
                           in->where, type);
}

int responses_take_input(struct generation_request *r, struct failure *f)
{
        const json_t *input = json_get(r->json, "input"), *instructions = json_get(r->json, "instructions");
        struct items in = { .r = r };
        int status = 0;

        if (instructions && request_add_message(r, "system", instructions, "", "instructions", f) != 0)
                return f->status;
        if (json_is_string(input))
                return request_add_message(r, "user", input, "", "input", f);
        if (!json_is_array(input))
                return failure_set(f, 400, input ? "invalid_type" : "missing_required_parameter", "input",
                                   "'input' has to be a text or an array of items");
        if (json_array_size(input) > MAX_MESSAGES)
                return failure_set(f, 400, "invalid_value", "input", "'input' has more than %u items", MAX_MESSAGES);
        for (size_t i = 0; i < json_array_size(input) && status == 0; i++)
                status = item_take(&in, json_array_get(input, i), i, f);
        if (status == 0)
                status = turn_end(&in, f);
        buffer_free(&in.thoughts);
        buffer_free(&in.of_turn);
        return status != 0 ? status : request_check_messages(r, "input", f);
}

/* ---- the rest ---- */

/* What an answer here never has needs no inclusion. */
int responses_take_rest(struct generation_request *r, struct failure *f)
{
        static const char *const nothing[] = {
                "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
                "message.input_image.image_url", "web_search_call.action.sources",        "web_search_call.results"
        };
        const json_t *include = json_get(r->json, "include");
        const char *verbosity = json_get_string(json_get(r->json, "text"), "verbosity", "medium");

        if (strcmp(verbosity, "low") == 0 || strcmp(verbosity, "high") == 0)
                params_warn(&r->warnings, "text.verbosity is not used here");
        else if (strcmp(verbosity, "medium") != 0)
                return failure_set(f, 400, "invalid_value", "text", "'text.verbosity' has to be low, medium or high");
        for (size_t i = 0; i < json_array_size(include); i++) {
                const char *name = json_string_value(json_array_get(include, i));
                bool known = false;

                for (size_t k = 0; k < TDM_ARRAY_SIZE(nothing) && name; k++)
                        known = known || strcmp(nothing[k], name) == 0;
                if (name && strcmp(name, "reasoning.encrypted_content") == 0)
                        r->seal_thinking = true;
                else if (!known)
                        return failure_set(f, 400, "unsupported_parameter", "include",
                                           "'include[%zu]' cannot be taken: '%.60s' is not known here", i,
                                           name ? name : "");
        }
        return 0;
}
