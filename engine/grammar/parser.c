/* States of the parser, and the step from one to the next. */
#include "engine/grammar/parser.h"

enum { PAIRS_MAX = 20000 }; /* of one state; more is a grammar made to explode */

static bool pairs_add(struct tdm_parser *p, struct tdm_pairs *pairs, struct tdm_pair pair)
{
        if (pairs->n == pairs->capacity) {
                uint32_t capacity = TDM_MAX(pairs->capacity * 2, 64u);
                struct tdm_pair *items = realloc(pairs->items, capacity * sizeof(*items));

                if (!items) {
                        p->arena.failed = true;
                        return false;
                }
                pairs->items = items;
                pairs->capacity = capacity;
        }
        pairs->items[pairs->n++] = pair;
        return true;
}

static uint32_t hash_pair(struct tdm_pair pair)
{
        uint64_t h = ((uint64_t)pair.e << 32 | pair.frame) * UINT64_C(0x9e3779b97f4a7c15);

        return (uint32_t)(h >> 32);
}

static uint32_t hash_pairs(const struct tdm_pair *pairs, uint32_t n, bool whole)
{
        uint64_t h = whole ? 0x1234567 : n;

        for (uint32_t i = 0; i < n; i++)
                h = (h ^ ((uint64_t)pairs[i].e << 32 | pairs[i].frame)) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 31;
        return (uint32_t)(h >> 16);
}

static int compare_pairs(const void *a, const void *b)
{
        const struct tdm_pair *x = a, *y = b;

        if (x->e != y->e)
                return x->e < y->e ? -1 : 1;
        return x->frame < y->frame ? -1 : x->frame > y->frame;
}

static void sort_pairs(struct tdm_pair *pairs, uint32_t n)
{
        if (n > 16) {
                qsort(pairs, n, sizeof(*pairs), compare_pairs);
                return;
        }
        for (uint32_t i = 1; i < n; i++) {
                struct tdm_pair x = pairs[i];
                uint32_t k = i;

                for (; k > 0 && compare_pairs(&pairs[k - 1], &x) > 0; k--)
                        pairs[k] = pairs[k - 1];
                pairs[k] = x;
        }
}

static bool grow_slots(struct tdm_parser *p, bool of_states)
{
        uint32_t n = of_states ? p->n_states : p->n_frames;
        uint32_t n_slots = TDM_MAX((of_states ? p->n_state_slots : p->n_frame_slots) * 2, 128u);
        uint32_t *slots = calloc(n_slots, sizeof(*slots));

        if (!slots) {
                p->arena.failed = true;
                return false;
        }
        for (uint32_t i = 0; i < n; i++) {
                uint32_t at = of_states ? p->states[i].at : p->frames[i].at;
                uint32_t size = of_states ? p->states[i].n : p->frames[i].n;
                uint32_t k = hash_pairs(p->pairs.items + at, size, of_states && p->states[i].whole);

                while (slots[k & (n_slots - 1)])
                        k++;
                slots[k & (n_slots - 1)] = i + 1;
        }
        free(of_states ? p->state_slots : p->frame_slots);
        if (of_states) {
                p->state_slots = slots;
                p->n_state_slots = n_slots;
        } else {
                p->frame_slots = slots;
                p->n_frame_slots = n_slots;
        }
        return true;
}

