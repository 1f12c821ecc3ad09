/* The descriptor ring: single producer, single consumer, two processes that do not trust each other.
 *
 * Everything that decides where memory is touched (own index, number of entries, epoch) is kept in private memory after
 * attach. A shared word is either written for the peer, or read once and checked. A descriptor is copied out once. So a
 * hostile peer can send nonsense, which the caller sees as -EPROTO, or nothing, which it sees as a timeout.
 *
 * Memory orders. There are three pairs inside the ring:
 *   P1 produced: stored by push after the entry is written (release) / loaded by pop and wait (acquire). What the
 *      producer wrote before push, in the entry and in any segment, is visible to the consumer that popped it.
 *   P2 consumed: stored by pop after the entry is read (release) / loaded by push (acquire). An entry is written again
 *      only after it was read.
 *   P3 sleeping (Dekker): the consumer stores sleep_seq (odd), then loads produced; the producer stores produced, then
 *      loads sleep_seq. All four are seq_cst, so at least one side sees the other's store: either the producer wakes,
 *      or the consumer does not sleep. Plain seq_cst accesses, not fences, because ThreadSanitizer understands them;
 *      on x86 the cost is the same (one xchg for each push).
 * It never blocks in push, and it does not know what a descriptor means beyond its kind and epoch. */
#include "common/ring.h"
#include "common/ring-layout.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef FUTEX_32
#define FUTEX_32 2
#endif

#define RING_WAIT_MAX 8u
/* Without futex_waitv: naps grow from the first to the second number, so that an idle worker does not keep a core warm
 * and a busy one is not late. */
#define NAP_MIN_NS (50 * UINT64_C(1000))
#define NAP_MAX_NS (2 * TDM_NSEC_PER_MSEC)
/* Spinning looks at the clock only this often. */
#define SPINS_PER_CLOCK 32u

/* struct futex_waitv of linux/futex.h (5.16), under a name of our own: old headers lack it. */
struct waitv_entry {
        uint64_t value;
        uint64_t address;
        uint32_t flags;
        uint32_t reserved;
};
static_assert(sizeof(struct waitv_entry) == 24, "kernel ABI");

struct tdm_ring {
        struct tdm_ring_shared *shared;
        size_t map_bytes;
        uint32_t n_entries; /* these three: private copies, checked at attach */
        uint32_t epoch;
        enum tdm_ring_wake wake;
        enum tdm_ring_end end;
        uint32_t own;       /* own index: what this end last stored */
        uint32_t peer;      /* producer: the consumer's index when last seen */
        uint32_t woken_seq; /* producer: the sleep that was already ended; one wake-up each is enough */
        uint32_t sleep_seq; /* consumer: what it last stored */
        bool dead;          /* the peer broke the rules */
        int memfd;
        int eventfd;
};

static _Atomic bool waitv_missing;

void tdm_ring_without_waitv(bool without)
{
        /* Relaxed: a hint. A thread that sees it late makes one futile system call. */
        atomic_store_explicit(&waitv_missing, without, memory_order_relaxed);
}

struct tdm_ring_shared *tdm_ring_shared(struct tdm_ring *ring)
{
        return ring->shared;
}

void tdm_ring_set_indices(struct tdm_ring *ring, uint32_t index)
{
        ring->own = index;
        ring->peer = index;
        atomic_store(&ring->shared->produced, index);
        atomic_store(&ring->shared->consumed, index);
}

void tdm_ring_borrow_mapping(struct tdm_ring *ring, struct tdm_ring *other)
{
        munmap(ring->shared, ring->map_bytes);
        ring->shared = other->shared;
        ring->map_bytes = 0;
}

static uint64_t ring_bytes(uint32_t n_entries)
{
        uint64_t n = sizeof(struct tdm_ring_shared) + (uint64_t)n_entries * sizeof(struct tdm_desc);

        return TDM_ALIGN_UP(n, (uint64_t)sysconf(_SC_PAGESIZE));
}

static bool entries_valid(uint32_t n)
{
        return n >= TDM_RING_MIN_ENTRIES && n <= TDM_RING_MAX_ENTRIES && (n & (n - 1)) == 0;
}

