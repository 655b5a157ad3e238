/* Cases of attention: tensors, sizes and gates for the reference in attention.c. */
#include <stdio.h>
#include <string.h>

#include "attention_sizes.h"
#include "make.h"

#define GAP 0xff /* NaN in every data type, where nothing may be read */

static const char *const extra_names[] = {
    "stride_pad", /* extra elements, NaN in inputs, behind each row, head and batch */
    "magnitude",  /* q and k are drawn from [-magnitude, magnitude) */
    NULL,
};
static const int64_t extra_defaults[] = {0, 2};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == ORACLE_ATTENTION_EXTRA_COUNT,
               "one each");

/* Strides with `pad` elements behind each row, head and batch, and how far they reach. */
static int64_t pad_strides(const oracle_case *c, fa_tensor *t, int64_t heads, int64_t tokens,
                           int64_t dim, int64_t pad)
{
    const int64_t batch = c->args.attention.batch, inner = dim + pad;
    lattice l = strides_of(c, t, heads, tokens, dim);
    if (pad) {
        const bool heads_first = spec_of(c)->heads_first;
        l.head = heads_first ? inner * tokens + pad : inner;
        l.token = heads_first ? inner : inner * heads + pad;
        l.batch = (heads_first ? l.head * heads : l.token * tokens) + pad;
        t->stride_batch = l.batch;
        t->stride_head = l.head;
        t->stride_token = l.token;
    }
    if (!batch || !heads || !tokens)
        return 0;
    return (batch - 1) * l.batch + (heads - 1) * l.head + (tokens - 1) * l.token + inner;
}

/* Numbered by element, not by place in memory. */
static void add_input(oracle_case *c, const char *name, fa_tensor *view, int64_t heads,
                      int64_t tokens, int64_t dim, int64_t pad, uint64_t seed, double magnitude)
{
    const fa_dtype dtype = spec_of(c)->dtype;
    const int64_t bytes = (int64_t)oracle_element_bytes(dtype);
    oracle_tensor *t =
        oracle_add_tensor(c, name, dtype, pad_strides(c, view, heads, tokens, dim, pad));
    const lattice at = strides_of(c, view, heads, tokens, dim);
    uint64_t i = 0;
    if (t->host)
        memset(t->host, GAP, t->bytes);
    for (int64_t b = 0; b < c->args.attention.batch && t->host; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t n = 0; n < tokens; n++)
                for (int64_t d = 0; d < dim; d++) {
                    const double x = (double)oracle_uniform(seed, i++, -magnitude, magnitude);
                    const int64_t offset = b * at.batch + h * at.head + n * at.token + d;
                    oracle_store(dtype, (char *)t->host + offset * bytes, &x, 1);
                }
}

static void add_tensors(oracle_case *c, const int64_t *extra)
{
    const fa_attention_spec *s = spec_of(c);
    fa_attention_args *a = &c->args.attention;
    const int64_t pad = extra[ORACLE_ATTENTION_STRIDE_PAD], dim_v = dim_v_of(c);
    const double magnitude = (double)extra[ORACLE_ATTENTION_MAGNITUDE];
    add_input(c, "q", &a->q, a->heads_q, a->seqlen_q, s->head_dim, pad, c->seed, magnitude);
    add_input(c, "k", &a->k, a->heads_k, a->seqlen_k, s->head_dim, pad, c->seed + 1, magnitude);
    add_input(c, "v", &a->v, a->heads_k, a->seqlen_k, dim_v, pad, c->seed + 2, 1);
    oracle_add_output(c, "out", s->dtype,
                      pad_strides(c, &a->out, a->heads_q, a->seqlen_q, dim_v, pad));
    if (!s->lse)
        return;
    if (pad) {
        a->lse_stride_head = a->seqlen_q + pad;
        a->lse_stride_batch = a->lse_stride_head * a->heads_q + pad;
    }
    const lattice l = lse_strides(c);
    oracle_add_output(c, "lse", FA_F32,
                      (a->batch - 1) * l.batch + (a->heads_q - 1) * l.head + a->seqlen_q);
}

static void count_work(oracle_case *c)
{
    const fa_attention_spec *s = spec_of(c);
    const fa_attention_args *a = &c->args.attention;
    const double dims = (double)(s->head_dim + dim_v_of(c));
    double pairs = 0; /* of a query and a key that it sees, in one head */
    for (int64_t i = 0; i < a->seqlen_q; i++)
        for (int64_t j = 0; j < a->seqlen_k; j++)
            pairs += sees(c, i, j);
    c->tensor_time = oracle_tensor_time(s->dtype);
    c->flops = 2 * pairs * dims * a->heads_q * a->batch;
    c->bytes_moved = (double)a->batch * dims * (double)oracle_element_bytes(s->dtype) *
                     ((double)a->heads_q * a->seqlen_q + (double)a->heads_k * a->seqlen_k);
}

static const char *problem_of(const oracle_case *c, const int64_t *extra)
{
    const fa_attention_spec *s = spec_of(c);
    const fa_attention_args *a = &c->args.attention;
    if (a->batch < 1 || a->heads_q < 1 || a->heads_k < 1 || a->seqlen_q < 1 || a->seqlen_k < 0)
        return "batch, heads_q, heads_k and seqlen_q must be set";
    if (a->heads_q % a->heads_k)
        return "heads_q must be a multiple of heads_k";
    if (s->head_dim < 1 || s->head_dim > 256 || dim_v_of(c) > 256)
        return "head_dim and head_dim_v must be 1 to 256";
    if (extra[ORACLE_ATTENTION_STRIDE_PAD] < 0 || extra[ORACLE_ATTENTION_STRIDE_PAD] > INT32_MAX)
        return "stride_pad cannot be negative or over 2147483647";
    if (extra[ORACLE_ATTENTION_MAGNITUDE] < 0 || extra[ORACLE_ATTENTION_MAGNITUDE] > 1000000)
        return "magnitude must be 0 to 1000000";
    return NULL;
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    const fa_attention_spec *n = &sizes->attention;
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_ATTENTION), .seed = seed};
    fa_attention_args *a = &out->args.attention;
    a->batch = n->batch;
    a->heads_q = n->heads_q;
    a->heads_k = n->heads_k ? n->heads_k : n->heads_q;
    a->seqlen_q = n->seqlen_q;
    a->seqlen_k = n->seqlen_k;
    extra = extra ? extra : extra_defaults;
    const char *problem = problem_of(out, extra);
    if (problem) {
        snprintf(why, why_size, "%s", problem);
        return false;
    }
    add_tensors(out, extra);
    if (!oracle_has_memory(out)) {
        snprintf(why, why_size, "not enough host memory for this shape");
        oracle_free_tensors(out);
        return false;
    }
    count_work(out);
    return true;
}

static void bind(oracle_case *c, void *const *device)
{
    fa_attention_args *a = &c->args.attention;
    const struct {
        const char *name;
        void *to; /* a pointer of the args */
    } places[] = {{"q", &a->q.data},
                  {"k", &a->k.data},
                  {"v", &a->v.data},
                  {"out", &a->out.data},
                  {"lse", &a->lse}};
    for (size_t i = 0; i < c->tensor_count; i++)
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy(places[k].to, &device[i], sizeof device[i]);
}

const fa_oracle fa_oracle_attention = {
    .op = FA_OP_ATTENTION,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .make_case = make_case,
    .expect = oracle_attention_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
