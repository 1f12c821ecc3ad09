/* Companions: the sequences of draft models. A small model guesses at what a large one will say.
 *
 * A sequence with a draft model has a companion: a sequence of that model, with pages and steps of its own. The
 * companion reads what the sequence has. Then it draws one token after the other, as its model would go on, with
 * the random numbers of the same positions. These tokens are guesses for the sequence's next step (guess.c). When
 * that step is done, the companion goes back to the last position at which its tokens are the sequence's.
 *
 * Guesses change no token, so a companion may fail, be late or be dropped at any time:
 *
 * - It takes free pages only, and its pages are the first to go. Its model counts no job, and may be unloaded.
 * - Its steps are of a class of their own. They do not run while a prompt waits to be read.
 * - The sequence waits for it only while that pays by what was measured (daemon/speculate/draft-plan.c), and never
 *   longer than a bound. A companion that is late is not waited for during some tokens, more each time.
 * - Steps of drafts that kill workers end all drafts of that model after a few times.
 *
 * Companions are known to no client and are in no list but their lane's. They are freed by tdm_companion_sweep() only,
 * because others may be walking over that list. */
#include "daemon/schedule/private.h"

#include <assert.h>

#include "common/log.h"

/* Rows that a companion may be behind when its sequence waits for it; or as many as one of its steps has, where that
 * takes no longer than this part of the sequence's own step. */
#define BEHIND_ROWS 16u
#define BEHIND_PART 0.1f
/* Rows of a companion that reads, in one step. */
#define READ_ROWS 128u
/* A sequence waits at most this long beyond twice the time that the companion's steps should take: LAG_NS, or a part of
 * its own step, which takes longer where other programs want the CPUs too. */
#define LAG_NS (5 * TDM_NSEC_PER_MSEC)
#define LAG_PART 0.25f
#define LAG_TESTS_NS (2 * TDM_NSEC_PER_SEC)
/* A companion that was late is not waited for during LATE_TOKENS tokens; twice as many each time, up to 64 times. */
#define LATE_TOKENS 8u
/* Steps of drafts that may kill workers or fail, before FORGIVE_STEPS good ones forgive them. */
#define MAX_DEATHS 3u
#define FORGIVE_STEPS 4096u

/* ---- which model ---- */

/* The draft that the configuration has for a model; NULL: none. */
static const char *configured_draft(const struct tdm_scheduler *s, const struct tdm_model *target)
{
        size_t size = strlen(target->name);

        for (const char *const *pair = s->config.drafts; pair && *pair; pair++)
                if (strncmp(*pair, target->name, size) == 0 && (*pair)[size] == '=')
                        return *pair + size + 1;
        return NULL;
}

static int open_model(struct tdm_scheduler *s, const struct tdm_job *job, const char *name,
                      const struct tdm_model *target, struct tdm_model **ret, struct tdm_error *err)
{
        if (s->config.open_draft)
                return s->config.open_draft(s->config.open_data, name, ret, err);
        return tdm_models_open(target->models, job->account, name, -1, ret, err);
}

int tdm_companion_open(struct tdm_scheduler *s, struct sequence *q, struct tdm_model *target, struct tdm_error *err)
{
        const struct tdm_job *job = q->job;
        enum tdm_speculation mode = tdm_speculate_mode(s->speculate, job);
        bool asked = job->request.draft_name || job->request.options.speculation == TDM_SPECULATION_DRAFT;
        bool used = mode == TDM_SPECULATION_AUTO || mode == TDM_SPECULATION_DRAFT;
        const char *name = job->request.draft_name;
        struct tdm_error why = { 0 };
        int r;

        if (job->kind != TDM_JOB_GENERATE || (!name && !used))
                return 0;
        if (job->pictures.n > 0) { /* no draft sees them */
                q->draft.plan.why = asked ? TDM_UNGUESSED_DRAFT_BLIND : TDM_UNGUESSED_NOT;
                return 0;
        }
        if (!name)
                name = configured_draft(s, target);
        if (!name && asked)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "speculation: model %s has no draft model; name one with draft (tandem.conf may "
                                     "have one for each model)",
                                     tdm_model_told_name(target));
        if (!name) {
                q->draft.plan.why = mode == TDM_SPECULATION_DRAFT ? TDM_UNGUESSED_DRAFT_NONE : TDM_UNGUESSED_NOT;
                return 0;
        }
        r = open_model(s, job, name, target, &q->draft.model, &why);
        if (r != 0 && asked)
                return tdm_error_set(err, r, "draft: %s", why.message);
        if (r != 0) {
                if (!s->told_no_draft)
                        tdm_log_warning("the draft %s that the configuration has for model %s cannot be opened: %s",
                                        name, target->name, why.message);
                s->told_no_draft = true;
                q->draft.plan.why = TDM_UNGUESSED_DRAFT_MISSING;
                return 0;
        }
        q->draft.used = used && tdm_speculate_is_on(s->speculate);
        q->draft.plan.why = q->draft.used ? TDM_UNGUESSED_DRAFT_LOADING : TDM_UNGUESSED_NOT;
        return 0;
}

