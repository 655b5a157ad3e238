/* lowrank_kv on a device: every awkward rank, model_dim and head with every plan, and any number of
 * tokens. */
#include "gpu_lowrank_kv.h"

/* A kernel, and what is given at its launches. */
typedef struct ranked {
    fa_lowrank_kv_spec spec;
    int shape[3][5]; /* batch, seqlen, model_dim, heads, head_dim; 0: baked */
} ranked;

#define ONE .plan = FA_LOWRANK_ONE_LAUNCH
#define TWO .plan = FA_LOWRANK_TWO_LAUNCHES

/* Each rank; each model_dim, number of columns and number of tokens with both plans and with both kinds of
 * types: no multiples of a tile, of 32, of 2; over the threads of a block; large with small. */
static const ranked ranks[] = {
    {{ONE, .rank = 1}, {{1, 1, 7, 1, 1}, {1, 3, 1000, 13, 10}, {4, 96, 1, 8, 4}}},
    {{TWO, .rank = 17, .batch = 4, .seqlen = 96}, {{0, 0, 7, 3, 32}, {0, 0, 64, 1, 1}}},
    {{ONE, .rank = 31, .tile_tokens = 32, .dtype = FA_BF16},
     {{3, 1, 255, 4, 8}, {1, 1, 7, 16, 64}, {1, 384, 64, 3, 32}}},
    {{ONE, .rank = 32}, {{1, 1, 256, 16, 128}, {1, 3, 256, 4, 32}}},
    {{ONE, .rank = 33, .shares = 3},
     {{1, 3, 64, 8, 128}, {1, 1, 255, 1, 32}, {2, 192, 257, 2, 48}}},
    {{TWO, .rank = 48, .dtype = FA_BF16, .batch = 1, .seqlen = 384},
     {{0, 0, 64, 13, 10}, {0, 0, 1, 1, 32}, {0, 0, 7, 1, 1}}},
    {{ONE, .rank = 64, .dtype = FA_F16},
     {{1, 1, 1000, 1, 130}, {3, 1, 257, 1, 1}, {1, 17, 4096, 1, 32}}},
    {{ONE, .rank = 127, .tile_tokens = 32, .shares = 2}, {{1, 3, 64, 1, 1}, {3, 1, 1000, 3, 32}}},
    {{TWO, .rank = 128, .batch = 1, .seqlen = 3},
     {{0, 0, 1, 5, 26}, {0, 0, 255, 1, 32}, {0, 0, 1000, 8, 128}}},
    {{ONE, .rank = 129, .dtype = FA_BF16, .shares = 5}, {{1, 3, 1, 3, 32}, {1, 1, 7, 8, 128}}},
    {{TWO, .rank = 256, .dtype = FA_BF16, .batch = 3, .seqlen = 1},
     {{0, 0, 255, 3, 32}, {0, 0, 257, 8, 128}, {0, 0, 1000, 2, 16}}},
    {{ONE, .rank = 257, .dtype = FA_F16, .norm = FA_ROPE_RMS_NORM},
     {{1, 3, 255, 5, 26}, {3, 1, 64, 1, 32}}},
    {{ONE, .rank = 512}, {{1, 3, 1000, 2, 16}, {1, 1, 7, 4, 8}}},
    {{TWO, .rank = 512, .batch = 1, .seqlen = 1, .model_dim = 257, .heads = 5, .head_dim = 7,
      .head_dim_v = 3},
     {{0}}},
};
enum { RANKS = sizeof ranks / sizeof ranks[0] };

static void run_ranked(fa_context *ctx, fa_lowrank_kv_spec spec, const int (*shape)[5],
                       uint64_t seed)
{
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    for (size_t i = 0; i < 3 && (i == 0 || shape[i][4]); i++) {
        fa_lowrank_kv_spec sizes = spec;
        if (!spec.batch) {
            sizes.batch = shape[i][0];
            sizes.seqlen = shape[i][1];
        }
        if (!spec.model_dim) {
            sizes.model_dim = shape[i][2];
            sizes.heads = shape[i][3];
            sizes.head_dim = shape[i][4];
        }
        run_lowrank(kernel, spec, sizes, NULL, seed + i);
    }
    fa_kernel_release(kernel);
}

