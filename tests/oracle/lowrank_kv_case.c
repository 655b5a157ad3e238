/* Cases of lowrank_kv: tensors, sizes and gates for the reference in lowrank_kv.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lowrank_kv_sizes.h"
#include "make.h"

#define MAX_POSITION 600
#define PI 3.14159265358979323846

static const char *const extra_names[] = {
    "cache_len",     /* to_cache: entries of a row of a dense cache */
    "page_size",     /* entries of a page */
    "pages",         /* of the pool; 0: as many as are used, and some */
    "slot_count",    /* tokens that have a slot; 0: all */
    "spoilt",        /* 1: some tokens are padding or outside */
    "stride_pad",    /* extra elements behind each row, head and batch */
    "offset",        /* position_offset */
    "launch_length", /* sequence_length of the launch, with scaling=dynamic_ntk */
    NULL,
};
static const int64_t extra_defaults[] = {128, 16, 0, 0, 1, 0, 0, 4096};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == ORACLE_LOWRANK_EXTRA_COUNT,
               "one each");

static void fill(oracle_tensor *t, uint64_t seed)
{
    for (size_t i = 0; i < t->count && t->host; i++) {
        const double value = oracle_normal(seed, i);
        oracle_store(t->dtype, (char *)t->host + i * (t->bytes / t->count), &value, 1);
    }
}

/* --- tensors --- */

static void add_input(oracle_case *c, const char *name, fa_tensor *view, int64_t outer,
                      int64_t heads, int64_t tokens, int64_t row, int64_t pad)
{
    const uint64_t seed = c->seed * 100 + c->tensor_count;
    const int64_t count = oracle_pad_strides(view, true, outer, heads, tokens, row, pad);
    fill(oracle_add_tensor(c, name, spec_of(c)->dtype, count), seed);
}

static void add_output(oracle_case *c, const char *name, fa_tensor *view, int64_t heads,
                       int64_t row, int64_t pad)
{
    const bool tokens_first = spec_of(c)->cache_layout == FA_KV_TOKENS_FIRST || heads == 1;
    const int64_t count =
        oracle_pad_strides(view, tokens_first, outer_of(c), heads, entries_of(c), row, pad);
    oracle_keep_output(oracle_add_tensor(c, name, spec_of(c)->dtype, count));
}

static void add_inputs(oracle_case *c, int64_t pad)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    if (has_down(c)) {
        fa_tensor down = {0};
        add_input(c, "hidden", &a->hidden, a->batch, 1, a->seqlen, a->model_dim, pad);
        add_input(c, "w_down", &down, 1, 1, a->model_dim, s->rank, pad);
        a->w_down_stride = down.stride_token;
    } else {
        add_input(c, "latent", &a->latent, a->batch, 1, a->seqlen, s->rank, pad);
    }
    if (has_up(c)) {
        add_input(c, "w_up_k", &a->w_up_k, 1, a->heads, s->rank, a->head_dim, pad);
        add_input(c, "w_up_v", &a->w_up_v, 1, a->heads, s->rank, dim_v(c), pad);
    }
    if (s->rope_dim)
        add_input(c, "k_rope", &a->k_rope, a->batch, 1, a->seqlen, s->rope_dim, pad);
    if (s->norm)
        fill(oracle_add_tensor(c, "norm_weight",
                               s->norm == FA_ROPE_RMS_NORM_F32 ? FA_F32 : s->dtype, s->rank),
             c->seed * 100 + 50);
}

static void add_outputs(oracle_case *c, int64_t pad)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    if (!has_up(c)) {
        add_output(c, "latent", &a->latent, 1, s->rank, pad);
    } else if (pad || s->to_cache) {
        add_output(c, "k_out", &a->k_out, a->heads, row_k(c), pad);
        add_output(c, "v_out", &a->v_out, a->heads, dim_v(c), pad);
    } else {
        oracle_keep_output(oracle_add_tensor(
            c, "out", s->dtype, (int64_t)a->batch * a->seqlen * a->heads * (row_k(c) + dim_v(c))));
    }
    if (rope_once(c))
        add_output(c, "rope_out", &a->rope_out, 1, s->rope_dim, pad);
    if (s->to_cache)
        oracle_add_errors(c);
}

/* --- indices and angles --- */

static bool add_indices(oracle_case *c, const int64_t *extra)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const bool slots = s->cache == FA_KV_SLOTS, spoilt = extra[ORACLE_LOWRANK_SPOILT] != 0;
    const oracle_cache cache = cache_of(c);
    bool filled = true;
    c->args.lowrank_kv.positions_stride = cache.tokens;
    if (!s->to_cache)
        return true;
    if (!slots)
        filled = oracle_add_entries(c, &cache, "positions", s->position_type, spoilt);
    else if (s->rotation)
        oracle_add_positions(c, &cache, s->position_type, MAX_POSITION);
    if (slots)
        filled = oracle_add_entries(c, &cache, "slots", s->slot_type, spoilt);
    if (s->cache == FA_KV_BLOCK_TABLE && filled)
        filled = oracle_add_block_table(c, &cache, spoilt);
    return filled;
}

