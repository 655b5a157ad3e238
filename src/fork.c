#include "fork.h"

atomic_uint fa__fork_count;
/* Recursive: cuInit, which is called under it, may fork a helper that loads kernel modules. */
pthread_mutex_t fa__process_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before(void)
{
    pthread_mutex_lock(&fa__process_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&fa__process_lock);
}

static void in_child(void)
{
    atomic_fetch_add_explicit(&fa__fork_count, 1, memory_order_relaxed);
    /* The only thread here has another number than the owner, and could not unlock it. */
    fa__process_lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static void watch(void)
{
    pthread_atfork(before, in_parent, in_child);
}

void fa__fork_watch(void)
{
    pthread_once(&once, watch);
}
