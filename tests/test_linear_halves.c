/* linear with float32 as halves, without a GPU: when they are taken, their two launches, their workspace. */
#include "linear_launched.h"

#define HALF FA_KV_ROTATE_HALF

static const fa__target ampere = {"sm_86", 86, 101376}, turing = {"sm_75", 75, 65536};

static fa__plan plan_of(fa_linear_spec linear, const fa__target *on)
{
    fa__plan plan;
    fa_spec spec = linear_spec(linear);
    OK(prepare_for(&spec, &plan, on));
    return plan;
}

/* --- the choice --- */

/* Halves, which cost a launch and a workspace, where all sizes are known and large. */
Test(linear_halves, halves_are_taken_where_they_pay)
{
    static const struct {
        fa_linear_spec linear;
        int arithmetic;
    } cases[] = {
        {{.m = 8192, .n = 512, .k = 4096}, LINEAR_SPLIT_F16},
        {{.m = 8192, .n = 2048, .k = 512}, LINEAR_SPLIT_F16},
        {{.m = 8192, .n = 2048, .k = 512, .splits = 1}, LINEAR_SPLIT_TF32},
        {{.m = 8192, .n = 2048, .k = 512, .tile_m = 32}, LINEAR_SPLIT_TF32},
        {{.m = 8192, .n = 2048}, LINEAR_SPLIT_TF32},
        {{.m = 8192, .k = 512}, LINEAR_SPLIT_TF32},
        {{.n = 2048, .k = 512}, LINEAR_SPLIT_TF32},
        {{.m = 8192, .n = 16, .k = 4096}, LINEAR_SPLIT_TF32},
        {{.m = 16, .n = 4096, .k = 4096}, LINEAR_SPLIT_TF32},
        {{.m = 512, .n = 256, .k = 256}, LINEAR_SPLIT_TF32},
        {{.m = 384, .n = 48, .k = 256, .arithmetic = FA_LINEAR_SPLIT_F16}, LINEAR_SPLIT_F16},
        {{.m = 8192, .n = 2048, .k = 512, .dtype = FA_BF16}, LINEAR_WHOLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fa__plan p = plan_of(cases[i].linear, &target);
        cr_expect_eq(p.value[LINEAR_ARITHMETIC], cases[i].arithmetic, "%zu: %s", i, p.text);
        cr_expect(p.value[LINEAR_ARITHMETIC] != LINEAR_SPLIT_F16 || !p.value[LINEAR_MAY_SPLIT]);
    }
    const fa_linear_spec large = {.m = 8192, .n = 2048, .k = 512};
    const fa__target a100 = {"sm_80", 80, 166912};
    cr_expect_eq(plan_of(large, &target).value[LINEAR_TILE_M], 256);
    cr_expect_eq(plan_of(large, &a100).value[LINEAR_ARITHMETIC], LINEAR_SPLIT_F16);
    cr_expect_eq(plan_of(large, &a100).value[LINEAR_TILE_M], 128, "more spills there");
    cr_expect_eq(plan_of(large, &ampere).value[LINEAR_ARITHMETIC], LINEAR_SPLIT_F16);
    cr_expect_eq(plan_of(large, &turing).value[LINEAR_ARITHMETIC], LINEAR_FMA);
}

/* What the text says: clocks. */
static double cost_of(fa_linear_spec linear)
{
    const fa__plan p = plan_of(linear, &target);
    const char *at = strstr(p.text, "cost ");
    cr_assert_not_null(at, "%s", p.text);
    return atof(at + strlen("cost "));
}

/* Measured on an H200, whose clock is between 1.5 and 2 GHz. */
Test(linear_halves, costs_are_about_what_a_device_takes)
{
    static const struct {
        int n, k;
        double microseconds[2]; /* of halves, of tf32 */
    } cases[] = {{512, 4096, {353, 520}},
                 {2048, 512, {176.7, 288}},
                 {4096, 512, {343, 577}},
                 {2048, 2048, {622, 1053}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_linear_spec spec = {.m = 8192, .n = cases[i].n, .k = cases[i].k};
        const double *measured = cases[i].microseconds;
        double cost[2];
        for (int tf32 = 0; tf32 < 2; tf32++) {
            spec.arithmetic = tf32 ? FA_LINEAR_SPLIT_TF32 : FA_LINEAR_SPLIT_F16;
            cost[tf32] = cost_of(spec);
            const double clocks = cost[tf32] / measured[tf32];
            cr_expect(clocks > 1500 && clocks < 2000, "%d x %d, tf32 %d: %g in a microsecond",
                      spec.n, spec.k, tf32, clocks);
        }
        const double ratio = cost[1] / cost[0] / (measured[1] / measured[0]);
        cr_expect(ratio > 0.9 && ratio < 1.1, "%d x %d: ratio %g times that of a device", spec.n,
                  spec.k, ratio);
    }
}

/* As a step of cross_attention, without a workspace. */
Test(linear_halves, a_step_never_takes_halves)
{
    const fa_spec spec = linear_spec((fa_linear_spec){.m = 8192, .n = 2048, .k = 512});
    fa__plan p;
    OK(fa__linear_plan_of(&spec, &target, 0, &p));
    cr_expect_eq(p.value[LINEAR_ARITHMETIC], LINEAR_SPLIT_TF32, "%s", p.text);
}

/* --- the launches --- */

/* The kernel is told what the launch takes it to be. */
static void expect_rows_of_a_block(const fa_spec *spec, uint32_t rows)
{
    char *text = prepared_source(*spec, "fajit_linear", NULL), line[64];
    snprintf(line, sizeof line, "constexpr int PARTS_ROWS = %u;\n", rows);
    cr_expect_not_null(strstr(text, line), "no %s", line);
    cr_expect_not_null(strstr(text, "constexpr int PARTS_THREADS = 256;\n"));
    free(text);
}

/* Halves of x and w are made by a launch of its own, for as many rows as it takes at a time. */
Test(linear_halves, halves_are_made_first)
{
    static const struct {
        int32_t k, baked_k;
        uint32_t rows;
    } cases[] = {{256, 1, 8},  {512, 1, 8},  {513, 1, 4},  {1024, 1, 4}, {1025, 1, 2},
                 {2048, 1, 2}, {2049, 1, 1}, {8192, 1, 1}, {256, 0, 1},  {512, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(&x, (fa_linear_spec){.arithmetic = FA_LINEAR_SPLIT_F16,
                                            .tile_m = 64,
                                            .tile_n = 64,
                                            .k = cases[i].baked_k ? cases[i].k : 0});
        x.args.linear.m = 101;
        x.args.linear.k = cases[i].k;
        OK(launched_run(&x));
        const fa__launch *product = x.launch.then;
        cr_assert_not_null(product);
        cr_expect_eq(x.launch.function, 1u);
        cr_expect_eq(x.launch.grid[0], (101 + 128 + cases[i].rows - 1) / cases[i].rows,
                     "K = %d: %u blocks", cases[i].k, x.launch.grid[0]);
        cr_expect_eq(x.launch.grid[1] * x.launch.grid[2], 1u);
        cr_expect_eq(x.launch.block[0], 256u);
        expect_rows_of_a_block(&x.spec, cases[i].rows);
        cr_expect_eq(x.launch.smem_bytes, 0u);
        cr_expect_eq(product->function, 0u);
        cr_expect_eq(product->grid[0], 2u * 2u);
        cr_expect_eq(product->grid[1] * product->grid[2], 1u);
        cr_expect_eq(product->block[0], x.plan.block_threads);
        cr_expect_eq(product->smem_bytes, x.plan.smem_dynamic_bytes);
        cr_expect_eq(product->params, x.launch.params);
        cr_expect_null(product->then);
        cr_expect_eq(launched_params(&x)->partial, (uintptr_t)x.args.workspace);
    }
}

/* As large as x and w with rows of whole tiles of k, and a scale for each row; nothing may be in it. */
Test(linear_halves, halves_need_a_workspace)
{
    const fa_linear_spec spec = {.arithmetic = FA_LINEAR_SPLIT_F16,
                                 .bias = true,
                                 .residual = true,
                                 .mapped_rows = true,
                                 .split_1 = 64,
                                 .split_2 = 96,
                                 .rotation = HALF,
                                 .angles = FA_ROPE_TABLES,
                                 .head_dim = 32,
                                 .rotated = 64,
                                 .scales = FA_LINEAR_SCALE_ROW};
    launched x;
    size_t bytes = 0;
    launched_begin(&x, spec);
    x.args.linear.k = 65;
    OK(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_assert_eq(bytes, (100u + 128u) * (96u + 1u) * 4u);
    x.args.workspace_bytes = bytes;
    OK(launched_run(&x));
    x.args.workspace_bytes = bytes - 1;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "fa_workspace_size");
    x.args.workspace_bytes = bytes;
    x.args.workspace = NULL;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "workspace = 0x0");
    x.args.workspace = BYTES(TENSOR(15), 16);
    REFUSED(launched_run(&x), FA_ERR_MISALIGNED, "256");
    for (int tensor = 1; tensor <= 14; tensor++) { /* the last byte of it is the first of another */
        x.args.workspace = BYTES(TENSOR(tensor), -(int)(bytes - 1) / 256 * 256);
        REFUSED(launched_run(&x), FA_ERR_ALIAS, "workspace");
    }
    x.args.linear.k = 0;
    OK(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_expect_eq(bytes, (100u + 128u) * 4u, "scales of rows of nothing");
    x.args.linear = (fa_linear_args){.m = LINEAR_MAX_SIZE, .n = LINEAR_MAX_SIZE, .row_count = 1};
    x.args.linear.k = LINEAR_MAX_SIZE;
    OK(fa__op_linear.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_expect_eq(bytes, (size_t)INT64_MAX, "more than there is, and no overflow");
}
