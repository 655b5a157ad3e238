/* kv_update without a GPU: specs, plans, sources, every check of a launch's arguments, the grid;
 * and the reference against golden data. */
#include <math.h>

#include "golden.h"
#include "op_steps.h"
#include "ops/kv_update.h"
#include "oracle/kv_update.h"

static fa_spec kv_spec(fa_kv_update_spec kv)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_KV_UPDATE);
    spec.kv_update = kv;
    return spec;
}

/* --- specs --- */

#define HALF FA_KV_ROTATE_HALF
#define PAIRS FA_KV_ROTATE_INTERLEAVED

Test(kv_update_spec, refusals_name_the_field)
{
    const struct {
        fa_kv_update_spec kv;
        fa_status status;
        const char *word;
    } cases[] = {
        {{.rotation = HALF, .head_dim = 64, .rotary_dim = 31},
         FA_ERR_ROTARY_DIM,
         "rotary_dim = 31"},
        {{.rotation = HALF, .head_dim = 64, .rotary_dim = 66}, FA_ERR_ROTARY_DIM, "head_dim = 64"},
        {{.rotation = HALF, .head_dim = 65}, FA_ERR_ROTARY_DIM, "head_dim = 65"},
        {{.head_dim = 64, .rotary_dim = 32}, FA_ERR_ROTARY_DIM, "without rotation"},
        {{.head_dim = -64}, FA_ERR_SIZE, "-64"},
        {{.head_dim = 1025}, FA_ERR_LIMIT, "1024"},
        {{.head_dim = 64, .head_dim_v = 1025}, FA_ERR_LIMIT, "head_dim_v"},
        {{.head_dim = 64, .head_dim_v = -1}, FA_ERR_SIZE, "head_dim_v"},
        {{.head_dim_v = 64}, FA_ERR_SIZE, "head_dim is not"},
        {{.head_dim = 64, .batch = -1}, FA_ERR_SIZE, "batch"},
        {{.head_dim = 64, .tokens = -1}, FA_ERR_SIZE, "tokens"},
        {{.head_dim = 64, .heads = -1}, FA_ERR_SIZE, "heads"},
        {{.head_dim = 64, .cache_len = -1}, FA_ERR_SIZE, "cache_len"},
        {{.head_dim = 64, .page_size = 16}, FA_ERR_VALUE, "page_size = 16"},
        {{.cache = FA_KV_SLOTS, .in_place = true, .page_size = 257}, FA_ERR_LIMIT, "256"},
        {{.cache = FA_KV_SLOTS, .in_place = true, .cache_len = 8}, FA_ERR_VALUE, "cache_len = 8"},
        {{.cache = FA_KV_SLOTS}, FA_ERR_VALUE, "in_place"},
        {{.cache = FA_KV_BLOCK_TABLE}, FA_ERR_VALUE, "in_place"},
        {{.scales = FA_KV_SCALE_HEAD}, FA_ERR_VALUE, "scales = head"},
        {{.rotation = HALF, .base = 1}, FA_ERR_VALUE, "base = 1"},
        {{.rotation = HALF, .base = -2}, FA_ERR_VALUE, "base"},
        {{.rotation = HALF, .base = (double)NAN}, FA_ERR_VALUE, "base"},
        {{.rotation = HALF, .scaling = {.kind = FA_ROPE_LINEAR}}, FA_ERR_VALUE, "factor"},
        {{.rotation = HALF, .angles = FA_ROPE_TABLES, .scaling = {.kind = FA_ROPE_LINEAR}},
         FA_ERR_VALUE,
         "fa_kv_update_spec.scaling"},
        {{.dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{.cache_dtype = (fa_kv_storage)2}, FA_ERR_VALUE, "cache_dtype"},
        {{.scales = (fa_kv_scales)3}, FA_ERR_VALUE, "scales"},
        {{.cache = (fa_kv_cache)3}, FA_ERR_VALUE, "cache"},
        {{.cache_layout = (fa_kv_layout)2}, FA_ERR_VALUE, "cache_layout"},
        {{.rotation = (fa_kv_rotation)3}, FA_ERR_VALUE, "rotation"},
        {{.angles = (fa_rope_angles)3}, FA_ERR_VALUE, "angles"},
        {{.position_type = (fa_index)2}, FA_ERR_VALUE, "position_type"},
        {{.slot_type = (fa_index)2}, FA_ERR_VALUE, "slot_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = kv_spec(cases[i].kv);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(kv_update_spec, quantized_caches_need_sm_89)
{
    static const fa__target older = {"sm_86", 86, 101376};
    fa_spec spec = kv_spec((fa_kv_update_spec){.cache_dtype = FA_KV_E4M3});
    REFUSED(fa__op_kv_update.validate(&spec, &older), FA_ERR_DTYPE, "sm_86");
    OK(fa__op_kv_update.validate(&spec, &target));
}

/* Specs that mean the same share a kernel. */
Test(kv_update_spec, defaults_are_filled_in)
{
    fa__plan plan;
    fa_spec spec = kv_spec((fa_kv_update_spec){.rotation = HALF, .head_dim = 64});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.kv_update.rotary_dim, 64);
    cr_expect_eq(spec.kv_update.head_dim_v, 64);
    cr_expect_eq(spec.kv_update.base, 10000.0);
    spec = kv_spec((fa_kv_update_spec){.head_dim = 64,
                                       .angles = FA_ROPE_TABLES,
                                       .slot_type = FA_I64,
                                       .base = 500000,
                                       .scaling = {.kind = FA_ROPE_NTK, .factor = 2}});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.kv_update.angles, FA_ROPE_COMPUTED);
    cr_expect_eq(spec.kv_update.slot_type, FA_I32);
    cr_expect_eq(spec.kv_update.base, 0.0);
    cr_expect_eq(spec.kv_update.scaling.kind, FA_ROPE_UNSCALED);
    spec = kv_spec((fa_kv_update_spec){
        .cache = FA_KV_SLOTS, .in_place = true, .position_type = FA_I64, .slot_type = FA_I64});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.kv_update.position_type, FA_I32, "positions are not read");
    cr_expect_eq(spec.kv_update.slot_type, FA_I64);
}

Test(kv_update_spec, widest_accesses_that_the_baked_sizes_allow)
{
    const struct {
        fa_kv_update_spec kv;
        int width, width_v;
    } cases[] = {
        {{.rotation = HALF, .head_dim = 64}, 4, 4},
        {{.dtype = FA_BF16, .rotation = HALF, .head_dim = 128}, 8, 8},
        {{.dtype = FA_BF16, .rotation = HALF, .head_dim = 72}, 4, 8},  /* 36 pairs */
        {{.dtype = FA_BF16, .rotation = PAIRS, .head_dim = 72}, 8, 8}, /* 72 neighbours */
        {{.dtype = FA_F16, .head_dim = 46, .head_dim_v = 80}, 2, 8},
        {{.rotation = HALF, .head_dim = 46}, 1, 2},                    /* 23 pairs */
        {{.rotation = HALF, .head_dim = 67, .rotary_dim = 32}, 1, 1},  /* 35 copied */
        {{.dtype = FA_F16, .rotation = HALF}, 8, 8},                   /* known at launch */
        {{.dtype = FA_F16, .rotation = HALF, .rotary_dim = 24}, 4, 8}, /* 12 pairs */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = kv_spec(cases[i].kv);
        fa__plan plan;
        OK(prepare(&spec, &plan));
        cr_expect_eq(plan.value[KV_VECTOR_WIDTH], cases[i].width, "case %zu: %d", i,
                     plan.value[KV_VECTOR_WIDTH]);
        cr_expect_eq(plan.value[KV_VECTOR_WIDTH_V], cases[i].width_v, "case %zu: V %d", i,
                     plan.value[KV_VECTOR_WIDTH_V]);
    }
}

/* --- sources --- */

static char *source_of(fa_kv_update_spec kv, char label[160])
{
    return prepared_source(kv_spec(kv), "fajit_kv_update", label);
}

Test(kv_update_source, constants_stand_in_front_of_the_template)
{
    char label[160];
    char *text = source_of((fa_kv_update_spec){.dtype = FA_BF16,
                                               .cache_dtype = FA_KV_E4M3,
                                               .scales = FA_KV_SCALE_HEAD,
                                               .cache = FA_KV_BLOCK_TABLE,
                                               .in_place = true,
                                               .rotation = PAIRS,
                                               .position_type = FA_I64,
                                               .head_dim = 128,
                                               .head_dim_v = 64,
                                               .rotary_dim = 32,
                                               .heads = 8,
                                               .page_size = 16,
                                               .base = 500000},
                           label);
    const char *const lines[] = {
        "using Element = fajit::bf16;\n",    "using Cached = fajit::fp8_e4m3;\n",
        "constexpr int CACHE = 2;\n",        "constexpr int SCALES = 2;\n",
        "constexpr bool IN_PLACE = true;\n", "constexpr bool POSITIONS_WIDE = true;\n",
        "constexpr int ROTATION = 2;\n",     "constexpr int HEAD_DIM = 128;\n",
        "constexpr int HEAD_DIM_V = 64;\n",  "constexpr int ROTARY_DIM = 32;\n",
        "constexpr int PAGE_SIZE = 16;\n",   "#line 1 \"kv_update.cu\"\n"};
    const char *template = strstr(text, fa__template_kv_update.text);
    cr_assert_not_null(template);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(text, lines[i]);
        cr_expect(line && line < template, "missing in front of the template: %s", lines[i]);
    }
    cr_expect_str_eq(label,
                     "kv_update bf16 e4m3 scale_head block_table in_place interleaved "
                     "positions_i64 D128 Dv64 R32 G8 P16 base=500000");
    free(text);
    free(source_of((fa_kv_update_spec){.rotation = PAIRS,
                                       .angles = FA_ROPE_TABLES,
                                       .head_dim = 32,
                                       .batch = 2,
                                       .tokens = 16,
                                       .heads = 4,
                                       .cache_len = 128},
                   label));
    cr_expect_str_eq(label, "kv_update f32 dense interleaved tables D32 B2 T16 G4 L128");
}

