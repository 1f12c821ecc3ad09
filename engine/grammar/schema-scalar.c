/* Null, booleans, numbers and strings of a case. */
#include "engine/grammar/schema.h"
#include "engine/grammar/number.h"
#include "engine/grammar/regex.h"

static bool key_is(const struct tdm_schema *s, uint32_t node, const char *name)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);

        return n->key_size == strlen(name) && memcmp(tdm_json_key(&s->json, node), name, n->key_size) == 0;
}

/* The keyword of part i, or NONE. */
static uint32_t scalar_keyword(const struct tdm_schema *s, const struct tdm_schema_case *c, uint32_t i,
                               const char *name)
{
        return tdm_json_deref(&s->json, tdm_json_member(&s->json, c->parts[i].node, name));
}

bool tdm_schema_count(struct tdm_schema *s, uint32_t node, uint32_t *ret)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        struct tdm_decimal d;
        uint64_t value = 0;

        if (n->type != TDM_JSON_NUMBER || !tdm_decimal_parse(&d, tdm_json_text(&s->json, node), n->text_size) ||
            d.negative || !tdm_decimal_is_integer(&d)) {
                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "must be a whole number of 0 or more");
                return false;
        }
        for (int32_t i = 0; i < d.n + d.exponent && value < UINT32_MAX; i++)
                value = value * 10 + (uint64_t)(i < d.n ? d.digits[i] - '0' : 0);
        *ret = (uint32_t)TDM_MIN(value, (uint64_t)UINT32_MAX);
        return true;
}

/* ---- strings ---- */

static enum tdm_text_form text_form(const struct tdm_schema *s)
{
        return s->bare ? TDM_TEXT_RAW : TDM_TEXT_JSON;
}

static uint32_t any_char(const struct tdm_schema *s, unsigned form)
{
        return s->bare ? s->bare_char : s->g->any_char[form];
}

uint32_t tdm_schema_pattern(struct tdm_schema *s, uint32_t node, const char *pattern, size_t size)
{
        struct tdm_error err;
        uint32_t e = TDM_EXPR_NONE;
        int r = tdm_regex_expr(&s->g->arena, pattern, size, text_form(s), true, &e, NULL, &err);

        if (r > 0)
                (void)tdm_schema_fail(s, node, r, "%s", err.message);
        else if (r < 0 && !s->error)
                s->error = r;
        return e;
}

struct string_limits {
        uint32_t min, max;
        uint32_t e; /* what patterns and formats say together; UINT32_MAX: nothing */
        struct tdm_regex_info info;
};

static void meet(struct tdm_schema *s, struct string_limits *l, uint32_t e, const struct tdm_regex_info *info)
{
        if (l->e == UINT32_MAX) {
                l->e = e;
                l->info = *info;
                return;
        }
        l->e = tdm_expr_and(&s->g->arena, l->e, e);
        l->info.min_chars = TDM_MAX(l->info.min_chars, info->min_chars);
        l->info.max_chars = TDM_MIN(l->info.max_chars, info->max_chars);
}

static void meet_regex(struct tdm_schema *s, struct string_limits *l, uint32_t node, const char *pattern, size_t size,
                       bool search, bool negated)
{
        struct tdm_regex_info info = { 0, TDM_EXPR_INF };
        struct tdm_error err;
        uint32_t e;
        int r = tdm_regex_expr(&s->g->arena, pattern, size, text_form(s), search, &e, &info, &err);

        if (r > 0) {
                (void)tdm_schema_fail(s, node, r, "%s", err.message);
        } else if (r < 0) {
                s->error = s->error ? s->error : r;
        } else if (negated) {
                info = (struct tdm_regex_info){ 0, TDM_EXPR_INF };
                e = tdm_expr_and(&s->g->arena, tdm_expr_not(&s->g->arena, e),
                                 tdm_expr_rep(&s->g->arena, any_char(s, 1), 0, TDM_EXPR_INF));
                meet(s, l, e, &info);
        } else {
                meet(s, l, e, &info);
        }
}

