/* Would the tests of linear notice? Faults are put into copies of its template, one at a time, and the
 * comparison with the reference has to fail. */
#include <math.h>

#include "gpu_linear.h"
#include "gpu_mutant.h"
#include "ops/linear.h"

#define TILE .tile_m = 32, .tile_n = 32

/* What one fault is seen with; sizes are M = 70, N = 96, K = 90. */
static const fa_linear_spec plain = {TILE, .splits = 1};
static const fa_linear_spec large = {.tile_m = 128, .tile_n = 64, .splits = 1};
static const fa_linear_spec split = {TILE, .splits = 3, .stages = 2};
static const fa_linear_spec finished = {TILE,
                                        .splits = 1,
                                        .dtype = FA_BF16,
                                        .output = FA_LINEAR_OUT_F32,
                                        .scales = FA_LINEAR_SCALE_ROW,
                                        .activation = FA_LINEAR_GELU,
                                        .bias = true,
                                        .residual = true};
static const fa_linear_spec rotated = {
    TILE,           .splits = 1,        .rotation = FA_KV_ROTATE_HALF,
    .head_dim = 24, .rotary_dim = 16,   .rotated = 48,
    .split_1 = 48,  .mapped_rows = true};
static const fa_linear_spec neighbours = {TILE, .splits = 1, .rotation = FA_KV_ROTATE_INTERLEAVED,
                                          .head_dim = 32, .residual = true};

static const fa_linear_spec tall = {
    .tile_m = 128, .tile_n = 64, .splits = 1, .rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 32};

/* Heads begin where no four pairs do. */
static const fa_linear_spec partial = {.tile_m = 64,
                                       .tile_n = 64,
                                       .splits = 1,
                                       .rotation = FA_KV_ROTATE_INTERLEAVED,
                                       .head_dim = 20,
                                       .rotary_dim = 8,
                                       .rotated = 80};

static const fa_linear_spec halves = {.arithmetic = FA_LINEAR_SPLIT_F16,
                                      .tile_m = 64,
                                      .tile_n = 64,
                                      .rotation = FA_KV_ROTATE_HALF,
                                      .head_dim = 32};

typedef struct linear_mutant {
    const fa_linear_spec *spec;
    mutant change; /* to the instantiated source, with these headers in it */
} linear_mutant;

static const char *const inner[] = {"fajit/linear.cuh",          "fajit/linear_finish.cuh",
                                    "fajit/linear_angles.cuh",   "fajit/linear_parts_multiply.cuh",
                                    "fajit/linear_multiply.cuh", "fajit/linear_load.cuh",
                                    "fajit/linear_parts.cuh",    "fajit/linear_shape.cuh",
                                    "fajit/multiply.cuh",        "fajit/rotary.cuh"};

