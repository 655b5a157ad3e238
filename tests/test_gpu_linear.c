/* linear on a device against the double-precision reference: every arithmetic and data type on ragged
 * sizes, every step behind the product. Seldom cases are in test_gpu_linear_edges.c. */
#include "gpu_linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* --- sizes --- */

/* One kernel for all sizes, of tiles that the larger ones do not divide. */
static void run_ragged(fa_linear_spec spec)
{
    static const int sizes[][3] = {{1, 1, 1},    {1, 32, 64},  {31, 33, 64},
                                   {32, 32, 63}, {33, 31, 65}, {32, 32, 64},
                                   {65, 1, 130}, {2, 67, 7},   {70, 66, 257}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    for (size_t i = 0; i < COUNT(sizes); i++)
        run_linear(kernel, spec, linear_sized(spec, sizes[i][0], sizes[i][1], sizes[i][2]), NULL,
                   i + 1);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

#define SMALL .tile_m = 32, .tile_n = 32, .splits = 1

Test(gpu_linear, ragged_f32_split_tf32)
{
    run_ragged((fa_linear_spec){SMALL});
}

Test(gpu_linear, ragged_f32_split_bf16)
{
    run_ragged((fa_linear_spec){.arithmetic = FA_LINEAR_SPLIT_BF16, SMALL});
}

Test(gpu_linear, ragged_f32_split_f16)
{
    run_ragged(small_tiles((fa_linear_spec){.arithmetic = FA_LINEAR_SPLIT_F16}));
}

Test(gpu_linear, ragged_f32_multiply_add)
{
    run_ragged((fa_linear_spec){.arithmetic = FA_LINEAR_FMA, SMALL});
}

Test(gpu_linear, ragged_bf16)
{
    run_ragged((fa_linear_spec){.dtype = FA_BF16, SMALL});
}

Test(gpu_linear, ragged_f16)
{
    run_ragged((fa_linear_spec){.dtype = FA_F16, SMALL});
}

Test(gpu_linear, ragged_bf16_multiply_add)
{
    run_ragged((fa_linear_spec){.dtype = FA_BF16, .arithmetic = FA_LINEAR_FMA, SMALL});
}

Test(gpu_linear, ragged_e4m3)
{
    run_ragged((fa_linear_spec){
        .dtype = FA_BF16, .operands = FA_LINEAR_E4M3, .scales = FA_LINEAR_SCALE_ROW, SMALL});
}

/* The sizes of the benchmark, everything baked and tiles chosen by cost. */
Test(gpu_linear, small_products_of_the_benchmark)
{
    static const fa_linear_spec specs[] = {{.m = 384, .n = 48, .k = 256},
                                           {.m = 384, .n = 256, .k = 48},
                                           {.m = 512, .n = 256, .k = 256}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_linear(ctx, specs, COUNT(specs));
    for (size_t i = 0; i < COUNT(specs); i++)
        compile_and_run_linear(ctx, specs[i], specs[i], NULL, i + 1);
    close_device(&f, ctx);
}

/* --- what follows the product --- */

typedef struct step {
    fa_linear_spec spec;
    int m, n, k;
} step;

#define HALVES .arithmetic = FA_LINEAR_SPLIT_F16

/* Each value of each choice, and each pair of choices that meet in the kernel, at least once. */
static const step steps[] = {
    {{.bias = true, .residual = true, .activation = FA_LINEAR_GELU, .split_1 = 32}, 33, 47, 70},
    {{.bias = true, .activation = FA_LINEAR_GELU_TANH, .dtype = FA_F16}, 33, 48, 40},
    {{.bias = true, .activation = FA_LINEAR_SILU, .dtype = FA_BF16, .residual = true}, 17, 64, 64},
    {{.split_1 = 64, .residual = true, .output = FA_LINEAR_OUT_BF16}, 33, 128, 64},
    {{.dtype = FA_F16,
      .operands = FA_LINEAR_E4M3,
      .scales = FA_LINEAR_SCALE_ROW,
      .bias = true,
      .residual = true,
      .activation = FA_LINEAR_SILU},
     33,
     40,
     144},
    {{.dtype = FA_BF16,
      .operands = FA_LINEAR_E4M3,
      .scales = FA_LINEAR_SCALE_TENSOR,
      .output = FA_LINEAR_OUT_F32},
     17,
     35,
     144},
    {{.rotation = FA_KV_ROTATE_HALF,
      .head_dim = 32,
      .output = FA_LINEAR_OUT_F16,
      .bias = true,
      .activation = FA_LINEAR_GELU},
     33,
     96,
     64},
    {{.rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 32, .bias = true, .residual = true},
     33,
     96,
     64},
    {{.dtype = FA_BF16,
      .rotation = FA_KV_ROTATE_HALF,
      .head_dim = 80,
      .rotary_dim = 64,
      .rotated = 160,
      .split_1 = 80,
      .split_2 = 160,
      .position_type = FA_I64},
     33,
     240,
     64},
    {{.dtype = FA_F16,
      .rotation = FA_KV_ROTATE_INTERLEAVED,
      .head_dim = 80,
      .rotary_dim = 48,
      .rotated = 160,
      .split_1 = 160,
      .mapped_rows = true},
     33,
     250,
     64},
    {{.rotation = FA_KV_ROTATE_HALF,
      .angles = FA_ROPE_TABLES,
      .head_dim = 6,
      .rotary_dim = 2,
      .mapped_rows = true,
      .row_type = FA_I64},
     33,
     18,
     33},
    {{.rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 18, .rotary_dim = 16}, 33, 90, 64},
    {{.rotation = FA_KV_ROTATE_INTERLEAVED,
      .angles = FA_ROPE_FREQUENCIES,
      .head_dim = 256,
      .scales = FA_LINEAR_SCALE_TENSOR},
     9,
     256,
     40},
    {{.dtype = FA_BF16,
      .output = FA_LINEAR_OUT_F32,
      .bias = true,
      .residual = true,
      .rotation = FA_KV_ROTATE_HALF,
      .head_dim = 128,
      .base = 500000,
      .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 8}},
     9,
     128,
     40},
    {{HALVES, .bias = true, .residual = true, .activation = FA_LINEAR_GELU, .split_1 = 32},
     33,
     47,
     70},
    {{HALVES, .rotation = FA_KV_ROTATE_HALF, .head_dim = 80, .rotary_dim = 48, .rotated = 80,
      .split_1 = 80, .split_2 = 100, .mapped_rows = true, .output = FA_LINEAR_OUT_F16},
     33,
     130,
     64},
    {{HALVES, .rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 32, .bias = true,
      .activation = FA_LINEAR_SILU, .scales = FA_LINEAR_SCALE_ROW},
     9,
     96,
     64},
};

static void run_steps(bool baked)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_linear_spec specs[COUNT(steps)];
    for (size_t i = 0; i < COUNT(steps); i++) {
        const step *s = &steps[i];
        specs[i] = small_tiles(baked ? linear_sized(s->spec, s->m, s->n, s->k) : s->spec);
    }
    warm_linear(ctx, specs, COUNT(steps));
    for (size_t i = 0; i < COUNT(steps); i++)
        for (int64_t pad = 0; pad <= 8; pad += 8) {
            const int64_t extra[ORACLE_LINEAR_EXTRA_COUNT] = {pad, 0, 1, pad ? 5 : 0, 0, 24};
            const step *s = &steps[i];
            compile_and_run_linear(ctx, specs[i], linear_sized(specs[i], s->m, s->n, s->k), extra,
                                   i + 1);
        }
    close_device(&f, ctx);
}

Test(gpu_linear, every_step_with_sizes_at_launch)
{
    run_steps(false);
}

Test(gpu_linear, every_step_with_sizes_baked)
{
    run_steps(true);
}
