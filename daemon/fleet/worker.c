/* One worker's process: started, watched by a pidfd, killed, reaped, started again.
 *
 * A life ends in two moments. The worker is lost when it exits, hangs, or sends nonsense: tandemd then expects nothing
 * of it any more, kills it and ends the epoch. It may still write into the segments that it has mapped. It is reaped
 * when the process is gone. Only then do its models count as unloaded, and only then may the fleet be ready again. */
#include "daemon/fleet/private.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/spawn.h"

#define BACKOFF_FIRST_MS 50u
#define BACKOFF_MAX_MS 5000u
#define DEVICE_GONE_MS 500u /* a driver that is loaded anew, a machine that wakes */
#define RETRY_NS TDM_NSEC_PER_SEC
/* A worker that lived this long starts its counts of deaths in reserve and of quarantines anew. */
#define LONG_LIFE_NS (10 * TDM_NSEC_PER_SEC)
#define QUARANTINE_MAX_NS (600 * TDM_NSEC_PER_SEC)
#define QUIT_GRACE_NS TDM_NSEC_PER_SEC
#define KILL_GRACE_NS TDM_NSEC_PER_SEC

static int send_signal(const struct tdm_fleet_worker *w, int signo)
{
        return w->process.pidfd < 0                                                 ? -ESRCH :
               syscall(SYS_pidfd_send_signal, w->process.pidfd, signo, NULL, 0) < 0 ? -errno :
                                                                                      0;
}

static void describe_exit(const siginfo_t *si, char *text, size_t size)
{
        if (si->si_code == CLD_EXITED && si->si_status == 0)
                snprintf(text, size, "left by itself");
        else if (si->si_code == CLD_EXITED)
                snprintf(text, size, "exited with status %d", si->si_status);
        else if (si->si_status == SIGSYS)
                snprintf(text, size, "killed by signal %d (a system call that its sandbox forbids)", si->si_status);
        else
                snprintf(text, size, "killed by signal %d (%s)", si->si_status, strsignal(si->si_status));
}

/* Signals that a person or a manager sends say nothing about the step that was running. */
static bool exit_is_own_fault(const siginfo_t *si)
{
        if (si->si_code == CLD_EXITED)
                return si->si_status != 0;
        switch (si->si_status) {
        case SIGKILL:
        case SIGTERM:
        case SIGINT:
        case SIGHUP:
        case SIGQUIT:
                return false;
        default:
                return true;
        }
}

bool tdm_fleet_worker_is_stopped(const struct tdm_fleet_worker *w)
{
        char path[40], text[512], *end;
        _cleanup_(fclosep) FILE *file = NULL;
        size_t n;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)w->process.pid);
        file = fopen(path, "re");
        if (!file)
                return false;
        n = fread(text, 1, sizeof(text) - 1, file);
        text[n] = 0;
        end = strrchr(text, ')'); /* the name in the parentheses may hold any character */
        return end && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

/* ---- end of a life ---- */

static void schedule_start(struct tdm_fleet_worker *w)
{
        unsigned deaths = w->record.deaths + w->record.idle_deaths;
        uint64_t ms = 0;

        if (deaths > 1)
                ms = TDM_MIN((uint64_t)BACKOFF_FIRST_MS << TDM_MIN(deaths - 2, 16u), BACKOFF_MAX_MS);
        if (w->device_gone)
                ms = TDM_MAX(ms, DEVICE_GONE_MS);
        w->device_gone = false;
        w->process.start_at_ns = ms ? tdm_now_ns() + ms * TDM_NSEC_PER_MSEC : 0;
        tdm_fleet_pump_soon(w->fleet);
}

/* When the next retry is due. A device that said it is missing would say the same, so it gets none. One that is
 * required does: at boot its driver may be loaded after us, and nothing runs without it. */
