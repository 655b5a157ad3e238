/* Launches of cross_attention without a GPU: sizes, workspace, widths, every check of the arguments,
 * grids. */
#include "cross_attention_spec.h"
#include "op_steps.h"
#include "ops/cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

#define TENSOR(n) AT(UINT64_C(n) << 42)
#define BYTES(pointer, n) ((void *)((char *)(uintptr_t)(pointer) + (n)))

/* The canonical sizes, and room for a workspace: everything packed, far apart, aligned. */
static void launched_begin(launched *x, fa_cross_attention_spec cross)
{
    *x = (launched){.spec = cross_spec(cross), .args = FA_ARGS_INIT(FA_OP_CROSS_ATTENTION)};
    OK(prepare(&x->spec, &x->plan));
    x->args.workspace = TENSOR(1);
    x->args.workspace_bytes = INT64_C(1) << 40;
    x->args.cross_attention = (fa_cross_attention_args){.x_query.data = TENSOR(2),
                                                        .x_kv.data = TENSOR(3),
                                                        .out.data = TENSOR(4),
                                                        .k.data = TENSOR(5),
                                                        .v.data = TENSOR(6),
                                                        .w_q.data = TENSOR(7),
                                                        .w_k.data = TENSOR(8),
                                                        .w_v.data = TENSOR(9),
                                                        .w_out.data = TENSOR(10),
                                                        .b_q = TENSOR(11),
                                                        .b_k = TENSOR(12),
                                                        .b_v = TENSOR(13),
                                                        .b_out = TENSOR(14),
                                                        .batch = cross.batch ? 0 : 4,
                                                        .seqlen_q = cross.seqlen_q ? 0 : 64,
                                                        .seqlen_k = cross.seqlen_k ? 0 : 128,
                                                        .model_dim = cross.model_dim ? 0 : 256,
                                                        .cos = TENSOR(15),
                                                        .sin = TENSOR(16),
                                                        .inv_freq = TENSOR(15),
                                                        .max_position = 128};
}

static const cross_kernel_params *launched_params(const launched *x)
{
    return launched_block(x);
}

static size_t workspace_of(const launched *x)
{
    size_t bytes = 1;
    OK(fa__op_cross_attention.workspace(&x->spec, &x->plan, H200, &x->args, &bytes));
    return bytes;
}

/* Everything that a launch may look at. */
#define ALL                                                                                        \
    CROSS_HEADS, .rotation = PAIRS, .bias = true, .bias_out = true, .plan = FA_CROSS_FEW_LAUNCHES

/* --- the steps --- */

Test(cross_attention_launch, a_launch_for_each_step)
{
    launched x;
    cross_plan p;
    launched_begin(&x, (fa_cross_attention_spec){ALL});
    OK(launched_run(&x));
    fa__cross_plan_get(&x.plan, &p);
    const cross_kernel_params *k = launched_params(&x);
    const fa__launch *steps[] = {&x.launch, x.launch.then, x.launch.then->then};
    const int32_t threads[] = {fa__linear_step_threads(&p.project),
                               fa__attention_step_threads(&p.attend),
                               fa__linear_step_threads(&p.output)};
    const int32_t bytes[] = {p.project.shared_bytes, p.attend.shared_bytes, p.output.shared_bytes};
    const int32_t blocks[] = {k->project_tiles, k->attend_blocks, k->output_tiles};
    for (uint32_t i = 0; i < 3; i++) {
        cr_expect_eq(steps[i]->function, i);
        cr_expect_eq(steps[i]->grid[0], (uint32_t)blocks[i]);
        cr_expect_eq(steps[i]->block[0], (uint32_t)threads[i]);
        cr_expect_eq(steps[i]->smem_bytes, (uint32_t)bytes[i]);
        cr_expect_eq(steps[i]->params, x.launch.params);
        cr_expect_not(steps[i]->empty);
    }
    cr_expect_null(steps[2]->then);
}

