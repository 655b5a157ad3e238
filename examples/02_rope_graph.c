/* Rotary embedding of q and k for one exact shape: compiled without a cache, then found in it, launched
 * in a CUDA graph and checked on the host. Without a GPU the kernel is built for sm_90a.
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
static void get_kernel(const char *when, bool gpu, bool cache, fa_context **ctx, fa_kernel **kernel)
{
    static const char *const origins[] = {"compiled", "from disk", "from memory"};
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.no_disk_cache = !cache;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    CHECK(fa_context_create(&options, ctx));

    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){
        .dtype = FA_F32, .head_dim = D, .batch = B, .heads_q = H, .heads_k = H, .seqlen = N};
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    CHECK(fa_compile(*ctx, &spec, kernel));
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-6;

    fa_kernel_info_t info = {.size = sizeof info};
    CHECK(fa_kernel_info(*kernel, &info));
    printf("%s: %s in %.3f ms: %s for %s, %d registers, %u spill bytes\n", when,
           origins[info.origin], ms, info.name, info.arch, info.registers, info.spill_bytes);
}

static void launch_in_graph(const fa_kernel *kernel, const float *x, float *q, float *k)
{
    const size_t bytes = COUNT * sizeof(float);
    float *in = gpu_alloc(bytes), *out = gpu_alloc(2 * bytes);
    gpu_upload(in, x, bytes);
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    args.rope.q.data = args.rope.k.data = in; /* the same numbers for both */
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
    printf("graph of %d launches: %.2f us each\n", LAUNCHES, us);
    gpu_download(q, out, bytes);
    gpu_download(k, out + COUNT, bytes);
}

/* Elements of y, which the device wrote, that are off the formula in double. */
static int count_wrong(const float *x, const float *y)
{
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        int d = i % D, j = d % (D / 2), n = i / D % N;
        double angle = n * pow(10000.0, -2.0 * j / D);
        double turned = d < D / 2 ? -x[i + D / 2] : x[i - D / 2];
        double error = fabs(x[i] * cos(angle) + turned * sin(angle) - y[i]);
        wrong += !(error <= 1e-5); /* a NaN is wrong too */
    }
    return wrong;
}

int main(void)
{
    static float x[COUNT], q[COUNT], k[COUNT];
    const char *why = NULL;
    bool gpu = gpu_open(0, &why);
    fa_context *ctx[3];
    fa_kernel *kernel[3];
    get_kernel("cold", gpu, false, &ctx[0], &kernel[0]);
    get_kernel("cache", gpu, true, &ctx[1], &kernel[1]); /* compiles if no process did before */
    get_kernel("warm", gpu, true, &ctx[2], &kernel[2]);
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)((i * 7919L) % 2001 - 1000) * 1e-3f;
    int wrong = 0;
    if (gpu) {
        launch_in_graph(kernel[2], x, q, k);
        wrong = count_wrong(x, q) + count_wrong(x, k);
        printf("%d elements of q and k wrong\n", wrong);
    } else {
        printf("not launched: %s\n", why);
    }
    for (int i = 0; i < 3; i++) {
        fa_kernel_release(kernel[i]);
        fa_context_destroy(ctx[i]);
    }
    return wrong ? 1 : 0;
}