/* The state of these sorted pairs; list is not of p->pairs. */
static uint32_t intern_state(struct tdm_parser *p, const struct tdm_pair *list, uint32_t n, bool whole)
{
        uint32_t hash = hash_pairs(list, n, whole), k, at;

        if (p->n_states * 2 >= p->n_state_slots && !grow_slots(p, true))
                return TDM_STATE_DEAD;
        for (k = hash; p->state_slots[k & (p->n_state_slots - 1)]; k++) {
                uint32_t i = p->state_slots[k & (p->n_state_slots - 1)] - 1;
                const struct tdm_state *s = &p->states[i];

                if (s->n == n && s->whole == whole && memcmp(p->pairs.items + s->at, list, n * sizeof(*list)) == 0)
                        return i;
        }
        if (p->n_states == p->states_capacity) {
                uint32_t capacity = TDM_MAX(p->states_capacity * 2, 128u);
                struct tdm_state *states = realloc(p->states, capacity * sizeof(*states));
                uint32_t *steps;

                if (!states)
                        goto fail;
                p->states = states;
                steps = realloc(p->steps, (size_t)capacity * p->grammar->n_classes * sizeof(*steps));
                if (!steps)
                        goto fail;
                p->steps = steps;
                p->states_capacity = capacity;
        }
        at = p->pairs.n;
        for (uint32_t i = 0; i < n; i++)
                if (!pairs_add(p, &p->pairs, list[i]))
                        return TDM_STATE_DEAD;
        p->states[p->n_states] = (struct tdm_state){ .at = at, .n = n, .whole = whole };
        memset(p->steps + (size_t)p->n_states * p->grammar->n_classes, 0xff, p->grammar->n_classes * sizeof(*p->steps));
        p->state_slots[k & (p->n_state_slots - 1)] = ++p->n_states;
        return p->n_states - 1;
fail:
        p->arena.failed = true;
        return TDM_STATE_DEAD;
}

static uint32_t intern_frame(struct tdm_parser *p, const struct tdm_pair *list, uint32_t n)
{
        uint32_t hash = hash_pairs(list, n, false), k, at;

        if (p->n_frames * 2 >= p->n_frame_slots && !grow_slots(p, false))
                return TDM_FRAME_BOTTOM;
        for (k = hash; p->frame_slots[k & (p->n_frame_slots - 1)]; k++) {
                uint32_t i = p->frame_slots[k & (p->n_frame_slots - 1)] - 1;
                const struct tdm_frame *f = &p->frames[i];

                if (f->n == n && memcmp(p->pairs.items + f->at, list, n * sizeof(*list)) == 0)
                        return i;
        }
        if (p->n_frames == p->frames_capacity) {
                uint32_t capacity = TDM_MAX(p->frames_capacity * 2, 64u);
                struct tdm_frame *frames = realloc(p->frames, capacity * sizeof(*frames));

                if (!frames) {
                        p->arena.failed = true;
                        return TDM_FRAME_BOTTOM;
                }
                p->frames = frames;
                p->frames_capacity = capacity;
        }
        at = p->pairs.n;
        for (uint32_t i = 0; i < n; i++)
                if (!pairs_add(p, &p->pairs, list[i]))
                        return TDM_FRAME_BOTTOM;
        p->frames[p->n_frames] = (struct tdm_frame){ .at = at, .n = n };
        p->frame_slots[k & (p->n_frame_slots - 1)] = ++p->n_frames;
        return p->n_frames - 1;
}

/* ---- closure: from pairs that were reached to pairs that read a byte ---- */

static bool seen_before(struct tdm_parser *p, struct tdm_pair pair)
{
        uint32_t k;

        if (p->n_seen * 2 >= p->n_seen_slots) {
                uint32_t n_slots = TDM_MAX(p->n_seen_slots * 2, 256u);
                struct tdm_pair *seen = malloc(n_slots * sizeof(*seen));
                uint32_t *stamps = calloc(n_slots, sizeof(*stamps));

                if (!seen || !stamps) {
                        free(seen);
                        free(stamps);
                        p->arena.failed = true;
                        return true;
                }
                for (uint32_t i = 0; i < p->n_seen_slots; i++) {
                        if (p->seen_stamp[i] != p->stamp)
                                continue;
                        for (k = hash_pair(p->seen[i]); stamps[k & (n_slots - 1)]; k++)
                                ;
                        stamps[k & (n_slots - 1)] = p->stamp;
                        seen[k & (n_slots - 1)] = p->seen[i];
                }
                free(p->seen);
                free(p->seen_stamp);
                p->seen = seen;
                p->seen_stamp = stamps;
                p->n_seen_slots = n_slots;
        }
        for (k = hash_pair(pair); p->seen_stamp[k & (p->n_seen_slots - 1)] == p->stamp; k++) {
                struct tdm_pair *other = &p->seen[k & (p->n_seen_slots - 1)];

                if (other->e == pair.e && other->frame == pair.frame)
                        return true;
        }
        p->seen[k & (p->n_seen_slots - 1)] = pair;
        p->seen_stamp[k & (p->n_seen_slots - 1)] = p->stamp;
        p->n_seen++;
        return false;
}

