/* Jobs have FINISH_NS to end. A job need not be waited for where it goes on at the next daemon. Two things must be so:
 * its client said that it sends it there (Request.reattaches), and the socket stays, since the service manager holds
 * it. Then who connects waits, or starts the next daemon. So the daemon need not know whether a restart follows.
 *
 * One case is left: the manager stops the socket too, so nobody follows. systemd says that when it is asked. Where it
 * does not say so within ASK_NS, the socket stays. */
#include "daemon/service/ending.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include "common/log.h"
#include "common/notify.h"

/* Times after SIGTERM: jobs may finish; then they are cancelled; then their clients may read. */
#define FINISH_NS (5 * TDM_NSEC_PER_SEC)
#define CANCEL_NS (7 * TDM_NSEC_PER_SEC)
#define READ_NS (1200 * TDM_NSEC_PER_MSEC)
#define LOOK_NS (10 * TDM_NSEC_PER_MSEC)
#define ASK_NS (300 * TDM_NSEC_PER_MSEC)
/* The process ends then, whatever hangs; less than the units' TimeoutStopSec. */
#define LIMIT_S 12u
#define SOCKET_UNIT "tandemd.socket"

struct tdm_ending {
        struct tdm_ending_parts parts;
        struct tdm_source *timer;
        uint64_t begun_ns;   /* 0: it has not begun */
        uint64_t reading_ns; /* since when only clients are waited for */
        bool cancelled;
        bool socket_stays;
        bool asking; /* systemd, whether it does */
};

/* ---- jobs ---- */

static void cancel_all(struct tdm_ending *e, const char *why)
{
        struct tdm_error err;
        struct tdm_job *job;

        tdm_error_set(&err, TDM_E_DRAINING, "tandemd was shut down before the job was done");
        tdm_list_for_each(job, tdm_scheduler_jobs(e->parts.scheduler), struct tdm_job, node) {
                if (!e->cancelled && !job->finished)
                        tdm_log_info("job %llu is cancelled: %s", (unsigned long long)job->id, why);
                tdm_scheduler_cancel(e->parts.scheduler, job, &err);
        }
        e->cancelled = true;
}

static bool all_go_on_elsewhere(struct tdm_ending *e)
{
        struct tdm_job *job;

        if (!e->socket_stays)
                return false;
        tdm_list_for_each(job, tdm_scheduler_jobs(e->parts.scheduler), struct tdm_job, node)
                if (!job->finished && !job->reattaches)
                        return false;
        return true;
}

static void look_at_jobs(struct tdm_ending *e, uint64_t now_ns)
{
        bool still_asking = e->asking && now_ns - e->begun_ns < ASK_NS;

        if (!e->cancelled && !still_asking && all_go_on_elsewhere(e))
                cancel_all(e, "its client takes it to the next daemon");
        if (!e->cancelled && now_ns - e->begun_ns >= FINISH_NS)
                cancel_all(e, "it was not done in time");
}

/* ---- the end ---- */

static int on_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_ending *e = userdata;

        if (e->reading_ns == 0) {
                look_at_jobs(e, now_ns);
                if (!tdm_scheduler_is_idle(e->parts.scheduler) && now_ns - e->begun_ns < CANCEL_NS) {
                        tdm_source_arm(source, now_ns + LOOK_NS);
                        return 0;
                }
                e->reading_ns = now_ns;
                tdm_face_finish(e->parts.face);
                tdm_dbus_finish(e->parts.dbus);
        }
        if ((tdm_face_n_connections(e->parts.face) > 0 || !tdm_dbus_is_drained(e->parts.dbus)) &&
            now_ns - e->reading_ns < READ_NS) {
                tdm_source_arm(source, now_ns + LOOK_NS);
                return 0;
        }
        tdm_loop_exit(e->parts.loop, 0);
        return 0;
}

/* A thread can hang in a file that a user serves (FUSE), and nothing can wake it. Then the process ends without it. */
static void *end_at_last(void *userdata)
{
        static const struct timespec limit = { .tv_sec = LIMIT_S };

        nanosleep(&limit, NULL);
        tdm_log_warning("a thread hangs, ended without it %u s after the signal", LIMIT_S);
        _exit(0);
}

static void start_end_at_last(void)
{
        pthread_t thread;

        if (pthread_create(&thread, NULL, end_at_last, NULL) == 0)
                pthread_detach(thread);
}

static void on_socket_stops(bool stops, void *userdata)
{
        struct tdm_ending *e = userdata;

        e->asking = false;
        if (!stops)
                return;
        e->socket_stays = false;
        tdm_log_info("systemd stops " SOCKET_UNIT " too: no daemon follows");
}

void tdm_ending_begin(struct tdm_ending *e, struct tdm_listener **listener, const char *why)
{
        if (e->begun_ns != 0) {
                cancel_all(e, "it was not done in time");
                return;
        }
        e->begun_ns = tdm_now_ns();
        start_end_at_last();
        tdm_notify("STOPPING=1");
        tdm_log_info("%s: ending; running jobs have %llu s", why, (unsigned long long)(FINISH_NS / TDM_NSEC_PER_SEC));
        e->socket_stays = tdm_listener_is_passed(*listener);
        if (e->socket_stays)
                e->asking = tdm_dbus_ask_stops(e->parts.dbus, SOCKET_UNIT, on_socket_stops, e) == 0;
        tdm_listener_destroyp(listener);
        tdm_face_set_draining(e->parts.face);
        tdm_dbus_set_draining(e->parts.dbus);
        tdm_scheduler_drain(e->parts.scheduler);
        tdm_models_cancel_loads(e->parts.models);
        tdm_source_arm(e->timer, e->begun_ns + 1);
}

bool tdm_ending_has_begun(const struct tdm_ending *e)
{
        return e->begun_ns != 0;
}

int tdm_ending_new(struct tdm_ending **ret, const struct tdm_ending_parts *parts)
{
        _cleanup_(tdm_ending_destroyp) struct tdm_ending *e = calloc(1, sizeof(*e));
        int r;

        if (!e)
                return -ENOMEM;
        e->parts = *parts;
        r = tdm_loop_add_timer(parts->loop, on_timer, e, &e->timer);
        if (r < 0)
                return r;
        *ret = steal_ptr(&e);
        return 0;
}

void tdm_ending_destroyp(struct tdm_ending **ending)
{
        if (!*ending)
                return;
        tdm_source_destroyp(&(*ending)->timer);
        free(*ending);
        *ending = NULL;
}
