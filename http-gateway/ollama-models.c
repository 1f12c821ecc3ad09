/* Ollama's lists. Names get the ":latest" that its clients expect. What Tandem does not know yet (the architecture of a
 * file whose head was not read yet) is given as nothing rather than made up. */
#include "http-gateway/ollama.h"

#include <inttypes.h>

/* Clients compare it with the versions that brought what they use: this is the API's age, not Tandem's. */
#define OLLAMA_API_VERSION "0.6.4"
#define LONG_AGO "1970-01-01T00:00:00Z"
#define FAR_AWAY "9999-12-31T00:00:00Z"

void ollama_version(struct exchange *x)
{
        exchange_answer_json(x, 200, json_pack("{s:s}", "version", OLLAMA_API_VERSION));
}

/* "4.02B", "268.10M", as Ollama writes it; "": the head of the file was not read yet. */
static void write_parameters(char *to, size_t size, uint64_t n)
{
        if (n >= 1000000000)
                snprintf(to, size, "%.1fB", (double)n / 1e9);
        else if (n >= 1000000)
                snprintf(to, size, "%.2fM", (double)n / 1e6);
        else if (n > 0)
                snprintf(to, size, "%.2fK", (double)n / 1e3);
        else
                to[0] = '\0';
}

/* Seconds since 1970; 0: `otherwise`. */
static json_t *time_text(uint64_t seconds, const char *otherwise)
{
        time_t t = (time_t)seconds;
        char text[64];
        struct tm tm;

        if (seconds == 0 || !gmtime_r(&t, &tm) || tm.tm_year > 9999 - 1900)
                return json_string(otherwise);
        snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02dZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
                 tm.tm_hour, tm.tm_min, tm.tm_sec);
        return json_string(text);
}

/* The architecture is not known before the head of the file was read. */
static json_t *details(const struct tandem_model *m)
{
        char parameters[32];
        json_t *families = m->architecture[0] ? json_pack("[s]", m->architecture) : json_array();

        write_parameters(parameters, sizeof(parameters), m->parameters);
        return json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "parent_model", "", "format", "gguf", "family",
                         m->architecture, "families", families, "parameter_size", parameters, "quantization_level",
                         m->quantisation);
}

static uint64_t fnv1a(uint64_t hash, const void *data, size_t size)
{
        for (const uint8_t *p = data; size > 0; size--)
                hash = (hash ^ *p++) * UINT64_C(0x100000001b3);
        return hash;
}

/* An identity of 64 digits, from the model's name and its file's size. It is no digest of the file, which would have
 * to be read whole for it. Ollama's own program shows the first 12 digits and does not expect fewer. */
static json_t *identity(const struct tandem_model *m)
{
        char text[65];

        for (unsigned i = 0; i < 4; i++) {
                uint64_t hash = fnv1a(UINT64_C(0xcbf29ce484222325) + i, m->name, strlen(m->name) + 1);

                hash = fnv1a(hash, &m->file_bytes, sizeof(m->file_bytes));
                snprintf(text + 16 * i, sizeof(text) - 16 * i, "%016" PRIx64, hash);
        }
        return json_string(text);
}

static json_t *entry(const struct tandem_model *m)
{
        return json_pack("{s:s+, s:s+, s:I, s:o, s:o}", "name", m->name, ":latest", "model", m->name, ":latest", "size",
                         (json_int_t)m->file_bytes, "digest", identity(m), "details", details(m));
}

static void answer_tags(struct exchange *x, struct ask *ask)
{
        json_t *models = json_array();

        for (size_t i = 0; i < ask->models->n_models; i++) {
                json_t *json = entry(ask->models->models[i]);

                json_object_set_new(json, "modified_at", time_text(ask->models->models[i]->modified_s, LONG_AGO));
                json_array_append_new(models, json);
        }
        exchange_answer_json(x, 200, json_pack("{s:o}", "models", models));
}

