// Rotary position embedding of q and k in one launch.
//
//     y[a] = x[a] cos - x[b] sin,   y[b] = x[b] cos + x[a] sin,   angle = position * inv_freq[j]
//     (a, b) = (j, j + R/2), or (2j, 2j + 1) when INTERLEAVED;  0 <= j < R/2;  R = rotary_dim
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  float, fajit::f16, fajit::bf16
//     INTERLEAVED        bool
//     INVERSE            bool          sines negated
//     IN_PLACE           bool          the outputs are the inputs
//     HEAD_DIM           int           2 to 1024; 0: given at launch
//     ROTARY_DIM         int           even, at most HEAD_DIM; 0: given at launch
//     BATCH, HEADS_Q, HEADS_K, SEQLEN
//                        int           1 and up; 0: given at launch
//     VECTOR_WIDTH       int           power of two, at most 16 bytes; widest access in elements.
//                                      Divides R/2 (R when INTERLEAVED) and, unless IN_PLACE
//                                      without NORM, HEAD_DIM - R, as far as these are baked
//     HEADS_IN_FLIGHT    int           1 to 8 heads loaded before the first is used
//     BLOCK_THREADS      int           multiple of 32, at most 1024
//     PARAM_BYTES        int           size of the launch parameters as the host sees them
//   angles (angles.cuh)
//     ANGLES             int           ANGLES_COMPUTED, ANGLES_TABLES, ANGLES_FREQUENCIES
//     ATTENTION_FACTOR   double        times every cosine and sine
//     SCALING            int           fa_rope_scaling_kind
//     RULE_BAKED         bool          frequencies are known: ROTARY_DIM is baked, and so are
//     LOG2_BASE_Q54      long long     log2(base) * 2^54 as unsigned
//     INVERSE_FACTOR_Q64, RAMP_LOW, RAMP_HIGH, RAMP_STEP, RAMP_SHIFT
//                        long long     as in frequency_rule, as unsigned
//   positions (positions.cuh)
//     POSITIONS          int           POSITIONS_RANGE, _VECTOR, _OFFSETS, _CUMULATIVE
//     POSITIONS_WIDE     bool          int64, not int32
//     SECTIONS           int           SECTIONS_NONE, _SPLIT, _INTERLEAVED
//     SECTION_T, SECTION_H, SECTION_W
//                        int           pairs; together R/2
//   norm
//     NORM               bool          RMS norm of each head first; HEAD_DIM and ROTARY_DIM baked
//     NormWeight         storage type  float or Element
//     NORM_EPS           double        y = x / sqrt(mean(x^2) + NORM_EPS) * (NORM_OFFSET + weight)
//     NORM_OFFSET        int           0 or 1
//
// Grid: x runs over blocks of units (first the rotated ones, then the copied ones), a unit being
// what one thread does to one head of one token; y runs over groups of heads, those of q first.
// A thread computes its angles once and applies them to heads of its group: to every one, or, where
// the heads of a token lie beside each other in memory, to every 2^abreast_log2 th, so that
// neighbouring threads work on neighbouring heads and a warp's accesses are contiguous.
#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"
#include "fajit/head_lanes.cuh"
#include "fajit/order.cuh"
#include "fajit/positions.cuh"
#include "fajit/rotary.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using NormWeight = float;
inline constexpr bool INTERLEAVED = false, INVERSE = false, IN_PLACE = false;
inline constexpr int HEAD_DIM = 64, ROTARY_DIM = 64, BATCH = 0, HEADS_Q = 0, HEADS_K = 0,
                     SEQLEN = 0;
inline constexpr int VECTOR_WIDTH = 4, HEADS_IN_FLIGHT = 2, BLOCK_THREADS = 128, PARAM_BYTES = 312;
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
inline constexpr int POSITIONS = fajit::POSITIONS_RANGE, SECTIONS = fajit::SECTIONS_NONE;
inline constexpr bool POSITIONS_WIDE = false, NORM = false;
inline constexpr int SECTION_T = 0, SECTION_H = 0, SECTION_W = 0;
inline constexpr double NORM_EPS = 0;
inline constexpr int NORM_OFFSET = 0;
#endif

