#include "daemon/service/heap.h"

#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
#include "common/util.h"

#define TUNABLES "GLIBC_TUNABLES"
#define NO_CACHES "glibc.malloc.tcache_count=0"
#define SECOND_START "TANDEM_SECOND_START" /* this process, which starts itself once more */

#define TRIM_BYTES ((size_t)512 << 10) /* freed memory in heaps above this goes back to the system */
#define MMAP_BYTES (128 << 10)         /* larger allocations are mappings, which go back when they are freed */
#define MAX_HEAPS 2                    /* the loop's, and one that the threads beside it share */

/* Never a third start, whatever a C library does with its own variable. */
static bool process_was_started_again(void)
{
        const char *set = getenv(SECOND_START);
        char pid[24];

        (void)snprintf(pid, sizeof(pid), "%ld", (long)getpid());
        if (!set || strcmp(set, pid) != 0)
                return false;
        (void)unsetenv(SECOND_START);
        return true;
}

/* As they were before the second start: NULL, or what somebody else set. */
static void environment_restore_tunables(const char *before)
{
        if (before)
                (void)setenv(TUNABLES, before, 1);
        else
                (void)unsetenv(TUNABLES);
}

static void environment_drop_own_tunable(void)
{
        const char *set = getenv(TUNABLES);
        size_t size = set ? strlen(set) : 0, own = strlen(NO_CACHES);
        _cleanup_(freep) char *before = NULL;

        if (size < own || strcmp(set + size - own, NO_CACHES) != 0)
                return;
        if (size == own || (before = strndup(set, size - own - 1)))
                environment_restore_tunables(before);
}

void tdm_heap_drop_thread_caches(char **argv)
{
        const char *set = getenv(TUNABLES);
        _cleanup_(freep) char *before = set ? strdup(set) : NULL, *wanted = NULL;
        char path[PATH_MAX], pid[24];
        ssize_t size;

        if (process_was_started_again()) {
                environment_drop_own_tunable();
                return;
        }
        if (getauxval(AT_BASE) == 0)
                return; /* a dynamic loader was called with this program: its arguments are not these */
        size = readlink("/proc/self/exe", path, sizeof(path) - 1);
        if (size <= 0 || (set && !before))
                return;
        path[size] = '\0';
        if (asprintf(&wanted, "%s%s" NO_CACHES, before ? before : "", before ? ":" : "") < 0) {
                wanted = NULL;
                return;
        }
        (void)snprintf(pid, sizeof(pid), "%ld", (long)getpid());
        if (setenv(SECOND_START, pid, 1) == 0 && setenv(TUNABLES, wanted, 1) == 0)
                (void)execv(path, argv);
        (void)unsetenv(SECOND_START);
        environment_restore_tunables(before);
}

/* Large buffers (frames, waiting texts, vocabularies) are mapped each by itself and go back when they are freed. Left
 * alone, malloc raises the threshold to the largest one freed, and takes them from heaps then. A heap for each thread
 * would keep what was freed in it below what is still in use. */
void tdm_heap_keep_small(void)
{
        (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
        (void)mallopt(M_TRIM_THRESHOLD, MMAP_BYTES);
        (void)mallopt(M_ARENA_MAX, MAX_HEAPS);
}

void tdm_heap_trim(void)
{
        if (mallinfo2().fordblks > TRIM_BYTES)
                malloc_trim(0);
}
