// What a warp adds to its sums from two tiles of padded.cuh:
//
//     sums[16 MT][8 NT] += a[16 MT][depth] b[depth][8 NT]
//
// by any of the policies SUMS_.... Those of tensor cores are multiply.cuh's; here are multiply-adds
// of single lanes, for what has to be summed otherwise or without tensor cores.
//
// Rounding. A long float32 sum loses what its small terms hold, and tensor cores cut each sum off
// instead of rounding it. So the float32 policies sum 8 products from zero and add them, rounded,
// to the total: an error that grows with the root of the number of steps, not with it.
#ifndef FAJIT_PRODUCTS_CUH
#define FAJIT_PRODUCTS_CUH

#include "fajit/dtype.cuh"
#include "fajit/mma.cuh"
#include "fajit/multiply.cuh"
#include "fajit/padded.cuh"
#include "fajit/sync.cuh"

namespace fajit {

// In the order of fa_lowrank_sums, whose first is a choice among these.
inline constexpr int SUMS_CHUNKED = 0;    // float32 multiply-adds in chunks of 8
inline constexpr int SUMS_SPLIT_TF32 = 1; // float32 as two tf32 on tensor cores
inline constexpr int SUMS_TF32 = 2;       // float32 as one tf32: 11 bits
inline constexpr int SUMS_DOUBLE = 3;     // float64 multiply-adds
inline constexpr int SUMS_TENSOR = 4;     // f16 and bf16 as they are
inline constexpr int SUMS_TREE = 5;       // float32, by pairs, pairs of pairs and so on

template <int POLICY>
inline constexpr bool sums_by_lanes =
    POLICY == SUMS_CHUNKED || POLICY == SUMS_DOUBLE || POLICY == SUMS_TREE;

// Terms of one step.
template <int POLICY> inline constexpr int sum_depth = POLICY == SUMS_TENSOR ? 16 : 8;

// --- sums ----------------------------------------------------------------------------------------

__device__ __forceinline__ float rounded_sum(float a, float b)
{
    return __fadd_rn(a, b);
}

__device__ __forceinline__ double rounded_sum(double a, double b)
{
    return __dadd_rn(a, b);
}

template <int POLICY> struct sum_type {
    using type = float;
    using cell = fragment_c<f32>;
};
template <> struct sum_type<SUMS_DOUBLE> {
    using type = double;
    struct cell {
        double value[4];
    };
};

// They lie as fragment_c of mma.cuh does, tile by tile, whatever does the arithmetic: element e of
// cell (i, j) is row 16 i + fragment_row(lane, e), column 8 j + fragment_column(lane, e).
template <int POLICY, int MT, int NT> struct warp_sums {
    typename sum_type<POLICY>::cell cell[MT][NT];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    cell[i][j].value[e] = 0;
    }

    __device__ __forceinline__ void add(const warp_sums &other)
    {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    cell[i][j].value[e] =
                        rounded_sum(cell[i][j].value[e], other.cell[i][j].value[e]);
    }
};

// --- by lanes ------------------------------------------------------------------------------------

__device__ __forceinline__ float multiply_add(float a, float b, float c)
{
    return fmaf(a, b, c);
}

__device__ __forceinline__ double multiply_add(float a, float b, double c)
{
    return fma(static_cast<double>(a), static_cast<double>(b), c);
}

// One step's products of a row and a column, one after another, or by pairs.
template <int POLICY>
__device__ __forceinline__ typename sum_type<POLICY>::type dot(const float (&a)[8],
                                                               const float (&b)[8])
{
    typename sum_type<POLICY>::type sum = 0;
    if constexpr (POLICY == SUMS_TREE) {
        float pair[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            pair[k] = fmaf(a[2 * k], b[2 * k], __fmul_rn(a[2 * k + 1], b[2 * k + 1]));
        sum = __fadd_rn(__fadd_rn(pair[0], pair[1]), __fadd_rn(pair[2], pair[3]));
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum = multiply_add(a[k], b[k], sum);
    }
    return sum;
}

template <int POLICY, class T, int MT, int NT>
__device__ __forceinline__ void add_step_by_lanes(warp_sums<POLICY, MT, NT> &sums, const T *a,
                                                  int lda, const T *b, int ldb)
{
    const int lane = static_cast<int>(lane_index()), row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float right[2][8];
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                right[c][k] = to_float(b[k * ldb + 8 * j + column + c]);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float left[8];
#pragma unroll
                for (int k = 0; k < 8; k++)
                    left[k] = to_float(a[(16 * i + row + 8 * r) * lda + k]);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    auto &total = sums.cell[i][j].value[2 * r + c];
                    total = rounded_sum(total, dot<POLICY>(left, right[c]));
                }
            }
    }
}

