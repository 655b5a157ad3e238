/* Double-precision reference of cross_attention, and beside it the same computation with q, k, v,
 * exponentials, the heads' outputs and results rounded to storage, whose error is the measure for
 * f16 and bf16. Cases are made in cross_attention_case.c. */
#include "attention.h"
#include "cross_attention_sizes.h"
#include "make.h"
#include "rotary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers --- */

/* Everything that is read, as doubles without gaps; NULL where the form reads none. */
typedef struct inputs {
    double *x_query, *x_kv, *w_q, *w_k, *w_v, *w_out, *b_q, *b_k, *b_v, *b_out, *k, *v;
} inputs;

/* What is made of it. */
typedef struct results {
    double *q, *k, *v, *heads, *out;
    double largest_score, largest_value;
} results;

/* As doubles without gaps, to be freed; NULL: there is no such input, or no memory. */
static double *load(oracle_case *c, const char *name, placing at, int64_t rows, int64_t columns)
{
    const oracle_tensor *t = oracle_find_tensor(c, name);
    double *values = t && !t->output ? malloc((size_t)(rows * columns + 1) * sizeof *values) : NULL;
    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t n = 0; n < columns; n++)
            values[i * columns + n] = oracle_element(t, place_of(&at, i, n));
    return values;
}

static double *load_weights(oracle_case *c, const char *name, const fa_matrix *w, int64_t rows,
                            int64_t columns)
{
    return load(c, name, rows_placed(w, rows, columns), rows, columns);
}

static double *load_bias(oracle_case *c, const char *name, int64_t columns)
{
    return load_weights(c, name, &(fa_matrix){0}, 1, columns);
}

static inputs load_inputs(oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t model = a->model_dim, of_q = columns_q(c), of_k = columns_k(c);
    const bool self = has_x_kv(c) && !oracle_find_tensor(c, "x_kv");
    return (inputs){
        .x_query = load(c, "x_query", queries_placed(c, &a->x_query), queries_of(c), model),
        .x_kv = load(c, self ? "x_query" : "x_kv", keys_placed(c, &a->x_kv), keys_of(c), model),
        .w_q = load_weights(c, "w_q", &a->w_q, of_q, model),
        .w_k = load_weights(c, "w_k", &a->w_k, of_k, model),
        .w_v = load_weights(c, "w_v", &a->w_v, of_k, model),
        .w_out = load_weights(c, "w_out", &a->w_out, model, of_q),
        .b_q = load_bias(c, "b_q", of_q),
        .b_k = load_bias(c, "b_k", of_k),
        .b_v = load_bias(c, "b_v", of_k),
        .b_out = load_bias(c, "b_out", model),
        .k = load(c, "k", kept_placed(c, &a->k), keys_of(c), of_k),
        .v = load(c, "v", kept_placed(c, &a->v), keys_of(c), of_k),
    };
}

static void free_inputs(inputs *x)
{
    double *const all[] = {x->x_query, x->x_kv, x->w_q, x->w_k,   x->w_v, x->w_out,
                           x->b_q,     x->b_k,  x->b_v, x->b_out, x->k,   x->v};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void free_results(results *r)
{
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->heads);
    free(r->out);
}

/* --- the steps --- */

static void round_all(const oracle_case *c, bool rounds, double *values, int64_t count)
{
    for (int64_t i = 0; rounds && values && i < count; i++)
        values[i] = oracle_rounded(spec_of(c)->dtype, values[i]);
}

/* x w^T + bias. NULL without memory. */
static double *project(const double *x, const double *w, const double *bias, int64_t rows,
                       int64_t depth, int64_t columns)
{
    double *y = x && w ? calloc((size_t)(rows * columns) + 1, sizeof *y) : NULL;
    for (int64_t m = 0; y && m < rows; m++)
        for (int64_t n = 0; n < columns; n++) {
            double sum = bias ? bias[n] : 0;
            for (int64_t k = 0; k < depth; k++)
                sum += x[m * depth + k] * w[n * depth + k];
            y[m * columns + n] = sum;
        }
    return y;
}

