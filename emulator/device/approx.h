// What the hardware approximates. Each function goes the way of the real one (scaling of subnormal
// operands, products in float32, the special cases), around a unit whose results are given as few
// bits as are documented: PTX ISA, "Floating Point Instructions"; CUDA C++ Programming Guide,
// "Intrinsic Functions".

extern "C" double exp2(double) noexcept;
extern "C" double log2(double) noexcept;
extern "C" double sin(double) noexcept;
extern "C" double cos(double) noexcept;
extern "C" double tanh(double) noexcept;

namespace fajit_emu {

// x with so many significant bits, as float32; what would be subnormal is zero.
inline float coarse(double x, int bits)
{
    const int dropped = 53 - bits;
    const long long step = 1ll << dropped, raw = __double_as_longlong(x);
    if (x != x)
        return __uint_as_float(NAN_BITS);
    if (__builtin_isinf(x))
        return static_cast<float>(x);
    const double y = __longlong_as_double((raw + step / 2) & -step);
    if (__builtin_fabs(y) < 0x1p-126)
        return __builtin_copysignf(0.0f, static_cast<float>(x));
    return static_cast<float>(y);
}

// x as a multiple of `step`.
inline float granular(double x, double step)
{
    return static_cast<float>(__builtin_rint(x / step) * step);
}

// --- the unit ------------------------------------------------------------------------------------

inline float unit_ex2(float x)
{
    return coarse(exp2(static_cast<double>(x)), 22);
}
inline float unit_lg2(float x)
{
    x = without_subnormal(x);
    if (!(x >= 0.0f))
        return __uint_as_float(x == 0.0f ? 0xff800000u : NAN_BITS);
    const double y = log2(static_cast<double>(x));
    return x > 0.5f && x < 2.0f ? granular(y, 0x1p-21) : coarse(y, 22);
}
inline float unit_rcp(float x)
{
    x = without_subnormal(x);
    return coarse(1.0 / static_cast<double>(x), 23);
}
inline float unit_rsq(float x)
{
    x = without_subnormal(x);
    return coarse(1.0 / __builtin_sqrt(static_cast<double>(x)), 23);
}
inline float unit_sqrt(float x)
{
    x = without_subnormal(x);
    return x == 0.0f ? x : coarse(__builtin_sqrt(static_cast<double>(x)), 23);
}
// Of a number of turns.
inline double part_of_a_turn(float turns)
{
    const double x = turns;
    return (x - __builtin_rint(x)) * 6.283185307179586476925;
}
inline float unit_sin(float turns)
{
    const float y = granular(sin(part_of_a_turn(turns)), 0x1p-21);
    return y == 0.0f ? __builtin_copysignf(y, turns) : y;
}
inline float unit_cos(float turns)
{
    return granular(cos(part_of_a_turn(turns)), 0x1p-21);
}
inline float turns(float x)
{
    return multiply<float>(TO_ZERO, x, 0x1.45f306p-3f);
}

// --- instructions of PTX -------------------------------------------------------------------------

inline float ex2_approx_ftz(float x)
{
    return unit_ex2(without_subnormal(x));
}
inline float lg2_approx_ftz(float x)
{
    return unit_lg2(x);
}
inline float rcp_approx_ftz(float x)
{
    return unit_rcp(x);
}
inline float rsqrt_approx_ftz(float x)
{
    return unit_rsq(x);
}
inline float sqrt_approx_ftz(float x)
{
    return unit_sqrt(x);
}
inline float tanh_approx(float x)
{
    const double y = tanh(static_cast<double>(x));
    return y != y || __builtin_fabs(y) < 0x1p-120 ? x : coarse(y, 11);
}

// Without .ftz, operands that the unit cannot take are scaled, and its results scaled back. As the
// compiler's options have it:
#ifdef FAJIT_EMU_FTZ
constexpr bool scales = false;
#else
constexpr bool scales = true;
#endif

inline bool is_tiny(float x)
{
    return scales && __builtin_fabsf(x) < 0x1p-126f;
}
inline float ex2_approx(float x)
{
    if (scales && x < -126.0f) {
        const float y = unit_ex2(x * 0.5f);
        return opaque(y * y);
    }
    return unit_ex2(x);
}
inline float lg2_approx(float x)
{
    return is_tiny(x) ? opaque(unit_lg2(x * 0x1p24f) - 24.0f) : unit_lg2(x);
}
inline float rsqrt_approx(float x)
{
    return is_tiny(x) ? opaque(unit_rsq(x * 0x1p24f) * 0x1p12f) : unit_rsq(x);
}
inline float sqrt_approx(float x)
{
    return is_tiny(x) ? opaque(unit_sqrt(x * 0x1p24f) * 0x1p-12f) : unit_sqrt(x);
}
// The reciprocal of more than 2^126 is zero.
inline float div_approx(float x, float y)
{
    if (is_tiny(y)) {
        x = opaque(x * 0x1p24f);
        y = opaque(y * 0x1p24f);
    }
    return opaque(x * unit_rcp(y));
}
inline float sin_approx(float x)
{
    return unit_sin(turns(x));
}
inline float cos_approx(float x)
{
    return unit_cos(turns(x));
}

} // namespace fajit_emu

// --- functions of CUDA ---------------------------------------------------------------------------

inline float exp2f(float x)
{
    return fajit_emu::ex2_approx(x);
}
inline float __expf(float x)
{
    return fajit_emu::ex2_approx(__fmul_rn(x, 0x1.715476p+0f));
}
inline float __exp10f(float x)
{
    return fajit_emu::ex2_approx(__fmul_rn(x, 0x1.a934fp+1f));
}
inline float __log2f(float x)
{
    return fajit_emu::lg2_approx(x);
}
inline float __logf(float x)
{
    return __fmul_rn(fajit_emu::lg2_approx(x), 0x1.62e43p-1f);
}
inline float __log10f(float x)
{
    return __fmul_rn(fajit_emu::lg2_approx(x), 0x1.344136p-2f);
}
inline float __powf(float x, float y)
{
    return fajit_emu::ex2_approx(__fmul_rn(fajit_emu::lg2_approx(x), y));
}
inline float __fdividef(float x, float y)
{
    return fajit_emu::div_approx(x, y);
}
inline float __sinf(float x)
{
    return fajit_emu::sin_approx(x);
}
inline float __cosf(float x)
{
    return fajit_emu::cos_approx(x);
}
inline float __tanf(float x)
{
    return __fdividef(__sinf(x), __cosf(x));
}
inline void __sincosf(float x, float *sine, float *cosine)
{
    *sine = __sinf(x);
    *cosine = __cosf(x);
}
inline float __tanhf(float x)
{
    return fajit_emu::tanh_approx(x);
}
inline float rsqrtf(float x)
{
    return fajit_emu::rsqrt_approx(x);
}
