/* How linear's work is laid out: a table of tiles and what they cost. Pure: the same spec and
 * architecture give the same plan on every machine. */
#include "ops/linear.h"
#include "status.h"

/* One way to lay out a block. `percent`: of the arithmetic rate that a large product reaches with
 * it, as warps with larger shares load less for each multiplication. */
typedef struct layout {
    int16_t tile_m, tile_n, warps_m, warps_n, warps_k, stages, percent;
} layout;

static const layout half_layouts[] = {
    {256, 128, 4, 2, 1, 4, 100}, {128, 128, 2, 2, 1, 3, 95}, {128, 64, 2, 2, 1, 4, 75},
    {64, 64, 2, 2, 1, 4, 60},    {32, 64, 2, 2, 1, 6, 40},   {32, 32, 2, 2, 2, 8, 30},
    {32, 32, 1, 1, 4, 8, 28},    {16, 64, 1, 4, 1, 8, 22},   {16, 32, 1, 2, 4, 8, 18},
    {16, 32, 1, 1, 4, 8, 17},    {16, 16, 1, 1, 4, 9, 12},
};

/* Tensor cores of sm_90 and sm_100 take fp8 as half: the conversions need registers that more than
 * 32 x 32 of a warp do not leave. */
static const layout fp8_layouts[] = {
    {128, 64, 4, 2, 1, 4, 100}, {64, 64, 2, 2, 1, 4, 60}, {32, 64, 2, 2, 1, 6, 40},
    {32, 32, 2, 2, 2, 8, 30},   {16, 64, 1, 4, 1, 8, 22}, {16, 32, 1, 2, 4, 8, 18},
    {16, 16, 1, 1, 4, 9, 12},
};

/* float32 in parts. Measured on an H200: with fewer warps, and with smaller shares of them, splitting
 * numbers and waiting take their time. */
static const layout tf32_layouts[] = {
    {128, 128, 2, 4, 1, 4, 73}, {128, 64, 4, 2, 1, 4, 60}, {64, 64, 2, 2, 1, 4, 46},
    {32, 64, 2, 2, 1, 6, 46},   {32, 32, 2, 2, 2, 9, 46},  {32, 32, 1, 1, 4, 9, 44},
    {16, 64, 1, 4, 1, 8, 32},   {32, 16, 2, 1, 4, 9, 31},  {16, 32, 1, 2, 4, 9, 31},
    {16, 16, 1, 1, 4, 9, 28},
};

/* Three parts of two steps at once: a warp has registers for 32 x 32. A tile has two such steps. */
static const layout bf16_parts_layouts[] = {
    {128, 64, 4, 2, 1, 4, 100}, {64, 64, 2, 2, 1, 4, 90}, {32, 64, 2, 2, 1, 6, 75},
    {32, 32, 2, 2, 2, 9, 60},   {16, 64, 1, 4, 1, 8, 50}, {32, 16, 2, 1, 2, 9, 45},
    {16, 32, 1, 2, 2, 9, 42},   {16, 16, 1, 1, 2, 9, 35},
};

/* float32 as halves that an earlier launch has made. Warps of 64 x 64 read little for what they
 * multiply, and need all registers: the first line spills except on sm_90 with all sizes baked. */
static const layout f16_parts_layouts[] = {
    {256, 128, 4, 2, 1, 4, 100},
    {128, 128, 2, 4, 1, 4, 85},
    {128, 64, 4, 2, 1, 4, 65},
    {64, 64, 2, 2, 1, 4, 50},
};

static const layout fma_layouts[] = {
    {128, 128, 2, 4, 1, 3, 100}, {64, 128, 2, 2, 1, 3, 90}, {64, 64, 2, 2, 1, 3, 80},
    {32, 64, 2, 2, 1, 4, 60},    {32, 32, 2, 2, 1, 4, 45},  {16, 64, 2, 1, 1, 6, 40},
};

typedef struct layouts {
    const layout *line;
    size_t count;
} layouts;

#define TABLE(lines)                                                                               \
    (layouts)                                                                                      \
    {                                                                                              \
        lines, sizeof(lines) / sizeof(lines)[0]                                                    \
    }

static layouts layouts_of(const fa_linear_spec *s, int arithmetic, int cc)
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
        return (layouts){f16_parts_layouts + first,
                         sizeof f16_parts_layouts / sizeof f16_parts_layouts[0] - first};
    default:
        return s->operands == FA_LINEAR_E4M3 ? TABLE(fp8_layouts) : TABLE(half_layouts);
    }
}

/* --- shared memory --- */

