#ifndef FA_ROTARY_H
#define FA_ROTARY_H
#include "op.h"
#define FA__ROTARY_DEFAULT_BASE 10000.0
uint64_t fa__rotary_log2_q54(double base);
static inline int64_t fa__rotary_power_of_two(uint64_t value, int64_t limit)
{
    uint64_t merged = value | (uint64_t)limit;
    return (int64_t)(merged & (0 - merged));
}
#endif
