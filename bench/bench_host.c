/* What the library costs the host: a launch beside the driver's own, and a compile that is answered
 * from memory.
 *
 *     bench_host launch [--quick]
 *     bench_host hit [--quick]       10,000 kernels: wants FAJIT_NVRTC_LIBRARY to name a stand-in,
 *                                    or takes as long as so many compiles do
 */
#include "bench_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the driver, bare --- */

static const bench_driver *cu;

/* One launch as the driver is given it. */
typedef struct bare_launch {
    CUfunction function;
    unsigned grid[3], block[3], smem_bytes;
    void **params;
} bare_launch;

static void launch_bare(const bare_launch *bare, CUstream stream)
{
    CUresult result =
        cu->launch(bare->function, bare->grid[0], bare->grid[1], bare->grid[2], bare->block[0],
                   bare->block[1], bare->block[2], bare->smem_bytes, stream, bare->params, NULL);
    if (result != CUDA_SUCCESS)
        bench_die("cuLaunchKernel failed with CUDA error %d", (int)result);
}

/* What fa_launch hands to the driver, read off a captured launch. The graph owns the parameters. */
static bare_launch captured_launch(const fa_kernel *kernel, const fa_args *args, gpu_stream stream,
                                   CUgraph *graph)
{
    CUgraphNode node;
    size_t count = 1;
    CUDA_KERNEL_NODE_PARAMS params;
    memset(&params, 0, sizeof params);
    bench_driver_check(cu->capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                       "begin capture");
    bench_check(fa_launch(kernel, args, stream), "fa_launch in a capture");
    bench_driver_check(cu->capture_end(stream, graph), "end capture");
    bench_driver_check(cu->graph_nodes(*graph, &node, &count), "cuGraphGetNodes");
    if (count != 1)
        bench_die("one fa_launch was captured as %zu nodes", count);
    bench_driver_check(cu->node_params(node, &params), "cuGraphKernelNodeGetParams");
    if (!params.func)
        bench_driver_check(cu->kernel_function(&params.func, params.kern), "cuKernelGetFunction");
    if (!params.kernelParams)
        bench_die("the captured launch has no parameter list");
    return (bare_launch){
        .function = params.func,
        .grid = {params.gridDimX, params.gridDimY, params.gridDimZ},
        .block = {params.blockDimX, params.blockDimY, params.blockDimZ},
        .smem_bytes = params.sharedMemBytes,
        .params = params.kernelParams,
    };
}

/* --- launch --- */

#define BATCH 500
#define MAX_REPEATS 1000

typedef struct contest {
    const fa_kernel *kernel;
    const fa_args *args;
    const bare_launch *bare;
    gpu_stream stream;
} contest;

/* Nanoseconds of one launch in a batch that the device's queue takes without making anyone wait. */
static double batch_ns(const contest *c, bool library)
{
    const double begin = bench_now_ns();
    if (library) {
        for (int i = 0; i < BATCH; i++) {
            if (fa_launch(c->kernel, c->args, c->stream) != FA_OK)
                bench_die("fa_launch: %s", fa_last_error());
        }
    } else {
        for (int i = 0; i < BATCH; i++)
            launch_bare(c->bare, c->stream);
    }
    const double end = bench_now_ns();
    gpu_synchronize(c->stream, NULL);
    return (end - begin) / BATCH;
}

/* Batches alternate in the order bare, library, bare; library, bare, bare; ...: each kind is as
 * often first, and the second bare series says what a difference between equals looks like. */
static void compare_launches(const char *bench, const contest *c, size_t repeats)
{
    static double series[3][MAX_REPEATS], over[MAX_REPEATS], noise[MAX_REPEATS];
    for (size_t i = 0; i < 20; i++)
        batch_ns(c, i % 2);
    for (size_t i = 0; i < repeats; i++) {
        for (size_t j = 0; j < 3; j++) {
            const size_t which = (i + j) % 3;
            series[which][i] = batch_ns(c, which == 1);
        }
        over[i] = series[1][i] - (series[0][i] + series[2][i]) / 2;
        noise[i] = series[2][i] - series[0][i];
    }
    char note[160];
    snprintf(note, sizeof note, "median of %zu batches of %d back-to-back launches, interleaved",
             repeats, BATCH);
    bench_emit(bench, "fajit", "launch", bench_median(series[1], repeats), "ns", note);
    bench_emit(bench, "driver", "launch", bench_median(series[0], repeats), "ns",
               "cuLaunchKernel of the same function, geometry and parameters");
    bench_emit(bench, "fajit", "over_driver", bench_median(over, repeats), "ns",
               "median of the differences of neighbouring batches");
    bench_emit(bench, "driver", "over_driver", bench_median(noise, repeats), "ns",
               "the driver against itself, measured the same way: the noise");
}