int tdm_companion_check(struct tdm_scheduler *s, struct sequence *q, struct tdm_error *err)
{
        struct draft *d = &q->draft;
        bool asked = q->job->request.draft_name || q->job->request.options.speculation == TDM_SPECULATION_DRAFT;
        struct tdm_error why = { 0 };
        int r;

        if (!d->model)
                return 0;
        if (d->model->state == TDM_MODEL_FAILED)
                r = tdm_error_set(&why, d->model->error.code, "draft: %s", d->model->error.message);
        else if (d->model->state == TDM_MODEL_GONE)
                r = tdm_error_set(&why, TDM_E_NO_MODEL, "draft: model %s was unloaded meanwhile",
                                  tdm_model_told_name(d->model));
        else if (!tdm_model_is_described(d->model))
                return TDM_E_BUSY;
        else
                r = tdm_model_check_draft(q->job->model, d->model, &why);
        if (r == 0) {
                if (d->used)
                        tdm_model_want_draft(d->model, q->job->account);
                return 0;
        }
        if (asked) {
                *err = why;
                return r;
        }
        if (!s->told_no_draft)
                tdm_log_warning("the draft that the configuration has for model %s cannot be used: %s",
                                q->job->model->name, why.message);
        s->told_no_draft = true;
        d->plan.why = r == TDM_E_UNSUPPORTED ? TDM_UNGUESSED_DRAFT_DIFFERS : TDM_UNGUESSED_DRAFT_MISSING;
        tdm_model_unref(steal_ptr(&d->model));
        return 0;
}

/* ---- companions ---- */

void tdm_companion_lose(struct sequence *companion, enum tdm_unguessed why)
{
        struct sequence *q = companion->owner;

        tdm_job_finish(companion->job, TDM_JOB_END_CANCELLED, NULL);
        companion->owner = NULL;
        if (!q)
                return;
        q->draft.seq = NULL;
        q->draft.waits = false;
        tdm_draft_plan_stop(&q->draft.plan, why, q->job->n_ids);
}

void tdm_companion_drop(struct sequence *q)
{
        if (q->draft.seq)
                tdm_companion_lose(q->draft.seq, TDM_UNGUESSED_DRAFT_BEHIND);
        q->draft.waits = false;
}

void tdm_companion_retire(struct tdm_scheduler *s, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *lane = d->plan.begun ? tdm_scheduler_lane(s, d->model->id) : NULL;

        if (lane)
                tdm_draft_records_keep(&lane->guesses.records, &d->plan.records);
        tdm_companion_drop(q);
}

static void companion_end(struct tdm_scheduler *s, struct lane *lane, struct sequence *companion)
{
        tdm_model_unref(steal_ptr(&companion->draft.model));
        tdm_scheduler_release(s, lane, companion);
        s->n_companions--;
        tdm_sequence_free(companion);
}

void tdm_companion_evict(struct tdm_scheduler *s, struct lane *lane, struct sequence *companion)
{
        tdm_companion_lose(companion, TDM_UNGUESSED_DRAFT_MEMORY);
        companion_end(s, lane, companion);
}

void tdm_companion_sweep(struct tdm_scheduler *s)
{
        struct sequence *q;
        struct lane *lane;

        if (s->n_companions == 0)
                return;
        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        if (q->is_draft && q->job->finished && q->in_flight == 0)
                                companion_end(s, lane, q);
                }
        }
}

void tdm_companion_free_all(struct tdm_scheduler *s)
{
        struct sequence *q;
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        if (!q->is_draft)
                                continue;
                        tdm_list_remove(&q->active);
                        tdm_companion_lose(q, TDM_UNGUESSED_DRAFT_LOST);
                        tdm_sequence_free(q);
                }
        }
}

void tdm_companion_model_changed(struct tdm_scheduler *s, const struct tdm_model *model)
{
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->draft.model != model || !q->job->accepted || !q->draft.used)
                        continue;
                if (q->draft.seq)
                        tdm_companion_lose(q->draft.seq, TDM_UNGUESSED_DRAFT_LOST);
                q->draft.plan.why = TDM_UNGUESSED_DRAFT_LOST;
        }
}

