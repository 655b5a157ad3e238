// Where the angles of a rotation come from: computed from base and scaling, read as frequencies, or
// read as cosines and sines. What is done with them is in rotary.cuh.
//
// `Position` is a type of positions.cuh; `pair` is the first of PAIRS neighbouring pairs.
#ifndef FAJIT_ANGLES_CUH
#define FAJIT_ANGLES_CUH

#include "fajit/dtype.cuh"
#include "fajit/phase.cuh"
#include "fajit/positions.cuh"

namespace fajit {

// In the order of fa_rope_angles.
inline constexpr int ANGLES_COMPUTED = 0, ANGLES_TABLES = 1, ANGLES_FREQUENCIES = 2;

template <int PAIRS> struct angles {
    float cos[PAIRS], sin[PAIRS];

    __device__ __forceinline__ void set(int i, float cosine, float sine)
    {
        cos[i] = cosine;
        sin[i] = sine;
    }
};

inline constexpr unsigned NAN_BITS = 0x7fffffffu;

// COUNT neighbours in accesses of 16 bytes at most, to which `from` must be aligned.
template <int COUNT>
__device__ __forceinline__ void load_floats(const float *from, float (&to)[COUNT])
{
    constexpr int step = COUNT < 4 ? COUNT : 4;
#pragma unroll
    for (int i = 0; i < COUNT; i += step) {
        const chunk<step * 4> x = load_constant<step * 4>(from + i);
#pragma unroll
        for (int k = 0; k < step; k++)
            to[i + k] = __uint_as_float(x.word[k]);
    }
}

// --- tables --------------------------------------------------------------------------------------

// [rows, pairs] each. A row that they do not have gives NaN: never a read outside them.
struct angle_tables {
    const float *cos, *sin;
    i64 rows;
    int pairs;

    template <int PAIRS> __device__ __forceinline__ angles<PAIRS> row(i64 position, int pair) const
    {
        angles<PAIRS> result;
        if (position >= 0 && position < rows) {
            const i64 at = position * pairs + pair;
            load_floats(cos + at, result.cos);
            load_floats(sin + at, result.sin);
        } else {
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                result.set(i, __uint_as_float(NAN_BITS), __uint_as_float(NAN_BITS));
        }
        return result;
    }
};

template <int PAIRS, class Position>
__device__ __forceinline__ angles<PAIRS> table_angles(const angle_tables &tables,
                                                      const Position &position, int pair)
{
    if constexpr (Position::shared) {
        return tables.row<PAIRS>(position.of(pair), pair);
    } else {
        angles<PAIRS> result;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const angles<1> one = tables.row<1>(position.of(pair + i), pair + i);
            result.set(i, one.cos[0], one.sin[0]);
        }
        return result;
    }
}

// --- frequencies ---------------------------------------------------------------------------------

template <int PAIRS, class Position>
__device__ __forceinline__ angles<PAIRS> frequency_angles(const u64 (&frequency)[PAIRS],
                                                          const Position &position, int pair)
{
    angles<PAIRS> result;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const sine_cosine x =
            phase_sine_cosine(static_cast<u64>(position.of(pair + i)) * frequency[i]);
        result.set(i, x.cosine, x.sine);
    }
    return result;
}

// Rule is a baked_rule.
template <class Rule>
__device__ const frequency_table<Rule::rotary_dim / 2>
    baked_frequencies = make_frequency_table<Rule::rotary_dim, Rule::scaling>(Rule::value);

template <class Rule, int PAIRS>
__device__ __forceinline__ void load_baked_frequencies(int pair, u64 (&to)[PAIRS])
{
    constexpr int step = PAIRS < 2 ? 1 : 2;
    const u64 *from = baked_frequencies<Rule>.value + pair;
#pragma unroll
    for (int i = 0; i < PAIRS; i += step) {
        const chunk<step * 8> x = load_constant<step * 8>(from + i);
#pragma unroll
        for (int k = 0; k < step; k++)
            to[i + k] = x.word[2 * k] | static_cast<u64>(x.word[2 * k + 1]) << 32;
    }
}

