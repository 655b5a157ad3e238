#include "context.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch.h"
#include "compile_slots.h"
#include "exit.h"
#include "fork.h"
#include "status.h"

/* --- lifetime --- */

void fa__context_hold(fa_context *ctx)
{
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
}

static void context_free(fa_context *ctx)
{
    fa__kernels_destroy(ctx->kernels);
    fa__cache_close(ctx->cache);
    fa__record_destroy(ctx->record);
    if (ctx->owns_primary)
        fa__driver_primary_release(ctx->device);
    pthread_mutex_destroy(&ctx->info_lock);
    free(ctx->nvrtc_error);
    free(ctx);
}

void fa__context_drop(fa_context *ctx)
{
    if (atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) == 1)
        context_free(ctx);
}

void fa_context_destroy(fa_context *ctx)
{
    if (!ctx || ctx->fork_generation != fa__fork_generation())
        return; /* a fork's copy: its locks and threads are the parent's */
    fa__pool_stop(ctx->pool);
    ctx->pool = NULL;
    fa_kernel *idle = fa__kernels_close(ctx->kernels);
    for (fa_kernel *next; idle; idle = next) {
        next = idle->idle_older;
        fa__kernel_free(idle);
    }
    fa__context_drop(ctx);
}

fa_status fa__context_check(const fa_context *ctx, const char *call)
{
    if (!ctx)
        return fa__fail(FA_ERR_NULL_POINTER, "%s: ctx is NULL", call);
    if (ctx->fork_generation != fa__fork_generation())
        return fa__fail(
            FA_ERR_FORKED,
            "%s: the context was created before this process was forked; create one here", call);
    return FA_OK;
}

/* --- device and architecture --- */

static fa_status attach_offline(fa_context *ctx, const fa_context_options *options)
{
    ctx->offline = true;
    ctx->device = -1;
    if (!options->arch)
        return fa__fail(FA_ERR_ARCH,
                        "an offline context needs an architecture: set "
                        "fa_context_options.arch, e.g. \"sm_90a\"");
    return fa__arch_parse(options->arch, &ctx->target);
}

/* Finds the CUDA context and the device behind it. */
static fa_status attach_cuda(fa_context *ctx, const fa_context_options *options)
{
    fa_status status = FA_OK;
    ctx->cuda = options->cuda_context;
    ctx->device = options->device;
    if (!ctx->cuda && options->device == FA_DEVICE_CURRENT) {
        status = fa__driver_current(&ctx->cuda);
        ctx->device = 0;
    }
    if (status == FA_OK && ctx->cuda)
        status = fa__driver_device_of(ctx->cuda, &ctx->device);
    if (status == FA_OK)
        status = fa__driver_device_info(ctx->device, &ctx->device_info);
    if (status == FA_OK && !ctx->cuda) {
        status = fa__driver_primary_retain(ctx->device, &ctx->cuda);
        ctx->owns_primary = status == FA_OK;
    }
    return status;
}

/* Machine code runs on later minor versions of its major; with a feature suffix only on its own. */
static fa_status check_runs_on(const fa__target *target, const fa_device_info_t *device)
{
    int32_t cc = device->compute_major * 10 + device->compute_minor;
    const char *end = target->arch + strlen(target->arch) - 1;
    bool exact = *end == 'a',
         runs = exact ? target->cc == cc : target->cc / 10 == cc / 10 && target->cc <= cc;
    if (runs)
        return FA_OK;
    return fa__fail(FA_ERR_ARCH,
                    "code for %s does not run on %s (compute capability %d.%d, default %s); leave "
                    "fa_context_options.arch NULL, or use an offline context to fill caches for "
                    "other devices",
                    target->arch, device->name, device->compute_major, device->compute_minor,
                    device->arch);
}

static fa_status attach_device(fa_context *ctx, const fa_context_options *options)
{
    fa_status status = fa__driver_open();
    if (status)
        return status;
    if (options->device < FA_DEVICE_CURRENT)
        return fa__fail(FA_ERR_VALUE,
                        "fa_context_options.device = %d; allowed: 0 and up, or FA_DEVICE_CURRENT",
                        options->device);
    status = attach_cuda(ctx, options);
    if (status == FA_OK)
        status =
            fa__arch_parse(options->arch ? options->arch : ctx->device_info.arch, &ctx->target);
    if (status == FA_OK)
        status = check_runs_on(&ctx->target, &ctx->device_info);
    if (status == FA_OK)
        ctx->target.smem_optin = ctx->device_info.smem_per_block_bytes;
    return status;
}

