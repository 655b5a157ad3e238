/* Device time of attention: that of a small float32 cross-attention, limited by launches and latency,
 * and forward passes of 16384 tokens, limited by arithmetic. Errors are measured beside times.
 *
 *     bench_attention [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 64
#define SAMPLES 12 /* rows that are computed again */

typedef struct attention_case {
    const char *name;
    fa_attention_spec spec; /* every size is baked */
    size_t sets;            /* of buffers */
} attention_case;

typedef struct attention_run {
    const attention_case *of;
    fa_kernel *kernel;
    fa_args args[MAX_SETS];
    size_t sets;  /* in use */
    double error; /* the largest that was seen */
} attention_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    attention_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

/* --- setting up --- */

static size_t count_q(const fa_attention_spec *s)
{
    return (size_t)s->batch * (size_t)s->seqlen_q * (size_t)s->heads_q * (size_t)s->head_dim;
}

static size_t count_k(const fa_attention_spec *s)
{
    return (size_t)s->batch * (size_t)s->seqlen_k * (size_t)s->heads_k * (size_t)s->head_dim;
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(attention_run *run, fa_context *ctx, const attention_case *of)
{
    const fa_attention_spec *s = &of->spec;
    fa_spec spec = FA_SPEC_INIT(FA_OP_ATTENTION);
    *run = (attention_run){.of = of, .sets = of->sets};
    spec.attention = *s;
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(of->name, "fajit", fa_last_error());
        return false;
    }
    for (size_t i = 0; i < of->sets; i++) {
        fa_attention_args *a = &run->args[i].attention;
        run->args[i] = (fa_args)FA_ARGS_INIT(FA_OP_ATTENTION);
        a->q.data = bench_alloc_random(s->dtype, count_q(s), 4 * i + 1);
        a->k.data = bench_alloc_random(s->dtype, count_k(s), 4 * i + 2);
        a->v.data = bench_alloc_random(s->dtype, count_k(s), 4 * i + 3);
        a->out.data = gpu_alloc(count_q(s) * bench_dtype_bytes(s->dtype));
        gpu_fill(a->out.data, 0xff, count_q(s) * bench_dtype_bytes(s->dtype)); /* NaN */
    }
    return true;
}

