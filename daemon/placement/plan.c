/* The names of placements, which placement "measured" is, and the plan of a placement.
 *
 * Devices with equal numerics ids give equal bits, so a step may run on either. With CPUs (or hardware) of their own,
 * both workers run steps, each whole steps. On the same CPUs a second worker would take its time from the first one, so
 * one worker runs all steps, and the other one is in reserve for its death. Devices that differ in bits keep one
 * placement for each model (measure.c), because a job's bits depend on it. */
#include "daemon/placement/placement.h"

static const struct {
        const char *name, *text;
} placements[TDM_N_PLACEMENTS] = {
        [TDM_PLACEMENT_ANY] = { "", "measured" },
        [TDM_PLACEMENT_SPLIT] = { "split", "split" },
        [TDM_PLACEMENT_NPU] = { "npu", "npu alone" },
        [TDM_PLACEMENT_GPU] = { "gpu", "gpu alone" },
        [TDM_PLACEMENT_STANDBY] = { "standby", "one worker, the other in reserve" },
        [TDM_PLACEMENT_BALANCED] = { "balanced", "balanced" },
};

const char *tdm_placement_name(enum tdm_placement placement)
{
        return placements[placement].name;
}

int tdm_placement_from_name(const char *name)
{
        for (int i = 0; i < (int)TDM_N_ASKED_PLACEMENTS; i++)
                if (strcmp(name, placements[i].name) == 0)
                        return i;
        return -EINVAL;
}

const char *tdm_placement_text(enum tdm_placement placement)
{
        return (size_t)placement < TDM_ARRAY_SIZE(placements) ? placements[placement].text : "unknown";
}

enum tdm_placement tdm_placement_measured(const struct tdm_placement_workers *workers, enum tdm_placement found)
{
        if (!workers->of[TDM_WORKER_GPU].usable)
                return TDM_PLACEMENT_NPU;
        if (!workers->of[TDM_WORKER_NPU].usable)
                return TDM_PLACEMENT_GPU;
        if (!workers->equal_bits)
                return found != TDM_PLACEMENT_ANY && found != TDM_PLACEMENT_SPLIT ? found :
                       workers->no_link                                           ? TDM_PLACEMENT_GPU :
                                                                                    TDM_PLACEMENT_SPLIT;
        return workers->shares_cpus ? TDM_PLACEMENT_STANDBY : TDM_PLACEMENT_BALANCED;
}

int tdm_placement_plan(const struct tdm_placement_workers *workers, const struct tdm_hparams *hp,
                       enum tdm_placement placement, uint8_t *plan, bool *ret_degraded)
{
        const bool npu = workers->of[TDM_WORKER_NPU].usable, gpu = workers->of[TDM_WORKER_GPU].usable;
        enum tdm_worker_index attention, rest;
        uint32_t n_blocks = tdm_model_n_blocks(hp);
        bool degraded = false;

        switch (placement) {
        case TDM_PLACEMENT_ANY:
                attention = npu && !(gpu && workers->no_link) ? TDM_WORKER_NPU : TDM_WORKER_GPU;
                rest = gpu ? TDM_WORKER_GPU : TDM_WORKER_NPU;
                degraded = workers->degraded;
                break;
        case TDM_PLACEMENT_SPLIT:
                attention = TDM_WORKER_NPU;
                rest = TDM_WORKER_GPU;
                break;
        case TDM_PLACEMENT_NPU:
                attention = rest = TDM_WORKER_NPU;
                break;
        case TDM_PLACEMENT_GPU:
                attention = rest = TDM_WORKER_GPU;
                break;
        default:
                return -EINVAL;
        }
        if (workers->of[attention].given_up || workers->of[rest].given_up)
                return -EHOSTDOWN;
        for (uint32_t b = 0; b < n_blocks; b++)
                plan[b] = (uint8_t)(tdm_block_kind(hp, b) == TDM_BLOCK_ATTENTION ? attention : rest);
        if (ret_degraded)
                *ret_degraded = degraded || !workers->of[attention].usable || !workers->of[rest].usable;
        return 0;
}
