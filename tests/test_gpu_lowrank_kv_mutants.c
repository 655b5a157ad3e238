/* Would the tests of lowrank_kv notice? Faults are put into copies of its template, one at a time,
 * and the comparison with the reference has to fail. */
#include "device_fixture.h"
#include "gpu_lowrank_kv.h"
#include "gpu_mutant.h"

#define UP .form = FA_LOWRANK_UP, .rank = 24, .heads = 2, .head_dim = 16
#define DOWN .form = FA_LOWRANK_DOWN, .rank = 24, .model_dim = 100
#define WHOLE                                                                                      \
    .model_dim = 300, .rank = 24, .heads = 2, .head_dim = 16, .plan = FA_LOWRANK_ONE_LAUNCH

/* What one fault is seen with: no more of the kernel than it needs. */
static const fa_lowrank_kv_spec whole = {WHOLE};
static const fa_lowrank_kv_spec wide = {.model_dim = 1300,
                                        .rank = 70,
                                        .heads = 5,
                                        .head_dim = 32,
                                        .plan = FA_LOWRANK_ONE_LAUNCH,
                                        .shares = 2};
static const fa_lowrank_kv_spec whole_halves = {WHOLE, .dtype = FA_BF16};
static const fa_lowrank_kv_spec up = {UP};
static const fa_lowrank_kv_spec down = {DOWN};
static const fa_lowrank_kv_spec down_halves = {DOWN, .dtype = FA_BF16};
static const fa_lowrank_kv_spec plain = {DOWN, .sums = FA_LOWRANK_SUMS_CHUNKED};
static const fa_lowrank_kv_spec tree = {UP, .sums = FA_LOWRANK_SUMS_TREE};
static const fa_lowrank_kv_spec halves = {UP, .dtype = FA_BF16};
static const fa_lowrank_kv_spec normed = {WHOLE, .norm = FA_ROPE_RMS_NORM, .norm_eps = 1};
static const fa_lowrank_kv_spec turned = {UP, .rope_dim = 8, .rotation = FA_KV_ROTATE_HALF,
                                          .to_cache = true};
static const fa_lowrank_kv_spec pairs = {UP, .rope_dim = 8, .rotation = FA_KV_ROTATE_INTERLEAVED,
                                         .rope_once = true};
static const fa_lowrank_kv_spec paged = {UP, .to_cache = true, .cache = FA_KV_BLOCK_TABLE};
static const fa_lowrank_kv_spec *const specs[] = {&whole,  &wide,  &whole_halves, &up,     &down,
                                                  &plain,  &tree,  &down_halves,  &halves, &normed,
                                                  &turned, &pairs, &paged};

typedef struct lowrank_mutant {
    const fa_lowrank_kv_spec *spec;
    mutant change;
} lowrank_mutant;

/* Those of cache_place.cuh that test_gpu_kv_update_mutants.c has are not repeated. */
static const lowrank_mutant mutants[] = {
    {&whole,
     {"low parts left out", "SUMS_SPLIT_TF32, float> {\n    using type = split_tf32;",
      "SUMS_SPLIT_TF32, float> {\n    using type = rounded_tf32;"}},
    {&up,
     {"rows of the weights in another order", "(lane % 4 + 4 * i) * row_elements",
      "(lane % 4 * 2 + i) * row_elements"}},
    {&whole,
     {"one step of the depth skipped", "add_steps<shape::DEPTH / STEP_DEPTH, STEP_DEPTH>",
      "add_steps<shape::DEPTH / STEP_DEPTH - 1, STEP_DEPTH>"}},
    {&whole,
     {"a part of the sums left out", "q < shape::WARPS; q += 2 * apart",
      "q < shape::WARPS - 2; q += 2 * apart"}},
    {&plain, {"sums that begin elsewhere", "cell[i][j].value[e] = 0;", "cell[i][j].value[e] = 1;"}},
    {&plain,
     {"chunks not added", "rounded_sum(total, dot<POLICY>(left, right[c]))",
      "dot<POLICY>(left, right[c])"}},
    {&plain,
     {"columns swapped", "right[c][k] = to_float(b[k * ldb + 8 * j + column + c])",
      "right[c][k] = to_float(b[k * ldb + 8 * j + column + 1 - c])"}},
    {&tree, {"half of the tree left out", "part[0].add(part[1]);", ";"}},
    {&tree,
     {"half of the tree twice", "add_steps<half, APART>(part[h], a + h * half * APART",
      "add_steps<half, APART>(part[h], a"}},
    {&tree, {"a pair left out", "__fadd_rn(pair[2], pair[3])", "pair[2]"}},
    {&whole_halves,
     {"matrices not transposed", "ldmatrix_trans(to.word, from + lane",
      "ldmatrix(to.word, from + lane"}},
    {&whole_halves,
     {"halves of a step swapped", "mine.chunk * (16 / static_cast<int>(sizeof(T))));",
      "(1 - mine.chunk) * (16 / static_cast<int>(sizeof(T))));"}},
    {&halves, {"two matrices not transposed", "ldmatrix_trans(word, mine", "ldmatrix(word, mine"}},
    {&halves, {"the columns beside them twice", "row_elements + lane / 16 * 8)", "row_elements)"}},
    {&up, {"the 8 columns behind twice", "first + behind + 8, Tile", "first + behind, Tile"}},
    {&down_halves,
     {"tail of model_dim not left out of many tokens",
      "next + mine.column(), valid = valid_from(mine.column())",
      "next + mine.column(), valid = S::x_tile::per_chunk"}},
    {&plain,
     {"tail of model_dim not left out", "n < tokens ? end - begin - column : 0",
      "n < tokens ? COLUMNS : 0"}},
    {&wide,
     {"a pass over the latent left out", "pass < s.down_end; pass++",
      "pass + 1 < s.down_end; pass++"}},
    {&wide, {"a stage too early for its place", "from.load_next();\n                }", "}"}},
    {&up, {"V from the weights of K", "q.w = {p.w_up[part].data", "q.w = {p.w_up[0].data"}},
    {&whole,
     {"V from the weights of K, of few tokens", "p.w_up[part], p.w_up_bytes[part]",
      "p.w_up[0], p.w_up_bytes[part]"}},
    {&up, {"V over K", "out = p.out[part];", "out = p.out[0];"}},
    {&wide, {"second tile forgotten", "tile < s.up_end; tile++", "tile < s.up_begin + 1; tile++"}},
    {&up, {"tokens behind the last written", "c.exist && token.is_written()", "c.exist"}},
    {&down,
     {"columns behind the last written", "c.exist && token.is_written()", "token.is_written()"}},
    {&whole,
     {"tokens behind the last written, of few", "!to.is_written() || column >= columns",
      "to.entry < -1 || column >= columns"}},
    {&normed, {"mean of squares over padding", "(1.0 / S::RANK)", "(1.0 / (S::RANK + 8))"}},
    {&normed, {"no eps", "__fadd_rn(mean, static_cast<float>(S::NORM_EPS))", "mean"}},
    {&normed,
     {"weight of another column", "lowrank_norm_weight<S>(p, c)",
      "lowrank_norm_weight<S>(p, c / 2)"}},
    {&normed, {"norm twice", "mine.normalize();\n", "mine.normalize();\nmine.normalize();\n"}},
    {&turned, {"interleaved for half", "int ROTATION = 1;", "int ROTATION = 2;"}},
    {&turned, {"not rotated", "value.rotate(angles_of(p, x.position, pair));", ";"}},
    {&turned,
     {"position of the entry", "angles_of(p, x.position, pair)",
      "angles_of(p, x.position + 1, pair)"}},
    {&turned,
     {"rotary part over K", " + S::head_dim_of(p, 0);\n            store(to + offset",
      ";\n            store(to + offset"}},
    {&turned, {"rotary part in the first head alone", "S::ROPE_ONCE ? 1 : S::heads_of(p)", "1"}},
    {&pairs, {"offset ignored", "p.position_offset + to.token", "to.token"}},
    {&paged,
     {"last token does not win", "at.exists && !superseded ?", "at.exists && superseded ?"}},
};

