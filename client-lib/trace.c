/* Traces: events as they come, handed on one by one. Nothing is kept but how many were lost, so that a trace of any
 * length costs no memory here. The handle owns its request: freed early, it asks the daemon to stop and what still
 * comes finds no trace. */
#include "client-lib/internal.h"

#define N_TRACKS 3

struct tandem_trace {
        struct call call;
        struct tandem *tandem; /* NULL once done */
        void (*on_event)(const struct tandem_trace_event *event, void *userdata);
        void *userdata;
        uint64_t lost[N_TRACKS];
        struct tandem_error error;
        bool done, stop_sent;
};

static struct tandem_trace *trace_of(struct call *call)
{
        return (struct tandem_trace *)((char *)call - offsetof(struct tandem_trace, call));
}

static const char *block_name(uint32_t block)
{
        static const char *const names[] = { "embed", "attention", "ffn", "head", "sample" };

        return block < TDM_ARRAY_SIZE(names) ? names[block] : "";
}

static bool is_block(int kind)
{
        return kind >= TANDEM_TRACE_BLOCK_BEGIN && kind <= TANDEM_TRACE_HANDED_ON;
}

static void finish_trace(struct tandem_trace *trace)
{
        if (trace->call.linked)
                lib_call_unlink(trace->tandem, &trace->call);
        trace->tandem = NULL;
        trace->done = true;
}

static void got_chunk(struct tandem_trace *trace, const Tandem__TraceChunk *chunk)
{
        if ((unsigned)chunk->track < N_TRACKS)
                trace->lost[chunk->track] = chunk->lost;
        for (size_t i = 0; i < chunk->n_events && !trace->done; i++) { /* a callback may close the connection */
                const Tandem__TraceEvent *wire = chunk->events[i];
                struct tandem_trace_event event = {
                        .time_ns = wire->time_ns,
                        .track = (int)chunk->track,
                        .kind = (int)wire->kind,
                        .step = wire->step,
                        .block = is_block((int)wire->kind) ? block_name(wire->block) : "",
                        .layer = wire->layer,
                        .rows = wire->rows,
                        .arg = wire->arg,
                        .from_peer = wire->from_peer,
                };

                trace->on_event(&event, trace->userdata);
        }
        if (chunk->last && !trace->done)
                finish_trace(trace);
}

static bool on_reply(struct call *call, Tandem__Reply *reply)
{
        struct tandem_trace *trace = trace_of(call);

        switch (reply->kind_case) {
        case TANDEM__REPLY__KIND_TRACE:
                got_chunk(trace, reply->trace);
                break;
        case TANDEM__REPLY__KIND_ERROR:
                lib_error_from_wire(&trace->error, reply->error);
                finish_trace(trace);
                break;
        case TANDEM__REPLY__KIND__NOT_SET:
                break; /* something newer */
        default:
                lib_protocol_error(trace->tandem, "it answered a trace with a reply of kind %d", (int)reply->kind_case);
                break;
        }
        return false;
}

static void on_lost(struct call *call, const struct tandem_error *err, bool silent)
{
        struct tandem_trace *trace = trace_of(call);

        lib_error_copy(&trace->error, err);
        finish_trace(trace);
}

void tandem_trace_options_init_sized(struct tandem_trace_options *options, size_t size)
{
        struct tandem_trace_options full = { .struct_size = size, .duration_ms = 5000 };

        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

int tandem_trace_start(struct tandem *t, const struct tandem_trace_options *given,
                       void (*on_event)(const struct tandem_trace_event *event, void *userdata), void *userdata,
                       struct tandem_trace **ret, struct tandem_error *err)
{
        _cleanup_(freep) struct tandem_trace *trace = NULL;
        struct tandem_trace_options o;
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Trace wire = TANDEM__TRACE__INIT;
        int code;

        tandem_trace_options_init(&o);
        if (given)
                memcpy(&o, given, TDM_MIN(given->struct_size, sizeof(o)));
        if (!on_event)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "a trace needs a callback for its events");
        trace = calloc(1, sizeof(*trace));
        if (!trace)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a trace");
        trace->call = (struct call){ .on_reply = on_reply, .on_lost = on_lost };
        trace->tandem = t;
        trace->on_event = on_event;
        trace->userdata = userdata;
        wire.duration_ms = o.duration_ms;
        wire.past = o.past;
        request.kind_case = TANDEM__REQUEST__KIND_TRACE;
        request.trace = &wire;
        code = lib_send(t, &request, -1, &trace->call, err);
        if (code != TANDEM_OK)
                return code;
        *ret = steal_ptr(&trace);
        return TANDEM_OK;
}

int tandem_trace_stop(struct tandem_trace *trace)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__StopTrace wire = TANDEM__STOP_TRACE__INIT;
        int code;

        if (trace->done || trace->stop_sent)
                return TANDEM_OK;
        wire.request = trace->call.id;
        request.kind_case = TANDEM__REQUEST__KIND_STOP_TRACE;
        request.stop_trace = &wire;
        code = lib_send(trace->tandem, &request, -1, NULL, NULL);
        trace->stop_sent = code == TANDEM_OK;
        return code;
}

bool tandem_trace_done(const struct tandem_trace *trace)
{
        return trace->done;
}

const struct tandem_error *tandem_trace_error(const struct tandem_trace *trace)
{
        return trace->error.code != TANDEM_OK ? &trace->error : NULL;
}

uint64_t tandem_trace_lost(const struct tandem_trace *trace, int track)
{
        return track >= 0 && track < N_TRACKS ? trace->lost[track] : 0;
}

void tandem_trace_free(struct tandem_trace *trace)
{
        if (!trace)
                return;
        (void)tandem_trace_stop(trace);
        if (!trace->done)
                finish_trace(trace);
        free(trace);
}
