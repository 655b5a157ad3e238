/* What the kernels are given. The letters of conform_case.inputs:
 *
 *   i  number of the row
 *   u  any 32 bits, corner values first
 *   f  any float, corner values first
 *   m  float of moderate size, both signs
 *   p  float of moderate size, positive
 *   c  float close to where a conversion to a smaller type rounds
 *   d  any double (two words), corner values first
 *   h b t 4 5   operands of a matrix product in one word: two halves, two bfloat16, one tf32, four
 *               e4m3, four e5m2; their kind depends on the number of the warp
 *   a  float to add to a product of the kind
 *   g  two halves to add
 *   H B E F   as h b 4 5, for sums of few and subnormal factors
 *   A Z G     to add to these: float, float where bfloat16 are the factors, two halves
 *
 * The first rows hold each corner of the first input, with each of the second where rows are many. */
#include <math.h>
#include <string.h>

#include "conformance.h"

static uint32_t hash(uint32_t row, uint32_t word)
{
    uint64_t x = (uint64_t)row << 32 | word;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return (uint32_t)(x >> 32 ^ x);
}

static const uint32_t corner_words[] = {
    0,          1,          2,          3,          7,          8,          15,         16,
    31,         32,         33,         63,         64,         255,        256,        0x7fff,
    0x8000,     0xffff,     0x10000,    0x00ff00ff, 0x12345678, 0x7ffffffe, 0x7fffffff, 0x80000000,
    0x80000001, 0x89abcdef, 0xff00ff00, 0xffff0000, 0xfffffffe, 0xffffffff};

static const uint32_t corner_floats[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, /* zeros, denormals */
    0x00400000, 0x00800000, 0x80800000, 0x00800001, 0x01000000, 0x0c000000, /* least normal ones */
    0x7f7fffff, 0xff7fffff, 0x7f000000, 0x7e800000, 0x7e800001, 0x7f800000, /* large, infinite */
    0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x7fffffff,             /* NaN */
    0x3f800000, 0xbf800000, 0x3f800001, 0x3f7fffff, 0x3f000000, 0xbf000000, /* around 1 and 0.5 */
    0x3effffff, 0x3fc00000, 0xbfc00000, 0x40200000, 0xc0200000, 0x40000000, /* 1.5, 2.5, 2 */
    0x40400000, 0x3eaaaaab, 0x40490fdb, 0xc0490fdb, 0x3fc90fdb, 0x358637bd, /* 3, 1/3, pi, 1e-6 */
    0x4b000000, 0x4affffff, 0x4b000001, 0x4b800000, 0x4b7fffff, 0xcb000001, /* 2^23, 2^24 */
    0x4effffff, 0x4f000000, 0xcf000000, 0xcf000001, 0x4f7fffff, 0x4f800000, /* 2^31, 2^32 */
    0x5effffff, 0x5f000000, 0xdf000000, 0x5f7fffff, 0x5f800000, 0x41200000, /* 2^63, 2^64, 10 */
    0x477fe000, 0x477fefff, 0x477ff000, 0x38800000, 0x387fffff, 0x33800000, /* of half */
    0x33000000, 0x33000001, 0x32ffffff, 0x43e00000, 0x43e80000, 0x43e80001, /* of half and e4m3 */
    0x47600000, 0x47700000, 0x7f7f7fff, 0x7f7f8000, 0x42b17218, 0xc2aeac50, /* e5m2, bf16, exp */
    0x42fe0000, 0x43000000, 0xc2fc0000, 0xc3150000, 0xc3170000, 0xc2fd0000, /* exp2 */
};

static const uint64_t corner_doubles[] = {
    0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x800fffffffffffff,
    0x0010000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
    0x7ff8000000000000, 0xfff8000000000001, 0x3ff0000000000000, 0xbff0000000000000,
    0x3ff0000000000001, 0x3fefffffffffffff, 0x3fe0000000000000, 0xbfe0000000000000,
    0x3ff8000000000000, 0x4004000000000000, 0xc004000000000000, 0x4008000000000000,
    0x3fd5555555555555, 0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000000000,
    0xc1e0000000200000, 0x41efffffffe00000, 0x41f0000000000000, 0x43dfffffffffffff,
    0x43e0000000000000, 0xc3e0000000000000, 0x43f0000000000000, 0x4330000000000001,
    0x47efffffe0000000, 0x47efffffefffffff, 0x47effffff0000000, 0x36a0000000000000,
    0x3690000000000000, 0x3690000000000001, 0x380fffffffffffff, 0x3ff0000010000000};

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof *(array)))

