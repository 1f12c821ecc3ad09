/* How long steps take, by their rows. speculate.c and draft.c choose by it how many guesses pay.
 *
 * What matters is how much longer a step of more rows takes. The machine's own speed moves more than that: other
 * programs come and go, and a text grows. So two things are kept apart. The level is the speed of now, and each step
 * moves it. A number of rows has a part, its time on the level's scale, as a logarithm. It is learned only from pairs:
 * of two steps that follow each other the machine was the same. Their parts move towards the ratio that was seen, each
 * as far as it is uncertain (var, in variances of one step's time).
 *
 * One bad step does not rule out its number of rows for long: a part that is uncertain counts for few steps. Then it is
 * tried again, and becomes certain.
 *
 * A burst of a draft takes a trip to the worker and a time for each pass. Both are fitted to the bursts that ran, where
 * older ones count less. */
#include "daemon/schedule/private.h"

#include <math.h>

/* A measurement counts for so many later steps, and an uncertain one for so many. In company a try of more rows costs
 * all of them: there it counts for so many times the square of the sequences, and at most for so many. A step without
 * guesses makes nobody wait, and all others are judged by it. So its measurement counts in company as it does alone. */
#define COST_STEPS 256u
#define COST_STEPS_UNCERTAIN 16u
#define COST_STEPS_COMPANY 1024u
/* Until it is measured: what a row more costs, in parts of a row's share of a step without guesses. It is low, because
 * a low estimate is corrected by the first step and a high one never is. A GPU's second row may cost much, where it
 * takes another kernel, and the next ones nothing. */
#define ROW_PART (1.0f / 64)
/* A row more that takes so much of a row's share is bound by arithmetic, and the next ones will be. */
#define ROW_BOUND 0.5f
/* What a step counts in the level. */
#define LEVEL_WEIGHT 0.25f
/* Of a part: of the first step, at least, of one that is old, and at most of one that counts as certain. */
#define VAR_FIRST 1.0f
#define VAR_LEAST (1.0f / 32)
#define VAR_OLD 0.25f
#define VAR_KNOWN 0.3f
/* What a step may be off, as a logarithm to base 2, before it was disturbed. */
#define OUTLIER 0.5f
/* A step gets at most so many times the rows of the largest one that was measured, and at least so many more. */
#define GROW_ROWS 2u
#define GROW_LEAST 4u
/* So many times as long may a step take with guesses, where some of its sequences have none. */
#define OTHERS_WAIT 1.03f
/* What a step of a draft that reads counts in its mean. */
#define READ_WEIGHT 0.25f
/* What is left of what was counted of bursts with each newer one; from how many on one that takes so many times as long
 * was disturbed; and how much their lengths have to vary to tell a pass from the trip. */
#define BURST_DECAY 0.95f
#define BURST_SOME 4.0f
#define BURST_OUTLIER 2.0f
#define BURST_VARIES 0.1f

/* ---- steps ---- */

/* One for each number of rows up to 32, then for each eight. */
static uint32_t cost_index(uint32_t n_rows)
{
        return TDM_MIN(n_rows <= 32 ? n_rows : 32 + (n_rows - 25) / 8, N_COSTS - 1);
}

static uint32_t cost_rows(uint32_t index)
{
        return index <= 32 ? index : 32 + 8 * (index - 32);
}

/* base: rows of a step without guesses. */
static bool is_recent(const struct lane *lane, uint32_t index, uint32_t base)
{
        const struct cost *c = &lane->costs[index];
        uint32_t n = TDM_MIN(base, 64u), uncertain = TDM_MIN(COST_STEPS_UNCERTAIN * n * n, COST_STEPS_COMPANY);

        return c->var > 0 &&
               lane->n_costs - c->stamp <= (c->var > VAR_KNOWN ? uncertain : TDM_MAX(uncertain, COST_STEPS));
}

/* Of the step before and of this one. */
static void learn_pair(struct lane *lane, struct cost *c, float ns_log)
{
        struct cost *last = &lane->costs[lane->last_cost];
        float vars = c->var + last->var, most = OUTLIER * (1 + 4 * vars);
        float off = ns_log - lane->last_ns_log - (c->part - last->part);

        off = TDM_MIN(TDM_MAX(off, -most), most);
        c->part += off * c->var / (vars + 2);
        last->part -= off * last->var / (vars + 2);
        c->var = TDM_MAX(c->var - c->var * c->var / (vars + 2), VAR_LEAST);
        last->var = TDM_MAX(last->var - last->var * last->var / (vars + 2), VAR_LEAST);
}

static void note_step(struct lane *lane, uint32_t index, float ns)
{
        struct cost *c = &lane->costs[index];
        float ns_log = log2f(ns), off;

        if (lane->n_costs++ == 0)
                lane->cost_level = ns_log;
        if (c->var == 0) {
                c->part = ns_log - lane->cost_level;
                c->var = VAR_FIRST;
        } else {
                if (lane->n_costs - c->stamp > COST_STEPS)
                        c->var = TDM_MAX(c->var, VAR_OLD);
                if (lane->last_cost != index && lane->costs[lane->last_cost].var > 0)
                        learn_pair(lane, c, ns_log);
                off = ns_log - c->part - lane->cost_level;
                lane->cost_level += LEVEL_WEIGHT * TDM_MIN(TDM_MAX(off, -OUTLIER), OUTLIER);
        }
        c->stamp = lane->n_costs;
        lane->last_cost = index;
        lane->last_ns_log = ns_log;
}

