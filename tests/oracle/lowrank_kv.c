/* Double-precision reference of lowrank_kv: plain loops, nothing rounded on the way. What is only
 * copied is exact. Cases are made in lowrank_kv_case.c. */
#include "lowrank_kv.h"

#include <math.h>
#include <stdlib.h>

#include "lowrank_kv_sizes.h"

static double value_at(const oracle_tensor *t, int64_t at)
{
    double value = 0;
    oracle_load(t->dtype, &value, (const char *)t->host + at * (int64_t)(t->bytes / t->count), 1);
    return value;
}

static void expect(oracle_tensor *t, int64_t at, double value)
{
    t->expected[at] = value;
    t->exact[at] = false;
}

/* --- where a token goes --- */

static int target_of(oracle_case *c, int64_t b, int64_t n, oracle_target *to)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const oracle_tensor *positions = oracle_find_tensor(c, "positions");
    const oracle_cache cache = cache_of(c);
    *to = (oracle_target){b, n, a->position_offset + n};
    if (positions)
        to->position = oracle_index(positions, b * a->positions_stride + n);
    else if (spec_of(c)->to_cache)
        to->position = 0; /* slots alone */
    return spec_of(c)->to_cache ? oracle_cache_target(c, &cache, b, n, to) : ORACLE_WRITTEN;
}

/* --- the reference --- */

static void make_latent(oracle_case *c, int64_t b, int64_t n, double *latent)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const int64_t rank = spec_of(c)->rank;
    const oracle_tensor *in = oracle_find_tensor(c, has_down(c) ? "hidden" : "latent");
    const oracle_tensor *down = oracle_find_tensor(c, "w_down");
    const int64_t row = has_down(c) ? a->model_dim : rank;
    const lattice l = strides_of(has_down(c) ? &a->hidden : &a->latent, true, 1, a->seqlen, row);
    const int64_t from = b * l.outer + n * l.token;
    const int64_t w_row = a->w_down_stride ? a->w_down_stride : rank;
    for (int64_t i = 0; i < rank; i++)
        latent[i] = has_down(c) ? 0 : value_at(in, from + i);
    if (!has_down(c))
        return;
    const float *narrow = down->dtype == FA_F32 ? down->host : NULL;
    for (int64_t m = 0; m < row; m++) {
        const double x = value_at(in, from + m);
        for (int64_t i = 0; i < rank; i++)
            latent[i] +=
                x * (narrow ? (double)narrow[m * w_row + i] : value_at(down, m * w_row + i));
    }
}

static void normalize(oracle_case *c, double *latent)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const oracle_tensor *weight = oracle_find_tensor(c, "norm_weight");
    double sum = 0;
    for (int64_t i = 0; i < s->rank; i++)
        sum += latent[i] * latent[i];
    const double by = 1 / sqrt(sum / s->rank + (s->norm_eps == 0 ? 1e-6 : s->norm_eps));
    for (int64_t i = 0; i < s->rank; i++)
        latent[i] *= by * value_at(weight, i);
}

/* Where K or V is written: the tensor, elements before it, and its strides. */
typedef struct side {
    oracle_tensor *out;
    int64_t offset;
    lattice to;
} side;

static side side_of(oracle_case *c, int which)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const bool tokens_first = spec_of(c)->cache_layout == FA_KV_TOKENS_FIRST;
    oracle_tensor *stacked = oracle_find_tensor(c, "out");
    if (stacked) {
        const int64_t of_k = a->heads * row_k(c), token = of_k + a->heads * dim_v(c);
        return (side){
            stacked, which ? of_k : 0, {a->seqlen * token, which ? dim_v(c) : row_k(c), token}};
    }
    return (side){oracle_find_tensor(c, which ? "v_out" : "k_out"), 0,
                  strides_of(which ? &a->v_out : &a->k_out, tokens_first, a->heads, entries_of(c),
                             which ? dim_v(c) : row_k(c))};
}

