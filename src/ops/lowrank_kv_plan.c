/* Choosing the steps of lowrank_kv: one for all, or one for each product, and which run for how
 * many tokens. Pure: from spec and target alone, so that an offline context plans
 * as a device does. */
#include <string.h>

#include "ops/lowrank_kv.h"
#include "status.h"

/* --- the products as linear lays them out --- */

/* Those of linear.cu's arithmetics that are a policy. */
static bool is_product_policy(const fa_lowrank_kv_spec *s)
{
    const int policy = fa__lowrank_policy(s);
    return policy == SUMS_SPLIT_TF32 || policy == SUMS_TENSOR;
}

static int32_t columns_of(const fa_lowrank_kv_spec *s, int part)
{
    const int64_t columns = (int64_t)s->heads * (part ? s->head_dim_v : s->head_dim);
    return columns > LINEAR_MAX_SIZE ? LINEAR_MAX_SIZE : (int32_t)columns;
}

/* What a block needs beside linear's: 8 columns more of each row of weights, whose rows are k, and
 * its tokens. */
#define MORE_SHARED_BYTES (24 * 1024)
#define MORE_STAGE_BYTES 1024

static fa_status plan_product(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t step,
                              int32_t tokens, fa__plan *plan)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    fa__target beside = *target;
    const bool down = step == STEP_DOWN;
    const int64_t both = (int64_t)columns_of(s, 0) + columns_of(s, 1);
    const int32_t n = both > LINEAR_MAX_SIZE ? LINEAR_MAX_SIZE : (int32_t)both;
    spec.linear = (fa_linear_spec){.dtype = s->dtype,
                                   .m = tokens,
                                   .n = down ? s->rank : n,
                                   .k = down ? s->model_dim : s->rank,
                                   .splits = 1};
    beside.smem_optin -= MORE_SHARED_BYTES;
    return fa__linear_plan_of(&spec, &beside, 0, plan);
}

static linear_step product_of(const fa_lowrank_kv_spec *s, int32_t step, const fa__plan *plan)
{
    linear_step p = fa__linear_step_of(plan);
    const uint64_t rows =
        step == STEP_DOWN ? (uint64_t)s->rank : (uint64_t)s->head_dim | (uint64_t)s->head_dim_v;
    const int32_t ring = p.stages * ((p.tile_m + p.tile_n) * 128 + MORE_STAGE_BYTES);
    p.vector_width = (int32_t)fa__power_of_two(rows, 16 / (int64_t)fa__dtype_bytes(s->dtype));
    if (p.shared_bytes < ring)
        p.shared_bytes = ring;
    p.shared_bytes += p.tile_m * LOWRANK_TOKEN_BYTES;
    return p;
}

/* --- ways --- */

#define FEW_TOKENS 16 /* a step of decoding: what a kernel for any number of them has a way for */

/* Kernels that do all of a launch, one after another. */
typedef struct draft {
    lowrank_kernel kernel[LOWRANK_MOST_STEPS];
    fa__plan product[LOWRANK_MOST_STEPS]; /* of those that are products */
    int32_t count;                        /* 0: there is no such way */
} draft;

static fa_status add_product(const fa_lowrank_kv_spec *s, const fa__target *target, draft *d,
                             int32_t step, int32_t tokens)
{
    fa__plan *plan = &d->product[d->count];
    const fa_status status = plan_product(s, target, step, tokens, plan);
    if (status)
        return status;
    d->kernel[d->count++] =
        (lowrank_kernel){.step = step, .is_product = 1, .product = product_of(s, step, plan)};
    return FA_OK;
}

/* 32 bytes of a row of w_up for each warp. */
static int32_t widest(const fa_lowrank_kv_spec *s)
{
    return s->dtype == FA_F32 ? 64 : 128;
}

static fa_status add_small(const fa_lowrank_kv_spec *s, const fa__target *target, draft *d,
                           int32_t step, int32_t rows)
{
    lowrank_small small;
    if (!fa__lowrank_small_fit(s, target, step, rows, widest(s), &small))
        return fa__fail(FA_ERR_SHARED_MEMORY,
                        "lowrank_kv: rank = %d with %s needs %d bytes of shared memory for %d "
                        "tokens; a block on %s can have %u (fa_lowrank_kv_spec.rank, %s)",
                        s->rank, fa__dtype_name(s->dtype), small.shared_bytes, rows, target->arch,
                        target->smem_optin, is_product_policy(s) ? "plan" : "sums");
    d->kernel[d->count++] = (lowrank_kernel){.step = step, .small = small};
    return FA_OK;
}

