/* Launching lowrank_kv: the sizes, the workspace and the grids. Runs in the serving path:
 * straight-line integer code, no allocation. */
#include <inttypes.h>
#include <string.h>

#include "ops/lowrank_kv.h"
#include "status.h"

/* --- sizes --- */

static fa_status resolve(const char *name, int32_t baked, int32_t given, int64_t *size)
{
    return fa__size_resolve("lowrank_kv", name, baked, given, size);
}

static fa_status resolve_sizes(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                               lowrank_sizes *n)
{
    *n = (lowrank_sizes){.rank = s->rank,
                         .rope_dim = s->rope_dim,
                         .has_down = s->form != FA_LOWRANK_UP,
                         .has_up = s->form != FA_LOWRANK_DOWN};
    fa_status status = resolve("batch", s->batch, a->batch, &n->batch);
    if (!status)
        status = resolve("seqlen", s->seqlen, a->seqlen, &n->seqlen);
    if (!status && n->has_down)
        status = resolve("model_dim", s->model_dim, a->model_dim, &n->model_dim);
    if (!status && n->model_dim > LINEAR_MAX_SIZE)
        status = fa__fail(FA_ERR_LIMIT,
                          "lowrank_kv: model_dim = %" PRId64
                          "; at most %d (fa_lowrank_kv_args.model_dim)",
                          n->model_dim, LINEAR_MAX_SIZE);
    if (!status && n->has_up)
        status = resolve("heads", s->heads, a->heads, &n->heads);
    if (!status && n->has_up)
        status = resolve("head_dim", s->head_dim, a->head_dim, &n->head_dim);
    n->head_dim_v = s->head_dim_v ? s->head_dim_v : n->head_dim;
    n->row_k = n->head_dim + (s->rope_once ? 0 : n->rope_dim);
    return status ? status
                  : fa__lowrank_check_columns("fa_lowrank_kv_args", n->heads, n->head_dim,
                                              n->head_dim_v);
}

static bool is_empty(const lowrank_sizes *n)
{
    return !n->batch || !n->seqlen || (n->has_down && !n->model_dim) ||
           (n->has_up && (!n->heads || !n->head_dim));
}

static fa_status resolve_cache(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                               lowrank_sizes *n)
{
    n->outer = n->batch;
    n->entries = n->seqlen;
    n->slots = n->batch * n->seqlen; /* below 2^62 */
    if (!s->to_cache)
        return FA_OK;
    if (s->cache == FA_KV_DENSE) {
        n->entries = a->cache_len;
        return fa__cache_size_check("lowrank_kv", "cache_len", a->cache_len);
    }
    n->outer = a->pages;
    n->entries = a->page_size;
    fa_status status = fa__cache_size_check("lowrank_kv", "page_size", a->page_size);
    if (!status)
        status = fa__cache_size_check("lowrank_kv", "pages", a->pages);
    if (!status && s->cache == FA_KV_BLOCK_TABLE)
        status = fa__cache_size_check("lowrank_kv", "max_pages", a->max_pages);
    if (!status && s->cache == FA_KV_SLOTS)
        status = fa__slot_count_resolve("lowrank_kv", a->slot_count, n->slots, &n->slots);
    return status;
}

/* --- parameters --- */

/* For what is between two launches: the latent, and a mark for each token behind it. */
static bool uses_workspace(const fa_lowrank_kv_spec *s, const lowrank_way *way)
{
    return s->form == FA_LOWRANK_WHOLE && way->count > 1;
}

/* Of weights whose columns count through the heads: where heads do not follow one another, an
 * access must not reach over the end of one. */
static int32_t weight_access(const fa__view *w)
{
    const uint64_t e = (uint64_t)w->element_bytes;
    uint64_t bits = w->base | (uint64_t)w->stride[2] * e;
    if (w->extent[1] > 1 && w->stride[1] != w->row)
        bits |= (uint64_t)w->stride[1] * e | (uint64_t)w->row * e;
    return fa__access_bytes(bits, w->element_bytes);
}

/* Elements of a store to rows that are shared out in runs of `row`. */
static int32_t store_width(const fa__view *out, int64_t row)
{
    const uint64_t e = (uint64_t)out->element_bytes;
    return (int32_t)(fa__power_of_two(fa__view_address_bits(out) | (uint64_t)row * e, 16) /
                     (int64_t)e);
}

static lowrank_rows rows_of(const fa__view *v)
{
    return v ? (lowrank_rows){v->base, v->stride[0], v->stride[2]} : (lowrank_rows){0};
}

static lowrank_heads heads_of(const fa__view *v)
{
    return v ? (lowrank_heads){v->base, v->stride[0], v->stride[1], v->stride[2]}
             : (lowrank_heads){0};
}