static void schedule_retry(struct tdm_fleet_worker *w)
{
        uint64_t ns = w->fleet->quarantine_ns << TDM_MIN(w->record.quarantines, 10u);

        ns = TDM_MIN(ns, TDM_MAX(QUARANTINE_MAX_NS, w->fleet->quarantine_ns));
        w->record.quarantines++;
        w->record.try_at_ns = w->no_device && !w->is_required ? 0 : tdm_now_ns() + ns;
        if (w->is_required)
                tdm_log_error("%s worker cannot be used: %s; %s = required, so no job is run until it is tried again, "
                              "in %.1f s or with `tandem restart %s`",
                              w->name, w->record.last_exit, w->name, (double)ns / 1e9, w->name);
        else if (w->no_device)
                tdm_log_error("%s worker is left alone: %s; its blocks go to the other one until `tandem restart %s`",
                              w->name, w->record.last_exit, w->name);
        else if (w->record.spent)
                tdm_log_error("%s worker is left alone, because it was lost or broke a rule too often (%s); its blocks "
                              "go to the other one until it is tried again, in %.1f s or with `tandem restart %s`",
                              w->name, w->record.last_exit, (double)ns / 1e9, w->name);
        else
                tdm_log_error("%s worker is left alone after %u deaths with no finished step between (%s); its blocks "
                              "go to the other one until it is tried again, in %.1f s or with `tandem restart %s`",
                              w->name, w->record.deaths, w->record.last_exit, (double)ns / 1e9, w->name);
        tdm_fleet_pump_soon(w->fleet);
}

static void quarantine(struct tdm_fleet_worker *w)
{
        w->state = TDM_WORKER_QUARANTINED;
        schedule_retry(w);
        /* The survivor may have rings to a peer that will not come back. */
        tdm_fleet_end_epoch(w->fleet, w->index, w->record.last_exit, 0);
}

/* The process is gone: gives back what it had and decides about the next life. */
static void life_is_over(struct tdm_fleet_worker *w)
{
        struct tdm_fleet *f = w->fleet;

        tdm_fleet_fold_progress(w);
        tdm_fleet_unit_deinit(w);
        tdm_source_destroyp(&w->process.exit_source);
        tdm_conn_destroyp(&w->link.conn);
        closep(&w->process.pidfd);
        /* The rings stay: they are of the new epoch already. */
        w->process.phase = TDM_FLEET_NO_PROCESS;
        w->process.pid = 0;
        w->link.conn_lost = false;
        w->process.abandoned = false;
        w->process.not_ours = false;
        w->process.kill_asked_ns = 0;
        w->link.epoch_sent = w->link.epoch_acked = w->link.ready_epoch = w->link.accused_epoch = 0;
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i]) {
                        f->models[i]->on[w->index].load = TDM_FLEET_ABSENT;
                        f->models[i]->on[w->index].kv = TDM_FLEET_KV_NONE;
                        f->models[i]->on[w->index].scratch_bytes = 0;
                }
        tdm_fleet_pump_soon(f);
        if (w->state == TDM_WORKER_QUARANTINED) {
                w->record.retrying = false;
                schedule_retry(w);
                return;
        }
        if (w->no_device || w->record.spent || w->record.deaths >= TDM_FLEET_MAX_DEATHS)
                quarantine(w);
        else
                schedule_start(w);
}

void tdm_fleet_worker_ended(struct tdm_fleet_worker *w, const siginfo_t *si)
{
        char text[128];

        if (si)
                describe_exit(si, text, sizeof(text));
        else
                snprintf(text, sizeof(text), "ended, this kernel does not say how; see journalctl -u %s", w->unit);
        tdm_fleet_worker_lost(w, !si || exit_is_own_fault(si) ? TDM_FLEET_BLAME_STEP : TDM_FLEET_NO_BLAME, "%s", text);
        tdm_log_debug("%s worker (pid %d) reaped: %s", w->name, (int)w->process.pid, text);
        life_is_over(w);
}

static int on_process_exit(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;
        siginfo_t si = { 0 };

        if (w->socket_path)
                return tdm_fleet_unit_exited(w);
        if (waitid(P_PIDFD, (id_t)fd, &si, WEXITED | WNOHANG) < 0) {
                tdm_log_error("cannot reap the %s worker: %m", w->name); /* ECHILD: reaped elsewhere */
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "gone, and nobody knows how");
                life_is_over(w);
                return 0;
        }
        if (si.si_pid == 0)
                return 0;
        tdm_fleet_worker_ended(w, &si);
        return 0;
}

void tdm_fleet_worker_kill(struct tdm_fleet_worker *w)
{
        w->process.quit_killed = true;
        if (w->socket_path)
                tdm_conn_destroyp(&w->link.conn); /* it leaves, unless it is stopped */
        /* ESRCH: it is dead already and waits to be reaped */
        w->process.not_ours = send_signal(w, SIGKILL) == -EPERM;
        if (w->process.not_ours && tdm_fleet_worker_is_stopped(w))
                tdm_fleet_unit_kill(w); /* it will not hear that we have hung up */
}

