// D = A B + C on the tensor cores of one warp (mma.sync): A has 16 rows and K columns, B has K rows
// and 8 columns. Each lane holds a fragment of each; with g = lane / 4 and t = lane % 4, and P
// elements in a 32-bit register, the first in the lowest bits:
//
//     A   register w, element j:  row g + 8 (w % 2), column P t + j + 4 P (w / 2)
//     B   register w, element j:  row P t + j + 4 P w, column g
//     C   element i of four:      row g + 8 (i / 2), column 2 t + i % 2
//
// All 32 lanes call mma together.
//
//     types of A and B       K       C      from
//     f16                    8       f32    sm_75      also f16
//     f16                    16      f32    sm_80      also f16
//     bf16                   8, 16   f32    sm_80
//     tf32                   4, 8    f32    sm_80
//     fp8_e4m3, fp8_e5m2     32      f32    sm_89      mixed too; NVRTC 12.4
#ifndef FAJIT_MMA_CUH
#define FAJIT_MMA_CUH

#include "fajit/dtype.cuh"
#include "fajit/place.cuh"

namespace fajit {

// A float of which tensor cores read the upper 19 bits.
struct tf32 {
    unsigned bits;
};

#if __CUDA_ARCH__ >= 800
// To nearest, ties away from zero.
__device__ __forceinline__ tf32 to_tf32(float x)
{
#ifdef FAJIT_EMULATED
    return tf32{fajit_emu::tf32_from_float(x)};
#else
    tf32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y.bits) : "f"(x));
    return y;
#endif
}
#else
template <class T> __device__ __forceinline__ tf32 to_tf32(T x)
{
    static_assert(sizeof x == 0, "tf32 needs sm_80 or later");
    return tf32{};
}
#endif

template <class T, int K> struct fragment_a {
    unsigned word[K * sizeof(T) / 8];
};
template <class T, int K> struct fragment_b {
    unsigned word[K * sizeof(T) / 16];
};
// C and D.
template <class T> struct fragment_c;
template <> struct fragment_c<f32> {
    float value[4];
};
template <> struct fragment_c<f16> {
    unsigned word[2];
};

// Where element i of fragment_c lies in C.
__device__ __forceinline__ constexpr unsigned fragment_row(unsigned lane, unsigned i)
{
    return lane / 4 + i / 2 * 8;
}
__device__ __forceinline__ constexpr unsigned fragment_column(unsigned lane, unsigned i)
{
    return lane % 4 * 2 + i % 2;
}

// What no instruction below fits. One that fits is preferred, because it is no template.
template <class A, class B, class C, int K>
__device__ __forceinline__ fragment_c<C> mma(const fragment_a<A, K> &, const fragment_b<B, K> &,
                                             const fragment_c<C> &c)
{
    static_assert(K == 0,
                  "this architecture has no mma of these types and this K: f16 of K = 8 "
                  "needs sm_75; f16 of K = 16, bf16 of K = 8 and 16, tf32 of K = 4 and 8 "
                  "need sm_80; fp8 of K = 32 needs sm_89 and NVRTC 12.4");
    return c;
}

#ifdef FAJIT_EMULATED
#define FAJIT_MMA_TO_F32(INSTRUCTION, TYPE_A, TYPE_B, K)                                           \
    __device__ __forceinline__ fragment_c<f32> mma(                                                \
        const fragment_a<TYPE_A, K> &a, const fragment_b<TYPE_B, K> &b, const fragment_c<f32> &c,  \
        place at = place::here())                                                                  \
    {                                                                                              \
        fragment_c<f32> d;                                                                         \
        fajit_emu::mma<fajit_emu::format::TYPE_A, fajit_emu::format::TYPE_B, K,                    \
                       fajit_emu::floats>(a.word, b.word, c.value, d.value, at.site(INSTRUCTION)); \
        return d;                                                                                  \
    }
