/* How attention is cut into tiles: chosen from spec and architecture alone. */
#include "ops/attention.h"
#include "status.h"

#define BLOCKS_WANTED 128 /* multiprocessors that are to have one each */

typedef struct tiling {
    fa_attention_tiles size;
    int32_t most_dim; /* the larger of head_dim and head_dim_v */
    int32_t row_warps, row_tiles, key_warps, key_tile;
    int32_t blocks; /* that registers let a multiprocessor hold */
} tiling;

/* Of each size the best first; a later one needs less shared memory. A warp of two row tiles reads
 * keys and values from shared memory once for 32 queries; what it holds in registers, scores of
 * row_tiles * key_tile and sums of row_tiles * dim, bounds both. */
static const tiling tilings_16[] = {
    {FA_ATTENTION_TILES_LARGE, 96, 4, 2, 1, 64, 2},
    {FA_ATTENTION_TILES_LARGE, 128, 4, 2, 1, 32, 2},
    {FA_ATTENTION_TILES_LARGE, 256, 8, 1, 1, 64, 1},
    {FA_ATTENTION_TILES_LARGE, 256, 4, 1, 1, 64, 2},
    {FA_ATTENTION_TILES_LARGE, 256, 4, 1, 1, 32, 2},
    {FA_ATTENTION_TILES_MEDIUM, 128, 4, 1, 1, 64, 3},
    {FA_ATTENTION_TILES_MEDIUM, 256, 4, 1, 1, 64, 2},
    {FA_ATTENTION_TILES_MEDIUM, 256, 4, 1, 1, 32, 2},
    {FA_ATTENTION_TILES_SMALL, 128, 1, 1, 4, 128, 3},
    {FA_ATTENTION_TILES_SMALL, 256, 1, 1, 4, 64, 2},
    {FA_ATTENTION_TILES_SMALL, 256, 1, 1, 2, 32, 2},
};

/* Also of bf16 where tensor cores lack it: see gathered.cuh. */
static const tiling tilings_32[] = {
    {FA_ATTENTION_TILES_LARGE, 64, 4, 1, 1, 32, 2},
    {FA_ATTENTION_TILES_LARGE, 128, 4, 1, 1, 16, 2},
    {FA_ATTENTION_TILES_LARGE, 256, 4, 1, 1, 16, 1},
    {FA_ATTENTION_TILES_LARGE, 256, 2, 1, 1, 32, 2},
    {FA_ATTENTION_TILES_LARGE, 256, 2, 1, 1, 16, 2},
    {FA_ATTENTION_TILES_MEDIUM, 256, 2, 1, 1, 32, 2},
    {FA_ATTENTION_TILES_MEDIUM, 256, 2, 1, 1, 16, 2},
    {FA_ATTENTION_TILES_SMALL, 64, 1, 1, 4, 128, 2},
    {FA_ATTENTION_TILES_SMALL, 256, 1, 1, 4, 64, 2},
    {FA_ATTENTION_TILES_SMALL, 256, 1, 1, 2, 32, 2},
    {FA_ATTENTION_TILES_SMALL, 256, 1, 1, 1, 16, 2},
};

/* --- shared memory, as attention_shape.cuh lays it out --- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smem_bytes(const fa_attention_spec *s, const tiling *t, int64_t stages)
{
    const int64_t bytes = (int64_t)fa__dtype_bytes(s->dtype);
    const int64_t row = fa__round_up(s->head_dim, bytes == 4 ? 8 : 16) * bytes;
    const int64_t row_v = fa__round_up(s->head_dim_v, 8) * bytes;
    const int64_t front = (int64_t)16 * t->row_warps * t->row_tiles * larger(row, row_v);
    const int64_t rings = stages * t->key_tile * (row + row_v);
    const int64_t part = (fa__round_up(s->head_dim_v, 8) / 2 + 4) * 128;
    return front + larger(rings, (t->key_warps - 1) * t->row_warps * part);
}

/* --- choose --- */

/* A multiprocessor has 1 KB more than a block can have, and each block costs it 1 KB. */
static int64_t blocks_held(const tiling *t, const fa__target *target, int64_t bytes)
{
    const int64_t by_memory = ((int64_t)target->smem_optin + 1024) / (bytes + 1024);
    return by_memory < t->blocks ? by_memory : t->blocks;
}

/* Two stages where they leave as many blocks side by side as one. */
static int32_t choose_stages(const fa_attention_spec *s, const tiling *t, const fa__target *target)
{
    const int64_t held = blocks_held(t, target, smem_bytes(s, t, 1));
    const bool one_tile = s->seqlen_k && s->seqlen_k <= t->key_tile;
    return !one_tile && blocks_held(t, target, smem_bytes(s, t, 2)) >= held ? 2 : 1;
}

static int64_t rows_of(const tiling *t)
{
    return (int64_t)16 * t->row_warps * t->row_tiles;
}

