/* A matcher: a parser, the states behind the last tokens, and the masks that were made. */
#include "engine/grammar/mask.h"

enum { N_MASKS = 2 };

struct tdm_matcher {
        struct tdm_grammar *grammar;
        struct tdm_vocabulary *vocabulary;
        struct tdm_parser parser;
        uint32_t history[TDM_MATCHER_ROLLBACK_MAX + 1]; /* ring: the state behind each of the last tokens */
        uint32_t at, n_history; /* at: the present one; n_history: how many before it are held */
        struct tdm_mask_level *levels;
        struct {
                uint32_t state; /* TDM_STATE_DEAD: free */
                uint64_t *words;
        } masks[N_MASKS];
        unsigned next_mask;
};

/* ---- tables from matcher to matcher ---- */

static void spare_free(struct tdm_parser *spare)
{
        if (!spare)
                return;
        tdm_parser_deinit(spare);
        free(spare);
}

/* Its release pairs with the acquire of who takes the tables out. */
static struct tdm_parser *spare_exchange(struct tdm_grammar *grammar, struct tdm_parser *spare)
{
        return atomic_exchange_explicit(&grammar->spare, spare, memory_order_acq_rel);
}

void tdm_grammar_drop_spare(struct tdm_grammar *grammar)
{
        spare_free(spare_exchange(grammar, NULL));
}

/* False: there are none. */
static bool tables_take(struct tdm_parser *parser, struct tdm_grammar *grammar)
{
        struct tdm_parser *spare = spare_exchange(grammar, NULL);

        if (!spare)
                return false;
        *parser = *spare;
        parser->max_steps = UINT64_MAX;
        free(spare);
        return true;
}

/* False: they are too large, or there is no memory. */
static bool tables_leave(struct tdm_parser *parser, struct tdm_grammar *grammar)
{
        size_t max = atomic_load_explicit(&grammar->max_spare_bytes, memory_order_relaxed);
        struct tdm_parser *spare;

        if (max == 0 || parser->arena.failed)
                return false;
        if (tdm_parser_bytes(parser) + sizeof(*spare) > max)
                tdm_parser_shrink(parser);
        if (tdm_parser_bytes(parser) + sizeof(*spare) > max) {
                tdm_masks_forget(parser);
                tdm_masks_deinit(&parser->masks);
        }
        spare = tdm_parser_bytes(parser) + sizeof(*spare) > max ? NULL : malloc(sizeof(*spare));
        if (!spare)
                return false;
        *spare = *parser;
        spare_free(spare_exchange(grammar, spare));
        return true;
}

/* What states know of another vocabulary's groups does not hold for this one. */
static void vocabulary_begin(struct tdm_parser *parser, const struct tdm_vocabulary *vocabulary)
{
        if (parser->opened_for == vocabulary->number)
                return;
        for (uint32_t i = 0; i < parser->n_states; i++)
                parser->states[i].open = 0;
        tdm_masks_forget(parser);
        parser->opened_for = vocabulary->number;
}

/* ---- life ---- */

int tdm_matcher_new(struct tdm_matcher **ret, struct tdm_grammar *grammar, struct tdm_vocabulary *vocabulary)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = calloc(1, sizeof(*m));
        int r = 0;

        if (!m)
                return -ENOMEM;
        if (!tables_take(&m->parser, grammar))
                r = tdm_parser_init(&m->parser, grammar);
        if (r != 0)
                return r;
        m->grammar = tdm_grammar_ref(grammar);
        if (vocabulary) {
                m->vocabulary = tdm_vocabulary_ref(vocabulary);
                vocabulary_begin(&m->parser, vocabulary);
                m->levels = malloc(((size_t)vocabulary->max_depth + 1) * sizeof(*m->levels));
                if (!m->levels)
                        return -ENOMEM;
        }
        tdm_matcher_reset(m);
        *ret = steal_ptr(&m);
        return 0;
}

