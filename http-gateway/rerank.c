/* POST /v1/rerank and its other names: how well documents answer a query, the best first. Each document is a job of its
 * own; they run together, and each score has the bits that its document alone would have.
 *
 * Two forms: Jina's and Cohere's, as llama-server and vLLM take it (`documents`; an object with `results`), and that of
 * Hugging Face's text-embeddings-inference (`texts`; an array). Scores of the first are what the model's head gives,
 * as llama-server's are, or with `use_activation` from 0 to 1; those of the second lie between 0 and 1, unless
 * `raw_scores` is true. What belongs to one form is refused in the other, since it would be without effect there. */
#include <math.h>
#include "http-gateway/openai.h"

#define RANKED "inputs" /* where the request keeps the texts of its documents; a client's member of this name is lost */

static bool has_texts(const json_t *json)
{
        return json_get(json, "texts");
}

static const char *documents_name(const json_t *json)
{
        return has_texts(json) ? "texts" : "documents";
}

static void on_score(struct exchange *x, struct choice *c, const float *vector, size_t n)
{
        float *score = malloc(sizeof(*score));

        if (score && n == 1) {
                *score = vector[0];
                c->state = score;
        } else {
                free(score);
        }
}

static double score_of(const struct choice *c)
{
        return (double)*(const float *)c->state;
}

/* The best first; of equals that which came first. */
static int choice_compare_scores(const void *a, const void *b)
{
        const struct choice *x = *(const struct choice *const *)a, *y = *(const struct choice *const *)b;
        double sx = score_of(x), sy = score_of(y);

        return sx != sy ? (sx < sy) - (sx > sy) : (x->index > y->index) - (x->index < y->index);
}

/* NULL: no memory. The caller frees it. */
static const struct choice **rank(const struct generation *g)
{
        const struct choice **ranked = malloc(g->n_choices * sizeof(const struct choice *));

        for (unsigned i = 0; ranked && i < g->n_choices; i++) {
                if (!g->choices[i].state) {
                        free(ranked);
                        return NULL;
                }
                ranked[i] = &g->choices[i];
        }
        if (ranked)
                qsort(ranked, g->n_choices, sizeof(const struct choice *), choice_compare_scores);
        return ranked;
}

/* From 0 to 1 where the request asks for it. */
static double given_score(const struct generation *g, const struct choice *c)
{
        const json_t *json = g->request->json;
        double score = score_of(c);

        if (!g->probabilities && (has_texts(json) ? !json_get_bool(json, "raw_scores", false) :
                                                    json_get_bool(json, "use_activation", false)))
                score = 1 / (1 + exp(-score));
        return score;
}

/* {"index", "relevance_score", "document"}: an object as it was given, with all that it had */
static json_t *as_result(const struct generation *g, const struct choice *c)
{
        const json_t *json = g->request->json;
        json_t *given = json_array_get(json_get(json, "documents"), c->index),
               *result = json_pack("{s:I, s:f}", "index", (json_int_t)c->index, "relevance_score", given_score(g, c));

        if (result && json_get_bool(json, "return_documents", false))
                json_object_set_new(result, "document",
                                    json_is_object(given) ? json_incref(given) : json_pack("{s:O}", "text", given));
        return result;
}

/* {"index", "score", "text"} */
static json_t *as_rank(const struct generation *g, const struct choice *c)
{
        json_t *rank = json_pack("{s:I, s:f}", "index", (json_int_t)c->index, "score", given_score(g, c));

        if (rank && json_get_bool(g->request->json, "return_text", false))
                json_object_set(rank, "text", json_array_get(g->request->inputs, c->index));
        return rank;
}

static void write_results(struct buffer *out, const struct generation *g, const struct choice *const *ranked,
                          json_t *(*as)(const struct generation *g, const struct choice *c))
{
        json_int_t asked = json_get_integer(g->request->json, "top_n", 0); /* 0: all, as vLLM's clients say */
        json_int_t n = asked > 0 ? asked : (json_int_t)g->n_choices;
        json_t *result;

        buffer_add_text(out, "[");
        for (unsigned i = 0; i < g->n_choices && i < n; i++) {
                buffer_add_text(out, i > 0 ? "," : "");
                result = as(g, ranked[i]);
                exact_write(out, &g->request->numbers, result);
                json_decref(result);
        }
        buffer_add_text(out, "]");
}

