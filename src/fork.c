#include "fork.h"

atomic_uint fa__fork_count;
pthread_mutex_t fa__process_lock = PTHREAD_MUTEX_INITIALIZER;

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
    pthread_mutex_unlock(&fa__process_lock);
}

static void watch(void)
{
    pthread_atfork(before, in_parent, in_child);
}

void fa__fork_watch(void)
{
    pthread_once(&once, watch);
}
