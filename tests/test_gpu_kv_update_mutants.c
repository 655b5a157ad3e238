/* Would the tests of kv_update notice? Faults are put into copies of its template, one at a time,
 * and the comparison with the reference has to fail. */
#include "gpu_kv_update.h"
#include "gpu_mutant.h"

/* What one fault is seen with. */
static const fa_kv_update_spec stacked = {
    .rotation = FA_KV_ROTATE_INTERLEAVED, .angles = FA_ROPE_TABLES, .head_dim = 32};
static const fa_kv_update_spec partial = {
    .rotation = FA_KV_ROTATE_HALF, .in_place = true, .head_dim = 64, .rotary_dim = 32};
static const fa_kv_update_spec quantized = {.rotation = FA_KV_ROTATE_HALF,
                                            .in_place = true,
                                            .cache = FA_KV_SLOTS,
                                            .cache_dtype = FA_KV_E4M3,
                                            .scales = FA_KV_SCALE_HEAD,
                                            .head_dim = 32};
static const fa_kv_update_spec paged = {
    .cache = FA_KV_BLOCK_TABLE, .in_place = true, .head_dim = 16};

/* In the instantiated source, with rotary.cuh or cache_place.cuh in it. */
static const struct {
    const fa_kv_update_spec *spec;
    mutant change;
} mutants[] = {
    {&stacked, {"half for interleaved", "int ROTATION = 2;", "int ROTATION = 1;"}},
    {&partial, {"interleaved for half", "int ROTATION = 1;", "int ROTATION = 2;"}},
    {&stacked,
     {"keys not rotated", "values y = x.unpacked();\n        y.rotate(by);\n",
      "values y = x.unpacked();\n"}},
    {&stacked, {"values rotated", "bool rotates = KEYS && ROTATES;", "bool rotates = ROTATES;"}},
    {&stacked, {"position shifted", "(p, at.position, index", "(p, at.position + 1, index"}},
    {&partial,
     {"position shifted, computed", "(p, at.position, index", "(p, at.position + 1, index"}},
    {&partial,
     {"exponent over head_dim", "fajit::baked_rule<ROTARY_DIM,", "fajit::baked_rule<HEAD_DIM,"}},
    {&partial, {"turned the other way", "-__fmul_rn(b, by.sin[i])", "__fmul_rn(b, by.sin[i])"}},
    {&stacked,
     {"the first of several tokens wins",
      "atomicMax(&to.last_token[x.entry - first], static_cast<int>(n))",
      "atomicCAS(&to.last_token[x.entry - first], -1, static_cast<int>(n))"}},
    {&partial, {"no token wins", "return found.superseded[i] != 0;", "return true;"}},
    {&partial, {"a token takes its own entry from itself", "n + i > own", "n + i >= own"}},
    {&partial, {"of several tokens all are written", "sees = sees || same;", ";"}},
    {&partial, {"later tokens of other ranks not seen", "my.rank * W;", "my.rank * W + W;"}},
    {&partial, {"padding written", "to.entry = PADDING;", "to.entry = to.position = 0;"}},
    {&stacked,
     {"positions outside clamped", "to.entry = OUTSIDE;",
      "to.entry = to.batch * capacity_of<Rule>(p);"}},
    {&paged, {"errors not counted", "atomicAdd(p.errors, 1u);", ";"}},
    {&stacked, {"old entries not copied", "old[i].store(to, h.distance);", ";"}},
    {&paged,
     {"table of the first batch", "to.batch * p.block_table_stride + at.outer", "at.outer"}},
    {&quantized,
     {"multiplied by the scale", "__fdiv_rn(y.x[c][i], divisor)", "__fmul_rn(y.x[c][i], divisor)"}},
    {&quantized, {"scale of the first head", "SCALES == 2 ? h.first : 0", "0"}},
};

/* The header whose text is to change, or rotary.cuh. */
static const char *header_of(const mutant *m)
{
    static const char place[] = "fajit/cache_place.cuh";
    return m->find && strstr(mutant_header(place), m->find) ? place : "fajit/rotary.cuh";
}

/* Elements that are wrong in all outputs. */
static size_t run_mutant(fa_context *ctx, const fa_kv_update_spec *kv, const mutant *m)
{
    const fa_kv_update_spec sizes = kv_sized(*kv, 3, 40, 5, 24);
    const fa_spec spec = kv_spec(kv_bake(*kv, 1));
    fa_kernel *kernel = mutant_compile(ctx, &spec, "fajit_kv_update", header_of(m), m);
    gpu_case g;
    make_kv(&g, kv_bake(*kv, 1), sizes, NULL, 1);
    return mutant_run(&fa__op_kv_update, &g, kernel);
}

Test(gpu_kv_update_mutants, the_copies_are_right_as_they_are)
{
    static const fa_kv_update_spec *const specs[] = {&stacked, &partial, &quantized, &paged};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 4; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], &(mutant){"unchanged", NULL, NULL}), 0u, "spec %zu",
                     i);
    close_device(&f, ctx);
}

Test(gpu_kv_update_mutants, every_fault_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        const mutant *m = &mutants[i].change;
        cr_expect_gt(run_mutant(ctx, mutants[i].spec, m), 0u, "not noticed: %s", m->fault);
    }
    close_device(&f, ctx);
}
