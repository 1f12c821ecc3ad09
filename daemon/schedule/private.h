/* Shared by the files of the scheduler:
 *
 *   listen.c       hears the fleet
 *   recover.c      losses of workers, suspects
 *   results.c      what steps give: checked, committed
 *   scheduler.c    jobs in and out
 *   encode.c       texts become ids, on a thread
 *   step.c         builds steps
 *   flight.c       takes steps out of flight
 *   room.c         memory: who is admitted, who is pushed out
 *   guess.c        guesses that a step checks (daemon/speculate)
 *   companion.c    sequences of draft models, which guess
 *   masks.c        grammars of jobs
 *   prefix.c       beginnings of prompts that the cache knows
 *   recall.c       those that the disk knows
 *   keep.c         writes them there
 *   probe.c        what placements cost now, and which one a new job takes
 *   device-time.c  what users are charged, how long steps may be
 *   state.c        states of sequences that layers without keys keep
 *   lane.c         a model's sequences and pages, and users
 *   sequence.[ch]  a job as the scheduler sees it
 *
 * A file calls those below it only.
 *
 * The words of these files are in docs/serving.md. */
#ifndef TDM_DAEMON_SCHEDULE_PRIVATE_H
#define TDM_DAEMON_SCHEDULE_PRIVATE_H

#include "common/background.h"
#include "daemon/schedule/scheduler.h"
#include "daemon/schedule/depth.h"
#include "daemon/schedule/sequence.h"

struct flight_seq {
        struct sequence *seq; /* it cannot go while in_flight counts this step */
        uint32_t first;       /* position */
        uint32_t n_rows;
        uint32_t first_logits;
        uint32_t n_logits;
        uint32_t n_guesses; /* the last rows; each of these, and the row before them, has its token drawn */
        uint32_t guesses[TDM_MAX_GUESSES];
        uint32_t n_burst;     /* of a companion: tokens to draw behind its last row's (engine/step/burst.c) */
        uint32_t first_burst; /* of the results */
        /* Whether the first row whose token is drawn has a mask, and when this mask was published. If it has one, rows
         * of guesses have masks too, which are made while the step is on its way. */
        enum { MASK_NONE, MASK_EARLY, MASK_WANTED } masked; /* EARLY: before the step was submitted */
};

/* A step in flight, in a slot of a model. */
struct flight {
        bool used;
        bool degraded;
        bool done;        /* the workers have finished it; it waits for the step that it follows */
        bool doomed;      /* that step failed: its results are void */
        bool charged;     /* its time is shared out */
        bool relays;      /* another may follow it */
        bool wants_masks; /* some of its masks are still to be made */
        uint32_t n_masks; /* that its rows name */
        bool paced;       /* its worker has no other step */
        bool probes;      /* it belongs to no job: n_seqs is 0 */
        uint32_t table;   /* of a probe: its page table, and its pages */
        uint32_t pages[TDM_KV_POOLS];
        enum tdm_placement placement; /* fixed; TDM_PLACEMENT_ANY: it follows the load */
        uint8_t workers;              /* mask of those with blocks in it */
        uint8_t last_worker;          /* of its last block */
        uint64_t after;               /* the step that it follows, while that is in flight; 0: none */
        uint64_t busy_ns;             /* of its worker, when it was issued */
        uint64_t issued_ns;
        uint64_t lone_ns; /* when it was issued, with nothing else in flight; 0: something was */
        uint32_t n_rows;
        uint32_t n_passes; /* more than one in a step with bursts */
        uint32_t n_ran;    /* passes that ran, once the step is done: bursts may end early */
        bool reads;        /* rows of prompts are in it */
        uint32_t depth;    /* where `reads`: positions before the deepest row of a prompt */
        uint64_t step_id;
        uint32_t n_seqs;
        uint32_t n_logits;
        struct flight_seq *seqs; /* [max_sequences] */
};

#define TDM_BITS_TEXT 192u

/* Rows have the same bits only if all of this is the same. Steps run by a plan. */
struct bits {
        uint32_t epoch;  /* 0: nothing known */
        uint32_t number; /* in the prefix cache; 0: not to be shared */
        bool is_named;   /* all devices have said what they compute with */
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        char text[TDM_BITS_TEXT];
};

