/* Masks of jobs whose text follows a grammar (daemon/jobs/constraint.h).
 *
 * A step is submitted first, and its masks are made and published while the workers run it. What a mask may cost here
 * is bounded, since this is the loop's thread: QUICK for one mask, ROUND_NS for all of a round. A mask that takes more
 * is made on a thread. Its row draws no token in this step, and the sequence gets no rows until the mask is there. Then
 * the row runs again with it. So a hard grammar delays its own job only.
 *
 * The worker is not trusted: a token that the mask does not allow is no result (tdm_scheduler_check_token()). */
#include "daemon/schedule/private.h"

#include <stdatomic.h>

/* For masks of one round of the scheduler. */
#define ROUND_NS (2 * TDM_NSEC_PER_MSEC)
/* After a mask that took longer on a thread, the next one is made there too, before its row is in a step. */
#define SLOW_NS (TDM_NSEC_PER_MSEC / 2)

/* A mask that is made on a thread; the job may end meanwhile. */
struct making {
        struct tdm_scheduler *s;
        struct tdm_job *job; /* referenced */
        int r;
        uint64_t ns; /* that it took */
        struct tdm_error error;
};

static const uint32_t *generated_ids(const struct tdm_job *job)
{
        return job->ids + job->prompt_tokens;
}

static void mask_fail(struct tdm_job *job, int r, const struct tdm_error *err)
{
        struct tdm_error e = *err;

        if (r < 0)
                tdm_error_set(&e, r == -ENOMEM ? TDM_E_NO_MEMORY : TDM_E_INTERNAL, "cannot follow the grammar: %s",
                              strerror(-r));
        tdm_job_finish(job, TDM_JOB_END_ERROR, &e);
}

int tdm_scheduler_want_grammar(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_error *err)
{
        tdm_constraint_find(job->text.constraint, &s->grammars, job->login, job->model->id);
        return tdm_model_want_vocabulary(job->model, job->account, err);
}

int tdm_scheduler_charge_grammar(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_error *err)
{
        int r = tdm_constraint_charge(job->text.constraint, err);

        if (r == 0)
                tdm_constraint_keep(job->text.constraint, &s->grammars, job->login, job->model->id);
        return r;
}

/* No token may follow: the text is whole and the vocabulary has no end token, or the vocabulary cannot write it. */
static void mask_end_text(struct tdm_job *job)
{
        struct tdm_error err;

        if (tdm_constraint_is_whole(job->text.constraint, generated_ids(job), job->generated)) {
                tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
                return;
        }
        tdm_error_set(&err, TDM_E_UNSUPPORTED,
                      "no token of the model's vocabulary can continue the text as the grammar wants it");
        tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
}

static void mask_settle(struct tdm_job *job, int r, const struct tdm_error *err)
{
        struct tdm_error e = *err;

        if (r == 0 || r == -ENODATA) {
                int charged = tdm_constraint_charge(job->text.constraint, &e);

                r = charged != 0 ? charged : r;
        }
        if (r == -ENODATA)
                mask_end_text(job);
        else if (r != 0)
                mask_fail(job, r, &e);
}

static void run_making(void *task)
{
        struct making *m = task;
        uint64_t begin_ns = tdm_now_ns();
        const uint64_t *words;

        m->r = tdm_constraint_mask(m->job->text.constraint, generated_ids(m->job), m->job->generated,
                                   TDM_CONSTRAINT_FULL, &words, &m->error);
        m->ns = tdm_now_ns() - begin_ns;
}

static void on_made(void *task, bool ran)
{
        struct making *m = task;

        tdm_job_end_mask(m->job, m->ns > SLOW_NS);
        if (m->r == -EAGAIN || (m->r == -ENODATA && tdm_job_drawn_waits(&m->job->drawn)))
                m->r = 0; /* asked for again; told when the last of them is taken */
        if (ran && !m->job->finished)
                mask_settle(m->job, m->r, &m->error);
        if (ran)
                tdm_source_schedule(m->s->work);
        tdm_job_unref(m->job);
        free(m);
}

void tdm_scheduler_start_mask(struct tdm_scheduler *s, struct tdm_job *job)
{
        struct making *m = calloc(1, sizeof(*m));
        struct tdm_error err;
        int r = -ENOMEM;

        if (m) {
                *m = (struct making){ .s = s, .job = tdm_job_ref(job) };
                r = tdm_background_add_for(s->threads[THREADS_TEXTS],
                                           job->account ? job->account->identity : job->identity, run_making, on_made,
                                           m);
        }
        if (r == 0) {
                tdm_job_begin_mask(job);
                s->stats.slow_masks++;
                return;
        }
        if (m)
                tdm_job_unref(m->job);
        free(m);
        tdm_error_set(&err, TDM_E_BUSY, "too many grammars are at work; try again later");
        tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
}

void tdm_scheduler_follow(struct tdm_scheduler *s, struct tdm_job *job)
{
        if (job->text.constraint && job->text.slow_masks && !job->finished)
                tdm_scheduler_start_mask(s, job);
}