int tdm_ring_create(int *ret_memfd, int *ret_eventfd, uint32_t epoch, uint32_t n_entries, enum tdm_ring_wake wake)
{
        _cleanup_(closep) int memfd = -1, efd = -1;
        struct tdm_ring_shared *shared;
        uint64_t size;

        if (!entries_valid(n_entries) || (wake != TDM_RING_WAKE_FUTEX && wake != TDM_RING_WAKE_EVENTFD))
                return -EINVAL;
        size = ring_bytes(n_entries);
        memfd = memfd_create("tandem-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if (memfd < 0 && errno == EINVAL)
                memfd = memfd_create("tandem-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (memfd < 0)
                return -errno;
        if (fchmod(memfd, 0400) < 0 || ftruncate(memfd, (off_t)size) < 0)
                return -errno;
        /* F_SEAL_SEAL: an end must not add F_SEAL_FUTURE_WRITE before the other has mapped. */
        if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        if (wake == TDM_RING_WAKE_EVENTFD) {
                efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
                if (efd < 0)
                        return -errno;
        }

        shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        if (shared == MAP_FAILED)
                return -errno;
        /* Plain stores: handing the fd over orders them before anything the ends do. Indices start at zero. */
        shared->magic = TDM_RING_MAGIC;
        shared->abi = TDM_RING_ABI;
        shared->n_entries = n_entries;
        shared->entry_bytes = sizeof(struct tdm_desc);
        shared->epoch = epoch;
        shared->wake = (uint32_t)wake;
        shared->size_bytes = size;
        munmap(shared, size);

        *ret_memfd = steal_fd(&memfd);
        *ret_eventfd = steal_fd(&efd);
        return 0;
}

/* The header as it was at one moment; the peer may already have the fd and be writing. */
static void copy_header(struct tdm_ring_shared *to, const struct tdm_ring_shared *from)
{
        const volatile struct tdm_ring_shared *v = from;

        to->magic = v->magic;
        to->abi = v->abi;
        to->n_entries = v->n_entries;
        to->entry_bytes = v->entry_bytes;
        to->epoch = v->epoch;
        to->wake = v->wake;
        to->size_bytes = v->size_bytes;
}

static int check_header(const struct tdm_ring_shared *h, uint64_t size, int eventfd, uint32_t epoch,
                        struct tdm_error *err)
{
        bool wants_eventfd = h->wake == TDM_RING_WAKE_EVENTFD;

        if (h->magic != TDM_RING_MAGIC)
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: wrong magic 0x%08x", h->magic);
        if (h->abi != TDM_RING_ABI)
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "ring: ABI %u, this program speaks %u (processes of different versions?)", h->abi,
                                     TDM_RING_ABI);
        if (!entries_valid(h->n_entries) || h->entry_bytes != sizeof(struct tdm_desc))
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: %u entries of %u bytes are not a ring", h->n_entries,
                                     h->entry_bytes);
        if (h->size_bytes != size || size != ring_bytes(h->n_entries))
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: %llu bytes told, %llu there, %llu needed",
                                     (unsigned long long)h->size_bytes, (unsigned long long)size,
                                     (unsigned long long)ring_bytes(h->n_entries));
        if (h->epoch != epoch)
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: epoch %u, expected %u", h->epoch, epoch);
        if (h->wake != TDM_RING_WAKE_FUTEX && !wants_eventfd)
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: unknown way of waking %u", h->wake);
        if (wants_eventfd != (eventfd >= 0))
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: %s eventfd came with a ring that wakes by %s",
                                     eventfd >= 0 ? "an" : "no", wants_eventfd ? "eventfd" : "futex");
        return 0;
}

int tdm_ring_attach(struct tdm_ring **ret, int memfd, int eventfd, enum tdm_ring_end end, uint32_t epoch,
                    struct tdm_error *err)
{
        const int want = F_SEAL_SHRINK | F_SEAL_GROW;
        _cleanup_(tdm_ring_destroyp) struct tdm_ring *ring = NULL;
        struct tdm_ring_shared header = { 0 };
        int seals = fcntl(memfd, F_GET_SEALS), r;
        struct stat st;
        void *p;

