/* Tensor-core instructions and the moves of their matrices, against the PTX ISA's definitions of
 * which lane holds what, element by element. On a GPU the same tests check the instructions. */
#include <math.h>

#include "device_fixture.h"
#include "oracle/oracle.h"

/* --- mma --- */

#define ROUNDS 4 /* one block each */
#define MOST_K 32

typedef enum element { F16, BF16, TF32, E4M3, E5M2, F32 } element;

typedef struct mma_case {
    element a, b, c;
    int k, cc;
} mma_case;

static const char *const type_names[] = {"fajit::f16",      "fajit::bf16",     "fajit::tf32",
                                         "fajit::fp8_e4m3", "fajit::fp8_e5m2", "float"};

static int bits_of(element type)
{
    static const int bits[] = {16, 16, 32, 8, 8, 32};
    return bits[type];
}

/* A small integer in the format; exact by the caller's choice. */
static uint32_t encode(element type, double x)
{
    uint16_t half = 0;
    uint32_t bits = 0;
    const float single = (float)x;
    int exponent = 0;
    switch (type) {
    case F16:
    case BF16:
        oracle_store(type == F16 ? FA_F16 : FA_BF16, &half, &x, 1);
        return half;
    case E4M3:
    case E5M2:
        if (x == 0)
            return 0;
        /* frexp: fraction in [1/2, 1) */
        const double fraction = 2 * frexp(fabs(x), &exponent) - 1;
        const int digits = type == E4M3 ? 3 : 2;
        return (x < 0 ? 0x80u : 0) | (uint32_t)(exponent - 1 + (type == E4M3 ? 7 : 15)) << digits |
               (uint32_t)(fraction * (1 << digits));
    case TF32: /* whose lower 13 bits do not count */
        memcpy(&bits, &single, sizeof bits);
        return bits | 0x1abc;
    default:
        memcpy(&bits, &single, sizeof bits);
        return bits;
    }
}

/* The PTX ISA's tables for element i of a lane's fragment of A, of a matrix of K columns. */
static void place_in_a(element type, int k, int lane, int i, int *row, int *column)
{
    const int group = lane >> 2, member = lane % 4;
    if (bits_of(type) == 16 && k == 16) {
        *row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        *column = i < 4 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8;
    } else if (bits_of(type) == 16 && k == 8) {
        *row = i < 2 ? group : group + 8;
        *column = member * 2 + (i & 1);
    } else if (bits_of(type) == 32 && k == 4) {
        *row = i == 0 ? group : group + 8;
        *column = member;
    } else if (bits_of(type) == 32 && k == 8) {
        *row = i == 0 || i == 2 ? group : group + 8;
        *column = i < 2 ? member : member + 4;
    } else {
        *row = i < 4 || (8 <= i && i < 12) ? group : group + 8;
        *column = i < 8 ? member * 4 + (i & 3) : member * 4 + (i & 3) + 16;
    }
}

static void place_in_b(element type, int k, int lane, int i, int *row, int *column)
{
    const int group = lane >> 2, member = lane % 4;
    *column = group;
    if (bits_of(type) == 16 && k == 16)
        *row = i < 2 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8;
    else if (bits_of(type) == 16 && k == 8)
        *row = member * 2 + i;
    else if (bits_of(type) == 32 && k == 4)
        *row = member;
    else if (bits_of(type) == 32 && k == 8)
        *row = i == 0 ? member : member + 4;
    else
        *row = i < 4 ? member * 4 + (i & 3) : member * 4 + (i & 3) + 16;
}

static void place_in_c(int lane, int i, int *row, int *column)
{
    *row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
    *column = lane % 4 * 2 + (i & 1);
}

typedef struct tiles {
    double a[16][MOST_K], b[MOST_K][8], c[16][8], d[16][8];
} tiles;

/* Round 0 has another integer in every place, where the types are wide enough; the others are
 * mixtures of small ones. All sums are exact. */
