/* Asynchronous copies, named barriers and the election of a lane. On a GPU the same tests check the
 * instructions. */
#include "device_fixture.h"

/* --- asynchronous copies --- */

/* Every size with every number of valid bytes, 32 bytes apart; thread i copies with i valid. */
static const char zero_fill[] =
    "#include \"fajit/copy.cuh\"\n"
    "template <int BYTES> __device__ void copy(const unsigned char *in, unsigned char *out)\n"
    "{\n"
    "    __shared__ __align__(16) unsigned char area[32 * 32];\n"
    "    const unsigned i = threadIdx.x, valid = i < BYTES ? i : BYTES;\n"
    "    for (int k = 0; k < 32; k++) area[i * 32 + k] = 0xcc;\n"
    "    __syncthreads();\n"
    "    if (i == 31) fajit::copy_async<BYTES>(area + i * 32 + 16, in + i * 32 + 16);\n"
    "    else fajit::copy_async<BYTES>(area + i * 32 + 16, in + i * 32 + 16, valid);\n"
    "    fajit::copy_commit();\n"
    "    fajit::copy_wait<0>();\n"
    "    __syncthreads();\n"
    "    const unsigned other = 31 - i;\n"
    "    for (int k = 0; k < 32; k++) out[other * 32 + k] = area[other * 32 + k];\n"
    "}\n"
    "__global__ void k(const unsigned char *in, unsigned char *out)\n"
    "{\n"
    "    copy<4>(in, out);\n"
    "    copy<8>(in, out + 1024);\n"
    "    copy<16>(in, out + 2048);\n"
    "}\n";

static void check_zero_fill(int cc)
{
    static unsigned char in[32][32], out[3][32][32];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    for (int i = 0; i < 32 * 32; i++)
        in[i / 32][i % 32] = (unsigned char)(i * 7 % 251 + 1);
    run_text(ctx, zero_fill, 1, 32, in, sizeof in, out, sizeof out);
    for (int size = 0; size < 3; size++)
        for (int i = 0; i < 32; i++)
            for (int k = 0; k < 32; k++) {
                const int bytes = 4 << size, at = k - 16;
                unsigned char expected = 0xcc;
                if (at >= 0 && at < bytes)
                    expected = at < i ? in[i][k] : 0;
                cr_expect_eq(out[size][i][k], expected, "%d bytes, %d valid, byte %d: %x, not %x",
                             bytes, i, at, out[size][i][k], expected);
            }
    close_device(&f, ctx);
}

Test(emulator_copy, zero_fill)
{
    check_zero_fill(80);
}

Test(emulator_copy, zero_fill_without_the_instruction)
{
    check_zero_fill(75);
}

/* Three groups of two copies each; what has come after each wait. */
static const char groups[] =
    "#include \"fajit/copy.cuh\"\n"
    "__global__ void k(const unsigned *in, unsigned *out)\n"
    "{\n"
    "    __shared__ unsigned area[8][32];\n"
    "    const unsigned i = threadIdx.x;\n"
    "    for (int k = 0; k < 8; k++) area[k][i] = 5;\n"
    "    for (int group = 0; group < 3; group++) {\n"
    "        fajit::copy_async<4>(&area[2 * group][i], in + 2 * group * 32 + i);\n"
    "        fajit::copy_async<4>(&area[2 * group + 1][i], in + (2 * group + 1) * 32 + i);\n"
    "        fajit::copy_commit();\n"
    "    }\n"
    "    fajit::copy_async<4>(&area[6][i], in + 6 * 32 + i);\n"
    "    for (int k = 0; k < 7; k++) out[k * 32 + i] = SEEN ? area[k][i] : 0;\n"
    "    fajit::copy_wait<1>();\n"
    "    for (int k = 0; k < (SEEN ? 7 : 4); k++) out[(7 + k) * 32 + i] = area[k][i];\n"
    "    fajit::copy_wait<0>();\n"
    "    for (int k = 0; k < (SEEN ? 7 : 6); k++) out[(14 + k) * 32 + i] = area[k][i];\n"
    "    fajit::copy_wait_all();\n"
    "    for (int k = 0; k < 7; k++) out[(21 + k) * 32 + i] = area[k][i];\n"
    "}\n";

