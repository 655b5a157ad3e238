/* cross_attention on a device against the double-precision reference: the canonical case by every
 * plan, PyTorch's results, every choice, and forms that must agree. Seldom cases are in
 * test_gpu_cross_attention_edges.c. */
#include "cross_attention_golden.h"
#include "gpu_cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

/* --- the canonical case: atol = rtol = 1e-5 for every element --- */

/* Of inputs N(0, 1) and 4 N(0, 1). */
static void run_canonical(fa_cross_plan plan, fa_kv_rotation rotation, uint64_t seeds)
{
    fa_cross_attention_spec canonical = {CROSS_CANONICAL, .plan = plan};
    canonical.rotation = rotation;
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_cross(ctx, canonical);
    for (uint64_t seed = 1; seed <= seeds; seed++)
        for (int64_t magnitude = 1; magnitude <= 4; magnitude += 3) {
            const int64_t extra[ORACLE_CROSS_EXTRA_COUNT] = {0, magnitude, 1};
            gpu_case g;
            make_cross(&g, canonical, canonical, extra, seed);
            cr_assert(g.c.atol <= 1e-5 && g.c.rtol <= 1e-5);
            gpu_case_run(&g, kernel);
            gpu_case_free(&g);
        }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_cross_attention, canonical)
{
    run_canonical(FA_CROSS_ONE_LAUNCH, PAIRS, 5);
    run_canonical(FA_CROSS_FEW_LAUNCHES, PAIRS, 5);
    run_canonical(FA_CROSS_ONE_LAUNCH, HALF, 2);
    run_canonical(FA_CROSS_FEW_LAUNCHES, HALF, 2);
}

/* Side by side, each with a style of its own: test_cli.py verifies both plans with pairs. */
Test(gpu_cross_attention, canonical_once_in_one_launch)
{
    run_canonical(FA_CROSS_ONE_LAUNCH, PAIRS, 1);
}

Test(gpu_cross_attention, canonical_once_in_few_launches)
{
    run_canonical(FA_CROSS_FEW_LAUNCHES, HALF, 1);
}

/* --- tests/golden/cases.json: the kernel against PyTorch in float64 --- */

static void run_golden(fa_context *ctx, fa_kv_rotation rotation, fa_cross_plan plan)
{
    const fa_cross_attention_spec sizes = golden_cross_spec(rotation).cross_attention;
    fa_cross_attention_spec spec = cross_sized(sizes, 0, 0, 0, 0);
    spec.plan = plan;
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    make_cross(&g, spec, sizes, NULL, 1);
    golden_cross_fill(&g.c);
    oracle_tensor *out = tensor_of(&g, "out");
    free(out->expected);
    out->expected = golden_cross_read(&g.c);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention, golden)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_golden(ctx, PAIRS, FA_CROSS_ONE_LAUNCH);
    run_golden(ctx, HALF, FA_CROSS_FEW_LAUNCHES);
    close_device(&f, ctx);
}

/* --- every choice --- */

