/* See thinking.h. Whether a model can do what is asked is the daemon's to say. */
#include "http-gateway/thinking.h"

#include <inttypes.h>

static const struct level {
        const char *word;
        enum tandem_thinking thinking;
        const char *otherwise; /* as thinking_else */
} levels[] = {
        { "none", TANDEM_THINKING_OFF, NULL },
        { "minimal", TANDEM_THINKING_LOW, "" }, /* not to think is as little */
        { "low", TANDEM_THINKING_LOW, NULL },
        /* Clients send the API's default with every request. */
        { "medium", TANDEM_THINKING_MEDIUM, "the model cannot think: an effort of 'medium' has no effect" },
        { "high", TANDEM_THINKING_HIGH, NULL },
        { "xhigh", TANDEM_THINKING_HIGH, NULL },
}, anthropic_levels[] = {
        { "low", TANDEM_THINKING_LOW, NULL },    { "medium", TANDEM_THINKING_MEDIUM, NULL },
        { "high", TANDEM_THINKING_HIGH, NULL },  { "xhigh", TANDEM_THINKING_HIGH, NULL },
        { "max", TANDEM_THINKING_HIGH, NULL },
};

int request_take_effort(struct generation_request *r, const json_t *effort, const char *name, struct failure *f)
{
        if (!effort)
                return 0;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(levels) && json_is_string(effort); i++) {
                if (strcmp(levels[i].word, json_string_value(effort)) != 0)
                        continue;
                r->options.thinking = levels[i].thinking;
                r->thinking_name = name;
                r->thinking_else = levels[i].otherwise;
                return 0;
        }
        return failure_set(f, 400, "invalid_value", name, "'%s' has to be none, minimal, low, medium, high or xhigh",
                           name);
}

/* An effort beside what the request has said already: the two have to agree. */
static int take_other_effort(struct generation_request *r, const json_t *effort, const char *name, struct failure *f)
{
        const enum tandem_thinking said = r->options.thinking;
        const char *said_name = r->thinking_name;

        if (request_take_effort(r, effort, name, f) != 0)
                return f->status;
        if (said == TANDEM_THINKING_AUTO || said == r->options.thinking ||
            (said == TANDEM_THINKING_ON && r->options.thinking != TANDEM_THINKING_OFF))
                return 0;
        return failure_set(f, 400, "invalid_value", name, "'%s' contradicts '%s'", name, said_name);
}

int request_take_openai_effort(struct generation_request *r, struct failure *f)
{
        const json_t *reasoning = json_get(r->json, "reasoning");

        if (reasoning && params_check(&params_reasoning, reasoning, &r->warnings, f) != 0)
                return f->status;
        if (request_take_effort(r, json_get(r->json, "reasoning_effort"), "reasoning_effort", f) != 0)
                return f->status;
        return take_other_effort(r, json_get(reasoning, "effort"), "reasoning.effort", f);
}

int request_take_chat_thinking(struct generation_request *r, struct failure *f)
{
        json_int_t budget = json_get_integer(r->json, "reasoning_budget", -1);

        if (request_take_openai_effort(r, f) != 0)
                return f->status;
        if (budget >= 0)
                r->thinking_name = "reasoning_budget";
        if (budget == 0)
                r->options.thinking = TANDEM_THINKING_OFF;
        else if (budget > 0)
                r->options.thinking_budget = (uint32_t)budget;
        return 0;
}

static int take_switch(struct generation_request *r, const json_t *value, struct failure *f)
{
        enum tandem_thinking said = r->options.thinking, wanted;

        if (!json_is_boolean(value))
                return failure_set(f, 400, "invalid_type", "chat_template_kwargs",
                                   "'chat_template_kwargs' switches thinking with a value that is not true or false");
        wanted = json_is_true(value) ? TANDEM_THINKING_ON : TANDEM_THINKING_OFF;
        if (said != TANDEM_THINKING_AUTO && (said == TANDEM_THINKING_OFF) != (wanted == TANDEM_THINKING_OFF))
                return failure_set(f, 400, "invalid_value", "chat_template_kwargs",
                                   "'chat_template_kwargs' contradicts '%s': one of them has thinking, the other not",
                                   r->thinking_name);
        if (said == TANDEM_THINKING_AUTO) {
                r->options.thinking = wanted;
                r->thinking_name = "chat_template_kwargs";
        }
        return 0;
}

