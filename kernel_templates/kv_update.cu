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
//     SCALES             int           0 none, 1 for all heads, 2 one for each head; with fp8 alone
//     CACHE              int           what a token's entry is: 0 DENSE, its position in the row of
//                                      its batch; 1 SLOTS, its slot in a pool of pages;
//                                      2 BLOCK_TABLE, its position in the pages of its batch
//     IN_PLACE           bool          the cache is changed; else copied with the changes. CACHE 1
//                                      and 2 are in place
//     UNIQUE             bool          no two tokens of a batch go to one entry
//     POSITIONS_WIDE, SLOTS_WIDE
//                        bool          int64, not int32
//     ROTATION           int           0 none, 1 HALF, 2 INTERLEAVED; pairs as in rotary.cuh
//     HEAD_DIM           int           of keys, 1 to 1024; 0: given at launch
//     HEAD_DIM_V         int           of values; 0 with HEAD_DIM 0
//     ROTARY_DIM         int           even, at most HEAD_DIM; 0: given at launch, or no rotation
//     BATCH, TOKENS, HEADS, CACHE_LEN, PAGE_SIZE
//                        int           1 and up; 0: given at launch
//     VECTOR_WIDTH, VECTOR_WIDTH_V
//                        int           power of two, at most 16 bytes of Element; widest access to
//                                      keys and to values in elements. Divides what is rotated,
//                                      what is copied, and HEAD_DIM_V, as far as these are baked
//     HEADS_IN_FLIGHT    int           1 to 8 heads loaded before the first is used
//     BLOCK_THREADS      int           multiple of 32, at most 1024
//     PARAM_BYTES        int           size of the launch parameters as the host sees them
//   angles (angles.cuh)
//     ANGLES, ATTENTION_FACTOR, SCALING, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64, RAMP_LOW,
//     RAMP_HIGH, RAMP_STEP, RAMP_SHIFT
//                                      as in rope.cu
//
// Grid: x runs over blocks of items, y over groups of heads, those of keys first. In place an item
// is a new token, and the question is whether a later one takes its entry: the threads that move it
// look at the tokens behind it together, while what they will store is on its way. Otherwise an
// item is an entry of the cache, and the question is which token comes there, so that each entry of
// the output is written by one thread, be it copied or new: the block looks at the tokens of whole
// batches before anything else.
//
// A thread takes one unit of one item, what one access or pair of accesses holds of a head, through
// heads of its group: through every one, or every 2^abreast_log2 th, so that neighbouring threads
// work on neighbouring heads where these lie beside each other.
#include "fajit/angles.cuh"
#include "fajit/cache_place.cuh"
#include "fajit/dtype.cuh"
#include "fajit/order.cuh"
#include "fajit/positions.cuh"
#include "fajit/rotary.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using Cached = float;
inline constexpr int SCALES = 0, CACHE = 0, ROTATION = 2;
inline constexpr bool IN_PLACE = true, UNIQUE = false, POSITIONS_WIDE = false, SLOTS_WIDE = false;
inline constexpr int HEAD_DIM = 64, HEAD_DIM_V = 64, ROTARY_DIM = 64;
inline constexpr int BATCH = 0, TOKENS = 0, HEADS = 0, CACHE_LEN = 0, PAGE_SIZE = 0;
inline constexpr int VECTOR_WIDTH = 4, VECTOR_WIDTH_V = 4;
inline constexpr int HEADS_IN_FLIGHT = 2, BLOCK_THREADS = 128, PARAM_BYTES = 408;
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
#endif

