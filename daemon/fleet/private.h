/* Shared by the files of the fleet:
 *
 *   fleet.c    begin, end, models, and the pump, which decides what happens next
 *   receive.c  what workers send;   replies.c  what they say of themselves and of models
 *   watch.c    hangs;   starved.c  whether a silent worker hangs or has no CPU
 *   rings.c    submitting, results;   trial.c  runs the trial of a model's placements
 *   conduct.c  faults of rings, accusations, the link between the workers
 *   worker.c   a worker's process: start, loss, reap, back-off;   unit.c  one that a service manager starts
 *   epoch.c    the end of an epoch
 *   account.c  what losses cost a worker
 *   counters.c what workers have counted;   trace.c  what happened when
 *   wire.c     what workers are sent
 *   wake.c     wakes the pump and the watch
 *   state.c    what others may ask about the workers
 *
 * A file calls those below it, and on its own line. A message goes up by a pointer to receive.c's function
 * (struct tdm_fleet_worker).
 *
 * Events (a frame, an exit, a timer, a descriptor) change state and schedule the pump; the pump looks at the state and
 * does what is due: starts processes, sends models and rings, announces. So no event has to know what else is going on,
 * and a worker that dies in the middle of anything is the same case as one that dies when idle. */
#ifndef TDM_DAEMON_FLEET_PRIVATE_H
#define TDM_DAEMON_FLEET_PRIVATE_H

#include <signal.h>
#include "common/conn.h"
#include "common/log.h"
#include "common/spin.h"
#include "common/utf8.h"
#include "common/cpus.h"
#include "daemon/fleet/fleet.h"
#include "engine/worker/abi.h"

#define TDM_FLEET_MODELS TDM_PROGRESS_MODELS
/* Deaths without a finished step between them that put a worker into quarantine. More than MAX_DEATHS_ALONE of the
 * scheduler, so that a lone job that kills its worker is ended first. */
#define TDM_FLEET_MAX_DEATHS 5u
/* A worker is restarted after this many bad rings without a finished step between. One costs only a new epoch, but bad
 * rings without end would stop all jobs. The same number of disputes in a row cuts the link (conduct.c). */
#define TDM_FLEET_MAX_RING_FAULTS 3u
/* The deadline for answers to messages: a device comes up, a model is mapped and checked. */
#ifdef TANDEM_SANITIZED
#define TDM_FLEET_CONTROL_NS (60 * TDM_NSEC_PER_SEC)
#else
#define TDM_FLEET_CONTROL_NS (10 * TDM_NSEC_PER_SEC)
#endif
/* The charges of a worker (account.c): it was ended from outside; it died; its ring is bad; it broke a rule. */
#define TDM_FLEET_CHARGE_LOSS 1u
#define TDM_FLEET_CHARGE_DEATH 4u
#define TDM_FLEET_CHARGE_RING 8u
#define TDM_FLEET_CHARGE_BREACH 32u

enum tdm_fleet_load { TDM_FLEET_ABSENT, TDM_FLEET_LOADING, TDM_FLEET_LOADED, TDM_FLEET_UNLOADING };
enum tdm_fleet_kv { TDM_FLEET_KV_NONE, TDM_FLEET_KV_ASKED, TDM_FLEET_KV_GRANTED };
enum tdm_fleet_phase {
        TDM_FLEET_NO_PROCESS,
        TDM_FLEET_PROCESS_STARTING, /* Hello awaited; of a unit first its greeting (no pid yet), then Init is sent */
        TDM_FLEET_PROCESS_UP,
        TDM_FLEET_PROCESS_DYING, /* killed or asked to leave, not yet reaped */
};

/* CPU time that the threads of a silent worker had when they were last looked at. */
#define TDM_FLEET_THREADS 64u
/* A worker that does nothing for this time hangs, however long its blocks take by its own figures. */
#define TDM_FLEET_HANG_MAX_NS (60 * TDM_NSEC_PER_SEC)
struct tdm_fleet_sample {
        uint64_t at_ns;
        uint64_t forgiven_ns; /* in this silence */
        unsigned n;           /* 0: not looked at yet */
        struct tdm_fleet_thread {
                pid_t tid;
                uint64_t ran_ns, waited_ns;
        } threads[TDM_FLEET_THREADS];
};

