/* Worker threads for compiles in the background, made when first needed. */
#ifndef FA_POOL_H
#define FA_POOL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fa__pool fa__pool;

/* `run` is called on a worker; or on the thread that stops the pool, with `cancelled` set. */
typedef void (*fa__task)(void *arg, bool cancelled);

fa__pool *fa__pool_create(uint32_t threads);                /* NULL: out of memory */
bool fa__pool_add(fa__pool *pool, fa__task run, void *arg); /* false: out of memory or threads */
/* Cancels what has not begun, waits for what has, and frees. NULL is ignored. */
void fa__pool_stop(fa__pool *pool);

#endif
