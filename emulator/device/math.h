// The mathematical functions: from the host's library, which is at least as exact as the device's.
// --use_fast_math replaces some of them by approximations.

#define FAJIT_EMU_HOST1(NAME)                                                                      \
    extern "C" double NAME(double) noexcept;                                                       \
    namespace fajit_emu {                                                                          \
    extern "C" float host_##NAME(float) noexcept __asm__(#NAME "f");                               \
    }
#define FAJIT_EMU_HOST2(NAME)                                                                      \
    extern "C" double NAME(double, double) noexcept;                                               \
    namespace fajit_emu {                                                                          \
    extern "C" float host_##NAME(float, float) noexcept __asm__(#NAME "f");                        \
    }
// NAMEf, and NAME for float, as VALUE of x (and y), which is float32.
#define FAJIT_EMU_FLOAT1(NAME, VALUE)                                                              \
    inline float NAME##f(float x)                                                                  \
    {                                                                                              \
        return VALUE;                                                                              \
    }                                                                                              \
    inline float NAME(float x)                                                                     \
    {                                                                                              \
        return NAME##f(x);                                                                         \
    }
#define FAJIT_EMU_FLOAT2(NAME, VALUE)                                                              \
    inline float NAME##f(float x, float y)                                                         \
    {                                                                                              \
        return VALUE;                                                                              \
    }                                                                                              \
    inline float NAME(float x, float y)                                                            \
    {                                                                                              \
        return NAME##f(x, y);                                                                      \
    }                                                                                              \
    inline double NAME(float x, double y)                                                          \
    {                                                                                              \
        return NAME(static_cast<double>(x), y);                                                    \
    }                                                                                              \
    inline double NAME(double x, float y)                                                          \
    {                                                                                              \
        return NAME(x, static_cast<double>(y));                                                    \
    }