Test(cross_attention_launch, one_launch_has_no_more_blocks_than_run_at_once)
{
    launched x;
    cross_plan p;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_CANONICAL, .plan = FA_CROSS_ONE_LAUNCH});
    OK(launched_run(&x));
    cr_expect_null(x.launch.then);
    cr_expect_eq(x.launch.function, 0u);
    cr_expect_eq(x.launch.smem_bytes, x.plan.smem_dynamic_bytes);
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .plan = FA_CROSS_ONE_LAUNCH});
    fa__cross_plan_get(&x.plan, &p);
    x.args.cross_attention.batch = 64;
    OK(launched_run(&x));
    const cross_kernel_params *k = launched_params(&x);
    cr_expect_gt(k->project_tiles, p.blocks * H200);
    cr_expect_eq(x.launch.grid[0], (uint32_t)(p.blocks * H200));
    x.args.cross_attention.batch = 1;
    x.args.cross_attention.seqlen_q = x.args.cross_attention.seqlen_k = 1;
    x.args.cross_attention.model_dim = 8;
    OK(launched_run(&x));
    k = launched_params(&x);
    cr_expect_eq(
        x.launch.grid[0],
        (uint32_t)(k->project_tiles > k->attend_blocks ? k->project_tiles : k->attend_blocks));
}

Test(cross_attention_launch, keys_and_queries_have_the_steps_that_they_need)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_KEYS});
    x.args.cross_attention.x_query.data = x.args.cross_attention.out.data = NULL;
    x.args.cross_attention.w_q.data = x.args.cross_attention.w_out.data = NULL;
    x.args.workspace = NULL;
    cr_expect_eq(workspace_of(&x), 0u);
    OK(launched_run(&x));
    const cross_kernel_params *k = launched_params(&x);
    cr_expect_null(x.launch.then);
    cr_expect_eq(x.launch.grid[0], (uint32_t)k->project_tiles);
    cr_expect_eq(k->project[CROSS_K].linear.y[0].data, (uintptr_t)TENSOR(5));
    cr_expect_eq(k->project[CROSS_V].linear.y[0].data, (uintptr_t)TENSOR(6));
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_QUERIES});
    x.args.cross_attention.x_kv.data = x.args.cross_attention.w_k.data = NULL;
    x.args.cross_attention.w_v.data = NULL;
    OK(launched_run(&x));
    k = launched_params(&x);
    cr_assert_not_null(x.launch.then);
    cr_expect_eq(k->attend.k.data, (uintptr_t)TENSOR(5));
    cr_expect_eq(k->attend.v.data, (uintptr_t)TENSOR(6));
}

/* Tiles of q, then those of k, then those of v. */
static int tiles_in(int rows, int columns, const linear_step *step)
{
    return (rows + step->tile_m - 1) / step->tile_m * ((columns + step->tile_n - 1) / step->tile_n);
}

/* Each tile of each step once, by either plan. */
Test(cross_attention_launch, tiles_of_the_groups)
{
    for (int plan = FA_CROSS_ONE_LAUNCH; plan <= FA_CROSS_FEW_LAUNCHES; plan++) {
        launched x;
        cross_plan p;
        launched_begin(
            &x, (fa_cross_attention_spec){
                    .heads_q = 12, .heads_k = 3, .head_dim = 40, .plan = (fa_cross_plan)plan});
        x.args.cross_attention.seqlen_q = 70;
        OK(launched_run(&x));
        fa__cross_plan_get(&x.plan, &p);
        const cross_kernel_params *k = launched_params(&x);
        const int of_q = tiles_in(4 * 70, 480, &p.project),
                  of_k = tiles_in(4 * 128, 120, &p.project);
        const int rows = fa__attention_step_rows(&p.attend);
        cr_expect_eq(k->tiles_before[CROSS_Q], 0);
        cr_expect_eq(k->tiles_before[CROSS_K], of_q);
        cr_expect_eq(k->tiles_before[CROSS_V], of_q + of_k);
        cr_expect_eq(k->project_tiles, of_q + 2 * of_k);
        cr_expect_eq(k->attend_blocks, 4 * 12 * ((70 + rows - 1) / rows));
        cr_expect_eq(k->output_tiles, tiles_in(4 * 70, 256, &p.output));
        cr_expect_eq(k->project[CROSS_Q].linear.n, 480);
        cr_expect_eq(k->project[CROSS_V].linear.n, 120);
        cr_expect_eq(k->project[CROSS_V].linear.k, 256);
        cr_expect_eq(k->output.linear.n, 256);
        cr_expect_eq(k->output.linear.k, 480);
    }
}

