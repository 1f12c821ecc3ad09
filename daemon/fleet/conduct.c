/* How a worker behaves: what each loss and each breach of a rule is charged, and what an accusation costs.
 *
 * A worker may be compromised, so a count of deaths that each finished step clears is not enough: it would finish a
 * step and break a rule, for ever, and each time an epoch would end for both workers. Every loss and breach is charged
 * to the worker whose doing it is. The account forgets with time alone. A worker that uses up its account is
 * quarantined. So the number of epochs that one worker can end is bounded, and so is the log.
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

#include <stdarg.h>

/* What the account forgets in a second, and what it holds at most. */
#define FORGET_PER_SEC 4u
#define ACCOUNT 160u
/* Disputes that are further apart are not of one row. */
#define DISPUTE_NS (10 * TDM_NSEC_PER_SEC)
#define LINK_CUT_MAX_NS (600 * TDM_NSEC_PER_SEC)
#define LOG_NS TDM_NSEC_PER_SEC

bool tdm_fleet_charge(struct tdm_fleet_worker *w, unsigned amount)
{
        uint64_t now = tdm_now_ns(), step_ns = TDM_NSEC_PER_SEC / FORGET_PER_SEC;
        uint64_t forgotten = w->record.charged > 0 ? (now - w->record.charged_ns) / step_ns : 0;

        if (w->record.charged == 0 || forgotten >= w->record.charged) {
                w->record.charged = 0;
                w->record.charged_ns = now;
        } else {
                w->record.charged -= (unsigned)forgotten;
                w->record.charged_ns += forgotten * step_ns;
        }
        w->record.charged = TDM_MIN(w->record.charged + amount, ACCOUNT + 1);
        w->record.spent = w->record.spent || w->record.charged > ACCOUNT;
        return w->record.spent;
}

void tdm_fleet_forgive(struct tdm_fleet_worker *w)
{
        w->record.charged = 0;
        w->record.spent = false;
}

void tdm_fleet_on_probation(struct tdm_fleet_worker *w)
{
        w->record.spent = false;
        w->record.charged = ACCOUNT - TDM_FLEET_CHARGE_BREACH / 2;
        w->record.charged_ns = tdm_now_ns();
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

void tdm_fleet_bad_results(struct tdm_fleet *f, enum tdm_worker_index worker)
{
        struct tdm_fleet_worker *w = &f->workers[worker];

        w->link.bad_results = true; /* this is inside a call of the owner */
        tdm_fleet_pump_soon(f);
}

/* ---- models ---- */

/* A worker takes messages one after the other, in the order in which they were sent: the model whose chunk it has had
 * for longest. NULL: it has none that it has not dealt with. */
static struct tdm_fleet_entry *being_taken(const struct tdm_fleet_worker *w)
{
        struct tdm_fleet_entry *taken = NULL;
        uint32_t first = UINT32_MAX;

        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++) {
                struct tdm_fleet_entry *entry = w->fleet->models[i];
                uint32_t sent_in;

                if (!entry || entry->on[w->index].load != TDM_FLEET_LOADING ||
                    entry->on[w->index].n_taken >= entry->on[w->index].n_sent)
                        continue;
                sent_in = entry->on[w->index].sent_in[entry->on[w->index].n_taken % TDM_FLEET_CHUNKS_ON_THE_WAY];
                if (sent_in < first) {
                        first = sent_in;
                        taken = entry;
                }
        }
        return taken;
}

void tdm_fleet_blame_model(struct tdm_fleet_worker *w, const char *reason)
{
        struct tdm_fleet_entry *entry = being_taken(w);
        unsigned n, n_other;

        if (!entry || entry->leaving || entry->on[w->index].proved)
                return;
        n = ++entry->on[w->index].n_lost;
        n_other = entry->on[tdm_fleet_other(w)->index].n_lost;
        if (n_other == 0 && n < TDM_FLEET_MAX_DEATHS - 1)
                return;
        entry->leaving = true;
        entry->failed = true;
        memset(entry->steps, 0, sizeof(entry->steps));
        tdm_error_set(
                &entry->error, TDM_E_DEVICE_FAULT,
                "workers were lost %u times while they took model %s, at last the %s worker: %s; the model is not "
                "tried again, so that others can go on (damaged file? see the log)",
                n + n_other, entry->name, w->name, reason);
}

/* ---- the link ---- */

static void cut_link(struct tdm_fleet *f)
{
        f->n_disputes = 0;
        /* As long as a first quarantine, and twice as long each further time. */
        f->link_until_ns = f->disputed_ns + TDM_MIN(f->quarantine_ns << TDM_MIN(f->n_link_cuts, 10u), LINK_CUT_MAX_NS);
        f->n_link_cuts++;
        tdm_source_arm(f->link_timer, f->link_until_ns);
}

bool tdm_fleet_link_is_cut(const struct tdm_fleet *f)
{
        return f->link_until_ns != 0;
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

/* ---- the log ---- */

bool tdm_fleet_may_log(struct tdm_fleet_worker *w, enum tdm_fleet_log kind)
{
        static const unsigned burst[TDM_FLEET_N_LOGS] = {
                [TDM_FLEET_LOG_RING] = 3, [TDM_FLEET_LOG_LOST] = 100, [TDM_FLEET_LOG_STARTED] = 100
        };
        uint64_t now = tdm_now_ns(), seconds = (now - w->log[kind].at_ns) / TDM_NSEC_PER_SEC;

        if (seconds > 0) {
                w->log[kind].n -= (unsigned)TDM_MIN((uint64_t)w->log[kind].n, seconds);
                w->log[kind].at_ns = now;
        }
        if (w->log[kind].n >= burst[kind]) {
                w->log[kind].n_left_out++;
                return false;
        }
        if (w->log[kind].n_left_out > 0)
                tdm_log_warning("%u lines like the next one were left out", w->log[kind].n_left_out);
        w->log[kind].n++;
        w->log[kind].n_left_out = 0;
        return true;
}
