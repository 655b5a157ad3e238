/* rope on a real device: far positions, slices of fused buffers, streams and graphs, huge tensors.
 */
#include <math.h>
#include <stdio.h>

#include "golden.h"
#include "gpu_rope.h"

static fa_rope_spec sized(fa_rope_spec spec, int batch, int heads_q, int heads_k, int seqlen)
{
    spec.batch = batch;
    spec.heads_q = heads_q;
    spec.heads_k = heads_k;
    spec.seqlen = seqlen;
    return spec;
}

static size_t element_of(const gpu_case *d)
{
    return d->c.spec.rope.dtype == FA_F32 ? 4 : 2;
}

/* --- positions --- */

Test(gpu_rope_edges, K40_far_and_negative_positions)
{
    static const int64_t offsets[] = {
        131071 - 8, 1000000 - 8, 16777216, 2147483647 - 16, -1, -1000000, INT64_C(-2147483648)};
    static const double bases[] = {10000, 500000, 1.5, 1e9};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++)
        for (size_t b = 0; b < 4; b++)
            for (int baked = 0; baked < 2; baked++) {
                fa_rope_spec sizes = {.head_dim = 128, .base = bases[b]};
                sizes = sized(sizes, 1, 2, 1, 17);
                const int64_t extra[ROPE_EXTRAS] = {offsets[i]};
                run_rope(ctx, bake(sizes, baked), sizes, extra, i + 1);
            }
    /* with tables: the reference uses the same float32 values */
    fa_rope_spec tables =
        sized((fa_rope_spec){.angles = FA_ROPE_TABLES, .head_dim = 64}, 1, 2, 1, 17);
    const int64_t extra[ROPE_EXTRAS] = {131071 - 8};
    run_rope(ctx, bake(tables, 1), tables, extra, 1);
    close_device(&f, ctx);
}

/* Runs a case at these positions and checks it; the case and the kernel are the caller's. */
static fa_kernel *run_at(fa_context *ctx, fa_rope_spec sizes, const int32_t *positions,
                         size_t bytes, gpu_case *d)
{
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    make_rope(d, bake(sizes, 1), sizes, NULL, 1);
    memcpy(oracle_find_tensor(&d->c, "positions")->host, positions, bytes);
    oracle_rope_expect(&d->c);
    gpu_case_run(d, kernel);
    return kernel;
}

Test(gpu_rope_edges, K40_vectors_reach_every_int32)
{
    static const int32_t positions[] = {0,       1,         -1,        131071,   1000000, -1000000,
                                        1 << 30, INT32_MAX, INT32_MIN, 16777217, 2047,    15962};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes =
        sized((fa_rope_spec){.positions = FA_ROPE_VECTOR, .head_dim = 64}, 1, 2, 2, 12);
    gpu_case d;
    fa_kernel *kernel = run_at(ctx, sizes, positions, sizeof positions, &d);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_edges, K41_bfloat16_is_the_float32_result_rounded_once)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const int64_t extra[ROPE_EXTRAS] = {15962};
    for (int style = 0; style < 2; style++) {
        fa_rope_spec sizes = {.dtype = FA_BF16, .style = (fa_rope_style)style, .head_dim = 128};
        sizes = sized(sizes, 2, 4, 4, 8);
        run_rope(ctx, bake(sizes, 1), sizes, extra, 3);
    }
    close_device(&f, ctx);
}

