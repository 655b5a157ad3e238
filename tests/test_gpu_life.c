/* What only a real device can show of memory, exit, fork and threads. */
#include <pthread.h>

#include "gpu_fixture.h"

/* --- memory --- */

Test(gpu_life, F59_ten_thousand_cycles_keep_memory_flat, .timeout = 120)
{
    if (FIXTURE_SANITIZED)
        cr_skip_test("AddressSanitizer keeps what is freed, so memory is not flat");
    fixture f;
    fa_context *ctx = NULL, *first = open_device(&f, 0);
    size_t device_before = 0;
    long rss_before = 0;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 4;
    OK(fa_context_create(&options, &ctx));
    for (int i = 0; i < 10000; i++) {
        fa_kernel_release(fixture_compile(ctx, i % 16));
        if (i == 1000) {
            device_before = free_memory();
            rss_before = fixture_rss_kb();
        }
    }
    cr_expect_leq(device_before, free_memory() + (4u << 20), "%zu bytes of device memory lost",
                  device_before - free_memory());
    cr_expect_leq(fixture_rss_kb() - rss_before, 16384, "RSS grew by %ld kB",
                  fixture_rss_kb() - rss_before);
    fa_context_destroy(ctx);
    close_device(&f, first);
}

Test(gpu_life, F68_module_load_near_out_of_memory, .timeout = 60)
{
    fixture f;
    fa_kernel *kernel = (fa_kernel *)&f;
    fa_context *ctx = open_device(&f, 0);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){
        .name = "big.cu",
        .source =
            "__device__ float big[1 << 28];\n" /* 1 GiB */
            "__global__ void touch(unsigned i) { big[i] = 1; }\n",
        .entry = "touch",
    };
    uint64_t held[64];
    size_t count = 0;
    int (*alloc)(uint64_t *, size_t) = NULL, (*release)(uint64_t) = NULL;
    *(void **)&alloc = gpu_symbol("cuMemAlloc_v2");
    *(void **)&release = gpu_symbol("cuMemFree_v2");
    cr_assert(alloc && release);
    for (size_t bytes = free_memory(); bytes > (64u << 20) && count < 64;) /* leaves little */
        if (alloc(&held[count], bytes) == 0)
            count++;
        else
            bytes -= bytes / 8;
    cr_assert_lt(free_memory(), (size_t)1 << 30, "%zu bytes still free", free_memory());
    EXPECT(fa_compile(ctx, &spec, &kernel), FA_ERR_DEVICE_MEMORY);
    cr_expect_null(kernel);
    while (count)
        cr_expect_eq(release(held[--count]), 0);
    OK(fa_compile(ctx, &spec, &kernel));
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- exit and fork --- */

Test(gpu_life, F61_exit_with_live_handles, .timeout = 60)
{
    fixture f;
    char line[64];
    fa_context *ctx = open_device(&f, 0);
    const char *const live[] = {"exit-live", NULL}, *const busy[] = {"exit-busy", NULL};
    cr_expect_eq(fixture_run(line, sizeof line, live), 0);
    cr_expect_str_eq(line, "alive");
    cr_expect_eq(fixture_run(line, sizeof line, busy), 0);
    close_device(&f, ctx);
}

Test(gpu_life, F63_forked_child_is_told_at_once, .timeout = 60)
{
    fixture f;
    char line[64];
    fa_context *ctx = open_device(&f, 0);
    const char *const argv[] = {"fork", NULL};
    cr_expect_eq(fixture_run(line, sizeof line, argv), 0);
    cr_expect_str_eq(line, "forked");
    close_device(&f, ctx);
}

/* --- threads --- */

typedef struct worker {
    pthread_t thread;
    fa_context *ctx;
    int index, failures;
} worker;

static void *load_launch_release(void *arg)
{
    worker *w = arg;
    run r;
    float last = 0, x1 = 0;
    const char *why = NULL;
    if (!gpu_open(0, &why)) { /* makes the context current on this thread */
        w->failures++;
        return NULL;
    }
    gpu_stream stream = gpu_stream_create();
    for (int i = 0; i < 100; i++) {
        int value = (w->index + i) % 6 + 1;
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, value);
        run_begin(&r, 64);
        w->failures += fa_compile(w->ctx, &s.spec, &kernel) != FA_OK;
        w->failures += fa_launch(kernel, &r.a.args, stream) != FA_OK;
        w->failures += !gpu_synchronize(stream, &why);
        fa_kernel_release(kernel);
        gpu_download(&x1, r.x + 1, sizeof x1);
        last = 2 * (float)value;
        w->failures += x1 != last;
        run_end(&r);
    }
    gpu_stream_destroy(stream);
    return NULL;
}

Test(gpu_life, F60_load_launch_release_from_threads, .timeout = 120)
{
    fixture f;
    worker w[8];
    fa_context *ctx = NULL, *first = open_device(&f, 0);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 2;
    OK(fa_context_create(&options, &ctx));
    for (int i = 0; i < 8; i++) {
        w[i] = (worker){.ctx = ctx, .index = i};
        cr_assert_eq(pthread_create(&w[i].thread, NULL, load_launch_release, &w[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(w[i].thread, NULL);
        cr_expect_eq(w[i].failures, 0, "thread %d: %d failures", i, w[i].failures);
    }
    fa_context_destroy(ctx);
    close_device(&f, first);
}
