/* Double-precision reference of kv_update. What is only copied, or only quantized, is exact. */
#include "kv_update.h"
#include "rotary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5a /* a finite value in every data type, so that leaving NaN out is noticed */
#define SLOT_POSITIONS                                                                             \
    512 /* positions beside slots lie below, unless max_position says otherwise */

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

static const fa_kv_update_spec *spec_of(const oracle_case *c)
{
    return &c->spec.kv_update;
}

static size_t new_bytes(const oracle_case *c)
{
    return spec_of(c)->dtype == FA_F32 ? 4 : 2;
}

static size_t cached_bytes(const oracle_case *c)
{
    return spec_of(c)->cache_dtype == FA_KV_E4M3 ? 1 : new_bytes(c);
}

static int64_t dim_of(const oracle_case *c, int which)
{
    const int32_t dim_v = spec_of(c)->head_dim_v;
    return which && dim_v ? dim_v : c->args.kv_update.head_dim;
}

static int64_t rotary_dim(const oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    return !s->rotation ? 0 : s->rotary_dim ? s->rotary_dim : c->args.kv_update.head_dim;
}

/* Rows of a dense cache, or pages; and how many entries each has. */
static int64_t outer_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return spec_of(c)->cache == FA_KV_DENSE ? a->batch : a->pages;
}

static int64_t entries_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return spec_of(c)->cache == FA_KV_DENSE ? a->cache_len : a->page_size;
}

/* Entries that a token of this case can go to. */
static int64_t capacity(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    switch (spec_of(c)->cache) {
    case FA_KV_DENSE:
        return a->cache_len;
    case FA_KV_SLOTS:
        return (int64_t)a->pages * a->page_size;
    case FA_KV_BLOCK_TABLE:
        return (int64_t)a->max_pages * a->page_size;
    }
    return 0;
}

static int64_t slots_of(const oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return a->slot_count ? a->slot_count : (int64_t)a->batch * a->tokens;
}

/* --- strides --- */

typedef struct lattice {
    int64_t outer, head, token;
} lattice;

static lattice strides_of(const fa_tensor *t, bool tokens_first, int64_t heads, int64_t tokens,
                          int64_t dim)
{
    if (t->stride_batch || t->stride_head || t->stride_token)
        return (lattice){t->stride_batch, t->stride_head, t->stride_token};
    return (lattice){heads * tokens * dim, (tokens_first ? 1 : tokens) * dim,
                     (tokens_first ? heads : 1) * dim};
}

static lattice new_strides(const oracle_case *c, int which)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    return strides_of(which ? &a->v_new : &a->k_new, true, a->heads, a->tokens, dim_of(c, which));
}

static lattice cache_strides(const oracle_case *c, const fa_tensor *t, int which)
{
    return strides_of(t, spec_of(c)->cache_layout == FA_KV_TOKENS_FIRST, c->args.kv_update.heads,
                      entries_of(c), dim_of(c, which));
}

/* --- the reference --- */

int64_t oracle_kv_update_index(const oracle_tensor *t, int64_t i)
{
    const int32_t *narrow = t->host;
    const int64_t *wide = t->host;
    return t->is_int32 ? narrow[i] : wide[i];
}

void oracle_kv_update_set_index(oracle_tensor *t, int64_t i, int64_t value)
{
    int32_t *narrow = t->host;
    int64_t *wide = t->host;
    if (t->is_int32)
        narrow[i] = (int32_t)value;
    else
        wide[i] = value;
}

enum { WRITTEN, SKIPPED, OUTSIDE };

typedef struct target {
    int64_t outer, entry, position;
} target;