static void push(struct tdm_parser *p, uint32_t e, uint32_t frame)
{
        (void)pairs_add(p, &p->work, (struct tdm_pair){ e, frame });
}

static void call(struct tdm_parser *p, uint32_t rule, uint32_t rest, uint32_t frame)
{
        if (p->n_pending == p->pending_capacity) {
                uint32_t capacity = TDM_MAX(p->pending_capacity * 2, 32u);
                struct tdm_pending *pending = realloc(p->pending, capacity * sizeof(*pending));

                if (!pending) {
                        p->arena.failed = true;
                        return;
                }
                p->pending = pending;
                p->pending_capacity = capacity;
        }
        p->pending[p->n_pending++] = (struct tdm_pending){ p->grammar->rules[rule].rank, rule, { rest, frame } };
        if (p->grammar->rules[rule].nullable)
                push(p, rest, frame);
}

static void expand(struct tdm_parser *p, struct tdm_pair pair)
{
        struct tdm_arena *arena = &p->arena;
        struct tdm_expr x = *tdm_expr_get(arena, pair.e), head;
        uint32_t rest = TDM_EXPR_EPS;

        if (seen_before(p, pair))
                return;
        arena->steps += 2;
        if (x.kind == TDM_EXPR_KIND_NONE)
                return;
        if (x.kind == TDM_EXPR_KIND_EPS) {
                struct tdm_frame frame = p->frames[pair.frame];

                if (pair.frame == TDM_FRAME_BOTTOM)
                        p->whole = true;
                for (uint32_t i = 0; i < frame.n; i++) {
                        struct tdm_pair to = p->pairs.items[frame.at + i];

                        push(p, to.e, to.frame);
                }
                return;
        }
        head = x;
        if (x.kind == TDM_EXPR_KIND_CAT) {
                head = *tdm_expr_get(arena, x.a);
                rest = x.b;
        }
        if (!(head.flags & TDM_EXPR_HAS_CALL)) {
                (void)pairs_add(p, &p->out, pair);
                if (head.flags & TDM_EXPR_NULLABLE)
                        push(p, rest, pair.frame);
                return;
        }
        switch (head.kind) {
        case TDM_EXPR_KIND_CALL:
                call(p, head.a, rest, pair.frame);
                break;
        case TDM_EXPR_KIND_ALT:
                push(p, tdm_expr_cat(arena, head.a, rest), pair.frame);
                push(p, tdm_expr_cat(arena, head.b, rest), pair.frame);
                break;
        case TDM_EXPR_KIND_REP:
                if (head.b == 0)
                        push(p, rest, pair.frame);
                rest = tdm_expr_cat(arena,
                                    tdm_expr_rep(arena, head.a, head.b > 0 ? head.b - 1 : 0,
                                                 head.c == TDM_EXPR_INF ? head.c : head.c - 1),
                                    rest);
                push(p, tdm_expr_cat(arena, head.a, rest), pair.frame);
                break;
        default:
                break;
        }
}

