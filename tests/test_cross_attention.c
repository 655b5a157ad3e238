/* cross_attention without a GPU: specs, plans and sources; and the reference against golden data.
 * Launches are in test_cross_attention_launch.c. */
#include <math.h>

#include "arch.h"
#include "cross_attention_golden.h"
#include "cross_attention_spec.h"
#include "op_steps.h"
#include "ops/cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

/* --- specs --- */

typedef struct refusal {
    fa_cross_attention_spec cross;
    fa_status status;
    const char *word;
} refusal;

static void expect_refusals(const refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fa_spec spec = cross_spec(cases[i].cross);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(cross_attention_spec, sizes_that_are_refused_are_named)
{
    static const refusal cases[] = {
        {{.heads_q = 8, .heads_k = 8}, FA_ERR_SIZE, "head_dim = 0"},
        {{.heads_q = 8, .head_dim = 32}, FA_ERR_SIZE, "heads_k = 0"},
        {{.heads_k = 8, .head_dim = 32}, FA_ERR_SIZE, "heads_q = 0"},
        {{.heads_k = 8, .head_dim = 32, .form = FA_CROSS_QUERIES}, FA_ERR_SIZE, "heads_q = 0"},
        {{.heads_q = 8, .head_dim = 32, .form = FA_CROSS_KEYS}, FA_ERR_SIZE, "heads_k = 0"},
        {{.heads_q = 8, .heads_k = 8, .head_dim = -32}, FA_ERR_SIZE, "-32"},
        {{.heads_q = 8, .heads_k = 8, .head_dim = 257}, FA_ERR_LIMIT, "256"},
        {{.heads_q = -8, .heads_k = 8, .head_dim = 32}, FA_ERR_SIZE, "heads_q"},
        {{.heads_q = 6, .heads_k = 4, .head_dim = 32}, FA_ERR_HEAD_RATIO, "heads_k = 4"},
        {{.heads_q = 4, .heads_k = 8, .head_dim = 32}, FA_ERR_HEAD_RATIO, "heads_q = 4"},
        {{.heads_q = 1 << 28, .heads_k = 1, .head_dim = 8}, FA_ERR_LIMIT, "heads_q * head_dim"},
        {{.heads_k = 1 << 28, .head_dim = 9, .form = FA_CROSS_KEYS},
         FA_ERR_LIMIT,
         "heads_k * head_dim = 2415919104"},
        {{CROSS_HEADS, .model_dim = -1}, FA_ERR_SIZE, "model_dim"},
        {{CROSS_HEADS, .model_dim = INT32_MAX}, FA_ERR_LIMIT, "model_dim"},
        {{CROSS_HEADS, .batch = -1}, FA_ERR_SIZE, "batch"},
        {{CROSS_HEADS, .seqlen_q = -1}, FA_ERR_SIZE, "seqlen_q"},
        {{CROSS_HEADS, .seqlen_q = INT32_MAX}, FA_ERR_LIMIT, "seqlen_q"},
        {{CROSS_HEADS, .seqlen_k = -1}, FA_ERR_SIZE, "seqlen_k"},
        {{CROSS_HEADS, .seqlen_k = INT32_MAX - 254}, FA_ERR_LIMIT, "2147483392"},
    };
    expect_refusals(cases, COUNT(cases));
}

Test(cross_attention_spec, choices_that_are_refused_are_named)
{
    static const refusal cases[] = {
        {{CROSS_HEADS, .rotation = PAIRS, .rotary_dim = 15}, FA_ERR_ROTARY_DIM, "rotary_dim = 15"},
        {{CROSS_HEADS, .rotation = HALF, .rotary_dim = 34}, FA_ERR_ROTARY_DIM, "head_dim = 32"},
        {{CROSS_HEADS, .rotary_dim = 16}, FA_ERR_ROTARY_DIM, "without rotation"},
        {{.heads_q = 1, .heads_k = 1, .head_dim = 33, .rotation = HALF},
         FA_ERR_ROTARY_DIM,
         "head_dim = 33"},
        {{CROSS_HEADS, .rotation = HALF, .base = 0.5}, FA_ERR_VALUE, "base"},
        {{CROSS_HEADS, .rotation = HALF, .scaling.kind = FA_ROPE_LINEAR}, FA_ERR_VALUE, "factor"},
        {{CROSS_HEADS, .scale = -1}, FA_ERR_VALUE, "scale"},
        {{CROSS_HEADS, .scale = (double)NAN}, FA_ERR_VALUE, "scale"},
        {{CROSS_HEADS, .dropout = 0.1}, FA_ERR_UNSUPPORTED, "dropout = 0.1"},
        {{CROSS_HEADS, .dropout = 1}, FA_ERR_UNSUPPORTED, "only 0"},
        {{CROSS_HEADS, .dropout = 1.5}, FA_ERR_VALUE, "dropout"},
        {{CROSS_HEADS, .dropout = -0.1}, FA_ERR_VALUE, "dropout"},
        {{CROSS_HEADS, .dropout = (double)NAN}, FA_ERR_VALUE, "dropout"},
        {{CROSS_HEADS, .dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{CROSS_HEADS, .form = (fa_cross_form)3}, FA_ERR_VALUE, "form"},
        {{CROSS_HEADS, .plan = (fa_cross_plan)3}, FA_ERR_VALUE, "plan"},
        {{CROSS_HEADS, .mask = (fa_attention_mask)3}, FA_ERR_VALUE, "mask"},
        {{CROSS_HEADS, .rotation = (fa_kv_rotation)3}, FA_ERR_VALUE, "rotation"},
        {{CROSS_HEADS, .rotation = HALF, .angles = (fa_rope_angles)3}, FA_ERR_VALUE, "angles"},
        {{CROSS_HEADS, .form = FA_CROSS_KEYS, .plan = FA_CROSS_ONE_LAUNCH}, FA_ERR_VALUE, "plan"},
        {{CROSS_HEADS, .form = FA_CROSS_QUERIES, .plan = FA_CROSS_FEW_LAUNCHES},
         FA_ERR_VALUE,
         "form = queries"},
    };
    expect_refusals(cases, COUNT(cases));
}

Test(cross_attention_spec, defaults_are_filled_in)
{
    fa__plan plan;
    fa_spec spec = cross_spec((fa_cross_attention_spec){CROSS_HEADS, .rotation = HALF});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.cross_attention.rotary_dim, 32);
    cr_expect_float_eq(spec.cross_attention.scale, 1 / sqrt(32), 1e-15);
    cr_expect_eq(spec.cross_attention.base, 10000.0);
}

/* --- plans --- */

static const char *plan_text(fa_cross_attention_spec cross, fa__plan *plan)
{
    fa_spec spec = cross_spec(cross);
    OK(prepare(&spec, plan));
    return plan->text;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

Test(cross_attention_plan, few_launches_unless_forced)
{
    static const struct {
        fa_cross_attention_spec cross;
        const char *begin;
    } cases[] = {
        {{CROSS_CANONICAL}, "3 launches: "},
        {{CROSS_CANONICAL, .plan = FA_CROSS_FEW_LAUNCHES}, "3 launches: "},
        {{CROSS_CANONICAL, .plan = FA_CROSS_ONE_LAUNCH}, "one launch: "},
        {{CROSS_HEADS}, "3 launches: "},
        {{CROSS_HEADS, .plan = FA_CROSS_ONE_LAUNCH}, "one launch: "},
        {{CROSS_HEADS, .model_dim = 256}, "3 launches: "},
        {{CROSS_HEADS, .batch = 4, .seqlen_q = 64, .seqlen_k = 128}, "3 launches: "},
        {{CROSS_CANONICAL, .form = FA_CROSS_KEYS}, "1 launch: "},
        {{CROSS_CANONICAL, .form = FA_CROSS_QUERIES}, "3 launches: "},
        {{.dtype = FA_BF16,
          .heads_q = 16,
          .heads_k = 16,
          .head_dim = 128,
          .model_dim = 2048,
          .batch = 4,
          .seqlen_q = 1024,
          .seqlen_k = 1024},
         "3 launches: "},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        fa__plan plan;
        const char *text = plan_text(cases[i].cross, &plan);
        cr_expect(begins(text, cases[i].begin), "case %zu: %s", i, text);
        const bool one = begins(text, "one launch");
        cr_expect_eq(plan.flags.cooperative, one);
        cr_expect_eq(plan.flags.programmatic, !one);
    }
}

/* One launch has the same blocks in all steps. */
static void expect_one_size(const cross_plan *p, const fa__plan *plan)
{
    const int32_t threads = (int32_t)plan->block_threads;
    cr_expect_eq(fa__linear_step_threads(&p->project), threads, "%s", plan->text);
    cr_expect_eq(fa__attention_step_threads(&p->attend), threads, "%s", plan->text);
    cr_expect_eq(fa__linear_step_threads(&p->output), threads, "%s", plan->text);
    cr_expect_geq(p->blocks, 1);
}

static void expect_enough_memory(const fa_cross_attention_spec *s, const cross_plan *p,
                                 const fa__plan *plan)
{
    const int32_t bytes = (int32_t)plan->smem_dynamic_bytes;
    cr_expect_geq(bytes, p->project.shared_bytes, "%s", plan->text);
    if (s->form == FA_CROSS_KEYS)
        return;
    cr_expect_geq(bytes, p->attend.shared_bytes, "%s", plan->text);
    cr_expect_geq(bytes, p->output.shared_bytes, "%s", plan->text);
}

static void expect_fit(const fa__target *to, fa_cross_attention_spec cross)
{
    fa_spec spec = cross_spec(cross);
    fa__plan plan;
    cross_plan p;
    const fa_status status = prepare_for(&spec, &plan, to);
    if (status && cross.plan == FA_CROSS_ONE_LAUNCH) {
        EXPECT(status, FA_ERR_UNSUPPORTED);
        return;
    }
    EXPECT(status, FA_OK);
    fa__cross_plan_get(&plan, &p);
    cr_expect_leq(plan.smem_dynamic_bytes, to->smem_optin, "%s", plan.text);
    expect_enough_memory(&spec.cross_attention, &p, &plan);
    cr_expect_null(strchr(plan.text, '?'));
    cr_expect_lt(strlen(plan.text), sizeof plan.text - 1);
    if (p.one_launch)
        expect_one_size(&p, &plan);
}

/* Of unknown sizes, very small ones and large ones. */
static void expect_sizes_fit(const fa__target *to, fa_cross_attention_spec cross)
{
    expect_fit(to, cross);
    cross.batch = cross.seqlen_q = 1;
    cross.seqlen_k = 8;
    cross.model_dim = 64;
    expect_fit(to, cross);
    cross.batch = 64;
    cross.seqlen_q = cross.seqlen_k = 4096;
    cross.model_dim = 8192;
    expect_fit(to, cross);
}

/* Every size of head, type, form, plan and architecture has a plan that fits, or one launch is
 * refused: no head needs more shared memory than a block can have. */
Test(cross_attention_plan, plans_fit)
{
    static const char *const archs[] = {"sm_70",  "sm_75",   "sm_80",  "sm_86",
                                        "sm_90a", "sm_100a", "sm_120a"};
    for (int i = 0; i < (int)COUNT(archs) * 3 * 5; i++)
        for (int dim = 1; dim <= 256; dim++) {
            const int kind = i / 3 % 5; /* of the whole: auto, one launch, few; the other forms */
            fa__target to;
            OK(fa__arch_parse(archs[i / 15], &to));
            const fa_cross_attention_spec cross = {
                .dtype = (fa_dtype)(i % 3),
                .form = (fa_cross_form)(kind > 2 ? kind - 2 : 0),
                .plan = (fa_cross_plan)(kind > 2 ? 0 : kind),
                .rotation = dim % 2 ? FA_KV_ROTATE_NONE : PAIRS,
                .heads_q = 4,
                .heads_k = 2,
                .head_dim = dim,
            };
            expect_sizes_fit(&to, cross);
        }
}

/* --- the instantiated source --- */

static char *source_of(fa_cross_attention_spec cross, char label[160])
{
    return prepared_source(cross_spec(cross), "fajit_cross_attention<0>", label);
}

static const fa_cross_attention_spec variants[] = {
    {CROSS_HEADS, .rotation = PAIRS},
    {CROSS_HEADS, .rotation = HALF},
    {CROSS_HEADS},
    {CROSS_HEADS, .rotation = PAIRS, .dtype = FA_F16},
    {CROSS_HEADS, .rotation = PAIRS, .dtype = FA_BF16},
    {CROSS_HEADS, .rotation = PAIRS, .form = FA_CROSS_QUERIES},
    {CROSS_HEADS, .rotation = PAIRS, .form = FA_CROSS_KEYS},
    {CROSS_HEADS, .rotation = PAIRS, .plan = FA_CROSS_ONE_LAUNCH},
    {CROSS_HEADS, .rotation = PAIRS, .mask = FA_ATTENTION_CAUSAL},
    {CROSS_HEADS, .rotation = PAIRS, .mask = FA_ATTENTION_CAUSAL_TOP_LEFT},
    {CROSS_HEADS, .rotation = PAIRS, .bias = true},
    {CROSS_HEADS, .rotation = PAIRS, .bias_out = true},
    {CROSS_HEADS, .rotation = PAIRS, .angles = FA_ROPE_TABLES},
    {CROSS_HEADS, .rotation = PAIRS, .angles = FA_ROPE_FREQUENCIES},
    {CROSS_HEADS, .rotation = PAIRS, .model_dim = 256},
    {.heads_q = 16, .heads_k = 8, .head_dim = 32, .rotation = PAIRS},
    {.heads_q = 8, .heads_k = 4, .head_dim = 32, .rotation = PAIRS},
    {.heads_q = 8, .heads_k = 8, .head_dim = 64, .rotation = PAIRS},
    {CROSS_HEADS, .rotation = PAIRS, .rotary_dim = 16},
    {CROSS_HEADS, .rotation = PAIRS, .batch = 1},
    {CROSS_HEADS, .rotation = PAIRS, .seqlen_q = 1},
    {CROSS_HEADS, .rotation = PAIRS, .seqlen_k = 1},
    {CROSS_HEADS, .rotation = PAIRS, .scale = 0.5},
    {CROSS_HEADS, .rotation = PAIRS, .base = 500000},
    {CROSS_HEADS, .rotation = PAIRS, .scaling = {.kind = FA_ROPE_LINEAR, .factor = 2}},
};

Test(cross_attention_source, F33_every_parameter_changes_the_source)
{
    char *text[COUNT(variants)], label[COUNT(variants)][160];
    for (size_t i = 0; i < COUNT(variants); i++) {
        text[i] = source_of(variants[i], label[i]);
        for (size_t k = 0; k < i; k++) {
            cr_expect_str_neq(text[i], text[k], "%zu and %zu", i, k);
            cr_expect_str_neq(label[i], label[k], "%zu and %zu", i, k);
        }
    }
    for (size_t i = 0; i < COUNT(variants); i++)
        free(text[i]);
}

/* Specs that mean the same share a kernel. */
Test(cross_attention_source, what_does_not_count_changes_nothing)
{
    static const fa_cross_attention_spec same[][2] = {
        {{CROSS_HEADS, .rotation = PAIRS},
         {CROSS_HEADS, .rotation = PAIRS, .plan = FA_CROSS_FEW_LAUNCHES}},
        {{CROSS_HEADS, .rotation = PAIRS},
         {CROSS_HEADS, .rotation = PAIRS, .rotary_dim = 32, .base = 10000, .dropout = 0}},
        {{CROSS_HEADS}, {CROSS_HEADS, .angles = FA_ROPE_TABLES, .base = 500000}},
        {{CROSS_HEADS, .form = FA_CROSS_KEYS},
         {.heads_q = 1 << 28,
          .heads_k = 8,
          .head_dim = 32,
          .form = FA_CROSS_KEYS,
          .seqlen_q = 7,
          .scale = 3,
          .mask = FA_ATTENTION_CAUSAL,
          .bias_out = true}},
    };
    for (size_t i = 0; i < COUNT(same); i++) {
        char *a = source_of(same[i][0], NULL), *b = source_of(same[i][1], NULL);
        cr_expect_str_eq(a, b, "pair %zu", i);
        free(a);
        free(b);
    }
}

/* A function for each launch. */
Test(cross_attention_source, functions_of_a_plan)
{
    static const struct {
        fa_cross_attention_spec cross;
        size_t further;
    } cases[] = {{{CROSS_CANONICAL, .plan = FA_CROSS_ONE_LAUNCH}, 0},
                 {{CROSS_CANONICAL, .plan = FA_CROSS_FEW_LAUNCHES}, 2},
                 {{CROSS_HEADS, .form = FA_CROSS_QUERIES}, 2},
                 {{CROSS_HEADS, .form = FA_CROSS_KEYS}, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        fa_spec spec = cross_spec(cases[i].cross);
        fa__plan plan;
        fa__program program = {0};
        OK(prepare(&spec, &plan));
        OK(fa__program_make(&fa__op_cross_attention, &spec, &plan, &program));
        size_t further = 0;
        while (further < FA__MAX_FUNCTIONS && program.further_entries[further])
            further++;
        cr_expect_eq(further, cases[i].further, "case %zu", i);
        fa__program_free(&program);
    }
}

/* --- the reference --- */

Test(cross_attention_oracle, golden)
{
    static const fa_kv_rotation rotations[] = {PAIRS, HALF};
    for (int i = 0; i < 2; i++) {
        const fa_spec spec = golden_cross_spec(rotations[i]);
        oracle_case c;
        char why[256] = "";
        cr_assert(fa_oracle_cross_attention.make_case(&spec, &spec, NULL, 1, &c, why, sizeof why),
                  "%s", why);
        golden_cross_fill(&c);
        double *golden = golden_cross_read(&c);
        const oracle_tensor *out = oracle_find_tensor(&c, "out");
        for (size_t k = 0; k < out->count; k++)
            cr_expect(fabs(out->expected[k] - golden[k]) < 1e-12, "rotation %d, element %zu: %.17g",
                      (int)rotations[i], k, out->expected[k]);
        free(golden);
        fa_oracle_cross_attention.free_case(&c);
    }
}
