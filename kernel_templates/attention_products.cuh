// The two products of attention.cuh, of a warp on the tensor cores: q k^T, and exponentials times
// v. S is an attention_shape.
//
// Scores and exponentials stay in registers, in the layout of fragment_c, which is also that of the
// left factor of the product with the values.
#ifndef FAJIT_ATTENTION_PRODUCTS_CUH
#define FAJIT_ATTENTION_PRODUCTS_CUH

#include "fajit/attention_shape.cuh"
#include "fajit/dtype.cuh"
#include "fajit/gathered.cuh"
#include "fajit/ldmatrix.cuh"
#include "fajit/multiply.cuh"
#include "fajit/row_tile.cuh"
#include "fajit/shared.cuh"

namespace fajit {

// --- scores --------------------------------------------------------------------------------------

template <class S> struct attention_scores {
    using Element = typename S::Element;
    using product = product_policy<Element>;
    using of_query = tile_offset<typename S::query_tile>;
    using of_key = tile_offset<typename S::key_tile>;
    using left_factors = typename product::a[S::ROW_TILES];
    // Unrolled, steps have constants instead of addresses. Of long rows in float32 the compiler then
    // has more loads on their way than registers.
    static constexpr int UNROLL = S::DIM > 128 && sizeof(Element) == 4 ? 1 : 8;

    // One ldmatrix gives the left factor of a row tile: two chunks of each of its rows.
    static __device__ __forceinline__ void load_queries(const Element *step, left_factors &a)
    {
        const shared_place first(step);
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++) {
            step_a<Element> x[1];
            ldmatrix(x[0].word, first.behind(16 * i * S::query_tile::row_bytes));
            a[i] = product::prepare(x);
        }
    }

    // s = q k^T, of the warp's rows and keys. One ldmatrix gives the right factors of 16 keys.
    static __device__ __forceinline__ void multiply(const typename S::query_tile &q,
                                                    const typename S::key_tile &k,
                                                    const attention_warp &w, typename S::scores &s)
    {
        const int group = w.lane / 8;
        const int q_at = of_query::of(w.first_row + w.lane % 16, w.lane / 16);
        const int k_at = of_key::of(w.first_key + group / 2 * 8 + w.lane % 8, group % 2);
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
#pragma unroll
            for (int n = 0; n < S::KEY_FRAGMENTS; n++)
                s[i][n] = fragment_c<float>{};
#pragma unroll(UNROLL)
        for (int step = 0; step < S::DIM / S::K; step++) {
            left_factors a;
            load_queries(S::elements(q) + of_query::behind(q_at, 2 * step), a);
            const shared_place first(S::elements(k) + of_key::behind(k_at, 2 * step));
#pragma unroll
            for (int n = 0; n < S::KEY_FRAGMENTS; n += 2) {
                unsigned x[4];
                ldmatrix(x, first.behind(8 * n * S::key_tile::row_bytes));
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const step_b<Element> y[1] = {{{x[2 * e], x[2 * e + 1]}}};
                    const typename product::b b = product::prepare(y);
#pragma unroll
                    for (int i = 0; i < S::ROW_TILES; i++)
                        multiply_step<product>(a[i], b, s[i][n + e]);
                }
            }
        }
    }
};

// --- accumulate ----------------------------------------------------------------------------------

// Where a lane's values begin in the tile.
struct attention_value_place {
    int first, second;
};

