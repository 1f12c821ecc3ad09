/* Model, messages, stop texts and sampling, as the APIs share them: see messages.h. Texts are copied, since the daemon
 * is asked after the body has gone. */
#include "http-gateway/messages.h"

#include <math.h>
#include "common/job-options.h"

#define MAX_LOGIT_BIASES 512
#define MAX_LOGIT_BIAS 100.0

/* As the daemon knows it. NULL: out of memory. */
static char *model_name(const char *given)
{
        size_t n = strlen(given);

        if (n > 7 && strcmp(given + n - 7, ":latest") == 0)
                n -= 7;
        return strndup(given, n);
}

int request_take_model(struct generation_request *r, struct failure *f)
{
        const char *model = json_get_string(r->json, "model", "");

        if (!*model)
                return 0; /* the default one */
        r->model = model_name(model);
        return r->model ? 0 : failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* ---- messages ---- */

static int add_part(struct generation_request *r, struct buffer *text, const json_t *part, const char *separator,
                    const char *name, struct failure *f)
{
        const char *type = json_get_string(part, "type", "");
        const json_t *value = json_object_get(part, "text");

        if (!json_is_string(json_get(part, "type")) && params_check_at(&params_part, name, part, &r->warnings, f) != 0)
                return f->status;
        if (picture_is_a_part(type))
                return request_take_picture(r, part, text->size, name, f);
        if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0)
                return failure_set(f, 400, "unsupported_parameter", name,
                                   "'%s' is a part of type '%.40s'; models here read text and pictures only", name,
                                   type);
        if (params_check_at(&params_part, name, part, &r->warnings, f) != 0)
                return f->status;
        if (!json_is_string(value))
                return failure_set(f, 400, "invalid_type", name, "'%s' is a part of text without its text", name);
        if (text->size > 0)
                buffer_add_text(text, separator);
        buffer_add(text, json_string_value(value), json_string_length(value));
        return 0;
}

int request_add_message(struct generation_request *r, const char *role, const json_t *content, const char *separator,
                        const char *name, struct failure *f)
{
        struct buffer text = { 0 };
        struct tandem_message *messages;

        buffer_add(&text, "", 0);
        if (json_is_string(content)) {
                buffer_add(&text, json_string_value(content), json_string_length(content));
        } else if (json_is_array(content)) {
                for (size_t i = 0; i < json_array_size(content); i++) {
                        char where[96];

                        snprintf(where, sizeof(where), "%.60s[%zu]", name, i);
                        if (add_part(r, &text, json_array_get(content, i), separator, where, f) != 0) {
                                buffer_free(&text);
                                return f->status;
                        }
                }
        } else if (content && !json_is_null(content)) {
                buffer_free(&text);
                return failure_set(f, 400, "invalid_type", name, "'%s' has to be a text or an array of parts", name);
        }
        messages = text.failed ? NULL : reallocarray(r->messages, r->n_messages + 1, sizeof(*messages));
        if (!messages) {
                buffer_free(&text);
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        }
        r->messages = messages;
        r->messages[r->n_messages++] = (struct tandem_message){ .role = role, .text = text.data, .size = text.size };
        return 0;
}

int request_take_message(struct generation_request *r, const json_t *message, const char *name, size_t i,
                         const struct param_table *table, struct failure *f)
{
        static const char *const roles[][2] = { { "system", "system" },
                                                { "developer", "system" },
                                                { "user", "user" },
                                                { "assistant", "assistant" },
                                                { "tool", "tool" } };
        const char *given, *role = NULL;
        char where[64];

        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        if (!json_is_object(message))
                return failure_set(f, 400, "invalid_type", where, "'%s' has to be an object", where);
        if (params_check_at(table, where, message, &r->warnings, f) != 0)
                return f->status;
        given = json_get_string(message, "role", "");
        for (size_t k = 0; k < TDM_ARRAY_SIZE(roles); k++)
                if (strcmp(roles[k][0], given) == 0)
                        role = roles[k][1];
        if (!role)
                return failure_set(f, 400, "invalid_value", where,
                                   "'%s.role' is '%.40s'; system, developer, user, assistant and tool are known", where,
                                   given);
        snprintf(where, sizeof(where), "%s[%zu].content", name, i);
        if (request_add_message(r, role, json_object_get(message, "content"), "", where, f) != 0)
                return f->status;
        snprintf(where, sizeof(where), "%s[%zu].images", name, i); /* Ollama's */
        if (request_take_images(r, json_get(message, "images"), r->n_messages - 1, where, f) != 0)
                return f->status;
        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        return request_take_message_tools(r, message, where, f);
}

