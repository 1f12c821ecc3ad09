/* POST /api/chat and /api/generate: lines of JSON, the last one with counts and times. A request without a prompt
 * loads the model, or with keep_alive 0 unloads it. Nothing is sent while a prompt is read: Ollama's own client takes
 * no line but its objects. */
#include "http-gateway/ollama.h"

#include "http-gateway/format.h"
#include "http-gateway/thinking.h"

#include <math.h>

#define NDJSON_CONTENT_TYPE "application/x-ndjson"

static bool is_chat(const struct exchange *x)
{
        return strcmp(x->route->path, "/api/chat") == 0;
}

static void add_time(json_t *json)
{
        struct timespec now;
        struct tm tm;
        char text[64];

        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ", tm.tm_year + 1900, tm.tm_mon + 1,
                 tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000);
        json_object_set_new(json, "created_at", json_string(text));
}

static json_t *line(struct exchange *x, const char *model, const char *text, size_t size, bool done)
{
        json_t *json = json_pack("{s:s, s:b}", "model", model, "done", done);

        if (!json)
                return NULL;
        add_time(json);
        if (is_chat(x))
                json_object_set_new(json, "message",
                                    json_pack("{s:s, s:o}", "role", "assistant", "content", json_text(text, size)));
        else
                json_object_set_new(json, "response", json_text(text, size));
        return json;
}

static void add_exact_line(struct exchange *x, json_t *json, const struct exact *texts)
{
        exact_write(&x->out, texts, json);
        json_decref(json);
        buffer_add_text(&x->out, "\n");
}

static void add_line(struct exchange *x, json_t *json)
{
        add_exact_line(x, json, NULL);
}

static void ollama_begin(struct exchange *x)
{
}

static const char *model_of(const struct exchange *x)
{
        return json_get_string(x->generation->request->json, "model", "");
}

static void ollama_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                        size_t size)
{
        if (x->generation->request->stream && size > 0)
                add_line(x, line(x, model_of(x), text, size, false));
}

/* "think": false hides them. The model's template decides whether it has thoughts. */
static void add_thinking(struct exchange *x, json_t *line, const char *text, size_t size)
{
        if (size > 0 && !json_is_false(json_get(x->generation->request->json, "think")))
                json_object_set_new(is_chat(x) ? json_object_get(line, "message") : line, "thinking",
                                    json_text(text, size));
}

/* Calls are told at the end, whole. */
static void ollama_thinking(struct exchange *x, struct choice *c, const struct tandem_token *token)
{
        json_t *json;

        if (token->thinking_size == 0 || json_is_false(json_get(x->generation->request->json, "think")))
                return;
        json = line(x, model_of(x), "", 0, false);
        add_thinking(x, json, token->thinking, token->thinking_size);
        add_line(x, json);
}

/* {"function": {"name", "arguments"}} of each whole call, and nothing beside it: some clients take one member only. */
static json_t *tool_calls(const struct choice *c, struct exact *texts)
{
        json_t *calls = json_array();

        for (size_t i = 0; i < c->calls.n; i++) {
                json_t *arguments = choice_call_arguments(&c->calls.items[i], texts);

                if (arguments)
                        json_array_append_new(calls, json_pack("{s:{s:i, s:s, s:o}}", "function", "index", (int)i,
                                                               "name", c->calls.items[i].name, "arguments", arguments));
        }
        return calls;
}

static void add_tool_calls(json_t *line, const struct choice *c, struct exact *texts)
{
        if (c->calls.n > 0)
                json_object_set_new(json_object_get(line, "message"), "tool_calls", tool_calls(c, texts));
}

static void ollama_choice_end(struct exchange *x, struct choice *c)
{
        _cleanup_(exact_free) struct exact texts = { 0 };
        json_t *json;

        if (c->calls.n == 0)
                return;
        json = line(x, model_of(x), "", 0, false);
        add_tool_calls(json, c, &texts);
        add_exact_line(x, json, &texts);
}

static void ollama_end(struct exchange *x)
{
        _cleanup_(exact_free) struct exact texts = { 0 };
        struct generation *g = x->generation;
        struct choice *c = &g->choices[0];
        bool stream = g->request->stream;
        json_t *json = line(x, model_of(x), stream ? "" : c->text.data, stream ? 0 : c->text.size, true);

        if (json && !stream) {
                add_thinking(x, json, c->thinking.data, c->thinking.size);
                add_tool_calls(json, c, &texts);
        }
        if (json) {
                json_object_set_new(json, "done_reason",
                                    json_string(c->reason == TANDEM_REASON_LENGTH ? "length" : "stop"));
                json_object_set_new(json, "total_duration", json_integer((json_int_t)(tdm_now_ns() - g->started_ns)));
                json_object_set_new(json, "load_duration", json_integer((json_int_t)(c->load_s * 1e9)));
                json_object_set_new(json, "prompt_eval_count", json_integer(c->prompt_tokens));
                json_object_set_new(json, "prompt_eval_duration", json_integer((json_int_t)(c->prefill_s * 1e9)));
                json_object_set_new(json, "eval_count", json_integer(c->generated_tokens));
                json_object_set_new(json, "eval_duration", json_integer((json_int_t)(c->decode_s * 1e9)));
        }
        if (stream)
                add_line(x, json);
        else
                exchange_answer_exact(x, 200, json, &texts);
}

