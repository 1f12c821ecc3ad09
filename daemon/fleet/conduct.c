/* Faults of rings and accusations: who pays for them, and when the link between the workers is cut.
 *
 * A worker that reports the ring to its peer accuses the peer. tandemd cannot tell which of the two lies, because both
 * can write every byte of the ring. So neither is believed. The epoch ends. After a few accusations both workers are
 * restarted, and the link is cut: the next epochs have no rings between the workers, and every step runs whole on one
 * of them. A worker that accuses a peer which it has no ring to breaks a rule, and it alone pays. The link is tried
 * again after a time that grows. A worker's progress can accuse its peer too: it says that a block is done, so that the
 * peer seems to hang in the next. A peer that answers a ping meanwhile does not hang, and what it did not get is such a
 * dispute, charged to the one that claims to have handed it on. So neither a false accusation nor a ring that is really
 * scribbled on stops the honest worker. */
#include "daemon/fleet/private.h"

/* Disputes that are further apart are not of one row. */
#define DISPUTE_NS (10 * TDM_NSEC_PER_SEC)
#define LINK_CUT_MAX_NS (600 * TDM_NSEC_PER_SEC)

void tdm_fleet_bad_results(struct tdm_fleet *f, enum tdm_worker_index worker)
{
        struct tdm_fleet_worker *w = &f->workers[worker];

        w->link.bad_results = true; /* this is inside a call of the owner */
        tdm_fleet_pump_soon(f);
}

void tdm_fleet_ring_fault(struct tdm_fleet_worker *guilty, const char *reason)
{
        char text[256];

        snprintf(text, sizeof(text), "bad ring of the %s worker: %s", guilty->name, reason);
        tdm_utf8_mend(text);
        if (tdm_fleet_charge(guilty, TDM_FLEET_CHARGE_RING)) {
                tdm_fleet_worker_lost(guilty, TDM_FLEET_NO_BLAME, "%s, too often", text);
                return;
        }
        if (++guilty->record.ring_faults >= TDM_FLEET_MAX_RING_FAULTS) {
                guilty->record.ring_faults = 0;
                tdm_fleet_worker_lost(guilty, TDM_FLEET_NO_BLAME, "%s, %u times with no finished step between", text,
                                      TDM_FLEET_MAX_RING_FAULTS);
                return;
        }
        if (tdm_fleet_may_log(guilty, TDM_FLEET_LOG_RING))
                tdm_log_warning("%s; opening a new epoch", text);
        tdm_fleet_end_epoch(guilty->fleet, guilty->index, text, 0);
}

/* ---- the link ---- */

static void cut_link(struct tdm_fleet *f)
{
        f->n_disputes = 0;
        /* The cut lasts as long as a first quarantine, and twice as long each further time. */
        f->link_until_ns = f->disputed_ns + TDM_MIN(f->quarantine_ns << TDM_MIN(f->n_link_cuts, 10u), LINK_CUT_MAX_NS);
        f->n_link_cuts++;
        tdm_source_arm(f->link_timer, f->link_until_ns);
}

static int on_link_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_fleet *f = userdata;

        f->link_until_ns = 0;
        if (!f->rings.made || f->rings.has_peer || !tdm_fleet_usable(&f->workers[TDM_WORKER_NPU]) ||
            !tdm_fleet_usable(&f->workers[TDM_WORKER_GPU]))
                return 0; /* the next epoch has the rings, where there are two workers */
        tdm_log_info("the workers get rings to each other again");
        tdm_fleet_end_epoch(f, TDM_WORKER_NPU, "the workers get rings to each other again", 0);
        return 0;
}

int tdm_fleet_conduct_init(struct tdm_fleet *f)
{
        return tdm_loop_add_timer(f->loop, on_link_timer, f, &f->link_timer);
}

/* w pays. */
static void dispute(struct tdm_fleet_worker *w, const char *text)
{
        struct tdm_fleet *f = w->fleet;
        struct tdm_fleet_worker *other = tdm_fleet_other(w);
        uint64_t now = tdm_now_ns();

        if (f->disputed_ns != 0 && now - f->disputed_ns > LINK_CUT_MAX_NS)
                f->n_link_cuts = 0;
        f->n_disputes = f->disputed_ns != 0 && now - f->disputed_ns < DISPUTE_NS ? f->n_disputes + 1 : 1;
        f->disputed_ns = now;
        tdm_fleet_charge(w, TDM_FLEET_CHARGE_RING);
        if (!w->record.spent && f->n_disputes < TDM_FLEET_MAX_RING_FAULTS) {
                if (tdm_fleet_may_log(w, TDM_FLEET_LOG_RING))
                        tdm_log_warning("%s; opening a new epoch", text);
                tdm_fleet_end_epoch(f, other->index, text, 0);
                return;
        }
        cut_link(f);
        tdm_log_warning("%s, %u times; restarting both, and cutting the link for %.1f s", text,
                        TDM_FLEET_MAX_RING_FAULTS, (double)(f->link_until_ns - now) / 1e9);
        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "it accuses the %s worker again and again", other->name);
        tdm_fleet_worker_lost(other, TDM_FLEET_NO_BLAME, "the %s worker accuses it again and again", w->name);
}

void tdm_fleet_on_false_claim(struct tdm_fleet_worker *w)
{
        struct tdm_fleet_worker *other = tdm_fleet_other(w);
        char text[256];

        snprintf(text, sizeof(text), "the %s worker says that it handed a step on, and the %s worker has none",
                 other->name, w->name);
        dispute(other, text);
}

void tdm_fleet_on_ring_fault(struct tdm_fleet_worker *w, uint32_t epoch, bool with_peer, const char *reason)
{
        const struct tdm_fleet *f = w->fleet;
        char text[256];

        /* A worker drops its rings before it says so. It cannot have found anything in one epoch twice, nor in an epoch
         * that it has not joined. */
        if (epoch > w->link.epoch_acked || epoch <= w->link.accused_epoch) {
                tdm_fleet_worker_breach(w, "it reports a ring of epoch %u, of which it has none", epoch);
                return;
        }
        w->link.accused_epoch = epoch;
        if (epoch != f->epoch)
                return; /* the message is about rings that are gone */
        /* tandemd does not scribble, so a worker that reports its ring with tandemd is at fault itself, or the memory
         * is. */
        if (!with_peer)
                tdm_fleet_ring_fault(w, reason);
        else if (!f->rings.has_peer || tdm_fleet_other(w)->link.epoch_sent != f->epoch)
                tdm_fleet_worker_breach(w, "it accuses a peer that has no ring to it");
        else {
                snprintf(text, sizeof(text), "bad ring between the workers, says the %s worker: %s", w->name, reason);
                tdm_utf8_mend(text);
                dispute(w, text);
        }
}
