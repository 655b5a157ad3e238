/* rope without a GPU: specs, plans, sources, every check of a launch's arguments, the grid; and the
 * reference against golden data. */
#include <math.h>

#include "golden.h"
#include "op_steps.h"
#include "ops/rope.h"
#include "oracle/rope.h"

static fa_spec rope_spec(fa_rope_spec rope)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = rope;
    return spec;
}

/* --- specs --- */

#define SECTIONS(kind, from, dim, t, h, w)                                                         \
    {                                                                                              \
        .head_dim = (dim), .positions = FA_ROPE_##from, .sections = FA_ROPE_SECTIONS_##kind,       \
        .section_t = (t), .section_h = (h), .section_w = (w)                                       \
    }

Test(rope_spec, refusals_name_the_field)
{
    const struct {
        fa_rope_spec rope;
        fa_status status;
        const char *word;
    } cases[] = {
        {{.head_dim = 64, .rotary_dim = 31}, FA_ERR_ROTARY_DIM, "rotary_dim = 31"},
        {{.head_dim = 64, .rotary_dim = 1}, FA_ERR_ROTARY_DIM, "rotary_dim = 1"},
        {{.head_dim = 64, .rotary_dim = 66}, FA_ERR_ROTARY_DIM, "head_dim = 64"},
        {{.head_dim = 65}, FA_ERR_ROTARY_DIM, "head_dim = 65"},
        {{.rotary_dim = 7}, FA_ERR_ROTARY_DIM, "rotary_dim = 7"},
        {{.head_dim = 1}, FA_ERR_SIZE, "head_dim"},
        {{.head_dim = -64}, FA_ERR_SIZE, "-64"},
        {{.head_dim = 1026}, FA_ERR_LIMIT, "1024"},
        {{.head_dim = 64, .rotary_dim = 1026}, FA_ERR_LIMIT, "rotary_dim"},
        {{.head_dim = 64, .batch = -1}, FA_ERR_SIZE, "batch"},
        {{.head_dim = 64, .heads_q = -1}, FA_ERR_SIZE, "heads_q"},
        {{.head_dim = 64, .heads_k = -1}, FA_ERR_SIZE, "heads_k"},
        {{.head_dim = 64, .seqlen = -1}, FA_ERR_SIZE, "seqlen"},
        {{.head_dim = 64, .heads_q = 6, .heads_k = 4}, FA_ERR_HEAD_RATIO, "heads_k = 4"},
        {{.head_dim = 64, .heads_q = 4, .heads_k = 6}, FA_ERR_HEAD_RATIO, "heads_q = 4"},
        {{.head_dim = 64, .base = 1}, FA_ERR_VALUE, "base = 1"},
        {{.head_dim = 64, .base = 0.5}, FA_ERR_VALUE, "base"},
        {{.head_dim = 64, .base = -2}, FA_ERR_VALUE, "base"},
        {{.head_dim = 64, .base = (double)INFINITY}, FA_ERR_VALUE, "base"},
        {{.head_dim = 64, .base = (double)NAN}, FA_ERR_VALUE, "base"},
        {{.head_dim = 64, .dtype = (fa_dtype)3}, FA_ERR_VALUE, "dtype"},
        {{.head_dim = 64, .style = (fa_rope_style)2}, FA_ERR_VALUE, "style"},
        {{.head_dim = 64, .angles = (fa_rope_angles)3}, FA_ERR_VALUE, "angles"},
        {{.head_dim = 64, .positions = (fa_rope_positions)4}, FA_ERR_VALUE, "positions"},
        {{.head_dim = 64, .layout = (fa_layout)2}, FA_ERR_VALUE, "layout"},
        {{.head_dim = 64, .position_type = (fa_index)2}, FA_ERR_VALUE, "position_type"},
        {{.head_dim = 64, .sections = (fa_rope_sections)3}, FA_ERR_VALUE, "sections"},
        {{.head_dim = 64, .norm = (fa_rope_norm)3}, FA_ERR_VALUE, "norm"},
        {{.head_dim = 64, .norm_eps = 1e-5}, FA_ERR_VALUE, "norm_eps is set without a norm"},
        {{.head_dim = 64, .norm_unit_offset = true}, FA_ERR_VALUE, "norm_unit_offset is set"},
        {{.head_dim = 64, .norm = FA_ROPE_RMS_NORM, .norm_eps = 2}, FA_ERR_VALUE, "norm_eps = 2"},
        {{.head_dim = 64, .norm = FA_ROPE_RMS_NORM, .norm_eps = -1}, FA_ERR_VALUE, "norm_eps"},
        {{.norm = FA_ROPE_RMS_NORM}, FA_ERR_SIZE, "a norm needs head_dim"},
        {{.rotary_dim = 32, .norm = FA_ROPE_RMS_NORM}, FA_ERR_SIZE, "a norm needs head_dim"},
        {{.head_dim = 64, .section_h = 8}, FA_ERR_VALUE, "without sections"},
        {SECTIONS(SPLIT, RANGE, 64, 16, 8, 8), FA_ERR_VALUE, "positions = range"},
        {SECTIONS(SPLIT, OFFSETS, 64, 16, 8, 8), FA_ERR_VALUE, "positions = offsets"},
        {SECTIONS(SPLIT, VECTOR, 64, 16, 8, 7), FA_ERR_SIZE, "16 + 8 + 7"},
        {SECTIONS(SPLIT, VECTOR, 0, 16, 8, 8), FA_ERR_SIZE, "to be baked"},
        {SECTIONS(SPLIT, VECTOR, 64, -1, 25, 8), FA_ERR_SIZE, "section_t = -1"},
        {SECTIONS(INTERLEAVED, VECTOR, 64, 10, 12, 10), FA_ERR_SIZE, "section_h = 12"},
        {SECTIONS(INTERLEAVED, VECTOR, 64, 11, 10, 11), FA_ERR_SIZE, "section_w = 11"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = rope_spec(cases[i].rope);
        fa__plan plan;
        REFUSED(prepare(&spec, &plan), cases[i].status, cases[i].word);
    }
}

Test(rope_spec, defaults_are_filled_in)
{
    fa__plan plan;
    fa_spec spec = rope_spec((fa_rope_spec){.head_dim = 64});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.rope.rotary_dim, 64);
    cr_expect_eq(spec.rope.base, 10000.0);
    spec = rope_spec((fa_rope_spec){.head_dim = 7, .rotary_dim = 4, .base = 500000});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.rope.rotary_dim, 4);
    cr_expect_eq(spec.rope.base, 500000.0);
    spec = rope_spec((fa_rope_spec){.angles = FA_ROPE_TABLES, .base = 500000});
    OK(prepare(&spec, &plan));
    cr_expect_eq(spec.rope.rotary_dim, 0);
    cr_expect_eq(spec.rope.base, 0.0);
}

