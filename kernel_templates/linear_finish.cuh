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

// --- a thread's share ----------------------------------------------------------------------------

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

// Neighbours in the tile that one thread finishes, in each of its rows: V of them, or two runs of V
// that are far apart in y when they are the halves of pairs.
template <class S, int V> struct linear_columns {
    using Output = typename S::Output;
    using params = typename S::params;
    using memory = typename S::memory;
    using pairs = pair_chunks<Output, V, S::INTERLEAVED>;
    static constexpr int runs = S::HALF || (S::INTERLEAVED && V == 1) ? 2 : 1, columns = runs * V;
    static constexpr int bytes = V * static_cast<int>(sizeof(Output));

    // Those of one row.
    struct unit {
        bool exists;
        i64 row; // of the outputs
        float x[runs][V];
    };

    const params &p;
    const linear_place &b;
    const memory &sums;
    int column;     // in the tile
    int first;      // in the tiles' order, of all
    int n[runs];    // of y, where each run begins
    bool has[runs]; // whether y has it
    bool rotated;
    Output *to[runs]; // where it lies in row 0
    i64 stride[runs]; // of rows
    float addend[runs][V], scale[runs][V];

    __device__ __forceinline__ linear_columns(const params &of, const linear_place &at,
                                              const memory &from, int number)
        : p(of), b(at), sums(from), column(number), first(at.n + number),
          rotated(S::is_rotated(of, at.n + number))
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            n[r] = is_interwoven() ? S::column_of(p, first + r) : first + r * V;
            has[r] = n[r] < S::n_of(p);
            find_place(r);
            if (has[r])
                load_addends(r);
        }
    }

    __device__ __forceinline__ bool is_interwoven() const
    {
        return S::HALF && rotated;
    }

    __device__ __forceinline__ void find_place(int r)
    {
        const int output = S::SPLIT_2 && n[r] >= S::SPLIT_2   ? 2
                           : S::SPLIT_1 && n[r] >= S::SPLIT_1 ? 1
                                                              : 0;
        const int begin = output == 2 ? S::SPLIT_2 : output == 1 ? S::SPLIT_1 : 0;
        to[r] = p.y[output].data + (n[r] - begin);
        stride[r] = p.y[output].stride;
        if constexpr (S::Y_JUMPS)
            to[r] += p.y_heads.before(n[r]);
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

    // Bias and scales.
    __device__ __forceinline__ void load_addends(int r)
    {
        if constexpr (S::BIAS)
            load_run(p.bias + n[r], addend[r]);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if constexpr (S::SCALES == LINEAR_SCALE_TENSOR)
                scale[r][i] = p.w_scale[0];
            if constexpr (S::SCALES == LINEAR_SCALE_ROW)
                scale[r][i] = p.w_scale[n[r] + i];
        }
    }

    // --- one row ---------------------------------------------------------------------------------

    __device__ __forceinline__ void read(unit &mine, int row) const
    {
        float all[columns];
        read_sums(all, sums, row, column);
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++)
                mine.x[r][i] = is_interwoven() ? all[(runs * i + r) % columns] : all[r * V + i];
    }

    // Scales, bias and activation, of row m.
    __device__ __forceinline__ void apply(unit &mine, int m) const
    {
        float row_scale = 1;
        if constexpr (S::SCALES == LINEAR_SCALE_TENSOR)
            row_scale = p.x_scale[0];
        if constexpr (S::SCALES == LINEAR_SCALE_ROW)
            row_scale = p.x_scale[m];
#pragma unroll
        for (int r = 0; r < runs; r++)
#pragma unroll
            for (int i = 0; i < V; i++) {
                float &x = mine.x[r][i];
                if constexpr (S::SCALES != 0)
                    x = __fmul_rn(x, __fmul_rn(row_scale, scale[r][i]));
                if constexpr (S::BIAS)
                    x = __fadd_rn(x, addend[r][i]);
                x = linear_activated<S::ACTIVATION>(x);
            }
    }

    // Of row `row` of the tile: kept there, or made of `position`.
    __device__ __forceinline__ angles<pairs::pairs> angles_of(int row, i64 position) const
    {
        if constexpr (S::KEEPS_ANGLES)
            return linear_kept_angles<S>(sums).template read<pairs::pairs>(row, column);
        else
            return linear_angles<S, pairs::pairs>(p, position, n[0] % S::HEAD / (S::HALF ? 1 : 2));
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
    __device__ __forceinline__ void add_residual(unit &mine, int m) const
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (!has[r])
                continue;
            float other[V];
            unpack<Output, V>(load<bytes>(p.residual.data + m * p.residual.stride + n[r]), other);
#pragma unroll
            for (int i = 0; i < V; i++)
                mine.x[r][i] = __fadd_rn(mine.x[r][i], other[i]);
        }
    }

    // What is made of a row that does not exist is not stored: only memory is not to be read for it,
    // and what takes long not to be done.
    static constexpr bool MAKES_ALL =
        !S::ROTATES && !S::RESIDUAL && S::ACTIVATION == 0 && S::SCALES != LINEAR_SCALE_ROW;

    __device__ __forceinline__ void make(unit &mine, int row) const
    {
        const int m = b.m + row;
        const linear_destination at = destination_of<S>(p, b, row, first == 0);
        mine.exists = at.exists && first < S::n_of(p);
        mine.row = at.row;
        if (!MAKES_ALL && !mine.exists)
            return;
        read(mine, row);
        apply(mine, m);
        if constexpr (S::ROTATES)
            if (rotated)
                rotate(mine, angles_of(row, at.position));
        if constexpr (S::RESIDUAL)
            add_residual(mine, m);
    }

    __device__ __forceinline__ void put(const unit &mine) const
    {
#pragma unroll
        for (int r = 0; r < runs; r++) {
            if (!mine.exists || !has[r])
                continue;
            Output *at = to[r] + mine.row * stride[r];
            if constexpr (S::Y_JUMPS)
                at += p.y_jumps.before(static_cast<int>(mine.row));
            store(at, pack<Output, V>(mine.x[r]));
        }
    }
};

