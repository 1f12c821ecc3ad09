/* Small things every file uses: scoped cleanup, ownership transfer, alignment, time. */
#ifndef TDM_COMMON_UTIL_H
#define TDM_COMMON_UTIL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))
#define _printf_(fmt, args) __attribute__((format(printf, fmt, args)))

#define TDM_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define TDM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TDM_MAX(a, b) ((a) > (b) ? (a) : (b))
/* x rounded up to a multiple of a; a is a power of two. */
#define TDM_ALIGN_UP(x, a) (((x) + ((a)-1)) & ~((__typeof__(x))(a)-1))
#define TDM_DIV_UP(x, a) (((x) + (a)-1) / (a))

#define TDM_NSEC_PER_SEC UINT64_C(1000000000)
#define TDM_NSEC_PER_MSEC UINT64_C(1000000)

static inline void freep(void *p)
{
        free(*(void **)p);
}

/* Keeps errno, so that a cleanup never hides the error that caused it. */
static inline void closep(int *fd)
{
        if (*fd >= 0) {
                int saved = errno;
                close(*fd);
                errno = saved;
        }
        *fd = -1;
}

static inline void fclosep(FILE **f)
{
        if (*f)
                fclose(*f);
}

static inline int steal_fd(int *fd)
{
        int r = *fd;
        *fd = -1;
        return r;
}

static inline void *tdm_steal_ptr_internal(void *pp)
{
        void *p = *(void **)pp;
        *(void **)pp = NULL;
        return p;
}
#define steal_ptr(pp) ((__typeof__(*(pp)))tdm_steal_ptr_internal(pp))

/* Nanoseconds on CLOCK_MONOTONIC. */
static inline uint64_t tdm_now_ns(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* In a loop that looks at memory again and again: the other thread of the core has more of it. */
static inline void tdm_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
