/* What the files of the scheduler share: scheduler.c (jobs in and out), scheduler-step.c (steps), scheduler-recover.c
 * (losses). */
#ifndef TDM_DAEMON_SCHEDULER_PRIVATE_H
#define TDM_DAEMON_SCHEDULER_PRIVATE_H

#include "daemon/scheduler.h"

/* Sequences that were in a step which killed a worker. They share steps only with each other until one is done. */
struct tdm_suspects {
        unsigned n_refs;
        unsigned n_alone; /* deaths of a step with a single one of them */
        uint64_t stamp;   /* when it last had a step */
};

struct flight_seq {
        struct tdm_job *job; /* referenced */
        uint32_t n_rows;
        uint32_t first_logits;
        uint32_t n_logits;
};

/* A step in flight, in a slot of a model. */
struct flight {
        bool used;
        bool degraded;
        uint64_t step_id;
        uint32_t n_seqs;
        uint32_t n_logits;
        struct flight_seq *seqs; /* [max_sequences] */
};

/* What the scheduler keeps for a model that is ready. */
struct lane {
        struct tdm_list node;
        struct tdm_model *model; /* referenced */
        struct tdm_list active;  /* of jobs by seq.node, in order of admission */
        uint32_t n_active;
        bool *table_used; /* [max_sequences] */
        struct flight flights[TDM_STEP_SLOTS];
        uint32_t n_flights;
        uint64_t stamp[TDM_N_PLACES]; /* when steps of this placement last had a turn */
        bool dead;                    /* the model failed or left: no more steps */
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
        uint32_t n_jobs;
        uint64_t admitted; /* stamp of the last admission */
};

struct tdm_scheduler {
        struct tdm_loop *loop;
        struct tdm_fleet *fleet;
        struct tdm_scheduler_config config;
        struct tdm_source *work;

        struct tdm_list jobs;    /* all */
        struct tdm_list waiting; /* not admitted, by queue, in order of arrival */
        struct tdm_list lanes;
        uint32_t n_jobs;
        uint64_t pending_bytes;
        struct user *users; /* [max_jobs], those with jobs first */
        uint32_t n_users;
        uint64_t last_job_id, last_step_id, stamp;
        uint32_t n_in_flight;
        bool draining;

        struct tdm_result *results; /* [TDM_MAX_STEP_LOGITS]: the checked copy of the last step's */
        struct emit *emits;         /* [max_sequences] */
        uint32_t n_emits;
        struct tdm_job **candidates; /* [max_sequences]: scratch of a step's building */
        struct tdm_list ended;       /* jobs that are out and still have to be told, by queue */
        struct {
                uint32_t epoch, model_id;
                char text[192];
        } numerics[TDM_N_PLACES];
        struct tdm_scheduler_stats stats;
};

/* scheduler.c */
void tdm_scheduler_retire(struct tdm_scheduler *s, struct lane *lane, struct tdm_job *job); /* finished, not in flight */
void tdm_scheduler_run(struct tdm_scheduler *s);                     /* admits, fills the pipeline, tells everybody */
struct lane *tdm_scheduler_lane(struct tdm_scheduler *s, uint32_t model_id);
void tdm_scheduler_sweep_lane(struct tdm_scheduler *s, struct lane *lane); /* frees a dead one without flights */

/* scheduler-step.c */
bool tdm_scheduler_issue(struct tdm_scheduler *s); /* one step; false when there is none to issue now */
/* Takes the step out of flight and its sequences back; they may be finished (retired then). */
void tdm_scheduler_land(struct tdm_scheduler *s, struct lane *lane, struct flight *f);

/* scheduler-recover.c */
void tdm_suspects_unref(struct tdm_suspects *suspects);
void tdm_scheduler_acquit(struct tdm_job *job);
void tdm_scheduler_blame(struct tdm_scheduler *s, struct flight *f, bool device_healthy, const char *reason);

#endif