static void expand(oracle_case *c, int which, const double *latent, const oracle_target *at)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const oracle_tensor *w = oracle_find_tensor(c, which ? "w_up_v" : "w_up_k");
    const int64_t dim = which ? dim_v(c) : a->head_dim;
    const lattice l =
        strides_of(which ? &a->w_up_v : &a->w_up_k, true, a->heads, spec_of(c)->rank, dim);
    const float *narrow = w->dtype == FA_F32 ? w->host : NULL;
    const side x = side_of(c, which);
    for (int64_t h = 0; h < a->heads; h++)
        for (int64_t d = 0; d < dim; d++) {
            double sum = 0;
            for (int64_t i = 0; i < spec_of(c)->rank; i++) {
                const int64_t from = i * l.token + h * l.head + d;
                sum += latent[i] * (narrow ? (double)narrow[from] : value_at(w, from));
            }
            expect(x.out,
                   x.offset + at->outer * x.to.outer + h * x.to.head + at->entry * x.to.token + d,
                   sum);
        }
}

static void put_rope(oracle_case *c, int64_t b, int64_t n, const oracle_target *at)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const oracle_tensor *in = oracle_find_tensor(c, "k_rope");
    const lattice l = strides_of(&a->k_rope, true, 1, a->seqlen, s->rope_dim);
    double row[1024];
    for (int64_t i = 0; i < s->rope_dim; i++)
        row[i] = value_at(in, b * l.outer + n * l.token + i);
    const oracle_turn by = turn_of(c);
    if (s->rotation)
        oracle_turn_row(c, &by, at->position, row);
    const side k = rope_once(c)
                       ? (side){oracle_find_tensor(c, "rope_out"), 0,
                                strides_of(&a->rope_out, true, 1, entries_of(c), s->rope_dim)}
                       : side_of(c, 0);
    const int64_t begin = rope_once(c) ? 0 : a->head_dim;
    for (int64_t h = 0; h < (rope_once(c) ? 1 : a->heads); h++)
        for (int64_t i = 0; i < s->rope_dim; i++)
            expect(k.out,
                   k.offset + at->outer * k.to.outer + h * k.to.head + at->entry * k.to.token +
                       begin + i,
                   row[i]);
}

static void put_latent(oracle_case *c, const double *latent, const oracle_target *at)
{
    const int64_t rank = spec_of(c)->rank;
    const lattice l = strides_of(&c->args.lowrank_kv.latent, true, 1, entries_of(c), rank);
    oracle_tensor *out = oracle_find_tensor(c, "latent");
    for (int64_t i = 0; i < rank; i++)
        expect(out, at->outer * l.outer + at->entry * l.token + i, latent[i]);
}

static void expect_token(oracle_case *c, int64_t b, int64_t n, const oracle_target *at,
                         double *latent)
{
    make_latent(c, b, n, latent);
    if (spec_of(c)->norm)
        normalize(c, latent);
    if (!has_up(c))
        put_latent(c, latent, at);
    for (int which = 0; which < 2 && has_up(c); which++)
        expand(c, which, latent, at);
    if (spec_of(c)->rope_dim)
        put_rope(c, b, n, at);
}

void oracle_lowrank_kv_expect(oracle_case *c)
{
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    oracle_tensor *errors = oracle_find_tensor(c, "errors");
    double *latent = calloc((size_t)spec_of(c)->rank, sizeof *latent);
    oracle_keep_all(c);
    for (int64_t b = 0; b < a->batch && latent; b++)
        for (int64_t n = 0; n < a->seqlen; n++) {
            oracle_target to;
            const int fate = target_of(c, b, n, &to);
            if (fate == ORACLE_OUTSIDE && errors)
                ((uint32_t *)errors->stored)[0]++;
            if (fate == ORACLE_WRITTEN)
                expect_token(c, b, n, &to, latent);
        }
    free(latent);
}
