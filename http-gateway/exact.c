/* Numbers come in the same order in the text and in a walk of the values, since jansson keeps members in order and
 * members that are there twice are refused. So the two are walked side by side, and no place has to be remembered. */
#include "http-gateway/exact.h"

#include <math.h>
#include "http-gateway/json.h"

#define PLAIN_DIGITS 18u /* this number of digits always fits an int64 */
#define MIN_SLOTS 16u

struct exact_slot {
        const json_t *node; /* NULL: free */
        const char *text;
        size_t size;
};

/* The next number at or after *at, outside of strings; *at is behind it then. False: there is none. */
static bool next_number(const char *data, size_t size, size_t *at, const char **ret, size_t *ret_size)
{
        for (size_t i = *at; i < size; i++) {
                size_t from = i;

                if (data[i] == '"') {
                        for (i++; i < size && data[i] != '"'; i++)
                                i += data[i] == '\\';
                        continue;
                }
                if (data[i] != '-' && (data[i] < '0' || data[i] > '9'))
                        continue;
                while (i < size && data[i] && strchr("+-.0123456789eE", data[i]))
                        i++;
                *at = i;
                *ret = data + from;
                *ret_size = i - from;
                return true;
        }
        *at = size;
        return false;
}

static bool number_is_plain(const char *text, size_t size)
{
        if (size > PLAIN_DIGITS || (text[0] == '-' && size > 1 && text[1] == '0'))
                return false;
        for (size_t i = text[0] == '-'; i < size; i++)
                if (text[i] < '0' || text[i] > '9')
                        return false;
        return true;
}

static size_t n_digits(const char *text, size_t size)
{
        size_t n = 0;

        while (n < size && text[n] >= '0' && text[n] <= '9')
                n++;
        return n;
}

/* By JSON's grammar. */
static bool is_number(const char *text, size_t size)
{
        size_t at = text[0] == '-', n = n_digits(text + at, size - at);

        if (n == 0 || (n > 1 && text[at] == '0'))
                return false;
        at += n;
        if (at < size && text[at] == '.') {
                n = n_digits(text + at + 1, size - at - 1);
                if (n == 0)
                        return false;
                at += 1 + n;
        }
        if (at < size && (text[at] == 'e' || text[at] == 'E')) {
                at++;
                at += at < size && (text[at] == '+' || text[at] == '-');
                n = n_digits(text + at, size - at);
                if (n == 0)
                        return false;
                at += n;
        }
        return at == size;
}

void exact_count(const char *data, size_t size, size_t *ret_n, size_t *ret_bytes)
{
        size_t at = 0, length;
        const char *text;

        *ret_n = *ret_bytes = 0;
        while (next_number(data, size, &at, &text, &length))
                if (!number_is_plain(text, length)) {
                        ++*ret_n;
                        *ret_bytes += length;
                }
}

/* Adds a number as jansson takes it. */
static void add_loadable(struct buffer *b, const char *text, size_t size)
{
        bool integer = strcspn(text, ".eE") >= size;
        double value;

        if (number_is_plain(text, size) || !is_number(text, size)) {
                buffer_add(b, text, size); /* what is no number, jansson refuses */
                return;
        }
        value = strtod(text, NULL);
        if (!isfinite(value)) {
                buffer_add_text(b, value < 0 ? "-1e308" : "1e308");
                return;
        }
        errno = 0;
        buffer_add(b, text, size);
        if (integer && ((void)strtoll(text, NULL, 10), errno == ERANGE))
                buffer_add_text(b, ".0");
}

static void make_loadable(struct buffer *b, const char *data, size_t size)
{
        size_t at = 0, done = 0, length;
        const char *text;

        while (next_number(data, size, &at, &text, &length)) {
                buffer_add(b, data + done, (size_t)(text - data) - done);
                add_loadable(b, text, length);
                done = at;
        }
        buffer_add(b, data + done, size - done);
}

/* ---- the table ---- */

static size_t slot_of(const struct exact *e, const json_t *node)
{
        size_t i = (size_t)((uintptr_t)node / sizeof(void *) * UINT64_C(0x9e3779b97f4a7c15) >> 20) % e->n_slots;

        while (e->slots[i].node && e->slots[i].node != node)
                i = (i + 1) % e->n_slots;
        return i;
}