static void fill_tiles(const mma_case *m, int round, tiles *t)
{
    const bool distinct = round == 0 && m->c == F32 && bits_of(m->a) > 8;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < m->k; k++)
            t->a[r][k] =
                distinct
                    ? r * m->k + k
                    : floor(oracle_uniform(1 + (uint64_t)round, (uint64_t)(r * m->k + k), -4, 5));
    for (int k = 0; k < m->k; k++)
        for (int n = 0; n < 8; n++)
            t->b[k][n] =
                distinct
                    ? k * 8 + n + 1
                    : floor(oracle_uniform(11 + (uint64_t)round, (uint64_t)(k * 8 + n), -4, 5));
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            t->c[r][n] = r * 8 + n - 60;
            t->d[r][n] = t->c[r][n];
            for (int k = 0; k < m->k; k++)
                t->d[r][n] += t->a[r][k] * t->b[k][n];
        }
}

#define WORDS_A 4
#define WORDS_B 2
#define WORDS_C 4
#define WORDS (32 * (WORDS_A + WORDS_B + WORDS_C))

/* Registers of every lane: 4 of A, 2 of B, 4 of C. */
static void fill_registers(const mma_case *m, const tiles *t, uint32_t *words)
{
    int row = 0, column = 0;
    memset(words, 0, WORDS * sizeof *words);
    for (int lane = 0; lane < 32; lane++, words += WORDS_A + WORDS_B + WORDS_C) {
        for (int i = 0; i < m->k / 2; i++) {
            place_in_a(m->a, m->k, lane, i, &row, &column);
            words[i * bits_of(m->a) / 32] |= encode(m->a, t->a[row][column])
                                             << i * bits_of(m->a) % 32;
        }
        for (int i = 0; i < m->k / 4; i++) {
            place_in_b(m->b, m->k, lane, i, &row, &column);
            words[WORDS_A + i * bits_of(m->b) / 32] |= encode(m->b, t->b[row][column])
                                                       << i * bits_of(m->b) % 32;
        }
        for (int i = 0; i < 4; i++) {
            place_in_c(lane, i, &row, &column);
            words[WORDS_A + WORDS_B + i * bits_of(m->c) / 32] |= encode(m->c, t->c[row][column])
                                                                 << i * bits_of(m->c) % 32;
        }
    }
}

static void mma_source(const mma_case *m, char *text, size_t size)
{
    snprintf(text, size,
             "#include \"fajit/mma.cuh\"\n"
             "__global__ void k(const unsigned *in, unsigned *out)\n"
             "{\n"
             "    const unsigned at = blockIdx.x * 32 + threadIdx.x;\n"
             "    fajit::fragment_a<%s, %d> a;\n"
             "    fajit::fragment_b<%s, %d> b;\n"
             "    fajit::fragment_c<%s> c;\n"
             "    in += at * 10;\n"
             "    for (int i = 0; i < sizeof a / 4; i++) a.word[i] = in[i];\n"
             "    for (int i = 0; i < sizeof b / 4; i++) b.word[i] = in[4 + i];\n"
             "    for (int i = 0; i < sizeof c / 4; i++) ((unsigned *)&c)[i] = in[6 + i];\n"
             "    c = fajit::mma(a, b, c);\n"
             "    for (int i = 0; i < sizeof c / 4; i++) out[at * 4 + i] = ((unsigned *)&c)[i];\n"
             "}\n",
             type_names[m->a], m->k, type_names[m->b], m->k,
             m->c == F16 ? type_names[F16] : type_names[F32]);
}

static void check_mma(fa_context *ctx, const mma_case *m)
{
    static uint32_t in[ROUNDS][WORDS], out[ROUNDS][32][4];
    static tiles t[ROUNDS];
    char source[1200];
    int row = 0, column = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fill_tiles(m, round, &t[round]);
        fill_registers(m, &t[round], in[round]);
    }
    mma_source(m, source, sizeof source);
    run_text(ctx, source, ROUNDS, 32, in, sizeof in, out, sizeof out);
    for (int round = 0; round < ROUNDS; round++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int bits = bits_of(m->c);
                const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
                const uint32_t got = out[round][lane][i * bits / 32] >> i * bits % 32 & mask;
                place_in_c(lane, i, &row, &column);
                cr_expect_eq(got, encode(m->c, t[round].d[row][column]),
                             "%s x %s, K = %d, to %s, round %d, lane %d, D[%d][%d]: %x, not %g",
                             type_names[m->a], type_names[m->b], m->k, type_names[m->c], round,
                             lane, row, column, got, t[round].d[row][column]);
            }
}

