// The product of multiply.cuh's policies without tensor cores, in float32: each lane gathers the
// rows and columns of its elements from the lanes that hold them. Slow and right: for what an
// architecture has no instruction for. `product_policy<T>` is the policy for T that has one, else
// this.
#ifndef FAJIT_GATHERED_CUH
#define FAJIT_GATHERED_CUH

#include "fajit/dtype.cuh"
#include "fajit/multiply.cuh"
#include "fajit/sync.cuh"

namespace fajit {

template <class T> struct gathered {
    using element = T;
    static constexpr int steps = 1, instructions = 1, PER_WORD = 4 / sizeof(T);
    static constexpr bool short_chains = false;
    static_assert(sizeof(T) == 4 || sizeof(T) == 2, "float32, or what is 16 bits wide");
    struct a {
        step_a<T> part;
    };
    struct b {
        step_b<T> part;
    };

    static __device__ __forceinline__ a prepare(const step_a<T> (&x)[1])
    {
        return {x[0]};
    }
    static __device__ __forceinline__ b prepare(const step_b<T> (&x)[1])
    {
        return {x[0]};
    }

    // What lane `from` holds: one element, or two.
    static __device__ __forceinline__ void get(unsigned word, unsigned from, float (&to)[PER_WORD])
    {
        const unsigned x = __shfl_sync(0xffffffffu, word, from);
        if constexpr (PER_WORD == 1)
            to[0] = __uint_as_float(x);
        else
            unpack_pair(T{}, x, to[0], to[1]);
    }

    static __device__ __forceinline__ void add_part(int, const a &x, const b &y,
                                                    fragment_c<f32> &sum)
    {
        const unsigned lane = lane_index(), row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll 1 // a kernel holds many of these
        for (unsigned k = 0; k < 4; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float upper[PER_WORD], lower[PER_WORD], left[PER_WORD], right[PER_WORD];
                get(x.part.word[2 * half], row + k, upper);
                get(x.part.word[2 * half + 1], row + k, lower);
                get(y.part.word[half], column + k, left);
                get(y.part.word[half], column + 4 + k, right);
#pragma unroll
                for (int i = 0; i < PER_WORD; i++) {
                    sum.value[0] = __fmaf_rn(upper[i], left[i], sum.value[0]);
                    sum.value[1] = __fmaf_rn(upper[i], right[i], sum.value[1]);
                    sum.value[2] = __fmaf_rn(lower[i], left[i], sum.value[2]);
                    sum.value[3] = __fmaf_rn(lower[i], right[i], sum.value[3]);
                }
            }
        }
    }
};

template <class T> struct policy_for {
    using type = whole<T>;
};
#if __CUDA_ARCH__ >= 800
template <> struct policy_for<f32> {
    using type = split_tf32;
};
#else
template <> struct policy_for<f32> {
    using type = gathered<f32>;
};
template <> struct policy_for<bf16> {
    using type = gathered<bf16>;
};
#endif
template <class T> using product_policy = typename policy_for<T>::type;

} // namespace fajit

#endif
