/* rope on a device: every source of angles and positions, scaling, sections, inverse, norm. */
#include <math.h>
#include <stdio.h>

#include "golden.h"
#include "gpu_rope.h"
#include "oracle/rotary.h"

static const int64_t none[ROPE_EXTRAS] = {0};

typedef struct form {
    fa_rope_spec spec;
    int64_t extra[ROPE_EXTRAS]; /* offset, -, position_max, shared, stride_pad, sequences, length */
} form;

static fa_rope_spec sized(fa_rope_spec spec)
{
    const bool packed = spec.positions == FA_ROPE_CUMULATIVE;
    spec.head_dim = spec.head_dim ? spec.head_dim : 64;
    spec.batch = packed ? 1 : 2;
    spec.heads_q = 6;
    spec.heads_k = 2;
    spec.seqlen = packed ? 67 : 21;
    return spec;
}

/* Compiles all at once, then runs each with nothing but head_dim baked, or (baked 0) not even it. */
static void run_forms(const form *forms, size_t count, int baked)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_spec *specs = malloc(count * sizeof *specs);
    cr_assert_not_null(specs);
    for (size_t i = 0; i < count; i++)
        specs[i] = rope_spec(bake(sized(forms[i].spec), baked));
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
    free(specs);
    for (size_t i = 0; i < count; i++) {
        const fa_rope_spec sizes = sized(forms[i].spec);
        run_rope(ctx, bake(sizes, baked), sizes, forms[i].extra, i + 1);
    }
    close_device(&f, ctx);
}

#define COUNT(array) (sizeof array / sizeof array[0])

/* --- scaling --- */

#define FAR 1000000 - 8 /* a frequency that is off by 10^-11 shows there */

static const form scalings[] = {
    {{.scaling = {.kind = FA_ROPE_LINEAR, .factor = 3}}, {FAR}},
    {{.scaling = {.kind = FA_ROPE_NTK, .factor = 3}}, {FAR}},
    {{.scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 4096}},
     {FAR, 0, 0, 0, 0, 0, 50000}},
    {{.scaling = {.kind = FA_ROPE_YARN, .factor = 16, .original_max_position = 4096},
      .base = 500000},
     {FAR}},
    {{.scaling =
          {.kind = FA_ROPE_YARN, .factor = 32, .original_max_position = 4096, .untruncated = true},
      .base = 150000},
     {FAR}},
    {{.scaling = {.kind = FA_ROPE_LLAMA3, .factor = 8, .original_max_position = 8192},
      .base = 500000},
     {FAR}},
};

Test(gpu_rope_forms, scaling_at_position_1000000)
{
    run_forms(scalings, COUNT(scalings), 1);
}

Test(gpu_rope_forms, scaling_with_head_dim_at_launch)
{
    run_forms(scalings, COUNT(scalings), 0);
}