/* Where tiles leave nothing over, as in the canonical case: no more than the formula needs. What
 * kernels really do, test_gpu_cross_attention_work.c counts. */
Test(cross_attention_launch, multiplications_of_the_canonical_case)
{
    for (int plan = FA_CROSS_ONE_LAUNCH; plan <= FA_CROSS_FEW_LAUNCHES; plan++) {
        const int64_t b = 4, tq = 64, tk = 128, c = 256;
        launched x;
        cross_plan p;
        launched_begin(&x, (fa_cross_attention_spec){CROSS_CANONICAL, .plan = (fa_cross_plan)plan});
        OK(launched_run(&x));
        fa__cross_plan_get(&x.plan, &p);
        const cross_kernel_params *k = launched_params(&x);
        const int64_t projected = k->project_tiles * c * p.project.tile_m * p.project.tile_n,
                      put_out = k->output_tiles * c * p.output.tile_m * p.output.tile_n,
                      attended =
                          k->attend_blocks * 2 * tk * 32 * fa__attention_step_rows(&p.attend);
        cr_expect_eq(projected + put_out, b * (2 * tq * c * c + 2 * tk * c * c), "%s", x.plan.text);
        cr_expect_eq(attended, b * 2 * tq * tk * c, "%s", x.plan.text);
    }
}

/* Of q and of k, not of v; positions begin again with each batch. */
Test(cross_attention_launch, what_is_rotated)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){ALL});
    x.args.cross_attention.position_offset_q = 7;
    x.args.cross_attention.position_offset_k = -9;
    OK(launched_run(&x));
    const cross_product_params *of = launched_params(&x)->project;
    cr_expect_eq(of[CROSS_Q].linear.rotated, 256);
    cr_expect_eq(of[CROSS_K].linear.rotated, 256);
    cr_expect_eq(of[CROSS_V].linear.rotated, 0);
    cr_expect_eq(of[CROSS_Q].linear.position_offset, 7);
    cr_expect_eq(of[CROSS_K].linear.position_offset, -9);
    cr_expect_eq(of[CROSS_Q].linear.seqlen, 64);
    cr_expect_eq(of[CROSS_K].linear.seqlen, 128);
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS});
    OK(launched_run(&x));
    for (int i = 0; i < CROSS_GROUPS; i++)
        cr_expect_eq(launched_params(&x)->project[i].linear.rotated, 0);
}

/* --- the workspace --- */

Test(cross_attention_launch, workspace_is_sized_and_checked)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){ALL});
    const size_t bytes = workspace_of(&x), floats = 256 * (2 * 4 * 64 + 2 * 4 * 128);
    cr_assert_geq(bytes, 4 * floats);
    cr_assert_leq(bytes, 4 * floats + 2048);
    x.args.workspace_bytes = bytes;
    OK(launched_run(&x));
    x.args.workspace_bytes = bytes - 1;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "fa_workspace_size");
    x.args.workspace_bytes = bytes;
    x.args.workspace = NULL;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "workspace = 0x0");
    x.args.workspace = BYTES(TENSOR(1), 128);
    REFUSED(launched_run(&x), FA_ERR_MISALIGNED, "256");
    void *const inputs[] = {TENSOR(2),  TENSOR(3),  TENSOR(4),  TENSOR(7),  TENSOR(8), TENSOR(9),
                            TENSOR(10), TENSOR(11), TENSOR(12), TENSOR(13), TENSOR(14)};
    for (size_t i = 0; i < COUNT(inputs); i++) {
        x.args.workspace = inputs[i];
        REFUSED(launched_run(&x), FA_ERR_ALIAS, "workspace");
    }
    x.args.cross_attention.seqlen_q = -1;
    size_t size = 0;
    REFUSED(fa__op_cross_attention.workspace(&x.spec, &x.plan, H200, &x.args, &size), FA_ERR_SIZE,
            "seqlen_q = -1");
}

