// How linear.cuh multiplies tiles of x and w. S is a linear_shape.
//
// A multiplier takes a loader (linear_load.cuh), whose first loads have begun, through the tiles of
// a block's part of k, 128 bytes of each row at a time, and puts the tile's sums into shared
// memory, in the place of what it multiplied: those of each of WARPS_K parts of k into a plane of
// their own.
#ifndef FAJIT_LINEAR_MULTIPLY_CUH
#define FAJIT_LINEAR_MULTIPLY_CUH

#include "fajit/linear_load.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/multiply.cuh"
#include "fajit/padded.cuh"
#include "fajit/sync.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// --- multiplying on the tensor cores -------------------------------------------------------------

// The share of a tile that a warp has.
template <class S> struct linear_warp {
    static constexpr int WARP_M = S::TILE_M / S::WARPS_M, WARP_N = S::TILE_N / S::WARPS_N;
    static constexpr int ROWS = WARP_M / 16, COLUMNS = WARP_N / 8; // of fragments
    static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's share is made of 16 x 16");
    using sums = fragment_c<f32>[ROWS][COLUMNS];

    int row, column, slice;

    __device__ __forceinline__ explicit linear_warp(int thread)
    {
        const int warp = thread / 32;
        row = warp % S::WARPS_M * WARP_M;
        column = warp / S::WARPS_M % S::WARPS_N * WARP_N;
        slice = warp / (S::WARPS_M * S::WARPS_N);
    }

    // The row and the first of the two columns, in the tile, of elements 2 half and 2 half + 1.
    __device__ __forceinline__ int row_of(int i, int half) const
    {
        return row + i * 16 + static_cast<int>(fragment_row(lane_index(), 2 * half));
    }

    __device__ __forceinline__ int column_of(int j) const
    {
        return column + j * 8 + static_cast<int>(fragment_column(lane_index(), 0));
    }

    // Into the plane of its slice.
    __device__ __forceinline__ void put(const typename S::memory &shared, const sums &total) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float *value = total[i][j].value + 2 * half;
                    float *to = shared.sum(row_of(i, half), column_of(j), slice);
                    *reinterpret_cast<float2 *>(to) = {value[0], value[1]};
                }
    }
};

template <class S, class Policy> struct linear_tensor_cores {
    using loader = linear_loader<S>;
    using memory = typename S::memory;
    using warp = linear_warp<S>;
    using product = warp_product<Policy, warp::ROWS, warp::COLUMNS>;
    static constexpr int ROUNDS = 4 / product::steps / S::WARPS_K; // of a tile
    static_assert(ROUNDS == 1 || ROUNDS % 2 == 0, "two sets of fragments take turns");
    static_assert(ROUNDS >= 1, "every warp has a part of each tile's k");
    static constexpr int STEPS = ROUNDS * product::steps; // of a warp in a tile
    static constexpr int CHAIN = 2;                       // steps of a chain
    // The round that begins the next load. Before sm_90 ptxas begins the second chain of a tile
    // before it has added the sums of the first; a warp with many has no registers for both. There
    // the load stands between them, since ptxas moves nothing over its conditions.
    static constexpr int LOAD_ROUND = __CUDA_ARCH__ < 900 && Policy::short_chains &&
                                              (STEPS > CHAIN) && (warp::ROWS * warp::COLUMNS > 8)
                                          ? CHAIN / product::steps
                                          : 0;

    product total;
    typename product::round fragments[2];
    warp mine;

    __device__ __forceinline__ linear_tensor_cores() : mine(static_cast<int>(threadIdx.x))
    {
        total.clear();
    }

    __device__ __forceinline__ void fetch(typename product::round &to, const memory &from,
                                          int stage, int round) const
    {
        product::load(to, from.x(stage), mine.row, from.w(stage), mine.column,
                      round * S::WARPS_K + mine.slice);
    }

    // The next round's fragments are loaded before this one's are multiplied. Those of the next
    // tile can be, once it is there; then, too, no warp reads the oldest stage any more.
    __device__ __forceinline__ void multiply(loader &loads, int stage, int next, int free)
    {
        const memory &from = loads.shared;
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            if (LOAD_ROUND > 0 && round == LOAD_ROUND)
                loads.load(free);
            if (round < ROUNDS - 1) {
                fetch(fragments[(round + 1) % 2], from, stage, round + 1);
            } else if (ROUNDS > 1) {
                loader::wait(); // for the next tile; and nobody reads `stage` any more
                fetch(fragments[0], from, next, 0);
            }
            total.multiply(fragments[round % 2]);
            if (STEPS >= CHAIN && (round + 1) * product::steps % CHAIN == 0)
                total.end_chains();
            if (ROUNDS == 1) {  // one set of fragments
                loader::wait(); // as above
                fetch(fragments[0], from, next, 0);
            }
        }
    }

    __device__ __forceinline__ void run(loader &from, int tiles)
    {
        loader::wait(); // for the first tile
        int stage = 0, free = S::STAGES - 1;
        fetch(fragments[0], from.shared, 0, 0);
#pragma unroll 1
        for (int t = 0; t < tiles; t++) {
            const int next = loader::stage_after(stage), oldest = free;
            if (LOAD_ROUND == 0)
                from.load(oldest);
            free = stage;
            multiply(from, stage, next, oldest);
            stage = next;
            if (STEPS < CHAIN && t % CHAIN == CHAIN - 1)
                total.end_chains();
        }
        total.end_chains();
        loader::finish();
    }

    // Each slice into a plane of its own.
    __device__ __forceinline__ void put(const memory &to) const
    {
        mine.put(to, total.sum);
        __syncthreads(); // before anybody reads
    }
};

