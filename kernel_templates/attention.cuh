// What one block of attention does: attention_block<C>, for templates that are attention, alone or
// as a step of more. C holds the constants of an instance, with the names and meanings of
// attention.cu's table (but for MIN_BLOCKS, SMEM_BYTES and PARAM_BYTES), and besides
//
//     FRESH              bool: q, k and v may have been written by the same launch, so that they
//                        are not read as what nobody writes
//     WAITS              bool: before its first loads the block waits for the kernel before it in
//                        the stream, and lets the one behind it start
//
// A block takes a tile of queries of one head through all key tiles that they see, the last first:
// so what needs a mask comes at the beginning. Scores, exponentials and sums stay in registers.
//
// Copies run ahead in two rings of STAGES tiles, in groups of the keys and the values of one tile
// after the other. Before the scores of tile i, its keys have come, and the values' place of
// tile i - 1 is free; before the product with its values, those have come, and the keys' place of
// tile i is free. There is one barrier before each.
#ifndef FAJIT_ATTENTION_CUH
#define FAJIT_ATTENTION_CUH

#include "fajit/anew.cuh"
#include "fajit/attention_products.cuh"
#include "fajit/attention_shape.cuh"
#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/order.cuh"
#include "fajit/row_tile.cuh"
#include "fajit/softmax.cuh"

namespace fajit {

// --- load ----------------------------------------------------------------------------------------

// The keys and values of one head, tile by tile.
template <class S> struct attention_keys {
    using Element = typename S::Element;
    using memory = typename S::memory;

    strided_rows<Element> k, v;
    int keys, width_k, width_v;

    __device__ __forceinline__ attention_keys(const typename S::params &p,
                                              const attention_place &at)
        : keys(S::seqlen_k_of(p)), width_k(p.width_k), width_v(p.width_v)
    {
        const int heads_q = S::heads_q_of(p), heads_k = S::heads_k_of(p);
        const int head = at.head / (heads_q / heads_k);
        k = {p.k.data + at.batch * p.k.batch + head * p.k.head, p.k.token};
        v = {p.v.data + at.batch * p.v.batch + head * p.v.head, p.v.token};
    }

    __device__ __forceinline__ void start_keys(const memory &m, int stage, int tile) const
    {
        start_rows<S::LOAD_BYTES, S::HEAD_DIM, S::THREADS, S::FRESH>(
            m.keys(stage), k, tile * S::KEY_TILE, keys, width_k);
    }

    __device__ __forceinline__ void start_values(const memory &m, int stage, int tile) const
    {
        start_rows<S::LOAD_BYTES_V, S::HEAD_DIM_V, S::THREADS, S::FRESH>(
            m.values(stage), v, tile * S::KEY_TILE, keys, width_v);
    }
};

template <class S>
__device__ __forceinline__ void attention_start_queries(const typename S::params &p,
                                                        const attention_place &at,
                                                        const typename S::memory &m)
{
    const strided_rows<typename S::Element> rows = {
        p.q.data + at.batch * p.q.batch + at.head * p.q.head, p.q.token};
    start_rows<S::LOAD_BYTES, S::HEAD_DIM, S::THREADS, S::FRESH>(m.queries(), rows, at.first_row,
                                                                 at.first_row + at.rows, p.width_q);
}

// --- what a warp has found so far ----------------------------------------------------------------

template <class S> struct attention_state {
    using memory = typename S::memory;
    static constexpr int SUMS = 4 * S::VALUE_FRAGMENTS; // of a lane, with one row tile

    online_softmax rows[S::ROW_TILES];
    typename S::accumulated o;

    __device__ __forceinline__ void init()
    {
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++) {
            rows[i].init();
#pragma unroll
            for (int n = 0; n < S::VALUE_FRAGMENTS; n++)
                o[i][n] = fragment_c<float>{};
        }
    }

    // --- mask ------------------------------------------------------------------------------------

    // `row`, `key`: those of the warp's first score.
    static __device__ __forceinline__ void apply_mask(const typename S::mask &m, int lane, int row,
                                                      int key, typename S::scores &s)
    {
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
#pragma unroll
            for (int n = 0; n < S::KEY_FRAGMENTS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!m.sees(row + 16 * i + static_cast<int>(fragment_row(lane, e)),
                                key + 8 * n + static_cast<int>(fragment_column(lane, e))))
                        s[i][n].value[e] = minus_infinity();
    }

    // --- softmax update --------------------------------------------------------------------------