// Not an anonymous namespace: before NVRTC 12.9 the process number would become part of its names,
// and so of the cubin.
namespace rope {

using fajit::chunk;
using fajit::divide;
using fajit::i64;
using fajit::u64;

// [batch, head, token, head_dim], strides in elements.
struct tensor {
    const Element *in;
    Element *out; // equals `in` when IN_PLACE
    i64 in_batch, in_head, in_token;
    i64 out_batch, out_head, out_token;
    const NormWeight *norm; // [head_dim]
    int heads, heads_per_group;
};

// Mirrored by rope_kernel_params in src/ops/rope.h.
struct params {
    tensor q, k;
    const void *positions;
    i64 positions_stride, positions_axis_stride;
    const void *sequence_offsets; // may be null
    const float *cos, *sin;       // [max_position, R/2]
    const float *inv_freq;        // [R/2]
    fajit::frequency_rule rule;   // unless RULE_BAKED
    int batch, seqlen, head_dim, rotary_dim;
    int position_offset, max_position, sequences;
    int width;              // elements of an access, at most VECTOR_WIDTH
    int groups_q;           // of grid y
    int abreast_log2;       // 2^this neighbouring heads are worked on at once
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
    int slot; // of the heads abreast
    int unit; // along head_dim
    bool exists;
};

__device__ __forceinline__ place locate(const params &p, unsigned block, unsigned units)
{
    const u64 index = static_cast<u64>(block) * BLOCK_THREADS + threadIdx.x;
    const unsigned batch = BATCH ? BATCH : p.batch, seqlen = SEQLEN ? SEQLEN : p.seqlen;
    const u64 head = divide(index, units);
    const u64 row = head >> p.abreast_log2;
    const u64 b = divide(row, seqlen);
    return {static_cast<i64>(b), static_cast<i64>(row - b * seqlen),
            static_cast<int>(head - (row << p.abreast_log2)),
            static_cast<int>(index - head * units), b < batch};
}

// The heads of one thread, walked together in in- and output.
struct heads {
    const Element *in;
    Element *out;
    i64 in_step, out_step;
    int left;