/* Heads beside each other in rows, the first of each batch at position `offset`. */
static void rotate(oracle_case *c, double *y, int64_t rows, int64_t seqlen, int64_t columns,
                   int64_t offset)
{
    const fa_cross_attention_spec *s = spec_of(c);
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const oracle_angles angles = {
        .base = s->base,
        .scaling = &s->scaling,
        .rotary_dim = rotary_dim(c),
        .sequence_length =
            s->scaling.sequence_length ? s->scaling.sequence_length : a->sequence_length,
        .inv_freq = oracle_floats(c, "inv_freq"),
        .cos = oracle_floats(c, "cos"),
        .sin = oracle_floats(c, "sin"),
        .max_position = a->max_position,
    };
    const fa_rope_style style =
        s->rotation == FA_KV_ROTATE_HALF ? FA_ROPE_HALF : FA_ROPE_INTERLEAVED;
    double cosines[128], sines[128];
    for (int64_t m = 0; s->rotation && y && m < rows; m++) {
        oracle_rotary_angles(&angles, offset + m % seqlen, cosines, sines);
        for (int64_t n = 0; n < columns; n += s->head_dim)
            oracle_rotary_turn(y + m * columns + n, style, rotary_dim(c), cosines, sines);
    }
}

static void make_keys(oracle_case *c, const inputs *x, bool rounds, results *r)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t rows = keys_of(c), columns = columns_k(c);
    r->k = project(x->x_kv, x->w_k, x->b_k, rows, a->model_dim, columns);
    r->v = project(x->x_kv, x->w_v, x->b_v, rows, a->model_dim, columns);
    rotate(c, r->k, rows, a->seqlen_k, columns, a->position_offset_k);
    round_all(c, rounds, r->k, rows * columns);
    round_all(c, rounds, r->v, rows * columns);
}

static void gather(const double *from, int64_t rows, int64_t stride, int64_t columns, double *to)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * columns, from + i * stride, (size_t)columns * sizeof *to);
}

/* Room for the keys, the values and the scores of one head. */
typedef struct head_room {
    double *k, *v, *score;
} head_room;

/* The part of the case that is an attention. */
static oracle_case attention_of(const oracle_case *c)
{
    const fa_cross_attention_spec *s = spec_of(c);
    const fa_cross_attention_args *a = &c->args.cross_attention;
    oracle_case inner = {.spec = FA_SPEC_INIT(FA_OP_ATTENTION),
                         .args = FA_ARGS_INIT(FA_OP_ATTENTION)};
    inner.spec.attention = (fa_attention_spec){
        .dtype = s->dtype, .mask = s->mask, .head_dim = s->head_dim, .scale = s->scale};
    inner.args.attention = (fa_attention_args){.seqlen_q = a->seqlen_q, .seqlen_k = a->seqlen_k};
    return inner;
}

static void attend_head(const oracle_case *c, const oracle_case *inner, int64_t batch, int64_t head,
                        bool rounds, const head_room *room, results *r)
{
    const fa_cross_attention_spec *s = spec_of(c);
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t of_q = columns_q(c), of_k = columns_k(c), dim = s->head_dim;
    const int64_t from = batch * a->seqlen_k * of_k + head / (s->heads_q / s->heads_k) * dim;
    gather(r->k + from, a->seqlen_k, of_k, dim, room->k);
    gather(r->v + from, a->seqlen_k, of_k, dim, room->v);
    for (int64_t i = 0; i < a->seqlen_q; i++) {
        const int64_t at = (batch * a->seqlen_q + i) * of_q + head * dim;
        oracle_attention_row row = {
            .q = r->q + at, .k = room->k, .v = room->v, .score = room->score, .out = r->heads + at};
        oracle_attend(inner, i, rounds, &row);
        if (isfinite(row.largest))
            r->largest_score = fmax(r->largest_score, row.largest);
    }
    for (int64_t i = 0; i < a->seqlen_k * dim; i++)
        r->largest_value = fmax(r->largest_value, fabs(room->v[i]));
}

