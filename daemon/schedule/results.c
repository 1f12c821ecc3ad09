/* The results of steps: they are checked, tokens are handed to their jobs, positions are committed. step.c builds the
 * steps. */
#include "daemon/schedule/private.h"

#include <assert.h>
#include <math.h>
#include "common/log.h"

/* Log-probabilities are at most zero, but for rounding. */
#define LOGPROB_MAX 1e-3f

/* A log-probability: finite, and not above zero by more than rounding. */
static bool is_logprob(float x)
{
        return isfinite(x) && x <= LOGPROB_MAX;
}

/* Everything that the client may be told of a result. target: the row has one. */
static bool result_makes_sense(const struct tdm_result *r, uint32_t n_vocab, bool target)
{
        if (r->token == TDM_NO_TOKEN)
                return r->n_top == 0 && !target;
        if (r->token >= n_vocab || !is_logprob(r->logprob) || (target && !is_logprob(r->target_logprob)))
                return false;
        for (uint32_t t = 0; t < r->n_top; t++)
                if (r->top[t].id >= n_vocab || !is_logprob(r->top[t].logprob))
                        return false;
        return true;
}

/* A text's vector, copied and checked. */
static int take_vector(struct tdm_scheduler *s, const struct lane *lane, uint32_t slot, const struct flight_seq *fs,
                       uint64_t now)
{
        const struct tdm_model *model = lane->model;
        uint32_t width = model->layout.limits.vector_width;
        _cleanup_(freep) float *copy = NULL;
        const float *from;

        if (!tdm_job_wants_vector(fs->seq->job) || fs->n_logits == 0 || fs->seq->job->finished)
                return 0;
        from = tdm_steps_vectors(
                       (struct tdm_result *)(model->results->base + (uint64_t)slot * model->layout.results_slot_bytes),
                       &model->layout.limits) +
               (size_t)fs->first_logits * width;
        copy = malloc(width * sizeof(*copy));
        if (!copy)
                return -ENOMEM;
        memcpy(copy, from, width * sizeof(*copy));
        __asm__ volatile("" ::: "memory"); /* the compiler reads the copy, and not the original again */
        return tdm_job_take_vector(fs->seq->job, tdm_model_recipe(model), model->metadata->labels, copy, width, now) ?
                       0 :
                       -EPROTO;
}

/* Copies a result and checks the copy, because the worker is not trusted. */
static int take_result(struct tdm_scheduler *s, const struct lane *lane, const struct flight *f, uint32_t slot,
                       const struct flight_seq *fs, uint32_t index, bool target)
{
        const struct tdm_model *model = lane->model;
        const uint8_t *from = model->results->base + (uint64_t)slot * model->layout.results_slot_bytes +
                              index * sizeof(struct tdm_result);
        struct tdm_result *to = &s->results[index];

        memcpy(to, from, offsetof(struct tdm_result, top));
        __asm__ volatile("" ::: "memory"); /* the compiler reads the copy, and not the original again */
        if (to->n_top > fs->seq->job->request.sampling.n_top)
                return -EPROTO;
        memcpy(to->top, from + offsetof(struct tdm_result, top), to->n_top * sizeof(to->top[0]));
        __asm__ volatile("" ::: "memory");
        return result_makes_sense(to, tdm_model_hparams(model)->n_vocab, target) &&
                               tdm_scheduler_check_token(lane, f, fs, index, to->token) ?
                       0 :
                       -EPROTO;
}

static const struct tdm_step_seq *seq_of(const struct lane *lane, const struct flight *f, uint32_t slot,
                                         const struct flight_seq *fs)
{
        return &tdm_steps_seqs(lane->model->steps->base, &lane->model->layout, slot)[fs - f->seqs];
}

/* Takes the tokens of a burst up to its end, and writes TDM_NO_TOKEN behind the last one. */
static int take_burst(struct tdm_scheduler *s, const struct lane *lane, const struct flight *f, uint32_t slot,
                      const struct flight_seq *fs)
{
        const struct tdm_step_seq *seq = seq_of(lane, f, slot, fs);
        uint32_t before = fs->first_logits + fs->n_logits - 1, doubt = 0;

        for (uint32_t k = 0; k < fs->n_burst; k++) {
                uint32_t at = fs->first_burst + k;
                int r;

                if (tdm_step_burst_ends(seq, k, s->results[before].logprob, &doubt)) {
                        s->results[at].token = TDM_NO_TOKEN;
                        return 0;
                }
                r = take_result(s, lane, f, slot, fs, at, false);
                if (r < 0)
                        return r;
                before = at;
        }
        return 0;
}