Test(rope_spec, widest_access_that_the_baked_sizes_allow)
{
    const struct {
        fa_rope_spec rope;
        int width;
    } cases[] = {
        {{.head_dim = 64}, 4},
        {{.dtype = FA_BF16, .head_dim = 128}, 8},
        {{.dtype = FA_F16, .head_dim = 72}, 4},                               /* 36 pairs */
        {{.dtype = FA_F16, .style = FA_ROPE_INTERLEAVED, .head_dim = 72}, 8}, /* 72 neighbours */
        {{.head_dim = 6}, 1},                                                 /* 3 pairs */
        {{.style = FA_ROPE_INTERLEAVED, .head_dim = 6}, 2},                   /* 6 neighbours */
        {{.head_dim = 64, .rotary_dim = 32}, 4},                              /* 32 copied */
        {{.head_dim = 67, .rotary_dim = 32}, 1},                              /* 35 copied */
        {{.in_place = true, .head_dim = 67, .rotary_dim = 32}, 4},            /* none copied */
        {{.head_dim = 0}, 4},                                                 /* known at launch */
        {{.dtype = FA_BF16, .rotary_dim = 24}, 4},                            /* 12 pairs */
        {{.dtype = FA_BF16, .style = FA_ROPE_INTERLEAVED, .rotary_dim = 24}, 8}, /* 24 neighbours */
        {{.head_dim = 2}, 1},
        {{.dtype = FA_F16, .head_dim = 1000}, 4}, /* 500 pairs */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fa_spec spec = rope_spec(cases[i].rope);
        fa__plan plan;
        OK(prepare(&spec, &plan));
        cr_expect_eq(plan.value[ROPE_VECTOR_WIDTH], cases[i].width, "case %zu: %d, not %d", i,
                     plan.value[ROPE_VECTOR_WIDTH], cases[i].width);
    }
}

/* --- sources --- */

static char *source_of(fa_rope_spec rope, char label[160])
{
    return prepared_source(rope_spec(rope), "fajit_rope", label);
}

Test(rope_source, constants_stand_in_front_of_the_template)
{
    char label[160];
    char *text = source_of((fa_rope_spec){.dtype = FA_BF16,
                                          .style = FA_ROPE_INTERLEAVED,
                                          .head_dim = 128,
                                          .rotary_dim = 64,
                                          .heads_q = 32,
                                          .heads_k = 8,
                                          .base = 500000},
                           label);
    const char *const lines[] = {
        "#define FAJIT_INSTANCE 1\n",           "using Element = fajit::bf16;\n",
        "constexpr bool INTERLEAVED = true;\n", "constexpr int HEAD_DIM = 128;\n",
        "constexpr int ROTARY_DIM = 64;\n",     "constexpr int BATCH = 0;\n",
        "constexpr int HEADS_Q = 32;\n",        "constexpr int HEADS_K = 8;\n",
        "constexpr int VECTOR_WIDTH = 8;\n",    "#line 1 \"rope.cu\"\n"};
    const char *template = strstr(text, fa__template_rope.text);
    cr_assert_not_null(template);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(text, lines[i]);
        cr_expect(line && line < template, "missing in front of the template: %s", lines[i]);
    }
    cr_expect_str_eq(label, "rope bf16 interleaved D128 R64 H32 G8 base=500000");
    free(text);
    free(source_of(
        (fa_rope_spec){.head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256},
        label));
    cr_expect_str_eq(label, "rope f32 half D64 B4 H8 G8 N256");
}

Test(rope_source, label_names_what_is_special)
{
    char label[160];
    free(source_of((fa_rope_spec){.positions = FA_ROPE_CUMULATIVE,
                                  .position_type = FA_I64,
                                  .inverse = true,
                                  .norm = FA_ROPE_RMS_NORM,
                                  .norm_unit_offset = true,
                                  .head_dim = 64,
                                  .norm_eps = 1e-5},
                   label));
    cr_expect_str_eq(label, "rope f32 half cumulative i64 inverse rms+1 D64 norm_eps=0.00001");
    free(source_of((fa_rope_spec)SECTIONS(INTERLEAVED, VECTOR, 64, 12, 10, 10), label));
    cr_expect_str_eq(label, "rope f32 half vector interleaved=12,10,10 D64");
}

/* What cannot change the code must not split the cache; everything else must. */
Test(rope_source, F33_every_parameter_but_the_layout_changes_the_source)
{
    const fa_rope_spec plain = {.head_dim = 64, .rotary_dim = 64, .base = 10000};
    char *before = source_of(plain, NULL);
    fa_rope_spec changed[16];
    for (size_t i = 0; i < 16; i++)
        changed[i] = plain;
    changed[0].dtype = FA_F16;
    changed[1].style = FA_ROPE_INTERLEAVED;
    changed[2].angles = FA_ROPE_TABLES;
    changed[3].positions = FA_ROPE_VECTOR;
    changed[4].in_place = true;
    changed[5].head_dim = 72;
    changed[6].rotary_dim = 32;
    changed[7].batch = 1;
    changed[8].heads_q = 1;
    changed[9].heads_k = 1;
    changed[10].seqlen = 1;
    changed[11].base = 10001;
    changed[12].layout = FA_LAYOUT_BNHD;
    changed[13].inverse = true;
    changed[14].scaling.attention_factor = 1.5;
    changed[15].norm = FA_ROPE_RMS_NORM;
    for (size_t i = 0; i < 16; i++) {
        char *after = source_of(changed[i], NULL);
        cr_expect_eq(strcmp(before, after) == 0, i == 12, "change %zu", i);
        free(after);
    }
    free(before);
}

/* --- launches --- */

