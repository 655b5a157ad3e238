/* linear on a device where several blocks share the k of a tile, as they do with few rows. */
#include "gpu_linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Launches the case again and again; it has to leave the same bits each time, whichever block comes
 * last, and the workspace ready for the next launch. */
static void expect_same_bits(gpu_case *g, const fa_kernel *kernel, int times)
{
    const size_t y = gpu_case_index(g, "y0"), bytes = g->c.tensor[y].bytes;
    void *first = gpu_case_keep(g, "y0");
    for (int i = 0; i < times; i++) {
        gpu_case_upload(g);
        gpu_case_launch(g, kernel);
        cr_assert_arr_eq(first, gpu_case_at(g, y), bytes, "%s, launch %d", g->shape, i + 2);
    }
    free(first);
}

/* --- ragged sizes --- */

/* All sizes with one kernel, as many blocks to a tile as k has tiles, and up to `splits`. */
static void run_sizes(const fa_kernel *kernel, fa_linear_spec spec, int tile_k)
{
    static const int rows[] = {1, 3, 16, 17}, columns[] = {1, 16, 35};
    const int depths[] = {1, tile_k - 1, 2 * tile_k + 1, 7 * tile_k, 7 * tile_k + 3};
    for (size_t m = 0; m < COUNT(rows); m++)
        for (size_t n = 0; n < COUNT(columns); n++)
            for (size_t k = 0; k < COUNT(depths); k++) {
                gpu_case g;
                make_linear(&g, spec, linear_sized(spec, rows[m], columns[n], depths[k]), NULL,
                            m + 4 * n + 1);
                gpu_case_run(&g, kernel);
                cr_assert_eq(g.workspace != NULL, spec.splits > 1 && depths[k] > tile_k,
                             "%s, %d splits", g.shape, spec.splits);
                if (n == 1) /* the counters of one launch are those of the next */
                    expect_same_bits(&g, kernel, 1);
                gpu_case_free(&g);
            }
}

static void run_ragged(fa_linear_spec spec, int tile_k)
{
    static const int splits[] = {1, 2, 3, 7};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(splits); i++) {
        spec.splits = splits[i];
        fa_kernel *kernel = compile_linear(ctx, spec);
        run_sizes(kernel, spec, tile_k);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_linear_splits, few_rows_bf16)
{
    run_ragged((fa_linear_spec){.dtype = FA_BF16, .tile_m = 16, .tile_n = 16}, 64);
}

Test(gpu_linear_splits, few_rows_f32)
{
    run_ragged((fa_linear_spec){.tile_m = 16, .tile_n = 32}, 32);
}

/* --- as many as a launch chooses --- */

Test(gpu_linear_splits, few_rows_split_by_themselves)
{
    const fa_linear_spec spec = {.dtype = FA_BF16, .tile_m = 16, .tile_n = 16};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    gpu_case g;
    make_linear(&g, spec, linear_sized(spec, 1, 32, 8192), NULL, 1);
    gpu_case_run(&g, kernel);
    cr_assert_not_null(g.workspace);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- what follows the sums --- */

static const fa_linear_spec repeated[] = {
    {.splits = 5, .tile_m = 16, .tile_n = 32, .bias = true},
    {.splits = 3, .tile_m = 16, .tile_n = 16, .dtype = FA_BF16}};

enum { ROWS = 17, COLUMNS = 33 };

/* Runs each of them, and then what is to be compared with that. */
static void run_repeated(void (*then)(gpu_case *g, const fa_kernel *kernel))
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(repeated); i++) {
        fa_kernel *kernel = compile_linear(ctx, repeated[i]);
        gpu_case g;
        make_linear(&g, repeated[i], linear_sized(repeated[i], ROWS, COLUMNS, 330), NULL, i + 1);
        gpu_case_run(&g, kernel);
        then(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Runs the case as it has become, and compares a row with what it was. */
static void expect_same_row(gpu_case *g, const fa_kernel *kernel, size_t row)
{
    const size_t y = gpu_case_index(g, "y0"), bytes = g->c.tensor[y].bytes / ROWS;
    unsigned char before[COLUMNS * sizeof(float)];
    memcpy(before, (unsigned char *)gpu_case_at(g, y) + row * bytes, bytes);
    gpu_case_upload(g);
    gpu_case_launch(g, kernel);
    cr_expect_arr_eq((unsigned char *)gpu_case_at(g, y) + row * bytes, before, bytes);
}

static void run_again(gpu_case *g, const fa_kernel *kernel)
{
    cr_assert_not_null(g->workspace);
    expect_same_bits(g, kernel, 5);
}

/* Many blocks, which end in another order each time. */
Test(gpu_linear_splits, the_same_bits_every_time)
{
    run_repeated(run_again);
}

static void run_in_a_graph(gpu_case *g, const fa_kernel *kernel)
{
    const size_t y = gpu_case_index(g, "y0"), bytes = g->c.tensor[y].bytes;
    void *before = gpu_case_keep(g, "y0");
    gpu_stream stream = gpu_stream_create();
    gpu_graph graph = gpu_case_capture(g, kernel, stream, 1);
    gpu_case_replay(g, graph, stream, 3);
    cr_expect_arr_eq(before, gpu_case_at(g, y), bytes, "%s", g->shape);
    gpu_graph_destroy(graph);
    gpu_stream_destroy(stream);
    free(before);
}

/* The counters of one replay are those of the next. */
Test(gpu_linear_splits, replayed_in_a_graph)
{
    run_repeated(run_in_a_graph);
}

static void run_among_NaN(gpu_case *g, const fa_kernel *kernel)
{
    enum { ROW = 4 };
    const oracle_tensor *x = &g->c.tensor[gpu_case_index(g, "x")];
    const size_t bytes = x->bytes / ROWS;
    memset(x->host, 0xff, ROW * bytes);
    memset((unsigned char *)x->host + (ROW + 1) * bytes, 0xff, (ROWS - ROW - 1) * bytes);
    expect_same_row(g, kernel, ROW);
}

/* A row gives the same bits whatever the others hold. */
Test(gpu_linear_splits, K58_a_row_does_not_depend_on_the_others)
{
    run_repeated(run_among_NaN);
}

static void run_alone(gpu_case *g, const fa_kernel *kernel)
{
    g->c.args.linear.m = 1;
    expect_same_row(g, kernel, 0);
}

/* With as many splits, a row alone gives the bits that it gives among others. */
Test(gpu_linear_splits, K58_alone_as_among_others)
{
    run_repeated(run_alone);
}

/* One block of those that share a tile does it, once: a row outside is counted once. */
Test(gpu_linear_splits, every_step_behind_the_sums)
{
    static const fa_linear_spec spec = {.dtype = FA_BF16,
                                        .bias = true,
                                        .residual = true,
                                        .activation = FA_LINEAR_SILU,
                                        .rotation = FA_KV_ROTATE_HALF,
                                        .head_dim = 24,
                                        .rotary_dim = 16,
                                        .rotated = 48,
                                        .split_1 = 48,
                                        .mapped_rows = true,
                                        .tile_m = 16,
                                        .tile_n = 16,
                                        .splits = 3};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    gpu_case g;
    make_linear(&g, spec, linear_sized(spec, 17, 72, 400), NULL, 1);
    gpu_case_run(&g, kernel);
    cr_assert_not_null(g.workspace);
    cr_assert_gt(*(const uint32_t *)gpu_case_result(&g, "errors"), 1u);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
