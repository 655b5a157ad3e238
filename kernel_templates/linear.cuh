// What one block of y = x w^T does: linear_block<C>, for templates that are this product, alone or
// as a step of more. C holds the constants of an instance, with the names and meanings of
// linear.cu's table (but for SHARED_BYTES and PARAM_BYTES), and besides
//
//     ROTATED            may be LINEAR_ROTATED_GIVEN: p.rotated columns, none if that is 0
//     FRESH              bool: x may have been written by the same launch, so that it is not read
//                        as what nobody writes. All else that is read is older than the launch
//     WAIT               int: what the block does about the kernel before it in the stream, which
//                        may have written what is read here, or read what is written.
//                        LINEAR_WAITS: waits for its end, and then lets the successor start, as
//                        late as that can be: just before the first loads, or before it reads
//                        positions; LINEAR_WAITS_FOR_X: the same, but loads the first tiles of w
//                        before: they are older than that kernel; LINEAR_PREFETCHES: as
//                        LINEAR_WAITS, but before asks for what a brief kernel loads to come to
//                        the L2 cache; LINEAR_WAITS_NOT
//     WEIGHTS_BY_K       bool: w is [k, n], in 16 or 32 bits, and columns of w may lie apart in
//                        groups, as heads do: Jumps has w_jumps
//     X_JUMPS            bool: rows of x may lie apart in groups, as batches do: Jumps has x_jumps
//     Y_JUMPS            bool: the same of y[0], and its columns as heads do: y_jumps, y_heads
//     Jumps              type: what is added to the launch parameters (linear_shape.cuh)
//
// and, unless another Finish is given to run, those of its finishing.
//
// The block lays 128 bytes of k of its rows of x and w into shared memory, up to STAGES deep,
// and multiplies. Its sums then go through shared memory, so that each thread finishes and stores
// neighbours.
#ifndef FAJIT_LINEAR_CUH
#define FAJIT_LINEAR_CUH

#include "fajit/anew.cuh"
#include "fajit/dtype.cuh"
#include "fajit/linear_angles.cuh"
#include "fajit/linear_finish.cuh"
#include "fajit/linear_multiply.cuh"
#include "fajit/linear_parts_multiply.cuh"
#include "fajit/linear_shape.cuh"
#include "fajit/sync.cuh"

namespace fajit {

// --- a block's sums ------------------------------------------------------------------------------

template <class S>
inline constexpr bool linear_is_split = S::ARITHMETIC >= LINEAR_SPLIT_TF32; // float32, in any parts

__device__ __forceinline__ bool linear_is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// Adds the first `planes` of sums, in their order, into plane 0: each thread those that it leaves
// as a part, too. False if all of the thread's are finite.
template <class S>
__device__ __forceinline__ bool linear_add_planes(const typename S::memory &shared, int planes)
{
    constexpr int COUNT = S::TILE_M * S::TILE_N, ROUNDS = COUNT / (4 * S::THREADS);
    constexpr int UNROLL = ROUNDS < 1 ? 1 : ROUNDS < 4 ? ROUNDS : 4;
    bool found = false;
#pragma unroll UNROLL
    for (int i = threadIdx.x * 4; i < COUNT; i += S::THREADS * 4) {
        float4 *to = reinterpret_cast<float4 *>(shared.sum(i / S::TILE_N, i % S::TILE_N));
        float4 sum = *to;
#pragma unroll
        for (int s = 1; s < S::WARPS_K; s++)
            if (s < planes) {
                const float4 x = to[s * S::SUM_PLANE / 4];
                sum = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y), __fadd_rn(sum.z, x.z),
                       __fadd_rn(sum.w, x.w)};
            }
        if (planes > 1)
            *to = sum;
        found =
            found || !linear_is_finite(fabsf(sum.x) + fabsf(sum.y) + fabsf(sum.z) + fabsf(sum.w));
    }
    return found;
}

