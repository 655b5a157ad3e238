/* What the tests of lowrank_kv on a device share. */
#ifndef GPU_LOWRANK_KV_H
#define GPU_LOWRANK_KV_H

#include "gpu_case.h"
#include "lowrank_kv_spec.h"
#include "oracle/lowrank_kv.h"

/* `baked`: 0 nothing but what cannot be dynamic, 1 what a model fixes, 2 everything. */
static inline fa_lowrank_kv_spec lowrank_bake(fa_lowrank_kv_spec sizes, int baked)
{
    fa_lowrank_kv_spec spec = sizes;
    if (baked < 2)
        spec.batch = spec.seqlen = 0;
    if (baked < 1)
        spec.model_dim = spec.heads = spec.head_dim = spec.head_dim_v = 0;
    return spec;
}

static inline fa_kernel *compile_lowrank(fa_context *ctx, fa_lowrank_kv_spec s)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = lowrank_spec(s);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

static inline void make_lowrank(gpu_case *g, fa_lowrank_kv_spec s, fa_lowrank_kv_spec sizes,
                                const int64_t *extra, uint64_t seed)
{
    fa_spec spec = lowrank_spec(s), all = lowrank_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_lowrank_kv_args *a = &g->c.args.lowrank_kv;
    snprintf(g->shape, sizeof g->shape, "B=%d S=%d M=%d R=%d G=%d D=%d", a->batch, a->seqlen,
             a->model_dim, s.rank, a->heads, a->head_dim);
}

/* NaN into every element of an input that no tensor has: behind rows, heads and batches. */
static inline void spoil_gaps_of(gpu_case *g, const char *name, const fa_tensor *view,
                                 int64_t outer, int64_t heads, int64_t tokens, int64_t row)
{
    oracle_tensor *t = oracle_find_tensor(&g->c, name);
    if (!t || !view->stride_token)
        return;
    bool *used = calloc(t->count, 1);
    cr_assert_not_null(used);
    for (int64_t b = 0; b < outer; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t n = 0; n < tokens; n++)
                for (int64_t i = 0; i < row; i++)
                    used[b * view->stride_batch + h * view->stride_head + n * view->stride_token +
                         i] = true;
    for (size_t i = 0; i < t->count; i++)
        if (!used[i])
            memset((char *)t->host + i * (t->bytes / t->count), 0xff, t->bytes / t->count);
    free(used);
}

static inline void spoil_gaps(gpu_case *g)
{
    const fa_lowrank_kv_args *a = &g->c.args.lowrank_kv;
    const fa_lowrank_kv_spec *s = &g->c.spec.lowrank_kv;
    const fa_tensor down = {.stride_token = a->w_down_stride};
    const int64_t dim_v = s->head_dim_v ? s->head_dim_v : a->head_dim;
    spoil_gaps_of(g, "hidden", &a->hidden, a->batch, 1, a->seqlen, a->model_dim);
    spoil_gaps_of(g, "w_down", &down, 1, 1, a->model_dim, s->rank);
    spoil_gaps_of(g, "w_up_k", &a->w_up_k, 1, a->heads, s->rank, a->head_dim);
    spoil_gaps_of(g, "w_up_v", &a->w_up_v, 1, a->heads, s->rank, dim_v);
    if (s->form == FA_LOWRANK_UP)
        spoil_gaps_of(g, "latent", &a->latent, a->batch, 1, a->seqlen, s->rank);
}

static inline void run_lowrank(const fa_kernel *kernel, fa_lowrank_kv_spec s,
                               fa_lowrank_kv_spec sizes, const int64_t *extra, uint64_t seed)
{
    gpu_case g;
    make_lowrank(&g, s, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
}

static inline void compile_and_run_lowrank(fa_context *ctx, fa_lowrank_kv_spec sizes, int baked,
                                           const int64_t *extra, uint64_t seed)
{
    const fa_lowrank_kv_spec spec = lowrank_bake(sizes, baked);
    fa_kernel *kernel = compile_lowrank(ctx, spec);
    run_lowrank(kernel, spec, sizes, extra, seed);
    fa_kernel_release(kernel);
}

/* Compiles many kernels at once. */
static inline void warm_lowrank(fa_context *ctx, const fa_lowrank_kv_spec *s, size_t count,
                                int baked)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = lowrank_spec(lowrank_bake(s[i], baked));
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

#endif