Test(gpu_rope_forms, dynamic_ntk_up_to_the_trained_length_is_plain)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec sizes = sized((fa_rope_spec){
        .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 4096}});
    fa_rope_spec plain = sizes;
    plain.scaling = (fa_rope_scaling){0};
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    for (int i = 0; i < 3; i++) { /* one kernel for every length */
        const int64_t extra[ROPE_EXTRAS] = {[6] = i == 0 ? 1 : i == 1 ? 4096 : 4097};
        gpu_case d, expected;
        make_rope(&d, bake(sizes, 1), sizes, extra, 1);
        make_rope(&expected, bake(plain, 1), plain, none, 1);
        gpu_case_run(&d, kernel);
        const oracle_tensor *t = oracle_find_tensor(&expected.c, "q_out");
        const oracle_verdict v = oracle_compare(&expected.c, t, gpu_case_result(&d, "q_out"));
        cr_expect_eq(v.bad > 0, i == 2, "length %d: %zu differ from plain", (int)extra[6], v.bad);
        gpu_case_free(&d);
        gpu_case_free(&expected);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Position 0 turns nothing: what comes out is the input times the attention factor, once. */
Test(gpu_rope_forms, K44_yarn_attention_factor_once)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 2; i++) {
        fa_rope_spec sizes = sized((fa_rope_spec){.scaling = {.kind = FA_ROPE_YARN,
                                                              .factor = 16,
                                                              .original_max_position = 4096,
                                                              .attention_factor = i ? 0.5 : 0}});
        fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
        gpu_case d;
        make_rope(&d, bake(sizes, 1), sizes, none, 1);
        gpu_case_upload(&d);
        gpu_case_launch(&d, kernel);
        const float *in = oracle_find_tensor(&d.c, "q")->host;
        const float *out = gpu_case_result(&d, "q_out");
        const float factor = i ? 0.5f : 1.2772588722239782f;
        for (int k = 0; k < 64; k++)
            cr_expect_eq(out[k], in[k] * factor, "element %d: %.9g of %.9g", k, (double)out[k],
                         (double)in[k]);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_rope_forms, K45_llama3_all_three_bands)
{
    const form llama[] = {
        {{.dtype = FA_F32,
          .head_dim = 128,
          .scaling = {.kind = FA_ROPE_LLAMA3, .factor = 8, .original_max_position = 8192},
          .base = 500000},
         {60000}}};
    int band[3] = {0};
    for (int j = 0; j < 64; j++) {
        const fa_rope_scaling plain = {0}, *s = &llama[0].spec.scaling;
        const double ratio = oracle_rotary_frequency(500000, &plain, 128, 0, j) /
                             oracle_rotary_frequency(500000, s, 128, 0, j);
        band[ratio > 7.999999 ? 2 : ratio > 1.000001 ? 1 : 0]++;
    }
    cr_expect(band[0] > 10 && band[1] > 3 && band[2] > 10, "%d, %d, %d pairs", band[0], band[1],
              band[2]);
    run_forms(llama, 1, 1);
}

/* --- frequencies that are read --- */

Test(gpu_rope_forms, frequency_vectors)
{
    const form forms[] = {
        {{.angles = FA_ROPE_FREQUENCIES}, {FAR}},
        {{.angles = FA_ROPE_FREQUENCIES,
          .style = FA_ROPE_INTERLEAVED,
          .dtype = FA_BF16,
          .rotary_dim = 32,
          .scaling = {.attention_factor = 1.25}},
         {15962}},
    };
    run_forms(forms, COUNT(forms), 1);
    run_forms(forms, 1, 0);
}

