/* lowrank_kv without a GPU: specs and sources; and the reference against golden data. Plans are in
 * test_lowrank_kv_plan.c, launches in test_lowrank_kv_launch.c. */
#include <math.h>

#include "golden.h"
#include "lowrank_kv_spec.h"
#include "op_steps.h"
#include "ops/lowrank_kv.h"
#include "oracle/lowrank_kv.h"

/* --- specs --- */

Test(lowrank_kv_spec, refusals_name_the_field)
{
    const struct {
        fa_lowrank_kv_spec s;
        fa_status status;
        const char *word;
    } cases[] = {
        {{.rank = 0}, FA_ERR_SIZE, "rank = 0"},
        {{.rank = -1}, FA_ERR_SIZE, "rank"},
        {{.rank = 65537}, FA_ERR_LIMIT, "65536"},
        {{.rank = 48, .model_dim = INT32_MAX}, FA_ERR_LIMIT, "model_dim"},
        {{.rank = 48, .heads = 65536, .head_dim = 65536}, FA_ERR_LIMIT, "heads * head_dim"},
        {{.rank = 48, .heads = 65536, .head_dim = 1, .head_dim_v = 65536},
         FA_ERR_LIMIT,
         "heads * head_dim_v"},
        {{.rank = 48, .model_dim = -1}, FA_ERR_SIZE, "model_dim"},
        {{.rank = 48, .heads = -1}, FA_ERR_SIZE, "heads"},
        {{.rank = 48, .head_dim = -1}, FA_ERR_SIZE, "head_dim"},
        {{.rank = 48, .head_dim_v = 64}, FA_ERR_SIZE, "head_dim is not"},
        {{.rank = 48, .batch = -1}, FA_ERR_SIZE, "batch"},
        {{.rank = 48, .seqlen = -1}, FA_ERR_SIZE, "seqlen"},
        {{.rank = 48, .rope_dim = -2}, FA_ERR_SIZE, "rope_dim"},
        {{.rank = 48, .rope_dim = 1026}, FA_ERR_LIMIT, "1024"},
        {{.rank = 48, .form = FA_LOWRANK_UP, .plan = FA_LOWRANK_ONE_LAUNCH}, FA_ERR_VALUE, "plan"},
        {{.rank = 48, .form = FA_LOWRANK_DOWN, .plan = FA_LOWRANK_TWO_LAUNCHES},
         FA_ERR_VALUE,
         "plan"},
        {{.rank = 48, .tile_tokens = 24}, FA_ERR_VALUE, "tile_tokens = 24"},
        {{.rank = 48, .tile_tokens = 8}, FA_ERR_SIZE, "tile_tokens"},
        {{.rank = 48, .shares = -1}, FA_ERR_SIZE, "shares"},
        {{.rank = 48, .shares = 65}, FA_ERR_LIMIT, "64"},
        {{.rank = 48, .form = FA_LOWRANK_UP, .norm = FA_ROPE_RMS_NORM}, FA_ERR_VALUE, "norm"},
        {{.rank = 48, .norm_eps = 1e-5}, FA_ERR_VALUE, "norm_eps"},
        {{.rank = 48, .norm = FA_ROPE_RMS_NORM, .norm_eps = -1}, FA_ERR_VALUE, "norm_eps"},
        {{.rank = 48, .norm = FA_ROPE_RMS_NORM, .norm_eps = (double)NAN}, FA_ERR_VALUE, "norm_eps"},
        {{.rank = 48, .cache = FA_KV_SLOTS}, FA_ERR_VALUE, "to_cache"},
        {{.rank = 48, .cache_layout = FA_KV_HEADS_FIRST}, FA_ERR_VALUE, "to_cache"},
        {{.rank = 48, .unique = true}, FA_ERR_VALUE, "unique"},
        {{.rank = 48, .rotation = FA_KV_ROTATE_HALF}, FA_ERR_ROTARY_DIM, "rope_dim"},
        {{.rank = 48, .rotation = FA_KV_ROTATE_HALF, .rope_dim = 7},
         FA_ERR_ROTARY_DIM,
         "rope_dim = 7"},
        {{.rank = 48, .rope_once = true}, FA_ERR_VALUE, "rope_once"},
        {{.rank = 48, .rotation = FA_KV_ROTATE_HALF, .rope_dim = 8, .base = 1},
         FA_ERR_VALUE,
         "base = 1"},
        {{.rank = 48, .dtype = FA_BF16, .sums = FA_LOWRANK_SUMS_SPLIT_TF32},
         FA_ERR_VALUE,
         "split_tf32"},
        {{.rank = 48, .dtype = FA_F16, .sums = FA_LOWRANK_SUMS_TF32}, FA_ERR_VALUE, "tf32"},
        {{.rank = 48, .sums = FA_LOWRANK_SUMS_TENSOR}, FA_ERR_VALUE, "tensor"},
        {{.rank = 48, .dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{.rank = 48, .form = (fa_lowrank_form)3}, FA_ERR_VALUE, "form"},
        {{.rank = 48, .plan = (fa_lowrank_plan)3}, FA_ERR_VALUE, "plan"},
        {{.rank = 48, .sums = (fa_lowrank_sums)7}, FA_ERR_VALUE, "sums"},
        {{.rank = 48, .norm = (fa_rope_norm)3}, FA_ERR_VALUE, "norm"},
        {{.rank = 48, .rotation = (fa_kv_rotation)3}, FA_ERR_VALUE, "rotation"},
        {{.rank = 48, .position_type = (fa_index)2}, FA_ERR_VALUE, "position_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = lowrank_spec(cases[i].s);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(lowrank_kv_spec, tensor_cores_need_sm_80)
{
    static const fa__target older = {"sm_75", 75, 65536};
    fa__plan plan;
    fa_spec spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 48});
    OK(prepare_for(&spec, &plan, &older));
    cr_expect_eq(spec.lowrank_kv.sums, FA_LOWRANK_SUMS_CHUNKED);
    spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 48, .sums = FA_LOWRANK_SUMS_SPLIT_TF32});
    REFUSED(prepare_for(&spec, &plan, &older), FA_ERR_UNSUPPORTED, "sm_75");
    spec = lowrank_spec(
        (fa_lowrank_kv_spec){.rank = 48, .dtype = FA_BF16, .sums = FA_LOWRANK_SUMS_TENSOR});
    REFUSED(prepare_for(&spec, &plan, &older), FA_ERR_UNSUPPORTED, "chunked");
}

