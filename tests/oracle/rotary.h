/* Rotary angles in double precision: for the references of every operation that rotates. */
#ifndef FAJIT_ORACLE_ROTARY_H
#define FAJIT_ORACLE_ROTARY_H

#include "fajit.h"

/* inv_freq(j) of the formulas at fa_rope_scaling, in radians. base 0 and members that are 0 stand
 * for their defaults; sequence_length counts with DYNAMIC_NTK alone. */
double oracle_rotary_frequency(double base, const fa_rope_scaling *s, int64_t rotary_dim,
                               int64_t sequence_length, int64_t j);

double oracle_rotary_attention_factor(const fa_rope_scaling *s);

/* Where an operation takes its angles from. */
typedef struct oracle_angles {
    double base;
    const fa_rope_scaling *scaling;
    int64_t rotary_dim, sequence_length;
    const float *inv_freq;  /* NULL: of base and scaling */
    const float *cos, *sin; /* NULL: computed */
    int64_t max_position;   /* rows of these tables */
} oracle_angles;

/* Of each pair of a head at this position, with the attention factor; NaN outside the tables. */
void oracle_rotary_angles(const oracle_angles *a, int64_t position, double *cosines, double *sines);

/* Turns the first rotary_dim elements of a head by one cosine and sine for each pair. */
void oracle_rotary_turn(double *head, fa_rope_style style, int64_t rotary_dim,
                        const double *cosines, const double *sines);

#endif
