/* Draft models: a small model guesses at what a large one will say.
 *
 * A sequence with a draft model has a companion: a sequence of that model, with pages and steps of its own. The
 * companion reads what the sequence has. Behind that it draws one token after the other, as its model would go on, with
 * the random numbers of the same positions. These tokens are guesses for the sequence's next step (speculate.c). When
 * that step is done, the companion goes back to the last position at which its tokens are the sequence's.
 *
 * Guesses change no token, so a companion may fail, be late or be dropped at any time:
 *
 * - It takes free pages only, and its pages are the first to go. Its model counts no job, and may be unloaded.
 * - Its steps are of a class of their own. They do not run while a prompt waits to be read.
 * - The sequence waits for it only while that pays by what was measured, and never longer than a bound. A companion
 *   that is late is not waited for during some tokens, more each time.
 * - Steps of drafts that kill workers end all drafts of that model after a few times.
 *
 * Companions are known to no client and are in no list but their lane's. They are freed by tdm_draft_sweep() only,
 * because others may be walking over that list. */
#include "daemon/schedule/private.h"

#include <assert.h>
#include <math.h>

#include "common/log.h"

/* Rows that a companion may be behind when its sequence waits for it; or as many as one of its steps has, where that
 * takes no longer than such a part of the sequence's own. */
#define BEHIND_ROWS 16u
#define BEHIND_PART 0.1f
/* Of a companion that reads, in one step. */
#define READ_ROWS 128u
/* What a sequence waits at most, beside twice the time that the companion's steps should take: this, or a part of its
 * own step, which takes longer where other programs want the CPUs too. */
#define LAG_NS (5 * TDM_NSEC_PER_MSEC)
#define LAG_PART 0.25f
#define LAG_TESTS_NS (2 * TDM_NSEC_PER_SEC)
/* For so many tokens a companion that was late is not waited for; twice as many each time, up to 64 times. */
#define LATE_TOKENS 8u
/* One that did not pay is tried again after so many tokens, likewise, for so many tokens. */
#define PROBE_TOKENS 64u
#define PROBE_FOR 4u
/* Guesses have to gain so much. */
#define GAIN_LEAST 1.02f
/* A guess that is likelier to be right than this, with all before it, is worth its row; one less likely is not. */
#define CHANCE_MOST 0.5f
#define CHANCE_LEAST 0.02f
/* How good a companion might be that seems not to pay. */
#define PROBE_CHANCE 0.8f
/* For tests: the classes of certainty behind which a burst ends. */
#define HARDLY_SURE 3u
/* What a job has counted comes back to what is expected by such a part with each token, while it makes no guesses: a
 * run of wrong ones says little about the text that follows. */
#define BACK_PART 0.01f
/* What is computed for a draft that does not pay, all of a step wait for. In company a job does that with one of so
 * many tokens, not all jobs with the same. */
#define COMPANY_EVERY 8u
/* Steps of drafts that may kill workers or fail, in so many good ones. */
#define MAX_DEATHS 3u
#define FORGIVE_STEPS 4096u

/* ---- which model ---- */

/* The draft that the configuration has for a model; NULL: none. */
static const char *configured(const struct tdm_scheduler *s, const struct tdm_model *target)
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

int tdm_draft_open(struct tdm_scheduler *s, struct sequence *q, struct tdm_model *target, struct tdm_error *err)
{
        const struct tdm_job *job = q->job;
        enum tdm_speculation mode = tdm_scheduler_speculation_of(s, job);
        bool asked = job->draft_name || job->options.speculation == TDM_SPECULATION_DRAFT;
        bool used = mode == TDM_SPECULATION_AUTO || mode == TDM_SPECULATION_DRAFT;
        const char *name = job->draft_name;
        struct tdm_error why = { 0 };
        int r;

        if (job->kind != TDM_JOB_GENERATE || (!name && !used))
                return 0;
        if (!name)
                name = configured(s, target);
        if (!name && asked)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "speculation: model %s has no draft model; name one with draft (tandem.conf may "
                                     "have one for each model)",
                                     tdm_model_told_name(target));
        if (!name) {
                q->draft.why = mode == TDM_SPECULATION_DRAFT ? TDM_UNGUESSED_DRAFT_NONE : TDM_UNGUESSED_NOT;
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
                q->draft.why = TDM_UNGUESSED_DRAFT_MISSING;
                return 0;
        }
        q->draft.used = used && s->config.draft_max > 0;
        q->draft.why = q->draft.used ? TDM_UNGUESSED_DRAFT_LOADING : TDM_UNGUESSED_NOT;
        return 0;
}