/* Specs that mean the same share a kernel. */
Test(lowrank_kv_spec, defaults_are_filled_in)
{
    fa__plan plan;
    fa_spec spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 48,
                                                     .head_dim = 32,
                                                     .norm = FA_ROPE_RMS_NORM,
                                                     .slot_type = FA_I64,
                                                     .position_type = FA_I64,
                                                     .base = 5000});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.lowrank_kv.sums, FA_LOWRANK_SUMS_SPLIT_TF32);
    cr_expect_eq(spec.lowrank_kv.head_dim_v, 32);
    cr_expect_eq(spec.lowrank_kv.norm_eps, 1e-6);
    cr_expect_eq(spec.lowrank_kv.slot_type, FA_I32);
    cr_expect_eq(spec.lowrank_kv.position_type, FA_I32);
    cr_expect_eq(spec.lowrank_kv.base, 0.0);
    spec = lowrank_spec((fa_lowrank_kv_spec){.rank = 48,
                                             .dtype = FA_BF16,
                                             .form = FA_LOWRANK_DOWN,
                                             .heads = 4,
                                             .head_dim = 8,
                                             .rope_dim = 8});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.lowrank_kv.sums, FA_LOWRANK_SUMS_TENSOR);
    cr_expect_eq(spec.lowrank_kv.heads, 0);
    cr_expect_eq(spec.lowrank_kv.head_dim, 0);
    cr_expect(spec.lowrank_kv.rope_once);
}

/* --- sources --- */

static char *source_of(fa_lowrank_kv_spec s, char label[160])
{
    return prepared_source(lowrank_spec(s), "fajit_lowrank_kv<0>", label);
}

Test(lowrank_kv_source, constants_stand_in_front_of_the_template)
{
    char label[160];
    char *text = source_of((fa_lowrank_kv_spec){.dtype = FA_BF16,
                                                .norm = FA_ROPE_RMS_NORM_F32,
                                                .norm_eps = 1e-5,
                                                .to_cache = true,
                                                .cache = FA_KV_BLOCK_TABLE,
                                                .rotation = FA_KV_ROTATE_INTERLEAVED,
                                                .rope_dim = 64,
                                                .model_dim = 5120,
                                                .rank = 512,
                                                .heads = 16,
                                                .head_dim = 128,
                                                .base = 500000},
                           label);
    const char *const lines[] = {
        "using Element = fajit::bf16;\n",    "using NormWeight = float;\n",
        "constexpr int FORM = 0;\n",         "constexpr int SUMS = 4;\n",
        "constexpr bool NORM = true;\n",     "constexpr bool TO_CACHE = true;\n",
        "constexpr int CACHE = 2;\n",        "constexpr int ROPE_DIM = 64;\n",
        "constexpr int ROTATION = 2;\n",     "constexpr int RANK = 512;\n",
        "constexpr int MODEL_DIM = 5120;\n", "constexpr lowrank_step STEPS[5] = {{1, true, {}, {",
        "#line 1 \"lowrank_kv.cu\"\n"};
    const char *template = strstr(text, fa__template_lowrank_kv.text);
    cr_assert_not_null(template);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(text, lines[i]);
        cr_expect(line && line < template, "missing in front of the template: %s", lines[i]);
    }
    cr_expect_str_eq(label,
                     "lowrank_kv bf16 whole tensor rms_f32 to_block_table interleaved M5120 "
                     "R512 G16 D128 Dr64 norm_eps=0.00001 base=500000");
    free(text);
    free(source_of(canonical, label));
    cr_expect_str_eq(label, "lowrank_kv f32 whole split_tf32 M256 R48 G4 D32 B4 S96");
}