static void launch_template(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    static bench_scale scale;
    bench_scale_begin(&scale);
    const fa_args args = bench_scale_args(&scale);
    const fa_spec spec = bench_scale_spec();
    fa_kernel *kernel = NULL;
    bench_check(fa_compile(ctx, &spec, &kernel), "compile scale");
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_kernel_info(kernel, &info), "fa_kernel_info");
    const bare_launch bare = {
        .function = bench_driver_load(cu, info.cubin, info.entry),
        .grid = {args.tmpl.grid[0], args.tmpl.grid[1], args.tmpl.grid[2]},
        .block = {args.tmpl.block[0], args.tmpl.block[1], args.tmpl.block[2]},
        .params = scale.params,
    };
    const contest c = {kernel, &args, &bare, stream};
    compare_launches("launch_template", &c, repeats);
    bench_scale_download(&scale);
    bench_scale_check(&scale);
    fa_kernel_release(kernel);
    bench_scale_end(&scale);
}

/* With all sizes in the args, so that every check of a rope launch takes place. */
static void launch_rope(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){.head_dim = 64};
    fa_kernel *kernel = NULL;
    bench_check(fa_compile(ctx, &spec, &kernel), "compile rope");
    const size_t elements = 2 * 4 * 64;
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    args.rope = (fa_rope_args){.batch = 1, .heads_q = 2, .heads_k = 2, .seqlen = 4};
    fa_tensor *tensors[] = {&args.rope.q, &args.rope.k, &args.rope.q_out, &args.rope.k_out};
    for (size_t i = 0; i < 4; i++) {
        tensors[i]->data = gpu_alloc(elements * sizeof(float));
        bench_fill_random(tensors[i]->data, FA_F32, elements, i + 1);
    }
    CUgraph graph = NULL;
    bare_launch bare = captured_launch(kernel, &args, stream, &graph);
    const contest c = {kernel, &args, &bare, stream};
    compare_launches("launch_rope", &c, repeats);

    bench_driver_check(cu->graph_destroy(graph), "cuGraphDestroy");
    for (size_t i = 0; i < 4; i++)
        gpu_free(tensors[i]->data);
    fa_kernel_release(kernel);
}

static int run_launch(bool quick)
{
    const char *why = NULL;
    if (!gpu_open(0, &why)) {
        bench_emit_missing("launch", "fajit", why);
        return 77;
    }
    cu = bench_driver_open();
    fa_context *ctx = NULL;
    bench_check(fa_context_create(NULL, &ctx), "fa_context_create");
    gpu_stream stream = gpu_stream_create();
    launch_template(ctx, stream, quick ? 60 : 400);
    launch_rope(ctx, stream, quick ? 60 : 400);
    gpu_stream_destroy(stream);
    fa_context_destroy(ctx);
    return 0;
}

/* --- memory hit --- */

#define HITS 10000

typedef struct hit_table {
    fa_context *ctx;
    fa_spec *specs;
    fa_kernel **held; /* of the specs; so that none is idle */
    size_t count;
} hit_table;

/* Rope instances that differ in the baked number of tokens. */
static void grow(hit_table *table, size_t count)
{
    for (; table->count < count; table->count++) {
        fa_spec *spec = &table->specs[table->count];
        *spec = (fa_spec)FA_SPEC_INIT(FA_OP_ROPE);
        spec->rope = (fa_rope_spec){.dtype = FA_BF16,
                                    .head_dim = 128,
                                    .batch = 1,
                                    .heads_q = 8,
                                    .heads_k = 8,
                                    .seqlen = (int32_t)table->count + 1};
        bench_check(fa_compile(table->ctx, spec, &table->held[table->count]), "fill the table");
    }
}

/* Nanoseconds of one fa_compile, without the release: of the same spec over and over (stride 0), or
 * of all specs in an order that no cache of the processor foresees. */
