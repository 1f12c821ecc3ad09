/* See turn-private.h. */
#include "engine/chat/forms/turn-private.h"
#include "engine/grammar/compose.h"

#include <sys/random.h>

/* Bytes of the control piece that text begins with, 0 for none; *ret_size: of its text. */
static size_t control_match(const struct tdm_tokenizer *tokenizer, const char *text, char *to, size_t capacity,
                            size_t *ret_size)
{
        char name[TDM_MARKER_MAX + 1];
        const char *data, *end = strchr(text, text[0] == '<' ? '>' : ']');
        uint32_t id;

        *ret_size = end ? (size_t)(end + 1 - text) : 0;
        if (*ret_size == 0 || *ret_size >= sizeof(name))
                return 0;
        memcpy(name, text, *ret_size);
        name[*ret_size] = '\0';
        if (tdm_tokenizer_find_marker(tokenizer, name, &id) != 0 ||
            tdm_tokenizer_piece(tokenizer, id, false, &data) != 0)
                return 0;
        return tdm_vocabulary_marker(tokenizer, id, to, capacity);
}

int tdm_form_bind(const struct tdm_tokenizer *tokenizer, const char *text, char **ret)
{
        struct tdm_json_buffer to = { 0 };

        *ret = NULL;
        if (!text)
                return 0;
        while (*text) {
                char marker[TDM_MARKER_MAX + 1];
                size_t size, n = 0;

                if (tokenizer && (*text == '<' || *text == '['))
                        n = control_match(tokenizer, text, marker, sizeof(marker), &size);
                tdm_json_write(&to, n > 0 ? marker : text, n > 0 ? n : 1);
                text += n > 0 ? size : 1;
        }
        tdm_json_write(&to, "", 1);
        if (to.failed) {
                free(to.data);
                return -ENOMEM;
        }
        *ret = to.data;
        return 0;
}

int tdm_form_marks_init(struct tdm_form_marks *ret, const struct tdm_chat_form *form,
                        const struct tdm_tokenizer *tokenizer)
{
        const struct tdm_form_call_marks *m = &form->marks;
        struct tdm_form_call_marks *c = &ret->calls;
        const struct {
                const char *from;
                char **to;
        } texts[] = { { m->start, &c->start },
                      { m->before, &c->before },
                      { m->between, &c->between },
                      { m->gap, &c->gap },
                      { m->after, &c->after },
                      { m->open, &c->open },
                      { m->next, &c->next },
                      { m->value_end, &c->value_end },
                      { m->close_string, &c->close_string },
                      { m->empty_gap, &c->empty_gap },
                      { m->empty_after, &c->empty_after },
                      { form->think_begin, &ret->think_begin },
                      { form->think_end, &ret->think_end },
                      { form->text_begin, &ret->text_begin },
                      { form->text_end, &ret->text_end },
                      { form->calls == TDM_FORM_CALLS_CHANNELLED ? "<|message|>" : NULL, &ret->message } };
        int r = 0;

        *ret = (struct tdm_form_marks){ 0 };
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(texts) && r == 0; i++)
                r = tdm_form_bind(tokenizer, texts[i].from, texts[i].to);
        for (unsigned i = 0; i < TDM_FORM_N_TYPES && r == 0; i++)
                r = tdm_form_bind(tokenizer, m->as[i], &c->as[i]);
        return r;
}

void tdm_form_marks_deinit(struct tdm_form_marks *marks)
{
        struct tdm_form_call_marks *c = &marks->calls;
        char *texts[] = { c->start,         c->before,         c->between,      c->gap,
                          c->after,         c->open,           c->next,         c->value_end,
                          c->close_string,  c->empty_gap,      c->empty_after,  marks->think_begin,
                          marks->think_end, marks->text_begin, marks->text_end, marks->message };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(texts); i++)
                free(texts[i]);
        for (unsigned i = 0; i < TDM_FORM_N_TYPES; i++)
                free(c->as[i]);
}