struct tdm_fleet_step {
        uint64_t step_id; /* 0: free */
        uint64_t after;   /* it follows that step of the same model; 0: none */
        uint32_t after_slot;
        bool queued; /* waits for a worker to get the KV segment */
        uint32_t n_rows;
        uint32_t n_blocks;
        uint8_t plan[TDM_MAX_BLOCKS + 1]; /* as submitted */
};

/* Ids from here on are the fleet's own steps; the scheduler counts from 1. */
#define TDM_FLEET_OWN_STEPS (UINT64_C(1) << 50)
struct tdm_fleet_trial {
        bool done;        /* or not needed */
        uint64_t step_id; /* in flight; 0: none */
        uint64_t posted_ns;
        struct tdm_error why; /* a device could not run the last one; else the code is 0 */
        struct tdm_placement_trial trial;
};

/* Chunks go out a few at a time, so that the worker reads other messages between them. */
#define TDM_FLEET_CHUNKS_ON_THE_WAY 12u

struct tdm_fleet_entry {
        struct tdm_fleet_model model; /* its segments may be gone while it is leaving */
        unsigned n_chunks;            /* of the weights */
        char name[64];
        unsigned index;              /* row of the progress table */
        bool announced;              /* on_model_ready was called */
        bool kv_proved;              /* a worker has mapped its KV segment */
        bool leaving;                /* removed or failed: segments are not touched any more */
        bool failed;                 /* on_model_failed is due */
        enum tdm_placement measured; /* the trial's result; TDM_PLACEMENT_ANY: none yet */
        struct tdm_fleet_trial trial;
        struct tdm_error error;
        struct {
                enum tdm_fleet_load load;
                /* LOADING: chunks of the weights, and those that it has said it has dealt with */
                unsigned n_sent, n_taken;
                /* The message to this worker that carried chunk i, at i % …; messages are counted in this life. */
                uint32_t sent_in[TDM_FLEET_CHUNKS_ON_THE_WAY];
                bool proved;     /* it was LOADED once, in whichever life */
                unsigned n_lost; /* lives that ended while it was taken, before that */
                enum tdm_fleet_kv kv;
                bool wants_kv; /* runs attention of this model, or is sure to: gets the KV with it */
                uint64_t scratch_bytes;
                char plan[512];
        } on[TDM_N_WORKERS];
        struct tdm_fleet_step steps[TDM_STEP_SLOTS];
};

/* Lines that a worker can cause without end. After a few at once, there is one a second of each kind. */
enum tdm_fleet_log { TDM_FLEET_LOG_RING, TDM_FLEET_LOG_LOST, TDM_FLEET_LOG_STARTED, TDM_FLEET_N_LOGS };

/* The worker's process of this life. */
struct tdm_fleet_process {
        enum tdm_fleet_phase phase;
        pid_t pid;
        int pidfd;
        struct tdm_source *exit_source, *exit_timer;
        uint64_t exited_ns, kill_asked_ns;
        bool not_ours;       /* unit: we may not send it signals */
        bool abandoned;      /* SIGKILL did not end it */
        bool asked_to_leave; /* dying politely: SIGKILL follows after a second */
        bool quit_killed;
        uint64_t dying_ns;
        uint64_t started_ns;
        uint64_t start_at_ns; /* of the next one: back-off */
        struct tdm_source *start_timer;
};

/* The ways to the worker and from it, in this life. */
struct tdm_fleet_link {
        int greeting_fd; /* unit: until it has said who it is */
        struct tdm_source *greeting;
        struct tdm_conn *conn;
        bool conn_lost;  /* its socket has closed; the exit status follows any moment */
        int send_error;  /* a message could not be sent: dealt with by the pump */
        uint32_t n_sent; /* messages with chunks of weights */
        uint32_t epoch_sent, epoch_acked;
        uint32_t ready_epoch; /* in which it was told to be up */
        struct tdm_ring *ring_to, *ring_from;
        struct tdm_source *ring_source;
        bool ring_fault;        /* found inside a call of the owner: dealt with by the pump */
        bool bad_results;       /* the same */
        uint32_t accused_epoch; /* the newest in which it reported a ring */
        uint64_t awaited_step;  /* the step that it has said to be nearly done */
        struct tdm_spin await;  /* for each of those */
        uint64_t done_ns;       /* when its last step was done */
        unsigned hands_over;    /* more than 0: the other worker's step has followed its steps lately */
};

