/* Seldom cases of attention on a device: rows that see nothing, no keys, head ratios, large scores. */
#include "gpu_attention.h"

/* Kernels that test_gpu_attention.c needs too. */
static const fa_attention_spec plain = {
    .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};
static const fa_attention_spec causal = {
    .mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};
static const fa_attention_spec shared_keys = {
    .mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 32, .lse = true};
static const fa_attention_spec half = {
    .dtype = FA_F16, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};

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
    const fa_attention_spec *s = &g->c.spec.attention;
    const int rows = g->c.args.attention.seqlen_q,
              dim = s->head_dim_v ? s->head_dim_v : s->head_dim;
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

/* Four warps share the keys of a tile: some see none of those that there are, or all see none. What
 * they leave for the merge lies where keys were, and where those are small, where values were. */
Test(gpu_attention_edges, K02_parts_that_saw_nothing_change_nothing)
{
    static const int keys[] = {1, 2, 33, 65, 97};
    fa_attention_spec wide = shared_keys;
    wide.head_dim = 8;
    wide.head_dim_v = 128;
    const fa_attention_spec *const specs[] = {&shared_keys, &wide};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 10; i++) {
        const fa_attention_spec spec = *specs[i / 5];
        const int count = keys[i % 5];
        fa_kernel *kernel = compile_attention(ctx, spec);
        gpu_case g;
        make_attention(&g, spec, attention_sized(spec, 1, 1, 1, count + 3, count), NULL, 1);
        gpu_case_run(&g, kernel);
        expect_dead_rows(&g, 3);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
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
    fa_kernel *kernel = compile_attention(ctx, half);
    for (int keys = 1; keys < 200; keys += 66) {
        gpu_case g;
        make_attention(&g, half, attention_sized(half, 1, 1, 1, 3, keys), extra, 1);
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
    static const fa_attention_spec *const specs[] = {&causal, &shared_keys};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_attention(ctx, *specs[i]);
        gpu_case g;
        make_attention(&g, *specs[i], attention_sized(*specs[i], 1, 2, 1, 70, 0), NULL, 1);
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

Test(gpu_attention_edges, K52_every_head_ratio)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    for (int ratio = 1; ratio <= 16; ratio++)
        run_attention(kernel, half, attention_sized(half, 1, 2 * ratio, 2, 5, 9), NULL,
                      (uint64_t)ratio);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* So many that the keys of one head fill a section of the grid. */
Test(gpu_attention_edges, K56_two_queries_many_keys)
{
    fa_attention_spec spec = shared_keys;
    spec.head_dim = 64;
    run_shape(spec, 1, 2, 2, 2, 32768);
}

/* A block for each, of one query. */
Test(gpu_attention_edges, large_K14_65536_heads)
{
    run_shape(shared_keys, 2, 65536, 65536, 1, 2);
}

/* --- numbers --- */

Test(gpu_attention_edges, scores_of_a_thousand)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {0, 24};
    fa_kernel *kernel = compile_attention(ctx, plain);
    run_attention(kernel, plain, attention_sized(plain, 1, 2, 2, 65, 129), extra, 1);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Integers and a power of two as scale: scores up to 1024 that float32 holds exactly, with many
 * ties and near ties. Then the gate is that of small scores. */
Test(gpu_attention_edges, exact_scores_of_a_thousand)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_attention_spec spec = plain;
    spec.scale = 0.125;
    fa_kernel *kernel = compile_attention(ctx, spec);
    gpu_case g;
    make_attention(&g, spec, attention_sized(spec, 1, 2, 2, 65, 129), NULL, 1);
    float *q = floats_of(&g, "q"), *k = floats_of(&g, "k");
    for (size_t i = 0; i < count_of(&g, "q"); i++)
        q[i] = i % 32 == 0 ? 64 : roundf(q[i]);
    for (size_t i = 0; i < count_of(&g, "k"); i++)
        k[i] = i % 32 == 0 ? 126 + roundf(k[i]) : roundf(k[i]);
    oracle_attention_expect(&g.c);
    g.c.atol = 1e-5;
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Every element of a tensor. */
static void fill_with(gpu_case *g, const char *name, double value)
{
    oracle_tensor *t = &g->c.tensor[gpu_case_index(g, name)];
    for (size_t i = 0; i < t->count; i++)
        oracle_store(t->dtype, (char *)t->host + i * (t->bytes / t->count), &value, 1);
}

/* All scores of a row are one huge, or tiny, number: each key counts as much as any other. */
Test(gpu_attention_edges, K23_huge_and_tiny_scores_are_finite)
{
    static const struct {
        const fa_attention_spec *spec;
        double q, k;
    } cases[] = {{&causal, 0x1p50, -0x1p50}, {&causal, 0x1p50, 0x1p50}, {&causal, 0x1p-60, 0x1p-60},
                 {&half, 0x1p15, -0x1p15},   {&half, 0x1p15, 0x1p15},   {&half, 0x1p-24, 0x1p-24}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fa_attention_spec spec = *cases[i].spec;
        fa_kernel *kernel = compile_attention(ctx, spec);
        gpu_case g;
        make_attention(&g, spec, attention_sized(spec, 1, 1, 1, 20, 70), NULL, 1);
        fill_with(&g, "q", cases[i].q);
        fill_with(&g, "k", cases[i].k);
        oracle_attention_expect(&g.c);
        g.c.atol = spec.dtype == FA_F32 ? 1e-5 : g.c.atol;
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}
