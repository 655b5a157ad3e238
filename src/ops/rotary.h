/* Rotary angles on the host: what rope and every operation that rotates share. Integer arithmetic
 * and single steps of IEEE arithmetic alone, so that every machine gets the same bits and, with
 * them, the same keys. Formulas: fa_rope_scaling in fajit.h. */
#ifndef FA_ROTARY_H
#define FA_ROTARY_H

#include "op.h"

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

/* log2(x) * 2^54 for finite x >= 1. */
uint64_t fa__rotary_log2_q54(double x);

/* The constants ANGLES, SCALING, ATTENTION_FACTOR, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64 and
 * RAMP_... of a template. */
void fa__rotary_prologue(fa__buf *source, const fa__rotary *r);

/* " base=500000 yarn factor=16 ...": what differs from the defaults. */
void fa__rotary_label(fa__buf *label, const fa__rotary *r);

extern const char *const fa__rotary_style_names[],
    *const fa__rotary_angles_names[], *const fa__rotary_scaling_names[], *const fa__index_names[];

/* Entries of a parameter table for the members of a fa_rope_scaling at `at` in fa_spec. */
#define ROTARY_SCALING_PARAMS(at)                                                                  \
    {"scaling",                                                                                    \
     NULL,                                                                                         \
     FA_PARAM_ENUM,                                                                                \
     (at) + offsetof(fa_rope_scaling, kind),                                                       \
     false,                                                                                        \
     0,                                                                                            \
     0,                                                                                            \
     fa__rotary_scaling_names,                                                                     \
     "of the frequencies, for sequences beyond the trained length"},                               \
        {"factor",        NULL, FA_PARAM_REAL,     (at) + offsetof(fa_rope_scaling, factor),       \
         false,           1,    ROTARY_MAX_FACTOR, NULL,                                           \
         "of the scaling"},                                                                        \
        {"original_max_position",                                                                  \
         NULL,                                                                                     \
         FA_PARAM_INT,                                                                             \
         (at) + offsetof(fa_rope_scaling, original_max_position),                                  \
         false,                                                                                    \
         1,                                                                                        \
         INT32_MAX,                                                                                \
         NULL,                                                                                     \
         "trained length (dynamic_ntk, yarn, llama3)"},                                            \
        {"sequence_length",                                                                        \
         NULL,                                                                                     \
         FA_PARAM_INT,                                                                             \
         (at) + offsetof(fa_rope_scaling, sequence_length),                                        \
         false,                                                                                    \
         1,                                                                                        \
         INT32_MAX,                                                                                \
         NULL,                                                                                     \
         "that dynamic_ntk scales for; 0: given at launch"},                                       \
        {"untruncated",                                                                            \
         NULL,                                                                                     \
         FA_PARAM_BOOL,                                                                            \
         (at) + offsetof(fa_rope_scaling, untruncated),                                            \
         false,                                                                                    \
         0,                                                                                        \
         0,                                                                                        \
         NULL,                                                                                     \
         "yarn: bounds between pairs are not rounded"},                                            \
        {"beta_fast",  NULL, FA_PARAM_REAL,     (at) + offsetof(fa_rope_scaling, beta_fast),       \
         false,        1e-3, ROTARY_MAX_FACTOR, NULL,                                              \
         "yarn; 0: 32"},                                                                           \
        {"beta_slow", NULL, FA_PARAM_REAL,     (at) + offsetof(fa_rope_scaling, beta_slow),        \
         false,       1e-3, ROTARY_MAX_FACTOR, NULL,                                               \
         "yarn; 0: 1"},                                                                            \
        {"low_freq_factor",                                                                        \
         NULL,                                                                                     \
         FA_PARAM_REAL,                                                                            \
         (at) + offsetof(fa_rope_scaling, low_freq_factor),                                        \
         false,                                                                                    \
         1e-3,                                                                                     \
         ROTARY_MAX_FACTOR,                                                                        \
         NULL,                                                                                     \
         "llama3; 0: 1"},                                                                          \
        {"high_freq_factor",                                                                       \
         NULL,                                                                                     \
         FA_PARAM_REAL,                                                                            \
         (at) + offsetof(fa_rope_scaling, high_freq_factor),                                       \
         false,                                                                                    \
         1e-3,                                                                                     \
         ROTARY_MAX_FACTOR,                                                                        \
         NULL,                                                                                     \
         "llama3; 0: 4"},                                                                          \
    {                                                                                              \
        "attention_factor", NULL, FA_PARAM_REAL,                                                   \
            (at) + offsetof(fa_rope_scaling, attention_factor), false, 1e-3, ROTARY_MAX_FACTOR,    \
            NULL, "of cosines and sines; 0: 0.1 ln(factor) + 1 with yarn, else 1"                  \
    }

#endif