static void begin_dying(struct tdm_fleet_worker *w, bool politely)
{
        tdm_fleet_trace(w->fleet, TDM_TRACE_WORKER_LOST, 0, 0, TDM_TRACK_OF(w->index));
        w->process.phase = TDM_FLEET_PROCESS_DYING;
        if (!w->record.retrying)
                w->state = TDM_WORKER_RESTARTING;
        w->process.dying_ns = 0;
        w->process.asked_to_leave = politely;
        w->process.quit_killed = false;
        w->link.ring_fault = w->link.bad_results = false;
        w->link.send_error = 0;
        tdm_fleet_watch_soon(w->fleet);
}

/* Steps in flight are void. Where the worker had no part in this epoch yet, the other worker goes on with them. */
static void end_its_epoch(struct tdm_fleet_worker *w, const char *reason, uint64_t guilty)
{
        if (w->record.retrying || (w->fleet->ready && w->link.epoch_sent != w->fleet->epoch))
                tdm_fleet_pump_soon(w->fleet);
        else
                tdm_fleet_end_epoch(w->fleet, w->index, reason, guilty);
}

/* A worker that had no step in its life says nothing about its device: something else killed it. Its next start is
 * delayed all the same, each time longer. */
static void count_death(struct tdm_fleet_worker *w)
{
        if (w->device_gone && tdm_now_ns() < w->late_until_ns)
                return;
        if (tdm_now_ns() - w->process.started_ns > LONG_LIFE_NS && w->state == TDM_WORKER_READY) {
                w->record.idle_deaths = 0;
                w->record.quarantines = 0;
        }
        if (w->state == TDM_WORKER_READY && !w->had_step)
                w->record.idle_deaths++;
        else
                w->record.deaths++;
}

void tdm_fleet_worker_lost(struct tdm_fleet_worker *w, enum tdm_fleet_blame blame, const char *fmt, ...)
{
        uint64_t guilty = 0;
        char reason[128];
        va_list args;

        if (w->process.phase != TDM_FLEET_PROCESS_STARTING && w->process.phase != TDM_FLEET_PROCESS_UP)
                return;
        va_start(args, fmt);
        vsnprintf(reason, sizeof(reason), fmt, args);
        va_end(args);
        if (blame == TDM_FLEET_BLAME_STEP && w->progress)
                guilty = tdm_progress_step(atomic_load_explicit(&w->progress->running, memory_order_relaxed));

        if (blame == TDM_FLEET_BLAME_MODEL || (blame == TDM_FLEET_BLAME_STEP && guilty == 0))
                tdm_fleet_blame_model(w, reason);
        count_death(w);
        tdm_fleet_charge(w, blame == TDM_FLEET_BLAME_STEP ? TDM_FLEET_CHARGE_DEATH : TDM_FLEET_CHARGE_LOSS);
        tdm_utf8_copy(w->record.last_exit, sizeof(w->record.last_exit), reason);
        if (tdm_fleet_may_log(w, TDM_FLEET_LOG_LOST))
                tdm_log_warning("%s worker (pid %d) lost: %s", w->name, (int)w->process.pid, reason);
        begin_dying(w, false);
        tdm_fleet_worker_kill(w);
        end_its_epoch(w, reason, guilty);
        /* A unit that never said who it is was handed nothing, and no pidfd will tell its end. */
        if (w->process.pidfd < 0) {
                tdm_fleet_unit_give_up(w);
                life_is_over(w);
        }
}

void tdm_fleet_worker_breach(struct tdm_fleet_worker *w, const char *fmt, ...)
{
        char text[160];
        va_list args;

        if (w->process.phase != TDM_FLEET_PROCESS_STARTING && w->process.phase != TDM_FLEET_PROCESS_UP)
                return;
        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        tdm_utf8_mend(text);
        tdm_fleet_charge(w, TDM_FLEET_CHARGE_BREACH);
        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "%s", text);
}

void tdm_fleet_worker_leave(struct tdm_fleet_worker *w, const char *reason)
{
        if (w->process.pidfd < 0)
                return; /* a unit that has not said yet who it is */
        tdm_utf8_copy(w->record.last_exit, sizeof(w->record.last_exit), reason);
        tdm_log_info("%s worker (pid %d) asked to leave: %s", w->name, (int)w->process.pid, reason);
        begin_dying(w, true);
        if (tdm_fleet_wire_quit(w) < 0)
                tdm_fleet_worker_kill(w);
        end_its_epoch(w, reason, 0);
}

