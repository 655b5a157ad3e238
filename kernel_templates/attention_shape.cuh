// What all of attention.cuh works on, made of the constants C of an instance: the launch
// parameters, shared memory, and the places of a block and of a warp.
#ifndef FAJIT_ATTENTION_SHAPE_CUH
#define FAJIT_ATTENTION_SHAPE_CUH

#include "fajit/dtype.cuh"
#include "fajit/gathered.cuh"
#include "fajit/key_mask.cuh"
#include "fajit/mma.cuh"
#include "fajit/multiply.cuh"
#include "fajit/row_tile.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// [batch, head, token, dim], strides in elements.
template <class T> struct attention_tensor {
    T *data;
    long long batch, head, token;
};

// Mirrored by attention_kernel_params in src/ops/attention.h.
template <class Element> struct attention_params {
    attention_tensor<const Element> q, k, v;
    attention_tensor<Element> out;
    float *lse; // [batch, heads_q, seqlen_q], tokens beside each other
    long long lse_batch, lse_head;
    int batch, heads_q, heads_k, seqlen_q, seqlen_k;
    int width_q, width_k, width_v, width_out; // bytes of an access that addresses allow
    int tiles;                                // of queries of a head
    int section;                              // heads, through all batches, that run side by side
};

// Where a block works.
struct attention_place {
    unsigned batch, head; // so that their products with strides need no sign
    int first_row;
    int rows; // of the tile that exist
};

struct attention_warp {
    int lane;
    int first_row; // in the tile
    int first_key; // in a key tile
    int row_warp, key_warp;
};

// S of everything below and in the other headers: the constants, and what follows from them.
template <class C> struct attention_shape : C {
    using Element = typename C::Element;
    using params = attention_params<Element>;
    using mask = key_mask<C::MASK>;

    static constexpr int THREADS = 32 * C::ROW_WARPS * C::KEY_WARPS;
    static constexpr int WARP_ROWS = 16 * C::ROW_TILES, ROWS = WARP_ROWS * C::ROW_WARPS;
    static constexpr int WARP_KEYS = C::KEY_TILE / C::KEY_WARPS; // of a tile
    static constexpr int K = step_columns<Element>;
    static constexpr int DIM = (C::HEAD_DIM + K - 1) / K * K, DIM_V = (C::HEAD_DIM_V + 7) / 8 * 8;
    static constexpr int KEY_FRAGMENTS = WARP_KEYS / 8, VALUE_FRAGMENTS = DIM_V / 8;
    static_assert(WARP_KEYS % 16 == 0 && (C::KEY_WARPS == 1 || C::ROW_TILES == 1) &&
                      (sizeof(Element) == 2 || C::ROW_TILES == 1),
                  "no such plan");

    // Of a warp: rows by keys, and rows by columns of the output.
    using scores = fragment_c<float>[C::ROW_TILES][KEY_FRAGMENTS];
    using accumulated = fragment_c<float>[C::ROW_TILES][VALUE_FRAGMENTS];

    static __device__ __forceinline__ int seqlen_q_of(const params &p)
    {
        return C::SEQLEN_Q ? C::SEQLEN_Q : p.seqlen_q;
    }

    static __device__ __forceinline__ int seqlen_k_of(const params &p)
    {
        return C::SEQLEN_K ? C::SEQLEN_K : p.seqlen_k;
    }

    static __device__ __forceinline__ int heads_q_of(const params &p)
    {
        return C::HEADS_Q ? C::HEADS_Q : p.heads_q;
    }

    static __device__ __forceinline__ int heads_k_of(const params &p)
    {
        return C::HEADS_K ? C::HEADS_K : p.heads_k;
    }

    // --- shared memory ---------------------------------------------------------------------------

    using query_tile = tile<Element, ROWS, DIM>;
    using out_tile = tile<Element, ROWS, DIM_V>; // in the queries' place, at the end
    using key_tile = tile<Element, C::KEY_TILE, DIM>;
    using value_tile = tile<Element, C::KEY_TILE, DIM_V>;

    static constexpr int FRONT_BYTES =
        query_tile::bytes > out_tile::bytes ? query_tile::bytes : out_tile::bytes;
    static constexpr int RING_BYTES = C::STAGES * (key_tile::bytes + value_tile::bytes);
    // What a warp leaves of its part of the keys for the one that merges, in the rings' place.
    static constexpr int PART_FLOATS = 4 * VALUE_FRAGMENTS + 4; // of a lane
    static constexpr int PARTS_BYTES = (C::KEY_WARPS - 1) * C::ROW_WARPS * PART_FLOATS * 128;
    static constexpr int SHARED_BYTES =
        FRONT_BYTES + (RING_BYTES > PARTS_BYTES ? RING_BYTES : PARTS_BYTES);

    // Queries or output, then STAGES tiles of keys, then as many of values. `base`: a multiple of
    // 16 bytes.
    struct memory {
        unsigned char *base;

        __device__ __forceinline__ query_tile queries() const
        {
            return {base};
        }

        __device__ __forceinline__ out_tile out() const
        {
            return {base};
        }

        __device__ __forceinline__ key_tile keys(int stage) const
        {
            return {base + FRONT_BYTES + stage * key_tile::bytes};
        }

        __device__ __forceinline__ value_tile values(int stage) const
        {
            return {base + FRONT_BYTES + C::STAGES * key_tile::bytes + stage * value_tile::bytes};
        }

        // Of a lane's numbers the first; the next one is 32 further. `part` of KEY_WARPS - 1.
        __device__ __forceinline__ float *parts(int part, int row_warp, int lane) const
        {
            return reinterpret_cast<float *>(base + FRONT_BYTES) +
                   (part * C::ROW_WARPS + row_warp) * PART_FLOATS * 32 + lane;
        }
    };

    template <class Tile> static __device__ __forceinline__ Element *elements(const Tile &tile)
    {
        return reinterpret_cast<Element *>(tile.data);
    }

    // --- where a block and a warp work -----------------------------------------------------------

    // Blocks run section by section, so that the keys and values of the heads that run side by side
    // stay in the L2 cache; in a section, tile by tile; with a causal mask,
    // the longest tiles first.
    static __device__ __forceinline__ attention_place locate(const params &p, int block)
    {
        const unsigned heads_q = heads_q_of(p), batch = C::BATCH ? C::BATCH : p.batch;
        const unsigned heads = heads_q * batch, number = static_cast<unsigned>(block);
        unsigned first = 0, width = heads, inside = number;
        if (static_cast<unsigned>(p.section) < heads) { // else they are one section
            const unsigned in_section = static_cast<unsigned>(p.section) * p.tiles;
            const unsigned section = number / in_section;
            first = section * p.section;
            width = min(static_cast<unsigned>(p.section), heads - first);
            inside = number - section * in_section;
        }
        const unsigned turn = width == heads ? inside / heads : inside / width;
        const unsigned head = first + inside - turn * width;
        const int tile = C::MASK ? p.tiles - 1 - static_cast<int>(turn) : static_cast<int>(turn);
        attention_place at;
        at.batch = head / heads_q;
        at.head = head - at.batch * heads_q;
        at.first_row = tile * ROWS;
        at.rows = min(ROWS, seqlen_q_of(p) - at.first_row);
        return at;
    }

    static __device__ __forceinline__ attention_warp locate_warp()
    {
        const int thread = thread_index_anew(), warp = thread / 32;
        const int row_warp = warp % C::ROW_WARPS, key_warp = warp / C::ROW_WARPS;
        return {thread % 32, row_warp * WARP_ROWS, key_warp * WARP_KEYS, row_warp, key_warp};
    }
};

} // namespace fajit

#endif
