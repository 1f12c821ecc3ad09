/* The trace of a process: what it did last, block by block, in a ring of fixed size in shared memory. It outlives the
 * process, and to write an event takes no system call. A worker writes one behind its progress page. tandemd reads it
 * when a client asks for a trace, and keeps a dead worker's until the next one dies.
 *
 * One thread writes. It never waits and never looks at a reader. Any number of readers follow, each with a cursor of
 * its own. One that is overtaken learns how many events it has missed. Events are numbers; the reader gives them names
 * and a format. Nothing is decided by them, so a worker that lies here misleads only the person who reads. */
#ifndef TDM_ENGINE_DEVICE_TRACE_H
#define TDM_ENGINE_DEVICE_TRACE_H

#include <assert.h>
#include <stdatomic.h>
#include "common/util.h"

#define TDM_TRACE_EVENTS 16384u /* a power of two */

/* The wire has the same numbers (proto/tandem.proto says what each carries). */
enum tdm_trace_kind {
        TDM_TRACE_NONE = 0,
        TDM_TRACE_BLOCK_BEGIN = 1,
        TDM_TRACE_BLOCK_END = 2,
        TDM_TRACE_TAKEN = 3,     /* a descriptor was popped; arg: ns since it was posted */
        TDM_TRACE_HANDED_ON = 4, /* to the peer, before block and layer */
        TDM_TRACE_WAIT_BEGIN = 5,
        TDM_TRACE_WAIT_END = 6,
        /* tandemd's */
        TDM_TRACE_STEP_POSTED = 7,  /* arg: model id */
        TDM_TRACE_STEP_DONE = 8,    /* the same */
        TDM_TRACE_STEP_FAILED = 9,  /* the same */
        TDM_TRACE_EPOCH = 10,       /* arg: the new epoch; what was in flight is void */
        TDM_TRACE_WORKER_LOST = 11, /* arg: track */
        TDM_TRACE_WORKER_START = 12,
        TDM_TRACE_READY = 13, /* arg: epoch */
        TDM_TRACE_N_KINDS
};

struct tdm_trace_event {
        uint64_t time_ns; /* CLOCK_MONOTONIC */
        uint64_t step;
        uint32_t kind;  /* enum tdm_trace_kind; 8 bits */
        uint32_t block; /* enum tdm_block_kind; 4 bits */
        bool from_peer; /* TAKEN: from the other worker */
        uint32_t layer; /* 16 bits */
        uint32_t rows;
        uint64_t arg;
};

struct tdm_trace_entry {
        _Atomic uint64_t time_ns;
        _Atomic uint64_t step;
        _Atomic uint64_t what; /* kind | block << 8 | from_peer << 12 | layer << 16 | rows << 32 */
        _Atomic uint64_t arg;
};

/* Zeroed memory is an empty ring. */
struct tdm_trace_ring {
        _Atomic uint64_t written; /* events ever; event i lies in entry i mod TDM_TRACE_EVENTS */
        uint8_t pad[56];
        struct tdm_trace_entry entries[TDM_TRACE_EVENTS];
};
static_assert(sizeof(struct tdm_trace_entry) == 32, "trace layout");
static_assert(offsetof(struct tdm_trace_ring, entries) == 64, "trace layout");
static_assert((TDM_TRACE_EVENTS & (TDM_TRACE_EVENTS - 1)) == 0, "entries are found by a mask");

#define TDM_TRACE_BYTES TDM_ALIGN_UP((uint64_t)sizeof(struct tdm_trace_ring), UINT64_C(4096))

/* Makes an empty ring of memory of any content, before anybody else has it. Writes to all of it: the ring then has its
 * pages from the beginning, and a process does not seem to grow while its ring fills for the first time. */
void tdm_trace_ring_init(struct tdm_trace_ring *ring);

/* The writer's only call. Five plain stores on x86.
 *
 * The memory orders: (1) `written` is stored with release after the entry, and read with acquire by a reader before the
 * entry: what it counts as written, it sees. (2) The entry's words are stored with release and read with acquire: a
 * reader that sees a word of event i also sees that `written` was at least i when it looks again afterwards, and so
 * knows that the entry was being written over. */
static inline void tdm_trace_add(struct tdm_trace_ring *ring, const struct tdm_trace_event *event)
{
        uint64_t i = atomic_load_explicit(&ring->written, memory_order_relaxed);
        struct tdm_trace_entry *entry = &ring->entries[i & (TDM_TRACE_EVENTS - 1)];
        uint64_t what = (event->kind & 0xff) | (uint64_t)(event->block & 0xf) << 8 | (uint64_t)event->from_peer << 12 |
                        (uint64_t)(event->layer & 0xffff) << 16 | (uint64_t)event->rows << 32;

        atomic_store_explicit(&entry->time_ns, event->time_ns, memory_order_release);
        atomic_store_explicit(&entry->step, event->step, memory_order_release);
        atomic_store_explicit(&entry->what, what, memory_order_release);
        atomic_store_explicit(&entry->arg, event->arg, memory_order_release);
        atomic_store_explicit(&ring->written, i + 1, memory_order_release);
}

/* A cursor at the next event to come; or, with past, at the oldest that is still held. */
uint64_t tdm_trace_cursor(const struct tdm_trace_ring *ring, bool past);
/* Copies the next events, at most max, and moves the cursor behind them; returns how many. *lost grows by the number of
 * events that were overwritten before they could be copied. The ring's writer is not trusted: whatever stands in it, no
 * more than its entries are looked at. A writer that counts backwards has its cursor put to where it is now. */
size_t tdm_trace_read(const struct tdm_trace_ring *ring, uint64_t *cursor, struct tdm_trace_event *events, size_t max,
                      uint64_t *lost);

#endif
