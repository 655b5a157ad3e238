/* Launching cross_attention: every check of the args, the workspace, and the grids. Runs in the
 * serving path: straight-line integer code, no allocation. */
#include <inttypes.h>
#include <string.h>

#include "ops/cross_attention.h"
#include "status.h"

/* --- sizes --- */

/* `columns`: that the workspace has for each row. */
static fa_status check_rows(const char *name, int64_t rows, int64_t columns)
{
    if (rows > LINEAR_MAX_SIZE)
        return fa__fail(FA_ERR_LIMIT,
                        "cross_attention: batch * %s = %" PRId64
                        "; at most %d (fa_cross_attention_args.batch, %s)",
                        name, rows, LINEAR_MAX_SIZE, name);
    if (columns && rows > (INT64_C(1) << 50) / columns)
        return fa__fail(FA_ERR_LIMIT,
                        "cross_attention: batch * %s = %" PRId64
                        " rows need a workspace outside any address space "
                        "(fa_cross_attention_args.batch, %s)",
                        name, rows, name);
    return FA_OK;
}

static fa_status resolve(const char *name, int32_t baked, int32_t given, int64_t *size)
{
    if (given > LINEAR_MAX_SIZE)
        return fa__fail(FA_ERR_LIMIT,
                        "cross_attention: %s = %d; at most %d (fa_cross_attention_args.%s)", name,
                        given, LINEAR_MAX_SIZE, name);
    return fa__size_resolve("cross_attention", name, baked, given, size);
}

static fa_status resolve_sizes(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                               cross_sizes *n)
{
    fa_status status = FA_OK;
    *n = (cross_sizes){.columns_q = (int64_t)s->heads_q * s->head_dim,
                       .columns_k = (int64_t)s->heads_k * s->head_dim,
                       .element_bytes = (int64_t)fa__dtype_bytes(s->dtype)};
    (void)((status = resolve("batch", s->batch, a->batch, &n->batch)) ||
           (fa__cross_has_queries(s) &&
            (status = resolve("seqlen_q", s->seqlen_q, a->seqlen_q, &n->seqlen_q))) ||
           (status = resolve("seqlen_k", s->seqlen_k, a->seqlen_k, &n->seqlen_k)) ||
           (status = resolve("model_dim", s->model_dim, a->model_dim, &n->model_dim)) ||
           (status = check_rows("seqlen_q", n->batch * n->seqlen_q, n->columns_q)) ||
           (status = check_rows("seqlen_k", n->batch * n->seqlen_k, n->columns_k)));
    n->rows_q = n->batch * n->seqlen_q;
    n->rows_k = n->batch * n->seqlen_k;
    return status;
}

static bool is_empty(const fa_cross_attention_spec *s, const cross_sizes *n)
{
    return !n->model_dim || !(s->form == FA_CROSS_KEYS ? n->rows_k : n->rows_q);
}

/* --- the workspace: counters, q, k, v, the heads' outputs --- */

#define COUNTER_BYTES 256

typedef struct workspace {
    int64_t q, k, v, heads, bytes; /* offsets, and the whole */
    int64_t row_q, row_k;          /* elements between rows: 16-byte accesses */
} workspace;

static workspace workspace_of(const fa_cross_attention_spec *s, const cross_sizes *n)
{
    const int64_t piece = 16 / n->element_bytes;
    workspace r = {.row_q = fa__round_up(n->columns_q, piece),
                   .row_k = fa__round_up(n->columns_k, piece)};
    if (s->form == FA_CROSS_KEYS)
        return r;
    const int64_t queries = fa__round_up(n->rows_q * r.row_q * n->element_bytes, 256);
    const int64_t keys =
        s->form == FA_CROSS_QUERIES ? 0 : fa__round_up(n->rows_k * r.row_k * n->element_bytes, 256);
    r.q = COUNTER_BYTES;
    r.k = r.q + queries;
    r.v = r.k + keys;
    r.heads = r.v + keys;
    r.bytes = r.heads + queries;
    return r;
}

fa_status fa__cross_workspace(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                              const fa_args *args, size_t *bytes)
{
    const fa_cross_attention_spec *s = &spec->cross_attention;
    cross_sizes n;
    (void)plan;
    (void)multiprocessors;
    const fa_status status = resolve_sizes(s, &args->cross_attention, &n);
    if (!status)
        *bytes = is_empty(s, &n) ? 0 : (size_t)workspace_of(s, &n).bytes;
    return status;
}

/* --- the steps' parameters --- */

static uintptr_t angles_of(const fa_cross_attention_spec *s, const fa_cross_attention_args *a)
{
    return s->rotation ? fa__rotary_bits(s->angles, a->cos, a->sin, a->inv_freq) : 0;
}

