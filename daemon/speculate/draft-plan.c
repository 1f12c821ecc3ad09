/* How many tokens a draft model guesses ahead for a sequence, and when its burst ends early.
 *
 * The number is chosen that brings the most tokens a second by what was counted (draft-records.c) and measured
 * (step-cost.c). All sequences of a step that have a draft get as many. A draft that does not pay is tried again from
 * time to time, less often each time. */
#include "daemon/speculate/private.h"

#include <math.h>

/* A draft that did not pay is tried again after PROBE_TOKENS tokens, twice as many each time, for PROBE_FOR tokens. */
#define PROBE_TOKENS 64u
#define PROBE_FOR 4u
/* No guess is made unless guesses gain at least this much. */
#define GAIN_LEAST 1.02f
/* A guess that is likelier to be right than this, with all before it, is worth its row; one less likely is not. */
#define CHANCE_MOST 0.5f
#define CHANCE_LEAST 0.02f
/* How good a draft might be that seems not to pay. */
#define PROBE_CHANCE 0.8f
/* For tests: the classes of certainty behind which a burst ends. */
#define HARDLY_SURE 3u
/* With each token without guesses, what a job has counted comes back by this part to what is expected: a run of wrong
 * guesses says little about the text that follows. */
#define BACK_PART 0.01f
/* All sequences of a step wait for what is computed for a draft that does not pay. So in company a job looks at its
 * draft with one of COMPANY_EVERY tokens, and different jobs do so with different ones. */
#define COMPANY_EVERY 8u

/* How long steps and bursts are expected to take. */
struct expected {
        const struct tdm_draft_company *company;
        float step; /* ns, of a step without guesses */
        float pass; /* ns, of a pass of the drafts, by the sizes of the models alone */
        bool hopes; /* a burst takes no longer than expected by the sizes */
};

static struct expected expect(const struct tdm_draft_company *c)
{
        struct expected e = { .company = c, .step = tdm_step_costs_expect(&c->target->steps, c->n, c->n) };

        e.pass = e.step * c->size;
        return e;
}

static float burst_ns(const struct expected *e, float n_passes)
{
        float by_size = n_passes * e->pass;
        float ns = tdm_draft_costs_expect(e->company->draft, e->company->n_drafted, n_passes);

        return ns == 0 || (e->hopes && ns > by_size) ? by_size : ns;
}

float tdm_draft_company_step(const struct tdm_draft_company *c)
{
        return tdm_step_costs_expect(&c->target->steps, c->n, c->n);
}

float tdm_draft_company_burst(const struct tdm_draft_company *c, float n_passes)
{
        struct expected e = expect(c);

        return burst_ns(&e, n_passes);
}

static float rows_ns(const struct tdm_draft_company *c, uint32_t n_rows)
{
        return tdm_step_costs_expect(&c->target->steps, n_rows, c->n);
}

/* How long steps take whose mean number of rows is n_rows. */
static float mean_rows_ns(const struct tdm_draft_company *c, float n_rows)
{
        uint32_t below = (uint32_t)n_rows;
        float ns = rows_ns(c, below);

        return ns + (n_rows - (float)below) * (rows_ns(c, below + 1) - ns);
}

/* How long a token takes at the rate of the last steps. */
static float token_ns(const struct expected *e)
{
        return e->step / ((float)e->company->n * tdm_target_costs_gain(e->company->target));
}

/* The least chance with which each of n guesses is worth its row: what the row takes, in tokens. On a GPU the fourth
 * row may cost less than the second. So rows are looked at together with later ones that make their mean cheaper. */
static void find_least(struct tdm_guess_costs *of, uint32_t n, float of_token_ns, uint32_t n_drafted)
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
                        of->least[k] = TDM_MIN(TDM_MAX(least / of_token_ns, CHANCE_LEAST), CHANCE_MOST);
        }
}

/* What steps cost with up to `most` guesses for each sequence that has a draft. All these sequences of a step ask for
 * the same costs. */
