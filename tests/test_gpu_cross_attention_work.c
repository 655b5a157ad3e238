/* How much kernels of cross_attention multiply: copies of the template count it, and nothing is
 * done twice, whatever the plan. */
#include "gpu_cross_attention.h"
#include "gpu_mutant.h"
#include "ops/cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define TILE_K 32 /* float32 in 128 bytes */

/* Headers whose text is put in place of its #include, outer ones first. */
static const char *const inner[] = {"fajit/attention.cuh", "fajit/linear.cuh",
                                    "fajit/linear_multiply.cuh"};

/* A block counts each tile of k that it multiplies, and each tile of keys, where its parameters
 * say: in fields that nothing else reads here. */
static const mutant counts_k = {"products are counted",
                                "const int next = loader::stage_after(stage), oldest = free;",
                                "if (threadIdx.x == 0)\n"
                                "    atomicAdd(from.p.errors, 1u);\n"
                                "const int next = loader::stage_after(stage), oldest = free;"};
static const mutant counts_keys = {"tiles of keys are counted",
                                   "attention_scores<shape>::multiply(m.queries()",
                                   "if (threadIdx.x == 0)\n"
                                   "    atomicAdd(reinterpret_cast<unsigned *>(p.lse), 1u);\n"
                                   "attention_scores<shape>::multiply(m.queries()"};

enum { ATTEND = CROSS_GROUPS, OUTPUT, COUNTERS };

/* Launches the case with counters in place of what the fields are for. Results have to be right. */
static void count_work(gpu_case *g, fa_kernel *const *functions, size_t count, unsigned *counted)
{
    const size_t bytes = COUNTERS * sizeof *counted;
    unsigned *counter = gpu_alloc(bytes);
    gpu_fill(counter, 0, bytes);
    const fa__launch launch = mutant_plan(&fa__op_cross_attention, g, 2);
    cross_kernel_params *k = launch.params[0];
    for (int n = 0; n < CROSS_GROUPS; n++)
        k->project[n].linear.errors = (uintptr_t)(counter + n);
    k->attend.lse = (uintptr_t)(counter + ATTEND);
    k->output.linear.errors = (uintptr_t)(counter + OUTPUT);
    mutant_start(&fa__op_cross_attention, g, functions, count, &launch);
    cr_expect_eq(mutant_wrong(g), 0u);
    gpu_download(counted, counter, bytes);
    gpu_free(counter);
}

static void compile_copies(fa_context *ctx, const fa_spec *spec, size_t count,
                           fa_kernel **functions)
{
    char *source = mutant_source(spec, cross_entries[0], inner, COUNT(inner), &counts_k);
    source = mutant_text(source, &counts_keys);
    for (size_t i = 0; i < count; i++)
        functions[i] = mutant_function(ctx, spec, cross_entries[i], source);
    free(source);
}

/* --- what is needed --- */

/* Tiles of [m, n] times tiles of k. */
static int64_t products(const linear_step *step, int64_t m, int64_t n, int64_t k)
{
    return fa__divide_up(m, step->tile_m) * fa__divide_up(n, step->tile_n) *
           fa__divide_up(k, TILE_K);
}

/* Every projection once, for all queries, and every head's scores once. */
static void need(const fa_cross_attention_spec *s, const cross_plan *p, int64_t needed[COUNTERS])
{
    const int64_t queries = (int64_t)s->batch * s->seqlen_q, keys = (int64_t)s->batch * s->seqlen_k;
    const int64_t of_q = s->heads_q * s->head_dim, of_k = s->heads_k * s->head_dim;
    needed[CROSS_Q] = products(&p->project, queries, of_q, s->model_dim);
    needed[CROSS_K] = needed[CROSS_V] = products(&p->project, keys, of_k, s->model_dim);
    needed[ATTEND] = s->batch * s->heads_q *
                     fa__divide_up(s->seqlen_q, fa__attention_step_rows(&p->attend)) *
                     fa__divide_up(s->seqlen_k, p->attend.key_tile);
    needed[OUTPUT] = products(&p->output, queries, s->model_dim, of_q);
}

/* --- counts of both --- */

typedef struct copies {
    fa_cross_attention_spec cross;
    fa_spec spec; /* as planned */
    cross_plan plan;
    char text[sizeof((fa__plan *)0)->text];
    size_t count;
    fa_kernel *functions[3];
} copies;

/* Sizes are given with each launch. */
static void copies_make(copies *x, fa_context *ctx, fa_cross_plan plan)
{
    fa__plan made;
    *x = (copies){.cross = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                            .plan = plan,
                            .heads_q = 4,
                            .heads_k = 4,
                            .head_dim = 32},
                  .count = cross_entry_count(plan)};
    x->spec = cross_spec(x->cross);
    OK(prepare(&x->spec, &made));
    fa__cross_plan_get(&made, &x->plan);
    memcpy(x->text, made.text, sizeof x->text);
    compile_copies(ctx, &x->spec, x->count, x->functions);
}

static void copies_release(copies *x)
{
    for (size_t i = 0; i < x->count; i++)
        fa_kernel_release(x->functions[i]);
}

static void run_counted(const copies *x, fa_cross_attention_spec sizes, unsigned *counted)
{
    static const char *const names[COUNTERS] = {"q", "k", "v", "attention", "output"};
    int64_t needed[COUNTERS];
    gpu_case g;
    make_cross(&g, x->cross, sizes, NULL, 1);
    mutant_give_workspace(&fa__op_cross_attention, &g);
    gpu_case_upload(&g);
    count_work(&g, x->functions, x->count, counted);
    need(&sizes, &x->plan, needed);
    for (int i = 0; i < COUNTERS; i++)
        cr_expect_eq(counted[i], needed[i], "%s of %s: %u tiles are multiplied, %lld needed",
                     names[i], x->text, counted[i], (long long)needed[i]);
    gpu_case_free(&g);
}

/* Where tiles leave nothing over: 2 Tq C C + 2 Tk C C for the products, 2 Tq Tk C for attention. */
static void expect_formula(const copies *x)
{
    enum { TQ = 128, TK = 128, C = 128 };
    const cross_plan *p = &x->plan;
    unsigned n[COUNTERS];
    run_counted(x, cross_sized(x->cross, 1, TQ, TK, C), n);
    const int64_t projected = (int64_t)(n[CROSS_Q] + n[CROSS_K] + n[CROSS_V]) * p->project.tile_m *
                              p->project.tile_n * TILE_K,
                  put_out = (int64_t)n[OUTPUT] * p->output.tile_m * p->output.tile_n * TILE_K,
                  attended = (int64_t)n[ATTEND] * fa__attention_step_rows(&p->attend) *
                             p->attend.key_tile * 32 * 2;
    cr_expect_eq(projected + put_out, 2 * TQ * C * C + 2 * TK * C * C, "%s", x->text);
    cr_expect_eq(attended, 2 * TQ * TK * C, "%s", x->text);
}

/* Several tiles of queries; then the last tile of everything is ragged, too. */
static void run_plan(fa_cross_plan plan)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    unsigned counted[COUNTERS];
    copies x;
    copies_make(&x, ctx, plan);
    expect_formula(&x);
    run_counted(&x, cross_sized(x.cross, 2, 150, 37, 72), counted);
    copies_release(&x);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_work, nothing_twice_in_one_launch)
{
    run_plan(FA_CROSS_ONE_LAUNCH);
}

Test(gpu_cross_attention_work, nothing_twice_in_few_launches)
{
    run_plan(FA_CROSS_FEW_LAUNCHES);
}