/* Each value of each choice at least once, and pairs that meet in the kernel. */
static const fa_cross_attention_spec choices[] = {
    {CROSS_HEADS, .plan = FA_CROSS_ONE_LAUNCH},
    {CROSS_HEADS, .rotation = HALF, .plan = FA_CROSS_ONE_LAUNCH, .bias = true, .bias_out = true},
    {CROSS_HEADS, .rotation = HALF, .rotary_dim = 16, .mask = FA_ATTENTION_CAUSAL},
    {CROSS_HEADS, .rotation = PAIRS, .rotary_dim = 8, .plan = FA_CROSS_ONE_LAUNCH,
     .mask = FA_ATTENTION_CAUSAL_TOP_LEFT, .scale = 0.5},
    {CROSS_HEADS, .rotation = PAIRS, .dtype = FA_F16, .bias = true},
    {CROSS_HEADS, .rotation = PAIRS, .dtype = FA_F16, .plan = FA_CROSS_ONE_LAUNCH},
    {CROSS_HEADS, .rotation = HALF, .dtype = FA_BF16, .bias_out = true},
    {CROSS_HEADS, .rotation = HALF, .dtype = FA_BF16, .plan = FA_CROSS_ONE_LAUNCH, .bias = true,
     .mask = FA_ATTENTION_CAUSAL},
    {CROSS_HEADS, .rotation = PAIRS, .angles = FA_ROPE_TABLES},
    {CROSS_HEADS, .rotation = HALF, .angles = FA_ROPE_TABLES, .plan = FA_CROSS_ONE_LAUNCH,
     .dtype = FA_F16},
    {CROSS_HEADS, .rotation = PAIRS, .angles = FA_ROPE_FREQUENCIES, .plan = FA_CROSS_ONE_LAUNCH},
    {CROSS_HEADS, .rotation = HALF, .base = 500000,
     .scaling = {.kind = FA_ROPE_YARN, .factor = 16, .original_max_position = 16}},
    {CROSS_HEADS, .rotation = PAIRS,
     .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 64}},
    {CROSS_HEADS, .form = FA_CROSS_KEYS, .rotation = PAIRS, .bias = true},
    {CROSS_HEADS, .form = FA_CROSS_KEYS, .rotation = HALF, .dtype = FA_BF16},
    {CROSS_HEADS, .form = FA_CROSS_QUERIES, .rotation = HALF, .bias = true, .bias_out = true},
    {CROSS_HEADS, .form = FA_CROSS_QUERIES, .rotation = PAIRS, .dtype = FA_F16},
};

/* Far from position 0, so that offsets count; of queries and keys differently. */
static const int64_t shifted[ORACLE_CROSS_EXTRA_COUNT] = {0, 1, 1, 0, 37, 5, 0, 4096};

