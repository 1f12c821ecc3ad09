/* Jobs in and out: quotas, preparation, the queue, admission, and telling listeners. Nothing here looks into a step.
 *
 * All decisions are made in tdm_scheduler_run(), which one deferred source and the fleet's callbacks call. Its order
 * is: prepare, admit, submit steps, and only then tell clients, so that the workers never wait for a client's socket.
 */
#include "daemon/schedule/private.h"

#include <assert.h>
#include "common/log.h"

#define PROGRESS_NS (100 * TDM_NSEC_PER_MSEC)
/* For drawn tokens that jobs bring, in one round. */
#define DRAWN_NS (2 * TDM_NSEC_PER_MSEC)
/* When a job waits for memory, MAX_BYPASSED smaller jobs may pass it; then the queue stops. So free pages
 * are used meanwhile, and a large job waits for a bounded number of small ones. */
#define MAX_BYPASSED 16u
/* Threads that read pages from disk. */
#define READERS 2u
#define PICTURE_THREADS 2u /* they wait for the processes that read pictures */

static int on_deadline(struct tdm_source *source, uint64_t now_ns, void *userdata);

static int on_work(struct tdm_source *source, void *userdata)
{
        tdm_scheduler_run(userdata);
        return 0;
}

/* Sequences have waited for their drafts for long enough. */
static int on_lag(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        tdm_companion_stop_waiting(userdata, now_ns);
        tdm_scheduler_run(userdata);
        return 0;
}

static int on_probe(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        tdm_scheduler_run(userdata);
        return 0;
}

/* There was more progress than is told at once, and perhaps no step that ends: its worker may hang. */
static int on_tells(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        tdm_scheduler_run(userdata);
        return 0;
}

int tdm_scheduler_new(struct tdm_scheduler **ret, struct tdm_loop *loop, const struct tdm_scheduler_config *config)
{
        _cleanup_(tdm_scheduler_destroyp) struct tdm_scheduler *s = calloc(1, sizeof(*s));
        int r;

        if (!s)
                return -ENOMEM;
        assert(config->max_sequences <= config->max_rows && config->prefill_rows <= config->max_rows);
        s->loop = loop;
        s->config = *config;
        tdm_list_init(&s->jobs);
        tdm_list_init(&s->sequences);
        tdm_list_init(&s->waiting);
        tdm_list_init(&s->lanes);
        tdm_list_init(&s->ended);
        s->users = calloc(config->max_jobs, sizeof(*s->users));
        s->results = calloc(TDM_MAX_STEP_LOGITS, sizeof(*s->results));
        s->emits = calloc(config->max_sequences + TDM_MAX_STEP_LOGITS, sizeof(*s->emits));
        s->candidates = calloc(config->max_sequences, sizeof(*s->candidates));
        s->guessers = calloc(config->max_sequences, sizeof(*s->guessers));
        if (!s->users || !s->results || !s->emits || !s->candidates || !s->guessers)
                return -ENOMEM;
        r = tdm_loop_add_defer(loop, on_work, s, &s->work);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_deadline, s, &s->deadline);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_lag, s, &s->timers.lag);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_probe, s, &s->timers.probes);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_tells, s, &s->timers.tells);
        if (r == 0)
                r = tdm_background_new_pool(&s->threads[THREADS_TEXTS], loop, TDM_JOB_POOL_THREADS);
        if (r == 0)
                r = tdm_background_new_pool(&s->threads[THREADS_PICTURES], loop, PICTURE_THREADS);
        if (r == 0 && config->page_store)
                r = tdm_background_new_pool(&s->disk.readers, loop, READERS);
        if (r == 0 && config->page_store)
                r = tdm_background_new(&s->disk.writer, loop);
        if (r == 0)
                r = tdm_speculate_new(&s->speculate, &config->speculate);
        if (r < 0)
                return r;
        *ret = steal_ptr(&s);
        return 0;
}

void tdm_scheduler_set_max_jobs_per_uid(struct tdm_scheduler *s, uint32_t max_jobs_per_uid)
{
        s->config.max_jobs_per_uid = TDM_MIN(max_jobs_per_uid, s->config.max_jobs);
}

