/* The dynamic scopes of $dynamicRef. It leads to the first $dynamicAnchor of its name among the resources (the schemas
 * with an $id, and the root) that references and nesting went through on the way to it.
 *
 * What a scope has for each name is all that matters of it. A schema may mean something else in another scope.
 * So each scope but the root's has a copy of all the source's nodes, and a node's number tells in which scope it is.
 * Only a source that has a $dynamicRef and two anchors of one name has scopes. */
#include "engine/grammar/schema.h"

enum { SCOPES_MAX = 64, ANCHORS_MAX = 64, COPIES_MAX = 50000 };

struct tdm_schema_scopes {
        struct anchor {
                uint32_t node, text; /* the schema, and the name's node */
                uint32_t base;       /* the resource */
                unsigned name;       /* the first anchor of that name */
        } anchors[ANCHORS_MAX];
        unsigned n_anchors;
        uint32_t n_parsed;
        struct scope {
                uint32_t start;              /* the copy of node 0 */
                uint32_t found[ANCHORS_MAX]; /* by name: the schema, or TDM_JSON_NONE */
        } scopes[SCOPES_MAX];
        unsigned n_scopes;
};

static bool same_text(const struct tdm_json *json, uint32_t a, uint32_t b)
{
        return tdm_json_get(json, a)->text_size == tdm_json_get(json, b)->text_size &&
               memcmp(tdm_json_text(json, a), tdm_json_text(json, b), tdm_json_get(json, a)->text_size) == 0;
}

static void add_anchor(struct tdm_schema *s, struct tdm_schema_scopes *x, uint32_t node, uint32_t text)
{
        unsigned name = x->n_anchors;

        for (unsigned i = x->n_anchors; i-- > 0;)
                if (same_text(&s->json, x->anchors[i].text, text))
                        name = x->anchors[i].name;
        x->anchors[x->n_anchors++] = (struct anchor){ node, text, s->base_of[node] - 1, name };
}

int tdm_schema_scopes_find(struct tdm_schema *s)
{
        struct tdm_schema_scopes *x;
        bool choice = false, referred = false;

        for (uint32_t i = 0; i < s->json.n_nodes && !referred; i++)
                referred = tdm_json_get(&s->json, i)->key_size == 11 && s->base_of[i] &&
                           memcmp(tdm_json_key(&s->json, i), "$dynamicRef", 11) == 0;
        if (!referred)
                return 0;
        x = s->scopes = calloc(1, sizeof(*x));
        if (!x)
                return -ENOMEM;
        x->n_parsed = s->json.n_nodes;
        for (uint32_t i = 0; i < s->json.n_nodes; i++) {
                uint32_t text = s->base_of[i] && tdm_json_get(&s->json, i)->type == TDM_JSON_OBJECT ?
                                        tdm_json_member(&s->json, i, "$dynamicAnchor") :
                                        TDM_JSON_NONE;

                if (text == TDM_JSON_NONE || tdm_json_get(&s->json, text)->type != TDM_JSON_STRING)
                        continue;
                if (x->n_anchors == ANCHORS_MAX)
                        return tdm_schema_fail(s, text, TDM_E_UNSUPPORTED, "more than %d $dynamicAnchor are not held",
                                               ANCHORS_MAX);
                add_anchor(s, x, i, text);
                choice |= x->anchors[x->n_anchors - 1].name != x->n_anchors - 1;
        }
        if (!choice) {
                tdm_schema_scopes_free(s);
                return 0;
        }
        x->n_scopes = 1;
        for (unsigned i = 0; i < ANCHORS_MAX; i++)
                x->scopes[0].found[i] = TDM_JSON_NONE;
        for (unsigned i = 0; i < x->n_anchors; i++)
                if (x->anchors[i].base == 0)
                        x->scopes[0].found[x->anchors[i].name] = x->anchors[i].node;
        return 0;
}

void tdm_schema_scopes_free(struct tdm_schema *s)
{
        free(s->scopes);
        s->scopes = NULL;
}

/* The scope that holds the node, and the node that it copies; NULL for one that the compiler made. */
static const struct scope *scope_of(const struct tdm_schema_scopes *x, uint32_t node, uint32_t *ret_parsed)
{
        for (unsigned i = x->n_scopes; i-- > 0;) {
                if (node < x->scopes[i].start || node - x->scopes[i].start >= x->n_parsed)
                        continue;
                *ret_parsed = node - x->scopes[i].start;
                return &x->scopes[i];
        }
        return NULL;
}

