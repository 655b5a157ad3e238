#include "fork.h"

#include <pthread.h>

atomic_uint fa__fork_count;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add_explicit(&fa__fork_count, 1, memory_order_relaxed);
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void fa__fork_watch(void)
{
    pthread_once(&once, watch);
}