/* stride - count * inner, which wraps as addresses do. */
static int64_t jump_of(int64_t stride, int64_t count, int64_t inner)
{
    return (int64_t)((uint64_t)stride - (uint64_t)count * (uint64_t)inner);
}

/* The tokens of all batches as rows of one matrix. */
static linear_rows rows_of(const fa__view *view, linear_jumps *jumps)
{
    const int64_t batches = view->extent[0], tokens = view->extent[2];
    if (tokens == 1)
        return (linear_rows){view->base, view->stride[0]};
    jumps->group = (int32_t)tokens;
    if (batches > 1)
        jumps->jump = jump_of(view->stride[0], tokens, view->stride[2]);
    return (linear_rows){view->base, view->stride[2]};
}

/* Heads that lie beside each other as one, whose row has the columns of all. */
static fa__view merged(fa__view view)
{
    if (view.extent[1] > 1 && view.stride[1] == view.row) {
        view.row *= view.extent[1];
        view.extent[1] = 1;
        view.stride[1] = 0;
    }
    return view;
}

/* Heads that lie apart as columns of one matrix. */
static linear_jumps columns_of(const fa__view *view)
{
    if (view->extent[1] == 1)
        return (linear_jumps){0, 0};
    return (linear_jumps){(int32_t)view->row, jump_of(view->stride[1], 1, view->row)};
}

/* y = x w^T: one group of the projections, or the output. */
static void fill_linear(const fa_linear_spec *linear, const linear_step *step,
                        const fa__view *given, const fa__view *w, const fa__view *written,
                        const void *bias, uintptr_t angles, cross_product_params *product)
{
    const int64_t vector = step->vector_width;
    const fa__view x = merged(*given), y = merged(*written);
    linear_kernel_params *k = &product->linear;
    linear_batch_jumps *jumps = &product->jumps;
    *k = (linear_kernel_params){
        .x = rows_of(&x, &jumps->x),
        .w = {w->base, w->stride[2]},
        .y[0] = rows_of(&y, &jumps->y),
        .bias = (uintptr_t)bias,
        .m = (int32_t)(x.extent[0] * x.extent[2]),
        .n = (int32_t)w->extent[2],
        .k = (int32_t)w->row,
        .x_width = fa__linear_copy_width(&x),
        .w_width = fa__linear_copy_width(w),
        .splits = 1,
    };
    jumps->y_heads = columns_of(&y);
    k->vector = fa__linear_is_wide(linear, vector, y.row, fa__view_address_bits(&y),
                                   (uintptr_t)bias, angles)
                    ? (int32_t)vector
                    : 1;
}

static void fill_rotation(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                          int64_t seqlen, int32_t offset, const fa__rotary_rule *rule,
                          linear_kernel_params *k)
{
    k->rotated = k->n;
    k->seqlen = (int32_t)seqlen;
    k->position_offset = offset;
    k->cos = s->angles == FA_ROPE_TABLES ? (uintptr_t)a->cos : 0;
    k->sin = s->angles == FA_ROPE_TABLES ? (uintptr_t)a->sin : 0;
    k->inv_freq = (uintptr_t)a->inv_freq;
    k->max_position = a->max_position;
    k->rule = *rule;
}

static int64_t tiles_of(const linear_step *step, const cross_product_params *product)
{
    const linear_kernel_params *k = &product->linear;
    return fa__divide_up(k->m, step->tile_m) * fa__divide_up(k->n, step->tile_n);
}

/* Where the steps find q, k, v and the heads' outputs: heads of tokens. */
typedef struct between {
    fa__view q, k, v, heads;
} between;

/* Rows of the workspace. Strides of what there is one of are 0, as everywhere. */
static fa__view part_of(const fa_args *args, int64_t offset, int64_t row, int64_t batch,
                        int32_t heads, int64_t tokens, const fa_cross_attention_spec *s)
{
    return (fa__view){
        .base = (uintptr_t)args->workspace + (uintptr_t)offset,
        .extent = {batch, heads, tokens},
        .stride = {batch > 1 ? tokens * row : 0, heads > 1 ? s->head_dim : 0, tokens > 1 ? row : 0},
        .row = s->head_dim,
        .element_bytes = (int64_t)fa__dtype_bytes(s->dtype)};
}

static between between_of(const fa_cross_attention_spec *s, const fa_args *args,
                          const cross_sizes *n, const workspace *r, const cross_views *v)
{
    const int64_t tq = n->seqlen_q, tk = n->seqlen_k;
    return (between){
        .q = part_of(args, r->q, r->row_q, n->batch, s->heads_q, tq, s),
        .k = v->k ? *v->k : part_of(args, r->k, r->row_k, n->batch, s->heads_k, tk, s),
        .v = v->v ? *v->v : part_of(args, r->v, r->row_k, n->batch, s->heads_k, tk, s),
        .heads = part_of(args, r->heads, r->row_q, n->batch, s->heads_q, tq, s),
    };
}

