/* Arithmetic of the emulator that needs no recorded outputs: it is held against the C library's
 * double precision, and against what CUDA documents of its special cases. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "emulator_world.h"

enum { COUNT = 4096 };

/* out[i] = EXPRESSION of x[i] and y[i], compiled with `option` (may be NULL). */
static void evaluate(const char *expression, const char *option, const float *x, const float *y,
                     float *out)
{
    fixture f;
    char source[4096];
    const char *why = "";
    const void *const host[] = {x, y};
    void *memory[3];
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    snprintf(source, sizeof source,
             "#include \"fajit/approx.cuh\"\n"
             "__global__ void k(const float *a, const float *b, float *out)\n"
             "{\n"
             "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
             "    const float x = a[i], y = b[i];\n"
             "    out[i] = %s;\n"
             "}\n",
             expression);
    fa_template_spec tmpl = {.name = "k.cu", .source = source, .entry = "k"};
    tmpl.options = &option;
    tmpl.option_count = option != NULL;
    fa_kernel *kernel = compile(ctx, &tmpl);
    for (int i = 0; i < 3; i++) {
        memory[i] = gpu_alloc(COUNT * sizeof *out);
        if (i < 2)
            gpu_upload(memory[i], host[i], COUNT * sizeof *out);
    }
    const fa_param params[] = {
        {&memory[0], sizeof(void *)}, {&memory[1], sizeof(void *)}, {&memory[2], sizeof(void *)}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {COUNT / 256}, .block = {256}, .params = params, .param_count = 3};
    OK(fa_launch(kernel, &args, NULL));
    cr_assert(gpu_synchronize(NULL, &why), "%s", why);
    gpu_download(out, memory[2], COUNT * sizeof *out);
    for (int i = 0; i < 3; i++)
        gpu_free(memory[i]);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* One kernel for several expressions: thread i takes number i % count. */
static const char *in_turn(const char *const *expressions, size_t count)
{
    static char text[2048];
    size_t used = 0;
    for (size_t e = 0; e < count; e++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "i %% %zu == %zu ? (float)(%s) : ", count, e, expressions[e]);
    cr_assert_lt(used + 2, sizeof text);
    strcpy(text + used, "0");
    return text;
}

typedef struct numbers {
    float x[COUNT], y[COUNT], out[COUNT];
} numbers;

static numbers n;

/* x runs over [from, to], y over the same backwards. */
static void spread(float from, float to)
{
    for (int i = 0; i < COUNT; i++) {
        n.x[i] = from + (to - from) * (float)i / (COUNT - 1);
        n.y[COUNT - 1 - i] = n.x[i];
    }
}

/* The greatest error of out[i] against reference(x[i]), in units of `unit`, or of the reference
 * times it. It has to be within `most`, and not better than `least`: an approximation that is more
 * exact than the hardware's hides what would fail there. */
static void expect_error(const char *expression, double (*reference)(double), double unit,
                         bool relative, double least, double most)
{
    double worst = 0;
    int at = 0;
    evaluate(expression, NULL, n.x, n.y, n.out);
    for (int i = 0; i < COUNT; i++) {
        const double right = reference((double)n.x[i]);
        const double error =
            fabs((double)n.out[i] - right) / (relative ? fabs(right) * unit : unit);
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    cr_expect(worst <= most && worst >= least,
              "%s: error %g at %a (%a, not %a), allowed are %g to %g", expression, worst,
              (double)n.x[at], (double)n.out[at], reference((double)n.x[at]), least, most);
}

/* --- approximations --- */

static double reciprocal(double x)
{
    return 1 / x;
}

static double reciprocal_root(double x)
{
    return 1 / sqrt(x);
}

Test(emulator_math, approximations_err_as_documented)
{
    spread(-100, 80);
    expect_error("exp2f(x)", exp2, 0x1p-22, true, 0.2, 1.01);
    spread(-3.1415926f, 3.1415926f);
    expect_error("__sinf(x)", sin, 0x1p-21, false, 0.2, 1.2);
    expect_error("__cosf(x)", cos, 0x1p-21, false, 0.2, 1.2);
    spread(0.51f, 1.99f);
    expect_error("__log2f(x)", log2, 0x1p-22, false, 0.2, 1.1);
    expect_error("fajit::log2_approx(x)", log2, 0x1p-22, false, 0.2, 1.1);
    spread(3, 1e30f);
    expect_error("__log2f(x)", log2, 0x1p-22, true, 0.2, 1.1);
    expect_error("rsqrtf(x)", reciprocal_root, 0x1p-22, true, 0.2, 1.1);
    expect_error("fajit::rcp_approx(x)", reciprocal, 0x1p-23, true, 0.2, 1.1);
    spread(-4, 4);
    expect_error("fajit::tanh_approx(x)", tanh, 0x1p-11, true, 0.2, 1.1);
}

/* The product with log2(e) is rounded to float32: the error grows with x. */
Test(emulator_math, expf_is_exp2f_of_a_rounded_product)
{
    spread(-87, -80);
    expect_error("__expf(x)", exp, 0x1p-23, true, 16, 2 + 1.173 * 87);
    spread(-1, 1);
    expect_error("__expf(x)", exp, 0x1p-23, true, 0.2, 4);
}

/* Far from zero the float32 number of turns has no digits left. */
Test(emulator_math, sinf_loses_all_digits_far_from_zero)
{
    spread(1e5f, 2e5f);
    expect_error("__sinf(x)", sin, 1, false, 1e-3, 2);
    expect_error("sinf(x)", sin, 0x1p-23, false, 0, 1);
}

Test(emulator_math, fdividef_of_a_huge_divisor_is_zero)
{
    for (int i = 0; i < COUNT; i++) {
        n.x[i] = i % 2 ? (float)(i + 1) * 1e30f : INFINITY;
        n.y[i] = i / 2 % 2 ? 0x1.5p126f : 0x1p126f;
    }
    evaluate("__fdividef(x, y)", NULL, n.x, n.y, n.out);
    for (int i = 0; i < COUNT; i++)
        if (n.y[i] <= 0x1p126f)
            cr_assert(isinf(n.x[i]) ? isinf(n.out[i]) : n.out[i] > 0, "%a / %a: %a", (double)n.x[i],
                      (double)n.y[i], (double)n.out[i]);
        else
            cr_assert(isinf(n.x[i]) ? isnan(n.out[i]) : n.out[i] == 0, "%a / %a: %a",
                      (double)n.x[i], (double)n.y[i], (double)n.out[i]);
}

/* --- options --- */

static int differing(const float *a, const float *b)
{
    int count = 0;
    for (int i = 0; i < COUNT; i++)
        count += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return count;
}

/* x * y - x * y rounded before: zero, unless contracted. */
Test(emulator_math, products_and_sums_are_joined_unless_told_otherwise)
{
    static float fused[COUNT], apart[COUNT], named[COUNT];
    spread(1.01f, 1.99f);
    evaluate("x * y - 1.5f", NULL, n.x, n.y, fused);
    evaluate("x * y - 1.5f", "--fmad=false", n.x, n.y, apart);
    evaluate("__fsub_rn(__fmul_rn(x, y), 1.5f)", NULL, n.x, n.y, named);
    cr_expect_eq(differing(apart, named), 0);
    for (int i = 0; i < COUNT; i++)
        n.out[i] = fmaf(n.x[i], n.y[i], -1.5f);
#ifdef __x86_64__
    if (!__builtin_cpu_supports("fma"))
        cr_skip_test("this processor cannot join them");
#endif
    cr_expect_eq(differing(fused, n.out), 0);
    cr_expect_gt(differing(fused, apart), COUNT / 10);
}

Test(emulator_math, flushing_to_zero_is_on_request)
{
    for (int i = 0; i < COUNT; i++) {
        n.x[i] = (float)(i + 1) * 0x1p-149f;
        n.y[i] = i % 2 ? 1 : -1;
    }
    evaluate("x * y", NULL, n.x, n.y, n.out);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(n.out[i], n.x[i] * n.y[i]);
    static const char *const expressions[] = {"x * y", "x + y - y", "copysignf(fabsf(x), y)",
                                              "fmaxf(x, -1.0f)", "0x1p-100f * y * 0x1p-40f"};
    static const char *const options[] = {"--ftz=true", "--use_fast_math"};
    const size_t count = sizeof expressions / sizeof *expressions;
    for (size_t o = 0; o < 2; o++) {
        evaluate(in_turn(expressions, count), options[o], n.x, n.y, n.out);
        for (size_t i = 0; i < COUNT; i++)
            cr_assert_eq(n.out[i], 0.0f, "%s with %s: %a", expressions[i % count], options[o],
                         (double)n.out[i]);
    }
}

/* The caller's own arithmetic is as before. */
Test(emulator_math, flushing_stays_inside_the_kernel)
{
    volatile float tiny = FLT_MIN;
    spread(0, 1);
    evaluate("x + y", "--ftz=true", n.x, n.y, n.out);
    cr_expect_gt(tiny / 2, 0.0f);
    evaluate("__fadd_rz(x, y)", NULL, n.x, n.y, n.out);
    cr_expect_eq(fegetround(), FE_TONEAREST);
}

Test(emulator_math, fast_math_takes_the_approximations)
{
    static const char *const named[] = {"expf(x)", "logf(x)", "sinf(x)", "cosf(x)", "powf(x, y)"};
    static const char *const approximate[] = {"__expf(x)", "__logf(x)", "__sinf(x)", "__cosf(x)",
                                              "__powf(x, y)"};
    enum { FUNCTIONS = sizeof named / sizeof *named };
    static float precise[COUNT], fast[COUNT];
    int changed[FUNCTIONS] = {0};
    spread(0.01f, 20);
    evaluate(in_turn(named, FUNCTIONS), NULL, n.x, n.y, precise);
    evaluate(in_turn(named, FUNCTIONS), "--use_fast_math", n.x, n.y, fast);
    evaluate(in_turn(approximate, FUNCTIONS), "--use_fast_math", n.x, n.y, n.out);
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(fast[i], n.out[i], "%s", named[i % FUNCTIONS]);
        changed[i % FUNCTIONS] += fast[i] != precise[i];
    }
    for (int e = 0; e < FUNCTIONS; e++)
        cr_expect_gt(changed[e], COUNT / FUNCTIONS / 10, "%s: %d", named[e], changed[e]);
    spread(1, 1e6f);
    evaluate("sqrtf(x)", NULL, n.x, n.y, precise);
    evaluate("sqrtf(x)", "--prec-sqrt=false", n.x, n.y, fast);
    cr_expect_gt(differing(fast, precise), COUNT / 10);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(precise[i], sqrtf(n.x[i]));
}

Test(emulator_math, options_with_other_values_are_refused)
{
    fixture f;
    fa_kernel *kernel = NULL;
    const char *option = "--ftz=maybe";
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){
        .name = "k.cu", .source = "__global__ void k() {}\n", .entry = "k", .options = &option};
    spec.tmpl.option_count = 1;
    cr_expect_neq(fa_compile(ctx, &spec, &kernel), FA_OK);
    cr_expect_not_null(strstr(fa_last_error(), "true or false"), "%s", fa_last_error());
    close_device(&f, ctx);
}

