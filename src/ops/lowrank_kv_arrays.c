/* What a launch of lowrank_kv touches: the tensors that it writes and reads, indices, angles. Each
 * output is held apart from everything else. */
#include <inttypes.h>

#include "ops/lowrank_kv.h"
#include "status.h"

/* --- tensors --- */

static fa_status add_tensor(lowrank_views *v, const fa_lowrank_kv_spec *s, const char *name,
                            const fa_tensor *tensor, fa_layout layout, int64_t outer, int64_t heads,
                            int64_t tokens, int64_t row, const fa__view **out)
{
    const int64_t extent[3] = {outer, heads, tokens};
    *out = &v->view[v->count];
    return fa__view_make(&v->view[v->count++], "lowrank_kv", name, tensor, layout, extent, row,
                         fa__lowrank_element_bytes(s));
}

static fa_status add_array(lowrank_views *v, const char *name, const void *data, int64_t count,
                           int64_t bytes)
{
    return fa__view_make_array(&v->view[v->count++], "lowrank_kv", name, data, count, bytes);
}

/* One buffer for both: each token has its row of K, then its row of V. */
static fa_status follow_k(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                          const lowrank_sizes *n, fa_tensor out[2])
{
    const fa_tensor *k = &a->k_out;
    if (s->to_cache || k->stride_batch || k->stride_head || k->stride_token)
        return fa__fail(FA_ERR_NULL_POINTER,
                        "lowrank_kv: v_out is NULL, which is to follow k_out, but k_out %s; give "
                        "v_out (fa_lowrank_kv_args.v_out)",
                        s->to_cache ? "is a cache" : "has strides");
    const int64_t of_k = n->heads * n->row_k, token = of_k + n->heads * n->head_dim_v;
    if (token > INT64_C(1) << 40 || n->seqlen > (INT64_C(1) << 54) / token)
        return fa__fail(FA_ERR_LIMIT,
                        "lowrank_kv: a batch of %" PRId64 " tokens leads outside any address space",
                        n->seqlen);
    out[0] = (fa_tensor){k->data, n->seqlen * token, n->row_k, token};
    out[1] = (fa_tensor){NULL, n->seqlen * token, n->head_dim_v, token};
    if (k->data)
        out[1].data = (char *)k->data + of_k * fa__lowrank_element_bytes(s);
    return FA_OK;
}

static fa_status add_out(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                         const lowrank_sizes *n, lowrank_views *v)
{
    static const char *const names[2] = {"k_out", "v_out"};
    const fa_layout layout =
        s->to_cache && s->cache_layout == FA_KV_HEADS_FIRST ? FA_LAYOUT_BHND : FA_LAYOUT_BNHD;
    fa_tensor out[2] = {a->k_out, a->v_out};
    fa_status status = FA_OK;
    v->follows = !a->v_out.data;
    if (v->follows)
        status = follow_k(s, a, n, out);
    for (int i = 0; i < 2 && !status; i++)
        status = add_tensor(v, s, names[i], &out[i], layout, n->outer, n->heads, n->entries,
                            i ? n->head_dim_v : n->row_k, &v->out[i]);
    return status;
}

static fa_status add_outputs(const fa_lowrank_kv_spec *s, const fa_args *args,
                             const lowrank_sizes *n, size_t workspace_bytes, lowrank_views *v)
{
    const fa_lowrank_kv_args *a = &args->lowrank_kv;
    fa_status status = FA_OK;
    if (n->has_up)
        status = add_out(s, a, n, v);
    else
        status = add_tensor(v, s, "latent", &a->latent, FA_LAYOUT_BNHD, n->outer, 1, n->entries,
                            n->rank, &v->latent);
    if (!status && s->rope_once)
        status = add_tensor(v, s, "rope_out", &a->rope_out, FA_LAYOUT_BNHD, n->outer, 1, n->entries,
                            n->rope_dim, &v->rope_out);
    if (!status && s->to_cache && a->errors)
        status = add_array(v, "errors", a->errors, 1, 4);
    if (!status && workspace_bytes)
        status = add_array(v, "workspace", args->workspace, (int64_t)workspace_bytes, 1);
    v->outputs = v->count;
    return status;
}

