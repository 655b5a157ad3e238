/* Cases of cross_attention: tensors, sizes and work for the reference in cross_attention.c. */
#include "cross_attention_sizes.h"
#include "make.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GAP 0xff /* NaN in every data type, where nothing may be read */

static const char *const extra_names[] = {
    "stride_pad",    /* extra elements behind each row, head and batch, NaN in inputs */
    "magnitude",     /* x_query and x_kv are that often normally distributed numbers */
    "gain",          /* w_q and w_k are that much larger, the scores with its square */
    "self",          /* 1: x_kv is x_query */
    "offset_q",      /* positions of the first query and the first key */
    "offset_k",      /**/
    "max_position",  /* rows of the tables; 0: as many as are used */
    "launch_length", /* sequence_length of the launch, with scaling=dynamic_ntk */
    "heads_first",   /* 1: k and v are [B, G, Tk, D] */
    NULL,
};
static const int64_t extra_defaults[] = {0, 1, 1, 0, 0, 0, 0, 4096, 0};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == ORACLE_CROSS_EXTRA_COUNT,
               "one each");

/* --- tensors --- */

enum { NORMAL, UNIFORM };

/* Numbered by element, not by place in memory, of which there are `count`. */
static void add_input(oracle_case *c, const char *name, placing at, int64_t count, int64_t rows,
                      int64_t columns, int distribution, double size)
{
    const fa_dtype dtype = spec_of(c)->dtype;
    const uint64_t seed = c->seed * 100 + c->tensor_count;
    oracle_tensor *t = oracle_add_tensor(c, name, dtype, count);
    if (t->host)
        memset(t->host, GAP, t->bytes);
    for (int64_t i = 0; i < rows * columns && t->host; i++) {
        const size_t place = (size_t)place_of(&at, i / columns, i % columns);
        const double value = distribution == NORMAL
                                 ? size * oracle_normal(seed, (uint64_t)i)
                                 : (double)oracle_uniform(seed, (uint64_t)i, -size, size);
        oracle_store(dtype, (char *)t->host + place * oracle_element_bytes(dtype), &value, 1);
    }
}

static void add_rows(oracle_case *c, const char *name, fa_matrix *x, int64_t rows, int64_t columns,
                     int64_t pad, double size)
{
    const int64_t count = oracle_pad_rows(x, rows, columns, pad);
    add_input(c, name, rows_placed(x, rows, columns), count, rows, columns, UNIFORM, size);
}

static void add_bias(oracle_case *c, const char *name, int64_t columns)
{
    add_rows(c, name, &(fa_matrix){0}, 1, columns, 0, 0.5);
}

/* Weights as layers begin with: U(-1 / sqrt(columns), 1 / sqrt(columns)). */
static void add_weights(oracle_case *c, const char *name, fa_matrix *w, int64_t rows,
                        int64_t columns, int64_t pad, double gain)
{
    add_rows(c, name, w, rows, columns, pad, gain / sqrt((double)columns));
}

/* Lays out x_query, x_kv or out. */
static int64_t pad_tokens(const oracle_case *c, fa_tensor *x, int64_t tokens, int64_t pad)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    return oracle_pad_strides(x, true, a->batch, 1, tokens, a->model_dim, pad);
}

/* Lays out k or v. */
static int64_t pad_kept(const oracle_case *c, fa_tensor *x, const int64_t *extra)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t heads = spec_of(c)->heads_k, dim = spec_of(c)->head_dim;
    const bool tokens_first = !extra[ORACLE_CROSS_HEADS_FIRST];
    if (!tokens_first) {
        const lattice l = strides_of(x, false, heads, a->seqlen_k, dim);
        *x = (fa_tensor){NULL, l.outer, l.head, l.token};
    }
    return oracle_pad_strides(x, tokens_first, a->batch, heads, a->seqlen_k, dim,
                              extra[ORACLE_CROSS_STRIDE_PAD]);
}

static void add_query_tensors(oracle_case *c, const int64_t *extra)
{
    const fa_cross_attention_spec *s = spec_of(c);
    fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t pad = extra[ORACLE_CROSS_STRIDE_PAD];
    const int64_t count = pad_tokens(c, &a->x_query, a->seqlen_q, pad);
    add_input(c, "x_query", queries_placed(c, &a->x_query), count, queries_of(c), a->model_dim,
              NORMAL, (double)extra[ORACLE_CROSS_MAGNITUDE]);
    add_weights(c, "w_q", &a->w_q, columns_q(c), a->model_dim, pad,
                (double)extra[ORACLE_CROSS_GAIN]);
    add_weights(c, "w_out", &a->w_out, a->model_dim, columns_q(c), pad, 1);
    if (s->bias)
        add_bias(c, "b_q", columns_q(c));
    if (s->bias_out)
        add_bias(c, "b_out", a->model_dim);
    oracle_add_output(c, "out", spec_of(c)->dtype, pad_tokens(c, &a->out, a->seqlen_q, pad));
}