/* FA_ERR_GEOMETRY: more tiles than a grid has. */
static fa_status fill_project(const fa_cross_attention_spec *s, const cross_plan *p,
                              const fa_cross_attention_args *a, const cross_sizes *n,
                              const cross_views *v, const between *b, const fa__rotary_rule *rule,
                              cross_kernel_params *k)
{
    const struct {
        const fa__view *x, *y;
        const void *bias;
        int32_t heads, offset;
        int64_t seqlen;
        bool rotated;
    } group[CROSS_GROUPS] = {
        {v->x_query, &b->q, a->b_q, s->heads_q, a->position_offset_q, n->seqlen_q, true},
        {v->x_kv, &b->k, a->b_k, s->heads_k, a->position_offset_k, n->seqlen_k, true},
        {v->x_kv, &b->v, a->b_v, s->heads_k, 0, 0, false},
    };
    int64_t tiles = 0;
    for (int g = 0; g < CROSS_GROUPS; g++) {
        k->tiles_before[g] = (int32_t)tiles;
        if (!group[g].x)
            continue;
        const fa_spec linear = fa__cross_project(s, group[g].heads);
        fill_linear(&linear.linear, &p->project, group[g].x, v->w[g], group[g].y,
                    s->bias ? group[g].bias : NULL, angles_of(s, a), &k->project[g]);
        if (group[g].rotated && s->rotation)
            fill_rotation(s, a, group[g].seqlen, group[g].offset, rule, &k->project[g].linear);
        tiles += tiles_of(&p->project, &k->project[g]);
        if (tiles > FA__MAX_GRID_X)
            return fa__fail(FA_ERR_GEOMETRY,
                            "cross_attention: batch * seqlen_q = %" PRId64
                            ", batch * seqlen_k = %" PRId64
                            " are over the limits of a grid; launch them in parts",
                            n->rows_q, n->rows_k);
    }
    k->project_tiles = (int32_t)tiles;
    return FA_OK;
}

static attention_tensor_params tensor_of(const fa__view *view)
{
    return (attention_tensor_params){view->base, view->stride[0], view->stride[1], view->stride[2]};
}

/* Bytes of the widest access that rows of heads allow, of those that are planned. */
static int32_t width_of(const fa__view *view, const attention_step *attend)
{
    return (int32_t)fa__power_of_two(fa__view_address_bits(view), attend->load_bytes);
}

static fa_status fill_attend(const fa_cross_attention_spec *s, const cross_plan *p,
                             const cross_sizes *n, const between *b, cross_kernel_params *k)
{
    const attention_step *step = &p->attend;
    const fa_spec attention = fa__cross_attend(s);
    const int64_t tiles = fa__divide_up(n->seqlen_q, fa__attention_step_rows(step));
    const int64_t blocks = n->batch * s->heads_q * tiles; /* below 2^31 * 256 * 2^31 / 16 */
    if (blocks > FA__MAX_GRID_X)
        return fa__fail(FA_ERR_GEOMETRY,
                        "cross_attention: batch * heads_q = %" PRId64 " heads of %" PRId64
                        " tiles of queries are over the limit of a grid; launch them in parts",
                        n->batch * s->heads_q, tiles);
    k->attend = (attention_kernel_params){
        .q = tensor_of(&b->q),
        .k = tensor_of(&b->k),
        .v = tensor_of(&b->v),
        .out = tensor_of(&b->heads),
        .batch = (int32_t)n->batch,
        .heads_q = s->heads_q,
        .heads_k = s->heads_k,
        .seqlen_q = (int32_t)n->seqlen_q,
        .seqlen_k = (int32_t)n->seqlen_k,
        .width_q = width_of(&b->q, step),
        .width_k = width_of(&b->k, step),
        .width_v = width_of(&b->v, step),
        .width_out = width_of(&b->heads, step),
        .tiles = (int32_t)tiles,
        .section = (int32_t)fa__attention_section(&attention.attention, n->batch, s->heads_q,
                                                  s->heads_k, n->seqlen_k),
    };
    k->attend_blocks = (int32_t)blocks;
    return FA_OK;
}

