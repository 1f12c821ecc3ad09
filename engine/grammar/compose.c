/* See compose.h: the builders of expressions and the compiler of schemas, over one grammar. */
#include "engine/grammar/compose.h"
#include "engine/grammar/chars.h"
#include "engine/grammar/grammar-private.h"
#include "engine/grammar/regex.h"

struct tdm_composer {
        struct tdm_grammar *g;
        uint32_t any_text; /* well-formed UTF-8 */
        uint32_t any_bytes;
        uint32_t blanks; /* any white space of JSON */
};

int tdm_composer_new(struct tdm_composer **ret, const struct tdm_grammar_limits *limits)
{
        _cleanup_(tdm_composer_destroyp) struct tdm_composer *c = calloc(1, sizeof(*c));
        struct tdm_byte_set bytes = { 0 }, blank = { 0 };
        struct tdm_chars all = { 0 };
        struct tdm_arena *arena;
        int r = c ? tdm_grammar_new(&c->g, limits) : -ENOMEM;

        if (r < 0)
                return r;
        arena = &c->g->arena;
        tdm_chars_add(&all, 0, 0x10ffff);
        c->any_text = tdm_expr_rep(arena, tdm_chars_expr(arena, &all, TDM_TEXT_RAW), 0, TDM_EXPR_INF);
        tdm_byte_set_add(&bytes, 0, 255);
        c->any_bytes = tdm_expr_rep(arena, tdm_expr_bytes(arena, &bytes), 0, TDM_EXPR_INF);
        tdm_byte_set_add(&blank, ' ', ' ');
        tdm_byte_set_add(&blank, '\t', '\n');
        tdm_byte_set_add(&blank, '\r', '\r');
        c->blanks = tdm_expr_rep(arena, tdm_expr_bytes(arena, &blank), 0, TDM_EXPR_INF);
        r = all.failed || arena->failed ? -ENOMEM : 0;
        tdm_chars_deinit(&all);
        if (r < 0)
                return r;
        *ret = steal_ptr(&c);
        return 0;
}

void tdm_composer_destroy(struct tdm_composer *c)
{
        if (!c)
                return;
        tdm_grammar_unref(c->g);
        free(c);
}

void tdm_composer_destroyp(struct tdm_composer **c)
{
        tdm_composer_destroy(*c);
}

uint32_t tdm_composer_text(struct tdm_composer *c, const char *text, size_t size)
{
        return tdm_expr_literal(&c->g->arena, text, size);
}

uint32_t tdm_composer_string(struct tdm_composer *c, const char *text)
{
        return tdm_composer_text(c, text, strlen(text));
}

uint32_t tdm_composer_space(struct tdm_composer *c)
{
        return tdm_grammar_space(c->g);
}

uint32_t tdm_composer_free_text(struct tdm_composer *c, const char *const *without, size_t n_without)
{
        struct tdm_arena *arena = &c->g->arena;
        uint32_t bad = TDM_EXPR_NONE;

        for (size_t i = 0; i < n_without; i++)
                bad = tdm_expr_alt(arena, bad,
                                   tdm_expr_cat3(arena, c->any_bytes, tdm_expr_text(arena, without[i]), c->any_bytes));
        return bad == TDM_EXPR_NONE ? c->any_text : tdm_expr_and(arena, c->any_text, tdm_expr_not(arena, bad));
}

uint32_t tdm_composer_free_text_not_from(struct tdm_composer *c, const char *const *marks, size_t n_marks)
{
        struct tdm_arena *arena = &c->g->arena;
        uint32_t bad = c->any_bytes;

        for (size_t i = n_marks; i-- > 0;)
                bad = tdm_expr_cat3(arena, c->blanks, tdm_expr_text(arena, marks[i]), bad);
        return tdm_expr_and(arena, c->any_text, tdm_expr_not(arena, bad));
}

uint32_t tdm_composer_alphanumerics(struct tdm_composer *c, uint32_t n)
{
        struct tdm_byte_set set = { 0 };

        tdm_byte_set_add(&set, 'a', 'z');
        tdm_byte_set_add(&set, 'A', 'Z');
        tdm_byte_set_add(&set, '0', '9');
        return tdm_expr_rep(&c->g->arena, tdm_expr_bytes(&c->g->arena, &set), n, n);
}

uint32_t tdm_composer_cat(struct tdm_composer *c, uint32_t a, uint32_t b)
{
        return tdm_expr_cat(&c->g->arena, a, b);
}

uint32_t tdm_composer_alt(struct tdm_composer *c, uint32_t a, uint32_t b)
{
        return tdm_expr_alt(&c->g->arena, a, b);
}

uint32_t tdm_composer_rep(struct tdm_composer *c, uint32_t part, uint32_t min, uint32_t max)
{
        return tdm_expr_rep(&c->g->arena, part, min, max);
}

int tdm_composer_object(struct tdm_composer *c, const char *source, size_t size, uint32_t *ret_part,
                        struct tdm_error *err)
{
        return tdm_grammar_add_schema(c->g, source, size, TDM_GRAMMAR_OBJECT, ret_part, err);
}

/* Texts that a reader takes for a number, a word or the beginning of an array or object. */
static uint32_t json_looks(struct tdm_composer *c)
{
        static const char pattern[] =
                "^\\s*([\\[{][\\s\\S]*|null|true|false|None|True|False|-?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?)\\s*$";
        struct tdm_regex_info info;
        struct tdm_error err;
        uint32_t e = TDM_EXPR_NONE;

        if (tdm_regex_expr(&c->g->arena, pattern, sizeof(pattern) - 1, TDM_TEXT_RAW, true, &e, &info, &err) != 0)
                c->g->arena.failed = true;
        return e;
}

int tdm_composer_value(struct tdm_composer *c, const char *source, size_t size, const struct tdm_composer_value *value,
                       uint32_t *ret_part, struct tdm_error *err)
{
        struct tdm_grammar_value v = { .path = value->path,
                                       .n_path = value->n_path,
                                       .types = value->types,
                                       .n_types = value->n_types,
                                       .bare = value->bare };

        if (value->bare) {
                v.filter = tdm_composer_free_text(c, &value->without, value->without ? 1 : 0);
                if (value->no_json)
                        v.filter = tdm_expr_and(&c->g->arena, v.filter, tdm_expr_not(&c->g->arena, json_looks(c)));
        }
        return tdm_grammar_add_value(c->g, source, size, &v, ret_part, err);
}

int tdm_composer_schema(struct tdm_composer *c, const char *source, size_t size, uint32_t *ret_part,
                        struct tdm_error *err)
{
        return tdm_grammar_add_schema(c->g, source, size, 0, ret_part, err);
}

int tdm_composer_regex(struct tdm_composer *c, const char *source, size_t size, uint32_t *ret_part,
                       struct tdm_error *err)
{
        struct tdm_regex_info info;

        return tdm_regex_expr(&c->g->arena, source, size, TDM_TEXT_RAW, false, ret_part, &info, err);
}

uint32_t tdm_composer_digits(struct tdm_composer *c, uint32_t n)
{
        return tdm_expr_rep(&c->g->arena, tdm_expr_range(&c->g->arena, '0', '9'), 1, n);
}

int tdm_composer_finish(struct tdm_composer *c, uint32_t root, struct tdm_grammar **ret, struct tdm_error *err)
{
        int r;

        if (c->g->arena.failed)
                return tdm_grammar_too_large(c->g, err);
        c->g->root = root;
        r = tdm_grammar_finish(c->g, err);
        if (r == 0)
                *ret = steal_ptr(&c->g);
        return r;
}