/* What cannot change the code must not split the cache; everything else must. */
Test(kv_update_source, F33_every_parameter_but_the_layout_changes_the_source)
{
    const fa_kv_update_spec plain = {.cache = FA_KV_SLOTS,
                                     .in_place = true,
                                     .cache_dtype = FA_KV_E4M3,
                                     .rotation = HALF,
                                     .head_dim = 64,
                                     .head_dim_v = 64,
                                     .rotary_dim = 64,
                                     .base = 10000};
    enum { COUNT = 18 };
    fa_kv_update_spec changed[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        changed[i] = plain;
    changed[0].dtype = FA_F16;
    changed[1].cache_dtype = FA_KV_SAME;
    changed[2].scales = FA_KV_SCALE_TENSOR;
    changed[3].cache = FA_KV_BLOCK_TABLE;
    changed[4].unique = true;
    changed[5].rotation = PAIRS;
    changed[6].angles = FA_ROPE_TABLES;
    changed[7].position_type = FA_I64;
    changed[8].slot_type = FA_I64;
    changed[9].head_dim = 72;
    changed[10].head_dim_v = 32;
    changed[11].rotary_dim = 32;
    changed[12].batch = 1;
    changed[13].tokens = 1;
    changed[14].heads = 1;
    changed[15].page_size = 16;
    changed[16].base = 10001;
    changed[17].cache_layout = FA_KV_HEADS_FIRST;
    char *before = source_of(plain, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        char *after = source_of(changed[i], NULL);
        cr_expect_eq(strcmp(before, after) == 0, i == COUNT - 1, "change %zu", i);
        free(after);
    }
    free(before);
}

/* --- launches --- */

#define TENSOR(n) AT(UINT64_C(n) << 42)

/* B = 2, T = 16, G = 4, D = 32, 128 entries or 8 pages of 16: everything packed, far apart, aligned
 * to 256 bytes. */
static void launched_begin(launched *x, fa_kv_update_spec kv)
{
    *x = (launched){.spec = kv_spec(kv), .args = FA_ARGS_INIT(FA_OP_KV_UPDATE)};
    OK(prepare(&x->spec, &x->plan));
    const bool dense = kv.cache == FA_KV_DENSE;
    x->args.kv_update = (fa_kv_update_args){.k_new.data = TENSOR(1),
                                            .v_new.data = TENSOR(2),
                                            .cache_k.data = TENSOR(3),
                                            .cache_v.data = TENSOR(4),
                                            .k_out.data = TENSOR(5),
                                            .v_out.data = TENSOR(6),
                                            .batch = kv.batch ? 0 : 2,
                                            .tokens = kv.tokens ? 0 : 16,
                                            .heads = kv.heads ? 0 : 4,
                                            .head_dim = kv.head_dim ? 0 : 32,
                                            .cache_len = dense && !kv.cache_len ? 128 : 0,
                                            .page_size = dense || kv.page_size ? 0 : 16,
                                            .pages = 8,
                                            .max_pages = 4,
                                            .positions = TENSOR(7),
                                            .positions_stride = 16,
                                            .slots = TENSOR(8),
                                            .block_table = TENSOR(9),
                                            .cos = TENSOR(10),
                                            .sin = TENSOR(11),
                                            .max_position = 128,
                                            .inv_freq = TENSOR(12),
                                            .k_scale = TENSOR(13),
                                            .v_scale = TENSOR(14),
                                            .errors = TENSOR(15)};
}

static const kv_kernel_params *launched_params(const launched *x)
{
    return launched_block(x);
}

static const fa_kv_update_spec canonical = {.rotation = PAIRS,
                                            .angles = FA_ROPE_TABLES,
                                            .head_dim = 32,
                                            .batch = 2,
                                            .tokens = 16,
                                            .heads = 4,
                                            .cache_len = 128};

Test(kv_update_launch, canonical_is_one_wave_of_small_blocks)
{
    launched x;
    launched_begin(&x, canonical);
    OK(launched_run(&x));
    const kv_kernel_params *k = launched_params(&x);
    cr_expect_not(x.launch.empty);
    cr_expect_eq(x.launch.block[0], 128u);
    cr_expect_eq(x.launch.grid[0], 16u); /* 256 entries, 16 a block */
    cr_expect_eq(x.launch.grid[1], 8u);  /* 4 heads, of K and of V */
    cr_expect_eq(k->items, 16);
    cr_expect_eq(k->heads_per_group, 1);
    cr_expect_eq(k->abreast_log2, 0);
    cr_expect_eq(k->indices_aligned, 1);
    cr_expect_eq(k->k.width, 4);
    cr_expect_eq(k->k.fresh.data, UINT64_C(1) << 42);
    cr_expect_eq(k->v.cache.data, UINT64_C(4) << 42);
    cr_expect_eq(k->k.fresh.outer, 16 * 4 * 32);
    cr_expect_eq(k->k.fresh.token, 4 * 32);
    cr_expect_eq(k->k.cache.outer, 128 * 4 * 32);
    cr_expect_eq(k->v.out.head, 32);
}

Test(kv_update_launch, heads_of_a_large_token_share_what_is_done_once)
{
    launched x;
    fa_kv_update_spec spec = canonical;
    spec.in_place = true;
    spec.tokens = 1024;
    spec.head_dim = 128;
    spec.heads = 8;
    spec.cache_len = 8192;
    launched_begin(&x, spec);
    OK(launched_run(&x));
    const kv_kernel_params *k = launched_params(&x);
    cr_expect_eq(x.launch.grid[0], 1024u); /* 2048 tokens, 2 a block */
    cr_expect_eq(x.launch.grid[1], 2u);    /* K and V */
    cr_expect_eq(k->heads_per_group, 8);
    cr_expect_eq(k->abreast_log2, 1);
}

/* Read 16 bytes at a time only where every batch begins and ends on such a boundary. */
Test(kv_update_launch, indices_are_aligned_in_every_batch)
{
    static const struct {
        int32_t tokens;
        int64_t stride;
        int offset, aligned;
        fa_index type;
    } cases[] = {{16, 16, 0, 1, FA_I32}, {16, 20, 0, 1, FA_I32}, {16, 17, 0, 0, FA_I32},
                 {16, 16, 4, 0, FA_I32}, {15, 16, 0, 0, FA_I32}, {14, 14, 0, 1, FA_I64},
                 {14, 15, 0, 0, FA_I64}, {14, 14, 8, 0, FA_I64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        fa_kv_update_spec spec = canonical;
        spec.in_place = true;
        spec.tokens = cases[i].tokens;
        spec.position_type = cases[i].type;
        launched_begin(&x, spec);
        fa_kv_update_args *a = &x.args.kv_update;
        a->positions = (const char *)a->positions + cases[i].offset;
        a->positions_stride = cases[i].stride;
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->indices_aligned, cases[i].aligned, "case %zu", i);
    }
}

Test(kv_update_launch, decode_fills_the_device)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){
                           .dtype = FA_BF16, .rotation = HALF, .in_place = true, .head_dim = 128});
    x.args.kv_update.batch = 64;
    x.args.kv_update.tokens = 1;
    x.args.kv_update.positions_stride = 1;
    x.args.kv_update.heads = 8;
    x.args.kv_update.cache_len = 4096;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[0] * x.launch.grid[1], 128u);
}

