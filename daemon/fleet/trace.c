/* Traces: tandemd's own events, and reading those of the workers.
 *
 * A reader has cursors and nothing else, so readers come and go without the fleet knowing them. A worker's ring belongs
 * to one life of it. When the life ends, its segment is kept until the next life has ended too, so that a reader sees
 * what the worker did last. A reader that is slower than two deaths misses the events between them. */
#include "daemon/fleet/private.h"

void tdm_fleet_trace(struct tdm_fleet *f, enum tdm_trace_kind kind, uint64_t step, uint32_t rows, uint64_t arg)
{
        const struct tdm_trace_event event = {
                .time_ns = tdm_now_ns(), .kind = kind, .step = step, .rows = rows, .arg = arg
        };

        tdm_trace_add(f->trace, &event);
}

static const struct tdm_trace_ring *dead_ring(const struct tdm_fleet_worker *w)
{
        return w->dead_segment ? tdm_progress_trace((struct tdm_progress *)w->dead_segment->base) : NULL;
}

void tdm_fleet_keep_trace(struct tdm_fleet_worker *w)
{
        if (!w->progress_segment)
                return;
        tdm_segment_destroy(w->dead_segment);
        w->dead_segment = steal_ptr(&w->progress_segment);
        w->dead_life = w->life;
}

void tdm_fleet_trace_open(struct tdm_fleet *f, bool past, struct tdm_fleet_tracer *ret)
{
        memset(ret, 0, sizeof(*ret));
        ret->cursor[TDM_TRACK_TANDEMD] = tdm_trace_cursor(f->trace, past);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                const struct tdm_fleet_worker *w = &f->workers[i];

                ret->life[i] = w->life;
                if (past && w->dead_segment) {
                        ret->life[i] = w->dead_life;
                        ret->cursor[TDM_TRACK_OF(i)] = tdm_trace_cursor(dead_ring(w), true);
                } else if (w->progress) {
                        ret->cursor[TDM_TRACK_OF(i)] = tdm_trace_cursor(tdm_progress_trace(w->progress), past);
                } else if (w->dead_segment) {
                        ret->cursor[TDM_TRACK_OF(i)] = tdm_trace_cursor(dead_ring(w), false);
                }
        }
}

static size_t read_worker(const struct tdm_fleet_worker *w, struct tdm_fleet_tracer *tracer,
                          struct tdm_trace_event *events, size_t max)
{
        uint64_t *cursor = &tracer->cursor[TDM_TRACK_OF(w->index)], *lost = &tracer->lost[TDM_TRACK_OF(w->index)];
        uint32_t *life = &tracer->life[w->index];
        size_t n;

        if (w->dead_segment && *life <= w->dead_life) {
                if (*life < w->dead_life)
                        *cursor = 0;
                *life = w->dead_life;
                n = tdm_trace_read(dead_ring(w), cursor, events, max, lost);
                if (n > 0)
                        return n;
        }
        if (!w->progress)
                return 0;
        if (*life < w->life)
                *cursor = 0;
        *life = w->life;
        return tdm_trace_read(tdm_progress_trace(w->progress), cursor, events, max, lost);
}

size_t tdm_fleet_trace_read(struct tdm_fleet *f, struct tdm_fleet_tracer *tracer, enum tdm_track track,
                            struct tdm_trace_event *events, size_t max)
{
        if (track == TDM_TRACK_TANDEMD)
                return tdm_trace_read(f->trace, &tracer->cursor[track], events, max, &tracer->lost[track]);
        return read_worker(&f->workers[track - TDM_TRACK_NPU], tracer, events, max);
}
