/* Reading JSON into a tree. */
#include "engine/grammar/json.h"

#include <stdatomic.h>
#include <sys/random.h>
#include "common/fnv.h"
#include "common/utf8.h"
#include "engine/grammar/chars.h"
#include "engine/grammar/number.h"

struct reader {
        struct tdm_json *json;
        const char *source;
        size_t size, at;
        uint32_t max_depth;
        struct tdm_error *err;
};

static int json_fail(struct reader *r, const char *what)
{
        return tdm_error_set(r->err, TDM_E_BAD_REQUEST, "not JSON, at byte %zu: %s", r->at, what);
}

/* One for the life of the process, so that nobody can write members that all have the same slot. */
static uint64_t hash_seed(void)
{
        static _Atomic uint64_t seed;
        uint64_t now = atomic_load_explicit(&seed, memory_order_relaxed), made = 0;

        if (now != 0)
                return now;
        (void)!getrandom(&made, sizeof(made), GRND_NONBLOCK);
        made |= 1;
        return atomic_compare_exchange_strong(&seed, &now, made) ? made : now;
}

static uint32_t hash(uint32_t parent, const char *name, size_t size)
{
        uint64_t h = tdm_fnv64((parent * UINT64_C(0x9e3779b97f4a7c15) + size) ^ hash_seed(), name, size);

        return (uint32_t)(h ^ h >> 32);
}

uint32_t tdm_json_find(const struct tdm_json *json, uint32_t object, const char *name, size_t size)
{
        if (json->n_slots == 0)
                return TDM_JSON_NONE;
        for (uint32_t k = hash(object, name, size); json->slots[k & (json->n_slots - 1)]; k++) {
                uint32_t i = json->slots[k & (json->n_slots - 1)] - 1;
                const struct tdm_json_node *node = &json->nodes[i];

                if (node->parent == object && node->key_size == size && memcmp(json->text + node->key, name, size) == 0)
                        return i;
        }
        return TDM_JSON_NONE;
}

uint32_t tdm_json_member(const struct tdm_json *json, uint32_t object, const char *name)
{
        if (json->nodes[object].type != TDM_JSON_OBJECT)
                return TDM_JSON_NONE;
        return tdm_json_find(json, object, name, strlen(name));
}

bool tdm_json_text_is(const struct tdm_json *json, uint32_t node, const char *text)
{
        const struct tdm_json_node *n = &json->nodes[node];

        return n->type == TDM_JSON_STRING && n->text_size == strlen(text) &&
               memcmp(json->text + n->text, text, n->text_size) == 0;
}

static bool index_member(struct tdm_json *json, uint32_t node)
{
        struct tdm_json_node *n = &json->nodes[node];
        uint32_t k;

        if (json->n_members * 2 >= json->n_slots) {
                uint32_t n_slots = TDM_MAX(json->n_slots * 2, 64u);
                uint32_t *slots = calloc(n_slots, sizeof(*slots));

                if (!slots)
                        return false;
                for (uint32_t i = 0; i < json->n_slots; i++) {
                        const struct tdm_json_node *old;

                        if (!json->slots[i])
                                continue;
                        old = &json->nodes[json->slots[i] - 1];
                        k = hash(old->parent, json->text + old->key, old->key_size);
                        while (slots[k & (n_slots - 1)])
                                k++;
                        slots[k & (n_slots - 1)] = json->slots[i];
                }
                free(json->slots);
                json->slots = slots;
                json->n_slots = n_slots;
        }
        k = hash(n->parent, json->text + n->key, n->key_size);
        while (json->slots[k & (json->n_slots - 1)])
                k++;
        json->slots[k & (json->n_slots - 1)] = node + 1;
        json->n_members++;
        return true;
}

