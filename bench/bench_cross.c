/* Device time of cross_attention: the canonical block of encoder and decoder by both plans, limited
 * by launches and latency; a large one, limited by tensor cores; and a step of a decoder on keys that
 * are kept, limited by memory. How long each took to compile is reported too.
 *
 *     bench_cross [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 64
#define IN_L2 8 /* sets at most that do not ask for rows from memory */
/* Rows of x_kv that differ. Their projections are all that a check of any size has to compute; the
 * rotation tells the rest apart. */
#define DISTINCT 61

typedef struct cross_case {
    char name[64];
    fa_cross_attention_spec spec; /* every size is baked */
    size_t sets;                  /* of everything; many: the work is small */
} cross_case;

/* What the launches of one case work on. */
typedef struct cross_run {
    const cross_case *of;
    fa_kernel *kernel;
    fa_args args[MAX_SETS];
    size_t sets; /* in use */
    /* rows of x_query and x_kv, of q and of k as columns, elements of a token */
    size_t rows_q, rows_k, columns_q, columns_k, model_dim;
} cross_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    cross_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

static bool is_whole(const cross_run *run)
{
    return run->of->spec.form == FA_CROSS_WHOLE;
}

/* --- setting up --- */

/* In [-scale, scale); rows repeat after `distinct` of them. */
static void *random_rows(const cross_run *run, size_t rows, size_t columns, size_t distinct,
                         double scale, uint64_t seed)
{
    const fa_dtype dtype = run->of->spec.dtype;
    void *data = gpu_alloc(rows * columns * bench_dtype_bytes(dtype));
    bench_fill(data, dtype, rows * columns, distinct * columns, scale, seed);
    return data;
}

/* With these weights q, k and v have a size of about 1, so that scores make a difference. */
static void *random_weights(const cross_run *run, size_t rows, size_t columns, uint64_t seed)
{
    return random_rows(run, rows, columns, rows, 3 / sqrt((double)columns), seed);
}

static void make_set(cross_run *run, size_t i)
{
    fa_args *args = &run->args[i];
    *args = (fa_args)FA_ARGS_INIT(FA_OP_CROSS_ATTENTION);
    fa_cross_attention_args *a = &args->cross_attention;
    const size_t c = run->model_dim, h = run->columns_q, g = run->columns_k;
    a->x_query.data = random_rows(run, run->rows_q, c, run->rows_q, 1, 8 * i + 1);
    a->w_q.data = random_weights(run, h, c, 8 * i + 2);
    a->w_out.data = random_weights(run, c, h, 8 * i + 3);
    if (is_whole(run)) {
        a->x_kv.data = random_rows(run, run->rows_k, c, DISTINCT, 1, 8 * i + 4);
        a->w_k.data = random_weights(run, g, c, 8 * i + 5);
        a->w_v.data = random_weights(run, g, c, 8 * i + 6);
    } else {
        a->k.data = random_rows(run, run->rows_k, g, run->rows_k, 2, 8 * i + 4);
        a->v.data = random_rows(run, run->rows_k, g, run->rows_k, 2, 8 * i + 5);
    }
    const size_t out_bytes = run->rows_q * c * bench_dtype_bytes(run->of->spec.dtype);
    a->out.data = gpu_alloc(out_bytes);
    gpu_fill(a->out.data, 0xff, out_bytes); /* NaN in every type */
    bench_check(fa_workspace_size(run->kernel, args, &args->workspace_bytes), "fa_workspace_size");
    args->workspace = gpu_alloc(args->workspace_bytes);
    gpu_fill(args->workspace, 0, args->workspace_bytes);
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(cross_run *run, fa_context *ctx, const cross_case *of)
{
    const fa_cross_attention_spec *s = &of->spec;
    *run = (cross_run){.of = of, .sets = of->sets};
    run->rows_q = (size_t)s->batch * (size_t)s->seqlen_q;
    run->rows_k = (size_t)s->batch * (size_t)s->seqlen_k;
    run->columns_q = (size_t)s->heads_q * (size_t)s->head_dim;
    run->columns_k = (size_t)s->heads_k * (size_t)s->head_dim;
    run->model_dim = (size_t)s->model_dim;
    fa_spec spec = FA_SPEC_INIT(FA_OP_CROSS_ATTENTION);
    spec.cross_attention = *s;
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(of->name, "fajit", fa_last_error());
        return false;
    }
    for (size_t i = 0; i < run->sets; i++)
        make_set(run, i);
    return true;
}

