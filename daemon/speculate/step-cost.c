/* How long steps take, by their rows. plan.c and draft-plan.c choose by it how many guesses pay.
 *
 * What matters is how much longer a step of more rows takes. The machine's own speed moves more than that: other
 * programs come and go, and a text grows. So two things are kept apart. The level is the present speed, and each step
 * moves it. A number of rows has a part: its time on the level's scale, as a logarithm. Parts are learned only from
 * pairs of steps that follow each other, because the machine's speed was the same in both. The parts of a pair move
 * towards the ratio of its times, each as far as it is uncertain (var, in variances of one step's time).
 *
 * One bad step does not rule out its number of rows for long: an uncertain part counts for few steps. Then the number
 * is tried again, and its part becomes certain.
 *
 * A burst of a draft takes a trip to the worker and a time for each pass. Both are fitted to the bursts that ran, where
 * older ones count less. */
#include "daemon/speculate/private.h"

#include <math.h>

/* For how many later steps a measurement counts: a certain one, and an uncertain one of a sequence alone. With n
 * sequences a try of more rows makes all of them wait, so an uncertain one counts n * n times as long, up to
 * COST_STEPS_COMPANY. A step without guesses makes no sequence wait, and all others are judged by it. So its
 * measurement counts as long with many sequences as with one. */
#define COST_STEPS 256u
#define COST_STEPS_UNCERTAIN 16u
#define COST_STEPS_COMPANY 1024u
/* The estimated cost of another row until it is measured, in parts of a row's share of a step without guesses. The
 * estimate is low: the first step corrects a low one, and no step would correct a high one. On a GPU the second row may
 * cost much, because it takes another kernel, and the rows behind it nothing. */
#define ROW_PART (1.0f / 64)
/* Another row that takes this part of a row's share is bound by arithmetic, and the next ones will be. */
#define ROW_BOUND 0.5f
/* The weight of a new step in the level. */
#define LEVEL_WEIGHT 0.25f
/* Variances of a part: after its first step; the least that it can have; once it is old; the largest that still counts
 * as certain. */
#define VAR_FIRST 1.0f
#define VAR_LEAST (1.0f / 32)
#define VAR_OLD 0.25f
#define VAR_KNOWN 0.3f
/* A step that is off by more than this, as a logarithm to base 2, was disturbed. */
#define OUTLIER 0.5f
/* A step may have GROW_ROWS times the rows of the largest one that was measured, or GROW_LEAST more rows than that one,
 * whichever is more. */
#define GROW_ROWS 2u
#define GROW_LEAST 4u
/* How much longer a step may take with guesses where some of its sequences have none. */
#define OTHERS_WAIT 1.03f
/* The weight of a new step of a draft that reads, in the mean of such steps. */
#define READ_WEIGHT 0.25f
/* Each new burst multiplies the sums of the older ones by this. */
#define BURST_DECAY 0.95f
/* Once BURST_SOME bursts are known, one that takes BURST_OUTLIER times the expected time was disturbed. */
#define BURST_SOME 4.0f
#define BURST_OUTLIER 2.0f
/* The variance of the bursts' lengths from which on a pass can be told from the trip. */
#define BURST_VARIES 0.1f

/* ---- steps ---- */

/* One for each number of rows up to 32, then for each eight. */
static uint32_t cost_index(uint32_t n_rows)
{
        return TDM_MIN(n_rows <= 32 ? n_rows : 32 + (n_rows - 25) / 8, TDM_N_STEP_COSTS - 1);
}

static uint32_t cost_rows(uint32_t index)
{
        return index <= 32 ? index : 32 + 8 * (index - 32);
}

/* base: rows of a step without guesses. */
static bool is_recent(const struct tdm_step_costs *of, uint32_t index, uint32_t base)
{
        const struct tdm_step_cost *c = &of->of[index];
        uint32_t n = TDM_MIN(base, 64u), uncertain = TDM_MIN(COST_STEPS_UNCERTAIN * n * n, COST_STEPS_COMPANY);

        return c->var > 0 && of->n - c->stamp <= (c->var > VAR_KNOWN ? uncertain : TDM_MAX(uncertain, COST_STEPS));
}

/* Learns the parts of two steps that follow each other: the step before, and this one. */
static void learn_pair(struct tdm_step_costs *of, struct tdm_step_cost *c, float ns_log)
{
        struct tdm_step_cost *last = &of->of[of->last];
        float vars = c->var + last->var, most = OUTLIER * (1 + 4 * vars);
        float off = ns_log - of->last_ns_log - (c->part - last->part);

        off = TDM_MIN(TDM_MAX(off, -most), most);
        c->part += off * c->var / (vars + 2);
        last->part -= off * last->var / (vars + 2);
        c->var = TDM_MAX(c->var - c->var * c->var / (vars + 2), VAR_LEAST);
        last->var = TDM_MAX(last->var - last->var * last->var / (vars + 2), VAR_LEAST);
}

void tdm_step_costs_note(struct tdm_step_costs *of, uint32_t n_rows, uint64_t ns)
{
        uint32_t index = cost_index(n_rows);
        struct tdm_step_cost *c = &of->of[index];
        float ns_log = log2f((float)TDM_MAX(ns, UINT64_C(1))), off;

        if (of->n++ == 0)
                of->level = ns_log;
        if (c->var == 0) {
                c->part = ns_log - of->level;
                c->var = VAR_FIRST;
        } else {
                if (of->n - c->stamp > COST_STEPS)
                        c->var = TDM_MAX(c->var, VAR_OLD);
                if (of->last != index && of->of[of->last].var > 0)
                        learn_pair(of, c, ns_log);
                off = ns_log - c->part - of->level;
                of->level += LEVEL_WEIGHT * TDM_MIN(TDM_MAX(off, -OUTLIER), OUTLIER);
        }
        c->stamp = of->n;
        of->last = index;
        of->last_ns_log = ns_log;
}

