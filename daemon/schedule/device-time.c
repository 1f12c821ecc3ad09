/* Device time: what it is, who is charged for it, and how long a step may be.
 *
 * Users take turns by the device time that their rows took, because a row of one model may cost a thousand times what a
 * row of another one costs. The time of a step is the time that its workers were not doing an earlier step, by our own
 * clock: a worker's counters are its own word. A step's time is shared out by rows. A step that is void counts too.
 *
 * A step cannot be interrupted, so its length bounds what others wait for, and how late a deadline is kept. A model's
 * cost is not known before its first steps, and a step has a fixed part (the weights are read once) and a part for each
 * row. So the number of rows is learned. A step that was too long shortens the next ones in proportion. One that was
 * short allows at most in proportion more. That errs on the short side only. */
#include "daemon/schedule/private.h"

/* For this time after two users had work at once, steps are kept short for the next one who comes. */
#define SHARED_NS (10 * TDM_NSEC_PER_SEC)
/* The longest step of a model while another user has work, or a job of it has a deadline. */
#define SHARED_STEP_NS (250 * TDM_NSEC_PER_MSEC)
/* The same while one user is alone. Short steps cost it time, because each reads the weights. */
#define ALONE_STEP_NS (1000 * TDM_NSEC_PER_MSEC)
/* Rows of the first step of a model that is not known yet. */
#define FIRST_ROWS 16u
#define GROW_AT_MOST 4u
/* A user who was without work for a moment, between two requests, keeps a claim to this much. */
#define CREDIT_NS (500 * TDM_NSEC_PER_MSEC)
/* A step of up to this many rows is all fixed part. */
#define SINGLE_ROWS 2u

/* ---- users ---- */

static uint64_t with_credit(const struct tdm_scheduler *s)
{
        return s->level - TDM_MIN(s->level, CREDIT_NS);
}

uint64_t tdm_scheduler_arrives(const struct tdm_scheduler *s, uint64_t login)
{
        for (unsigned i = 0; i < N_DEPARTED; i++)
                if (s->departed[i].served > 0 && s->departed[i].login == login)
                        return TDM_MAX(s->departed[i].served, with_credit(s));
        return s->level;
}

void tdm_scheduler_departs(struct tdm_scheduler *s, const struct user *u)
{
        struct departed *d = &s->departed[0];

        for (unsigned i = 0; i < N_DEPARTED; i++) {
                if (s->departed[i].served > 0 && s->departed[i].login == u->login) {
                        d = &s->departed[i];
                        break;
                }
                if (s->departed[i].served < d->served)
                        d = &s->departed[i];
        }
        if (d->login == u->login || u->served > d->served)
                *d = (struct departed){ .login = u->login, .served = u->served };
}

void tdm_scheduler_level(struct tdm_scheduler *s)
{
        uint64_t least = UINT64_MAX;
        uint32_t n_wanting = 0;
        struct sequence *q;

        for (uint32_t i = 0; i < s->n_users; i++) {
                s->users[i].had_work = s->users[i].has_work;
                s->users[i].has_work = false;
        }
        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (!q->job->finished && !q->job->paused && q->job->accepted)
                        tdm_scheduler_user(s, q->job->login)->has_work = true;
        }
        for (uint32_t i = 0; i < s->n_users; i++) {
                struct user *u = &s->users[i];

                if (!u->has_work)
                        continue;
                n_wanting++;
                if (!u->had_work)
                        u->served = TDM_MAX(u->served, with_credit(s));
                least = TDM_MIN(least, u->served);
        }
        if (n_wanting > 1)
                s->shared_ns = tdm_scheduler_now(s);
        if (least != UINT64_MAX)
                s->level = TDM_MAX(s->level, least);
}

/* ---- steps ---- */

static void learn_length(const struct tdm_scheduler *s, struct lane *lane, const struct flight *f, uint64_t ns)
{
        uint32_t n = f->n_rows, most = s->config.max_rows, depth = f->reads ? f->depth : 0, fit;

        ns = TDM_MAX(ns, UINT64_C(1));
        if (n <= SINGLE_ROWS)
                lane->lengths.single_ns = ns;
        if (lane->lengths.fit_rows == 0)
                lane->lengths.fit_rows = TDM_MIN(FIRST_ROWS, most);
        fit = tdm_rows_at_depth(lane->lengths.fit_rows, lane->lengths.fit_depth, depth);
        /* In proportion, in rows of a SHARED_STEP_NS. */
        if (ns > SHARED_STEP_NS)
                fit = (uint32_t)TDM_MIN(TDM_MAX(n * SHARED_STEP_NS / ns, UINT64_C(1)), (uint64_t)most);
        else if (n >= fit / 2)
                fit = (uint32_t)TDM_MIN(
                        TDM_MAX(n * TDM_MIN(SHARED_STEP_NS / ns, (uint64_t)GROW_AT_MOST), (uint64_t)fit),
                        (uint64_t)most);
        else
                return;
        lane->lengths.fit_rows = fit;
        lane->lengths.fit_depth = depth;
}

static void note_guess_costs(struct lane *lane, const struct flight *f, uint64_t ns)
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

void tdm_scheduler_charge(struct tdm_scheduler *s, struct lane *lane, const struct flight *f, bool done)
{
        uint64_t now = tdm_scheduler_now(s), ns = 0;
        uint32_t n_all = f->n_rows;

        for (unsigned w = 0; w < TDM_N_WORKERS; w++) {
                uint64_t from = TDM_MAX(f->issued_ns, s->free_ns[w]);

                if (!(f->workers >> w & 1))
                        continue;
                ns = TDM_MAX(ns, now - TDM_MIN(from, now));
                s->free_ns[w] = now;
        }
        for (uint32_t i = 0; i < f->n_seqs; i++)
                n_all += f->seqs[i].n_burst;
        for (uint32_t i = 0; i < f->n_seqs; i++) {
                struct user *u = tdm_scheduler_user(s, f->seqs[i].seq->job->login);
                uint32_t n_rows = f->seqs[i].n_rows + f->seqs[i].n_burst;

                if (!u)
                        continue; /* a companion whose job has left */
                /* At least a nanosecond for a row: then users take turns whatever the clock says. */
                u->served += (uint64_t)((double)ns * n_rows / n_all) + n_rows;
        }
        if (done) {
                if (f->n_passes == 1)
                        learn_length(s, lane, f, ns);
                note_guess_costs(lane, f, ns);
                if (f->placement != TDM_PLACEMENT_ANY && !f->reads)
                        tdm_outlook_note_step(&lane->outlook, f->placement, f->n_rows, ns, now);
        }
}

static bool in_a_hurry(const struct tdm_scheduler *s, const struct lane *lane)
{
        struct sequence *q;

        if (s->shared_ns != 0 && tdm_scheduler_now(s) - s->shared_ns < SHARED_NS)
                return true;
        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->job->request.deadline_ns && !q->job->finished)
                        return true;
        }
        return false;
}

uint32_t tdm_scheduler_fit_rows(const struct tdm_scheduler *s, const struct lane *lane)
{
        uint64_t most_ns = in_a_hurry(s, lane) ? SHARED_STEP_NS : ALONE_STEP_NS;
        uint64_t rows = lane->lengths.fit_rows ? lane->lengths.fit_rows : FIRST_ROWS;

        /* If a step of one row takes long already, steps of few rows do not shorten the wait. */
        most_ns = TDM_MAX(most_ns, 2 * lane->lengths.single_ns);
        return (uint32_t)TDM_MIN(TDM_MAX(rows * most_ns / SHARED_STEP_NS, UINT64_C(1)), (uint64_t)s->config.max_rows);
}
