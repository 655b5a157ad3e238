/* Worker threads for compiles in the background, made when first needed. */
#ifndef FA_POOL_H
#define FA_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "fajit.h"

typedef struct fa__pool fa__pool;

/* `run` is called on a worker; or on the thread that stops the pool, with `cancelled` set. */
typedef void (*fa__task)(void *arg, bool cancelled);

fa__pool *fa__pool_create(uint32_t threads);                /* NULL: out of memory */
bool fa__pool_add(fa__pool *pool, fa__task run, void *arg); /* false: out of memory or threads */
/* Cancels what has not begun, waits for what has, and frees. NULL is ignored. */
void fa__pool_stop(fa__pool *pool);

/* The process's compile slots: enter waits until fewer than `limit` compiles run. FA_ERR_FORKED in the
 * child of a process that was compiling: NVRTC's own locks may never be released there. */
fa_status fa__slot_enter(uint32_t limit);
void fa__slot_leave(void);
/* When the main thread ends: waits for the compiles that run. Exit handlers may be about to take away
 * what they use; the next compile begins only when that has not happened within a moment. */
void fa__slot_pause(void);
/* At exit: no more compiles begin, and those that run are waited for. */
void fa__slot_close(void);

#endif
