/* Launches of linear without a GPU: splits of k, workspace, widths, every check of the arguments. */
#include "linear_launched.h"

#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

Test(linear_launch, a_block_for_each_tile)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.tile_m = 32, .tile_n = 64, .splits = 1});
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[0], 4u * 2u);
    cr_expect_eq(x.launch.grid[1], 1u);
    cr_expect_eq(x.launch.block[0], x.plan.block_threads);
    cr_expect_eq(x.launch.smem_bytes, x.plan.smem_dynamic_bytes);
    const linear_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->x.stride, 256);
    cr_expect_eq(k->y[0].stride, 128);
    cr_expect_eq(k->splits, 1);
    cr_expect_eq(k->x_width, 16);
    cr_expect_eq(k->vector, 4);
}

/* Parts of k are tiles, cover all of it, and none is empty. */
Test(linear_launch, splits_cover_all_of_k)
{
    for (int splits = 2; splits <= 64; splits++)
        for (int k = 1; k < 1000; k += 31) {
            launched x;
            launched_begin(&x, (fa_linear_spec){.splits = splits});
            x.args.linear.k = k;
            OK(launched_run(&x));
            const linear_kernel_params *p = launched_params(&x);
            cr_expect_eq(p->split_k % x.plan.value[LINEAR_TILE_K], 0);
            cr_expect_geq((int64_t)p->split_k * p->splits, k);
            cr_expect_lt((int64_t)p->split_k * (p->splits - 1), k);
            cr_expect_eq(x.launch.grid[1], (uint32_t)p->splits);
            cr_expect_leq(p->splits, splits);
        }
}

Test(linear_launch, few_rows_share_k_and_many_do_not)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.dtype = FA_BF16, .m = 8, .n = 512, .k = 8192});
    OK(launched_run(&x));
    cr_expect_gt(launched_params(&x)->splits, 2);
    cr_expect_leq((int)(x.launch.grid[0] * x.launch.grid[1]), 2 * H200);
    launched_begin(&x, (fa_linear_spec){.dtype = FA_BF16, .m = 8192, .n = 2048, .k = 512});
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->splits, 1);
}

/* How much of `multiprocessors` has a block in every round, in percent. */
static int filled(fa_linear_spec linear, int m, int multiprocessors)
{
    launched x;
    launched_begin(&x, linear);
    x.args.linear.m = linear.m ? 0 : m;
    OK(fa__op_linear.launch(&x.spec, &x.plan, multiprocessors, &x.args, &x.launch, &x.room));
    const int blocks = (int)(x.launch.grid[0] * x.launch.grid[1]);
    const int rounds = (blocks + multiprocessors - 1) / multiprocessors;
    const linear_kernel_params *k = launched_params(&x);
    cr_expect(k->splits == 1 || (rounds <= 4 && k->split_k >= 8 * x.plan.value[LINEAR_TILE_K]),
              "%s: %d splits of %d", x.plan.text, k->splits, k->split_k);
    return 100 * blocks / (rounds * multiprocessors);
}

/* Few rows are read against all of W: every multiprocessor has to read. */
Test(linear_launch, few_rows_fill_the_device)
{
    static const int sizes[][2] = {{4096, 4096}, {1024, 4096},  {512, 4096},  {6144, 4096},
                                   {4000, 4000}, {4096, 11008}, {4096, 1024}, {256, 8192}};
    for (int m = 1; m <= 16; m++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int type = 0; type < 3; type++) {
                fa_linear_spec spec = {.dtype = (fa_dtype)type, .n = sizes[i][0], .k = sizes[i][1]};
                spec.m = m;
                cr_expect_geq(filled(spec, m, H200), 90, "type %d, M = %d, N = %d, K = %d", type, m,
                              spec.n, spec.k);
                spec.m = 0; /* given at launch, to a kernel that is made for few */
                spec.tile_m = 16;
                cr_expect_geq(filled(spec, m, H200), 90, "type %d, any M, N = %d, K = %d", type,
                              spec.n, spec.k);
            }
}

/* The device counts, not the one that the kernel was planned for. */
Test(linear_launch, few_rows_fill_smaller_and_larger_devices)
{
    static const int devices[] = {16, 58, 108, 114, 148, 170};
    const fa_linear_spec spec = {.dtype = FA_BF16, .tile_m = 16, .tile_n = 16, .k = 16384};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (int n = 64; n <= 640; n += 64) {
            fa_linear_spec sized = spec;
            sized.n = n;
            cr_expect_geq(filled(sized, 7, devices[i]), n / 16 < devices[i] ? 75 : 50,
                          "%d multiprocessors, N = %d", devices[i], n);
        }
}