static void meet_format(struct tdm_schema *s, struct string_limits *l, uint32_t node, bool negated)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        const char *pattern;
        bool held;

        if (n->type != TDM_JSON_STRING)
                return;
        pattern = tdm_format_pattern(tdm_json_text(&s->json, node), n->text_size, &held);
        if (!held)
                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "the format '%.*s' is not held",
                                      (int)TDM_MIN(n->text_size, 60u), tdm_json_text(&s->json, node));
        else if (pattern)
                meet_regex(s, l, node, pattern, strlen(pattern), true, negated);
        else if (negated) /* a remark takes everything, so its negation takes nothing */
                l->e = TDM_EXPR_NONE;
}

static void string_keywords(struct tdm_schema *s, const struct tdm_schema_case *c, struct string_limits *l)
{
        for (uint32_t i = 0; i < c->n && !s->error; i++) {
                for (uint32_t k = tdm_json_get(&s->json, c->parts[i].node)->first; k != TDM_JSON_NONE && !s->error;
                     k = tdm_json_get(&s->json, k)->next) {
                        const struct tdm_json_node *n = tdm_json_get(&s->json, k);
                        uint32_t count;

                        if (key_is(s, k, "minLength")) {
                                if (tdm_schema_count(s, k, &count))
                                        l->min = TDM_MAX(l->min, count);
                        } else if (key_is(s, k, "maxLength")) {
                                if (tdm_schema_count(s, k, &count))
                                        l->max = TDM_MIN(l->max, count);
                        } else if (key_is(s, k, "pattern") || key_is(s, k, "\1notPattern")) {
                                if (n->type != TDM_JSON_STRING)
                                        (void)tdm_schema_fail(s, k, TDM_E_BAD_REQUEST, "a pattern must be a string");
                                else
                                        meet_regex(s, l, k, tdm_json_text(&s->json, k), n->text_size, true,
                                                   key_is(s, k, "\1notPattern"));
                        } else if (key_is(s, k, "format") || key_is(s, k, "\1notFormat")) {
                                meet_format(s, l, k, key_is(s, k, "\1notFormat"));
                        }
                }
        }
}

/* All strings in a list of values, as texts. */
static uint32_t strings_of(struct tdm_schema *s, uint32_t list)
{
        uint32_t n = tdm_json_get(&s->json, list)->n, k = 0, e;
        struct tdm_schema_text *texts = malloc((n + 1) * sizeof(*texts));

        if (!texts) {
                s->error = s->error ? s->error : -ENOMEM;
                return TDM_EXPR_NONE;
        }
        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                if (tdm_json_get(&s->json, i)->type == TDM_JSON_STRING)
                        texts[k++] = (struct tdm_schema_text){ tdm_json_text(&s->json, i),
                                                               tdm_json_get(&s->json, i)->text_size };
        e = tdm_schema_texts(s, texts, k);
        free(texts);
        return e;
}

/* UINT32_MAX: any text (then min and max are all there is to keep). */
static uint32_t content(struct tdm_schema *s, const struct tdm_schema_case *c, struct string_limits *l)
{
        struct tdm_arena *arena = &s->g->arena;
        uint32_t any = any_char(s, 1), list, texts;

        *l = (struct string_limits){ 0, TDM_EXPR_INF, UINT32_MAX, { 0, TDM_EXPR_INF } };
        string_keywords(s, c, l);
        if (l->min > l->max)
                return TDM_EXPR_NONE;
        for (uint32_t i = 0; i < c->n && !s->error; i++) {
                list = scalar_keyword(s, c, i, "\1notEnum");
                if (list == TDM_JSON_NONE)
                        continue;
                texts = strings_of(s, list);
                if (texts == TDM_EXPR_NONE)
                        continue;
                if (l->e == UINT32_MAX)
                        l->e = tdm_expr_rep(arena, any, 0, TDM_EXPR_INF);
                l->e = tdm_expr_and(arena, l->e, tdm_expr_not(arena, texts));
        }
        if (s->error)
                return TDM_EXPR_NONE;
        if (l->e == UINT32_MAX)
                return UINT32_MAX;
        if (l->min > l->info.min_chars || l->max < l->info.max_chars)
                l->e = tdm_expr_and(arena, l->e, tdm_expr_rep(arena, any, l->min, l->max));
        return tdm_expr_alive(arena, l->e) ? l->e : TDM_EXPR_NONE;
}

