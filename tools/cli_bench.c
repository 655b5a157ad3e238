/* fajit bench: time against the physical floor, measured in the same run. */
#include <stdio.h>
#include <stdlib.h>

#include "cli_peak.h"
#include "cli_run.h"

enum {
    WARM_UPS = 3,
    SAMPLES = 31,
    MAX_SETS = 1024,
    MAX_NODES = 2000,
};

/* The reference takes a second or so for a billion operations, on one thread. */
static const double most_checked_flops = 2e10;

/* Numbers of cuda.h, which this tool does not need otherwise. */
enum {
    ATTRIBUTE_CLOCK_RATE_KHZ = 13,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_L2_BYTES = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
};

typedef struct bench {
    cli_session *s;
    oracle_case one;
    cli_set sets[MAX_SETS]; /* used in turn, so that none is still in the L2 cache */
    size_t set_count, next;
    gpu_event begin, end;
    bool checked;                                         /* the result, against the reference */
    double graph_us, graph_again_us, plain_us, copy_rate; /* bytes a second */
} bench;

static int attribute(int which)
{
    int value = 0, device = 0;
    int (*current)(int *) = (int (*)(int *))(uintptr_t)gpu_symbol("cuCtxGetDevice");
    int (*get)(int *, int, int) =
        (int (*)(int *, int, int))(uintptr_t)gpu_symbol("cuDeviceGetAttribute");

    if (!current || !get || current(&device) || get(&value, which, device))
        return 0;
    return value;
}

/* Operations a second that the case can have at most. */
static double arithmetic_rate(const bench *b)
{
    const int cc = attribute(ATTRIBUTE_MAJOR) * 10 + attribute(ATTRIBUTE_MINOR);
    return cli_peak_flops_per_s(cc, attribute(ATTRIBUTE_MULTIPROCESSORS),
                                attribute(ATTRIBUTE_CLOCK_RATE_KHZ) * 1e3, b->one.tensor_time);
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median(float *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, compare_floats);
    return samples[count / 2];
}

static bool launch(bench *b)
{
    fa_status status = fa_launch(b->s->kernel, &b->sets[b->next].args, b->s->stream);

    b->next = (b->next + 1) % b->set_count;
    if (status)
        cli_failed(status, NULL);
    return status == FA_OK;
}

/* Milliseconds of `count` launches one after another, from the stream. */
static bool time_plain(bench *b, size_t count, float *ms)
{
    gpu_event_record(b->begin, b->s->stream);
    for (size_t i = 0; i < count; i++)
        if (!launch(b))
            return false;
    gpu_event_record(b->end, b->s->stream);
    *ms = gpu_event_elapsed_ms(b->begin, b->end);
    return true;
}

static bool measure_plain(bench *b, size_t count)
{
    float samples[SAMPLES];

    for (int i = 0; i < WARM_UPS + SAMPLES; i++)
        if (!time_plain(b, count, &samples[i < WARM_UPS ? 0 : i - WARM_UPS]))
            return false;
    b->plain_us = median(samples, SAMPLES) * 1e3 / (double)count;
    return true;
}

static double measure_graph(bench *b, gpu_graph graph, size_t count)
{
    float samples[SAMPLES];

    for (int i = 0; i < WARM_UPS + SAMPLES; i++) {
        gpu_event_record(b->begin, b->s->stream);
        gpu_graph_launch(graph, b->s->stream);
        gpu_event_record(b->end, b->s->stream);
        samples[i < WARM_UPS ? 0 : i - WARM_UPS] = gpu_event_elapsed_ms(b->begin, b->end);
    }
    return median(samples, SAMPLES) * 1e3 / (double)count;
}

static bool measure_graphs(bench *b, size_t count)
{
    bool launched = true;

    gpu_capture_begin(b->s->stream);
    for (size_t i = 0; i < count && launched; i++)
        launched = launch(b);
    gpu_graph graph = gpu_capture_end(b->s->stream);
    if (!graph || !launched) {
        cli_error("the launches could not be captured in a graph");
        return false;
    }
    b->graph_us = measure_graph(b, graph, count);
    b->graph_again_us = measure_graph(b, graph, count);
    gpu_graph_destroy(graph);
    return true;
}

/* Bytes of a copy of which the L2 cache holds little. */
static size_t copy_bytes(void)
{
    const size_t least = (size_t)64 << 20, most = (size_t)512 << 20;
    const size_t wanted = (size_t)10 * (size_t)attribute(ATTRIBUTE_L2_BYTES);

    return wanted < least ? least : wanted > most ? most : wanted;
}

/* Read plus written bytes a second of a device-to-device copy. */
static void measure_copy(bench *b)
{
    const size_t bytes = copy_bytes();
    float samples[SAMPLES];
    void *from = gpu_alloc(bytes), *to = gpu_alloc(bytes);

    gpu_fill(from, 1, bytes);
    for (int i = 0; i < WARM_UPS + SAMPLES; i++) {
        gpu_event_record(b->begin, b->s->stream);
        gpu_copy(to, from, bytes, b->s->stream);
        gpu_event_record(b->end, b->s->stream);
        samples[i < WARM_UPS ? 0 : i - WARM_UPS] = gpu_event_elapsed_ms(b->begin, b->end);
    }
    b->copy_rate = 2.0 * (double)bytes / (median(samples, SAMPLES) * 1e-3);
    gpu_free(from);
    gpu_free(to);
}

