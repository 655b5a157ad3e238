/* Rotary embedding of q and k for one exact shape: compiled without a cache, then found in it,
 * launched in a CUDA graph and checked on the host. Without a GPU the kernel is built for sm_90a.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpu.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        fa_status status_ = (call);                                                                \
        if (status_ != FA_OK) {                                                                    \
            fprintf(stderr, "%s: %s: %s\n", #call, fa_status_name(status_), fa_last_error());      \
            exit(status_ == FA_ERR_NVRTC_MISSING ? 77 : 1);                                        \
        }                                                                                          \
    } while (0)

enum { B = 4, H = 8, N = 256, D = 64, COUNT = B * H * N * D, LAUNCHES = 100 };

/* What every process of a program does: a context, a spec, a kernel. */
static fa_kernel *get_kernel(const char *when, bool gpu, bool cache)
{
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.no_disk_cache = !cache;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    CHECK(fa_context_create(&options, &ctx));
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){
        .dtype = FA_F32, .head_dim = D, .batch = B, .heads_q = H, .heads_k = H, .seqlen = N};
    struct timespec t0, t1;
    timespec_get(&t0, TIME_UTC);
    CHECK(fa_compile(ctx, &spec, &kernel));
    timespec_get(&t1, TIME_UTC);
    double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-6;
    fa_kernel_info_t info = {.size = sizeof info};
    CHECK(fa_kernel_info(kernel, &info));
    printf("%s: %s in %.3f ms: %s for %s, %d registers, %u spill bytes\n", when,
           info.origin == FA_ORIGIN_DISK ? "from disk" : "compiled", ms, info.name, info.arch,
           info.registers, info.spill_bytes);
    fa_context_destroy(ctx); /* the kernel stays valid until it is released */
    return kernel;
}

static float x[COUNT], y[2 * COUNT]; /* what goes in as q and as k; q and k that come out */

/* Elements of y, which the device wrote, that are off the formula in double. */
static int count_wrong(void)
{
    int wrong = 0;
    for (int i = 0; i < 2 * COUNT; i++) {
        int d = i % D, j = d % (D / 2), n = i / D % N;
        const float *row = x + i % COUNT - d;
        double angle = n * pow(10000.0, -2.0 * j / D);
        double turned = d < D / 2 ? -row[d + D / 2] : row[d - D / 2];
        wrong += !(fabs(row[d] * cos(angle) + turned * sin(angle) - y[i]) <= 1e-5); /* or NaN */
    }
    return wrong;
}

static int launch_in_graph(const fa_kernel *kernel)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)((i * 7919L) % 2001 - 1000) * 1e-3f;
    float *in = gpu_alloc(sizeof x), *out = gpu_alloc(sizeof y);
    gpu_upload(in, x, sizeof x);
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    args.rope.q.data = args.rope.k.data = in;
    args.rope.q_out.data = out;
    args.rope.k_out.data = out + COUNT;
    gpu_stream stream = gpu_stream_create();
    gpu_event begin = gpu_event_create(), end = gpu_event_create();
    gpu_capture_begin(stream);
    for (int i = 0; i < LAUNCHES; i++)
        CHECK(fa_launch(kernel, &args, stream));
    gpu_graph graph = gpu_capture_end(stream);
    gpu_graph_launch(graph, stream); /* the first launch of a graph also uploads it */
    gpu_event_record(begin, stream);
    gpu_graph_launch(graph, stream);
    gpu_event_record(end, stream);
    double us = gpu_event_elapsed_ms(begin, end) * 1e3 / LAUNCHES;
    gpu_download(y, out, sizeof y);
    int wrong = count_wrong();
    printf("graph of %d launches: %.2f us each, %d wrong elements\n", LAUNCHES, us, wrong);
    gpu_graph_destroy(graph);
    gpu_event_destroy(begin);
    gpu_event_destroy(end);
    gpu_stream_destroy(stream);
    gpu_free(in);
    gpu_free(out);
    return wrong;
}

int main(void)
{
    const char *why = NULL;
    bool gpu = gpu_open(0, &why);
    fa_kernel_release(get_kernel("cold", gpu, false));
    fa_kernel_release(get_kernel("cache", gpu, true)); /* compiles if no process did before */
    fa_kernel *kernel = get_kernel("warm", gpu, true);
    const int wrong = gpu ? launch_in_graph(kernel) : 0;
    if (!gpu)
        printf("not launched: %s\n", why);
    fa_kernel_release(kernel);
    return wrong ? 1 : 0;
}