int request_take_template_kwargs(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "chat_template_kwargs");
        struct buffer text = { 0 };
        const char *key;
        json_t *value;

        if (take_other_effort(r, json_get(given, "reasoning_effort"), "chat_template_kwargs", f) != 0)
                return f->status;
        json_object_foreach((json_t *)(uintptr_t)given, key, value)
        {
                bool is_switch = strcmp(key, "enable_thinking") == 0 || strcmp(key, "thinking") == 0;

                if (is_switch && !json_is_null(value) && take_switch(r, value, f) != 0) {
                        buffer_free(&text);
                        return f->status;
                }
                if (is_switch || strcmp(key, "reasoning_effort") == 0)
                        continue;
                buffer_add_text(&text, text.size > 0 ? "," : "{");
                json_write_text(&text, key, strlen(key));
                buffer_add_text(&text, ":");
                exact_write(&text, &r->numbers, value);
        }
        if (text.size == 0 && !text.failed)
                return 0;
        buffer_add_text(&text, "}");
        r->options.chat_variables = request_keep_text(r, &text);
        return r->options.chat_variables ? 0 : failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* Clients send an effort to every model. So it says how much is thought where thinking is asked for, and asks for
 * nothing itself. */
static int take_anthropic_effort(struct generation_request *r, struct failure *f)
{
        const json_t *effort = json_get(json_get(r->json, "output_config"), "effort");

        if (!effort)
                return 0;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(anthropic_levels) && json_is_string(effort); i++) {
                if (strcmp(anthropic_levels[i].word, json_string_value(effort)) != 0)
                        continue;
                if (r->options.thinking == TANDEM_THINKING_ON)
                        r->options.thinking = anthropic_levels[i].thinking;
                return 0;
        }
        return failure_set(f, 400, "invalid_value", "output_config.effort",
                           "'output_config.effort' has to be low, medium, high, xhigh or max");
}

static int take_anthropic_switch(struct generation_request *r, struct failure *f)
{
        const json_t *thinking = json_get(r->json, "thinking");
        const char *type = json_get_string(thinking, "type", "");
        json_int_t budget = json_get_integer(thinking, "budget_tokens", 0);

        if (!thinking)
                return 0;
        if (params_check(&params_thinking, thinking, &r->warnings, f) != 0)
                return f->status;
        r->thinking_name = "thinking";
        if (strcmp(type, "disabled") == 0) {
                r->options.thinking = TANDEM_THINKING_OFF;
        } else if (strcmp(type, "adaptive") == 0) {
                r->with_thinking = true;
        } else if (strcmp(type, "enabled") == 0) {
                if (budget < 1)
                        return failure_set(f, 400, "missing_required_parameter", "thinking.budget_tokens",
                                           "'thinking.budget_tokens' is missing: how many tokens the model may think");
                r->with_thinking = true;
                r->options.thinking = TANDEM_THINKING_ON;
        } else {
                return failure_set(f, 400, "invalid_value", "thinking",
                                   "'thinking.type' has to be enabled, adaptive or disabled");
        }
        if (budget > 0 && !r->with_thinking)
                return failure_set(f, 400, "invalid_value", "thinking.budget_tokens",
                                   "'thinking.budget_tokens' is given, and thinking is disabled");
        r->options.thinking_budget = (uint32_t)budget;
        return 0;
}

int request_take_anthropic_thinking(struct generation_request *r, struct failure *f)
{
        if (take_anthropic_switch(r, f) != 0 || request_take_template_kwargs(r, f) != 0 ||
            take_anthropic_effort(r, f) != 0)
                return f->status;
        r->with_thinking |= r->options.thinking >= TANDEM_THINKING_ON;
        return 0;
}

int request_take_think(struct generation_request *r, struct failure *f)
{
        const json_t *think = json_get(r->json, "think");

        if (!think)
                return 0;
        if (json_is_boolean(think)) {
                r->thinking_name = "think";
                if (json_is_true(think) || r->n_messages > 0) /* a raw prompt has nothing to switch off */
                        r->options.thinking = json_is_true(think) ? TANDEM_THINKING_ON : TANDEM_THINKING_OFF;
                return 0;
        }
        if (request_take_effort(r, think, "think", f) != 0)
                return failure_set(f, 400, "invalid_value", "think",
                                   "'think' has to be true, false, low, medium or high");
        r->thinking_else = NULL; /* Ollama refuses it too */
        return 0;
}

/* ---- thoughts that come back ---- */

void thinking_join(struct buffer *thoughts, const char *text)
{
        if (*text && thoughts->size > 0)
                buffer_add_text(thoughts, "\n");
        if (*text)
                buffer_add_text(thoughts, text);
}

