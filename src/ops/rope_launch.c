/* Launching rope: every check of the args, and the grid. Runs in the serving path: straight-line
 * integer code, no allocation. */
#include <inttypes.h>

#include "ops/rope.h"
#include "status.h"
#include "tensor.h"

#define MAX_GRID_X INT64_C(2147483647)
#define MAX_GRID_Y INT64_C(65535)

/* --- launch: sizes --- */

typedef struct sizes {
    int64_t batch, heads_q, heads_k, seqlen, head_dim, rotary_dim;
} sizes;

static fa_status resolve(const char *name, int32_t baked, int32_t given, int64_t *size)
{
    *size = baked ? baked : given;
    if (given < 0)
        return fa__fail(FA_ERR_SIZE, "rope: %s = %d is negative (fa_rope_args.%s)", name, given,
                        name);
    if (baked && given && given != baked)
        return fa__fail(FA_ERR_BAKED,
                        "rope: %s = %d at launch, but %d is baked into the kernel; give %d or 0 "
                        "(fa_rope_args.%s)",
                        name, given, baked, baked, name);
    return FA_OK;
}

static fa_status check_head_dim(const fa_rope_spec *s, sizes *n)
{
    n->rotary_dim = s->rotary_dim ? s->rotary_dim : n->head_dim;
    if (n->head_dim > ROPE_MAX_HEAD_DIM)
        return fa__fail(FA_ERR_LIMIT,
                        "rope: head_dim = %" PRId64 "; at most %d (fa_rope_args.head_dim)",
                        n->head_dim, ROPE_MAX_HEAD_DIM);
    if (n->rotary_dim % 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "rope: all of head_dim = %" PRId64
                        " is to be rotated, which is odd (fa_rope_args.head_dim)",
                        n->head_dim);
    if (n->head_dim && n->rotary_dim > n->head_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "rope: head_dim = %" PRId64
                        " is smaller than the kernel's rotary_dim = "
                        "%" PRId64 " (fa_rope_args.head_dim)",
                        n->head_dim, n->rotary_dim);
    return FA_OK;
}

static fa_status resolve_sizes(const fa_rope_spec *s, const fa_rope_args *a, sizes *n)
{
    fa_status status = FA_OK;
    (void)((status = resolve("batch", s->batch, a->batch, &n->batch)) ||
           (status = resolve("heads_q", s->heads_q, a->heads_q, &n->heads_q)) ||
           (status = resolve("heads_k", s->heads_k, a->heads_k, &n->heads_k)) ||
           (status = resolve("seqlen", s->seqlen, a->seqlen, &n->seqlen)) ||
           (status = resolve("head_dim", s->head_dim, a->head_dim, &n->head_dim)));
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
    return check_head_dim(s, n);
}

static bool is_empty(const sizes *n)
{
    return !n->batch || !n->seqlen || !n->head_dim || (!n->heads_q && !n->heads_k);
}

/* --- launch: tensors --- */

/* Views of everything a launch touches: outputs first. In place, in and out are the same view. */
typedef struct views {
    fa__view view[4];
    int outputs, count;
    const fa__view *q, *k, *q_out, *k_out; /* NULL: no heads */
    uint64_t address_bits;
} views;

static fa_status add_view(views *v, const fa_rope_spec *s, const sizes *n, const char *name,
                          const fa_tensor *tensor, int64_t heads, const fa__view **out)
{
    const int64_t extent[3] = {n->batch, heads, n->seqlen};
    fa__view *view = &v->view[v->count++];
    *out = view;
    fa_status status = fa__view_make(view, "rope", name, tensor, s->layout, extent, n->head_dim,
                                     (int64_t)fa__dtype_bytes(s->dtype));
    v->address_bits |= fa__view_address_bits(view);
    return status;
}

static fa_status make_views(const fa_rope_spec *s, const fa_rope_args *a, const sizes *n, views *v)
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

static fa_status check_views(const views *v)
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