/* When a lane's classes of steps last had a turn: stamps of the scheduler. */
struct lane_turns {
        uint64_t of[TDM_N_ASKED_PLACEMENTS]; /* steps of this placement */
        uint64_t kept[TDM_N_PLACEMENTS];     /* the same of jobs that named none and keep this one */
        uint64_t drafts;
};

/* How long steps of a lane take, for their bounds (device-time.c, step.c). */
struct lane_lengths {
        uint64_t prompt_row_ns; /* of the last step with many rows that was alone in flight; 0: none yet */
        uint64_t single_ns;     /* of the last step of one row */
        uint32_t fit_rows;      /* rows that fit into a step */
        uint32_t fit_depth;     /* of the step from which fit_rows was learned */
};

/* A measurement of placements by steps of its own (probe.c). */
struct lane_probe {
        bool begun;           /* the outlook knows what the trial at load has found */
        bool waits;           /* the lane gets no other steps until it has been run */
        bool awake;           /* a step was run that does not count */
        bool failed;          /* a step of it is void */
        uint32_t n_in_flight; /* its steps */
        uint64_t since_ns, posted_ns;
        uint64_t wanted_ns; /* when a job of the lane last followed what is measured; 0: never */
        struct tdm_probe what;
};

/* Guesses at the model's texts, and its own guesses at other models' texts. */
struct lane_guesses {
        struct tdm_target_costs target;
        struct tdm_draft_costs draft;
        struct tdm_draft_records records; /* of its guesses at the texts of jobs that have left */
        uint32_t n_deaths;                /* steps of drafts that killed a worker or failed, since n_steps good ones */
        uint32_t n_steps;
};

/* Its pages on disk (recall.c, keep.c). */
struct lane_store {
        bool digest_known;
        struct tdm_page_key digest; /* of the model */
        uint64_t slow_until_ns;     /* nothing is read before: computing was faster; 0: it may */
};

/* The scheduler's state of one model that is ready. */
struct lane {
        struct tdm_list node;
        struct tdm_model *model; /* referenced */
        struct tdm_list active;  /* of sequences by active, in order of admission */
        uint32_t n_active;
        bool *table_used; /* [max_sequences] */
        uint64_t *mask;   /* [mask_words]: scratch */
        struct flight flights[TDM_STEP_SLOTS];
        uint32_t n_flights;
        struct bits bits[TDM_N_PLACEMENTS][TDM_N_WORKERS]; /* lately, by placement and the worker of block 0 */
        struct tdm_pace pace;
        struct tdm_outlook outlook;
        struct lane_turns turns;
        struct lane_lengths lengths;
        struct lane_probe probe;
        struct lane_guesses guesses;
        struct lane_store store;
        bool dead; /* the model failed or left: no more steps */
};

enum emit_kind { EMIT_TOKEN, EMIT_SCORES };

/* A message for a listener, which is told once the next step is submitted. */
struct emit {
        struct tdm_job *job; /* referenced */
        enum emit_kind kind;
        uint32_t first, n;
        const struct tdm_result *results;
        struct tdm_job_token token;
};

struct user {
        uint64_t login;
        uint32_t n_jobs, n_running;
        uint64_t n_tokens;       /* charged */
        uint64_t served;         /* ns of device time, on a scale that begins with the least served user who has work */
        bool has_work, had_work; /* when steps were last given out, and the time before */
        uint64_t admitted;       /* stamp of the last admission */
};

/* A user without jobs who had some lately. It is remembered, so that leaving does not clear the time that was used. */
#define N_DEPARTED 64u
struct departed {
        uint64_t login;
        uint64_t served; /* 0: free */
};

/* Pages that go to disk and come back. */
struct scheduler_disk {
        struct tdm_background *readers, *writer; /* NULL: there are none */
        bool ending;                             /* they start nothing any more */
        bool keeping;                            /* pages are on their way to disk */
        int keep_error;                          /* of the last ones; 0: they were written */
        uint64_t keep_after_ns;                  /* no others before */
};

/* What threads beside the loop do: tokenize long prompts and make masks; wait for pictures to be read. */
enum { THREADS_TEXTS, THREADS_PICTURES, N_THREADS };

