/* The list of all tables, and the one check for all of them. */
#include "http-gateway/params-rows.h"

#define PATH_BYTES 192u /* of "tools[1023].tools[1023].name" and longer ones */

static const struct param_table *const tables[] = {
        &params_chat,
        &params_completions,
        &params_message,
        &params_responses,
        &params_anthropic,
        &params_count_tokens,
        &params_anthropic_message,
        &params_ollama_chat,
        &params_ollama_generate,
        &params_ollama_options,
        &params_ollama_message,
        &params_ollama_show,
        &params_tokenize,
        &params_embeddings,
        &params_rerank,
        &params_document,
        &params_classify,
        &params_predict,
        &params_ollama_embed,
        &params_stream_options,
        &params_cache_control,
        &params_anthropic_metadata,
        &params_part,
        &params_image_part,
        &params_image_url,
        &params_input_image,
        &params_image_block,
        &params_image_source,
        &params_tool,
        &params_function,
        &params_anthropic_tool,
        &params_anthropic_choice,
        &params_call,
        &params_call_function,
        &params_tool_use,
        &params_tool_result,
        &params_reasoning,
        &params_thinking,
        &params_thinking_block,
        &params_reasoning_item,
        &params_response_function,
        &params_response_custom,
        &params_response_namespace,
        &params_call_item,
        &params_custom_item,
        &params_answer_item,
};

/* What other servers take at the top of a body, and what would be another answer without it. */
static const char *const meaningful[] = {
        "add_generation_prompt",
        "allowed_token_ids",
        "assistant_prefix",
        "bad_words",
        "beam_width",
        "best_of",
        "chat_template",
        "continue_final_message",
        "documents",
        "dry_multiplier",
        "dynatemp_range",
        "echo",
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "guided_whitespace_pattern",
        "ignore_eos",
        "image_data",
        "images",
        "input_prefix",
        "input_suffix",
        "json_schema",
        "length_penalty",
        "logit_bias",
        "logits_processors",
        "logprobs",
        "lora",
        "max_completion_tokens",
        "max_new_tokens",
        "max_output_tokens",
        "max_tokens",
        "min_p",
        "min_tokens",
        "mirostat",
        "n",
        "n_predict",
        "n_probs",
        "num_beams",
        "num_ctx",
        "num_predict",
        "plugins",
        "prompt_logprobs",
        "regex",
        "repeat_penalty",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "response_format",
        "samplers",
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "structural_tag",
        "structured_outputs",
        "suffix",
        "system",
        "temperature",
        "tool_choice",
        "tools",
        "top_a",
        "top_k",
        "top_logprobs",
        "top_n_sigma",
        "top_p",
        "transforms",
        "truncate_prompt_tokens",
        "typical_p",
        "use_beam_search",
        "web_search_options",
        "xtc_probability",
};

/* Numbers that ask for nothing. `recommended`: what a model's file may recommend, so that off asks for something. */
static const struct {
        const char *name;
        unsigned neutral;
        bool recommended;
} off[] = {
        { "beam_width", NEUTRAL_ONE, false },
        { "best_of", NEUTRAL_ONE, false },
        { "dry_multiplier", NEUTRAL_ZERO, false },
        { "dynatemp_range", NEUTRAL_ZERO, false },
        { "frequency_penalty", NEUTRAL_ZERO, false },
        { "length_penalty", NEUTRAL_ONE, false },
        { "min_p", NEUTRAL_ZERO, true },
        { "min_tokens", NEUTRAL_ZERO, false },
        { "mirostat", NEUTRAL_ZERO, false },
        { "n", NEUTRAL_ONE, false },
        { "n_probs", NEUTRAL_ZERO, false },
        { "num_beams", NEUTRAL_ONE, false },
        { "presence_penalty", NEUTRAL_ZERO, false },
        { "repeat_penalty", NEUTRAL_ONE, true },
        { "repetition_penalty", NEUTRAL_ONE, true },
        { "top_a", NEUTRAL_ZERO, false },
        { "top_k", NEUTRAL_ZERO, true },
        { "top_logprobs", NEUTRAL_ZERO, false },
        { "top_n_sigma", NEUTRAL_ZERO, false },
        { "typical_p", NEUTRAL_ONE, false },
        { "xtc_probability", NEUTRAL_ZERO, false },
};