int request_take_messages(struct generation_request *r, const json_t *messages, const char *name,
                          const struct param_table *table, struct failure *f)
{
        if (json_array_size(messages) > MAX_MESSAGES)
                return failure_set(f, 400, "invalid_value", name, "'%s' has more than %u messages", name, MAX_MESSAGES);
        for (size_t i = 0; i < json_array_size(messages); i++)
                if (request_take_message(r, json_array_get(messages, i), name, i, table, f) != 0)
                        return f->status;
        return 0;
}

int request_check_messages(const struct generation_request *r, const char *name, struct failure *f)
{
        if (r->n_messages == 0)
                return failure_set(f, 400, "missing_required_parameter", name, "'%s' is missing or empty", name);
        return 0;
}

/* The daemon goes on with a last message of the assistant's by itself. What vLLM's clients say of it has to agree. */
int request_take_continuation(const struct generation_request *r, struct failure *f)
{
        const struct tandem_message *last = &r->messages[r->n_messages - 1];
        bool goes_on = strcmp(last->role, "assistant") == 0 && last->size > 0;

        if (json_get_bool(r->json, "continue_final_message", goes_on) != goes_on)
                return failure_set(f, 400, "invalid_value", "continue_final_message",
                                   goes_on ? "'continue_final_message' is false, and the last message is the "
                                             "assistant's, with which the model goes on; end with another's" :
                                             "'continue_final_message' is true, and the last message is not the "
                                             "assistant's with a text to go on with");
        if (!goes_on && !json_get_bool(r->json, "add_generation_prompt", true))
                return failure_set(f, 400, "invalid_value", "add_generation_prompt",
                                   "'add_generation_prompt' is false, and the last message is not the assistant's with "
                                   "a text to go on with");
        return 0;
}

/* ---- options ---- */

int request_take_stops(struct generation_request *r, const json_t *stops, const char *name, struct failure *f)
{
        size_t n = json_is_array(stops) ? json_array_size(stops) : stops && !json_is_null(stops);

        if (n > MAX_STOPS)
                return failure_set(f, 400, "invalid_value", name, "'%s' has more than %u texts", name, MAX_STOPS);
        for (size_t i = 0; i < n; i++) {
                const json_t *stop = json_is_array(stops) ? json_array_get(stops, i) : stops;

                if (!json_is_string(stop))
                        return failure_set(f, 400, "invalid_type", name, "'%s' has to be a text or an array of texts",
                                           name);
                if (json_string_length(stop) == 0)
                        return failure_set(f, 400, "invalid_value", name, "'%s' has an empty text", name);
                if (json_string_length(stop) > MAX_STOP_BYTES)
                        return failure_set(f, 400, "invalid_value", name, "'%s' has a text of more than %u bytes", name,
                                           MAX_STOP_BYTES);
                r->stops[r->n_stops++] = json_string_value(stop);
        }
        return 0;
}

void request_take_sampling(struct generation_request *r, const json_t *from)
{
        static const struct {
                const char *name;
                uint32_t bit;
        } open[] = { { "temperature", TANDEM_SAMPLING_TEMPERATURE },
                     { "top_k", TANDEM_SAMPLING_TOP_K },
                     { "top_p", TANDEM_SAMPLING_TOP_P },
                     { "min_p", TANDEM_SAMPLING_MIN_P },
                     { "repeat_penalty", TANDEM_SAMPLING_REPEAT_PENALTY },
                     { "repetition_penalty", TANDEM_SAMPLING_REPEAT_PENALTY },
                     { "repeat_last_n", TANDEM_SAMPLING_REPEAT_LAST } };
        struct tandem_generate_options *o = &r->options;

        /* An API's default is nobody's wish: what the model's file recommends goes before it. */
        o->meant = 0;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(open); i++)
                if (json_get(from, open[i].name))
                        o->meant |= open[i].bit;
        o->left_open = TDM_OPEN_ALL & ~o->meant;
        o->temperature = (float)json_get_number(from, "temperature", o->temperature);
        o->top_p = (float)json_get_number(from, "top_p", o->top_p);
        o->top_k = (uint32_t)TDM_MAX(json_get_integer(from, "top_k", o->top_k), (json_int_t)0); /* -1: off, too */
        o->min_p = (float)json_get_number(from, "min_p", o->min_p);
        o->frequency_penalty = (float)json_get_number(from, "frequency_penalty", 0);
        o->presence_penalty = (float)json_get_number(from, "presence_penalty", 0);
        if (json_get(from, "seed"))
                o->seed = (uint64_t)json_get_integer(from, "seed", 0);
}

