/* Reading a ring that is being written: copy, then look how far the writer has come meanwhile and drop what it may have
 * written over. The reader never keeps the writer from anything, so it may lose events; it never shows torn ones. */
#include "engine/device/trace.h"

void tdm_trace_ring_init(struct tdm_trace_ring *ring)
{
        atomic_store_explicit(&ring->written, UINT64_C(0), memory_order_relaxed);
        for (unsigned i = 0; i < TDM_TRACE_EVENTS; i++) {
                struct tdm_trace_entry *entry = &ring->entries[i];

                /* Stores and not memset(): a compiler may make one calloc() of malloc() and memset(), whose pages come
                 * later. Relaxed: how the ring is handed to others orders these before what they do. */
                atomic_store_explicit(&entry->time_ns, UINT64_C(0), memory_order_relaxed);
                atomic_store_explicit(&entry->step, UINT64_C(0), memory_order_relaxed);
                atomic_store_explicit(&entry->what, UINT64_C(0), memory_order_relaxed);
                atomic_store_explicit(&entry->arg, UINT64_C(0), memory_order_relaxed);
        }
}

static uint64_t oldest(uint64_t written)
{
        /* The writer may be in the middle of event `written`, whose entry still held an older one: that one is lost. */
        return written < TDM_TRACE_EVENTS ? 0 : written - TDM_TRACE_EVENTS + 1;
}

uint64_t tdm_trace_cursor(const struct tdm_trace_ring *ring, bool past)
{
        uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);

        return past ? oldest(written) : written;
}

static void read_entry(const struct tdm_trace_entry *entry, struct tdm_trace_event *ret)
{
        /* Acquire: pairs with the releases in tdm_trace_add() (2), and keeps the next look at `written` behind them. */
        uint64_t what = atomic_load_explicit(&entry->what, memory_order_acquire);

        ret->time_ns = atomic_load_explicit(&entry->time_ns, memory_order_acquire);
        ret->step = atomic_load_explicit(&entry->step, memory_order_acquire);
        ret->arg = atomic_load_explicit(&entry->arg, memory_order_acquire);
        ret->kind = (uint32_t)(what & 0xff);
        ret->block = (uint32_t)(what >> 8 & 0xf);
        ret->from_peer = (what >> 12 & 1) != 0;
        ret->layer = (uint32_t)(what >> 16 & 0xffff);
        ret->rows = (uint32_t)(what >> 32);
}

size_t tdm_trace_read(const struct tdm_trace_ring *ring, uint64_t *cursor, struct tdm_trace_event *events, size_t max,
                      uint64_t *lost)
{
        uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire), first = *cursor, kept;
        size_t n;

        if (written < first) {
                *cursor = written;
                return 0;
        }
        if (first < oldest(written)) {
                *lost += oldest(written) - first;
                first = oldest(written);
        }
        n = (size_t)TDM_MIN(written - first, (uint64_t)max);
        for (size_t i = 0; i < n; i++)
                read_entry(&ring->entries[(first + i) & (TDM_TRACE_EVENTS - 1)], &events[i]);
        *cursor = first + n;

        written = atomic_load_explicit(&ring->written, memory_order_acquire);
        kept = oldest(written);
        if (kept > first) { /* overtaken while copying */
                size_t gone = (size_t)TDM_MIN(kept - first, (uint64_t)n);

                *lost += gone;
                n -= gone;
                memmove(events, events + gone, n * sizeof(*events));
        }
        return n;
}
