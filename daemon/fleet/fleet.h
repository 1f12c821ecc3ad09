/* The two workers, seen as one executor of steps that survives them.
 *
 * The fleet starts the workers, hands them models (segments) and rings, posts steps, hears results, watches process and
 * progress, and after a loss bumps the epoch, reaps, restarts and tells its owner to issue again what was in flight. It
 * knows nothing of jobs or tokens. Loop thread only. docs/epochs.md has the states and times, docs/ring-abi.md the
 * rings and worker.proto. */
#ifndef TDM_DAEMON_FLEET_FLEET_H
#define TDM_DAEMON_FLEET_FLEET_H

#include "common/loop.h"
#include "common/shm.h"
#include "daemon/placement/placement.h"
#include "engine/device/device.h"
#include "engine/device/trace.h"

struct tdm_fleet;

enum tdm_worker_state {
        TDM_WORKER_OFF,      /* TANDEM_NPU=off: its blocks run on the other worker */
        TDM_WORKER_STARTING, /* process and device are coming up, models are being mapped */
        TDM_WORKER_READY,
        TDM_WORKER_RESTARTING, /* lost, or asked to leave: it is being killed or reaped, or waits for its back-off */
        /* It died again and again without finishing a step. It is tried again after a time that grows, and stays
         * quarantined until it has every model. tdm_fleet_restart() ends the quarantine at once. */
        TDM_WORKER_QUARANTINED,
};

struct tdm_fleet_config {
        const char *worker_dir; /* where tandem-{npu,gpu}-worker lie; NULL: beside this executable */
        /* Where a service manager listens for both ({npu,gpu}-worker.socket) and starts them when we connect; NULL:
         * $TANDEM_WORKER_SOCKETS; empty: they are started from here, as children. */
        const char *worker_sockets;
        const char *requested[TDM_N_WORKERS]; /* "auto", "host", "off", …: passed on; NULL: auto */
        /* For the NPU worker's device; see struct tdm_device_config. */
        const char *npu_programs;
        uint64_t npu_memory_bytes;
        const char *npu_format;
        /* For the GPU worker's. */
        const char *gpu_device;
        uint64_t gpu_memory_bytes;
        const char *cpus[TDM_N_WORKERS]; /* CPUs that a worker may use, "0,2-5"; NULL: those of this process */
        unsigned n_threads;              /* of each worker; 0: its own choice */
        uint64_t hang_min_ns;            /* shortest silence that counts as a hang; 0: 500 ms */
        uint64_t control_ns;             /* longest silence that owes an answer to a message; 0: 10 s */
        uint64_t quarantine_ns;          /* first quarantine, each further one is twice as long; 0: 5 s */
};

/* All are called from the loop, never from inside a tdm_fleet_*() call. */
struct tdm_fleet_callbacks {
        /* Steps may be submitted (again), and no worker reads a removed model any more. It does not say which models
         * the workers have; on_model_ready does, and a model that was just added may still be on its way. Where both
         * workers give the same bits, it is called when one of them can go on, and again when the other one has joined
         * (tdm_fleet_worker_is_up). */
        void (*on_ready)(uint32_t epoch, void *userdata);
        /* A worker was lost, or an epoch ended; the listener of steps has heard of it. */
        void (*on_epoch_ended)(void *userdata);
        /* A worker cannot take the model (too big, unsupported by its device); it has been removed from the fleet. */
        void (*on_model_failed)(uint32_t model_id, const struct tdm_error *err, void *userdata);
        /* Every running worker has mapped the model, and its placement is known. Called once after
         * tdm_fleet_add_model(). Of two workers that give the same bits, one that is still starting is not waited for.
         */
        void (*on_model_ready)(uint32_t model_id, void *userdata);
        /* A worker that is a unit of its own has to be killed. We may not signal it, so its manager has to. */
        void (*on_kill_unit)(const char *unit, void *userdata);
};

/* The ends of steps. Their submitter is told from the loop, never from inside a tdm_fleet_*() call. */
struct tdm_fleet_step_events {
        /* A step is done; its results lie in the results segment. */
        void (*done)(uint32_t model_id, uint32_t slot, uint64_t step_id, void *userdata);
        /* A device could not run this step (err) though it is healthy; the step is out of flight. */
        void (*failed)(uint32_t model_id, uint32_t slot, uint64_t step_id, const struct tdm_error *err, void *userdata);
        /* A worker was lost, or an epoch ended. Every step in flight is void, and no worker touches its slot any more
         * once on_ready is called again. guilty_*: the step whose block the lost worker was in, when it is known
         * (model_id 0: it is not). */
        void (*reset)(const char *reason, uint32_t guilty_model, uint32_t guilty_slot, uint64_t guilty_step,
                      void *userdata);
};

