/* The request is written from a generation_request, and read into one again by the other gateway, so it has a member
 * for each of its parts. Nothing in it is trusted: the daemon checks what it gets, as from any client. */
#include "http-gateway/takeover.h"

#include "common/id-list.h"
#include "common/job-options.h"
#include "http-gateway/messages.h"

#define NDJSON_CONTENT_TYPE "application/x-ndjson"

/* ---- the request ---- */

static int member_set(json_t *json, const char *key, json_t *value)
{
        return value ? json_object_set_new(json, key, value) : -1;
}

static int set_text(json_t *json, const char *key, const char *text)
{
        return text && *text ? member_set(json, key, json_string(text)) : 0;
}

static json_t *message_json(const struct tandem_message *m, const struct tandem_message_details *d)
{
        json_t *json = json_pack("{s:s, s:o}", "role", m->role, "text", json_text(m->text, m->size)), *calls;
        int r = json ? 0 : -1;

        if (!d || r < 0)
                return json;
        r |= set_text(json, "thinking", d->thinking) | set_text(json, "call_id", d->call_id) |
             set_text(json, "name", d->name);
        calls = json_array();
        for (size_t i = 0; i < d->n_calls; i++)
                r |= json_array_append_new(calls,
                                           json_pack("{s:s, s:s, s:{s:s}}", "id", d->calls[i].id, "name",
                                                     d->calls[i].name, "input", "arguments", d->calls[i].arguments));
        if (d->n_calls > 0)
                r |= json_object_set(json, "calls", calls);
        json_decref(calls);
        if (r < 0) {
                json_decref(json);
                return NULL;
        }
        return json;
}

static json_t *messages_json(const struct generation_request *r)
{
        json_t *messages = json_array();

        for (size_t i = 0; i < r->n_messages; i++) {
                const struct tandem_message_details *d = i < r->tools.n_details ? r->tools.details[i] : NULL;

                if (json_array_append_new(messages, message_json(&r->messages[i], d)) < 0) {
                        json_decref(messages);
                        return NULL;
                }
        }
        return messages;
}

static json_t *ids_json(const struct prompt *p)
{
        json_t *ids = json_array();

        for (size_t i = 0; i < p->n_ids; i++)
                json_array_append_new(ids, json_integer(p->ids[i]));
        return ids;
}

/* The rows of the table of options. What only the other gateway's machine can choose stays there: guesses change no
 * token, and it may have no such draft. Stop texts are a part of their own. */
static bool goes_along(enum tdm_job_option_index option)
{
        return option != TDM_JOB_OPTION_speculation && option != TDM_JOB_OPTION_draft &&
               option != TDM_JOB_OPTION_draft_max && option != TDM_JOB_OPTION_stop &&
               !tdm_job_options[option].for_tests;
}

#define PUT_U32(field) member_set(json, #field, json_integer(o->field))
#define PUT_U64(field) member_set(json, #field, json_integer((json_int_t)o->field))
#define PUT_REAL(field) member_set(json, #field, json_real((double)o->field))
#define PUT_CHOICE(field) member_set(json, #field, json_integer((json_int_t)o->field))
#define PUT_BOOL(field) member_set(json, #field, json_boolean(o->field))
#define PUT_TEXT(field) set_text(json, #field, o->field)
#define PUT_NAME(field) set_text(json, #field, o->field)
#define PUT_TEXTS(field) 0