static void run_choices(size_t first, size_t step)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_cross_attention_spec specs[COUNT(choices)];
    size_t count = 0;
    for (size_t i = first; i < COUNT(choices); i += step)
        specs[count++] = choices[i];
    warm_cross(ctx, specs, count);
    for (size_t i = 0; i < count; i++) {
        fa_kernel *kernel = compile_cross(ctx, specs[i]);
        run_cross(kernel, specs[i], cross_sized(specs[i], 2, 21, 35, 72), shifted, i + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_cross_attention, every_choice)
{
    run_choices(0, 1);
}

Test(gpu_cross_attention, some_choices)
{
    run_choices(1, 5);
}

/* 4 and 8; the canonical case has 1, those of CROSS_DYNAMIC have 2. */
Test(gpu_cross_attention, K52_head_ratios)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_cross_attention_spec specs[2];
    for (int i = 0; i < 2; i++)
        specs[i] = (fa_cross_attention_spec){.rotation = PAIRS,
                                             .heads_q = 8,
                                             .heads_k = 2 >> i,
                                             .head_dim = 16,
                                             .plan = (fa_cross_plan)(1 + i)};
    warm_cross(ctx, specs, 2);
    for (int i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_cross(ctx, specs[i]);
        run_cross(kernel, specs[i], cross_sized(specs[i], 2, 19, 37, 48), NULL, (uint64_t)i + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* The streams are one: nothing is copied. */
static const int64_t self[ORACLE_CROSS_EXTRA_COUNT] = {0, 1, 1, 1};

Test(gpu_cross_attention, self_attention)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_cross(ctx, cross_dynamic[i]);
        run_cross(kernel, cross_dynamic[i], cross_sized(cross_dynamic[i], 2, 33, 33, 64), self, 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Queries see the keys up to themselves: of several tiles of both. */
Test(gpu_cross_attention, causal_self_attention)
{
    static const fa_cross_attention_spec specs[] = {
        {CROSS_DYNAMIC, .plan = FA_CROSS_ONE_LAUNCH, .mask = FA_ATTENTION_CAUSAL},
        {CROSS_DYNAMIC, .plan = FA_CROSS_FEW_LAUNCHES, .mask = FA_ATTENTION_CAUSAL},
        {CROSS_DYNAMIC, .plan = FA_CROSS_ONE_LAUNCH, .mask = FA_ATTENTION_CAUSAL, .dtype = FA_BF16},
        {CROSS_DYNAMIC, .plan = FA_CROSS_FEW_LAUNCHES, .mask = FA_ATTENTION_CAUSAL,
         .dtype = FA_BF16}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_cross(ctx, specs, COUNT(specs));
    for (size_t i = 0; i < COUNT(specs); i++) {
        const int tokens = specs[i].dtype == FA_F32 ? 70 : 150;
        fa_kernel *kernel = compile_cross(ctx, specs[i]);
        run_cross(kernel, specs[i], cross_sized(specs[i], 2, tokens, tokens, 64), self, i + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- keys that are kept --- */

/* Copies an input of one case to another. */
static void share(gpu_case *to, const char *name, gpu_case *from, const char *source)
{
    oracle_tensor *a = tensor_of(to, name);
    const oracle_tensor *b = tensor_of(from, source);
    cr_assert_eq(a->bytes, b->bytes);
    memcpy(a->host, b->output ? gpu_case_result(from, source) : b->host, b->bytes);
}

/* Keys and values by themselves, and queries with what came of them, give what the whole gives. */
static void run_forms(fa_context *ctx, fa_cross_attention_spec whole, fa_cross_attention_spec sizes)
{
    static const char *const of_keys[] = {"x_kv", "w_k", "w_v", "b_k", "b_v"},
                             *const of_queries[] = {"x_query", "w_q", "w_out", "b_q", "b_out"};
    fa_cross_attention_spec spec[3] = {whole, whole, whole};
    fa_kernel *kernel[3];
    gpu_case g[3];
    for (int form = 0; form < 3; form++) {
        spec[form].form = sizes.form = (fa_cross_form)form;
        spec[form].plan = form ? FA_CROSS_AUTO : FA_CROSS_FEW_LAUNCHES;
        kernel[form] = compile_cross(ctx, spec[form]);
        make_cross(&g[form], spec[form], sizes, shifted, 7);
    }
    gpu_case *all = &g[FA_CROSS_WHOLE], *keys = &g[FA_CROSS_KEYS], *queries = &g[FA_CROSS_QUERIES];
    gpu_case_run(all, kernel[FA_CROSS_WHOLE]);
    for (size_t i = 0; i < COUNT(of_keys); i++)
        share(keys, of_keys[i], all, of_keys[i]);
    oracle_cross_attention_expect(&keys->c);
    gpu_case_run(keys, kernel[FA_CROSS_KEYS]);
    for (size_t i = 0; i < COUNT(of_queries); i++)
        share(queries, of_queries[i], all, of_queries[i]);
    share(queries, "k", keys, "k");
    share(queries, "v", keys, "v");
    oracle_cross_attention_expect(&queries->c);
    gpu_case_run(queries, kernel[FA_CROSS_QUERIES]);
    const oracle_verdict v =
        oracle_compare(&all->c, tensor_of(all, "out"), gpu_case_result(queries, "out"));
    cr_expect_eq(v.bad, 0u, "%zu of the whole's elements are others", v.bad);
    for (int form = 0; form < 3; form++) {
        gpu_case_free(&g[form]);
        fa_kernel_release(kernel[form]);
    }
}

Test(gpu_cross_attention, kept_keys_give_the_whole)
{
    const fa_cross_attention_spec whole = {CROSS_DYNAMIC, .bias = true, .bias_out = true};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_forms(ctx, whole, cross_sized(whole, 2, 21, 70, 72));
    close_device(&f, ctx);
}

/* Sizes are baked, so that each form may lay out its work by itself. */
Test(gpu_cross_attention, kept_keys_give_the_whole_with_sizes_baked)
{
    static const fa_cross_attention_spec wholes[] = {
        {CROSS_CANONICAL, .bias = true, .bias_out = true},
        {CROSS_HEADS, .dtype = FA_BF16, .rotation = HALF, .bias = true, .bias_out = true,
         .model_dim = 512, .batch = 1, .seqlen_q = 1, .seqlen_k = 300}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(wholes); i++)
        run_forms(ctx, wholes[i], wholes[i]);
    close_device(&f, ctx);
}
