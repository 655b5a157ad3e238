// Storage types, their conversions to and from float32, and vector access to global memory.
// Needs no toolkit header. What only a GPU can do (asm) stands beside what
// the emulator does instead.
#ifndef FAJIT_DTYPE_CUH
#define FAJIT_DTYPE_CUH

#include "fajit/place.cuh"

namespace fajit {

using f32 = float;
struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
// 8 bits: 4 of exponent and 3 of fraction, largest 448, no infinity; 5 and 2, largest 57344.
struct fp8_e4m3 {
    unsigned char bits;
};
struct fp8_e5m2 {
    unsigned char bits;
};

// The instructions that convert fp8 came with sm_89, which the first compiler that knew them left
// out.
#if __CUDA_ARCH__ >= 900 ||                                                                        \
    (__CUDA_ARCH__ >= 890 && (__CUDACC_VER_MAJOR__ > 12 || __CUDACC_VER_MINOR__ >= 1))
#define FAJIT_HAS_FP8_CVT
#endif

// --- single elements -----------------------------------------------------------------------------

__device__ __forceinline__ float to_float(f32 x)
{
    return x;
}

__device__ __forceinline__ float to_float(f16 x)
{
#ifdef FAJIT_EMULATED
    return fajit_emu::float_from_half(x.bits);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

__device__ __forceinline__ float to_float(bf16 x)
{
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

template <class T> struct rounded;

template <> struct rounded<f32> {
    static __device__ __forceinline__ f32 from(float x)
    {
        return x;
    }
};

template <> struct rounded<f16> {
    static __device__ __forceinline__ f16 from(float x)
    {
#ifdef FAJIT_EMULATED
        return f16{fajit_emu::half_from_float(x)};
#else
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
#endif
    }
};

template <> struct rounded<bf16> {
    static __device__ __forceinline__ bf16 from(float x)
    {
        unsigned bits = __float_as_uint(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) // NaN: stays one when the low half goes
            return bf16{static_cast<unsigned short>(bits >> 16 | 0x40u)};
        bits += 0x7fffu + (bits >> 16 & 1u); // to nearest, ties to even
        return bf16{static_cast<unsigned short>(bits >> 16)};
    }
};

// fp8 without its instructions: too large a number, infinity too, becomes the largest; NaN stays.
template <int FRACTION_BITS, int BIAS, unsigned LARGEST>
__device__ __forceinline__ unsigned fp8_encode(float x)
{
    constexpr int SHIFT = 23 - FRACTION_BITS;
    constexpr unsigned SMALLEST_NORMAL = (128u - BIAS) << 23; // as a float
    // Added to a number below that, it leaves the lowest bit of the sum worth one unit of the code.
    constexpr unsigned ALIGN = (128u - BIAS + SHIFT) << 23;
    const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7fu;
    if (size < SMALLEST_NORMAL)
        return sign |
               (__float_as_uint(__fadd_rn(__uint_as_float(size), __uint_as_float(ALIGN))) - ALIGN);
    const unsigned rounded_size = size + (1u << (SHIFT - 1)) - 1 + (size >> SHIFT & 1u);
    const unsigned code = (rounded_size - ((127u - BIAS) << 23)) >> SHIFT;
    return sign | (code < LARGEST ? code : LARGEST);
}

// `x` as T, to nearest, ties to even; fp8 beyond its largest number becomes that.
template <class T> __device__ __forceinline__ T from_float(float x)
{
    return rounded<T>::from(x);
}

// --- two elements in one register; `low` is the one at the lower address -------------------------

__device__ __forceinline__ unsigned pack_pair(f16, float low, float high)
{
#ifdef FAJIT_EMULATED
    return fajit_emu::half_from_float(low) | static_cast<unsigned>(fajit_emu::half_from_float(high))
                                                 << 16;
#elif __CUDA_ARCH__ >= 800
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return from_float<f16>(low).bits | static_cast<unsigned>(from_float<f16>(high).bits) << 16;
#endif
}

__device__ __forceinline__ unsigned pack_pair(bf16, float low, float high)
{
#if defined FAJIT_EMULATED && __CUDA_ARCH__ >= 800
    return fajit_emu::bfloat_from_float(low) |
           static_cast<unsigned>(fajit_emu::bfloat_from_float(high)) << 16;
#elif __CUDA_ARCH__ >= 800
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return from_float<bf16>(low).bits | static_cast<unsigned>(from_float<bf16>(high).bits) << 16;
#endif
}

// fp8: the pair is the low half of the register.
__device__ __forceinline__ unsigned pack_pair(fp8_e4m3, float low, float high)
{
#ifndef FAJIT_HAS_FP8_CVT
    return fp8_encode<3, 7, 0x7eu>(low) | fp8_encode<3, 7, 0x7eu>(high) << 8;
#elif defined FAJIT_EMULATED
    return fajit_emu::e4m3_from_float(low) | fajit_emu::e4m3_from_float(high) << 8;
#else
    unsigned short y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
#endif
}

__device__ __forceinline__ unsigned pack_pair(fp8_e5m2, float low, float high)
{
#ifndef FAJIT_HAS_FP8_CVT
    return fp8_encode<2, 15, 0x7bu>(low) | fp8_encode<2, 15, 0x7bu>(high) << 8;
#elif defined FAJIT_EMULATED
    return fajit_emu::e5m2_from_float(low) | fajit_emu::e5m2_from_float(high) << 8;
#else
    unsigned short y;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
#endif
}

__device__ __forceinline__ void unpack_pair(f16, unsigned x, float &low, float &high)
{
    low = to_float(f16{static_cast<unsigned short>(x)});
    high = to_float(f16{static_cast<unsigned short>(x >> 16)});
}

__device__ __forceinline__ void unpack_pair(bf16, unsigned x, float &low, float &high)
{
    low = __uint_as_float(x << 16);
    high = __uint_as_float(x & 0xffff0000u);
}

__device__ __forceinline__ void unpack_pair(fp8_e4m3, unsigned x, float &low, float &high)
{
#ifndef FAJIT_HAS_FP8_CVT
    // As halves with the same bits the numbers are 2^8 times too small, and NaN is none.
    unpack_pair(f16{}, (x & 0x7f00u) << 15 | (x & 0x7fu) << 7, low, high);
    low = (x & 0x7fu) == 0x7fu ? __uint_as_float(0x7fffffffu) : low * 256.0f;
    high = (x & 0x7f00u) == 0x7f00u ? __uint_as_float(0x7fffffffu) : high * 256.0f;
    low = __uint_as_float(__float_as_uint(low) | (x & 0x80u) << 24);
    high = __uint_as_float(__float_as_uint(high) | (x & 0x8000u) << 16);
#elif defined FAJIT_EMULATED
    low = fajit_emu::float_from_e4m3(x & 0xffu);
    high = fajit_emu::float_from_e4m3(x >> 8 & 0xffu);
#else
    unsigned y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(static_cast<unsigned short>(x)));
    unpack_pair(f16{}, y, low, high);
#endif
}

__device__ __forceinline__ void unpack_pair(fp8_e5m2, unsigned x, float &low, float &high)
{
#ifndef FAJIT_HAS_FP8_CVT
    unpack_pair(f16{}, (x & 0xff00u) << 16 | (x & 0xffu) << 8, low, high); // the upper byte of one
#elif defined FAJIT_EMULATED
    low = fajit_emu::float_from_e5m2(x & 0xffu);
    high = fajit_emu::float_from_e5m2(x >> 8 & 0xffu);
#else
    unsigned y;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(static_cast<unsigned short>(x)));
    unpack_pair(f16{}, y, low, high);
#endif
}

__device__ __forceinline__ float to_float(fp8_e4m3 x)
{
    float low, high;
    unpack_pair(x, x.bits, low, high);
    return low;
}

__device__ __forceinline__ float to_float(fp8_e5m2 x)
{
    float low, high;
    unpack_pair(x, x.bits, low, high);
    return low;
}

template <> struct rounded<fp8_e4m3> {
    static __device__ __forceinline__ fp8_e4m3 from(float x)
    {
        return fp8_e4m3{static_cast<unsigned char>(pack_pair(fp8_e4m3{}, x, 0.0f))};
    }
};

template <> struct rounded<fp8_e5m2> {
    static __device__ __forceinline__ fp8_e5m2 from(float x)
    {
        return fp8_e5m2{static_cast<unsigned char>(pack_pair(fp8_e5m2{}, x, 0.0f))};
    }
};

// --- a run of bytes in registers: what one memory instruction moves ------------------------------

// BYTES is 1, 2, 4, 8 or 16; an address must be a multiple of it.
template <int BYTES> struct chunk {
    static_assert(BYTES == 1 || BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16,
                  "no such access");
    unsigned word[BYTES < 4 ? 1 : BYTES / 4];
};

template <class T, int COUNT>
__device__ __forceinline__ void unpack(const chunk<COUNT * sizeof(T)> &from, float (&to)[COUNT])
{
    constexpr int SIZE = sizeof(T);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            to[i] = __uint_as_float(from.word[i]);
    } else if constexpr (COUNT == 1) {
        to[0] = to_float(T{static_cast<decltype(T::bits)>(from.word[0])});
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2)
            unpack_pair(T{}, from.word[i * SIZE / 4] >> i * SIZE % 4 * 8, to[i], to[i + 1]);
    }
}

