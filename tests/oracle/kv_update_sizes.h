/* The sizes of a case of kv_update: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_KV_UPDATE_SIZES_H
#define FAJIT_ORACLE_KV_UPDATE_SIZES_H

#include "kv_update.h"

static inline const fa_kv_update_spec *spec_of(const oracle_case *c)
{
    return &c->spec.kv_update;
}

static inline size_t new_bytes(const oracle_case *c)
{
    return spec_of(c)->dtype == FA_F32 ? 4 : 2;
}

static inline size_t cached_bytes(const oracle_case *c)
{
    return spec_of(c)->cache_dtype == FA_KV_E4M3 ? 1 : new_bytes(c);
}

static inline int64_t dim_of(const oracle_case *c, int which)
{
    const int32_t dim_v = spec_of(c)->head_dim_v;
    return which && dim_v ? dim_v : c->args.kv_update.head_dim;
}

static inline int64_t rotary_dim(const oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    return !s->rotation ? 0 : s->rotary_dim ? s->rotary_dim : c->args.kv_update.head_dim;
}

/* Rows of a dense cache, or pages; and how many entries each has. */
static inline int64_t outer_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return spec_of(c)->cache == FA_KV_DENSE ? a->batch : a->pages;
}

static inline int64_t entries_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return spec_of(c)->cache == FA_KV_DENSE ? a->cache_len : a->page_size;
}

/* Entries that a token of this case can go to. */
static inline int64_t capacity(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    switch (spec_of(c)->cache) {
    case FA_KV_DENSE:
        return a->cache_len;
    case FA_KV_SLOTS:
        return (int64_t)a->pages * a->page_size;
    case FA_KV_BLOCK_TABLE:
        return (int64_t)a->max_pages * a->page_size;
    }
    return 0;
}

static inline int64_t slots_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return a->slot_count ? a->slot_count : (int64_t)a->batch * a->tokens;
}

/* Strides in elements as they count. */
typedef struct lattice {
    int64_t outer, head, token;
} lattice;

static inline lattice strides_of(const fa_tensor *t, bool tokens_first, int64_t heads,
                                 int64_t tokens, int64_t dim)
{
    if (t->stride_batch || t->stride_head || t->stride_token)
        return (lattice){t->stride_batch, t->stride_head, t->stride_token};
    return (lattice){heads * tokens * dim, (tokens_first ? 1 : tokens) * dim,
                     (tokens_first ? heads : 1) * dim};
}

/* Tokens that the reference writes. */
int64_t oracle_kv_update_written(oracle_case *c);

#endif