uint32_t tdm_schema_string_content(struct tdm_schema *s, const struct tdm_schema_case *c)
{
        struct string_limits l;
        uint32_t e = content(s, c, &l);

        return e == UINT32_MAX ? tdm_expr_rep(&s->g->arena, any_char(s, 1), l.min, l.max) : e;
}

static uint32_t quoted(struct tdm_schema *s, uint32_t e)
{
        struct tdm_arena *arena = &s->g->arena;
        uint32_t quote = tdm_expr_text(arena, "\"");

        if (s->bare)
                return s->bare_filter == TDM_EXPR_NONE ? e : tdm_expr_and(arena, e, s->bare_filter);
        return tdm_expr_cat3(arena, quote, e, quote);
}

static uint32_t strings(struct tdm_schema *s, const struct tdm_schema_case *c)
{
        struct string_limits l;
        uint32_t e = content(s, c, &l);

        if (e == UINT32_MAX)
                e = tdm_expr_rep(&s->g->arena, any_char(s, 0), l.min, l.max);
        return e == TDM_EXPR_NONE ? e : quoted(s, e);
}

/* ---- numbers ---- */

static bool decimal_of(struct tdm_schema *s, uint32_t node, struct tdm_decimal *d)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);

        if (n->type != TDM_JSON_NUMBER)
                (void)tdm_schema_fail(s, node, TDM_E_BAD_REQUEST, "must be a number");
        else if (!tdm_decimal_parse(d, tdm_json_text(&s->json, node), n->text_size))
                (void)tdm_schema_fail(s, node, TDM_E_UNSUPPORTED, "a number of so many digits is not held");
        return !s->error;
}

static void raise_low(struct tdm_number_range *r, const struct tdm_decimal *d, bool open)
{
        int k = r->has_low ? tdm_decimal_compare(d, &r->low) : 1;

        if (k > 0) {
                r->low = *d;
                r->low_open = open;
        } else if (k == 0) {
                r->low_open |= open;
        }
        r->has_low = true;
}

static void lower_high(struct tdm_number_range *r, const struct tdm_decimal *d, bool open)
{
        int k = r->has_high ? tdm_decimal_compare(d, &r->high) : -1;

        if (k < 0) {
                r->high = *d;
                r->high_open = open;
        } else if (k == 0) {
                r->high_open |= open;
        }
        r->has_high = true;
}

static void number_keyword(struct tdm_schema *s, uint32_t owner, uint32_t k, struct tdm_number_range *r)
{
        bool low = key_is(s, k, "minimum"), high = key_is(s, k, "maximum");
        bool low_open = key_is(s, k, "exclusiveMinimum"), high_open = key_is(s, k, "exclusiveMaximum");
        struct tdm_decimal d;
        uint32_t open;

        if (low || high) {
                if (!decimal_of(s, k, &d))
                        return;
                /* Draft 4 has a boolean beside the bound. */
                open = tdm_json_member(&s->json, owner, low ? "exclusiveMinimum" : "exclusiveMaximum");
                if (low)
                        raise_low(r, &d, open != TDM_JSON_NONE && tdm_json_get(&s->json, open)->type == TDM_JSON_TRUE);
                else
                        lower_high(r, &d, open != TDM_JSON_NONE && tdm_json_get(&s->json, open)->type == TDM_JSON_TRUE);
        } else if (low_open || high_open) {
                uint8_t type = tdm_json_get(&s->json, k)->type;

                if (type == TDM_JSON_TRUE || type == TDM_JSON_FALSE || !decimal_of(s, k, &d))
                        return;
                if (low_open)
                        raise_low(r, &d, true);
                else
                        lower_high(r, &d, true);
        } else if (key_is(s, k, "multipleOf")) {
                if (!decimal_of(s, k, &d))
                        return;
                if (d.n == 0 || d.negative) {
                        (void)tdm_schema_fail(s, k, TDM_E_BAD_REQUEST, "must be more than 0");
                        return;
                }
                for (unsigned i = 0; i < r->n_multiples; i++)
                        if (tdm_decimal_compare(&d, &r->multiples[i]) == 0)
                                return;
                if (r->n_multiples == TDM_NUMBER_MULTIPLES_MAX)
                        (void)tdm_schema_fail(s, k, TDM_E_UNSUPPORTED, "so many multipleOf together are not held");
                else
                        r->multiples[r->n_multiples++] = d;
        }
}

