/* What the tests of linear on a device share. */
#ifndef GPU_LINEAR_H
#define GPU_LINEAR_H

#include <math.h>

#include "gpu_case.h"
#include "linear_spec.h"
#include "oracle/linear.h"

static inline fa_linear_spec linear_sized(fa_linear_spec spec, int m, int n, int k)
{
    spec.m = m;
    spec.n = n;
    spec.k = k;
    return spec;
}

/* In the smallest tiles that this and the other arithmetics have, each with all of its k. */
static inline fa_linear_spec small_tiles(fa_linear_spec spec)
{
    spec.tile_m = spec.tile_n = spec.arithmetic == FA_LINEAR_SPLIT_F16 ? 64 : 32;
    spec.splits = 1;
    return spec;
}

static inline fa_kernel *compile_linear(fa_context *ctx, fa_linear_spec linear)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = linear_spec(linear);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

static inline void make_linear(gpu_case *g, fa_linear_spec linear, fa_linear_spec sizes,
                               const int64_t *extra, uint64_t seed)
{
    fa_spec spec = linear_spec(linear), all = linear_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_linear_args *a = &g->c.args.linear;
    snprintf(g->shape, sizeof g->shape, "M=%d N=%d K=%d", a->m, a->n, a->k);
}

/* Everything at once, with a kernel that is there. */
static inline void run_linear(const fa_kernel *kernel, fa_linear_spec linear, fa_linear_spec sizes,
                              const int64_t *extra, uint64_t seed)
{
    gpu_case g;
    make_linear(&g, linear, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
}

static inline void compile_and_run_linear(fa_context *ctx, fa_linear_spec linear,
                                          fa_linear_spec sizes, const int64_t *extra, uint64_t seed)
{
    fa_kernel *kernel = compile_linear(ctx, linear);
    run_linear(kernel, linear, sizes, extra, seed);
    fa_kernel_release(kernel);
}

/* Compiles many kernels at once. */
static inline void warm_linear(fa_context *ctx, const fa_linear_spec *linear, size_t count)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = linear_spec(linear[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

/* The largest error of sums of `k`, as a device gives them and as a loop of float32 does. */
static inline void compare_errors(gpu_case *g, int m, int n, int k, double *device, double *loop)
{
    const float *x = g->c.tensor[gpu_case_index(g, "x")].host;
    const float *w = g->c.tensor[gpu_case_index(g, "w")].host, *y = gpu_case_result(g, "y0");
    const double *expected = g->c.tensor[gpu_case_index(g, "y0")].expected;
    for (int i = 0; i < m * n; i++) {
        float sum = 0;
        for (int e = 0; e < k; e++)
            sum = fmaf(x[i / n * k + e], w[i % n * k + e], sum);
        *device = fmax(*device, fabs((double)y[i] - expected[i]));
        *loop = fmax(*loop, fabs((double)sum - expected[i]));
    }
}

#endif