static void fill_products(const fa_lowrank_kv_spec *s, const fa_args *args, const lowrank_sizes *n,
                          const lowrank_views *v, const lowrank_way *way, lowrank_params *k)
{
    const int64_t e = fa__lowrank_element_bytes(s);
    k->hidden = rows_of(v->hidden);
    k->w_down = rows_of(v->w_down);
    if (v->hidden) {
        k->hidden_bytes = fa__access_bytes(fa__view_address_bits(v->hidden), e);
        k->w_down_bytes = fa__access_bytes(fa__view_address_bits(v->w_down), e);
    }
    for (int i = 0; i < 2 && n->has_up; i++) {
        k->w_up[i] = heads_of(v->w_up[i]);
        if (v->w_up[i]->extent[1] == 1)
            k->w_up[i].head = v->w_up[i]->row;
        k->w_up_bytes[i] = weight_access(v->w_up[i]);
        k->out[i] = heads_of(v->out[i]);
        k->out_width[i] = store_width(v->out[i], i ? n->head_dim_v : n->head_dim);
    }
    if (uses_workspace(s, way)) {
        const int64_t row = fa__lowrank_workspace_row(s);
        k->latent_in = k->latent_out =
            (lowrank_rows){(uintptr_t)args->workspace, n->seqlen * row, row};
        k->latent_bytes = 16;
        k->latent_width = (int32_t)fa__power_of_two((uint64_t)n->rank, 16 / e);
        if (fa__lowrank_marks(s))
            k->superseded = (uintptr_t)args->workspace + (uint64_t)(n->batch * n->seqlen * row * e);
    } else if (s->form == FA_LOWRANK_UP) {
        k->latent_in = rows_of(v->latent);
        k->latent_bytes = fa__access_bytes(fa__view_address_bits(v->latent), e);
    } else if (s->form == FA_LOWRANK_DOWN) {
        k->latent_out = rows_of(v->latent);
        k->latent_width = store_width(v->latent, n->rank);
    }
}

static void fill_rest(const fa_lowrank_kv_spec *s, const fa_lowrank_kv_args *a,
                      const lowrank_sizes *n, const lowrank_views *v, lowrank_params *k)
{
    k->rope = rows_of(v->rope);
    k->rope_out = rows_of(v->rope_out);
    k->norm = (uintptr_t)a->norm_weight;
    k->positions = fa__lowrank_has_positions(s, a) ? (uintptr_t)a->positions : 0;
    k->positions_stride = a->positions_stride;
    k->slots = (uintptr_t)a->slots;
    k->slot_count = n->slots;
    k->block_table = (uintptr_t)a->block_table;
    k->block_table_stride = fa__lowrank_table_stride(a);
    k->cos = (uintptr_t)a->cos;
    k->sin = (uintptr_t)a->sin;
    k->inv_freq = (uintptr_t)a->inv_freq;
    k->errors = (uintptr_t)a->errors;
    k->batch = (int32_t)n->batch;
    k->seqlen = (int32_t)n->seqlen;
    k->model_dim = (int32_t)n->model_dim;
    k->heads = (int32_t)n->heads;
    k->head_dim = (int32_t)n->head_dim;
    k->head_dim_v = (int32_t)n->head_dim_v;
    k->position_offset = a->position_offset;
    k->max_position = a->max_position;
    k->entries = (int32_t)n->entries;
    k->pages = a->pages;
    k->max_pages = a->max_pages;
}

/* --- launches --- */

static lowrank_way choose_way(const lowrank_plan *p, int64_t tokens)
{
    if (!p->few.count || (p->many.count && tokens >= p->many_from))
        return p->many;
    return p->few;
}

/* Blocks of tokens, and those that share the columns of each (x, then y). */
static void blocks_of(const fa_lowrank_kv_spec *s, const lowrank_kernel *k, const lowrank_sizes *n,
                      int32_t multiprocessors, int64_t *blocks, int64_t *shares)
{
    const int64_t tokens = n->batch * n->seqlen;
    const lowrank_work w = {
        tokens, n->model_dim, {n->heads * n->head_dim, n->heads * n->head_dim_v}};
    *shares = 1;
    if (k->step == STEP_NORM) {
        *blocks = fa__divide_up(tokens, LOWRANK_WARPS);
    } else if (k->is_product) {
        *blocks = fa__lowrank_product_tiles(s, k->step, &w, k->product.tile_m, k->product.tile_n);
    } else {
        *blocks = fa__divide_up(tokens, k->small.rows);
        *shares = fa__lowrank_small_shares(s, k, &w, multiprocessors);
    }
}