/* One product, of any policy. */
static fa_status add_step(const fa_lowrank_kv_spec *s, const fa__target *target, draft *d,
                          int32_t step, int32_t tokens)
{
    if (is_product_policy(s))
        return add_product(s, target, d, step, tokens);
    return add_small(s, target, d, step, s->tile_tokens ? s->tile_tokens : 16);
}

/* Each of the form's steps by itself, laid out for so many tokens; 0: for many. */
static fa_status add_steps(const fa_lowrank_kv_spec *s, const fa__target *target, draft *d,
                           int32_t tokens)
{
    fa_status status = FA_OK;
    if (s->form != FA_LOWRANK_UP)
        status = add_step(s, target, d, STEP_DOWN, tokens);
    if (!status && s->norm)
        d->kernel[d->count++] = (lowrank_kernel){
            .step = STEP_NORM, .small = {.shared_bytes = LOWRANK_WARPS * LOWRANK_TOKEN_BYTES}};
    if (!status && s->form != FA_LOWRANK_DOWN)
        status = add_step(s, target, d, STEP_UP, tokens);
    return status;
}

/* --- cost --- */

/* Measured on an H200. */
#define LAUNCH_CLOCKS 1500  /* of a kernel behind another; the norm takes little more */
#define PRODUCT_PERCENT 140 /* of what linear takes: here rows of weights are k */

static lowrank_work work_of(const fa_lowrank_kv_spec *s, int64_t tokens)
{
    const int64_t heads = s->heads ? s->heads : 8;
    return (lowrank_work){.tokens = tokens,
                          .model_dim = s->model_dim ? s->model_dim : 2048,
                          .columns = {heads * (s->head_dim ? s->head_dim : 128),
                                      heads * (s->head_dim_v ? s->head_dim_v : 128)}};
}

static int64_t product_clocks(const fa_lowrank_kv_spec *s, const fa__plan *plan, int32_t step,
                              const lowrank_work *w, int64_t multiprocessors)
{
    const bool down = step == STEP_DOWN;
    const int64_t tile_m = plan->value[LINEAR_TILE_M], tile_n = plan->value[LINEAR_TILE_N];
    const linear_work work = {
        .tiles = fa__lowrank_product_tiles(s, step, w, tile_m, tile_n),
        .k_tiles = fa__divide_up(down ? w->model_dim : s->rank, plan->value[LINEAR_TILE_K]),
        .sums = tile_m * tile_n,
        .step_clocks = plan->value[LINEAR_STEP_CLOCKS] * PRODUCT_PERCENT / 100,
        .finish_clocks = plan->value[LINEAR_FINISH_CLOCKS] * PRODUCT_PERCENT / 100,
        .resident = plan->value[LINEAR_RESIDENT]};
    return fa__linear_clocks(&work, 1, multiprocessors);
}

static int64_t draft_clocks(const fa_lowrank_kv_spec *s, const fa__target *target, const draft *d,
                            int64_t tokens)
{
    const int64_t multiprocessors = fa__linear_multiprocessors(target->cc);
    const lowrank_work w = work_of(s, tokens);
    int64_t clocks = (d->count - 1) * LAUNCH_CLOCKS;
    for (int32_t i = 0; i < d->count; i++) {
        const lowrank_kernel *k = &d->kernel[i];
        if (k->is_product)
            clocks += product_clocks(s, &d->product[i], k->step, &w, multiprocessors);
        else if (k->step != STEP_NORM)
            clocks += fa__lowrank_small_clocks(s, k, &w, multiprocessors);
    }
    return clocks;
}

/* --- choosing --- */

/* Blocks of 16 tokens or of 32, and of 16 bits, of 64 columns or of 128: what costs least. Of any
 * number of tokens, 16 and the widest. */