/* What other servers take at the top of a body to switch thinking. `false` and 0 are another answer, too. */
static const char *const switches[] = {
        "chat_template_kwargs",   "enable_thinking", "reasoning", "reasoning_budget",
        "reasoning_effort",       "think",           "thinking",  "thinking_budget",
        "thinking_budget_tokens",
};

/* What a table may have in their place. */
static const char *const own_switches[] = { "reasoning_effort", "reasoning_budget", "thinking", "think" };

/* "text", {"type":"text"} with nothing else, ["text"], and for /v1/responses {"format":{"type":"text"}}. */
static bool says(const json_t *value, const char *word)
{
        if (json_is_string(value))
                return strcmp(json_string_value(value), word) == 0;
        if (json_is_array(value))
                return json_array_size(value) == 1 && json_is_string(json_array_get(value, 0)) &&
                       says(json_array_get(value, 0), word);
        if (json_is_object(value) && json_object_size(value) == 1)
                return says(json_object_get(value, json_object_get(value, "format") ? "format" : "type"), word);
        return false;
}

static bool is_neutral(const struct param *p, const json_t *value);

/* An object whose members ask for nothing either: {"effort": null}, {"edits": []}. */
static bool is_hollow(const struct param *p, const json_t *value)
{
        const char *key;
        json_t *part;

        json_object_foreach((json_t *)(uintptr_t)value, key, part)
        {
                if (!json_is_null(part) && !is_neutral(p, part))
                        return false;
        }
        return json_is_object(value);
}

static bool is_neutral(const struct param *p, const json_t *value)
{
        static const struct {
                unsigned bit;
                const char *word;
        } words[] = { { NEUTRAL_TEXT, "text" },     { NEUTRAL_NONE, "none" },
                      { NEUTRAL_AUTO, "auto" },     { NEUTRAL_DISABLED, "disabled" },
                      { NEUTRAL_MEDIUM, "medium" }, { NEUTRAL_SUMMARIZED, "summarized" } };

        if ((p->neutral & NEUTRAL_FALSE && json_is_false(value)) || (p->neutral & NEUTRAL_TRUE && json_is_true(value)))
                return true;
        if ((p->neutral & NEUTRAL_ZERO && json_is_number(value) && json_number_value(value) == 0) ||
            (p->neutral & NEUTRAL_ONE && json_is_number(value) && json_number_value(value) == 1))
                return true;
        if (p->neutral & NEUTRAL_EMPTY && ((json_is_string(value) && json_string_length(value) == 0) ||
                                           (json_is_array(value) && json_array_size(value) == 0) ||
                                           (json_is_object(value) && json_object_size(value) == 0)))
                return true;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (p->neutral & words[i].bit && says(value, words[i].word))
                        return true;
        return p->neutral & NEUTRAL_EMPTY && is_hollow(p, value);
}

static const char *const type_names[] = {
        [PARAM_ANY] = "a value",      [PARAM_BOOL] = "true or false", [PARAM_INTEGER] = "a whole number",
        [PARAM_NUMBER] = "a number",  [PARAM_STRING] = "a string",    [PARAM_ARRAY] = "an array",
        [PARAM_OBJECT] = "an object",
};

static bool is_of_type(enum param_type type, const json_t *value)
{
        switch (type) {
        case PARAM_BOOL:
                return json_is_boolean(value);
        case PARAM_INTEGER: /* 5.0 is one: clients in JavaScript and Lua have no other numbers */
                return json_is_integer(value) ||
                       (json_is_real(value) && json_real_value(value) > -9e15 && json_real_value(value) < 9e15 &&
                        json_real_value(value) == (double)(int64_t)json_real_value(value));
        case PARAM_NUMBER:
                return json_is_number(value);
        case PARAM_STRING:
                return json_is_string(value);
        case PARAM_ARRAY:
                return json_is_array(value);
        case PARAM_OBJECT:
                return json_is_object(value);
        default:
                return true;
        }
}

