/* A compiled grammar's life, and what is settled once all its rules are known. */
#include "engine/grammar/grammar-private.h"
#include "engine/grammar/chars.h"
#include "engine/grammar/expr-private.h"

void tdm_grammar_limits_init(struct tdm_grammar_limits *limits)
{
        *limits = (struct tdm_grammar_limits){
                .max_source_bytes = (size_t)1 << 20,
                .max_depth = 200,
                .max_expressions = 1 << 18,
                .max_rules = 20000,
                .max_compile_steps = 4000000,
                .max_matcher_bytes = (size_t)6 << 20,
                .max_mask_steps = 4000000,
        };
}

int tdm_grammar_new(struct tdm_grammar **ret, const struct tdm_grammar_limits *limits)
{
        struct tdm_grammar *grammar = calloc(1, sizeof(*grammar));

        if (!grammar)
                return -ENOMEM;
        atomic_init(&grammar->refs, 1);
        if (limits)
                grammar->limits = *limits;
        else
                tdm_grammar_limits_init(&grammar->limits);
        if (tdm_arena_init(&grammar->arena, NULL, grammar->limits.max_expressions) < 0) {
                free(grammar);
                return -ENOMEM;
        }
        grammar->arena.max_steps = grammar->limits.max_compile_steps;
        *ret = grammar;
        return 0;
}

struct tdm_grammar *tdm_grammar_ref(struct tdm_grammar *grammar)
{
        atomic_fetch_add_explicit(&grammar->refs, 1, memory_order_relaxed);
        return grammar;
}

void tdm_grammar_unref(struct tdm_grammar *grammar)
{
        /* Release pairs with the acquire of the last one, which frees. */
        if (!grammar || atomic_fetch_sub_explicit(&grammar->refs, 1, memory_order_acq_rel) > 1)
                return;
        tdm_grammar_drop_spare(grammar);
        tdm_arena_deinit(&grammar->arena);
        free(grammar->rules);
        free(grammar->orders);
        free(grammar->names);
        free(grammar->name_bytes);
        free(grammar);
}

void tdm_grammar_unrefp(struct tdm_grammar **grammar)
{
        tdm_grammar_unref(*grammar);
}

void tdm_grammar_keep_tables(struct tdm_grammar *grammar, size_t max_bytes)
{
        atomic_store_explicit(&grammar->max_spare_bytes, max_bytes, memory_order_relaxed);
        if (max_bytes == 0)
                tdm_grammar_drop_spare(grammar);
}

size_t tdm_grammar_bytes(const struct tdm_grammar *grammar)
{
        return sizeof(*grammar) + tdm_arena_bytes(&grammar->arena) + grammar->rules_capacity * sizeof(*grammar->rules) +
               grammar->names_capacity * sizeof(*grammar->names) + grammar->orders_capacity * sizeof(*grammar->orders) +
               grammar->name_bytes_capacity;
}

uint32_t tdm_grammar_add_rule(struct tdm_grammar *grammar)
{
        if (grammar->n_rules >= grammar->limits.max_rules) {
                grammar->arena.failed = true;
                return UINT32_MAX;
        }
        if (grammar->n_rules == grammar->rules_capacity) {
                uint32_t capacity = TDM_MAX(grammar->rules_capacity * 2, 32u);
                struct tdm_rule *rules = realloc(grammar->rules, capacity * sizeof(*rules));

                if (!rules) {
                        grammar->arena.failed = true;
                        return UINT32_MAX;
                }
                grammar->rules = rules;
                grammar->rules_capacity = capacity;
        }
        grammar->rules[grammar->n_rules] = (struct tdm_rule){ .body = TDM_EXPR_NONE };
        return grammar->n_rules++;
}

int tdm_grammar_too_large(const struct tdm_grammar *grammar, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "the grammar is too large: it needs more than %u expressions, %u rules or %llu steps",
                             grammar->limits.max_expressions, grammar->limits.max_rules,
                             (unsigned long long)grammar->limits.max_compile_steps);
}

int tdm_grammar_takes_nothing(struct tdm_grammar *grammar, struct tdm_error *err)
{
        grammar->nothing = true;
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "no value at all satisfies it");
}