void tdm_companion_blame(struct lane *lane, const struct flight *f)
{
        lane->guesses.n_deaths++;
        lane->guesses.n_steps = 0;
        if (lane->guesses.n_deaths < MAX_DEATHS)
                return;
        if (lane->guesses.n_deaths == MAX_DEATHS)
                tdm_log_warning("model %s does not guess for others any more: its steps failed %u times",
                                lane->model->name, MAX_DEATHS);
        for (uint32_t i = 0; i < f->n_seqs; i++)
                tdm_companion_lose(f->seqs[i].seq, TDM_UNGUESSED_DRAFT_LOST);
}

/* The companion's own vocabulary may be shorter. It reads another token then; this makes its guesses worse only. */
static uint32_t id_for(const struct sequence *companion, uint32_t id)
{
        return id < tdm_model_hparams(companion->job->model)->n_vocab ? id : 0;
}

/* The companion's tokens become the sequence's. Guesses behind them stay where all before them agree. */
static int catch_up(struct sequence *companion)
{
        const struct tdm_job *of = companion->owner->job;
        struct tdm_job *job = companion->job;
        uint32_t same = TDM_MIN(companion->n_synced, TDM_MIN(job->n_ids, of->n_ids));
        int r = 0;

        assert(companion->in_flight == 0);
        while (same < job->n_ids && same < of->n_ids && job->ids[same] == id_for(companion, of->ids[same]))
                same++;
        if (same < of->n_ids) {
                tdm_job_cut_back(job, same);
                companion->n_committed = TDM_MIN(companion->n_committed, same);
                companion->n_issued = companion->n_committed;
        }
        while (job->n_ids < of->n_ids && r == 0)
                r = tdm_job_append(job, id_for(companion, of->ids[job->n_ids]));
        companion->n_synced = of->n_ids;
        return r;
}

static int companion_begin(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct tdm_model *model = lane->model;
        struct sequence *companion;
        struct tdm_job *job;
        int r = tdm_job_new_draft(&job, q->job, model, tdm_model_hparams(model)->n_vocab);

        if (r < 0)
                return r;
        r = tdm_sequence_new(&companion, job);
        tdm_job_unref(job);
        if (r < 0)
                return r;
        companion->is_draft = true;
        companion->owner = q;
        companion->draft.model = tdm_model_ref(model);
        r = catch_up(companion);
        if (r < 0) {
                companion->owner = NULL;
                tdm_model_unref(steal_ptr(&companion->draft.model));
                tdm_sequence_free(companion);
                return r;
        }
        tdm_scheduler_enter_lane(lane, companion);
        q->draft.seq = companion;
        s->n_companions++;
        return 0;
}

/* Tokens of the companion behind the sequence's. */
static uint32_t n_ahead(const struct sequence *companion)
{
        return companion->job->n_ids - TDM_MIN(companion->job->n_ids, companion->owner->job->n_ids);
}

/* How sure it was of the token that it drew for this position. */
static uint8_t *certainty_at(struct sequence *companion, uint32_t position)
{
        return &companion->draft.certainty[position % TDM_ARRAY_SIZE(companion->draft.certainty)];
}

static bool is_behind(const struct sequence *companion)
{
        return companion->owner->job->n_ids - TDM_MIN(companion->n_issued, companion->owner->job->n_ids) > BEHIND_ROWS;
}

bool tdm_companion_has_work(const struct sequence *companion)
{
        const struct sequence *q = companion->owner;

        if (!q || companion->in_flight > 0 || companion->leaving || companion->job->finished || q->job->finished ||
            q->job->paused || q->draft.plan.n_wanted == 0 || q->table == UINT32_MAX)
                return false;
        return q->draft.waits ? n_ahead(companion) < q->draft.plan.n_wanted : is_behind(companion);
}

uint32_t tdm_companion_rows(const struct sequence *companion)
{
        return TDM_MIN(companion->job->n_ids - companion->n_issued, READ_ROWS);
}

uint32_t tdm_companion_burst(const struct sequence *companion)
{
        const struct draft *d = &companion->owner->draft;
        uint32_t n = n_ahead(companion) + 1;

        return d->waits && d->plan.n_wanted > n ? d->plan.n_wanted - n : 0;
}

uint32_t tdm_companion_guesses(const struct sequence *q, uint32_t most, uint32_t *ret, uint8_t *ret_certainty)
{
        struct sequence *companion = q->draft.seq;
        uint32_t n;

        if (!companion || companion->in_flight > 0 || companion->n_synced != q->job->n_ids ||
            q->draft.plan.n_wanted == 0)
                return 0;
        n = TDM_MIN(n_ahead(companion), most);
        memcpy(ret, companion->job->ids + q->job->n_ids, n * sizeof(*ret));
        for (uint32_t i = 0; i < n; i++)
                ret_certainty[i] = *certainty_at(companion, q->job->n_ids + i);
        return n;
}