/* A model's place in shared memory. The segments stay the caller's and must outlive the model's stay in the fleet
 * (until tdm_fleet_remove_model() and the next on_ready, or the fleet's end). */
struct tdm_fleet_model {
        uint32_t model_id; /* > 0, never reused */
        const char *name;  /* for anybody to read */
        struct tdm_segment *weights;
        unsigned n_sealed; /* of its chunks, at least one; the others: tdm_fleet_weights_sealed() */
        struct tdm_segment *kv;
        /* hidden [TDM_STEP_SLOTS][max_rows][residual_width] f32. Its dma-buf, if any, goes to the GPU worker */
        struct tdm_segment *activations;
        struct tdm_segment *steps; /* formatted; written by the scheduler */
        struct tdm_segment *results;
        struct tdm_kv_geometry kv_geometry;
        struct tdm_steps_layout layout;
        struct tdm_hparams hparams;
        enum tdm_precision precision;
        bool dmabuf_only; /* hidden rows get to a GPU as a dma-buf or not at all */
        struct tdm_device_needs needs;
};

int tdm_fleet_new(struct tdm_fleet **ret, struct tdm_loop *loop, const struct tdm_fleet_config *config,
                  const struct tdm_fleet_callbacks *callbacks, void *userdata, struct tdm_error *err);
/* Kills and reaps the workers (asks them first), blocking for at most 2 s. */
void tdm_fleet_destroy(struct tdm_fleet *fleet);
void tdm_fleet_destroyp(struct tdm_fleet **fleet);

int tdm_fleet_add_model(struct tdm_fleet *fleet, const struct tdm_fleet_model *model, struct tdm_error *err);
/* The first n_chunks of its weights are sealed now. Workers map the sealed chunks at once. Steps of other models may
 * run meanwhile: a model that is still being built does not block readiness. */
void tdm_fleet_weights_sealed(struct tdm_fleet *fleet, uint32_t model_id, unsigned n_chunks);
void tdm_fleet_remove_model(struct tdm_fleet *fleet, uint32_t model_id);

/* What the workers' devices say of memory for one more model with weights_bytes of weights: its KV cache may take at
 * most *ret_bytes of it; UINT64_MAX: they set no limit. A model that a worker leaves to its host device takes nothing
 * of the other one. False: one of them has not come up yet, so it is not known. */
bool tdm_fleet_cache_room(const struct tdm_fleet *fleet, uint64_t weights_bytes, const struct tdm_device_needs *needs,
                          uint64_t *ret_bytes);

/* Whether the GPU worker's device is one that reads all weights in panels. Those of sparse layers, which the host
 * device reads by rows and columns, would then be copied for it. False where it has not come up yet. */
bool tdm_fleet_wants_panels(const struct tdm_fleet *fleet);

bool tdm_fleet_is_ready(const struct tdm_fleet *fleet);
uint32_t tdm_fleet_epoch(const struct tdm_fleet *fleet);

/* The workers as they are now with a model, for daemon/placement/. */
void tdm_fleet_placement_workers(struct tdm_fleet *fleet, uint32_t model_id, struct tdm_placement_workers *ret);
/* Whose bits a worker gives of a model: those of its device, or of the host device that it leaves the model to. */
const char *tdm_fleet_numerics_id(struct tdm_fleet *fleet, enum tdm_worker_index worker, uint32_t model_id);
/* The placement that "measured" now means for a model; TDM_PLACEMENT_SPLIT: the fleet does not know the model. */
enum tdm_placement tdm_fleet_measured(struct tdm_fleet *fleet, uint32_t model_id);
/* The cheapest placement of two workers that differ in bits: what the trial has found, or what was found since.
 * TDM_PLACEMENT_ANY: nothing yet. */
enum tdm_placement tdm_fleet_found(struct tdm_fleet *fleet, uint32_t model_id);
/* Another one is the cheapest now. why: as the log says it. */
void tdm_fleet_set_found(struct tdm_fleet *fleet, uint32_t model_id, enum tdm_placement placement, const char *why);
bool tdm_fleet_is_degraded(const struct tdm_fleet *fleet); /* a worker is quarantined */
/* "npu" or "gpu": the worker whose accelerator is required and cannot be used, so that nothing runs. NULL: none. */
const char *tdm_fleet_missed_name(const struct tdm_fleet *fleet);
/* Steps with blocks on this worker can be submitted now. */
bool tdm_fleet_worker_is_up(const struct tdm_fleet *fleet, enum tdm_worker_index worker);
/* Time that its present process has spent in blocks. */
uint64_t tdm_fleet_busy_ns(const struct tdm_fleet *fleet, enum tdm_worker_index worker);

