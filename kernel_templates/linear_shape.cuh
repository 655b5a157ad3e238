// What all of linear.cuh works on, made of the constants C of an instance: the launch parameters,
// the order of columns, the place of a block, and shared memory.
#ifndef FAJIT_LINEAR_SHAPE_CUH
#define FAJIT_LINEAR_SHAPE_CUH

#include "fajit/dtype.cuh"
#include "fajit/padded.cuh"
#include "fajit/phase.cuh"
#include "fajit/positions.cuh"
#include "fajit/tile.cuh"

namespace fajit {

inline constexpr int LINEAR_FMA = 0, LINEAR_WHOLE = 1, LINEAR_SPLIT_TF32 = 2, LINEAR_SPLIT_BF16 = 3,
                     LINEAR_SPLIT_F16 = 4;                                   // ARITHMETIC
inline constexpr int LINEAR_SILU = 1, LINEAR_GELU = 2, LINEAR_GELU_TANH = 3; // ACTIVATION
inline constexpr int LINEAR_SCALE_TENSOR = 1, LINEAR_SCALE_ROW = 2;          // SCALES
inline constexpr int LINEAR_ROTATE_HALF = 1, LINEAR_ROTATE_INTERLEAVED = 2;  // ROTATION
inline constexpr int LINEAR_WAITS_NOT = 0, LINEAR_WAITS = 1, LINEAR_WAITS_FOR_X = 2,
                     LINEAR_PREFETCHES = 3;                             // WAIT
inline constexpr int LINEAR_ROTATED_ALL = 0, LINEAR_ROTATED_GIVEN = -1; // ROTATED

template <class T> struct linear_rows {
    T *data;
    i64 stride; // elements between rows
};

// Mirrored by linear_kernel_params in src/ops/linear.h.
template <class Element, class Addend, class Output> struct linear_params {
    linear_rows<const Element> x, w;
    linear_rows<Output> y[3]; // parts of the columns
    linear_rows<const Output> residual;
    const Addend *bias;
    const void *row_of;     // [m]
    i64 row_count;          // of the outputs
    const void *positions;  // [m]; null: position_offset and up
    const float *cos, *sin; // [max_position, ROTARY_DIM / 2]
    const float *inv_freq;  // [ROTARY_DIM / 2]
    const float *x_scale, *w_scale;
    unsigned *errors;    // may be null
    float *partial;      // [tiles, splits, TILE_M TILE_N]; SPLIT_F16: as below, "parts"
    unsigned *arrived;   // [tiles], zero before and after each launch
    frequency_rule rule; // unless RULE_BAKED
    int m, n, k;
    int x_width, w_width; // bytes of a copy: 16, 4, or one element
    int vector;           // VECTOR_WIDTH, or 1
    int splits, split_k;  // parts of k, and their size, a multiple of TILE_K
    int max_position, position_offset;
    int seqlen;  // rows after which positions that are not given begin again; 0: never
    int rotated; // columns that are heads to rotate, the first ones, with LINEAR_ROTATED_GIVEN
};

// Lines that are a stride apart, but for `jump` more behind each `group` of them.
struct linear_jumps {
    int group;
    i64 jump; // 0: there are none

