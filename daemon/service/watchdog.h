/* The service manager's watchdog ($WATCHDOG_USEC). It is pinged only while the daemon works: a turn of the loop alone
 * proves nothing when there are jobs and none of them advances. A ping needs a turn of the loop, and either no work or
 * progress since the last interval. Loop thread only. Without a watchdog it does nothing. */
#ifndef TDM_DAEMON_SERVICE_WATCHDOG_H
#define TDM_DAEMON_SERVICE_WATCHDOG_H

#include "common/loop.h"

struct tdm_watchdog;

struct tdm_watchdog_ops {
        /* There is work that waits for no client. */
        bool (*has_work)(void *userdata);
        /* A number that changes when anything was done, and is equal when nothing was. */
        uint64_t (*progress)(void *userdata);
        /* One line for `systemctl status`. */
        void (*describe)(char *text, size_t size, void *userdata);
};

int tdm_watchdog_new(struct tdm_watchdog **ret, struct tdm_loop *loop, const struct tdm_watchdog_ops *ops,
                     void *userdata);
void tdm_watchdog_destroy(struct tdm_watchdog *watchdog);
void tdm_watchdog_destroyp(struct tdm_watchdog **watchdog);
/* Work without progress for longer than this means a stuck daemon: the pings stop. 0: there is no watchdog. */
uint64_t tdm_watchdog_interval_ns(const struct tdm_watchdog *watchdog);

#endif
