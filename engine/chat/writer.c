/* Writing a conversation: markers as pieces, what lies between two of them as one run of text.
 *
 * A run (a role's name, line ends, a content) is encoded as one, without control pieces. That gives the ids that the
 * template's text would give, except where a content holds a marker's text: there it stays text. */
#include "engine/chat/private.h"

#include <stdarg.h>

int tdm_chat_refuse(struct tdm_chat_writer *w, const char *format, ...)
{
        char text[400];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        return tdm_error_set(w->err, -EINVAL, "%s", text);
}

int tdm_chat_flush(struct tdm_chat_writer *w, unsigned flags)
{
        size_t room = w->n_ids < w->capacity ? w->capacity - w->n_ids : 0;
        ssize_t n;

        if (w->run.failed)
                return -ENOMEM;
        n = tdm_tokenizer_encode_within(w->tokenizer, w->run.data ? w->run.data : "", w->run.size, flags, w->budget,
                                        room ? w->ids + w->n_ids : NULL, room);
        if (n < 0)
                return (int)n;
        w->n_ids += (size_t)n;
        w->run.size = 0;
        return 0;
}

static int put_piece(struct tdm_chat_writer *w, uint32_t id)
{
        int r = w->run.size ? tdm_chat_flush(w, 0) : 0;

        if (r < 0)
                return r;
        if (w->n_ids < w->capacity)
                w->ids[w->n_ids] = id;
        w->n_ids++;
        return 0;
}

int tdm_chat_put_marker(struct tdm_chat_writer *w, const char *marker)
{
        uint32_t id;

        if (tdm_tokenizer_find_marker(w->tokenizer, marker, &id) < 0)
                return tdm_chat_refuse(w, "the model's vocabulary has no %s", marker);
        return put_piece(w, id);
}

int tdm_chat_put_mark(struct tdm_chat_writer *w, const char *mark)
{
        uint32_t id;

        if (tdm_tokenizer_find_marker(w->tokenizer, mark, &id) < 0)
                return tdm_chat_put_string(w, mark);
        return put_piece(w, id);
}

int tdm_chat_put(struct tdm_chat_writer *w, const char *text, size_t size)
{
        tdm_json_write(&w->run, text, size);
        return w->run.failed ? -ENOMEM : 0;
}

int tdm_chat_put_string(struct tdm_chat_writer *w, const char *text)
{
        return tdm_chat_put(w, text, strlen(text));
}

int tdm_chat_put_quoted(struct tdm_chat_writer *w, struct tdm_chat_text text)
{
        tdm_json_write_string(&w->run, text.data, text.size);
        return w->run.failed ? -ENOMEM : 0;
}

/* Behind an item's comma, or at a bracket: a new line, or the space of a line that goes on. */
static int put_break(struct tdm_chat_writer *w, unsigned indent, unsigned level, const char *otherwise)
{
        if (indent == 0)
                return tdm_chat_put_string(w, otherwise);
        TDM_CHAT_TRY(tdm_chat_put(w, "\n", 1));
        for (unsigned i = 0; i < indent * level; i++)
                TDM_CHAT_TRY(tdm_chat_put(w, " ", 1));
        return 0;
}

static int put_json(struct tdm_chat_writer *w, const struct tdm_json *json, uint32_t node, unsigned indent,
                    unsigned level)
{
        const struct tdm_json_node *n = tdm_json_get(json, node);
        bool object = n->type == TDM_JSON_OBJECT;

        if (n->type != TDM_JSON_ARRAY && !object) {
                tdm_json_print(json, node, &w->run);
                return w->run.failed ? -ENOMEM : 0;
        }
        TDM_CHAT_TRY(tdm_chat_put(w, object ? "{" : "[", 1));
        for (uint32_t child = n->first; child != TDM_JSON_NONE; child = tdm_json_get(json, child)->next) {
                if (child != n->first)
                        TDM_CHAT_TRY(tdm_chat_put(w, ",", 1));
                TDM_CHAT_TRY(put_break(w, indent, level + 1, child == n->first ? "" : " "));
                if (object) {
                        tdm_json_write_string(&w->run, tdm_json_key(json, child), tdm_json_get(json, child)->key_size);
                        TDM_CHAT_TRY(tdm_chat_put(w, ": ", 2));
                }
                TDM_CHAT_TRY(put_json(w, json, child, indent, level + 1));
        }
        if (n->first != TDM_JSON_NONE)
                TDM_CHAT_TRY(put_break(w, indent, level, ""));
        return tdm_chat_put(w, object ? "}" : "]", 1);
}

int tdm_chat_put_json(struct tdm_chat_writer *w, const struct tdm_json *json, uint32_t node, unsigned indent)
{
        return put_json(w, json, node, indent, 0);
}

int tdm_chat_put_json_text(struct tdm_chat_writer *w, struct tdm_chat_text text, enum tdm_json_type type,
                           const char *what)
{
        struct tdm_json json = { 0 };
        struct tdm_error err;
        int r;

        r = tdm_json_parse(&json, text.data ? text.data : "", text.size, 64, &err);
        if (r != 0)
                r = tdm_chat_refuse(w, "%s: %s", what, err.message);
        else if (json.nodes[0].type != type)
                r = tdm_chat_refuse(w, "%s: not a JSON object", what);
        else
                r = tdm_chat_put_json(w, &json, 0, 0);
        tdm_json_deinit(&json);
        return r;
}

int tdm_chat_put_date(struct tdm_chat_writer *w, bool sorted)
{
        time_t now = w->options.now ? w->options.now : time(NULL);
        char text[64];
        struct tm tm;
        size_t size;

        if (!localtime_r(&now, &tm))
                return tdm_chat_refuse(w, "the date cannot be written");
        size = sorted ? strftime(text, sizeof(text), "%Y-%m-%d", &tm) : strftime(text, sizeof(text), "%d %b %Y", &tm);
        return tdm_chat_put(w, text, size);
}

static bool is_white(char c)
{
        return c == ' ' || (c >= '\t' && c <= '\r');
}

struct tdm_chat_text tdm_chat_trim(struct tdm_chat_text text)
{
        while (text.size > 0 && is_white(text.data[0])) {
                text.data++;
                text.size--;
        }
        while (text.size > 0 && is_white(text.data[text.size - 1]))
                text.size--;
        return text;
}

bool tdm_chat_has_tools(const struct tdm_chat_writer *w)
{
        return w->tools.n_nodes > 0 && w->tools.nodes[0].first != TDM_JSON_NONE;
}

uint32_t tdm_chat_function(const struct tdm_chat_writer *w, uint32_t tool)
{
        uint32_t function = TDM_JSON_NONE;

        if (w->tools.nodes[tool].type == TDM_JSON_OBJECT)
                function = tdm_json_member(&w->tools, tool, "function");
        return function == TDM_JSON_NONE ? tool : function;
}
