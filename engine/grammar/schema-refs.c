/* References inside one document: $id and $anchor give schemas their URIs, $ref finds them. Nothing is ever fetched. */
#include "engine/grammar/schema.h"

enum { URI_MAX = 2048 };

static bool add_uri(struct tdm_schema *s, const char *uri, size_t size, uint32_t node)
{
        if (s->n_uris == s->uris_capacity) {
                uint32_t capacity = TDM_MAX(s->uris_capacity * 2, 8u);
                struct tdm_schema_uri *uris = realloc(s->uris, capacity * sizeof(*uris));

                if (!uris)
                        return false;
                s->uris = uris;
                s->uris_capacity = capacity;
        }
        if (!s->uri_text || size > s->uri_text_capacity - s->n_uri_text) {
                size_t capacity = TDM_MAX((size_t)s->uri_text_capacity * 2, s->n_uri_text + size + 256);
                char *text = capacity < UINT32_MAX ? realloc(s->uri_text, capacity) : NULL;

                if (!text)
                        return false;
                s->uri_text = text;
                s->uri_text_capacity = (uint32_t)capacity;
        }
        if (size > 0)
                memcpy(s->uri_text + s->n_uri_text, uri, size);
        s->uris[s->n_uris++] = (struct tdm_schema_uri){ s->n_uri_text, (uint32_t)size, node };
        s->n_uri_text += (uint32_t)size;
        return true;
}

struct uri_parts {
        size_t scheme, authority, path, query; /* where each ends; scheme without its colon, 0: none */
        bool has_authority;
};

static struct uri_parts take_apart(const char *u, size_t n)
{
        struct uri_parts p = { 0 };
        size_t i = 0;

        while (i < n && u[i] != ':' && u[i] != '/' && u[i] != '?')
                i++;
        if (i < n && i > 0 && u[i] == ':')
                p.scheme = i;
        i = p.scheme ? p.scheme + 1 : 0;
        if (n - i >= 2 && u[i] == '/' && u[i + 1] == '/') {
                p.has_authority = true;
                for (i += 2; i < n && u[i] != '/' && u[i] != '?'; i++)
                        ;
        }
        p.authority = i;
        while (i < n && u[i] != '?')
                i++;
        p.path = i;
        p.query = n;
        return p;
}

/* RFC 3986, 5.2, without fragments: reference relative to base, into to. Returns the size, 0 where it does not fit. */
static size_t uri_join(const char *base, size_t n_base, const char *ref, size_t n_ref, char *to)
{
        struct uri_parts b = take_apart(base, n_base), r = take_apart(ref, n_ref);
        size_t at = 0, start, i, r_path = r.authority;
        char path[2 * URI_MAX];
        size_t n_path = 0, n_out = 0;

        if (n_base + n_ref + 2 > URI_MAX)
                return 0;
        if (r.scheme) {
                memcpy(to, ref, n_ref);
                return n_ref;
        }
        if (n_ref == 0) {
                memcpy(to, base, n_base);
                return n_base;
        }
        if (r.has_authority) {
                at = b.scheme ? b.scheme + 1 : 0;
                memcpy(to, base, at);
                memcpy(to + at, ref, n_ref);
                return at + n_ref;
        }
        at = b.authority;
        memcpy(to, base, at);
        if (r.path == r_path) { /* only a query */
                memcpy(to + at, base + b.authority, b.path - b.authority);
                at += b.path - b.authority;
                memcpy(to + at, ref, n_ref);
                return at + n_ref;
        }
        if (ref[r_path] != '/') { /* merged: the base's path up to its last slash */
                for (i = b.path; i > b.authority && base[i - 1] != '/'; i--)
                        ;
                memcpy(path, base + b.authority, i - b.authority);
                n_path = i - b.authority;
                if (n_path == 0 && b.has_authority)
                        path[n_path++] = '/';
        }
        memcpy(path + n_path, ref + r_path, r.path - r_path);
        n_path += r.path - r_path;
        start = at;
        for (i = 0; i < n_path;) { /* dot segments */
                size_t end = i + 1;

                while (end < n_path && path[end] != '/')
                        end++;
                if (path[i] == '/' && end - i == 2 && path[i + 1] == '.') {
                        if (end == n_path)
                                to[start + n_out++] = '/';
                } else if (path[i] == '/' && end - i == 3 && path[i + 1] == '.' && path[i + 2] == '.') {
                        while (n_out > 0 && to[start + --n_out] != '/')
                                ;
                        if (end == n_path)
                                to[start + n_out++] = '/';
                } else {
                        memcpy(to + start + n_out, path + i, end - i);
                        n_out += end - i;
                }
                i = end;
        }
        at = start + n_out;
        memcpy(to + at, ref + r.path, n_ref - r.path);
        return at + n_ref - r.path;
}

