/* What a kernel on the emulator says and how it ends: printf, assert, traps, clocks. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "emulated_fixture.h"

/* --- what is printed --- */

typedef struct capture {
    int fd, kept, file;
} capture;

static void capture_begin(capture *c, int fd)
{
    char path[] = "/tmp/fajit-printed.XXXXXX";
    fflush(NULL);
    *c = (capture){.fd = fd, .kept = dup(fd), .file = mkstemp(path)};
    cr_assert(c->kept >= 0 && c->file >= 0);
    unlink(path);
    dup2(c->file, fd);
}

/* What has reached the file by now: nothing is flushed here. */
static void capture_end(capture *c, char *text, size_t size)
{
    const ssize_t got = pread(c->file, text, size - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    dup2(c->kept, c->fd);
    close(c->kept);
    close(c->file);
}

/* Runs `threads` of k and gives what stream `fd` got until they were waited for. */
static void run_captured(fa_context *ctx, const char *source, uint32_t threads, int fd, char *text,
                         size_t size, int32_t *out, bool works)
{
    capture c;
    const char *why = "";
    fa_kernel *kernel = compile_text(ctx, source);
    void *memory = gpu_alloc(THREADS * sizeof *out);
    gpu_fill(memory, 0, THREADS * sizeof *out);
    capture_begin(&c, fd);
    const bool ran = run_block(kernel, memory, threads, &why);
    capture_end(&c, text, size);
    cr_expect_eq(ran, works, "%s", why);
    if (works)
        gpu_download(out, memory, THREADS * sizeof *out);
    if (works)
        gpu_free(memory);
    fa_kernel_release(kernel);
}

static const char prints[] =
    "__global__ void k(int *out)\n"
    "{\n"
    "    const char *none = nullptr;\n"
    "    const int i = threadIdx.x;\n"
    "    out[8 * i + 0] = printf(\"%d: %5.2f|%-4s|%lld|%#x|%c|%%|%*d\\n\", i, 0.125f * i, \"ab\",\n"
    "                            1ll << 40, 255, 'z', 4, i);\n"
    "    out[8 * i + 1] = printf(\"plain\\n\");\n"
    "    out[8 * i + 2] = printf(none);\n"
    "    out[8 * i + 3] = printf(\"\");\n"
    "}\n";

static void check_prints(const char *compiler)
{
    fixture f;
    char text[1024];
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, "CXX", compiler);
    run_captured(ctx, prints, 3, STDOUT_FILENO, text, sizeof text, out, true);
    cr_expect_str_eq(text,
                     "0:  0.00|ab  |1099511627776|0xff|z|%|   0\nplain\n"
                     "1:  0.12|ab  |1099511627776|0xff|z|%|   1\nplain\n"
                     "2:  0.25|ab  |1099511627776|0xff|z|%|   2\nplain\n");
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(out[8 * i], 8, "printf gave %d", out[8 * i]);
        cr_expect_eq(out[8 * i + 1], 0, "without values: %d", out[8 * i + 1]);
        cr_expect_eq(out[8 * i + 2], -1, "without a format: %d", out[8 * i + 2]);
        cr_expect_eq(out[8 * i + 3], 0);
    }
    close_device(&f, ctx);
}

Test(emulator_launch, printf_with_clang)
{
    check_prints("clang++");
}

Test(emulator_launch, printf_with_gcc)
{
    check_prints("g++");
}

/* A compiler that knows printf makes another function of it. */
static void check_lone_print(const char *compiler)
{
    fixture f;
    char text[64];
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, "CXX", compiler);
    run_captured(ctx, "__global__ void k(int *out) { printf(\"alone\\n\"); }\n", 2, STDOUT_FILENO,
                 text, sizeof text, out, true);
    cr_expect_str_eq(text, "alone\nalone\n");
    close_device(&f, ctx);
}

Test(emulator_launch, printf_of_a_line_with_clang)
{
    check_lone_print("clang++");
}

Test(emulator_launch, printf_of_a_line_with_gcc)
{
    check_lone_print("g++");
}