/* The faults of a worker over its lives, and what follows from them (account.c). */
struct tdm_fleet_record {
        unsigned deaths;      /* with no finished step between */
        unsigned idle_deaths; /* of those that were in reserve all their life */
        unsigned ring_faults; /* the same */
        unsigned charged;     /* account.c; forgotten with time alone */
        uint64_t charged_ns;
        bool spent;           /* the account: quarantined when this life has ended */
        unsigned quarantines; /* with no long life between */
        uint64_t try_at_ns;   /* quarantined: the next retry; 0: none */
        bool retrying;        /* quarantined: this life shows whether it can come back */
        bool took_one;        /* it has loaded a model, in whichever life */
        uint32_t restarts;
        char last_exit[160];
};

/* What the worker says of itself and of its device. */
struct tdm_fleet_about {
        char device[16];
        char detail[128];
        char numerics_id[128];
        struct tdm_device_memory memory;
        struct tdm_device_needs left; /* a model that needs one of these runs on the worker's host device … */
        char left_numerics_id[128];   /* … with these bits */
        char reason[256];
        char sandbox[128];
};

struct tdm_fleet_done {
        uint64_t blocks, rows, ns;
};
/* The worker's counters: those of this life, as they were last believed, or those of all lives before. */
struct tdm_fleet_counted {
        uint64_t busy_ns, waiting_ns, handovers, handover_ns;
        struct tdm_fleet_done kinds[TDM_N_BLOCK_KINDS];
};

/* watch.c: how long it has kept silent while something was owed. */
struct tdm_fleet_silence {
        uint64_t signature;
        uint64_t step_ns;
        uint64_t control_ns;
        uint64_t control_busy_ns; /* time that was not counted there, because a step moved */
        struct tdm_fleet_sample sample, control_sample;
        uint64_t ping_sent; /* number of the last one in this life */
        uint64_t doubt;     /* the ping that asks whether it hangs or was never given the step; 0: none */
        uint64_t pinged_ns;
};

struct tdm_fleet_lines {
        uint64_t at_ns;
        unsigned n, n_left_out;
};

struct tdm_fleet_worker {
        struct tdm_fleet *fleet;
        enum tdm_worker_index index;
        const char *name; /* "npu" */
        char requested[32];
        bool is_required; /* without its accelerator nothing runs, not even on the other worker */
        bool is_bound;    /* to cpus, which are otherwise what this process may use */
        cpu_set_t cpus;
        enum tdm_worker_state state;
        /* Takes a frame in (receive.c). 0, or a negative errno: the worker does not keep to the protocol. */
        int (*receive)(struct tdm_fleet_worker *w, const uint8_t *data, size_t size);

        /* A unit of its own: where its manager listens, and its name. NULL: started by us. */
        char *socket_path;
        char unit[40];

        struct tdm_fleet_process process;
        struct tdm_fleet_link link;
        struct tdm_fleet_about about;
        struct tdm_fleet_record record;
        struct tdm_fleet_silence silence;
        struct tdm_fleet_counted seen, past;
        struct tdm_fleet_lines log[TDM_FLEET_N_LOGS];

        struct tdm_segment *progress_segment;
        struct tdm_progress *progress;
        uint32_t life;                    /* counts the segments */
        struct tdm_segment *dead_segment; /* the progress of the last life that ended: what it did last */
        uint32_t dead_life;

        bool restart_wanted; /* tdm_fleet_restart() */
        bool reopen_wanted;  /* tdm_fleet_reopen() */
        char restart_reason[64];
        bool no_device;   /* it said so, and it never had one: another try would say the same */
        bool device_gone; /* this life found none, and an earlier one had it */
        bool had_step;    /* of its own, in this life */
        bool ever_started;
        /* it opens the device that it had: "auto" is decided once, or a job's bits would change in the middle */
        bool pinned;
        uint64_t late_until_ns; /* the machine woke: until then a device that is not back yet costs nothing */
};

/* The fds of the current epoch's rings, until both ends have theirs. */
struct tdm_fleet_rings {
        bool made;
        bool has_peer;
        struct {
                int from_daemon, to_daemon, eventfd; /* the worker's ends */
                int from_peer, to_peer;
        } fds[TDM_N_WORKERS];
};