/* From the smallest float32 to whole turns, of either sign; what is not finite gives NaN. */
Test(gpu_rope_forms, frequencies_of_every_size)
{
    static const float values[16] = {0,      1,         -1,    0.5f,   0.99999994f, 1e-3f,
                                     1e-38f, 1e-44f,    3.25f, 100.5f, -7e-6f,      6.2831855f,
                                     1e-20f, -INFINITY, NAN,   1e6f};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes = sized((fa_rope_spec){.angles = FA_ROPE_FREQUENCIES, .head_dim = 32});
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    gpu_case d;
    const int64_t extra[ROPE_EXTRAS] = {1000};
    make_rope(&d, bake(sizes, 1), sizes, extra, 1);
    memcpy(oracle_find_tensor(&d.c, "inv_freq")->host, values, sizeof values);
    oracle_rope_expect(&d.c);
    gpu_case_run(&d, kernel);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_forms, golden_data_of_scaled_frequencies)
{
    static const char *const names[] = {"rope_linear", "rope_dynamic", "rope_yarn", "rope_llama3"};
    static const int64_t positions[] = {0, 1, 4095, 60001};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 4; i++) {
        fa_rope_spec spec = {.angles = FA_ROPE_FREQUENCIES,
                             .positions = FA_ROPE_VECTOR,
                             .position_type = FA_I64,
                             .head_dim = 128};
        if (i == 2)
            spec.scaling.attention_factor = 1.2772588722239782;
        fa_rope_spec sizes = spec;
        sizes.batch = 1;
        sizes.heads_q = 2;
        sizes.seqlen = 4;
        char name[64];
        double inv_freq[64];
        gpu_case d;
        fa_kernel *kernel = compile_rope(ctx, spec);
        make_rope(&d, spec, sizes, none, 4);
        memcpy(oracle_find_tensor(&d.c, "positions")->host, positions, sizeof positions);
        snprintf(name, sizeof name, "%s.inv_freq", names[i]);
        golden_read(name, inv_freq, 64);
        for (int j = 0; j < 64; j++)
            ((float *)oracle_find_tensor(&d.c, "inv_freq")->host)[j] = (float)inv_freq[j];
        oracle_rope_expect(&d.c);
        snprintf(name, sizeof name, "%s.q", names[i]);
        golden_read(name, oracle_find_tensor(&d.c, "q_out")->expected, 2 * 4 * 128);
        gpu_case_run(&d, kernel);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- positions --- */

Test(gpu_rope_forms, positions_of_every_source)
{
    const form forms[] = {
        {{.positions = FA_ROPE_VECTOR, .position_type = FA_I64}, {INT64_C(5000000000)}},
        {{.positions = FA_ROPE_OFFSETS}, {-5, 0, 100000}},
        {{.positions = FA_ROPE_OFFSETS, .position_type = FA_I64, .dtype = FA_F16}, {1 << 20}},
        {{.positions = FA_ROPE_OFFSETS, .angles = FA_ROPE_TABLES}, {3, 0, 100}},
        {{.positions = FA_ROPE_CUMULATIVE, .layout = FA_LAYOUT_BNHD}, {0, 0, 0, 0, 0, 5}},
        {{.positions = FA_ROPE_CUMULATIVE, .position_type = FA_I64, .layout = FA_LAYOUT_BNHD},
         {70, 0, 9, 0, 3, 4}},
        {{.positions = FA_ROPE_CUMULATIVE, .angles = FA_ROPE_TABLES}, {0, 0, 0, 0, 0, 1}},
    };
    run_forms(forms, COUNT(forms), 1);
}

/* K06, K50: empty sequences, and tokens behind the last one, which count on from its end. */
Test(gpu_rope_forms, packed_sequences_of_awkward_lengths)
{
    static const int32_t begins[][6] = {{0, 0, 7, 7, 7, 21}, {0, 1, 2, 3, 4, 9},
                                        {0, 0, 0, 0, 0, 0},  {0, 21, 21, 21, 21, 21},
                                        {0, 3, 5, 9, 9, 13}, {0, 4, 8, 13, 30, 40}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes = sized((fa_rope_spec){.positions = FA_ROPE_CUMULATIVE});
    sizes.seqlen = 21;
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    for (size_t i = 0; i < COUNT(begins); i++) {
        const int64_t extra[ROPE_EXTRAS] = {[5] = 5};
        gpu_case d;
        make_rope(&d, bake(sizes, 1), sizes, extra, i + 1);
        memcpy(oracle_find_tensor(&d.c, "positions")->host, begins[i], sizeof begins[i]);
        oracle_rope_expect(&d.c);
        gpu_case_run(&d, kernel);
        gpu_case_free(&d);
    }
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_forms, three_positions_for_sections_of_pairs)
{
    const form forms[] = {
        {{.positions = FA_ROPE_VECTOR,
          .sections = FA_ROPE_SECTIONS_SPLIT,
          .section_t = 8,
          .section_h = 12,
          .section_w = 12},
         {0, 0, 5000}},
        {{.positions = FA_ROPE_VECTOR,
          .position_type = FA_I64,
          .dtype = FA_BF16,
          .sections = FA_ROPE_SECTIONS_INTERLEAVED,
          .section_t = 12,
          .section_h = 10,
          .section_w = 10},
         {0, 0, 5000, 1}},
        {{.positions = FA_ROPE_VECTOR,
          .angles = FA_ROPE_TABLES,
          .style = FA_ROPE_INTERLEAVED,
          .rotary_dim = 32,
          .sections = FA_ROPE_SECTIONS_SPLIT,
          .section_t = 3,
          .section_h = 6,
          .section_w = 7},
         {0, 0, 500}},
        {{.positions = FA_ROPE_VECTOR,
          .angles = FA_ROPE_FREQUENCIES,
          .sections = FA_ROPE_SECTIONS_INTERLEAVED,
          .section_t = 32},
         {7, 0, 5000}},
    };
    run_forms(forms, COUNT(forms), 1);
}

/* Axes behind each other with a gap, and the same position on all: the plain rotation, bitwise. */
Test(gpu_rope_forms, equal_positions_on_every_axis_are_one_position)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec one = sized((fa_rope_spec){.positions = FA_ROPE_VECTOR}), three = one;
    three.sections = FA_ROPE_SECTIONS_SPLIT;
    three.section_t = 16;
    three.section_h = three.section_w = 8;
    fa_kernel *kernel[2] = {compile_rope(ctx, bake(one, 1)), compile_rope(ctx, bake(three, 1))};
    const int64_t extra[ROPE_EXTRAS] = {0, 0, 100000};
    gpu_case d[2];
    make_rope(&d[0], bake(one, 1), one, extra, 1);
    make_rope(&d[1], bake(three, 1), three, extra, 1);
    const int32_t *given = oracle_find_tensor(&d[0].c, "positions")->host;
    int32_t *axes = oracle_find_tensor(&d[1].c, "positions")->host;
    for (int axis = 0; axis < 3; axis++) /* 40 of the 42 between axes: the last entry is unused */
        for (int i = 0; i < 40; i++)
            axes[axis * 40 + i] = given[i];
    d[0].c.args.rope.positions_stride = d[1].c.args.rope.positions_stride = 19;
    d[1].c.args.rope.positions_axis_stride = 40;
    for (int i = 0; i < 2; i++) {
        oracle_rope_expect(&d[i].c);
        gpu_case_upload(&d[i]);
        gpu_case_launch(&d[i], kernel[i]);
        gpu_case_check(&d[i], kernel[i]);
    }
    const size_t q = gpu_case_index(&d[0], "q_out");
    cr_expect_eq(memcmp(gpu_case_at(&d[0], q), gpu_case_at(&d[1], q), d[0].c.tensor[q].bytes), 0);
    for (int i = 0; i < 2; i++) {
        gpu_case_free(&d[i]);
        fa_kernel_release(kernel[i]);
    }
    close_device(&f, ctx);
}

/* --- inverse --- */

Test(gpu_rope_forms, inverse_undoes_the_rotation)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int style = 0; style < 2; style++) {
        fa_rope_spec sizes = sized((fa_rope_spec){
            .style = (fa_rope_style)style, .in_place = true, .rotary_dim = style ? 32 : 64});
        fa_rope_spec back = sizes;
        back.inverse = true;
        run_rope(ctx, bake(back, 1), back, none, 5); /* by itself against the reference */
        fa_kernel *kernel[2] = {compile_rope(ctx, bake(sizes, 1)),
                                compile_rope(ctx, bake(back, 1))};
        const int64_t extra[ROPE_EXTRAS] = {12345};
        gpu_case d;
        make_rope(&d, bake(sizes, 1), sizes, extra, 1);
        gpu_case_upload(&d);
        gpu_case_launch(&d, kernel[0]);
        gpu_case_launch(&d, kernel[1]);
        const oracle_tensor *t = oracle_find_tensor(&d.c, "q");
        const float *in = t->host;
        const float *out = gpu_case_result(&d, "q");
        for (size_t i = 0; i < t->count; i++)
            cr_assert_float_eq(out[i], in[i], 1e-6f, "element %zu: %.9g, not %.9g", i,
                               (double)out[i], (double)in[i]);
        gpu_case_free(&d);
        for (int i = 0; i < 2; i++)
            fa_kernel_release(kernel[i]);
    }
    close_device(&f, ctx);
}

