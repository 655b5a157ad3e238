/* Laying out the work of lowrank_kv: tiles that fit in shared memory, and which kernels run for how
 * many tokens. Pure: from spec and target alone, so that an offline context plans as a device does. */
#include <string.h>

#include "ops/lowrank_kv.h"
#include "status.h"

static int32_t element_bytes(const fa_lowrank_kv_spec *s)
{
    return (int32_t)fa__dtype_bytes(s->dtype);
}

static int32_t round_up(int32_t n, int32_t step)
{
    return (n + step - 1) / step * step;
}

static int32_t at_most(int32_t n, int32_t limit)
{
    return n < limit ? n : limit;
}

/* --- shared memory: the same sums as struct tiles in lowrank_kv.cu --- */

static int32_t padded_b(int32_t columns)
{
    return columns % 16 ? columns : columns + 8;
}

static int64_t smem_bytes(const fa_lowrank_kv_spec *s, const lowrank_tiles *t)
{
    const int64_t element = element_bytes(s), pad = 16 / element;
    const bool has_down = t->step != STEP_UP, has_up = t->step != STEP_DOWN;
    const bool first_of_two = s->form == FA_LOWRANK_WHOLE && t->step == STEP_DOWN;
    const int64_t latent_row = round_up(s->rank, 16) + pad;
    int64_t bytes = 40 * (int64_t)t->rows, stage = 0;
    if (has_up || (s->norm && !first_of_two))
        bytes += t->rows * latent_row * element;
    if (has_down) {
        const int64_t parts = LOWRANK_WARPS / (t->down_m * t->down_n);
        const int64_t sum = fa__lowrank_policy(s) == SUMS_DOUBLE ? 8 : 4;
        const int64_t row = padded_b(t->down_columns);
        bytes += parts > 1 ? parts * t->rows * row * sum : 0;
        stage = (t->rows * (t->depth + pad) + t->depth * row) * element;
    }
    if (has_up) {
        const int64_t up = t->depth * (int64_t)padded_b(t->up_columns) * element;
        stage = up > stage ? up : stage;
    }
    return bytes + t->stages * stage;
}

/* --- tiles --- */

/* Warps for rows x columns: as square a share for each as there is. */
static void share(int32_t rows, int32_t columns, int32_t *m, int32_t *n)
{
    *m = rows >= 128 && columns <= 64 ? 4 : rows >= 32 ? 2 : 1;
    *n = LOWRANK_WARPS / *m;
}

/* Blocks of 16 tokens: all warps work on the depth of the first product, so that as little as can be
 * is waited for; blocks of more: on their own rows and columns. */
static lowrank_tiles make_tiles(const fa_lowrank_kv_spec *s, int32_t step, int32_t rows,
                                int32_t depth, int32_t stages)
{
    const bool halves = fa__lowrank_policy(s) == SUMS_TENSOR;
    lowrank_tiles t = {.step = step, .rows = rows, .depth = depth, .stages = stages};
    if (step != STEP_UP && rows == 16) {
        t.down_columns = at_most(round_up(s->rank, 16), 64);
        t.down_m = 1;
        t.down_n = 2;
    } else if (step != STEP_UP) {
        t.down_columns = halves && s->rank > 64 && step == STEP_DOWN ? 128 : 64;
        share(rows, t.down_columns, &t.down_m, &t.down_n);
    }
    if (step != STEP_DOWN) {
        t.up_columns = halves && rows > 16 ? 128 : 64;
        share(rows, t.up_columns, &t.up_m, &t.up_n);
    }
    return t;
}