static int target_of(oracle_case *c, int64_t b, int64_t n, target *to)
{
    const fa_kv_update_spec *s = spec_of(c);
    const fa_kv_update_args *a = &c->args.kv_update;
    const oracle_tensor *positions = oracle_find_tensor(c, "positions");
    const int64_t token = b * a->tokens + n;
    int64_t index = 0;
    to->position = positions ? oracle_kv_update_index(positions, b * a->positions_stride + n) : 0;
    if (s->cache == FA_KV_SLOTS) {
        if (token >= slots_of(c))
            return SKIPPED;
        index = oracle_kv_update_index(oracle_find_tensor(c, "slots"), token);
    } else {
        index = to->position;
    }
    if (index == -1 || to->position == -1)
        return SKIPPED;
    if (index < 0 || index >= capacity(c) || to->position < 0)
        return OUTSIDE;
    if (s->rotation && s->angles == FA_ROPE_TABLES && to->position >= a->max_position)
        return OUTSIDE;
    to->outer = s->cache == FA_KV_DENSE ? b : index / entries_of(c);
    to->entry = index % entries_of(c);
    if (s->cache == FA_KV_BLOCK_TABLE) {
        const int64_t stride = a->block_table_stride ? a->block_table_stride : a->max_pages;
        const int32_t *table = oracle_find_tensor(c, "block_table")->host;
        to->outer = table[b * stride + to->outer];
    }
    return to->outer < 0 || to->outer >= outer_of(c) ? OUTSIDE : WRITTEN;
}

static double frequency(oracle_case *c, int64_t pair)
{
    const fa_kv_update_spec *s = spec_of(c);
    const oracle_tensor *vector = oracle_find_tensor(c, "inv_freq");
    const int32_t baked = s->scaling.sequence_length;
    return vector
               ? (double)((const float *)vector->host)[pair]
               : oracle_rotary_frequency(s->base, &s->scaling, rotary_dim(c),
                                         baked ? baked : c->args.kv_update.sequence_length, pair);
}

static void rotate_row(oracle_case *c, int64_t position, double *row)
{
    const fa_kv_update_spec *s = spec_of(c);
    const int64_t pairs = rotary_dim(c) / 2;
    const bool tables = s->angles == FA_ROPE_TABLES;
    const float *cos_table = tables ? oracle_find_tensor(c, "cos")->host : NULL;
    const float *sin_table = tables ? oracle_find_tensor(c, "sin")->host : NULL;
    const double factor = tables ? 1 : oracle_rotary_attention_factor(&s->scaling);
    double cosines[512], sines[512];
    for (int64_t j = 0; j < pairs; j++) {
        const double angle = tables ? 0 : (double)position * frequency(c, j);
        cosines[j] = tables ? (double)cos_table[position * pairs + j] : factor * cos(angle);
        sines[j] = tables ? (double)sin_table[position * pairs + j] : factor * sin(angle);
    }
    oracle_rotary_turn(row, s->rotation == FA_KV_ROTATE_HALF ? FA_ROPE_HALF : FA_ROPE_INTERLEAVED,
                       rotary_dim(c), cosines, sines);
}

static float scale_of(oracle_case *c, int which, int64_t head)
{
    if (!spec_of(c)->scales)
        return 1;
    const float *scale = oracle_find_tensor(c, which ? "v_scale" : "k_scale")->host;
    return scale[spec_of(c)->scales == FA_KV_SCALE_HEAD ? head : 0];
}

/* Where keys or values come from and go to. */
typedef struct side {
    int which; /* 0: K, 1: V */
    const oracle_tensor *fresh;
    oracle_tensor *out;
    int64_t out_offset; /* elements: V in a stacked output */
    lattice in, to;
} side;