/* Which corner the input number `n` (0, 1, ..) of a row takes; `count`: none. */
static uint32_t corner(uint32_t rows, uint32_t row, uint32_t n, uint32_t count, uint32_t random)
{
    const bool pairs = rows >= 2 * count * count;
    if (n == 0 && row < (pairs ? count * count : count))
        return row % count;
    if (n == 1 && pairs && row < count * count)
        return row / count;
    return random % 5 == 0 ? random / 5 % count : count;
}

static uint32_t float_of(uint32_t random, uint32_t lowest, uint32_t span)
{
    return (random & 0x807fffffu) | (lowest + hash(random, 77) % span) << 23;
}

static uint32_t any_float(uint32_t rows, uint32_t row, uint32_t n)
{
    const uint32_t random = hash(row, n), at = corner(rows, row, n, COUNT(corner_floats), random);
    if (at < COUNT(corner_floats))
        return corner_floats[at];
    /* Half of them with exponents close to those of the other inputs. */
    return row & 1 ? random : float_of(random, 122, 12);
}

static uint64_t any_double(uint32_t rows, uint32_t row, uint32_t n)
{
    const uint32_t high = hash(row, n), at = corner(rows, row, n, COUNT(corner_doubles), high);
    if (at < COUNT(corner_doubles))
        return corner_doubles[at];
    const uint64_t random = (uint64_t)high << 32 | hash(row, n + 1000);
    if (row & 1)
        return random;
    return (random & 0x800fffffffffffffu) | (uint64_t)(1015 + high % 16) << 52;
}

/* Floats of every exponent with mantissas around where 13 and 16 low bits are rounded away. */
static uint32_t close_to_a_tie(uint32_t row)
{
    static const uint32_t low[] = {0,      1,      0xfff,  0x1000, 0x1001, 0x1fff,
                                   0x7fff, 0x8000, 0x8001, 0x3000, 0x2fff, 0x18000};
    const uint32_t random = hash(row, 5), sign_and_exponent = row / COUNT(low) % 512 << 23;
    return sign_and_exponent | ((random & 0x7fe000u) ^ low[row % COUNT(low)]);
}

/* --- operands of matrix products --- */

typedef struct format {
    int bits, mantissa, bias;
    uint32_t greatest; /* code of the greatest finite value */
} format;

static const format f16 = {16, 10, 15, 0x7bff}, bf16 = {16, 7, 127, 0x7f7f},
                    tf32 = {19, 10, 127, 0x3fbff}, e4m3 = {8, 3, 7, 0x7e}, e5m2 = {8, 2, 15, 0x7b};

enum { CLOSE, WIDE, SMALL, LARGE, CANCELLING, SPARSE, KINDS };

/* A finite code of the format: its exponent from a span that the kind decides. */
static uint32_t code(const format *f, uint32_t kind, uint32_t random, bool first)
{
    const int exponents = 1 << (f->bits - 1 - f->mantissa);
    int lowest = f->bias - 2, span = 5;
    if (kind == WIDE || kind == SPARSE) {
        span = exponents / 2 < 24 ? exponents / 2 : 24;
        lowest = f->bias - span / 2;
    } else if (kind == SMALL) {
        lowest = first && f->bias > 100 ? 40 : 0;
        span = 4;
    } else if (kind == LARGE) {
        lowest = f->bias + (f->bias > 100 ? 61 : f->bias * 3 / 4);
        span = 4;
    }
    if (kind == SPARSE && first && random >> 29)
        return 0;
    const uint32_t mantissa = random & ((1u << f->mantissa) - 1);
    uint32_t x = (uint32_t)(lowest + (int)(random >> 12 & 0xffff) % span) << f->mantissa | mantissa;
    if (x > f->greatest)
        x = f->greatest;
    return x | (random >> 11 & 1) << (f->bits - 1);
}

