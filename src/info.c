/* What a context and a kernel tell about themselves. */
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "context.h"
#include "fork.h"
#include "status.h"

static void find_compiler(fa_context *ctx, fa_context_info_t *info)
{
    if (fa__compiler_open() == FA_OK) {
        info->nvrtc_version = fa__compiler_version();
        info->nvrtc_path = fa__compiler_path();
        info->nvrtc_id = fa__compiler_id();
        return;
    }
    /* The text must live as long as the context: the first reason found is kept. */
    pthread_mutex_lock(&ctx->info_lock);
    if (!ctx->nvrtc_error)
        ctx->nvrtc_error = strdup(fa_last_error());
    info->nvrtc_error = ctx->nvrtc_error ? ctx->nvrtc_error : "NVRTC cannot be opened";
    pthread_mutex_unlock(&ctx->info_lock);
}

fa_status fa_context_info(fa_context *ctx, fa_context_info_t *info)
{
    fa_status status = fa__context_check(ctx, "fa_context_info");
    if (status)
        return status;
    if (!info)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_context_info: info is NULL");
    status = fa__check_out_struct("fa_context_info_t", info->size, sizeof *info);
    if (status)
        return status;
    *info = (fa_context_info_t){
        .size = info->size,
        .arch = ctx->target.arch,
        .device = ctx->device,
        .device_name = ctx->device_info.name,
        .driver_version = ctx->offline ? 0 : fa__driver_version(),
        .driver_path = ctx->offline ? "" : fa__driver_path(),
        .nvrtc_path = "",
        .nvrtc_id = "",
        .nvrtc_error = "",
        .cache_dir = fa__cache_dir(ctx->cache),
        .cache_error = fa__cache_error(ctx->cache),
        .cache_path = fa__cache_path(ctx->cache),
        .cache_max_bytes = fa__cache_max_bytes(ctx->cache),
        .compile_jobs = ctx->compile_jobs,
        .sealed = atomic_load(&ctx->sealed),
    };
    find_compiler(ctx, info);
    return FA_OK;
}

fa_status fa_stats_get(const fa_context *ctx, fa_stats *stats)
{
    fa_status status = fa__context_check(ctx, "fa_stats_get");
    if (status)
        return status;
    if (!stats)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_stats_get: stats is NULL");
    status = fa__check_out_struct("fa_stats", stats->size, sizeof *stats);
    if (status)
        return status;
    const fa__counters *c = &ctx->counters;
    fa__cache_stats *d = fa__cache_statistics(ctx->cache);
    *stats = (fa_stats){
        .size = stats->size,
        .memory_hits = atomic_load(&c->memory_hits),
        .disk_hits = atomic_load(&c->disk_hits),
        .compiles = atomic_load(&c->compiles),
        .compile_errors = atomic_load(&c->compile_errors),
        .waits = atomic_load(&c->waits) + atomic_load(&d->lock_waits),
        .lock_timeouts = atomic_load(&d->lock_timeouts),
        .repairs = atomic_load(&d->repairs),
        .publish_failures = atomic_load(&d->publish_failures),
        .evictions = atomic_load(&d->evictions),
        .launches_refused = atomic_load(&c->launches_refused),
        .compile_ns = atomic_load(&c->compile_ns),
        .load_ns = atomic_load(&c->load_ns),
        .bytes_read = atomic_load(&d->bytes_read),
        .bytes_written = atomic_load(&d->bytes_written),
        .kernels_loaded = fa__kernels_count(ctx->kernels),
    };
    return FA_OK;
}

/* The source is as long as all the rest, and few ask for it: it is written again, once. */
static fa_status find_source(const fa_kernel *kernel, const char **out)
{
    fa_kernel *k =
        (fa_kernel *)kernel; /* filling in what is derived changes nothing for a caller */
    fa__program program = {0};
    *out = atomic_load(&k->source);
    if (*out)
        return FA_OK;
    fa_status status = fa__program_make(kernel->op, &kernel->spec, &kernel->plan, &program);
    if (status == FA_OK) {
        char *none = NULL, *text = program.source.data;
        if (atomic_compare_exchange_strong(&k->source, &none, text))
            program.source = (fa__buf){0};
        else
            text = none; /* another thread was first */
        *out = text;
    }
    fa__program_free(&program);
    return status;
}

fa_status fa_kernel_info(const fa_kernel *kernel, fa_kernel_info_t *info)
{
    if (!kernel || !info)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_kernel_info: %s is NULL",
                        kernel ? "info" : "kernel");
    if (kernel->fork_generation != fa__fork_generation())
        return fa__fail(FA_ERR_FORKED,
                        "fa_kernel_info: the kernel was made before this process was forked");
    fa_status status = fa__check_out_struct("fa_kernel_info_t", info->size, sizeof *info);
    if (status)
        return status;
    const fa__entry *e = &kernel->entry;
    const char *source = NULL;
    status = find_source(kernel, &source);
    if (status)
        return status;
    *info = (fa_kernel_info_t){
        .size = info->size,
        .op = kernel->op->id,
        .name = kernel->label.data,
        .arch = kernel->arch,
        .entry = e->function,
        .plan = kernel->plan.text,
        .origin = (fa_origin)atomic_load(&kernel->origin),
        .compile_ns = e->compile_ns,
        .registers = (int32_t)e->registers,
        .spill_bytes = e->spill_bytes,
        .smem_bytes = e->smem_static_bytes + kernel->plan.smem_dynamic_bytes,
        .max_threads = kernel->info.max_threads,
        .source = source,
        .log = e->log,
        .cubin = e->cubin,
        .cubin_bytes = e->cubin_bytes,
        .key = kernel->key.name,
        .key_text = kernel->key.text.data,
    };
    return FA_OK;
}

/* --- cache directories --- */

static fa_status check_visit(fa_context *ctx, fa_cache_visitor visitor, const char *call)
{
    fa_status status = fa__context_check(ctx, call);
    if (status == FA_OK && !visitor)
        status = fa__fail(FA_ERR_NULL_POINTER, "%s: visitor is NULL", call);
    return status;
}

fa_status fa_cache_list(fa_context *ctx, fa_cache_visitor visitor, void *user)
{
    fa_status status = check_visit(ctx, visitor, "fa_cache_list");
    return status ? status : fa__cache_visit(ctx->cache, false, false, visitor, user);
}

fa_status fa_cache_verify(fa_context *ctx, bool remove_damaged, fa_cache_visitor visitor,
                          void *user)
{
    fa_status status = check_visit(ctx, visitor, "fa_cache_verify");
    return status ? status : fa__cache_visit(ctx->cache, true, remove_damaged, visitor, user);
}

fa_status fa_cache_size(fa_context *ctx, uint64_t *entries, uint64_t *bytes)
{
    fa_status status = fa__context_check(ctx, "fa_cache_size");
    if (status)
        return status;
    if (!entries || !bytes)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_cache_size: %s is NULL",
                        entries ? "bytes" : "entries");
    return fa__cache_count(ctx->cache, entries, bytes);
}

fa_status fa_cache_clear(fa_context *ctx)
{
    fa_status status = fa__context_check(ctx, "fa_cache_clear");
    return status ? status : fa__cache_clear(ctx->cache);
}