struct tdm_fleet {
        struct tdm_loop *loop;
        struct tdm_fleet_callbacks callbacks;
        struct tdm_fleet_step_events steps;
        void *steps_userdata;
        void *userdata;
        char *worker_dir;
        unsigned n_threads;
        char *npu_programs, *npu_format, *gpu_device;
        uint64_t gpu_memory_bytes;
        uint64_t npu_memory_bytes;
        uint64_t hang_min_ns;
        uint64_t control_ns;
        uint64_t quarantine_ns;

        struct tdm_source *pump;
        struct tdm_source *watch;
        uint64_t watch_due_ns; /* 0: not armed */
        bool destroying;

        uint32_t epoch;
        bool ready;
        bool ready_note; /* on_ready is due though nothing was lost: a model has left */
        struct tdm_fleet_rings rings;
        uint64_t recoveries;
        /* The link between the workers (conduct.c). */
        unsigned n_disputes; /* in a row */
        uint64_t disputed_ns;
        unsigned n_link_cuts;
        uint64_t link_until_ns; /* cut until then; 0: it is not */
        struct tdm_source *link_timer;
        struct tdm_trace_ring *trace; /* our own track */
        struct tdm_fleet_worker workers[TDM_N_WORKERS];
        struct tdm_fleet_entry *models[TDM_FLEET_MODELS];
        struct tdm_placement_store *store;
        uint64_t n_own_steps;
};

static inline bool tdm_fleet_usable(const struct tdm_fleet_worker *w)
{
        return w->state != TDM_WORKER_OFF && w->state != TDM_WORKER_QUARANTINED;
}
/* Off; or quarantined and not expected back soon, because a retry has failed too. */
static inline bool tdm_fleet_given_up(const struct tdm_fleet_worker *w)
{
        return !tdm_fleet_usable(w) && (w->state == TDM_WORKER_OFF || w->no_device || w->process.abandoned ||
                                        (w->record.quarantines > 1 && !w->record.retrying));
}
/* A worker whose accelerator is required and cannot be used. NULL: none. */
static inline const struct tdm_fleet_worker *tdm_fleet_missed(const struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (f->workers[i].is_required && !tdm_fleet_usable(&f->workers[i]))
                        return &f->workers[i];
        return NULL;
}
static inline struct tdm_fleet_worker *tdm_fleet_other(struct tdm_fleet_worker *w)
{
        return &w->fleet->workers[w->index == TDM_WORKER_NPU ? TDM_WORKER_GPU : TDM_WORKER_NPU];
}
/* All of its weights are sealed. */
static inline bool tdm_fleet_is_whole(const struct tdm_fleet_entry *entry)
{
        return entry->model.n_sealed == entry->n_chunks;
}

/* ---- wake.c ---- */
void tdm_fleet_pump_soon(struct tdm_fleet *fleet);
void tdm_fleet_watch_soon(struct tdm_fleet *fleet); /* a worker owes an answer or a step: the timer runs */
void tdm_fleet_watch_at(struct tdm_fleet *fleet, uint64_t due_ns);
uint64_t tdm_fleet_tick_ns(const struct tdm_fleet *fleet); /* of the watch, while something is owed */
void tdm_fleet_heard(struct tdm_fleet_worker *w);          /* a message came from it */
/* Sending failed (r < 0): the worker is lost, or will be in a moment. Never calls the owner. */
void tdm_fleet_cannot_send(struct tdm_fleet_worker *w, int r);

/* ---- replies.c ---- */
void tdm_fleet_on_hello(struct tdm_fleet_worker *w);
void tdm_fleet_on_no_device(struct tdm_fleet_worker *w, const char *reason);
void tdm_fleet_on_weights_taken(struct tdm_fleet_worker *w, uint32_t model_id, uint32_t n_chunks);
void tdm_fleet_on_loaded(struct tdm_fleet_worker *w, uint32_t model_id, uint64_t scratch_bytes, const char *plan);
void tdm_fleet_on_load_failed(struct tdm_fleet_worker *w, uint32_t model_id, int code, const char *message);
void tdm_fleet_on_kv_ready(struct tdm_fleet_worker *w, uint32_t model_id);
void tdm_fleet_on_unloaded(struct tdm_fleet_worker *w, uint32_t model_id);

