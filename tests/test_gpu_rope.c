/* rope on a real device against the double-precision reference: every combination of choices, and
 * awkward shapes. Seldom cases are in test_gpu_rope_edges.c. */
#include "gpu_rope.h"

static const fa_rope_spec canonical = {
    .head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256};

Test(gpu_rope, canonical)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (uint64_t seed = 1; seed <= 5; seed++)
        run_rope(ctx, canonical, canonical, NULL, seed);
    close_device(&f, ctx);
}

/* Compiles many kernels at once. */
static void warm(fa_context *ctx, const fa_rope_spec *ropes, size_t count)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = rope_spec(ropes[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

/* --- every combination --- */

/* Bits of a combination: style, angles, in_place, layout, positions (2), baked (0 to 2). */
#define COMBINATIONS (2 * 2 * 2 * 2 * 4 * 3)

static void combine(int i, fa_dtype dtype, fa_rope_spec *spec, fa_rope_spec *sizes,
                    int64_t extra[ROPE_EXTRAS])
{
    *sizes = (fa_rope_spec){.dtype = dtype,
                            .style = i & 1 ? FA_ROPE_INTERLEAVED : FA_ROPE_HALF,
                            .angles = i & 2 ? FA_ROPE_TABLES : FA_ROPE_COMPUTED,
                            .in_place = (i & 4) != 0,
                            .layout = i & 8 ? FA_LAYOUT_BNHD : FA_LAYOUT_BHND,
                            .positions = i & 32 ? FA_ROPE_VECTOR : FA_ROPE_RANGE,
                            .head_dim = 64,
                            .batch = 3,
                            .heads_q = 12,
                            .heads_k = 3,
                            .seqlen = 37,
                            .base = 500000};
    *spec = bake(*sizes, i / 64);
    memset(extra, 0, ROPE_EXTRAS * sizeof *extra);
    if (i & 16) { /* offset of a range; one vector for every batch */
        extra[0] = i & 32 ? 0 : 1000;
        extra[3] = i & 32 ? 1 : 0;
    }
    extra[2] = 1500; /* positions of a vector lie below */
}

static void run_combinations(fa_dtype dtype)
{
    fixture f;
    fa_rope_spec specs[COMBINATIONS], sizes;
    int64_t extra[ROPE_EXTRAS];
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < COMBINATIONS; i++)
        combine(i, dtype, &specs[i], &sizes, extra);
    warm(ctx, specs, COMBINATIONS);
    for (int i = 0; i < COMBINATIONS; i++) {
        combine(i, dtype, &specs[i], &sizes, extra);
        run_rope(ctx, specs[i], sizes, extra, (uint64_t)i + 1);
    }
    close_device(&f, ctx);
}

Test(gpu_rope, every_combination_f32)
{
    run_combinations(FA_F32);
}

Test(gpu_rope, every_combination_f16)
{
    run_combinations(FA_F16);
}

Test(gpu_rope, every_combination_bf16)
{
    run_combinations(FA_BF16);
}

/* --- awkward sizes --- */

static const int dims[][2] = {{2, 2},     {6, 6},       {7, 4},       {46, 46},
                              {72, 72},   {80, 80},     {80, 32},     {96, 96},
                              {128, 128}, {128, 64},    {128, 2},     {67, 34},
                              {256, 256}, {1000, 1000}, {1024, 1024}, {1023, 1022}};
#define DIMS (sizeof dims / sizeof dims[0])

static void run_dims(fa_dtype dtype, fa_rope_style style)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec specs[DIMS];
    for (size_t i = 0; i < DIMS; i++)
        specs[i] = (fa_rope_spec){
            .dtype = dtype, .style = style, .head_dim = dims[i][0], .rotary_dim = dims[i][1]};
    warm(ctx, specs, DIMS);
    for (size_t i = 0; i < DIMS; i++) {
        static const int shapes[][4] = {{1, 1, 1, 1}, {2, 4, 2, 3}, {1, 15, 5, 17}};
        for (size_t k = 0; k < 3; k++) {
            fa_rope_spec sizes = specs[i];
            sizes.batch = shapes[k][0];
            sizes.heads_q = shapes[k][1];
            sizes.heads_k = shapes[k][2];
            sizes.seqlen = shapes[k][3];
            run_rope(ctx, specs[i], sizes, NULL, i * 8 + k + 1);
            /* The same kernel with head_dim given at launch, all of it rotated. */
            if (dims[i][0] != dims[i][1])
                continue;
            fa_rope_spec dynamic = bake(specs[i], 0);
            dynamic.rotary_dim = 0;
            run_rope(ctx, dynamic, sizes, NULL, i * 8 + k + 1);
        }
    }
    close_device(&f, ctx);
}

Test(gpu_rope, head_dims_f32_half)
{
    run_dims(FA_F32, FA_ROPE_HALF);
}

Test(gpu_rope, head_dims_f32_interleaved)
{
    run_dims(FA_F32, FA_ROPE_INTERLEAVED);
}

Test(gpu_rope, head_dims_f16_half)
{
    run_dims(FA_F16, FA_ROPE_HALF);
}

Test(gpu_rope, head_dims_bf16_interleaved)
{
    run_dims(FA_BF16, FA_ROPE_INTERLEAVED);
}

