/* From arguments to the driver. Runs in the serving path: no lock, no allocation, no driver call
 * but the launch and the look at the current context. */
#include <inttypes.h>

#include "context.h"
#include "fork.h"
#include "status.h"

/* Limits that every architecture since Kepler shares: CUDA C++ Programming Guide, "Technical
 * Specifications per Compute Capability". */
static const uint32_t grid_limit[3] = {2147483647, 65535, 65535};
static const uint32_t block_limit[3] = {1024, 1024, 64};

static fa_status check_dimension(const fa_kernel *kernel, const char *what, int axis,
                                 uint32_t value, uint32_t limit)
{
    if (value >= 1 && value <= limit)
        return FA_OK;
    return fa__fail(FA_ERR_GEOMETRY, "%s: %s.%c = %" PRIu32 "; allowed: 1 to %" PRIu32,
                    kernel->label.data, what, "xyz"[axis], value, limit);
}

static fa_status check_geometry(const fa_kernel *kernel, const fa__launch *l)
{
    fa_status status = FA_OK;
    const uint32_t *cluster = kernel->plan.flags.cluster;
    for (int i = 0; i < 3 && status == FA_OK; i++) {
        const uint32_t blocks = l->grid[i];
        status = check_dimension(kernel, "grid", i, blocks, grid_limit[i]);
        if (status == FA_OK)
            status = check_dimension(kernel, "block", i, l->block[i], block_limit[i]);
        if (status == FA_OK && cluster[0] && blocks % cluster[i])
            status =
                fa__fail(FA_ERR_GEOMETRY,
                         "%s: grid.%c = %" PRIu32 " is not a multiple of the cluster's %" PRIu32,
                         kernel->label.data, "xyz"[i], blocks, cluster[i]);
    }
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    const uint32_t most = kernel->info.threads_of[l->function];
    if (status == FA_OK && threads > most)
        status = fa__fail(FA_ERR_GEOMETRY,
                          "%s: a block of %" PRIu64 " threads; this kernel can have %" PRIu32
                          " (%" PRIu32 " registers each)",
                          kernel->label.data, threads, most, kernel->entry.registers);
    return status;
}

static fa_status check_params(const fa_kernel *kernel, const fa__launch *l)
{
    const fa__function_info *info = &kernel->info;
    if (info->param_count == SIZE_MAX)
        return FA_OK; /* an old driver: the caller's word counts */
    if (l->typed_param_count != info->param_count)
        return fa__fail(FA_ERR_PARAM_COUNT, "%s takes %zu parameters, not %zu", kernel->label.data,
                        info->param_count, l->typed_param_count);
    for (size_t i = 0; i < info->param_count; i++)
        if (l->typed_params[i].size != info->param_size[i])
            return fa__fail(FA_ERR_PARAM_SIZE,
                            "%s: params[%zu].size = %zu; the kernel takes %u bytes",
                            kernel->label.data, i, l->typed_params[i].size, info->param_size[i]);
    return FA_OK;
}

static __attribute__((cold)) fa_status refused(const fa_kernel *kernel, fa_status status)
{
    atomic_fetch_add_explicit(&kernel->ctx->counters.launches_refused, 1, memory_order_relaxed);
    return status;
}

static fa_status check_handles(const char *call, const fa_kernel *kernel, const fa_args *args)
{
    if (!kernel || !args)
        return fa__fail(FA_ERR_NULL_POINTER, "%s: %s is NULL", call, kernel ? "args" : "kernel");
    if (kernel->fork_generation != fa__fork_generation())
        return fa__fail(FA_ERR_FORKED, "%s: the kernel was made before this process was forked",
                        call);
    if (args->size != sizeof *args) {
        fa_status status = fa__check_struct("fa_args", args, args->size, sizeof *args);
        if (status)
            return refused(kernel, status);
    }
    if (args->op != kernel->op->id)
        return refused(kernel, fa__fail(FA_ERR_OP_MISMATCH,
                                        "%s: args.op = %d, but the kernel is of %s (%d)", call,
                                        (int)args->op, kernel->op->name, (int)kernel->op->id));
    return FA_OK;
}

fa_status fa_launch(const fa_kernel *kernel, const fa_args *args, fa_stream stream)
{
    fa__launch_room room;
    fa__launch launch;
    fa_status status = check_handles("fa_launch", kernel, args);
    if (status)
        return status;
    launch.empty = false;
    launch.typed_params = NULL;
    launch.smem_bytes = 0;
    launch.function = 0;
    launch.then = NULL;
    status = kernel->op->launch(&kernel->spec, &kernel->plan, kernel->multiprocessors, args,
                                &launch, &room);
    if (status)
        return refused(kernel, status);
    if (!kernel->function[0])
        return refused(kernel,
                       fa__fail(FA_ERR_OFFLINE,
                                "fa_launch: %s was compiled on an offline context for %s, which "
                                "has no device; compile it on a context of the device",
                                kernel->label.data, kernel->arch));
    if (launch.empty)
        return FA_OK;
    for (const fa__launch *l = &launch; l && status == FA_OK; l = l->then)
        status = check_geometry(kernel, l);
    if (status == FA_OK && launch.typed_params)
        status = check_params(kernel, &launch);
    if (status)
        return refused(kernel, status);
    for (const fa__launch *l = &launch; l && status == FA_OK; l = l->then)
        status = fa__driver_launch(kernel->cuda, kernel->function[l->function], l, kernel->flags,
                                   stream);
    return status;
}

fa_status fa_workspace_size(const fa_kernel *kernel, const fa_args *args, size_t *bytes)
{
    if (!bytes)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_workspace_size: bytes is NULL");
    fa_status status = check_handles("fa_workspace_size", kernel, args);
    if (status == FA_OK)
        *bytes = 0;
    if (status == FA_OK && kernel->op->workspace)
        status = kernel->op->workspace(&kernel->spec, &kernel->plan, kernel->multiprocessors, args,
                                       bytes);
    return status;
}