static void write_head(oracle_case *c, const side *x, int64_t from, int64_t to, int64_t head,
                       int64_t position)
{
    const int64_t dim = dim_of(c, x->which), rotated = x->which ? 0 : rotary_dim(c);
    const bool quantized = spec_of(c)->cache_dtype == FA_KV_E4M3;
    const float scale = scale_of(c, x->which, head);
    const size_t bytes = new_bytes(c);
    const char *in = (const char *)x->fresh->host + from * (int64_t)bytes;
    double row[1024];
    oracle_load(spec_of(c)->dtype, row, in, (size_t)dim);
    if (rotated)
        rotate_row(c, position, row);
    for (int64_t i = 0; i < dim; i++) {
        oracle_tensor *out = x->out;
        out->exact[to + i] = i >= rotated;
        double value = row[i] / (double)scale;
        if (quantized && !isnan(value))
            value = fmin(fmax(value, -448), 448);
        out->expected[to + i] = value;
        if (i < rotated)
            continue;
        if (quantized) /* as the kernel does: a float32 quotient, then rounded to storage */
            ((uint8_t *)out->stored)[to + i] = oracle_e4m3_store((double)((float)row[i] / scale));
        else
            memcpy((char *)out->stored + (to + i) * (int64_t)bytes, in + i * (int64_t)bytes, bytes);
    }
}

static side make_side(oracle_case *c, int which)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    const bool in_place = spec_of(c)->in_place;
    side x = {.which = which};
    x.fresh = oracle_find_tensor(c, which ? "v_new" : "k_new");
    x.in = new_strides(c, which);
    const fa_tensor *cache = which ? &a->cache_v : &a->cache_k,
                    *out = which ? &a->v_out : &a->k_out;
    x.to = cache_strides(c, in_place ? cache : out, which);
    x.out = oracle_find_tensor(c, in_place ? (which ? "cache_v" : "cache_k")
                                           : (which ? "v_out" : "k_out"));
    if (!x.out) { /* stacked */
        x.out = oracle_find_tensor(c, "out");
        x.to = cache_strides(c, &(fa_tensor){0}, which);
        x.out_offset = which ? outer_of(c) * a->heads * entries_of(c) * dim_of(c, 0) : 0;
    }
    return x;
}

/* Not in place: what the cache holds. */
static void expect_old(oracle_case *c, const side *x)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    const oracle_tensor *old = oracle_find_tensor(c, x->which ? "cache_v" : "cache_k");
    const lattice in = cache_strides(c, x->which ? &a->cache_v : &a->cache_k, x->which);
    const size_t bytes = cached_bytes(c), row = (size_t)dim_of(c, x->which) * bytes;
    for (int64_t o = 0; o < outer_of(c); o++)
        for (int64_t e = 0; e < entries_of(c); e++)
            for (int64_t h = 0; h < a->heads; h++) {
                const int64_t from = o * in.outer + h * in.head + e * in.token;
                const int64_t to =
                    x->out_offset + o * x->to.outer + h * x->to.head + e * x->to.token;
                memcpy((char *)x->out->stored + to * (int64_t)bytes,
                       (const char *)old->host + from * (int64_t)bytes, row);
            }
}

void oracle_kv_update_expect(oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    side sides[2] = {make_side(c, 0), make_side(c, 1)};
    oracle_tensor *errors = oracle_find_tensor(c, "errors");
    for (size_t i = 0; i < c->tensor_count; i++) {
        oracle_tensor *t = &c->tensor[i];
        if (!t->output)
            continue;
        memcpy(t->stored, t->host, t->bytes);
        memset(t->exact, 1, t->count * sizeof *t->exact);
    }
    for (int k = 0; k < 2 && !spec_of(c)->in_place; k++)
        expect_old(c, &sides[k]);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t n = 0; n < a->tokens; n++) {
            target to = {0};
            const int fate = target_of(c, b, n, &to);
            if (fate == OUTSIDE && errors)
                ((uint32_t *)errors->stored)[0]++;
            for (int k = 0; k < 2 && fate == WRITTEN; k++)
                for (int64_t h = 0; h < a->heads; h++) {
                    const side *x = &sides[k];
                    write_head(c, x, b * x->in.outer + n * x->in.token + h * x->in.head,
                               x->out_offset + to.outer * x->to.outer + to.entry * x->to.token +
                                   h * x->to.head,
                               h, to.position);
                }
        }
}

/* --- making a case --- */

