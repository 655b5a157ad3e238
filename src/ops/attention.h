/* What the parts of attention share: attention.c makes the kernel, attention_plan.c chooses its
 * tiles, attention_launch.c launches it. */
#ifndef FA_ATTENTION_H
#define FA_ATTENTION_H

#include "op.h"
#include "ops/sizes.h"

#define ATTENTION_MAX_HEAD_DIM 256
#define ATTENTION_MAX_SEQLEN (INT32_MAX - 255) /* a tile further is an int32 too */

/* Slots of fa__plan.value. */
enum {
    ATTENTION_ROW_WARPS,
    ATTENTION_ROW_TILES,
    ATTENTION_KEY_WARPS,
    ATTENTION_KEY_TILE,
    ATTENTION_STAGES,
    ATTENTION_LOAD_BYTES,
    ATTENTION_LOAD_BYTES_V,
    ATTENTION_MIN_BLOCKS,
};

static inline int64_t fa__attention_rows(const fa__plan *p)
{
    return (int64_t)16 * p->value[ATTENTION_ROW_WARPS] * p->value[ATTENTION_ROW_TILES];
}

/* Mirror of attention_tensor and attention_params in attention_shape.cuh. */
typedef struct attention_tensor_params {
    uint64_t data;
    int64_t batch, head, token;
} attention_tensor_params;

typedef struct attention_kernel_params {
    attention_tensor_params q, k, v, out;
    uint64_t lse;
    int64_t lse_batch, lse_head;
    int32_t batch, heads_q, heads_k, seqlen_q, seqlen_k;
    int32_t width_q, width_k, width_v, width_out;
    int32_t tiles, section;
} attention_kernel_params;

/* 1 / sqrt(head_dim), the default. */
double fa__attention_scale(int32_t head_dim);

/* After validate: head_dim_v and scale are filled in. */
fa_status fa__attention_plan(const fa_spec *spec, const fa__target *target, fa__plan *plan);

/* What a plan tells a kernel with attention as a step. Mirror of attention_step in steps.cuh. */
typedef struct attention_step {
    int32_t row_warps, row_tiles, key_warps, key_tile, stages, load_bytes, load_bytes_v, min_blocks;
    int32_t shared_bytes;
} attention_step;

attention_step fa__attention_step_of(const fa__plan *plan);

static inline int32_t fa__attention_step_threads(const attention_step *step)
{
    return 32 * step->row_warps * step->key_warps;
}

/* Queries of a block. */
static inline int32_t fa__attention_step_rows(const attention_step *step)
{
    return 16 * step->row_warps * step->row_tiles;
}

/* Heads, through all batches, whose keys and values fit a large L2 cache together: whole groups of
 * query heads that share theirs. */
int64_t fa__attention_section(const fa_attention_spec *s, int64_t batch, int64_t heads_q,
                              int64_t heads_k, int64_t seqlen_k);

fa_status fa__attention_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                               const fa_args *args, fa__launch *launch, fa__launch_room *room);

#endif
