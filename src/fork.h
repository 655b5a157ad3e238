/* What a fork does to the library: a child's copies of handles are refused, and the state of the
 * whole process (opened libraries, compile slots) stays consistent. */
#ifndef FA_FORK_H
#define FA_FORK_H

#include <pthread.h>
#include <stdatomic.h>

/* Forks between this process and the first that used the library. */
extern atomic_uint fa__fork_count;

/* Guards all state of the process. Held across a fork, so that a child finds it free and whole. */
extern pthread_mutex_t fa__process_lock;

/* Registers the hooks, once in the process; before any handle is made. */
void fa__fork_watch(void);

static inline unsigned fa__fork_generation(void)
{
    return atomic_load_explicit(&fa__fork_count, memory_order_relaxed);
}

#endif
