/* What the tests of linear on a device share. */
#ifndef GPU_LINEAR_H
#define GPU_LINEAR_H

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

#endif
