/* Statements: what a template writes. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

static void target_set(struct jinja_render *r, const struct jinja_node *target, struct jinja_value value)
{
        const struct jinja_value *space;
        struct jinja_list *list;
        size_t i = 0;

        switch (target->kind) {
        case JINJA_NODE_NAME:
                tdm_jinja_bind(r, r->scope, target->name, value);
                return;
        case JINJA_NODE_MEMBER:
                space = tdm_jinja_lookup(r, target->name);
                if (!space || space->kind != JINJA_NAMESPACE)
                        tdm_jinja_fail(&r->core, "\"%.*s\" is no namespace",
                                       TDM_UTF8_CUT(target->name->data, TDM_MIN(target->name->size, (size_t)40)));
                tdm_jinja_dict_set(&r->core, space->dict, tdm_jinja_text_value(target->child[0]->name), value);
                return;
        default:
                list = tdm_jinja_walk(&r->core, value);
                for (const struct jinja_node *one = target->child[0]; one; one = one->next, i++) {
                        if (i == list->n)
                                break;
                        target_set(r, one, list->items[i]);
                        if (!one->next && i + 1 == list->n)
                                return;
                }
                tdm_jinja_fail(&r->core, "%zu values are set to another number of names", list->n);
        }
}

static struct jinja_value loop_around(const struct jinja_loop *loop, int64_t at)
{
        return at < 0 || (size_t)at >= loop->list->n ? tdm_jinja_undefined(NULL) : loop->list->items[at];
}

static struct jinja_value loop_cycle(struct jinja_render *r, struct jinja_value self,
                                     const struct jinja_arguments *args)
{
        if (args->n == 0)
                tdm_jinja_fail(&r->core, "loop.cycle has no items");
        return args->values[self.loop->index0 % args->n];
}

static struct jinja_value loop_changed(struct jinja_render *r, struct jinja_value self,
                                       const struct jinja_arguments *args)
{
        struct jinja_list *now = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, args->n);
        struct jinja_loop *loop = self.loop;
        bool changed;

        for (size_t i = 0; i < args->n; i++)
                tdm_jinja_list_add(&r->core, now, args->values[i]);
        changed = !loop->has_changed_before || !tdm_jinja_equal(&r->core, loop->last_seen, tdm_jinja_list_value(now));
        loop->has_changed_before = true;
        loop->last_seen = tdm_jinja_list_value(now);
        return tdm_jinja_bool(changed);
}

static const struct jinja_builtin loop_methods[] = {
        { "cycle", NULL, "", 0, loop_cycle },
        { "changed", NULL, "", 0, loop_changed },
};

struct jinja_value tdm_jinja_loop_attribute(struct jinja_render *r, struct jinja_loop *loop,
                                            const struct jinja_string *name)
{
        int64_t index = (int64_t)loop->index0, n = (int64_t)loop->list->n;
        const struct {
                const char *name;
                struct jinja_value value;
        } attributes[] = {
                { "index0", tdm_jinja_int(index) },
                { "index", tdm_jinja_int(index + 1) },
                { "first", tdm_jinja_bool(index == 0) },
                { "last", tdm_jinja_bool(index + 1 == n) },
                { "length", tdm_jinja_int(n) },
                { "revindex", tdm_jinja_int(n - index) },
                { "revindex0", tdm_jinja_int(n - index - 1) },
                { "depth", tdm_jinja_int(loop->depth) },
                { "depth0", tdm_jinja_int((int64_t)loop->depth - 1) },
                { "previtem", loop_around(loop, index - 1) },
                { "nextitem", loop_around(loop, index + 1) },
        };
        struct jinja_method *method;

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(attributes); i++)
                if (tdm_jinja_string_is(&r->core, name, attributes[i].name))
                        return attributes[i].value;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(loop_methods); i++)
                if (tdm_jinja_string_is(&r->core, name, loop_methods[i].name)) {
                        method = tdm_jinja_alloc(&r->core, sizeof(*method));
                        *method = (struct jinja_method){ { .kind = JINJA_LOOP, .loop = loop }, &loop_methods[i] };
                        return (struct jinja_value){ .kind = JINJA_METHOD, .method = method };
                }
        return tdm_jinja_undefined(name);
}

/* The items that pass the condition of `for … if`. */
static struct jinja_list *loop_filter(struct jinja_render *r, const struct jinja_node *node,
                                      const struct jinja_list *list)
{
        struct jinja_list *passed = tdm_jinja_list(&r->core, JINJA_SHAPE_LIST, 0);
        struct jinja_scope *outer = r->scope;

        for (size_t i = 0; i < list->n; i++) {
                r->scope = tdm_jinja_scope(r, outer);
                target_set(r, node->child[0], list->items[i]);
                if (tdm_jinja_truth(&r->core, tdm_jinja_eval(r, node->child[2])))
                        tdm_jinja_list_add(&r->core, passed, list->items[i]);
        }
        r->scope = outer;
        return passed;
}

