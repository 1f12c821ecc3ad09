#include "common/thread.h"

#include <signal.h>

int tdm_thread_new(pthread_t *ret, void *(*thread_main)(void *userdata), void *userdata)
{
        sigset_t all, before;
        int r;

        /* The main thread takes all signals; a fault stays with the thread that causes it. */
        sigfillset(&all);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGSEGV);
        sigdelset(&all, SIGILL);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGABRT);
        sigdelset(&all, SIGTRAP);
        sigdelset(&all, SIGSYS);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        r = pthread_create(ret, NULL, thread_main, userdata);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return -r;
}
