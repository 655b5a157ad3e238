/* Launching linear: every check of the args, the splits of k, and the grid. Runs in the serving
 * path: straight-line integer code, no allocation. */
#include <inttypes.h>

#include "ops/linear.h"
#include "status.h"
#include "tensor.h"

/* --- sizes --- */

typedef struct sizes {
    int64_t m, n, k;
    int64_t rows;      /* of the outputs */
    int64_t column[4]; /* where each output begins, and the end of the last */
    int outputs;
} sizes;

static fa_status resolve(const char *name, int32_t baked, int32_t given, int64_t *size)
{
    if (given > LINEAR_MAX_SIZE)
        return fa__fail(FA_ERR_LIMIT, "linear: %s = %d; at most %d (fa_linear_args.%s)", name,
                        given, LINEAR_MAX_SIZE, name);
    return fa__size_resolve("linear", name, baked, given, size);
}

static fa_status check_columns(const fa_linear_spec *s, int64_t n)
{
    const int32_t last = s->split_2 ? s->split_2 : s->split_1;
    if (n && n <= last)
        return fa__fail(FA_ERR_SIZE,
                        "linear: n = %" PRId64
                        ", but the last output begins at column %d "
                        "(fa_linear_args.n)",
                        n, last);
    if (s->rotation && n && n < s->rotated)
        return fa__fail(FA_ERR_SIZE,
                        "linear: n = %" PRId64
                        ", but %d columns are to be rotated "
                        "(fa_linear_args.n)",
                        n, s->rotated);
    if (s->rotation && !s->rotated && n % s->head_dim)
        return fa__fail(FA_ERR_SIZE,
                        "linear: n = %" PRId64
                        " is not a multiple of the kernel's head_dim = %d "
                        "(fa_linear_args.n)",
                        n, s->head_dim);
    return FA_OK;
}

static fa_status resolve_sizes(const fa_linear_spec *s, const fa_linear_args *a, sizes *n)
{
    fa_status status = FA_OK;
    (void)((status = resolve("m", s->m, a->m, &n->m)) ||
           (status = resolve("n", s->n, a->n, &n->n)) ||
           (status = resolve("k", s->k, a->k, &n->k)) || (status = check_columns(s, n->n)));
    if (status)
        return status;
    n->rows = s->mapped_rows ? a->row_count : n->m;
    if (s->mapped_rows && n->rows <= 0)
        return fa__fail(FA_ERR_SIZE,
                        "linear: row_count = %" PRId64
                        "; the outputs need at least 1 row (fa_linear_args.row_count)",
                        n->rows);
    n->outputs = 1 + (s->split_1 > 0) + (s->split_2 > 0);
    n->column[0] = 0;
    n->column[1] = s->split_1 ? s->split_1 : n->n;
    n->column[2] = s->split_2 ? s->split_2 : n->n;
    n->column[3] = n->n;
    return FA_OK;
}

/* --- matrices and arrays --- */

/* Views of everything a launch touches: what it writes first. */
typedef struct views {
    fa__view view[16];
    int written, count;
    const fa__view *x, *w, *y[3], *residual, *bias;
} views;

static fa_status add_matrix(views *v, const char *name, const fa_matrix *matrix, int64_t rows,
                            int64_t columns, int64_t bytes, const fa__view **out)
{
    *out = &v->view[v->count];
    return fa__view_make_matrix(&v->view[v->count++], "linear", name, matrix, rows ? rows : 1,
                                columns, bytes);
}

static fa_status add_array(views *v, const char *name, const void *data, int64_t count,
                           int64_t bytes)
{
    return fa__view_make_array(&v->view[v->count++], "linear", name, data, count, bytes);
}

static fa_status add_outputs(const fa_linear_spec *s, const fa_linear_args *a, const sizes *n,
                             views *v)
{
    static const char *const names[] = {"y[0]", "y[1]", "y[2]"};
    const int64_t bytes = (int64_t)fa__dtype_bytes(fa__linear_output_dtype(s));
    fa_status status = FA_OK;
    for (int i = 0; i < n->outputs && !status; i++)
        status = add_matrix(v, names[i], &a->y[i], n->rows, n->column[i + 1] - n->column[i], bytes,
                            &v->y[i]);
    if (!status && s->mapped_rows && a->errors)
        status = add_array(v, "errors", a->errors, 1, 4);
    v->written = v->count;
    return status;
}