void ollama_tags(struct exchange *x)
{
        exchange_ask(x, ASK_MODELS, NULL, NULL, 0, 0, answer_tags);
}

/* Whether the GPU worker has a device; without one it runs on the CPU. */
static bool has_gpu(const struct tandem_status *status)
{
        for (size_t i = 0; i < status->n_workers; i++) {
                const struct tandem_worker *w = status->workers[i];

                if (strcmp(w->name, "gpu") == 0)
                        return *w->device && strcmp(w->device, "host") != 0;
        }
        return false;
}

static void answer_ps(struct exchange *x, struct ask *ask)
{
        json_t *models = json_array();

        for (size_t i = 0; i < ask->models->n_models; i++) {
                const struct tandem_model *m = ask->models->models[i];
                uint64_t gpu_bytes = has_gpu(ask->status) ? m->weights_bytes : 0;
                json_t *json;

                if (strcmp(m->state, "loaded") != 0)
                        continue;
                json = entry(m);
                json_object_set_new(json, "expires_at", time_text(m->expires_s, FAR_AWAY));
                /* Clients make shares of CPU and GPU of them. Both workers read the same weights. */
                json_object_set_new(json, "size", json_integer((json_int_t)m->weights_bytes));
                json_object_set_new(json, "size_vram", json_integer((json_int_t)gpu_bytes));
                json_object_set_new(json, "context_length", json_integer(m->context));
                json_array_append_new(models, json);
        }
        exchange_answer_json(x, 200, json_pack("{s:o}", "models", models));
}

void ollama_ps(struct exchange *x)
{
        exchange_ask(x, ASK_MODELS | ASK_STATUS, NULL, NULL, 0, 0, answer_ps);
}

static void answer_show(struct exchange *x, struct ask *ask)
{
        const struct tandem_model *m = find_model(ask->models, ask->model);
        json_t *info;
        char key[128];

        if (!m) {
                fail_no_model(x, ask->model);
                return;
        }
        info = json_pack("{s:s, s:s}", "general.architecture", m->architecture, "general.basename", m->name);
        if (m->context > 0) {
                snprintf(key, sizeof(key), "%.100s.context_length", m->architecture);
                json_object_set_new(info, key, json_integer(m->context));
        }
        if (m->parameters > 0)
                json_object_set_new(info, "general.parameter_count", json_integer((json_int_t)m->parameters));
        exchange_answer_json(x, 200,
                             json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "license", "", "modelfile", "",
                                       "parameters", "", "template", "", "modified_at",
                                       time_text(m->modified_s, LONG_AGO), "details", details(m), "model_info", info,
                                       "capabilities", model_capabilities(m)));
}

/* The daemon knows nothing of a model before its first use, and applications decide by this answer what a model is good
 * for. Tokenizing nothing has it read the head of the file, not the weights. */
static int take_show(struct generation_request *r, struct failure *f)
{
        if (!json_get(r->json, "model") && json_get(r->json, "name"))
                json_object_set(r->json, "model", json_get(r->json, "name"));
        if (request_take_model(r, f) != 0)
                return f->status;
        return r->model ? 0 : failure_set(f, 400, "missing_required_parameter", "model", "'model' is missing");
}

static void start_show(struct exchange *x, struct generation_request *request)
{
        _cleanup_(generation_request_freep) struct generation_request *r = request;

        if (!model_is_a_name(r->model))
                fail_no_model(x, r->model);
        else
                exchange_ask(x, ASK_MODELS | ASK_TOKENIZE, steal_ptr(&r->model), strdup(""), 0, 0, answer_show);
}

const struct reader ollama_show_reader = { &params_ollama_show, take_show, start_show };

void ollama_show(struct exchange *x)
{
        exchange_read(x, &ollama_show_reader);
}

void ollama_manage(struct exchange *x)
{
        struct failure f = { 0 };

        failure_set(&f, 403, "denied", NULL,
                    "models are not fetched, made or removed over HTTP; use the tandem command");
        exchange_fail(x, &f);
}
