/* linear with float32 as halves on a device: rows of every size and length, the precision that is
 * promised, a workspace that holds anything. Its layouts, steps, addresses and infinities are among those
 * of the other tests of linear. */
#include <math.h>

#include "gpu_linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALVES .arithmetic = FA_LINEAR_SPLIT_F16, .tile_m = 64, .tile_n = 64

static const fa_linear_spec halves = {HALVES};

/* Everything but the sums. */
static void expect_nothing_else_written(gpu_case *g)
{
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        oracle_verdict v;
        ptrdiff_t at = 0;
        cr_expect_not(gpu_case_zone_written(g, i, &at), "red zone of %s", g->c.tensor[i].name);
        if (!g->c.tensor[i].output)
            cr_expect_eq(gpu_case_wrong(g, i, &v), 0u, "%s is not what it was",
                         g->c.tensor[i].name);
    }
    gpu_case_check_workspace(g, "halves");
}

/* --- rows of any size --- */

/* What tensor cores go by: below the normal float16, times the most that a row is scaled by, sums keep no
 * more digits. */
static double size_of(float x)
{
    return x != 0 ? fmax(fabs((double)x), 0x1p-140) : 0;
}

/* Errors are below 2^-20 of the sum of |x w|, which is what each element's digits and a few steps of k
 * allow, and the least that a float32 can hold. */
static void expect_small_errors(gpu_case *g, int m, int n, int k)
{
    const float *x = floats_of(g, "x"), *w = floats_of(g, "w"), *y = gpu_case_result(g, "y0");
    for (int i = 0; i < m * n; i++) {
        double sum = 0, size = 0;
        for (int e = 0; e < k; e++) {
            const float a = x[i / n * k + e], b = w[i % n * k + e];
            sum += (double)a * (double)b;
            size += size_of(a) * size_of(b);
        }
        const double error = fabs((double)y[i] - sum),
                     most = size > 0 ? 0x1p-20 * size + 0x1p-149 : 0;
        cr_expect(error <= most, "y[%d, %d] = %g, not %g: error %g, not %g", i / n, i % n,
                  (double)y[i], sum, error, most);
    }
}

/* Each row as large as it likes: of numbers below the normal ones too, and of nothing but zeros. */
Test(gpu_linear_halves, rows_of_any_size)
{
    static const double of_x[] = {1,        1e30,     1e-30,    0x1p-111, 0x1p-113, 0x1p-126,
                                  0x1p-127, 0x1p-140, 0x1p-149, 0,        0x1p60,   3e38},
                        of_w[] = {1, 1e7, 0x1p-14, 1e-30, 0x1p-126, 0x1p-135, 0};
    enum { M = COUNT(of_x), N = COUNT(of_w), K = 40 };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, halves);
    gpu_case g;
    make_linear(&g, halves, linear_sized(halves, M, N, K), NULL, 1);
    float *x = floats_of(&g, "x"), *w = floats_of(&g, "w");
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(x[i] * of_x[i / K]);
    for (int i = 0; i < N * K; i++)
        w[i] = (float)(w[i] * of_w[i / K]);
    for (int k = 0; k < K; k++) /* in range with no row of w but the small ones */
        x[11 * K + k] *= k ? 0x1p-32f : 1;
    w[0] = w[K] = 0;
    gpu_case_upload(&g);
    gpu_case_launch(&g, kernel);
    expect_small_errors(&g, M, N, K);
    expect_nothing_else_written(&g);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Scales whose product is an ordinary number, though one of them undone alone leaves none. */
Test(gpu_linear_halves, a_large_row_by_a_small_one)
{
    enum { K = 3 };
    static const float of_x[K] = {0x1p127f, 0x1.234568p100f, 0},
                       of_w[K] = {0, 0x1.57abcep-126f, 0x1p-112f};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, halves);
    gpu_case g;
    make_linear(&g, halves, linear_sized(halves, 1, 1, K), NULL, 1);
    memcpy(floats_of(&g, "x"), of_x, sizeof of_x);
    memcpy(floats_of(&g, "w"), of_w, sizeof of_w);
    gpu_case_upload(&g);
    gpu_case_launch(&g, kernel);
    const float *result = gpu_case_result(&g, "y0");
    const double y = (double)*result, exact = (double)of_x[1] * (double)of_w[1];
    cr_expect(fabs(y - exact) <= 0x1p-20 * exact, "%a, not %a", y, exact);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- a wide range within a row --- */

