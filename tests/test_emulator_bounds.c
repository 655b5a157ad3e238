/* __launch_bounds__ on the emulator: found wherever it may stand, with each host compiler. */
#include <stdio.h>

#include "emulated_fixture.h"

static const char *const compilers[] = {"clang++", "g++"};

/* Skips the test when this compiler is not on the path. */
static fa_context *open_with(fixture *f, const char *compiler)
{
    char command[64];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", compiler);
    if (system(command) != 0)
        cr_skip_test("no %s", compiler);
    return open_emulator(f, "CXX", compiler);
}

typedef struct bounds_case {
    const char *source, *entry; /* entry: NULL is "k" */
    uint32_t threads;           /* 0: a compile error */
    const char *said;           /* by that */
} bounds_case;

#define BODY "{ out[threadIdx.x] = __LINE__; }\n"
#define GLOBAL "__global__ "
#define APART "__launch_bounds__ apart from its kernel"

static const bounds_case cases[] = {
    {GLOBAL "void k(int *out) " BODY, NULL, 1024, NULL},
    {GLOBAL "__launch_bounds__(64) void k(int *out) " BODY, NULL, 64, NULL},
    {GLOBAL "void __launch_bounds__(96, 4) k(int *out) " BODY, NULL, 96, NULL},
    {"__launch_bounds__(32) " GLOBAL "void k(int *out) " BODY, NULL, 32, NULL},
    {GLOBAL "auto __launch_bounds__(32) k(int *out) -> void " BODY, NULL, 32, NULL},
    {GLOBAL "__launch_bounds__(64) void k(void) {}\n", NULL, 64, NULL},
    {GLOBAL "__launch_bounds__(64) void k() {}\n", NULL, 64, NULL},
    {GLOBAL "__launch_bounds__(2048) void k() {}\n", NULL, 1024, NULL},
    {GLOBAL "__launch_bounds__(0) void k() {}\n", NULL, 1024, NULL},
    {GLOBAL "void\n__launch_bounds__(\n 96 /* ) */ , // (\n 4)\nk\n(\nint *out\n)\n" BODY, NULL, 96,
     NULL},
    {"extern \"C\" " GLOBAL "void __launch_bounds__(1'0'0) k(int *out) " BODY, NULL, 100, NULL},
    {GLOBAL "[[maybe_unused]] void __launch_bounds__(48) __maxnreg__(32) k [[maybe_unused]] "
            "(int *out) " BODY,
     NULL, 48, NULL},
    /* text that only looks like it */
    {"const char *a = \"__launch_bounds__(2\"; const char c = '\"'; // __launch_bounds__(1\n"
     "const char *r = R\"x(__launch_bounds__(\n)x\";\n"
     "#if 0\n__launch_bounds__(3) nonsense\n#endif\n" GLOBAL
     "void __launch_bounds__(33) k(int *out) " BODY,
     NULL, 33, NULL},
    /* templates */
    {"template <int N> " GLOBAL "__launch_bounds__(N > 64 ? N : 64, 2) void k(int *out) " BODY,
     "k<128>", 128, NULL},
    {"template <class T, int... N> struct s { static constexpr int v = (N + ...); };\n"
     "template <class T> " GLOBAL "void __launch_bounds__(s<T, 1, 2>::v) k(T *out) " BODY,
     "k<int>", 3, NULL},
    {"template <int N, class T> " GLOBAL "__launch_bounds__(N) void k(T *out) " BODY
     "template <> " GLOBAL "__launch_bounds__((8 > 4) ? 16 : 1) void k<(16 > 2) * 16, int>(int *) "
     "{}\n",
     "k<16,int>", 16, NULL},
    {"template <int N> " GLOBAL "__launch_bounds__(N) void k(int *out) " BODY "template <> " GLOBAL
     "void k<64>(int *out) {}\n",
     "k<64>", 0, APART},
    {"template <int N> " GLOBAL "__launch_bounds__(N) void k(int *out) " BODY "template " GLOBAL
     "void k<64>(int *out);\n",
     "k<64>", 0, APART},
    /* declarations */
    {GLOBAL "__launch_bounds__(64) void k(int *); " GLOBAL
            "__launch_bounds__(64) void k(int *out) " BODY,
     NULL, 64, NULL},
    {GLOBAL "__launch_bounds__(64) void k(int *); " GLOBAL "void k(int *out) " BODY, NULL, 64,
     NULL},
    {GLOBAL "void k(int *); " GLOBAL "__launch_bounds__(64) void k(int *out) " BODY, NULL, 64,
     NULL},
    {"template <int N> " GLOBAL "__launch_bounds__(N) void k(int *); template <int N> " GLOBAL
     "void k(int *out) " BODY,
     "k<64>", 64, NULL},
    {GLOBAL "__launch_bounds__(64) void k(int *); " GLOBAL
            "__launch_bounds__(32) void k(int *out) " BODY,
     NULL, 0, "__nv_name_map"},
    {"namespace a { constexpr int N = 48; " GLOBAL "void __launch_bounds__(N) k(int *); }\n" GLOBAL
     "void __launch_bounds__(a::N) a::k(int *out) " BODY,
     "a::k", 48, NULL},
    {"namespace a { " GLOBAL "void __launch_bounds__(48) k(int *out) " BODY "}\n"
     "namespace b { " GLOBAL "void k(int *out) " BODY "}\n",
     "b::k", 1024, NULL},
    /* macros */
    {"#define K(NAME, N) " GLOBAL "void \\\n__launch_bounds__(N, 2) NAME(int *out) \\\n" BODY
     "K(k, 96)\n",
     NULL, 96, NULL},
    {"#define HEAD(NAME, N) " GLOBAL "void __launch_bounds__(N) NAME(int *out)\nHEAD(k, 96) " BODY,
     NULL, 96, NULL},
    {"#define B __launch_bounds__(96)\n" GLOBAL "void k(int *out) " BODY, NULL, 1024, NULL},
    {"#define B __launch_bounds__(96)\n" GLOBAL "void B k(int *out) " BODY, NULL, 0, APART},
    {"#define B(n) __launch_bounds__(n)\n" GLOBAL "void B(96) k(int *out) " BODY, NULL, 0, APART},
    {"#define DEF(n) n(int *out)\n" GLOBAL "void __launch_bounds__(96) DEF(k) " BODY, NULL, 0,
     "DEF"},
    /* branches of the preprocessor */
    {GLOBAL "void __launch_bounds__(32) k(\n#if 1\nint *out\n#else\nfloat *out\n#endif\n) " BODY,
     NULL, 32, NULL},
    {"#if 1\n" GLOBAL "void __launch_bounds__(32)\n#else\n" GLOBAL
     "void __launch_bounds__(64)\n#endif\nk(int *out) " BODY,
     NULL, 0, APART},
    {GLOBAL "void __launch_bounds__(32) k(\n#if 1\nint *out) {\n#else\nfloat *x) {\n#endif\n}\n",
     NULL, 0, APART},
    {"#if 0\n" GLOBAL "__launch_bounds__(32) void k(int *out) " BODY "#else\n" GLOBAL
     "void k(int *out) " BODY "#endif\n",
     NULL, 1024, NULL},
    /* what it does not do */
    {GLOBAL "__launch_bounds__(64, 1, 2) void k(int *out) " BODY, NULL, 0,
     "emulator_does_not_implement_the_third_argument_of_launch_bounds"},
    {GLOBAL "__cluster_dims__(2) void __launch_bounds__(64) k(int *out) " BODY, NULL, 0,
     "emulator does not implement __cluster_dims__"},
};

