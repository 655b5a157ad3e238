/* A kernel of one's own: source text with typed constants, compiled for two specs, launched and
 * checked. Without a GPU both are built for sm_90a and described.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
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

/* ELEMENT, BLOCK and UNROLL come from the spec; fajit/dtype.cuh is the library's own. */
static const char source[] =
    "#include \"fajit/dtype.cuh\"\n"
    "using namespace fajit;\n"
    "__global__ void saxpy(ELEMENT *y, const ELEMENT *x, float a, long long n) {\n"
    "    long long first = (long long)blockIdx.x * BLOCK * UNROLL + threadIdx.x;\n"
    "#pragma unroll\n"
    "    for (int u = 0; u < UNROLL; u++) {\n"
    "        long long i = first + u * BLOCK;\n"
    "        if (i < n)\n"
    "            y[i] = from_float<ELEMENT>(a * to_float(x[i]) + to_float(y[i]));\n"
    "    }\n"
    "}\n";

typedef struct variant {
    fa_dtype dtype;
    int block, unroll;
} variant;

static fa_kernel *build(fa_context *ctx, variant v)
{
    const fa_constant constants[] = {
        {.name = "ELEMENT", .type = FA_CONSTANT_DTYPE, .int_value = v.dtype},
        {.name = "BLOCK", .type = FA_CONSTANT_INT, .int_value = v.block},
        {.name = "UNROLL", .type = FA_CONSTANT_INT, .int_value = v.unroll}};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "saxpy.cu", .source = source, .entry = "saxpy"};
    spec.tmpl.constants = constants;
    spec.tmpl.constant_count = sizeof constants / sizeof *constants;
    fa_kernel *kernel = NULL;
    CHECK(fa_compile(ctx, &spec, &kernel));
    fa_kernel_info_t info = {.size = sizeof info};
    CHECK(fa_kernel_info(kernel, &info));
    printf("%s, %s: %d registers, %u spill bytes, cubin %zu bytes\n", info.name, info.arch,
           info.registers, info.spill_bytes, info.cubin_bytes);
    return kernel;
}

/* y = 2 x + y on small integers, exact in both types; bf16 is the upper half of a float. */
static bool run(const fa_kernel *kernel, variant v)
{
    enum { N = 1000003 };
    static char host[3][N * sizeof(float)]; /* x, y, and what y shall be */
    const size_t element = v.dtype == FA_F32 ? 4 : 2, bytes = N * element;
    for (size_t i = 0; i < N; i++) {
        const float x = (float)(i % 9), y = (float)(i % 5), value[] = {x, y, 2 * x + y};
        for (int k = 0; k < 3; k++)
            memcpy(host[k] + i * element, (const char *)&value[k] + 4 - element, element);
    }
    void *x = gpu_alloc(bytes), *y = gpu_alloc(bytes);
    gpu_upload(x, host[0], bytes);
    gpu_upload(y, host[1], bytes);
    const float a = 2;
    const long long n = N, per_block = v.block * v.unroll;
    const fa_param params[] = {{&y, sizeof y}, {&x, sizeof x}, {&a, sizeof a}, {&n, sizeof n}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.params = params, .param_count = 4};
    args.tmpl.grid[0] = (uint32_t)((n + per_block - 1) / per_block);
    args.tmpl.block[0] = (uint32_t)v.block;
    CHECK(fa_launch(kernel, &args, NULL));
    gpu_download(host[1], y, bytes); /* on the same default stream: waits for the kernel */
    gpu_free(y);
    gpu_free(x);
    return memcmp(host[1], host[2], bytes) == 0;
}

int main(void)
{
    static const variant wanted[] = {{FA_F32, 256, 1}, {FA_BF16, 128, 4}};
    const char *why = NULL;
    bool gpu = gpu_open(0, &why), right = true;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    fa_context *ctx = NULL;
    CHECK(fa_context_create(&options, &ctx));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        fa_kernel *kernel = build(ctx, wanted[i]);
        bool ok = !gpu || run(kernel, wanted[i]);
        right = right && ok;
        printf("  %s\n", !gpu ? why : ok ? "launched: every element right" : "WRONG RESULT");
        fa_kernel_release(kernel);
    }
    fa_context_destroy(ctx);
    return right ? 0 : 1;
}