/* How many of the seven have come at the four looks. */
static void check_groups(int cc, bool seen, const int come[4])
{
    static uint32_t in[7][32], out[4][7][32];
    char source[sizeof groups + 64];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    for (uint32_t i = 0; i < 7 * 32; i++)
        in[i / 32][i % 32] = 1000 + i;
    snprintf(source, sizeof source, "#define SEEN %d\n%s", seen, groups);
    run_text(ctx, source, 1, 32, in, sizeof in, out, sizeof out);
    for (int look = 0; look < 4; look++)
        for (int k = 0; k < 7; k++)
            for (int i = 0; i < 32; i++) {
                if (k >= come[look] && !seen)
                    continue; /* not looked at */
                const uint32_t expected = k < come[look] ? in[k][i] : ~0u;
                cr_expect_eq(out[look][k][i], expected, "look %d, copy %d, thread %d: %x, not %x",
                             look, k, i, out[look][k][i], expected);
            }
    close_device(&f, ctx);
}

Test(emulator_copy, groups_are_waited_for_in_order)
{
    check_groups(80, false, (const int[]){0, 4, 6, 7});
}

Test(emulator_copy, without_a_wait_there_is_poison)
{
    need_emulator();
    check_groups(80, true, (const int[]){0, 4, 6, 7});
}

Test(emulator_copy, sm_75_copies_at_once)
{
    need_emulator();
    check_groups(75, true, (const int[]){7, 7, 7, 7});
}

/* The source is read at the wait: who changes it before sees that here. */
Test(emulator_copy, source_is_read_late)
{
    uint32_t in[32] = {0}, out[32];
    fixture f;
    need_emulator();
    fa_context *ctx = open_arch(&f, 90);
    run_text(ctx,
             "#include \"fajit/copy.cuh\"\n"
             "__global__ void k(unsigned *in, unsigned *out)\n"
             "{\n"
             "    __shared__ unsigned area[32];\n"
             "    fajit::copy_async<4>(&area[threadIdx.x], in + threadIdx.x);\n"
             "    in[threadIdx.x] = 77;\n"
             "    fajit::copy_wait_all();\n"
             "    out[threadIdx.x] = area[threadIdx.x];\n"
             "}\n",
             1, 32, in, sizeof in, out, sizeof out);
    cr_expect_eq(out[9], 77u, "%u", out[9]);
    close_device(&f, ctx);
}

static const char misaligned[] =
    "#include \"fajit/copy.cuh\"\n"
    "__global__ void k(const unsigned *in, unsigned *out)\n"
    "{\n"
    "    __shared__ __align__(16) unsigned area[128];\n"
    "    fajit::copy_async<16>(area + 4 * threadIdx.x, in + (threadIdx.x == 3));\n"
    "    fajit::copy_wait_all();\n"
    "    out[threadIdx.x] = area[4 * threadIdx.x];\n"
    "}\n";

Test(emulator_copy, misaligned_source)
{
    expect_text_fails(80, misaligned, 32,
                      (const char *const[]){"CUDA_ERROR_MISALIGNED_ADDRESS", "cp.async at k.cu:5",
                                            "(3,0,0)", NULL});
}

Test(emulator_copy, misaligned_source_without_the_instruction)
{
    expect_text_fails(75, misaligned, 32,
                      (const char *const[]){"CUDA_ERROR_MISALIGNED_ADDRESS", "copy_async at k.cu:5",
                                            "(3,0,0)", NULL});
}

