// Bits: reinterpretation and integer intrinsics.

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

inline int __double2loint(double x)
{
    return static_cast<int>(__double_as_longlong(x));
}
inline int __double2hiint(double x)
{
    return static_cast<int>(__double_as_longlong(x) >> 32);
}
inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}

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
inline unsigned long long __brevll(unsigned long long x)
{
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}

// --- products, sums, means -----------------------------------------------------------------------

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
// Of the low 24 bits of each factor, the low 32 bits of the product.
inline int __mul24(int a, int b)
{
    return static_cast<int>(static_cast<unsigned>((a << 8 >> 8) * (b << 8 >> 8)));
}
inline unsigned __umul24(unsigned a, unsigned b)
{
    return (a & 0xffffffu) * (b & 0xffffffu);
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c)
{
    return (a < b ? b - a : a - b) + c;
}
inline unsigned __sad(int a, int b, unsigned c)
{
    const unsigned x = static_cast<unsigned>(a), y = static_cast<unsigned>(b);
    return (a < b ? y - x : x - y) + c;
}
inline int __hadd(int a, int b)
{
    return static_cast<int>((static_cast<long long>(a) + b) >> 1);
}
inline int __rhadd(int a, int b)
{
    return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1);
}
inline unsigned __uhadd(unsigned a, unsigned b)
{
    return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b)
{
    return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}

// Four products of bytes, added to c.
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 32; i += 8)
        c += (a >> i & 0xffu) * (b >> i & 0xffu);
    return c;
}
inline int __dp4a(int a, int b, int c)
{
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<unsigned>(static_cast<signed char>(a >> i) *
                                     static_cast<signed char>(b >> i));
    return static_cast<int>(sum);
}

// --- pieces of two words -------------------------------------------------------------------------

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
// These stop at 32 instead of starting over.
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift)
{
    const unsigned long long x = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(x << (shift < 32 ? shift : 32) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift)
{
    const unsigned long long x = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(x >> (shift < 32 ? shift : 32));
}

// Byte number i of the result is the one of the eight in b:a that nibble i of `selector` names; the
// nibble's high bit asks for eight copies of that byte's sign instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    const unsigned long long x = static_cast<unsigned long long>(b) << 32 | a;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned nibble = selector >> (4 * i) & 7u;
        y |= static_cast<unsigned>(x >> (8 * nibble) & 0xffu) << (8 * i);
    }
    return y;
}

#define FAJIT_EMU_MINMAX(TYPE, A, B)                                                               \
    inline constexpr TYPE min(A a, B b)                                                            \
    {                                                                                              \
        return static_cast<TYPE>(b) < static_cast<TYPE>(a) ? static_cast<TYPE>(b)                  \
                                                           : static_cast<TYPE>(a);                 \
    }                                                                                              \
    inline constexpr TYPE max(A a, B b)                                                            \
    {                                                                                              \
        return static_cast<TYPE>(a) < static_cast<TYPE>(b) ? static_cast<TYPE>(b)                  \
                                                           : static_cast<TYPE>(a);                 \
    }
FAJIT_EMU_MINMAX(int, int, int)
FAJIT_EMU_MINMAX(unsigned, unsigned, unsigned)
FAJIT_EMU_MINMAX(unsigned, int, unsigned)
FAJIT_EMU_MINMAX(unsigned, unsigned, int)
FAJIT_EMU_MINMAX(long, long, long)
FAJIT_EMU_MINMAX(unsigned long, unsigned long, unsigned long)
FAJIT_EMU_MINMAX(unsigned long, long, unsigned long)
FAJIT_EMU_MINMAX(unsigned long, unsigned long, long)
FAJIT_EMU_MINMAX(long long, long long, long long)
FAJIT_EMU_MINMAX(unsigned long long, unsigned long long, unsigned long long)
FAJIT_EMU_MINMAX(unsigned long long, long long, unsigned long long)
FAJIT_EMU_MINMAX(unsigned long long, unsigned long long, long long)
#undef FAJIT_EMU_MINMAX
