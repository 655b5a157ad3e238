/* How a service starts: warm every kernel of a manifest, seal the context, serve. After the seal a
 * request for a kernel that was not warmed is refused at once instead of stalling the service.
 *     03_service [MANIFEST]        default: examples/service_manifest.json
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Rotates the tokens of a request; true when the last token's first element came out right. */
static bool serve(const fa_kernel *kernel, int32_t batch, int32_t tokens, int32_t offset)
{
    const size_t q_bytes = 2 * MAX_BATCH * MAX_TOKENS * HEADS_Q * D;
    uint16_t *q = gpu_alloc(q_bytes), *k = gpu_alloc(q_bytes / HEADS_Q * HEADS_K);
    gpu_fill(q, 0x3f, q_bytes); /* 0x3f3f is the bf16 of 191/256 */
    gpu_fill(k, 0x3f, q_bytes / HEADS_Q * HEADS_K);
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    args.rope = (fa_rope_args){.q.data = q, .k.data = k, .batch = batch, .seqlen = tokens};
    args.rope.position_offset = offset;
    CHECK(fa_launch(kernel, &args, NULL));
    uint16_t stored = 0;
    gpu_download(&stored, q + (size_t)(tokens - 1) * HEADS_Q * D, sizeof stored);
    gpu_free(k);
    gpu_free(q);

    const uint32_t bits = (uint32_t)stored << 16;
    float got;
    memcpy(&got, &bits, sizeof got);
    const double last = offset + tokens - 1, expected = 191.0 / 256 * (cos(last) - sin(last));
    const bool right = fabs(got - expected) <= 1.0 / 128;
    printf("  batch %d, %d tokens from position %d: %s\n", batch, tokens, offset,
           right ? "right" : "WRONG RESULT");
    return right;
}

int main(int argc, char **argv)
{
    const char *why = NULL, *manifest = argc > 1 ? argv[1] : "examples/service_manifest.json";
    bool gpu = gpu_open(0, &why), right = true;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    fa_context *ctx = NULL;
    CHECK(fa_context_create(&options, &ctx));

    fa_warm_options warm = {.size = sizeof warm, .progress = progress};
    fa_warm_report report = {0};
    printf("warming %s\n", manifest);
    CHECK(fa_warm_manifest(ctx, manifest, &warm, &report));
    printf("%zu kernels in %.1f ms: %zu compiled, %zu from disk\n", report.total,
           (double)report.ns * 1e-6, report.compiled, report.from_disk);
    CHECK(fa_seal(ctx));

    fa_kernel *kernel = NULL, *unwarmed = NULL;
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE); /* batch and seqlen are given with each launch */
    spec.rope = (fa_rope_spec){.dtype = FA_BF16, .layout = FA_LAYOUT_BNHD, .in_place = true};
    spec.rope.head_dim = D;
    spec.rope.heads_q = HEADS_Q;
    spec.rope.heads_k = HEADS_K;
    CHECK(fa_compile(ctx, &spec, &kernel)); /* a memory hit: it was warmed */
    if (gpu) /* a prompt, a shorter one that goes on, an answer's next token */
        right = serve(kernel, 1, 512, 0) && serve(kernel, 2, 17, 512) && serve(kernel, 2, 1, 529);
    else
        printf("not serving: %s\n", why);
    spec.rope.head_dim = 90;
    fa_status refused = fa_compile(ctx, &spec, &unwarmed);
    printf("head_dim 90, not in the manifest: %s: %s\n", fa_status_name(refused), fa_last_error());

    fa_stats stats = {.size = sizeof stats};
    CHECK(fa_stats_get(ctx, &stats));
    printf("memory hits %" PRIu64 ", disk hits %" PRIu64 ", compiles %" PRIu64 "\n",
           stats.memory_hits, stats.disk_hits, stats.compiles);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    return right && refused == FA_ERR_SEALED ? 0 : 1;
}
