/* The daemon's event loop, on io_uring: readiness of fds (poll, armed again each time), one-shot timers, signals,
 * deferred work and wake-ups from other threads. One thread owns a loop; only tdm_loop_wake_*() may be called from
 * elsewhere. Callbacks may add, change and destroy any source, their own included. A callback that returns non-zero
 * ends tdm_loop_run() with that value (a negative errno is an error; tdm_loop_exit() is the polite way). Where io_uring
 * is forbidden, tdm_loop_new() says what forbids it (kernel.io_uring_disabled, a seccomp sandbox, an old kernel,
 * RLIMIT_MEMLOCK) and what to do. */
#ifndef TDM_COMMON_LOOP_H
#define TDM_COMMON_LOOP_H

#include "common/error.h"

struct tdm_loop;
struct tdm_source;

typedef int (*tdm_io_fn)(struct tdm_source *source, int fd, uint32_t events, void *userdata); /* EPOLLIN, … */
typedef int (*tdm_timer_fn)(struct tdm_source *source, uint64_t now_ns, void *userdata);
typedef int (*tdm_signal_fn)(struct tdm_source *source, int signo, void *userdata);
typedef int (*tdm_defer_fn)(struct tdm_source *source, void *userdata);

int tdm_loop_new(struct tdm_loop **ret, struct tdm_error *err);
void tdm_loop_destroy(struct tdm_loop *loop); /* NULL is fine; destroys the sources that are left */
void tdm_loop_destroyp(struct tdm_loop **loop);

/* Runs until tdm_loop_exit() or a callback's non-zero return. */
int tdm_loop_run(struct tdm_loop *loop);
/* One turn: waits at most timeout_ns (UINT64_MAX: for ever), dispatches what came. For tests and nested use. */
int tdm_loop_turn(struct tdm_loop *loop, uint64_t timeout_ns);
void tdm_loop_exit(struct tdm_loop *loop, int status);

/* The fd stays the caller's; destroy the source before closing it. Level-triggered as seen by the callback: it is
 * called again while the condition holds. events: EPOLLIN, EPOLLOUT, EPOLLPRI; EPOLLERR and EPOLLHUP are always
 * reported. */
int tdm_loop_add_io(struct tdm_loop *loop, int fd, uint32_t events, tdm_io_fn fn, void *userdata,
                    struct tdm_source **ret);
int tdm_source_set_io_events(struct tdm_source *source, uint32_t events);

/* Created disarmed. arm(): fires once at deadline_ns (CLOCK_MONOTONIC), replacing the earlier deadline; 0 disarms. */
int tdm_loop_add_timer(struct tdm_loop *loop, tdm_timer_fn fn, void *userdata, struct tdm_source **ret);
void tdm_source_arm(struct tdm_source *source, uint64_t deadline_ns);

/* Blocks signo for the process (call before threads start) and takes it by signalfd. */
int tdm_loop_add_signal(struct tdm_loop *loop, int signo, tdm_signal_fn fn, void *userdata, struct tdm_source **ret);

/* Created idle. schedule(): fn runs once, before the loop waits again. */
int tdm_loop_add_defer(struct tdm_loop *loop, tdm_defer_fn fn, void *userdata, struct tdm_source **ret);
void tdm_source_schedule(struct tdm_source *source);

/* Like a deferred source, but scheduled from any thread (an eventfd underneath). */
int tdm_loop_add_wake(struct tdm_loop *loop, tdm_defer_fn fn, void *userdata, struct tdm_source **ret);
void tdm_loop_wake(struct tdm_source *source); /* any thread */

void tdm_source_destroy(struct tdm_source *source); /* NULL is fine */
void tdm_source_destroyp(struct tdm_source **source);

#endif