static void number_keywords(struct tdm_schema *s, const struct tdm_schema_case *c, struct tdm_number_range *r)
{
        for (uint32_t i = 0; i < c->n && !s->error; i++)
                for (uint32_t k = tdm_json_get(&s->json, c->parts[i].node)->first; k != TDM_JSON_NONE && !s->error;
                     k = tdm_json_get(&s->json, k)->next)
                        number_keyword(s, c->parts[i].node, k, r);
}

/* A number's text forms: without an exponent, with one, and as it stands. */
static uint32_t number_texts(struct tdm_schema *s, uint32_t node)
{
        const struct tdm_json_node *n = tdm_json_get(&s->json, node);
        struct tdm_arena *arena = &s->g->arena;
        uint32_t e = tdm_expr_literal(arena, tdm_json_text(&s->json, node), n->text_size);
        struct tdm_decimal d;
        char text[512];

        if (!tdm_decimal_parse(&d, tdm_json_text(&s->json, node), n->text_size))
                return e;
        if (tdm_decimal_print(&d, text, 64) > 0)
                e = tdm_expr_alt(arena, tdm_expr_text(arena, text), e);
        else if (tdm_decimal_print_exponent(&d, text, sizeof(text)) > 0)
                e = tdm_expr_alt(arena, tdm_expr_text(arena, text), e);
        return e;
}

static uint32_t numbers(struct tdm_schema *s, const struct tdm_schema_case *c)
{
        struct tdm_arena *arena = &s->g->arena;
        struct tdm_number_range *r = calloc(1, sizeof(*r));
        const char *why = NULL;
        uint32_t e = TDM_EXPR_NONE, list, digits;

        if (!r) {
                s->error = s->error ? s->error : -ENOMEM;
                return e;
        }
        r->integer = !(c->types & TDM_SCHEMA_FRACTION);
        number_keywords(s, c, r);
        for (uint32_t i = 0; i < c->n; i++) /* a number that is left out must have few forms */
                r->no_exponent |= scalar_keyword(s, c, i, "\1notEnum") != TDM_JSON_NONE;
        if (!s->error)
                e = tdm_number_expr(arena, r, &why);
        if (why)
                (void)tdm_schema_fail(s, c->n > 0 ? c->parts[0].node : 0, TDM_E_UNSUPPORTED, "%s", why);
        for (uint32_t i = 0; i < c->n && !s->error && e != TDM_EXPR_NONE; i++) {
                list = scalar_keyword(s, c, i, "\1notEnum");
                if (list == TDM_JSON_NONE)
                        continue;
                for (uint32_t k = tdm_json_get(&s->json, list)->first; k != TDM_JSON_NONE;
                     k = tdm_json_get(&s->json, k)->next) {
                        struct tdm_decimal d;

                        if (tdm_json_get(&s->json, k)->type == TDM_JSON_NUMBER && decimal_of(s, k, &d))
                                e = tdm_expr_and(arena, e, tdm_expr_not(arena, tdm_number_equal(arena, &d)));
                }
        }
        if (!(c->types & TDM_SCHEMA_INTEGER) && e != TDM_EXPR_NONE) {
                digits = tdm_expr_rep(arena, tdm_expr_range(arena, '0', '9'), 0, TDM_EXPR_INF);
                digits = tdm_expr_cat3(arena, digits, tdm_expr_range(arena, '1', '9'), digits);
                digits = tdm_expr_cat(arena, tdm_expr_text(arena, "."), digits);
                digits = tdm_expr_cat(arena, tdm_expr_rep(arena, tdm_expr_range(arena, '0', '9'), 1, TDM_EXPR_INF),
                                      digits);
                digits = tdm_expr_cat(arena, tdm_expr_opt(arena, tdm_expr_text(arena, "-")), digits);
                e = tdm_expr_and(arena, e, digits);
        }
        free(r);
        return !s->error && tdm_expr_alive(arena, e) ? e : TDM_EXPR_NONE;
}