    __device__ __forceinline__ i64 before(int line) const
    {
        return jump ? static_cast<i64>(divide(static_cast<unsigned>(line), group)) * jump : 0;
    }
};

// What an instance adds to linear_params, as C::Jumps.
struct linear_no_jumps {};

// With WEIGHTS_BY_K: w is [k, n], and its stride that of k.
struct linear_jumps_by_k {
    linear_jumps x_jumps, w_jumps; // of the rows of x, of the columns of w
};

// Rows are tokens, batch after batch, and columns heads. Mirrored by linear_batch_jumps in
// src/ops/linear.h.
struct linear_batch_jumps {
    linear_jumps x_jumps, y_jumps; // of the rows of x and of y[0]
    linear_jumps y_heads;          // of the columns of y[0]
};

// Where a block works.
struct linear_place {
    int m, n;       // first row of x, first column in the tiles' order
    int begin, end; // its part of k
    int tile, part; // numbers of the tile, and of the part
    int position;   // of the first row, where positions begin again after each p.seqlen rows
    i64 x_jump;     // with X_JUMPS: what x_jumps puts before the first row
};

template <bool WEIGHTS_BY_K, class T, int TILE_N, int TILE_K> struct linear_w_tile {
    using type = tile<T, TILE_N, TILE_K>;
};
template <class T, int TILE_N, int TILE_K> struct linear_w_tile<true, T, TILE_N, TILE_K> {
    using type = padded_tile<T, TILE_K, TILE_N>;
};

// S of everything below and in the other headers: the constants, and what follows from them.
template <class C> struct linear_shape : C {
    using Element = typename C::Element;
    using Output = typename C::Output;
    struct params : linear_params<Element, typename C::Addend, Output>, C::Jumps {};

    static constexpr bool HALF = C::ROTATION == LINEAR_ROTATE_HALF;
    static constexpr bool INTERLEAVED = C::ROTATION == LINEAR_ROTATE_INTERLEAVED;
    static constexpr bool ROTATES = HALF || INTERLEAVED;
    static constexpr int HEAD = C::HEAD_DIM ? C::HEAD_DIM : 1;
    static constexpr int THREADS = 32 * C::WARPS_M * C::WARPS_N * C::WARPS_K;
    // Sums of a thread leave registers for what else is to be kept.
    static constexpr bool IS_SMALL = C::TILE_M * C::TILE_N <= 64 * 64;

    static __device__ __forceinline__ int m_of(const params &p)
    {
        return C::M ? C::M : p.m;
    }

    static __device__ __forceinline__ int n_of(const params &p)
    {
        return C::N ? C::N : p.n;
    }

    static __device__ __forceinline__ int k_of(const params &p)
    {
        return C::K ? C::K : p.k;
    }

    // --- parts of x and w, in the workspace ------------------------------------------------------
    //
    // With SPLIT_F16 an earlier launch has split x and w into halves (linear_parts.cuh), and tiles
    // are copied from there. A row is made of groups of TILE_K elements, the last one filled up
    // with zeros: first the high halves of all of them, then the low ones. So a group is the 128
    // bytes that its float32 elements take. Behind [M, parts_k] of x and [N, parts_k] of w lie the
    // factors that undo the scales of their rows, [M + N].

    static constexpr bool IN_PARTS = C::ARITHMETIC == LINEAR_SPLIT_F16;

    static __device__ __forceinline__ int parts_k(const params &p)
    {
        return (k_of(p) + TILE_K - 1) / TILE_K * TILE_K;
    }

    // What tiles are copied from. Columns exist up to loaded_k.
    static __device__ __forceinline__ linear_rows<const Element> source_of_x(const params &p)
    {
        if constexpr (IN_PARTS)
            return {p.partial, parts_k(p)};
        else
            return p.x;
    }

    static __device__ __forceinline__ linear_rows<const Element> source_of_w(const params &p)
    {
        if constexpr (IN_PARTS)
            return {p.partial + static_cast<i64>(m_of(p)) * parts_k(p), parts_k(p)};
        else
            return p.w;
    }

    static __device__ __forceinline__ int loaded_k(const params &p)
    {
        return IN_PARTS ? parts_k(p) : k_of(p);
    }

    // Of the rows of x, then of those of w.
    static __device__ __forceinline__ float *inverse_scales(const params &p)
    {
        return p.partial + (static_cast<i64>(m_of(p)) + n_of(p)) * parts_k(p);
    }

    // --- x and w ---------------------------------------------------------------------------------

    static __device__ __forceinline__ const Element *x_row(const params &p, int m)
    {
        const Element *row = p.x.data + m * p.x.stride;
        if constexpr (C::X_JUMPS)
            row += p.x_jumps.before(m);
        return row;
    }

    // Weight k of column n of y.
    static __device__ __forceinline__ const Element *w_at(const params &p, int n, int k)
    {
        if constexpr (C::WEIGHTS_BY_K)
            return p.w.data + k * p.w.stride + n + p.w_jumps.before(n);
        else
            return p.w.data + n * p.w.stride + k;
    }

    // --- columns ---------------------------------------------------------------------------------

    // Whether there is a head that is rotated at column `column`, or behind it.
    static __device__ __forceinline__ bool has_rotated_heads(const params &p, int column)
    {
        if constexpr (!ROTATES)
            return false;
        const int heads = C::ROTATED == LINEAR_ROTATED_GIVEN ? p.rotated : C::ROTATED;
        return C::ROTATED == LINEAR_ROTATED_ALL || column < heads;
    }

    static __device__ __forceinline__ bool is_rotated(const params &p, int column)
    {
        return has_rotated_heads(p, column) && column % HEAD < C::ROTARY_DIM;
    }

    // Column of y, and row of w, from the tiles' order of columns.
    static __device__ __forceinline__ int column_of(const params &p, int in_tiles)
    {
        if (!HALF || !is_rotated(p, in_tiles))
            return in_tiles;
        const int at = in_tiles % HEAD;
        return in_tiles - at + at / 2 + (at % 2 ? C::ROTARY_DIM / 2 : 0);
    }

    // --- shared memory ---------------------------------------------------------------------------

    static constexpr int TILE_K = 128 / static_cast<int>(sizeof(Element)); // a row is all 32 banks
    using x_tile = tile<Element, C::TILE_M, TILE_K>;
    using w_tile = typename linear_w_tile<C::WEIGHTS_BY_K, Element, C::TILE_N, TILE_K>::type;
    static constexpr int STAGE_BYTES = x_tile::bytes + w_tile::bytes;
    // Of sums, as float32. The distance of rows is 8 mod 32 banks, so that the 4 rows of 8 that
    // half a warp writes at once lie apart.
    static constexpr int SUM_STRIDE = C::TILE_N + 8 + (C::TILE_N % 32 ? 32 - C::TILE_N % 32 : 0);
    // A small tile keeps angles (linear_angles.cuh) where kernels overlap (order.cuh): heads of a
    // row share them, where the tile holds whole ones.
    static constexpr bool KEEPS_ANGLES = ROTATES && IS_SMALL && __CUDA_ARCH__ >= 900;
    static constexpr int KEPT_PAIRS = (C::TILE_N % HEAD ? C::TILE_N : HEAD) / 2;
    static constexpr int ANGLE_BYTES = KEEPS_ANGLES ? C::TILE_M * KEPT_PAIRS * 8 : 0;
    // Tiles that have a place: of stages, those that a tile reaches, where angles take the room of
    // the others. Loads into those come behind the end of k and copy nothing. Elsewhere all: how
    // many blocks fit decides where those of the next launch start.
    static constexpr int K_TILES = (C::K + TILE_K - 1) / TILE_K;
    static constexpr int RING_TILES =
        KEEPS_ANGLES && C::K && K_TILES < C::STAGES ? K_TILES : C::STAGES;
    static constexpr int RING_BYTES = RING_TILES * STAGE_BYTES;
    static constexpr int SUM_PLANE = C::TILE_M * SUM_STRIDE;
    static constexpr int SUM_BYTES = C::WARPS_K * SUM_PLANE * 4;
    static constexpr int TILE_BYTES = RING_BYTES > SUM_BYTES ? RING_BYTES : SUM_BYTES;
    static constexpr int SHARED_BYTES = TILE_BYTES + ANGLE_BYTES;
    static_assert(!C::WEIGHTS_BY_K || (!HALF && C::ARITHMETIC != LINEAR_FMA && sizeof(Element) > 1),
                  "weights by k: on tensor cores, in the order of their columns, not fp8");
    static_assert(C::STAGES >= 2, "one tile is loaded while another is multiplied");

    // RING_TILES tiles of x and w, then, in their place, the tile's sums: of each slice of k, and
    // at last in plane 0 all of it; behind them kept angles. `base`: a multiple of 16 bytes.
    struct memory {
        unsigned char *base;

        __device__ __forceinline__ x_tile x(int stage) const
        {
            return {base + stage * STAGE_BYTES};
        }

        __device__ __forceinline__ w_tile w(int stage) const
        {
            return {x(stage).data + x_tile::bytes};
        }

        __device__ __forceinline__ float *sum(int row, int column, int plane = 0) const
        {
            return reinterpret_cast<float *>(base) + plane * SUM_PLANE + row * SUM_STRIDE + column;
        }

        __device__ __forceinline__ float *kept_angles() const
        {
            return reinterpret_cast<float *>(base + TILE_BYTES);
        }
    };

    // --- the block's place -----------------------------------------------------------------------

    // Tiles follow each other down RASTER rows of them at a time, so that what neighbouring blocks
    // read stays in the L2 cache.
    static constexpr int RASTER = 8;

    static __device__ __forceinline__ linear_place place_of(const params &p, int tile, int part)
    {
        const int tiles_m = (m_of(p) + C::TILE_M - 1) / C::TILE_M;
        const int tiles_n = (n_of(p) + C::TILE_N - 1) / C::TILE_N;
        const int band = tile / (RASTER * tiles_n) * RASTER;
        const int height = min(tiles_m - band, RASTER), in_band = tile - band * tiles_n;
        linear_place b{};
        const int turn = height == RASTER ? in_band / RASTER : in_band / height;
        b.m = (band + in_band - turn * height) * C::TILE_M;
        b.n = turn * C::TILE_N;
        b.tile = tile;
        b.part = part;
        b.position = C::ROTATION && p.seqlen ? b.m % p.seqlen : b.m;
        if constexpr (C::X_JUMPS)
            b.x_jump = p.x_jumps.before(b.m);
        b.begin = C::MAY_SPLIT ? part * p.split_k : 0;
        b.end = C::MAY_SPLIT ? static_cast<int>(min(static_cast<i64>(b.begin) + p.split_k,
                                                    static_cast<i64>(k_of(p))))
                             : loaded_k(p);
        return b;
    }
};

} // namespace fajit

#endif
