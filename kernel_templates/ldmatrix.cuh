// 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
//
// Lane l holds of each matrix, in one register, elements 2 (l % 4) (low half) and 2 (l % 4) + 1 of
// row l / 4. Row r of matrix m is the 16 bytes at the address that lane 8 m + r gives, a multiple
// of 16: a pointer, or for ldmatrix what shared_place::behind returns. All 32 lanes call these
// together, and on sm_75 every lane gives a valid address, however few matrices there are. They
// order nothing: what other lanes wrote needs a barrier or __syncwarp.
#ifndef FAJIT_LDMATRIX_CUH
#define FAJIT_LDMATRIX_CUH

#include "fajit/place.cuh"
#include "fajit/shared.cuh"

namespace fajit {

#ifdef FAJIT_EMULATED
#define FAJIT_LDMATRIX(NAME, TRANSPOSED)                                                           \
    template <int COUNT>                                                                           \
    __device__ __forceinline__ void NAME(unsigned(&to)[COUNT], const void *row,                    \
                                         place at = place::here())                                 \
    {                                                                                              \
        static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "1, 2 or 4 matrices");               \
        fajit_emu::load_matrices<COUNT, sizeof TRANSPOSED != 1>(to, row, at.site(#NAME));          \
    }
#define FAJIT_STMATRIX(NAME, TRANSPOSED)                                                           \
    template <int COUNT>                                                                           \
    __device__ __forceinline__ void NAME(void *row, const unsigned(&from)[COUNT],                  \
                                         place at = place::here())                                 \
    {                                                                                              \
        static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "1, 2 or 4 matrices");               \
        static_assert(__CUDA_ARCH__ >= 900 || COUNT == 0, "stmatrix needs sm_90 or later");        \
        fajit_emu::store_matrices<COUNT, sizeof TRANSPOSED != 1>(row, from, at.site(#NAME));       \
    }
#else
#define FAJIT_LDMATRIX(NAME, TRANSPOSED)                                                           \
    template <int COUNT>                                                                           \
    __device__ __forceinline__ void NAME(unsigned(&to)[COUNT], unsigned address,                   \
                                         place = place::here())                                    \
    {                                                                                              \
        static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "1, 2 or 4 matrices");               \
        if constexpr (COUNT == 1)                                                                  \
            asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANSPOSED ".shared.b16 {%0}, [%1];"      \
                         : "=r"(to[0])                                                             \
                         : "r"(address)                                                            \
                         : "memory");                                                              \
        else if constexpr (COUNT == 2)                                                             \
            asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANSPOSED ".shared.b16 {%0, %1}, [%2];"  \
                         : "=r"(to[0]), "=r"(to[1])                                                \
                         : "r"(address)                                                            \
                         : "memory");                                                              \
        else                                                                                       \
            asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANSPOSED                                \
                         ".shared.b16 {%0, %1, %2, %3}, [%4];"                                     \
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                      \
                         : "r"(address)                                                            \
                         : "memory");                                                              \
    }                                                                                              \
    template <int COUNT>                                                                           \
    __device__ __forceinline__ void NAME(unsigned(&to)[COUNT], const void *row,                    \
                                         place at = place::here())                                 \
    {                                                                                              \
        NAME(to, shared_address(row), at);                                                         \
    }
#define FAJIT_STMATRIX(NAME, TRANSPOSED)                                                           \
    template <int COUNT>                                                                           \
    __device__ __forceinline__ void NAME(void *row, const unsigned(&from)[COUNT],                  \
                                         place = place::here())                                    \
    {                                                                                              \
        static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "1, 2 or 4 matrices");               \
        static_assert(__CUDA_ARCH__ >= 900 || COUNT == 0, "stmatrix needs sm_90 or later");        \
        const unsigned address = shared_address(row);                                              \
        if constexpr (COUNT == 1)                                                                  \
            asm volatile("stmatrix.sync.aligned.m8n8.x1" TRANSPOSED                                \
                         ".shared.b16 [%0], {%1};" ::"r"(address),                                 \
                         "r"(from[0])                                                              \
                         : "memory");                                                              \
        else if constexpr (COUNT == 2)                                                             \
            asm volatile("stmatrix.sync.aligned.m8n8.x2" TRANSPOSED                                \
                         ".shared.b16 [%0], {%1, %2};" ::"r"(address),                             \
                         "r"(from[0]), "r"(from[1])                                                \
                         : "memory");                                                              \
        else                                                                                       \
            asm volatile("stmatrix.sync.aligned.m8n8.x4" TRANSPOSED                                \
                         ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),                     \
                         "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])                    \
                         : "memory");                                                              \
    }
#endif

FAJIT_LDMATRIX(ldmatrix, "")
FAJIT_STMATRIX(stmatrix, "")
// As if each matrix in memory were transposed: the lane holds elements of column l / 4.
FAJIT_LDMATRIX(ldmatrix_trans, ".trans")
FAJIT_STMATRIX(stmatrix_trans, ".trans")
#undef FAJIT_LDMATRIX
#undef FAJIT_STMATRIX

} // namespace fajit

#endif
