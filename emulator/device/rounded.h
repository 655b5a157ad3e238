// Arithmetic in a given direction of rounding, conversions, and what --ftz=true changes.
//
// A plain `x * y + z` is contracted by the host compiler, as NVRTC does, unless --fmad=false; what
// has a name (__fmul_rn) never is.

extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;

namespace fajit_emu {

// The compiler knows nothing of the value that comes back, and keeps the order of these.
template <class T> inline T opaque(T x)
{
#if defined __x86_64__
    __asm__ volatile("" : "+x"(x));
#elif defined __aarch64__
    __asm__ volatile("" : "+w"(x));
#else
    __asm__ volatile("" : "+m"(x));
#endif
    return x;
}
inline long long opaque(long long x)
{
    __asm__ volatile("" : "+r"(x));
    return x;
}
inline unsigned long long opaque(unsigned long long x)
{
    __asm__ volatile("" : "+r"(x));
    return x;
}

// As bits of the processor's MXCSR.
enum rounding : unsigned { NEAREST = 0, DOWN = 0x2000, UP = 0x4000, TO_ZERO = 0x6000 };

// Rounds so while it lives. Operands and results have to go through opaque() in between.
struct rounds {
#ifdef __x86_64__
    unsigned before;

    explicit rounds(rounding how) : before(__builtin_ia32_stmxcsr())
    {
        __builtin_ia32_ldmxcsr((before & ~0x6000u) | how);
    }
    ~rounds()
    {
        __builtin_ia32_ldmxcsr(before);
    }
#else
    explicit rounds(rounding)
    {
        fail(719, {"rounding", "emulator", 0},
             "emulator does not implement directed rounding on this processor");
    }
    ~rounds() {}
#endif
};

// Never inlined, lest other arithmetic of the kernel move to where this direction holds.
template <class TO, class FROM, class HOW>
__attribute__((noinline)) TO directed(rounding how, FROM a, FROM b, FROM c, HOW calculate)
{
    const rounds while_it_lives(how);
    a = opaque(a), b = opaque(b), c = opaque(c);
    return opaque(calculate(a, b, c));
}

// NAME(how, a, b, c) gives VALUE of them. A plain product of the same operands must not be taken
// for the same: with a use that cannot be contracted none of its uses would be.
#define FAJIT_EMU_ROUNDED(NAME, VALUE)                                                             \
    template <class TO, class FROM>                                                                \
    inline TO NAME(rounding how, FROM a, FROM b = FROM(), FROM c = FROM())                         \
    {                                                                                              \
        auto calculate = [](FROM a, FROM b, FROM c) -> TO {                                        \
            (void)b, (void)c;                                                                      \
            return VALUE;                                                                          \
        };                                                                                         \
        return how == NEAREST ? opaque(calculate(opaque(a), b, c))                                 \
                              : directed<TO>(how, a, b, c, calculate);                             \
    }
inline float fused(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline double fused(double a, double b, double c)
{
    return fma(a, b, c);
}
inline float root(float a)
{
    return __builtin_sqrtf(a);
}
inline double root(double a)
{
    return __builtin_sqrt(a);
}
FAJIT_EMU_ROUNDED(add, a + b)
FAJIT_EMU_ROUNDED(subtract, a - b)
FAJIT_EMU_ROUNDED(multiply, a *b)
FAJIT_EMU_ROUNDED(divide, a / b)
FAJIT_EMU_ROUNDED(multiply_add, fused(a, b, c))
FAJIT_EMU_ROUNDED(square_root, root(a))
FAJIT_EMU_ROUNDED(convert, static_cast<TO>(a))
#undef FAJIT_EMU_ROUNDED

// --ftz=true: the processor flushes what its arithmetic takes and gives (see the epilogue). This is
// for what is no arithmetic there.
inline float flush(float x)
{
#ifdef FAJIT_EMU_FTZ
    return opaque(opaque(x) * opaque(1.0f)); // the compiler must not see that it is 1
#else
    return x;
#endif
}
inline double flush(double x)
{
    return x;
}

// An instruction of the approximating unit never takes or gives a subnormal number.
inline float without_subnormal(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) ? x
                                              : __uint_as_float(__float_as_uint(x) & 0x80000000u);
}

constexpr unsigned NAN_BITS = 0x7fffffffu;

// The smaller or the greater: -0 is less than +0, and a number beats NaN.
inline float least(float a, float b)
{
    a = flush(a), b = flush(b);
    if (a != a)
        return b != b ? __uint_as_float(NAN_BITS) : b;
    if (a == b)
        return __uint_as_float(__float_as_uint(a) | __float_as_uint(b));
    return b < a ? b : a; // a, if b is NaN
}
inline float greatest(float a, float b)
{
    a = flush(a), b = flush(b);
    if (a != a)
        return b != b ? __uint_as_float(NAN_BITS) : b;
    if (a == b)
        return __uint_as_float(__float_as_uint(a) & __float_as_uint(b));
    return a < b ? b : a;
}
inline double least(double a, double b)
{
    if (a == b)
        return __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
    return a != a || b < a ? b : a;
}
inline double greatest(double a, double b)
{
    if (a == b)
        return __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
    return a != a || a < b ? b : a;
}

// cvt to an integer: what is out of range becomes the nearest there is. NaN is 0, or the high bit
// alone where either side has 64 bits. (A plain cast leaves all of that to the host compiler.)
template <class TO, class FROM> inline TO to_integer(rounding how, FROM x)
{
    constexpr bool is_signed = static_cast<TO>(-1) < 0;
    constexpr int bits = 8 * sizeof(TO);
    constexpr TO high = static_cast<TO>(static_cast<TO>(1) << (bits - 1)),
                 greatest = is_signed ? static_cast<TO>(~high) : static_cast<TO>(-1);
    constexpr FROM limit = static_cast<FROM>(1ull << (bits - 2)) * (is_signed ? 2 : 4);
    if (x != x)
        return sizeof(TO) == 8 || sizeof(FROM) == 8 ? high : 0;
    x = flush(x);
    x = how == DOWN      ? __builtin_floor(x)
        : how == UP      ? __builtin_ceil(x)
        : how == TO_ZERO ? __builtin_trunc(x)
                         : __builtin_rint(x);
    if (x >= limit)
        return greatest;
    if (x <= (is_signed ? -limit : 0))
        return is_signed ? high : 0;
    return static_cast<TO>(x);
}

} // namespace fajit_emu