static bool add_text(struct tdm_json *json, const char *text, size_t size)
{
        if (size > json->text_capacity - json->n_text) {
                size_t capacity = TDM_MAX((size_t)json->text_capacity * 2, json->n_text + size + 64);
                char *grown = capacity < UINT32_MAX ? realloc(json->text, capacity) : NULL;

                if (!grown) {
                        json->failed = true;
                        return false;
                }
                json->text = grown;
                json->text_capacity = (uint32_t)capacity;
        }
        if (size > 0)
                memcpy(json->text + json->n_text, text, size);
        json->n_text += (uint32_t)size;
        return true;
}

static uint32_t new_node(struct tdm_json *json, uint8_t type)
{
        if (json->n_nodes == json->capacity) {
                uint32_t capacity = TDM_MAX(json->capacity * 2, 64u);
                struct tdm_json_node *nodes = realloc(json->nodes, capacity * sizeof(*nodes));

                if (!nodes) {
                        json->failed = true;
                        return TDM_JSON_NONE;
                }
                json->nodes = nodes;
                json->capacity = capacity;
        }
        json->nodes[json->n_nodes] = (struct tdm_json_node){ .type = type,
                                                             .parent = TDM_JSON_NONE,
                                                             .next = TDM_JSON_NONE,
                                                             .first = TDM_JSON_NONE,
                                                             .last = TDM_JSON_NONE };
        return json->n_nodes++;
}

static void link_child(struct tdm_json *json, uint32_t parent, uint32_t child)
{
        struct tdm_json_node *p = &json->nodes[parent];

        json->nodes[child].parent = parent;
        if (p->first == TDM_JSON_NONE)
                p->first = child;
        else
                json->nodes[p->last].next = child;
        p->last = child;
        if (p->type == TDM_JSON_ARRAY)
                json->nodes[child].key = p->n;
        p->n++;
}

uint32_t tdm_json_add(struct tdm_json *json, enum tdm_json_type type, uint32_t at)
{
        uint32_t node = new_node(json, (uint8_t)type);

        if (node != TDM_JSON_NONE && at != TDM_JSON_NONE) {
                json->nodes[node].parent = json->nodes[at].parent;
                json->nodes[node].key = json->nodes[at].key;
                json->nodes[node].key_size = json->nodes[at].key_size;
        }
        return node;
}

static uint32_t json_append(struct tdm_json *json, uint32_t parent, uint32_t key, uint32_t key_size, bool named,
                            uint32_t node)
{
        uint32_t copy = new_node(json, TDM_JSON_ALIAS);
        struct tdm_json_node *n;

        if (copy == TDM_JSON_NONE || node == TDM_JSON_NONE || parent == TDM_JSON_NONE)
                return TDM_JSON_NONE;
        n = &json->nodes[copy];
        if (json->nodes[node].type < TDM_JSON_ARRAY) {
                *n = json->nodes[node];
                n->next = TDM_JSON_NONE;
        } else {
                n->first = node;
        }
        n->key = key;
        n->key_size = key_size;
        link_child(json, parent, copy);
        if (named && !index_member(json, copy))
                json->failed = true;
        return copy;
}

uint32_t tdm_json_append(struct tdm_json *json, uint32_t parent, const char *name, size_t size, uint32_t node)
{
        uint32_t key = json->n_text;

        if (name && !add_text(json, name, size))
                return TDM_JSON_NONE;
        return json_append(json, parent, key, (uint32_t)size, name != NULL, node);
}

uint32_t tdm_json_append_as(struct tdm_json *json, uint32_t parent, uint32_t named, uint32_t node)
{
        return json_append(json, parent, json->nodes[named].key, json->nodes[named].key_size, true, node);
}

static uint32_t moved(uint32_t link, uint32_t by)
{
        return link == TDM_JSON_NONE ? link : link + by;
}

