/* Who runs which block, and what "measured" means.
 *
 * Devices with equal numerics ids give equal bits, so where a step runs does not matter to anybody but the clock: on
 * two sets of CPUs (or two pieces of hardware) every step goes to the worker that will be free first; on one set the
 * second worker would only take from the first what it needs, so all runs on one, and the other is there for when that
 * dies. Devices that differ keep one plan per model (measure.c), because a job's bits depend on it. The scheduler deals
 * the steps out; here is only said what is possible. */
#include "daemon/fleet/private.h"

const char *tdm_measured_name(enum tdm_measured measured)
{
        static const char *const names[] = {
                [TDM_MEASURED_SPLIT] = "split",       [TDM_MEASURED_NPU] = "single npu",
                [TDM_MEASURED_GPU] = "single gpu",    [TDM_MEASURED_EITHER] = "single, the other in reserve",
                [TDM_MEASURED_BALANCED] = "balanced",
        };

        return (size_t)measured < TDM_ARRAY_SIZE(names) ? names[measured] : "unknown";
}

bool tdm_fleet_equal_bits(const struct tdm_fleet *f)
{
        const struct tdm_fleet_worker *npu = &f->workers[TDM_WORKER_NPU], *gpu = &f->workers[TDM_WORKER_GPU];

        return npu->numerics_id[0] && strcmp(npu->numerics_id, gpu->numerics_id) == 0;
}

bool tdm_fleet_shares_cpus(const struct tdm_fleet *f)
{
        const struct tdm_fleet_worker *npu = &f->workers[TDM_WORKER_NPU], *gpu = &f->workers[TDM_WORKER_GPU];
        cpu_set_t both;

        CPU_AND(&both, &npu->cpus, &gpu->cpus);
        return strcmp(npu->device, "host") == 0 && strcmp(gpu->device, "host") == 0 && CPU_COUNT(&both) > 0;
}

enum tdm_measured tdm_fleet_measured(struct tdm_fleet *f, uint32_t model_id)
{
        const struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        if (!tdm_fleet_usable(&f->workers[TDM_WORKER_GPU]))
                return TDM_MEASURED_NPU;
        if (!tdm_fleet_usable(&f->workers[TDM_WORKER_NPU]))
                return TDM_MEASURED_GPU;
        if (!tdm_fleet_equal_bits(f))
                return entry ? entry->measured : TDM_MEASURED_SPLIT;
        return tdm_fleet_shares_cpus(f) ? TDM_MEASURED_EITHER : TDM_MEASURED_BALANCED;
}

bool tdm_fleet_worker_is_up(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        const struct tdm_fleet_worker *w = &f->workers[worker];

        return f->ready && w->phase == TDM_FLEET_PROCESS_UP && w->ready_epoch == f->epoch;
}

bool tdm_fleet_is_degraded(const struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (f->workers[i].state == TDM_WORKER_QUARANTINED)
                        return true;
        return false;
}

uint64_t tdm_fleet_busy_ns(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        const struct tdm_progress *p = f->workers[worker].progress;

        return p ? atomic_load_explicit(&p->busy_ns, memory_order_relaxed) : 0;
}

int tdm_fleet_plan(struct tdm_fleet *f, const struct tdm_hparams *hp, const char *placement, uint8_t *plan,
                   bool *ret_degraded)
{
        bool usable[TDM_N_WORKERS], degraded = false;
        enum tdm_worker_index attention, rest;
        uint32_t n_blocks = tdm_model_n_blocks(hp);

        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                usable[i] = tdm_fleet_usable(&f->workers[i]);

        if (strcmp(placement, "split") == 0) {
                attention = TDM_WORKER_NPU;
                rest = TDM_WORKER_GPU;
        } else if (strcmp(placement, "npu") == 0) {
                attention = rest = TDM_WORKER_NPU;
        } else if (strcmp(placement, "gpu") == 0) {
                attention = rest = TDM_WORKER_GPU;
        } else if (!*placement) {
                attention = usable[TDM_WORKER_NPU] ? TDM_WORKER_NPU : TDM_WORKER_GPU;
                rest = usable[TDM_WORKER_GPU] ? TDM_WORKER_GPU : TDM_WORKER_NPU;
                degraded = tdm_fleet_is_degraded(f);
        } else {
                return -EINVAL;
        }
        if (tdm_fleet_given_up(&f->workers[attention]) || tdm_fleet_given_up(&f->workers[rest]))
                return -EHOSTDOWN;
        degraded = degraded || !usable[attention] || !usable[rest];
        for (uint32_t b = 0; b < n_blocks; b++)
                plan[b] = (uint8_t)(tdm_block_kind(hp, b) == TDM_BLOCK_ATTENTION ? attention : rest);
        if (ret_degraded)
                *ret_degraded = degraded;
        return 0;
}