/* ---- how many guesses ---- */

/* Sequences that generate, and those of them that have a draft. */
static uint32_t n_generating(const struct lane *lane, uint32_t *ret_n_drafted)
{
        const struct sequence *q;
        uint32_t n = 0, n_drafted = 0;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->is_draft || q->job->finished || q->job->paused || !sequence_is_decoding(q))
                        continue;
                n++;
                n_drafted += q->draft.model && q->draft.used && q->draft.plan.why != TDM_UNGUESSED_DRAFT_LOST;
        }
        *ret_n_drafted = TDM_MAX(n_drafted, 1u);
        return TDM_MAX(n, *ret_n_drafted);
}

bool tdm_companion_must_yield(const struct tdm_scheduler *s)
{
        const struct sequence *q;
        const struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        if (!q->is_draft && !q->job->finished && !q->job->paused && !sequence_is_decoding(q))
                                return true;
                }
        }
        return false;
}

static struct tdm_draft_company company_of(struct lane *lane, struct lane *draft)
{
        struct tdm_draft_company c = { .target = &lane->guesses.target,
                                       .draft = &draft->guesses.draft,
                                       .others = &draft->guesses.records };

        c.n = n_generating(lane, &c.n_drafted);
        c.size = (float)draft->model->metadata->weights_bytes /
                 (float)TDM_MAX(lane->model->metadata->weights_bytes, UINT64_C(1));
        return c;
}

/* The lane of the sequence's draft; NULL: it cannot guess now. */
static struct lane *usable_lane(struct tdm_scheduler *s, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *lane;

        if (!d->model || !d->used || d->plan.why == TDM_UNGUESSED_DRAFT_LOST)
                return NULL;
        if (d->model->state != TDM_MODEL_READY) {
                d->plan.why = TDM_UNGUESSED_DRAFT_LOADING;
                return NULL;
        }
        lane = tdm_scheduler_lane(s, d->model->id);
        if (!lane || lane->dead)
                return NULL;
        if (lane->guesses.n_deaths >= MAX_DEATHS) {
                d->plan.why = TDM_UNGUESSED_DRAFT_LOST;
                return NULL;
        }
        return lane;
}

static void arm_lag(struct tdm_scheduler *s)
{
        uint64_t next = UINT64_MAX;
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->draft.waits)
                        next = TDM_MIN(next, q->draft.until_ns);
        }
        tdm_source_arm(s->timers.lag, next == UINT64_MAX ? 0 : next);
}

void tdm_companion_stop_waiting(struct tdm_scheduler *s, uint64_t now_ns)
{
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                struct draft *d = &q->draft;

                if (!d->waits || d->until_ns > now_ns)
                        continue;
                d->waits = false;
                d->plan.why = TDM_UNGUESSED_DRAFT_BEHIND;
                d->n_late = TDM_MIN(d->n_late + 1, 6u);
                d->patient_at = q->job->n_ids + (LATE_TOKENS << d->n_late);
        }
        arm_lag(s);
}

/* It catches up in one step, which takes a small part of the sequence's. */
static bool reads_soon(const struct sequence *companion, const struct tdm_draft_company *c)
{
        uint32_t n = companion->owner->job->n_ids - companion->n_issued;

        return n <= READ_ROWS && c->draft->read_row_ns > 0 &&
               (float)n * c->draft->read_row_ns <= BEHIND_PART * tdm_draft_company_step(c);
}

static void wait_for(struct tdm_scheduler *s, struct sequence *q, const struct tdm_draft_company *c)
{
        struct draft *d = &q->draft;
        float lag_ns = TDM_MAX((float)LAG_NS, LAG_PART * tdm_draft_company_step(c));
        float most_ns = 2 * tdm_draft_company_burst(c, (float)d->plan.n_wanted) + lag_ns;

        d->plan.why = TDM_UNGUESSED_DRAFT_BEHIND;
        if ((is_behind(d->seq) && !reads_soon(d->seq, c)) || q->job->n_ids < d->patient_at || q->suspects ||
            tdm_companion_must_yield(s))
                return;
        d->waits = d->seq->in_flight > 0 || n_ahead(d->seq) < d->plan.n_wanted;
        if (!d->waits)
                return;
        /* Where the time of devices is another one than this clock's, this clock only ends what hangs. */
        if (tdm_speculate_wants_all(s->speculate) || s->config.clock_ns)
                most_ns = (float)LAG_TESTS_NS;
        d->until_ns = tdm_now_ns() + (uint64_t)most_ns;
        arm_lag(s);
}