template <class T, int COUNT>
__device__ __forceinline__ chunk<COUNT * sizeof(T)> pack(const float (&from)[COUNT])
{
    constexpr int SIZE = sizeof(T);
    chunk<COUNT * sizeof(T)> to;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            to.word[i] = __float_as_uint(from[i]);
    } else if constexpr (COUNT == 1) {
        to.word[0] = from_float<T>(from[0]).bits;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            const unsigned pair = pack_pair(T{}, from[i], from[i + 1]) << i * SIZE % 4 * 8;
            to.word[i * SIZE / 4] = i * SIZE % 4 ? to.word[i * SIZE / 4] | pair : pair;
        }
    }
    return to;
}

// The two ways to read global memory differ in what the caches may assume.
//   load           nothing: memory that this kernel may write (in place)
//   load_constant  nobody writes it while the kernel runs
#ifdef FAJIT_EMULATED
#define FAJIT_LOAD(NAME, QUALIFIER)                                                                \
    template <int BYTES>                                                                           \
    __device__ __forceinline__ chunk<BYTES> NAME(const void *address, place at = place::here())    \
    {                                                                                              \
        chunk<BYTES> x{};                                                                          \
        fajit_emu::load<BYTES>(x.word, address, at.file, at.line);                                 \
        return x;                                                                                  \
    }
