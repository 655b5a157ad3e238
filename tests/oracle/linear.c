/* Double-precision reference of linear. */
#include "linear.h"
#include "make.h"
#include "rotary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS 512

static const char *const extra_names[] = {
    "stride_pad",    /* extra elements behind each row */
    "row_count",     /* with mapped_rows; 0: twice as many as are written, and some */
    "spoilt",        /* 1: some mapped rows are skipped or outside */
    "offset",        /* position of the first row, without a vector of positions; 0: a vector */
    "max_position",  /* rows of the tables; 0: as many as are used */
    "launch_length", /* sequence_length of the launch, with scaling=dynamic_ntk */
    NULL,
};
static const int64_t extra_defaults[] = {0, 0, 1, 0, 0, 4096};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == ORACLE_LINEAR_EXTRA_COUNT,
               "one each");
static const char *const output_names[] = {"y0", "y1", "y2"};

static const fa_linear_spec *spec_of(const oracle_case *c)
{
    return &c->spec.linear;
}

static bool is_fp8(const oracle_case *c)
{
    return spec_of(c)->operands == FA_LINEAR_E4M3;
}

static fa_dtype output_dtype(const oracle_case *c)
{
    static const fa_dtype types[] = {
        [FA_LINEAR_OUT_F32] = FA_F32, [FA_LINEAR_OUT_F16] = FA_F16, [FA_LINEAR_OUT_BF16] = FA_BF16};
    return spec_of(c)->output ? types[spec_of(c)->output] : spec_of(c)->dtype;
}

static int64_t rotary_dim(const oracle_case *c)
{
    return spec_of(c)->rotary_dim ? spec_of(c)->rotary_dim : spec_of(c)->head_dim;
}

static int64_t rows_of_outputs(const oracle_case *c)
{
    return spec_of(c)->mapped_rows ? c->args.linear.row_count : c->args.linear.m;
}

static int outputs_of(const oracle_case *c)
{
    return 1 + (spec_of(c)->split_1 > 0) + (spec_of(c)->split_2 > 0);
}

/* Column where output i begins; of the last but one, where all end. */
static int64_t begin_of(const oracle_case *c, int i)
{
    if (i == 0)
        return 0;
    return i >= outputs_of(c) ? c->args.linear.n
           : i == 1           ? spec_of(c)->split_1
                              : spec_of(c)->split_2;
}

/* --- the reference --- */

static double activated(fa_linear_activation kind, double x)
{
    switch (kind) {
    case FA_LINEAR_SILU:
        return x / (1 + exp(-x));
    case FA_LINEAR_GELU:
        return 0.5 * x * erfc(-x / sqrt(2));
    case FA_LINEAR_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case FA_LINEAR_IDENTITY:
        break;
    }
    return x;
}

static int64_t position_of(oracle_case *c, int64_t m)
{
    const oracle_tensor *positions = oracle_find_tensor(c, "positions");
    return positions ? oracle_index(positions, m) : c->args.linear.position_offset + m;
}

static void rotate_row(oracle_case *c, int64_t position, double *row)
{
    const fa_linear_spec *s = spec_of(c);
    const fa_linear_args *a = &c->args.linear;
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
    double cosines[512], sines[512];
    oracle_rotary_angles(&angles, position, cosines, sines);
    const fa_rope_style style =
        s->rotation == FA_KV_ROTATE_HALF ? FA_ROPE_HALF : FA_ROPE_INTERLEAVED;
    const int64_t end = s->rotated ? s->rotated : a->n;
    for (int64_t n = 0; n + s->head_dim <= end; n += s->head_dim)
        oracle_rotary_turn(row + n, style, rotary_dim(c), cosines, sines);
}