/* All callers of the pending rule of least rank become one frame; no later one can call it at this byte. */
static void parser_enter_rule(struct tdm_parser *p)
{
        uint32_t best = 0, n = 0, rule, frame;
        struct tdm_pairs *content = &p->content;

        for (uint32_t i = 1; i < p->n_pending; i++)
                if (p->pending[i].rank < p->pending[best].rank)
                        best = i;
        p->arena.steps += p->n_pending;
        rule = p->pending[best].rule;
        content->n = 0;
        for (uint32_t i = 0; i < p->n_pending; i++) {
                struct tdm_pending *x = &p->pending[i];

                if (x->rule != rule) {
                        p->pending[n++] = *x;
                } else if (x->to.e == TDM_EXPR_EPS && x->to.frame != TDM_FRAME_BOTTOM) {
                        /* A call at the end leaves no trace: what follows is what follows the caller. */
                        for (uint32_t k = 0; k < p->frames[x->to.frame].n; k++)
                                (void)pairs_add(p, content, p->pairs.items[p->frames[x->to.frame].at + k]);
                } else {
                        (void)pairs_add(p, content, x->to);
                }
        }
        p->n_pending = n;
        if (p->arena.failed)
                return;
        sort_pairs(content->items, content->n);
        n = 1;
        for (uint32_t i = 1; i < content->n; i++)
                if (compare_pairs(&content->items[i], &content->items[n - 1]) != 0)
                        content->items[n++] = content->items[i];
        if (n == 1 && content->items[0].e == TDM_EXPR_EPS)
                frame = content->items[0].frame;
        else
                frame = intern_frame(p, content->items, n);
        push(p, p->grammar->rules[rule].body, frame);
}

/* The state of what is on p->work. */
static uint32_t closure(struct tdm_parser *p)
{
        p->out.n = 0;
        p->n_pending = 0;
        p->whole = false;
        p->n_seen = 0;
        if (++p->stamp == 0) {
                memset(p->seen_stamp, 0, p->n_seen_slots * sizeof(*p->seen_stamp));
                p->stamp = 1;
        }
        while (!p->arena.failed && (p->work.n > 0 || p->n_pending > 0)) {
                if (p->work.n == 0) {
                        parser_enter_rule(p);
                        continue;
                }
                expand(p, p->work.items[--p->work.n]);
                if (p->out.n > PAIRS_MAX || p->work.n > PAIRS_MAX || p->arena.steps > p->arena.max_steps)
                        p->arena.failed = true;
        }
        if (p->arena.failed || (p->out.n == 0 && !p->whole))
                return TDM_STATE_DEAD;
        sort_pairs(p->out.items, p->out.n);
        return intern_state(p, p->out.items, p->out.n, p->whole);
}

/* Whether the way only reads a byte: nothing else follows of it in a closure. */
static bool way_is_closed(const struct tdm_arena *arena, uint32_t e)
{
        const struct tdm_expr *x = tdm_expr_get(arena, e);

        if (x->kind == TDM_EXPR_KIND_CAT)
                x = tdm_expr_get(arena, x->a);
        return x->kind > TDM_EXPR_KIND_EPS && !(x->flags & (TDM_EXPR_HAS_CALL | TDM_EXPR_NULLABLE));
}

static bool literal_read(const struct tdm_parser *p, struct tdm_literal *l)
{
        const struct tdm_expr *x = tdm_expr_get(&p->arena, l->e), *head;
        const struct tdm_byte_set *set;
        unsigned n = 0;

        if (x->kind != TDM_EXPR_KIND_CAT || !way_is_closed(&p->arena, x->b))
                return false;
        head = tdm_expr_get(&p->arena, x->a);
        if (head->kind != TDM_EXPR_KIND_SET)
                return false;
        set = tdm_expr_set(&p->arena, head->a);
        for (unsigned i = 0; i < 4; i++) {
                n += (unsigned)__builtin_popcountll(set->bits[i]);
                if (set->bits[i])
                        l->byte = (uint8_t)(i * 64 + (unsigned)__builtin_ctzll(set->bits[i]));
        }
        l->rest = x->b;
        return n == 1;
}

bool tdm_literal_begin(const struct tdm_parser *p, uint32_t state, struct tdm_literal *ret)
{
        const struct tdm_state *s = &p->states[state];

        if (s->n != 1 || s->whole)
                return false;
        *ret = (struct tdm_literal){ .e = p->pairs.items[s->at].e, .frame = p->pairs.items[s->at].frame };
        return literal_read(p, ret);
}

bool tdm_literal_next(const struct tdm_parser *p, struct tdm_literal *l)
{
        l->e = l->rest;
        return literal_read(p, l);
}