/* Canonical: every tensor packed, far apart, aligned to 256 bytes. */
static void launched_begin(launched *x, fa_rope_spec rope)
{
    *x = (launched){.spec = rope_spec(rope), .args = FA_ARGS_INIT(FA_OP_ROPE)};
    OK(prepare(&x->spec, &x->plan));
    x->args.rope = (fa_rope_args){.q = {AT(0x100000000), 0, 0, 0},
                                  .k = {AT(0x200000000), 0, 0, 0},
                                  .q_out = {AT(0x300000000), 0, 0, 0},
                                  .k_out = {AT(0x400000000), 0, 0, 0},
                                  .batch = rope.batch ? 0 : 4,
                                  .heads_q = rope.heads_q ? 0 : 8,
                                  .heads_k = rope.heads_k ? 0 : 8,
                                  .seqlen = rope.seqlen ? 0 : 256,
                                  .head_dim = rope.head_dim ? 0 : 64,
                                  .positions = AT(0x500000000),
                                  .positions_stride = 256,
                                  .sequence_offsets = AT(0x800000000),
                                  .sequences = 6,
                                  .sequence_length = 4096,
                                  .inv_freq = AT(0x800000000),
                                  .q_norm = AT(0x900000000),
                                  .k_norm = AT(0xa00000000),
                                  .cos = AT(0x600000000),
                                  .sin = AT(0x700000000),
                                  .max_position = 256};
}

static const rope_kernel_params *launched_params(const launched *x)
{
    return launched_block(x);
}

Test(rope_launch, canonical_is_one_wave_of_small_blocks)
{
    launched x;
    launched_begin(
        &x, (fa_rope_spec){.head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256});
    OK(launched_run(&x));
    cr_expect_not(x.launch.empty);
    cr_expect_eq(x.launch.block[0], 128u);
    cr_expect_eq(x.launch.grid[0], 64u); /* 1024 tokens of 8 units */
    cr_expect_eq(x.launch.grid[1], 4u);  /* 4 heads each */
    cr_expect_eq(x.launch.grid[2], 1u);
    const rope_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->width, 4);
    cr_expect_eq(k->groups_q, 2);
    cr_expect_eq(k->rotary_blocks, 64u);
    cr_expect_eq(k->q.in, 0x100000000u);
    cr_expect_eq(k->k.in, 0x200000000u);
    cr_expect_eq(k->q.out, 0x300000000u);
    cr_expect_eq(k->k.out, 0x400000000u);
    cr_expect_eq(k->q.in_batch, 8 * 256 * 64);
    cr_expect_eq(k->q.in_head, 256 * 64);
    cr_expect_eq(k->q.in_token, 64);
}

Test(rope_launch, packed_strides_follow_the_layout)
{
    launched x;
    launched_begin(&x, (fa_rope_spec){.layout = FA_LAYOUT_BNHD, .head_dim = 64});
    x.args.rope.heads_k = 2;
    OK(launched_run(&x));
    const rope_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->q.in_batch, 256 * 8 * 64);
    cr_expect_eq(k->q.in_token, 8 * 64);
    cr_expect_eq(k->q.in_head, 64);
    cr_expect_eq(k->k.out_batch, 256 * 2 * 64);
    cr_expect_eq(k->k.out_token, 2 * 64);
    cr_expect_eq(k->k.heads, 2);
}

/* Neighbouring threads take neighbouring heads where these lie beside each other. */
Test(rope_launch, heads_abreast_follow_the_strides)
{
    const struct {
        fa_layout layout;
        int heads_q, heads_k, seqlen, log2;
    } cases[] = {{FA_LAYOUT_BHND, 32, 32, 256, 0}, {FA_LAYOUT_BNHD, 32, 32, 256, 3},
                 {FA_LAYOUT_BNHD, 32, 8, 256, 2},  {FA_LAYOUT_BNHD, 32, 1, 256, 0},
                 {FA_LAYOUT_BNHD, 4, 4, 256, 0},   {FA_LAYOUT_BNHD, 64, 64, 256, 4},
                 {FA_LAYOUT_BNHD, 3, 3, 256, 0},   {FA_LAYOUT_BHND, 32, 32, 1, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(
            &x, (fa_rope_spec){.dtype = FA_BF16, .layout = cases[i].layout, .head_dim = 128});
        x.args.rope.heads_q = cases[i].heads_q;
        x.args.rope.heads_k = cases[i].heads_k;
        x.args.rope.seqlen = cases[i].seqlen;
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->abreast_log2, cases[i].log2, "case %zu: %d", i,
                     launched_params(&x)->abreast_log2);
    }
    /* Strides decide, not the layout's name: one tensor with tokens beside each other is enough. */
    launched x;
    launched_begin(&x, (fa_rope_spec){.layout = FA_LAYOUT_BNHD, .head_dim = 64});
    x.args.rope.heads_q = x.args.rope.heads_k = 32;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->abreast_log2, 3);
    x.args.rope.k = (fa_tensor){x.args.rope.k.data, 32 * 256 * 64, 256 * 64, 64};
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->abreast_log2, 0);
}

/* Walks the grid as the kernel does and counts who comes where. */
static void expect_covered(launched *x, int tokens, int heads_q, int heads_k, int rotated,
                           int copied)
{
    const rope_kernel_params *k = launched_params(x);
    const uint64_t threads = x->launch.block[0];
    const int abreast = 1 << k->abreast_log2;
    tokens *= abreast;
    const uint64_t rotary = k->rotary_blocks, copying = x->launch.grid[0] - rotary;
    cr_expect(rotary * threads >= (uint64_t)tokens * (uint64_t)rotated);
    cr_expect((rotary - 1) * threads < (uint64_t)tokens * (uint64_t)rotated);
    cr_expect(copying * threads >= (uint64_t)tokens * (uint64_t)copied);
    cr_expect(copying == 0 || (copying - 1) * threads < (uint64_t)tokens * (uint64_t)copied);
    int done[2] = {0, 0};
    for (uint32_t group = 0; group < x->launch.grid[1]; group++) {
        const bool is_k = group >= (uint32_t)k->groups_q;
        const rope_tensor_params *t = is_k ? &k->k : &k->q;
        int first = (int)(group - (is_k ? (uint32_t)k->groups_q : 0)) * t->heads_per_group;
        int left = t->heads - first;
        cr_expect_eq(t->heads_per_group % abreast, 0);
        cr_expect(first == done[is_k] && left > 0, "group %u begins at head %d of %d", group, first,
                  t->heads);
        done[is_k] += left < t->heads_per_group ? left : t->heads_per_group;
    }
    cr_expect_eq(done[0], heads_q);
    cr_expect_eq(done[1], heads_k);
}

