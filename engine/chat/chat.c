/* A model's templates: finding them in its file, and rendering conversations with them. */
#include "engine/chat/private.h"
#include "engine/chat/tools.h"

#include <inttypes.h>

/* How deep the input nests: tools and arguments, within their messages. */
#define INPUT_DEPTH 72u

/* ---- the object ---- */

const struct tdm_chat_template *tdm_chat_template_for(const struct tdm_chat *chat, bool with_tools)
{
        return with_tools && (chat->tools.template || chat->tools.why.message[0]) ? &chat->tools : &chat->plain;
}

/* A piece's text with a NUL behind it; "" where there is no such piece. */
static char *piece_text(const struct tdm_tokenizer *tokenizer, int32_t id)
{
        const char *data = "";
        size_t size = id >= 0 ? tdm_tokenizer_piece(tokenizer, (uint32_t)id, true, &data) : 0;

        return strndup(data, size);
}

static int template_read(struct tdm_chat *chat, struct tdm_chat_template *t, const struct tdm_gguf *gguf,
                         const char *key, uint64_t max_bytes)
{
        struct tdm_gguf_string source;
        uint64_t bytes;
        int r;

        if (tdm_gguf_get_string(gguf, key, &source) < 0)
                return 0;
        r = tdm_template_new(&t->template, source.data, source.size, &t->why);
        if (r != 0) /* t->why says so, where it is the template's fault */
                return TDM_MIN(r, 0);
        bytes = tdm_template_memory(t->template);
        if (max_bytes == 0 || bytes <= max_bytes)
                return tdm_chat_probe(chat, t);
        tdm_template_destroy(steal_ptr(&t->template));
        tdm_error_set(&t->why, TDM_E_UNSUPPORTED,
                      "the chat template: it takes %" PRIu64 " bytes when it is parsed, and %" PRIu64
                      " are left for what is known of the model",
                      bytes, max_bytes);
        return 0;
}

static void refusal_make(struct tdm_chat *chat)
{
        if (chat->plain.template)
                return;
        chat->is_missing = !chat->plain.why.message[0];
        if (chat->is_missing)
                snprintf(chat->refusal, sizeof(chat->refusal), "the model has no chat template; send the prompt raw");
        else
                snprintf(chat->refusal, sizeof(chat->refusal), "%s; send the prompt raw", chat->plain.why.message);
}

int tdm_chat_new(struct tdm_chat **ret, const struct tdm_gguf *gguf, const struct tdm_tokenizer *tokenizer,
                 uint64_t max_bytes)
{
        _cleanup_(tdm_chat_destroyp) struct tdm_chat *chat = calloc(1, sizeof(*chat));
        int r;

        if (!chat)
                return -ENOMEM;
        chat->tokenizer = tokenizer;
        chat->bos = piece_text(tokenizer, tdm_tokenizer_bos(tokenizer));
        chat->eos = piece_text(tokenizer, tdm_tokenizer_eos(tokenizer));
        if (!chat->bos || !chat->eos)
                return -ENOMEM;
        r = template_read(chat, &chat->plain, gguf, "tokenizer.chat_template", max_bytes);
        if (max_bytes > 0) /* at least 1: 0 is no limit */
                max_bytes -= TDM_MIN(tdm_chat_memory(chat), max_bytes - 1);
        if (r == 0)
                r = template_read(chat, &chat->tools, gguf, "tokenizer.chat_template.tool_use", max_bytes);
        if (r < 0)
                return r;
        refusal_make(chat);
        *ret = steal_ptr(&chat);
        return 0;
}

void tdm_chat_destroy(struct tdm_chat *chat)
{
        if (!chat)
                return;
        tdm_template_destroy(chat->plain.template);
        tdm_template_destroy(chat->tools.template);
        tdm_chat_form_destroy(chat->plain.form);
        tdm_chat_form_destroy(chat->tools.form);
        free(chat->bos);
        free(chat->eos);
        free(chat);
}

void tdm_chat_destroyp(struct tdm_chat **chat)
{
        tdm_chat_destroy(*chat);
}