static void tear_down(attention_run *run)
{
    for (size_t i = 0; i < run->of->sets; i++) {
        gpu_free(run->args[i].attention.q.data);
        gpu_free(run->args[i].attention.k.data);
        gpu_free(run->args[i].attention.v.data);
        gpu_free(run->args[i].attention.out.data);
    }
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

/* k and v of one batch, and a row of q and of the output, on the host. */
typedef struct sample {
    char *k, *v, q[1024], out[1024];
    double *p;
} sample;

/* The row's exponentials, and their sum. */
static double exponentials(const fa_attention_spec *s, const sample *x, size_t keys, size_t begin)
{
    const size_t dim = (size_t)s->head_dim, step = (size_t)s->heads_k * dim;
    double largest = -1e300, sum = 0;
    for (size_t j = 0; j < keys; j++) {
        double dot = 0;
        for (size_t d = 0; d < dim; d++)
            dot += bench_load(s->dtype, x->q, d) * bench_load(s->dtype, x->k, j * step + begin + d);
        x->p[j] = dot / sqrt((double)dim);
        largest = fmax(largest, x->p[j]);
    }
    for (size_t j = 0; j < keys; j++)
        sum += x->p[j] = exp(x->p[j] - largest);
    return sum;
}

/* The largest error of a row, in units of what is allowed; the error itself goes to the run's. */
static double judge(attention_run *run, const sample *x, size_t row, size_t head)
{
    const fa_attention_spec *s = &run->of->spec;
    const size_t dim = (size_t)s->head_dim, step = (size_t)s->heads_k * dim;
    const size_t begin = head / (size_t)(s->heads_q / s->heads_k) * dim;
    const size_t keys = s->mask == FA_ATTENTION_CAUSAL
                            ? row + 1 + (size_t)(s->seqlen_k - s->seqlen_q)
                            : (size_t)s->seqlen_k;
    const double sum = exponentials(s, x, keys, begin);
    const double allowed = s->dtype == FA_F32 ? 1e-5 : 0x1p-7;
    double worst = 0;
    for (size_t d = 0; d < dim; d++) {
        double want = 0;
        for (size_t j = 0; j < keys; j++)
            want += x->p[j] / sum * bench_load(s->dtype, x->v, j * step + begin + d);
        const double error = fabs(bench_load(s->dtype, x->out, d) - want);
        const double ratio = error / (allowed * (1 + fabs(want)));
        run->error = fmax(run->error, error);
        worst = ratio <= worst ? worst : ratio; /* NaN is worse than anything */
    }
    return worst;
}

/* Launches once on the first set and looks at rows drawn at random. */
static bool result_is_right(attention_run *run, gpu_stream stream)
{
    const fa_attention_spec *s = &run->of->spec;
    const fa_attention_args *a = &run->args[0].attention;
    const size_t bytes = bench_dtype_bytes(s->dtype), row_bytes = (size_t)s->head_dim * bytes;
    const size_t of_batch = count_k(s) / (size_t)s->batch * bytes;
    sample x = {.k = malloc(of_batch),
                .v = malloc(of_batch),
                .p = malloc((size_t)s->seqlen_k * sizeof *x.p)};
    uint64_t seed = 7;
    if (!x.k || !x.v || !x.p)
        bench_die("out of memory");
    bench_check(fa_launch(run->kernel, &run->args[0], stream), run->of->name);
    gpu_synchronize(stream, NULL);
    const size_t batch = bench_random(&seed) % (size_t)s->batch;
    gpu_download(x.k, (const char *)a->k.data + batch * of_batch, of_batch);
    gpu_download(x.v, (const char *)a->v.data + batch * of_batch, of_batch);
    bool right = true;
    for (int i = 0; i < SAMPLES && right; i++) {
        const size_t row = bench_random(&seed) % (size_t)s->seqlen_q;
        const size_t head = bench_random(&seed) % (size_t)s->heads_q;
        const size_t at =
            ((batch * (size_t)s->seqlen_q + row) * (size_t)s->heads_q + head) * row_bytes;
        gpu_download(x.q, (const char *)a->q.data + at, row_bytes);
        gpu_download(x.out, (const char *)a->out.data + at, row_bytes);
        right = judge(run, &x, row, head) <= 1;
    }
    free(x.k);
    free(x.v);
    free(x.p);
    if (!right)
        bench_emit_missing(run->of->name, "fajit", "wrong result");
    return right;
}

/* --- measuring --- */

/* Multiplications and additions, of what the mask leaves. */
static double flops_of(const fa_attention_spec *s)
{
    const double pairs = (double)s->seqlen_q * s->seqlen_k;
    const double seen = s->mask == FA_ATTENTION_CAUSAL ? pairs / 2 : pairs;
    return 4 * seen * s->head_dim * s->heads_q * s->batch;
}

static void run_case(fa_context *ctx, const attention_case *of, bool quick, double gb_per_s,
                     gpu_stream stream)
{
    const fa_attention_spec *s = &of->spec;
    attention_run run;
    if (!set_up(&run, ctx, of))
        return;
    bench_emit_compile(of->name, run.kernel);
    const bool right = result_is_right(&run, stream);
    bench_op op = {.name = of->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   /* q, k and v are read, the output is written */
                   .floor_bytes =
                       2 * (double)((count_q(s) + count_k(s)) * bench_dtype_bytes(s->dtype)),
                   .flops = flops_of(s),
                   .error = run.error,
                   .error_note = "the largest of 12 rows against float64; inputs in [-1, 1)"};
    /* Three products make one of float32. */
    op.flops_per_us = s->dtype == FA_F32 ? BENCH_TF32_FLOPS_PER_US / 3 : BENCH_BF16_FLOPS_PER_US;
    snprintf(op.sizes, sizeof op.sizes, "[%d,%d,%d,%d,%d]", s->batch, s->seqlen_q, s->seqlen_k,
             s->heads_q, s->head_dim);
    if (right)
        (of->sets > 2 ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

#define LARGE(DTYPE, MASK, B, H, N, D)                                                             \
    {                                                                                              \
        .dtype = DTYPE, .mask = MASK, .head_dim = D, .batch = B, .heads_q = H, .heads_k = H,       \
        .seqlen_q = N, .seqlen_k = N                                                               \
    }

static const attention_case cases[] = {
    {"attention_canonical_f32",
     {.head_dim = 32, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen_q = 64, .seqlen_k = 128},
     MAX_SETS},
    {"attention_bf16_d64_full", LARGE(FA_BF16, FA_ATTENTION_FULL, 4, 32, 4096, 64), 2},
    {"attention_bf16_d64_causal", LARGE(FA_BF16, FA_ATTENTION_CAUSAL, 4, 32, 4096, 64), 2},
    {"attention_bf16_d128_full", LARGE(FA_BF16, FA_ATTENTION_FULL, 4, 16, 4096, 128), 2},
    {"attention_bf16_d128_causal", LARGE(FA_BF16, FA_ATTENTION_CAUSAL, 4, 16, 4096, 128), 2},
    {"attention_bf16_d256_full", LARGE(FA_BF16, FA_ATTENTION_FULL, 4, 8, 4096, 256), 2},
    {"attention_bf16_d80_full", LARGE(FA_BF16, FA_ATTENTION_FULL, 4, 25, 4096, 80), 2},
    {"attention_f32_d64_full", LARGE(FA_F32, FA_ATTENTION_FULL, 4, 8, 2048, 64), 2},
};

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (bench_wanted(only, cases[i].name))
            run_case(ctx, &cases[i], quick, gb_per_s, stream);
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_attention", "attention", run_all);
}
