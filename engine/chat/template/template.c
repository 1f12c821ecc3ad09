/* Parsing and rendering as a whole. */
#include <sys/random.h>
#include "engine/chat/template/private.h"
#include "common/utf8.h"

/* Bounds of a template: of its tree, and of rendering a short conversation. A released template of 20 KiB takes 0.5
 * MiB, and up to 100,000 steps for 20 messages. */
#define PARSE_BYTES (UINT64_C(32) << 20)
#define RENDER_STEPS 400000u
#define RENDER_BYTES (UINT64_C(16) << 20)
/* More of them for each byte of a conversation. */
#define STEPS_A_BYTE 2u
#define BYTES_A_BYTE 24u

/* What transformers puts behind the last message to find its place again. */
#define FINAL_TAG "CONTINUE_FINAL_MESSAGE_TAG "

/* Names. */

static uint32_t name_hash(uint32_t seed, const char *name, size_t size)
{
        uint32_t h = 2166136261u ^ seed;

        for (size_t i = 0; i < size; i++)
                h = (h ^ (uint8_t)name[i]) * 16777619u;
        return h;
}

static const struct jinja_string **name_slot(const struct tdm_template *template, const char *name, size_t size)
{
        size_t k = name_hash(template->seed, name, size);

        for (;; k++) {
                const struct jinja_string **slot = &template->names[k & (template->n_name_slots - 1)];

                if (!*slot || ((*slot)->size == size && memcmp((*slot)->data, name, size) == 0))
                        return slot;
        }
}

static void names_grow(struct tdm_template *template)
{
        const struct jinja_string **old = template->names;
        size_t n_old = template->n_name_slots;

        template->n_name_slots = TDM_MAX(n_old * 2, (size_t)64);
        template->names = tdm_jinja_calloc(&template->core, template->n_name_slots * sizeof(*template->names));
        for (size_t i = 0; i < n_old; i++)
                if (old[i])
                        *name_slot(template, old[i]->data, old[i]->size) = old[i];
}

const struct jinja_string *tdm_jinja_intern(struct tdm_template *template, const char *name, size_t size)
{
        const struct jinja_string **slot;

        if ((template->n_names + 1) * 2 > template->n_name_slots)
                names_grow(template);
        slot = name_slot(template, name, size);
        if (!*slot) {
                struct jinja_string *string = tdm_jinja_string(&template->core, name, size, true);

                tdm_jinja_n_chars(&template->core, string);
                *slot = string;
                template->n_names++;
        }
        return *slot;
}

const struct jinja_string *tdm_jinja_interned(const struct tdm_template *template, const char *name, size_t size)
{
        return template->n_name_slots > 0 ? *name_slot(template, name, size) : NULL;
}

/* Parsing. */

/* jinja2 refuses an unknown filter or test when it compiles, but for those within an if: there it is refused when it is
 * reached. */
static void filters_check(struct tdm_template *template, const struct jinja_node *node, bool within_if)
{
        for (; node; node = node->next) {
                bool soft = within_if;

                if ((node->kind == JINJA_NODE_FILTER || node->kind == JINJA_NODE_TEST) && !node->builtin &&
                    !within_if) {
                        template->core.line = node->line;
                        tdm_jinja_fail_code(&template->core, TDM_E_UNSUPPORTED, "there is no %s \"%.*s\"",
                                            node->kind == JINJA_NODE_TEST ? "test" : "filter",
                                            TDM_UTF8_CUT(node->name->data, TDM_MIN(node->name->size, (size_t)40)));
                }
                if (node->kind == JINJA_NODE_IF || node->kind == JINJA_NODE_CHOICE)
                        soft = true;
                else if (node->kind == JINJA_NODE_FOR || node->kind >= JINJA_NODE_SET_BLOCK)
                        soft = false;
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(node->child); i++)
                        filters_check(template, node->child[i], soft);
        }
}

static void template_parse(struct tdm_template *template, const char *source, size_t size)
{
        struct jinja_parser p = { .core = &template->core, .template = template };

        tdm_jinja_lex(&template->core, source, size, &p.tokens);
        template->body = tdm_jinja_parse(&p);
        template->core.source = NULL;
        template->has_word_content = memmem(source, size, "content", 7) != NULL;
        filters_check(template, template->body, false);
        template->core.line = 0;
}

