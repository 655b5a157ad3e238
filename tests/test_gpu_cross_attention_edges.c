/* Seldom cases of cross_attention on a device: ragged lengths, sizes, no keys. Large scores are in
 * test_gpu_cross_attention_numbers.c. */
#include "gpu_cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

/* Compiles, runs one case of these sizes and forgets. */
static void run_sizes(fa_context *ctx, fa_cross_attention_spec spec, int batch, int seqlen_q,
                      int seqlen_k, int model_dim, const int64_t *extra)
{
    fa_kernel *kernel = compile_cross(ctx, spec);
    run_cross(kernel, spec, cross_sized(spec, batch, seqlen_q, seqlen_k, model_dim), extra, 1);
    fa_kernel_release(kernel);
}

/* --- sizes --- */

/* Each `step`th of the 25 pairs; with 4 every length, and all four pairs of the first and last. */
static void run_lengths(fa_cross_attention_spec spec, int step)
{
    static const int queries[] = {1, 3, 63, 64, 65}, keys[] = {1, 31, 127, 128, 129};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_cross(ctx, spec);
    for (int n = 0; n < 25; n += step)
        run_cross(kernel, spec, cross_sized(spec, 1 + n % 2, queries[n % 5], keys[n / 5], 40), NULL,
                  (uint64_t)n + 1);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_edges, lengths_in_one_launch)
{
    run_lengths(cross_dynamic[0], 1);
}

Test(gpu_cross_attention_edges, lengths_in_few_launches)
{
    run_lengths(cross_dynamic[1], 1);
}

Test(gpu_cross_attention_edges, lengths_bf16)
{
    run_lengths((fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = FA_BF16}, 1);
}

Test(gpu_cross_attention_edges, lengths_f16)
{
    run_lengths((fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = FA_F16}, 1);
}

Test(gpu_cross_attention_edges, some_lengths_f16_in_one_launch)
{
    run_lengths(
        (fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = FA_F16, .plan = FA_CROSS_ONE_LAUNCH}, 4);
}

Test(gpu_cross_attention_edges, some_lengths_f16_in_few_launches)
{
    run_lengths(
        (fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = FA_F16, .plan = FA_CROSS_FEW_LAUNCHES},
        4);
}

/* Any model_dim by one kernel. */
Test(gpu_cross_attention_edges, ragged_model_dims)
{
    static const int dims[] = {1, 2, 31, 32, 33, 100, 257};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_cross(ctx, cross_dynamic[i]);
        for (size_t n = 0; n < COUNT(dims); n++)
            run_cross(kernel, cross_dynamic[i], cross_sized(cross_dynamic[i], 1, 5, 9, dims[n]),
                      NULL, n + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* As models have them: model_dim is heads * head_dim, and baked. */
static void run_model_dims(const int *dims, size_t count, fa_dtype dtype, int head_dim)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2 * count; i++) {
        const fa_cross_attention_spec spec = {.dtype = dtype,
                                              .rotation = PAIRS,
                                              .plan = (fa_cross_plan)(1 + i % 2),
                                              .model_dim = dims[i / 2],
                                              .heads_q = dims[i / 2] / head_dim,
                                              .heads_k = dims[i / 2] / head_dim,
                                              .head_dim = head_dim};
        run_sizes(ctx, spec, 2, 33, 65, dims[i / 2], NULL);
    }
    close_device(&f, ctx);
}

Test(gpu_cross_attention_edges, model_dim_128)
{
    run_model_dims((const int[]){128}, 1, FA_F32, 32);
}

Test(gpu_cross_attention_edges, large_model_dims_f32)
{
    run_model_dims((const int[]){256, 512, 1024, 2048}, 4, FA_F32, 64);
}

Test(gpu_cross_attention_edges, large_model_dims_bf16)
{
    run_model_dims((const int[]){256, 512, 1024, 2048}, 4, FA_BF16, 128);
}