static oracle_tensor *add_tensor(oracle_case *c, const char *name, fa_dtype dtype, size_t bytes,
                                 int64_t count)
{
    oracle_tensor *t = &c->tensor[c->tensor_count++];
    *t = (oracle_tensor){.name = name, .dtype = dtype, .count = (size_t)count};
    t->bytes = t->count * bytes;
    t->host = malloc(t->bytes ? t->bytes : 1);
    if (t->host)
        memset(t->host, POISON, t->bytes);
    return t;
}

static void make_output(oracle_tensor *t)
{
    t->output = true;
    t->expected = calloc(t->count ? t->count : 1, sizeof *t->expected);
    t->exact = calloc(t->count ? t->count : 1, sizeof *t->exact);
    t->stored = calloc(t->bytes ? t->bytes : 1, 1);
}

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

/* Strides with `pad` elements behind each row, head and batch, and how far they reach. */
static int64_t pad_strides(fa_tensor *t, bool tokens_first, int64_t outer, int64_t heads,
                           int64_t tokens, int64_t dim, int64_t pad)
{
    lattice l = strides_of(t, tokens_first, heads, tokens, dim);
    if (pad) {
        const int64_t inner = dim + pad;
        l.head = tokens_first ? inner : inner * tokens + pad;
        l.token = tokens_first ? inner * heads + pad : inner;
        l.outer = (tokens_first ? l.token * tokens : l.head * heads) + pad;
        t->stride_batch = l.outer;
        t->stride_head = l.head;
        t->stride_token = l.token;
    }
    if (!outer || !heads || !tokens)
        return 0;
    return (outer - 1) * l.outer + (heads - 1) * l.head + (tokens - 1) * l.token + dim;
}

static void add_new(oracle_case *c, int which, int64_t pad)
{
    fa_kv_update_args *a = &c->args.kv_update;
    const int64_t count = pad_strides(which ? &a->v_new : &a->k_new, true, a->batch, a->heads,
                                      a->tokens, dim_of(c, which), pad);
    fill(add_tensor(c, which ? "v_new" : "k_new", spec_of(c)->dtype, new_bytes(c), count),
         c->seed + (uint64_t)which);
}

static oracle_tensor *add_cache_like(oracle_case *c, fa_tensor *view, const char *name, int which,
                                     int64_t pad)
{
    const bool tokens_first = spec_of(c)->cache_layout == FA_KV_TOKENS_FIRST;
    const int64_t count = pad_strides(view, tokens_first, outer_of(c), c->args.kv_update.heads,
                                      entries_of(c), dim_of(c, which), pad);
    oracle_tensor *t = add_tensor(c, name, spec_of(c)->dtype, cached_bytes(c), count);
    t->is_e4m3 = spec_of(c)->cache_dtype == FA_KV_E4M3;
    return t;
}

static void add_caches(oracle_case *c, int64_t pad)
{
    fa_kv_update_args *a = &c->args.kv_update;
    for (int k = 0; k < 2; k++) {
        oracle_tensor *t =
            add_cache_like(c, k ? &a->cache_v : &a->cache_k, k ? "cache_v" : "cache_k", k, pad);
        fill(t, c->seed + 2 + (uint64_t)k);
        if (spec_of(c)->in_place)
            make_output(t);
    }
    if (spec_of(c)->in_place)
        return;
    if (pad) {
        make_output(add_cache_like(c, &a->k_out, "k_out", 0, pad));
        make_output(add_cache_like(c, &a->v_out, "v_out", 1, pad));
        return;
    }
    oracle_tensor *t =
        add_tensor(c, "out", spec_of(c)->dtype, cached_bytes(c),
                   outer_of(c) * a->heads * entries_of(c) * (dim_of(c, 0) + dim_of(c, 1)));
    t->is_e4m3 = spec_of(c)->cache_dtype == FA_KV_E4M3;
    make_output(t);
}

static int64_t draw(oracle_case *c, uint64_t stream, int64_t i, int64_t limit)
{
    const double value = (double)oracle_uniform(c->seed + stream, (uint64_t)i, 0, 1);
    const int64_t drawn = (int64_t)floor(value * (double)limit);
    return drawn < limit ? drawn : limit - 1;
}