static fa_status set_grid(const fa_lowrank_kv_spec *s, const lowrank_plan *p, int32_t kernel,
                          const lowrank_sizes *n, int32_t multiprocessors, fa__launch *l)
{
    const lowrank_kernel *k = &p->kernel[kernel];
    int64_t blocks, shares;
    blocks_of(s, k, n, multiprocessors, &blocks, &shares);
    if (blocks > FA__MAX_GRID_X || (k->is_product && n->batch * n->seqlen > LINEAR_MAX_SIZE))
        return fa__fail(FA_ERR_GEOMETRY,
                        "lowrank_kv: batch * seqlen = %" PRId64
                        " tokens are over the limits of a grid; launch them in parts",
                        n->batch * n->seqlen);
    l->function = (uint32_t)kernel;
    l->grid[0] = (uint32_t)blocks;
    l->grid[1] = (uint32_t)shares;
    l->grid[2] = 1;
    l->block[0] = fa__lowrank_threads(k);
    l->block[1] = l->block[2] = 1;
    l->smem_bytes = fa__lowrank_shared_bytes(k);
    return FA_OK;
}

static fa_status need_workspace(const fa_lowrank_kv_spec *s, const lowrank_sizes *n, size_t *bytes)
{
    const int64_t each = fa__lowrank_workspace_row(s) * fa__lowrank_element_bytes(s) +
                         (fa__lowrank_marks(s) ? 1 : 0);
    int64_t count = 0;
    if (__builtin_mul_overflow(n->batch * n->seqlen, each, &count) || count > INT64_C(1) << 56)
        return fa__fail(FA_ERR_LIMIT,
                        "lowrank_kv: batch * seqlen = %" PRId64
                        " tokens need a workspace outside any address space",
                        n->batch * n->seqlen);
    *bytes = (size_t)count;
    return FA_OK;
}

fa_status fa__lowrank_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                                const fa_args *args, size_t *bytes)
{
    (void)multiprocessors;
    const fa_lowrank_kv_spec *s = &spec->lowrank_kv;
    lowrank_plan p;
    lowrank_sizes n;
    fa__lowrank_plan_get(plan, &p);
    fa_status status = resolve_sizes(s, &args->lowrank_kv, &n);
    if (status || is_empty(&n))
        return status;
    const lowrank_way way = choose_way(&p, n.batch * n.seqlen);
    if (!uses_workspace(s, &way))
        return FA_OK;
    return need_workspace(s, &n, bytes);
}

static fa_status set_launches(const fa_lowrank_kv_spec *s, const lowrank_plan *p, lowrank_way way,
                              const lowrank_sizes *n, int32_t multiprocessors, fa__launch *l,
                              fa__launch_room *room)
{
    fa_status status = set_grid(s, p, way.kernel[0], n, multiprocessors, l);
    for (int32_t i = 1; i < way.count && !status; i++) {
        fa__launch *then = &room->then[i - 1];
        *then = (fa__launch){.params = l->params};
        status = set_grid(s, p, way.kernel[i], n, multiprocessors, then);
        l->then = &room->then[0];
        if (i > 1)
            room->then[i - 2].then = then;
    }
    return status;
}

fa_status fa__lowrank_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                             const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_lowrank_kv_spec *s = &spec->lowrank_kv;
    const fa_lowrank_kv_args *a = &args->lowrank_kv;
    lowrank_params *k = (lowrank_params *)(void *)room->block;
    lowrank_plan p;
    lowrank_views v;
    lowrank_sizes n;
    int64_t length = 0;
    size_t workspace = 0;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = is_empty(&n);
    if (l->empty)
        return FA_OK;
    fa__lowrank_plan_get(plan, &p);
    const lowrank_way way = choose_way(&p, n.batch * n.seqlen);
    status = resolve_cache(s, a, &n);
    if (!status && uses_workspace(s, &way))
        status = need_workspace(s, &n, &workspace);
    if (!status)
        status = fa__workspace_check("lowrank_kv", args, workspace);
    if (!status)
        status = fa__lowrank_arrays(s, args, &n, workspace, &v);
    if (!status)
        status = fa__rotary_length("lowrank_kv", &s->scaling, a->sequence_length, &length);
    if (status)
        return status;
    memset(k, 0, sizeof *k);
    fill_products(s, args, &n, &v, &way, k);
    fill_rest(s, a, &n, &v, k);
    if (s->rotation && s->angles == FA_ROPE_COMPUTED && fa__rotary_waits(&s->scaling, s->rope_dim))
        k->rule = fa__rotary_rule_make(s->base, &s->scaling, n.rope_dim, length);
    room->params[0] = k;
    l->params = room->params;
    return set_launches(s, &p, way, &n, multiprocessors, l, room);
}