/* How many passes a step with bursts took. Its results are not checked yet, but only times are learned from it. */
static uint32_t passes_of(const struct lane *lane, const struct flight *f, uint32_t slot)
{
        const struct tdm_model *model = lane->model;
        const struct tdm_result *results =
                (const struct tdm_result *)(model->results->base + (uint64_t)slot * model->layout.results_slot_bytes);
        uint32_t most = 1;

        for (uint32_t i = 0; i < f->n_seqs; i++) {
                const struct flight_seq *fs = &f->seqs[i];
                uint32_t at = fs->first_logits + fs->n_logits - 1, n = 0, doubt = 0;

                for (; n < fs->n_burst; n++) {
                        float logprob = *(const volatile float *)&results[at].logprob;

                        if (tdm_step_burst_ends(seq_of(lane, f, slot, fs), n, logprob, &doubt))
                                break;
                        at = fs->first_burst + n;
                }
                most = TDM_MAX(most, 1 + n);
        }
        return most;
}

/* *ret_seq: where a result cannot be, the flight's sequence that it is of. */
static int take_results(struct tdm_scheduler *s, const struct lane *lane, const struct flight *f, uint32_t slot,
                        uint32_t *ret_seq)
{
        const struct tdm_model *model = lane->model;
        const struct tdm_step_logits *logits = tdm_steps_logits(model->steps->base, &model->layout, slot);

        for (uint32_t i = 0; i < f->n_seqs; i++) {
                const struct flight_seq *fs = &f->seqs[i];
                int r = 0;

                *ret_seq = i;
                for (uint32_t k = fs->first_logits; k < fs->first_logits + fs->n_logits && r == 0; k++)
                        r = take_result(s, lane, f, slot, fs, k, logits[k].target != UINT32_MAX);
                if (r == 0 && fs->n_burst > 0)
                        r = take_burst(s, lane, f, slot, fs);
                if (r < 0)
                        return r;
        }
        for (uint32_t i = 0; i < f->n_seqs; i++) {
                int r = take_vector(s, lane, slot, &f->seqs[i], tdm_now_ns());

                *ret_seq = i;
                if (r < 0)
                        return r;
        }
        return 0;
}

/* The row's mask did not come in time. It counts as not run, and runs again with the mask. */
static bool no_token(const struct tdm_scheduler *s, const struct flight_seq *fs)
{
        return fs->n_logits > 0 && s->results[fs->first_logits].token == TDM_NO_TOKEN;
}

static void emit(struct tdm_scheduler *s, const struct emit *e)
{
        s->emits[s->n_emits] = *e;
        tdm_job_ref(e->job);
        s->n_emits++;
}

/* A guess counts as read when it is the token that was drawn before it. The first token that differs from its guess
 * ends this, and so does the job's end. So guesses change no token, and nothing of a wrong one is kept: not its
 * position, not its text. */
static void take_tokens(struct tdm_scheduler *s, const struct flight_seq *fs, uint64_t now)
{
        struct emit e = { .job = fs->seq->job, .kind = EMIT_TOKEN };
        const struct tdm_result *results = &s->results[fs->first_logits];
        struct sequence *q = fs->seq;
        struct tdm_job *job = q->job;
        uint32_t ids[1 + TDM_MAX_GUESSES], n = 0;
        bool right = true;

        while (right && !job->finished) {
                /* The mask of a guess's row did not come in time, so its row runs again. */
                if (results[n].token == TDM_NO_TOKEN) {
                        q->n_committed--;
                        break;
                }
                ids[n] = results[n].token;
                e.first = job->generated;
                if (tdm_job_take_token(job, ids[n], results[n].logprob, now, &e.token)) {
                        s->stats.tokens_generated++;
                        e.token.top = results[n].top;
                        e.token.n_top = results[n].n_top;
                        emit(s, &e);
                }
                right = n < fs->n_guesses && ids[n] == fs->guesses[n];
                q->n_committed += right && !job->finished;
                if (n < fs->n_guesses) {
                        tdm_job_count_guess(job, n, right);
                        s->stats.accepted += right;
                }
                n++;
        }
        tdm_job_count_guesses(job, fs->n_guesses);
        s->stats.drafted += fs->n_guesses;
        tdm_guesses_learn(&q->guesses, &q->draft.plan.records, ids, n);
}

