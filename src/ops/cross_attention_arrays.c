/* The tensors and arrays of a launch of cross_attention: what is legal, what overlaps. */
#include "ops/cross_attention.h"
#include "status.h"

static fa_status add_matrix(cross_views *v, const char *name, const fa_matrix *matrix, int64_t rows,
                            int64_t columns, const cross_sizes *n, const fa__view **out)
{
    *out = &v->view[v->count];
    return fa__view_make_matrix(&v->view[v->count++], "cross_attention", name, matrix, rows,
                                columns, n->element_bytes);
}

/* [batch, tokens, heads, row], with strides as they are given. */
static fa_status add_tokens(cross_views *v, const char *name, const fa_tensor *tensor,
                            const cross_sizes *n, int64_t tokens, int64_t heads, int64_t row,
                            const fa__view **out)
{
    const int64_t extent[3] = {n->batch, heads, tokens};
    *out = &v->view[v->count];
    return fa__view_make(&v->view[v->count++], "cross_attention", name, tensor, FA_LAYOUT_BNHD,
                         extent, row, n->element_bytes);
}

static fa_status add_array(cross_views *v, const char *name, const void *data, int64_t count,
                           int64_t bytes)
{
    return fa__view_make_array(&v->view[v->count++], "cross_attention", name, data, count, bytes);
}

static fa_status add_keys(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                          const cross_sizes *n, cross_views *v)
{
    fa_status status = add_tokens(v, "k", &a->k, n, n->seqlen_k, s->heads_k, s->head_dim, &v->k);
    return status ? status
                  : add_tokens(v, "v", &a->v, n, n->seqlen_k, s->heads_k, s->head_dim, &v->v);
}

static fa_status add_written(const fa_cross_attention_spec *s, const fa_args *args,
                             const cross_sizes *n, int64_t workspace_bytes, cross_views *v)
{
    const fa_cross_attention_args *a = &args->cross_attention;
    fa_status status = FA_OK;
    if (s->form == FA_CROSS_KEYS)
        status = add_keys(s, a, n, v);
    else
        status = add_tokens(v, "out", &a->out, n, n->seqlen_q, 1, n->model_dim, &v->out);
    if (!status && workspace_bytes)
        status = add_array(v, "workspace", args->workspace, workspace_bytes, 1);
    v->written = v->count;
    return status;
}

static fa_status add_queries(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                             const cross_sizes *n, cross_views *v)
{
    fa_status status = FA_OK;
    (void)((status = add_tokens(v, "x_query", &a->x_query, n, n->seqlen_q, 1, n->model_dim,
                                &v->x_query)) ||
           (status =
                add_matrix(v, "w_q", &a->w_q, n->columns_q, n->model_dim, n, &v->w[CROSS_Q])) ||
           (status = add_matrix(v, "w_out", &a->w_out, n->model_dim, n->columns_q, n, &v->w_out)) ||
           (s->bias && (status = add_array(v, "b_q", a->b_q, n->columns_q, n->element_bytes))) ||
           (s->bias_out &&
            (status = add_array(v, "b_out", a->b_out, n->model_dim, n->element_bytes))));
    return status;
}

static fa_status add_key_stream(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                                const cross_sizes *n, cross_views *v)
{
    fa_status status = FA_OK;
    if (!n->rows_k)
        return FA_OK;
    if (s->form == FA_CROSS_QUERIES)
        return add_keys(s, a, n, v);
    (void)((status = add_tokens(v, "x_kv", &a->x_kv, n, n->seqlen_k, 1, n->model_dim, &v->x_kv)) ||
           (status =
                add_matrix(v, "w_k", &a->w_k, n->columns_k, n->model_dim, n, &v->w[CROSS_K])) ||
           (status =
                add_matrix(v, "w_v", &a->w_v, n->columns_k, n->model_dim, n, &v->w[CROSS_V])) ||
           (s->bias && (status = add_array(v, "b_k", a->b_k, n->columns_k, n->element_bytes))) ||
           (s->bias && (status = add_array(v, "b_v", a->b_v, n->columns_k, n->element_bytes))));
    return status;
}

static fa_status add_angles(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                            cross_views *v)
{
    if (!s->rotation || s->angles == FA_ROPE_COMPUTED)
        return FA_OK;
    if (s->angles == FA_ROPE_FREQUENCIES)
        return add_array(v, "inv_freq", a->inv_freq, s->rotary_dim / 2, 4);
    if (a->max_position <= 0)
        return fa__fail(FA_ERR_SIZE,
                        "cross_attention: max_position = %d; the tables need at least 1 row "
                        "(fa_cross_attention_args.max_position)",
                        a->max_position);
    const int64_t count = (int64_t)a->max_position * (s->rotary_dim / 2);
    fa_status status = add_array(v, "cos", a->cos, count, 4);
    return status ? status : add_array(v, "sin", a->sin, count, 4);
}

fa_status fa__cross_views(const fa_cross_attention_spec *s, const fa_args *args,
                          const cross_sizes *n, int64_t workspace_bytes, cross_views *v)
{
    const fa_cross_attention_args *a = &args->cross_attention;
    fa_status status = FA_OK;
    (void)((status = add_written(s, args, n, workspace_bytes, v)) ||
           (fa__cross_has_queries(s) && (status = add_queries(s, a, n, v))) ||
           (status = add_key_stream(s, a, n, v)) || (status = add_angles(s, a, v)));
    for (int i = 0; i < v->written && !status; i++) {
        status = fa__view_check_output(&v->view[i]);
        for (int j = i + 1; j < v->count && !status; j++)
            status = fa__view_check_apart(&v->view[i], &v->view[j]);
    }
    return status;
}