struct scheduler_timers {
        struct tdm_source *lag;    /* armed for the next sequence that waits for its draft */
        struct tdm_source *probes; /* armed for the next probe */
        struct tdm_source *tells;  /* armed for progress that was too much to tell at once */
};

struct tdm_scheduler {
        struct tdm_loop *loop;
        struct tdm_fleet *fleet;
        struct tdm_scheduler_config config;
        struct tdm_source *work;
        struct tdm_source *deadline; /* armed for the next job's */
        struct scheduler_timers timers;
        uint32_t n_companions;
        bool told_no_draft; /* the log has that a draft of the configuration is missing */

        struct tdm_list jobs;      /* all jobs by node, for tdm_scheduler_jobs() */
        struct tdm_list sequences; /* of all jobs, by node */
        struct tdm_list waiting;   /* not admitted, by queue, in order of arrival */
        struct tdm_list lanes;
        uint32_t n_jobs;
        uint64_t pending_bytes;
        struct user *users; /* [max_jobs], those with jobs first */
        uint32_t n_users;
        uint64_t shared_ns; /* when two users last had work at once; 0: never */
        uint64_t level;     /* `served` of the least served user with work */
        struct departed departed[N_DEPARTED];
        uint64_t free_ns[TDM_N_WORKERS]; /* when a step with blocks on that worker last ended */
        uint64_t last_job_id, last_step_id, stamp;
        uint32_t n_in_flight;
        uint32_t load[TDM_N_WORKERS]; /* steps in flight with blocks on that worker */
        uint64_t interactive_ns;      /* when an interactive job last was about to get rows; 0: never */
        bool draining, held;
        struct tdm_background *threads[N_THREADS];
        struct tdm_grammar_cache grammars;
        struct tdm_speculate *speculate;

        struct scheduler_disk disk;

        struct tdm_result *results; /* [TDM_MAX_STEP_LOGITS]: the checked copy of the last step's */
        struct emit *emits;         /* [max_sequences + TDM_MAX_STEP_LOGITS] */
        uint32_t n_emits;
        struct sequence **candidates;         /* [max_sequences]: scratch of a step's building */
        struct tdm_guess_candidate *guessers; /* [max_sequences]: the same, of those that generate */
        struct tdm_list ended;                /* sequences that are out and still have to be told, by queue */
        struct tdm_scheduler_stats stats;
};

/* Sequences that may share a step: one model, one placement (the job's, or the one that it keeps), one group of
 * suspects (or none), drafts apart. */
struct step_class {
        struct lane *lane;
        enum tdm_placement placement;
        enum tdm_placement kept; /* of sequences whose jobs named no placement */
        struct suspects *suspects;
        bool drafts; /* companions only, and no suspects */
        uint64_t *stamp;
};

static inline struct tdm_placement_workers tdm_scheduler_workers(const struct tdm_scheduler *s, const struct lane *lane)
{
        struct tdm_placement_workers workers;

        tdm_fleet_placement_workers(s->fleet, lane->model->id, &workers);
        return workers;
}
static inline enum tdm_placement tdm_scheduler_placement_of(const struct tdm_scheduler *s, const struct tdm_job *job)
{
        return job->request.placement != TDM_PLACEMENT_ANY ? job->request.placement : s->config.placement;
}
static inline bool tdm_class_has(const struct tdm_scheduler *s, const struct step_class *c, const struct sequence *q)
{
        return !q->job->finished && !q->job->paused && q->suspects == c->suspects && q->is_draft == c->drafts &&
               tdm_scheduler_placement_of(s, q->job) == c->placement && q->kept == c->kept;
}
/* The plan that its steps have whatever the load is; TDM_PLACEMENT_ANY: they follow the load. */
static inline enum tdm_placement tdm_class_plan(const struct step_class *c)
{
        return c->placement != TDM_PLACEMENT_ANY ? c->placement : c->kept;
}

/* scheduler.c */
void tdm_scheduler_run(struct tdm_scheduler *s); /* admits jobs, submits steps, tells listeners */

