// Products of tiles in shared memory on the tensor cores of a warp, accumulated in float32.
//
// Everything is counted in steps of 32 bytes of a row: 8 float32, 16 f16 or bf16, 32 fp8. A step of
// A is 16 rows, one of B 8 rows, and both are contiguous in k: C = A B^T. ldmatrix brings a step as
// the fragments of mma.cuh, whatever the type.
//
// How elements are multiplied is a policy:
//
//     whole<T>      one instruction for each step; T is f16, bf16 or fp8_e4m3
//     split_tf32    float32 as the sum of two tf32 numbers, big and small, of which all products
//                   are taken but small * small: three instructions for each step. Error of a
//                   product at most 2^-21, in the mean 2^-23.5, of it
//     split_bf16    float32 as the sum of three bf16 numbers, exactly; six instructions for two
//                   steps. Error of a product at most 2^-22.5
//
// Tensor cores cut each sum they make toward zero, so that in a long chain of them the error grows
// with its length. The split policies make chains of a step or two, the small products of each
// first, and add them to the total in float32, to nearest.
#ifndef FAJIT_MULTIPLY_CUH
#define FAJIT_MULTIPLY_CUH

#include "fajit/mma.cuh"
#include "fajit/shared.cuh"
#include "fajit/sync.cuh"
#include "fajit/tile.cuh"

namespace fajit {

template <class T> inline constexpr int step_columns = 32 / static_cast<int>(sizeof(T));
template <class T> using step_a = fragment_a<T, step_columns<T>>; // 4 registers: 16 rows
template <class T> using step_b = fragment_b<T, step_columns<T>>; // 2 registers: 8 rows

// --- fragments from a tile -----------------------------------------------------------------------

// Which row and chunk this lane addresses: of A, and of two neighbouring steps of B. Rows that are
// asked for begin at a multiple of 8.
struct lane_rows {
    int row, chunk;
};

__device__ __forceinline__ lane_rows lane_rows_of_a()
{
    const int lane = static_cast<int>(lane_index());
    return {lane % 16, lane / 16};
}

__device__ __forceinline__ lane_rows lane_rows_of_b()
{
    const int lane = static_cast<int>(lane_index());
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

// The permutation is that of `mine.row`, since `row` and `further` are multiples of 8. `further` is
// known to the compiler, so that rows of a step have one address. mine.chunk and 2 step have no bit
// in common.
template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ auto lane_chunk(const tile<T, ROWS, COLUMNS> &from, lane_rows mine,
                                           int row, int further, int step)
{
    using Tile = tile<T, ROWS, COLUMNS>;
    const int chunk = mine.chunk ^ Tile::swizzle::of(mine.row);
    const shared_place first(from.data + (row + mine.row) * Tile::row_bytes +
                             (chunk * 16 ^ step * 32));
    return first.behind(further * Tile::row_bytes);
}

// 16 rows from row + further on.
template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ void load_step(step_a<T> &to, const tile<T, ROWS, COLUMNS> &from,
                                          int row, int further, int step, place at = place::here())
{
    ldmatrix(to.word, lane_chunk(from, lane_rows_of_a(), row, further, step), at);
}

// 8 rows from row + further on, and the next 8.
template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ void load_step(step_b<T> &to, step_b<T> &next,
                                          const tile<T, ROWS, COLUMNS> &from, int row, int further,
                                          int step, place at = place::here())
{
    unsigned word[4];
    ldmatrix(word, lane_chunk(from, lane_rows_of_b(), row, further, step), at);
    to.word[0] = word[0];
    to.word[1] = word[1];
    next.word[0] = word[2];
    next.word[1] = word[3];
}

__device__ __forceinline__ void add(fragment_c<f32> &to, const fragment_c<f32> &x)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        to.value[i] = __fadd_rn(to.value[i], x.value[i]);
}

// --- policies ------------------------------------------------------------------------------------
//
// `steps` of them are taken at once. prepare turns what was loaded into what is multiplied; the
// product of 16 rows of A and 8 of B is made of `instructions`, of which add_part adds one to a
// sum. With `short_chains` that sum is to be a short one.

template <class T> struct whole {
    using element = T;
    static constexpr int steps = 1, instructions = 1;
    static constexpr bool short_chains = false;
    struct a {
        step_a<T> part;
    };
    struct b {
        step_b<T> part;
    };

    static __device__ __forceinline__ a prepare(const step_a<T> (&x)[1])
    {
        return {x[0]};
    }
    static __device__ __forceinline__ b prepare(const step_b<T> (&x)[1])
    {
        return {x[0]};
    }
    static __device__ __forceinline__ void add_part(int, const a &x, const b &y,
                                                    fragment_c<f32> &sum)
    {
#if __CUDA_ARCH__ < 800 // K = 8 alone
        const fragment_a<T, 8> low_a{{x.part.word[0], x.part.word[1]}},
            high_a{{x.part.word[2], x.part.word[3]}};
        sum = mma(low_a, fragment_b<T, 8>{{y.part.word[0]}}, sum);
        sum = mma(high_a, fragment_b<T, 8>{{y.part.word[1]}}, sum);
#else
        sum = mma(x.part, y.part, sum);
#endif
    }
};

#if __CUDA_ARCH__ >= 800
// x = big + small + rest, |small| <= 2^-11 |x|, |rest| < 2^-22.5 |x|. Infinity becomes infinity and
// NaN, NaN remains: sums that are not finite are computed again by whoever wants to know (see
// linear.cuh).
struct split_tf32 {
    using element = f32;
    static constexpr int steps = 1, instructions = 3;
    static constexpr bool short_chains = true;
    struct a {
        fragment_a<tf32, 8> big, small;
    };
    struct b {
        fragment_b<tf32, 8> big, small;
    };

