/* The sizes of a case of cross_attention: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_CROSS_ATTENTION_SIZES_H
#define FAJIT_ORACLE_CROSS_ATTENTION_SIZES_H

#include "cross_attention.h"

static inline const fa_cross_attention_spec *spec_of(const oracle_case *c)
{
    return &c->spec.cross_attention;
}

static inline bool has_queries(const oracle_case *c)
{
    return spec_of(c)->form != FA_CROSS_KEYS;
}

static inline bool has_x_kv(const oracle_case *c)
{
    return spec_of(c)->form != FA_CROSS_QUERIES;
}

/* Rows, and columns of what heads make. */
static inline int64_t queries_of(const oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    return (int64_t)a->batch * a->seqlen_q;
}

static inline int64_t keys_of(const oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    return (int64_t)a->batch * a->seqlen_k;
}

static inline int64_t columns_q(const oracle_case *c)
{
    return (int64_t)spec_of(c)->heads_q * spec_of(c)->head_dim;
}

static inline int64_t columns_k(const oracle_case *c)
{
    return (int64_t)spec_of(c)->heads_k * spec_of(c)->head_dim;
}

static inline int64_t rotary_dim(const oracle_case *c)
{
    return spec_of(c)->rotary_dim ? spec_of(c)->rotary_dim : spec_of(c)->head_dim;
}

#endif