void tdm_matcher_destroy(struct tdm_matcher *m)
{
        if (!m)
                return;
        if (m->parser.grammar && !(m->grammar && tables_leave(&m->parser, m->grammar)))
                tdm_parser_deinit(&m->parser);
        for (unsigned i = 0; i < N_MASKS; i++)
                free(m->masks[i].words);
        free(m->levels);
        tdm_vocabulary_unref(m->vocabulary);
        tdm_grammar_unref(m->grammar);
        free(m);
}

void tdm_matcher_destroyp(struct tdm_matcher **m)
{
        tdm_matcher_destroy(*m);
}

void tdm_matcher_reset(struct tdm_matcher *m)
{
        m->at = 0;
        m->n_history = 0;
        m->history[0] = m->parser.start;
}

size_t tdm_matcher_bytes(const struct tdm_matcher *m)
{
        size_t n = sizeof(*m) + tdm_parser_bytes(&m->parser);

        if (m->vocabulary)
                n += ((size_t)m->vocabulary->max_depth + 1) * sizeof(*m->levels);

        for (unsigned i = 0; i < N_MASKS; i++)
                if (m->masks[i].words)
                        n += m->vocabulary->n_words * sizeof(uint64_t);
        return n;
}

static int compact(struct tdm_matcher *m)
{
        uint32_t states[TDM_MATCHER_ROLLBACK_MAX + 1];
        const uint32_t size = TDM_ARRAY_SIZE(m->history);
        int r;

        for (uint32_t i = 0; i <= m->n_history; i++)
                states[i] = m->history[(m->at + size - i) % size];
        r = tdm_parser_compact(&m->parser, states, m->n_history + 1);
        if (r < 0)
                return r;
        for (uint32_t i = 0; i <= m->n_history; i++)
                m->history[(m->at + size - i) % size] = states[i];
        for (unsigned i = 0; i < N_MASKS; i++)
                m->masks[i].state = TDM_STATE_DEAD;
        return 0;
}

/* Before an operation: room in the caches, and a fresh budget. */
static int matcher_begin(struct tdm_matcher *m)
{
        int r = tdm_parser_is_full(&m->parser) ? compact(m) : 0;

        tdm_parser_begin(&m->parser);
        return r;
}

void tdm_matcher_set_max_steps(struct tdm_matcher *m, uint64_t max_steps)
{
        m->parser.max_steps = max_steps;
}

int tdm_matcher_trim(struct tdm_matcher *m)
{
        int r = compact(m);

        if (r < 0)
                return r;
        for (unsigned i = 0; i < N_MASKS; i++)
                free(steal_ptr(&m->masks[i].words));
        return 0;
}

/* The operation failed because it may take fewer steps than the grammar allows. */
static bool is_cut_short(const struct tdm_matcher *m)
{
        return m->parser.max_steps < m->grammar->limits.max_mask_steps &&
               m->parser.arena.steps > m->parser.arena.max_steps;
}

/* Makes the mask of the present state, within the budget that the parser has. */
static int mask_make(struct tdm_matcher *m, uint64_t *words)
{
        uint32_t state = m->history[m->at];
        unsigned base;
        int r = tdm_mask_fill(&m->parser, m->vocabulary, state, m->levels, words, &base);

        if (r == 0)
                tdm_mask_keep(&m->parser, m->vocabulary, state, base, words);
        return r;
}

/* The place where the next mask goes; NULL: there is no memory. */
static uint64_t *mask_place(struct tdm_matcher *m)
{
        uint64_t **words = &m->masks[m->next_mask].words;

        if (!*words)
                *words = malloc(TDM_MAX(m->vocabulary->n_words, 1u) * sizeof(**words));
        m->masks[m->next_mask].state = TDM_STATE_DEAD;
        return *words;
}

