/* A ping is sent every third of the interval, so that a late one does not end the daemon. Once work has not advanced
 * for a whole interval, no more pings are sent, and the manager acts within another interval: a stuck daemon is ended
 * after one to two intervals. If work advances before that, pings go on, because a daemon that works must not be ended.
 *
 * It does not judge the workers. They have their own watch (daemon/fleet/watch.c), whose deadlines are shorter and
 * whose resets count as progress here. This watchdog is for a hang of that watch itself. */
#include "daemon/service/watchdog.h"

#include <inttypes.h>
#include "common/log.h"
#include "common/notify.h"

#define PINGS_PER_INTERVAL 3u
#define MIN_INTERVAL_NS (30 * TDM_NSEC_PER_MSEC)
#define MAX_INTERVAL_US UINT64_C(86400000000)

struct tdm_watchdog {
        const struct tdm_watchdog_ops *ops;
        void *userdata;
        struct tdm_source *timer;
        uint64_t interval_ns; /* 0: no watchdog */
        uint64_t progress;
        uint64_t moved_ns; /* the last time with progress or without work */
        bool stuck;
};

/* WATCHDOG_PID names the process that is watched: a child that inherits the variables is not. */
static uint64_t interval_from_environment(void)
{
        const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
        uint64_t n = 0;
        char *end;

        if (usec && (!pid || strtol(pid, NULL, 10) == getpid())) {
                errno = 0;
                n = strtoull(usec, &end, 10);
                if (usec[0] < '0' || usec[0] > '9' || *end || errno || n == 0 || n > MAX_INTERVAL_US) {
                        tdm_log_warning("WATCHDOG_USEC=%.40s is not a usable interval; there is no watchdog", usec);
                        n = 0;
                }
        }
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        return n * 1000;
}

static void ping(struct tdm_watchdog *w)
{
        char text[320], line[200] = "";

        if (w->ops->describe)
                w->ops->describe(line, sizeof(line), w->userdata);
        snprintf(text, sizeof(text), "WATCHDOG=1%s%s", line[0] ? "\nSTATUS=" : "", line);
        tdm_notify(text);
}

static int on_watchdog_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_watchdog *w = userdata;
        uint64_t progress = w->ops->progress(w->userdata);

        if (progress != w->progress || !w->ops->has_work(w->userdata)) {
                if (w->stuck)
                        tdm_log_warning("work goes on; the watchdog is told again");
                w->progress = progress;
                w->moved_ns = now_ns;
                w->stuck = false;
        } else if (!w->stuck && now_ns - w->moved_ns >= w->interval_ns) {
                w->stuck = true;
                tdm_log_error("jobs could go on and nothing was done for %" PRIu64
                              " ms: the watchdog is not told any more, "
                              "the service manager will end this daemon",
                              (now_ns - w->moved_ns) / TDM_NSEC_PER_MSEC);
        }
        if (!w->stuck)
                ping(w);
        tdm_source_arm(source, now_ns + w->interval_ns / PINGS_PER_INTERVAL);
        return 0;
}

int tdm_watchdog_new(struct tdm_watchdog **ret, struct tdm_loop *loop, const struct tdm_watchdog_ops *ops,
                     void *userdata)
{
        _cleanup_(tdm_watchdog_destroyp) struct tdm_watchdog *w = calloc(1, sizeof(*w));
        int r;

        if (!w)
                return -ENOMEM;
        w->ops = ops;
        w->userdata = userdata;
        w->interval_ns = interval_from_environment();
        if (w->interval_ns > 0) {
                w->interval_ns = TDM_MAX(w->interval_ns, MIN_INTERVAL_NS);
                w->moved_ns = tdm_now_ns();
                r = tdm_loop_add_timer(loop, on_watchdog_timer, w, &w->timer);
                if (r < 0)
                        return r;
                /* At once, because starting may have taken most of the first interval. */
                tdm_source_arm(w->timer, w->moved_ns + 1);
        }
        *ret = steal_ptr(&w);
        return 0;
}

void tdm_watchdog_destroy(struct tdm_watchdog *w)
{
        if (!w)
                return;
        tdm_source_destroyp(&w->timer);
        free(w);
}

void tdm_watchdog_destroyp(struct tdm_watchdog **w)
{
        tdm_watchdog_destroy(*w);
        *w = NULL;
}

uint64_t tdm_watchdog_interval_ns(const struct tdm_watchdog *w)
{
        return w->interval_ns;
}
