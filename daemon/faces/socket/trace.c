/* Traces for clients: the rings of events, read a few dozen times a second and sent on while a client listens.
 *
 * Nothing is kept here: an event is read when there is room to send it, and when the client does not read, the rings go
 * round and what was missed is counted. So a trace costs a fixed amount however long it is. It tells how long every
 * step of everybody took, so it is for root and the daemon's own user. */
#include "daemon/faces/socket/private.h"

#define TICK_NS (20 * TDM_NSEC_PER_MSEC)
#define CHUNK_EVENTS 512u
#define MAX_DURATION_MS (10u * 60u * 1000u)
#define MAX_TRACES 4u /* of all clients: each one reads every event */

struct face_trace {
        struct request *request;
        struct tdm_source *timer;
        struct tdm_fleet_tracer tracer;
        uint64_t end_ns;
};

static_assert((int)TDM_TRACE_BLOCK_BEGIN == TANDEM__TRACE_KIND__TRACE_BLOCK_BEGIN &&
                      (int)TDM_TRACE_BLOCK_END == TANDEM__TRACE_KIND__TRACE_BLOCK_END &&
                      (int)TDM_TRACE_TAKEN == TANDEM__TRACE_KIND__TRACE_TAKEN &&
                      (int)TDM_TRACE_HANDED_ON == TANDEM__TRACE_KIND__TRACE_HANDED_ON &&
                      (int)TDM_TRACE_WAIT_BEGIN == TANDEM__TRACE_KIND__TRACE_WAIT_BEGIN &&
                      (int)TDM_TRACE_WAIT_END == TANDEM__TRACE_KIND__TRACE_WAIT_END &&
                      (int)TDM_TRACE_STEP_POSTED == TANDEM__TRACE_KIND__TRACE_STEP_POSTED &&
                      (int)TDM_TRACE_STEP_DONE == TANDEM__TRACE_KIND__TRACE_STEP_DONE &&
                      (int)TDM_TRACE_STEP_FAILED == TANDEM__TRACE_KIND__TRACE_STEP_FAILED &&
                      (int)TDM_TRACE_EPOCH == TANDEM__TRACE_KIND__TRACE_EPOCH &&
                      (int)TDM_TRACE_WORKER_LOST == TANDEM__TRACE_KIND__TRACE_WORKER_LOST &&
                      (int)TDM_TRACE_WORKER_START == TANDEM__TRACE_KIND__TRACE_WORKER_START &&
                      (int)TDM_TRACE_READY == TANDEM__TRACE_KIND__TRACE_READY,
              "events have the wire's numbers");
static_assert((int)TDM_TRACK_TANDEMD == TANDEM__TRACE_TRACK__TRACK_TANDEMD &&
                      (int)TDM_TRACK_NPU == TANDEM__TRACE_TRACK__TRACK_NPU &&
                      (int)TDM_TRACK_GPU == TANDEM__TRACE_TRACK__TRACK_GPU,
              "tracks have the wire's numbers");

/* Scratch for one chunk; the loop has one thread. */
struct chunk_scratch {
        struct tdm_trace_event raw[CHUNK_EVENTS];
        Tandem__TraceEvent events[CHUNK_EVENTS], *list[CHUNK_EVENTS];
};

static void send_chunk(struct face_trace *trace, enum tdm_track track, struct chunk_scratch *s, size_t n, bool last)
{
        struct client *c = trace->request->client;
        Tandem__Reply reply = TANDEM__REPLY__INIT;
        Tandem__TraceChunk chunk = TANDEM__TRACE_CHUNK__INIT;

        for (size_t i = 0; i < n; i++) {
                Tandem__TraceEvent *e = &s->events[i];

                tandem__trace_event__init(e);
                e->time_ns = s->raw[i].time_ns;
                e->kind = (Tandem__TraceKind)s->raw[i].kind;
                e->step = s->raw[i].step;
                e->block = s->raw[i].block;
                e->layer = s->raw[i].layer;
                e->rows = s->raw[i].rows;
                e->arg = s->raw[i].arg;
                e->from_peer = s->raw[i].from_peer;
                s->list[i] = e;
        }
        chunk.track = (Tandem__TraceTrack)track;
        chunk.lost = trace->tracer.lost[track];
        chunk.last = last;
        chunk.n_events = n;
        chunk.events = n ? s->list : NULL;
        reply.kind_case = TANDEM__REPLY__KIND_TRACE;
        reply.trace = &chunk;
        face_send(c, trace->request->id, &reply);
}