int tdm_matcher_mask(struct tdm_matcher *m, const uint64_t **ret_words)
{
        uint32_t state = m->history[m->at];
        uint64_t *words;
        int r;

        if (!m->vocabulary)
                return -EINVAL;
        for (unsigned i = 0; i < N_MASKS; i++) {
                if (m->masks[i].state == state) {
                        *ret_words = m->masks[i].words;
                        return 0;
                }
        }
        words = mask_place(m);
        if (!words)
                return -ENOMEM;
        if (!tdm_mask_recall(&m->parser, m->vocabulary, state, words)) {
                r = matcher_begin(m);
                if (r < 0)
                        return r;
                r = mask_make(m, words);
                if (r < 0 && is_cut_short(m))
                        return -EAGAIN;
                if (r < 0 && compact(m) == 0) { /* once more with empty caches */
                        tdm_parser_begin(&m->parser);
                        r = mask_make(m, words);
                }
                if (r < 0)
                        return TDM_E_UNSUPPORTED;
        }
        m->masks[m->next_mask].state = m->history[m->at];
        m->next_mask = (m->next_mask + 1) % N_MASKS;
        *ret_words = words;
        return 0;
}

/* The state behind the bytes. States in the midst of known texts are left out. */
static uint32_t state_behind(struct tdm_parser *p, uint32_t state, const uint8_t *data, size_t size)
{
        for (size_t i = 0; i < size && state != TDM_STATE_DEAD;) {
                struct tdm_literal l;
                bool more = i + 1 < size && tdm_literal_begin(p, state, &l);

                if (!more) {
                        state = tdm_parser_step(p, state, data[i++]);
                        continue;
                }
                for (; more && i < size; more = tdm_literal_next(p, &l))
                        if (data[i++] != l.byte)
                                return TDM_STATE_DEAD;
                state = tdm_literal_state(p, &l);
        }
        return state;
}

/* ---- masks ahead ---- */

/* How many masks, how many tokens that a mask allows are followed, and how many of them begin with one byte. Tokens of
 * small numbers are looked at first: where pieces were merged they are the frequent ones. */
enum { AHEAD_MASKS = 24, AHEAD_TOKENS = 64, AHEAD_PER_BYTE = 4 };

struct ahead {
        uint32_t states[AHEAD_MASKS];
        uint32_t n;
};

static void ahead_add(struct ahead *a, uint32_t state)
{
        for (uint32_t i = 0; i < a->n; i++)
                if (a->states[i] == state)
                        return;
        if (state != TDM_STATE_DEAD && a->n < AHEAD_MASKS)
                a->states[a->n++] = state;
}

/* The states behind some of the tokens that the state's mask allows. */
static void ahead_follow(struct tdm_matcher *m, struct ahead *a, uint32_t state)
{
        const struct tdm_vocabulary *v = m->vocabulary;
        uint8_t n_of[256] = { 0 };
        uint32_t n = 0, place;

        ahead_add(a, tdm_parser_step(&m->parser, state, 'a'));
        for (uint32_t i = 0; i < tdm_mask_n_differing(&m->parser, state); i++) {
                for (uint64_t left = tdm_mask_differing(&m->parser, v, state, i, &place); left; left &= left - 1) {
                        uint32_t id = place * 64 + (uint32_t)__builtin_ctzll(left);
                        const uint8_t *piece = (const uint8_t *)v->bytes + v->piece_at[id];

                        if (n == AHEAD_TOKENS || a->n == AHEAD_MASKS || m->parser.arena.failed)
                                return;
                        if (v->piece_at[id] == v->piece_at[id + 1] || n_of[*piece] == AHEAD_PER_BYTE)
                                continue;
                        n_of[*piece]++;
                        n++;
                        ahead_add(a, state_behind(&m->parser, state, piece, v->piece_at[id + 1] - v->piece_at[id]));
                }
        }
}

int tdm_matcher_look_ahead(struct tdm_matcher *m, uint64_t max_steps)
{
        struct tdm_parser *p = &m->parser;
        struct ahead a = { { m->history[m->at] }, 1 };
        uint64_t taken = 0;
        uint64_t *words;
        unsigned base;

        if (!m->vocabulary || p->masks.n > 1)
                return 0;
        words = mask_place(m);
        if (!words)
                return -ENOMEM;
        for (uint32_t i = 0; i < a.n && taken < max_steps && !tdm_parser_is_full(p); i++) {
                tdm_parser_begin(p);
                p->arena.max_steps = TDM_MIN(p->arena.max_steps, max_steps - taken);
                if (p->states[a.states[i]].mask == 0) {
                        if (tdm_mask_fill(p, m->vocabulary, a.states[i], m->levels, words, &base) < 0)
                                break;
                        tdm_mask_keep(p, m->vocabulary, a.states[i], base, words);
                }
                ahead_follow(m, &a, a.states[i]);
                taken += p->arena.steps;
        }
        return 0;
}

