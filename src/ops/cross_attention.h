/* What the parts of cross_attention share: cross_attention.c makes the kernel,
 * cross_attention_plan.c lays out its steps, cross_attention_launch.c launches them,
 * cross_attention_arrays.c looks at what they touch. */
#ifndef FA_CROSS_ATTENTION_H
#define FA_CROSS_ATTENTION_H

#include "ops/attention.h"
#include "ops/linear.h"

/* Groups of the projections, each with weights of its own. */
enum { CROSS_Q, CROSS_K, CROSS_V, CROSS_GROUPS };

typedef struct cross_plan {
    linear_step project, output;
    attention_step attend;
    int32_t one_launch; /* all steps in it; else one launch each */
    int32_t blocks;     /* one_launch: that a multiprocessor holds at once */
} cross_plan;

/* Mirrors of what linear_block takes, and of struct params, in cross_attention.cu. */
typedef struct cross_product_params {
    linear_kernel_params linear;
    linear_batch_jumps jumps;
} cross_product_params;

typedef struct cross_kernel_params {
    cross_product_params project[CROSS_GROUPS], output;
    attention_kernel_params attend;
    uint64_t barrier;
    int32_t tiles_before[CROSS_GROUPS]; /* of the projections, before each group */
    int32_t project_tiles, attend_blocks, output_tiles;
} cross_kernel_params;

static inline bool fa__cross_has_queries(const fa_cross_attention_spec *s)
{
    return s->form != FA_CROSS_KEYS;
}

static inline bool fa__cross_has_keys(const fa_cross_attention_spec *s)
{
    return s->form != FA_CROSS_QUERIES;
}

/* Of a launch. */
typedef struct cross_sizes {
    int64_t batch, seqlen_q, seqlen_k, model_dim;
    int64_t rows_q, rows_k;       /* of x_query and x_kv */
    int64_t columns_q, columns_k; /* of q; of k and of v */
    int64_t element_bytes;
} cross_sizes;

/* Views of everything a launch touches: what it writes first. */
typedef struct cross_views {
    int written, count;
    const fa__view *x_query, *x_kv, *out, *k, *v, *w[CROSS_GROUPS], *w_out;
    fa__view view[20]; /* `count` of them; the rest stays as it is */
} cross_views;

/* Looks at all that a launch touches. */
fa_status fa__cross_views(const fa_cross_attention_spec *s, const fa_args *args,
                          const cross_sizes *n, int64_t workspace_bytes, cross_views *v);

/* The operations that the steps are, for a checked spec. Sizes that a step does not know are 0. */
fa_spec fa__cross_project(const fa_cross_attention_spec *s, int32_t heads);
fa_spec fa__cross_attend(const fa_cross_attention_spec *s);
fa_spec fa__cross_output(const fa_cross_attention_spec *s);

fa_status fa__cross_plan_make(const fa_spec *spec, const fa__target *target, fa__plan *plan);
void fa__cross_plan_get(const fa__plan *plan, cross_plan *to);

fa_status fa__cross_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                           const fa_args *args, fa__launch *launch, fa__launch_room *room);
fa_status fa__cross_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                              const fa_args *args, size_t *bytes);

#endif
