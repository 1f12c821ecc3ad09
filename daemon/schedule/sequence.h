/* A sequence: a job as the scheduler sees it, from tdm_scheduler_submit() until its listener has heard its end.
 *
 * It holds where the job's rows stand in the KV cache, what the job is charged with, and what its listener was told
 * last. A sequence is in one of three lists besides that of all: waiting (not admitted), active (of a lane), ended. */
#ifndef TDM_DAEMON_SCHEDULE_SEQUENCE_H
#define TDM_DAEMON_SCHEDULE_SEQUENCE_H

#include "daemon/cache/prefix.h"
#include "daemon/jobs/job.h"
#include "daemon/speculate/speculate.h"

/* The sequences that were in a step which killed a worker. They share steps only with each other until one is done. */
struct suspects {
        unsigned n_refs;
        unsigned n_alone; /* deaths of a step with a single one of them */
        uint64_t stamp;   /* when it last had a step */
};

/* A sequence's state in a draft model (companion.c). */
struct draft {
        struct tdm_model *model; /* referenced; NULL: none */
        bool used;               /* its guesses are wanted; false: it was only checked that the vocabularies fit */
        bool waits;              /* the sequence gets no rows until its companion has made its guesses … */
        uint64_t until_ns;       /* … or until then */
        struct sequence *seq;    /* the companion; NULL: there is none now */
        uint32_t patient_at;     /* tokens of the job from which the companion is waited for again */
        uint32_t n_late;         /* how often it was too late, lately */
        struct tdm_draft_plan plan;
        uint8_t certainty[2 * TDM_MAX_GUESSES]; /* of a companion: of the tokens that it drew, by position */
};

/* Its state, in a model whose layers keep one (state.c). TDM_KV_NO_PAGE: none. */
struct sequence_state {
        uint32_t page; /* behind n_committed positions */
        uint32_t next; /* a step writes it */
        uint32_t kept; /* the same step writes it, of n_kept positions, for the prefix cache */
        uint32_t n_kept;
};

struct sequence {
        struct tdm_job *job;    /* referenced */
        struct tdm_list node;   /* of all sequences, in order of arrival */
        struct tdm_list queue;  /* of those that wait for admission, in order of arrival; or of those that have ended */
        struct tdm_list active; /* of the lane's, in order of admission */

        /* Its rows, while it is admitted. tdm_sequence_reset() clears all of these. */
        uint32_t table;                     /* number of its page tables; UINT32_MAX: not admitted */
        uint32_t n_committed;               /* positions whose K and V are in the cache */
        uint32_t n_issued;                  /* positions committed or in flight */
        uint32_t n_pages[TDM_KV_GROUPS];    /* table entries filled: pages of positions [0, n_pages * 32) … */
        uint32_t first_page[TDM_KV_GROUPS]; /* … of which those before this one are freed again */
        struct tdm_pages_need reserved;     /* promised, and not drawn yet */
        uint32_t numerics;                  /* of all its rows, as the prefix cache counts them; 0: none, or several */
        struct tdm_prefix_cursor cursor;
        struct sequence_state state;
        bool looked_up; /* it has what the prefix cache had for it */
        struct {
                bool runs;  /* pages for it are looked for on disk, or read; it counts as in flight */
                bool done;  /* the disk has no others */
                uint32_t n; /* how often that was begun */
        } recall;
        bool leaving;       /* its pages are wanted: no more rows, and out as soon as it is not in flight */
        uint32_t in_flight; /* steps it is in: two when one follows the other on the other worker */
        uint8_t home;       /* 1 + the worker of its last step; 0: none, or both */

        struct tdm_guesses guesses;
        struct draft draft;
        bool is_draft;          /* it is a companion: it reads what another sequence has, and guesses what comes next */
        struct sequence *owner; /* of a companion: that one; NULL: it has left */
        uint32_t n_synced; /* of a companion: its first n_synced tokens are the owner's, those behind its guesses */

        /* On workers that differ in bits: the placement that its first step had. It keeps it for its bits. Not cleared
         * by tdm_sequence_reset(). TDM_PLACEMENT_ANY: it has none yet, or needs none. */
        enum tdm_placement kept;
        struct suspects *suspects; /* referenced; NULL: nothing is known against it */
        uint8_t bad_results;       /* mask of workers whose results of it could not be, since its last good step */
        uint32_t n_told;           /* positions whose scores the listener has */
        uint32_t n_read;           /* positions that were committed at least once: news are only those behind them */
        size_t charged_bytes;      /* against the cap of what waits to be tokenized */
        uint64_t charged_tokens;   /* against the user's cap */
        uint64_t user_served;      /* what its user had when a step was built: those with less go first */
        uint32_t n_bypassed;       /* smaller jobs that were admitted before it */
        uint32_t n_passed_over;    /* steps that read other prompts while its picture had no room, since its last one */

        /* The progress that its listener was told last. */
        enum tdm_job_state told_state;
        uint32_t told_position;
        uint64_t told_done;
        uint64_t told_ns;
};

/* Takes a reference to the job. */
int tdm_sequence_new(struct sequence **ret, struct tdm_job *job);
/* Out of all lists; drops the job. */
void tdm_sequence_free(struct sequence *q);
void tdm_suspects_unref(struct suspects *suspects);
/* Nothing is known against it any more. */
void tdm_sequence_acquit(struct sequence *q);
/* As if it had never been admitted; suspicion and charges stay. */
void tdm_sequence_reset(struct sequence *q);

/* Positions that have to be in the cache before the next token can be chosen. */
static inline uint32_t sequence_pending_rows(const struct sequence *q)
{
        return q->job->n_ids - q->n_committed;
}
/* Positions that stay in the cache. A companion's guesses may be wrong, so it may have to go back to these. */
static inline uint32_t sequence_kept(const struct sequence *q)
{
        return q->owner ? TDM_MIN(q->n_committed, q->owner->job->n_ids) : q->n_committed;
}
/* It generates. False of one that was pushed out and reads again what it has generated. */
static inline bool sequence_is_decoding(const struct sequence *q)
{
        return q->job->kind == TDM_JOB_GENERATE && q->job->n_ids > q->job->prompt_tokens &&
               sequence_pending_rows(q) <= 1;
}
/* Its picture goes before other prompts. */
static inline bool tdm_sequence_is_overdue(const struct sequence *q)
{
        return q->n_passed_over >= 16;
}

#endif
