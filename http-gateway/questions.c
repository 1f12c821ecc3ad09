/* Health, metrics and tokenizing: questions to the daemon that make no text. */
#include "http-gateway/questions.h"

static void on_answer(struct ask *ask, void *userdata)
{
        struct exchange *x = userdata;
        struct failure f = { 0 };

        x->ask = NULL;
        if (ask->code == TANDEM_OK) {
                x->answered(x, ask);
                return;
        }
        failure_from_tandem(&f, &ask->error, ask->model);
        exchange_fail(x, &f);
}

void exchange_ask(struct exchange *x, unsigned what, char *model, char *text, size_t text_size, unsigned flags,
                  void (*answered)(struct exchange *x, struct ask *ask))
{
        struct failure f = { 0 };

        x->answered = answered;
        if (backend_ask(x->server->backend, x->owner, x->label, what, model, text, text_size, flags, on_answer, x,
                        &x->ask, &f) != 0)
                exchange_fail(x, &f);
}

const struct tandem_model *find_model(const struct tandem_model_list *list, const char *name)
{
        for (size_t i = 0; i < list->n_models; i++) {
                const char *rest = name + TDM_MIN(strlen(list->models[i]->name), strlen(name));

                if (strncmp(name, list->models[i]->name, strlen(list->models[i]->name)) == 0 &&
                    (!*rest || strcmp(rest, ":latest") == 0))
                        return list->models[i];
        }
        return NULL;
}

/* The daemon's words, which are Ollama's. */
json_t *model_capabilities(const struct tandem_model *m)
{
        json_t *words = json_array();

        for (const char *p = m->capabilities; *p; p += strspn(p, " ")) {
                size_t n = strcspn(p, " ");

                json_array_append_new(words, json_stringn(p, n));
                p += n;
        }
        return words;
}

bool model_takes_pictures(const struct tandem_model *m)
{
        return strstr(m->capabilities, "vision") != NULL;
}

void fail_no_model(struct exchange *x, const char *name)
{
        const struct tandem_error err = { .code = TANDEM_E_NO_MODEL };
        struct failure f = { 0 };

        failure_from_tandem(&f, &err, name);
        exchange_fail(x, &f);
}

/* ---- /health ---- */

/* Balancers look at the status alone: whatever is wrong, it is 503. */
static void on_health(struct ask *ask, void *userdata)
{
        struct exchange *x = userdata;
        struct failure f = { 0 };

        x->ask = NULL;
        if (ask->code == TANDEM_OK && !ask->status->draining) {
                exchange_answer_json(x, 200, json_pack("{s:s}", "status", "ok"));
                return;
        }
        if (ask->code == TANDEM_OK)
                failure_set(&f, 503, "draining", NULL, "the daemon is shutting down");
        else
                failure_from_tandem(&f, &ask->error, NULL);
        f.status = 503;
        exchange_fail(x, &f);
}

void question_health(struct exchange *x)
{
        struct failure f = { 0 };

        if (backend_ask(x->server->backend, x->owner, x->label, ASK_STATUS, NULL, NULL, 0, 0, on_health, x, &x->ask,
                        &f) != 0)
                exchange_fail(x, &f);
}

/* ---- /metrics ---- */

static void on_metrics(struct ask *ask, void *userdata)
{
        struct exchange *x = userdata;
        struct server *s = x->server;
        struct buffer text = { 0 };

        x->ask = NULL;
        metrics_write(&text, &s->metrics, ask->code == TANDEM_OK ? ask->status : NULL, s->n_peers, s->n_exchanges);
        exchange_answer_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

void question_metrics(struct exchange *x)
{
        struct failure f = { 0 };

        if (backend_ask(x->server->backend, x->owner, x->label, ASK_STATUS, NULL, NULL, 0, 0, on_metrics, x, &x->ask,
                        &f) != 0)
                exchange_fail(x, &f);
}

/* ---- /tokenize ---- */

static void answer_tokens(struct exchange *x, struct ask *ask)
{
        json_t *ids = json_array();

        for (size_t i = 0; i < ask->n_ids; i++)
                json_array_append_new(ids, json_integer(ask->ids[i]));
        exchange_answer_json(x, 200, json_pack("{s:o, s:I}", "tokens", ids, "count", (json_int_t)ask->n_ids));
}

static int take_text(struct generation_request *r, struct failure *f)
{
        const json_t *text = json_get(r->json, json_get(r->json, "content") ? "content" : "prompt");

        if (!text)
                return failure_set(f, 400, "missing_required_parameter", "content", "'content' is missing");
        if (request_take_model(r, f) != 0)
                return f->status;
        if (r->model && !model_is_a_name(r->model))
                return failure_set(f, 404, "model_not_found", "model", "a model is a name, not a path");
        r->prompts[0].text = json_string_value(text);
        r->prompts[0].size = json_string_length(text);
        return 0;
}

static void start_tokenize(struct exchange *x, struct generation_request *request)
{
        _cleanup_(generation_request_freep) struct generation_request *r = request;
        unsigned flags = TANDEM_TOKENIZE_NO_BOS;
        size_t size = r->prompts[0].size;
        char *copy = malloc(size + 1);

        if (json_get_bool(r->json, "add_special", false) || json_get_bool(r->json, "add_special_tokens", false))
                flags = 0;
        if (json_get_bool(r->json, "parse_special", false))
                flags |= TANDEM_TOKENIZE_SPECIAL;
        if (copy)
                memcpy(copy, r->prompts[0].text, size + 1);
        exchange_ask(x, ASK_TOKENIZE, steal_ptr(&r->model), copy, copy ? size : 0, flags, answer_tokens);
}

const struct reader question_tokenize_reader = { &params_tokenize, take_text, start_tokenize };

void question_tokenize(struct exchange *x)
{
        exchange_read(x, &question_tokenize_reader);
}
