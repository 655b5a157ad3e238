/* Noticing that this process is a fork of the one that made a handle: a counter that a child bumps.
 */
#ifndef FA_FORK_H
#define FA_FORK_H

#include <stdatomic.h>

extern atomic_uint
    fa__fork_count; /* forks between this process and the first that used the library */

/* Registers the hook, once in the process; before any handle is made. */
void fa__fork_watch(void);

static inline unsigned fa__fork_generation(void)
{
    return atomic_load_explicit(&fa__fork_count, memory_order_relaxed);
}

#endif
