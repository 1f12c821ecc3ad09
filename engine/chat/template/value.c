/* Values, with Python's rules of truth, equality and order. */
#include <math.h>
#include "engine/chat/template/private.h"
#include "common/utf8.h"

/* A dict of more entries than this is searched by hash. */
#define DICT_HASHED 8u

struct jinja_list *tdm_jinja_list(struct jinja_core *core, enum jinja_shape shape, size_t capacity)
{
        struct jinja_list *list = tdm_jinja_calloc(core, sizeof(*list));

        list->shape = shape;
        if (capacity > 0) {
                list->items = tdm_jinja_grow(core, NULL, 0, capacity, sizeof(*list->items));
                list->capacity = capacity;
        }
        return list;
}

void tdm_jinja_list_add(struct jinja_core *core, struct jinja_list *list, struct jinja_value value)
{
        tdm_jinja_spend(core, 1);
        if (list->n == list->capacity) {
                list->capacity = TDM_MAX(list->capacity * 2, (size_t)4);
                list->items = tdm_jinja_grow(core, list->items, list->n, list->capacity, sizeof(*list->items));
        }
        list->items[list->n++] = value;
}

struct jinja_dict *tdm_jinja_dict(struct jinja_core *core)
{
        return tdm_jinja_calloc(core, sizeof(struct jinja_dict));
}

