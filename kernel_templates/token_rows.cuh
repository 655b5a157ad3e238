// The tokens of a block, which follow one another through all batches, and where what is made of
// each goes: to the place of the token itself, or into a cache.
//
// Rule is one of cache_place.cuh, and has besides
//
//     into_cache    bool: positions or slots say where a token goes
//     may_repeat    bool: several tokens of a batch (SLOTS: of all) may go to one entry
//     is_marked     bool: an earlier launch has found out which of them come too early, and left it
//                   in p.superseded, a byte for each token
//     batches(p)    of the launch
#ifndef FAJIT_TOKEN_ROWS_CUH
#define FAJIT_TOKEN_ROWS_CUH

#include "fajit/cache_place.cuh"
#include "fajit/positions.cuh"

namespace fajit {

struct token_row {
    i64 batch, token;
    i64 outer, entry; // where it goes; entry -1: nowhere, or there is no such token
    i64 position;

    __device__ __forceinline__ bool is_written() const
    {
        return entry >= 0;
    }
};

// Token n, of all `tokens`, into the cache.
template <class Rule, class P>
__device__ __forceinline__ void place_in_cache(const P &p, i64 n, bool superseded, bool counts,
                                               token_row &to)
{
    if (Rule::cache == CACHE_SLOTS && n >= p.slot_count)
        return;
    const cache_place at = place_of<Rule>(p, target_of<Rule>(p, n));
    if (at.outside && counts)
        count_error(p);
    to.outer = at.outer;
    to.entry = at.exists && !superseded ? at.entry : -1;
    to.position = at.position;
}

// PLACES: where the rule says; else a token stays where it is. `counts`: whether this block is the
// one that reports tokens outside the cache.
template <class Rule, bool PLACES, class P>
__device__ __forceinline__ token_row token_row_of(const P &p, i64 n, i64 tokens, bool superseded,
                                                  bool counts)
{
    token_row to = {-1, 0, 0, -1, 0};
    if (n >= tokens)
        return to;
    to.batch = divide(n, Rule::tokens(p));
    to.token = n - to.batch * Rule::tokens(p);
    if constexpr (PLACES && Rule::into_cache) {
        place_in_cache<Rule>(p, n, superseded, counts, to);
    } else {
        to.outer = to.batch;
        to.entry = to.token;
        to.position = p.positions ? load_index<Rule::positions_wide>(
                                        p.positions, to.batch * p.positions_stride + to.token)
                                  : p.position_offset + to.token;
    }
    return to;
}

// Of the ROWS tokens from `first` on, which of them a later one supersedes: superseded[i], for all
// below the result, none behind it. All threads of the block come together.
template <class Rule, int ROWS, class P>
__device__ __forceinline__ int compare_token_rows(const P &p, i64 first, i64 *entries,
                                                  int *superseded)
{
    const i64 tokens = static_cast<i64>(Rule::batches(p)) * Rule::tokens(p);
    const i64 past = min(tokens, first + ROWS);
    const i64 batch_end = (divide(past - 1, Rule::tokens(p)) + 1) * Rule::tokens(p);
    const i64 end = Rule::cache == CACHE_SLOTS ? p.slot_count : batch_end;
    const int compared = static_cast<int>(min(past, end) - first);
    if (compared > 0)
        find_superseded<Rule>(p, first, compared, end, entries, superseded);
    return compared;
}

// Of shared memory, for each token, while places are found: entries, superseded.
inline constexpr int TOKEN_ROOM_BYTES = sizeof(i64) + sizeof(int);

// Fills `rows` with the ROWS tokens from `first` on: all threads of the block come together.
// `room`: shared memory that is not in use yet, TOKEN_ROOM_BYTES a row.
template <class Rule, bool PLACES, int ROWS, class P>
__device__ __forceinline__ void find_token_rows(const P &p, i64 first, bool counts, token_row *rows,
                                                unsigned char *room)
{
    const i64 tokens = static_cast<i64>(Rule::batches(p)) * Rule::tokens(p);
    int *superseded = reinterpret_cast<int *>(room + ROWS * sizeof(i64));
    int compared = 0;
    if constexpr (PLACES && Rule::into_cache && Rule::may_repeat && !Rule::is_marked)
        compared =
            compare_token_rows<Rule, ROWS>(p, first, reinterpret_cast<i64 *>(room), superseded);
    for (int i = threadIdx.x; i < ROWS; i += blockDim.x) {
        bool is_early = i < compared && superseded[i] != 0;
        if constexpr (PLACES && Rule::is_marked)
            is_early = first + i < tokens && p.superseded[first + i] != 0;
        rows[i] = token_row_of<Rule, PLACES>(p, first + i, tokens, is_early, counts);
    }
    __syncthreads(); // before the rows are read, and `room` used for what it is
}

// Leaves in p.superseded what a later launch reads there.
template <class Rule, int ROWS, class P>
__device__ __forceinline__ void mark_token_rows(const P &p, i64 first, unsigned char *room)
{
    const i64 tokens = static_cast<i64>(Rule::batches(p)) * Rule::tokens(p);
    int *superseded = reinterpret_cast<int *>(room + ROWS * sizeof(i64));
    const int compared =
        compare_token_rows<Rule, ROWS>(p, first, reinterpret_cast<i64 *>(room), superseded);
    for (int i = threadIdx.x; i < ROWS && first + i < tokens; i += blockDim.x)
        p.superseded[first + i] = i < compared && superseded[i] != 0;
}

} // namespace fajit

#endif
