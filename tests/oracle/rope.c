/* Double-precision reference of rope. At position p an angle is off by about p * 10^-16. */
#include "rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5a /* a finite value in every data type, so that leaving NaN out is noticed */

enum { OFFSET, MAX_POSITION, POSITION_MAX, SHARED_POSITIONS, STRIDE_PAD, EXTRA_COUNT };

static const char *const extra_names[] = {
    "offset",           /* position of the first token; with a vector: the smallest position */
    "max_position",     /* rows of the tables; 0: as many as are used */
    "position_max",     /* with a vector: positions lie below offset + this; 0: seqlen */
    "shared_positions", /* 1: one vector for every batch */
    "stride_pad",       /* extra elements behind each row, head and batch */
    NULL,
};
static const int64_t extra_defaults[] = {0, 0, 0, 0, 0};

static size_t element_bytes(fa_dtype dtype)
{
    return dtype == FA_F32 ? 4 : 2;
}

oracle_tensor *oracle_rope_tensor(oracle_case *c, const char *name)
{
    for (size_t i = 0; i < c->tensor_count; i++)
        if (strcmp(c->tensor[i].name, name) == 0)
            return &c->tensor[i];
    return NULL;
}

static int64_t rotary_dim(const oracle_case *c)
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

/* --- the reference --- */

static int64_t position_of(oracle_case *c, int64_t b, int64_t n)
{
    const fa_rope_args *a = &c->args.rope;
    if (c->spec.rope.positions == FA_ROPE_RANGE)
        return (int64_t)a->position_offset + n;
    const int32_t *positions = oracle_rope_tensor(c, "positions")->host;
    return positions[b * a->positions_stride + n];
}

static double inverse_frequency(double base, int64_t pair, int64_t pairs)
{
    return 1 / pow(base, (double)pair / (double)pairs);
}

/* Cosine and sine of every pair at one position. */
static void angles_at(oracle_case *c, int64_t position, double *cosines, double *sines)
{
    const fa_rope_spec *s = &c->spec.rope;
    const int64_t pairs = rotary_dim(c) / 2;
    const bool tables = s->angles == FA_ROPE_TABLES;
    const float *cos_table = tables ? oracle_rope_tensor(c, "cos")->host : NULL;
    const float *sin_table = tables ? oracle_rope_tensor(c, "sin")->host : NULL;
    const double base = s->base != 0 ? s->base : 10000;
    for (int64_t j = 0; j < pairs; j++) {
        if (!tables) {
            double angle = (double)position * inverse_frequency(base, j, pairs);
            cosines[j] = cos(angle);
            sines[j] = sin(angle);
        } else if (position >= 0 && position < c->args.rope.max_position) {
            cosines[j] = (double)cos_table[position * pairs + j];
            sines[j] = (double)sin_table[position * pairs + j];
        } else {
            cosines[j] = sines[j] = (double)NAN;
        }
    }
}

static void rotate_row(const oracle_case *c, const double *x, double *y, const double *cosines,
                       const double *sines)
{
    const int64_t head_dim = c->args.rope.head_dim, pairs = rotary_dim(c) / 2;
    const bool half = c->spec.rope.style == FA_ROPE_HALF;
    memcpy(y, x, (size_t)head_dim * sizeof *y);
    for (int64_t j = 0; j < pairs; j++) {
        const int64_t a = half ? j : 2 * j, b = half ? j + pairs : 2 * j + 1;
        y[a] = x[a] * cosines[j] - x[b] * sines[j];
        y[b] = x[b] * cosines[j] + x[a] * sines[j];
    }
}

