/* The golden cases of cross-attention (golden/cases.json): with the oracle's own result, or with
 * what PyTorch computed in float64. */
#ifndef CROSS_ATTENTION_GOLDEN_H
#define CROSS_ATTENTION_GOLDEN_H

#include "golden.h"
#include "oracle/cross_attention.h"

static inline fa_spec golden_cross_spec(fa_kv_rotation rotation)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_CROSS_ATTENTION);
    spec.cross_attention = (fa_cross_attention_spec){.rotation = rotation,
                                                     .model_dim = 64,
                                                     .heads_q = 4,
                                                     .heads_k = 4,
                                                     .head_dim = 16,
                                                     .batch = 2,
                                                     .seqlen_q = 5,
                                                     .seqlen_k = 9};
    return spec;
}

/* Fills the inputs of a case of this spec and computes it again. */
static inline void golden_cross_fill(oracle_case *c)
{
    static const char *const names[] = {"x_query", "x_kv", "w_q", "w_k", "w_v", "w_out"};
    for (uint64_t k = 0; k < 6; k++) {
        oracle_tensor *t = oracle_find_tensor(c, names[k]);
        cr_assert_not_null(t);
        const double size = k < 2 ? 1 : 0.25;
        for (size_t i = 0; i < t->count; i++)
            ((float *)t->host)[i] = oracle_uniform(30 + k, i, -size, size);
    }
    oracle_cross_attention_expect(c);
}

/* The output, to be freed. */
static inline double *golden_cross_read(const oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const size_t count = (size_t)(a->batch * a->seqlen_q * a->model_dim);
    double *values = calloc(count, sizeof *values);
    cr_assert_not_null(values);
    golden_read(c->spec.cross_attention.rotation == FA_KV_ROTATE_HALF
                    ? "cross_attention_half.out"
                    : "cross_attention_interleaved.out",
                values, count);
    return values;
}

#endif
