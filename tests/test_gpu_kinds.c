/* Cluster, cooperative and programmatic launches on a real device. */
#include "gpu_fixture.h"

/* --- launch kinds --- */

static void launch_out(const fa_kernel *kernel, unsigned *out, unsigned blocks, fa_status expected)
{
    const fa_param params[] = {{&out, sizeof out}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl =
        (fa_template_args){.grid = {blocks}, .block = {32}, .params = params, .param_count = 1};
    EXPECT(fa_launch(kernel, &args, NULL), expected);
}

static bool device_has(fa_context *ctx, int compute_major)
{
    fa_context_info_t info = {.size = sizeof info};
    fa_device_info_t device = {.size = sizeof device};
    OK(fa_context_info(ctx, &info));
    OK(fa_device_info(info.device, &device));
    return device.compute_major >= compute_major;
}

Test(gpu_kinds, cluster_launch)
{
    fixture f;
    unsigned seen[8] = {0};
    fa_context *ctx = open_device(&f, 0);
    if (!device_has(ctx, 9)) {
        close_device(&f, ctx);
        cr_skip_test("clusters need compute capability 9.0");
    }
    fa_kernel *kernel = compile(
        ctx, &(fa_template_spec){
                 .name = "cluster.cu",
                 .source = "__global__ void cluster(unsigned *out)\n"
                           "{\n"
                           "    unsigned blocks, rank;\n"
                           "    asm(\"mov.u32 %0, %%cluster_nctaid.x;\" : \"=r\"(blocks));\n"
                           "    asm(\"mov.u32 %0, %%cluster_ctarank;\" : \"=r\"(rank));\n"
                           "    if (threadIdx.x == 0) out[blockIdx.x] = 10 * blocks + rank;\n"
                           "}\n",
                 .entry = "cluster",
                 .cluster = {4, 1, 1}});
    unsigned *out = gpu_alloc(sizeof seen);
    launch_out(kernel, out, 6, FA_ERR_GEOMETRY);
    launch_out(kernel, out, 8, FA_OK);
    cr_expect(gpu_synchronize(NULL, NULL));
    gpu_download(seen, out, sizeof seen);
    for (unsigned i = 0; i < 8; i++)
        cr_expect_eq(seen[i], 40 + i % 4, "block %u: %u", i, seen[i]);
    gpu_free(out);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Every block waits for all others: it ends only if they are resident at once. */
Test(gpu_kinds, cooperative_launch, .timeout = 60)
{
    fixture f;
    unsigned seen = 0;
    fa_context *ctx = open_device(&f, 0);
    fa_device_info_t device = {.size = sizeof device};
    OK(fa_device_info(0, &device));
    fa_kernel *kernel = compile(
        ctx, &(fa_template_spec){.name = "together.cu",
                                 .source = "__global__ void together(unsigned *out)\n"
                                           "{\n"
                                           "    if (threadIdx.x) return;\n"
                                           "    atomicAdd(out, 1);\n"
                                           "    const long long begin = clock64();\n"
                                           "    while (atomicAdd(out, 0) < gridDim.x &&\n"
                                           "           clock64() - begin < 20000000000ll) {}\n"
                                           "}\n",
                                 .entry = "together",
                                 .cooperative = true});
    unsigned *out = gpu_alloc(sizeof *out), blocks = (unsigned)device.multiprocessors;
    gpu_fill(out, 0, sizeof *out);
    launch_out(kernel, out, blocks, FA_OK);
    cr_expect(gpu_synchronize(NULL, NULL));
    gpu_download(&seen, out, sizeof seen);
    cr_expect_eq(seen, blocks);
    launch_out(kernel, out, 1000000, FA_ERR_GEOMETRY); /* cannot all be resident */
    cr_expect(gpu_synchronize(NULL, NULL));
    gpu_free(out);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* A chain of increments, each of which may start before its predecessor has ended and waits for its
 * memory itself. */
Test(gpu_kinds, programmatic_launch)
{
    fixture f;
    unsigned seen[32];
    fa_context *ctx = open_device(&f, 0);
    if (!device_has(ctx, 9)) {
        close_device(&f, ctx);
        cr_skip_test("programmatic launch needs compute capability 9.0");
    }
    fa_kernel *kernel = compile(
        ctx, &(fa_template_spec){.name = "chain.cu",
                                 .source = "#include \"fajit/order.cuh\"\n"
                                           "__global__ void chain(unsigned *out)\n"
                                           "{\n"
                                           "    fajit::let_successor_start();\n"
                                           "    fajit::wait_for_predecessor();\n"
                                           "    out[threadIdx.x] = 3 * out[threadIdx.x] + 1;\n"
                                           "}\n",
                                 .entry = "chain",
                                 .programmatic_launch = true});
    unsigned *out = gpu_alloc(sizeof seen), expected = 0;
    gpu_fill(out, 0, sizeof seen);
    for (int i = 0; i < 15; i++) {
        launch_out(kernel, out, 1, FA_OK);
        expected = 3 * expected + 1;
    }
    cr_expect(gpu_synchronize(NULL, NULL));
    gpu_download(seen, out, sizeof seen);
    for (int i = 0; i < 32; i++)
        cr_expect_eq(seen[i], expected, "thread %d: %u, not %u", i, seen[i], expected);
    gpu_free(out);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