static uint32_t bytes_hash(const char *data, size_t size)
{
        uint64_t h = size;

        for (size_t i = 0; i < size; i++)
                h = (h ^ (uint8_t)data[i]) * UINT64_C(0x100000001b3);
        return (uint32_t)(h ^ h >> 32);
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static uint32_t value_hash(struct jinja_core *core, struct jinja_value value)
{
        switch (value.kind) {
        case JINJA_STRING:
        case JINJA_BIG:
                tdm_jinja_spend_bytes(core, value.string->size, JINJA_SEARCHED);
                return bytes_hash(tdm_jinja_bytes(core, value.string), value.string->size);
        case JINJA_BOOL:
                return value.truth;
        case JINJA_INT:
                return (uint32_t)value.integer;
        case JINJA_FLOAT:
                return fabs(value.number) < 9e18 ? (uint32_t)(int64_t)value.number : 0;
        case JINJA_LIST:
                if (value.list->shape == JINJA_SHAPE_TUPLE)
                        return (uint32_t)value.list->n;
                break;
        case JINJA_DICT:
                break;
        default:
                return 0;
        }
        tdm_jinja_fail(core, "a %s cannot be the key of a dict", tdm_jinja_type_name(value));
}

static void dict_index(struct jinja_core *core, struct jinja_dict *dict)
{
        dict->n_slots = 32;
        while (dict->n_slots < dict->capacity * 2)
                dict->n_slots *= 2;
        dict->slots = tdm_jinja_calloc(core, dict->n_slots * sizeof(*dict->slots));
        for (size_t i = 0; i < dict->n; i++) {
                size_t k = dict->entries[i].hash;

                while (dict->slots[k & (dict->n_slots - 1)])
                        k++;
                dict->slots[k & (dict->n_slots - 1)] = (uint32_t)i + 1;
        }
}

static struct jinja_entry *dict_find(struct jinja_core *core, const struct jinja_dict *dict, struct jinja_value key,
                                     uint32_t hash)
{
        tdm_jinja_spend(core, 1);
        if (dict->n_slots == 0) { /* DICT_HASHED at most */
                for (size_t i = 0; i < dict->n; i++)
                        if (dict->entries[i].hash == hash && tdm_jinja_equal(core, dict->entries[i].key, key))
                                return &dict->entries[i];
                return NULL;
        }
        for (size_t k = hash; dict->slots[k & (dict->n_slots - 1)]; k++) {
                struct jinja_entry *entry = &dict->entries[dict->slots[k & (dict->n_slots - 1)] - 1];

                tdm_jinja_spend(core, 1);
                if (entry->hash == hash && tdm_jinja_equal(core, entry->key, key))
                        return entry;
        }
        return NULL;
}

const struct jinja_value *tdm_jinja_dict_get(struct jinja_core *core, const struct jinja_dict *dict,
                                             struct jinja_value key)
{
        struct jinja_entry *entry = dict_find(core, dict, key, value_hash(core, key));

        return entry ? &entry->value : NULL;
}

void tdm_jinja_dict_set(struct jinja_core *core, struct jinja_dict *dict, struct jinja_value key,
                        struct jinja_value value)
{
        uint32_t hash = value_hash(core, key);
        struct jinja_entry *entry = dict_find(core, dict, key, hash);

        if (entry) {
                entry->value = value;
                return;
        }
        if (dict->n == dict->capacity) {
                dict->capacity = TDM_MAX(dict->capacity * 2, (size_t)4);
                dict->entries = tdm_jinja_grow(core, dict->entries, dict->n, dict->capacity, sizeof(*dict->entries));
        }
        dict->entries[dict->n++] = (struct jinja_entry){ key, value, hash };
        if (dict->n <= DICT_HASHED)
                return;
        if (dict->n * 2 > dict->n_slots) {
                dict_index(core, dict);
        } else {
                size_t k = hash;

                while (dict->slots[k & (dict->n_slots - 1)])
                        k++;
                dict->slots[k & (dict->n_slots - 1)] = (uint32_t)dict->n;
        }
}

const char *tdm_jinja_type_name(struct jinja_value value)
{
        static const char *const shapes[] = {
                [JINJA_SHAPE_LIST] = "list",      [JINJA_SHAPE_TUPLE] = "tuple",         [JINJA_SHAPE_RANGE] = "range",
                [JINJA_SHAPE_VIEW] = "dict view", [JINJA_SHAPE_GENERATOR] = "generator",
        };

        switch (value.kind) {
        case JINJA_ABSENT:
        case JINJA_UNDEFINED:
                return "Undefined";
        case JINJA_NONE:
                return "None";
        case JINJA_BOOL:
                return "bool";
        case JINJA_INT:
        case JINJA_BIG:
                return "int";
        case JINJA_FLOAT:
                return "float";
        case JINJA_STRING:
                return "str";
        case JINJA_LIST:
                return shapes[value.list->shape];
        case JINJA_DICT:
                return "dict";
        case JINJA_NAMESPACE:
                return "Namespace";
        case JINJA_LOOP:
                return "LoopContext";
        case JINJA_MACRO:
                return "Macro";
        case JINJA_BUILTIN:
        case JINJA_METHOD:
                return "function";
        }
        return "value";
}

bool tdm_jinja_truth(struct jinja_core *core, struct jinja_value value)
{
        switch (value.kind) {
        case JINJA_ABSENT:
        case JINJA_UNDEFINED:
        case JINJA_NONE:
                return false;
        case JINJA_BOOL:
                return value.truth;
        case JINJA_INT:
                return value.integer != 0;
        case JINJA_FLOAT:
                return value.number != 0;
        case JINJA_STRING:
                return value.string->size > 0;
        case JINJA_LIST:
                return value.list->shape == JINJA_SHAPE_GENERATOR || value.list->n > 0;
        case JINJA_DICT:
                return value.dict->n > 0;
        case JINJA_LOOP:
                return value.loop->list->n > 0;
        default:
                return true;
        }
}

bool tdm_jinja_is_number(struct jinja_value value)
{
        return value.kind == JINJA_BOOL || value.kind == JINJA_INT || value.kind == JINJA_FLOAT;
}

static int order_of(double a, double b)
{
        return a < b ? -1 : a > b;
}

/* -1, 0, 1; 2: one is no number (NaN). */
static int numbers_compare(struct jinja_value a, struct jinja_value b)
{
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT) {
                double x = a.kind == JINJA_FLOAT ? a.number : (double)(a.kind == JINJA_BOOL ? a.truth : a.integer);
                double y = b.kind == JINJA_FLOAT ? b.number : (double)(b.kind == JINJA_BOOL ? b.truth : b.integer);

                return isnan(x) || isnan(y) ? 2 : order_of(x, y);
        } else {
                int64_t x = a.kind == JINJA_BOOL ? a.truth : a.integer;
                int64_t y = b.kind == JINJA_BOOL ? b.truth : b.integer;

                return x < y ? -1 : x > y;
        }
}