static void ollama_error(struct exchange *x, const struct failure *f)
{
        add_line(x, failure_json(f, DIALECT_OLLAMA, x->id));
}

static const struct generation_ops ollama_ops = { .content_type = NDJSON_CONTENT_TYPE,
                                                  .begin = ollama_begin,
                                                  .text = ollama_text,
                                                  .calls = ollama_thinking,
                                                  .choice_end = ollama_choice_end,
                                                  .end = ollama_end,
                                                  .error = ollama_error };

/* ---- options ---- */

#define MOST_REPEAT_LAST 256

static int take_options(struct generation_request *r, struct failure *f)
{
        const json_t *given = json_get(r->json, "options");
        struct tandem_generate_options *o = &r->options;
        const uint64_t random_seed = o->seed;
        json_int_t predict, last;

        if (given && params_check(&params_ollama_options, given, &r->warnings, f) != 0)
                return f->status;
        o->temperature = 0.8f;
        o->top_k = 40;
        o->top_p = 0.9f;
        o->min_p = 0;
        request_take_sampling(r, given);
        o->repeat_penalty = (float)json_get_number(given, "repeat_penalty", 1.1);
        last = json_get_integer(given, "repeat_last_n", 64);
        if (last < 0) {
                last = MOST_REPEAT_LAST;
                params_warn(&r->warnings, "options.repeat_last_n -1 counts the last 256 tokens");
        }
        o->repeat_last = (uint32_t)last;
        if (last == 0) { /* which is 64 to libtandem */
                o->repeat_penalty = 1;
                o->meant |= TANDEM_SAMPLING_REPEAT_PENALTY;
                o->left_open &= ~(uint32_t)TANDEM_SAMPLING_REPEAT_PENALTY;
        }
        predict = json_get_integer(given, "num_predict", -1);
        o->max_tokens = predict > 0 ? (uint32_t)predict : 0;
        r->context_limit = (uint32_t)TDM_MAX(json_get_integer(given, "num_ctx", 0), (json_int_t)0);
        if (json_get(given, "seed") && json_get_integer(given, "seed", 0) == -1)
                o->seed = random_seed;
        if (request_take_speculation(r, given, "options.", f) != 0)
                return f->status;
        return request_take_stops(r, json_get(given, "stop"), "options.stop", f);
}

#define MOST_KEEP_ALIVE_S 604800u /* what the daemon takes */

/* A duration: seconds as a number, or Go's form ("5m", "1h30m", "-1s"). */
static int take_keep_alive(const json_t *value, double *ret_s, struct failure *f)
{
        static const struct {
                const char *unit;
                double s;
        } units[] = { { "ms", 1e-3 }, { "us", 1e-6 }, { "ns", 1e-9 }, { "h", 3600 }, { "m", 60 }, { "s", 1 } };
        const char *p = json_is_string(value) ? json_string_value(value) : NULL;
        double sum = 0, sign = 1;

        *ret_s = 300;
        if (!value)
                return 0;
        if (json_is_number(value)) {
                *ret_s = json_number_value(value);
                return 0;
        }
        if (p && (*p == '-' || *p == '+'))
                sign = *p++ == '-' ? -1 : 1;
        if (p && strcmp(p, "0") == 0)
                p++;
        else if (p && !*p)
                p = NULL;
        while (p && *p) {
                char *end;
                double v;
                size_t u = 0;

                if (!strchr("0123456789.", *p)) {
                        p = NULL;
                        break;
                }
                v = strtod(p, &end);
                while (u < TDM_ARRAY_SIZE(units) && strncmp(end, units[u].unit, strlen(units[u].unit)) != 0)
                        u++;
                if (end == p || u == TDM_ARRAY_SIZE(units)) {
                        p = NULL;
                        break;
                }
                sum += v * units[u].s;
                p = end + strlen(units[u].unit);
        }
        if (!p || !isfinite(sum))
                return failure_set(f, 400, "invalid_value", "keep_alive",
                                   "'keep_alive' has to be a number of seconds or a duration such as \"5m\"");
        *ret_s = sign * sum;
        return 0;
}