static int64_t stage_bytes(const layout *l)
{
    return ((int64_t)l->tile_m + l->tile_n) * 128;
}

/* The tile's sums as float32, as SUM_BYTES in linear_shape.cuh. */
static int64_t sum_bytes(const layout *l)
{
    const int64_t over = l->tile_n % 32;
    return (int64_t)l->warps_k * l->tile_m * (l->tile_n + 8 + (over ? 32 - over : 0)) * 4;
}

static int64_t shared_bytes(const layout *l, int64_t stages)
{
    const int64_t tiles = stages * stage_bytes(l);
    return tiles > sum_bytes(l) ? tiles : sum_bytes(l);
}

#define STATIC_BYTES 64 /* of linear.cu beside its dynamic shared memory, at most */

/* Stages that are of use and fit; below 2: the layout does not fit. */
static int64_t stages_of(const fa_linear_spec *s, const layout *l, const fa__target *target,
                         int64_t tile_k)
{
    const int64_t room = (int64_t)target->smem_optin - STATIC_BYTES;
    int64_t stages = s->stages ? s->stages : l->stages;
    if (s->k && !s->stages && stages > fa__divide_up(s->k, tile_k) + 1)
        stages = fa__divide_up(s->k, tile_k) + 1;
    stages = stages < 2 ? 2 : stages;
    if (s->stages)
        return shared_bytes(l, stages) <= room ? stages : 0;
    while (stages >= 2 && shared_bytes(l, stages) > room)
        stages--;
    return stages;
}

/* --- cost --- */

#define FEW_ROWS 16 /* a tile has no fewer */
#define DYNAMIC_M 4096
#define DYNAMIC_N 4096
#define DYNAMIC_K 4096
#define FIXED_CLOCKS 2500      /* of a block: first loads, sums through shared memory, stores */
#define FINISHED_EACH_CLOCK 13 /* sums that go through shared memory and are stored */
#define MOST_THREADS 768       /* of a multiprocessor, with the registers that products need */
#define ROTATED_CLOCKS 125     /* of a thread that rotates a sum by a computed angle */
#define LOADED_EACH_CLOCK 32   /* bytes that a multiprocessor gets from the L2 cache */
#define JOIN_CLOCKS 2000       /* of blocks that share a tile: they wait for the last of them */
#define LEAST_STEPS 8      /* tiles of k that a block takes at least, of several that share them */
#define MOST_ROUNDS 4      /* of blocks that share tiles */
#define LAUNCH_CLOCKS 4500 /* of one launch more */

/* A typical device of the architecture: multiprocessors, and bytes that memory moves in a clock of
 * theirs. NVIDIA's white papers. */
typedef struct typical_device {
    int cc, multiprocessors, bytes_each_clock;
} typical_device;

static const typical_device *device_of(int cc)
{
    static const typical_device devices[] = {{75, 68, 400},    {80, 108, 1100}, {86, 84, 430},
                                             {87, 16, 160},    {89, 128, 400},  {90, 132, 2700},
                                             {100, 148, 4200}, {120, 170, 740}};
    const typical_device *found = &devices[0];
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        if (devices[i].cc <= cc)
            found = &devices[i];
    return found;
}

int64_t fa__linear_multiprocessors(int cc)
{
    return device_of(cc)->multiprocessors;
}

/* Multiplications that a multiprocessor does in a clock. */
static int64_t rate_of(int arithmetic)
{
    static const int64_t rates[] = {[LINEAR_FMA] = 110,
                                    [LINEAR_WHOLE] = 1300,
                                    [LINEAR_SPLIT_TF32] = 200,
                                    [LINEAR_SPLIT_BF16] = 190,
                                    [LINEAR_SPLIT_F16] = 260};
    return rates[arithmetic];
}

static uint32_t threads_of(const layout *l)
{
    return 32 * (uint32_t)(l->warps_m * l->warps_n * l->warps_k);
}

/* Blocks that a multiprocessor holds: while some finish, others multiply. Each costs it 1 KB. */
static int64_t resident_of(const fa_linear_spec *s, const layout *l, const fa__target *target,
                           int64_t tile_k)
{
    const int64_t room = shared_bytes(l, stages_of(s, l, target, tile_k)) + 1024;
    const int64_t by_memory = ((int64_t)target->smem_optin + 1024) / room;
    const int64_t by_threads = MOST_THREADS / threads_of(l);
    const int64_t held = by_memory < by_threads ? by_memory : by_threads;
    return held < 1 ? 1 : held;
}

