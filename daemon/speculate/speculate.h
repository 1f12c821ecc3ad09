/* Guesses at a job's next tokens: where they come from, how often they are right, what they cost, and how many of them
 * a step is to check.
 *
 * Guesses change no token, so all of this is a matter of time only. A row more makes a step longer, by little where the
 * step is bound by reading the weights. A guess that is right saves a step of its own.
 *
 * Nothing here knows steps in flight, pages or workers. The scheduler keeps the structs below for each model and each
 * sequence, puts guesses into steps, and runs the draft models' own sequences (daemon/schedule/companion.c).
 *
 * A step's guesses are planned with tdm_speculate_plan(), and compared with what came by tdm_guesses_learn(). How many
 * tokens a draft model is to guess ahead is chosen by tdm_draft_plan_choose(). Loop thread only. */
#ifndef TDM_DAEMON_SPECULATE_SPECULATE_H
#define TDM_DAEMON_SPECULATE_SPECULATE_H

#include "daemon/jobs/job.h"
#include "daemon/speculate/lookup.h"
#include "engine/step/step.h"

struct tdm_speculate;

struct tdm_speculate_config {
        enum tdm_speculation mode; /* of jobs that name none */
        uint32_t draft_max;        /* guesses for a job in a step, <= TDM_MAX_GUESSES; 0: no speculation at all */
        bool all_guesses;          /* tests: all that are found are checked, whatever that costs */
        bool ends_early;           /* tests: a draft's burst ends behind a token of which the draft is hardly sure */
        /* Tests: the guesses of every step instead of those of lookup.c, and their number, <= most. All are checked. */
        uint32_t (*guess)(void *userdata, const struct tdm_job *job, uint32_t most, uint32_t *ret);
        void *guess_data;
        const char *guess_file; /* the same by guess-file.h; NULL: none */
};

int tdm_speculate_new(struct tdm_speculate **ret, const struct tdm_speculate_config *config);
void tdm_speculate_destroy(struct tdm_speculate *sp);
/* How the job may guess; the most guesses that it may have in a step; whether tests want all guesses checked. */
enum tdm_speculation tdm_speculate_mode(const struct tdm_speculate *sp, const struct tdm_job *job);
uint32_t tdm_speculate_most(const struct tdm_speculate *sp, const struct tdm_job *job);
bool tdm_speculate_wants_all(const struct tdm_speculate *sp);
bool tdm_speculate_is_on(const struct tdm_speculate *sp);

/* ---- how long steps and bursts take (step-cost.c) ---- */

#define TDM_N_STEP_COSTS 96u
struct tdm_step_cost {
        float part;     /* log2 of its time on the scale of the level */
        float var;      /* how uncertain that is; 0: no such step yet */
        uint64_t stamp; /* how many steps were measured when this one was */
};
/* How long steps of a model take whose sequences all generate, by the number of rows. */
struct tdm_step_costs {
        struct tdm_step_cost of[TDM_N_STEP_COSTS];
        uint64_t n;               /* steps that were measured */
        float level, last_ns_log; /* log2 of ns: now, and of the last step */
        uint32_t last;            /* its index */
};

void tdm_step_costs_note(struct tdm_step_costs *c, uint32_t n_rows, uint64_t ns);
/* The expected ns of a step of n_rows, of which base have to run in any case; 0: a step of base rows was not measured
 * lately. */
float tdm_step_costs_expect(const struct tdm_step_costs *c, uint32_t n_rows, uint32_t base);
/* The most rows for the next step. Numbers of rows that were never measured are approached little by little. */
uint32_t tdm_step_costs_most_rows(const struct tdm_step_costs *c, uint32_t base);
/* Whether sequences without guesses would wait too long for those with some: a step of n_rows takes ns with what comes
 * before it, and one without guesses takes base_ns. */
bool tdm_step_costs_others_wait(const struct tdm_step_costs *c, uint32_t n_rows, float ns, float base_ns);