/* Parts lie apart, and hold what is put there; a row begins at a multiple of 16 bytes. */
Test(cross_attention_launch, parts_of_the_workspace)
{
    static const fa_cross_attention_spec cases[] = {
        {ALL},
        {.heads_q = 6, .heads_k = 2, .head_dim = 67, .plan = FA_CROSS_ONE_LAUNCH},
        {.heads_q = 3, .heads_k = 1, .head_dim = 5, .dtype = FA_BF16, .form = FA_CROSS_QUERIES}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        launched x;
        launched_begin(&x, cases[i]);
        const bool keys = cases[i].form == FA_CROSS_WHOLE;
        const uint64_t element = cases[i].dtype == FA_F32 ? 4 : 2;
        const uint64_t base = (uintptr_t)x.args.workspace, end = base + workspace_of(&x);
        OK(launched_run(&x));
        const cross_kernel_params *k = launched_params(&x);
        cr_expect_eq(k->barrier, base);
        const linear_rows parts[] = {k->project[CROSS_Q].linear.y[0],
                                     k->project[CROSS_K].linear.y[0],
                                     k->project[CROSS_V].linear.y[0], k->output.linear.x};
        const uint64_t rows[] = {4 * 64, 4 * 128, 4 * 128, 4 * 64};
        uint64_t free = base + 256;
        for (int n = 0; n < 4; n++) {
            if (!keys && (n == 1 || n == 2))
                continue;
            cr_expect_geq(parts[n].data, free, "case %zu, part %d", i, n);
            cr_expect_eq(parts[n].data % 16, 0u);
            cr_expect_eq((uint64_t)parts[n].stride * element % 16, 0u);
            free = parts[n].data + rows[n] * (uint64_t)parts[n].stride * element;
        }
        cr_expect_leq(free, end, "case %zu", i);
        cr_expect_eq(k->attend.q.data, k->project[CROSS_Q].linear.y[0].data);
        cr_expect_eq(k->attend.out.data, k->output.linear.x.data);
        cr_expect_eq(k->attend.q.batch, 64 * k->attend.q.token);
        cr_expect_eq(k->attend.q.head, cases[i].head_dim);
    }
}

/* --- widths --- */

Test(cross_attention_launch, widths_follow_every_pointer_and_stride)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){ALL});
    OK(launched_run(&x));
    const cross_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->project[CROSS_Q].linear.x_width, 16);
    cr_expect_eq(k->project[CROSS_V].linear.w_width, 16);
    cr_expect_gt(k->output.linear.vector, 1);
    x.args.cross_attention.x_query.data = BYTES(TENSOR(2), 4);
    x.args.cross_attention.w_v.stride = 257;
    x.args.cross_attention.out.data = BYTES(TENSOR(4), 4);
    x.args.cross_attention.b_k = BYTES(TENSOR(12), 4);
    OK(launched_run(&x));
    cr_expect_eq(k->project[CROSS_Q].linear.x_width, 4);
    cr_expect_eq(k->project[CROSS_K].linear.x_width, 16);
    cr_expect_eq(k->project[CROSS_V].linear.w_width, 4);
    cr_expect_eq(k->output.linear.vector, 1);
    cr_expect_eq(k->project[CROSS_K].linear.vector, 1);
    cr_expect_gt(k->project[CROSS_Q].linear.vector, 1);
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_QUERIES});
    x.args.cross_attention.k = (fa_tensor){TENSOR(5), 128 * 258, 32, 258};
    x.args.cross_attention.v.data = BYTES(TENSOR(6), 4);
    OK(launched_run(&x));
    k = launched_params(&x);
    cr_expect_eq(k->attend.width_q, 16);
    cr_expect_eq(k->attend.width_k, 8);
    cr_expect_eq(k->attend.width_v, 4);
}

/* --- strides --- */

