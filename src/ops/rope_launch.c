/* Launching rope: every check of the args, and the grid. Runs in the serving path: straight-line
 * integer code, no allocation. */
#include <inttypes.h>

#include "ops/rope.h"
#include "status.h"

/* --- launch: sizes --- */

static fa_status check_head_dim(const fa_rope_spec *s, rope_sizes *n)
{
    n->rotary_dim = s->rotary_dim ? s->rotary_dim : n->head_dim;
    return fa__rotary_check_dims("rope", &s->scaling, n->head_dim, n->rotary_dim,
                                 ROPE_MAX_HEAD_DIM);
}

static fa_status resolve_sizes(const fa_rope_spec *s, const fa_rope_args *a, rope_sizes *n)
{
    fa_status status = FA_OK;
    (void)((status = fa__size_resolve("rope", "batch", s->batch, a->batch, &n->batch)) ||
           (status = fa__size_resolve("rope", "heads_q", s->heads_q, a->heads_q, &n->heads_q)) ||
           (status = fa__size_resolve("rope", "heads_k", s->heads_k, a->heads_k, &n->heads_k)) ||
           (status = fa__size_resolve("rope", "seqlen", s->seqlen, a->seqlen, &n->seqlen)) ||
           (status = fa__size_resolve("rope", "head_dim", s->head_dim, a->head_dim, &n->head_dim)));
    if (status)
        return status;
    if (!a->k.data) {
        if (s->heads_k)
            return fa__fail(FA_ERR_NULL_POINTER,
                            "rope: k is NULL, but heads_k = %d is baked into the kernel; for q "
                            "alone leave fa_rope_spec.heads_k at 0",
                            s->heads_k);
        n->heads_k = 0;
    }
    if (n->heads_q && n->heads_k && n->heads_q % n->heads_k)
        return fa__fail(FA_ERR_HEAD_RATIO,
                        "rope: heads_q = %" PRId64 " is not a multiple of heads_k = %" PRId64
                        " (fa_rope_args.heads_q, heads_k)",
                        n->heads_q, n->heads_k);
    if (s->positions == FA_ROPE_CUMULATIVE && n->batch > 1)
        return fa__fail(FA_ERR_SIZE,
                        "rope: batch = %" PRId64
                        "; packed sequences are 1 batch "
                        "(fa_rope_args.batch)",
                        n->batch);
    return check_head_dim(s, n);
}

static bool is_empty(const rope_sizes *n)
{
    return !n->batch || !n->seqlen || !n->head_dim || (!n->heads_q && !n->heads_k);
}

/* --- launch: tensors --- */

static fa_status add_view(rope_views *v, const fa_rope_spec *s, const rope_sizes *n,
                          const char *name, const fa_tensor *tensor, int64_t heads,
                          const fa__view **out)
{
    const int64_t extent[3] = {n->batch, heads, n->seqlen};
    fa__view *view = &v->view[v->count++];
    *out = view;
    fa_status status = fa__view_make(view, "rope", name, tensor, s->layout, extent, n->head_dim,
                                     (int64_t)fa__dtype_bytes(s->dtype));
    v->address_bits |= fa__view_address_bits(view);
    return status;
}

static fa_status make_views(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                            rope_views *v)
{
    fa_status status = FA_OK;
    if (!s->in_place) {
        if (n->heads_q)
            status = add_view(v, s, n, "q_out", &a->q_out, n->heads_q, &v->q_out);
        if (n->heads_k && !status)
            status = add_view(v, s, n, "k_out", &a->k_out, n->heads_k, &v->k_out);
        v->outputs = v->count;
    }
    if (n->heads_q && !status)
        status = add_view(v, s, n, "q", &a->q, n->heads_q, &v->q);
    if (n->heads_k && !status)
        status = add_view(v, s, n, "k", &a->k, n->heads_k, &v->k);
    if (s->in_place) {
        v->q_out = v->q;
        v->k_out = v->k;
        v->outputs = v->count;
    }
    return status;
}

static fa_status check_views(const rope_views *v)
{
    for (int i = 0; i < v->outputs; i++) {
        fa_status status = fa__view_check_output(&v->view[i]);
        for (int j = i + 1; j < v->count && !status; j++)
            status = fa__view_check_apart(&v->view[i], &v->view[j]);
        if (status)
            return status;
    }
    return FA_OK;
}

/* --- launch: the grid --- */

/* Elements of an access that is safe for these pointers, strides and sizes. */
static int64_t choose_width(const fa_rope_spec *s, const fa__plan *p, const fa_rope_args *a,
                            const rope_sizes *n, const rope_views *v)
{
    const int64_t bytes = (int64_t)fa__dtype_bytes(s->dtype);
    int64_t width = fa__power_of_two(fa__rope_dividends(s, n->head_dim, n->rotary_dim),
                                     p->value[ROPE_VECTOR_WIDTH]);
    width = fa__divide_up(fa__power_of_two(v->address_bits, width * bytes), bytes);
    return fa__rotary_width(s->angles, s->style == FA_ROPE_HALF, a->cos, a->sin, a->inv_freq,
                            width);
}

/* log2 of the neighbouring heads that neighbouring threads take: more than one where the heads of a
 * token lie beside each other, so that what a block touches is contiguous; few enough to leave a
 * thread 2 heads of k and 4 of q that share its angles. */