/* An array that the kernel reads beside the tensors. */
static fa_status check_array(const views *v, const char *name, const void *data, int64_t count)
{
    fa__view array;
    fa_status status = fa__view_make_array(&array, "rope", name, data, count, 4);
    for (int i = 0; i < v->outputs && !status; i++)
        status = fa__view_check_apart(&v->view[i], &array);
    return status;
}

/* --- launch: angles --- */

static fa_status check_positions(const fa_rope_args *a, const sizes *n, const views *v)
{
    int64_t reach = 0;
    if (__builtin_mul_overflow(a->positions_stride, n->batch - 1, &reach) || reach > INT64_C(1)
                                                                                         << 54)
        return fa__fail(FA_ERR_STRIDE,
                        "rope: positions_stride = %" PRId64
                        " leads outside any address space "
                        "(fa_rope_args.positions_stride)",
                        a->positions_stride);
    if (reach < 0)
        return fa__fail(FA_ERR_STRIDE,
                        "rope: positions_stride = %" PRId64
                        " is negative "
                        "(fa_rope_args.positions_stride)",
                        a->positions_stride);
    return check_array(v, "positions", a->positions, reach + n->seqlen);
}

static fa_status check_tables(const fa_rope_spec *s, const fa_rope_args *a, const sizes *n,
                              const views *v)
{
    if (a->max_position <= 0)
        return fa__fail(FA_ERR_SIZE,
                        "rope: max_position = %d; the tables need at least 1 row "
                        "(fa_rope_args.max_position)",
                        a->max_position);
    int64_t end = (int64_t)a->position_offset + n->seqlen;
    if (s->positions == FA_ROPE_RANGE && (a->position_offset < 0 || end > a->max_position))
        return fa__fail(FA_ERR_LIMIT,
                        "rope: positions %d to %" PRId64
                        " are not all in the tables, which hold "
                        "0 to %d (fa_rope_args.position_offset, max_position)",
                        a->position_offset, end - 1, a->max_position - 1);
    int64_t count = a->max_position * (n->rotary_dim / 2);
    fa_status status = check_array(v, "cos", a->cos, count);
    return status ? status : check_array(v, "sin", a->sin, count);
}

/* --- launch: the grid --- */

/* n / d, rounded up; d is a power of two. Divisions by an unknown d would be most of the time that
 * a launch takes here. */
static int64_t divide_up(int64_t n, int64_t d)
{
    return (n + d - 1) >> __builtin_ctzll((uint64_t)d);
}

/* Elements of an access that is safe for these pointers, strides and sizes. */
static int64_t choose_width(const fa_rope_spec *s, const fa__plan *p, const fa_rope_args *a,
                            const sizes *n, const views *v)
{
    const int64_t bytes = (int64_t)fa__dtype_bytes(s->dtype);
    int64_t width = fa__rope_power_of_two(fa__rope_dividends(s, n->head_dim, n->rotary_dim),
                                          p->value[ROPE_VECTOR_WIDTH]);
    width = divide_up(fa__rope_power_of_two(v->address_bits, width * bytes), bytes);
    if (s->angles == FA_ROPE_TABLES) {
        /* A thread reads one float32 of each table for a pair, in accesses of 16 bytes at most. */
        int64_t aligned = fa__rope_power_of_two((uintptr_t)a->cos | (uintptr_t)a->sin, 16);
        int64_t limit = s->style == FA_ROPE_HALF ? aligned / 4 : aligned / 2;
        if (aligned < 16 && width > limit)
            width = limit;
    }
    return width;
}

/* Heads that share a thread's angles: fewer while they leave multiprocessors without a block, more
 * where the grid could not hold their groups. */
static int64_t choose_heads_per_group(const sizes *n, int64_t blocks, int32_t multiprocessors)
{
    int64_t heads = ROPE_HEADS_PER_GROUP;
    int64_t groups = divide_up(n->heads_q, heads) + divide_up(n->heads_k, heads);
    for (; heads > 1 && blocks * groups < multiprocessors; heads /= 2)
        groups *= 2;
    while (divide_up(n->heads_q, heads) + divide_up(n->heads_k, heads) > MAX_GRID_Y)
        heads *= 2;
    return heads;
}

