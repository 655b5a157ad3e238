// What lowrank_small.cuh keeps in shared memory, a block's share of the work, and how it is loaded.
// S is a lowrank_shape, whose SMALL is laid out as a lowrank_small.
#ifndef FAJIT_LOWRANK_SMALL_LOAD_CUH
#define FAJIT_LOWRANK_SMALL_LOAD_CUH

#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/lowrank_shape.cuh"
#include "fajit/mma.cuh"
#include "fajit/padded.cuh"
#include "fajit/products.cuh"

namespace fajit {

__device__ __forceinline__ constexpr int lowrank_divide_up(int n, int d)
{
    return (n + d - 1) / d;
}

// --- shared memory -------------------------------------------------------------------------------

// The same sums as in src/ops/lowrank_kv_small.c.
template <class S> struct lowrank_small_shape {
    using Element = typename S::Element;
    using Sum = typename sum_type<S::SUMS>::type;
    static constexpr int WARPS = LOWRANK_WARPS, THREADS = 32 * WARPS;
    static constexpr int ROWS = S::SMALL.rows, DEPTH = S::SMALL.depth, STAGES = S::SMALL.stages,
                         AHEAD = S::SMALL.ahead, DOWN_COLUMNS = S::SMALL.down_columns,
                         UP_COLUMNS = S::SMALL.up_columns, UP_DEPTH = S::SMALL.up_depth,
                         UP_STAGES = S::SMALL.up_stages;
    static constexpr int WARP_COLUMNS = UP_COLUMNS / WARPS; // of the second product
    static constexpr int PASSES =                           // over the latent
        S::HAS_DOWN ? (S::RANK + DOWN_COLUMNS - 1) / (S::HAS_DOWN ? DOWN_COLUMNS : 1) : 0;
    static constexpr bool SPLITS_LATENT = S::STEP == LOWRANK_DOWN; // among blocks, a pass each

    // Columns of the latent, with zeros behind RANK. Elements from one row to the next.
    static constexpr int LATENT_COLUMNS = (S::RANK + 15) / 16 * 16;
    static constexpr int LATENT_ROW = padded_left<Element>(LATENT_COLUMNS);
    static constexpr int HIDDEN_ROW = padded_left<Element>(DEPTH);
    static constexpr int DOWN_ROW = padded_right(DOWN_COLUMNS), UP_ROW = padded_right(WARP_COLUMNS);

    static constexpr int TOKEN_BYTES = ROWS * S::TOKEN_BYTES;
    static constexpr int LATENT_BYTES = S::HAS_UP ? ROWS * LATENT_ROW * S::ELEMENT : 0;
    static constexpr int STAGE = ROWS * HIDDEN_ROW + DEPTH * DOWN_ROW;
    static constexpr int RING_BYTES = S::HAS_DOWN ? STAGES * STAGE * S::ELEMENT : 0; // of a warp
    static constexpr int PART = ROWS * DOWN_ROW; // a warp's sums
    static constexpr int PART_BYTES = S::HAS_DOWN ? PART * static_cast<int>(sizeof(Sum)) : 0;
    // In the place of what the warp has multiplied, if no more comes there.
    static constexpr bool PART_IN_RING = (PASSES == 1 || SPLITS_LATENT) && PART_BYTES <= RING_BYTES;
    static constexpr int UP_STAGE = UP_DEPTH * UP_ROW;
    static constexpr int UP_BYTES = S::HAS_UP ? UP_STAGES * UP_STAGE * S::ELEMENT : 0; // of a warp

    static constexpr int RINGS_AT = TOKEN_BYTES + LATENT_BYTES;
    static constexpr int PARTS_AT = PART_IN_RING ? RINGS_AT : RINGS_AT + WARPS * RING_BYTES;
    static constexpr int PART_APART = PART_IN_RING ? RING_BYTES : PART_BYTES;
    static constexpr int UP_AT =
        RINGS_AT + WARPS * RING_BYTES + (PART_IN_RING ? 0 : WARPS * PART_BYTES);
    static constexpr int SHARED_BYTES = UP_AT + WARPS * UP_BYTES;
    static_assert(SHARED_BYTES == S::SMALL.shared_bytes,
                  "host and kernel disagree about shared memory");
    static_assert(!S::HAS_DOWN || (STAGES >= 2 && AHEAD >= STAGES),
                  "a stage is loaded while another is multiplied");
    static_assert(!S::HAS_UP || UP_STAGES <= AHEAD, "groups are closed in the order of use");
    static_assert(DEPTH % sum_depth<S::SUMS> == 0 && UP_DEPTH % sum_depth<S::SUMS> == 0,
                  "whole steps");

    unsigned char *base;

    __device__ __forceinline__ token_row *rows() const
    {
        return reinterpret_cast<token_row *>(base);
    }
    // [ROWS, LATENT_ROW]
    __device__ __forceinline__ Element *latent() const
    {
        return reinterpret_cast<Element *>(base + TOKEN_BYTES);
    }
    // Of a warp: hidden [ROWS, HIDDEN_ROW], then w_down [DEPTH, DOWN_ROW].
    __device__ __forceinline__ Element *stage(int warp, int slot) const
    {
        return reinterpret_cast<Element *>(base + RINGS_AT + warp * RING_BYTES) + slot * STAGE;
    }
    // Its sums [ROWS, DOWN_ROW].
    __device__ __forceinline__ Sum *part(int warp) const
    {
        return reinterpret_cast<Sum *>(base + PARTS_AT + warp * PART_APART);
    }
    // Of a warp: w_up [UP_DEPTH, UP_ROW].
    __device__ __forceinline__ Element *up_stage(int warp, int slot) const
    {
        return reinterpret_cast<Element *>(base + UP_AT + warp * UP_BYTES) + slot * UP_STAGE;
    }
};

// A block's column tiles of the first product, and of the second: those of K, then those of V.
struct lowrank_share {
    int down_begin, down_end, up_begin, up_end, k_tiles;
};

template <class S>
__device__ __forceinline__ lowrank_share lowrank_share_of(const typename S::params &p)
{
    using shape = lowrank_small_shape<S>;
    const int block = static_cast<int>(blockIdx.y);
    lowrank_share s = {0, 0, 0, 0, 0};
    if constexpr (S::HAS_DOWN) {
        s.down_begin = shape::SPLITS_LATENT ? block : 0;
        s.down_end = shape::SPLITS_LATENT ? block + 1 : shape::PASSES;
    }
    if constexpr (S::HAS_UP) {
        s.k_tiles = lowrank_divide_up(S::columns_of(p, 0), shape::UP_COLUMNS);
        const int all = s.k_tiles + lowrank_divide_up(S::columns_of(p, 1), shape::UP_COLUMNS);
        const int each = lowrank_divide_up(all, static_cast<int>(gridDim.y));
        s.up_begin = min(block * each, all);
        s.up_end = min(s.up_begin + each, all);
    }
    return s;
}

// --- loads ---------------------------------------------------------------------------------------

// ROWS x COLUMNS elements of rows that follow one another through all batches, from row `first` on
// and column `begin`, which end at column `end`.
template <class S, int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void lowrank_load_rows(const typename S::params &p,
                                                  const lowrank_rows<typename S::Element> &from,
                                                  int bytes, i64 first, int begin, int end,
                                                  typename S::Element *to, int to_row, int thread)
{
    const i64 tokens = S::tokens_of(p), jump = S::jump_of(p, from);
    if (bytes == 16 && !jump && first + ROWS <= tokens && begin + COLUMNS <= end) {
        copy_padded_whole<ROWS, COLUMNS, THREADS>(
            to, to_row, thread, from.data + first * from.token + begin, from.token);
        return;
    }
    const auto source = [&](int r, int column) {
        const i64 n = first + r;
        const int left = n < tokens ? end - begin - column : 0;
        const typename S::Element *at = from.data;
        if (left > 0)
            at += n * from.token + begin + column + (jump ? divide(n, S::seqlen_of(p)) * jump : 0);
        return tile_source<typename S::Element>{at, left};
    };
    copy_padded<ROWS, COLUMNS, THREADS>(to, to_row, bytes, thread, source);
}

// DEPTH x COLUMNS of weights from row `first` of `rows`, columns from `begin` of `end`. Columns
// count through the heads, of `dim` columns each.
template <int DEPTH, int COLUMNS, class Element>
__device__ __forceinline__ void lowrank_load_weights(const lowrank_heads<Element> &from, int bytes,
                                                     int first, int rows, int begin, int end,
                                                     int dim, Element *to, int to_row, int lane)
{
    if (bytes == 16 && from.head == dim && first + DEPTH <= rows && begin + COLUMNS <= end) {
        copy_padded_whole<DEPTH, COLUMNS, 32>(to, to_row, lane,
                                              from.data + first * from.token + begin, from.token);
        return;
    }
    const auto source = [&](int r, int c) {
        const int column = begin + c, left = first + r < rows ? end - column : 0;
        const Element *at = from.data;
        if (left > 0) {
            const int head = from.head == dim ? 0 : column / dim;
            at += head * from.head + (first + r) * from.token + (column - head * dim);
        }
        return tile_source<Element>{at, left};
    };
    copy_padded<DEPTH, COLUMNS, 32>(to, to_row, bytes, lane, source);
}

// One warp's loads, in the order of their use. Each call closes a group, an empty
// one behind the last.
template <class S> struct lowrank_loads {
    using shape = lowrank_small_shape<S>;
    using Element = typename S::Element;
    static constexpr int APART = shape::DEPTH * shape::WARPS; // of the stages of a warp

    const typename S::params &p;
    const shape &m;
    const lowrank_share &s;
    const int warp, lane;
    int pass, first, slot;       // of the first product: what comes next
    int tile, up_first, up_slot; // of the second
    int up_left;                 // slots of it that are free

    __device__ __forceinline__ lowrank_loads(const typename S::params &params_, const shape &m_,
                                             const lowrank_share &share)
        : p(params_), m(m_), s(share), warp(static_cast<int>(threadIdx.x) / 32),
          lane(static_cast<int>(lane_index())), pass(share.down_begin), first(warp * shape::DEPTH),
          slot(0), tile(share.up_begin), up_first(0), up_slot(0), up_left(shape::UP_STAGES)
    {
    }

    __device__ __forceinline__ void load_down()
    {
        Element *to = m.stage(warp, slot);
        const int depth = S::model_dim_of(p);
        const lowrank_heads<Element> weights = {p.w_down.data, 0, S::RANK, p.w_down.token};
        lowrank_load_rows<S, shape::ROWS, shape::DEPTH, 32>(
            p, p.hidden, p.hidden_bytes, static_cast<i64>(blockIdx.x) * shape::ROWS, first, depth,
            to, shape::HIDDEN_ROW, lane);
        lowrank_load_weights<shape::DEPTH, shape::DOWN_COLUMNS>(
            weights, p.w_down_bytes, first, depth, pass * shape::DOWN_COLUMNS, S::RANK, S::RANK,
            to + shape::ROWS * shape::HIDDEN_ROW, shape::DOWN_ROW, lane);
        slot = slot + 1 == shape::STAGES ? 0 : slot + 1;
        first += APART;
        if (first - warp * shape::DEPTH >= depth) {
            first = warp * shape::DEPTH;
            pass++;
        }
    }

    __device__ __forceinline__ void load_up()
    {
        const int part = tile >= s.k_tiles, of_part = tile - (part ? s.k_tiles : 0);
        lowrank_load_weights<shape::UP_DEPTH, shape::WARP_COLUMNS>(
            p.w_up[part], p.w_up_bytes[part], up_first, S::RANK,
            of_part * shape::UP_COLUMNS + warp * shape::WARP_COLUMNS, S::columns_of(p, part),
            S::head_dim_of(p, part), m.up_stage(warp, up_slot), shape::UP_ROW, lane);
        up_slot = up_slot + 1 == shape::UP_STAGES ? 0 : up_slot + 1;
        up_left--;
        up_first += shape::UP_DEPTH;
        if (up_first >= S::RANK) {
            up_first = 0;
            tile++;
        }
    }

    // Of the first product, then of the second.
    __device__ __forceinline__ void load_next()
    {
        if constexpr (S::HAS_DOWN)
            if (pass < s.down_end) {
                load_down();
                copy_commit();
                return;
            }
        load_next_up();
    }

    __device__ __forceinline__ void load_next_up()
    {
        if constexpr (S::HAS_UP)
            if (up_left > 0 && tile < s.up_end)
                load_up();
        copy_commit();
    }

    // The AHEAD first ones: with more than STAGES, all that the first product needs.
    __device__ __forceinline__ void start()
    {
#pragma unroll 1
        for (int i = 0; i < shape::AHEAD; i++)
            load_next();
    }
};

} // namespace fajit

#endif