static void add_key_tensors(oracle_case *c, const int64_t *extra)
{
    const fa_cross_attention_spec *s = spec_of(c);
    fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t pad = extra[ORACLE_CROSS_STRIDE_PAD];
    const int64_t count = pad_tokens(c, &a->x_kv, a->seqlen_k, pad);
    if (!extra[ORACLE_CROSS_SELF])
        add_input(c, "x_kv", keys_placed(c, &a->x_kv), count, keys_of(c), a->model_dim, NORMAL,
                  (double)extra[ORACLE_CROSS_MAGNITUDE]);
    add_weights(c, "w_k", &a->w_k, columns_k(c), a->model_dim, pad,
                (double)extra[ORACLE_CROSS_GAIN]);
    add_weights(c, "w_v", &a->w_v, columns_k(c), a->model_dim, pad, 1);
    if (s->bias)
        add_bias(c, "b_k", columns_k(c));
    if (s->bias)
        add_bias(c, "b_v", columns_k(c));
}

/* k and v themselves: of KEYS its outputs, of QUERIES inputs as KEYS makes them. */
static void add_kept(oracle_case *c, const int64_t *extra)
{
    fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t rows = keys_of(c), columns = columns_k(c);
    if (spec_of(c)->form == FA_CROSS_WHOLE)
        return;
    const double size = (double)extra[ORACLE_CROSS_MAGNITUDE] / sqrt(3);
    const int64_t of_k = pad_kept(c, &a->k, extra), of_v = pad_kept(c, &a->v, extra);
    if (spec_of(c)->form == FA_CROSS_KEYS) {
        oracle_add_output(c, "k", spec_of(c)->dtype, of_k);
        oracle_add_output(c, "v", spec_of(c)->dtype, of_v);
    }
    if (spec_of(c)->form == FA_CROSS_QUERIES) {
        add_input(c, "k", kept_placed(c, &a->k), of_k, rows, columns, NORMAL,
                  size * (double)extra[ORACLE_CROSS_GAIN]);
        add_input(c, "v", kept_placed(c, &a->v), of_v, rows, columns, NORMAL, size);
    }
}

static void add_floats(oracle_case *c, const char *name, int64_t count, double lo, double hi)
{
    const uint64_t seed = c->seed * 100 + c->tensor_count;
    float *values = oracle_add_tensor(c, name, FA_F32, count)->host;
    for (int64_t i = 0; i < count && values; i++)
        values[i] = oracle_uniform(seed, (uint64_t)i, lo, hi);
}

static void add_angles(oracle_case *c, const int64_t *extra)
{
    const fa_cross_attention_spec *s = spec_of(c);
    fa_cross_attention_args *a = &c->args.cross_attention;
    const int64_t past_q = has_queries(c) ? a->position_offset_q + (int64_t)a->seqlen_q : 0;
    const int64_t past_k = has_x_kv(c) ? a->position_offset_k + (int64_t)a->seqlen_k : 0;
    const int64_t pairs = rotary_dim(c) / 2, used = past_q > past_k ? past_q : past_k;
    if (s->rotation && s->angles == FA_ROPE_FREQUENCIES)
        add_floats(c, "inv_freq", pairs, 0, 1);
    if (!s->rotation || s->angles != FA_ROPE_TABLES)
        return;
    const int64_t given = extra[ORACLE_CROSS_MAX_POSITION];
    a->max_position = (int32_t)(given ? given : used);
    add_floats(c, "cos", a->max_position * pairs, -1, 1);
    add_floats(c, "sin", a->max_position * pairs, -1, 1);
}

/* --- the case --- */

/* Queries and keys of one batch that see each other, in one head. */
static double pairs_of(const oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    double pairs = 0;
    for (int64_t i = 0; i < a->seqlen_q; i++) {
        const int64_t past = spec_of(c)->mask == FA_ATTENTION_FULL ? a->seqlen_k
                             : spec_of(c)->mask == FA_ATTENTION_CAUSAL
                                 ? i + a->seqlen_k - a->seqlen_q + 1
                                 : i + 1;
        pairs += (double)(past < 0 ? 0 : past > a->seqlen_k ? a->seqlen_k : past);
    }
    return pairs;
}

static void count_work(oracle_case *c)
{
    const fa_cross_attention_args *a = &c->args.cross_attention;
    const double model = a->model_dim;
    c->tensor_time = oracle_tensor_time(spec_of(c)->dtype);
    if (has_x_kv(c))
        c->flops += 2 * (double)keys_of(c) * model * 2 * (double)columns_k(c);
    if (has_queries(c))
        c->flops += 2 * (double)queries_of(c) * model * 2 * (double)columns_q(c) +
                    2 * pairs_of(c) * 2 * (double)columns_q(c) * a->batch;
    for (size_t i = 0; i < c->tensor_count; i++)
        c->bytes_moved += (double)c->tensor[i].bytes;
}