uint32_t tdm_json_copy(struct tdm_json *json, uint32_t n)
{
        uint32_t start = json->n_nodes;

        for (uint32_t i = 0; i < n; i++) {
                uint32_t copy = new_node(json, json->nodes[i].type);
                struct tdm_json_node *node;

                if (copy == TDM_JSON_NONE)
                        return TDM_JSON_NONE;
                node = &json->nodes[copy];
                *node = json->nodes[i];
                node->parent = moved(node->parent, start);
                node->next = moved(node->next, start);
                node->first = moved(node->first, start);
                node->last = moved(node->last, start);
        }
        for (uint32_t i = 0; i < n; i++) {
                uint32_t parent = json->nodes[i].parent;

                if (parent != TDM_JSON_NONE && json->nodes[parent].type == TDM_JSON_OBJECT &&
                    !index_member(json, start + i)) {
                        json->failed = true;
                        return TDM_JSON_NONE;
                }
        }
        return start;
}

/* ---- parsing ---- */

static void json_skip_space(struct reader *r)
{
        while (r->at < r->size && (r->source[r->at] == ' ' || r->source[r->at] == '\n' || r->source[r->at] == '\r' ||
                                   r->source[r->at] == '\t'))
                r->at++;
}

static int hex4(struct reader *r, uint32_t *ret)
{
        *ret = 0;
        for (unsigned i = 0; i < 4; i++, r->at++) {
                char c = r->at < r->size ? r->source[r->at] : 0;
                int digit = c >= '0' && c <= '9' ? c - '0' :
                            c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                            c >= 'A' && c <= 'F' ? c - 'A' + 10 :
                                                   -1;

                if (digit < 0)
                        return json_fail(r, "\\u needs four hexadecimal digits");
                *ret = *ret << 4 | (uint32_t)digit;
        }
        return 0;
}

static int parse_escape(struct reader *r)
{
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char c = r->at < r->size ? r->source[r->at] : 0, text[4];
        const char *found = c ? strchr(from, c) : NULL;
        uint32_t value, low;
        int e;

        r->at++;
        if (found)
                return add_text(r->json, &to[found - from], 1) ? 0 : -ENOMEM;
        if (c != 'u')
                return json_fail(r, "no such escape");
        e = hex4(r, &value);
        if (e)
                return e;
        if (value >= 0xd800 && value < 0xdc00) {
                if (r->size - r->at < 2 || r->source[r->at] != '\\' || r->source[r->at + 1] != 'u')
                        return json_fail(r, "a surrogate without its other half");
                r->at += 2;
                e = hex4(r, &low);
                if (e)
                        return e;
                if (low < 0xdc00 || low > 0xdfff)
                        return json_fail(r, "a surrogate without its other half");
                value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
        } else if (value >= 0xdc00 && value < 0xe000) {
                return json_fail(r, "a surrogate without its other half");
        }
        return add_text(r->json, text, tdm_chars_encode(value, text)) ? 0 : -ENOMEM;
}

static int parse_string(struct reader *r, uint32_t *ret_text, uint32_t *ret_size)
{
        int e;

        *ret_text = r->json->n_text;
        r->at++;
        for (;;) {
                size_t start = r->at;

                while (r->at < r->size && r->source[r->at] != '"' && r->source[r->at] != '\\' &&
                       (uint8_t)r->source[r->at] >= 0x20)
                        r->at++;
                if (!tdm_utf8_is_valid(r->source + start, r->at - start))
                        return json_fail(r, "a string is not UTF-8");
                if (!add_text(r->json, r->source + start, r->at - start))
                        return -ENOMEM;
                if (r->at == r->size)
                        return json_fail(r, "a string has no end");
                if (r->source[r->at] == '"') {
                        r->at++;
                        *ret_size = r->json->n_text - *ret_text;
                        return 0;
                }
                if (r->source[r->at] != '\\')
                        return json_fail(r, "a control character in a string");
                r->at++;
                e = parse_escape(r);
                if (e)
                        return e;
        }
}

static bool digits(struct reader *r)
{
        size_t start = r->at;

        while (r->at < r->size && r->source[r->at] >= '0' && r->source[r->at] <= '9')
                r->at++;
        return r->at > start;
}