/* Blocks of a launch; 0: not known before it. */
static int64_t blocks_of(const fa_attention_spec *s, const tiling *t)
{
    const int64_t rows = rows_of(t);
    const int64_t batch = s->batch ? s->batch : s->seqlen_q ? 1 : 0;
    const int64_t heads = (int64_t)s->heads_q * batch;
    return heads > INT32_MAX ? INT32_MAX : heads * (fa__round_up(s->seqlen_q, rows) / rows);
}

/* Half of the tile or more would be behind the last query, and a smaller one has none of that. */
static bool is_too_tall(const fa_attention_spec *s, const tiling *t)
{
    return s->seqlen_q && t->size != FA_ATTENTION_TILES_SMALL &&
           rows_of(t) >= 2 * fa__round_up(s->seqlen_q, 16);
}

static const tiling *choose_tiling(const fa_attention_spec *s, const fa__target *target)
{
    const bool small = s->dtype == FA_F32 || (s->dtype == FA_BF16 && target->cc < 80);
    const tiling *const all = small ? tilings_32 : tilings_16, *last = NULL;
    const size_t count =
        small ? sizeof tilings_32 / sizeof tilings_32[0] : sizeof tilings_16 / sizeof tilings_16[0];
    const int64_t dim = larger(s->head_dim, s->head_dim_v);
    for (size_t i = 0; i < count; i++) {
        const tiling *t = &all[i];
        if (dim > t->most_dim || (s->tiles && s->tiles != t->size) ||
            (last && last->size == t->size) || smem_bytes(s, t, 1) > target->smem_optin)
            continue;
        last = t;
        if (!s->tiles && is_too_tall(s, t))
            continue;
        const int64_t blocks = s->batch && s->heads_q && s->seqlen_q ? blocks_of(s, t) : 0;
        if (!blocks || blocks >= BLOCKS_WANTED)
            return t;
    }
    return last;
}

fa_status fa__attention_plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_attention_spec *s = &spec->attention;
    const tiling *t = choose_tiling(s, target);
    if (!t)
        return fa__fail(FA_ERR_SHARED_MEMORY,
                        "attention: no tile of head_dim = %d and head_dim_v = %d fits the %u bytes "
                        "of shared memory of a block on %s (fa_attention_spec.head_dim)",
                        s->head_dim, s->head_dim_v, target->smem_optin, target->arch);
    const uint64_t bytes = fa__dtype_bytes(s->dtype);
    const int32_t values[] = {
        [ATTENTION_ROW_WARPS] = t->row_warps,
        [ATTENTION_ROW_TILES] = t->row_tiles,
        [ATTENTION_KEY_WARPS] = t->key_warps,
        [ATTENTION_KEY_TILE] = t->key_tile,
        [ATTENTION_STAGES] = choose_stages(s, t, target),
        [ATTENTION_LOAD_BYTES] = (int32_t)fa__power_of_two((uint64_t)s->head_dim * bytes, 16),
        [ATTENTION_LOAD_BYTES_V] = (int32_t)fa__power_of_two((uint64_t)s->head_dim_v * bytes, 16),
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        p->value[i] = values[i];
    p->block_threads = 32 * (uint32_t)(t->row_warps * t->key_warps);
    p->smem_dynamic_bytes = (uint32_t)smem_bytes(s, t, p->value[ATTENTION_STAGES]);
    p->value[ATTENTION_MIN_BLOCKS] = (int32_t)blocks_held(t, target, p->smem_dynamic_bytes);
    p->flags.programmatic = target->cc >= 90; /* attention.cu waits for its predecessor by itself */
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_format(&text,
                   "blocks of %u threads, %d queries by %d keys, %d stages, %d warps share a "
                   "query's keys, %u bytes of shared memory, accesses of %d and %d bytes%s",
                   p->block_threads, (int)fa__attention_rows(p), t->key_tile,
                   p->value[ATTENTION_STAGES], t->key_warps, p->smem_dynamic_bytes,
                   p->value[ATTENTION_LOAD_BYTES], p->value[ATTENTION_LOAD_BYTES_V],
                   p->flags.programmatic ? ", programmatic" : "");
    return FA_OK; /* the longest text is shorter than the room */
}

attention_step fa__attention_step_of(const fa__plan *p)
{
    return (attention_step){.row_warps = p->value[ATTENTION_ROW_WARPS],
                            .row_tiles = p->value[ATTENTION_ROW_TILES],
                            .key_warps = p->value[ATTENTION_KEY_WARPS],
                            .key_tile = p->value[ATTENTION_KEY_TILE],
                            .stages = p->value[ATTENTION_STAGES],
                            .load_bytes = p->value[ATTENTION_LOAD_BYTES],
                            .load_bytes_v = p->value[ATTENTION_LOAD_BYTES_V],
                            .min_blocks = p->value[ATTENTION_MIN_BLOCKS],
                            .shared_bytes = (int32_t)p->smem_dynamic_bytes};
}