/* Whether it compiles. The library itself refuses these options, so that NVRTC is asked directly. */
static bool compiles(const char *const option[2], char *log, size_t size)
{
    nvrtcProgram program = NULL;
    size_t bytes = 0;
    void *rtc = dlopen(getenv("FAJIT_NVRTC_LIBRARY"), RTLD_NOW);
    cr_assert(rtc, "%s", dlerror());
    cr_assert_eq(
        RTC(nvrtcCreateProgram)(&program, "__global__ void k() {}\n", "k.cu", 0, NULL, NULL), 0);
    const int status = (int)RTC(nvrtcCompileProgram)(program, option[1] ? 2 : 1, option);
    cr_assert_eq(RTC(nvrtcGetProgramLogSize)(program, &bytes), 0);
    cr_assert_leq(bytes, size);
    cr_assert_eq(RTC(nvrtcGetProgramLog)(program, log), 0);
    RTC(nvrtcDestroyProgram)(&program);
    return status == 0;
}

Test(emulator_math, device_code_to_link_is_refused)
{
    static const struct {
        const char *option[2], *said;
    } cases[] = {
        {{"--relocatable-device-code=true"}, "emulator does not implement --relocatable-device-c"},
        {{"--relocatable-device-code", "true"}, "emulator does not implement --relocatable-device"},
        {{"-rdc=true"}, "emulator does not implement -rdc"},
        {{"-rdc", "true"}, "emulator does not implement -rdc"},
        {{"-rdc=maybe"}, "true or false, not 'maybe'"},
        {{"-rdc"}, "true or false, not ''"},
        {{"-dc"}, "emulator does not implement -dc"},
        {{"--device-c"}, "emulator does not implement --device-c"},
        {{"-dc=true"}, "takes no value"},
        {{"-rdc=false"}, NULL},
        {{"--relocatable-device-code=false"}, NULL},
        {{"-dw"}, NULL},
        {{"--device-w"}, NULL},
    };
    char log[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool compiled = compiles(cases[i].option, log, sizeof log);
        cr_expect_eq(compiled, !cases[i].said, "%s: '%s'", cases[i].option[0], log);
        if (cases[i].said)
            cr_expect(strstr(log, cases[i].said), "%s: '%s'", cases[i].option[0], log);
    }
}

