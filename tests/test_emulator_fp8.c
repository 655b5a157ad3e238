/* The 8-bit formats of the device headers against a reference in double precision: with the
 * instructions, and on architectures that lack them. On a GPU the same tests check the
 * instructions. */
#include <math.h>

#include "device_fixture.h"
#include "oracle/oracle.h"

typedef struct format {
    const char *name;
    int fraction_bits, bias;
    unsigned largest;
    bool infinities;
} format;

static const format e4m3 = {"fp8_e4m3", 3, 7, 0x7e, false};
static const format e5m2 = {"fp8_e5m2", 2, 15, 0x7b, true};

/* The number that a code stands for. */
static double decode(const format *of, unsigned code)
{
    const int field = (int)(code & 0x7f) >> of->fraction_bits;
    const int fraction = (int)(code & 0x7f) & ((1 << of->fraction_bits) - 1);
    const double sign = code & 0x80 ? -1 : 1;
    if ((code & 0x7f) > of->largest)
        return of->infinities && fraction == 0 ? sign * INFINITY : NAN;
    const int exponent = field ? field : 1;
    return sign * ldexp((field ? 1 << of->fraction_bits : 0) + fraction,
                        exponent - of->bias - of->fraction_bits);
}

/* By looking through all codes for the nearest; of two the even one. */
static unsigned encode(const format *of, double x)
{
    const unsigned sign = signbit(x) ? 0x80 : 0;
    unsigned best = 0;
    if (fabs(x) >= decode(of, of->largest))
        return sign | of->largest;
    for (unsigned code = 1; code <= of->largest; code++) {
        const double distance = fabs(decode(of, code) - fabs(x));
        const double least = fabs(decode(of, best) - fabs(x));
        if (distance < least || (distance == least && code % 2 == 0))
            best = code;
    }
    return sign | best;
}

static bool is_nan_code(const format *of, unsigned code)
{
    const double x = decode(of, code);
    return x != x;
}

static void define_type(const format *of, const char *text, char *source, size_t size)
{
    snprintf(source, size, "#include \"fajit/dtype.cuh\"\nusing T = fajit::%s;\n%s", of->name,
             text);
}

/* One at a time, and 2, 4, 8, 16 by the same thread. */
static const char decode_source[] =
    "template <int COUNT> __device__ void decode(const unsigned char *in, float *out)\n"
    "{\n"
    "    float x[COUNT];\n"
    "    for (unsigned i = threadIdx.x * COUNT; i < 256; i += blockDim.x * COUNT) {\n"
    "        fajit::unpack<T, COUNT>(fajit::load<COUNT>(in + i), x);\n"
    "        for (int k = 0; k < COUNT; k++) out[i + k] = x[k];\n"
    "    }\n"
    "}\n"
    "__global__ void k(const unsigned char *in, float *out)\n"
    "{\n"
    "    out[threadIdx.x] = fajit::to_float(T{in[threadIdx.x]});\n"
    "    decode<1>(in, out + 256);\n"
    "    decode<2>(in, out + 512);\n"
    "    decode<4>(in, out + 768);\n"
    "    decode<8>(in, out + 1024);\n"
    "    decode<16>(in, out + 1280);\n"
    "}\n";

static void check_decoding(const format *of, int cc)
{
    unsigned char in[256];
    float out[6][256];
    char source[2000];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    for (int i = 0; i < 256; i++)
        in[i] = (unsigned char)i;
    define_type(of, decode_source, source, sizeof source);
    run_text(ctx, source, 1, 256, in, sizeof in, out, sizeof out);
    for (int way = 0; way < 6; way++)
        for (unsigned i = 0; i < 256; i++) {
            const double got = (double)out[way][i], expected = decode(of, i);
            if (is_nan_code(of, i))
                cr_expect(got != got, "%s, way %d, code %x: %a", of->name, way, i, got);
            else
                cr_expect(got == expected && !signbit(got) == !signbit(expected),
                          "%s, way %d, code %x: %a, not %a", of->name, way, i, got, expected);
        }
    close_device(&f, ctx);
}