static const struct tdm_guess_costs *costs_by_guesses(const struct expected *e, uint32_t most)
{
        const struct tdm_draft_company *c = e->company;
        struct tdm_guess_costs *of = &c->target->by_guesses;

        if (of->stamp == c->target->steps.n && of->n == c->n && of->n_drafted == c->n_drafted && of->most == most)
                return of;
        of->stamp = c->target->steps.n;
        of->n = c->n;
        of->n_drafted = c->n_drafted;
        of->most = most;
        for (uint32_t k = 0; k <= most; k++)
                of->ns[k] = rows_ns(c, c->n + k * c->n_drafted);
        find_least(of, most, token_ns(e), c->n_drafted);
        return of;
}

/* Guesses that each may have in one step. */
static uint32_t most_for_all(const struct tdm_draft_company *c, uint32_t most)
{
        uint32_t most_rows = TDM_MIN(tdm_step_costs_most_rows(&c->target->steps, c->n), TDM_MAX_STEP_LOGITS);

        return TDM_MIN(most, (most_rows - TDM_MIN(most_rows, c->n)) / c->n_drafted);
}

/* The least chance with which a further token is worth the pass that draws it, and its row. */
static void find_go_on(const struct expected *e, const struct tdm_guess_costs *all, uint32_t n, float *ret)
{
        float of_token_ns = token_ns(e);
        float pass = (burst_ns(e, 2) - burst_ns(e, 1)) / ((float)e->company->n_drafted * of_token_ns);

        for (uint32_t k = 0; k < n; k++)
                ret[k] = TDM_MIN(all->least[k] + TDM_MAX(pass, 0.0f), CHANCE_MOST);
}

/* The number of tokens in a burst with the most expected tokens a second, where all that have a draft have as many. Of
 * these, those that are likely enough are checked. What they cost may hardly be felt by the others. likely: how often
 * each is right, and all are checked; 0: what was counted. */
static uint32_t best_number(const struct tdm_draft_plan *d, const struct expected *e, uint32_t most, float likely)
{
        const struct tdm_draft_company *c = e->company;
        float best_rate = GAIN_LEAST * (float)c->n / e->step, reach = 1, tokens = (float)c->n, rows = (float)c->n;
        float drawn[TDM_MAX_GUESSES], checked[TDM_MAX_GUESSES], right[TDM_MAX_GUESSES], go_on[TDM_MAX_GUESSES];
        float one_ns = e->step, passes = 0;
        const bool one = likely == 0 && c->n_drafted == 1;
        const struct tdm_guess_costs *all = NULL;
        uint32_t best = 0;

        most = most_for_all(c, most);
        if (likely == 0) {
                all = costs_by_guesses(e, most);
                find_go_on(e, all, most, go_on);
                tdm_draft_records_outlook(&d->records, all->least, go_on, most, drawn, checked, right);
        }
        for (uint32_t k = 1; k <= most; k++) {
                float ns;

                reach *= likely;
                rows += (float)c->n_drafted * (likely > 0 ? 1 : checked[k - 1]);
                tokens += (float)c->n_drafted * (likely > 0 ? reach : right[k - 1]);
                /* There is a pass while one of the drafts draws on. */
                passes += likely > 0 ? 1 : one ? drawn[k - 1] : 1 - powf(1 - drawn[k - 1], (float)c->n_drafted);
                /* One text's guesses are mostly all checked or none, many texts' are a mean. */
                if (one)
                        one_ns += checked[k - 1] * (all->ns[k] - all->ns[k - 1]);
                ns = (one ? one_ns : mean_rows_ns(c, rows)) + burst_ns(e, passes);
                if (c->n > c->n_drafted &&
                    tdm_step_costs_others_wait(&c->target->steps, (uint32_t)ceilf(rows), ns, e->step))
                        break;
                if (tokens / ns > best_rate) {
                        best_rate = tokens / ns;
                        best = k;
                }
        }
        return best;
}

/* Guesses might pay if the draft were good. A draft that makes no guesses is not measured either, so a measurement that
 * was disturbed would stay. Where it alone speaks against guesses, it is forgotten. */