int tdm_draft_check(struct tdm_scheduler *s, struct sequence *q, struct tdm_error *err)
{
        struct draft *d = &q->draft;
        bool asked = q->job->draft_name || q->job->options.speculation == TDM_SPECULATION_DRAFT;
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
        d->why = r == TDM_E_UNSUPPORTED ? TDM_UNGUESSED_DRAFT_DIFFERS : TDM_UNGUESSED_DRAFT_MISSING;
        tdm_model_unref(steal_ptr(&d->model));
        return 0;
}

/* ---- companions ---- */

void tdm_draft_lose(struct sequence *companion, enum tdm_unguessed why)
{
        struct sequence *q = companion->owner;

        companion->job->finished = true;
        companion->owner = NULL;
        if (!q)
                return;
        q->draft.seq = NULL;
        q->draft.waits = false;
        q->draft.n_wanted = 0;
        q->draft.why = why;
        q->draft.retry_at = q->job->n_ids + PROBE_TOKENS;
}

void tdm_draft_drop(struct sequence *q)
{
        if (q->draft.seq)
                tdm_draft_lose(q->draft.seq, TDM_UNGUESSED_DRAFT_BEHIND);
        q->draft.waits = false;
}

void tdm_draft_retire(struct tdm_scheduler *s, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *lane = d->begun ? tdm_scheduler_lane(s, d->model->id) : NULL;

        if (lane)
                tdm_draft_keep_counts(&lane->draft_records, &d->records);
        tdm_draft_drop(q);
}

/* In company a try costs all of them. What earlier jobs have shown is a first try. */
static void begin_counting(struct sequence *q, const struct lane *lane, bool in_company)
{
        struct draft *d = &q->draft;

        d->begun = true;
        tdm_draft_expect(&d->records, &lane->draft_records, 1);
        if (in_company && lane->draft_records.first.n > TDM_DRAFT_PRIOR_GUESSES) {
                d->n_probes = 1;
                d->retry_at = q->job->n_ids + (PROBE_TOKENS << d->n_probes);
        }
}

static void end(struct tdm_scheduler *s, struct lane *lane, struct sequence *companion)
{
        tdm_model_unref(steal_ptr(&companion->draft.model));
        tdm_scheduler_release(s, lane, companion);
        s->n_companions--;
        tdm_sequence_free(companion);
}

void tdm_draft_evict(struct tdm_scheduler *s, struct lane *lane, struct sequence *companion)
{
        tdm_draft_lose(companion, TDM_UNGUESSED_DRAFT_MEMORY);
        end(s, lane, companion);
}

void tdm_draft_sweep(struct tdm_scheduler *s)
{
        struct sequence *q;
        struct lane *lane;

        if (s->n_companions == 0)
                return;
        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        if (q->is_draft && q->job->finished && q->in_flight == 0)
                                end(s, lane, q);
                }
        }
}

void tdm_draft_free_all(struct tdm_scheduler *s)
{
        struct sequence *q;
        struct lane *lane;

        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                tdm_list_for_each(q, &lane->active, struct sequence, active) {
                        if (!q->is_draft)
                                continue;
                        tdm_list_remove(&q->active);
                        tdm_draft_lose(q, TDM_UNGUESSED_DRAFT_LOST);
                        tdm_sequence_free(q);
                }
        }
}

void tdm_draft_model_changed(struct tdm_scheduler *s, const struct tdm_model *model)
{
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                if (q->draft.model != model || !q->job->accepted || !q->draft.used)
                        continue;
                if (q->draft.seq)
                        tdm_draft_lose(q->draft.seq, TDM_UNGUESSED_DRAFT_LOST);
                q->draft.why = TDM_UNGUESSED_DRAFT_LOST;
        }
}

