/* POST /classify (and /v1/classify) and POST /predict: of which class texts are. Each text, or pair of texts, is a job
 * of its own; they run together, and each has the scores that it would have alone.
 *
 * Two forms: vLLM's, which SGLang has too (`input`; an object with `data`), and that of Hugging Face's
 * text-embeddings-inference (`inputs`; an array, or one for each text of a batch). */
#include "http-gateway/openai.h"

static int failure_no_memory(struct failure *f)
{
        return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* Until the request's end its jobs keep what they were told. */
static void charge_scores(struct choice *c, const char *const *labels, size_t n)
{
        c->kept_bytes += n * (sizeof(float) + sizeof(*labels));
        for (size_t i = 0; labels && i < n; i++)
                c->kept_bytes += TDM_MAX(strlen(labels[i]) + 1, (size_t)32); /* malloc() takes no less */
}

/* ---- vLLM's ---- */

/* {"label", "probs", "num_classes"} without its brackets: its number comes in front of it */
static void on_classes(struct exchange *x, struct choice *c, const float *scores, size_t n)
{
        size_t n_labels = 0, best = 0;
        const char *const *labels = tandem_job_labels(c->job, &n_labels);
        json_t *probs = json_array(), *label;

        for (size_t i = 0; i < n; i++) {
                best = scores[i] > scores[best] ? i : best;
                json_array_append_new(probs, json_real((double)scores[i]));
        }
        label = labels && best < n_labels ? json_string(labels[best]) : json_null();
        charge_scores(c, labels, n_labels);
        json_write(&c->columns[0], json_pack("{s:I, s:o, s:o, s:I}", "index", (json_int_t)c->index, "label", label,
                                             "probs", probs, "num_classes", (json_int_t)n));
}

static void write_columns(struct buffer *out, struct generation *g)
{
        for (unsigned i = 0; i < g->n_choices; i++) {
                buffer_add_text(out, i == 0 ? "" : ",");
                buffer_add_text(out, g->choices[i].columns[0].size > 0 ? "" : "null");
                buffer_move(out, &g->choices[i].columns[0]);
        }
}

static void classify_end(struct exchange *x)
{
        struct generation *g = x->generation;
        struct buffer out = { 0 };
        uint64_t prompt, cached, generated;

        generation_usage(g, &prompt, &cached, &generated);
        json_write_open(&out,
                        json_pack("{s:s, s:s, s:I, s:s, s:{s:I, s:I, s:I}}", "id", x->id, "object", "list", "created",
                                  (json_int_t)g->created, "model", json_get_string(g->request->json, "model", ""),
                                  "usage", "prompt_tokens", (json_int_t)prompt, "total_tokens", (json_int_t)prompt,
                                  "completion_tokens", (json_int_t)0));
        buffer_add_text(&out, ",\"data\":[");
        write_columns(&out, g);
        buffer_add_text(&out, "]}");
        exchange_answer_text(x, 200, "application/json", &out);
}

/* ---- text-embeddings-inference's ---- */

struct prediction {
        double score;
        size_t index;
};

/* The likeliest first; of equals that which the model has first. */
static int prediction_compare(const void *a, const void *b)
{
        const struct prediction *x = a, *y = b;

        return x->score != y->score ? (x->score < y->score) - (x->score > y->score) :
                                      (x->index > y->index) - (x->index < y->index);
}

/* [{"score", "label"}, …] */
static void on_predictions(struct exchange *x, struct choice *c, const float *scores, size_t n)
{
        _cleanup_(freep) struct prediction *predictions = malloc(n * sizeof(*predictions));
        size_t n_labels = 0;
        const char *const *labels = tandem_job_labels(c->job, &n_labels);
        json_t *list = json_array();

        for (size_t i = 0; predictions && i < n; i++)
                predictions[i] = (struct prediction){ (double)scores[i], i };
        if (predictions)
                qsort(predictions, n, sizeof(*predictions), prediction_compare);
        for (size_t i = 0; predictions && labels && n == n_labels && i < n; i++)
                json_array_append_new(list, json_pack("{s:f, s:s}", "score", predictions[i].score, "label",
                                                      labels[predictions[i].index]));
        json_write(&c->columns[0], list);
        charge_scores(c, labels, n_labels);
}

/* A text, or [text], or a pair; else it is an array of such arrays. */
static bool is_one(const json_t *inputs)
{
        return json_is_string(inputs) || json_is_string(json_array_get(inputs, 0));
}

static void predict_end(struct exchange *x)
{
        struct generation *g = x->generation;
        bool one = is_one(json_get(g->request->json, "inputs"));
        struct buffer out = { 0 };

        buffer_add_text(&out, one ? "" : "[");
        write_columns(&out, g);
        buffer_add_text(&out, one ? "" : "]");
        exchange_answer_text(x, 200, "application/json", &out);
}

static const struct generation_ops classify_ops = { .end = classify_end, .vector = on_classes };
static const struct generation_ops predict_ops = { .end = predict_end, .vector = on_predictions };

/* ---- requests ---- */

#define CLASSIFIED "texts" /* where the request keeps its list of texts; a client's member of this name is lost */

/* Takes the list over. */
static int take_list(struct generation_request *r, json_t *list, struct failure *f)
{
        if (!list || json_object_set_new(r->json, CLASSIFIED, list) < 0)
                return failure_no_memory(f);
        r->inputs = list;
        r->classifies = true;
        return 0;
}

static int take_input(struct generation_request *r, struct failure *f)
{
        json_t *input = json_get(r->json, "input");

        if (!input)
                return failure_set(f, 400, "missing_required_parameter", "input", "'input' is missing");
        if (json_is_string(input))
                return take_list(r, json_pack("[O]", input), f);
        if (!json_is_array(input) || json_array_size(input) == 0 || json_array_size(input) > MAX_INPUTS)
                return failure_set(f, 400, "invalid_value", "input",
                                   "'input' has to be a text or an array of 1 to %u texts", MAX_INPUTS);
        for (size_t i = 0; i < json_array_size(input); i++)
                if (!json_is_string(json_array_get(input, i)))
                        return failure_set(f, 400, "invalid_value", "input",
                                           "'input' has to hold texts; token ids are not taken, since they belong to "
                                           "another model's tokenizer");
        return take_list(r, json_incref(input), f);
}

/* [text], or a pair */
static bool is_text_or_pair(const json_t *value)
{
        size_t n = json_array_size(value);

        return json_is_array(value) && (n == 1 || n == 2) && json_is_string(json_array_get(value, 0)) &&
               (n == 1 || json_is_string(json_array_get(value, 1)));
}

static int take_inputs(struct generation_request *r, struct failure *f)
{
        json_t *inputs = json_get(r->json, "inputs");

        if (!inputs)
                return failure_set(f, 400, "missing_required_parameter", "inputs", "'inputs' is missing");
        if (json_is_string(inputs) || is_text_or_pair(inputs))
                return take_list(r, json_pack("[O]", inputs), f);
        if (!json_is_array(inputs) || json_array_size(inputs) == 0 || json_array_size(inputs) > MAX_INPUTS ||
            is_one(inputs))
                return failure_set(f, 400, "invalid_value", "inputs",
                                   "'inputs' has to be a text, a pair of texts, or an array of 1 to %u of [text] and "
                                   "[text, text]",
                                   MAX_INPUTS);
        for (size_t i = 0; i < json_array_size(inputs); i++)
                if (!is_text_or_pair(json_array_get(inputs, i)))
                        return failure_set(f, 400, "invalid_value", "inputs",
                                           "'inputs[%zu]' has to be [text], or [text, text]", i);
        return take_list(r, json_incref(inputs), f);
}

static int take_classify(struct generation_request *r, struct failure *f)
{
        r->raw = !json_get_bool(r->json, "use_activation", true);
        return request_take_model(r, f) != 0 || take_input(r, f) != 0 ? f->status : 0;
}

static int take_predict(struct generation_request *r, struct failure *f)
{
        r->raw = json_get_bool(r->json, "raw_scores", false);
        return request_take_model(r, f) != 0 || take_inputs(r, f) != 0 ? f->status : 0;
}

static void start_classify(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &classify_ops);
}

static void start_predict(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &predict_ops);
}

const struct reader classify_reader = { &params_classify, take_classify, start_classify },
                    predict_reader = { &params_predict, take_predict, start_predict };

void openai_classify(struct exchange *x)
{
        exchange_read(x, &classify_reader);
}

void openai_predict(struct exchange *x)
{
        exchange_read(x, &predict_reader);
}