uint32_t tdm_literal_state(struct tdm_parser *p, const struct tdm_literal *l)
{
        struct tdm_pair pair = { l->e, l->frame };

        p->arena.steps++;
        return intern_state(p, &pair, 1, false);
}

/* Most steps are in the midst of known texts: each way reads its byte, and what is left of it reads the next. There is
 * no closure to make. False, and nothing is done, where a way is of another kind. */
static bool step_text(struct tdm_parser *p, uint32_t state, uint8_t byte, uint32_t *ret_next)
{
        struct tdm_state s = p->states[state];
        uint32_t n = 0;

        p->out.n = 0;
        for (uint32_t i = 0; i < s.n; i++) {
                struct tdm_pair pair = p->pairs.items[s.at + i];
                struct tdm_expr x = *tdm_expr_get(&p->arena, pair.e), head = x;

                if (x.kind == TDM_EXPR_KIND_CAT)
                        head = *tdm_expr_get(&p->arena, x.a);
                if (head.kind != TDM_EXPR_KIND_SET)
                        return false;
                if (!tdm_byte_set_has(tdm_expr_set(&p->arena, head.a), byte))
                        continue;
                if (x.kind != TDM_EXPR_KIND_CAT || !way_is_closed(&p->arena, x.b))
                        return false;
                (void)pairs_add(p, &p->out, (struct tdm_pair){ x.b, pair.frame });
        }
        p->arena.steps += s.n;
        sort_pairs(p->out.items, p->out.n);
        for (uint32_t i = 0; i < p->out.n; i++)
                if (n == 0 || compare_pairs(&p->out.items[n - 1], &p->out.items[i]) != 0)
                        p->out.items[n++] = p->out.items[i];
        *ret_next = n > 0 ? intern_state(p, p->out.items, n, false) : TDM_STATE_DEAD;
        return true;
}

static uint32_t step_derive(struct tdm_parser *p, uint32_t state, uint8_t byte)
{
        uint32_t next;

        if (step_text(p, state, byte, &next))
                return next;
        p->work.n = 0;
        for (uint32_t i = 0; i < p->states[state].n; i++) {
                struct tdm_pair pair = p->pairs.items[p->states[state].at + i];
                struct tdm_expr x = *tdm_expr_get(&p->arena, pair.e);
                bool is_cat = x.kind == TDM_EXPR_KIND_CAT;

                p->parts.n = 0;
                tdm_expr_derive_parts(&p->arena, is_cat ? x.a : pair.e, byte, &p->parts);
                for (uint32_t k = 0; k < p->parts.n; k++)
                        push(p, is_cat ? tdm_expr_cat(&p->arena, p->parts.items[k], x.b) : p->parts.items[k],
                             pair.frame);
        }
        return p->work.n > 0 ? closure(p) : TDM_STATE_DEAD;
}

uint32_t tdm_parser_step_slow(struct tdm_parser *p, uint32_t state, uint8_t byte)
{
        size_t slot = (size_t)state * p->grammar->n_classes + p->grammar->class_of[byte];
        uint32_t next;

        if (state == TDM_STATE_DEAD || p->arena.failed)
                return TDM_STATE_DEAD;
        if (!p->states[state].spread) {
                tdm_parser_spread(p, state);
                if (p->steps[slot] == TDM_STATE_DEAD)
                        return TDM_STATE_DEAD;
        }
        if (p->steps[slot] != TDM_STATE_UNKNOWN) /* a link */
                next = tdm_parser_step(p, state, p->grammar->representatives[p->steps[slot] & ~TDM_STATE_LINK]);
        else
                next = step_derive(p, state, byte);
        if (p->arena.failed || p->arena.steps > p->arena.max_steps) {
                p->arena.failed = true;
                return TDM_STATE_DEAD;
        }
        p->steps[slot] = next;
        return next;
}

/* ---- life ---- */

static void init_fixed(struct tdm_parser *p)
{
        (void)intern_state(p, NULL, 0, false);
        (void)intern_frame(p, NULL, 0);
}