/* Row m of x is one number and, 2^range times smaller, others that w picks one by one: y is what the
 * halves hold of them. Within 2^28 that is all digits but the last, beyond it what is worth 2^-50 of
 * the largest. */
Test(gpu_linear_halves, digits_of_small_elements)
{
    static const int ranges[] = {0, 1, 13, 14, 24, 26, 27, 28, 30, 33, 40, 49, 60};
    enum { M = COUNT(ranges), K = 48, N = K - 1 };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, halves);
    gpu_case g;
    make_linear(&g, halves, linear_sized(halves, M, N, K), NULL, 1);
    float *x = floats_of(&g, "x"), *w = floats_of(&g, "w");
    for (int i = 0; i < M * K; i++) {
        const float fraction = (float)(0.5 + fabs((double)x[i]) / 2); /* 1/2 to 1 */
        x[i] = ldexpf(i % K ? copysignf(fraction, x[i]) : 0x0.ffffffp0f,
                      (i % K ? -ranges[i / K] : 0) + i / K * 5);
    }
    for (int i = 0; i < N * K; i++)
        w[i] = i % K == i / K + 1 ? 1 : 0;
    gpu_case_upload(&g);
    gpu_case_launch(&g, kernel);
    const float *y = gpu_case_result(&g, "y0");
    for (int i = 0; i < M * N; i++) {
        const double v = (double)x[i / N * K + i % N + 1], largest = (double)x[i / N * K];
        const int range = ranges[i / N];
        const double most = range <= 27 ? 0x1p-23 * fabs(v) : 0x1p-50 * largest;
        const double error = fabs((double)y[i] - v);
        cr_expect(error <= most, "2^-%d of the largest: %a, not %a: error %g, not %g", range,
                  (double)y[i], v, error, most);
    }
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- rows of any length --- */

/* Where the number of threads that share a row of x or w changes, and where they read it twice. None
 * has its neighbour's size. */
Test(gpu_linear_halves, rows_of_every_length)
{
    static const int lengths[] = {505, 512, 520, 1030, 4200};
    enum { M = 5, N = 6 };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_linear_spec specs[COUNT(lengths)];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        specs[i] = halves;
        specs[i].k = lengths[i];
    }
    warm_linear(ctx, specs, COUNT(lengths));
    for (size_t i = 0; i < COUNT(lengths); i++) {
        const int k = lengths[i];
        fa_kernel *kernel = compile_linear(ctx, specs[i]);
        gpu_case g;
        make_linear(&g, specs[i], linear_sized(specs[i], M, N, k), NULL, i + 1);
        for (int e = 0; e < M * k; e++)
            floats_of(&g, "x")[e] *= ldexpf(1, -45 * (e / k % 3));
        gpu_case_upload(&g);
        gpu_case_launch(&g, kernel);
        expect_small_errors(&g, M, N, k);
        expect_nothing_else_written(&g);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- the workspace --- */

/* It may hold anything, NaN too, and what one launch leaves does not matter to the next. */
Test(gpu_linear_halves, whatever_the_workspace_holds)
{
    static const int sizes[][3] = {{70, 66, 70}, {3, 5, 1}, {20, 30, 100}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_linear(ctx, halves);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        gpu_case g;
        make_linear(&g, halves, linear_sized(halves, sizes[i][0], sizes[i][1], sizes[i][2]), NULL,
                    i + 1);
        gpu_case_upload(&g);
        gpu_case_give_workspace(&g, kernel);
        cr_assert_not_null(g.workspace);
        for (int byte = 0xff; byte >= 0x7b; byte -= 0x84) { /* NaN, and large numbers */
            gpu_fill(g.workspace + CASE_ZONE, (unsigned char)byte, g.workspace_bytes);
            gpu_case_run(&g, kernel);
        }
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