/* `other`: each with its other type and its other plan. */
static void run_ranks(bool other)
{
    fa_spec specs[RANKS];
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < RANKS; i++) {
        fa_lowrank_kv_spec s = ranks[i].spec;
        if (other) {
            s.dtype = s.dtype == FA_F32 ? FA_BF16 : FA_F32;
            s.plan =
                s.plan == FA_LOWRANK_ONE_LAUNCH ? FA_LOWRANK_TWO_LAUNCHES : FA_LOWRANK_ONE_LAUNCH;
        }
        specs[i] = lowrank_spec(s);
    }
    cr_assert_eq(fa_warm(ctx, specs, RANKS, NULL, NULL), FA_OK, "%s", fa_last_error());
    for (size_t i = 0; i < RANKS; i++)
        run_ranked(ctx, specs[i].lowrank_kv, ranks[i].shape, 10 * i + 1);
    close_device(&f, ctx);
}

Test(gpu_lowrank_kv_sizes, ranks)
{
    run_ranks(false);
}

Test(gpu_lowrank_kv_sizes, ranks_in_the_other_type_and_plan)
{
    run_ranks(true);
}

/* Where a block has no room for the latent of its tokens, one launch is no way of auto, which it would
 * be by `shares`. */
Test(gpu_lowrank_kv_sizes, a_rank_that_one_launch_has_no_room_for)
{
    fa_lowrank_kv_spec spec = {
        .batch = 1, .seqlen = 3, .model_dim = 8, .rank = 8192, .heads = 1, .head_dim = 8};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (spec.shares = 0; spec.shares < 2; spec.shares++) {
        fa_kernel *kernel = compile_lowrank(ctx, spec);
        fa_kernel_info_t info = {.size = sizeof info};
        OK(fa_kernel_info(kernel, &info));
        cr_expect(strstr(info.plan, "two launches"), "%s", info.plan);
        run_lowrank(kernel, spec, spec, NULL, 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* One kernel for every number of tokens: unless it is one launch by the spec, it goes over from one
 * launch to two, or from small tiles to large ones. */
static void run_token_counts(fa_lowrank_kv_spec spec, const int (*shapes)[2], size_t count)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    fa_kernel_info_t info = {.size = sizeof info};
    OK(fa_kernel_info(kernel, &info));
    cr_expect_eq(strstr(info.plan, "tokens on") != NULL, spec.plan != FA_LOWRANK_ONE_LAUNCH,
                 "one way for few and one for many: %s", info.plan);
    for (size_t i = 0; i < count; i++) {
        fa_lowrank_kv_spec sizes = spec;
        sizes.batch = shapes[i][0];
        sizes.seqlen = shapes[i][1];
        run_lowrank(kernel, lowrank_bake(spec, 1), sizes, NULL, i + 1);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* One of few terms may be much larger than the others, and so may its rounding. */
Test(gpu_lowrank_kv_sizes, few_terms_in_16_bits)
{
    static const fa_lowrank_kv_spec specs[] = {
        {TWO, .dtype = FA_F16, .model_dim = 1, .rank = 64, .heads = 5, .head_dim = 33},
        {ONE, .dtype = FA_BF16, .model_dim = 8, .rank = 3, .heads = 5, .head_dim = 24},
        {ONE, .dtype = FA_F16, .model_dim = 65, .rank = 1, .heads = 5, .head_dim = 65}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 3; i++) {
        fa_lowrank_kv_spec sizes = specs[i];
        fa_kernel *kernel = compile_lowrank(ctx, sizes);
        sizes.batch = 2;
        sizes.seqlen = 65;
        for (uint64_t seed = 1; seed <= 3; seed++)
            run_lowrank(kernel, specs[i], sizes, NULL, seed);
        fa_kernel_release(kernel);
    }
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
    spec.plan = FA_LOWRANK_ONE_LAUNCH;
    run_token_counts(spec, shapes, 3);
    spec.dtype = FA_F32;
    run_token_counts(spec, shapes, 3);
}

/* Of so few terms that the emulator computes all of them. */
#define FEW_TERMS .model_dim = 8, .rank = 4, .heads = 1, .head_dim = 4
static const int many[][2] = {{8192, 1}, {1, 100003}};

Test(gpu_lowrank_kv_sizes, many_tokens_of_few_terms_in_one_launch)
{
    run_token_counts((fa_lowrank_kv_spec){ONE, FEW_TERMS, .sums = FA_LOWRANK_SUMS_CHUNKED}, many,
                     2);
}

Test(gpu_lowrank_kv_sizes, many_tokens_of_few_terms_in_two_launches)
{
    run_token_counts((fa_lowrank_kv_spec){TWO, FEW_TERMS}, many, 2);
}

Test(gpu_lowrank_kv_sizes, many_tokens_in_two_launches)
{
    static const int shapes[][2] = {{3, 700}, {1, 128}, {1, 1}};
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
