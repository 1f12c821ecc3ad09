/* Which rows run when: the queue, admission, the building of steps, and what happens when a worker is lost.
 *
 * Continuous batching: every step takes one row of each sequence that generates, then pieces of prompts within the row
 * budget. Interactive jobs come before background ones. Users take turns by the device time that they had: at
 * admission, between models, within steps, and when one user has all the places. Steps are of bounded length. When the
 * cache runs out of pages, the least important job gives its pages back and reads its tokens again later. A sequence's
 * committed length advances only when a step is done; after a loss the same rows are issued again, and the same tokens
 * come out.
 *
 * Loop thread only. Events of jobs are never given from inside tdm_scheduler_submit(), _cancel() or _kick(). */
#ifndef TDM_DAEMON_SCHEDULE_SCHEDULER_H
#define TDM_DAEMON_SCHEDULE_SCHEDULER_H

#include "daemon/cache/page-store.h"
#include "daemon/fleet/fleet.h"
#include "daemon/jobs/job.h"
#include "daemon/models/models.h"
#include "daemon/placement/placement.h"
#include "daemon/speculate/speculate.h"

struct tdm_scheduler;

struct tdm_scheduler_config {
        uint32_t max_jobs; /* known at once, waiting ones included */
        uint32_t max_jobs_per_uid;
        uint32_t max_running_per_uid; /* 0: as many as there are places */
        uint64_t max_tokens_per_uid;  /* prompts and asked-for answers of all jobs of a user; 0: no cap */
        uint64_t max_pending_bytes;   /* of prompts that wait to be tokenized */
        uint32_t max_rows;            /* of a step: the models' max_rows */
        uint32_t prefill_rows;        /* of prompts in a step, <= max_rows */
        /* the same while no sequence generates and steps are quick even so; <= max_rows; 0: as prefill_rows */
        uint32_t lone_rows;
        uint32_t max_sequences;       /* of one model that run at once, <= max_rows */
        uint32_t steps_in_flight;     /* 1 … TDM_STEP_SLOTS; 0: what the placement needs */
        uint64_t (*clock_ns)(void);   /* by which device time is measured; NULL: tdm_now_ns() */
        bool no_relay;                /* a sequence is never in two steps at once */
        enum tdm_placement placement; /* of jobs that name none */
        struct tdm_speculate_config speculate;
        const char *const *drafts; /* "MODEL=DRAFT" for jobs that name none, NULL-terminated; NULL: none; borrowed */
        /* Opens a draft model by its name; NULL: tdm_models_open(). */
        int (*open_draft)(void *userdata, const char *name, struct tdm_model **ret, struct tdm_error *err);
        void *open_data;
        struct tdm_page_store *page_store; /* where beginnings of prompts are kept on disk; NULL: nowhere; borrowed */
};

struct tdm_scheduler_stats {
        uint32_t n_running, n_queued;
        uint64_t n_done, n_failed, n_cancelled;
        uint64_t tokens_generated, prompt_tokens, steps_done;
        uint64_t prefill_rows, decode_rows;  /* of finished steps; rows read again count again, wrong guesses not */
        uint64_t prefix_hits, cached_tokens; /* sequences that found a known beginning, and its tokens */
        uint64_t disk_tokens, disk_refused;  /* from disk into the prefix cache; damaged pages there */
        uint64_t evictions, reread_tokens;
        uint64_t drafted, accepted; /* guesses that were checked, and of those that were right */
        uint64_t masks, slow_masks; /* made for rows, and of those on a thread */
        uint32_t n_in_flight;
};

int tdm_scheduler_new(struct tdm_scheduler **ret, struct tdm_loop *loop, const struct tdm_scheduler_config *config);
/* The fleet tells the scheduler itself what becomes of steps. NULL: there is none any more. */
void tdm_scheduler_set_fleet(struct tdm_scheduler *scheduler, struct tdm_fleet *fleet);
/* Takes effect for new jobs. At most the configuration's max_jobs. */
void tdm_scheduler_set_max_jobs_per_uid(struct tdm_scheduler *scheduler, uint32_t max_jobs_per_uid);
/* Forgets all jobs without telling their listeners. No step may be in flight (the fleet is destroyed). */
void tdm_scheduler_destroy(struct tdm_scheduler *scheduler);
void tdm_scheduler_destroyp(struct tdm_scheduler **scheduler);

/* Gives the job its id, and takes a reference to job and model. TDM_E_BUSY, TDM_E_QUOTA, TDM_E_DRAINING. */
int tdm_scheduler_submit(struct tdm_scheduler *scheduler, struct tdm_job *job, struct tdm_model *model,
                         struct tdm_error *err);
/* The job ends at the next step border. err: NULL, or the error that it ends with. */
void tdm_scheduler_cancel(struct tdm_scheduler *scheduler, struct tdm_job *job, const struct tdm_error *err);
/* Something that holds a job back has changed (job->paused). */
void tdm_scheduler_kick(struct tdm_scheduler *scheduler);
struct tdm_job *tdm_scheduler_find(struct tdm_scheduler *scheduler, uint64_t id); /* NULL: no such job */
struct tdm_list *tdm_scheduler_jobs(struct tdm_scheduler *scheduler); /* of struct tdm_job by node, oldest first */
enum tdm_placement tdm_scheduler_placement(const struct tdm_scheduler *scheduler);
void tdm_scheduler_stats(const struct tdm_scheduler *scheduler, struct tdm_scheduler_stats *ret);

/* No new steps, for as long as it is held; those in flight end. */
void tdm_scheduler_hold(struct tdm_scheduler *scheduler, bool held);
bool tdm_scheduler_is_held(const struct tdm_scheduler *scheduler);
/* No new jobs; those that do not run yet end with TDM_E_DRAINING. */
void tdm_scheduler_drain(struct tdm_scheduler *scheduler);
bool tdm_scheduler_is_idle(const struct tdm_scheduler *scheduler);

/* From the models and the fleet. */
void tdm_scheduler_on_model_changed(struct tdm_scheduler *scheduler, struct tdm_model *model);
void tdm_scheduler_on_fleet_ready(struct tdm_scheduler *scheduler);

#endif
