/* Rotary angles on the host: what rope and every operation that rotates share. Integer arithmetic
 * and single steps of IEEE arithmetic alone, so that every machine gets the same bits and, with
 * them, the same keys. Formulas: fa_rope_scaling in fajit.h. */
#ifndef FA_ROTARY_H
#define FA_ROTARY_H

#include <float.h>

#include "op.h"
#include "ops/sizes.h"

#define ROTARY_DEFAULT_BASE 10000.0
#define ROTARY_MAX_FACTOR 1e6

/* What frequencies are made of. Mirror of frequency_rule in phase.cuh. */
typedef struct fa__rotary_rule {
    uint64_t quotient; /* log2(base) * 2^54 = quotient * rotary_dim + remainder */
    uint64_t inverse_factor;
    uint64_t ramp_low, ramp_high, ramp_step;
    int32_t ramp_shift;
    uint32_t remainder;
} fa__rotary_rule;

/* The source of an operation's angles: members of its spec. */
typedef struct fa__rotary {
    const char *op; /* for messages, "rope" */
    fa_rope_angles angles;
    double *base;
    fa_rope_scaling *scaling;
    int32_t rotary_dim; /* 0: known at launch */
} fa__rotary;

/* Checks base and scaling, and fills their defaults: one form for specs that mean the same. */
fa_status fa__rotary_check(const fa__rotary *r);

/* Whether the frequencies depend on what only a launch knows. */
static inline bool fa__rotary_waits(const fa_rope_scaling *s, int32_t rotary_dim)
{
    return !rotary_dim || (s->kind == FA_ROPE_DYNAMIC_NTK && !s->sequence_length);
}

/* The rule for a checked base and scaling. sequence_length counts with DYNAMIC_NTK alone. */
fa__rotary_rule fa__rotary_rule_make(double base, const fa_rope_scaling *s, int64_t rotary_dim,
                                     int64_t sequence_length);

/* The dims of a launch, against each other and head_dim's limit.
 * FA_ERR_LIMIT, FA_ERR_ROTARY_DIM. */
fa_status fa__rotary_check_dims(const char *op, const fa_rope_scaling *s, int64_t head_dim,
                                int64_t rotary_dim, int32_t head_dim_limit);
/* The length that DYNAMIC_NTK scales for; 0 with any other kind. FA_ERR_SIZE, FA_ERR_BAKED. */
fa_status fa__rotary_length(const char *op, const fa_rope_scaling *s, int32_t given,
                            int64_t *length);

/* Bits of the addresses of the arrays that angles are read from, merged; 0: none are. */
static inline uintptr_t fa__rotary_bits(fa_rope_angles angles, const float *cos, const float *sin,
                                        const float *inv_freq)
{
    return angles == FA_ROPE_TABLES        ? (uintptr_t)cos | (uintptr_t)sin
           : angles == FA_ROPE_FREQUENCIES ? (uintptr_t)inv_freq
                                           : 0;
}

/* Elements of an access to what is rotated, at most `width`, for which the alignment of the arrays
 * of angles is enough: a thread reads one float32 of each for a pair, at most 16 bytes at
 * a time. */
static inline int64_t fa__rotary_width(fa_rope_angles angles, bool halves, const float *cos,
                                       const float *sin, const float *inv_freq, int64_t width)
{
    const uintptr_t bits = fa__rotary_bits(angles, cos, sin, inv_freq);
    const int64_t aligned = fa__power_of_two(bits, 16);
    const int64_t limit = halves ? aligned / 4 : aligned / 2;
    return aligned < 16 && width > limit ? limit : width;
}

/* log2(x) * 2^54 for finite x >= 1. */
uint64_t fa__rotary_log2_q54(double x);

/* The constants ANGLES, SCALING, ATTENTION_FACTOR, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64
 * and RAMP_... of a template. */
void fa__rotary_prologue(fa__buf *source, const fa__rotary *r);

/* " base=500000 yarn factor=16 ...": what differs from the defaults. */
void fa__rotary_label(fa__buf *label, const fa__rotary *r);

extern const char *const fa__rotary_style_names[],
    *const fa__rotary_angles_names[], *const fa__rotary_scaling_names[], *const fa__index_names[];

/* Entries of the parameter table of an operation whose spec has the members `base` and `scaling`:
 * MEMBER(name) is the offset of a member of it in fa_spec. */
/* clang-format off */
#define ROTARY_SCALING_PARAM(MEMBER, name, type, low, high, text) \
    {#name, NULL, type, MEMBER(scaling) + offsetof(fa_rope_scaling, name), false, low, high, NULL, \
     text}
#define ROTARY_REAL(MEMBER, name, low, text) \
    ROTARY_SCALING_PARAM(MEMBER, name, FA_PARAM_REAL, low, ROTARY_MAX_FACTOR, text)
#define ROTARY_PARAMS(MEMBER) \
    {"base", NULL, FA_PARAM_REAL, MEMBER(base), false, 1, DBL_MAX, NULL, \
     "of the frequencies base^(-2j/rotary_dim), over 1; 0: 10000"}, \
    {"scaling", NULL, FA_PARAM_ENUM, MEMBER(scaling) + offsetof(fa_rope_scaling, kind), false, 0, \
     0, fa__rotary_scaling_names, "of the frequencies, for sequences beyond the trained length"}, \
    ROTARY_REAL(MEMBER, factor, 1, "of the scaling"), \
    ROTARY_SCALING_PARAM(MEMBER, original_max_position, FA_PARAM_INT, 1, INT32_MAX, \
                         "trained length (dynamic_ntk, yarn, llama3)"), \
    ROTARY_SCALING_PARAM(MEMBER, sequence_length, FA_PARAM_INT, 1, INT32_MAX, \
                         "that dynamic_ntk scales for; 0: given at launch"), \
    ROTARY_SCALING_PARAM(MEMBER, untruncated, FA_PARAM_BOOL, 0, 0, \
                         "yarn: bounds between pairs are not rounded"), \
    ROTARY_REAL(MEMBER, beta_fast, 1e-3, "yarn; 0: 32"), \
    ROTARY_REAL(MEMBER, beta_slow, 1e-3, "yarn; 0: 1"), \
    ROTARY_REAL(MEMBER, low_freq_factor, 1e-3, "llama3; 0: 1"), \
    ROTARY_REAL(MEMBER, high_freq_factor, 1e-3, "llama3; 0: 4"), \
    ROTARY_REAL(MEMBER, attention_factor, 1e-3, \
                "of cosines and sines; 0: 0.1 ln(factor) + 1 with yarn, else 1")
/* clang-format on */

#endif
