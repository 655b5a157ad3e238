/* Every function of the device headers through the real NVRTC, on an architecture of every set of
 * instructions (sm_86 has those of sm_80): where it has the instruction the function becomes that and
 * nothing spills; where not, it becomes what does the same, or an error that says what is needed.
 * Skipped where NVRTC is missing or does not know the architecture. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline.h"

#define NVRTC_OF_FP8_CVT_ON_SM_89 12010

static const char begin[] =
    "#include \"fajit/approx.cuh\"\n"
    "#include \"fajit/clock.cuh\"\n"
    "#include \"fajit/copy.cuh\"\n"
    "#include \"fajit/dtype.cuh\"\n"
    "#include \"fajit/ldmatrix.cuh\"\n"
    "#include \"fajit/mma.cuh\"\n"
    "#include \"fajit/order.cuh\"\n"
    "#include \"fajit/prefetch.cuh\"\n"
    "#include \"fajit/sync.cuh\"\n"
    "using namespace fajit;\n"
    "template <class A, class B, class C, int K> __device__ void multiply(unsigned *u)\n"
    "{\n"
    "    fragment_a<A, K> a;\n"
    "    fragment_b<B, K> b;\n"
    "    fragment_c<C> c;\n"
    "    for (int i = 0; i < sizeof a / 4; i++) a.word[i] = u[i];\n"
    "    for (int i = 0; i < sizeof b / 4; i++) b.word[i] = u[4 + i];\n"
    "    for (int i = 0; i < sizeof c / 4; i++) ((unsigned *)&c)[i] = u[8 + i];\n"
    "    c = mma(a, b, c);\n"
    "    for (int i = 0; i < sizeof c / 4; i++)\n"
    "        u[16 + fragment_row(lane_index(), i) * 8 + fragment_column(lane_index(), i)] =\n"
    "            ((unsigned *)&c)[i];\n"
    "}\n"
    "extern __shared__ uint4 shared[];\n"
    "__global__ void k(unsigned *u, float *x)\n"
    "{\n"
    "    unsigned w1[1] = {u[0]}, w2[2] = {u[0], u[1]}, w4[4] = {u[0], u[1], u[2], u[3]};\n"
    "    ";
static const char end[] =
    "\n"
    "    u[20] = w1[0] + w2[0] + w2[1] + w4[0] + w4[1] + w4[2] + w4[3];\n"
    "}\n";

typedef struct use {
    const char *code, *instruction;
    int cc;              /* that has the instruction; 0: all */
    const char *missing; /* in the error before; NULL: it compiles there too */
    int nvrtc;           /* that knows the instruction; 0: all */
} use;

#define MMA(A, B, C, K, NAME, CC, NVRTC)                                                           \
    {                                                                                              \
        "multiply<" #A ", " #B ", " #C ", " #K ">(u);", "mma.sync.aligned." NAME, CC,              \
            "this architecture has no mma", NVRTC                                                  \
    }
#define MATRIX(CODE, NAME)                                                                         \
    {                                                                                              \
        CODE, "ldmatrix.sync.aligned.m8n8." NAME ".shared.b16", 0, NULL, 0                         \
    }
#define TO_MATRIX(CODE, NAME)                                                                      \
    {                                                                                              \
        CODE, "stmatrix.sync.aligned.m8n8." NAME ".shared.b16", 90, "stmatrix needs sm_90", 0      \
    }
#define FP8(CODE, NAME)                                                                            \
    {                                                                                              \
        CODE, NAME, 89, NULL, NVRTC_OF_FP8_CVT_ON_SM_89                                            \
    }
#define APPROX(FUNCTION, NAME)                                                                     \
    {                                                                                              \
        "x[0] = " FUNCTION "(x[1]);", NAME, 0, NULL, 0                                             \
    }

