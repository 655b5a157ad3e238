/* What the tests of cross_attention on a device share. */
#ifndef GPU_CROSS_ATTENTION_H
#define GPU_CROSS_ATTENTION_H

#include "cross_attention_spec.h"
#include "gpu_case.h"
#include "oracle/cross_attention.h"

/* Sizes are given with each launch: kernels that many tests share. */
#define CROSS_DYNAMIC                                                                              \
    .rotation = FA_KV_ROTATE_INTERLEAVED, .heads_q = 4, .heads_k = 2, .head_dim = 32
static const fa_cross_attention_spec cross_dynamic[] = {
    {CROSS_DYNAMIC, .plan = FA_CROSS_ONE_LAUNCH}, {CROSS_DYNAMIC, .plan = FA_CROSS_FEW_LAUNCHES}};

/* The functions of a program, as many as the plan has launches. */
static const char *const cross_entries[] = {"fajit_cross_attention<0>", "fajit_cross_attention<1>",
                                            "fajit_cross_attention<2>"};

static inline size_t cross_entry_count(fa_cross_plan plan)
{
    return plan == FA_CROSS_FEW_LAUNCHES ? 3 : 1;
}

/* The spec with these sizes baked: what a case is made of. */
static inline fa_cross_attention_spec cross_sized(fa_cross_attention_spec spec, int batch,
                                                  int seqlen_q, int seqlen_k, int model_dim)
{
    spec.batch = batch;
    spec.seqlen_q = seqlen_q;
    spec.seqlen_k = seqlen_k;
    spec.model_dim = model_dim;
    return spec;
}

static inline fa_kernel *compile_cross(fa_context *ctx, fa_cross_attention_spec cross)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = cross_spec(cross);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

/* Compiles many kernels at once. */
static inline void warm_cross(fa_context *ctx, const fa_cross_attention_spec *cross, size_t count)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = cross_spec(cross[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

static inline void make_cross(gpu_case *g, fa_cross_attention_spec cross,
                              fa_cross_attention_spec sizes, const int64_t *extra, uint64_t seed)
{
    fa_spec spec = cross_spec(cross), all = cross_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_cross_attention_args *a = &g->c.args.cross_attention;
    snprintf(g->shape, sizeof g->shape, "B=%d Tq=%d Tk=%d C=%d", a->batch, a->seqlen_q, a->seqlen_k,
             a->model_dim);
}

/* Everything at once, with a kernel that is there. */
static inline void run_cross(const fa_kernel *kernel, fa_cross_attention_spec cross,
                             fa_cross_attention_spec sizes, const int64_t *extra, uint64_t seed)
{
    gpu_case g;
    make_cross(&g, cross, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
}

static inline oracle_tensor *tensor_of(gpu_case *g, const char *name)
{
    return &g->c.tensor[gpu_case_index(g, name)];
}

#endif
