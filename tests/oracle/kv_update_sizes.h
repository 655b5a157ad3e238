/* The sizes of a case of kv_update: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_KV_UPDATE_SIZES_H
#define FAJIT_ORACLE_KV_UPDATE_SIZES_H

#include "cache.h"
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

static inline int64_t slots_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return a->slot_count ? a->slot_count : (int64_t)a->batch * a->tokens;
}

static inline oracle_cache cache_of(const oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    const fa_kv_update_args *a = &c->args.kv_update;
    const bool limited = s->rotation && s->angles == FA_ROPE_TABLES;
    return (oracle_cache){.kind = s->cache,
                          .batch = a->batch,
                          .tokens = a->tokens,
                          .outer = outer_of(c),
                          .entries = entries_of(c),
                          .max_pages = a->max_pages,
                          .table_stride =
                              a->block_table_stride ? a->block_table_stride : a->max_pages,
                          .slot_count = slots_of(c),
                          .max_position = limited ? a->max_position : 0,
                          .unique = s->unique};
}

static inline oracle_turn turn_of(const oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    const int32_t baked = s->scaling.sequence_length;
    return (oracle_turn){.rotation = s->rotation,
                         .angles = s->angles,
                         .base = s->base,
                         .scaling = &s->scaling,
                         .dim = rotary_dim(c),
                         .sequence_length = baked ? baked : c->args.kv_update.sequence_length};
}

/* Tokens that the reference writes. */
int64_t oracle_kv_update_written(oracle_case *c);

#endif
