/* What a request for text holds until its jobs start (generation.h), and which models it may name. */
#include "http-gateway/generation.h"

struct generation_request *generation_request_new(json_t *json, struct exact *numbers)
{
        struct generation_request *r = calloc(1, sizeof(*r));

        if (!r) {
                json_decref(json);
                exact_free(numbers);
                return NULL;
        }
        r->json = json;
        r->numbers = *numbers;
        *numbers = (struct exact){ 0 };
        r->n = 1;
        tandem_generate_options_init(&r->options);
        return r;
}

void generation_request_free(struct generation_request *r)
{
        if (!r)
                return;
        for (size_t i = 0; i < r->n_messages; i++)
                free((char *)(uintptr_t)r->messages[i].text);
        free(r->messages);
        for (size_t i = 0; i < r->n_prompts; i++)
                free(r->prompts[i].ids);
        json_decref(r->json);
        exact_free(&r->numbers);
        free(r->model);
        free(r->schema);
        free(r->logit_bias);
        free(r->draft);
        request_tools_free(&r->tools);
        request_pictures_free(&r->pictures);
        free(r);
}

void generation_request_freep(struct generation_request **r)
{
        generation_request_free(*r);
}

/* Only names of models are passed on. libtandem opens a path itself, and here it would do so with this process' rights:
 * a client of HTTP could have it open any file that the gateway may read. */
bool model_is_a_name(const char *model)
{
        size_t n = strlen(model);

        return n > 0 && n < 256 && !strchr(model, '/') && model[0] != '.' &&
               (n < 5 || strcmp(model + n - 5, ".gguf") != 0);
}
