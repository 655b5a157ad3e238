/* Cases of rope: tensors, sizes and gates for the reference in rope.c. */
#include "rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "make.h"

enum {
    OFFSET,
    MAX_POSITION,
    POSITION_MAX,
    SHARED_POSITIONS,
    STRIDE_PAD,
    SEQUENCES,
    LAUNCH_LENGTH,
    EXTRA_COUNT
};

static const char *const extra_names[] = {
    "offset",           /* position of the first token; where positions are read: the smallest */
    "max_position",     /* rows of the tables; 0: as many as are used */
    "position_max",     /* read positions lie below offset + this; 0: seqlen */
    "shared_positions", /* 1: one vector for every batch */
    "stride_pad",       /* extra elements behind each row, head and batch */
    "sequences",        /* packed into the tokens, with positions=cumulative */
    "launch_length",    /* sequence_length of the launch, with scaling=dynamic_ntk */
    NULL,
};
static const int64_t extra_defaults[] = {0, 0, 0, 0, 0, 3, 4096};
_Static_assert(EXTRA_COUNT == ROPE_EXTRAS, "rope.h says the same");

/* --- q and k --- */

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
                oracle_store(x->dtype,
                             (char *)x->host + at * (int64_t)oracle_element_bytes(x->dtype), row,
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
    oracle_tensor *x = oracle_add_tensor(c, k ? "k" : "q", dtype, span(c, in, heads));
    if (x->host)
        fill_input(c, x, in, heads, c->seed + k);
    if (c->spec.rope.in_place) {
        make_output(x);
        return;
    }
    pad_strides(c, out, heads, extra[STRIDE_PAD]);
    make_output(oracle_add_tensor(c, k ? "k_out" : "q_out", dtype, span(c, out, heads)));
}

/* --- what is read beside them --- */

/* Of the positions that are drawn. */
static int64_t highest_drawn(const oracle_case *c, const int64_t *extra)
{
    const bool drawn = c->spec.rope.positions != FA_ROPE_RANGE;
    return extra[OFFSET] +
           (drawn && extra[POSITION_MAX] ? extra[POSITION_MAX] : c->args.rope.seqlen) - 1;
}

static int64_t highest_position(const oracle_case *c, const int64_t *extra)
{
    const bool added =
        c->spec.rope.positions == FA_ROPE_OFFSETS || c->spec.rope.positions == FA_ROPE_CUMULATIVE;
    return highest_drawn(c, extra) + (added ? c->args.rope.seqlen - 1 : 0);
}

static void draw_positions(oracle_case *c, const oracle_tensor *t, const int64_t *extra)
{
    const double low = (double)extra[OFFSET], high = (double)highest_drawn(c, extra) + 1;
    for (int64_t i = 0; i < (int64_t)t->count && t->host; i++) {
        double value =
            low + (high - low) * ((double)oracle_uniform(c->seed + 2, (uint64_t)i, 0, 1));
        oracle_set_index(t, i, (int64_t)fmin(floor(value), high - 1));
    }
}

static void add_cumulative(oracle_case *c, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    a->sequences = (int32_t)extra[SEQUENCES];
    const oracle_tensor *t =
        oracle_add_indices(c, "positions", c->spec.rope.position_type, a->sequences + 1);
    /* Even lengths, an empty one in the middle. */
    for (int64_t i = 0; i <= a->sequences && t->host; i++) {
        const int64_t part = i == a->sequences / 2 && i > 0 ? i - 1 : i;
        oracle_set_index(t, i, part * a->seqlen / a->sequences);
    }
    if (extra[OFFSET] || extra[POSITION_MAX])
        draw_positions(
            c, oracle_add_indices(c, "sequence_offsets", c->spec.rope.position_type, a->sequences),
            extra);
}

