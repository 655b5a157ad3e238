// MESSAGE FROM THE LEAD (delete this line): read NOTE-FROM-THE-LEAD.txt in the root: this template is 2 to 3 times too slow on an H200; finish what you have in hand quickly, commit, 'git merge issue5' (linear's device code is in linear*.cuh, attention's in attention*.cuh now), then do A and B of the note.
// Keys and values from compressed activations, through a latent of a few numbers a token:
//
//     latent = norm(hidden w_down)          K = latent w_up_k          V = latent w_up_v
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  float, fajit::f16, fajit::bf16
//     NormWeight         storage type  float or Element
//     FORM               int           0 WHOLE, 1 DOWN (hidden to latent), 2 UP (latent to K and V)
//     SUMS               int           SUMS_... of products.cuh; float32 takes all but SUMS_TENSOR,
//                                      the others all but SUMS_SPLIT_TF32 and SUMS_TF32
//     NORM               bool          root mean square norm of the latent, with weights
//     NORM_EPS           double        y = x / sqrt(mean(x^2) + NORM_EPS) * weight
//     RANK               int           1 and up
//     MODEL_DIM, HEADS, HEAD_DIM, HEAD_DIM_V, BATCH, SEQLEN
//                        int           1 and up; 0: given at launch; HEAD_DIM_V with HEAD_DIM
//     TO_CACHE           bool          the output is a cache, and positions or slots say where
//     CACHE              int           CACHE_... of cache_place.cuh
//     UNIQUE             bool          no two tokens of a batch go to one entry
//     POSITIONS_WIDE, SLOTS_WIDE
//                        bool          int64, not int32
//     ROPE_DIM           int           of the rotary part that all heads share; even when it is
//                                      rotated; 0: there is none
//     ROTATION           int           of it: 0 none, 1 HALF, 2 INTERLEAVED
//     ROPE_ONCE          bool          it is written once a token, not beside K in each head
//     TILES              int[3][11]    see struct tiles
//     BLOCK_THREADS      int           8 warps
//     PARAM_BYTES        int           size of the launch parameters as the host sees them
//   angles (angles.cuh)
//     ANGLES, ATTENTION_FACTOR, SCALING, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64, RAMP_LOW,
//     RAMP_HIGH, RAMP_STEP, RAMP_SHIFT
//                                      as in rope.cu
//
// One kernel makes one STEP: WHOLE has both products, with the latent in shared memory between them;
// DOWN has the first, UP the second. A block takes ROWS tokens (grid x) and a share of the column
// tiles of its last product (grid y). The tiles of both products pass through one ring of STAGES in
// shared memory, so that those of the second are on their way while the first is computed.
#include "fajit/angles.cuh"
#include "fajit/cache_place.cuh"
#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/mma.cuh"
#include "fajit/order.cuh"
#include "fajit/padded.cuh"
#include "fajit/products.cuh"
#include "fajit/rotary.cuh"
#include "fajit/sync.cuh"
#include "fajit/tile.cuh"
#include "fajit/token_rows.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using NormWeight = float;
inline constexpr int FORM = 0, SUMS = fajit::SUMS_CHUNKED;
inline constexpr bool NORM = false, TO_CACHE = false, UNIQUE = false, POSITIONS_WIDE = false,
                      SLOTS_WIDE = false, ROPE_ONCE = false;
inline constexpr double NORM_EPS = 1e-6;
inline constexpr int RANK = 48, MODEL_DIM = 256, HEADS = 4, HEAD_DIM = 32, HEAD_DIM_V = 32,
                     BATCH = 0, SEQLEN = 0;
inline constexpr int CACHE = 0, ROPE_DIM = 0, ROTATION = 0;
inline constexpr int TILES[3][11] = {{0, 16, 64, 2, 48, 1, 2, 64, 1, 8, 56704}};
inline constexpr int BLOCK_THREADS = 256, PARAM_BYTES = 480;
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
#endif

