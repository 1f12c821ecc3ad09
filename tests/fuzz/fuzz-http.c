/* Any bytes as a request's body, by every table of parameters, and as a Host and an Origin. What is taken holds what
 * the tables promise. */
#include <assert.h>
#include "http-gateway/guard.h"
#include "http-gateway/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct param_table *const tables[] = { &params_chat,      &params_completions, &params_responses,
                                                    &params_anthropic, &params_ollama_chat, &params_ollama_generate,
                                                    &params_tokenize };

static void check_failure(const struct failure *f)
{
        json_t *json;

        assert(f->status >= 400 && f->status < 600 && f->code && f->message[0]);
        for (int dialect = DIALECT_OPENAI; dialect <= DIALECT_OLLAMA; dialect++) {
                json = failure_json(f, (enum dialect)dialect, "req_1");
                assert(json); /* its texts are UTF-8 */
                json_decref(json);
        }
}

static void take(json_t *json)
{
        _cleanup_(generation_request_freep) struct generation_request *r = generation_request_new(json_incref(json));
        struct failure f = { 0 };

        assert(r);
        if (request_take_model(r, &f) != 0 ||
            request_take_messages(r, json_get(json, "messages"), "messages", &params_message, &f) != 0 ||
            request_take_stops(r, json_get(json, "stop"), "stop", &f) != 0) {
                check_failure(&f);
                return;
        }
        request_take_sampling(r, json);
        request_take_stream_options(r);
        assert(r->model[0] && r->n_stops <= MAX_STOPS && r->n_messages <= MAX_MESSAGES);
        if (request_check_messages(r, "messages", &f) == 0) {
                const char *last = r->messages[r->n_messages - 1].role;

                assert(strcmp(last, "user") == 0 || strcmp(last, "tool") == 0);
        } else {
                check_failure(&f);
        }
}

static void guard(const uint8_t *data, size_t size)
{
        struct config c = { .hosts = { "*.example" }, .n_hosts = 1, .origins = { "app://*" }, .n_origins = 1 };
        _cleanup_(freep) char *text = strndup((const char *)data, size);
        struct sockaddr_storage local = { .ss_family = AF_INET };
        struct failure f = { 0 };
        char own[256] = "";

        assert(text);
        if (guard_check_host(&c, &local, text, &f) != 0)
                check_failure(&f);
        else
                assert(strcasestr(text, "localhost") || strcasestr(text, ".example") || strstr(text, "127.") ||
                       strcasestr(text, ".local") || strcasestr(text, ".internal") || text[0] == '[' ||
                       strchr(text, ':') || (gethostname(own, sizeof(own)) == 0 && strcasestr(text, own)));
        if (guard_check_origin(&c, &local, text, &f) != 0)
                check_failure(&f);
}

/* The short way to write a string gives what jansson gives. */
static void write_text(const char *data, size_t size)
{
        _cleanup_(buffer_free) struct buffer fast = { 0 };
        json_t *text = json_text(data, size);
        char *slow = json_dumps(text, JSON_ENCODE_ANY);

        json_write_text(&fast, data, size);
        assert(text && slow && !fast.failed && strcmp(fast.data, slow) == 0);
        free(slow);
        json_decref(text);
}

static int charge(void *userdata, size_t bytes, struct failure *f)
{
        *(size_t *)userdata = bytes;
        return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct failure f = { 0 };
        size_t charged = 0;
        json_t *json = json_read_object((const char *)data, size, charge, &charged, &f);

        guard(data, size);
        write_text((const char *)data, size);
        if (!json) {
                check_failure(&f);
                return 0;
        }
        assert(charged >= size);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(tables); i++) {
                struct failure why = { 0 };

                if (params_check(tables[i], json, &why) != 0)
                        check_failure(&why);
                else if (tables[i] == &params_chat)
                        take(json);
        }
        json_decref(json);
        return 0;
}
