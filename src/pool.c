#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "fork.h"
#include "status.h"

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

/* Signals are the host program's: none is delivered to a worker. */
static bool start_thread(fa__pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&pool->thread[pool->threads], NULL, work, pool) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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

/* --- compile slots, under fa__process_lock --- */

static pthread_cond_t slot_free = PTHREAD_COND_INITIALIZER;
static uint32_t slots_taken;
static unsigned slot_generation; /* of the process that took them */
static bool slots_paused, slots_closed;

/* The main thread has ended. If that was exit(), its handlers have run long before this returns. */
static void wait_for_exit(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    while (!slots_closed && pthread_cond_timedwait(&slot_free, &fa__process_lock, &until) == 0)
        continue;
    slots_paused = false; /* it was pthread_exit: the process goes on */
}

/* Under the lock: a slot, or why there is none to be had. */
static fa_status take_slot(uint32_t limit)
{
    if (slots_taken && slot_generation != fa__fork_generation())
        return fa__fail(
            FA_ERR_FORKED,
            "another thread was compiling when this process was forked, so NVRTC cannot "
            "be used here; start the child with exec");
    if (slots_paused)
        wait_for_exit();
    while (slots_taken >= limit && !slots_closed)
        pthread_cond_wait(&slot_free, &fa__process_lock);
    if (slots_closed)
        return fa__fail(FA_ERR_CANCELLED, "the process is exiting; nothing is compiled any more");
    slots_taken++;
    slot_generation = fa__fork_generation();
    return FA_OK;
}

fa_status fa__slot_enter(uint32_t limit)
{
    pthread_mutex_lock(&fa__process_lock);
    fa_status status = take_slot(limit);
    pthread_mutex_unlock(&fa__process_lock);
    return status;
}

void fa__slot_leave(void)
{
    pthread_mutex_lock(&fa__process_lock);
    slots_taken--;
    /* Waiters may have different limits: each looks for itself. */
    pthread_cond_broadcast(&slot_free);
    pthread_mutex_unlock(&fa__process_lock);
}

/* Under the lock. A fork's child has none of the threads that took slots before. */
static void wait_for_running(void)
{
    while (slots_taken && slot_generation == fa__fork_generation())
        pthread_cond_wait(&slot_free, &fa__process_lock);
}

void fa__slot_pause(void)
{
    pthread_mutex_lock(&fa__process_lock);
    slots_paused = true;
    wait_for_running();
    pthread_mutex_unlock(&fa__process_lock);
}

void fa__slot_close(void)
{
    pthread_mutex_lock(&fa__process_lock);
    slots_closed = true;
    pthread_cond_broadcast(&slot_free);
    wait_for_running();
    pthread_mutex_unlock(&fa__process_lock);
}