/* --- rounding --- */

static void check_direction(const char *expression, int direction, float (*right)(float, float))
{
    evaluate(expression, NULL, n.x, n.y, n.out);
    fesetround(direction);
    for (int i = 0; i < COUNT; i++) {
        const float expected = right(n.x[i], n.y[i]);
        if (memcmp(&expected, &n.out[i], sizeof expected) != 0 && !isnan(expected)) {
            fesetround(FE_TONEAREST);
            cr_assert_fail("%s of %a and %a: %a, not %a", expression, (double)n.x[i],
                           (double)n.y[i], (double)n.out[i], (double)expected);
        }
    }
    fesetround(FE_TONEAREST);
}

static float sum(float x, float y)
{
    volatile float a = x, b = y;
    return a + b;
}

static float product(float x, float y)
{
    volatile float a = x, b = y;
    return a * b;
}

static float quotient(float x, float y)
{
    volatile float a = x, b = y;
    return a / b;
}

Test(emulator_math, directions_of_rounding)
{
    for (int i = 0; i < COUNT; i++) {
        n.x[i] = ldexpf((float)(i * 7919 % 65521 - 32000) / 3, i % 60 - 30);
        n.y[i] = ldexpf((float)(i * 104729 % 65521 - 32000) / 7, i % 37 - 20);
    }
    check_direction("__fadd_rn(x, y)", FE_TONEAREST, sum);
    check_direction("__fadd_rz(x, y)", FE_TOWARDZERO, sum);
    check_direction("__fadd_ru(x, y)", FE_UPWARD, sum);
    check_direction("__fmul_rd(x, y)", FE_DOWNWARD, product);
    check_direction("__fmul_rz(x, y)", FE_TOWARDZERO, product);
    check_direction("__fdiv_ru(x, y)", FE_UPWARD, quotient);
    /* Arithmetic beside one of these is none of its business. */
    check_direction("__fadd_rz(x + y, 0.0f * __fmul_ru(x, y))", FE_TONEAREST, sum);
}