namespace kv_update {

using fajit::chunk;
using fajit::divide;
using fajit::i64;
using fajit::u64;

inline constexpr int DENSE = 0, SLOTS = 1, BLOCK_TABLE = 2; // CACHE
inline constexpr bool ROTATES = ROTATION != 0, INTERLEAVED = ROTATION == 2;

// [outer, head, token, dim], strides in elements. Outer is a batch, or a page.
template <class T> struct tensor {
    T *data;
    i64 outer, head, token;

    __device__ __forceinline__ T *row(i64 at_outer, i64 at_head, i64 at_token) const
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
    const void *positions;
    i64 positions_stride;
    const void *slots;
    i64 slot_count;
    const int *block_table; // [batch, max_pages]
    i64 block_table_stride;
    const float *cos, *sin;     // [max_position, rotary_dim / 2]
    const float *inv_freq;      // [rotary_dim / 2]
    unsigned *errors;           // may be null
    fajit::frequency_rule rule; // unless RULE_BAKED
    int rotary_dim, max_position;
    int batch, tokens, heads, cache_len, page_size;
    int pages, max_pages;
    int indices_aligned; // positions (SLOTS: slots) of a batch can be read 16 bytes at a time
    int items;           // of a block, at most BLOCK_THREADS; in place several only where all of
                         // their units have a thread of their own
    int heads_per_group; // a multiple of 2^abreast_log2, or all
    int groups;          // of grid y, for keys and for values
    int abreast_log2;    // 2^this neighbouring heads are worked on at once
};
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");

__device__ __forceinline__ int tokens_of(const params &p)
{
    return TOKENS ? TOKENS : p.tokens;
}

__device__ __forceinline__ int cache_len_of(const params &p)
{
    return CACHE_LEN ? CACHE_LEN : p.cache_len;
}

__device__ __forceinline__ int page_size_of(const params &p)
{
    return PAGE_SIZE ? PAGE_SIZE : p.page_size;
}

__device__ __forceinline__ int rotary_dim_of(const params &p)
{
    return ROTARY_DIM ? ROTARY_DIM : p.rotary_dim;
}

// Called before a thread touches global memory, and behind what it can compute without: a
// successor's blocks do that while this kernel's still work. More than once is no harm.
__device__ __forceinline__ void begin_memory()
{
    fajit::wait_for_predecessor(); // it may have written what is read here, or read what is written
    fajit::let_successor_start();
}

// --- where a token goes --------------------------------------------------------------------------

struct cache_rule {
    static constexpr int cache = CACHE;
    static constexpr bool positions_wide = POSITIONS_WIDE, slots_wide = SLOTS_WIDE;
    static constexpr bool needs_position = ROTATES;
    static constexpr bool table_limits = ROTATES && ANGLES == fajit::ANGLES_TABLES;