// --- sums of several blocks ----------------------------------------------------------------------

template <class S> struct linear_splits {
    using memory = typename S::memory;
    static constexpr int COUNT = S::TILE_M * S::TILE_N;

    const typename S::params &p;
    const linear_place &b;
    const memory &shared;

    // Where all parts of the tile's sums lie.
    __device__ __forceinline__ float *parts() const
    {
        return p.partial + static_cast<i64>(b.tile) * p.splits * COUNT;
    }

    __device__ __forceinline__ void leave_part() const
    {
        float *to = parts() + static_cast<i64>(b.part) * COUNT;
        for (int i = threadIdx.x * 4; i < COUNT; i += S::THREADS * 4) {
            const float *from = shared.sum(i / S::TILE_N, i % S::TILE_N);
            chunk<16> x;
#pragma unroll
            for (int e = 0; e < 4; e++)
                x.word[e] = __float_as_uint(from[e]);
            store(to + i, x);
        }
    }

    // Whether all other parts are there. The same in all threads of the block.
    __device__ __forceinline__ bool comes_last() const
    {
        __shared__ bool is_last;
        __syncthreads(); // all of the block's sums are written before they are counted
        if (threadIdx.x == 0) {
            fence_device(); // whoever sees the count sees them
            is_last = atomicAdd(p.arrived + b.tile, 1u) == static_cast<unsigned>(p.splits) - 1;
            fence_device(); // and the other way round
        }
        __syncthreads(); // the count is known
        return is_last;
    }

    __device__ __forceinline__ void add_parts() const
    {
        for (int i = threadIdx.x * 4; i < COUNT; i += S::THREADS * 4) {
            const float *from = parts() + i;
            float sum[4] = {};
            for (int s = 0; s < p.splits; s++, from += COUNT) {
                const chunk<16> x = load<16>(from);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[e] = __fadd_rn(sum[e], __uint_as_float(x.word[e]));
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                shared.sum(i / S::TILE_N, i % S::TILE_N)[e] = sum[e];
        }
    }

    // Adds the parts in their order, whichever block comes last: the same bits every time. False in
    // all blocks but that one.
    __device__ __forceinline__ bool join() const
    {
        leave_part();
        if (!comes_last())
            return false;
        add_parts();
        if (threadIdx.x == 0)
            p.arrived[b.tile] = 0; // for the next launch
        __syncthreads();           // before anybody reads the sums
        return true;
    }
};

// --- what split arithmetic cannot do -------------------------------------------------------------

// One sum without parts: row m of x, row n of w.
template <class S>
__device__ __forceinline__ float linear_sum(const typename S::params &p, int m, int n)
{
    using Element = typename S::Element;
    const Element *x = S::x_row(p, m);
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < S::k_of(p); k++) {
        float a[1], c[1];
        unpack<Element, 1>(load_input<sizeof(Element), S::FRESH>(x + k), a);
        unpack<Element, 1>(load_constant<sizeof(Element)>(S::w_at(p, n, k)), c);
        sum = fmaf(a[0], c[0], sum);
    }
    return sum;
}

// A part of infinity, or of what lies next to it, is NaN or infinity. So sums that are not finite
// are computed again without parts; there are none in ordinary data. `found`: there may be one
// among those that this thread looked at. A barrier of the block.
template <class S>
__device__ __forceinline__ void linear_repair(const typename S::params &p, const linear_place &b,
                                              const typename S::memory &shared, bool found)
{
    constexpr int COUNT = S::TILE_M * S::TILE_N;
    if (!__syncthreads_or(found))
        return;
#pragma unroll 1
    for (int i = threadIdx.x; i < COUNT; i += S::THREADS) {
        float *sum = shared.sum(i / S::TILE_N, i % S::TILE_N);
        const int m = b.m + i / S::TILE_N, n = b.n + i % S::TILE_N;
        if (!linear_is_finite(*sum) && m < S::m_of(p) && n < S::n_of(p))
            *sum = linear_sum<S>(p, m, S::column_of(p, n));
    }
    __syncthreads(); // before anybody reads
}

