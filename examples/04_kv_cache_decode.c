/* A decode loop as one CUDA graph: rotate q, rotate k and write k and v into the cache, advance the
 * positions. Each replay is a step; sequences that have ended are padding with position -1. The
 * cache is checked against a computation on the host. Without a GPU nothing is launched.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        fa_status status_ = (call);                                                                \
        if (status_ != FA_OK) {                                                                    \
            fprintf(stderr, "%s: %s: %s\n", #call, fa_status_name(status_), fa_last_error());      \
            exit(status_ == FA_ERR_NVRTC_MISSING ? 77 : 1);                                        \
        }                                                                                          \
    } while (0)

enum { B = 4, H = 8, G = 2, D = 64, CACHE = 32, STEPS = 12, NEW = B * G * D, NEW_Q = B * H * D };

static const int starts[B] = {0, 5, -1, 17}; /* where each sequence goes on; the third has ended */

static const char advance_source[] =
    "__global__ void advance(int *position)\n"
    "{ position[threadIdx.x] += position[threadIdx.x] >= 0; }\n";

enum { ROPE, UPDATE, ADVANCE, KERNELS };

static void compile_all(fa_context *ctx, fa_kernel *kernel[KERNELS])
{
    fa_spec rope = FA_SPEC_INIT(FA_OP_ROPE), update = FA_SPEC_INIT(FA_OP_KV_UPDATE);
    fa_spec advance = FA_SPEC_INIT(FA_OP_TEMPLATE);
    rope.rope = (fa_rope_spec){
        .positions = FA_ROPE_VECTOR, .in_place = true, .head_dim = D, .heads_q = H, .seqlen = 1};
    update.kv_update = (fa_kv_update_spec){.rotation = FA_KV_ROTATE_HALF,
                                           .in_place = true,
                                           .head_dim = D,
                                           .tokens = 1,
                                           .heads = G,
                                           .cache_len = CACHE};
    advance.tmpl =
        (fa_template_spec){.name = "advance.cu", .source = advance_source, .entry = "advance"};
    CHECK(fa_compile(ctx, &rope, &kernel[ROPE]));
    CHECK(fa_compile(ctx, &update, &kernel[UPDATE]));
    CHECK(fa_compile(ctx, &advance, &kernel[ADVANCE]));
}

/* What the kernels work on. Addresses stay; what is there changes from step to step. */
typedef struct memory {
    float q[NEW_Q], k[NEW], v[NEW]; /* of the new tokens */
    float cache_k[CACHE * NEW], cache_v[CACHE * NEW];
    int positions[B];
    unsigned errors;
} memory;

/* `m` is device memory: nothing here reads it. */
static gpu_graph capture_step(fa_kernel *const kernel[KERNELS], memory *m, gpu_stream stream)
{
    fa_args rope = FA_ARGS_INIT(FA_OP_ROPE), update = FA_ARGS_INIT(FA_OP_KV_UPDATE);
    fa_args advance = FA_ARGS_INIT(FA_OP_TEMPLATE);
    rope.rope = (fa_rope_args){
        .q.data = m->q, .batch = B, .positions = m->positions, .positions_stride = 1};
    update.kv_update = (fa_kv_update_args){.k_new.data = m->k,
                                           .v_new.data = m->v,
                                           .cache_k.data = m->cache_k,
                                           .cache_v.data = m->cache_v,
                                           .batch = B,
                                           .positions = m->positions,
                                           .positions_stride = 1,
                                           .errors = &m->errors};
    int *const positions = m->positions;
    const fa_param param = {&positions, sizeof positions};
    advance.tmpl =
        (fa_template_args){.grid = {1}, .block = {B}, .params = &param, .param_count = 1};
    gpu_capture_begin(stream);
    CHECK(fa_launch(kernel[ROPE], &rope, stream));
    CHECK(fa_launch(kernel[UPDATE], &update, stream));
    /* ... attention of q over the cache would follow here ... */
    CHECK(fa_launch(kernel[ADVANCE], &advance, stream));
    return gpu_capture_end(stream);
}

/* Element i of the new keys (salt 1), values (2) or queries (3) of a step. */
static float input(int step, int salt, int i)
{
    return (float)(((step * 131 + salt * 71 + i) * 7919L) % 2001 - 1000) * 1e-3f;
}

static void upload_inputs(memory *m, int step)
{
    static memory host;
    for (int i = 0; i < NEW; i++) {
        host.k[i] = input(step, 1, i);
        host.v[i] = input(step, 2, i);
    }
    for (int i = 0; i < NEW_Q; i++)
        host.q[i] = input(step, 3, i);
    gpu_upload(m, &host, offsetof(memory, cache_k));
}

/* Element d of a row of inputs, rotated. */
static double rotated(int step, int salt, int row, int d, int position)
{
    const int j = d % (D / 2), other = d < D / 2 ? d + D / 2 : d - D / 2;
    const double angle = position * pow(10000.0, -2.0 * j / D);
    const double turned = (d < D / 2 ? -1 : 1) * (double)input(step, salt, row * D + other);
    return (double)input(step, salt, row * D + d) * cos(angle) + turned * sin(angle);
}

static int count_wrong(const memory *host)
{
    int wrong = 0;
    for (int i = 0; i < CACHE * NEW; i++) {
        const int d = i % D, g = i / D % G, entry = i / (D * G) % CACHE, b = i / (D * G * CACHE);
        const int step = entry - starts[b], row = b * G + g;
        const bool written = starts[b] >= 0 && step >= 0 && step < STEPS;
        const double key = written ? rotated(step, 1, row, d, entry) : 0;
        wrong += !(fabs(key - (double)host->cache_k[i]) <= 1e-5); /* or NaN */
        wrong += host->cache_v[i] != (written ? input(step, 2, row * D + d) : 0);
    }
    for (int i = 0; i < NEW_Q; i++) { /* of the last step */
        const int b = i / (H * D), position = starts[b] < 0 ? -1 : starts[b] + STEPS - 1;
        const double query = rotated(STEPS - 1, 3, i / D, i % D, position);
        wrong += !(fabs(query - (double)host->q[i]) <= 1e-5);
    }
    return wrong;
}

static int decode(fa_kernel *const kernel[KERNELS])
{
    static memory host;
    memory *m = gpu_alloc(sizeof *m);
    gpu_fill(m, 0, sizeof *m);
    gpu_upload(m->positions, starts, sizeof starts);
    gpu_stream stream = gpu_stream_create();
    gpu_graph graph = capture_step(kernel, m, stream);
    for (int step = 0; step < STEPS; step++) {
        upload_inputs(m, step);
        gpu_graph_launch(graph, stream);
        gpu_synchronize(stream, NULL);
    }
    gpu_download(&host, m, sizeof host);
    const int wrong = count_wrong(&host);
    printf("%d steps of %d sequences: %d wrong elements, %u tokens outside the cache\n", STEPS, B,
           wrong, host.errors);
    gpu_graph_destroy(graph);
    gpu_stream_destroy(stream);
    gpu_free(m);
    return wrong || host.errors;
}

int main(void)
{
    const char *why = NULL;
    const bool gpu = gpu_open(0, &why);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context *ctx = NULL;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    CHECK(fa_context_create(&options, &ctx));
    fa_kernel *kernel[KERNELS];
    compile_all(ctx, kernel);
    const int failed = gpu ? decode(kernel) : 0;
    if (!gpu)
        printf("not launched: %s\n", why);
    for (int i = 0; i < KERNELS; i++)
        fa_kernel_release(kernel[i]);
    fa_context_destroy(ctx);
    return failed;
}
