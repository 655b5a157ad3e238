// Where in a cache of keys and values a token goes: its position in the row of its batch, its slot
// in a pool of pages, or its position in the pages that its batch has.
//
// Rule holds what is baked: `cache`, `positions_wide` and `slots_wide` (int64, not int32),
// `needs_position` (besides the entry), `table_limits` (positions from max_position on are
// outside); and tokens(p) of a batch, entries(p) of a row (DENSE) or of a page. P is an operation's
// parameters with positions, positions_stride, slots, block_table, block_table_stride, pages,
// max_pages, max_position and errors in them.
#ifndef FAJIT_CACHE_PLACE_CUH
#define FAJIT_CACHE_PLACE_CUH

#include "fajit/positions.cuh"
#include "fajit/sync.cuh"

namespace fajit {

inline constexpr int CACHE_DENSE = 0, CACHE_SLOTS = 1, CACHE_BLOCK_TABLE = 2;

inline constexpr i64 PADDING = -1, OUTSIDE = -2; // in place of an entry

// Entries are counted through all batches (SLOTS: all pages), so that equal ones
// are the same place.
struct cache_target {
    i64 batch, position, entry;
};

// Entries that a batch can have (SLOTS: the pool).
template <class Rule, class P> __device__ __forceinline__ i64 capacity_of(const P &p)
{
    if constexpr (Rule::cache == CACHE_DENSE)
        return Rule::entries(p);
    else
        return static_cast<i64>(Rule::cache == CACHE_SLOTS ? p.pages : p.max_pages) *
               Rule::entries(p);
}

// Of token n, counted through all batches.
template <class Rule, class P> __device__ __forceinline__ cache_target target_of(const P &p, i64 n)
{
    cache_target to{};
    to.batch = divide(n, Rule::tokens(p));
    if constexpr (Rule::cache != CACHE_SLOTS || Rule::needs_position)
        to.position = load_index<Rule::positions_wide>(
            p.positions, to.batch * p.positions_stride + (n - to.batch * Rule::tokens(p)));
    to.entry = Rule::cache == CACHE_SLOTS ? load_index<Rule::slots_wide>(p.slots, n) : to.position;
    if (to.entry == -1 || to.position == -1)
        to.entry = PADDING;
    else if (to.entry < 0 || to.entry >= capacity_of<Rule>(p) || to.position < 0 ||
             (Rule::table_limits && to.position >= p.max_position))
        to.entry = OUTSIDE;
    else if (Rule::cache != CACHE_SLOTS)
        to.entry += to.batch * capacity_of<Rule>(p);
    return to;
}

inline constexpr cache_target NOWHERE = {0, -1, PADDING};

struct cache_place {
    bool exists, outside; // or neither: nothing is written, and that is no error
    i64 outer, entry;     // in the cache
    i64 position;         // to rotate to
};

template <class P> __device__ __forceinline__ void count_error(const P &p)
{
    if (p.errors)
        atomicAdd(p.errors, 1u);
}

// Of a token.
template <class Rule, class P>
__device__ __forceinline__ cache_place place_of(const P &p, const cache_target &to)
{
    cache_place at{to.entry >= 0, to.entry == OUTSIDE, to.batch, to.position, to.position};
    if (Rule::cache != CACHE_DENSE && at.exists) {
        const i64 in_pages = Rule::cache == CACHE_SLOTS ? to.entry : to.position;
        at.outer = divide(in_pages, Rule::entries(p));
        at.entry = in_pages - at.outer * Rule::entries(p);
        if constexpr (Rule::cache == CACHE_BLOCK_TABLE) {
            at.outer = load_index<false>(p.block_table, to.batch * p.block_table_stride + at.outer);
            at.outside = at.outer < 0 || at.outer >= p.pages;
            at.exists = !at.outside;
        }
    }
    return at;
}

// Which of a block's tokens go where a later one goes too: all its threads come together. Reads the
// tokens behind `first` up to `end`. The arrays are in shared memory, one element for each token;
// superseded: not 0, if it is.
template <class Rule, class P>
__device__ __forceinline__ void find_superseded(const P &p, i64 first, int count, i64 end,
                                                i64 *entries, int *superseded)
{
    const int threads = static_cast<int>(blockDim.x);
    for (int i = threadIdx.x; i < count; i += threads) {
        entries[i] = target_of<Rule>(p, first + i).entry;
        superseded[i] = 0;
    }
    __syncthreads(); // before others' entries are compared
    i64 low = entries[0], high = entries[0];
    for (int i = static_cast<int>(lane_index()); i < count; i += 32) {
        low = min(low, entries[i]);
        high = max(high, entries[i]);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        low = min(low, __shfl_xor_sync(0xffffffffu, low, d));
        high = max(high, __shfl_xor_sync(0xffffffffu, high, d));
    }
    for (i64 n = first + 1 + threadIdx.x; n < end; n += threads) {
        const i64 entry = target_of<Rule>(p, n).entry;
        if (entry < 0 || entry < low || entry > high)
            continue;
        for (int i = 0; i < count && first + i < n; i++)
            if (entries[i] == entry)
                atomicOr(&superseded[i], 1); // another thread may have found one, too
    }
    __syncthreads(); // before what other threads found is used
}

} // namespace fajit

#endif
