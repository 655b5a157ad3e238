// How linear.cuh loads tiles of x and w. S is a linear_shape.
#ifndef FAJIT_LINEAR_LOAD_CUH
#define FAJIT_LINEAR_LOAD_CUH

#include "fajit/anew.cuh"
#include "fajit/copy.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/order.cuh"
#include "fajit/padded.cuh"
#include "fajit/prefetch.cuh"
#include "fajit/sync.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// Copies tiles of x and w, one after the other along k.
template <class S> struct linear_loader {
    using Element = typename S::Element;
    using params = typename S::params;
    using w_tile = typename S::w_tile;
    using x_share = tile_share<typename S::x_tile, S::THREADS>;
    using w_share = tile_share<w_tile, S::THREADS>;
    static constexpr int TILE_K = S::TILE_K;
    static constexpr bool RAGGED_K = !S::IN_PARTS && (!S::K || S::K % TILE_K);
    static constexpr bool X_CHECKED = !S::M || S::M % S::TILE_M || RAGGED_K;
    static constexpr bool W_CHECKED = !S::N || S::N % S::TILE_N || RAGGED_K;
    // Of rows of w in another order, so many have registers; more are found anew for each tile.
    static constexpr bool KEEPS_ROWS = S::HALF && w_share::count <= 4;
    // What comes first is all that there is of a small tile: then its way is what counts. With a
    // rotation, angles are made meanwhile.
    static constexpr bool PREFETCHES = S::WAIT == LINEAR_PREFETCHES && S::IS_SMALL && S::K &&
                                       S::K_TILES < S::STAGES && !S::IN_PARTS && !S::ROTATES;

    const params &p;
    const linear_place &b;
    typename S::memory shared;
    int next;                   // in k
    const Element *x_at, *w_at; // IN_PARTS: first_of_x and first_of_w
    int w_row[KEEPS_ROWS ? w_share::count : 1];

    __device__ __forceinline__ linear_loader(const params &given, const linear_place &at,
                                             const typename S::memory &memory)
        : p(given), b(at), shared(memory), next(at.begin)
    {
        if constexpr (S::IN_PARTS) {
            x_at = first_of_x();
            w_at = first_of_w();
        }
        if constexpr (KEEPS_ROWS)
#pragma unroll
            for (int i = 0; i < w_share::count; i++)
                w_row[i] = find_w_row(w_share(threadIdx.x), i);
    }

    // This thread. Large tiles by k leave no registers for what is made of it: that is made anew.
    static __device__ __forceinline__ int thread()
    {
        constexpr bool tight = S::WEIGHTS_BY_K && !S::IS_SMALL;
        return tight ? thread_index_anew() : static_cast<int>(threadIdx.x);
    }

    // Its first chunk of the next tile of x, and of w. Halves, which are copied between products,
    // keep them; a whole tile's copies take them from what else is known.
    __device__ __forceinline__ const Element *first_of_x() const
    {
        const x_share mine(thread());
        const linear_rows<const Element> x = S::source_of_x(p);
        const i64 jump = S::X_JUMPS ? b.x_jump : 0;
        return x.data + (b.m + mine.row) * x.stride + jump + mine.column() + next;
    }

    __device__ __forceinline__ const Element *first_of_w() const
    {
        const w_share mine(thread());
        const linear_rows<const Element> w = S::source_of_w(p);
        if constexpr (S::WEIGHTS_BY_K) {
            const int n = b.n + mine.column();
            return S::w_at(p, n < S::n_of(p) ? n : 0, next + mine.row);
        } else {
            return w.data + (b.n + mine.row) * w.stride + mine.column() + next;
        }
    }

    // Bytes of a copy.
    static __device__ __forceinline__ int width_of(int given)
    {
        return S::IN_PARTS ? TILE_COPY_WIDE : given;
    }

    // The row of w that this thread's chunk i is of; -1: there is none.
    __device__ __forceinline__ int find_w_row(const w_share &mine, int i) const
    {
        const int n = b.n + mine.row_of(i);
        return n < S::n_of(p) ? S::column_of(p, n) : -1;
    }

    // Elements that exist of a chunk that begins in column `column` of the next tile.
    __device__ __forceinline__ int valid_from(int column) const
    {
        constexpr int all = 16 / static_cast<int>(sizeof(Element));
        return RAGGED_K ? max(0, min(b.end - next - column, all)) : all;
    }

    // Rows of w in the order of the tiles' columns.
    template <bool WIDE>
    __device__ __forceinline__ void copy_permuted(const w_tile &to, tile_part part)
    {
        const w_share mine(KEEPS_ROWS ? thread() : thread_index_anew());
        const int column = mine.column(), valid = valid_from(column);
        const linear_rows<const Element> w = S::source_of_w(p);
        const Element *from = w.data + next + column;
        const i64 stride = w.stride;
        const auto source = [=](int i) {
            const int row = WIDE && KEEPS_ROWS
                                ? w_row[i]
                                : find_w_row(mine, i); // an index that changes has no register
            return tile_source<Element>{from + max(row, 0) * stride, row < 0 ? 0 : valid};
        };
        if constexpr (WIDE)
            copy_tile_wide<S::THREADS>(to, thread(), source, part);
        else
            copy_tile_by_chunks<S::THREADS>(to, width_of(p.w_width), threadIdx.x, source);
    }

    // Rows from `first` on, the thread's first chunk; of the tile's rows `rows` exist.
    template <bool WIDE, bool CHECKED, bool FRESH, class Tile>
    __device__ __forceinline__ void copy_rows(const Tile &to, const Element *first, i64 stride,
                                              int rows, int width, tile_part part)
    {
        const tile_share<Tile, S::THREADS> mine(thread());
        const int valid = valid_from(mine.column());
        const auto source = [=](int i) {
            return tile_source<Element>{first + i * mine.step * stride,
                                        !CHECKED || mine.row_of(i) < rows ? valid : 0};
        };
        if constexpr (WIDE)
            copy_tile_wide<S::THREADS>(to, thread(), source, part);
        else
            copy_tile_by_chunks<S::THREADS, FRESH>(to, width, threadIdx.x, source);
    }

    // Rows of k of the tile's columns.
    template <bool WIDE> __device__ __forceinline__ void copy_by_k(const w_tile &to, tile_part part)
    {
        const w_share mine(thread());
        const int n = b.n + mine.column();
        const int valid =
            W_CHECKED ? max(0, min(S::n_of(p) - n, w_tile::per_chunk)) : w_tile::per_chunk;
        const Element *first = first_of_w();
        const int left = b.end - next - mine.row;
        const i64 stride = p.w.stride;
        const auto source = [=](int i) {
            const int k = i * mine.step;
            return tile_source<Element>{first + k * stride, !RAGGED_K || k < left ? valid : 0};
        };
        if constexpr (WIDE)
            copy_tile_wide<S::THREADS>(to, thread(), source, part);
        else if (p.w_width == TILE_COPY_WIDE || !p.w_jumps.jump)
            copy_tile_by_chunks<S::THREADS>(to, p.w_width, threadIdx.x, source);
        else
            copy_over_jumps(to, n, valid);
    }

    // A chunk's columns may lie apart.
    __device__ __forceinline__ void copy_over_jumps(const w_tile &to, int n, int valid)
    {
        const w_share mine(threadIdx.x);
#pragma unroll 1 // seldom
        for (int i = 0; i < mine.count; i++)
            for (int e = 0; mine.has(i) && e < w_tile::per_chunk; e++) {
                const int k = next + mine.row_of(i);
                const bool exists = e < valid && k < b.end;
                copy_piece<sizeof(Element)>(
                    static_cast<Element *>(to.at(mine.row_of(i), mine.chunk)) + e,
                    exists ? S::w_at(p, n + e, k) : p.w.data, exists ? sizeof(Element) : 0);
            }
    }

    // Rows that may lie apart in groups.
    __device__ __forceinline__ void copy_jumping_x(const typename S::x_tile &to)
    {
        const tile_share<typename S::x_tile, S::THREADS> mine(threadIdx.x);
        const int column = next + mine.column(), valid = valid_from(mine.column());
        const auto source = [=](int i) {
            const int m = b.m + mine.row_of(i);
            return m < S::m_of(p) ? tile_source<Element>{S::x_row(p, m) + column, valid}
                                  : tile_source<Element>{p.x.data, 0};
        };
        copy_tile_by_chunks<S::THREADS, S::FRESH>(to, p.x_width, threadIdx.x, source);
    }

    template <bool WIDE> __device__ __forceinline__ void load_x(int stage, tile_part part = {})
    {
        if constexpr (S::X_JUMPS && !WIDE)
            copy_jumping_x(shared.x(stage));
        else
            copy_rows<WIDE, X_CHECKED, S::FRESH>(shared.x(stage), S::IN_PARTS ? x_at : first_of_x(),
                                                 S::source_of_x(p).stride, S::m_of(p) - b.m,
                                                 width_of(p.x_width), part);
    }

    template <bool WIDE> __device__ __forceinline__ void load_w(int stage, tile_part part = {})
    {
        if constexpr (S::WEIGHTS_BY_K)
            copy_by_k<WIDE>(shared.w(stage), part);
        else if constexpr (S::HALF)
            copy_permuted<WIDE>(shared.w(stage), part);
        else
            copy_rows<WIDE, W_CHECKED, false>(shared.w(stage), S::IN_PARTS ? w_at : first_of_w(),
                                              S::source_of_w(p).stride, S::n_of(p) - b.n,
                                              width_of(p.w_width), part);
    }

    // Whether copies are of 16 bytes, and the rows of a tile at the same distance.
    __device__ __forceinline__ bool is_wide() const
    {
        if constexpr (S::X_JUMPS)
            if (p.x_jumps.jump && p.x_jumps.group % S::TILE_M)
                return false;
        return width_of(p.x_width) == TILE_COPY_WIDE && width_of(p.w_width) == TILE_COPY_WIDE;
    }

    // Closes a group of copies, an empty one behind the end.
    __device__ __forceinline__ void end_load()
    {
        copy_commit();
        next += TILE_K;
        if constexpr (S::IN_PARTS) {
            x_at += TILE_K;
            w_at += TILE_K;
        }
    }

    template <bool WIDE> __device__ __forceinline__ void load_as(int stage)
    {
        if (next < b.end) {
            load_x<WIDE>(stage);
            load_w<WIDE>(stage);
        }
        end_load();
    }

    __device__ __forceinline__ void load(int stage)
    {
        load_part(stage, {});
        end_load();
    }

    // A load in parts, if it is_wide; else all of it is part 0. end_load comes behind the last.
    __device__ __forceinline__ void load_part(int stage, tile_part part)
    {
        if (next >= b.end)
            return;
        if (is_wide()) {
            load_x<true>(stage, part);
            load_w<true>(stage, part);
        } else if (part.number == 0) {
            load_x<false>(stage);
            load_w<false>(stage);
        }
    }

    // Unrolled, the addresses of the first tiles are one and constants, which counts where a kernel
    // is brief. It takes registers, of which large tiles leave none.
    static constexpr int UNROLL = S::IS_SMALL ? S::STAGES : 1;

    // Of w first: that need not wait for the kernel that makes x.
    template <bool WIDE> __device__ __forceinline__ void load_around_wait()
    {
        constexpr int TIMES = WIDE ? UNROLL : 1;
#pragma unroll TIMES
        for (int s = 0; s < S::STAGES - 1; s++, next += TILE_K)
            if (next < b.end)
                load_w<WIDE>(s);
        next = b.begin;
        wait_for_predecessor();
        let_successor_start();
#pragma unroll TIMES
        for (int s = 0; s < S::STAGES - 1; s++) {
            if (next < b.end)
                load_x<WIDE>(s);
            end_load();
        }
    }

    template <bool WIDE> __device__ __forceinline__ void load_first_as()
    {
        constexpr int TIMES = WIDE ? UNROLL : 1; // there is more code for copies of any width
        if constexpr (S::WAIT == LINEAR_WAITS_FOR_X) {
            load_around_wait<WIDE>();
        } else {
#pragma unroll TIMES
            for (int s = 0; s < S::STAGES - 1; s++)
                load_as<WIDE>(s);
        }
    }

    __device__ __forceinline__ void prefetch_first() const
    {
        const int bytes = (b.end - b.begin) * static_cast<int>(sizeof(Element));
        const auto row = [&](int i) -> const Element * {
            const int m = b.m + i, n = b.n + i - S::TILE_M;
            if (i < S::TILE_M)
                return m < S::m_of(p) ? S::x_row(p, m) + b.begin : nullptr;
            return n < S::n_of(p) ? S::w_at(p, n, b.begin) : nullptr;
        };
        prefetch_rows<S::THREADS>(S::TILE_M + S::TILE_N, bytes, threadIdx.x, row);
    }

    // All stages but one: the loads run that far ahead.
    __device__ __forceinline__ void load_first()
    {
        if constexpr (PREFETCHES)
            prefetch_first();
        if constexpr (S::WAIT == LINEAR_WAITS || S::WAIT == LINEAR_PREFETCHES) {
            wait_for_predecessor();
            let_successor_start();
        }
        if (is_wide())
            load_first_as<true>();
        else
            load_first_as<false>();
    }

    // Returns when the oldest tile on its way is there, and nobody still reads
    // what was read before.
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
        return stage + 1 == S::RING_TILES ? 0 : stage + 1;
    }
};

} // namespace fajit

#endif
