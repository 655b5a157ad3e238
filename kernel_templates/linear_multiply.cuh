// How linear.cuh loads tiles of x and w and multiplies them. S is a linear_shape.
//
// A multiplier takes a loader through the tiles of a block's part of k, 128 bytes of each row at a
// time, and puts the tile's sums into shared memory, in the place of what it multiplied.
#ifndef FAJIT_LINEAR_MULTIPLY_CUH
#define FAJIT_LINEAR_MULTIPLY_CUH

#include "fajit/copy.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/multiply.cuh"
#include "fajit/sync.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// --- loading -------------------------------------------------------------------------------------

// Copies tiles of x and w, one after the other along k.
template <class S> struct linear_loader {
    using Element = typename S::Element;
    using params = typename S::params;
    using w_tile = typename S::w_tile;
    using w_share = tile_share<w_tile, S::THREADS>;
    static constexpr int TILE_K = S::TILE_K;
    static constexpr bool RAGGED_K = !S::K || S::K % TILE_K;
    static constexpr bool X_CHECKED = !S::M || S::M % S::TILE_M || RAGGED_K;
    static constexpr bool W_CHECKED = !S::N || S::N % S::TILE_N || RAGGED_K;

    const params &p;
    const linear_place &b;
    typename S::memory shared;
    int next; // in k
    int w_row[S::HALF ? w_share::count : 1];

    __device__ __forceinline__ linear_loader(const params &given, const linear_place &at,
                                             const typename S::memory &memory)
        : p(given), b(at), shared(memory), next(at.begin)
    {
        if constexpr (S::HALF)
#pragma unroll
            for (int i = 0; i < w_share::count; i++)
                w_row[i] = find_w_row(i);
    }

    // The row of w that this thread's chunk i is of; -1: there is none.
    __device__ __forceinline__ int find_w_row(int i) const
    {
        const int n = b.n + w_share(threadIdx.x).row_of(i);
        return n < S::n_of(p) ? S::column_of(p, n) : -1;
    }

    // Rows of w in the order of the tiles' columns.
    __device__ __forceinline__ void copy_permuted(const w_tile &to, int left)
    {
        const int column = w_share(threadIdx.x).column(), here = left - column;
        const int valid = here < 0 ? 0 : here < w_tile::per_chunk ? here : w_tile::per_chunk;
        const Element *from = p.w.data + next + column;
        const i64 stride = p.w.stride;
        const int width = p.w_width; // once: it keeps w_row[i] out of the loop that is not unrolled
        const auto source = [=](int i) {
            const int row = width == TILE_COPY_WIDE ? w_row[i] : find_w_row(i);
            return tile_source<Element>{from + max(row, 0) * stride, row < 0 ? 0 : valid};
        };
        copy_tile_from<S::THREADS>(to, width, threadIdx.x, source);
    }

    // Closes a group of copies, an empty one behind the end.
    __device__ __forceinline__ void load(int stage)
    {
        if (next < b.end) {
            copy_tile<S::THREADS, X_CHECKED, S::FRESH>(
                shared.x(stage), p.x.data + b.m * p.x.stride + next, p.x.stride, S::m_of(p) - b.m,
                b.end - next, p.x_width, threadIdx.x);
            if constexpr (S::HALF)
                copy_permuted(shared.w(stage), b.end - next);
            else
                copy_tile<S::THREADS, W_CHECKED>(
                    shared.w(stage), p.w.data + b.n * p.w.stride + next, p.w.stride,
                    S::n_of(p) - b.n, b.end - next, p.w_width, threadIdx.x);
        }
        copy_commit();
        next += TILE_K;
    }

    // All stages but one: the loads run that far ahead.
    __device__ __forceinline__ void load_first()
    {
#pragma unroll 1
        for (int s = 0; s < S::STAGES - 1; s++)
            load(s);
    }

    // Returns when the oldest tile on its way is there, and nobody still reads what was read before.
    static __device__ __forceinline__ void wait()
    {
        copy_wait<S::STAGES - 2>();
        __syncthreads(); // all threads' copies are there, and all have come this far
    }

    // Returns when nobody reads or writes a tile any more: sums take their place.
    static __device__ __forceinline__ void finish()
    {
        copy_wait_all();
        __syncthreads(); // all are done with the last tile
    }

    static __device__ __forceinline__ int stage_after(int stage)
    {
        return stage + 1 == S::STAGES ? 0 : stage + 1;
    }
};

