/* Contexts, captures, lazy loading and leaks, as a look-alike of the driver sees them. */
#include <criterion/criterion.h>
#include <string.h>

#include "fixture.h"

/* --- contexts --- */

Test(launch_context, F48_one_compile_serves_two_devices)
{
    const int cc[] = {90, 90};
    fixture f;
    fa_context *ctx[2] = {NULL};
    fa_kernel *kernel[2] = {NULL};
    void *context[2] = {NULL};
    fixture_begin(&f);
    f.cuda->set_devices(2, cc);
    for (int i = 0; i < 2; i++) {
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        options.device = i;
        OK(fa_context_create(&options, &ctx[i]));
        kernel[i] = fixture_compile(ctx[i], 1);
    }
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1);
    cr_expect_eq(f.cuda->live("module"), 2);
    for (int i = 0; i < 2; i++) {
        scale_args a;
        fake_launch l;
        scale_args_init(&a, &f, 8);
        OK(fa_launch(kernel[i], &a.args, NULL));
        cr_assert(f.cuda->launch_last(&l));
        context[i] = l.context;
    }
    cr_expect_neq(context[0], context[1]);
    scale_args a; /* a stream of the other device */
    void *stream = f.cuda->stream_create(context[1]);
    scale_args_init(&a, &f, 8);
    REFUSED(fa_launch(kernel[0], &a.args, stream), FA_ERR_WRONG_CONTEXT, "context");
    OK(fa_launch(kernel[1], &a.args, stream));
    f.cuda->stream_destroy(stream);
    for (int i = 0; i < 2; i++) {
        fa_kernel_release(kernel[i]);
        fa_context_destroy(ctx[i]);
    }
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

Test(launch_context, F49_no_current_context)
{
    fixture f;
    scale_args a;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    cr_expect_null(f.cuda->context_current());
    scale_args_init(&a, &f, 8);
    OK(fa_launch(kernel, &a.args, NULL));
    cr_expect_null(f.cuda->context_current());
    cr_expect_eq(f.cuda->live("pushed"), 0);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    cr_expect_null(f.cuda->context_current());
    fixture_end(&f);
}

/* Everything from another context being current: the caller finds it unchanged. */
Test(launch_context, F49_callers_context_is_unchanged)
{
    fixture f;
    scale_args a;
    fake_launch l;
    fixture_begin(&f);
    OK(fa_device_info(0, &(fa_device_info_t){.size = sizeof(fa_device_info_t)}));
    void *other = f.cuda->context_create(0);
    f.cuda->context_set_current(other);
    fa_context *ctx = fixture_context(); /* device 0's primary context */
    cr_expect_eq(f.cuda->context_current(), other);
    fa_kernel *kernel = fixture_compile(ctx, 1);
    cr_expect_eq(f.cuda->context_current(), other);
    scale_args_init(&a, &f, 8);
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_WRONG_CONTEXT, "current");
    cr_expect_eq(f.cuda->context_current(), other);
    void *stream = f.cuda->stream_create(NULL); /* of the primary context */
    OK(fa_launch(kernel, &a.args, stream));
    cr_expect_eq(f.cuda->context_current(), other);
    cr_assert(f.cuda->launch_last(&l));
    cr_expect_neq(l.context, other);
    f.cuda->stream_destroy(stream);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->context_current(), other);
    f.cuda->context_set_current(NULL);
    f.cuda->context_destroy(other);
    fixture_end(&f);
}

Test(launch_context, F49_callers_own_context_is_used)
{
    fixture f;
    scale_args a;
    fake_launch l;
    fixture_begin(&f);
    OK(fa_device_info(0, &(fa_device_info_t){.size = sizeof(fa_device_info_t)}));
    void *own = f.cuda->context_create(0);
    for (int way = 0; way < 2; way++) { /* by option, then because it is current */
        fa_context *ctx = NULL;
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        if (way == 0)
            options.cuda_context = own;
        else
            f.cuda->context_set_current(own);
        options.device = FA_DEVICE_CURRENT;
        OK(fa_context_create(&options, &ctx));
        fa_kernel *kernel = fixture_compile(ctx, way);
        scale_args_init(&a, &f, 8);
        OK(fa_launch(kernel, &a.args, NULL));
        cr_assert(f.cuda->launch_last(&l));
        cr_expect_eq(l.context, own);
        cr_expect_eq(f.cuda->live("primary"), 0);
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
        cr_expect_eq(f.cuda->context_current(), way ? own : NULL);
    }
    f.cuda->context_set_current(NULL);
    f.cuda->context_destroy(own);
    fixture_end(&f);
}

/* --- capture --- */