// --- multiplying on the ordinary units -----------------------------------------------------------

// Every product and sum is one multiply-add in float32. Sums of a tile are made apart and then
// added, so that errors do not grow with all of k.
template <class S> struct linear_multiply_add {
    using Element = typename S::Element;
    using loader = linear_loader<S>;
    using memory = typename S::memory;
    static constexpr int THREADS_N = S::TILE_N < 128 ? 8 : 16, THREADS_M = S::THREADS / THREADS_N;
    static constexpr int ROWS = S::TILE_M / THREADS_M, COLUMNS = S::TILE_N / THREADS_N;
    static_assert(S::TILE_M % THREADS_M == 0 && S::TILE_N % THREADS_N == 0,
                  "threads share a tile evenly");
    static constexpr int GROUP = 4; // neighbours in k that are read at once

    float total[ROWS][COLUMNS];
    int row, column;

    __device__ __forceinline__ linear_multiply_add()
        : total{}, row(threadIdx.x / THREADS_N), column(threadIdx.x % THREADS_N)
    {
    }

    template <class Tile>
    static __device__ __forceinline__ void fetch(float (&to)[GROUP], const Tile &from, int at,
                                                 int group)
    {
        constexpr int SIZE = GROUP * static_cast<int>(sizeof(Element));
        unpack<Element, GROUP>(
            *reinterpret_cast<const chunk<SIZE> *>(from.element(at, group * GROUP)), to);
    }

    __device__ __forceinline__ void multiply(const typename S::x_tile &x,
                                             const typename S::w_tile &w)
    {
        float sum[ROWS][COLUMNS] = {};
#pragma unroll 1
        for (int g = 0; g < S::TILE_K / GROUP; g++) {
            float b[COLUMNS][GROUP];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                fetch(b[j], w, column + j * THREADS_N, g);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float a[GROUP];
                fetch(a, x, row + i * THREADS_M, g);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                    for (int e = 0; e < GROUP; e++)
                        sum[i][j] = fmaf(a[e], b[j][e], sum[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                total[i][j] = __fadd_rn(total[i][j], sum[i][j]);
    }

    __device__ __forceinline__ void run(loader &from, int tiles)
    {
        int stage = 0, free = S::STAGES - 1;
#pragma unroll 1
        for (int t = 0; t < tiles; t++) {
            loader::wait(); // for the tile; and nobody reads the one before any more
            from.load(free);
            multiply(from.shared.x(stage), from.shared.w(stage));
            free = stage;
            stage = loader::stage_after(stage);
        }
        loader::finish();
    }

    __device__ __forceinline__ void put(const memory &to) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                *to.sum(row + i * THREADS_M, column + j * THREADS_N) = total[i][j];
        __syncthreads(); // before anybody reads
    }
};

// --- what an instance multiplies with ------------------------------------------------------------

template <class S, int ARITHMETIC = S::ARITHMETIC> struct linear_multiplier;
template <class S> struct linear_multiplier<S, LINEAR_FMA> {
    using type = linear_multiply_add<S>;
};
template <class S> struct linear_multiplier<S, LINEAR_WHOLE> {
    using type = linear_tensor_cores<S, whole<typename S::Element>>;
};
#if __CUDA_ARCH__ >= 800
template <class S> struct linear_multiplier<S, LINEAR_SPLIT_TF32> {
    using type = linear_tensor_cores<S, split_tf32>;
};
template <class S> struct linear_multiplier<S, LINEAR_SPLIT_BF16> {
    using type = linear_tensor_cores<S, split_bf16>;
};
#endif

} // namespace fajit

#endif
