/* Specs that the tests of linear share. */
#ifndef LINEAR_SPEC_H
#define LINEAR_SPEC_H

#include "fajit.h"

static inline fa_spec linear_spec(fa_linear_spec linear)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    spec.linear = linear;
    return spec;
}

#endif
