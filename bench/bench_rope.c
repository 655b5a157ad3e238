/* Device time of rope: the large case, limited by memory, and the canonical case, limited by
 * launches, each against the time its bytes take at the copy rate measured in the same run.
 *
 *     bench_rope [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 64
#define BASE 10000.0

typedef struct shape {
    int32_t batch, heads, seqlen, head_dim;
} shape;

typedef struct rope_case {
    char name[96];
    shape size;
    fa_dtype dtype;
    fa_layout layout;
    fa_rope_angles angles;
    bool in_place;
    size_t sets; /* buffers that the launches rotate over */
} rope_case;

/* What the launches of one case work on. */
typedef struct rope_run {
    const rope_case *rope;
    fa_kernel *kernel;
    fa_args args[MAX_SETS]; /* one per set of buffers */
    void *tables[2];
    size_t elements; /* of q, and of k */
} rope_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    rope_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->rope->sets], stream), "fa_launch");
}

/* --- setting up --- */

static double angle_of(int32_t position, int32_t j, int32_t head_dim)
{
    return position * pow(BASE, -2.0 * j / head_dim);
}

static void make_tables(rope_run *run)
{
    const shape *s = &run->rope->size;
    const size_t half = (size_t)s->head_dim / 2, count = (size_t)s->seqlen * half;
    float *host = calloc(count, sizeof *host);
    if (!host)
        bench_die("out of memory");
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < count; i++) {
            const double angle = angle_of((int32_t)(i / half), (int32_t)(i % half), s->head_dim);
            host[i] = (float)(which ? sin(angle) : cos(angle));
        }
        run->tables[which] = gpu_alloc(count * sizeof *host);
        gpu_upload(run->tables[which], host, count * sizeof *host);
    }
    free(host);
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(rope_run *run, fa_context *ctx, const rope_case *rope)
{
    const shape *s = &rope->size;
    *run = (rope_run){.rope = rope};
    run->elements = (size_t)s->batch * (size_t)s->heads * (size_t)s->seqlen * (size_t)s->head_dim;

    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){.dtype = rope->dtype,
                               .style = FA_ROPE_HALF,
                               .angles = rope->angles,
                               .layout = rope->layout,
                               .in_place = rope->in_place,
                               .head_dim = s->head_dim,
                               .batch = s->batch,
                               .heads_q = s->heads,
                               .heads_k = s->heads,
                               .seqlen = s->seqlen,
                               .base = BASE};
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(rope->name, "fajit", fa_last_error());
        return false;
    }

    if (rope->angles == FA_ROPE_TABLES)
        make_tables(run);
    const size_t bytes = run->elements * bench_dtype_bytes(rope->dtype);
    for (size_t i = 0; i < rope->sets; i++) {
        fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
        args.rope.cos = run->tables[0];
        args.rope.sin = run->tables[1];
        args.rope.max_position = rope->angles == FA_ROPE_TABLES ? s->seqlen : 0;
        args.rope.q.data = gpu_alloc(bytes);
        args.rope.k.data = gpu_alloc(bytes);
        bench_fill_random(args.rope.q.data, rope->dtype, run->elements, 2 * i + 1);
        bench_fill_random(args.rope.k.data, rope->dtype, run->elements, 2 * i + 2);
        if (!rope->in_place) {
            args.rope.q_out.data = gpu_alloc(bytes);
            args.rope.k_out.data = gpu_alloc(bytes);
            gpu_fill(args.rope.q_out.data, 0xff, bytes); /* NaN in both types */
            gpu_fill(args.rope.k_out.data, 0xff, bytes);
        }
        run->args[i] = args;
    }
    return true;
}