/* Who submits steps hears what becomes of them. events NULL: nobody does; they are copied otherwise. */
void tdm_fleet_listen(struct tdm_fleet *fleet, const struct tdm_fleet_step_events *events, void *userdata);
/* The slot is written but for its head. Writes the head (its epoch is tdm_fleet_epoch()) and posts the step to the
 * owner of block 0. The fleet goes by this head and does not read it back from the segment. Before the step it sees to
 * it that every worker with attention blocks in the head's plan has the KV segment. -EAGAIN when not ready (on_ready
 * follows). */
int tdm_fleet_submit(struct tdm_fleet *fleet, uint32_t model_id, uint32_t slot, const struct tdm_step_head *head);

/* The results of a step that ended on this worker make no sense: the worker is restarted, and the step is void with the
 * epoch (its submitter hears of a reset). May be called from inside tdm_fleet_step_events.done. */
void tdm_fleet_bad_results(struct tdm_fleet *fleet, enum tdm_worker_index worker);

/* Asks a worker to leave and starts it anew; ends a quarantine. -ENOENT when it is off. */
int tdm_fleet_restart(struct tdm_fleet *fleet, enum tdm_worker_index worker, const char *reason);
/* The same, but nothing is forgiven, and it takes the device that it had or waits for it: for 10 s a device that is not
 * back yet does not count as a death. One in quarantine stays there. */
void tdm_fleet_reopen(struct tdm_fleet *fleet, enum tdm_worker_index worker, const char *reason);

struct tdm_worker_status {
        const char *name; /* "npu", "gpu" */
        const char *requested;
        const char *device;
        const char *detail;
        const char *last_exit;
        const char *sandbox;
        const char *numerics_id;
        const char *reason; /* why "auto" took this device */
        char plan[1024];    /* "MODEL: what runs where", of each model it has */
        struct tdm_device_use {
                /* engine/device/counters.h */
                uint64_t device_macs, host_macs, blocks, submissions, commands, repeats, contexts;
                uint64_t sampled_ns, context_errors;
                uint32_t power_mw, utilisation_permille, temperature_mc, n_contexts;
        } use; /* of its present life */
        enum tdm_worker_state state;
        pid_t pid;
        uint32_t restarts;
        uint64_t started_ns;
        uint64_t busy_ns;
        uint64_t handovers; /* descriptors taken, and how long they lay in the ring */
        uint64_t handover_ns;
        uint64_t waiting_ns;    /* without anything to do */
        uint64_t scratch_bytes; /* of all models */
        struct {
                uint64_t blocks, rows, ns;
        } done[TDM_N_BLOCK_KINDS]; /* summed over all lives of this worker */
};
void tdm_fleet_worker_status(struct tdm_fleet *fleet, enum tdm_worker_index worker, struct tdm_worker_status *ret);
const char *tdm_worker_state_name(enum tdm_worker_state state);
uint64_t tdm_fleet_recoveries(const struct tdm_fleet *fleet);
uint64_t tdm_fleet_model_scratch(struct tdm_fleet *fleet, uint32_t model_id); /* bytes in both workers */

/* What happened, as events (engine/device/trace.h): one track for tandemd itself, one for each worker. */
enum tdm_track { TDM_TRACK_TANDEMD, TDM_TRACK_NPU, TDM_TRACK_GPU, TDM_N_TRACKS };
#define TDM_TRACK_OF(worker) ((enum tdm_track)(TDM_TRACK_NPU + (int)(worker)))

/* A reader's place in the rings; the reader owns it. lost: events of a track that were overwritten before it read them.
 */
struct tdm_fleet_tracer {
        uint64_t cursor[TDM_N_TRACKS];
        uint64_t lost[TDM_N_TRACKS];
        uint32_t life[TDM_N_WORKERS];
};

/* From now on, or from what the rings still hold. */
void tdm_fleet_trace_open(struct tdm_fleet *fleet, bool past, struct tdm_fleet_tracer *ret);
/* The next events of a track, at most max; 0: no more for now. A worker's events are not checked: they hold whatever it
 * wrote. */
size_t tdm_fleet_trace_read(struct tdm_fleet *fleet, struct tdm_fleet_tracer *tracer, enum tdm_track track,
                            struct tdm_trace_event *events, size_t max);

#endif
