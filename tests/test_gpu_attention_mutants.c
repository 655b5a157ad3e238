/* Would the tests of attention notice? Faults are put into copies of its template, one at a time,
 * and the comparison with the reference has to fail. */
#include "gpu_attention.h"
#include "gpu_mutant.h"

/* What one fault is seen with. */
static const fa_attention_spec causal = {
    .mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};
static const fa_attention_spec shared = {
    .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 32, .lse = true};
static const fa_attention_spec half = {
    .dtype = FA_F16, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 40, .lse = true};

typedef struct attention_mutant {
    const fa_attention_spec *spec;
    mutant change; /* to the instantiated source, with these headers in it */
} attention_mutant;

static const char *const inner[] = {"fajit/attention.cuh", "fajit/attention_products.cuh",
                                    "fajit/attention_shape.cuh", "fajit/softmax.cuh",
                                    "fajit/key_mask.cuh"};

static const attention_mutant mutants[] = {
    {&causal, {"no scale", "S::SCALE * 1.4426950408889634074", "1.4426950408889634074"}},
    {&causal, {"exponentials of base 2", "S::SCALE * 1.4426950408889634074", "S::SCALE"}},
    {&causal,
     {"sum not rescaled", "__fmaf_rn(sum[r], factor[r], part[0] + part[1])",
      "sum[r] + part[0] + part[1]"}},
    {&causal, {"accumulator not rescaled", "o[i][n].value[e] *= factor[i][e / 2];", ";"}},
    {&causal,
     {"largest score of one lane",
      "largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));", ""}},
    {&causal, {"sum of one lane", "sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);", ""}},
    {&causal, {"mask one key too far", "key <= row + diagonal", "key <= row + diagonal + 1"}},
    {&causal, {"mask one key too short", "key <= row + diagonal", "key < row + diagonal"}},
    {&causal, {"mask of the other alignment", "KIND == MASK_CAUSAL ? keys - rows : 0", "0"}},
    {&half, {"keys past the end", "return key < keys && (", "return ("}},
    {&causal,
     {"a tile left out", "i < tiles; i++) {\n            const int tile",
      "i < tiles - 1; i++) {\n            const int tile"}},
    {&half,
     {"the first head's keys", "const int head = at.head / (heads_q / heads_k);",
      "const int head = 0;"}},
    {&half,
     {"heads dealt round", "const int head = at.head / (heads_q / heads_k);",
      "const int head = at.head % heads_k;"}},
    {&shared, {"parts not merged", "part < S::KEY_WARPS - 1", "part < S::KEY_WARPS - 2"}},
    {&shared,
     {"merged without the other's factor", "from[(4 * n + e) * 32] * theirs[e / 2]",
      "from[(4 * n + e) * 32]"}},
    {&half, {"not divided by the sum", "__fdiv_rn(1.0f, sum[r])", "1.0f"}},
    {&half, {"lse of base 2", "* 0.693147180559945309f", ""}},
    /* that of a row with larger scores; sums are forgotten at the first key anyway */
    {&causal, {"state not reset", "shift[r] = minus_infinity();", "shift[r] = 1000.0f;"}},
    {&causal,
     {"score of lane 0 alone", "part[i] += x;", "part[i] += threadIdx.x % 32 == 0 ? x : 0.0f;"}},
};

static const int seqlens[] = {70, 150};

/* Elements that are wrong in all outputs. */
static size_t run_mutant(fa_context *ctx, const fa_attention_spec *attention, const mutant *m)
{
    const fa_attention_spec sizes = attention_sized(*attention, 2, 4, 2, seqlens[0], seqlens[1]);
    const fa_spec spec = attention_spec(*attention);
    fa_kernel *kernel = mutant_compile_with(ctx, &spec, "fajit_attention", inner,
                                            sizeof inner / sizeof inner[0], m);
    gpu_case g;
    make_attention(&g, *attention, sizes, NULL, 1);
    return mutant_run(&fa__op_attention, &g, kernel);
}

Test(gpu_attention_mutants, the_copies_are_right_as_they_are)
{
    static const fa_attention_spec *const specs[] = {&causal, &shared, &half};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 3; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &(mutant){0}), 0u, "spec %zu", i);
    close_device(&f, ctx);
}

Test(gpu_attention_mutants, every_fault_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        const attention_mutant *m = &mutants[i];
        cr_expect_gt(run_mutant(ctx, m->spec, &m->change), 0u, "not noticed: %s", m->change.fault);
    }
    close_device(&f, ctx);
}

/* A constant that other templates give. Rows of 66 bytes are copied in narrow accesses. */
Test(gpu_attention_mutants, what_attention_itself_does_not_ask_for)
{
    static const fa_attention_spec odd = {
        .dtype = FA_F16, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 33, .lse = true};
    static const mutant fresh = {"fresh", "FRESH = false, WAITS", "FRESH = true, WAITS"};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    cr_expect_eq(run_mutant(ctx, &odd, &fresh), 0u);
    cr_expect_eq(run_mutant(ctx, &causal, &fresh), 0u);
    close_device(&f, ctx);
}
