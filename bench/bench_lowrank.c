/* Device time of lowrank_kv: the canonical float32 case, limited by launches, and expansions of 8192
 * tokens, limited by tensor cores or by memory, each against its floor.
 *
 *     bench_lowrank [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SETS 128

typedef struct lowrank_case {
    char name[96];
    fa_lowrank_kv_spec spec; /* every size is baked */
    size_t sets;
} lowrank_case;

/* What the launches of one case work on. */
typedef struct lowrank_run {
    const lowrank_case *of;
    fa_kernel *kernel;
    fa_args args[MAX_SETS];
    size_t tokens, hidden, down, up, out; /* elements of one set's tensors */
    size_t sets;                          /* in use */
} lowrank_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    lowrank_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

/* A set has its own activations, weights and output. */
static void make_set(lowrank_run *run, size_t i)
{
    const fa_dtype dtype = run->of->spec.dtype;
    const size_t bytes = run->out * bench_dtype_bytes(run->of->spec.dtype);
    size_t workspace = 0;
    fa_args *args = &run->args[i];
    *args = (fa_args)FA_ARGS_INIT(FA_OP_LOWRANK_KV);
    fa_lowrank_kv_args *a = &args->lowrank_kv;
    a->hidden.data = bench_alloc_random(dtype, run->hidden, 4 * i + 1);
    a->w_down = bench_alloc_random(dtype, run->down, 4 * i + 2);
    a->w_up_k.data = bench_alloc_random(dtype, run->up, 4 * i + 3);
    a->w_up_v.data = bench_alloc_random(dtype, run->up, 4 * i + 4);
    a->k_out.data = gpu_alloc(bytes);
    gpu_fill(a->k_out.data, 0xff, bytes); /* NaN in every type */
    bench_check(fa_workspace_size(run->kernel, args, &workspace), "fa_workspace_size");
    args->workspace = workspace ? gpu_alloc(workspace) : NULL;
    args->workspace_bytes = workspace;
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(lowrank_run *run, fa_context *ctx, const lowrank_case *of)
{
    const fa_lowrank_kv_spec *s = &of->spec;
    const size_t columns = (size_t)s->heads * (size_t)s->head_dim;
    *run = (lowrank_run){.of = of, .sets = of->sets};
    run->tokens = (size_t)s->batch * (size_t)s->seqlen;
    run->hidden = run->tokens * (size_t)s->model_dim;
    run->down = (size_t)s->model_dim * (size_t)s->rank;
    run->up = (size_t)s->rank * columns;
    run->out = run->tokens * 2 * columns;
    fa_spec spec = FA_SPEC_INIT(FA_OP_LOWRANK_KV);
    spec.lowrank_kv = *s;
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(of->name, "fajit", fa_last_error());
        return false;
    }
    for (size_t i = 0; i < run->sets; i++)
        make_set(run, i);
    return true;
}

