/* lowrank_kv on a device: bases and strides of every alignment, what lies beside the tensors, plans
 * that agree, latent caches, graphs, empty work. Huge offsets are in test_gpu_lowrank_kv_far.c. */
#include <math.h>

#include "gpu_lowrank_kv.h"

#define TOKENS .batch = 2, .seqlen = 21
#define SIZES TOKENS, .model_dim = 72, .rank = 40, .heads = 3, .head_dim = 24
#define TWO .plan = FA_LOWRANK_TWO_LAUNCHES

/* Products by themselves, of one kernel for sizes that are multiples of 8 and such that are odd. */
static const fa_lowrank_kv_spec forms[] = {
    {SIZES},
    {SIZES, .dtype = FA_BF16},
    {TOKENS, .dtype = FA_F16, .form = FA_LOWRANK_DOWN, .rank = 39},
    {TOKENS, .form = FA_LOWRANK_UP, .rope_dim = 6, .rank = 40},
    {TOKENS, .dtype = FA_BF16, TWO, .norm = FA_ROPE_RMS_NORM, .rank = 40},
    {TOKENS, TWO, .rank = 39},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static fa_lowrank_kv_spec sizes_of(fa_lowrank_kv_spec form, bool odd)
{
    if (form.head_dim)
        return form;
    form.model_dim = odd ? 71 : 72;
    form.heads = 3;
    form.head_dim = odd ? 23 : 24;
    return form;
}

/* Vector accesses where base and strides allow them, others where they do not: the same result. Rows,
 * heads and batches lie apart. */
Test(gpu_lowrank_kv_edges, K34_any_alignment_and_stride)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_lowrank(ctx, forms, FORMS, 2);
    for (size_t i = 0; i < FORMS; i++) {
        fa_kernel *kernel = compile_lowrank(ctx, forms[i]);
        for (int n = 0; n < 8; n++) {
            static const int pads[] = {0, 1, 2, 3, 4, 8, 0, 5};
            const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {0, 0, 0, 0, 0, pads[n], 0};
            gpu_case g;
            make_lowrank(&g, forms[i], sizes_of(forms[i], n % 2), extra, (uint64_t)n + 1);
            for (size_t k = 0; k < g.c.tensor_count; k++)
                g.shift[k] = (int)((size_t)n * (k + 1)) % 7;
            gpu_case_run(&g, kernel);
            gpu_case_free(&g);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Tiles of tokens that are loaded as one although batches lie apart, because none has tokens of two;
 * and others that do. */
Test(gpu_lowrank_kv_edges, batches_that_end_with_a_tile)
{
    static const int64_t apart[ORACLE_LOWRANK_EXTRA_COUNT] = {0, 0, 0, 0, 0, 8, 0};
    static const fa_lowrank_kv_spec products[] = {{TWO, .rank = 40},
                                                  {TWO, .dtype = FA_F16, .rank = 40}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        const fa_lowrank_kv_spec spec = products[i];
        fa_kernel *kernel = compile_lowrank(ctx, spec);
        for (int seqlen = 128; seqlen >= 124; seqlen -= 4) {
            fa_lowrank_kv_spec sizes = sizes_of(spec, false);
            sizes.batch = 3;
            sizes.seqlen = seqlen;
            run_lowrank(kernel, spec, sizes, apart, (uint64_t)seqlen);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* What lies between and behind rows is not read into any sum. */
Test(gpu_lowrank_kv_edges, K04_NaN_beside_the_inputs)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < FORMS; i++) {
        fa_kernel *kernel = compile_lowrank(ctx, forms[i]);
        for (int64_t pad = 3; pad <= 8; pad += 5) {
            const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {0, 0, 0, 0, 0, pad, 0};
            gpu_case g;
            make_lowrank(&g, forms[i], sizes_of(forms[i], pad % 2), extra, 1);
            spoil_gaps(&g);
            gpu_case_run(&g, kernel);
            gpu_case_free(&g);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

static float *run_for_output(fa_context *ctx, fa_lowrank_kv_spec spec, const char *name,
                             size_t *count)
{
    gpu_case g;
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    make_lowrank(&g, lowrank_bake(spec, 1), spec, NULL, 1);
    gpu_case_upload(&g);
    gpu_case_launch(&g, kernel);
    const oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, name)];
    float *copy = malloc(t->bytes);
    cr_assert_not_null(copy);
    memcpy(copy, gpu_case_result(&g, name), t->bytes);
    *count = t->count;
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    return copy;
}

/* A token's result does not depend on what else is in the batch, nor on the run. */
Test(gpu_lowrank_kv_edges, K58_alone_equals_in_a_batch)
{
    const fa_lowrank_kv_spec all = {
        .model_dim = 72, .rank = 40, .heads = 1, .head_dim = 24, .batch = 1, .seqlen = 37};
    fa_lowrank_kv_spec one = all;
    size_t count = 0, count_one = 0;
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    one.seqlen = 1; /* the first token: inputs are drawn in order */
    float *of_all = run_for_output(ctx, all, "out", &count);
    float *again = run_for_output(ctx, all, "out", &count);
    float *of_one = run_for_output(ctx, one, "out", &count_one);
    cr_expect_arr_eq(of_all, again, count * sizeof *of_all);
    cr_expect_arr_eq(of_all, of_one, count_one * sizeof *of_all);
    free(of_all);
    free(again);
    free(of_one);
    close_device(&f, ctx);
}

/* Prefill writes latents and rotary keys, decode expands what it reads: the layout that serving
 * engines keep, [latent | rotary part] in one row. */
Test(gpu_lowrank_kv_edges, latent_and_rotary_part_in_one_row_of_a_cache)
{
    const fa_lowrank_kv_spec spec = {.form = FA_LOWRANK_DOWN,
                                     .dtype = FA_BF16,
                                     .to_cache = true,
                                     .cache = FA_KV_SLOTS,
                                     .model_dim = 64,
                                     .rank = 24,
                                     .rope_dim = 8,
                                     .rotation = FA_KV_ROTATE_INTERLEAVED,
                                     .batch = 1,
                                     .seqlen = 9};
    static const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {0, 4, 4, 0, 1, 0, 0};
    enum { ROW = 32, ENTRIES = 16 };
    fixture f;
    uint16_t joined[ENTRIES * ROW];
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    gpu_case g;
    make_lowrank(&g, lowrank_bake(spec, 1), spec, extra, 3);
    gpu_case_run(&g, kernel);
    unsigned char *pool = gpu_alloc(sizeof joined);
    gpu_fill(pool, 0x5a, sizeof joined);
    fa_lowrank_kv_args *a = &g.c.args.lowrank_kv;
    a->latent = (fa_tensor){pool, 4 * ROW, 0, ROW};
    a->rope_out = (fa_tensor){pool + 2 * 24, 4 * ROW, 0, ROW};
    OK(fa_launch(kernel, &g.c.args, NULL));
    gpu_download(joined, pool, sizeof joined);
    const uint16_t *latent = gpu_case_result(&g, "latent"), *rope = gpu_case_result(&g, "rope_out");
    for (int e = 0; e < ENTRIES; e++) {
        cr_expect_arr_eq(joined + e * ROW, latent + e * 24, 48, "latent of entry %d", e);
        cr_expect_arr_eq(joined + e * ROW + 24, rope + e * 8, 16, "rotary part of entry %d", e);
    }
    a->rope_out.data = pool + 2 * 23; /* over the end of the latent */
    cr_expect_eq(fa_launch(kernel, &g.c.args, NULL), FA_ERR_ALIAS);
    gpu_free(pool);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Of the tokens of a batch that go to one entry, by one launch and by two: neighbours, and far ones. */
Test(gpu_lowrank_kv_edges, the_last_of_several_tokens_is_written)
{
    static const fa_lowrank_plan plans[] = {FA_LOWRANK_ONE_LAUNCH, FA_LOWRANK_TWO_LAUNCHES};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        const fa_lowrank_kv_spec sizes = {.model_dim = 24,
                                          .rank = 16,
                                          .heads = 1,
                                          .head_dim = 16,
                                          .batch = 2,
                                          .seqlen = 45,
                                          .plan = plans[i],
                                          .to_cache = true};
        fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(sizes, 1));
        gpu_case g;
        make_lowrank(&g, lowrank_bake(sizes, 1), sizes, NULL, 1);
        const oracle_tensor *positions = &g.c.tensor[gpu_case_index(&g, "positions")];
        for (size_t n = 0; n < positions->count; n++)
            ((int32_t *)positions->host)[n] = (int32_t)(n % 3);
        oracle_lowrank_kv_expect(&g.c);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Both launches of a plan are captured, and replayed. */
Test(gpu_lowrank_kv_edges, two_launches_in_a_graph)
{
    fa_lowrank_kv_spec spec = {SIZES, TWO};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    gpu_case g;
    make_lowrank(&g, spec, spec, NULL, 1);
    gpu_case_upload(&g);
    gpu_stream stream = gpu_stream_create();
    gpu_graph graph = gpu_case_capture(&g, kernel, stream, 1);
    cr_assert_gt(g.workspace_bytes, 0u);
    gpu_case_replay(&g, graph, stream, 3);
    gpu_case_check(&g, kernel);
    gpu_graph_destroy(graph);
    gpu_stream_destroy(stream);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Every workspace but a large enough one is refused, and nothing is launched. */
Test(gpu_lowrank_kv_edges, workspaces_are_checked)
{
    fa_lowrank_kv_spec spec = {SIZES, TWO};
    size_t bytes = 0;
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    gpu_case g;
    make_lowrank(&g, spec, spec, NULL, 1);
    gpu_case_upload(&g);
    OK(fa_workspace_size(kernel, &g.c.args, &bytes));
    cr_expect_eq(bytes, 42u * 40 * 4);
    char *memory = gpu_alloc(bytes + 256);
    REFUSED(fa_launch(kernel, &g.c.args, NULL), FA_ERR_WORKSPACE, "workspace = 0x0");
    g.c.args.workspace = memory;
    g.c.args.workspace_bytes = bytes - 1;
    REFUSED(fa_launch(kernel, &g.c.args, NULL), FA_ERR_WORKSPACE, "6719");
    g.c.args.workspace = memory + 4;
    g.c.args.workspace_bytes = bytes;
    REFUSED(fa_launch(kernel, &g.c.args, NULL), FA_ERR_MISALIGNED, "workspace");
    gpu_free(memory);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* The message tells what a block would need, and what it can have. */
static void expect_bytes(const char *message, unsigned least, uint32_t room)
{
    unsigned needs = 0, has = 0;
    int read = 0;
    const char *numbers = strstr(message, "needs ");
    cr_assert_not_null(numbers, "%s", message);
    sscanf(numbers, "needs %u bytes of shared memory for 16 tokens; a block on %*s can have %u%n",
           &needs, &has, &read);
    cr_expect(read > 0 && needs >= least && needs > has, "%s", message);
    cr_expect_eq(has, room, "%s", message);
}

/* A rank that shared memory has no room for is refused before anything is compiled. */
Test(gpu_lowrank_kv_edges, a_rank_too_large_is_refused)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = NULL;
    fa_stats before = {.size = sizeof before}, after = before;
    fa_device_info_t device = {.size = sizeof device};
    const fa_spec spec =
        lowrank_spec((fa_lowrank_kv_spec){.rank = 8192, .plan = FA_LOWRANK_ONE_LAUNCH});
    OK(fa_stats_get(ctx, &before));
    OK(fa_device_info(0, &device));
    REFUSED(fa_compile(ctx, &spec, &kernel), FA_ERR_SHARED_MEMORY, "rank = 8192");
    expect_bytes(fa_last_error(), 16 * 8192 * 4, device.smem_per_block_bytes);
    OK(fa_stats_get(ctx, &after));
    cr_expect_eq(after.compiles, before.compiles);
    cr_expect_null(kernel);
    close_device(&f, ctx);
}

/* Shapes with nothing in them succeed and write nothing. */
Test(gpu_lowrank_kv_edges, empty_work)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_lowrank_kv_spec spec = {.rank = 40};
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    fa_args args = FA_ARGS_INIT(FA_OP_LOWRANK_KV);
    size_t bytes = 1;
    OK(fa_launch(kernel, &args, NULL));
    args.lowrank_kv = (fa_lowrank_kv_args){.batch = 2, .seqlen = 3, .model_dim = 4, .heads = 5};
    OK(fa_launch(kernel, &args, NULL));
    OK(fa_workspace_size(kernel, &args, &bytes));
    cr_expect_eq(bytes, 0u);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
