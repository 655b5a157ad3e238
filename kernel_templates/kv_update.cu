// New keys and values into a cache, the keys rotated, in one launch.
//
//     cache_k[entry of token] = store(rotate(k_new[token], position of token) / k_scale)
//     cache_v[entry of token] = store(v_new[token] / v_scale)
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  of new keys and values: float, fajit::f16, fajit::bf16
//     Cached             storage type  of the cache: Element, or fajit::fp8_e4m3
//     Position, Slot     integer type  int, long long
//     CACHE              int           what a token's entry is: 0 DENSE, its position in its batch's
//                                      row; 1 SLOTS, its slot in a pool of pages; 2 BLOCK_TABLE, its
//                                      position in the pages of its batch
//     IN_PLACE           bool          the cache is changed; else copied with the changes. CACHE 1 and
//                                      2 are in place
//     UNIQUE             bool          no two tokens of a batch go to one entry
//     ROTATION           int           0 none, 1 half, 2 interleaved: see fajit/rotary.cuh
//     TABLES             bool          cos and sin are read, not computed
//     SCALES             int           0 none, 1 for all heads, 2 one for each head
//     HEAD_DIM           int           of keys, 1 to 1024; 0: given at launch
//     HEAD_DIM_V         int           of values; 0 with HEAD_DIM 0
//     ROTARY_DIM         int           even, at most HEAD_DIM; 0: given at launch, or no rotation
//     BATCH, TOKENS, HEADS, CACHE_LEN, PAGE_SIZE
//                        int           1 and up; 0: given at launch
//     LOG2_BASE_Q54      long long     log2(base) * 2^54 as unsigned; not used with TABLES
//     VECTOR_WIDTH, VECTOR_WIDTH_V
//                        int           power of two, at most 16 bytes of Element; widest access to
//                                      keys and to values in elements. Divides what is rotated, what
//                                      is copied and HEAD_DIM_V, as far as these are baked
//     HEADS_IN_FLIGHT    int           1 to 8 heads loaded before the first is used
//     BLOCK_THREADS      int           multiple of 32, at most 1024
//     PARAM_BYTES        int           size of the launch parameters as the host sees them
//
// Grid: x runs over blocks of items, y over groups of heads, those of keys first. In place an item is
// a new token, and the question is whether a later one takes its entry. Otherwise an item is an entry
// of the cache, and the question is which token comes there: so each entry of the output is written
// by one thread, be it copied or new. Both are answered by reading the positions of the whole batch.
// A thread takes one unit of one item through the heads of its group.
#include "fajit/dtype.cuh"
#include "fajit/order.cuh"
#include "fajit/phase.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using Cached = float;
using Position = int;
using Slot = int;
constexpr int CACHE = 0, ROTATION = 2, SCALES = 0;
constexpr bool IN_PLACE = true, UNIQUE = false, TABLES = false;
constexpr int HEAD_DIM = 64, HEAD_DIM_V = 64, ROTARY_DIM = 64;
constexpr int BATCH = 0, TOKENS = 0, HEADS = 0, CACHE_LEN = 0, PAGE_SIZE = 0;
constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
constexpr int VECTOR_WIDTH = 4, VECTOR_WIDTH_V = 4;
constexpr int HEADS_IN_FLIGHT = 2, BLOCK_THREADS = 128, PARAM_BYTES = 360;
#endif

