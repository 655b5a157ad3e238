/* attention on a device against the double-precision reference: every type, mask and way to cut the
 * work, ragged lengths, sizes of heads. Seldom cases are in test_gpu_attention_edges.c. */
#include "golden.h"
#include "gpu_attention.h"

/* The attention of the canonical cross-attention block. */
static const fa_attention_spec canonical = {.head_dim = 32,
                                            .lse = true,
                                            .batch = 4,
                                            .heads_q = 8,
                                            .heads_k = 8,
                                            .seqlen_q = 64,
                                            .seqlen_k = 128};

Test(gpu_attention, canonical)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, canonical);
    for (uint64_t seed = 1; seed <= 5; seed++)
        run_attention(kernel, canonical, canonical, NULL, seed);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- tests/golden/cases.json: the kernel against PyTorch in float64 --- */

static void expect_golden(oracle_case *c, const char *name, const char *output)
{
    char path[80];
    const oracle_tensor *t = oracle_find_tensor(c, output);
    snprintf(path, sizeof path, "attention_%s.%s", name, output);
    golden_read(path, t->expected, t->count);
}

static void run_golden(fa_context *ctx, const char *name, fa_attention_spec sizes, uint64_t seed,
                       int64_t magnitude)
{
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {0, magnitude};
    sizes.heads_first = sizes.lse = true;
    fa_kernel *kernel = compile_attention(ctx, sizes);
    gpu_case g;
    make_attention(&g, sizes, sizes, extra, seed);
    expect_golden(&g.c, name, "out");
    expect_golden(&g.c, name, "lse");
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_attention, golden)
{
    static const char *const names[] = {"full", "causal_bottom_right", "causal_top_left"};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 3; i++)
        run_golden(
            ctx, names[i],
            attention_sized((fa_attention_spec){.mask = (fa_attention_mask)i, .head_dim = 40}, 2, 6,
                            2, 7, 13),
            20, 2);
    run_golden(ctx, "dead_rows",
               attention_sized((fa_attention_spec){.mask = FA_ATTENTION_CAUSAL, .head_dim = 16}, 1,
                               2, 2, 5, 2),
               24, 1);
    close_device(&f, ctx);
}

/* --- every type, mask and tile, ragged lengths --- */

/* Of queries and keys: one, and one less, as many and one more than tiles and warps have. */
static const int lengths[][2] = {{1, 1},    {1, 129}, {2, 127},  {3, 31},    {15, 128}, {16, 33},
                                 {17, 129}, {63, 64}, {64, 63},  {65, 65},   {127, 1},  {128, 128},
                                 {129, 31}, {33, 16}, {31, 130}, {130, 129}, {32, 17},  {1, 128}};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* The kernels of `count` specs, each on all of the lengths. */
static void run_lengths(const fa_attention_spec *specs, size_t count)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_attention(ctx, specs, count);
    for (size_t i = 0; i < count; i++) {
        fa_kernel *kernel = compile_attention(ctx, specs[i]);
        for (size_t n = 0; n < LENGTHS; n++)
            run_attention(kernel, specs[i],
                          attention_sized(specs[i], 1, 2, 1, lengths[n][0], lengths[n][1]), NULL,
                          n + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

static void run_masks_and_tiles(fa_dtype dtype, int head_dim)
{
    fa_attention_spec specs[9];
    for (int i = 0; i < 9; i++)
        specs[i] = (fa_attention_spec){.dtype = dtype,
                                       .mask = (fa_attention_mask)(i % 3),
                                       .tiles = (fa_attention_tiles)(1 + i / 3),
                                       .head_dim = head_dim,
                                       .lse = true};
    run_lengths(specs, 9);
}

Test(gpu_attention, K24_lengths_f32)
{
    run_masks_and_tiles(FA_F32, 32);
}

Test(gpu_attention, K24_lengths_f16)
{
    run_masks_and_tiles(FA_F16, 32);
}

/* Every mask and every size of tiles, with the tiles of larger heads. */
Test(gpu_attention, K24_lengths_bf16)
{
    static const fa_attention_spec specs[] = {
        {.dtype = FA_BF16,
         .mask = FA_ATTENTION_CAUSAL,
         .tiles = FA_ATTENTION_TILES_LARGE,
         .head_dim = 128,
         .lse = true},
        {.dtype = FA_BF16,
         .mask = FA_ATTENTION_CAUSAL_TOP_LEFT,
         .tiles = FA_ATTENTION_TILES_MEDIUM,
         .head_dim = 128,
         .lse = true},
        {.dtype = FA_BF16, .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 128, .lse = true},
    };
    run_lengths(specs, 3);
}

/* --- sizes of heads --- */

static void run_head_dims(fa_dtype dtype, const int (*dims)[2], int count)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_attention_spec specs[12];
    cr_assert_leq(count, 12);
    for (int i = 0; i < count; i++)
        specs[i] = (fa_attention_spec){.dtype = dtype,
                                       .mask = (fa_attention_mask)(i % 3),
                                       .head_dim = dims[i][0],
                                       .head_dim_v = dims[i][1],
                                       .lse = i % 2};
    warm_attention(ctx, specs, (size_t)count);
    for (int i = 0; i < count; i++)
        for (int64_t pad = 0; pad < 3; pad++) {
            /* elements of 2 and 4 bytes behind each row: accesses as narrow as they get */
            const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {pad == 2 ? 8 : pad, 2};
            fa_kernel *kernel = compile_attention(ctx, specs[i]);
            run_attention(kernel, specs[i], attention_sized(specs[i], 1, 2, 1, 35, 70), extra,
                          (uint64_t)i + 1);
            fa_kernel_release(kernel);
        }
    close_device(&f, ctx);
}

Test(gpu_attention, head_dims_f32)
{
    static const int dims[][2] = {{40, 40},   {72, 72},  {192, 128}, {256, 256},
                                  {160, 160}, {64, 256}, {67, 13},   {1, 250}};
    run_head_dims(FA_F32, dims, 8);
}

Test(gpu_attention, head_dims_f16)
{
    static const int dims[][2] = {{40, 40},   {72, 72},   {80, 112}, {96, 96}, {160, 160},
                                  {192, 128}, {256, 256}, {64, 256}, {67, 13}, {1, 250}};
    run_head_dims(FA_F16, dims, 10);
}

Test(gpu_attention, head_dims_bf16)
{
    static const int dims[][2] = {{64, 64}, {192, 128}, {256, 256}, {67, 13}};
    run_head_dims(FA_BF16, dims, 4);
}

/* --- more than a few tiles --- */

/* Several tiles of queries and many of keys. */
Test(gpu_attention, long_ones)
{
    static const fa_attention_spec specs[] = {
        {.dtype = FA_BF16,
         .mask = FA_ATTENTION_CAUSAL,
         .tiles = FA_ATTENTION_TILES_LARGE,
         .head_dim = 128,
         .lse = true},
        {.dtype = FA_F16, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true},
        {.mask = FA_ATTENTION_CAUSAL_TOP_LEFT,
         .tiles = FA_ATTENTION_TILES_LARGE,
         .head_dim = 32,
         .lse = true},
        {.tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 32, .lse = true},
    };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 4; i++) {
        fa_kernel *kernel = compile_attention(ctx, specs[i]);
        run_attention(kernel, specs[i], attention_sized(specs[i], 1, 2, 1, 270, 600), NULL, i + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}
