/* How a service starts: warm every kernel of a manifest, seal the context, serve. After the seal a
 * request for a kernel that was not warmed is refused at once instead of stalling the service.
 *     03_service [MANIFEST]        default: examples/service_manifest.json
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <inttypes.h>
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

enum { MAX_BATCH = 2, MAX_TOKENS = 512, HEADS_Q = 32, HEADS_K = 8, D = 128 };

static bool progress(void *user, size_t done, size_t total, size_t index, const fa_warm_result *r)
{
    static const char *const origins[] = {"compiled", "from disk", "from memory"};
    (void)user;
    printf("  [%zu/%zu] entry %zu: %s, %.1f ms\n", done, total, index,
           r->status == FA_OK ? origins[r->origin] : r->error, (double)r->ns * 1e-6);
    return true; /* false would cancel the rest */
}

/* The kernel for requests of this model; batch and seqlen are given with each launch. */
static fa_spec model_spec(int head_dim)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){.dtype = FA_BF16,
                               .layout = FA_LAYOUT_BNHD,
                               .in_place = true,
                               .head_dim = head_dim,
                               .heads_q = HEADS_Q,
                               .heads_k = HEADS_K};
    return spec;
}

/* Rotates the tokens of a few requests of different length, as a prompt and its answers would. */
static void serve(const fa_kernel *kernel)
{
    static const struct {
        int32_t batch, tokens, offset;
    } requests[] = {{1, 512, 0}, {2, 17, 512}, {2, 1, 529}, {2, 1, 530}};
    uint16_t *q = gpu_alloc(sizeof *q * MAX_BATCH * MAX_TOKENS * HEADS_Q * D);
    uint16_t *k = gpu_alloc(sizeof *k * MAX_BATCH * MAX_TOKENS * HEADS_K * D);
    gpu_fill(q, 0x3f, sizeof *q * MAX_BATCH * MAX_TOKENS * HEADS_Q * D);
    gpu_fill(k, 0x3f, sizeof *k * MAX_BATCH * MAX_TOKENS * HEADS_K * D);
    gpu_stream stream = gpu_stream_create();
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
        args.rope = (fa_rope_args){.q.data = q,
                                   .k.data = k,
                                   .batch = requests[i].batch,
                                   .seqlen = requests[i].tokens,
                                   .position_offset = requests[i].offset};
        CHECK(fa_launch(kernel, &args, stream));
        gpu_synchronize(stream, NULL);
        printf("  request %zu: batch %d, %d tokens from position %d\n", i, requests[i].batch,
               requests[i].tokens, requests[i].offset);
    }
    gpu_stream_destroy(stream);
    gpu_free(k);
    gpu_free(q);
}

int main(int argc, char **argv)
{
    const char *why = NULL;
    bool gpu = gpu_open(0, &why);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    fa_context *ctx = NULL;
    CHECK(fa_context_create(&options, &ctx));

    fa_warm_options warm = {.size = sizeof warm, .progress = progress};
    fa_warm_report report = {0};
    const char *manifest = argc > 1 ? argv[1] : "examples/service_manifest.json";
    printf("warming %s\n", manifest);
    CHECK(fa_warm_manifest(ctx, manifest, &warm, &report));
    printf("%zu kernels in %.1f ms: %zu compiled, %zu from disk\n", report.total,
           (double)report.ns * 1e-6, report.compiled, report.from_disk);
    CHECK(fa_seal(ctx));

    fa_kernel *kernel = NULL, *unwarmed = NULL;
    fa_spec spec = model_spec(D), other = model_spec(90);
    CHECK(fa_compile(ctx, &spec, &kernel)); /* a memory hit: it was warmed */
    if (gpu)
        serve(kernel);
    else
        printf("not serving: %s\n", why);
    fa_status refused = fa_compile(ctx, &other, &unwarmed);
    printf("head_dim 90, not in the manifest: %s: %s\n", fa_status_name(refused), fa_last_error());

    fa_stats stats = {.size = sizeof stats};
    CHECK(fa_stats_get(ctx, &stats));
    printf("memory hits %" PRIu64 ", disk hits %" PRIu64 ", compiles %" PRIu64 "\n",
           stats.memory_hits, stats.disk_hits, stats.compiles);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    return refused == FA_ERR_SEALED ? 0 : 1;
}