static const linear_mutant mutants[] = {
    {&plain,
     {"tiles of weights transposed", "(b.n + mine.row) * w.stride + mine.column() + next",
      "(next + mine.row) * w.stride + mine.column() + b.n"}},
    {&plain,
     {"the rest of k left out", "(b.end - b.begin + shape::TILE_K - 1) / shape::TILE_K",
      "(b.end - b.begin) / shape::TILE_K"}},
    {&plain,
     {"the first tile of x twice", "x.stride + jump + mine.column() + next",
      "x.stride + jump + mine.column() + (next > TILE_K ? next : 0)"}},
    {&plain,
     {"small part of x left out", "sum = mma(n == 0 ? x.small",
      "if (n) sum = mma(n == 0 ? x.small"}},
    {&plain,
     {"small part of w left out", "sum = mma(n == 0 ? x.small",
      "if (n != 1) sum = mma(n == 0 ? x.small"}},
    {&plain, {"the second slice forgets the first", "if (s < planes) {", "if (false) {"}},
    {&plain, {"steps of B swapped", "next.word[0] = word[2];", "next.word[0] = word[3];"}},
    {&plain,
     {"infinities left as they are", "linear_repair<shape>(p, b, sums, found);",
      "__syncthreads();"}},
    {&large,
     {"rows of a thread forgotten", "round < ROUNDS; round += AT_ONCE",
      "round < AT_ONCE; round += AT_ONCE"}},
    {&large,
     {"one of its rows stored for all", "put(columns, units[i])", "put(columns, units[0])"}},
    {&large,
     {"one of its rows made for all", "first + (round + i) * ABREAST", "first + round * ABREAST"}},
    {&halves, {"low half of x left out", "sum[i] = mma(x[i].low[s], by.high[s], sum[i]);", ";"}},
    {&halves, {"low half of w left out", "sum[i] = mma(x[i].high[s], by.low[s], sum[i]);", ";"}},
    {&halves, {"high halves left out", "sum[i] = mma(x[i].high[0], by.high[0], sum[i]);", ";"}},
    {&halves,
     {"low halves not scaled up", "__fmul_rn(__fsub_rn(low[i], high[i]), PARTS_LOW_SCALE)",
      "__fsub_rn(low[i], high[i])"}},
    {&halves,
     {"low halves not scaled down", "__fmul_rn(sum[i].value[e], PARTS_LOW_UNIT)",
      "sum[i].value[e]"}},
    {&halves, {"scale of the first row of x", "? of_x[m] : 0", "? of_x[0] : 0"}},
    {&halves, {"scale of the first row of w", "? of_w[S::column_of(p, n)] : 0", "? of_w[0] : 0"}},
    {&halves, {"scale of another column's w", "? of_w[S::column_of(p, n)] : 0", "? of_w[n] : 0"}},
    {&halves, {"scale of w ignored", "? of_w[S::column_of(p, n)] : 0", "? 1 : 0"}},
    {&halves,
     {"columns of the tile before", "its_stage = last ? next : stage,", "its_stage = stage,"}},
    {&halves,
     {"infinities left as they are", "linear_repair<shape>(p, b, sums, found);",
      "__syncthreads();"}},
    {&split, {"only the first split counts", "s < p.splits; s++", "s < 1; s++"}},
    {&split, {"arrivals left for the next launch", "p.arrived[b.tile] = 0;", ";"}},
    {&split,
     {"each split from the beginning", "b.begin = C::MAY_SPLIT ? part * p.split_k : 0;",
      "b.begin = 0;"}},
    {&finished,
     {"activation before bias",
      "            if constexpr (S::BIAS)\n"
      "                x = __fadd_rn(x, c.bias[e / V][e % V]);\n"
      "            x = linear_activated<S::ACTIVATION>(x);\n",
      "            x = __fadd_rn(linear_activated<S::ACTIVATION>(x), c.bias[e / V][e % V]);\n"}},
    {&finished, {"gelu by tanh for gelu", "int ACTIVATION = 2;", "int ACTIVATION = 3;"}},
    {&finished, {"no activation", "int ACTIVATION = 2;", "int ACTIVATION = 0;"}},
    {&finished, {"scale of the first column", "p.w_scale[c.n[r] + i]", "p.w_scale[c.n[r]]"}},
    {&finished, {"scale of the first row", "p.x_scale[m]", "p.x_scale[0]"}},
    {&finished, {"no bias", "x = __fadd_rn(x, c.bias[e / V][e % V]);", ";"}},
    {&finished,
     {"no residual", "x[r][i] = __fadd_rn(mine.x[r][i], other[i]);", "x[r][i] = mine.x[r][i];"}},
    {&rotated, {"interleaved for half", "int ROTATION = 1;", "int ROTATION = 2;"}},
    {&neighbours, {"half for interleaved", "int ROTATION = 2;", "int ROTATION = 1;"}},
    {&rotated, {"not rotated", "both.rotate(by);", ";"}},
    {&rotated,
     {"all columns rotated", "C::ROTATED == LINEAR_ROTATED_ALL || column < heads", "true"}},
    {&rotated,
     {"angles of the row before", "const int first = row * PAIRS",
      "const int first = max(row - 1, 0) * PAIRS"}},
    {&rotated, {"angles of other pairs", "column / 2 % PAIRS", "(column / 2 + 4) % PAIRS"}},
    {&rotated, {"position shifted", "one_position{position}", "one_position{position + 1}"}},
    {&neighbours, {"another pair of the head", "row), at / 2)", "row), (at / 2 + 4) % 16)"}},
    {&partial, {"pairs in fours", "S::HEAD / 2 | ", ""}},
    {&tall,
     {"pair of the head before", "c.n[0] % S::HEAD / (S::HALF ? 1 : 2)", "c.n[0] % S::HEAD"}},
    {&rotated,
     {"columns of the second output shifted", "(n - begin)",
      "(output == 1 ? (n - begin + 4) % 48 : n - begin)"}},
    {&rotated, {"rows not mapped", "to.row = load_index<S::ROWS_WIDE>(p.row_of, m);", ""}},
    {&rotated, {"errors not counted", "atomicAdd(p.errors, 1u);", ";"}},
};

