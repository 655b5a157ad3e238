/* The emulator by itself: what its collective operations compute, what it says about kernels that
 * are wrong, and that it refuses what the real driver refuses. Skipped on anything else. */
#include <stdio.h>

#include "emulated_fixture.h"
#include "oracle/oracle.h"

/* --- what threads do together --- */

static const char block_sum[] =
    "extern __shared__ int dynamic[];\n"
    "__global__ void k(int *out)\n"
    "{\n"
    "    __shared__ int part[96], other[96];\n"
    "    const int i = threadIdx.x;\n"
    "    part[i] = i;\n"
    "    for (int step = 1; step < 96; step *= 2) {\n"
    "        __syncthreads();\n"
    "        const int left = i >= step ? part[i - step] : 0;\n"
    "        __syncthreads();\n"
    "        part[i] += left;\n"
    "    }\n"
    "    other[95 - i] = part[i];\n"
    "    __syncthreads();\n"
    "    out[i] = other[95 - i] * 1000 + __syncthreads_count(i % 3 == 0);\n"
    "}\n";

static void check_block_sum(const char *seed)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, "FAJIT_EMU_SEED", seed);
    run_ints(ctx, block_sum, out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], i * (i + 1) / 2 * 1000 + 32, "thread %d: %d", i, out[i]);
    close_device(&f, ctx);
}

Test(emulator, barriers)
{
    check_block_sum("");
}

Test(emulator, barriers_in_random_order)
{
    check_block_sum("7");
}

Test(emulator, shuffles_and_votes)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, "FAJIT_EMU_SEED", "3");
    run_ints(
        ctx,
        "__global__ void k(int *out)\n"
        "{\n"
        "    const int i = threadIdx.x, lane = i % 32;\n"
        "    const unsigned all = 0xffffffffu;\n"
        "    int wrong = 0;\n"
        "    wrong |= (__shfl_sync(all, i, 5) != i - lane + 5) << 0;\n"
        "    wrong |= (__shfl_sync(all, i, 3, 8) != i - lane % 8 + 3) << 1;\n"
        "    wrong |= (__shfl_up_sync(all, i, 3) != (lane < 3 ? i : i - 3)) << 2;\n"
        "    wrong |= (__shfl_down_sync(all, i, 3, 16) != (lane % 16 > 12 ? i : i + 3)) << 3;\n"
        "    wrong |= (__shfl_xor_sync(all, 2.5 * i, 9) != 2.5 * (i ^ 9)) << 4;\n"
        "    wrong |= (__ballot_sync(all, lane % 4 == 1) != 0x22222222u) << 5;\n"
        "    wrong |= (__all_sync(all, lane < 31) != 0) << 6;\n"
        "    wrong |= (__any_sync(all, lane == 31) != 1) << 7;\n"
        "    wrong |= (__match_any_sync(all, lane / 8) != 0xffu << lane / 8 * 8) << 8;\n"
        "    wrong |= (__reduce_add_sync(all, lane) != 496) << 9;\n"
        "    int sum = lane;\n"
        "    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(all, sum, d);\n"
        "    wrong |= (sum != 496) << 10;\n"
        "    if (lane < 8) wrong |= (__shfl_xor_sync(0xffu, i, 1) != (i ^ 1)) << 11;\n"
        "    else wrong |= (__ballot_sync(~0xffu, 1) != ~0xffu) << 12;\n"
        "    auto small = __shfl_sync(all, (unsigned char)200, 0);\n" /* an int */
        "    wrong |= ((small *= 2) != 400) << 13;\n"
        "    if (lane % 2) wrong |= (__shfl_xor_sync(all, 1.0f, 1) != __int_as_float(7)) << 14;\n"
        "    else wrong |= (__shfl_xor_sync(all, 7, 1) != __float_as_int(1.0f)) << 15;\n"
        "    out[i] = wrong;\n"
        "}\n",
        out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], 0, "thread %d: %x", i, (unsigned)out[i]);
    close_device(&f, ctx);
}

Test(emulator, a_barrier_does_not_wait_for_threads_that_have_ended)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_ints(ctx,
             "__global__ void k(int *out)\n"
             "{\n"
             "    __shared__ int sum;\n"
             "    out[threadIdx.x] = 0;\n"
             "    if (threadIdx.x >= 70) return;\n"
             "    if (threadIdx.x == 0) sum = 0;\n"
             "    __syncthreads();\n"
             "    atomicAdd(&sum, 1);\n"
             "    __syncthreads();\n"
             "    out[threadIdx.x] = sum;\n"
             "}\n",
             out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], i < 70 ? 70 : 0, "thread %d: %d", i, out[i]);
    close_device(&f, ctx);
}