/* lane.c */
int tdm_lane_new(struct tdm_scheduler *s, struct tdm_model *model);
void tdm_lane_free(struct tdm_scheduler *s, struct lane *lane);
struct lane *tdm_scheduler_lane(struct tdm_scheduler *s, uint32_t model_id);
void tdm_scheduler_sweep_lane(struct tdm_scheduler *s, struct lane *lane); /* frees a dead lane without flights */
struct user *tdm_scheduler_user(struct tdm_scheduler *s, uint64_t login);  /* NULL: has no jobs */
/* Gives the sequence a place among the lane's sequences. It has no pages yet. */
void tdm_scheduler_enter_lane(struct lane *lane, struct sequence *q);
/* gives back its pages and its place, as if it had never been admitted */
void tdm_scheduler_release(struct tdm_scheduler *s, struct lane *lane, struct sequence *q);
/* Gives back the pages of sliding layers that no later row of the sequence reads. */
void tdm_sequence_free_slid_out(struct lane *lane, struct sequence *q);

/* state.c: nothing in a model without states */
bool tdm_lane_has_state(const struct lane *lane);
/* The state behind its committed positions is kept until the next one comes, and not for good. */
bool tdm_sequence_state_passes(const struct lane *lane, const struct sequence *q);
void tdm_sequence_reset_state(struct sequence *q);
/* How many of n rows behind its issued ones a step may have, so that it passes one checkpoint at most. */
uint32_t tdm_sequence_state_rows(const struct lane *lane, const struct sequence *q, uint32_t n);
/* Pages of the pool that have to be promised to it before its next step. */
uint32_t tdm_sequence_state_need(const struct lane *lane, const struct sequence *q);
/* What a step of its next n rows reads and writes. */
struct tdm_step_state tdm_sequence_give_state(struct lane *lane, struct sequence *q, uint32_t n);
/* That step is committed with all its rows. What it kept stays until tdm_sequence_drop_kept(). */
void tdm_sequence_take_state(struct lane *lane, struct sequence *q);
void tdm_sequence_drop_kept(struct lane *lane, struct sequence *q);
void tdm_sequence_free_state(struct lane *lane, struct sequence *q);

/* encode.c: a thread makes ids of the job's text, and compiles its grammar; then tdm_scheduler_run(). False: too many
 * texts wait for that. */
bool tdm_scheduler_start_encoding(struct tdm_scheduler *s, struct tdm_job *job);

/* device-time.c */
static inline uint64_t tdm_scheduler_now(const struct tdm_scheduler *s)
{
        return s->config.clock_ns ? s->config.clock_ns() : tdm_now_ns();
}
/* The `served` with which a user begins who comes now. */
uint64_t tdm_scheduler_arrives(const struct tdm_scheduler *s, uint64_t login);
void tdm_scheduler_departs(struct tdm_scheduler *s, const struct user *u);
/* Lifts users who had no work to the level. To be called before steps are given out. */
void tdm_scheduler_level(struct tdm_scheduler *s);
/* The step is over: shares its time out, by rows. done: the workers have finished it, so its length is learned from. */
void tdm_scheduler_charge(struct tdm_scheduler *s, struct lane *lane, const struct flight *f, bool done);
/* The most rows for a step of this model with prompts in it. */
uint32_t tdm_scheduler_fit_rows(const struct tdm_scheduler *s, const struct lane *lane);

/* step.c */
bool tdm_scheduler_issue(struct tdm_scheduler *s); /* one step; false when there is none to issue now */

/* pictures.c */
/* Whether steps of the model have room for the job's pictures. TDM_E_UNSUPPORTED, TDM_E_BAD_REQUEST. */
int tdm_scheduler_check_pictures(const struct tdm_scheduler *s, const struct tdm_job *job,
                                 const struct tdm_model *model, struct tdm_error *err);
/* Of the sequence's next n rows those that cut no picture, in a step with n_pictures. Where that is none because a
 * picture comes that is longer, it is this picture's rows, if there are at most `room`. */
uint32_t tdm_scheduler_picture_rows(const struct lane *lane, const struct sequence *q, uint32_t n, uint32_t room,
                                    uint32_t n_pictures);
/* The job's rows [first, first + n) are rows first_row … of the step in this slot: what of them is pictures' goes to
 * the slot's hidden rows. Returns how many pictures the step has then. */
uint32_t tdm_scheduler_add_pictures(struct lane *lane, uint32_t slot, const struct tdm_job *job, uint32_t first,
                                    uint32_t n, uint32_t first_row, uint32_t n_pictures);