// --- blocks of a multiprocessor ------------------------------------------------------------------

// The least that __launch_bounds__ is told, of blocks of `threads` threads and tiles of `sums`
// sums: ptxas then does not spill to fit in more. Small tiles get 128 registers, as measured on an
// H200.
__host__ __device__ constexpr int linear_least_blocks(int sums, int threads)
{
    return sums <= 32 * 32 ? 512 / threads : 1;
}

// The same of a product that is a step of cross_attention. Tiles of 32 x 64 are small there, too:
// three blocks of 128 threads, as many as one launch of all steps holds, leave 168 registers, and
// projections take most of them. Of larger tiles ptxas is told nothing: told of one block it takes
// more registers. But for 128 x 64, where for sm_120 it then keeps to 128 and spills.
__host__ __device__ constexpr int linear_least_blocks_of_step(int sums, int threads)
{
    return sums <= 32 * 64 ? 384 / threads : sums == 128 * 64 ? 1 : 0;
}

// --- all of it -----------------------------------------------------------------------------------

template <class C> struct linear_block {
    using shape = linear_shape<C>;
    using params = typename shape::params;
    using memory = typename shape::memory;
    static constexpr int THREADS = shape::THREADS, SHARED_BYTES = shape::SHARED_BYTES;

    // Tile number `tile` of y; with MAY_SPLIT, part number `part` of p.splits of its k. All THREADS
    // threads call it, with SHARED_BYTES of shared memory at a multiple of 128 bytes. The threads
    // leave one by one, while others still read there: before they use that memory again, as for
    // another tile, they need __syncthreads.
    static __device__ __forceinline__ void run(const params &p, int tile, int part,
                                               unsigned char *shared)
    {
        run(p, tile, part, shared, [&](const linear_place &b, const memory &sums) {
            if (C::VECTOR_WIDTH > 1 && p.vector > 1)
                linear_finish<shape, C::VECTOR_WIDTH>(p, b, sums);
            else
                linear_finish<shape, 1>(p, b, sums);
        });
    }

    // finish(linear_place, memory) by all threads, when the sums are in shared memory.
    template <class Finish>
    static __device__ __forceinline__ void run(const params &p, int tile, int part,
                                               unsigned char *shared, Finish finish)
    {
        linear_place b = shape::place_of(p, tile, part);
        const memory sums = {shared};
        using multiplier = typename linear_multiplier<shape>::type;
        typename multiplier::loader from(p, b, sums);
        linear_keep_angles<shape, true>(p, b, sums);
        from.load_first();
        linear_keep_angles<shape, false>(p, b, sums);
        {
            multiplier product;
            product.run(from, (b.end - b.begin + shape::TILE_K - 1) / shape::TILE_K);
            if constexpr (!shape::IS_SMALL)
                b = shape::place_of(p, anew(tile), part); // meanwhile every register was needed
            if constexpr (shape::IN_PARTS)
                product.undo_scales(p, b);
            product.put(sums);
        }
        bool found = false;
        if constexpr (linear_is_split<shape> || C::WARPS_K > 1)
            found = linear_add_planes<shape>(sums, C::WARPS_K);
        if constexpr (C::MAY_SPLIT)
            if (p.splits > 1) {
                if (!linear_splits<shape>{p, b, sums}.join())
                    return;
                if constexpr (linear_is_split<shape>)
                    found = linear_add_planes<shape>(sums, 1); // looks at them alone
            }
        if constexpr (linear_is_split<shape>)
            linear_repair<shape>(p, b, sums, found);
        else if constexpr (C::WARPS_K > 1)
            __syncthreads(); // before anybody reads the sums
        finish(b, sums);
    }
};

} // namespace fajit

#endif
