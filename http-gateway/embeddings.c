/* POST /v1/embeddings, /api/embed and /api/embeddings: texts become vectors. Each text is a job of its own; they run
 * together, and each vector has the bits that its text alone would have. Ids in place of texts are refused: they come
 * from another model's tokenizer. */
#include "http-gateway/base64.h"
#include "http-gateway/format.h"
#include "http-gateway/ollama.h"
#include "http-gateway/openai.h"

static const char *input_name(const char *path)
{
        return strcmp(path, "/api/embeddings") == 0 ? "prompt" : "input";
}

static json_t *as_numbers(const float *v, size_t n)
{
        json_t *numbers = json_array();

        for (size_t i = 0; i < n; i++)
                json_array_append_new(numbers, json_real((double)v[i]));
        return numbers;
}

/* Little-endian, as OpenAI's clients read it. */
static json_t *as_base64(const float *v, size_t n)
{
        _cleanup_(freep) uint8_t *bytes = malloc(n * sizeof(*v) + 1);
        _cleanup_(buffer_free) struct buffer text = { 0 };

        if (!bytes)
                return NULL;
        for (size_t i = 0; i < n; i++) {
                uint32_t word;

                memcpy(&word, &v[i], sizeof(word));
                for (unsigned k = 0; k < 4; k++)
                        bytes[4 * i + k] = (uint8_t)(word >> (8 * k));
        }
        base64_add(&text, bytes, n * sizeof(*v));
        return text.failed ? NULL : json_stringn(text.data, text.size);
}

static void on_vector(struct exchange *x, struct choice *c, const float *vector, size_t n)
{
        const json_t *json = x->generation->request->json;

        if (strcmp(json_get_string(json, "encoding_format", "float"), "base64") == 0)
                json_write(&c->columns[0], as_base64(vector, n));
        else
                json_write(&c->columns[0], as_numbers(vector, n));
}

static void write_vector(struct buffer *out, struct choice *c)
{
        buffer_add_text(out, c->columns[0].size > 0 ? "" : "null");
        buffer_move(out, &c->columns[0]);
}

static void openai_end(struct exchange *x)
{
        struct generation *g = x->generation;
        struct buffer out = { 0 };
        uint64_t prompt, cached, generated;

        generation_usage(g, &prompt, &cached, &generated);
        json_write_open(&out, json_pack("{s:s, s:s, s:{s:I, s:I}}", "object", "list", "model",
                                        json_get_string(g->request->json, "model", ""), "usage", "prompt_tokens",
                                        (json_int_t)prompt, "total_tokens", (json_int_t)prompt));
        for (unsigned i = 0; i < g->n_choices; i++) {
                buffer_printf(&out,
                              "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i == 0 ? ",\"data\":[" : ",",
                              i);
                write_vector(&out, &g->choices[i]);
                buffer_add_text(&out, "}");
        }
        buffer_add_text(&out, "]}");
        exchange_answer_text(x, 200, "application/json", &out);
}

static void ollama_embed_end(struct exchange *x)
{
        struct generation *g = x->generation;
        uint64_t prompt, cached, generated;
        struct buffer out = { 0 };

        if (strcmp(x->route->path, "/api/embeddings") == 0) {
                buffer_add_text(&out, "{\"embedding\":");
                write_vector(&out, &g->choices[0]);
                buffer_add_text(&out, "}");
                exchange_answer_text(x, 200, "application/json", &out);
                return;
        }
        generation_usage(g, &prompt, &cached, &generated);
        json_write_open(&out, json_pack("{s:s, s:I, s:I, s:I}", "model", json_get_string(g->request->json, "model", ""),
                                        "total_duration", (json_int_t)(tdm_now_ns() - g->started_ns), "load_duration",
                                        (json_int_t)0, "prompt_eval_count", (json_int_t)prompt));
        for (unsigned i = 0; i < g->n_choices; i++) {
                buffer_add_text(&out, i == 0 ? ",\"embeddings\":[" : ",");
                write_vector(&out, &g->choices[i]);
        }
        buffer_add_text(&out, "]}");
        exchange_answer_text(x, 200, "application/json", &out);
}

static const struct generation_ops openai_ops = { .end = openai_end, .vector = on_vector };
static const struct generation_ops ollama_ops = { .end = ollama_embed_end, .vector = on_vector };

/* A text, or an array of texts. */
static int take_inputs(struct generation_request *r, struct failure *f)
{
        const char *name = input_name(r->path);
        json_t *input = json_get(r->json, name), *list;

        if (!input)
                return failure_set(f, 400, "missing_required_parameter", name, "'%s' is missing", name);
        if (json_is_string(input)) {
                list = json_pack("[O]", input);
                if (!list || json_object_set_new(r->json, name, list) < 0)
                        return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
                input = list;
        }
        if (!json_is_array(input) || json_array_size(input) == 0 || json_array_size(input) > MAX_INPUTS)
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be a text or an array of 1 to %u texts",
                                   name, MAX_INPUTS);
        for (size_t i = 0; i < json_array_size(input); i++)
                if (!json_is_string(json_array_get(input, i)))
                        return failure_set(f, 400, "invalid_value", name,
                                           "'%s' has to hold texts; token ids are not taken, since they belong to "
                                           "another model's tokenizer",
                                           name);
        r->inputs = input;
        return 0;
}

static int take_embedding(struct generation_request *r, struct failure *f)
{
        const char *format = json_get_string(r->json, "encoding_format", "float");

        if (strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
                return failure_set(f, 400, "invalid_value", "encoding_format",
                                   "'encoding_format' has to be \"float\" or \"base64\"");
        if (request_take_model(r, f) != 0 || take_inputs(r, f) != 0)
                return f->status;
        r->dimensions = (uint32_t)json_get_integer(r->json, "dimensions", 0);
        return 0;
}

static void start_openai(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &openai_ops);
}

static void start_ollama(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &ollama_ops);
}

const struct reader openai_embeddings_reader = { &params_embeddings, take_embedding, start_openai },
                    ollama_embed_reader = { &params_ollama_embed, take_embedding, start_ollama };

void openai_embeddings(struct exchange *x)
{
        exchange_read(x, &openai_embeddings_reader);
}

void ollama_embed(struct exchange *x)
{
        exchange_read(x, &ollama_embed_reader);
}