static void for_run(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_list *list = tdm_jinja_walk(&r->core, tdm_jinja_eval(r, node->child[1]));
        const struct jinja_string *loop_name = tdm_jinja_interned(r->template, "loop", 4);
        struct jinja_scope *outer = r->scope;
        struct jinja_loop *loop = tdm_jinja_calloc(&r->core, sizeof(*loop));
        bool has_ended = false; /* a round, without break or continue: jinja2's `else` asks for that */

        r->core.line = node->line;
        if (node->child[2])
                list = loop_filter(r, node, list);
        list->walked++;
        *loop = (struct jinja_loop){ .list = list, .depth = ++r->loop_depth };
        for (size_t i = 0; i < list->n; i++) {
                enum jinja_flow flow;

                tdm_jinja_spend(&r->core, 1);
                r->scope = tdm_jinja_scope(r, outer);
                loop->index0 = i;
                if (loop_name)
                        tdm_jinja_bind(r, r->scope, loop_name,
                                       (struct jinja_value){ .kind = JINJA_LOOP, .loop = loop });
                target_set(r, node->child[0], list->items[i]);
                flow = tdm_jinja_run(r, node->child[3]);
                if (flow == JINJA_FLOW_BREAK)
                        break;
                has_ended |= flow == JINJA_FLOW_ON;
        }
        list->walked--;
        r->loop_depth--;
        r->scope = outer;
        if (!has_ended && node->child[4]) {
                r->scope = tdm_jinja_scope(r, outer);
                tdm_jinja_run(r, node->child[4]);
                r->scope = outer;
        }
}

/* The text that a body writes, in a scope of its own. */
static struct jinja_string *body_capture(struct jinja_render *r, struct jinja_scope *scope,
                                         const struct jinja_node *body)
{
        struct jinja_text text = { .core = &r->core }, *out = r->out;
        struct jinja_scope *outer = r->scope;

        r->out = &text;
        r->scope = scope;
        tdm_jinja_run(r, body);
        r->out = out;
        r->scope = outer;
        return tdm_jinja_text_end(&text);
}

/* Macros. */

/* Its arguments that no parameter takes, where the body asks for them by jinja2's names. */
static void macro_bind_rest(struct jinja_render *r, struct jinja_scope *scope, const struct jinja_macro *macro,
                            const struct jinja_arguments *args, size_t n_taken, const bool *named_taken)
{
        const struct jinja_string *varargs = tdm_jinja_interned(r->template, "varargs", 7);
        const struct jinja_string *kwargs = tdm_jinja_interned(r->template, "kwargs", 6);
        struct jinja_list *rest = tdm_jinja_list(&r->core, JINJA_SHAPE_TUPLE, 0);
        struct jinja_dict *named = tdm_jinja_dict(&r->core);

        for (size_t i = n_taken; i < args->n; i++)
                tdm_jinja_list_add(&r->core, rest, args->values[i]);
        for (size_t i = 0; i < args->n_named; i++)
                if (!named_taken[i])
                        tdm_jinja_dict_set(&r->core, named, tdm_jinja_text_value(args->named[i].name),
                                           args->named[i].value);
        if ((rest->n > 0 && !varargs) || (named->n > 0 && !kwargs))
                tdm_jinja_fail(&r->core, "the macro \"%.*s\" has no such parameter",
                               TDM_UTF8_CUT(macro->name->data, TDM_MIN(macro->name->size, (size_t)40)));
        if (varargs)
                tdm_jinja_bind(r, scope, varargs, tdm_jinja_list_value(rest));
        if (kwargs)
                tdm_jinja_bind(r, scope, kwargs, (struct jinja_value){ .kind = JINJA_DICT, .dict = named });
}