static bool make_slots(struct exact *e, size_t n)
{
        struct exact bigger = { .n_slots = TDM_MAX(2 * n, (size_t)MIN_SLOTS) };

        if (n <= e->n_slots / 2)
                return true;
        bigger.slots = calloc(bigger.n_slots, sizeof(*bigger.slots));
        if (!bigger.slots)
                return false;
        for (size_t i = 0; i < e->n_slots; i++)
                if (e->slots[i].node)
                        bigger.slots[slot_of(&bigger, e->slots[i].node)] = e->slots[i];
        free(e->slots);
        e->slots = bigger.slots;
        e->n_slots = bigger.n_slots;
        return true;
}

static void slot_put(struct exact *e, const json_t *node, const char *text, size_t size)
{
        e->slots[slot_of(e, node)] = (struct exact_slot){ node, text, size };
        e->n++;
}

struct walk {
        struct exact *e;
        const char *data;
        size_t size, at;
        char *copy; /* where the next text goes */
};

static void keep_numbers(struct walk *w, const json_t *json)
{
        const char *text, *key;
        size_t length, i;
        json_t *part;

        if (json_is_number(json)) {
                if (!next_number(w->data, w->size, &w->at, &text, &length) || number_is_plain(text, length))
                        return;
                memcpy(w->copy, text, length);
                slot_put(w->e, json, w->copy, length);
                w->copy += length;
                return;
        }
        json_array_foreach((json_t *)(uintptr_t)json, i, part) keep_numbers(w, part);
        json_object_foreach((json_t *)(uintptr_t)json, key, part) keep_numbers(w, part);
}

json_t *exact_load(struct exact *e, const char *data, size_t size, json_error_t *why)
{
        _cleanup_(buffer_free) struct buffer loadable = { 0 };
        struct walk w = { .e = e, .data = data, .size = size };
        size_t n, bytes;
        json_t *json;

        *why = (json_error_t){ .line = 1 };
        if (size > 0 && memchr(data, '\0', size)) { /* jansson passes over one that follows a number */
                snprintf(why->text, sizeof(why->text), "it has a NUL character");
                return NULL;
        }
        exact_count(data, size, &n, &bytes);
        if (n == 0)
                return json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, why);
        make_loadable(&loadable, data, size);
        if (loadable.failed || !make_slots(e, n))
                return NULL;
        e->copy = malloc(bytes);
        if (!e->copy)
                return NULL;
        json = json_loadb(loadable.data, loadable.size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, why);
        w.copy = e->copy;
        if (json)
                keep_numbers(&w, json);
        return json;
}

json_t *exact_text(struct exact *e, const char *text, size_t size)
{
        json_t *node = make_slots(e, e->n + 1) ? json_integer(0) : NULL;

        if (node)
                slot_put(e, node, text, size);
        return node;
}

/* ---- writing ---- */

static void write_members(struct buffer *b, const struct exact *e, const json_t *json)
{
        const char *key, *comma = "";
        json_t *part;

        buffer_add(b, "{", 1);
        json_object_foreach((json_t *)(uintptr_t)json, key, part)
        {
                buffer_add_text(b, comma);
                json_write_text(b, key, strlen(key));
                buffer_add(b, ":", 1);
                exact_write(b, e, part);
                comma = ",";
        }
        buffer_add(b, "}", 1);
}

static void write_elements(struct buffer *b, const struct exact *e, const json_t *json)
{
        buffer_add(b, "[", 1);
        for (size_t i = 0; i < json_array_size(json); i++) {
                if (i > 0)
                        buffer_add(b, ",", 1);
                exact_write(b, e, json_array_get(json, i));
        }
        buffer_add(b, "]", 1);
}

/* A value as it was written, on one line: JSON has line ends between its parts only, and a stream of lines none. */
static void write_line(struct buffer *b, const char *text, size_t size)
{
        for (size_t from = 0; from < size;) {
                size_t end = from;

                while (end < size && text[end] != '\n' && text[end] != '\r')
                        end++;
                buffer_add(b, text + from, end - from);
                from = end + 1;
        }
}

void exact_write(struct buffer *b, const struct exact *e, const json_t *json)
{
        const struct exact_slot *slot = NULL;

        if (!json) {
                b->failed = true;
                return;
        }
        if (json_is_number(json) && e && e->n > 0)
                slot = &e->slots[slot_of(e, json)];
        if (slot && slot->node)
                write_line(b, slot->text, slot->size);
        else if (json_is_object(json))
                write_members(b, e, json);
        else if (json_is_array(json))
                write_elements(b, e, json);
        else if (json_is_string(json))
                json_write_text(b, json_string_value(json), json_string_length(json));
        else
                json_write(b, json_incref((json_t *)(uintptr_t)json));
}

void exact_free(struct exact *e)
{
        free(e->slots);
        free(e->copy);
        *e = (struct exact){ 0 };
}
