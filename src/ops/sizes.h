/* What the operations share when they launch: sizes, strides, widths of accesses. Pure, and made
 * for the serving path: what is refused is out of line. */
#ifndef FA_SIZES_H
#define FA_SIZES_H

#include "fajit.h"

#define FA__MAX_GRID_X INT64_C(2147483647)
#define FA__MAX_GRID_Y INT64_C(65535)

fa_status fa__size_refuse(const char *op, const char *name, int32_t baked, int32_t given);

/* A size of a launch: the baked one, else the given one, fa_OP_args.NAME.
 * FA_ERR_SIZE, FA_ERR_BAKED. */
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

/* Bytes of the widest access to elements whose addresses have these bits, merged: 16, 4 or one
 * element's. */
static inline int32_t fa__access_bytes(uint64_t bits, int64_t element_bytes)
{
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : (int32_t)element_bytes;
}

static inline int64_t fa__divide_up(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

static inline int64_t fa__round_up(int64_t n, int64_t to)
{
    return fa__divide_up(n, to) * to;
}

static inline int64_t fa__index_bytes(fa_index type)
{
    return type == FA_I64 ? 8 : 4;
}

/* A size of a cache, fa_OP_args.NAME. FA_ERR_SIZE unless it is positive. */
fa_status fa__cache_size_check(const char *op, const char *name, int64_t value);

/* Tokens that have a slot, of `tokens`: fa_OP_args.slot_count, 0: all. FA_ERR_SIZE. */
fa_status fa__slot_count_resolve(const char *op, int64_t given, int64_t tokens, int64_t *count);

/* args->workspace, of which a launch needs `bytes`: any if 0.
 * FA_ERR_WORKSPACE, FA_ERR_MISALIGNED. */
fa_status fa__workspace_check(const char *op, const fa_args *args, size_t bytes);

#endif