int tdm_template_new(struct tdm_template **ret, const char *source, size_t size, struct tdm_error *err)
{
        struct tdm_template *template = calloc(1, sizeof(*template));
        int code;

        if (!template)
                return -ENOMEM;
        (void)!getrandom(&template->seed, sizeof(template->seed), GRND_NONBLOCK);
        template->core = (struct jinja_core){ .err = err, .bytes_left = PARSE_BYTES, .steps_left = UINT64_MAX };
        if (setjmp(template->core.out)) {
                code = template->core.code;
                tdm_template_destroy(template);
                return code == TDM_E_TOO_LONG ? tdm_error_set(err, TDM_E_UNSUPPORTED, "the chat template is too long") :
                                                code;
        }
        template_parse(template, source, size);
        template->core.err = NULL;
        *ret = template;
        return 0;
}

void tdm_template_destroy(struct tdm_template *template)
{
        if (template)
                tdm_jinja_free_all(&template->core);
        free(template);
}

void tdm_template_destroyp(struct tdm_template **template)
{
        tdm_template_destroy(*template);
}

size_t tdm_template_memory(const struct tdm_template *template)
{
        return sizeof(*template) + template->core.bytes_used;
}

bool tdm_template_reads(const struct tdm_template *template, const char *name)
{
        return tdm_jinja_interned(template, name, strlen(name)) != NULL;
}

/* Rendering. */

struct tdm_template_limits tdm_template_limits_for(size_t input_bytes)
{
        return (struct tdm_template_limits){
                .steps = RENDER_STEPS + (uint64_t)input_bytes * STEPS_A_BYTE,
                .bytes = RENDER_BYTES + input_bytes * BYTES_A_BYTE,
        };
}

static void variable_bind(struct jinja_render *r, const char *name, struct jinja_value value)
{
        const struct jinja_string *known = tdm_jinja_interned(r->template, name, strlen(name));

        if (known)
                tdm_jinja_bind(r, r->scope, known, value);
}

/* The member that a final message is continued in: its content, or the text of its last part that has one. */
static struct jinja_value *final_content(struct jinja_render *r, struct jinja_value messages)
{
        static const char name[] = "content";
        struct jinja_value *content = NULL, *text = NULL;
        struct jinja_value last;

        if (messages.kind != JINJA_LIST || messages.list->n == 0)
                tdm_jinja_fail(&r->core, "there is no message to continue");
        last = messages.list->items[messages.list->n - 1];
        if (last.kind == JINJA_DICT)
                content = (struct jinja_value *)(uintptr_t)tdm_jinja_dict_get(
                        &r->core, last.dict, tdm_jinja_text_value(tdm_jinja_string_of(&r->core, name)));
        if (!content || content->kind == JINJA_NONE)
                tdm_jinja_fail(&r->core, "the last message has no content to continue");
        if (content->kind == JINJA_STRING)
                return content;
        for (size_t i = content->kind == JINJA_LIST ? content->list->n : 0; i-- > 0 && !text;)
                if (content->list->items[i].kind == JINJA_DICT)
                        text = (struct jinja_value *)(uintptr_t)tdm_jinja_dict_get(
                                &r->core, content->list->items[i].dict,
                                tdm_jinja_text_value(tdm_jinja_string_of(&r->core, "text")));
        if (!text || text->kind != JINJA_STRING)
                tdm_jinja_fail(&r->core, "the last message has no text to continue");
        return text;
}

static bool is_hidden(struct jinja_render *r, const struct jinja_string *name)
{
        for (const char *const *hidden = r->input->hidden; hidden && *hidden; hidden++)
                if (tdm_jinja_string_is(&r->core, name, *hidden))
                        return true;
        return false;
}

static void input_bind(struct jinja_render *r, const struct jinja_string **ret_final)
{
        static const char *const always[] = { "messages", "tools", "documents" };
        const struct tdm_template_input *input = r->input;
        const struct tdm_json *json = input->json;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(always); i++)
                variable_bind(r, always[i], tdm_jinja_none());
        variable_bind(r, "add_generation_prompt", tdm_jinja_bool(false));
        variable_bind(r, "bos_token", tdm_jinja_text_value(tdm_jinja_string_of(&r->core, input->bos)));
        variable_bind(r, "eos_token", tdm_jinja_text_value(tdm_jinja_string_of(&r->core, input->eos)));
        for (uint32_t i = tdm_json_get(json, input->object)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(json, i)->next) {
                const struct jinja_string *name =
                        tdm_jinja_interned(r->template, tdm_json_key(json, i), tdm_json_get(json, i)->key_size);
                struct jinja_value value;

                if (!name || is_hidden(r, name)) /* the template never looks at it, or must not */
                        continue;
                value = tdm_jinja_from_json(&r->core, json, i, false);
                if (input->continue_final && tdm_jinja_string_is(&r->core, name, "messages")) {
                        struct jinja_value *content = final_content(r, value);

                        *ret_final = content->string;
                        content->string =
                                tdm_jinja_join(&r->core, content->string, tdm_jinja_string_of(&r->core, FINAL_TAG));
                }
                tdm_jinja_bind(r, r->scope, name, value);
        }
}