static int check(bench *b)
{
    cli_table t;

    b->s->oracle->expect(&b->one);
    cli_table_begin(&t, cli_check_keys);
    b->checked = cli_set_check(&b->sets[0], &t);
    cli_table_free(&t);
    if (b->checked)
        return CLI_OK;
    cli_error("the result is wrong, so its time means nothing; see `fajit verify`");
    return CLI_FAILED;
}

/* The first set is checked, so that what is timed is right, unless that would take too long; the
 * others are filled like it. */
static int prepare(bench *b)
{
    const char *why = NULL;
    fa_status status = FA_OK;
    int code = cli_case_make(b->s, 1, &b->one);

    if (code || (code = cli_set_make(b->s, &b->one, &b->sets[0])))
        return code;
    b->set_count = 1;
    if ((status = fa_launch(b->s->kernel, &b->sets[0].args, b->s->stream)))
        return cli_failed(status, NULL);
    if (!gpu_synchronize(b->s->stream, &why)) {
        cli_error("the kernel failed: %s", why);
        return CLI_FAILED;
    }
    if (b->one.flops <= most_checked_flops && (code = check(b)))
        return code;
    double bytes = 0, enough = 2.0 * attribute(ATTRIBUTE_L2_BYTES);
    for (size_t i = 0; i < b->one.tensor_count; i++)
        bytes += (double)b->one.tensor[i].bytes;
    while (b->set_count < MAX_SETS && bytes * (double)b->set_count < enough) {
        if ((code = cli_set_make(b->s, &b->one, &b->sets[b->set_count])))
            return code;
        b->set_count++;
    }
    return CLI_OK;
}

static int measure(bench *b)
{
    float ms = 0;

    measure_copy(b);
    if (!time_plain(b, 20, &ms) || !time_plain(b, 20, &ms))
        return CLI_FAILED;
    /* Long enough for the events' resolution, and every set comes into each graph. */
    double each_ms = ms > 0 ? ms / 20.0 : 1e-3;
    size_t count = (size_t)(2.0 / each_ms) + 1;
    count = count > MAX_NODES ? MAX_NODES : count;
    count = (count + b->set_count - 1) / b->set_count * b->set_count;
    if (!measure_plain(b, count) || !measure_graphs(b, count))
        return CLI_FAILED;
    return CLI_OK;
}

static void show(const cli *c, bench *b)
{
    static const char *const keys[] = {"time_us",       "floor_us",         "ratio",
                                       "bound",         "time_again_us",    "plain_us",
                                       "copy_gb_per_s", "peak_tflop_per_s", "bytes_moved",
                                       "buffer_sets",   "checked",          NULL};
    double bytes_us = b->one.bytes_moved / b->copy_rate * 1e6, rate = arithmetic_rate(b);
    double flops_us = rate > 0 ? b->one.flops / rate * 1e6 : 0;
    double floor_us = flops_us > bytes_us ? flops_us : bytes_us;
    cli_table t;
    fa__buf out = {0};

    cli_table_begin(&t, keys);
    cli_cell_real(&t, b->graph_us, 3);
    cli_cell_real(&t, floor_us, 3);
    cli_cell_real(&t, floor_us / b->graph_us, 3);
    cli_cell_text(&t, flops_us > bytes_us ? "arithmetic" : "memory");
    cli_cell_real(&t, b->graph_again_us, 3);
    cli_cell_real(&t, b->plain_us, 3);
    cli_cell_real(&t, b->copy_rate / 1e9, 1);
    cli_cell_real(&t, rate / 1e12, 1);
    cli_cell_real(&t, b->one.bytes_moved, 0);
    cli_cell_int(&t, (int64_t)b->set_count);
    cli_cell_bool(&t, b->checked, "yes", "no");
    if (c->json) {
        fa__buf_text(&out, "{");
        cli_json_text(&out, "op", b->s->request.info.name);
        cli_json_text(&out, "name", b->s->info.name);
        cli_json_text(&out, "arch", b->s->info.arch);
        cli_json_text(&out, "plan", b->s->info.plan);
        cli_run_json_sizes(&out, b->s);
        cli_table_json_members(&t, 0, &out);
        fa__buf_text(&out, "}");
        cli_json_print(&out);
    } else {
        cli_run_print_sizes(b->s);
        cli_table_print(&t);
        printf(
            "\nratio = floor / time, 1 is the physical limit. time: in a graph, measured twice; "
            "plain: launched one by one.\n");
        if (!b->checked)
            printf(
                "The result was not checked: for %.0f billion operations the reference takes "
                "too long. See `fajit verify`.\n",
                b->one.flops / 1e9);
    }
    cli_table_free(&t);
}

int cli_bench(const cli *c)
{
    cli_session s;
    bench *b = cli_alloc(sizeof *b);
    int code = cli_session_open(c, &s);

    b->s = &s;
    if (code == CLI_OK) {
        b->begin = gpu_event_create();
        b->end = gpu_event_create();
        code = prepare(b);
        code = code ? code : measure(b);
        if (code == CLI_OK)
            show(c, b);
        for (size_t i = 0; i < b->set_count; i++)
            cli_set_free(&b->sets[i]);
        s.oracle->free_case(&b->one);
        gpu_event_destroy(b->begin);
        gpu_event_destroy(b->end);
    }
    free(b);
    cli_session_close(&s);
    return code;
}
