/* Launching kv_update: the sizes and the grid. Runs in the serving path: straight-line integer
 * code, no allocation. */
#include <inttypes.h>

#include "ops/kv_update.h"
#include "status.h"

/* --- sizes --- */

static fa_status check_head_dim(const fa_kv_update_spec *s, kv_sizes *n)
{
    n->head_dim_v = s->head_dim_v ? s->head_dim_v : n->head_dim;
    n->rotary_dim = !s->rotation ? 0 : s->rotary_dim ? s->rotary_dim : n->head_dim;
    return fa__rotary_check_dims("kv_update", &s->scaling, n->head_dim, n->rotary_dim,
                                 KV_MAX_HEAD_DIM);
}

static fa_status check_cache_size(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                                  kv_sizes *n)
{
    fa_status status = FA_OK;
    if (s->cache == FA_KV_DENSE) {
        n->outer = n->batch;
        status =
            fa__size_resolve("kv_update", "cache_len", s->cache_len, a->cache_len, &n->entries);
        return status ? status : fa__cache_size_check("kv_update", "cache_len", n->entries);
    }
    n->outer = a->pages;
    status = fa__size_resolve("kv_update", "page_size", s->page_size, a->page_size, &n->entries);
    if (!status)
        status = fa__cache_size_check("kv_update", "page_size", n->entries);
    if (!status)
        status = fa__cache_size_check("kv_update", "pages", a->pages);
    if (!status && s->cache == FA_KV_BLOCK_TABLE)
        status = fa__cache_size_check("kv_update", "max_pages", a->max_pages);
    if (!status && n->entries > KV_MAX_PAGE_SIZE)
        status =
            fa__fail(FA_ERR_LIMIT,
                     "kv_update: page_size = %" PRId64 "; at most %d (fa_kv_update_args.page_size)",
                     n->entries, KV_MAX_PAGE_SIZE);
    return status;
}

static fa_status check_slot_count(const fa_kv_update_spec *s, const fa_kv_update_args *a,
                                  kv_sizes *n)
{
    const int64_t given = s->cache == FA_KV_SLOTS ? a->slot_count : 0;
    return fa__slot_count_resolve("kv_update", given, n->batch * n->tokens, &n->slots);
}

static fa_status resolve_sizes(const fa_kv_update_spec *s, const fa_kv_update_args *a, kv_sizes *n)
{
    fa_status status = FA_OK;
    (void)((status = fa__size_resolve("kv_update", "batch", s->batch, a->batch, &n->batch)) ||
           (status = fa__size_resolve("kv_update", "tokens", s->tokens, a->tokens, &n->tokens)) ||
           (status = fa__size_resolve("kv_update", "heads", s->heads, a->heads, &n->heads)) ||
           (status = fa__size_resolve("kv_update", "head_dim", s->head_dim, a->head_dim,
                                      &n->head_dim)) ||
           (status = check_head_dim(s, n)));
    return status;
}

static bool is_empty(const fa_kv_update_spec *s, const kv_sizes *n)
{
    return !n->batch || !n->heads || !n->head_dim || (s->in_place && !n->tokens);
}

/* --- the grid --- */

/* The largest width up to `width` whose accesses to this tensor are aligned. */
static int64_t aligned_width(const fa__view *view, int64_t width)
{
    return view ? fa__power_of_two(fa__view_address_bits(view), width * view->element_bytes) /
                      view->element_bytes
                : width;
}

/* Elements of an access that is safe for these pointers, strides and sizes. */
static int64_t choose_width(const fa_kv_update_spec *s, const fa__plan *p,
                            const fa_kv_update_args *a, const kv_sizes *n, const kv_views *v,
                            int which)
{
    const uint64_t divides =
        which ? (uint64_t)n->head_dim_v : fa__kv_dividends(s, n->head_dim, n->rotary_dim);
    int64_t width =
        fa__power_of_two(divides, p->value[which ? KV_VECTOR_WIDTH_V : KV_VECTOR_WIDTH]);
    width = aligned_width(v->fresh[which], width);
    width = aligned_width(v->cache[which], width);
    width = aligned_width(v->out[which], width);
    if (which || !s->rotation)
        return width;
    return fa__rotary_width(s->angles, s->rotation == FA_KV_ROTATE_HALF, a->cos, a->sin,
                            a->inv_freq, width);
}

