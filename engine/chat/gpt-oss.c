/* gpt-oss's form, which its makers call harmony.
 *
 * A message has a channel: analysis (thoughts), commentary (calls of tools), final (what people read). The system's
 * turn is fixed text; what an API calls the system message is the developer's turn, which also has the tools, written
 * as types of TypeScript. Earlier thoughts are dropped, except between a call and the answer that ends it. */
#include "engine/chat/private.h"

static int open_message(struct tdm_chat_writer *w, const char *role)
{
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|start|>"));
        return tdm_chat_put_string(w, role);
}

static int put_message(struct tdm_chat_writer *w, const char *role, struct tdm_chat_text text)
{
        TDM_CHAT_TRY(open_message(w, role));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        TDM_CHAT_TRY(tdm_chat_put_text(w, text));
        return tdm_chat_put_marker(w, "<|end|>");
}

static int gpt_oss_put_system(struct tdm_chat_writer *w)
{
        static const char *const efforts[] = { "medium", "low", "high" };

        TDM_CHAT_TRY(open_message(w, "system"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "You are ChatGPT, a large language model trained by OpenAI.\n"
                                            "Knowledge cutoff: 2024-06\nCurrent date: "));
        TDM_CHAT_TRY(tdm_chat_put_date(w, true));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "\n\nReasoning: "));
        TDM_CHAT_TRY(tdm_chat_put_string(w, efforts[w->options.effort]));
        TDM_CHAT_TRY(tdm_chat_put_string(w,
                                         "\n\n# Valid channels: analysis, commentary, final. Channel must be included "
                                         "for every message."));
        if (tdm_chat_has_tools(w))
                TDM_CHAT_TRY(tdm_chat_put_string(
                        w, "\nCalls to these tools must go to the commentary channel: 'functions'."));
        return tdm_chat_put_marker(w, "<|end|>");
}

/* ---- tools as TypeScript ---- */

static uint32_t member(const struct tdm_chat_writer *w, uint32_t object, const char *name)
{
        if (object == TDM_JSON_NONE || w->tools.nodes[object].type != TDM_JSON_OBJECT)
                return TDM_JSON_NONE;
        return tdm_json_member(&w->tools, object, name);
}

/* What Jinja takes for true. */
static bool is_true(const struct tdm_chat_writer *w, uint32_t node)
{
        const struct tdm_json_node *n;

        if (node == TDM_JSON_NONE)
                return false;
        n = &w->tools.nodes[node];
        switch (n->type) {
        case TDM_JSON_NULL:
        case TDM_JSON_FALSE:
                return false;
        case TDM_JSON_STRING:
                return n->text_size > 0;
        case TDM_JSON_ARRAY:
        case TDM_JSON_OBJECT:
                return n->first != TDM_JSON_NONE;
        case TDM_JSON_NUMBER:
                return strtod(w->tools.text + n->text, NULL) != 0.0;
        default:
                return true;
        }
}

static bool is(const struct tdm_chat_writer *w, uint32_t node, const char *text)
{
        return node != TDM_JSON_NONE && w->tools.nodes[node].type == TDM_JSON_STRING &&
               tdm_json_text_is(&w->tools, node, text);
}

/* A string as it is, another value as JSON. */
static int put_value(struct tdm_chat_writer *w, uint32_t node)
{
        const struct tdm_json_node *n = &w->tools.nodes[node];

        return n->type == TDM_JSON_STRING ? tdm_chat_put(w, w->tools.text + n->text, n->text_size) :
                                            tdm_chat_put_json(w, &w->tools, node, 0);
}

static int put_joined(struct tdm_chat_writer *w, uint32_t list, const char *between)
{
        for (uint32_t item = w->tools.nodes[list].first; item != TDM_JSON_NONE; item = w->tools.nodes[item].next) {
                if (item != w->tools.nodes[list].first)
                        TDM_CHAT_TRY(tdm_chat_put_string(w, between));
                TDM_CHAT_TRY(put_value(w, item));
        }
        return 0;
}