static const mma_case mma_cases[] = {
    {F16, F16, F32, 8, 75},    {F16, F16, F16, 8, 75},    {F16, F16, F32, 16, 80},
    {F16, F16, F16, 16, 80},   {BF16, BF16, F32, 8, 80},  {BF16, BF16, F32, 16, 80},
    {TF32, TF32, F32, 4, 80},  {TF32, TF32, F32, 8, 80},  {E4M3, E4M3, F32, 32, 89},
    {E4M3, E5M2, F32, 32, 89}, {E5M2, E4M3, F32, 32, 89}, {E5M2, E5M2, F32, 32, 89},
};

/* What came with an architecture, on that one. */
static void check_mma_of(int cc, int nvrtc)
{
    fixture f;
    int count = 0;
    fa_context *ctx = open_arch(&f, cc);
    if (!on_emulator())
        need_nvrtc(&f, ctx, nvrtc);
    for (size_t i = 0; i < sizeof mma_cases / sizeof *mma_cases; i++)
        if (mma_cases[i].cc == cc) {
            check_mma(ctx, &mma_cases[i]);
            count++;
        }
    cr_expect_gt(count, 0);
    close_device(&f, ctx);
}

Test(emulator_matrix, mma_of_sm_75)
{
    check_mma_of(75, 12000);
}

Test(emulator_matrix, mma_of_sm_80)
{
    check_mma_of(80, 12000);
}

Test(emulator_matrix, mma_of_sm_89)
{
    check_mma_of(89, 12040);
}

/* Everything is there on later ones. */
Test(emulator_matrix, mma_on_sm_90)
{
    fixture f;
    fa_context *ctx = open_arch(&f, 90);
    if (!on_emulator())
        need_nvrtc(&f, ctx, 12040);
    for (size_t i = 0; i < sizeof mma_cases / sizeof *mma_cases; i++)
        check_mma(ctx, &mma_cases[i]);
    close_device(&f, ctx);
}

/* One product of a lane's first elements: A[0][0] * B[0][0] + C[0][0] on the diagonal of the warp's
 * first quad; lane 0 gives them, all else is zero. */
static void multiply_f16(fa_context *ctx, const double a[2], const double b[2], uint32_t c,
                         uint32_t *d)
{
    static const mma_case f16 = {F16, F16, F32, 16, 80};
    static uint32_t in[WORDS], out[32][4];
    char source[1200];
    memset(in, 0, sizeof in);
    in[0] = encode(F16, a[0]) | encode(F16, a[1]) << 16;
    in[WORDS_A] = encode(F16, b[0]) | encode(F16, b[1]) << 16;
    in[WORDS_A + WORDS_B] = c;
    mma_source(&f16, source, sizeof source);
    run_text(ctx, source, 1, 32, in, sizeof in, out, sizeof out);
    *d = out[0][0];
}

Test(emulator_matrix, mma_with_infinity_and_nan)
{
    fixture f;
    uint32_t d = 0;
    fa_context *ctx = open_arch(&f, 80);
    multiply_f16(ctx, (double[]){INFINITY, 1}, (double[]){2, 1}, encode(F32, 5), &d);
    cr_expect_eq(d, 0x7f800000u, "inf * 2: %x", d);
    multiply_f16(ctx, (double[]){INFINITY, 1}, (double[]){0, 1}, encode(F32, 5), &d);
    cr_expect_gt(d & 0x7fffffffu, 0x7f800000u, "inf * 0: %x", d);
    multiply_f16(ctx, (double[]){INFINITY, -INFINITY}, (double[]){1, 1}, encode(F32, 5), &d);
    cr_expect_gt(d & 0x7fffffffu, 0x7f800000u, "inf - inf: %x", d);
    multiply_f16(ctx, (double[]){0x1p-24, 0x1p-24}, (double[]){0x1p-24, 0x1p-24}, 0, &d);
    cr_expect_eq(d, encode(F32, 0x1p-47), "smallest halves: %x", d);
    multiply_f16(ctx, (double[]){0, 0}, (double[]){0, 0}, 3, &d);
    cr_expect_eq(d, 3u, "a subnormal float: %x", d);
    close_device(&f, ctx);
}