/* Without undefined behaviour: saturated, and NaN is zero, or the high bit of 64. */
Test(emulator_math, conversions_to_integers_saturate)
{
    static const struct {
        const char *expression;
        float x;
        float expected;
    } table[] = {
        {"__float2int_rz(x)", 3e9f, 0x1p31f},
        {"__float2int_rz(x)", -3e9f, -0x1p31f},
        {"__float2int_rz(x)", NAN, 0},
        {"__float2int_rn(x)", 2.5f, 2},
        {"__float2int_ru(x)", 2.25f, 3},
        {"__float2int_rd(x)", -2.25f, -3},
        {"__float2uint_rz(x)", -1, 0},
        {"__float2uint_rz(x)", INFINITY, 0x1p32f},
        {"__float2ll_rz(x)", INFINITY, 0x1p63f},
        {"__float2ll_rz(x)", NAN, -0x1p63f},
        {"__float2ull_rz(x)", -5, 0},
        {"__float2ull_rz(x)", 0x1p63f, 0x1p63f},
    };
    enum { ROWS = sizeof table / sizeof *table };
    const char *expressions[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        n.x[i] = table[i].x;
        expressions[i] = table[i].expression;
    }
    evaluate(in_turn(expressions, ROWS), NULL, n.x, n.y, n.out);
    for (size_t i = 0; i < ROWS; i++)
        cr_expect_eq(n.out[i], table[i].expected, "%s of %a: %a, not %a", table[i].expression,
                     (double)table[i].x, (double)n.out[i], (double)table[i].expected);
}

