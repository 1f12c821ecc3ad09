/* What workers say of themselves and of the models that they are given. Each message changes state and schedules the
 * pump, which does what is due. */
#include "daemon/fleet/private.h"

/* More memory than any machine has. What a worker says it uses is summed up and shown. */
#define SCRATCH_MAX (UINT64_C(1) << 48)

void tdm_fleet_on_hello(struct tdm_fleet_worker *w)
{
        w->process.phase = TDM_FLEET_PROCESS_UP;
        w->pinned = true;
        w->no_device = false;
        if (tdm_fleet_may_log(w, TDM_FLEET_LOG_STARTED))
                tdm_log_info("%s worker: pid %d, %s (%s), asked for %s%s%s, sandbox: %s", w->name, (int)w->process.pid,
                             w->about.device, w->about.detail, w->requested, w->about.reason[0] ? ": " : "",
                             w->about.reason, w->about.sandbox);
        tdm_fleet_pump_soon(w->fleet);
}

void tdm_fleet_on_no_device(struct tdm_fleet_worker *w, const char *reason)
{
        /* A device that was there may come back: it sleeps, or its driver is loaded anew. So this life counts as one
         * that ended, and the next is tried as usual. A device that never was would say the same again. */
        w->no_device = !w->pinned;
        w->device_gone = w->pinned;
        tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "%s", reason);
}

void tdm_fleet_on_weights_taken(struct tdm_fleet_worker *w, uint32_t model_id, uint32_t n_chunks)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(w->fleet, model_id);

        if (!entry || entry->on[w->index].load != TDM_FLEET_LOADING)
                return;
        if (n_chunks < entry->on[w->index].n_taken || n_chunks > entry->on[w->index].n_sent) {
                tdm_fleet_worker_breach(w, "it says it has %u chunks of model %u, of which it was sent %u", n_chunks,
                                        model_id, entry->on[w->index].n_sent);
                return;
        }
        entry->on[w->index].n_taken = n_chunks;
        tdm_fleet_pump_soon(w->fleet);
}

void tdm_fleet_on_loaded(struct tdm_fleet_worker *w, uint32_t model_id, uint64_t scratch_bytes, const char *plan)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(w->fleet, model_id);

        if (!entry || entry->on[w->index].load != TDM_FLEET_LOADING || entry->on[w->index].n_sent < entry->n_chunks) {
                tdm_fleet_worker_breach(w, "it says it has loaded model %u, which nobody asked for", model_id);
                return;
        }
        if (scratch_bytes > SCRATCH_MAX) {
                tdm_fleet_worker_breach(w, "it says that model %u takes %llu bytes of it", model_id,
                                        (unsigned long long)scratch_bytes);
                return;
        }
        entry->on[w->index].load = TDM_FLEET_LOADED;
        entry->on[w->index].proved = true;
        w->record.took_one = true;
        entry->on[w->index].scratch_bytes = scratch_bytes;
        tdm_utf8_copy(entry->on[w->index].plan, sizeof(entry->on[w->index].plan), plan);
        tdm_fleet_pump_soon(w->fleet);
}

void tdm_fleet_on_load_failed(struct tdm_fleet_worker *w, uint32_t model_id, int code, const char *message)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(w->fleet, model_id);

        if (!entry)
                return;
        /* A failure to map the KV segment comes here too. The model is loaded then. */
        if (!entry->leaving && (entry->on[w->index].load == TDM_FLEET_LOADED ? entry->kv_proved : entry->announced)) {
                /* A worker has mapped this segment before, so the fault is this process's, not the model's. */
                tdm_fleet_worker_lost(w, TDM_FLEET_NO_BLAME, "%s", message);
                return;
        }
        if (entry->on[w->index].load == TDM_FLEET_LOADING)
                entry->on[w->index].load = TDM_FLEET_ABSENT;
        entry->on[w->index].kv = TDM_FLEET_KV_NONE;
        if (!entry->leaving) {
                entry->leaving = true;
                entry->failed = true;
                memset(entry->steps, 0, sizeof(entry->steps));
                tdm_error_set(&entry->error, code, "%s", message);
        }
        tdm_fleet_pump_soon(w->fleet);
}

void tdm_fleet_on_kv_ready(struct tdm_fleet_worker *w, uint32_t model_id)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(w->fleet, model_id);

        if (!entry || entry->on[w->index].kv != TDM_FLEET_KV_ASKED)
                return;
        entry->on[w->index].kv = TDM_FLEET_KV_GRANTED;
        entry->kv_proved = true;
        if (w->fleet->ready)
                tdm_fleet_flush_queued(w->fleet, entry);
}

void tdm_fleet_on_unloaded(struct tdm_fleet_worker *w, uint32_t model_id)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(w->fleet, model_id);

        if (!entry || entry->on[w->index].load != TDM_FLEET_UNLOADING)
                return;
        entry->on[w->index].load = TDM_FLEET_ABSENT;
        entry->on[w->index].kv = TDM_FLEET_KV_NONE;
        entry->on[w->index].scratch_bytes = 0;
        tdm_fleet_pump_soon(w->fleet);
}
