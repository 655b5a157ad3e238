/* The CUDA driver: the only file that calls libcuda. Every function that fails sets fa_last_error
 * with the driver's name for the error. Types of cuda.h stay behind void pointers and integers. */
#ifndef FA_DRIVER_H
#define FA_DRIVER_H

#include "fajit.h"
#include "op.h"

typedef struct CUctx_st *fa__cuctx;
typedef struct CUmod_st *fa__cumodule;
typedef struct CUfunc_st *fa__cufunction;

typedef struct fa__function_info {
    uint32_t max_threads;                   /* that every function can have in a block */
    uint32_t threads_of[FA__MAX_FUNCTIONS]; /* that each of them can have */
    size_t param_count;                     /* SIZE_MAX: this driver cannot tell */
    uint32_t param_size[FA_MAX_PARAMS];     /* bytes */
} fa__function_info;

/* Opens libcuda and calls cuInit, once in the process. */
fa_status fa__driver_open(void);
int32_t fa__driver_version(void); /* 13000; 0 before open */
const char *fa__driver_path(void);

fa_status fa__driver_device_info(int32_t ordinal, fa_device_info_t *info);
fa_status fa__driver_device_of(fa__cuctx context, int32_t *ordinal);
fa_status fa__driver_primary_retain(int32_t ordinal, fa__cuctx *context);
void fa__driver_primary_release(int32_t ordinal);
fa_status fa__driver_current(fa__cuctx *context); /* NULL: none */

/* Makes `context` current on this thread until leave. */
fa_status fa__driver_enter(fa__cuctx context);
void fa__driver_leave(void);

/* What fa__driver_load is to load. */
typedef struct fa__load {
    const void *cubin;
    const char *function; /* of several one a line, at most FA__MAX_FUNCTIONS */
    uint32_t smem_static_bytes, smem_dynamic_bytes;
    bool nonportable_cluster;
    size_t param_count; /* 0: to be found out */
} fa__load;

/* Between enter and leave. `info` is that of all functions: the least threads, and parameters that
 * all of them take. Loads everything now, nothing lazily, and leaves a capture that is under
 * way on this thread or another valid (FA_ERR_CAPTURE when the driver refuses because of it). */
fa_status fa__driver_load(const fa__load *what, fa__cumodule *module,
                          fa__cufunction function[FA__MAX_FUNCTIONS], fa__function_info *info);
void fa__driver_unload(fa__cumodule module);

/* Queues the launch with `context` current, whatever is current now. flags NULL: a plain launch. */
fa_status fa__driver_launch(fa__cuctx context, fa__cufunction function, const fa__launch *launch,
                            const fa__launch_flags *flags, fa_stream stream);

#endif