/* Row m of y before it is rounded. */
static void make_row(oracle_case *c, const double *x, const double *w, int64_t m, double *row)
{
    const fa_linear_spec *s = spec_of(c);
    const fa_linear_args *a = &c->args.linear;
    const oracle_tensor *bias = oracle_find_tensor(c, "bias"),
                        *residual = oracle_find_tensor(c, "residual"),
                        *x_scale = oracle_find_tensor(c, "x_scale"),
                        *w_scale = oracle_find_tensor(c, "w_scale");
    const bool each = s->scales == FA_LINEAR_SCALE_ROW;
    for (int64_t n = 0; n < a->n; n++) {
        double sum = 0;
        for (int64_t k = 0; k < a->k; k++)
            sum += x[m * a->k + k] * w[n * a->k + k];
        if (x_scale)
            sum *= oracle_element(x_scale, each ? m : 0) * oracle_element(w_scale, each ? n : 0);
        row[n] = activated(s->activation, sum + (bias ? oracle_element(bias, n) : 0));
    }
    if (s->rotation)
        rotate_row(c, position_of(c, m), row);
    for (int64_t n = 0; residual && n < a->n; n++)
        row[n] += oracle_element(residual, m * oracle_row_stride(&a->residual, a->n) + n);
}

/* Where row m goes; below 0: nowhere. */
static int64_t target_of(oracle_case *c, int64_t m)
{
    oracle_tensor *errors = oracle_find_tensor(c, "errors");
    if (!spec_of(c)->mapped_rows)
        return m;
    const int64_t row = oracle_index(oracle_find_tensor(c, "rows"), m);
    const bool outside = row < -1 || row >= c->args.linear.row_count;
    if (outside && errors)
        ((uint32_t *)errors->stored)[0]++;
    return outside ? -1 : row;
}

static void put_row(oracle_case *c, int64_t to, const double *row)
{
    const fa_linear_args *a = &c->args.linear;
    for (int i = 0; i < outputs_of(c); i++) {
        oracle_tensor *y = oracle_find_tensor(c, output_names[i]);
        const int64_t begin = begin_of(c, i), columns = begin_of(c, i + 1) - begin;
        for (int64_t n = 0; n < columns; n++) {
            const int64_t at = to * oracle_row_stride(&a->y[i], columns) + n;
            y->expected[at] = row[begin + n];
            y->exact[at] = false;
        }
    }
}

void oracle_linear_expect(oracle_case *c)
{
    const fa_linear_args *a = &c->args.linear;
    for (size_t i = 0; i < c->tensor_count; i++) {
        oracle_tensor *t = &c->tensor[i];
        if (!t->output)
            continue;
        memcpy(t->stored, t->host, t->bytes);
        memset(t->exact, 1, t->count * sizeof *t->exact);
    }
    double *x = oracle_load_matrix(oracle_find_tensor(c, "x"), &a->x, a->m, a->k);
    double *w = oracle_load_matrix(oracle_find_tensor(c, "w"), &a->w, a->n, a->k);
    double *row = calloc((size_t)a->n + 1, sizeof *row);
    for (int64_t m = 0; x && w && row && m < a->m; m++) {
        const int64_t to = target_of(c, m);
        if (to < 0)
            continue;
        make_row(c, x, w, m, row);
        put_row(c, to, row);
    }
    free(x);
    free(w);
    free(row);
}

/* --- making a case --- */

static void fill(oracle_tensor *t, uint64_t seed, double lo, double hi)
{
    for (size_t i = 0; i < t->count && t->host; i++) {
        const double value = (double)oracle_uniform(seed, i, lo, hi);
        if (t->is_e4m3)
            ((uint8_t *)t->host)[i] = oracle_e4m3_store(value);
        else
            oracle_store(t->dtype, (char *)t->host + i * oracle_element_bytes(t->dtype), &value, 1);
    }
}

static oracle_tensor *add_matrix(oracle_case *c, const char *name, fa_matrix *x, fa_dtype dtype,
                                 bool fp8, int64_t rows, int64_t columns, int64_t pad)
{
    const int64_t count = oracle_pad_rows(x, rows, columns, pad);
    return fp8 ? oracle_add_e4m3(c, name, count) : oracle_add_tensor(c, name, dtype, count);
}

static void add_indices(oracle_case *c, const char *name, fa_index type,
                        int64_t (*value)(int64_t, int64_t, bool), int64_t of, bool spoilt)
{
    const oracle_tensor *t = oracle_add_indices(c, name, type, c->args.linear.m);
    for (int64_t i = 0; t->host && i < c->args.linear.m; i++)
        oracle_set_index(t, i, value(i, of, spoilt));
}

