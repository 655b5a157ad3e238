// How a tile's sums, which lie in shared memory, become outputs. linear_each_unit shares them out
// among the threads; linear_finish is what linear.cuh makes of them: scales, bias, activation,
// rotation, residual, and the store. S is a linear_shape.
//
// A thread finishes the same few neighbouring columns in every row that it has. With ROTATION = HALF
// the tile's columns are in another order than y's, (0, R/2, 1, R/2 + 1, ...) of each head: pairs
// are then neighbours, whatever tile and head_dim are.
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

// Of row `row` of the tile. `counts`: once for each row, so that a wrong one is counted once.
template <class S>
__device__ __forceinline__ linear_destination destination_of(const typename S::params &p,
                                                             const linear_place &b, int row,
                                                             bool counts)
{
    const int m = b.m + row;
    linear_destination to{m < S::m_of(p), m, 0};
    if constexpr (S::MAPPED_ROWS)
        if (to.exists) {
            to.row = load_index<S::ROWS_WIDE>(p.row_of, m);
            to.exists = to.row >= 0 && to.row < p.row_count;
            if (!to.exists && to.row != -1 && counts && p.errors)
                atomicAdd(p.errors, 1u);
        }
    if constexpr (S::ROTATES && !S::KEEPS_ANGLES)
        if (to.exists)
            to.position = linear_position<S>(p, b, row);
    return to;
}

// --- sums from shared memory ---------------------------------------------------------------------