static void apply(struct tdm_scheduler *s, const struct flight_seq *fs, uint32_t first, uint64_t now)
{
        struct sequence *q = fs->seq;
        struct tdm_job *job = q->job;
        struct emit e = { .job = job };

        if (tdm_job_wants_vector(job))
                return; /* it has its vector */
        if (job->kind == TDM_JOB_SCORE) {
                e.kind = EMIT_SCORES;
                e.first = TDM_MAX(first, q->n_told);
                e.n = fs->n_logits;
                e.results = &s->results[fs->first_logits];
                if (e.n > 0)
                        emit(s, &e);
                q->n_told = TDM_MAX(q->n_told, q->n_committed);
                tdm_job_note_scores(job, now);
                if (q->n_committed == job->n_ids)
                        tdm_job_finish(job, TDM_JOB_END_STOP, NULL);
                return;
        }
        if (fs->n_logits == 0 || no_token(s, fs))
                return;
        take_tokens(s, fs, now);
        tdm_scheduler_follow(s, job);
}

static void commit(struct tdm_scheduler *s, struct lane *lane, const struct flight *f)
{
        uint64_t now = tdm_now_ns();
        uint32_t n_decoding = 0;

        for (uint32_t i = 0; i < f->n_seqs; i++) {
                const struct flight_seq *fs = &f->seqs[i];
                struct sequence *q = fs->seq;
                struct tdm_job *job = q->job;
                uint32_t first = q->n_committed, n_again;
                bool decodes;

                if (q->is_draft) {
                        tdm_companion_commit(s, lane, fs);
                        continue;
                }
                tdm_sequence_acquit(q);
                if (job->finished)
                        continue; /* cancelled meanwhile */
                /* A row that has to run again cannot be taken out of a state, so then none of the step's rows count. */
                if (tdm_lane_has_state(lane) && no_token(s, fs))
                        continue;
                q->n_committed += fs->n_rows - fs->n_guesses - no_token(s, fs);
                if (tdm_lane_has_state(lane))
                        tdm_sequence_take_state(lane, q);
                decodes = fs->n_rows == 1 + fs->n_guesses && sequence_is_decoding(q);
                apply(s, fs, first, now);
                if (decodes)
                        s->stats.decode_rows += q->n_committed - first;
                else
                        s->stats.prefill_rows += fs->n_rows;
                n_again = TDM_MIN(q->n_committed, q->n_read) - TDM_MIN(first, q->n_read);
                tdm_job_note_committed(job, f->degraded, n_again);
                s->stats.reread_tokens += n_again;
                if (q->n_committed > q->n_read) {
                        s->stats.prompt_tokens +=
                                TDM_MIN(q->n_committed, job->prompt_tokens) - TDM_MIN(q->n_read, job->prompt_tokens);
                        q->n_read = q->n_committed;
                }
                tdm_scheduler_enter(lane, q);
                tdm_sequence_free_slid_out(lane, q);
                tdm_job_set_state(job, sequence_is_decoding(q) ? TDM_JOB_DECODE : TDM_JOB_PREFILL);
                n_decoding += sequence_is_decoding(q);
        }
        /* With all new tokens known, because their number decides how many guesses pay. */
        for (uint32_t i = 0; i < f->n_seqs && n_decoding > 0; i++)
                if (f->seqs[i].seq->draft.model && !f->seqs[i].seq->is_draft && sequence_is_decoding(f->seqs[i].seq))
                        tdm_companion_follow(s, lane, f->seqs[i].seq);
        s->stats.steps_done++;
}

/* Results that cannot be. A device refuses logits and vectors that are not numbers, so this is the worker's fault and
 * not the job's. But where the other worker made such results of the same sequence before, it is the model's: no worker
 * pays for it then, and the model fails. True: the step is void with the epoch, which ends now. */
