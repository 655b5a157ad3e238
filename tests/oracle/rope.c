/* Double-precision reference of rope. At position p an angle is off by about p * 10^-16. Cases are
 * made in rope_case.c. */
#include "rope.h"

#include <math.h>
#include <string.h>

#include "rotary.h"

int64_t oracle_rope_rotary_dim(const oracle_case *c)
{
    return c->spec.rope.rotary_dim ? c->spec.rope.rotary_dim : c->args.rope.head_dim;
}

void oracle_rope_strides(const oracle_case *c, const fa_tensor *t, int64_t heads, int64_t to[3])
{
    const fa_rope_args *a = &c->args.rope;
    to[0] = t->stride_batch;
    to[1] = t->stride_head;
    to[2] = t->stride_token;
    if (to[0] || to[1] || to[2])
        return;
    const bool bhnd = c->spec.rope.layout == FA_LAYOUT_BHND;
    to[0] = heads * a->seqlen * a->head_dim;
    to[1] = (bhnd ? a->seqlen : 1) * (int64_t)a->head_dim;
    to[2] = (bhnd ? 1 : heads) * (int64_t)a->head_dim;
}

/* --- positions --- */

static int64_t index_of(oracle_case *c, const char *name, int64_t i)
{
    return oracle_index(oracle_find_tensor(c, name), i);
}

static int64_t packed_position(oracle_case *c, int64_t n)
{
    int64_t s = 0;
    while (s < c->args.rope.sequences && index_of(c, "positions", s + 1) <= n)
        s++;
    int64_t position = n - index_of(c, "positions", s);
    if (s < c->args.rope.sequences && oracle_find_tensor(c, "sequence_offsets"))
        position += index_of(c, "sequence_offsets", s);
    return position;
}

/* 0 time, 1 height, 2 width. */
static int64_t axis_of(const fa_rope_spec *s, int64_t pair)
{
    switch (s->sections) {
    case FA_ROPE_SECTIONS_SPLIT:
        return pair < s->section_t ? 0 : pair < s->section_t + s->section_h ? 1 : 2;
    case FA_ROPE_SECTIONS_INTERLEAVED:
        if (pair % 3 == 1 && pair / 3 < s->section_h)
            return 1;
        return pair % 3 == 2 && pair / 3 < s->section_w ? 2 : 0;
    case FA_ROPE_ONE_POSITION:
        break;
    }
    return 0;
}

static int64_t position_of(oracle_case *c, int64_t b, int64_t n, int64_t pair)
{
    const fa_rope_args *a = &c->args.rope;
    switch (c->spec.rope.positions) {
    case FA_ROPE_VECTOR: {
        const int64_t all = a->positions_stride ? a->batch * a->positions_stride : a->seqlen;
        const int64_t axis = a->positions_axis_stride ? a->positions_axis_stride : all;
        return index_of(c, "positions",
                        axis_of(&c->spec.rope, pair) * axis + b * a->positions_stride + n);
    }
    case FA_ROPE_OFFSETS:
        return index_of(c, "positions", b) + n;
    case FA_ROPE_CUMULATIVE:
        return packed_position(c, n);
    case FA_ROPE_RANGE:
        break;
    }
    return (int64_t)a->position_offset + n;
}

/* --- the reference --- */

double oracle_rope_frequency(const oracle_case *c, int64_t pair)
{
    const fa_rope_scaling *s = &c->spec.rope.scaling;
    const int64_t length = s->sequence_length ? s->sequence_length : c->args.rope.sequence_length;
    return oracle_rotary_frequency(c->spec.rope.base, s, oracle_rope_rotary_dim(c), length, pair);
}

/* Cosine and sine of every pair of one token. */
static void angles_at(oracle_case *c, int64_t b, int64_t n, double *cosines, double *sines)
{
    const fa_rope_spec *s = &c->spec.rope;
    const int64_t pairs = oracle_rope_rotary_dim(c) / 2;
    const double factor = oracle_rotary_attention_factor(&s->scaling);
    const bool tables = s->angles == FA_ROPE_TABLES;
    const float *cos_table = tables ? oracle_find_tensor(c, "cos")->host : NULL;
    const float *sin_table = tables ? oracle_find_tensor(c, "sin")->host : NULL;
    const float *inv_freq =
        s->angles == FA_ROPE_FREQUENCIES ? oracle_find_tensor(c, "inv_freq")->host : NULL;
    for (int64_t j = 0; j < pairs; j++) {
        const int64_t position = position_of(c, b, n, j);
        if (!tables) {
            double angle =
                (double)position * (inv_freq ? (double)inv_freq[j] : oracle_rope_frequency(c, j));
            cosines[j] = factor * cos(angle);
            sines[j] = factor * sin(angle);
        } else if (position >= 0 && position < c->args.rope.max_position) {
            cosines[j] = (double)cos_table[position * pairs + j];
            sines[j] = (double)sin_table[position * pairs + j];
        } else {
            cosines[j] = sines[j] = (double)NAN;
        }
        sines[j] = s->inverse ? -sines[j] : sines[j];
    }
}