static const char *const of_schema[] = {
        "additionalProperties",
        "additionalItems",
        "items",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "propertyNames",
        "unevaluatedItems",
        "allOf",
        "anyOf",
        "unevaluatedProperties",
        "oneOf",
        "prefixItems",
        "contentSchema",
};
static const char *const of_schemas[] = { "properties",  "patternProperties", "$defs",
                                          "definitions", "dependentSchemas",  "dependencies" };

static bool named(const struct tdm_schema *s, uint32_t node, const char *const *names, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (tdm_json_get(&s->json, node)->key_size == strlen(names[i]) &&
                    memcmp(tdm_json_key(&s->json, node), names[i], strlen(names[i])) == 0)
                        return true;
        return false;
}

static void index_schema(struct tdm_schema *s, uint32_t node, uint32_t base);

static void index_children(struct tdm_schema *s, uint32_t node, uint32_t base)
{
        for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                index_schema(s, i, base);
}

static void index_schema(struct tdm_schema *s, uint32_t node, uint32_t base)
{
        char uri[2 * URI_MAX];
        uint32_t id;
        size_t n;

        s->base_of[node] = base + 1;
        if (tdm_json_get(&s->json, node)->type == TDM_JSON_ARRAY) {
                index_children(s, node, base);
                return;
        }
        if (tdm_json_get(&s->json, node)->type != TDM_JSON_OBJECT)
                return;
        id = tdm_json_member(&s->json, node, "$id");
        if (id == TDM_JSON_NONE)
                id = tdm_json_member(&s->json, node, "id");
        if (id != TDM_JSON_NONE && tdm_json_get(&s->json, id)->type == TDM_JSON_STRING) {
                const char *text = tdm_json_text(&s->json, id), *hash;
                size_t size = tdm_json_get(&s->json, id)->text_size;

                hash = memchr(text, '#', size);
                if (hash && hash == text) { /* an anchor, as drafts up to 7 wrote them */
                        n = s->uris[base].size;
                        if (n + size <= sizeof(uri)) {
                                memcpy(uri, s->uri_text + s->uris[base].at, n);
                                memcpy(uri + n, text, size);
                                (void)add_uri(s, uri, n + size, node);
                        }
                } else {
                        size = hash ? (size_t)(hash - text) : size;
                        n = uri_join(s->uri_text + s->uris[base].at, s->uris[base].size, text, size, uri);
                        if (n > 0 && add_uri(s, uri, n, node))
                                base = s->n_uris - 1;
                        s->base_of[node] = base + 1;
                }
        }
        for (unsigned k = 0; k < 2; k++) {
                uint32_t anchor = tdm_json_member(&s->json, node, k ? "$dynamicAnchor" : "$anchor");
                const struct tdm_json_node *a;

                if (anchor == TDM_JSON_NONE || tdm_json_get(&s->json, anchor)->type != TDM_JSON_STRING)
                        continue;
                a = tdm_json_get(&s->json, anchor);
                n = s->uris[base].size;
                if (n + a->text_size + 1 > sizeof(uri))
                        continue;
                memcpy(uri, s->uri_text + s->uris[base].at, n);
                uri[n] = '#';
                memcpy(uri + n + 1, tdm_json_text(&s->json, anchor), a->text_size);
                (void)add_uri(s, uri, n + 1 + a->text_size, node);
        }
        for (uint32_t i = tdm_json_get(&s->json, node)->first; i != TDM_JSON_NONE;
             i = tdm_json_get(&s->json, i)->next) {
                static const char *const unevaluated[] = { "unevaluatedProperties", "unevaluatedItems" };

                s->base_of[i] = base + 1;
                s->has_unevaluated |= named(s, i, unevaluated, 2);
                if (named(s, i, of_schema, TDM_ARRAY_SIZE(of_schema)))
                        index_schema(s, i, base);
                else if (named(s, i, of_schemas, TDM_ARRAY_SIZE(of_schemas)))
                        index_children(s, i, base);
        }
}

int tdm_schema_index(struct tdm_schema *s)
{
        s->n_base_of = s->json.n_nodes;
        s->base_of = calloc(s->n_base_of, sizeof(*s->base_of));
        s->negation_of = calloc(s->n_base_of, sizeof(*s->negation_of));
        s->choice_of = calloc(s->n_base_of, sizeof(*s->choice_of));
        if (!s->base_of || !s->negation_of || !s->choice_of || !add_uri(s, "", 0, 0))
                return -ENOMEM;
        index_schema(s, 0, 0);
        return tdm_schema_scopes_find(s);
}

void tdm_schema_refs_deinit(struct tdm_schema *s)
{
        free(s->uris);
        free(s->uri_text);
        free(s->base_of);
        tdm_schema_scopes_free(s);
}

static uint32_t find_uri(const struct tdm_schema *s, const char *uri, size_t size)
{
        for (uint32_t i = 0; i < s->n_uris; i++)
                if (s->uris[i].size == size && memcmp(s->uri_text + s->uris[i].at, uri, size) == 0)
                        return s->uris[i].node;
        return TDM_JSON_NONE;
}