static void tear_down(lowrank_run *run)
{
    for (size_t i = 0; i < run->of->sets; i++) {
        const fa_lowrank_kv_args *a = &run->args[i].lowrank_kv;
        gpu_free(a->hidden.data);
        gpu_free((void *)(uintptr_t)a->w_down);
        gpu_free(a->w_up_k.data);
        gpu_free(a->w_up_v.data);
        gpu_free(a->k_out.data);
        if (run->args[i].workspace)
            gpu_free(run->args[i].workspace);
    }
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

#define SAMPLES 24

typedef struct host_weights {
    char *down, *up[2];
} host_weights;

static char *downloaded(const void *from, size_t bytes)
{
    char *host = malloc(bytes);
    if (!host)
        bench_die("out of memory");
    gpu_download(host, from, bytes);
    return host;
}

/* One token's keys and values against double precision. Inputs lie in [-1, 1): a sum of n products
 * has a root mean square of sqrt(n) / 3. */
static bool token_is_right(const lowrank_run *run, const host_weights *w, size_t token)
{
    const fa_lowrank_kv_spec *s = &run->of->spec;
    const fa_lowrank_kv_args *a = &run->args[0].lowrank_kv;
    const size_t m = (size_t)s->model_dim, r = (size_t)s->rank, bytes = bench_dtype_bytes(s->dtype);
    const size_t columns = (size_t)s->heads * (size_t)s->head_dim;
    const double half_unit = s->dtype == FA_BF16               ? 0x1p-8
                             : s->sums == FA_LOWRANK_SUMS_TF32 ? 0x1p-11
                                                               : 1e-6;
    const double size = sqrt((double)(m * r)) / 9;
    char *hidden = downloaded((char *)a->hidden.data + token * m * bytes, m * bytes);
    char *out =
        downloaded((char *)a->k_out.data + token * 2 * columns * bytes, 2 * columns * bytes);
    double *latent = calloc(r, sizeof *latent);
    bool right = latent != NULL;
    for (size_t i = 0; i < m && latent; i++)
        for (size_t k = 0; k < r; k++)
            latent[k] += bench_load(s->dtype, hidden, i) * bench_load(s->dtype, w->down, i * r + k);
    for (size_t c = 0; c < 2 * columns && right; c++) {
        double want = 0;
        for (size_t k = 0; k < r; k++)
            want +=
                latent[k] * bench_load(s->dtype, w->up[c >= columns], k * columns + c % columns);
        right = fabs(bench_load(s->dtype, out, c) - want) <= half_unit * (6 * size + fabs(want));
    }
    free(hidden);
    free(out);
    free(latent);
    return right;
}

static bool result_is_right(const lowrank_run *run, gpu_stream stream)
{
    const fa_lowrank_kv_args *a = &run->args[0].lowrank_kv;
    const size_t bytes = bench_dtype_bytes(run->of->spec.dtype);
    uint64_t seed = 7;
    bench_check(fa_launch(run->kernel, &run->args[0], stream), run->of->name);
    gpu_synchronize(stream, NULL);
    host_weights w = {
        downloaded(a->w_down, run->down * bytes),
        {downloaded(a->w_up_k.data, run->up * bytes), downloaded(a->w_up_v.data, run->up * bytes)}};
    bool right = token_is_right(run, &w, run->tokens - 1);
    for (size_t i = 0; i < SAMPLES && right; i++)
        right = token_is_right(run, &w, bench_random(&seed) % run->tokens);
    free(w.down);
    free(w.up[0]);
    free(w.up[1]);
    if (!right)
        bench_emit_missing(run->of->name, "fajit", "wrong result");
    return right;
}

/* --- measuring --- */

static void run_case(fa_context *ctx, const lowrank_case *of, bool quick, double gb_per_s,
                     gpu_stream stream)
{
    const fa_lowrank_kv_spec *s = &of->spec;
    lowrank_run run;
    if (!set_up(&run, ctx, of))
        return;
    bench_emit_compile(of->name, run.kernel);
    const size_t elements = run.hidden + run.down + 2 * run.up + run.out;
    bench_op op = {.name = of->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   .floor_bytes = (double)(elements * bench_dtype_bytes(s->dtype)),
                   .flops = 2.0 * (double)run.tokens * (double)(run.down + 2 * run.up),
                   .flops_per_us =
                       s->dtype == FA_F32 ? BENCH_TF32_FLOPS_PER_US / 3 : BENCH_BF16_FLOPS_PER_US};
    snprintf(op.sizes, sizeof op.sizes, "%zu tokens, M %d, R %d, G %d, D %d", run.tokens,
             s->model_dim, s->rank, s->heads, s->head_dim);
    const bool right = result_is_right(&run, stream);
    if (right)
        (of->sets == MAX_SETS ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

#define CANONICAL .model_dim = 256, .rank = 48, .heads = 4, .head_dim = 32, .batch = 4, .seqlen = 96
#define LARGE .dtype = FA_BF16, .head_dim = 128, .batch = 1, .seqlen = 8192

static const lowrank_case cases[] = {
    {"lowrank_canonical_f32", {CANONICAL}, MAX_SETS},
    {"lowrank_canonical_f32_chunked", {CANONICAL, .sums = FA_LOWRANK_SUMS_CHUNKED}, MAX_SETS},
    {"lowrank_canonical_f32_tree", {CANONICAL, .sums = FA_LOWRANK_SUMS_TREE}, MAX_SETS},
    {"lowrank_canonical_f32_tf32", {CANONICAL, .sums = FA_LOWRANK_SUMS_TF32}, MAX_SETS},
    {"lowrank_canonical_f32_double", {CANONICAL, .sums = FA_LOWRANK_SUMS_DOUBLE}, MAX_SETS},
    {"lowrank_canonical_f32_two_launches", {CANONICAL, .plan = FA_LOWRANK_TWO_LAUNCHES}, MAX_SETS},
    {"lowrank_bf16_m4096_r512_g8", {LARGE, .model_dim = 4096, .rank = 512, .heads = 8}, 2},
    {"lowrank_bf16_m4096_r512_g16", {LARGE, .model_dim = 4096, .rank = 512, .heads = 16}, 2},
    {"lowrank_bf16_m1024_r64_g8", {LARGE, .model_dim = 1024, .rank = 64, .heads = 8}, 3},
    {"lowrank_bf16_m1024_r64_g8_two_launches",
     {LARGE, .model_dim = 1024, .rank = 64, .heads = 8, .plan = FA_LOWRANK_TWO_LAUNCHES},
     3},
};

#define MOST_TOKENS 8

/* Where one launch and two cost the same, and what is taken: what the cost model is held to. The same
 * tokens as in report_rows.py. */
static const struct {
    const char *name;
    int32_t tokens[MOST_TOKENS];
    fa_lowrank_kv_spec spec;
} crossovers[] = {
    {"f32_m256_r48", {64, 256, 1024, 2048, 3072, 4096, 8192, 16384}, {CANONICAL}},
    {"bf16_m256_r48", {256, 1024, 2048, 4096, 8192}, {CANONICAL, .dtype = FA_BF16}},
    {"bf16_m384_r192",
     {64, 256, 1024, 4096, 16384},
     {.dtype = FA_BF16, .model_dim = 384, .rank = 192, .heads = 8, .head_dim = 64}},
};

static const char *const plans[] = {
    [FA_LOWRANK_AUTO] = "auto", [FA_LOWRANK_ONE_LAUNCH] = "one", [FA_LOWRANK_TWO_LAUNCHES] = "two"};

#define CROSSOVERS (sizeof crossovers / sizeof crossovers[0])
#define PLANS (sizeof plans / sizeof plans[0])
#define MOST_CROSSING (CROSSOVERS * MOST_TOKENS * PLANS)

static size_t make_crossing(lowrank_case out[MOST_CROSSING])
{
    size_t count = 0;
    for (size_t i = 0; i < CROSSOVERS; i++)
        for (size_t n = 0; n < MOST_TOKENS && crossovers[i].tokens[n]; n++)
            for (size_t plan = 0; plan < PLANS; plan++) {
                lowrank_case *of = &out[count++];
                *of = (lowrank_case){.spec = crossovers[i].spec, .sets = 8};
                of->spec.batch = 1;
                of->spec.seqlen = crossovers[i].tokens[n];
                of->spec.plan = (fa_lowrank_plan)plan;
                snprintf(of->name, sizeof of->name, "lowrank_crossover_%s_%d_%s",
                         crossovers[i].name, of->spec.seqlen, plans[plan]);
            }
    return count;
}

/* Compiled beside each other first, for there are many; the cases above tell how long each takes. What
 * fails is told by its own case. */
static void run_crossovers(fa_context *ctx, bool quick, double gb_per_s, gpu_stream stream)
{
    lowrank_case crossing[MOST_CROSSING];
    fa_spec specs[MOST_CROSSING];
    const size_t count = make_crossing(crossing);
    for (size_t i = 0; i < count; i++) {
        specs[i] = (fa_spec)FA_SPEC_INIT(FA_OP_LOWRANK_KV);
        specs[i].lowrank_kv = crossing[i].spec;
    }
    (void)fa_warm(ctx, specs, count, NULL, NULL);
    for (size_t i = 0; i < count; i++)
        run_case(ctx, &crossing[i], quick, gb_per_s, stream);
}

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (bench_wanted(only, cases[i].name))
            run_case(ctx, &cases[i], quick, gb_per_s, stream);
    if (bench_wanted(only, "lowrank_crossover"))
        run_crossovers(ctx, quick, gb_per_s, stream);
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_lowrank", "lowrank", run_all);
}
