/* Many compiles at once, with progress; and manifests, from and to files. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "file.h"
#include "manifest.h"
#include "status.h"
#include "thread.h"

typedef struct warm_item {
    fa_warm_result result;
    struct warm_item *next; /* in the order of completion */
} warm_item;

typedef struct warm_run {
    fa_context *ctx;
    const fa_spec *specs;
    size_t count;
    warm_item *items;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    /* under lock */
    size_t next;
    bool cancelled;
    warm_item *first, **last; /* finished, not yet reported */
} warm_run;

/* The program's fa_spec may be larger than this library's: the first tells how far apart they are.
 */
static const fa_spec *spec_at(const fa_spec *specs, size_t index)
{
    return (const fa_spec *)(const void *)((const char *)specs + index * specs->size);
}

static void warm_one(warm_run *run, size_t index)
{
    fa_kernel *kernel = NULL;
    fa_warm_result *result = &run->items[index].result;
    uint64_t begin = fa__now_ns();
    result->status = fa__compile(run->ctx, spec_at(run->specs, index), &kernel, &result->origin);
    result->ns = fa__now_ns() - begin;
    if (result->status) {
        const char *message = fa_last_error();
        size_t len = strnlen(message, sizeof result->error - 1);
        memcpy(result->error, message, len);
    }
    fa_kernel_release(kernel);
}

static void finish(warm_run *run, size_t index)
{
    warm_item *item = &run->items[index];
    item->next = NULL;
    *run->last = item;
    run->last = &item->next;
    pthread_cond_signal(&run->finished);
}