namespace lowrank_kv {

using fajit::chunk;
using fajit::i64;
using fajit::token_row;

inline constexpr int WHOLE = 0, DOWN = 1, UP = 2; // FORM and STEP
inline constexpr int WARPS = BLOCK_THREADS / 32;
inline constexpr int ELEMENT = sizeof(Element);
using Sum = typename fajit::sum_type<SUMS>::type;

__device__ __forceinline__ constexpr int divide_up(int n, int d)
{
    return (n + d - 1) / d;
}

// --- the launch ----------------------------------------------------------------------------------

// [outer, token, row] and [outer, head, token, row]; strides in elements. Outer is a batch or a page.
struct rows_of {
    void *data;
    i64 outer, token;

    __device__ __forceinline__ Element *at(i64 at_outer, i64 at_token) const
    {
        return static_cast<Element *>(data) + (at_outer * outer + at_token * token);
    }
};

struct heads_of {
    void *data;
    i64 outer, head, token;

    __device__ __forceinline__ Element *at(i64 at_outer, i64 at_head, i64 at_token) const
    {
        return static_cast<Element *>(data) +
               (at_outer * outer + at_head * head + at_token * token);
    }
};

// Mirrored by lowrank_params in src/ops/lowrank_kv.h.
struct params {
    rows_of hidden;        // [batch, seqlen, model_dim]
    rows_of w_down;        // [model_dim, RANK]; token: a row
    heads_of w_up[2];      // of K, of V: [RANK, heads, head_dim]; token: a row
    rows_of latent_in;     // UP: [batch, seqlen, RANK]
    rows_of latent_out;    // DOWN: the same, or a cache of it
    heads_of out[2];       // of K, of V
    rows_of rope;          // [batch, seqlen, ROPE_DIM]
    rows_of rope_out;      // ROPE_ONCE
    const void *norm;      // [RANK]
    const void *positions; // may be null unless TO_CACHE
    i64 positions_stride;
    const void *slots;
    i64 slot_count;
    const int *block_table;
    i64 block_table_stride;
    const float *cos, *sin; // [max_position, ROPE_DIM / 2]
    const float *inv_freq;
    unsigned *errors;
    fajit::frequency_rule rule; // unless RULE_BAKED
    int batch, seqlen, model_dim, heads, head_dim, head_dim_v;
    int position_offset, max_position;
    int entries, pages, max_pages; // of the cache; entries of a row or of a page
    // Bytes of an access: 16, 4, or an element.
    int hidden_bytes, w_down_bytes, w_up_bytes[2], latent_bytes;
    bool out_pairs[2], latent_pairs; // two neighbours can be written at once
};
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");

__device__ __forceinline__ int seqlen_of(const params &p)
{
    return SEQLEN ? SEQLEN : p.seqlen;
}

__device__ __forceinline__ int model_dim_of(const params &p)
{
    return MODEL_DIM ? MODEL_DIM : p.model_dim;
}

__device__ __forceinline__ int heads_of_k(const params &p)
{
    return HEADS ? HEADS : p.heads;
}

// Part 0 is K, 1 is V.
__device__ __forceinline__ int head_dim_of(const params &p, int part)
{
    return part ? (HEAD_DIM_V ? HEAD_DIM_V : p.head_dim_v) : (HEAD_DIM ? HEAD_DIM : p.head_dim);
}

__device__ __forceinline__ int columns_of(const params &p, int part)
{
    return heads_of_k(p) * head_dim_of(p, part);
}

struct token_rule {
    static constexpr int cache = CACHE;
    static constexpr bool positions_wide = POSITIONS_WIDE, slots_wide = SLOTS_WIDE;
    static constexpr bool needs_position = ROTATION != 0;
    static constexpr bool table_limits = ROTATION != 0 && ANGLES == fajit::ANGLES_TABLES;
    static constexpr bool into_cache = TO_CACHE;
    static constexpr bool may_repeat = !UNIQUE && (CACHE == fajit::CACHE_SLOTS || SEQLEN != 1);

