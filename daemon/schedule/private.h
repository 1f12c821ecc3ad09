/* What the files of the scheduler share: scheduler.c (jobs in and out), step.c (steps), route.c (where
 * they go), prefix.c (known beginnings), room.c (memory), recover.c (losses). */
#ifndef TDM_DAEMON_SCHEDULE_PRIVATE_H
#define TDM_DAEMON_SCHEDULE_PRIVATE_H

#include "common/background.h"
#include "daemon/schedule/scheduler.h"

/* Sequences that were in a step which killed a worker. They share steps only with each other until one is done. */
struct tdm_suspects {
        unsigned n_refs;
        unsigned n_alone; /* deaths of a step with a single one of them */
        uint64_t stamp;   /* when it last had a step */
};

struct flight_seq {
        struct tdm_job *job; /* referenced */
        uint32_t first;      /* position */
        uint32_t n_rows;
        uint32_t first_logits;
        uint32_t n_logits;
};

/* A step in flight, in a slot of a model. */
struct flight {
        bool used;
        bool degraded;
        bool done;        /* the workers have finished it; it waits for the step that it follows */
        bool doomed;      /* that step failed: what it made is garbage */
        bool relays;      /* another may follow it */
        bool paced;       /* its worker has no other step */
        uint8_t workers;  /* mask of those with blocks in it */
        uint64_t after;   /* the step that it follows, while that is in flight; 0: none */
        uint64_t busy_ns; /* of its worker, when it was issued */
        uint64_t lone_ns; /* when it was issued, with nothing else in flight; 0: something was */
        uint32_t n_rows;
        uint64_t step_id;
        uint32_t n_seqs;
        uint32_t n_logits;
        struct flight_seq *seqs; /* [max_sequences] */
};

/* What gives rows their bits when steps go by a plan. */
struct bits {
        uint32_t epoch;  /* 0: nothing known */
        uint32_t number; /* in the prefix cache; 0: not to be shared */
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        char text[192];
};

/* What the scheduler keeps for a model that is ready. */
struct lane {
        struct tdm_list node;
        struct tdm_model *model;                       /* referenced */
        struct tdm_list active;                        /* of jobs by seq.node, in order of admission */
        struct bits bits[TDM_N_ASKED_PLACEMENTS][TDM_N_WORKERS]; /* lately, by placement and the worker of block 0 */
        uint32_t n_active;
        bool *table_used; /* [max_sequences] */
        struct flight flights[TDM_STEP_SLOTS];
        uint32_t n_flights;
        uint64_t stamp[TDM_N_ASKED_PLACEMENTS]; /* when steps of this placement last had a turn */
        struct tdm_pace pace;
        uint64_t prompt_row_ns; /* of the last step with many rows that was alone in flight; 0: none yet */
        bool dead;              /* the model failed or left: no more steps */
};

enum emit_kind { EMIT_TOKEN, EMIT_SCORES };

/* What a listener is told once the next step is on its way. */
struct emit {
        struct tdm_job *job; /* referenced */
        enum emit_kind kind;
        uint32_t first, n;
        const struct tdm_result *results;
        struct tdm_job_token token;
};

struct user {
        uid_t uid;
        uint32_t n_jobs, n_running;
        uint64_t n_tokens; /* charged */
        uint64_t served;   /* rows, from what the least served of those present had when it came */
        uint64_t admitted; /* stamp of the last admission */
};

struct tdm_scheduler {
        struct tdm_loop *loop;
        struct tdm_fleet *fleet;
        struct tdm_scheduler_config config;
        struct tdm_source *work;
        struct tdm_source *deadline; /* armed for the next job's */

        struct tdm_list jobs;    /* all */
        struct tdm_list waiting; /* not admitted, by queue, in order of arrival */
        struct tdm_list lanes;
        uint32_t n_jobs;
        uint64_t pending_bytes;
        struct user *users; /* [max_jobs], those with jobs first */
        uint32_t n_users;
        uint64_t last_job_id, last_step_id, stamp;
        uint32_t n_in_flight;
        uint32_t load[TDM_N_WORKERS]; /* steps in flight with blocks on that worker */
        uint64_t interactive_ns;      /* when an interactive job last was about to get rows; 0: never */
        bool draining;
        struct tdm_background *background; /* tokenizes long prompts */