Test(emulator_math, least_and_greatest_know_signed_zeros_and_nan)
{
    static const struct {
        const char *expression;
        float x, y, expected;
    } table[] = {
        {"fminf(x, y)", 0.0f, -0.0f, -0.0f},
        {"fminf(x, y)", -0.0f, 0.0f, -0.0f},
        {"fmaxf(x, y)", 0.0f, -0.0f, 0.0f},
        {"fmaxf(x, y)", -0.0f, 0.0f, 0.0f},
        {"fminf(x, y)", NAN, 3, 3},
        {"fmaxf(x, y)", 3, NAN, 3},
        {"min(x, y)", -INFINITY, NAN, -INFINITY},
    };
    enum { ROWS = sizeof table / sizeof *table };
    const char *expressions[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        n.x[i] = table[i].x;
        n.y[i] = table[i].y;
        expressions[i] = table[i].expression;
    }
    evaluate(in_turn(expressions, ROWS), NULL, n.x, n.y, n.out);
    for (size_t i = 0; i < ROWS; i++)
        cr_expect(n.out[i] == table[i].expected &&
                      !signbit(n.out[i]) == !signbit(table[i].expected),
                  "%s of %a and %a: %a", table[i].expression, (double)table[i].x,
                  (double)table[i].y, (double)n.out[i]);
}

/* Global memory's adder flushes; that of shared memory does not. */
Test(emulator_math, atomic_sums_of_subnormal_numbers)
{
    for (int i = 0; i < COUNT; i++) {
        n.x[i] = 0x1p-127f;
        n.y[i] = 0x1p-130f;
    }
    evaluate("(out[i] = x, atomicAdd(&out[i], y), out[i])", NULL, n.x, n.y, n.out);
    cr_expect_eq(n.out[5], 0.0f, "global: %a", (double)n.out[5]);
    evaluate(
        "[&] { __shared__ float s[256]; s[threadIdx.x] = x; atomicAdd(&s[threadIdx.x], y);"
        " return s[threadIdx.x]; }()",
        NULL, n.x, n.y, n.out);
    cr_expect_eq(n.out[5], 0x1p-127f + 0x1p-130f, "shared: %a", (double)n.out[5]);
}