/* Every other row from the last one down, all distinct. */
static int64_t mapped_row(int64_t m, int64_t row_count, bool spoilt)
{
    if (spoilt && m % 5 == 3)
        return -1;
    if (spoilt && m % 7 == 5)
        return m % 2 ? row_count + m : -2 - m;
    return row_count - 1 - 2 * m;
}

static int64_t position(int64_t m, int64_t count, bool spoilt)
{
    (void)spoilt;
    return (m * 37 + 11) % count;
}

static void add_operands(oracle_case *c, int64_t pad)
{
    const fa_linear_spec *s = spec_of(c);
    fa_linear_args *a = &c->args.linear;
    fill(add_matrix(c, "x", &a->x, s->dtype, is_fp8(c), a->m, a->k, pad), c->seed, -1, 1);
    fill(add_matrix(c, "w", &a->w, s->dtype, is_fp8(c), a->n, a->k, pad), c->seed + 1, -1, 1);
    if (s->bias)
        fill(oracle_add_tensor(c, "bias", s->dtype, a->n), c->seed + 2, -4, 4);
    if (s->residual)
        fill(add_matrix(c, "residual", &a->residual, output_dtype(c), false, a->m, a->n, pad),
             c->seed + 3, -4, 4);
    if (s->scales) {
        const bool each = s->scales == FA_LINEAR_SCALE_ROW;
        fill(oracle_add_tensor(c, "x_scale", FA_F32, each ? a->m : 1), c->seed + 4, 0.5, 1.5);
        fill(oracle_add_tensor(c, "w_scale", FA_F32, each ? a->n : 1), c->seed + 5, 0.5, 1.5);
    }
}

static void add_outputs(oracle_case *c, int64_t pad)
{
    fa_linear_args *a = &c->args.linear;
    for (int i = 0; i < outputs_of(c); i++)
        oracle_keep_output(add_matrix(c, output_names[i], &a->y[i], output_dtype(c), false,
                                      rows_of_outputs(c), begin_of(c, i + 1) - begin_of(c, i),
                                      pad));
    if (!spec_of(c)->mapped_rows)
        return;
    oracle_tensor *errors = oracle_add_tensor(c, "errors", FA_F32, 1);
    oracle_keep_output(errors);
    if (errors->host)
        memset(errors->host, 0, 4);
}

static void add_rotation(oracle_case *c, const int64_t *extra)
{
    const fa_linear_spec *s = spec_of(c);
    fa_linear_args *a = &c->args.linear;
    const int64_t offset = extra[ORACLE_LINEAR_OFFSET], most = extra[ORACLE_LINEAR_MAX_POSITION];
    const int64_t pairs = rotary_dim(c) / 2, used = offset ? offset + a->m : POSITIONS;
    if (!s->rotation)
        return;
    a->position_offset = (int32_t)offset;
    a->max_position = (int32_t)(most ? most : used);
    if (!offset)
        add_indices(c, "positions", s->position_type, position, a->max_position, false);
    for (int i = 0; i < 2 && s->angles == FA_ROPE_TABLES; i++)
        fill(oracle_add_tensor(c, i ? "sin" : "cos", FA_F32, a->max_position * pairs),
             c->seed + 6 + (uint64_t)i, -1, 1);
    if (s->angles == FA_ROPE_FREQUENCIES)
        fill(oracle_add_tensor(c, "inv_freq", FA_F32, pairs), c->seed + 8, 0, 1);
}

/* Sums of k products of numbers below 1, in float32: errors grow with the root of k, with those of
 * tensor cores, which cut, also with k. Then one rounding to the output's type. */
static void set_gate(oracle_case *c)
{
    static const double rounding[] = {[FA_F32] = 1e-6, [FA_F16] = 0x1.1p-11, [FA_BF16] = 0x1.1p-8};
    const double k = c->args.linear.k;
    const bool f32 = spec_of(c)->dtype == FA_F32 && !is_fp8(c);
    c->atol = (1e-6 + (f32 ? 0 : k * 2e-9)) * (1 + sqrt(k)) * (spec_of(c)->scales ? 2.25 : 1);
    c->atol += spec_of(c)->residual || spec_of(c)->bias ? 1e-6 : 0;
    c->rtol = rounding[output_dtype(c)];
}

