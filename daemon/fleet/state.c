/* What others may ask about the workers: whether steps can be submitted, and what placement has to know of them. */
#include "daemon/fleet/private.h"

const char *tdm_worker_state_name(enum tdm_worker_state state)
{
        static const char *const names[] = {
                [TDM_WORKER_OFF] = "off",
                [TDM_WORKER_STARTING] = "starting",
                [TDM_WORKER_READY] = "ready",
                [TDM_WORKER_RESTARTING] = "restarting",
                [TDM_WORKER_QUARANTINED] = "quarantined",
        };

        return (size_t)state < TDM_ARRAY_SIZE(names) ? names[state] : "unknown";
}

struct tdm_fleet_entry *tdm_fleet_find(struct tdm_fleet *f, uint32_t model_id)
{
        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && f->models[i]->model.model_id == model_id)
                        return f->models[i];
        return NULL;
}

bool tdm_fleet_link_is_cut(const struct tdm_fleet *f)
{
        return f->link_until_ns != 0;
}

bool tdm_fleet_is_ready(const struct tdm_fleet *f)
{
        return f->ready;
}

uint32_t tdm_fleet_epoch(const struct tdm_fleet *f)
{
        return f->epoch;
}

uint64_t tdm_fleet_recoveries(const struct tdm_fleet *f)
{
        return f->recoveries;
}

uint64_t tdm_fleet_model_scratch(struct tdm_fleet *f, uint32_t model_id)
{
        struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);
        uint64_t bytes = 0;

        for (unsigned i = 0; entry && i < TDM_N_WORKERS; i++)
                bytes += entry->on[i].scratch_bytes;
        return bytes;
}

uint64_t tdm_fleet_busy_ns(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        const struct tdm_progress *p = f->workers[worker].progress;

        return p ? atomic_load_explicit(&p->busy_ns, memory_order_relaxed) : 0;
}

bool tdm_fleet_worker_is_up(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        const struct tdm_fleet_worker *w = &f->workers[worker];

        return f->ready && w->process.phase == TDM_FLEET_PROCESS_UP && w->link.ready_epoch == f->epoch;
}

bool tdm_fleet_is_degraded(const struct tdm_fleet *f)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++)
                if (f->workers[i].state == TDM_WORKER_QUARANTINED)
                        return true;
        return false;
}

const char *tdm_fleet_missed_name(const struct tdm_fleet *f)
{
        const struct tdm_fleet_worker *w = tdm_fleet_missed(f);

        return w ? w->name : NULL;
}

/* The worker runs the model on its host device, as its own does not compute it. */
static bool is_left_to_host(const struct tdm_fleet_worker *w, const struct tdm_fleet_model *model)
{
        return tdm_device_needs_meet(&w->about.left, &model->needs);
}

static const char *numerics_id(const struct tdm_fleet_worker *w, const struct tdm_fleet_entry *entry)
{
        return entry && is_left_to_host(w, &entry->model) ? w->about.left_numerics_id : w->about.numerics_id;
}

bool tdm_fleet_equal_bits(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry)
{
        const char *npu = numerics_id(&f->workers[TDM_WORKER_NPU], entry);

        return npu[0] && strcmp(npu, numerics_id(&f->workers[TDM_WORKER_GPU], entry)) == 0;
}

const char *tdm_fleet_numerics_id(struct tdm_fleet *f, enum tdm_worker_index worker, uint32_t model_id)
{
        return numerics_id(&f->workers[worker], tdm_fleet_find(f, model_id));
}

/* How much all models take of the memory that a worker's device has for them. */
static uint64_t taken_bytes(const struct tdm_fleet *f, const struct tdm_fleet_worker *w)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < TDM_FLEET_MODELS; i++)
                if (f->models[i] && !f->models[i]->leaving && !is_left_to_host(w, &f->models[i]->model))
                        bytes += f->models[i]->model.weights->size_bytes + f->models[i]->model.kv_geometry.size_bytes;
        return bytes;
}

bool tdm_fleet_cache_room(const struct tdm_fleet *f, uint64_t weights_bytes, const struct tdm_device_needs *needs,
                          uint64_t *ret_bytes)
{
        uint64_t least = UINT64_MAX;

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                const struct tdm_fleet_worker *w = &f->workers[i];
                uint64_t bytes = w->about.memory.cache_bytes_max;

                if (!w->pinned && tdm_fleet_usable(w))
                        return false;
                if (bytes == 0 || tdm_device_needs_meet(&w->about.left, needs))
                        continue;
                if (w->about.memory.holds_weights)
                        bytes -= TDM_MIN(bytes, weights_bytes + taken_bytes(f, w));
                least = TDM_MIN(least, bytes);
        }
        *ret_bytes = least;
        return true;
}

bool tdm_fleet_wants_panels(const struct tdm_fleet *f)
{
        return strcmp(f->workers[TDM_WORKER_GPU].about.device, "vulkan") == 0;
}

static bool runs_on_host(const struct tdm_fleet_worker *w, const struct tdm_fleet_entry *entry)
{
        return strcmp(w->about.device, "host") == 0 || (entry && is_left_to_host(w, &entry->model));
}

static bool shares_cpus(const struct tdm_fleet *f, const struct tdm_fleet_entry *entry)
{
        const struct tdm_fleet_worker *npu = &f->workers[TDM_WORKER_NPU], *gpu = &f->workers[TDM_WORKER_GPU];
        cpu_set_t both;

        CPU_AND(&both, &npu->cpus, &gpu->cpus);
        return runs_on_host(npu, entry) && runs_on_host(gpu, entry) && CPU_COUNT(&both) > 0;
}

void tdm_fleet_placement_workers(struct tdm_fleet *f, uint32_t model_id, struct tdm_placement_workers *ret)
{
        const struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                ret->of[i].usable = tdm_fleet_usable(&f->workers[i]);
                ret->of[i].given_up = tdm_fleet_given_up(&f->workers[i]);
                ret->of[i].up = tdm_fleet_worker_is_up(f, (enum tdm_worker_index)i);
        }
        ret->equal_bits = tdm_fleet_equal_bits(f, entry);
        ret->no_link = tdm_fleet_link_is_cut(f);
        ret->shares_cpus = shares_cpus(f, entry);
        ret->degraded = tdm_fleet_is_degraded(f);
}

enum tdm_placement tdm_fleet_found(struct tdm_fleet *f, uint32_t model_id)
{
        const struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);

        return entry ? entry->measured : TDM_PLACEMENT_ANY;
}

enum tdm_placement tdm_fleet_measured(struct tdm_fleet *f, uint32_t model_id)
{
        const struct tdm_fleet_entry *entry = tdm_fleet_find(f, model_id);
        struct tdm_placement_workers workers;

        tdm_fleet_placement_workers(f, model_id, &workers);
        return tdm_placement_measured(&workers, entry ? entry->measured : TDM_PLACEMENT_ANY);
}
