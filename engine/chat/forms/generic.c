/* See generic.h. */
#include "engine/chat/forms/generic.h"
#include "engine/chat/forms/turn-private.h"

static void string_put(struct tdm_json_buffer *to, const char *text)
{
        tdm_json_write(to, text, strlen(text));
}

/* A mark; what stands for something else as such a call has it. */
static void mark_put(const struct tdm_chat_form *form, const char *mark, const struct tdm_form_call *call, size_t index,
                     struct tdm_json_buffer *to)
{
        char number[24];

        for (; mark && *mark; mark++) {
                switch ((uint8_t)*mark) {
                case TDM_FORM_NAME:
                        tdm_json_write(to, call->name, call->name_size);
                        break;
                case TDM_FORM_ID:
                        snprintf(number, sizeof(number), "%09zu", index + 1);
                        string_put(to, number);
                        break;
                case TDM_FORM_INDEX:
                        snprintf(number, sizeof(number), "%zu", form->first_index + index);
                        string_put(to, number);
                        break;
                default:
                        tdm_json_write(to, mark, 1);
                }
        }
}

void tdm_form_write_calls(const struct tdm_chat_form *form, const struct tdm_form_call *calls, size_t n,
                          struct tdm_json_buffer *to)
{
        const struct tdm_form_call_marks *m = &form->marks;

        for (size_t i = 0; i < n; i++) {
                mark_put(form, i > 0 && m->gap ? m->gap : m->before, &calls[i], i, to);
                tdm_json_write(to, calls[i].name, calls[i].name_size);
                mark_put(form, m->between, &calls[i], i, to);
                tdm_json_write(to, calls[i].arguments, calls[i].arguments_size);
                if (i + 1 == n || !m->gap)
                        mark_put(form, m->after, &calls[i], i, to);
        }
}

void tdm_form_write_result(const char *name, size_t name_size, const char *text, size_t size,
                           struct tdm_json_buffer *to)
{
        string_put(to, "```tool_output");
        string_put(to, name_size > 0 ? " " : "");
        tdm_json_write(to, name, name_size);
        string_put(to, "\n");
        tdm_json_write(to, text, size);
        string_put(to, "\n```");
}

static int tools_put(const struct tdm_json *json, struct tdm_json_buffer *to, struct tdm_error *err)
{
        if (tdm_json_get(json, 0)->type != TDM_JSON_ARRAY)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "tools: not a JSON array");
        if (tdm_form_check_tools(tdm_json_get(json, 0)->n, err) != 0)
                return TDM_E_BAD_REQUEST;
        for (uint32_t at = tdm_json_get(json, 0)->first; at != TDM_JSON_NONE; at = tdm_json_get(json, at)->next) {
                string_put(to, "\n");
                tdm_json_print(json, tdm_form_function(json, at), to);
        }
        return 0;
}

int tdm_form_instruct(const struct tdm_chat_form *form, const char *tools, size_t size, char **ret,
                      struct tdm_error *err)
{
        static const struct tdm_form_call call = { "NAME", "{\"ARGUMENT\": VALUE}", 4, 19 };
        struct tdm_json_buffer to = { 0 };
        struct tdm_json json = { 0 };
        int r;

        if (form->calls != TDM_FORM_CALLS_GENERIC && form->calls != TDM_FORM_CALLS_JSON)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "tools cannot be explained in the form of this model's calls");
        r = tools ? tdm_json_parse(&json, tools, size, 64, err) : 0;
        if (r != 0)
                return r;
        string_put(&to, "You can call tools. A call is written so, with the tool's name and its arguments as JSON:\n");
        tdm_form_write_calls(form, &call, 1, &to);
        string_put(&to, form->marks.gap ? "\nSeveral calls may follow one another." : "");
        string_put(&to, "\nWrite nothing behind a call: its result comes in the next message. Call a tool only where "
                        "it helps; else answer in words.");
        if (tools) {
                string_put(&to, "\nThe tools, each with a JSON Schema of its arguments:");
                r = tools_put(&json, &to, err);
        }
        tdm_json_write(&to, "", 1);
        tdm_json_deinit(&json);
        if (r == 0 && to.failed)
                r = -ENOMEM;
        if (r == 0)
                *ret = steal_ptr(&to.data);
        free(to.data);
        return r;
}