uint64_t tdm_chat_memory(const struct tdm_chat *chat)
{
        uint64_t bytes = sizeof(*chat) + strlen(chat->bos) + strlen(chat->eos) + 2;

        if (chat->plain.template)
                bytes += tdm_template_memory(chat->plain.template);
        if (chat->tools.template)
                bytes += tdm_template_memory(chat->tools.template);
        return bytes;
}

const char *tdm_chat_refusal(const struct tdm_chat *chat)
{
        return chat->refusal[0] ? chat->refusal : NULL;
}

const char *tdm_chat_state(const struct tdm_chat *chat)
{
        return chat->plain.template ? "jinja" : chat->is_missing ? "none" : chat->plain.why.message;
}

bool tdm_chat_reads(const struct tdm_chat *chat, const char *name)
{
        return (chat->plain.template && tdm_template_reads(chat->plain.template, name)) ||
               (chat->tools.template && tdm_template_reads(chat->tools.template, name));
}

enum tdm_chat_thoughts tdm_chat_thoughts_of(const struct tdm_chat *chat)
{
        const struct tdm_chat_template *t = &chat->plain;

        return !t->form                                    ? TDM_CHAT_THOUGHTS_NONE :
               t->form->switch_variable                    ? TDM_CHAT_THOUGHTS_SWITCH :
               t->form->calls == TDM_FORM_CALLS_CHANNELLED ? TDM_CHAT_THOUGHTS_EFFORT :
               tdm_chat_template_thinks(t)                 ? TDM_CHAT_THOUGHTS_ALWAYS :
                                                             TDM_CHAT_THOUGHTS_NONE;
}

enum tdm_form_prompt tdm_chat_prompt_end(const struct tdm_chat *chat, bool with_tools, enum tdm_chat_thinking thinking)
{
        const struct tdm_chat_form *form = tdm_chat_template_for(chat, with_tools)->form;

        return !form                          ? TDM_FORM_PROMPT_SILENT :
               thinking == TDM_CHAT_THINK_ON  ? form->prompt_on :
               thinking == TDM_CHAT_THINK_OFF ? form->prompt_off :
                                                form->prompt_default;
}

const struct tdm_tokenizer *tdm_chat_tokenizer(const struct tdm_chat *chat)
{
        return chat->tokenizer;
}

bool tdm_chat_opens_thought(const struct tdm_chat *chat, bool with_tools, enum tdm_chat_thinking thinking)
{
        return tdm_chat_prompt_end(chat, with_tools, thinking) == TDM_FORM_PROMPT_OPEN;
}

/* The template shows tools, or its calls can be explained in a text. */
static bool form_has_tools(const struct tdm_chat_form *form)
{
        return form &&
               (form->renders_tools || form->calls == TDM_FORM_CALLS_GENERIC || form->calls == TDM_FORM_CALLS_JSON);
}

bool tdm_chat_has_tools(const struct tdm_chat *chat)
{
        const struct tdm_chat_form *form = tdm_chat_template_for(chat, true)->form;

        return form_has_tools(form);
}

/* ---- rendering ---- */

static int message_check(const struct tdm_chat_template *t, const struct tdm_chat_message *m, size_t i,
                         struct tdm_error *err)
{
        if ((unsigned)m->role > TDM_CHAT_TOOL)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "message %zu has no role", i + 1);
        if (m->n_calls > 0 && m->role != TDM_CHAT_ASSISTANT)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "message %zu has tool calls and is not the assistant's",
                                     i + 1);
        if ((m->role == TDM_CHAT_TOOL || m->n_calls > 0) && !t->form)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "message %zu: tool calls have no form in the model's chat template", i + 1);
        return 0;
}