static fa_status add_operands(const fa_linear_spec *s, const fa_linear_args *a, const sizes *n,
                              views *v)
{
    const int64_t bytes = fa__linear_operand_bytes(s);
    fa_status status = add_matrix(v, "x", &a->x, n->m, n->k, bytes, &v->x);
    if (!status)
        status = add_matrix(v, "w", &a->w, n->n, n->k, bytes, &v->w);
    if (!status && s->bias) {
        v->bias = &v->view[v->count];
        status = add_array(v, "bias", a->bias, n->n, (int64_t)fa__dtype_bytes(s->dtype));
    }
    if (!status && s->scales) {
        const bool rows = s->scales == FA_LINEAR_SCALE_ROW;
        status = add_array(v, "x_scale", a->x_scale, rows ? n->m : 1, 4);
        if (!status)
            status = add_array(v, "w_scale", a->w_scale, rows ? n->n : 1, 4);
    }
    return status;
}

static fa_status add_rotation(const fa_linear_spec *s, const fa_linear_args *a, const sizes *n,
                              views *v)
{
    fa_status status = FA_OK;
    if (!s->rotation)
        return FA_OK;
    if (a->positions)
        status = add_array(v, "positions", a->positions, n->m, fa__index_bytes(s->position_type));
    if (!status && s->angles == FA_ROPE_TABLES) {
        const int64_t count = (int64_t)a->max_position * (s->rotary_dim / 2);
        if (a->max_position <= 0)
            return fa__fail(FA_ERR_SIZE,
                            "linear: max_position = %d; the tables need at least 1 row "
                            "(fa_linear_args.max_position)",
                            a->max_position);
        status = add_array(v, "cos", a->cos, count, 4);
        if (!status)
            status = add_array(v, "sin", a->sin, count, 4);
    }
    if (!status && s->angles == FA_ROPE_FREQUENCIES)
        status = add_array(v, "inv_freq", a->inv_freq, s->rotary_dim / 2, 4);
    return status;
}

/* Whether an output may be this view: what is added to it is read by the thread that writes it. */
static bool may_be_one(const fa_linear_spec *s, const views *v, const fa__view *output,
                       const fa__view *other)
{
    return other == v->residual && output == v->y[0] && !s->split_1 && !s->mapped_rows &&
           output->base == other->base && output->stride[2] == other->stride[2];
}

static fa_status make_views(const fa_linear_spec *s, const fa_linear_args *a, const sizes *n,
                            views *v)
{
    const int64_t bytes = (int64_t)fa__dtype_bytes(fa__linear_output_dtype(s));
    fa_status status = add_outputs(s, a, n, v);
    if (!status)
        status = add_operands(s, a, n, v);
    if (!status && s->residual)
        status = add_matrix(v, "residual", &a->residual, n->m, n->n, bytes, &v->residual);
    if (!status && s->mapped_rows)
        status = add_array(v, "rows", a->rows, n->m, fa__index_bytes(s->row_type));
    if (!status)
        status = add_rotation(s, a, n, v);
    for (int i = 0; i < v->written && !status; i++) {
        status = fa__view_check_output(&v->view[i]);
        for (int j = i + 1; j < v->count && !status; j++)
            if (!may_be_one(s, v, &v->view[i], &v->view[j]))
                status = fa__view_check_apart(&v->view[i], &v->view[j]);
    }
    return status;
}

/* --- splits of k --- */

typedef struct shares {
    int64_t tiles, splits, split_k;
    int64_t counter_bytes, workspace_bytes; /* 0 with one split, unless x and w become parts */
} shares;

static int64_t choose_splits(const fa_linear_spec *s, const fa__plan *p, int64_t tiles,
                             int64_t k_tiles, int32_t multiprocessors)
{
    const linear_work work = {tiles,
                              k_tiles,
                              (int64_t)p->value[LINEAR_TILE_M] * p->value[LINEAR_TILE_N],
                              p->value[LINEAR_STEP_CLOCKS],
                              p->value[LINEAR_FINISH_CLOCKS],
                              p->value[LINEAR_RESIDENT]};
    if (!p->value[LINEAR_MAY_SPLIT] || !k_tiles)
        return 1;
    if (s->splits)
        return s->splits < k_tiles ? s->splits : k_tiles;
    return fa__linear_splits(&work, multiprocessors > 0 ? multiprocessors : 1);
}

/* Of the parts of x and w, and of the scales of their rows. What no memory holds is INT64_MAX. */
static int64_t parts_bytes(const sizes *n)
{
    const int64_t row = (fa__linear_parts_k(n->k) + 1) * 4; /* with its scale */
    int64_t bytes = 0;
    return __builtin_mul_overflow(n->m + n->n, row, &bytes) ? INT64_MAX : bytes;
}

