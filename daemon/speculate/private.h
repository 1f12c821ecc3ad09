/* Shared by the files of speculation:
 *
 *   speculate.c       the configuration, and what a job may do
 *   lookup.[ch]       guesses from a job's own text
 *   guess-file.[ch]   guesses of tests
 *   guesses.c         finds guesses, and counts how many are right
 *   draft-records.c   what is counted of a draft model's guesses
 *   step-cost.c       how long steps take
 *   plan.c            how many guesses a step checks
 *   draft-plan.c      how many tokens a draft model guesses ahead */
#ifndef TDM_DAEMON_SPECULATE_PRIVATE_H
#define TDM_DAEMON_SPECULATE_PRIVATE_H

#include "daemon/speculate/guess-file.h"
#include "daemon/speculate/speculate.h"

struct tdm_speculate {
        struct tdm_speculate_config config;
        struct tdm_guess_file *guess_file; /* NULL: none */
        uint16_t *order;                   /* [TDM_MAX_STEP_LOGITS]: scratch of a plan, candidates by their guesses */
};

/* Whether a test has lookup search a text that the job does not have. */
bool tdm_speculate_copies(const struct tdm_speculate *sp);
float tdm_target_costs_gain(const struct tdm_target_costs *c); /* at least 1 */

/* guesses.c */
/* Finds the candidate's guesses, and why there are none. */
enum tdm_unguessed tdm_guesses_find(const struct tdm_speculate *sp, const struct tdm_guess_candidate *c);
/* Keeps those that the job's grammar allows. */
enum tdm_unguessed tdm_guesses_keep_allowed(const struct tdm_guess_candidate *c, uint64_t until_ns);
/* The chance of the candidate's next guess behind the first n. */
float tdm_guesses_chance_behind(const struct tdm_guess_candidate *c, uint32_t n);

/* draft-records.c */
#define TDM_DRAFT_PRIOR_GUESSES 6.0f
/* Counts guesses: n_known of them can be compared with what came. The first n_right of these are right. */
void tdm_draft_records_count(struct tdm_draft_records *r, const struct tdm_guesses *g, uint32_t n_right,
                             uint32_t n_known);
/* Moves a job's records towards those of other jobs (`of`) by this part; 1: they become the same. */
void tdm_draft_records_expect(struct tdm_draft_records *r, const struct tdm_draft_records *of, float part);
/* Three chances of the guess at each of n places in a burst: that it is drawn; that it is checked; that it is checked
 * and right with all before it. A guess is checked if its chance to be right with all before it is at least `least` of
 * its place (from 1/64 on). A burst ends where even the surest token would have less than the chance go_on next. */
void tdm_draft_records_outlook(const struct tdm_draft_records *r, const float *least, const float *go_on, uint32_t n,
                               float *ret_drawn, float *ret_checked, float *ret_right);
/* Writes when a burst of n tokens ends early, in the form of a step (struct tdm_step_seq). */
void tdm_draft_records_doubts(const struct tdm_draft_records *r, const float *go_on, uint32_t n, uint8_t *ret_doubts,
                              uint8_t *ret_most);

#endif