/* How long bursts of one number of drafts took: sums over these bursts, of passes (x) and of ns (y). */
#define TDM_N_BURST_COSTS 16u
struct tdm_burst_cost {
        float n, sum_x, sum_y, sum_xx, sum_xy;
};
/* How long a draft model's steps take. */
struct tdm_draft_costs {
        struct tdm_burst_cost bursts[TDM_N_BURST_COSTS];
        float read_row_ns; /* of a step with many rows; 0: none yet */
};

void tdm_draft_costs_note_burst(struct tdm_draft_costs *c, uint32_t n_seqs, uint32_t n_passes, uint64_t ns);
void tdm_draft_costs_note_reading(struct tdm_draft_costs *c, uint32_t n_rows, uint64_t ns);
/* The expected ns of a burst of n_seqs drafts; 0: not known. */
float tdm_draft_costs_expect(const struct tdm_draft_costs *c, uint32_t n_seqs, float n_passes);
/* The next burst of n_seqs drafts counts as the first. */
void tdm_draft_costs_forget(struct tdm_draft_costs *c, uint32_t n_seqs);

/* ---- how often guesses are right ---- */

struct tdm_guess_record {
        float n, n_right; /* older guesses count less and less */
};
/* The chance that the next guess is right. */
float tdm_guess_chance(const struct tdm_guess_record *r);
/* Counts one more guess as right or wrong. decay: the counts of older guesses are multiplied by it. */
void tdm_guess_count(struct tdm_guess_record *r, float decay, bool right);

/* How often a draft model's guesses were right (draft-records.c). */
struct tdm_draft_records {
        struct tdm_guess_record first; /* the first of each burst */
        /* Guesses with no wrong one before them, by how sure the draft was of them. */
        struct tdm_guess_record certain[TDM_CERTAINTIES];
        float seen[TDM_CERTAINTIES]; /* how often the draft was as sure as that */
};

/* Guesses at the tokens behind a sequence's pending one. */
#define TDM_N_AGREEMENTS 6u
struct tdm_guesses {
        struct tdm_lookup *lookup; /* NULL: not needed yet */
        uint32_t ids[TDM_MAX_GUESSES];
        /* How many ids there are, and how many of them go into the next step. The others are compared with the tokens
         * that come, too: that shows how good guesses are while none is worth a row. */
        uint32_t n_found, n;
        struct tdm_lookup_match match;      /* of guesses of lookup */
        bool drafted;                       /* the ids come from a draft model */
        uint8_t certainty[TDM_MAX_GUESSES]; /* of a draft's guesses: how sure it was, below TDM_CERTAINTIES */
        /* While a draft model guesses: lookup's first guess and its match, to be compared. Length 0: it had none. */
        uint32_t other_id;
        struct tdm_lookup_match other_match;
        /* While a step's guesses are dealt out: how many this sequence has, and the chance that these are all right. */
        uint32_t n_tried;
        float reach;
        /* Records of lookup, by the number of tokens that agreed. The last one: guesses that follow a changed token. */
        struct tdm_guess_record records[TDM_N_AGREEMENTS];
};

void tdm_guesses_deinit(struct tdm_guesses *g);
/* The sequence's next tokens are known: ids [n], behind those that it had when its guesses were made. */
void tdm_guesses_learn(struct tdm_guesses *g, struct tdm_draft_records *records, const uint32_t *ids, uint32_t n);
/* Whether lookup has guesses for the job that are likelier to be right than `chance`. If not, its guesses are only
 * compared with the tokens that come. */
bool tdm_guesses_lookup_beats(const struct tdm_speculate *sp, struct tdm_guesses *g, const struct tdm_job *job,
                              float chance);

/* ---- how many guesses a step checks (plan.c) ---- */

