// Arithmetic: intrinsics of single instructions, and the mathematical functions from the host's
// library, which is at least as exact as the device's.

#define FAJIT_EMU_REAL1(NAME)                                                                      \
    extern "C" double NAME(double) noexcept;                                                       \
    extern "C" float NAME##f(float) noexcept;                                                      \
    inline float NAME(float x)                                                                     \
    {                                                                                              \
        return NAME##f(x);                                                                         \
    }
#define FAJIT_EMU_REAL2(NAME)                                                                      \
    extern "C" double NAME(double, double) noexcept;                                               \
    extern "C" float NAME##f(float, float) noexcept;                                               \
    inline float NAME(float x, float y)                                                            \
    {                                                                                              \
        return NAME##f(x, y);                                                                      \
    }
FAJIT_EMU_REAL1(sqrt)
FAJIT_EMU_REAL1(cbrt)
FAJIT_EMU_REAL1(exp)
FAJIT_EMU_REAL1(exp2)
FAJIT_EMU_REAL1(expm1)
FAJIT_EMU_REAL1(log)
FAJIT_EMU_REAL1(log2)
FAJIT_EMU_REAL1(log10)
FAJIT_EMU_REAL1(log1p)
FAJIT_EMU_REAL1(sin)
FAJIT_EMU_REAL1(cos)
FAJIT_EMU_REAL1(tan)
FAJIT_EMU_REAL1(asin)
FAJIT_EMU_REAL1(acos)
FAJIT_EMU_REAL1(atan)
FAJIT_EMU_REAL1(sinh)
FAJIT_EMU_REAL1(cosh)
FAJIT_EMU_REAL1(tanh)
FAJIT_EMU_REAL1(erf)
FAJIT_EMU_REAL1(erfc)
FAJIT_EMU_REAL1(floor)
FAJIT_EMU_REAL1(ceil)
FAJIT_EMU_REAL1(trunc)
FAJIT_EMU_REAL1(round)
FAJIT_EMU_REAL1(rint)
FAJIT_EMU_REAL1(nearbyint)
FAJIT_EMU_REAL1(fabs)
FAJIT_EMU_REAL2(pow)
FAJIT_EMU_REAL2(fmod)
FAJIT_EMU_REAL2(fmin)
FAJIT_EMU_REAL2(fmax)
FAJIT_EMU_REAL2(atan2)
FAJIT_EMU_REAL2(hypot)
FAJIT_EMU_REAL2(copysign)
#undef FAJIT_EMU_REAL1
#undef FAJIT_EMU_REAL2

extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" void sincos(double, double *, double *) noexcept;
extern "C" void sincosf(float, float *, float *) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;
inline float fma(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline float abs(float x)
{
    return __builtin_fabsf(x);
}
inline double abs(double x)
{
    return __builtin_fabs(x);
}
inline float rsqrtf(float x)
{
    return static_cast<float>(1.0 / __builtin_sqrt(x));
}
inline double rsqrt(double x)
{
    return 1.0 / __builtin_sqrt(x);
}
inline bool isnan(float x)
{
    return __builtin_isnan(x);
}
inline bool isnan(double x)
{
    return __builtin_isnan(x);
}
inline bool isinf(float x)
{
    return __builtin_isinf(x);
}
inline bool isinf(double x)
{
    return __builtin_isinf(x);
}
inline bool isfinite(float x)
{
    return __builtin_isfinite(x);
}
inline bool isfinite(double x)
{
    return __builtin_isfinite(x);
}

#define FAJIT_EMU_MINMAX(TYPE)                                                                     \
    inline constexpr TYPE min(TYPE a, TYPE b)                                                      \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    inline constexpr TYPE max(TYPE a, TYPE b)                                                      \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
FAJIT_EMU_MINMAX(int)
FAJIT_EMU_MINMAX(unsigned)
FAJIT_EMU_MINMAX(long)
FAJIT_EMU_MINMAX(unsigned long)
FAJIT_EMU_MINMAX(long long)
FAJIT_EMU_MINMAX(unsigned long long)
#undef FAJIT_EMU_MINMAX
inline float min(float a, float b)
{
    return __builtin_fminf(a, b);
}
inline float max(float a, float b)
{
    return __builtin_fmaxf(a, b);
}
inline double min(double a, double b)
{
    return __builtin_fmin(a, b);
}
inline double max(double a, double b)
{
    return __builtin_fmax(a, b);
}

// --- bits ----------------------------------------------------------------------------------------

#define FAJIT_EMU_CAST(NAME, TO, FROM)                                                             \
    inline TO NAME(FROM x)                                                                         \
    {                                                                                              \
        TO y;                                                                                      \
        static_assert(sizeof y == sizeof x, "as many bits");                                       \
        __builtin_memcpy(&y, &x, sizeof y);                                                        \
        return y;                                                                                  \
    }
FAJIT_EMU_CAST(__float_as_uint, unsigned, float)
FAJIT_EMU_CAST(__float_as_int, int, float)
FAJIT_EMU_CAST(__uint_as_float, float, unsigned)
FAJIT_EMU_CAST(__int_as_float, float, int)
FAJIT_EMU_CAST(__double_as_longlong, long long, double)
FAJIT_EMU_CAST(__longlong_as_double, double, long long)
#undef FAJIT_EMU_CAST

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x)
{
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1u) << (31 - i);
    return y;
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b)
{
    return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b)
{
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    const unsigned long long x = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(x << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    const unsigned long long x = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(x >> (shift & 31));
}

// --- rounded arithmetic, fast functions ----------------------------------------------------------

inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
inline float __fsqrt_rn(float a)
{
    return __builtin_sqrtf(a);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __log2f(float x)
{
    return log2f(x);
}
inline float __sinf(float x)
{
    return sinf(x);
}
inline float __cosf(float x)
{
    return cosf(x);
}
inline float __powf(float x, float y)
{
    return powf(x, y);
}
inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; // NaN: 0
}
inline int __float2int_rn(float x)
{
    return static_cast<int>(rintf(x));
}

// --- read-only and cached loads ------------------------------------------------------------------

template <class T> inline T __ldg(const T *address)
{
    fajit_emu::check_access<alignof(T)>(address);
    return *address;
}

// --- half precision ------------------------------------------------------------------------------

namespace fajit_emu {

// cvt.rn.f16.f32: to nearest, ties to even; too large is infinity, NaN is 0x7fff.
inline unsigned short half_from_float(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u,
                   size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7fff;
    if (size >= 0x477ff000u) // 65520: half way from the largest to the next
        return static_cast<unsigned short>(sign | 0x7c00u);
    if (size < 0x38800000u) { // below 2^-14: subnormal, in units of 2^-24; adding 0.5 rounds
        const float y = __builtin_fabsf(x) + 0.5f; // 0.5f has an ulp of 2^-24
        return static_cast<unsigned short>(sign | (__float_as_uint(y) - 0x3f000000u));
    }
    const unsigned odd = size >> 13 & 1u;
    return static_cast<unsigned short>(sign | ((size - 0x38000000u + 0xfffu + odd) >> 13));
}

// cvt.f32.f16: exact; NaN is 0x7fffffff.
inline float float_from_half(unsigned short x)
{
    const unsigned sign = static_cast<unsigned>(x & 0x8000u) << 16, size = x & 0x7fffu;
    if (size > 0x7c00u)
        return __uint_as_float(0x7fffffffu);
    if (size == 0x7c00u)
        return __uint_as_float(sign | 0x7f800000u);
    if (size < 0x400u) {
        const float y = static_cast<float>(size) * 0x1p-24f;
        return __uint_as_float(sign | __float_as_uint(y));
    }
    return __uint_as_float(sign | ((size << 13) + 0x38000000u));
}

// cvt.rn.bf16.f32: to nearest, ties to even; NaN is 0x7fff.
inline unsigned short bfloat_from_float(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

} // namespace fajit_emu
