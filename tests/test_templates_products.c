/* As test_templates.c, of the operations that multiply matrices: every instance on sm_90a, a sixth of
 * them on sm_80, and of every twelve another one on each other architecture, save sm_86, whose
 * instructions and registers are those of sm_80; of cross_attention, which is made of the others' parts
 * and needs the most registers, a third and a sixth. That nothing spills is what counts: all of them
 * take what registers there are. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "cross_attention_spec.h"
#include "offline.h"

#define MOST_REGISTERS 255
#define MOST_SMEM (227u * 1024)

static const fa_linear_spec linear_instances[] = {
    {.dtype = FA_BF16, .m = 8192, .n = 2048, .k = 512},
    {.arithmetic = FA_LINEAR_FMA, .m = 8192, .n = 2048, .k = 512},
    {.m = 8192, .n = 2048, .k = 512}, /* halves, but on sm_89 */
    {.dtype = FA_F16, .m = 8192, .n = 4096, .k = 512, .bias = true},
    {.m = 384, .n = 48, .k = 256},
    {.m = 384, .n = 256, .k = 48},
    {.m = 512, .n = 256, .k = 256},
    {.dtype = FA_BF16, .m = 16, .n = 4096, .k = 4096},
    {0},
    {.dtype = FA_F16},
    {.dtype = FA_BF16,
     .bias = true,
     .residual = true,
     .activation = FA_LINEAR_GELU,
     .rotation = FA_KV_ROTATE_HALF,
     .head_dim = 128,
     .mapped_rows = true},
    {.m = 8192, .n = 2048, .k = 512, .splits = 1}, /* not halves; only on sm_90a */
    {.n = 3072,
     .k = 1024,
     .rotation = FA_KV_ROTATE_INTERLEAVED,
     .angles = FA_ROPE_TABLES,
     .head_dim = 128,
     .rotated = 2048,
     .split_1 = 1024,
     .split_2 = 2048},
};
/* From sm_80 on, wherever: sizes given at launch are what needs the most registers. */
static const fa_linear_spec split_instances[] = {
    {.arithmetic = FA_LINEAR_SPLIT_BF16},
    {.arithmetic = FA_LINEAR_SPLIT_F16},
    {.arithmetic = FA_LINEAR_SPLIT_F16,
     .k = 512,
     .bias = true,
     .rotation = FA_KV_ROTATE_HALF,
     .head_dim = 128,
     .mapped_rows = true},
};
/* On sm_89, where tf32 needs the most registers: rows of w in another order. */
static const fa_linear_spec reordered_instances[] = {
    {.k = 130,
     .scales = FA_LINEAR_SCALE_ROW,
     .activation = FA_LINEAR_GELU,
     .rotation = FA_KV_ROTATE_HALF,
     .head_dim = 66,
     .rotary_dim = 14,
     .mapped_rows = true,
     .row_type = FA_I64},
    {.arithmetic = FA_LINEAR_SPLIT_TF32,
     .m = 128,
     .n = 193,
     .k = 320,
     .tile_m = 128,
     .tile_n = 128,
     .activation = FA_LINEAR_SILU,
     .rotation = FA_KV_ROTATE_HALF,
     .angles = FA_ROPE_FREQUENCIES,
     .head_dim = 96,
     .rotated = 192},
};
/* From sm_89 on. */
static const fa_linear_spec fp8_linear_instances[] = {
    {.dtype = FA_BF16, .operands = FA_LINEAR_E4M3, .scales = FA_LINEAR_SCALE_ROW, .bias = true},
    {.dtype = FA_BF16,
     .operands = FA_LINEAR_E4M3,
     .scales = FA_LINEAR_SCALE_TENSOR,
     .m = 8192,
     .n = 2048,
     .k = 512},
};

#define CANONICAL .model_dim = 256, .rank = 48, .heads = 4, .head_dim = 32
#define LATENT .model_dim = 4096, .rank = 512, .heads = 8, .head_dim = 128
static const fa_lowrank_kv_spec lowrank_instances[] = {
    {CANONICAL, .batch = 4, .seqlen = 96},
    {CANONICAL},
    {CANONICAL, .sums = FA_LOWRANK_SUMS_CHUNKED},
    {CANONICAL, .sums = FA_LOWRANK_SUMS_TREE},
    {CANONICAL, .sums = FA_LOWRANK_SUMS_DOUBLE},
    {.dtype = FA_BF16, .model_dim = 1024, .rank = 64, .heads = 8, .head_dim = 128},
    {LATENT, .dtype = FA_BF16},
    {LATENT, .plan = FA_LOWRANK_TWO_LAUNCHES, .norm = FA_ROPE_RMS_NORM_F32},
    {LATENT, .dtype = FA_BF16, .form = FA_LOWRANK_DOWN, .norm = FA_ROPE_RMS_NORM, .rope_dim = 64,
     .rotation = FA_KV_ROTATE_INTERLEAVED, .to_cache = true, .cache = FA_KV_SLOTS,
     .slot_type = FA_I64},
    {LATENT, .dtype = FA_F16, .form = FA_LOWRANK_UP, .rope_dim = 64},
    {.rank = 33, .rope_dim = 8, .rotation = FA_KV_ROTATE_HALF, .to_cache = true},
};

