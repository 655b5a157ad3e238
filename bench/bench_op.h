/* What the benchmarks of operations share: device time of launches that rotate over sets of buffers. */
#ifndef BENCH_OP_H
#define BENCH_OP_H

#include "bench.h"

typedef struct bench_op {
    const char *name;
    char sizes[64]; /* for the note */
    const fa_kernel *kernel;
    bench_work launch;
    void *user;
    size_t *sets;       /* of buffers that `launch` rotates over */
    double floor_bytes; /* that have to move, read plus written */
    /* Where arithmetic may be the limit: multiplications and additions, whose rate is reported, and how
     * many of them the data sheet has in a microsecond. 0: left out. */
    double flops, flops_per_us;
    /* What was seen before the timing, and what that is. NULL: nothing is reported. */
    double error;
    const char *error_note;
} bench_op;

/* Of an H200, dense, by its data sheet: a reading aid, not a measured rate. */
#define BENCH_BF16_FLOPS_PER_US 989e6
#define BENCH_TF32_FLOPS_PER_US 494e6

/* How long NVRTC took for the kernel: the caches of benchmarks are empty at first. */
void bench_emit_compile(const char *name, const fa_kernel *kernel);

/* Two rows: in a graph, NAME, and queued launch by launch, NAME_stream, against the time that the bytes
 * take at the copy rate, or the arithmetic at its own. */
void bench_op_large(const bench_op *op, bool quick, double gb_per_s, gpu_stream stream);
/* Three: in a graph over buffers larger than the L2 cache, queued launch by launch, and in a graph
 * over one set, which fits. That is not bound by memory, so that the copy rate sets it no floor. */
void bench_op_small(const bench_op *op, bool quick, double gb_per_s, gpu_stream stream);

/* cos and sin, [rows, head_dim / 2] float32 each, of base 10000; and the angle in them. */
double bench_angle(int32_t position, int32_t pair, int32_t head_dim);
void bench_tables(float *tables[2], int32_t rows, int32_t head_dim);

/* Without `only`, or when it is part of `name`. */
bool bench_wanted(const char *only, const char *name);

typedef void (*bench_op_rows)(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                              gpu_stream stream);
/* Reads [--quick] [--only PATTERN], measures the copy rate and runs the rows. An exit status. */
int bench_op_main(int argc, char **argv, const char *program, const char *operation,
                  bench_op_rows rows);

#endif
