/* How many guesses a step checks. step.c puts them into the step, results.c takes what it gives.
 *
 * Guesses change no token, so they are a matter of time only. A row more makes a step longer, by little where the step
 * is bound by reading the weights. A guess that is right saves a step of its own. So the number is chosen for the most
 * tokens a second: each next guess goes to the sequence where it is likeliest to be right, and of all the numbers that
 * this passes, the one is taken whose tokens are the most beyond what its time is worth at the rate of the last steps.
 * Sequences without guesses wait for those that have some, so a step with such may hardly become longer.
 *
 * Both are measured. How likely a guess is right is counted for each job: of lookup by the number of tokens that agreed
 * before it (lookup.h), of a draft by how sure it was (draft-records.c). Guesses are made and compared with the text
 * also while none is checked, so a job that becomes easy to guess is noticed. How long a step takes is in step-cost.c.
 * It is measured again when it is old: without guesses by leaving them out once, with guesses by trusting the steps of
 * fewer and of more rows.
 *
 * A step that reads a prompt has no guesses, because the prompt waits for it. */
#include "daemon/schedule/private.h"

/* Guesses have to gain so much. */
#define GAIN_LEAST 1.02f
/* What a step counts in the mean of what guesses gain. */
#define GAIN_WEIGHT 0.05f
/* So long may one step's guesses be held against grammars. */
#define ALLOWED_NS (2 * TDM_NSEC_PER_MSEC)
/* Less likely ones are not checked. */
#define REACH_LEAST 0.02f
/* What is left of an older guess's count with each newer one, and what a job begins with. */
#define RECORD_DECAY 0.95f
#define RECORD_FIRST 0.5f

/* ---- guesses ---- */

float tdm_scheduler_chance(const struct guess_record *r)
{
        return (r->n_right + RECORD_FIRST) / (r->n + 2 * RECORD_FIRST);
}

/* Of a guess behind the first n of a match: 3, 4, 5 to 7, 8 to 15, and more tokens. A guess that follows on a changed
 * token is one of its own kind: how much was copied before says little about it. */
static struct guess_record *record_of(struct guesses *g, struct tdm_lookup_match match, uint32_t n)
{
        uint32_t length = match.length + n;
        unsigned i = length <= 3 ? 0 : length <= 4 ? 1 : length <= 7 ? 2 : length <= 15 ? 3 : 4;

        return &g->records[match.behind_changed && n == 0 ? 5 : i];
}

/* Of the next guess behind the first n. */
static const struct guess_record *record_behind(struct sequence *q, uint32_t n)
{
        if (q->guesses.drafted)
                return &q->draft.records.certain[q->guesses.certainty[n]];
        return record_of(&q->guesses, q->guesses.match, n);
}

void tdm_scheduler_count_guess(struct guess_record *r, float decay, bool right)
{
        r->n = r->n * decay + 1;
        r->n_right = r->n_right * decay + right;
}

void tdm_scheduler_learn_guesses(struct sequence *q, const uint32_t *ids, uint32_t n)
{
        struct guesses *g = &q->guesses;
        uint32_t n_known = TDM_MIN(n, g->n_found), n_right = 0;

        while (n_right < n_known && ids[n_right] == g->ids[n_right])
                n_right++;
        if (g->drafted)
                tdm_draft_count(&q->draft.records, g, n_right, n_known);
        for (uint32_t i = 0; !g->drafted && i < TDM_MIN(n_right + 1, n_known); i++)
                tdm_scheduler_count_guess(record_of(g, g->match, i), RECORD_DECAY, i < n_right);
        if (g->other_match.length > 0 && n > 0)
                tdm_scheduler_count_guess(record_of(g, g->other_match, 0), RECORD_DECAY, ids[0] == g->other_id);
        g->n = g->n_found = g->other_match.length = 0;
}

enum tdm_speculation tdm_scheduler_speculation_of(const struct tdm_scheduler *s, const struct tdm_job *job)
{
        enum tdm_speculation asked = (enum tdm_speculation)job->options.speculation;

        if (job->draft_name)
                return asked; /* it wants more than what is meant for all */
        return asked == TDM_SPECULATION_AUTO ? s->config.speculation : asked;
}

uint32_t tdm_scheduler_most_guesses(const struct tdm_scheduler *s, const struct tdm_job *job)
{
        uint32_t most = s->config.draft_max, left = job->max_tokens - job->generated;

        if (job->options.draft_max > 0)
                most = TDM_MIN(most, job->options.draft_max);
        /* The row of the last token draws the last one. */
        return TDM_MIN(TDM_MIN(most, TDM_MAX_GUESSES), left - TDM_MIN(left, 1u));
}

