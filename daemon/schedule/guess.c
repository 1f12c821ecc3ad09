/* The guesses of a step: what the sequences' drafts have guessed is handed to daemon/speculate, which finds the others
 * and chooses how many of all are checked. step.c puts them into the step, results.c takes what it gives. */
#include "daemon/schedule/private.h"

static void fill_candidate(struct tdm_scheduler *s, struct sequence *q, struct tdm_guess_candidate *ret)
{
        struct lane *draft = q->draft.model ? tdm_scheduler_lane(s, q->draft.model->id) : NULL;

        ret->job = q->job;
        ret->guesses = &q->guesses;
        ret->records = &q->draft.plan.records;
        ret->suspect = q->suspects;
        ret->n_drafted = tdm_companion_guesses(q, TDM_MAX_GUESSES, ret->drafted, ret->certainty);
        ret->draft_costs = draft ? &draft->guesses.draft : NULL;
        ret->no_draft = q->draft.plan.why;
}

void tdm_scheduler_plan_guesses(struct tdm_scheduler *s, struct lane *lane, uint32_t n_decode, uint32_t n_rows,
                                bool reads)
{
        /* A wrong guess cannot be taken out of a state. */
        for (uint32_t i = 0; i < n_decode && tdm_lane_has_state(lane); i++) {
                s->candidates[i]->guesses.n = 0;
                tdm_job_note_guesses(s->candidates[i]->job, 0, TDM_UNGUESSED_STATE);
        }
        if (tdm_lane_has_state(lane))
                return;
        for (uint32_t i = 0; i < n_decode; i++)
                fill_candidate(s, s->candidates[i], &s->guessers[i]);
        tdm_speculate_plan(s->speculate, &lane->guesses.target, s->guessers, n_decode, n_rows, reads);
}