    static __device__ __forceinline__ int tokens(const params &p)
    {
        return tokens_of(p);
    }
    static __device__ __forceinline__ int entries(const params &p)
    {
        return CACHE == DENSE ? cache_len_of(p) : page_size_of(p);
    }
};

using fajit::count_error;
using fajit::NOWHERE;
using fajit::OUTSIDE;
using place = fajit::cache_place;
using target = fajit::cache_target;

__device__ __forceinline__ target target_of(const params &p, i64 n)
{
    return fajit::target_of<cache_rule>(p, n);
}

__device__ __forceinline__ place place_of(const params &p, const target &to)
{
    return fajit::place_of<cache_rule>(p, to);
}

// Of entry n.
__device__ __forceinline__ place place_of_entry(const params &p, i64 n)
{
    const i64 row = divide(n, cache_len_of(p)), entry = n - row * cache_len_of(p);
    return {true, false, row, entry, entry};
}

// --- what a block finds out about its items ------------------------------------------------------

struct findings {
    int superseded[IN_PLACE ? BLOCK_THREADS : 1]; // not 0: a later token goes to the same entry
    int last_token[IN_PLACE ? 1 : BLOCK_THREADS]; // that goes to each entry; -1: none
};

__device__ __forceinline__ void clear(findings &to)
{
    if constexpr (IN_PLACE)
        to.superseded[threadIdx.x] = 0;
    else
        to.last_token[threadIdx.x] = -1;
    __syncthreads(); // before anything is entered
}

__device__ __forceinline__ bool may_repeat(const params &p)
{
    return !UNIQUE && (CACHE == SLOTS ? p.slot_count != 1 : TOKENS != 1 && p.tokens != 1);
}

// A token and those that look with one another whether it is superseded.
struct lookout {
    i64 n;
    int rank, ranks;
};

// Counts the tokens that are compared: those of a batch, or all that have slots.
template <int> struct count_type {
    using type = unsigned;
};

template <> struct count_type<SLOTS> {
    using type = i64;
};

// Whether a token behind this one goes to the same entry, of those that this rank looks at. W
// indices are read at once.
template <int W>
__device__ __forceinline__ bool sees_later(const params &p, const lookout &my, const target &to)
{
    using number = count_type<CACHE>::type;
    constexpr bool slots = CACHE == SLOTS;
    constexpr int words = (slots ? SLOTS_WIDE : POSITIONS_WIDE) ? 2 : 1;
    const i64 begin = slots ? 0 : to.batch * tokens_of(p);
    const number count = slots ? p.slot_count : tokens_of(p), own = my.n - begin;
    const unsigned *indices = static_cast<const unsigned *>(slots ? p.slots : p.positions) +
                              (slots ? 0 : to.batch * p.positions_stride * words);
    const u64 index = slots ? to.entry : to.position;
    bool sees = false;
#pragma unroll 1
    for (number n = (own + 1) / W * W + my.rank * W; n < count; n += my.ranks * W) {
        const auto x = fajit::load_constant<4 * words * W>(indices + static_cast<i64>(n) * words);
        unsigned same = 0; // bit i: token n + i has the same index
#pragma unroll
        for (int i = 0; i < W; i++)
            if (x.word[i * words] == static_cast<unsigned>(index) &&
                (words == 1 || x.word[i * words + words - 1] == index >> 32) && n + i > own)
                same |= 1u << i;
        if constexpr (slots && ROTATES) // it may have a slot and be padding by its position
            for (; same && !sees; same &= same - 1)
                sees = target_of(p, n + __ffs(same) - 1).entry == to.entry;
        else
            sees = sees || same;
    }
    return sees;
}

// Every thread of the block calls this once, one without a token with a target that is none.
__device__ __forceinline__ void look(const params &p, const lookout &my, const target &to,
                                     int &superseded)
{
    constexpr int widest = (CACHE == SLOTS ? SLOTS_WIDE : POSITIONS_WIDE) ? 2 : 4;
    if (to.entry >= 0 &&
        (p.indices_aligned ? sees_later<widest>(p, my, to) : sees_later<1>(p, my, to)))
        atomicOr(&superseded, 1);
    __syncthreads(); // before what other threads saw is used
}

// Reads the tokens of the batches that the block's entries belong to.
__device__ __forceinline__ void find_last_tokens(const params &p, i64 first, int count,
                                                 findings &to)
{
    const i64 tokens = tokens_of(p), rows = divide(first + count - 1, cache_len_of(p)) + 1;
    begin_memory();
    for (i64 n = divide(first, cache_len_of(p)) * tokens + threadIdx.x; n < rows * tokens;
         n += BLOCK_THREADS) {
        const target x = target_of(p, n);
        if (x.entry >= first && x.entry < first + count)
            atomicMax(&to.last_token[x.entry - first], static_cast<int>(n));
        // Of all blocks that see a token, the one that has its batch's first entry counts it.
        const i64 row = x.batch * cache_len_of(p);
        if (x.entry == OUTSIDE && blockIdx.y == 0 && row >= first && row < first + count)
            count_error(p);
    }
    __syncthreads(); // before what other threads found is used
}

// --- angles --------------------------------------------------------------------------------------

using baked_rule = fajit::baked_rule<ROTARY_DIM, SCALING, LOG2_BASE_Q54, INVERSE_FACTOR_Q64,
                                     RAMP_LOW, RAMP_HIGH, RAMP_STEP, RAMP_SHIFT>;

template <int PAIRS>
__device__ __forceinline__ fajit::angles<PAIRS> angles_of(const params &p, i64 at, int pair)
{
    fajit::angles<PAIRS> by = fajit::source_angles<ANGLES, RULE_BAKED, baked_rule, PAIRS>(
        p, rotary_dim_of(p), fajit::one_position{at}, pair);
    fajit::adjust<false>(by, static_cast<float>(ATTENTION_FACTOR));
    return by;
}

// --- units ---------------------------------------------------------------------------------------

// V neighbours that are not rotated: the counterpart of pair_chunks.
template <class T, int V> struct plain_chunk {
    static constexpr int chunks = 1, pairs = 1, bytes = V * static_cast<int>(sizeof(T));

    struct values {
        float x[1][V];

        __device__ __forceinline__ void rotate(const fajit::angles<1> &) {}
    };

    chunk<bytes> x[1];

    static __device__ __forceinline__ int distance(int)
    {
        return 0;
    }

    static __device__ __forceinline__ int offset(int index)
    {
        return index * V;
    }

    template <bool CONSTANT> __device__ __forceinline__ void load(const T *from, int)
    {
        x[0] = CONSTANT ? fajit::load_constant<bytes>(from) : fajit::load<bytes>(from);
    }

    __device__ __forceinline__ void store(T *to, int) const
    {
        fajit::store(to, x[0]);
    }

    __device__ __forceinline__ values unpacked() const
    {
        values to;
        fajit::unpack<T, V>(x[0], to.x[0]);
        return to;
    }
};

template <class T, int V, bool ROTATED> struct unit_type {
    using type = plain_chunk<T, V>;
};

template <class T, int V> struct unit_type<T, V, true> {
    using type = fajit::pair_chunks<T, V, INTERLEAVED>;
};

template <class T, int V, bool ROTATED> using unit = typename unit_type<T, V, ROTATED>::type;

// Which heads a thread takes, and what of them.
struct share {
    int first, left; // heads, 2^abreast_log2 apart; left is -1 where there is no item
    int offset;      // elements from the beginning of a head
    int distance;    // elements between two accesses to it
};

// `index`: of the units of this kind.
template <class Unit, bool ROTATED>
__device__ __forceinline__ share share_of(const params &p, bool keys, int slot, int index)
{
    const int group = static_cast<int>(blockIdx.y) - (keys ? 0 : p.groups);
    const int first = group * p.heads_per_group + slot;
    const int past = min((group + 1) * p.heads_per_group, HEADS ? HEADS : p.heads);
    const int begin = keys && ROTATES && !ROTATED ? rotary_dim_of(p) : 0;
    return {first, (past - first + (1 << p.abreast_log2) - 1) >> p.abreast_log2,
            begin + Unit::offset(index), Unit::distance(rotary_dim_of(p))};
}

// --- moving a unit through its heads -------------------------------------------------------------

// An entry that no token comes to.
template <class Unit>
__device__ __forceinline__ void keep(const params &p, const part &x, const place &at, share h)
{
    const Cached *from = x.cache.row(at.outer, h.first, at.entry) + h.offset;
    Cached *to = x.out.row(at.outer, h.first, at.entry) + h.offset;
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        Unit old[HEADS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                old[i].template load<true>(from, h.distance);
            from += x.cache.head << p.abreast_log2;
        }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                old[i].store(to, h.distance);
            to += x.out.head << p.abreast_log2;
        }
    }
}