/* ---- constants ---- */

static bool contains(const struct tdm_schema *s, uint32_t list, uint32_t value)
{
        for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE; i = tdm_json_get(&s->json, i)->next)
                if (tdm_json_equal(&s->json, i, value))
                        return true;
        return false;
}

/* Whether the constants of all parts let the value through. source: the list that it is from. */
static bool is_constant(struct tdm_schema *s, const struct tdm_schema_case *c, uint32_t value, uint32_t source)
{
        for (uint32_t i = 0; i < c->n; i++) {
                uint32_t list = scalar_keyword(s, c, i, "enum"), one = scalar_keyword(s, c, i, "const"),
                         no = scalar_keyword(s, c, i, "\1notEnum");

                if (list == source)
                        list = TDM_JSON_NONE;
                s->g->arena.steps += list != TDM_JSON_NONE ? tdm_json_get(&s->json, list)->n : 4;
                if (s->g->arena.steps > s->g->arena.max_steps)
                        s->g->arena.failed = true;
                if (s->g->arena.failed)
                        return false;
                if ((list != TDM_JSON_NONE && !contains(s, list, value)) ||
                    (one != TDM_JSON_NONE && !tdm_json_equal(&s->json, one, value)) ||
                    (no != TDM_JSON_NONE && contains(s, no, value)))
                        return false;
        }
        return true;
}

static bool takes(struct tdm_schema *s, uint32_t constraint, uint32_t text)
{
        return tdm_expr_alive(&s->g->arena, tdm_expr_and(&s->g->arena, constraint, text));
}

struct constants {
        struct tdm_schema *s;
        const struct tdm_schema_case *c;
        uint32_t source;
        struct string_limits limits;
        uint32_t string_content, number_expr; /* UINT32_MAX: not made yet, or any */
        bool string_known, number_known;
        struct tdm_schema_text *texts;
        uint32_t n_texts, capacity;
        uint32_t e;
};

static void add_constant(struct constants *x, uint32_t value)
{
        struct tdm_schema *s = x->s;
        struct tdm_arena *arena = &s->g->arena;
        const struct tdm_json_node *n = tdm_json_get(&s->json, value);
        uint8_t types = x->c->types;
        uint32_t e;

        switch (n->type) {
        case TDM_JSON_NULL:
        case TDM_JSON_FALSE:
        case TDM_JSON_TRUE:
                if (!(types & (n->type == TDM_JSON_NULL  ? TDM_SCHEMA_NULL :
                               n->type == TDM_JSON_FALSE ? TDM_SCHEMA_FALSE :
                                                           TDM_SCHEMA_TRUE)) ||
                    !is_constant(s, x->c, value, x->source))
                        return;
                e = tdm_expr_text(arena, n->type == TDM_JSON_NULL  ? "null" :
                                         n->type == TDM_JSON_FALSE ? "false" :
                                                                     "true");
                x->e = tdm_expr_alt(arena, e, x->e);
                return;
        case TDM_JSON_NUMBER:
                if (!(types & (TDM_SCHEMA_INTEGER | TDM_SCHEMA_FRACTION)) || !is_constant(s, x->c, value, x->source))
                        return;
                if (!x->number_known)
                        x->number_expr = numbers(s, x->c);
                x->number_known = true;
                e = number_texts(s, value);
                if (x->number_expr != TDM_EXPR_NONE && takes(s, x->number_expr, e))
                        x->e = tdm_expr_alt(arena, e, x->e);
                return;
        case TDM_JSON_STRING:
                if (!(types & TDM_SCHEMA_STRING) || !is_constant(s, x->c, value, x->source))
                        return;
                if (!x->string_known)
                        x->string_content = content(s, x->c, &x->limits);
                x->string_known = true;
                if (x->string_content != UINT32_MAX || x->limits.min > 0 || x->limits.max < TDM_EXPR_INF) {
                        struct tdm_schema_text text = { tdm_json_text(&s->json, value), n->text_size };

                        if (x->string_content == UINT32_MAX)
                                x->string_content = tdm_expr_rep(arena, any_char(s, 1), x->limits.min, x->limits.max);
                        if (!takes(s, x->string_content, tdm_schema_texts(s, &text, 1)))
                                return;
                }
                if (x->n_texts == x->capacity) {
                        uint32_t capacity = TDM_MAX(x->capacity * 2, 16u);
                        struct tdm_schema_text *texts = realloc(x->texts, capacity * sizeof(*texts));

                        if (!texts) {
                                s->error = s->error ? s->error : -ENOMEM;
                                return;
                        }
                        x->texts = texts;
                        x->capacity = capacity;
                }
                x->texts[x->n_texts++] = (struct tdm_schema_text){ tdm_json_text(&s->json, value), n->text_size };
                return;
        default:
                return; /* arrays and objects became schemas of their own */
        }
}

