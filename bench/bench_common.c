/* Results, timing and data for the benchmarks. See bench.h. */
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- results --- */

static void print_string(const char *text)
{
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (*p < 0x20)
            printf("\\u%04x", *p);
        else
            putchar(*p);
    }
    putchar('"');
}

static void print_member(const char *name, const char *text)
{
    printf("\"%s\": ", name);
    print_string(text);
    fputs(", ", stdout);
}

static void print_line(const char *bench, const char *impl, const char *metric, const char *value,
                       const char *unit, const char *note)
{
    putchar('{');
    print_member("bench", bench);
    print_member("impl", impl);
    print_member("metric", metric);
    printf("\"value\": %s, ", value);
    print_member("unit", unit);
    fputs("\"note\": ", stdout);
    print_string(note);
    puts("}");
    fflush(stdout);
}

void bench_emit(const char *bench, const char *impl, const char *metric, double value,
                const char *unit, const char *note)
{
    if (!isfinite(value)) {
        char reason[800];
        snprintf(reason, sizeof reason, "no value for \"%s\" (%s)", metric, note);
        bench_emit_missing(bench, impl, reason);
        return;
    }
    char text[40];
    snprintf(text, sizeof text, "%.7g", value);
    print_line(bench, impl, metric, text, unit, note);
    fprintf(stderr, "  %-44s %-12s %-16s %12s %s\n", bench, impl, metric, text, unit);
}

void bench_emit_missing(const char *bench, const char *impl, const char *reason)
{
    print_line(bench, impl, "not_measured", "null", "", reason);
    fprintf(stderr, "  %-44s %-12s not measured: %s\n", bench, impl, reason);
}

void bench_die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

void bench_check(fa_status status, const char *what)
{
    if (status != FA_OK)
        bench_die("%s: %s: %s", what, fa_status_name(status), fa_last_error());
}

double bench_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* --- device time --- */

#define MAX_SAMPLES 4000

typedef struct batch {
    bench_work work;
    void *user;
    size_t launches;
    gpu_graph graph; /* NULL: queue the launches one by one */
    gpu_stream stream;
    gpu_event begin, end;
} batch;

static void queue(const batch *b)
{
    if (b->graph) {
        gpu_graph_launch(b->graph, b->stream);
        return;
    }
    for (size_t i = 0; i < b->launches; i++)
        b->work(b->user, i, b->stream);
}

static double sample_ms(const batch *b)
{
    gpu_event_record(b->begin, b->stream);
    queue(b);
    gpu_event_record(b->end, b->stream);
    return (double)gpu_event_elapsed_ms(b->begin, b->end);
}

/* Long enough for the clocks to rise from idle. */
static void warm_up(const batch *b, double budget_ms)
{
    const double until = bench_now_ns() + budget_ms * 1e6;
    do {
        for (int i = 0; i < 4; i++)
            queue(b);
        gpu_synchronize(b->stream, NULL);
    } while (bench_now_ns() < until);
}

static bench_timing measure(batch *b, double budget_ms)
{
    static double samples[MAX_SAMPLES];
    b->begin = gpu_event_create();
    b->end = gpu_event_create();
    warm_up(b, budget_ms / 3);

    const double once_ms = sample_ms(b);
    double wanted = once_ms > 0 ? budget_ms / once_ms : MAX_SAMPLES;
    wanted = fmin(fmax(wanted, 20), MAX_SAMPLES);
    const size_t half = (size_t)wanted / 2;
    for (size_t i = 0; i < 2 * half; i++)
        samples[i] = sample_ms(b) * 1e3 / (double)b->launches;

    /* The same thing timed twice: what differs between the halves is noise. */
    double first = bench_median(samples, half);
    double second = bench_median(samples + half, half);
    bench_timing timing = {
        .us = bench_median(samples, 2 * half),
        .noise_pct = 100 * fabs(first - second) / fmin(first, second),
    };
    gpu_event_destroy(b->begin);
    gpu_event_destroy(b->end);
    return timing;
}

