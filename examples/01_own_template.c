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

enum { N = 1000003 };

/* y = a x + y. ELEMENT, BLOCK and UNROLL come from the spec; the defaults let the text compile
 * alone. fajit/dtype.cuh is one of the library's own headers. */
static const char source[] =
    "#include \"fajit/dtype.cuh\"\n"
    "#ifndef FAJIT_INSTANCE\n"
    "using ELEMENT = float;\n"
    "constexpr int BLOCK = 256, UNROLL = 1;\n"
    "#endif\n"
    "__global__ void __launch_bounds__(BLOCK)\n"
    "saxpy(ELEMENT *y, const ELEMENT *x, float a, long long n)\n"
    "{\n"
    "    long long first = (long long)blockIdx.x * BLOCK * UNROLL + threadIdx.x;\n"
    "#pragma unroll\n"
    "    for (int u = 0; u < UNROLL; u++) {\n"
    "        long long i = first + (long long)u * BLOCK;\n"
    "        if (i < n)\n"
    "            y[i] = fajit::from_float<ELEMENT>(a * fajit::to_float(x[i]) + "
    "fajit::to_float(y[i]));\n"
    "    }\n"
    "}\n";

static fa_kernel *build(fa_context *ctx, fa_dtype dtype, int block, int unroll)
{
    const fa_constant constants[] = {
        {.name = "ELEMENT", .type = FA_CONSTANT_DTYPE, .int_value = dtype},
        {.name = "BLOCK", .type = FA_CONSTANT_INT, .int_value = block},
        {.name = "UNROLL", .type = FA_CONSTANT_INT, .int_value = unroll},
    };
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl.name = "saxpy.cu";
    spec.tmpl.source = source;
    spec.tmpl.entry = "saxpy";
    spec.tmpl.constants = constants;
    spec.tmpl.constant_count = sizeof constants / sizeof *constants;
    fa_kernel *kernel = NULL;
    CHECK(fa_compile(ctx, &spec, &kernel));

    fa_kernel_info_t info = {.size = sizeof info};
    CHECK(fa_kernel_info(kernel, &info));
    printf("%s, %s: %d registers, %u spill bytes, cubin %zu bytes, compiled in %.1f ms%s\n",
           info.name, info.arch, info.registers, info.spill_bytes, info.cubin_bytes,
           (double)info.compile_ns * 1e-6, info.origin == FA_ORIGIN_COMPILED ? "" : " earlier");
    return kernel;
}

/* Stores a small integer, which either type holds exactly; bf16 is the upper half of a float. */
static void put(fa_dtype dtype, void *array, int i, int value)
{
    const float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (dtype == FA_BF16)
        ((uint16_t *)array)[i] = (uint16_t)(bits >> 16);
    else
        ((uint32_t *)array)[i] = bits;
}

/* y = 2 x + y on the device; whether every element is what the host expects. */
static bool run(const fa_kernel *kernel, fa_dtype dtype, int block, int unroll)
{
    static uint32_t x[N], y[N], expected[N];
    const size_t bytes = N * (dtype == FA_BF16 ? sizeof(uint16_t) : sizeof(float));
    for (int i = 0; i < N; i++) {
        put(dtype, x, i, i % 9);
        put(dtype, y, i, i % 5);
        put(dtype, expected, i, 2 * (i % 9) + i % 5);
    }
    void *device_x = gpu_alloc(bytes), *device_y = gpu_alloc(bytes);
    gpu_upload(device_x, x, bytes);
    gpu_upload(device_y, y, bytes);

    const float a = 2.0f;
    const long long n = N;
    const fa_param params[] = {
        {&device_y, sizeof device_y}, {&device_x, sizeof device_x}, {&a, sizeof a}, {&n, sizeof n}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl.grid[0] = (uint32_t)((N + block * unroll - 1) / (block * unroll));
    args.tmpl.block[0] = (uint32_t)block;
    args.tmpl.params = params;
    args.tmpl.param_count = sizeof params / sizeof *params;
    CHECK(fa_launch(kernel, &args, NULL));
    gpu_download(y, device_y, bytes); /* on the same default stream: waits for the kernel */
    gpu_free(device_y);
    gpu_free(device_x);
    return memcmp(y, expected, bytes) == 0;
}

int main(void)
{
    static const struct {
        fa_dtype dtype;
        int block, unroll;
    } wanted[] = {{FA_F32, 256, 1}, {FA_BF16, 128, 4}};
    const char *why = NULL;
    bool gpu = gpu_open(0, &why), right = true;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    fa_context *ctx = NULL;
    CHECK(fa_context_create(&options, &ctx));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        fa_kernel *kernel = build(ctx, wanted[i].dtype, wanted[i].block, wanted[i].unroll);
        if (gpu) {
            bool ok = run(kernel, wanted[i].dtype, wanted[i].block, wanted[i].unroll);
            printf("  launched: %s\n", ok ? "every element right" : "WRONG RESULT");
            right = right && ok;
        }
        fa_kernel_release(kernel);
    }
    if (!gpu)
        printf("not launched: %s\n", why);
    fa_context_destroy(ctx);
    return right ? 0 : 1;
}
