/* Kernels with a fault each, for the tests of what finds it: test_planted.c builds this program with
 * every sanitizer. It runs one kernel, with its fault or mended, and says whether its result is what
 * it has to be.
 *
 *     planted NAME broken|mended */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fajit.h"
#include "gpu.h"

#define THREADS 64u
#define BLOCKS 2u

/* Every kernel writes to out[i] of its block: i, when it is right. BROKEN is true or false. */
static const struct planted {
    const char *name, *source;
} all[] = {
    {"out_of_bounds_global",
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x, at = blockIdx.x * 64 + i;\n"
     "    out[at] = i;\n"
     "    if (BROKEN && at == 127) out[at + 1] = 0;\n"
     "}\n"},
    {"out_of_bounds_shared",
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64], y[64];\n"
     "    const int i = threadIdx.x;\n"
     "    int *to = x;\n"
     "    to[i + BROKEN] = i;\n"
     "    y[i] = 0;\n"
     "    __syncthreads();\n"
     "    out[blockIdx.x * 64 + i] = (x[63 - i] + y[i]) ^ 63;\n"
     "}\n"},
    {"out_of_bounds_dynamic_shared",
     "extern __shared__ int x[];\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    x[i] = i;\n"
     "    __syncthreads();\n"
     "    out[blockIdx.x * 64 + i] = x[i + (BROKEN && i == 63)];\n"
     "}\n"},
    {"race_shared",
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x;\n"
     "    x[i] = i;\n"
     "    __syncthreads();\n"
     "    const int other = x[63 - i];\n"
     "    if (!BROKEN) __syncthreads();\n"
     "    x[i] = 63 - other;\n"
     "    out[blockIdx.x * 64 + i] = x[i];\n"
     "}\n"},
    {"race_global",
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    out[blockIdx.x * 64 + i] = i;\n"
     "    if (BROKEN && blockIdx.x == 1) out[i] = i;\n"
     "}\n"},
    {"race_in_a_warp", /* a shuffle does not order memory */
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x;\n"
     "    x[i] = i;\n"
     "    __shfl_sync(0xffffffffu, i, 0);\n"
     "    if (!BROKEN) __syncwarp();\n"
     "    out[blockIdx.x * 64 + i] = x[i ^ 1] ^ 1;\n"
     "}\n"},
    {"missing_barrier",
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x;\n"
     "    x[i] = i;\n"
     "    if (!BROKEN) __syncthreads();\n"
     "    out[blockIdx.x * 64 + i] = 63 - x[63 - i];\n"
     "}\n"},
    {"missing_fence_between_blocks", /* the last block reads what the others wrote */
     "__device__ int sums[2], arrived;\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    if (i == 0) {\n"
     "        sums[blockIdx.x] = 21;\n"
     "        if (!BROKEN) __threadfence();\n"
     "        if (atomicAdd(&arrived, 1) == 1) {\n"
     "            if (!BROKEN) __threadfence();\n"
     "            out[0] = sums[0] + sums[1] - 42;\n"
     "        }\n"
     "    }\n"
     "    if (i) out[blockIdx.x * 64 + i] = i;\n"
     "    else if (blockIdx.x) out[64] = 0;\n"
     "}\n"},
    {"divergent_barrier",
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    if (i < 40 || !BROKEN)\n"
     "        __syncthreads();\n"
     "    else\n"
     "        __shfl_xor_sync(0xffffffffu, i, 16);\n"
     "    out[blockIdx.x * 64 + i] = i;\n"
     "}\n"},
    {"wrong_mask",
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    const unsigned mask = BROKEN ? 0x7fffffffu : 0xffffffffu;\n"
     "    out[blockIdx.x * 64 + i] = __shfl_xor_sync(mask, i, 1) ^ 1;\n"
     "}\n"},
    {"uninitialised_shared",
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x;\n"
     "    if (i < 63 || !BROKEN) x[i] = i;\n"
     "    __syncthreads();\n"
     "    out[blockIdx.x * 64 + i] = 63 - x[63 - i];\n"
     "}\n"},
    {"uninitialised_global",
     "__global__ void k(int *out)\n"
     "{\n"
     "    const int i = threadIdx.x;\n"
     "    if (i < 63 || !BROKEN) out[blockIdx.x * 64 + i] = i;\n"
     "}\n"},
    {"misaligned",
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[66];\n"
     "    const int i = threadIdx.x;\n"
     "    x[i + 1] = x[0] = 0;\n"
     "    __syncthreads();\n"
     "    const int2 *pair = reinterpret_cast<int2 *>(x + (BROKEN && i == 5));\n"
     "    out[blockIdx.x * 64 + i] = pair->x + i;\n"
     "}\n"},
    {"missing_wait",
     "#include \"fajit/copy.cuh\"\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    __device__ static const int four[4] = {0, 1, 2, 3};\n"
     "    const int i = threadIdx.x;\n"
     "    fajit::copy_async<4>(x + i, four + i % 4);\n"
     "    fajit::copy_commit();\n"
     "    if (!BROKEN) fajit::copy_wait<0>();\n"
     "    out[blockIdx.x * 64 + i] = x[i] + i / 4 * 4;\n"
     "}\n"},
    {"race_after_a_copy", /* a wait is for the own copies alone */
     "#include \"fajit/copy.cuh\"\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x;\n"
     "    out[blockIdx.x * 64 + i] = i;\n"
     "    fajit::copy_async<4>(x + i, out + blockIdx.x * 64 + i);\n"
     "    fajit::copy_wait_all();\n"
     "    if (!BROKEN) __syncthreads();\n"
     "    out[blockIdx.x * 64 + i] = x[i ^ 1] ^ 1;\n"
     "}\n"},
    {"out_of_bounds_copy",
     "#include \"fajit/copy.cuh\"\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ int x[64];\n"
     "    const int i = threadIdx.x, at = blockIdx.x * 64 + i;\n"
     "    fajit::copy_async<4>(x + i, out + at + BROKEN, 4 * (at < 127 || BROKEN));\n"
     "    fajit::copy_wait_all();\n"
     "    out[at] = i;\n"
     "}\n"},
    {"race_before_ldmatrix", /* which orders nothing */
     "#include \"fajit/ldmatrix.cuh\"\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ __align__(16) unsigned short x[2][64];\n"
     "    const int i = threadIdx.x, warp = i / 32, lane = i % 32;\n"
     "    unsigned word[1];\n"
     "    x[warp][2 * lane] = i;\n"
     "    x[warp][2 * lane + 1] = 0;\n"
     "    if (!BROKEN) __syncwarp();\n"
     "    fajit::ldmatrix(word, &x[warp][lane % 8 * 8]);\n"
     "    out[blockIdx.x * 64 + i] = word[0];\n"
     "}\n"},
    {"race_after_stmatrix",
     "#include \"fajit/ldmatrix.cuh\"\n"
     "__global__ void k(int *out)\n"
     "{\n"
     "    __shared__ __align__(16) unsigned x[2][32];\n"
     "    const int i = threadIdx.x, warp = i / 32, lane = i % 32;\n"
     "    const unsigned word[1] = {(unsigned)i};\n"
     "    fajit::stmatrix(&x[warp][lane % 8 * 4], word);\n"
     "    if (!BROKEN) __syncwarp();\n"
     "    out[blockIdx.x * 64 + i] = x[warp][lane];\n"
     "}\n"},
};