/* `first`: of the left matrix. Where products cancel, elements of one word are pairs: the same on
 * the left, and opposite on the right but for a low bit. */
static uint32_t operand(const format *f, uint32_t row, uint32_t n, bool first)
{
    const uint32_t kind = row / 32 % KINDS;
    uint32_t word = 0, before = 0;
    if (f->bits == 19)
        return code(f, kind, hash(row, n), first) << 13;
    for (int i = 0; i < 32 / f->bits; i++) {
        const uint32_t random = hash(row, n * 8 + (uint32_t)i + 100);
        uint32_t x = code(f, kind, random, first);
        if (kind == CANCELLING && i % 2)
            x = first ? before : before ^ 1u << (f->bits - 1) ^ (random >> 30 == 0);
        word |= x << (i * f->bits);
        before = x;
    }
    return word;
}

static uint32_t addend(uint32_t row, uint32_t n)
{
    static const uint32_t lowest[KINDS] = {125, 110, 1, 240, 100, 100},
                          span[KINDS] = {6, 34, 60, 14, 30, 50};
    const uint32_t random = hash(row, n), kind = row / 32 % KINDS;
    return random % 4 ? float_of(random, lowest[kind], span[kind]) : 0;
}

/* --- operands whose products decide on corners of the rule --- */

enum { TINY_LEFT, TINY_RIGHT, TINY_BOTH, ZEROS, OPPOSITE, VANISHING, TIES, TINY_KINDS };

/* Close to 2^exponent, or to the power next to it that the format has. */
static uint32_t close_to_power(const format *f, int exponent, uint32_t mantissa)
{
    const int field = exponent + f->bias, highest = (int)(f->greatest >> f->mantissa);
    return (uint32_t)(field < 1          ? 1
                      : field >= highest ? highest - 1
                                         : field)
               << f->mantissa |
           (mantissa & ((1u << f->mantissa) - 1));
}

/* How far above 1 the factors lie that make subnormal ones visible in a sum. */
static int lifted(const format *f)
{
    return f->bias > 100 ? 20 : 12;
}

/* Subnormal numbers that lack leading bits, others in each warp; and what they are multiplied by:
 * few large numbers, whose products are not to be cut off with those of the small ones. */
static uint32_t tiny_factor(const format *f, uint32_t row, uint32_t k, uint32_t random, bool tiny)
{
    if (tiny)
        return (random & ((1u << f->mantissa) - 1)) >>
               (1 + row / 32 / TINY_KINDS % (uint32_t)(f->mantissa - 1));
    const int gap = f->bits == 8 ? 19 : 12;
    return close_to_power(f, lifted(f) - (k % 4 ? gap + (int)(random >> 12 & 0xffff) % 7 : 0),
                          random);
}

/* An odd or even number, half its last unit, and what decides whether that is a tie. */
static uint32_t factor_of_tie(const format *f, uint32_t k, uint32_t random, bool first)
{
    if (k > 2)
        return 0;
    if (k == 0)
        return close_to_power(f, 0, first ? random : 0);
    if (k == 1)
        return close_to_power(f, first ? -f->mantissa - 1 : 0, 0);
    return random % 3 ? close_to_power(f, first ? -12 : -12 - (int)(random % 3 - 1), 0) : 0;
}

/* Element k of a row of A or of a column of B, each of which has one sign where zeros are added. */
static uint32_t tiny_code(const format *f, uint32_t row, uint32_t k, uint32_t random, bool first)
{
    const uint32_t negative = 1u << (f->bits - 1), sign = random >> 31 ? negative : 0;
    const uint32_t of_line = row / 4 % 2 ? negative : 0;
    switch (row / 32 % TINY_KINDS) {
    case TINY_LEFT:
    case TINY_RIGHT:
        return sign | tiny_factor(f, row, k, random, first == (row / 32 % TINY_KINDS == TINY_LEFT));
    case TINY_BOTH:
        return sign | tiny_factor(f, row, k, random, true);
    case ZEROS:
        return of_line | (first ? 0 : close_to_power(f, 0, random));
    case OPPOSITE: /* each product, and then its opposite */
        return close_to_power(f, (int)(hash(row, k / 2) % 4), hash(row, k / 2)) |
               (first || k % 2 ? 0 : negative);
    case VANISHING:
        if (first)
            return of_line | (k == 0 ? 1 + random % 3 : 0);
        return close_to_power(f, (f->bias > 100 ? -17 : -1) - (int)(random >> 12 & 3), 0);
    default:
        return of_line | factor_of_tie(f, k, random, first);
    }
}