/* ---- worker.c ---- */
/* Starts the process; a failure counts as a death of it. */
void tdm_fleet_worker_start(struct tdm_fleet_worker *w);
/* Kills the worker and ends the epoch. BLAME_STEP: the step that it was in is suspected; where it was in none, or with
 * BLAME_MODEL, the model that it was taking (tdm_fleet_blame_model()). */
enum tdm_fleet_blame { TDM_FLEET_NO_BLAME, TDM_FLEET_BLAME_STEP, TDM_FLEET_BLAME_MODEL };
void _printf_(3, 4) tdm_fleet_worker_lost(struct tdm_fleet_worker *w, enum tdm_fleet_blame blame, const char *fmt, ...);
/* The worker has broken a rule that no honest one breaks: it is charged for it and lost. */
void _printf_(2, 3) tdm_fleet_worker_breach(struct tdm_fleet_worker *w, const char *fmt, ...);
/* Asks the worker to leave. This does not count as a death. */
void tdm_fleet_worker_leave(struct tdm_fleet_worker *w, const char *reason);
void tdm_fleet_worker_kill(struct tdm_fleet_worker *w);
/* SIGKILL has not ended the process: its segments are given up, and the worker is quarantined. */
void tdm_fleet_worker_abandon(struct tdm_fleet_worker *w);
void tdm_fleet_worker_deinit(struct tdm_fleet_worker *w);
bool tdm_fleet_worker_is_stopped(const struct tdm_fleet_worker *w);
/* The process runs and pidfd is its own. From now on control frames go over fd, which it takes. */
int tdm_fleet_worker_talk(struct tdm_fleet_worker *w, int fd);
/* The process is gone. NULL: how it ended is not known. */
void tdm_fleet_worker_ended(struct tdm_fleet_worker *w, const siginfo_t *si);

/* ---- unit.c ---- */
int tdm_fleet_unit_init(struct tdm_fleet_worker *w, const char *folder, struct tdm_error *err);
/* Its process starts, or will soon; a negative errno: it cannot be reached. */
int tdm_fleet_unit_connect(struct tdm_fleet_worker *w);
/* The pidfd says that it has ended: finds out how. */
int tdm_fleet_unit_exited(struct tdm_fleet_worker *w);
/* Asks its manager to kill it; may be called again. */
void tdm_fleet_unit_kill(struct tdm_fleet_worker *w);
/* It has not said who it is in time; the connection is closed. */
void tdm_fleet_unit_give_up(struct tdm_fleet_worker *w);
void tdm_fleet_unit_deinit(struct tdm_fleet_worker *w);

/* ---- epoch.c ---- */
/* Everything in flight is void; rings are gone. Tells of a reset when the fleet was ready. guilty_step is to blame (0:
 * none is). */
void tdm_fleet_end_epoch(struct tdm_fleet *fleet, enum tdm_worker_index worker, const char *reason,
                         uint64_t guilty_step);
void tdm_fleet_close_rings(struct tdm_fleet *fleet);
void tdm_fleet_close_ends(struct tdm_fleet_worker *w);

/* ---- rings.c ---- */
int tdm_fleet_make_rings(struct tdm_fleet *fleet);
void tdm_fleet_flush_queued(struct tdm_fleet *fleet, struct tdm_fleet_entry *entry);
void tdm_fleet_on_epoch_ack(struct tdm_fleet_worker *w, uint32_t epoch);
void tdm_fleet_on_step_failed(struct tdm_fleet_worker *w, uint32_t epoch, uint32_t model_id, uint32_t slot,
                              uint64_t step_id, const struct tdm_error *err);

/* ---- account.c ---- */
/* True: the account is used up. */
bool tdm_fleet_charge(struct tdm_fleet_worker *w, unsigned amount);
void tdm_fleet_forgive(struct tdm_fleet_worker *w);
/* Back from quarantine: the next breach ends in quarantine again. */
void tdm_fleet_on_probation(struct tdm_fleet_worker *w);
/* The worker is lost, maybe while it took a model. A model that it had before is not to blame. Nor is one that the
 * other worker has loaded, or may yet load without a loss, where this worker never took any: its driver may fail at all
 * of them. A model fails if it has cost each worker a life, or if it has cost one worker lives and the next one would
 * quarantine that worker. */
