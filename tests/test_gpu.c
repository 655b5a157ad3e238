/* What only a real device can show of launching. F48 needs two. */
#include "gpu_fixture.h"

Test(gpu, template_computes_what_it_says)
{
    fixture f;
    run r;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = fixture_compile(ctx, 3);
    gpu_stream stream = gpu_stream_create();
    run_begin(&r, 100003);
    OK(fa_launch(kernel, &r.a.args, stream));
    cr_expect(gpu_synchronize(stream, NULL));
    run_check(&r, 6);
    run_end(&r);
    gpu_stream_destroy(stream);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- contexts --- */

Test(gpu, F48_one_compile_serves_two_devices)
{
    fixture f;
    fa_context *ctx[2] = {open_device_afresh(&f, 0), NULL};
    fa_stats stats = {.size = sizeof stats};
    if (gpu_device_count() < 2) {
        close_device(&f, ctx[0]);
        cr_skip_test("one device only");
    }
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.device = 1;
    OK(fa_context_create(&options, &ctx[1]));
    fa_kernel *kernel[2] = {fixture_compile(ctx[0], 3), fixture_compile(ctx[1], 3)};
    OK(fa_stats_get(ctx[1], &stats));
    cr_expect_eq(stats.compiles, 0u, "the second device compiled again");
    for (int i = 0; i < 2; i++) {
        run r;
        const char *why = NULL;
        cr_assert(gpu_open(i, &why), "%s", why); /* makes device i's context current */
        run_begin(&r, 1000);
        gpu_stream stream = gpu_stream_create();
        EXPECT(fa_launch(kernel[1 - i], &r.a.args, stream), FA_ERR_WRONG_CONTEXT);
        OK(fa_launch(kernel[i], &r.a.args, stream));
        cr_expect(gpu_synchronize(stream, NULL));
        run_check(&r, 6);
        gpu_stream_destroy(stream);
        run_end(&r);
    }
    fa_kernel_release(kernel[0]);
    fa_kernel_release(kernel[1]);
    fa_context_destroy(ctx[1]);
    close_device(&f, ctx[0]);
}

Test(gpu, F49_no_current_context)
{
    fixture f;
    run r;
    fa_context *ctx = open_device(&f, 0);
    run_begin(&r, 1000);
    void *context = current_context();
    set_current_context(NULL);
    fa_kernel *kernel = fixture_compile(ctx, 3);
    cr_expect_null(current_context());
    OK(fa_launch(kernel, &r.a.args, NULL));
    cr_expect_null(current_context());
    set_current_context(context);
    cr_expect(gpu_synchronize(NULL, NULL));
    run_check(&r, 6);
    run_end(&r);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu, F49_callers_own_context)
{
    fixture f;
    run r;
    void *own = NULL;
    fa_context *ctx = open_device(&f, 0), *on_own = NULL;
    int (*create)(void **, unsigned, int) = NULL, (*destroy)(void *) = NULL;
    *(void **)&create = gpu_symbol("cuCtxCreate_v2");
    *(void **)&destroy = gpu_symbol("cuCtxDestroy_v2");
    void *primary = current_context();
    if (!create || !destroy || create(&own, 0, 0) != 0) {
        close_device(&f, ctx);
        cr_skip_test("this driver makes no second context");
    }
    OK(fa_context_create(NULL, &on_own)); /* own is current */
    fa_kernel *kernel = fixture_compile(on_own, 3), *other = fixture_compile(ctx, 3);
    cr_expect_eq(current_context(), own);
    run_begin(&r, 1000);
    REFUSED(fa_launch(other, &r.a.args, NULL), FA_ERR_WRONG_CONTEXT, "context");
    OK(fa_launch(kernel, &r.a.args, NULL));
    cr_expect(gpu_synchronize(NULL, NULL));
    run_check(&r, 6);
    run_end(&r);
    cr_expect_eq(current_context(), own);
    fa_kernel_release(kernel);
    fa_kernel_release(other);
    fa_context_destroy(on_own);
    cr_expect_eq(current_context(), own);
    cr_expect_eq(destroy(own), 0);
    set_current_context(primary);
    close_device(&f, ctx);
}

/* --- shared memory --- */

/* Writes every byte of the dynamic shared memory and of a static array beside it, then sums. */
static const char smem_source[] =
    "extern __shared__ unsigned char dynamic[];\n"
    "__global__ void fill(unsigned *out, unsigned bytes)\n"
    "{\n"
    "    __shared__ unsigned sum, fixed[STATIC / 4];\n"
    "    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) dynamic[i] = i % 251;\n"
    "    for (unsigned i = threadIdx.x; i < STATIC / 4; i += blockDim.x) fixed[i] = i;\n"
    "    if (threadIdx.x == 0) sum = 0;\n"
    "    __syncthreads();\n"
    "    unsigned mine = 0;\n"
    "    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) mine += dynamic[i];\n"
    "    for (unsigned i = threadIdx.x; i < STATIC / 4; i += blockDim.x) mine += fixed[i] != i;\n"
    "    atomicAdd(&sum, mine);\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x == 0) *out = sum;\n"
    "}\n";

static fa_status fill_smem(fa_context *ctx, uint32_t bytes, uint32_t static_bytes, unsigned *sum)
{
    fa_kernel *kernel = NULL;
    const fa_constant constant = {
        .name = "STATIC", .type = FA_CONSTANT_INT, .int_value = static_bytes};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "fill.cu",
                                   .source = smem_source,
                                   .entry = "fill",
                                   .constants = &constant,
                                   .constant_count = 1,
                                   .smem_bytes = bytes};
    fa_status status = fa_compile(ctx, &spec, &kernel);
    if (status)
        return status;
    unsigned *out = gpu_alloc(sizeof *out);
    const fa_param params[] = {{&out, sizeof out}, {&bytes, sizeof bytes}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {1}, .block = {256}, .smem_bytes = bytes, .params = params, .param_count = 2};
    status = fa_launch(kernel, &args, NULL);
    cr_expect(gpu_synchronize(NULL, NULL));
    gpu_download(sum, out, sizeof *sum);
    gpu_free(out);
    fa_kernel_release(kernel);
    return status;
}

