/* The plans of lowrank_kv, without a GPU. */
#include "lowrank_kv_spec.h"
#include "op_steps.h"
#include "ops/lowrank_kv.h"

static lowrank_plan plan_of(fa_lowrank_kv_spec s, const fa__target *on, char text[192])
{
    fa_spec spec = lowrank_spec(s);
    fa__plan plan;
    lowrank_plan p;
    cr_assert_eq(prepare_for(&spec, &plan, on), FA_OK, "%s", fa_last_error());
    fa__lowrank_plan_get(&plan, &p);
    for (int32_t i = 0; i < p.kernel_count; i++)
        cr_expect(fa__lowrank_shared_bytes(&p.kernel[i]) <= on->smem_optin);
    if (text)
        snprintf(text, 192, "%s", plan.text);
    cr_expect_lt(strlen(plan.text), sizeof plan.text - 1);
    return p;
}

Test(lowrank_kv_plan, canonical_is_one_launch_of_small_blocks)
{
    char text[192];
    const lowrank_plan p = plan_of(canonical, &target, text);
    cr_expect_eq(p.kernel_count, 1);
    cr_expect_not(p.kernel[0].is_product);
    cr_expect_eq(p.kernel[0].small.rows, 16);
    cr_expect_eq(p.kernel[0].small.down_columns, 48);
    cr_expect_gt(p.kernel[0].small.shared_bytes, 48 * 1024, "which has to be opted into");
    cr_expect(strstr(text, "one launch 16 tokens x 64 columns, 2 stages at once") != NULL, "%s",
              text);
    cr_expect(strstr(text, "split tf32") != NULL, "%s", text);
}

/* A block of 16 bits has 128 columns, or 64 where there are multiprocessors for twice as many
 * blocks. */
Test(lowrank_kv_plan, columns_of_16_bits_follow_the_number_of_blocks)
{
    fa_lowrank_kv_spec s = canonical;
    s.dtype = FA_BF16;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.up_columns, 64);
    s.shares = 2;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.up_columns, 128);
    s.shares = 4;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.up_columns, 64);
    s.plan = FA_LOWRANK_ONE_LAUNCH;
    s.shares = 0;
    s.seqlen = 2048;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.up_columns, 128);
    s.dtype = FA_F32;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.up_columns, 64);
}

/* Each costs more than the one before it, as measured on an H200. */
static void expect_order(const fa_lowrank_kv_spec *s, size_t count)
{
    int32_t before = 0;
    for (size_t i = 0; i < count; i++) {
        const int32_t clocks = plan_of(s[i], &target, NULL).clocks;
        cr_expect_gt(clocks, before, "%zu: %d", i, clocks);
        before = clocks;
    }
}

Test(lowrank_kv_plan, costs_are_in_the_order_of_measured_times)
{
    fa_lowrank_kv_spec s[3] = {canonical, canonical, canonical};
    s[1].plan = FA_LOWRANK_TWO_LAUNCHES; /* us: 4.3, 5.2, 5.8 */
    s[2].tile_tokens = 32;
    expect_order(s, 3);
    s[1] = canonical;
    s[1].shares = 2; /* 5.1 */
    expect_order(s, 3);
    fa_lowrank_kv_spec halves[2] = {canonical, canonical};
    halves[0].dtype = halves[1].dtype = FA_BF16;
    halves[1].plan = FA_LOWRANK_TWO_LAUNCHES; /* us: 3.5, 4.2 */
    expect_order(halves, 2);
}

/* Sizes whose clocks no integer holds are plans, too. */
Test(lowrank_kv_plan, costs_of_the_largest_sizes)
{
    const fa_lowrank_kv_spec largest = {.dtype = FA_BF16,
                                        .model_dim = LINEAR_MAX_SIZE,
                                        .rank = 5872,
                                        .heads = 1 << 20,
                                        .head_dim = 2047,
                                        .batch = 1,
                                        .seqlen = LINEAR_MAX_SIZE};
    for (int plan = FA_LOWRANK_AUTO; plan <= FA_LOWRANK_TWO_LAUNCHES; plan++) {
        fa_lowrank_kv_spec s = largest;
        s.plan = (fa_lowrank_plan)plan;
        cr_expect_eq(plan_of(s, &target, NULL).clocks, INT32_MAX);
    }
}

/* Which of both ways takes less, as measured on an H200 in graphs (bench/RESULTS.md; some while the
 * model was made, bench/NOTES.md), is the one of `auto`. */
