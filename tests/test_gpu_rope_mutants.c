/* Would the tests of rope notice? Faults are put into copies of its template, one at a time, and
 * the comparison with the reference has to fail. */
#include "gpu_mutant.h"
#include "gpu_rope.h"

static void expect_caught(fa_rope_spec rope, const int64_t extra[ROPE_EXTRAS],
                          const mutant *mutants, size_t count)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes = rope;
    sizes.batch = 2;
    sizes.heads_q = 4;
    sizes.heads_k = 2;
    sizes.seqlen = 9;
    const fa_spec spec = rope_spec(rope);
    const mutant unchanged = {"unchanged", NULL, NULL};
    for (size_t i = 0; i <= count; i++) {
        const mutant *m = i ? &mutants[i - 1] : &unchanged;
        fa_kernel *kernel = mutant_compile(ctx, &spec, "fajit_rope", NULL, m);
        gpu_case g;
        make_rope(&g, rope, sizes, extra, 1);
        const size_t wrong = mutant_run(&fa__op_rope, &g, kernel);
        if (i)
            cr_expect_gt(wrong, 0u, "not noticed: %s", m->fault);
        else
            cr_expect_eq(wrong, 0u, "the unchanged copy: %zu elements are wrong", wrong);
    }
    close_device(&f, ctx);
}

#define COUNT(array) (sizeof array / sizeof array[0])

Test(gpu_rope_mutants, of_a_partial_interleaved_rotation)
{
    static const mutant mutants[] = {
        {"half-split for interleaved", "INTERLEAVED = true;", "INTERLEAVED = false;"},
        {"k is not rotated", "x[i].rotate(by);", "if (!works_on_k(p)) x[i].rotate(by);"},
        {"shifted position", "return {p.position_offset + at.token};",
         "return {p.position_offset + at.token + 1};"},
        {"position that follows the batch", "return {p.position_offset + at.token};",
         "return {p.position_offset + at.token + at.batch};"},
        {"exponent over head_dim", "fajit::baked_rule<ROTARY_DIM,", "fajit::baked_rule<HEAD_DIM,"},
        {"the other direction", "INVERSE = false;", "INVERSE = true;"},
        {"the rest is not copied", "copy_heads<V>(p);", ";"},
        {"the last head of a group is left out", "h.left -= HEADS_IN_FLIGHT) {\n        work",
         "h.left -= HEADS_IN_FLIGHT + 1) {\n        work"},
    };
    const int64_t extra[ROPE_EXTRAS] = {3};
    expect_caught((fa_rope_spec){.style = FA_ROPE_INTERLEAVED, .head_dim = 64, .rotary_dim = 32},
                  extra, mutants, COUNT(mutants));
}

Test(gpu_rope_mutants, of_scaling_and_norm)
{
    static const mutant mutants[] = {
        {"not scaled", "SCALING = 4;", "SCALING = 0;"},
        {"linear for YaRN", "SCALING = 4;", "SCALING = 1;"},
        {"attention factor twice",
         "fajit::adjust<INVERSE>(by, static_cast<float>(ATTENTION_FACTOR));",
         "fajit::adjust<false>(by, ATTENTION_FACTOR * ATTENTION_FACTOR);"},
        {"no attention factor", "fajit::adjust<INVERSE>(by, static_cast<float>(ATTENTION_FACTOR));",
         ""},
        {"norm after the rotation",
         "values.normalize(weights, static_cast<float>(NORM_EPS));\n"
         "                values.rotate(by);",
         "values.rotate(by); values.normalize(weights, static_cast<float>(NORM_EPS));"},
        {"no norm", "values.normalize(weights, static_cast<float>(NORM_EPS));", ""},
        {"weights of q for k", "(works_on_k(p) ? p.k : p.q).norm", "p.q.norm"},
        {"weights without their 1", "NORM_OFFSET = 1;", "NORM_OFFSET = 0;"},
        {"eps of 1", "static_cast<float>(NORM_EPS)", "1.0f"},
    };
    const int64_t extra[ROPE_EXTRAS] = {5000};
    expect_caught(
        (fa_rope_spec){
            .head_dim = 64,
            .norm = FA_ROPE_RMS_NORM,
            .norm_unit_offset = true,
            .scaling = {.kind = FA_ROPE_YARN, .factor = 4, .original_max_position = 2048}},
        extra, mutants, COUNT(mutants));
}

Test(gpu_rope_mutants, of_positions)
{
    static const mutant mutants[] = {
        {"one vector for every batch", "at.batch * p.positions_stride + at.token, axis",
         "at.token, axis"},
        {"height and width swapped", "i + axis)", "i + 2 * axis)"},
        {"split for interleaved", "SECTIONS = 2;", "SECTIONS = 1;"},
        {"int32 for int64", "POSITIONS_WIDE = true;", "POSITIONS_WIDE = false;"},
    };
    const int64_t extra[ROPE_EXTRAS] = {7, 0, 1000};
    expect_caught((fa_rope_spec){.head_dim = 64,
                                 .positions = FA_ROPE_VECTOR,
                                 .position_type = FA_I64,
                                 .sections = FA_ROPE_SECTIONS_INTERLEAVED,
                                 .section_t = 12,
                                 .section_h = 10,
                                 .section_w = 10},
                  extra, mutants, COUNT(mutants));
}
