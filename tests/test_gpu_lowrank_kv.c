/* lowrank_kv on a device against the double-precision reference: the canonical case, every form,
 * plan and policy. Awkward sizes are in test_gpu_lowrank_kv_sizes.c, seldom cases in
 * test_gpu_lowrank_kv_edges.c. */
#include "golden.h"
#include "gpu_lowrank_kv.h"

/* atol = rtol = 1e-4 on unscaled inputs, every element, five seeds: plain serial float32 sums miss
 * it about one run in two. */
Test(gpu_lowrank_kv, canonical)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, canonical);
    fa_kernel_info_t info = {.size = sizeof info};
    size_t workspace = 1;
    OK(fa_kernel_info(kernel, &info));
    cr_expect(strstr(info.plan, "one launch"), "%s", info.plan);
    cr_expect_not(strstr(info.plan, "two launches"), "%s", info.plan);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        gpu_case g;
        make_lowrank(&g, canonical, canonical, NULL, seed);
        cr_assert(g.c.atol <= 1e-4 && g.c.rtol <= 1e-4);
        OK(fa_workspace_size(kernel, &g.c.args, &workspace));
        cr_expect_eq(workspace, 0u, "one launch, without intermediates");
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Every policy that promises float32 holds the same gate, and the default one in two launches too. */
Test(gpu_lowrank_kv, canonical_by_every_accurate_policy)
{
    static const fa_lowrank_sums sums[] = {FA_LOWRANK_SUMS_CHUNKED, FA_LOWRANK_SUMS_TREE,
                                           FA_LOWRANK_SUMS_DOUBLE, FA_LOWRANK_SUMS_DEFAULT};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 4; i++) {
        fa_lowrank_kv_spec spec = canonical;
        spec.sums = sums[i];
        spec.plan = sums[i] ? FA_LOWRANK_ONE_LAUNCH : FA_LOWRANK_TWO_LAUNCHES;
        fa_kernel *kernel = compile_lowrank(ctx, spec);
        for (uint64_t seed = 1; seed <= 5; seed++)
            run_lowrank(kernel, spec, spec, NULL, seed);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* TF32 has its own, wider gate, and would fail that of float32. */
Test(gpu_lowrank_kv, tf32_is_not_accurate_enough)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_lowrank_kv_spec spec = canonical;
    spec.sums = FA_LOWRANK_SUMS_TF32;
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    gpu_case g;
    oracle_verdict v;
    make_lowrank(&g, spec, spec, NULL, 1);
    gpu_case_run(&g, kernel);
    g.c.atol = g.c.rtol = 1e-4;
    cr_expect_gt(gpu_case_wrong(&g, gpu_case_index(&g, "out"), &v), 0u);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* tests/golden/cases.json, lowrank_kv: the kernel against PyTorch in float64. */
Test(gpu_lowrank_kv, golden)
{
    static const char *const inputs[] = {"hidden", "w_down", "w_up_k", "w_up_v"};
    const fa_lowrank_kv_spec spec = {
        .model_dim = 65, .rank = 17, .heads = 2, .head_dim = 16, .batch = 2, .seqlen = 5};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    gpu_case g;
    make_lowrank(&g, spec, spec, NULL, 11);
    for (uint64_t k = 0; k < 4; k++) {
        oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, inputs[k])];
        for (size_t i = 0; i < t->count; i++)
            ((float *)t->host)[i] = oracle_uniform(11 + k, i, k ? -1 : -3, k ? 1 : 3);
    }
    oracle_tensor *out = &g.c.tensor[gpu_case_index(&g, "out")];
    oracle_lowrank_kv_expect(&g.c);
    golden_read("lowrank_kv.out", out->expected, out->count);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- every choice --- */

#define SIZES .model_dim = 72, .rank = 40, .heads = 3, .head_dim = 24, .batch = 2, .seqlen = 21
#define UP SIZES, .form = FA_LOWRANK_UP
#define DOWN SIZES, .form = FA_LOWRANK_DOWN
#define TWO SIZES, .plan = FA_LOWRANK_TWO_LAUNCHES
#define HALF .rotation = FA_KV_ROTATE_HALF
#define PAIRS .rotation = FA_KV_ROTATE_INTERLEAVED