Test(linear_launch, workspace_is_sized_and_checked)
{
    launched x;
    size_t bytes = 1;
    launched_begin(&x, (fa_linear_spec){.splits = 4});
    OK(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_assert_gt(bytes, 4u * 100 * 128 * 4);
    x.args.workspace_bytes = bytes;
    OK(launched_run(&x));
    x.args.workspace_bytes = bytes - 1;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "fa_workspace_size");
    x.args.workspace_bytes = bytes;
    x.args.workspace = NULL;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "workspace = 0x0");
    x.args.workspace = BYTES(TENSOR(15), 128);
    REFUSED(launched_run(&x), FA_ERR_MISALIGNED, "256");
    x.args.workspace = x.args.linear.w.data;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "workspace");
    launched_begin(&x, (fa_linear_spec){.splits = 1});
    x.args.workspace = NULL;
    OK(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_expect_eq(bytes, 0u);
    OK(launched_run(&x));
    x.args.linear.m = -1;
    REFUSED(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes), FA_ERR_SIZE,
            "m = -1");
}

Test(linear_launch, widths_follow_every_pointer_and_stride)
{
    const fa_linear_spec f32 = {.bias = true, .residual = true, .splits = 1};
    fa_linear_spec bf16 = f32, fp8 = f32;
    bf16.dtype = FA_BF16;
    fp8.operands = FA_LINEAR_E4M3;
    launched x;
#define WIDTHS(spec, statement, of_x, of_w, of_store)                                              \
    do {                                                                                           \
        launched_begin(&x, spec);                                                                  \
        fa_linear_args *a = &x.args.linear;                                                        \
        statement;                                                                                 \
        OK(launched_run(&x));                                                                      \
        const linear_kernel_params *k = launched_params(&x);                                       \
        cr_expect(k->x_width == (of_x) && k->w_width == (of_w) && k->vector == (of_store),         \
                  "%s: %d, %d, %d", #statement, k->x_width, k->w_width, k->vector);                \
    } while (0)
    WIDTHS(f32, (void)a, 16, 16, 4);
    WIDTHS(f32, a->x.data = BYTES(a->x.data, 4), 4, 16, 4);
    WIDTHS(f32, a->x.stride = 257, 4, 16, 4);
    WIDTHS(f32, a->w.stride = 258, 16, 4, 4);
    WIDTHS(f32, a->k = 255, 4, 4, 4);
    WIDTHS(f32, a->n = 126, 16, 16, 1);
    WIDTHS(f32, a->y[0].stride = 130, 16, 16, 1);
    WIDTHS(f32, a->residual.data = BYTES(a->residual.data, 8), 16, 16, 1);
    WIDTHS(f32, a->bias = BYTES(a->bias, 4), 16, 16, 1);
    WIDTHS(bf16, (void)a, 16, 16, 8);
    WIDTHS(bf16, a->x.data = BYTES(a->x.data, 2), 2, 16, 8);
    WIDTHS(bf16, a->w.data = BYTES(a->w.data, 4), 16, 4, 8);
    WIDTHS(bf16, a->w.data = BYTES(a->w.data, 8), 16, 4, 8);
    WIDTHS(bf16, a->bias = BYTES(a->bias, 8), 16, 16, 1);
    WIDTHS(fp8, a->x.stride = 257, 1, 16, 4);
    WIDTHS(fp8, a->x.stride = 258, 1, 16, 4);
    WIDTHS(fp8, a->x.stride = 260, 4, 16, 4);
    fa_linear_spec rotated = f32;
    rotated.rotation = HALF;
    rotated.head_dim = 64;
    rotated.angles = FA_ROPE_TABLES;
    WIDTHS(rotated, (void)a, 16, 16, 4);
    WIDTHS(rotated, a->cos = (float *)BYTES(a->cos, 4), 16, 16, 1);
}

Test(linear_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.tile_m = 16, .tile_n = 16, .splits = 1});
    x.args.linear.m = x.args.linear.n = 1 << 28;
    x.args.linear.k = 1;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "m = 268435456");
}

