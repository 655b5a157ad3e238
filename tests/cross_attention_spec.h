/* Specs of cross_attention for its tests, with a device and without. */
#ifndef CROSS_ATTENTION_SPEC_H
#define CROSS_ATTENTION_SPEC_H

#include "fajit.h"

/* Heads of the canonical case, and its sizes. */
#define CROSS_HEADS .heads_q = 8, .heads_k = 8, .head_dim = 32
#define CROSS_SIZES .model_dim = 256, .batch = 4, .seqlen_q = 64, .seqlen_k = 128
#define CROSS_CANONICAL CROSS_HEADS, CROSS_SIZES, .rotation = FA_KV_ROTATE_INTERLEAVED

static inline fa_spec cross_spec(fa_cross_attention_spec cross)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_CROSS_ATTENTION);
    spec.cross_attention = cross;
    return spec;
}

#endif