static void fill_tensor(rope_tensor_params *t, const fa__view *in, const fa__view *out,
                        int64_t heads, int64_t heads_per_group, int64_t *groups)
{
    *groups = 0;
    if (!heads)
        return;
    *groups = divide_up(heads, heads_per_group);
    *t = (rope_tensor_params){
        in->base,       out->base,      in->stride[0],  in->stride[1],  in->stride[2],
        out->stride[0], out->stride[1], out->stride[2], (int32_t)heads, (int32_t)heads_per_group};
}

static fa_status choose_grid(const fa_rope_spec *s, const sizes *n, const views *v, int64_t width,
                             int32_t multiprocessors, rope_kernel_params *k, fa__launch *l)
{
    const int64_t pairs = s->style == FA_ROPE_HALF ? width : width > 1 ? width / 2 : 1;
    const int64_t rotated = divide_up(n->rotary_dim / 2, pairs); /* without a rest */
    const int64_t copied = s->in_place ? 0 : divide_up(n->head_dim - n->rotary_dim, width);
    const int64_t tokens = n->batch * n->seqlen; /* below 2^62 */
    int64_t rotary_blocks = MAX_GRID_X + 1, blocks = MAX_GRID_X + 1;
    if (tokens <= MAX_GRID_X * ROPE_BLOCK_THREADS) {
        rotary_blocks = divide_up(tokens * rotated, ROPE_BLOCK_THREADS);
        blocks = rotary_blocks + divide_up(tokens * copied, ROPE_BLOCK_THREADS);
    }
    if (blocks > MAX_GRID_X)
        return fa__fail(FA_ERR_GEOMETRY,
                        "rope: batch * seqlen = %" PRId64 " tokens of head_dim = %" PRId64
                        " need a grid.x over its limit of %" PRId64 "; launch them in parts",
                        tokens, n->head_dim, MAX_GRID_X);
    int64_t groups_q = 0, groups_k = 0;
    int64_t heads = choose_heads_per_group(n, blocks, multiprocessors);
    fill_tensor(&k->q, v->q, v->q_out, n->heads_q, heads, &groups_q);
    fill_tensor(&k->k, v->k, v->k_out, n->heads_k, heads, &groups_k);
    k->width = (int32_t)width;
    k->groups_q = (int32_t)groups_q;
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
    sizes n = {0};
    views v;
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
    if (!status && s->positions == FA_ROPE_VECTOR)
        status = check_positions(a, &n, &v);
    if (!status && s->angles == FA_ROPE_TABLES)
        status = check_tables(s, a, &n, &v);
    if (status)
        return status;

    uint64_t log2_base = fa__rope_log2_base(p), rotary_dim = (uint64_t)n.rotary_dim;
    *k = (rope_kernel_params){.positions = (uintptr_t)a->positions,
                              .positions_stride = a->positions_stride,
                              .cos = (uintptr_t)a->cos,
                              .sin = (uintptr_t)a->sin,
                              .log2_base_quotient = s->rotary_dim ? 0 : log2_base / rotary_dim,
                              .log2_base_remainder =
                                  s->rotary_dim ? 0 : (int32_t)(log2_base % rotary_dim),
                              .batch = (int32_t)n.batch,
                              .seqlen = (int32_t)n.seqlen,
                              .head_dim = (int32_t)n.head_dim,
                              .rotary_dim = (int32_t)n.rotary_dim,
                              .position_offset = a->position_offset,
                              .max_position = a->max_position};
    room->params[0] = k;
    l->params = room->params;
    l->smem_bytes = 0;
    return choose_grid(s, &n, &v, choose_width(s, p, a, &n, &v), multiprocessors, k, l);
}