static bool blame_worker(struct tdm_scheduler *s, struct lane *lane, struct flight *f, struct sequence *q)
{
        struct tdm_model *model = lane->model;
        enum tdm_worker_index worker = (enum tdm_worker_index)f->last_worker;
        struct tdm_error err;

        q->bad_results |= (uint8_t)(1u << worker);
        if (q->bad_results == (1u << TDM_N_WORKERS) - 1) {
                tdm_error_set(&err, TDM_E_BAD_MODEL,
                              "both workers made results of model %s that cannot be (damaged weights?); fetch its file "
                              "again",
                              tdm_model_told_name(model));
                tdm_model_fail(model, &err);
                return false;
        }
        if (q->is_draft)
                tdm_companion_blame(lane, f);
        f->done = false;
        f->doomed = true;
        tdm_fleet_bad_results(s->fleet, worker);
        return true;
}

static void finish_flight(struct tdm_scheduler *s, struct lane *lane, struct flight *f)
{
        uint32_t slot = (uint32_t)(f - lane->flights), bad = 0;
        bool good = !lane->dead && !f->doomed;

        if (good && take_results(s, lane, f, slot, &bad) < 0) {
                if (blame_worker(s, lane, f, f->seqs[bad].seq))
                        return;
                good = false;
        }
        if (good)
                commit(s, lane, f);
        tdm_scheduler_land(s, lane, f, good);
        tdm_scheduler_run(s);
}

/* A finished flight that waited for the one that has just landed. */
static struct flight *next_done(struct tdm_scheduler *s, uint32_t model_id, struct lane **ret_lane)
{
        struct lane *lane = tdm_scheduler_lane(s, model_id);

        for (unsigned i = 0; lane && i < TDM_STEP_SLOTS; i++)
                if (lane->flights[i].used && lane->flights[i].done && lane->flights[i].after == 0) {
                        *ret_lane = lane;
                        return &lane->flights[i];
                }
        return NULL;
}

void tdm_scheduler_finish_done(struct tdm_scheduler *s, uint32_t model_id)
{
        struct flight *f;
        struct lane *lane;

        while ((f = next_done(s, model_id, &lane)))
                finish_flight(s, lane, f);
}

void tdm_scheduler_on_step_done(uint32_t model_id, uint32_t slot, uint64_t step_id, void *scheduler)
{
        struct tdm_scheduler *s = scheduler;
        struct lane *lane = tdm_scheduler_lane(s, model_id);
        struct flight *f = lane && slot < TDM_STEP_SLOTS ? &lane->flights[slot] : NULL;

        if (!f || !f->used || f->step_id != step_id || f->done) {
                tdm_log_error("a step is done that nobody knows: model %u, slot %u, step %llu", model_id, slot,
                              (unsigned long long)step_id);
                return;
        }
        if (f->probes) {
                tdm_scheduler_land(s, lane, f, true);
                tdm_scheduler_run(s);
                return;
        }
        if (f->paced && f->n_passes == 1) {
                enum tdm_worker_index w = f->workers == 1u << TDM_WORKER_NPU ? TDM_WORKER_NPU : TDM_WORKER_GPU;
                uint64_t busy_ns = tdm_fleet_busy_ns(s->fleet, w);

                if (s->load[w] == 1 && busy_ns > f->busy_ns)
                        tdm_pace_note(&lane->pace, w, f->n_rows, tdm_model_share_read(lane->model, f->n_rows),
                                      busy_ns - f->busy_ns);
        }
        if (f->lone_ns && f->n_rows >= TDM_MAX(s->config.prefill_rows / 2, 2u))
                lane->lengths.prompt_row_ns = (tdm_scheduler_now(s) - f->lone_ns) / f->n_rows;
        f->n_ran = f->n_passes > 1 ? passes_of(lane, f, slot) : f->n_passes;
        tdm_scheduler_charge(s, lane, f, true);
        f->charged = true;
        f->done = true;
        if (f->after != 0)
                return; /* the step that it follows is not known to be good yet; flights are committed in order */
        finish_flight(s, lane, f);
        tdm_scheduler_finish_done(s, model_id);
}