// What is neither rotated nor quantized keeps its bits.
template <bool ROTATED, int V, class Unit>
__device__ __forceinline__ void store_new(const Unit &x, const fajit::angles<Unit::pairs> &by,
                                          const float *scale, Cached *to, int distance)
{
    if constexpr (!ROTATED && sizeof(Cached) == sizeof(Element)) {
        x.store(to, distance);
    } else {
        typename Unit::values y = x.unpacked();
        y.rotate(by);
        const float divisor =
            SCALES ? __uint_as_float(fajit::load_constant<4>(scale).word[0]) : 1.0f;
#pragma unroll
        for (int c = 0; c < Unit::chunks; c++) {
#pragma unroll
            for (int i = 0; i < V; i++)
                y.x[c][i] = SCALES ? __fdiv_rn(y.x[c][i], divisor) : y.x[c][i];
            fajit::store(to + c * distance, fajit::pack<Cached, V>(y.x[c]));
        }
    }
}

// Token n. `find_place` tells where it goes, and `is_written` whether it does: every thread calls
// both once, also one without heads. A place that does not exist comes from nowhere and is not
// written.
template <bool ROTATED, int V, class Unit, class FindPlace, class IsWritten>
__device__ __forceinline__ void write(const params &p, const part &x, i64 n, share h, int index,
                                      FindPlace find_place, IsWritten is_written)
{
    const i64 batch = divide(n, tokens_of(p));
    const Element *from = x.fresh.row(batch, h.first, n - batch * tokens_of(p)) + h.offset;
    const float *scale = x.scale + (SCALES == 2 ? h.first : 0);
    Cached *to = nullptr;
    fajit::angles<Unit::pairs> by;
    if (IN_PLACE && h.left >= 0) // a branch, over which ptxas does not carry the wait to the front
        begin_memory();
#pragma unroll 1 // no peeling: it would let the compiler put the angles before the first loads
    do {
        Unit fresh[HEADS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                fresh[i].template load<true>(from, h.distance);
            from += x.fresh.head << p.abreast_log2;
        }
        if (!to) { // here, while the first heads are on their way
            const place at = find_place();
            if constexpr (ROTATED)
                by = angles_of<Unit::pairs>(p, at.position, index * Unit::pairs);
            if (!is_written(at))
                return;
            to = (IN_PLACE ? x.cache : x.out).row(at.outer, h.first, at.entry) + h.offset;
        }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                store_new<ROTATED, V>(fresh[i], by, scale, to, h.distance);
            to += (IN_PLACE ? x.cache : x.out).head << p.abreast_log2;
            scale += SCALES == 2 ? 1 << p.abreast_log2 : 0;
        }
        h.left -= HEADS_IN_FLIGHT;
    } while (h.left > 0);
}

// --- a block -------------------------------------------------------------------------------------

struct item {
    i64 n;          // a token, or an entry
    bool idle;      // there is none: the thread only waits with the others
    bool counts;    // of a token: this thread reports that it is outside
    int last_token; // of an entry
};