    // To nearest, ties away from zero, by integers: conversion instructions are slower. What of
    // `small` is below a tf32 is ignored by the tensor core.
    static __device__ __forceinline__ void split(unsigned bits, unsigned &big, unsigned &small)
    {
        big = (bits + 0x1000u) & 0xffffe000u;
        small = __float_as_uint(__fsub_rn(__uint_as_float(bits), __uint_as_float(big)));
    }

    static __device__ __forceinline__ a prepare(const step_a<f32> (&x)[1])
    {
        a y;
#pragma unroll
        for (int i = 0; i < 4; i++)
            split(x[0].word[i], y.big.word[i], y.small.word[i]);
        return y;
    }
    static __device__ __forceinline__ b prepare(const step_b<f32> (&x)[1])
    {
        b y;
#pragma unroll
        for (int i = 0; i < 2; i++)
            split(x[0].word[i], y.big.word[i], y.small.word[i]);
        return y;
    }
    static __device__ __forceinline__ void add_part(int n, const a &x, const b &y,
                                                    fragment_c<f32> &sum)
    {
        sum = mma(n == 0 ? x.small : x.big, n == 1 ? y.small : y.big, sum);
    }
};

// x = big + middle + small, each of 8 bits. A pair in a register is columns t and t + 4 of a step,
// of A as of B.
struct split_bf16 {
    using element = f32;
    static constexpr int steps = 2, instructions = 6;
    static constexpr bool short_chains = true;
    struct a {
        fragment_a<bf16, 16> part[3];
    };
    struct b {
        fragment_b<bf16, 16> part[3];
    };

    template <class Part>
    static __device__ __forceinline__ void split(unsigned first, unsigned second, int word,
                                                 Part (&to)[3])
    {
        float low = __uint_as_float(first), high = __uint_as_float(second);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            to[i].word[word] = pack_pair(bf16{}, low, high);
            float taken_low, taken_high;
            unpack_pair(bf16{}, to[i].word[word], taken_low, taken_high);
            low = __fsub_rn(low, taken_low);
            high = __fsub_rn(high, taken_high);
        }
    }