static bool is_worth_a_try(const struct tdm_draft_plan *d, const struct expected *e, uint32_t most)
{
        struct expected hoped = *e;

        if (best_number(d, e, most, PROBE_CHANCE) > 0)
                return true;
        hoped.hopes = true;
        if (best_number(d, &hoped, most, PROBE_CHANCE) == 0)
                return false;
        tdm_draft_costs_forget(e->company->draft, e->company->n_drafted);
        return true;
}

/* The draft pays: n tokens. */
static void go_ahead(struct tdm_draft_plan *d, const struct expected *e, uint32_t n_ids, uint32_t n, uint32_t most)
{
        float go_on[TDM_MAX_GUESSES];

        find_go_on(e, costs_by_guesses(e, most_for_all(e->company, most)), n, go_on);
        tdm_draft_records_doubts(&d->records, go_on, n, d->doubts, d->most_doubt);
        d->retry_at = n_ids + PROBE_TOKENS;
        d->n_probes = 0;
}

/* It does not pay: 1 while it is tried all the same. */
static uint32_t hold_back(struct tdm_draft_plan *d, const struct expected *e, const struct tdm_job *job, uint32_t most)
{
        const struct tdm_draft_company *c = e->company;
        uint32_t n_ids = job->n_ids;

        d->why = TDM_UNGUESSED_COST;
        if (c->others->first.n > TDM_DRAFT_PRIOR_GUESSES)
                tdm_draft_records_expect(&d->records, c->others, c->n > 1 ? COMPANY_EVERY * BACK_PART : BACK_PART);
        if (n_ids >= d->retry_at && is_worth_a_try(d, e, most)) {
                d->n_probes = TDM_MIN(d->n_probes + 1, 4u);
                d->retry_at = n_ids + (PROBE_TOKENS << d->n_probes);
                d->probe_until = n_ids + PROBE_FOR;
        }
        if (n_ids < d->probe_until)
                return 1;
        if (c->n > 1)
                d->look_at = n_ids + COMPANY_EVERY - (uint32_t)((n_ids + job->id) % COMPANY_EVERY);
        return 0;
}

static uint32_t choose_number(struct tdm_draft_plan *d, const struct tdm_speculate *sp, const struct tdm_job *job,
                              const struct tdm_draft_company *c)
{
        uint32_t most = tdm_speculate_most(sp, job), n;
        struct expected e = expect(c);

        d->look_at = 0;
        memset(d->doubts, 0, sizeof(d->doubts));
        memset(d->most_doubt, 0, sizeof(d->most_doubt));
        if (sp->config.ends_early)
                memset(d->doubts, 1, HARDLY_SURE);
        if (sp->config.all_guesses || most == 0)
                return most;
        d->why = TDM_UNGUESSED_MEASURING;
        if (e.step == 0)
                return 0;
        n = best_number(d, &e, most, 0);
        if (n == 0)
                return hold_back(d, &e, job, most);
        go_ahead(d, &e, job->n_ids, n, most);
        return n;
}

void tdm_draft_plan_choose(struct tdm_draft_plan *d, const struct tdm_speculate *sp, const struct tdm_job *job,
                           const struct tdm_draft_company *c)
{
        d->n_wanted = choose_number(d, sp, job, c);
}

/* In company a try costs all sequences. What earlier jobs have shown is a first try. */
void tdm_draft_plan_begin(struct tdm_draft_plan *d, const struct tdm_draft_company *c, uint32_t n_ids)
{
        d->begun = true;
        tdm_draft_records_expect(&d->records, c->others, 1);
        if (c->n > 1 && c->others->first.n > TDM_DRAFT_PRIOR_GUESSES) {
                d->n_probes = 1;
                d->retry_at = n_ids + (PROBE_TOKENS << d->n_probes);
        }
}

void tdm_draft_plan_stop(struct tdm_draft_plan *d, enum tdm_unguessed why, uint32_t n_ids)
{
        d->n_wanted = 0;
        d->why = why;
        d->retry_at = n_ids + PROBE_TOKENS;
}