void tdm_fleet_worker_abandon(struct tdm_fleet_worker *w)
{
        struct tdm_fleet *f = w->fleet;

        w->process.abandoned = true;
        w->state = TDM_WORKER_QUARANTINED;
        snprintf(w->record.last_exit, sizeof(w->record.last_exit), "does not die (pid %d)", (int)w->process.pid);
        tdm_log_error("%s worker (pid %d) does not die; its memory is given up and its models have to be loaded again",
                      w->name, (int)w->process.pid);
        /* The process may write into these segments for ever, so no other process may use them. */
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                struct tdm_fleet_entry *entry = f->models[i];

                if (!entry)
                        continue;
                entry->on[w->index].load = TDM_FLEET_ABSENT;
                if (entry->leaving)
                        continue;
                entry->leaving = true;
                entry->failed = true;
                tdm_error_set(&entry->error, TDM_E_NO_WORKER,
                              "the %s worker hangs in the kernel and still holds the memory of %s; load it again",
                              w->name, entry->name);
        }
        tdm_fleet_end_epoch(f, w->index, w->record.last_exit, 0);
}

/* ---- beginning of a life ---- */

static int on_frame(struct tdm_conn *conn, const uint8_t *data, size_t size, int *fds, unsigned n_fds, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;
        int r;

        if (w->process.phase != TDM_FLEET_PROCESS_STARTING && w->process.phase != TDM_FLEET_PROCESS_UP)
                return 0;
        tdm_fleet_heard(w);
        r = n_fds > 0 ? -EPROTO : w->receive(w, data, size);
        if (r < 0)
                tdm_fleet_worker_breach(w, "it does not keep to the control protocol");
        return 0;
}

static void on_worker_closed(struct tdm_conn *conn, const struct tdm_error *err, void *userdata)
{
        struct tdm_fleet_worker *w = userdata;

        if (err && err->code != 0)
                tdm_log_debug("%s worker: control socket: %s", w->name, err->message);
        tdm_conn_destroy(conn);
        w->link.conn = NULL;
        /* Most often the worker has just exited, and the pidfd says so in a moment. If not, the watch finds it. */
        w->link.conn_lost = true;
        tdm_fleet_heard(w);
        tdm_fleet_watch_soon(w->fleet);
}

static int spawn(struct tdm_fleet_worker *w, int socket, pid_t *ret_pid)
{
        _cleanup_(freep) char *path = NULL;
        char fd_text[] = { '0' + TDM_WORKER_CONTROL_FD, 0 };
        char *argv[] = { NULL, (char *)"--control-fd", fd_text, NULL };

        if (asprintf(&path, "%s/tandem-%s-worker", w->fleet->worker_dir, w->name) < 0)
                return -ENOMEM;
        argv[0] = path;
        return tdm_spawn(path, argv, socket, TDM_WORKER_CONTROL_FD, ret_pid);
}

static int make_progress(struct tdm_fleet_worker *w)
{
        char name[32];
        int r;

        snprintf(name, sizeof(name), "progress-%s", w->name);
        r = tdm_segment_create(&w->progress_segment, name, TDM_PROGRESS_BYTES);
        if (r < 0)
                return r;
        w->progress = (struct tdm_progress *)w->progress_segment->base;
        w->progress->magic = TDM_PROGRESS_MAGIC;
        w->progress->abi = TDM_PROGRESS_ABI;
        w->progress->size_bytes = TDM_PROGRESS_BYTES;
        tdm_trace_ring_init(tdm_progress_trace(w->progress));
        w->life++;
        return 0;
}

int tdm_fleet_worker_talk(struct tdm_fleet_worker *w, int fd)
{
        static const struct tdm_conn_limits limits = {
                .max_frame_bytes = TDM_WORKER_MAX_FRAME,
                .max_queue_bytes = 4u << 20,
                .stall_timeout_ns = 10 * TDM_NSEC_PER_SEC,
        };
        _cleanup_(closep) int ours = fd;
        int r = tdm_loop_add_io(w->fleet->loop, w->process.pidfd, EPOLLIN, on_process_exit, w, &w->process.exit_source);

        if (r == 0)
                r = tdm_conn_new(&w->link.conn, w->fleet->loop, ours, &limits, on_frame, on_worker_closed, w);
        if (r < 0)
                return r;
        ours = -1;
        return tdm_fleet_wire_init(w);
}

