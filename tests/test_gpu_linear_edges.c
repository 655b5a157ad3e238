/* linear on a device: odd addresses and strides, numbers that are not finite, accuracy, offsets over
 * 2^31. */
#include <math.h>

#include "gpu_linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* --- addresses and strides --- */

#define STEPS .bias = true, .residual = true
#define ADDENDS STEPS, .tile_m = 32, .tile_n = 32, .splits = 1

/* Every alignment that an element allows, in each operand by itself. */
Test(gpu_linear_edges, K34_odd_bases_and_strides)
{
    static const char *const names[] = {"x", "w", "y0", "residual", "bias"};
    static const int64_t pads[] = {0, 2, 2};
    static const fa_linear_spec specs[] = {
        {ADDENDS},
        {STEPS, .arithmetic = FA_LINEAR_SPLIT_F16, .tile_m = 64, .tile_n = 64},
        {ADDENDS, .dtype = FA_BF16, .activation = FA_LINEAR_SILU},
        {ADDENDS, .dtype = FA_F16, .operands = FA_LINEAR_E4M3, .scales = FA_LINEAR_SCALE_ROW,
         .activation = FA_LINEAR_SILU}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(specs); i++) {
        fa_kernel *kernel = compile_linear(ctx, specs[i]);
        for (size_t k = 0; k < 3 * COUNT(names); k++) {
            const int64_t extra[ORACLE_LINEAR_EXTRA_COUNT] = {pads[k % 3], 0, 1, 0, 0, 0};
            gpu_case g;
            make_linear(&g, specs[i], linear_sized(specs[i], 18, 40, 136), extra, k + 1);
            g.shift[gpu_case_index(&g, names[k / 3])] = 1 + (int)(k % 3);
            gpu_case_run(&g, kernel);
            gpu_case_free(&g);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Rows of w as they lie in another matrix, with rotation, in narrow copies. */
Test(gpu_linear_edges, narrow_copies_of_permuted_rows)
{
    const fa_linear_spec spec = {.dtype = FA_F16,
                                 .rotation = FA_KV_ROTATE_HALF,
                                 .head_dim = 16,
                                 .tile_m = 16,
                                 .tile_n = 16,
                                 .splits = 1};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    for (int64_t pad = 1; pad <= 3; pad++) {
        const int64_t extra[ORACLE_LINEAR_EXTRA_COUNT] = {pad, 0, 1, 0, 0, 0};
        run_linear(kernel, spec, linear_sized(spec, 5, 48, 50), extra, (uint64_t)pad);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* What lies between rows and behind the last column is NaN, or large, and does not matter. */
Test(gpu_linear_edges, K04_what_lies_between_rows_does_not_matter)
{
    static const fa_linear_arithmetic kinds[] = {FA_LINEAR_AUTO, FA_LINEAR_SPLIT_F16};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t kind = 0; kind < COUNT(kinds); kind++) {
        const fa_linear_spec spec = small_tiles((fa_linear_spec){.arithmetic = kinds[kind]});
        fa_kernel *kernel = compile_linear(ctx, spec);
        for (int64_t pad = 3; pad <= 4; pad++) {
            const int64_t extra[ORACLE_LINEAR_EXTRA_COUNT] = {pad, 0, 1, 0, 0, 0};
            gpu_case g;
            make_linear(&g, spec, linear_sized(spec, 33, 35, 36 + 32), extra, 1);
            for (int which = 0; which < 2; which++) {
                oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, which ? "w" : "x")];
                for (size_t i = 0; i < t->count; i++)
                    if (i % (size_t)(68 + pad) >= 68)
                        ((float *)t->host)[i] = pad == 3 ? NAN : 1e30f;
            }
            gpu_case_run(&g, kernel);
            gpu_case_free(&g);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* The sum is added to where it is stored. */
Test(gpu_linear_edges, y_may_be_the_residual)
{
    const fa_linear_spec spec = {ADDENDS};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    gpu_case g;
    make_linear(&g, spec, linear_sized(spec, 40, 36, 20), NULL, 1);
    const size_t y = gpu_case_index(&g, "y0"), residual = gpu_case_index(&g, "residual");
    memcpy(g.c.tensor[y].host, g.c.tensor[residual].host, g.c.tensor[y].bytes);
    gpu_case_upload(&g);
    g.c.args.linear.residual = g.c.args.linear.y[0];
    gpu_case_launch(&g, kernel);
    gpu_case_check(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Sums of nothing, and what follows them; nothing at all without rows or columns. */
Test(gpu_linear_edges, empty_work)
{
    const fa_linear_spec spec = {.bias = true, .tile_m = 16, .tile_n = 32};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, spec);
    run_linear(kernel, spec, linear_sized(spec, 3, 5, 0), NULL, 1);
    fa_args args = FA_ARGS_INIT(FA_OP_LINEAR);
    OK(fa_launch(kernel, &args, NULL));
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- numbers --- */

/* As IEEE arithmetic has it, also where float32 is multiplied in parts. */
Test(gpu_linear_edges, infinities_and_nan)
{
    static const fa_linear_arithmetic kinds[] = {FA_LINEAR_AUTO, FA_LINEAR_SPLIT_BF16,
                                                 FA_LINEAR_SPLIT_F16, FA_LINEAR_FMA};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const fa_linear_spec spec = small_tiles((fa_linear_spec){.arithmetic = kinds[i]});
        fa_kernel *kernel = compile_linear(ctx, spec);
        gpu_case g;
        make_linear(&g, spec, linear_sized(spec, 40, 36, 40), NULL, 1);
        float *x = floats_of(&g, "x"), *w = floats_of(&g, "w");
        x[3 * 40 + 7] = INFINITY;
        x[5 * 40] = NAN;
        x[7 * 40 + 1] = 3.4028234e38f; /* the largest: its upper part alone would be infinite */
        for (int k = 0; k < 40; k++) {
            x[13 * 40 + k] = -INFINITY; /* rows with nothing else */
            w[15 * 40 + k] = NAN;
        }
        w[9 * 40 + 2] = -INFINITY;
        for (int n = 0; n < 36; n++)
            w[n * 40 + 1] *= 0.5f;
        w[11 * 40 + 7] = 0; /* infinity times it is NaN */
        x[9 * 40 + 3] = 1e-42f;
        g.c.rtol = 1e-6;
        oracle_linear_expect(&g.c);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* float32 in parts is at least as exact as float32 by itself. */
Test(gpu_linear_edges, parts_are_as_exact_as_float32)
{
    static const fa_linear_arithmetic kinds[] = {FA_LINEAR_SPLIT_TF32, FA_LINEAR_SPLIT_BF16,
                                                 FA_LINEAR_SPLIT_F16};
    static const int depths[] = {48, 256, 2048};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const fa_linear_spec spec = small_tiles((fa_linear_spec){.arithmetic = kinds[i]});
        fa_kernel *kernel = compile_linear(ctx, spec);
        for (size_t d = 0; d < COUNT(depths); d++) {
            gpu_case g;
            double device = 0, loop = 0;
            make_linear(&g, spec, linear_sized(spec, 32, 32, depths[d]), NULL, d + 1);
            gpu_case_run(&g, kernel);
            compare_errors(&g, 32, 32, depths[d], &device, &loop);
            cr_expect_leq(device, loop, "arithmetic %d, K = %d: error %g, that of a loop %g",
                          (int)kinds[i], depths[d], device, loop);
            gpu_case_free(&g);
        }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- large --- */

enum { FAR_ROWS = 2, FAR_K = 40 };

/* Rows `stride` elements apart, of FAR_K times first, first + step; nothing lies between them. */
static void make_far(fa_matrix *far, fa_dtype dtype, int64_t stride, double first, double step)
{
    const size_t element = oracle_element_bytes(dtype);
    *far = (fa_matrix){gpu_alloc((size_t)(stride + FAR_K) * element), stride};
    for (int r = 0; r < FAR_ROWS; r++) {
        double row[FAR_K];
        unsigned char host[FAR_K * sizeof(float)];
        for (int k = 0; k < FAR_K; k++)
            row[k] = first + r * step;
        oracle_store(dtype, host, row, FAR_K);
        gpu_upload((char *)far->data + (size_t)r * (size_t)stride * element, host, FAR_K * element);
    }
}

/* x is 1 and 2, w and the residual 1. */
static void run_far_rows(fa_context *ctx, fa_linear_spec spec)
{
    static const int32_t swapped[FAR_ROWS] = {1, 0};
    const int64_t stride = (INT64_C(1) << 31) + 64;
    const size_t element = oracle_element_bytes(spec.dtype);
    fa_kernel *kernel = compile_linear(ctx, spec);
    fa_args args = FA_ARGS_INIT(FA_OP_LINEAR);
    fa_linear_args *a = &args.linear;
    void *rows = gpu_alloc(sizeof swapped);
    gpu_upload(rows, swapped, sizeof swapped);
    make_far(&a->x, spec.dtype, stride, 1, 1);
    make_far(&a->w, spec.dtype, stride, 1, 0);
    make_far(&a->y[0], spec.dtype, stride, 0, 0);
    if (spec.residual)
        make_far(&a->residual, spec.dtype, stride, 1, 0);
    a->m = a->n = FAR_ROWS;
    a->k = FAR_K;
    if (spec.mapped_rows) {
        a->rows = rows;
        a->row_count = FAR_ROWS;
    }
    OK(fa_workspace_size(kernel, &args, &args.workspace_bytes));
    args.workspace = gpu_alloc(args.workspace_bytes + 1);
    gpu_fill(args.workspace, 0, args.workspace_bytes + 1);
    OK(fa_launch(kernel, &args, NULL));
    const char *why = "";
    cr_assert(gpu_synchronize(NULL, &why), "%s", why);
    for (int r = 0; r < FAR_ROWS; r++) {
        unsigned char host[FAR_ROWS * sizeof(float)];
        double back[FAR_ROWS];
        const int m = spec.mapped_rows ? swapped[r] : r;
        gpu_download(host, (char *)a->y[0].data + (size_t)r * (size_t)stride * element,
                     FAR_ROWS * element);
        oracle_load(spec.dtype, back, host, FAR_ROWS);
        for (int n = 0; n < FAR_ROWS; n++)
            cr_expect_eq(back[n], FAR_K * (1 + m) + spec.residual, "y[%d, %d] = %g", r, n, back[n]);
    }
    gpu_free(args.workspace);
    gpu_free(rows);
    gpu_free(a->x.data);
    gpu_free(a->w.data);
    gpu_free(a->y[0].data);
    if (spec.residual)
        gpu_free(a->residual.data);
    fa_kernel_release(kernel);
}

/* Rows 2^31 elements apart, in all that has rows: whole, in parts, and split. */
Test(gpu_linear_edges, K12_rows_over_2_31_elements_apart)
{
    static const fa_linear_spec specs[] = {
        {.dtype = FA_F16, .tile_m = 16, .tile_n = 16, .splits = 1},
        {.dtype = FA_F16,
         .tile_m = 128,
         .tile_n = 64,
         .splits = 1,
         .residual = true,
         .mapped_rows = true},
        {.dtype = FA_F16, .tile_m = 16, .tile_n = 16, .splits = 2, .residual = true},
        {.tile_m = 32, .tile_n = 32, .splits = 1, .mapped_rows = true},
        {.arithmetic = FA_LINEAR_SPLIT_F16, .tile_m = 64, .tile_n = 64, .residual = true}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    if (free_memory() < (size_t)36 << 30)
        cr_skip_test("needs 36 GB of device memory");
    for (size_t i = 0; i < COUNT(specs); i++)
        run_far_rows(ctx, specs[i]);
    close_device(&f, ctx);
}