/* Rows are those of one matrix where batches follow each other without a gap, and else jump. */
Test(cross_attention_launch, rows_jump_where_batches_lie_apart)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS});
    fa_cross_attention_args *a = &x.args.cross_attention;
    a->x_query = (fa_tensor){TENSOR(2), 64 * 300, 0, 300};
    a->x_kv = (fa_tensor){TENSOR(3), 0, 0, 256}; /* of all batches */
    a->out = (fa_tensor){TENSOR(4), 8 + 64 * 256, 0, 256};
    OK(launched_run(&x));
    const cross_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->project[CROSS_Q].linear.x.stride, 300);
    cr_expect_eq(k->project[CROSS_Q].jumps.x.jump, 0);
    cr_expect_eq(k->project[CROSS_Q].linear.m, 4 * 64);
    for (int g = CROSS_K; g <= CROSS_V; g++) {
        cr_expect_eq(k->project[g].linear.x.stride, 256);
        cr_expect_eq(k->project[g].jumps.x.group, 128);
        cr_expect_eq(k->project[g].jumps.x.jump, -128 * 256);
    }
    cr_expect_eq(k->output.linear.y[0].stride, 256);
    cr_expect_eq(k->output.jumps.y.group, 64);
    cr_expect_eq(k->output.jumps.y.jump, 8);
    cr_expect_eq(k->output.jumps.x.jump, 0);
    cr_expect_eq(k->output.jumps.y_heads.jump, 0);
    a->seqlen_q = 1; /* a batch is a row */
    a->out.stride_batch = 777;
    OK(launched_run(&x));
    cr_expect_eq(k->output.linear.y[0].stride, 777);
    cr_expect_eq(k->output.jumps.y.jump, 0);
    a->batch = 1; /* its stride does not count */
    a->seqlen_q = 64;
    OK(launched_run(&x));
    cr_expect_eq(k->output.jumps.y.jump, 0);
    cr_expect_eq(k->project[CROSS_K].jumps.x.jump, 0);
}

/* Kept keys as caches have them, heads first: written by columns that jump, read by their strides. */
Test(cross_attention_launch, kept_keys_lie_in_any_order)
{
    const fa_tensor heads_first = {TENSOR(5), 8 * 128 * 32, 128 * 32, 32};
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_KEYS});
    x.args.cross_attention.k = heads_first;
    OK(launched_run(&x));
    const cross_product_params *of = launched_params(&x)->project;
    cr_expect_eq(of[CROSS_K].linear.y[0].stride, 32);
    cr_expect_eq(of[CROSS_K].jumps.y.group, 128);
    cr_expect_eq(of[CROSS_K].jumps.y.jump, 7 * 128 * 32);
    cr_expect_eq(of[CROSS_K].jumps.y_heads.group, 32);
    cr_expect_eq(of[CROSS_K].jumps.y_heads.jump, 127 * 32);
    cr_expect_gt(of[CROSS_K].linear.vector, 1);
    cr_expect_eq(of[CROSS_V].jumps.y_heads.jump, 0);
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_QUERIES});
    x.args.cross_attention.k = heads_first;
    OK(launched_run(&x));
    const attention_kernel_params *attend = &launched_params(&x)->attend;
    cr_expect_eq(attend->k.batch, 8 * 128 * 32);
    cr_expect_eq(attend->k.head, 128 * 32);
    cr_expect_eq(attend->k.token, 32);
    cr_expect_eq(attend->v.head, 32);
    cr_expect_eq(attend->v.token, 256);
}

/* A store never reaches over the end of a head that lies by itself. */
Test(cross_attention_launch, stores_end_with_a_head)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){
                           .heads_q = 4, .heads_k = 4, .head_dim = 30, .form = FA_CROSS_KEYS});
    OK(launched_run(&x));
    const cross_product_params *of = launched_params(&x)->project;
    cr_expect_eq(of[CROSS_K].linear.vector, 4);
    x.args.cross_attention.k = (fa_tensor){TENSOR(5), 4 * 128 * 32, 128 * 32, 32};
    OK(launched_run(&x));
    cr_expect_eq(of[CROSS_K].linear.vector, 1);
}

/* --- refusals --- */

#define REFUSED_LAUNCH(CHANGE, STATUS, WORD)                                                       \
    do {                                                                                           \
        launched x;                                                                                \
        launched_begin(&x, (fa_cross_attention_spec){ALL});                                        \
        fa_cross_attention_args *a = &x.args.cross_attention;                                      \
        CHANGE;                                                                                    \
        REFUSED(launched_run(&x), STATUS, WORD);                                                   \
    } while (0)