/* Where threads do not wait for each other, or for copies: a GPU may be in time all the same. */
static const lowrank_mutant races[] = {
    {&whole, {"a wait too few", "copy_wait<shape::AHEAD - 1>();", "copy_wait<shape::AHEAD>();"}},
    {&whole,
     {"a wait too few for the second weights", "copy_wait<shape::UP_STAGES - 1>();",
      "copy_wait<shape::UP_STAGES + shape::AHEAD>();"}},
    {&plain,
     {"no barrier before parts are read",
      "__syncthreads(); // before the parts of other warps are read", ";"}},
};

/* The header whose text is to change: NULL, none. */
static const char *header_of(const mutant *m)
{
    static const char *const headers[] = {
        "fajit/cache_place.cuh",     "fajit/linear_multiply.cuh",   "fajit/lowrank_finish.cuh",
        "fajit/lowrank_product.cuh", "fajit/lowrank_shape.cuh",     "fajit/lowrank_small.cuh",
        "fajit/padded.cuh",          "fajit/products.cuh",          "fajit/token_rows.cuh",
        "fajit/linear_load.cuh",     "fajit/lowrank_small_load.cuh"};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0] && m->find; i++)
        if (strstr(mutant_header(headers[i]), m->find))
            return headers[i];
    return NULL;
}

/* Elements that are wrong in all outputs, and red zones that were written. */
static size_t run_mutant(fa_context *ctx, const fa_lowrank_kv_spec *s, const mutant *m)
{
    static const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {29, 5, 0, 0, 1, 4, 3};
    fa_lowrank_kv_spec sizes = *s;
    const fa_spec spec = lowrank_spec(*s);
    fa_kernel *kernel = mutant_compile(ctx, &spec, "fajit_lowrank_kv<0>", header_of(m), m);
    gpu_case g;
    sizes.batch = 3;
    sizes.seqlen = 31;
    make_lowrank(&g, *s, sizes, extra, 1);
    spoil_gaps(&g);
    return mutant_run(&fa__op_lowrank_kv, &g, kernel);
}

Test(gpu_lowrank_kv_mutants, the_copies_are_right_as_they_are)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &(mutant){"unchanged", NULL, NULL}), 0u, "spec %zu",
                     i);
    close_device(&f, ctx);
}

static void expect_noticed(const lowrank_mutant *some, size_t count, size_t step)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < count; i += step) {
        const mutant *m = &some[i].change;
        cr_expect_gt(run_mutant(ctx, some[i].spec, m), 0u, "not noticed: %s", m->fault);
    }
    close_device(&f, ctx);
}

enum { MUTANTS = sizeof mutants / sizeof mutants[0] };

Test(gpu_lowrank_kv_mutants, every_fault_is_noticed)
{
    expect_noticed(mutants, MUTANTS, 2);
}

Test(gpu_lowrank_kv_mutants, every_other_fault_is_noticed)
{
    expect_noticed(mutants + 1, MUTANTS - 1, 2);
}

Test(gpu_lowrank_kv_mutants, races_are_noticed_by_the_emulator)
{
    need_emulator();
    expect_noticed(races, sizeof races / sizeof races[0], 1);
}