Test(rope_launch, every_head_and_unit_is_covered_once)
{
    static const int head_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 40, 64, 70000};
    static const int sizes[] = {1, 3, 17, 128, 4096};
    static const int dims[][2] = {{2, 2},   {6, 6},   {46, 46}, {64, 64},     {64, 32},
                                  {72, 72}, {80, 32}, {67, 4},  {1000, 1000}, {1024, 2}};
    for (size_t h = 0; h < 16; h++)
        for (size_t g = 0; g < 16; g++)
            for (size_t s = 0; s < 5; s++)
                for (size_t d = 0; d < 10; d++) {
                    const int head_dim = dims[d][0], rotary_dim = dims[d][1];
                    if (!head_counts[h] && !head_counts[g])
                        continue;
                    if (head_counts[h] && head_counts[g] && head_counts[h] % head_counts[g])
                        continue; /* refused */
                    launched x;
                    launched_begin(&x,
                                   (fa_rope_spec){.head_dim = head_dim, .rotary_dim = rotary_dim});
                    x.args.rope.heads_q = head_counts[h];
                    x.args.rope.heads_k = head_counts[g];
                    x.args.rope.seqlen = sizes[s];
                    x.args.rope.batch = 2;
                    x.args.rope.k.data = AT(INT64_C(2) << 44);
                    x.args.rope.q_out.data = AT(INT64_C(3) << 44);
                    x.args.rope.k_out.data = AT(INT64_C(4) << 44);
                    OK(launched_run(&x));
                    const int width = launched_params(&x)->width;
                    expect_covered(&x, 2 * sizes[s], head_counts[h], head_counts[g],
                                   rotary_dim / 2 / width, (head_dim - rotary_dim) / width);
                }
}

Test(rope_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, (fa_rope_spec){.head_dim = 2, .in_place = true});
    x.args.rope.batch = INT32_MAX;
    x.args.rope.seqlen = 128;
    x.args.rope.heads_q = x.args.rope.heads_k = 1;
    x.args.rope.k.data = AT(INT64_C(1) << 50);
    OK(launched_run(&x)); /* exactly at the limit */
    cr_expect_eq(x.launch.grid[0], (uint32_t)INT32_MAX);
    x.args.rope.seqlen = 129;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "grid.x");
    x.args.rope.seqlen = INT32_MAX;
    x.args.rope.k.data = NULL;
    REFUSED(launched_run(&x), FA_ERR_STRIDE, "address space");
}

Test(rope_launch, width_follows_pointers_and_strides)
{
    const fa_rope_spec spec = {.dtype = FA_F16, .head_dim = 64};
    launched x;
    launched_begin(&x, spec);
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->width, 8);
    for (int shift = 1; shift < 16; shift++) { /* elements off a multiple of 16 bytes */
        void **pointers[] = {&x.args.rope.q.data, &x.args.rope.k.data, &x.args.rope.q_out.data,
                             &x.args.rope.k_out.data};
        for (int i = 0; i < 4; i++) {
            launched_begin(&x, spec);
            *pointers[i] = (char *)*pointers[i] + 2 * shift;
            OK(launched_run(&x));
            int expected = shift % 2 ? 1 : shift % 4 ? 2 : shift % 8 ? 4 : 8;
            cr_expect_eq(launched_params(&x)->width, expected, "pointer %d + %d", i, shift);
        }
    }
    launched_begin(&x, spec);
    x.args.rope.q.stride_token = 68; /* 136 bytes: 8 divides it */
    x.args.rope.q.stride_head = 68 * 256;
    x.args.rope.q.stride_batch = 68 * 256 * 8;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->width, 4);
    x.args.rope.q.stride_head += 1;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->width, 1);
}

Test(rope_launch, width_follows_dynamic_head_dim)
{
    const int dims[][2] = {{64, 8}, {72, 4}, {80, 8}, {46, 1}, {6, 1}, {1000, 4}, {2, 1}, {12, 2}};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        launched x;
        launched_begin(&x, (fa_rope_spec){.dtype = FA_BF16});
        x.args.rope.head_dim = dims[i][0];
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->width, dims[i][1], "head_dim %d", dims[i][0]);
        cr_expect_eq(launched_params(&x)->rotary_dim, dims[i][0]);
    }
}

Test(rope_launch, width_follows_the_tables)
{
    const struct {
        fa_rope_style style;
        int shift, width;
    } cases[] = {{FA_ROPE_HALF, 0, 8},        {FA_ROPE_HALF, 4, 1},
                 {FA_ROPE_HALF, 8, 2},        {FA_ROPE_INTERLEAVED, 0, 8},
                 {FA_ROPE_INTERLEAVED, 4, 2}, {FA_ROPE_INTERLEAVED, 8, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(&x, (fa_rope_spec){.dtype = FA_F16,
                                          .style = cases[i].style,
                                          .angles = FA_ROPE_TABLES,
                                          .head_dim = 64});
        x.args.rope.sin = AT((uintptr_t)x.args.rope.sin + (uintptr_t)cases[i].shift);
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->width, cases[i].width, "case %zu", i);
    }
}

Test(rope_launch, width_follows_the_frequencies)
{
    for (int shift = 0; shift <= 8; shift += 4) {
        launched x;
        launched_begin(
            &x, (fa_rope_spec){.dtype = FA_F16, .angles = FA_ROPE_FREQUENCIES, .head_dim = 64});
        x.args.rope.inv_freq = AT((uintptr_t)x.args.rope.inv_freq + (uintptr_t)shift);
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->width, shift == 0 ? 8 : shift / 4, "shift %d", shift);
    }
}

/* With a norm a head is shared by 2^n lanes, and nothing is copied apart from it. */
Test(rope_launch, lanes_of_a_norm)
{
    const struct {
        int head_dim, rotary_dim, lanes;
        bool in_place;
    } cases[] = {{128, 128, 8, 0}, {80, 80, 8, 1}, {72, 72, 16, 0},    {256, 32, 32, 1},
                 {64, 64, 4, 0},   {96, 32, 8, 0}, {1024, 1024, 32, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(&x, (fa_rope_spec){.dtype = FA_BF16,
                                          .head_dim = cases[i].head_dim,
                                          .rotary_dim = cases[i].rotary_dim,
                                          .in_place = cases[i].in_place,
                                          .norm = FA_ROPE_RMS_NORM_F32});
        OK(launched_run(&x));
        cr_expect_eq(x.launch.grid[0], (uint32_t)(1024 * cases[i].lanes / 128), "case %zu", i);
        cr_expect_eq(launched_params(&x)->rotary_blocks, x.launch.grid[0]);
        cr_expect_eq(launched_params(&x)->q.norm, 0x900000000u);
        cr_expect_eq(launched_params(&x)->k.norm, 0xa00000000u);
    }
}

Test(rope_launch, axes_without_gaps)
{
    launched x;
    launched_begin(&x, (fa_rope_spec)SECTIONS(SPLIT, VECTOR, 64, 16, 8, 8));
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->positions_axis_stride, 4 * 256);
    x.args.rope.positions_stride = 0;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->positions_axis_stride, 256);
    x.args.rope.positions_axis_stride = 1000;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->positions_axis_stride, 1000);
}

