/* Any bytes as a request's body, translated as each path does it; as a peer's lines; as a Host, an Origin and a target.
 * What is taken holds what the tables promise, and numbers that pass through are those of the text. */
#include <assert.h>
#include <math.h>
#include "http-gateway/anthropic.h"
#include "http-gateway/exact.h"
#include "http-gateway/guard.h"
#include "http-gateway/head.h"
#include "http-gateway/ollama.h"
#include "http-gateway/openai.h"
#include "http-gateway/takeover.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
        const char *path;
        const struct reader *reader;
} paths[] = { { "/v1/chat/completions", &openai_chat_reader },
              { "/v1/completions", &openai_completions_reader },
              { "/v1/responses", &openai_responses_reader },
              { "/v1/embeddings", &openai_embeddings_reader },
              { "/v1/messages", &anthropic_messages_reader },
              { "/v1/messages/count_tokens", &anthropic_count_reader },
              { "/api/chat", &ollama_chat_reader },
              { "/api/generate", &ollama_generate_reader },
              { "/api/embed", &ollama_embed_reader },
              { "/api/embeddings", &ollama_embed_reader },
              { "/api/show", &ollama_show_reader },
              { "/tokenize", &question_tokenize_reader },
              { "/tandem/generate", &takeover_reader },
              { "/v1/rerank", &rerank_reader },
              { "/classify", &classify_reader },
              { "/predict", &predict_reader } };

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

/* They stand in order and within their texts, and a peer that is asked for the job has the same. Takes the job over. */
static void check_pictures(const struct generation_request *r, json_t *job)
{
        const struct request_pictures *p = &r->pictures, *given;
        struct generation_request *peers;
        struct exact numbers = { 0 };
        struct failure f = { 0 };

        assert(p->n <= MAX_PICTURES && job);
        peers = generation_request_new(job, &numbers);
        assert(peers && takeover_reader.take(peers, &f) == 0);
        given = &peers->pictures;
        assert(given->n == p->n && given->size_bytes == p->size_bytes);
        assert(peers->n_messages == r->n_messages && peers->n_prompts >= (r->n_messages == 0));
        for (size_t i = 0; i < p->n; i++) {
                const struct tandem_picture *a = &p->items[i], *b = &given->items[i], *before = i ? a - 1 : a;
                size_t size = r->n_messages > 0 ? r->messages[a->message].size : r->prompts[0].size;

                assert(r->n_messages == 0 || a->message < r->n_messages);
                assert(a->offset <= size && a->size > 0 && p->places[i][0]);
                assert(a->message > before->message || (a->message == before->message && a->offset >= before->offset));
                assert(a->message == b->message && a->offset == b->offset && a->size == b->size);
                assert(memcmp(a->file, b->file, a->size) == 0);
        }
        generation_request_free(peers);
}

static void check_request(struct generation_request *r)
{
        const struct tandem_message_details *const *details = request_details(r);

        assert(r->n_stops <= MAX_STOPS && r->n_messages <= MAX_MESSAGES && r->n_prompts <= MAX_PROMPTS && r->n >= 1);
        assert(!r->model || r->model[0]);
        for (size_t i = 0; i < r->n_messages; i++) {
                assert(r->messages[i].role && r->messages[i].text[r->messages[i].size] == '\0');
                for (size_t k = 0; details && details[i] && k < details[i]->n_calls; k++)
                        assert(details[i]->calls[k].id && details[i]->calls[k].name && details[i]->calls[k].arguments);
        }
        for (const char *p = r->warnings.text; *p; p++)
                assert(*p >= ' ' && *p < 127); /* it goes into a head */
        if (r->n_messages > 0 || r->n_prompts > 0) {
                json_t *job = takeover_request(r, 0, NULL);

                if (r->pictures.n > 0 &&
                    strcmp(r->path, TAKEOVER_PATH) != 0) /* a peer's tandemd looks at their places */
                        check_pictures(r, job);
                else
                        json_decref(job);
        }
}

static void translate(const char *data, size_t size, size_t which)
{
        const struct reader *reader = paths[which].reader;
        struct failure f = { 0 };
        struct exact numbers = { 0 };
        struct generation_request *r;
        json_t *json = json_parse_object(data, size, &numbers, &f);

        if (!json) {
                exact_free(&numbers);
                check_failure(&f);
                return;
        }
        r = generation_request_new(json, &numbers);
        assert(r);
        r->path = paths[which].path;
        if ((reader->table && params_check(reader->table, r->json, &r->warnings, &f) != 0) || reader->take(r, &f) != 0)
                check_failure(&f);
        else
                check_request(r);
        generation_request_free(r);
}

