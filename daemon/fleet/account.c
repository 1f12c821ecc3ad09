/* The price of a loss: the worker's account, the model that it was taking, and lines of the log.
 *
 * A worker may be compromised, so a count of deaths that each finished step clears is not enough: it would finish a
 * step and break a rule, for ever, and each time an epoch would end for both workers. Every loss and breach is charged
 * to the worker whose doing it is. The account forgets with time alone. A worker that uses up its account is
 * quarantined. So the number of epochs that one worker can end is bounded, and so is the log. */
#include "daemon/fleet/private.h"

/* How much the account forgets in a second, and how much it holds at most. */
#define FORGET_PER_SEC 4u
#define ACCOUNT 160u

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

/* The other worker may yet take the model, and has lost no life over it: it will show whether the model is good. */
static bool other_will_show(struct tdm_fleet_worker *w, const struct tdm_fleet_entry *entry)
{
        const struct tdm_fleet_worker *other = tdm_fleet_other(w);

        return tdm_fleet_usable(other) && entry->on[other->index].n_lost == 0 && !entry->on[other->index].proved;
}

void tdm_fleet_blame_model(struct tdm_fleet_worker *w, const char *reason)
{
        struct tdm_fleet_entry *entry = being_taken(w);
        unsigned n, n_other;

        if (!entry || entry->leaving || entry->on[w->index].proved ||
            (entry->on[tdm_fleet_other(w)->index].proved && !w->record.took_one))
                return;
        n = ++entry->on[w->index].n_lost;
        n_other = entry->on[tdm_fleet_other(w)->index].n_lost;
        if (n_other == 0 && (n < TDM_FLEET_MAX_DEATHS - 1 || (!w->record.took_one && other_will_show(w, entry))))
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
