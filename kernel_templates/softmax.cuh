// Softmax over keys that come tile by tile: Milakov and Gimelshein, "Online normalizer calculation
// for softmax" (2018). The state is that of the two rows of which a lane holds scores in
// fragment_c: row 0 in values 0 and 1, row 1 in values 2 and 3; the four lanes of a row share it.
//
// Exponents are of base 2. The scores' scale and log2 e are one factor, and every exponent is
// rounded once, as scale * score - shift with one and the same rounded shift, so that terms of
// large scores are as accurate among each other as those of small ones.
#ifndef FAJIT_SOFTMAX_CUH
#define FAJIT_SOFTMAX_CUH

#include "fajit/approx.cuh"
#include "fajit/mma.cuh"

namespace fajit {

__device__ __forceinline__ float minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

struct online_softmax {
    float shift[2]; // scale times the largest score so far; minus infinity: none seen
    float sum[2];   // of what this lane has seen, less the shift

    __device__ __forceinline__ void init()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            shift[r] = minus_infinity();
            sum[r] = 0.0f;
        }
    }

    // Takes one more tile. Scores become their exponentials; what was accumulated before must be
    // multiplied by `factor`.
    template <int TILES>
    __device__ __forceinline__ void update(fragment_c<f32> (&score)[TILES], float scale,
                                           float (&factor)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = score[0].value[2 * r];
#pragma unroll
            for (int n = 0; n < TILES; n++)
                largest = fmaxf(largest, fmaxf(score[n].value[2 * r], score[n].value[2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float next = fmaxf(shift[r], __fmul_rn(largest, scale));
            const float anchor = anchored(next);
            factor[r] = exp2_approx(shift[r] - anchor);
            shift[r] = next;
            float part[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = score[n].value[2 * r + i];
                    x = exp2_approx(__fmaf_rn(x, scale, -anchor));
                    part[i] += x;
                }
            sum[r] = __fmaf_rn(sum[r], factor[r], part[0] + part[1]);
        }
    }

    // The sums of all four lanes, in each of them.
    __device__ __forceinline__ void reduce()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        }
    }

    // Takes what another warp found for the same rows. What was accumulated here must be multiplied
    // by `own`, what was there by `theirs`.
    __device__ __forceinline__ void merge(const online_softmax &other, float (&own)[2],
                                          float (&theirs)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float next = fmaxf(shift[r], other.shift[r]), anchor = anchored(next);
            own[r] = exp2_approx(shift[r] - anchor);
            theirs[r] = exp2_approx(other.shift[r] - anchor);
            shift[r] = next;
            sum[r] = sum[r] * own[r] + other.sum[r] * theirs[r];
        }
    }

    // What the accumulated must be multiplied by: 0 in a row that has seen nothing. After reduce.
    __device__ __forceinline__ float finish(int r) const
    {
        return sum[r] == 0.0f ? 0.0f : __fdiv_rn(1.0f, sum[r]);
    }

    // Natural logarithm of the sum of the exponentials. After reduce.
    __device__ __forceinline__ float log_sum(int r) const
    {
        return sum[r] == 0.0f ? minus_infinity()
                              : (shift[r] + log2_approx(sum[r])) * 0.693147180559945309f;
    }

  private:
    // Nothing seen yet: any number does, and a finite one gives exponentials of zero.
    static __device__ __forceinline__ float anchored(float x)
    {
        return x == minus_infinity() ? 0.0f : x;
    }
};

} // namespace fajit

#endif