/* What one block does with a tile of k, and at its end. */
static void set_clocks(const fa_linear_spec *s, const layout *l, int arithmetic,
                       const fa__target *target, linear_work *work)
{
    const int64_t tile_k = 128 / fa__linear_operand_bytes(s);
    const int64_t products = (int64_t)l->tile_m * l->tile_n * tile_k;
    const int64_t arithmetic_clocks = products * 100 / (rate_of(arithmetic) * l->percent);
    const int64_t load_clocks = stage_bytes(l) / LOADED_EACH_CLOCK;
    work->step_clocks = arithmetic_clocks > load_clocks ? arithmetic_clocks : load_clocks;
    work->sums = (int64_t)l->tile_m * l->tile_n;
    work->finish_clocks = work->sums / FINISHED_EACH_CLOCK;
    if (s->rotation && s->angles != FA_ROPE_TABLES)
        work->finish_clocks += work->sums * ROTATED_CLOCKS / threads_of(l);
    work->resident = resident_of(s, l, target, tile_k);
}

/* Rows of x. Whoever forces the smallest tile has few of them. */
static int64_t rows_of(const fa_linear_spec *s)
{
    return s->m ? s->m : s->tile_m == FEW_ROWS ? FEW_ROWS : DYNAMIC_M;
}

/* The whole product as tiles of this layout; what is dynamic is taken to be large. */
static linear_work work_of(const fa_linear_spec *s, const layout *l, int arithmetic,
                           const fa__target *target)
{
    const int64_t n = s->n ? s->n : DYNAMIC_N, k = s->k ? s->k : DYNAMIC_K;
    const int64_t tile_k = 128 / fa__linear_operand_bytes(s);
    linear_work work = {.k_tiles = fa__divide_up(k, tile_k),
                        .tiles =
                            fa__divide_up(rows_of(s), l->tile_m) * fa__divide_up(n, l->tile_n)};
    set_clocks(s, l, arithmetic, target, &work);
    return work;
}

/* Of the launch that makes halves of x and w, if there is one: all of both is read, and as many bytes
 * are written, at two thirds of the memory's rate. */
static int64_t parts_clocks(const fa_linear_spec *s, int arithmetic, int cc)
{
    const int64_t n = s->n ? s->n : DYNAMIC_N, k = s->k ? s->k : DYNAMIC_K;
    const int64_t elements = (rows_of(s) + n) * fa__linear_parts_k(k);
    if (arithmetic != LINEAR_SPLIT_F16)
        return 0;
    return elements / device_of(cc)->bytes_each_clock * (2 * 4) * 3 / 2 + LAUNCH_CLOCKS;
}

/* Clocks of the whole product, with so many blocks to a tile, in so many rounds of blocks. */
static int64_t clocks_of(const linear_work *w, int64_t splits, int64_t rounds)
{
    const int64_t steps = fa__divide_up(w->k_tiles, splits);
    const int64_t join = splits > 1 ? JOIN_CLOCKS + splits * w->sums * 4 / LOADED_EACH_CLOCK : 0;
    const int64_t turns = fa__divide_up(rounds, w->resident);
    /* Blocks of one multiprocessor overlap what they wait for. */
    return rounds * steps * w->step_clocks + turns * w->finish_clocks + FIXED_CLOCKS +
           (turns - 1) * FIXED_CLOCKS / 4 + join;
}

int64_t fa__linear_clocks(const linear_work *w, int64_t multiprocessors)
{
    return clocks_of(w, 1, fa__divide_up(w->tiles, multiprocessors));
}

/* --- splits of k --- */

/* Of all numbers of blocks, those that fill one to MOST_ROUNDS rounds are compared: with fewer blocks
 * multiprocessors are idle in the last round. Divisions count: this is part of every launch. */
int64_t fa__linear_splits(const linear_work *w, int64_t multiprocessors)
{
    int64_t most = w->k_tiles / LEAST_STEPS, best = 1;
    if (w->tiles >= multiprocessors || most < 2)
        return best;
    most = most < LINEAR_MAX_SPLITS ? most : LINEAR_MAX_SPLITS;
    int64_t least = clocks_of(w, best, 1), filling = 1;
    for (int64_t rounds = 1; rounds <= MOST_ROUNDS && filling < most; rounds++) {
        filling = rounds * multiprocessors / w->tiles;
        const int64_t splits = filling < most ? filling : most;
        const int64_t clocks = clocks_of(w, splits, rounds);
        if (clocks < least) {
            best = splits;
            least = clocks;
        }
    }
    return best;
}