static void check(fa_status status)
{
    if (!status)
        return;
    fprintf(stderr, "%s\n", fa_last_error());
    exit(2);
}

static int run(const char *source, bool broken)
{
    int32_t host[BLOCKS * THREADS];
    const char *why = "";
    int wrong = 0;
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    const fa_constant constants[] = {
        {.name = "BROKEN", .type = FA_CONSTANT_BOOL, .int_value = broken}};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "planted.cu",
                                   .source = source,
                                   .entry = "k",
                                   .constants = constants,
                                   .constant_count = 1,
                                   .smem_bytes = THREADS * sizeof(int32_t)};
    check(fa_context_create(NULL, &ctx));
    check(fa_compile(ctx, &spec, &kernel));
    void *out = gpu_alloc(sizeof host);
    const fa_param params[] = {{&out, sizeof out}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.grid = {BLOCKS},
                                   .block = {THREADS},
                                   .smem_bytes = THREADS * sizeof(int32_t),
                                   .params = params,
                                   .param_count = 1};
    check(fa_launch(kernel, &args, NULL));
    if (!gpu_synchronize(NULL, &why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    gpu_download(host, out, sizeof host);
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
        wrong += host[i] != (int32_t)(i % THREADS);
    if (wrong)
        fprintf(stderr, "wrong results: %d of %u\n", wrong, BLOCKS * THREADS);
    gpu_free(out);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    const char *why = "";
    if (!gpu_open(0, &why)) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    for (size_t i = 0; argc == 3 && i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, argv[1]) == 0)
            return run(all[i].source, strcmp(argv[2], "broken") == 0);
    fprintf(stderr, "usage: planted NAME broken|mended\n");
    return 2;
}