// --- by tensor cores -----------------------------------------------------------------------------

template <int POLICY, class T> struct tensor_policy {
    using type = whole<T>;
};

#if __CUDA_ARCH__ >= 800
struct rounded_tf32 {
    using element = f32;
    static constexpr int instructions = 1;
    static constexpr bool short_chains = true;
    struct a {
        fragment_a<tf32, 8> part;
    };
    struct b {
        fragment_b<tf32, 8> part;
    };

    template <class To, class Step> static __device__ __forceinline__ To rounded(const Step &x)
    {
        To y;
#pragma unroll
        for (unsigned i = 0; i < sizeof x.word / 4; i++)
            y.part.word[i] = to_tf32(__uint_as_float(x.word[i])).bits;
        return y;
    }

    static __device__ __forceinline__ a prepare(const step_a<f32> (&x)[1])
    {
        return rounded<a>(x[0]);
    }
    static __device__ __forceinline__ b prepare(const step_b<f32> (&x)[1])
    {
        return rounded<b>(x[0]);
    }
    static __device__ __forceinline__ void add_part(int, const a &x, const b &y,
                                                    fragment_c<f32> &sum)
    {
        sum = mma(x.part, y.part, sum);
    }
};

template <> struct tensor_policy<SUMS_SPLIT_TF32, float> {
    using type = split_tf32;
};
template <> struct tensor_policy<SUMS_TF32, float> {
    using type = rounded_tf32;
};
#endif

template <int POLICY, class T, int MT, int NT>
__device__ __forceinline__ void add_step_by_tensor(warp_sums<POLICY, MT, NT> &sums, const T *a,
                                                   int lda, const T *b, int ldb)
{
    using policy = typename tensor_policy<POLICY, T>::type;
    typename policy::a left[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) {
        step_a<T> x[1];
        load_left(x[0], a + 16 * i * lda, lda);
        left[i] = policy::prepare(x);
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
        step_b<T> y[1];
        load_right(y[0], b + 8 * j, ldb);
        const typename policy::b right = policy::prepare(y);
#pragma unroll
        for (int i = 0; i < MT; i++)
            multiply_step<policy>(left[i], right, sums.cell[i][j]);
    }
}

// --- several steps -------------------------------------------------------------------------------

template <int POLICY, class T, int MT, int NT>
__device__ __forceinline__ void add_step(warp_sums<POLICY, MT, NT> &sums, const T *a, int lda,
                                         const T *b, int ldb)
{
    static_assert(sums_by_lanes<POLICY> || __CUDA_ARCH__ >= 800,
                  "tensor cores of these types need sm_80 or later");
    if constexpr (sums_by_lanes<POLICY>)
        add_step_by_lanes(sums, a, lda, b, ldb);
    else
        add_step_by_tensor(sums, a, lda, b, ldb);
}

// COUNT steps, of which each begins APART terms behind the one before; only what begins before
// `end` counts. With SUMS_TREE they are summed by halves first.
template <int COUNT, int APART, int POLICY, class T, int MT, int NT>
__device__ __forceinline__ void add_steps(warp_sums<POLICY, MT, NT> &sums, const T *a, int lda,
                                          const T *b, int ldb, int end)
{
    constexpr int half = COUNT / 2;
    if constexpr (POLICY != SUMS_TREE || COUNT == 1) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i == 0 || i * APART < end)
                add_step(sums, a + i * APART, lda, b + i * APART * ldb, ldb);
    } else {
        warp_sums<POLICY, MT, NT> part[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            part[h].clear();
            if (h == 0 || half * APART < end)
                add_steps<half, APART>(part[h], a + h * half * APART, lda,
                                       b + h * half * APART * ldb, ldb, end - h * half * APART);
        }
        part[0].add(part[1]);
        sums.add(part[0]);
    }
}

} // namespace fajit

#endif
