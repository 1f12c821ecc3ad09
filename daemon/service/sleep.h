/* What the daemon does about the machine's sleep: no new steps, those that run end, then it may sleep; afterwards the
 * workers with a device of their own open it anew, and the jobs go on. Owners of NPUs report hangs after sleep, and a
 * GPU's memory may be lost in it. Where no logind announces it, a device that was lost is noticed as any other time. */
#ifndef TDM_DAEMON_SERVICE_SLEEP_H
#define TDM_DAEMON_SERVICE_SLEEP_H

#include "daemon/schedule/scheduler.h"

struct tdm_sleep;

/* All borrowed, and alive until it is destroyed. */
int tdm_sleep_new(struct tdm_sleep **ret, struct tdm_loop *loop, struct tdm_scheduler *scheduler,
                  struct tdm_fleet *fleet);
void tdm_sleep_destroyp(struct tdm_sleep **sleep);

#endif