Test(gpu_rope_edges, K42_repeated_positions)
{
    static const int32_t positions[] = {5, 5, 0};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes =
        sized((fa_rope_spec){.positions = FA_ROPE_VECTOR, .head_dim = 64}, 1, 2, 2, 3);
    gpu_case d;
    fa_kernel *kernel = run_at(ctx, sizes, positions, sizeof positions, &d);
    /* Position 0 turns nothing. */
    const float *in = oracle_find_tensor(&d.c, "q")->host;
    const float *out = gpu_case_result(&d, "q_out");
    cr_expect_eq(memcmp(in + 2 * 64, out + 2 * 64, 64 * sizeof *in), 0);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_edges, positions_outside_the_tables_give_nan)
{
    static const int32_t positions[] = {0, -1, 7, 8, INT32_MAX, INT32_MIN, 3, 1 << 30};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 4; i++) {
        fa_rope_spec sizes = {.dtype = i & 1 ? FA_BF16 : FA_F32,
                              .style = i & 2 ? FA_ROPE_INTERLEAVED : FA_ROPE_HALF,
                              .angles = FA_ROPE_TABLES,
                              .positions = FA_ROPE_VECTOR,
                              .head_dim = 64,
                              .rotary_dim = 32};
        sizes = sized(sizes, 1, 2, 1, 8);
        fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
        gpu_case d;
        make_rope(&d, bake(sizes, 1), sizes, NULL, 1);
        cr_assert_eq(d.c.args.rope.max_position, 8);
        memcpy(oracle_find_tensor(&d.c, "positions")->host, positions, sizeof positions);
        oracle_rope_expect(&d.c);
        cr_assert(isnan(oracle_find_tensor(&d.c, "q_out")->expected[64]));
        gpu_case_run(&d, kernel);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- pairs --- */

static void expect_values(gpu_case *d, const char *tensor, const char *name)
{
    oracle_tensor *t = oracle_find_tensor(&d->c, tensor);
    golden_read(name, t->expected, t->count);
}

Test(gpu_rope_edges, K36_golden_data_of_both_styles)
{
    static const int32_t positions[] = {5, 5, 0, 131071, 7, 1, 2, 3, 1000000, 0};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec half = sized((fa_rope_spec){.head_dim = 64}, 2, 3, 1, 17);
    fa_rope_spec interleaved = sized((fa_rope_spec){.style = FA_ROPE_INTERLEAVED,
                                                    .positions = FA_ROPE_VECTOR,
                                                    .head_dim = 80,
                                                    .rotary_dim = 32,
                                                    .base = 500000},
                                     2, 2, 0, 5);
    for (int i = 0; i < 2; i++) {
        fa_rope_spec sizes = i ? interleaved : half;
        fa_kernel *kernel = compile_rope(ctx, sizes);
        gpu_case d;
        make_rope(&d, sizes, sizes, NULL, i ? 3 : 1);
        if (i)
            memcpy(oracle_find_tensor(&d.c, "positions")->host, positions, sizeof positions);
        expect_values(&d, "q_out", i ? "rope_interleaved_partial.q" : "rope_half.q");
        if (!i)
            expect_values(&d, "k_out", "rope_half.k");
        gpu_case_run(&d, kernel);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Every bit pattern, NaN payloads included, comes through the copied part as it was. */
Test(gpu_rope_edges, K35_tail_is_copied_bitwise)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 12; i++) {
        fa_rope_spec sizes = {.dtype = (fa_dtype)(i % 3),
                              .in_place = i / 3 % 2,
                              .style = (fa_rope_style)(i / 6),
                              .head_dim = 80,
                              .rotary_dim = 32};
        sizes = sized(sizes, 1, 1, 0, 2048);
        fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
        gpu_case d;
        make_rope(&d, bake(sizes, 1), sizes, NULL, 1);
        const size_t element = element_of(&d), row = 80 * element, head = 32 * element;
        unsigned char *in = oracle_find_tensor(&d.c, "q")->host;
        for (size_t n = 0; n < 2048; n++)
            for (size_t k = 0; k < 48; k++) {
                const uint32_t bits = (uint32_t)(n * 48 + k) * (element == 4 ? 43691u : 1u);
                memcpy(in + n * row + head + k * element, &bits, element);
            }
        gpu_case_upload(&d);
        gpu_case_launch(&d, kernel);
        const unsigned char *out = gpu_case_result(&d, sizes.in_place ? "q" : "q_out");
        for (size_t n = 0; n < 2048; n++)
            cr_assert_eq(memcmp(in + n * row + head, out + n * row + head, row - head), 0,
                         "case %d, token %zu", i, n);
        gpu_case_free(&d);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_rope_edges, K43_in_place_equals_out_of_place_100_times)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 6; i++) {
        fa_rope_spec sizes = {
            .dtype = (fa_dtype)(i % 3), .style = (fa_rope_style)(i / 3), .head_dim = 72};
        sizes = sized(sizes, 2, 6, 2, 129);
        fa_rope_spec in_place = sizes;
        in_place.in_place = true;
        fa_kernel *kernel[2] = {compile_rope(ctx, bake(sizes, 1)),
                                compile_rope(ctx, bake(in_place, 2))};
        gpu_case d[2];
        make_rope(&d[0], bake(sizes, 1), sizes, NULL, 9);
        make_rope(&d[1], bake(in_place, 2), in_place, NULL, 9);
        gpu_case_upload(&d[0]);
        gpu_case_launch(&d[0], kernel[0]);
        gpu_case_check(&d[0], kernel[0]);
        const size_t q = gpu_case_index(&d[0], "q_out"), k = gpu_case_index(&d[0], "k_out");
        for (int repeat = 0; repeat < 100; repeat++) {
            gpu_case_upload(&d[1]);
            gpu_case_launch(&d[1], kernel[1]);
            cr_assert_eq(
                memcmp(gpu_case_at(&d[0], q), gpu_case_result(&d[1], "q"), d[0].c.tensor[q].bytes),
                0, "case %d, repeat %d: q", i, repeat);
            cr_assert_eq(
                memcmp(gpu_case_at(&d[0], k), gpu_case_result(&d[1], "k"), d[0].c.tensor[k].bytes),
                0, "case %d, repeat %d: k", i, repeat);
        }
        for (int n = 0; n < 2; n++) {
            gpu_case_free(&d[n]);
            fa_kernel_release(kernel[n]);
        }
    }
    close_device(&f, ctx);
}

