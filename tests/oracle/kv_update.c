/* Double-precision reference of kv_update. What is only copied, or only quantized, is exact. Cases are
 * made in kv_update_case.c. */
#include "kv_update.h"

#include <math.h>
#include <string.h>

#include "kv_update_sizes.h"

/* --- strides --- */

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

static int target_of(oracle_case *c, int64_t b, int64_t n, oracle_target *to)
{
    const oracle_tensor *positions = oracle_find_tensor(c, "positions");
    const int64_t stride = c->args.kv_update.positions_stride;
    const oracle_cache cache = cache_of(c);
    to->position = positions ? oracle_index(positions, b * stride + n) : 0;
    return oracle_cache_target(c, &cache, b, n, to);
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
    const oracle_turn by = turn_of(c);
    if (rotated)
        oracle_turn_row(c, &by, position, row);
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
    oracle_keep_all(c);
    for (int k = 0; k < 2 && !spec_of(c)->in_place; k++)
        expect_old(c, &sides[k]);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t n = 0; n < a->tokens; n++) {
            oracle_target to = {0};
            const int fate = target_of(c, b, n, &to);
            if (fate == ORACLE_OUTSIDE && errors)
                ((uint32_t *)errors->stored)[0]++;
            for (int k = 0; k < 2 && fate == ORACLE_WRITTEN; k++)
                for (int64_t h = 0; h < a->heads; h++) {
                    const side *x = &sides[k];
                    write_head(c, x, b * x->in.outer + n * x->in.token + h * x->in.head,
                               x->out_offset + to.outer * x->to.outer + to.entry * x->to.token +
                                   h * x->to.head,
                               h, to.position);
                }
        }
}

int64_t oracle_kv_update_written(oracle_case *c)
{
    const fa_kv_update_args *a = &c->args.kv_update;
    int64_t written = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t n = 0; n < a->tokens; n++) {
            oracle_target to = {0};
            written += target_of(c, b, n, &to) == ORACLE_WRITTEN;
        }
    return written;
}
