/* What a launch of kv_update touches: the tensors that it writes and reads, indices, angles,
 * scales. Each output is held apart from everything else. */
#include <inttypes.h>

#include "ops/kv_update.h"
#include "status.h"

/* --- tensors --- */

static const char *const new_names[2] = {"k_new", "v_new"};
static const char *const cache_names[2] = {"cache_k", "cache_v"};
static const char *const out_names[2] = {"k_out", "v_out"};

static fa_status add_cache(kv_views *v, const fa_kv_update_spec *s, const kv_sizes *n, int which,
                           const char *name, const fa_tensor *tensor, const fa__view **out)
{
    const int64_t extent[3] = {n->outer, n->heads, n->entries};
    const fa_layout layout =
        s->cache_layout == FA_KV_TOKENS_FIRST ? FA_LAYOUT_BNHD : FA_LAYOUT_BHND;
    *out = &v->view[v->count];
    return fa__view_make(&v->view[v->count++], "kv_update", name, tensor, layout, extent,
                         which ? n->head_dim_v : n->head_dim, fa__kv_cached_bytes(s));
}

static fa_status add_array(kv_views *v, const char *name, const void *data, int64_t count,
                           int64_t bytes)
{
    return fa__view_make_array(&v->view[v->count++], "kv_update", name, data, count, bytes);
}

/* Where the stacked output has its second half. */
static fa_status follow_k(const fa_kv_update_args *a, const fa__view *k, fa_tensor *v_out)
{
    *v_out = a->v_out;
    if (v_out->data)
        return FA_OK;
    if (!k->packed)
        return fa__fail(
            FA_ERR_NULL_POINTER,
            "kv_update: v_out is NULL, which is to follow k_out, but k_out has strides; "
            "give v_out or a packed k_out (fa_kv_update_args.v_out)");
    *v_out = (fa_tensor){.data = (void *)k->end}; // NOLINT(performance-no-int-to-ptr)
    return FA_OK;
}

static fa_status add_outputs(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                             const kv_sizes *n, kv_views *v)
{
    const fa_tensor *tensors[2] = {&a->cache_k, &a->cache_v};
    fa_tensor v_out;
    fa_status status = FA_OK;
    if (s->in_place) {
        for (int i = 0; i < 2 && !status; i++) {
            status = add_cache(v, s, n, i, cache_names[i], tensors[i], &v->cache[i]);
            v->out[i] = v->cache[i];
        }
    } else {
        status = add_cache(v, s, n, 0, out_names[0], &a->k_out, &v->out[0]);
        if (!status)
            status = follow_k(a, v->out[0], &v_out);
        if (!status)
            status = add_cache(v, s, n, 1, out_names[1], &v_out, &v->out[1]);
    }
    if (!status && a->errors)
        status = add_array(v, "errors", a->errors, 1, 4);
    v->outputs = v->count;
    return status;
}

static fa_status add_inputs(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                            const kv_sizes *n, kv_views *v)
{
    const fa_tensor *fresh[2] = {&a->k_new, &a->v_new}, *cache[2] = {&a->cache_k, &a->cache_v};
    const int64_t extent[3] = {n->batch, n->heads, n->tokens};
    fa_status status = FA_OK;
    for (int i = 0; i < 2 && !status; i++) {
        if (n->tokens) {
            v->fresh[i] = &v->view[v->count];
            status = fa__view_make(&v->view[v->count++], "kv_update", new_names[i], fresh[i],
                                   FA_LAYOUT_BNHD, extent, i ? n->head_dim_v : n->head_dim,
                                   (int64_t)fa__dtype_bytes(s->dtype));
        }
        if (!s->in_place && !status)
            status = add_cache(v, s, n, i, cache_names[i], cache[i], &v->cache[i]);
    }
    return status;
}

/* --- arrays --- */

static fa_status add_rows(kv_views *v, const char *name, const void *data, int64_t stride,
                          int64_t batch, int64_t count, int64_t bytes)
{
    return fa__view_make_rows(&v->view[v->count++], "kv_update", name, data, stride, batch, count,
                              bytes);
}

static fa_status add_indices(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                             const kv_sizes *n, kv_views *v)
{
    fa_status status = FA_OK;
    if (s->cache != FA_KV_SLOTS || s->rotation)
        status = add_rows(v, "positions", a->positions, a->positions_stride, n->batch, n->tokens,
                          fa__index_bytes(s->position_type));
    if (!status && s->cache == FA_KV_SLOTS)
        status = add_array(v, "slots", a->slots, n->slots, fa__index_bytes(s->slot_type));
    if (!status && s->cache == FA_KV_BLOCK_TABLE)
        status = add_rows(v, "block_table", a->block_table, fa__kv_table_stride(a), n->batch,
                          a->max_pages, 4);
    return status;
}

static fa_status add_factors(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                             const kv_sizes *n, kv_views *v)
{
    fa_status status = FA_OK;
    if (s->rotation && s->angles == FA_ROPE_TABLES) {
        const int64_t count = a->max_position * (n->rotary_dim / 2);
        if (a->max_position <= 0)
            return fa__fail(FA_ERR_SIZE,
                            "kv_update: max_position = %d; the tables need at least 1 row "
                            "(fa_kv_update_args.max_position)",
                            a->max_position);
        status = add_array(v, "cos", a->cos, count, 4);
        if (!status)
            status = add_array(v, "sin", a->sin, count, 4);
    }
    if (s->rotation && s->angles == FA_ROPE_FREQUENCIES)
        status = add_array(v, "inv_freq", a->inv_freq, n->rotary_dim / 2, 4);
    if (!status && s->scales) {
        const int64_t count = s->scales == FA_KV_SCALE_HEAD ? n->heads : 1;
        status = add_array(v, "k_scale", a->k_scale, count, 4);
        if (!status)
            status = add_array(v, "v_scale", a->v_scale, count, 4);
    }
    return status;
}

fa_status fa__kv_update_arrays(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                               const kv_sizes *n, kv_views *v)
{
    v->outputs = v->count = 0; /* zeroing all of it would cost the serving path time */
    for (int i = 0; i < 2; i++)
        v->fresh[i] = v->cache[i] = v->out[i] = NULL;
    fa_status status = add_outputs(s, a, n, v);
    if (!status)
        status = add_inputs(s, a, n, v);
    if (!status && n->tokens)
        status = add_indices(s, a, n, v);
    if (!status && n->tokens)
        status = add_factors(s, a, n, v);
    for (int i = 0; i < v->outputs && !status; i++) {
        status = fa__view_check_output(&v->view[i]);
        for (int j = i + 1; j < v->count && !status; j++)
            status = fa__view_check_apart(&v->view[i], &v->view[j]);
    }
    return status;
}

/* --- alignment --- */

bool fa__kv_update_indices_aligned(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                                   const kv_sizes *n)
{
    const bool slots = s->cache == FA_KV_SLOTS;
    const uint64_t bytes = (uint64_t)fa__index_bytes(slots ? s->slot_type : s->position_type);
    const uint64_t stride = n->batch > 1 ? (uint64_t)a->positions_stride : 0;
    const uint64_t bits = slots ? (uintptr_t)a->slots | (uint64_t)n->slots * bytes
                                : (uintptr_t)a->positions | (stride | (uint64_t)n->tokens) * bytes;
    return bits % 16 == 0;
}