Test(kv_update_launch, v_follows_k_in_a_stacked_output)
{
    launched x;
    launched_begin(&x, canonical);
    x.args.kv_update.v_out.data = NULL;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->v.out.data, (UINT64_C(5) << 42) + 2 * 128 * 4 * 32 * 4);
    x.args.kv_update.k_out.stride_token = 4 * 32;
    x.args.kv_update.k_out.stride_head = 32;
    x.args.kv_update.k_out.stride_batch = 128 * 4 * 32;
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "v_out");
}

Test(kv_update_launch, packed_strides_follow_the_layout)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.cache = FA_KV_BLOCK_TABLE,
                                           .cache_layout = FA_KV_HEADS_FIRST,
                                           .in_place = true,
                                           .head_dim = 32,
                                           .head_dim_v = 64});
    OK(launched_run(&x));
    const kv_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->k.cache.outer, 4 * 16 * 32);
    cr_expect_eq(k->k.cache.head, 16 * 32);
    cr_expect_eq(k->k.cache.token, 32);
    cr_expect_eq(k->v.cache.head, 16 * 64);
    cr_expect_eq(k->block_table_stride, 4);
    cr_expect_eq(k->abreast_log2, 0);
}

/* Walks the grid as the kernel does: every item and head once, by K and by V. */
Test(kv_update_launch, every_item_and_head_is_covered_once)
{
    static const int head_counts[] = {1, 2, 3, 5, 8, 17, 64, 40000};
    static const int sizes[] = {1, 7, 100, 5000};
    static const int dims[] = {1, 46, 64, 256, 1024};
    for (size_t h = 0; h < 8; h++)
        for (size_t s = 0; s < 4; s++)
            for (size_t d = 0; d < 5; d++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    launched x;
                    launched_begin(
                        &x, (fa_kv_update_spec){.head_dim = dims[d], .in_place = in_place != 0});
                    fa_kv_update_args *a = &x.args.kv_update;
                    a->heads = head_counts[h];
                    a->tokens = sizes[s];
                    OK(launched_run(&x));
                    const kv_kernel_params *k = launched_params(&x);
                    const int64_t items = 2 * (in_place ? sizes[s] : 128);
                    cr_expect(k->items >= 1 && k->items <= KV_BLOCK_THREADS);
                    cr_expect(x.launch.grid[0] * (int64_t)k->items >= items);
                    cr_expect((x.launch.grid[0] - 1) * (int64_t)k->items < items);
                    cr_expect_eq(x.launch.grid[1], 2 * (uint32_t)k->groups);
                    cr_expect(k->groups * (int64_t)k->heads_per_group >= head_counts[h]);
                    cr_expect((k->groups - 1) * (int64_t)k->heads_per_group < head_counts[h]);
                    cr_expect(k->heads_per_group % (1 << k->abreast_log2) == 0);
                }
}