int tdm_form_without_id(const char *mark, char **ret)
{
        const char *slot = mark ? strchr(mark, (char)TDM_FORM_ID) : NULL, *comma = slot;

        while (comma && comma > mark && *comma != ',' && *comma != '{')
                comma--;
        if (!comma || *comma != ',' || slot[1] != '"')
                return 0;
        return asprintf(ret, "%.*s%s", (int)(comma - mark), mark, slot + 2) < 0 ? -ENOMEM : 0;
}

void tdm_form_id_make(char *id)
{
        static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        uint8_t bytes[TDM_FORM_ID_BYTES] = { 0 };

        /* Of a few bytes it fails only before the kernel has entropy; then ids are less random, and calls still differ
         * from what else is in the conversation by their names. */
        (void)!getrandom(bytes, sizeof(bytes), GRND_NONBLOCK);
        for (unsigned i = 0; i < TDM_FORM_ID_BYTES; i++)
                id[i] = letters[bytes[i] % (sizeof(letters) - 1)];
        id[TDM_FORM_ID_BYTES] = '\0';
}

/* ---- values ---- */

static bool is_json_number(const char *text, size_t size)
{
        size_t i = size > 0 && text[0] == '-', digits = i;

        while (i < size && text[i] >= '0' && text[i] <= '9')
                i++;
        if (i == digits || (text[digits] == '0' && i > digits + 1))
                return false;
        if (i < size && text[i] == '.') {
                digits = ++i;
                while (i < size && text[i] >= '0' && text[i] <= '9')
                        i++;
                if (i == digits)
                        return false;
        }
        if (i < size && (text[i] == 'e' || text[i] == 'E')) {
                i += 1 + (i + 1 < size && (text[i + 1] == '+' || text[i + 1] == '-'));
                digits = i;
                while (i < size && text[i] >= '0' && text[i] <= '9')
                        i++;
                if (i == digits)
                        return false;
        }
        return i == size;
}

bool tdm_form_is_json_word(const char *text, size_t size)
{
        static const char *const words[] = { "true", "false", "null", "True", "False", "None" };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (size == strlen(words[i]) && memcmp(text, words[i], size) == 0)
                        return true;
        return is_json_number(text, size);
}

/* ---- tools ---- */

int tdm_form_check_tools(uint32_t n, struct tdm_error *err)
{
        if (n <= TDM_FORM_TOOLS_MAX)
                return 0;
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "tools: %u are given; at most %u are taken", n,
                             TDM_FORM_TOOLS_MAX);
}

uint32_t tdm_form_member(const struct tdm_json *json, uint32_t object, const char *name)
{
        if (object == TDM_JSON_NONE || tdm_json_get(json, object)->type != TDM_JSON_OBJECT)
                return TDM_JSON_NONE;
        return tdm_json_member(json, object, name);
}

uint32_t tdm_form_function(const struct tdm_json *json, uint32_t tool)
{
        uint32_t function = tdm_form_member(json, tool, "function");

        return function == TDM_JSON_NONE ? tool : function;
}

/* Follows "#/a/b" from root, without escapes. The names of the way go to place, if any. */
static uint32_t ref_follow(const struct tdm_json *json, uint32_t root, uint32_t ref, struct tdm_form_place *place)
{
        const char *text = tdm_json_text(json, ref), *end = text + tdm_json_get(json, ref)->text_size;
        uint32_t node = root;
        size_t at = 0;

        if (tdm_json_get(json, ref)->type != TDM_JSON_STRING || text == end || *text++ != '#')
                return TDM_JSON_NONE;
        if (place)
                place->n_path = 0;
        while (text < end && node != TDM_JSON_NONE) {
                const char *next = memchr(text + 1, '/', (size_t)(end - text - 1));
                size_t size = (size_t)((next ? next : end) - text - 1);

                if (*text != '/' || memchr(text, '~', size) || memchr(text, '%', size))
                        return TDM_JSON_NONE;
                node = tdm_json_get(json, node)->type == TDM_JSON_OBJECT ? tdm_json_find(json, node, text + 1, size) :
                                                                           TDM_JSON_NONE;
                if (place) {
                        if (place->n_path + 2 > TDM_FORM_PATH_MAX || at + size + 1 > sizeof(place->names))
                                return TDM_JSON_NONE;
                        place->path[place->n_path++] = place->names + at;
                        memcpy(place->names + at, text + 1, size);
                        place->names[at + size] = '\0';
                        at += size + 1;
                }
                text += size + 1;
        }
        return node;
}