static void tear_down(cross_run *run)
{
    for (size_t i = 0; i < run->of->sets; i++) {
        const fa_cross_attention_args *a = &run->args[i].cross_attention;
        void *const all[] = {a->x_query.data, a->x_kv.data,          a->k.data,   a->v.data,
                             a->w_q.data,     a->w_k.data,           a->w_v.data, a->w_out.data,
                             a->out.data,     run->args[i].workspace};
        for (size_t m = 0; m < sizeof all / sizeof all[0]; m++)
            gpu_free(all[m]);
    }
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

#define SAMPLES 6 /* rows that are computed again */

static double *doubles(size_t count)
{
    double *x = malloc(count * sizeof *x);
    if (!x)
        bench_die("out of memory");
    return x;
}

/* Elements of device memory, from number `first`. */
static double *loaded(const cross_run *run, const void *data, size_t first, size_t count)
{
    const size_t bytes = bench_dtype_bytes(run->of->spec.dtype);
    double *x = doubles(count);
    char *host = malloc(count * bytes);
    if (!host)
        bench_die("out of memory");
    gpu_download(host, (const char *)data + first * bytes, count * bytes);
    for (size_t i = 0; i < count; i++)
        x[i] = bench_load(run->of->spec.dtype, host, i);
    free(host);
    return x;
}

/* y = x W^T for `rows` rows of x; W is [n, k]. */
static double *projected(const double *x, const double *w, size_t rows, size_t n, size_t k)
{
    double *y = doubles(rows * n);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (size_t j = 0; j < k; j++)
                sum += x[r * k + j] * w[i * k + j];
            y[r * n + i] = sum;
        }
    return y;
}

/* The heads of one row. */
static void rotate(const fa_cross_attention_spec *s, double *x, size_t columns, size_t position)
{
    for (size_t i = 0; i < columns; i += 2) {
        const int32_t pair = (int32_t)(i % (size_t)s->head_dim) / 2;
        const double angle = bench_angle((int32_t)position, pair, s->head_dim);
        const double a = x[i], b = x[i + 1], c = cos(angle), d = sin(angle);
        x[i] = a * c - b * d;
        x[i + 1] = b * c + a * d;
    }
}

/* Keys (to be rotated) or values of one batch, [Tk, G * D]: from x_kv, whose rows repeat. */
static double *repeated(const cross_run *run, const void *w, size_t batch, bool rotated)
{
    const fa_cross_attention_spec *s = &run->of->spec;
    const size_t n = run->columns_k, c = run->model_dim, keys = (size_t)s->seqlen_k;
    const size_t distinct = run->rows_k < DISTINCT ? run->rows_k : DISTINCT;
    double *x = loaded(run, run->args[0].cross_attention.x_kv.data, 0, distinct * c);
    double *weights = loaded(run, w, 0, n * c);
    double *once = projected(x, weights, distinct, n, c), *all = doubles(keys * n);
    for (size_t j = 0; j < keys; j++) {
        memcpy(&all[j * n], &once[(batch * keys + j) % distinct * n], n * sizeof *all);
        if (rotated)
            rotate(s, &all[j * n], n, j);
    }
    free(x);
    free(weights);
    free(once);
    return all;
}

/* What the check of rows needs, of one batch. */
typedef struct sample {
    double *w_q, *w_out, *k, *v;
} sample;

static sample make_sample(const cross_run *run, size_t batch)
{
    const fa_cross_attention_args *a = &run->args[0].cross_attention;
    const size_t of_batch = (size_t)run->of->spec.seqlen_k * run->columns_k;
    const size_t weights = run->columns_q * run->model_dim;
    return (sample){
        .w_q = loaded(run, a->w_q.data, 0, weights),
        .w_out = loaded(run, a->w_out.data, 0, weights),
        .k = is_whole(run) ? repeated(run, a->w_k.data, batch, true)
                           : loaded(run, a->k.data, batch * of_batch, of_batch),
        .v = is_whole(run) ? repeated(run, a->w_v.data, batch, false)
                           : loaded(run, a->v.data, batch * of_batch, of_batch),
    };
}

/* One head of a query; q [D], k and v from its first element. */
static void attend(const cross_run *run, const double *q, const double *k, const double *v,
                   double *out)
{
    const size_t keys = (size_t)run->of->spec.seqlen_k, dim = (size_t)run->of->spec.head_dim;
    double *p = doubles(keys), largest = -1e300, sum = 0;
    for (size_t j = 0; j < keys; j++) {
        p[j] = 0;
        for (size_t d = 0; d < dim; d++)
            p[j] += q[d] * k[j * run->columns_k + d] / sqrt((double)dim);
        largest = fmax(largest, p[j]);
    }
    for (size_t j = 0; j < keys; j++)
        sum += p[j] = exp(p[j] - largest);
    for (size_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (size_t j = 0; j < keys; j++)
            out[d] += p[j] / sum * v[j * run->columns_k + d];
    }
    free(p);
}

