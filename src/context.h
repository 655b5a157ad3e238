/* What a context is made of. */
#ifndef FA_CONTEXT_H
#define FA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache.h"
#include "clock.h"
#include "kernels.h"
#include "log.h"
#include "pool.h"
#include "record.h"

typedef struct fa__counters {
    atomic_uint_fast64_t memory_hits, disk_hits, compiles, compile_errors, waits, launches_refused,
        compile_ns, load_ns;
} fa__counters;

struct fa_context {
    atomic_uint refs; /* the caller, each kernel and each future */
    unsigned fork_generation;
    atomic_bool sealed;
    fa__log log;
    fa__target target;
    bool offline, owns_primary;
    int32_t device; /* ordinal; -1 offline */
    fa_device_info_t device_info;
    fa__cuctx cuda;
    uint32_t compile_jobs;
    fa__cache *cache;
    fa__kernels *kernels;
    fa__pool *pool;
    fa__record *record;
    fa__counters counters;
    pthread_mutex_t info_lock; /* nvrtc_error */
    char *nvrtc_error;
};

void fa__context_hold(fa_context *ctx);
void fa__context_drop(fa_context *ctx);

/* FA_ERR_NULL_POINTER or FA_ERR_FORKED; `call` is the public function's name. */
fa_status fa__context_check(const fa_context *ctx, const char *call);

/* fa_compile for the library itself. `origin` tells how this request was answered. */
fa_status fa__compile(fa_context *ctx, const fa_spec *spec, fa_kernel **out, fa_origin *origin);

/* Validates and plans: everything that can be refused before compiling. `normal` and `plan` may be
 * NULL. */
fa_status fa__spec_prepare(const fa_context *ctx, const fa_spec *spec, const fa__op **op,
                           fa_spec *normal, fa__plan *plan);

#endif
