/* Would the tests of cross_attention notice? Faults are put into copies of its template and of the
 * headers that its steps are made of, one at a time, and the comparison with the reference has to
 * fail. */
#include "gpu_cross_attention.h"
#include "gpu_mutant.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* What faults are seen with. Matrices of weights are square in the first, so that they can be taken
 * for their transposes. */
static const fa_cross_attention_spec pairs = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                                              .plan = FA_CROSS_ONE_LAUNCH,
                                              .bias = true,
                                              .bias_out = true,
                                              .heads_q = 4,
                                              .heads_k = 4,
                                              .head_dim = 32};
static const fa_cross_attention_spec pairs_by_steps = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                                                       .plan = FA_CROSS_FEW_LAUNCHES,
                                                       .bias = true,
                                                       .bias_out = true,
                                                       .heads_q = 4,
                                                       .heads_k = 4,
                                                       .head_dim = 32};
static const fa_cross_attention_spec grouped = {CROSS_DYNAMIC, .plan = FA_CROSS_ONE_LAUNCH,
                                                .mask = FA_ATTENTION_CAUSAL};
/* Heads first, in memory that has them apart. */
static const fa_cross_attention_spec kept = {.rotation = FA_KV_ROTATE_HALF,
                                             .form = FA_CROSS_KEYS,
                                             .heads_q = 2,
                                             .heads_k = 2,
                                             .head_dim = 32};
/* In 16 bits: where split float32 meets the NaN of a gap it computes the tile again, rows one by one. */
static const fa_cross_attention_spec halves = {CROSS_DYNAMIC, .dtype = FA_BF16,
                                               .plan = FA_CROSS_ONE_LAUNCH};

/* Headers whose text is put in place of its #include, outer ones first. */
static const char *const inner[] = {"fajit/attention.cuh",       "fajit/attention_products.cuh",
                                    "fajit/attention_shape.cuh", "fajit/softmax.cuh",
                                    "fajit/linear.cuh",          "fajit/linear_finish.cuh",
                                    "fajit/linear_angles.cuh",   "fajit/linear_multiply.cuh",
                                    "fajit/linear_load.cuh",     "fajit/linear_shape.cuh"};

#define PROJECT "    run_step<FIRST>(p, p.project_tiles, shared);\n"
#define FIRST_SYNC "    fajit::grid_sync(p.barrier); // q, k and v are there\n"
#define SECOND_SYNC "    fajit::grid_sync(p.barrier); // the heads' outputs are there\n"
#define ATTEND "    run_step<FIRST + 1>(p, p.attend_blocks, shared);\n"
#define NO_SCALE                                                                                   \
    {                                                                                              \
        "no scale", "double SCALE = ::SCALE;", "double SCALE = 1;"                                 \
    }
/* w[k][n] for w[n][k]. */
#define TRANSPOSED                                                                                 \
    {                                                                                              \
        "weights transposed", "else\n            copy_rows<WIDE, W_CHECKED, false>(",              \
            "else if (true) {\n"                                                                   \
            "    const w_share mine(threadIdx.x);\n"                                               \
            "    for (int i = 0; i < mine.count; i++)\n"                                           \
            "        for (int e = 0; mine.has(i) && e < w_tile::per_chunk; e++) {\n"               \
            "            const int n = b.n + mine.row_of(i), k = next + mine.column() + e;\n"      \
            "            static_cast<Element *>(shared.w(stage).at(mine.row_of(i), mine.chunk))"   \
            "[e] =\n"                                                                              \
            "                n < S::n_of(p) && k < b.end ? p.w.data[k * p.w.stride + n] : 0;\n"    \
            "        }\n"                                                                          \
            "} else\n"                                                                             \
            "    copy_rows<WIDE, W_CHECKED, false>("                                               \
    }
#define LATE "    if (blockIdx.x != 0)\n        __nanosleep(1000000);\n"

static const struct {
    const fa_cross_attention_spec *spec;
    mutant change;
} mutants[] = {
    {&pairs, {"half-split for interleaved", "int ROTATION = 2;", "int ROTATION = 1;"}},
    {&pairs, {"not rotated", "both.rotate(by);", ";"}},
    {&pairs,
     {"positions go on through the batches", "position_of(p, b.position + row)", "b.m + row"}},
    {&pairs, NO_SCALE},
    {&pairs, TRANSPOSED},
    {&pairs,
     {"score of lane 0 alone", "part[i] += x;", "part[i] += threadIdx.x % 32 == 0 ? x : 0.0f;"}},
    {&pairs, {"no bias of the output", "bool BIAS = BIAS_OUT", "bool BIAS = false"}},
    {&grouped,
     {"heads dealt round", "const int head = at.head / (heads_q / heads_k);",
      "const int head = at.head % heads_k;"}},
    {&grouped, {"not masked", "constexpr int MASK = ::MASK", "constexpr int MASK = 0"}},
    {&grouped, {"tiles of v left out", "at >= p.tiles_before[2] ? 2 : ", ""}},
    {&halves,
     {"a tile of two batches loaded as rows of one", "p.x_jumps.group % S::TILE_M", "false"}},
    {&pairs,
     {"rows of the output do not jump", "p.y_jumps.before(static_cast<int>(mine.row))", "0"}},
    {&kept, {"heads do not jump", "c.to[r] += p.y_heads.before(n);", ";"}},
    {&grouped, {"blocks do not wait for q, k and v", PROJECT FIRST_SYNC, LATE PROJECT}},
    {&grouped, {"blocks do not wait for the heads", ATTEND SECOND_SYNC, LATE ATTEND}},
};

