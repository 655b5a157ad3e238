/* What the operations share when they launch: sizes, strides, widths of accesses. Pure, and made for
 * the serving path: what is refused is out of line. */
#ifndef FA_SIZES_H
#define FA_SIZES_H

#include "fajit.h"

#define FA__MAX_GRID_X INT64_C(2147483647)
#define FA__MAX_GRID_Y INT64_C(65535)

fa_status fa__size_refuse(const char *op, const char *name, int32_t baked, int32_t given);

/* A size of a launch: the baked one, else the given one, fa_OP_args.NAME. FA_ERR_SIZE, FA_ERR_BAKED. */
static inline fa_status fa__size_resolve(const char *op, const char *name, int32_t baked,
                                         int32_t given, int64_t *size)
{
    *size = baked ? baked : given;
    return given < 0 || (baked && given && given != baked) ? fa__size_refuse(op, name, baked, given)
                                                           : FA_OK;
}

/* The largest power of two that divides value, at most limit (one itself). */
static inline int64_t fa__power_of_two(uint64_t value, int64_t limit)
{
    uint64_t merged = value | (uint64_t)limit;
    return (int64_t)(merged & (0 - merged));
}

static inline int64_t fa__index_bytes(fa_index type)
{
    return type == FA_I64 ? 8 : 4;
}

#endif