/* All sizes baked, and few tokens: so few that tiles are small. */
static void run_few_tokens(fa_dtype dtype, fa_cross_plan plan, int model_dim, int head_dim)
{
    const int heads = model_dim / head_dim;
    const fa_cross_attention_spec spec = {.dtype = dtype,
                                          .rotation = PAIRS,
                                          .plan = plan,
                                          .heads_q = heads,
                                          .heads_k = heads,
                                          .head_dim = head_dim,
                                          .batch = 1,
                                          .seqlen_q = 1,
                                          .seqlen_k = 3,
                                          .model_dim = model_dim};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_sizes(ctx, spec, 1, 1, 3, model_dim, NULL);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_edges, few_tokens_of_512_in_heads_of_64)
{
    run_few_tokens(FA_F32, FA_CROSS_ONE_LAUNCH, 512, 64);
}

Test(gpu_cross_attention_edges, few_tokens_of_512_in_heads_of_128)
{
    run_few_tokens(FA_F16, FA_CROSS_ONE_LAUNCH, 512, 128);
}

Test(gpu_cross_attention_edges, few_tokens_of_1024_in_heads_of_64)
{
    run_few_tokens(FA_BF16, FA_CROSS_ONE_LAUNCH, 1024, 64);
}

Test(gpu_cross_attention_edges, few_tokens_of_1024_in_heads_of_128)
{
    run_few_tokens(FA_F32, FA_CROSS_FEW_LAUNCHES, 1024, 128);
}

/* Each size of head by both plans, which not every size has. */
static void run_head_dims(const int *dims, size_t count, fa_dtype dtype)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2 * count; i++) {
        fa_kernel *kernel = NULL;
        const fa_cross_attention_spec cross = {.dtype = dtype,
                                               .rotation = dims[i / 2] % 2 ? FA_KV_ROTATE_NONE
                                                           : i % 4 < 2     ? HALF
                                                                           : PAIRS,
                                               .plan = (fa_cross_plan)(1 + i % 2),
                                               .heads_q = 2,
                                               .heads_k = 1,
                                               .head_dim = dims[i / 2]};
        const fa_spec spec = cross_spec(cross);
        const fa_status status = fa_compile(ctx, &spec, &kernel);
        if (status == FA_ERR_UNSUPPORTED && cross.plan == FA_CROSS_ONE_LAUNCH)
            continue;
        cr_assert_eq(status, FA_OK, "%s", fa_last_error());
        run_cross(kernel, cross, cross_sized(cross, 2, 17, 35, 48), NULL, i + 1);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* In lists that compile side by side. */
static const int usual_head_dims[] = {16, 32, 64, 96, 128, 256},
                 unusual_head_dims[] = {1, 2, 6, 40, 67, 160};

Test(gpu_cross_attention_edges, head_dims_f32)
{
    run_head_dims(usual_head_dims, COUNT(usual_head_dims), FA_F32);
}

Test(gpu_cross_attention_edges, head_dims_unusual_f32)
{
    run_head_dims(unusual_head_dims, COUNT(unusual_head_dims), FA_F32);
}

Test(gpu_cross_attention_edges, head_dims_f16)
{
    run_head_dims(usual_head_dims, COUNT(usual_head_dims), FA_F16);
}

Test(gpu_cross_attention_edges, head_dims_unusual_f16)
{
    run_head_dims(unusual_head_dims, COUNT(unusual_head_dims), FA_F16);
}

Test(gpu_cross_attention_edges, head_dims_bf16)
{
    run_head_dims(usual_head_dims, COUNT(usual_head_dims), FA_BF16);
}

Test(gpu_cross_attention_edges, head_dims_unusual_bf16)
{
    run_head_dims(unusual_head_dims, COUNT(unusual_head_dims), FA_BF16);
}

Test(gpu_cross_attention_edges, an_odd_head_dim)
{
    run_head_dims((const int[]){5}, 1, FA_F32);
}

/* --- rows that see nothing --- */

/* Their heads' outputs are 0, so that the output is the bias: spelled out, as the reference says. */
static void expect_bias(gpu_case *g, int dead)
{
    const int rows = g->c.args.cross_attention.seqlen_q, dim = g->c.args.cross_attention.model_dim;
    const float *out = gpu_case_result(g, "out"), *bias = tensor_of(g, "b_out")->host;
    for (int i = 0; i < rows; i++)
        cr_expect_eq(memcmp(out + i * dim, bias, (size_t)dim * 4) == 0, i < dead, "row %d", i);
}

static void run_dead_rows(fa_context *ctx, fa_cross_attention_spec spec, int seqlen_q, int seqlen_k,
                          int dead)
{
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    make_cross(&g, spec, cross_sized(spec, 1, seqlen_q, seqlen_k, 40), NULL, 1);
    gpu_case_run(&g, kernel);
    expect_bias(&g, dead);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_edges, K01_K07_rows_before_the_diagonal)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_cross_attention_spec spec = {CROSS_DYNAMIC, .mask = FA_ATTENTION_CAUSAL,
                                          .bias_out = true, .plan = FA_CROSS_ONE_LAUNCH};
    run_dead_rows(ctx, spec, 5, 2, 3);
    run_dead_rows(ctx, spec, 150, 20, 130);
    run_dead_rows(ctx, spec, 2, 5, 0);
    close_device(&f, ctx);
}

