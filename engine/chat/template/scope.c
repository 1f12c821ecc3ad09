/* Which variable a name means: scopes from the inside out. Names are interned, so they are compared as pointers. */
#include "engine/chat/template/private.h"

struct jinja_scope *tdm_jinja_scope(struct jinja_render *r, struct jinja_scope *parent)
{
        struct jinja_scope *scope = tdm_jinja_calloc(&r->core, sizeof(*scope));

        scope->parent = parent;
        return scope;
}

void tdm_jinja_bind(struct jinja_render *r, struct jinja_scope *scope, const struct jinja_string *name,
                    struct jinja_value value)
{
        tdm_jinja_spend_bytes(&r->core, scope->n, JINJA_COPIED);
        for (size_t i = 0; i < scope->n; i++)
                if (scope->bindings[i].name == name) {
                        scope->bindings[i].value = value;
                        return;
                }
        if (scope->n == scope->capacity) {
                scope->capacity = TDM_MAX(scope->capacity * 2, (size_t)4);
                scope->bindings =
                        tdm_jinja_grow(&r->core, scope->bindings, scope->n, scope->capacity, sizeof(*scope->bindings));
        }
        scope->bindings[scope->n++] = (struct jinja_binding){ name, value };
}

const struct jinja_value *tdm_jinja_lookup(struct jinja_render *r, const struct jinja_string *name)
{
        for (const struct jinja_scope *scope = r->scope; scope; scope = scope->parent) {
                tdm_jinja_spend_bytes(&r->core, scope->n + 1, JINJA_COPIED);
                for (size_t i = 0; i < scope->n; i++)
                        if (scope->bindings[i].name == name)
                                return &scope->bindings[i].value;
        }
        return NULL;
}