    // Scores of tile `tile` are made exponentials; `factor` is for what was accumulated before.
    __device__ __forceinline__ void update(const typename S::mask &m, const attention_place &at,
                                           const attention_warp &w, int tile, typename S::scores &s,
                                           float (&factor)[S::ROW_TILES][2])
    {
        const int row = at.first_row + w.first_row, key = tile * S::KEY_TILE + w.first_key;
        if (tile * S::KEY_TILE + S::KEY_TILE > m.whole(at.first_row))
            apply_mask(m, w.lane, row, key, s);
        constexpr float scale = static_cast<float>(S::SCALE * 1.4426950408889634074);
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
            rows[i].update(s[i], scale, factor[i]);
    }

    // --- merge what warps found in their parts of the keys ---------------------------------------

    __device__ __forceinline__ void leave_part(const memory &m, const attention_warp &w) const
    {
        float *to = m.parts(w.key_warp - 1, w.row_warp, w.lane);
#pragma unroll
        for (int n = 0; n < S::VALUE_FRAGMENTS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[(4 * n + e) * 32] = o[0][n].value[e];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to[(SUMS + r) * 32] = rows[0].shift[r];
            to[(SUMS + 2 + r) * 32] = rows[0].sum[r];
        }
    }

    __device__ __forceinline__ void take_part(const memory &m, const attention_warp &w, int part)
    {
        const float *from = m.parts(part, w.row_warp, w.lane);
        online_softmax other;
        float own[2], theirs[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            other.shift[r] = from[(SUMS + r) * 32];
            other.sum[r] = from[(SUMS + 2 + r) * 32];
        }
        rows[0].merge(other, own, theirs);
#pragma unroll
        for (int n = 0; n < S::VALUE_FRAGMENTS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &x = o[0][n].value[e];
                x = x * own[e / 2] + from[(4 * n + e) * 32] * theirs[e / 2];
            }
    }

    // The first warp of each row tile ends up with everything; always in the same order.
    __device__ __forceinline__ void merge(const memory &m, const attention_warp &w)
    {
        __syncthreads(); // all are done with the tiles, whose place the parts take
        if (w.key_warp > 0)
            leave_part(m, w);
        __syncthreads(); // all parts are there
        if (w.key_warp > 0)
            return;
#pragma unroll 1
        for (int part = 0; part < S::KEY_WARPS - 1; part++)
            take_part(m, w, part);
    }

    // --- write -----------------------------------------------------------------------------------

    __device__ __forceinline__ void
    write_lse(const typename S::params &p, const attention_place &at, const attention_warp &w) const
    {
        float *to = p.lse + at.batch * p.lse_batch + at.head * p.lse_head + at.first_row;
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = w.first_row + 16 * i + w.lane / 4 + 8 * r;
                if (w.lane % 4 == 0 && row < at.rows)
                    store(to + row, pack<float, 1>({rows[i].log_sum(r)}));
            }
    }

    // The warp's rows of the output, rounded to storage.
    __device__ __forceinline__ void round(const attention_warp &w,
                                          const typename S::out_tile &to) const
    {
        using out_tile = typename S::out_tile;
        using of_out = tile_offset<out_tile>;
        constexpr int FURTHER = sizeof(typename S::Element) / 2; // chunks that 8 elements take
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float factor = rows[i].finish(r);
                const int row = w.first_row + 16 * i + w.lane / 4 + 8 * r;
                const int begin = of_out::of(row, w.lane % 4 * 2 / out_tile::per_chunk) +
                                  w.lane % 4 * 2 % out_tile::per_chunk;
#pragma unroll
                for (int n = 0; n < S::VALUE_FRAGMENTS; n++)
                    round_pair(S::elements(to) + of_out::behind(begin, FURTHER * n),
                               o[i][n].value[2 * r] * factor, o[i][n].value[2 * r + 1] * factor);
            }
    }

    template <class T>
    static __device__ __forceinline__ void round_pair(T *to, float first, float second)
    {
        if constexpr (sizeof(T) == 2)
            *reinterpret_cast<unsigned *>(to) = pack_pair(T{}, first, second);
        else
            *reinterpret_cast<float2 *>(to) = make_float2(first, second);
    }

    // Through shared memory, so that whole rows are written. The place is that of the warp's own
    // queries; no other warp reads or writes it any more.
    __device__ __forceinline__ void write_out(const typename S::params &p,
                                              const attention_place &at, const attention_warp &w,
                                              const memory &m) const
    {
        __syncwarp(); // all lanes are done with the queries
        round(w, m.out());
        __syncwarp(); // all rows of the warp are there
        typename S::Element *to = p.out.data + at.batch * p.out.batch + at.head * p.out.head +
                                  (at.first_row + w.first_row) * p.out.token;
        store_rows<S::LOAD_BYTES_V, S::WARP_ROWS, S::HEAD_DIM_V>(
            to, p.out.token, m.out(), w.first_row, at.rows - w.first_row, p.width_out, w.lane);
    }
};

