/* Architectures by name and by compute capability. Pure. */
#ifndef FA_ARCH_H
#define FA_ARCH_H

#include "op.h"

/* "sm_90a" for 9.0: the features of one architecture are used, so the cubin runs on that one alone.
 * Capabilities without such a form keep the plain name. */
void fa__arch_name(int32_t major, int32_t minor, char out[16]);

/* Reads "sm_90a". FA_ERR_ARCH when it is not of that form. */
fa_status fa__arch_parse(const char *arch, fa__target *target);

#endif
