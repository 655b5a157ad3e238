/* What the two halves of rope share: rope.c makes the kernel, rope_launch.c launches it. */
#ifndef FA_ROPE_H
#define FA_ROPE_H

#include "op.h"

#define ROPE_MAX_HEAD_DIM 1024
#define ROPE_BLOCK_THREADS 128 /* many small blocks balance better than few large ones */
#define ROPE_HEADS_PER_GROUP 4 /* that share a thread's angles when there is work enough */
#define ROPE_HEADS_IN_FLIGHT 2 /* of them loaded before the first is used */

/* Slots of fa__plan.value. */
enum { ROPE_VECTOR_WIDTH, ROPE_LOG2_BASE_LOW, ROPE_LOG2_BASE_HIGH };

/* Mirror of struct tensor and struct params in rope.cu. */
typedef struct rope_tensor_params {
    uint64_t in, out;
    int64_t in_batch, in_head, in_token;
    int64_t out_batch, out_head, out_token;
    int32_t heads, heads_per_group;
} rope_tensor_params;

typedef struct rope_kernel_params {
    rope_tensor_params q, k;
    uint64_t positions;
    int64_t positions_stride;
    uint64_t cos, sin;
    uint64_t log2_base_quotient;
    int32_t log2_base_remainder;
    int32_t batch, seqlen, head_dim, rotary_dim;
    int32_t position_offset, max_position;
    int32_t width;
    int32_t groups_q;
    uint32_t rotary_blocks;
} rope_kernel_params;

/* The base-2 logarithm of the spec's base, times 2^54. */
static inline uint64_t fa__rope_log2_base(const fa__plan *p)
{
    return (uint32_t)p->value[ROPE_LOG2_BASE_LOW] |
           (uint64_t)(uint32_t)p->value[ROPE_LOG2_BASE_HIGH] << 32;
}

/* The largest power of two that divides value, at most limit (one itself). */
static inline int64_t fa__rope_power_of_two(uint64_t value, int64_t limit)
{
    uint64_t merged = value | (uint64_t)limit;
    return (int64_t)(merged & (0 - merged));
}

/* Sizes that an access must divide: those of the rotated part and of the copied one, merged. */
static inline uint64_t fa__rope_dividends(const fa_rope_spec *s, int64_t head_dim,
                                          int64_t rotary_dim)
{
    uint64_t rotated = (uint64_t)(s->style == FA_ROPE_HALF ? rotary_dim / 2 : rotary_dim);
    return s->in_place ? rotated : rotated | (uint64_t)(head_dim - rotary_dim);
}

fa_status fa__rope_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                          const fa_args *args, fa__launch *launch, fa__launch_room *room);

#endif