    static __device__ __forceinline__ a prepare(const step_a<f32> (&x)[2])
    {
        a y;
#pragma unroll
        for (int i = 0; i < 4; i++) // row i % 2, step i / 2
            split(x[i / 2].word[i % 2], x[i / 2].word[i % 2 + 2], i, y.part);
        return y;
    }
    static __device__ __forceinline__ b prepare(const step_b<f32> (&x)[2])
    {
        b y;
#pragma unroll
        for (int i = 0; i < 2; i++)
            split(x[i].word[0], x[i].word[1], i, y.part);
        return y;
    }
    static __device__ __forceinline__ void add_part(int n, const a &x, const b &y,
                                                    fragment_c<f32> &sum)
    {
        constexpr int of_x[] = {2, 0, 1, 1, 0, 0}, of_y[] = {0, 2, 1, 0, 1, 0};
        sum = mma(x.part[of_x[n]], y.part[of_y[n]], sum);
    }
};
#endif

// sum += x y, of one step.
template <class Policy>
__device__ __forceinline__ void multiply_step(const typename Policy::a &x,
                                              const typename Policy::b &y, fragment_c<f32> &sum)
{
    if constexpr (Policy::short_chains) {
        fragment_c<f32> chain{};
#pragma unroll
        for (int n = 0; n < Policy::instructions; n++)
            Policy::add_part(n, x, y, chain);
        add(sum, chain);
    } else {
#pragma unroll
        for (int n = 0; n < Policy::instructions; n++)
            Policy::add_part(n, x, y, sum);
    }
}

// --- a warp's share of a tile product ------------------------------------------------------------

// 16 ROWS x 8 COLUMNS elements of C; COLUMNS is even. `load` and `multiply` may be one round apart,
// so that the next round's fragments are on their way while this one's are multiplied.
template <class Policy, int ROWS, int COLUMNS> struct warp_product {
    using T = typename Policy::element;
    static constexpr int steps = Policy::steps;
    static_assert(COLUMNS % 2 == 0, "two steps of B are loaded at once");

    struct round {
        step_a<T> a[ROWS][steps];
        step_b<T> b[COLUMNS][steps];
    };

    fragment_c<f32> sum[ROWS][COLUMNS];
    fragment_c<f32> chain[Policy::short_chains ? ROWS : 1][Policy::short_chains ? COLUMNS : 1];

    template <int R, int C> static __device__ __forceinline__ void clear(fragment_c<f32> (&x)[R][C])
    {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                x[i][j] = fragment_c<f32>{};
    }

    __device__ __forceinline__ void clear()
    {
        clear(sum);
        clear(chain);
    }

    // Ends the chains. To be called after every few rounds, and after the last one.
    __device__ __forceinline__ void end_chains()
    {
        if constexpr (Policy::short_chains) {
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    add(sum[i][j], chain[i][j]);
            clear(chain);
        }
    }

    // `row_a` and `row_b`: where the warp's rows begin in the tiles; round number `at`.
    template <class TileA, class TileB>
    static __device__ __forceinline__ void load(round &to, const TileA &a, int row_a,
                                                const TileB &b, int row_b, int at)
    {
#pragma unroll
        for (int s = 0; s < steps; s++) {
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                load_step(to.a[i][s], a, row_a, i * 16, at * steps + s);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2)
                load_step(to.b[j][s], to.b[j + 1][s], b, row_b, j * 8, at * steps + s);
        }
    }

    // One instruction of all products after the other: none waits for the one before.
    __device__ __forceinline__ void multiply(const round &x)
    {
        typename Policy::a a[ROWS];
        typename Policy::b b[COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            a[i] = Policy::prepare(x.a[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            b[j] = Policy::prepare(x.b[j]);
#pragma unroll
        for (int n = 0; n < Policy::instructions; n++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    Policy::add_part(n, a[i], b[j], Policy::short_chains ? chain[i][j] : sum[i][j]);
    }
};

} // namespace fajit

#endif
