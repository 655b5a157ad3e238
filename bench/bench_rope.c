/* Device time of rope: the large case, limited by memory, and the canonical case, limited by
 * launches, each against the time its bytes take at the copy rate measured in the same run.
 *
 *     bench_rope [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 64

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
    float *tables[2];
    size_t elements; /* of q, and of k */
    size_t sets;     /* in use */
} rope_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    rope_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

/* --- setting up --- */

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(rope_run *run, fa_context *ctx, const rope_case *rope)
{
    const shape *s = &rope->size;
    *run = (rope_run){.rope = rope, .sets = rope->sets};
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
                               .seqlen = s->seqlen};
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(rope->name, "fajit", fa_last_error());
        return false;
    }

    if (rope->angles == FA_ROPE_TABLES)
        bench_tables(run->tables, s->seqlen, s->head_dim);
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
        const double angle = bench_angle(position, j, rope->size.head_dim);
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

static double floor_bytes(const rope_run *run)
{
    const shape *s = &run->rope->size;
    const double tensors = 4 * (double)run->elements * (double)bench_dtype_bytes(run->rope->dtype);
    return run->rope->angles == FA_ROPE_TABLES ? tensors + (double)s->seqlen * s->head_dim * 4
                                               : tensors;
}

static void run_case(fa_context *ctx, const rope_case *rope, bool small, bool quick,
                     double gb_per_s, gpu_stream stream)
{
    const shape *s = &rope->size;
    rope_run run;
    if (!set_up(&run, ctx, rope))
        return;
    bench_op op = {.name = rope->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   .floor_bytes = floor_bytes(&run)};
    snprintf(op.sizes, sizeof op.sizes, "[%d,%d,%d,%d] twice", s->batch, s->heads, s->seqlen,
             s->head_dim);
    if (result_is_right(&run, stream))
        (small ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    bench_emit("copy_rate", "driver", "rate", gb_per_s, "GB/s",
               "device-to-device copy, bytes read plus bytes written");
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
        if (bench_wanted(only, rope.name))
            run_case(ctx, &rope, false, quick, gb_per_s, stream);
    }
    for (int i = 0; i < 2; i++) {
        /* 26 sets of 8.4 MB: 218 MB */
        rope_case rope = {.size = {4, 8, 256, 64},
                          .dtype = FA_F32,
                          .angles = i ? FA_ROPE_TABLES : FA_ROPE_COMPUTED,
                          .sets = 26};
        snprintf(rope.name, sizeof rope.name, "rope_canonical_f32_%s", i ? "tables" : "computed");
        if (bench_wanted(only, rope.name))
            run_case(ctx, &rope, true, quick, gb_per_s, stream);
    }
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_rope", "rope", run_all);
}
