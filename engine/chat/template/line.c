/* `tandem render-template`: a template and a conversation in a line, the prompt in a line. */
#include "engine/chat/template/template.h"

/* How deep values of a request may nest. */
#define LINE_DEPTH 100u

static const struct {
        const char *name;
        bool is_needed;
} fields[] = { { "template", true }, { "bos", false }, { "eos", false }, { "now", false } };

static void answer_put(struct tdm_json_buffer *to, const char *member, const char *text, size_t size)
{
        tdm_json_write(to, member, strlen(member));
        tdm_json_write_string(to, text, size);
}

/* {"id": …, MEMBER: …} */
static int answer_make(const struct tdm_json *json, const char *member, const char *text, size_t size, char **ret)
{
        struct tdm_json_buffer to = { 0 };
        uint32_t id = json ? tdm_json_member(json, 0, "id") : TDM_JSON_NONE;

        tdm_json_write(&to, "{\"id\":", 6);
        if (id != TDM_JSON_NONE)
                tdm_json_print(json, id, &to);
        else
                tdm_json_write(&to, "null", 4);
        answer_put(&to, member, text, size);
        tdm_json_write(&to, "}", 2); /* with the NUL */
        if (to.failed) {
                free(to.data);
                return -ENOMEM;
        }
        *ret = to.data;
        return 0;
}

static int answer_error(const struct tdm_json *json, const char *message, char **ret)
{
        return answer_make(json, ",\"error\":", message, strlen(message), ret);
}

/* "2026-01-15T12:34:56" */
static bool time_read(const char *text, struct tm *ret)
{
        const char *end;

        *ret = (struct tm){ .tm_isdst = -1 };
        end = strptime(text, "%Y-%m-%dT%H:%M:%S", ret);
        return end && *end == '\0';
}

static bool is_true(const struct tdm_json *json, const char *name)
{
        uint32_t node = tdm_json_member(json, 0, name);

        return node != TDM_JSON_NONE && tdm_json_get(json, node)->type == TDM_JSON_TRUE;
}

/* Fields of the line; every other member is a variable of the template. */
static const char *const hidden[] = { "id", "template", "bos", "eos", "now", "continue_final_message", NULL };

static int line_render(const struct tdm_json *json, size_t size, char *const *texts, const struct tm *now, char **ret)
{
        struct tdm_template_limits limits = tdm_template_limits_for(size);
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        const struct tdm_template_input input = {
                .json = json,
                .object = 0,
                .hidden = hidden,
                .bos = texts[1] ? texts[1] : "",
                .eos = texts[2] ? texts[2] : "",
                .now = now,
                .continue_final = is_true(json, "continue_final_message"),
        };
        struct tdm_template_result result;
        struct tdm_error err;
        uint32_t source = tdm_json_member(json, 0, "template");
        int r;

        r = tdm_template_new(&template, texts[0], tdm_json_get(json, source)->text_size, &err);
        if (r < 0)
                return r;
        if (r > 0)
                return answer_error(json, err.message, ret);
        r = tdm_template_render(template, &input, &limits, &result, &err);
        if (r == 0)
                r = answer_make(json, ",\"text\":", result.text, result.size, ret);
        else if (r > 0)
                r = result.refusal ? answer_error(json, result.refusal, ret) : answer_error(json, err.message, ret);
        tdm_template_result_deinit(&result);
        return r;
}

/* The fields as copies with a NUL behind them. *ret: what is wrong with them, or NULL. */
static int fields_take(const struct tdm_json *json, char **texts, char **ret)
{
        char message[128];

        *ret = NULL;
        if (tdm_json_get(json, 0)->type != TDM_JSON_OBJECT)
                return answer_error(NULL, "a line has to be a JSON object", ret);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(fields); i++) {
                uint32_t node = tdm_json_member(json, 0, fields[i].name);

                if (node == TDM_JSON_NONE && !fields[i].is_needed)
                        continue;
                if (node == TDM_JSON_NONE || tdm_json_get(json, node)->type != TDM_JSON_STRING) {
                        snprintf(message, sizeof(message), "the member \"%s\" has to be a text", fields[i].name);
                        return answer_error(json, message, ret);
                }
                texts[i] = malloc(tdm_json_get(json, node)->text_size + 1);
                if (!texts[i])
                        return -ENOMEM;
                memcpy(texts[i], tdm_json_text(json, node), tdm_json_get(json, node)->text_size);
                texts[i][tdm_json_get(json, node)->text_size] = '\0';
        }
        return 0;
}

static int line_answer(const struct tdm_json *json, size_t size, char *const *texts, char **ret)
{
        struct tm now;

        if (texts[3] && !time_read(texts[3], &now))
                return answer_error(json, "the member \"now\" has to be a time like 2026-01-15T12:34:56", ret);
        return line_render(json, size, texts, texts[3] ? &now : NULL, ret);
}

static int line_take(const struct tdm_json *json, size_t size, char **ret)
{
        char *texts[TDM_ARRAY_SIZE(fields)] = { 0 };
        int r;

        r = fields_take(json, texts, ret);
        if (!r && !*ret)
                r = line_answer(json, size, texts, ret);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(fields); i++)
                free(texts[i]);
        return r;
}
int tdm_template_render_line(const char *line, size_t size, char **ret)
{
        struct tdm_error err;
        struct tdm_json json;
        int r;

        r = tdm_json_parse(&json, line, size, LINE_DEPTH, &err);
        if (r < 0)
                return r;
        if (r > 0)
                return answer_error(NULL, err.message, ret);
        r = line_take(&json, size, ret);
        tdm_json_deinit(&json);
        return r;
}