#else
#define FAJIT_LOAD(NAME, QUALIFIER)                                                                \
    template <int BYTES>                                                                           \
    __device__ __forceinline__ chunk<BYTES> NAME(const void *address, place = place::here())       \
    {                                                                                              \
        chunk<BYTES> x;                                                                            \
        if constexpr (BYTES == 16) {                                                               \
            asm volatile("ld.global" QUALIFIER ".v4.u32 {%0, %1, %2, %3}, [%4];"                   \
                         : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])      \
                         : "l"(address));                                                          \
        } else if constexpr (BYTES == 8) {                                                         \
            asm volatile("ld.global" QUALIFIER ".v2.u32 {%0, %1}, [%2];"                           \
                         : "=r"(x.word[0]), "=r"(x.word[1])                                        \
                         : "l"(address));                                                          \
        } else if constexpr (BYTES == 4) {                                                         \
            asm volatile("ld.global" QUALIFIER ".u32 %0, [%1];" : "=r"(x.word[0]) : "l"(address)); \
        } else if constexpr (BYTES == 2) {                                                         \
            unsigned short half;                                                                   \
            asm volatile("ld.global" QUALIFIER ".u16 %0, [%1];" : "=h"(half) : "l"(address));      \
            x.word[0] = half;                                                                      \
        } else {                                                                                   \
            unsigned short byte; /* has no register of its own size */                             \
            asm volatile("ld.global" QUALIFIER ".u8 %0, [%1];" : "=h"(byte) : "l"(address));       \
            x.word[0] = byte;                                                                      \
        }                                                                                          \
        return x;                                                                                  \
    }
#endif

FAJIT_LOAD(load, "")
FAJIT_LOAD(load_constant, ".nc")
#undef FAJIT_LOAD

// FRESH: this launch may have written it. Otherwise it is older, and nobody writes it.
template <int BYTES, bool FRESH>
__device__ __forceinline__ chunk<BYTES> load_input(const void *address, place at = place::here())
{
    if constexpr (FRESH)
        return load<BYTES>(address, at);
    else
        return load_constant<BYTES>(address, at);
}

template <int BYTES>
__device__ __forceinline__ void store(void *address, const chunk<BYTES> &x,
                                      place at = place::here())
{
#ifdef FAJIT_EMULATED
    fajit_emu::store<BYTES>(address, x.word, at.file, at.line);
#else
    if constexpr (BYTES == 16)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x.word[0]),
                     "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
                     : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(x.word[0]),
                     "r"(x.word[1])
                     : "memory");
    else if constexpr (BYTES == 4)
        asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(x.word[0]) : "memory");
    else if constexpr (BYTES == 2)
        asm volatile("st.global.u16 [%0], %1;" ::"l"(address),
                     "h"(static_cast<unsigned short>(x.word[0]))
                     : "memory");
    else
        asm volatile("st.global.u8 [%0], %1;" ::"l"(address),
                     "h"(static_cast<unsigned short>(x.word[0]))
                     : "memory");
#endif
}

} // namespace fajit

#endif