namespace kv_update {

using fajit::chunk;
using fajit::i64;
using fajit::u64;

enum { DENSE, SLOTS, BLOCK_TABLE }; // CACHE
enum { HALF = 1, INTERLEAVED = 2 }; // ROTATION

// [outer, head, token, dim], strides in elements. Outer is a batch, or a page.
template <class T> struct tensor {
    T *data;
    i64 outer, head, token;

    __device__ __forceinline__ T *row(i64 at_outer, int at_head, i64 at_token) const
    {
        return data + (at_outer * outer + at_head * head + at_token * token);
    }
};

// Keys or values.
struct part {
    tensor<const Element> fresh;
    tensor<Cached> cache, out; // out is the cache when IN_PLACE
    const float *scale;
    int dim;
    int width; // elements of an access, at most VECTOR_WIDTH
};

// Mirrored by kv_kernel_params in src/ops/kv_update.h.
struct params {
    part k, v;
    const Position *positions;
    i64 positions_stride;
    const Slot *slots;
    i64 slot_count;
    const int *block_table; // [batch, max_pages]
    i64 block_table_stride;
    const float *cos, *sin; // [max_position, rotary_dim / 2]
    unsigned *errors;       // or null
    u64 log2_base_quotient; // LOG2_BASE_Q54 / rotary_dim, when that is given at launch
    int log2_base_remainder;
    int rotary_dim, max_position;
    int batch, tokens, heads, cache_len, page_size;
    int pages, max_pages;
    int items;           // of a block, at most BLOCK_THREADS
    int heads_per_group; // that share a thread's angles
    int groups;          // of keys, and of values
};
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");

// n / d, short when n fits 32 bits, as it nearly always does.
__device__ __forceinline__ u64 divide(u64 n, unsigned d)
{
    return n >> 32 ? n / d : static_cast<unsigned>(n) / d;
}

template <class Index> __device__ __forceinline__ i64 load_index(const Index *from)
{
    const chunk<sizeof(Index)> x = fajit::load_constant<sizeof(Index)>(from);
    if constexpr (sizeof(Index) == 8)
        return static_cast<i64>(x.word[0] | static_cast<u64>(x.word[1]) << 32);
    else
        return static_cast<int>(x.word[0]);
}

__device__ __forceinline__ int tokens_of(const params &p)
{
    return TOKENS ? TOKENS : p.tokens;
}

__device__ __forceinline__ int cache_len_of(const params &p)
{
    return CACHE_LEN ? CACHE_LEN : p.cache_len;
}

__device__ __forceinline__ int rotary_dim_of(const params &p)
{
    return ROTARY_DIM ? ROTARY_DIM : p.rotary_dim;
}

__device__ __forceinline__ int page_size_of(const params &p)
{
    return PAGE_SIZE ? PAGE_SIZE : p.page_size;
}

// --- where a token goes --------------------------------------------------------------------------

constexpr i64 PADDING = -1, OUTSIDE = -2; // in place of an entry

struct target {
    i64 batch, token;
    i64 entry; // counted through all batches (SLOTS: all pages), so that equal means the same
    i64 position;
};

// Entries of a batch, or of the pool.
__device__ __forceinline__ i64 capacity_of(const params &p)
{
    if constexpr (CACHE == DENSE)
        return cache_len_of(p);
    else
        return static_cast<i64>(CACHE == SLOTS ? p.pages : p.max_pages) * page_size_of(p);
}

// Of token n, counted through all batches.
__device__ __forceinline__ target target_of(const params &p, i64 n)
{
    target to{};
    to.batch = divide(n, tokens_of(p));
    to.token = n - to.batch * tokens_of(p);
    if constexpr (CACHE != SLOTS || ROTATION)
        to.position = load_index(p.positions + (to.batch * p.positions_stride + to.token));
    i64 entry = to.position;
    if constexpr (CACHE == SLOTS)
        entry = load_index(p.slots + n);
    if (entry == -1 || to.position == -1)
        to.entry = PADDING;
    else if (entry < 0 || entry >= capacity_of(p) || to.position < 0 ||
             (ROTATION && TABLES && to.position >= p.max_position))
        to.entry = OUTSIDE;
    else
        to.entry = CACHE == SLOTS ? entry : to.batch * capacity_of(p) + entry;
    return to;
}

// --- what a block works on -----------------------------------------------------------------------

struct item {
    bool written;
    bool is_new;      // values come from a new token, at `batch` and `token`, or from the cache
    i64 batch, token; // of the new token
    i64 outer, entry; // in the cache
    i64 position;     // to rotate to
};

// What the block finds out about its items before it moves any.
struct findings {
    i64 entry[BLOCK_THREADS];       // IN_PLACE: where each token goes
    bool superseded[BLOCK_THREADS]; // IN_PLACE: a later token goes there too
    int last_token[BLOCK_THREADS];  // else: the last token that comes to an entry; -1: none
};

// Tokens, or entries.
__device__ __forceinline__ i64 item_count(const params &p)
{
    if constexpr (CACHE == SLOTS)
        return p.slot_count;
    else
        return static_cast<i64>(BATCH ? BATCH : p.batch) *
               (IN_PLACE ? tokens_of(p) : cache_len_of(p));
}

__device__ __forceinline__ bool may_repeat(const params &p)
{
    return !UNIQUE && TOKENS != 1 && (CACHE == SLOTS || p.tokens != 1);
}

// Reads the tokens behind `first`, up to the end of the last one's batch.
__device__ __forceinline__ void find_superseded(const params &p, i64 first, int count, findings &to)
{
    for (int i = threadIdx.x; i < count; i += BLOCK_THREADS) {
        to.entry[i] = target_of(p, first + i).entry;
        to.superseded[i] = false;
    }
    __syncthreads(); // before others' entries are compared
    i64 low = to.entry[0], high = to.entry[0];
    for (int i = 1; i < count; i++) {
        low = min(low, to.entry[i]);
        high = max(high, to.entry[i]);
    }
    const i64 last = first + count - 1;
    const i64 end = CACHE == SLOTS
                        ? p.slot_count
                        : (static_cast<i64>(divide(last, tokens_of(p))) + 1) * tokens_of(p);
    for (i64 n = first + 1 + threadIdx.x; n < end; n += BLOCK_THREADS) {
        const i64 entry = target_of(p, n).entry;
        if (entry < 0 || entry < low || entry > high)
            continue;
        for (int i = 0; i < count; i++)
            if (to.entry[i] == entry && first + i < n)
                to.superseded[i] = true;
    }
    __syncthreads(); // before what all threads found is used
}

// Reads the tokens of all batches that the block's entries belong to.
__device__ __forceinline__ void find_last_tokens(const params &p, i64 first, int count,
                                                 findings &to)
{
    for (int i = threadIdx.x; i < count; i += BLOCK_THREADS)
        to.last_token[i] = -1;
    __syncthreads(); // before tokens are entered
    const i64 tokens = tokens_of(p), end = divide(first + count - 1, cache_len_of(p)) + 1;
    for (i64 n = divide(first, cache_len_of(p)) * tokens + threadIdx.x; n < end * tokens;
         n += BLOCK_THREADS) {
        const i64 entry = target_of(p, n).entry;
        if (entry >= first && entry < first + count)
            atomicMax(&to.last_token[entry - first], static_cast<int>(n));
        // Of all blocks that see a token, the one that has its batch's first entry counts it.
        const i64 begin = divide(n, tokens_of(p)) * cache_len_of(p);
        if (entry == OUTSIDE && p.errors && blockIdx.y == 0 && begin >= first &&
            begin < first + count)
            atomicAdd(p.errors, 1u);
    }
    __syncthreads(); // before the last one's number is used
}

// In place: token n.
__device__ __forceinline__ item item_of_token(const params &p, i64 n, bool superseded, bool counts)
{
    const target to = target_of(p, n);
    item x{to.entry >= 0, true, to.batch, to.token, 0, 0, to.position};
    bool outside = to.entry == OUTSIDE;
    if constexpr (CACHE == DENSE) {
        x.outer = to.batch;
        x.entry = to.position;
    } else if (x.written) {
        const u64 in_pages = CACHE == SLOTS ? to.entry : to.position;
        const i64 page = divide(in_pages, page_size_of(p));
        x.entry = in_pages - page * page_size_of(p);
        x.outer = page;
        if constexpr (CACHE == BLOCK_TABLE) {
            x.outer = load_index(p.block_table + (to.batch * p.block_table_stride + page));
            outside = x.outer < 0 || x.outer >= p.pages;
        }
    }
    if (outside && counts && p.errors)
        atomicAdd(p.errors, 1u);
    x.written = x.written && !outside && !superseded;
    return x;
}

// Not in place: entry n, counted through all batches.
__device__ __forceinline__ item item_of_entry(const params &p, i64 n, int last_token)
{
    item x{true, last_token >= 0};
    x.outer = divide(n, cache_len_of(p));
    x.entry = x.position = n - x.outer * cache_len_of(p);
    x.batch = x.outer;
    x.token = last_token - x.outer * tokens_of(p);
    return x;
}

// --- angles ---

template <int PAIRS> struct angles {
    float cos[PAIRS], sin[PAIRS];
};

template <int COUNT>
__device__ __forceinline__ void load_table(const float *from, float (&to)[COUNT])
{
    constexpr int step = COUNT < 4 ? COUNT : 4;
#pragma unroll
    for (int i = 0; i < COUNT; i += step) {
        const chunk<step * 4> x = fajit::load_constant<step * 4>(from + i);
#pragma unroll
        for (int k = 0; k < step; k++)
            to[i + k] = __uint_as_float(x.word[k]);
    }
}

// A position that the tables do not have gives NaN: never a read outside them.
template <int PAIRS>
__device__ __forceinline__ angles<PAIRS> table_angles(const params &p, i64 position, int pair)
{
    angles<PAIRS> result;
    if (position >= 0 && position < p.max_position) {
        const i64 at = position * (rotary_dim_of(p) / 2) + pair;
        load_table(p.cos + at, result.cos);
        load_table(p.sin + at, result.sin);
    } else {
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            result.cos[i] = result.sin[i] = __uint_as_float(0x7fffffffu);
    }
    return result;
}

// A template, so that it exists only in instances that use it.
template <int R>
__device__ const fajit::frequency_table<R / 2>
    baked_frequencies = fajit::make_frequency_table<R>(static_cast<u64>(LOG2_BASE_Q54));

template <int PAIRS>
__device__ __forceinline__ void load_frequencies(const params &p, int pair, u64 (&to)[PAIRS])
{
    if constexpr (ROTARY_DIM) {
        constexpr int step = PAIRS < 2 ? 1 : 2;
        constexpr int dim = ROTARY_DIM ? ROTARY_DIM : 2; // 2: this branch is not taken
        const u64 *from = baked_frequencies<dim>.value + pair;
#pragma unroll
        for (int i = 0; i < PAIRS; i += step) {
            const chunk<step * 8> x = fajit::load_constant<step * 8>(from + i);
#pragma unroll
            for (int k = 0; k < step; k++)
                to[i + k] = x.word[2 * k] | static_cast<u64>(x.word[2 * k + 1]) << 32;
        }
    } else {
        const u64 quotient = p.log2_base_quotient;
        const unsigned remainder = p.log2_base_remainder, dim = p.rotary_dim;
        const fajit::power ratio = fajit::base_power(quotient, remainder, dim, 1);
        to[0] =
            fajit::scale(fajit::INVERSE_2PI_Q64, fajit::base_power(quotient, remainder, dim, pair));
#pragma unroll
        for (int i = 1; i < PAIRS; i++)
            to[i] = fajit::scale(to[i - 1], ratio);
    }
}

template <int PAIRS>
__device__ __forceinline__ angles<PAIRS> computed_angles(const params &p, i64 position, int pair)
{
    u64 frequency[PAIRS];
    load_frequencies(p, pair, frequency);
    angles<PAIRS> result;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const fajit::sine_cosine x =
            fajit::phase_sine_cosine(static_cast<u64>(position) * frequency[i]);
        result.cos[i] = x.cosine;
        result.sin[i] = x.sine;
    }
    return result;
}