static void count_work(oracle_case *c)
{
    const fa_linear_args *a = &c->args.linear;
    c->tensor_time = is_fp8(c) ? 0.5 : oracle_tensor_time(spec_of(c)->dtype);
    c->flops = 2 * (double)a->m * a->n * a->k;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const oracle_tensor *t = &c->tensor[i];
        c->bytes_moved += (double)t->bytes;
        if (spec_of(c)->mapped_rows && t->output && t->count > 1) /* only what is written */
            c->bytes_moved += ((double)a->m / (double)rows_of_outputs(c) - 1) * (double)t->bytes;
    }
}

static const char *problem_of(const oracle_case *c, const int64_t *extra)
{
    const fa_linear_spec *s = spec_of(c);
    const fa_linear_args *a = &c->args.linear;
    if (a->m < 1 || a->n < 1 || a->k < 0)
        return "m, n and k must be set";
    if ((s->split_1 && s->split_1 >= a->n) || (s->split_2 && s->split_2 >= a->n))
        return "split_1 and split_2 must be below n";
    if (s->rotation && (s->head_dim < 2 || s->head_dim > 1024 || rotary_dim(c) > s->head_dim))
        return "head_dim must be 2 to 1024, rotary_dim at most head_dim";
    for (int i = 0; i < ORACLE_LINEAR_EXTRA_COUNT; i++)
        if (extra[i] < 0 || extra[i] > INT32_MAX)
            return "stride_pad, row_count, spoilt, offset, max_position and launch_length cannot "
                   "be "
                   "negative or over 2147483647";
    if (s->mapped_rows && a->row_count < 2 * (int64_t)a->m)
        return "row_count cannot be under 2 m";
    return NULL;
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_LINEAR), .seed = seed};
    fa_linear_args *a = &out->args.linear;
    extra = extra ? extra : extra_defaults;
    a->m = sizes->linear.m;
    a->n = sizes->linear.n;
    a->k = sizes->linear.k;
    const int64_t row_count = extra[ORACLE_LINEAR_ROW_COUNT];
    if (spec_of(out)->mapped_rows)
        a->row_count = row_count ? row_count : 2 * (int64_t)a->m + 3;
    if (spec_of(out)->scaling.kind == FA_ROPE_DYNAMIC_NTK && !spec_of(out)->scaling.sequence_length)
        a->sequence_length = (int32_t)extra[ORACLE_LINEAR_LENGTH];
    const char *problem = problem_of(out, extra);
    if (problem) {
        snprintf(why, why_size, "%s", problem);
        return false;
    }
    add_operands(out, extra[ORACLE_LINEAR_STRIDE_PAD]);
    add_outputs(out, extra[ORACLE_LINEAR_STRIDE_PAD]);
    if (spec_of(out)->mapped_rows)
        add_indices(out, "rows", spec_of(out)->row_type, mapped_row, a->row_count,
                    extra[ORACLE_LINEAR_SPOILT] != 0);
    add_rotation(out, extra);
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
    fa_linear_args *a = &c->args.linear;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct {
            const char *name;
            void *to; /* a pointer of the args */
        } places[] = {
            {"x", &a->x.data},          {"w", &a->w.data},
            {"y0", &a->y[0].data},      {"y1", &a->y[1].data},
            {"y2", &a->y[2].data},      {"residual", &a->residual.data},
            {"bias", &a->bias},         {"rows", &a->rows},
            {"errors", &a->errors},     {"positions", &a->positions},
            {"cos", &a->cos},           {"sin", &a->sin},
            {"inv_freq", &a->inv_freq}, {"x_scale", &a->x_scale},
            {"w_scale", &a->w_scale},
        };
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy(places[k].to, &device[i], sizeof device[i]);
    }
}

const fa_oracle fa_oracle_linear = {
    .op = FA_OP_LINEAR,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .make_case = make_case,
    .expect = oracle_linear_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
