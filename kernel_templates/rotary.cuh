// Pairs of one head in registers, and their rotation:
//
//     y[a] = x[a] cos - x[b] sin,   y[b] = x[b] cos + x[a] sin
//     (a, b) = (j, j + R/2), or (2j, 2j + 1) when INTERLEAVED;  R = rotary_dim
#ifndef FAJIT_ROTARY_CUH
#define FAJIT_ROTARY_CUH

#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"

namespace fajit {

// Both members of each pair that a thread holds: HALF takes V elements of the first half and V of
// the second; INTERLEAVED takes V neighbours in one access, or two single ones.
template <class Element, int V, bool INTERLEAVED> struct pair_chunks {
    static constexpr int chunks = INTERLEAVED && V > 1 ? 1 : 2;
    static constexpr int pairs = INTERLEAVED && V > 1 ? V / 2 : V;
    static constexpr int bytes = V * static_cast<int>(sizeof(Element));

    // The same as float32.
    struct values {
        float x[chunks][V];

        __device__ __forceinline__ float &first(int i)
        {
            return chunks == 2 ? x[0][i] : x[0][2 * i];
        }

        __device__ __forceinline__ float &second(int i)
        {
            return chunks == 2 ? x[chunks - 1][i] : x[0][2 * i + 1];
        }

        __device__ __forceinline__ void rotate(const angles<pairs> &by)
        {
#pragma unroll
            for (int i = 0; i < pairs; i++) {
                float &a = first(i), &b = second(i);
                // Spelled out, so that every instance rounds alike: in place equals out of place.
                const float rotated = fmaf(a, by.cos[i], -__fmul_rn(b, by.sin[i]));
                b = fmaf(b, by.cos[i], __fmul_rn(a, by.sin[i]));
                a = rotated;
            }
        }
    };

    chunk<bytes> x[chunks];

    // Elements between the two accesses.
    static __device__ __forceinline__ int distance(int rotary_dim)
    {
        return INTERLEAVED ? 1 : rotary_dim / 2;
    }

    // Elements from the beginning of the head to the thread's unit number `index`.
    static __device__ __forceinline__ int offset(int index)
    {
        return index * (INTERLEAVED ? 2 * pairs : V);
    }

    // CONSTANT: nobody writes this memory while the kernel runs.
    template <bool CONSTANT> __device__ __forceinline__ void load(const Element *from, int distance)
    {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            x[c] = CONSTANT ? load_constant<bytes>(from + c * distance)
                            : fajit::load<bytes>(from + c * distance);
    }

    __device__ __forceinline__ void store(Element *to, int distance) const
    {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            fajit::store(to + c * distance, x[c]);
    }

    __device__ __forceinline__ values unpacked() const
    {
        values to;
#pragma unroll
        for (int c = 0; c < chunks; c++)
            unpack<Element, V>(x[c], to.x[c]);
        return to;
    }

    __device__ __forceinline__ void take(const values &from)
    {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            x[c] = pack<Element, V>(from.x[c]);
    }

    __device__ __forceinline__ void rotate(const angles<pairs> &by)
    {
        values y = unpacked();
        y.rotate(by);
        take(y);
    }
};

} // namespace fajit

#endif