/* --- what the result is held to --- */

/* In units of the root mean square of what is summed. The reference point is the canonical case,
 * 256 and 48 terms of normal numbers: 1e-4 where values have one of 111. Rounding grows with the root
 * of the number of steps; of few terms one may be much larger than all. In 16 bits the output is
 * rounded, and so is the latent where there is one on the way: what comes of that stays within eight
 * times its own root mean square, but of few terms, which are no normal distribution. */
static void set_gate(oracle_case *c)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const double m = has_down(c) ? c->args.lowrank_kv.model_dim : 1, r = has_up(c) ? s->rank : 1;
    double size = sqrt(r) * (s->norm ? 3 : sqrt(m));
    const double terms = has_down(c) && has_up(c) ? fmin(m, r) : fmax(m, r);
    double steps = fmax(fmax(1, 12 / terms), fmax(sqrt(m / 256), sqrt(r / 48)));
    double unit = 1e-4 / 111;
    c->rtol = 1e-4;
    if (s->dtype != FA_F32) {
        const double half_unit = s->dtype == FA_F16 ? 0x1p-11 : 0x1p-8;
        unit = s->form == FA_LOWRANK_WHOLE ? 3.5 * half_unit : 0x1p-19;
        c->rtol = (s->norm ? 2.1 : 1.05) * half_unit;
        steps = fmax(1, 24 / terms);
    } else if (s->sums == FA_LOWRANK_SUMS_TF32) {
        unit = c->rtol = 0x1p-8;
    }
    c->atol = fmax(unit * size * steps, 1e-6);
}

static void count_work(oracle_case *c)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    const double tokens = (double)a->batch * a->seqlen, rank = s->rank;
    c->tensor_time = s->sums == FA_LOWRANK_SUMS_TF32 ? 2 : oracle_tensor_time(s->dtype);
    if (has_down(c))
        c->flops += 2 * tokens * a->model_dim * rank;
    if (has_up(c))
        c->flops += 2 * tokens * rank * a->heads * (double)(a->head_dim + dim_v(c));
    for (size_t i = 0; i < c->tensor_count; i++) {
        const oracle_tensor *t = &c->tensor[i];
        double bytes = (double)t->bytes;
        if (t->output && s->to_cache) /* what the tokens write of it, at most */
            bytes = fmin(bytes, tokens * bytes / (double)(outer_of(c) * entries_of(c)));
        c->bytes_moved += bytes;
    }
}

static const char *problem_of(const oracle_case *c, const int64_t *extra)
{
    const fa_lowrank_kv_spec *s = spec_of(c);
    const fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    if (a->batch < 1 || a->seqlen < 1 || (has_down(c) && a->model_dim < 1) ||
        (has_up(c) && (a->heads < 1 || a->head_dim < 1)))
        return "batch, seqlen, model_dim, heads and head_dim must be set";
    if (s->rope_dim > 1024)
        return "rope_dim must be at most 1024";
    for (int i = 0; i < ORACLE_LOWRANK_EXTRA_COUNT; i++)
        if (extra[i] < 0 || extra[i] > INT32_MAX)
            return "cache_len, page_size, pages, slot_count, spoilt, stride_pad, offset and "
                   "launch_length cannot be negative or over 2147483647";
    if (s->to_cache && entries_of(c) < 1)
        return "cache_len, or page_size of a pool, must be set";
    if (extra[ORACLE_LOWRANK_SLOT_COUNT] > (int64_t)a->batch * a->seqlen)
        return "slot_count cannot be over batch * seqlen";
    const oracle_cache cache = cache_of(c);
    if (s->to_cache && s->unique &&
        oracle_cache_capacity(&cache) < (s->cache == FA_KV_SLOTS ? cache.slot_count : a->seqlen))
        return "unique needs an entry for each token: a larger cache_len or pages";
    if (s->to_cache && s->cache == FA_KV_BLOCK_TABLE && a->pages < (int64_t)a->batch * a->max_pages)
        return "pages cannot be under batch * max_pages";
    return NULL;
}

static bool waits_for_length(const fa_lowrank_kv_spec *s)
{
    return s->rotation && s->scaling.kind == FA_ROPE_DYNAMIC_NTK && !s->scaling.sequence_length;
}