/* The job leaves the schedule, which drops its reference. */
static void forget(struct tdm_scheduler *s, struct sequence *q)
{
        struct tdm_job *job = q->job;
        struct user *u = tdm_scheduler_user(s, job->login);

        tdm_list_remove(&job->node);
        tdm_account_release(job->account, TDM_RESOURCE_JOBS, 1);
        s->n_jobs--;
        u->n_tokens -= q->charged_tokens;
        if (--u->n_jobs == 0) {
                tdm_scheduler_departs(s, u);
                *u = s->users[--s->n_users];
        }
        tdm_model_job_end(job->model, job->account, job->request.options.keep_alive);
        tdm_model_unref(steal_ptr(&job->model));
        tdm_sequence_free(q);
}

void tdm_scheduler_destroy(struct tdm_scheduler *s)
{
        struct sequence *q;
        struct lane *lane;

        if (!s)
                return;
        s->disk.ending = true;
        tdm_background_destroyp(&s->threads[THREADS_TEXTS]);    /* drops its references to jobs and models */
        tdm_background_destroyp(&s->threads[THREADS_PICTURES]); /* the last ones of the other may have come to it */
        tdm_background_destroyp(&s->disk.readers);
        tdm_background_destroyp(&s->disk.writer);
        tdm_companion_free_all(s);
        tdm_list_for_each(q, &s->sequences, struct sequence, node)
                forget(s, q);
        tdm_list_for_each(lane, &s->lanes, struct lane, node)
                tdm_lane_free(s, lane);
        tdm_source_destroyp(&s->work);
        tdm_source_destroyp(&s->deadline);
        tdm_source_destroyp(&s->timers.lag);
        tdm_source_destroyp(&s->timers.probes);
        tdm_source_destroyp(&s->timers.tells);
        free(s->users);
        free(s->results);
        free(s->emits);
        free(s->candidates);
        free(s->guessers);
        tdm_speculate_destroy(s->speculate);
        tdm_grammar_cache_deinit(&s->grammars);
        free(s);
}

void tdm_scheduler_destroyp(struct tdm_scheduler **s)
{
        tdm_scheduler_destroy(*s);
        *s = NULL;
}

/* ---- limits ---- */

static int check_room(struct tdm_scheduler *s, const struct tdm_job *job, struct tdm_error *err)
{
        const struct user *u = tdm_scheduler_user(s, job->login);

        if (s->draining)
                return tdm_error_set(err, TDM_E_DRAINING, "tandemd is shutting down and takes no new jobs");
        if (s->n_jobs >= s->config.max_jobs)
                return tdm_error_set(err, TDM_E_BUSY, "%u jobs are there already (max-jobs); try again later",
                                     s->n_jobs);
        if (u && u->n_jobs >= s->config.max_jobs_per_uid)
                return tdm_error_set(err, TDM_E_QUOTA,
                                     "user %u%s has %u jobs already (max-jobs-per-user); wait for one to end",
                                     (unsigned)job->login, tdm_account_label_suffix(job->account), u->n_jobs);
        if (s->pending_bytes + tdm_job_pending_bytes(job) > s->config.max_pending_bytes)
                return tdm_error_set(err, TDM_E_BUSY, "too many long prompts wait for their models; try again later");
        return 0;
}

/* ---- deadlines ---- */

static void arm_deadline(struct tdm_scheduler *s)
{
        uint64_t next = UINT64_MAX;
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->job->request.deadline_ns && !q->job->finished)
                        next = TDM_MIN(next, q->job->request.deadline_ns);
        }
        tdm_source_arm(s->deadline, next == UINT64_MAX ? 0 : next);
}

static int on_deadline(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_scheduler *s = userdata;
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                struct tdm_job *job = q->job;
                struct tdm_error err;

                if (!job->request.deadline_ns || job->request.deadline_ns > now_ns || job->finished)
                        continue;
                tdm_error_set(
                        &err, TDM_E_DEADLINE, "the job was not done within its %llu ms: %s, %u tokens generated",
                        (unsigned long long)((job->request.deadline_ns - job->stats.created_ns) / TDM_NSEC_PER_MSEC),
                        tdm_job_state_name(job->state), job->generated);
                tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
        }
        arm_deadline(s);
        tdm_source_schedule(s->work);
        return 0;
}

