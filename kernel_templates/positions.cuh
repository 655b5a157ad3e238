// Where the positions of tokens come from. An operation makes one of the position types below for a
// token; angles.cuh asks it for the position that turns a pair.
#ifndef FAJIT_POSITIONS_CUH
#define FAJIT_POSITIONS_CUH

#include "fajit/dtype.cuh"
#include "fajit/phase.cuh"

namespace fajit {

// In the order of fa_rope_positions and fa_rope_sections.
inline constexpr int POSITIONS_RANGE = 0, POSITIONS_VECTOR = 1, POSITIONS_OFFSETS = 2,
                     POSITIONS_CUMULATIVE = 3;
inline constexpr int SECTIONS_NONE = 0, SECTIONS_SPLIT = 1, SECTIONS_INTERLEAVED = 2;

// n / d, short when n fits 32 bits, as it nearly always does.
__device__ __forceinline__ u64 divide(u64 n, unsigned d)
{
    return n >> 32 ? n / d : static_cast<unsigned>(n) / d;
}

// Element `at` of an array of int64 (WIDE) or int32.
template <bool WIDE> __device__ __forceinline__ i64 load_index(const void *from, i64 at)
{
    if constexpr (WIDE) {
        const chunk<8> x = load_constant<8>(static_cast<const i64 *>(from) + at);
        return static_cast<i64>(x.word[0] | static_cast<u64>(x.word[1]) << 32);
    } else {
        return static_cast<int>(load_constant<4>(static_cast<const int *>(from) + at).word[0]);
    }
}

// The sequence that token n is in: the last one that begins at or before it. `begins` holds
// `count` + 1 ascending indices; behind the last sequence the answer is `count`.
template <bool WIDE>
__device__ __forceinline__ i64 sequence_of(const void *begins, i64 count, i64 n)
{
    i64 low = 0, high = count + 1; // begins[low] <= n < begins[high]
    while (high - low > 1) {
        const i64 middle = low + (high - low) / 2;
        (load_index<WIDE>(begins, middle) <= n ? low : high) = middle;
    }
    return low;
}

// One position for all pairs.
struct one_position {
    static constexpr bool shared = true;
    i64 value;

    __device__ __forceinline__ i64 of(int) const
    {
        return value;
    }
};

// Time, height and width, of which each pair takes one.
template <int SECTIONS, int TIME, int HEIGHT, int WIDTH> struct three_positions {
    static constexpr bool shared = false;
    i64 time, height, width;

    __device__ __forceinline__ i64 of(int pair) const
    {
        bool is_height = false, is_width = false;
        if constexpr (SECTIONS == SECTIONS_SPLIT) {
            is_height = pair >= TIME && pair < TIME + HEIGHT;
            is_width = pair >= TIME + HEIGHT;
        } else {
            is_height = pair % 3 == 1 && pair < 3 * HEIGHT;
            is_width = pair % 3 == 2 && pair < 3 * WIDTH;
        }
        return is_height ? height : is_width ? width : time;
    }
};

} // namespace fajit

#endif
