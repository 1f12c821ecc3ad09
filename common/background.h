/* Work that takes long, on threads beside the loop: tokenizing, looking names up.
 *
 * Each user has a queue. Threads take from the users' queues in turn, so that a user with many tasks delays only
 * itself. Of one user only one task runs at a time, in order of arrival: one user's long tasks cannot take all threads.
 * Threads start when they are needed. */
#ifndef TDM_COMMON_BACKGROUND_H
#define TDM_COMMON_BACKGROUND_H

#include "common/loop.h"

#define TDM_BACKGROUND_MAX_THREADS 16u
#define TDM_BACKGROUND_MAX_TASKS 65536u /* that wait, of all users */

struct tdm_background;

/* One thread. */
int tdm_background_new(struct tdm_background **ret, struct tdm_loop *loop);
int tdm_background_new_pool(struct tdm_background **ret, struct tdm_loop *loop, unsigned n_threads);
/* Waits for the tasks that run; the others are not run. done is called for all of them. */
void tdm_background_destroy(struct tdm_background *background);
void tdm_background_destroyp(struct tdm_background **background);

/* run: on a thread. done: later, from the loop (ran: false when the background was destroyed before). -ENOBUFS: too
 * many tasks wait. */
int tdm_background_add(struct tdm_background *background, void (*run)(void *task), void (*done)(void *task, bool ran),
                       void *task);
int tdm_background_add_for(struct tdm_background *background, uint64_t user, void (*run)(void *task),
                           void (*done)(void *task, bool ran), void *task);

#endif
