/* A conversation, as JSON, becomes the values that a template sees. */
#include "engine/chat/template/private.h"

/* Roles that a request may name. Templates write markers with them (`'<|' + role + '|>'`), so they count as the
 * template's own words; any other role is a stranger's text. */
static const char *const roles[] = {
        "system", "developer", "user", "assistant", "tool", "function", "model", "ipython"
};

static bool is_role(const struct tdm_json *json, uint32_t node)
{
        if (!(tdm_json_get(json, node)->key_size == 4 && memcmp(tdm_json_key(json, node), "role", 4) == 0))
                return false;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(roles); i++)
                if (tdm_json_text_is(json, node, roles[i]))
                        return true;
        return false;
}

static const char *text_take(struct jinja_core *core, const char *text, size_t size, bool copy)
{
        return copy ? memcpy(tdm_jinja_alloc(core, size), text, size) : text;
}

static struct jinja_value list_take(struct jinja_core *core, const struct tdm_json *json, uint32_t node, bool copy)
{
        const struct tdm_json_node *n = tdm_json_get(json, node);
        struct jinja_list *list = tdm_jinja_list(core, JINJA_SHAPE_LIST, n->n);

        for (uint32_t i = n->first; i != TDM_JSON_NONE; i = tdm_json_get(json, i)->next)
                tdm_jinja_list_add(core, list, tdm_jinja_from_json(core, json, i, copy));
        return tdm_jinja_list_value(list);
}

static struct jinja_value dict_take(struct jinja_core *core, const struct tdm_json *json, uint32_t node, bool copy)
{
        struct jinja_dict *dict = tdm_jinja_dict(core);

        for (uint32_t i = tdm_json_get(json, node)->first; i != TDM_JSON_NONE; i = tdm_json_get(json, i)->next) {
                size_t size = tdm_json_get(json, i)->key_size;
                const char *key = text_take(core, tdm_json_key(json, i), size, copy);

                tdm_jinja_dict_set(core, dict, tdm_jinja_text_value(tdm_jinja_string(core, key, size, false)),
                                   tdm_jinja_from_json(core, json, i, copy));
        }
        return (struct jinja_value){ .kind = JINJA_DICT, .dict = dict };
}

struct jinja_value tdm_jinja_from_json(struct jinja_core *core, const struct tdm_json *json, uint32_t node, bool copy)
{
        const struct tdm_json_node *n = tdm_json_get(json, node);

        switch (n->type) {
        case TDM_JSON_FALSE:
        case TDM_JSON_TRUE:
                return tdm_jinja_bool(n->type == TDM_JSON_TRUE);
        case TDM_JSON_NUMBER:
                return tdm_jinja_parse_number(core, text_take(core, tdm_json_text(json, node), n->text_size, copy),
                                              n->text_size);
        case TDM_JSON_STRING:
                return tdm_jinja_text_value(
                        tdm_jinja_string(core, text_take(core, tdm_json_text(json, node), n->text_size, copy),
                                         n->text_size, is_role(json, node)));
        case TDM_JSON_ARRAY:
                return list_take(core, json, node, copy);
        case TDM_JSON_OBJECT:
                return dict_take(core, json, node, copy);
        default:
                return tdm_jinja_none();
        }
}
