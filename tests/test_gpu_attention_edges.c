/* Seldom cases of attention on a device: rows that see nothing, no keys, large scores, head ratios,
 * views, results that may not depend on anything else. */
#include "gpu_attention.h"

static const fa_attention_spec causal = {.mask = FA_ATTENTION_CAUSAL, .head_dim = 64, .lse = true};
static const fa_attention_spec half = {.dtype = FA_F16, .head_dim = 64, .lse = true};

static void run_shape(fa_attention_spec spec, int batch, int heads_q, int heads_k, int seqlen_q,
                      int seqlen_k)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, spec);
    run_attention(kernel, spec, attention_sized(spec, batch, heads_q, heads_k, seqlen_q, seqlen_k),
                  NULL, 1);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* The reference says the same, but here it is spelled out. */
static void expect_dead_rows(gpu_case *g, int dead)
{
    const int rows = g->c.args.attention.seqlen_q, dim = g->c.spec.attention.head_dim;
    const float *out = gpu_case_result(g, "out"), *lse = gpu_case_result(g, "lse");
    for (int i = 0; i < rows; i++) {
        cr_expect_eq(isinf(lse[i]) != 0, i < dead, "row %d: lse %g", i, (double)lse[i]);
        for (int d = 0; d < dim && i < dead; d++)
            cr_expect_eq(out[i * dim + d], 0.0f, "row %d", i);
    }
}

Test(gpu_attention_edges, K01_rows_before_the_diagonal_are_zero)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, causal);
    gpu_case g;
    make_attention(&g, causal, attention_sized(causal, 1, 1, 1, 5, 2), NULL, 1);
    gpu_case_run(&g, kernel);
    expect_dead_rows(&g, 3);
    gpu_case_free(&g);
    /* whole tiles of them */
    run_attention(kernel, causal, attention_sized(causal, 2, 2, 1, 150, 20), NULL, 2);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_attention_edges, K07_alignments_of_the_causal_mask)
{
    fa_attention_spec top_left = causal;
    top_left.mask = FA_ATTENTION_CAUSAL_TOP_LEFT;
    run_shape(causal, 1, 1, 1, 2, 5);
    run_shape(top_left, 1, 1, 1, 2, 5);
}

Test(gpu_attention_edges, K09_three_queries_128_keys)
{
    run_shape(causal, 1, 2, 2, 3, 128);
}

Test(gpu_attention_edges, K10_seven_keys_at_head_dim_256)
{
    fa_attention_spec spec = half;
    spec.head_dim = 256;
    run_shape(spec, 3, 2, 1, 7, 7);
}

Test(gpu_attention_edges, K49_equal_logits)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {0, 0};
    fa_attention_spec spec = half;
    spec.mask = FA_ATTENTION_FULL;
    fa_kernel *kernel = compile_attention(ctx, spec);
    for (int keys = 1; keys < 200; keys += 66) {
        gpu_case g;
        make_attention(&g, spec, attention_sized(spec, 1, 1, 1, 3, keys), extra, 1);
        gpu_case_run(&g, kernel);
        const float *lse = gpu_case_result(&g, "lse");
        for (int i = 0; i < 3; i++)
            cr_expect_float_eq((double)lse[i], log(keys), 1e-5, "%d keys", keys);
        gpu_case_free(&g);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Nothing is read, and the poison of every row is overwritten. */
Test(gpu_attention_edges, K50_K53_no_keys)
{
    static const fa_attention_tiles tiles[] = {FA_ATTENTION_TILES_LARGE, FA_ATTENTION_TILES_SMALL};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 2; i++) {
        fa_attention_spec spec = causal;
        spec.tiles = tiles[i];
        fa_kernel *kernel = compile_attention(ctx, spec);
        gpu_case g;
        make_attention(&g, spec, attention_sized(spec, 1, 2, 1, 70, 0), NULL, 1);
        gpu_case_upload(&g);
        g.c.args.attention.k.data = g.c.args.attention.v.data = NULL;
        gpu_case_launch(&g, kernel);
        gpu_case_check(&g, kernel);
        expect_dead_rows(&g, 70);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_attention_edges, K52_head_ratios)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    for (int ratio = 1; ratio <= 16; ratio++)
        run_attention(kernel, half, attention_sized(half, 2, 2 * ratio, 2, 5, 9), NULL,
                      (uint64_t)ratio);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_attention_edges, K56_two_queries_many_keys)
{
    run_shape(causal, 1, 1, 1, 2, 8192);
}

/* --- views --- */

static void run_layout(fa_attention_spec spec, bool heads_first, int64_t pad)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {pad, 2};
    spec.heads_first = heads_first;
    fa_kernel *kernel = compile_attention(ctx, spec);
    run_attention(kernel, spec, attention_sized(spec, 2, 4, 2, 33, 65), extra, 3);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Both orders of dimensions, NaN between rows in what is read, poison in what is written. */
Test(gpu_attention_edges, K04_K21_K34_strided_views)
{
    for (int64_t pad = 0; pad <= 24; pad += 8) {
        run_layout(half, false, pad);
        run_layout(half, true, pad);
    }
}