template <int PAIRS>
__device__ __forceinline__ angles<PAIRS> angles_of(const params &p, i64 position, int pair)
{
    if constexpr (TABLES)
        return table_angles<PAIRS>(p, position, pair);
    else
        return computed_angles<PAIRS>(p, position, pair);
}

// --- moving one unit of an item through the heads of a group -------------------------------------

struct heads {
    const Element *fresh;
    const Cached *old;
    Cached *to;
    const float *scale;
    i64 fresh_step, old_step, to_step;
    int left;

    __device__ __forceinline__ heads(const params &p, const part &x, const item &at, int offset)
    {
        const int group = blockIdx.y % p.groups, first = group * p.heads_per_group;
        const tensor<Cached> &out = IN_PLACE ? x.cache : x.out;
        fresh = x.fresh.row(at.batch, first, at.token) + offset;
        old = x.cache.row(at.outer, first, at.entry) + offset;
        to = out.row(at.outer, first, at.entry) + offset;
        scale = x.scale + (SCALES == 2 ? first : 0);
        fresh_step = x.fresh.head;
        old_step = x.cache.head;
        to_step = out.head;
        left = min(p.heads_per_group, (HEADS ? HEADS : p.heads) - first);
    }

    __device__ __forceinline__ float next_scale()
    {
        if constexpr (!SCALES)
            return 1.0f;
        const float value = __uint_as_float(fajit::load_constant<4>(scale).word[0]);
        scale += SCALES == 2;
        return value;
    }
};