// --- all of it -----------------------------------------------------------------------------------

template <class C> struct attention_block {
    using shape = attention_shape<C>;
    using params = typename shape::params;
    using memory = typename shape::memory;
    using state = attention_state<shape>;
    static constexpr int THREADS = shape::THREADS, SHARED_BYTES = shape::SHARED_BYTES;
    static constexpr int STAGES = C::STAGES;

    // STAGES tiles of keys and of values, each in a group of its own. The queries are in the first.
    static __device__ __forceinline__ void start(const attention_keys<shape> &source,
                                                 const memory &m, int tiles)
    {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) {
            if (i < tiles)
                source.start_keys(m, i, tiles - 1 - i);
            copy_commit();
            if (i < tiles)
                source.start_values(m, i, tiles - 1 - i);
            copy_commit();
        }
    }

    // Tile by tile.
    static __device__ __forceinline__ void attend(const params &p, const attention_place &at,
                                                  const memory &m, state &to)
    {
        using mask = typename shape::mask;
        const mask see = mask::make(shape::seqlen_q_of(p), shape::seqlen_k_of(p));
        const attention_keys<shape> source(p, at);
        const int tiles = (see.end(at.first_row + at.rows - 1) + C::KEY_TILE - 1) / C::KEY_TILE;
        if constexpr (C::WAITS) {
            wait_for_predecessor();
            let_successor_start();
        }
        if (tiles)
            attention_start_queries<shape>(p, at, m);
        start(source, m, tiles);
        int stage = 0;
#pragma unroll 1
        for (int i = 0; i < tiles; i++) {
            const int tile = tiles - 1 - i, before = (stage + STAGES - 1) % STAGES;
            if (i == 0)
                copy_wait<2 * STAGES - 1>();
            else
                copy_wait<2 * STAGES - 2>();
            __syncthreads(); // all see these keys, and all are done with the values before
            if (i > 0) {
                if (i + STAGES - 1 < tiles)
                    source.start_values(m, before, tile - (STAGES - 1));
                copy_commit();
            }
            const attention_warp w = shape::locate_warp();
            typename shape::scores s;
            attention_scores<shape>::multiply(m.queries(), m.keys(stage), w, s);
            copy_wait<2 * STAGES - 2>();
            __syncthreads(); // all see these values, and all are done with these keys
            if (i + STAGES < tiles)
                source.start_keys(m, stage, tile - STAGES);
            copy_commit();
            float factor[C::ROW_TILES][2];
            to.update(see, at, w, tile, s, factor);
            attention_values<shape>::multiply(m.values(stage), w, s, factor, to.o);
            stage = (stage + 1) % STAGES;
        }
    }

    // Tile and head number `block` of p.tiles times heads_q times batch. All THREADS threads call
    // it, with SHARED_BYTES of shared memory at a multiple of 128 bytes. The threads leave one by
    // one, while others still read there: before they use that memory again, as for another tile,
    // they need __syncthreads.
    static __device__ __forceinline__ void run(const params &p, int block, unsigned char *shared)
    {
        attention_place at = shape::locate(p, block);
        const memory m = {shared};
        state s;
        s.init();
        attend(p, at, m, s);
        if constexpr (sizeof(typename C::Element) == 4 && shape::DIM_V > 128)
            at = shape::locate(p, anew(block)); // meanwhile every register was needed
        const attention_warp w = shape::locate_warp();
#pragma unroll
        for (int i = 0; i < C::ROW_TILES; i++)
            s.rows[i].reduce();
        if constexpr (C::KEY_WARPS > 1) {
            s.merge(m, w);
            if (w.key_warp > 0)
                return;
        } else if constexpr (shape::out_tile::row_bytes != shape::query_tile::row_bytes) {
            __syncthreads(); // rows of the output lie in other warps' queries
        }
        if constexpr (C::LSE)
            s.write_lse(p, at, w);
        s.write_out(p, at, w, m);
    }
};

} // namespace fajit

#endif
