/* cross_attention on a device where numbers are hard: large scores, tokens outside the tables. */
#include <math.h>

#include "gpu_cross_attention.h"
#include "oracle/make.h"

#define TYPES_AND_PLANS 6

/* Each type by each plan. */
static fa_cross_attention_spec with_type_and_plan(fa_cross_attention_spec spec, int i)
{
    spec.dtype = (fa_dtype)(i / 2);
    spec.plan = (fa_cross_plan)(FA_CROSS_ONE_LAUNCH + i % 2);
    return spec;
}

static void warm_types_and_plans(fa_context *ctx, fa_cross_attention_spec spec)
{
    fa_cross_attention_spec all[TYPES_AND_PLANS];
    for (int i = 0; i < TYPES_AND_PLANS; i++)
        all[i] = with_type_and_plan(spec, i);
    warm_cross(ctx, all, TYPES_AND_PLANS);
}

/* --- large scores --- */

/* In every plan, and finite in 16 bits too, where the gate is that of factors that are rounded. */
Test(gpu_cross_attention_numbers, scores_of_a_thousand)
{
    static const int64_t steep[ORACLE_CROSS_EXTRA_COUNT] = {0, 1, 26};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_types_and_plans(ctx, (fa_cross_attention_spec){CROSS_DYNAMIC});
    for (int i = 0; i < TYPES_AND_PLANS; i++) {
        const fa_cross_attention_spec spec =
            with_type_and_plan((fa_cross_attention_spec){CROSS_DYNAMIC}, i);
        fa_kernel *kernel = compile_cross(ctx, spec);
        gpu_case g;
        make_cross(&g, spec, cross_sized(spec, 1, 65, 129, 64), steep, 1);
        cr_assert_gt(g.c.atol, 1e-4, "scores are large");
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

static void set_element(oracle_tensor *t, size_t i, double x)
{
    oracle_store(t->dtype, (char *)t->host + i * (t->bytes / t->count), &x, 1);
}

/* x that begins each head with `first` or so, and small integers. */
static void fill_integers(oracle_tensor *t, double first, double spread)
{
    for (size_t i = 0; i < t->count; i++) {
        const double r = fmin(fmax(round(oracle_element(t, (int64_t)i)), -2), 2);
        set_element(t, i, i % 32 == 0 ? first + spread * r : r);
    }
}

/* `by` in column n % columns of row n. */
static void fill_diagonal(oracle_tensor *t, size_t columns, double by)
{
    for (size_t i = 0; i < t->count; i++)
        set_element(t, i, i / columns % columns == i % columns ? by : 0);
}

static void fill_exact(gpu_case *g)
{
    fill_integers(tensor_of(g, "x_query"), 32, 0);
    fill_integers(tensor_of(g, "x_kv"), 30, 1);
    fill_diagonal(tensor_of(g, "w_q"), 64, 8);
    fill_diagonal(tensor_of(g, "w_k"), 64, 8);
    fill_diagonal(tensor_of(g, "w_v"), 64, 0x1p-4);
    oracle_cross_attention_expect(&g->c);
    if (g->c.spec.cross_attention.dtype == FA_F32) {
        cr_assert_gt(g->c.atol, 1e-4, "scores are large");
        g->c.atol = 1e-5;
    }
}

/* q, k and v are numbers that every type holds, and the scores, up to 1100 and close together, such
 * as float32 holds. Then the gate is that of small scores. */
Test(gpu_cross_attention_numbers, exact_scores_of_a_thousand)
{
    const fa_cross_attention_spec plain = {
        .heads_q = 4, .heads_k = 2, .head_dim = 32, .scale = 0x1p-6};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_types_and_plans(ctx, plain);
    for (int i = 0; i < TYPES_AND_PLANS; i++) {
        const fa_cross_attention_spec spec = with_type_and_plan(plain, i);
        fa_kernel *kernel = compile_cross(ctx, spec);
        gpu_case g;
        make_cross(&g, spec, cross_sized(spec, 1, 65, 129, 64), NULL, 1);
        fill_exact(&g);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- tables --- */

/* Tokens behind the tables give NaN, in their own rows alone. */
Test(gpu_cross_attention_numbers, queries_outside_the_tables_give_nan)
{
    static const int64_t few_rows[ORACLE_CROSS_EXTRA_COUNT] = {0, 1, 1, 0, 37, 5, 40};
    const fa_cross_attention_spec spec = {CROSS_DYNAMIC, .angles = FA_ROPE_TABLES};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    make_cross(&g, spec, cross_sized(spec, 1, 5, 19, 40), few_rows, 1);
    for (int i = 3 * 40; i < 5 * 40; i++)
        tensor_of(&g, "out")->expected[i] = (double)NAN;
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
