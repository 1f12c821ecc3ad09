/* schema-check: whether a grammar has a text for a JSON value.
 *
 * The value is written piece by piece through the parser. A value has many texts: members of an object are tried in
 * each order that the schema gives them (free members behind the declared ones), numbers in the forms that the
 * grammar may hold. So there is not one state but a few, and the value is taken where one of them is left at the
 * end. White space does not matter: it may always be left out. */
#include "engine/grammar/json.h"
#include "engine/grammar/number.h"
#include "engine/grammar/parser.h"

enum { STATES_MAX = 32, ORDERS_MAX = 64, STEPS_MAX = 400000000, DEPTH_MAX = 500 };

struct states {
        uint32_t items[STATES_MAX];
        unsigned n;
};

struct check {
        const struct tdm_grammar *g;
        struct tdm_parser parser;
        struct tdm_json json;
        uint32_t furthest; /* the last node, in the order of the text, behind which no state was left */
        bool failed;
};

static void states_add(struct states *to, uint32_t state)
{
        if (state == TDM_STATE_DEAD)
                return;
        for (unsigned i = 0; i < to->n; i++)
                if (to->items[i] == state)
                        return;
        if (to->n < STATES_MAX)
                to->items[to->n++] = state;
}

static void check_put_text(struct check *c, const struct states *from, const char *text, size_t size, struct states *to)
{
        for (unsigned i = 0; i < from->n; i++) {
                uint32_t state = from->items[i];

                for (size_t k = 0; k < size && state != TDM_STATE_DEAD; k++)
                        state = tdm_parser_step(&c->parser, state, (uint8_t)text[k]);
                states_add(to, state);
        }
        c->failed |= c->parser.arena.failed;
}

static void put_string(struct check *c, const struct states *from, const char *text, size_t size, struct states *to)
{
        struct tdm_json_buffer b = { 0 };

        tdm_json_write_string(&b, text, size);
        if (b.failed)
                c->failed = true;
        else
                check_put_text(c, from, b.data, b.size, to);
        free(b.data);
}

static void value(struct check *c, uint32_t node, const struct states *from, struct states *to);

static void number(struct check *c, uint32_t node, const struct states *from, struct states *to)
{
        const struct tdm_json_node *n = tdm_json_get(&c->json, node);
        struct tdm_decimal d;
        char text[2100];
        size_t size;
        bool fraction = false;

        check_put_text(c, from, c->json.text + n->text, n->text_size, to);
        if (!tdm_decimal_parse(&d, c->json.text + n->text, n->text_size))
                return;
        size = tdm_decimal_print(&d, text, sizeof(text) - 2);
        if (size == 0)
                return;
        for (uint32_t i = 0; i < n->text_size && !fraction; i++)
                fraction = strchr(".eE", c->json.text[n->text + i]);
        if (c->g->strict_integers && tdm_decimal_is_integer(&d) && fraction) { /* 1.0 stays apart from 1 */
                memcpy(text + size, ".0", 2);
                size += 2;
        }
        check_put_text(c, from, text, size, to);
        size = tdm_decimal_print_exponent(&d, text, sizeof(text));
        if (size > 0)
                check_put_text(c, from, text, size, to);
}

static void array(struct check *c, uint32_t node, const struct states *from, struct states *to)
{
        struct states at = { 0 }, next;

        check_put_text(c, from, "[", 1, &at);
        for (uint32_t i = tdm_json_get(&c->json, node)->first; i != TDM_JSON_NONE && at.n > 0 && !c->failed;
             i = tdm_json_get(&c->json, i)->next) {
                if (i != tdm_json_get(&c->json, node)->first) {
                        next.n = 0;
                        check_put_text(c, &at, ",", 1, &next);
                        at = next;
                }
                next.n = 0;
                value(c, i, &at, &next);
                at = next;
        }
        check_put_text(c, &at, "]", 1, to);
}

static void members(struct check *c, const uint32_t *order, uint32_t n, const struct states *from, struct states *to)
{
        struct states at = { 0 }, next;

        check_put_text(c, from, "{", 1, &at);
        for (uint32_t i = 0; i < n && at.n > 0 && !c->failed; i++) {
                const struct tdm_json_node *member = tdm_json_get(&c->json, order[i]);

                if (i > 0) {
                        next.n = 0;
                        check_put_text(c, &at, ",", 1, &next);
                        at = next;
                }
                next.n = 0;
                put_string(c, &at, c->json.text + member->key, member->key_size, &next);
                at.n = 0;
                check_put_text(c, &next, ":", 1, &at);
                if (at.n == 0 && order[i] > c->furthest)
                        c->furthest = order[i];
                next.n = 0;
                value(c, order[i], &at, &next);
                at = next;
        }
        check_put_text(c, &at, "}", 1, to);
}

static void object(struct check *c, uint32_t node, const struct states *from, struct states *to)
{
        const struct tdm_grammar *g = c->g;
        uint32_t n = tdm_json_get(&c->json, node)->n, k, n_orders = 0;
        uint32_t *orders = malloc(((size_t)n * (ORDERS_MAX + 1) + 1) * sizeof(*orders));
        bool *used = calloc(n + 1, sizeof(*used));

        if (!orders || !used) {
                c->failed = true;
                goto out;
        }
        for (uint32_t o = 0; o <= g->n_orders && n_orders < ORDERS_MAX; o++) {
                uint32_t *order = orders + (size_t)n * n_orders;
                bool known = false, any = o == g->n_orders;

                /* The schema's names first, then the others; at last the instance's own order. */
                memset(used, 0, n * sizeof(*used));
                k = 0;
                for (uint32_t i = 0; o < g->n_orders && i < g->orders[o].n; i++) {
                        const struct tdm_name *name = &g->names[g->orders[o].at + i];
                        uint32_t member = tdm_json_find(&c->json, node, g->name_bytes + name->at, name->size);

                        if (member == TDM_JSON_NONE)
                                continue;
                        order[k++] = member;
                        any = true;
                }
                if (!any)
                        continue;
                {
                        uint32_t declared = k;

                        for (uint32_t i = tdm_json_get(&c->json, node)->first; i != TDM_JSON_NONE;
                             i = tdm_json_get(&c->json, i)->next) {
                                bool there = false;

                                for (uint32_t m = 0; m < declared && !there; m++)
                                        there = order[m] == i;
                                if (!there)
                                        order[k++] = i;
                        }
                }
                for (uint32_t i = 0; i < n_orders && !known; i++)
                        known = memcmp(orders + (size_t)n * i, order, n * sizeof(*order)) == 0;
                if (known)
                        continue;
                n_orders++;
                members(c, order, n, from, to);
        }
out:
        free(orders);
        free(used);
}