static void rerank_end(struct exchange *x)
{
        struct generation *g = x->generation;
        _cleanup_(freep) const struct choice **ranked = rank(g);
        struct buffer out = { 0 };
        uint64_t prompt, cached, generated;
        struct failure f;

        if (!ranked) {
                failure_set(&f, 503, "no_memory", NULL, "no memory for this request");
                exchange_fail(x, &f);
                return;
        }
        generation_usage(g, &prompt, &cached, &generated);
        if (has_texts(g->request->json)) {
                write_results(&out, g, ranked, as_rank);
        } else {
                json_write_open(&out,
                                json_pack("{s:s, s:s, s:s, s:{s:I, s:I}}", "id", x->id, "object", "list", "model",
                                          json_get_string(g->request->json, "model", ""), "usage", "prompt_tokens",
                                          (json_int_t)prompt, "total_tokens", (json_int_t)prompt));
                buffer_add_text(&out, ",\"results\":");
                write_results(&out, g, ranked, as_result);
                buffer_add_text(&out, "}");
        }
        exchange_answer_text(x, 200, "application/json", &out);
}

static const struct generation_ops rerank_ops = { .end = rerank_end, .vector = on_score };

static int failure_no_memory(struct failure *f)
{
        return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
}

/* What is without effect in the other form is refused there; false is not, where it is what the other form does. */
static int check_form(const json_t *json, struct failure *f)
{
        static const struct {
                const char *name, *form, *instead;
                bool false_is_nothing;
        } members[] = {
                { "return_documents", "documents", "return_text", true },
                { "use_activation", "documents", "raw_scores", false },
                { "return_text", "texts", "return_documents", true },
                { "raw_scores", "texts", "use_activation", false },
        };
        const char *form = documents_name(json);

        for (size_t i = 0; i < TDM_ARRAY_SIZE(members); i++) {
                const json_t *value = json_get(json, members[i].name);

                if (value && strcmp(members[i].form, form) != 0 &&
                    !(members[i].false_is_nothing && json_is_false(value)))
                        return failure_set(f, 400, "unsupported_parameter", members[i].name,
                                           "'%s' goes with '%s'; with '%s' send '%s'", members[i].name, members[i].form,
                                           form, members[i].instead);
        }
        return 0;
}

/* The text of one document. Objects are taken among `documents` alone. NULL: a failure. */
static json_t *document_text(struct generation_request *r, const char *name, size_t i, json_t *document,
                             struct failure *f)
{
        bool takes_objects = !has_texts(r->json);
        char where[48];

        if (json_is_string(document))
                return document;
        snprintf(where, sizeof(where), "%s[%zu]", name, i);
        if (!takes_objects || !json_is_object(document)) {
                failure_set(f, 400, "invalid_type", where, "'%s' has to be a text%s", where,
                            takes_objects ? ", or an object whose 'text' is one" : "");
                return NULL;
        }
        if (params_check_at(&params_document, where, document, &r->warnings, f) != 0)
                return NULL;
        if (!json_get(document, "text")) {
                failure_set(f, 400, "missing_required_parameter", where, "'%s.text' is missing", where);
                return NULL;
        }
        return json_get(document, "text");
}

static int take_documents(struct generation_request *r, struct failure *f)
{
        const char *name = documents_name(r->json);
        const json_t *given = json_get(r->json, name);
        json_t *texts, *kept;

        if (!given)
                return failure_set(f, 400, "missing_required_parameter", name, "'%s' is missing", name);
        if (!json_is_array(given) || json_array_size(given) == 0 || json_array_size(given) > MAX_INPUTS)
                return failure_set(f, 400, "invalid_value", name, "'%s' has to be an array of 1 to %u texts", name,
                                   MAX_INPUTS);
        texts = json_array();
        for (size_t i = 0; texts && i < json_array_size(given); i++) {
                json_t *text = document_text(r, name, i, json_array_get(given, i), f);

                if (!text || json_array_append(texts, text) < 0) {
                        json_decref(texts);
                        return text ? failure_no_memory(f) : f->status;
                }
        }
        /* A client's own member of this name stays alive: its numbers are known by their places in memory. */
        kept = texts ? json_pack("[o, O*]", texts, json_get(r->json, RANKED)) : NULL;
        if (!kept || json_object_set_new(r->json, RANKED, kept) < 0)
                return failure_no_memory(f);
        r->inputs = texts;
        return 0;
}

static int take_rerank(struct generation_request *r, struct failure *f)
{
        json_t *query = json_get(r->json, "query");

        if (!query || json_string_length(query) == 0)
                return failure_set(f, 400, query ? "invalid_value" : "missing_required_parameter", "query",
                                   query ? "'query' is empty" : "'query' is missing");
        if (json_get(r->json, "texts") && json_get(r->json, "documents"))
                return failure_set(f, 400, "invalid_value", "texts", "'texts' and 'documents' are given; take one");
        if (check_form(r->json, f) != 0)
                return f->status;
        if (request_take_model(r, f) != 0 || take_documents(r, f) != 0)
                return f->status;
        r->query = query;
        return 0;
}

static void start_rerank(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &rerank_ops);
}

const struct reader rerank_reader = { &params_rerank, take_rerank, start_rerank };

void openai_rerank(struct exchange *x)
{
        exchange_read(x, &rerank_reader);
}