// The elements of a head that one thread holds: CHUNKS runs of V neighbours, `distance` apart. Rotated
// ones are both members of each pair: HALF takes V elements of each half, INTERLEAVED V neighbours in
// one access, or two single ones.
template <int V, bool ROTATED> struct unit {
    static constexpr bool neighbours = !ROTATED || (ROTATION == INTERLEAVED && V > 1);
    static constexpr int chunks = neighbours ? 1 : 2;
    static constexpr int pairs = neighbours && V > 1 ? V / 2 : V;
    static constexpr int elements = V * chunks;

    static __device__ __forceinline__ int distance(const params &p)
    {
        return ROTATION == HALF ? rotary_dim_of(p) / 2 : 1;
    }

    // Elements from the beginning of the row, or of its part that is not rotated, to unit `index`.
    static __device__ __forceinline__ int offset(int index)
    {
        return index * (ROTATED && ROTATION == HALF ? V : elements);
    }
};

template <int CHUNKS, int PAIRS, int V>
__device__ __forceinline__ void rotate(float (&y)[CHUNKS][V], const angles<PAIRS> &by)
{
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        float &a = CHUNKS == 2 ? y[0][i] : y[0][2 * i];
        float &b = CHUNKS == 2 ? y[CHUNKS - 1][i] : y[0][2 * i + 1];
        const float rotated = fmaf(a, by.cos[i], -__fmul_rn(b, by.sin[i]));
        b = fmaf(b, by.cos[i], __fmul_rn(a, by.sin[i]));
        a = rotated;
    }
}