Test(linear_launch, empty_work_succeeds)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){0});
    x.args.linear = (fa_linear_args){0};
    OK(launched_run(&x));
    cr_expect(x.launch.empty);
    x.args.linear = (fa_linear_args){.m = 4};
    OK(launched_run(&x));
    cr_expect(x.launch.empty);
    launched_begin(&x, (fa_linear_spec){0});
    x.args.linear.k = 0;
    OK(launched_run(&x));
    cr_expect_not(x.launch.empty, "sums of nothing are stored");
    cr_expect_eq(launched_params(&x)->splits, 1);
}

/* --- bad arguments --- */

/* A refusal for each kind of spec: X(status, word, statement on `a`). */
#define REFUSALS(NAME, LIST)                                                                       \
    static void NAME(fa_linear_spec spec)                                                          \
    {                                                                                              \
        launched x;                                                                                \
        fa_linear_args *a = &x.args.linear;                                                        \
        LIST(REFUSAL_CHECK)                                                                        \
    }
#define REFUSAL_CHECK(status, word, statement)                                                     \
    launched_begin(&x, spec);                                                                      \
    OK(launched_run(&x));                                                                          \
    statement;                                                                                     \
    REFUSED(launched_run(&x), status, word);

#define PLAIN(X)                                                                                   \
    X(FA_ERR_NULL_POINTER, "fa_linear_args.x)", a->x.data = NULL)                                  \
    X(FA_ERR_NULL_POINTER, "fa_linear_args.w)", a->w.data = NULL)                                  \
    X(FA_ERR_NULL_POINTER, "fa_linear_args.y[0])", a->y[0].data = NULL)                            \
    X(FA_ERR_NULL_POINTER, "bias", a->bias = NULL)                                                 \
    X(FA_ERR_NULL_POINTER, "residual", a->residual.data = NULL)                                    \
    X(FA_ERR_NULL_POINTER, "x_scale", a->x_scale = NULL)                                           \
    X(FA_ERR_NULL_POINTER, "w_scale", a->w_scale = NULL)                                           \
    X(FA_ERR_MISALIGNED, "x = ", a->x.data = BYTES(a->x.data, 2))                                  \
    X(FA_ERR_MISALIGNED, "w = ", a->w.data = BYTES(a->w.data, 1))                                  \
    X(FA_ERR_MISALIGNED, "y[0]", a->y[0].data = BYTES(a->y[0].data, 3))                            \
    X(FA_ERR_MISALIGNED, "bias", a->bias = BYTES(a->bias, 2))                                      \
    X(FA_ERR_MISALIGNED, "residual", a->residual.data = BYTES(a->residual.data, 2))                \
    X(FA_ERR_MISALIGNED, "w_scale", a->w_scale = BYTES(a->w_scale, 2))                             \
    X(FA_ERR_SIZE, "m = -1", a->m = -1)                                                            \
    X(FA_ERR_SIZE, "n = -2147483648", a->n = INT32_MIN)                                            \
    X(FA_ERR_SIZE, "k = -4", a->k = -4)                                                            \
    X(FA_ERR_LIMIT, "m = 2147483647", a->m = INT32_MAX)                                            \
    X(FA_ERR_STRIDE, "stride_token = 127", a->y[0].stride = 127)                                   \
    X(FA_ERR_STRIDE, "address space", a->x.stride = INT64_MAX)                                     \
    X(FA_ERR_ALIAS, "overlaps x", a->y[0].data = a->x.data)                                        \
    X(FA_ERR_ALIAS, "overlaps w", a->y[0].data = BYTES(a->w.data, 128 * 256 * 4 - 4))              \
    X(FA_ERR_ALIAS, "overlaps bias", a->bias = a->y[0].data)                                       \
    X(FA_ERR_ALIAS, "overlaps w_scale", a->w_scale = a->y[0].data)                                 \
    X(FA_ERR_ALIAS, "overlaps residual", a->residual.data = BYTES(a->y[0].data, 4))

REFUSALS(refuse_plain, PLAIN)