Test(kv_update_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.head_dim = 1, .in_place = true, .unique = true});
    fa_kv_update_args *a = &x.args.kv_update;
    a->batch = INT32_MAX;
    a->tokens = 200;
    a->heads = a->cache_len = 1;
    a->cache_v.data = AT(INT64_C(1) << 52);
    a->v_new.data = AT(INT64_C(1) << 53);
    a->k_new.data = AT(INT64_C(1) << 54);
    a->positions_stride = 0;
    a->errors = NULL;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "in parts");
    a->tokens = 100;
    OK(launched_run(&x));
}

Test(kv_update_launch, width_follows_every_pointer_and_stride)
{
    const fa_kv_update_spec spec = {.dtype = FA_F16, .rotation = HALF, .head_dim = 64};
    launched x;
    launched_begin(&x, spec);
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->k.width, 8);
    cr_expect_eq(launched_params(&x)->v.width, 8);
    for (int shift = 1; shift < 16; shift++)
        for (int i = 0; i < 6; i++) {
            launched_begin(&x, spec);
            fa_kv_update_args *a = &x.args.kv_update;
            fa_tensor *tensors[] = {&a->k_new, &a->cache_k, &a->k_out,
                                    &a->v_new, &a->cache_v, &a->v_out};
            tensors[i]->data = (char *)tensors[i]->data + 2 * shift;
            OK(launched_run(&x));
            const int narrow = shift % 2 ? 1 : shift % 4 ? 2 : shift % 8 ? 4 : 8;
            cr_expect_eq(launched_params(&x)->k.width, i < 3 ? narrow : 8, "%d + %d", i, shift);
            cr_expect_eq(launched_params(&x)->v.width, i < 3 ? 8 : narrow, "%d + %d", i, shift);
        }
}