        if (seals < 0)
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: fd is not a memfd: %m");
        if ((seals & want) != want)
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: memfd can still change its size (seals 0x%x)",
                                     (unsigned)seals);
        if (fstat(memfd, &st) < 0)
                return tdm_error_set(err, -errno, "ring: cannot stat memfd: %m");
        if (st.st_size < (off_t)ring_bytes(TDM_RING_MIN_ENTRIES) ||
            st.st_size > (off_t)ring_bytes(TDM_RING_MAX_ENTRIES))
                return tdm_error_set(err, TDM_E_PROTOCOL, "ring: memfd of %lld bytes is not a ring",
                                     (long long)st.st_size);

        ring = calloc(1, sizeof(*ring));
        if (!ring)
                return tdm_error_set(err, -ENOMEM, "ring: out of memory");
        ring->memfd = -1;
        ring->eventfd = -1;
        p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        if (p == MAP_FAILED)
                return tdm_error_set(err, -errno, "ring: cannot map memfd: %m");
        ring->shared = p;
        ring->map_bytes = (size_t)st.st_size;

        copy_header(&header, ring->shared);
        r = check_header(&header, (uint64_t)st.st_size, eventfd, epoch, err);
        if (r != 0)
                return r;
        ring->n_entries = header.n_entries;
        ring->epoch = header.epoch;
        ring->wake = (enum tdm_ring_wake)header.wake;
        ring->end = end;

        /* Both indices start at zero with the ring, at both ends: an end is attached once. */
        ring->memfd = memfd;
        ring->eventfd = eventfd;
        *ret = steal_ptr(&ring);
        return 0;
}

void tdm_ring_destroy(struct tdm_ring *ring)
{
        if (!ring)
                return;
        if (ring->map_bytes > 0)
                munmap(ring->shared, ring->map_bytes);
        closep(&ring->memfd);
        closep(&ring->eventfd);
        free(ring);
}

void tdm_ring_destroyp(struct tdm_ring **ring)
{
        tdm_ring_destroy(*ring);
        *ring = NULL;
}

uint32_t tdm_ring_epoch(const struct tdm_ring *ring)
{
        return ring->epoch;
}

int tdm_ring_eventfd(const struct tdm_ring *ring)
{
        return ring->eventfd;
}

static int ring_die(struct tdm_ring *ring)
{
        ring->dead = true;
        return -EPROTO;
}

/* Reads and writes each word exactly once, although the compiler knows of no other process. ThreadSanitizer still sees
 * plain accesses, and so checks P1 and P2. */
static void copy_desc(volatile void *to, const volatile void *from)
{
        volatile uint64_t *t = to;
        const volatile uint64_t *f = from;

        for (size_t i = 0; i < sizeof(struct tdm_desc) / sizeof(uint64_t); i++)
                t[i] = f[i];
}

static bool kind_valid(uint32_t kind)
{
        return kind == TDM_DESC_STEP || kind == TDM_DESC_DONE || kind == TDM_DESC_MARK;
}

/* How many threads it woke. */
static long futex_wake(_Atomic uint32_t *word, int flags)
{
        return syscall(SYS_futex, word, FUTEX_WAKE | flags, INT_MAX, NULL, NULL, 0);
}

/* true: the sleep that the consumer has announced ends by this. false: the consumer is not in the kernel yet. It will
 * sleep unless `produced` changes before. An eventfd stays readable until it is read, so it always ends the sleep. */
static bool wake_consumer(struct tdm_ring *ring)
{
        const uint64_t one = 1;

        if (ring->wake == TDM_RING_WAKE_FUTEX)
                return futex_wake(&ring->shared->produced, 0) > 0; /* not private: the sleeper is another process */
        if (write(ring->eventfd, &one, sizeof(one)) < 0) {
                /* EAGAIN: the counter is at its maximum. So the eventfd is readable, and the consumer wakes. */
        }
        return true;
}