int request_add_thinking(struct generation_request *r, struct buffer *thoughts, struct failure *f)
{
        struct tandem_message_details *d;
        struct buffer all = { 0 };
        const char *text;

        if (thoughts->size == 0 && !thoughts->failed)
                return 0;
        d = request_last_details(r);
        if (d && d->thinking)
                thinking_join(&all, d->thinking);
        if (!thoughts->failed)
                thinking_join(&all, thoughts->data);
        all.failed |= thoughts->failed;
        buffer_free(thoughts);
        text = request_keep_text(r, &all);
        if (!d || !text)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        d->thinking = text;
        return 0;
}

int request_take_thinking_block(struct generation_request *r, const json_t *block, const char *name,
                                const char **ret_text, struct failure *f)
{
        const char *text = json_get_string(block, "thinking", NULL), *given = json_get_string(block, "signature", "");
        char right[SIGNATURE_BYTES];
        struct signature s;

        if (params_check_at(&params_thinking_block, name, block, &r->warnings, f) != 0)
                return f->status;
        if (!text)
                return failure_set(f, 400, "invalid_value", name, "'%s' is a block 'thinking' without its text", name);
        signature_init(&s);
        signature_add(&s, text, strlen(text));
        signature_write(&s, right);
        if (strcmp(given, right) != 0)
                return failure_set(
                        f, 400, "invalid_value", name,
                        "'%s' has an invalid `signature` in a `thinking` block: send the block as it came, or "
                        "leave it out",
                        name);
        *ret_text = text;
        return 0;
}

bool request_goes_without_thinking(struct generation_request *r, const struct tandem_error *err)
{
        if (!r->thinking_else || err->code != TANDEM_E_UNSUPPORTED || strncmp(err->message, "thinking: ", 10) != 0)
                return false;
        if (*r->thinking_else)
                params_warn(&r->warnings, r->thinking_else);
        r->options.thinking = TANDEM_THINKING_AUTO;
        r->thinking_else = ""; /* warned of once, for all choices */
        return true;
}

void failure_name_thinking(struct failure *f, const struct generation_request *r)
{
        static const char *const options[] = { "thinking: ", "thinking-budget: ", "chat-variables: " };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(options); i++) {
                const char *name = i == 2 ? "chat_template_kwargs" : r->thinking_name;
                size_t n = strlen(options[i]);
                char message[sizeof(f->message)];

                if (!name || strncmp(f->message, options[i], n) != 0)
                        continue;
                snprintf(message, sizeof(message), "'%s': %s", name, f->message + n);
                memcpy(f->message, message, sizeof(message));
                snprintf(f->param, sizeof(f->param), "%s", name);
                return;
        }
}

/* ---- signatures ---- */

/* FNV-1a with 64 bits, twice: from two beginnings and with other bytes. */
void signature_init(struct signature *s)
{
        *s = (struct signature){ { UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4) } };
}

void signature_add(struct signature *s, const char *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                s->parts[0] = (s->parts[0] ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
                s->parts[1] = (s->parts[1] ^ (uint8_t)~text[i]) * UINT64_C(0x100000001b3);
        }
}

void signature_write(const struct signature *s, char text[SIGNATURE_BYTES])
{
        snprintf(text, SIGNATURE_BYTES, SIGNATURE_PREFIX "%016" PRIx64 "%016" PRIx64, s->parts[0], s->parts[1]);
}

json_t *thinking_seal(const char *text, size_t size)
{
        _cleanup_(buffer_free) struct buffer sealed = { 0 };
        char signature[SIGNATURE_BYTES];
        struct signature s;

        signature_init(&s);
        signature_add(&s, text, size);
        signature_write(&s, signature);
        buffer_printf(&sealed, "%s:", signature);
        buffer_add(&sealed, text, size);
        return sealed.failed ? NULL : json_text(sealed.data, sealed.size);
}

bool thinking_unseal(const char *sealed, const char **ret_text)
{
        const char *colon = strchr(sealed, ':');
        char right[SIGNATURE_BYTES];
        struct signature s;

        if (!colon)
                return false;
        signature_init(&s);
        signature_add(&s, colon + 1, strlen(colon + 1));
        signature_write(&s, right);
        if ((size_t)(colon - sealed) != strlen(right) || strncmp(sealed, right, strlen(right)) != 0)
                return false;
        *ret_text = colon + 1;
        return true;
}