static fa_status add_weights(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                             const lowrank_sizes *n, lowrank_views *v)
{
    static const char *const names[2] = {"w_up_k", "w_up_v"};
    const fa_tensor up[2] = {a->w_up_k, a->w_up_v};
    fa_status status = FA_OK;
    if (n->has_down) {
        const fa_tensor down = {.data = (void *)(uintptr_t)a->w_down, // NOLINT
                                .stride_token = a->w_down_stride};
        status = add_tensor(v, s, "w_down", &down, FA_LAYOUT_BNHD, 1, 1, n->model_dim, n->rank,
                            &v->w_down);
    }
    for (int i = 0; i < 2 && n->has_up && !status; i++)
        status = add_tensor(v, s, names[i], &up[i], FA_LAYOUT_BNHD, 1, n->heads, n->rank,
                            i ? n->head_dim_v : n->head_dim, &v->w_up[i]);
    if (!status && s->norm)
        status = add_array(v, "norm_weight", a->norm_weight, n->rank,
                           s->norm == FA_ROPE_RMS_NORM_F32 ? 4 : fa__lowrank_element_bytes(s));
    return status;
}

static fa_status add_inputs(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                            const lowrank_sizes *n, lowrank_views *v)
{
    fa_status status = n->has_down ? add_tensor(v, s, "hidden", &a->hidden, FA_LAYOUT_BNHD,
                                                n->batch, 1, n->seqlen, n->model_dim, &v->hidden)
                                   : add_tensor(v, s, "latent", &a->latent, FA_LAYOUT_BNHD,
                                                n->batch, 1, n->seqlen, n->rank, &v->latent);
    if (!status)
        status = add_weights(s, a, n, v);
    if (!status && n->rope_dim)
        status = add_tensor(v, s, "k_rope", &a->k_rope, FA_LAYOUT_BNHD, n->batch, 1, n->seqlen,
                            n->rope_dim, &v->rope);
    return status;
}

/* --- arrays --- */

static fa_status add_rows(lowrank_views *v, const char *name, const void *data, int64_t stride,
                          int64_t batch, int64_t count, int64_t bytes)
{
    return fa__view_make_rows(&v->view[v->count++], "lowrank_kv", name, data, stride, batch, count,
                              bytes);
}

static fa_status add_indices(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                             const lowrank_sizes *n, lowrank_views *v)
{
    fa_status status = FA_OK;
    if (fa__lowrank_has_positions(s, a))
        status = add_rows(v, "positions", a->positions, a->positions_stride, n->batch, n->seqlen,
                          fa__index_bytes(s->position_type));
    if (!status && s->to_cache && s->cache == FA_KV_SLOTS)
        status = add_array(v, "slots", a->slots, n->slots, fa__index_bytes(s->slot_type));
    if (!status && s->to_cache && s->cache == FA_KV_BLOCK_TABLE)
        status = add_rows(v, "block_table", a->block_table, fa__lowrank_table_stride(a), n->batch,
                          a->max_pages, 4);
    return status;
}

static fa_status add_angles(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                            const lowrank_sizes *n, lowrank_views *v)
{
    const int64_t pairs = n->rope_dim / 2;
    fa_status status = FA_OK;
    if (s->rotation && s->angles == FA_ROPE_TABLES) {
        if (a->max_position <= 0)
            return fa__fail(FA_ERR_SIZE,
                            "lowrank_kv: max_position = %d; the tables need at least 1 row "
                            "(fa_lowrank_kv_args.max_position)",
                            a->max_position);
        status = add_array(v, "cos", a->cos, a->max_position * pairs, 4);
        if (!status)
            status = add_array(v, "sin", a->sin, a->max_position * pairs, 4);
    }
    if (s->rotation && s->angles == FA_ROPE_FREQUENCIES)
        status = add_array(v, "inv_freq", a->inv_freq, pairs, 4);
    return status;
}

static fa_status check_apart(const lowrank_views *v)
{
    fa_status status = FA_OK;
    for (int i = 0; i < v->outputs && !status; i++) {
        status = fa__view_check_output(&v->view[i]);
        /* Made so by follow_k, whatever rows of K and V have. */
        for (int j = i + 1 + (i == 0 && v->follows && v->out[0]); j < v->count && !status; j++)
            status = fa__view_check_apart(&v->view[i], &v->view[j]);
    }
    return status;
}

fa_status fa__lowrank_arrays(const fa_lowrank_kv_spec *s, const fa_args *args,
                             const lowrank_sizes *n, size_t workspace_bytes, lowrank_views *v)
{
    v->outputs = v->count = 0; /* zeroing all of it would cost the serving path time */
    v->hidden = v->w_down = v->w_up[0] = v->w_up[1] = v->latent = NULL;
    v->out[0] = v->out[1] = v->rope = v->rope_out = NULL;
    v->follows = false;
    fa_status status = add_outputs(s, args, n, workspace_bytes, v);
    if (!status)
        status = add_inputs(s, &args->lowrank_kv, n, v);
    if (!status)
        status = add_indices(s, &args->lowrank_kv, n, v);
    if (!status)
        status = add_angles(s, &args->lowrank_kv, n, v);
    return status ? status : check_apart(v);
}