Test(gpu_attention_edges, K22_expanded_keys)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case g;
    make_attention(&g, half, attention_sized(half, 3, 2, 2, 5, 33), NULL, 1);
    oracle_tensor *k = &g.c.tensor[gpu_case_index(&g, "k")];
    for (int b = 1; b < 3; b++)
        memcpy((char *)k->host + b * (int)k->bytes / 3, k->host, k->bytes / 3);
    oracle_attention_expect(&g.c);
    fa_tensor *view = &g.c.args.attention.k;
    *view = (fa_tensor){.stride_batch = 0, .stride_head = 64, .stride_token = 2 * 64};
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* An absurd stride of a dimension of size 1. */
Test(gpu_attention_edges, K32_strides_of_single_dimensions_are_ignored)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case g;
    make_attention(&g, half, attention_sized(half, 1, 1, 1, 5, 33), NULL, 1);
    g.c.args.attention.q =
        (fa_tensor){.stride_batch = INT64_MAX, .stride_head = -7, .stride_token = 64};
    g.c.args.attention.k =
        (fa_tensor){.stride_batch = INT64_MIN, .stride_head = 3, .stride_token = 64};
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Batches 2^30 elements apart: every offset of the last one is over 2^31. */
Test(gpu_attention_edges, large_K11_K12_offsets)
{
    static const char *const names[] = {"q", "k", "v", "out"};
    const size_t apart = (size_t)1 << 31; /* bytes */
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    if (free_memory() < (size_t)28 << 30)
        cr_skip_test("less than 28 GB of device memory are free");
    fa_attention_spec spec = half;
    spec.lse = false;
    fa_kernel *kernel = compile_attention(ctx, spec);
    gpu_case g;
    make_attention(&g, spec, attention_sized(spec, 4, 1, 1, 33, 65), NULL, 1);
    fa_attention_args *a = &g.c.args.attention;
    fa_tensor *const views[] = {&a->q, &a->k, &a->v, &a->out};
    for (int i = 0; i < 4; i++) {
        const oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, names[i])];
        *views[i] = (fa_tensor){gpu_alloc(3 * apart + t->bytes / 4), INT64_C(1) << 30, 64, 64};
        for (size_t b = 0; b < 4; b++)
            gpu_upload((char *)views[i]->data + b * apart, (char *)t->host + b * t->bytes / 4,
                       t->bytes / 4);
    }
    OK(fa_launch(kernel, &g.c.args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
    const oracle_tensor *out = &g.c.tensor[gpu_case_index(&g, "out")];
    char *back = malloc(out->bytes);
    cr_assert_not_null(back);
    for (size_t b = 0; b < 4; b++)
        gpu_download(back + b * out->bytes / 4, (char *)a->out.data + b * apart, out->bytes / 4);
    cr_expect_eq(oracle_compare(&g.c, out, back).bad, 0u);
    for (int i = 0; i < 4; i++)
        gpu_free(views[i]->data);
    free(back);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- numbers --- */

Test(gpu_attention_edges, scores_of_a_thousand)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {0, 24};
    fa_attention_spec spec = causal;
    spec.mask = FA_ATTENTION_FULL;
    fa_kernel *kernel = compile_attention(ctx, spec);
    run_attention(kernel, spec, attention_sized(spec, 1, 2, 2, 65, 129), extra, 1);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Integers and a power of two as scale: scores up to 1024 that float32 holds exactly, with many
 * ties and near ties. Then the gate is that of small scores. */
Test(gpu_attention_edges, exact_scores_of_a_thousand)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_attention_spec spec = causal;
    spec.mask = FA_ATTENTION_FULL;
    spec.scale = 0.125;
    fa_kernel *kernel = compile_attention(ctx, spec);
    gpu_case g;
    make_attention(&g, spec, attention_sized(spec, 1, 2, 2, 65, 129), NULL, 1);
    float *q = floats_of(&g, "q"), *k = floats_of(&g, "k");
    for (size_t i = 0; i < count_of(&g, "q"); i++)
        q[i] = i % 64 == 0 ? 64 : roundf(q[i]);
    for (size_t i = 0; i < count_of(&g, "k"); i++)
        k[i] = i % 64 == 0 ? 126 + roundf(k[i]) : roundf(k[i]);
    oracle_attention_expect(&g.c);
    g.c.atol = 1e-5;
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* A request alone, and the same one among others; twice the same. */
Test(gpu_attention_edges, K58_alone_as_in_a_batch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case many, one;
    make_attention(&many, half, attention_sized(half, 3, 2, 2, 33, 129), NULL, 1);
    make_attention(&one, half, attention_sized(half, 1, 2, 2, 33, 129), NULL, 1);
    gpu_case_run(&many, kernel);
    gpu_case_upload(&one);
    for (int i = 0; i < 2; i++) {
        gpu_case_launch(&one, kernel);
        cr_expect_arr_eq(gpu_case_result(&one, "out"), gpu_case_result(&many, "out"),
                         one.c.tensor[gpu_case_index(&one, "out")].bytes);
    }
    gpu_case_free(&many);
    gpu_case_free(&one);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