static const use uses[] = {
    APPROX("exp2_approx", "ex2.approx.ftz.f32"),
    APPROX("log2_approx", "lg2.approx.ftz.f32"),
    APPROX("rcp_approx", "rcp.approx.ftz.f32"),
    APPROX("rsqrt_approx", "rsqrt.approx.ftz.f32"),
    APPROX("sqrt_approx", "sqrt.approx.ftz.f32"),
    APPROX("tanh_approx", "tanh.approx.f32"),
    MMA(f16, f16, f32, 8, "m16n8k8.row.col.f32.f16.f16.f32", 75, 0),
    MMA(f16, f16, f16, 8, "m16n8k8.row.col.f16.f16.f16.f16", 75, 0),
    MMA(f16, f16, f32, 16, "m16n8k16.row.col.f32.f16.f16.f32", 80, 0),
    MMA(f16, f16, f16, 16, "m16n8k16.row.col.f16.f16.f16.f16", 80, 0),
    MMA(bf16, bf16, f32, 8, "m16n8k8.row.col.f32.bf16.bf16.f32", 80, 0),
    MMA(bf16, bf16, f32, 16, "m16n8k16.row.col.f32.bf16.bf16.f32", 80, 0),
    MMA(tf32, tf32, f32, 4, "m16n8k4.row.col.f32.tf32.tf32.f32", 80, 0),
    MMA(tf32, tf32, f32, 8, "m16n8k8.row.col.f32.tf32.tf32.f32", 80, 0),
    MMA(fp8_e4m3, fp8_e4m3, f32, 32, "m16n8k32.row.col.f32.e4m3.e4m3.f32", 89, NVRTC_OF_FP8_MMA),
    MMA(fp8_e4m3, fp8_e5m2, f32, 32, "m16n8k32.row.col.f32.e4m3.e5m2.f32", 89, NVRTC_OF_FP8_MMA),
    MMA(fp8_e5m2, fp8_e4m3, f32, 32, "m16n8k32.row.col.f32.e5m2.e4m3.f32", 89, NVRTC_OF_FP8_MMA),
    MMA(fp8_e5m2, fp8_e5m2, f32, 32, "m16n8k32.row.col.f32.e5m2.e5m2.f32", 89, NVRTC_OF_FP8_MMA),
    MMA(f16, bf16, f32, 16, "none", 9999, 0),
    MMA(f16, f16, f32, 32, "none", 9999, 0),
    {"u[0] = to_tf32(x[0]).bits;", "cvt.rna.tf32.f32", 80, "tf32 needs sm_80", 0},
    MATRIX("ldmatrix(w1, &shared[lane_index()]);", "x1"),
    MATRIX("ldmatrix(w2, &shared[lane_index()]);", "x2"),
    MATRIX("ldmatrix(w4, &shared[lane_index()]);", "x4"),
    MATRIX("ldmatrix(w4, shared_place(&shared[lane_index()]).behind(16));", "x4"),
    MATRIX("ldmatrix_trans(w1, &shared[lane_index()]);", "x1.trans"),
    MATRIX("ldmatrix_trans(w2, &shared[lane_index()]);", "x2.trans"),
    MATRIX("ldmatrix_trans(w4, &shared[lane_index()]);", "x4.trans"),
    TO_MATRIX("stmatrix(&shared[lane_index()], w1);", "x1"),
    TO_MATRIX("stmatrix(&shared[lane_index()], w2);", "x2"),
    TO_MATRIX("stmatrix(&shared[lane_index()], w4);", "x4"),
    TO_MATRIX("stmatrix_trans(&shared[lane_index()], w1);", "x1.trans"),
    TO_MATRIX("stmatrix_trans(&shared[lane_index()], w2);", "x2.trans"),
    TO_MATRIX("stmatrix_trans(&shared[lane_index()], w4);", "x4.trans"),
    {"copy_async<4>(shared, u);", "cp.async.ca.shared.global", 80, NULL, 0},
    {"copy_async<8>(shared, u, u[1]);", "cp.async.ca.shared.global", 80, NULL, 0},
    {"copy_async<16>(shared, u);", "cp.async.cg.shared.global", 80, NULL, 0},
    {"copy_async<16>(shared, u, u[1]);", "cp.async.cg.shared.global", 80, NULL, 0},
    {"copy_commit();", "cp.async.commit_group", 80, NULL, 0},
    {"copy_wait<3>();", "cp.async.wait_group", 80, NULL, 0},
    {"copy_wait_all();", "cp.async.wait_all", 80, NULL, 0},
    {"barrier_sync(1 + u[0], 64);", "bar.sync", 0, NULL, 0},
    {"barrier_arrive(1, 64);", "bar.arrive", 0, NULL, 0},
    {"if (elect_one()) u[0] = 5;", "elect.sync", 90, NULL, 0},
    {"u[0] = nanoseconds();", "%globaltimer", 0, NULL, 0},
    {"fence_block();", "fence.acq_rel.cta", 0, NULL, 0},
    {"fence_device();", "fence.acq_rel.gpu", 0, NULL, 0},
    {"wait_for_predecessor();", "griddepcontrol.wait", 90, NULL, 0},
    {"let_successor_start();", "griddepcontrol.launch_dependents", 90, NULL, 0},
    {"prefetch(u);", "prefetch.global.L2", 90, NULL, 0},
    FP8("u[0] = pack_pair(fp8_e4m3{}, x[0], x[1]);", "cvt.rn.satfinite.e4m3x2.f32"),
    FP8("u[0] = pack_pair(fp8_e5m2{}, x[0], x[1]);", "cvt.rn.satfinite.e5m2x2.f32"),
    FP8("unpack_pair(fp8_e4m3{}, u[0], x[0], x[1]);", "cvt.rn.f16x2.e4m3x2"),
    FP8("unpack_pair(fp8_e5m2{}, u[0], x[0], x[1]);", "cvt.rn.f16x2.e5m2x2"),
    FP8("x[0] = to_float(fp8_e4m3{(unsigned char)u[0]});", "cvt.rn.f16x2.e4m3x2"),
    FP8("x[0] = to_float(fp8_e5m2{(unsigned char)u[0]});", "cvt.rn.f16x2.e5m2x2"),
    FP8("u[0] = from_float<fp8_e4m3>(x[0]).bits;", "cvt.rn.satfinite.e4m3x2.f32"),
    FP8("u[0] = from_float<fp8_e5m2>(x[0]).bits;", "cvt.rn.satfinite.e5m2x2.f32"),
    FP8("float y[4]; unpack<fp8_e4m3>(load<4>(u), y); store(u + 4, pack<fp8_e5m2>(y));",
        "cvt.rn.satfinite.e5m2x2.f32"),
    {"store(u, load<1>(x));", "st.global.u8", 0, NULL, 0},
    {"store(u, load_constant<1>(x));", "ld.global.nc.u8", 0, NULL, 0},
    {"store(u, load_input<1, false>(x));", "ld.global.nc.u8", 0, NULL, 0},
    {"store(u, load_input<1, true>(x));", "ld.global.u8", 0, NULL, 0},
};

