/* Threads of the library: no signal of the host program is delivered to them, and their stack is
 * large enough for NVRTC whatever the process's default is. */
#ifndef FA_THREAD_H
#define FA_THREAD_H

#include <pthread.h>
#include <stdbool.h>

bool fa__thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

#endif