#define FAJIT_EMU_REAL1(NAME)                                                                      \
    FAJIT_EMU_HOST1(NAME)                                                                          \
    FAJIT_EMU_FLOAT1(NAME, fajit_emu::flush(fajit_emu::host_##NAME(fajit_emu::flush(x))))
#define FAJIT_EMU_REAL2(NAME)                                                                      \
    FAJIT_EMU_HOST2(NAME)                                                                          \
    FAJIT_EMU_FLOAT2(                                                                              \
        NAME, fajit_emu::flush(fajit_emu::host_##NAME(fajit_emu::flush(x), fajit_emu::flush(y))))
#ifdef FAJIT_EMU_FAST_MATH
#define FAJIT_EMU_FAST1(NAME, VALUE)                                                               \
    FAJIT_EMU_HOST1(NAME)                                                                          \
    FAJIT_EMU_FLOAT1(NAME, VALUE)
#define FAJIT_EMU_FAST2(NAME, VALUE)                                                               \
    FAJIT_EMU_HOST2(NAME)                                                                          \
    FAJIT_EMU_FLOAT2(NAME, VALUE)
#else
#define FAJIT_EMU_FAST1(NAME, VALUE) FAJIT_EMU_REAL1(NAME)
#define FAJIT_EMU_FAST2(NAME, VALUE) FAJIT_EMU_REAL2(NAME)
#endif

FAJIT_EMU_FAST1(exp, __expf(x))
FAJIT_EMU_FAST1(exp10, __exp10f(x))
FAJIT_EMU_FAST1(log, __logf(x))
FAJIT_EMU_FAST1(log2, __log2f(x))
FAJIT_EMU_FAST1(log10, __log10f(x))
FAJIT_EMU_FAST1(sin, __sinf(x))
FAJIT_EMU_FAST1(cos, __cosf(x))
FAJIT_EMU_FAST1(tan, __tanf(x))
FAJIT_EMU_FAST1(tanh, __tanhf(x))
FAJIT_EMU_FAST2(pow, __powf(x, y))
FAJIT_EMU_REAL1(cbrt)
FAJIT_EMU_REAL1(expm1)
FAJIT_EMU_REAL1(log1p)
FAJIT_EMU_REAL1(asin)
FAJIT_EMU_REAL1(acos)
FAJIT_EMU_REAL1(atan)
FAJIT_EMU_REAL1(sinh)
FAJIT_EMU_REAL1(cosh)
FAJIT_EMU_REAL1(asinh)
FAJIT_EMU_REAL1(acosh)
FAJIT_EMU_REAL1(atanh)
FAJIT_EMU_REAL1(erf)
FAJIT_EMU_REAL1(erfc)
FAJIT_EMU_REAL1(lgamma)
FAJIT_EMU_REAL1(tgamma)
FAJIT_EMU_REAL1(floor)
FAJIT_EMU_REAL1(ceil)
FAJIT_EMU_REAL1(trunc)
FAJIT_EMU_REAL1(round)
FAJIT_EMU_REAL1(rint)
FAJIT_EMU_REAL1(nearbyint)
FAJIT_EMU_REAL1(logb)
FAJIT_EMU_REAL2(fmod)
FAJIT_EMU_REAL2(remainder)
FAJIT_EMU_REAL2(nextafter)
FAJIT_EMU_REAL2(atan2)
FAJIT_EMU_REAL2(hypot)
FAJIT_EMU_REAL2(fdim)
#undef FAJIT_EMU_FAST1
#undef FAJIT_EMU_FAST2
#undef FAJIT_EMU_REAL1
#undef FAJIT_EMU_REAL2

inline float exp2(float x)
{
    return exp2f(x);
}

// --- of a few instructions -----------------------------------------------------------------------

inline double sqrt(double x)
{
    return __builtin_sqrt(x);
}
#ifdef FAJIT_EMU_FAST_SQRT
FAJIT_EMU_FLOAT1(sqrt, fajit_emu::sqrt_approx(x))
#else
FAJIT_EMU_FLOAT1(sqrt, __builtin_sqrtf(x))
#endif
inline double rsqrt(double x)
{
    return 1.0 / __builtin_sqrt(x);
}
inline float rsqrt(float x)
{
    return rsqrtf(x);
}
inline double fabs(double x)
{
    return __builtin_fabs(x);
}
FAJIT_EMU_FLOAT1(fabs, __builtin_fabsf(fajit_emu::flush(x)))
inline double copysign(double x, double y)
{
    return __builtin_copysign(x, y);
}
FAJIT_EMU_FLOAT2(copysign, __builtin_copysignf(x, y))
inline double fmin(double x, double y)
{
    return fajit_emu::least(x, y);
}
inline double fmax(double x, double y)
{
    return fajit_emu::greatest(x, y);
}
FAJIT_EMU_FLOAT2(fmin, fajit_emu::least(x, y))
FAJIT_EMU_FLOAT2(fmax, fajit_emu::greatest(x, y))
inline float min(float x, float y)
{
    return fajit_emu::least(x, y);
}
inline float max(float x, float y)
{
    return fajit_emu::greatest(x, y);
}
inline double min(double x, double y)
{
    return fajit_emu::least(x, y);
}
inline double max(double x, double y)
{
    return fajit_emu::greatest(x, y);
}
inline double min(float x, double y)
{
    return fajit_emu::least(static_cast<double>(x), y);
}
inline double max(float x, double y)
{
    return fajit_emu::greatest(static_cast<double>(x), y);
}
inline double min(double x, float y)
{
    return fajit_emu::least(x, static_cast<double>(y));
}
inline double max(double x, float y)
{
    return fajit_emu::greatest(x, static_cast<double>(y));
}
#undef FAJIT_EMU_HOST1
#undef FAJIT_EMU_HOST2
#undef FAJIT_EMU_FLOAT1
#undef FAJIT_EMU_FLOAT2

inline float fdividef(float x, float y)
{
#ifdef FAJIT_EMU_FAST_MATH
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

// --- of other shapes -----------------------------------------------------------------------------

extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double scalbn(double, int) noexcept;
extern "C" float scalbnf(float, int) noexcept;
extern "C" double frexp(double, int *) noexcept;
extern "C" float frexpf(float, int *) noexcept;
extern "C" double modf(double, double *) noexcept;
extern "C" float modff(float, float *) noexcept;
extern "C" double remquo(double, double, int *) noexcept;
extern "C" float remquof(float, float, int *) noexcept;
extern "C" int ilogb(double) noexcept;
extern "C" int ilogbf(float) noexcept;
extern "C" void sincos(double, double *, double *) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;

inline void sincosf(float x, float *sine, float *cosine)
{
    *sine = sinf(x);
    *cosine = cosf(x);
}
inline float fma(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline float ldexp(float x, int power)
{
    return ldexpf(x, power);
}
inline float abs(float x)
{
    return fabsf(x);
}
inline double abs(double x)
{
    return __builtin_fabs(x);
}
inline long long abs(long long x)
{
    return llabs(x);
}
inline int lrintf(float x)
{
    return __float2int_rn(x);
}
inline long long llrintf(float x)
{
    return __float2ll_rn(x);
}
inline long lroundf(float x)
{
    return static_cast<long>(__float2ll_rz(roundf(x)));
}
inline long long llroundf(float x)
{
    return __float2ll_rz(roundf(x));
}

// Of x times pi.
inline double sinpi(double x)
{
    const double y = remainder(x, 2.0);
    const double part = __builtin_fabs(y) > 0.5 ? __builtin_copysign(1.0, y) - y : y;
    return sin(part * 3.141592653589793238463);
}
inline double cospi(double x)
{
    const double y = __builtin_fabs(remainder(x, 2.0));
    return y == 0.5 ? 0.0 : cos(y * 3.141592653589793238463);
}
inline float sinpif(float x)
{
    return static_cast<float>(sinpi(static_cast<double>(fajit_emu::flush(x))));
}
inline float cospif(float x)
{
    return static_cast<float>(cospi(static_cast<double>(fajit_emu::flush(x))));
}
inline void sincospif(float x, float *sine, float *cosine)
{
    *sine = sinpif(x);
    *cosine = cospif(x);
}

#define FAJIT_EMU_CLASS(NAME)                                                                      \
    inline bool NAME(float x)                                                                      \
    {                                                                                              \
        return __builtin_##NAME(x);                                                                \
    }                                                                                              \
    inline bool NAME(double x)                                                                     \
    {                                                                                              \
        return __builtin_##NAME(x);                                                                \
    }
FAJIT_EMU_CLASS(isnan)
FAJIT_EMU_CLASS(isinf)
FAJIT_EMU_CLASS(isfinite)
FAJIT_EMU_CLASS(signbit)
#undef FAJIT_EMU_CLASS