static int conversation_check(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                              const struct tdm_chat_options *options, struct tdm_error *err)
{
        size_t calls = 0;
        int r = 0;

        if (n == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "there are no messages");
        for (size_t i = 0; i < n && r == 0; i++) {
                r = message_check(t, &messages[i], i, err);
                calls += messages[i].n_calls;
                if (r == 0 && messages[i].role == TDM_CHAT_TOOL && calls == 0 && !t->form->renders_calls)
                        r = tdm_error_set(err, TDM_E_BAD_REQUEST,
                                          "message %zu is a tool's result, and no call of a tool stands before it",
                                          i + 1);
        }
        if (r != 0)
                return r;
        if (messages[n - 1].n_calls > 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the last message is the assistant's own and calls tools, so there is no text to "
                                     "go on with; answer its calls");
        if (options->tools.size > 0 && !form_has_tools(t->form))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "tools have no form in the model's chat template");
        if (options->thinking != TDM_CHAT_THINK_AS_TRAINED && (!t->form || !t->form->switch_variable))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the model's chat template has no switch for thinking");
        if (options->effort != TDM_CHAT_EFFORT_AS_TRAINED && !tdm_template_reads(t->template, "reasoning_effort"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the model's chat template does not read how much to think (reasoning_effort)");
        return 0;
}

int tdm_chat_render_input(const struct tdm_chat *chat, const struct tdm_chat_template *t, const char *input,
                          size_t size, const struct tdm_template_limits *limits, const struct tm *now,
                          bool continue_final, struct tdm_template_result *ret, struct tdm_error *err)
{
        struct tdm_template_input in = {
                .bos = chat->bos, .eos = chat->eos, .now = now, .continue_final = continue_final
        };
        struct tdm_json json = { 0 };
        int r;

        *ret = (struct tdm_template_result){ 0 };
        r = tdm_json_parse(&json, input, size, INPUT_DEPTH, err);
        in.json = &json;
        if (r == 0)
                r = tdm_template_render(t->template, &in, limits, ret, err);
        tdm_json_deinit(&json);
        return r;
}

/* Says whose error it is. */
static int error_explain(int r, const struct tdm_template_result *result, struct tdm_error *err)
{
        struct tdm_error why = *err;

        if (r == TDM_E_BAD_REQUEST && result->refusal)
                return tdm_error_set(err, r, "the model's chat template refuses the conversation: %s", result->refusal);
        if (r == TDM_E_BAD_REQUEST)
                return tdm_error_set(err, r, "the model's chat template fails on the conversation: %s", why.message);
        if (r == TDM_E_TOO_LONG)
                return tdm_error_set(err, r, "the model's chat template is at fault, not the conversation: %s",
                                     why.message);
        return r;
}

static int prompt_take(const struct tdm_chat *chat, struct tdm_template_result *result, struct tdm_chat_prompt *ret)
{
        struct tdm_chat_prompt p = { .size = result->size, .n_spans = result->n_spans };
        size_t n_bos = strlen(chat->bos);

        p.spans = malloc((p.n_spans + 1) * sizeof(*p.spans));
        if (!p.spans)
                return -ENOMEM;
        for (size_t i = 0; i < p.n_spans; i++)
                p.spans[i] = (struct tdm_text_span){ result->spans[i].end, result->spans[i].is_template };
        p.text = steal_ptr(&result->text);
        p.lacks_bos = n_bos == 0 || p.n_spans == 0 || !p.spans[0].is_trusted || p.spans[0].end < n_bos ||
                      memcmp(p.text, chat->bos, n_bos) != 0;
        *ret = p;
        return 0;
}

static int input_render(const struct tdm_chat *chat, const struct tdm_chat_template *t,
                        const struct tdm_json_buffer *input, time_t at, bool continues, struct tdm_chat_prompt *ret,
                        struct tdm_error *err)
{
        struct tdm_template_limits limits = tdm_template_limits_for(input->size);
        struct tdm_template_result result;
        struct tm now;
        int r;

        if (at == 0)
                at = time(NULL);
        r = tdm_chat_render_input(chat, t, input->data, input->size, &limits, localtime_r(&at, &now), continues,
                                  &result, err);
        r = r == 0 ? prompt_take(chat, &result, ret) : error_explain(r, &result, err);
        tdm_template_result_deinit(&result);
        return r;
}

bool tdm_chat_goes_on(const struct tdm_chat_message *messages, size_t n_messages)
{
        return n_messages > 0 && messages[n_messages - 1].role == TDM_CHAT_ASSISTANT &&
               messages[n_messages - 1].size > 0;
}

/* Refuses a system's or a user's message whose text the template left out: the model would answer without it, and
 * nobody would know why. Answers are the model's own: a template may leave earlier ones out. */
static int texts_check(const struct tdm_chat_template *t, const struct tdm_chat_message *messages, size_t n,
                       const struct tdm_chat_prompt *prompt, struct tdm_error *err)
{
        for (size_t i = 0; i < n && t->form; i++) {
                const struct tdm_chat_message *m = &messages[i];
                size_t from = 0, to = m->size;

                if (m->n_pictures > 0) /* its text is in pieces: the marks of its pictures are counted */
                        continue;
                if ((m->role != TDM_CHAT_SYSTEM && m->role != TDM_CHAT_USER) ||
                    t->form->texts[tdm_chat_form_role(m->role)] != TDM_FORM_TEXT_DROPPED)
                        continue;
                while (from < to && strchr(" \n\t\r", m->text[from]))
                        from++;
                while (to > from && strchr(" \n\t\r", m->text[to - 1]))
                        to--;
                if (from < to && !memmem(prompt->text, prompt->size, m->text + from, to - from))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "the model's chat template leaves out %s message, so the model would not "
                                             "see it%s",
                                             m->role == TDM_CHAT_SYSTEM ? "the system's" : "a user's",
                                             m->role == TDM_CHAT_SYSTEM ? "; put it into the user's message" : "");
        }
        return 0;
}