/* Each value of each choice, and each pair of choices that meet in the kernel, at least once; those
 * of test_gpu_lowrank_kv_edges.c count. */
static const fa_lowrank_kv_spec choices[] = {
    {TWO, .dtype = FA_BF16, .norm = FA_ROPE_RMS_NORM_F32, .to_cache = true, .cache = FA_KV_SLOTS},
    {TWO, .to_cache = true},
    {SIZES, .norm = FA_ROPE_RMS_NORM, .to_cache = true},
    {SIZES, .plan = FA_LOWRANK_ONE_LAUNCH, .dtype = FA_F16, .to_cache = true,
     .cache = FA_KV_BLOCK_TABLE, .position_type = FA_I64, HALF, .rope_dim = 16},
    {DOWN, .norm = FA_ROPE_RMS_NORM, .norm_eps = 1e-3},
    {UP, .dtype = FA_BF16, .sums = FA_LOWRANK_SUMS_CHUNKED},
    {UP, .dtype = FA_BF16, .sums = FA_LOWRANK_SUMS_TREE},
    {DOWN, .dtype = FA_F16, .sums = FA_LOWRANK_SUMS_DOUBLE},
    {UP, HALF, .rope_dim = 16},
    {UP, PAIRS, .rope_dim = 16, .rope_once = true, .dtype = FA_BF16, .head_dim_v = 16},
    {TWO, HALF, .rope_dim = 8, .angles = FA_ROPE_TABLES},
    {UP, PAIRS, .rope_dim = 8, .angles = FA_ROPE_FREQUENCIES, .sums = FA_LOWRANK_SUMS_TF32},
    {UP, .rope_dim = 7},
    {UP, .to_cache = true, .cache = FA_KV_SLOTS, .slot_type = FA_I64, .unique = true,
     .dtype = FA_F16, .cache_layout = FA_KV_HEADS_FIRST},
    {DOWN, .to_cache = true, .cache = FA_KV_BLOCK_TABLE, PAIRS, .rope_dim = 16, .dtype = FA_BF16,
     .norm = FA_ROPE_RMS_NORM},
    {DOWN, .to_cache = true, .cache = FA_KV_SLOTS, HALF, .rope_dim = 16, .angles = FA_ROPE_TABLES,
     .position_type = FA_I64},
    {UP, .to_cache = true, HALF, .rope_dim = 16, .rope_once = true,
     .scaling = {.kind = FA_ROPE_YARN, .factor = 16, .original_max_position = 4}},
    {UP, HALF, .rope_dim = 16,
     .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 4, .original_max_position = 8}},
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

/* Entries, pages and tables too small for all tokens; positions from 3 on; 100 tokens in sight. */
static void run_choice(fa_context *ctx, fa_lowrank_kv_spec sizes, int baked, uint64_t seed)
{
    for (int64_t pad = 0; pad <= 8; pad += 8) {
        const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {29, 5, 0, 0, 1, pad, 3, 100};
        compile_and_run_lowrank(ctx, sizes, baked, extra, seed);
    }
}

static void run_choices(int baked)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_lowrank(ctx, choices, CHOICES, baked);
    for (size_t i = 0; i < CHOICES; i++)
        run_choice(ctx, choices[i], baked, i + 1);
    close_device(&f, ctx);
}

Test(gpu_lowrank_kv, every_choice_with_the_model_baked)
{
    run_choices(1);
}

Test(gpu_lowrank_kv, every_choice_baked)
{
    run_choices(2);
}

Test(gpu_lowrank_kv, everything_dynamic)
{
    static const fa_lowrank_kv_spec some[] = {
        {SIZES}, {UP, .dtype = FA_F16, HALF, .rope_dim = 16, .to_cache = true}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_lowrank(ctx, some, 2, 0);
    for (size_t i = 0; i < 2; i++)
        run_choice(ctx, some[i], 0, i + 1);
    close_device(&f, ctx);
}
