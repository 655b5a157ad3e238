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

#define MAX_STEPS 3

/* What one fa_launch hands to the driver, one after the other. */
typedef struct bare_launches {
    bare_launch step[MAX_STEPS];
    size_t count;
    CUgraph graph; /* owns the parameters */
} bare_launches;

static bare_launch node_launch(CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS params;
    memset(&params, 0, sizeof params);
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

/* Read off a captured launch. */
static bare_launches captured_launches(const fa_kernel *kernel, const fa_args *args,
                                       gpu_stream stream)
{
    CUgraphNode node[MAX_STEPS];
    bare_launches bare = {.count = MAX_STEPS};
    bench_driver_check(cu->capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                       "begin capture");
    bench_check(fa_launch(kernel, args, stream), "fa_launch in a capture");
    bench_driver_check(cu->capture_end(stream, &bare.graph), "end capture");
    bench_driver_check(cu->graph_nodes(bare.graph, NULL, &bare.count), "cuGraphGetNodes");
    if (bare.count < 1 || bare.count > MAX_STEPS)
        bench_die("one fa_launch was captured as %zu nodes", bare.count);
    bench_driver_check(cu->graph_nodes(bare.graph, node, &bare.count), "cuGraphGetNodes");
    for (size_t i = 0; i < bare.count; i++)
        bare.step[i] = node_launch(node[i]);
    return bare;
}

/* --- launch --- */

#define BATCH 500 /* of the driver's launches */
#define MAX_REPEATS 1000

typedef struct contest {
    const fa_kernel *kernel;
    const fa_args *args;
    const bare_launches *bare;
    gpu_stream stream;
} contest;

/* Nanoseconds of one launch in a batch that the device's queue takes without making anyone wait. */
static double batch_ns(const contest *c, bool library)
{
    const int batch = BATCH / (int)c->bare->count;
    const double begin = bench_now_ns();
    if (library) {
        for (int i = 0; i < batch; i++) {
            if (fa_launch(c->kernel, c->args, c->stream) != FA_OK)
                bench_die("fa_launch: %s", fa_last_error());
        }
    } else {
        for (int i = 0; i < batch; i++)
            for (size_t k = 0; k < c->bare->count; k++)
                launch_bare(&c->bare->step[k], c->stream);
    }
    const double end = bench_now_ns();
    gpu_synchronize(c->stream, NULL);
    return (end - begin) / batch;
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
             repeats, BATCH / (int)c->bare->count);
    bench_emit(bench, "fajit", "launch", bench_median(series[1], repeats), "ns", note);
    bench_emit(bench, "driver", "launch", bench_median(series[0], repeats), "ns",
               "cuLaunchKernel of the same functions, geometry and parameters");
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
    const bare_launches bare = {
        .step[0] = {.function = bench_driver_load(cu, info.cubin, info.entry),
                    .grid = {args.tmpl.grid[0], args.tmpl.grid[1], args.tmpl.grid[2]},
                    .block = {args.tmpl.block[0], args.tmpl.block[1], args.tmpl.block[2]},
                    .params = scale.params},
        .count = 1,
    };
    const contest c = {kernel, &args, &bare, stream};
    compare_launches("launch_template", &c, repeats);
    bench_scale_download(&scale);
    bench_scale_check(&scale);
    fa_kernel_release(kernel);
    bench_scale_end(&scale);
}

#define MAX_TENSORS 10
#define TENSOR_BYTES (64 << 10) /* more than any here has */

/* An operation with all sizes in the args, so that every check of a launch takes place. */
typedef struct operation {
    const char *name;
    fa_spec spec;
    fa_args args;
    void **tensor[MAX_TENSORS]; /* members of the args, to be given memory */
} operation;

static void launch_operation(fa_context *ctx, operation *of, gpu_stream stream, size_t repeats)
{
    fa_kernel *kernel = NULL;
    fa_args *args = &of->args;
    bench_check(fa_compile(ctx, &of->spec, &kernel), of->name);
    for (size_t i = 0; i < MAX_TENSORS && of->tensor[i]; i++) {
        *of->tensor[i] = gpu_alloc(TENSOR_BYTES);
        bench_fill_random(*of->tensor[i], FA_F32, TENSOR_BYTES / sizeof(float), i + 1);
    }
    bench_check(fa_workspace_size(kernel, args, &args->workspace_bytes), "fa_workspace_size");
    args->workspace = args->workspace_bytes ? gpu_alloc(args->workspace_bytes) : NULL;
    gpu_fill(args->workspace, 0, args->workspace_bytes);
    const bare_launches bare = captured_launches(kernel, args, stream);
    const contest c = {kernel, args, &bare, stream};
    compare_launches(of->name, &c, repeats);

    bench_driver_check(cu->graph_destroy(bare.graph), "cuGraphDestroy");
    gpu_free(args->workspace);
    for (size_t i = 0; i < MAX_TENSORS && of->tensor[i]; i++)
        gpu_free(*of->tensor[i]);
    fa_kernel_release(kernel);
}

