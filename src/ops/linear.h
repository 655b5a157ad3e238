/* What the parts of linear share: linear.c makes the kernel, linear_plan.c lays out its work, with
 * linear_layout.c and linear_cost.c, and linear_launch.c launches it. */
#ifndef FA_LINEAR_H
#define FA_LINEAR_H

#include "op.h"
#include "ops/rotary.h"
#include "tensor.h"

#define LINEAR_MAX_SIZE 2147418112 /* 2^31 - 2^16: room to round up to tiles in 32 bits */
#define LINEAR_MAX_HEAD_DIM 1024
#define LINEAR_MAX_STAGES 16
#define LINEAR_MAX_SPLITS 64

/* Slots of fa__plan.value. */
enum {
    LINEAR_ARITHMETIC, /* ARITHMETIC of linear.cu */
    LINEAR_TILE_M,
    LINEAR_TILE_N,
    LINEAR_TILE_K,
    LINEAR_WARPS_M,
    LINEAR_WARPS_N,
    LINEAR_WARPS_K,
    LINEAR_STAGES,
    LINEAR_VECTOR_WIDTH,
    LINEAR_MAY_SPLIT,
    LINEAR_STEP_CLOCKS, /* see linear_work */
    LINEAR_FINISH_CLOCKS,
    LINEAR_RESIDENT,
};

/* ARITHMETIC in linear_shape.cuh. */
enum { LINEAR_FMA, LINEAR_WHOLE, LINEAR_SPLIT_TF32, LINEAR_SPLIT_BF16, LINEAR_SPLIT_F16 };

/* Mirror of linear_rows and linear_params in linear_shape.cuh. */
typedef struct linear_rows {
    uint64_t data;
    int64_t stride;
} linear_rows;

typedef struct linear_kernel_params {
    linear_rows x, w, y[3], residual;
    uint64_t bias, row_of;
    int64_t row_count;
    uint64_t positions, cos, sin, inv_freq, x_scale, w_scale, errors, partial, arrived;
    fa__rotary_rule rule;
    int32_t m, n, k, x_width, w_width, vector, splits, split_k, max_position, position_offset;
    int32_t seqlen, rotated;
} linear_kernel_params;

/* Mirror of linear_jumps and linear_batch_jumps in linear_shape.cuh. */
typedef struct linear_jumps {
    int32_t group;
    int64_t jump;
} linear_jumps;

typedef struct linear_batch_jumps {
    linear_jumps x, y, y_heads;
} linear_batch_jumps;

static inline int64_t fa__linear_operand_bytes(const fa_linear_spec *s)
{
    return s->operands == FA_LINEAR_E4M3 ? 1 : (int64_t)fa__dtype_bytes(s->dtype);
}

/* Columns of the parts: whole tiles of k. */
static inline int64_t fa__linear_parts_k(int64_t k)
{
    return fa__round_up(k, 32);
}

#define LINEAR_PARTS_THREADS 256 /* of a block of fajit_linear_parts */

/* Rows that such a block takes: if it can be, so many that a thread's share of one is 16 elements,
 * which it keeps. A K that is not baked may be large. */
static inline int32_t fa__linear_parts_rows(const fa_linear_spec *s)
{
    return !s->k || s->k > 2048 ? 1 : s->k > 1024 ? 2 : s->k > 512 ? 4 : 8;
}

static inline fa_dtype fa__linear_output_dtype(const fa_linear_spec *s)
{
    switch (s->output) {
    case FA_LINEAR_OUT_F32:
        return FA_F32;
    case FA_LINEAR_OUT_F16:
        return FA_F16;
    case FA_LINEAR_OUT_BF16:
        return FA_BF16;
    case FA_LINEAR_OUT_SAME:
        break;
    }
    return s->dtype;
}

/* Sizes, merged, that the elements of one store must divide. */
static inline uint64_t fa__linear_dividends(const fa_linear_spec *s, int64_t n)
{
    uint64_t sizes = (uint64_t)n | (uint64_t)s->split_1 | (uint64_t)s->split_2;
    const int halves = s->rotation == FA_KV_ROTATE_HALF ? 2 : 1; /* a unit has two of them */
    if (s->rotation)
        sizes |= (uint64_t)(s->head_dim / halves) | (uint64_t)(s->rotary_dim / halves);
    return sizes;
}

/* Bytes of a copy to shared memory that base and stride allow: 16, 4, or an element's. */
int32_t fa__linear_copy_width(const fa__view *view);
/* Whether stores of `vector` elements to outputs of n columns are aligned, and so are the reads of
 * what belongs to them. `rows`: bits of the addresses of rows; `bias`, `angles`: of
 * these arrays. */
bool fa__linear_is_wide(const fa_linear_spec *s, int64_t vector, int64_t n, uint64_t rows,
                        uintptr_t bias, uintptr_t angles);

/* A product as the model of its cost sees it. */
typedef struct linear_work {
    int64_t tiles, k_tiles;
    int64_t sums;                       /* elements of a tile */
    int64_t step_clocks, finish_clocks; /* of a block, for a tile of k and at its end */
    int64_t resident;                   /* blocks that a multiprocessor holds at once */
} linear_work;

/* Of a nominal device: plans do not depend on the one at hand. */
int64_t fa__linear_multiprocessors(int cc);
/* So that several can be added: what takes years costs no more. */
int64_t fa__linear_bounded_clocks(double clocks);
/* What all of it takes, with so many blocks to a tile. */
int64_t fa__linear_clocks(const linear_work *work, int64_t splits, int64_t multiprocessors);

/* How many blocks should share the k of a tile. */
int64_t fa__linear_splits(const linear_work *work, int64_t multiprocessors);

fa_status fa__linear_plan(const fa_spec *spec, const fa__target *target, fa__plan *plan);
/* As a step of another operation, in one launch and without a workspace. With blocks of so many
 * threads; 0: any number. */
fa_status fa__linear_plan_of(const fa_spec *spec, const fa__target *target, uint32_t threads,
                             fa__plan *plan);

/* What such a plan tells the kernel. Mirror of linear_step in steps.cuh. */
typedef struct linear_step {
    int32_t arithmetic, tile_m, tile_n, stages, warps_m, warps_n, warps_k, vector_width;
    int32_t shared_bytes;
} linear_step;

linear_step fa__linear_step_of(const fa__plan *plan);

static inline int32_t fa__linear_step_threads(const linear_step *step)
{
    return 32 * step->warps_m * step->warps_n * step->warps_k;
}

fa_status fa__linear_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                            const fa_args *args, fa__launch *launch, fa__launch_room *room);
fa_status fa__linear_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                               const fa_args *args, size_t *bytes);

#endif