void tdm_draft_blame(struct lane *lane, const struct flight *f)
{
        lane->n_draft_deaths++;
        lane->n_draft_steps = 0;
        if (lane->n_draft_deaths < MAX_DEATHS)
                return;
        if (lane->n_draft_deaths == MAX_DEATHS)
                tdm_log_warning("model %s does not guess for others any more: its steps failed %u times",
                                lane->model->name, MAX_DEATHS);
        for (uint32_t i = 0; i < f->n_seqs; i++)
                tdm_draft_lose(f->seqs[i].seq, TDM_UNGUESSED_DRAFT_LOST);
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
                job->n_ids = same;
                companion->n_committed = TDM_MIN(companion->n_committed, same);
                companion->n_issued = companion->n_committed;
        }
        while (job->n_ids < of->n_ids && r == 0)
                r = tdm_job_append(job, id_for(companion, of->ids[job->n_ids]));
        companion->n_synced = of->n_ids;
        return r;
}

static int begin(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
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

bool tdm_draft_has_work(const struct sequence *companion)
{
        const struct sequence *q = companion->owner;

        if (!q || companion->in_flight > 0 || companion->leaving || companion->job->finished || q->job->finished ||
            q->job->paused || q->draft.n_wanted == 0 || q->table == UINT32_MAX)
                return false;
        return q->draft.waits ? n_ahead(companion) < q->draft.n_wanted : is_behind(companion);
}

uint32_t tdm_draft_rows(const struct sequence *companion)
{
        return TDM_MIN(companion->job->n_ids - companion->n_issued, READ_ROWS);
}

uint32_t tdm_draft_burst(const struct sequence *companion)
{
        const struct draft *d = &companion->owner->draft;
        uint32_t n = n_ahead(companion) + 1;

        return d->waits && d->n_wanted > n ? d->n_wanted - n : 0;
}

uint32_t tdm_draft_guesses(const struct sequence *q, uint32_t most, uint32_t *ret, uint8_t *ret_certainty)
{
        struct sequence *companion = q->draft.seq;
        uint32_t n;

        if (!companion || companion->in_flight > 0 || companion->n_synced != q->job->n_ids || q->draft.n_wanted == 0)
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
                n_drafted += q->draft.model && q->draft.used && q->draft.why != TDM_UNGUESSED_DRAFT_LOST;
        }
        *ret_n_drafted = TDM_MAX(n_drafted, 1u);
        return TDM_MAX(n, *ret_n_drafted);
}

bool tdm_draft_must_yield(const struct tdm_scheduler *s)
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

struct costs {
        struct lane *lane, *draft_lane;
        uint32_t n, n_drafted; /* sequences in a step, and those that get guesses */
        float step;            /* ns, of a step without guesses */
        float draft_expected;  /* ns, of a pass of the companions, by the sizes of the models alone */
        bool hopes;            /* a burst takes no longer than expected */
};

static struct costs costs_of(struct lane *lane, struct lane *draft)
{
        struct costs c = { .lane = lane, .draft_lane = draft };

        c.n = n_generating(lane, &c.n_drafted);
        c.step = tdm_scheduler_step_cost(lane, c.n, c.n);
        c.draft_expected = c.step * (float)draft->model->metadata->weights_bytes /
                           (float)TDM_MAX(lane->model->metadata->weights_bytes, UINT64_C(1));
        return c;
}

/* ns, of so many passes. */
static float draft_cost(const struct costs *c, float n_passes)
{
        float expected = n_passes * c->draft_expected;
        float ns = tdm_scheduler_burst_cost(c->draft_lane, c->n_drafted, n_passes);

        return ns == 0 || (c->hopes && ns > expected) ? expected : ns;
}

/* ns, of a step with such a mean number of rows. */
static float step_cost(const struct costs *c, float n_rows)
{
        uint32_t below = (uint32_t)n_rows;
        float ns = tdm_scheduler_step_cost(c->lane, below, c->n);

        return ns + (n_rows - (float)below) * (tdm_scheduler_step_cost(c->lane, below + 1, c->n) - ns);
}

/* The least chance with which each of n guesses is worth its row: what the row takes, in tokens. On a GPU the fourth
 * row may cost less than the second. So rows are looked at together with later ones that make their mean cheaper. */