static uint32_t tiny_operand(const format *f, uint32_t row, uint32_t n, bool first)
{
    const uint32_t in_word = 32 / (uint32_t)f->bits;
    const uint32_t k = in_word * (row % 4) + 4 * in_word * (first ? n / 2 : n - 4);
    uint32_t word = 0;
    for (uint32_t i = 0; i < in_word; i++)
        word |= tiny_code(f, row, k + i, hash(row, n * 8 + i + 100), first)
                << (i * (uint32_t)f->bits);
    return word;
}

/* Has bits below those that are kept beside a subnormal factor of the least normal exponent. */
static uint32_t tiny_addend(const format *f, uint32_t row, uint32_t n)
{
    const uint32_t random = hash(row, n), kind = row / 32 % TINY_KINDS;
    const int other = kind == TINY_BOTH ? 1 - f->bias : lifted(f),
              field = 127 + 1 - f->bias + other - 3 - (int)(random >> 8 & 7);
    if (kind > TINY_BOTH || random % 4 == 0)
        return random & 0x80000000u;
    return (random & 0x807fffffu) | (uint32_t)(field < 0 ? 0 : field) << 23;
}

static uint32_t tiny_halves(uint32_t row, uint32_t n)
{
    const uint32_t random = hash(row, n);
    if (row / 32 % TINY_KINDS > TINY_BOTH || random % 4)
        return random & 0x80008000u;
    return random & 0x8fff8fffu;
}

/* --- rows --- */

static uint32_t one_word(char letter, uint32_t rows, uint32_t row, uint32_t n, bool first)
{
    const uint32_t random = hash(row, n);
    switch (letter) {
    case 'i':
        return row;
    case 'u': {
        const uint32_t at = corner(rows, row, n, COUNT(corner_words), random);
        return at < COUNT(corner_words) ? corner_words[at] : random;
    }
    case 'f':
        return any_float(rows, row, n);
    case 'm':
        return float_of(random, 115, 18);
    case 'p':
        return float_of(random, 115, 18) & 0x7fffffffu;
    case 'c':
        return close_to_a_tie(row);
    case 'h':
        return operand(&f16, row, n, first);
    case 'b':
        return operand(&bf16, row, n, first);
    case 't':
        return operand(&tf32, row, n, first);
    case '4':
        return operand(&e4m3, row, n, first);
    case 'g':
        return operand(&f16, row, n, false);
    case '5':
        return operand(&e5m2, row, n, first);
    case 'H':
        return tiny_operand(&f16, row, n, first);
    case 'B':
        return tiny_operand(&bf16, row, n, first);
    case 'E':
        return tiny_operand(&e4m3, row, n, first);
    case 'F':
        return tiny_operand(&e5m2, row, n, first);
    case 'A':
        return tiny_addend(&f16, row, n);
    case 'Z':
        return tiny_addend(&bf16, row, n);
    case 'G':
        return tiny_halves(row, n);
    default: /* 'a' */
        return addend(row, n);
    }
}

uint32_t conform_words_in(const conform_case *c)
{
    uint32_t words = 0;
    for (const char *letter = c->inputs; *letter; letter++)
        words += *letter == 'd' ? 2 : 1;
    return words;
}

void conform_inputs(const conform_case *c, uint32_t *in)
{
    const uint32_t rows = conform_rows(c);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t n = 0; c->inputs[n]; n++) {
            if (c->inputs[n] == 'd') {
                const uint64_t x = any_double(rows, row, n);
                *in++ = (uint32_t)x;
                *in++ = (uint32_t)(x >> 32);
            } else {
                /* The left matrix has twice the words of the right one and comes first. */
                *in++ = one_word(c->inputs[n], rows, row, n,
                                 n < strspn(c->inputs, "hbt45HBEF") * 2 / 3);
            }
        }
}