/* How long steps take, by how many guesses each sequence with a draft has; as known at one time (draft-plan.c). */
struct tdm_guess_costs {
        uint64_t stamp; /* steps that were measured then */
        uint32_t n, n_drafted, most;
        float ns[TDM_MAX_GUESSES + 1];
        float least[TDM_MAX_GUESSES]; /* the least chance with which each guess is worth its row */
};
/* The costs of a model whose next tokens are guessed at. */
struct tdm_target_costs {
        struct tdm_step_costs steps;
        struct tdm_guess_costs by_guesses;
        float gain; /* lately: tokens a second with guesses, as a multiple of those without; 0: not known yet */
};

/* A sequence that generates and has a row in the step that is being built. */
struct tdm_guess_candidate {
        struct tdm_job *job;
        struct tdm_guesses *guesses;
        const struct tdm_draft_records *records;
        bool suspect; /* it was in a step that killed its worker */
        /* What its draft model has guessed: n_drafted ids. Where that is 0, no_draft says why. */
        uint32_t n_drafted;
        uint32_t drafted[TDM_MAX_GUESSES];
        uint8_t certainty[TDM_MAX_GUESSES];
        const struct tdm_draft_costs *draft_costs; /* NULL: nothing is known */
        enum tdm_unguessed no_draft;
};

/* Chooses how many guesses each of n candidates gets: at most n_rows together. reads: prompts have rows in the same
 * step. Each job is told its number, or why it has none. */
void tdm_speculate_plan(struct tdm_speculate *sp, struct tdm_target_costs *costs, struct tdm_guess_candidate *of,
                        uint32_t n, uint32_t n_rows, bool reads);

/* ---- how many tokens a draft guesses ahead (draft-plan.c) ---- */

/* The plan of a sequence with a draft model. */
struct tdm_draft_plan {
        struct tdm_draft_records records;
        bool begun;             /* records hold what is expected, or what was counted */
        enum tdm_unguessed why; /* there are no guesses */
        uint32_t n_wanted;      /* guesses that the draft is to make */
        /* When the draft shall stop guessing: struct tdm_step_seq. */
        uint8_t doubts[TDM_CERTAINTIES], most_doubt[TDM_MAX_BURST];
        uint32_t retry_at; /* a draft that did not pay, or failed, is tried again once the job has this many tokens */
        uint32_t probe_until; /* guesses that seem not to pay are tried until the job has this many tokens */
        uint32_t n_probes;
        uint32_t look_at; /* a draft that did not pay in company is looked at again at this many tokens of the job */
};

/* The sequences beside which a draft guesses, and how long their steps take. */
struct tdm_draft_company {
        struct tdm_target_costs *target;
        struct tdm_draft_costs *draft;
        const struct tdm_draft_records *others; /* counted from jobs that have left */
        uint32_t n, n_drafted;                  /* sequences in a step, and those that get guesses */
        float size;                             /* of the draft model, in parts of the target's */
};

/* The expected ns of a step of the target without guesses (0: not known), and of a burst of n_passes. */
float tdm_draft_company_step(const struct tdm_draft_company *c);
float tdm_draft_company_burst(const struct tdm_draft_company *c, float n_passes);

/* Begins counting for a job of n_ids tokens. The counts of other jobs are where it begins. */
void tdm_draft_plan_begin(struct tdm_draft_plan *d, const struct tdm_draft_company *c, uint32_t n_ids);
/* Sets n_wanted, and when a burst ends early. If n_wanted is 0, sets why. */
void tdm_draft_plan_choose(struct tdm_draft_plan *d, const struct tdm_speculate *sp, const struct tdm_job *job,
                           const struct tdm_draft_company *c);
/* There are no guesses now, and not before the job of n_ids tokens has some more. */
void tdm_draft_plan_stop(struct tdm_draft_plan *d, enum tdm_unguessed why, uint32_t n_ids);
/* The job leaves: its counts are added to those of other jobs. */
void tdm_draft_records_keep(struct tdm_draft_records *others, const struct tdm_draft_records *r);

#endif