static fa_status add_whole(const fa_lowrank_kv_spec *s, const fa__target *target, draft *d,
                           int64_t tokens)
{
    fa_status status = add_small(s, target, d, STEP_WHOLE, s->tile_tokens ? s->tile_tokens : 16);
    if (status || !tokens)
        return status;
    draft other = *d;
    for (int32_t rows = 16; rows <= 32; rows += 16)
        for (int32_t columns = 64; columns <= widest(s); columns *= 2) {
            if ((s->tile_tokens && rows != s->tile_tokens) ||
                !fa__lowrank_small_fit(s, target, STEP_WHOLE, rows, columns,
                                       &other.kernel[0].small))
                continue;
            if (draft_clocks(s, target, &other, tokens) < draft_clocks(s, target, d, tokens))
                *d = other;
        }
    return FA_OK;
}

static int32_t baked_tokens(const fa_lowrank_kv_spec *s)
{
    const int64_t tokens = (int64_t)s->batch * s->seqlen;
    return tokens > LINEAR_MAX_SIZE ? LINEAR_MAX_SIZE : (int32_t)tokens;
}

static bool whole_fits(const fa_lowrank_kv_spec *s, const fa__target *target)
{
    lowrank_small small;
    return fa__lowrank_small_fit(s, target, STEP_WHOLE, s->tile_tokens ? s->tile_tokens : 16,
                                 widest(s), &small);
}

/* Drafts of all ways there are. `steps` that are the same as those of many tokens are none. */
typedef struct drafts {
    draft whole, steps, many;
} drafts;

static fa_status make_drafts(const fa_lowrank_kv_spec *s, const fa__target *target, drafts *d)
{
    const int32_t tokens = baked_tokens(s);
    const bool products = is_product_policy(s);
    const bool one =
        s->form == FA_LOWRANK_WHOLE &&
        (s->plan == FA_LOWRANK_ONE_LAUNCH || (s->plan == FA_LOWRANK_AUTO && whole_fits(s, target)));
    const bool forced = s->tile_tokens || s->shares; /* which are of one launch */
    const bool two = s->plan == FA_LOWRANK_TWO_LAUNCHES ||
                     (s->plan == FA_LOWRANK_AUTO && (!one || (products && !forced)));
    fa_status status = FA_OK;
    if (one)
        status = add_whole(s, target, &d->whole, tokens);
    if (!status && two)
        status = add_steps(s, target, &d->many, tokens);
    if (!status && two && products && !tokens)
        status = add_steps(s, target, &d->steps, FEW_TOKENS);
    if (memcmp(d->steps.kernel, d->many.kernel, sizeof d->many.kernel) == 0)
        d->steps.count = 0;
    return status;
}

/* Number of tokens from which they cost less the other way: a power of two. 0: none. */
static int32_t crossover(const fa_lowrank_kv_spec *s, const fa__target *target, const draft *few,
                         const draft *many)
{
    int32_t tokens = 1 << 20;
    while (tokens && draft_clocks(s, target, many, tokens) < draft_clocks(s, target, few, tokens))
        tokens /= 2;
    return tokens == 1 << 20 ? 0 : tokens ? 2 * tokens : 1;
}

/* Adds the kernels of a draft to the plan, but for a norm that is there. */
static lowrank_way put(const draft *d, lowrank_plan *p)
{
    lowrank_way way = {.count = (uint8_t)d->count};
    for (int32_t i = 0; i < d->count; i++) {
        int32_t at = d->kernel[i].step == STEP_NORM ? 0 : p->kernel_count;
        while (at < p->kernel_count && p->kernel[at].step != STEP_NORM)
            at++;
        if (at == p->kernel_count)
            p->kernel[p->kernel_count++] = d->kernel[i];
        way.kernel[i] = (uint8_t)at;
    }
    return way;
}

/* Of baked tokens, the way that costs least. */
static void choose_for(const fa_lowrank_kv_spec *s, const fa__target *target, int32_t tokens,
                       const drafts *d, lowrank_plan *p)
{
    const int64_t one = d->whole.count ? draft_clocks(s, target, &d->whole, tokens) : INT64_MAX,
                  two = d->many.count ? draft_clocks(s, target, &d->many, tokens) : INT64_MAX;
    if (one <= two)
        p->few = put(&d->whole, p);
    else
        p->many = put(&d->many, p);
    const int64_t least = one < two ? one : two;
    p->clocks = least < INT32_MAX ? (int32_t)least : INT32_MAX;
}