/* An argument by its name; ABSENT: it was not given. */
static struct jinja_value argument_named(struct jinja_render *r, const struct jinja_arguments *args,
                                         const struct jinja_string *name, bool *taken)
{
        tdm_jinja_spend_bytes(&r->core, args->n_named, JINJA_READ);
        for (size_t i = 0; i < args->n_named; i++)
                if (tdm_jinja_string_equal(&r->core, args->named[i].name, name)) {
                        taken[i] = true;
                        return args->named[i].value;
                }
        return (struct jinja_value){ .kind = JINJA_ABSENT };
}

struct jinja_value tdm_jinja_call_macro(struct jinja_render *r, const struct jinja_macro *macro,
                                        const struct jinja_arguments *args)
{
        struct jinja_scope *scope = tdm_jinja_scope(r, macro->scope), *outer = r->scope;
        bool *taken = tdm_jinja_calloc(&r->core, args->n_named + 1);
        unsigned loop_depth = r->loop_depth;
        struct jinja_string *text;
        size_t n = 0;

        r->scope = scope;
        for (const struct jinja_node *parameter = macro->parameters; parameter; parameter = parameter->next) {
                struct jinja_value value;

                if (n < args->n)
                        value = args->values[n++];
                else
                        value = argument_named(r, args, parameter->name, taken);
                if (value.kind == JINJA_ABSENT)
                        value = parameter->child[0] ? tdm_jinja_eval(r, parameter->child[0]) :
                                                      tdm_jinja_undefined(parameter->name);
                tdm_jinja_bind(r, scope, parameter->name, value);
        }
        if (macro->caller.kind == JINJA_MACRO) {
                const struct jinja_string *caller = tdm_jinja_interned(r->template, "caller", 6);

                if (caller)
                        tdm_jinja_bind(r, scope, caller, macro->caller);
        }
        macro_bind_rest(r, scope, macro, args, n, taken);
        r->loop_depth = 0;
        text = body_capture(r, scope, macro->body);
        r->loop_depth = loop_depth;
        r->scope = outer;
        return tdm_jinja_text_value(text);
}

static struct jinja_macro *macro_new(struct jinja_render *r, const struct jinja_node *node,
                                     const struct jinja_node *parameters, const struct jinja_node *body,
                                     const struct jinja_string *name)
{
        struct jinja_macro *macro = tdm_jinja_calloc(&r->core, sizeof(*macro));

        *macro = (struct jinja_macro){
                .node = node, .parameters = parameters, .body = body, .name = name, .scope = r->scope
        };
        return macro;
}

/* {% call f(…) %}: f is called with a macro named caller, which is the block. */
static void call_block_run(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_macro *caller =
                macro_new(r, node, node->child[1], node->child[2], tdm_jinja_string_of(&r->core, "caller"));
        struct jinja_value value = { .kind = JINJA_MACRO, .macro = caller };
        struct jinja_value function = tdm_jinja_eval(r, node->child[0]->child[0]);
        struct jinja_macro *called;

        if (function.kind != JINJA_MACRO)
                tdm_jinja_fail(&r->core, "a call block calls what is no macro");
        called = tdm_jinja_alloc(&r->core, sizeof(*called));
        *called = *function.macro;
        called->caller = value;
        {
                struct jinja_node call = *node->child[0], callee = { .kind = JINJA_NODE_CONST };

                callee.value = (struct jinja_value){ .kind = JINJA_MACRO, .macro = called };
                call.child[0] = &callee;
                tdm_jinja_print(r->out, tdm_jinja_eval(r, &call));
        }
}