static fa_status fill_output(const fa_cross_attention_spec *s, const cross_plan *p,
                             const fa_cross_attention_args *a, const cross_sizes *n,
                             const cross_views *v, const between *b, cross_kernel_params *k)
{
    const fa_spec linear = fa__cross_output(s);
    fill_linear(&linear.linear, &p->output, &b->heads, v->w_out, v->out,
                s->bias_out ? a->b_out : NULL, 0, &k->output);
    const int64_t tiles = tiles_of(&p->output, &k->output);
    if (tiles > FA__MAX_GRID_X)
        return fa__fail(FA_ERR_GEOMETRY,
                        "cross_attention: batch * seqlen_q = %" PRId64 ", model_dim = %" PRId64
                        " are over the limits of a grid; launch them in parts",
                        n->rows_q, n->model_dim);
    k->output_tiles = (int32_t)tiles;
    return FA_OK;
}

static fa_status make_rule(const fa_cross_attention_spec *s, const fa_cross_attention_args *a,
                           fa__rotary_rule *rule)
{
    int64_t length = 0;
    const fa_status status =
        s->rotation ? fa__rotary_length("cross_attention", &s->scaling, a->sequence_length, &length)
                    : FA_OK;
    if (!status && s->rotation && s->angles == FA_ROPE_COMPUTED &&
        fa__rotary_waits(&s->scaling, s->rotary_dim))
        *rule = fa__rotary_rule_make(s->base, &s->scaling, s->rotary_dim, length);
    return status;
}

/* --- launches --- */

static void set_grid(int64_t blocks, int32_t threads, uint32_t smem_bytes, uint32_t function,
                     fa__launch *l)
{
    l->function = function;
    l->grid[0] = (uint32_t)blocks;
    l->grid[1] = l->grid[2] = 1;
    l->block[0] = (uint32_t)threads;
    l->block[1] = l->block[2] = 1;
    l->smem_bytes = smem_bytes;
}

static void set_linear(const linear_step *step, int64_t tiles, uint32_t function, fa__launch *l)
{
    set_grid(tiles, fa__linear_step_threads(step), (uint32_t)step->shared_bytes, function, l);
}

/* As many blocks as there is work for, and no more than run at once. */
static void set_one_launch(const cross_plan *p, const fa__plan *plan, const cross_kernel_params *k,
                           int32_t multiprocessors, fa__launch *l)
{
    const int64_t most = (int64_t)p->blocks * (multiprocessors > 0 ? multiprocessors : 1);
    int64_t blocks = k->project_tiles;
    blocks = k->attend_blocks > blocks ? k->attend_blocks : blocks;
    blocks = k->output_tiles > blocks ? k->output_tiles : blocks;
    set_grid(blocks < most ? blocks : most, (int32_t)plan->block_threads, plan->smem_dynamic_bytes,
             0, l);
}

static void set_launches(const fa_cross_attention_spec *s, const cross_plan *p,
                         const cross_kernel_params *k, fa__launch *l, fa__launch_room *room)
{
    set_linear(&p->project, k->project_tiles, 0, l);
    if (s->form == FA_CROSS_KEYS)
        return;
    room->then[0] = (fa__launch){.params = l->params, .then = &room->then[1]};
    room->then[1] = (fa__launch){.params = l->params};
    set_grid(k->attend_blocks, fa__attention_step_threads(&p->attend),
             (uint32_t)p->attend.shared_bytes, 1, &room->then[0]);
    set_linear(&p->output, k->output_tiles, 2, &room->then[1]);
    l->then = &room->then[0];
}

fa_status fa__cross_launch(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                           const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_cross_attention_spec *s = &spec->cross_attention;
    const fa_cross_attention_args *a = &args->cross_attention;
    cross_kernel_params *k = (cross_kernel_params *)(void *)room->block;
    fa__rotary_rule rule = {0};
    cross_plan p;
    cross_views v;
    cross_sizes n;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = is_empty(s, &n);
    if (l->empty)
        return FA_OK;
    const workspace r = workspace_of(s, &n);
    memset(&v, 0, offsetof(cross_views, view));
    memset(k, 0, sizeof *k);
    fa__cross_plan_get(plan, &p);
    (void)((status = fa__workspace_check("cross_attention", args, (size_t)r.bytes)) ||
           (status = fa__cross_views(s, args, &n, r.bytes, &v)) ||
           (status = make_rule(s, a, &rule)));
    if (status)
        return status;
    const between b = between_of(s, args, &n, &r, &v);
    status = fill_project(s, &p, a, &n, &v, &b, &rule, k);
    if (!status && fa__cross_has_queries(s))
        status = fill_attend(s, &p, &n, &b, k);
    if (!status && fa__cross_has_queries(s))
        status = fill_output(s, &p, a, &n, &v, &b, k);
    if (status)
        return status;
    k->barrier = (uintptr_t)args->workspace;
    room->params[0] = k;
    l->params = room->params;
    if (p.one_launch)
        set_one_launch(&p, plan, k, multiprocessors, l);
    else
        set_launches(s, &p, k, l, room);
    return FA_OK;
}
