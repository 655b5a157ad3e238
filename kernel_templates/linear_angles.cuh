// The angles by which linear.cuh rotates heads. S is a linear_shape.
//
// A brief kernel would wait for them: a small tile makes them ahead, once for all heads of a row,
// and keeps them in shared memory, where the kernel before this one may still run meanwhile (sm_90
// and later). Computed angles come before anything else, those that are read behind the first
// loads. A large tile, which would keep too many, makes them when it needs them.
#ifndef FAJIT_LINEAR_ANGLES_CUH
#define FAJIT_LINEAR_ANGLES_CUH

#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/order.cuh"
#include "fajit/positions.cuh"
#include "fajit/shared.cuh"

namespace fajit {

// --- the position of a row -----------------------------------------------------------------------

// Seldom a division: most rows of a tile are of the sequence that its first row is of.
template <class Params> __device__ __forceinline__ int position_of(const Params &p, int at)
{
    return p.seqlen && at >= p.seqlen ? at % p.seqlen : at;
}

// Of row `row` of the tile, which exists.
template <class S>
__device__ __forceinline__ i64 linear_position(const typename S::params &p, const linear_place &b,
                                               int row)
{
    if (p.positions)
        return load_index<S::POSITIONS_WIDE>(p.positions, b.m + row);
    return static_cast<i64>(p.position_offset) + position_of(p, b.position + row);
}

// --- angles --------------------------------------------------------------------------------------

// Of PAIRS neighbouring pairs of a head, from number `pair` on.
template <class S, int PAIRS>
__device__ __forceinline__ angles<PAIRS> linear_angles(const typename S::params &p, i64 position,
                                                       int pair)
{
    using rule = baked_rule<S::ROTARY_DIM, S::SCALING, S::LOG2_BASE_Q54, S::INVERSE_FACTOR_Q64,
                            S::RAMP_LOW, S::RAMP_HIGH, S::RAMP_STEP, S::RAMP_SHIFT>;
    angles<PAIRS> by = source_angles<S::ANGLES, S::RULE_BAKED, rule, PAIRS>(
        p, S::ROTARY_DIM, one_position{position}, pair);
    adjust<false>(by, static_cast<float>(S::ATTENTION_FACTOR));
    return by;
}

// --- angles that are kept ------------------------------------------------------------------------

// In both rotations a pair is two neighbouring columns of a tile.
template <class S> struct linear_kept_angles {
    static constexpr int PAIRS = S::KEPT_PAIRS; // of a row
    // Whether they come before the first loads.
    static constexpr bool EARLY = S::ANGLES == ANGLES_COMPUTED;
    // Neighbours that a thread makes at once, as they divide what there is, so that they are of one
    // head: four at most. Those that are read may be aligned to one alone.
    static constexpr int SHARE = S::TILE_M * PAIRS / S::THREADS,
                         DIVIDENDS = PAIRS | S::HEAD / 2 | S::ROTARY_DIM / 2 | SHARE | 4;
    static constexpr int RUN = EARLY ? DIVIDENDS & -DIVIDENDS : 1;

    float *cos, *sin; // [TILE_M, PAIRS] each

    __device__ __forceinline__ explicit linear_kept_angles(const typename S::memory &shared)
        : cos(shared.kept_angles()), sin(cos + S::TILE_M * PAIRS)
    {
    }

    // All of the tile's, by all threads. They are there behind the next barrier of the block.
    __device__ __forceinline__ void make(const typename S::params &p, const linear_place &b) const
    {
        if (!S::has_rotated_heads(p, b.n))
            return;
        if (EARLY && S::WAIT != LINEAR_WAITS_NOT && p.positions)
            wait_for_predecessor(); // they may be its work
#pragma unroll 1
        for (int i = threadIdx.x * RUN; i < S::TILE_M * PAIRS; i += S::THREADS * RUN) {
            const int row = i / PAIRS, at = (b.n + i % PAIRS * 2) % S::HEAD;
            if (b.m + row >= S::m_of(p) || at >= S::ROTARY_DIM)
                continue;
            const angles<RUN> by = linear_angles<S, RUN>(p, linear_position<S>(p, b, row), at / 2);
            put(cos + i, by.cos);
            put(sin + i, by.sin);
        }
    }

    // Of COUNT neighbouring pairs, the first of which is columns `column` and the next one.
    template <int COUNT> __device__ __forceinline__ angles<COUNT> read(int row, int column) const
    {
        const int first = row * PAIRS + column / 2 % PAIRS;
        angles<COUNT> by;
        get(by.cos, cos + first);
        get(by.sin, sin + first);
        return by;
    }

  private:
    template <int COUNT>
    static __device__ __forceinline__ void get(float (&to)[COUNT], const float *from)
    {
        constexpr int STEP = COUNT < 4 ? COUNT : 4;
        using part = shared_piece<STEP * 4>;
#pragma unroll
        for (int i = 0; i < COUNT; i += STEP) {
            const part x = *reinterpret_cast<const part *>(from + i);
#pragma unroll
            for (int k = 0; k < STEP; k++)
                to[i + k] = __uint_as_float(x.word[k]);
        }
    }

    static __device__ __forceinline__ void put(float *to, const float (&from)[RUN])
    {
        using part = shared_piece<RUN * 4>;
        part x;
#pragma unroll
        for (int k = 0; k < RUN; k++)
            x.word[k] = __float_as_uint(from[k]);
        *reinterpret_cast<part *>(to) = x;
    }
};

// Of a tile that keeps them. EARLY: before the first loads; both times it is called.
template <class S, bool EARLY>
__device__ __forceinline__ void linear_keep_angles(const typename S::params &p,
                                                   const linear_place &b,
                                                   const typename S::memory &shared)
{
    if constexpr (S::KEEPS_ANGLES)
        if constexpr (linear_kept_angles<S>::EARLY == EARLY)
            linear_kept_angles<S>(shared).make(p, b);
}

} // namespace fajit

#endif