static bool is_white(char c)
{
        return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The numbers of two texts are the same, character by character. */
static void compare_numbers(const char *a, const char *b)
{
        const char *const texts[2] = { a, b };
        struct buffer found[2] = { { 0 }, { 0 } };

        for (int t = 0; t < 2; t++)
                for (const char *p = texts[t]; *p; p++) {
                        if (*p == '"') {
                                for (p++; *p && *p != '"'; p++)
                                        p += *p == '\\' && p[1];
                                if (!*p)
                                        break;
                                buffer_add_text(&found[t], "s");
                        } else if (!is_white(*p)) {
                                buffer_add(&found[t], p, 1);
                        }
                }
        assert(found[0].size == found[1].size && memcmp(found[0].data, found[1].data, found[0].size) == 0);
        buffer_free(&found[0]);
        buffer_free(&found[1]);
}

/* What jansson takes, this takes; what only its numbers keep it from, too. Written again it has the text's numbers. */
static void pass_through(const char *data, size_t size)
{
        struct exact numbers = { 0 };
        struct buffer out = { 0 };
        json_error_t why, plain_why;
        json_t *json = exact_load(&numbers, data, size, &why),
               *plain = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &plain_why);
        bool of_number = json_error_code(&plain_why) == json_error_numeric_overflow;

        assert(!plain || json || memchr(data, '\0', size));
        assert(plain || !json || of_number);
        if (json) {
                exact_write(&out, &numbers, json);
                assert(!out.failed);
                compare_numbers(data, out.data);
        }
        json_decref(json);
        json_decref(plain);
        exact_free(&numbers);
        buffer_free(&out);
}

/* Each line of a peer's answer, as handoff.c reads them, and calls as they are added up. */
static void listen_to_peer(const char *data, size_t size)
{
        struct choice_calls calls = { 0 };
        const char *end;

        for (; size > 0; size -= (size_t)(end - data) + 1, data = end + 1) {
                struct takeover_line line;

                end = memchr(data, '\n', size);
                if (!end)
                        break;
                takeover_read(&line, data, (size_t)(end - data));
                if (line.kind == TAKEOVER_TOKEN && choice_calls_fit(&calls, &line.token)) {
                        choice_calls_add(&calls, &line.token);
                        assert(!calls.failed);
                }
                for (size_t i = 0; i < line.token.n_top; i++)
                        assert(line.token.top[i].size <= (size_t)(end - data) / 2);
                takeover_line_free(&line);
        }
        for (size_t i = 0; i < calls.n; i++) {
                struct exact texts = { 0 };

                json_decref(choice_call_arguments(&calls.items[i], &texts));
                exact_free(&texts);
        }
        choice_calls_free(&calls);
}

static void guard(const char *text)
{
        struct config c = { .hosts = { "*.example" }, .n_hosts = 1, .origins = { "app://*" }, .n_origins = 1 };
        struct sockaddr_storage local = { .ss_family = AF_INET };
        struct failure f = { 0 };
        struct head h = { .host = "localhost" };
        char own[256] = "";

        if (guard_check_host(&c, &local, text, &f) != 0)
                check_failure(&f);
        else
                assert(strcasestr(text, "localhost") || strcasestr(text, ".example") || strstr(text, "127.") ||
                       strcasestr(text, ".local") || strcasestr(text, ".internal") || text[0] == '[' ||
                       strchr(text, ':') || (gethostname(own, sizeof(own)) == 0 && strcasestr(text, own)));
        if (guard_check_origin(&c, &local, text, &f) != 0)
                check_failure(&f);
        assert(head_take_target(&h, text) && h.host);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct failure f = { 0 };
        size_t bytes = 0, sum = 0;
        char *text = malloc(size + 1);

        assert(text);
        if (size > 0)
                memcpy(text, data, size);
        text[size] = '\0';
        for (size_t i = 0; i < size; i++)
                sum += data[i];
        guard(text);
        write_text(text, size);
        listen_to_peer(text, size);
        if (json_count(text, size, &bytes, &f) != 0) {
                check_failure(&f);
        } else {
                assert(bytes >= size);
                pass_through(text, size);
                translate(text, size, sum % TDM_ARRAY_SIZE(paths));
        }
        free(text);
        return 0;
}