Test(lowrank_kv_plan, the_faster_way_at_each_number_of_tokens)
{
    static const fa_lowrank_kv_spec wide = {
        .model_dim = 384, .rank = 192, .heads = 8, .head_dim = 64};
    static const struct {
        fa_dtype dtype;
        bool wide;
        int32_t tokens, launches;
    } measured[] = {
        {FA_F32, false, 64, 1},    {FA_F32, false, 256, 1},   {FA_F32, false, 1024, 1},
        {FA_F32, false, 1536, 1},  {FA_F32, false, 2048, 1},  {FA_F32, false, 3072, 1},
        {FA_F32, false, 4096, 1},  {FA_F32, false, 8192, 2},  {FA_F32, false, 16384, 2},
        {FA_F32, true, 256, 2},    {FA_F32, true, 1024, 2},   {FA_BF16, false, 256, 1},
        {FA_BF16, false, 384, 1},  {FA_BF16, false, 1024, 1}, {FA_BF16, false, 2048, 2},
        {FA_BF16, false, 3072, 2}, {FA_BF16, false, 4096, 2}, {FA_BF16, false, 8192, 2},
        {FA_BF16, true, 64, 2},    {FA_BF16, true, 256, 2},   {FA_BF16, true, 1024, 2},
        {FA_BF16, true, 4096, 2},  {FA_BF16, true, 16384, 2},
    };
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        fa_lowrank_kv_spec s = measured[i].wide ? wide : canonical;
        s.dtype = measured[i].dtype;
        s.batch = 1;
        s.seqlen = measured[i].tokens;
        cr_expect_eq(plan_of(s, &target, NULL).kernel_count, measured[i].launches, "%d tokens, %zu",
                     s.seqlen, i);
    }
    fa_lowrank_kv_spec any = canonical; /* one kernel has blocks of 16 tokens alone */
    any.batch = any.seqlen = 0;
    cr_expect_eq(plan_of(any, &target, NULL).many_from, 4096);
    fa_lowrank_kv_spec large = canonical;
    large.batch = 1;
    large.seqlen = 3072; /* us: 10.5, 12.9 */
    cr_expect_eq(plan_of(large, &target, NULL).kernel[0].small.rows, 32);
}

/* A wide latent is worth a launch of its own; from which number of tokens on its tiles are large is
 * shown. */
Test(lowrank_kv_plan, two_launches_from_some_number_of_tokens_on)
{
    char text[192], from[64];
    const fa_lowrank_kv_spec wide = {
        .dtype = FA_BF16, .model_dim = 384, .rank = 192, .heads = 8, .head_dim = 64};
    const lowrank_plan p = plan_of(wide, &target, text);
    cr_expect_eq(p.kernel_count, 4);
    cr_expect_eq(p.few.count, 2);
    cr_expect_eq(p.many.count, 2);
    cr_expect(p.many_from >= 512 && p.many_from <= 4096, "%d", p.many_from);
    snprintf(from, sizeof from, "from %d tokens on two launches", p.many_from);
    cr_expect(strstr(text, from) != NULL, "%s", text);
    fa_lowrank_kv_spec baked = wide;
    baked.batch = 1;
    baked.seqlen = 8192;
    cr_expect_eq(plan_of(baked, &target, NULL).kernel_count, 2);
    baked.seqlen = 1;
    baked.rank = 32;
    cr_expect_eq(plan_of(baked, &target, NULL).kernel_count, 1);
    fa_lowrank_kv_spec small = canonical;
    small.batch = small.seqlen = 0;
    const int32_t from_small = plan_of(small, &target, NULL).many_from;
    cr_expect(from_small >= 512 && from_small <= 16384, "%d", from_small);
}

/* Blocks of one launch would each read all of large weights. Steps of decoding have products of
 * their own; the norm between them is the same. */
Test(lowrank_kv_plan, large_weights_have_products_for_few_tokens_and_for_many)
{
    fa_lowrank_kv_spec s = {
        .dtype = FA_BF16, .model_dim = 4096, .rank = 512, .heads = 8, .head_dim = 128};
    lowrank_plan p = plan_of(s, &target, NULL);
    cr_expect_eq(p.kernel_count, 4);
    cr_expect(p.few.count == 2 && p.many.count == 2);
    for (int32_t i = 0; i < 2; i++) {
        cr_expect(p.kernel[p.few.kernel[i]].is_product);
        cr_expect_eq(p.kernel[p.few.kernel[i]].product.tile_m, 16);
        cr_expect_geq(p.kernel[p.many.kernel[i]].product.tile_m, 128);
    }
    cr_expect(p.many_from > 16 && p.many_from <= 4096, "%d", p.many_from);
    s.norm = FA_ROPE_RMS_NORM;
    p = plan_of(s, &target, NULL);
    cr_expect_eq(p.kernel_count, 5);
    cr_expect(p.few.count == 3 && p.many.count == 3);
    cr_expect_eq(p.few.kernel[1], p.many.kernel[1]);
    cr_expect_eq(p.kernel[p.many.kernel[1]].step, STEP_NORM);
    cr_expect_eq(p.kernel[p.many.kernel[2]].step, STEP_UP);
    s.batch = 1;
    s.seqlen = 1;
    p = plan_of(s, &target, NULL);
    cr_expect_eq(p.kernel_count, 3);
    cr_expect_eq(p.kernel[p.many.kernel[0]].product.tile_m, 16);
}