/* ---- in ---- */

int tdm_scheduler_submit(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_model *model, struct tdm_error *err)
{
        int r = check_room(s, job, err);
        struct sequence *q;
        struct user *u;

        if (r == 0)
                r = tdm_account_charge(job->account, TDM_RESOURCE_JOBS, 1, err);
        if (r != 0)
                return r;
        if (tdm_sequence_new(&q, job) < 0) {
                tdm_account_release(job->account, TDM_RESOURCE_JOBS, 1);
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        r = tdm_companion_open(s, q, model, err);
        if (r == 0)
                r = tdm_model_job_begin(model, job->account, err);
        if (r != 0) {
                tdm_account_release(job->account, TDM_RESOURCE_JOBS, 1);
                tdm_sequence_free(q);
                return r;
        }
        u = tdm_scheduler_user(s, job->login);
        if (!u) {
                u = &s->users[s->n_users++];
                *u = (struct user){ .login = job->login, .served = tdm_scheduler_arrives(s, job->login) };
        }
        u->n_jobs++;
        s->n_jobs++;
        q->charged_bytes = tdm_job_pending_bytes(job);
        s->pending_bytes += q->charged_bytes;
        tdm_job_enter(job, ++s->last_job_id, tdm_model_ref(model));
        tdm_list_append(&s->jobs, &job->node);
        tdm_list_append(&s->sequences, &q->node);
        tdm_list_append(&s->waiting, &q->queue);
        if (job->request.deadline_ns)
                arm_deadline(s);
        tdm_source_schedule(s->work);
        return 0;
}

void tdm_scheduler_cancel(struct tdm_scheduler *s, struct tdm_job *job, const struct tdm_error *err)
{
        if (!job->model || job->finished)
                return;
        tdm_job_finish(job, err ? TDM_JOB_END_ERROR : TDM_JOB_END_CANCELLED, err);
        tdm_source_schedule(s->work);
}

void tdm_scheduler_kick(struct tdm_scheduler *s)
{
        tdm_source_schedule(s->work);
}

static void retire_finished(struct tdm_scheduler *s)
{
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->job->finished && !q->in_flight && q->job->state != TDM_JOB_DONE)
                        tdm_scheduler_retire(s, tdm_scheduler_lane(s, q->job->model->id), q);
        }
}

static void finish_error(struct tdm_job *job, const struct tdm_error *err)
{
        struct tdm_error e = *err;

        if (e.code < 0)
                e.code = TDM_E_INTERNAL;
        tdm_job_finish(job, TDM_JOB_END_ERROR, &e);
}

/* ---- preparation and admission ---- */

/* From what the client sent to ids. -EAGAIN: a thread is at work, and this is called again. */
static int prepare_prompt(struct tdm_scheduler *s, struct sequence *q, struct tdm_error *err)
{
        struct tdm_job *job = q->job;
        struct tdm_model *model = job->model;
        bool here = !job->prompt.encoded && (job->prompt.is_text || job->prompt.is_chat);
        uint64_t begin;
        int r;

        r = tdm_companion_check(s, q, err);
        if (r == TDM_E_BUSY)
                return -EAGAIN; /* its file is still being read */
        if (r == 0)
                r = tdm_model_check_file(model, err);
        if (r == 0 && job->prompt.pictures.n > 0)
                r = tdm_model_check_pictures(model, err);
        if (r == 0 && !job->prompt.encoded && tdm_job_has_grammar(job))
                r = tdm_scheduler_want_grammar(s, job, err);
        if (r == 0 && !job->prompt.encoded &&
            (tdm_job_has_grammar(job) || job->prompt.is_chat || job->prompt.pictures.n > 0 ||
             !tdm_model_encodes_here(model, tdm_job_text_to_encode(job)))) {
                if (tdm_scheduler_start_encoding(s, job))
                        return -EAGAIN;
                r = tdm_error_set(err, TDM_E_BUSY, "too many texts wait to be tokenized; try again later");
        }
        begin = tdm_model_encode_begin();
        if (r == 0) {
                tdm_job_take_recommended(job, &model->metadata->recommended);
                r = tdm_job_prepare(job, model->metadata->tokenizer, model->metadata->chat, tdm_model_hparams(model),
                                    err);
        }
        if (here)
                tdm_model_encode_end(model, begin);
        if (r == 0)
                r = tdm_job_check_model(job, tdm_model_recipe(model), tdm_model_hparams(model),
                                        tdm_model_max_rows(model), err);
        if (r == 0)
                r = tdm_scheduler_check_pictures(s, job, model, err);
        if (r == 0 && job->text.constraint)
                r = tdm_scheduler_charge_grammar(s, job, err);
        return r;
}

