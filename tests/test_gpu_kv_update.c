/* kv_update on a device against the double-precision reference: every form of cache, every choice,
 * awkward shapes. Seldom cases are in test_gpu_kv_update_edges.c. */
#include "golden.h"
#include "gpu_kv_update.h"

static const fa_kv_update_spec canonical = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                                            .angles = FA_ROPE_TABLES,
                                            .head_dim = 32,
                                            .batch = 2,
                                            .tokens = 16,
                                            .heads = 4,
                                            .cache_len = 128};

Test(gpu_kv_update, canonical)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_kv(ctx, canonical);
    for (uint64_t seed = 1; seed <= 5; seed++)
        run_kv(kernel, canonical, canonical, NULL, seed);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

static void use_values(gpu_case *g, const char *name, uint64_t seed)
{
    float *host = g->c.tensor[gpu_case_index(g, name)].host;
    for (size_t i = 0; i < g->c.tensor[gpu_case_index(g, name)].count; i++)
        host[i] = oracle_uniform(seed, i, -1, 1);
}

/* tests/golden/cases.json, kv_update_stacked: the kernel against PyTorch in float64. */
Test(gpu_kv_update, golden_stacked)
{
    static const int64_t positions[] = {8, 0, 3, -1, 2, 1, 7, 5};
    static const char *const inputs[] = {"k_new", "v_new", "cache_k", "cache_v", "cos", "sin"};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kv_update_spec sizes = kv_sized(canonical, 2, 4, 2, 9);
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    gpu_case g;
    make_kv(&g, kv_bake(sizes, 1), sizes, NULL, 5);
    for (uint64_t i = 0; i < 6; i++)
        use_values(&g, inputs[i], 5 + i);
    set_indices(&g, "positions", positions, 8);
    oracle_kv_update_expect(&g.c);
    oracle_tensor *out = &g.c.tensor[gpu_case_index(&g, "out")];
    golden_read("kv_update_stacked.out", out->expected, out->count);
    memset(out->exact, 0, out->count * sizeof *out->exact);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- every choice --- */

/* Each value of each choice, and each pair of choices that meet in the kernel, at least once. */
static const fa_kv_update_spec choices[] = {
    {.rotation = FA_KV_ROTATE_HALF, .head_dim = 64},
    {.dtype = FA_BF16, .rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 64, .in_place = true},
    {.dtype = FA_F16, .head_dim = 64, .head_dim_v = 128, .position_type = FA_I64},
    {.dtype = FA_F16,
     .rotation = FA_KV_ROTATE_HALF,
     .angles = FA_ROPE_TABLES,
     .cache = FA_KV_SLOTS,
     .in_place = true,
     .slot_type = FA_I64,
     .head_dim = 64},
    {.cache = FA_KV_SLOTS, .in_place = true, .cache_layout = FA_KV_HEADS_FIRST, .head_dim = 64},
    {.dtype = FA_BF16,
     .rotation = FA_KV_ROTATE_HALF,
     .cache = FA_KV_BLOCK_TABLE,
     .in_place = true,
     .position_type = FA_I64,
     .head_dim = 128,
     .head_dim_v = 64,
     .rotary_dim = 32},
    {.rotation = FA_KV_ROTATE_INTERLEAVED,
     .angles = FA_ROPE_TABLES,
     .cache = FA_KV_BLOCK_TABLE,
     .cache_layout = FA_KV_HEADS_FIRST,
     .in_place = true,
     .unique = true,
     .head_dim = 80,
     .rotary_dim = 48},
    {.dtype = FA_F16,
     .rotation = FA_KV_ROTATE_INTERLEAVED,
     .cache = FA_KV_SLOTS,
     .position_type = FA_I64,
     .in_place = true,
     .unique = true,
     .head_dim = 64},
    {.rotation = FA_KV_ROTATE_HALF,
     .cache_layout = FA_KV_HEADS_FIRST,
     .head_dim = 64,
     .rotary_dim = 32,
     .base = 500000},
    {.dtype = FA_BF16, .unique = true, .rotation = FA_KV_ROTATE_HALF, .head_dim = 32},
    {.rotation = FA_KV_ROTATE_HALF,
     .in_place = true,
     .head_dim = 64,
     .scaling = {.kind = FA_ROPE_YARN, .factor = 16, .original_max_position = 4}},
    {.rotation = FA_KV_ROTATE_INTERLEAVED,
     .in_place = true,
     .head_dim = 64,
     .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 8}},
    {.rotation = FA_KV_ROTATE_HALF,
     .angles = FA_ROPE_FREQUENCIES,
     .head_dim = 64,
     .scaling = {.attention_factor = 1.25}},
    {.rotation = FA_KV_ROTATE_HALF,
     .in_place = true,
     .head_dim = 64,
     .scaling = {.kind = FA_ROPE_LINEAR, .factor = 4}},
    {.rotation = FA_KV_ROTATE_INTERLEAVED,
     .in_place = true,
     .head_dim = 64,
     .scaling = {.kind = FA_ROPE_NTK, .factor = 4}},
    {.rotation = FA_KV_ROTATE_HALF,
     .in_place = true,
     .head_dim = 64,
     .scaling = {.kind = FA_ROPE_LLAMA3, .factor = 8, .original_max_position = 64}},
};

static void run_choices(int baked)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    enum { COUNT = sizeof choices / sizeof choices[0] };
    fa_kv_update_spec specs[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        specs[i] = kv_bake(kv_sized(choices[i], 3, 13, 5, 24), baked);
    warm_kv(ctx, specs, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        for (int64_t pad = 0; pad <= 8; pad += 8) {
            const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0, 0, 0, 0, 1, pad, 24};
            compile_and_run_kv(ctx, kv_sized(choices[i], 3, 13, 5, 24), baked, extra, i + 1);
        }
    close_device(&f, ctx);
}

