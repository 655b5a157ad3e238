/* What the parts of lowrank_kv share: lowrank_kv.c makes the kernel, lowrank_kv_plan.c chooses its
 * steps, lowrank_kv_small.c lays out those of few tokens, lowrank_kv_launch.c launches them,
 * lowrank_kv_arrays.c checks the tensors and arrays of a launch. */
#ifndef FA_LOWRANK_KV_H
#define FA_LOWRANK_KV_H

#include "op.h"
#include "ops/linear.h"
#include "ops/rotary.h"
#include "tensor.h"

#define LOWRANK_WARPS 8 /* of a block, unless it is one of linear's */
#define LOWRANK_THREADS (32 * LOWRANK_WARPS)
#define LOWRANK_TOKEN_BYTES 56 /* TOKEN_BYTES in lowrank_shape.cuh */
#define LOWRANK_MAX_ROPE_DIM 1024
#define LOWRANK_MAX_RANK 65536

/* The policy of products.cuh: SUMS. */
enum { SUMS_CHUNKED, SUMS_SPLIT_TF32, SUMS_TF32, SUMS_DOUBLE, SUMS_TENSOR, SUMS_TREE };
static inline int fa__lowrank_policy(const fa_lowrank_kv_spec *s)
{
    return (int)s->sums - 1; /* the default is filled in */
}

/* LOWRANK_... of lowrank_shape.cuh. */
enum { STEP_WHOLE, STEP_DOWN, STEP_UP, STEP_NORM };

/* Mirror of lowrank_small in steps.cuh. */
typedef struct lowrank_small {
    int32_t rows, depth, stages, ahead, down_columns, up_columns, up_depth, up_stages, shared_bytes;
} lowrank_small;

typedef struct lowrank_kernel {
    int32_t step, is_product;
    union {
        lowrank_small small; /* a norm: shared_bytes alone */
        linear_step product;
    };
} lowrank_kernel;

static inline uint32_t fa__lowrank_threads(const lowrank_kernel *k)
{
    return k->is_product ? (uint32_t)fa__linear_step_threads(&k->product) : LOWRANK_THREADS;
}

static inline uint32_t fa__lowrank_shared_bytes(const lowrank_kernel *k)
{
    return (uint32_t)(k->is_product ? k->product.shared_bytes : k->small.shared_bytes);
}

/* What fa__plan.value holds. A way is one kernel, or some that run one after another; ways may have
 * a kernel in common. Kernels are numbered as they are compiled. */
#define LOWRANK_MOST_STEPS 3 /* of a way: one product, the norm, the other product */

typedef struct lowrank_way {
    uint8_t count, kernel[LOWRANK_MOST_STEPS]; /* count 0: there is no such way */
} lowrank_way;

typedef struct lowrank_plan {
    lowrank_kernel kernel[FA__MAX_FUNCTIONS];
    int32_t kernel_count;
    lowrank_way few, many;
    int32_t many_from; /* tokens */
    int32_t clocks;    /* of the baked tokens; 0: they are dynamic */
} lowrank_plan;
_Static_assert(sizeof(lowrank_plan) <= sizeof(((fa__plan *)0)->value), "it is kept there");

/* Mirrors of lowrank_rows, lowrank_heads and lowrank_params in lowrank_shape.cuh. */
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
    uint64_t cos, sin, inv_freq, errors, superseded;
    fa__rotary_rule rule;
    int32_t batch, seqlen, model_dim, heads, head_dim, head_dim_v;
    int32_t position_offset, max_position;
    int32_t entries, pages, max_pages;
    int32_t hidden_bytes, w_down_bytes, w_up_bytes[2], latent_bytes;
    int32_t latent_width, out_width[2], unused;
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

/* Whether the first of two launches tells the second which tokens later ones supersede. */
static inline bool fa__lowrank_marks(const fa_lowrank_kv_spec *s)
{
    return s->to_cache && !s->unique && (s->cache == FA_KV_SLOTS || s->seqlen != 1);
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

/* Views of every tensor and array of a launch, checked. The workspace holds what is between two
 * launches, or nothing. */
fa_status fa__lowrank_arrays(const fa_lowrank_kv_spec *s, const fa_args *args,
                             const lowrank_sizes *n, size_t workspace_bytes, lowrank_views *v);

fa_status fa__lowrank_plan_make(const fa_lowrank_kv_spec *s, const fa__target *target,
                                fa__plan *plan);
void fa__lowrank_plan_get(const fa__plan *plan, lowrank_plan *out);

/* What a small step works on. */
typedef struct lowrank_work {
    int64_t tokens, model_dim;
    int64_t columns[2]; /* of K, of V */
} lowrank_work;

/* Tiles of so many columns, those of K and then those of V. */
static inline int64_t fa__lowrank_column_tiles(const lowrank_work *w, int64_t columns)
{
    return fa__divide_up(w->columns[0], columns) + fa__divide_up(w->columns[1], columns);
}

/* Of a product by itself: the latent's, or those of K and V. */
static inline int64_t fa__lowrank_product_tiles(const fa_lowrank_kv_spec *s, int32_t step,
                                                const lowrank_work *w, int64_t tile_m,
                                                int64_t tile_n)
{
    return fa__divide_up(w->tokens, tile_m) * (step == STEP_DOWN
                                                   ? fa__divide_up(s->rank, tile_n)
                                                   : fa__lowrank_column_tiles(w, tile_n));
}

/* The layout of a small step for blocks of `rows` tokens and, of the second product, `up_columns`
 * columns at once. False: shared memory has no room; *out then tells what the least needs. */
bool fa__lowrank_small_fit(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                           int32_t rows, int32_t up_columns, lowrank_small *out);
/* FA_ERR_LIMIT: more columns of K or of V than a product has. `where`: the struct that says so. */
fa_status fa__lowrank_check_columns(const char *where, int64_t heads, int64_t head_dim,
                                    int64_t head_dim_v);

/* How many blocks share the columns of their tokens: the grid's y. */
int64_t fa__lowrank_small_shares(const fa_lowrank_kv_spec *s, const lowrank_kernel *kernel,
                                 const lowrank_work *work, int64_t multiprocessors);
int64_t fa__lowrank_small_clocks(const fa_lowrank_kv_spec *s, const lowrank_kernel *kernel,
                                 const lowrank_work *work, int64_t multiprocessors);

fa_status fa__lowrank_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                             const fa_args *args, fa__launch *launch, fa__launch_room *room);
fa_status fa__lowrank_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                                const fa_args *args, size_t *bytes);

#endif
