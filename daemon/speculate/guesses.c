/* Finds guesses, and counts how many of them are right.
 *
 * How likely a guess is right is counted for each job: of lookup by the number of tokens that agreed before it
 * (lookup.h), of a draft by how sure it was (draft-records.c). Guesses are made and compared with the text also while
 * none is checked, so a job that becomes easy to guess is noticed. */
#include "daemon/speculate/private.h"

/* Each new guess multiplies the counts of older ones by RECORD_DECAY. A job begins with RECORD_FIRST. */
#define RECORD_DECAY 0.95f
#define RECORD_FIRST 0.5f

float tdm_guess_chance(const struct tdm_guess_record *r)
{
        return (r->n_right + RECORD_FIRST) / (r->n + 2 * RECORD_FIRST);
}

void tdm_guess_count(struct tdm_guess_record *r, float decay, bool right)
{
        r->n = r->n * decay + 1;
        r->n_right = r->n_right * decay + right;
}

void tdm_guesses_deinit(struct tdm_guesses *g)
{
        tdm_lookup_destroy(g->lookup);
        g->lookup = NULL;
}

/* The record of a guess behind the first n tokens of a match, by their number: 3, 4, 5 to 7, 8 to 15, and more. A guess
 * that follows a changed token has a record of its own, because the length of what was copied says little about it. */
static struct tdm_guess_record *record_of(struct tdm_guesses *g, struct tdm_lookup_match match, uint32_t n)
{
        uint32_t length = match.length + n;
        unsigned i = length <= 3 ? 0 : length <= 4 ? 1 : length <= 7 ? 2 : length <= 15 ? 3 : 4;

        return &g->records[match.behind_changed && n == 0 ? 5 : i];
}

float tdm_guesses_chance_behind(const struct tdm_guess_candidate *c, uint32_t n)
{
        struct tdm_guesses *g = c->guesses;

        return tdm_guess_chance(g->drafted ? &c->records->certain[g->certainty[n]] : record_of(g, g->match, n));
}

void tdm_guesses_learn(struct tdm_guesses *g, struct tdm_draft_records *records, const uint32_t *ids, uint32_t n)
{
        uint32_t n_known = TDM_MIN(n, g->n_found), n_right = 0;

        while (n_right < n_known && ids[n_right] == g->ids[n_right])
                n_right++;
        if (g->drafted)
                tdm_draft_records_count(records, g, n_right, n_known);
        for (uint32_t i = 0; !g->drafted && i < TDM_MIN(n_right + 1, n_known); i++)
                tdm_guess_count(record_of(g, g->match, i), RECORD_DECAY, i < n_right);
        if (g->other_match.length > 0 && n > 0)
                tdm_guess_count(record_of(g, g->other_match, 0), RECORD_DECAY, ids[0] == g->other_id);
        g->n = g->n_found = g->other_match.length = 0;
}

static void look_up(struct tdm_guesses *g, const struct tdm_job *job, uint32_t most)
{
        g->drafted = false;
        g->n_found = tdm_lookup_guess(g->lookup, job->ids, job->n_ids, most, g->ids, &g->match);
        /* A picture's row cannot be drawn. */
        for (uint32_t i = 0; i < g->n_found; i++)
                if (g->ids[i] & TDM_PICTURE_ID)
                        g->n_found = i;
}

bool tdm_guesses_lookup_beats(const struct tdm_speculate *sp, struct tdm_guesses *g, const struct tdm_job *job,
                              float chance)
{
        if (tdm_speculate_mode(sp, job) != TDM_SPECULATION_AUTO || (!g->lookup && tdm_lookup_new(&g->lookup) < 0))
                return false;
        look_up(g, job, 1);
        if (g->n_found == 0)
                return false;
        /* Before anything is counted they are not believed: the draft guesses, and what lookup says is compared. */
        if (record_of(g, g->match, 0)->n > 0 && tdm_guess_chance(record_of(g, g->match, 0)) > chance)
                return true;
        g->other_id = g->ids[0];
        g->other_match = g->match;
        return false;
}

