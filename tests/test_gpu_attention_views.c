/* attention on a device: views of every kind, and results that may not depend on anything else. */
#include "gpu_attention.h"
#include "oracle/attention_sizes.h"

/* Kernels that test_gpu_attention.c needs too. */
static const fa_attention_spec causal = {
    .mask = FA_ATTENTION_CAUSAL, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};
static const fa_attention_spec half = {
    .dtype = FA_F16, .tiles = FA_ATTENTION_TILES_LARGE, .head_dim = 32, .lse = true};

/* The output's elements of one batch, in the order of heads and queries. */
static void *collect_out(const gpu_case *g)
{
    const fa_attention_args *a = &g->c.args.attention;
    const int64_t dim = g->c.spec.attention.head_dim;
    const lattice at = strides_of(&g->c, &a->out, a->heads_q, a->seqlen_q, dim);
    const uint16_t *from = gpu_case_result(g, "out");
    uint16_t *to = malloc((size_t)(a->heads_q * a->seqlen_q * dim) * sizeof *to);
    cr_assert_not_null(to);
    for (int64_t h = 0; h < a->heads_q; h++)
        for (int64_t n = 0; n < a->seqlen_q; n++)
            memcpy(to + (h * a->seqlen_q + n) * dim, from + h * at.head + n * at.token,
                   (size_t)dim * sizeof *to);
    return to;
}

/* Both orders of dimensions, NaN between rows in what is read, poison in what is written: bits are
 * those of packed tensors, though accesses are narrower. */