int tdm_parser_init(struct tdm_parser *p, const struct tdm_grammar *grammar)
{
        uint32_t limit = (uint32_t)TDM_MIN(grammar->limits.max_matcher_bytes / 16, (size_t)UINT32_MAX / 4);

        *p = (struct tdm_parser){ .grammar = grammar, .max_steps = UINT64_MAX };
        if (tdm_arena_init(&p->arena, &grammar->arena, limit) < 0)
                return -ENOMEM;
        init_fixed(p);
        if (p->arena.failed) {
                tdm_parser_deinit(p);
                return -ENOMEM;
        }
        tdm_parser_begin(p);
        push(p, grammar->root, TDM_FRAME_BOTTOM);
        p->start = closure(p);
        if (p->arena.failed) {
                tdm_parser_deinit(p);
                return TDM_E_UNSUPPORTED;
        }
        return 0;
}

void tdm_parser_deinit(struct tdm_parser *p)
{
        tdm_arena_deinit(&p->arena);
        free(p->pairs.items);
        free(p->work.items);
        free(p->out.items);
        free(p->content.items);
        free(p->states);
        free(p->steps);
        free(p->frames);
        free(p->state_slots);
        free(p->frame_slots);
        free(p->pending);
        free(p->seen);
        free(p->seen_stamp);
        tdm_expr_list_deinit(&p->parts);
        tdm_masks_deinit(&p->masks);
        *p = (struct tdm_parser){ 0 };
}

size_t tdm_parser_bytes(const struct tdm_parser *p)
{
        size_t state_bytes = sizeof(*p->states) + p->grammar->n_classes * sizeof(*p->steps);

        return tdm_arena_bytes(&p->arena) + p->states_capacity * state_bytes +
               p->pairs.capacity * sizeof(struct tdm_pair) + p->frames_capacity * sizeof(*p->frames) +
               (p->n_state_slots + p->n_frame_slots) * sizeof(uint32_t) +
               (p->work.capacity + p->out.capacity + p->content.capacity) * sizeof(struct tdm_pair) +
               p->pending_capacity * sizeof(*p->pending) + p->n_seen_slots * (sizeof(*p->seen) + sizeof(uint32_t)) +
               tdm_masks_bytes(&p->masks);
}

static void table_shrink(void *table, uint32_t n, uint32_t *capacity, size_t size)
{
        void **items = table, *fewer = n > 0 && n < *capacity ? realloc(*items, n * size) : NULL;

        if (!fewer)
                return;
        *items = fewer;
        *capacity = n;
}

void tdm_parser_shrink(struct tdm_parser *p)
{
        uint32_t capacity = p->states_capacity;

        table_shrink(&p->states, p->n_states, &capacity, sizeof(*p->states));
        table_shrink(&p->steps, p->n_states, &p->states_capacity, p->grammar->n_classes * sizeof(*p->steps));
        p->states_capacity = TDM_MIN(capacity, p->states_capacity);
        table_shrink(&p->pairs.items, p->pairs.n, &p->pairs.capacity, sizeof(*p->pairs.items));
        table_shrink(&p->frames, p->n_frames, &p->frames_capacity, sizeof(*p->frames));
        table_shrink(&p->arena.items, p->arena.n, &p->arena.capacity, sizeof(*p->arena.items));
        tdm_masks_shrink(&p->masks);
}

void tdm_parser_begin(struct tdm_parser *p)
{
        p->arena.steps = 0;
        p->arena.max_steps = TDM_MIN(p->grammar->limits.max_mask_steps, p->max_steps);
        p->arena.failed = false;
}

bool tdm_parser_is_full(const struct tdm_parser *p)
{
        return tdm_parser_bytes(p) > p->grammar->limits.max_matcher_bytes / 2;
}

/* ---- compaction: what is kept is made again in fresh tables ---- */

struct move {
        struct tdm_parser *from, *to;
        uint32_t *exprs, *frames; /* old own number to new number + 1 */
};

