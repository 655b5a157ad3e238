/* Would the tests of lowrank_kv notice? Faults are put into copies of its template, one at a time,
 * and the comparison with the reference has to fail. */
#include "device_fixture.h"
#include "gpu_lowrank_kv.h"
#include "gpu_mutant.h"

#define UP .form = FA_LOWRANK_UP, .rank = 24, .heads = 2, .head_dim = 16
#define DOWN .form = FA_LOWRANK_DOWN, .rank = 24, .model_dim = 100

/* What one fault is seen with: no more of the kernel than it needs. */
static const fa_lowrank_kv_spec whole = {
    .model_dim = 100, .rank = 24, .heads = 2, .head_dim = 16, .plan = FA_LOWRANK_ONE_LAUNCH};
static const fa_lowrank_kv_spec up = {UP};
static const fa_lowrank_kv_spec down = {DOWN};
static const fa_lowrank_kv_spec plain = {DOWN, .sums = FA_LOWRANK_SUMS_CHUNKED};
static const fa_lowrank_kv_spec tree = {UP, .sums = FA_LOWRANK_SUMS_TREE};
static const fa_lowrank_kv_spec halves = {UP, .dtype = FA_BF16};
static const fa_lowrank_kv_spec normed = {DOWN, .norm = FA_ROPE_RMS_NORM, .norm_eps = 1};
static const fa_lowrank_kv_spec turned = {UP, .rope_dim = 8, .rotation = FA_KV_ROTATE_HALF,
                                          .to_cache = true};
static const fa_lowrank_kv_spec pairs = {UP, .rope_dim = 8, .rotation = FA_KV_ROTATE_INTERLEAVED,
                                         .rope_once = true};
static const fa_lowrank_kv_spec paged = {UP, .to_cache = true, .cache = FA_KV_BLOCK_TABLE};
static const fa_lowrank_kv_spec *const specs[] = {&whole,  &up,     &down,   &plain, &tree,
                                                  &halves, &normed, &turned, &pairs, &paged};

typedef struct lowrank_mutant {
    const fa_lowrank_kv_spec *spec;
    mutant change;
} lowrank_mutant;

static const lowrank_mutant mutants[] = {
    {&up,
     {"low parts left out", "SUMS_SPLIT_TF32, float> {\n    using type = split_tf32;",
      "SUMS_SPLIT_TF32, float> {\n    using type = rounded_tf32;"}},
    {&up,
     {"rows of the weights in another order", "(lane % 4 + 4 * i) * row_elements",
      "(lane % 4 * 2 + i) * row_elements"}},
    {&down,
     {"one step of the depth skipped", "add_steps<t::depth / apart, apart>",
      "add_steps<t::depth / apart - 1, apart>"}},
    {&down,
     {"a part of the sums left out", "q < t::down_k; q += 2 * apart",
      "q < t::down_k - 2; q += 2 * apart"}},
    {&plain, {"sums not cleared between tiles", "cell[i][j].value[e] = 0;", ";"}},
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
    {&halves, {"matrices not transposed", "ldmatrix_trans(to.word", "ldmatrix(to.word"}},
    {&halves, {"halves of a step swapped", "mine.chunk * (16", "(1 - mine.chunk) * (16"}},
    {&down,
     {"tail of model_dim not left out", "x.exists() ? end - begin - column : 0",
      "x.exists() ? COLUMNS : 0"}},
    {&up,
     {"V from the weights of K", "p.w_up[part], p.w_up_bytes[part]",
      "p.w_up[0], p.w_up_bytes[part]"}},
    {&up, {"V over K", "Element *at = p.out[part].at(", "Element *at = p.out[0].at("}},
    {&whole, {"second tile forgotten", "tile < s.up_end; tile++", "tile < s.up_begin + 1; tile++"}},
    {&up,
     {"tokens behind the last written",
      "            if (!to.is_written())\n                continue;",
      "            if (to.entry < -1)\n                continue;"}},
    {&normed, {"mean of squares over padding", "(1.0 / RANK)", "(1.0 / t::latent_columns)"}},
    {&normed, {"no eps", "__fadd_rn(mean, static_cast<float>(NORM_EPS))", "mean"}},
    {&normed, {"weight of another column", "norm_weight(p, c))", "norm_weight(p, c / 2))"}},
    {&normed,
     {"norm twice", "normalize(p, m);\n", "normalize(p, m);\n__syncthreads();normalize(p, m);\n"}},
    {&turned, {"interleaved for half", "int ROTATION = 1;", "int ROTATION = 2;"}},
    {&pairs, {"half for interleaved", "int ROTATION = 2;", "int ROTATION = 1;"}},
    {&turned, {"not rotated", "value.rotate(angles_of(p, x.position, pair));", ";"}},
    {&turned,
     {"position of the entry", "angles_of(p, x.position, pair)",
      "angles_of(p, x.position + 1, pair)"}},
    {&turned,
     {"rotary part over K", " + head_dim_of(p, 0);\n        fajit::store(to + offset",
      ";\n        fajit::store(to + offset"}},
    {&turned, {"rotary part in the first head alone", "ROPE_ONCE ? 1 : heads_of_k(p)", "1"}},
    {&pairs, {"offset ignored", "p.position_offset + to.token", "to.token"}},
    {&paged, {"last token does not win", "superseded[i] = true;", ";"}},
    {&paged,
     {"table of the first batch", "to.batch * p.block_table_stride + at.outer", "at.outer"}},
    {&paged, {"errors not counted", "atomicAdd(p.errors, 1u);", ";"}},
    {&paged, {"padding written", "to.entry = PADDING;", "to.entry = to.position = 0;"}},
};

/* Where threads do not wait for each other, or for copies: a GPU may be in time all the same. */
static const lowrank_mutant races[] = {
    {&whole, {"a wait too few", "copy_wait<t::stages - 2>();", "copy_wait<t::stages - 1>();"}},
    {&down,
     {"no barrier before parts are read",
      "__syncthreads(); // before the parts of other warps are read", ";"}},
};

/* The header whose text is to change: NULL, none. */
static const char *header_of(const mutant *m)
{
    static const char *const headers[] = {"fajit/cache_place.cuh", "fajit/padded.cuh",
                                          "fajit/products.cuh", "fajit/token_rows.cuh"};
    for (size_t i = 0; i < 4 && m->find; i++)
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