/* Every way to cut the work, with the most that it holds in registers. */
static const fa_attention_spec attention_instances[] = {
    {.head_dim = 32, .lse = true, .batch = 4, .heads_q = 8, .seqlen_q = 64, .seqlen_k = 128},
    {.dtype = FA_BF16, .head_dim = 64},
    {.dtype = FA_F16, .mask = FA_ATTENTION_CAUSAL, .head_dim = 80, .lse = true},
    {.dtype = FA_BF16, .mask = FA_ATTENTION_CAUSAL, .head_dim = 96},
    {.dtype = FA_BF16, .mask = FA_ATTENTION_CAUSAL, .head_dim = 128, .lse = true},
    {.dtype = FA_F16, .mask = FA_ATTENTION_CAUSAL_TOP_LEFT, .head_dim = 128},
    {.dtype = FA_BF16, .head_dim = 192, .head_dim_v = 128},
    {.dtype = FA_BF16, .mask = FA_ATTENTION_CAUSAL, .head_dim = 256, .lse = true},
    {.dtype = FA_F16,
     .mask = FA_ATTENTION_CAUSAL,
     .tiles = FA_ATTENTION_TILES_MEDIUM,
     .head_dim = 128,
     .lse = true},
    {.dtype = FA_BF16, .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 64, .lse = true},
    {.dtype = FA_F16, .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 128},
    {.mask = FA_ATTENTION_CAUSAL, .head_dim = 64, .lse = true},
    {.mask = FA_ATTENTION_CAUSAL_TOP_LEFT, .head_dim = 192},
    {.mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_MEDIUM, .head_dim = 128, .lse = true},
    {.mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_SMALL, .head_dim = 256, .lse = true},
    {.dtype = FA_F16, .head_dim = 67, .head_dim_v = 13},
};

#define BLOCK CROSS_CANONICAL
#define DECODER .heads_q = 16, .heads_k = 16, .head_dim = 128, .model_dim = 2048
/* One launch has to hold the most of three steps in registers, at two blocks a multiprocessor. */
static const fa_cross_attention_spec cross_instances[] = {
    {BLOCK, .plan = FA_CROSS_ONE_LAUNCH},
    {BLOCK, .plan = FA_CROSS_FEW_LAUNCHES},
    {BLOCK, .dtype = FA_BF16},
    {DECODER, .dtype = FA_BF16, .rotation = FA_KV_ROTATE_HALF, .mask = FA_ATTENTION_CAUSAL},
    {CROSS_HEADS, .dtype = FA_F16, .rotation = FA_KV_ROTATE_INTERLEAVED, .bias = true,
     .bias_out = true},
    {.heads_q = 8, .heads_k = 2, .head_dim = 64, .plan = FA_CROSS_ONE_LAUNCH, .bias = true},
    {.heads_q = 3, .heads_k = 3, .head_dim = 20, .plan = FA_CROSS_ONE_LAUNCH, .dtype = FA_BF16},
    {BLOCK, .form = FA_CROSS_KEYS, .bias = true},
    {CROSS_HEADS, .rotation = FA_KV_ROTATE_HALF, .angles = FA_ROPE_TABLES},
};

/* Projections in tiles of 128 x 64, for which sm_120 has room. */
static const fa_cross_attention_spec tall_projections = {.plan = FA_CROSS_FEW_LAUNCHES,
                                                         .batch = 2,
                                                         .seqlen_q = 128,
                                                         .seqlen_k = 256,
                                                         .model_dim = 1024,
                                                         .heads_q = 16,
                                                         .heads_k = 16,
                                                         .head_dim = 64};

static void compile_linear(fa_context *ctx, const fa_linear_spec *linear)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LINEAR);
    spec.linear = *linear;
    compile_instance(ctx, &spec, MOST_REGISTERS, MOST_SMEM);
}