static bool is_required(const struct tdm_chat_writer *w, uint32_t required, uint32_t property)
{
        const struct tdm_json_node *p = &w->tools.nodes[property];

        if (required == TDM_JSON_NONE || w->tools.nodes[required].type != TDM_JSON_ARRAY)
                return false;
        for (uint32_t item = w->tools.nodes[required].first; item != TDM_JSON_NONE; item = w->tools.nodes[item].next) {
                const struct tdm_json_node *n = &w->tools.nodes[item];

                if (n->type == TDM_JSON_STRING && n->text_size == p->key_size &&
                    memcmp(w->tools.text + n->text, w->tools.text + p->key, p->key_size) == 0)
                        return true;
        }
        return false;
}

static int put_type(struct tdm_chat_writer *w, uint32_t spec);

static int put_array_type(struct tdm_chat_writer *w, uint32_t spec)
{
        uint32_t items = member(w, spec, "items"), type = member(w, items, "type");
        size_t start = w->run.size;

        if (!is_true(w, items)) {
                TDM_CHAT_TRY(tdm_chat_put_string(w, "any[]"));
        } else {
                if (is(w, type, "string"))
                        TDM_CHAT_TRY(tdm_chat_put_string(w, "string"));
                else {
                        TDM_CHAT_TRY(put_type(w, items));
                        if (w->run.size - start > 50 ||
                            (w->run.size - start == 15 && memcmp(w->run.data + start, "object | object", 15) == 0)) {
                                w->run.size = start;
                                TDM_CHAT_TRY(tdm_chat_put_string(w, "any"));
                        }
                }
                TDM_CHAT_TRY(tdm_chat_put_string(w, "[]"));
        }
        return is_true(w, member(w, spec, "nullable")) ? tdm_chat_put_string(w, " | null") : 0;
}

static int put_object_type(struct tdm_chat_writer *w, uint32_t spec)
{
        uint32_t properties = member(w, spec, "properties"), required = member(w, spec, "required");

        if (!is_true(w, properties) || w->tools.nodes[properties].type != TDM_JSON_OBJECT)
                return tdm_chat_put_string(w, "object");
        TDM_CHAT_TRY(tdm_chat_put_string(w, "{\n"));
        for (uint32_t p = w->tools.nodes[properties].first; p != TDM_JSON_NONE; p = w->tools.nodes[p].next) {
                TDM_CHAT_TRY(tdm_chat_put(w, tdm_json_key(&w->tools, p), w->tools.nodes[p].key_size));
                TDM_CHAT_TRY(tdm_chat_put_string(w, is_required(w, required, p) ? ": " : "?: "));
                TDM_CHAT_TRY(put_type(w, p));
                if (w->tools.nodes[p].next != TDM_JSON_NONE)
                        TDM_CHAT_TRY(tdm_chat_put_string(w, ", "));
        }
        return tdm_chat_put(w, "}", 1);
}

static int put_alternatives(struct tdm_chat_writer *w, uint32_t variants)
{
        for (uint32_t v = w->tools.nodes[variants].first; v != TDM_JSON_NONE; v = w->tools.nodes[v].next) {
                uint32_t text = member(w, v, "description"), otherwise = member(w, v, "default");

                TDM_CHAT_TRY(put_type(w, v));
                if (is_true(w, text)) {
                        TDM_CHAT_TRY(tdm_chat_put_string(w, "// "));
                        TDM_CHAT_TRY(put_value(w, text));
                }
                if (otherwise != TDM_JSON_NONE) {
                        TDM_CHAT_TRY(tdm_chat_put_string(w, "// default: "));
                        TDM_CHAT_TRY(tdm_chat_put_json(w, &w->tools, otherwise, 0));
                }
                if (w->tools.nodes[v].next != TDM_JSON_NONE)
                        TDM_CHAT_TRY(tdm_chat_put_string(w, " | "));
        }
        return 0;
}

