/* linear on a device with every line of the tables of tiles, and on older architectures that the
 * emulator knows. */
#include "device_fixture.h"
#include "gpu_linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* More rows of tiles than are taken at a time for the L2 cache: of small tiles alone, as it would be
 * slow otherwise. The others get a whole tile and a part of one in both directions. */
static fa_linear_spec sized_for(fa_linear_spec spec, int k)
{
    const bool small = spec.tile_m * spec.tile_n <= 16 * 16;
    return small ? linear_sized(spec, 140, 36, k)
                 : linear_sized(spec, spec.tile_m + 14, spec.tile_n + 12, k);
}

static void run_layouts(fa_linear_spec spec, const int (*tiles)[2], size_t count, int k)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_linear_spec specs[16];
    cr_assert_leq(count, COUNT(specs));
    for (size_t i = 0; i < count; i++) {
        specs[i] = spec;
        specs[i].tile_m = tiles[i][0];
        specs[i].tile_n = tiles[i][1];
        specs[i].splits = 1;
        if (spec.arithmetic == FA_LINEAR_SPLIT_F16) /* the largest is there for baked sizes alone */
            specs[i] = sized_for(specs[i], k);
    }
    warm_linear(ctx, specs, count);
    for (size_t i = 0; i < count; i++)
        compile_and_run_linear(ctx, specs[i], sized_for(specs[i], k), NULL, i + 1);
    close_device(&f, ctx);
}

static const int tf32_tiles[][2] = {{128, 128}, {128, 64}, {64, 64}, {32, 64}, {32, 32},
                                    {16, 64},   {32, 16},  {16, 32}, {16, 16}};

Test(gpu_linear_layouts, f32_in_parts)
{
    run_layouts((fa_linear_spec){0}, tf32_tiles, COUNT(tf32_tiles), 330);
}

/* Of the other tables of tensor cores, the lines that share a tile and its k in a way that no line of
 * float32 has, or that only one has. */
#define THREE_PARTS .arithmetic = FA_LINEAR_SPLIT_BF16
#define FP8 .dtype = FA_BF16, .operands = FA_LINEAR_E4M3, .scales = FA_LINEAR_SCALE_ROW
static const int parts_tiles[][2] = {{16, 64}, {16, 32}};
static const int bf16_tiles[][2] = {{256, 128}, {128, 128}, {128, 64},
                                    {32, 32},   {16, 32},   {16, 16}};

Test(gpu_linear_layouts, f32_in_three_parts)
{
    run_layouts((fa_linear_spec){THREE_PARTS}, parts_tiles, COUNT(parts_tiles), 330);
}

static const int f16_parts_tiles[][2] = {{128, 128}, {128, 64}, {64, 64}};

Test(gpu_linear_layouts, f32_as_halves)
{
    run_layouts((fa_linear_spec){.arithmetic = FA_LINEAR_SPLIT_F16}, f16_parts_tiles,
                COUNT(f16_parts_tiles), 170);
    fixture f; /* the largest needs all sizes */
    fa_context *ctx = open_device(&f, 0);
    const fa_linear_spec largest = {.arithmetic = FA_LINEAR_SPLIT_F16,
                                    .tile_m = 256,
                                    .tile_n = 128,
                                    .m = 270,
                                    .n = 140,
                                    .k = 170};
    compile_and_run_linear(ctx, largest, largest, NULL, 1);
    close_device(&f, ctx);
}

Test(gpu_linear_layouts, e4m3)
{
    run_layouts((fa_linear_spec){FP8}, parts_tiles, COUNT(parts_tiles), 1100);
}

Test(gpu_linear_layouts, bf16)
{
    run_layouts((fa_linear_spec){.dtype = FA_BF16}, bf16_tiles, COUNT(bf16_tiles), 650);
}

/* Rows of w in another order: a thread of fewer warps has more of them than it keeps. */
Test(gpu_linear_layouts, rows_in_another_order)
{
    static const int tiles[][2] = {{256, 128}, {128, 128}};
    run_layouts((fa_linear_spec){.dtype = FA_BF16, .rotation = FA_KV_ROTATE_HALF, .head_dim = 20},
                tiles, COUNT(tiles), 330);
}

