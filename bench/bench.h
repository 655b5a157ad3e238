/* What the benchmarks share: results as JSON lines, timing of device work, input data, children.
 *
 * Every program prints one JSON object per line on stdout,
 *     {"bench": ..., "impl": ..., "metric": ..., "value": ..., "unit": ..., "note": ...}
 * and what a person wants to follow on stderr. A value that could not be measured has the metric
 * "not_measured", the value null and the reason as its note; it is never left out. */
#ifndef FAJIT_BENCH_H
#define FAJIT_BENCH_H

#include "fajit.h"
#include "gpu.h"

/* --- results (bench_common.c) --- */

/* A value that is NaN is reported as not measured, with the note. */
void bench_emit(const char *bench, const char *impl, const char *metric, double value,
                const char *unit, const char *note);
void bench_emit_missing(const char *bench, const char *impl, const char *reason);

/* Prints "PROGRAM: message" on stderr and ends the process with status 1. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Ends the process, with the library's message, when `status` is not FA_OK. */
void bench_check(fa_status status, const char *what);

double bench_now_ns(void); /* monotonic */
/* Sorts `values`. 0 when there are none. */
double bench_median(double *values, size_t count);

/* --- device time (bench_common.c) --- */

/* Queues launch number i. Launches rotate over buffers by i. */
typedef void (*bench_work)(void *user, size_t i, gpu_stream stream);

typedef struct bench_timing {
    double us;        /* of one launch: the median */
    double noise_pct; /* how far apart the medians of the first and the second half are */
} bench_timing;

/* `per_replay` launches captured into one graph, which is replayed for `budget_ms`, each replay
 * between two events. */
bench_timing bench_time_graph(bench_work work, void *user, size_t per_replay, double budget_ms,
                              gpu_stream stream);
/* The same launches queued one by one instead. */
bench_timing bench_time_stream(bench_work work, void *user, size_t per_batch, double budget_ms,
                               gpu_stream stream);

/* Bytes read plus bytes written per second by the driver's device-to-device copy, in GB/s. */
double bench_copy_rate(bool quick, gpu_stream stream);

/* --- data (bench_common.c) --- */

uint64_t bench_random(uint64_t *state);
/* Fills `count` elements of device memory with values in [-scale, scale): zeros would run faster and
 * hide errors. They are random up to `period`, and then the same again. */
void bench_fill(void *device, fa_dtype dtype, size_t count, size_t period, double scale,
                uint64_t seed);
/* Values in [-1, 1) of a period that matters to nobody. */
void bench_fill_random(void *device, fa_dtype dtype, size_t count, uint64_t seed);
/* New device memory, filled so. For gpu_free. */
void *bench_alloc_random(fa_dtype dtype, size_t count, uint64_t seed);
size_t bench_dtype_bytes(fa_dtype dtype);
double bench_load(fa_dtype dtype, const void *from, size_t i);

/* --- fresh processes (bench_child.c) --- */

typedef struct bench_value {
    char name[64];
    double value;
} bench_value;

typedef struct bench_process {
    int pid;
    void *output; /* FILE of what it prints */
} bench_process;

/* Runs this program again with `argv` (NULL-terminated, without the program's own name). */
bench_process bench_child_start(const char *const *argv);
/* Collects the lines "name number" that it prints, until it has ended. Returns how many; 0 when it
 * failed: it has said why on stderr. */
size_t bench_child_finish(bench_process process, bench_value *values, size_t capacity);
/* The value of that name; NaN when the child did not print it. */
double bench_child_value(const bench_value *values, size_t count, const char *name);

/* A new directory for temporary files, and its removal with everything in it. */
char *bench_directory_make(void);
void bench_directory_remove(char *path);

void bench_file_write(const char *path, const void *bytes, size_t count);
void *bench_file_read(const char *path, size_t *count); /* NUL-terminated; free() it */

#endif