static bool equal_within(struct jinja_core *core, struct jinja_value a, struct jinja_value b, unsigned depth);

static bool lists_equal(struct jinja_core *core, const struct jinja_list *a, const struct jinja_list *b, unsigned depth)
{
        if (a == b)
                return true;
        if (a->shape != b->shape || a->n != b->n || a->shape == JINJA_SHAPE_GENERATOR || a->shape == JINJA_SHAPE_VIEW)
                return false;
        for (size_t i = 0; i < a->n; i++)
                if (!equal_within(core, a->items[i], b->items[i], depth + 1))
                        return false;
        return true;
}

static bool dicts_equal(struct jinja_core *core, const struct jinja_dict *a, const struct jinja_dict *b, unsigned depth)
{
        if (a == b)
                return true;
        if (a->n != b->n)
                return false;
        for (size_t i = 0; i < a->n; i++) {
                const struct jinja_entry *other = dict_find(core, b, a->entries[i].key, a->entries[i].hash);

                if (!other || !equal_within(core, a->entries[i].value, other->value, depth + 1))
                        return false;
        }
        return true;
}

static bool equal_within(struct jinja_core *core, struct jinja_value a, struct jinja_value b, unsigned depth)
{
        tdm_jinja_spend(core, 1);
        if (depth > JINJA_MAX_VALUE_DEPTH)
                tdm_jinja_fail(core, "values that are compared are nested too deeply");
        if (tdm_jinja_is_number(a) && tdm_jinja_is_number(b))
                return numbers_compare(a, b) == 0;
        if (a.kind != b.kind)
                return false;
        switch (a.kind) {
        case JINJA_STRING:
        case JINJA_BIG:
                return tdm_jinja_string_equal(core, a.string, b.string);
        case JINJA_LIST:
                return lists_equal(core, a.list, b.list, depth);
        case JINJA_DICT:
                return dicts_equal(core, a.dict, b.dict, depth);
        case JINJA_NAMESPACE:
                return a.dict == b.dict;
        case JINJA_LOOP:
                return a.loop == b.loop;
        case JINJA_MACRO:
                return a.macro == b.macro;
        case JINJA_BUILTIN:
                return a.builtin == b.builtin;
        case JINJA_METHOD:
                return a.method == b.method;
        default:
                return true;
        }
}

bool tdm_jinja_equal(struct jinja_core *core, struct jinja_value a, struct jinja_value b)
{
        return equal_within(core, a, b, 0);
}

static int compare_within(struct jinja_core *core, struct jinja_value a, struct jinja_value b, unsigned depth)
{
        tdm_jinja_spend(core, 1);
        if (depth > JINJA_MAX_VALUE_DEPTH)
                tdm_jinja_fail(core, "values that are compared are nested too deeply");
        if (tdm_jinja_is_number(a) && tdm_jinja_is_number(b))
                return numbers_compare(a, b);
        if (a.kind == JINJA_STRING && b.kind == JINJA_STRING)
                return tdm_jinja_string_compare(core, a.string, b.string);
        if (a.kind == JINJA_LIST && b.kind == JINJA_LIST && a.list->shape == b.list->shape &&
            a.list->shape <= JINJA_SHAPE_TUPLE) {
                for (size_t i = 0; i < TDM_MIN(a.list->n, b.list->n); i++)
                        if (!equal_within(core, a.list->items[i], b.list->items[i], depth + 1))
                                return compare_within(core, a.list->items[i], b.list->items[i], depth + 1);
                return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
        }
        tdm_jinja_fail(core, "a %s and a %s have no order", tdm_jinja_type_name(a), tdm_jinja_type_name(b));
}

int tdm_jinja_compare(struct jinja_core *core, struct jinja_value a, struct jinja_value b)
{
        return compare_within(core, a, b, 0);
}