static void tear_down(rope_run *run)
{
    for (size_t i = 0; i < run->rope->sets; i++) {
        const fa_rope_args *args = &run->args[i].rope;
        gpu_free(args->q.data);
        gpu_free(args->k.data);
        if (!run->rope->in_place) {
            gpu_free(args->q_out.data);
            gpu_free(args->k_out.data);
        }
    }
    if (run->tables[0]) {
        gpu_free(run->tables[0]);
        gpu_free(run->tables[1]);
    }
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

#define SAMPLES 64

/* Where row (b, h, n) begins, in elements. */
static size_t row_offset(const rope_case *rope, size_t b, size_t h, size_t n)
{
    const shape *s = &rope->size;
    const size_t heads = (size_t)s->heads, tokens = (size_t)s->seqlen;
    const size_t row = rope->layout == FA_LAYOUT_BHND ? (b * heads + h) * tokens + n
                                                      : (b * tokens + n) * heads + h;
    return row * (size_t)s->head_dim;
}

static bool row_is_right(const rope_case *rope, const void *in, const void *out, int32_t position)
{
    const int32_t half = rope->size.head_dim / 2;
    const double rounding = rope->dtype == FA_F32 ? 1e-5 : 0x1p-8;
    for (int32_t j = 0; j < half; j++) {
        const double angle = angle_of(position, j, rope->size.head_dim);
        const size_t a = (size_t)j, b = (size_t)(j + half);
        const double x = bench_load(rope->dtype, in, a), y = bench_load(rope->dtype, in, b);
        const double want[2] = {x * cos(angle) - y * sin(angle), y * cos(angle) + x * sin(angle)};
        const double got[2] = {bench_load(rope->dtype, out, a), bench_load(rope->dtype, out, b)};
        for (int i = 0; i < 2; i++) {
            if (fabs(got[i] - want[i]) <= 1e-5 + rounding * fabs(want[i]))
                continue;
            char why[160];
            snprintf(why, sizeof why, "wrong result at position %d, element %d: %.9g, not %.9g",
                     position, i ? j + half : j, got[i], want[i]);
            bench_emit_missing(rope->name, "fajit", why);
            return false;
        }
    }
    return true;
}

/* Launches once on the first set of buffers and compares rows drawn at random. */
static bool result_is_right(const rope_run *run, gpu_stream stream)
{
    const rope_case *rope = run->rope;
    const shape *s = &rope->size;
    const fa_rope_args *args = &run->args[0].rope;
    const size_t width = bench_dtype_bytes(rope->dtype), row = (size_t)s->head_dim * width;
    char *before = calloc(SAMPLES, row), *after = calloc(1, row);
    if (!before || !after)
        bench_die("out of memory");
    struct {
        const char *in, *out;
        int32_t position;
    } sample[SAMPLES];
    uint64_t seed = 7;
    for (size_t i = 0; i < SAMPLES; i++) {
        const bool is_k = i % 2;
        const size_t b = bench_random(&seed) % (size_t)s->batch;
        const size_t h = bench_random(&seed) % (size_t)s->heads;
        const size_t n = bench_random(&seed) % (size_t)s->seqlen;
        const size_t offset = row_offset(rope, b, h, n) * width;
        sample[i].position = (int32_t)n;
        sample[i].in = (const char *)(is_k ? args->k.data : args->q.data) + offset;
        sample[i].out = (const char *)(is_k ? args->k_out.data : args->q_out.data) + offset;
        if (rope->in_place)
            sample[i].out = sample[i].in;
        gpu_download(before + i * row, sample[i].in, row);
    }
    bench_check(fa_launch(run->kernel, &run->args[0], stream), rope->name);
    gpu_synchronize(stream, NULL);
    bool right = true;
    for (size_t i = 0; i < SAMPLES && right; i++) {
        gpu_download(after, sample[i].out, row);
        right = row_is_right(rope, before + i * row, after, sample[i].position);
    }
    free(before);
    free(after);
    return right;
}

/* --- measuring --- */

static double floor_us(const rope_run *run, double gb_per_s)
{
    const shape *s = &run->rope->size;
    double bytes = 4 * (double)run->elements * (double)bench_dtype_bytes(run->rope->dtype);
    if (run->rope->angles == FA_ROPE_TABLES)
        bytes += (double)s->seqlen * s->head_dim * 4;
    return bytes / (gb_per_s * 1e3);
}

/* gb_per_s 0: the work is not bound by memory, so that the copy rate sets no floor. */
static void emit(const char *name, const rope_run *run, bench_timing timing, double gb_per_s)
{
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_kernel_info(run->kernel, &info), "fa_kernel_info");
    char note[320];
    snprintf(note, sizeof note, "[%d,%d,%d,%d] twice; %zu sets of buffers; %d registers; %s",
             run->rope->size.batch, run->rope->size.heads, run->rope->size.seqlen,
             run->rope->size.head_dim, run->rope->sets, info.registers, info.plan);
    bench_emit(name, "fajit", "time", timing.us, "us", note);
    bench_emit(name, "fajit", "noise", timing.noise_pct, "%", "between two halves of the samples");
    if (gb_per_s > 0)
        bench_emit(name, "floor", "time", floor_us(run, gb_per_s), "us",
                   "bytes moved at the copy rate of this run");
}