/* 0 to count - 1 in an order drawn at random. */
static int64_t *shuffled(oracle_case *c, uint64_t stream, int64_t count)
{
    int64_t *order = malloc((size_t)(count ? count : 1) * sizeof *order);
    for (int64_t i = 0; i < count && order; i++)
        order[i] = i;
    for (int64_t i = count - 1; i > 0 && order; i--) {
        const int64_t k = draw(c, stream, i, i + 1), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    return order;
}

/* Of 16 tokens two are padding, one lies before and one behind the cache: far behind where the type
 * allows, so that cutting an index to 32 bits is noticed. */
static int64_t spoil(oracle_case *c, const oracle_tensor *t, int64_t i, int64_t index)
{
    switch (draw(c, 20, i, 16)) {
    case 0:
    case 1:
        return -1;
    case 2:
        return -2 - i;
    case 3:
        return t->is_int32 ? capacity(c) + i : (INT64_C(1) << 32) + index;
    default:
        return index;
    }
}

static oracle_tensor *add_index(oracle_case *c, const char *name, fa_index type, int64_t count)
{
    oracle_tensor *t = add_tensor(c, name, FA_F32, type == FA_I64 ? 8 : 4, count);
    t->is_int32 = type == FA_I32;
    return t;
}

/* Entries for `count` tokens of each of `rows` rows, all different when the spec says unique. */
static bool fill_entries(oracle_case *c, oracle_tensor *t, int64_t rows, int64_t count, bool spoilt)
{
    for (int64_t r = 0; r < rows && t->host; r++) {
        int64_t *order = spec_of(c)->unique ? shuffled(c, 10 + (uint64_t)r, capacity(c)) : NULL;
        if (spec_of(c)->unique && !order)
            return false;
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = r * count + i;
            int64_t entry = order ? order[i] : draw(c, 11, at, capacity(c));
            oracle_kv_update_set_index(t, at, spoilt ? spoil(c, t, at, entry) : entry);
        }
        free(order);
    }
    return true;
}

static bool add_positions(oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_spec *s = spec_of(c);
    fa_kv_update_args *a = &c->args.kv_update;
    const int64_t tokens = (int64_t)a->batch * a->tokens;
    const bool slots = s->cache == FA_KV_SLOTS, spoilt = extra[ORACLE_KV_SPOILT] != 0;
    a->positions_stride = a->tokens;
    if (slots && !s->rotation)
        return true;
    oracle_tensor *t = add_index(c, "positions", s->position_type, tokens);
    if (!slots)
        return fill_entries(c, t, a->batch, a->tokens, spoilt);
    for (int64_t i = 0; i < tokens && t->host; i++)
        oracle_kv_update_set_index(t, i, draw(c, 12, i, SLOT_POSITIONS));
    return true;
}

static bool add_slots(oracle_case *c, const int64_t *extra)
{
    fa_kv_update_args *a = &c->args.kv_update;
    if (spec_of(c)->cache != FA_KV_SLOTS)
        return true;
    a->slot_count = extra[ORACLE_KV_SLOT_COUNT];
    oracle_tensor *t = add_index(c, "slots", spec_of(c)->slot_type, slots_of(c));
    return fill_entries(c, t, 1, slots_of(c), extra[ORACLE_KV_SPOILT] != 0);
}

/* A page for each entry of each table, in random order; some of them outside. */
static bool add_block_table(oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    if (spec_of(c)->cache != FA_KV_BLOCK_TABLE)
        return true;
    const int64_t count = (int64_t)a->batch * a->max_pages;
    oracle_tensor *t = add_index(c, "block_table", FA_I32, count);
    int64_t *order = shuffled(c, 30, a->pages);
    for (int64_t i = 0; i < count && t->host && order; i++) {
        const bool bad = extra[ORACLE_KV_SPOILT] && draw(c, 31, i, 8) == 0;
        oracle_kv_update_set_index(t, i, bad ? (i % 2 ? a->pages : -1) : order[i]);
    }
    free(order);
    return order != NULL;
}

