/* The attention reference beyond the common interface, for tests that change a case after making
 * it. */
#ifndef FAJIT_ORACLE_ATTENTION_H
#define FAJIT_ORACLE_ATTENTION_H

#include "oracle.h"

/* Order of the extra sizes. */
enum {
    ORACLE_ATTENTION_STRIDE_PAD,
    ORACLE_ATTENTION_MAGNITUDE,
    ORACLE_ATTENTION_EXTRA_COUNT,
};

/* Computes what every output must hold, and the gate, from what the host tensors and args now
 * hold. */
void oracle_attention_expect(oracle_case *c);

/* One query. */
typedef struct oracle_attention_row {
    const double *q, *k, *v; /* the row, and all rows of the head */
    double *score;           /* room for seqlen_k */
    double *out, lse, largest;
} oracle_attention_row;

/* Attends query i. Of the case its spec and the lengths of its args count. `rounds`: exponentials
 * and results are rounded to storage. (Eager arithmetic rounds the scores too, which allows several
 * times as much.) */
void oracle_attend(const oracle_case *c, int64_t i, bool rounds, oracle_attention_row *r);

#endif
