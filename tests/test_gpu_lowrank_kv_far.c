/* lowrank_kv on a device: tokens, and entries of caches, beyond 2^31 elements. */
#include "gpu_lowrank_kv.h"

/* Rows of hidden, K, V, the latent and the rotary part have this many elements each. */
enum { ROW = 64, ROW_BYTES = 2 * ROW };

#define SIZES .dtype = FA_F16, .model_dim = ROW, .rank = ROW, .heads = 1, .head_dim = ROW
#define SHAPE(b, s) .batch = b, .seqlen = s

/* --- tokens --- */

/* Every `apart` elements a row of hidden, and behind it those that the token gives. */
static void launch_far_tokens(gpu_case *g, const fa_kernel *kernel, char *far, int64_t apart)
{
    fa_lowrank_kv_args *a = &g->c.args.lowrank_kv;
    const char *hidden = g->c.tensor[gpu_case_index(g, "hidden")].host;
    const int64_t batch = a->seqlen * apart;
    for (int n = 0; n < a->batch * a->seqlen; n++)
        gpu_upload(far + 2 * n * apart, hidden + n * ROW_BYTES, ROW_BYTES);
    a->hidden = (fa_tensor){far, batch, 0, apart};
    a->k_out = (fa_tensor){far + ROW_BYTES, batch, ROW, apart};
    a->v_out = (fa_tensor){far + 2 * ROW_BYTES, batch, ROW, apart};
    OK(fa_launch(kernel, &g->c.args, NULL));
}

/* Tokens that many elements apart, of hidden and of the outputs, give the same as packed ones. */
static void run_far_tokens(fa_context *ctx, fa_lowrank_kv_spec spec, int64_t apart)
{
    const int tokens = spec.batch * spec.seqlen;
    const size_t bytes = (size_t)(tokens - 1) * (size_t)apart * 2 + (size_t)3 * ROW_BYTES;
    if (free_memory() < bytes + ((size_t)1 << 30))
        cr_skip_test("needs %zu bytes of device memory", bytes);
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    gpu_case g;
    make_lowrank(&g, lowrank_bake(spec, 1), spec, NULL, 1);
    gpu_case_run(&g, kernel);
    const char *near = gpu_case_result(&g, "out");
    char *far = gpu_alloc(bytes);
    launch_far_tokens(&g, kernel, far, apart);
    for (int n = 0; n < tokens; n++) {
        char back[2 * ROW_BYTES];
        gpu_download(back, far + 2 * n * apart + ROW_BYTES, sizeof back);
        cr_assert_arr_eq(back, near + n * 2 * ROW_BYTES, sizeof back, "token %d", n);
    }
    gpu_free(far);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

static const fa_lowrank_plan plans[] = {FA_LOWRANK_ONE_LAUNCH, FA_LOWRANK_TWO_LAUNCHES};

/* In one launch and in two: a few, whose tiles are not whole, of one batch and of many. */
Test(gpu_lowrank_kv_far, K12_tokens_over_2_31_elements)
{
    const int64_t apart = INT64_C(1) << 30;
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        run_far_tokens(ctx, (fa_lowrank_kv_spec){SIZES, SHAPE(1, 4), .plan = plans[i]}, apart);
        run_far_tokens(ctx, (fa_lowrank_kv_spec){SIZES, SHAPE(4, 1), .plan = plans[i]}, apart);
    }
    close_device(&f, ctx);
}

/* As many tokens as give two launches large tiles. */
Test(gpu_lowrank_kv_far, K12_many_tokens_over_2_31_elements)
{
    const int64_t apart = (INT64_C(1) << 20) + ROW;
    skip_under_tool("initcheck", "it looks at all of 4 GB for each of thousands of copies");
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++)
        run_far_tokens(ctx, (fa_lowrank_kv_spec){SIZES, SHAPE(1, 2100), .plan = plans[i]}, apart);
    close_device(&f, ctx);
}

/* --- entries of caches --- */

/* Entries have two rows: K and V, or latent and rotary part. The last ENTRIES of a cache are there; the
 * FAR ones in front of them, of 2^32 elements, are addresses alone. */
enum { ENTRIES = 48, PAGE = 16, FAR = 1 << 25 };

