/* What is around launches of cross_attention: the workspace, launches one after another, graphs,
 * requests in batches, refusals. */
#include "gpu_cross_attention.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static fa_cross_attention_spec sized(size_t plan, int batch, int seqlen_q, int seqlen_k)
{
    return cross_sized(cross_dynamic[plan], batch, seqlen_q, seqlen_k, 40);
}

/* --- the workspace --- */

/* Also by another launch of other sizes; whatever the one before left in it. */
Test(gpu_cross_attention_life, the_workspace_is_left_ready_for_the_next_launch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++) {
        fa_kernel *kernel = compile_cross(ctx, cross_dynamic[i]);
        gpu_case first, next;
        make_cross(&first, cross_dynamic[i], sized(i, 2, 70, 90), NULL, 1);
        memset(tensor_of(&first, "x_query")->host, 0xff, tensor_of(&first, "x_query")->bytes);
        memset(tensor_of(&first, "x_kv")->host, 0xff, tensor_of(&first, "x_kv")->bytes);
        gpu_case_upload(&first);
        gpu_case_launch(&first, kernel);
        make_cross(&next, cross_dynamic[i], sized(i, 1, 33, 70), NULL, 2);
        next.c.args.workspace = first.c.args.workspace;
        next.c.args.workspace_bytes = first.c.args.workspace_bytes;
        next.workspace = first.workspace;
        for (int again = 0; again < 3; again++)
            gpu_case_run(&next, kernel);
        next.workspace = NULL;
        gpu_case_free(&next);
        gpu_case_free(&first);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_cross_attention_life, a_workspace_that_is_too_small_is_refused)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_cross(ctx, cross_dynamic[0]);
    gpu_case g;
    make_cross(&g, cross_dynamic[0], sized(0, 1, 5, 9), NULL, 1);
    gpu_case_give_workspace(&g, kernel);
    gpu_case_upload(&g);
    g.c.args.workspace_bytes--;
    REFUSED(fa_launch(kernel, &g.c.args, NULL), FA_ERR_WORKSPACE, "fa_workspace_size");
    g.c.args.workspace_bytes++;
    g.c.args.workspace = NULL;
    REFUSED(fa_launch(kernel, &g.c.args, NULL), FA_ERR_WORKSPACE, "workspace = 0x0");
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- one launch after another --- */

/* Twice on one stream without waiting, and ten times from a graph: the bits of the first launch. */
static void run_repeated(fa_context *ctx, fa_cross_attention_spec spec,
                         fa_cross_attention_spec sizes)
{
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_stream stream = gpu_stream_create();
    gpu_case g;
    make_cross(&g, spec, sizes, NULL, 1);
    gpu_case_run(&g, kernel);
    const size_t bytes = tensor_of(&g, "out")->bytes;
    void *first = gpu_case_keep(&g, "out");
    gpu_case_upload(&g);
    for (int i = 0; i < 2; i++)
        OK(fa_launch(kernel, &g.c.args, stream));
    cr_assert(gpu_synchronize(stream, NULL));
    gpu_case_download(&g);
    cr_expect_arr_eq(gpu_case_result(&g, "out"), first, bytes);
    gpu_graph graph = gpu_case_capture(&g, kernel, stream, 2);
    for (int i = 0; i < 5; i++) {
        gpu_case_replay(&g, graph, stream, 1);
        gpu_case_check(&g, kernel);
        cr_expect_arr_eq(gpu_case_result(&g, "out"), first, bytes, "replay %d", i);
    }
    free(first);
    gpu_graph_destroy(graph);
    gpu_stream_destroy(stream);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_life, repeated_and_replayed_in_a_graph)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++)
        run_repeated(ctx, cross_dynamic[i], sized(i, 1, 65, 70));
    close_device(&f, ctx);
}

/* Enough blocks to fill a device several times. */
Test(gpu_cross_attention_life, large_ones_repeated)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int plan = FA_CROSS_ONE_LAUNCH; plan <= FA_CROSS_FEW_LAUNCHES; plan++)
        for (int type = 0; type < 3; type++) {
            const fa_cross_attention_spec spec = {CROSS_DYNAMIC, .dtype = (fa_dtype)type,
                                                  .plan = (fa_cross_plan)plan};
            run_repeated(ctx, spec, cross_sized(spec, 16, 300, 300, 256));
        }
    close_device(&f, ctx);
}

/* --- requests in batches --- */