static void wake_sleeper(struct tdm_ring *ring)
{
        /* seq_cst: P3, pairs with the seq_cst load of produced in waiting_ready() and tdm_ring_arm(). */
        uint32_t seq = atomic_load_explicit(&ring->shared->sleep_seq, memory_order_seq_cst);

        if (!(seq & 1) || seq == ring->woken_seq)
                return;
        /* One wake-up for one sleep: it ends that sleep even if the consumer then finds nothing. The next sleep has
         * another number. A wake-up that reached no thread ended nothing and does not count: the consumer may be
         * between its last look at `produced` and the futex call. If this push's descriptor was popped before that
         * look, the futex call finds the value that it expects and sleeps, and the next push must wake it. */
        if (wake_consumer(ring))
                ring->woken_seq = seq;
}

void tdm_ring_wake_early(struct tdm_ring *ring)
{
        if (ring->end == TDM_RING_PRODUCER && !ring->dead)
                wake_sleeper(ring);
}

int tdm_ring_push(struct tdm_ring *ring, const struct tdm_desc *desc)
{
        struct tdm_desc *entry;
        uint32_t consumed;

        if (ring->end != TDM_RING_PRODUCER || desc->epoch != ring->epoch || !kind_valid(desc->kind))
                return -EINVAL;
        if (ring->dead)
                return -EPROTO;

        /* Acquire: P2, pairs with the release store in pop. The index moves only forward, and never past what was
         * produced; any other value is a lie of the peer. */
        consumed = atomic_load_explicit(&ring->shared->consumed, memory_order_acquire);
        if (consumed - ring->peer > ring->own - ring->peer)
                return ring_die(ring);
        ring->peer = consumed;
        if (ring->own - consumed >= ring->n_entries)
                return -EAGAIN;

        entry = &ring->shared->entries[ring->own & (ring->n_entries - 1)];
        copy_desc(entry, desc);
        ring->own++;
        /* seq_cst: P1, the release that publishes the entry, pairs with the acquire load in pop and wait; and the first
         * half of P3, pairs with the seq_cst store of sleep_seq in fall_asleep(). */
        atomic_store_explicit(&ring->shared->produced, ring->own, memory_order_seq_cst);
        wake_sleeper(ring);
        return 0;
}

int tdm_ring_pop(struct tdm_ring *ring, struct tdm_desc *ret)
{
        struct tdm_desc desc;
        uint32_t produced;

        if (ring->end != TDM_RING_CONSUMER)
                return -EINVAL;
        if (ring->dead)
                return -EPROTO;

        /* Acquire: P1, pairs with the store in push. */
        produced = atomic_load_explicit(&ring->shared->produced, memory_order_acquire);
        if (produced - ring->own > ring->n_entries)
                return ring_die(ring);
        if (produced == ring->own)
                return 0;

        copy_desc(&desc, &ring->shared->entries[ring->own & (ring->n_entries - 1)]);
        ring->own++;
        /* Release: P2, pairs with the acquire load in push. */
        atomic_store_explicit(&ring->shared->consumed, ring->own, memory_order_release);

        if (desc.epoch != ring->epoch || !kind_valid(desc.kind))
                return ring_die(ring);
        *ret = desc;
        return 1;
}

/* There is a descriptor to pop, or a breach of the protocol that pop will report. */
static bool ring_ready(const struct tdm_ring *ring, memory_order order)
{
        return ring->dead || atomic_load_explicit(&ring->shared->produced, order) != ring->own;
}

static void fall_asleep(struct tdm_ring *ring)
{
        /* Always odd; a new number for every sleep, also when the last one was never ended. */
        ring->sleep_seq = (ring->sleep_seq + 1) | 1;
        /* seq_cst: P3, pairs with the seq_cst load in push. */
        atomic_store_explicit(&ring->shared->sleep_seq, ring->sleep_seq, memory_order_seq_cst);
}

static void wake_up(struct tdm_ring *ring)
{
        if (!(ring->sleep_seq & 1))
                return;
        ring->sleep_seq++;
        /* Relaxed: it only saves the producer a wake-up. A producer that sees it late wakes once for nothing. */
        atomic_store_explicit(&ring->shared->sleep_seq, ring->sleep_seq, memory_order_relaxed);
}

bool tdm_ring_arm(struct tdm_ring *ring)
{
        fall_asleep(ring);
        /* seq_cst: P3, pairs with the seq_cst store of produced in push. */
        return ring_ready(ring, memory_order_seq_cst);
}

