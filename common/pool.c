/* Fork-join over numbered chunks. No library does this: two worker processes share the cores, so a helper must spin
 * only a little, and a join must not wait for helpers that the kernel has not scheduled yet. The threads that are awake
 * do the chunks.
 *
 * `claim` holds the job's number and how many of its chunks are not yet taken. A helper reads it, then the job's
 * fields, then takes a chunk by compare-and-swap. The caller writes the fields of a new job only when all chunks of the
 * last one are taken and done. So a swap that succeeds proves that the fields belonged to the chunk's job, and a helper
 * that read fields of an older job fails to swap.
 *
 * Jobs do not nest, and one thread at a time may call pool_run_chunks(). */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include "common/thread.h"
#include "common/pool.h"

#define CACHE_LINE 64
#define SPIN_NS_DEFAULT 20000u
#define SPIN_NS_MAX 1000000u
#define SPINS_PER_CLOCK 16u /* reading the clock costs about as much as one of them */
/* helpers that one thread wakes; a helper that was woken wakes as many. To wake one takes some microseconds, and more
 * on a virtual machine */
#define WAKES 3u

struct helper {
        struct tdm_pool *pool;
        pthread_t thread;
        unsigned index;
};

struct tdm_pool {
        /* Written by the thread that takes a chunk. */
        _Alignas(CACHE_LINE) _Atomic uint64_t claim; /* job number << 32 | chunks not taken */
        /* Written by the thread that finishes a chunk. */
        _Alignas(CACHE_LINE) _Atomic uint32_t n_pending; /* futex word: chunks not done */
        _Atomic uint32_t caller_sleeps;
        /* Written by the caller. */
        _Alignas(CACHE_LINE) _Atomic uint32_t job; /* futex word: the number of the newest job */
        _Atomic(tdm_pool_fn) fn;
        _Atomic(void *) arg;
        _Atomic uint32_t n_chunks;
        _Atomic bool stop;
        _Alignas(CACHE_LINE) _Atomic uint32_t n_sleeping;
        _Alignas(CACHE_LINE) _Atomic uint64_t *heartbeat;
        _Atomic uint64_t own_heartbeat;
        _Atomic uint64_t stay_until_ns;
        uint64_t spin_ns;
        unsigned n_threads;
        unsigned n_started;
        struct helper helpers[TDM_POOL_MAX_THREADS];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

void tdm_pool_beat(struct tdm_pool *pool)
{
        atomic_fetch_add_explicit(pool->heartbeat, 1, memory_order_relaxed);
}

/* Takes and runs chunks until the job has none left. */
static void work(struct tdm_pool *pool, unsigned thread)
{
        /* acquire: pairs with the release store in pool_run_chunks(), so the fields of this job are seen. */
        uint64_t claim = atomic_load_explicit(&pool->claim, memory_order_acquire);

        while ((uint32_t)claim != 0) {
                tdm_pool_fn fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
                void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
                uint32_t n_chunks = atomic_load_explicit(&pool->n_chunks, memory_order_relaxed);

                if (!atomic_compare_exchange_weak_explicit(&pool->claim, &claim, claim - 1, memory_order_acq_rel,
                                                           memory_order_acquire))
                        continue;
                fn(arg, n_chunks - (uint32_t)claim, thread);
                tdm_pool_beat(pool);
                /* seq_cst: either the caller sees 0 before it sleeps, or we see that it sleeps. Also releases what fn
                 * wrote to the caller's acquire load. */
                if (atomic_fetch_sub(&pool->n_pending, 1) == 1 && atomic_load(&pool->caller_sleeps))
                        futex_wake(&pool->n_pending, 1);
                claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
        }
}

/* The newest job, some of whose chunks are not taken. */
static void wake_some(struct tdm_pool *pool, uint32_t n_left)
{
        uint32_t n_sleeping = atomic_load(&pool->n_sleeping);

        if (n_sleeping > 0 && n_left > 0)
                futex_wake(&pool->job, (int)TDM_MIN(TDM_MIN(n_sleeping, n_left), WAKES));
}

/* Waits until *word differs from seen: spins first, then sleeps, counted in *sleepers so that the other side knows.
 * Whether it slept. */
static bool wait_for_change(struct tdm_pool *pool, _Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers,
                            bool stays)
{
        uint64_t spin_until_ns = tdm_now_ns() + pool->spin_ns, now;

        while (pool->spin_ns > 0) {
                for (unsigned i = 0; i < SPINS_PER_CLOCK; i++) {
                        if (atomic_load_explicit(word, memory_order_acquire) != seen)
                                return false;
                        tdm_cpu_relax();
                }
                now = tdm_now_ns();
                if (now >= spin_until_ns &&
                    (!stays || now >= atomic_load_explicit(&pool->stay_until_ns, memory_order_relaxed)))
                        break;
        }
        atomic_fetch_add(sleepers, 1); /* seq_cst: pairs with the waker's store to word, then load of sleepers */
        if (atomic_load(word) == seen)
                futex_wait(word, seen); /* may return early: the caller of this function looks again */
        atomic_fetch_sub(sleepers, 1);
        return true;
}

static void *helper_main(void *userdata)
{
        struct helper *helper = userdata;
        struct tdm_pool *pool = helper->pool;
        bool stays = helper->index < TDM_DIV_UP(pool->n_threads, 2u);
        uint32_t seen = 0;

        for (;;) {
                uint32_t job = atomic_load_explicit(&pool->job, memory_order_acquire);

                if (atomic_load_explicit(&pool->stop, memory_order_acquire))
                        return NULL;
                if (job == seen) {
                        if (wait_for_change(pool, &pool->job, seen, &pool->n_sleeping, stays))
                                wake_some(pool, (uint32_t)atomic_load_explicit(&pool->claim, memory_order_relaxed));
                        continue;
                }
                seen = job;
                work(pool, helper->index);
        }
}

static uint64_t spin_ns_wanted(void)
{
        const char *text = getenv("TANDEM_SPIN_US");
        char *end;
        unsigned long us;

        if (!text || *text < '0' || *text > '9')
                return SPIN_NS_DEFAULT;
        errno = 0;
        us = strtoul(text, &end, 10);
        if (errno || *end || us > SPIN_NS_MAX / 1000)
                return SPIN_NS_DEFAULT;
        return us * 1000;
}

static unsigned n_threads_allowed(void)
{
        cpu_set_t set;
        int n;

        if (sched_getaffinity(0, sizeof(set), &set) < 0)
                return 1;
        n = CPU_COUNT(&set);
        return n < 1 ? 1 : (unsigned)n;
}

int tdm_pool_new(struct tdm_pool **ret, unsigned n_threads, _Atomic uint64_t *heartbeat)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *pool = NULL;

