/* Cases of kv_update: tensors, sizes and gates for the reference in kv_update.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_update_sizes.h"
#include "make.h"
#include "rotary.h"

/* Positions beside slots lie below, unless max_position says otherwise. */
#define SLOT_POSITIONS 512

static const char *const extra_names[] = {
    "pages",         /* of the pool; 0: as many as are used, and some */
    "max_pages",     /* of a batch's table; 0: as many as hold its tokens, and one */
    "slot_count",    /* tokens that have a slot; 0: all */
    "max_position",  /* rows of the tables; 0: as many as are used */
    "spoilt",        /* 1: some tokens are padding or outside */
    "stride_pad",    /* extra elements behind each row, head and batch */
    "launch_length", /* sequence_length of the launch, with scaling=dynamic_ntk */
    NULL,
};
static const int64_t extra_defaults[] = {0, 0, 0, 0, 1, 0, 4096};
_Static_assert(sizeof extra_defaults / sizeof extra_defaults[0] == ORACLE_KV_EXTRA_COUNT,
               "one each");

static void fill(oracle_tensor *t, uint64_t seed)
{
    const size_t bytes = t->count ? t->bytes / t->count : 0;
    for (size_t i = 0; i < t->count && t->host; i++) {
        const double value = (double)oracle_uniform(seed, i, -1, 1);
        char *at = (char *)t->host + i * bytes;
        if (t->is_e4m3)
            *(uint8_t *)at = oracle_e4m3_store(value);
        else
            oracle_store(t->dtype, at, &value, 1);
    }
}

static void add_new(oracle_case *c, int which, int64_t pad)
{
    fa_kv_update_args *a = &c->args.kv_update;
    const int64_t count = oracle_pad_strides(which ? &a->v_new : &a->k_new, true, a->batch,
                                             a->heads, a->tokens, dim_of(c, which), pad);
    fill(oracle_add_tensor(c, which ? "v_new" : "k_new", spec_of(c)->dtype, count),
         c->seed + (uint64_t)which);
}

static oracle_tensor *add_cached(oracle_case *c, const char *name, int64_t count)
{
    return spec_of(c)->cache_dtype == FA_KV_E4M3
               ? oracle_add_e4m3(c, name, count)
               : oracle_add_tensor(c, name, spec_of(c)->dtype, count);
}

static oracle_tensor *add_cache_like(oracle_case *c, fa_tensor *view, const char *name, int which,
                                     int64_t pad)
{
    const bool tokens_first = spec_of(c)->cache_layout == FA_KV_TOKENS_FIRST;
    const int64_t count =
        oracle_pad_strides(view, tokens_first, outer_of(c), c->args.kv_update.heads, entries_of(c),
                           dim_of(c, which), pad);
    return add_cached(c, name, count);
}

static void add_caches(oracle_case *c, int64_t pad)
{
    fa_kv_update_args *a = &c->args.kv_update;
    for (int k = 0; k < 2; k++) {
        oracle_tensor *t =
            add_cache_like(c, k ? &a->cache_v : &a->cache_k, k ? "cache_v" : "cache_k", k, pad);
        fill(t, c->seed + 2 + (uint64_t)k);
        if (spec_of(c)->in_place)
            oracle_keep_output(t);
    }
    if (spec_of(c)->in_place)
        return;
    if (pad) {
        oracle_keep_output(add_cache_like(c, &a->k_out, "k_out", 0, pad));
        oracle_keep_output(add_cache_like(c, &a->v_out, "v_out", 1, pad));
        return;
    }
    oracle_keep_output(add_cached(
        c, "out", outer_of(c) * a->heads * entries_of(c) * (dim_of(c, 0) + dim_of(c, 1))));
}

static bool add_indices(oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_spec *s = spec_of(c);
    const oracle_cache cache = cache_of(c);
    const bool slots = s->cache == FA_KV_SLOTS, spoilt = extra[ORACLE_KV_SPOILT] != 0;
    c->args.kv_update.positions_stride = cache.tokens;
    bool filled = true;
    if (!slots)
        filled = oracle_add_entries(c, &cache, "positions", s->position_type, spoilt);
    else if (s->rotation)
        oracle_add_positions(c, &cache, s->position_type, SLOT_POSITIONS);
    if (slots)
        filled = oracle_add_entries(c, &cache, "slots", s->slot_type, spoilt);
    if (s->cache == FA_KV_BLOCK_TABLE && filled)
        filled = oracle_add_block_table(c, &cache, spoilt);
    return filled;
}

