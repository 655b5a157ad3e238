#include "thread.h"

#include <signal.h>

/* NVRTC 13.0 was seen to need a third of a megabyte for small kernels. */
#define STACK_BYTES ((size_t)8 << 20)

bool fa__thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    bool started = pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0;
    if (started) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        started = pthread_create(thread, &attributes, run, arg) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
    return started;
}