static const char *problem_of(const oracle_case *c, const int64_t *extra)
{
    const fa_cross_attention_spec *s = spec_of(c);
    const fa_cross_attention_args *a = &c->args.cross_attention;
    if (a->batch < 1 || a->model_dim < 1 || s->heads_k < 1 ||
        (has_queries(c) && (a->seqlen_q < 1 || s->heads_q < 1)))
        return "batch, model_dim, heads_q, heads_k and seqlen_q must be set";
    if (a->seqlen_k < (has_queries(c) ? 0 : 1))
        return "seqlen_k must be set";
    if (has_queries(c) && s->heads_q % s->heads_k)
        return "heads_q must be a multiple of heads_k";
    if (s->head_dim < 1 || s->head_dim > 256 || rotary_dim(c) > s->head_dim)
        return "head_dim must be 1 to 256, rotary_dim at most head_dim";
    for (int i = 0; i < ORACLE_CROSS_EXTRA_COUNT; i++)
        if (extra[i] < 0 || extra[i] > INT32_MAX / 2)
            return "stride_pad, magnitude, gain, self, offset_q, offset_k, max_position, "
                   "launch_length and heads_first cannot be negative or over 1073741823";
    if (extra[ORACLE_CROSS_SELF] && (s->form != FA_CROSS_WHOLE || a->seqlen_q != a->seqlen_k))
        return "self needs the whole form, and as many queries as keys";
    return NULL;
}

static bool waits_for_length(const fa_cross_attention_spec *s)
{
    return s->scaling.kind == FA_ROPE_DYNAMIC_NTK && !s->scaling.sequence_length;
}

static bool uses_size(const fa_spec *spec, const char *name)
{
    const fa_cross_attention_spec *s = &spec->cross_attention;
    const bool queries = s->form != FA_CROSS_KEYS, keys = s->form != FA_CROSS_QUERIES;
    const struct {
        const char *name;
        bool used;
    } some[] = {
        {"seqlen_q", queries},
        {extra_names[ORACLE_CROSS_SELF], queries && keys},
        {extra_names[ORACLE_CROSS_HEADS_FIRST], !(queries && keys)},
        {extra_names[ORACLE_CROSS_OFFSET_Q], s->rotation && queries},
        {extra_names[ORACLE_CROSS_OFFSET_K], s->rotation && keys},
        {extra_names[ORACLE_CROSS_MAX_POSITION], s->rotation && s->angles == FA_ROPE_TABLES},
        {extra_names[ORACLE_CROSS_LENGTH], waits_for_length(s)},
    };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        if (strcmp(some[i].name, name) == 0)
            return some[i].used;
    return true;
}

static void set_sizes(oracle_case *c, const fa_cross_attention_spec *n, const int64_t *extra)
{
    fa_cross_attention_args *a = &c->args.cross_attention;
    a->batch = n->batch;
    a->seqlen_q = has_queries(c) ? n->seqlen_q : 0;
    a->seqlen_k = n->seqlen_k;
    a->model_dim = n->model_dim;
    a->position_offset_q = (int32_t)extra[ORACLE_CROSS_OFFSET_Q];
    a->position_offset_k = (int32_t)extra[ORACLE_CROSS_OFFSET_K];
    if (waits_for_length(spec_of(c)))
        a->sequence_length = (int32_t)extra[ORACLE_CROSS_LENGTH];
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_CROSS_ATTENTION), .seed = seed};
    extra = extra ? extra : extra_defaults;
    set_sizes(out, &sizes->cross_attention, extra);
    const char *problem = problem_of(out, extra);
    if (problem) {
        snprintf(why, why_size, "%s", problem);
        return false;
    }
    if (has_queries(out))
        add_query_tensors(out, extra);
    if (has_x_kv(out))
        add_key_tensors(out, extra);
    add_kept(out, extra);
    add_angles(out, extra);
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
    fa_cross_attention_args *a = &c->args.cross_attention;
    const struct {
        const char *name;
        void *to; /* a pointer of the args */
    } places[] = {
        {"x_query", &a->x_query.data},
        {"x_kv", &a->x_kv.data},
        {"out", &a->out.data},
        {"k", &a->k.data},
        {"v", &a->v.data},
        {"w_q", &a->w_q.data},
        {"w_k", &a->w_k.data},
        {"w_v", &a->w_v.data},
        {"w_out", &a->w_out.data},
        {"b_q", &a->b_q},
        {"b_k", &a->b_k},
        {"b_v", &a->b_v},
        {"b_out", &a->b_out},
        {"cos", &a->cos},
        {"sin", &a->sin},
        {"inv_freq", &a->inv_freq},
    };
    for (size_t i = 0; i < c->tensor_count; i++)
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy(places[k].to, &device[i], sizeof device[i]);
    if (spec_of(c)->form == FA_CROSS_WHOLE && !oracle_find_tensor(c, "x_kv"))
        a->x_kv.data = a->x_query.data;
}

const fa_oracle fa_oracle_cross_attention = {
    .op = FA_OP_CROSS_ATTENTION,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .uses_size = uses_size,
    .make_case = make_case,
    .expect = oracle_cross_attention_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
