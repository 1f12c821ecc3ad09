/* The service manager's watchdog ($WATCHDOG_USEC), told that we are alive only while that is true: a turn of the loop
 * alone proves nothing when jobs lie there and none of them moves. A ping needs the loop to turn, and either nothing to
 * do or something done since the last interval. Loop thread only. Without a watchdog it does nothing. */
#ifndef TDM_DAEMON_SERVICE_WATCHDOG_H
#define TDM_DAEMON_SERVICE_WATCHDOG_H

#include "common/loop.h"

struct tdm_watchdog;

struct tdm_watchdog_ops {
        /* There is work that could go on now: nobody outside is waited for. */
        bool (*has_work)(void *userdata);
        /* Another number than before when anything was done; equal when nothing was. */
        uint64_t (*progress)(void *userdata);
        /* One line for `systemctl status`. */
        void (*describe)(char *text, size_t size, void *userdata);
};

int tdm_watchdog_new(struct tdm_watchdog **ret, struct tdm_loop *loop, const struct tdm_watchdog_ops *ops,
                     void *userdata);
void tdm_watchdog_destroy(struct tdm_watchdog *watchdog);
void tdm_watchdog_destroyp(struct tdm_watchdog **watchdog);
/* Work without progress for longer than this is a stuck daemon, and the pings stop. 0: there is no watchdog. */
uint64_t tdm_watchdog_interval_ns(const struct tdm_watchdog *watchdog);

#endif
