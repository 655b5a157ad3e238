/* Compiling through the whole library with look-alikes: origins, errors, rendering, futures,
 * sealing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

/* --- compiling --- */

static void expect_info(const fa_kernel *kernel, fa_origin origin)
{
    fa_kernel_info_t info = {.size = sizeof info};
    OK(fa_kernel_info(kernel, &info));
    cr_expect_eq(info.op, FA_OP_TEMPLATE);
    cr_expect_eq(info.origin, origin);
    cr_expect_str_eq(info.arch, "sm_90a");
    cr_expect(strstr(info.name, "scale"), "%s", info.name);
    cr_expect(strstr(info.entry, "scale"), "%s", info.entry);
    cr_expect(strstr(info.source, "x[i] *= factor"), "%s", info.source);
    cr_expect(strstr(info.log, "ptxas info"), "%s", info.log);
    cr_expect_eq(info.registers, 32);
    cr_expect_eq(info.spill_bytes, 0u);
    cr_expect_eq(info.max_threads, 1024u);
    cr_expect_eq(strlen(info.key), 32u);
    cr_expect_eq(strspn(info.key, "0123456789abcdef"), 32u);
    cr_expect(strstr(info.key_text, "sm_90a"), "%s", info.key_text);
    cr_expect_gt(info.cubin_bytes, 4u);
    cr_expect_eq(memcmp(info.cubin, "\177ELF", 4), 0);
    cr_expect_gt(info.compile_ns, 0u);
}

Test(api_compile, origins_compiled_memory_disk)
{
    fixture f;
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *first = fixture_compile(ctx, 1);
    expect_info(first, FA_ORIGIN_COMPILED);
    fa_kernel *second = fixture_compile(ctx, 1);
    expect_info(second, FA_ORIGIN_MEMORY);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.compiles, 1u);
    cr_expect_eq(stats.memory_hits, 1u);
    cr_expect_eq(stats.disk_hits, 0u);
    cr_expect_eq(stats.kernels_loaded, 1u);
    cr_expect_gt(stats.bytes_written, 0u);
    cr_expect_gt(stats.compile_ns, 0u);
    fa_kernel_release(first);
    fa_kernel_release(second);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);

    ctx = fixture_context();
    first = fixture_compile(ctx, 1);
    expect_info(first, FA_ORIGIN_DISK);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.disk_hits, 1u);
    cr_expect_eq(stats.compiles, 0u);
    cr_expect_gt(stats.bytes_read, 0u);
    fa_kernel_release(first);
    fa_context_destroy(ctx);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1);
    fixture_end(&f);
}

Test(api_compile, kernel_outlives_its_context)
{
    fixture f;
    scale_args a;
    float x[8] = {0};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    fa_context_destroy(ctx);
    scale_args_init(&a, x, 8);
    OK(fa_launch(kernel, &a.args, NULL));
    expect_info(kernel, FA_ORIGIN_COMPILED);
    cr_expect_eq(f.cuda->live("module"), 1);
    fa_kernel_release(kernel);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

Test(api_compile, offline_context_compiles_and_refuses_to_launch)
{
    fixture f;
    scale_args a;
    float x[8] = {0};
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    fa_kernel *kernel = fixture_compile(ctx, 1);
    scale_args_init(&a, x, 8);
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_OFFLINE, "offline");
    cr_expect_eq(f.cuda->calls("cuInit"), 0, "an offline context opened the driver");
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);

    ctx = fixture_context(); /* what was compiled offline serves the device */
    kernel = fixture_compile(ctx, 1);
    expect_info(kernel, FA_ORIGIN_DISK);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_compile, F04_compile_error_has_the_log_and_is_not_remembered)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = (fa_kernel *)&f;
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "\n\n#error the reason\n__global__ void scale() {}\n";
    for (int i = 0; i < 2; i++) {
        EXPECT(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE);
        cr_expect_null(kernel);
        cr_expect(strstr(fa_last_error(), "scale.cu(3)") && strstr(fa_last_error(), "the reason") &&
                      strstr(fa_last_error(), "Compilation terminated."),
                  "%s", fa_last_error());
    }
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.compile_errors, 2u);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 2);
    cr_expect_eq(fixture_files(f.dir, ".fajit"), 0u, "an entry for source that does not compile");
    s.spec.tmpl.source = "__global__ void scale() {}\n";
    OK(fa_compile(ctx, &s.spec, &kernel));
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}

Test(api_compile, F23_names_of_4_kb)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    char name[4097], source[4300];
    memset(name, 'k', sizeof name);
    name[sizeof name - 1] = '\0';
    snprintf(source, sizeof source, "__global__ void %s(float *x) { x[0] = VALUE; }\n", name);
    fixture_begin(&f);
    for (int way = 0; way < 2; way++) { /* compiled, then read from disk */
        fa_context *ctx = fixture_context();
        scale_spec_init(&s, 1);
        s.spec.tmpl.name = name;
        s.spec.tmpl.entry = name;
        s.spec.tmpl.source = source;
        OK(fa_compile(ctx, &s.spec, &kernel));
        OK(fa_kernel_info(kernel, &info));
        cr_expect_eq(info.origin, way ? FA_ORIGIN_DISK : FA_ORIGIN_COMPILED);
        cr_expect(strstr(info.entry, name), "the entry's name was cut");
        cr_expect_eq(info.registers, 32);
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
    }
    fixture_end(&f);
}