/* What a layout costs. No tile has fewer rows than FEW_ROWS: below that, splits are what makes more
 * blocks, and they are part of the comparison. With more rows, smaller tiles are compared first. */
static int64_t cost_of(const fa_linear_spec *s, const linear_work *work, int cc)
{
    const int64_t device = fa__linear_multiprocessors(cc);
    const int64_t splits =
        !s->splits && rows_of(s) <= FEW_ROWS ? fa__linear_splits(work, device) : 1;
    return clocks_of(work, splits, fa__divide_up(work->tiles * splits, device));
}

/* --- choosing --- */

static int arithmetic_of(const fa_linear_spec *s, const fa__target *target)
{
    const bool f32 = s->dtype == FA_F32 && s->operands == FA_LINEAR_SAME;
    switch (s->arithmetic) {
    case FA_LINEAR_FMA:
        return LINEAR_FMA;
    case FA_LINEAR_SPLIT_TF32:
        return LINEAR_SPLIT_TF32;
    case FA_LINEAR_SPLIT_BF16:
        return LINEAR_SPLIT_BF16;
    case FA_LINEAR_SPLIT_F16:
        return LINEAR_SPLIT_F16;
    case FA_LINEAR_AUTO:
        break;
    }
    if (target->cc < 75 || (target->cc < 80 && s->dtype != FA_F16))
        return LINEAR_FMA;
    return f32 ? LINEAR_SPLIT_TF32 : LINEAR_WHOLE;
}

static fa_status refuse_tile(const fa_linear_spec *s, const layouts *table,
                             const fa__target *target)
{
    char room[256];
    fa__buf known = fa__buf_on(room, sizeof room);
    bool exists = false;
    for (size_t i = 0; i < table->count; i++) {
        const layout *l = &table->line[i];
        fa__buf_format(&known, "%s%d x %d", i ? ", " : "", l->tile_m, l->tile_n);
        exists |= (!s->tile_m || l->tile_m == s->tile_m) && (!s->tile_n || l->tile_n == s->tile_n);
    }
    const fa_status status =
        exists
            ? fa__fail(FA_ERR_SHARED_MEMORY,
                       "linear: tiles of %d x %d with stages = %d need more than the %u bytes of "
                       "shared memory that a block can have on %s; ask for less, 0 stands for "
                       "what fits (fa_linear_spec.tile_m, tile_n, stages)",
                       s->tile_m, s->tile_n, s->stages, target->smem_optin, target->arch)
            : fa__fail(FA_ERR_VALUE,
                       "linear: there is no tile of tile_m = %d, tile_n = %d for this arithmetic; "
                       "there are %s, and 0 stands for any (fa_linear_spec.tile_m, tile_n)",
                       s->tile_m, s->tile_n, known.data ? known.data : "?");
    fa__buf_free(&known);
    return status;
}

static const layout *choose(const fa_linear_spec *s, const fa__target *target, int arithmetic,
                            uint32_t threads, const layouts *table)
{
    const int64_t tile_k = 128 / fa__linear_operand_bytes(s);
    const layout *best = NULL;
    int64_t best_cost = INT64_MAX;
    for (size_t i = 0; i < table->count; i++) {
        const layout *l = &table->line[i];
        if ((s->tile_m && l->tile_m != s->tile_m) || (s->tile_n && l->tile_n != s->tile_n) ||
            (threads && threads_of(l) != threads) || stages_of(s, l, target, tile_k) < 2)
            continue;
        const linear_work work = work_of(s, l, arithmetic, target);
        const int64_t cost = cost_of(s, &work, target->cc);
        if (cost < best_cost) {
            best = l;
            best_cost = cost;
        }
    }
    return best;
}

/* Whether a launch could want several blocks for a tile. */
static bool may_split(const fa_linear_spec *s, int arithmetic, const linear_work *work, int cc)
{
    if (arithmetic == LINEAR_SPLIT_F16)
        return false;
    if (s->splits)
        return s->splits > 1;
    if (!s->m || !s->n)
        return !s->k || work->k_tiles >= 2 * LEAST_STEPS;
    return fa__linear_splits(work, fa__linear_multiprocessors(cc)) > 1;
}