static void add_angles(oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_spec *s = spec_of(c);
    const oracle_cache cache = cache_of(c);
    const oracle_turn by = turn_of(c);
    int64_t rows = extra[ORACLE_KV_MAX_POSITION];
    if (!rows)
        rows = s->cache == FA_KV_SLOTS ? SLOT_POSITIONS : oracle_cache_capacity(&cache);
    if (s->rotation && s->angles == FA_ROPE_TABLES)
        c->args.kv_update.max_position = (int32_t)rows;
    oracle_add_angles(c, &by, rows);
}

/* Scales that bring some values beyond the largest one. */
static void add_scales(oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    if (!s->scales)
        return;
    const int64_t count = s->scales == FA_KV_SCALE_HEAD ? c->args.kv_update.heads : 1;
    for (int k = 0; k < 2; k++) {
        float *scale = oracle_add_tensor(c, k ? "v_scale" : "k_scale", FA_F32, count)->host;
        for (int64_t i = 0; i < count && scale; i++)
            scale[i] = oracle_uniform(c->seed + 40 + (uint64_t)k, (uint64_t)i, 0.001, 0.02);
    }
}

/* Rounding to storage on top of float32 arithmetic on exact angles; of e4m3 half the distance of
 * two values. */
static void set_gate(oracle_case *c)
{
    const fa_dtype dtype = spec_of(c)->dtype;
    const bool quantized = spec_of(c)->cache_dtype == FA_KV_E4M3;
    c->atol = quantized ? 0x1.1p-10 : 1e-5;
    c->rtol = quantized ? 0x1.01p-4 : dtype == FA_F32 ? 1e-5 : dtype == FA_F16 ? 0x1p-11 : 0x1p-8;
}

static void count_work(oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    const fa_kv_update_args *a = &c->args.kv_update;
    const double dims = (double)(dim_of(c, 0) + dim_of(c, 1)) * a->heads;
    const double written = (double)oracle_kv_update_written(c);
    c->bytes_moved = written * dims * (double)(new_bytes(c) + cached_bytes(c));
    if (!s->in_place) {
        const double entries = (double)outer_of(c) * (double)entries_of(c);
        c->bytes_moved = dims * (written * (double)new_bytes(c) +
                                 (2 * entries - written) * (double)cached_bytes(c));
    }
    if (s->rotation && s->angles == FA_ROPE_TABLES)
        c->bytes_moved += written * (double)rotary_dim(c) * 4;
    for (size_t i = 0; i < c->tensor_count; i++)
        if (strcmp(c->tensor[i].name, "positions") == 0 || strcmp(c->tensor[i].name, "slots") == 0)
            c->bytes_moved += (double)c->tensor[i].bytes;
    c->flops = 3 * written * (double)rotary_dim(c) * a->heads;
}

static const char *problem_of(const oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_spec *s = spec_of(c);
    const fa_kv_update_args *a = &c->args.kv_update;
    if (a->batch < 1 || a->tokens < 0 || a->heads < 1 || a->head_dim < 1)
        return "batch, heads and head_dim must be set";
    if (a->head_dim > 1024 || rotary_dim(c) % 2 || rotary_dim(c) > a->head_dim)
        return "head_dim must be at most 1024, rotary_dim even and at most head_dim";
    if (entries_of(c) < 1)
        return "cache_len, or page_size of a pool, must be set";
    for (int i = 0; i < ORACLE_KV_EXTRA_COUNT; i++)
        if (extra[i] < 0 || extra[i] > INT32_MAX)
            return "pages, max_pages, slot_count, max_position, spoilt, stride_pad and "
                   "launch_length "
                   "cannot be negative or over 2147483647";
    if (extra[ORACLE_KV_SLOT_COUNT] > (int64_t)a->batch * a->tokens)
        return "slot_count cannot be over batch * tokens";
    const oracle_cache cache = cache_of(c);
    if (s->unique &&
        oracle_cache_capacity(&cache) < (s->cache == FA_KV_SLOTS ? slots_of(c) : a->tokens))
        return "unique needs an entry for each token: a larger cache_len, pages or max_pages";
    if (s->cache == FA_KV_BLOCK_TABLE && a->pages < (int64_t)a->batch * a->max_pages)
        return "pages cannot be under batch * max_pages";
    return NULL;
}