// --- by name -------------------------------------------------------------------------------------

#define FAJIT_EMU_DIRECTIONS(X) X(rn, NEAREST) X(rz, TO_ZERO) X(rd, DOWN) X(ru, UP)

#define FAJIT_EMU_ARITHMETIC(SUFFIX, HOW)                                                          \
    inline float __fadd_##SUFFIX(float a, float b)                                                 \
    {                                                                                              \
        return fajit_emu::add<float>(fajit_emu::HOW, a, b);                                        \
    }                                                                                              \
    inline float __fsub_##SUFFIX(float a, float b)                                                 \
    {                                                                                              \
        return fajit_emu::subtract<float>(fajit_emu::HOW, a, b);                                   \
    }                                                                                              \
    inline float __fmul_##SUFFIX(float a, float b)                                                 \
    {                                                                                              \
        return fajit_emu::multiply<float>(fajit_emu::HOW, a, b);                                   \
    }                                                                                              \
    inline float __fdiv_##SUFFIX(float a, float b)                                                 \
    {                                                                                              \
        return fajit_emu::divide<float>(fajit_emu::HOW, a, b);                                     \
    }                                                                                              \
    inline float __frcp_##SUFFIX(float a)                                                          \
    {                                                                                              \
        return fajit_emu::divide<float>(fajit_emu::HOW, 1.0f, a);                                  \
    }                                                                                              \
    inline float __fsqrt_##SUFFIX(float a)                                                         \
    {                                                                                              \
        return fajit_emu::square_root<float>(fajit_emu::HOW, a);                                   \
    }                                                                                              \
    inline float __fmaf_##SUFFIX(float a, float b, float c)                                        \
    {                                                                                              \
        return fajit_emu::multiply_add<float>(fajit_emu::HOW, a, b, c);                            \
    }                                                                                              \
    inline double __dadd_##SUFFIX(double a, double b)                                              \
    {                                                                                              \
        return fajit_emu::add<double>(fajit_emu::HOW, a, b);                                       \
    }                                                                                              \
    inline double __dsub_##SUFFIX(double a, double b)                                              \
    {                                                                                              \
        return fajit_emu::subtract<double>(fajit_emu::HOW, a, b);                                  \
    }                                                                                              \
    inline double __dmul_##SUFFIX(double a, double b)                                              \
    {                                                                                              \
        return fajit_emu::multiply<double>(fajit_emu::HOW, a, b);                                  \
    }                                                                                              \
    inline double __ddiv_##SUFFIX(double a, double b)                                              \
    {                                                                                              \
        return fajit_emu::divide<double>(fajit_emu::HOW, a, b);                                    \
    }                                                                                              \
    inline double __drcp_##SUFFIX(double a)                                                        \
    {                                                                                              \
        return fajit_emu::divide<double>(fajit_emu::HOW, 1.0, a);                                  \
    }                                                                                              \
    inline double __dsqrt_##SUFFIX(double a)                                                       \
    {                                                                                              \
        return fajit_emu::square_root<double>(fajit_emu::HOW, a);                                  \
    }                                                                                              \
    inline double __fma_##SUFFIX(double a, double b, double c)                                     \
    {                                                                                              \
        return fajit_emu::multiply_add<double>(fajit_emu::HOW, a, b, c);                           \
    }                                                                                              \
    inline float __double2float_##SUFFIX(double a)                                                 \
    {                                                                                              \
        return fajit_emu::convert<float>(fajit_emu::HOW, a);                                       \
    }