/* On a device all others too. */
Test(gpu_linear_layouts, rest_of_the_tables)
{
    static const int common[][2] = {{64, 64}, {32, 64}, {16, 64}};
    static const int others[][2] = {{128, 64}, {64, 64}, {32, 64}, {32, 32}, {16, 16}};
    static const int parts[][2] = {{32, 16}};
    run_layouts((fa_linear_spec){.dtype = FA_BF16}, common, COUNT(common), 650);
    run_layouts((fa_linear_spec){FP8}, others, COUNT(others), 1100);
    run_layouts((fa_linear_spec){THREE_PARTS}, others, COUNT(others), 330);
    run_layouts((fa_linear_spec){THREE_PARTS}, parts, COUNT(parts), 330);
}

Test(gpu_linear_layouts, multiply_add)
{
    static const int tiles[][2] = {{128, 128}, {64, 128}, {64, 64}, {32, 64}, {32, 32}, {16, 64}};
    run_layouts((fa_linear_spec){.arithmetic = FA_LINEAR_FMA}, tiles, COUNT(tiles), 200);
}

/* As few and as many stages as there can be; the layouts have what is between. */
Test(gpu_linear_layouts, stages)
{
    static const fa_linear_spec kinds[] = {{.stages = 2},
                                           {.stages = 16},
                                           {.arithmetic = FA_LINEAR_SPLIT_F16, .stages = 2},
                                           {.arithmetic = FA_LINEAR_SPLIT_F16, .stages = 13}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_linear_spec specs[COUNT(kinds)];
    for (size_t i = 0; i < COUNT(kinds); i++)
        specs[i] = small_tiles(kinds[i]);
    warm_linear(ctx, specs, COUNT(kinds));
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (int k = 1; k < 260; k += 86)
            compile_and_run_linear(ctx, specs[i], linear_sized(specs[i], 40, 40, k), NULL, i + 1);
    close_device(&f, ctx);
}

/* Fewer tiles of k than stages: where angles are kept, the others have no place. */
Test(gpu_linear_layouts, more_stages_than_tiles)
{
#define TURNED .rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 8
    static const fa_linear_spec kinds[] = {
        {TURNED, .stages = 16},
        {TURNED, .arithmetic = FA_LINEAR_FMA, .stages = 16},
        {TURNED, .arithmetic = FA_LINEAR_SPLIT_F16, .stages = 13},
        {FP8, TURNED, .stages = 16}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (int k = 1; k < 260; k += 172) {
            const fa_linear_spec sized = linear_sized(small_tiles(kinds[i]), 40, 40, k);
            compile_and_run_linear(ctx, sized, sized, NULL, i + 1);
        }
    close_device(&f, ctx);
}

static void run_architecture(int cc, const fa_linear_spec *specs, size_t count)
{
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    warm_linear(ctx, specs, count);
    for (size_t i = 0; i < count; i++)
        compile_and_run_linear(ctx, specs[i], linear_sized(specs[i], 40, 40, 100), NULL, i + 1);
    close_device(&f, ctx);
}

static const fa_linear_spec of_sm_75[] = {
    {.tile_m = 32, .tile_n = 32, .splits = 1},
    {.dtype = FA_F16, .tile_m = 32, .tile_n = 32, .splits = 1},
    {.dtype = FA_BF16, .tile_m = 32, .tile_n = 32, .splits = 1}};
/* Where fp8 is multiplied as it is, which sm_90 converts, and large tiles of tf32 are loaded later
 * than there. */
static const fa_linear_spec of_sm_89[] = {
    {.dtype = FA_F16, .operands = FA_LINEAR_E4M3, .tile_m = 32, .tile_n = 32, .splits = 1},
    {.tile_m = 128, .tile_n = 128, .splits = 1},
    {.tile_m = 128, .tile_n = 128, .stages = 2, .splits = 3},
};

Test(gpu_linear_layouts, sm_75)
{
    run_architecture(75, of_sm_75, COUNT(of_sm_75));
}

Test(gpu_linear_layouts, sm_89)
{
    run_architecture(89, of_sm_89, COUNT(of_sm_89));
}
