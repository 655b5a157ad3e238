/* attention without a GPU: specs, plans, sources; and the reference against golden data. Launches are in
 * test_attention_launch.c. */
#include <math.h>

#include "attention_spec.h"
#include "golden.h"
#include "op_steps.h"
#include "ops/attention.h"
#include "oracle/attention.h"

/* --- specs --- */

Test(attention_spec, refusals_name_the_field)
{
    const struct {
        fa_attention_spec attention;
        fa_status status;
        const char *word;
    } cases[] = {
        {{.head_dim = 0}, FA_ERR_SIZE, "head_dim = 0"},
        {{.head_dim = -64}, FA_ERR_SIZE, "-64"},
        {{.head_dim = 257}, FA_ERR_LIMIT, "256"},
        {{.head_dim = 64, .head_dim_v = 257}, FA_ERR_LIMIT, "head_dim_v"},
        {{.head_dim = 64, .head_dim_v = -1}, FA_ERR_SIZE, "head_dim_v"},
        {{.head_dim = 64, .batch = -1}, FA_ERR_SIZE, "batch"},
        {{.head_dim = 64, .seqlen_q = -1}, FA_ERR_SIZE, "seqlen_q"},
        {{.head_dim = 64, .seqlen_k = -1}, FA_ERR_SIZE, "seqlen_k"},
        {{.head_dim = 64, .heads_q = 6, .heads_k = 4}, FA_ERR_HEAD_RATIO, "heads_k = 4"},
        {{.head_dim = 64, .scale = -1}, FA_ERR_VALUE, "scale"},
        {{.head_dim = 64, .scale = (double)NAN}, FA_ERR_VALUE, "scale"},
        {{.head_dim = 64, .dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{.head_dim = 64, .mask = (fa_attention_mask)3}, FA_ERR_VALUE, "mask"},
        {{.head_dim = 64, .tiles = (fa_attention_tiles)4}, FA_ERR_VALUE, "tiles"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = attention_spec(cases[i].attention);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(attention_spec, defaults_are_filled_in)
{
    for (int dim = 1; dim <= 256; dim++) {
        fa__plan plan;
        fa_spec spec = attention_spec((fa_attention_spec){.head_dim = dim});
        OK(prepare(&spec, &plan));
        cr_expect_eq(spec.attention.head_dim_v, dim);
        cr_expect_float_eq(spec.attention.scale, 1 / sqrt(dim), 1e-15);
    }
}

/* Every size of head, type, size of tiles and architecture has a plan that fits. */
Test(attention_spec, plans_fit)
{
    static const fa__target targets[] = {{"sm_75", 75, 64 * 1024},
                                         {"sm_80", 80, 163 * 1024},
                                         {"sm_86", 86, 99 * 1024},
                                         {"sm_90a", 90, 227 * 1024}};
    for (int i = 0; i < 4 * 3 * 4; i++)
        for (int dim = 1; dim <= 256; dim++) {
            const fa__target *to = &targets[i % 4];
            fa__plan plan;
            fa_spec spec = attention_spec((fa_attention_spec){.dtype = (fa_dtype)(i / 4 % 3),
                                                              .tiles = (fa_attention_tiles)(i / 12),
                                                              .head_dim = dim,
                                                              .head_dim_v = 257 - dim});
            OK(prepare_for(&spec, &plan, to));
            cr_expect_leq(plan.smem_dynamic_bytes, to->smem_optin);
            cr_expect_geq(plan.value[ATTENTION_MIN_BLOCKS], 1);
            cr_expect_null(strchr(plan.text, '?'));
            cr_expect_lt(strlen(plan.text), sizeof plan.text - 1);
        }
}

Test(attention_spec, work_that_leaves_multiprocessors_idle_is_cut_finer)
{
    const struct {
        fa_attention_spec attention;
        int rows, key_warps;
    } cases[] = {
        {{.head_dim = 32}, 64, 1}, /* not known */
        {{.head_dim = 32, .batch = 4, .heads_q = 8, .seqlen_q = 64}, 16, 4},
        {{.head_dim = 32, .batch = 16, .heads_q = 8, .seqlen_q = 64}, 64, 1},
        {{.head_dim = 32, .batch = 8, .heads_q = 8, .seqlen_q = 64}, 32, 1},
        {{.dtype = FA_BF16, .head_dim = 128, .batch = 4, .heads_q = 16, .seqlen_q = 4096}, 128, 1},
        {{.dtype = FA_BF16, .head_dim = 128, .batch = 1, .heads_q = 8, .seqlen_q = 512}, 16, 4},
        {{.dtype = FA_BF16, .head_dim = 64, .tiles = FA_ATTENTION_TILES_MEDIUM}, 64, 1},
        {{.dtype = FA_BF16, .head_dim = 64, .tiles = FA_ATTENTION_TILES_SMALL}, 16, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa__plan plan;
        fa_spec spec = attention_spec(cases[i].attention);
        OK(prepare(&spec, &plan));
        cr_expect_eq(fa__attention_rows(&plan), cases[i].rows, "case %zu: %s", i, plan.text);
        cr_expect_eq(plan.value[ATTENTION_KEY_WARPS], cases[i].key_warps, "case %zu", i);
    }
}

Test(attention_spec, widest_accesses_that_the_sizes_allow)
{
    static const int cases[][4] = {/* dtype, head_dim, load bytes */
                                   {FA_F32, 64, 16}, {FA_F32, 2, 8},  {FA_F32, 5, 4},
                                   {FA_F16, 72, 16}, {FA_F16, 12, 8}, {FA_BF16, 6, 4},
                                   {FA_BF16, 67, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa__plan plan;
        fa_spec spec = attention_spec((fa_attention_spec){
            .dtype = (fa_dtype)cases[i][0], .head_dim = 64, .head_dim_v = cases[i][1]});
        OK(prepare(&spec, &plan));
        cr_expect_eq(plan.value[ATTENTION_LOAD_BYTES_V], cases[i][2], "case %zu", i);
        cr_expect_eq(plan.value[ATTENTION_LOAD_BYTES], 16);
    }
}

/* --- sources --- */

static char *source_of(fa_attention_spec attention, char label[160])
{
    return prepared_source(attention_spec(attention), "fajit_attention", label);
}

Test(attention_source, constants_stand_in_front_of_the_template)
{
    char label[160];
    char *text = source_of((fa_attention_spec){.dtype = FA_BF16,
                                               .mask = FA_ATTENTION_CAUSAL,
                                               .tiles = FA_ATTENTION_TILES_MEDIUM,
                                               .lse = true,
                                               .head_dim = 192,
                                               .head_dim_v = 128,
                                               .batch = 2,
                                               .heads_q = 8,
                                               .heads_k = 4,
                                               .seqlen_q = 512,
                                               .seqlen_k = 1024,
                                               .scale = 0.125},
                           label);
    const char *const lines[] = {
        "using Element = fajit::bf16;\n",    "constexpr int MASK = 1;\n",
        "constexpr bool LSE = true;\n",      "constexpr int HEAD_DIM = 192;\n",
        "constexpr int HEAD_DIM_V = 128;\n", "constexpr double SCALE = 0x1p-3;\n",
        "constexpr int BATCH = 2;\n",        "constexpr int HEADS_Q = 8;\n",
        "constexpr int HEADS_K = 4;\n",      "constexpr int SEQLEN_Q = 512;\n",
        "constexpr int SEQLEN_K = 1024;\n",  "constexpr int ROW_WARPS = 4;\n",
        "#line 1 \"attention.cu\"\n"};
    const char *template = strstr(text, fa__template_attention.text);
    cr_assert_not_null(template);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(text, lines[i]);
        cr_expect(line && line < template, "missing in front of the template: %s", lines[i]);
    }
    cr_expect_str_eq(label, "attention bf16 causal lse medium D192 Dv128 B2 H8 G4 Tq512 Tk1024");
    free(text);
    free(source_of((fa_attention_spec){.head_dim = 64}, label));
    cr_expect_str_eq(label, "attention f32 full D64");
}

Test(attention_source, F33_every_parameter_but_the_layout_changes_the_source)
{
    static const fa_attention_spec variants[] = {
        {.head_dim = 64},
        {.head_dim = 64, .dtype = FA_F16},
        {.head_dim = 64, .dtype = FA_BF16},
        {.head_dim = 64, .mask = FA_ATTENTION_CAUSAL},
        {.head_dim = 64, .mask = FA_ATTENTION_CAUSAL_TOP_LEFT},
        {.head_dim = 64, .tiles = FA_ATTENTION_TILES_SMALL},
        {.head_dim = 64, .lse = true},
        {.head_dim = 72},
        {.head_dim = 64, .head_dim_v = 72},
        {.head_dim = 64, .batch = 1},
        {.head_dim = 64, .heads_q = 1},
        {.head_dim = 64, .heads_k = 1},
        {.head_dim = 64, .seqlen_q = 1},
        {.head_dim = 64, .seqlen_k = 1},
        {.head_dim = 64, .scale = 0.5},
    };
    enum { COUNT = sizeof variants / sizeof variants[0] };
    char *text[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        text[i] = source_of(variants[i], NULL);
        for (size_t k = 0; k < i; k++)
            cr_expect_str_neq(text[i], text[k], "%zu and %zu", i, k);
    }
    char *other = source_of((fa_attention_spec){.head_dim = 64, .heads_first = true}, NULL);
    cr_expect_str_eq(other, text[0], "strides are given at launch");
    free(other);
    for (size_t i = 0; i < COUNT; i++)
        free(text[i]);
}

/* --- the reference --- */

static void check_golden(const char *name, const char *output, const oracle_tensor *t)
{
    char path[80];
    double *golden = malloc(t->count * sizeof *golden);
    cr_assert_not_null(golden);
    snprintf(path, sizeof path, "attention_%s.%s", name, output);
    golden_read(path, golden, t->count);
    for (size_t i = 0; i < t->count; i++)
        cr_expect(golden[i] == t->expected[i] || fabs(golden[i] - t->expected[i]) < 1e-12,
                  "%s, element %zu: %.17g, not %.17g", path, i, t->expected[i], golden[i]);
    free(golden);
}

static void run_golden(const char *name, fa_attention_spec attention, uint64_t seed,
                       int64_t magnitude)
{
    const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {0, magnitude};
    char why[256] = "";
    oracle_case c;
    attention.heads_first = attention.lse = true;
    fa_spec spec = attention_spec(attention);
    cr_assert(fa_oracle_attention.make_case(&spec, &spec, extra, seed, &c, why, sizeof why), "%s",
              why);
    fa_oracle_attention.expect(&c);
    check_golden(name, "out", oracle_find_tensor(&c, "out"));
    check_golden(name, "lse", oracle_find_tensor(&c, "lse"));
    fa_oracle_attention.free_case(&c);
}

Test(attention_oracle, golden)
{
    static const char *const names[] = {"full", "causal_bottom_right", "causal_top_left"};
    fa_attention_spec spec = {
        .head_dim = 40, .batch = 2, .heads_q = 6, .heads_k = 2, .seqlen_q = 7, .seqlen_k = 13};
    for (int i = 0; i < 3; i++) {
        spec.mask = (fa_attention_mask)i;
        run_golden(names[i], spec, 20, 2);
    }
    run_golden("dead_rows",
               (fa_attention_spec){.mask = FA_ATTENTION_CAUSAL,
                                   .head_dim = 16,
                                   .batch = 1,
                                   .heads_q = 2,
                                   .heads_k = 2,
                                   .seqlen_q = 5,
                                   .seqlen_k = 2},
               24, 1);
}