/* What linear.cuh can be told beside what the operation tells it. */
typedef struct telling {
    bool begins_again; /* positions are not given: 5 and up, again after every 32 rows */
    int32_t seqlen, rotated;
} telling;

/* The copy, by the functions that the operation launches. */
typedef struct copies {
    fa_kernel *function[2]; /* the second is that which makes halves, or NULL */
} copies;

static void launch_one(const copies *c, const fa__launch *l)
{
    const fa_param param = {l->params[0], sizeof(linear_kernel_params)};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.params = &param, .param_count = 1, .smem_bytes = l->smem_bytes};
    memcpy(args.tmpl.grid, l->grid, sizeof l->grid);
    memcpy(args.tmpl.block, l->block, sizeof l->block);
    OK(fa_launch(c->function[l->function], &args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
}

/* Launches the copy as the operation would be: twice, as what one launch leaves is what the next one
 * finds. */
static void launch_told(const copies *c, const telling *told, gpu_case *g)
{
    static fa__launch_room room;
    fa_spec spec = g->c.spec;
    fa__plan plan;
    OK(prepare(&spec, &plan));
    mutant_give_workspace(&fa__op_linear, g);
    for (int i = 0; i < 2; i++) {
        fa__launch launch = {0};
        gpu_case_upload(g);
        OK(fa__op_linear.launch(&spec, &plan, H200, &g->c.args, &launch, &room));
        linear_kernel_params *params = launch.params[0];
        params->seqlen = told->seqlen;
        params->rotated = told->rotated;
        if (told->begins_again) {
            params->positions = 0;
            params->position_offset = 5;
        }
        for (const fa__launch *l = &launch; l; l = l->then)
            launch_one(c, l);
    }
    gpu_case_download(g);
}

/* The reference's answer to what is not the operation's own case. */
static void expect(const fa_linear_spec *linear, const telling *told, gpu_case *g)
{
    float *x = g->c.tensor[gpu_case_index(g, "x")].host;
    for (int i = 0; linear == &halves && i < 70 * 90; i++)
        x[i] *= ldexpf(1, i / 90 % 5 * -8); /* scales that differ */
    float *w = g->c.tensor[gpu_case_index(g, "w")].host;
    for (int i = 0; linear == &halves && i < 96 * 90; i++)
        w[i] *= ldexpf(1, i / 90 % 3 * -6);
    const bool in_parts = linear == &plain || linear == &halves;
    if (in_parts)
        x[5 * 90 + 3] = INFINITY;
    for (int i = 0; told->begins_again && i < 70; i++)
        ((int32_t *)g->c.tensor[gpu_case_index(g, "positions")].host)[i] = 5 + i % 32;
    if (in_parts || told->begins_again)
        oracle_linear_expect(&g->c);
}

static fa_kernel *compile_copy(fa_context *ctx, const fa_spec *spec, const char *entry,
                               const mutant *m)
{
    return mutant_compile_with(ctx, spec, entry, inner, sizeof inner / sizeof inner[0], m);
}

/* Elements that are wrong in all outputs. */
static size_t run_changed(fa_context *ctx, const fa_linear_spec *linear, const mutant *m,
                          const telling *told)
{
    const fa_spec spec = linear_spec(*linear);
    copies c = {{compile_copy(ctx, &spec, "fajit_linear", m)}};
    if (linear == &halves)
        c.function[1] = compile_copy(ctx, &spec, "fajit_linear_parts<0>", m);
    gpu_case g;
    make_linear(&g, *linear, linear_sized(*linear, 70, 96, 90), NULL, 1);
    expect(linear, told, &g);
    launch_told(&c, told, &g);
    const size_t wrong = mutant_wrong(&g);
    gpu_case_free(&g);
    for (int i = 0; i < 2; i++)
        fa_kernel_release(c.function[i]);
    return wrong;
}

static size_t run_mutant(fa_context *ctx, const fa_linear_spec *linear, const mutant *m)
{
    return run_changed(ctx, linear, m, &(telling){0});
}

Test(gpu_linear_mutants, the_copies_are_right_as_they_are)
{
    static const fa_linear_spec *const specs[] = {&plain,   &large,      &split, &halves, &finished,
                                                  &rotated, &neighbours, &tall,  &partial};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &(mutant){0}), 0u, "spec %zu", i);
    close_device(&f, ctx);
}

