/* JSON back into text. */
#include "engine/grammar/json.h"

void tdm_json_write(struct tdm_json_buffer *to, const char *text, size_t size)
{
        if (size > to->capacity - to->size) {
                size_t capacity = TDM_MAX(to->capacity * 2, to->size + size + 64);
                char *data = realloc(to->data, capacity);

                if (!data) {
                        to->failed = true;
                        return;
                }
                to->data = data;
                to->capacity = capacity;
        }
        if (size > 0)
                memcpy(to->data + to->size, text, size);
        to->size += size;
}

void tdm_json_write_string(struct tdm_json_buffer *to, const char *text, size_t size)
{
        static const char from[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        char escape[8];

        tdm_json_write(to, "\"", 1);
        for (size_t i = 0; i < size; i++) {
                const char *found = text[i] ? strchr(from, text[i]) : NULL;

                if (found) {
                        escape[0] = '\\';
                        escape[1] = letters[found - from];
                        tdm_json_write(to, escape, 2);
                } else if ((uint8_t)text[i] < 0x20) {
                        snprintf(escape, sizeof(escape), "\\u%04x", (uint8_t)text[i]);
                        tdm_json_write(to, escape, 6);
                } else {
                        tdm_json_write(to, text + i, 1);
                }
        }
        tdm_json_write(to, "\"", 1);
}

void tdm_json_print(const struct tdm_json *json, uint32_t node, struct tdm_json_buffer *to)
{
        static const char *const words[] = { "null", "false", "true" };
        const struct tdm_json_node *n;
        bool object;

        node = tdm_json_deref(json, node);
        n = tdm_json_get(json, node);
        object = n->type == TDM_JSON_OBJECT;
        switch (n->type) {
        case TDM_JSON_NUMBER:
                tdm_json_write(to, json->text + n->text, n->text_size);
                return;
        case TDM_JSON_STRING:
                tdm_json_write_string(to, json->text + n->text, n->text_size);
                return;
        case TDM_JSON_ARRAY:
        case TDM_JSON_OBJECT:
                break;
        default:
                tdm_json_write(to, words[n->type], strlen(words[n->type]));
                return;
        }
        tdm_json_write(to, object ? "{" : "[", 1);
        for (uint32_t i = n->first; i != TDM_JSON_NONE; i = tdm_json_get(json, i)->next) {
                if (i != n->first)
                        tdm_json_write(to, ",", 1);
                if (object) {
                        tdm_json_write_string(to, tdm_json_key(json, i), tdm_json_get(json, i)->key_size);
                        tdm_json_write(to, ":", 1);
                }
                tdm_json_print(json, i, to);
        }
        tdm_json_write(to, object ? "}" : "]", 1);
}
