/* Strings that know where their bytes come from. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"
#include "engine/text/unicode.h"

/* A join of at most this many bytes is copied at once. */
#define SHORT_JOIN 64u
/* What a piece costs that is added to a text, beside its bytes. */
#define PIECE_COST 8u

static struct jinja_string *string_new(struct jinja_core *core, const char *data, size_t size, bool is_template)
{
        struct jinja_string *string = tdm_jinja_alloc(core, sizeof(*string));

        *string = (struct jinja_string){
                .size = size, .data = data ? data : "", .n_chars = -1, .is_template = is_template
        };
        return string;
}

struct jinja_string *tdm_jinja_string(struct jinja_core *core, const char *data, size_t size, bool is_template)
{
        return string_new(core, data, size, is_template);
}

struct jinja_string *tdm_jinja_string_of(struct jinja_core *core, const char *text)
{
        return string_new(core, text, strlen(text), true);
}

/* Writing. */

static void text_reserve(struct jinja_text *text, size_t more)
{
        if (more > text->capacity - text->size) {
                size_t capacity = TDM_MAX(text->capacity * 2, TDM_MAX(text->size + more, (size_t)64));

                text->data = tdm_jinja_grow(text->core, text->data, text->size, capacity, 1);
                text->capacity = capacity;
        }
}

static void text_mark(struct jinja_text *text, size_t end, bool is_template)
{
        struct jinja_origin *last = text->n_origins > 0 ? &text->origins[text->n_origins - 1] : NULL;

        if (last && last->is_template == is_template) {
                last->end = end;
                return;
        }
        if (text->n_origins == text->origins_capacity) {
                text->origins_capacity = TDM_MAX(text->origins_capacity * 2, (size_t)4);
                text->origins = tdm_jinja_grow(text->core, text->origins, text->n_origins, text->origins_capacity,
                                               sizeof(*text->origins));
        }
        text->origins[text->n_origins++] = (struct jinja_origin){ end, is_template };
}

void tdm_jinja_text_add(struct jinja_text *text, const char *data, size_t size, bool is_template)
{
        if (size == 0)
                return;
        tdm_jinja_spend_bytes(text->core, size + PIECE_COST, JINJA_COPIED);
        text_reserve(text, size);
        memcpy(text->data + text->size, data, size);
        text->size += size;
        text_mark(text, text->size, is_template);
}

void tdm_jinja_text_puts(struct jinja_text *text, const char *data)
{
        tdm_jinja_text_add(text, data, strlen(data), true);
}

static size_t utf8_write(char *to, uint32_t c)
{
        if (c < 0x80) {
                to[0] = (char)c;
                return 1;
        }
        if (c < 0x800) {
                to[0] = (char)(0xc0 | c >> 6);
                to[1] = (char)(0x80 | (c & 0x3f));
                return 2;
        }
        if (c < 0x10000) {
                to[0] = (char)(0xe0 | c >> 12);
                to[1] = (char)(0x80 | (c >> 6 & 0x3f));
                to[2] = (char)(0x80 | (c & 0x3f));
                return 3;
        }
        to[0] = (char)(0xf0 | c >> 18);
        to[1] = (char)(0x80 | (c >> 12 & 0x3f));
        to[2] = (char)(0x80 | (c >> 6 & 0x3f));
        to[3] = (char)(0x80 | (c & 0x3f));
        return 4;
}

void tdm_jinja_text_char(struct jinja_text *text, uint32_t character, bool is_template)
{
        char bytes[4];

        tdm_jinja_text_add(text, bytes, utf8_write(bytes, character), is_template);
}

/* Which of the origins byte `at` has. */
static size_t origin_at(const struct jinja_string *string, size_t at)
{
        size_t low = 0, high = string->n_origins;

        while (low + 1 < high) {
                size_t middle = (low + high) / 2;

                if (string->origins[middle - 1].end <= at)
                        low = middle;
                else
                        high = middle;
        }
        return low;
}