static uint32_t constants(struct tdm_schema *s, const struct tdm_schema_case *c, uint32_t list)
{
        struct constants x = { .s = s, .c = c, .source = list, .e = TDM_EXPR_NONE };

        if (tdm_json_get(&s->json, list)->type == TDM_JSON_ARRAY)
                for (uint32_t i = tdm_json_get(&s->json, list)->first; i != TDM_JSON_NONE && !s->error;
                     i = tdm_json_get(&s->json, i)->next)
                        add_constant(&x, i);
        if (x.n_texts > 0 && !s->error)
                x.e = tdm_expr_alt(&s->g->arena, quoted(s, tdm_schema_texts(s, x.texts, x.n_texts)), x.e);
        free(x.texts);
        return x.e;
}

uint32_t tdm_schema_scalars(struct tdm_schema *s, const struct tdm_schema_case *c)
{
        struct tdm_arena *arena = &s->g->arena;
        uint32_t e = TDM_EXPR_NONE, list, one;

        for (uint32_t i = 0; i < c->n; i++) {
                one = scalar_keyword(s, c, i, "const");
                list = scalar_keyword(s, c, i, "enum");
                if (one != TDM_JSON_NONE) {
                        struct constants x = { .s = s, .c = c, .source = TDM_JSON_NONE, .e = TDM_EXPR_NONE };

                        add_constant(&x, one);
                        if (x.n_texts > 0 && !s->error)
                                x.e = quoted(s, tdm_schema_texts(s, x.texts, x.n_texts));
                        free(x.texts);
                        return x.e;
                }
                if (list != TDM_JSON_NONE)
                        return constants(s, c, list);
        }
        for (unsigned k = 0; k < 3; k++) {
                static const char *const words[] = { "null", "false", "true" };
                static const enum tdm_json_type types[] = { TDM_JSON_NULL, TDM_JSON_FALSE, TDM_JSON_TRUE };
                bool out = !(c->types & (TDM_SCHEMA_NULL << k));

                for (uint32_t i = 0; i < c->n && !out; i++) {
                        list = scalar_keyword(s, c, i, "\1notEnum");
                        for (one = list == TDM_JSON_NONE ? list : tdm_json_get(&s->json, list)->first;
                             one != TDM_JSON_NONE; one = tdm_json_get(&s->json, one)->next)
                                out |= tdm_json_get(&s->json, one)->type == types[k];
                }
                if (!out)
                        e = tdm_expr_alt(arena, tdm_expr_text(arena, words[k]), e);
        }
        if (c->types & (TDM_SCHEMA_INTEGER | TDM_SCHEMA_FRACTION))
                e = tdm_expr_alt(arena, numbers(s, c), e);
        if (c->types & TDM_SCHEMA_STRING)
                e = tdm_expr_alt(arena, strings(s, c), e);
        return e;
}