Test(gpu_rope, dynamic_head_dim_with_a_fixed_rotary_dim)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int style = 0; style < 2; style++)
        for (int head_dim = 32; head_dim <= 128; head_dim += 3) {
            fa_rope_spec spec = {.dtype = FA_BF16, .style = (fa_rope_style)style, .rotary_dim = 32};
            fa_rope_spec sizes = spec;
            sizes.head_dim = head_dim;
            sizes.batch = 1;
            sizes.heads_q = 5;
            sizes.heads_k = 1;
            sizes.seqlen = 9;
            run_rope(ctx, spec, sizes, NULL, (uint64_t)head_dim);
        }
    close_device(&f, ctx);
}

static void expect_ratio_refused(fa_context *ctx, fa_rope_spec spec, int heads_q, int heads_k)
{
    fa_kernel *kernel = compile_rope(ctx, spec);
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    void *memory = gpu_alloc(256); /* never touched */
    args.rope.q.data = args.rope.k.data = args.rope.q_out.data = args.rope.k_out.data = memory;
    args.rope.batch = args.rope.seqlen = 1;
    args.rope.heads_q = heads_q;
    args.rope.heads_k = heads_k;
    cr_expect_eq(fa_launch(kernel, &args, NULL), FA_ERR_HEAD_RATIO, "%d and %d heads", heads_q,
                 heads_k);
    gpu_free(memory);
    fa_kernel_release(kernel);
}

Test(gpu_rope, K52_every_number_of_heads)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int in_place = 0; in_place < 2; in_place++)
        for (int heads_q = 0; heads_q <= 17; heads_q++)
            for (int heads_k = heads_q ? 0 : 1; heads_k <= 17; heads_k++) {
                fa_rope_spec spec = {.head_dim = 32, .in_place = in_place != 0};
                fa_rope_spec sizes = spec;
                sizes.batch = 2;
                sizes.heads_q = heads_q;
                sizes.heads_k = heads_k;
                sizes.seqlen = 3;
                if (heads_q && heads_k && heads_q % heads_k)
                    expect_ratio_refused(ctx, spec, heads_q, heads_k);
                else
                    run_rope(ctx, spec, sizes, NULL, (uint64_t)(heads_q * 18 + heads_k + 1));
            }
    close_device(&f, ctx);
}

Test(gpu_rope, K14_many_heads_many_batches_many_tokens)
{
    static const int shapes[][4] = {{1, 70000, 1, 2},
                                    {1, 65537, 65537, 1},
                                    {70000, 1, 1, 1},
                                    {1, 1, 1, 70001},
                                    {65536, 2, 1, 3}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fa_rope_spec spec = {.dtype = FA_F16, .head_dim = 8};
        fa_rope_spec sizes = spec;
        sizes.batch = shapes[i][0];
        sizes.heads_q = shapes[i][1];
        sizes.heads_k = shapes[i][2];
        sizes.seqlen = shapes[i][3];
        run_rope(ctx, spec, sizes, NULL, i + 1);
    }
    close_device(&f, ctx);
}

/* --- access widths --- */

/* Pointers off by a few elements, rows with gaps: the result is that of the widest access, bitwise,
 * and nothing between the rows is written. */
Test(gpu_rope, K34_any_alignment_and_stride_gives_the_same_bits)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 12; i++) {
        fa_rope_spec spec = {.dtype = (fa_dtype)(i % 3),
                             .style = (fa_rope_style)(i / 3 % 2),
                             .head_dim = 64,
                             .rotary_dim = i / 6 ? 48 : 64};
        fa_rope_spec sizes = spec;
        sizes.batch = 2;
        sizes.heads_q = 4;
        sizes.heads_k = 2;
        sizes.seqlen = 5;
        fa_kernel *kernel = compile_rope(ctx, spec);
        gpu_case whole;
        make_rope(&whole, spec, sizes, NULL, 7);
        gpu_case_upload(&whole);
        gpu_case_launch(&whole, kernel);
        const int64_t *packed = gpu_case_result(&whole, "q_out"); /* row 0: 64 elements */
        for (int64_t pad = 0; pad <= 8; pad++)
            for (int shift = 0; shift <= 4; shift++) {
                const int64_t extra[ROPE_EXTRAS] = {0, 0, 0, 0, pad};
                gpu_case d;
                make_rope(&d, spec, sizes, extra, 7);
                for (size_t t = 0; t < d.c.tensor_count; t++)
                    d.shift[t] = (int)((size_t)shift * (t + 1));
                gpu_case_run(&d, kernel);
                cr_assert_eq(memcmp(gpu_case_result(&d, "q_out"), packed,
                                    64 * (spec.dtype == FA_F32 ? 4 : 2)),
                             0, "case %d, pad %d, shift %d", i, (int)pad, shift);
                gpu_case_free(&d);
            }
        gpu_case_free(&whole);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* A table that begins at an odd place. */
Test(gpu_rope, tables_of_any_alignment)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int style = 0; style < 2; style++)
        for (int shift = 0; shift <= 4; shift++) {
            fa_rope_spec spec = {.dtype = FA_F16,
                                 .style = (fa_rope_style)style,
                                 .angles = FA_ROPE_TABLES,
                                 .head_dim = 64};
            fa_rope_spec sizes = spec;
            sizes.batch = sizes.heads_k = 1;
            sizes.heads_q = 2;
            sizes.seqlen = 33;
            fa_kernel *kernel = compile_rope(ctx, spec);
            gpu_case d;
            make_rope(&d, spec, sizes, NULL, 1);
            d.shift[gpu_case_index(&d, "cos")] = shift;
            d.shift[gpu_case_index(&d, "sin")] = shift;
            gpu_case_run(&d, kernel);
            gpu_case_free(&d);
            fa_kernel_release(kernel);
        }
    close_device(&f, ctx);
}
