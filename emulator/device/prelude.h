// What a kernel finds defined before its first line: the host compiler's side of CUDA C++.
// Comes after abi.h, in one text with collective.h, atomic.h and math.h.

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define FAJIT_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
// A CPU gains little from inlining all that a GPU needs inlined, and compiling it takes twice as long.
// Under ThreadSanitizer it is done: what is passed by reference then lies in no memory, where the
// emulator's own calls, which run on the stacks of emulated threads, would be taken for races.
#if defined(__SANITIZE_THREAD__)
#define __forceinline__ inline __attribute__((always_inline))
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __forceinline__ inline __attribute__((always_inline))
#endif
#endif
#ifndef __forceinline__
#define __forceinline__ inline
#endif
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define FAJIT_EMU_BOUNDS(...) ::fajit_emu::bounds<::fajit_emu::max_threads(__VA_ARGS__)>
#define FAJIT_EMU_FOUND_BOUNDS(...)
#define __launch_bounds__(...)                                                                     \
    _Pragma("GCC error \"emulator does not implement __launch_bounds__ apart from its kernel\"")
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))

// One block runs on one operating-system thread at a time. An `extern` array gets its memory when
// the module is linked.
#define __shared__ thread_local

#define asm _Pragma("GCC error \"emulator does not implement inline PTX\"") __asm__
#define __cluster_dims__(...) _Pragma("GCC error \"emulator does not implement __cluster_dims__\"")

using size_t = decltype(sizeof 0);
using ptrdiff_t = decltype(static_cast<char *>(nullptr) - static_cast<char *>(nullptr));
#ifndef NULL
#define NULL __null
#endif

namespace fajit_emu {

static const runtime *host;
static __thread const thread_view *current;

// First parameter of a kernel that has __launch_bounds__.
template <unsigned MAX_THREADS> struct bounds {
};

unsigned emulator_does_not_implement_the_third_argument_of_launch_bounds();

constexpr unsigned max_threads(long long threads, long long blocks = 0, long long cluster = 0)
{
    (void)blocks; // about registers
    return cluster       ? emulator_does_not_implement_the_third_argument_of_launch_bounds()
           : threads > 0 ? static_cast<unsigned>(threads)
                         : 0; // as NVRTC takes it: no bound
}

[[noreturn]] inline void fail(int error, const site &where, const char *what)
{
    host->fail(error, where, what);
    __builtin_unreachable();
}

} // namespace fajit_emu

// --- built-in variables and types ----------------------------------------------------------------

using fajit_emu::dim3;
using fajit_emu::uint3;

#define threadIdx (::fajit_emu::current->thread_idx)
#define blockIdx (::fajit_emu::current->block_idx)
#define blockDim (::fajit_emu::current->block_dim)
#define gridDim (::fajit_emu::current->grid_dim)
static constexpr int warpSize = 32;

#define FAJIT_EMU_VECTORS(NAME, TYPE, ALIGN2, ALIGN4)                                              \
    struct NAME##1                                                                                 \
    {                                                                                              \
        TYPE x;                                                                                    \
    };                                                                                             \
    struct alignas(ALIGN2) NAME##2                                                                 \
    {                                                                                              \
        TYPE x, y;                                                                                 \
    };                                                                                             \
    struct alignas(ALIGN4) NAME##4                                                                 \
    {                                                                                              \
        TYPE x, y, z, w;                                                                           \
    };                                                                                             \
    inline NAME##1 make_##NAME##1(TYPE x)                                                          \
    {                                                                                              \
        return {x};                                                                                \
    }                                                                                              \
    inline NAME##2 make_##NAME##2(TYPE x, TYPE y)                                                  \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w)                                  \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
#define FAJIT_EMU_VECTOR3(NAME, TYPE)                                                              \
    struct NAME##3                                                                                 \
    {                                                                                              \
        TYPE x, y, z;                                                                              \
    };                                                                                             \
    inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z)                                          \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }

FAJIT_EMU_VECTORS(char, signed char, 2, 4)
FAJIT_EMU_VECTORS(uchar, unsigned char, 2, 4)
FAJIT_EMU_VECTORS(short, short, 4, 8)
FAJIT_EMU_VECTORS(ushort, unsigned short, 4, 8)
FAJIT_EMU_VECTORS(int, int, 8, 16)
FAJIT_EMU_VECTORS(uint, unsigned, 8, 16)
FAJIT_EMU_VECTORS(longlong, long long, 16, 16)
FAJIT_EMU_VECTORS(ulonglong, unsigned long long, 16, 16)
FAJIT_EMU_VECTORS(float, float, 8, 16)
FAJIT_EMU_VECTORS(double, double, 16, 16)
FAJIT_EMU_VECTOR3(char, signed char)
FAJIT_EMU_VECTOR3(uchar, unsigned char)
FAJIT_EMU_VECTOR3(short, short)
FAJIT_EMU_VECTOR3(ushort, unsigned short)
FAJIT_EMU_VECTOR3(int, int)
FAJIT_EMU_VECTOR3(longlong, long long)
FAJIT_EMU_VECTOR3(ulonglong, unsigned long long)
FAJIT_EMU_VECTOR3(float, float)
FAJIT_EMU_VECTOR3(double, double)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z)
{
    return {x, y, z};
}
#undef FAJIT_EMU_VECTORS
#undef FAJIT_EMU_VECTOR3

// --- what the project's device headers stand on --------------------------------------------------

namespace fajit_emu {

// One memory instruction of BYTES: an address that is no multiple of it ends the launch.
template <int BYTES>
inline void check_access(const void *address, const char *file = __builtin_FILE(),
                         int line = __builtin_LINE())
{
    if (reinterpret_cast<unsigned long>(address) % BYTES)
        fail(716, {"memory access", file, line}, "misaligned address");
}

template <int BYTES>
inline void load(unsigned *to, const void *from, const char *file = __builtin_FILE(),
                 int line = __builtin_LINE())
{
    check_access<BYTES>(from, file, line);
    __builtin_memcpy(to, from, BYTES);
}

template <int BYTES>
inline void store(void *to, const unsigned *from, const char *file = __builtin_FILE(),
                  int line = __builtin_LINE())
{
    check_access<BYTES>(to, file, line);
    __builtin_memcpy(to, from, BYTES);
}

} // namespace fajit_emu

template <class T> inline T __ldg(const T *address)
{
    fajit_emu::check_access<alignof(T)>(address);
    return *address;
}

// --- debugging, clocks ---------------------------------------------------------------------------

extern "C" __attribute__((format(printf, 1, 2))) inline int printf(const char *format, ...)
{
    __builtin_va_list values;
    __builtin_va_start(values, format);
    const int count = fajit_emu::host->print(format, values);
    __builtin_va_end(values);
    return count;
}

namespace fajit_emu {

[[noreturn]] inline void failed_assertion(const char *condition, const char *function,
                                          const char *file, int line)
{
    host->assertion({"assert", file, line}, condition, function, *current);
    fail(710, {"assert", file, line}, condition);
}

} // namespace fajit_emu

#ifdef NDEBUG
#define assert(CONDITION) ((void)0)
#else
#define assert(CONDITION)                                                                          \
    ((CONDITION)                                                                                   \
         ? (void)0                                                                                 \
         : ::fajit_emu::failed_assertion(#CONDITION, __PRETTY_FUNCTION__, __FILE__, __LINE__))
#endif

inline long long clock64()
{
    return fajit_emu::host->clock();
}
inline int clock()
{
    return static_cast<int>(clock64());
}
inline void __nanosleep(unsigned)
{
    fajit_emu::host->yield();
}
// What programs report after a trap, on compute capability 7.0 as on 9.0, is an unspecified launch
// failure and not an illegal instruction.
[[noreturn]] inline void __trap(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    fajit_emu::fail(719, {"__trap", file, line}, "trap");
}