/* Copies batch `which` of an input with `batches` of them. */
static void take_batch(gpu_case *to, gpu_case *from, const char *name, size_t which, size_t batches)
{
    oracle_tensor *a = tensor_of(to, name);
    const oracle_tensor *b = tensor_of(from, name);
    const size_t bytes = b->bytes / batches;
    cr_assert_eq(a->bytes, bytes);
    memcpy(a->host, (const char *)b->host + which * bytes, bytes);
}

static void run_alone(fa_context *ctx, fa_cross_attention_spec spec)
{
    enum { BATCHES = 3 };
    static const char *const weights[] = {"w_q", "w_k", "w_v", "w_out"};
    fa_kernel *kernel = compile_cross(ctx, spec);
    gpu_case many;
    make_cross(&many, spec, cross_sized(spec, BATCHES, 21, 70, 40), NULL, 1);
    gpu_case_run(&many, kernel);
    for (size_t b = 0; b < BATCHES; b++) {
        gpu_case one;
        make_cross(&one, spec, cross_sized(spec, 1, 21, 70, 40), NULL, 2);
        for (size_t i = 0; i < COUNT(weights); i++)
            take_batch(&one, &many, weights[i], 0, 1);
        take_batch(&one, &many, "x_query", b, BATCHES);
        take_batch(&one, &many, "x_kv", b, BATCHES);
        oracle_cross_attention_expect(&one.c);
        gpu_case_run(&one, kernel);
        const size_t bytes = tensor_of(&one, "out")->bytes;
        cr_expect_arr_eq(gpu_case_result(&one, "out"),
                         (const char *)gpu_case_result(&many, "out") + b * bytes, bytes,
                         "request %zu", b);
        gpu_case_free(&one);
    }
    gpu_case_free(&many);
    fa_kernel_release(kernel);
}

Test(gpu_cross_attention_life, K58_alone_as_in_a_batch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 2; i++)
        run_alone(ctx, cross_dynamic[i]);
    close_device(&f, ctx);
}

Test(gpu_cross_attention_life, K58_alone_as_in_a_batch_16_bits)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 4; i++)
        run_alone(ctx, (fa_cross_attention_spec){CROSS_DYNAMIC, .dtype = (fa_dtype)(1 + i / 2),
                                                 .plan = (fa_cross_plan)(1 + i % 2)});
    close_device(&f, ctx);
}

/* --- refusals --- */

/* dropout = 0 is none: the very same kernel. */
Test(gpu_cross_attention_life, no_dropout_but_none)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_spec spec = cross_spec(cross_dynamic[0]);
    fa_kernel *plain = compile_cross(ctx, cross_dynamic[0]), *kernel = NULL;
    fa_kernel_info_t info[2] = {{.size = sizeof info[0]}, {.size = sizeof info[0]}};
    spec.cross_attention.dropout = -0.0;
    OK(fa_compile(ctx, &spec, &kernel));
    OK(fa_kernel_info(plain, &info[0]));
    OK(fa_kernel_info(kernel, &info[1]));
    cr_expect_str_eq(info[0].key, info[1].key);
    fa_kernel_release(kernel);
    spec.cross_attention.dropout = 0.1;
    REFUSED(fa_compile(ctx, &spec, &kernel), FA_ERR_UNSUPPORTED, "dropout = 0.1");
    cr_expect_null(kernel);
    fa_kernel_release(plain);
    close_device(&f, ctx);
}

/* Before anything is launched. */
Test(gpu_cross_attention_life, args_that_contradict_the_kernel_are_refused)
{
    const fa_cross_attention_spec spec = {CROSS_CANONICAL, .plan = FA_CROSS_ONE_LAUNCH};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *kernel = compile_cross(ctx, spec);
    size_t bytes = 0;
    fa_args args = FA_ARGS_INIT(FA_OP_CROSS_ATTENTION);
    args.cross_attention.seqlen_k = 127;
    REFUSED(fa_launch(kernel, &args, NULL), FA_ERR_BAKED, "seqlen_k = 127");
    REFUSED(fa_workspace_size(kernel, &args, &bytes), FA_ERR_BAKED, "seqlen_k = 127");
    args.cross_attention.seqlen_k = 128;
    REFUSED(fa_launch(kernel, &args, NULL), FA_ERR_WORKSPACE, "workspace");
    OK(fa_workspace_size(kernel, &args, &bytes));
    cr_expect_gt(bytes, 0u);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