/* A JSON schema as a type; recursion ends with the depth that the reader allows. */
static int put_type(struct tdm_chat_writer *w, uint32_t spec)
{
        uint32_t type = member(w, spec, "type"), variants = member(w, spec, "oneOf"), values = member(w, spec, "enum");

        if (is(w, type, "array"))
                return put_array_type(w, spec);
        if (type != TDM_JSON_NONE && w->tools.nodes[type].type == TDM_JSON_ARRAY &&
            w->tools.nodes[type].first != TDM_JSON_NONE)
                return put_joined(w, type, " | ");
        if (is_true(w, variants) && w->tools.nodes[variants].type == TDM_JSON_ARRAY)
                return put_alternatives(w, variants);
        if (is(w, type, "string")) {
                if (is_true(w, values) && w->tools.nodes[values].type == TDM_JSON_ARRAY) {
                        TDM_CHAT_TRY(tdm_chat_put(w, "\"", 1));
                        TDM_CHAT_TRY(put_joined(w, values, "\" | \""));
                        return tdm_chat_put(w, "\"", 1);
                }
                return tdm_chat_put_string(w, is_true(w, member(w, spec, "nullable")) ? "string | null" : "string");
        }
        if (is(w, type, "number") || is(w, type, "integer"))
                return tdm_chat_put_string(w, "number");
        if (is(w, type, "boolean"))
                return tdm_chat_put_string(w, "boolean");
        return is(w, type, "object") ? put_object_type(w, spec) : tdm_chat_put_string(w, "any");
}

static int put_parameter(struct tdm_chat_writer *w, uint32_t p, uint32_t required)
{
        uint32_t text = member(w, p, "description"), otherwise = member(w, p, "default");

        if (is_true(w, text)) {
                TDM_CHAT_TRY(tdm_chat_put_string(w, "// "));
                TDM_CHAT_TRY(put_value(w, text));
                TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        }
        TDM_CHAT_TRY(tdm_chat_put(w, tdm_json_key(&w->tools, p), w->tools.nodes[p].key_size));
        TDM_CHAT_TRY(tdm_chat_put_string(w, is_required(w, required, p) ? ": " : "?: "));
        TDM_CHAT_TRY(put_type(w, p));
        if (otherwise != TDM_JSON_NONE) {
                bool values = is_true(w, member(w, p, "enum")), variants = is_true(w, member(w, p, "oneOf"));

                TDM_CHAT_TRY(tdm_chat_put_string(w, variants && !values ? "// default: " : ", // default: "));
                TDM_CHAT_TRY(values || variants ? put_value(w, otherwise) :
                                                  tdm_chat_put_json(w, &w->tools, otherwise, 0));
        }
        return tdm_chat_put_string(w, ",\n");
}

static int gpt_oss_put_tools(struct tdm_chat_writer *w)
{
        TDM_CHAT_TRY(tdm_chat_put_string(w, "# Tools\n\n## functions\n\nnamespace functions {\n\n"));
        for (uint32_t tool = w->tools.nodes[0].first; tool != TDM_JSON_NONE; tool = w->tools.nodes[tool].next) {
                uint32_t function = tdm_chat_function(w, tool), text = member(w, function, "description");
                uint32_t parameters = member(w, function, "parameters"), required = member(w, parameters, "required");
                uint32_t properties = member(w, parameters, "properties");

                TDM_CHAT_TRY(tdm_chat_put_string(w, "// "));
                if (text != TDM_JSON_NONE)
                        TDM_CHAT_TRY(put_value(w, text));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "\ntype "));
                TDM_CHAT_TRY(put_value(w, member(w, function, "name")));
                TDM_CHAT_TRY(tdm_chat_put_string(w, " = "));
                if (!is_true(w, properties) || w->tools.nodes[properties].type != TDM_JSON_OBJECT) {
                        TDM_CHAT_TRY(tdm_chat_put_string(w, "() => any;\n\n"));
                        continue;
                }
                TDM_CHAT_TRY(tdm_chat_put_string(w, "(_: {\n"));
                for (uint32_t p = w->tools.nodes[properties].first; p != TDM_JSON_NONE; p = w->tools.nodes[p].next)
                        TDM_CHAT_TRY(put_parameter(w, p, required));
                TDM_CHAT_TRY(tdm_chat_put_string(w, "}) => any;\n\n"));
        }
        return tdm_chat_put_string(w, "} // namespace functions");
}

/* ---- messages ---- */

