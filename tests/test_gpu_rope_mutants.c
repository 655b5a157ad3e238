/* Kernels that are wrong on purpose: copies of the instantiated template with one change each. The
 * comparison that every other test relies on must refuse all of them, and accept the unchanged copy. */
#include <stdio.h>

#include "gpu_rope.h"
#include "op.h"

typedef struct mutant {
    const char *what;
    const char *from, *to; /* the one place that changes; NULL: none */
} mutant;

/* The instantiated source, with the change. Released by the caller. */
static char *mutate(fa_context *ctx, const fa_spec *spec, const mutant *m)
{
    char *text = NULL;
    cr_assert_eq(fa_render(ctx, spec, FA_TEXT_SOURCE, &text), FA_OK, "%s", fa_last_error());
    if (!m->from)
        return text;
    char *at = strstr(text, m->from);
    cr_assert_not_null(at, "%s: the template has no '%s'", m->what, m->from);
    cr_assert_null(strstr(at + 1, m->from), "%s: the template has '%s' twice", m->what, m->from);
    const size_t size = strlen(text) + strlen(m->to) + 1;
    char *changed = malloc(size);
    cr_assert_not_null(changed);
    snprintf(changed, size, "%.*s%s%s", (int)(at - text), text, m->to, at + strlen(m->from));
    free(text);
    return changed;
}

static fa_kernel *compile_mutant(fa_context *ctx, const fa_spec *spec, const mutant *m)
{
    char *source = mutate(ctx, spec, m);
    fa_kernel *kernel = compile(
        ctx, &(fa_template_spec){.name = "mutant.cu", .source = source, .entry = "fajit_rope"});
    free(source);
    return kernel;
}

/* Launches `kernel` on the case with the grid and the parameters that rope would give its own. */
static void launch_mutant(gpu_case *d, const fa_kernel *kernel)
{
    const fa__target target = {"sm_80", 80, 163 << 10};
    fa_spec spec = d->c.spec;
    fa__plan plan = {0};
    fa__launch launch = {0};
    fa__launch_room room;
    const char *why = NULL;
    OK(fa__op_rope.validate(&spec, &target));
    OK(fa__op_rope.plan(&spec, &target, &plan));
    cr_assert_eq(fa__op_rope.launch(&spec, &plan, 4, &d->c.args, &launch, &room), FA_OK, "%s",
                 fa_last_error());
    const fa_param param = {launch.params[0], fa__op_rope.param_sizes[0]};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                                   .block = {launch.block[0]},
                                   .params = &param,
                                   .param_count = 1};
    cr_assert_eq(fa_launch(kernel, &args, NULL), FA_OK, "%s", fa_last_error());
    cr_assert(gpu_synchronize(NULL, &why), "the kernel failed: %s", why);
    gpu_case_download(d);
}

/* Elements that the comparison refuses. */
static size_t wrong_elements(const gpu_case *d)
{
    size_t bad = 0;
    for (size_t i = 0; i < d->c.tensor_count; i++)
        if (d->c.tensor[i].output)
            bad += oracle_compare(&d->c, &d->c.tensor[i], gpu_case_at(d, i)).bad;
    return bad;
}

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
        fa_kernel *kernel = compile_mutant(ctx, &spec, m);
        gpu_case d;
        make_rope(&d, rope, sizes, extra, 1);
        gpu_case_upload(&d);
        launch_mutant(&d, kernel);
        const size_t bad = wrong_elements(&d);
        if (i)
            cr_expect_gt(bad, 0u, "%s: the comparison lets it pass", m->what);
        else
            cr_expect_eq(bad, 0u, "the unchanged copy: %zu elements are wrong", bad);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
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
        {"exponent over head_dim", "= {log2_base / rotary_dim,", "= {log2_base / HEAD_DIM,"},
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
