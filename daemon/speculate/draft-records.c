/* Counts of a draft model's guesses, and the expectation for the next burst. See draft-plan.c.
 *
 * A draft says how sure it is of each token, by the log-probability that it gives it. How often it is right where it is
 * so sure is counted by class: a draft may be too sure, and a token that is drawn at random agrees less often than the
 * likeliest one. The chance that a guess is right and all before it is a product of these. Only guesses with a good
 * chance are checked. It is also counted how often the draft was how sure. From both follows how many guesses of a
 * burst will be checked, and how many of these will be right. That holds for longer bursts than any before, too. */
#include "daemon/speculate/private.h"

#include <math.h>

/* A job begins with what was counted of others, as if these were guesses of its own: TDM_DRAFT_PRIOR_GUESSES of them at
 * least, PRIOR_GUESSES_MOST at most. Before any was counted, FIRST_CHANCE of FIRST_GUESSES count as right. */
#define PRIOR_GUESSES_MOST 16.0f
#define FIRST_GUESSES 1.0f
#define FIRST_CHANCE 0.5f
/* The factors on older counts: with each newer guess, and with each job that leaves. */
#define DECAY 0.95f
#define DECAY_CERTAIN 0.98f
#define DECAY_JOBS 0.8f
/* Chances are looked at in steps of 2^-1/4, down to 1/64. */
#define CHANCE_STEPS 4.0f
#define N_CHANCES 25u

/* There are few guesses of each class. So the chances of all are lowered where fewer first guesses were right than
 * such a part of what the classes say. */
#define BELIEVED 0.5f

/* The middles of the classes of tdm_step_certainty(). */
static const float class_middles[TDM_CERTAINTIES] = { 0.05f, 0.15f, 0.25f, 0.37f, 0.52f, 0.7f, 0.87f, 0.97f };

void tdm_draft_records_count(struct tdm_draft_records *r, const struct tdm_guesses *g, uint32_t n_right,
                             uint32_t n_known)
{
        if (n_known > 0)
                tdm_guess_count(&r->first, DECAY, n_right > 0);
        for (uint32_t i = 0; i < TDM_MIN(n_right + 1, n_known); i++) {
                tdm_guess_count(&r->certain[g->certainty[i]], DECAY_CERTAIN, i < n_right);
                for (uint32_t k = 0; k < TDM_CERTAINTIES; k++)
                        r->seen[k] = r->seen[k] * DECAY_CERTAIN + (k == g->certainty[i]);
        }
}

static void record_expect(struct tdm_guess_record *r, const struct tdm_guess_record *of, float first_chance, float part)
{
        float n = TDM_MIN(TDM_MAX(of->n, TDM_DRAFT_PRIOR_GUESSES), PRIOR_GUESSES_MOST);
        float chance = (of->n_right + FIRST_GUESSES * first_chance) / (of->n + FIRST_GUESSES);

        r->n += part * (n - r->n);
        r->n_right += part * (n * chance - r->n_right);
}

void tdm_draft_records_expect(struct tdm_draft_records *r, const struct tdm_draft_records *of, float part)
{
        float n_seen = FIRST_GUESSES;

        for (uint32_t i = 0; i < TDM_CERTAINTIES; i++)
                n_seen += of->seen[i];
        record_expect(&r->first, &of->first, FIRST_CHANCE, part);
        for (uint32_t i = 0; i < TDM_CERTAINTIES; i++) {
                float share = (of->seen[i] + FIRST_GUESSES / TDM_CERTAINTIES) / n_seen;

                record_expect(&r->certain[i], &of->certain[i], class_middles[i], part);
                r->seen[i] += part * (PRIOR_GUESSES_MOST * share - r->seen[i]);
        }
}

static void record_keep(struct tdm_guess_record *of, const struct tdm_guess_record *r)
{
        of->n = of->n * DECAY_JOBS + r->n;
        of->n_right = of->n_right * DECAY_JOBS + r->n_right;
}