/* The emulator's model of the sum: exact, then cut toward zero. */
Test(emulator_matrix, sums_are_cut_once)
{
    fixture f;
    uint32_t d = 0;
    need_emulator();
    fa_context *ctx = open_arch(&f, 80);
    static const struct {
        double a[2], b[2], c, sum;
    } cases[] = {
        {{1, 0}, {1, 0}, 0x1p24, 0x1p24},
        {{1, 1}, {1, 1}, 0x1p24, 0x1p24 + 2},
        {{3, 0}, {1, 0}, 0x1p24, 0x1p24 + 2},
        {{-1, 0}, {1, 0}, -0x1p24, -0x1p24},
        {{-1, 0}, {1, 0}, 0x1p24, 0x1p24 - 1},
        {{0x1p-24, 0}, {-0x1p-24, 0}, 1, 1 - 0x1p-24},
        {{0x1p-24, 0}, {0x1p-24, 0}, 0x1p100, 0x1p100},
        {{0x1p15, 0x1p-24}, {0x1p15, 0x1p-24}, -0x1p30, 0x1p-48}, /* 78 bits apart */
        {{0x1p15, -0x1p-24}, {0x1p15, 0x1p-24}, 0, 0x1p30 - 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        multiply_f16(ctx, cases[i].a, cases[i].b, encode(F32, cases[i].c), &d);
        cr_expect_eq(d, encode(F32, cases[i].sum), "case %zu: %x, not %a", i, d, cases[i].sum);
    }
    close_device(&f, ctx);
}

Test(emulator_matrix, to_tf32)
{
    enum { COUNT = 4096 };
    static uint32_t in[COUNT], out[COUNT];
    fixture f;
    fa_context *ctx = open_arch(&f, 80);
    for (uint32_t i = 0; i < COUNT; i++) {
        static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000};
        in[i] = i / 8 * 0x7fffffu + low[i % 8];
    }
    run_text(ctx,
             "#include \"fajit/mma.cuh\"\n"
             "__global__ void k(const float *in, unsigned *out)\n"
             "{\n"
             "    const unsigned i = blockIdx.x * 256 + threadIdx.x;\n"
             "    out[i] = fajit::to_tf32(in[i]).bits & 0xffffe000u;\n"
             "}\n",
             COUNT / 256, 256, in, sizeof in, out, sizeof out);
    for (int i = 0; i < COUNT; i++) {
        float x, y;
        memcpy(&x, &in[i], sizeof x);
        memcpy(&y, &out[i], sizeof y);
        if (x != x) {
            cr_expect(y != y, "NaN %x: %x", in[i], out[i]);
            continue;
        }
        /* In units of the last of 11 digits, halves go away from zero. */
        int exponent = 0;
        frexp((double)x, &exponent);
        const double unit = ldexp(1, (exponent < -125 ? -125 : exponent) - 11);
        const double expected =
            isinf(x) ? (double)x : copysign(floor(fabs((double)x) / unit + 0.5) * unit, (double)x);
        cr_expect((double)y == (double)(float)expected, "%a: %a, not %a", (double)x, (double)y,
                  expected);
    }
    close_device(&f, ctx);
}

Test(emulator_matrix, mma_that_not_all_lanes_reach, .timeout = 20)
{
    expect_text_fails(
        80,
        "#include \"fajit/mma.cuh\"\n"
        "__global__ void k(const unsigned *in, float *out)\n"
        "{\n"
        "    fajit::fragment_a<fajit::f16, 16> a{};\n"
        "    fajit::fragment_b<fajit::f16, 16> b{};\n"
        "    fajit::fragment_c<float> c{};\n"
        "    if (threadIdx.x != 5)\n"
        "        c = fajit::mma(a, b, c);\n"
        "    __syncthreads();\n"
        "    out[threadIdx.x] = c.value[0];\n"
        "}\n",
        32, (const char *const[]){"deadlock", "31 wait in mma.sync", "k.cu:8", "k.cu:9", NULL});
}