Test(emulator_fp8, decoding_e4m3)
{
    check_decoding(&e4m3, 90);
}

Test(emulator_fp8, decoding_e5m2)
{
    check_decoding(&e5m2, 90);
}

Test(emulator_fp8, decoding_e4m3_without_the_instruction)
{
    check_decoding(&e4m3, 80);
}

Test(emulator_fp8, decoding_e5m2_without_the_instruction)
{
    check_decoding(&e5m2, 80);
}

#define COUNT 16384

/* Every number of the format, the points half way between neighbours, floats on both sides of each;
 * then numbers of every exponent, and the special ones. */
static void fill_floats(const format *of, float x[COUNT])
{
    static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001,
                                       0x7fffffff, 0x00000000, 0x80000000, 0x00000001, 0x80000001,
                                       0x007fffff, 0x7f7fffff, 0xff7fffff};
    size_t n = 0;
    for (unsigned code = 0; code <= of->largest; code++)
        for (int middle = 0; middle < 2; middle++)
            for (int side = -1; side <= 1; side++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    const double beyond = code == of->largest
                                              ? 2 * decode(of, code) - decode(of, code - 1)
                                              : decode(of, code + 1);
                    float y = (float)(middle ? (decode(of, code) + beyond) / 2 : decode(of, code));
                    if (side)
                        y = nextafterf(y, side < 0 ? -INFINITY : INFINITY);
                    x[n++] = (float)sign * y;
                }
    memcpy(x + n, special, sizeof special);
    n += sizeof special / sizeof *special;
    for (uint32_t i = 0; n < COUNT; n++, i++) {
        const uint32_t bits = i * 0x9e3779b9u; /* all exponents */
        memcpy(&x[n], &bits, sizeof bits);
    }
}

static const char encode_source[] =
    "template <int COUNT> __device__ void encode(const float *in, unsigned char *out)\n"
    "{\n"
    "    const unsigned i = blockIdx.x * 256 + threadIdx.x;\n"
    "    if (i % COUNT) return;\n"
    "    float x[COUNT];\n"
    "    for (int k = 0; k < COUNT; k++) x[k] = in[i + k];\n"
    "    fajit::store(out + i, fajit::pack<T>(x));\n"
    "}\n"
    "__global__ void k(const float *in, unsigned char *out)\n"
    "{\n"
    "    const unsigned i = blockIdx.x * 256 + threadIdx.x, all = gridDim.x * 256;\n"
    "    out[i] = fajit::from_float<T>(in[i]).bits;\n"
    "    encode<1>(in, out + all);\n"
    "    encode<2>(in, out + 2 * all);\n"
    "    encode<4>(in, out + 3 * all);\n"
    "    encode<8>(in, out + 4 * all);\n"
    "    encode<16>(in, out + 5 * all);\n"
    "}\n";

static void check_encoding(const format *of, int cc)
{
    static float in[COUNT];
    static unsigned char out[6][COUNT];
    char source[2000];
    fixture f;
    fa_context *ctx = open_arch(&f, cc);
    fill_floats(of, in);
    define_type(of, encode_source, source, sizeof source);
    run_text(ctx, source, COUNT / 256, 256, in, sizeof in, out, sizeof out);
    for (int i = 0; i < COUNT; i++) {
        const unsigned expected = in[i] == in[i] ? encode(of, (double)in[i]) : 0;
        for (int way = 0; way < 6; way++) {
            const unsigned got = out[way][i];
            if (in[i] == in[i] ? got != expected : !is_nan_code(of, got))
                cr_expect(false, "%s, way %d, %a: %x, not %x", of->name, way, (double)in[i], got,
                          expected);
        }
    }
    close_device(&f, ctx);
}

Test(emulator_fp8, encoding_e4m3)
{
    check_encoding(&e4m3, 90);
}

Test(emulator_fp8, encoding_e5m2)
{
    check_encoding(&e5m2, 90);
}

Test(emulator_fp8, encoding_e4m3_without_the_instruction)
{
    check_encoding(&e4m3, 80);
}

Test(emulator_fp8, encoding_e5m2_without_the_instruction)
{
    check_encoding(&e5m2, 80);
}