template <class S> struct attention_values {
    using Element = typename S::Element;
    using product = product_policy<Element>;
    using of_value = tile_offset<typename S::value_tile>;
    static constexpr bool NARROW = sizeof(Element) == 2;
    static constexpr int STEPS = S::WARP_KEYS / S::K; // of a tile's keys

    // Exponentials as the left factor of the product with step number `step` of the tile's keys: in
    // 16-bit types the 16 keys of two fragments, rounded to storage; in float the 8 of one, keys
    // 2 t and 2 t + 1 as columns t and t + 4, so that each lane has what it needs.
    static __device__ __forceinline__ step_a<Element>
    left_factor(const fragment_c<float> (&s)[S::KEY_FRAGMENTS], int step)
    {
        step_a<Element> x;
        if constexpr (NARROW) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const fragment_c<float> &from = s[2 * step + i / 2];
                x.word[i] = pack_pair(Element{}, from.value[i % 2 * 2], from.value[i % 2 * 2 + 1]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.word[i] = __float_as_uint(s[step].value[i % 2 * 2 + i / 2]);
        }
        return x;
    }

    // 16-bit: the row whose address the lane gives to ldmatrix, second: its next chunk where the
    // lane is to give that. float: the rows of keys 2 t and 2 t + 1, in column lane / 4.
    static __device__ __forceinline__ attention_value_place locate(const attention_warp &w)
    {
        if constexpr (NARROW) {
            const int at = of_value::of(w.first_key + w.lane % 16, 0);
            return {at, of_value::behind(at, w.lane / 16)};
        } else {
            const int row = w.first_key + w.lane % 4 * 2, column = w.lane / 4;
            return {of_value::of(row, column / 4) + column % 4,
                    of_value::of(row + 1, column / 4) + column % 4};
        }
    }

    // The right factors of fragments n and, where there is one, n + 1, from the keys that begin at
    // `rows`. ldmatrix turns rows of values into columns, 16 bits each.
    static __device__ __forceinline__ void right_factors(const Element *rows,
                                                         const attention_value_place &at, int n,
                                                         typename product::b (&b)[2])
    {
        step_b<Element> x[2][1];
        if constexpr (!NARROW) {
#pragma unroll
            for (int e = 0; e < 2 && n + e < S::VALUE_FRAGMENTS; e++) {
                x[e][0].word[0] = load_word(rows + of_value::behind(at.first, 2 * (n + e)));
                x[e][0].word[1] = load_word(rows + of_value::behind(at.second, 2 * (n + e)));
            }
        } else if (n + 1 < S::VALUE_FRAGMENTS) {
            unsigned word[4];
            ldmatrix_trans(word, rows + of_value::behind(at.second, n));
            x[0][0] = {{word[0], word[1]}};
            x[1][0] = {{word[2], word[3]}};
        } else {
            ldmatrix_trans(x[0][0].word, rows + of_value::behind(at.first, n));
        }
#pragma unroll
        for (int e = 0; e < 2 && n + e < S::VALUE_FRAGMENTS; e++)
            b[e] = product::prepare(x[e]);
    }

    static __device__ __forceinline__ void rescale(const float (&factor)[S::ROW_TILES][2],
                                                   typename S::accumulated &o)
    {
#pragma unroll
        for (int i = 0; i < S::ROW_TILES; i++)
#pragma unroll
            for (int n = 0; n < S::VALUE_FRAGMENTS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[i][n].value[e] *= factor[i][e / 2];
    }

    // o = factor o + s v.
    static __device__ __forceinline__ void
    multiply(const typename S::value_tile &v, const attention_warp &w, const typename S::scores &s,
             const float (&factor)[S::ROW_TILES][2], typename S::accumulated &o)
    {
        const attention_value_place at = locate(w);
        // All of them first: in 16 bits they take half the registers.
        step_a<Element> x[STEPS][S::ROW_TILES][1];
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int i = 0; i < S::ROW_TILES; i++)
                x[step][i][0] = left_factor(s[i], step);
        rescale(factor, o);
        // One step of so many fragments keeps the tensor cores busy; of several that it may mix the
        // compiler has more parts at hand than registers.
        constexpr int STEPS_AT_ONCE = sizeof(Element) == 4 && S::DIM_V > 64 ? 1 : STEPS;
#pragma unroll(STEPS_AT_ONCE)
        for (int step = 0; step < STEPS; step++) {
            typename product::a a[S::ROW_TILES];
#pragma unroll
            for (int i = 0; i < S::ROW_TILES; i++)
                a[i] = product::prepare(x[0][i]);
#pragma unroll
            for (int next = 1; next < STEPS; next++)
#pragma unroll
                for (int i = 0; i < S::ROW_TILES; i++)
                    x[next - 1][i][0] = x[next][i][0];
#pragma unroll
            for (int n = 0; n < S::VALUE_FRAGMENTS; n += 2) {
                typename product::b b[2];
                right_factors(S::elements(v) + step * S::K * of_value::row_elements, at, n, b);
#pragma unroll
                for (int e = 0; e < 2 && n + e < S::VALUE_FRAGMENTS; e++)
#pragma unroll
                    for (int i = 0; i < S::ROW_TILES; i++)
                        multiply_step<product>(a[i], b[e], o[i][n + e]);
            }
        }
    }
};

} // namespace fajit

#endif
