/* A slow input is a finding like any other: no input of at most 64 KiB may take over 50 ms of the processor. */
#ifndef TDM_FUZZ_TIME_H
#define TDM_FUZZ_TIME_H

#include <time.h>
#include "common/util.h"

/* Sanitizers make it up to 20 times slower, the fuzzer's own counters 4 times. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FUZZ_SLOWDOWN 20u
#endif
#endif
#if !defined(FUZZ_SLOWDOWN) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define FUZZ_SLOWDOWN 20u
#elif !defined(FUZZ_SLOWDOWN) && defined(TDM_FUZZ)
#define FUZZ_SLOWDOWN 4u
#elif !defined(FUZZ_SLOWDOWN)
#define FUZZ_SLOWDOWN 1u
#endif
#define FUZZ_LIMIT_NS (FUZZ_SLOWDOWN * 50 * TDM_NSEC_PER_MSEC)

static inline uint64_t fuzz_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

/* A target whose harness takes longer than its parser says here what the parser took of the last input. */
extern uint64_t fuzz_parser_ns;
__attribute__((weak)) uint64_t fuzz_parser_ns;

static inline uint64_t fuzz_took_ns(uint64_t start_ns)
{
        return fuzz_parser_ns > 0 ? fuzz_parser_ns : fuzz_now_ns() - start_ns;
}

static inline void fuzz_check_time(uint64_t start_ns)
{
        uint64_t took_ns = fuzz_took_ns(start_ns);

        if (took_ns <= FUZZ_LIMIT_NS)
                return;
        fprintf(stderr, "too slow: %.1f ms\n", (double)took_ns / 1e6);
        abort();
}

/* The same, but an input is run up to three times: where it writes files or takes long, other programs' work may count.
 * true: it is to be run again. */
static inline bool fuzz_again(uint64_t start_ns)
{
        static unsigned n_slow;

        if (fuzz_took_ns(start_ns) > FUZZ_LIMIT_NS && ++n_slow < 3)
                return true;
        fuzz_check_time(start_ns);
        n_slow = 0;
        return false;
}

#endif