static double hits_ns(const hit_table *table, const fa_spec *fixed, size_t repeats)
{
    static fa_kernel *got[HITS];
    static double samples[MAX_REPEATS];
    uint64_t seed = 3;
    for (size_t r = 0; r < repeats; r++) {
        static uint32_t order[HITS];
        for (size_t i = 0; i < HITS; i++)
            order[i] = (uint32_t)(bench_random(&seed) % table->count);
        fa_status failed = FA_OK;
        const double begin = bench_now_ns();
        for (size_t i = 0; i < HITS; i++) {
            const fa_spec *spec = fixed ? fixed : &table->specs[order[i]];
            failed |= fa_compile(table->ctx, spec, &got[i]);
        }
        samples[r] = (bench_now_ns() - begin) / HITS;
        if (failed)
            bench_die("a memory hit failed: %s", fa_last_error());
        for (size_t i = 0; i < HITS; i++)
            fa_kernel_release(got[i]);
    }
    return bench_median(samples, repeats);
}

static double pairs_ns(const hit_table *table, const fa_spec *spec, size_t repeats)
{
    static double samples[MAX_REPEATS];
    for (size_t r = 0; r < repeats; r++) {
        const double begin = bench_now_ns();
        for (size_t i = 0; i < HITS; i++) {
            fa_kernel *kernel = NULL;
            bench_check(fa_compile(table->ctx, spec, &kernel), "memory hit");
            fa_kernel_release(kernel);
        }
        samples[r] = (bench_now_ns() - begin) / HITS;
    }
    return bench_median(samples, repeats);
}

static void check_all_hits(const hit_table *table, uint64_t compiles)
{
    fa_stats stats = {.size = sizeof stats};
    bench_check(fa_stats_get(table->ctx, &stats), "fa_stats_get");
    if (stats.compiles != compiles)
        bench_die("%llu kernels were compiled, %llu expected: these were no memory hits",
                  (unsigned long long)stats.compiles, (unsigned long long)compiles);
}

static void measure_hits(hit_table *table, bool quick)
{
    static const size_t sizes[] = {1, 100, 10000};
    const size_t repeats = quick ? 10 : 60;
    char bench[64];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        grow(table, quick ? (sizes[i] + 9) / 10 : sizes[i]);
        const fa_spec *middle = &table->specs[table->count / 2];
        hits_ns(table, middle, 3);
        snprintf(bench, sizeof bench, "hit_%zu", sizes[i]);
        bench_emit(bench, "fajit", "hit", hits_ns(table, middle, repeats), "ns",
                   "fa_compile of one spec among so many, not counting the release");
        bench_emit(bench, "fajit", "hit_any", hits_ns(table, NULL, repeats), "ns",
                   "of specs drawn at random among so many: the processor's cache misses too");
        bench_emit(bench, "fajit", "hit_and_release", pairs_ns(table, middle, repeats), "ns",
                   "fa_compile and fa_kernel_release");
        check_all_hits(table, table->count);
    }
    fa_kernel *kernel = NULL;
    const fa_spec spec = bench_scale_spec();
    bench_check(fa_compile(table->ctx, &spec, &kernel), "compile scale");
    bench_emit("hit_template", "fajit", "hit", hits_ns(table, &spec, repeats), "ns",
               "fa_compile of a short template: its source is part of the spec");
    fa_kernel_release(kernel);
}

static int run_hit(bool quick)
{
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    options.arch = "sm_90a";
    options.no_disk_cache = true;
    hit_table table = {.specs = calloc(HITS, sizeof(fa_spec)),
                       .held = calloc(HITS, sizeof(fa_kernel *))};
    if (!table.specs || !table.held)
        bench_die("out of memory");
    bench_check(fa_context_create(&options, &table.ctx), "fa_context_create");
    measure_hits(&table, quick);
    for (size_t i = 0; i < table.count; i++)
        fa_kernel_release(table.held[i]);
    fa_context_destroy(table.ctx);
    free(table.held);
    free(table.specs);
    return 0;
}

int main(int argc, char **argv)
{
    const bool quick = argc == 3 && strcmp(argv[2], "--quick") == 0;
    if ((argc == 2 || quick) && strcmp(argv[1], "launch") == 0)
        return run_launch(quick);
    if ((argc == 2 || quick) && strcmp(argv[1], "hit") == 0)
        return run_hit(quick);
    bench_die("usage: bench_host launch|hit [--quick]");
}
