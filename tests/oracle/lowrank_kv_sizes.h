/* The sizes of a case of lowrank_kv: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_LOWRANK_KV_SIZES_H
#define FAJIT_ORACLE_LOWRANK_KV_SIZES_H

#include "cache.h"
#include "lowrank_kv.h"

static inline const fa_lowrank_kv_spec *spec_of(const oracle_case *c)
{
    return &c->spec.lowrank_kv;
}

static inline bool has_down(const oracle_case *c)
{
    return spec_of(c)->form != FA_LOWRANK_UP;
}

static inline bool has_up(const oracle_case *c)
{
    return spec_of(c)->form != FA_LOWRANK_DOWN;
}

static inline bool rope_once(const oracle_case *c)
{
    return spec_of(c)->rope_dim && (spec_of(c)->rope_once || !has_up(c));
}

static inline int64_t dim_v(const oracle_case *c)
{
    return spec_of(c)->head_dim_v ? spec_of(c)->head_dim_v : c->args.lowrank_kv.head_dim;
}

static inline int64_t row_k(const oracle_case *c)
{
    return c->args.lowrank_kv.head_dim + (rope_once(c) ? 0 : spec_of(c)->rope_dim);
}

/* Rows and their length, of what is written. */
static inline int64_t outer_of(const oracle_case *c)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    return spec_of(c)->to_cache && spec_of(c)->cache != FA_KV_DENSE ? a->pages : a->batch;
}

static inline int64_t entries_of(const oracle_case *c)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    if (!spec_of(c)->to_cache)
        return a->seqlen;
    return spec_of(c)->cache == FA_KV_DENSE ? a->cache_len : a->page_size;
}

static inline oracle_cache cache_of(const oracle_case *c)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const int64_t tokens = (int64_t)a->batch * a->seqlen;
    const bool limited = s->rotation && s->angles == FA_ROPE_TABLES;
    return (oracle_cache){.kind = s->cache,
                          .batch = a->batch,
                          .tokens = a->seqlen,
                          .outer = outer_of(c),
                          .entries = entries_of(c),
                          .max_pages = a->max_pages,
                          .table_stride =
                              a->block_table_stride ? a->block_table_stride : a->max_pages,
                          .slot_count = a->slot_count ? a->slot_count : tokens,
                          .max_position = limited ? a->max_position : 0,
                          .unique = s->unique};
}

static inline oracle_turn turn_of(const oracle_case *c)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const int32_t baked = s->scaling.sequence_length;
    return (oracle_turn){.rotation = s->rotation,
                         .angles = s->angles,
                         .base = s->base,
                         .scaling = &s->scaling,
                         .dim = s->rope_dim,
                         .sequence_length = baked ? baked : c->args.lowrank_kv.sequence_length};
}

#endif
