/* How the steps of cross_attention are laid out: as linear and attention lay out theirs. Pure. */
#include <string.h>

#include "ops/cross_attention.h"
#include "status.h"

#define SMALL_THREADS 128 /* and of all blocks of one launch */
#define SMALL_PRODUCTS (INT64_C(1) << 27)
#define MOST_BLOCKS 3 /* of one launch on a multiprocessor: what registers allow */
#define MANY_SUMS 128 /* of a thread: they leave registers for a block less */

/* --- the steps as operations --- */

fa_spec fa__cross_project(const fa_cross_attention_spec *s, int32_t heads)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    spec.linear = (fa_linear_spec){.dtype = s->dtype,
                                   .bias = s->bias,
                                   .n = heads * s->head_dim,
                                   .k = s->model_dim,
                                   .rotation = s->rotation,
                                   .angles = s->angles,
                                   .head_dim = s->rotation ? s->head_dim : 0,
                                   .rotary_dim = s->rotation ? s->rotary_dim : 0,
                                   .splits = 1,
                                   .base = s->base,
                                   .scaling = s->scaling};
    return spec;
}

fa_spec fa__cross_attend(const fa_cross_attention_spec *s)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ATTENTION);
    spec.attention = (fa_attention_spec){.dtype = s->dtype,
                                         .mask = s->mask,
                                         .head_dim = s->head_dim,
                                         .head_dim_v = s->head_dim,
                                         .batch = s->batch,
                                         .heads_q = s->heads_q,
                                         .heads_k = s->heads_k,
                                         .seqlen_q = s->seqlen_q,
                                         .seqlen_k = s->seqlen_k,
                                         .scale = s->scale};
    return spec;
}

fa_spec fa__cross_output(const fa_cross_attention_spec *s)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    spec.linear = (fa_linear_spec){.dtype = s->dtype,
                                   .bias = s->bias_out,
                                   .n = s->model_dim,
                                   .k = s->heads_q * s->head_dim,
                                   .splits = 1};
    return spec;
}

/* --- one step --- */

static int32_t baked_rows(int32_t batch, int32_t tokens)
{
    const int64_t rows = (int64_t)batch * tokens;
    return rows > LINEAR_MAX_SIZE ? LINEAR_MAX_SIZE : (int32_t)rows;
}

/* Rows that cost as much as all groups together: of heads_q columns, or of heads_k without q. */
static int32_t project_rows(const fa_cross_attention_spec *s)
{
    const int64_t queries = baked_rows(s->batch, s->seqlen_q),
                  keys = 2 * (int64_t)baked_rows(s->batch, s->seqlen_k);
    int64_t rows = 0;
    if (s->form == FA_CROSS_KEYS)
        rows = keys;
    else if (s->form == FA_CROSS_QUERIES)
        rows = queries;
    else if (queries && keys)
        rows = queries + keys * s->heads_k / s->heads_q;
    return rows > LINEAR_MAX_SIZE ? LINEAR_MAX_SIZE : (int32_t)rows;
}

/* With blocks of `threads`; 0: of any size. */
static fa_status plan_linear(fa_spec *spec, int32_t rows, const fa__target *target,
                             uint32_t threads, linear_step *to)
{
    fa__plan plan = {0};
    spec->linear.m = rows;
    const fa_status status = fa__linear_plan_of(spec, target, threads, &plan);
    *to = fa__linear_step_of(&plan);
    return status;
}

static fa_status plan_project(const fa_cross_attention_spec *s, const fa__target *target,
                              uint32_t threads, linear_step *to)
{
    const bool queries = fa__cross_has_queries(s), keys = fa__cross_has_keys(s);
    fa_spec spec = fa__cross_project(s, queries ? s->heads_q : s->heads_k);
    fa_status status = plan_linear(&spec, project_rows(s), target, threads, to);
    const fa_spec narrow = fa__cross_project(s, keys ? s->heads_k : s->heads_q);
    const int64_t widest = 16 / (int64_t)fa__dtype_bytes(s->dtype);
    to->vector_width =
        (int32_t)fa__power_of_two(fa__linear_dividends(&narrow.linear, narrow.linear.n), widest);
    return status;
}

static fa_status plan_attend(const fa_cross_attention_spec *s, const fa__target *target,
                             fa_attention_tiles tiles, attention_step *to)
{
    fa_spec spec = fa__cross_attend(s);
    fa__plan plan = {0};
    spec.attention.tiles = tiles;
    const fa_status status = fa__attention_plan(&spec, target, &plan);
    *to = fa__attention_step_of(&plan);
    return status;
}

static fa_status plan_output(const fa_cross_attention_spec *s, const fa__target *target,
                             uint32_t threads, linear_step *to)
{
    fa_spec spec = fa__cross_output(s);
    return plan_linear(&spec, baked_rows(s->batch, s->seqlen_q), target, threads, to);
}

/* --- a launch for each step, or one for all --- */

/* Whether all projections together are so little that launches count as much: small blocks then
 * leave room for those of the next launch, which start while they run. */