/* 16 bytes of new values are 8 or 4 of an fp8 cache. */
Test(kv_update_launch, width_follows_a_quantized_cache)
{
    for (int shift = 0; shift < 9; shift++) {
        launched x;
        launched_begin(
            &x, (fa_kv_update_spec){
                    .dtype = FA_BF16, .cache_dtype = FA_KV_E4M3, .in_place = true, .head_dim = 64});
        x.args.kv_update.cache_k.data = (char *)x.args.kv_update.cache_k.data + shift;
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->k.width,
                     shift % 2   ? 1
                     : shift % 4 ? 2
                     : shift % 8 ? 4
                                 : 8,
                     "shift %d", shift);
    }
}

Test(kv_update_launch, width_follows_tables_and_frequencies)
{
    for (int angles = 1; angles <= 2; angles++)
        for (int shift = 0; shift < 16; shift += 4) {
            launched x;
            launched_begin(&x, (fa_kv_update_spec){.dtype = FA_F16,
                                                   .rotation = HALF,
                                                   .angles = (fa_rope_angles)angles,
                                                   .head_dim = 64});
            x.args.kv_update.sin += shift / 4;
            x.args.kv_update.inv_freq += shift / 4;
            OK(launched_run(&x));
            cr_expect_eq(launched_params(&x)->k.width, shift == 0 ? 8 : shift == 8 ? 2 : 1);
            cr_expect_eq(launched_params(&x)->v.width, 8);
        }
}

Test(kv_update_launch, empty_work_succeeds)
{
    for (int i = 0; i < 4; i++) {
        launched x;
        launched_begin(&x, (fa_kv_update_spec){.in_place = true});
        fa_kv_update_args *a = &x.args.kv_update;
        int32_t *const sizes[] = {&a->batch, &a->tokens, &a->heads, &a->head_dim};
        *sizes[i] = 0;
        a->k_new.data = a->v_new.data = NULL; /* tensors without elements often have no memory */
        a->positions = NULL;
        OK(launched_run(&x));
        cr_expect(x.launch.empty, "case %d", i);
    }
    launched x; /* a copy of the cache is left to do */
    launched_begin(&x, (fa_kv_update_spec){.rotation = HALF, .angles = FA_ROPE_TABLES});
    fa_kv_update_args *a = &x.args.kv_update;
    a->tokens = 0;
    a->k_new.data = a->v_new.data = NULL;
    a->positions = NULL;
    a->cos = a->sin = NULL;
    OK(launched_run(&x));
    cr_expect_not(x.launch.empty);
}

Test(kv_update_launch, K29_slots_may_be_fewer_than_tokens)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.cache = FA_KV_SLOTS, .in_place = true});
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->slot_count, 32);
    x.args.kv_update.slot_count = 5;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->slot_count, 5);
    x.args.kv_update.slot_count = 33;
    REFUSED(launched_run(&x), FA_ERR_SIZE, "slot_count = 33");
    x.args.kv_update.slot_count = -1;
    REFUSED(launched_run(&x), FA_ERR_SIZE, "slot_count = -1");
}

/* --- bad arguments --- */

/* A refusal for each kind of spec: X(status, word, statement on `a`). */
#define REFUSALS(NAME, LIST)                                                                       \
    static void NAME(fa_kv_update_spec spec)                                                       \
    {                                                                                              \
        launched x;                                                                                \
        fa_kv_update_args *a = &x.args.kv_update;                                                  \
        LIST(REFUSAL_CHECK)                                                                        \
    }
#define REFUSAL_CHECK(status, word, statement)                                                     \
    launched_begin(&x, spec);                                                                      \
    OK(launched_run(&x));                                                                          \
    statement;                                                                                     \
    REFUSED(launched_run(&x), status, word);
