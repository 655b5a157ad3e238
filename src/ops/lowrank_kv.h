/* What the parts of lowrank_kv share: lowrank_kv.c makes the kernel, lowrank_kv_plan.c lays out its
 * work, lowrank_kv_launch.c launches it, lowrank_kv_arrays.c checks the tensors and arrays of a
 * launch. */
#ifndef FA_LOWRANK_KV_H
#define FA_LOWRANK_KV_H

#include "op.h"
#include "ops/rotary.h"
#include "tensor.h"

#define LOWRANK_THREADS 256
#define LOWRANK_WARPS 8
#define LOWRANK_MAX_ROPE_DIM 1024
#define LOWRANK_MAX_RANK 65536

/* The policy of products.cuh: SUMS. */
enum { SUMS_CHUNKED, SUMS_SPLIT_TF32, SUMS_TF32, SUMS_DOUBLE, SUMS_TENSOR, SUMS_TREE };
static inline int fa__lowrank_policy(const fa_lowrank_kv_spec *s)
{
    return (int)s->sums - 1; /* the default is filled in */
}

/* A row of TILES in lowrank_kv.cu, and its step. */
enum { STEP_WHOLE, STEP_DOWN, STEP_UP };
typedef struct lowrank_tiles {
    int32_t step, rows, depth, stages;
    int32_t down_columns, down_m, down_n;
    int32_t up_columns, up_m, up_n;
    int32_t smem_bytes;
} lowrank_tiles;
#define LOWRANK_TILE_INTS 11

/* What fa__plan.value holds. Kernels are numbered as they are compiled; a way is one of them, or two
 * that run one after another. */
typedef struct lowrank_way {
    int32_t first, count; /* kernels; count 0: there is no such way */
} lowrank_way;

typedef struct lowrank_plan {
    lowrank_tiles kernel[FA__MAX_FUNCTIONS];
    int32_t kernel_count;
    lowrank_way few, many;
    int32_t many_from; /* tokens */
} lowrank_plan;
_Static_assert(sizeof(lowrank_plan) <= sizeof(((fa__plan *)0)->value), "it is kept there");

/* Mirror of struct rows_of, heads_of and params in lowrank_kv.cu. */
typedef struct lowrank_rows {
    uint64_t data;
    int64_t outer, token;
} lowrank_rows;

typedef struct lowrank_heads {
    uint64_t data;
    int64_t outer, head, token;
} lowrank_heads;

typedef struct lowrank_params {
    lowrank_rows hidden, w_down;
    lowrank_heads w_up[2];
    lowrank_rows latent_in, latent_out;
    lowrank_heads out[2];
    lowrank_rows rope, rope_out;
    uint64_t norm, positions;
    int64_t positions_stride;
    uint64_t slots;
    int64_t slot_count;
    uint64_t block_table;
    int64_t block_table_stride;
    uint64_t cos, sin, inv_freq, errors;
    fa__rotary_rule rule;
    int32_t batch, seqlen, model_dim, heads, head_dim, head_dim_v;
    int32_t position_offset, max_position;
    int32_t entries, pages, max_pages;
    int32_t hidden_bytes, w_down_bytes, w_up_bytes[2], latent_bytes;
    uint8_t out_pairs[2], latent_pairs, unused[5];
} lowrank_params;

/* Sizes of a launch, dynamic ones filled in. */
typedef struct lowrank_sizes {
    int64_t batch, seqlen, model_dim, rank, heads, head_dim, head_dim_v, rope_dim;
    int64_t row_k; /* elements of a row of K: head_dim, and rope_dim where it stands there */
    int64_t outer, entries; /* of the outputs: batches and tokens, rows and entries, or pages */
    int64_t slots;
    bool has_down, has_up;
} lowrank_sizes;

/* Views of everything a launch touches: what it writes first. NULL: not part of this form. */
typedef struct lowrank_views {
    fa__view view[20];
    int outputs, count;
    bool follows; /* V lies behind K in each token of one buffer */
    const fa__view *hidden, *w_down, *w_up[2], *latent, *out[2], *rope, *rope_out;
} lowrank_views;

static inline int64_t fa__lowrank_element_bytes(const fa_lowrank_kv_spec *s)
{
    return (int64_t)fa__dtype_bytes(s->dtype);
}

/* Elements between the rows of the latent in the workspace: 16-byte accesses. */
static inline int64_t fa__lowrank_workspace_row(const fa_lowrank_kv_spec *s)
{
    return fa__divide_up(s->rank, 8) * 8;
}

/* Elements from one batch of the block table to the next. */
static inline int64_t fa__lowrank_table_stride(const fa_lowrank_kv_args *a)
{
    return a->block_table_stride ? a->block_table_stride : a->max_pages;
}

/* Whether the kernel reads them. */
static inline bool fa__lowrank_has_positions(const fa_lowrank_kv_spec *s,
                                             const fa_lowrank_kv_args *a)
{
    return s->to_cache ? s->cache != FA_KV_SLOTS || s->rotation : s->rotation && a->positions;
}

/* Views of every tensor and array of a launch, checked. The workspace holds the latent, or nothing. */
fa_status fa__lowrank_arrays(const fa_lowrank_kv_spec *s, const fa_args *args,
                             const lowrank_sizes *n, size_t workspace_bytes, lowrank_views *v);

fa_status fa__lowrank_plan_make(const fa_lowrank_kv_spec *s, const fa__target *target,
                                fa__plan *plan);
void fa__lowrank_plan_get(const fa__plan *plan, lowrank_plan *out);

/* How many column tiles of the last product a block takes, and so the grid's y. */
int64_t fa__lowrank_slices(const fa_lowrank_kv_spec *s, const lowrank_tiles *t, int64_t row_tiles,
                           int64_t model_dim, int64_t columns_k, int64_t columns_v,
                           int32_t multiprocessors);

fa_status fa__lowrank_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                             const fa_args *args, fa__launch *launch, fa__launch_room *room);
fa_status fa__lowrank_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                                const fa_args *args, size_t *bytes);

#endif