static bool json_take_char(struct reader *r, char a, char b)
{
        if (r->at == r->size || (r->source[r->at] != a && r->source[r->at] != b))
                return false;
        r->at++;
        return true;
}

static int json_parse_number(struct reader *r)
{
        (void)json_take_char(r, '-', '-');
        if (!json_take_char(r, '0', '0') && !digits(r))
                return json_fail(r, "no value");
        if (json_take_char(r, '.', '.') && !digits(r))
                return json_fail(r, "a number ends in its point");
        if (json_take_char(r, 'e', 'E')) {
                (void)json_take_char(r, '+', '-');
                if (!digits(r))
                        return json_fail(r, "a number ends in its exponent");
        }
        return 0;
}

static bool word(struct reader *r, const char *text)
{
        size_t n = strlen(text);

        if (r->size - r->at < n || memcmp(r->source + r->at, text, n) != 0)
                return false;
        r->at += n;
        return true;
}

static int parse_value(struct reader *r, uint32_t *ret, uint32_t depth);

static int parse_children(struct reader *r, uint32_t node, uint32_t depth)
{
        struct tdm_json *json = r->json;
        bool object = json->nodes[node].type == TDM_JSON_OBJECT;
        char end = object ? '}' : ']';
        uint32_t key = 0, key_size = 0, child;
        int e;

        if (depth == 0)
                return tdm_error_set(r->err, TDM_E_UNSUPPORTED, "nested more than %u deep", r->max_depth);
        r->at++;
        json_skip_space(r);
        if (json_take_char(r, end, end))
                return 0;
        for (;;) {
                json_skip_space(r);
                if (object) {
                        if (r->at == r->size || r->source[r->at] != '"')
                                return json_fail(r, "a member's name is missing");
                        e = parse_string(r, &key, &key_size);
                        if (e)
                                return e;
                        if (tdm_json_find(json, node, json->text + key, key_size) != TDM_JSON_NONE)
                                return json_fail(r, "a member stands there twice");
                        json_skip_space(r);
                        if (!json_take_char(r, ':', ':'))
                                return json_fail(r, "a colon is missing");
                        json_skip_space(r);
                }
                e = parse_value(r, &child, depth - 1);
                if (e)
                        return e;
                link_child(json, node, child);
                if (object) {
                        json->nodes[child].key = key;
                        json->nodes[child].key_size = key_size;
                        if (!index_member(json, child))
                                return -ENOMEM;
                }
                json_skip_space(r);
                if (json_take_char(r, end, end))
                        return 0;
                if (!json_take_char(r, ',', ','))
                        return json_fail(r, "a comma or an end is missing");
        }
}

static int parse_value(struct reader *r, uint32_t *ret, uint32_t depth)
{
        struct tdm_json *json = r->json;
        char c = r->at < r->size ? r->source[r->at] : 0;
        uint32_t text = 0, text_size = 0, node;
        size_t start = r->at;
        uint8_t type;
        int e;

        switch (c) {
        case '{':
                type = TDM_JSON_OBJECT;
                break;
        case '[':
                type = TDM_JSON_ARRAY;
                break;
        case '"':
                type = TDM_JSON_STRING;
                e = parse_string(r, &text, &text_size);
                if (e)
                        return e;
                break;
        default:
                if (word(r, "null")) {
                        type = TDM_JSON_NULL;
                } else if (word(r, "true")) {
                        type = TDM_JSON_TRUE;
                } else if (word(r, "false")) {
                        type = TDM_JSON_FALSE;
                } else {
                        type = TDM_JSON_NUMBER;
                        e = json_parse_number(r);
                        if (e)
                                return e;
                        text = json->n_text;
                        text_size = (uint32_t)(r->at - start);
                        if (!add_text(json, r->source + start, text_size))
                                return -ENOMEM;
                }
        }
        node = new_node(json, type);
        if (node == TDM_JSON_NONE)
                return -ENOMEM;
        json->nodes[node].text = text;
        json->nodes[node].text_size = text_size;
        *ret = node;
        return type >= TDM_JSON_ARRAY ? parse_children(r, node, depth) : 0;
}

