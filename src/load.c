/* From a cache entry to a kernel that is ready to launch, and back. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "fork.h"
#include "status.h"

static bool has_flags(const fa__launch_flags *f)
{
    return f->cluster[0] || f->cooperative || f->programmatic;
}

static fa_status check_smem(const fa_kernel *kernel)
{
    const fa__target *target = &kernel->ctx->target;
    uint64_t total = (uint64_t)kernel->entry.smem_static_bytes + kernel->plan.smem_dynamic_bytes;
    if (total <= target->smem_optin)
        return FA_OK;
    return fa__fail(FA_ERR_SHARED_MEMORY,
                    "%s needs %" PRIu64
                    " bytes of shared memory (%u static, %u dynamic); a block on %s "
                    "can have %u",
                    kernel->label.data, total, kernel->entry.smem_static_bytes,
                    kernel->plan.smem_dynamic_bytes, target->arch, target->smem_optin);
}

/* What the host is about to pass must be what the kernel takes. */
static fa_status check_params(const fa_kernel *kernel)
{
    const fa__op *op = kernel->op;
    if (op->param_size_count == 0 || kernel->info.param_count == SIZE_MAX)
        return FA_OK;
    if (kernel->info.param_count != op->param_size_count)
        return fa__fail(FA_ERR_PARAM_COUNT, "%s takes %zu parameters; the library passes %zu",
                        kernel->label.data, kernel->info.param_count, op->param_size_count);
    for (size_t i = 0; i < op->param_size_count; i++)
        if (kernel->info.param_size[i] != op->param_sizes[i])
            return fa__fail(FA_ERR_PARAM_SIZE,
                            "%s: parameter %zu takes %u bytes; the library passes %zu",
                            kernel->label.data, i, kernel->info.param_size[i], op->param_sizes[i]);
    return FA_OK;
}

static fa_status load_on_device(fa_kernel *kernel)
{
    const fa__launch_flags *f = &kernel->plan.flags;
    uint64_t blocks = (uint64_t)f->cluster[0] * f->cluster[1] * f->cluster[2];
    fa_status status = fa__driver_enter(kernel->ctx->cuda);
    if (status)
        return status;
    const fa__load what = {
        .cubin = kernel->entry.cubin,
        .function = kernel->entry.function,
        .smem_static_bytes = kernel->entry.smem_static_bytes,
        .smem_dynamic_bytes = kernel->plan.smem_dynamic_bytes,
        .nonportable_cluster = blocks > 8,
        .param_count = kernel->op->param_size_count,
    };
    status = fa__driver_load(&what, &kernel->module, kernel->function, &kernel->info);
    fa__driver_leave();
    return status ? status : check_params(kernel);
}

fa_status fa__kernel_load(fa_context *ctx, const fa__op *op, const fa_spec *spec,
                          const fa__plan *plan, fa__program *program, fa__key *key,
                          fa__entry *entry, fa_kernel **out)
{
    fa_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return fa__fail_memory(sizeof *kernel);
    fa__context_hold(ctx);
    kernel->ctx = ctx;
    kernel->op = op;
    kernel->cuda = ctx->cuda;
    kernel->fork_generation = ctx->fork_generation;
    kernel->multiprocessors = ctx->device_info.multiprocessors;
    kernel->spec = *spec;
    kernel->plan = *plan;
    kernel->flags = has_flags(&plan->flags) ? &kernel->plan.flags : NULL;
    kernel->holders = 1;
    memcpy(kernel->arch, ctx->target.arch, sizeof kernel->arch);
    kernel->label = program->label;
    kernel->key = *key;
    kernel->entry = *entry;
    program->label = (fa__buf){0};
    *key = (fa__key){0};
    *entry = (fa__entry){0};

    fa_status status = check_smem(kernel);
    if (status == FA_OK && op->copy)
        status = op->copy(&kernel->spec, &kernel->spec_memory);
    if (status == FA_OK && !ctx->offline)
        status = load_on_device(kernel);
    if (status) {
        fa__kernel_free(kernel);
        return status;
    }
    *out = kernel;
    return FA_OK;
}

void fa__kernel_free(fa_kernel *kernel)
{
    fa_context *ctx = kernel->ctx;
    if (kernel->module && fa__driver_enter(ctx->cuda) == FA_OK) {
        fa__driver_unload(kernel->module);
        fa__driver_leave();
    }
    fa__entry_free(&kernel->entry);
    fa__key_free(&kernel->key);
    free(atomic_load(&kernel->source));
    fa__buf_free(&kernel->label);
    free(kernel->spec_memory);
    free(kernel);
    fa__context_drop(ctx);
}

void fa_kernel_release(fa_kernel *kernel)
{
    if (!kernel || kernel->fork_generation != fa__fork_generation())
        return;
    fa_kernel *victim = fa__kernels_drop(kernel->ctx->kernels, kernel);
    if (victim)
        fa__kernel_free(victim);
}