/* More rows never take less. */
static float measured_ns(const struct tdm_step_costs *of, uint32_t index, uint32_t base)
{
        return exp2f(of->level + TDM_MAX(of->of[index].part, of->of[base].part));
}

float tdm_step_costs_expect(const struct tdm_step_costs *of, uint32_t n_rows, uint32_t base)
{
        uint32_t index = cost_index(n_rows), first = cost_index(base), below = index, above = index + 1, before;
        float slope, row, ns;

        if (!is_recent(of, first, 1))
                return 0;
        while (below > first && !is_recent(of, below, base))
                below--;
        ns = measured_ns(of, below, first);
        if (below == index)
                return ns;
        while (above < TDM_N_STEP_COSTS && !is_recent(of, above, base))
                above++;
        if (above < TDM_N_STEP_COSTS)
                return ns + (measured_ns(of, above, first) - ns) * (float)(n_rows - cost_rows(below)) /
                                    (float)(cost_rows(above) - cost_rows(below));
        row = measured_ns(of, first, first) / (float)base;
        slope = ROW_PART * row;
        before = below;
        while (before > first && (before == below || !is_recent(of, before, base)))
                before--;
        if (before < below) {
                float seen = (ns - measured_ns(of, before, first)) / (float)(cost_rows(below) - cost_rows(before));

                slope = seen > ROW_BOUND * row ? seen : slope;
        }
        return ns + slope * (float)(n_rows - TDM_MIN(n_rows, cost_rows(below)));
}

/* The most rows that were measured lately, at least base. */
static uint32_t known_rows(const struct tdm_step_costs *of, uint32_t base)
{
        uint32_t known = base;

        for (uint32_t i = cost_index(base); i < TDM_N_STEP_COSTS; i++)
                if (is_recent(of, i, base))
                        known = TDM_MAX(known, cost_rows(i));
        return known;
}

uint32_t tdm_step_costs_most_rows(const struct tdm_step_costs *of, uint32_t base)
{
        uint32_t known = known_rows(of, base);

        return TDM_MAX(GROW_ROWS * known, known + GROW_LEAST);
}

bool tdm_step_costs_others_wait(const struct tdm_step_costs *of, uint32_t n_rows, float ns, float base)
{
        /* A guess at what rows cost keeps no step from being tried. */
        return known_rows(of, n_rows - 1) >= n_rows && ns > OTHERS_WAIT * base;
}

/* ---- bursts ---- */

static struct tdm_burst_cost *burst_of(struct tdm_draft_costs *of, uint32_t n_seqs)
{
        return &of->bursts[TDM_MIN(n_seqs, TDM_N_BURST_COSTS) - 1];
}

static float burst_ns(const struct tdm_burst_cost *c, float n_passes)
{
        float spread = c->n * c->sum_xx - c->sum_x * c->sum_x, pass = c->sum_y / c->sum_x, trip;

        if (spread < BURST_VARIES * c->n * c->n)
                return pass * n_passes;
        pass = TDM_MIN(TDM_MAX((c->n * c->sum_xy - c->sum_x * c->sum_y) / spread, 0.0f), pass);
        trip = (c->sum_y - pass * c->sum_x) / c->n;
        return trip + pass * n_passes;
}

void tdm_draft_costs_note_burst(struct tdm_draft_costs *of, uint32_t n_seqs, uint32_t n_passes, uint64_t ns)
{
        struct tdm_burst_cost *c = burst_of(of, n_seqs);
        float x = (float)TDM_MAX(n_passes, 1u), y = (float)TDM_MAX(ns, UINT64_C(1));

        if (c->n >= BURST_SOME)
                y = TDM_MIN(y, BURST_OUTLIER * burst_ns(c, x));
        c->n = c->n * BURST_DECAY + 1;
        c->sum_x = c->sum_x * BURST_DECAY + x;
        c->sum_y = c->sum_y * BURST_DECAY + y;
        c->sum_xx = c->sum_xx * BURST_DECAY + x * x;
        c->sum_xy = c->sum_xy * BURST_DECAY + x * y;
}

void tdm_draft_costs_note_reading(struct tdm_draft_costs *of, uint32_t n_rows, uint64_t ns)
{
        float row_ns = (float)TDM_MAX(ns, UINT64_C(1)) / (float)TDM_MAX(n_rows, 1u);

        of->read_row_ns += (of->read_row_ns > 0 ? READ_WEIGHT : 1) * (row_ns - of->read_row_ns);
}

float tdm_draft_costs_expect(const struct tdm_draft_costs *of, uint32_t n_seqs, float n_passes)
{
        const struct tdm_burst_cost *c = &of->bursts[TDM_MIN(n_seqs, TDM_N_BURST_COSTS) - 1];

        return c->n > 0 ? burst_ns(c, n_passes) : 0;
}

void tdm_draft_costs_forget(struct tdm_draft_costs *of, uint32_t n_seqs)
{
        *burst_of(of, n_seqs) = (struct tdm_burst_cost){ 0 };
}
