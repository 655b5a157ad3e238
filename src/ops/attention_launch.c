/* Launching attention: every check of the args, and the grid. Runs in the serving path:
 * straight-line integer code, no allocation. */
#include <inttypes.h>

#include "ops/attention.h"
#include "status.h"
#include "tensor.h"

/* Of the heads that run side by side; half of a large L2 cache. */
#define SECTION_BYTES (INT64_C(16) << 20)

/* --- sizes --- */

typedef struct sizes {
    int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k;
} sizes;

static fa_status check_length(const char *name, int64_t length)
{
    if (length <= ATTENTION_MAX_SEQLEN)
        return FA_OK;
    return fa__fail(FA_ERR_LIMIT, "attention: %s = %" PRId64 "; at most %d (fa_attention_args.%s)",
                    name, length, ATTENTION_MAX_SEQLEN, name);
}

static fa_status check_heads(const sizes *n)
{
    if (n->heads_q && !n->heads_k)
        return fa__fail(FA_ERR_SIZE,
                        "attention: heads_k = 0 with heads_q = %" PRId64
                        "; at least 1 (fa_attention_args.heads_k)",
                        n->heads_q);
    if (n->heads_k && n->heads_q % n->heads_k)
        return fa__fail(FA_ERR_HEAD_RATIO,
                        "attention: heads_q = %" PRId64 " is not a multiple of heads_k = %" PRId64
                        " (fa_attention_args.heads_q, heads_k)",
                        n->heads_q, n->heads_k);
    return FA_OK;
}

static fa_status resolve_sizes(const fa_attention_spec *s, const fa_attention_args *a, sizes *n)
{
    fa_status status = FA_OK;
    (void)((status = fa__size_resolve("attention", "batch", s->batch, a->batch, &n->batch)) ||
           (status =
                fa__size_resolve("attention", "heads_q", s->heads_q, a->heads_q, &n->heads_q)) ||
           (status =
                fa__size_resolve("attention", "heads_k", s->heads_k, a->heads_k, &n->heads_k)) ||
           (status = fa__size_resolve("attention", "seqlen_q", s->seqlen_q, a->seqlen_q,
                                      &n->seqlen_q)) ||
           (status = fa__size_resolve("attention", "seqlen_k", s->seqlen_k, a->seqlen_k,
                                      &n->seqlen_k)) ||
           (status = check_length("seqlen_q", n->seqlen_q)) ||
           (status = check_length("seqlen_k", n->seqlen_k)) || (status = check_heads(n)));
    return status;
}

/* --- tensors --- */

typedef struct views {
    fa__view out, lse, q, k, v;
    bool has_lse, has_keys;
} views;

static fa_status add(const fa_attention_spec *s, const char *name, const fa_tensor *tensor,
                     int64_t batch, int64_t heads, int64_t tokens, int64_t dim, fa__view *to)
{
    const int64_t extent[3] = {batch, heads, tokens};
    return fa__view_make(to, "attention", name, tensor,
                         s->heads_first ? FA_LAYOUT_BHND : FA_LAYOUT_BNHD, extent, dim,
                         (int64_t)fa__dtype_bytes(s->dtype));
}

/* As a [B, heads, 1] tensor of rows of Tq numbers. */
static fa_status add_lse(const fa_attention_args *a, const sizes *n, fa__view *to)
{
    const int64_t extent[3] = {n->batch, n->heads_q, 1};
    const fa_tensor tensor = {
        .data = a->lse, .stride_batch = a->lse_stride_batch, .stride_head = a->lse_stride_head};
    return fa__view_make(to, "attention", "lse", &tensor, FA_LAYOUT_BHND, extent, n->seqlen_q, 4);
}

static fa_status make_views(const fa_attention_spec *s, const fa_attention_args *a, const sizes *n,
                            views *v)
{
    fa_status status = FA_OK;
    v->has_lse = s->lse;
    v->has_keys = n->seqlen_k > 0;
    if (!s->lse && a->lse)
        return fa__fail(FA_ERR_VALUE,
                        "attention: lse is given, but the kernel writes none; compile it with "
                        "fa_attention_spec.lse, or leave it NULL (fa_attention_args.lse)");
    (void)((status = add(s, "out", &a->out, n->batch, n->heads_q, n->seqlen_q, s->head_dim_v,
                         &v->out)) ||
           (v->has_lse && (status = add_lse(a, n, &v->lse))) ||
           (status = add(s, "q", &a->q, n->batch, n->heads_q, n->seqlen_q, s->head_dim, &v->q)) ||
           (v->has_keys &&
            (status = add(s, "k", &a->k, n->batch, n->heads_k, n->seqlen_k, s->head_dim, &v->k))) ||
           (v->has_keys && (status = add(s, "v", &a->v, n->batch, n->heads_k, n->seqlen_k,
                                         s->head_dim_v, &v->v))));
    return status;
}

