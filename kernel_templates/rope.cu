// Rotary position embedding of q and k in one launch.
//
//     y[a] = x[a] cos - x[b] sin,   y[b] = x[b] cos + x[a] sin,   angle = position * base^(-2j/R)
//     (a, b) = (j, j + R/2), or (2j, 2j + 1) when INTERLEAVED;  0 <= j < R/2;  R = rotary_dim
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  float, fajit::f16, fajit::bf16
//     INTERLEAVED        bool
//     TABLES             bool          cos and sin are read, not computed
//     POSITION_VECTOR    bool          positions are read, not offset + n
//     IN_PLACE           bool          the outputs are the inputs
//     HEAD_DIM           int           2 to 1024; 0: given at launch
//     ROTARY_DIM         int           even, at most HEAD_DIM; 0: given at launch
//     BATCH, HEADS_Q, HEADS_K, SEQLEN
//                        int           1 and up; 0: given at launch
//     LOG2_BASE_Q54      long long     log2(base) * 2^54 as unsigned; not used with TABLES
//     VECTOR_WIDTH       int           power of two, at most 16 bytes; widest access in elements.
//                                      Divides R/2 (R when INTERLEAVED) and, unless IN_PLACE,
//                                      HEAD_DIM - R, as far as these are baked
//     HEADS_IN_FLIGHT    int           1 to 8 heads loaded before the first is used
//     BLOCK_THREADS      int           multiple of 32, at most 1024
//     PARAM_BYTES        int           size of the launch parameters as the host sees them
//
// Grid: x runs over blocks of units (first the rotated ones, then the copied ones), a unit being
// what one thread does to one head of one token; y runs over groups of heads, those of q first.
// A thread computes its angles once and applies them to all heads of its group.
#include "fajit/dtype.cuh"
#include "fajit/order.cuh"
#include "fajit/phase.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
constexpr bool INTERLEAVED = false, TABLES = false, POSITION_VECTOR = false, IN_PLACE = false;
constexpr int HEAD_DIM = 64, ROTARY_DIM = 64, BATCH = 0, HEADS_Q = 0, HEADS_K = 0, SEQLEN = 0;
constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
constexpr int VECTOR_WIDTH = 4, HEADS_IN_FLIGHT = 2, BLOCK_THREADS = 128, PARAM_BYTES = 224;
#endif