/* Whether one launch, which needs no workspace, is for few tokens: unless products of their own
 * take three quarters of its time at most, or those of many tokens never take more. */
static bool whole_is_for_few(const fa_lowrank_kv_spec *s, const fa__target *target, const drafts *d)
{
    if (!d->whole.count || !d->steps.count)
        return d->whole.count > 0;
    return 4 * draft_clocks(s, target, &d->steps, FEW_TOKENS) >
               3 * draft_clocks(s, target, &d->whole, FEW_TOKENS) &&
           crossover(s, target, &d->whole, &d->many) != 1;
}

/* Of any number, one for few and one for many. */
static void choose(const fa_lowrank_kv_spec *s, const fa__target *target, const drafts *d,
                   lowrank_plan *p)
{
    const draft *few = whole_is_for_few(s, target, d) ? &d->whole : &d->steps;
    if (few->count && d->many.count)
        p->many_from = crossover(s, target, few, &d->many);
    if (few->count && p->many_from != 1)
        p->few = put(few, p);
    if (d->many.count && (p->many_from || !few->count))
        p->many = put(&d->many, p);
    if (!p->few.count)
        p->many_from = 0;
}

/* --- text --- */

static const char *const policy_text[] = {"chunked f32", "split tf32",   "tf32",
                                          "f64",         "tensor cores", "f32 by pairs"};

static void describe_way(const lowrank_plan *p, lowrank_way way, fa__buf *text)
{
    static const char *const counts[] = {"", "one launch", "two launches", "three launches"};
    fa__buf_text(text, counts[way.count]);
    for (int32_t i = 0; i < way.count; i++) {
        const lowrank_kernel *k = &p->kernel[way.kernel[i]];
        if (i)
            fa__buf_text(text, ",");
        if (k->is_product)
            fa__buf_format(text, " %dx%d", k->product.tile_m, k->product.tile_n);
        else if (k->step == STEP_NORM)
            fa__buf_text(text, " norm");
        else
            fa__buf_format(text, " %d tokens x %d columns, %d stages%s", k->small.rows,
                           k->step == STEP_DOWN ? k->small.down_columns : k->small.up_columns,
                           k->small.stages, k->small.ahead > k->small.stages ? " at once" : "");
    }
}

/* "split tf32, one launch 16 tokens x 64 columns, 2 stages at once, from 4096 tokens on two
 * launches 32x32, 128x64". */
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
    if (p->clocks)
        fa__buf_format(text, ", cost %d", p->clocks);
    fa__buf_text(text, programmatic ? ", programmatic launch" : "");
}

void fa__lowrank_plan_get(const fa__plan *plan, lowrank_plan *out)
{
    memcpy(out, plan->value, sizeof *out);
}

static void set_limits(const lowrank_plan *p, fa__plan *plan)
{
    for (int32_t i = 0; i < p->kernel_count; i++) {
        const lowrank_kernel *k = &p->kernel[i];
        const uint32_t threads = fa__lowrank_threads(k), bytes = fa__lowrank_shared_bytes(k);
        if (bytes > plan->smem_dynamic_bytes)
            plan->smem_dynamic_bytes = bytes;
        if (threads > plan->block_threads)
            plan->block_threads = threads;
    }
}

fa_status fa__lowrank_plan_make(const fa_lowrank_kv_spec *s, const fa__target *target,
                                fa__plan *plan)
{
    lowrank_plan p;
    drafts d;
    memset(&p, 0, sizeof p);
    memset(&d, 0, sizeof d);
    const fa_status status = make_drafts(s, target, &d);
    if (status)
        return status;
    if (baked_tokens(s))
        choose_for(s, target, baked_tokens(s), &d, &p);
    else
        choose(s, target, &d, &p);
    set_limits(&p, plan);
    plan->flags.programmatic = target->cc >= 90; /* lowrank_kv.cu waits for its predecessor */
    memcpy(plan->value, &p, sizeof p);
    fa__buf text = fa__buf_on(plan->text, sizeof plan->text);
    describe(s, &p, plan->flags.programmatic, &text);
    return FA_OK; /* the longest text is shorter than the room */
}