Test(emulator_launch, printf_before_a_failure_is_seen)
{
    fixture f;
    char text[256];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_captured(ctx,
                 "__global__ void k(int *out)\n"
                 "{\n"
                 "    printf(\"thread %d\\n\", threadIdx.x);\n"
                 "    if (threadIdx.x == 2) __trap();\n"
                 "}\n",
                 4, STDOUT_FILENO, text, sizeof text, NULL, false);
    cr_expect_str_eq(text, "thread 0\nthread 1\nthread 2\n");
    close_device(&f, ctx);
}

Test(emulator_launch, printf_of_what_no_device_prints)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    const char *format = \"%d%n\";\n"
        "    printf(format, 1, out);\n"
        "}\n",
        (const char *const[]){"CUDA_ERROR_LAUNCH_FAILED", "%n", "printf", NULL});
}

/* --- assert --- */

static void check_assertion(const char *compiler, const char *function, const char *source,
                            const char *condition)
{
    fixture f;
    char text[512], line[512];
    fa_context *ctx = open_emulator(&f, "CXX", compiler);
    run_captured(ctx, source, THREADS, STDERR_FILENO, text, sizeof text, NULL, false);
    snprintf(line, sizeof line,
             "k.cu:4: %s: block: [0,0,0], thread: [77,0,0] Assertion `%s` failed.\n", function,
             condition);
    cr_expect_str_eq(text, line);
    close_device(&f, ctx);
}

static const char asserts[] =
    "__global__ void __launch_bounds__((96 > 1) ? 96 : 1)\n"
    "k(int *out)\n"
    "{\n"
    "    assert(threadIdx.x != 77);\n"
    "    out[threadIdx.x] = 1;\n"
    "}\n";

Test(emulator_launch, assertion_with_clang)
{
    check_assertion("clang++", "void k(int *)", asserts, "threadIdx.x != 77");
}

Test(emulator_launch, assertion_with_gcc)
{
    check_assertion("g++", "void k(int*)", asserts, "threadIdx.x != 77");
}

Test(emulator_launch, assertion_ends_with_its_own_code)
{
    expect_failure(asserts, (const char *const[]){"CUDA_ERROR_ASSERT", "k.cu:4", "(77,0,0)", NULL});
}

Test(emulator_launch, assertion_that_is_switched_off)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    const char *const options[] = {"-DNDEBUG"};
    const char *why = "";
    fa_kernel *kernel = compile(ctx, &(fa_template_spec){.name = "k.cu",
                                                         .source = asserts,
                                                         .entry = "k",
                                                         .options = options,
                                                         .option_count = 1});
    void *memory = gpu_alloc(sizeof out);
    cr_expect(run_block(kernel, memory, THREADS, &why), "%s", why);
    gpu_download(out, memory, sizeof out);
    cr_expect_eq(out[0], 1);
    gpu_free(memory);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- traps, clocks --- */

Test(emulator_launch, trap)
{
    expect_failure(
        "__global__ void k(int *out)\n"
        "{\n"
        "    if (threadIdx.x == 5)\n"
        "        __trap();\n"
        "}\n",
        (const char *const[]){"CUDA_ERROR_LAUNCH_FAILED", "__trap at k.cu:4", "(5,0,0)", NULL});
}

Test(emulator_launch, clocks_never_go_back)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_ints(ctx,
             "#include \"fajit/clock.cuh\"\n"
             "__global__ void k(int *out)\n"
             "{\n"
             "    const long long first = clock64();\n"
             "    const unsigned long long begin = fajit::nanoseconds();\n"
             "    long long last = first;\n"
             "    unsigned long long end = begin;\n"
             "    const int low = clock();\n"
             "    int back = 0, moved = 0;\n"
             "    for (int i = 0; i < 1000; i++) {\n"
             "        const long long now = clock64();\n"
             "        const unsigned long long time = fajit::nanoseconds();\n"
             "        back |= now < last || time < end;\n"
             "        last = now;\n"
             "        end = time;\n"
             "        __nanosleep(100);\n"
             "    }\n"
             "    moved = last > first && end > begin && clock() != low;\n"
             "    out[threadIdx.x] = back ? 2 : moved;\n"
             "}\n",
             out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], 1, "thread %d: %d", i, out[i]);
    close_device(&f, ctx);
}