void tdm_ring_disarm(struct tdm_ring *ring)
{
        uint64_t count;
        struct iovec iov = { .iov_base = &count, .iov_len = sizeof(count) };

        wake_up(ring);
        if (ring->eventfd < 0)
                return;
        /* RWF_NOWAIT and not plain read(): the peer shares the open file and could clear O_NONBLOCK and empty it, which
         * would hang us here. EAGAIN is the usual answer when no wake-up came. */
        if (preadv2(ring->eventfd, &iov, 1, -1, RWF_NOWAIT) < 0)
                return;
}

struct waiting {
        struct tdm_ring *rings[RING_WAIT_MAX];
        unsigned n_rings;
        _Atomic uint32_t *kick;
        uint32_t kick_seen;
};

static bool waiting_ready(const struct waiting *w, memory_order order)
{
        /* Acquire: pairs with the release in tdm_ring_kick(); the thread that was kicked sees what the kicker wrote
         * before. */
        if (w->kick && atomic_load_explicit(w->kick, memory_order_acquire) != w->kick_seen)
                return true;
        for (unsigned i = 0; i < w->n_rings; i++)
                if (ring_ready(w->rings[i], order))
                        return true;
        return false;
}

static bool spin(const struct waiting *w, uint64_t until_ns)
{
        for (unsigned n = 0;; n++) {
                /* Acquire: P1, as in pop, which follows. */
                if (waiting_ready(w, memory_order_acquire))
                        return true;
                if (n % SPINS_PER_CLOCK == 0 && tdm_now_ns() >= until_ns)
                        return false;
                tdm_cpu_relax();
        }
}

bool tdm_ring_spin(struct tdm_ring *ring, uint64_t spin_ns)
{
        const struct waiting w = { .rings = { ring }, .n_rings = 1 };

        return spin(&w, tdm_now_ns() + spin_ns);
}

static struct timespec to_timespec(uint64_t ns)
{
        return (struct timespec){ .tv_sec = (time_t)(ns / TDM_NSEC_PER_SEC), .tv_nsec = (long)(ns % TDM_NSEC_PER_SEC) };
}

/* Sleeps while all words have the values they had when nothing was ready. deadline_ns UINT64_MAX: for ever. */
static int sleep_waitv(const struct waiting *w, uint64_t deadline_ns)
{
        struct waitv_entry entries[RING_WAIT_MAX + 1] = { 0 };
        struct timespec ts = to_timespec(deadline_ns);
        unsigned n = 0;

        /* For a ring the expected value is our own index: produced == own is what "empty" means. */
        for (unsigned i = 0; i < w->n_rings; i++)
                entries[n++] = (struct waitv_entry){ .value = w->rings[i]->own,
                                                     .address = (uintptr_t)&w->rings[i]->shared->produced,
                                                     .flags = FUTEX_32 };
        if (w->kick)
                entries[n++] = (struct waitv_entry){ .value = w->kick_seen,
                                                     .address = (uintptr_t)w->kick,
                                                     .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG };
        if (syscall(SYS_futex_waitv, entries, n, 0, deadline_ns == UINT64_MAX ? NULL : &ts, CLOCK_MONOTONIC) < 0)
                return -errno;
        return 0;
}

/* Sleeps on one word only. WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, plain WAIT a relative one. */
static void sleep_one(_Atomic uint32_t *word, uint32_t value, int flags, uint64_t deadline_ns)
{
        struct timespec ts = to_timespec(deadline_ns);

        syscall(SYS_futex, word, FUTEX_WAIT_BITSET | flags, value, deadline_ns == UINT64_MAX ? NULL : &ts, NULL,
                FUTEX_BITSET_MATCH_ANY);
}

/* Without futex_waitv a thread can sleep on one word only. With one word it sleeps until the deadline. With several it
 * takes a short sleep on each in turn, so it notices a change one such sleep late at most. */
static void sleep_fallback(const struct waiting *w, uint64_t deadline_ns, unsigned *turn, uint64_t *nap_ns)
{
        unsigned n = w->n_rings + (w->kick ? 1 : 0), i;

        if (n > 1) {
                deadline_ns = TDM_MIN(deadline_ns, tdm_now_ns() + *nap_ns);
                *nap_ns = TDM_MIN(*nap_ns + *nap_ns / 4, NAP_MAX_NS);
        }
        i = (*turn)++ % n;
        if (i < w->n_rings)
                sleep_one(&w->rings[i]->shared->produced, w->rings[i]->own, 0, deadline_ns);
        else
                sleep_one(w->kick, w->kick_seen, FUTEX_PRIVATE_FLAG, deadline_ns);
}

