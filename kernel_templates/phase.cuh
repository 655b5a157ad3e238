// Rotary angles, exact at every position.
//
// An angle is kept in turns as a 64-bit fraction, so that going round the circle is the wrap-around
// of unsigned arithmetic and costs no accuracy:
//
//     frequency(j) = inv_freq(j) / (2 pi) * 2^64     (error at most about 30)
//     phase        = position * frequency(j)  mod 2^64
//
// At position p the phase is off by less than 30 p 2^-64 turns: 2 10^-8 radians at p = 2^31.
#ifndef FAJIT_PHASE_CUH
#define FAJIT_PHASE_CUH

namespace fajit {

using u64 = unsigned long long;
using i64 = long long;

// The upper half of the 128-bit product. The instruction cannot be evaluated at compile time.
__host__ __device__ __forceinline__ constexpr u64 multiply_high(u64 a, u64 b)
{
    if (!__builtin_is_constant_evaluated())
        return __umul64hi(a, b);
    const u64 a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const u64 middle = a1 * b0 + (a0 * b0 >> 32);
    const u64 other = a0 * b1 + (middle & 0xffffffffu);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

inline constexpr u64 LN2_Q64 = 0xb17217f7d1cf79acu;         // ln 2 * 2^64
inline constexpr u64 INVERSE_2PI_Q64 = 0x28be60db9391054au; // 2^64 / (2 pi)
inline constexpr int LOG2_BASE_FRACTION_BITS = 54;          // log2(base) <= 1024

__host__ __device__ constexpr u64 inverse_factorial(int n)
{
    u64 value = ~0ull;
    for (int i = 2; i <= n; i++)
        value /= static_cast<u64>(i);
    return value;
}

// (1 - exp(-z)) / z for z in [0, ln 2], both as fractions of 2^64: the Taylor series by Horner's
// scheme. Term 20 is below 2^-66.
template <int N = 1> __host__ __device__ __forceinline__ constexpr u64 decay_series(u64 z)
{
    constexpr u64 coefficient = inverse_factorial(N);
    if constexpr (N == 19)
        return coefficient;
    else
        return coefficient - multiply_high(z, decay_series<N + 1>(z));
}

// base^(-2 j / rotary_dim) as 2^-whole * (1 - decay / 2^64).
struct power {
    u64 decay;
    unsigned whole;
};

// log2(base) * 2^54 is quotient * rotary_dim + remainder; 2 j < rotary_dim <= 1024.
__host__ __device__ __forceinline__ constexpr power base_power(u64 quotient, unsigned remainder,
                                                               unsigned rotary_dim, unsigned j)
{
    // 2 j / rotary_dim * log2(base) = whole + fraction / 2^64
    const u64 scaled = quotient * (2 * j);
    const u64 rest = (remainder * (2 * j) << 10) / rotary_dim; // remainder * 2 j < 2^20
    const u64 fraction = (scaled << 10) + rest;
    const u64 whole = (scaled >> LOG2_BASE_FRACTION_BITS) + (fraction < rest ? 1 : 0);
    const u64 z = multiply_high(fraction, LN2_Q64);
    return {multiply_high(z, decay_series(z)), static_cast<unsigned>(whole)};
}

// value times the power, off by less than 2 units.
__host__ __device__ __forceinline__ constexpr u64 scale(u64 value, power by)
{
    value -= multiply_high(value, by.decay);
    if (by.whole == 0)
        return value;
    return by.whole > 63 ? 0 : ((value >> (by.whole - 1)) + 1) >> 1;
}

// --- scaled frequencies: formulas and sources at fa_rope_scaling in fajit.h ----------------------

// In the order of fa_rope_scaling_kind. Both NTK kinds are plain ones of another base.
inline constexpr int SCALING_LINEAR = 1, SCALING_YARN = 4, SCALING_LLAMA3 = 5;

// What frequencies are made of. Mirrored by fa__rotary_rule in src/ops/rotary.h.
struct frequency_rule {
    u64 quotient;       // log2(base) * 2^54 = quotient * rotary_dim + remainder
    u64 inverse_factor; // 2^64 / factor, at most 2^64 - 1
    u64 ramp_low, ramp_high;
    u64 ramp_step;  // 2^127 / ((ramp_high - ramp_low) << ramp_shift); its top bit is set
    int ramp_shift; // so that the top bit of (ramp_high - ramp_low) << ramp_shift is set
    unsigned remainder;
};

// 0 up to ramp_low, from there straight up to 2^64 - 1 at ramp_high.
__host__ __device__ __forceinline__ constexpr u64 climb(const frequency_rule &r, u64 at)
{
    if (at <= r.ramp_low)
        return 0;
    if (at >= r.ramp_high)
        return ~0ull;
    return multiply_high((at - r.ramp_low) << r.ramp_shift, r.ramp_step) << 1;
}

inline constexpr int RAMP_PAIR_BITS = 48; // YARN climbs along j * 2^48, LLAMA3 along the frequency

// frequency(j) from that of the plain formula.
template <int SCALING>
__host__ __device__ __forceinline__ constexpr u64 scaled(u64 plain, const frequency_rule &r,
                                                         unsigned j)
{
    if constexpr (SCALING == SCALING_LINEAR || SCALING == SCALING_YARN ||
                  SCALING == SCALING_LLAMA3) {
        const u64 slow = multiply_high(plain, r.inverse_factor);
        if constexpr (SCALING == SCALING_LINEAR)
            return slow;
        const bool yarn = SCALING == SCALING_YARN;
        const u64 at = yarn ? static_cast<u64>(j) << RAMP_PAIR_BITS : plain;
        const u64 part = multiply_high(plain - slow, climb(r, at));
        return yarn ? plain - part : slow + part;
    } else {
        return plain;
    }
}

__host__ __device__ __forceinline__ constexpr u64 plain_frequency(const frequency_rule &r,
                                                                  unsigned rotary_dim, unsigned j)
{
    return scale(INVERSE_2PI_Q64, base_power(r.quotient, r.remainder, rotary_dim, j));
}

// frequency(j) of every pair, evaluated by the compiler.
template <int PAIRS> struct alignas(16) frequency_table {
    u64 value[PAIRS];
};

template <int ROTARY_DIM, int SCALING>
__host__ __device__ constexpr frequency_table<ROTARY_DIM / 2>
make_frequency_table(const frequency_rule &rule)
{
    frequency_table<ROTARY_DIM / 2> table{};
    for (unsigned j = 0; j < ROTARY_DIM / 2; j++)
        table.value[j] = scaled<SCALING>(plain_frequency(rule, ROTARY_DIM, j), rule, j);
    return table;
}

// The same for a frequency in radians that is read: x / (2 pi) * 2^64 mod 2^64, off by less than
// max(2, |x|) units. x = mantissa * 2^-shift.
__device__ __forceinline__ u64 turns_of(float x)
{
    const unsigned bits = __float_as_uint(x), exponent = bits >> 23 & 255;
    const u64 mantissa = (bits & 0x7fffffu) | (exponent ? 1u << 23 : 0u);
    const int right = (exponent ? 126 : 125) - static_cast<int>(exponent);
    u64 turns = multiply_high(INVERSE_2PI_Q64, mantissa << 40);
    turns = right >= 64 || right <= -64 ? 0 : right >= 0 ? turns >> right : turns << -right;
    return bits >> 31 ? 0 - turns : turns;
}

// --- sine and cosine -----------------------------------------------------------------------------

struct sine_cosine {
    float sine, cosine;
};

// Sine and cosine of a phase. The nearest quarter turn is taken off; what is left, t in [-1/8, 1/8)
// turns, goes through polynomials in s = t^2 with the least largest error relative to the result
// (Remez exchange in 40 digits, coefficients rounded to float32):
//     sin(2 pi t) = t (2 pi + s P(s)), 4e-9;   cos(2 pi t) = 1 + s Q(s), 7e-11
// All in all within 1.7 units in the last place.
__host__ __device__ __forceinline__ sine_cosine phase_sine_cosine(u64 phase)
{
    const u64 quarter = (phase + (1ull << 61)) >> 62; // 4 stands for 0
    const i64 rest = static_cast<i64>(phase - (quarter << 62)) >> 6;
    // In two parts that become float32 without loss (24 bits) or nearly so (the next 32), both
    // signed, so that a small rest keeps its digits.
    const int low = static_cast<int>(rest);
    const int high = static_cast<int>(rest >> 32) + (low < 0 ? 1 : 0);
    const float t = fmaf(static_cast<float>(low), 0x1p-58f, static_cast<float>(high) * 0x1p-26f);

    const float s = t * t;
    // 2 pi in two parts: its rounding to float32 alone would cost half a unit in the last place.
    const float p = fmaf(fmaf(-75.4456061282f, s, 81.5937667887f), s, -41.3416723331f);
    const float sine = fmaf(t, 6.28318548202514648f, t * fmaf(p, s, -1.74845560007e-7f));
    const float q =
        fmaf(fmaf(fmaf(59.2292464633f, s, -85.4432363749f), s, 64.939321848f), s, -19.7392086816f);
    const float cosine = fmaf(q, s, 1.0f);

    const float first = quarter & 1 ? cosine : sine;
    const float second = quarter & 1 ? sine : cosine;
    return {quarter & 2 ? -first : first, (quarter + 1) & 2 ? -second : second};
}

} // namespace fajit

#endif