// COLUMNS neighbours of a row's sums. Lanes read neighbouring ones: where these are 32 bytes, every
// other four lanes read the upper half first, so that 8 lanes never meet in a bank.
template <int COLUMNS, class Memory>
__device__ __forceinline__ void read_sums(float (&to)[COLUMNS], const Memory &from, int row,
                                          int column)
{
    constexpr int STEP = COLUMNS % 4 == 0 ? 4 : COLUMNS % 2 == 0 ? 2 : 1;
    const int turn = COLUMNS == 8 && threadIdx.x / 4 % 2 ? 4 : 0;
    float sum[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i += STEP) {
        const chunk<STEP * 4> four =
            *reinterpret_cast<const chunk<STEP * 4> *>(from.sum(row, column + (i ^ turn)));
#pragma unroll
        for (int e = 0; e < STEP; e++)
            sum[i + e] = __uint_as_float(four.word[e]);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        to[i] = turn ? sum[COLUMNS == 8 ? i ^ 4 : i] : sum[i];
}

// --- sharing a tile ------------------------------------------------------------------------------

// Rows that a thread makes before it stores any, so that it waits once for what they read: measured
// on an H200 (bench/NOTES.md).
inline constexpr int LINEAR_ROWS_AT_ONCE = 4;

// Finishes all sums of a tile. A unit is as many neighbours of a row as one thread finishes; it has
// the same columns in each of its rows. A Finisher has
//
//     unit_columns       int: columns of a unit
//     rows_at_once       int: units that are made before any is stored
//     columns, unit      types: what depends on the columns alone; one row's unit
//     at(column)         columns: those from that one of the tile on
//     make(columns, unit &, row)
//     put(columns, unit)
//
// The rows are the only loop that is not unrolled. With another around it, over columns, NVRTC 13.0
// computes the addresses of what is loaded anew for every tile of k (bench/NOTES.md).
template <class S, class Finisher>
__device__ __forceinline__ void linear_each_unit(const Finisher &finisher)
{
    // Of a row; rows that all threads have at a time; times that they have as many.
    constexpr int UNITS = S::TILE_N / Finisher::unit_columns, ABREAST = S::THREADS / UNITS,
                  ROUNDS = S::TILE_M > ABREAST ? S::TILE_M / ABREAST : 1,
                  AT_ONCE = ROUNDS < Finisher::rows_at_once ? ROUNDS : Finisher::rows_at_once;
    static_assert(S::TILE_N % Finisher::unit_columns == 0 && S::THREADS % UNITS == 0 &&
                      ROUNDS % AT_ONCE == 0 && (ABREAST > S::TILE_M || S::TILE_M % ABREAST == 0),
                  "TILE_N and TILE_M do not divide evenly among the threads");
    const int thread = static_cast<int>(threadIdx.x), first = thread / UNITS;
    if (ABREAST > S::TILE_M && first >= S::TILE_M)
        return;
    const typename Finisher::columns columns = finisher.at(thread % UNITS * Finisher::unit_columns);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += AT_ONCE) {
        typename Finisher::unit units[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            finisher.make(columns, units[i], first + (round + i) * ABREAST);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            finisher.put(columns, units[i]);
    }
}

// --- what linear makes of them -------------------------------------------------------------------

// The Finisher of linear: V neighbours in each row, or two runs of V that are far apart in y when
// they are the halves of pairs.
template <class S, int V> struct linear_finisher {
    using Output = typename S::Output;
    using params = typename S::params;
    using memory = typename S::memory;
    using pairs = pair_chunks<Output, V, S::INTERLEAVED>;
    static constexpr int runs = S::HALF || (S::INTERLEAVED && V == 1) ? 2 : 1,
                         unit_columns = runs * V;
    static constexpr int bytes = V * static_cast<int>(sizeof(Output));
    static_assert(!S::Y_JUMPS || !S::SPLIT_1, "batches and heads lie apart in y[0] alone");

    // Whether units of rows that do not exist are made, too, though never stored: nothing then
    // branches between the rows of a thread. Not where that reads memory behind an array, or takes
    // long.
    static constexpr bool MAKES_ALL =
        !S::ROTATES && !S::RESIDUAL && S::ACTIVATION == 0 && S::SCALES != LINEAR_SCALE_ROW;
    // One where they branch; and where V is 1, which is for what is not aligned, for less code.
    static constexpr int rows_at_once = V == 1 || !MAKES_ALL ? 1 : LINEAR_ROWS_AT_ONCE;

    // What depends on the columns alone.
    struct columns {
        int column;     // in the tile
        int first;      // in the tiles' order, of all
        int n[runs];    // of y, where each run begins
        bool has[runs]; // whether y has it
        bool rotated;
        Output *to[runs]; // where it lies in row 0
        i64 stride[runs]; // of rows
        float bias[runs][V] = {}, scale[runs][V] = {};
    };

    // A row's elements in these columns.
    struct unit {
        bool exists;
        i64 row; // of the outputs
        float x[runs][V];
    };

    const params &p;
    const linear_place &b;
    const memory &sums;

    // --- columns ---------------------------------------------------------------------------------

    __device__ __forceinline__ columns at(int column) const
    {
        columns c;
        c.column = column;
        c.first = b.n + column;
        c.rotated = S::is_rotated(p, c.first);
#pragma unroll
        for (int r = 0; r < runs; r++) {
            c.n[r] = S::HALF && c.rotated ? S::column_of(p, c.first + r) : c.first + r * V;
            c.has[r] = c.n[r] < S::n_of(p);
            find_place(c, r);
            if (c.has[r])
                load_bias_and_scales(c, r);
        }
        return c;
    }

    __device__ __forceinline__ void find_place(columns &c, int r) const
    {
        const int n = c.n[r];
        const int output = S::SPLIT_2 && n >= S::SPLIT_2   ? 2
                           : S::SPLIT_1 && n >= S::SPLIT_1 ? 1
                                                           : 0;
        const int begin = output == 2 ? S::SPLIT_2 : output == 1 ? S::SPLIT_1 : 0;
        c.to[r] = p.y[output].data + (n - begin);
        c.stride[r] = p.y[output].stride;
        if constexpr (S::Y_JUMPS)
            c.to[r] += p.y_heads.before(n);
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

    __device__ __forceinline__ void load_bias_and_scales(columns &c, int r) const
    {
        if constexpr (S::BIAS)
            load_run(p.bias + c.n[r], c.bias[r]);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if constexpr (S::SCALES == LINEAR_SCALE_TENSOR)
                c.scale[r][i] = p.w_scale[0];
            if constexpr (S::SCALES == LINEAR_SCALE_ROW)
                c.scale[r][i] = p.w_scale[c.n[r] + i];
        }
    }

    // --- one row of them -------------------------------------------------------------------------

    __device__ __forceinline__ void read(const columns &c, unit &mine, int row) const
    {
        const bool interwoven = S::HALF && c.rotated;
        float all[unit_columns];
        read_sums(all, sums, row, c.column);
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                mine.x[r][i] = interwoven ? all[(runs * i + r) % unit_columns] : all[r * V + i];
    }

    // Scales, bias and activation, of row m. One loop over all: of two in one another, with what an
    // activation adds to them, NVRTC 12.0 leaves one, and the elements in memory.
    __device__ __forceinline__ void apply(const columns &c, unit &mine, int m) const
    {
        float row_scale = 1;
        if constexpr (S::SCALES == LINEAR_SCALE_TENSOR)
            row_scale = p.x_scale[0];
        if constexpr (S::SCALES == LINEAR_SCALE_ROW)
            row_scale = p.x_scale[m];
#pragma unroll
        for (int e = 0; e < unit_columns; e++) {
            float &x = mine.x[e / V][e % V];
            if constexpr (S::SCALES != 0)
                x = __fmul_rn(x, __fmul_rn(row_scale, c.scale[e / V][e % V]));
            if constexpr (S::BIAS)
                x = __fadd_rn(x, c.bias[e / V][e % V]);
            x = linear_activated<S::ACTIVATION>(x);
        }
    }

    // Of row `row` of the tile: kept in shared memory, or made of `position`.
    __device__ __forceinline__ angles<pairs::pairs> angles_of(const columns &c, int row,
                                                              i64 position) const
    {
        if constexpr (S::KEEPS_ANGLES)
            return linear_kept_angles<S>(sums).template read<pairs::pairs>(row, c.column);
        else
            return linear_angles<S, pairs::pairs>(p, position,
                                                  c.n[0] % S::HEAD / (S::HALF ? 1 : 2));
    }

    __device__ __forceinline__ void rotate(unit &mine, const angles<pairs::pairs> &by) const
    {
        typename pairs::values both;
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                both.x[r][i] = mine.x[r][i];
        both.rotate(by);
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                mine.x[r][i] = both.x[r][i];
    }

    // Adds row m of the residual.
    __device__ __forceinline__ void add_residual(const columns &c, unit &mine, int m) const
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (!c.has[r])
                continue;
            float other[V];
            unpack<Output, V>(load<bytes>(p.residual.data + m * p.residual.stride + c.n[r]), other);
#pragma unroll
            for (int i = 0; i < V; i++)
                mine.x[r][i] = __fadd_rn(mine.x[r][i], other[i]);
        }
    }

    __device__ __forceinline__ void make(const columns &c, unit &mine, int row) const
    {
        const int m = b.m + row;
        const linear_destination to = destination_of<S>(p, b, row, c.first == 0);
        mine.exists = to.exists && c.has[0];
        mine.row = to.row;
        if (!MAKES_ALL && !mine.exists)
            return;
        read(c, mine, row);
        apply(c, mine, m);
        if constexpr (S::ROTATES)
            if (c.rotated)
                rotate(mine, angles_of(c, row, to.position));
        if constexpr (S::RESIDUAL)
            add_residual(c, mine, m);
    }

    __device__ __forceinline__ void put(const columns &c, const unit &mine) const
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (!mine.exists || !c.has[r])
                continue;
            Output *to = c.to[r] + mine.row * c.stride[r];
            if constexpr (S::Y_JUMPS)
                to += p.y_jumps.before(static_cast<int>(mine.row));
            store(to, pack<Output, V>(mine.x[r]));
        }
    }
};

// All of a tile, V elements to a store.
template <class S, int V>
__device__ __forceinline__ void linear_finish(const typename S::params &p, const linear_place &b,
                                              const typename S::memory &sums)
{
    linear_each_unit<S>(linear_finisher<S, V>{p, b, sums});
}

} // namespace fajit

#endif
