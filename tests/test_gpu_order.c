/* Launches in an order that programmatic dependent launch leaves open: a kernel that lets its
 * successor start at once, and only then, late, writes everything that an operation's launch reads
 * and writes. The operation has to wait for it, whatever it loads ahead. */
#include "gpu_case.h"
#include "oracle/linear.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define MOST 16 /* tensors of a case */

/* Parameter of the kernel below. */
typedef struct copies {
    const unsigned char *from[MOST];
    unsigned char *to[MOST];
    unsigned long long bytes[MOST];
} copies;

static const char late_copy[] =
    "#include \"fajit/order.cuh\"\n"
    "struct copies {\n"
    "    const unsigned char *from[16];\n"
    "    unsigned char *to[16];\n"
    "    unsigned long long bytes[16];\n"
    "};\n"
    "__global__ void late_copy(const copies c)\n"
    "{\n"
    "    fajit::let_successor_start();\n"
    "    fajit::wait_for_predecessor();\n"
    "#if __CUDA_ARCH__ >= 700\n"
    "    for (int i = 0; i < 200; i++)\n"
    "        __nanosleep(1000);\n"
    "#endif\n"
    "    for (int n = 0; n < 16; n++)\n"
    "        for (unsigned long long i = threadIdx.x; i < c.bytes[n]; i += blockDim.x)\n"
    "            c.to[n][i] = c.from[n][i];\n"
    "}\n";

static fa_kernel *compile_late_copy(fa_context *ctx)
{
    return compile(ctx, &(fa_template_spec){.name = "late_copy.cu",
                                            .source = late_copy,
                                            .entry = "late_copy",
                                            .programmatic_launch = true});
}

static void launch_late_copy(const fa_kernel *kernel, const copies *c)
{
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    const fa_param param = {c, sizeof *c};
    args.tmpl = (fa_template_args){.grid = {1}, .block = {128}, .params = &param, .param_count = 1};
    OK(fa_launch(kernel, &args, NULL));
}

#define STALE                                                                                      \
    0x3f /* bytes of a number in every type: of NaN, linear would compute again, and later */

/* The case as it was uploaded is moved aside. */
static copies move_aside(gpu_case *g)
{
    copies c = {0};
    cr_assert_leq(g->c.tensor_count, MOST);
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        const oracle_tensor *t = &g->c.tensor[i];
        unsigned char *aside = gpu_alloc(t->bytes + 1),
                      *place = g->memory[i] + gpu_case_offset(g, i);
        gpu_upload(aside, t->host, t->bytes);
        gpu_fill(place, STALE, t->bytes);
        c.from[i] = aside;
        c.to[i] = place;
        c.bytes[i] = t->bytes;
    }
    return c;
}

static void run_behind_a_late_copy(fa_context *ctx, const fa_kernel *late, fa_spec spec,
                                   const int64_t *extra)
{
    fa_kernel *kernel = NULL;
    gpu_case g;
    gpu_case_make(&g, &spec, &spec, extra, 1);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    gpu_case_upload(&g);
    gpu_case_give_workspace(&g, kernel);
    const copies c = move_aside(&g);
    launch_late_copy(late, &c);
    gpu_case_launch(&g, kernel);
    gpu_case_check(&g, kernel);
    for (size_t i = 0; i < g.c.tensor_count; i++)
        gpu_free((void *)(uintptr_t)c.from[i]);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

/* `extra`: sizes of the cases, or NULL. */
static void run_all_with(const fa_spec *specs, size_t count, const int64_t *extra)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_kernel *late = compile_late_copy(ctx);
    for (size_t i = 0; i < count; i++)
        run_behind_a_late_copy(ctx, late, specs[i], extra);
    fa_kernel_release(late);
    close_device(&f, ctx);
}

static void run_all(const fa_spec *specs, size_t count)
{
    run_all_with(specs, count, NULL);
}

#define SPEC(OP) .size = sizeof(fa_spec), .op = (OP)

