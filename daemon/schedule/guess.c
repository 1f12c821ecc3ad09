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
        for (uint32_t i = 0; i < n_decode; i++)
                fill_candidate(s, s->candidates[i], &s->guessers[i]);
        tdm_speculate_plan(s->speculate, &lane->guesses.target, s->guessers, n_decode, n_rows, reads);
}

void tdm_scheduler_note_cost(struct lane *lane, const struct flight *f, uint64_t ns)
{
        bool is_draft = f->n_seqs > 0 && f->seqs[0].seq->is_draft;
        struct lane_guesses *g = &lane->guesses;

        if (f->reads && is_draft)
                tdm_draft_costs_note_reading(&g->draft, f->n_rows, ns);
        if (f->reads)
                return;
        if (is_draft)
                tdm_draft_costs_note_burst(&g->draft, f->n_seqs, f->n_ran, ns);
        else
                tdm_step_costs_note(&g->target.steps, f->n_rows, ns);
}
