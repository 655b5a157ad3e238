/* The lowrank_kv reference beyond the common interface, for tests that change a case after making
 * it. */
#ifndef FAJIT_ORACLE_LOWRANK_KV_H
#define FAJIT_ORACLE_LOWRANK_KV_H

#include "oracle.h"

/* Order of the extra sizes. */
enum {
    ORACLE_LOWRANK_CACHE_LEN,
    ORACLE_LOWRANK_PAGE_SIZE,
    ORACLE_LOWRANK_PAGES,
    ORACLE_LOWRANK_SLOT_COUNT,
    ORACLE_LOWRANK_SPOILT,
    ORACLE_LOWRANK_STRIDE_PAD,
    ORACLE_LOWRANK_OFFSET,
    ORACLE_LOWRANK_LENGTH,
    ORACLE_LOWRANK_EXTRA_COUNT,
};

/* Computes what every output must hold, from what the host tensors and args now hold. */
void oracle_lowrank_kv_expect(oracle_case *c);

#endif