Test(gpu, F50_shared_memory_at_its_limits)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_device_info_t device = {.size = sizeof device};
    OK(fa_device_info(0, &device));
    const uint32_t limit = device.smem_per_block_bytes;
    /* The kernel's own `sum` takes 16 bytes at most beside STATIC. */
    const struct {
        uint32_t dynamic, fixed;
        bool fits;
    } cases[] = {{48 * 1024 - 4096, 4080, true}, {48 * 1024, 16, true},
                 {48 * 1024 + 1, 16, true},      {limit - 4096, 4080, true},
                 {limit - 32, 16, true},         {limit, 16, false},
                 {limit + 1, 16, false},         {limit - 4096, 8192, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned sum = 0, expected = 0;
        fa_status status = fill_smem(ctx, cases[i].dynamic, cases[i].fixed, &sum);
        cr_expect_eq(status, cases[i].fits ? FA_OK : FA_ERR_SHARED_MEMORY,
                     "%u dynamic, %u static: %s: %s", cases[i].dynamic, cases[i].fixed,
                     fa_status_name(status), fa_last_error());
        for (uint32_t b = 0; b < cases[i].dynamic; b++)
            expected += b % 251;
        if (status == FA_OK)
            cr_expect_eq(sum, expected, "%u dynamic, %u static", cases[i].dynamic, cases[i].fixed);
    }
    close_device(&f, ctx);
}

/* --- refusals leave the stream as it was --- */