    __device__ __forceinline__ void skip(int elements)
    {
        in += elements;
        out += elements;
    }
};

__device__ __forceinline__ bool works_on_k(const params &p)
{
    return blockIdx.y >= static_cast<unsigned>(p.groups_q);
}

__device__ __forceinline__ heads heads_of_thread(const params &p, const place &at)
{
    const bool is_k = works_on_k(p);
    const tensor &x = is_k ? p.k : p.q;
    const int group = static_cast<int>(blockIdx.y) - (is_k ? p.groups_q : 0);
    const int count = is_k ? (HEADS_K ? HEADS_K : x.heads) : (HEADS_Q ? HEADS_Q : x.heads);
    const int first = group * x.heads_per_group + at.slot;
    const int past = min((group + 1) * x.heads_per_group, count);
    const i64 in = at.batch * x.in_batch + at.token * x.in_token + first * x.in_head;
    const i64 out = at.batch * x.out_batch + at.token * x.out_token + first * x.out_head;
    return {x.in + in, IN_PLACE ? const_cast<Element *>(x.in) + in : x.out + out,
            x.in_head << p.abreast_log2, (IN_PLACE ? x.in_head : x.out_head) << p.abreast_log2,
            (past - first + (1 << p.abreast_log2) - 1) >> p.abreast_log2};
}

// --- angles --------------------------------------------------------------------------------------

__device__ __forceinline__ fajit::one_position position_of(const params &p, const place &at)
{
    using fajit::load_index;
    if constexpr (POSITIONS == fajit::POSITIONS_VECTOR) {
        return {load_index<POSITIONS_WIDE>(p.positions, at.batch * p.positions_stride + at.token)};
    } else if constexpr (POSITIONS == fajit::POSITIONS_OFFSETS) {
        return {load_index<POSITIONS_WIDE>(p.positions, at.batch) + at.token};
    } else if constexpr (POSITIONS == fajit::POSITIONS_CUMULATIVE) {
        const i64 s = fajit::sequence_of<POSITIONS_WIDE>(p.positions, p.sequences, at.token);
        i64 position = at.token - load_index<POSITIONS_WIDE>(p.positions, s);
        if (p.sequence_offsets && s < p.sequences)
            position += load_index<POSITIONS_WIDE>(p.sequence_offsets, s);
        return {position};
    } else {
        return {p.position_offset + at.token};
    }
}

using sections = fajit::three_positions<SECTIONS, SECTION_T, SECTION_H, SECTION_W>;

__device__ __forceinline__ sections section_positions_of(const params &p, const place &at)
{
    const i64 i = at.batch * p.positions_stride + at.token, axis = p.positions_axis_stride;
    return {fajit::load_index<POSITIONS_WIDE>(p.positions, i),
            fajit::load_index<POSITIONS_WIDE>(p.positions, i + axis),
            fajit::load_index<POSITIONS_WIDE>(p.positions, i + 2 * axis)};
}

using baked_rule = fajit::baked_rule<ROTARY_DIM, SCALING, LOG2_BASE_Q54, INVERSE_FACTOR_Q64,
                                     RAMP_LOW, RAMP_HIGH, RAMP_STEP, RAMP_SHIFT>;

template <int PAIRS, class Position>
__device__ __forceinline__ fajit::angles<PAIRS> source_angles(const params &p,
                                                              const Position &position, int pair)
{
    return fajit::source_angles<ANGLES, RULE_BAKED, baked_rule, PAIRS>(p, rotary_dim(p), position,
                                                                       pair);
}

template <int PAIRS>
__device__ __forceinline__ fajit::angles<PAIRS> angles_of(const params &p, const place &at,
                                                          int pair)
{
    fajit::angles<PAIRS> by;
    if constexpr (SECTIONS == fajit::SECTIONS_NONE)
        by = source_angles<PAIRS>(p, position_of(p, at), pair);
    else
        by = source_angles<PAIRS>(p, section_positions_of(p, at), pair);
    fajit::adjust<INVERSE>(by, static_cast<float>(ATTENTION_FACTOR));
    return by;
}

// --- rotating ------------------------------------------------------------------------------------

template <int V> using pair_chunks = fajit::pair_chunks<Element, V, INTERLEAVED>;

template <int V> __device__ __forceinline__ chunk<V * sizeof(Element)> load_input(const Element *x)
{
    if constexpr (IN_PLACE)
        return fajit::load<V * sizeof(Element)>(x);
    else
        return fajit::load_constant<V * sizeof(Element)>(x);
}

template <int V> __device__ __forceinline__ void rotate_heads(const params &p)
{
    using work = pair_chunks<V>;
    const place at = locate(p, blockIdx.x, rotary_dim(p) / (2 * work::pairs));
    if (!at.exists)
        return;
    heads h = heads_of_thread(p, at);
    const int distance = work::distance(rotary_dim(p));
    h.skip(work::offset(at.unit));

    fajit::angles<work::pairs> by;
    bool angles_known = false;
#pragma unroll 1 // no peeling: it would let the compiler put the angles before the first loads
    for (; h.left > 0; h.left -= HEADS_IN_FLIGHT) {
        work x[HEADS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < HEADS_IN_FLIGHT; i++) {
            if (i < h.left)
                x[i].template load<!IN_PLACE>(h.in, distance);
            h.in += h.in_step;
        }
        if (!angles_known) { // here, while the first heads are on their way
            by = angles_of<work::pairs>(p, at, at.unit * work::pairs);
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
    heads h = heads_of_thread(p, at);
    h.skip(rotary_dim(p) + at.unit * V);
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

// --- norm, then rotating -------------------------------------------------------------------------

template <int V> __device__ __forceinline__ void normalize_and_rotate_heads(const params &p)
{
    using group = fajit::head_lanes<Element, V, INTERLEAVED, HEAD_DIM, ROTARY_DIM>;
    constexpr int pairs = group::work::pairs;
    const place at = locate(p, blockIdx.x, group::lanes);
    if (!at.exists) // so do the other lanes of the group
        return;
    heads h = heads_of_thread(p, at);
    group weights;
    weights.load_weights((works_on_k(p) ? p.k : p.q).norm, static_cast<float>(NORM_OFFSET),
                         at.unit);
    fajit::angles<pairs> by[group::pair_rounds];
#pragma unroll
    for (int i = 0; i < group::pair_rounds; i++)
        by[i] = angles_of<pairs>(p, at, group::pair_unit(at.unit, i) * pairs);
    constexpr int in_flight = group::elements > 16 ? 1 : HEADS_IN_FLIGHT; // registers are finite
#pragma unroll 1
    for (; h.left > 0; h.left -= in_flight) {
        typename group::chunks x[in_flight];
#pragma unroll
        for (int i = 0; i < in_flight; i++) {
            if (i < h.left)
                x[i].template load<!IN_PLACE>(h.in, at.unit);
            h.in += h.in_step;
        }
#pragma unroll
        for (int i = 0; i < in_flight; i++) {
            if (i < h.left) { // so say all lanes of the group
                group values;
                values.unpack_from(x[i]);
                values.normalize(weights, static_cast<float>(NORM_EPS));
                values.rotate(by);
                values.pack_into(x[i]);
                x[i].store(h.out, at.unit);
            }
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
    if constexpr (NORM) {
        normalize_and_rotate_heads<V>(p);
    } else {
        constexpr bool copies = !IN_PLACE && ROTARY_DIM && (!HEAD_DIM || ROTARY_DIM < HEAD_DIM);
        if (!copies || blockIdx.x < p.rotary_blocks)
            rotate_heads<V>(p);
        else if constexpr (copies)
            copy_heads<V>(p);
    }
}

} // namespace rope

// The least number of blocks keeps ptxas from spilling to fit in more; 4 bind at 128 registers.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, NORM &&HEAD_DIM > 512 ? 2 : 4)
    fajit_rope(const __grid_constant__ rope::params p)
{
    fajit::wait_for_predecessor(); // it may have written what is read here, or read what is written
    rope::run<VECTOR_WIDTH>(p);
    fajit::let_successor_start();
}
