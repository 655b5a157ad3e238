/* The sizes of a case of cross_attention: for its reference and for the maker of its cases. */
#ifndef FAJIT_ORACLE_CROSS_ATTENTION_SIZES_H
#define FAJIT_ORACLE_CROSS_ATTENTION_SIZES_H

#include "cache.h"
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

/* Where rows and columns of a tensor lie: the tokens of all batches, and heads beside each other. */
typedef struct placing {
    lattice strides;
    int64_t tokens, head; /* of a batch; elements */
} placing;

static inline placing tokens_placed(const fa_tensor *t, int64_t tokens, int64_t heads, int64_t head)
{
    return (placing){strides_of(t, true, heads, tokens, head), tokens, head};
}

static inline placing rows_placed(const fa_matrix *x, int64_t rows, int64_t columns)
{
    return (placing){{0, 0, x->stride ? x->stride : columns}, rows, columns};
}

static inline int64_t place_of(const placing *p, int64_t row, int64_t column)
{
    return row / p->tokens * p->strides.outer + row % p->tokens * p->strides.token +
           column / p->head * p->strides.head + column % p->head;
}

/* Of the tensors of the args that are tokens. */
static inline placing queries_placed(const oracle_case *c, const fa_tensor *t)
{
    return tokens_placed(t, c->args.cross_attention.seqlen_q, 1, c->args.cross_attention.model_dim);
}

static inline placing keys_placed(const oracle_case *c, const fa_tensor *t)
{
    return tokens_placed(t, c->args.cross_attention.seqlen_k, 1, c->args.cross_attention.model_dim);
}

static inline placing kept_placed(const oracle_case *c, const fa_tensor *t)
{
    return tokens_placed(t, c->args.cross_attention.seqlen_k, spec_of(c)->heads_k,
                         spec_of(c)->head_dim);
}

#endif