/* --- budget --- */

/* An NVRTC instance takes a few hundred MB at its peak. */
#define COMPILE_BYTES (UINT64_C(512) << 20)

static uint32_t default_jobs(void)
{
    cpu_set_t set;
    long cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                             : sysconf(_SC_NPROCESSORS_ONLN);
    /* Half of what is installed: what is free at this moment is mostly a measure of the page cache.
     */
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t fit = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 / COMPILE_BYTES : 1;
    uint64_t jobs = cores > 0 ? (uint64_t)cores : 1;
    if (jobs > fit)
        jobs = fit;
    return jobs < 1 ? 1 : jobs > 64 ? 64 : (uint32_t)jobs;
}

static fa_status make_parts(fa_context *ctx, const fa_context_options *options)
{
    uint32_t max_idle = options->max_idle_kernels ? options->max_idle_kernels : 16384;
    ctx->compile_jobs = options->compile_jobs ? options->compile_jobs : default_jobs();
    if (ctx->compile_jobs > 1024)
        return fa__fail(FA_ERR_LIMIT, "fa_context_options.compile_jobs = %" PRIu32 "; at most 1024",
                        ctx->compile_jobs);
    ctx->kernels = fa__kernels_create(max_idle);
    ctx->record = fa__record_create();
    ctx->pool = fa__pool_create(ctx->compile_jobs);
    if (!ctx->kernels || !ctx->record || !ctx->pool)
        return fa__fail_memory(sizeof *ctx);
    fa__cache_options cache = {
        .dir = options->cache_dir,
        .path = options->cache_path,
        .max_bytes = options->cache_max_bytes,
        .lock_timeout_ms = options->lock_timeout_ms,
        .disabled = options->no_disk_cache,
        .log = &ctx->log,
    };
    return fa__cache_open(&cache, &ctx->cache);
}

fa_status fa_context_create(const fa_context_options *options, fa_context **out)
{
    fa_status status = FA_OK;
    static const fa_context_options defaults = {.size = sizeof defaults,
                                                .device = FA_DEVICE_CURRENT};
    if (!out)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_context_create: out is NULL");
    *out = NULL;
    if (!options)
        options = &defaults;
    status = fa__check_struct("fa_context_options", options, options->size, sizeof *options);
    if (status)
        return status;
    if ((unsigned)options->log_level > FA_LOG_DEBUG)
        return fa__fail(FA_ERR_VALUE, "fa_context_options.log_level = %d; allowed: 0 to %d",
                        (int)options->log_level, (int)FA_LOG_DEBUG);
    fa_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return fa__fail_memory(sizeof *ctx);
    fa__fork_watch();
    fa__exit_watch(fa__slot_pause);
    pthread_mutex_init(&ctx->info_lock, NULL);
    atomic_store(&ctx->refs, 1);
    ctx->fork_generation = fa__fork_generation();
    ctx->log = (fa__log){options->log, options->log_user, options->log_level};
    status = options->offline ? attach_offline(ctx, options) : attach_device(ctx, options);
    if (status == FA_OK)
        status = make_parts(ctx, options);
    if (status) {
        fa__pool_stop(ctx->pool);
        context_free(ctx);
        return status;
    }
    fa__log_write(&ctx->log, FA_LOG_DEBUG,
                  "context for %s on %s, %u compiles at once, cache \"%s\", before it \"%s\"",
                  ctx->target.arch, ctx->offline ? "no device" : ctx->device_info.name,
                  ctx->compile_jobs, fa__cache_dir(ctx->cache), fa__cache_path(ctx->cache));
    *out = ctx;
    return FA_OK;
}

fa_status fa_seal(fa_context *ctx)
{
    fa_status status = fa__context_check(ctx, "fa_seal");
    if (status == FA_OK)
        atomic_store(&ctx->sealed, true);
    return status;
}

fa_status fa_device_info(int32_t ordinal, fa_device_info_t *info)
{
    if (!info)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_device_info: info is NULL");
    fa_status status = fa__check_out_struct("fa_device_info_t", info->size, sizeof *info);
    if (status == FA_OK)
        status = fa__driver_open();
    fa_device_info_t found = {.size = info->size};
    if (status == FA_OK)
        status = fa__driver_device_info(ordinal, &found);
    if (status == FA_OK)
        *info = found;
    return status;
}