Test(rope_launch, K32_strides_of_dimensions_of_size_1_are_ignored)
{
    launched x;
    launched_begin(&x, (fa_rope_spec){.dtype = FA_F16, .head_dim = 64});
    x.args.rope.batch = 1;
    x.args.rope.q_out.stride_batch = INT64_MIN + 1;
    x.args.rope.q_out.stride_head = 64 * 256;
    x.args.rope.q_out.stride_token = 64;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->width, 8);
    cr_expect_eq(launched_params(&x)->q.out_batch, 0);
}

Test(rope_launch, K22_inputs_may_be_expanded)
{
    launched x;
    launched_begin(&x, (fa_rope_spec){.head_dim = 64});
    x.args.rope.k.stride_token = 64; /* one key head and batch seen by all */
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->k.in_head, 0);
    cr_expect_eq(launched_params(&x)->k.in_batch, 0);
}

Test(rope_launch, empty_work_succeeds)
{
    for (int i = 0; i < 5; i++) {
        launched x;
        launched_begin(&x, (fa_rope_spec){0});
        fa_rope_args *a = &x.args.rope;
        if (i == 0)
            a->batch = 0;
        if (i == 1)
            a->seqlen = 0;
        if (i == 2)
            a->head_dim = 0;
        if (i == 3)
            a->heads_q = a->heads_k = 0;
        if (i == 4) {
            a->heads_q = 0;
            a->k.data = NULL;
        }
        a->q.data = a->q_out.data = NULL; /* tensors without elements often have no memory */
        OK(launched_run(&x));
        cr_expect(x.launch.empty, "case %d", i);
    }
}

Test(rope_launch, q_alone_and_k_alone)
{
    launched x;
    launched_begin(&x, (fa_rope_spec){.head_dim = 64});
    x.args.rope.k.data = x.args.rope.k_out.data = NULL;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[1], (uint32_t)launched_params(&x)->groups_q);
    launched_begin(&x, (fa_rope_spec){.head_dim = 64});
    x.args.rope.heads_q = 0;
    x.args.rope.q.data = x.args.rope.q_out.data = NULL;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->groups_q, 0);
    launched_begin(&x, (fa_rope_spec){.head_dim = 64, .heads_k = 8});
    x.args.rope.k.data = NULL;
    REFUSED(launched_run(&x), FA_ERR_NULL_POINTER, "heads_k = 8 is baked");
}

/* --- bad arguments --- */

typedef void change(fa_rope_args *a);

/* A refusal for each kind of spec: X(status, word, statement on `a`). */
#define REFUSALS(NAME, LIST)                                                                       \
    static void NAME(fa_rope_spec spec)                                                            \
    {                                                                                              \
        launched x;                                                                                \
        fa_rope_args *a = &x.args.rope;                                                            \
        LIST(REFUSAL_CHECK)                                                                        \
    }
#define REFUSAL_CHECK(status, word, statement)                                                     \
    launched_begin(&x, spec);                                                                      \
    OK(launched_run(&x));                                                                          \
    statement;                                                                                     \
    REFUSED(launched_run(&x), status, word);

#define PLAIN(X)                                                                                   \
    X(FA_ERR_NULL_POINTER, "fa_rope_args.q)", a->q.data = NULL)                                    \
    X(FA_ERR_NULL_POINTER, "q_out", a->q_out.data = NULL)                                          \
    X(FA_ERR_NULL_POINTER, "k_out", a->k_out.data = NULL)                                          \
    X(FA_ERR_MISALIGNED, "fa_rope_args.q)", a->q.data = AT(0x100000002))                           \
    X(FA_ERR_MISALIGNED, "fa_rope_args.k)", a->k.data = AT(0x200000001))                           \
    X(FA_ERR_MISALIGNED, "q_out", a->q_out.data = AT(0x300000002))                                 \
    X(FA_ERR_MISALIGNED, "k_out", a->k_out.data = AT(0x400000003))                                 \
    X(FA_ERR_SIZE, "batch = -1", a->batch = -1)                                                    \
    X(FA_ERR_SIZE, "heads_q = -8", a->heads_q = -8)                                                \
    X(FA_ERR_SIZE, "heads_k = -1", a->heads_k = -1)                                                \
    X(FA_ERR_HEAD_RATIO, "heads_k = 3", a->heads_k = 3)                                            \
    X(FA_ERR_SIZE, "seqlen = -2147483648", a->seqlen = INT32_MIN)                                  \
    X(FA_ERR_BAKED, "head_dim = 32", a->head_dim = 32)                                             \
    X(FA_ERR_ALIAS, "q_out", a->q_out.data = a->q.data)                                            \
    X(FA_ERR_ALIAS, "k_out", a->k_out.data = a->q_out.data)                                        \
    X(FA_ERR_ALIAS, "k_out", a->k_out.data = (char *)a->q.data + 4 * 8 * 256 * 64 * 4 - 4)         \
    X(FA_ERR_ALIAS, "q_out", a->q_out.data = (char *)a->k.data - 4 * 8 * 256 * 64 * 4 + 4)         \
    X(FA_ERR_STRIDE, "stride_token = 63",                                                          \
      (a->q_out.stride_token = 63, a->q_out.stride_head = 64 * 256,                                \
       a->q_out.stride_batch = 64 * 256 * 8))                                                      \
    X(FA_ERR_STRIDE, "stride_head = 0", a->k_out.stride_token = 64)                                \
    X(FA_ERR_STRIDE, "stride_batch = 131008",                                                      \
      (a->q_out.stride_token = 64, a->q_out.stride_head = 64 * 256,                                \
       a->q_out.stride_batch = 64 * 256 * 8 - 64))                                                 \
    X(FA_ERR_STRIDE, "address space", a->q.stride_head = INT64_MAX)                                \
    X(FA_ERR_STRIDE, "address space", a->q.stride_token = INT64_MIN)                               \
    X(FA_ERR_STRIDE, "address space", a->k.stride_batch = INT64_C(1) << 57)

REFUSALS(refuse_plain, PLAIN)