// Unit `index` of those that are ROTATED, or of the others. `is_superseded` tells it of a target.
template <int V, bool KEYS, bool ROTATED, class IsSuperseded>
__device__ __forceinline__ void move(const params &p, const item &it, int slot, int index,
                                     IsSuperseded is_superseded)
{
    using fresh_unit = unit<Element, V, ROTATED>;
    using old_unit = unit<Cached, V, ROTATED>;
    const part &x = KEYS ? p.k : p.v;
    share h = share_of<fresh_unit, ROTATED>(p, KEYS, slot, index);
    if constexpr (IN_PLACE) {
        h.left = it.idle ? -1 : h.left;
        target to;
        write<ROTATED, V, fresh_unit>(
            p, x, it.n, h, index,
            [&]() {
                to = it.idle ? NOWHERE : target_of(p, it.n);
                return place_of(p, to);
            },
            [&](const place &at) {
                const bool superseded = is_superseded(to);
                if (at.outside && it.counts)
                    count_error(p);
                return at.exists && !superseded;
            });
    } else if (it.last_token >= 0) {
        write<ROTATED, V, fresh_unit>(
            p, x, it.last_token, h, index, [&]() { return place_of_entry(p, it.n); },
            [](const place &) { return true; });
    } else {
        keep<old_unit>(p, x, place_of_entry(p, it.n), h);
    }
}

// One body for each width that pointers and strides can ask for; every thread of a block takes the
// same. In place all threads go round together, for they wait for each other in the first round.
template <int V, bool KEYS>
__device__ __forceinline__ void move_items(const params &p, i64 first, int count, findings &found)
{
    const part &x = KEYS ? p.k : p.v;
    if constexpr (V > 1) {
        if (x.width < V) {
            move_items<V / 2, KEYS>(p, first, count, found);
            return;
        }
    }
    constexpr bool rotates = KEYS && ROTATES;
    constexpr bool rotates_all = rotates && HEAD_DIM && HEAD_DIM == ROTARY_DIM;
    constexpr int pairs = unit<Element, V, rotates>::pairs;
    const int dim = KEYS ? (HEAD_DIM ? HEAD_DIM : x.dim) : (HEAD_DIM_V ? HEAD_DIM_V : x.dim);
    const int rotated_dim = rotates ? rotary_dim_of(p) : 0, rotated = rotated_dim / (2 * pairs);
    const int units = rotated + (dim - rotated_dim) / V, threads = units << p.abreast_log2;
    const int me = threadIdx.x;
    for (int begin = 0; begin + (IN_PLACE ? 0 : me) < count * threads; begin += BLOCK_THREADS) {
        const int w = begin + me, head = w / units, index = w - head * units;
        const int i = head >> p.abreast_log2, slot = head - (i << p.abreast_log2);
        item it{first + i, i >= count, slot == 0 && index == 0 && blockIdx.y == 0, -1};
        if constexpr (!IN_PLACE)
            it.last_token = found.last_token[i];
        const auto is_superseded = [&](const target &to) {
            if (!may_repeat(p))
                return false;
            if (begin == 0) // later rounds move more of the same token
                look(p, {it.n, w - i * threads, min(threads, BLOCK_THREADS)}, to,
                     found.superseded[i]);
            return found.superseded[i] != 0;
        };
        if constexpr (rotates_all || !rotates) {
            move<V, KEYS, rotates>(p, it, slot, index, is_superseded);
        } else { // the threads part here, so that they have to wait before
            bool superseded = false;
            if constexpr (IN_PLACE) {
                begin_memory();
                superseded = is_superseded(it.idle ? NOWHERE : target_of(p, it.n));
            }
            const auto known = [=](const target &) { return superseded; };
            if (index < rotated)
                move<V, KEYS, true>(p, it, slot, index, known);
            else
                move<V, KEYS, false>(p, it, slot, index - rotated, known);
        }
    }
}

__device__ __forceinline__ void update(const params &p, findings &found)
{
    const i64 batch = BATCH ? BATCH : p.batch;
    const i64 items =
        CACHE == SLOTS ? p.slot_count : batch * (IN_PLACE ? tokens_of(p) : cache_len_of(p));
    const i64 first = static_cast<i64>(blockIdx.x) * p.items;
    const int count = static_cast<int>(min(static_cast<i64>(p.items), items - first));
    if constexpr (!IN_PLACE)
        find_last_tokens(p, first, count, found);
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
    __shared__ kv_update::findings found;
    if (!IN_PLACE || kv_update::may_repeat(p))
        kv_update::clear(found);
    kv_update::update(p, found);
}
