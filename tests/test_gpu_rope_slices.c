/* rope on a real device: q and k as slices of one fused buffer, views of every kind. */
#include "gpu_rope.h"

typedef struct slice {
    const char *name;
    fa_tensor view; /* data: offset in elements */
    int heads;
} slice;

static size_t slice_offset(const slice *s)
{
    return (size_t)(uintptr_t)s->view.data;
}

/* A buffer for q and k (and v, which must not change), `count` elements. */
typedef struct fused {
    size_t count, element; /* bytes of an element */
    unsigned char *before, *after, *memory;
    bool *owned; /* by a slice, each element */
} fused;

static fused make_fused(fa_dtype dtype, size_t count)
{
    const size_t element = dtype == FA_F32 ? 4 : 2;
    fused b = {.count = count,
               .element = element,
               .before = malloc(count * element),
               .after = malloc(count * element),
               .memory = gpu_alloc(count * element),
               .owned = calloc(count, sizeof(bool))};
    double *value = malloc(count * sizeof *value);
    cr_assert(value && b.before && b.after && b.owned);
    for (size_t i = 0; i < count; i++)
        value[i] = (double)oracle_uniform(77, i, -1, 1);
    oracle_store(dtype, b.before, value, count);
    gpu_upload(b.memory, b.before, count * element);
    free(value);
    return b;
}

static void free_fused(fused *b)
{
    gpu_free(b->memory);
    free(b->owned);
    free(b->before);
    free(b->after);
}

/* The reference works on a copy of the buffer from the slice's beginning. */
static void use_slice(oracle_case *c, fa_tensor *view, const fused *b, const slice *s)
{
    oracle_tensor *t = oracle_find_tensor(c, s->name);
    const size_t offset = slice_offset(s);
    t->count = b->count - offset;
    t->bytes = t->count * b->element;
    t->host = realloc(t->host, t->bytes);
    t->expected = realloc(t->expected, t->count * sizeof *t->expected);
    t->untouched = realloc(t->untouched, t->count * sizeof *t->untouched);
    cr_assert(t->host && t->expected && t->untouched);
    memcpy(t->host, b->before + offset * b->element, t->bytes);
    *view = s->view;
    view->data = b->memory + offset * b->element;
}

/* What a slice owns is as the reference says. */
static void check_slice(oracle_case *c, fused *b, const slice *s)
{
    const oracle_tensor *t = oracle_find_tensor(c, s->name);
    const size_t offset = slice_offset(s);
    for (size_t i = 0; i < t->count; i++) {
        double actual = 0;
        if (t->untouched[i])
            continue;
        b->owned[offset + i] = true;
        oracle_load(t->dtype, &actual, b->after + (offset + i) * b->element, 1);
        const double error = actual - t->expected[i];
        const double gate =
            c->atol + c->rtol * (t->expected[i] < 0 ? -t->expected[i] : t->expected[i]);
        cr_assert(error <= gate && -error <= gate, "%s element %zu: %.9g, not %.9g", s->name, i,
                  actual, t->expected[i]);
    }
}

/* What no slice owns is as it was. */
static void check_others(const fused *b)
{
    size_t others = 0;
    for (size_t i = 0; i < b->count; i++)
        if (!b->owned[i] && ++others)
            cr_assert_eq(memcmp(b->before + i * b->element, b->after + i * b->element, b->element),
                         0, "element %zu belongs to neither and changed", i);
    cr_assert_gt(others, 0u);
}

/* Rotates q and k of one buffer in place. */
static void run_fused(fa_context *ctx, fa_rope_spec sizes, const slice slices[2], size_t count)
{
    sizes.in_place = true;
    fa_kernel *kernel = compile_rope(ctx, bake(sizes, 1));
    fused b = make_fused(sizes.dtype, count);
    gpu_case d;
    make_rope(&d, bake(sizes, 1), sizes, NULL, 1);
    use_slice(&d.c, &d.c.args.rope.q, &b, &slices[0]);
    use_slice(&d.c, &d.c.args.rope.k, &b, &slices[1]);
    oracle_rope_expect(&d.c);
    cr_assert_eq(fa_launch(kernel, &d.c.args, NULL), FA_OK, "%s", fa_last_error());
    cr_assert(gpu_synchronize(NULL, NULL));
    gpu_download(b.after, b.memory, count * b.element);
    check_slice(&d.c, &b, &slices[0]);
    check_slice(&d.c, &b, &slices[1]);
    check_others(&b);
    free_fused(&b);
    fa_oracle_rope.free_case(&d.c);
    fa_kernel_release(kernel);
}

#define AT(offset) ((void *)(uintptr_t)(offset))

