#include "exit.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* exit() of glibc runs the thread-local destructors of the thread that calls it first of all; this
 * is how C++ registers one (Itanium C++ ABI; glibc 2.18). Exit handlers would come too late: NVRTC
 * registers its own in the middle of a compile, and handlers run last in, first out. */
extern int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *dso)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static void (*on_end)(void);

static void destructor(void *unused)
{
    (void)unused;
    on_end();
}

void fa__exit_watch(void (*call)(void))
{
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (!__cxa_thread_atexit_impl || gettid() != getpid() || atomic_flag_test_and_set(&done))
        return;
    on_end = call;
    (void)__cxa_thread_atexit_impl(destructor, NULL,
                                   &__dso_handle); /* without memory: no waiting */
}