static int start_process(struct tdm_fleet_worker *w)
{
        int pair[2], r;
        _cleanup_(closep) int ours = -1, theirs = -1;

        r = make_progress(w);
        if (r < 0)
                return r;
        if (w->socket_path)
                return tdm_fleet_unit_connect(w);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        ours = pair[0];
        theirs = pair[1];
        if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
                return -errno;
        r = spawn(w, theirs, &w->process.pid);
        if (r < 0)
                return r;
        w->process.pidfd = (int)syscall(SYS_pidfd_open, w->process.pid, 0);
        if (w->process.pidfd < 0) {
                r = -errno;
                kill(w->process.pid, SIGKILL);
                waitpid(w->process.pid, NULL, 0);
                return r;
        }
        /* The worker has one thread yet and waits for Init. The threads that it makes inherit this. */
        if (w->is_bound && sched_setaffinity(w->process.pid, sizeof(w->cpus), &w->cpus) < 0)
                tdm_log_warning("cannot bind the %s worker to its CPUs: %m", w->name);
        w->process.phase = TDM_FLEET_PROCESS_STARTING;
        w->process.started_ns = tdm_now_ns();
        return tdm_fleet_worker_talk(w, steal_fd(&ours));
}

void tdm_fleet_worker_start(struct tdm_fleet_worker *w)
{
        int r;

        if (w->ever_started)
                w->record.restarts++;
        w->ever_started = true;
        if (!w->record.retrying)
                w->state = TDM_WORKER_STARTING;
        w->had_step = false;
        w->link.n_sent = 0;
        w->silence.signature = 0;
        w->silence.step_ns = 0;
        memset(&w->silence.sample, 0, sizeof(w->silence.sample));
        tdm_fleet_heard(w);
        w->silence.ping_sent = 0;
        w->silence.pinged_ns = tdm_now_ns();
        r = start_process(w);
        if (r == 0) {
                tdm_fleet_trace(w->fleet, TDM_TRACE_WORKER_START, 0, 0, TDM_TRACK_OF(w->index));
                tdm_fleet_watch_soon(w->fleet);
                return;
        }
        if (w->process.exit_source) { /* it runs, but no message reaches it; its exit is handled like any other */
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "cannot be set up: %s", strerror(-r));
                return;
        }
        snprintf(w->record.last_exit, sizeof(w->record.last_exit), "cannot be started: %s%s%s",
                 w->socket_path ? w->socket_path : "", w->socket_path ? ": " : "", strerror(-r));
        tdm_log_warning("%s worker %s", w->name, w->record.last_exit);
        if (w->process.pidfd >= 0) {
                siginfo_t si;

                tdm_fleet_worker_kill(w);
                waitid(P_PIDFD, (id_t)w->process.pidfd, &si, WEXITED);
        }
        if (!w->record.retrying)
                w->state = TDM_WORKER_RESTARTING;
        if (r == -EAGAIN || r == -ENOMEM || r == -EMFILE || r == -ENFILE) { /* may pass: tried again */
                life_is_over(w);
                w->process.start_at_ns = tdm_now_ns() + RETRY_NS;
                return;
        }
        w->record.deaths++;
        life_is_over(w);
}

/* ---- end of the fleet ---- */

static bool wait_for_exit(struct tdm_fleet_worker *w, uint64_t deadline_ns)
{
        struct pollfd p = { .fd = w->process.pidfd, .events = POLLIN };
        uint64_t now = tdm_now_ns();

        while (now < deadline_ns) {
                int r = poll(&p, 1, (int)((deadline_ns - now) / TDM_NSEC_PER_MSEC) + 1);

                if (r > 0)
                        return true;
                if (r < 0 && errno != EINTR)
                        return false;
                now = tdm_now_ns();
        }
        return false;
}

void tdm_fleet_worker_deinit(struct tdm_fleet_worker *w)
{
        if (w->process.pidfd >= 0) {
                siginfo_t si;

                if (!wait_for_exit(w, tdm_now_ns() + (w->process.abandoned ? 0 : QUIT_GRACE_NS / 2))) {
                        (void)send_signal(w, SIGKILL);
                        wait_for_exit(w, tdm_now_ns() + (w->process.abandoned ? 0 : KILL_GRACE_NS / 2));
                }
                waitid(P_PIDFD, (id_t)w->process.pidfd, &si, WEXITED | WNOHANG);
        }
        tdm_fleet_close_ends(w);
        tdm_fleet_unit_deinit(w);
        free(steal_ptr(&w->socket_path));
        tdm_source_destroyp(&w->process.exit_source);
        tdm_source_destroyp(&w->process.start_timer);
        tdm_conn_destroyp(&w->link.conn);
        closep(&w->process.pidfd);
        tdm_segment_destroyp(&w->progress_segment);
        tdm_segment_destroyp(&w->dead_segment);
        w->progress = NULL;
}
