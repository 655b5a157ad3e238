/* linear without a GPU: specs, plans, sources. Launches are in test_linear_launch.c. */
#include "linear_spec.h"
#include "op_steps.h"
#include "ops/linear.h"

static const fa__target ampere = {"sm_86", 86, 101376}, turing = {"sm_75", 75, 65536};
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

static fa__plan plan_of(fa_linear_spec linear, const fa__target *on)
{
    fa__plan plan;
    fa_spec spec = linear_spec(linear);
    OK(prepare_for(&spec, &plan, on));
    return plan;
}

/* --- specs --- */

Test(linear_spec, refusals_name_the_field)
{
    const struct {
        fa_linear_spec linear;
        fa_status status;
        const char *word;
    } cases[] = {
        {{.m = -1}, FA_ERR_SIZE, "m"},
        {{.n = -1}, FA_ERR_SIZE, "n"},
        {{.k = -64}, FA_ERR_SIZE, "-64"},
        {{.m = INT32_MAX}, FA_ERR_LIMIT, "2147418112"},
        {{.dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{.operands = (fa_linear_operands)2}, FA_ERR_VALUE, "operands"},
        {{.output = (fa_linear_output)4}, FA_ERR_VALUE, "output"},
        {{.arithmetic = (fa_linear_arithmetic)5}, FA_ERR_VALUE, "arithmetic"},
        {{.scales = (fa_linear_scales)3}, FA_ERR_VALUE, "scales"},
        {{.activation = (fa_linear_activation)4}, FA_ERR_VALUE, "activation"},
        {{.rotation = (fa_kv_rotation)3}, FA_ERR_VALUE, "rotation"},
        {{.row_type = (fa_index)2}, FA_ERR_VALUE, "row_type"},
        {{.position_type = (fa_index)2}, FA_ERR_VALUE, "position_type"},
        {{.dtype = FA_BF16, .arithmetic = FA_LINEAR_SPLIT_TF32}, FA_ERR_VALUE, "bf16 operands"},
        {{.operands = FA_LINEAR_E4M3, .arithmetic = FA_LINEAR_SPLIT_BF16}, FA_ERR_VALUE, "e4m3"},
        {{.dtype = FA_F16, .arithmetic = FA_LINEAR_SPLIT_F16}, FA_ERR_VALUE, "f16 operands"},
        {{.arithmetic = FA_LINEAR_SPLIT_F16, .splits = 2}, FA_ERR_VALUE, "splits = 2"},
        {{.split_2 = 32}, FA_ERR_VALUE, "split_2 = 32"},
        {{.split_1 = 32, .split_2 = 32}, FA_ERR_VALUE, "split_2 = 32"},
        {{.split_1 = 32, .n = 32}, FA_ERR_VALUE, "split_1 = 32 with n = 32"},
        {{.split_1 = 8, .split_2 = 40, .n = 32}, FA_ERR_VALUE, "split_2 = 40"},
        {{.split_1 = -8}, FA_ERR_SIZE, "split_1"},
        {{.rotation = HALF}, FA_ERR_SIZE, "head_dim = 0"},
        {{.rotation = HALF, .head_dim = 65}, FA_ERR_SIZE, "head_dim = 65"},
        {{.rotation = HALF, .head_dim = 1026}, FA_ERR_LIMIT, "1024"},
        {{.rotation = HALF, .head_dim = 64, .rotary_dim = 31}, FA_ERR_ROTARY_DIM, "31"},
        {{.rotation = HALF, .head_dim = 64, .rotary_dim = 66}, FA_ERR_ROTARY_DIM, "66"},
        {{.rotation = HALF, .head_dim = 64, .rotated = 96}, FA_ERR_VALUE, "rotated = 96"},
        {{.rotation = HALF, .head_dim = 64, .n = 96}, FA_ERR_VALUE, "n = 96"},
        {{.rotation = HALF, .head_dim = 64, .n = 64, .rotated = 128},
         FA_ERR_VALUE,
         "rotated = 128"},
        {{.rotation = HALF, .head_dim = 64, .n = 128, .split_1 = 32}, FA_ERR_VALUE, "split_1 = 32"},
        {{.rotation = HALF, .head_dim = 64, .n = 192, .split_1 = 64, .split_2 = 96},
         FA_ERR_VALUE,
         "split_2 = 96"},
        {{.head_dim = 64}, FA_ERR_VALUE, "head_dim = 64 without rotation"},
        {{.rotary_dim = 64}, FA_ERR_VALUE, "rotary_dim = 64 without rotation"},
        {{.rotated = 64}, FA_ERR_VALUE, "rotated = 64 without rotation"},
        {{.rotation = HALF, .head_dim = 64, .base = 1}, FA_ERR_VALUE, "base = 1"},
        {{.rotation = HALF, .head_dim = 64, .scaling = {.kind = FA_ROPE_LINEAR}},
         FA_ERR_VALUE,
         "factor"},
        {{.tile_m = 48}, FA_ERR_VALUE, "tile_m = 48"},
        {{.tile_m = 16, .tile_n = 128}, FA_ERR_VALUE, "there are 128 x 128"},
        {{.tile_m = 2000}, FA_ERR_LIMIT, "tile_m"},
        {{.stages = 1}, FA_ERR_SIZE, "stages"},
        {{.stages = 17}, FA_ERR_LIMIT, "16"},
        {{.tile_m = 128, .tile_n = 128, .stages = 8}, FA_ERR_SHARED_MEMORY, "232448"},
        {{.splits = 65}, FA_ERR_LIMIT, "64"},
        {{.splits = -1}, FA_ERR_SIZE, "splits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = linear_spec(cases[i].linear);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(linear_spec, what_an_architecture_lacks_is_refused)
{
    fa__plan plan;
    fa_spec fp8 = linear_spec((fa_linear_spec){.operands = FA_LINEAR_E4M3});
    REFUSED(prepare_for(&fp8, &plan, &ampere), FA_ERR_DTYPE, "sm_86");
    OK(prepare(&fp8, &plan));
    static const fa_linear_arithmetic split[] = {FA_LINEAR_SPLIT_TF32, FA_LINEAR_SPLIT_BF16,
                                                 FA_LINEAR_SPLIT_F16};
    for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
        fa_spec spec = linear_spec((fa_linear_spec){.arithmetic = split[i]});
        REFUSED(prepare_for(&spec, &plan, &turing), FA_ERR_UNSUPPORTED, "sm_75");
        OK(prepare_for(&spec, &plan, &ampere));
    }
    /* ptxas has too few registers */
    const fa_linear_spec large = {.arithmetic = FA_LINEAR_SPLIT_F16,
                                  .m = 8192,
                                  .n = 2048,
                                  .k = 512,
                                  .tile_m = 256,
                                  .tile_n = 128};
    fa_linear_spec dynamic = large;
    dynamic.n = 0;
    fa_spec baked = linear_spec(large), any = linear_spec(dynamic);
    const char *const further = "64 x 64, 256 x 128 on sm_90 with m, n and k baked, and";
    REFUSED(prepare_for(&baked, &plan, &ampere), FA_ERR_VALUE, further);
    REFUSED(prepare(&any, &plan), FA_ERR_VALUE, further);
    OK(prepare(&baked, &plan));
    baked.linear.tile_n = 64;
    REFUSED(prepare(&baked, &plan), FA_ERR_VALUE,
            "there are 256 x 128, 128 x 128, 128 x 64, 64 x 64, and");
}

/* Also those that can be laid out in two ways. */
Test(linear_spec, shapes_of_tiles_are_listed_once)
{
    fa__plan plan;
    fa_spec f32 = linear_spec((fa_linear_spec){.tile_m = 48}), f16 = f32;
    f16.linear.dtype = FA_F16;
    REFUSED(prepare(&f32, &plan), FA_ERR_VALUE, ", 32 x 32, 16 x 64,");
    REFUSED(prepare(&f16, &plan), FA_ERR_VALUE, ", 32 x 32, 16 x 64, 16 x 32, 16 x 16, and");
}

/* Specs that mean the same share a kernel. */
Test(linear_spec, defaults_are_filled_in)
{
    fa__plan plan;
    fa_spec spec = linear_spec((fa_linear_spec){.rotation = HALF, .head_dim = 64});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.linear.rotary_dim, 64);
    cr_expect_eq(spec.linear.base, 10000.0);
    spec = linear_spec((fa_linear_spec){.dtype = FA_F16,
                                        .output = FA_LINEAR_OUT_F16,
                                        .row_type = FA_I64,
                                        .position_type = FA_I64,
                                        .angles = FA_ROPE_TABLES,
                                        .base = 500000});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.linear.output, FA_LINEAR_OUT_SAME);
    cr_expect_eq(spec.linear.row_type, FA_I32);
    cr_expect_eq(spec.linear.position_type, FA_I32);
    cr_expect_eq(spec.linear.angles, FA_ROPE_COMPUTED);
    cr_expect_eq(spec.linear.base, 0.0);
}

/* --- plans --- */

Test(linear_plan, arithmetic_follows_type_and_architecture)
{
    const fa_linear_spec f32 = {0}, f16 = {.dtype = FA_F16}, bf16 = {.dtype = FA_BF16},
                         fp8 = {.operands = FA_LINEAR_E4M3};
    cr_expect_eq(plan_of(f32, &target).value[LINEAR_ARITHMETIC], LINEAR_SPLIT_TF32);
    cr_expect_eq(plan_of(f32, &turing).value[LINEAR_ARITHMETIC], LINEAR_FMA);
    cr_expect_eq(plan_of(f16, &turing).value[LINEAR_ARITHMETIC], LINEAR_WHOLE);
    cr_expect_eq(plan_of(bf16, &turing).value[LINEAR_ARITHMETIC], LINEAR_FMA);
    cr_expect_eq(plan_of(bf16, &ampere).value[LINEAR_ARITHMETIC], LINEAR_WHOLE);
    cr_expect_eq(plan_of(fp8, &target).value[LINEAR_ARITHMETIC], LINEAR_WHOLE);
    cr_expect_eq(plan_of(fp8, &target).value[LINEAR_TILE_K], 128);
    cr_expect_eq(plan_of(f16, &target).value[LINEAR_TILE_K], 64);
}

/* Of a tile of 64 x 64, whose stages are 16 KB. */
static uint32_t shared_bytes_of(int k, int head_dim, const fa__target *to)
{
    return plan_of((fa_linear_spec){.m = 64,
                                    .n = 192,
                                    .k = k,
                                    .tile_m = 64,
                                    .tile_n = 64,
                                    .stages = 4,
                                    .splits = 1,
                                    .rotation = head_dim ? FA_KV_ROTATE_HALF : FA_KV_ROTATE_NONE,
                                    .head_dim = head_dim,
                                    .rotary_dim = head_dim},
                   to)
        .smem_dynamic_bytes;
}

/* 64 rows of a head's cosines and sines, or of all columns' where heads do not fill the tile. */
Test(linear_plan, kept_angles_take_the_room_of_stages)
{
    const uint32_t stage = 16384, sums = 64 * 72 * 4, head = 64 * 32 * 4, all = 64 * 64 * 4;
    cr_expect_eq(shared_bytes_of(0, 0, &target), 4 * stage);
    cr_expect_eq(shared_bytes_of(64, 0, &target), 4 * stage);
    cr_expect_eq(shared_bytes_of(0, 32, &target), 4 * stage + head);
    cr_expect_eq(shared_bytes_of(200, 32, &target), 4 * stage + head);
    cr_expect_eq(shared_bytes_of(64, 32, &target), 2 * stage + head);
    cr_expect_eq(shared_bytes_of(32, 32, &target), sums + head);
    cr_expect_eq(shared_bytes_of(64, 24, &target), 2 * stage + all);
    cr_expect_eq(shared_bytes_of(64, 32, &ampere), 4 * stage);
}

/* Every plan fits its device. */
Test(linear_plan, shared_memory_fits)
{
    static const fa__target *const targets[] = {&target, &ampere, &turing};
    for (size_t t = 0; t < 3; t++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int m = 1; m <= 8192; m *= 8)
                for (int n = 16; n <= 4096; n *= 16) {
                    const fa__plan p = plan_of(
                        (fa_linear_spec){.dtype = (fa_dtype)dtype, .m = m, .n = n, .k = 1024},
                        targets[t]);
                    cr_expect_leq(p.smem_dynamic_bytes + 64, targets[t]->smem_optin, "%s", p.text);
                    cr_expect_geq(p.value[LINEAR_STAGES], 2, "%s", p.text);
                    cr_expect(p.block_threads >= 32 && p.block_threads <= 1024, "%s", p.text);
                }
}

Test(linear_plan, tiles_follow_the_size_and_can_be_forced)
{
    fa__plan p = plan_of((fa_linear_spec){.m = 8192, .n = 2048, .k = 512, .splits = 1}, &target);
    cr_expect_eq(p.value[LINEAR_TILE_M], 128, "%s", p.text);
    cr_expect_eq(p.value[LINEAR_TILE_N], 128, "%s", p.text);
    cr_expect(strstr(p.text, "tiles of 128 x 128 x 32"), "%s", p.text);
    p = plan_of((fa_linear_spec){.dtype = FA_BF16, .m = 8192, .n = 512, .k = 4096}, &target);
    cr_expect_eq(p.value[LINEAR_TILE_M], 256, "%s", p.text);
    p = plan_of((fa_linear_spec){.m = 384, .n = 48, .k = 256}, &target);
    cr_expect_leq(p.value[LINEAR_TILE_M] * p.value[LINEAR_TILE_N], 512, "%s", p.text);
    p = plan_of(
        (fa_linear_spec){.m = 384, .n = 48, .k = 256, .tile_m = 64, .tile_n = 64, .stages = 3},
        &target);
    cr_expect_eq(p.value[LINEAR_TILE_M], 64, "%s", p.text);
    cr_expect_eq(p.value[LINEAR_STAGES], 3, "%s", p.text);
}

static long long cost_of(fa_linear_spec s)
{
    const fa__plan plan = plan_of(s, &target);
    const char *cost = strstr(plan.text, "cost ");
    cr_assert_not_null(cost, "%s", plan.text);
    return atoll(cost + strlen("cost "));
}

/* Whose clocks no integer holds. */
Test(linear_plan, costs_of_the_largest_sizes)
{
    enum { MOST = LINEAR_MAX_SIZE, LARGE = 1 << 20 };
    for (int dtype = FA_F32; dtype <= FA_BF16; dtype++)
        for (int splits = 0; splits <= LINEAR_MAX_SPLITS && (!splits || dtype == FA_F32);
             splits += LINEAR_MAX_SPLITS) {
            fa_linear_spec s = {.dtype = (fa_dtype)dtype, .m = LARGE, .n = LARGE, .k = LARGE};
            s.splits = splits;
            const long long large = cost_of(s);
            s.m = s.n = s.k = MOST;
            cr_expect_gt(large, 0);
            cr_expect_gt(cost_of(s), large);
            s.tile_m = s.tile_n = 16;
            cr_expect_gt(cost_of(s), large);
        }
}

Test(linear_plan, widest_stores_that_the_baked_sizes_allow)
{
    const struct {
        fa_linear_spec linear;
        int width;
    } cases[] = {
        {{.n = 64}, 4},
        {{.n = 63}, 1},
        {{0}, 4},
        {{.dtype = FA_BF16, .n = 72}, 8},
        {{.dtype = FA_BF16, .n = 72, .split_1 = 36}, 4},
        {{.dtype = FA_BF16, .n = 72, .output = FA_LINEAR_OUT_F32}, 4},
        {{.dtype = FA_BF16, .n = 144, .rotation = HALF, .head_dim = 72}, 4}, /* 36 pairs */
        {{.dtype = FA_BF16, .n = 144, .rotation = PAIRS, .head_dim = 72}, 8},
        {{.dtype = FA_BF16, .n = 144, .rotation = PAIRS, .head_dim = 72, .rotary_dim = 36}, 4},
        {{.n = 12, .rotation = HALF, .head_dim = 6, .rotary_dim = 2}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(plan_of(cases[i].linear, &target).value[LINEAR_VECTOR_WIDTH], cases[i].width,
                     "case %zu", i);
}

/* --- sources --- */

static char *source_of(fa_linear_spec linear, char label[160])
{
    return prepared_source(linear_spec(linear), "fajit_linear", label);
}

Test(linear_source, constants_stand_in_front_of_the_template)
{
    char label[160];
    char *text = source_of((fa_linear_spec){.dtype = FA_BF16,
                                            .operands = FA_LINEAR_E4M3,
                                            .output = FA_LINEAR_OUT_F32,
                                            .scales = FA_LINEAR_SCALE_ROW,
                                            .activation = FA_LINEAR_SILU,
                                            .bias = true,
                                            .residual = true,
                                            .mapped_rows = true,
                                            .row_type = FA_I64,
                                            .n = 256,
                                            .k = 512,
                                            .split_1 = 128,
                                            .rotation = HALF,
                                            .head_dim = 64,
                                            .rotary_dim = 32,
                                            .rotated = 128,
                                            .base = 500000},
                           label);
    const char *const lines[] = {"using Element = fajit::fp8_e4m3;\n",
                                 "using Addend = fajit::bf16;\n",
                                 "using Output = float;\n",
                                 "constexpr int ARITHMETIC = 1;\n",
                                 "constexpr int N = 256;\n",
                                 "constexpr int K = 512;\n",
                                 "constexpr int SCALES = 2;\n",
                                 "constexpr int ACTIVATION = 1;\n",
                                 "constexpr int SPLIT_1 = 128;\n",
                                 "constexpr bool BIAS = true;\n",
                                 "constexpr bool MAPPED_ROWS = true;\n",
                                 "constexpr bool ROWS_WIDE = true;\n",
                                 "constexpr int ROTATION = 1;\n",
                                 "constexpr int ROTARY_DIM = 32;\n",
                                 "constexpr int ROTATED = 128;\n",
                                 "#line 1 \"linear.cu\"\n"};
    const char *template = strstr(text, fa__template_linear.text);
    cr_assert_not_null(template);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(text, lines[i]);
        cr_expect(line && line < template, "missing in front of the template: %s", lines[i]);
    }
    cr_expect_str_eq(label,
                     "linear bf16 e4m3 to_f32 scale_row bias silu residual mapped_rows_i64 "
                     "half N256 K512 split_1=128 D64 R32 rotated=128 base=500000");
    free(text);
    free(source_of((fa_linear_spec){.m = 8, .n = 16, .k = 32, .splits = 2}, label));
    cr_expect_str_eq(label, "linear f32 M8 N16 K32 splits=2");
}

/* What cannot change the code must not split the cache; everything else must. */
Test(linear_source, F33_every_parameter_changes_the_source)
{
    const fa_linear_spec plain = {.rotation = HALF,
                                  .mapped_rows = true,
                                  .n = 256,
                                  .head_dim = 64,
                                  .rotary_dim = 64,
                                  .rotated = 128,
                                  .split_1 = 128,
                                  .tile_m = 64,
                                  .tile_n = 64,
                                  .stages = 3,
                                  .splits = 2,
                                  .base = 10000};
    enum { COUNT = 24 };
    fa_linear_spec changed[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        changed[i] = plain;
    changed[0].dtype = FA_F16;
    changed[1].operands = FA_LINEAR_E4M3;
    changed[2].output = FA_LINEAR_OUT_BF16;
    changed[3].arithmetic = FA_LINEAR_FMA;
    changed[4].scales = FA_LINEAR_SCALE_TENSOR;
    changed[5].activation = FA_LINEAR_GELU;
    changed[6].bias = true;
    changed[7].residual = true;
    changed[8].mapped_rows = false;
    changed[9].row_type = FA_I64;
    changed[10].m = 16;
    changed[11].n = 320;
    changed[12].k = 64;
    changed[13].split_1 = 192;
    changed[14].split_2 = 192;
    changed[15].rotation = PAIRS;
    changed[16].angles = FA_ROPE_TABLES;
    changed[17].position_type = FA_I64;
    changed[18].rotary_dim = 32;
    changed[19].rotated = 64;
    changed[20].tile_m = 32;
    changed[21].stages = 4;
    changed[22].splits = 1;
    changed[23].base = 10001;
    char *before = source_of(plain, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        char *after = source_of(changed[i], NULL);
        cr_expect_str_neq(before, after, "change %zu", i);
        free(after);
    }
    free(before);
}