void tdm_draft_records_keep(struct tdm_draft_records *of, const struct tdm_draft_records *r)
{
        record_keep(&of->first, &r->first);
        for (uint32_t i = 0; i < TDM_CERTAINTIES; i++) {
                record_keep(&of->certain[i], &r->certain[i]);
                of->seen[i] = of->seen[i] * DECAY_JOBS + r->seen[i];
        }
}

static uint32_t steps_of(float chance)
{
        return (uint32_t)(-CHANCE_STEPS * log2f(chance) + 0.5f);
}

/* How often each class was seen, as a share of all; and the chance of each in steps, of which *ret_least are the least.
 */
static void find_classes(const struct tdm_draft_records *r, float *ret_share, uint32_t *ret_steps, uint32_t *ret_least)
{
        float n_seen = 0, mean = 0, off = 1;

        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++)
                n_seen += r->seen[c];
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++) {
                ret_share[c] = r->seen[c] / n_seen;
                mean += ret_share[c] * tdm_guess_chance(&r->certain[c]);
        }
        if (tdm_guess_chance(&r->first) < BELIEVED * mean)
                off = tdm_guess_chance(&r->first) / mean;
        *ret_least = UINT32_MAX;
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++) {
                ret_steps[c] = steps_of(off * tdm_guess_chance(&r->certain[c]));
                *ret_least = TDM_MIN(*ret_least, ret_steps[c]);
        }
}

/* Chances, in steps, behind which there is a further token: the surest one must still be worth its pass and row. */
static uint32_t most_to_go_on(float go_on, uint32_t surest)
{
        uint32_t most = TDM_MIN(steps_of(go_on), N_CHANCES - 1);

        return most - TDM_MIN(most, surest);
}

void tdm_draft_records_doubts(const struct tdm_draft_records *r, const float *go_on, uint32_t n, uint8_t *ret_doubts,
                              uint8_t *ret_most)
{
        uint32_t steps[TDM_CERTAINTIES], surest;
        float share[TDM_CERTAINTIES];

        find_classes(r, share, steps, &surest);
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++)
                ret_doubts[c] = (uint8_t)TDM_MIN(steps[c], UINT8_MAX);
        for (uint32_t k = 1; k < n; k++)
                ret_most[k - 1] = (uint8_t)most_to_go_on(go_on[k], surest);
}

void tdm_draft_records_outlook(const struct tdm_draft_records *r, const float *least, const float *go_on, uint32_t n,
                               float *ret_drawn, float *ret_checked, float *ret_right)
{
        /* The share of bursts whose guesses so far are all checked, by the chance that these are all right. */
        float bursts[N_CHANCES] = { 1 }, next[N_CHANCES], chances[N_CHANCES];
        float share[TDM_CERTAINTIES];
        uint32_t steps[TDM_CERTAINTIES], surest, top = 0; /* of the places in bursts that are not 0 */

        find_classes(r, share, steps, &surest);
        for (uint32_t i = 0; i < N_CHANCES; i++)
                chances[i] = exp2f(-(float)i / CHANCE_STEPS);
        for (uint32_t k = 0; k < n; k++) {
                uint32_t most = TDM_MIN(steps_of(least[k]), N_CHANCES - 1);

                if (k > 0)
                        top = TDM_MIN(top, most_to_go_on(go_on[k], surest));
                memset(next, 0, sizeof(next));
                ret_drawn[k] = ret_checked[k] = ret_right[k] = 0;
                for (uint32_t i = 0; i <= top; i++)
                        ret_drawn[k] += bursts[i];
                for (uint32_t i = 0; i <= top; i++) {
                        for (uint32_t c = 0; bursts[i] > 0 && c < TDM_CERTAINTIES; c++) {
                                uint32_t to = i + steps[c];

                                if (to <= most)
                                        next[to] += bursts[i] * share[c];
                        }
                }
                top = most;
                for (uint32_t i = 0; i <= top; i++) {
                        ret_checked[k] += next[i];
                        ret_right[k] += next[i] * chances[i];
                        bursts[i] = next[i];
                }
        }
}