/* --- norm --- */

#define RMS .norm = FA_ROPE_RMS_NORM
#define RMS_F32 .norm = FA_ROPE_RMS_NORM_F32

static const form norms[] = {
    {{RMS, .head_dim = 128}, {0}},
    {{RMS, .dtype = FA_BF16, .head_dim = 128, .norm_unit_offset = true}, {0, 0, 0, 0, 8}},
    {{RMS_F32, .dtype = FA_F16, .head_dim = 256, .norm_eps = 1e-2, .in_place = true}, {0}},
    {{RMS_F32, .dtype = FA_BF16, .style = FA_ROPE_INTERLEAVED, .head_dim = 80, .rotary_dim = 32},
     {15962}},
    {{RMS, .head_dim = 72, .rotary_dim = 18, .in_place = true, .layout = FA_LAYOUT_BNHD}, {0}},
    {{RMS, .head_dim = 2, .style = FA_ROPE_INTERLEAVED}, {0}},
    {{RMS, .dtype = FA_F16, .head_dim = 67, .rotary_dim = 34, .inverse = true}, {0}},
};

Test(gpu_rope_forms, norm_before_the_rotation)
{
    run_forms(norms, COUNT(norms), 1);
}

/* In place and out of place, whatever the alignment lets an access be; the mean is the head's. */
Test(gpu_rope_forms, K43_norm_in_place_equals_out_of_place)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec out =
        sized((fa_rope_spec){RMS, .dtype = FA_BF16, .head_dim = 80, .rotary_dim = 64});
    fa_rope_spec in = out;
    in.in_place = true;
    fa_kernel *kernel[2] = {compile_rope(ctx, bake(out, 1)), compile_rope(ctx, bake(in, 1))};
    for (int pad = 0; pad < 4; pad++) {
        const int64_t extra[ROPE_EXTRAS] = {[4] = pad};
        gpu_case d[2];
        for (int i = 0; i < 2; i++) {
            make_rope(&d[i], bake(i ? in : out, 1), out, extra, 3);
            gpu_case_upload(&d[i]);
            gpu_case_launch(&d[i], kernel[i]);
            gpu_case_check(&d[i], kernel[i]);
        }
        for (int k = 0; k < 2; k++) {
            const size_t q = gpu_case_index(&d[0], k ? "k_out" : "q_out");
            const unsigned char *a = gpu_case_at(&d[0], q);
            const unsigned char *b = gpu_case_result(&d[1], k ? "k" : "q");
            cr_expect_eq(memcmp(a, b, d[0].c.tensor[q].bytes), 0, "pad %d, %s", pad, k ? "k" : "q");
        }
        for (int i = 0; i < 2; i++)
            gpu_case_free(&d[i]);
    }
    for (int i = 0; i < 2; i++)
        fa_kernel_release(kernel[i]);
    close_device(&f, ctx);
}