Test(emulator_matrix, mma_of_a_part_of_a_warp)
{
    expect_text_fails(
        80,
        "#include \"fajit/mma.cuh\"\n"
        "__global__ void k(const unsigned *in, float *out)\n"
        "{\n"
        "    fajit::fragment_a<fajit::tf32, 8> a{};\n"
        "    fajit::fragment_b<fajit::tf32, 8> b{};\n"
        "    out[threadIdx.x] = fajit::mma(a, b, fajit::fragment_c<float>{}).value[0];\n"
        "}\n",
        20, (const char *const[]){"all 32 lanes", "k.cu:6", NULL});
}

/* --- ldmatrix, stmatrix --- */

/* Rows lie 24 elements apart and in an order of their own, so that neither is taken for granted. */
#define STRIDE 24
#define ROW_OF "(((lane) * 11 + 5) % 32)"

static int row_of(int lane)
{
    return (lane * 11 + 5) % 32;
}

/* Element (row, column) of matrix m in the tile that is loaded from. */
static uint32_t tile_element(int m, int row, int column)
{
    return (uint32_t)(row_of(8 * m + row) * STRIDE + column);
}

static const char load_source[] =
    "#include \"fajit/ldmatrix.cuh\"\n"
    "template <int COUNT> __device__ void load(unsigned *out, const void *row)\n"
    "{\n"
    "    unsigned plain[COUNT], trans[COUNT];\n"
    "    fajit::ldmatrix(plain, row);\n"
    "    fajit::ldmatrix_trans(trans, row);\n"
    "    for (int i = 0; i < COUNT; i++) {\n"
    "        out[i] = plain[i];\n"
    "        out[4 + i] = trans[i];\n"
    "    }\n"
    "}\n"
    "__global__ void k(const unsigned *in, unsigned *out)\n"
    "{\n"
    "    __shared__ __align__(16) unsigned short tile[32 * 24];\n"
    "    const unsigned lane = threadIdx.x;\n"
    "    for (int i = 0; i < 24; i++) tile[lane * 24 + i] = lane * 24 + i;\n"
    "    __syncthreads();\n"
    "    const void *row = &tile[" ROW_OF
    " * 24];\n"
    "    load<1>(out + lane * 24, row);\n"
    "    load<2>(out + lane * 24 + 8, row);\n"
    "    load<4>(out + lane * 24 + 16, row);\n"
    "}\n";

static void check_ldmatrix(int cc)
{
    static uint32_t out[32][3][2][4];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    run_text(ctx, load_source, 1, 32, (uint32_t[]){0}, 4, out, sizeof out);
    for (int lane = 0; lane < 32; lane++)
        for (int size = 0; size < 3; size++)
            for (int m = 0; m < 1 << size; m++) {
                const int i = lane / 4, j = lane % 4 * 2;
                const uint32_t plain = tile_element(m, i, j) | tile_element(m, i, j + 1) << 16;
                const uint32_t trans = tile_element(m, j, i) | tile_element(m, j + 1, i) << 16;
                cr_expect_eq(out[lane][size][0][m], plain, "x%d, lane %d, matrix %d: %x, not %x",
                             1 << size, lane, m, out[lane][size][0][m], plain);
                cr_expect_eq(out[lane][size][1][m], trans,
                             "x%d.trans, lane %d, matrix %d: %x, not %x", 1 << size, lane, m,
                             out[lane][size][1][m], trans);
            }
    close_device(&f, ctx);
}

Test(emulator_matrix, ldmatrix)
{
    check_ldmatrix(80);
}

Test(emulator_matrix, ldmatrix_of_sm_75)
{
    check_ldmatrix(75);
}