// An entry that no token comes to.
template <int V, bool ROTATED> __device__ __forceinline__ void keep(heads h, int distance)
{
    constexpr int chunks = unit<V, ROTATED>::chunks, bytes = V * sizeof(Cached);
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        chunk<bytes> x[HEADS_IN_FLIGHT][chunks];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
#pragma unroll
            for (int c = 0; c < chunks && i < h.left; c++)
                x[i][c] = fajit::load_constant<bytes>(h.old + c * distance);
            h.old += h.old_step;
        }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
#pragma unroll
            for (int c = 0; c < chunks && i < h.left; c++)
                fajit::store(h.to + c * distance, x[i][c]);
            h.to += h.to_step;
        }
    }
}

// What a unit of new values becomes in the cache. Without rotation and quantization its bits stay.
template <int V, bool ROTATED>
__device__ __forceinline__ void finish(const chunk<V * sizeof(Element)> *x,
                                       const angles<unit<V, ROTATED>::pairs> &by, float scale,
                                       chunk<V * sizeof(Cached)> *to)
{
    constexpr int chunks = unit<V, ROTATED>::chunks;
    if constexpr (!ROTATED && sizeof(Cached) == sizeof(Element)) {
        to[0] = x[0];
        return;
    }
    float y[chunks][V];
#pragma unroll
    for (int c = 0; c < chunks; c++)
        fajit::unpack<Element, V>(x[c], y[c]);
    if constexpr (ROTATED)
        rotate(y, by);
#pragma unroll
    for (int c = 0; c < chunks; c++) {
#pragma unroll
        for (int i = 0; i < V && SCALES; i++)
            y[c][i] = __fdiv_rn(y[c][i], scale);
        to[c] = fajit::pack<Cached, V>(y[c]);
    }
}