// Not an anonymous namespace: before NVRTC 12.9 the process number would become part of its names,
// and so of the cubin.
namespace rope {

using fajit::chunk;
using fajit::i64;
using fajit::u64;

// [batch, head, token, head_dim], strides in elements.
struct tensor {
    const Element *in;
    Element *out; // equals `in` when IN_PLACE
    i64 in_batch, in_head, in_token;
    i64 out_batch, out_head, out_token;
    int heads, heads_per_group;
};

// Mirrored by rope_kernel_params in src/ops/rope.h.
struct params {
    tensor q, k;
    const int *positions;
    i64 positions_stride;
    const float *cos, *sin; // [max_position, R/2]
    u64 log2_base_quotient; // LOG2_BASE_Q54 / R, when R is given at launch
    int log2_base_remainder;
    int batch, seqlen, head_dim, rotary_dim;
    int position_offset, max_position;
    int width;              // elements of an access, at most VECTOR_WIDTH
    int groups_q;           // of grid y
    unsigned rotary_blocks; // of grid x
};
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");

__device__ __forceinline__ int rotary_dim(const params &p)
{
    return ROTARY_DIM ? ROTARY_DIM : p.rotary_dim;
}

// Where a thread works.
struct place {
    i64 batch, token;
    int unit; // along head_dim
    bool exists;
};

// n / d, short when n fits 32 bits, as it nearly always does.
__device__ __forceinline__ u64 divide(u64 n, unsigned d)
{
    return n >> 32 ? n / d : static_cast<unsigned>(n) / d;
}

__device__ __forceinline__ place locate(const params &p, unsigned block, unsigned units)
{
    const u64 index = static_cast<u64>(block) * BLOCK_THREADS + threadIdx.x;
    const unsigned batch = BATCH ? BATCH : p.batch, seqlen = SEQLEN ? SEQLEN : p.seqlen;
    const u64 row = divide(index, units);
    const u64 b = divide(row, seqlen);
    return {static_cast<i64>(b), static_cast<i64>(row - b * seqlen),
            static_cast<int>(index - row * units), b < batch};
}

// The heads of one group, walked together in in- and output.
struct heads {
    const Element *in;
    Element *out;
    i64 in_step, out_step;
    int left;
};

__device__ __forceinline__ heads heads_of_group(const params &p, const place &at)
{
    const bool is_k = blockIdx.y >= static_cast<unsigned>(p.groups_q);
    const tensor &x = is_k ? p.k : p.q;
    const int group = static_cast<int>(blockIdx.y) - (is_k ? p.groups_q : 0);
    const int count = is_k ? (HEADS_K ? HEADS_K : x.heads) : (HEADS_Q ? HEADS_Q : x.heads);
    const int first = group * x.heads_per_group;
    const i64 in = at.batch * x.in_batch + at.token * x.in_token + first * x.in_head;
    const i64 out = at.batch * x.out_batch + at.token * x.out_token + first * x.out_head;
    return {x.in + in, IN_PLACE ? const_cast<Element *>(x.in) + in : x.out + out, x.in_head,
            IN_PLACE ? x.in_head : x.out_head, min(x.heads_per_group, count - first)};
}

template <int V> __device__ __forceinline__ chunk<V * sizeof(Element)> load_input(const Element *x)
{
    if constexpr (IN_PLACE)
        return fajit::load<V * sizeof(Element)>(x);
    else
        return fajit::load_constant<V * sizeof(Element)>(x);
}

// --- angles --------------------------------------------------------------------------------------

__device__ __forceinline__ i64 position_of(const params &p, const place &at)
{
    if constexpr (POSITION_VECTOR) {
        const int *x = p.positions + at.batch * p.positions_stride + at.token;
        return static_cast<int>(fajit::load_constant<4>(x).word[0]);
    } else {
        return p.position_offset + at.token;
    }
}

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
        const i64 at = position * (rotary_dim(p) / 2) + pair;
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

// --- rotation ------------------------------------------------------------------------------------

// What a thread holds of one head: both members of each of its pairs. HALF takes V elements of the
// first half and V of the second; INTERLEAVED takes V neighbours in one access, or two single ones.
template <int V> struct unit {
    static constexpr int chunks = INTERLEAVED && V > 1 ? 1 : 2;
    static constexpr int pairs = INTERLEAVED && V > 1 ? V / 2 : V;
    chunk<V * sizeof(Element)> x[chunks];

    // Elements between the two accesses.
    static __device__ __forceinline__ int distance(const params &p)
    {
        return INTERLEAVED ? 1 : rotary_dim(p) / 2;
    }

    // Elements from the beginning of the row to unit number `index`.
    static __device__ __forceinline__ int offset(int index)
    {
        return index * (INTERLEAVED ? 2 * pairs : V);
    }

    __device__ __forceinline__ void load(const Element *from, int distance)
    {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            x[c] = load_input<V>(from + c * distance);
    }

    __device__ __forceinline__ void store(Element *to, int distance) const
    {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            fajit::store(to + c * distance, x[c]);
    }

    __device__ __forceinline__ void rotate(const angles<pairs> &by)
    {
        float y[chunks][V];
#pragma unroll
        for (int c = 0; c < chunks; c++)
            fajit::unpack<Element, V>(x[c], y[c]);
#pragma unroll
        for (int i = 0; i < pairs; i++) {
            float &a = chunks == 2 ? y[0][i] : y[0][2 * i];
            float &b = chunks == 2 ? y[chunks - 1][i] : y[0][2 * i + 1];
            // Spelled out, so that every instance rounds alike: in place equals out of place.
            const float rotated = fmaf(a, by.cos[i], -__fmul_rn(b, by.sin[i]));
            b = fmaf(b, by.cos[i], __fmul_rn(a, by.sin[i]));
            a = rotated;
        }
#pragma unroll
        for (int c = 0; c < chunks; c++)
            x[c] = fajit::pack<Element, V>(y[c]);
    }
};

template <int V> __device__ __forceinline__ void rotate_heads(const params &p)
{
    using work = unit<V>;
    const place at = locate(p, blockIdx.x, rotary_dim(p) / (2 * work::pairs));
    if (!at.exists)
        return;
    heads h = heads_of_group(p, at);
    const int distance = work::distance(p), offset = work::offset(at.unit);
    h.in += offset;
    h.out += offset;
    const i64 position = position_of(p, at);

    angles<work::pairs> by;
    bool angles_known = false;
#pragma unroll 1 // no peeling: it would let the compiler put the angles before the first loads
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        work x[HEADS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                x[i].load(h.in, distance);
            h.in += h.in_step;
        }
        if (!angles_known) { // here, while the first heads are on their way
            by = angles_of<work::pairs>(p, position, at.unit * work::pairs);
            angles_known = true;
        }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left) {
                x[i].rotate(by);
                x[i].store(h.out, distance);
            }
            h.out += h.out_step;
        }
    }
}

// --- copying what lies beyond rotary_dim ---------------------------------------------------------

template <int V> __device__ __forceinline__ void copy_heads(const params &p)
{
    const int head_dim = HEAD_DIM ? HEAD_DIM : p.head_dim;
    const int units = (head_dim - rotary_dim(p)) / V;
    const place at = locate(p, blockIdx.x - p.rotary_blocks, units);
    if (!at.exists)
        return;
    heads h = heads_of_group(p, at);
    const int offset = rotary_dim(p) + at.unit * V;
    h.in += offset;
    h.out += offset;
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        chunk<V * sizeof(Element)> x[HEADS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                x[i] = load_input<V>(h.in);
            h.in += h.in_step;
        }
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                fajit::store(h.out, x[i]);
            h.out += h.out_step;
        }
    }
}

// One body for each width that pointers and strides can ask for; every thread takes the same.
template <int V> __device__ __forceinline__ void run(const params &p)
{
    if constexpr (V > 1) {
        if (p.width < V) {
            run<V / 2>(p);
            return;
        }
    }
    constexpr bool copies = !IN_PLACE && ROTARY_DIM && (!HEAD_DIM || ROTARY_DIM < HEAD_DIM);
    if (!copies || blockIdx.x < p.rotary_blocks)
        rotate_heads<V>(p);
    else if constexpr (copies)
        copy_heads<V>(p);
}

} // namespace rope

// The least number of blocks keeps ptxas from spilling to fit in more; it binds at 128 registers.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4)
    fajit_rope(const __grid_constant__ rope::params p)
{
    fajit::wait_for_predecessor(); // it may have written what is read here, or read what is written
    rope::run<VECTOR_WIDTH>(p);
    fajit::let_successor_start();
}