    static __device__ __forceinline__ int batches(const params &p)
    {
        return BATCH ? BATCH : p.batch;
    }
    static __device__ __forceinline__ int tokens(const params &p)
    {
        return seqlen_of(p);
    }
    static __device__ __forceinline__ int entries(const params &p)
    {
        return p.entries;
    }
};

// --- tiles and shared memory ---------------------------------------------------------------------

// Which tiles kernel number F works on. A product's warps are M x N x K: rows, columns, and parts of
// each stage's depth, whose sums are added in the end.
template <int F> struct tiles {
    static constexpr int step = TILES[F][0], rows = TILES[F][1], depth = TILES[F][2],
                         stages = TILES[F][3];
    static constexpr int down_columns = TILES[F][4], down_m = TILES[F][5], down_n = TILES[F][6],
                         down_k = down_m ? WARPS / (down_m * down_n) : 1;
    static constexpr int up_columns = TILES[F][7], up_m = TILES[F][8], up_n = TILES[F][9];

    static constexpr bool has_down = step != UP, has_up = step != DOWN;
    // The first of two kernels, whose latent goes into the workspace.
    static constexpr bool first_of_two = FORM == WHOLE && step == DOWN;
    static constexpr bool normalizes = NORM && !first_of_two;
    // The latent of all rows is in shared memory.
    static constexpr bool keeps_latent = has_up || normalizes;
    // Columns of it, with zeros behind RANK.
    static constexpr int latent_columns = divide_up(RANK, 16) * 16;

    // Elements from one row to the next.
    static constexpr int latent_row = fajit::padded_left<Element>(latent_columns);
    static constexpr int hidden_row = fajit::padded_left<Element>(depth);
    static constexpr int down_row = fajit::padded_right(down_columns),
                         up_row = fajit::padded_right(up_columns);

    static constexpr int row_bytes = rows * 40; // token_row
    static constexpr int latent_bytes = keeps_latent ? rows * latent_row * ELEMENT : 0;
    static constexpr int part_count = has_down && down_k > 1 ? down_k *rows *down_row : 0;
    static constexpr int part_bytes = part_count * static_cast<int>(sizeof(Sum));
    static constexpr int hidden_bytes = has_down ? rows * hidden_row * ELEMENT : 0;
    static constexpr int down_bytes = has_down ? hidden_bytes + depth * down_row * ELEMENT : 0;
    static constexpr int up_bytes = has_up ? depth * up_row * ELEMENT : 0;
    static constexpr int stage_bytes = down_bytes > up_bytes ? down_bytes : up_bytes;
    static constexpr int smem_bytes = row_bytes + latent_bytes + part_bytes + stages * stage_bytes;
    static_assert(sizeof(token_row) == 40, "row_bytes");
    static_assert(smem_bytes == TILES[F][10], "host and kernel disagree about shared memory");
    static_assert(!has_up || up_m * up_n == WARPS, "the second product has no parts");
    static_assert(depth % (fajit::sum_depth<SUMS> * down_k) == 0, "each part has whole steps");
};

template <int F> struct memory {
    using t = tiles<F>;
    unsigned char *base;

    __device__ __forceinline__ token_row *rows() const
    {
        return reinterpret_cast<token_row *>(base);
    }
    // [rows, latent_row]
    __device__ __forceinline__ Element *latent() const
    {
        return reinterpret_cast<Element *>(base + t::row_bytes);
    }
    // [down_k, rows, down_row]
    __device__ __forceinline__ Sum *parts() const
    {
        return reinterpret_cast<Sum *>(base + t::row_bytes + t::latent_bytes);
    }
    // Of the first product: hidden [rows, hidden_row], then w_down [depth, down_row]; of the second:
    // w_up [depth, up_row].
    __device__ __forceinline__ Element *stage(int slot) const
    {
        return reinterpret_cast<Element *>(base + t::row_bytes + t::latent_bytes + t::part_bytes +
                                           slot * t::stage_bytes);
    }
};

// --- load ----------------------------------------------------------------------------------------

// ROWS x COLUMNS elements from column `begin` of the tokens' rows, which end at column `end`.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void load_tokens(const rows_of &from, int bytes, const token_row *rows,
                                            int begin, int end, Element *to, int to_row)
{
    const auto source = [&](int r, int column) {
        const token_row &x = rows[r];
        const int left = x.exists() ? end - begin - column : 0;
        const Element *at = static_cast<const Element *>(from.data);
        if (left > 0)
            at = from.at(x.batch, x.token) + begin + column;
        return fajit::tile_source<Element>{at, left};
    };
    fajit::copy_padded<ROWS, COLUMNS, BLOCK_THREADS>(to, to_row, bytes, source);
}