Test(cross_attention_launch, pointers_that_are_missing_are_named)
{
    REFUSED_LAUNCH(a->x_query.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.x_query");
    REFUSED_LAUNCH(a->x_kv.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.x_kv");
    REFUSED_LAUNCH(a->out.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.out");
    REFUSED_LAUNCH(a->w_q.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.w_q");
    REFUSED_LAUNCH(a->w_k.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.w_k");
    REFUSED_LAUNCH(a->w_v.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.w_v");
    REFUSED_LAUNCH(a->w_out.data = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.w_out");
    REFUSED_LAUNCH(a->b_q = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.b_q");
    REFUSED_LAUNCH(a->b_k = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.b_k");
    REFUSED_LAUNCH(a->b_v = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.b_v");
    REFUSED_LAUNCH(a->b_out = NULL, FA_ERR_NULL_POINTER, "fa_cross_attention_args.b_out");
}

Test(cross_attention_launch, places_that_are_refused_are_named)
{
    REFUSED_LAUNCH(a->x_kv.data = BYTES(TENSOR(3), 2), FA_ERR_MISALIGNED, "x_kv");
    REFUSED_LAUNCH(a->b_out = BYTES(TENSOR(14), 1), FA_ERR_MISALIGNED, "b_out");
    REFUSED_LAUNCH(a->out.data = a->x_query.data, FA_ERR_ALIAS, "overlaps x_query");
    REFUSED_LAUNCH(a->out.data = a->x_kv.data, FA_ERR_ALIAS, "overlaps x_kv");
    REFUSED_LAUNCH(a->out.data = a->w_q.data, FA_ERR_ALIAS, "overlaps w_q");
    REFUSED_LAUNCH(a->out.data = a->w_k.data, FA_ERR_ALIAS, "overlaps w_k");
    REFUSED_LAUNCH(a->out.data = a->w_v.data, FA_ERR_ALIAS, "overlaps w_v");
    REFUSED_LAUNCH(a->out.data = a->w_out.data, FA_ERR_ALIAS, "overlaps w_out");
    REFUSED_LAUNCH(a->out.data = TENSOR(12), FA_ERR_ALIAS, "overlaps b_k");
    REFUSED_LAUNCH((a->out.stride_batch = 64 * 256, a->out.stride_token = 255), FA_ERR_STRIDE,
                   "out");
    REFUSED_LAUNCH((a->out.stride_batch = 63 * 256, a->out.stride_token = 256), FA_ERR_STRIDE,
                   "out");
    REFUSED_LAUNCH(a->out.stride_token = 256, FA_ERR_STRIDE, "out"); /* one batch over another */
    REFUSED_LAUNCH(a->x_query.stride_token = INT64_MAX, FA_ERR_STRIDE, "x_query");
    REFUSED_LAUNCH(a->x_kv.stride_batch = INT64_MAX, FA_ERR_STRIDE, "x_kv");
}

Test(cross_attention_launch, sizes_that_are_refused_are_named)
{
    REFUSED_LAUNCH(a->batch = -1, FA_ERR_SIZE, "batch = -1");
    REFUSED_LAUNCH(a->seqlen_q = -2, FA_ERR_SIZE, "fa_cross_attention_args.seqlen_q");
    REFUSED_LAUNCH(a->seqlen_k = -3, FA_ERR_SIZE, "seqlen_k = -3");
    REFUSED_LAUNCH(a->model_dim = -4, FA_ERR_SIZE, "model_dim = -4");
    REFUSED_LAUNCH(a->model_dim = INT32_MAX, FA_ERR_LIMIT, "model_dim");
    REFUSED_LAUNCH(a->batch = 1 << 26, FA_ERR_LIMIT, "batch * seqlen_q");
    REFUSED_LAUNCH((a->seqlen_q = 1, a->seqlen_k = INT32_MAX), FA_ERR_LIMIT, "seqlen_k");
}

Test(cross_attention_launch, tables_and_lengths_are_checked)
{
    launched x;
    launched_begin(
        &x, (fa_cross_attention_spec){CROSS_HEADS, .rotation = PAIRS, .angles = FA_ROPE_TABLES});
    OK(launched_run(&x));
    x.args.cross_attention.max_position = 0;
    REFUSED(launched_run(&x), FA_ERR_SIZE, "max_position = 0");
    x.args.cross_attention.max_position = 1;
    x.args.cross_attention.sin = NULL;
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "sin");
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .rotation = PAIRS,
                                                 .angles = FA_ROPE_FREQUENCIES});
    x.args.cross_attention.inv_freq = NULL;
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "inv_freq");
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .rotation = PAIRS,
                                                 .scaling = {.kind = FA_ROPE_DYNAMIC_NTK,
                                                             .factor = 2,
                                                             .original_max_position = 64}});
    REFUSED(launched_run(&x), FA_ERR_SIZE, "sequence_length");
    x.args.cross_attention.sequence_length = 128;
    OK(launched_run(&x));
}

/* Kept keys that the queries would read, or that are written. */
Test(cross_attention_launch, kept_keys_are_checked)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_KEYS});
    x.args.cross_attention.v = x.args.cross_attention.k;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "overlaps v");
    x.args.cross_attention.v.data = x.args.cross_attention.x_kv.data;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "x_kv");
    x.args.cross_attention.v = (fa_tensor){TENSOR(6), 128 * 256, 31, 256};
    REFUSED(launched_run(&x), FA_ERR_STRIDE, "v");
    x.args.cross_attention.v = (fa_tensor){NULL, 0, 0, 0};
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "fa_cross_attention_args.v");
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_QUERIES});
    x.args.cross_attention.k.data = NULL;
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "fa_cross_attention_args.k");
    x.args.cross_attention.k.data = x.args.cross_attention.out.data;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "overlaps k");
}

