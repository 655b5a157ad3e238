// A whole head in the registers of a group of neighbouring lanes, for what needs all of its
// elements: the RMS norm before a rotation.
//
// Each lane holds units of the rotated part (rotary.cuh) and accesses of V elements of the rest,
// both `lanes` apart. Where they do not fill the last round, lanes hold zeros.
#ifndef FAJIT_HEAD_LANES_CUH
#define FAJIT_HEAD_LANES_CUH

#include "fajit/rotary.cuh"

namespace fajit {

// The least power of two that is not below n, at most 32. Mirrored by fa__rope_lanes.
__host__ __device__ constexpr int lanes_for(int n)
{
    int lanes = 1;
    while (lanes < n && lanes < 32)
        lanes *= 2;
    return lanes;
}

template <class Element, int V, bool INTERLEAVED, int HEAD_DIM, int ROTARY_DIM> struct head_lanes {
    using work = pair_chunks<Element, V, INTERLEAVED>;
    static constexpr int pair_units = ROTARY_DIM / (2 * work::pairs);
    static constexpr int tail_units = (HEAD_DIM - ROTARY_DIM) / V;
    static constexpr int lanes = lanes_for(pair_units > tail_units ? pair_units : tail_units);
    static constexpr int pair_rounds = (pair_units + lanes - 1) / lanes;
    static constexpr int tail_rounds = (tail_units + lanes - 1) / lanes;
    static constexpr int tail_room = tail_rounds ? tail_rounds : 1; // C++ has no arrays of 0
    static constexpr int elements = pair_rounds * 2 * work::pairs + tail_rounds * V; // of a lane

    static __device__ __forceinline__ bool has_pair(int lane, int round)
    {
        return (round + 1) * lanes <= pair_units || lane + round * lanes < pair_units;
    }

    static __device__ __forceinline__ bool has_tail(int lane, int round)
    {
        return (round + 1) * lanes <= tail_units || lane + round * lanes < tail_units;
    }

    // Number of the unit that a lane holds; 0 where it holds none.
    static __device__ __forceinline__ int pair_unit(int lane, int round)
    {
        return has_pair(lane, round) ? lane + round * lanes : 0;
    }

    // Elements from the beginning of the head to its access of the rest.
    static __device__ __forceinline__ int tail_offset(int lane, int round)
    {
        return ROTARY_DIM + (lane + round * lanes) * V;
    }

    // As in memory.
    struct chunks {
        static constexpr int bytes = V * static_cast<int>(sizeof(Element));
        work pair[pair_rounds];
        chunk<bytes> tail[tail_room];

        template <bool CONSTANT> __device__ __forceinline__ void load(const Element *from, int lane)
        {
#pragma unroll
            for (int i = 0; i < pair_rounds; i++) {
                pair[i] = work{};
                if (has_pair(lane, i))
                    pair[i].template load<CONSTANT>(from + work::offset(pair_unit(lane, i)),
                                                    work::distance(ROTARY_DIM));
            }
#pragma unroll
            for (int i = 0; i < tail_rounds; i++) {
                const Element *at = from + tail_offset(lane, i);
                tail[i] = chunk<bytes>{};
                if (has_tail(lane, i))
                    tail[i] = CONSTANT ? load_constant<bytes>(at) : fajit::load<bytes>(at);
            }
        }

        __device__ __forceinline__ void store(Element *to, int lane) const
        {
#pragma unroll
            for (int i = 0; i < pair_rounds; i++)
                if (has_pair(lane, i))
                    pair[i].store(to + work::offset(pair_unit(lane, i)),
                                  work::distance(ROTARY_DIM));
#pragma unroll
            for (int i = 0; i < tail_rounds; i++)
                if (has_tail(lane, i))
                    fajit::store(to + tail_offset(lane, i), tail[i]);
        }
    };

    // As float32.
    typename work::values pair[pair_rounds];
    float tail[tail_room][V];

    __device__ __forceinline__ void unpack_from(const chunks &from)
    {
#pragma unroll
        for (int i = 0; i < pair_rounds; i++)
            pair[i] = from.pair[i].unpacked();
#pragma unroll
        for (int i = 0; i < tail_rounds; i++)
            unpack<Element, V>(from.tail[i], tail[i]);
    }

    __device__ __forceinline__ void pack_into(chunks &to) const
    {
#pragma unroll
        for (int i = 0; i < pair_rounds; i++)
            to.pair[i].take(pair[i]);
#pragma unroll
        for (int i = 0; i < tail_rounds; i++)
            to.tail[i] = pack<Element, V>(tail[i]);
    }

    // offset + weight of the elements that load gives the lane.
    template <class Weight>
    __device__ __forceinline__ void load_weights(const Weight *from, float offset, int lane)
    {
        const auto read = [from, offset](int at, float(&to)[V]) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                float x[1];
                unpack<Weight, 1>(load_constant<sizeof(Weight)>(from + at + k), x);
                to[k] = __fadd_rn(offset, x[0]);
            }
        };
#pragma unroll
        for (int i = 0; i < pair_rounds; i++)
#pragma unroll
            for (int c = 0; c < work::chunks; c++)
                read(work::offset(pair_unit(lane, i)) + c * work::distance(ROTARY_DIM),
                     pair[i].x[c]);
#pragma unroll
        for (int i = 0; i < tail_rounds; i++)
            read(has_tail(lane, i) ? tail_offset(lane, i) : 0, tail[i]);
    }

    // x / sqrt(mean(x^2) + eps) * weight, the mean over the head.
    __device__ __forceinline__ void normalize(const head_lanes &weights, float eps)
    {
        constexpr unsigned all = lanes == 32 ? ~0u : (1u << lanes) - 1;
        const unsigned group = all << (threadIdx.x % 32 & ~(lanes - 1)); // others may have ended
        float sum = 0;
        for_each(weights, [&sum](float &x, float) { sum = fmaf(x, x, sum); });
#pragma unroll
        for (int d = lanes / 2; d > 0; d /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(group, sum, d));
        const float mean = __fmul_rn(sum, static_cast<float>(1.0 / HEAD_DIM));
        const float by = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
        for_each(weights,
                 [by](float &x, float weight) { x = __fmul_rn(__fmul_rn(x, by), weight); });
    }

    __device__ __forceinline__ void rotate(const angles<work::pairs> (&by)[pair_rounds])
    {
#pragma unroll
        for (int i = 0; i < pair_rounds; i++)
            pair[i].rotate(by[i]);
    }

    // f(element, the same of `other`) for all that the lane holds.
    template <class F> __device__ __forceinline__ void for_each(const head_lanes &other, F f)
    {
#pragma unroll
        for (int i = 0; i < pair_rounds; i++)
#pragma unroll
            for (int c = 0; c < work::chunks; c++)
#pragma unroll
                for (int k = 0; k < V; k++)
                    f(pair[i].x[c][k], other.pair[i].x[c][k]);
#pragma unroll
        for (int i = 0; i < tail_rounds; i++)
#pragma unroll
            for (int k = 0; k < V; k++)
                f(tail[i][k], other.tail[i][k]);
    }
};

} // namespace fajit

#endif
