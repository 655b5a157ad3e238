/* cross_attention on a device where tensors lie in memory as their owners have them: every alignment,
 * rows, heads and batches that lie apart, heads first, one stream for all batches. */
#include "gpu_cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

/* --- alignment --- */

/* Each tensor by itself off its alignment, and rows apart, with NaN between those that are read. */
static void run_places(fa_context *ctx, fa_cross_attention_spec spec)
{
    static const int64_t pads[] = {1, 2, 3, 4, 8, 24};
    const fa_cross_attention_spec sizes = cross_sized(spec, 2, 5, 19, 40);
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    for (size_t i = 0; i < COUNT(pads); i++)
        run_cross(kernel, spec, sizes, (const int64_t[ORACLE_CROSS_EXTRA_COUNT]){pads[i], 1, 1},
                  i + 1);
    make_cross(&g, spec, sizes, NULL, 1);
    const size_t tensors = g.c.tensor_count;
    gpu_case_free(&g);
    for (size_t i = 0; i < 3 * tensors; i++) {
        make_cross(&g, spec, sizes, NULL, 1);
        g.shift[i / 3] = 1 + (int)(i % 3);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
    }
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_places, K04_K34_places_f32)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int form = 0; form < 3; form++)
        run_places(ctx, (fa_cross_attention_spec){CROSS_DYNAMIC, .form = (fa_cross_form)form,
                                                  .bias = true, .bias_out = true});
    close_device(&f, ctx);
}

Test(gpu_cross_attention_places, K04_K34_places_16_bits)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int form = 0; form < 3; form++)
        run_places(ctx,
                   (fa_cross_attention_spec){.dtype = form ? FA_F16 : FA_BF16,
                                             .form = (fa_cross_form)form,
                                             .plan = form ? FA_CROSS_AUTO : FA_CROSS_ONE_LAUNCH,
                                             .rotation = HALF,
                                             .bias = true,
                                             .bias_out = true,
                                             .heads_q = 3,
                                             .heads_k = 3,
                                             .head_dim = 24});
    close_device(&f, ctx);
}

Test(gpu_cross_attention_places, K04_K34_places_of_tables)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_places(ctx, (fa_cross_attention_spec){CROSS_DYNAMIC, .angles = FA_ROPE_TABLES});
    run_places(ctx, (fa_cross_attention_spec){.rotation = HALF,
                                              .angles = FA_ROPE_FREQUENCIES,
                                              .plan = FA_CROSS_ONE_LAUNCH,
                                              .heads_q = 2,
                                              .heads_k = 1,
                                              .head_dim = 40,
                                              .rotary_dim = 20});
    close_device(&f, ctx);
}

/* --- strides --- */

/* Gaps behind each row, head and batch that keep 16-byte accesses, or allow none; of batches that end
 * with a tile, within one, and that are many in one. */
static void run_gaps(fa_context *ctx, fa_cross_attention_spec spec, int heads_first)
{
    static const struct {
        int batch, seqlen_q, seqlen_k, pad;
    } cases[] = {{3, 64, 128, 8}, {2, 33, 70, 8}, {40, 1, 3, 8}, {3, 64, 64, 1}, {2, 21, 35, 0}};
    fa_kernel *kernel = compile_cross(ctx, spec);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int64_t extra[ORACLE_CROSS_EXTRA_COUNT] = {cases[i].pad, 1,          1, 0, 3, 5, 0,
                                                         4096,         heads_first};
        run_cross(kernel, spec,
                  cross_sized(spec, cases[i].batch, cases[i].seqlen_q, cases[i].seqlen_k, 40),
                  extra, i + 1);
    }
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_places, gaps_between_batches)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++)
        run_gaps(ctx, cross_dynamic[i], 0);
    run_gaps(ctx, (fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = FA_BF16}, 0);
    close_device(&f, ctx);
}

/* As caches have them: [B, G, Tk, D]. */
Test(gpu_cross_attention_places, K21_kept_keys_heads_first)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 4; i++)
        run_gaps(ctx,
                 (fa_cross_attention_spec){.dtype = i % 2 ? FA_F16 : FA_F32,
                                           .form = i < 2 ? FA_CROSS_KEYS : FA_CROSS_QUERIES,
                                           .rotation = i % 2 ? HALF : PAIRS,
                                           .bias = true,
                                           .heads_q = 4,
                                           .heads_k = 2,
                                           .head_dim = 32},
                 1);
    close_device(&f, ctx);
}

/* Heads that no vector divides: stores must not reach from one into the next. */
Test(gpu_cross_attention_places, kept_keys_heads_first_of_an_odd_head_dim)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_gaps(ctx,
             (fa_cross_attention_spec){
                 .form = FA_CROSS_KEYS, .heads_k = 4, .head_dim = 27, .heads_q = 4},
             1);
    close_device(&f, ctx);
}

/* One source for all batches: a stride of 0 gives what copies of it give. */
static void run_one_source(fa_context *ctx, fa_cross_attention_spec spec, int seqlen_k)
{
    enum { BATCHES = 3, DIM = 40 };
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    make_cross(&g, spec, cross_sized(spec, BATCHES, 5, seqlen_k, DIM), NULL, 1);
    oracle_tensor *x_kv = tensor_of(&g, "x_kv");
    const size_t bytes = x_kv->bytes / BATCHES;
    for (size_t b = 1; b < BATCHES; b++)
        memcpy((char *)x_kv->host + b * bytes, x_kv->host, bytes);
    oracle_cross_attention_expect(&g.c);
    memset((char *)x_kv->host + bytes, 0xff, 2 * bytes); /* NaN, which nothing may read */
    g.c.args.cross_attention.x_kv.stride_token = DIM;
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_places, K22_one_source_for_all_batches)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 2; i++)
        for (int seqlen_k = 35; seqlen_k <= 64; seqlen_k += 29)
            run_one_source(ctx, cross_dynamic[i], seqlen_k);
    close_device(&f, ctx);
}