/* Number `row` of the batch's queries. Errors are held against the size of the row. */
static bool row_is_right(const cross_run *run, const sample *x, size_t batch, size_t row)
{
    const fa_cross_attention_spec *s = &run->of->spec;
    const fa_cross_attention_args *a = &run->args[0].cross_attention;
    const size_t c = run->model_dim, dim = (size_t)s->head_dim;
    const size_t at = (batch * (size_t)s->seqlen_q + row) * c;
    double *token = loaded(run, a->x_query.data, at, c), *have = loaded(run, a->out.data, at, c);
    double *q = projected(token, x->w_q, 1, run->columns_q, c), *heads = doubles(run->columns_q);
    double squares = 0, worst = 0;
    rotate(s, q, run->columns_q, row);
    for (size_t h = 0; h < (size_t)s->heads_q; h++) {
        const size_t g = h / (size_t)(s->heads_q / s->heads_k) * dim;
        attend(run, &q[h * dim], &x->k[g], &x->v[g], &heads[h * dim]);
    }
    double *want = projected(heads, x->w_out, 1, c, run->columns_q);
    for (size_t i = 0; i < c; i++) {
        const double error = fabs(have[i] - want[i]);
        squares += want[i] * want[i] / (double)c;
        worst = error <= worst ? worst : error; /* NaN is worse than all */
    }
    free(token);
    free(have);
    free(q);
    free(heads);
    free(want);
    return worst <= (s->dtype == FA_F32 ? 1e-5 : 0x1p-5) * sqrt(squares);
}

/* Launches once on the first set and looks at rows drawn at random. */
static bool result_is_right(const cross_run *run, gpu_stream stream)
{
    const fa_cross_attention_spec *s = &run->of->spec;
    uint64_t seed = 7;
    bench_check(fa_launch(run->kernel, &run->args[0], stream), run->of->name);
    gpu_synchronize(stream, NULL);
    const size_t batch = bench_random(&seed) % (size_t)s->batch;
    sample x = make_sample(run, batch);
    bool right = row_is_right(run, &x, batch, (size_t)s->seqlen_q - 1);
    for (int i = 1; i < SAMPLES && right; i++)
        right = row_is_right(run, &x, batch, bench_random(&seed) % (size_t)s->seqlen_q);
    free(x.w_q);
    free(x.w_out);
    free(x.k);
    free(x.v);
    if (!right)
        bench_emit_missing(run->of->name, "fajit", "wrong result");
    return right;
}

/* --- measuring --- */

/* Each projection once, and attention. */
static double flops_of(const cross_run *run)
{
    const fa_cross_attention_spec *s = &run->of->spec;
    const double of_query = 2.0 * (double)run->model_dim * (double)run->columns_q +
                            2.0 * (double)s->seqlen_k * (double)run->columns_q;
    const double of_key =
        is_whole(run) ? 2.0 * (double)run->model_dim * (double)run->columns_k : 0.0;
    return 2 * ((double)run->rows_q * of_query + (double)run->rows_k * of_key);
}

/* Inputs and weights once, and the output. What lies between the steps need not leave the chip. */
static double floor_bytes(const cross_run *run)
{
    const double c = (double)run->model_dim, h = (double)run->columns_q, g = (double)run->columns_k,
                 of_key = is_whole(run) ? c : 2 * g;
    const double elements = 2 * (double)run->rows_q * c + (double)run->rows_k * of_key + 2 * c * h +
                            (is_whole(run) ? 2 * c * g : 0);
    return elements * (double)bench_dtype_bytes(run->of->spec.dtype);
}