Test(gpu_attention_views, K04_K21_K34_views_give_the_same_bits)
{
    static const int64_t pads[] = {0, 1, 2, 8, 24};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    void *packed = NULL;
    for (int i = 0; i < 10; i++) {
        const int64_t extra[ORACLE_ATTENTION_EXTRA_COUNT] = {pads[i / 2], 2};
        fa_attention_spec spec = half;
        gpu_case g;
        spec.heads_first = i % 2;
        fa_kernel *kernel = compile_attention(ctx, spec);
        make_attention(&g, spec, attention_sized(spec, 1, 4, 2, 33, 65), extra, 3);
        gpu_case_run(&g, kernel);
        void *out = collect_out(&g);
        packed = packed ? packed : out;
        cr_expect_eq(memcmp(out, packed, sizeof(uint16_t[4][33][32])), 0, "layout %d", i);
        if (out != packed)
            free(out);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    free(packed);
    close_device(&f, ctx);
}

/* Of all batches and heads one and the same keys. */
Test(gpu_attention_views, K22_expanded_keys_equal_copies)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case g;
    make_attention(&g, half, attention_sized(half, 3, 2, 2, 5, 33), NULL, 1);
    oracle_tensor *k = &g.c.tensor[gpu_case_index(&g, "k")];
    const oracle_tensor *out = &g.c.tensor[gpu_case_index(&g, "out")];
    const size_t row = 32 * 2;
    for (size_t i = 0; i < k->bytes / row; i++)
        memmove((char *)k->host + i * row, (char *)k->host + i / 2 % 33 * 2 * row, row);
    oracle_attention_expect(&g.c);
    gpu_case_run(&g, kernel);
    char *copied = malloc(out->bytes);
    cr_assert_not_null(copied);
    memcpy(copied, gpu_case_result(&g, "out"), out->bytes);
    fa_tensor *view = &g.c.args.attention.k;
    *view = (fa_tensor){.stride_batch = 0, .stride_head = 0, .stride_token = 2 * 32};
    gpu_case_run(&g, kernel);
    cr_expect_arr_eq(gpu_case_result(&g, "out"), copied, out->bytes);
    free(copied);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* An absurd stride of a dimension of size 1. */
Test(gpu_attention_views, K32_strides_of_single_dimensions_are_ignored)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case g;
    make_attention(&g, half, attention_sized(half, 1, 1, 1, 5, 33), NULL, 1);
    g.c.args.attention.q =
        (fa_tensor){.stride_batch = INT64_MAX, .stride_head = -7, .stride_token = 32};
    g.c.args.attention.k =
        (fa_tensor){.stride_batch = INT64_MIN, .stride_head = 3, .stride_token = 32};
    gpu_case_run(&g, kernel);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Batches 2^30 elements apart: every offset of the last one is over 2^31. */
Test(gpu_attention_views, large_K11_K12_offsets)
{
    static const char *const names[] = {"q", "k", "v", "out"};
    const size_t apart = (size_t)1 << 31; /* bytes */
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    if (free_memory() < (size_t)28 << 30)
        cr_skip_test("less than 28 GB of device memory are free");
    fa_attention_spec spec = half;
    spec.lse = false;
    fa_kernel *kernel = compile_attention(ctx, spec);
    gpu_case g;
    make_attention(&g, spec, attention_sized(spec, 4, 1, 1, 33, 65), NULL, 1);
    fa_attention_args *a = &g.c.args.attention;
    fa_tensor *const views[] = {&a->q, &a->k, &a->v, &a->out};
    for (int i = 0; i < 4; i++) {
        const oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, names[i])];
        *views[i] = (fa_tensor){gpu_alloc(3 * apart + t->bytes / 4), INT64_C(1) << 30, 32, 32};
        for (size_t b = 0; b < 4; b++)
            gpu_upload((char *)views[i]->data + b * apart, (char *)t->host + b * t->bytes / 4,
                       t->bytes / 4);
    }
    OK(fa_launch(kernel, &g.c.args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
    const oracle_tensor *out = &g.c.tensor[gpu_case_index(&g, "out")];
    char *back = malloc(out->bytes);
    cr_assert_not_null(back);
    for (size_t b = 0; b < 4; b++)
        gpu_download(back + b * out->bytes / 4, (char *)a->out.data + b * apart, out->bytes / 4);
    cr_expect_eq(oracle_compare(&g.c, out, back).bad, 0u);
    for (int i = 0; i < 4; i++)
        gpu_free(views[i]->data);
    free(back);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- bits that do not depend on what else is there --- */

/* What one request of `many` is made of becomes all of `one`. */
static void take_request(gpu_case *one, gpu_case *many, size_t request)
{
    static const char *const inputs[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        const oracle_tensor *from = &many->c.tensor[gpu_case_index(many, inputs[i])];
        const oracle_tensor *to = &one->c.tensor[gpu_case_index(one, inputs[i])];
        memcpy(to->host, (const char *)from->host + request * to->bytes, to->bytes);
    }
}

/* Each request of a batch of 7 by itself, twice. */
Test(gpu_attention_views, K58_alone_as_in_a_batch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, half);
    gpu_case many, one;
    make_attention(&many, half, attention_sized(half, 7, 2, 2, 33, 129), NULL, 1);
    make_attention(&one, half, attention_sized(half, 1, 2, 2, 33, 129), NULL, 1);
    gpu_case_run(&many, kernel);
    const size_t bytes = one.c.tensor[gpu_case_index(&one, "out")].bytes;
    for (size_t request = 0; request < 7; request++) {
        take_request(&one, &many, request);
        gpu_case_upload(&one);
        for (int i = 0; i < 2; i++) {
            gpu_case_launch(&one, kernel);
            cr_expect_eq(memcmp(gpu_case_result(&one, "out"),
                                (char *)gpu_case_result(&many, "out") + request * bytes, bytes),
                         0, "request %zu", request);
        }
    }
    gpu_case_free(&many);
    gpu_case_free(&one);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* The query that sees all keys does so alone as behind others. */
Test(gpu_attention_views, a_decode_step_equals_the_last_row_of_a_prefill)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_attention(ctx, causal);
    gpu_case prefill, step;
    make_attention(&prefill, causal, attention_sized(causal, 1, 1, 1, 70, 70), NULL, 1);
    make_attention(&step, causal, attention_sized(causal, 1, 1, 1, 1, 70), NULL, 1);
    const size_t row = 32 * sizeof(float);
    memcpy(floats_of(&step, "q"), floats_of(&prefill, "q") + 69 * 32, row);
    gpu_case_run(&prefill, kernel);
    gpu_case_upload(&step);
    gpu_case_launch(&step, kernel);
    cr_expect_eq(memcmp(gpu_case_result(&step, "out"),
                        (float *)gpu_case_result(&prefill, "out") + 69 * 32, row),
                 0);
    gpu_case_free(&prefill);
    gpu_case_free(&step);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
