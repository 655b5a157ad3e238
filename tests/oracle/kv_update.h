/* The kv_update reference beyond the common interface, for tests that change a case after making
 * it. */
#ifndef FAJIT_ORACLE_KV_UPDATE_H
#define FAJIT_ORACLE_KV_UPDATE_H

#include "oracle.h"

/* Order of the extra sizes. */
enum {
    ORACLE_KV_PAGES,
    ORACLE_KV_MAX_PAGES,
    ORACLE_KV_SLOT_COUNT,
    ORACLE_KV_MAX_POSITION,
    ORACLE_KV_SPOILT,
    ORACLE_KV_STRIDE_PAD,
    ORACLE_KV_LENGTH,
    ORACLE_KV_EXTRA_COUNT,
};

/* Computes what every output must hold, from what the host tensors and args now hold. */
void oracle_kv_update_expect(oracle_case *c);

#endif