static void check_case(fa_context *ctx, const bounds_case *c)
{
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl =
        (fa_template_spec){.name = "k.cu", .source = c->source, .entry = c->entry ? c->entry : "k"};
    const fa_status status = fa_compile(ctx, &spec, &kernel);
    if (c->threads == 0) {
        cr_expect_eq(status, FA_ERR_COMPILE, "%s compiles", c->source);
        cr_expect(status == FA_OK || strstr(fa_last_error(), c->said), "%s: no '%s' in: %s",
                  c->source, c->said, fa_last_error());
    } else if (status != FA_OK) {
        cr_expect(false, "%s: %s", c->source, fa_last_error());
    } else {
        OK(fa_kernel_info(kernel, &info));
        cr_expect_eq(info.max_threads, c->threads, "%s: %u, not %u", c->source, info.max_threads,
                     c->threads);
    }
    fa_kernel_release(kernel);
}

static void check_cases(const char *compiler)
{
    fixture f;
    fa_context *ctx = open_with(&f, compiler);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(ctx, &cases[i]);
    close_device(&f, ctx);
}

Test(emulator_bounds, everywhere_with_clang)
{
    check_cases(compilers[0]);
}

Test(emulator_bounds, everywhere_with_gcc)
{
    check_cases(compilers[1]);
}

/* The parameter that holds the bounds is nobody's business, and no line moves. */
static void check_run(const char *compiler)
{
    fixture f;
    int32_t out[THREADS];
    fa_context *ctx = open_with(&f, compiler);
    run_ints(ctx,
             "__global__ void\n"
             "__launch_bounds__(\n"
             "96)\n"
             "k(int *out)\n"
             "{\n"
             "    out[threadIdx.x] = __LINE__;\n"
             "}\n",
             out);
    for (int i = 0; i < THREADS; i++)
        cr_expect_eq(out[i], 6, "thread %d: line %d", i, out[i]);
    close_device(&f, ctx);
}

Test(emulator_bounds, parameters_and_lines_with_clang)
{
    check_run(compilers[0]);
}

Test(emulator_bounds, parameters_and_lines_with_gcc)
{
    check_run(compilers[1]);
}

/* What the driver says, past the library, which refuses it first. */
Test(emulator_bounds, launch_of_more_threads)
{
    fixture f;
    fa_kernel_info_t info = {.size = sizeof info};
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    fa_kernel *kernel =
        compile_text(ctx, "__global__ void __launch_bounds__(64) k(int *out) " BODY);
    OK(fa_kernel_info(kernel, &info));
    int (*load)(void **, const void *) = NULL, (*find)(void **, void *, const char *) = NULL;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = NULL;
    int (*unload)(void *) = NULL;
    *(void **)&unload = gpu_symbol("cuModuleUnload");
    *(void **)&load = gpu_symbol("cuModuleLoadData");
    *(void **)&find = gpu_symbol("cuModuleGetFunction");
    *(void **)&launch = gpu_symbol("cuLaunchKernel");
    void *module = NULL, *function = NULL, *memory = gpu_alloc(1024);
    void *parameters[] = {&memory};
    cr_assert_eq(load(&module, info.cubin), 0);
    cr_assert_eq(find(&function, module, info.entry), 0);
    cr_expect_eq(launch(function, 1, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL), 0);
    cr_expect_eq(launch(function, 1, 1, 1, 65, 1, 1, 0, NULL, parameters, NULL), 1);
    cr_expect_eq(launch(function, 1, 1, 1, 33, 2, 1, 0, NULL, parameters, NULL), 1);
    cr_expect(gpu_synchronize(NULL, NULL));
    cr_expect_eq(unload(module), 0);
    gpu_free(memory);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