int tdm_chat_render(const struct tdm_chat *chat, const struct tdm_chat_message *messages, size_t n_messages,
                    const struct tdm_chat_options *options, struct tdm_chat_prompt *ret, struct tdm_error *err)
{
        static const struct tdm_chat_options none = { 0 };
        const struct tdm_chat_options *o = options ? options : &none;
        const struct tdm_chat_template *t = tdm_chat_template_for(chat, o->tools.size > 0);
        struct tdm_chat_flat flat = { 0 };
        struct tdm_json_buffer input = { 0 };
        struct tdm_chat_prompt prompt = { 0 };
        int r;

        if (chat->refusal[0])
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s", chat->refusal);
        if (!t->template)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the model's template for tools: %s", t->why.message);
        if (n_messages > 0 && messages[n_messages - 1].role == TDM_CHAT_ASSISTANT &&
            messages[n_messages - 1].size == 0 && messages[n_messages - 1].n_calls == 0)
                n_messages--;
        r = conversation_check(t, messages, n_messages, o, err);
        for (size_t i = 0; i < n_messages && r == 0; i++)
                if (messages[i].n_pictures > 0 && tdm_chat_is_flat(t, messages, n_messages, o))
                        r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                          "the model's chat template has no form for tools, so tools and pictures are "
                                          "not taken in one chat");
        if (r == 0 && tdm_chat_is_flat(t, messages, n_messages, o)) {
                r = tdm_chat_flatten(t, messages, n_messages, o, &flat, err);
                messages = flat.messages;
                n_messages = flat.n;
        }
        if (r == 0)
                r = tdm_chat_write_input(t, messages, n_messages, o, &input, err);
        if (r == 0)
                r = input_render(chat, t, &input, o->now, tdm_chat_goes_on(messages, n_messages), &prompt, err);
        if (r == 0)
                r = texts_check(t, messages, n_messages, &prompt, err);
        if (r == 0)
                *ret = prompt;
        else
                tdm_chat_prompt_deinit(&prompt);
        free(input.data);
        tdm_chat_flat_deinit(&flat);
        return r < 0 ? tdm_error_set(err, r, "cannot render the conversation: %s", strerror(-r)) : r;
}

void tdm_chat_prompt_deinit(struct tdm_chat_prompt *prompt)
{
        free(prompt->text);
        free(prompt->spans);
        *prompt = (struct tdm_chat_prompt){ 0 };
}

ssize_t tdm_chat_encode(const struct tdm_chat *chat, const struct tdm_chat_prompt *prompt,
                        struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity)
{
        int32_t bos = tdm_tokenizer_bos(chat->tokenizer);
        bool adds_bos = prompt->lacks_bos && bos >= 0 && tdm_tokenizer_add_bos(chat->tokenizer);
        ssize_t n;

        if (adds_bos && capacity > 0) {
                *ids++ = (uint32_t)bos;
                capacity--;
        }
        n = tdm_tokenizer_encode_spans(chat->tokenizer, prompt->text, prompt->size, prompt->spans, prompt->n_spans,
                                       budget, ids, capacity);
        return n < 0 ? n : n + adds_bos;
}