static int32_t choose_abreast_log2(const rope_sizes *n, const rope_views *v, int64_t units)
{
    for (int i = 0; i < v->count; i++)
        if (fa__view_tokens_inside(&v->view[i]))
            return 0;
    const int64_t most = n->heads_q > n->heads_k ? n->heads_q : n->heads_k;
    const int64_t least =
        n->heads_q && n->heads_k ? (n->heads_q < n->heads_k ? n->heads_q : n->heads_k) : most;
    int32_t log2 = 0;
    while (units << (log2 + 1) <= ROPE_BLOCK_THREADS && 4 << (log2 + 1) <= most &&
           2 << (log2 + 1) <= least)
        log2++;
    return log2;
}

/* Heads that share a thread's angles: fewer while they leave multiprocessors without a block, more
 * where the grid could not hold their groups. */
static int64_t choose_heads_per_group(const rope_sizes *n, int64_t blocks, int32_t abreast_log2,
                                      int32_t multiprocessors)
{
    const int64_t abreast = INT64_C(1) << abreast_log2;
    int64_t heads = ROPE_HEADS_PER_GROUP * abreast;
    int64_t groups = fa__divide_up(n->heads_q, heads) + fa__divide_up(n->heads_k, heads);
    for (; heads > abreast && blocks * groups < multiprocessors; heads /= 2)
        groups *= 2;
    while (fa__divide_up(n->heads_q, heads) + fa__divide_up(n->heads_k, heads) > FA__MAX_GRID_Y)
        heads *= 2;
    return heads;
}

static void fill_tensor(rope_tensor_params *t, const fa__view *in, const fa__view *out,
                        int64_t heads, int64_t heads_per_group, int64_t *groups)
{
    *groups = 0;
    if (!heads)
        return;
    *groups = fa__divide_up(heads, heads_per_group);
    t->in = in->base;
    t->out = out->base;
    t->in_batch = in->stride[0];
    t->in_head = in->stride[1];
    t->in_token = in->stride[2];
    t->out_batch = out->stride[0];
    t->out_head = out->stride[1];
    t->out_token = out->stride[2];
    t->heads = (int32_t)heads;
    t->heads_per_group = (int32_t)heads_per_group;
}

static fa_status choose_grid(const fa_rope_spec *s, const rope_sizes *n, const rope_views *v,
                             int64_t width, int32_t multiprocessors, rope_kernel_params *k,
                             fa__launch *l)
{
    const rope_units each = fa__rope_units(s, n->head_dim, n->rotary_dim, width);
    const int64_t tokens = n->batch * n->seqlen; /* below 2^62 */
    const int32_t abreast_log2 = choose_abreast_log2(n, v, each.rotated);
    int64_t rotary_blocks = FA__MAX_GRID_X + 1, blocks = FA__MAX_GRID_X + 1;
    if (tokens <= FA__MAX_GRID_X * ROPE_BLOCK_THREADS) {
        rotary_blocks = fa__divide_up((tokens * each.rotated) << abreast_log2, ROPE_BLOCK_THREADS);
        blocks = rotary_blocks +
                 fa__divide_up((tokens * each.copied) << abreast_log2, ROPE_BLOCK_THREADS);
    }
    if (blocks > FA__MAX_GRID_X)
        return fa__fail(FA_ERR_GEOMETRY,
                        "rope: batch * seqlen = %" PRId64 " tokens of head_dim = %" PRId64
                        " need a grid.x over its limit of %" PRId64 "; launch them in parts",
                        tokens, n->head_dim, FA__MAX_GRID_X);
    int64_t groups_q = 0, groups_k = 0;
    int64_t heads = choose_heads_per_group(n, blocks, abreast_log2, multiprocessors);
    fill_tensor(&k->q, v->q, v->q_out, n->heads_q, heads, &groups_q);
    fill_tensor(&k->k, v->k, v->k_out, n->heads_k, heads, &groups_k);
    k->width = (int32_t)width;
    k->groups_q = (int32_t)groups_q;
    k->abreast_log2 = abreast_log2;
    k->rotary_blocks = (uint32_t)rotary_blocks;
    l->grid[0] = (uint32_t)blocks;
    l->grid[1] = (uint32_t)(groups_q + groups_k);
    l->grid[2] = 1;
    l->block[0] = ROPE_BLOCK_THREADS;
    l->block[1] = l->block[2] = 1;
    return FA_OK;
}

fa_status fa__rope_launch(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                          const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_rope_spec *s = &spec->rope;
    const fa_rope_args *a = &args->rope;
    rope_kernel_params *k = (rope_kernel_params *)(void *)room->block;
    rope_sizes n = {0};
    rope_views v;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = is_empty(&n);
    if (l->empty)
        return FA_OK;
    v.outputs = v.count = 0;
    v.q = v.k = v.q_out = v.k_out = NULL;
    v.address_bits = 0;
    status = make_views(s, a, &n, &v);
    if (!status)
        status = check_views(&v);
    if (status)
        return status;
    *k = (rope_kernel_params){.batch = (int32_t)n.batch,
                              .seqlen = (int32_t)n.seqlen,
                              .head_dim = (int32_t)n.head_dim,
                              .rotary_dim = (int32_t)n.rotary_dim};
    int64_t length = 0;
    if ((status = fa__rotary_length("rope", &s->scaling, a->sequence_length, &length)))
        return status;
    if (s->angles == FA_ROPE_COMPUTED && fa__rotary_waits(&s->scaling, s->rotary_dim))
        k->rule = fa__rotary_rule_make(s->base, &s->scaling, n.rotary_dim, length);
    if ((status = fa__rope_arrays(s, a, &n, &v, k)))
        return status;
    room->params[0] = k;
    l->params = room->params;
    l->smem_bytes = 0;
    return choose_grid(s, &n, &v, choose_width(s, p, a, &n, &v), multiprocessors, k, l);
}