static void find_least(struct draft_costs *of, uint32_t n, float token_ns, uint32_t n_drafted)
{
        for (uint32_t a = 0, b; a < n; a = b) {
                float least = INFINITY;

                b = a + 1;
                for (uint32_t k = a + 1; k <= n; k++) {
                        float row = (of->ns[k] - of->ns[a]) / (float)((k - a) * n_drafted);

                        if (row <= least) {
                                least = row;
                                b = k;
                        }
                }
                for (uint32_t k = a; k < b; k++)
                        of->least[k] = TDM_MIN(TDM_MAX(least / token_ns, CHANCE_LEAST), CHANCE_MOST);
        }
}

/* Of steps with up to `most` guesses for each that has a draft. All such sequences of a step ask for the same. */
static const struct draft_costs *costs_of_all(const struct costs *c, uint32_t most)
{
        struct draft_costs *of = &c->lane->draft_costs;

        if (of->stamp == c->lane->n_costs && of->n == c->n && of->n_drafted == c->n_drafted && of->most == most)
                return of;
        of->stamp = c->lane->n_costs;
        of->n = c->n;
        of->n_drafted = c->n_drafted;
        of->most = most;
        for (uint32_t k = 0; k <= most; k++)
                of->ns[k] = tdm_scheduler_step_cost(c->lane, c->n + k * c->n_drafted, c->n);
        find_least(of, most, c->step / ((float)c->n * tdm_scheduler_gain(c->lane)), c->n_drafted);
        return of;
}

/* Guesses that each may have in one step. */
static uint32_t most_for_all(const struct costs *c, uint32_t most)
{
        uint32_t most_rows = TDM_MIN(tdm_scheduler_most_rows(c->lane, c->n), TDM_MAX_STEP_LOGITS);

        return TDM_MIN(most, (most_rows - TDM_MIN(most_rows, c->n)) / c->n_drafted);
}

/* The least chance with which a further token is worth the pass that draws it, and its row. */
static void find_go_on(const struct costs *c, const struct draft_costs *all, uint32_t n, float *ret)
{
        float token_ns = c->step / ((float)c->n * tdm_scheduler_gain(c->lane));
        float pass = (draft_cost(c, 2) - draft_cost(c, 1)) / ((float)c->n_drafted * token_ns);

        for (uint32_t k = 0; k < n; k++)
                ret[k] = TDM_MIN(all->least[k] + TDM_MAX(pass, 0.0f), CHANCE_MOST);
}

/* The number of tokens in a burst with the most expected tokens a second, where all that have a draft have as many. Of
 * these, those that are likely enough are checked. What they cost may hardly be felt by the others. likely: how often
 * each is right, and all are checked; 0: what was counted. */
static uint32_t best_number(const struct draft *d, const struct costs *c, uint32_t most, float likely)
{
        float best_rate = GAIN_LEAST * (float)c->n / c->step, reach = 1, tokens = (float)c->n, rows = (float)c->n;
        float drawn[TDM_MAX_GUESSES], checked[TDM_MAX_GUESSES], right[TDM_MAX_GUESSES], go_on[TDM_MAX_GUESSES];
        float one_ns = c->step, passes = 0;
        const bool one = likely == 0 && c->n_drafted == 1;
        const struct draft_costs *all = NULL;
        uint32_t best = 0;

        most = most_for_all(c, most);
        if (likely == 0) {
                all = costs_of_all(c, most);
                find_go_on(c, all, most, go_on);
                tdm_draft_outlook(&d->records, all->least, go_on, most, drawn, checked, right);
        }
        for (uint32_t k = 1; k <= most; k++) {
                float ns;

                reach *= likely;
                rows += (float)c->n_drafted * (likely > 0 ? 1 : checked[k - 1]);
                tokens += (float)c->n_drafted * (likely > 0 ? reach : right[k - 1]);
                /* There is a pass while one of the companions draws on. */
                passes += likely > 0 ? 1 : one ? drawn[k - 1] : 1 - powf(1 - drawn[k - 1], (float)c->n_drafted);
                /* One text's guesses are mostly all checked or none, many texts' are a mean. */
                if (one)
                        one_ns += checked[k - 1] * (all->ns[k] - all->ns[k - 1]);
                ns = (one ? one_ns : step_cost(c, rows)) + draft_cost(c, passes);
                if (c->n > c->n_drafted && tdm_scheduler_others_wait(c->lane, (uint32_t)ceilf(rows), ns, c->step))
                        break;
                if (tokens / ns > best_rate) {
                        best_rate = tokens / ns;
                        best = k;
                }
        }
        return best;
}