static bool uses_size(const fa_spec *spec, const char *name)
{
    const fa_lowrank_kv_spec *s = &spec->lowrank_kv;
    const bool pages = s->to_cache && s->cache != FA_KV_DENSE;
    const struct {
        const char *name;
        bool used;
    } some[] = {
        {"model_dim", s->form != FA_LOWRANK_UP},
        {"heads", s->form != FA_LOWRANK_DOWN},
        {"head_dim", s->form != FA_LOWRANK_DOWN},
        {extra_names[ORACLE_LOWRANK_CACHE_LEN], s->to_cache && !pages},
        {extra_names[ORACLE_LOWRANK_PAGE_SIZE], pages},
        {extra_names[ORACLE_LOWRANK_PAGES], pages},
        {extra_names[ORACLE_LOWRANK_SLOT_COUNT], pages && s->cache == FA_KV_SLOTS},
        {extra_names[ORACLE_LOWRANK_SPOILT], s->to_cache},
        {extra_names[ORACLE_LOWRANK_OFFSET], s->rotation && !s->to_cache},
        {extra_names[ORACLE_LOWRANK_LENGTH], waits_for_length(s)},
    };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        if (strcmp(some[i].name, name) == 0)
            return some[i].used;
    return true;
}

static void set_sizes(oracle_case *c, const fa_lowrank_kv_spec *n, const int64_t *extra)
{
    fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    a->batch = n->batch;
    a->seqlen = n->seqlen;
    a->model_dim = has_down(c) ? n->model_dim : 0;
    a->heads = has_up(c) ? n->heads : 0;
    a->head_dim = has_up(c) ? n->head_dim : 0;
    a->position_offset = (int32_t)extra[ORACLE_LOWRANK_OFFSET];
    if (waits_for_length(n))
        a->sequence_length = (int32_t)extra[ORACLE_LOWRANK_LENGTH];
    if (!n->to_cache)
        return;
    if (n->cache == FA_KV_SLOTS)
        a->slot_count = extra[ORACLE_LOWRANK_SLOT_COUNT];
    if (n->cache == FA_KV_DENSE) {
        a->cache_len = (int32_t)extra[ORACLE_LOWRANK_CACHE_LEN];
        return;
    }
    a->page_size = (int32_t)extra[ORACLE_LOWRANK_PAGE_SIZE];
    const int64_t size = a->page_size > 0 ? a->page_size : 1;
    a->max_pages = (int32_t)((n->seqlen + size - 1) / size + 1);
    const int64_t pages = n->batch * (int64_t)a->max_pages + 1;
    a->pages = (int32_t)(extra[ORACLE_LOWRANK_PAGES] ? extra[ORACLE_LOWRANK_PAGES] : pages);
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_LOWRANK_KV), .seed = seed};
    extra = extra ? extra : extra_defaults;
    set_sizes(out, &sizes->lowrank_kv, extra);
    if (!out->spec.lowrank_kv.head_dim_v) /* a dynamic head_dim is that of V too */
        out->spec.lowrank_kv.head_dim_v = out->args.lowrank_kv.head_dim;
    const char *problem = problem_of(out, extra);
    if (problem) {
        snprintf(why, why_size, "%s", problem);
        return false;
    }
    add_inputs(out, extra[ORACLE_LOWRANK_STRIDE_PAD]);
    add_outputs(out, extra[ORACLE_LOWRANK_STRIDE_PAD]);
    const bool filled = add_indices(out, extra);
    const oracle_turn by = turn_of(out);
    if (by.rotation && by.angles == FA_ROPE_TABLES)
        out->args.lowrank_kv.max_position = MAX_POSITION;
    oracle_add_angles(out, &by, MAX_POSITION);
    if (!filled || !oracle_has_memory(out)) {
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
    fa_lowrank_kv_args *a = &c->args.lowrank_kv;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct {
            const char *name;
            void *to; /* a pointer of the args */
        } places[] = {
            {"hidden", &a->hidden.data},
            {"w_down", &a->w_down},
            {"w_up_k", &a->w_up_k.data},
            {"w_up_v", &a->w_up_v.data},
            {"latent", &a->latent.data},
            {"k_rope", &a->k_rope.data},
            {"norm_weight", &a->norm_weight},
            {"out", &a->k_out.data},
            {"k_out", &a->k_out.data},
            {"v_out", &a->v_out.data},
            {"rope_out", &a->rope_out.data},
            {"positions", &a->positions},
            {"slots", &a->slots},
            {"block_table", &a->block_table},
            {"cos", &a->cos},
            {"sin", &a->sin},
            {"inv_freq", &a->inv_freq},
            {"errors", &a->errors},
        };
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy(places[k].to, &device[i], sizeof device[i]);
    }
}

const fa_oracle fa_oracle_lowrank_kv = {
    .op = FA_OP_LOWRANK_KV,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .uses_size = uses_size,
    .make_case = make_case,
    .expect = oracle_lowrank_kv_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