static void look_up(struct sequence *q, uint32_t most)
{
        struct guesses *g = &q->guesses;

        g->drafted = false;
        g->n_found = tdm_lookup_guess(g->lookup, q->job->ids, q->job->n_ids, most, g->ids, &g->match);
}

bool tdm_scheduler_lookup_beats(struct tdm_scheduler *s, struct sequence *q, float chance)
{
        struct guesses *g = &q->guesses;

        if (tdm_scheduler_speculation_of(s, q->job) != TDM_SPECULATION_AUTO ||
            (!g->lookup && tdm_lookup_new(&g->lookup) < 0))
                return false;
        look_up(q, 1);
        if (g->n_found == 0)
                return false;
        /* Before anything is counted they are not believed: the draft guesses, and what lookup says is compared. */
        if (record_of(g, g->match, 0)->n > 0 && tdm_scheduler_chance(record_of(g, g->match, 0)) > chance)
                return true;
        g->other_id = g->ids[0];
        g->other_match = g->match;
        return false;
}

/* Of guesses at a text with a grammar only those can be right that it allows. The loop waits for this, and so does the
 * step: what is not known in time has none. */
static enum tdm_unguessed keep_allowed(struct sequence *q, uint64_t until_ns)
{
        struct tdm_job *job = q->job;
        struct guesses *g = &q->guesses;

        if (!job->constraint || g->n_found == 0)
                return TDM_UNGUESSED_NOT;
        if (tdm_now_ns() >= until_ns)
                g->n_found = 0;
        else
                g->n_found = (uint32_t)tdm_constraint_n_allowed(job->constraint, job->ids + job->prompt_tokens,
                                                                job->generated, g->ids, g->n_found);
        return g->n_found > 0 ? TDM_UNGUESSED_NOT : TDM_UNGUESSED_GRAMMAR;
}

/* For tests: lookup in a text that the job does not have. */
static bool copies(const struct tdm_scheduler *s)
{
        return s->guess_file && tdm_guess_file_copies(s->guess_file);
}

static enum tdm_unguessed find(const struct tdm_scheduler *s, struct sequence *q)
{
        struct guesses *g = &q->guesses;
        const struct tdm_job *job = q->job;
        enum tdm_speculation mode = tdm_scheduler_speculation_of(s, job);
        uint32_t most = tdm_scheduler_most_guesses(s, job);

        g->n = g->n_found = g->n_tried = 0;
        if (s->config.draft_max == 0 || mode == TDM_SPECULATION_OFF)
                return TDM_UNGUESSED_OFF;
        if (job->constraint && (job->turn || job->slow_masks))
                return TDM_UNGUESSED_GRAMMAR;
        if (q->suspects)
                return TDM_UNGUESSED_SUSPECT;
        if (most == 0)
                return TDM_UNGUESSED_LAST;
        if (copies(s)) {
                g->n_found = tdm_guess_file_look_up(s->guess_file, job, most, g->ids, &g->match);
                return g->n_found > 0 ? TDM_UNGUESSED_NOT : TDM_UNGUESSED_NO_MATCH;
        }
        if (s->config.guess) {
                g->n_found = s->config.guess(s->config.guess_data, job, most, g->ids);
                g->match = (struct tdm_lookup_match){ .length = TDM_LOOKUP_LEAST };
                return TDM_UNGUESSED_NOT;
        }
        g->n_found = tdm_draft_guesses(q, most, g->ids, g->certainty);
        g->drafted = g->n_found > 0;
        if (g->drafted)
                return TDM_UNGUESSED_NOT;
        if (mode == TDM_SPECULATION_DRAFT)
                return q->draft.why;
        if (!g->lookup && tdm_lookup_new(&g->lookup) < 0)
                return TDM_UNGUESSED_MEMORY;
        g->other_match.length = 0;
        look_up(q, most);
        return g->n_found > 0 ? TDM_UNGUESSED_NOT : q->draft.why ? q->draft.why : TDM_UNGUESSED_NO_MATCH;
}

/* The sequence whose next guess is likeliest to be right, by index; n_decode: none has one that is likely enough. */
static uint32_t likeliest(const struct tdm_scheduler *s, uint32_t n_decode, float *ret_chance)
{
        float best_chance = REACH_LEAST;
        uint32_t best = n_decode;

        for (uint32_t i = 0; i < n_decode; i++) {
                struct guesses *g = &s->candidates[i]->guesses;
                float reach;

                if (g->n_tried >= g->n_found)
                        continue;
                reach = g->reach * tdm_scheduler_chance(record_behind(s->candidates[i], g->n_tried));
                if (reach <= best_chance)
                        continue;
                best = i;
                best_chance = reach;
        }
        *ret_chance = best_chance;
        return best;
}