/* Guesses might pay if the draft were good. A companion that makes no guesses is not measured either, so a measurement
 * that was disturbed would stay. Where it alone speaks against guesses, it is forgotten. */
static bool is_worth_a_try(const struct draft *d, const struct costs *c, uint32_t most)
{
        struct costs hoped = *c;

        if (best_number(d, c, most, PROBE_CHANCE) > 0)
                return true;
        hoped.hopes = true;
        if (best_number(d, &hoped, most, PROBE_CHANCE) == 0)
                return false;
        tdm_scheduler_forget_bursts(c->draft_lane, c->n_drafted);
        return true;
}

static uint32_t choose_number(const struct tdm_scheduler *s, struct sequence *q, const struct costs *c)
{
        uint32_t most = tdm_scheduler_most_guesses(s, q->job), n;
        struct draft *d = &q->draft;
        float go_on[TDM_MAX_GUESSES];

        d->look_at = 0;
        memset(d->doubts, 0, sizeof(d->doubts));
        memset(d->most_doubt, 0, sizeof(d->most_doubt));
        if (s->config.ends_early)
                memset(d->doubts, 1, HARDLY_SURE);
        if (s->config.all_guesses || most == 0)
                return most;
        d->why = TDM_UNGUESSED_MEASURING;
        if (c->step == 0)
                return 0;
        n = best_number(d, c, most, 0);
        if (n > 0) {
                most = most_for_all(c, most);
                find_go_on(c, costs_of_all(c, most), n, go_on);
                tdm_draft_doubts(&d->records, go_on, n, d->doubts, d->most_doubt);
                d->retry_at = q->job->n_ids + PROBE_TOKENS;
                d->n_probes = 0;
                return n;
        }
        d->why = TDM_UNGUESSED_COST;
        if (c->draft_lane->draft_records.first.n > TDM_DRAFT_PRIOR_GUESSES)
                tdm_draft_expect(&d->records, &c->draft_lane->draft_records,
                                 c->n > 1 ? COMPANY_EVERY * BACK_PART : BACK_PART);
        if (q->job->n_ids >= d->retry_at && is_worth_a_try(d, c, most)) {
                d->n_probes = TDM_MIN(d->n_probes + 1, 4u);
                d->retry_at = q->job->n_ids + (PROBE_TOKENS << d->n_probes);
                d->probe_until = q->job->n_ids + PROBE_FOR;
        }
        if (q->job->n_ids < d->probe_until)
                return 1;
        if (c->n > 1)
                d->look_at = q->job->n_ids + COMPANY_EVERY - (uint32_t)((q->job->n_ids + q->job->id) % COMPANY_EVERY);
        return 0;
}