#define BYTES(pointer, n) ((void *)((char *)(uintptr_t)(pointer) + (n)))

#define STACKED(X)                                                                                 \
    X(FA_ERR_NULL_POINTER, "fa_kv_update_args.k_new)", a->k_new.data = NULL)                       \
    X(FA_ERR_NULL_POINTER, "fa_kv_update_args.v_new)", a->v_new.data = NULL)                       \
    X(FA_ERR_NULL_POINTER, "cache_k", a->cache_k.data = NULL)                                      \
    X(FA_ERR_NULL_POINTER, "cache_v", a->cache_v.data = NULL)                                      \
    X(FA_ERR_NULL_POINTER, "k_out", a->k_out.data = NULL)                                          \
    X(FA_ERR_NULL_POINTER, "positions", a->positions = NULL)                                       \
    X(FA_ERR_NULL_POINTER, "cos", a->cos = NULL)                                                   \
    X(FA_ERR_NULL_POINTER, "sin", a->sin = NULL)                                                   \
    X(FA_ERR_MISALIGNED, "k_new", a->k_new.data = BYTES(a->k_new.data, 2))                         \
    X(FA_ERR_MISALIGNED, "cache_v", a->cache_v.data = BYTES(a->cache_v.data, 1))                   \
    X(FA_ERR_MISALIGNED, "v_out", a->v_out.data = BYTES(a->v_out.data, 3))                         \
    X(FA_ERR_MISALIGNED, "positions", a->positions = BYTES(a->positions, 2))                       \
    X(FA_ERR_MISALIGNED, "sin", a->sin = BYTES(a->sin, 2))                                         \
    X(FA_ERR_MISALIGNED, "errors", a->errors = BYTES(a->errors, 2))                                \
    X(FA_ERR_SIZE, "batch = -1", a->batch = -1)                                                    \
    X(FA_ERR_SIZE, "tokens = -2147483648", a->tokens = INT32_MIN)                                  \
    X(FA_ERR_SIZE, "heads = -4", a->heads = -4)                                                    \
    X(FA_ERR_SIZE, "cache_len = -1", a->cache_len = -1)                                            \
    X(FA_ERR_SIZE, "cache_len = 0", a->cache_len = 0)                                              \
    X(FA_ERR_SIZE, "max_position = 0", a->max_position = 0)                                        \
    X(FA_ERR_BAKED, "head_dim = 64", a->head_dim = 64)                                             \
    X(FA_ERR_ALIAS, "k_out", a->k_out.data = a->cache_k.data)                                      \
    X(FA_ERR_ALIAS, "v_out", a->v_out.data = a->k_out.data)                                        \
    X(FA_ERR_ALIAS, "k_new", a->k_out.data = BYTES(a->k_new.data, 2 * 16 * 4 * 32 * 4 - 4))        \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = a->v_out.data)                            \
    X(FA_ERR_ALIAS, "overlaps cos", a->cos = a->k_out.data)                                        \
    X(FA_ERR_ALIAS, "errors", a->errors = a->k_out.data)                                           \
    X(FA_ERR_ALIAS, "errors", a->errors = a->k_new.data)                                           \
    X(FA_ERR_STRIDE, "stride_token = 31",                                                          \
      (a->k_out = (fa_tensor){a->k_out.data, 128 * 4 * 32, 128 * 32, 31}))                         \
    X(FA_ERR_STRIDE, "stride_head = 0", a->v_out.stride_token = 32)                                \
    X(FA_ERR_STRIDE, "address space", a->k_new.stride_head = INT64_MAX)                            \
    X(FA_ERR_STRIDE, "positions_stride = -1", a->positions_stride = -1)                            \
    X(FA_ERR_STRIDE, "positions_stride", a->positions_stride = INT64_MAX)

REFUSALS(refuse_stacked, STACKED)

#define PAGED(X)                                                                                   \
    X(FA_ERR_NULL_POINTER, "block_table", a->block_table = NULL)                                   \
    X(FA_ERR_NULL_POINTER, "k_scale", a->k_scale = NULL)                                           \
    X(FA_ERR_NULL_POINTER, "v_scale", a->v_scale = NULL)                                           \
    X(FA_ERR_MISALIGNED, "block_table", a->block_table = BYTES(a->block_table, 2))                 \
    X(FA_ERR_MISALIGNED, "k_scale", a->k_scale = BYTES(a->k_scale, 1))                             \
    X(FA_ERR_SIZE, "page_size = 0", a->page_size = 0)                                              \
    X(FA_ERR_SIZE, "page_size = -16", a->page_size = -16)                                          \
    X(FA_ERR_LIMIT, "page_size = 257", a->page_size = 257)                                         \
    X(FA_ERR_SIZE, "pages = 0", a->pages = 0)                                                      \
    X(FA_ERR_SIZE, "pages = -1", a->pages = -1)                                                    \
    X(FA_ERR_SIZE, "max_pages = 0", a->max_pages = 0)                                              \
    X(FA_ERR_STRIDE, "block_table_stride = -4", a->block_table_stride = -4)                        \
    X(FA_ERR_ALIAS, "cache_v", a->cache_v.data = a->cache_k.data)                                  \
    X(FA_ERR_ALIAS, "cache_k", a->cache_k.data = a->k_new.data)                                    \
    X(FA_ERR_ALIAS, "overlaps block_table", a->block_table = a->cache_k.data)                      \
    X(FA_ERR_ALIAS, "overlaps v_scale", a->v_scale = a->cache_v.data)                              \
    X(FA_ERR_STRIDE, "stride_batch = 1024",                                                        \
      (a->cache_k = (fa_tensor){a->cache_k.data, 1024, 32, 4 * 32}))