static void run_large(fa_context *ctx, const rope_case *rope, bool quick, double gb_per_s,
                      gpu_stream stream)
{
    rope_run run;
    if (!set_up(&run, ctx, rope))
        return;
    if (result_is_right(&run, stream)) {
        bench_timing timing = bench_time_graph(launch, &run, 10, quick ? 40 : 200, stream);
        emit(rope->name, &run, timing, gb_per_s);
    }
    tear_down(&run);
}

/* In a graph over buffers larger than the L2 cache, queued launch by launch, and in a graph over
 * buffers that fit. */
static void time_canonical(rope_run *run, rope_case *rope, double budget_ms, double gb_per_s,
                           gpu_stream stream)
{
    const size_t all = rope->sets, launches = all * 8;
    char name[160];
    snprintf(name, sizeof name, "%s_graph_cold", rope->name);
    emit(name, run, bench_time_graph(launch, run, launches, budget_ms, stream), gb_per_s);
    snprintf(name, sizeof name, "%s_stream_cold", rope->name);
    emit(name, run, bench_time_stream(launch, run, launches, budget_ms, stream), gb_per_s);

    rope->sets = 1;
    snprintf(name, sizeof name, "%s_graph_hot", rope->name);
    emit(name, run, bench_time_graph(launch, run, launches, budget_ms, stream), 0);
    rope->sets = all;
}

static void run_canonical(fa_context *ctx, rope_case *rope, bool quick, double gb_per_s,
                          gpu_stream stream)
{
    rope_run run;
    if (!set_up(&run, ctx, rope))
        return;
    if (result_is_right(&run, stream))
        time_canonical(&run, rope, quick ? 40 : 200, gb_per_s, stream);
    tear_down(&run);
}

static bool wanted(const char *only, const char *name)
{
    return !only || strstr(name, only);
}

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    static const char *const dtype_name[] = {[FA_F32] = "f32", [FA_BF16] = "bf16"};
    static const fa_dtype dtypes[] = {FA_BF16, FA_F32};
    for (int i = 0; i < 16; i++) {
        rope_case rope = {.size = {4, 32, quick ? 512 : 4096, 128},
                          .dtype = dtypes[i / 8],
                          .layout = i / 4 % 2 ? FA_LAYOUT_BNHD : FA_LAYOUT_BHND,
                          .angles = i / 2 % 2 ? FA_ROPE_TABLES : FA_ROPE_COMPUTED,
                          .in_place = i % 2,
                          .sets = 2};
        snprintf(rope.name, sizeof rope.name, "rope_large_%s_%s_%s_%s", dtype_name[rope.dtype],
                 rope.layout == FA_LAYOUT_BHND ? "bhnd" : "bnhd",
                 rope.angles == FA_ROPE_TABLES ? "tables" : "computed",
                 rope.in_place ? "in" : "out");
        if (wanted(only, rope.name))
            run_large(ctx, &rope, quick, gb_per_s, stream);
    }
    for (int i = 0; i < 2; i++) {
        /* 26 sets of 8.4 MB: 218 MB */
        rope_case rope = {.size = {4, 8, 256, 64},
                          .dtype = FA_F32,
                          .angles = i ? FA_ROPE_TABLES : FA_ROPE_COMPUTED,
                          .sets = 26};
        snprintf(rope.name, sizeof rope.name, "rope_canonical_f32_%s", i ? "tables" : "computed");
        if (wanted(only, rope.name))
            run_canonical(ctx, &rope, quick, gb_per_s, stream);
    }
}

int main(int argc, char **argv)
{
    bool quick = false;
    const char *only = NULL, *why = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            bench_die("usage: bench_rope [--quick] [--only PATTERN]");
    }
    if (!gpu_open(0, &why)) {
        bench_emit_missing("rope", "fajit", why);
        return 77;
    }
    gpu_stream stream = gpu_stream_create();
    const double gb_per_s = bench_copy_rate(quick, stream);
    bench_emit("copy_rate", "driver", "rate", gb_per_s, "GB/s",
               "device-to-device copy, bytes read plus bytes written");

    fa_context *ctx = NULL;
    bench_check(fa_context_create(NULL, &ctx), "fa_context_create");
    run_all(ctx, quick, only, gb_per_s, stream);
    fa_context_destroy(ctx);
    gpu_stream_destroy(stream);
    return 0;
}
