/* Work that takes long, on one thread beside the loop, in order: tokenizing long texts. The thread starts with the
 * first piece of work. */
#ifndef TDM_COMMON_BACKGROUND_H
#define TDM_COMMON_BACKGROUND_H

#include "common/loop.h"

struct tdm_background;

int tdm_background_new(struct tdm_background **ret, struct tdm_loop *loop);
/* Waits for the piece that runs; the others are not run. done is called for all of them. */
void tdm_background_destroy(struct tdm_background *background);
void tdm_background_destroyp(struct tdm_background **background);

/* run: on the thread. done: later, from the loop (ran: false when the background was destroyed before). */
int tdm_background_add(struct tdm_background *background, void (*run)(void *task), void (*done)(void *task, bool ran),
                       void *task);

#endif
