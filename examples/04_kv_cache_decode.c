/* A decode loop as one CUDA graph: rotate q, rotate k and write k and v into the cache, advance the
 * positions. Each replay is a step; sequences that have ended are padding with position -1. The
 * cache is checked against a computation on the host. Without a GPU nothing is launched.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <math.h>
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

enum { B = 4, H = 8, G = 2, D = 64, CACHE = 32, STEPS = 12, NEW = B * G * D };

static const int starts[B] = {0, 5, -1, 17}; /* where each sequence goes on; the third has ended */

static fa_kernel *compile(fa_context *ctx, const fa_spec *spec)
{
    fa_kernel *kernel = NULL;
    CHECK(fa_compile(ctx, spec, &kernel));
    return kernel;
}

typedef struct kernels {
    fa_kernel *rope, *update, *advance;
} kernels;

static kernels compile_all(fa_context *ctx)
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
        (fa_template_spec){.name = "advance.cu",
                           .source =
                               "__global__ void advance(int *position)\n"
                               "{ position[threadIdx.x] += position[threadIdx.x] >= 0; }\n",
                           .entry = "advance"};
    return (kernels){compile(ctx, &rope), compile(ctx, &update), compile(ctx, &advance)};
}

/* Pointers stay; what they point to changes from step to step. */
typedef struct memory {
    float *q, *k, *v, *cache_k, *cache_v;
    int *positions;
    unsigned *errors;
} memory;

static gpu_graph capture_step(const kernels *run, memory *m, gpu_stream stream)
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
                                           .errors = m->errors};
    const fa_param param = {&m->positions, sizeof m->positions};
    advance.tmpl =
        (fa_template_args){.grid = {1}, .block = {B}, .params = &param, .param_count = 1};
    gpu_capture_begin(stream);
    CHECK(fa_launch(run->rope, &rope, stream));
    CHECK(fa_launch(run->update, &update, stream));
    /* ... attention of q over the cache would follow here ... */
    CHECK(fa_launch(run->advance, &advance, stream));
    return gpu_capture_end(stream);
}

/* Element i of the new keys (salt 1), values (2) or queries (3) of a step. */
static float input(int step, int salt, int i)
{
    return (float)(((step * 131 + salt * 71 + i) * 7919L) % 2001 - 1000) * 1e-3f;
}

static void upload_inputs(const memory *m, int step)
{
    float x[B * H * D];
    float *const to[] = {m->k, m->v, m->q};
    for (int salt = 1; salt <= 3; salt++) {
        const int count = salt == 3 ? B * H * D : NEW;
        for (int i = 0; i < count; i++)
            x[i] = input(step, salt, i);
        gpu_upload(to[salt - 1], x, (size_t)count * sizeof *x);
    }
}

/* Element d of a row of inputs, rotated. */
static double rotated(int step, int salt, int row, int d, int position)
{
    const int j = d % (D / 2), other = d < D / 2 ? d + D / 2 : d - D / 2;
    const double angle = position * pow(10000.0, -2.0 * j / D);
    const double turned = (d < D / 2 ? -1 : 1) * (double)input(step, salt, row * D + other);
    return (double)input(step, salt, row * D + d) * cos(angle) + turned * sin(angle);
}

static int count_wrong(const memory *m)
{
    static float k[B * CACHE * G * D], v[B * CACHE * G * D], q[B * H * D];
    int wrong = 0;
    gpu_download(k, m->cache_k, sizeof k);
    gpu_download(v, m->cache_v, sizeof v);
    gpu_download(q, m->q, sizeof q);
    for (int i = 0; i < B * CACHE * G * D; i++) {
        const int d = i % D, g = i / D % G, entry = i / (D * G) % CACHE, b = i / (D * G * CACHE);
        const int step = entry - starts[b], row = b * G + g;
        const bool written = starts[b] >= 0 && step >= 0 && step < STEPS;
        const double key = written ? rotated(step, 1, row, d, entry) : 0;
        wrong += !(fabs(key - (double)k[i]) <= 1e-5); /* or NaN */
        wrong += v[i] != (written ? input(step, 2, row * D + d) : 0);
    }
    for (int i = 0; i < B * H * D; i++) { /* of the last step */
        const int b = i / (H * D), position = starts[b] < 0 ? -1 : starts[b] + STEPS - 1;
        wrong += !(fabs(rotated(STEPS - 1, 3, i / D, i % D, position) - (double)q[i]) <= 1e-5);
    }
    return wrong;
}

static int decode(const kernels *run)
{
    const size_t cache_bytes = sizeof(float) * B * CACHE * G * D;
    memory m = {.q = gpu_alloc(sizeof(float) * B * H * D),
                .k = gpu_alloc(sizeof(float) * NEW),
                .v = gpu_alloc(sizeof(float) * NEW),
                .cache_k = gpu_alloc(cache_bytes),
                .cache_v = gpu_alloc(cache_bytes),
                .positions = gpu_alloc(sizeof starts),
                .errors = gpu_alloc(sizeof(unsigned))};
    unsigned errors = 0;
    gpu_fill(m.cache_k, 0, cache_bytes);
    gpu_fill(m.cache_v, 0, cache_bytes);
    gpu_fill(m.errors, 0, sizeof errors);
    gpu_upload(m.positions, starts, sizeof starts);
    gpu_stream stream = gpu_stream_create();
    gpu_graph graph = capture_step(run, &m, stream);
    for (int step = 0; step < STEPS; step++) {
        upload_inputs(&m, step);
        gpu_graph_launch(graph, stream);
        gpu_synchronize(stream, NULL);
    }
    gpu_download(&errors, m.errors, sizeof errors);
    const int wrong = count_wrong(&m);
    printf("%d steps of %d sequences: %d wrong elements, %u tokens outside the cache\n", STEPS, B,
           wrong, errors);
    gpu_graph_destroy(graph);
    return wrong || errors;
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
    const kernels run = compile_all(ctx);
    const int failed = gpu ? decode(&run) : 0;
    if (!gpu)
        printf("not launched: %s\n", why);
    fa_kernel_release(run.rope);
    fa_kernel_release(run.update);
    fa_kernel_release(run.advance);
    fa_context_destroy(ctx);
    return failed;
}