/* ns that the companions took for what is to be checked; 0: there are none, or nothing is known. */
static float burst_cost(struct tdm_scheduler *s, uint32_t n_decode)
{
        struct lane *draft = NULL;
        uint32_t n = 0, longest = 0;

        for (uint32_t i = 0; i < n_decode; i++) {
                const struct sequence *q = s->candidates[i];

                if (!q->guesses.drafted || q->guesses.n_found == 0)
                        continue;
                draft = tdm_scheduler_lane(s, q->draft.model->id);
                longest = TDM_MAX(longest, q->guesses.n_found);
                n++;
        }
        return draft ? tdm_scheduler_burst_cost(draft, n, (float)longest) : 0;
}

/* A guess is worth its row where it brings more tokens than other steps make in the time of the row. So what counts is
 * the rate of all steps, and not that of this one: a step with likely guesses has a higher one, and more of them. */
static void choose_lengths(struct tdm_scheduler *s, struct lane *lane, uint32_t n_decode, uint32_t n_rows)
{
        float tokens = (float)n_decode, base = tdm_scheduler_step_cost(lane, n_decode, n_decode), plain = tokens / base;
        float rate = plain * tdm_scheduler_gain(lane), best = GAIN_LEAST * tokens - rate * base;
        float burst = burst_cost(s, n_decode), reached = base / (base + burst);
        uint32_t n = 0, n_best = 0, n_without = n_decode, most = tdm_scheduler_most_rows(lane, n_decode);

        n_rows = TDM_MIN(TDM_MIN(n_rows, TDM_MAX_STEP_LOGITS), most - n_decode);
        for (uint32_t i = 0; i < n_decode; i++)
                s->candidates[i]->guesses.reach = 1;
        while (n < n_rows) {
                float reach, ns;
                uint32_t i = likeliest(s, n_decode, &reach);

                if (i == n_decode)
                        break;
                s->candidates[i]->guesses.reach = reach;
                n_without -= s->candidates[i]->guesses.n_tried++ == 0;
                s->guess_order[n++] = (uint16_t)i;
                tokens += reach;
                ns = tdm_scheduler_step_cost(lane, n_decode + n, n_decode);
                if (n_without > 0 && tdm_scheduler_others_wait(lane, n_decode + n, ns, base))
                        continue;
                if (tokens - rate * ns > best) {
                        best = tokens - rate * ns;
                        n_best = n;
                        reached = tokens / (ns + burst) / plain;
                }
        }
        lane->gain = tdm_scheduler_gain(lane) + GAIN_WEIGHT * (reached - tdm_scheduler_gain(lane));
        for (uint32_t i = 0; i < n_best; i++)
                s->candidates[s->guess_order[i]]->guesses.n++;
}

float tdm_scheduler_gain(const struct lane *lane)
{
        return TDM_MAX(lane->gain, 1.0f);
}

/* For tests: all are checked. Those that stand for lookup's are not: of them as many as pay. */
static bool checks_all(const struct tdm_scheduler *s)
{
        return s->config.all_guesses || (s->config.guess && !copies(s));
}

static void take_all(struct tdm_scheduler *s, uint32_t n_decode, uint32_t n_rows)
{
        for (uint32_t i = 0; i < n_decode; i++) {
                struct guesses *g = &s->candidates[i]->guesses;

                g->n = TDM_MIN(g->n_found, n_rows);
                n_rows -= g->n;
        }
}

void tdm_scheduler_plan_guesses(struct tdm_scheduler *s, struct lane *lane, uint32_t n_decode, uint32_t n_rows,
                                bool reads)
{
        enum tdm_unguessed why = TDM_UNGUESSED_COST;
        bool all = checks_all(s);
        bool measured = tdm_scheduler_step_cost(lane, n_decode, n_decode) > 0;
        bool wanted = all || (!reads && measured);
        uint64_t until_ns = tdm_now_ns() + ALLOWED_NS;
        uint32_t n_found = 0;

        for (uint32_t i = 0; i < n_decode; i++) {
                struct sequence *q = s->candidates[i];

                q->job->unguessed = find(s, q);
                if (wanted && q->job->unguessed == TDM_UNGUESSED_NOT)
                        q->job->unguessed = keep_allowed(q, until_ns);
                q->job->n_guesses = 0;
                n_found += q->guesses.n_found;
        }
        if (n_found == 0)
                return;
        if (all)
                take_all(s, n_decode, n_rows);
        else if (reads)
                why = TDM_UNGUESSED_PROMPT;
        else if (!measured)
                why = TDM_UNGUESSED_MEASURING;
        else
                choose_lengths(s, lane, n_decode, n_rows);
        for (uint32_t i = 0; i < n_decode; i++)
                if (s->candidates[i]->guesses.n_found > 0 && s->candidates[i]->guesses.n == 0)
                        s->candidates[i]->job->unguessed = why;
}