static int hex_digit(char c)
{
        return c >= '0' && c <= '9' ? c - '0' :
               c >= 'a' && c <= 'f' ? c - 'a' + 10 :
               c >= 'A' && c <= 'F' ? c - 'A' + 10 :
                                      -1;
}

/* A JSON pointer with percent escapes, from node. */
static uint32_t follow(struct tdm_schema *s, uint32_t node, const char *pointer, size_t size)
{
        char name[URI_MAX];
        size_t i = 0;

        while (i < size && node != TDM_JSON_NONE) {
                size_t n = 0;

                if (pointer[i++] != '/')
                        return TDM_JSON_NONE;
                while (i < size && pointer[i] != '/' && n < sizeof(name)) {
                        char c = pointer[i++];

                        if (c == '%' && size - i >= 2 && hex_digit(pointer[i]) >= 0 && hex_digit(pointer[i + 1]) >= 0) {
                                c = (char)(hex_digit(pointer[i]) << 4 | hex_digit(pointer[i + 1]));
                                i += 2;
                        }
                        if (n > 0 && name[n - 1] == '~' && (c == '0' || c == '1'))
                                name[n - 1] = c == '0' ? '\1' : '/'; /* \1: a tilde that begins no escape */
                        else
                                name[n++] = c;
                }
                for (size_t k = 0; k < n; k++)
                        name[k] = name[k] == '\1' ? '~' : name[k];
                if (tdm_json_get(&s->json, node)->type == TDM_JSON_OBJECT) {
                        node = tdm_json_find(&s->json, node, name, n);
                } else if (tdm_json_get(&s->json, node)->type == TDM_JSON_ARRAY && n > 0 && n < 10) {
                        uint32_t index = 0;

                        for (size_t k = 0; k < n; k++) {
                                if (name[k] < '0' || name[k] > '9')
                                        return TDM_JSON_NONE;
                                index = index * 10 + (uint32_t)(name[k] - '0');
                        }
                        node = tdm_json_get(&s->json, node)->first;
                        while (index-- > 0 && node != TDM_JSON_NONE)
                                node = tdm_json_get(&s->json, node)->next;
                } else {
                        return TDM_JSON_NONE;
                }
        }
        return node;
}

uint32_t tdm_schema_resolve(struct tdm_schema *s, uint32_t ref)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, ref);
        uint32_t base = ref < s->n_base_of && s->base_of[ref] ? s->base_of[ref] - 1 : 0, node = TDM_JSON_NONE, anchor;
        const char *text, *mark;
        char uri[2 * URI_MAX];
        size_t size, n_uri, n_fragment;
        bool dynamic = n->key_size > 4;

        if (n->type != TDM_JSON_STRING) {
                (void)tdm_schema_fail(s, ref, TDM_E_BAD_REQUEST, "a reference must be a string");
                return TDM_JSON_NONE;
        }
        text = tdm_json_text(&s->json, ref);
        mark = memchr(text, '#', n->text_size);
        size = mark ? (size_t)(mark - text) : n->text_size;
        n_fragment = mark ? n->text_size - size - 1 : 0;
        n_uri = uri_join(s->uri_text + s->uris[base].at, s->uris[base].size, text, size, uri);
        if (n_uri == 0 && s->uris[base].size + size > 0)
                goto fail;
        if (n_fragment == 0 || mark[1] == '/') {
                node = find_uri(s, uri, n_uri);
                if (node != TDM_JSON_NONE && n_fragment > 0)
                        node = follow(s, node, mark + 1, n_fragment);
        } else if (n_uri + n_fragment + 1 <= sizeof(uri)) {
                uri[n_uri] = '#';
                memcpy(uri + n_uri + 1, mark + 1, n_fragment);
                node = find_uri(s, uri, n_uri + 1 + n_fragment);
        }
        if (node == TDM_JSON_NONE)
                goto fail;
        node = tdm_schema_enter(s, tdm_schema_in_scope(s, node, ref));
        if (dynamic && node != TDM_JSON_NONE && n_fragment > 0 && mark[1] != '/') {
                anchor = tdm_json_member(&s->json, node, "$dynamicAnchor");
                if (anchor != TDM_JSON_NONE && tdm_json_get(&s->json, anchor)->text_size == n_fragment &&
                    memcmp(tdm_json_text(&s->json, anchor), mark + 1, n_fragment) == 0) {
                        anchor = tdm_schema_dynamic(s, node, mark + 1, n_fragment);
                        node = anchor == TDM_JSON_NONE ? node : anchor;
                }
        }
        return node;
fail:
        (void)tdm_schema_fail(s, ref, TDM_E_UNSUPPORTED,
                              "the reference '%.*s' leads out of the schema; nothing is fetched",
                              (int)TDM_MIN(n->text_size, 100u), tdm_json_text(&s->json, ref));
        return TDM_JSON_NONE;
}