typedef struct side { /* q or k */
    const oracle_tensor *in;
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
        x->in = oracle_rope_tensor(c, k ? "k" : "q");
        x->out = in_place ? oracle_rope_tensor(c, k ? "k" : "q")
                          : oracle_rope_tensor(c, k ? "k_out" : "q_out");
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
    double row[1024], rotated[1024];
    for (int64_t h = 0; h < x->heads; h++) {
        const int64_t in = b * x->in_stride[0] + h * x->in_stride[1] + n * x->in_stride[2];
        const int64_t out = b * x->out_stride[0] + h * x->out_stride[1] + n * x->out_stride[2];
        oracle_load(dtype, row, (const char *)x->in->host + in * (int64_t)element_bytes(dtype),
                    (size_t)head_dim);
        rotate_row(c, row, rotated, cosines, sines);
        for (int64_t i = 0; i < head_dim; i++) {
            x->out->expected[out + i] = rotated[i];
            /* In place the tail is not to be written at all. */
            x->out->untouched[out + i] = c->spec.rope.in_place && i >= rotary_dim(c);
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
    const bool per_batch = c->spec.rope.positions == FA_ROPE_VECTOR;
    for (int64_t n = 0; n < c->args.rope.seqlen; n++)
        for (int64_t b = 0; b < c->args.rope.batch; b++) {
            if (b == 0 || per_batch)
                angles_at(c, position_of(c, b, n), cosines, sines);
            for (size_t k = 0; k < count; k++)
                expect_token(c, &sides[k], b, n, cosines, sines);
        }
}

/* --- making a case --- */

static oracle_tensor *add_tensor(oracle_case *c, const char *name, fa_dtype dtype, int64_t count)
{
    oracle_tensor *t = &c->tensor[c->tensor_count++];
    *t = (oracle_tensor){.name = name, .dtype = dtype, .count = (size_t)count};
    t->bytes = (size_t)count * element_bytes(dtype);
    t->host = malloc(t->bytes);
    if (t->host)
        memset(t->host, POISON, t->bytes);
    return t;
}

static void make_output(oracle_tensor *t)
{
    t->output = true;
    t->expected = malloc(t->count * sizeof *t->expected);
    t->untouched = malloc(t->count * sizeof *t->untouched);
}

/* Strides with gaps; none are set without, which asks for the packed layout. */
static void pad_strides(const oracle_case *c, fa_tensor *t, int64_t heads, int64_t pad)
{
    const fa_rope_args *a = &c->args.rope;
    if (!pad)
        return;
    const bool bhnd = c->spec.rope.layout == FA_LAYOUT_BHND;
    const int64_t inner = a->head_dim + pad;
    const int64_t outer = (bhnd ? a->seqlen : heads) * inner + pad;
    t->stride_token = bhnd ? inner : outer;
    t->stride_head = bhnd ? outer : inner;
    t->stride_batch = (bhnd ? heads : a->seqlen) * outer + pad;
}

static int64_t span(const oracle_case *c, const fa_tensor *t, int64_t heads)
{
    const fa_rope_args *a = &c->args.rope;
    int64_t stride[3];
    oracle_rope_strides(c, t, heads, stride);
    return (a->batch - 1) * stride[0] + (heads - 1) * stride[1] + (a->seqlen - 1) * stride[2] +
           a->head_dim;
}

/* Element (b, h, n, d) is value ((b H + h) N + n) D + d of the generator, whatever the layout. */
static void fill_input(oracle_case *c, oracle_tensor *x, const fa_tensor *t, int64_t heads,
                       uint64_t seed)
{
    const fa_rope_args *a = &c->args.rope;
    int64_t stride[3];
    double row[1024];
    oracle_rope_strides(c, t, heads, stride);
    uint64_t value = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t n = 0; n < a->seqlen; n++) {
                for (int64_t d = 0; d < a->head_dim; d++)
                    row[d] = (double)oracle_uniform(seed, value++, -1, 1);
                int64_t at = b * stride[0] + h * stride[1] + n * stride[2];
                oracle_store(x->dtype, (char *)x->host + at * (int64_t)element_bytes(x->dtype), row,
                             (size_t)a->head_dim);
            }
}

static void add_side(oracle_case *c, bool k, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    const fa_dtype dtype = c->spec.rope.dtype;
    const int64_t heads = k ? a->heads_k : a->heads_q;
    fa_tensor *in = k ? &a->k : &a->q, *out = k ? &a->k_out : &a->q_out;
    if (!heads)
        return;
    pad_strides(c, in, heads, extra[STRIDE_PAD]);
    oracle_tensor *x = add_tensor(c, k ? "k" : "q", dtype, span(c, in, heads));
    if (x->host)
        fill_input(c, x, in, heads, c->seed + k);
    if (c->spec.rope.in_place) {
        make_output(x);
        return;
    }
    pad_strides(c, out, heads, extra[STRIDE_PAD]);
    make_output(add_tensor(c, k ? "k_out" : "q_out", dtype, span(c, out, heads)));
}

static int64_t highest_position(const oracle_case *c, const int64_t *extra)
{
    const int64_t count = c->spec.rope.positions == FA_ROPE_VECTOR && extra[POSITION_MAX]
                              ? extra[POSITION_MAX]
                              : c->args.rope.seqlen;
    return extra[OFFSET] + count - 1;
}

static void add_positions(oracle_case *c, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    a->positions_stride = extra[SHARED_POSITIONS] ? 0 : a->seqlen;
    const int64_t count = extra[SHARED_POSITIONS] ? a->seqlen : (int64_t)a->batch * a->seqlen;
    oracle_tensor *t = add_tensor(c, "positions", FA_F32, count);
    t->is_int32 = true;
    int32_t *positions = t->host;
    const double low = (double)extra[OFFSET], high = (double)highest_position(c, extra) + 1;
    for (int64_t i = 0; i < count && positions; i++) {
        double value =
            low + (high - low) * ((double)oracle_uniform(c->seed + 2, (uint64_t)i, 0, 1));
        positions[i] = (int32_t)fmin(floor(value), high - 1);
    }
}

static void add_tables(oracle_case *c, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    const int64_t pairs = rotary_dim(c) / 2;
    const double base = c->spec.rope.base != 0 ? c->spec.rope.base : 10000;
    a->max_position =
        (int32_t)(extra[MAX_POSITION] ? extra[MAX_POSITION] : highest_position(c, extra) + 1);
    float *cosines = add_tensor(c, "cos", FA_F32, a->max_position * pairs)->host;
    float *sines = add_tensor(c, "sin", FA_F32, a->max_position * pairs)->host;
    for (int64_t i = 0; i < a->max_position * pairs && cosines && sines; i++) {
        double angle = (double)(i / pairs) * inverse_frequency(base, i % pairs, pairs);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

/* The gate is that of float32 arithmetic on exact angles, at every position; for the 16-bit types
 * it is the rounding to storage (half a unit in the last place) on top. */
static void set_gate(oracle_case *c)
{
    const fa_dtype dtype = c->spec.rope.dtype;
    c->atol = 1e-5;
    c->rtol = dtype == FA_F32 ? 1e-5 : dtype == FA_F16 ? 0x1p-11 : 0x1p-8;
}

static void count_work(oracle_case *c)
{
    const fa_rope_args *a = &c->args.rope;
    const double rows = (double)a->batch * a->seqlen * ((double)a->heads_q + a->heads_k);
    const double touched = (double)(c->spec.rope.in_place ? rotary_dim(c) : a->head_dim);
    c->bytes_moved = 2 * rows * touched * (double)element_bytes(c->spec.rope.dtype);
    for (size_t i = 0; i < c->tensor_count; i++)
        if (strcmp(c->tensor[i].name, "positions") == 0)
            c->bytes_moved += (double)c->tensor[i].bytes;
    if (c->spec.rope.angles == FA_ROPE_TABLES)
        c->bytes_moved += (double)a->seqlen * (double)rotary_dim(c) * 4;
    c->flops = 3 * rows * (double)rotary_dim(c);
}

static bool sizes_make_sense(const oracle_case *c, const int64_t *extra, char *why, size_t why_size)
{
    const fa_rope_args *a = &c->args.rope;
    const int64_t pairs = rotary_dim(c), high = highest_position(c, extra);
    const char *problem = NULL;
    if (a->batch < 1 || a->seqlen < 1 || a->head_dim < 1 || a->heads_q < 0 || a->heads_k < 0 ||
        a->heads_q + a->heads_k < 1)
        problem = "batch, seqlen, head_dim and heads_q or heads_k must be set";
    else if (a->head_dim > 1024 || pairs % 2 || pairs > a->head_dim)
        problem = "head_dim must be at most 1024, rotary_dim even and at most head_dim";
    else if (extra[STRIDE_PAD] < 0 || extra[POSITION_MAX] < 0 || extra[MAX_POSITION] < 0)
        problem = "stride_pad, position_max and max_position cannot be negative";
    else if (extra[OFFSET] < INT32_MIN || extra[OFFSET] > INT32_MAX || high > UINT32_MAX ||
             (c->spec.rope.positions == FA_ROPE_VECTOR && high > INT32_MAX))
        problem = "positions are beyond int32";
    else if (c->spec.rope.angles == FA_ROPE_TABLES &&
             (extra[OFFSET] < 0 || high >= INT32_MAX || extra[MAX_POSITION] > INT32_MAX))
        problem = "the tables cannot have these positions";
    if (problem)
        snprintf(why, why_size, "%s", problem);
    return !problem;
}

static void free_case(oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        free(c->tensor[i].host);
        free(c->tensor[i].expected);
        free(c->tensor[i].untouched);
    }
    c->tensor_count = 0;
}

static bool has_memory(const oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        const oracle_tensor *t = &c->tensor[i];
        if (!t->host || (t->output && (!t->expected || !t->untouched)))
            return false;
    }
    return true;
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    const fa_rope_spec *n = &sizes->rope;
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_ROPE), .seed = seed};
    fa_rope_args *a = &out->args.rope;
    a->batch = n->batch;
    a->heads_q = n->heads_q;
    a->heads_k = n->heads_k;
    a->seqlen = n->seqlen;
    a->head_dim = n->head_dim;
    if (!extra)
        extra = extra_defaults;
    if (!sizes_make_sense(out, extra, why, why_size))
        return false;
    a->position_offset = (int32_t)extra[OFFSET];
    add_side(out, false, extra);
    add_side(out, true, extra);
    if (spec->rope.positions == FA_ROPE_VECTOR)
        add_positions(out, extra);
    if (spec->rope.angles == FA_ROPE_TABLES)
        add_tables(out, extra);
    if (!has_memory(out)) {
        snprintf(why, why_size, "not enough host memory for this shape");
        free_case(out);
        return false;
    }
    set_gate(out);
    count_work(out);
    oracle_rope_expect(out);
    return true;
}

static void bind(oracle_case *c, void *const *device)
{
    fa_rope_args *a = &c->args.rope;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const char *name = c->tensor[i].name;
        if (strcmp(name, "q") == 0)
            a->q.data = device[i];
        else if (strcmp(name, "k") == 0)
            a->k.data = device[i];
        else if (strcmp(name, "q_out") == 0)
            a->q_out.data = device[i];
        else if (strcmp(name, "k_out") == 0)
            a->k_out.data = device[i];
        else if (strcmp(name, "positions") == 0)
            a->positions = device[i];
        else if (strcmp(name, "cos") == 0)
            a->cos = device[i];
        else
            a->sin = device[i];
    }
}

const fa_oracle fa_oracle_rope = {
    .op = FA_OP_ROPE,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .make_case = make_case,
    .bind = bind,
    .free_case = free_case,
};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == EXTRA_COUNT, "one each");
