/* How many guesses a step checks. The scheduler puts them into the step (daemon/schedule/step.c) and takes what it
 * gives (daemon/schedule/results.c).
 *
 * The number is chosen for the most tokens a second. Each next guess goes to the sequence where it is likeliest to be
 * right. Each number brings tokens and takes time. What that time is worth follows from the rate of the last steps. The
 * number with the largest gain over that is taken. Sequences without guesses wait for those that have some, so a step
 * with both may hardly become longer.
 *
 * Both are measured: how likely a guess is right (guesses.c, draft-records.c), and how long a step takes (step-cost.c).
 * A time is measured again when it is old: without guesses by leaving them out once, with guesses by trusting the steps
 * of fewer and of more rows.
 *
 * A step that reads a prompt has no guesses, because the prompt waits for it. */
#include "daemon/speculate/private.h"

/* No guess is checked unless guesses gain at least this much. */
#define GAIN_LEAST 1.02f
/* The weight of a new step in the mean gain of guesses. */
#define GAIN_WEIGHT 0.05f
/* How long the guesses of one step may be held against grammars. */
#define ALLOWED_NS (2 * TDM_NSEC_PER_MSEC)
/* Guesses that are less likely to be right are not checked. */
#define REACH_LEAST 0.02f

/* The candidate whose next guess is likeliest to be right; n: none has one that is likely enough. */
static uint32_t find_likeliest(const struct tdm_guess_candidate *of, uint32_t n, float *ret_chance)
{
        float best_chance = REACH_LEAST;
        uint32_t best = n;

        for (uint32_t i = 0; i < n; i++) {
                const struct tdm_guesses *g = of[i].guesses;
                float reach;

                if (g->n_tried >= g->n_found)
                        continue;
                reach = g->reach * tdm_guesses_chance_behind(&of[i], g->n_tried);
                if (reach <= best_chance)
                        continue;
                best = i;
                best_chance = reach;
        }
        *ret_chance = best_chance;
        return best;
}

/* ns that the drafts took for what is to be checked; 0: there are none, or nothing is known. */
static float find_burst_ns(const struct tdm_guess_candidate *of, uint32_t n)
{
        const struct tdm_draft_costs *draft = NULL;
        uint32_t n_drafted = 0, longest = 0;

        for (uint32_t i = 0; i < n; i++) {
                const struct tdm_guesses *g = of[i].guesses;

                if (!g->drafted || g->n_found == 0)
                        continue;
                draft = of[i].draft_costs;
                longest = TDM_MAX(longest, g->n_found);
                n_drafted++;
        }
        return draft ? tdm_draft_costs_expect(draft, n_drafted, (float)longest) : 0;
}

/* A guess is worth its row where it brings more tokens than other steps make in the time of the row. So the rate of all
 * steps counts, and not that of this one: a step with likely guesses has a higher rate, and gets more of them. */
static void choose_lengths(struct tdm_speculate *sp, struct tdm_target_costs *costs,
                           const struct tdm_guess_candidate *of, uint32_t n_decode, uint32_t n_rows)
{
        const struct tdm_step_costs *steps = &costs->steps;
        float tokens = (float)n_decode, base = tdm_step_costs_expect(steps, n_decode, n_decode), plain = tokens / base;
        float gain = tdm_target_costs_gain(costs), rate = plain * gain, best = GAIN_LEAST * tokens - rate * base;
        float burst = find_burst_ns(of, n_decode), reached = base / (base + burst);
        uint32_t n = 0, n_best = 0, n_without = n_decode, most = tdm_step_costs_most_rows(steps, n_decode);

        n_rows = TDM_MIN(TDM_MIN(n_rows, TDM_MAX_STEP_LOGITS), most - n_decode);
        for (uint32_t i = 0; i < n_decode; i++)
                of[i].guesses->reach = 1;
        while (n < n_rows) {
                float reach, ns;
                uint32_t i = find_likeliest(of, n_decode, &reach);

                if (i == n_decode)
                        break;
                of[i].guesses->reach = reach;
                n_without -= of[i].guesses->n_tried++ == 0;
                sp->order[n++] = (uint16_t)i;
                tokens += reach;
                ns = tdm_step_costs_expect(steps, n_decode + n, n_decode);
                if (n_without > 0 && tdm_step_costs_others_wait(steps, n_decode + n, ns, base))
                        continue;
                if (tokens - rate * ns > best) {
                        best = tokens - rate * ns;
                        n_best = n;
                        reached = tokens / (ns + burst) / plain;
                }
        }
        costs->gain = gain + GAIN_WEIGHT * (reached - gain);
        for (uint32_t i = 0; i < n_best; i++)
                of[sp->order[i]].guesses->n++;
}

float tdm_target_costs_gain(const struct tdm_target_costs *c)
{
        return TDM_MAX(c->gain, 1.0f);
}

/* For tests: all guesses are checked, but of those that stand for lookup's only as many as pay. */
static bool checks_all(const struct tdm_speculate *sp)
{
        return sp->config.all_guesses || (sp->config.guess && !tdm_speculate_copies(sp));
}

static void take_all_guesses(const struct tdm_guess_candidate *of, uint32_t n, uint32_t n_rows)
{
        for (uint32_t i = 0; i < n; i++) {
                struct tdm_guesses *g = of[i].guesses;

                g->n = TDM_MIN(g->n_found, n_rows);
                n_rows -= g->n;
        }
}

void tdm_speculate_plan(struct tdm_speculate *sp, struct tdm_target_costs *costs, struct tdm_guess_candidate *of,
                        uint32_t n, uint32_t n_rows, bool reads)
{
        enum tdm_unguessed rest = TDM_UNGUESSED_COST;
        bool all = checks_all(sp);
        bool measured = tdm_step_costs_expect(&costs->steps, n, n) > 0;
        bool wanted = all || (!reads && measured);
        uint64_t until_ns = tdm_now_ns() + ALLOWED_NS;
        uint32_t n_found = 0;

        for (uint32_t i = 0; i < n; i++) {
                enum tdm_unguessed why = tdm_guesses_find(sp, &of[i]);

                if (wanted && why == TDM_UNGUESSED_NOT)
                        why = tdm_guesses_keep_allowed(&of[i], until_ns);
                tdm_job_note_guesses(of[i].job, 0, why);
                n_found += of[i].guesses->n_found;
        }
        if (n_found == 0)
                return;
        if (all)
                take_all_guesses(of, n, n_rows);
        else if (reads)
                rest = TDM_UNGUESSED_PROMPT;
        else if (!measured)
                rest = TDM_UNGUESSED_MEASURING;
        else
                choose_lengths(sp, costs, of, n, n_rows);
        for (uint32_t i = 0; i < n; i++)
                if (of[i].guesses->n_found > 0 && of[i].guesses->n == 0)
                        tdm_job_note_guesses(of[i].job, 0, rest);
}
