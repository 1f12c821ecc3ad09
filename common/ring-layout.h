/* What lies in a ring's memfd, byte by byte (drawn in docs/ring-abi.md), and the hooks that tests of the ring need.
 * Only ring.c and its tests include this; all other files include common/ring.h. */
#ifndef TDM_COMMON_RING_LAYOUT_H
#define TDM_COMMON_RING_LAYOUT_H

#include "common/ring.h"

#define TDM_RING_MIN_ENTRIES 2u
#define TDM_RING_MAX_ENTRIES 4096u

/* One writer per cache line. The maker writes the header line before it hands the fd to another process. */
struct tdm_ring_shared {
        /* line 0: header */
        uint32_t magic;
        uint32_t abi;
        uint32_t n_entries;
        uint32_t entry_bytes;
        uint32_t epoch;
        uint32_t wake;       /* enum tdm_ring_wake */
        uint64_t size_bytes; /* of the memfd, which is sealed to it */
        uint8_t pad0[32];

        /* line 1: written by the producer */
        _Atomic uint32_t produced; /* descriptors ever posted, mod 2^32; the futex word of a FUTEX ring */
        uint8_t pad1[60];

        /* line 2: written by the consumer at every pop */
        _Atomic uint32_t consumed; /* descriptors ever taken, mod 2^32 */
        uint8_t pad2[60];

        /* line 3: written by the consumer when it goes to sleep and when it has woken */
        _Atomic uint32_t sleep_seq; /* odd: asleep or about to be; each sleep has a number of its own */
        uint8_t pad3[60];

        struct tdm_desc entries[];
};
static_assert(offsetof(struct tdm_ring_shared, magic) == 0, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, abi) == 4, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, n_entries) == 8, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, entry_bytes) == 12, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, epoch) == 16, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, wake) == 20, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, size_bytes) == 24, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, produced) == 64, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, consumed) == 128, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, sleep_seq) == 192, "ring layout");
static_assert(offsetof(struct tdm_ring_shared, entries) == 256, "ring layout");
static_assert(sizeof(_Atomic uint32_t) == 4 && ATOMIC_INT_LOCK_FREE == 2, "indices are plain words");
static_assert(offsetof(struct tdm_desc, step_id) == 8, "descriptor layout");
static_assert(offsetof(struct tdm_desc, posted_ns) == 32, "descriptor layout");
static_assert(offsetof(struct tdm_desc, reserved) == 40, "descriptor layout");

/* For tests: the shared memory, to scribble on as a hostile peer would. */
struct tdm_ring_shared *tdm_ring_shared(struct tdm_ring *ring);
/* For tests: true makes tdm_ring_wait_any() behave as on a kernel or in a sandbox without futex_waitv. */
void tdm_ring_without_waitv(bool without);
/* For tests: sets the index of this end, as after long use. The other end must be set alike. */
void tdm_ring_set_indices(struct tdm_ring *ring, uint32_t index);
/* For tests: both ends on one mapping, that of `other`, which must live longer. ThreadSanitizer knows memory by its
 * virtual address and cannot see that two mappings of one memfd are the same words. */
void tdm_ring_borrow_mapping(struct tdm_ring *ring, struct tdm_ring *other);

#endif
