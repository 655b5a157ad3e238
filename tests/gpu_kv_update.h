/* What the tests of kv_update on a device share. */
#ifndef GPU_KV_UPDATE_H
#define GPU_KV_UPDATE_H

#include "gpu_case.h"
#include "oracle/kv_update.h"

static inline fa_spec kv_spec(fa_kv_update_spec kv)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_KV_UPDATE);
    spec.kv_update = kv;
    return spec;
}

/* `baked`: 0 nothing but what cannot be dynamic, 1 head_dim, 2 everything. */
static inline fa_kv_update_spec kv_bake(fa_kv_update_spec sizes, int baked)
{
    fa_kv_update_spec spec = sizes;
    if (sizes.cache == FA_KV_DENSE)
        spec.page_size = 0;
    else
        spec.cache_len = 0;
    if (baked < 2)
        spec.batch = spec.tokens = spec.heads = spec.cache_len = spec.page_size = 0;
    if (baked < 1)
        spec.head_dim = spec.head_dim_v = 0;
    return spec;
}

static inline fa_kv_update_spec kv_sized(fa_kv_update_spec spec, int batch, int tokens, int heads,
                                         int entries)
{
    spec.batch = batch;
    spec.tokens = tokens;
    spec.heads = heads;
    spec.cache_len = spec.cache == FA_KV_DENSE ? entries : 0;
    spec.page_size = spec.cache == FA_KV_DENSE ? 0 : entries;
    return spec;
}

static inline fa_kernel *compile_kv(fa_context *ctx, fa_kv_update_spec kv)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = kv_spec(kv);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

static inline void make_kv(gpu_case *g, fa_kv_update_spec kv, fa_kv_update_spec sizes,
                           const int64_t *extra, uint64_t seed)
{
    fa_spec spec = kv_spec(kv), all = kv_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_kv_update_args *a = &g->c.args.kv_update;
    snprintf(g->shape, sizeof g->shape, "B=%d T=%d G=%d D=%d L=%d P=%d of %d", a->batch, a->tokens,
             a->heads, a->head_dim, a->cache_len, a->page_size, a->pages);
}

/* Everything at once, with a kernel that is there. */
static inline void run_kv(const fa_kernel *kernel, fa_kv_update_spec kv, fa_kv_update_spec sizes,
                          const int64_t *extra, uint64_t seed)
{
    gpu_case g;
    make_kv(&g, kv, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
}

static inline void compile_and_run_kv(fa_context *ctx, fa_kv_update_spec sizes, int baked,
                                      const int64_t *extra, uint64_t seed)
{
    const fa_kv_update_spec spec = kv_bake(sizes, baked);
    fa_kernel *kernel = compile_kv(ctx, spec);
    run_kv(kernel, spec, sizes, extra, seed);
    fa_kernel_release(kernel);
}

/* Sets the numbers of an array of positions or slots. */
static inline void set_indices(gpu_case *g, const char *name, const int64_t *values, size_t count)
{
    oracle_tensor *t = &g->c.tensor[gpu_case_index(g, name)];
    cr_assert_eq(t->count, count, "%s has %zu", name, t->count);
    for (size_t i = 0; i < count; i++)
        oracle_set_index(t, (int64_t)i, values[i]);
}

/* Compiles many kernels at once. */
static inline void warm_kv(fa_context *ctx, const fa_kv_update_spec *kv, size_t count)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = kv_spec(kv[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

#endif
