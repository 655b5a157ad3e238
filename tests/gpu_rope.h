/* What the tests of rope on a device share. */
#ifndef GPU_ROPE_H
#define GPU_ROPE_H

#include "gpu_case.h"
#include "oracle/rope.h"

static inline fa_spec rope_spec(fa_rope_spec rope)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = rope;
    return spec;
}

/* `baked`: 0 nothing but what cannot be dynamic, 1 head_dim, 2 everything. */
static inline fa_rope_spec bake(fa_rope_spec sizes, int baked)
{
    fa_rope_spec spec = sizes;
    if (baked < 2)
        spec.batch = spec.heads_q = spec.heads_k = spec.seqlen = 0;
    if (baked < 1)
        spec.head_dim = 0;
    return spec;
}

static inline fa_kernel *compile_rope(fa_context *ctx, fa_rope_spec rope)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = rope_spec(rope);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

static inline void make_rope(gpu_case *g, fa_rope_spec rope, fa_rope_spec sizes,
                             const int64_t extra[ROPE_EXTRAS], uint64_t seed)
{
    fa_spec spec = rope_spec(rope), all = rope_spec(sizes);
    gpu_case_make(g, &spec, &all, extra, seed);
    const fa_rope_args *a = &g->c.args.rope;
    snprintf(g->shape, sizeof g->shape, "B=%d H=%d G=%d N=%d D=%d offset=%d", a->batch, a->heads_q,
             a->heads_k, a->seqlen, a->head_dim, a->position_offset);
}

/* Everything at once. */
static inline void run_rope(fa_context *ctx, fa_rope_spec spec, fa_rope_spec sizes,
                            const int64_t extra[ROPE_EXTRAS], uint64_t seed)
{
    gpu_case g;
    fa_kernel *kernel = compile_rope(ctx, spec);
    make_rope(&g, spec, sizes, extra, seed);
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

#endif
