/* What the parts of kv_update share: kv_update.c makes the kernel, kv_update_launch.c launches it,
 * kv_update_arrays.c checks the tensors and arrays of a launch. */
#ifndef FA_KV_UPDATE_H
#define FA_KV_UPDATE_H

#include "op.h"
#include "ops/rotary.h"
#include "tensor.h"

#define KV_MAX_HEAD_DIM 1024
#define KV_MAX_PAGE_SIZE 256
#define KV_BLOCK_THREADS 128
#define KV_HEADS_PER_GROUP 4 /* that share a thread's angles when there is work enough */
#define KV_HEADS_IN_FLIGHT 2 /* of them loaded before the first is used */

/* Slots of fa__plan.value. */
enum { KV_VECTOR_WIDTH, KV_VECTOR_WIDTH_V };

/* Mirror of struct tensor, part and params in kv_update.cu. */
typedef struct kv_tensor_params {
    uint64_t data;
    int64_t outer, head, token;
} kv_tensor_params;

typedef struct kv_part_params {
    kv_tensor_params fresh, cache, out;
    uint64_t scale;
    int32_t dim, width;
} kv_part_params;

typedef struct kv_kernel_params {
    kv_part_params k, v;
    uint64_t positions;
    int64_t positions_stride;
    uint64_t slots;
    int64_t slot_count;
    uint64_t block_table;
    int64_t block_table_stride;
    uint64_t cos, sin, inv_freq, errors;
    fa__rotary_rule rule;
    int32_t rotary_dim, max_position;
    int32_t batch, tokens, heads, cache_len, page_size;
    int32_t pages, max_pages;
    int32_t indices_aligned, items, heads_per_group, groups, abreast_log2;
} kv_kernel_params;

/* Sizes of a launch, dynamic ones filled in. */
typedef struct kv_sizes {
    int64_t batch, tokens, heads, head_dim, head_dim_v, rotary_dim;
    int64_t outer, entries; /* of the cache: rows and their length, or pages and theirs */
    int64_t slots;          /* tokens that have one; without SLOTS all */
} kv_sizes;

/* Views of everything a launch touches: what it writes first. */
typedef struct kv_views {
    fa__view view[16];
    int outputs, count;
    const fa__view *fresh[2], *cache[2], *out[2]; /* of K, of V; out is the cache in place */
} kv_views;

/* Bytes of an element of the cache. */
static inline int64_t fa__kv_cached_bytes(const fa_kv_update_spec *s)
{
    return s->cache_dtype == FA_KV_E4M3 ? 1 : (int64_t)fa__dtype_bytes(s->dtype);
}

/* Sizes that an access to keys must divide: those of the rotated part and of the copied one. */
static inline uint64_t fa__kv_dividends(const fa_kv_update_spec *s, int64_t head_dim,
                                        int64_t rotary_dim)
{
    switch (s->rotation) {
    case FA_KV_ROTATE_NONE:
        return (uint64_t)head_dim;
    case FA_KV_ROTATE_HALF:
        return (uint64_t)(rotary_dim / 2) | (uint64_t)(head_dim - rotary_dim);
    case FA_KV_ROTATE_INTERLEAVED:
        break;
    }
    return (uint64_t)rotary_dim | (uint64_t)(head_dim - rotary_dim);
}

/* Elements from one batch of the block table to the next. */
static inline int64_t fa__kv_table_stride(const fa_kv_update_args *a)
{
    return a->block_table_stride ? a->block_table_stride : a->max_pages;
}

/* Views of every tensor and array of a launch, checked. */
fa_status fa__kv_update_arrays(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                               const kv_sizes *n, kv_views *v);
/* Whether the indices that tell of repeated entries fill accesses of 16 bytes, in each batch. */
bool fa__kv_update_indices_aligned(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                                   const kv_sizes *n);

fa_status fa__kv_update_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                               const fa_args *args, fa__launch *launch, fa__launch_room *room);

#endif