Test(lowrank_kv_plan, a_plan_can_be_forced)
{
    fa_lowrank_kv_spec s = canonical;
    s.plan = FA_LOWRANK_TWO_LAUNCHES;
    cr_expect_eq(plan_of(s, &target, NULL).many.count, 2);
    s = (fa_lowrank_kv_spec){
        .plan = FA_LOWRANK_ONE_LAUNCH, .dtype = FA_BF16, .model_dim = 4096, .rank = 512};
    const lowrank_plan p = plan_of(s, &target, NULL);
    cr_expect_eq(p.few.count, 1);
    cr_expect_eq(p.many.count, 0);
    cr_expect_eq(p.kernel_count, 1);
    s.plan = FA_LOWRANK_AUTO;
    s.shares = 8;
    cr_expect_eq(plan_of(s, &target, NULL).kernel_count, 1, "shares are of one launch");
    s = canonical;
    s.tile_tokens = 32;
    cr_expect_eq(plan_of(s, &target, NULL).kernel[0].small.rows, 32);
    s.norm = FA_ROPE_RMS_NORM;
    s.plan = FA_LOWRANK_TWO_LAUNCHES;
    cr_expect_eq(plan_of(s, &target, NULL).many.count, 3, "the norm is one between them");
}

/* Where the whole does not fit, two launches may; where nothing does, the sizes are told. */
Test(lowrank_kv_plan, shared_memory_decides)
{
    static const fa__target turing = {"sm_75", 75, 65536};
    const lowrank_plan p = plan_of((fa_lowrank_kv_spec){.rank = 8192}, &target, NULL);
    cr_expect_eq(p.few.count, 2);
    cr_expect_eq(p.many.count, 2);
    fa__plan plan;
    fa_spec spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 8192, .plan = FA_LOWRANK_ONE_LAUNCH});
    REFUSED(prepare(&spec, &plan), FA_ERR_SHARED_MEMORY, "232448");
    spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 1024, .plan = FA_LOWRANK_ONE_LAUNCH});
    REFUSED(prepare_for(&spec, &plan, &turing), FA_ERR_SHARED_MEMORY, "rank = 1024");
}

/* docs/lowrank_kv.md tells the largest ranks that one launch has room for. */
Test(lowrank_kv_plan, the_largest_ranks_of_one_launch)
{
    static const fa_lowrank_kv_spec largest[] = {
        {.rank = 2960, .tile_tokens = 16},
        {.rank = 1280, .tile_tokens = 32},
        {.rank = 5872, .tile_tokens = 16, .dtype = FA_F16},
        {.rank = 2528, .tile_tokens = 32, .dtype = FA_BF16},
    };
    for (size_t i = 0; i < 4; i++) {
        fa_lowrank_kv_spec s = largest[i];
        fa__plan plan;
        cr_expect_eq(plan_of(s, &target, NULL).kernel_count, 1);
        s.rank++;
        cr_expect_gt(plan_of(s, &target, NULL).kernel_count, 1);
        s.plan = FA_LOWRANK_ONE_LAUNCH;
        fa_spec spec = lowrank_spec(s);
        REFUSED(prepare(&spec, &plan), FA_ERR_SHARED_MEMORY, "232448");
    }
}

/* Each number of tokens, rank and data type has a plan that fits every architecture it is for. */
Test(lowrank_kv_plan, every_size_has_one)
{
    static const fa__target targets[] = {{"sm_75", 75, 65536},
                                         {"sm_80", 80, 166912},
                                         {"sm_86", 86, 101376},
                                         {"sm_90a", 90, 232448},
                                         {"sm_120a", 120, 101376}};
    static const int ranks[] = {1, 17, 31, 32, 33, 48, 64, 127, 128, 129, 256, 512};
    static const fa_lowrank_sums sums[] = {FA_LOWRANK_SUMS_DEFAULT, FA_LOWRANK_SUMS_DOUBLE,
                                           FA_LOWRANK_SUMS_TREE};
    for (size_t t = 0; t < 5; t++)
        for (size_t r = 0; r < 12; r++)
            for (int dtype = 0; dtype < 3; dtype++)
                for (int form = 0; form < 3; form++)
                    for (size_t k = 0; k < 3; k++)
                        plan_of((fa_lowrank_kv_spec){.rank = ranks[r],
                                                     .dtype = (fa_dtype)dtype,
                                                     .form = (fa_lowrank_form)form,
                                                     .sums = sums[k]},
                                &targets[t], NULL);
}
