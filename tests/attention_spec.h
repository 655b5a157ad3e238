/* Specs of attention. */
#ifndef ATTENTION_SPEC_H
#define ATTENTION_SPEC_H

#include "fajit.h"

static inline fa_spec attention_spec(fa_attention_spec attention)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ATTENTION);
    spec.attention = attention;
    return spec;
}

#endif
