/* Threads and processes at once, with look-alikes that count. The interesting runs of this file are
 * those under ThreadSanitizer. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

#define THREADS 64

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    fa_context *ctx;
    int index;
    int failures;
    float x[64];
} worker;

static void run_workers(fa_context *ctx, int count, void *(*run)(void *))
{
    pthread_barrier_t barrier;
    worker *w = calloc((size_t)count, sizeof *w);
    cr_assert_not_null(w);
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        w[i] = (worker){.barrier = &barrier, .ctx = ctx, .index = i};
        cr_assert_eq(pthread_create(&w[i].thread, NULL, run, &w[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(w[i].thread, NULL);
        cr_expect_eq(w[i].failures, 0, "thread %d: %d failures", i, w[i].failures);
    }
    pthread_barrier_destroy(&barrier);
    free(w);
}

static fa_status compile_value(fa_context *ctx, int64_t value, fa_kernel **kernel)
{
    scale_spec s;
    scale_spec_init(&s, value);
    return fa_compile(ctx, &s.spec, kernel);
}

static void *compile_same(void *arg)
{
    worker *w = arg;
    fa_kernel *kernel = NULL;
    pthread_barrier_wait(w->barrier);
    w->failures += compile_value(w->ctx, 1, &kernel) != FA_OK || !kernel;
    fa_kernel_release(kernel);
    return NULL;
}

Test(concurrency, F02_threads_on_one_cold_key_compile_once)
{
    fixture f;
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 50);
    fa_context *ctx = fixture_context();
    run_workers(ctx, THREADS, compile_same);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1);
    cr_expect_eq(f.cuda->calls("cuModuleLoadData"), 1);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.compiles, 1u);
    cr_expect_eq(stats.memory_hits, (uint64_t)THREADS - 1);
    cr_expect_gt(stats.waits, 0u);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

/* A spec as the caller wrote it and the same one with its defaults filled in. */
static void *compile_rope_forms(void *arg)
{
    worker *w = arg;
    fa_kernel *kernel = NULL;
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope.head_dim = 64;
    if (w->index % 2) {
        spec.rope.rotary_dim = 64;
        spec.rope.base = 10000;
    }
    pthread_barrier_wait(w->barrier);
    w->failures += fa_compile(w->ctx, &spec, &kernel) != FA_OK || !kernel;
    fa_kernel_release(kernel);
    return NULL;
}

Test(concurrency, F02_two_forms_of_one_spec_compile_once)
{
    fixture f;
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 50);
    fa_context *ctx = fixture_context();
    run_workers(ctx, 16, compile_rope_forms);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1);
    cr_expect_eq(f.cuda->live("module"), 1);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

static void *compile_failing(void *arg)
{
    worker *w = arg;
    fa_kernel *kernel = NULL;
    scale_spec s;
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "#error for everybody\n__global__ void scale() {}\n";
    pthread_barrier_wait(w->barrier);
    w->failures += fa_compile(w->ctx, &s.spec, &kernel) != FA_ERR_COMPILE || kernel != NULL ||
                   !strstr(fa_last_error(), "for everybody");
    return NULL;
}

Test(concurrency, F02_every_waiter_gets_the_failure)
{
    fixture f;
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 50);
    fa_context *ctx = fixture_context();
    run_workers(ctx, 32, compile_failing);
    fa_context_destroy(ctx);
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}

static void race_processes(fixture *f, int count, const char *const *argv)
{
    enum { MAX = 16 };
    pid_t pid[MAX];
    int gate[MAX], out[MAX], compiled = 0;
    setenv("FAKE_LATENCY_MS", "100", 1);
    for (int i = 0; i < count; i++)
        pid[i] = fixture_spawn(&out[i], &gate[i], argv);
    for (int i = 0; i < count; i++)
        cr_expect_eq(write(gate[i], "!", 1), 1);
    for (int i = 0; i < count; i++) {
        char line[32] = "";
        ssize_t len = read(out[i], line, sizeof line - 1);
        cr_expect_gt(len, 0);
        compiled += atoi(line);
        cr_expect_eq(fixture_wait(pid[i], 30), 0);
        close(gate[i]);
        close(out[i]);
    }
    cr_expect_eq((size_t)compiled, fixture_compiles(f));
}

Test(concurrency, F02_sixteen_processes_on_one_cold_key_compile_once, .timeout = 60)
{
    fixture f;
    const char *const argv[] = {"compile", "7", NULL};
    fixture_begin(&f);
    race_processes(&f, 16, argv);
    cr_expect_eq(fixture_compiles(&f), 1u);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), 1u);
    fixture_end(&f);
}

Test(concurrency, F01_cold_job_leaves_one_entry_a_kernel_and_no_temporary_file, .timeout = 60)
{
    fixture f;
    const char *const argv[] = {"compile", "1", "2", "3", "4", NULL};
    fixture_begin(&f);
    race_processes(&f, 8, argv);
    cr_expect_eq(fixture_compiles(&f), 4u);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), 4u);
    size_t all = fixture_files(f.cache, "");
    size_t known = fixture_files(f.cache, ".fajit") + fixture_files(f.cache, "lock") +
                   fixture_files(f.cache, "size");
    cr_expect_leq(all, known, "%zu files, of which %zu are entries, lock or size", all, known);
    fixture_end(&f);
}

static void *compile_own(void *arg)
{
    worker *w = arg;
    fa_kernel *kernel = NULL;
    pthread_barrier_wait(w->barrier);
    w->failures += compile_value(w->ctx, 1000 + w->index, &kernel) != FA_OK;
    fa_kernel_release(kernel);
    return NULL;
}

