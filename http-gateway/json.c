/* Depth and number of values are counted before jansson sees the text: it would allow 2,048 levels, and three bytes on
 * the wire can become an object of some 230 bytes in memory. */
#include "http-gateway/json.h"

#include <math.h>
#include "common/utf8.h"

/* What a value takes at most in jansson and malloc, on 64 bits, with its place in what holds it; a member without its
 * value, and a text without its characters. */
#define MOST_REAL 9.2e18 /* larger ones are no int64 */
#define CONTAINER_BYTES 240u
#define TEXT_BYTES 96u
#define MEMBER_BYTES 112u
#define SCALAR_BYTES 48u

/* Every array and object begins one value and every comma another, so these are the scalars at most. A text in front of
 * a colon is a member's name, which lies in the member. */
struct counts {
        size_t depth, n_containers, n_commas, n_texts, n_members;
};

static int check_counts(const struct counts *c, struct failure *f)
{
        if (c->depth > JSON_MAX_DEPTH)
                return failure_set(f, 400, "invalid_json", NULL, "the body's JSON is nested deeper than %u levels",
                                   JSON_MAX_DEPTH);
        if (c->n_containers + c->n_commas > JSON_MAX_VALUES)
                return failure_set(f, 400, "invalid_json", NULL, "the body's JSON has more than %u values",
                                   JSON_MAX_VALUES);
        if (c->n_containers + c->n_texts > c->n_members + JSON_MAX_PARTS)
                return failure_set(f, 400, "invalid_json", NULL,
                                   "the body's JSON has more than %u arrays, objects and texts", JSON_MAX_PARTS);
        if (c->n_members > JSON_MAX_MEMBERS)
                return failure_set(f, 400, "invalid_json", NULL,
                                   "the objects of the body's JSON have more than %u members", JSON_MAX_MEMBERS);
        return 0;
}

/* The parser refuses what is not JSON. */
int json_count(const char *data, size_t size, size_t *ret_bytes, struct failure *f)
{
        struct counts c = { 0 };
        bool in_string = false;
        size_t n_exact, exact_bytes;

        if (size == 0)
                return failure_set(f, 400, "invalid_json", NULL, "the request has no body; a JSON object is expected");

        for (size_t i = 0; i < size; i++) {
                if (in_string) {
                        if (data[i] == '\\')
                                i++;
                        else if (data[i] == '"')
                                in_string = false;
                        continue;
                }
                switch (data[i]) {
                case '"':
                        in_string = true;
                        c.n_texts++;
                        break;
                case '[':
                case '{':
                        c.n_containers++;
                        c.depth++;
                        break;
                case ']':
                case '}':
                        c.depth -= c.depth > 0;
                        break;
                case ',':
                        c.n_commas++;
                        break;
                case ':':
                        c.n_members++;
                        break;
                default:
                        continue;
                }
                if (check_counts(&c, f) != 0)
                        return f->status;
        }
        exact_count(data, size, &n_exact, &exact_bytes);
        *ret_bytes = 2 * size + exact_bytes + n_exact * EXACT_NUMBER_BYTES + c.n_containers * CONTAINER_BYTES +
                     c.n_members * MEMBER_BYTES + (c.n_texts - TDM_MIN(c.n_texts, c.n_members)) * TEXT_BYTES +
                     (c.n_commas + c.n_containers) * SCALAR_BYTES;
        return 0;
}

/* Texts are taken with their length, so a NUL is a character of theirs like others: a model may write one, and its
 * answer comes back in the next request. Arguments of calls are written out again. All other strings end at their
 * NUL. */
static const char *string_with_nul(json_t *value, const char *key, bool allowed)
{
        const char *name, *found = NULL;
        json_t *element;
        size_t i;

        if (json_is_string(value))
                return !allowed && strlen(json_string_value(value)) < json_string_length(value) ? key : NULL;
        json_array_foreach(value, i, element)
        {
                found = string_with_nul(element, key, allowed);
                if (found)
                        return found;
        }
        json_object_foreach(value, name, element)
        {
                bool text = json_is_string(element) && (strcmp(name, "content") == 0 || strcmp(name, "text") == 0 ||
                                                        strcmp(name, "input") == 0 || strcmp(name, "output") == 0);
                bool arguments =
                        json_is_object(element) && (strcmp(name, "input") == 0 || strcmp(name, "arguments") == 0);

                found = string_with_nul(element, name, allowed || text || arguments);
                if (found)
                        return found;
        }
        return NULL;
}