Test(gpu_linear_mutants, every_fault_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        const linear_mutant *m = &mutants[i];
        cr_expect_gt(run_mutant(ctx, m->spec, &m->change), 0u, "not noticed: %s", m->change.fault);
    }
    close_device(&f, ctx);
}

/* The errors of a deep product, as compare_errors has them. */
static void deep_errors(fa_context *ctx, const mutant *m, double *device, double *loop)
{
    const fa_linear_spec linear = small_tiles((fa_linear_spec){.arithmetic = FA_LINEAR_SPLIT_F16});
    const fa_spec spec = linear_spec(linear);
    copies c = {{compile_copy(ctx, &spec, "fajit_linear", m),
                 compile_copy(ctx, &spec, "fajit_linear_parts<0>", m)}};
    gpu_case g;
    make_linear(&g, linear, linear_sized(linear, 32, 32, 2048), NULL, 1);
    launch_told(&c, &(telling){0}, &g);
    compare_errors(&g, 32, 32, 2048, device, loop);
    gpu_case_free(&g);
    for (int i = 0; i < 2; i++)
        fa_kernel_release(c.function[i]);
}

/* Tensor cores cut: what they add for long is less exact than float32. */
Test(gpu_linear_mutants, a_chain_that_never_ends_is_noticed)
{
    static const mutant chain = {
        "chain never ended", "sum[i] = mma(x[i].high[1], by.high[1], sum[i]);",
        "{ add(total[i][column], sum[i]); sum[i] = {};\n"
        "total[i][column] = mma(x[i].high[1], by.high[1], total[i][column]); }"};
    double device = 0, loop = 0;
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    deep_errors(ctx, &(mutant){0}, &device, &loop);
    cr_expect_leq(device, loop, "error %g, that of a loop %g", device, loop);
    device = loop = 0;
    deep_errors(ctx, &chain, &device, &loop);
    cr_expect_gt(device, loop, "error %g, that of a loop %g", device, loop);
    close_device(&f, ctx);
}

/* Constants and parameters that other templates give. */
Test(gpu_linear_mutants, what_linear_itself_does_not_ask_for)
{
    static const mutant fresh = {"fresh", "FRESH = false, WEIGHTS", "FRESH = true, WEIGHTS"};
    static const mutant first = {"first", "int ROTATED = 48;", "int ROTATED = -1;"};
    static const mutant none = {"none", "int ROTATED = 0;", "int ROTATED = -1;"};
    static const mutant as_it_is = {0};
    const telling again = {.begins_again = true, .seqlen = 32}, never = {.begins_again = true};
    const telling all = {.rotated = 96}, half = {.rotated = 48}, nothing = {.rotated = 0};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    cr_expect_eq(run_changed(ctx, &plain, &fresh, &nothing), 0u);
    cr_expect_eq(run_changed(ctx, &finished, &fresh, &nothing), 0u);
    cr_expect_eq(run_changed(ctx, &rotated, &first, &half), 0u);
    cr_expect_gt(run_changed(ctx, &rotated, &first, &all), 0u);
    cr_expect_gt(run_changed(ctx, &rotated, &first, &nothing), 0u);
    cr_expect_eq(run_changed(ctx, &neighbours, &none, &all), 0u);
    cr_expect_gt(run_changed(ctx, &neighbours, &none, &half), 0u);
    cr_expect_eq(run_changed(ctx, &neighbours, &as_it_is, &again), 0u);
    cr_expect_gt(run_changed(ctx, &neighbours, &as_it_is, &never), 0u);
    close_device(&f, ctx);
}
