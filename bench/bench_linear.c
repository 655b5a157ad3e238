/* Device time of linear: large products in float32 and bfloat16, limited by arithmetic, small ones in
 * float32, limited by launches and latency, and few rows in bfloat16, limited by reading W. Errors are
 * measured beside times.
 *
 *     bench_linear [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 192
#define SAMPLES 64 /* rows of x, and of W, of which every product is looked at */

typedef struct linear_case {
    const char *name;
    fa_linear_spec spec; /* every size is baked */
    size_t sets;         /* of x, W and y */
} linear_case;

/* What the launches of one case work on. */
typedef struct linear_run {
    const linear_case *of;
    fa_kernel *kernel;
    fa_args args[MAX_SETS];
    size_t sets;  /* in use */
    double error; /* the largest of the samples */
} linear_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    linear_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

/* --- setting up --- */

static void make_set(linear_run *run, size_t i)
{
    const fa_linear_spec *s = &run->of->spec;
    const size_t bytes = (size_t)s->m * (size_t)s->n * bench_dtype_bytes(s->dtype);
    fa_args *args = &run->args[i];
    *args = (fa_args)FA_ARGS_INIT(FA_OP_LINEAR);
    args->linear.x.data = bench_alloc_random(s->dtype, (size_t)s->m * (size_t)s->k, 8 * i + 1);
    args->linear.w.data = bench_alloc_random(s->dtype, (size_t)s->n * (size_t)s->k, 8 * i + 2);
    args->linear.y[0].data = gpu_alloc(bytes);
    gpu_fill(args->linear.y[0].data, 0xff, bytes); /* NaN in every type */
    bench_check(fa_workspace_size(run->kernel, args, &args->workspace_bytes), "fa_workspace_size");
    if (!args->workspace_bytes)
        return;
    args->workspace = gpu_alloc(args->workspace_bytes);
    gpu_fill(args->workspace, 0, args->workspace_bytes);
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(linear_run *run, fa_context *ctx, const linear_case *of)
{
    *run = (linear_run){.of = of, .sets = of->sets};
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    spec.linear = of->spec;
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(of->name, "fajit", fa_last_error());
        return false;
    }
    for (size_t i = 0; i < run->sets; i++)
        make_set(run, i);
    return true;
}

static void tear_down(linear_run *run)
{
    for (size_t i = 0; i < run->of->sets; i++) {
        const fa_args *args = &run->args[i];
        gpu_free(args->linear.x.data);
        gpu_free(args->linear.w.data);
        gpu_free(args->linear.y[0].data);
        if (args->workspace)
            gpu_free(args->workspace);
    }
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

/* Row number `row` of a matrix of the case, as doubles. */
static void load_row(const fa_linear_spec *s, const void *matrix, size_t row, double *to,
                     void *room)
{
    const size_t bytes = (size_t)s->k * bench_dtype_bytes(s->dtype);
    gpu_download(room, (const char *)matrix + row * bytes, bytes);
    for (size_t k = 0; k < (size_t)s->k; k++)
        to[k] = bench_load(s->dtype, room, k);
}

/* |y - x W^T| of one element, in units of what is allowed; the error itself goes to the run's. */
static double judge(linear_run *run, size_t m, size_t n, const double *x, const double *w)
{
    const fa_linear_spec *s = &run->of->spec;
    const size_t size = bench_dtype_bytes(s->dtype);
    const char *at = (const char *)run->args[0].linear.y[0].data + (m * (size_t)s->n + n) * size;
    char element[8];
    double sum = 0;
    for (size_t k = 0; k < (size_t)s->k; k++)
        sum += x[k] * w[k];
    gpu_download(element, at, size);
    const double error = fabs(bench_load(s->dtype, element, 0) - sum);
    const double rounding = s->dtype == FA_F32 ? 1e-6 : 0x1.1p-8;
    run->error = fmax(run->error, error);
    return error / (1e-6 * sqrt(s->k) + rounding * fabs(sum));
}

/* Launches once on the first set and looks at products of rows drawn at random. */
static bool result_is_right(linear_run *run, gpu_stream stream)
{
    const fa_linear_spec *s = &run->of->spec;
    const size_t k = (size_t)s->k;
    double *x = calloc(k, sizeof *x), *w = calloc(SAMPLES * k, sizeof *w), worst = 0;
    void *room = malloc(k * sizeof(float));
    size_t columns[SAMPLES];
    uint64_t seed = 7;
    if (!x || !w || !room)
        bench_die("out of memory");
    bench_check(fa_launch(run->kernel, &run->args[0], stream), run->of->name);
    gpu_synchronize(stream, NULL);
    for (size_t i = 0; i < SAMPLES; i++) {
        columns[i] = bench_random(&seed) % (size_t)s->n;
        load_row(s, run->args[0].linear.w.data, columns[i], w + i * k, room);
    }
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t m = bench_random(&seed) % (size_t)s->m;
        load_row(s, run->args[0].linear.x.data, m, x, room);
        for (size_t c = 0; c < SAMPLES; c++) {
            const double ratio = judge(run, m, columns[c], x, w + c * k);
            worst = ratio <= worst ? worst : ratio; /* NaN is worse than anything */
        }
    }
    free(x);
    free(w);
    free(room);
    if (!(worst <= 1))
        bench_emit_missing(run->of->name, "fajit", "wrong result");
    return worst <= 1;
}