Test(gpu_order, rope_and_kv_update_wait)
{
    static const fa_spec specs[] = {
        {SPEC(FA_OP_ROPE),
         .rope = {.head_dim = 32, .batch = 2, .heads_q = 2, .heads_k = 1, .seqlen = 5}},
        {SPEC(FA_OP_KV_UPDATE), .kv_update = {.head_dim = 32,
                                              .batch = 2,
                                              .heads = 2,
                                              .tokens = 3,
                                              .cache_len = 16,
                                              .rotation = FA_KV_ROTATE_HALF}},
        {SPEC(FA_OP_KV_UPDATE), .kv_update = {.head_dim = 32,
                                              .batch = 2,
                                              .heads = 2,
                                              .tokens = 3,
                                              .cache_len = 16,
                                              .in_place = true}}};
    run_all(specs, COUNT(specs));
}

#define LOWRANK .batch = 2, .seqlen = 21, .model_dim = 72, .rank = 40, .heads = 3, .head_dim = 24

/* By blocks that make both products, and by products one after the other. */
Test(gpu_order, lowrank_kv_waits)
{
    static const fa_spec specs[] = {
        {SPEC(FA_OP_LOWRANK_KV), .lowrank_kv = {LOWRANK, .plan = FA_LOWRANK_ONE_LAUNCH}},
        {SPEC(FA_OP_LOWRANK_KV), .lowrank_kv = {LOWRANK, .plan = FA_LOWRANK_TWO_LAUNCHES}},
        {SPEC(FA_OP_LOWRANK_KV),
         .lowrank_kv = {LOWRANK, .plan = FA_LOWRANK_TWO_LAUNCHES, .norm = FA_ROPE_RMS_NORM}},
        {SPEC(FA_OP_LOWRANK_KV), .lowrank_kv = {LOWRANK, .form = FA_LOWRANK_UP}}};
    run_all(specs, COUNT(specs));
}

/* With memory that is asked for ahead; in float16 parts, which a launch of their own makes; with sums
 * that several blocks share; and with angles of positions that are read. */
Test(gpu_order, linear_waits)
{
    static const fa_spec specs[] = {
        {SPEC(FA_OP_LINEAR), .linear = {.m = 37, .n = 48, .k = 72}},
        {SPEC(FA_OP_LINEAR),
         .linear = {.m = 37, .n = 48, .k = 72, .arithmetic = FA_LINEAR_SPLIT_F16}},
        {SPEC(FA_OP_LINEAR), .linear = {.m = 5, .n = 16, .k = 300, .dtype = FA_BF16, .splits = 4}},
        {SPEC(FA_OP_LINEAR),
         .linear = {.m = 37, .n = 48, .k = 72, .rotation = FA_KV_ROTATE_HALF, .head_dim = 24}}};
    run_all(specs, COUNT(specs));
}

#define ROTATED .m = 37, .n = 48, .k = 72, .rotation = FA_KV_ROTATE_INTERLEAVED, .head_dim = 24

/* Angles are made ahead; here all but positions is read. */
Test(gpu_order, linear_waits_for_angles)
{
    static const int64_t from_5[ORACLE_LINEAR_EXTRA_COUNT] = {
        [ORACLE_LINEAR_OFFSET] = 5, [ORACLE_LINEAR_MAX_POSITION] = 4096};
    static const fa_spec specs[] = {
        {SPEC(FA_OP_LINEAR), .linear = {ROTATED, .angles = FA_ROPE_TABLES}},
        {SPEC(FA_OP_LINEAR), .linear = {ROTATED, .angles = FA_ROPE_FREQUENCIES}}};
    run_all_with(specs, COUNT(specs), from_5);
}

#define CROSS                                                                                      \
    .rotation = FA_KV_ROTATE_INTERLEAVED, .batch = 2, .heads_q = 4, .heads_k = 2, .head_dim = 32,  \
    .seqlen_q = 17, .seqlen_k = 35, .model_dim = 40

Test(gpu_order, attention_waits)
{
    static const fa_spec specs[] = {
        {SPEC(FA_OP_ATTENTION), .attention = {.batch = 2,
                                              .heads_q = 4,
                                              .heads_k = 2,
                                              .seqlen_q = 17,
                                              .seqlen_k = 35,
                                              .head_dim = 32}},
        {SPEC(FA_OP_CROSS_ATTENTION), .cross_attention = {CROSS, .plan = FA_CROSS_ONE_LAUNCH}},
        {SPEC(FA_OP_CROSS_ATTENTION), .cross_attention = {CROSS, .plan = FA_CROSS_FEW_LAUNCHES}}};
    run_all(specs, COUNT(specs));
}