/* The tokens that its client has already. -EAGAIN as above. A piece at a time, since there may be as many as a context
 * has. */
static int prepare_drawn(struct tdm_scheduler *s, struct tdm_job *job, uint64_t until_ns, struct tdm_error *err)
{
        int r;

        if (job->text.masking)
                return -EAGAIN;
        r = tdm_job_take_drawn(job, until_ns, err);
        if (r == -EBUSY)
                tdm_scheduler_start_mask(s, job);
        else if (r == -EAGAIN)
                tdm_source_schedule(s->work);
        else if (r != 0)
                tdm_job_refuse_drawn(job, err);
        return r == -EBUSY ? -EAGAIN : r;
}

/* The last of its drawn tokens has ended it. Its listener hears that it was accepted before it hears the end. */
static void tell_ended(struct tdm_job *job)
{
        if (tdm_job_tell_accepted(job) && job->events)
                job->events->accepted(job, job->userdata);
}

static void prepare(struct tdm_scheduler *s, struct sequence *q, uint64_t until_ns)
{
        struct tdm_job *job = q->job;
        struct tdm_model *model = job->model;
        struct user *u = tdm_scheduler_user(s, job->login);
        struct tdm_error err = { 0 };
        uint64_t tokens;
        int r = job->text.tokenizer ? 0 : prepare_prompt(s, q, &err);

        if (r == 0 && tdm_job_drawn_waits(&job->drawn))
                r = prepare_drawn(s, job, until_ns, &err);
        if (r == -EAGAIN)
                return;
        if (r != 0) {
                tdm_log_debug("job %llu refused: %s", (unsigned long long)job->id, tdm_error_name(r));
                err.code = r;
                finish_error(job, &err);
                return;
        }
        if (job->finished) {
                tdm_job_accept(job, tdm_now_ns());
                tell_ended(job);
                return;
        }
        tokens = (uint64_t)job->prompt_tokens + job->max_tokens;
        if (s->config.max_tokens_per_uid > 0 && u->n_tokens + tokens > s->config.max_tokens_per_uid) {
                tdm_error_set(&err, TDM_E_QUOTA,
                              "user %u has jobs of %llu tokens already, and this one has %u and up to %u more; %llu "
                              "are allowed (max-tokens-per-user)",
                              (unsigned)job->login, (unsigned long long)u->n_tokens, job->prompt_tokens,
                              job->max_tokens, (unsigned long long)s->config.max_tokens_per_uid);
                finish_error(job, &err);
                return;
        }
        r = tdm_model_want(model, job->account, &err);
        if (r != 0) {
                finish_error(job, &err);
                return;
        }
        u->n_tokens += tokens;
        q->charged_tokens = tokens;
        s->pending_bytes -= q->charged_bytes;
        q->charged_bytes = 0;
        tdm_job_accept(job, tdm_now_ns());
}

static void prepare_all(struct tdm_scheduler *s)
{
        const uint64_t until_ns = tdm_now_ns() + DRAWN_NS;
        struct sequence *q;

        tdm_list_for_each(q, &s->waiting, struct sequence, queue) {
                struct tdm_job *job = q->job;

                if (job->finished)
                        continue;
                if (job->model->state == TDM_MODEL_FAILED)
                        finish_error(job, &job->model->error);
                else if (!job->accepted && !job->prompt.encoding && tdm_model_is_described(job->model))
                        prepare(s, q, until_ns);
        }
}

/* Can the job run when no other job has pages? A limit that the client did not ask for is cut to the size of the cache.
 */