static kv_tensor_params tensor_params(const fa__view *view)
{
    if (!view)
        return (kv_tensor_params){0};
    return (kv_tensor_params){view->base, view->stride[0], view->stride[1], view->stride[2]};
}

static void fill_part(kv_part_params *part, const kv_views *v, int which, int64_t dim,
                      int64_t width, const float *scale)
{
    *part = (kv_part_params){.fresh = tensor_params(v->fresh[which]),
                             .cache = tensor_params(v->cache[which]),
                             .out = tensor_params(v->out[which]),
                             .scale = (uintptr_t)scale,
                             .dim = (int32_t)dim,
                             .width = (int32_t)width};
}

/* What threads do to one head of one item. */
static int64_t units_of(const fa_kv_update_spec *s, const kv_sizes *n, int64_t width,
                        int64_t width_v)
{
    const bool halves = s->rotation == FA_KV_ROTATE_HALF || width == 1;
    const int64_t rotated = n->rotary_dim / (halves ? 2 * width : width);
    const int64_t units = rotated + (n->head_dim - n->rotary_dim) / width;
    const int64_t units_v = n->head_dim_v / width_v;
    return units > units_v ? units : units_v;
}

/* log2 of the neighbouring heads that neighbouring threads take: more than one where the heads of a
 * token lie beside each other, so that what a block touches is contiguous; few enough to leave a
 * thread a whole group's share of heads, among which it spreads what it does once for a token. */
static int32_t choose_abreast_log2(const kv_sizes *n, const kv_views *v, int64_t units)
{
    for (int i = 0; i < 6; i++) {
        const fa__view *x = i < 2 ? v->fresh[i] : i < 4 ? v->cache[i - 2] : v->out[i - 4];
        if (x && fa__view_tokens_inside(x))
            return 0;
    }
    int32_t log2 = 0;
    while (units << (log2 + 1) <= KV_BLOCK_THREADS && KV_HEADS_PER_GROUP << (log2 + 1) <= n->heads)
        log2++;
    return log2;
}

/* Items of a block: as many as give each thread one unit. Not in place more where a block has many
 * tokens to look at, as long as there are blocks for all multiprocessors several times over. */
static int64_t choose_items(const fa_kv_update_spec *s, const kv_sizes *n, int64_t items,
                            int64_t threads_each, int32_t multiprocessors)
{
    int64_t of_block = threads_each < KV_BLOCK_THREADS ? KV_BLOCK_THREADS / threads_each : 1;
    while (!s->in_place && of_block < KV_BLOCK_THREADS / 2 && n->tokens > 4 * of_block &&
           items / (2 * of_block) >= 8 * (int64_t)multiprocessors)
        of_block *= 2;
    return of_block;
}

/* Heads that share a thread's angles: fewer while they leave multiprocessors without a block, more
 * where the grid could not hold their groups. */
static int64_t choose_heads_per_group(const kv_sizes *n, int64_t blocks, int32_t abreast_log2,
                                      int32_t multiprocessors)
{
    const int64_t abreast = INT64_C(1) << abreast_log2;
    int64_t heads = KV_HEADS_PER_GROUP * abreast;
    while (heads > abreast && blocks * 2 * fa__divide_up(n->heads, heads) < multiprocessors)
        heads /= 2;
    while (2 * fa__divide_up(n->heads, heads) > FA__MAX_GRID_Y)
        heads *= 2;
    return heads;
}