/* A sequence alone gives the bits that it gives in a batch. */
Test(gpu_rope_edges, K58_alone_equals_in_a_batch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec spec = {.head_dim = 64, .dtype = FA_BF16};
    fa_rope_spec many = sized(spec, 7, 12, 4, 100), one = sized(spec, 1, 12, 4, 100);
    fa_kernel *kernel = compile_rope(ctx, spec);
    gpu_case d[2];
    make_rope(&d[0], spec, many, NULL, 5);
    make_rope(&d[1], spec, one, NULL, 5);
    for (int i = 0; i < 2; i++) {
        gpu_case_upload(&d[i]);
        gpu_case_launch(&d[i], kernel);
        gpu_case_check(&d[i], kernel);
    }
    const size_t q = gpu_case_index(&d[0], "q_out");
    cr_expect_eq(memcmp(gpu_case_at(&d[0], q), gpu_case_at(&d[1], q), d[1].c.tensor[q].bytes), 0);
    for (int i = 0; i < 2; i++)
        gpu_case_free(&d[i]);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- streams and graphs --- */

Test(gpu_rope_edges, replayed_in_a_graph)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec sizes = sized((fa_rope_spec){.head_dim = 64}, 4, 8, 8, 256);
    fa_kernel *kernel = compile_rope(ctx, sizes);
    gpu_stream stream = gpu_stream_create();
    gpu_case d;
    make_rope(&d, sizes, sizes, NULL, 1);
    gpu_case_upload(&d);
    gpu_graph graph = gpu_case_capture(&d, kernel, stream, 1);
    for (int i = 0; i < 10; i++) {
        gpu_case_replay(&d, graph, stream, 1);
        gpu_case_check(&d, kernel);
    }
    gpu_graph_destroy(graph);
    gpu_stream_destroy(stream);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_edges, empty_work_writes_nothing)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    fa_rope_spec spec = {.head_dim = 64}, sizes = sized(spec, 1, 2, 2, 3);
    fa_kernel *kernel = compile_rope(ctx, spec);
    gpu_case d;
    make_rope(&d, spec, sizes, NULL, 1);
    for (size_t i = 0; i < d.c.tensor_count; i++)
        if (d.c.tensor[i].output)
            memset(d.c.tensor[i].untouched, 1, d.c.tensor[i].count);
    gpu_case_upload(&d);
    d.c.args.rope.seqlen = 0;
    gpu_case_launch(&d, kernel);
    gpu_case_check(&d, kernel);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- tensors over 2^31 elements --- */

/* Of either sign: a row of zeros that is rotated too may come out as -0. */
static bool all_zero(const unsigned char *halves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (halves[2 * i] || halves[2 * i + 1] & 0x7f)
            return false;
    return true;
}