        struct tdm_result *results; /* [TDM_MAX_STEP_LOGITS]: the checked copy of the last step's */
        struct emit *emits;         /* [max_sequences] */
        uint32_t n_emits;
        struct tdm_job **candidates; /* [max_sequences]: scratch of a step's building */
        struct tdm_list ended;       /* jobs that are out and still have to be told, by queue */
        struct tdm_scheduler_stats stats;
};

/* Sequences that may share a step: one model, one placement, one group of suspects (or none). */
struct class
{
        struct lane *lane;
        enum tdm_placement placement;
        struct tdm_suspects *suspects;
        uint64_t *stamp;
};

static inline struct tdm_placement_workers tdm_scheduler_workers(const struct tdm_scheduler *s)
{
        struct tdm_placement_workers workers;

        tdm_fleet_placement_workers(s->fleet, &workers);
        return workers;
}
static inline enum tdm_placement tdm_scheduler_placement_of(const struct tdm_scheduler *s,
                                                                const struct tdm_job *job)
{
        return job->placement != TDM_PLACEMENT_ANY ? job->placement : s->config.placement;
}
static inline bool tdm_class_has(const struct tdm_scheduler *s, const struct class *c, const struct tdm_job *job)
{
        return !job->finished && !job->paused && job->seq.suspects == c->suspects &&
               tdm_scheduler_placement_of(s, job) == c->placement;
}

/* scheduler.c */
struct user *tdm_scheduler_user(struct tdm_scheduler *s, uid_t uid); /* NULL: has no jobs */
/* its pages and its place; as if never admitted */
void tdm_scheduler_release(struct tdm_scheduler *s, struct lane *lane, struct tdm_job *job);
/* finished, not in flight */
void tdm_scheduler_retire(struct tdm_scheduler *s, struct lane *lane, struct tdm_job *job);
void tdm_scheduler_run(struct tdm_scheduler *s); /* admits, fills the pipeline, tells everybody */
struct lane *tdm_scheduler_lane(struct tdm_scheduler *s, uint32_t model_id);
void tdm_scheduler_sweep_lane(struct tdm_scheduler *s, struct lane *lane); /* frees a dead one without flights */

/* step.c */
bool tdm_scheduler_issue(struct tdm_scheduler *s); /* one step; false when there is none to issue now */
/* Takes the step out of flight and its sequences back; they may be finished (retired then). Not committed: what follows
 * it is void too. */
void tdm_scheduler_land(struct tdm_scheduler *s, struct lane *lane, struct flight *f, bool committed);

/* Those that the workers have finished and that wait for nothing any more. */
void tdm_scheduler_finish_done(struct tdm_scheduler *s, uint32_t model_id);

/* prefix.c */
const struct bits *tdm_scheduler_bits(struct tdm_scheduler *s, const struct class *c, const uint8_t *plan);
/* Rows of this job go into a step with these bits; n_issued is still what it was before. */
void tdm_scheduler_note_bits(struct tdm_job *job, const struct bits *b);
/* It is about to get rows with these bits: those that are known already become its own. */
void tdm_scheduler_look_up(struct tdm_scheduler *s, struct lane *lane, struct tdm_job *job, const struct bits *b);
void tdm_scheduler_enter(struct lane *lane, struct tdm_job *job); /* its pages that are full now */

/* room.c */
/* What a job is promised when it is admitted. */
struct tdm_pages_need tdm_scheduler_promise(const struct tdm_scheduler *s, const struct tdm_job *job);
/* 0: there is room for need; others may have been pushed out for it. -EAGAIN: those that are on their way out leave
 * enough. -ENOSPC: nobody may go. building: a step whose sequences are as good as in flight; NULL: none. */
int tdm_scheduler_make_room(struct tdm_scheduler *s, struct lane *lane, const struct tdm_job *job,
                            const struct tdm_pages_need *need, const struct flight *building);
/* The same for a place among max_sequences. */
bool tdm_scheduler_make_place(struct tdm_scheduler *s, struct lane *lane, const struct tdm_job *job);
/* Promises an admitted job pages for n_positions; returns for how many of them there are some. */
uint32_t tdm_scheduler_grow(struct tdm_scheduler *s, struct lane *lane, struct tdm_job *job, uint32_t n_positions,
                            const struct flight *building);
void tdm_scheduler_sweep_leaving(struct tdm_scheduler *s, struct lane *lane);

/* recover.c */
void tdm_suspects_unref(struct tdm_suspects *suspects);
void tdm_scheduler_acquit(struct tdm_job *job);
void tdm_scheduler_blame(struct tdm_scheduler *s, struct flight *f, bool device_healthy, const char *reason);

#endif