/* flight.c */
void tdm_flight_drop(struct flight *f); /* its slot is free */
/* the job is finished and not in flight */
void tdm_scheduler_retire(struct tdm_scheduler *s, struct lane *lane, struct sequence *q);
/* Takes the step out of flight. Its sequences may be finished, and are retired then. Not committed: the step that
 * follows it is void too. */
void tdm_scheduler_land(struct tdm_scheduler *s, struct lane *lane, struct flight *f, bool committed);

/* results.c, recover.c: what the fleet says of steps (struct tdm_fleet_step_events); scheduler is the userdata. */
void tdm_scheduler_on_step_done(uint32_t model_id, uint32_t slot, uint64_t step_id, void *scheduler);
void tdm_scheduler_on_step_failed(uint32_t model_id, uint32_t slot, uint64_t step_id, const struct tdm_error *err,
                                  void *scheduler);
void tdm_scheduler_on_reset(const char *reason, uint32_t guilty_model, uint32_t guilty_slot, uint64_t guilty_step,
                            void *scheduler);
/* results.c: finishes the flights that the workers are done with, and that wait for no other one. */
void tdm_scheduler_finish_done(struct tdm_scheduler *s, uint32_t model_id);

/* probe.c */
/* Sequences that are about to have their first step get the placement that they keep. */
void tdm_scheduler_keep_placements(struct tdm_scheduler *s, struct lane *lane);
void tdm_scheduler_probe(struct tdm_scheduler *s); /* what is due; to be called before steps are given out */
/* A probe's step leaves. good: it was done; lost: it failed, or killed a worker. */
void tdm_scheduler_probe_landed(struct tdm_scheduler *s, struct lane *lane, struct flight *f, bool good);
void tdm_scheduler_probe_lost(struct tdm_scheduler *s, struct lane *lane);

/* masks.c */
/* Asks the cache for the job's grammar and charges the trie's memory, before a thread compiles it. */
int tdm_scheduler_want_grammar(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_error *err);
/* Charges the grammar that was compiled, and keeps it for other jobs. */
int tdm_scheduler_charge_grammar(struct tdm_scheduler *s, struct tdm_job *job, struct tdm_error *err);
/* A thread makes the job's next mask, from here on. */
void tdm_scheduler_start_mask(struct tdm_scheduler *s, struct tdm_job *job);
/* A mask that is there already is published, before the step is submitted. */
bool tdm_scheduler_publish_known(struct tdm_scheduler *s, struct lane *lane, const struct flight *f, uint32_t logits,
                                 const struct tdm_job *job);
void tdm_scheduler_make_masks(struct tdm_scheduler *s); /* those of the steps that were submitted just now */
/* The job has a new token. */
void tdm_scheduler_follow(struct tdm_scheduler *s, struct tdm_job *job);
/* Whether it can be the token that a worker drew for these logits. */
bool tdm_scheduler_check_token(const struct lane *lane, const struct flight *f, const struct flight_seq *fs,
                               uint32_t logits, uint32_t token);

/* guess.c */
/* Chooses how many guesses each of the first n_decode candidates gets, which all generate: at most n_rows together.
 * reads: prompts have rows in the same step. */
void tdm_scheduler_plan_guesses(struct tdm_scheduler *s, struct lane *lane, uint32_t n_decode, uint32_t n_rows,
                                bool reads);

/* companion.c */
/* The draft that the job names, or the configuration for its model. To be called before the job is known. */
int tdm_companion_open(struct tdm_scheduler *s, struct sequence *q, struct tdm_model *target, struct tdm_error *err);
/* 0: the draft fits the job's model, or there is none. TDM_E_BUSY: its file is still being read. Else the error with
 * which the job ends. */
