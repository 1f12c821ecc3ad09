/* The names of placements, which placement "measured" is, and the plan of a placement.
 *
 * Devices with equal numerics ids give equal bits, so a step may run on either. With CPUs (or hardware) of their own,
 * both workers run steps, each whole steps. On the same CPUs a second worker would take its time from the first one, so
 * one worker runs all steps, and the other one is in reserve for its death. On devices that differ in bits a job keeps
 * its placement, because its bits depend on it. New jobs take what is cheapest then (measure.c, outlook.c). */
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
        [TDM_PLACEMENT_FRONT_QUARTER] = { "front-quarter", "the first quarter of the layers on the npu" },
        [TDM_PLACEMENT_FRONT_HALF] = { "front-half", "the first half of the layers on the npu" },
        [TDM_PLACEMENT_SPLIT_HALF] = { "split-half", "split, attention of every second layer" },
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
        if (!workers->equal_bits) {
                if (found == TDM_PLACEMENT_ANY)
                        found = TDM_PLACEMENT_SPLIT;
                return workers->no_link && found != TDM_PLACEMENT_NPU ? TDM_PLACEMENT_GPU : found;
        }
        return workers->shares_cpus ? TDM_PLACEMENT_STANDBY : TDM_PLACEMENT_BALANCED;
}

bool tdm_placement_is_fixed(enum tdm_placement placement)
{
        return placement != TDM_PLACEMENT_ANY && placement != TDM_PLACEMENT_STANDBY &&
               placement != TDM_PLACEMENT_BALANCED && placement < TDM_N_PLACEMENTS;
}

bool tdm_placement_uses(enum tdm_placement placement, enum tdm_worker_index worker)
{
        return placement != (worker == TDM_WORKER_NPU ? TDM_PLACEMENT_GPU : TDM_PLACEMENT_NPU);
}

/* The worker of a block, of a fixed placement. */
static enum tdm_worker_index owner(const struct tdm_hparams *hp, enum tdm_placement placement, uint32_t block)
{
        enum tdm_block_kind kind = tdm_block_kind(hp, block);
        /* The embedding goes with the first layers, so that hidden rows change the worker once. */
        bool front = kind == TDM_BLOCK_EMBED || kind == TDM_BLOCK_ATTENTION || kind == TDM_BLOCK_FFN, npu = false;
        uint32_t layer = kind == TDM_BLOCK_EMBED ? 0 : tdm_block_layer(block);

        switch (placement) {
        case TDM_PLACEMENT_SPLIT:
                npu = kind == TDM_BLOCK_ATTENTION;
                break;
        case TDM_PLACEMENT_SPLIT_HALF:
                npu = kind == TDM_BLOCK_ATTENTION && layer % 2 == 0;
                break;
        case TDM_PLACEMENT_FRONT_QUARTER:
                npu = front && layer < TDM_DIV_UP(hp->n_layers, 4u);
                break;
        case TDM_PLACEMENT_FRONT_HALF:
                npu = front && layer < TDM_DIV_UP(hp->n_layers, 2u);
                break;
        default:
                npu = placement == TDM_PLACEMENT_NPU;
        }
        return npu ? TDM_WORKER_NPU : TDM_WORKER_GPU;
}

int tdm_placement_plan(const struct tdm_placement_workers *workers, const struct tdm_hparams *hp,
                       enum tdm_placement placement, uint8_t *plan, bool *ret_degraded)
{
        const bool npu = workers->of[TDM_WORKER_NPU].usable, gpu = workers->of[TDM_WORKER_GPU].usable;
        bool degraded = false;

        if (placement == TDM_PLACEMENT_ANY) {
                placement = !gpu                     ? TDM_PLACEMENT_NPU :
                            !npu || workers->no_link ? TDM_PLACEMENT_GPU :
                                                       TDM_PLACEMENT_SPLIT;
                degraded = workers->degraded;
        }
        if (!tdm_placement_is_fixed(placement))
                return -EINVAL;
        for (unsigned w = 0; w < TDM_N_WORKERS; w++) {
                if (!tdm_placement_uses(placement, (enum tdm_worker_index)w))
                        continue;
                if (workers->of[w].given_up)
                        return -EHOSTDOWN;
                degraded = degraded || !workers->of[w].usable;
        }
        for (uint32_t b = 0; b < tdm_model_n_blocks(hp); b++)
                plan[b] = (uint8_t)owner(hp, placement, b);
        if (ret_degraded)
                *ret_degraded = degraded;
        return 0;
}