/* Where a text has a grammar, only guesses that the grammar allows can be right. The loop and the step wait for this
 * check. A text that is not checked by until_ns has no guesses. */
enum tdm_unguessed tdm_guesses_keep_allowed(const struct tdm_guess_candidate *c, uint64_t until_ns)
{
        struct tdm_job *job = c->job;
        struct tdm_guesses *g = c->guesses;

        if (g->n_found == 0 || !job->text.constraint)
                return TDM_UNGUESSED_NOT;
        if (!tdm_job_has_grammar(job))
                g->n_found = tdm_constraint_n_unbound(job->text.constraint, g->ids, g->n_found);
        else if (tdm_now_ns() >= until_ns)
                g->n_found = 0;
        else
                g->n_found = (uint32_t)tdm_constraint_n_allowed(job->text.constraint, job->ids + job->prompt_tokens,
                                                                job->generated, g->ids, g->n_found);
        return g->n_found > 0 ? TDM_UNGUESSED_NOT : TDM_UNGUESSED_GRAMMAR;
}

/* For tests. */
static enum tdm_unguessed find_in_file(const struct tdm_speculate *sp, const struct tdm_guess_candidate *c,
                                       uint32_t most)
{
        struct tdm_guesses *g = c->guesses;

        if (tdm_speculate_copies(sp)) {
                g->n_found = tdm_guess_file_look_up(sp->guess_file, c->job, most, g->ids, &g->match);
                return g->n_found > 0 ? TDM_UNGUESSED_NOT : TDM_UNGUESSED_NO_MATCH;
        }
        g->n_found = sp->config.guess(sp->config.guess_data, c->job, most, g->ids);
        g->match = (struct tdm_lookup_match){ .length = TDM_LOOKUP_LEAST };
        return TDM_UNGUESSED_NOT;
}

enum tdm_unguessed tdm_guesses_find(const struct tdm_speculate *sp, const struct tdm_guess_candidate *c)
{
        struct tdm_guesses *g = c->guesses;
        const struct tdm_job *job = c->job;
        enum tdm_speculation mode = tdm_speculate_mode(sp, job);
        uint32_t most = tdm_speculate_most(sp, job);

        g->n = g->n_found = g->n_tried = 0;
        if (sp->config.draft_max == 0 || mode == TDM_SPECULATION_OFF)
                return TDM_UNGUESSED_OFF;
        if (tdm_job_has_grammar(job) && (job->text.turn || job->text.slow_masks))
                return TDM_UNGUESSED_GRAMMAR;
        if (job->text.constraint && !tdm_job_has_grammar(job)) {
                most = TDM_MIN(most, tdm_constraint_n_free(job->text.constraint));
                if (most == 0)
                        return TDM_UNGUESSED_GRAMMAR;
        }
        if (c->suspect)
                return TDM_UNGUESSED_SUSPECT;
        if (most == 0)
                return TDM_UNGUESSED_LAST;
        if (sp->config.guess)
                return find_in_file(sp, c, most);
        g->n_found = TDM_MIN(c->n_drafted, most);
        g->drafted = g->n_found > 0;
        if (g->drafted) {
                memcpy(g->ids, c->drafted, g->n_found * sizeof(*g->ids));
                memcpy(g->certainty, c->certainty, g->n_found);
                return TDM_UNGUESSED_NOT;
        }
        if (mode == TDM_SPECULATION_DRAFT)
                return c->no_draft;
        if (!g->lookup && tdm_lookup_new(&g->lookup) < 0)
                return TDM_UNGUESSED_MEMORY;
        g->other_match.length = 0;
        look_up(g, job, most);
        return g->n_found > 0 ? TDM_UNGUESSED_NOT : c->no_draft ? c->no_draft : TDM_UNGUESSED_NO_MATCH;
}