static void attend(oracle_case *c, bool rounds, results *r)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const size_t keys = (size_t)a->seqlen_k, dim = (size_t)spec_of(c)->head_dim;
    const oracle_case inner = attention_of(c);
    double *memory = calloc(keys * (2 * dim + 1) + 1, sizeof *memory);
    const head_room room = {memory, memory + keys * dim, memory + 2 * keys * dim};
    r->heads = memory ? calloc((size_t)(queries_of(c) * columns_q(c)) + 1, sizeof *r->heads) : NULL;
    for (int64_t b = 0; r->heads && r->q && r->k && r->v && b < a->batch; b++)
        for (int64_t h = 0; h < spec_of(c)->heads_q; h++)
            attend_head(c, &inner, b, h, rounds, &room, r);
    free(memory);
}

static void make_queries(oracle_case *c, const inputs *x, bool rounds, results *r)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t rows = queries_of(c), columns = columns_q(c);
    r->q = project(x->x_query, x->w_q, x->b_q, rows, a->model_dim, columns);
    rotate(c, r->q, rows, a->seqlen_q, columns, a->position_offset_q);
    round_all(c, rounds, r->q, rows * columns);
    attend(c, rounds, r);
    r->out = project(r->heads, x->w_out, x->b_out, rows, columns, a->model_dim);
    round_all(c, rounds, r->out, rows * a->model_dim);
}

static results compute(oracle_case *c, inputs *x, bool rounds)
{
    results r = {0};
    if (has_x_kv(c)) {
        make_keys(c, x, rounds, &r);
    } else {
        r.k = x->k;
        r.v = x->v;
    }
    if (has_queries(c))
        make_queries(c, x, rounds, &r);
    if (!has_x_kv(c)) /* they stay the inputs' */
        r.k = r.v = NULL;
    return r;
}

/* --- what is expected of it --- */

static void expect(oracle_case *c, const char *name, placing where, int64_t rows, int64_t columns,
                   const double *values)
{
    oracle_tensor *t = oracle_find_tensor(c, name);
    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t n = 0; n < columns; n++) {
            const int64_t at = place_of(&where, i, n);
            t->expected[at] = values[i * columns + n];
            t->untouched[at] = false;
        }
}

static double worst_difference(const double *a, const double *b, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; a && b && i < count; i++)
        worst = fmax(worst, fabs(a[i] - b[i]));
    return worst;
}

/* f16 and bf16: twice the largest error of the computation that is rounded as the kernel's is. f32:
 * 1e-5, and where scores are so large that a float32 cannot hold them better, what that costs: their
 * errors come from q, from k and from the sum, and are relative errors of the exponentials. */
static void set_gate(oracle_case *c, const results *r, double worst_rounded)
{
    const double of_scores =
        r->largest_score > 64 ? r->largest_score * 0x1p-23 * r->largest_value : 0;
    const bool f32 = spec_of(c)->dtype == FA_F32;
    c->atol = 1e-5 + (f32 ? of_scores : 2 * worst_rounded);
    c->rtol = f32 ? 1e-5 : 0;
}

void oracle_cross_attention_expect(oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t of_out = queries_of(c) * a->model_dim, of_k = keys_of(c) * columns_k(c);
    for (size_t i = 0; i < c->tensor_count; i++)
        if (c->tensor[i].output)
            memset(c->tensor[i].untouched, 1, c->tensor[i].count * sizeof(bool));
    inputs x = load_inputs(c);
    results exact = compute(c, &x, false), rounded = {0};
    if (spec_of(c)->dtype != FA_F32)
        rounded = compute(c, &x, true);
    if (has_queries(c)) {
        expect(c, "out", queries_placed(c, &a->out), queries_of(c), a->model_dim, exact.out);
        set_gate(c, &exact, worst_difference(exact.out, rounded.out, of_out));
    } else {
        expect(c, "k", kept_placed(c, &a->k), keys_of(c), columns_k(c), exact.k);
        expect(c, "v", kept_placed(c, &a->v), keys_of(c), columns_k(c), exact.v);
        set_gate(c, &exact,
                 fmax(worst_difference(exact.k, rounded.k, of_k),
                      worst_difference(exact.v, rounded.v, of_k)));
    }
    free_results(&exact);
    free_results(&rounded);
    free_inputs(&x);
}
