/* The daemon's heap: what was freed goes back to the system. */
#ifndef TDM_DAEMON_SERVICE_HEAP_H
#define TDM_DAEMON_SERVICE_HEAP_H

/* glibc keeps seven freed pieces of each small size for each thread, and each may hold a page of its own: after an
 * attack these are a megabyte that never goes back. Only the environment at a program's start turns that off, so this
 * program starts itself once more. argv: main()'s. Returns in the second start, or where that is not possible; the
 * environment is then what it was, for the programs that this one starts. */
void tdm_heap_drop_thread_caches(char **argv);

/* Before there are other threads: large allocations become mappings of their own, and there are few heaps. */
void tdm_heap_keep_small(void);

/* Gives free pages back. Takes milliseconds: on a thread beside the loop. */
void tdm_heap_trim(void);

#endif