static void add_tables(oracle_case *c, const int64_t *extra)
{
    const fa_kv_update_spec *s = spec_of(c);
    fa_kv_update_args *a = &c->args.kv_update;
    const int64_t pairs = rotary_dim(c) / 2;
    if (s->rotation && s->angles == FA_ROPE_FREQUENCIES) {
        float *vector = add_tensor(c, "inv_freq", FA_F32, 4, pairs)->host;
        for (int64_t j = 0; j < pairs && vector; j++)
            vector[j] =
                (float)oracle_rotary_frequency(s->base, &(fa_rope_scaling){0}, 2 * pairs, 0, j);
    }
    if (!s->rotation || s->angles != FA_ROPE_TABLES)
        return;
    a->max_position = (int32_t)(extra[ORACLE_KV_MAX_POSITION] ? extra[ORACLE_KV_MAX_POSITION]
                                : s->cache == FA_KV_SLOTS     ? SLOT_POSITIONS
                                                              : capacity(c));
    float *cosines = add_tensor(c, "cos", FA_F32, 4, a->max_position * pairs)->host;
    float *sines = add_tensor(c, "sin", FA_F32, 4, a->max_position * pairs)->host;
    for (int64_t i = 0; i < a->max_position * pairs && cosines && sines; i++) {
        const double angle =
            (double)(i / pairs) *
            oracle_rotary_frequency(s->base, &(fa_rope_scaling){0}, 2 * pairs, 0, i % pairs);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

/* Scales that bring some values beyond the largest one. */
static void add_scales(oracle_case *c)
{
    const fa_kv_update_spec *s = spec_of(c);
    if (!s->scales)
        return;
    const int64_t count = s->scales == FA_KV_SCALE_HEAD ? c->args.kv_update.heads : 1;
    for (int k = 0; k < 2; k++) {
        float *scale = add_tensor(c, k ? "v_scale" : "k_scale", FA_F32, 4, count)->host;
        for (int64_t i = 0; i < count && scale; i++)
            scale[i] = oracle_uniform(c->seed + 40 + (uint64_t)k, (uint64_t)i, 0.001, 0.02);
    }
}

static void add_errors(oracle_case *c)
{
    oracle_tensor *t = add_tensor(c, "errors", FA_F32, 4, 1);
    t->is_int32 = true;
    if (t->host)
        *(uint32_t *)t->host = 7; /* what was there is kept */
    make_output(t);
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
    double written = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t n = 0; n < a->tokens; n++) {
            target to = {0};
            written += target_of(c, b, n, &to) == WRITTEN;
        }
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
    if (s->unique && capacity(c) < (s->cache == FA_KV_SLOTS ? slots_of(c) : a->tokens))
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

static void free_case(oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        free(c->tensor[i].host);
        free(c->tensor[i].expected);
        free(c->tensor[i].exact);
        free(c->tensor[i].stored);
    }
    c->tensor_count = 0;
}

static bool has_memory(const oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        const oracle_tensor *t = &c->tensor[i];
        if (!t->host || (t->output && (!t->expected || !t->exact || !t->stored)))
            return false;
    }
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
    if (n->scaling.kind == FA_ROPE_DYNAMIC_NTK && !n->scaling.sequence_length)
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
    const bool filled =
        add_positions(out, extra) && add_slots(out, extra) && add_block_table(out, extra);
    add_tables(out, extra);
    add_scales(out);
    add_errors(out);
    if (!filled || !has_memory(out)) {
        snprintf(why, why_size, "not enough host memory for this shape");
        free_case(out);
        return false;
    }
    set_gate(out);
    count_work(out);
    oracle_kv_update_expect(out);
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
    .make_case = make_case,
    .bind = bind,
    .free_case = free_case,
};