#define CACHED(X)                                                                                  \
    X(FA_ERR_NULL_POINTER, "y[1]", a->y[1].data = NULL)                                            \
    X(FA_ERR_NULL_POINTER, "y[2]", a->y[2].data = NULL)                                            \
    X(FA_ERR_NULL_POINTER, "rows", a->rows = NULL)                                                 \
    X(FA_ERR_NULL_POINTER, "cos", a->cos = NULL)                                                   \
    X(FA_ERR_NULL_POINTER, "sin", a->sin = NULL)                                                   \
    X(FA_ERR_MISALIGNED, "rows", a->rows = BYTES(a->rows, 4))                                      \
    X(FA_ERR_MISALIGNED, "errors", a->errors = BYTES(a->errors, 2))                                \
    X(FA_ERR_MISALIGNED, "positions", a->positions = BYTES(a->positions, 2))                       \
    X(FA_ERR_SIZE, "row_count = 0", a->row_count = 0)                                              \
    X(FA_ERR_SIZE, "row_count = -1", a->row_count = -1)                                            \
    X(FA_ERR_SIZE, "max_position = 0", a->max_position = 0)                                        \
    X(FA_ERR_SIZE, "begins at column 96", a->n = 96)                                               \
    X(FA_ERR_ALIAS, "y[1]", a->y[1].data = a->y[0].data)                                           \
    X(FA_ERR_ALIAS, "overlaps rows", a->rows = a->y[2].data)                                       \
    X(FA_ERR_ALIAS, "errors", a->errors = a->y[2].data)                                            \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = a->y[0].data)                             \
    X(FA_ERR_ALIAS, "overlaps sin", a->sin = a->y[0].data)

REFUSALS(refuse_cached, CACHED)

#define BAKED(X)                                                                                   \
    X(FA_ERR_BAKED, "m = 3 at launch, but 100", a->m = 3)                                          \
    X(FA_ERR_BAKED, "n = 64", a->n = 64)                                                           \
    X(FA_ERR_BAKED, "k = 255", a->k = 255)

REFUSALS(refuse_baked, BAKED)

Test(linear_refusals, every_bad_argument_is_named)
{
    refuse_plain((fa_linear_spec){
        .bias = true, .residual = true, .scales = FA_LINEAR_SCALE_ROW, .splits = 1});
    refuse_cached((fa_linear_spec){.mapped_rows = true,
                                   .row_type = FA_I64,
                                   .rotation = HALF,
                                   .angles = FA_ROPE_TABLES,
                                   .head_dim = 32,
                                   .rotated = 64,
                                   .split_1 = 64,
                                   .split_2 = 96,
                                   .splits = 1});
    refuse_baked((fa_linear_spec){.m = 100, .n = 128, .k = 256, .splits = 1});
}

Test(linear_refusals, columns_that_are_no_heads)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.rotation = HALF, .head_dim = 64, .splits = 1});
    x.args.linear.n = 96;
    REFUSED(launched_run(&x), FA_ERR_SIZE, "head_dim = 64");
    launched_begin(&x,
                   (fa_linear_spec){.rotation = HALF, .head_dim = 64, .rotated = 256, .splits = 1});
    REFUSED(launched_run(&x), FA_ERR_SIZE, "256 columns");
}

Test(linear_refusals, dynamic_ntk_needs_a_length)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.rotation = HALF,
                                        .head_dim = 32,
                                        .splits = 1,
                                        .scaling = {.kind = FA_ROPE_DYNAMIC_NTK,
                                                    .factor = 2,
                                                    .original_max_position = 64}});
    REFUSED(launched_run(&x), FA_ERR_SIZE, "sequence_length = 0");
    x.args.linear.sequence_length = 128;
    OK(launched_run(&x));
    cr_expect_neq(launched_params(&x)->rule.quotient, 0u);
}

/* The residual may be what is written, element for element, and nothing else of it. */
Test(linear_refusals, residual_in_place)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.residual = true, .splits = 1});
    x.args.linear.residual = x.args.linear.y[0];
    OK(launched_run(&x));
    x.args.linear.residual.stride = 256;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "residual");
    launched_begin(&x, (fa_linear_spec){.residual = true, .mapped_rows = true, .splits = 1});
    x.args.linear.residual = x.args.linear.y[0];
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "residual");
}

Test(linear_refusals, what_is_not_read_may_be_null)
{
    launched x;
    launched_begin(&x, (fa_linear_spec){.rotation = PAIRS, .head_dim = 64, .splits = 1});
    fa_linear_args *a = &x.args.linear;
    a->y[1].data = a->y[2].data = a->residual.data = NULL;
    a->bias = a->rows = a->positions = NULL;
    a->cos = a->sin = a->inv_freq = a->x_scale = a->w_scale = NULL;
    a->errors = NULL;
    OK(launched_run(&x));
}