static void check_ptx(fa_context *ctx, const fa_spec *spec, const use *u, bool expected)
{
    char *ptx = NULL;
    fa_context_info_t info = {.size = sizeof info};
    cr_assert_eq(fa_context_info(ctx, &info), FA_OK);
    cr_expect_eq(fa_render(ctx, spec, FA_TEXT_PTX, &ptx), FA_OK, "%s", fa_last_error());
    if (ptx)
        cr_expect_eq(strstr(ptx, u->instruction) != NULL, expected, "%s on %s: %s %s:\n%s", u->code,
                     info.arch, u->instruction, expected ? "is missing" : "is there", ptx);
    free(ptx);
}

static void check_use(fa_context *ctx, int cc, int nvrtc, const use *u)
{
    char source[sizeof begin + sizeof end + 200];
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    /* The first release that knows fp8's conversions knows them on sm_90. */
    const int needed = u->nvrtc == NVRTC_OF_FP8_CVT_ON_SM_89 && cc >= 90 ? 0 : u->nvrtc;
    const bool there = cc >= u->cc && nvrtc >= needed;
    snprintf(source, sizeof source, "%s%s%s", begin, u->code, end);
    spec.tmpl =
        (fa_template_spec){.name = "k.cu", .source = source, .entry = "k", .smem_bytes = 1024};
    if (!there && u->missing) {
        cr_expect_eq(fa_compile(ctx, &spec, &kernel), FA_ERR_COMPILE, "%s: %s", u->code,
                     fa_last_error());
        cr_expect(strstr(fa_last_error(), u->missing) != NULL, "no '%s' for %s in: %s", u->missing,
                  u->code, fa_last_error());
        return;
    }
    cr_expect_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s: %s", u->code, fa_last_error());
    if (!kernel)
        return;
    cr_expect_eq(fa_kernel_info(kernel, &info), FA_OK, "%s", fa_last_error());
    cr_expect_eq(info.spill_bytes, 0u, "%s on %s spills\n%s", u->code, info.arch, info.log);
    cr_expect_null(strstr(info.log, "warning"), "%s on %s:\n%s", u->code, info.arch, info.log);
    check_ptx(ctx, &spec, u, there);
    fa_kernel_release(kernel);
}

static void check_all(const char *arch, int cc)
{
    int nvrtc = 0;
    fa_context *ctx = open_offline(arch, &nvrtc);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        check_use(ctx, cc, nvrtc, &uses[i]);
    fa_context_destroy(ctx);
}

Test(device_headers, sm_75)
{
    check_all("sm_75", 75);
}

Test(device_headers, sm_80)
{
    check_all("sm_80", 80);
}

Test(device_headers, sm_89)
{
    check_all("sm_89", 89);
}

Test(device_headers, sm_90a)
{
    check_all("sm_90a", 90);
}

Test(device_headers, sm_100a)
{
    check_all("sm_100a", 100);
}

Test(device_headers, sm_120a)
{
    check_all("sm_120a", 120);
}