static shares share_out(const fa_linear_spec *s, const fa__plan *p, const sizes *n,
                        int32_t multiprocessors)
{
    const int64_t tile_m = p->value[LINEAR_TILE_M], tile_n = p->value[LINEAR_TILE_N];
    const int64_t tile_k = p->value[LINEAR_TILE_K];
    const int64_t k_tiles = fa__divide_up(n->k, tile_k);
    shares h = {.tiles = fa__divide_up(n->m, tile_m) * fa__divide_up(n->n, tile_n)};
    const int64_t splits = choose_splits(s, p, h.tiles, k_tiles, multiprocessors);
    const int64_t each = fa__divide_up(k_tiles, splits);
    h.splits = each ? fa__divide_up(k_tiles, each) : 1;
    h.split_k = each * tile_k;
    if (h.splits > 1) {
        h.counter_bytes = fa__divide_up(h.tiles * 4, 256) * 256;
        h.workspace_bytes = h.counter_bytes + h.tiles * h.splits * tile_m * tile_n * 4;
    }
    if (p->value[LINEAR_ARITHMETIC] == LINEAR_SPLIT_F16)
        h.workspace_bytes = parts_bytes(n);
    return h;
}

fa_status fa__linear_workspace(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                               const fa_args *args, size_t *bytes)
{
    sizes n = {0};
    const fa_status status = resolve_sizes(&spec->linear, &args->linear, &n);
    if (status)
        return status;
    *bytes =
        n.m && n.n ? (size_t)share_out(&spec->linear, p, &n, multiprocessors).workspace_bytes : 0;
    return FA_OK;
}

static fa_status check_workspace(const fa_args *args, const shares *h, views *v)
{
    fa_status status = fa__workspace_check("linear", args, (size_t)h->workspace_bytes);
    if (status || !h->workspace_bytes)
        return status;
    fa__view *work = &v->view[v->count];
    status = add_array(v, "workspace", args->workspace, h->workspace_bytes, 1);
    for (int i = 0; i < v->count - 1 && !status; i++)
        status = fa__view_check_apart(work, &v->view[i]);
    return status;
}

/* --- the launch --- */

int32_t fa__linear_copy_width(const fa__view *view)
{
    const int64_t width = fa__power_of_two(fa__view_address_bits(view), 16);
    if (width == 16 || width <= view->element_bytes)
        return (int32_t)width;
    return width >= 4 ? 4 : (int32_t)view->element_bytes;
}

bool fa__linear_is_wide(const fa_linear_spec *s, int64_t vector, int64_t n, uint64_t rows,
                        uintptr_t bias, uintptr_t angles)
{
    const int64_t bytes = vector * (int64_t)fa__dtype_bytes(fa__linear_output_dtype(s));
    const int64_t addend = vector * (int64_t)fa__dtype_bytes(s->dtype);
    const int64_t pairs = s->rotation == FA_KV_ROTATE_HALF ? vector : (vector + 1) / 2;
    return rows % (uint64_t)bytes == 0 && fa__linear_dividends(s, n) % (uint64_t)vector == 0 &&
           bias % (uint64_t)(addend < 16 ? addend : 16) == 0 &&
           angles % (uint64_t)((pairs < 4 ? pairs : 4) * 4) == 0;
}

static bool is_wide(const fa_linear_spec *s, const fa__plan *p, const fa_linear_args *a,
                    const sizes *n, const views *v)
{
    const uintptr_t angles =
        s->rotation ? fa__rotary_bits(s->angles, a->cos, a->sin, a->inv_freq) : 0;
    uint64_t rows = v->residual ? fa__view_address_bits(v->residual) : 0;
    for (int i = 0; i < n->outputs; i++)
        rows |= fa__view_address_bits(v->y[i]);
    return fa__linear_is_wide(s, p->value[LINEAR_VECTOR_WIDTH], n->n, rows,
                              v->bias ? v->bias->base : 0, angles);
}

/* The stride of a single row is 0: rows that do not exist then have its address, aligned alike. */
static linear_rows rows_of(const fa__view *view)
{
    return view ? (linear_rows){view->base, view->stride[2]} : (linear_rows){0};
}