void tdm_fleet_blame_model(struct tdm_fleet_worker *w, const char *reason);
bool tdm_fleet_may_log(struct tdm_fleet_worker *w, enum tdm_fleet_log kind);

/* ---- conduct.c ---- */
int tdm_fleet_conduct_init(struct tdm_fleet *fleet);
void tdm_fleet_ring_fault(struct tdm_fleet_worker *guilty, const char *reason);
/* Its peer says that it handed a step on, and this worker answers a ping and does nothing. */
void tdm_fleet_on_false_claim(struct tdm_fleet_worker *w);
void tdm_fleet_on_ring_fault(struct tdm_fleet_worker *w, uint32_t epoch, bool with_peer, const char *reason);

/* ---- counters.c ---- */
/* Adds the counters of this life to the past; its segment is kept for traces. */
void tdm_fleet_fold_progress(struct tdm_fleet_worker *w);

/* ---- watch.c ---- */
int tdm_fleet_watch_init(struct tdm_fleet *fleet);
bool tdm_fleet_owes_control(const struct tdm_fleet_worker *w);
/* For how long it may keep silent in such a block: many times what its slowest blocks took, by its own figures. */
uint64_t tdm_fleet_hang_ns(const struct tdm_fleet_worker *w, enum tdm_block_kind kind);

/* ---- starved.c ---- */
/* How much of elapsed_ns, the time since the last call, the process was kept from running; max_ns at most in a silence.
 * The first call of a silence (an empty sample) says 0. */
uint64_t tdm_fleet_starved_ns(struct tdm_fleet_sample *sample, pid_t pid, uint64_t elapsed_ns, uint64_t max_ns);

/* ---- trial.c ---- */
/* Goes on with the trial of the model's placements, where it needs one. True: its placement is known or follows the
 * load. False: the trial is not over; to be called again on the next pump. */
bool tdm_fleet_try_placements(struct tdm_fleet *fleet, struct tdm_fleet_entry *entry);
/* A device could not run a step of the trial. */
void tdm_fleet_trial_step_failed(struct tdm_fleet *fleet, struct tdm_fleet_entry *entry, const struct tdm_error *err);
void tdm_fleet_trial_step_done(struct tdm_fleet *fleet, struct tdm_fleet_entry *entry);

/* ---- state.c ---- */
struct tdm_fleet_entry *tdm_fleet_find(struct tdm_fleet *fleet, uint32_t model_id);
bool tdm_fleet_link_is_cut(const struct tdm_fleet *fleet); /* the epoch's rings may be older */
/* Both workers give the same bits: of the model, or where entry is NULL of one that both devices take. */
bool tdm_fleet_equal_bits(const struct tdm_fleet *fleet, const struct tdm_fleet_entry *entry);

/* ---- trace.c ---- */
void tdm_fleet_trace(struct tdm_fleet *fleet, enum tdm_trace_kind kind, uint64_t step, uint32_t rows, uint64_t arg);
void tdm_fleet_keep_trace(struct tdm_fleet_worker *w); /* its life is over: takes the progress segment */

/* ---- wire.c ---- */
int tdm_fleet_wire_init(struct tdm_fleet_worker *w);
/* With the first n_chunks of the weights. */
int tdm_fleet_wire_load(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry, unsigned n_chunks);
/* Chunks [first, end) of the weights. */
int tdm_fleet_wire_weights(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry, unsigned first, unsigned end);
int tdm_fleet_wire_kv(struct tdm_fleet_worker *w, struct tdm_fleet_entry *entry);
int tdm_fleet_wire_unload(struct tdm_fleet_worker *w, uint32_t model_id);
int tdm_fleet_wire_epoch(struct tdm_fleet_worker *w);
int tdm_fleet_wire_ping(struct tdm_fleet_worker *w, uint64_t number);
int tdm_fleet_wire_quit(struct tdm_fleet_worker *w);

/* ---- receive.c ---- */
/* 0, or a negative errno: the worker does not keep to the protocol. */
int tdm_fleet_receive(struct tdm_fleet_worker *w, const uint8_t *data, size_t size);

#endif