Test(rope_refusals, plain)
{
    refuse_plain((fa_rope_spec){.head_dim = 64});
}

#define BAKED(X)                                                                                   \
    X(FA_ERR_BAKED, "batch = 5 at launch, but 4", a->batch = 5)                                    \
    X(FA_ERR_BAKED, "heads_q", a->heads_q = 7)                                                     \
    X(FA_ERR_BAKED, "heads_k", a->heads_k = 1)                                                     \
    X(FA_ERR_BAKED, "seqlen", a->seqlen = 255)                                                     \
    X(FA_ERR_BAKED, "head_dim", a->head_dim = 128)                                                 \
    X(FA_ERR_SIZE, "batch = -4", a->batch = -4)                                                    \
    X(FA_ERR_NULL_POINTER, "heads_k = 8 is baked", a->k.data = NULL)

REFUSALS(refuse_baked, BAKED)

Test(rope_refusals, baked)
{
    refuse_baked(
        (fa_rope_spec){.head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256});
    launched x; /* the same values are welcome */
    launched_begin(&x, (fa_rope_spec){.head_dim = 64, .batch = 4});
    x.args.rope.batch = 4;
    x.args.rope.head_dim = 64;
    OK(launched_run(&x));
}

#define DYNAMIC(X)                                                                                 \
    X(FA_ERR_LIMIT, "head_dim = 1026", a->head_dim = 1026)                                         \
    X(FA_ERR_ROTARY_DIM, "head_dim = 63", a->head_dim = 63)                                        \
    X(FA_ERR_SIZE, "head_dim = -64", a->head_dim = -64)

REFUSALS(refuse_dynamic, DYNAMIC)

Test(rope_refusals, dynamic_head_dim)
{
    refuse_dynamic((fa_rope_spec){0});
    launched x;
    launched_begin(&x, (fa_rope_spec){.rotary_dim = 32});
    OK(launched_run(&x));
    x.args.rope.head_dim = 30;
    REFUSED(launched_run(&x), FA_ERR_ROTARY_DIM, "head_dim = 30");
    x.args.rope.head_dim = 33; /* an odd one is fine when its tail is copied */
    OK(launched_run(&x));
}

#define VECTOR(X)                                                                                  \
    X(FA_ERR_NULL_POINTER, "positions", a->positions = NULL)                                       \
    X(FA_ERR_MISALIGNED, "positions", a->positions = AT(0x500000002))                              \
    X(FA_ERR_STRIDE, "positions_stride = -256", a->positions_stride = -256)                        \
    X(FA_ERR_STRIDE, "positions_stride", a->positions_stride = INT64_MAX)                          \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = a->q_out.data)

REFUSALS(refuse_vector, VECTOR)

#define TABLES(X)                                                                                  \
    X(FA_ERR_NULL_POINTER, "cos", a->cos = NULL)                                                   \
    X(FA_ERR_NULL_POINTER, "sin", a->sin = NULL)                                                   \
    X(FA_ERR_MISALIGNED, "cos", a->cos = AT(0x600000002))                                          \
    X(FA_ERR_SIZE, "max_position = 0", a->max_position = 0)                                        \
    X(FA_ERR_SIZE, "max_position = -1", a->max_position = -1)                                      \
    X(FA_ERR_LIMIT, "0 to 254", a->max_position = 255)                                             \
    X(FA_ERR_LIMIT, "positions 1 to 256", a->position_offset = 1)                                  \
    X(FA_ERR_LIMIT, "positions -1 to", a->position_offset = -1)                                    \
    X(FA_ERR_LIMIT, "to 2147483902", a->position_offset = INT32_MAX - 0)                           \
    X(FA_ERR_ALIAS, "overlaps cos", a->cos = (float *)a->k_out.data - 1)                           \
    X(FA_ERR_ALIAS, "overlaps sin", a->sin = a->q_out.data)

REFUSALS(refuse_tables, TABLES)

#define OFFSETS(X)                                                                                 \
    X(FA_ERR_NULL_POINTER, "positions", a->positions = NULL)                                       \
    X(FA_ERR_MISALIGNED, "positions", a->positions = AT(0x500000004))                              \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = a->k_out.data)

REFUSALS(refuse_offsets, OFFSETS)

#define CUMULATIVE(X)                                                                              \
    X(FA_ERR_NULL_POINTER, "positions", a->positions = NULL)                                       \
    X(FA_ERR_SIZE, "sequences = 0", a->sequences = 0)                                              \
    X(FA_ERR_SIZE, "sequences = -1", a->sequences = -1)                                            \
    X(FA_ERR_MISALIGNED, "sequence_offsets", a->sequence_offsets = AT(0x800000002))                \
    X(FA_ERR_ALIAS, "overlaps sequence_offsets", a->sequence_offsets = a->q_out.data)              \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = (int *)a->k_out.data - 6)

REFUSALS(refuse_cumulative, CUMULATIVE)

#define THREE_POSITIONS(X)                                                                         \
    X(FA_ERR_STRIDE, "positions_axis_stride = -1", a->positions_axis_stride = -1)                  \
    X(FA_ERR_STRIDE, "positions_axis_stride", a->positions_axis_stride = INT64_MAX)                \
    X(FA_ERR_ALIAS, "overlaps positions", a->positions = (int *)a->q_out.data - (3 * 4 * 256 - 1))

REFUSALS(refuse_three_positions, THREE_POSITIONS)

#define FREQUENCIES(X)                                                                             \
    X(FA_ERR_NULL_POINTER, "inv_freq", a->inv_freq = NULL)                                         \
    X(FA_ERR_MISALIGNED, "inv_freq", a->inv_freq = AT(0x800000002))                                \
    X(FA_ERR_ALIAS, "overlaps inv_freq", a->inv_freq = (float *)a->k_out.data - 31)

REFUSALS(refuse_frequencies, FREQUENCIES)

#define NORM(X)                                                                                    \
    X(FA_ERR_NULL_POINTER, "q_norm", a->q_norm = NULL)                                             \
    X(FA_ERR_NULL_POINTER, "k_norm", a->k_norm = NULL)                                             \
    X(FA_ERR_MISALIGNED, "k_norm", a->k_norm = AT(0xa00000001))                                    \
    X(FA_ERR_ALIAS, "overlaps q_norm", a->q_norm = a->k_out.data)

REFUSALS(refuse_norm, NORM)

#define LENGTH(X)                                                                                  \
    X(FA_ERR_SIZE, "sequence_length = 0", a->sequence_length = 0)                                  \
    X(FA_ERR_SIZE, "sequence_length = -5", a->sequence_length = -5)

