/* What the fleet says of steps goes to results.c and recover.c. */
#include "daemon/schedule/private.h"

void tdm_scheduler_set_fleet(struct tdm_scheduler *s, struct tdm_fleet *fleet)
{
        static const struct tdm_fleet_step_events events = {
                .done = tdm_scheduler_on_step_done,
                .failed = tdm_scheduler_on_step_failed,
                .reset = tdm_scheduler_on_reset,
        };

        if (s->fleet)
                tdm_fleet_listen(s->fleet, NULL, NULL);
        s->fleet = fleet;
        if (fleet)
                tdm_fleet_listen(fleet, &events, s);
}