static bool can_fit(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_error *err)
{
        const struct tdm_model *model = job->model;
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        uint32_t n_tokens = job->prompt_tokens + job->max_tokens;
        struct tdm_pages_need need = tdm_pages_need(hp, &model->geometry, n_tokens, s->config.max_rows);
        if (!tdm_pages_possible(model->pages, &need) && job->request.implicit_limit) {
                uint64_t most = (uint64_t)tdm_pages_total(model->pages, TDM_KV_FULL) * TDM_KV_PAGE_TOKENS;

                if (model->geometry.n_layers[TDM_KV_FULL] && most > job->prompt_tokens) {
                        tdm_job_cut_limit(job, most - job->prompt_tokens);
                        n_tokens = job->prompt_tokens + job->max_tokens;
                        need = tdm_pages_need(hp, &model->geometry, n_tokens, s->config.max_rows);
                }
        }
        if (tdm_pages_possible(model->pages, &need) && job->generated <= job->max_tokens)
                return true;
        tdm_error_set(err, TDM_E_NO_MEMORY,
                      "%u prompt tokens and up to %u more need %u full and %u window pages of the KV cache; model %s "
                      "has %u and "
                      "%u (kv-memory)",
                      job->prompt_tokens, job->max_tokens, need.n[TDM_KV_FULL], need.n[TDM_KV_WINDOW],
                      tdm_model_told_name(model), tdm_pages_total(model->pages, TDM_KV_FULL),
                      tdm_pages_total(model->pages, TDM_KV_WINDOW));
        return false;
}

static void admit_sequence(struct tdm_scheduler *s, struct lane *lane, struct sequence *q,
                           const struct tdm_pages_need *need)
{
        struct user *u = tdm_scheduler_user(s, q->job->login);

        tdm_list_remove(&q->queue);
        q->reserved = *need;
        tdm_scheduler_enter_lane(lane, q);
        tdm_job_set_state(q->job, TDM_JOB_PREFILL);
        u->n_running++;
        u->admitted = ++s->stamp;
}

static bool is_before(struct tdm_scheduler *s, const struct tdm_job *a, const struct tdm_job *b)
{
        const struct user *ua = tdm_scheduler_user(s, a->login), *ub = tdm_scheduler_user(s, b->login);

        if (a->request.priority != b->request.priority)
                return a->request.priority < b->request.priority;
        if (ua->served != ub->served)
                return ua->served < ub->served;
        return ua->admitted < ub->admitted; /* one user's: in order of arrival */
}

/* Interactive before background; of those, the user who had the least device time; of theirs, the oldest. */
static struct sequence *next_waiting(struct tdm_scheduler *s, const struct lane *lane,
                                     const struct sequence *const *skip, unsigned n_skip)
{
        struct sequence *q, *best = NULL;

        tdm_list_for_each(q, &s->waiting, struct sequence, queue) {
                const struct tdm_job *job = q->job;
                bool skipped = false;

                if (job->model != lane->model || !job->accepted || job->finished ||
                    (job->paused && job->stats.evictions > 0))
                        continue;
                if (s->config.max_running_per_uid > 0 &&
                    tdm_scheduler_user(s, job->login)->n_running >= s->config.max_running_per_uid)
                        continue;
                for (unsigned i = 0; i < n_skip; i++)
                        skipped = skipped || skip[i] == q;
                if (!skipped && (!best || is_before(s, job, best->job)))
                        best = q;
        }
        return best;
}

static void admit(struct tdm_scheduler *s, struct lane *lane)
{
        struct sequence *skip[8];
        unsigned n_skip = 0;

        while (!lane->dead) {
                struct sequence *q = next_waiting(s, lane, (const struct sequence *const *)skip, n_skip);
                struct tdm_pages_need need;
                struct tdm_error err;
                int r;

                if (!q)
                        return;
                if (!can_fit(s, q->job, &err)) {
                        finish_error(q->job, &err);
                        continue;
                }
                if (q->job->drawn.n > 0 &&
                    q->job->generated >= q->job->max_tokens) { /* it came with all that the cache holds */
                        tdm_job_finish(q->job, TDM_JOB_END_LENGTH, NULL);
                        tell_ended(q->job);
                        continue;
                }
                if (lane->n_active == s->config.max_sequences && !tdm_scheduler_make_place(s, lane, q))
                        return;
                need = tdm_scheduler_promise(s, q->job);
                r = tdm_scheduler_make_room(s, lane, q, &need, NULL);
                if (r == -EAGAIN)
                        return; /* a smaller job must not take the pages that are being freed */
                if (r == 0 && tdm_pages_reserve(lane->model->pages, &need)) {
                        for (unsigned i = 0; i < n_skip; i++)
                                skip[i]->n_bypassed++;
                        admit_sequence(s, lane, q, &need);
                        continue;
                }
                if (q->n_bypassed >= MAX_BYPASSED || n_skip == TDM_ARRAY_SIZE(skip))
                        return;
                skip[n_skip++] = q;
        }
}

