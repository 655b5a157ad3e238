// What a block of few tokens does: both products of lowrank_kv.cu, with the latent in shared memory
// between them, or one of the two. S is a lowrank_shape, whose SMALL is laid
// out as a lowrank_small.
//
// A block takes SMALL.rows tokens (grid x) and a share of the columns (grid y). The time of a small
// launch is that of its loads, so that as many as shared memory has room for are on their way at
// once, in the order of their use, and nobody waits for another warp before all of the first
// product is there: each warp multiplies its own part of the depth, and later its own columns, from
// its own ring of copies. The warps' parts of the latent are added in one place.
#ifndef FAJIT_LOWRANK_SMALL_CUH
#define FAJIT_LOWRANK_SMALL_CUH

#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/lowrank_finish.cuh"
#include "fajit/lowrank_shape.cuh"
#include "fajit/lowrank_small_load.cuh"
#include "fajit/mma.cuh"
#include "fajit/order.cuh"
#include "fajit/padded.cuh"
#include "fajit/products.cuh"
#include "fajit/sync.cuh"

namespace fajit {

// --- sums ----------------------------------------------------------------------------------------

// f(row, column, x, y) for each two neighbours of a warp's sums that the lane holds.
template <class Sums, class F> __device__ __forceinline__ void for_each_two(const Sums &sums, F f)
{
    constexpr int MT = sizeof(sums.cell) / sizeof(sums.cell[0]),
                  NT = sizeof(sums.cell[0]) / sizeof(sums.cell[0][0]);
    const unsigned lane = lane_index();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
#pragma unroll
            for (int j = 0; j < NT; j++)
                f(16 * i + static_cast<int>(fragment_row(lane, e)),
                  8 * j + static_cast<int>(fragment_column(lane, e)), sums.cell[i][j].value[e],
                  sums.cell[i][j].value[e + 1]);
}

// Two neighbours to global memory, the second only if it `exists`; `pairs`: one access takes both.
template <class Element>
__device__ __forceinline__ void store_two(Element *to, const float (&x)[2], bool exists, bool pairs)
{
    if (pairs) {
        store(to, pack<Element, 2>(x));
        return;
    }
    const float first[1] = {x[0]}, second[1] = {x[1]};
    store(to, pack<Element, 1>(first));
    if (exists)
        store(to + 1, pack<Element, 1>(second));
}

// --- a block -------------------------------------------------------------------------------------

template <class S> struct lowrank_small_block {
    using shape = lowrank_small_shape<S>;
    using Element = typename S::Element;
    using Sum = typename shape::Sum;
    using loads = lowrank_loads<S>;
    static constexpr int MT = shape::ROWS / 16, STEP_DEPTH = sum_depth<S::SUMS>;
    using down_sums = warp_sums<S::SUMS, MT, shape::DOWN_COLUMNS / 8>;
    using up_sums = warp_sums<S::SUMS, MT, shape::WARP_COLUMNS / 8>;

    const typename S::params &p;
    const shape &m;
    const lowrank_share &s;

    // --- the first product ---

    // Columns `column` and the one behind it, of one row of the latent.
    __device__ __forceinline__ void put_latent(int r, int column, Sum x, Sum y) const
    {
        const float both[2] = {static_cast<float>(x), static_cast<float>(y)};
        if constexpr (S::HAS_UP) {
            if (column < shape::LATENT_COLUMNS)
                *reinterpret_cast<chunk<2 * S::ELEMENT> *>(m.latent() + r * shape::LATENT_ROW +
                                                           column) = pack<Element, 2>(both);
        } else {
            const token_row &to = m.rows()[r];
            if (to.is_written() && column < S::RANK)
                store_two(p.latent_out.at(to.outer, to.entry) + column, both, column + 1 < S::RANK,
                          p.latent_width > 1);
        }
    }

    // The sum of all warps' parts of an element, by pairs: in the same order every time.
    __device__ __forceinline__ Sum sum_of_parts(int at) const
    {
        Sum x[shape::WARPS];
#pragma unroll
        for (int q = 0; q < shape::WARPS; q++)
            x[q] = m.part(q)[at];
#pragma unroll
        for (int apart = 1; apart < shape::WARPS; apart *= 2)
#pragma unroll
            for (int q = 0; q < shape::WARPS; q += 2 * apart)
                x[q] = rounded_sum(x[q], x[q + apart]);
        return x[0];
    }

    __device__ __forceinline__ void add_parts(int pass, const down_sums &sums) const
    {
        Sum *mine = m.part(static_cast<int>(threadIdx.x) / 32);
        __syncwarp(); // all lanes are done with what lay there
        for_each_two(sums, [&](int r, int column, Sum x, Sum y) {
            mine[r * shape::DOWN_ROW + column] = x;
            mine[r * shape::DOWN_ROW + column + 1] = y;
        });
        __syncthreads(); // before the parts of other warps are read
        constexpr int PAIRS = shape::DOWN_COLUMNS / 2;
        for (int i = threadIdx.x; i < shape::ROWS * PAIRS; i += shape::THREADS) {
            const int r = i / PAIRS, column = i % PAIRS * 2, at = r * shape::DOWN_ROW + column;
            put_latent(r, pass * shape::DOWN_COLUMNS + column, sum_of_parts(at),
                       sum_of_parts(at + 1));
        }
        __syncthreads(); // the latent is there, and the parts are read
    }

    __device__ __forceinline__ void multiply_down(loads &from) const
    {
        const int warp = static_cast<int>(threadIdx.x) / 32, depth = S::model_dim_of(p);
        int slot = 0;
#pragma unroll 1
        for (int pass = s.down_begin; pass < s.down_end; pass++) {
            down_sums sums;
            sums.clear();
#pragma unroll 1
            for (int first = warp * shape::DEPTH; first - warp * shape::DEPTH < depth;
                 first += loads::APART) {
                copy_wait<shape::AHEAD - 1>();
                __syncwarp(); // all lanes' copies of this stage are there
                const Element *hidden = m.stage(warp, slot);
                add_steps<shape::DEPTH / STEP_DEPTH, STEP_DEPTH>(
                    sums, hidden, shape::HIDDEN_ROW, hidden + shape::ROWS * shape::HIDDEN_ROW,
                    shape::DOWN_ROW, depth - first);
                slot = slot + 1 == shape::STAGES ? 0 : slot + 1;
                if constexpr (shape::AHEAD > shape::STAGES) {
                    copy_commit(); // all is on its way
                } else {
                    __syncwarp(); // all lanes are done with it
                    from.load_next();
                }
            }
            add_parts(pass, sums);
        }
    }

    // --- the second product ---

    __device__ __forceinline__ void load_latent() const
    {
        lowrank_load_rows<S, shape::ROWS, shape::LATENT_COLUMNS, shape::THREADS>(
            p, p.latent_in, p.latent_bytes, static_cast<i64>(blockIdx.x) * shape::ROWS, 0, S::RANK,
            m.latent(), shape::LATENT_ROW, static_cast<int>(threadIdx.x));
        copy_commit();
    }

    __device__ __forceinline__ void normalize() const
    {
        for (int r = threadIdx.x / 32; r < shape::ROWS; r += shape::WARPS)
            lowrank_normalize<S>(p, m.latent() + r * shape::LATENT_ROW);
        __syncthreads(); // before others' rows are read
    }

    // Columns `column` and the one behind it of K or V, counted through the heads.
    __device__ __forceinline__ void put_out(int part, const token_row &to, int column, Sum x,
                                            Sum y) const
    {
        const int columns = S::columns_of(p, part);
        if (!to.is_written() || column >= columns)
            return;
        const float both[2] = {static_cast<float>(x), static_cast<float>(y)}, next[1] = {both[1]};
        const bool pairs = p.out_width[part] > 1;
        store_two(S::out_at(p, part, to, column), both, false, pairs);
        if (!pairs && column + 1 < columns)
            store(S::out_at(p, part, to, column + 1), pack<Element, 1>(next));
    }

    __device__ __forceinline__ void multiply_up(loads &from) const
    {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        int slot = 0;
#pragma unroll 1
        for (int tile = s.up_begin; tile < s.up_end; tile++) {
            up_sums sums;
            sums.clear();
#pragma unroll 1
            for (int first = 0; first < S::RANK; first += shape::UP_DEPTH) {
                copy_wait<shape::UP_STAGES - 1>();
                __syncwarp(); // all lanes' copies of this stage are there
                add_steps<shape::UP_DEPTH / STEP_DEPTH, STEP_DEPTH>(
                    sums, m.latent() + first, shape::LATENT_ROW, m.up_stage(warp, slot),
                    shape::UP_ROW, S::RANK - first);
                slot = slot + 1 == shape::UP_STAGES ? 0 : slot + 1;
                __syncwarp(); // all lanes are done with it
                from.up_left++;
                from.load_next_up();
            }
            const int part = tile >= s.k_tiles, of_part = tile - (part ? s.k_tiles : 0);
            const int begin = of_part * shape::UP_COLUMNS + warp * shape::WARP_COLUMNS;
            for_each_two(sums, [&](int r, int column, Sum x, Sum y) {
                put_out(part, m.rows()[r], begin + column, x, y);
            });
        }
    }

    // --- all of it ---

    // Where tokens go is found while what they are made of is on its way.
    static __device__ __forceinline__ void run(const typename S::params &p, unsigned char *shared)
    {
        const shape m = {shared};
        const lowrank_share s = lowrank_share_of<S>(p);
        const lowrank_small_block mine = {p, m, s};
        loads from(p, m, s);
        wait_for_predecessor(); // it may have written what is read here, or read what is written
        let_successor_start();
        if constexpr (!S::HAS_DOWN)
            mine.load_latent();
        from.start();
        S::template find_rows<shape::ROWS>(p, static_cast<i64>(blockIdx.x) * shape::ROWS,
                                           blockIdx.y == 0, m.rows());
        if constexpr (S::ROPE_DIM != 0 && S::PLACES)
            if (blockIdx.y == 0)
                lowrank_rope<S>::template put_all<shape::ROWS, shape::THREADS>(p, m.rows());
        if constexpr (S::HAS_DOWN) {
            mine.multiply_down(from);
        } else {
            copy_wait<shape::AHEAD>();
            __syncthreads(); // the latent is there
        }
        if constexpr (S::NORM && S::STEP == LOWRANK_WHOLE)
            mine.normalize();
        if constexpr (S::HAS_UP)
            mine.multiply_up(from);
    }
};

} // namespace fajit

#endif
