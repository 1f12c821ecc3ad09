/* What a worker tells about itself while it works: one segment for each life of a worker, made by tandemd, written by
 * the worker alone, read by tandemd's watch. It is how a hang is told from a long step, and where `tandem status` gets
 * its counters.
 *
 * Nothing here decides anything but "is it alive" and "what does a person see": a worker that lies harms its own
 * reputation. Every word has one writer and is read with relaxed order unless it says otherwise; no two words need to
 * agree with each other. */
#ifndef TDM_ENGINE_DEVICE_PROGRESS_H
#define TDM_ENGINE_DEVICE_PROGRESS_H

#include <assert.h>
#include <stdatomic.h>
#include "engine/device/counters.h"
#include "engine/step/step.h"
#include "engine/device/trace.h"

#define TDM_PROGRESS_MAGIC UINT32_C(0x47525054) /* "TPRG" */
#define TDM_PROGRESS_ABI 4u
#define TDM_PROGRESS_TRACE UINT64_C(4096) /* offset of the trace */
#define TDM_PROGRESS_BYTES (TDM_PROGRESS_TRACE + TDM_TRACE_BYTES)
#define TDM_PROGRESS_MODELS 32u  /* models that a fleet can hold at once */
#define TDM_PROGRESS_BUCKETS 40u /* of log2(ns) */

enum tdm_progress_state {
        TDM_PROGRESS_IDLE = 0,    /* waiting for a descriptor or a message */
        TDM_PROGRESS_BUSY = 1,    /* in a step */
        TDM_PROGRESS_CONTROL = 2, /* carrying out a message (mapping a model, changing the epoch) */
};

struct tdm_progress_kind {
        _Atomic uint64_t blocks;
        _Atomic uint64_t rows;
        _Atomic uint64_t ns;
        /* Finished blocks by duration: bucket i holds [2^i, 2^(i+1)) ns. The hang deadline comes from its p99. */
        _Atomic uint32_t histogram[TDM_PROGRESS_BUCKETS];
};

struct tdm_progress {
        /* line 0: written by tandemd before the worker has it */
        uint32_t magic;
        uint32_t abi;
        uint64_t size_bytes;
        uint8_t pad0[48];

        /* line 1: the device's; bumped by whichever of its threads finishes something */
        _Atomic uint64_t heartbeat;
        /* the executor's: the newest Ping that it has come to. Here it costs no message and wakes no thread. */
        _Atomic uint64_t answered;
        uint8_t pad1[48];

        /* line 2: the executor's */
        _Atomic uint32_t state;   /* enum tdm_progress_state */
        _Atomic uint32_t epoch;   /* acknowledged */
        _Atomic uint64_t running; /* tdm_progress_pack() of the block being run now; 0: none */
        _Atomic uint64_t busy_ns;
        _Atomic uint64_t saturated;   /* keys and values that did not fit the KV cache, all models */
        _Atomic uint64_t handovers;   /* descriptors taken */
        _Atomic uint64_t handover_ns; /* from being posted to being taken, summed */
        /* Time without anything to do, and since when there has been nothing (0: there is). */
        _Atomic uint64_t waiting_ns;
        _Atomic uint64_t waiting_since_ns;

        struct tdm_progress_kind kinds[TDM_N_BLOCK_KINDS];
        /* [model's row][slot]: tdm_progress_pack(step, next block to run), written after the step was handed on, so
         * that who holds a step is always who is silent about it. Release; pairs with the watch's acquire. */
        _Atomic uint64_t steps[TDM_PROGRESS_MODELS][TDM_STEP_SLOTS];
        struct tdm_device_counters device; /* the device's */
};
static_assert(offsetof(struct tdm_progress, heartbeat) == 64, "progress layout");
static_assert(offsetof(struct tdm_progress, answered) == 72, "progress layout");
static_assert(offsetof(struct tdm_progress, state) == 128, "progress layout");
static_assert(offsetof(struct tdm_progress, running) == 136, "progress layout");
static_assert(offsetof(struct tdm_progress, kinds) == 192, "progress layout");
static_assert(sizeof(struct tdm_progress_kind) == 24 + 4 * TDM_PROGRESS_BUCKETS, "progress layout");
static_assert(offsetof(struct tdm_progress, steps) == 192 + TDM_N_BLOCK_KINDS * sizeof(struct tdm_progress_kind),
              "progress layout");
static_assert(sizeof(struct tdm_progress) <= TDM_PROGRESS_TRACE, "progress layout");
static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "counters are plain words");

static inline struct tdm_trace_ring *tdm_progress_trace(struct tdm_progress *progress)
{
        return (struct tdm_trace_ring *)((uint8_t *)progress + TDM_PROGRESS_TRACE);
}

/* A step and a block in one word, so that they are always of the same moment. 0 is "nothing": step ids start at 1. */
#define TDM_PROGRESS_BLOCK_BITS 10
static_assert(TDM_MAX_BLOCKS < (1u << TDM_PROGRESS_BLOCK_BITS), "a block fits its bits");
static inline uint64_t tdm_progress_pack(uint64_t step_id, uint32_t block)
{
        return step_id << TDM_PROGRESS_BLOCK_BITS | block;
}
static inline uint64_t tdm_progress_step(uint64_t packed)
{
        return packed >> TDM_PROGRESS_BLOCK_BITS;
}
static inline uint32_t tdm_progress_block(uint64_t packed)
{
        return (uint32_t)(packed & ((1u << TDM_PROGRESS_BLOCK_BITS) - 1));
}

#endif