static uint32_t move_expr(struct move *m, uint32_t e)
{
        uint32_t old = e - m->from->arena.n_base, a, b;
        struct tdm_expr x;

        if (e < m->from->arena.n_base)
                return e;
        if (m->exprs[old])
                return m->exprs[old] - 1;
        x = *tdm_expr_get(&m->from->arena, e);
        switch (x.kind) {
        case TDM_EXPR_KIND_CAT:
                b = move_expr(m, x.b);
                e = tdm_expr_cat(&m->to->arena, move_expr(m, x.a), b);
                break;
        case TDM_EXPR_KIND_ALT:
                a = move_expr(m, x.a);
                e = tdm_expr_alt(&m->to->arena, a, move_expr(m, x.b));
                break;
        case TDM_EXPR_KIND_AND:
                a = move_expr(m, x.a);
                e = tdm_expr_and(&m->to->arena, a, move_expr(m, x.b));
                break;
        case TDM_EXPR_KIND_NOT:
                e = tdm_expr_not(&m->to->arena, move_expr(m, x.a));
                break;
        case TDM_EXPR_KIND_REP:
                e = tdm_expr_rep(&m->to->arena, move_expr(m, x.a), x.b, x.c);
                break;
        case TDM_EXPR_KIND_MOD:
                e = tdm_expr_mod(&m->to->arena, x.a, x.b);
                break;
        default:
                e = TDM_EXPR_NONE; /* sets and calls are the grammar's own */
                break;
        }
        m->exprs[old] = e + 1;
        return e;
}

static uint32_t move_frame(struct move *m, uint32_t frame)
{
        struct tdm_frame old = m->from->frames[frame];
        _cleanup_(freep) struct tdm_pair *list = NULL;

        if (frame == TDM_FRAME_BOTTOM)
                return frame;
        if (m->frames[frame])
                return m->frames[frame] - 1;
        list = malloc(old.n * sizeof(*list));
        if (!list) {
                m->to->arena.failed = true;
                return frame;
        }
        for (uint32_t i = 0; i < old.n; i++) {
                struct tdm_pair pair = m->from->pairs.items[old.at + i];

                list[i].e = move_expr(m, pair.e);
                list[i].frame = move_frame(m, pair.frame);
        }
        sort_pairs(list, old.n);
        m->frames[frame] = intern_frame(m->to, list, old.n) + 1;
        return m->frames[frame] - 1;
}

static uint32_t move_state(struct move *m, uint32_t state)
{
        struct tdm_state old = m->from->states[state];
        _cleanup_(freep) struct tdm_pair *list = malloc((old.n + 1) * sizeof(*list));

        if (!list) {
                m->to->arena.failed = true;
                return state;
        }
        for (uint32_t i = 0; i < old.n; i++) {
                struct tdm_pair pair = m->from->pairs.items[old.at + i];

                list[i].e = move_expr(m, pair.e);
                list[i].frame = move_frame(m, pair.frame);
        }
        sort_pairs(list, old.n);
        return intern_state(m->to, list, old.n, old.whole);
}

int tdm_parser_compact(struct tdm_parser *p, uint32_t *states, uint32_t n)
{
        struct tdm_parser fresh = { .grammar = p->grammar, .max_steps = p->max_steps, .opened_for = p->opened_for };
        struct move m = { p, &fresh, NULL, NULL };
        int r = -ENOMEM;

        if (tdm_arena_init(&fresh.arena, &p->grammar->arena, p->arena.limit) < 0)
                return -ENOMEM;
        m.exprs = calloc(p->arena.n + 1, sizeof(*m.exprs));
        m.frames = calloc(p->n_frames + 1, sizeof(*m.frames));
        init_fixed(&fresh);
        if (m.exprs && m.frames && !fresh.arena.failed) {
                fresh.start = move_state(&m, p->start);
                for (uint32_t i = 0; i < n; i++)
                        states[i] = states[i] == TDM_STATE_DEAD ? states[i] : move_state(&m, states[i]);
                r = fresh.arena.failed ? -ENOMEM : 0;
        }
        free(m.exprs);
        free(m.frames);
        if (r < 0) {
                tdm_parser_deinit(&fresh);
                return r;
        }
        tdm_parser_deinit(p);
        *p = fresh;
        return 0;
}
