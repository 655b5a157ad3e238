/* Running a rope case on a device and looking at everything it left. */
#ifndef GPU_ROPE_H
#define GPU_ROPE_H

#include <stdio.h>

#include "gpu_fixture.h"
#include "oracle/rope.h"

#define RED_ZONE 256
#define RED_BYTE 0xa5

/* A case on the device: each tensor between red zones, `shift` elements off a multiple of 256. */
typedef struct device_case {
    oracle_case c;
    unsigned char *memory[16], *back[16]; /* back: what was downloaded last */
    size_t bytes[16];
    int shift[16];
} device_case;

static inline fa_spec rope_spec(fa_rope_spec rope)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = rope;
    return spec;
}

static inline size_t tensor_element(const oracle_tensor *t)
{
    return t->bytes / t->count;
}

/* `baked`: 0 nothing but what cannot be dynamic, 1 head_dim, 2 everything. */
static inline fa_rope_spec bake(fa_rope_spec sizes, int baked)
{
    fa_rope_spec spec = sizes;
    if (baked < 2)
        spec.batch = spec.heads_q = spec.heads_k = spec.seqlen = 0;
    if (baked < 1)
        spec.head_dim = 0;
    return spec;
}

static inline void device_case_make(device_case *d, fa_rope_spec spec, fa_rope_spec sizes,
                                    const int64_t extra[ROPE_EXTRAS], uint64_t seed)
{
    char why[256] = "";
    fa_spec s = rope_spec(spec), n = rope_spec(sizes);
    *d = (device_case){0};
    cr_assert(fa_oracle_rope.make_case(&s, &n, extra, seed, &d->c, why, sizeof why), "%s", why);
}

static inline void device_case_upload(device_case *d)
{
    void *data[16] = {0};
    for (size_t i = 0; i < d->c.tensor_count; i++) {
        const oracle_tensor *t = &d->c.tensor[i];
        const size_t offset = RED_ZONE + (size_t)d->shift[i] * tensor_element(t);
        if (!d->memory[i]) {
            d->bytes[i] = t->bytes + 2 * RED_ZONE + offset;
            d->memory[i] = gpu_alloc(d->bytes[i]);
        }
        gpu_fill(d->memory[i], RED_BYTE, d->bytes[i]);
        gpu_upload(d->memory[i] + offset, t->host, t->bytes);
        data[i] = d->memory[i] + offset;
    }
    fa_oracle_rope.bind(&d->c, data);
}

static inline void device_case_download(device_case *d)
{
    for (size_t i = 0; i < d->c.tensor_count; i++) {
        if (!d->back[i])
            d->back[i] = malloc(d->bytes[i]);
        cr_assert_not_null(d->back[i]);
        gpu_download(d->back[i], d->memory[i], d->bytes[i]);
    }
}

/* Tensor i as it came back. */
static inline unsigned char *device_case_result(const device_case *d, size_t i)
{
    return d->back[i] + RED_ZONE + (size_t)d->shift[i] * tensor_element(&d->c.tensor[i]);
}

static inline size_t tensor_index(const device_case *d, const char *name)
{
    for (size_t i = 0; i < d->c.tensor_count; i++)
        if (strcmp(d->c.tensor[i].name, name) == 0)
            return i;
    cr_assert_fail("no tensor %s", name);
    return 0;
}

static inline void describe(const device_case *d, const fa_kernel *kernel, char *text, size_t size)
{
    fa_kernel_info_t info = {.size = sizeof info};
    const fa_rope_args *a = &d->c.args.rope;
    OK(fa_kernel_info(kernel, &info));
    snprintf(text, size, "%s, launched with B=%d H=%d G=%d N=%d D=%d offset=%d seed=%llu",
             info.name, a->batch, a->heads_q, a->heads_k, a->seqlen, a->head_dim,
             a->position_offset, (unsigned long long)d->c.seed);
}

static inline void check_tensor(const device_case *d, size_t i, const char *text)
{
    const oracle_tensor *t = &d->c.tensor[i];
    const unsigned char *result = device_case_result(d, i);
    for (size_t k = 0; k < d->bytes[i]; k++) {
        if (d->back[i] + k == result)
            k += t->bytes;
        cr_assert(k >= d->bytes[i] || d->back[i][k] == RED_BYTE,
                  "%s: red zone of %s written, byte %zd from its beginning", text, t->name,
                  (d->back[i] + k) - result);
    }
    if (!t->output) {
        cr_assert_eq(memcmp(result, t->host, t->bytes), 0, "%s: input %s changed", text, t->name);
        return;
    }
    oracle_verdict v = oracle_compare(&d->c, t, result);
    cr_assert_eq(v.bad, 0,
                 "%s: %s: %zu of %zu elements are wrong; the first is %zu: %.9g, not %.9g (atol "
                 "%g, rtol %g)",
                 text, t->name, v.bad, t->count, v.first_bad, v.actual, v.expected, d->c.atol,
                 d->c.rtol);
}

static inline void device_case_check(device_case *d, const fa_kernel *kernel)
{
    char text[512];
    describe(d, kernel, text, sizeof text);
    for (size_t i = 0; i < d->c.tensor_count; i++)
        check_tensor(d, i, text);
}

static inline void device_case_launch(device_case *d, const fa_kernel *kernel)
{
    const char *why = NULL;
    cr_assert_eq(fa_launch(kernel, &d->c.args, NULL), FA_OK, "%s", fa_last_error());
    cr_assert(gpu_synchronize(NULL, &why), "the kernel failed: %s", why);
    device_case_download(d);
}

static inline void device_case_free(device_case *d)
{
    for (size_t i = 0; i < d->c.tensor_count; i++) {
        if (d->memory[i])
            gpu_free(d->memory[i]);
        free(d->back[i]);
    }
    fa_oracle_rope.free_case(&d->c);
}

static inline fa_kernel *compile_rope(fa_context *ctx, fa_rope_spec rope)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = rope_spec(rope);
    cr_assert_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
    return kernel;
}

/* Everything at once. */
static inline void run_rope(fa_context *ctx, fa_rope_spec spec, fa_rope_spec sizes,
                            const int64_t extra[ROPE_EXTRAS], uint64_t seed)
{
    device_case d;
    fa_kernel *kernel = compile_rope(ctx, spec);
    device_case_make(&d, spec, sizes, extra, seed);
    device_case_upload(&d);
    device_case_launch(&d, kernel);
    device_case_check(&d, kernel);
    device_case_free(&d);
    fa_kernel_release(kernel);
}

#endif