/* ---- without a prompt ---- */

static void answer_loaded(struct exchange *x, struct ask *ask)
{
        json_t *json = line(x, ask->model, "", 0, true);

        json_object_set_new(json, "done_reason", json_string(ask->what & ASK_UNLOAD ? "unload" : "load"));
        exchange_answer_json(x, 200, json);
}

static void load_or_unload(struct exchange *x, struct generation_request *request, bool unload)
{
        _cleanup_(generation_request_freep) struct generation_request *r = request;
        struct failure f;

        if (!r->model) {
                failure_set(&f, 400, "missing_required_parameter", "model",
                            "'model' is missing; GET /api/tags lists what there is");
                exchange_fail(x, &f);
        } else if (!model_is_a_name(r->model)) {
                fail_no_model(x, r->model);
        } else {
                exchange_ask(x, unload ? ASK_UNLOAD : ASK_LOAD, steal_ptr(&r->model), NULL, 0, 0, answer_loaded);
        }
}

/* Takes the members that both endpoints have. Without a prompt the model is loaded, or unloaded. */
static int take_rest(struct generation_request *r, struct failure *f)
{
        double keep_s;

        if (request_take_think(r, f) != 0 || request_take_template_kwargs(r, f) != 0 || take_options(r, f) != 0 ||
            (!r->options.json_schema && request_take_ollama_format(r, f) != 0) ||
            take_keep_alive(json_get(r->json, "keep_alive"), &keep_s, f) != 0)
                return f->status;
        /* The daemon counts whole seconds and has no "at once"; less than 0 means for ever to Ollama's clients. */
        if (json_get(r->json, "keep_alive"))
                r->options.keep_alive =
                        keep_s < 0 ? MOST_KEEP_ALIVE_S : (uint32_t)TDM_MIN(ceil(TDM_MAX(keep_s, 1)), MOST_KEEP_ALIVE_S);
        r->unload = keep_s == 0;
        r->stream = json_get_bool(r->json, "stream", true);
        return 0;
}

static void start_ollama(struct exchange *x, struct generation_request *r)
{
        if (r->n_messages > 0 || r->n_prompts > 0)
                generation_start(x, r, &ollama_ops);
        else
                load_or_unload(x, r, r->unload);
}

static int take_ollama_chat(struct generation_request *r, struct failure *f)
{
        const json_t *messages = json_get(r->json, "messages");

        if (request_take_model(r, f) != 0)
                return f->status;
        if (json_array_size(messages) > 0 &&
            (request_take_messages(r, messages, "messages", &params_ollama_message, f) != 0 ||
             request_check_messages(r, "messages", f) != 0 || request_take_ollama_format(r, f) != 0 ||
             request_take_openai_tools(r, f) != 0))
                return f->status;
        return take_rest(r, f);
}

static int take_prompt(struct generation_request *r, const json_t *prompt, struct failure *f)
{
        const json_t *system = json_get(r->json, "system"), *images = json_get(r->json, "images");
        bool has_system = system && json_string_length(system) > 0;

        if (!json_get_bool(r->json, "raw", false)) {
                if ((has_system && request_add_message(r, "system", system, "", "system", f) != 0) ||
                    request_add_message(r, "user", prompt, "", "prompt", f) != 0)
                        return f->status;
                return request_take_images(r, images, r->n_messages - 1, "images", f);
        }
        if (has_system)
                return failure_set(f, 400, "unsupported_parameter", "system", "'system' has no place in a raw prompt");
        r->prompts[0].text = json_string_value(prompt);
        r->prompts[0].size = json_string_length(prompt);
        r->n_prompts = 1;
        return request_take_images(r, images, 0, "images", f);
}

static int take_generate(struct generation_request *r, struct failure *f)
{
        const json_t *prompt = json_get(r->json, "prompt");

        if (request_take_model(r, f) != 0)
                return f->status;
        if (json_string_length(prompt) > 0 && take_prompt(r, prompt, f) != 0)
                return f->status;
        if (json_string_length(prompt) == 0 && json_array_size(json_get(r->json, "images")) > 0)
                return failure_set(f, 400, "missing_required_parameter", "prompt",
                                   "'images' belong to a 'prompt', which is missing or empty");
        return take_rest(r, f);
}

const struct reader ollama_chat_reader = { &params_ollama_chat, take_ollama_chat, start_ollama },
                    ollama_generate_reader = { &params_ollama_generate, take_generate, start_ollama };

void ollama_chat(struct exchange *x)
{
        exchange_read(x, &ollama_chat_reader);
}

void ollama_generate(struct exchange *x)
{
        exchange_read(x, &ollama_generate_reader);
}
