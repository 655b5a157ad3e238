/* lowrank_kv on a device: every awkward rank, model_dim and head, and any number of tokens. */
#include "gpu_lowrank_kv.h"

static const int model_dims[] = {1, 7, 64, 255, 256, 257, 1000, 4096};
/* heads, head_dim, head_dim_v if it is another: products that are no multiple of a tile, of 32, of 2. */
static const int heads[][3] = {{1, 1, 0},   {1, 32, 0},  {3, 32, 0}, {1, 130, 0}, {13, 10, 0},
                               {1, 128, 0}, {8, 128, 0}, {5, 7, 3},  {2, 64, 96}, {16, 128, 0}};
enum { HEADS = sizeof heads / sizeof heads[0] };

/* Each rank, with one of the other sizes each: large ones with small ones. Over the threads of a block;
 * no multiple of its warps; of the terms of a step. `other`: each with its other type. */
static void run_ranks(bool other)
{
    static const int ranks[][3] = {{512, 0, 3}, {256, 1, 5}, {129, 2, 4}, {128, 4, 1},
                                   {127, 5, 2}, {64, 3, 8},  {48, 6, 0},  {33, 4, 7},
                                   {32, 2, 6},  {31, 5, 9},  {17, 6, 3},  {1, 7, 9}};
    fa_lowrank_kv_spec specs[12];
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 12; i++)
        specs[i] = (fa_lowrank_kv_spec){.dtype = (i % 2 != 0) != other ? FA_F32 : FA_BF16,
                                        .rank = ranks[i][0],
                                        .model_dim = model_dims[ranks[i][1]],
                                        .heads = heads[ranks[i][2]][0],
                                        .head_dim = heads[ranks[i][2]][1],
                                        .head_dim_v = heads[ranks[i][2]][2],
                                        .batch = 1,
                                        .seqlen = 19};
    warm_lowrank(ctx, specs, 12, 2);
    for (size_t i = 0; i < 12; i++)
        compile_and_run_lowrank(ctx, specs[i], 2, NULL, i + 1);
    close_device(&f, ctx);
}

Test(gpu_lowrank_kv_sizes, ranks)
{
    run_ranks(false);
}

Test(gpu_lowrank_kv_sizes, ranks_in_the_other_type)
{
    run_ranks(true);
}

/* One kernel for every model_dim, heads and head_dim. */
static void run_dynamic(fa_dtype dtype)
{
    const fa_lowrank_kv_spec spec = {.dtype = dtype, .rank = 33, .batch = 1, .seqlen = 17};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    for (size_t i = 0; i < 8 + HEADS; i++) {
        fa_lowrank_kv_spec sizes = spec;
        const int *head = heads[i < 8 ? 1 : i - 8];
        if (head[2])
            continue; /* a kernel of its own */
        sizes.model_dim = i < 8 ? model_dims[i] : 40;
        sizes.heads = head[0];
        sizes.head_dim = head[1];
        run_lowrank(kernel, spec, sizes, NULL, i + 1);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_lowrank_kv_sizes, dynamic_sizes_f32)
{
    run_dynamic(FA_F32);
}

Test(gpu_lowrank_kv_sizes, dynamic_sizes_f16)
{
    run_dynamic(FA_F16);
}

/* One kernel for every number of tokens: it goes over from small blocks to large ones. */
static void run_token_counts(fa_lowrank_kv_spec spec, const int (*shapes)[2], size_t count)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    for (size_t i = 0; i < count; i++) {
        fa_lowrank_kv_spec sizes = spec;
        sizes.batch = shapes[i][0];
        sizes.seqlen = shapes[i][1];
        run_lowrank(kernel, lowrank_bake(spec, 1), sizes, NULL, i + 1);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_lowrank_kv_sizes, few_tokens)
{
    static const int shapes[][2] = {{1, 1},  {1, 3},  {3, 1},  {2, 8}, {1, 15},
                                    {1, 16}, {1, 17}, {4, 96}, {7, 11}};
    run_token_counts((fa_lowrank_kv_spec){.model_dim = 96, .rank = 20, .heads = 2, .head_dim = 16},
                     shapes, 9);
}

Test(gpu_lowrank_kv_sizes, many_tokens)
{
    static const int shapes[][2] = {{1, 8192}, {1, 100003}, {8192, 1}};
    fa_lowrank_kv_spec spec = {.model_dim = 24, .rank = 130, .heads = 1, .head_dim = 16};
    run_token_counts(spec, shapes, 3);
    spec.plan = FA_LOWRANK_TWO_LAUNCHES;
    spec.dtype = FA_BF16;
    run_token_counts(spec, shapes, 3);
}

Test(gpu_lowrank_kv_sizes, many_tokens_in_two_launches)
{
    static const int shapes[][2] = {{3, 411}, {1, 128}, {1, 1}};
    run_token_counts((fa_lowrank_kv_spec){.dtype = FA_BF16,
                                          .plan = FA_LOWRANK_TWO_LAUNCHES,
                                          .model_dim = 24,
                                          .rank = 130,
                                          .heads = 1,
                                          .head_dim = 16},
                     shapes, 3);
}

/* The tiles that many tokens are cut into, and their edges: 52 tokens are left of 64 or 128. */
Test(gpu_lowrank_kv_sizes, large_tiles)
{
    static const fa_lowrank_kv_spec cases[] = {
        {.form = FA_LOWRANK_DOWN, .model_dim = 34, .rank = 136, .dtype = FA_BF16},
        {.form = FA_LOWRANK_DOWN, .model_dim = 34, .rank = 70, .norm = FA_ROPE_RMS_NORM},
        {.form = FA_LOWRANK_UP, .rank = 72, .heads = 2, .head_dim = 65, .dtype = FA_F16},
        {.plan = FA_LOWRANK_ONE_LAUNCH,
         .model_dim = 34,
         .rank = 70,
         .heads = 1,
         .head_dim = 50,
         .norm = FA_ROPE_RMS_NORM},
        {.plan = FA_LOWRANK_ONE_LAUNCH,
         .model_dim = 34,
         .rank = 72,
         .heads = 1,
         .head_dim = 50,
         .dtype = FA_BF16},
    };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_lowrank_kv_spec sizes = cases[i];
        sizes.batch = 1;
        sizes.seqlen = 16 * 128 + 52;
        compile_and_run_lowrank(ctx, sizes, 2, NULL, i + 1);
    }
    close_device(&f, ctx);
}