int tdm_companion_check(struct tdm_scheduler *s, struct sequence *q, struct tdm_error *err);
/* The sequence has new tokens: its companion goes back to the last one that agrees, and more guesses are planned. */
void tdm_companion_follow(struct tdm_scheduler *s, struct lane *lane, struct sequence *q);
/* The companion has rows for a step now. */
bool tdm_companion_has_work(const struct sequence *companion);
/* How many rows these are; and how many tokens the companion shall draw behind the token of the last row. */
uint32_t tdm_companion_rows(const struct sequence *companion);
uint32_t tdm_companion_burst(const struct sequence *companion);
/* A companion's step is done. */
void tdm_companion_commit(struct tdm_scheduler *s, struct lane *lane, const struct flight_seq *fs);
/* The guesses that are there for the sequence's next step, and how sure the draft was of them: [most]. */
uint32_t tdm_companion_guesses(const struct sequence *q, uint32_t most, uint32_t *ret, uint8_t *ret_certainty);
/* The companion's job is over: it gets no more rows, and tdm_companion_sweep() frees it. */
void tdm_companion_lose(struct sequence *companion, enum tdm_unguessed why);
void tdm_companion_drop(struct sequence *q); /* the same, because the sequence goes back to the queue, or leaves */
/* The sequence leaves. What was learned from it stays for the next one. */
void tdm_companion_retire(struct tdm_scheduler *s, struct sequence *q);
/* Takes the companion's pages, which are needed now. It is not in flight. */
void tdm_companion_evict(struct tdm_scheduler *s, struct lane *lane, struct sequence *companion);
/* The step killed its worker, or failed. */
void tdm_companion_blame(struct lane *lane, const struct flight *f);
void tdm_companion_model_changed(struct tdm_scheduler *s, const struct tdm_model *model); /* it has left or failed */
/* Whether companions have to wait, because a prompt waits to be read. */
bool tdm_companion_must_yield(const struct tdm_scheduler *s);
void tdm_companion_sweep(struct tdm_scheduler *s);
void tdm_companion_free_all(struct tdm_scheduler *s);
void tdm_companion_stop_waiting(struct tdm_scheduler *s, uint64_t now_ns); /* sequences whose drafts are late */

/* prefix.c */
const struct bits *tdm_scheduler_bits(struct tdm_scheduler *s, const struct step_class *c, const uint8_t *plan);
/* Rows of this sequence go into a step with these bits. To be called before n_issued counts them. */
void tdm_scheduler_note_bits(struct sequence *q, const struct bits *b);
/* Whether the sequence may have rows with these bits. False: other arithmetic drew what it goes on from, and its job
 * has ended. */
bool tdm_scheduler_may_go_on(struct sequence *q, const struct bits *b);
/* The sequence is about to get rows with these bits. Rows that the prefix cache knows become its own. False: it has to
 * wait for pages on disk. */
bool tdm_scheduler_look_up(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct bits *b);
void tdm_scheduler_enter(struct lane *lane, struct sequence *q); /* its pages that are full now */

/* recall.c */
/* Whether a user's pages with these bits are kept on disk. */
bool tdm_scheduler_keeps(uint64_t identity, const char *numerics);
/* Pages of the sequence's first n_max tokens that the prefix cache lacks may come from disk. True: they are looked for,
 * and it has to wait. */
bool tdm_scheduler_recall(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct bits *b,
                          uint32_t n_max);

/* keep.c */
void tdm_scheduler_keep(struct tdm_scheduler *s); /* pages that are new are written to disk */

/* room.c */
/* The pages that a job is promised when it is admitted. */
struct tdm_pages_need tdm_scheduler_promise(const struct tdm_scheduler *s, const struct tdm_job *job);
/* 0: there is room for need, perhaps because others were pushed out. -EAGAIN: sequences that are on their way out leave
 * enough room. -ENOSPC: none may be pushed out. building: a step whose sequences count as in flight; NULL: none. */
int tdm_scheduler_make_room(struct tdm_scheduler *s, struct lane *lane, const struct sequence *q,
                            const struct tdm_pages_need *need, const struct flight *building);
/* The same for a place among max_sequences. */
bool tdm_scheduler_make_place(struct tdm_scheduler *s, struct lane *lane, const struct sequence *q);
/* Promises an admitted sequence pages for n_positions. Returns for how many positions it has pages then. */
uint32_t tdm_scheduler_grow(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, uint32_t n_positions,
                            const struct flight *building);
/* The same for guesses: from free pages only, so no sequence loses any for them. */
uint32_t tdm_scheduler_grow_spare(struct lane *lane, struct sequence *q, uint32_t n_positions);
void tdm_scheduler_sweep_leaving(struct tdm_scheduler *s, struct lane *lane);

/* recover.c */
void tdm_scheduler_blame(struct tdm_scheduler *s, struct flight *f, bool worker_lives, const char *reason);

#endif