/* Nothing of the keys is looked at. */
Test(gpu_cross_attention_edges, K50_K53_no_keys)
{
    static const fa_cross_attention_spec specs[] = {
        {CROSS_DYNAMIC, .mask = FA_ATTENTION_CAUSAL, .bias_out = true, .plan = FA_CROSS_ONE_LAUNCH},
        {CROSS_DYNAMIC, .bias = true, .bias_out = true},
        {CROSS_DYNAMIC, .bias = true, .bias_out = true, .form = FA_CROSS_QUERIES}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < COUNT(specs); i++) {
        fa_kernel *kernel = compile_cross(ctx, specs[i]);
        gpu_case g;
        make_cross(&g, specs[i], cross_sized(specs[i], 2, 70, 0, 40), NULL, 1);
        gpu_case_give_workspace(&g, kernel);
        gpu_case_upload(&g);
        fa_cross_attention_args *a = &g.c.args.cross_attention;
        a->x_kv.data = a->w_k.data = a->w_v.data = a->k.data = a->v.data = NULL;
        a->b_k = a->b_v = NULL;
        gpu_case_launch(&g, kernel);
        gpu_case_check(&g, kernel);
        expect_bias(&g, 70);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_cross_attention_edges, empty_work)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_cross(ctx, cross_dynamic[i]);
        fa_args args = FA_ARGS_INIT(FA_OP_CROSS_ATTENTION);
        size_t bytes = 1;
        OK(fa_workspace_size(kernel, &args, &bytes));
        cr_expect_eq(bytes, 0u);
        OK(fa_launch(kernel, &args, NULL));
        args.cross_attention = (fa_cross_attention_args){.batch = 2, .seqlen_k = 5, .model_dim = 8};
        OK(fa_launch(kernel, &args, NULL));
        cr_assert(gpu_synchronize(NULL, NULL));
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- 64-bit addresses --- */

/* x_query, x_kv and out of both batches, those of the second so many bytes behind the first's. */
static void run_far_batches(gpu_case *g, const fa_kernel *kernel, char *far, size_t apart)
{
    static const size_t room = 1 << 16;
    static const char *const names[] = {"x_query", "x_kv", "out"};
    fa_cross_attention_args *a = &g->c.args.cross_attention;
    fa_tensor *const moved[] = {&a->x_query, &a->x_kv, &a->out};
    const size_t bytes = tensor_of(g, "out")->bytes / 2;
    char back[1 << 16];
    for (size_t i = 0; i < 3; i++) {
        const oracle_tensor *t = tensor_of(g, names[i]);
        cr_assert_leq(t->bytes / 2, room);
        *moved[i] = (fa_tensor){.data = far + i * room,
                                .stride_batch = (int64_t)(apart / oracle_element_bytes(t->dtype)),
                                .stride_token = a->model_dim};
        for (size_t b = 0; b < 2 && i < 2; b++)
            gpu_upload(far + i * room + b * apart, (char *)t->host + b * (t->bytes / 2),
                       t->bytes / 2);
    }
    OK(fa_launch(kernel, &g->c.args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
    for (size_t b = 0; b < 2; b++) {
        gpu_download(back, far + 2 * room + b * apart, bytes);
        cr_expect_arr_eq(back, (char *)gpu_case_result(g, "out") + b * bytes, bytes, "batch %zu",
                         b);
    }
}

/* By both plans, batches over 2^31 elements apart equal batches one after another. */
static void run_apart(fa_dtype dtype)
{
    const size_t element = oracle_element_bytes(dtype);
    const size_t apart = element * (((size_t)1 << 31) + (1 << 18)), bytes = apart + (1 << 20);
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    if (free_memory() < bytes + ((size_t)1 << 30))
        cr_skip_test("needs %zu bytes of device memory", bytes);
    char *far = gpu_alloc(bytes);
    for (size_t i = 0; i < 2; i++) {
        fa_cross_attention_spec spec = cross_dynamic[i];
        spec.dtype = dtype;
        fa_kernel *kernel = compile_cross(ctx, spec);
        gpu_case g;
        make_cross(&g, spec, cross_sized(spec, 2, 17, 35, 40), NULL, 1);
        gpu_case_run(&g, kernel);
        run_far_batches(&g, kernel, far, apart);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    gpu_free(far);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_edges, large_K12_batches_over_2_31_elements_apart)
{
    run_apart(FA_BF16);
}

Test(gpu_cross_attention_edges, large_K12_batches_over_2_31_floats_apart)
{
    run_apart(FA_F32);
}

/* Batches that lie over 2^31 elements behind the first, in every tensor and in the workspace, equal
 * one by itself: too much for the reference. */
Test(gpu_cross_attention_edges, large_K12_last_batch)
{
    enum { T = 64, C = 16, ROW = C * 2, REQUEST = T * ROW };
    const int batch = (1 << 21) + 1;
    const size_t bytes = (size_t)batch * REQUEST;
    const fa_cross_attention_spec spec = {
        .dtype = FA_BF16, .rotation = PAIRS, .heads_q = 1, .heads_k = 1, .head_dim = 16};
    skip_under_tool("racecheck", "its blocks are those of other tests, millions of them");
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    if (free_memory() < 7 * bytes)
        cr_skip_test("needs 31 GB of device memory");
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case g;
    make_cross(&g, spec, cross_sized(spec, 1, T, T, C), NULL, 1);
    gpu_case_run(&g, kernel);
    fa_args args = g.c.args;
    fa_cross_attention_args *a = &args.cross_attention;
    char *x_query = gpu_alloc(bytes), *x_kv = gpu_alloc(bytes), *out = gpu_alloc(bytes);
    unsigned char back[REQUEST];
    gpu_fill(x_query, 0, bytes);
    gpu_fill(x_kv, 0, bytes);
    gpu_upload(x_query + bytes - REQUEST, tensor_of(&g, "x_query")->host, REQUEST);
    gpu_upload(x_kv + bytes - REQUEST, tensor_of(&g, "x_kv")->host, REQUEST);
    a->batch = batch;
    a->x_query.data = x_query;
    a->x_kv.data = x_kv;
    a->out.data = out;
    OK(fa_workspace_size(kernel, &args, &args.workspace_bytes));
    args.workspace = gpu_alloc(args.workspace_bytes);
    gpu_fill(args.workspace, 0, args.workspace_bytes);
    OK(fa_launch(kernel, &args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
    gpu_download(back, out + bytes - REQUEST, REQUEST);
    cr_expect_arr_eq(back, gpu_case_result(&g, "out"), REQUEST);
    gpu_free(args.workspace);
    gpu_free(x_query);
    gpu_free(x_kv);
    gpu_free(out);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
