/* The rope reference beyond the common interface, for tests that change a case after making it. */
#ifndef FAJIT_ORACLE_ROPE_H
#define FAJIT_ORACLE_ROPE_H

#include "oracle.h"

/* Entries of fa_oracle.extra_names. */
#define ROPE_EXTRAS 7

/* Computes every `expected` and `untouched` again from what the host tensors and args now hold. */
void oracle_rope_expect(oracle_case *c);

int64_t oracle_rope_rotary_dim(const oracle_case *c);
/* In radians; computed angles. */
double oracle_rope_frequency(const oracle_case *c, int64_t pair);

/* Strides in elements as they count, packed ones and extents of 1 included: batch, head, token. */
void oracle_rope_strides(const oracle_case *c, const fa_tensor *t, int64_t heads, int64_t to[3]);

#endif