static void write_text(fa__plan *p, int64_t cost)
{
    static const char *const names[] = {"multiply-add", "tensor cores", "tensor cores, split tf32",
                                        "tensor cores, split bf16", "tensor cores, split f16"};
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_format(
        &text, "%s, tiles of %d x %d x %d, %d stages, warps %d x %d x %d, stores of %d, ",
        names[p->value[LINEAR_ARITHMETIC]], p->value[LINEAR_TILE_M], p->value[LINEAR_TILE_N],
        p->value[LINEAR_TILE_K], p->value[LINEAR_STAGES], p->value[LINEAR_WARPS_M],
        p->value[LINEAR_WARPS_N], p->value[LINEAR_WARPS_K], p->value[LINEAR_VECTOR_WIDTH]);
    fa__buf_format(&text, "%scost %lld%s", p->value[LINEAR_MAY_SPLIT] ? "k may be split, " : "",
                   (long long)cost, p->flags.programmatic ? ", programmatic launch" : "");
}

static fa_status plan_as(const fa_linear_spec *s, int arithmetic, const fa__target *target,
                         uint32_t threads, fa__plan *p)
{
    const int64_t tile_k = 128 / fa__linear_operand_bytes(s);
    const layouts table = layouts_of(s, arithmetic, target->cc);
    const layout *l = choose(s, target, arithmetic, threads, &table);
    if (!l)
        return refuse_tile(s, &table, target);
    const linear_work work = work_of(s, l, arithmetic, target);
    const int64_t stages = stages_of(s, l, target, tile_k);
    const int64_t widest = 16 / (int64_t)fa__dtype_bytes(fa__linear_output_dtype(s));
    p->block_threads = threads_of(l);
    p->smem_dynamic_bytes = (uint32_t)shared_bytes(l, stages);
    p->flags.programmatic = target->cc >= 90; /* linear.cu waits for its predecessor by itself */
    p->value[LINEAR_ARITHMETIC] = arithmetic;
    p->value[LINEAR_TILE_M] = l->tile_m;
    p->value[LINEAR_TILE_N] = l->tile_n;
    p->value[LINEAR_TILE_K] = (int32_t)tile_k;
    p->value[LINEAR_WARPS_M] = l->warps_m;
    p->value[LINEAR_WARPS_N] = l->warps_n;
    p->value[LINEAR_WARPS_K] = l->warps_k;
    p->value[LINEAR_STAGES] = (int32_t)stages;
    p->value[LINEAR_VECTOR_WIDTH] =
        (int32_t)fa__power_of_two(fa__linear_dividends(s, s->n), widest);
    p->value[LINEAR_MAY_SPLIT] = may_split(s, arithmetic, &work, target->cc);
    p->value[LINEAR_STEP_CLOCKS] = (int32_t)work.step_clocks;
    p->value[LINEAR_FINISH_CLOCKS] = (int32_t)work.finish_clocks;
    p->value[LINEAR_RESIDENT] = (int32_t)work.resident;
    write_text(p, cost_of(s, &work, target->cc) + parts_clocks(s, arithmetic, target->cc));
    return FA_OK;
}

/* --- halves instead of tf32 --- */

/* Clocks of a product of sizes that are baked, as it would be launched. INT64_MAX: it has no layout. */
static int64_t clocks_as(const fa_linear_spec *s, int arithmetic, const fa__target *target)
{
    const layouts table = layouts_of(s, arithmetic, target->cc);
    const int64_t device = fa__linear_multiprocessors(target->cc);
    const layout *l = choose(s, target, arithmetic, 0, &table);
    if (!l)
        return INT64_MAX;
    const linear_work work = work_of(s, l, arithmetic, target);
    const int64_t splits = arithmetic == LINEAR_SPLIT_F16 ? 1 : fa__linear_splits(&work, device);
    return clocks_of(&work, splits, fa__divide_up(work.tiles * splits, device)) +
           parts_clocks(s, arithmetic, target->cc);
}

/* Halves need a workspace whatever the sizes are, so that splits = 1, which promises that there is
 * none, keeps tf32. */
static bool takes_halves(const fa_linear_spec *s, const fa__target *target)
{
    if (s->arithmetic != FA_LINEAR_AUTO || arithmetic_of(s, target) != LINEAR_SPLIT_TF32 || !s->m ||
        !s->n || !s->k || s->splits)
        return false;
    const int64_t halves = clocks_as(s, LINEAR_SPLIT_F16, target);
    return halves < clocks_as(s, LINEAR_SPLIT_TF32, target);
}

fa_status fa__linear_plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_linear_spec *s = &spec->linear;
    const int arithmetic = takes_halves(s, target) ? LINEAR_SPLIT_F16 : arithmetic_of(s, target);
    return plan_as(s, arithmetic, target, 0, p);
}

fa_status fa__linear_plan_of(const fa_spec *spec, const fa__target *target, uint32_t threads,
                             fa__plan *p)
{
    return plan_as(&spec->linear, arithmetic_of(&spec->linear, target), target, threads, p);
}