/* The order in which threads come by. */
static const char take_numbers[] =
    "__global__ void k(int *out)\n"
    "{\n"
    "    __shared__ int next;\n"
    "    if (threadIdx.x == 0) next = 0;\n"
    "    __syncthreads();\n"
    "    out[atomicAdd(&next, 1)] = threadIdx.x;\n"
    "}\n";

Test(emulator, order_is_the_same_every_time)
{
    fixture f;
    int32_t out[2][THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_ints(ctx, take_numbers, out[0]);
    run_ints(ctx, take_numbers, out[1]);
    cr_expect_eq(memcmp(out[0], out[1], sizeof out[0]), 0);
    close_device(&f, ctx);
}

Test(emulator, order_of_a_seed)
{
    fixture f;
    int32_t out[2][THREADS];
    bool seen[THREADS] = {false};
    int in_place = 0;
    fa_context *ctx = open_emulator(&f, "FAJIT_EMU_SEED", "1");
    run_ints(ctx, take_numbers, out[0]);
    run_ints(ctx, take_numbers, out[1]);
    cr_expect_eq(memcmp(out[0], out[1], sizeof out[0]), 0, "one seed, two orders");
    for (int i = 0; i < THREADS; i++) {
        seen[out[0][i]] = true;
        in_place += out[0][i] == i;
    }
    for (int i = 0; i < THREADS; i++)
        cr_expect(seen[i], "thread %d never came", i);
    cr_expect_lt(in_place, THREADS / 2, "the seed changes nothing");
    close_device(&f, ctx);
}

/* --- kernels that are wrong --- */

Test(emulator, divergent_barrier_is_reported_with_its_lines, .timeout = 20)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    if (threadIdx.x < 40)\n"
        "        __syncthreads();\n"
        "    else\n"
        "        out[0] = __syncthreads_count(1);\n"
        "}\n",
        (const char *const[]){"CUDA_ERROR_LAUNCH_FAILED", "deadlock", "k.cu:4", "k.cu:6", "40 wait",
                              "56 wait", NULL});
}

Test(emulator, shuffle_that_not_all_lanes_reach, .timeout = 20)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    if (threadIdx.x % 2)\n"
        "        out[0] = __shfl_sync(0xffffffffu, 1, 0);\n"
        "    __syncthreads();\n"
        "}\n",
        (const char *const[]){"deadlock", "__shfl_sync at k.cu:4", "k.cu:5", NULL});
}

Test(emulator, lanes_that_shuffle_different_types)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    if (threadIdx.x % 2) out[1] = __shfl_sync(0xffffffffu, 1.0f, 0);\n"
        "    else out[0] = __shfl_sync(0xffffffffu, 1.0, 0);\n"
        "}\n",
        (const char *const[]){"__shfl_sync at k.cu:3", "different types", NULL});
}

Test(emulator, lane_that_is_not_in_its_mask)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    out[0] = __shfl_sync(0x7fffffffu, 1, 0);\n"
        "}\n",
        (const char *const[]){"mask", "k.cu:3", "(31,0,0)", NULL});
}

Test(emulator, misaligned_access)
{
    expect_failure(
        "#include \"fajit/dtype.cuh\"\n"
        "__global__ void k(int *out)\n"
        "{\n"
        "    out[0] = fajit::load<16>(out + 1).word[0];\n"
        "}\n",
        (const char *const[]){"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned", "k.cu:4", NULL});
}

Test(emulator, failed_assertion)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    assert(threadIdx.x != 77);\n"
        "}\n",
        (const char *const[]){"CUDA_ERROR_ASSERT", "k.cu:3", "threadIdx", "(77,0,0)", NULL});
}

Test(emulator, memory_that_was_never_written_is_nan)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_ints(ctx,
             "__global__ void k(int *out) { float x = ((float *)out)[threadIdx.x];\n"
             "    out[threadIdx.x] = x != x; }\n",
             out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], 1, "thread %d", i);
    close_device(&f, ctx);
}

/* --- compiling --- */

Test(emulator, errors_have_the_lines_of_the_template)
{
    expect_compile_error(
        "__global__ void k(int *out)\n"
        "{\n"
        "    out[0] = nonsense;\n"
        "}\n",
        (const char *const[]){"k.cu:3", "nonsense", NULL});
}

Test(emulator, inline_ptx_is_refused)
{
    expect_compile_error(
        "__global__ void k(int *out)\n"
        "{\n"
        "    asm volatile(\"nop;\");\n"
        "}\n",
        (const char *const[]){"k.cu:3", "emulator does not implement", NULL});
}

Test(emulator, an_entry_that_is_not_there)
{
    expect_compile_error("__global__ void other(int *out) {}\n",
                         (const char *const[]){"__nv_name_map", NULL});
}

static void check_arch(const char *arch, int expected)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, "FAJIT_EMU_ARCH", arch);
    run_ints(ctx, "__global__ void k(int *out) { out[threadIdx.x] = __CUDA_ARCH__; }\n", out);
    cr_expect_eq(out[THREADS - 1], expected, "%s: %d", arch, out[THREADS - 1]);
    close_device(&f, ctx);
}