REFUSALS(refuse_length, LENGTH)

Test(rope_refusals, what_is_read_beside_the_tensors)
{
    refuse_offsets(
        (fa_rope_spec){.head_dim = 64, .positions = FA_ROPE_OFFSETS, .position_type = FA_I64});
    refuse_cumulative((fa_rope_spec){.head_dim = 64, .batch = 1, .positions = FA_ROPE_CUMULATIVE});
    refuse_three_positions((fa_rope_spec)SECTIONS(SPLIT, VECTOR, 64, 16, 8, 8));
    refuse_frequencies((fa_rope_spec){.head_dim = 64, .angles = FA_ROPE_FREQUENCIES});
    refuse_norm((fa_rope_spec){.dtype = FA_BF16, .head_dim = 64, .norm = FA_ROPE_RMS_NORM});
    const fa_rope_scaling dynamic = {
        .kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 1024};
    refuse_length((fa_rope_spec){.head_dim = 64, .scaling = dynamic});
    launched x;
    launched_begin(&x, (fa_rope_spec){.head_dim = 64, .positions = FA_ROPE_CUMULATIVE});
    REFUSED(launched_run(&x), FA_ERR_SIZE, "batch = 4; packed sequences are 1 batch");
    launched_begin(&x, (fa_rope_spec){.scaling = dynamic});
    x.args.rope.head_dim = 2;
    REFUSED(launched_run(&x), FA_ERR_ROTARY_DIM, "head_dim = 2");
    fa_rope_scaling baked = dynamic;
    baked.sequence_length = 5000;
    launched_begin(&x, (fa_rope_spec){.head_dim = 64, .scaling = baked});
    REFUSED(launched_run(&x), FA_ERR_BAKED, "sequence_length = 4096 at launch, but 5000");
    x.args.rope.sequence_length = 0;
    OK(launched_run(&x));
}

Test(rope_refusals, positions_and_tables)
{
    refuse_vector((fa_rope_spec){.head_dim = 64, .positions = FA_ROPE_VECTOR});
    refuse_tables((fa_rope_spec){.head_dim = 64, .angles = FA_ROPE_TABLES});
    launched x; /* a vector's positions are only known on the device */
    launched_begin(
        &x, (fa_rope_spec){.head_dim = 64, .angles = FA_ROPE_TABLES, .positions = FA_ROPE_VECTOR});
    x.args.rope.max_position = 3;
    x.args.rope.positions_stride = 0;
    OK(launched_run(&x));
    launched_begin(&x, (fa_rope_spec){.head_dim = 64}); /* computed angles go anywhere */
    x.args.rope.position_offset = INT32_MIN;
    OK(launched_run(&x));
}

/* --- slices of one buffer --- */

/* [batch, token, 3 kinds of head, head_dim] and the other ways to fuse q, k and v. */
Test(rope_launch, K38_slices_of_a_fused_tensor_are_apart)
{
    launched x;
    fa_rope_args *a = &x.args.rope;
    const fa_rope_spec in_place = {.head_dim = 64, .in_place = true};
    char *base = AT(0x100000000);

    launched_begin(&x, in_place); /* heads of q, then k, then v, in each token */
    a->q = (fa_tensor){base, 256 * 24 * 64, 64, 24 * 64};
    a->k = (fa_tensor){base + 8 * 64 * 4, 256 * 24 * 64, 64, 24 * 64};
    OK(launched_run(&x));
    a->k.data = base + 7 * 64 * 4; /* q's last head */
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");
    a->k.data = base + 8 * 64 * 4 - 4; /* its last element */
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");
    a->k.data = base + 16 * 64 * 4;
    OK(launched_run(&x));
    a->k.data = base + 17 * 64 * 4; /* k's last head is the next token's first of q */
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");

    launched_begin(&x, in_place); /* K39: q, k, v side by side in each head */
    a->q = (fa_tensor){base, 256 * 24 * 64, 3 * 64, 24 * 64};
    a->k = (fa_tensor){base + 64 * 4, 256 * 24 * 64, 3 * 64, 24 * 64};
    OK(launched_run(&x));
    a->k.data = base + 32 * 4;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");

    launched_begin(&x, in_place); /* [batch, 3 * heads, token, head_dim] */
    a->q = (fa_tensor){base, 24 * 256 * 64, 256 * 64, 64};
    a->k = (fa_tensor){base + 8 * 256 * 64 * 4, 24 * 256 * 64, 256 * 64, 64};
    OK(launched_run(&x));
    a->k.data = base + 7 * 256 * 64 * 4;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");

    launched_begin(&x, in_place); /* fewer key heads */
    a->heads_k = 2;
    a->q = (fa_tensor){base, 256 * 12 * 64, 64, 12 * 64};
    a->k = (fa_tensor){base + 8 * 64 * 4, 256 * 12 * 64, 64, 12 * 64};
    OK(launched_run(&x));
    a->k.data = base - 2 * 64 * 4;
    OK(launched_run(&x));
    a->k.data = base - 1 * 64 * 4;
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "k");
}

/* The quick test against trying every pair of elements, on small random lattices. */
Test(rope_launch, overlap_agrees_with_trying_every_element)
{
    size_t apart = 0, alias = 0;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        uint64_t n = 0;
#define RANDOM(low, high) ((int)floor((double)oracle_uniform(seed, n++, (low), (high) + 1)))
        const int b = RANDOM(1, 3), h = RANDOM(1, 3), g = RANDOM(0, 1) ? h : 1, t = RANDOM(1, 3);
        const int inner = RANDOM(2, 6), middle = inner * RANDOM(3, 7),
                  outer = middle * RANDOM(3, 6);
        const bool bhnd = RANDOM(0, 1);
        const int shift = RANDOM(-40, 40);
        launched x;
        launched_begin(&x, (fa_rope_spec){.head_dim = 2, .in_place = true});
        fa_rope_args *a = &x.args.rope;
        a->batch = b;
        a->heads_q = h;
        a->heads_k = g;
        a->seqlen = t;
        a->q = (fa_tensor){AT(0x100000000), outer, bhnd ? middle : inner, bhnd ? inner : middle};
        a->k = a->q;
        a->k.data = (char *)a->q.data + 4 * shift;
        char used[4096] = {0};
        bool overlap = false;
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < b; i++)
                for (int j = 0; j < (k ? g : h); j++)
                    for (int l = 0; l < t; l++)
                        for (int d = 0; d < 2; d++) {
                            int64_t at = 1000 + (k ? shift : 0) + i * a->q.stride_batch +
                                         j * a->q.stride_head + l * a->q.stride_token + d;
                            overlap |= used[at];
                            used[at] = 1;
                        }
        fa_status status = launched_run(&x);
        cr_assert_eq(status, overlap ? FA_ERR_ALIAS : FA_OK, "seed %llu: %s, overlap %d: %s",
                     (unsigned long long)seed, fa_status_name(status), overlap, fa_last_error());
        *(overlap ? &alias : &apart) += 1;
    }
    cr_expect(apart > 1000 && alias > 1000, "%zu apart, %zu not", apart, alias);
}

