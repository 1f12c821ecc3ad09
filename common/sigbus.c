/* SIGBUS on a mapped file. The handler runs on the faulting thread, between two instructions of code that holds any
 * lock there is, so it uses nothing but a static table of atomics and the mmap system call.
 *
 * A guard's hit mark is kept in the table and not in the guard, because the guard may live on a stack that is gone by
 * the time a handler on another thread gets to it. Each use of a slot has a number (generation) of its own, so that a
 * late mark for a guard that has ended cannot fall on its successor.
 *
 * The page of zeros stays until the range is unmapped, even if the file grows back. So a reader that was hit must give
 * the file up. SIGBUS for anything else (hardware memory errors, kill -BUS, unguarded maps) goes to the handler that
 * was there before. */
#include "common/sigbus.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define GUARDS_MAX 64u

static struct {
        _Atomic uint32_t taken;
        _Atomic uint64_t generation; /* 0: not in use */
        _Atomic uintptr_t begin, end;
        _Atomic uint64_t hit_generation; /* the last use that was hit; only grows */
} slots[GUARDS_MAX];

static _Atomic uint64_t last_generation;
static struct sigaction old_action;
static uintptr_t page_mask;

static bool mark_guards(uintptr_t address)
{
        bool found = false;

        for (unsigned i = 0; i < GUARDS_MAX; i++) {
                /* Acquire: pairs with the release store in guard_begin(); begin and end are then those of this use.
                 * The second look tells whether they still are. */
                uint64_t g = atomic_load_explicit(&slots[i].generation, memory_order_acquire), seen;

                if (g == 0 || address < atomic_load_explicit(&slots[i].begin, memory_order_acquire) ||
                    address >= atomic_load_explicit(&slots[i].end, memory_order_acquire))
                        continue;
                if (atomic_load_explicit(&slots[i].generation, memory_order_relaxed) != g)
                        continue;
                found = true;
                seen = atomic_load_explicit(&slots[i].hit_generation, memory_order_relaxed);
                while (seen < g) {
                        /* Release: pairs with the acquire load in guard_hit(), when another thread's handler marks. */
                        if (atomic_compare_exchange_weak_explicit(&slots[i].hit_generation, &seen, g,
                                                                  memory_order_release, memory_order_relaxed))
                                break;
                }
        }
        return found;
}

static void on_sigbus(int signo, siginfo_t *info, void *context)
{
        int saved = errno;
        uintptr_t address = (uintptr_t)info->si_addr;

        if (info->si_code == BUS_ADRERR && mark_guards(address)) {
                void *page = (void *)(address & page_mask);

                /* The bare call: threads may meet at one page, which the kernel puts in order, and ThreadSanitizer
                 * would take libc's mmap() for writing to it. */
                if ((void *)syscall(SYS_mmap, page, ~page_mask + 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                                    -1, 0) == page) {
                        errno = saved;
                        return; /* the instruction is run again and reads zeros */
                }
        }

        /* Not for a guard. With the old action back, a real fault comes again by itself; a signal that was sent does
         * not. */
        sigaction(SIGBUS, &old_action, NULL);
        if (info->si_code <= 0)
                raise(signo);
        errno = saved;
}

static int init_result;

static void init_once(void)
{
        struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK };

        page_mask = ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
        sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, &action, &old_action) < 0)
                init_result = -errno;
}

int tdm_sigbus_init(void)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;

        pthread_once(&once, init_once);
        return init_result;
}

int tdm_sigbus_guard_begin(struct tdm_sigbus_guard *guard, const void *base, size_t size_bytes)
{
        uintptr_t begin = (uintptr_t)base;

        if (!page_mask || size_bytes > UINTPTR_MAX - begin)
                return -EINVAL;
        for (unsigned i = 0; i < GUARDS_MAX; i++) {
                uint32_t untaken = 0;

                /* Acquire: pairs with the release store in guard_end(). */
                if (!atomic_compare_exchange_strong_explicit(&slots[i].taken, &untaken, 1, memory_order_acquire,
                                                             memory_order_relaxed))
                        continue;
                atomic_store_explicit(&slots[i].begin, begin, memory_order_relaxed);
                atomic_store_explicit(&slots[i].end, begin + size_bytes, memory_order_relaxed);
                *guard = (struct tdm_sigbus_guard){ .base = base, .size_bytes = size_bytes, .slot = (int)i + 1 };
                /* Release: pairs with the acquire load in mark_guards(). */
                atomic_store_explicit(&slots[i].generation,
                                      atomic_fetch_add_explicit(&last_generation, 1, memory_order_relaxed) + 1,
                                      memory_order_release);
                return 0;
        }
        return -ENOSPC;
}

bool tdm_sigbus_guard_hit(const struct tdm_sigbus_guard *guard)
{
        unsigned i = (unsigned)guard->slot - 1;

        if (guard->slot == 0)
                return guard->hit != 0;
        /* A read of the map before this call must not be moved behind it by the compiler. */
        atomic_signal_fence(memory_order_seq_cst);
        /* Acquire: pairs with the release in mark_guards(). */
        return atomic_load_explicit(&slots[i].hit_generation, memory_order_acquire) ==
               atomic_load_explicit(&slots[i].generation, memory_order_relaxed);
}

void tdm_sigbus_guard_end(struct tdm_sigbus_guard *guard)
{
        unsigned i = (unsigned)guard->slot - 1;

        if (guard->slot == 0)
                return;
        guard->hit = tdm_sigbus_guard_hit(guard);
        guard->slot = 0;
        atomic_store_explicit(&slots[i].generation, 0, memory_order_relaxed);
        /* Release: pairs with the acquire in guard_begin(). */
        atomic_store_explicit(&slots[i].taken, 0, memory_order_release);
}