Test(gpu_kv_update, every_choice_with_head_dim_baked)
{
    run_choices(1);
}

Test(gpu_kv_update, every_choice_baked)
{
    run_choices(2);
}

/* Nothing baked; what the kernel cannot do without its head_dim is left out. */
Test(gpu_kv_update, everything_dynamic)
{
    static const fa_kv_update_spec specs[] = {
        {.rotation = FA_KV_ROTATE_HALF, .in_place = true},
        {.dtype = FA_F16, .rotation = FA_KV_ROTATE_INTERLEAVED, .angles = FA_ROPE_TABLES},
        {.dtype = FA_BF16, .cache = FA_KV_BLOCK_TABLE, .in_place = true},
    };
    static const int dims[] = {2, 46, 64, 80, 120, 256, 1024};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_kv(ctx, specs, 3);
    for (size_t i = 0; i < 3; i++)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            fa_kv_update_spec sizes = kv_sized(specs[i], 2, 5, 3, 7);
            sizes.head_dim = dims[d];
            compile_and_run_kv(ctx, sizes, 0, NULL, d + 1);
        }
    close_device(&f, ctx);
}

/* --- awkward sizes --- */

/* K and V of different sizes, accesses of every width. */
Test(gpu_kv_update, head_dims)
{
    static const struct {
        int k, v, rotary;
        fa_kv_rotation rotation;
    } dims[] = {{46, 80, 46, FA_KV_ROTATE_HALF},       {80, 46, 80, FA_KV_ROTATE_INTERLEAVED},
                {120, 120, 120, FA_KV_ROTATE_HALF},    {256, 256, 256, FA_KV_ROTATE_INTERLEAVED},
                {67, 1, 34, FA_KV_ROTATE_INTERLEAVED}, {1, 1023, 0, FA_KV_ROTATE_NONE},
                {72, 72, 72, FA_KV_ROTATE_HALF}};
    enum { COUNT = sizeof dims / sizeof dims[0] };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kv_update_spec specs[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        specs[i] = (fa_kv_update_spec){.dtype = (fa_dtype)(i % 3),
                                       .in_place = i % 2,
                                       .rotation = dims[i].rotation,
                                       .head_dim = dims[i].k,
                                       .head_dim_v = dims[i].v,
                                       .rotary_dim = dims[i].rotary};
    warm_kv(ctx, specs, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        static const int shapes[][4] = {{1, 1, 1, 1}, {2, 3, 17, 5}, {5, 19, 2, 11}};
        for (size_t k = 0; k < 3; k++)
            compile_and_run_kv(
                ctx, kv_sized(specs[i], shapes[k][0], shapes[k][1], shapes[k][2], shapes[k][3]), 1,
                NULL, i * 4 + k + 1);
    }
    close_device(&f, ctx);
}

/* Head sizes and page sizes of serving engines, slots drawn at random. */
Test(gpu_kv_update, head_dims_and_pages_with_random_slots)
{
    static const int dims[] = {46, 64, 80, 256}, pages[] = {8, 16, 32};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kv_update_spec specs[4];
    for (size_t d = 0; d < 4; d++)
        specs[d] = (fa_kv_update_spec){.dtype = d % 2 ? FA_F16 : FA_BF16,
                                       .cache = FA_KV_SLOTS,
                                       .in_place = true,
                                       .slot_type = FA_I64,
                                       .head_dim = dims[d]};
    warm_kv(ctx, specs, 4);
    for (size_t d = 0; d < 4; d++)
        for (size_t p = 0; p < 3; p++) {
            const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {20, 0, 0, 0, p != 1, 0};
            compile_and_run_kv(ctx, kv_sized(specs[d], 1, 42, 8, pages[p]), 1, extra, p + 1);
        }
    close_device(&f, ctx);
}

Test(gpu_kv_update, every_page_size)
{
    static const int pages[] = {1, 2, 3, 7, 16, 64, 100, 255, 256};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int layout = 0; layout < 2; layout++)
        for (size_t p = 0; p < sizeof pages / sizeof pages[0]; p++) {
            const fa_kv_update_spec spec = {.dtype = FA_F16,
                                            .rotation = FA_KV_ROTATE_HALF,
                                            .cache = FA_KV_BLOCK_TABLE,
                                            .cache_layout = (fa_kv_layout)layout,
                                            .in_place = true,
                                            .head_dim = 16};
            compile_and_run_kv(ctx, kv_sized(spec, 3, 40, 2, pages[p]), 1, NULL, p + 1);
        }
    close_device(&f, ctx);
}

Test(gpu_kv_update, K14_many_heads_many_batches_many_tokens)
{
    static const int shapes[][4] = {
        {1, 1, 70000, 1}, {70000, 1, 1, 2}, {1, 70001, 1, 70001}, {65536, 2, 1, 3}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int in_place = 0; in_place < 2; in_place++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            /* To compare tens of thousands of tokens with each other would take long. */
            const bool unique = shapes[i][1] > 1000;
            if (unique && !in_place)
                continue;
            const fa_kv_update_spec spec = {.dtype = FA_F16,
                                            .rotation = FA_KV_ROTATE_HALF,
                                            .in_place = in_place != 0,
                                            .unique = unique,
                                            .head_dim = 8};
            compile_and_run_kv(
                ctx, kv_sized(spec, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]), 1,
                NULL, i + 1);
        }
    close_device(&f, ctx);
}
