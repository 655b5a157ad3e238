// How linear.cuh multiplies halves of float32 (linear_parts.cuh). S is a linear_shape.
//
//     sum of x w = scale(m) scale(n) sum over k of (high high' + 2^-11 (high low' + low high'))
//
// Tensor cores cut each sum they make toward zero. Here a sum never goes beyond the k of a tile.
// That of the small products is brought down by 2^11, exactly, and the large ones are added to it
// on the tensor cores; the whole is added to the total in float32, to nearest.
#ifndef FAJIT_LINEAR_PARTS_MULTIPLY_CUH
#define FAJIT_LINEAR_PARTS_MULTIPLY_CUH

#include "fajit/linear_multiply.cuh"
#include "fajit/linear_parts.cuh"
#include "fajit/multiply.cuh"

namespace fajit {

#if __CUDA_ARCH__ >= 800
template <class S> struct linear_parts_product {
    using loader = linear_loader<S>;
    using memory = typename S::memory;
    using warp = linear_warp<S>;
    static constexpr int ROWS = warp::ROWS, COLUMNS = warp::COLUMNS;
    static constexpr int STEPS = S::TILE_K / 16; // of a tile
    static_assert(S::WARPS_K == 1, "a warp takes all of a tile's k");
    static_assert(COLUMNS % 2 == 0, "two fragments of w take turns");
    static_assert(STEPS == 2, "ldmatrix brings four fragments of w");

    // 16 rows of x, 8 rows of w, at the k of a tile.
    struct rows_of_x {
        step_a<f16> high[STEPS], low[STEPS];
    };
    struct rows_of_w {
        step_b<f16> high[STEPS], low[STEPS];
    };

    warp mine;
    typename warp::sums total;
    rows_of_x x[ROWS];
    rows_of_w w[2]; // one is multiplied, one is on its way

    __device__ __forceinline__ linear_parts_product() : mine(static_cast<int>(threadIdx.x)), total{}
    {
    }

    // The tiles as halves: of a row TILE_K high ones, and TILE_K low ones.
    template <class T, int R, int COLUMNS>
    static __device__ __forceinline__ tile<f16, R, 2 * COLUMNS>
    halves_of(const tile<T, R, COLUMNS> &of)
    {
        return {of.data};
    }

    __device__ __forceinline__ void fetch_x(int i, const memory &from, int stage)
    {
        const auto tile = halves_of(from.x(stage));
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            load_step(x[i].high[s], tile, mine.row, i * 16, s);
            load_step(x[i].low[s], tile, mine.row, i * 16, STEPS + s);
        }
    }

    // Both steps at once: each 8 lanes address a chunk.
    static __device__ __forceinline__ void fetch_w(step_b<f16> (&to)[STEPS],
                                                   const tile<f16, S::TILE_N, 2 * S::TILE_K> &from,
                                                   int row, int further, int first_step)
    {
        const int lane = static_cast<int>(lane_index());
        unsigned word[4];
        ldmatrix(word, lane_chunk(from, {lane % 8, lane / 8}, row, further, first_step));
        to[0] = {{word[0], word[1]}};
        to[1] = {{word[2], word[3]}};
    }

    __device__ __forceinline__ void fetch_high(rows_of_w &to, const memory &from, int stage,
                                               int column)
    {
        fetch_w(to.high, halves_of(from.w(stage)), mine.column, column * 8, 0);
    }

    __device__ __forceinline__ void fetch_low(rows_of_w &to, const memory &from, int stage,
                                              int column)
    {
        fetch_w(to.low, halves_of(from.w(stage)), mine.column, column * 8, STEPS);
    }

    // One instruction of all rows after the other: none waits for the one before. Behind after_low
    // nobody needs by.low any more, behind after_row(i) not x[i].
    template <class AfterLow, class AfterRow>
    __device__ __forceinline__ void multiply(const rows_of_w &by, int column, AfterLow after_low,
                                             AfterRow after_row)
    {
        fragment_c<f32> sum[ROWS] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                sum[i] = mma(x[i].high[s], by.low[s], sum[i]);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                sum[i] = mma(x[i].low[s], by.high[s], sum[i]);
        }
        after_low();
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i].value[e] = __fmul_rn(sum[i].value[e], PARTS_LOW_UNIT);
            sum[i] = mma(x[i].high[0], by.high[0], sum[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            sum[i] = mma(x[i].high[1], by.high[1], sum[i]);
            after_row(i);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            add(total[i][column], sum[i]);
    }

    // A tile, and the loads of what the next one begins with. Rows of w are loaded while those
    // before are multiplied, and the rows of x that come next as soon as the last of w have used
    // theirs; and copies into stage `free` are started between products.
    __device__ __forceinline__ void multiply(loader &from, int stage, int next, int free)
    {
        const memory &shared = from.shared;
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            const bool last = column == COLUMNS - 1;
            if (last) {
                from.end_load();
                loader::wait(); // for the next tile; and nobody reads this one any more
            } else {
                from.load_part(free, {column, COLUMNS - 1});
            }
            rows_of_w &then = w[(column + 1) % 2];
            const int its_stage = last ? next : stage, its_column = last ? 0 : column + 1;
            fetch_high(then, shared, its_stage, its_column);
            multiply(
                w[column % 2], column, [&] { fetch_low(then, shared, its_stage, its_column); },
                [&](int i) {
                    if (last)
                        fetch_x(i, shared, next);
                });
        }
    }

    // By two powers of two. Where their product is no normal number, both are large or both small,
    // and in two steps nothing is out of range that the result is not.
    static __device__ __forceinline__ float scaled(float sum, float a, float b)
    {
        const float both = __fmul_rn(a, b);
        return both >= 0x1p-126f && both <= 0x1p127f ? __fmul_rn(sum, both)
                                                     : __fmul_rn(__fmul_rn(sum, a), b);
    }

    __device__ __forceinline__ void undo_scales(const typename S::params &p, const linear_place &b)
    {
        const float *of_x = S::inverse_scales(p), *of_w = of_x + S::m_of(p);
        float by[2 * COLUMNS];
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) {
            const int n = b.n + mine.column_of(j / 2) + j % 2;
            by[j] = n < S::n_of(p) ? of_w[S::column_of(p, n)] : 0;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int m = b.m + mine.row_of(i, half);
                const float scale = m < S::m_of(p) ? of_x[m] : 0;
#pragma unroll
                for (int j = 0; j < 2 * COLUMNS; j++) {
                    float &sum = total[i][j / 2].value[2 * half + j % 2];
                    sum = scaled(sum, scale, by[j]);
                }
            }
    }

    __device__ __forceinline__ void run(loader &from, int tiles)
    {
        loader::wait(); // for the first tile
        int stage = 0, free = S::STAGES - 1;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            fetch_x(i, from.shared, stage);
        fetch_high(w[0], from.shared, stage, 0);
        fetch_low(w[0], from.shared, stage, 0);
#pragma unroll 1
        for (int t = 0; t < tiles; t++) {
            const int next = loader::stage_after(stage);
            multiply(from, stage, next, free);
            free = stage;
            stage = next;
        }
        loader::finish();
        mine = warp(thread_index_anew()); // meanwhile every register was needed
    }

    __device__ __forceinline__ void put(const memory &to) const
    {
        mine.put(to, total);
        __syncthreads(); // before anybody reads
    }
};

template <class S> struct linear_multiplier<S, LINEAR_SPLIT_F16> {
    using type = linear_parts_product<S>;
};
#endif

} // namespace fajit

#endif
