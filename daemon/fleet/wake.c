/* Wakes the pump and the watch, later, from the loop. So any file may do it, in the middle of anything. */
#include "daemon/fleet/private.h"

#define TICK_MAX_NS (100 * TDM_NSEC_PER_MSEC)
#define TICK_MIN_NS (5 * TDM_NSEC_PER_MSEC)

void tdm_fleet_pump_soon(struct tdm_fleet *f)
{
        if (!f->destroying)
                tdm_source_schedule(f->pump);
}

uint64_t tdm_fleet_tick_ns(const struct tdm_fleet *f)
{
        return TDM_MAX(TICK_MIN_NS, TDM_MIN(f->hang_min_ns / 8, TICK_MAX_NS));
}

void tdm_fleet_watch_at(struct tdm_fleet *f, uint64_t due_ns)
{
        if (f->destroying || (f->watch_due_ns != 0 && f->watch_due_ns <= due_ns))
                return;
        f->watch_due_ns = due_ns;
        tdm_source_arm(f->watch, due_ns);
}

void tdm_fleet_watch_soon(struct tdm_fleet *f)
{
        tdm_fleet_watch_at(f, tdm_now_ns() + tdm_fleet_tick_ns(f));
}

void tdm_fleet_heard(struct tdm_fleet_worker *w)
{
        w->silence.control_ns = w->silence.control_busy_ns = 0;
        w->silence.control_sample.n = 0;
        w->silence.control_sample.forgiven_ns = 0;
}

void tdm_fleet_cannot_send(struct tdm_fleet_worker *w, int r)
{
        if (r == -EPIPE) { /* the worker is dying; its pidfd will say of what */
                w->link.conn_lost = true;
                tdm_fleet_heard(w);
                tdm_fleet_watch_soon(w->fleet);
                return;
        }
        w->link.send_error = r;
        tdm_fleet_pump_soon(w->fleet);
}