static bool is_small(const fa_cross_attention_spec *s)
{
    const int64_t rows = project_rows(s), columns = (int64_t)s->heads_q * s->head_dim;
    return rows && s->model_dim && rows * columns <= SMALL_PRODUCTS / s->model_dim;
}

static fa_status plan_few(const fa_cross_attention_spec *s, const fa__target *target, cross_plan *p)
{
    const uint32_t threads = is_small(s) ? SMALL_THREADS : 0;
    fa_status status = FA_OK;
    (void)((status = plan_project(s, target, threads, &p->project)) ||
           (status = plan_attend(s, target, FA_ATTENTION_TILES_AUTO, &p->attend)) ||
           (status = plan_output(s, target, threads, &p->output)));
    return status;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t smem_of(const fa_cross_attention_spec *s, const cross_plan *p)
{
    if (s->form == FA_CROSS_KEYS)
        return p->project.shared_bytes;
    return larger(p->project.shared_bytes, larger(p->attend.shared_bytes, p->output.shared_bytes));
}

/* Blocks of one launch that a multiprocessor has registers for. */
static int32_t blocks_by_registers(const fa_cross_attention_spec *s, const cross_plan *p)
{
    const int32_t sums =
        larger(p->project.tile_m * p->project.tile_n, p->output.tile_m * p->output.tile_n);
    const bool fewer =
        (s->dtype == FA_F32 && s->head_dim > 32) || sums >= MANY_SUMS * SMALL_THREADS;
    return fewer ? MOST_BLOCKS - 1 : MOST_BLOCKS;
}

static fa_status plan_one(const fa_cross_attention_spec *s, const fa__target *target, cross_plan *p)
{
    static const fa_attention_tiles sizes[] = {FA_ATTENTION_TILES_AUTO, FA_ATTENTION_TILES_SMALL,
                                               FA_ATTENTION_TILES_LARGE};
    fa_status status = FA_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !status; i++) {
        status = plan_attend(s, target, sizes[i], &p->attend);
        if (fa__attention_step_threads(&p->attend) == SMALL_THREADS)
            break;
    }
    (void)(status || (status = plan_project(s, target, SMALL_THREADS, &p->project)) ||
           (status = plan_output(s, target, SMALL_THREADS, &p->output)));
    if (status)
        return status;
    if (fa__attention_step_threads(&p->attend) != SMALL_THREADS)
        return fa__fail(FA_ERR_UNSUPPORTED,
                        "cross_attention: there is no attention with blocks of %d threads for "
                        "head_dim = %d on %s, which plan = one_launch needs; leave it auto "
                        "(fa_cross_attention_spec.plan)",
                        SMALL_THREADS, s->head_dim, target->arch);
    const int32_t held = ((int32_t)target->smem_optin + 1024) / (smem_of(s, p) + 1024);
    const int32_t most = blocks_by_registers(s, p);
    p->one_launch = 1;
    p->blocks = held > most ? most : held;
    return FA_OK;
}

/* --- the plan --- */

void fa__cross_plan_get(const fa__plan *plan, cross_plan *to)
{
    _Static_assert(sizeof(cross_plan) <= sizeof plan->value, "room for the steps");
    memcpy(to, plan->value, sizeof *to);
}

static void write_step(fa__buf *text, const char *name, const linear_step *step)
{
    fa__buf_format(text, "%s tiles of %d x %d by %d threads, ", name, step->tile_m, step->tile_n,
                   fa__linear_step_threads(step));
}

static void write_text(const fa_cross_attention_spec *s, const cross_plan *p, fa__plan *plan)
{
    fa__buf text = fa__buf_on(plan->text, sizeof plan->text);
    fa__buf_text(&text, p->one_launch              ? "one launch: "
                        : s->form == FA_CROSS_KEYS ? "1 launch: "
                                                   : "3 launches: ");
    write_step(&text, "projections", &p->project);
    if (fa__cross_has_queries(s)) {
        fa__buf_format(&text, "attention %d queries by %d keys by %d threads, ",
                       fa__attention_step_rows(&p->attend), p->attend.key_tile,
                       fa__attention_step_threads(&p->attend));
        write_step(&text, "output", &p->output);
    }
    fa__buf_format(&text, "%d bytes of shared memory", smem_of(s, p));
}

fa_status fa__cross_plan_make(const fa_spec *spec, const fa__target *target, fa__plan *plan)
{
    const fa_cross_attention_spec *s = &spec->cross_attention;
    cross_plan p = {0};
    const fa_status status =
        s->plan == FA_CROSS_ONE_LAUNCH ? plan_one(s, target, &p) : plan_few(s, target, &p);
    if (status)
        return status;
    memcpy(plan->value, &p, sizeof p);
    plan->block_threads = (uint32_t)larger(
        fa__linear_step_threads(&p.project),
        larger(fa__attention_step_threads(&p.attend), fa__linear_step_threads(&p.output)));
    plan->smem_dynamic_bytes = (uint32_t)smem_of(s, &p);
    plan->flags.cooperative = p.one_launch; /* blocks wait for each other */
    plan->flags.programmatic = !p.one_launch && target->cc >= 90;
    write_text(s, &p, plan);
    return FA_OK;
}
