/* The sizes of a case of attention: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_ATTENTION_SIZES_H
#define FAJIT_ORACLE_ATTENTION_SIZES_H

#include "attention.h"

static inline const fa_attention_spec *spec_of(const oracle_case *c)
{
    return &c->spec.attention;
}

static inline int64_t dim_v_of(const oracle_case *c)
{
    const fa_attention_spec *s = spec_of(c);
    return s->head_dim_v ? s->head_dim_v : s->head_dim;
}

static inline bool sees(const oracle_case *c, int64_t query, int64_t key)
{
    const fa_attention_args *a = &c->args.attention;
    switch (spec_of(c)->mask) {
    case FA_ATTENTION_FULL:
        return true;
    case FA_ATTENTION_CAUSAL:
        return key <= query + a->seqlen_k - a->seqlen_q;
    case FA_ATTENTION_CAUSAL_TOP_LEFT:
        return key <= query;
    }
    return false;
}

/* Strides in elements as they count. */
typedef struct lattice {
    int64_t batch, head, token;
} lattice;

static inline lattice strides_of(const oracle_case *c, const fa_tensor *t, int64_t heads,
                                 int64_t tokens, int64_t dim)
{
    const bool heads_first = spec_of(c)->heads_first;
    if (t->stride_batch || t->stride_head || t->stride_token)
        return (lattice){t->stride_batch, t->stride_head, t->stride_token};
    return (lattice){heads * tokens * dim, (heads_first ? tokens : 1) * dim,
                     (heads_first ? 1 : heads) * dim};
}

static inline lattice lse_strides(const oracle_case *c)
{
    const fa_attention_args *a = &c->args.attention;
    if (a->lse_stride_batch || a->lse_stride_head)
        return (lattice){a->lse_stride_batch, a->lse_stride_head, 1};
    return (lattice){(int64_t)a->heads_q * a->seqlen_q, a->seqlen_q, 1};
}

#endif
