#include "compile_slots.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "fork.h"
#include "status.h"

/* All under fa__process_lock. */
static pthread_cond_t slot_free = PTHREAD_COND_INITIALIZER;
static uint32_t slots_taken;
static unsigned slot_generation; /* of the process that took them */
static bool slots_paused, slots_closed;
/* Of this thread: a signal handler that calls exit() in the middle of a compile must not wait for
 * it. */
static _Thread_local uint32_t own_slots;

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
    own_slots++;
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
    own_slots--;
    /* Waiters may have different limits: each looks for itself. */
    pthread_cond_broadcast(&slot_free);
    pthread_mutex_unlock(&fa__process_lock);
}

/* Under the lock. A fork's child has none of the threads that took slots before. */
static void wait_for_running(void)
{
    while (slots_taken > own_slots && slot_generation == fa__fork_generation())
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