/* Of a launch for each step: which launch has the fault. The copies of the others are right. */
static const struct {
    size_t function;
    mutant change;
} mutants_by_steps[] = {
    {0, {"half-split for interleaved", "int ROTATION = 2;", "int ROTATION = 1;"}},
    {0, TRANSPOSED},
    {1, NO_SCALE},
    {2, TRANSPOSED},
};

/* Faults in what a group of the projections is given, all in one copy. Which of them a launch has
 * says max_position, which counts from 1 and which nothing else reads here. */
static const char *const group_faults[] = {"k not rotated",
                                           "v rotated",
                                           "positions of queries offset",
                                           "v of the weights of k",
                                           "k of the query stream",
                                           "bias of q for k",
                                           "rows of x_kv do not jump"};
static const mutant group_mutant = {"a group is given what is wrong",
                                    "projection::run(mine, tile, 0, shared);",
                                    "projection::params own = mine;\n"
                                    "const int fault = p.project[0].max_position;\n"
                                    "if (fault == 1 && group == 1) own.rotated = 0;\n"
                                    "if (fault == 2 && group == 2) own.rotated = own.n;\n"
                                    "if (fault == 3 && group == 0) own.position_offset++;\n"
                                    "if (fault == 4 && group == 2) own.w = p.project[1].w;\n"
                                    "if (fault == 5 && group == 1) own.x = p.project[0].x;\n"
                                    "if (fault == 6 && group == 1) own.bias = p.project[0].bias;\n"
                                    "if (fault == 7 && group == 1) own.x_jumps.jump = 0;\n"
                                    "projection::run(own, tile, 0, shared);"};

static const mutant unchanged = {"unchanged", NULL, NULL};

/* Elements that are wrong in all outputs, with a change to one of the functions. */
static size_t run_mutant_on(fa_context *ctx, const fa_cross_attention_spec *cross, size_t function,
                            const mutant *m, int max_position, int32_t multiprocessors)
{
    static const int64_t shifted[ORACLE_CROSS_EXTRA_COUNT] = {8, 2, 1, 0, 3, 7, 0, 0, 1};
    const fa_spec spec = cross_spec(*cross);
    const size_t count = cross_entry_count(cross->plan);
    fa_kernel *functions[COUNT(cross_entries)] = {0};
    gpu_case g;
    for (size_t i = 0; i < count; i++) {
        char *source = mutant_source(&spec, cross_entries[0], inner, COUNT(inner),
                                     i == function ? m : &unchanged);
        functions[i] = mutant_function(ctx, &spec, cross_entries[i], source);
        free(source);
    }
    make_cross(&g, *cross, cross_sized(*cross, 2, 37, 70, 128), shifted, 1);
    g.c.args.cross_attention.max_position = max_position;
    mutant_give_workspace(&fa__op_cross_attention, &g);
    return mutant_run_functions(&fa__op_cross_attention, &g, functions, count, multiprocessors);
}

static size_t run_mutant_of(fa_context *ctx, const fa_cross_attention_spec *cross, size_t function,
                            const mutant *m, int max_position)
{
    return run_mutant_on(ctx, cross, function, m, max_position, 4);
}

static size_t run_mutant(fa_context *ctx, const fa_cross_attention_spec *cross, const mutant *m)
{
    return run_mutant_of(ctx, cross, 0, m, 0);
}

/* The first `count` of them are noticed. */
static void expect_group_faults(fa_context *ctx, const fa_cross_attention_spec *cross, size_t count)
{
    for (size_t i = 0; i < count; i++)
        cr_expect_gt(run_mutant_of(ctx, cross, 0, &group_mutant, 1 + (int)i), 0u, "not noticed: %s",
                     group_faults[i]);
}

Test(gpu_cross_attention_mutants, the_copies_are_right_as_they_are)
{
    static const fa_cross_attention_spec *const specs[] = {&pairs, &pairs_by_steps, &grouped, &kept,
                                                           &halves};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(specs); i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &unchanged), 0u, "spec %zu", i);
    for (size_t i = 0; i < 2; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &group_mutant), 0u, "spec %zu", i);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_mutants, every_fault_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(mutants); i++) {
        const mutant *m = &mutants[i].change;
        cr_expect_gt(run_mutant(ctx, mutants[i].spec, m), 0u, "not noticed: %s", m->fault);
    }
    expect_group_faults(ctx, &pairs, COUNT(group_faults));
    close_device(&f, ctx);
}

/* So few blocks that each has several heads. */
Test(gpu_cross_attention_mutants, a_state_that_is_kept_between_heads_is_noticed)
{
    static const mutant kept_state = {"state not reset between heads",
                                      "        state s;\n        s.init();\n",
                                      "__shared__ state kept[THREADS];\n"
                                      "state &s = kept[threadIdx.x];\n"
                                      "if (block == static_cast<int>(blockIdx.x)) // its first\n"
                                      "    s.init();\n"};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    cr_expect_eq(run_mutant_on(ctx, &pairs, 0, &unchanged, 0, 1), 0u);
    cr_expect_gt(run_mutant_on(ctx, &pairs, 0, &kept_state, 0, 1), 0u);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_mutants, every_fault_of_a_launch_for_each_step_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(mutants_by_steps); i++) {
        const mutant *m = &mutants_by_steps[i].change;
        cr_expect_gt(run_mutant_of(ctx, &pairs_by_steps, mutants_by_steps[i].function, m, 0), 0u,
                     "not noticed: %s", m->fault);
    }
    expect_group_faults(ctx, &pairs_by_steps, 3);
    close_device(&f, ctx);
}
