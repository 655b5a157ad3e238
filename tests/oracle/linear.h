/* The linear reference beyond the common interface, for tests that change a case after making it. */
#ifndef FAJIT_ORACLE_LINEAR_H
#define FAJIT_ORACLE_LINEAR_H

#include "oracle.h"

/* Order of the extra sizes. */
enum {
    ORACLE_LINEAR_STRIDE_PAD,
    ORACLE_LINEAR_ROW_COUNT,
    ORACLE_LINEAR_SPOILT,
    ORACLE_LINEAR_OFFSET,
    ORACLE_LINEAR_MAX_POSITION,
    ORACLE_LINEAR_LENGTH,
    ORACLE_LINEAR_EXTRA_COUNT,
};

/* Computes what every output must hold, from what the host tensors and args now hold. */
void oracle_linear_expect(oracle_case *c);

#endif