static int wait_asleep(const struct waiting *w, uint64_t deadline_ns)
{
        uint64_t nap_ns = NAP_MIN_NS;
        bool was_early = false;
        unsigned turn = 0;

        for (;;) {
                int r = -ENOSYS;

                /* Also when a wake-up came with nothing to pop: a producer that was held up between its store and its
                 * look at sleep_seq answers this sleep for a descriptor that was popped before, and does not answer it
                 * again. */
                for (unsigned i = 0; i < w->n_rings; i++)
                        fall_asleep(w->rings[i]);
                /* seq_cst: P3, pairs with the seq_cst store of produced in push. */
                if (waiting_ready(w, memory_order_seq_cst))
                        return 0;
                if (deadline_ns != UINT64_MAX && tdm_now_ns() >= deadline_ns)
                        return -ETIMEDOUT;
                /* Relaxed: see tdm_ring_without_waitv(). */
                if (!atomic_load_explicit(&waitv_missing, memory_order_relaxed)) {
                        r = sleep_waitv(w, deadline_ns);
                        if (r == -ENOSYS || r == -EPERM)
                                tdm_ring_without_waitv(true);
                }
                if (r == -ENOSYS || r == -EPERM)
                        sleep_fallback(w, deadline_ns, &turn, &nap_ns);
                else if (r < 0 && r != -EAGAIN && r != -EINTR && r != -ETIMEDOUT)
                        return r;
                /* Woken with nothing to pop: tdm_ring_wake_early(). Once for a wait, so that a producer which says so
                 * without end gets none of our time. */
                if (r == 0 && !was_early) {
                        was_early = true;
                        if (spin(w, TDM_MIN(deadline_ns, tdm_now_ns() + TDM_RING_EARLY_WAKE_NS)))
                                return 0;
                }
                /* The reason why the sleep ended does not matter: the words are read again. */
        }
}

int tdm_ring_wait_any(struct tdm_ring *const *rings, unsigned n_rings, _Atomic uint32_t *kick, uint32_t kick_seen,
                      uint64_t spin_ns, uint64_t timeout_ns)
{
        struct waiting w = { .kick = kick, .kick_seen = kick_seen };
        uint64_t now, deadline_ns;
        int r;

        if (n_rings > RING_WAIT_MAX)
                return -EINVAL;
        for (unsigned i = 0; i < n_rings; i++) {
                if (!rings[i])
                        continue;
                if (rings[i]->end != TDM_RING_CONSUMER || rings[i]->wake != TDM_RING_WAKE_FUTEX)
                        return -EINVAL;
                w.rings[w.n_rings++] = rings[i];
        }

        /* Acquire: P1, as in pop, which follows. */
        if (waiting_ready(&w, memory_order_acquire))
                return 0;
        if (timeout_ns == 0)
                return -ETIMEDOUT;
        now = tdm_now_ns();
        deadline_ns = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
        if (spin_ns > 0 && spin(&w, spin_ns > deadline_ns - now ? deadline_ns : now + spin_ns))
                return 0;

        if (w.n_rings == 0 && !w.kick) {
                struct timespec ts = to_timespec(deadline_ns);

                if (deadline_ns == UINT64_MAX)
                        return -EINVAL; /* no event could ever end this wait */
                while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
                        ;
                return -ETIMEDOUT;
        }
        r = wait_asleep(&w, deadline_ns);
        for (unsigned i = 0; i < w.n_rings; i++)
                wake_up(w.rings[i]);
        return r;
}

void tdm_ring_kick(_Atomic uint32_t *kick)
{
        /* Release: pairs with the acquire load in waiting_ready(). No Dekker: it always makes the system call, and the
         * futex compares the word itself. */
        atomic_fetch_add_explicit(kick, 1, memory_order_release);
        futex_wake(kick, FUTEX_PRIVATE_FLAG);
}
