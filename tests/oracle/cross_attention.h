/* The cross-attention reference beyond the common interface, for tests that change a case after
 * making it. */
#ifndef FAJIT_ORACLE_CROSS_ATTENTION_H
#define FAJIT_ORACLE_CROSS_ATTENTION_H

#include "oracle.h"

/* Order of the extra sizes. */
enum {
    ORACLE_CROSS_STRIDE_PAD,
    ORACLE_CROSS_MAGNITUDE,
    ORACLE_CROSS_GAIN,
    ORACLE_CROSS_SELF,
    ORACLE_CROSS_OFFSET_Q,
    ORACLE_CROSS_OFFSET_K,
    ORACLE_CROSS_MAX_POSITION,
    ORACLE_CROSS_LENGTH,
    ORACLE_CROSS_HEADS_FIRST,
    ORACLE_CROSS_EXTRA_COUNT,
};

/* Computes what every output must hold, and the gate, from what the host tensors and args now
 * hold. */
void oracle_cross_attention_expect(oracle_case *c);

#endif