/* Addresses of lanes whose rows are not asked for do not count, from sm_80 on. */
Test(emulator_matrix, ldmatrix_needs_only_its_own_rows)
{
    fixture f;
    uint32_t out[32];
    fa_context *ctx = open_arch(&f, 80);
    run_text(ctx,
             "#include \"fajit/ldmatrix.cuh\"\n"
             "__global__ void k(const unsigned *in, unsigned *out)\n"
             "{\n"
             "    __shared__ __align__(16) unsigned short tile[65];\n"
             "    unsigned word[1];\n"
             "    tile[2 * threadIdx.x] = 2 * threadIdx.x;\n"
             "    tile[2 * threadIdx.x + 1] = 2 * threadIdx.x + 1;\n"
             "    __syncwarp();\n"
             "    fajit::ldmatrix(word, &tile[threadIdx.x < 8 ? threadIdx.x * 8 : 1]);\n"
             "    out[threadIdx.x] = word[0];\n"
             "}\n",
             1, 32, (uint32_t[]){0}, 4, out, sizeof out);
    for (uint32_t i = 0; i < 32; i++)
        cr_expect_eq(out[i], 2 * i | (2 * i + 1) << 16, "lane %u: %x", i, out[i]);
    close_device(&f, ctx);
}

/* Two tiles of shared memory through ldmatrix into mma, as a kernel does it. */
Test(emulator_matrix, ldmatrix_gives_what_mma_takes)
{
    static const mma_case f16 = {F16, F16, F32, 16, 80};
    static uint16_t in[16 * 16 + 16 * 8];
    static float out[16][8];
    static tiles t;
    fixture f;
    fa_context *ctx = open_arch(&f, 80);
    fill_tiles(&f16, 0, &t);
    for (int i = 0; i < 256; i++)
        in[i] = (uint16_t)encode(F16, t.a[i / 16][i % 16]);
    for (int i = 0; i < 128; i++)
        in[256 + i] = (uint16_t)encode(F16, t.b[i / 8][i % 8]);
    run_text(ctx,
             "#include \"fajit/ldmatrix.cuh\"\n"
             "#include \"fajit/mma.cuh\"\n"
             "__global__ void k(const unsigned short *in, float *out)\n"
             "{\n"
             "    __shared__ __align__(16) unsigned short a[16][16], b[16][8];\n"
             "    const unsigned lane = threadIdx.x;\n"
             "    for (unsigned i = lane; i < 256; i += 32) a[i / 16][i % 16] = in[i];\n"
             "    for (unsigned i = lane; i < 128; i += 32) b[i / 8][i % 8] = in[256 + i];\n"
             "    __syncwarp();\n"
             "    fajit::fragment_a<fajit::f16, 16> x;\n"
             "    fajit::fragment_b<fajit::f16, 16> y;\n"
             "    fajit::fragment_c<float> z{};\n"
             "    fajit::ldmatrix(x.word, &a[lane % 16][lane / 16 * 8]);\n"
             "    fajit::ldmatrix_trans(y.word, &b[lane % 16][0]);\n"
             "    z = fajit::mma(x, y, z);\n"
             "    for (unsigned i = 0; i < 4; i++)\n"
             "        out[fajit::fragment_row(lane, i) * 8 + fajit::fragment_column(lane, i)] =\n"
             "            z.value[i];\n"
             "}\n",
             1, 32, in, sizeof in, out, sizeof out);
    for (int i = 0; i < 128; i++) {
        const double expected = t.d[i / 8][i % 8] - t.c[i / 8][i % 8];
        cr_expect((double)out[i / 8][i % 8] == expected, "D[%d][%d]: %g, not %g", i / 8, i % 8,
                  (double)out[i / 8][i % 8], expected);
    }
    close_device(&f, ctx);
}

Test(emulator_matrix, misaligned_row)
{
    expect_text_fails(
        80,
        "#include \"fajit/ldmatrix.cuh\"\n"
        "__global__ void k(const unsigned *in, unsigned *out)\n"
        "{\n"
        "    __shared__ __align__(16) unsigned short tile[32 * 8 + 4];\n"
        "    unsigned word[4];\n"
        "    fajit::ldmatrix(word, &tile[threadIdx.x * 8 + (threadIdx.x == 9) * 4]);\n"
        "    out[threadIdx.x] = word[0];\n"
        "}\n",
        32,
        (const char *const[]){"CUDA_ERROR_MISALIGNED_ADDRESS", "ldmatrix at k.cu:6", "(9,0,0)",
                              NULL});
}