/* What is written apart from what is read. */
static fa_status check_apart(const views *v, const fa__view *written)
{
    fa_status status = fa__view_check_output(written);
    if (!status)
        status = fa__view_check_apart(written, &v->q);
    if (!status && v->has_keys)
        status = fa__view_check_apart(written, &v->k);
    if (!status && v->has_keys)
        status = fa__view_check_apart(written, &v->v);
    return status;
}

static fa_status check_views(const views *v)
{
    fa_status status = check_apart(v, &v->out);
    if (!status && v->has_lse)
        status = check_apart(v, &v->lse);
    if (!status && v->has_lse)
        status = fa__view_check_apart(&v->out, &v->lse);
    return status;
}

/* --- the grid --- */

int64_t fa__attention_section(const fa_attention_spec *s, int64_t batch, int64_t heads_q,
                              int64_t heads_k, int64_t seqlen_k)
{
    const int64_t ratio = heads_q / heads_k, heads = batch * heads_q;
    const int64_t row = (s->head_dim + s->head_dim_v) * (int64_t)fa__dtype_bytes(s->dtype);
    const int64_t groups = SECTION_BYTES / (row * (seqlen_k ? seqlen_k : 1));
    const int64_t section = (groups ? groups : 1) * ratio;
    return section < heads ? section : heads;
}

static fa_status choose_grid(const fa_attention_spec *s, const fa__plan *p, const sizes *n,
                             attention_kernel_params *k, fa__launch *l)
{
    const int64_t tiles = fa__divide_up(n->seqlen_q, fa__attention_rows(p));
    int64_t blocks = 0;
    if (__builtin_mul_overflow(n->batch * n->heads_q, tiles, &blocks) || blocks > FA__MAX_GRID_X)
        return fa__fail(FA_ERR_GEOMETRY,
                        "attention: batch * heads_q = %" PRId64 " heads of %" PRId64
                        " tiles of queries are over the limit of a grid, %" PRId64
                        " blocks; launch them in parts",
                        n->batch * n->heads_q, tiles, FA__MAX_GRID_X);
    k->tiles = (int32_t)tiles;
    k->section = (int32_t)fa__attention_section(s, n->batch, n->heads_q, n->heads_k, n->seqlen_k);
    l->grid[0] = (uint32_t)blocks;
    l->grid[1] = l->grid[2] = 1;
    l->block[0] = p->block_threads;
    l->block[1] = l->block[2] = 1;
    l->smem_bytes = p->smem_dynamic_bytes;
    return FA_OK;
}

/* Bytes of the widest access to this tensor's rows. */
static int32_t width_of(const fa__view *view, const fa__plan *p, int slot)
{
    return (int32_t)fa__power_of_two(fa__view_address_bits(view), p->value[slot]);
}

static attention_tensor_params tensor_params(const fa__view *view)
{
    return (attention_tensor_params){view->base, view->stride[0], view->stride[1], view->stride[2]};
}

static void fill_params(const fa__plan *p, const sizes *n, const views *v,
                        attention_kernel_params *k)
{
    *k = (attention_kernel_params){.q = tensor_params(&v->q),
                                   .out = tensor_params(&v->out),
                                   .batch = (int32_t)n->batch,
                                   .heads_q = (int32_t)n->heads_q,
                                   .heads_k = (int32_t)n->heads_k,
                                   .seqlen_q = (int32_t)n->seqlen_q,
                                   .seqlen_k = (int32_t)n->seqlen_k,
                                   .width_q = width_of(&v->q, p, ATTENTION_LOAD_BYTES),
                                   .width_out = width_of(&v->out, p, ATTENTION_LOAD_BYTES_V)};
    if (v->has_lse) {
        k->lse = v->lse.base;
        k->lse_batch = v->lse.stride[0];
        k->lse_head = v->lse.stride[1];
    }
    if (v->has_keys) {
        k->k = tensor_params(&v->k);
        k->v = tensor_params(&v->v);
        k->width_k = width_of(&v->k, p, ATTENTION_LOAD_BYTES);
        k->width_v = width_of(&v->v, p, ATTENTION_LOAD_BYTES_V);
    }
}

fa_status fa__attention_launch(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                               const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_attention_spec *s = &spec->attention;
    const fa_attention_args *a = &args->attention;
    attention_kernel_params *k = (attention_kernel_params *)(void *)room->block;
    sizes n = {0};
    views v;
    (void)multiprocessors;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = !n.batch || !n.heads_q || !n.seqlen_q;
    if (l->empty)
        return FA_OK;
    status = make_views(s, a, &n, &v);
    if (!status)
        status = check_views(&v);
    if (status)
        return status;
    fill_params(p, &n, &v, k);
    room->params[0] = k;
    l->params = room->params;
    return choose_grid(s, p, &n, k, l);
}