// For what is known only at launch.
template <int SCALING, int PAIRS>
__device__ __forceinline__ void make_frequencies(const frequency_rule &rule, unsigned rotary_dim,
                                                 int pair, u64 (&to)[PAIRS])
{
    const power ratio = base_power(rule.quotient, rule.remainder, rotary_dim, 1);
    u64 plain = plain_frequency(rule, rotary_dim, pair);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        to[i] = scaled<SCALING>(plain, rule, pair + i);
        plain = scale(plain, ratio);
    }
}

// inv_freq in radians, taken as exact. One that is not finite gives NaN.
template <int PAIRS, class Position>
__device__ __forceinline__ angles<PAIRS> vector_angles(const float *inv_freq,
                                                       const Position &position, int pair)
{
    float radians[PAIRS];
    u64 turns[PAIRS];
    load_floats(inv_freq + pair, radians);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        turns[i] = turns_of(radians[i]);
    angles<PAIRS> result = frequency_angles<PAIRS>(turns, position, pair);
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
        if ((__float_as_uint(radians[i]) & 0x7f800000u) == 0x7f800000u)
            result.set(i, __uint_as_float(NAN_BITS), __uint_as_float(NAN_BITS));
    return result;
}

// --- what an instance chooses --------------------------------------------------------------------

// The constants that the host puts in front of a template, as load_baked_frequencies wants them.
template <int ROTARY_DIM, int SCALING, i64 LOG2_BASE_Q54, i64 INVERSE_FACTOR_Q64, i64 RAMP_LOW,
          i64 RAMP_HIGH, i64 RAMP_STEP, i64 RAMP_SHIFT>
struct baked_rule {
    static constexpr int rotary_dim = ROTARY_DIM ? ROTARY_DIM : 2, scaling = SCALING;
    static constexpr u64 log2_base = static_cast<u64>(LOG2_BASE_Q54);
    static constexpr frequency_rule value = {log2_base / rotary_dim,
                                             static_cast<u64>(INVERSE_FACTOR_Q64),
                                             static_cast<u64>(RAMP_LOW),
                                             static_cast<u64>(RAMP_HIGH),
                                             static_cast<u64>(RAMP_STEP),
                                             static_cast<int>(RAMP_SHIFT),
                                             static_cast<unsigned>(log2_base % rotary_dim)};
};

// From the source ANGLES. Params has cos, sin and max_position, inv_freq, and rule, of which those
// are read that the source needs; Rule counts when it is BAKED, p.rule otherwise.
template <int ANGLES, bool BAKED, class Rule, int PAIRS, class Params, class Position>
__device__ __forceinline__ angles<PAIRS> source_angles(const Params &p, int rotary_dim,
                                                       const Position &position, int pair)
{
    if constexpr (ANGLES == ANGLES_TABLES) {
        const angle_tables tables = {p.cos, p.sin, p.max_position, rotary_dim / 2};
        return table_angles<PAIRS>(tables, position, pair);
    } else if constexpr (ANGLES == ANGLES_FREQUENCIES) {
        return vector_angles<PAIRS>(p.inv_freq, position, pair);
    } else {
        u64 frequency[PAIRS];
        if constexpr (BAKED)
            load_baked_frequencies<Rule>(pair, frequency);
        else
            make_frequencies<Rule::scaling>(p.rule, rotary_dim, pair, frequency);
        return frequency_angles<PAIRS>(frequency, position, pair);
    }
}

// --- what a whole kernel adds --------------------------------------------------------------------

// Every cosine and sine times `factor`; the other way round when INVERSE.
template <bool INVERSE, int PAIRS>
__device__ __forceinline__ void adjust(angles<PAIRS> &by, float factor)
{
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        by.cos[i] = factor == 1 ? by.cos[i] : __fmul_rn(by.cos[i], factor);
        by.sin[i] = factor == 1 ? by.sin[i] : __fmul_rn(by.sin[i], factor);
        by.sin[i] = INVERSE ? -by.sin[i] : by.sin[i];
    }
}

} // namespace fajit

#endif