static void run_case(fa_context *ctx, const cross_case *of, bool quick, double gb_per_s,
                     gpu_stream stream)
{
    const fa_cross_attention_spec *s = &of->spec;
    cross_run run;
    if (!set_up(&run, ctx, of))
        return;
    bench_op op = {.name = of->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   .floor_bytes = floor_bytes(&run),
                   .flops = flops_of(&run),
                   /* three tf32 products for one of float32 */
                   .flops_per_us =
                       s->dtype == FA_F32 ? BENCH_TF32_FLOPS_PER_US / 3 : BENCH_BF16_FLOPS_PER_US};
    snprintf(op.sizes, sizeof op.sizes, "[%d,%d,%d,%d,%d,%d]", s->batch, s->seqlen_q, s->seqlen_k,
             s->model_dim, s->heads_q, s->head_dim);
    bench_emit_compile(of->name, run.kernel);
    if (result_is_right(&run, stream))
        (of->sets > IN_L2 ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

#define CANONICAL                                                                                  \
    .rotation = FA_KV_ROTATE_INTERLEAVED, .model_dim = 256, .heads_q = 8, .heads_k = 8,            \
    .head_dim = 32, .batch = 4, .seqlen_q = 64, .seqlen_k = 128

/* Where one launch might be worth it: hardly any work. */
typedef struct tiny_case {
    const char *name;
    int32_t seqlen_q, seqlen_k, model_dim, heads, head_dim;
} tiny_case;

static const tiny_case tiny[] = {
    {"16x16_c128", 16, 16, 128, 4, 32},
    {"1x64_c256", 1, 64, 256, 8, 32},
    {"64x128_c512", 64, 128, 512, 8, 64},
};

static void compare_plans(fa_context *ctx, const tiny_case *t, bool quick, double gb_per_s,
                          gpu_stream stream)
{
    static const char *const types[] = {[FA_F32] = "f32", [FA_BF16] = "bf16"};
    static const char *const plans[] = {
        [FA_CROSS_ONE_LAUNCH] = "one", [FA_CROSS_FEW_LAUNCHES] = "few"};
    for (int i = 0; i < 4; i++) {
        const fa_dtype dtype = i < 2 ? FA_F32 : FA_BF16;
        const fa_cross_plan plan = i % 2 ? FA_CROSS_FEW_LAUNCHES : FA_CROSS_ONE_LAUNCH;
        cross_case of = {.spec = {.dtype = dtype,
                                  .plan = plan,
                                  .rotation = FA_KV_ROTATE_INTERLEAVED,
                                  .batch = 1,
                                  .seqlen_q = t->seqlen_q,
                                  .seqlen_k = t->seqlen_k,
                                  .model_dim = t->model_dim,
                                  .heads_q = t->heads,
                                  .heads_k = t->heads,
                                  .head_dim = t->head_dim},
                         .sets = IN_L2};
        snprintf(of.name, sizeof of.name, "cross_plans_%s_%s_%s", types[dtype], t->name,
                 plans[plan]);
        run_case(ctx, &of, quick, gb_per_s, stream);
    }
}

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    cross_case cases[] = {
        {"cross_canonical_f32", {CANONICAL}, 56},
        {"cross_canonical_f32_one_launch", {CANONICAL, .plan = FA_CROSS_ONE_LAUNCH}, 56},
        {"cross_canonical_f32_few_launches", {CANONICAL, .plan = FA_CROSS_FEW_LAUNCHES}, 56},
        {"cross_canonical_bf16", {CANONICAL, .dtype = FA_BF16}, MAX_SETS},
        {"cross_canonical_bf16_one_launch",
         {CANONICAL, .dtype = FA_BF16, .plan = FA_CROSS_ONE_LAUNCH},
         MAX_SETS},
        {"cross_canonical_bf16_few_launches",
         {CANONICAL, .dtype = FA_BF16, .plan = FA_CROSS_FEW_LAUNCHES},
         MAX_SETS},
        {"cross_large_bf16",
         {.dtype = FA_BF16,
          .rotation = FA_KV_ROTATE_INTERLEAVED,
          .model_dim = 2048,
          .heads_q = 16,
          .heads_k = 16,
          .head_dim = 128,
          .batch = 4,
          .seqlen_q = 2048,
          .seqlen_k = 2048},
         2},
        {"cross_decode_bf16",
         {.dtype = FA_BF16,
          .form = FA_CROSS_QUERIES,
          .rotation = FA_KV_ROTATE_INTERLEAVED,
          .model_dim = 1024,
          .heads_q = 16,
          .heads_k = 16,
          .head_dim = 64,
          .batch = 16,
          .seqlen_q = 1,
          .seqlen_k = 1500},
         2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!bench_wanted(only, cases[i].name))
            continue;
        fa_cross_attention_spec *s = &cases[i].spec;
        if (quick && s->seqlen_q > 1000)
            s->seqlen_q = s->seqlen_k /= 4;
        run_case(ctx, &cases[i], quick, gb_per_s, stream);
    }
    for (size_t i = 0; i < sizeof tiny / sizeof tiny[0]; i++)
        if (bench_wanted(only, "cross_plans"))
            compare_plans(ctx, &tiny[i], quick, gb_per_s, stream);
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_cross", "cross_attention", run_all);
}
