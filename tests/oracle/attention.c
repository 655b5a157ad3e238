/* Double-precision reference of attention, and beside it the same computation with exponentials and
 * results rounded to storage, whose error is the measure for f16 and bf16. Cases are made in
 * attention_case.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_sizes.h"

typedef oracle_attention_row row;

static double rounded(const oracle_case *c, bool rounds, double x)
{
    return rounds ? oracle_rounded(spec_of(c)->dtype, x) : x;
}

void oracle_attend(const oracle_case *c, int64_t i, bool rounds, row *r)
{
    const fa_attention_spec *s = spec_of(c);
    const int64_t keys = c->args.attention.seqlen_k, dim = s->head_dim, dim_v = dim_v_of(c);
    const double scale = s->scale != 0 ? s->scale : 1 / sqrt((double)dim);
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        double dot = 0;
        for (int64_t d = 0; d < dim; d++)
            dot += r->q[d] * r->k[j * dim + d];
        r->score[j] = scale * dot;
        if (!sees(c, i, j))
            r->score[j] = -(double)INFINITY;
        else if (r->score[j] > largest || isnan(r->score[j]))
            largest = r->score[j];
    }
    for (int64_t j = 0; j < keys && largest > -(double)INFINITY; j++)
        sum += exp(r->score[j] - largest);
    for (int64_t d = 0; d < dim_v; d++)
        r->out[d] = 0;
    for (int64_t j = 0; j < keys && sum > 0; j++) {
        const double p = rounded(c, rounds, exp(r->score[j] - largest) / sum);
        for (int64_t d = 0; d < dim_v && sees(c, i, j); d++)
            r->out[d] += p * r->v[j * dim_v + d];
    }
    for (int64_t d = 0; d < dim_v; d++)
        r->out[d] = rounded(c, rounds, r->out[d]);
    r->lse = sum > 0 ? largest + log(sum) : -(double)INFINITY;
    r->largest = fabs(largest);
}

/* The rows of one head, one after another. */
static void gather(const oracle_case *c, const oracle_tensor *t, lattice at, int64_t batch,
                   int64_t head, int64_t tokens, int64_t dim, double *to)
{
    const size_t bytes = oracle_element_bytes(t->dtype);
    for (int64_t n = 0; n < tokens; n++) {
        const int64_t offset = batch * at.batch + head * at.head + n * at.token;
        oracle_load(spec_of(c)->dtype, to + n * dim, (char *)t->host + offset * (int64_t)bytes,
                    (size_t)dim);
    }
}

typedef struct work {
    double *q, *k, *v, *score, *out, *eager;
    double worst_eager, largest_score;
} work;

static void gather_head(oracle_case *c, int64_t batch, int64_t head, const work *w)
{
    const fa_attention_args *a = &c->args.attention;
    const int64_t dim = spec_of(c)->head_dim, dim_v = dim_v_of(c);
    const int64_t group = head / (a->heads_q / a->heads_k);
    gather(c, oracle_find_tensor(c, "q"), strides_of(c, &a->q, a->heads_q, a->seqlen_q, dim), batch,
           head, a->seqlen_q, dim, w->q);
    gather(c, oracle_find_tensor(c, "k"), strides_of(c, &a->k, a->heads_k, a->seqlen_k, dim), batch,
           group, a->seqlen_k, dim, w->k);
    gather(c, oracle_find_tensor(c, "v"), strides_of(c, &a->v, a->heads_k, a->seqlen_k, dim_v),
           batch, group, a->seqlen_k, dim_v, w->v);
}

static void expect_row(oracle_case *c, int64_t batch, int64_t head, int64_t i, const row *r)
{
    const fa_attention_args *a = &c->args.attention;
    oracle_tensor *out = oracle_find_tensor(c, "out"), *lse = oracle_find_tensor(c, "lse");
    const int64_t dim_v = dim_v_of(c);
    const lattice to = strides_of(c, &a->out, a->heads_q, a->seqlen_q, dim_v), l = lse_strides(c);
    const int64_t begin = batch * to.batch + head * to.head + i * to.token;
    for (int64_t d = 0; d < dim_v; d++) {
        out->expected[begin + d] = r->out[d];
        out->untouched[begin + d] = false;
    }
    if (lse) {
        lse->expected[batch * l.batch + head * l.head + i] = r->lse;
        lse->untouched[batch * l.batch + head * l.head + i] = false;
    }
}

static void attend_head(oracle_case *c, int64_t batch, int64_t head, work *w)
{
    const int64_t dim = spec_of(c)->head_dim, dim_v = dim_v_of(c);
    gather_head(c, batch, head, w);
    for (int64_t i = 0; i < c->args.attention.seqlen_q; i++) {
        row r = {.q = w->q + i * dim, .k = w->k, .v = w->v, .score = w->score, .out = w->out};
        oracle_attend(c, i, false, &r);
        expect_row(c, batch, head, i, &r);
        if (isfinite(r.largest))
            w->largest_score = fmax(w->largest_score, r.largest);
        if (spec_of(c)->dtype == FA_F32)
            continue;
        r.out = w->eager;
        oracle_attend(c, i, true, &r);
        for (int64_t d = 0; d < dim_v; d++)
            w->worst_eager = fmax(w->worst_eager, fabs(w->eager[d] - w->out[d]));
    }
}

/* f16 and bf16: twice the largest error of the computation that is rounded as the kernel's is. f32:
 * 1e-5, and where scores are so large that a float32 cannot hold them better, what that costs. The
 * lse is float32 in any case. */
static void set_gate(oracle_case *c, const work *w)
{
    const double of_scores = w->largest_score > 64 ? w->largest_score * 0x1p-22 : 0;
    c->atol = spec_of(c)->dtype == FA_F32 ? 1e-5 + of_scores : 2 * w->worst_eager + 1e-5;
    c->rtol = spec_of(c)->dtype == FA_F32 ? 1e-5 : 0;
    oracle_tensor *lse = oracle_find_tensor(c, "lse");
    if (lse)
        lse->atol = lse->rtol = 1e-5;
}

void oracle_attention_expect(oracle_case *c)
{
    const fa_attention_args *a = &c->args.attention;
    const size_t dim = (size_t)spec_of(c)->head_dim, dim_v = (size_t)dim_v_of(c);
    const size_t queries = (size_t)a->seqlen_q, keys = (size_t)a->seqlen_k;
    double *room = malloc((queries * dim + keys * (dim + dim_v + 1) + 2 * dim_v) * sizeof *room);
    work w = {.q = room};
    for (size_t i = 0; i < c->tensor_count; i++)
        if (c->tensor[i].output)
            memset(c->tensor[i].untouched, 1, c->tensor[i].count * sizeof(bool));
    if (!room)
        return; /* nothing may be written then: no kernel passes */
    w.k = w.q + queries * dim;
    w.v = w.k + keys * dim;
    w.score = w.v + keys * dim_v;
    w.out = w.score + keys;
    w.eager = w.out + dim_v;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads_q; h++)
            attend_head(c, b, h, &w);
    set_gate(c, &w);
    free(room);
}
