/* Launching lowrank_kv without a GPU: grids, accesses, workspaces, every check of the arguments. */
#include "lowrank_kv_spec.h"
#include "op_steps.h"
#include "ops/lowrank_kv.h"

#define TENSOR(n) AT(UINT64_C(n) << 42)

/* B = 4, S = 96, M = 256, G = 4, D = 32: everything packed, far apart, aligned to 256 bytes. */
static void launched_begin(launched *x, fa_lowrank_kv_spec s)
{
    *x = (launched){.spec = lowrank_spec(s), .args = FA_ARGS_INIT(FA_OP_LOWRANK_KV)};
    OK(prepare(&x->spec, &x->plan));
    x->args.workspace = TENSOR(20);
    x->args.workspace_bytes = SIZE_MAX;
    x->args.lowrank_kv = (fa_lowrank_kv_args){.hidden.data = TENSOR(1),
                                              .w_down = TENSOR(2),
                                              .w_up_k.data = TENSOR(3),
                                              .w_up_v.data = TENSOR(4),
                                              .latent.data = TENSOR(5),
                                              .k_out.data = TENSOR(6),
                                              .v_out.data = TENSOR(7),
                                              .k_rope.data = TENSOR(8),
                                              .rope_out.data = TENSOR(9),
                                              .norm_weight = TENSOR(10),
                                              .batch = s.batch ? 0 : 4,
                                              .seqlen = s.seqlen ? 0 : 96,
                                              .model_dim = s.model_dim ? 0 : 256,
                                              .heads = s.heads ? 0 : 4,
                                              .head_dim = s.head_dim ? 0 : 32,
                                              .positions = TENSOR(11),
                                              .positions_stride = 96,
                                              .cache_len = 128,
                                              .page_size = 16,
                                              .pages = 8,
                                              .max_pages = 4,
                                              .slots = TENSOR(12),
                                              .block_table = TENSOR(13),
                                              .cos = TENSOR(14),
                                              .sin = TENSOR(15),
                                              .max_position = 128,
                                              .inv_freq = TENSOR(16),
                                              .errors = TENSOR(17)};
}

static const lowrank_params *launched_params(const launched *x)
{
    return launched_block(x);
}

Test(lowrank_kv_launch, canonical)
{
    launched x;
    launched_begin(&x, canonical);
    x.args.lowrank_kv.v_out.data = NULL;
    x.args.workspace = NULL;
    OK(launched_run(&x));
    const lowrank_params *k = launched_params(&x);
    cr_expect_null(x.launch.then);
    cr_expect_eq(x.launch.grid[0], 24u); /* 384 tokens, 16 a block */
    cr_expect_eq(x.launch.grid[1], 4u);  /* two shares of K, two of V */
    cr_expect_eq(k->hidden_bytes, 16);
    cr_expect_eq(k->w_down_bytes, 16);
    cr_expect_eq(k->w_up_bytes[1], 16);
    cr_expect(k->out_width[0] == 4 && k->out_width[1] == 4);
    cr_expect_eq(k->out[1].data, k->out[0].data + 4 * 32 * 4, "slot 1 is V");
    cr_expect_eq(k->out[0].token, 2 * 4 * 32);
    cr_expect_eq(k->out[0].outer, 96 * 2 * 4 * 32);
}

Test(lowrank_kv_launch, two_launches_share_their_parameters)
{
    launched x;
    fa_lowrank_kv_spec s = canonical;
    size_t bytes = 0;
    s.plan = FA_LOWRANK_TWO_LAUNCHES;
    s.rank = 45;
    launched_begin(&x, s);
    OK(launched_run(&x));
    cr_assert_not_null(x.launch.then);
    cr_expect_eq(x.launch.then->params, x.launch.params);
    cr_expect_eq(x.launch.function, 0u);
    cr_expect_eq(x.launch.then->function, 1u);
    cr_expect_null(x.launch.then->then);
    cr_expect_eq(launched_params(&x)->latent_out.token, 48);
    cr_expect_eq(launched_params(&x)->latent_width, 1, "a pair would reach over the end");
    OK(fa__op_lowrank_kv.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
    cr_expect_eq(bytes, 384u * 48 * 4);
    x.args.workspace_bytes = bytes;
    OK(launched_run(&x));
    x.args.workspace_bytes = bytes - 1;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "fa_workspace_size");
    x.args.workspace = NULL;
    REFUSED(launched_run(&x), FA_ERR_WORKSPACE, "workspace = 0x0");
    x.args.workspace_bytes = bytes;
    x.args.workspace = AT((UINT64_C(20) << 42) + 16);
    REFUSED(launched_run(&x), FA_ERR_MISALIGNED, "256");
    x.args.workspace = x.args.lowrank_kv.hidden.data;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "workspace");
}