static operation begin_operation(const char *name, fa_op op)
{
    operation of = {.name = name, .spec = FA_SPEC_INIT(op), .args = FA_ARGS_INIT(op)};
    return of;
}

static void launch_rope(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    operation of = begin_operation("launch_rope", FA_OP_ROPE);
    fa_rope_args *a = &of.args.rope;
    of.spec.rope = (fa_rope_spec){.head_dim = 64};
    *a = (fa_rope_args){.batch = 1, .heads_q = 2, .heads_k = 2, .seqlen = 4};
    void **tensors[] = {&a->q.data, &a->k.data, &a->q_out.data, &a->k_out.data};
    memcpy(of.tensor, tensors, sizeof tensors);
    launch_operation(ctx, &of, stream, repeats);
}

static void launch_linear(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    operation of = begin_operation("launch_linear", FA_OP_LINEAR);
    fa_linear_args *a = &of.args.linear;
    *a = (fa_linear_args){.m = 16, .n = 32, .k = 64};
    void **tensors[] = {&a->x.data, &a->w.data, &a->y[0].data};
    memcpy(of.tensor, tensors, sizeof tensors);
    launch_operation(ctx, &of, stream, repeats);
}

static void launch_attention(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    operation of = begin_operation("launch_attention", FA_OP_ATTENTION);
    fa_attention_args *a = &of.args.attention;
    of.spec.attention = (fa_attention_spec){.head_dim = 32};
    *a =
        (fa_attention_args){.batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 16, .seqlen_k = 32};
    void **tensors[] = {&a->q.data, &a->k.data, &a->v.data, &a->out.data};
    memcpy(of.tensor, tensors, sizeof tensors);
    launch_operation(ctx, &of, stream, repeats);
}

static void launch_lowrank(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    operation of = begin_operation("launch_lowrank_kv", FA_OP_LOWRANK_KV);
    fa_lowrank_kv_args *a = &of.args.lowrank_kv;
    of.spec.lowrank_kv =
        (fa_lowrank_kv_spec){.plan = FA_LOWRANK_ONE_LAUNCH, .model_dim = 64, .rank = 16};
    *a = (fa_lowrank_kv_args){.batch = 1, .seqlen = 16, .heads = 2, .head_dim = 32};
    void **tensors[] = {&a->hidden.data, (void **)(uintptr_t)&a->w_down, &a->w_up_k.data,
                        &a->w_up_v.data, &a->k_out.data};
    memcpy(of.tensor, tensors, sizeof tensors);
    launch_operation(ctx, &of, stream, repeats);
}

static void launch_cross(fa_context *ctx, gpu_stream stream, size_t repeats)
{
    operation of = begin_operation("launch_cross_attention", FA_OP_CROSS_ATTENTION);
    fa_cross_attention_args *a = &of.args.cross_attention;
    of.spec.cross_attention = (fa_cross_attention_spec){.plan = FA_CROSS_FEW_LAUNCHES,
                                                        .rotation = FA_KV_ROTATE_INTERLEAVED,
                                                        .heads_q = 2,
                                                        .heads_k = 2,
                                                        .head_dim = 32};
    *a = (fa_cross_attention_args){.batch = 1, .seqlen_q = 16, .seqlen_k = 32, .model_dim = 64};
    void **tensors[] = {&a->x_query.data, &a->x_kv.data,  &a->w_q.data, &a->w_k.data,
                        &a->w_v.data,     &a->w_out.data, &a->out.data};
    memcpy(of.tensor, tensors, sizeof tensors);
    launch_operation(ctx, &of, stream, repeats);
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
    launch_linear(ctx, stream, quick ? 60 : 400);
    launch_attention(ctx, stream, quick ? 60 : 400);
    launch_lowrank(ctx, stream, quick ? 60 : 400);
    launch_cross(ctx, stream, quick ? 60 : 400);
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