/* ---- telling ---- */

/* Returns when there is more to tell; UINT64_MAX: nothing that is known now. */
static uint64_t sequence_tell_progress(struct sequence *q, uint64_t now)
{
        struct tdm_job *job = q->job;
        bool changed = job->state != q->told_state ||
                       (job->state == TDM_JOB_QUEUED && job->progress.queue_position != q->told_position);
        bool moving =
                (job->state == TDM_JOB_PREFILL && job->progress.done != q->told_done) || job->state == TDM_JOB_LOADING;
        bool soon = now - q->told_ns < PROGRESS_NS;

        if (job->state == q->told_state && !(changed || moving))
                return UINT64_MAX;
        if (job->state == q->told_state && soon)
                return job->state == TDM_JOB_LOADING ? UINT64_MAX : q->told_ns + PROGRESS_NS;
        q->told_state = job->state;
        q->told_position = job->progress.queue_position;
        q->told_done = job->progress.done;
        q->told_ns = now;
        if (job->events)
                job->events->progress(job, job->userdata);
        return UINT64_MAX;
}

/* position: the queue position of the next waiting job, by priority. */
static void update_progress(struct sequence *q, uint32_t position[2])
{
        struct tdm_job *job = q->job;
        uint64_t done = 0, total = 0;

        tdm_job_note_prefilled(job, q->n_committed);
        if (job->state == TDM_JOB_QUEUED || job->state == TDM_JOB_LOADING) {
                tdm_job_note_position(job, position[job->request.priority == TDM_JOB_BACKGROUND]++);
                tdm_job_set_state(job, job->model->state == TDM_MODEL_READY ? TDM_JOB_QUEUED : TDM_JOB_LOADING);
        }
        if (job->state == TDM_JOB_LOADING)
                tdm_model_progress(job->model, &done, &total);
        else if (job->state != TDM_JOB_QUEUED) {
                total = (uint64_t)job->prompt_tokens + job->drawn.n; /* which are read like a prompt */
                done = TDM_MIN((uint64_t)q->n_committed, total);
        }
        tdm_job_note_progress(job, done, total);
}

static void tell_emits(struct tdm_scheduler *s)
{
        for (uint32_t i = 0; i < s->n_emits; i++) {
                struct emit *e = &s->emits[i];

                if (e->job->events && e->kind == EMIT_TOKEN)
                        e->job->events->token(e->job, e->first, &e->token, e->job->userdata);
                else if (e->job->events)
                        e->job->events->scores(e->job, e->first, e->results, e->n, e->job->userdata);
                tdm_job_unref(e->job);
        }
        s->n_emits = 0;
}

static void tell(struct tdm_scheduler *s)
{
        uint64_t now = tdm_now_ns(), next = UINT64_MAX;
        uint32_t position[2] = { 0 }; /* interactive jobs count before all background ones */
        struct sequence *q;

        tdm_list_for_each(q, &s->waiting, struct sequence, queue)
                position[1] += q->job->accepted && q->job->request.priority == TDM_JOB_INTERACTIVE;
        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                struct tdm_job *job = q->job;

                if (!job->accepted || job->state == TDM_JOB_DONE)
                        continue;
                if (tdm_job_tell_accepted(job) && job->events)
                        job->events->accepted(job, job->userdata);
                update_progress(q, position);
                next = TDM_MIN(next, sequence_tell_progress(q, now));
        }
        tdm_source_arm(s->timers.tells, next == UINT64_MAX ? 0 : next);
        tell_emits(s);
        tdm_list_for_each(q, &s->ended, struct sequence, queue) {
                struct tdm_job *job = tdm_job_ref(q->job);

                forget(s, q);
                if (job->events)
                        job->events->done(job, job->userdata);
                tdm_job_unref(job);
        }
}