/* Decoding takes the products for few tokens, prefill those for many. */
Test(lowrank_kv_launch, the_number_of_tokens_chooses_the_products)
{
    static const int tokens[] = {1, 16, 8192};
    for (size_t t = 0; t < 3; t++) {
        launched x;
        lowrank_plan p;
        size_t bytes = 0;
        launched_begin(&x, (fa_lowrank_kv_spec){.dtype = FA_BF16,
                                                .norm = FA_ROPE_RMS_NORM,
                                                .model_dim = 4096,
                                                .rank = 512,
                                                .heads = 8,
                                                .head_dim = 128});
        x.args.lowrank_kv.batch = 1;
        x.args.lowrank_kv.seqlen = tokens[t];
        OK(launched_run(&x));
        fa__lowrank_plan_get(&x.plan, &p);
        const lowrank_way way = t < 2 ? p.few : p.many;
        const fa__launch *launch = &x.launch;
        for (int32_t i = 0; i < 3; i++, launch = launch->then) {
            const lowrank_kernel *k = &p.kernel[way.kernel[i]];
            cr_assert_not_null(launch);
            cr_expect_eq(launch->function, way.kernel[i]);
            cr_expect_eq(launch->smem_bytes, fa__lowrank_shared_bytes(k));
            cr_expect_eq(launch->block[0], fa__lowrank_threads(k));
            cr_expect_eq(launch->params, x.launch.params);
        }
        cr_expect_null(launch);
        OK(fa__op_lowrank_kv.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
        cr_expect_eq(bytes, (size_t)tokens[t] * 512 * 2);
    }
}

/* Behind the latent, a byte for each token that a later one may supersede. */
Test(lowrank_kv_launch, marks_are_part_of_the_workspace)
{
    static const struct {
        fa_lowrank_kv_spec s;
        bool marks;
    } cases[] = {
        {{.to_cache = true}, true},
        {{.to_cache = true, .cache = FA_KV_SLOTS, .seqlen = 1}, true},
        {{.to_cache = true, .seqlen = 1}, false},
        {{.to_cache = true, .unique = true}, false},
        {{.to_cache = false}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        fa_lowrank_kv_spec s = cases[i].s;
        size_t bytes = 0;
        s.plan = FA_LOWRANK_TWO_LAUNCHES;
        s.rank = 45;
        launched_begin(&x, s);
        OK(launched_run(&x));
        OK(fa__op_lowrank_kv.workspace(&x.spec, &x.plan, H200, &x.args, &bytes));
        const size_t tokens = s.seqlen ? 4 : 384, latent = tokens * 48 * 4;
        cr_expect_eq(bytes, latent + (cases[i].marks ? tokens : 0), "case %zu", i);
        cr_expect_eq(launched_params(&x)->superseded,
                     cases[i].marks ? launched_params(&x)->latent_in.data + latent : 0);
    }
}

/* 16 bits as 64 columns a block. */
Test(lowrank_kv_launch, canonical_of_16_bits)
{
    launched x;
    fa_lowrank_kv_spec s = canonical;
    s.dtype = FA_BF16;
    launched_begin(&x, s);
    OK(launched_run(&x));
    cr_expect(x.launch.grid[0] == 24 && x.launch.grid[1] == 4);
}

static uint32_t tiles_of(int64_t size, int32_t tile)
{
    return (uint32_t)fa__divide_up(size, tile);
}

/* As a launch of many tokens has it, or one that makes both products. */
static void check_grid(const launched *x, const lowrank_kernel *k, int form, int64_t tokens,
                       int64_t columns)
{
    const linear_step *product = &k->product;
    if (k->is_product) {
        const uint32_t across = tiles_of(form == 1 ? 70 : columns, product->tile_n);
        cr_expect_eq(x->launch.grid[0],
                     tiles_of(tokens, product->tile_m) * across * (form == 1 ? 1 : 2));
        cr_expect_eq(x->launch.grid[1], 1u);
        return;
    }
    const int32_t width = form == 1 ? k->small.down_columns : k->small.up_columns;
    const uint32_t all = tiles_of(form == 1 ? 70 : columns, width) * (form == 1 ? 1 : 2);
    cr_expect_eq(x->launch.grid[0], tiles_of(tokens, k->small.rows));
    cr_expect(x->launch.grid[1] >= 1 && x->launch.grid[1] <= all);
    if (form == 1)
        cr_expect_eq(x->launch.grid[1], all);
}

/* Each column tile is some block's, and no block has none of them before it. */
Test(lowrank_kv_launch, every_column_tile_is_covered)
{
    static const int heads[] = {1, 2, 3, 5, 16, 40}, tokens[] = {1, 17, 384, 8192, 100003};
    for (int which = 0; which < 6; which++)
        for (size_t h = 0; h < 6; h++)
            for (size_t t = 0; t < 5; t++) {
                launched x;
                lowrank_plan p;
                launched_begin(&x, (fa_lowrank_kv_spec){.form = (fa_lowrank_form)(which % 3),
                                                        .sums = which < 3 ? FA_LOWRANK_SUMS_DEFAULT
                                                                          : FA_LOWRANK_SUMS_TREE,
                                                        .plan = which % 3 ? FA_LOWRANK_AUTO
                                                                          : FA_LOWRANK_ONE_LAUNCH,
                                                        .rank = 70});
                x.args.lowrank_kv.heads = heads[h];
                x.args.lowrank_kv.batch = 1;
                x.args.lowrank_kv.seqlen = tokens[t];
                OK(launched_run(&x));
                fa__lowrank_plan_get(&x.plan, &p);
                check_grid(&x, &p.kernel[x.launch.function], which % 3, tokens[t], heads[h] * 32);
            }
}

Test(lowrank_kv_launch, accesses_follow_every_pointer_and_stride)
{
    launched x;
    for (int shift = 0; shift < 16; shift++) {
        const int bytes = shift % 8 == 0 ? 16 : shift % 2 == 0 ? 4 : 2;
        launched_begin(&x, (fa_lowrank_kv_spec){.dtype = FA_F16, .rank = 48});
        fa_lowrank_kv_args *a = &x.args.lowrank_kv;
        a->hidden.data = (char *)a->hidden.data + 2 * shift;
        a->w_up_v.data = (char *)a->w_up_v.data + 2 * shift;
        a->k_out.data = (char *)a->k_out.data + 2 * shift;
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->hidden_bytes, bytes, "%d", shift);
        cr_expect_eq(launched_params(&x)->w_up_bytes[0], 16);
        cr_expect_eq(launched_params(&x)->w_up_bytes[1], bytes);
        const int width = shift % 8 == 0 ? 8 : shift % 4 == 0 ? 4 : shift % 2 == 0 ? 2 : 1;
        cr_expect_eq(launched_params(&x)->out_width[0], width, "%d", shift);
        cr_expect_eq(launched_params(&x)->out_width[1], 8);
    }
    launched_begin(&x, (fa_lowrank_kv_spec){.dtype = FA_F16, .rank = 33, .head_dim = 5});
    x.args.lowrank_kv.w_up_k = (fa_tensor){TENSOR(3), 0, 8, 64};
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->w_down_bytes, 2, "rows of 33");
    cr_expect_eq(launched_params(&x)->w_up_bytes[0], 2, "a head ends at 5");
    cr_expect_eq(launched_params(&x)->out_width[0], 1, "a pair would reach into the next head");
}

