/* Shared by the files of the worker. control.c turns messages into commands, exec.c carries them out and runs steps,
 * worker.c starts and ends. See worker.h for the threads. */
#ifndef TDM_ENGINE_WORKER_PRIVATE_H
#define TDM_ENGINE_WORKER_PRIVATE_H

#include <pthread.h>
#include "common/spin.h"
#include "engine/worker/abi.h"
#include "engine/worker/run-length.h"
#include "engine/worker/sandbox.h"
#include "engine/worker/early-wake.h"
#include "engine/worker/worker.h"

#define TDM_WORKER_EARLY_WAKES 32u

enum tdm_worker_command_kind {
        TDM_WORKER_LOAD,
        TDM_WORKER_WEIGHTS,
        TDM_WORKER_KV,
        TDM_WORKER_UNLOAD,
        TDM_WORKER_EPOCH,
        TDM_WORKER_QUIT,
        TDM_WORKER_PING,
};

/* A segment as told, not yet looked at. */
struct tdm_worker_segment {
        uint64_t size_bytes;
        uint64_t chunk_bytes;
        unsigned n_fds;
        int *fds;      /* [n_fds], owned; -1 where taken */
        int dmabuf_fd; /* owned; -1: none, or taken */
};

enum {
        TDM_WORKER_SEG_WEIGHTS,
        TDM_WORKER_SEG_STEPS,
        TDM_WORKER_SEG_ACTIVATIONS,
        TDM_WORKER_SEG_RESULTS,
        TDM_WORKER_N_SEGS
};
enum {
        TDM_WORKER_RING_FROM_DAEMON,
        TDM_WORKER_RING_TO_DAEMON,
        TDM_WORKER_RING_FROM_PEER,
        TDM_WORKER_RING_TO_PEER,
        TDM_WORKER_N_RINGS
};

/* One message from tandemd, parsed and owned; sizes are still only claims. */
struct tdm_worker_command {
        struct tdm_worker_command *next;
        enum tdm_worker_command_kind kind;
        uint32_t model_id;
        /* LOAD */
        uint32_t index;
        char name[64];
        uint32_t precision;
        uint32_t kv_type;
        uint32_t kv_pages[TDM_KV_POOLS];
        bool dmabuf_only;
        /* KV: the first one; WEIGHTS: fds of the first one alone */
        struct tdm_worker_segment segments[TDM_WORKER_N_SEGS];
        /* PING */
        uint64_t ping;
        /* EPOCH */
        uint32_t epoch;
        bool has_peer;
        int ring_fds[TDM_WORKER_N_RINGS]; /* owned; -1: none */
        int eventfd;
};
void tdm_worker_command_free(struct tdm_worker_command *command);

/* A slot's relay: relay.c. */
struct tdm_worker_relay {
        uint64_t heard_step; /* the peer's newest mark */
        uint32_t heard_block;
        struct tdm_desc unsent; /* our own mark, when the ring was full; kind NONE: none */
        struct tdm_desc parked; /* our own step, which waits for a mark; kind NONE: none */
};

struct tdm_worker_model {
        uint32_t model_id;                       /* 0: free */
        bool loading;                            /* weights are still coming: no step may name it */
        struct tdm_device_model_config config;   /* while it is loading */
        uint64_t begun_ns, begin_ns, weights_ns; /* when it began to, and how long the device took for its parts */
        char name[64];
        struct tdm_segment *segments[TDM_WORKER_N_SEGS];
        struct tdm_segment *kv;
        struct tdm_hparams hparams; /* private copies of what the segments say, checked */
        struct tdm_steps_layout layout;
        struct tdm_kv_geometry geometry;
        struct tdm_device *device; /* that runs it: the worker's, or the host device beside it */
        struct tdm_device_model *device_model;
        char plan[256]; /* why it runs on the host device; "": it does not, or that is the worker's own */
        struct tdm_step *steps[TDM_STEP_SLOTS]; /* private copies of the steps */
        uint64_t step_ids[TDM_STEP_SLOTS];      /* which step each holds; 0: none of this epoch */
        struct tdm_result *drawn;               /* [max_logits]: of a pass of a step with bursts */
        struct tdm_worker_relay relay[TDM_STEP_SLOTS];
        uint64_t n_saturated;                   /* keys and values that its cache could not hold */
        uint32_t blocks_at_once[TDM_RUN_SIZES]; /* of a run(), by the step's rows; 0: not learned yet */
};

struct tdm_worker_stash; /* control.c: fds that came and are not yet asked for */

struct tdm_worker {
        const struct tdm_worker_program *program;
        int control_fd;
        uint64_t spin_max_ns; /* TANDEM_SPIN_US */
        bool wakes_early;     /* that a step is nearly done: its device needs no cores, so tandemd may spin */
        bool wakes_bursts;    /* that a burst is: there are cores enough for tandemd to spin that long */
        struct tdm_sandbox sandbox;

        /* control.c; read by the main thread before the control thread exists, then by that thread alone */
        struct tdm_frame_reader *reader;
        struct tdm_worker_stash *stash;
        pthread_t control_thread;
        bool control_started;

