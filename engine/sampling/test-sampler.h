/* What the sampler's tests share. */
#ifndef TDM_ENGINE_SAMPLING_TEST_SAMPLER_H
#define TDM_ENGINE_SAMPLING_TEST_SAMPLER_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/sampling/sampler.h"

static const struct tdm_sampling greedy __attribute__((unused)) = { 0.0f, 1.0f, 0.0f, 1.0f, 0, 0, 1 };
static const struct tdm_sampling plain __attribute__((unused)) = { 1.0f, 1.0f, 0.0f, 1.0f, 0, 0, 1 };

/* All of a history, for every penalty. */
#define PAST(history, n) (&(struct tdm_past){ history, n, n, n, 0, NULL })

static uint64_t random_state = 9;

static inline double random_uniform(void)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (double)(random_state >> 11) * 0x1p-53;
}

static inline float random_normal(void)
{
        return (float)(sqrt(-2.0 * log(random_uniform() + 1e-18)) * cos(6.283185307179586 * random_uniform()));
}

static inline struct tdm_result sample(const float *logits, uint32_t n, struct tdm_sampling s, const uint32_t *history,
                                       uint32_t n_history, uint32_t position, uint32_t target)
{
        _cleanup_(freep) void *scratch = aligned_alloc(64, tdm_sampler_scratch_bytes(n));
        struct tdm_result r;

        assert_non_null(scratch);
        memset(scratch, 0xa5, tdm_sampler_scratch_bytes(n)); /* nothing may depend on what is in it */
        memset(&r, 0x5a, sizeof(r));
        assert_int_equal(tdm_sample(logits, n, &s, NULL, PAST(history, n_history), position, target, scratch, &r), 0);
        return r;
}

#endif