/* --- refusals of a launch --- */

typedef void (*change)(fa_args *args);
#define CHANGE(name, ...)                                                                          \
    static void name(fa_args *args)                                                                \
    {                                                                                              \
        fa_lowrank_kv_args *a = &args->lowrank_kv;                                                 \
        __VA_ARGS__;                                                                               \
    }
CHANGE(no_hidden, a->hidden.data = NULL)
CHANGE(no_w_down, a->w_down = NULL)
CHANGE(no_w_up_k, a->w_up_k.data = NULL)
CHANGE(no_w_up_v, a->w_up_v.data = NULL)
CHANGE(no_k_out, a->k_out.data = NULL)
CHANGE(no_v_out, a->v_out.data = NULL)
CHANGE(no_norm, a->norm_weight = NULL)
CHANGE(no_k_rope, a->k_rope.data = NULL)
CHANGE(no_rope_out, a->rope_out.data = NULL)
CHANGE(no_latent, a->latent.data = NULL)
CHANGE(no_positions, a->positions = NULL)
CHANGE(no_slots, a->slots = NULL)
CHANGE(no_block_table, a->block_table = NULL)
CHANGE(no_cos, a->cos = NULL)
CHANGE(no_inv_freq, a->inv_freq = NULL)
CHANGE(odd_hidden, a->hidden.data = AT((UINT64_C(1) << 42) + 2))
CHANGE(odd_w_down, a->w_down = AT((UINT64_C(2) << 42) + 1))
CHANGE(odd_positions, a->positions = AT((UINT64_C(11) << 42) + 2))
CHANGE(negative_batch, a->batch = -1)
CHANGE(negative_seqlen, a->seqlen = -1)
CHANGE(negative_model_dim, a->model_dim = -1)
CHANGE(negative_heads, a->heads = -4)
CHANGE(other_head_dim, a->head_dim = 33)
CHANGE(huge_heads, a->heads = INT32_MAX)
CHANGE(no_cache_len, a->cache_len = 0)
CHANGE(no_page_size, a->page_size = 0)
CHANGE(no_pages, a->pages = -1)
CHANGE(no_max_pages, a->max_pages = 0)
CHANGE(no_max_position, a->max_position = 0)
CHANGE(many_slots, a->slot_count = 385)
CHANGE(negative_stride, a->positions_stride = -1)
CHANGE(narrow_w_down, a->w_down_stride = INT64_C(1) << 60)
CHANGE(strided_k, a->k_out.stride_token = 256; a->k_out.stride_head = 32;
       a->k_out.stride_batch = 256 * 96; a->v_out.data = NULL)