void tdm_form_place_find(const struct tdm_json *json, uint32_t parameters, struct tdm_form_place *ret)
{
        *ret = (struct tdm_form_place){ .node = parameters };
        for (unsigned i = 0; i < 8; i++) {
                uint32_t ref = tdm_form_member(json, ret->node, "$ref");

                if (ref == TDM_JSON_NONE)
                        return;
                ret->node = ref_follow(json, parameters, ref, ret);
        }
        ret->node = TDM_JSON_NONE;
}

/* Which of strings and others are in a list, or a single one. */
static enum tdm_form_values values_in(const struct tdm_json *json, uint32_t node, bool are_types)
{
        bool strings = false, others = false;
        const struct tdm_json_node *n = tdm_json_get(json, node);

        for (uint32_t i = n->type == TDM_JSON_ARRAY ? n->first : node; i != TDM_JSON_NONE;
             i = n->type == TDM_JSON_ARRAY ? tdm_json_get(json, i)->next : TDM_JSON_NONE) {
                bool is = are_types ? tdm_json_text_is(json, i, "string") :
                                      tdm_json_get(json, i)->type == TDM_JSON_STRING;

                strings |= is;
                others |= !is;
        }
        return strings && others ? TDM_FORM_VALUES_MIXED : strings ? TDM_FORM_VALUES_STRINGS : TDM_FORM_VALUES_OTHERS;
}

enum tdm_form_values tdm_form_values_of(const struct tdm_json *json, uint32_t root, uint32_t schema)
{
        for (unsigned i = 0; i < 8 && schema != TDM_JSON_NONE; i++) {
                uint32_t node = tdm_form_member(json, schema, "type");

                if (node != TDM_JSON_NONE)
                        return values_in(json, node, true);
                node = tdm_form_member(json, schema, "enum");
                if (node != TDM_JSON_NONE)
                        return values_in(json, node, false);
                node = tdm_form_member(json, schema, "const");
                if (node != TDM_JSON_NONE)
                        return tdm_json_get(json, node)->type == TDM_JSON_STRING ? TDM_FORM_VALUES_STRINGS :
                                                                                   TDM_FORM_VALUES_OTHERS;
                node = tdm_form_member(json, schema, "$ref");
                if (node == TDM_JSON_NONE)
                        break;
                schema = ref_follow(json, root, node, NULL);
        }
        return TDM_FORM_VALUES_MIXED;
}

enum tdm_form_values tdm_form_values_find(const struct tdm_json *json, const char *tool, const char *key, size_t size)
{
        for (uint32_t at = tdm_json_get(json, 0)->first; at != TDM_JSON_NONE; at = tdm_json_get(json, at)->next) {
                uint32_t function = tdm_form_function(json, at), name = tdm_form_member(json, function, "name");
                uint32_t parameters = tdm_form_member(json, function, "parameters"), properties;
                struct tdm_form_place place;

                if (name == TDM_JSON_NONE || !tdm_json_text_is(json, name, tool) || parameters == TDM_JSON_NONE)
                        continue;
                tdm_form_place_find(json, parameters, &place);
                properties = tdm_form_member(json, place.node, "properties");
                if (properties == TDM_JSON_NONE || tdm_json_get(json, properties)->type != TDM_JSON_OBJECT)
                        break;
                return tdm_form_values_of(json, parameters, tdm_json_find(json, properties, key, size));
        }
        return TDM_FORM_VALUES_MIXED;
}