/* More rows never take less. */
static float measured(const struct lane *lane, uint32_t index, uint32_t base)
{
        return exp2f(lane->cost_level + TDM_MAX(lane->costs[index].part, lane->costs[base].part));
}

float tdm_scheduler_step_cost(const struct lane *lane, uint32_t n_rows, uint32_t base)
{
        uint32_t index = cost_index(n_rows), first = cost_index(base), below = index, above = index + 1, before;
        float slope, row, ns;

        if (!is_recent(lane, first, 1))
                return 0;
        while (below > first && !is_recent(lane, below, base))
                below--;
        ns = measured(lane, below, first);
        if (below == index)
                return ns;
        while (above < N_COSTS && !is_recent(lane, above, base))
                above++;
        if (above < N_COSTS)
                return ns + (measured(lane, above, first) - ns) * (float)(n_rows - cost_rows(below)) /
                                    (float)(cost_rows(above) - cost_rows(below));
        row = measured(lane, first, first) / (float)base;
        slope = ROW_PART * row;
        before = below;
        while (before > first && (before == below || !is_recent(lane, before, base)))
                before--;
        if (before < below) {
                float seen = (ns - measured(lane, before, first)) / (float)(cost_rows(below) - cost_rows(before));

                slope = seen > ROW_BOUND * row ? seen : slope;
        }
        return ns + slope * (float)(n_rows - TDM_MIN(n_rows, cost_rows(below)));
}

/* The most rows that were measured lately, at least base. */
static uint32_t known_rows(const struct lane *lane, uint32_t base)
{
        uint32_t known = base;

        for (uint32_t i = cost_index(base); i < N_COSTS; i++)
                if (is_recent(lane, i, base))
                        known = TDM_MAX(known, cost_rows(i));
        return known;
}

uint32_t tdm_scheduler_most_rows(const struct lane *lane, uint32_t base)
{
        uint32_t known = known_rows(lane, base);

        return TDM_MAX(GROW_ROWS * known, known + GROW_LEAST);
}

bool tdm_scheduler_others_wait(const struct lane *lane, uint32_t n_rows, float ns, float base)
{
        /* A guess at what rows cost keeps no step from being tried. */
        return known_rows(lane, n_rows - 1) >= n_rows && ns > OTHERS_WAIT * base;
}

/* ---- bursts ---- */

static struct burst_cost *burst_of(struct lane *lane, uint32_t n_seqs)
{
        return &lane->bursts[TDM_MIN(n_seqs, N_BURST_COSTS) - 1];
}

static float burst_ns(const struct burst_cost *c, float n_passes)
{
        float spread = c->n * c->sum_xx - c->sum_x * c->sum_x, pass = c->sum_y / c->sum_x, trip;

        if (spread < BURST_VARIES * c->n * c->n)
                return pass * n_passes;
        pass = TDM_MIN(TDM_MAX((c->n * c->sum_xy - c->sum_x * c->sum_y) / spread, 0.0f), pass);
        trip = (c->sum_y - pass * c->sum_x) / c->n;
        return trip + pass * n_passes;
}

static void note_burst(struct burst_cost *c, float n_passes, float ns)
{
        if (c->n >= BURST_SOME)
                ns = TDM_MIN(ns, BURST_OUTLIER * burst_ns(c, n_passes));
        c->n = c->n * BURST_DECAY + 1;
        c->sum_x = c->sum_x * BURST_DECAY + n_passes;
        c->sum_y = c->sum_y * BURST_DECAY + ns;
        c->sum_xx = c->sum_xx * BURST_DECAY + n_passes * n_passes;
        c->sum_xy = c->sum_xy * BURST_DECAY + n_passes * ns;
}

float tdm_scheduler_burst_cost(struct lane *lane, uint32_t n_seqs, float n_passes)
{
        const struct burst_cost *c = burst_of(lane, n_seqs);

        return c->n > 0 ? burst_ns(c, n_passes) : 0;
}

void tdm_scheduler_forget_bursts(struct lane *lane, uint32_t n_seqs)
{
        *burst_of(lane, n_seqs) = (struct burst_cost){ 0 };
}

void tdm_scheduler_note_cost(struct lane *lane, const struct flight *f, uint64_t ns)
{
        bool is_draft = f->n_seqs > 0 && f->seqs[0].seq->is_draft;
        float took = (float)TDM_MAX(ns, UINT64_C(1)), row_ns = took / (float)TDM_MAX(f->n_rows, 1u);

        if (f->reads && is_draft)
                lane->read_row_ns += (lane->read_row_ns > 0 ? READ_WEIGHT : 1) * (row_ns - lane->read_row_ns);
        if (f->reads)
                return;
        if (is_draft)
                note_burst(burst_of(lane, f->n_seqs), (float)TDM_MAX(f->n_ran, 1u), took);
        else
                note_step(lane, cost_index(f->n_rows), took);
}