static bool have_companion(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        if (q->draft.seq)
                return true;
        if (q->job->n_ids < q->draft.plan.retry_at && q->draft.plan.why == TDM_UNGUESSED_DRAFT_MEMORY)
                return false;
        if (lane->n_active == s->config.max_sequences || companion_begin(s, lane, q) < 0) {
                tdm_draft_plan_stop(&q->draft.plan, TDM_UNGUESSED_DRAFT_MEMORY, q->job->n_ids);
                return false;
        }
        return true;
}

void tdm_companion_follow(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *draft;
        struct tdm_draft_company c;

        d->plan.n_wanted = 0;
        d->waits = false;
        if (!d->model || q->job->finished || q->job->n_ids < d->plan.look_at)
                return;
        draft = usable_lane(s, q);
        if (!draft)
                return;
        if (q->job->n_ids + TDM_MAX_GUESSES >= tdm_model_hparams(d->model)->n_ctx) {
                tdm_companion_drop(q);
                d->plan.why = TDM_UNGUESSED_DRAFT_LONG;
                return;
        }
        if (d->seq && d->seq->in_flight == 0 && catch_up(d->seq) < 0)
                tdm_companion_lose(d->seq, TDM_UNGUESSED_DRAFT_MEMORY);
        c = company_of(lane, draft);
        if (!d->plan.begun)
                tdm_draft_plan_begin(&d->plan, &c, q->job->n_ids);
        if (d->plan.why == TDM_UNGUESSED_DRAFT_MEMORY && !have_companion(s, draft, q))
                return;
        tdm_draft_plan_choose(&d->plan, s->speculate, q->job, &c);
        if (d->plan.n_wanted == 0 ||
            tdm_guesses_lookup_beats(s->speculate, &q->guesses, q->job, tdm_guess_chance(&d->plan.records.first)) ||
            !have_companion(s, draft, q)) {
                d->plan.n_wanted = 0;
                return;
        }
        wait_for(s, q, &c);
}

static int append_drawn(struct sequence *companion, const struct tdm_result *drawn)
{
        *certainty_at(companion, companion->job->n_ids) = tdm_step_certainty(drawn->logprob);
        return tdm_job_append(companion->job, drawn->token);
}

/* The tokens that it has drawn become its own. All but the last have their keys and values already. *ret_ended: it drew
 * fewer than it should, as it was not sure enough. */
static int take_drawn(const struct tdm_scheduler *s, const struct flight_seq *fs, bool *ret_ended)
{
        struct sequence *companion = fs->seq;
        struct tdm_job *job = companion->job;
        int r;

        *ret_ended = false;
        if (fs->n_logits == 0 || companion->n_committed != job->n_ids)
                return 0;
        r = append_drawn(companion, &s->results[fs->first_logits]);
        for (uint32_t i = 0; i < fs->n_burst && r == 0; i++) {
                *ret_ended = s->results[fs->first_burst + i].token == TDM_NO_TOKEN;
                if (*ret_ended)
                        break;
                companion->n_committed++;
                r = append_drawn(companion, &s->results[fs->first_burst + i]);
        }
        return r;
}

void tdm_companion_commit(struct tdm_scheduler *s, struct lane *lane, const struct flight_seq *fs)
{
        struct sequence *companion = fs->seq, *q = companion->owner;
        struct tdm_job *job = companion->job;
        bool ended;
        int r;

        companion->n_committed += fs->n_rows;
        tdm_model_drafted(lane->model);
        if (++lane->guesses.n_steps >= FORGIVE_STEPS && lane->guesses.n_deaths < MAX_DEATHS)
                lane->guesses.n_deaths = lane->guesses.n_steps = 0;
        if (!q || job->finished)
                return;
        companion->in_flight--; /* it is in one step at most, and that lands now */
        r = take_drawn(s, fs, &ended);
        if (r == 0)
                r = catch_up(companion);
        companion->in_flight++;
        if (r < 0) {
                tdm_companion_lose(companion, TDM_UNGUESSED_DRAFT_MEMORY);
                return;
        }
        tdm_scheduler_enter(lane, companion);
        tdm_sequence_free_slid_out(lane, companion);
        if (ended)
                q->draft.plan.n_wanted = TDM_MIN(q->draft.plan.n_wanted, n_ahead(companion));
        if (q->draft.waits && n_ahead(companion) >= q->draft.plan.n_wanted) {
                q->draft.waits = false;
                q->draft.n_late -= q->draft.n_late > 0;
        }
}