/* ---- accepting ---- */

static void matcher_add_state(struct tdm_matcher *m, uint32_t state)
{
        m->at = (m->at + 1) % TDM_ARRAY_SIZE(m->history);
        m->history[m->at] = state;
        m->n_history = TDM_MIN(m->n_history + 1, TDM_MATCHER_ROLLBACK_MAX);
}

int tdm_matcher_accept_bytes(struct tdm_matcher *m, const char *data, size_t size)
{
        int r = matcher_begin(m);

        for (unsigned attempt = 0; r == 0; attempt++) {
                uint32_t state = state_behind(&m->parser, m->history[m->at], (const uint8_t *)data, size);

                if (!m->parser.arena.failed) {
                        if (state == TDM_STATE_DEAD)
                                return 0;
                        matcher_add_state(m, state);
                        return 1;
                }
                if (is_cut_short(m))
                        return -EAGAIN;
                if (attempt > 0)
                        return TDM_E_UNSUPPORTED;
                r = compact(m);
                tdm_parser_begin(&m->parser);
        }
        return r;
}

int tdm_matcher_accept(struct tdm_matcher *m, uint32_t id)
{
        const struct tdm_vocabulary *v = m->vocabulary;

        if (!v || id >= v->n_vocab)
                return -EINVAL;
        for (uint32_t i = 0; i < v->n_ends; i++) {
                if (v->ends[i] != id)
                        continue;
                if (!tdm_matcher_is_whole(m))
                        return 0;
                matcher_add_state(m, m->history[m->at]);
                return 1;
        }
        if (v->piece_at[id] == v->piece_at[id + 1])
                return 0;
        return tdm_matcher_accept_bytes(m, v->bytes + v->piece_at[id], v->piece_at[id + 1] - v->piece_at[id]);
}

int tdm_matcher_rollback(struct tdm_matcher *m, uint32_t n)
{
        const uint32_t size = TDM_ARRAY_SIZE(m->history);

        if (n > m->n_history)
                return -ERANGE;
        m->at = (m->at + size - n) % size;
        m->n_history -= n;
        return 0;
}

bool tdm_matcher_is_whole(const struct tdm_matcher *m)
{
        return m->parser.states[m->history[m->at]].whole;
}

/* The only byte that can follow state, 256 where there is none, or -1 where there are several. */
static int only_byte(struct tdm_parser *p, uint32_t state, uint32_t *ret_next)
{
        int only = 256;

        for (unsigned byte = 0; byte < 256; byte++) {
                uint32_t next = tdm_parser_step(p, state, (uint8_t)byte);

                if (next == TDM_STATE_DEAD)
                        continue;
                if (only != 256)
                        return -1;
                only = (int)byte;
                *ret_next = next;
        }
        return only;
}

int tdm_matcher_is_final(struct tdm_matcher *m)
{
        uint32_t next;
        int r = matcher_begin(m);

        if (r < 0)
                return r;
        r = only_byte(&m->parser, m->history[m->at], &next);
        return m->parser.arena.failed ? TDM_E_UNSUPPORTED : r == 256;
}

int tdm_matcher_forced(struct tdm_matcher *m, char *data, size_t capacity)
{
        uint32_t state;
        size_t n = 0;
        int byte, r = matcher_begin(m);

        if (r < 0)
                return r;
        state = m->history[m->at];
        while (n < TDM_MIN(capacity, (size_t)INT32_MAX) && !m->parser.states[state].whole) {
                byte = only_byte(&m->parser, state, &state);
                if (byte < 0 || byte > 255 || m->parser.arena.failed)
                        break;
                data[n++] = (char)byte;
        }
        return (int)n;
}
