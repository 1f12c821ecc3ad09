/* GET /v1/models, and one. */
#include "http-gateway/questions.h"

static json_t *model_json(const struct tandem_model *m)
{
        json_t *json =
                json_pack("{s:s, s:s, s:I, s:s, s:s, s:b}", "id", m->name, "object", "model", "created",
                          (json_int_t)m->modified_s, "owned_by", "tandem", "state", m->state, "default", m->is_default);

        if (json && m->context > 0) {
                json_object_set_new(json, "max_model_len", json_integer(m->context));
                json_object_set_new(json, "context_length", json_integer(m->context));
        }
        if (json && *m->capabilities)
                json_object_set_new(json, "capabilities", model_capabilities(m));
        return json;
}

static void answer_models(struct exchange *x, struct ask *ask)
{
        json_t *data = json_array();

        for (size_t i = 0; i < ask->models->n_models; i++)
                json_array_append_new(data, model_json(ask->models->models[i]));
        exchange_answer_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static void answer_model(struct exchange *x, struct ask *ask)
{
        const struct tandem_model *m = find_model(ask->models, x->arg);

        if (m)
                exchange_answer_json(x, 200, model_json(m));
        else
                fail_no_model(x, x->arg);
}

void openai_models(struct exchange *x)
{
        exchange_ask(x, ASK_MODELS, NULL, NULL, 0, 0, answer_models);
}

void openai_model(struct exchange *x)
{
        exchange_ask(x, ASK_MODELS, NULL, NULL, 0, 0, answer_model);
}