        if (n_threads == 0)
                n_threads = n_threads_allowed();
        n_threads = TDM_MIN(n_threads, TDM_POOL_MAX_THREADS);

        pool = aligned_alloc(CACHE_LINE, TDM_ALIGN_UP(sizeof(*pool), (size_t)CACHE_LINE));
        if (!pool)
                return -ENOMEM;
        memset(pool, 0, sizeof(*pool));
        pool->n_threads = n_threads;
        pool->heartbeat = heartbeat ? heartbeat : &pool->own_heartbeat;
        pool->spin_ns = spin_ns_wanted();

        for (unsigned i = 1; i < n_threads; i++) {
                struct helper *helper = &pool->helpers[i];
                int r;

                helper->pool = pool;
                helper->index = i;
                r = tdm_thread_new(&helper->thread, helper_main, helper);
                if (r != 0)
                        return r;
                pool->n_started++;
        }

        *ret = steal_ptr(&pool);
        return 0;
}

void tdm_pool_destroy(struct tdm_pool *pool)
{
        if (!pool)
                return;
        atomic_store(&pool->stop, true);
        atomic_fetch_add(&pool->job, 1);
        futex_wake(&pool->job, INT_MAX);
        for (unsigned i = 1; i <= pool->n_started; i++)
                pthread_join(pool->helpers[i].thread, NULL);
        free(pool);
}

void tdm_pool_destroyp(struct tdm_pool **pool)
{
        tdm_pool_destroy(*pool);
}

unsigned tdm_pool_n_threads(const struct tdm_pool *pool)
{
        return pool->n_threads;
}

void tdm_pool_stay_awake(struct tdm_pool *pool, uint64_t ns)
{
        atomic_store_explicit(&pool->stay_until_ns, tdm_now_ns() + ns, memory_order_relaxed);
}

static void pool_run_chunks(struct tdm_pool *pool, unsigned n_chunks, tdm_pool_fn fn, void *arg, bool wakes)
{
        uint32_t job, pending;

        if (n_chunks == 0)
                return;
        if (n_chunks == 1 || pool->n_threads == 1) {
                for (unsigned i = 0; i < n_chunks; i++) {
                        fn(arg, i, 0);
                        tdm_pool_beat(pool);
                }
                return;
        }

        job = atomic_load_explicit(&pool->job, memory_order_relaxed) + 1;
        atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
        atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
        atomic_store_explicit(&pool->n_chunks, n_chunks, memory_order_relaxed);
        atomic_store_explicit(&pool->n_pending, n_chunks, memory_order_relaxed);
        /* release: pairs with the acquire loads of claim in work(). */
        atomic_store_explicit(&pool->claim, (uint64_t)job << 32 | n_chunks, memory_order_release);
        atomic_store(&pool->job, job); /* seq_cst: pairs with the sleeper's count, see wait_for_change() */
        if (wakes)
                wake_some(pool, n_chunks - 1);
        work(pool, 0);
        while ((pending = atomic_load_explicit(&pool->n_pending, memory_order_acquire)) != 0)
                wait_for_change(pool, &pool->n_pending, pending, &pool->caller_sleeps, false);
}

void tdm_pool_run(struct tdm_pool *pool, unsigned n_chunks, tdm_pool_fn fn, void *arg)
{
        pool_run_chunks(pool, n_chunks, fn, arg, true);
}

void tdm_pool_run_awake(struct tdm_pool *pool, unsigned n_chunks, tdm_pool_fn fn, void *arg)
{
        pool_run_chunks(pool, n_chunks, fn, arg,
                        atomic_load_explicit(&pool->n_sleeping, memory_order_relaxed) >= pool->n_started);
}