static void value(struct check *c, uint32_t node, const struct states *from, struct states *to)
{
        static const char *const words[] = { "null", "false", "true" };
        const struct tdm_json_node *n = tdm_json_get(&c->json, node);

        if (from->n == 0 || c->failed)
                return;
        switch (n->type) {
        case TDM_JSON_NUMBER:
                number(c, node, from, to);
                break;
        case TDM_JSON_STRING:
                put_string(c, from, c->json.text + n->text, n->text_size, to);
                break;
        case TDM_JSON_ARRAY:
                array(c, node, from, to);
                break;
        case TDM_JSON_OBJECT:
                object(c, node, from, to);
                break;
        default:
                check_put_text(c, from, words[n->type], strlen(words[n->type]), to);
        }
        if (to->n == 0 && node > c->furthest)
                c->furthest = node;
}

int tdm_grammar_takes_instance(struct tdm_grammar *grammar, const char *instance, size_t size, char *why,
                               size_t why_size, struct tdm_error *err)
{
        struct check c = { .g = grammar };
        struct states from = { 0 }, to = { 0 };
        char pointer[256];
        int r = tdm_json_parse(&c.json, instance, size, DEPTH_MAX, err);
        bool taken = false;

        if (r)
                return r;
        r = tdm_parser_init(&c.parser, grammar);
        if (r != 0) {
                tdm_json_deinit(&c.json);
                return r < 0 ? r :
                               tdm_error_set(err, r,
                                             "the schema takes more work or memory for the start of a text "
                                             "than the limit");
        }
        c.parser.arena.limit = UINT32_MAX / 4;
        c.parser.arena.steps = 0;
        c.parser.arena.max_steps = STEPS_MAX;
        states_add(&from, c.parser.start);
        value(&c, 0, &from, &to);
        for (unsigned i = 0; i < to.n; i++)
                taken |= c.parser.states[to.items[i]].whole;
        if (why && why_size > 0) {
                why[0] = 0;
                if (!taken)
                        snprintf(why, why_size, "the instance, at %s, is not what the schema takes",
                                 tdm_json_pointer(&c.json, c.furthest, pointer, sizeof(pointer)));
        }
        tdm_parser_deinit(&c.parser);
        tdm_json_deinit(&c.json);
        if (c.failed)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the instance takes more steps or memory than the limit");
        return taken;
}

int tdm_schema_check_line(const char *line, size_t size, char **ret_line)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *grammar = NULL;
        struct tdm_json json = { 0 };
        struct tdm_json_buffer schema = { 0 }, instance = { 0 }, out = { 0 };
        struct tdm_error err = { 0 };
        uint32_t id = TDM_JSON_NONE, s = TDM_JSON_NONE, i = TDM_JSON_NONE;
        char why[400] = "";
        const char *verdict = "unsupported";
        bool nothing = false;
        int r = tdm_json_parse(&json, line, size, DEPTH_MAX, &err);

        if (r == 0) {
                id = tdm_json_member(&json, 0, "id");
                s = tdm_json_member(&json, 0, "schema");
                i = tdm_json_member(&json, 0, "instance");
                if (s == TDM_JSON_NONE || i == TDM_JSON_NONE)
                        r = tdm_error_set(&err, TDM_E_BAD_REQUEST, "a line has the members id, schema and instance");
        }
        if (r == 0) {
                tdm_json_print(&json, s, &schema);
                tdm_json_print(&json, i, &instance);
                r = schema.failed || instance.failed ?
                            -ENOMEM :
                            tdm_grammar_compile_schema(&grammar, schema.data, schema.size, 0, NULL, &nothing, &err);
                if (r && nothing) /* a schema that takes nothing rejects everything */
                        verdict = "reject";
        }
        if (r == 0) {
                r = tdm_grammar_takes_instance(grammar, instance.data, instance.size, why, sizeof(why), &err);
                if (r == 0 || (r == 1 && !err.code))
                        verdict = r ? "accept" : "reject";
        }
        tdm_json_write(&out, "{\"id\":", 6);
        if (id != TDM_JSON_NONE)
                tdm_json_print(&json, id, &out);
        else
                tdm_json_write(&out, "null", 4);
        tdm_json_write(&out, ",\"verdict\":\"", 12);
        tdm_json_write(&out, verdict, strlen(verdict));
        tdm_json_write(&out, "\",\"why\":", 8);
        if (err.code)
                tdm_json_write_string(&out, err.message, strlen(err.message));
        else
                tdm_json_write_string(&out, why, strlen(why));
        tdm_json_write(&out, "}", 2); /* with its NUL */
        tdm_json_deinit(&json);
        free(schema.data);
        free(instance.data);
        if (out.failed || r == -ENOMEM) {
                free(out.data);
                return -ENOMEM;
        }
        *ret_line = out.data;
        return 0;
}