Test(launch_context, F56_first_use_inside_a_capture)
{
    fixture f;
    scale_spec s;
    scale_args a;
    fake_launch l;
    fa_kernel *cold = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *warm = fixture_compile(ctx, 1);
    void *stream = f.cuda->stream_create(NULL);
    scale_args_init(&a, &f, 8);
    scale_spec_init(&s, 2);

    f.cuda->capture_begin(stream);
    OK(fa_launch(warm, &a.args, stream));
    cr_assert(f.cuda->launch_last(&l));
    cr_expect(l.captured);
    fa_status status = fa_compile(ctx, &s.spec, &cold);
    cr_expect(status == FA_OK || status == FA_ERR_CAPTURE, "%s: %s", fa_status_name(status),
              fa_last_error());
    cr_expect_eq(cold != NULL, status == FA_OK);
    fa_kernel_release(cold);
    OK(fa_launch(warm, &a.args, stream));
    cr_expect(f.cuda->capture_end(stream), "the compile broke the capture");

    OK(fa_compile(ctx, &s.spec, &cold));
    f.cuda->stream_destroy(stream);
    fa_kernel_release(cold);
    fa_kernel_release(warm);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* Unloading breaks a capture as loading does: the last release may come while one is under way. */
Test(launch_context, F56_release_inside_a_capture)
{
    fixture f;
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context *ctx = NULL;
    options.max_idle_kernels = 1;
    OK(fa_context_create(&options, &ctx));
    fa_kernel *a = fixture_compile(ctx, 1), *b = fixture_compile(ctx, 2);
    void *stream = f.cuda->stream_create(NULL);
    f.cuda->capture_begin(stream);
    fa_kernel_release(a);
    fa_kernel_release(b); /* one of them is unloaded now */
    cr_expect(f.cuda->capture_end(stream), "the release broke the capture");
    cr_expect_eq(f.cuda->live("module"), 1);
    f.cuda->stream_destroy(stream);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

Test(launch_context, F56_no_relaxed_mode_in_this_driver)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = (fa_kernel *)&f;
    fixture_begin_with(&f, "fake_cuda_old", "fake_nvrtc");
    fa_context *ctx = fixture_context();
    void *stream = f.cuda->stream_create(NULL);
    scale_spec_init(&s, 1);
    f.cuda->capture_begin(stream);
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_CAPTURE, "captur");
    cr_expect_null(kernel);
    f.cuda->capture_end(stream);
    OK(fa_compile(ctx, &s.spec, &kernel));
    f.cuda->stream_destroy(stream);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- nothing lazy, nothing left --- */

Test(launch_context, F58_loaded_when_compile_returns)
{
    fixture f;
    scale_args a;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    cr_expect_eq(f.cuda->calls("cuFuncLoad"), 1);
    f.cuda->reset();
    scale_args_init(&a, &f, 8);
    OK(fa_launch(kernel, &a.args, NULL));
    for (int i = 0; f.cuda->function(i); i++) { /* what a launch may call */
        const char *name = f.cuda->function(i);
        bool allowed = strncmp(name, "cuLaunch", 8) == 0 || strncmp(name, "cuCtx", 5) == 0 ||
                       strcmp(name, "cuStreamGetCtx") == 0;
        cr_expect(allowed || f.cuda->calls(name) == 0, "fa_launch called %s", name);
    }
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(launch_context, F59_ten_thousand_cycles_keep_memory_flat, .timeout = 60)
{
    fixture f;
    fa_context *ctx = NULL;
    long before = 0;
    uint64_t device_bytes = 0;
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 8;
    OK(fa_context_create(&options, &ctx));
    for (int i = 0; i < 64; i++) /* fills the disk cache; the cycles then load from it */
        fa_kernel_release(fixture_compile(ctx, i));
    for (int i = 0; i < 10000; i++) {
        fa_kernel_release(fixture_compile(ctx, i % 64));
        if (i == 1000) {
            before = fixture_rss_kb();
            device_bytes = f.cuda->module_bytes();
        }
    }
    cr_expect_eq(f.cuda->module_bytes(), device_bytes);
    if (!fixture_sanitized())
        cr_expect_leq(fixture_rss_kb() - before, 2048, "RSS grew by %ld kB",
                      fixture_rss_kb() - before);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

Test(launch_context, F66_good_and_failed_compiles_keep_memory_flat, .timeout = 60)
{
    fixture f;
    long before = 0;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.no_disk_cache = true;
    options.max_idle_kernels = 8;
    OK(fa_context_create(&options, &ctx));
    for (int i = 0; i < 1000; i++) {
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, i % 100); /* the manifest remembers each spec once */
        if (i % 2)
            s.spec.tmpl.source = "#error not this one\n__global__ void scale() {}\n";
        EXPECT(fa_compile(ctx, &s.spec, &kernel), i % 2 ? FA_ERR_COMPILE : FA_OK);
        fa_kernel_release(kernel);
        if (i == 300)
            before = fixture_rss_kb();
    }
    cr_expect_geq(f.nvrtc->calls("nvrtcCompileProgram"), 900);
    if (!fixture_sanitized())
        cr_expect_leq(fixture_rss_kb() - before, 2048, "RSS grew by %ld kB",
                      fixture_rss_kb() - before);
    fa_context_destroy(ctx);
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}