int tdm_json_parse(struct tdm_json *json, const char *source, size_t size, uint32_t max_depth, struct tdm_error *err)
{
        struct reader r = { .json = json, .source = source, .size = size, .max_depth = max_depth, .err = err };
        uint32_t root;
        int e;

        *json = (struct tdm_json){ 0 };
        if (!add_text(json, "", 1)) /* so that there is a text to point into */
                return -ENOMEM;
        json_skip_space(&r);
        e = parse_value(&r, &root, max_depth);
        if (e == 0) {
                json_skip_space(&r);
                if (r.at < size)
                        e = json_fail(&r, "text behind the value");
        }
        if (e)
                tdm_json_deinit(json);
        return e;
}

void tdm_json_deinit(struct tdm_json *json)
{
        free(json->nodes);
        free(json->text);
        free(json->slots);
        *json = (struct tdm_json){ 0 };
}

bool tdm_json_equal(const struct tdm_json *json, uint32_t a, uint32_t b)
{
        const struct tdm_json_node *x, *y;
        struct tdm_decimal dx, dy;

        a = tdm_json_deref(json, a);
        b = tdm_json_deref(json, b);
        x = &json->nodes[a];
        y = &json->nodes[b];
        if (x->type != y->type)
                return false;
        switch (x->type) {
        case TDM_JSON_NUMBER:
                if (tdm_decimal_parse(&dx, json->text + x->text, x->text_size) &&
                    tdm_decimal_parse(&dy, json->text + y->text, y->text_size))
                        return tdm_decimal_compare(&dx, &dy) == 0;
                /* fall through */
        case TDM_JSON_STRING:
                return x->text_size == y->text_size &&
                       memcmp(json->text + x->text, json->text + y->text, x->text_size) == 0;
        case TDM_JSON_ARRAY:
                if (x->n != y->n)
                        return false;
                for (a = x->first, b = y->first; a != TDM_JSON_NONE; a = json->nodes[a].next, b = json->nodes[b].next)
                        if (!tdm_json_equal(json, a, b))
                                return false;
                return true;
        case TDM_JSON_OBJECT:
                if (x->n != y->n)
                        return false;
                for (a = x->first; a != TDM_JSON_NONE; a = json->nodes[a].next) {
                        uint32_t other =
                                tdm_json_find(json, b, json->text + json->nodes[a].key, json->nodes[a].key_size);

                        if (other == TDM_JSON_NONE || !tdm_json_equal(json, a, other))
                                return false;
                }
                return true;
        default:
                return true;
        }
}

char *tdm_json_pointer(const struct tdm_json *json, uint32_t node, char *to, size_t size)
{
        uint32_t path[256], n = 0;
        size_t at = 0;

        while (n < TDM_ARRAY_SIZE(path) && json->nodes[node].parent != TDM_JSON_NONE) {
                path[n++] = node;
                node = json->nodes[node].parent;
        }
        if (n == 0)
                snprintf(to, size, "#");
        else
                at = (size_t)snprintf(to, size, "#");
        while (n > 0) {
                const struct tdm_json_node *x = &json->nodes[path[--n]];

                if (json->nodes[x->parent].type == TDM_JSON_ARRAY) {
                        at += (size_t)snprintf(to + TDM_MIN(at, size), size - TDM_MIN(at, size), "/%u", x->key);
                        continue;
                }
                if (at + 1 < size)
                        to[at++] = '/';
                for (uint32_t i = 0; i < x->key_size && at + 3 < size; i++) {
                        char c = json->text[x->key + i];

                        if (c == '~' || c == '/') {
                                to[at++] = '~';
                                c = c == '~' ? '0' : '1';
                        }
                        to[at++] = c;
                }
                to[TDM_MIN(at, size - 1)] = 0;
        }
        (void)tdm_utf8_mend(to);
        return to;
}