/* The same entries, behind FAR others. */
static void move_entries(gpu_case *g, fa_kv_cache cache)
{
    static const char *const names[] = {
        [FA_KV_DENSE] = "positions", [FA_KV_SLOTS] = "slots", [FA_KV_BLOCK_TABLE] = "block_table"};
    const int by = cache == FA_KV_BLOCK_TABLE ? FAR / PAGE : FAR;
    const oracle_tensor *t = &g->c.tensor[gpu_case_index(g, names[cache])];
    fa_lowrank_kv_args *a = &g->c.args.lowrank_kv;
    for (size_t i = 0; i < t->count; i++)
        ((int32_t *)t->host)[i] += by;
    if (cache == FA_KV_DENSE)
        a->cache_len += FAR;
    else
        a->pages += FAR / PAGE;
}

/* All that is read, and the workspace, behind the cache that `memory` begins with: nothing of it is
 * where the cache's first entries would be. */
static void place_behind(gpu_case *g, unsigned char *memory, size_t bytes)
{
    void *data[16] = {0};
    size_t at = (size_t)ENTRIES * 2 * ROW_BYTES;
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        const oracle_tensor *t = &g->c.tensor[i];
        cr_assert_lt(at + t->bytes, bytes);
        gpu_upload(memory + at, t->host, t->bytes);
        data[i] = memory + at;
        at += (t->bytes + 255) / 256 * 256;
    }
    g->oracle->bind(&g->c, data);
    cr_assert_leq(at + g->workspace_bytes, bytes);
    g->c.args.workspace = memory + at;
}

/* Writes to the far end of a cache what was written to all of a small one. */
static void run_far_cache(fa_context *ctx, fa_lowrank_kv_spec spec)
{
    static const int64_t extra[ORACLE_LOWRANK_EXTRA_COUNT] = {ENTRIES, PAGE, ENTRIES / PAGE};
    const bool down = spec.form == FA_LOWRANK_DOWN;
    const char *const names[2] = {down ? "latent" : "k_out", down ? "rope_out" : "v_out"};
    const size_t bytes = (size_t)1 << 17;
    char end[ENTRIES * 2 * ROW_BYTES];
    fa_kernel *kernel = compile_lowrank(ctx, lowrank_bake(spec, 1));
    gpu_case g;
    make_lowrank(&g, lowrank_bake(spec, 1), spec, extra, 1);
    gpu_case_run(&g, kernel);
    unsigned char *memory = gpu_alloc(bytes);
    gpu_fill(memory, 0x5a, bytes);
    move_entries(&g, spec.cache);
    place_behind(&g, memory, bytes);
    const uintptr_t begin = (uintptr_t)memory - (uintptr_t)FAR * 2 * ROW_BYTES;
    const int64_t outer = spec.cache == FA_KV_DENSE ? 0 : PAGE * 2 * ROW;
    fa_lowrank_kv_args *a = &g.c.args.lowrank_kv;
    *(down ? &a->latent : &a->k_out) = (fa_tensor){(void *)begin, outer, ROW, 2 * ROW};
    *(down ? &a->rope_out : &a->v_out) =
        (fa_tensor){(void *)(begin + ROW_BYTES), outer, ROW, 2 * ROW};
    OK(fa_launch(kernel, &g.c.args, NULL));
    gpu_download(end, memory, sizeof end);
    for (int e = 0; e < ENTRIES * 2; e++) {
        const char *near = gpu_case_result(&g, names[e % 2]);
        cr_assert_arr_eq(end + e * ROW_BYTES, near + e / 2 * ROW_BYTES, ROW_BYTES, "%s of entry %d",
                         names[e % 2], e / 2);
    }
    gpu_free(memory);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

#define CACHED(of) SIZES, SHAPE(1, 21), .to_cache = true, .cache = of

Test(gpu_lowrank_kv_far, K25_caches_over_2_32_elements)
{
    static const fa_lowrank_kv_spec specs[] = {
        {CACHED(FA_KV_SLOTS), .plan = FA_LOWRANK_ONE_LAUNCH},
        {CACHED(FA_KV_BLOCK_TABLE), .plan = FA_LOWRANK_TWO_LAUNCHES},
        {CACHED(FA_KV_DENSE), .form = FA_LOWRANK_DOWN, .rope_dim = ROW},
    };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_lowrank(ctx, specs, 3, 1);
    for (size_t i = 0; i < 3; i++)
        run_far_cache(ctx, specs[i]);
    close_device(&f, ctx);
}