/* The first of the tiles below that fit, from the largest down. */
static bool fit_tiles(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                      int32_t most_rows, lowrank_tiles *t, int64_t *least)
{
    const int32_t least_depth = fa__lowrank_policy(s) == SUMS_TENSOR ? 64 : 32;
    for (int32_t rows = most_rows; rows >= 16; rows /= 2)
        for (int32_t depth = 64; depth >= (rows == 16 ? least_depth : 32); depth /= 2)
            for (int32_t stages = rows == 16 ? 6 : 3; stages >= 2; stages--) {
                if (rows > 16 && depth == 64 && element_bytes(s) == 4)
                    continue; /* more than its registers can be fed from */
                *t = make_tiles(s, step, rows, depth, stages);
                *least = smem_bytes(s, t);
                if (*least > (int64_t)target->smem_optin)
                    continue;
                t->smem_bytes = (int32_t)*least;
                return true;
            }
    return false;
}

/* --- cost --- */

/* A nominal device of each architecture: plans must not depend on the one at hand. */
static int32_t nominal_multiprocessors(int cc)
{
    return cc >= 120   ? 170
           : cc >= 100 ? 148
           : cc >= 90  ? 132
           : cc >= 89  ? 128
           : cc >= 86  ? 84
                       : 108;
}

/* Multiply-adds a nanosecond of one multiprocessor at full tiles: about half of what the data sheet
 * of an H200 says, which is what mma.sync and plain arithmetic reach. */
static double multiply_rate(const fa_lowrank_kv_spec *s)
{
    static const double rates[] = {
        [SUMS_CHUNKED] = 127, [SUMS_SPLIT_TF32] = 350, [SUMS_TF32] = 1000,
        [SUMS_DOUBLE] = 64,   [SUMS_TENSOR] = 2000,    [SUMS_TREE] = 95};
    return rates[fa__lowrank_policy(s)];
}

#define LOAD_RATE 40.0      /* bytes a nanosecond from L2 into one multiprocessor */
#define SHARED_RATE 0.45    /* of that, when all of them load at once */
#define SMALL_TILE_RATE 0.5 /* of multiply_rate, in blocks of 16 tokens */
#define LAUNCH_NS 2500.0    /* of a kernel: its start, its first loads, its end */

