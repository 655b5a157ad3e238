/* What a layout of linear costs: a model of one block's clocks and of the rounds of blocks, and how
 * many blocks should share a tile. */
#include "ops/linear_layout.h"

#define FEW_ROWS 16 /* a tile has no fewer */
#define DYNAMIC_M 4096
#define DYNAMIC_N 4096
#define DYNAMIC_K 4096
#define FIXED_CLOCKS 2500      /* of a block: first loads, sums through shared memory, stores */
#define FINISHED_EACH_CLOCK 13 /* sums that go through shared memory and are stored */
#define MOST_THREADS 768       /* of a multiprocessor, with the registers that products need */
#define ROTATED_CLOCKS 125     /* of a thread that rotates a sum by a computed angle; at most */
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

/* Blocks that a multiprocessor holds: while some finish, others multiply. Each costs it 1 KB. */
static int64_t resident_of(const fa_linear_spec *s, const linear_layout *l,
                           const fa__target *target)
{
    const int64_t room =
        fa__linear_shared_bytes(s, l, fa__linear_stages(s, l, target), target) + 1024;
    const int64_t by_memory = ((int64_t)target->smem_optin + 1024) / room;
    const int64_t by_threads = MOST_THREADS / fa__linear_layout_threads(l);
    const int64_t held = by_memory < by_threads ? by_memory : by_threads;
    return held < 1 ? 1 : held;
}

/* What one block does with a tile of k, and at its end. */
static void set_clocks(const fa_linear_spec *s, const linear_layout *l, int arithmetic,
                       const fa__target *target, linear_work *work)
{
    const int64_t products = (int64_t)l->tile_m * l->tile_n * fa__linear_tile_k(s);
    const int64_t arithmetic_clocks = products * 100 / (rate_of(arithmetic) * l->percent);
    const int64_t load_clocks = fa__linear_stage_bytes(l) / LOADED_EACH_CLOCK;
    work->step_clocks = arithmetic_clocks > load_clocks ? arithmetic_clocks : load_clocks;
    work->sums = (int64_t)l->tile_m * l->tile_n;
    work->finish_clocks = work->sums / FINISHED_EACH_CLOCK;
    if (s->rotation && s->angles != FA_ROPE_TABLES)
        work->finish_clocks += work->sums * ROTATED_CLOCKS / fa__linear_layout_threads(l);
    work->resident = resident_of(s, l, target);
}

/* Rows of x. Whoever forces the smallest tile has few of them. */
static int64_t rows_of(const fa_linear_spec *s)
{
    return s->m ? s->m : s->tile_m == FEW_ROWS ? FEW_ROWS : DYNAMIC_M;
}

linear_work fa__linear_work_of(const fa_linear_spec *s, const linear_layout *l, int arithmetic,
                               const fa__target *target)
{
    const int64_t n = s->n ? s->n : DYNAMIC_N, k = s->k ? s->k : DYNAMIC_K;
    linear_work work = {.k_tiles = fa__divide_up(k, fa__linear_tile_k(s)),
                        .tiles =
                            fa__divide_up(rows_of(s), l->tile_m) * fa__divide_up(n, l->tile_n)};
    set_clocks(s, l, arithmetic, target, &work);
    return work;
}

/* All of x and w is read, and as many bytes are written, at two thirds of the memory's rate. */
int64_t fa__linear_parts_clocks(const fa_linear_spec *s, int arithmetic, int cc)
{
    const int64_t n = s->n ? s->n : DYNAMIC_N, k = s->k ? s->k : DYNAMIC_K;
    const int64_t elements = (rows_of(s) + n) * fa__linear_parts_k(k);
    if (arithmetic != LINEAR_SPLIT_F16)
        return 0;
    return elements / device_of(cc)->bytes_each_clock * (2 * 4) * 3 / 2 + LAUNCH_CLOCKS;
}

int64_t fa__linear_bounded_clocks(double clocks)
{
    return clocks < 0x1p58 ? (int64_t)clocks : (int64_t)1 << 58;
}

/* Clocks of the whole product, with so many blocks to a tile, in so many rounds of blocks. */
static int64_t clocks_of(const linear_work *w, int64_t splits, int64_t rounds)
{
    const int64_t steps = fa__divide_up(w->k_tiles, splits);
    const int64_t join = splits > 1 ? JOIN_CLOCKS + splits * w->sums * 4 / LOADED_EACH_CLOCK : 0;
    const int64_t turns = fa__divide_up(rounds, w->resident);
    /* Blocks of one multiprocessor overlap what they wait for. */
    const double waits = (double)(turns - 1) * (FIXED_CLOCKS / 4) + (double)(FIXED_CLOCKS + join);
    return fa__linear_bounded_clocks((double)rounds * (double)(steps * w->step_clocks) +
                                     (double)turns * (double)w->finish_clocks + waits);
}

int64_t fa__linear_clocks(const linear_work *w, int64_t splits, int64_t multiprocessors)
{
    return clocks_of(w, splits, fa__divide_up(w->tiles * splits, multiprocessors));
}

/* --- splits of k --- */

/* Of all numbers of blocks, those that fill one to MOST_ROUNDS rounds are compared: with fewer
 * blocks multiprocessors are idle in the last round. Divisions count: this is part of every
 * launch. */
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

bool fa__linear_may_split(const fa_linear_spec *s, int arithmetic, const linear_work *work, int cc)
{
    if (arithmetic == LINEAR_SPLIT_F16)
        return false;
    if (s->splits)
        return s->splits > 1;
    if (!s->m || !s->n)
        return !s->k || work->k_tiles >= 2 * LEAST_STEPS;
    return fa__linear_splits(work, fa__linear_multiprocessors(cc)) > 1;
}

/* No tile has fewer rows than FEW_ROWS: below that, splits are what makes more blocks, and they are
 * part of the comparison. With more rows, smaller tiles are compared first. */
int64_t fa__linear_cost(const fa_linear_spec *s, const linear_work *work, int cc)
{
    const int64_t device = fa__linear_multiprocessors(cc);
    const int64_t splits =
        !s->splits && rows_of(s) <= FEW_ROWS ? fa__linear_splits(work, device) : 1;
    return fa__linear_clocks(work, splits, device);
}
