// What lowrank_kv.cu does beside its products: the norm of a latent, and the rotary part. S is a
// lowrank_shape.
#ifndef FAJIT_LOWRANK_FINISH_CUH
#define FAJIT_LOWRANK_FINISH_CUH

#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"
#include "fajit/lowrank_shape.cuh"
#include "fajit/order.cuh"
#include "fajit/rotary.cuh"
#include "fajit/sync.cuh"

namespace fajit {

// --- the norm ------------------------------------------------------------------------------------

template <class S>
__device__ __forceinline__ float lowrank_norm_weight(const typename S::params &p, int column)
{
    using Weight = typename S::NormWeight;
    float x[1];
    unpack<Weight, 1>(load_constant<sizeof(Weight)>(static_cast<const Weight *>(p.norm) + column),
                      x);
    return x[0];
}

// x / sqrt(mean(x^2) + eps) * weight, of a row in shared or global memory, by a warp.
template <class S>
__device__ __forceinline__ void lowrank_normalize(const typename S::params &p,
                                                  typename S::Element *x)
{
    const int lane = static_cast<int>(lane_index());
    float sum = 0;
    for (int c = lane; c < S::RANK; c += 32)
        sum = fmaf(to_float(x[c]), to_float(x[c]), sum);
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
    const float mean = __fmul_rn(sum, static_cast<float>(1.0 / S::RANK));
    const float by = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, static_cast<float>(S::NORM_EPS))));
    for (int c = lane; c < S::RANK; c += 32)
        x[c] = from_float<typename S::Element>(
            __fmul_rn(__fmul_rn(to_float(x[c]), by), lowrank_norm_weight<S>(p, c)));
}

// A launch of its own: a warp to a token, whose latent the launch before wrote.
template <class S>
__device__ __forceinline__ void lowrank_norm_block(const typename S::params &p,
                                                   unsigned char *shared)
{
    token_row *rows = reinterpret_cast<token_row *>(shared);
    wait_for_predecessor(); // it has written the latent
    let_successor_start();
    S::template find_rows<LOWRANK_WARPS>(p, static_cast<i64>(blockIdx.x) * LOWRANK_WARPS, false,
                                         rows);
    const token_row &to = rows[threadIdx.x / 32];
    if (to.is_written())
        lowrank_normalize<S>(p, p.latent_out.at(to.outer, to.entry));
}

// --- the rotary part -----------------------------------------------------------------------------

template <class S> struct lowrank_rope {
    using Element = typename S::Element;
    using params = typename S::params;
    using pairs = pair_chunks<Element, 1, S::ROTATION == 2>;
    static constexpr int COUNT = S::ROPE_DIM ? (S::ROPE_DIM + 1) / 2 : 1;

    static __device__ __forceinline__ angles<1> angles_of(const params &p, i64 at, int pair)
    {
        using rule =
            baked_rule<S::ROPE_DIM / 2 * 2, S::SCALING, S::LOG2_BASE_Q54, S::INVERSE_FACTOR_Q64,
                       S::RAMP_LOW, S::RAMP_HIGH, S::RAMP_STEP, S::RAMP_SHIFT>;
        angles<1> by = source_angles<S::ANGLES, S::RULE_BAKED, rule, 1>(p, S::ROPE_DIM,
                                                                        one_position{at}, pair);
        adjust<false>(by, static_cast<float>(S::ATTENTION_FACTOR));
        return by;
    }

    // A pair of one token, turned: to its place, or to that of each head.
    static __device__ __forceinline__ void put(const params &p, const token_row &x, int pair)
    {
        const int distance = S::ROTATION ? pairs::distance(S::ROPE_DIM) : 1;
        const int offset = S::ROTATION ? pairs::offset(pair) : 2 * pair;
        const bool both = S::ROTATION != 0 || offset + 1 < S::ROPE_DIM;
        const Element *from = p.rope.at(x.batch, x.token) + offset;
        pairs value;
        value.x[0] = load_constant<sizeof(Element)>(from);
        value.x[1] = both ? load_constant<sizeof(Element)>(from + distance) : value.x[0];
        if constexpr (S::ROTATION != 0)
            value.rotate(angles_of(p, x.position, pair));
        const int copies = S::ROPE_ONCE ? 1 : S::heads_of(p);
        for (int h = 0; h < copies; h++) {
            Element *to = S::ROPE_ONCE ? p.rope_out.at(x.outer, x.entry)
                                       : p.out[0].at(x.outer, h, x.entry) + S::head_dim_of(p, 0);
            store(to + offset, value.x[0]);
            if (both)
                store(to + offset + distance, value.x[1]);
        }
    }

    // Of a block's tokens.
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void put_all(const params &p, const token_row *rows)
    {
        for (int i = threadIdx.x; i < ROWS * COUNT; i += THREADS) {
            const token_row &x = rows[i / COUNT];
            if (x.is_written())
                put(p, x, i % COUNT);
        }
    }
};

} // namespace fajit

#endif