REFUSALS(refuse_paged, PAGED)

#define SLOTTED(X)                                                                                 \
    X(FA_ERR_NULL_POINTER, "slots", a->slots = NULL)                                               \
    X(FA_ERR_MISALIGNED, "slots", a->slots = BYTES(a->slots, 4))                                   \
    X(FA_ERR_ALIAS, "overlaps slots", a->slots = a->cache_v.data)                                  \
    X(FA_ERR_LIMIT, "head_dim = 1026", a->head_dim = 1026)                                         \
    X(FA_ERR_ROTARY_DIM, "head_dim = 33", a->head_dim = 33)                                        \
    X(FA_ERR_NULL_POINTER, "inv_freq", a->inv_freq = NULL)                                         \
    X(FA_ERR_NULL_POINTER, "positions", a->positions = NULL)

REFUSALS(refuse_slots, SLOTTED)

#define BAKED(X)                                                                                   \
    X(FA_ERR_BAKED, "batch = 3 at launch, but 2", a->batch = 3)                                    \
    X(FA_ERR_BAKED, "tokens", a->tokens = 1)                                                       \
    X(FA_ERR_BAKED, "heads", a->heads = 8)                                                         \
    X(FA_ERR_BAKED, "cache_len", a->cache_len = 129)                                               \
    X(FA_ERR_BAKED, "head_dim", a->head_dim = 64)

REFUSALS(refuse_baked, BAKED)

Test(kv_update_refusals, every_bad_argument_is_named)
{
    refuse_stacked(
        (fa_kv_update_spec){.rotation = PAIRS, .angles = FA_ROPE_TABLES, .head_dim = 32});
    refuse_paged((fa_kv_update_spec){.cache = FA_KV_BLOCK_TABLE,
                                     .cache_dtype = FA_KV_E4M3,
                                     .scales = FA_KV_SCALE_HEAD,
                                     .in_place = true,
                                     .head_dim = 32});
    refuse_slots((fa_kv_update_spec){.cache = FA_KV_SLOTS,
                                     .in_place = true,
                                     .slot_type = FA_I64,
                                     .rotation = HALF,
                                     .angles = FA_ROPE_FREQUENCIES});
    refuse_baked(canonical);
}

Test(kv_update_refusals, what_is_not_read_may_be_null)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.cache = FA_KV_SLOTS, .in_place = true});
    fa_kv_update_args *a = &x.args.kv_update;
    a->positions = a->block_table = NULL;
    a->cos = a->sin = a->inv_freq = a->k_scale = a->v_scale = NULL;
    a->k_out.data = a->v_out.data = NULL;
    a->errors = NULL;
    OK(launched_run(&x));
}

Test(kv_update_refusals, dynamic_ntk_needs_a_length)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.rotation = HALF,
                                           .head_dim = 32,
                                           .scaling = {.kind = FA_ROPE_DYNAMIC_NTK,
                                                       .factor = 2,
                                                       .original_max_position = 64}});
    REFUSED(launched_run(&x), FA_ERR_SIZE, "sequence_length = 0");
    x.args.kv_update.sequence_length = 128;
    OK(launched_run(&x));
    cr_expect_neq(launched_params(&x)->rule.quotient, 0u);
}

/* Its one frequency is 1, whatever the base; the exponent that scales the base divides by zero. */
Test(kv_update_refusals, ntk_needs_a_second_frequency_at_launch_too)
{
    for (int kind = FA_ROPE_NTK; kind <= FA_ROPE_DYNAMIC_NTK; kind++) {
        launched x;
        fa_rope_scaling scaling = {.kind = (fa_rope_scaling_kind)kind, .factor = 2};
        scaling.original_max_position = kind == FA_ROPE_DYNAMIC_NTK ? 64 : 0;
        launched_begin(&x, (fa_kv_update_spec){.rotation = HALF, .scaling = scaling});
        x.args.kv_update.sequence_length = kind == FA_ROPE_DYNAMIC_NTK ? 128 : 0;
        x.args.kv_update.head_dim = 2;
        REFUSED(launched_run(&x), FA_ERR_ROTARY_DIM, "head_dim = 2");
        x.args.kv_update.head_dim = 4;
        OK(launched_run(&x));
    }
}

