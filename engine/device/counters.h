/* What a device that is not the CPU tells of its use, in the progress segment: written by the worker, read by tandemd
 * for `tandem status`. Each word has one writer and is relaxed; no two need to agree. They begin at zero with each life
 * of the worker, and stay zero where the device does not count. */
#ifndef TDM_ENGINE_DEVICE_COUNTERS_H
#define TDM_ENGINE_DEVICE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define TDM_DEVICE_UNKNOWN UINT32_MAX

struct tdm_device_counters {
        /* Multiplications of the blocks that the device is there for (attention, on an NPU): on it, and on the CPU
         * beside. */
        _Atomic uint64_t device_macs, host_macs;
        _Atomic uint64_t blocks;      /* in which the device had a part */
        _Atomic uint64_t submissions; /* to it, of `commands` in all */
        _Atomic uint64_t commands;
        _Atomic uint64_t repeats;  /* submissions sent again after a fault */
        _Atomic uint64_t contexts; /* made anew after a fault */
        /* From the driver, at most once a second while it works. sampled_ns: when (CLOCK_MONOTONIC); 0: it gives
         * nothing. */
        _Atomic uint64_t sampled_ns;
        _Atomic uint32_t power_mw, utilisation_permille, temperature_mc; /* TDM_DEVICE_UNKNOWN: not given */
        _Atomic uint32_t n_contexts;                                     /* this process's, as the driver sees them */
        _Atomic uint64_t context_errors;
};

#endif