static void normalize(const oracle_case *c, const oracle_tensor *weights, double *x)
{
    const fa_rope_spec *s = &c->spec.rope;
    const int64_t count = c->args.rope.head_dim;
    double weight[1024], sum = 0;
    oracle_load(weights->dtype, weight, weights->host, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    const double by = 1 / sqrt(sum / (double)count + (s->norm_eps != 0 ? s->norm_eps : 1e-6));
    for (int64_t i = 0; i < count; i++)
        x[i] *= by * (weight[i] + (s->norm_unit_offset ? 1 : 0));
}

typedef struct side {               /* q or k */
    const oracle_tensor *in, *norm; /* norm: NULL without one */
    oracle_tensor *out;
    int64_t heads, in_stride[3], out_stride[3];
} side;

static size_t make_sides(oracle_case *c, side sides[2])
{
    const fa_rope_args *a = &c->args.rope;
    const bool in_place = c->spec.rope.in_place;
    size_t count = 0;
    for (int k = 0; k < 2; k++) {
        side *x = &sides[count];
        x->heads = k ? a->heads_k : a->heads_q;
        x->in = oracle_find_tensor(c, k ? "k" : "q");
        x->out = in_place ? oracle_find_tensor(c, k ? "k" : "q")
                          : oracle_find_tensor(c, k ? "k_out" : "q_out");
        x->norm = oracle_find_tensor(c, k ? "k_norm" : "q_norm");
        if (!x->in)
            continue;
        const fa_tensor *in = k ? &a->k : &a->q, *out = k ? &a->k_out : &a->q_out;
        oracle_rope_strides(c, in, x->heads, x->in_stride);
        oracle_rope_strides(c, in_place ? in : out, x->heads, x->out_stride);
        count++;
    }
    return count;
}

static void expect_token(oracle_case *c, const side *x, int64_t b, int64_t n, const double *cosines,
                         const double *sines)
{
    const int64_t head_dim = c->args.rope.head_dim;
    const fa_dtype dtype = c->spec.rope.dtype;
    double row[1024];
    for (int64_t h = 0; h < x->heads; h++) {
        const int64_t in = b * x->in_stride[0] + h * x->in_stride[1] + n * x->in_stride[2];
        const int64_t out = b * x->out_stride[0] + h * x->out_stride[1] + n * x->out_stride[2];
        oracle_load(dtype, row,
                    (const char *)x->in->host + in * (int64_t)oracle_element_bytes(dtype),
                    (size_t)head_dim);
        if (x->norm)
            normalize(c, x->norm, row);
        oracle_rotary_turn(row, c->spec.rope.style, oracle_rope_rotary_dim(c), cosines, sines);
        for (int64_t i = 0; i < head_dim; i++) {
            x->out->expected[out + i] = row[i];
            /* In place the tail is not to be written at all, unless it is normalized. */
            x->out->untouched[out + i] =
                c->spec.rope.in_place && !x->norm && i >= oracle_rope_rotary_dim(c);
        }
    }
}

void oracle_rope_expect(oracle_case *c)
{
    side sides[2];
    const size_t count = make_sides(c, sides);
    double cosines[512], sines[512];
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < sides[k].out->count; i++) {
            sides[k].out->expected[i] = (double)NAN;
            sides[k].out->untouched[i] = true;
        }
    const bool per_batch = c->spec.rope.positions != FA_ROPE_RANGE;
    for (int64_t n = 0; n < c->args.rope.seqlen; n++)
        for (int64_t b = 0; b < c->args.rope.batch; b++) {
            if (b == 0 || per_batch)
                angles_at(c, b, n, cosines, sines);
            for (size_t k = 0; k < count; k++)
                expect_token(c, &sides[k], b, n, cosines, sines);
        }
}