FAJIT_EMU_DIRECTIONS(FAJIT_EMU_ARITHMETIC)
#undef FAJIT_EMU_ARITHMETIC

#define FAJIT_EMU_TO_INTEGER(SUFFIX, HOW)                                                          \
    inline int __float2int_##SUFFIX(float x)                                                       \
    {                                                                                              \
        return fajit_emu::to_integer<int>(fajit_emu::HOW, x);                                      \
    }                                                                                              \
    inline unsigned __float2uint_##SUFFIX(float x)                                                 \
    {                                                                                              \
        return fajit_emu::to_integer<unsigned>(fajit_emu::HOW, x);                                 \
    }                                                                                              \
    inline long long __float2ll_##SUFFIX(float x)                                                  \
    {                                                                                              \
        return fajit_emu::to_integer<long long>(fajit_emu::HOW, x);                                \
    }                                                                                              \
    inline unsigned long long __float2ull_##SUFFIX(float x)                                        \
    {                                                                                              \
        return fajit_emu::to_integer<unsigned long long>(fajit_emu::HOW, x);                       \
    }                                                                                              \
    inline int __double2int_##SUFFIX(double x)                                                     \
    {                                                                                              \
        return fajit_emu::to_integer<int>(fajit_emu::HOW, x);                                      \
    }                                                                                              \
    inline unsigned __double2uint_##SUFFIX(double x)                                               \
    {                                                                                              \
        return fajit_emu::to_integer<unsigned>(fajit_emu::HOW, x);                                 \
    }                                                                                              \
    inline long long __double2ll_##SUFFIX(double x)                                                \
    {                                                                                              \
        return fajit_emu::to_integer<long long>(fajit_emu::HOW, x);                                \
    }                                                                                              \
    inline unsigned long long __double2ull_##SUFFIX(double x)                                      \
    {                                                                                              \
        return fajit_emu::to_integer<unsigned long long>(fajit_emu::HOW, x);                       \
    }
FAJIT_EMU_DIRECTIONS(FAJIT_EMU_TO_INTEGER)
#undef FAJIT_EMU_TO_INTEGER

#define FAJIT_EMU_FROM_INTEGER(SUFFIX, HOW)                                                        \
    inline float __int2float_##SUFFIX(int x)                                                       \
    {                                                                                              \
        return fajit_emu::convert<float>(fajit_emu::HOW, static_cast<long long>(x));               \
    }                                                                                              \
    inline float __uint2float_##SUFFIX(unsigned x)                                                 \
    {                                                                                              \
        return fajit_emu::convert<float>(fajit_emu::HOW, static_cast<long long>(x));               \
    }                                                                                              \
    inline float __ll2float_##SUFFIX(long long x)                                                  \
    {                                                                                              \
        return fajit_emu::convert<float>(fajit_emu::HOW, x);                                       \
    }                                                                                              \
    inline float __ull2float_##SUFFIX(unsigned long long x)                                        \
    {                                                                                              \
        return fajit_emu::convert<float>(fajit_emu::HOW, x);                                       \
    }                                                                                              \
    inline double __ll2double_##SUFFIX(long long x)                                                \
    {                                                                                              \
        return fajit_emu::convert<double>(fajit_emu::HOW, x);                                      \
    }                                                                                              \
    inline double __ull2double_##SUFFIX(unsigned long long x)                                      \
    {                                                                                              \
        return fajit_emu::convert<double>(fajit_emu::HOW, x);                                      \
    }
FAJIT_EMU_DIRECTIONS(FAJIT_EMU_FROM_INTEGER)
#undef FAJIT_EMU_FROM_INTEGER
#undef FAJIT_EMU_DIRECTIONS

inline double __int2double_rn(int x)
{
    return x;
}
inline double __uint2double_rn(unsigned x)
{
    return x;
}
inline float __frsqrt_rn(float x)
{
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(fajit_emu::flush(x))));
}
inline float __saturatef(float x)
{
    x = fajit_emu::flush(x);
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; // NaN: 0
}
