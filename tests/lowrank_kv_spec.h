/* Specs that the tests of lowrank_kv share. */
#ifndef LOWRANK_KV_SPEC_H
#define LOWRANK_KV_SPEC_H

#include "fajit.h"

static inline fa_spec lowrank_spec(fa_lowrank_kv_spec s)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LOWRANK_KV);
    spec.lowrank_kv = s;
    return spec;
}

static const fa_lowrank_kv_spec canonical = {
    .model_dim = 256, .rank = 48, .heads = 4, .head_dim = 32, .batch = 4, .seqlen = 96};

#endif