Test(gpu_rope_slices, K38_q_and_k_of_one_fused_tensor)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    enum { B = 2, N = 11, H = 16, G = 4, D = 64, ALL = H + 2 * G }; /* heads abreast */
    for (int i = 0; i < 6; i++) {
        fa_rope_spec sizes = {.dtype = (fa_dtype)(i % 3),
                              .style = (fa_rope_style)(i / 3),
                              .head_dim = D,
                              .batch = B,
                              .heads_q = H,
                              .heads_k = G,
                              .seqlen = N};
        const slice tokens_outside[] = {{"q", {AT(0), N * ALL * D, D, ALL * D}, H},
                                        {"k", {AT(H * D), N * ALL * D, D, ALL * D}, G}};
        run_fused(ctx, sizes, tokens_outside, B * N * ALL * D);
        const slice heads_outside[] = {{"q", {AT(0), N * ALL * D, N * D, D}, H},
                                       {"k", {AT(H * N * D), N * ALL * D, N * D, D}, G}};
        run_fused(ctx, sizes, heads_outside, B * N * ALL * D);
        sizes.rotary_dim = 32; /* K37: partial, with a strided source */
        run_fused(ctx, sizes, tokens_outside, B * N * ALL * D);
    }
    close_device(&f, ctx);
}

Test(gpu_rope_slices, K39_head_dim_72_side_by_side_in_each_head)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    enum { B = 2, N = 11, H = 4, D = 72 };
    for (int i = 0; i < 6; i++) {
        const fa_rope_spec sizes = {.dtype = (fa_dtype)(i % 3),
                                    .style = (fa_rope_style)(i / 3),
                                    .head_dim = D,
                                    .batch = B,
                                    .heads_q = H,
                                    .heads_k = H,
                                    .seqlen = N};
        const slice slices[] = {{"q", {AT(0), N * H * 3 * D, 3 * D, H * 3 * D}, H},
                                {"k", {AT(D), N * H * 3 * D, 3 * D, H * 3 * D}, H}};
        run_fused(ctx, sizes, slices, B * N * H * 3 * D);
    }
    close_device(&f, ctx);
}

/* One key head and one batch, seen by all. */
Test(gpu_rope_slices, K22_expanded_input)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {.head_dim = 64};
    fa_rope_spec sizes = spec;
    sizes.batch = 3;
    sizes.heads_q = 5;
    sizes.heads_k = 5;
    sizes.seqlen = 33;
    fa_kernel *kernel = compile_rope(ctx, spec);
    gpu_case d;
    make_rope(&d, spec, sizes, NULL, 1);
    d.c.args.rope.k.stride_token = 64; /* batch and head: 0 */
    oracle_rope_expect(&d.c);
    gpu_case_run(&d, kernel);
    const unsigned char *k = gpu_case_result(&d, "k_out");
    for (size_t i = 1; i < 15; i++)
        cr_expect_eq(memcmp(k, k + i * 33 * 64 * 4, 33 * 64 * 4), 0, "head %zu differs", i);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_rope_slices, K32_absurd_strides_of_dimensions_of_size_1)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {.head_dim = 64, .dtype = FA_F16};
    fa_rope_spec sizes = spec;
    sizes.batch = 1;
    sizes.heads_q = 3;
    sizes.heads_k = 1;
    sizes.seqlen = 9;
    fa_kernel *kernel = compile_rope(ctx, spec);
    gpu_case d;
    make_rope(&d, spec, sizes, NULL, 1);
    fa_tensor *q = &d.c.args.rope.q, *k_out = &d.c.args.rope.k_out;
    q->stride_token = k_out->stride_token = 64;
    q->stride_head = 9 * 64;
    gpu_case_upload(&d);
    q->stride_batch = INT64_MAX;
    k_out->stride_batch = INT64_MIN;
    k_out->stride_head = -7;
    gpu_case_launch(&d, kernel);
    gpu_case_check(&d, kernel);
    gpu_case_free(&d);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Rows from the last to the first. */
Test(gpu_rope_slices, negative_strides)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_rope_spec spec = {.head_dim = 64};
    fa_rope_spec sizes = spec;
    sizes.batch = 1;
    sizes.heads_q = 1;
    sizes.seqlen = 9;
    fa_kernel *kernel = compile_rope(ctx, spec);
    gpu_case forward, backward;
    make_rope(&forward, spec, sizes, NULL, 1);
    make_rope(&backward, spec, sizes, NULL, 1);
    float *host = oracle_find_tensor(&backward.c, "q")->host;
    const float *given = oracle_find_tensor(&forward.c, "q")->host;
    for (int n = 0; n < 9; n++)
        memcpy(host + n * 64, given + (8 - n) * 64, 64 * sizeof *host);
    gpu_case_upload(&forward);
    gpu_case_upload(&backward);
    fa_tensor *q = &backward.c.args.rope.q;
    q->data = (char *)q->data + 8 * 64 * sizeof *host;
    q->stride_token = -64;
    gpu_case_launch(&forward, kernel);
    gpu_case_launch(&backward, kernel);
    gpu_case_check(&forward, kernel);
    const size_t out = gpu_case_index(&forward, "q_out");
    cr_expect_eq(memcmp(gpu_case_at(&forward, out), gpu_case_at(&backward, out),
                        forward.c.tensor[out].bytes),
                 0);
    gpu_case_free(&forward);
    gpu_case_free(&backward);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}