/* The text up to where the final message's content ends. As transformers cuts it: where the blank behind the tag is
 * gone, the template strips contents, and so is the end of the text. */
static const struct jinja_string *final_cut(struct jinja_render *r, const struct jinja_string *text,
                                            const struct jinja_string *final)
{
        const struct jinja_string *tag = tdm_jinja_string_of(&r->core, FINAL_TAG);
        const struct jinja_string *bare = tdm_jinja_slice(&r->core, tag, 0, tag->size - 1);
        const struct jinja_string *stripped = tdm_jinja_strip(&r->core, final, tdm_jinja_none(), true, true), *cut;
        size_t at = tdm_jinja_find_last(&r->core, text, bare);

        if (at == SIZE_MAX || tdm_jinja_find(&r->core, text, stripped, 0) == SIZE_MAX)
                tdm_jinja_fail(&r->core, "the last message, which is to be continued, does not appear in the prompt");
        cut = tdm_jinja_slice(&r->core, text, 0, at);
        if (at + tag->size <= text->size && text->data[at + bare->size] == ' ')
                return cut;
        return tdm_jinja_strip(&r->core, cut, tdm_jinja_none(), false, true);
}

static int result_take(struct jinja_core *core, const struct jinja_string *text, struct tdm_template_result *ret)
{
        const char *data = tdm_jinja_bytes(core, text);
        size_t n = text->origins ? text->n_origins : 1;

        ret->text = malloc(text->size + 1);
        ret->spans = malloc(n * sizeof(*ret->spans));
        if (!ret->text || !ret->spans)
                return -ENOMEM;
        memcpy(ret->text, data, text->size);
        ret->text[text->size] = '\0';
        ret->size = text->size;
        ret->n_spans = n;
        for (size_t i = 0; i < n; i++)
                ret->spans[i] = text->origins ? (struct tdm_template_span){ text->origins[i].end,
                                                                            text->origins[i].is_template } :
                                                (struct tdm_template_span){ text->size, text->is_template };
        return 0;
}

/* Everything that may leave by longjmp(). */
static void render_body(struct jinja_render *r, struct tdm_template_result *ret)
{
        const struct jinja_string *final = NULL, *text;
        struct jinja_text out = { .core = &r->core };

        r->scope = tdm_jinja_scope(r, NULL);
        if (r->input->continue_final && !r->template->has_word_content)
                tdm_jinja_fail(&r->core, "it does not read the content of messages, so none can be continued");
        input_bind(r, &final);
        if (r->input->continue_final && !final)
                tdm_jinja_fail(&r->core, "it does not read the messages, so none can be continued");
        r->out = &out;
        tdm_jinja_run(r, r->template->body);
        r->core.line = 0;
        text = tdm_jinja_text_end(&out);
        if (final)
                text = final_cut(r, text, final);
        r->core.code = result_take(&r->core, text, ret);
}

int tdm_template_render(const struct tdm_template *template, const struct tdm_template_input *input,
                        const struct tdm_template_limits *limits, struct tdm_template_result *ret,
                        struct tdm_error *err)
{
        struct jinja_render *r = calloc(1, sizeof(*r));
        int code;

        *ret = (struct tdm_template_result){ 0 };
        if (!r)
                return -ENOMEM;
        r->core = (struct jinja_core){ .err = err, .bytes_left = limits->bytes, .steps_left = limits->steps };
        r->template = template;
        r->input = input;
        if (!setjmp(r->core.out))
                render_body(r, ret);
        code = r->core.code;
        ret->steps = limits->steps - r->core.steps_left;
        if (code && r->core.refusal)
                ret->refusal = strndup(r->core.refusal->data, r->core.refusal->size);
        tdm_jinja_free_all(&r->core);
        free(r);
        return code;
}

void tdm_template_result_deinit(struct tdm_template_result *result)
{
        free(result->text);
        free(result->spans);
        free(result->refusal);
        *result = (struct tdm_template_result){ 0 };
}