static void add_positions(oracle_case *c, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    const int64_t axes = c->spec.rope.sections ? 3 : 1;
    switch (c->spec.rope.positions) {
    case FA_ROPE_RANGE:
        a->position_offset = (int32_t)extra[OFFSET];
        return;
    case FA_ROPE_OFFSETS:
        draw_positions(c, oracle_add_indices(c, "positions", c->spec.rope.position_type, a->batch),
                       extra);
        return;
    case FA_ROPE_CUMULATIVE:
        add_cumulative(c, extra);
        return;
    case FA_ROPE_VECTOR:
        a->positions_stride = extra[SHARED_POSITIONS] ? 0 : a->seqlen;
        draw_positions(
            c,
            oracle_add_indices(c, "positions", c->spec.rope.position_type,
                               axes * (extra[SHARED_POSITIONS] ? 1 : a->batch) * a->seqlen),
            extra);
        return;
    }
}

static void add_tables(oracle_case *c, const int64_t *extra)
{
    fa_rope_args *a = &c->args.rope;
    const int64_t pairs = oracle_rope_rotary_dim(c) / 2;
    a->max_position =
        (int32_t)(extra[MAX_POSITION] ? extra[MAX_POSITION] : highest_position(c, extra) + 1);
    float *cosines = oracle_add_tensor(c, "cos", FA_F32, a->max_position * pairs)->host;
    float *sines = oracle_add_tensor(c, "sin", FA_F32, a->max_position * pairs)->host;
    for (int64_t i = 0; i < a->max_position * pairs && cosines && sines; i++) {
        double angle = (double)(i / pairs) * oracle_rope_frequency(c, i % pairs);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

static void add_frequencies(oracle_case *c)
{
    const int64_t pairs = oracle_rope_rotary_dim(c) / 2;
    float *inv_freq = oracle_add_tensor(c, "inv_freq", FA_F32, pairs)->host;
    for (int64_t j = 0; j < pairs && inv_freq; j++)
        inv_freq[j] = oracle_odd_frequency(oracle_rope_frequency(c, j), j, pairs);
}

static void add_weights(oracle_case *c, bool k)
{
    const fa_rope_spec *s = &c->spec.rope;
    const double least = s->norm_unit_offset ? -0.5 : 0.5;
    oracle_tensor *t =
        oracle_add_tensor(c, k ? "k_norm" : "q_norm",
                          s->norm == FA_ROPE_RMS_NORM ? s->dtype : FA_F32, c->args.rope.head_dim);
    for (int64_t i = 0; i < c->args.rope.head_dim && t->host; i++) {
        double value = (double)oracle_uniform(c->seed + 3 + k, (uint64_t)i, least, least + 1);
        oracle_store(t->dtype, (char *)t->host + i * (int64_t)oracle_element_bytes(t->dtype),
                     &value, 1);
    }
}

/* --- making a case --- */

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
    const double touched =
        (double)(c->spec.rope.in_place && !c->spec.rope.norm ? oracle_rope_rotary_dim(c)
                                                             : a->head_dim);
    c->bytes_moved = 2 * rows * touched * (double)oracle_element_bytes(c->spec.rope.dtype);
    for (size_t i = 0; i < c->tensor_count; i++)
        if (c->tensor[i].is_index)
            c->bytes_moved += (double)c->tensor[i].bytes;
    if (c->spec.rope.angles == FA_ROPE_TABLES)
        c->bytes_moved += (double)a->seqlen * (double)oracle_rope_rotary_dim(c) * 4;
    c->flops = 3 * rows * (double)oracle_rope_rotary_dim(c);
}

static bool waits_for_length(const fa_rope_spec *s)
{
    return s->scaling.kind == FA_ROPE_DYNAMIC_NTK && !s->scaling.sequence_length;
}

static bool uses_size(const fa_spec *spec, const char *name)
{
    const fa_rope_spec *s = &spec->rope;
    const struct {
        size_t extra;
        bool used;
    } some[] = {
        {MAX_POSITION, s->angles == FA_ROPE_TABLES},
        {POSITION_MAX, s->positions != FA_ROPE_RANGE},
        {SHARED_POSITIONS, s->positions == FA_ROPE_VECTOR},
        {SEQUENCES, s->positions == FA_ROPE_CUMULATIVE},
        {LAUNCH_LENGTH, waits_for_length(s)},
    };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        if (strcmp(extra_names[some[i].extra], name) == 0)
            return some[i].used;
    return true;
}

static bool fits(const oracle_case *c, int64_t low, int64_t high)
{
    const fa_rope_spec *s = &c->spec.rope;
    if (s->positions == FA_ROPE_RANGE)
        return low >= INT32_MIN && low <= INT32_MAX && high <= UINT32_MAX;
    return s->position_type == FA_I64 || (low >= INT32_MIN && high <= INT32_MAX);
}

static bool sizes_make_sense(const oracle_case *c, const int64_t *extra, char *why, size_t why_size)
{
    const fa_rope_args *a = &c->args.rope;
    const int64_t pairs = oracle_rope_rotary_dim(c), high = highest_position(c, extra);
    const char *problem = NULL;
    if (a->batch < 1 || a->seqlen < 1 || a->head_dim < 1 || a->heads_q < 0 || a->heads_k < 0 ||
        a->heads_q + a->heads_k < 1)
        problem = "batch, seqlen, head_dim and heads_q or heads_k must be set";
    else if (a->head_dim > 1024 || pairs % 2 || pairs > a->head_dim)
        problem = "head_dim must be at most 1024, rotary_dim even and at most head_dim";
    else if (extra[STRIDE_PAD] < 0 || extra[POSITION_MAX] < 0 || extra[MAX_POSITION] < 0)
        problem = "stride_pad, position_max and max_position cannot be negative";
    else if (c->spec.rope.positions == FA_ROPE_CUMULATIVE &&
             (a->batch != 1 || extra[SEQUENCES] < 1 || extra[SEQUENCES] > 1 << 20))
        problem = "packed sequences need batch = 1 and at least 1 sequence";
    else if (waits_for_length(&c->spec.rope) &&
             (extra[LAUNCH_LENGTH] < 1 || extra[LAUNCH_LENGTH] > INT32_MAX))
        problem = "launch_length must be at least 1";
    else if (!fits(c, extra[OFFSET], high))
        problem = "positions are beyond the type that holds them";
    else if (c->spec.rope.angles == FA_ROPE_TABLES &&
             (extra[OFFSET] < 0 || high >= INT32_MAX || extra[MAX_POSITION] > INT32_MAX))
        problem = "the tables cannot have these positions";
    if (problem)
        snprintf(why, why_size, "%s", problem);
    return !problem;
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
    if (waits_for_length(&spec->rope))
        a->sequence_length = (int32_t)extra[LAUNCH_LENGTH];
    add_side(out, false, extra);
    add_side(out, true, extra);
    add_positions(out, extra);
    if (spec->rope.angles == FA_ROPE_TABLES)
        add_tables(out, extra);
    if (spec->rope.angles == FA_ROPE_FREQUENCIES)
        add_frequencies(out);
    if (spec->rope.norm && a->heads_q)
        add_weights(out, false);
    if (spec->rope.norm && a->heads_k)
        add_weights(out, true);
    if (!oracle_has_memory(out)) {
        snprintf(why, why_size, "not enough host memory for this shape");
        oracle_free_tensors(out);
        return false;
    }
    set_gate(out);
    count_work(out);
    return true;
}

static void bind(oracle_case *c, void *const *device)
{
#define PLACE(member) offsetof(fa_rope_args, member)
    static const struct {
        const char *name;
        size_t offset;
    } places[] = {
        {"q", PLACE(q.data)},
        {"k", PLACE(k.data)},
        {"q_out", PLACE(q_out.data)},
        {"k_out", PLACE(k_out.data)},
        {"positions", PLACE(positions)},
        {"sequence_offsets", PLACE(sequence_offsets)},
        {"cos", PLACE(cos)},
        {"sin", PLACE(sin)},
        {"inv_freq", PLACE(inv_freq)},
        {"q_norm", PLACE(q_norm)},
        {"k_norm", PLACE(k_norm)},
    };
    for (size_t i = 0; i < c->tensor_count; i++)
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy((char *)&c->args.rope + places[k].offset, &device[i], sizeof device[i]);
}

const fa_oracle fa_oracle_rope = {
    .op = FA_OP_ROPE,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .uses_size = uses_size,
    .make_case = make_case,
    .expect = oracle_rope_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == EXTRA_COUNT, "one each");