/* K and V side by side in each page, or in each entry. */
Test(kv_update_launch, K33_slices_of_one_pool_are_apart)
{
    launched x;
    launched_begin(&x, (fa_kv_update_spec){.cache = FA_KV_SLOTS, .in_place = true, .head_dim = 32});
    fa_kv_update_args *a = &x.args.kv_update;
    const int64_t page = 2 * 16 * 4 * 32;
    a->cache_k = a->cache_v = (fa_tensor){TENSOR(3), page, 32, 4 * 32};
    a->cache_v.data = BYTES(a->cache_k.data, page / 2 * 4);
    OK(launched_run(&x));
    a->cache_v.data = BYTES(a->cache_k.data, page / 2 * 4 - 4);
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "cache_v");
    a->cache_k = a->cache_v = (fa_tensor){TENSOR(3), page, 64, 4 * 64};
    a->cache_v.data = BYTES(a->cache_k.data, 32 * 4);
    OK(launched_run(&x));
}

/* --- the reference --- */

Test(kv_update_oracle, golden_stacked)
{
    static const int64_t positions[] = {8, 0, 3, -1, 2, 1, 7, 5};
    static const char *const inputs[] = {"k_new", "v_new", "cache_k", "cache_v", "cos", "sin"};
    fa_kv_update_spec kv = canonical;
    kv.tokens = 4;
    kv.heads = 2;
    kv.cache_len = 9;
    const fa_spec spec = kv_spec(kv);
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_kv_update.make_case(&spec, &spec, NULL, 5, &c, why, sizeof why), "%s", why);
    for (uint64_t k = 0; k < 6; k++) {
        oracle_tensor *t = oracle_find_tensor(&c, inputs[k]);
        for (size_t i = 0; i < t->count; i++)
            ((float *)t->host)[i] = oracle_uniform(5 + k, i, -1, 1);
    }
    for (int64_t i = 0; i < 8; i++)
        oracle_set_index(oracle_find_tensor(&c, "positions"), i, positions[i]);
    oracle_kv_update_expect(&c);
    const oracle_tensor *out = oracle_find_tensor(&c, "out");
    double *golden = malloc(out->count * sizeof *golden);
    cr_assert_not_null(golden);
    golden_read("kv_update_stacked.out", golden, out->count);
    size_t rotated = 0;
    for (size_t i = 0; i < out->count; i++) {
        const double value =
            out->exact[i] ? (double)((const float *)out->stored)[i] : out->expected[i];
        rotated += !out->exact[i];
        cr_assert(fabs(value - golden[i]) <= 1e-12, "element %zu: %.17g, not %.17g", i, value,
                  golden[i]);
    }
    cr_expect_eq(rotated, 7u * 2 * 32, "tokens that are no padding");
    free(golden);
    fa_oracle_kv_update.free_case(&c);
}

Test(kv_update_oracle, e4m3_conversions)
{
    for (unsigned bits = 0; bits < 256; bits++) {
        const double value = oracle_e4m3_load((uint8_t)bits);
        cr_expect(isnan(value) ? (bits & 0x7f) == 0x7f : oracle_e4m3_store(value) == bits, "%02x",
                  bits);
    }
    const struct {
        double value;
        uint8_t bits;
    } rounded[] = {{448, 0x7e},     {1e9, 0x7e},      {-(double)INFINITY, 0xfe},
                   {464, 0x7e},     {1, 0x38},        {1.0625, 0x38},
                   {1.0626, 0x39},  {1.1875, 0x3a},   {0x1p-9, 0x01},
                   {0x1p-10, 0x00}, {0x1.8p-9, 0x02}, {0x1.1p-10, 0x01},
                   {-0.0, 0x80},    {0x1p-6, 0x08},   {0x1.fp-7, 0x08}};
    for (size_t i = 0; i < sizeof rounded / sizeof rounded[0]; i++)
        cr_expect_eq(oracle_e4m3_store(rounded[i].value), rounded[i].bits, "%g: %02x",
                     rounded[i].value, oracle_e4m3_store(rounded[i].value));
}

/* A comparison that lets something pass would make every other test worthless. */
Test(kv_update_oracle, comparison_notices_every_kind_of_difference)
{
    const fa_spec spec = kv_spec(canonical);
    const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0};
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_kv_update.make_case(&spec, &spec, extra, 1, &c, why, sizeof why), "%s",
              why);
    fa_oracle_kv_update.expect(&c);
    const oracle_tensor *t = oracle_find_tensor(&c, "out");
    float *actual = malloc(t->bytes);
    cr_assert_not_null(actual);
    memcpy(actual, t->host, t->bytes);
    cr_expect_eq(oracle_compare(&c, t, actual).bad, t->count, "nothing was written");
    size_t copied = t->count, rotated = t->count;
    for (size_t i = 0; i < t->count; i++) {
        actual[i] = t->exact[i] ? ((const float *)t->stored)[i] : (float)t->expected[i];
        copied = copied == t->count && t->exact[i] ? i : copied;
        rotated = rotated == t->count && !t->exact[i] ? i : rotated;
    }
    cr_expect_eq(oracle_compare(&c, t, actual).bad, 0u);
    actual[copied] = nextafterf(actual[copied], 2);
    cr_expect_eq(oracle_compare(&c, t, actual).first_bad, copied);
    actual[copied] = ((const float *)t->stored)[copied];
    actual[rotated] += 1e-3f;
    cr_expect_eq(oracle_compare(&c, t, actual).first_bad, rotated);
    free(actual);
    fa_oracle_kv_update.free_case(&c);
}
