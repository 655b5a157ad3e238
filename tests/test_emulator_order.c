/* Programmatic dependent launch on the emulator: kernels that do not wait for their predecessor read
 * what was there before it, every time; those that wait read what it wrote. */
#include <stdio.h>

#include "emulated_fixture.h"

enum {
    BLOCK_THREADS = 32,
    MAX_BLOCKS = 40,
    MAX_COUNT = BLOCK_THREADS * MAX_BLOCKS,
    OLD = 0x07070707
};

#define LET "fajit::let_successor_start();"
#define WAIT "fajit::wait_for_predecessor();"

/* `out[i] = in[last - i] + add`, with statements before, between and after. The first blocks read
 * what the last ones wrote. */
typedef struct kernel_text {
    const char *before, *between, *after;
    bool programmatic;
} kernel_text;

static fa_kernel *make_kernel(fa_context *ctx, const kernel_text *text)
{
    char source[1024];
    snprintf(source, sizeof source,
             "#include \"fajit/order.cuh\"\n"
             "__global__ void k(const int *in, int *out, int add)\n"
             "{\n"
             "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
             "    %s\n"
             "    const int x = in[gridDim.x * blockDim.x - 1 - i];\n"
             "    %s\n"
             "    out[i] = x + add;\n"
             "    %s\n"
             "}\n",
             text->before, text->between, text->after);
    return compile(ctx, &(fa_template_spec){.name = "k.cu",
                                            .source = source,
                                            .entry = "k",
                                            .programmatic_launch = text->programmatic});
}

static void launch(const fa_kernel *kernel, void *in, void *out, int add, uint32_t blocks,
                   gpu_stream stream)
{
    const fa_param params[] = {{&in, sizeof in}, {&out, sizeof out}, {&add, sizeof add}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {blocks}, .block = {BLOCK_THREADS}, .params = params, .param_count = 3};
    OK(fa_launch(kernel, &args, stream));
}

/* --- chains of kernels --- */

enum { LONGEST = 3 };

typedef struct chain {
    fa_context *ctx;
    fa_kernel *kernel[LONGEST];
    void *buffer[LONGEST + 1]; /* kernel j reads buffer j and adds 10^j */
    int length;
    uint32_t blocks;
    gpu_stream stream;
} chain;

static void chain_begin(chain *c, fa_context *ctx, const kernel_text *text, uint32_t blocks)
{
    *c = (chain){.ctx = ctx, .blocks = blocks, .stream = gpu_stream_create()};
    for (; c->length < LONGEST && text[c->length].before; c->length++)
        c->kernel[c->length] = make_kernel(ctx, &text[c->length]);
    for (int j = 0; j <= c->length; j++)
        c->buffer[j] = gpu_alloc(MAX_COUNT * sizeof(int));
}

/* The input is 0, everything else OLD. */
static void chain_reset(chain *c)
{
    gpu_fill(c->buffer[0], 0, MAX_COUNT * sizeof(int));
    for (int j = 1; j <= c->length; j++)
        gpu_fill(c->buffer[j], 7, MAX_COUNT * sizeof(int));
}

static void chain_launch(chain *c)
{
    int add = 1;
    for (int j = 0; j < c->length; j++, add *= 10)
        launch(c->kernel[j], c->buffer[j], c->buffer[j + 1], add, c->blocks, c->stream);
}

/* What came out: of the first `early` elements `first`, of the others `rest`. */
static void chain_check(chain *c, uint32_t early, int first, int rest)
{
    static int out[MAX_COUNT];
    const char *why = "";
    cr_assert(gpu_synchronize(c->stream, &why), "%s", why);
    gpu_download(out, c->buffer[c->length], sizeof out);
    for (uint32_t i = 0; i < c->blocks * BLOCK_THREADS; i++) {
        const int expected = i < early ? first : rest;
        cr_assert_eq(out[i], expected, "element %u: %d, not %d", i, out[i], expected);
    }
}

static void chain_end(chain *c)
{
    for (int j = 0; j < c->length; j++)
        fa_kernel_release(c->kernel[j]);
    for (int j = 0; j <= c->length; j++)
        gpu_free(c->buffer[j]);
    gpu_stream_destroy(c->stream);
}

