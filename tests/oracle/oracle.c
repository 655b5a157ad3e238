/* What all references share. See oracle.h. */
#include "oracle.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

static const fa_oracle *const oracles[] = {&fa_oracle_rope,       &fa_oracle_kv_update,
                                           &fa_oracle_lowrank_kv, &fa_oracle_attention,
                                           &fa_oracle_linear,     &fa_oracle_cross_attention};

const fa_oracle *oracle_find(fa_op op)
{
    for (size_t i = 0; i < sizeof oracles / sizeof oracles[0]; i++)
        if (oracles[i]->op == op)
            return oracles[i];
    return NULL;
}

float oracle_uniform(uint64_t seed, uint64_t i, double lo, double hi)
{
    uint64_t z = (seed << 32) + i + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (float)(lo + (hi - lo) * ((double)(z >> 11) * 0x1p-53));
}

double oracle_normal(uint64_t seed, uint64_t i)
{
    const double u = (double)oracle_uniform(seed, 2 * i, 0x1p-25, 1);
    const double angle = 2 * PI * (double)oracle_uniform(seed, 2 * i + 1, 0, 1);
    return sqrt(-2 * log(u)) * cos(angle);
}

/* --- conversions --- */

/* The bits of `x` rounded to a format of `exponent` and `mantissa` bits, to nearest even. */
static uint16_t encode16(double x, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint16_t sign = (uint16_t)(signbit(x) ? 0x8000 : 0);
    const uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    if (isnan(x))
        return (uint16_t)(sign | infinity | 1 << (mantissa_bits - 1));
    x = fabs(x);
    if (isinf(x))
        return (uint16_t)(sign | infinity);
    if (x == 0)
        return sign;
    int exponent = ilogb(x);
    if (exponent < 1 - bias)
        exponent = 1 - bias; /* subnormal spacing */
    /* In units of the last place; a carry into the next exponent comes out right by itself. */
    uint64_t units = (uint64_t)nearbyint(scalbn(x, mantissa_bits - exponent));
    uint64_t bits = ((uint64_t)(exponent + bias - 1) << mantissa_bits) + units;
    return (uint16_t)(sign | (bits > infinity ? infinity : bits));
}

static double decode16(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == top)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * scalbn(mantissa, 1 - bias - mantissa_bits);
    return sign * scalbn(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void oracle_store(fa_dtype dtype, void *to, const double *from, size_t count)
{
    float *f = to;
    uint16_t *h = to;
    for (size_t i = 0; i < count; i++) {
        if (dtype == FA_F32)
            f[i] = (float)from[i];
        else if (dtype == FA_F16)
            h[i] = encode16(from[i], 5, 10);
        else
            h[i] = encode16(from[i], 8, 7);
    }
}

void oracle_load(fa_dtype dtype, double *to, const void *from, size_t count)
{
    const float *f = from;
    const uint16_t *h = from;
    for (size_t i = 0; i < count; i++) {
        if (dtype == FA_F32)
            to[i] = (double)f[i];
        else if (dtype == FA_F16)
            to[i] = decode16(h[i], 5, 10);
        else
            to[i] = decode16(h[i], 8, 7);
    }
}

double oracle_rounded(fa_dtype dtype, double value)
{
    char bits[4];
    oracle_store(dtype, bits, &value, 1);
    oracle_load(dtype, &value, bits, 1);
    return value;
}

/* 4 bits of exponent, 3 of mantissa, bias 7; 0x7f is NaN, 0x7e the largest value, 448. */
uint8_t oracle_e4m3_store(double value)
{
    const uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return sign | 0x7f;
    value = fabs(value);
    if (value >= 448)
        return sign | 0x7e;
    int exponent = value == 0 ? -6 : ilogb(value);
    exponent = exponent < -6 ? -6 : exponent;
    const int units = (int)nearbyint(scalbn(value, 3 - exponent)); /* a carry comes out right */
    return (uint8_t)(sign | (((exponent + 6) << 3) + units));
}

double oracle_e4m3_load(uint8_t bits)
{
    const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    const double sign = bits & 0x80 ? -1 : 1;
    if ((bits & 0x7f) == 0x7f)
        return (double)NAN;
    return sign * (exponent ? scalbn(8 + mantissa, exponent - 10) : scalbn(mantissa, -9));
}

oracle_tensor *oracle_find_tensor(oracle_case *c, const char *name)
{
    for (size_t i = 0; i < c->tensor_count; i++)
        if (strcmp(c->tensor[i].name, name) == 0)
            return &c->tensor[i];
    return NULL;
}

static bool is_wide(const oracle_tensor *t)
{
    return t->count && t->bytes / t->count == 8;
}

int64_t oracle_index(const oracle_tensor *t, int64_t i)
{
    const int32_t *narrow = t->host;
    const int64_t *wide = t->host;
    return is_wide(t) ? wide[i] : narrow[i];
}

void oracle_set_index(const oracle_tensor *t, int64_t i, int64_t value)
{
    int32_t *narrow = t->host;
    int64_t *wide = t->host;
    if (is_wide(t))
        wide[i] = value;
    else
        narrow[i] = (int32_t)value;
}

/* --- comparing --- */

static double load_element(const oracle_tensor *t, const void *at)
{
    double value = 0;
    if (t->is_e4m3)
        return oracle_e4m3_load(*(const uint8_t *)at);
    oracle_load(t->dtype, &value, at, 1);
    return value;
}

/* What this element must be bit by bit; NULL: it has to come within the gate. */
static const char *exact_bits(const oracle_tensor *t, size_t i, size_t element)
{
    if (t->exact && t->exact[i])
        return (const char *)t->stored + i * element;
    return t->untouched && t->untouched[i] ? (const char *)t->host + i * element : NULL;
}

/* Error in units of the gate; infinite where the patterns of NaN and infinity differ. */
static double error_ratio(const oracle_case *c, const oracle_tensor *t, double actual,
                          double expected)
{
    const bool own = t->atol > 0 || t->rtol > 0;
    if (isnan(expected) || isnan(actual))
        return isnan(expected) && isnan(actual) ? 0 : (double)INFINITY;
    if (isinf(expected) || isinf(actual))
        return expected == actual ? 0 : (double)INFINITY;
    return fabs(actual - expected) /
           ((own ? t->atol : c->atol) + (own ? t->rtol : c->rtol) * fabs(expected));
}

oracle_verdict oracle_compare(const oracle_case *c, const oracle_tensor *t, const void *actual)
{
    oracle_verdict verdict = {0};
    const size_t element = t->bytes / t->count;
    for (size_t i = 0; i < t->count; i++) {
        const char *at = (const char *)actual + i * element;
        const char *bits = exact_bits(t, i, element);
        const double value = load_element(t, at);
        const double expected = bits ? load_element(t, bits) : t->expected[i];
        double ratio = error_ratio(c, t, value, expected);
        if (bits)
            ratio = memcmp(at, bits, element) ? (double)INFINITY : 0;
        else if (isfinite(ratio) && fabs(value - expected) > verdict.max_abs_error)
            verdict.max_abs_error = fabs(value - expected);
        if (ratio > verdict.worst_ratio)
            verdict.worst_ratio = ratio;
        if (ratio <= 1)
            continue;
        if (verdict.bad++ == 0) {
            verdict.first_bad = i;
            verdict.actual = value;
            verdict.expected = expected;
        }
    }
    return verdict;
}
