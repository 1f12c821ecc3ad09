/* The doctor looks at how a GPU that works is used: which of several, how fast it is allowed to run, how much memory it
 * reaches.
 *
 * Where the facts are from: Linux's documentation of amdgpu (power_dpm_force_performance_level, mem_info_vram_total and
 * mem_info_gtt_total in bytes; gttsize is deprecated, TTM's pages_limit says how much memory a GPU reaches); the list
 * of PCI ids, for chips that have CPU and GPU in one; owners' measurements on a Radeon 780M, 19 tokens/s with the level
 * "auto" and 24 with "high". */
#include "client-lib/cli/doctor/machine.h"

#define GIB (UINT64_C(1) << 30)

/* GPUs that share the memory of the CPU. */
static bool is_integrated(const struct device *g)
{
        static const unsigned short amd[] = {
                0x15d8, 0x15dd, 0x1636, 0x1638, 0x163f, 0x164c, 0x164d, 0x164e, 0x1681, 0x1506, 0x15bf,
                0x15c8, 0x1900, 0x1901, 0x13c0, 0x150e, 0x1114, 0x1586, 0x1435, 0x1902, 0x15e7, 0x164f,
        };

        for (size_t i = 0; g->vendor == 0x1002 && i < TDM_ARRAY_SIZE(amd); i++)
                if (g->product == amd[i])
                        return true;
        return g->vendor == 0x8086;
}

/* As the GPU worker chooses without gpu-device: a card of its own first, and of those the one with the most memory. */
static const struct device *taken_gpu(const struct doctor *d)
{
        const struct device *best = NULL;

        for (size_t i = 0; i < d->n_gpus; i++) {
                const struct device *g = &d->gpus[i];

                if (g->ready && (!best || (is_integrated(best) && !is_integrated(g)) ||
                                 (is_integrated(best) == is_integrated(g) && g->vram_bytes > best->vram_bytes)))
                        best = g;
        }
        return best;
}

static void look_at_choice(struct doctor *d, const struct device *taken)
{
        for (size_t i = 0; i < d->n_gpus; i++) {
                const struct device *g = &d->gpus[i];

                if (g == taken)
                        continue;
                if (g->ready)
                        doctor_ok(d, "GPU taken",
                                  "%s (%04x:%04x) at /dev/dri/%s, not %s (%04x:%04x); gpu-device in tandem.conf takes "
                                  "the other one",
                                  doctor_vendor(taken->vendor), taken->vendor, taken->product, taken->name,
                                  doctor_vendor(g->vendor), g->vendor, g->product);
                else
                        doctor_note(d, "GPU taken",
                                    "%s (%04x:%04x) at /dev/dri/%s, since %s (%04x:%04x) cannot be used",
                                    doctor_vendor(taken->vendor), taken->vendor, taken->product, taken->name,
                                    doctor_vendor(g->vendor), g->vendor, g->product);
        }
}

static void look_at_clock(struct doctor *d, const struct device *g)
{
        char file[4600], level[64], mend[256];

        snprintf(file, sizeof(file), "%s/power_dpm_force_performance_level", g->folder);
        doctor_read_line(file, level, sizeof(level));
        snprintf(mend, sizeof(mend),
                 "echo high | sudo tee /sys/class/drm/%s/device/power_dpm_force_performance_level   (until the next "
                 "start; \"auto\" undoes it)",
                 g->name);
        if (!level[0])
                return;
        if (strcmp(level, "low") == 0 || strcmp(level, "profile_min_sclk") == 0 ||
            strcmp(level, "profile_min_mclk") == 0)
                doctor_problem(d, RANK_SPEED, mend, "GPU clock",
                               "the GPU's clock is held at its lowest (power_dpm_force_performance_level is %s): it "
                               "computes several times slower than it could",
                               level);
        else if (strcmp(level, "auto") == 0 && is_integrated(g))
                doctor_advise(
                        d, RANK_CLOCK, mend, "GPU clock",
                        "the driver chooses the GPU's clock (power_dpm_force_performance_level is auto); \"high\" "
                        "gave 24 tokens/s in place of 19 on a Radeon 780M, for more power");
        else
                doctor_ok(d, "GPU clock", "power_dpm_force_performance_level is %s", level);
}

/* Weights lie in the machine's memory, and a GPU that shares it reads them there. So memory that the firmware carves
 * out for the GPU is missing for them. */
static void look_at_reach(struct doctor *d, const struct device *g)
{
        uint64_t vram = g->vram_bytes, gtt = g->gtt_bytes, pages = d->ram_bytes / 4 * 3 / 4096;
        char mend[320], size[64];

        if (!is_integrated(g) || gtt == 0)
                return;
        snprintf(size, sizeof(size), "%s", human_bytes(gtt));
        snprintf(mend, sizeof(mend),
                 "echo \"options ttm pages_limit=%llu\" | sudo tee /etc/modprobe.d/tandem-ttm.conf && sudo "
                 "update-initramfs -u   (three quarters of the memory; then restart the machine)",
                 (unsigned long long)pages);
        if (vram > d->ram_bytes / 3 && vram > 2 * GIB)
                doctor_advise(d, RANK_MEMORY,
                              "set \"UMA frame buffer size\" (also: \"iGPU memory\") to Auto or 512 MB in the firmware "
                              "setup",
                              "GPU memory",
                              "the firmware keeps %s for the GPU alone; Tandem holds models in the other %s, which the "
                              "GPU reads too",
                              human_bytes(vram), size);
        else if (d->ram_bytes > 0 && gtt < d->ram_bytes / 3)
                doctor_advise(d, RANK_MEMORY, mend, "GPU memory",
                              "the GPU reaches %s of the machine's memory (GTT): larger models do not fit it", size);
        else
                doctor_ok(d, "GPU memory", "the GPU reaches %s of the machine's memory (GTT), and has %s carved out",
                          size, human_bytes(vram));
}

void doctor_look_at_gpu_use(struct doctor *d)
{
        const struct device *taken = taken_gpu(d);

        if (!taken)
                return;
        if (d->n_gpus > 1)
                look_at_choice(d, taken);
        look_at_clock(d, taken);
        look_at_reach(d, taken);
}