/* What cannot change the code must not split the cache; everything else must. */
Test(lowrank_kv_source, F33_every_parameter_but_the_layout_changes_the_source)
{
    const fa_lowrank_kv_spec plain = {.to_cache = true,
                                      .cache = FA_KV_SLOTS,
                                      .rotation = FA_KV_ROTATE_HALF,
                                      .rope_dim = 64,
                                      .norm = FA_ROPE_RMS_NORM,
                                      .norm_eps = 1e-6,
                                      .rank = 48,
                                      .model_dim = 256,
                                      .head_dim = 64,
                                      .base = 10000};
    enum { COUNT = 24 }; /* `shares` are of the launch */
    fa_lowrank_kv_spec changed[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        changed[i] = plain;
    changed[0].dtype = FA_F16;
    changed[1].plan = FA_LOWRANK_TWO_LAUNCHES;
    changed[2].sums = FA_LOWRANK_SUMS_TREE;
    changed[3].norm = FA_ROPE_NO_NORM;
    changed[3].norm_eps = 0;
    changed[4].cache = FA_KV_BLOCK_TABLE;
    changed[5].unique = true;
    changed[6].rotation = FA_KV_ROTATE_INTERLEAVED;
    changed[7].angles = FA_ROPE_TABLES;
    changed[8].position_type = FA_I64;
    changed[9].slot_type = FA_I64;
    changed[10].head_dim = 72;
    changed[11].head_dim_v = 32;
    changed[12].rope_dim = 32;
    changed[13].batch = 1;
    changed[14].seqlen = 1;
    changed[15].heads = 1;
    changed[16].rank = 49;
    changed[17].model_dim = 257;
    changed[18].norm_eps = 1e-5;
    changed[19].base = 10001;
    changed[20].rope_once = true;
    changed[21].to_cache = false;
    changed[21].cache = FA_KV_DENSE;
    changed[22].tile_tokens = 32;
    changed[23].cache_layout = FA_KV_HEADS_FIRST;
    char *before = source_of(plain, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        char *after = source_of(changed[i], NULL);
        cr_expect_eq(strcmp(before, after) == 0, i == COUNT - 1, "change %zu", i);
        free(after);
    }
    free(before);
}

/* --- the reference --- */

/* tests/golden/cases.json, lowrank_kv: PyTorch in float64. */
Test(lowrank_kv_oracle, golden)
{
    static const char *const inputs[] = {"hidden", "w_down", "w_up_k", "w_up_v"};
    const fa_spec spec = lowrank_spec((fa_lowrank_kv_spec){
        .model_dim = 65, .rank = 17, .heads = 2, .head_dim = 16, .batch = 2, .seqlen = 5});
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_lowrank_kv.make_case(&spec, &spec, NULL, 1, &c, why, sizeof why), "%s",
              why);
    for (uint64_t k = 0; k < 4; k++) {
        oracle_tensor *t = oracle_find_tensor(&c, inputs[k]);
        for (size_t i = 0; i < t->count; i++)
            ((float *)t->host)[i] = oracle_uniform(11 + k, i, k ? -1 : -3, k ? 1 : 3);
    }
    oracle_lowrank_kv_expect(&c);
    const oracle_tensor *out = oracle_find_tensor(&c, "out");
    double *golden = malloc(out->count * sizeof *golden);
    cr_assert_not_null(golden);
    golden_read("lowrank_kv.out", golden, out->count);
    for (size_t i = 0; i < out->count; i++)
        cr_assert(fabs(out->expected[i] - golden[i]) <= 1e-12 * (1 + fabs(golden[i])),
                  "element %zu: %.17g, not %.17g", i, out->expected[i], golden[i]);
    free(golden);
    fa_oracle_lowrank_kv.free_case(&c);
}

/* The canonical case is held to the gate that is asked of it, and no looser one. */
Test(lowrank_kv_oracle, gates)
{
    const fa_spec spec = lowrank_spec(canonical);
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_lowrank_kv.make_case(&spec, &spec, NULL, 1, &c, why, sizeof why), "%s",
              why);
    fa_oracle_lowrank_kv.expect(&c);
    cr_expect(c.atol <= 1e-4 && c.atol > 0.99e-4, "%g", c.atol);
    cr_expect_eq(c.rtol, 1e-4);
    const oracle_tensor *out = oracle_find_tensor(&c, "out");
    double largest = 0, sum = 0;
    for (size_t i = 0; i < out->count; i++) {
        largest = fmax(largest, fabs(out->expected[i]));
        sum += out->expected[i] * out->expected[i];
    }
    cr_expect(sqrt(sum / (double)out->count) > 100, "inputs are unscaled");
    cr_expect(largest > 300 && largest < 2000, "%g", largest);
    fa_oracle_lowrank_kv.free_case(&c);
}
