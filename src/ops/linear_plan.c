/* How linear's work is laid out. Pure: the same spec and architecture give the same plan on every
 * machine. */
#include "ops/linear_layout.h"
#include "status.h"

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

/* "128 x 128, 64 x 64": a shape that several layouts have, one behind the other, once. */
static void list_tiles(const linear_layouts *table, fa__buf *text)
{
    for (size_t i = 0; i < table->count; i++) {
        const linear_layout *l = &table->line[i], *before = i ? l - 1 : NULL;
        if (before && before->tile_m == l->tile_m && before->tile_n == l->tile_n)
            continue;
        fa__buf_format(text, "%s%d x %d", before ? ", " : "", l->tile_m, l->tile_n);
    }
    if (table->further)
        fa__buf_format(text, ", %s", table->further);
}

static bool has_tile(const fa_linear_spec *s, const linear_layout *l)
{
    return (!s->tile_m || l->tile_m == s->tile_m) && (!s->tile_n || l->tile_n == s->tile_n);
}

static fa_status refuse_size(const fa_linear_spec *s, const linear_layout *l,
                             const fa__target *target)
{
    const int32_t stages = s->stages ? s->stages : 2; /* the least */
    const int64_t needed = fa__linear_shared_bytes(s, l, stages, target);
    return fa__fail(FA_ERR_SHARED_MEMORY,
                    "linear: a tile of %d x %d with %d stages needs %lld bytes of shared "
                    "memory%s; a block on %s can have %u. Ask for less, 0 stands for what fits "
                    "(fa_linear_spec.tile_m, tile_n, stages)",
                    l->tile_m, l->tile_n, stages, (long long)needed,
                    fa__linear_keeps_angles(s, l, target) ? ", angles of its rotation among them"
                                                          : "",
                    target->arch, target->smem_optin);
}

static fa_status refuse_tile(const fa_linear_spec *s, const linear_layouts *table,
                             const fa__target *target)
{
    char room[256];
    fa__buf known = fa__buf_on(room, sizeof room);
    for (size_t i = 0; i < table->count; i++)
        if (has_tile(s, &table->line[i]))
            return refuse_size(s, &table->line[i], target);
    list_tiles(table, &known);
    return fa__fail(FA_ERR_VALUE,
                    "linear: there is no tile of tile_m = %d, tile_n = %d for this arithmetic; "
                    "there are %s, and 0 stands for any (fa_linear_spec.tile_m, tile_n)",
                    s->tile_m, s->tile_n, room);
}

static const linear_layout *choose(const fa_linear_spec *s, const fa__target *target,
                                   int arithmetic, int32_t threads, const linear_layouts *table)
{
    const linear_layout *best = NULL;
    int64_t best_cost = INT64_MAX;
    for (size_t i = 0; i < table->count; i++) {
        const linear_layout *l = &table->line[i];
        if (!has_tile(s, l) || (threads && fa__linear_layout_threads(l) != threads) ||
            fa__linear_stages(s, l, target) < 2)
            continue;
        const linear_work work = fa__linear_work_of(s, l, arithmetic, target);
        const int64_t cost = fa__linear_cost(s, &work, target->cc);
        if (cost < best_cost) {
            best = l;
            best_cost = cost;
        }
    }
    return best;
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
                         int32_t threads, fa__plan *p)
{
    const linear_layouts table = fa__linear_layouts(s, arithmetic, target->cc);
    const linear_layout *l = choose(s, target, arithmetic, threads, &table);
    if (!l)
        return refuse_tile(s, &table, target);
    const linear_work work = fa__linear_work_of(s, l, arithmetic, target);
    const int64_t stages = fa__linear_stages(s, l, target);
    const int64_t widest = 16 / (int64_t)fa__dtype_bytes(fa__linear_output_dtype(s));
    p->block_threads = (uint32_t)fa__linear_layout_threads(l);
    p->smem_dynamic_bytes = (uint32_t)fa__linear_shared_bytes(s, l, stages, target);
    p->flags.programmatic = target->cc >= 90; /* linear.cu waits for its predecessor by itself */
    p->value[LINEAR_ARITHMETIC] = arithmetic;
    p->value[LINEAR_TILE_M] = l->tile_m;
    p->value[LINEAR_TILE_N] = l->tile_n;
    p->value[LINEAR_TILE_K] = (int32_t)fa__linear_tile_k(s);
    p->value[LINEAR_WARPS_M] = l->warps_m;
    p->value[LINEAR_WARPS_N] = l->warps_n;
    p->value[LINEAR_WARPS_K] = l->warps_k;
    p->value[LINEAR_STAGES] = (int32_t)stages;
    p->value[LINEAR_VECTOR_WIDTH] =
        (int32_t)fa__power_of_two(fa__linear_dividends(s, s->n), widest);
    p->value[LINEAR_MAY_SPLIT] = fa__linear_may_split(s, arithmetic, &work, target->cc);
    p->value[LINEAR_STEP_CLOCKS] = (int32_t)work.step_clocks;
    p->value[LINEAR_FINISH_CLOCKS] = (int32_t)work.finish_clocks;
    p->value[LINEAR_RESIDENT] = (int32_t)work.resident;
    write_text(p, fa__linear_cost(s, &work, target->cc) +
                      fa__linear_parts_clocks(s, arithmetic, target->cc));
    return FA_OK;
}

/* --- halves instead of tf32 --- */

/* Clocks of a product of baked sizes, as it would be launched. INT64_MAX: it has no layout. */
static int64_t clocks_as(const fa_linear_spec *s, int arithmetic, const fa__target *target)
{
    const linear_layouts table = fa__linear_layouts(s, arithmetic, target->cc);
    const int64_t device = fa__linear_multiprocessors(target->cc);
    const linear_layout *l = choose(s, target, arithmetic, 0, &table);
    if (!l)
        return INT64_MAX;
    const linear_work work = fa__linear_work_of(s, l, arithmetic, target);
    const int64_t splits = arithmetic == LINEAR_SPLIT_F16 ? 1 : fa__linear_splits(&work, device);
    return fa__linear_clocks(&work, splits, device) +
           fa__linear_parts_clocks(s, arithmetic, target->cc);
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
    return plan_as(&spec->linear, arithmetic_of(&spec->linear, target), target, (int32_t)threads,
                   p);
}

linear_step fa__linear_step_of(const fa__plan *p)
{
    return (linear_step){.arithmetic = p->value[LINEAR_ARITHMETIC],
                         .tile_m = p->value[LINEAR_TILE_M],
                         .tile_n = p->value[LINEAR_TILE_N],
                         .stages = p->value[LINEAR_STAGES],
                         .warps_m = p->value[LINEAR_WARPS_M],
                         .warps_n = p->value[LINEAR_WARPS_N],
                         .warps_k = p->value[LINEAR_WARPS_K],
                         .vector_width = p->value[LINEAR_VECTOR_WIDTH],
                         .shared_bytes = (int32_t)p->smem_dynamic_bytes};
}
