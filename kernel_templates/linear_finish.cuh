// How linear.cuh finishes a tile's sums, which lie in shared memory: scales, bias, activation,
// rotation, residual, and the store. S is a linear_shape.
//
// Each thread finishes neighbours. With ROTATION = HALF the tile's columns are in another order
// than y's, (0, R/2, 1, R/2 + 1, ...) of each head: pairs are then neighbours, whatever tile and
// head_dim are.
#ifndef FAJIT_LINEAR_FINISH_CUH
#define FAJIT_LINEAR_FINISH_CUH

#include "fajit/dtype.cuh"
#include "fajit/linear_angles.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/positions.cuh"
#include "fajit/rotary.cuh"

namespace fajit {

// --- activation ----------------------------------------------------------------------------------

template <int ACTIVATION> __device__ __forceinline__ float linear_activated(float x)
{
    if constexpr (ACTIVATION == LINEAR_SILU)
        return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
    else if constexpr (ACTIVATION == LINEAR_GELU) // erfc keeps the digits of the small left side
        return __fmul_rn(__fmul_rn(0.5f, x), erfcf(__fmul_rn(-0.707106781f, x)));
    else if constexpr (ACTIVATION == LINEAR_GELU_TANH) { // (1 + tanh u) / 2 = 1 / (1 + exp(-2 u))
        const float u = __fmul_rn(x, fmaf(__fmul_rn(x, x), 0.0713548163f, 1.59576912f));
        return __fdiv_rn(x, __fadd_rn(1.0f, expf(-u)));
    } else
        return x;
}

// --- where a row goes ----------------------------------------------------------------------------

// `row` of the outputs, unless there is none.
struct linear_destination {
    bool exists;
    i64 row, position;
};

// Of row `row` of the tile. COUNTS: once for each row, so that a wrong one is counted once.
template <class S>
__device__ __forceinline__ linear_destination destination_of(const typename S::params &p,
                                                             const linear_place &b, int row,
                                                             bool counts)
{
    const int m = b.m + row;
    linear_destination to{true, m, 0};
    if constexpr (S::MAPPED_ROWS) {
        to.row = load_index<S::ROWS_WIDE>(p.row_of, m);
        to.exists = to.row >= 0 && to.row < p.row_count;
        if (!to.exists && to.row != -1 && counts && p.errors)
            atomicAdd(p.errors, 1u);
    }
    if constexpr (S::ROTATES && !S::KEEPS_ANGLES)
        to.position = linear_position<S>(p, b, row);
    return to;
}

// --- a thread's share ----------------------------------------------------------------------------

// Neighbours in the tile that one thread finishes: V of them, or two runs of V that are far apart
// in y when they are the halves of pairs.
template <class S, int V> struct linear_unit {
    using Output = typename S::Output;
    using params = typename S::params;
    using memory = typename S::memory;
    using pairs = pair_chunks<Output, V, S::INTERLEAVED>;
    static constexpr int runs = S::HALF || (S::INTERLEAVED && V == 1) ? 2 : 1, columns = runs * V;
    static constexpr int bytes = V * static_cast<int>(sizeof(Output));

    float x[runs][V];
    int n[runs]; // column of y where each run begins
    bool rotated;

    // The unit's sums. Lanes read neighbouring units: where these are 32 bytes, every other four
    // lanes read the upper half first, so that 8 lanes never meet in a bank.
    static __device__ __forceinline__ void read(float (&to)[columns], const memory &from, int row,
                                                int column)
    {
        constexpr int STEP = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
        const int turn = columns == 8 && threadIdx.x / 4 % 2 ? 4 : 0;
        float sum[columns];
#pragma unroll
        for (int i = 0; i < columns; i += STEP) {
            const chunk<STEP * 4> four =
                *reinterpret_cast<const chunk<STEP * 4> *>(from.sum(row, column + (i ^ turn)));
#pragma unroll
            for (int e = 0; e < STEP; e++)
                sum[i + e] = __uint_as_float(four.word[e]);
        }
#pragma unroll
        for (int i = 0; i < columns; i++)
            to[i] = turn ? sum[columns == 8 ? i ^ 4 : i] : sum[i];
    }

    // In accesses of 16 bytes at most.
    template <class T>
    static __device__ __forceinline__ void load_run(const T *from, float (&to)[V])
    {
        constexpr int MOST = 16 / static_cast<int>(sizeof(T)), STEP = V < MOST ? V : MOST;
#pragma unroll
        for (int i = 0; i < V; i += STEP) {
            float part[STEP];
            unpack<T, STEP>(load_constant<STEP * sizeof(T)>(from + i), part);
#pragma unroll
            for (int e = 0; e < STEP; e++)
                to[i + e] = part[e];
        }
    }

    // `row` and `column` in the tile; the latter is column n_in_tiles of all tiles.
    __device__ __forceinline__ linear_unit(const params &p, const memory &from, int row, int column,
                                           int n_in_tiles)
    {
        float sums[columns];
        read(sums, from, row, column);
        rotated = S::is_rotated(p, n_in_tiles);
        const bool interwoven = S::HALF && rotated;
#pragma unroll
        for (int r = 0; r < runs; r++) {
            n[r] = interwoven ? S::column_of(p, n_in_tiles + r) : n_in_tiles + r * V;
#pragma unroll
            for (int i = 0; i < V; i++)
                x[r][i] = interwoven ? sums[(runs * i + r) % columns] : sums[r * V + i];
        }
    }

    // Scales, bias and activation, of row m.
    __device__ __forceinline__ void apply(const params &p, int m)
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (n[r] >= S::n_of(p))
                continue;
            float addend[V] = {};
            if constexpr (S::BIAS)
                load_run(p.bias + n[r], addend);
#pragma unroll
            for (int i = 0; i < V; i++) {
                if constexpr (S::SCALES == LINEAR_SCALE_TENSOR)
                    x[r][i] = __fmul_rn(x[r][i], __fmul_rn(p.x_scale[0], p.w_scale[0]));
                if constexpr (S::SCALES == LINEAR_SCALE_ROW)
                    x[r][i] = __fmul_rn(x[r][i], __fmul_rn(p.x_scale[m], p.w_scale[n[r] + i]));
                if constexpr (S::BIAS)
                    x[r][i] = __fadd_rn(x[r][i], addend[i]);
                x[r][i] = linear_activated<S::ACTIVATION>(x[r][i]);
            }
        }
    }

    // Of row `row` and column `column` of the tile: kept in `from`, or made of `position`.
    __device__ __forceinline__ angles<pairs::pairs>
    angles_of(const params &p, const memory &from, int row, int column, i64 position) const
    {
        if constexpr (S::KEEPS_ANGLES)
            return linear_kept_angles<S>(from).template read<pairs::pairs>(row, column);
        else
            return linear_angles<S, pairs::pairs>(p, position, n[0] % S::HEAD / (S::HALF ? 1 : 2));
    }

    __device__ __forceinline__ void rotate(const angles<pairs::pairs> &by)
    {
        typename pairs::values both;
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                both.x[r][i] = x[r][i];
        both.rotate(by);
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                x[r][i] = both.x[r][i];
    }

    // Where column n of a row of the outputs lies.
    static __device__ __forceinline__ Output *place_of(const params &p, i64 row, int n)
    {
        if (S::SPLIT_2 && n >= S::SPLIT_2)
            return p.y[2].data + row * p.y[2].stride + (n - S::SPLIT_2);
        if (S::SPLIT_1 && n >= S::SPLIT_1)
            return p.y[1].data + row * p.y[1].stride + (n - S::SPLIT_1);
        Output *place = p.y[0].data + row * p.y[0].stride + n;
        if constexpr (S::Y_JUMPS)
            place += p.y_jumps.before(static_cast<int>(row)) + p.y_heads.before(n);
        return place;
    }

    // Adds row m of the residual, and writes row `row` of the outputs.
    __device__ __forceinline__ void store(const params &p, int m, i64 row)
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (n[r] >= S::n_of(p))
                continue;
            if constexpr (S::RESIDUAL) {
                float other[V];
                unpack<Output, V>(load<bytes>(p.residual.data + m * p.residual.stride + n[r]),
                                  other);
#pragma unroll
                for (int i = 0; i < V; i++)
                    x[r][i] = __fadd_rn(x[r][i], other[i]);
            }
            fajit::store(place_of(p, row, n[r]), pack<Output, V>(x[r]));
        }
    }
};

// --- all of a tile -------------------------------------------------------------------------------

// In units of V.
template <class S, int V>
__device__ __forceinline__ void linear_finish(const typename S::params &p, const linear_place &b,
                                              const typename S::memory &shared)
{
    using unit = linear_unit<S, V>;
    constexpr int UNITS = S::TILE_N / unit::columns;
    static_assert(S::TILE_N % unit::columns == 0, "units share a row evenly");
#pragma unroll 1
    for (int i = threadIdx.x; i < S::TILE_M * UNITS; i += S::THREADS) {
        const int row = i / UNITS, column = i % UNITS * unit::columns;
        const int m = b.m + row, n = b.n + column;
        if (m >= S::m_of(p) || n >= S::n_of(p))
            continue;
        const linear_destination to = destination_of<S>(p, b, row, n == 0);
        if (!to.exists)
            continue;
        unit mine(p, shared, row, column, n);
        mine.apply(p, m);
        if constexpr (S::ROTATES)
            if (mine.rotated)
                mine.rotate(mine.angles_of(p, shared, row, column, to.position));
        mine.store(p, m, to.row);
    }
}

} // namespace fajit

#endif