Test(concurrency, F13_threads_publish_at_once, .timeout = 60)
{
    fixture f;
    fa_context *ctx = NULL;
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.compile_jobs = THREADS;
    OK(fa_context_create(&options, &ctx));
    run_workers(ctx, THREADS, compile_own);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.publish_failures, 0u);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), (size_t)THREADS);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- mixed work --- */

static void *compile_mixed(void *arg)
{
    worker *w = arg;
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < 20; i++) {
        fa_kernel *kernel = NULL;
        w->failures += compile_value(w->ctx, (w->index * 7 + i) % 30, &kernel) != FA_OK;
        fa_kernel_release(kernel);
    }
    return NULL;
}

Test(concurrency, F64_threads_compile_mixed_keys, .timeout = 60)
{
    fixture f;
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 2);
    fa_context *ctx = fixture_context();
    run_workers(ctx, THREADS, compile_mixed);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 30);
    cr_expect_eq(f.cuda->live("module"), 30);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

/* Load, launch and release, with so few idle kernels kept that modules come and go. */
static void *load_launch_release(void *arg)
{
    worker *w = arg;
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < 100; i++) {
        scale_args a;
        fa_kernel *kernel = NULL;
        fa_kernel_info_t info = {.size = sizeof info};
        fa_stats stats = {.size = sizeof stats};
        scale_args_init(&a, w->x, 64);
        w->failures += compile_value(w->ctx, (w->index + i) % 12, &kernel) != FA_OK;
        w->failures += fa_launch(kernel, &a.args, NULL) != FA_OK;
        w->failures += fa_kernel_info(kernel, &info) != FA_OK;
        w->failures += fa_stats_get(w->ctx, &stats) != FA_OK;
        fa_kernel_release(kernel);
    }
    return NULL;
}

Test(concurrency, F60_load_launch_release_from_threads, .timeout = 60)
{
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 3;
    OK(fa_context_create(&options, &ctx));
    run_workers(ctx, 8, load_launch_release);
    cr_expect_eq(f.cuda->launches(), 800u);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 12);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("pushed"), 0);
    fixture_end(&f);
}

static void *contexts_of_their_own(void *arg)
{
    worker *w = arg;
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    pthread_barrier_wait(w->barrier);
    w->failures += fa_context_create(NULL, &ctx) != FA_OK;
    w->failures += compile_value(ctx, w->index % 4, &kernel) != FA_OK;
    fa_context_destroy(ctx);
    fa_kernel_release(kernel);
    return NULL;
}

Test(concurrency, F60_contexts_opened_at_once_in_one_process, .timeout = 60)
{
    fixture f;
    fixture_begin(&f);
    run_workers(NULL, 32, contexts_of_their_own);
    cr_expect_eq(f.cuda->calls("cuInit"), 1);
    cr_expect_eq(f.nvrtc->calls("nvrtcVersion"), 1);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("primary"), 0);
    cr_expect_eq(fixture_compiles(&f), 4u);
    fixture_end(&f);
}

/* --- budget --- */

Test(concurrency, F65_compiles_stay_within_the_budget, .timeout = 60)
{
    fixture f;
    fa_context *ctx = NULL;
    scale_spec s[24];
    fa_spec specs[24];
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 5);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.compile_jobs = 3;
    OK(fa_context_create(&options, &ctx));
    run_workers(ctx, 24, compile_own); /* 24 threads of the caller's */
    cr_expect_leq(f.nvrtc->peak("nvrtcCompileProgram"), 3);
    cr_expect_geq(f.nvrtc->peak("nvrtcCompileProgram"), 2, "compiles do not overlap at all");
    for (int i = 0; i < 24; i++) {
        scale_spec_init(&s[i], 2000 + i);
        specs[i] = s[i].spec;
    }
    fa_warm_options warm = {.size = sizeof warm, .jobs = 16};
    OK(fa_warm(ctx, specs, 24, &warm, NULL));
    cr_expect_leq(f.nvrtc->peak("nvrtcCompileProgram"), 3);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(concurrency, F65_default_budget_follows_the_cores)
{
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cr_expect_geq(info.compile_jobs, 1u);
    cr_expect_leq((long)info.compile_jobs, cores);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- messages are the thread's own --- */

static void *fail_differently(void *arg)
{
    worker *w = arg;
    char key[32];
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    snprintf(key, sizeof key, "key_of_%d", w->index);
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < 200; i++) {
        w->failures += fa_spec_set(&spec, key, "1") != FA_ERR_UNKNOWN_NAME;
        w->failures += strstr(fa_last_error(), key) == NULL;
    }
    return NULL;
}

Test(concurrency, messages_belong_to_their_thread)
{
    run_workers(NULL, 16, fail_differently);
}

/* --- futures from many threads --- */

static void *async_and_wait(void *arg)
{
    worker *w = arg;
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < 10; i++) {
        scale_spec s;
        fa_future *future = NULL;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, 3000 + (w->index + i) % 16);
        w->failures += fa_compile_async(w->ctx, &s.spec, &future) != FA_OK;
        if (i % 3) {
            w->failures += fa_future_wait(future, &kernel) != FA_OK || !fa_future_ready(future);
            fa_kernel_release(kernel);
        }
        fa_future_release(future);
    }
    return NULL;
}

Test(concurrency, F64_futures_from_threads, .timeout = 60)
{
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    run_workers(ctx, 16, async_and_wait);
    fa_context_destroy(ctx);
    cr_expect_leq(f.nvrtc->calls("nvrtcCompileProgram"), 16);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}