static int put_options(json_t *json, const struct tandem_generate_options *o)
{
        int failed = 0;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (goes_along(TDM_JOB_OPTION_##field))                                                                        \
                failed |= PUT_##TYPE(field);
#include "common/job-options.def"
#undef OPTION
        failed |= member_set(json, "meant", json_integer(o->meant)) |
                  member_set(json, "left_open", json_integer(o->left_open));
        return failed;
}

/* A gateway from before there were pictures would leave them out, so it finds no prompt where there are some, and
 * refuses. */
struct prompt_names {
        const char *messages, *text;
};

static struct prompt_names names_of(const struct generation_request *r)
{
        static const struct prompt_names plain = { "messages", "text" },
                                         with_pictures = { "messages_with_pictures", "text_with_pictures" };

        return r->pictures.n > 0 ? with_pictures : plain;
}

/* Guesses are not among its parts: they change no token, and the other machine may have no such draft. */
json_t *takeover_request(const struct generation_request *r, unsigned choice, json_t *pictures)
{
        const struct tandem_generate_options *o = &r->options;
        const struct prompt *p = &r->prompts[choice / r->n % MAX_PROMPTS];
        json_t *json = json_pack("{s:I}", "num_ctx", (json_int_t)r->context_limit);
        int failed = json ? 0 : -1;

        if (failed < 0)
                return NULL;
        failed |= set_text(json, "model", r->model) | put_options(json, o) |
                  member_set(json, "seed", json_integer((json_int_t)(o->seed + choice % r->n)));
        if (r->pictures.n > 0)
                failed |= member_set(json, "pictures",
                                     pictures ? json_incref(pictures) : request_pictures_json(&r->pictures));
        if (r->n_messages > 0)
                failed |= member_set(json, names_of(r).messages, messages_json(r));
        else if (p->text)
                failed |= member_set(json, names_of(r).text, json_text(p->text, p->size));
        else
                failed |= member_set(json, "ids", ids_json(p));
        if (!r->name_the_stop && r->n_stops > 0) { /* else the asking gateway looks for them itself */
                json_t *stops = json_array();

                for (size_t i = 0; i < r->n_stops; i++)
                        json_array_append_new(stops, json_string(r->stops[i]));
                failed |= member_set(json, "stop", stops);
        }
        if (failed < 0) {
                json_decref(json);
                return NULL;
        }
        return json;
}

int takeover_remember(struct choice *c, const struct tandem_token *token)
{
        if (c->n_told == c->told_capacity) {
                size_t capacity = TDM_MAX(c->told_capacity * 2, (size_t)64);
                struct told *told = reallocarray(c->told, capacity, sizeof(*told));

                if (!told)
                        return -ENOMEM;
                c->told = told;
                c->told_capacity = capacity;
        }
        if (c->n_told == 0)
                snprintf(c->drew, sizeof(c->drew), "%.191s", token->numerics_id ? token->numerics_id : "");
        else if (token->numerics_id && strcmp(c->drew, token->numerics_id) != 0)
                c->drew[0] = '\0';
        c->told[c->n_told++] = (struct told){ token->id, token->logprob };
        return 0;
}

/* Some are drawn again, since that shows whether the peer's model is the same. */
int takeover_give_drawn(struct choice *c, json_t *request)
{
        _cleanup_(buffer_free) struct buffer ids = { 0 };
        size_t n = c->n_told - TDM_MIN(c->n_told, (size_t)TAKEOVER_COMPARED);

        if (!request || n == 0 || !c->drew[0])
                return 0;
        for (size_t i = 0; i < n; i++)
                buffer_printf(&ids, i ? ",%u" : "%u", c->told[i].id);
        if (ids.failed || json_object_set_new(request, "drawn", json_stringn(ids.data, ids.size)) < 0 ||
            json_object_set_new(request, "drawn_numerics", json_string(c->drew)) < 0)
                return -ENOMEM;
        c->n_given = n;
        return 0;
}

static char *copy_of(struct generation_request *r, const char *text)
{
        char **texts = reallocarray(r->tools.texts, r->tools.n_texts + 1, sizeof(*texts));
        char *copy = text && texts ? strdup(text) : NULL;

        if (texts)
                r->tools.texts = texts;
        if (copy)
                texts[r->tools.n_texts++] = copy;
        return copy;
}

static int take_message(struct generation_request *r, const json_t *m, struct failure *f)
{
        const json_t *calls = json_get(m, "calls");
        struct tandem_message_details *d;
        struct tandem_call *items;

        if (request_add_message(r, json_get_string(m, "role", ""), json_get(m, "text"), "", "messages", f) != 0)
                return f->status;
        d = request_last_details(r);
        items = d && json_array_size(calls) > 0 ? calloc(json_array_size(calls), sizeof(*items)) : NULL;
        if (!d || (json_array_size(calls) > 0 && !items))
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        d->thinking = json_get_string(m, "thinking", NULL);
        d->call_id = json_get_string(m, "call_id", NULL);
        d->name = json_get_string(m, "name", NULL);
        d->calls = items;
        for (size_t i = 0; i < json_array_size(calls); i++) {
                const json_t *call = json_array_get(calls, i);

                items[d->n_calls].id = copy_of(r, json_get_string(call, "id", ""));
                items[d->n_calls].name = copy_of(r, json_get_string(call, "name", ""));
                items[d->n_calls].arguments = copy_of(r, json_get_string(json_get(call, "input"), "arguments", "{}"));
                d->n_calls++;
        }
        return 0;
}

static uint32_t count_of(const json_t *json, const char *key)
{
        json_int_t v = json_get_integer(json, key, 0);

        return v < 0 ? 0 : v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static bool is_count(const json_t *value)
{
        return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= UINT32_MAX;
}

static int take_ids(struct generation_request *r, const json_t *ids, struct failure *f)
{
        struct prompt *p = &r->prompts[0];

        p->ids = calloc(json_array_size(ids) + 1, sizeof(*p->ids));
        if (!p->ids)
                return failure_set(f, 503, "no_memory", NULL, "no memory for this request");
        for (size_t i = 0; i < json_array_size(ids); i++) {
                json_int_t id = json_integer_value(json_array_get(ids, i));

                if (id < 0 || id > UINT32_MAX)
                        return failure_set(f, 400, "invalid_value", "ids", "'ids' has an id that is none");
                p->ids[p->n_ids++] = (uint32_t)id;
        }
        r->n_prompts = 1;
        return 0;
}

static int job_take_prompt(struct generation_request *r, struct failure *f)
{
        const json_t *messages, *text;

        if (request_take_peers_pictures(r, json_get(r->json, "pictures"), f) != 0)
                return f->status;
        messages = json_get(r->json, names_of(r).messages);
        text = json_get(r->json, names_of(r).text);
        for (size_t i = 0; i < json_array_size(messages); i++)
                if (take_message(r, json_array_get(messages, i), f) != 0)
                        return f->status;
        if (json_array_size(messages) > 0)
                return 0;
        if (!json_is_string(text))
                return take_ids(r, json_get(r->json, "ids"), f);
        r->prompts[0].text = json_string_value(text);
        r->prompts[0].size = json_string_length(text);
        r->n_prompts = 1;
        return 0;
}

/* An index into the row's choices; the first one where it is none. */
static unsigned choice_of(const json_t *json, const char *key, enum tdm_job_option_index option)
{
        uint32_t given = count_of(json, key), n = 0;

        while (tdm_job_options[option].range.choices[n])
                n++;
        return given < n ? given : 0;
}

#define TAKE_U32(field) o->field = count_of(json, #field)
#define TAKE_U64(field) o->field = (uint64_t)json_get_integer(json, #field, 0)
#define TAKE_REAL(field) o->field = (float)json_get_number(json, #field, 0)
#define TAKE_CHOICE(field) o->field = choice_of(json, #field, TDM_JOB_OPTION_##field)
#define TAKE_BOOL(field) o->field = json_get_bool(json, #field, false)
#define TAKE_TEXT(field) o->field = json_get_string(json, #field, NULL)
#define TAKE_NAME(field) o->field = NULL
#define TAKE_TEXTS(field) (void)o

static void take_options(struct generation_request *r)
{
        struct tandem_generate_options *o = &r->options;
        const json_t *json = r->json;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (goes_along(TDM_JOB_OPTION_##field))                                                                        \
                TAKE_##TYPE(field);
#include "common/job-options.def"
#undef OPTION
        o->meant = json_get(json, "meant") ? count_of(json, "meant") : TDM_OPEN_ALL;
        o->left_open = count_of(json, "left_open");
        r->context_limit = count_of(json, "num_ctx");
        r->stream = true;
}

/* ---- the answer, as it is made ---- */

static void add_line(struct exchange *x, json_t *json)
{
        json_write(&x->out, json);
        buffer_add_text(&x->out, "\n");
}

static json_t *hex(const char *data, size_t size)
{
        _cleanup_(buffer_free) struct buffer text = { 0 };

        for (size_t i = 0; i < size; i++)
                buffer_printf(&text, "%02x", (unsigned char)data[i]);
        return text.failed ? NULL : json_stringn(text.data ? text.data : "", text.size);
}

static void takeover_begin(struct exchange *x)
{
        const struct generation *g = x->generation;

        add_line(x, json_pack("{s:i, s:I}", "accepted", (int)g->choices[0].prompt_tokens, "drawn",
                              (json_int_t)tdm_id_list_length(g->request->options.drawn)));
}

/* JSON knows no infinity, and a log-probability has to come back with all its bits. */
static json_t *logprob_json(float logprob)
{
        uint32_t bits;

        memcpy(&bits, &logprob, sizeof(bits));
        return json_integer(bits);
}

static void takeover_text(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                          size_t size)
{
        json_t *json, *list;

        if (!token) {
                add_line(x, json_pack("{s:o}", "tail", json_text(text, size)));
                return;
        }
        json = json_pack("{s:I, s:o, s:o}", "id", (json_int_t)token->id, "logprob", logprob_json(token->logprob),
                         "text", json_text(text, size));
        if (token->piece_size != size || memcmp(token->piece, text, size) != 0)
                member_set(json, "piece", hex(token->piece, token->piece_size));
        if (token->thinking_size > 0)
                member_set(json, "thinking", json_text(token->thinking, token->thinking_size));
        list = json_array();
        for (size_t i = 0; i < token->n_calls; i++)
                json_array_append_new(
                        list, json_pack("{s:I, s:s, s:s, s:o}", "call", (json_int_t)token->calls[i]->call, "id",
                                        token->calls[i]->id, "name", token->calls[i]->name, "text",
                                        json_text(token->calls[i]->arguments, token->calls[i]->arguments_size)));
        if (token->n_calls > 0)
                json_object_set(json, "calls", list);
        json_decref(list);
        list = json_array();
        for (size_t i = 0; i < token->n_top; i++)
                json_array_append_new(list, json_pack("{s:I, s:o, s:o}", "id", (json_int_t)token->top[i].id, "logprob",
                                                      logprob_json(token->top[i].logprob), "hex",
                                                      hex(token->top[i].text, token->top[i].size)));
        if (token->n_top > 0)
                json_object_set(json, "top", list);
        json_decref(list);
        add_line(x, json);
}

static void takeover_choice_end(struct exchange *x, struct choice *c)
{
        add_line(x, json_pack("{s:s, s:i, s:i, s:i, s:i}", "done", tandem_reason_name((int)c->reason), "prompt_tokens",
                              (int)c->prompt_tokens, "cached_tokens", (int)c->cached_tokens, "generated_tokens",
                              (int)c->generated_tokens, "thinking_tokens", (int)c->thinking_tokens));
}

static void takeover_end(struct exchange *x)
{
}

static void takeover_error(struct exchange *x, const struct failure *f)
{
        add_line(x, failure_json(f, DIALECT_OPENAI, x->id));
}

static void takeover_ping(struct exchange *x)
{
        buffer_add_text(&x->out, "\n");
}

static const struct generation_ops takeover_ops = { .content_type = NDJSON_CONTENT_TYPE,
                                                    .begin = takeover_begin,
                                                    .text = takeover_text,
                                                    .choice_end = takeover_choice_end,
                                                    .end = takeover_end,
                                                    .error = takeover_error,
                                                    .ping = takeover_ping };

static int take_job(struct generation_request *r, struct failure *f)
{
        if (request_take_model(r, f) != 0 || job_take_prompt(r, f) != 0 ||
            request_take_stops(r, json_get(r->json, "stop"), "stop", f) != 0)
                return f->status;
        take_options(r);
        r->taken_over = true;
        return 0;
}

static void start_job(struct exchange *x, struct generation_request *r)
{
        generation_start(x, r, &takeover_ops);
}

const struct reader takeover_reader = { NULL, take_job, start_job };

void takeover_generate(struct exchange *x)
{
        exchange_read(x, &takeover_reader);
}

/* ---- the answer, as it is read ---- */

static float logprob_of(const json_t *json)
{
        uint32_t bits = (uint32_t)json_get_integer(json, "logprob", 0);
        float v;

        memcpy(&v, &bits, sizeof(v));
        return v;
}

static int digit(char c)
{
        return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_calls(struct takeover_line *line, const json_t *calls)
{
        size_t n = json_array_size(calls);

        if (n == 0)
                return true;
        line->deltas = calloc(n, sizeof(*line->deltas));
        line->calls = calloc(n, sizeof(*line->calls));
        if (!line->deltas || !line->calls)
                return false;
        for (size_t i = 0; i < n; i++) {
                const json_t *call = json_array_get(calls, i), *text = json_object_get(call, "text");

                if (!json_is_string(text) || !is_count(json_object_get(call, "call")))
                        return false;
                line->deltas[i] = (struct tandem_call_delta){ .call = count_of(call, "call"),
                                                              .id = json_get_string(call, "id", ""),
                                                              .name = json_get_string(call, "name", ""),
                                                              .arguments = json_string_value(text),
                                                              .arguments_size = json_string_length(text) };
                line->calls[i] = &line->deltas[i];
        }
        line->token.calls = line->calls;
        line->token.n_calls = n;
        return true;
}

/* Bytes in hexadecimal, to line->bytes behind what is there. They take half of the line at most, all together. */
static bool read_hex(struct takeover_line *line, const char *digits, const char **ret, size_t *ret_size)
{
        char *start = line->bytes + line->n_bytes;

        for (; digits[0] && digits[1]; digits += 2) {
                int high = digit(digits[0]), low = digit(digits[1]);

                if (high < 0 || low < 0)
                        return false;
                line->bytes[line->n_bytes++] = (char)(high << 4 | low);
        }
        *ret = start;
        *ret_size = (size_t)(line->bytes + line->n_bytes - start);
        return !digits[0];
}

static bool read_top(struct takeover_line *line, const json_t *top)
{
        size_t n = json_array_size(top);

        if (n == 0)
                return true;
        line->top = n <= tdm_job_options[TDM_JOB_OPTION_top_logprobs].range.max ? calloc(n, sizeof(*line->top)) : NULL;
        if (!line->top)
                return false;
        for (size_t i = 0; i < n; i++) {
                const json_t *one = json_array_get(top, i);

                if (!is_count(json_object_get(one, "id")) || !is_count(json_object_get(one, "logprob")))
                        return false;
                line->top[i].id = count_of(one, "id");
                line->top[i].logprob = logprob_of(one);
                if (!read_hex(line, json_get_string(one, "hex", ""), &line->top[i].text, &line->top[i].size))
                        return false;
        }
        line->token.top = line->top;
        line->token.n_top = n;
        return true;
}

static bool read_token(struct takeover_line *line, size_t size)
{
        const json_t *text = json_object_get(line->json, "text"), *thinking = json_object_get(line->json, "thinking");
        const char *piece = json_get_string(line->json, "piece", NULL);
        static const struct {
                const char *name;
                json_type type;
        } kinds[] = { { "thinking", JSON_STRING },
                      { "piece", JSON_STRING },
                      { "calls", JSON_ARRAY },
                      { "top", JSON_ARRAY },
                      { "logprob", JSON_INTEGER } };

        /* Members that are present have their type. */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                const json_t *value = json_object_get(line->json, kinds[i].name);

                if (value && (json_typeof(value) != kinds[i].type || (json_is_integer(value) && !is_count(value))))
                        return false;
        }
        line->bytes = malloc(size);
        if (!json_is_string(text) || !is_count(json_object_get(line->json, "id")) || !line->bytes)
                return false;
        line->kind = TAKEOVER_TOKEN;
        line->token = (struct tandem_token){ .id = count_of(line->json, "id"),
                                             .logprob = logprob_of(line->json),
                                             .text = json_string_value(text),
                                             .size = json_string_length(text),
                                             .thinking = json_is_string(thinking) ? json_string_value(thinking) : "",
                                             .thinking_size = json_string_length(thinking) };
        line->token.piece = line->token.text;
        line->token.piece_size = line->token.size;
        return (!piece || read_hex(line, piece, &line->token.piece, &line->token.piece_size)) &&
               read_calls(line, json_object_get(line->json, "calls")) &&
               read_top(line, json_object_get(line->json, "top"));
}

static bool read_done(struct takeover_line *line)
{
        static const char *const counts[] = { "prompt_tokens", "cached_tokens", "generated_tokens", "thinking_tokens" };
        const char *reason = json_get_string(line->json, "done", "");

        for (size_t i = 0; i < TDM_ARRAY_SIZE(counts); i++) {
                const json_t *value = json_object_get(line->json, counts[i]);

                if (value && !is_count(value))
                        return false;
        }
        line->kind = TAKEOVER_DONE;
        line->result = (struct tandem_result){ .reason = TANDEM_REASON_STOP,
                                               .prompt_tokens = count_of(line->json, "prompt_tokens"),
                                               .cached_tokens = count_of(line->json, "cached_tokens"),
                                               .generated_tokens = count_of(line->json, "generated_tokens"),
                                               .thinking_tokens = count_of(line->json, "thinking_tokens"),
                                               .tail = "" };
        if (strcmp(reason, tandem_reason_name(TANDEM_REASON_LENGTH)) == 0)
                line->result.reason = TANDEM_REASON_LENGTH;
        else if (strcmp(reason, tandem_reason_name(TANDEM_REASON_STOP)) != 0)
                return false;
        return true;
}

void takeover_read(struct takeover_line *line, const char *data, size_t size)
{
        struct failure f = { 0 };
        const json_t *tail;
        bool right = true;

        *line = (struct takeover_line){ .kind = TAKEOVER_NOTHING };
        if (size == 0)
                return; /* a sign of life */
        line->json = json_read_object(data, size, &f);
        if (!line->json) {
                right = false;
        } else if (json_object_get(line->json, "accepted")) {
                const json_t *drawn = json_object_get(line->json, "drawn");

                right = is_count(json_object_get(line->json, "accepted")) && (!drawn || is_count(drawn));
                line->kind = TAKEOVER_ACCEPTED;
                line->drawn = count_of(line->json, "drawn");
                line->prompt_tokens = count_of(line->json, "accepted");
        } else if (json_object_get(line->json, "done")) {
                right = read_done(line);
        } else if ((tail = json_object_get(line->json, "tail"))) {
                right = json_is_string(tail);
                line->kind = TAKEOVER_TAIL;
                line->result.tail = right ? json_string_value(tail) : "";
                line->result.tail_size = json_string_length(tail);
        } else {
                right = read_token(line, size);
        }
        if (!right)
                line->kind = TAKEOVER_BROKEN;
}

void takeover_line_free(struct takeover_line *line)
{
        json_decref(line->json);
        free(line->bytes);
        free(line->deltas);
        free(line->calls);
        free(line->top);
        *line = (struct takeover_line){ .kind = TAKEOVER_NOTHING };
}