// --- multiplying on the tensor cores -------------------------------------------------------------

template <class S, class Policy> struct linear_tensor_cores {
    static constexpr int WARP_M = S::TILE_M / S::WARPS_M, WARP_N = S::TILE_N / S::WARPS_N;
    using loader = linear_loader<S>;
    using memory = typename S::memory;
    using product = warp_product<Policy, WARP_M / 16, WARP_N / 8>;
    static constexpr int ROUNDS = 4 / product::steps / S::WARPS_K; // of a tile
    static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's share is made of 16 x 16");
    static_assert(ROUNDS == 1 || ROUNDS % 2 == 0, "two sets of fragments take turns");
    static_assert(ROUNDS >= 1, "every warp has a part of each tile's k");
    static constexpr int STEPS = ROUNDS * product::steps; // of a warp in a tile
    static constexpr int CHAIN = 2;                       // steps of a chain

    product total;
    typename product::round fragments[2];
    int row, column, slice; // of the warp

    __device__ __forceinline__ linear_tensor_cores()
    {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        row = warp % S::WARPS_M * WARP_M;
        column = warp / S::WARPS_M % S::WARPS_N * WARP_N;
        slice = warp / (S::WARPS_M * S::WARPS_N);
        total.clear();
    }

    __device__ __forceinline__ void fetch(typename product::round &to, const memory &from,
                                          int stage, int round) const
    {
        product::load(to, from.x(stage), row, from.w(stage), column, round * S::WARPS_K + slice);
    }

    // The next round's fragments are loaded before this one's are multiplied. Those of the next tile
    // can be, once it is there; then, too, no warp reads the oldest stage any more.
    __device__ __forceinline__ void multiply(const memory &from, int stage, int next)
    {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
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
        from.load_first();
        loader::wait(); // for the first tile
        int stage = 0, free = S::STAGES - 1;
        fetch(fragments[0], from.shared, 0, 0);
#pragma unroll 1
        for (int t = 0; t < tiles; t++) {
            const int next = loader::stage_after(stage);
            from.load(free);
            free = stage;
            multiply(from.shared, stage, next);
            stage = next;
            if (STEPS < CHAIN && t % CHAIN == CHAIN - 1)
                total.end_chains();
        }
        total.end_chains();
        loader::finish();
    }

    // Slices add to what those before them have put down.
    __device__ __forceinline__ void put(const memory &to) const
    {
#pragma unroll
        for (int s = 0; s < S::WARPS_K; s++) {
            if (s == slice)
                put(to, s > 0);
            __syncthreads(); // before the next slice adds, or anybody reads
        }
    }

    __device__ __forceinline__ void put(const memory &shared, bool adds) const
    {
        const unsigned lane = lane_index();
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float *value = total.sum[i][j].value + 2 * half;
                    float2 *to = reinterpret_cast<float2 *>(
                        shared.sum(row + i * 16 + static_cast<int>(fragment_row(lane, 2 * half)),
                                   column + j * 8 + static_cast<int>(fragment_column(lane, 0))));
                    float2 x{value[0], value[1]};
                    if (adds)
                        x = {__fadd_rn(to->x, x.x), __fadd_rn(to->y, x.y)};
                    *to = x;
                }
    }
};

// --- multiplying on the ordinary units -----------------------------------------------------------

// Every product and sum is one multiply-add in float32. Sums of a tile are made apart and then added,
// so that errors do not grow with all of k.
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
        from.load_first();
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