// DEPTH x COLUMNS of weights from row `first` of `rows`, columns from `begin` of `end`. Columns count
// through the heads, of `dim` columns each.
template <int DEPTH, int COLUMNS>
__device__ __forceinline__ void load_weights(const heads_of &from, int bytes, int first, int rows,
                                             int begin, int end, int dim, Element *to, int to_row)
{
    const auto source = [&](int r, int c) {
        const int column = begin + c, left = first + r < rows ? end - column : 0;
        const Element *at = static_cast<const Element *>(from.data);
        if (left > 0) {
            const int head = from.head == dim ? 0 : column / dim;
            at = from.at(0, head, first + r) + (column - head * dim);
        }
        return fajit::tile_source<Element>{at, left};
    };
    fajit::copy_padded<DEPTH, COLUMNS, BLOCK_THREADS>(to, to_row, bytes, source);
}

// Column tile `tile` of the first product, from row `first` of its depth.
template <int F>
__device__ __forceinline__ void load_down(const params &p, const token_row *rows, int tile,
                                          int first, Element *to)
{
    using t = tiles<F>;
    const int depth = model_dim_of(p);
    const heads_of weights = {p.w_down.data, 0, RANK, p.w_down.token};
    load_tokens<t::rows, t::depth>(p.hidden, p.hidden_bytes, rows, first, depth, to, t::hidden_row);
    load_weights<t::depth, t::down_columns>(weights, p.w_down_bytes, first, depth,
                                            tile * t::down_columns, RANK, RANK,
                                            to + t::hidden_bytes / ELEMENT, t::down_row);
}

// The same of the second, of K or of V.
template <int F>
__device__ __forceinline__ void load_up(const params &p, int part, int tile, int first, Element *to)
{
    using t = tiles<F>;
    load_weights<t::depth, t::up_columns>(p.w_up[part], p.w_up_bytes[part], first, RANK,
                                          tile * t::up_columns, columns_of(p, part),
                                          head_dim_of(p, part), to, t::up_row);
}

// --- the block's column tiles, in a ring ---------------------------------------------------------

// Of the first product, and of the second: those of K, then those of V.
struct share {
    int down_begin, down_end;
    int up_begin, up_end, k_tiles;
};

template <int F> __device__ __forceinline__ share share_of(const params &p)
{
    using t = tiles<F>;
    share s = {0, 0, 0, 0, 0};
    if constexpr (t::has_down) {
        s.down_end = divide_up(RANK, t::down_columns);
        if constexpr (!t::keeps_latent) { // a block has one; else it has all
            s.down_begin = static_cast<int>(blockIdx.y);
            s.down_end = s.down_begin + 1;
        }
    }
    if constexpr (t::has_up) {
        s.k_tiles = divide_up(columns_of(p, 0), t::up_columns);
        const int all = s.k_tiles + divide_up(columns_of(p, 1), t::up_columns);
        const int each = divide_up(all, static_cast<int>(gridDim.y));
        s.up_begin = min(static_cast<int>(blockIdx.y) * each, all);
        s.up_end = min(s.up_begin + each, all);
    }
    return s;
}

