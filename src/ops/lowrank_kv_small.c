/* Laying out a step of lowrank_kv for few tokens, purely: what fits into shared memory,
 * and what it costs. */
#include "ops/lowrank_kv.h"

static int64_t element_bytes(const fa_lowrank_kv_spec *s)
{
    return (int64_t)fa__dtype_bytes(s->dtype);
}

static int32_t at_most(int32_t n, int32_t limit)
{
    return n < limit ? n : limit;
}

/* --- shared memory: the same sums as in lowrank_small.cuh --- */

static int32_t padded_right(int32_t columns)
{
    return columns % 16 ? columns : columns + 8;
}

static int64_t ring_bytes(const fa_lowrank_kv_spec *s, const lowrank_small *t)
{
    const int64_t e = element_bytes(s);
    return t->stages *
           (t->rows * (t->depth + 16 / e) + t->depth * (int64_t)padded_right(t->down_columns)) * e;
}

static int64_t passes_of(const fa_lowrank_kv_spec *s, const lowrank_small *t)
{
    return fa__divide_up(s->rank, t->down_columns);
}

static int64_t shared_bytes(const fa_lowrank_kv_spec *s, int32_t step, const lowrank_small *t)
{
    const int64_t e = element_bytes(s);
    const int64_t latent_row = fa__divide_up(s->rank, 16) * 16 + 16 / e;
    int64_t bytes = t->rows * LOWRANK_TOKEN_BYTES, of_warp = 0;
    if (step != STEP_UP) {
        const int64_t sum = fa__lowrank_policy(s) == SUMS_DOUBLE ? 8 : 4;
        const int64_t part = t->rows * (int64_t)padded_right(t->down_columns) * sum;
        const bool in_ring =
            (passes_of(s, t) == 1 || step == STEP_DOWN) && part <= ring_bytes(s, t);
        of_warp += ring_bytes(s, t) + (in_ring ? 0 : part);
    }
    if (step != STEP_DOWN) {
        bytes += t->rows * latent_row * e;
        of_warp +=
            t->up_stages * (int64_t)t->up_depth * padded_right(t->up_columns / LOWRANK_WARPS) * e;
    }
    return bytes + LOWRANK_WARPS * of_warp;
}

/* --- layouts --- */

#define STAGES 4      /* of a ring that is filled again */
#define MOST_STAGES 8 /* of one that holds all */

/* Sets the bytes, too. */
static bool fits(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                 lowrank_small *t)
{
    t->shared_bytes = (int32_t)shared_bytes(s, step, t);
    return (uint32_t)t->shared_bytes <= target->smem_optin;
}

/* All stages of the first product at once, if they are few; else as many as a ring has. */
static bool set_down_stages(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                            lowrank_small *t)
{
    const int64_t all = fa__divide_up(s->model_dim, (int64_t)t->depth * LOWRANK_WARPS);
    const bool once = step == STEP_DOWN || passes_of(s, t) == 1;
    if (once && all && all <= MOST_STAGES) {
        t->stages = all < 2 ? 2 : (int32_t)all;
        t->ahead = t->stages + (t->up_stages ? t->up_stages : 1);
        if (fits(s, target, step, t))
            return true;
    }
    for (t->stages = STAGES; t->stages >= 2; t->stages--) {
        t->ahead = t->stages;
        if (fits(s, target, step, t))
            return true;
    }
    return false;
}

static bool set_stages(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                       lowrank_small *t)
{
    if (step == STEP_DOWN)
        return set_down_stages(s, target, step, t);
    for (t->up_stages = 2; t->up_stages > 0; t->up_stages--) {
        t->ahead = t->up_stages;
        if (step == STEP_UP ? fits(s, target, step, t) : set_down_stages(s, target, step, t))
            return true;
    }
    return false;
}

/* Of `columns` of the latent at once; `depth` rows of a stage. */
static lowrank_small make_layout(const fa_lowrank_kv_spec *s, int32_t step, int32_t rows,
                                 int32_t up_columns, int32_t columns, int32_t depth)
{
    const int32_t rank = (int32_t)fa__divide_up(s->rank, 16) * 16;
    lowrank_small t = {.rows = rows, .depth = depth};
    if (step != STEP_UP)
        t.down_columns = at_most(rank, columns);
    if (step == STEP_DOWN)
        return t;
    t.up_columns = up_columns;
    t.up_depth = at_most(rank, columns);
    if (fa__lowrank_policy(s) == SUMS_TREE) /* whose halves are halves */
        while (t.up_depth & (t.up_depth - 1))
            t.up_depth += 16;
    return t;
}

/* The largest that fits. */
bool fa__lowrank_small_fit(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                           int32_t rows, int32_t up_columns, lowrank_small *out)
{
    const int32_t depth = s->dtype == FA_F32 ? 16 : 32;
    for (int32_t columns = 64; columns >= 16; columns /= 2)
        for (int32_t part = 1; part <= 2; part++) {
            *out = make_layout(s, step, rows, up_columns, columns, depth / part);
            if (set_stages(s, target, step, out))
                return true;
        }
    return false;
}

/* --- cost --- */

/* Measured on an H200, in graphs: 64 to 16384 tokens of 256 elements, ranks of 48 and 4 heads of 32,
 * and 64 to 4096 tokens of 384 elements, ranks of 192 and 8 heads of 64, of f32 and of bf16. */