static void expect_all(const char *variable, const char *value, const char *source, int expected)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, variable, value);
    run_ints(ctx, source, out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], expected, "thread %d: %d", i, out[i]);
    close_device(&f, ctx);
}

/* Threads of a device make progress, whatever the others do. */
Test(emulator_launch, atomics_in_a_loop_let_others_run, .timeout = 30)
{
    expect_all(NULL, NULL,
               "__device__ int flag, lock;\n"
               "__global__ void k(int *out)\n"
               "{\n"
               "    if (threadIdx.x < 50)\n"
               "        while (!atomicAdd(&flag, 0)) ;\n"
               "    else if (threadIdx.x == 95)\n"
               "        atomicExch(&flag, 1);\n"
               "    else\n"
               "        while (atomicCAS(&flag, 1, 1) != 1) ;\n"
               "    out[threadIdx.x] = 3;\n"
               "}\n",
               3);
}

/* 400 KB of the 512 that a thread may have. */
static const char large_local[] =
    "__device__ __noinline__ int last(const volatile int *x) { return x[99999] - x[50000]; }\n"
    "__global__ void k(int *out)\n"
    "{\n"
    "    volatile int x[100000];\n"
    "    for (int i = 0; i < 100000; i += 1000) x[i + 999] = i + threadIdx.x;\n"
    "    x[50000] = threadIdx.x;\n"
    "    __syncthreads();\n"
    "    out[threadIdx.x] = last(x);\n"
    "}\n";

Test(emulator_launch, large_local_arrays_with_clang)
{
    expect_all("CXX", "clang++", large_local, 99000);
}

Test(emulator_launch, large_local_arrays_with_gcc)
{
    expect_all("CXX", "g++", large_local, 99000);
}

/* More blocks at once than Linux has mappings for their stacks. */
Test(emulator_launch, many_threads_of_the_operating_system, .timeout = 60)
{
    fixture f;
    const char *why = "";
    static int32_t out[1024];
    fa_context *ctx = open_emulator(&f, "FAJIT_EMU_THREADS", "64");
    fa_kernel *kernel = compile_text(ctx,
                                     "__global__ void k(int *out)\n"
                                     "{\n"
                                     "    __syncthreads();\n"
                                     "    atomicAdd(out + threadIdx.x, 1);\n"
                                     "}\n");
    void *memory = gpu_alloc(sizeof out);
    gpu_fill(memory, 0, sizeof out);
    const fa_param params[] = {{&memory, sizeof memory}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl =
        (fa_template_args){.grid = {256}, .block = {1024}, .params = params, .param_count = 1};
    OK(fa_launch(kernel, &args, NULL));
    cr_assert(gpu_synchronize(NULL, &why), "%s", why);
    gpu_download(out, memory, sizeof out);
    for (int i = 0; i < 1024; i++)
        cr_expect_eq(out[i], 256, "thread %d: %d", i, out[i]);
    gpu_free(memory);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* The last to arrive at the barrier goes on first, and waits for thread 0. */
Test(emulator_launch, nanosleep_lets_others_run, .timeout = 30)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    run_ints(ctx,
             "__global__ void k(int *out)\n"
             "{\n"
             "    __shared__ int ready;\n"
             "    if (threadIdx.x == 0) ready = 0;\n"
             "    __syncthreads();\n"
             "    if (threadIdx.x == 0) atomicExch(&ready, 5);\n"
             "    else while (!atomicAdd(&ready, 0)) __nanosleep(20);\n"
             "    out[threadIdx.x] = atomicAdd(&ready, 0);\n"
             "}\n",
             out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], 5, "thread %d: %d", i, out[i]);
    close_device(&f, ctx);
}