bool tdm_schema_is_parsed(const struct tdm_schema *s, uint32_t node)
{
        uint32_t parsed;

        return s->scopes ? scope_of(s->scopes, node, &parsed) != NULL : node < s->n_base_of;
}

static uint32_t *longer(uint32_t *array, uint32_t n, uint32_t capacity)
{
        uint32_t *grown = realloc(array, capacity * sizeof(*grown));

        if (grown)
                memset(grown + n, 0, (capacity - n) * sizeof(*grown));
        return grown;
}

/* A scope with these schemas. NULL with the error set. */
static const struct scope *make_scope(struct tdm_schema *s, const uint32_t *found, uint32_t node)
{
        struct tdm_schema_scopes *x = s->scopes;
        uint32_t **const arrays[] = { &s->base_of, &s->negation_of, &s->choice_of };
        struct scope *scope = &x->scopes[x->n_scopes];
        uint32_t start;

        for (unsigned i = 0; i < x->n_scopes; i++)
                if (memcmp(x->scopes[i].found, found, sizeof(scope->found)) == 0)
                        return &x->scopes[i];
        if (x->n_scopes == SCOPES_MAX || (uint64_t)x->n_scopes * x->n_parsed > COPIES_MAX) {
                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "so many dynamic scopes of $dynamicRef are not held");
                return NULL;
        }
        start = tdm_json_copy(&s->json, x->n_parsed);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(arrays) && start != TDM_JSON_NONE; i++) {
                uint32_t *grown = longer(*arrays[i], s->n_base_of, start + x->n_parsed);

                if (!grown)
                        start = TDM_JSON_NONE;
                else
                        *arrays[i] = grown;
        }
        if (start == TDM_JSON_NONE) {
                s->error = s->error ? s->error : -ENOMEM;
                return NULL;
        }
        memcpy(s->base_of + start, s->base_of, x->n_parsed * sizeof(*s->base_of));
        s->n_base_of = start + x->n_parsed;
        s->g->arena.steps += x->n_parsed;
        scope->start = start;
        memcpy(scope->found, found, sizeof(scope->found));
        x->n_scopes++;
        return scope;
}

uint32_t tdm_schema_enter(struct tdm_schema *s, uint32_t node)
{
        struct tdm_schema_scopes *x = s->scopes;
        const struct scope *scope;
        uint32_t found[ANCHORS_MAX], parsed, base;
        bool more = false;

        if (!x || node == TDM_JSON_NONE || s->error)
                return node;
        scope = scope_of(x, node, &parsed);
        if (!scope)
                return node;
        base = s->base_of[parsed] ? s->base_of[parsed] - 1 : 0;
        memcpy(found, scope->found, sizeof(found));
        for (unsigned i = 0; i < x->n_anchors; i++) {
                if (x->anchors[i].base != base || found[x->anchors[i].name] != TDM_JSON_NONE)
                        continue;
                found[x->anchors[i].name] = x->anchors[i].node;
                more = true;
        }
        if (!more)
                return node;
        scope = make_scope(s, found, node);
        return scope ? scope->start + parsed : TDM_JSON_NONE;
}

uint32_t tdm_schema_in_scope(struct tdm_schema *s, uint32_t target, uint32_t from)
{
        const struct scope *scope;
        uint32_t parsed;

        if (!s->scopes)
                return target;
        scope = scope_of(s->scopes, from, &parsed);
        return scope ? scope->start + target : target;
}

uint32_t tdm_schema_dynamic(struct tdm_schema *s, uint32_t node, const char *name, size_t size)
{
        struct tdm_schema_scopes *x = s->scopes;
        const struct scope *scope;
        uint32_t parsed;

        scope = x ? scope_of(x, node, &parsed) : NULL;
        for (unsigned i = 0; scope && i < x->n_anchors; i++) {
                uint32_t text = x->anchors[i].text;

                if (tdm_json_get(&s->json, text)->text_size != size ||
                    memcmp(tdm_json_text(&s->json, text), name, size) != 0)
                        continue;
                return scope->found[x->anchors[i].name] == TDM_JSON_NONE ?
                               TDM_JSON_NONE :
                               scope->start + scope->found[x->anchors[i].name];
        }
        return TDM_JSON_NONE;
}
