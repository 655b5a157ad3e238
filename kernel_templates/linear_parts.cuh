// How x and w become halves for SPLIT_F16: the launch before that of linear.cuh. S is a
// linear_shape, which says where they lie.
//
// A row is multiplied by the power of two that brings its largest element into [2^14, 2^15), so
// that the range of f16 does not matter. Of each element v of it,
//
//     high = f16(v)     low = f16((v - high) 2^11)     v = high + 2^-11 low, but for 2^-23 of it
//
// (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the
// FP32 theoretical peak performance", 2022). Elements below 2^-28 of the largest lose digits: what
// is lost of them is below 2^-50 of the largest. Infinity becomes infinity and NaN, NaN remains.
#ifndef FAJIT_LINEAR_PARTS_CUH
#define FAJIT_LINEAR_PARTS_CUH

#include "fajit/dtype.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// Powers of two, by the exponent as float32 has it in its bits.
inline constexpr unsigned PARTS_LARGEST = 127 + 14; // of the elements of a row, scaled
inline constexpr unsigned PARTS_SCALE_MOST =
    127 + 126; // so that its inverse is no smaller than normal
inline constexpr float PARTS_LOW_SCALE = 2048, PARTS_LOW_UNIT = 1 / PARTS_LOW_SCALE;

// A block of THREADS threads takes ROWS rows.
template <class S, int THREADS, int ROWS> struct linear_split_rows {
    using params = typename S::params;
    // A thread takes UNIT elements at a time, and keeps HELD units while it looks for the largest;
    // what a longer row has beyond them is read twice.
    static constexpr int UNIT = 8, HELD = 2;
    static constexpr int TEAM = THREADS / ROWS; // threads that share a row
    static_assert(THREADS % ROWS == 0 && TEAM % 32 == 0, "whole warps share a row");

    // One row of x or w.
    struct source {
        const float *from;
        int width;
        float *to; // its parts
    };

    static __device__ __forceinline__ source source_of(const params &p, i64 row)
    {
        const bool of_x = row < S::m_of(p);
        const linear_rows<const float> from = of_x ? p.x : p.w;
        const i64 at = of_x ? row : row - S::m_of(p);
        return {from.data + at * from.stride, of_x ? p.x_width : p.w_width,
                p.partial + row * S::parts_k(p)};
    }

    // Elements k to k + UNIT - 1; those that do not exist are zeros.
    static __device__ __forceinline__ void read(float (&to)[UNIT], const source &row, int k,
                                                int count)
    {
        if (row.width == TILE_COPY_WIDE && k + UNIT <= count) {
#pragma unroll
            for (int i = 0; i < UNIT; i += 4) {
                const chunk<16> four = load_constant<16>(row.from + k + i);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    to[i + e] = __uint_as_float(four.word[e]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            to[i] = k + i < count ? __uint_as_float(load_constant<4>(row.from + k + i).word[0]) : 0;
    }

    // The largest |x|, as bits. That may be infinity or NaN: the rest of the row is then lost, but
    // every sum of it is computed anew.
    static __device__ __forceinline__ unsigned largest_of(const float (&x)[UNIT], unsigned so_far)
    {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            so_far = max(so_far, __float_as_uint(x[i]) & 0x7fffffffu);
        return so_far;
    }

    // Of all threads of a team. All threads of the block call it.
    static __device__ __forceinline__ unsigned largest_of_team(unsigned mine)
    {
#pragma unroll
        for (int d = 16; d; d /= 2)
            mine = max(mine, __shfl_xor_sync(0xffffffffu, mine, d));
        if constexpr (TEAM > 32) {
            constexpr int WARPS = TEAM / 32;
            __shared__ unsigned of_warp[THREADS / 32];
            const int warp = static_cast<int>(threadIdx.x) / 32;
            if (threadIdx.x % 32 == 0)
                of_warp[warp] = mine;
            __syncthreads(); // before anybody reads what the warps have found
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                mine = max(mine, of_warp[warp / WARPS * WARPS + i]);
        }
        return mine;
    }

    static __device__ __forceinline__ void write(const source &row, int k, const float (&x)[UNIT],
                                                 float scale)
    {
        float high[UNIT], low[UNIT];
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            low[i] = __fmul_rn(x[i], scale);
        const chunk<16> upper = pack<f16, UNIT>(low);
        unpack<f16, UNIT>(upper, high);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            low[i] = __fmul_rn(__fsub_rn(low[i], high[i]), PARTS_LOW_SCALE);
        f16 *group = reinterpret_cast<f16 *>(row.to + k / S::TILE_K * S::TILE_K);
        store(group + k % S::TILE_K, upper);
        store(group + S::TILE_K + k % S::TILE_K, pack<f16, UNIT>(low));
    }

    static __device__ __forceinline__ void run(const params &p, int block)
    {
        const int count = S::k_of(p), end = S::parts_k(p);
        const i64 rows = static_cast<i64>(S::m_of(p)) + S::n_of(p);
        const i64 number = static_cast<i64>(block) * ROWS + threadIdx.x / TEAM;
        const bool exists = number < rows;
        const source row = source_of(p, exists ? number : 0);
        const int first = static_cast<int>(threadIdx.x) % TEAM * UNIT;
        constexpr int STEP = TEAM * UNIT;
        float held[HELD][UNIT], x[UNIT];
        unsigned largest = 0;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            read(held[i], row, first + i * STEP, count);
#pragma unroll
        for (int i = 0; i < HELD; i++)
            largest = largest_of(held[i], largest);
#pragma unroll 2
        for (int k = first + HELD * STEP; k < count; k += STEP) {
            read(x, row, k, count);
            largest = largest_of(x, largest);
        }
        largest = largest_of_team(largest);
        if (!exists)
            return;
        const unsigned exponent = min(127 + PARTS_LARGEST - (largest >> 23), PARTS_SCALE_MOST);
        const float scale = __uint_as_float(exponent << 23);
        if (first == 0)
            S::inverse_scales(p)[number] = __uint_as_float((2 * 127 - exponent) << 23);
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (first + i * STEP < end)
                write(row, first + i * STEP, held[i], scale);
#pragma unroll 2
        for (int k = first + HELD * STEP; k < end; k += STEP) {
            read(x, row, k, count);
            write(row, k, x, scale);
        }
    }
};

} // namespace fajit

#endif
