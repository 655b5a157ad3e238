/* What the parts of rope share: rope.c makes the kernel, rope_launch.c launches it, rope_arrays.c
 * checks what it reads beside q and k. */
#ifndef FA_ROPE_H
#define FA_ROPE_H

#include "op.h"
#include "ops/rotary.h"
#include "tensor.h"

#define ROPE_MAX_HEAD_DIM 1024
#define ROPE_BLOCK_THREADS 128 /* many small blocks balance better than few large ones */
#define ROPE_HEADS_PER_GROUP 4 /* that share a thread's angles when there is work enough */
#define ROPE_HEADS_IN_FLIGHT 2 /* of them loaded before the first is used */

/* Slots of fa__plan.value. */
enum { ROPE_VECTOR_WIDTH };

/* Mirror of struct tensor and struct params in rope.cu. */
typedef struct rope_tensor_params {
    uint64_t in, out;
    int64_t in_batch, in_head, in_token;
    int64_t out_batch, out_head, out_token;
    uint64_t norm;
    int32_t heads, heads_per_group;
} rope_tensor_params;

typedef struct rope_kernel_params {
    rope_tensor_params q, k;
    uint64_t positions;
    int64_t positions_stride, positions_axis_stride;
    uint64_t sequence_offsets;
    uint64_t cos, sin, inv_freq;
    fa__rotary_rule rule;
    int32_t batch, seqlen, head_dim, rotary_dim;
    int32_t position_offset, max_position, sequences;
    int32_t width;
    int32_t groups_q;
    int32_t abreast_log2;
    uint32_t rotary_blocks;
} rope_kernel_params;

/* Sizes of a launch, dynamic ones filled in. */
typedef struct rope_sizes {
    int64_t batch, heads_q, heads_k, seqlen, head_dim, rotary_dim;
} rope_sizes;

/* Views of every tensor of a launch: outputs first. In place, in and out are the same view. */
typedef struct rope_views {
    fa__view view[4];
    int outputs, count;
    const fa__view *q, *k, *q_out, *k_out; /* NULL: no heads */
    uint64_t address_bits;
} rope_views;

/* Sizes that an access must divide: those of the rotated part and of the copied one, merged. */
static inline uint64_t fa__rope_dividends(const fa_rope_spec *s, int64_t head_dim,
                                          int64_t rotary_dim)
{
    uint64_t rotated = (uint64_t)(s->style == FA_ROPE_HALF ? rotary_dim / 2 : rotary_dim);
    const bool tail_is_read = !s->in_place || s->norm;
    return tail_is_read ? rotated | (uint64_t)(head_dim - rotary_dim) : rotated;
}

/* Neighbouring pairs that a thread holds with accesses of `width` elements. */
static inline int64_t fa__rope_pairs(const fa_rope_spec *s, int64_t width)
{
    return s->style == FA_ROPE_HALF ? width : width > 1 ? width / 2 : 1;
}

/* Lanes that share a head of n units with norm: mirror of lanes_for in head_lanes.cuh. */
static inline int64_t fa__rope_lanes(int64_t n)
{
    int64_t lanes = 1;
    while (lanes < n && lanes < 32)
        lanes *= 2;
    return lanes;
}

/* n / d, rounded up; d is a power of two. Divisions by an unknown d would be most of the time that
 * a launch takes. */
/* Threads that one head of one token keeps busy: with its rotated part (with norm: with all of it),
 * and with copying. */
typedef struct rope_units {
    int64_t rotated, copied;
} rope_units;

static inline rope_units fa__rope_units(const fa_rope_spec *s, int64_t head_dim, int64_t rotary_dim,
                                        int64_t width)
{
    const int64_t rotated = fa__divide_up(rotary_dim / 2, fa__rope_pairs(s, width));
    const int64_t tail = fa__divide_up(head_dim - rotary_dim, width); /* without a rest */
    if (s->norm)
        return (rope_units){fa__rope_lanes(rotated > tail ? rotated : tail), 0};
    return (rope_units){rotated, s->in_place ? 0 : tail};
}

/* Checks the arrays of positions, angles and weights, and puts them into `k`. */
fa_status fa__rope_arrays(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                          const rope_views *v, rope_kernel_params *k);

fa_status fa__rope_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                          const fa_args *args, fa__launch *launch, fa__launch_room *room);

#endif