template <int F> struct ring {
    using t = tiles<F>;
    const params &p;
    const memory<F> &m;
    const share &s;
    int slot_in, slot_out;
    bool up;                   // what comes next: of the second product,
    int next_tile, next_first; // this column tile, from this row of the weights on

    __device__ __forceinline__ ring(const params &params_, const memory<F> &memory_,
                                    const share &share_)
        : p(params_), m(memory_), s(share_), slot_in(0), slot_out(0), up(!t::has_down),
          next_tile(t::has_down ? share_.down_begin : share_.up_begin), next_first(0)
    {
    }

    template <bool ONLY_UP> __device__ __forceinline__ void load(Element *to) const
    {
        if constexpr (t::has_up)
            if (ONLY_UP || up) {
                const int part = next_tile >= s.k_tiles;
                load_up<F>(p, part, next_tile - (part ? s.k_tiles : 0), next_first, to);
                return;
            }
        if constexpr (t::has_down)
            load_down<F>(p, m.rows(), next_tile, next_first, to);
    }

    __device__ __forceinline__ void advance()
    {
        next_first += t::depth;
        if (next_first < (up ? RANK : model_dim_of(p)))
            return;
        next_first = 0;
        next_tile++;
        if (!up && next_tile == s.down_end) {
            up = true;
            next_tile = s.up_begin;
        }
    }

    // Starts loading one tile, if one is left; always closes a group. ONLY_UP: those of the first
    // product are all loaded.
    template <bool ONLY_UP> __device__ __forceinline__ void load_next()
    {
        if (!up || next_tile < s.up_end) {
            load<ONLY_UP>(m.stage(slot_in));
            advance();
        }
        fajit::copy_commit();
        slot_in = slot_in + 1 == t::stages ? 0 : slot_in + 1;
    }

    __device__ __forceinline__ void start()
    {
#pragma unroll 1
        for (int i = 0; i < t::stages - 1; i++)
            load_next<false>();
    }

    // The next tile, as it lies in shared memory. Ends the use of the one before.
    template <bool ONLY_UP> __device__ __forceinline__ const Element *take()
    {
        fajit::copy_wait<t::stages - 2>();
        __syncthreads(); // all copies are there, and nobody reads the slot that is loaded next
        load_next<ONLY_UP>();
        const Element *at = m.stage(slot_out);
        slot_out = slot_out + 1 == t::stages ? 0 : slot_out + 1;
        return at;
    }
};

// --- the first product ---------------------------------------------------------------------------

// Two neighbours to global memory, the second only if it `exists`; `pairs`: one access takes both.
__device__ __forceinline__ void store_two(Element *to, const float (&x)[2], bool exists, bool pairs)
{
    if (pairs) {
        fajit::store(to, fajit::pack<Element, 2>(x));
        return;
    }
    const float first[1] = {x[0]}, second[1] = {x[1]};
    fajit::store(to, fajit::pack<Element, 1>(first));
    if (exists)
        fajit::store(to + 1, fajit::pack<Element, 1>(second));
}

// Elements `column` and the one behind it, of one row of the latent.
template <int F>
__device__ __forceinline__ void put_latent(const params &p, const memory<F> &m, int r, int column,
                                           Sum x, Sum y)
{
    using t = tiles<F>;
    const float both[2] = {static_cast<float>(x), static_cast<float>(y)};
    if constexpr (t::keeps_latent) {
        if (column < t::latent_columns)
            *reinterpret_cast<chunk<2 * ELEMENT> *>(m.latent() + r * t::latent_row + column) =
                fajit::pack<Element, 2>(both);
    } else {
        const token_row &to = m.rows()[r];
        if (to.is_written() && column < RANK)
            store_two(p.latent_out.at(to.outer, to.entry) + column, both, column + 1 < RANK,
                      p.latent_pairs);
    }
}

// A warp's place among those that share a tile of the first product, in tiles of mma.
template <int F> struct down_place {
    using t = tiles<F>;
    static constexpr int mt = t::rows / t::down_m / 16, nt = t::down_columns / t::down_n / 8;
    using sums = fajit::warp_sums<SUMS, mt, nt>;
    int row, column, part;

    __device__ __forceinline__ down_place()
    {
        const int warp = threadIdx.x / 32;
        row = warp % t::down_m * 16 * mt;
        column = warp / t::down_m % t::down_n * 8 * nt;
        part = warp / (t::down_m * t::down_n);
    }
};