static void fill_params(const fa_linear_spec *s, const fa__plan *p, const fa_args *args,
                        const sizes *n, const views *v, const shares *h, linear_kernel_params *k)
{
    const fa_linear_args *a = &args->linear;
    const uintptr_t workspace = h->workspace_bytes ? (uintptr_t)args->workspace : 0;
    *k = (linear_kernel_params){
        .x = rows_of(v->x),
        .w = rows_of(v->w),
        .residual = rows_of(v->residual),
        .bias = (uintptr_t)a->bias,
        .row_of = (uintptr_t)a->rows,
        .row_count = n->rows,
        .positions = (uintptr_t)a->positions,
        .cos = (uintptr_t)a->cos,
        .sin = (uintptr_t)a->sin,
        .inv_freq = (uintptr_t)a->inv_freq,
        .x_scale = (uintptr_t)a->x_scale,
        .w_scale = (uintptr_t)a->w_scale,
        .errors = (uintptr_t)a->errors,
        .arrived = workspace,
        .partial = workspace + (uintptr_t)h->counter_bytes,
        .m = (int32_t)n->m,
        .n = (int32_t)n->n,
        .k = (int32_t)n->k,
        .x_width = fa__linear_copy_width(v->x),
        .w_width = fa__linear_copy_width(v->w),
        .vector = is_wide(s, p, a, n, v) ? p->value[LINEAR_VECTOR_WIDTH] : 1,
        .splits = (int32_t)h->splits,
        .split_k = (int32_t)h->split_k,
        .max_position = a->max_position,
        .position_offset = a->position_offset,
    };
    for (int i = 0; i < n->outputs; i++)
        k->y[i] = rows_of(v->y[i]);
}

static fa_status fill_rule(const fa_linear_spec *s, const fa_linear_args *a,
                           linear_kernel_params *k)
{
    int64_t length = 0;
    const fa_status status = fa__rotary_length("linear", &s->scaling, a->sequence_length, &length);
    if (status)
        return status;
    if (s->rotation && s->angles == FA_ROPE_COMPUTED &&
        fa__rotary_waits(&s->scaling, s->rotary_dim))
        k->rule = fa__rotary_rule_make(s->base, &s->scaling, s->rotary_dim, length);
    return FA_OK;
}

static fa_status refuse_grid(const sizes *n)
{
    return fa__fail(FA_ERR_GEOMETRY,
                    "linear: m = %" PRId64 ", n = %" PRId64
                    " are over the limits of a grid; launch them in parts",
                    n->m, n->n);
}

/* The parts of x and w are made first. */
static fa_status put_parts_first(const fa_linear_spec *s, const sizes *n, fa__launch *l,
                                 fa__launch_room *room)
{
    const int64_t blocks = fa__divide_up(n->m + n->n, fa__linear_parts_rows(s));
    if (blocks > FA__MAX_GRID_X)
        return refuse_grid(n);
    room->then[0] = *l;
    room->then[0].then = NULL;
    *l = (fa__launch){.params = l->params,
                      .function = 1,
                      .grid = {(uint32_t)blocks, 1, 1},
                      .block = {LINEAR_PARTS_THREADS, 1, 1},
                      .then = &room->then[0]};
    return FA_OK;
}

static fa_status set_grid(const fa__plan *p, const sizes *n, const shares *h, fa__launch *l)
{
    if (h->tiles > FA__MAX_GRID_X)
        return refuse_grid(n);
    l->grid[0] = (uint32_t)h->tiles;
    l->grid[1] = (uint32_t)h->splits;
    l->grid[2] = 1;
    l->block[0] = p->block_threads;
    l->block[1] = l->block[2] = 1;
    l->smem_bytes = p->smem_dynamic_bytes;
    return FA_OK;
}

fa_status fa__linear_launch(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                            const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_linear_spec *s = &spec->linear;
    const fa_linear_args *a = &args->linear;
    linear_kernel_params *k = (linear_kernel_params *)(void *)room->block;
    sizes n = {0};
    views v;
    fa_status status = resolve_sizes(s, a, &n);
    if (status)
        return status;
    l->empty = !n.m || !n.n;
    if (l->empty)
        return FA_OK;
    v.written = v.count = 0;
    v.x = v.w = v.residual = v.bias = v.y[0] = v.y[1] = v.y[2] = NULL;
    status = make_views(s, a, &n, &v);
    if (status)
        return status;
    const shares h = share_out(s, p, &n, multiprocessors);
    status = check_workspace(args, &h, &v);
    if (status)
        return status;
    fill_params(s, p, args, &n, &v, &h, k);
    status = fill_rule(s, a, k);
    if (status)
        return status;
    room->params[0] = k;
    l->params = room->params;
    status = set_grid(p, &n, &h, l);
    if (!status && p->value[LINEAR_ARITHMETIC] == LINEAR_SPLIT_F16)
        status = put_parts_first(s, &n, l, room);
    return status;
}