/* Heads of zeros stay zeros, huge and tiny ones come out of size one. */
Test(gpu_rope_forms, norm_of_extreme_heads)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec sizes = sized((fa_rope_spec){RMS, .head_dim = 64});
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    gpu_case d;
    make_rope(&d, bake(sizes, 1), sizes, none, 3);
    float *q = oracle_find_tensor(&d.c, "q")->host;
    for (int i = 0; i < 64; i++) {
        q[i] = 0;
        q[64 + i] *= 1e18f;
        q[128 + i] *= 1e-18f;
    }
    oracle_rope_expect(&d.c);
    gpu_case_run(&d, kernel);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- heads beside each other --- */

Test(gpu_rope_forms, K32_any_number_of_heads_abreast)
{
    static const int heads[][3] = {{32, 32, 5}, {32, 8, 5}, {64, 64, 3}, {17, 17, 7}, {40, 5, 3},
                                   {9, 3, 1},   {16, 0, 9}, {0, 16, 9},  {24, 24, 1}, {4, 2, 2}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 3; i++) {
        const fa_rope_spec spec = {.dtype = i ? FA_BF16 : FA_F32,
                                   .layout = FA_LAYOUT_BNHD,
                                   .style = (fa_rope_style)(i / 2),
                                   .head_dim = i ? 64 : 128,
                                   .rotary_dim = i ? 32 : 128};
        fa_kernel *kernel = compile_rope(ctx, spec);
        for (size_t k = 0; k < COUNT(heads); k++)
            for (int pad = 0; pad < 9; pad += 8) {
                const int64_t extra[ROPE_EXTRAS] = {[4] = pad};
                fa_rope_spec sizes = spec;
                sizes.batch = 3;
                sizes.heads_q = heads[k][0];
                sizes.heads_k = heads[k][1];
                sizes.seqlen = heads[k][2];
                gpu_case d;
                make_rope(&d, spec, sizes, extra, k + 1);
                gpu_case_run(&d, kernel);
                gpu_case_free(&d);
            }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}