/* One more thing that is ignored. The head of an answer holds printing ASCII, and has an end. */
static void add_warning(struct params_warnings *w, const char *context, const char *name)
{
        char clean[PARAMS_NAME_BYTES];
        size_t n = strlen(w->text);

        snprintf(clean, sizeof(clean), "%s%.40s", context, name);
        for (char *p = clean; *p; p++)
                if (*p <= ' ' || *p >= 127 || *p == ',')
                        *p = '?';
        for (unsigned i = 0; i < w->n; i++)
                if (strcmp(w->names[i], clean) == 0)
                        return;
        if (w->n == TDM_ARRAY_SIZE(w->names))
                return;
        memcpy(w->names[w->n++], clean, sizeof(clean));
        snprintf(w->text + n, sizeof(w->text) - n, "%s%s", n ? ", " : "not used here: ", clean);
}

void params_warn(struct params_warnings *w, const char *text)
{
        size_t n = strlen(w->text);

        snprintf(w->text + n, sizeof(w->text) - n, "%s%s", n ? "; " : "", text);
}

/* "role, content, …" */
static void write_names(const struct param_table *table, char *to, size_t size)
{
        size_t used = 0;

        for (size_t i = 0; i < table->n && used < size; i++)
                if (table->params[i].class != PARAM_REFUSED)
                        used += (size_t)snprintf(to + used, size - used, "%s%s", used ? ", " : "",
                                                 table->params[i].name);
}

static const struct param *find_param(const struct param_table *table, const char *key)
{
        for (size_t i = 0; i < table->n; i++)
                if (strcmp(table->params[i].name, key) == 0)
                        return &table->params[i];
        return NULL;
}

/* Whether `value` asks for nothing of what no table knows. What is recommended is off where it stands at the top of a
 * body (request_take_sampling()), and that is not read where an API has its sampling among `options`. */
static bool is_off(const struct param_table *table, const char *key, const json_t *value)
{
        struct param p = { .neutral = NEUTRAL_FALSE | NEUTRAL_EMPTY };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(off); i++)
                if (strcmp(off[i].name, key) == 0 && !(off[i].recommended && find_param(table, "options")))
                        p.neutral |= off[i].neutral;
        return is_neutral(&p, value);
}

/* {}, or an object in which all is null, asks for nothing. */
static int check_switch(const struct param_table *table, const char *key, const json_t *value, struct failure *f)
{
        static const struct param none = { .neutral = 0 };
        char names[120] = "";
        size_t used = 0;

        if (is_hollow(&none, value))
                return 0;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(own_switches); i++)
                if (find_param(table, own_switches[i]))
                        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s'%s'", used ? ", " : "",
                                                 own_switches[i]);
        if (used == 0)
                return failure_set(f, 400, "unsupported_parameter", key,
                                   "'%s' cannot be taken: %s applies no chat template that it could switch", key,
                                   table->title);
        return failure_set(f, 400, "unsupported_parameter", key, "'%s' cannot be taken; send what %s has for it: %s",
                           key, table->title, names);
}

/* "messages[3].prefix": in front is where the object is, or "". */
static void write_path(char to[PATH_BYTES], const char *in_front, const char *name)
{
        size_t n = strlen(in_front);

        snprintf(to, PATH_BYTES, "%s%s%.90s", in_front, n > 0 && in_front[n - 1] != '.' ? "." : "", name);
}

/* in_front: where the object is, as write_path() takes it. */
static int check_unknown(const struct param_table *table, const char *in_front, const char *key, const json_t *value,
                         struct params_warnings *warnings, struct failure *f)
{
        char names[500] = "", path[PATH_BYTES];

        if (json_is_null(value))
                return 0;
        if (table->context[0]) {
                write_names(table, names, sizeof(names));
                write_path(path, in_front, key);
                return failure_set(f, 400, "unknown_parameter", path, "'%s' is not known; there are: %.480s", path,
                                   names);
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(meaningful); i++)
                if (strcmp(meaningful[i], key) == 0 && !is_off(table, key, value))
                        return failure_set(f, 400, "unsupported_parameter", key,
                                           "'%.90s' cannot be taken: %s has nothing like it, and the answer would be "
                                           "another one without it",
                                           key, table->title);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(switches); i++)
                if (strcmp(switches[i], key) == 0)
                        return check_switch(table, key, value, f);
        add_warning(warnings, "", key);
        return 0;
}