/* ---- properties of expressions with calls. An expression's number is higher than those of its parts, so that one pass
 * upwards settles all for the rules' present values; passes follow until no rule changes. ---- */

struct facts {
        struct tdm_grammar *grammar;
        uint8_t *nullable, *productive; /* per expression */
};

static bool is_nullable(const struct facts *f, const struct tdm_expr *x)
{
        if (!(x->flags & TDM_EXPR_HAS_CALL))
                return x->flags & TDM_EXPR_NULLABLE;
        switch (x->kind) {
        case TDM_EXPR_KIND_CAT:
                return f->nullable[x->a] && f->nullable[x->b];
        case TDM_EXPR_KIND_ALT:
                return f->nullable[x->a] || f->nullable[x->b];
        case TDM_EXPR_KIND_REP:
                return x->b == 0 || f->nullable[x->a];
        default:
                return f->grammar->rules[x->a].nullable;
        }
}

static bool is_productive(const struct facts *f, const struct tdm_expr *x)
{
        if (!(x->flags & TDM_EXPR_HAS_CALL))
                return x->kind != TDM_EXPR_KIND_NONE;
        switch (x->kind) {
        case TDM_EXPR_KIND_CAT:
                return f->productive[x->a] && f->productive[x->b];
        case TDM_EXPR_KIND_ALT:
                return f->productive[x->a] || f->productive[x->b];
        case TDM_EXPR_KIND_REP:
                return x->b == 0 || f->productive[x->a];
        default:
                return f->grammar->rules[x->a].productive;
        }
}

static int find_facts(struct facts *f)
{
        struct tdm_grammar *g = f->grammar;
        bool changed = true;

        while (changed) {
                changed = false;
                g->arena.steps += g->arena.n / 8;
                if (g->arena.steps > g->arena.max_steps)
                        return -E2BIG;
                for (uint32_t e = 0; e < g->arena.n; e++) {
                        const struct tdm_expr *x = &g->arena.items[e];

                        f->nullable[e] = is_nullable(f, x);
                        f->productive[e] = is_productive(f, x);
                }
                for (uint32_t r = 0; r < g->n_rules; r++) {
                        struct tdm_rule *rule = &g->rules[r];

                        changed |= rule->nullable != f->nullable[rule->body];
                        changed |= rule->productive != f->productive[rule->body];
                        rule->nullable = f->nullable[rule->body];
                        rule->productive = f->productive[rule->body];
                }
        }
        return 0;
}

/* The bodies without the calls of rules that yield no text. memory: what became of each expression. */
static void prune(struct tdm_grammar *g, uint32_t *memory, uint32_t n)
{
        struct tdm_arena *arena = &g->arena;

        for (uint32_t e = 0; e < n; e++) {
                struct tdm_expr x = arena->items[e];

                if (!(x.flags & TDM_EXPR_HAS_CALL))
                        memory[e] = e;
                else if (x.kind == TDM_EXPR_KIND_CAT)
                        memory[e] = tdm_expr_cat(arena, memory[x.a], memory[x.b]);
                else if (x.kind == TDM_EXPR_KIND_ALT)
                        memory[e] = tdm_expr_alt(arena, memory[x.a], memory[x.b]);
                else if (x.kind == TDM_EXPR_KIND_REP)
                        memory[e] = tdm_expr_rep(arena, memory[x.a], x.b, x.c);
                else
                        memory[e] = g->rules[x.a].productive ? e : TDM_EXPR_NONE;
        }
        for (uint32_t r = 0; r < g->n_rules; r++)
                g->rules[r].body = memory[g->rules[r].body];
        g->root = memory[g->root];
}

/* ---- ranks: a rule's callees at its own beginning come later ---- */

struct ranks {
        struct tdm_grammar *grammar;

        uint8_t *seen;  /* per rule: 0 new, 1 open, 2 done */
        uint32_t *mark; /* per expression: rule + 1 that visited it last */
        uint32_t next, cycle, depth;
        struct facts *facts;
};

static bool visit_rule(struct ranks *k, uint32_t rule);