/* Sends what there is, as far as the client reads. True when nothing is left. */
static bool drain(struct face_trace *trace)
{
        static struct chunk_scratch scratch;
        struct client *c = trace->request->client;

        for (unsigned track = 0; track < TDM_N_TRACKS; track++) {
                /* A ring's worth at most: a writer must not be able to keep us here. */
                for (size_t left = TDM_TRACE_EVENTS; left > 0;) {
                        size_t n;

                        if (tdm_conn_queued_bytes(c->conn) > PAUSE_BYTES)
                                return false;
                        n = tdm_fleet_trace_read(c->face->fleet, &trace->tracer, (enum tdm_track)track, scratch.raw,
                                                 TDM_MIN(left, (size_t)CHUNK_EVENTS));
                        if (n == 0)
                                break;
                        send_chunk(trace, (enum tdm_track)track, &scratch, n, false);
                        left -= n;
                }
        }
        return true;
}

static void trace_finish(struct face_trace *trace)
{
        /* Each track is told what was lost, because its last chunk may have been sent before the loss. */
        for (unsigned track = 0; track < TDM_N_TRACKS; track++)
                send_chunk(trace, (enum tdm_track)track, NULL, 0, track + 1 == TDM_N_TRACKS);
        request_free(trace->request);
}

static int on_trace_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct face_trace *trace = userdata;
        struct client *c = trace->request->client;
        bool drained;

        if (!c->face->fleet || c->finishing) {
                trace_finish(trace);
                return 0;
        }
        drained = !c->paused && drain(trace);
        if (!drained)
                face_mind_queue(c, NULL); /* one that never reads again is hung up on there */
        if (drained && now_ns >= trace->end_ns)
                trace_finish(trace);
        else
                tdm_source_arm(trace->timer, now_ns + TICK_NS);
        return 0;
}

void face_trace_free(struct face_trace *trace)
{
        if (!trace)
                return;
        trace->request->client->face->n_traces--;
        tdm_source_destroy(trace->timer);
        free(trace);
}

int face_trace_start(struct request *request, uint32_t duration_ms, bool past, struct tdm_error *err)
{
        struct tdm_face *face = request->client->face;
        struct face_trace *trace;
        int r;

        trace = calloc(1, sizeof(*trace));
        if (!trace)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = tdm_loop_add_timer(face->loop, on_trace_tick, trace, &trace->timer);
        if (r < 0) {
                free(trace);
                return tdm_error_set(err, r, "cannot make a timer: %s", strerror(-r));
        }
        trace->request = request;
        request->trace = trace;
        face->n_traces++;
        tdm_fleet_trace_open(face->fleet, past, &trace->tracer);
        trace->end_ns = tdm_now_ns() + duration_ms * TDM_NSEC_PER_MSEC;
        /* The past is written over while one waits. */
        tdm_source_arm(trace->timer, past ? 1 : TDM_MIN(tdm_now_ns() + TICK_NS, trace->end_ns));
        return 0;
}

int face_trace_check(struct client *c, uint32_t duration_ms, struct tdm_error *err)
{
        if (!client_is_admin(c))
                return tdm_error_set(err, TDM_E_DENIED,
                                     "only root or the daemon's own user may trace: a trace shows "
                                     "everybody's steps");
        if (duration_ms > MAX_DURATION_MS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a trace of %u ms is longer than %u ms", duration_ms,
                                     MAX_DURATION_MS);
        if (!c->face->fleet)
                return tdm_error_set(err, TDM_E_NO_WORKER, "no worker has been started");
        if (c->face->n_traces >= MAX_TRACES)
                return tdm_error_set(err, TDM_E_BUSY, "%u traces are being taken already", c->face->n_traces);
        return 0;
}

void face_trace_stop(struct face_trace *trace)
{
        trace->end_ns = 0;
        tdm_source_arm(trace->timer, 1);
}