json_t *json_parse_object(const char *data, size_t size, struct exact *numbers, struct failure *f)
{
        const char *key;
        json_error_t why;
        json_t *json = exact_load(numbers, data, size, &why);

        if (!json && !why.text[0]) {
                failure_set(f, 503, "no_memory", NULL, "no memory for this request");
                return NULL;
        }
        if (!json) {
                failure_set(f, 400, "invalid_json", NULL, "the body is not JSON that can be taken: %s (line %d)",
                            tdm_utf8_mend(why.text), why.line);
                return NULL;
        }
        if (!json_is_object(json)) {
                json_decref(json);
                failure_set(f, 400, "invalid_json", NULL, "the body is not a JSON object");
                return NULL;
        }
        key = string_with_nul(json, NULL, false);
        if (key) {
                failure_set(f, 400, "invalid_json", NULL, "a string in '%.60s' has a NUL character", key);
                json_decref(json);
                return NULL;
        }
        return json;
}

json_t *json_read_object(const char *data, size_t size, struct failure *f)
{
        _cleanup_(exact_free) struct exact numbers = { 0 };
        size_t bytes;

        return json_count(data, size, &bytes, f) == 0 ? json_parse_object(data, size, &numbers, f) : NULL;
}

json_t *json_text(const char *data, size_t size)
{
        _cleanup_(buffer_free) struct buffer mended = { 0 };
        json_t *json;

        /* data is NULL where nothing was ever added, which json_stringn() would refuse. */
        if (size == 0)
                return json_string("");
        if (tdm_utf8_is_valid(data, size))
                return json_stringn(data, size);
        for (size_t i = 0; i < size;) {
                int n = tdm_utf8_length((const uint8_t *)data + i, size - i);

                if (n > 0)
                        buffer_add(&mended, data + i, (size_t)n);
                else
                        buffer_add_text(&mended, "\xef\xbf\xbd");
                i += n > 0 ? (size_t)n : n < 0 ? size - i : 1;
        }
        json = mended.failed ? NULL : json_stringn(mended.data, mended.size);
        return json;
}

static int add_chunk(const char *data, size_t size, void *userdata)
{
        struct buffer *b = userdata;

        buffer_add(b, data, size);
        return b->failed ? -1 : 0;
}

void json_write(struct buffer *b, json_t *json)
{
        if (!json ||
            json_dump_callback(json, add_chunk, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) != 0)
                b->failed = true;
        json_decref(json);
}

void json_write_open(struct buffer *b, json_t *object)
{
        json_write(b, object);
        if (!b->failed)
                b->size--;
}

void json_write_text(struct buffer *b, const char *data, size_t size)
{
        static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
        size_t from = 0;

        if (!tdm_utf8_is_valid(data, size)) {
                json_t *json = json_text(data, size);

                if (!json || json_dump_callback(json, add_chunk, b, JSON_ENCODE_ANY) != 0)
                        b->failed = true;
                json_decref(json);
                return;
        }
        buffer_add(b, "\"", 1);
        for (size_t i = 0; i < size; i++) {
                unsigned char c = (unsigned char)data[i];
                char escape[8] = { '\\' };

                if (c >= ' ' && c != '"' && c != '\\')
                        continue;
                buffer_add(b, data + from, i - from);
                from = i + 1;
                for (const char *name = names; *name && !escape[1]; name += 2)
                        if ((unsigned char)*name == c)
                                escape[1] = name[1];
                if (!escape[1])
                        snprintf(escape, sizeof(escape), "\\u%04X", c);
                buffer_add_text(b, escape);
        }
        buffer_add(b, data + from, size - from);
        buffer_add(b, "\"", 1);
}

json_t *json_get(const json_t *object, const char *key)
{
        json_t *value = json_object_get(object, key);

        return json_is_null(value) ? NULL : value;
}

double json_get_number(const json_t *object, const char *key, double otherwise)
{
        const json_t *value = json_get(object, key);

        return json_is_number(value) ? json_number_value(value) : otherwise;
}

json_int_t json_get_integer(const json_t *object, const char *key, json_int_t otherwise)
{
        const json_t *value = json_get(object, key);

        if (json_is_real(value) && fabs(json_real_value(value)) < MOST_REAL)
                return (json_int_t)json_real_value(value);
        return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

bool json_get_bool(const json_t *object, const char *key, bool otherwise)
{
        const json_t *value = json_get(object, key);

        return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

const char *json_get_string(const json_t *object, const char *key, const char *otherwise)
{
        const json_t *value = json_get(object, key);

        return json_is_string(value) ? json_string_value(value) : otherwise;
}

int json_check_members(const json_t *object, const char *name, const char *const *names, struct failure *f)
{
        const char *key;
        json_t *value;

        json_object_foreach((json_t *)(uintptr_t)object, key, value)
        {
                bool known = json_is_null(value);

                for (size_t i = 0; names[i] && !known; i++)
                        known = strcmp(key, names[i]) == 0;
                if (!known)
                        return failure_set(f, 400, "unknown_parameter", name, "'%s.%.60s' is not known there", name,
                                           key);
        }
        return 0;
}