Test(emulator, architecture_8_0)
{
    check_arch("8.0", 800);
}

Test(emulator, architecture_12_0)
{
    check_arch("12.0", 1200);
}

/* --- conversions --- */

static const char conversions[] =
    "#include \"fajit/dtype.cuh\"\n"
    "__global__ void k(const float *in, unsigned *out)\n"
    "{\n"
    "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    const float x = in[i];\n"
    "    out[3 * i] = fajit::pack_pair(fajit::f16{}, x, fajit::to_float(fajit::f16{\n"
    "                     static_cast<unsigned short>(i))});\n"
    "    out[3 * i + 1] = fajit::pack_pair(fajit::bf16{}, x, x);\n"
    "    out[3 * i + 2] = __float_as_uint(fajit::to_float(fajit::f16{\n"
    "                     static_cast<unsigned short>(i)}));\n"
    "}\n";

/* Every half, and floats of every exponent with mantissas around the ties. */
Test(emulator, conversions_round_as_the_reference)
{
    enum { COUNT = 65536 };
    fixture f;
    char source[sizeof conversions];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    memcpy(source, conversions, sizeof source);
    char *closing = strstr(source, "(i))});");
    memcpy(closing, "(i)}));", 7);
    fa_kernel *kernel = compile_text(ctx, source);
    uint32_t *in = malloc(COUNT * sizeof *in), *out = malloc(3 * COUNT * sizeof *out);
    cr_assert(in && out);
    for (uint32_t i = 0; i < COUNT; i++) {
        static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000};
        in[i] = i / 8 * 0x7ffffu + low[i % 8] * (i & 16 ? 1 : 2);
    }
    void *from = gpu_alloc(COUNT * sizeof *in), *to = gpu_alloc(3 * COUNT * sizeof *out);
    gpu_upload(from, in, COUNT * sizeof *in);
    const fa_param params[] = {{&from, sizeof from}, {&to, sizeof to}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {COUNT / 256}, .block = {256}, .params = params, .param_count = 2};
    OK(fa_launch(kernel, &args, NULL));
    gpu_download(out, to, 3 * COUNT * sizeof *out);
    for (uint32_t i = 0; i < COUNT; i++) {
        float x, back;
        uint16_t half = 0, bfloat = 0, given = (uint16_t)i;
        double exact = 0, widened = 0;
        memcpy(&x, &in[i], sizeof x);
        memcpy(&back, &out[3 * i + 2], sizeof back);
        exact = (double)x;
        oracle_store(FA_F16, &half, &exact, 1);
        oracle_store(FA_BF16, &bfloat, &exact, 1);
        oracle_load(FA_F16, &widened, &given, 1);
        if (x == x) { /* what becomes of a NaN's payload is not the reference's to say */
            cr_assert_eq(out[3 * i] & 0xffff, half, "%a to f16: %x, not %x", exact,
                         out[3 * i] & 0xffff, half);
            cr_assert_eq(out[3 * i + 1], bfloat | (uint32_t)bfloat << 16, "%a to bf16", exact);
        }
        if (widened == widened) {
            cr_assert((double)back == widened, "half %x: %a, not %a", i, (double)back, widened);
            cr_assert_eq(out[3 * i] >> 16, i, "half %x does not come back", i);
        }
    }
    free(in);
    free(out);
    gpu_free(from);
    gpu_free(to);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- what the driver refuses --- */

typedef int (*alloc_fn)(uint64_t *, size_t);

Test(emulator, allocating_breaks_a_capture)
{
    fixture f;
    uint64_t memory = 0;
    alloc_fn alloc = NULL;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    *(void **)&alloc = gpu_symbol("cuMemAlloc_v2");
    gpu_stream stream = gpu_stream_create();
    gpu_capture_begin(stream);
    cr_expect_eq(alloc(&memory, 256), 900);
    cr_expect_null(gpu_capture_end(stream));
    cr_expect_eq(alloc(&memory, 256), 0);
    gpu_stream_destroy(stream);
    close_device(&f, ctx);
}

Test(emulator, copies_stay_inside_an_allocation)
{
    fixture f;
    char host[300] = "";
    int (*copy)(uint64_t, const void *, size_t) = NULL;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    *(void **)&copy = gpu_symbol("cuMemcpyHtoD_v2");
    void *memory = gpu_alloc(256);
    cr_expect_eq(copy((uintptr_t)memory, host, 256), 0);
    cr_expect_eq(copy((uintptr_t)memory, host, 257), 1);
    cr_expect_eq(copy((uintptr_t)memory + 200, host, 57), 1);
    gpu_free(memory);
    close_device(&f, ctx);
}
