/* tandem trace: what tandemd and its workers did, written in Chrome's trace format (Perfetto, chrome://tracing), and a
 * few sentences about it on stderr.
 *
 * One track for each worker with its blocks, one beside it with the times it waited, and tandemd's with epochs and
 * losses; steps are bars of their own from post to result, because several may be under way. A hand-over from worker to
 * worker is an arrow. Events go out as they come; in memory stay one pair of times for each block, for the sum of the
 * gaps. Events are whatever a worker wrote: what does not fit (an end without its beginning, time going backwards) is
 * left out, so that blocks of a track never overlap. */
#include "client-lib/cli/cli.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/stat.h>
#include "common/grow.h"

#define N_TRACKS 3
#define MAX_EVENTS (UINT64_C(20) << 20) /* a file of some gigabytes; nothing opens more */
#define WRITE_BYTES ((size_t)64 << 10)
#define LAST_EVENTS_NS (2 * TDM_NSEC_PER_SEC) /* how long they may take after Ctrl-C */

static const char *const track_names[N_TRACKS] = { "tandemd", "npu worker", "gpu worker" };

struct span {
        uint64_t from, to;
};

struct spans {
        struct span *items; /* disjoint, rising */
        size_t n, capacity;
};

struct track {
        bool in_block, in_wait;
        struct tandem_trace_event block; /* the one that began last */
        uint64_t wait_from, last_ns;     /* last_ns: blocks end no later than this */
        uint64_t first_ns;
        struct spans blocks;
        struct spans waits;
        bool waited_before;                /* its first event was the end of a wait */
        uint64_t taken_ns;                 /* of the TAKEN before the block; 0: none */
        uint64_t n_handovers, handover_ns; /* from the other worker */
        uint64_t n_from_daemon, from_daemon_ns;
        uint64_t flow; /* TAKEN from the peer: arrow that ends in the next block; 0: none */
};

/* A step that is under way. */
struct open_step {
        uint64_t step, from;
        uint32_t rows;
};

/* The time between a step and the one after it. Times are 0 where nothing was heard of them. */
struct turn {
        uint64_t step, before; /* before: the step that was done when this one was posted, alone; 0: none */
        uint64_t posted, taken, drawing, drawn, done;
};
#define TURNS_KEPT 1024u               /* the newest steps */
#define TURN_IDLE_NS TDM_NSEC_PER_MSEC /* posted this much later: there was nothing to do */

struct recording {
        const char *path;
        int fd;
        struct buf out;
        bool failed; /* told already */
        bool full, past;
        uint64_t began_ns, ended_ns; /* the time that was recorded; ended_ns 0: only the past was */
        uint64_t n_events, n_bytes, n_records;
        uint64_t n_shown; /* records that are no metadata: what the file says that it has */
        struct track tracks[N_TRACKS];
        struct open_step steps[64];
        unsigned n_steps;
        struct spans flying; /* at least one step under way */
        uint64_t flying_from;
        uint64_t n_done, n_failed, n_epochs, n_lost;
        struct turn turns[TURNS_KEPT]; /* of step i: i % TURNS_KEPT */
        uint64_t last_done;            /* step; 0: none */
};

/* ---- spans ------------------------------------------------------------------------------------------------------- */

static bool span_add(struct spans *s, uint64_t from, uint64_t to)
{
        if (s->n > 0 && s->items[s->n - 1].to == from) {
                s->items[s->n - 1].to = to;
                return true;
        }
        if (tdm_grow(&s->items, &s->capacity, s->n + 1, 1024, sizeof(*s->items)) < 0)
                return false;
        s->items[s->n++] = (struct span){ from, to };
        return true;
}

static uint64_t sum_since(const struct spans *s, uint64_t from)
{
        uint64_t sum = 0;

        for (size_t i = 0; i < s->n; i++)
                if (s->items[i].to > from)
                        sum += s->items[i].to - TDM_MAX(s->items[i].from, from);
        return sum;
}