Test(emulator_copy, more_valid_bytes_than_there_are)
{
    expect_text_fails(80,
                      "#include \"fajit/copy.cuh\"\n"
                      "__global__ void k(const unsigned *in, unsigned *out)\n"
                      "{\n"
                      "    __shared__ unsigned area[32];\n"
                      "    fajit::copy_async<4>(area + threadIdx.x, in, 5);\n"
                      "}\n",
                      32, (const char *const[]){"more valid bytes", "k.cu:5", NULL});
}

/* --- named barriers, election --- */

/* The last two of four warps wait for what the first two hand over, which go on; two rounds. */
static const char hand_over[] =
    "#include \"fajit/sync.cuh\"\n"
    "__global__ void k(const unsigned *in, unsigned *out)\n"
    "{\n"
    "    __shared__ unsigned box[2][64];\n"
    "    const unsigned i = threadIdx.x;\n"
    "    for (unsigned round = 0; round < 2; round++) {\n"
    "        if (i < 64) {\n"
    "            box[round][i] = 100 * round + i;\n"
    "            fajit::barrier_arrive(1 + round, 128);\n"
    "        } else {\n"
    "            fajit::barrier_sync(1 + round, 128);\n"
    "            out[round * 64 + i - 64] = box[round][127 - i];\n"
    "            fajit::barrier_sync(3, 64);\n"
    "        }\n"
    "    }\n"
    "    out[128 + i] = fajit::lane_index();\n"
    "}\n";

static void check_hand_over(const char *seed)
{
    uint32_t out[256];
    fixture f;
    fixture_begin_with(&f, "", "");
    fixture_end(&f);
    setenv("FAJIT_EMU_SEED", seed, 1);
    fa_context *ctx = open_arch(&f, 75);
    run_text(ctx, hand_over, 1, 128, (uint32_t[]){0}, 4, out, sizeof out);
    for (uint32_t i = 0; i < 128; i++) {
        cr_expect_eq(out[i], i / 64 * 100 + 63 - i % 64, "seed '%s', %u: %u", seed, i, out[i]);
        cr_expect_eq(out[128 + i], i % 32, "thread %u: lane %u", i, out[128 + i]);
    }
    close_device(&f, ctx);
}

Test(emulator_copy, named_barriers)
{
    check_hand_over("");
}

Test(emulator_copy, named_barriers_in_random_order)
{
    check_hand_over("5");
}

Test(emulator_copy, barrier_that_nobody_completes, .timeout = 20)
{
    expect_text_fails(80,
                      "#include \"fajit/sync.cuh\"\n"
                      "__global__ void k(const unsigned *in, unsigned *out)\n"
                      "{\n"
                      "    if (threadIdx.x < 32)\n"
                      "        fajit::barrier_sync(2, 64);\n"
                      "}\n",
                      64, (const char *const[]){"deadlock", "32 wait in barrier at k.cu:5", NULL});
}

static void check_election(int cc)
{
    uint32_t out[128];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    run_text(ctx,
             "#include \"fajit/sync.cuh\"\n"
             "__global__ void k(const unsigned *in, unsigned *out)\n"
             "{\n"
             "    const bool first = fajit::elect_one();\n"
             "    fajit::fence_block();\n"
             "    fajit::fence_device();\n"
             "    out[threadIdx.x] = first + 2 * fajit::elect_one();\n"
             "}\n",
             1, 128, (uint32_t[]){0}, 4, out, sizeof out);
    for (int warp = 0; warp < 4; warp++) {
        int elected = 0;
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t x = out[warp * 32 + lane];
            cr_expect(x == 0 || x == 3, "warp %d, lane %d: %u", warp, lane, x);
            elected += x == 3;
        }
        cr_expect_eq(elected, 1, "warp %d elects %d", warp, elected);
    }
    close_device(&f, ctx);
}

Test(emulator_copy, one_lane_is_elected)
{
    check_election(90);
}

Test(emulator_copy, one_lane_is_elected_without_the_instruction)
{
    check_election(80);
}