CHANGE(overlapping_k, a->k_out.stride_token = 100; a->k_out.stride_head = 32;
       a->k_out.stride_batch = 256 * 96)
CHANGE(k_is_hidden, a->k_out.data = a->hidden.data)
CHANGE(v_is_k, a->v_out.data = a->k_out.data)
CHANGE(v_is_w_up, a->v_out.data = a->w_up_v.data)
CHANGE(latent_is_hidden, a->latent.data = a->hidden.data)
CHANGE(errors_is_positions, a->errors = AT(UINT64_C(11) << 42))

Test(lowrank_kv_launch, refusals_name_the_argument)
{
    const fa_lowrank_kv_spec whole = {.rank = 48, .head_dim = 32, .norm = FA_ROPE_RMS_NORM};
    const fa_lowrank_kv_spec rope = {.rank = 48,
                                     .rope_dim = 8,
                                     .rotation = FA_KV_ROTATE_HALF,
                                     .angles = FA_ROPE_TABLES,
                                     .rope_once = true};
    const fa_lowrank_kv_spec vector = {
        .rank = 48, .rope_dim = 8, .rotation = FA_KV_ROTATE_HALF, .angles = FA_ROPE_FREQUENCIES};
    const fa_lowrank_kv_spec down = {.rank = 48, .form = FA_LOWRANK_DOWN};
    const fa_lowrank_kv_spec up = {.rank = 48, .form = FA_LOWRANK_UP};
    const fa_lowrank_kv_spec dense = {.rank = 48, .to_cache = true};
    const fa_lowrank_kv_spec slots = {.rank = 48, .to_cache = true, .cache = FA_KV_SLOTS};
    const fa_lowrank_kv_spec paged = {.rank = 48, .to_cache = true, .cache = FA_KV_BLOCK_TABLE};
    const struct {
        const fa_lowrank_kv_spec *spec;
        change make;
        fa_status status;
        const char *word;
    } cases[] = {
        {&whole, no_hidden, FA_ERR_NULL_POINTER, "hidden"},
        {&whole, no_w_down, FA_ERR_NULL_POINTER, "w_down"},
        {&whole, no_w_up_k, FA_ERR_NULL_POINTER, "w_up_k"},
        {&whole, no_w_up_v, FA_ERR_NULL_POINTER, "w_up_v"},
        {&whole, no_k_out, FA_ERR_NULL_POINTER, "k_out"},
        {&whole, no_norm, FA_ERR_NULL_POINTER, "norm_weight"},
        {&whole, strided_k, FA_ERR_NULL_POINTER, "v_out"},
        {&dense, no_v_out, FA_ERR_NULL_POINTER, "v_out"},
        {&rope, no_k_rope, FA_ERR_NULL_POINTER, "k_rope"},
        {&rope, no_rope_out, FA_ERR_NULL_POINTER, "rope_out"},
        {&rope, no_cos, FA_ERR_NULL_POINTER, "cos"},
        {&vector, no_inv_freq, FA_ERR_NULL_POINTER, "inv_freq"},
        {&up, no_latent, FA_ERR_NULL_POINTER, "latent"},
        {&down, no_latent, FA_ERR_NULL_POINTER, "latent"},
        {&dense, no_positions, FA_ERR_NULL_POINTER, "positions"},
        {&slots, no_slots, FA_ERR_NULL_POINTER, "slots"},
        {&paged, no_block_table, FA_ERR_NULL_POINTER, "block_table"},
        {&whole, odd_hidden, FA_ERR_MISALIGNED, "hidden"},
        {&whole, odd_w_down, FA_ERR_MISALIGNED, "w_down"},
        {&dense, odd_positions, FA_ERR_MISALIGNED, "positions"},
        {&whole, negative_batch, FA_ERR_SIZE, "batch"},
        {&whole, negative_seqlen, FA_ERR_SIZE, "seqlen"},
        {&whole, negative_model_dim, FA_ERR_SIZE, "model_dim"},
        {&whole, negative_heads, FA_ERR_SIZE, "heads"},
        {&whole, other_head_dim, FA_ERR_BAKED, "head_dim = 33"},
        {&whole, huge_heads, FA_ERR_LIMIT, "heads"},
        {&dense, no_cache_len, FA_ERR_SIZE, "cache_len"},
        {&slots, no_page_size, FA_ERR_SIZE, "page_size"},
        {&slots, no_pages, FA_ERR_SIZE, "pages"},
        {&paged, no_max_pages, FA_ERR_SIZE, "max_pages"},
        {&rope, no_max_position, FA_ERR_SIZE, "max_position"},
        {&slots, many_slots, FA_ERR_SIZE, "slot_count = 385"},
        {&dense, negative_stride, FA_ERR_STRIDE, "positions_stride"},
        {&whole, narrow_w_down, FA_ERR_STRIDE, "w_down"},
        {&whole, overlapping_k, FA_ERR_STRIDE, "k_out"},
        {&whole, k_is_hidden, FA_ERR_ALIAS, "hidden"},
        {&whole, v_is_k, FA_ERR_ALIAS, "v_out"},
        {&whole, v_is_w_up, FA_ERR_ALIAS, "w_up_v"},
        {&down, latent_is_hidden, FA_ERR_ALIAS, "latent"},
        {&dense, errors_is_positions, FA_ERR_ALIAS, "errors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(&x, *cases[i].spec);
        OK(launched_run(&x));
        cases[i].make(&x.args);
        REFUSED(launched_run(&x), cases[i].status, cases[i].word);
    }
}

Test(lowrank_kv_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, (fa_lowrank_kv_spec){.rank = 1, .form = FA_LOWRANK_DOWN, .model_dim = 1});
    fa_lowrank_kv_args *a = &x.args.lowrank_kv;
    a->batch = INT32_MAX;
    a->seqlen = 200;
    a->latent.data = AT(INT64_C(1) << 52);
    a->hidden.data = AT(INT64_C(1) << 53);
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "in parts");
    a->seqlen = 1;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "in parts");
    a->batch = LINEAR_MAX_SIZE;
    OK(launched_run(&x));
}

/* Rows of other sizes in one buffer: an overlap is told from slices beside each other. */
Test(lowrank_kv_launch, slices_of_one_buffer_lie_apart)
{
    launched x;
    launched_begin(&x, (fa_lowrank_kv_spec){.rank = 512, .form = FA_LOWRANK_DOWN, .rope_dim = 64});
    fa_lowrank_kv_args *a = &x.args.lowrank_kv;
    a->latent = (fa_tensor){TENSOR(5), 96 * 576, 0, 576};
    a->rope_out = (fa_tensor){AT((UINT64_C(5) << 42) + UINT64_C(512) * 4), 96 * 576, 0, 576};
    OK(launched_run(&x));
    a->rope_out.data = AT((UINT64_C(5) << 42) + UINT64_C(511) * 4);
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "rope_out");
    a->rope_out.data = AT((UINT64_C(5) << 42) + UINT64_C(513) * 4);
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "rope_out");
}