static bool visit_expr(struct ranks *k, uint32_t e, uint32_t rule)
{
        for (;;) {
                const struct tdm_expr *x = tdm_expr_get(&k->grammar->arena, e);

                if (!(x->flags & TDM_EXPR_HAS_CALL) || k->mark[e] == rule + 1)
                        return true;
                k->mark[e] = rule + 1;
                k->grammar->arena.steps++;
                switch (x->kind) {
                case TDM_EXPR_KIND_CAT:
                        if (!visit_expr(k, x->a, rule))
                                return false;
                        if (!k->facts->nullable[x->a])
                                return true;
                        e = x->b;
                        continue;
                case TDM_EXPR_KIND_ALT:
                        if (!visit_expr(k, x->a, rule))
                                return false;
                        e = x->b;
                        continue;
                case TDM_EXPR_KIND_REP:
                        e = x->a;
                        continue;
                default:
                        return visit_rule(k, x->a);
                }
        }
}

static bool visit_rule(struct ranks *k, uint32_t rule)
{
        if (k->seen[rule] == 2)
                return true;
        if (k->seen[rule] == 1) {
                k->cycle = rule;
                return false;
        }
        k->seen[rule] = 1;
        if (++k->depth > 2000)
                k->grammar->arena.failed = true;
        if (k->grammar->arena.failed || !visit_expr(k, k->grammar->rules[rule].body, rule))
                return false;
        k->depth--;
        k->seen[rule] = 2;
        k->grammar->rules[rule].rank = --k->next; /* callees are done first, so they get the higher numbers */
        return true;
}

int tdm_grammar_finish(struct tdm_grammar *g, struct tdm_error *err)
{
        struct facts f = { .grammar = g };
        struct ranks k = { .grammar = g, .next = UINT32_MAX, .facts = &f };
        _cleanup_(freep) uint8_t *facts = NULL, *seen = NULL;
        _cleanup_(freep) uint32_t *memory = NULL;
        struct tdm_chars wide = { 0 };
        bool all_productive = true;
        uint32_t n;

        if (g->arena.failed)
                return tdm_grammar_too_large(g, err);
        tdm_chars_add(&wide, 0x80, 0x2027);
        tdm_chars_add(&wide, 0x202a, 0x10ffff);
        g->wide_char = tdm_chars_expr(&g->arena, &wide, TDM_TEXT_RAW);
        tdm_chars_deinit(&wide);
        n = g->arena.n;
        facts = malloc(2 * (size_t)n);
        if (!facts)
                return -ENOMEM;
        f.nullable = facts;
        f.productive = facts + n;
        if (find_facts(&f) < 0)
                return tdm_grammar_too_large(g, err);
        for (uint32_t r = 0; r < g->n_rules; r++)
                all_productive &= g->rules[r].productive;
        if (!all_productive) {
                memory = malloc(n * sizeof(*memory));
                if (!memory)
                        return -ENOMEM;
                prune(g, memory, n);
        }
        if (g->arena.failed)
                return tdm_grammar_too_large(g, err);
        if (g->root == TDM_EXPR_NONE || !tdm_expr_alive(&g->arena, g->root)) {
                if (g->arena.failed)
                        return tdm_grammar_too_large(g, err);
                return tdm_grammar_takes_nothing(g, err);
        }
        n = g->arena.n; /* pruning and searching made new ones */
        free(steal_ptr(&facts));
        free(steal_ptr(&memory));
        facts = malloc(2 * (size_t)n);
        memory = calloc(n, sizeof(*memory));
        seen = calloc(1, (size_t)g->n_rules + 1);
        if (!facts || !memory || !seen)
                return -ENOMEM;
        f.nullable = facts;
        f.productive = facts + n;
        if (find_facts(&f) < 0)
                return tdm_grammar_too_large(g, err);
        k.seen = seen;
        k.mark = memory;
        for (uint32_t r = 0; r < g->n_rules; r++)
                if (!visit_rule(&k, r) && !g->arena.failed)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "rule %u calls itself at its own beginning (left recursion)", k.cycle);
        if (g->arena.failed || g->arena.steps > g->arena.max_steps)
                return tdm_grammar_too_large(g, err);
        g->n_classes = tdm_arena_representatives(&g->arena, g->class_of, g->representatives);
        return 0;
}