/* Time since `from` in which steps were under way and no worker ran a block. */
static uint64_t gap_ns(const struct recording *r, uint64_t from)
{
        const struct spans *a = &r->tracks[TANDEM_TRACK_NPU].blocks, *b = &r->tracks[TANDEM_TRACK_GPU].blocks;
        size_t i = 0, k = 0;
        uint64_t gap = 0;

        for (size_t f = 0; f < r->flying.n; f++) {
                uint64_t at = TDM_MAX(r->flying.items[f].from, from), end = r->flying.items[f].to;

                while (at < end) {
                        while (i < a->n && a->items[i].to <= at)
                                i++;
                        while (k < b->n && b->items[k].to <= at)
                                k++;
                        if (i < a->n && a->items[i].from <= at) {
                                at = a->items[i].to;
                        } else if (k < b->n && b->items[k].from <= at) {
                                at = b->items[k].to;
                        } else {
                                uint64_t next = end;

                                if (i < a->n)
                                        next = TDM_MIN(next, a->items[i].from);
                                if (k < b->n)
                                        next = TDM_MIN(next, b->items[k].from);
                                gap += next - at;
                                at = next;
                        }
                }
        }
        return gap;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void flush_recording(struct recording *r)
{
        size_t done = 0;

        if (r->out.failed && !r->failed) {
                r->failed = true;
                complain("no memory for the trace");
        }
        while (done < r->out.size && !r->failed) {
                ssize_t n = write(r->fd, r->out.data + done, r->out.size - done);

                if (n >= 0) {
                        done += (size_t)n;
                } else if (errno != EINTR) {
                        r->failed = true;
                        complain("cannot write %s: %s", r->path, strerror(errno));
                }
        }
        r->n_bytes += done;
        r->out.size = 0;
}

/* Begins a record; the caller adds fields and calls record_end(). Times are microseconds. */
static struct buf *record_event(struct recording *r, const char *phase, const char *name, unsigned track,
                                uint64_t time_ns)
{
        struct buf *b = &r->out;

        if (r->out.size > WRITE_BYTES)
                flush_recording(r);
        r->n_shown += strcmp(phase, "M") != 0;
        buf_printf(b, "%s\n{", r->n_records++ ? "," : "");
        json_field_string(b, "ph", phase);
        json_field_string(b, "name", name);
        buf_printf(b, ",\"pid\":1,\"tid\":%u", track + 1);
        if (time_ns > 0) {
                /* Time stays the machine's: tracks come one after the other, so nobody knows yet which begins first. */
                buf_printf(b, ",\"ts\":%" PRIu64 ".%03u", time_ns / 1000, (unsigned)(time_ns % 1000));
        }
        return b;
}

static void record_end(struct recording *r)
{
        buf_puts(&r->out, "}");
}

static void add_duration(struct buf *b, uint64_t ns)
{
        buf_printf(b, ",\"dur\":%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

static void name_thread(struct recording *r, unsigned tid, const char *name, unsigned order)
{
        struct buf *b = record_event(r, "M", "thread_name", tid, 0);

        buf_puts(b, ",\"args\":{");
        json_field_string(b, "name", name);
        buf_puts(b, "}");
        record_end(r);
        b = record_event(r, "M", "thread_sort_index", tid, 0);
        buf_printf(b, ",\"args\":{\"sort_index\":%u}", order);
        record_end(r);
}

#define WAIT_TID(track) (N_TRACKS + (track)) /* the row beside a worker's */

static void begin_file(struct recording *r)
{
        struct buf *b = &r->out;

        buf_puts(b, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        b = record_event(r, "M", "process_name", 0, 0);
        buf_puts(b, ",\"args\":{\"name\":\"tandem\"}");
        record_end(r);
        name_thread(r, TANDEM_TRACK_TANDEMD, track_names[TANDEM_TRACK_TANDEMD], 0);
        for (unsigned track = TANDEM_TRACK_NPU; track < N_TRACKS; track++) {
                char name[32];

                name_thread(r, track, track_names[track], track * 2 - 1);
                snprintf(name, sizeof(name), "%s, waiting", track_names[track]);
                name_thread(r, WAIT_TID(track), name, track * 2);
        }
}

static void end_file(struct recording *r)
{
        buf_printf(&r->out, "\n],\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"events\":%" PRIu64 "}}\n", r->n_shown);
        flush_recording(r);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void block_name(const struct tandem_trace_event *e, char *to, size_t size)
{
        bool layered = strcmp(e->block, "attention") == 0 || strcmp(e->block, "ffn") == 0;

        if (layered)
                snprintf(to, size, "%s %" PRIu32, e->block, e->layer);
        else
                snprintf(to, size, "%s", *e->block ? e->block : "block");
}

/* One arrow for each hand-over: both ends know the step and the block it goes on with. */
static uint64_t flow_id(const struct tandem_trace_event *e)
{
        uint64_t block = strcmp(e->block, "embed") == 0     ? 0 :
                         strcmp(e->block, "attention") == 0 ? 1 + 2 * (uint64_t)e->layer :
                         strcmp(e->block, "ffn") == 0       ? 2 + 2 * (uint64_t)e->layer :
                                                              1022 + (strcmp(e->block, "sample") == 0);

        return e->step << 10 | (block & 1023);
}

static void record_arrow(struct recording *r, const char *phase, unsigned track, uint64_t time_ns, uint64_t id)
{
        struct buf *b = record_event(r, phase, "hand-over", track, time_ns);

        buf_printf(b, ",\"cat\":\"hand-over\",\"id\":%" PRIu64 "%s", id, *phase == 'f' ? ",\"bp\":\"e\"" : "");
        record_end(r);
}

static struct turn *turn_of(struct recording *r, uint64_t step)
{
        struct turn *t = &r->turns[step % TURNS_KEPT];

        if (t->step != step)
                *t = (struct turn){ .step = step };
        return t;
}

/* A block that has ended, or whose end will not come (its worker died, or the step became void): then it reaches to
 * whatever came next, and does not count as work. */
static void close_block(struct recording *r, unsigned l, uint64_t end_ns, bool whole)
{
        struct track *track = &r->tracks[l];
        const struct tandem_trace_event *e = &track->block;
        char name[48];
        struct buf *b;

        track->in_block = false;
        if (end_ns < e->time_ns)
                return;
        block_name(e, name, sizeof(name));
        b = record_event(r, "X", name, l, e->time_ns);
        add_duration(b, end_ns - e->time_ns);
        buf_printf(b, ",\"cat\":\"block\",\"args\":{\"step\":%" PRIu64 ",\"rows\":%" PRIu32, e->step, e->rows);
        if (track->taken_ns)
                buf_printf(b, ",\"handed_over_us\":%.3f", (double)track->taken_ns / 1e3);
        buf_printf(b, "%s}", whole ? "" : ",\"unfinished\":true");
        record_end(r);
        if (track->flow)
                record_arrow(r, "f", l, e->time_ns, track->flow);
        track->flow = 0;
        track->taken_ns = 0;
        if (whole && !span_add(&track->blocks, e->time_ns, end_ns))
                r->full = true;
        if (whole && strcmp(e->block, "sample") == 0) {
                turn_of(r, e->step)->drawing = e->time_ns;
                turn_of(r, e->step)->drawn = end_ns;
        }
}

static void close_wait(struct recording *r, unsigned l, uint64_t end_ns, bool whole)
{
        struct track *track = &r->tracks[l];
        struct buf *b = record_event(r, "X", "waiting", WAIT_TID(l), track->wait_from);

        track->in_wait = false;
        if (end_ns > track->wait_from && !span_add(&track->waits, track->wait_from, end_ns))
                r->full = true;
        add_duration(b, end_ns - track->wait_from);
        buf_printf(b, ",\"cat\":\"wait\"%s", whole ? "" : ",\"args\":{\"unfinished\":true}");
        record_end(r);
}

static void worker_event(struct recording *r, unsigned l, const struct tandem_trace_event *e)
{
        struct track *track = &r->tracks[l];

        if (e->time_ns < track->last_ns || e->kind < TANDEM_TRACE_BLOCK_BEGIN || e->kind > TANDEM_TRACE_WAIT_END)
                return;
        if (track->in_block && e->kind != TANDEM_TRACE_BLOCK_END)
                close_block(r, l, e->time_ns, false);
        if (track->in_wait && e->kind != TANDEM_TRACE_WAIT_END)
                close_wait(r, l, e->time_ns, false);
        switch (e->kind) {
        case TANDEM_TRACE_BLOCK_BEGIN:
                track->block = *e;
                track->in_block = true;
                break;
        case TANDEM_TRACE_BLOCK_END:
                if (track->in_block && track->block.step == e->step && track->block.layer == e->layer &&
                    strcmp(track->block.block, e->block) == 0)
                        close_block(r, l, e->time_ns, true);
                break;
        case TANDEM_TRACE_TAKEN:
                if (e->arg >= 10 * TDM_NSEC_PER_SEC)
                        break; /* as tandemd: the other clock is a joke */
                track->taken_ns = e->arg;
                if (e->from_peer) {
                        track->n_handovers++;
                        track->handover_ns += e->arg;
                        track->flow = flow_id(e);
                } else {
                        track->n_from_daemon++;
                        track->from_daemon_ns += e->arg;
                        turn_of(r, e->step)->taken = e->time_ns;
                }
                break;
        case TANDEM_TRACE_HANDED_ON:
                if (track->blocks.n > 0) /* the arrow leaves from the block that has just ended */
                        record_arrow(r, "s", l, track->blocks.items[track->blocks.n - 1].to - 1, flow_id(e));
                break;
        case TANDEM_TRACE_WAIT_BEGIN:
                track->wait_from = e->time_ns;
                track->in_wait = true;
                break;
        case TANDEM_TRACE_WAIT_END:
                if (!track->in_wait) {
                        if (track->first_ns == e->time_ns)
                                track->waited_before = true;
                        break;
                }
                close_wait(r, l, e->time_ns, true);
                break;
        default:
                break;
        }
        track->last_ns = e->time_ns;
}

static void step_bar(struct recording *r, const char *phase, const struct open_step *s, uint64_t time_ns)
{
        char name[40];
        struct buf *b;

        snprintf(name, sizeof(name), "step %" PRIu64, s->step);
        b = record_event(r, phase, name, TANDEM_TRACK_TANDEMD, time_ns);
        buf_printf(b, ",\"cat\":\"step\",\"id\":%" PRIu64 ",\"args\":{\"step\":%" PRIu64 ",\"rows\":%" PRIu32 "}",
                   s->step, s->step, s->rows);
        record_end(r);
}

static void close_step(struct recording *r, unsigned i, uint64_t time_ns)
{
        step_bar(r, "e", &r->steps[i], time_ns);
        r->steps[i] = r->steps[--r->n_steps];
        if (r->n_steps == 0 && time_ns > r->flying_from && !span_add(&r->flying, r->flying_from, time_ns))
                r->full = true;
}

static void daemon_event(struct recording *r, const struct tandem_trace_event *e)
{
        const char *worker = e->arg < N_TRACKS ? track_names[e->arg] : "worker";
        char text[80];
        struct buf *b;

        switch (e->kind) {
        case TANDEM_TRACE_STEP_POSTED:
                if (r->n_steps == TDM_ARRAY_SIZE(r->steps))
                        return;
                turn_of(r, e->step)->posted = e->time_ns;
                if (r->n_steps == 0) {
                        r->flying_from = e->time_ns;
                        turn_of(r, e->step)->before = r->last_done;
                }
                r->steps[r->n_steps++] = (struct open_step){ .step = e->step, .from = e->time_ns, .rows = e->rows };
                step_bar(r, "b", &r->steps[r->n_steps - 1], e->time_ns);
                return;
        case TANDEM_TRACE_STEP_DONE:
        case TANDEM_TRACE_STEP_FAILED:
                r->n_done += e->kind == TANDEM_TRACE_STEP_DONE;
                turn_of(r, e->step)->done = e->time_ns;
                r->last_done = e->kind == TANDEM_TRACE_STEP_DONE ? e->step : 0;
                r->n_failed += e->kind == TANDEM_TRACE_STEP_FAILED;
                for (unsigned i = 0; i < r->n_steps; i++)
                        if (r->steps[i].step == e->step) {
                                close_step(r, i, e->time_ns);
                                break;
                        }
                return;
        case TANDEM_TRACE_EPOCH:
                r->n_epochs++;
                while (r->n_steps > 0)
                        close_step(r, 0, e->time_ns);
                snprintf(text, sizeof(text), "epoch %" PRIu64, e->arg);
                break;
        case TANDEM_TRACE_WORKER_LOST:
                r->n_lost++;
                snprintf(text, sizeof(text), "%s lost", worker);
                break;
        case TANDEM_TRACE_WORKER_START:
                snprintf(text, sizeof(text), "%s started", worker);
                break;
        case TANDEM_TRACE_READY:
                snprintf(text, sizeof(text), "ready, epoch %" PRIu64, e->arg);
                break;
        default:
                return;
        }
        b = record_event(r, "i", text, TANDEM_TRACK_TANDEMD, e->time_ns);
        buf_puts(b, ",\"s\":\"g\",\"cat\":\"fleet\"");
        record_end(r);
}

static void on_event(const struct tandem_trace_event *e, void *userdata)
{
        struct recording *r = userdata;
        struct track *track;

        if (e->track < 0 || e->track >= N_TRACKS || e->time_ns == 0 || r->failed || r->full)
                return;
        if (++r->n_events >= MAX_EVENTS)
                r->full = true;
        track = &r->tracks[e->track];
        if (track->first_ns == 0)
                track->first_ns = e->time_ns;
        if (e->track == TANDEM_TRACK_TANDEMD) {
                if (e->time_ns < track->last_ns)
                        return;
                track->last_ns = e->time_ns;
                daemon_event(r, e);
        } else {
                worker_event(r, (unsigned)e->track, e);
        }
}

/* ---- the sentences ----------------------------------------------------------------------------------------------- */

static double percent_share(uint64_t part, uint64_t whole)
{
        return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

static int compare_rising(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return x < y ? -1 : x > y;
}

/* Says how long steps that followed one another at once waited in between, and for what. */
static void say_between(const struct recording *r)
{
        static uint64_t parts[4][TURNS_KEPT];
        size_t n = 0;

        for (size_t i = 0; i < TURNS_KEPT; i++) {
                const struct turn *next = &r->turns[i], *t = &r->turns[next->before % TURNS_KEPT];
                const uint64_t times[] = { t->drawing, t->drawn, t->done, next->posted, next->taken };
                bool whole = next->before != 0 && t->step == next->before && t->drawing != 0 &&
                             next->posted - t->done < TURN_IDLE_NS;

                for (unsigned k = 0; k < 4; k++)
                        whole = whole && times[k] <= times[k + 1];
                for (unsigned k = 0; k < 4 && whole; k++)
                        parts[k][n] = times[k + 1] - times[k];
                n += whole;
        }
        if (n == 0)
                return;
        for (unsigned k = 0; k < 4; k++)
                qsort(parts[k], n, sizeof(parts[k][0]), compare_rising);
        fprintf(stderr,
                "between      tokens drawn in %.1f us, heard of after %.1f, the next step posted after %.1f, taken "
                "after %.1f "
                "(medians of %zu)\n",
                (double)parts[0][n / 2] / 1e3, (double)parts[1][n / 2] / 1e3, (double)parts[2][n / 2] / 1e3,
                (double)parts[3][n / 2] / 1e3, n);
}

static void write_summary(const struct recording *r, const struct tandem_trace *trace)
{
        uint64_t from = r->past ? 0 : r->began_ns, to = r->ended_ns, n = 0, ns = 0, n_posts = 0, posts_ns = 0, lost = 0,
                 flying;

        for (unsigned l = 0; l < N_TRACKS; l++) {
                uint64_t first = r->tracks[l].first_ns;

                if (first) {
                        /* Each track knows another piece of the past: shares are of the piece that all know. */
                        from = r->past ? TDM_MAX(from, first) : TDM_MIN(from, first);
                        to = TDM_MAX(to, r->tracks[l].last_ns);
                }
                n += r->tracks[l].n_handovers;
                ns += r->tracks[l].handover_ns;
                n_posts += r->tracks[l].n_from_daemon;
                posts_ns += r->tracks[l].from_daemon_ns;
                lost += tandem_trace_lost(trace, (int)l);
        }
        if (to <= from || r->n_shown == 0) {
                if (to > from)
                        fprintf(stderr, "%.3f s, 0 events, %s in %s\n", (double)(to - from) / 1e9,
                                human_bytes(r->n_bytes), term_safe(r->path));
                fprintf(stderr, "nothing happened: no events (is a job running?)\n");
                return;
        }
        fprintf(stderr, "%.3f s, %" PRIu64 " events, %s in %s\n", (double)(to - from) / 1e9, r->n_shown,
                human_bytes(r->n_bytes), term_safe(r->path));
        if (lost > 0)
                fprintf(stderr, "%" PRIu64 " events were lost: they came faster than they were read\n", lost);
        if (r->full)
                fprintf(stderr, "it ends early: more events than a trace may hold\n");
        for (unsigned l = TANDEM_TRACK_NPU; l < N_TRACKS; l++) {
                const struct track *track = &r->tracks[l];
                uint64_t waiting = sum_since(&track->waits, from) +
                                   (track->waited_before && track->first_ns > from ? track->first_ns - from : 0);

                if (track->first_ns == 0)
                        fprintf(stderr, "%-12s no events: it slept, or is off\n", track_names[l]);
                else
                        fprintf(stderr, "%-12s busy %5.1f%%, waiting %5.1f%%\n", track_names[l],
                                percent_share(sum_since(&track->blocks, from), to - from),
                                percent_share(waiting, to - from));
        }
        fprintf(stderr,
                "hand-overs   %" PRIu64 " between workers, mean %.1f us; %" PRIu64 " from tandemd, mean %.1f us\n", n,
                n ? (double)ns / (double)n / 1e3 : 0.0, n_posts,
                n_posts ? (double)posts_ns / (double)n_posts / 1e3 : 0.0);
        flying = sum_since(&r->flying, from);
        fprintf(stderr, "gaps         %4.1f%% of the %.3f s in which steps were under way no worker ran a block\n",
                percent_share(gap_ns(r, from), flying), (double)flying / 1e9);
        say_between(r);
        fprintf(stderr,
                "steps        %" PRIu64 " done, %" PRIu64 " failed; %" PRIu64 " workers lost, %" PRIu64 " epochs\n",
                r->n_done, r->n_failed, r->n_lost, r->n_epochs);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void wait_for_end(struct tandem *tandem, struct tandem_trace *trace, struct recording *r)
{
        uint64_t deadline = UINT64_MAX;

        signal_set_mode(SIGNAL_ANSWER);
        while (!tandem_trace_done(trace)) {
                struct pollfd fds[] = {
                        { .fd = tandem_fd(tandem), .events = tandem_events(tandem) },
                        { .fd = signal_fd(), .events = POLLIN },
                };
                uint64_t now = tdm_now_ns();

                if (now >= deadline)
                        break;
                (void)poll(fds, TDM_ARRAY_SIZE(fds),
                           deadline == UINT64_MAX ? -1 : (int)TDM_DIV_UP(deadline - now, TDM_NSEC_PER_MSEC));
                if ((signal_take() || r->failed || r->full) && deadline == UINT64_MAX) {
                        (void)tandem_trace_stop(trace);
                        deadline = tdm_now_ns() + LAST_EVENTS_NS;
                }
                (void)tandem_dispatch(tandem, 0);
        }
        signal_set_mode(SIGNAL_EXIT);
}

/* Events that have begun and are not over reach to the end of the trace. */
static void end_tracks(struct recording *r)
{
        uint64_t end = 0;

        for (unsigned l = 0; l < N_TRACKS; l++)
                end = TDM_MAX(end, r->tracks[l].last_ns);
        for (unsigned l = TANDEM_TRACK_NPU; l < N_TRACKS; l++) {
                if (r->tracks[l].in_block)
                        close_block(r, l, end, false);
                if (r->tracks[l].in_wait)
                        close_wait(r, l, end, false);
        }
        while (r->n_steps > 0)
                close_step(r, 0, end);
}

static int take_trace(struct tandem *tandem, struct recording *r, const struct tandem_trace_options *options)
{
        struct tandem_trace *trace;
        const struct tandem_error *error;
        struct tandem_error err;
        int status = EXIT_OK;

        r->began_ns = tdm_now_ns();
        if (tandem_trace_start(tandem, options, on_event, r, &trace, &err) != TANDEM_OK)
                return complain_error(&err);
        begin_file(r);
        wait_for_end(tandem, trace, r);
        if (!options->past || options->duration_ms > 0)
                r->ended_ns = tdm_now_ns();
        end_tracks(r);
        end_file(r);
        error = tandem_trace_error(trace);
        if (error)
                status = complain_error(error);
        else
                write_summary(r, trace);
        tandem_trace_free(trace);
        return r->failed ? EXIT_FAILED : status;
}

struct trace_options {
        const char *path;
        float seconds;
        bool past;
};

extern const struct command command_trace;

static int run_trace(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        struct tandem_trace_options options;
        struct trace_options given = { 0 };
        struct recording r = { .path = NULL };
        unsigned n;
        int status;

        if (cli_parse(cli, &command_trace, argc, argv, &given, NULL, 0, &n, &status))
                return status;
        r.path = given.path;
        r.past = given.past;
        if (!r.path || !*r.path)
                return args_usage_error(argv[0], "where to? -o FILE is missing");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        r.fd = strcmp(r.path, "-") == 0 ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) :
                                          open(r.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
        if (r.fd < 0)
                return complain("cannot write %s: %s", r.path, strerror(errno));
        tandem_trace_options_init(&options);
        options.duration_ms = (uint32_t)(given.seconds * 1000);
        options.past = r.past;
        status = take_trace(tandem, &r, &options);
        if (close(r.fd) < 0 && status == EXIT_OK)
                status = complain("cannot write %s: %s", r.path, strerror(errno));
        for (unsigned l = 0; l < N_TRACKS; l++) {
                free(r.tracks[l].blocks.items);
                free(r.tracks[l].waits.items);
        }
        free(r.flying.items);
        buf_free(&r.out);
        return status;
}

static const struct arg args[] = {
        {
                .letter = 'o',
                .name = "output",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct trace_options, path),
                .value = "FILE",
                .brief = "the file to write",
                .more = "- is standard output",
                .offer = OFFER_FILES,
        },
        {
                .name = "seconds",
                .range = { TDM_VALUE_REAL, .max = 600 },
                .at = offsetof(struct trace_options, seconds),
                .default_value = 5,
                .value = "S",
                .brief = "how long",
        },
        {
                .name = "past",
                .at = offsetof(struct trace_options, past),
                .brief = "begin with the last events before the call",
                .more = "with --seconds 0 only those",
        },
};

const struct command command_trace = {
        .name = "trace",
        .summary = "record what the workers do, block by block",
        .usage = "-o FILE [--seconds S] [--past]",
        .about = "Records what tandemd and its workers do, block by block, as a JSON file that "
                 "https://ui.perfetto.dev opens. A summary follows on standard error: how busy each worker "
                 "was, what a hand-over took, how long no worker ran. Ctrl-C ends it early. Only root and "
                 "the daemon's own user may.",
        COMMAND_ARGS(args),
        .run = run_trace,
};