Test(api_compile, unknown_entry_is_a_compile_error)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.spec.tmpl.entry = "scald";
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE, "scald");
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_compile, render_gives_source_and_ptx)
{
    fixture f;
    scale_spec s;
    char *text = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    scale_spec_init(&s, 4711);
    OK(fa_render(ctx, &s.spec, FA_TEXT_SOURCE, &text));
    cr_assert_not_null(text);
    cr_expect(strstr(text, "VALUE") && strstr(text, "4711") && strstr(text, "x[i] *= factor"), "%s",
              text);
    cr_expect_eq(f.nvrtc->calls("nvrtcCreateProgram"), 0);
    free(text);
    OK(fa_render(ctx, &s.spec, FA_TEXT_PTX, &text));
    cr_expect(strstr(text, ".target sm_90a") || strstr(text, ".target compute_90a"), "%s", text);
    free(text);
    text = NULL;
    EXPECT(fa_render(ctx, &s.spec, (fa_text)7, &text), FA_ERR_VALUE);
    cr_expect_null(text);
    fa_context_destroy(ctx);
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}

/* --- asynchronous --- */

Test(api_compile, async_gives_each_waiter_a_kernel)
{
    fixture f;
    scale_spec s;
    fa_future *future = NULL;
    fa_kernel *a = NULL, *b = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 100);
    scale_spec_init(&s, 1);
    OK(fa_compile_async(ctx, &s.spec, &future));
    s.constant[0].int_value = 99; /* the spec was copied */
    cr_expect(!fa_future_ready(future));
    OK(fa_future_wait(future, &a));
    cr_expect(fa_future_ready(future));
    OK(fa_future_wait(future, &b));
    fa_future_release(future);
    fa_kernel_release(a);
    expect_info(b, FA_ORIGIN_COMPILED);
    fa_kernel_release(b);
    fa_kernel *again = fixture_compile(ctx, 1);
    expect_info(again, FA_ORIGIN_MEMORY);
    fa_kernel_release(again);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

Test(api_compile, async_refuses_at_once_and_fails_later)
{
    fixture f;
    scale_spec s;
    fa_future *future = (fa_future *)&f;
    fa_kernel *kernel = (fa_kernel *)&f;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.constant[0].name = "not a name";
    EXPECT(fa_compile_async(ctx, &s.spec, &future), FA_ERR_CONSTANT);
    cr_expect_null(future);
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "#error later\n__global__ void scale() {}\n";
    OK(fa_compile_async(ctx, &s.spec, &future));
    REFUSED(fa_future_wait(future, &kernel), FA_ERR_COMPILE, "later");
    cr_expect_null(kernel);
    REFUSED(fa_future_wait(future, &kernel), FA_ERR_COMPILE, "later");
    fa_future_release(future);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_compile, futures_left_behind_by_their_context)
{
    fixture f;
    enum { N = 12 };
    fa_future *future[N];
    fixture_begin(&f);
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 50);
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.compile_jobs = 1;
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK);
    for (int i = 0; i < N; i++) {
        scale_spec s;
        scale_spec_init(&s, i);
        OK(fa_compile_async(ctx, &s.spec, &future[i]));
    }
    fa_context_destroy(ctx);
    int cancelled = 0;
    for (int i = 0; i < N; i++) {
        fa_kernel *kernel = NULL;
        fa_status status = fa_future_wait(future[i], &kernel);
        cr_expect(status == FA_OK || status == FA_ERR_CANCELLED, "%s", fa_status_name(status));
        cr_expect_eq(kernel != NULL, status == FA_OK);
        cancelled += status == FA_ERR_CANCELLED;
        fa_kernel_release(kernel);
        fa_future_release(future[i]);
    }
    cr_expect_geq(cancelled, N - 3, "%d of %d cancelled", cancelled, N);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("primary"), 0);
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}

/* --- sealed --- */

Test(api_compile, F67_sealed_context_refuses_to_compile)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_future *future = NULL;
    fa_context_info_t info = {.size = sizeof info};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *warm = fixture_compile(ctx, 1);
    OK(fa_seal(ctx));
    OK(fa_seal(ctx));
    OK(fa_context_info(ctx, &info));
    cr_expect(info.sealed);
    scale_spec_init(&s, 2);
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_SEALED, "scale");
    cr_expect_null(kernel);
    fa_status status = fa_compile_async(ctx, &s.spec, &future);
    if (status == FA_OK)
        status = fa_future_wait(future, &kernel);
    cr_expect_eq(status, FA_ERR_SEALED, "%s", fa_status_name(status));
    fa_future_release(future);
    EXPECT(fa_warm(ctx, &s.spec, 1, NULL, NULL), FA_ERR_SEALED);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1);
    fa_kernel_release(fixture_compile(ctx, 1));

    fa_context *other = fixture_context(); /* what a directory holds is still given */
    fa_kernel_release(fixture_compile(other, 3));
    fa_kernel_release(fixture_compile(ctx, 3));
    fa_context_destroy(other);
    fa_kernel_release(warm);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