Test(cross_attention_launch, baked_sizes_may_be_left_out_but_not_contradicted)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_CANONICAL});
    fa_cross_attention_args *a = &x.args.cross_attention;
    OK(launched_run(&x));
    int32_t *const sizes[] = {&a->batch, &a->seqlen_q, &a->seqlen_k, &a->model_dim};
    static const char *const words[] = {"batch = 3", "seqlen_q = 3", "seqlen_k = 3",
                                        "model_dim = 3"};
    static const int32_t baked[] = {4, 64, 128, 256};
    for (int i = 0; i < 4; i++) {
        *sizes[i] = baked[i];
        OK(launched_run(&x));
        *sizes[i] = 3;
        REFUSED(launched_run(&x), FA_ERR_BAKED, words[i]);
        *sizes[i] = 0;
    }
}

/* --- work of all sizes --- */

Test(cross_attention_launch, empty_work_succeeds)
{
    launched x;
    for (int i = 0; i < 3; i++) {
        launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS});
        fa_cross_attention_args *a = &x.args.cross_attention;
        int32_t *const sizes[] = {&a->batch, &a->seqlen_q, &a->model_dim};
        *sizes[i] = 0;
        a->x_query.data = a->out.data = NULL;
        x.args.workspace = NULL;
        cr_expect_eq(workspace_of(&x), 0u);
        OK(launched_run(&x));
        cr_expect(x.launch.empty, "size %d", i);
    }
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = FA_CROSS_KEYS});
    x.args.cross_attention.seqlen_k = 0;
    OK(launched_run(&x));
    cr_expect(x.launch.empty);
}

/* Without keys the rest is still there to do, and nothing of the keys is looked at. */
Test(cross_attention_launch, no_keys_are_not_empty_work)
{
    for (int form = FA_CROSS_WHOLE; form <= FA_CROSS_QUERIES; form++) {
        launched x;
        launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS, .form = (fa_cross_form)form});
        fa_cross_attention_args *a = &x.args.cross_attention;
        a->seqlen_k = 0;
        a->x_kv.data = a->w_k.data = a->w_v.data = a->k.data = a->v.data = NULL;
        OK(launched_run(&x));
        cr_expect_not(x.launch.empty);
        cr_expect_eq(launched_params(&x)->attend.seqlen_k, 0);
        cr_expect_eq(launched_params(&x)->tiles_before[CROSS_K],
                     launched_params(&x)->project_tiles);
    }
}

/* As many sequences, or heads, as a grid's y and z would not hold. */
Test(cross_attention_launch, K14_65536_sequences_and_heads)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){CROSS_HEADS});
    x.args.cross_attention.batch = 65536;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.then->grid[0] % (65536u * 8), 0u);
    launched_begin(&x, (fa_cross_attention_spec){.heads_q = 65536, .heads_k = 1, .head_dim = 8});
    OK(launched_run(&x));
    cr_expect_eq(x.launch.then->grid[0] % (65536u * 4), 0u);
}

Test(cross_attention_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, (fa_cross_attention_spec){.heads_q = 1 << 20, .heads_k = 1, .head_dim = 1});
    fa_cross_attention_args *a = &x.args.cross_attention;
    a->batch = 1 << 12;
    a->seqlen_q = a->seqlen_k = 1;
    x.args.workspace_bytes = SIZE_MAX;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "launch them in parts");
}