static enum jinja_flow scope_run(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_scope *outer = r->scope, *inner = tdm_jinja_scope(r, outer);
        enum jinja_flow flow;

        /* The values of a `with` are those outside of it. */
        for (const struct jinja_node *set = node->child[1]; set; set = set->next) {
                struct jinja_value value = tdm_jinja_eval(r, set->child[1]);

                r->scope = inner;
                target_set(r, set->child[0], value);
                r->scope = outer;
        }
        r->scope = inner;
        flow = tdm_jinja_run(r, node->child[0]);
        r->scope = outer;
        return flow;
}

static enum jinja_flow if_run(struct jinja_render *r, const struct jinja_node *node)
{
        for (const struct jinja_node *branch = node->child[0]; branch; branch = branch->next)
                if (!branch->child[0] || tdm_jinja_truth(&r->core, tdm_jinja_eval(r, branch->child[0])))
                        return tdm_jinja_run(r, branch->child[1]);
        return JINJA_FLOW_ON;
}

static void set_block_run(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value value = tdm_jinja_text_value(body_capture(r, tdm_jinja_scope(r, r->scope), node->child[2]));

        if (node->child[1])
                value = tdm_jinja_eval_filters(r, node->child[1], value);
        target_set(r, node->child[0], value);
}

static enum jinja_flow statement_run(struct jinja_render *r, const struct jinja_node *node)
{
        struct jinja_value value;

        r->core.line = node->line;
        switch (node->kind) {
        case JINJA_NODE_DATA:
                tdm_jinja_text_add_string(r->out, node->value.string);
                break;
        case JINJA_NODE_PRINT:
                value = tdm_jinja_eval(r, node->child[0]);
                r->core.line = node->line;
                tdm_jinja_print(r->out, value);
                break;
        case JINJA_NODE_IF:
                return if_run(r, node);
        case JINJA_NODE_FOR:
                for_run(r, node);
                break;
        case JINJA_NODE_SET:
                target_set(r, node->child[0], tdm_jinja_eval(r, node->child[1]));
                break;
        case JINJA_NODE_SET_BLOCK:
                set_block_run(r, node);
                break;
        case JINJA_NODE_MACRO:
                value.kind = JINJA_MACRO;
                value.macro = macro_new(r, node, node->child[0], node->child[1], node->name);
                tdm_jinja_bind(r, r->scope, node->name, value);
                break;
        case JINJA_NODE_CALL_BLOCK:
                call_block_run(r, node);
                break;
        case JINJA_NODE_FILTER_BLOCK:
                value = tdm_jinja_text_value(body_capture(r, tdm_jinja_scope(r, r->scope), node->child[1]));
                tdm_jinja_print(r->out, tdm_jinja_eval_filters(r, node->child[0], value));
                break;
        case JINJA_NODE_SCOPE:
                return scope_run(r, node);
        case JINJA_NODE_BREAK:
                return JINJA_FLOW_BREAK;
        default:
                return JINJA_FLOW_CONTINUE;
        }
        return JINJA_FLOW_ON;
}

enum jinja_flow tdm_jinja_run(struct jinja_render *r, const struct jinja_node *body)
{
        enum jinja_flow flow = JINJA_FLOW_ON;

        if (++r->depth > JINJA_MAX_DEPTH)
                tdm_jinja_fail_code(&r->core, TDM_E_TOO_LONG, "calls are nested too deeply");
        for (; body && flow == JINJA_FLOW_ON; body = body->next) {
                tdm_jinja_spend(&r->core, 1);
                flow = statement_run(r, body);
        }
        r->depth--;
        return flow;
}
