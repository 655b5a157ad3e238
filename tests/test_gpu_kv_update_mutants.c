/* Would the tests of kv_update notice? Faults are put into copies of its template, one at a time,
 * and the comparison with the reference has to fail. */
#include "gpu_kv_update.h"
#include "op.h"

/* What one fault is seen with. */
static const fa_kv_update_spec stacked = {
    .rotation = FA_KV_ROTATE_INTERLEAVED, .angles = FA_ROPE_TABLES, .head_dim = 32};
static const fa_kv_update_spec partial = {
    .rotation = FA_KV_ROTATE_HALF, .in_place = true, .head_dim = 64, .rotary_dim = 32};
static const fa_kv_update_spec quantized = {.rotation = FA_KV_ROTATE_HALF,
                                            .in_place = true,
                                            .cache = FA_KV_SLOTS,
                                            .cache_dtype = FA_KV_E4M3,
                                            .scales = FA_KV_SCALE_HEAD,
                                            .head_dim = 32};
static const fa_kv_update_spec paged = {
    .cache = FA_KV_BLOCK_TABLE, .in_place = true, .head_dim = 16};

typedef struct mutant {
    const char *fault;
    const fa_kv_update_spec *spec;
    const char *find, *put; /* in the instantiated source, with rotary.cuh in it */
} mutant;

static const mutant mutants[] = {
    {"half for interleaved", &stacked, "int ROTATION = 2;", "int ROTATION = 1;"},
    {"interleaved for half", &partial, "int ROTATION = 1;", "int ROTATION = 2;"},
    {"keys not rotated", &stacked, "values y = x.unpacked();\n        y.rotate(by);\n",
     "values y = x.unpacked();\n"},
    {"values rotated", &stacked, "bool rotates = KEYS && ROTATES;", "bool rotates = ROTATES;"},
    {"position shifted", &stacked, "(p, at.position, index", "(p, at.position + 1, index"},
    {"position shifted, computed", &partial, "(p, at.position, index",
     "(p, at.position + 1, index"},
    {"exponent over head_dim", &partial, "int rotary_dim = ROTARY_DIM ? ROTARY_DIM : 2",
     "int rotary_dim = HEAD_DIM"},
    {"turned the other way", &partial, "-__fmul_rn(b, by.sin[i])", "__fmul_rn(b, by.sin[i])"},
    {"the first of several tokens wins", &stacked,
     "atomicMax(&to.last_token[x.entry - first], static_cast<int>(n))",
     "atomicCAS(&to.last_token[x.entry - first], -1, static_cast<int>(n))"},
    {"no token wins", &partial, "return found.superseded[i] != 0;", "return true;"},
    {"a token takes its own entry from itself", &partial, "n + i > own", "n + i >= own"},
    {"of several tokens all are written", &partial, "sees = sees || same;", ";"},
    {"later tokens of other ranks not seen", &partial, "my.rank * W;", "my.rank * W + W;"},
    {"padding written", &partial, "to.entry = PADDING;", "to.entry = to.position = 0;"},
    {"positions outside clamped", &stacked, "to.entry = OUTSIDE;",
     "to.entry = to.batch * capacity_of(p);"},
    {"errors not counted", &paged, "atomicAdd(p.errors, 1u);", ";"},
    {"old entries not copied", &stacked, "old[i].store(to, h.distance);", ";"},
    {"table of the first batch", &paged, "to.batch * p.block_table_stride + at.outer", "at.outer"},
    {"multiplied by the scale", &quantized, "__fdiv_rn(y.x[c][i], divisor)",
     "__fmul_rn(y.x[c][i], divisor)"},
    {"scale of the first head", &quantized, "SCALES == 2 ? h.first : 0", "0"},
};

static const char *header_text(const char *name)
{
    for (size_t i = 0; i < fa__device_header_count; i++)
        if (strcmp(fa__device_headers[i].name, name) == 0)
            return fa__device_headers[i].text;
    cr_assert_fail("no header %s", name);
    return "";
}

/* `text` with one occurrence of `find` replaced; frees `text`. */
static char *replaced(char *text, const char *find, const char *put)
{
    char *at = strstr(text, find);
    cr_assert(at && !strstr(at + 1, find), "'%s' is there %s", find, at ? "twice" : "not at all");
    const size_t before = (size_t)(at - text), size = strlen(text) + strlen(put) + 1;
    char *result = malloc(size);
    cr_assert_not_null(result);
    snprintf(result, size, "%.*s%s%s", (int)before, text, put, at + strlen(find));
    free(text);
    return result;
}

/* Compiles the source as a template of its own, and launches it as the operation would be. */
static void run_source(fa_context *ctx, fa_spec *spec, const fa__plan *plan, const char *source,
                       gpu_case *g)
{
    fa_kernel *kernel = compile(
        ctx,
        &(fa_template_spec){.name = "mutant.cu", .source = source, .entry = "fajit_kv_update"});
    fa__launch launch = {0};
    static fa__launch_room room;
    gpu_case_upload(g);
    OK(fa__op_kv_update.launch(spec, plan, 4, &g->c.args, &launch, &room));
    const fa_param param = {launch.params[0], fa__op_kv_update.param_sizes[0]};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.params = &param, .param_count = 1};
    memcpy(args.tmpl.grid, launch.grid, sizeof launch.grid);
    memcpy(args.tmpl.block, launch.block, sizeof launch.block);
    OK(fa_launch(kernel, &args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
    gpu_case_download(g);
    fa_kernel_release(kernel);
}

/* Elements that are wrong in all outputs. */
static size_t run_mutant(fa_context *ctx, const fa_kv_update_spec *kv, const char *find,
                         const char *put)
{
    static const fa__target target = {"sm_90a", 90, 232448};
    const fa_kv_update_spec sizes = kv_sized(*kv, 3, 40, 5, 24);
    fa_spec spec = kv_spec(kv_bake(*kv, 1));
    fa__plan plan = {0};
    fa__program program = {0};
    OK(fa__op_kv_update.validate(&spec, &target));
    OK(fa__op_kv_update.plan(&spec, &target, &plan));
    OK(fa__program_make(&fa__op_kv_update, &spec, &plan, &program));
    char *source = replaced(strdup(program.source.data), "#include \"fajit/rotary.cuh\"\n",
                            header_text("fajit/rotary.cuh"));
    source = find ? replaced(source, find, put) : source;
    gpu_case g;
    make_kv(&g, kv_bake(*kv, 1), sizes, NULL, 1);
    run_source(ctx, &spec, &plan, source, &g);
    size_t wrong = 0;
    for (size_t i = 0; i < g.c.tensor_count; i++) {
        oracle_verdict v;
        wrong += gpu_case_wrong(&g, i, &v);
    }
    gpu_case_free(&g);
    fa__program_free(&program);
    free(source);
    return wrong;
}

Test(gpu_kv_update_mutants, the_copies_are_right_as_they_are)
{
    static const fa_kv_update_spec *const specs[] = {&stacked, &partial, &quantized, &paged};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 4; i++)
        cr_expect_eq(run_mutant(ctx, specs[i], NULL, NULL), 0u, "spec %zu", i);
    close_device(&f, ctx);
}

Test(gpu_kv_update_mutants, every_fault_is_noticed)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        const mutant *m = &mutants[i];
        cr_expect_gt(run_mutant(ctx, m->spec, m->find, m->put), 0u, "not noticed: %s", m->fault);
    }
    close_device(&f, ctx);
}