/* A flat string, or a piece of it. */
static void text_add_flat(struct jinja_text *text, const struct jinja_string *string, size_t from, size_t to)
{
        size_t i;

        if (!string->origins) {
                tdm_jinja_text_add(text, string->data + from, to - from, string->is_template);
                return;
        }
        for (i = origin_at(string, from); from < to; i++) {
                size_t end = TDM_MIN(string->origins[i].end, to);

                tdm_jinja_text_add(text, string->data + from, end - from, string->origins[i].is_template);
                from = end;
        }
}

/* Its parts from left to right. The right parts that are still to come lie on a stack of our own: a string that was
 * joined ten thousand times is as deep. */
static void text_add_joined(struct jinja_text *text, const struct jinja_string *string)
{
        const struct jinja_string **stack = NULL;
        size_t n = 0, capacity = 0;

        for (;;) {
                while (!string->data) {
                        if (n == capacity) {
                                capacity = TDM_MAX(capacity * 2, (size_t)16);
                                stack = tdm_jinja_grow(text->core, stack, n, capacity, sizeof(*stack));
                        }
                        tdm_jinja_spend(text->core, 1);
                        stack[n++] = string->right;
                        string = string->left;
                }
                text_add_flat(text, string, 0, string->size);
                if (n == 0)
                        return;
                string = stack[--n];
        }
}

void tdm_jinja_text_add_string(struct jinja_text *text, const struct jinja_string *string)
{
        if (string->data)
                text_add_flat(text, string, 0, string->size);
        else
                text_add_joined(text, string);
}

void tdm_jinja_text_add_slice(struct jinja_text *text, const struct jinja_string *string, size_t from, size_t to)
{
        tdm_jinja_bytes(text->core, string);
        text_add_flat(text, string, from, to);
}

static void string_take_text(struct jinja_string *string, const struct jinja_text *text)
{
        string->data = text->data ? text->data : "";
        string->is_template = text->n_origins == 0 || text->origins[0].is_template;
        if (text->n_origins > 1) {
                string->origins = text->origins;
                string->n_origins = text->n_origins;
        }
}

struct jinja_string *tdm_jinja_text_end(struct jinja_text *text)
{
        struct jinja_string *string = string_new(text->core, NULL, text->size, true);

        string_take_text(string, text);
        return string;
}

/* Reading. */

const char *tdm_jinja_bytes(struct jinja_core *core, const struct jinja_string *string)
{
        if (!string->data) {
                struct jinja_text text = { .core = core };

                text_reserve(&text, string->size);
                text_add_joined(&text, string);
                /* The same string, told in another way: nobody else sees a difference. */
                string_take_text((struct jinja_string *)(uintptr_t)string, &text);
        }
        return string->data;
}

bool tdm_jinja_is_template_at(const struct jinja_string *string, size_t at)
{
        return string->origins ? string->origins[origin_at(string, at)].is_template : string->is_template;
}

struct jinja_string *tdm_jinja_join(struct jinja_core *core, const struct jinja_string *a, const struct jinja_string *b)
{
        struct jinja_string *string;

        if (a->size + b->size <= SHORT_JOIN || a->size == 0 || b->size == 0) {
                struct jinja_text text = { .core = core };

                tdm_jinja_text_add_string(&text, a);
                tdm_jinja_text_add_string(&text, b);
                return tdm_jinja_text_end(&text);
        }
        /* A text that is never looked at as a whole takes no memory, but its size has the same limit. */
        if (a->size + b->size > core->bytes_left + core->bytes_used)
                tdm_jinja_fail_code(core, TDM_E_TOO_LONG, "a text becomes longer than a template may make it");
        string = string_new(core, NULL, a->size + b->size, true);
        string->data = NULL;
        string->left = a;
        string->right = b;
        return string;
}

struct jinja_string *tdm_jinja_slice(struct jinja_core *core, const struct jinja_string *string, size_t from, size_t to)
{
        struct jinja_string *slice;

        if (from == 0 && to == string->size)
                return (struct jinja_string *)(uintptr_t)string;
        tdm_jinja_bytes(core, string);
        if (string->origins) {
                struct jinja_text text = { .core = core };

                text_add_flat(&text, string, from, to);
                slice = tdm_jinja_text_end(&text);
        } else {
                slice = string_new(core, string->data + from, to - from, string->is_template);
        }
        slice->is_markup = string->is_markup;
        return slice;
}