// --- all of a tile -------------------------------------------------------------------------------

// All sums of a tile. A thread keeps to its columns: Columns, made by columns_at(first), has what
// depends on them alone, makes what a row has there, and puts it where it belongs. HELD rows are
// made before they are put: none waits for another.
template <class S, class Columns, int HELD, class ColumnsAt>
__device__ __forceinline__ void linear_each_unit(ColumnsAt columns_at)
{
    constexpr int UNITS = S::TILE_N / Columns::columns,
                  ACROSS = UNITS < S::THREADS ? UNITS : S::THREADS, DOWN = S::THREADS / ACROSS,
                  ROUNDS = S::TILE_M > DOWN ? S::TILE_M / DOWN : 1,
                  BATCH = ROUNDS < HELD ? ROUNDS : HELD;
    static_assert(S::TILE_N % Columns::columns == 0 && UNITS % ACROSS == 0 &&
                      S::THREADS % ACROSS == 0 && ROUNDS % BATCH == 0 &&
                      (DOWN > S::TILE_M || S::TILE_M % DOWN == 0),
                  "threads share the units evenly");
    const int first = static_cast<int>(threadIdx.x) / ACROSS;
    if (DOWN > S::TILE_M && first >= S::TILE_M)
        return;
#pragma unroll 1
    for (int u = static_cast<int>(threadIdx.x) % ACROSS; u < UNITS; u += ACROSS) {
        const Columns mine = columns_at(u * Columns::columns);
#pragma unroll 1
        for (int row = first; row < S::TILE_M; row += BATCH * DOWN) {
            typename Columns::unit units[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                mine.make(units[i], row + i * DOWN);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                mine.put(units[i]);
        }
    }
}

// In units of V.
template <class S, int V>
__device__ __forceinline__ void linear_finish(const typename S::params &p, const linear_place &b,
                                              const typename S::memory &sums)
{
    using mine = linear_columns<S, V>;
    constexpr int HELD = V == 1 || !mine::MAKES_ALL ? 1 : 4;
    linear_each_unit<S, mine, HELD>([&](int column) { return mine(p, b, sums, column); });
}

} // namespace fajit

#endif