/* --- the reference --- */

static void expect_golden(oracle_case *c, const char *tensor, const char *name)
{
    const oracle_tensor *t = oracle_find_tensor(c, tensor);
    double *values = malloc(t->count * sizeof *values), worst = 0;
    cr_assert_not_null(values);
    golden_read(name, values, t->count);
    for (size_t i = 0; i < t->count; i++)
        worst = fmax(worst, fabs(values[i] - t->expected[i]));
    cr_expect(worst <= 1e-12, "%s: off by %g", name, worst);
    free(values);
}

Test(rope_oracle, golden_half)
{
    fa_spec spec = rope_spec(
        (fa_rope_spec){.head_dim = 64, .batch = 2, .heads_q = 3, .heads_k = 1, .seqlen = 17});
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_rope.make_case(&spec, &spec, NULL, 1, &c, why, sizeof why), "%s", why);
    fa_oracle_rope.expect(&c);
    expect_golden(&c, "q_out", "rope_half.q");
    expect_golden(&c, "k_out", "rope_half.k");
    fa_oracle_rope.free_case(&c);
}

Test(rope_oracle, golden_interleaved_partial)
{
    static const int32_t positions[2][5] = {{5, 5, 0, 131071, 7}, {1, 2, 3, 1000000, 0}};
    fa_spec spec = rope_spec((fa_rope_spec){.style = FA_ROPE_INTERLEAVED,
                                            .positions = FA_ROPE_VECTOR,
                                            .head_dim = 80,
                                            .rotary_dim = 32,
                                            .batch = 2,
                                            .heads_q = 2,
                                            .seqlen = 5,
                                            .base = 500000});
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_rope.make_case(&spec, &spec, NULL, 3, &c, why, sizeof why), "%s", why);
    memcpy(oracle_find_tensor(&c, "positions")->host, positions, sizeof positions);
    oracle_rope_expect(&c);
    expect_golden(&c, "q_out", "rope_interleaved_partial.q");
    fa_oracle_rope.free_case(&c);
}

Test(rope_oracle, generator_and_conversions)
{
    static const float first[] = {0.5326035022735596f, -0.7479379773139954f, 0.4018624722957611f,
                                  0.26575252413749695f};
    for (uint64_t i = 0; i < 4; i++)
        cr_expect_eq(oracle_uniform(1, i, -1, 1), first[i]);
    for (int type = 1; type <= 2; type++) /* every finite value comes back as it was */
        for (unsigned bits = 0; bits < 65536; bits++) {
            uint16_t in = (uint16_t)bits, out = 0;
            double value = 0;
            oracle_load((fa_dtype)type, &value, &in, 1);
            oracle_store((fa_dtype)type, &out, &value, 1);
            cr_expect(isnan(value) ? isnan(value) : in == out, "%s: %04x, %04x",
                      fa__dtype_name((fa_dtype)type), in, out);
        }
    const struct {
        fa_dtype dtype;
        double value;
        uint16_t bits;
    } rounded[] = {{FA_F16, 1 + 0x1p-11, 0x3c00}, {FA_F16, 1 + 0x3p-11, 0x3c02},
                   {FA_F16, 65519.99, 0x7bff},    {FA_F16, 65520, 0x7c00},
                   {FA_F16, 0x1p-25, 0x0000},     {FA_F16, 0x3p-25, 0x0002},
                   {FA_F16, -0x1.8p-14, 0x8600},  {FA_BF16, 1 + 0x1p-8, 0x3f80},
                   {FA_BF16, 1 + 0x3p-8, 0x3f82}, {FA_BF16, 1 + 0x1.00001p-8, 0x3f81},
                   {FA_BF16, -0.0, 0x8000},       {FA_BF16, 1e39, 0x7f80}};
    for (size_t i = 0; i < sizeof rounded / sizeof rounded[0]; i++) {
        uint16_t bits = 0;
        oracle_store(rounded[i].dtype, &bits, &rounded[i].value, 1);
        cr_expect_eq(bits, rounded[i].bits, "case %zu: %04x, not %04x", i, bits, rounded[i].bits);
    }
}

/* A comparison that lets something pass would make every other test worthless. */
Test(rope_oracle, comparison_notices_every_kind_of_difference)
{
    fa_spec spec = rope_spec((fa_rope_spec){.head_dim = 8, .batch = 1, .heads_q = 2, .seqlen = 3});
    const int64_t extra[] = {0, 0, 0, 0, 4};
    oracle_case c;
    char why[256];
    cr_assert(fa_oracle_rope.make_case(&spec, &spec, extra, 1, &c, why, sizeof why), "%s", why);
    fa_oracle_rope.expect(&c);
    oracle_tensor *t = oracle_find_tensor(&c, "q_out");
    float *actual = malloc(t->bytes);
    memcpy(actual, t->host, t->bytes);
    cr_expect_eq(oracle_compare(&c, t, actual).bad, 48, "nothing was written");
    for (size_t i = 0; i < t->count; i++)
        if (!t->untouched[i])
            actual[i] = (float)t->expected[i];
    cr_expect_eq(oracle_compare(&c, t, actual).bad, 0);
    const float wrong[] = {NAN, INFINITY, 1e-3f};
    for (size_t i = 0; i < 3; i++) {
        actual[13] = i == 2 ? actual[13] + wrong[i] : wrong[i];
        oracle_verdict v = oracle_compare(&c, t, actual);
        cr_expect(v.bad == 1 && v.first_bad == 13, "case %zu: %zu bad, first %zu", i, v.bad,
                  v.first_bad);
        actual[13] = (float)t->expected[13];
    }
    cr_assert(t->untouched[9]); /* the gap behind the first row */
    actual[9] = 0;
    cr_expect_eq(oracle_compare(&c, t, actual).first_bad, 9);
    free(actual);
    fa_oracle_rope.free_case(&c);
}