struct jinja_string *tdm_jinja_as_markup(struct jinja_core *core, const struct jinja_string *string)
{
        struct jinja_string *copy = tdm_jinja_alloc(core, sizeof(*copy));

        *copy = *string;
        copy->is_markup = true;
        return copy;
}

uint32_t tdm_jinja_char(const char *data, size_t size, size_t *ret_length)
{
        int length = tdm_utf8_length((const uint8_t *)data, size);

        if (length <= 0) { /* never: strings are well formed */
                *ret_length = 1;
                return 0xfffd;
        }
        *ret_length = (size_t)length;
        return tdm_unicode_character((const uint8_t *)data, length);
}

int64_t tdm_jinja_n_chars(struct jinja_core *core, const struct jinja_string *string)
{
        if (string->n_chars < 0) {
                const char *data = tdm_jinja_bytes(core, string);
                int64_t n = 0;

                tdm_jinja_spend_bytes(core, string->size, JINJA_COPIED);
                for (size_t i = 0; i < string->size; i++)
                        n += (data[i] & 0xc0) != 0x80;
                ((struct jinja_string *)(uintptr_t)string)->n_chars = n;
        }
        return string->n_chars;
}

size_t tdm_jinja_char_at(struct jinja_core *core, const struct jinja_string *string, int64_t n)
{
        const char *data = tdm_jinja_bytes(core, string);
        size_t at = 0;

        if (tdm_jinja_n_chars(core, string) == (int64_t)string->size)
                return (size_t)n;
        tdm_jinja_spend_bytes(core, (size_t)n, JINJA_SEARCHED);
        for (; at < string->size; at++)
                if ((data[at] & 0xc0) != 0x80 && n-- == 0)
                        break;
        return at;
}

bool tdm_jinja_string_equal(struct jinja_core *core, const struct jinja_string *a, const struct jinja_string *b)
{
        if (a == b)
                return true;
        if (a->size != b->size)
                return false;
        tdm_jinja_spend_bytes(core, a->size, JINJA_COPIED);
        return memcmp(tdm_jinja_bytes(core, a), tdm_jinja_bytes(core, b), a->size) == 0;
}

int tdm_jinja_string_compare(struct jinja_core *core, const struct jinja_string *a, const struct jinja_string *b)
{
        size_t size = TDM_MIN(a->size, b->size);
        int order;

        tdm_jinja_spend_bytes(core, size, JINJA_COPIED);
        order = memcmp(tdm_jinja_bytes(core, a), tdm_jinja_bytes(core, b), size);
        if (order != 0)
                return order < 0 ? -1 : 1;
        return a->size < b->size ? -1 : a->size > b->size;
}

bool tdm_jinja_string_is(struct jinja_core *core, const struct jinja_string *a, const char *text)
{
        return a->size == strlen(text) && memcmp(tdm_jinja_bytes(core, a), text, a->size) == 0;
}

size_t tdm_jinja_find(struct jinja_core *core, const struct jinja_string *string, const struct jinja_string *what,
                      size_t from)
{
        const char *data = tdm_jinja_bytes(core, string), *at;

        if (from > string->size)
                return SIZE_MAX;
        /* glibc's memmem() is linear: two-way search. */
        at = memmem(data + from, string->size - from, tdm_jinja_bytes(core, what), what->size);
        tdm_jinja_spend_bytes(core, (at ? (size_t)(at - data) - from : string->size - from) + what->size,
                              JINJA_SEARCHED);
        return at ? (size_t)(at - data) : SIZE_MAX;
}

size_t tdm_jinja_find_last(struct jinja_core *core, const struct jinja_string *string, const struct jinja_string *what)
{
        size_t found = SIZE_MAX, at = 0;

        if (what->size == 0)
                return string->size;
        while ((at = tdm_jinja_find(core, string, what, at)) != SIZE_MAX) {
                found = at++;
                tdm_jinja_spend(core, 1);
        }
        return found;
}

bool tdm_jinja_is_space(uint32_t c)
{
        if (c < 0x80)
                return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
        return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
               c == 0x202f || c == 0x205f || c == 0x3000;
}
