/* Expressions: regular expressions over bytes, with calls of rules, shared by structure.
 *
 * An expression is a number in an arena; equal expressions have equal numbers, so that equality, memory of results
 * and recurrence of parser states cost a comparison. The arena of a compiled grammar is immutable and shared; a
 * matcher puts an arena of its own on top (`base`) for the derivatives that it meets. Derivatives are by bytes: what
 * is left of an expression once a byte was read. Concatenations lean to the right, and their head is never a
 * concatenation.
 *
 * AND, NOT and MOD stand over call-free expressions only. An arena belongs to one thread while it grows. Functions
 * that make expressions return TDM_EXPR_NONE and set `failed` when memory or the arena's limit is out; the owner
 * checks `failed` once at the end of an operation. */
#ifndef TDM_ENGINE_GRAMMAR_EXPR_H
#define TDM_ENGINE_GRAMMAR_EXPR_H

#include "common/util.h"

enum tdm_expr_kind {
        TDM_EXPR_KIND_NONE, /* no text */
        TDM_EXPR_KIND_EPS,  /* the empty text */
        TDM_EXPR_KIND_SET,  /* one byte of set a */
        TDM_EXPR_KIND_CAT,  /* a, then b */
        TDM_EXPR_KIND_ALT,  /* a or b */
        TDM_EXPR_KIND_AND,  /* a and b */
        TDM_EXPR_KIND_NOT,  /* any bytes but a */
        TDM_EXPR_KIND_REP,  /* a, b to c times; c may be TDM_EXPR_INF */
        TDM_EXPR_KIND_CALL, /* rule a */
        TDM_EXPR_KIND_MOD,  /* digits d ('.' is skipped) so that b·10^|d| + d is a multiple of a */
};

#define TDM_EXPR_NONE 0u
#define TDM_EXPR_EPS 1u
#define TDM_EXPR_INF UINT32_MAX

enum tdm_expr_flag {
        TDM_EXPR_NULLABLE = 1, /* takes the empty text; not known (0) for what contains calls */
        TDM_EXPR_HAS_CALL = 2,
        TDM_EXPR_HAS_BOOL = 4, /* contains AND or NOT: may be empty without being NONE */
        TDM_EXPR_ALIVE = 8,    /* memory of tdm_expr_alive() */
        TDM_EXPR_DEAD = 16,
};

struct tdm_expr {
        uint8_t kind, flags;
        uint32_t a, b, c;
};

struct tdm_byte_set {
        uint64_t bits[4];
};

struct tdm_arena {
        const struct tdm_arena *base; /* immutable below this one, or NULL */
        uint32_t n_base, n_base_sets; /* what base held when this one began */
        struct tdm_expr *items;
        uint32_t n, capacity, limit; /* of own items */
        uint32_t *slots;             /* open addressing: number + 1 */
        uint32_t n_slots;
        struct tdm_byte_set *sets;
        uint32_t n_sets, sets_capacity;
        uint8_t *base_alive;          /* ALIVE and DEAD of base's items, as this arena found them */
        uint64_t steps, max_steps;    /* work done by derivatives and searches, and where they stop */
        uint8_t representatives[256]; /* memory of the searches, for n_represented sets */
        uint32_t n_represented;
        unsigned n_representatives;
        bool failed;
};

int tdm_arena_init(struct tdm_arena *arena, const struct tdm_arena *base, uint32_t limit);
void tdm_arena_deinit(struct tdm_arena *arena);
size_t tdm_arena_bytes(const struct tdm_arena *arena);
/* Forgets its own expressions; those of base stay. */
void tdm_arena_reset(struct tdm_arena *arena);

static inline const struct tdm_expr *tdm_expr_get(const struct tdm_arena *arena, uint32_t e)
{
        return e < arena->n_base ? &arena->base->items[e] : &arena->items[e - arena->n_base];
}

static inline const struct tdm_byte_set *tdm_expr_set(const struct tdm_arena *arena, uint32_t set)
{
        return set < arena->n_base_sets ? &arena->base->sets[set] : &arena->sets[set - arena->n_base_sets];
}

static inline bool tdm_byte_set_has(const struct tdm_byte_set *set, uint8_t byte)
{
        return set->bits[byte >> 6] >> (byte & 63) & 1;
}

static inline void tdm_byte_set_add(struct tdm_byte_set *set, uint8_t low, uint8_t high)
{
        for (unsigned byte = low; byte <= high; byte++)
                set->bits[byte >> 6] |= UINT64_C(1) << (byte & 63);
}

uint32_t tdm_expr_bytes(struct tdm_arena *arena, const struct tdm_byte_set *set);
uint32_t tdm_expr_range(struct tdm_arena *arena, uint8_t low, uint8_t high);
uint32_t tdm_expr_literal(struct tdm_arena *arena, const char *text, size_t size);
uint32_t tdm_expr_text(struct tdm_arena *arena, const char *text); /* a literal that ends at NUL */
uint32_t tdm_expr_cat(struct tdm_arena *arena, uint32_t a, uint32_t b);
uint32_t tdm_expr_cat3(struct tdm_arena *arena, uint32_t a, uint32_t b, uint32_t c);
uint32_t tdm_expr_alt(struct tdm_arena *arena, uint32_t a, uint32_t b);
uint32_t tdm_expr_and(struct tdm_arena *arena, uint32_t a, uint32_t b);
uint32_t tdm_expr_not(struct tdm_arena *arena, uint32_t a);
uint32_t tdm_expr_rep(struct tdm_arena *arena, uint32_t a, uint32_t min, uint32_t max);
uint32_t tdm_expr_call(struct tdm_arena *arena, uint32_t rule);
uint32_t tdm_expr_mod(struct tdm_arena *arena, uint32_t divisor, uint32_t rest);
static inline uint32_t tdm_expr_opt(struct tdm_arena *arena, uint32_t a)
{
        return tdm_expr_alt(arena, a, TDM_EXPR_EPS);
}

/* The same with a's and its own flags: call-free expressions only. */
static inline bool tdm_expr_nullable(const struct tdm_arena *arena, uint32_t e)
{
        return tdm_expr_get(arena, e)->flags & TDM_EXPR_NULLABLE;
}
static inline bool tdm_expr_has_call(const struct tdm_arena *arena, uint32_t e)
{
        return tdm_expr_get(arena, e)->flags & TDM_EXPR_HAS_CALL;
}

struct tdm_expr_list {
        uint32_t *items;
        uint32_t n, capacity;
};
/* Memory of an arena's owner; sets failed when there is none. */
void tdm_expr_list_add(struct tdm_arena *arena, struct tdm_expr_list *list, uint32_t e);
void tdm_expr_list_deinit(struct tdm_expr_list *list);

/* The remainder of a call-free e behind byte, as one expression. */
uint32_t tdm_expr_derive(struct tdm_arena *arena, uint32_t e, uint8_t byte);
/* The same as several expressions whose union it is: they keep the shape of e, so there are few of them. Appends to
 * list, without what takes no text at all. */
void tdm_expr_derive_parts(struct tdm_arena *arena, uint32_t e, uint8_t byte, struct tdm_expr_list *list);

/* Whether a call-free e takes any text. It looks for one where AND or NOT leave that open, within max_steps of work
 * (beyond: failed). */
bool tdm_expr_alive(struct tdm_arena *arena, uint32_t e);

/* The bytes with which a text of call-free e can begin, or more. */
void tdm_expr_first(const struct tdm_arena *arena, uint32_t e, struct tdm_byte_set *set);

#endif