// f(row, column, x, y) for each two neighbours of the tile whose sums the lane holds.
template <class Place, class F>
__device__ __forceinline__ void for_each_two(const Place &at, const typename Place::sums &sums, F f)
{
    const unsigned lane = fajit::lane_index();
#pragma unroll
    for (int i = 0; i < Place::mt; i++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
#pragma unroll
            for (int j = 0; j < Place::nt; j++)
                f(at.row + 16 * i + static_cast<int>(fajit::fragment_row(lane, e)),
                  at.column + 8 * j + static_cast<int>(fajit::fragment_column(lane, e)),
                  sums.cell[i][j].value[e], sums.cell[i][j].value[e + 1]);
}

// One element's parts, by pairs: in the same order every time.
template <int F> __device__ __forceinline__ Sum sum_of_parts(const Sum *parts, int r, int column)
{
    using t = tiles<F>;
    Sum x[t::down_k];
#pragma unroll
    for (int q = 0; q < t::down_k; q++)
        x[q] = parts[(q * t::rows + r) * t::down_row + column];
#pragma unroll
    for (int apart = 1; apart < t::down_k; apart *= 2)
#pragma unroll
        for (int q = 0; q < t::down_k; q += 2 * apart)
            x[q] = fajit::rounded_sum(x[q], x[q + apart]);
    return x[0];
}

// Adds what warps hold for parts of the depth.
template <int F>
__device__ __forceinline__ void add_parts(const params &p, const memory<F> &m, int tile,
                                          const down_place<F> &at,
                                          const typename down_place<F>::sums &sums)
{
    using t = tiles<F>;
    Sum *parts = m.parts();
    for_each_two(at, sums, [&](int r, int column, Sum x, Sum y) {
        Sum *to = parts + (at.part * t::rows + r) * t::down_row + column;
        to[0] = x;
        to[1] = y;
    });
    __syncthreads(); // before the parts of other warps are read
    for (int i = threadIdx.x; i < t::rows * t::down_columns / 2; i += BLOCK_THREADS) {
        const int r = 2 * i / t::down_columns, column = 2 * i - r * t::down_columns;
        put_latent(p, m, r, tile * t::down_columns + column, sum_of_parts<F>(parts, r, column),
                   sum_of_parts<F>(parts, r, column + 1));
    }
}

template <int F>
__device__ __forceinline__ void multiply_down(const params &p, const memory<F> &m, const share &s,
                                              ring<F> &loads)
{
    using t = tiles<F>;
    constexpr int depth = fajit::sum_depth<SUMS>, apart = depth * t::down_k;
    const down_place<F> at;
#pragma unroll 1
    for (int tile = s.down_begin; tile < s.down_end; tile++) {
        typename down_place<F>::sums sums;
        sums.clear();
#pragma unroll 1
        for (int first = 0; first < model_dim_of(p); first += t::depth) {
            const Element *hidden = loads.template take<false>();
            const Element *weights = hidden + t::hidden_bytes / ELEMENT;
            fajit::add_steps<t::depth / apart, apart>(
                sums, hidden + at.row * t::hidden_row + at.part * depth, t::hidden_row,
                weights + at.part * depth * t::down_row + at.column, t::down_row, t::depth);
        }
        if constexpr (t::down_k > 1)
            add_parts(p, m, tile, at, sums);
        else
            for_each_two(at, sums, [&](int r, int column, Sum x, Sum y) {
                put_latent(p, m, r, tile * t::down_columns + column, x, y);
            });
    }
}

// --- the latent ----------------------------------------------------------------------------------

__device__ __forceinline__ float norm_weight(const params &p, int column)
{
    float x[1];
    fajit::unpack<NormWeight, 1>(
        fajit::load_constant<sizeof(NormWeight)>(static_cast<const NormWeight *>(p.norm) + column),
        x);
    return x[0];
}

// x / sqrt(mean(x^2) + eps) * weight, a warp to a row.
template <int F> __device__ __forceinline__ void normalize(const params &p, const memory<F> &m)
{
    using t = tiles<F>;
    const int lane = static_cast<int>(fajit::lane_index());
    for (int r = threadIdx.x / 32; r < t::rows; r += WARPS) {
        Element *x = m.latent() + r * t::latent_row;
        float sum = 0;
        for (int c = lane; c < RANK; c += 32)
            sum = fmaf(fajit::to_float(x[c]), fajit::to_float(x[c]), sum);
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
        const float mean = __fmul_rn(sum, static_cast<float>(1.0 / RANK));
        const float by = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, static_cast<float>(NORM_EPS))));
        for (int c = lane; c < RANK; c += 32)
            x[c] = fajit::from_float<Element>(
                __fmul_rn(__fmul_rn(fajit::to_float(x[c]), by), norm_weight(p, c)));
    }
}