#define FAJIT_MMA_TO_F16(INSTRUCTION, K)                                                           \
    __device__ __forceinline__ fragment_c<f16> mma(                                                \
        const fragment_a<f16, K> &a, const fragment_b<f16, K> &b, const fragment_c<f16> &c,        \
        place at = place::here())                                                                  \
    {                                                                                              \
        fragment_c<f16> d;                                                                         \
        fajit_emu::mma<fajit_emu::format::f16, fajit_emu::format::f16, K, fajit_emu::halves>(      \
            a.word, b.word, c.word, d.word, at.site(INSTRUCTION));                                 \
        return d;                                                                                  \
    }
#else
#define FAJIT_MMA_TO_F32(INSTRUCTION, TYPE_A, TYPE_B, K)                                           \
    __device__ __forceinline__ fragment_c<f32> mma(                                                \
        const fragment_a<TYPE_A, K> &a, const fragment_b<TYPE_B, K> &b, const fragment_c<f32> &c)  \
    {                                                                                              \
        fragment_c<f32> d;                                                                         \
        if constexpr (sizeof a.word == 16)                                                         \
            asm(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" \
                : "=f"(d.value[0]), "=f"(d.value[1]), "=f"(d.value[2]), "=f"(d.value[3])           \
                : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[K * sizeof(TYPE_A) / 8 - 2]),         \
                  "r"(a.word[K * sizeof(TYPE_A) / 8 - 1]), "r"(b.word[0]),                         \
                  "r"(b.word[K * sizeof(TYPE_B) / 16 - 1]), "f"(c.value[0]), "f"(c.value[1]),      \
                  "f"(c.value[2]), "f"(c.value[3]));                                               \
        else                                                                                       \
            asm(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"                \
                : "=f"(d.value[0]), "=f"(d.value[1]), "=f"(d.value[2]), "=f"(d.value[3])           \
                : "r"(a.word[0]), "r"(a.word[1]), "r"(b.word[0]), "f"(c.value[0]),                 \
                  "f"(c.value[1]), "f"(c.value[2]), "f"(c.value[3]));                              \
        return d;                                                                                  \
    }
#define FAJIT_MMA_TO_F16(INSTRUCTION, K)                                                           \
    __device__ __forceinline__ fragment_c<f16> mma(                                                \
        const fragment_a<f16, K> &a, const fragment_b<f16, K> &b, const fragment_c<f16> &c)        \
    {                                                                                              \
        fragment_c<f16> d;                                                                         \
        if constexpr (K == 16)                                                                     \
            asm(INSTRUCTION " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};"                     \
                : "=r"(d.word[0]), "=r"(d.word[1])                                                 \
                : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[K / 4 - 2]), "r"(a.word[K / 4 - 1]),  \
                  "r"(b.word[0]), "r"(b.word[K / 8 - 1]), "r"(c.word[0]), "r"(c.word[1]));         \
        else                                                                                       \
            asm(INSTRUCTION " {%0, %1}, {%2, %3}, {%4}, {%5, %6};"                                 \
                : "=r"(d.word[0]), "=r"(d.word[1])                                                 \
                : "r"(a.word[0]), "r"(a.word[1]), "r"(b.word[0]), "r"(c.word[0]), "r"(c.word[1])); \
        return d;                                                                                  \
    }
#endif

#if __CUDA_ARCH__ >= 750
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", f16, f16, 8)
FAJIT_MMA_TO_F16("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", 8)
#endif
#if __CUDA_ARCH__ >= 800
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", f16, f16, 16)
FAJIT_MMA_TO_F16("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", bf16, bf16, 8)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", bf16, bf16, 16)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", tf32, tf32, 4)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", tf32, tf32, 8)
#endif
#if __CUDA_ARCH__ >= 890 &&                                                                        \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4))
#define FAJIT_HAS_FP8_MMA
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", fp8_e4m3, fp8_e4m3, 32)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", fp8_e4m3, fp8_e5m2, 32)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32", fp8_e5m2, fp8_e4m3, 32)
FAJIT_MMA_TO_F32("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", fp8_e5m2, fp8_e5m2, 32)
#endif
#undef FAJIT_MMA_TO_F32
#undef FAJIT_MMA_TO_F16

} // namespace fajit

#endif