static void set_pages(oracle_case *c, const int64_t *extra)
{
    fa_kv_update_args *a = &c->args.kv_update;
    const int64_t size = a->page_size > 0 ? a->page_size : 1;
    if (spec_of(c)->cache == FA_KV_DENSE)
        return;
    a->max_pages = (int32_t)(extra[ORACLE_KV_MAX_PAGES] ? extra[ORACLE_KV_MAX_PAGES]
                                                        : (a->tokens + size - 1) / size + 1);
    const int64_t enough = spec_of(c)->cache == FA_KV_BLOCK_TABLE
                               ? (int64_t)a->batch * a->max_pages + 1
                               : ((int64_t)a->batch * a->tokens + size - 1) / size + 2;
    a->pages = (int32_t)(extra[ORACLE_KV_PAGES] ? extra[ORACLE_KV_PAGES] : enough);
}

static bool waits_for_length(const fa_kv_update_spec *s)
{
    return s->scaling.kind == FA_ROPE_DYNAMIC_NTK && !s->scaling.sequence_length;
}

static bool uses_size(const fa_spec *spec, const char *name)
{
    const fa_kv_update_spec *s = &spec->kv_update;
    const struct {
        const char *name;
        bool used;
    } some[] = {
        {"cache_len", s->cache == FA_KV_DENSE},
        {"page_size", s->cache != FA_KV_DENSE},
        {extra_names[ORACLE_KV_PAGES], s->cache != FA_KV_DENSE},
        {extra_names[ORACLE_KV_MAX_PAGES], s->cache == FA_KV_BLOCK_TABLE},
        {extra_names[ORACLE_KV_SLOT_COUNT], s->cache == FA_KV_SLOTS},
        {extra_names[ORACLE_KV_MAX_POSITION], s->rotation && s->angles == FA_ROPE_TABLES},
        {extra_names[ORACLE_KV_LENGTH], waits_for_length(s)},
    };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        if (strcmp(some[i].name, name) == 0)
            return some[i].used;
    return true;
}

static bool make_case(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size)
{
    const fa_kv_update_spec *n = &sizes->kv_update;
    *out = (oracle_case){.spec = *spec, .args = FA_ARGS_INIT(FA_OP_KV_UPDATE), .seed = seed};
    fa_kv_update_args *a = &out->args.kv_update;
    a->batch = n->batch;
    a->tokens = n->tokens;
    a->heads = n->heads;
    a->head_dim = n->head_dim;
    a->cache_len = spec_of(out)->cache == FA_KV_DENSE ? n->cache_len : 0;
    a->page_size = spec_of(out)->cache == FA_KV_DENSE ? 0 : n->page_size;
    extra = extra ? extra : extra_defaults;
    if (waits_for_length(n))
        a->sequence_length = (int32_t)extra[ORACLE_KV_LENGTH];
    set_pages(out, extra);
    const char *problem = problem_of(out, extra);
    if (problem) {
        snprintf(why, why_size, "%s", problem);
        return false;
    }
    for (int k = 0; k < 2; k++)
        add_new(out, k, extra[ORACLE_KV_STRIDE_PAD]);
    add_caches(out, extra[ORACLE_KV_STRIDE_PAD]);
    if (extra[ORACLE_KV_SLOT_COUNT] && spec_of(out)->cache == FA_KV_SLOTS)
        a->slot_count = extra[ORACLE_KV_SLOT_COUNT];
    const bool filled = add_indices(out, extra);
    add_angles(out, extra);
    add_scales(out);
    oracle_add_errors(out);
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
    fa_kv_update_args *a = &c->args.kv_update;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct {
            const char *name;
            void *to; /* a pointer of the args */
        } places[] = {
            {"k_new", &a->k_new.data},
            {"v_new", &a->v_new.data},
            {"cache_k", &a->cache_k.data},
            {"cache_v", &a->cache_v.data},
            {"out", &a->k_out.data},
            {"k_out", &a->k_out.data},
            {"v_out", &a->v_out.data},
            {"positions", &a->positions},
            {"slots", &a->slots},
            {"block_table", &a->block_table},
            {"cos", &a->cos},
            {"sin", &a->sin},
            {"k_scale", &a->k_scale},
            {"v_scale", &a->v_scale},
            {"errors", &a->errors},
            {"inv_freq", &a->inv_freq},
        };
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++)
            if (strcmp(c->tensor[i].name, places[k].name) == 0)
                memcpy(places[k].to, &device[i], sizeof device[i]);
    }
}

const fa_oracle fa_oracle_kv_update = {
    .op = FA_OP_KV_UPDATE,
    .extra_names = extra_names,
    .extra_defaults = extra_defaults,
    .uses_size = uses_size,
    .make_case = make_case,
    .expect = oracle_kv_update_expect,
    .bind = bind,
    .free_case = oracle_free_tensors,
};