/* K25, K11: rows on both sides of 2^31 elements, the rest zero and staying zero. */
static void run_huge(fa_context *ctx, fa_rope_spec spec, const int64_t strides[3], int batch,
                     int heads, int seqlen, const int64_t (*rows)[3], size_t count)
{
    const fa_rope_spec sizes = sized(spec, batch, heads, 0, seqlen);
    const int64_t last = (batch - 1) * strides[0] + (heads - 1) * strides[1] +
                         (seqlen - 1) * strides[2] + spec.head_dim;
    const size_t bytes = (size_t)last * 2;
    if (free_memory() < bytes + ((size_t)1 << 30))
        cr_skip_test("needs %zu GiB of device memory", (bytes >> 30) + 1);
    unsigned char *memory = gpu_alloc(bytes);
    gpu_fill(memory, 0, bytes);
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    /* A one-token case gives each row's input and reference. */
    gpu_case row[4];
    for (size_t i = 0; i < count; i++) {
        const int64_t extra[ROPE_EXTRAS] = {rows[i][2]};
        make_rope(&row[i], spec, sized(spec, 1, 1, 0, 1), extra, i + 1);
        const oracle_tensor *t = oracle_find_tensor(&row[i].c, "q");
        const int64_t at =
            rows[i][0] * strides[0] + rows[i][1] * strides[1] + rows[i][2] * strides[2];
        gpu_upload(memory + at * 2, t->host, t->bytes);
    }
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    args.rope.q = (fa_tensor){memory, strides[0], strides[1], strides[2]};
    args.rope.batch = batch;
    args.rope.heads_q = heads;
    args.rope.seqlen = seqlen;
    cr_assert_eq(fa_launch(kernel, &args, NULL), FA_OK, "%s", fa_last_error());
    cr_assert(gpu_synchronize(NULL, NULL));
    unsigned char back[4096];
    for (size_t i = 0; i < count; i++) {
        const oracle_tensor *t = oracle_find_tensor(&row[i].c, "q");
        const int64_t at =
            rows[i][0] * strides[0] + rows[i][1] * strides[1] + rows[i][2] * strides[2];
        gpu_download(back, memory + at * 2, t->bytes);
        oracle_verdict v = oracle_compare(&row[i].c, t, back);
        cr_expect_eq(v.bad, 0, "row %zu at element %lld: element %zu is %g, not %g", i,
                     (long long)at, v.first_bad, v.actual, v.expected);
        if (at + spec.head_dim < last) { /* its neighbour */
            gpu_download(back, memory + (at + spec.head_dim) * 2, t->bytes);
            cr_expect(all_zero(back, t->count), "behind row %zu", i);
        }
        fa_oracle_rope.free_case(&row[i].c);
    }
    gpu_free(memory);
    fa_kernel_release(kernel);
}

Test(gpu_rope_edges, K25_tensors_over_2_31_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {.dtype = FA_F16, .in_place = true, .head_dim = 64};
    const int tokens = (1 << 25) + 5; /* times 64: over 2^31 */
    const int64_t packed[3] = {(int64_t)tokens * 64, (int64_t)tokens * 64, 64};
    const int64_t rows[][3] = {{0, 0, 0}, {0, 0, tokens - 1}, {0, 0, 1 << 25}};
    run_huge(ctx, spec, packed, 1, 1, tokens, rows, 3);
    close_device(&f, ctx);
}

/* The same with 32 heads of a token beside each other: 8 of them are worked on at once. */
Test(gpu_rope_edges, K12_packed_tokens_over_2_31_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {
        .dtype = FA_F16, .in_place = true, .head_dim = 64, .layout = FA_LAYOUT_BNHD};
    const int tokens = (1 << 20) + 5; /* times 32 * 64: over 2^31 */
    const int64_t packed[3] = {(int64_t)tokens * 32 * 64, 64, 32 * 64};
    const int64_t rows[][3] = {{0, 0, 0}, {0, 31, tokens - 1}, {0, 17, 1 << 20}, {0, 8, 5}};
    run_huge(ctx, spec, packed, 1, 32, tokens, rows, 4);
    close_device(&f, ctx);
}

Test(gpu_rope_edges, K11_strides_of_2_30_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {.dtype = FA_F16, .in_place = true, .head_dim = 64};
    const int64_t batches[3] = {INT64_C(1) << 30, 256, 64};
    const int64_t in_batch[][3] = {{0, 0, 0}, {4, 1, 3}, {2, 0, 1}, {3, 1, 3}};
    run_huge(ctx, spec, batches, 5, 2, 4, in_batch, 4);
    const int64_t heads[3] = {256, INT64_C(1) << 30, 64};
    const int64_t in_head[][3] = {{0, 0, 0}, {1, 4, 3}, {0, 2, 1}, {1, 3, 3}};
    run_huge(ctx, spec, heads, 2, 5, 4, in_head, 4);
    close_device(&f, ctx);
}
