/* What tandemd and a worker must agree on besides proto/worker.proto. Both are built from one tree: a difference is a
 * mistake of installation and ends in a clear message, not in a negotiation. */
#ifndef TDM_ENGINE_WORKER_ABI_H
#define TDM_ENGINE_WORKER_ABI_H

#include "common/conn.h"
#include "common/ring.h"
#include "engine/device/progress.h"
#include "engine/weights/weights.h"

#define TDM_WORKER_PROTOCOL 8u
/* One number for everything that lies in shared memory or travels: each part has its bits. */
#define TDM_WORKER_ABI                                                                                                 \
        (TDM_WORKER_PROTOCOL << 24 | TDM_RING_ABI << 18 | TDM_PROGRESS_ABI << 12 | TDM_STEPS_ABI << 6 | TDM_WEIGHTS_ABI)

#define TDM_WORKER_CONTROL_FD 3
/* First byte of a worker that was connected to, so that the kernel says whose it is. */
#define TDM_WORKER_GREETING 'T'
#define TDM_WORKER_MAX_FRAME (64u << 10)
/* Rings of one epoch: every step of every model can be in flight at once and still fits. */
#define TDM_WORKER_RING_ENTRIES 256u
static_assert(TDM_WORKER_RING_ENTRIES >= TDM_PROGRESS_MODELS * TDM_STEP_SLOTS, "a ring never fills up");

#endif
