#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE 10000.0

/* --- tables --- */

double bench_angle(int32_t position, int32_t pair, int32_t head_dim)
{
    return position * pow(BASE, -2.0 * pair / head_dim);
}

void bench_tables(float *tables[2], int32_t rows, int32_t head_dim)
{
    const size_t half = (size_t)head_dim / 2, count = (size_t)rows * half;
    float *host = calloc(count, sizeof *host);
    if (!host)
        bench_die("out of memory");
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < count; i++) {
            const double angle = bench_angle((int32_t)(i / half), (int32_t)(i % half), head_dim);
            host[i] = (float)(which ? sin(angle) : cos(angle));
        }
        tables[which] = gpu_alloc(count * sizeof *host);
        gpu_upload(tables[which], host, count * sizeof *host);
    }
    free(host);
}

/* --- rows --- */

/* The larger of what memory and what arithmetic need. gb_per_s 0: nothing comes from memory. */
static void emit_floor(const bench_op *op, const char *name, double gb_per_s)
{
    const double memory = gb_per_s > 0 ? op->floor_bytes / (gb_per_s * 1e3) : 0;
    const double arithmetic = op->flops_per_us > 0 ? op->flops / op->flops_per_us : 0;
    if (memory <= 0 && arithmetic <= 0)
        return;
    if (memory >= arithmetic)
        bench_emit(name, "floor", "time", memory, "us", "bytes moved at the copy rate of this run");
    else
        bench_emit(name, "floor", "time", arithmetic, "us",
                   "products at the rate of the data sheet");
}

static void emit(const bench_op *op, const char *name, bench_timing timing, double gb_per_s)
{
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_kernel_info(op->kernel, &info), "fa_kernel_info");
    char note[400];
    snprintf(note, sizeof note, "%s; %zu sets of buffers; %d registers; compiled in %.0f ms; %s",
             op->sizes, *op->sets, info.registers, (double)info.compile_ns * 1e-6, info.plan);
    bench_emit(name, "fajit", "time", timing.us, "us", note);
    bench_emit(name, "fajit", "noise", timing.noise_pct, "%", "between two halves of the samples");
    if (op->flops > 0)
        bench_emit(name, "fajit", "rate", op->flops / timing.us * 1e-6, "TFLOP/s", "");
    if (op->error_note)
        bench_emit(name, "fajit", "error", op->error, "", op->error_note);
    emit_floor(op, name, gb_per_s);
}

static double budget_ms(bool quick)
{
    return quick ? 40 : 200;
}

void bench_emit_compile(const char *name, const fa_kernel *kernel)
{
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_kernel_info(kernel, &info), "fa_kernel_info");
    bench_emit(name, "fajit", "compile", (double)info.compile_ns * 1e-6, "ms", "by NVRTC");
}

void bench_op_large(const bench_op *op, bool quick, double gb_per_s, gpu_stream stream)
{
    const size_t launches = *op->sets > 2 ? *op->sets * 8 : 20;
    const double budget = budget_ms(quick);
    char name[160];
    emit(op, op->name, bench_time_graph(op->launch, op->user, launches, budget, stream), gb_per_s);
    snprintf(name, sizeof name, "%s_stream", op->name);
    emit(op, name, bench_time_stream(op->launch, op->user, launches, budget, stream), gb_per_s);
}

void bench_op_small(const bench_op *op, bool quick, double gb_per_s, gpu_stream stream)
{
    const size_t all = *op->sets, launches = all * 8;
    const double budget = budget_ms(quick);
    char name[160];
    snprintf(name, sizeof name, "%s_graph_cold", op->name);
    emit(op, name, bench_time_graph(op->launch, op->user, launches, budget, stream), gb_per_s);
    snprintf(name, sizeof name, "%s_stream_cold", op->name);
    emit(op, name, bench_time_stream(op->launch, op->user, launches, budget, stream), gb_per_s);
    *op->sets = 1;
    snprintf(name, sizeof name, "%s_graph_hot", op->name);
    emit(op, name, bench_time_graph(op->launch, op->user, launches, budget, stream), 0);
    *op->sets = all;
}

/* --- the program --- */

bool bench_wanted(const char *only, const char *name)
{
    return !only || strstr(name, only);
}

int bench_op_main(int argc, char **argv, const char *program, const char *operation,
                  bench_op_rows rows)
{
    bool quick = false;
    const char *only = NULL, *why = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else
            bench_die("usage: %s [--quick] [--only PATTERN]", program);
    }
    if (!gpu_open(0, &why)) {
        bench_emit_missing(operation, "fajit", why);
        return 77;
    }
    gpu_stream stream = gpu_stream_create();
    const double gb_per_s = bench_copy_rate(quick, stream);
    fa_context *ctx = NULL;
    bench_check(fa_context_create(NULL, &ctx), "fa_context_create");
    rows(ctx, quick, only, gb_per_s, stream);
    fa_context_destroy(ctx);
    gpu_stream_destroy(stream);
    return 0;
}