bench_timing bench_time_graph(bench_work work, void *user, size_t per_replay, double budget_ms,
                              gpu_stream stream)
{
    batch b = {.work = work, .user = user, .launches = per_replay, .stream = stream};
    gpu_capture_begin(stream);
    queue(&b);
    b.graph = gpu_capture_end(stream);
    if (!b.graph)
        bench_die("the launches could not be captured into a graph");
    bench_timing timing = measure(&b, budget_ms);
    gpu_graph_destroy(b.graph);
    return timing;
}

bench_timing bench_time_stream(bench_work work, void *user, size_t per_batch, double budget_ms,
                               gpu_stream stream)
{
    batch b = {.work = work, .user = user, .launches = per_batch, .stream = stream};
    return measure(&b, budget_ms);
}

typedef struct copy_pair {
    char *from, *to;
    size_t bytes;
} copy_pair;

static void copy_once(void *user, size_t i, gpu_stream stream)
{
    (void)i;
    const copy_pair *pair = user;
    gpu_copy(pair->to, pair->from, pair->bytes, stream);
}

double bench_copy_rate(bool quick, gpu_stream stream)
{
    copy_pair pair = {.bytes = (size_t)1 << (quick ? 28 : 30)};
    pair.from = gpu_alloc(pair.bytes);
    pair.to = gpu_alloc(pair.bytes);
    bench_fill_random(pair.from, FA_F32, pair.bytes / 4, 1);
    bench_timing timing = bench_time_stream(copy_once, &pair, 4, quick ? 60 : 300, stream);
    gpu_free(pair.from);
    gpu_free(pair.to);
    return 2 * (double)pair.bytes / (timing.us * 1e3);
}

/* --- data --- */

/* splitmix64 */
uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

size_t bench_dtype_bytes(fa_dtype dtype)
{
    return dtype == FA_F32 ? 4 : 2;
}

static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double bench_load(fa_dtype dtype, const void *from, size_t i)
{
    if (dtype == FA_F32)
        return (double)((const float *)from)[i];
    if (dtype != FA_BF16)
        bench_die("bench_load: only f32 and bf16 are read here");
    const uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

void bench_fill(void *device, fa_dtype dtype, size_t count, size_t period, double scale,
                uint64_t seed)
{
    if (dtype != FA_F32 && dtype != FA_BF16)
        bench_die("bench_fill: only f32 and bf16 are made here");
    /* One period is made on the host, then doubled on the device. */
    const size_t width = bench_dtype_bytes(dtype), total = count * width;
    const size_t block = count < period ? count : period;
    void *host = calloc(block, width);
    if (!host)
        bench_die("out of memory");
    for (size_t i = 0; i < block; i++) {
        const float value = (float)(scale * ((double)(bench_random(&seed) >> 40) * 0x1p-23 - 1.0));
        if (dtype == FA_F32)
            ((float *)host)[i] = value;
        else
            ((uint16_t *)host)[i] = bf16_of(value);
    }
    gpu_upload(device, host, block * width);
    free(host);
    gpu_stream stream = gpu_stream_create();
    for (size_t done = block * width; done < total;) {
        const size_t next = done < total - done ? done : total - done;
        gpu_copy((char *)device + done, device, next, stream);
        done += next;
    }
    gpu_synchronize(stream, NULL);
    gpu_stream_destroy(stream);
}

void bench_fill_random(void *device, fa_dtype dtype, size_t count, uint64_t seed)
{
    bench_fill(device, dtype, count, 1000003, 1, seed); /* a prime number */
}

void *bench_alloc_random(fa_dtype dtype, size_t count, uint64_t seed)
{
    void *memory = gpu_alloc(count * bench_dtype_bytes(dtype));
    bench_fill_random(memory, dtype, count, seed);
    return memory;
}