/* Nanoseconds of one block: what it multiplies, and what it loads. */
static void block_cost(const fa_lowrank_kv_spec *s, const lowrank_tiles *t, int64_t model_dim,
                       int64_t down_columns, int64_t up_columns, double *multiply, double *load)
{
    const double rows = t->rows, rank = s->rank, m = (double)model_dim;
    const double passes =
        t->step == STEP_UP ? 0 : (double)fa__divide_up(down_columns, t->down_columns);
    const double rate = multiply_rate(s) * (t->rows == 16 ? SMALL_TILE_RATE : 1);
    double products = rows * rank * (double)up_columns;
    double elements = rank * (double)up_columns;
    if (t->step == STEP_UP)
        elements += rows * rank;
    products += passes * t->down_columns * rows * m;
    elements += passes * m * (rows + t->down_columns);
    *multiply = products / rate;
    *load = elements * element_bytes(s) / LOAD_RATE;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double step_cost(const fa_lowrank_kv_spec *s, const lowrank_tiles *t, int64_t row_tiles,
                        int64_t slices, int64_t model_dim, int64_t up_tiles,
                        int32_t multiprocessors)
{
    const bool split_down = t->step == STEP_DOWN && (s->form == FA_LOWRANK_WHOLE || !s->norm);
    const int64_t down = split_down ? t->down_columns : s->rank;
    const int64_t up = t->step == STEP_DOWN ? 0 : fa__divide_up(up_tiles, slices) * t->up_columns;
    double multiply, load;
    block_cost(s, t, model_dim, down, up, &multiply, &load);
    const double blocks = (double)(row_tiles * slices);
    const double waves = (double)fa__divide_up(row_tiles * slices, multiprocessors);
    return larger(waves * larger(multiply, load), blocks * load / (SHARED_RATE * multiprocessors));
}

int64_t fa__lowrank_slices(const fa_lowrank_kv_spec *s, const lowrank_tiles *t, int64_t row_tiles,
                           int64_t model_dim, int64_t columns_k, int64_t columns_v,
                           int32_t multiprocessors)
{
    if (t->step == STEP_DOWN)
        return s->norm && s->form == FA_LOWRANK_DOWN ? 1 : fa__divide_up(s->rank, t->down_columns);
    const int64_t tiles =
        fa__divide_up(columns_k, t->up_columns) + fa__divide_up(columns_v, t->up_columns);
    int64_t best = 1;
    double best_cost = 0;
    for (int64_t slices = 1; slices <= tiles && slices <= 64; slices++) {
        const double cost = step_cost(s, t, row_tiles, slices, model_dim, tiles, multiprocessors);
        if (slices == 1 || cost < best_cost * 0.98) {
            best = slices;
            best_cost = cost;
        }
    }
    return best;
}

static double way_cost(const fa_lowrank_kv_spec *s, const lowrank_plan *p, lowrank_way way,
                       int64_t tokens, int32_t multiprocessors)
{
    const int64_t model_dim = s->model_dim ? s->model_dim : 2048;
    const int64_t heads = s->heads ? s->heads : 8;
    const int64_t k = heads * (s->head_dim ? s->head_dim : 128);
    const int64_t v = heads * (s->head_dim_v ? s->head_dim_v : 128);
    double ns = 0;
    for (int32_t i = 0; i < way.count; i++) {
        const lowrank_tiles *t = &p->kernel[way.first + i];
        const int64_t rows = fa__divide_up(tokens, t->rows);
        const int64_t slices = fa__lowrank_slices(s, t, rows, model_dim, k, v, multiprocessors);
        const int64_t tiles = t->step == STEP_DOWN ? 0
                                                   : fa__divide_up(k, t->up_columns) +
                                                         fa__divide_up(v, t->up_columns);
        ns += LAUNCH_NS + step_cost(s, t, rows, slices, model_dim, tiles, multiprocessors);
    }
    return ns;
}

/* --- ways --- */

static fa_status add_kernel(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                            int32_t rows, lowrank_plan *p, lowrank_way *way)
{
    int64_t least = 0;
    if (!way->count)
        way->first = p->kernel_count;
    if (!fit_tiles(s, target, step, rows, &p->kernel[p->kernel_count], &least))
        return fa__fail(FA_ERR_SHARED_MEMORY,
                        "lowrank_kv: rank = %d with %s needs %lld bytes of shared memory for 16 "
                        "tokens; a block on %s can have %u (fa_lowrank_kv_spec.rank)",
                        s->rank, fa__dtype_name(s->dtype), (long long)least, target->arch,
                        target->smem_optin);
    p->kernel_count++;
    way->count++;
    return FA_OK;
}

/* Of few tokens in blocks of 16; of many in large ones. */
static fa_status add_ways(const fa_lowrank_kv_spec *s, const fa__target *target, lowrank_plan *p)
{
    const int32_t step = (int32_t)s->form;
    const bool whole = s->form == FA_LOWRANK_WHOLE;
    lowrank_tiles small;
    int64_t least = 0;
    const bool fits = fit_tiles(s, target, step, 16, &small, &least);
    const bool two = whole && (s->plan == FA_LOWRANK_TWO_LAUNCHES ||
                               (s->plan == FA_LOWRANK_AUTO && (s->rank > 128 || !fits)));
    const bool norms = s->form == FA_LOWRANK_DOWN && s->norm;
    fa_status status = FA_OK;
    if (!two || (s->plan == FA_LOWRANK_AUTO && fits))
        status = add_kernel(s, target, step, 16, p, &p->few);
    if (status == FA_OK && two) {
        status = add_kernel(s, target, STEP_DOWN, 128, p, &p->many);
        if (status == FA_OK)
            status = add_kernel(s, target, STEP_UP, element_bytes(s) == 4 ? 64 : 128, p, &p->many);
    } else if (status == FA_OK) {
        status = add_kernel(s, target, step, whole || norms || element_bytes(s) == 4 ? 64 : 128, p,
                            &p->many);
    }
    return status;
}

/* Keeps the kernels of one way alone. */
static void keep(lowrank_plan *p, lowrank_way *kept, lowrank_way *dropped)
{
    lowrank_tiles kernel[FA__MAX_FUNCTIONS] = {{0}};
    memcpy(kernel, &p->kernel[kept->first], (size_t)kept->count * sizeof kernel[0]);
    memcpy(p->kernel, kernel, sizeof kernel);
    p->kernel_count = kept->count;
    kept->first = 0;
    *dropped = (lowrank_way){0};
}

/* Number of tokens from which they cost less the other way: a power of two. */
static int32_t crossover(const fa_lowrank_kv_spec *s, const fa__target *target,
                         const lowrank_plan *p)
{
    const int32_t multiprocessors = nominal_multiprocessors(target->cc);
    int32_t tokens = 1 << 20;
    while (tokens > 1 && way_cost(s, p, p->many, tokens / 2, multiprocessors) <
                             way_cost(s, p, p->few, tokens / 2, multiprocessors))
        tokens /= 2;
    return tokens;
}

static void choose_way(const fa_lowrank_kv_spec *s, const fa__target *target, lowrank_plan *p)
{
    if (!p->few.count)
        return;
    p->many_from = crossover(s, target, p);
    const int64_t tokens = (int64_t)s->batch * s->seqlen; /* 0: known at launch */
    if (!tokens && p->many_from > 1)
        return;
    if (tokens && tokens < p->many_from)
        keep(p, &p->few, &p->many);
    else
        keep(p, &p->many, &p->few);
    p->many_from = 0;
}

/* --- text --- */

static const char *const policy_text[] = {"chunked f32", "split tf32",   "tf32",
                                          "f64",         "tensor cores", "f32 by pairs"};

static void describe_way(const lowrank_plan *p, lowrank_way way, fa__buf *text)
{
    fa__buf_text(text, way.count == 2 ? "two launches" : "one launch");
    for (int32_t i = 0; i < way.count; i++) {
        const lowrank_tiles *t = &p->kernel[way.first + i];
        fa__buf_format(text, "%s %dx%dx%d", i ? "," : "", t->rows,
                       t->step == STEP_DOWN ? t->down_columns : t->up_columns, t->depth);
    }
}

/* "split tf32, one launch 16x64x64, from 2048 tokens on two launches ...". */
static void describe(const fa_lowrank_kv_spec *s, const lowrank_plan *p, bool programmatic,
                     fa__buf *text)
{
    fa__buf_format(text, "%s, ", policy_text[fa__lowrank_policy(s)]);
    if (p->few.count)
        describe_way(p, p->few, text);
    if (p->few.count && p->many.count)
        fa__buf_format(text, ", from %d tokens on ", p->many_from);
    if (p->many.count)
        describe_way(p, p->many, text);
    fa__buf_format(text, ", %d threads%s", LOWRANK_THREADS,
                   programmatic ? ", programmatic launch" : "");
}

void fa__lowrank_plan_get(const fa__plan *plan, lowrank_plan *out)
{
    memcpy(out, plan->value, sizeof *out);
}

fa_status fa__lowrank_plan_make(const fa_lowrank_kv_spec *s, const fa__target *target,
                                fa__plan *plan)
{
    lowrank_plan p;
    memset(&p, 0, sizeof p);
    fa_status status = add_ways(s, target, &p);
    if (status)
        return status;
    choose_way(s, target, &p);
    for (int32_t i = 0; i < p.kernel_count; i++)
        if ((uint32_t)p.kernel[i].smem_bytes > plan->smem_dynamic_bytes)
            plan->smem_dynamic_bytes = (uint32_t)p.kernel[i].smem_bytes;
    plan->block_threads = LOWRANK_THREADS;
    plan->flags.programmatic = target->cc >= 90; /* lowrank_kv.cu waits for its predecessor */
    memcpy(plan->value, &p, sizeof p);
    fa__buf text = fa__buf_on(plan->text, sizeof plan->text);
    describe(s, &p, plan->flags.programmatic, &text);
    return FA_OK; /* the longest text is shorter than the room */
}