static int put_developer(struct tdm_chat_writer *w, bool has_text)
{
        if (!has_text && !tdm_chat_has_tools(w))
                return 0;
        TDM_CHAT_TRY(open_message(w, "developer"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        if (has_text && w->messages[0].size > 0) {
                TDM_CHAT_TRY(tdm_chat_put_string(w, "# Instructions\n\n"));
                TDM_CHAT_TRY(tdm_chat_put_text(w, tdm_chat_content(&w->messages[0])));
                TDM_CHAT_TRY(tdm_chat_put(w, "\n\n", 2));
        }
        if (tdm_chat_has_tools(w))
                TDM_CHAT_TRY(gpt_oss_put_tools(w));
        return tdm_chat_put_marker(w, "<|end|>");
}

static int put_channel(struct tdm_chat_writer *w, const char *channel, struct tdm_chat_text text)
{
        TDM_CHAT_TRY(open_message(w, "assistant"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|channel|>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, channel));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        TDM_CHAT_TRY(tdm_chat_put_text(w, text));
        return tdm_chat_put_marker(w, "<|end|>");
}

static int put_call(struct tdm_chat_writer *w, size_t i)
{
        const struct tdm_chat_message *m = &w->messages[i];
        bool answered = false;

        if (m->n_calls != 1)
                return tdm_chat_refuse(w, "the model's chat template takes one tool call in a message, not %zu",
                                       m->n_calls);
        for (size_t k = i + 1; k < w->n_messages; k++)
                answered |= w->messages[k].role == TDM_CHAT_ASSISTANT && w->messages[k].n_calls == 0;
        if (m->size > 0 && m->thinking.size > 0)
                return tdm_chat_refuse(w, "message %zu: a message with a tool call has a text or a thought, not both",
                                       i + 1);
        if (!answered && m->size + m->thinking.size > 0)
                TDM_CHAT_TRY(put_channel(w, "analysis", m->size > 0 ? tdm_chat_content(m) : m->thinking));
        TDM_CHAT_TRY(open_message(w, "assistant to=functions."));
        TDM_CHAT_TRY(tdm_chat_put_text(w, m->calls[0].name));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|channel|>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "commentary json"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        TDM_CHAT_TRY(tdm_chat_put_json_text(w, m->calls[0].arguments, TDM_JSON_OBJECT, "a call's arguments"));
        return tdm_chat_put_marker(w, "<|call|>");
}

static int gpt_oss_put_answer(struct tdm_chat_writer *w, size_t i, struct tdm_chat_text name)
{
        if (name.size == 0)
                return tdm_chat_refuse(w, "message %zu answers a tool's call, and there is none before it", i + 1);
        TDM_CHAT_TRY(open_message(w, "functions."));
        TDM_CHAT_TRY(tdm_chat_put_text(w, name));
        TDM_CHAT_TRY(tdm_chat_put_string(w, " to=assistant"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|channel|>"));
        TDM_CHAT_TRY(tdm_chat_put_string(w, "commentary"));
        TDM_CHAT_TRY(tdm_chat_put_marker(w, "<|message|>"));
        TDM_CHAT_TRY(tdm_chat_put_quoted(w, tdm_chat_content(&w->messages[i])));
        return tdm_chat_put_marker(w, "<|end|>");
}

int tdm_chat_render_gpt_oss(struct tdm_chat_writer *w)
{
        bool has_text = w->messages[0].role == TDM_CHAT_SYSTEM;
        struct tdm_chat_text called = { 0 };

        TDM_CHAT_TRY(gpt_oss_put_system(w));
        TDM_CHAT_TRY(put_developer(w, has_text));
        for (size_t i = has_text; i < w->n_messages; i++) {
                const struct tdm_chat_message *m = &w->messages[i];

                if (m->role == TDM_CHAT_USER)
                        TDM_CHAT_TRY(put_message(w, "user", tdm_chat_content(m)));
                else if (m->role == TDM_CHAT_SYSTEM)
                        TDM_CHAT_TRY(put_message(w, "developer", tdm_chat_content(m)));
                else if (m->role == TDM_CHAT_TOOL)
                        TDM_CHAT_TRY(gpt_oss_put_answer(w, i, called));
                else if (m->n_calls > 0) {
                        TDM_CHAT_TRY(put_call(w, i));
                        called = m->calls[0].name;
                } else {
                        TDM_CHAT_TRY(put_channel(w, "final", tdm_chat_content(m)));
                        called.size = 0;
                }
        }
        return open_message(w, "assistant");
}
