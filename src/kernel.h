/* A compiled instance. Constant after fa__kernel_load, but for the counters of its table. */
#ifndef FA_KERNEL_H
#define FA_KERNEL_H

#include <stdatomic.h>

#include "driver.h"
#include "entry.h"
#include "key.h"
#include "op.h"

struct fa_kernel {
    /* what a hit touches, together in one cache line; but for origin under the table's lock
     * (kernels.c) */
    atomic_int origin;      /* fa_origin of the latest answer */
    uint32_t holders;       /* callers' handles */
    struct fa__slot *slots; /* the specs that lead here */
    fa_kernel *idle_newer, *idle_older;

    /* what a launch reads */
    fa__cufunction function[FA__MAX_FUNCTIONS]; /* NULL on an offline context */
    fa__cuctx cuda;
    const fa__op *op;
    fa_context *ctx;
    unsigned fork_generation;
    int32_t multiprocessors;
    const fa__launch_flags *flags; /* into plan; NULL: a plain launch */
    fa_spec spec;                  /* validated, with its defaults filled in */
    fa__plan plan;
    fa__function_info info;

    /* what describes it */
    fa__cumodule module;
    void *spec_memory;
    fa__entry entry;
    fa__buf label;
    _Atomic(char *) source; /* made anew when fa_kernel_info asks; NULL before */
    fa__key key;
    char arch[16];
};

/* The last steps of the pipeline: from a cache entry to a kernel that can be launched (load.c).
 * Takes over entry, key and program's label; on failure they are freed as well. */
fa_status fa__kernel_load(fa_context *ctx, const fa__op *op, const fa_spec *spec,
                          const fa__plan *plan, fa__program *program, fa__key *key,
                          fa__entry *entry, fa_kernel **out);

/* Unloads and frees. */
void fa__kernel_free(fa_kernel *kernel);

#endif
