/* The descriptor ring: one producer process, one consumer process, one memfd, fixed 64-byte descriptors.
 * Layout and memory orders are drawn in docs/ring-abi.md. A ring belongs to one epoch; a new epoch has new rings.
 *
 * The peer is not trusted: a descriptor is copied out once and then looked at; an index that the peer could not have
 * reached is -EPROTO and the ring is dead from then on. Nothing the peer writes can move an access out of the ring.
 *
 * The consumer waits by spinning briefly and then sleeping: on a futex (workers: tdm_ring_wait_any) or on an eventfd
 * (tandemd, whose loop polls it). Which one is fixed when the ring is made. One thread at each end. */
#ifndef TDM_COMMON_RING_H
#define TDM_COMMON_RING_H

#include <assert.h>
#include <stdatomic.h>
#include "common/error.h"

#define TDM_RING_MAGIC UINT32_C(0x474e5254) /* "TRNG" */
#define TDM_RING_ABI 2u

enum tdm_desc_kind {
        TDM_DESC_NONE = 0,
        TDM_DESC_STEP = 1, /* run the step in `slot` from block `block` on; its hidden rows are ready */
        TDM_DESC_DONE = 2, /* worker → tandemd: the step is finished, results are written */
        /* 3 is not used: a worker that cannot run a step sends StepFailed, which has room for a text */
        TDM_DESC_MARK = 4, /* worker → worker: the step, which stays there, has done all blocks before `block` */
};

/* 64 bytes, little-endian, no pointers. Unused bytes are zero. */
struct tdm_desc {
        uint32_t kind;     /* enum tdm_desc_kind */
        uint32_t epoch;    /* must be the ring's */
        uint64_t step_id;  /* never reused within a daemon's life */
        uint32_t model_id; /* as told in worker.proto LOAD */
        uint32_t slot;     /* step slot of that model */
        uint32_t block;    /* next block to run (engine/model/hparams.h numbers them) */
        uint32_t n_rows;
        uint64_t posted_ns; /* CLOCK_MONOTONIC when posted: hand-over time is measured from it */
        uint32_t reserved[6];
};
static_assert(sizeof(struct tdm_desc) == 64, "descriptor layout");

struct tdm_ring;

enum tdm_ring_end { TDM_RING_PRODUCER, TDM_RING_CONSUMER };
enum tdm_ring_wake { TDM_RING_WAKE_FUTEX, TDM_RING_WAKE_EVENTFD };

/* Makes the memfd (sealed) and, for EVENTFD, the eventfd. n_entries is a power of two, 2 … 4096. tandemd calls this for
 * every ring, hands the fds to the two ends and closes its own (or attaches, where it is an end itself). */
int tdm_ring_create(int *ret_memfd, int *ret_eventfd /* -1 for FUTEX */, uint32_t epoch, uint32_t n_entries,
                    enum tdm_ring_wake wake);

/* Maps and checks magic, ABI, size, epoch. Takes the fds on success only. eventfd is -1 for FUTEX rings. */
int tdm_ring_attach(struct tdm_ring **ret, int memfd, int eventfd, enum tdm_ring_end end, uint32_t epoch,
                    struct tdm_error *err);
void tdm_ring_destroy(struct tdm_ring *ring);
void tdm_ring_destroyp(struct tdm_ring **ring);

uint32_t tdm_ring_epoch(const struct tdm_ring *ring);
int tdm_ring_eventfd(const struct tdm_ring *ring);

/* Producer. 0; -EAGAIN when full; -EPROTO when the consumer's index is impossible; -EINVAL when desc has another epoch
 * or no kind. Wakes a sleeping consumer. */
int tdm_ring_push(struct tdm_ring *ring, const struct tdm_desc *desc);
/* Producer: wakes a sleeping consumer before there is a descriptor, because one will come soon. The consumer may spin
 * for it. */
#define TDM_RING_EARLY_WAKE_NS UINT64_C(500000) /* at most this long before the event */
void tdm_ring_wake_early(struct tdm_ring *ring);
/* Consumer. 1 and *ret filled; 0 when empty; -EPROTO when the producer's index is impossible or epoch/kind is wrong. */
int tdm_ring_pop(struct tdm_ring *ring, struct tdm_desc *ret);

/* Consumer of EVENTFD rings: call before going to sleep in poll(); returns true when something came meanwhile (then do
 * not sleep). disarm() after waking (also reads the eventfd). */
bool tdm_ring_arm(struct tdm_ring *ring);
void tdm_ring_disarm(struct tdm_ring *ring);

/* Consumer: spins until pop would return something other than 0. false: it would not within spin_ns. */
bool tdm_ring_spin(struct tdm_ring *ring, uint64_t spin_ns);

/* Consumer of FUTEX rings: waits until one of rings[] (NULLs skipped) has a descriptor or is dead (so that pop says
 * so), *kick differs from kick_seen, or timeout_ns has passed. Spins for spin_ns first. 0: pop may find something,
 * -ETIMEDOUT. n_rings <= 8. Sleeps in futex_waitv; without it (old kernel, sandbox) in short futex waits. */
int tdm_ring_wait_any(struct tdm_ring *const *rings, unsigned n_rings, _Atomic uint32_t *kick, uint32_t kick_seen,
                      uint64_t spin_ns, uint64_t timeout_ns);
/* Wakes a thread of this process that waits with this kick word (increments it). */
void tdm_ring_kick(_Atomic uint32_t *kick);

#endif