template <int V, bool ROTATED>
__device__ __forceinline__ void write(const params &p, heads h, int distance, i64 position,
                                      int index)
{
    using work = unit<V, ROTATED>;
    constexpr int bytes = V * sizeof(Element);
    angles<work::pairs> by;
    bool angles_known = false;
#pragma unroll 1 // no peeling: it would let the compiler put the angles before the first loads
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        chunk<bytes> x[HEADS_IN_FLIGHT][work::chunks];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
#pragma unroll
            for (int c = 0; c < work::chunks && i < h.left; c++)
                x[i][c] = fajit::load_constant<bytes>(h.fresh + c * distance);
            h.fresh += h.fresh_step;
        }
        if constexpr (ROTATED)
            if (!angles_known) { // here, while the first heads are on their way
                by = angles_of<work::pairs>(p, position, index * work::pairs);
                angles_known = true;
            }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left) {
                chunk<V * sizeof(Cached)> y[work::chunks];
                finish<V, ROTATED>(x[i], by, h.next_scale(), y);
#pragma unroll
                for (int c = 0; c < work::chunks; c++)
                    fajit::store(h.to + c * distance, y[c]);
            }
            h.to += h.to_step;
        }
    }
}

template <int V, bool ROTATED>
__device__ __forceinline__ void move(const params &p, const part &x, const item &at, int index)
{
    using work = unit<V, ROTATED>;
    const int begin = ROTATED || !ROTATION || &x == &p.v ? 0 : rotary_dim_of(p);
    const heads h(p, x, at, begin + work::offset(index));
    if (IN_PLACE || at.is_new)
        write<V, ROTATED>(p, h, work::distance(p), at.position, index);
    else
        keep<V, ROTATED>(h, work::distance(p));
}

// --- a block -------------------------------------------------------------------------------------

// One body for each width that pointers and strides can ask for; every thread of a block takes the
// same.
template <int V, bool KEYS>
__device__ __forceinline__ void move_items(const params &p, i64 first, int count,
                                           const findings &found)
{
    const part &x = KEYS ? p.k : p.v;
    if constexpr (V > 1) {
        if (x.width < V) {
            move_items<V / 2, KEYS>(p, first, count, found);
            return;
        }
    }
    constexpr bool rotates = KEYS && ROTATION != 0;
    const int rotated_dim = rotates ? rotary_dim_of(p) : 0;
    const int dim = KEYS ? (HEAD_DIM ? HEAD_DIM : x.dim) : (HEAD_DIM_V ? HEAD_DIM_V : x.dim);
    const int rotated = rotated_dim / (2 * unit<V, true>::pairs);
    const int units = rotated + (dim - rotated_dim) / V;
    for (int w = threadIdx.x; w < count * units; w += BLOCK_THREADS) {
        const int i = w / units, index = w - i * units;
        const item at = IN_PLACE ? item_of_token(p, first + i, found.superseded[i],
                                                 index == 0 && blockIdx.y == 0)
                                 : item_of_entry(p, first + i, found.last_token[i]);
        if (!at.written)
            continue;
        if (rotates && index < rotated)
            move<V, rotates>(p, x, at, index);
        else
            move<V, false>(p, x, at, index - rotated);
    }
}

__device__ __forceinline__ void update(const params &p)
{
    __shared__ findings found;
    const i64 first = static_cast<i64>(blockIdx.x) * p.items;
    const int count = static_cast<int>(min(static_cast<i64>(p.items), item_count(p) - first));
    if constexpr (!IN_PLACE)
        find_last_tokens(p, first, count, found);
    else if (may_repeat(p))
        find_superseded(p, first, count, found);
    if (blockIdx.y < static_cast<unsigned>(p.groups))
        move_items<VECTOR_WIDTH, true>(p, first, count, found);
    else
        move_items<VECTOR_WIDTH_V, false>(p, first, count, found);
}

} // namespace kv_update

// The least number of blocks keeps ptxas from spilling to fit in more; it binds at 128 registers.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4)
    fajit_kv_update(const __grid_constant__ kv_update::params p)
{
    fajit::wait_for_predecessor(); // it may have written what is read here, or read what is written
    kv_update::update(p);
    fajit::let_successor_start();
}
