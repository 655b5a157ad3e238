/* What the tests of attention on a device share. */
#ifndef GPU_ATTENTION_H
#define GPU_ATTENTION_H

#include <math.h>

#include "attention_spec.h"
#include "gpu_case.h"
#include "oracle/attention.h"

/* The spec with these sizes baked: what a case is made of. */
static inline fa_attention_spec attention_sized(fa_attention_spec spec, int batch, int heads_q,
                                                int heads_k, int seqlen_q, int seqlen_k)
{
    spec.batch = batch;
    spec.heads_q = heads_q;
    spec.heads_k = heads_k;
    spec.seqlen_q = seqlen_q;
    spec.seqlen_k = seqlen_k;
    return spec;
}

static inline fa_kernel *compile_attention(fa_context *ctx, fa_attention_spec attention)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = attention_spec(attention);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

/* Compiles many kernels at once. */
static inline void warm_attention(fa_context *ctx, const fa_attention_spec *attention, size_t count)
{
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = attention_spec(attention[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
}

static inline void make_attention(gpu_case *g, fa_attention_spec attention, fa_attention_spec sizes,
                                  const int64_t *extra, uint64_t seed)
{
    fa_spec spec = attention_spec(attention), all = attention_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_attention_args *a = &g->c.args.attention;
    snprintf(g->shape, sizeof g->shape, "B=%d H=%d G=%d Tq=%d Tk=%d", a->batch, a->heads_q,
             a->heads_k, a->seqlen_q, a->seqlen_k);
}

/* Everything at once, with a kernel that is there. */
static inline void run_attention(const fa_kernel *kernel, fa_attention_spec attention,
                                 fa_attention_spec sizes, const int64_t *extra, uint64_t seed)
{
    gpu_case g;
    make_attention(&g, attention, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
}

#endif
