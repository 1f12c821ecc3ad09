/* Probes: short conversations that a template renders, so that two renderings differ in one thing. */
#include "engine/chat/forms/private.h"

/* The limits of a rendering: the templates that are known need a hundredth of it. */
#define PROBE_STEPS 100000u
#define PROBES_STEPS 1000000u /* of all together */
#define PROBE_BYTES ((size_t)4 << 20)

static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"zqfa\",\"description\":\"d\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"zqka\":{\"type\":\"string\",\"description\":\"d\"},\"zqkb\":{\"type\":"
        "\"integer\","
        "\"description\":\"d\"}},\"required\":[]}}},{\"type\":\"function\",\"function\":{\"name\":\"zqfb\","
        "\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"zqka\":{\"type\":\"string\","
        "\"description\":\"d\"}},\"required\":[]}}}]";

static char *input_render(struct tdm_form_probe *p, const char *input, size_t size)
{
        const struct tdm_template_limits limits = { .steps = TDM_MIN(PROBE_STEPS, PROBES_STEPS - p->steps),
                                                    .bytes = PROBE_BYTES };
        struct tm now = { .tm_year = 126, .tm_mon = 0, .tm_mday = 15, .tm_hour = 12, .tm_isdst = -1 };
        struct tdm_json json = { 0 };
        struct tdm_template_input in = { .json = &json, .bos = p->bos, .eos = p->eos, .now = &now };
        struct tdm_template_result result = { 0 };
        struct tdm_error err = { 0 };
        char *text = NULL;
        int r;

        r = tdm_json_parse(&json, input, size, 64, &err);
        if (r == 0)
                r = tdm_template_render(p->template, &in, &limits, &result, &err);
        p->steps += result.steps;
        if (r == 0)
                text = steal_ptr(&result.text);
        else
                snprintf(p->refusal, sizeof(p->refusal), "%.90s", result.refusal ? result.refusal : err.message);
        p->is_exhausted |= r == TDM_E_TOO_LONG;
        p->failed |= r < 0;
        tdm_template_result_deinit(&result);
        tdm_json_deinit(&json);
        return text;
}

static void input_put(struct tdm_json_buffer *to, const char *text)
{
        tdm_json_write(to, text, strlen(text));
}

/* content: JSON. Only strings become lists of parts. */
static void content_put(struct tdm_json_buffer *to, const struct tdm_form_probe *p, enum tdm_form_role role,
                        const char *content)
{
        bool in_parts = p->in_parts[role] && content[0] == '"';

        input_put(to, in_parts ? ",\"content\":[{\"type\":\"text\",\"text\":" : ",\"content\":");
        input_put(to, content);
        input_put(to, in_parts ? "}]" : "");
}

static void turn_put(struct tdm_json_buffer *to, const struct tdm_form_probe *p, const struct tdm_form_turn *turn)
{
        input_put(to, ",{\"role\":\"assistant\"");
        if (turn->content)
                content_put(to, p, TDM_FORM_ASSISTANT_ROLE, turn->content);
        if (turn->reasoning_key) {
                input_put(to, ",\"");
                input_put(to, turn->reasoning_key);
                input_put(to, "\":\"" TDM_FORM_THOUGHT "\"");
        }
        if (turn->calls) {
                input_put(to, ",\"tool_calls\":");
                input_put(to, turn->calls);
        }
        input_put(to, "}");
}

static void messages_put(struct tdm_json_buffer *to, const struct tdm_form_probe *p, const struct tdm_form_turn *turn,
                         bool has_turn)
{
        if (turn->has_system) {
                input_put(to, "{\"role\":\"system\"");
                content_put(to, p, TDM_FORM_SYSTEM_ROLE, "\"" TDM_FORM_SYSTEM "\"");
                input_put(to, "},");
        }
        input_put(to, "{\"role\":\"user\"");
        content_put(to, p, TDM_FORM_USER_ROLE, "\"" TDM_FORM_ASKED "\"");
        input_put(to, "}");
        if (has_turn)
                turn_put(to, p, turn);
        if (turn->result_of) {
                input_put(to, ",{\"role\":\"tool\",\"name\":\"zqfa\",\"tool_call_id\":\"");
                input_put(to, turn->result_of);
                input_put(to, "\"");
                content_put(to, p, TDM_FORM_TOOL_ROLE, "\"" TDM_FORM_RESULT "\"");
                input_put(to, "}");
        }
        if (turn->ends_with_user) {
                input_put(to, ",{\"role\":\"user\"");
                content_put(to, p, TDM_FORM_USER_ROLE, "\"Zqmore\"");
                input_put(to, "}");
        }
}

static char *probe_render(struct tdm_form_probe *p, const struct tdm_form_turn *turn, bool has_turn)
{
        struct tdm_json_buffer to = { 0 };
        char *text = NULL;

        if (p->is_exhausted || p->failed)
                return NULL;
        input_put(&to, "{");
        input_put(&to, turn->variables ? turn->variables : "");
        input_put(&to, turn->has_tools ? "\"tools\":" : "\"tools\":null");
        input_put(&to, turn->has_tools ? tools : "");
        input_put(&to, ",\"documents\":null,\"add_generation_prompt\":");
        input_put(&to, turn->opens ? "true" : "false");
        input_put(&to, ",\"messages\":[");
        messages_put(&to, p, turn, has_turn);
        input_put(&to, "]}");
        if (to.failed)
                p->failed = true;
        else
                text = input_render(p, to.data, to.size);
        free(to.data);
        return text;
}

char *tdm_form_render(struct tdm_form_probe *p, const struct tdm_form_turn *turn)
{
        return probe_render(p, turn, true);
}

char *tdm_form_render_prompt(struct tdm_form_probe *p, const char *variables, bool with_tools)
{
        const struct tdm_form_turn turn = { .variables = variables, .has_tools = with_tools, .opens = true };

        return probe_render(p, &turn, false);
}

char *tdm_form_render_system(struct tdm_form_probe *p)
{
        const struct tdm_form_turn turn = { .has_system = true, .opens = true };

        return probe_render(p, &turn, false);
}
