/* The trial that finds the cheapest placement of a model on two devices that differ in bits.
 *
 * Each placement runs steps of one row and steps of many rows, a few times each, and the best time of each shape counts.
 * The placements take turns, so that a change of the machine's load meets all of them alike. This file only says which
 * step is next and what the times mean; the fleet runs the steps (daemon/fleet/trial.c). */
#include "daemon/placement/placement.h"

#define MANY_ROWS 32u
/* Steps of one row for each step of many rows, as expected of a model between two prompts. Both shapes then count about
 * alike. */
#define WEIGHT_OF_ONE 32u
#define MIN_TIMES 4u
#define MAX_TIMES 64u
#define MAX_LOSSES 3u
/* Time for each shape. A small model is tried for at least AMPLE_NS, or the load of a moment would decide. A big model
 * is tried for at most ENOUGH_NS. */
#define AMPLE_NS (200 * TDM_NSEC_PER_MSEC)
#define ENOUGH_NS (4 * TDM_NSEC_PER_SEC)

static const enum tdm_placement choices[TDM_N_TRIAL_PLACEMENTS] = {
        TDM_PLACEMENT_SPLIT,
        TDM_PLACEMENT_NPU,
        TDM_PLACEMENT_GPU,
};

enum tdm_placement tdm_placement_trial_next(struct tdm_placement_trial *t, uint32_t max_rows, uint32_t *ret_n_rows)
{
        t->many_rows = TDM_MIN(MANY_ROWS, max_rows);
        *ret_n_rows = t->shape == 0 ? 1 : t->many_rows;
        return choices[t->choice];
}

/* With one row it takes at least twice as long as the best placement. Steps of many rows cannot make up for that, since
 * they take at most as long as that many steps of one row. A device that is far too slow (a GPU that the CPU emulates)
 * would need minutes for steps of many rows. */
static bool is_hopeless(const struct tdm_placement_trial *t, unsigned choice)
{
        for (unsigned i = 0; i < TDM_N_TRIAL_PLACEMENTS; i++)
                if (t->best_ns[choice][0] >= 2 * t->best_ns[i][0])
                        return true;
        return false;
}

static bool is_enough(const struct tdm_placement_trial *t)
{
        return t->n >= MAX_TIMES || (t->n >= MIN_TIMES && t->spent_ns > AMPLE_NS) ||
               (t->n > 0 && t->spent_ns > ENOUGH_NS);
}

/* Goes on to the next step: first those of one row, then those of many rows. False: there is none. */
static bool advance(struct tdm_placement_trial *t)
{
        do {
                if (++t->choice == TDM_N_TRIAL_PLACEMENTS) {
                        t->choice = 0;
                        t->n++;
                }
                if (t->choice == 0 && is_enough(t)) {
                        t->n = 0;
                        t->spent_ns = 0;
                        t->shape++;
                        for (unsigned i = 0; t->shape == 1 && i < TDM_N_TRIAL_PLACEMENTS; i++)
                                if (is_hopeless(t, i))
                                        t->best_ns[i][1] = t->many_rows * t->best_ns[i][0];
                }
        } while (t->shape == 1 && is_hopeless(t, t->choice));
        return t->shape < 2;
}

bool tdm_placement_trial_took(struct tdm_placement_trial *t, uint64_t ns)
{
        uint64_t *best = &t->best_ns[t->choice][t->shape];

        t->spent_ns += ns;
        if (*best == 0 || ns < *best) /* the first steps also fill caches, so they are never the best */
                *best = ns;
        return advance(t);
}

bool tdm_placement_trial_lost(struct tdm_placement_trial *t)
{
        return ++t->n_losses < MAX_LOSSES;
}

static uint64_t cost(const struct tdm_placement_trial *t, unsigned choice)
{
        return WEIGHT_OF_ONE * t->best_ns[choice][0] + t->best_ns[choice][1];
}

enum tdm_placement tdm_placement_trial_result(const struct tdm_placement_trial *t)
{
        unsigned best = 0;

        for (unsigned i = 1; i < TDM_N_TRIAL_PLACEMENTS; i++)
                if (cost(t, i) < cost(t, best))
                        best = i;
        return choices[best];
}

void tdm_placement_trial_describe(const struct tdm_placement_trial *t, char *text, size_t size)
{
        snprintf(text, size, "one row, %u rows: split %.2f, %.2f ms; npu %.2f, %.2f ms; gpu %.2f, %.2f ms",
                 t->many_rows, (double)t->best_ns[0][0] / 1e6, (double)t->best_ns[0][1] / 1e6,
                 (double)t->best_ns[1][0] / 1e6, (double)t->best_ns[1][1] / 1e6, (double)t->best_ns[2][0] / 1e6,
                 (double)t->best_ns[2][1] / 1e6);
}