Test(gpu, F52_F54_refused_before_launch)
{
    fixture f;
    run r;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = fixture_compile(ctx, 3);
    run_begin(&r, 1000);
    r.a.args.tmpl.grid[1] = 65536;
    REFUSED(fa_launch(kernel, &r.a.args, NULL), FA_ERR_GEOMETRY, "65535");
    r.a.args.tmpl.grid[1] = 0;
    r.a.args.tmpl.param_count = 2;
    EXPECT(fa_launch(kernel, &r.a.args, NULL), FA_ERR_PARAM_COUNT);
    r.a.args.tmpl.param_count = 3;
    r.a.param[2].size = 8;
    EXPECT(fa_launch(kernel, &r.a.args, NULL), FA_ERR_PARAM_SIZE);
    r.a.param[2].size = 4;
    OK(fa_launch(kernel, &r.a.args, NULL));
    cr_expect(gpu_synchronize(NULL, NULL));
    run_check(&r, 6);
    run_end(&r);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- capture --- */

Test(gpu, F56_capture_survives_a_first_use)
{
    fixture f;
    run r;
    fa_kernel *cold = NULL;
    scale_spec s;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *warm = fixture_compile(ctx, 3);
    gpu_stream stream = gpu_stream_create();
    run_begin(&r, 1000);
    scale_spec_init(&s, 5);
    gpu_capture_begin(stream);
    OK(fa_launch(warm, &r.a.args, stream));
    fa_status status = fa_compile(ctx, &s.spec, &cold);
    cr_expect(status == FA_OK || status == FA_ERR_CAPTURE, "%s: %s", fa_status_name(status),
              fa_last_error());
    if (status == FA_OK)
        OK(fa_launch(cold, &r.a.args, stream));
    gpu_graph graph = gpu_capture_end(stream);
    cr_assert_not_null(graph, "the compile ended the capture");
    gpu_graph_launch(graph, stream);
    cr_expect(gpu_synchronize(stream, NULL));
    run_check(&r, status == FA_OK ? 60 : 6);
    gpu_graph_destroy(graph);
    fa_kernel_release(cold);
    OK(fa_compile(ctx, &s.spec, &cold));
    fa_kernel_release(cold);
    fa_kernel_release(warm);
    run_end(&r);
    gpu_stream_destroy(stream);
    close_device(&f, ctx);
}

Test(gpu, F56_release_inside_a_capture)
{
    skip_under_sanitizer("compute-sanitizer makes unloading end a capture");
    fixture f;
    fa_context *ctx = NULL, *first = open_device(&f, 0);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 1;
    OK(fa_context_create(&options, &ctx));
    fa_kernel *a = fixture_compile(ctx, 1), *b = fixture_compile(ctx, 2);
    run r;
    run_begin(&r, 1000);
    gpu_stream stream = gpu_stream_create();
    fa_kernel *warm = fixture_compile(first, 3);
    gpu_capture_begin(stream);
    fa_kernel_release(a);
    fa_kernel_release(b); /* one of them is unloaded now */
    OK(fa_launch(warm, &r.a.args, stream));
    gpu_graph graph = gpu_capture_end(stream);
    cr_assert_not_null(graph, "the release ended the capture");
    gpu_graph_launch(graph, stream);
    cr_expect(gpu_synchronize(stream, NULL));
    run_check(&r, 6);
    gpu_graph_destroy(graph);
    fa_kernel_release(warm);
    run_end(&r);
    gpu_stream_destroy(stream);
    fa_context_destroy(ctx);
    close_device(&f, first);
}

/* --- nothing lazy --- */

/* Spins until told to stop, or for so many cycles that the test has failed. out: 1 told, 2 tired.
 */
static const fa_template_spec spin = {
    .name = "spin.cu",
    .source =
        "__global__ void spin(volatile int *stop, int *out)\n"
        "{\n"
        "    const long long begin = clock64();\n"
        "    while (!*stop && clock64() - begin < 20000000000ll) {}\n"
        "    *out = *stop ? 1 : 2;\n"
        "}\n",
    .entry = "spin",
};

Test(gpu, F58_first_launch_beside_a_spinning_kernel, .timeout = 60)
{
    skip_under_sanitizer("compute-sanitizer runs one kernel at a time");
    if (FIXTURE_SANITIZED)
        cr_skip_test("the kernel reads what a copy writes: a race to ThreadSanitizer");
    fixture f;
    run r;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *spinner = compile(ctx, &spin), *kernel = fixture_compile(ctx, 3);
    gpu_stream busy = gpu_stream_create(), stream = gpu_stream_create();
    int *flags = gpu_alloc(2 * sizeof *flags), *out = flags + 1, one = 1, told[2] = {0};
    gpu_fill(flags, 0, 2 * sizeof *flags);
    run_begin(&r, 1000);
    const fa_param params[] = {{&flags, sizeof flags}, {&out, sizeof out}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.grid = {1}, .block = {1}, .params = params, .param_count = 2};
    OK(fa_launch(spinner, &args, busy));
    OK(fa_launch(kernel, &r.a.args, stream)); /* the very first launch of this kernel */
    cr_expect(gpu_synchronize(stream, NULL));
    gpu_upload(flags, &one, sizeof one);
    cr_expect(gpu_synchronize(busy, NULL));
    gpu_download(told, flags, sizeof told);
    cr_expect_eq(told[1], 1, "the launch waited for the other stream's kernel");
    run_check(&r, 6);
    run_end(&r);
    gpu_free(flags);
    gpu_stream_destroy(busy);
    gpu_stream_destroy(stream);
    fa_kernel_release(spinner);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