/* What a harmless object holds has to be known, and its values change nothing. */
static int check_members(const struct param *p, const char *path, const json_t *object,
                         struct params_warnings *warnings, struct failure *f)
{
        const char *key;
        json_t *value;

        if (p->class == PARAM_HONOURED)
                return params_check_at(p->members, path, object, warnings, f);
        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                if (!find_param(p->members, key) && check_unknown(p->members, path, key, value, warnings, f) != 0)
                        return f->status;
        }
        return 0;
}

static int check_one(const struct param *p, const char *in_front, const json_t *value, struct params_warnings *warnings,
                     struct failure *f)
{
        char name[PATH_BYTES];

        write_path(name, in_front, p->name);
        if (p->class == PARAM_HARMLESS && !p->members)
                return 0;
        if (p->class == PARAM_REFUSED)
                return is_neutral(p, value) ? 0 :
                                              failure_set(f, 400, "unsupported_parameter", name,
                                                          "'%s' cannot be taken with this value: %s", name, p->note);
        if (!is_of_type(p->type, value))
                return failure_set(f, 400, "invalid_type", name, "'%s' has to be %s", name, type_names[p->type]);
        if ((p->low != 0 || p->high != 0) && json_is_number(value) &&
            (json_number_value(value) < p->low || json_number_value(value) > p->high))
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be from %.10g to %.10g", name, p->low,
                                   p->high);
        return p->members ? check_members(p, name, value, warnings, f) : 0;
}

int params_check(const struct param_table *table, const json_t *object, struct params_warnings *warnings,
                 struct failure *f)
{
        return params_check_at(table, table->context, object, warnings, f);
}

int params_check_at(const struct param_table *table, const char *where, const json_t *object,
                    struct params_warnings *warnings, struct failure *f)
{
        const char *key;
        json_t *value;

        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                const struct param *p = find_param(table, key);

                if (!p && check_unknown(table, where, key, value, warnings, f) != 0)
                        return f->status;
                if (!p || json_is_null(value))
                        continue;
                if (p->class != PARAM_IGNORED && check_one(p, where, value, warnings, f) != 0)
                        return f->status;
                if (p->class == PARAM_IGNORED && !is_neutral(p, value))
                        add_warning(warnings, table->context, p->name);
        }
        return 0;
}

static void print_neutral(FILE *to, unsigned neutral)
{
        static const char *const words[] = { "false", "true", "0",        "1",      "empty",     "text",
                                             "none",  "auto", "disabled", "medium", "summarized" };
        const char *comma = "";

        for (size_t i = 0; i < TDM_ARRAY_SIZE(words); i++)
                if (neutral & 1u << i) {
                        fprintf(to, "%s%s", comma, words[i]);
                        comma = ", ";
                }
}

void params_print(FILE *to)
{
        static const char *const classes[] = { "honoured", "harmless", "ignored", "refused" };

        for (size_t t = 0; t < TDM_ARRAY_SIZE(tables); t++) {
                fprintf(to, "### %s\n\n| parameter | class | accepted | note |\n|---|---|---|---|\n", tables[t]->title);
                for (size_t i = 0; i < tables[t]->n; i++) {
                        const struct param *p = &tables[t]->params[i];

                        fprintf(to, "| `%s` | %s | ", p->name, classes[p->class]);
                        if (p->class == PARAM_REFUSED)
                                print_neutral(to, p->neutral);
                        else if (p->class != PARAM_HONOURED && !p->members)
                                fputs("anything", to);
                        else if (p->high == SEED_HIGH)
                                fputs("a whole number of 64 bits", to);
                        else if (p->high == MAX_TOKENS)
                                fprintf(to, "from %.0f", p->low);
                        else if (p->low != 0 || p->high != 0)
                                fprintf(to, "%.10g to %.10g", p->low, p->high);
                        else
                                fputs(type_names[p->type], to);
                        fprintf(to, " | %s |\n", p->note);
                }
                fputc('\n', to);
        }
}