static void *worker(void *arg)
{
    warm_run *run = arg;
    pthread_mutex_lock(&run->lock);
    while (run->next < run->count) {
        size_t index = run->next++;
        bool cancelled = run->cancelled;
        pthread_mutex_unlock(&run->lock);
        if (cancelled) {
            run->items[index].result.status = FA_ERR_CANCELLED;
            memcpy(run->items[index].result.error, "cancelled", sizeof "cancelled");
        } else {
            warm_one(run, index);
        }
        pthread_mutex_lock(&run->lock);
        finish(run, index);
    }
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* On the caller's thread: takes finished items as they come and reports them, unlocked. */
static void report_all(warm_run *run, const fa_warm_options *options)
{
    pthread_mutex_lock(&run->lock);
    for (size_t done = 1; done <= run->count; done++) {
        while (!run->first)
            pthread_cond_wait(&run->finished, &run->lock);
        warm_item *item = run->first;
        run->first = item->next;
        if (!run->first)
            run->last = &run->first;
        if (!options->progress || run->cancelled)
            continue;
        pthread_mutex_unlock(&run->lock);
        bool go_on = options->progress(options->progress_user, done, run->count,
                                       (size_t)(item - run->items), &item->result);
        pthread_mutex_lock(&run->lock);
        run->cancelled = !go_on;
    }
    pthread_mutex_unlock(&run->lock);
}

static fa_status run_workers(warm_run *run, const fa_warm_options *options, uint32_t jobs)
{
    pthread_t *threads = calloc(jobs, sizeof *threads);
    if (!threads)
        return fa__fail_memory(jobs * sizeof *threads);
    uint32_t started = 0;
    while (started < jobs && fa__thread_start(&threads[started], worker, run))
        started++;
    if (started == 0)
        worker(run); /* no thread to be had: one after the other, here */
    report_all(run, options);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return FA_OK;
}

static fa_status summarize(const warm_run *run, const fa_warm_options *options,
                           fa_warm_report *report)
{
    const fa_warm_result *bad = NULL;
    for (size_t i = 0; i < run->count; i++) {
        const fa_warm_result *r = &run->items[i].result;
        if (r->status) {
            report->failed++;
            bad = bad ? bad : r;
        } else {
            *(r->origin == FA_ORIGIN_MEMORY ? &report->from_memory
              : r->origin == FA_ORIGIN_DISK ? &report->from_disk
                                            : &report->compiled) += 1;
        }
        if (options->results)
            options->results[i] = *r;
    }
    if (!bad)
        return FA_OK;
    return fa__fail(bad->status, "fa_warm: %zu of %zu entries failed; the first (entry %zu): %s",
                    report->failed, run->count,
                    (size_t)((const warm_item *)(const void *)bad - run->items), bad->error);
}

static fa_status check_options(const fa_warm_options *options, size_t count)
{
    fa_status status = fa__check_struct("fa_warm_options", options, options->size, sizeof *options);
    if (status)
        return status;
    if (options->jobs > 1024)
        return fa__fail(FA_ERR_LIMIT, "fa_warm_options.jobs = %u; at most 1024", options->jobs);
    if (options->results && options->results_capacity < count)
        return fa__fail(FA_ERR_SIZE,
                        "fa_warm_options.results_capacity = %zu is less than the %zu entries",
                        options->results_capacity, count);
    return FA_OK;
}

fa_status fa_warm(fa_context *ctx, const fa_spec *specs, size_t count,
                  const fa_warm_options *options, fa_warm_report *report)
{
    static const fa_warm_options defaults = {.size = sizeof defaults};
    fa_warm_report own;
    uint64_t begin = fa__now_ns();
    fa_status status = fa__context_check(ctx, "fa_warm");
    if (status)
        return status;
    if (!specs && count)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_warm: specs is NULL");
    if (!options)
        options = &defaults;
    status = check_options(options, count);
    if (status)
        return status;
    if (!report)
        report = &own;
    *report = (fa_warm_report){.total = count};
    if (count == 0)
        return FA_OK;
    status = fa__check_out_struct("fa_spec", specs->size, sizeof *specs);
    if (status)
        return status;

    warm_run run = {.ctx = ctx, .specs = specs, .count = count};
    run.items = calloc(count, sizeof *run.items);
    if (!run.items)
        return fa__fail_memory(count * sizeof *run.items);
    run.last = &run.first;
    pthread_mutex_init(&run.lock, NULL);
    pthread_cond_init(&run.finished, NULL);
    size_t jobs = options->jobs ? options->jobs : ctx->compile_jobs;
    status = run_workers(&run, options, (uint32_t)(jobs < count ? jobs : count));
    if (status == FA_OK)
        status = summarize(&run, options, report);
    report->ns = fa__now_ns() - begin;
    pthread_cond_destroy(&run.finished);
    pthread_mutex_destroy(&run.lock);
    free(run.items);
    return status;
}

/* --- manifests --- */

/* No manifest that people or services write comes near this. */
#define MANIFEST_LIMIT (UINT64_C(256) << 20)

fa_status fa_warm_manifest(fa_context *ctx, const char *path, const fa_warm_options *options,
                           fa_warm_report *report)
{
    unsigned char *text = NULL;
    size_t len = 0;
    char room[128];
    fa__manifest manifest = {0};
    fa_status status = fa__context_check(ctx, "fa_warm_manifest");
    if (status)
        return status;
    if (!path)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_warm_manifest: path is NULL");
    int error = fa__file_read(path, false, MANIFEST_LIMIT, &text, &len, NULL);
    if (error)
        return fa__fail(FA_ERR_IO, "cannot read the manifest %s: %s", path,
                        fa__file_reason(error, room));
    status = fa__manifest_parse((const char *)text, len, &manifest);
    if (status) {
        char *reason = strdup(fa_last_error());
        fa__fail(status, "%s: %s", path, reason ? reason : "malformed");
        free(reason);
    } else {
        status = fa_warm(ctx, manifest.specs, manifest.count, options, report);
    }
    fa__manifest_free(&manifest);
    free(text);
    return status;
}

fa_status fa_manifest_write(fa_context *ctx, const char *path)
{
    char room[128];
    fa__buf text = {0};
    fa_status status = fa__context_check(ctx, "fa_manifest_write");
    if (status)
        return status;
    if (!path)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_manifest_write: path is NULL");
    status = fa__record_write(ctx->record, &text);
    if (status == FA_OK) {
        int error = fa__file_replace(path, text.data, text.len);
        if (error)
            status = fa__fail(FA_ERR_IO, "cannot write the manifest %s: %s", path,
                              fa__file_reason(error, room));
    }
    fa__buf_free(&text);
    return status;
}