#define FIXED_CLOCKS 3000     /* a launch: its start, the way of the first loads, its end */
#define PASS_CLOCKS 2500      /* of the first product again: its loads are waited for again */
#define LOADED_EACH_CLOCK 32  /* bytes that a multiprocessor gets from the L2 cache */
#define FINISHED_EACH_CLOCK 2 /* sums of the second product */
/* What a tile of it waits beside that: fitted, with the default sums of float32 and of 16 bits. */
#define TILE_CLOCKS 150
#define TENSOR_TILE_CLOCKS 1500

/* Multiplications of a multiprocessor in a clock. */
static int64_t rate_of(const fa_lowrank_kv_spec *s)
{
    static const int64_t rates[] = {[SUMS_CHUNKED] = 60, [SUMS_SPLIT_TF32] = 90, [SUMS_TF32] = 250,
                                    [SUMS_DOUBLE] = 30,  [SUMS_TENSOR] = 600,    [SUMS_TREE] = 50};
    return rates[fa__lowrank_policy(s)];
}

/* The first product of a block: what it multiplies or what it loads, whichever takes longer. The
 * parts of its warps are a clock for each element of the latent. */
static int64_t down_clocks(const fa_lowrank_kv_spec *s, int32_t step, const lowrank_small *t,
                           const lowrank_work *w)
{
    const int64_t passes = step == STEP_DOWN ? 1 : passes_of(s, t);
    const int64_t load =
        w->model_dim * (t->rows + t->down_columns) * element_bytes(s) / LOADED_EACH_CLOCK;
    const int64_t elements = (int64_t)t->rows * t->down_columns;
    const int64_t multiply = elements * w->model_dim / rate_of(s) + elements;
    return passes * (load > multiply ? load : multiply) + (passes - 1) * PASS_CLOCKS;
}

/* One tile of the second: its warps load, multiply and store one after the other. */
static int64_t up_clocks(const fa_lowrank_kv_spec *s, const lowrank_small *t)
{
    const int64_t elements = (int64_t)t->rows * t->up_columns;
    const int64_t load = s->rank * (int64_t)t->up_columns * element_bytes(s) / LOADED_EACH_CLOCK;
    const int64_t multiply = elements * s->rank / rate_of(s);
    return load + multiply + elements / FINISHED_EACH_CLOCK +
           (fa__lowrank_policy(s) == SUMS_TENSOR ? TENSOR_TILE_CLOCKS : TILE_CLOCKS);
}

/* What a launch costs, but for the number of blocks that share tokens. */
typedef struct lowrank_cost {
    int64_t blocks, tiles;    /* of tokens; of columns, 0: there is no second product */
    int64_t first, each_tile; /* clocks of a block */
} lowrank_cost;

static lowrank_cost cost_of(const fa_lowrank_kv_spec *s, const lowrank_kernel *k,
                            const lowrank_work *w)
{
    const lowrank_small *t = &k->small;
    return (lowrank_cost){
        .blocks = fa__divide_up(w->tokens, t->rows),
        .tiles = k->step == STEP_DOWN ? 0 : fa__lowrank_column_tiles(w, t->up_columns),
        .first = k->step == STEP_UP ? 0 : down_clocks(s, k->step, t, w),
        .each_tile = k->step == STEP_DOWN ? 0 : up_clocks(s, t),
    };
}

static int64_t clocks_of(const lowrank_cost *c, int64_t shares, int64_t multiprocessors)
{
    const int64_t rounds = fa__divide_up(c->blocks * shares, multiprocessors);
    const int64_t tiles = fa__divide_up(c->tiles, shares);
    return fa__linear_bounded_clocks(FIXED_CLOCKS +
                                     (double)rounds * (double)(c->first + tiles * c->each_tile));
}

#define MOST_SHARES 64

/* Divisions count: this is part of every launch. */
static int64_t shares_of(const fa_lowrank_kv_spec *s, const lowrank_kernel *k,
                         const lowrank_cost *c, int64_t multiprocessors)
{
    if (k->step == STEP_DOWN)
        return passes_of(s, &k->small);
    if (s->shares)
        return s->shares < c->tiles ? s->shares : c->tiles;
    int64_t best = 1, least = clocks_of(c, 1, multiprocessors);
    for (int64_t shares = 2; shares <= c->tiles && shares <= MOST_SHARES; shares++) {
        const int64_t clocks = clocks_of(c, shares, multiprocessors);
        if (clocks < least) {
            best = shares;
            least = clocks;
        }
    }
    return best;
}

int64_t fa__lowrank_small_shares(const fa_lowrank_kv_spec *s, const lowrank_kernel *k,
                                 const lowrank_work *w, int64_t multiprocessors)
{
    const lowrank_cost c = cost_of(s, k, w);
    return shares_of(s, k, &c, multiprocessors);
}

int64_t fa__lowrank_small_clocks(const fa_lowrank_kv_spec *s, const lowrank_kernel *k,
                                 const lowrank_work *w, int64_t multiprocessors)
{
    const lowrank_cost c = cost_of(s, k, w);
    return clocks_of(&c, shares_of(s, k, &c, multiprocessors), multiprocessors);
}
