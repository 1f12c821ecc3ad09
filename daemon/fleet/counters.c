/* The counters of workers, over their lives, and what a status says of them. */
#include "daemon/fleet/private.h"

/* A worker's counters are its own word. None can have grown faster than its life allows, and none falls: a count of
 * anything is below the nanoseconds of its life. *seen is the counter as it was last believed in this life. */
static uint64_t believed(const struct tdm_fleet_worker *w, const _Atomic uint64_t *word, unsigned factor,
                         uint64_t *seen)
{
        uint64_t life_ns = tdm_now_ns() - w->process.started_ns, now = atomic_load_explicit(word, memory_order_relaxed);

        *seen = TDM_MAX(*seen, TDM_MIN(now, life_ns * factor));
        return *seen;
}

static void read_kind(struct tdm_fleet_worker *w, unsigned kind, uint64_t *blocks, uint64_t *rows, uint64_t *ns)
{
        *blocks = w->past.kinds[kind].blocks;
        *rows = w->past.kinds[kind].rows;
        *ns = w->past.kinds[kind].ns;
        if (!w->progress)
                return;
        *blocks += believed(w, &w->progress->kinds[kind].blocks, 1, &w->seen.kinds[kind].blocks);
        *rows += believed(w, &w->progress->kinds[kind].rows, 1, &w->seen.kinds[kind].rows);
        *ns += believed(w, &w->progress->kinds[kind].ns, 1, &w->seen.kinds[kind].ns);
}

static uint64_t busy_ns(struct tdm_fleet_worker *w)
{
        return w->past.busy_ns + (w->progress ? believed(w, &w->progress->busy_ns, 1, &w->seen.busy_ns) : 0);
}

static uint64_t waiting_ns(struct tdm_fleet_worker *w)
{
        uint64_t now = tdm_now_ns(), since, waited;

        if (!w->progress)
                return w->past.waiting_ns;
        waited = believed(w, &w->progress->waiting_ns, 1, &w->seen.waiting_ns);
        since = atomic_load_explicit(&w->progress->waiting_since_ns, memory_order_relaxed);
        if (since >= w->process.started_ns && since < now)
                waited = TDM_MIN(waited + (now - since), now - w->process.started_ns);
        return w->past.waiting_ns + waited;
}

static uint64_t handovers(struct tdm_fleet_worker *w)
{
        return w->past.handovers + (w->progress ? believed(w, &w->progress->handovers, 1, &w->seen.handovers) : 0);
}

/* Several descriptors may lie in the rings at once. */
static uint64_t handover_ns(struct tdm_fleet_worker *w)
{
        return w->past.handover_ns + (w->progress ? believed(w, &w->progress->handover_ns, 2 * TDM_WORKER_RING_ENTRIES,
                                                             &w->seen.handover_ns) :
                                                    0);
}

void tdm_fleet_fold_progress(struct tdm_fleet_worker *w)
{
        w->past.busy_ns = busy_ns(w);
        w->past.waiting_ns = waiting_ns(w);
        w->past.handovers = handovers(w);
        w->past.handover_ns = handover_ns(w);
        for (unsigned i = 0; i < TDM_N_BLOCK_KINDS; i++) {
                uint64_t blocks, rows, ns;

                read_kind(w, i, &blocks, &rows, &ns);
                w->past.kinds[i].blocks = blocks;
                w->past.kinds[i].rows = rows;
                w->past.kinds[i].ns = ns;
        }
        memset(&w->seen, 0, sizeof(w->seen));
        w->progress = NULL;
        tdm_fleet_keep_trace(w);
}

static uint64_t load64(const _Atomic uint64_t *word)
{
        return atomic_load_explicit(word, memory_order_relaxed);
}

static uint32_t load32(const _Atomic uint32_t *word)
{
        return atomic_load_explicit(word, memory_order_relaxed);
}

static void read_use(const struct tdm_device_counters *c, struct tdm_device_use *ret)
{
        *ret = (struct tdm_device_use){
                .device_macs = load64(&c->device_macs),
                .host_macs = load64(&c->host_macs),
                .blocks = load64(&c->blocks),
                .submissions = load64(&c->submissions),
                .commands = load64(&c->commands),
                .repeats = load64(&c->repeats),
                .contexts = load64(&c->contexts),
                .sampled_ns = load64(&c->sampled_ns),
                .context_errors = load64(&c->context_errors),
                .n_contexts = load32(&c->n_contexts),
                .power_mw = load32(&c->power_mw),
                .utilisation_permille = TDM_MIN(load32(&c->utilisation_permille), 1000u),
                .temperature_mc = load32(&c->temperature_mc),
        };
}

static void add_plan(const struct tdm_fleet_entry *entry, enum tdm_worker_index worker, char *text, size_t size)
{
        size_t n = strlen(text);

        if (entry->on[worker].plan[0] && entry->on[worker].load == TDM_FLEET_LOADED) {
                snprintf(text + n, size - n, "%s%s: %s", n ? "; " : "", entry->name, entry->on[worker].plan);
                tdm_utf8_mend(text + n); /* it may be cut within a character of UTF-8 */
        }
}

void tdm_fleet_worker_status(struct tdm_fleet *f, enum tdm_worker_index worker, struct tdm_worker_status *ret)
{
        struct tdm_fleet_worker *w = &f->workers[worker];

        memset(ret, 0, sizeof(*ret));
        ret->name = w->name;
        ret->requested = w->requested;
        ret->device = w->about.device;
        ret->detail = w->about.detail;
        ret->last_exit = w->record.last_exit;
        ret->sandbox = w->about.sandbox;
        ret->numerics_id = w->about.numerics_id;
        ret->state = w->state;
        ret->pid = w->process.pid;
        ret->restarts = w->record.restarts;
        ret->started_ns = w->process.phase == TDM_FLEET_NO_PROCESS ? 0 : w->process.started_ns;
        ret->busy_ns = busy_ns(w);
        ret->waiting_ns = waiting_ns(w);
        ret->handovers = handovers(w);
        ret->handover_ns = handover_ns(w);
        ret->reason = w->about.reason;
        if (w->progress)
                read_use(&w->progress->device, &ret->use);
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i]) {
                        ret->scratch_bytes += f->models[i]->on[w->index].scratch_bytes;
                        add_plan(f->models[i], w->index, ret->plan, sizeof(ret->plan));
                }
        for (unsigned i = 0; i < TDM_N_BLOCK_KINDS; i++)
                read_kind(w, i, &ret->done[i].blocks, &ret->done[i].rows, &ret->done[i].ns);
}