bool tdm_jinja_contains(struct jinja_core *core, struct jinja_value in, struct jinja_value what)
{
        switch (in.kind) {
        case JINJA_UNDEFINED:
                return false;
        case JINJA_STRING:
                if (what.kind != JINJA_STRING)
                        tdm_jinja_fail(core, "a text cannot contain a %s", tdm_jinja_type_name(what));
                return tdm_jinja_find(core, in.string, what.string, 0) != SIZE_MAX;
        case JINJA_DICT:
                return tdm_jinja_dict_get(core, in.dict, what) != NULL;
        case JINJA_LIST: {
                struct jinja_list *list = tdm_jinja_walk(core, in);

                for (size_t i = 0; i < list->n; i++)
                        if (tdm_jinja_equal(core, list->items[i], what))
                                return true;
                return false;
        }
        default:
                tdm_jinja_fail(core, "a %s contains nothing", tdm_jinja_type_name(in));
        }
}

static struct jinja_list *string_walk(struct jinja_core *core, const struct jinja_string *string)
{
        struct jinja_list *list = tdm_jinja_list(core, JINJA_SHAPE_LIST, (size_t)tdm_jinja_n_chars(core, string));
        const char *data = tdm_jinja_bytes(core, string);
        size_t length;

        for (size_t at = 0; at < string->size; at += length) {
                struct jinja_string *one;

                tdm_jinja_char(data + at, string->size - at, &length);
                one = tdm_jinja_string(core, data + at, length, tdm_jinja_is_template_at(string, at));
                tdm_jinja_list_add(core, list, tdm_jinja_text_value(one));
        }
        return list;
}

struct jinja_list *tdm_jinja_walk(struct jinja_core *core, struct jinja_value value)
{
        struct jinja_list *list;

        switch (value.kind) {
        case JINJA_UNDEFINED:
                return tdm_jinja_list(core, JINJA_SHAPE_LIST, 0);
        case JINJA_LIST:
                if (value.list->shape != JINJA_SHAPE_GENERATOR)
                        return value.list;
                /* A generator's items move to the list that the caller walks: it is walked once. */
                list = tdm_jinja_list(core, JINJA_SHAPE_LIST, 0);
                list->items = value.list->items;
                list->n = list->capacity = value.list->n;
                value.list->n = value.list->capacity = 0;
                value.list->items = NULL;
                return list;
        case JINJA_DICT:
                list = tdm_jinja_list(core, JINJA_SHAPE_LIST, value.dict->n);
                for (size_t i = 0; i < value.dict->n; i++)
                        tdm_jinja_list_add(core, list, value.dict->entries[i].key);
                return list;
        case JINJA_STRING:
                return string_walk(core, value.string);
        default:
                tdm_jinja_fail(core, "a %s cannot be walked over", tdm_jinja_type_name(value));
        }
}

int64_t tdm_jinja_length(struct jinja_core *core, struct jinja_value value)
{
        switch (value.kind) {
        case JINJA_UNDEFINED:
                return 0;
        case JINJA_STRING:
                return tdm_jinja_n_chars(core, value.string);
        case JINJA_DICT:
                return (int64_t)value.dict->n;
        case JINJA_LOOP:
                return (int64_t)value.loop->list->n;
        case JINJA_LIST:
                if (value.list->shape != JINJA_SHAPE_GENERATOR)
                        return (int64_t)value.list->n;
                break;
        default:
                break;
        }
        tdm_jinja_fail(core, "a %s has no length", tdm_jinja_type_name(value));
}

int64_t tdm_jinja_want_int(struct jinja_core *core, struct jinja_value value, const char *what)
{
        if (value.kind == JINJA_BOOL)
                return value.truth;
        if (value.kind != JINJA_INT)
                tdm_jinja_fail(core, "%s has to be an integer, not a %s", what, tdm_jinja_type_name(value));
        return value.integer;
}

const struct jinja_string *tdm_jinja_want_string(struct jinja_core *core, struct jinja_value value, const char *what)
{
        if (value.kind != JINJA_STRING)
                tdm_jinja_fail(core, "%s has to be a text, not a %s", what, tdm_jinja_type_name(value));
        return value.string;
}