/* --- measuring --- */

/* x and W are read, y is written. */
static double floor_bytes(const fa_linear_spec *s)
{
    const double m = s->m, n = s->n, k = s->k;
    return (m * k + n * k + m * n) * (double)bench_dtype_bytes(s->dtype);
}

/* Three products make one of float32: of tf32 numbers, or of halves, which are twice as fast. */
static double rate_of(const linear_run *run)
{
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_kernel_info(run->kernel, &info), "fa_kernel_info");
    if (run->of->spec.dtype != FA_F32)
        return BENCH_BF16_FLOPS_PER_US;
    return (strstr(info.plan, "f16") ? BENCH_BF16_FLOPS_PER_US : BENCH_TF32_FLOPS_PER_US) / 3;
}

static void run_case(fa_context *ctx, const linear_case *of, bool quick, double gb_per_s,
                     gpu_stream stream)
{
    const fa_linear_spec *s = &of->spec;
    linear_run run;
    if (!set_up(&run, ctx, of))
        return;
    bench_emit_compile(of->name, run.kernel);
    const bool right = result_is_right(&run, stream);
    bench_op op = {.name = of->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   .floor_bytes = floor_bytes(s),
                   .flops = 2.0 * s->m * s->n * s->k,
                   .error = run.error,
                   .error_note = "the largest of 4096 elements against float64; inputs in [-1, 1)"};
    op.flops_per_us = rate_of(&run);
    snprintf(op.sizes, sizeof op.sizes, "M %d N %d K %d", s->m, s->n, s->k);
    if (right)
        (of->sets > 2 ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

#define BF16 .dtype = FA_BF16
#define TF32 .arithmetic = FA_LINEAR_SPLIT_TF32
#define F16 .arithmetic = FA_LINEAR_SPLIT_F16

static const linear_case cases[] = {
    {"linear_f32_M8192_N512_K4096", {.m = 8192, .n = 512, .k = 4096}, 2},
    {"linear_f32_M8192_N2048_K512", {.m = 8192, .n = 2048, .k = 512}, 2},
    {"linear_f32_M8192_N4096_K512", {.m = 8192, .n = 4096, .k = 512}, 2},
    {"linear_f32_M8192_N2048_K2048", {.m = 8192, .n = 2048, .k = 2048}, 2},
    {"linear_f32_split_tf32_M8192_N512_K4096",
     {TF32, .m = 8192, .n = 512, .k = 4096, .splits = 1},
     2},
    {"linear_f32_split_tf32_M8192_N2048_K512",
     {TF32, .m = 8192, .n = 2048, .k = 512, .splits = 1},
     2},
    {"linear_f32_split_tf32_M8192_N4096_K512",
     {TF32, .m = 8192, .n = 4096, .k = 512, .splits = 1},
     2},
    {"linear_f32_split_tf32_M8192_N2048_K2048",
     {TF32, .m = 8192, .n = 2048, .k = 2048, .splits = 1},
     2},
    {"linear_f32_split_f16_M8192_N512_K4096", {F16, .m = 8192, .n = 512, .k = 4096}, 2},
    {"linear_f32_split_f16_M8192_N2048_K512", {F16, .m = 8192, .n = 2048, .k = 512}, 2},
    {"linear_f32_split_f16_M8192_N4096_K512", {F16, .m = 8192, .n = 4096, .k = 512}, 2},
    {"linear_f32_split_f16_M8192_N2048_K2048", {F16, .m = 8192, .n = 2048, .k = 2048}, 2},
    {"linear_bf16_M8192_N512_K4096", {BF16, .m = 8192, .n = 512, .k = 4096, .splits = 1}, 2},
    {"linear_bf16_M8192_N2048_K512", {BF16, .m = 8192, .n = 2048, .k = 512, .splits = 1}, 2},
    {"linear_bf16_M8192_N4096_K512", {BF16, .m = 8192, .n = 4096, .k = 512, .splits = 1}, 2},
    {"linear_bf16_M8192_N2048_K2048", {BF16, .m = 8192, .n = 2048, .k = 2048, .splits = 1}, 2},
    {"linear_f32_M384_N48_K256", {.m = 384, .n = 48, .k = 256}, MAX_SETS},
    {"linear_f32_M384_N256_K48", {.m = 384, .n = 256, .k = 48}, MAX_SETS},
    {"linear_f32_M512_N256_K256", {.m = 512, .n = 256, .k = 256}, 80},
    {"linear_bf16_M1_N4096_K4096", {BF16, .m = 1, .n = 4096, .k = 4096}, 8},
    {"linear_bf16_M16_N4096_K4096", {BF16, .m = 16, .n = 4096, .k = 4096}, 8},
};

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        linear_case of = cases[i];
        if (!bench_wanted(only, of.name))
            continue;
        if (quick && of.sets <= 2)
            of.spec.m /= 8;
        run_case(ctx, &of, quick, gb_per_s, stream);
    }
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_linear", "linear", run_all);
}
