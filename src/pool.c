#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "thread.h"

typedef struct task {
    struct task *next;
    fa__task run;
    void *arg;
} task;

struct fa__pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    task *first, **last;
    uint32_t max_threads, threads, waiting;
    bool stopping;
    pthread_t thread[];
};

fa__pool *fa__pool_create(uint32_t threads)
{
    fa__pool *pool = calloc(1, sizeof *pool + threads * sizeof(pthread_t));
    if (!pool)
        return NULL;
    pool->max_threads = threads;
    pool->last = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    return pool;
}

static void *work(void *arg)
{
    fa__pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        pool->waiting++;
        while (!pool->first && !pool->stopping)
            pthread_cond_wait(&pool->wake, &pool->lock);
        pool->waiting--;
        if (pool->stopping)
            break;
        task *t = pool->first;
        pool->first = t->next;
        if (!pool->first)
            pool->last = &pool->first;
        pthread_mutex_unlock(&pool->lock);
        t->run(t->arg, false);
        free(t);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static bool start_thread(fa__pool *pool)
{
    bool started = fa__thread_start(&pool->thread[pool->threads], work, pool);
    if (started)
        pool->threads++;
    return started;
}

bool fa__pool_add(fa__pool *pool, fa__task run, void *arg)
{
    task *t = malloc(sizeof *t);
    if (!t)
        return false;
    *t = (task){.run = run, .arg = arg};
    pthread_mutex_lock(&pool->lock);
    if (pool->waiting == 0 && pool->threads < pool->max_threads && !start_thread(pool) &&
        pool->threads == 0) {
        pthread_mutex_unlock(&pool->lock);
        free(t);
        return false;
    }
    *pool->last = t;
    pool->last = &t->next;
    pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    return true;
}

void fa__pool_stop(fa__pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    task *rest = pool->first;
    pool->first = NULL;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (task *t = rest, *next; t; t = next) {
        next = t->next;
        t->run(t->arg, true);
        free(t);
    }
    for (uint32_t i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