void tdm_scheduler_run(struct tdm_scheduler *s)
{
        struct lane *lane;

        prepare_all(s);
        retire_finished(s);
        tdm_companion_sweep(s);
        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_scheduler_sweep_leaving(s, lane);
                admit(s, lane);
        }
        retire_finished(s); /* jobs that can never fit */
        tdm_scheduler_level(s);
        tdm_scheduler_probe(s);
        while (tdm_scheduler_issue(s))
                ;
        tdm_scheduler_make_masks(s);
        retire_finished(s); /* jobs that no worker can run */
        tdm_companion_sweep(s);
        tdm_list_for_each(lane, &s->lanes, struct lane, node)
                tdm_scheduler_sweep_lane(s, lane);
        tell(s);
        tdm_scheduler_keep(s);
}

/* ---- looking ---- */

struct tdm_job *tdm_scheduler_find(struct tdm_scheduler *s, uint64_t id)
{
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->job->id == id && q->job->state != TDM_JOB_DONE)
                        return q->job;
        }
        return NULL;
}

struct tdm_list *tdm_scheduler_jobs(struct tdm_scheduler *s)
{
        return &s->jobs;
}

void tdm_scheduler_stats(const struct tdm_scheduler *s, struct tdm_scheduler_stats *ret)
{
        const struct sequence *q;

        *ret = s->stats;
        ret->n_in_flight = s->n_in_flight;
        if (s->config.page_store)
                ret->disk_refused = tdm_page_store_n_refused(s->config.page_store);
        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->table != UINT32_MAX)
                        ret->n_running++;
                else if (q->job->state != TDM_JOB_DONE)
                        ret->n_queued++;
        }
}

enum tdm_placement tdm_scheduler_placement(const struct tdm_scheduler *s)
{
        return s->config.placement;
}

void tdm_scheduler_drain(struct tdm_scheduler *s)
{
        struct tdm_error err;
        struct sequence *q;

        s->draining = true;
        tdm_error_set(&err, TDM_E_DRAINING, "tandemd is shutting down; the job had not begun");
        tdm_list_for_each(q, &s->waiting, struct sequence, queue) {
                if (q->job->stats.evictions == 0) /* the others had begun */
                        tdm_job_finish(q->job, TDM_JOB_END_ERROR, &err);
        }
        tdm_source_schedule(s->work);
}

bool tdm_scheduler_is_held(const struct tdm_scheduler *s)
{
        return s->held;
}

void tdm_scheduler_hold(struct tdm_scheduler *s, bool held)
{
        s->held = held;
        tdm_source_schedule(s->work);
}

bool tdm_scheduler_is_idle(const struct tdm_scheduler *s)
{
        return tdm_list_empty(&s->sequences);
}

/* ---- models ---- */

void tdm_scheduler_on_model_changed(struct tdm_scheduler *s, struct tdm_model *model)
{
        struct lane *lane = tdm_scheduler_lane(s, model->id);
        struct tdm_error err = model->error;
        struct sequence *q;
        bool over = model->state == TDM_MODEL_FAILED || model->state == TDM_MODEL_GONE;

        if (model->state == TDM_MODEL_READY && !lane && tdm_lane_new(s, model) < 0) {
                tdm_error_set(&err, TDM_E_NO_MEMORY, "out of memory for the schedule of model %s",
                              tdm_model_told_name(model));
                over = true;
        }
        if (over) {
                /* Only marked here, because this may be called while the lists are walked. */
                if (lane)
                        lane->dead = true;
                tdm_companion_model_changed(s, model);
                tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                        if (q->job->model == model)
                                finish_error(q->job, &err);
                }
        }
        tdm_source_schedule(s->work);
}

void tdm_scheduler_on_fleet_ready(struct tdm_scheduler *s)
{
        tdm_source_schedule(s->work);
}