/* The lane of the sequence's draft; NULL: it cannot guess now. */
static struct lane *usable_lane(struct tdm_scheduler *s, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *lane;

        if (!d->model || !d->used || d->why == TDM_UNGUESSED_DRAFT_LOST)
                return NULL;
        if (d->model->state != TDM_MODEL_READY) {
                d->why = TDM_UNGUESSED_DRAFT_LOADING;
                return NULL;
        }
        lane = tdm_scheduler_lane(s, d->model->id);
        if (!lane || lane->dead)
                return NULL;
        if (lane->n_draft_deaths >= MAX_DEATHS) {
                d->why = TDM_UNGUESSED_DRAFT_LOST;
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
        tdm_source_arm(s->lag, next == UINT64_MAX ? 0 : next);
}

int tdm_draft_on_lag(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_scheduler *s = userdata;
        struct sequence *q;

        tdm_list_for_each(q, &s->sequences, struct sequence, node) {
                struct draft *d = &q->draft;

                if (!d->waits || d->until_ns > now_ns)
                        continue;
                d->waits = false;
                d->why = TDM_UNGUESSED_DRAFT_BEHIND;
                d->n_late = TDM_MIN(d->n_late + 1, 6u);
                d->patient_at = q->job->n_ids + (LATE_TOKENS << d->n_late);
        }
        arm_lag(s);
        tdm_scheduler_run(s);
        return 0;
}

/* It catches up in one step, which takes a small part of the sequence's. */
static bool reads_soon(const struct sequence *companion, const struct costs *c)
{
        uint32_t n = companion->owner->job->n_ids - companion->n_issued;

        return n <= READ_ROWS && c->draft_lane->read_row_ns > 0 &&
               (float)n * c->draft_lane->read_row_ns <= BEHIND_PART * c->step;
}

static void wait(struct tdm_scheduler *s, struct sequence *q, const struct costs *c)
{
        struct draft *d = &q->draft;
        float most_ns = 2 * draft_cost(c, (float)d->n_wanted) + TDM_MAX((float)LAG_NS, LAG_PART * c->step);

        d->why = TDM_UNGUESSED_DRAFT_BEHIND;
        if ((is_behind(d->seq) && !reads_soon(d->seq, c)) || q->job->n_ids < d->patient_at || q->suspects ||
            tdm_draft_must_yield(s))
                return;
        d->waits = d->seq->in_flight > 0 || n_ahead(d->seq) < d->n_wanted;
        if (!d->waits)
                return;
        d->until_ns = tdm_now_ns() + (s->config.all_guesses ? LAG_TESTS_NS : (uint64_t)most_ns);
        arm_lag(s);
}

static bool make(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        if (q->draft.seq)
                return true;
        if (q->job->n_ids < q->draft.retry_at && q->draft.why == TDM_UNGUESSED_DRAFT_MEMORY)
                return false;
        if (lane->n_active == s->config.max_sequences || begin(s, lane, q) < 0) {
                q->draft.why = TDM_UNGUESSED_DRAFT_MEMORY;
                q->draft.retry_at = q->job->n_ids + PROBE_TOKENS;
                return false;
        }
        return true;
}

void tdm_draft_follow(struct tdm_scheduler *s, struct lane *lane, struct sequence *q)
{
        struct draft *d = &q->draft;
        struct lane *draft;
        struct costs c;

        d->n_wanted = 0;
        d->waits = false;
        if (!d->model || q->job->finished || q->job->n_ids < d->look_at)
                return;
        draft = usable_lane(s, q);
        if (!draft)
                return;
        if (q->job->n_ids + TDM_MAX_GUESSES >= tdm_model_hparams(d->model)->n_ctx) {
                tdm_draft_drop(q);
                d->why = TDM_UNGUESSED_DRAFT_LONG;
                return;
        }
        if (d->seq && d->seq->in_flight == 0 && catch_up(d->seq) < 0)
                tdm_draft_lose(d->seq, TDM_UNGUESSED_DRAFT_MEMORY);
        c = costs_of(lane, draft);
        if (!d->begun)
                begin_counting(q, draft, c.n > 1);
        if (d->why == TDM_UNGUESSED_DRAFT_MEMORY && !make(s, draft, q))
                return;
        d->n_wanted = choose_number(s, q, &c);
        if (d->n_wanted == 0 || tdm_scheduler_lookup_beats(s, q, tdm_scheduler_chance(&d->records.first)) ||
            !make(s, draft, q)) {
                d->n_wanted = 0;
                return;
        }
        wait(s, q, &c);
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

void tdm_draft_commit(struct tdm_scheduler *s, struct lane *lane, const struct flight_seq *fs)
{
        struct sequence *companion = fs->seq, *q = companion->owner;
        struct tdm_job *job = companion->job;
        bool ended;
        int r;

        companion->n_committed += fs->n_rows;
        tdm_model_drafted(lane->model);
        if (++lane->n_draft_steps >= FORGIVE_STEPS && lane->n_draft_deaths < MAX_DEATHS)
                lane->n_draft_deaths = lane->n_draft_steps = 0;
        if (!q || job->finished)
                return;
        companion->in_flight--; /* it is in one step at most, and that lands now */
        r = take_drawn(s, fs, &ended);
        if (r == 0)
                r = catch_up(companion);
        companion->in_flight++;
        if (r < 0) {
                tdm_draft_lose(companion, TDM_UNGUESSED_DRAFT_MEMORY);
                return;
        }
        tdm_scheduler_enter(lane, companion);
        tdm_sequence_free_slid_out(lane, companion);
        if (ended)
                q->draft.n_wanted = TDM_MIN(q->draft.n_wanted, n_ahead(companion));
        if (q->draft.waits && n_ahead(companion) >= q->draft.n_wanted) {
                q->draft.waits = false;
                q->draft.n_late -= q->draft.n_late > 0;
        }
}