typedef struct expectation {
    const char *what;
    kernel_text text[LONGEST];
    uint32_t blocks, early;
    int first, rest;
} expectation;

static const expectation expectations[] = {
    {"lets it start at once, and it waits",
     {{LET, "", "", false}, {WAIT, "", "", true}},
     4,
     0,
     0,
     11},
    {"lets it start at once, and it does not wait",
     {{LET, "", "", false}, {"", "", "", true}},
     4,
     MAX_COUNT,
     OLD + 10,
     0},
    {"lets it start between reading and writing",
     {{"", LET, "", false}, {"", "", "", true}},
     4,
     MAX_COUNT,
     OLD + 10,
     0},
    {"lets it start when all is written",
     {{"", "", "__syncthreads();" LET, false}, {"", "", "", true}},
     4,
     0,
     0,
     11},
    {"never lets it start", {{"", "", "", false}, {"", "", "", true}}, 4, 0, 0, 11},
    {"waits after reading",
     {{LET, "", "", false}, {"", WAIT, "", true}},
     4,
     MAX_COUNT,
     OLD + 10,
     0},
    {"waits in some threads only",
     {{LET, "", "", false}, {"if (threadIdx.x == 31)" WAIT "__syncthreads();", "", "", true}},
     4,
     0,
     0,
     11},
    {"has no programmatic attribute", {{LET, "", "", false}, {"", "", "", false}}, 4, 0, 0, 11},
    /* 8 blocks are on the device at once: the earlier ones have ended when the last one comes. */
    {"more blocks than a wave, without waiting",
     {{LET, "", "", false}, {"", "", "", true}},
     MAX_BLOCKS,
     8 * BLOCK_THREADS,
     OLD + 10,
     11},
    {"more blocks than a wave, waiting",
     {{LET, "", "", false}, {WAIT, "", "", true}},
     MAX_BLOCKS,
     0,
     0,
     11},
    {"three that wait",
     {{LET, "", "", false}, {LET WAIT, "", "", true}, {LET WAIT, "", "", true}},
     MAX_BLOCKS,
     0,
     0,
     111},
    {"the third does not wait",
     {{LET, "", "", false}, {LET WAIT, "", "", true}, {"", "", "", true}},
     4,
     MAX_COUNT,
     OLD + 100,
     0},
    {"the third lets itself start only by the second, which waited",
     {{LET, "", "", false}, {WAIT LET, "", "", true}, {"", "", "", true}},
     4,
     MAX_COUNT,
     OLD + 100,
     0},
};

static void check_all(const char *variable, const char *value)
{
    fixture f;
    fa_context *ctx = open_emulator(&f, variable, value);
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const expectation *e = &expectations[i];
        chain c;
        fprintf(stderr, "%s\n", e->what);
        chain_begin(&c, ctx, e->text, e->blocks);
        for (int again = 0; again < 3; again++) {
            chain_reset(&c);
            chain_launch(&c);
            chain_check(&c, e->early, e->first, e->rest);
        }
        chain_end(&c);
    }
    close_device(&f, ctx);
}

Test(emulator_order, pairs_and_chains, .timeout = 60)
{
    check_all(NULL, NULL);
}

Test(emulator_order, on_one_thread, .timeout = 60)
{
    check_all("FAJIT_EMU_THREADS", "1");
}

Test(emulator_order, in_random_order, .timeout = 60)
{
    check_all("FAJIT_EMU_SEED", "11");
}

Test(emulator_order, in_a_graph, .timeout = 60)
{
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++) {
        const expectation *e = &expectations[i];
        chain c;
        fprintf(stderr, "%s\n", e->what);
        chain_begin(&c, ctx, e->text, e->blocks);
        gpu_capture_begin(c.stream);
        chain_launch(&c);
        gpu_graph graph = gpu_capture_end(c.stream);
        cr_assert_not_null(graph);
        for (int again = 0; again < 3; again++) {
            chain_reset(&c);
            gpu_graph_launch(graph, c.stream);
            chain_check(&c, e->early, e->first, e->rest);
        }
        gpu_graph_destroy(graph);
        chain_end(&c);
    }
    close_device(&f, ctx);
}

