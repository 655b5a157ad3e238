/* Rotary embedding of q and k for one exact shape: compiled cold, found again by a second context,
 * launched in a CUDA graph, checked on the host. Without a GPU the kernel is built for sm_90a.
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include <fajit.h>
#include <ftw.h>
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

static char cache_dir[] = "/tmp/fajit-example-XXXXXX";
static float q[COUNT], q_out[COUNT];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_cache(void)
{
    nftw(cache_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* What every process of a program does: a context, a spec, a kernel. */
static void get_kernel(bool gpu, fa_context **ctx, fa_kernel **kernel, const char *when)
{
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir;
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
    printf(
        "%s: %8.3f ms, origin %s\n  %s, %s: %s\n  %d registers, %u spill bytes, cubin %zu bytes\n",
        when, ms, info.origin == FA_ORIGIN_DISK ? "disk" : "compiled", info.name, info.arch,
        info.plan, info.registers, info.spill_bytes, info.cubin_bytes);
}

/* The largest difference of q_out, which the device wrote, from the formula in double. */
static double worst_error(void)
{
    double worst = 0;
    for (int i = 0; i < COUNT; i++) {
        int d = i % D, j = d % (D / 2), n = i / D % N;
        double angle = n * pow(10000.0, -2.0 * j / D);
        double turned = d < D / 2 ? -q[i + D / 2] : q[i - D / 2];
        worst = fmax(worst, fabs(q[i] * cos(angle) + turned * sin(angle) - q_out[i]));
    }
    return worst;
}

static void launch_in_graph(const fa_kernel *kernel)
{
    for (int i = 0; i < COUNT; i++)
        q[i] = (float)((i * 7919L) % 2001 - 1000) * 1e-3f;
    float *in = gpu_alloc(sizeof q), *out = gpu_alloc(2 * sizeof q);
    gpu_upload(in, q, sizeof q);
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
    printf("graph of %d launches: %.2f us each\n", LAUNCHES, us);
    gpu_download(q_out, out + COUNT, sizeof q_out);
}

int main(void)
{
    const char *why = NULL;
    bool gpu = gpu_open(0, &why);
    if (!mkdtemp(cache_dir))
        return perror(cache_dir), 1;
    atexit(remove_cache);

    fa_context *first = NULL, *second = NULL;
    fa_kernel *cold = NULL, *warm = NULL;
    get_kernel(gpu, &first, &cold, "cold");
    get_kernel(gpu, &second, &warm, "warm");
    double error = 0;
    if (gpu) {
        launch_in_graph(warm);
        error = worst_error();
        printf("largest error against double: %.2e\n", error);
    } else {
        printf("not launched: %s\n", why);
    }
    fa_kernel_release(warm);
    fa_kernel_release(cold);
    fa_context_destroy(second);
    fa_context_destroy(first);
    return error <= 1e-5 ? 0 : 1;
}