static fa_status choose_grid(const fa_kv_update_spec *s, const kv_sizes *n, const kv_views *v,
                             int32_t multiprocessors, kv_kernel_params *k, fa__launch *l)
{
    const int64_t tokens = n->batch * n->tokens; /* below 2^62 */
    const int64_t items = s->in_place ? n->slots : n->batch * n->entries;
    const int64_t units = units_of(s, n, k->k.width, k->v.width);
    const int32_t abreast_log2 = choose_abreast_log2(n, v, units);
    const int64_t of_block = choose_items(s, n, items, units << abreast_log2, multiprocessors);
    const int64_t blocks = fa__divide_up(items, of_block);
    if (blocks > FA__MAX_GRID_X || (!s->in_place && tokens > INT32_MAX))
        return fa__fail(FA_ERR_GEOMETRY,
                        "kv_update: batch * tokens = %" PRId64 " and %" PRId64
                        " cache entries of head_dim = %" PRId64
                        " are over the limits of a grid; launch them in parts",
                        tokens, n->outer * n->entries, n->head_dim);
    const int64_t heads = choose_heads_per_group(n, blocks, abreast_log2, multiprocessors);
    k->items = (int32_t)of_block;
    k->heads_per_group = (int32_t)heads;
    k->groups = (int32_t)fa__divide_up(n->heads, heads);
    k->abreast_log2 = abreast_log2;
    l->grid[0] = (uint32_t)blocks;
    l->grid[1] = 2 * (uint32_t)k->groups;
    l->grid[2] = 1;
    l->block[0] = KV_BLOCK_THREADS;
    l->block[1] = l->block[2] = 1;
    return FA_OK;
}

static void fill_params(const fa_kv_update_spec *s, const fa__plan *p, const fa_kv_update_args *a,
                        const kv_sizes *n, const kv_views *v, kv_kernel_params *k)
{
    *k = (kv_kernel_params){.positions = (uintptr_t)a->positions,
                            .positions_stride = a->positions_stride,
                            .slots = (uintptr_t)a->slots,
                            .slot_count = n->slots,
                            .block_table = (uintptr_t)a->block_table,
                            .block_table_stride = fa__kv_table_stride(a),
                            .cos = (uintptr_t)a->cos,
                            .sin = (uintptr_t)a->sin,
                            .inv_freq = (uintptr_t)a->inv_freq,
                            .errors = (uintptr_t)a->errors,
                            .rotary_dim = (int32_t)n->rotary_dim,
                            .max_position = a->max_position,
                            .batch = (int32_t)n->batch,
                            .tokens = (int32_t)n->tokens,
                            .heads = (int32_t)n->heads,
                            .cache_len = s->cache == FA_KV_DENSE ? (int32_t)n->entries : 0,
                            .page_size = s->cache == FA_KV_DENSE ? 0 : (int32_t)n->entries,
                            .pages = a->pages,
                            .max_pages = a->max_pages,
                            .indices_aligned = fa__kv_update_indices_aligned(s, a, n)};
    fill_part(&k->k, v, 0, n->head_dim, choose_width(s, p, a, n, v, 0), a->k_scale);
    fill_part(&k->v, v, 1, n->head_dim_v, choose_width(s, p, a, n, v, 1), a->v_scale);
}

fa_status fa__kv_update_launch(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                               const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_kv_update_spec *s = &spec->kv_update;
    const fa_kv_update_args *a = &args->kv_update;
    kv_kernel_params *k = (kv_kernel_params *)(void *)room->block;
    kv_sizes n = {0};
    kv_views v;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = is_empty(s, &n);
    if (l->empty)
        return FA_OK;
    status = check_cache_size(s, a, &n);
    if (!status)
        status = check_slot_count(s, a, &n);
    if (!status)
        status = fa__kv_update_arrays(s, a, &n, &v);
    if (status)
        return status;
    int64_t length = 0;
    fill_params(s, p, a, &n, &v, k);
    if (s->rotation &&
        (status = fa__rotary_length("kv_update", &s->scaling, a->sequence_length, &length)))
        return status;
    if (s->rotation && s->angles == FA_ROPE_COMPUTED &&
        fa__rotary_waits(&s->scaling, s->rotary_dim))
        k->rule = fa__rotary_rule_make(s->base, &s->scaling, n.rotary_dim, length);
    room->params[0] = k;
    l->params = room->params;
    l->smem_bytes = 0;
    return choose_grid(s, &n, &v, multiprocessors, k, l);
}
