/* A thread that leaves signals to the main one: all but those of its own faults are blocked in it. */
#ifndef TDM_COMMON_THREAD_H
#define TDM_COMMON_THREAD_H

#include <pthread.h>

/* 0, or a negative errno; to be joined by the caller. */
int tdm_thread_new(pthread_t *ret, void *(*thread_main)(void *userdata), void *userdata);

#endif