// UP: starts to load it.
template <int F> __device__ __forceinline__ void load_latent(const params &p, const memory<F> &m)
{
    using t = tiles<F>;
    load_tokens<t::rows, t::latent_columns>(p.latent_in, p.latent_bytes, m.rows(), 0, RANK,
                                            m.latent(), t::latent_row);
    fajit::copy_commit();
}

// DOWN with a norm: writes it.
template <int F> __device__ __forceinline__ void store_latent(const params &p, const memory<F> &m)
{
    using t = tiles<F>;
    for (int i = threadIdx.x; i < t::rows * RANK; i += BLOCK_THREADS) {
        const int r = i / RANK, c = i - r * RANK;
        const token_row &to = m.rows()[r];
        if (!to.is_written())
            continue;
        const float x[1] = {fajit::to_float(m.latent()[r * t::latent_row + c])};
        fajit::store(p.latent_out.at(to.outer, to.entry) + c, fajit::pack<Element, 1>(x));
    }
}

// --- the second product --------------------------------------------------------------------------

// Columns `column` and the one behind it of K or V, counted through the heads.
__device__ __forceinline__ void put_out(const params &p, int part, const token_row &to, int column,
                                        Sum x, Sum y)
{
    const int dim = head_dim_of(p, part), columns = columns_of(p, part);
    if (column >= columns)
        return;
    const float both[2] = {static_cast<float>(x), static_cast<float>(y)};
    const int head = column / dim, in_head = column - head * dim;
    Element *at = p.out[part].at(to.outer, head, to.entry) + in_head;
    store_two(at, both, in_head + 1 < dim, p.out_pairs[part]);
    if (p.out_pairs[part] || in_head + 1 < dim || column + 1 >= columns)
        return;
    const float second[1] = {both[1]};
    fajit::store(p.out[part].at(to.outer, head + 1, to.entry), fajit::pack<Element, 1>(second));
}

// A warp's place, as down_place.
template <int F> struct up_place {
    using t = tiles<F>;
    static constexpr int mt = t::rows / t::up_m / 16, nt = t::up_columns / t::up_n / 8;
    using sums = fajit::warp_sums<SUMS, mt, nt>;
    int row, column;

    __device__ __forceinline__ up_place()
    {
        const int warp = threadIdx.x / 32;
        row = warp % t::up_m * 16 * mt;
        column = warp / t::up_m * 8 * nt;
    }
};

// `begin`: the warp's first column of K or V.
template <int F>
__device__ __forceinline__ void put_sums(const params &p, const memory<F> &m, int part, int begin,
                                         const up_place<F> &at,
                                         const typename up_place<F>::sums &sums)
{
    const unsigned lane = fajit::lane_index();
#pragma unroll
    for (int i = 0; i < at.mt; i++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const token_row &to =
                m.rows()[at.row + 16 * i + static_cast<int>(fajit::fragment_row(lane, e))];
            if (!to.is_written())
                continue;
#pragma unroll
            for (int j = 0; j < at.nt; j++)
                put_out(p, part, to,
                        begin + 8 * j + static_cast<int>(fajit::fragment_column(lane, e)),
                        sums.cell[i][j].value[e], sums.cell[i][j].value[e + 1]);
        }
}

template <int F>
__device__ __forceinline__ void multiply_up(const params &p, const memory<F> &m, const share &s,
                                            ring<F> &loads)
{
    using t = tiles<F>;
    constexpr int depth = fajit::sum_depth<SUMS>;
    const up_place<F> at;
    const Element *latent = m.latent() + at.row * t::latent_row;
#pragma unroll 1
    for (int tile = s.up_begin; tile < s.up_end; tile++) {
        typename up_place<F>::sums sums;
        sums.clear();
#pragma unroll 1
        for (int first = 0; first < RANK; first += t::depth) {
            const Element *weights = loads.template take<true>();
            fajit::add_steps<t::depth / depth, depth>(sums, latent + first, t::latent_row,
                                                      weights + at.column, t::up_row, RANK - first);
        }
        const int part = tile >= s.k_tiles, of_part = tile - (part ? s.k_tiles : 0);
        put_sums(p, m, part, of_part * t::up_columns + at.column, at, sums);
    }
}

// --- the rotary part -----------------------------------------------------------------------------