static void compile_lowrank_kv(fa_context *ctx, const fa_lowrank_kv_spec *lowrank)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_LOWRANK_KV);
    spec.lowrank_kv = *lowrank;
    compile_instance(ctx, &spec, MOST_REGISTERS, MOST_SMEM);
}

static void compile_attention(fa_context *ctx, const fa_attention_spec *attention)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ATTENTION);
    spec.attention = *attention;
    compile_instance(ctx, &spec, MOST_REGISTERS, MOST_SMEM);
}

static void compile_cross_attention(fa_context *ctx, const fa_cross_attention_spec *cross)
{
    const fa_spec spec = cross_spec(*cross);
    compile_instance(ctx, &spec, MOST_REGISTERS, MOST_SMEM);
}

/* --- every `step`th instance of an operation, from `first` on --- */

typedef struct target {
    fa_context *ctx;
    int cc, nvrtc;
} target;

/* Of what needs the most registers more. */
static size_t apart(size_t step)
{
    return (step + 1) / 2;
}

static void some_linear(const target *on, size_t first, size_t step)
{
    const size_t splits = sizeof split_instances / sizeof split_instances[0];
    const size_t reordered = sizeof reordered_instances / sizeof reordered_instances[0];
    const size_t fp8 = sizeof fp8_linear_instances / sizeof fp8_linear_instances[0];
    for (size_t i = first; i < sizeof linear_instances / sizeof linear_instances[0]; i += step)
        compile_linear(on->ctx, &linear_instances[i]);
    for (size_t i = first % apart(step); on->cc >= 80 && i < splits; i += apart(step))
        compile_linear(on->ctx, &split_instances[i]);
    for (size_t i = 0; on->cc == 89 && i < reordered; i++)
        compile_linear(on->ctx, &reordered_instances[i]);
    for (size_t i = 0; on->cc >= 89 && on->nvrtc >= NVRTC_OF_FP8_MMA && i < fp8; i++)
        compile_linear(on->ctx, &fp8_linear_instances[i]);
}

static void some_lowrank_kv(const target *on, size_t first, size_t step)
{
    for (size_t i = first; i < sizeof lowrank_instances / sizeof lowrank_instances[0]; i += step)
        compile_lowrank_kv(on->ctx, &lowrank_instances[i]);
}

static void some_attention(const target *on, size_t first, size_t step)
{
    const size_t count = sizeof attention_instances / sizeof attention_instances[0];
    for (size_t i = first; i < count; i += step)
        compile_attention(on->ctx, &attention_instances[i]);
}

static void some_cross_attention(const target *on, size_t first, size_t step)
{
    const size_t count = sizeof cross_instances / sizeof cross_instances[0];
    for (size_t i = first % apart(step); i < count; i += apart(step))
        compile_cross_attention(on->ctx, &cross_instances[i]);
    if (on->cc == 120)
        compile_cross_attention(on->ctx, &tall_projections);
}

/* --- on an architecture --- */

static target target_open(const char *arch)
{
    target on = {.cc = atoi(arch + strlen("sm_"))};
    on.ctx = open_offline(arch, &on.nvrtc);
    return on;
}

static void compile_some(const char *arch, size_t first, size_t step)
{
    const target on = target_open(arch);
    some_linear(&on, first, step);
    some_lowrank_kv(&on, first, step);
    some_attention(&on, first, step);
    some_cross_attention(&on, first, step);
    fa_context_destroy(on.ctx);
}

/* All at a time would take as long as everything else together. */
static void compile_all(void (*some)(const target *, size_t, size_t))
{
    const target on = target_open("sm_90a");
    some(&on, 0, 1);
    fa_context_destroy(on.ctx);
}

Test(products, sm_90a_linear)
{
    compile_all(some_linear);
}

Test(products, sm_90a_lowrank_kv)
{
    compile_all(some_lowrank_kv);
}

Test(products, sm_90a_attention)
{
    compile_all(some_attention);
}

Test(products, sm_90a_cross_attention)
{
    compile_all(some_cross_attention);
}

Test(products, sm_75)
{
    compile_some("sm_75", 0, 12);
}

Test(products, sm_80)
{
    compile_some("sm_80", 1, 6);
}

Test(products, sm_89)
{
    compile_some("sm_89", 2, 12);
}

Test(products, sm_100a)
{
    compile_some("sm_100a", 3, 12);
}

Test(products, sm_120a)
{
    compile_some("sm_120a", 5, 12);
}