        /* between the threads */
        pthread_mutex_t mailbox_lock;
        struct tdm_worker_command *mailbox_head, **mailbox_tail;
        _Atomic uint32_t kick;      /* bumped when the mailbox has something */
        _Atomic uint32_t announced; /* newest epoch heard of: what runs for an older one is dropped */

        /* executor */
        struct tdm_device *device;
        struct tdm_device *host; /* for the models that it leaves to one; NULL: it leaves none */
        char why_auto[256]; /* why "auto" took it, unless the device says so itself; "" when it was asked for by name */
        struct tdm_segment *progress_segment;
        struct tdm_progress *progress;
        struct tdm_worker_model models[TDM_PROGRESS_MODELS];
        uint32_t newest_model_id; /* ids are never reused: an unknown id up to this one was unloaded */
        struct tdm_ring *rings[TDM_WORKER_N_RINGS];
        uint32_t epoch;
        bool quit;
        struct tdm_spin spin;
        struct tdm_early_wake early_wakes[TDM_WORKER_EARLY_WAKES];
        uint32_t n_parked, n_unsent; /* 0: surely none */
};

/* The contents of the message Init. */
struct tdm_worker_init {
        uint32_t abi;
        uint32_t worker;
        char requested[32];
        uint32_t n_threads;
        char device_name[128];
        char programs[256];
        uint64_t memory_bytes;
        char number_format[16];
        int progress_fd;
};

/* ---- control.c: the only file that knows worker.proto ---- */

int tdm_worker_control_init(struct tdm_worker *worker);
void tdm_worker_control_deinit(struct tdm_worker *worker);
/* Blocks for the first frame. */
int tdm_worker_receive_init(struct tdm_worker *worker, struct tdm_worker_init *ret, struct tdm_error *err);
int tdm_worker_control_start(struct tdm_worker *worker);
/* Next command, or NULL. Owned by the caller. */
struct tdm_worker_command *tdm_worker_take_command(struct tdm_worker *worker);

/* Executor only. A failure means that tandemd is gone: they do not return then. */
void tdm_worker_send_hello(struct tdm_worker *worker);
void tdm_worker_send_no_device(struct tdm_worker *worker, const char *reason);
void tdm_worker_send_weights_taken(struct tdm_worker *worker, const struct tdm_worker_model *model);
void tdm_worker_send_loaded(struct tdm_worker *worker, const struct tdm_worker_model *model);
void tdm_worker_send_load_failed(struct tdm_worker *worker, uint32_t model_id, const struct tdm_error *err);
void tdm_worker_send_kv_ready(struct tdm_worker *worker, uint32_t model_id);
void tdm_worker_send_unloaded(struct tdm_worker *worker, uint32_t model_id);
void tdm_worker_send_epoch_ack(struct tdm_worker *worker, uint32_t epoch);
void tdm_worker_send_ring_fault(struct tdm_worker *worker, uint32_t epoch, unsigned ring, const char *reason);
void tdm_worker_send_step_failed(struct tdm_worker *worker, const struct tdm_desc *desc, const struct tdm_error *err);

/* ---- models.c ---- */

/* Begins to load a model, and ends it where all of its weights are there; else ->loading. *ret may be read until the
 * next call. */
int tdm_worker_model_load(struct tdm_worker *worker, struct tdm_worker_command *command, struct tdm_worker_model **ret,
                          struct tdm_error *err);
/* More of its weights. *ret NULL and 0: there is no such model, which was told before. */
int tdm_worker_model_weights(struct tdm_worker *worker, struct tdm_worker_command *command,
                             struct tdm_worker_model **ret, struct tdm_error *err);
int tdm_worker_model_kv(struct tdm_worker *worker, struct tdm_worker_command *command, struct tdm_error *err);
void tdm_worker_model_unload(struct tdm_worker *worker, uint32_t model_id);
/* A loaded one. */
struct tdm_worker_model *tdm_worker_model_find(struct tdm_worker *worker, uint32_t model_id);

/* ---- relay.c: executor only ---- */

void tdm_worker_relay_reset(struct tdm_worker *worker);
/* All blocks before next_block are done: tells the peer, when the step wants it. */
void tdm_worker_relay_mark(struct tdm_worker *worker, struct tdm_worker_model *model, uint32_t slot,
                           uint32_t next_block);
/* Sends what found the ring full. 0, or the ring is broken. */
int tdm_worker_relay_flush(struct tdm_worker *worker);
/* NULL, or what is wrong with the mark. The slot is in range. */
const char *tdm_worker_relay_hear(struct tdm_worker_model *model, const struct tdm_desc *desc);
/* The first block from `first` on that has to wait; `end`: none. */
uint32_t tdm_worker_relay_stop(const struct tdm_worker_model *model, const struct tdm_step *step, uint32_t first,
                               uint32_t end);
/* The step waits at desc->block, for as long as it has to. */
void tdm_worker_relay_park(struct tdm_worker *worker, struct tdm_worker_model *model, const struct tdm_desc *desc);
/* A parked step that can go on; NULL: none. */
struct tdm_worker_model *tdm_worker_relay_next(struct tdm_worker *worker, struct tdm_desc *ret);

/* ---- exec.c ---- */

/* Runs until tandemd asks to quit. */
int tdm_worker_run(struct tdm_worker *worker);

#endif