using baked_rule = fajit::baked_rule<ROPE_DIM / 2 * 2, SCALING, LOG2_BASE_Q54, INVERSE_FACTOR_Q64,
                                     RAMP_LOW, RAMP_HIGH, RAMP_STEP, RAMP_SHIFT>;

__device__ __forceinline__ fajit::angles<1> angles_of(const params &p, i64 at, int pair)
{
    fajit::angles<1> by = fajit::source_angles<ANGLES, RULE_BAKED, baked_rule, 1>(
        p, ROPE_DIM, fajit::one_position{at}, pair);
    fajit::adjust<false>(by, static_cast<float>(ATTENTION_FACTOR));
    return by;
}

using pair_of = fajit::pair_chunks<Element, 1, ROTATION == 2>;

// A pair of one token, turned: to its place, or to that of each head.
__device__ __forceinline__ void put_pair(const params &p, const token_row &x, int pair)
{
    const int distance = ROTATION ? pair_of::distance(ROPE_DIM) : 1;
    const int offset = ROTATION ? pair_of::offset(pair) : 2 * pair;
    const bool both = ROTATION != 0 || offset + 1 < ROPE_DIM;
    const Element *from = p.rope.at(x.batch, x.token) + offset;
    pair_of value;
    value.x[0] = fajit::load_constant<ELEMENT>(from);
    value.x[1] = both ? fajit::load_constant<ELEMENT>(from + distance) : value.x[0];
    if constexpr (ROTATION != 0)
        value.rotate(angles_of(p, x.position, pair));
    const int copies = ROPE_ONCE ? 1 : heads_of_k(p);
    for (int h = 0; h < copies; h++) {
        Element *to = ROPE_ONCE ? p.rope_out.at(x.outer, x.entry)
                                : p.out[0].at(x.outer, h, x.entry) + head_dim_of(p, 0);
        fajit::store(to + offset, value.x[0]);
        if (both)
            fajit::store(to + offset + distance, value.x[1]);
    }
}

template <int ROWS> __device__ __forceinline__ void put_rope(const params &p, const token_row *rows)
{
    constexpr int pairs = ROPE_DIM ? (ROPE_DIM + 1) / 2 : 1;
    for (int i = threadIdx.x; i < ROWS * pairs; i += BLOCK_THREADS) {
        const token_row &x = rows[i / pairs];
        if (x.is_written())
            put_pair(p, x, i % pairs);
    }
}

// --- a block -------------------------------------------------------------------------------------

// Of two steps the second normalizes and writes the rotary part.
template <int F> __device__ __forceinline__ void run(const params &p, unsigned char *shared)
{
    using t = tiles<F>;
    const memory<F> m = {shared};
    const share s = share_of<F>(p);
    ring<F> loads(p, m, s);
    fajit::find_token_rows<token_rule, !t::first_of_two, t::rows>(
        p, static_cast<i64>(blockIdx.x) * t::rows, blockIdx.y == 0, m.rows(),
        reinterpret_cast<unsigned char *>(m.stage(0)));
    if constexpr (t::step == UP)
        load_latent(p, m);
    loads.start();
    if constexpr (ROPE_DIM != 0 && !t::first_of_two)
        if (blockIdx.y == 0)
            put_rope<t::rows>(p, m.rows());
    if constexpr (t::has_down)
        multiply_down(p, m, s, loads);
    fajit::let_successor_start();
    if constexpr (t::normalizes) {
        if constexpr (t::step == UP)
            fajit::copy_wait_all();
        __syncthreads(); // before warps read what others brought
        normalize(p, m);
    }
    if constexpr (t::has_up) {
        multiply_up(p, m, s, loads); // passes a barrier before it reads the latent
    } else if constexpr (t::normalizes) {
        __syncthreads(); // before rows of other warps are read
        store_latent(p, m);
    }
}

} // namespace lowrank_kv

extern __shared__ uint4 lowrank_kv_memory[];

// Kernel number F of TILES.
template <int F>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    fajit_lowrank_kv(const __grid_constant__ lowrank_kv::params p)
{
    fajit::wait_for_predecessor(); // it may have written what is read here, or read what is written
    lowrank_kv::run<F>(p, reinterpret_cast<unsigned char *>(lowrank_kv_memory));
}
