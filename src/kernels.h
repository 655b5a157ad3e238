/* The memory cache: packed specs to kernels, and one compile at a time for each. */
#ifndef FA_KERNELS_H
#define FA_KERNELS_H

#include "kernel.h"

typedef struct fa__kernels fa__kernels;

fa__kernels *fa__kernels_create(uint32_t max_idle); /* NULL: out of memory */
/* Frees the table; every kernel must have left it (fa__kernels_close, then the last release). */
void fa__kernels_destroy(fa__kernels *table);

/* The kernel for these bytes, held once more; NULL when there is none. */
fa_kernel *fa__kernels_find(fa__kernels *table, const void *bytes, size_t len);

size_t fa__kernels_count(fa__kernels *table);

/* A compile of one packed spec that several threads may want. */
typedef struct fa__flight fa__flight;

/* Looks again, and joins or starts a flight when there is still no kernel. Returns one of
 *   *kernel != NULL  found, or just landed by another thread; held once more
 *   *flight != NULL  this thread must compile and call fa__flight_land
 *   else             a failure: this one's, or that of the thread that was waited for
 * `waited` tells that another thread's compile was waited for. */
fa_status fa__flight_board(fa__kernels *table, const void *bytes, size_t len, fa_kernel **kernel,
                           fa__flight **flight, bool *waited);

/* Ends the leader's flight. FA_OK: the flight's bytes lead to `kernel` from now on (several packed
 * specs may lead to one), and each thread that waited holds it once more. Else the status and
 * fa_last_error go to them. Returns `status`. */
fa_status fa__flight_land(fa__kernels *table, fa__flight *flight, fa_status status,
                          fa_kernel *kernel);

void fa__kernels_hold(fa__kernels *table, fa_kernel *kernel);
/* Drops one hold. Returns a kernel that must be freed now (this one, or the least recently used
 * idle one beyond max_idle); NULL: none. */
fa_kernel *fa__kernels_drop(fa__kernels *table, fa_kernel *kernel);

/* No more kernels are kept idle. Returns the idle ones, linked by idle_older, for the caller to
 * free. */
fa_kernel *fa__kernels_close(fa__kernels *table);

#endif