bool tdm_scheduler_publish_known(struct tdm_scheduler *s, struct lane *lane, const struct flight *f, uint32_t logits,
                                 const struct tdm_job *job)
{
        uint32_t slot = (uint32_t)(f - lane->flights);
        const struct tdm_model *model = lane->model;
        const struct tdm_step_logits *l = &tdm_steps_logits(model->steps->base, &model->layout, slot)[logits];
        const uint64_t *words;
        struct tdm_error err;

        if (l->mask == 0 || tdm_constraint_mask(job->text.constraint, generated_ids(job), job->generated,
                                                TDM_CONSTRAINT_LOOKUP, &words, &err) != 0)
                return false;
        tdm_steps_publish(lane->model->steps->base, &lane->model->layout, slot, l->mask - 1, f->step_id, words,
                          tdm_constraint_n_words(job->text.constraint));
        return true;
}

static void publish(struct lane *lane, const struct flight *f, uint32_t logits, const struct tdm_job *job,
                    const uint64_t *words)
{
        struct tdm_model *model = lane->model;
        uint32_t slot = (uint32_t)(f - lane->flights);
        uint32_t mask = tdm_steps_logits(model->steps->base, &model->layout, slot)[logits].mask - 1;

        tdm_steps_publish(model->steps->base, &model->layout, slot, mask, f->step_id, words,
                          words ? tdm_constraint_n_words(job->text.constraint) : 0);
}

/* The mask of the first row of a step that is in flight. quick: there is time to make it here. */
static void make(struct tdm_scheduler *s, struct lane *lane, struct flight *f, struct flight_seq *fs, bool quick)
{
        struct tdm_job *job = fs->seq->job;
        const uint64_t *words = NULL;
        struct tdm_error err = { 0 };
        int r;

        if (job->finished)
                r = -ECANCELED;
        else
                r = tdm_constraint_mask(job->text.constraint, generated_ids(job), job->generated,
                                        quick ? TDM_CONSTRAINT_QUICK : TDM_CONSTRAINT_LOOKUP, &words, &err);
        publish(lane, f, fs->first_logits, job, r == 0 ? words : NULL);
        s->stats.masks++;
        if (r == -EAGAIN)
                tdm_scheduler_start_mask(s, job);
        else if (r != -ECANCELED)
                mask_settle(job, r, &err);
}

/* Makes the masks of the rows of its guesses. A mask that takes too long is left out and ends the guesses, because
 * guesses must not cost a job anything. */
static void make_ahead(struct tdm_scheduler *s, struct lane *lane, struct flight *f, struct flight_seq *fs,
                       uint64_t until_ns)
{
        struct tdm_job *job = fs->seq->job;
        bool made = true;

        for (uint32_t i = 1; i <= fs->n_guesses; i++) {
                struct tdm_error err;

                made = made && !job->finished && !job->text.masking && tdm_now_ns() < until_ns &&
                       tdm_constraint_mask_ahead(job->text.constraint, generated_ids(job), job->generated, fs->guesses,
                                                 i, TDM_CONSTRAINT_QUICK, lane->mask, &err) == 0;
                publish(lane, f, fs->first_logits + i, job, made ? lane->mask : NULL);
                s->stats.masks++;
        }
}

/* Makes the masks that steps want: of first rows, or of guesses. */
static void make_all(struct tdm_scheduler *s, bool of_guesses, uint64_t until_ns)
{
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                        struct flight *f = &lane->flights[i];

                        if (!f->used || !f->wants_masks)
                                continue;
                        for (uint32_t k = 0; k < f->n_seqs; k++) {
                                if (of_guesses && f->seqs[k].masked != MASK_NONE)
                                        make_ahead(s, lane, f, &f->seqs[k], until_ns);
                                else if (!of_guesses && f->seqs[k].masked == MASK_WANTED)
                                        make(s, lane, f, &f->seqs[k], tdm_now_ns() < until_ns);
                        }
                        if (of_guesses)
                                f->wants_masks = false;
                }
        }
}

void tdm_scheduler_make_masks(struct tdm_scheduler *s)
{
        uint64_t until_ns = tdm_now_ns() + ROUND_NS;

        make_all(s, false, until_ns);
        make_all(s, true, until_ns);
}

bool tdm_scheduler_check_token(const struct lane *lane, const struct flight *f, const struct flight_seq *fs,
                               uint32_t logits, uint32_t token)
{
        const struct tdm_model *model = lane->model;
        uint32_t slot = (uint32_t)(f - lane->flights), mask;
        const uint64_t *words;

        if (fs->masked == MASK_NONE || fs->n_logits == 0)
                return token != TDM_NO_TOKEN;
        if (token == TDM_NO_TOKEN) /* right where the mask came after the step, and so may have come too late */
                return fs->masked != MASK_EARLY || logits > fs->first_logits;
        if (token >= tdm_model_hparams(model)->n_vocab)
                return false;
        mask = tdm_steps_logits(model->steps->base, &model->layout, slot)[logits].mask - 1;
        words = tdm_steps_mask(model->steps->base, &model->layout, slot, mask);
        return atomic_load_explicit(tdm_steps_published(model->steps->base, &model->layout, slot, mask),
                                    memory_order_relaxed) == f->step_id &&
               (words[token / 64] >> token % 64 & 1);
}
