/* The layouts of linear's blocks: a table for each arithmetic, and what of them fits. */
#include "ops/linear_layout.h"

static const linear_layout half_layouts[] = {
    {256, 128, 4, 2, 1, 4, 100}, {128, 128, 2, 2, 1, 3, 95}, {128, 64, 2, 2, 1, 4, 75},
    {64, 64, 2, 2, 1, 4, 60},    {32, 64, 2, 2, 1, 6, 40},   {32, 32, 2, 2, 2, 8, 30},
    {32, 32, 1, 1, 4, 8, 28},    {16, 64, 1, 4, 1, 8, 22},   {16, 32, 1, 2, 4, 8, 18},
    {16, 32, 1, 1, 4, 8, 17},    {16, 16, 1, 1, 4, 9, 12},
};

/* Tensor cores of sm_90 and sm_100 take fp8 as half: the conversions need registers that more than
 * 32 x 32 of a warp do not leave. */
static const linear_layout fp8_layouts[] = {
    {128, 64, 4, 2, 1, 4, 100}, {64, 64, 2, 2, 1, 4, 60}, {32, 64, 2, 2, 1, 6, 40},
    {32, 32, 2, 2, 2, 8, 30},   {16, 64, 1, 4, 1, 8, 22}, {16, 32, 1, 2, 4, 8, 18},
    {16, 16, 1, 1, 4, 9, 12},
};

/* float32 in parts. Measured on an H200: with fewer warps, and with smaller shares of them,
 * splitting numbers and waiting take their time. */
static const linear_layout tf32_layouts[] = {
    {128, 128, 2, 4, 1, 4, 73}, {128, 64, 4, 2, 1, 4, 60}, {64, 64, 2, 2, 1, 4, 46},
    {32, 64, 2, 2, 1, 6, 46},   {32, 32, 2, 2, 2, 9, 46},  {32, 32, 1, 1, 4, 9, 44},
    {16, 64, 1, 4, 1, 8, 32},   {32, 16, 2, 1, 4, 9, 31},  {16, 32, 1, 2, 4, 9, 31},
    {16, 16, 1, 1, 4, 9, 28},
};

/* Three parts of two steps at once: a warp has registers for 32 x 32. A tile has two such steps. */
static const linear_layout bf16_parts_layouts[] = {
    {128, 64, 4, 2, 1, 4, 100}, {64, 64, 2, 2, 1, 4, 90}, {32, 64, 2, 2, 1, 6, 75},
    {32, 32, 2, 2, 2, 9, 60},   {16, 64, 1, 4, 1, 8, 50}, {32, 16, 2, 1, 2, 9, 45},
    {16, 32, 1, 2, 2, 9, 42},   {16, 16, 1, 1, 2, 9, 35},
};

/* float32 as halves that an earlier launch has made. Warps of 64 x 64 read little for what they
 * multiply, and need all registers: the first line spills except on sm_90 with all sizes baked. */
static const linear_layout f16_parts_layouts[] = {
    {256, 128, 4, 2, 1, 4, 100},
    {128, 128, 2, 4, 1, 4, 85},
    {128, 64, 4, 2, 1, 4, 65},
    {64, 64, 2, 2, 1, 4, 50},
};

static const linear_layout fma_layouts[] = {
    {128, 128, 2, 4, 1, 3, 100}, {64, 128, 2, 2, 1, 3, 90}, {64, 64, 2, 2, 1, 3, 80},
    {32, 64, 2, 2, 1, 4, 60},    {32, 32, 2, 2, 1, 4, 45},  {16, 64, 2, 1, 1, 6, 40},
};

#define TABLE(lines)                                                                               \
    (linear_layouts)                                                                               \
    {                                                                                              \
        lines, sizeof(lines) / sizeof(lines)[0], NULL                                              \
    }

linear_layouts fa__linear_layouts(const fa_linear_spec *s, int arithmetic, int cc)
{
    const bool first_fits = cc / 10 == 9 && s->m && s->n && s->k;
    const size_t first = first_fits ? 0 : 1; /* of the halves */
    switch (arithmetic) {
    case LINEAR_FMA:
        return TABLE(fma_layouts);
    case LINEAR_SPLIT_TF32:
        return TABLE(tf32_layouts);
    case LINEAR_SPLIT_BF16:
        return TABLE(bf16_parts_layouts);
    case LINEAR_SPLIT_F16:
        return (linear_layouts){f16_parts_layouts + first,
                                sizeof f16_parts_layouts / sizeof f16_parts_layouts[0] - first,
                                first_fits ? NULL : "256 x 128 on sm_90 with m, n and k baked"};
    default:
        return s->operands == FA_LINEAR_E4M3 ? TABLE(fp8_layouts) : TABLE(half_layouts);
    }
}

/* --- shared memory --- */

int64_t fa__linear_stage_bytes(const linear_layout *l)
{
    return ((int64_t)l->tile_m + l->tile_n) * 128;
}

/* The tile's sums as float32, as SUM_BYTES in linear_shape.cuh. */
static int64_t sum_bytes(const linear_layout *l)
{
    const int64_t over = l->tile_n % 32;
    return (int64_t)l->warps_k * l->tile_m * (l->tile_n + 8 + (over ? 32 - over : 0)) * 4;
}

bool fa__linear_keeps_angles(const fa_linear_spec *s, const linear_layout *l,
                             const fa__target *target)
{
    return s->rotation && l->tile_m * l->tile_n <= 64 * 64 && target->cc >= 90;
}

/* As ANGLE_BYTES in linear_shape.cuh. */
static int64_t angle_bytes(const fa_linear_spec *s, const linear_layout *l)
{
    return (int64_t)l->tile_m * (l->tile_n % s->head_dim ? l->tile_n : s->head_dim) * 4;
}

/* Of stages, those that a tile reaches, where angles take the room of the others: as RING_TILES.
 * k = 0: not known. */
static int64_t ring_tiles(const fa_linear_spec *s, int64_t stages)
{
    const int64_t tiles = fa__divide_up(s->k, fa__linear_tile_k(s));
    return s->k && tiles < stages ? tiles : stages;
}

int64_t fa__linear_shared_bytes(const fa_linear_spec *s, const linear_layout *l, int64_t stages,
                                const fa__target *target)
{
    const bool keeps = fa__linear_keeps_angles(s, l, target);
    const int64_t ring = (keeps ? ring_tiles(s, stages) : stages) * fa__linear_stage_bytes(l);
    return (ring > sum_bytes(l) ? ring : sum_bytes(l)) + (keeps ? angle_bytes(s, l) : 0);
}

#define STATIC_BYTES 64 /* of linear.cu beside its dynamic shared memory, at most */

int64_t fa__linear_stages(const fa_linear_spec *s, const linear_layout *l, const fa__target *target)
{
    const int64_t tile_k = fa__linear_tile_k(s);
    const int64_t room = (int64_t)target->smem_optin - STATIC_BYTES;
    int64_t stages = s->stages ? s->stages : l->stages;
    if (s->k && !s->stages && stages > fa__divide_up(s->k, tile_k) + 1)
        stages = fa__divide_up(s->k, tile_k) + 1;
    stages = stages < 2 ? 2 : stages;
    if (s->stages)
        return fa__linear_shared_bytes(s, l, stages, target) <= room ? stages : 0;
    while (stages >= 2 && fa__linear_shared_bytes(s, l, stages, target) > room)
        stages--;
    return stages;
}