/* More than may overlap. */
Test(emulator_order, a_long_chain, .timeout = 60)
{
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    const kernel_text text[LONGEST] = {{LET WAIT, "", "", true}};
    chain c;
    int value = 0;
    chain_begin(&c, ctx, text, 12);
    chain_reset(&c);
    for (int i = 0; i < 50; i++)
        launch(c.kernel[0], c.buffer[i % 2], c.buffer[(i + 1) % 2], value += i, 12, c.stream);
    c.length = 0; /* the result is in buffer 0 */
    value = 0;
    for (int i = 0, add = 0; i < 50; i++)
        value += add += i;
    chain_check(&c, 0, 0, value);
    c.length = 1;
    chain_end(&c);
    close_device(&f, ctx);
}

/* Nobody holds a kernel back whose successor never comes. */
Test(emulator_order, no_successor, .timeout = 20)
{
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    const kernel_text text[LONGEST] = {{LET, "", "", false}};
    chain c;
    chain_begin(&c, ctx, text, 4);
    for (int i = 0; i < 20; i++) { /* each would be held for seconds */
        chain_reset(&c);
        chain_launch(&c);
        chain_check(&c, 0, 0, 1);
    }
    chain_end(&c);
    close_device(&f, ctx);
}

/* Nor does who polls for a thread that waits for the kernel before. */
Test(emulator_order, polling_for_a_thread_that_waits, .timeout = 30)
{
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    const kernel_text text[LONGEST] = {
        {LET, "", "", false},
        {"__shared__ int here; if (threadIdx.x == 0) here = 0; __syncthreads();"
         "if (threadIdx.x == 3) {" WAIT " atomicExch(&here, 1); }"
         "else while (!atomicAdd(&here, 0)) __nanosleep(20);",
         "", "", true}};
    chain c;
    chain_begin(&c, ctx, text, 4);
    chain_reset(&c);
    chain_launch(&c);
    chain_check(&c, 0, 0, 11);
    chain_end(&c);
    close_device(&f, ctx);
}

/* --- failures --- */

static void expect_broken(const kernel_text *text, const char *word)
{
    fixture f;
    const char *why = "";
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    chain c;
    chain_begin(&c, ctx, text, 12);
    chain_reset(&c);
    chain_launch(&c);
    cr_expect_not(gpu_synchronize(c.stream, &why), "it went through");
    cr_expect(strstr(why, word) != NULL, "no '%s' in: %s", word, why);
    for (int j = 0; j < c.length; j++) /* its memory went with the context */
        fa_kernel_release(c.kernel[j]);
    close_device(&f, ctx);
}

#define TRAP "if (blockIdx.x == 11) __trap();"

Test(emulator_order, predecessor_that_fails, .timeout = 20)
{
    expect_broken((kernel_text[LONGEST]){{LET TRAP, "", "", false}, {WAIT, "", "", true}},
                  "__trap at k.cu:5");
}

Test(emulator_order, predecessor_that_fails_before_it_lets_anyone_start, .timeout = 20)
{
    expect_broken((kernel_text[LONGEST]){{TRAP LET, "", "", false}, {WAIT, "", "", true}},
                  "__trap at k.cu:5");
}

Test(emulator_order, first_of_three_that_fails, .timeout = 20)
{
    expect_broken((kernel_text[LONGEST]){{LET TRAP, "", "", false},
                                         {LET WAIT, "", "", true},
                                         {WAIT, "", "", true}},
                  "__trap at k.cu:5");
}

Test(emulator_order, successor_that_fails, .timeout = 20)
{
    expect_broken((kernel_text[LONGEST]){{LET, "", "", false}, {TRAP WAIT, "", "", true}},
                  "__trap at k.cu:5");
}

Test(emulator_order, deadlock_behind_the_wait, .timeout = 20)
{
    expect_broken((kernel_text[LONGEST]){{LET, "", "", false},
                                         {"if (threadIdx.x < 5) {" WAIT " __syncthreads(); }"
                                          "else __syncthreads_count(1);",
                                          "", "", true}},
                  "deadlock");
}