static const char store_source[] =
    "#include \"fajit/ldmatrix.cuh\"\n"
    "template <int COUNT, bool TRANS> __device__ void store(unsigned *out)\n"
    "{\n"
    "    __shared__ __align__(16) unsigned short tile[32 * 24];\n"
    "    const unsigned lane = threadIdx.x;\n"
    "    unsigned word[COUNT];\n"
    "    for (int i = 0; i < 24; i++) tile[lane * 24 + i] = 0xeeee;\n"
    "    for (int i = 0; i < COUNT; i++)\n"
    "        word[i] = (i * 32 + lane) * 2 | ((i * 32 + lane) * 2 + 1) << 16;\n"
    "    __syncthreads();\n"
    "    void *row = &tile[" ROW_OF
    " * 24];\n"
    "    if (TRANS) fajit::stmatrix_trans(row, word);\n"
    "    else fajit::stmatrix(row, word);\n"
    "    __syncthreads();\n"
    "    for (int i = 0; i < 24; i++) out[lane * 24 + i] = tile[lane * 24 + i];\n"
    "}\n"
    "__global__ void k(const unsigned *in, unsigned *out)\n"
    "{\n"
    "    store<1, false>(out);\n"
    "    store<1, true>(out + 768);\n"
    "    store<2, false>(out + 2 * 768);\n"
    "    store<2, true>(out + 3 * 768);\n"
    "    store<4, false>(out + 4 * 768);\n"
    "    store<4, true>(out + 5 * 768);\n"
    "}\n";

Test(emulator_matrix, stmatrix)
{
    static uint32_t out[3][2][32 * STRIDE], expected[32 * STRIDE];
    fixture f;
    fa_context *ctx = open_arch(&f, 90);
    run_text(ctx, store_source, 1, 32, (uint32_t[]){0}, 4, out, sizeof out);
    for (int size = 0; size < 3; size++)
        for (int trans = 0; trans < 2; trans++) {
            for (int i = 0; i < 32 * STRIDE; i++)
                expected[i] = 0xeeee;
            for (int m = 0; m < 1 << size; m++)
                for (int lane = 0; lane < 32; lane++)
                    for (int half = 0; half < 2; half++) {
                        const int i = lane / 4, j = lane % 4 * 2 + half;
                        expected[trans ? tile_element(m, j, i) : tile_element(m, i, j)] =
                            (uint32_t)((m * 32 + lane) * 2 + half);
                    }
            for (int i = 0; i < 32 * STRIDE; i++)
                cr_expect_eq(out[size][trans][i], expected[i],
                             "x%d%s, row %d, element %d: %x, not %x", 1 << size,
                             trans ? ".trans" : "", i / STRIDE, i % STRIDE, out[size][trans][i],
                             expected[i]);
        }
    close_device(&f, ctx);
}

/* --- what an architecture lacks --- */

static void expect_missing(int cc, const char *source, const char *word)
{
    fixture f;
    fa_kernel *kernel = NULL;
    need_emulator();
    fa_context *ctx = open_arch(&f, cc);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "k.cu", .source = source, .entry = "k"};
    EXPECT(fa_compile(ctx, &spec, &kernel), FA_ERR_COMPILE);
    cr_expect(strstr(fa_last_error(), word) != NULL, "no '%s' in: %s", word, fa_last_error());
    close_device(&f, ctx);
}

Test(emulator_matrix, mma_that_sm_75_lacks)
{
    char source[1200];
    mma_source(&(mma_case){F16, F16, F32, 16, 80}, source, sizeof source);
    expect_missing(75, source, "f16 of K = 16");
}

Test(emulator_matrix, mma_that_sm_80_lacks)
{
    char source[1200];
    mma_source(&(mma_case){E4M3, E4M3, F32, 32, 89}, source, sizeof source);
    expect_missing(80, source, "needs sm_89");
}

Test(emulator_matrix, stmatrix_that_sm_80_lacks)
{
    expect_missing(80, store_source, "stmatrix needs sm_90");
}

Test(emulator_matrix, tf32_that_sm_75_lacks)
{
    expect_missing(75,
                   "#include \"fajit/mma.cuh\"\n"
                   "__global__ void k(const float *in, unsigned *out)\n"
                   "{\n"
                   "    out[0] = fajit::to_tf32(in[0]).bits;\n"
                   "}\n",
                   "tf32 needs sm_80");
}