int request_take_speculation(struct generation_request *r, const json_t *from, const char *prefix, struct failure *f)
{
        static const char *const modes[] = { [TANDEM_SPECULATION_AUTO] = "auto",
                                             [TANDEM_SPECULATION_OFF] = "off",
                                             [TANDEM_SPECULATION_LOOKUP] = "lookup",
                                             [TANDEM_SPECULATION_DRAFT] = "draft" };
        const char *mode = json_get_string(from, "speculation", modes[TANDEM_SPECULATION_AUTO]),
                   *draft = json_get_string(from, "draft", "");
        char name[32];
        size_t i = 0;

        while (i < TDM_ARRAY_SIZE(modes) && strcmp(modes[i], mode) != 0)
                i++;
        snprintf(name, sizeof(name), "%sspeculation", prefix);
        if (i == TDM_ARRAY_SIZE(modes))
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be auto, off, lookup or draft", name);
        r->options.speculation = (enum tandem_speculation)i;
        r->options.draft_max = (uint32_t)json_get_integer(from, "draft_max", 0);
        r->with_guesses = json_get(from, "speculation") || *draft || r->options.draft_max > 0;
        if (!*draft)
                return 0;
        snprintf(name, sizeof(name), "%sdraft", prefix);
        r->draft = model_name(draft);
        if (!r->draft)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        if (!model_is_a_name(r->draft))
                return failure_set(f, 404, "model_not_found", name, "'%s' names no model that there is: '%.200s'", name,
                                   draft);
        r->options.draft = r->draft;
        return 0;
}

/* {"ID": BIAS, …} as the list that libtandem takes. Names are token ids in digits. */
int request_take_logit_bias(struct generation_request *r, struct failure *f)
{
        struct buffer list = { 0 };
        const char *name;
        json_t *value;
        int n = 0;

        json_object_foreach((json_t *)json_get(r->json, "logit_bias"), name, value)
        {
                size_t digits = strspn(name, "0123456789");
                double bias = json_is_number(value) ? json_number_value(value) : NAN;
                char entry[64];

                if (digits == 0 || digits > 10 || name[digits] || !(fabs(bias) <= MAX_LOGIT_BIAS)) {
                        buffer_free(&list);
                        return failure_set(f, 400, "invalid_value", "logit_bias",
                                           "'logit_bias' has to hold token ids with numbers from -100 to 100");
                }
                if (++n > MAX_LOGIT_BIASES) {
                        buffer_free(&list);
                        return failure_set(f, 400, "invalid_value", "logit_bias",
                                           "'logit_bias' has more than %d tokens", MAX_LOGIT_BIASES);
                }
                snprintf(entry, sizeof(entry), "%s%s:%.6g", n > 1 ? "," : "", name, bias);
                buffer_add(&list, entry, strlen(entry));
        }
        if (n == 0)
                return 0;
        r->logit_bias = strndup(list.data, list.size);
        buffer_free(&list);
        if (!r->logit_bias)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        r->options.logit_bias = r->logit_bias;
        return 0;
}

int request_take_stream_options(struct generation_request *r, struct failure *f)
{
        const json_t *options = json_get(r->json, "stream_options");

        r->with_usage = json_get_bool(options, "include_usage", false);
        r->with_progress = json_get_bool(r->json, "return_progress", false);
        return options ? params_check(&params_stream_options, options, &r->warnings, f) : 0;
}
