/* How a block of linear is laid out and what that costs: linear_layout.c has the layouts and what
 * fits, linear_cost.c the model of time, linear_plan.c chooses. */
#ifndef FA_LINEAR_LAYOUT_H
#define FA_LINEAR_LAYOUT_H

#include "ops/linear.h"

/* One way to lay out a block. `percent`: of the arithmetic rate that a large product reaches with
 * it, as warps with larger shares load less for each multiplication. */
typedef struct linear_layout {
    int16_t tile_m, tile_n, warps_m, warps_n, warps_k, stages, percent;
} linear_layout;

typedef struct linear_layouts {
    const linear_layout *line;
    size_t count;
    const char *further; /* for messages: layouts that other sizes or architectures have, or NULL */
} linear_layouts;

/* All there are for this arithmetic, these sizes and the architecture. */
linear_layouts fa__linear_layouts(const fa_linear_spec *s, int arithmetic, int cc);

/* Columns of a tile of x and w: 128 bytes. */
static inline int64_t fa__linear_tile_k(const fa_linear_spec *s)
{
    return 128 / fa__linear_operand_bytes(s);
}

static inline int32_t fa__linear_layout_threads(const linear_layout *l)
{
    return 32 * l->warps_m * l->warps_n * l->warps_k;
}

/* Whether blocks keep angles in shared memory, as KEEPS_ANGLES in linear_shape.cuh. */
bool fa__linear_keeps_angles(const fa_linear_spec *s, const linear_layout *l,
                             const fa__target *target);

/* Of shared memory: one tile of x and one of w; all of a block. */
int64_t fa__linear_stage_bytes(const linear_layout *l);
int64_t fa__linear_shared_bytes(const fa_linear_spec *s, const linear_layout *l, int64_t stages,
                                const fa__target *target);

/* Stages that are of use and fit; below 2: the layout does not fit. */
int64_t fa__linear_stages(const fa_linear_spec *s, const linear_layout *l,
                          const fa__target *target);

/* The whole product as tiles of this layout; what is dynamic is taken to be large. */
linear_work fa__linear_work_of(const fa_linear_spec *s, const linear_layout *l, int arithmetic,
                               const fa__target *target);

/* Of the launch that makes halves of x and w, if there is one. */
int64_t fa__linear_parts_clocks(const fa_linear_spec *s, int arithmetic, int cc);

/* What a layout costs, when layouts are compared. */
int64_t fa__linear_cost(const fa_linear_spec *s, const linear_work *work, int cc);

/* Whether a launch could want several blocks for a tile. */
bool fa__linear_may_split(const fa_linear_spec *s, int arithmetic, const linear_work *work, int cc);

#endif
