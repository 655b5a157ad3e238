/* Launching through the whole library with a look-alike of the driver, which sees every launch as
 * it arrives and minds what a real driver minds: contexts, captures, opt-ins, lazy loading. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static fa_kernel *compile_with(fa_context *ctx, uint32_t smem_bytes, const char *source)
{
    scale_spec s;
    fa_kernel *kernel = NULL;
    scale_spec_init(&s, 1);
    s.spec.tmpl.smem_bytes = smem_bytes;
    if (source)
        s.spec.tmpl.source = source;
    OK(fa_compile(ctx, &s.spec, &kernel));
    return kernel;
}

/* --- what arrives --- */

Test(launch, arguments_arrive_as_given)
{
    fixture f;
    scale_args a;
    fake_launch l;
    float x[300];
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    void *stream = f.cuda->stream_create(NULL);
    scale_args_init(&a, x, 300);
    a.args.tmpl.grid[1] = 2;
    a.args.tmpl.block[1] = 4;
    OK(fa_launch(kernel, &a.args, stream));
    cr_assert(f.cuda->launch_last(&l));
    cr_expect(l.grid[0] == 3 && l.grid[1] == 2 && l.grid[2] == 1);
    cr_expect(l.block[0] == 128 && l.block[1] == 4 && l.block[2] == 1);
    cr_expect_eq(l.smem_bytes, 0u);
    cr_expect_eq(l.stream, stream);
    cr_expect_eq(l.param_count, 3u);
    cr_expect_eq(memcmp(l.param[0], &a.x, sizeof a.x), 0);
    cr_expect_eq(memcmp(l.param[1], &a.factor, sizeof a.factor), 0);
    cr_expect_eq(memcmp(l.param[2], &a.n, sizeof a.n), 0);
    cr_expect(!l.cooperative && !l.programmatic && !l.cluster[0]);
    f.cuda->stream_destroy(stream);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(launch, cluster_cooperative_programmatic)
{
    fixture f;
    scale_spec s;
    scale_args a;
    fake_launch l;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.spec.tmpl.cluster[0] = 2;
    s.spec.tmpl.cluster[1] = s.spec.tmpl.cluster[2] = 1;
    s.spec.tmpl.cooperative = true;
    s.spec.tmpl.programmatic_launch = true;
    OK(fa_compile(ctx, &s.spec, &kernel));
    scale_args_init(&a, &f, 512);
    OK(fa_launch(kernel, &a.args, NULL));
    cr_assert(f.cuda->launch_last(&l));
    cr_expect(l.cluster[0] == 2 && l.cluster[1] == 1 && l.cluster[2] == 1, "%u %u %u", l.cluster[0],
              l.cluster[1], l.cluster[2]);
    cr_expect(l.cooperative);
    cr_expect(l.programmatic);
    a.args.tmpl.grid[0] = 3; /* no multiple of the cluster */
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_GEOMETRY, "cluster");
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(launch, clusters_need_a_device_that_has_them)
{
    const int cc = 80;
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    f.cuda->set_devices(1, &cc);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.spec.tmpl.cluster[0] = 2;
    s.spec.tmpl.cluster[1] = s.spec.tmpl.cluster[2] = 1;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_UNSUPPORTED, "sm_90");
    scale_spec_init(&s, 1);
    s.spec.tmpl.programmatic_launch = true;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_UNSUPPORTED, "sm_90");
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(launch, empty_work_is_no_launch)
{
    fixture f;
    scale_args a;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    scale_args_init(&a, &f, 0);
    cr_assert_eq(a.args.tmpl.grid[0], 0u);
    OK(fa_launch(kernel, &a.args, NULL));
    cr_expect_eq(f.cuda->launches(), 0u);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- limits --- */

Test(launch, F52_dimension_over_its_limit_is_named)
{
    fixture f;
    scale_args a;
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    const struct {
        uint32_t grid[3], block[3];
        const char *word, *limit;
    } wrong[] = {
        {{0x80000000u, 1, 1}, {32, 1, 1}, "grid.x", "2147483647"},
        {{1, 65536, 1}, {32, 1, 1}, "grid.y", "65535"},
        {{1, 1, 65536}, {32, 1, 1}, "grid.z", "65535"},
        {{1, 1, 1}, {1025, 1, 1}, "block.x", "1024"},
        {{1, 1, 1}, {1, 1, 65}, "block.z", "64"},
        {{1, 1, 1}, {32, 33, 1}, "block", "1024"},
        {{1, 1, 1}, {0, 1, 1}, "block.x", "1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        scale_args_init(&a, &f, 32);
        memcpy(a.args.tmpl.grid, wrong[i].grid, sizeof wrong[i].grid);
        memcpy(a.args.tmpl.block, wrong[i].block, sizeof wrong[i].block);
        REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_GEOMETRY, wrong[i].word);
        cr_expect(strstr(fa_last_error(), wrong[i].limit), "%s", fa_last_error());
    }
    scale_args_init(&a, &f, 32); /* the limits themselves */
    a.args.tmpl.grid[0] = 2147483647u;
    a.args.tmpl.grid[1] = a.args.tmpl.grid[2] = 65535;
    OK(fa_launch(kernel, &a.args, NULL));
    cr_expect_eq(f.cuda->launches(), 1u);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.launches_refused, sizeof wrong / sizeof wrong[0]);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

static void launch_with_smem(fa_context *ctx, uint32_t smem_bytes, const char *source)
{
    scale_args a;
    int x = 0;
    fa_kernel *kernel = compile_with(ctx, smem_bytes, source);
    scale_args_init(&a, &x, 1);
    a.args.tmpl.smem_bytes = smem_bytes;
    OK(fa_launch(kernel, &a.args, NULL));
    a.args.tmpl.smem_bytes = smem_bytes + 1;
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_SHARED_MEMORY, "smem_bytes");
    fa_kernel_release(kernel);
}

static const char with_static[] =
    "// fake-smem: 1024\n"
    "__global__ void scale(float *x, float factor, unsigned n) {}\n";

Test(launch, F50_shared_memory_at_its_limits)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    const uint32_t sizes[] = {0, 49151, 49152, 49153, 232447, 232448};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        launch_with_smem(ctx, sizes[i], NULL);
    const uint32_t beside_static[] = {48128, 48129, 49152, 231424}; /* counts 1024 static bytes */
    for (size_t i = 0; i < sizeof beside_static / sizeof beside_static[0]; i++)
        launch_with_smem(ctx, beside_static[i], with_static);

    scale_spec_init(&s, 1);
    s.spec.tmpl.smem_bytes = 232449;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_SHARED_MEMORY, "232448");
    s.spec.tmpl.source = with_static;
    s.spec.tmpl.smem_bytes = 231425;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_SHARED_MEMORY, "232448");
    cr_expect(strstr(fa_last_error(), "1024"), "%s", fa_last_error());
    s.spec.tmpl.smem_bytes = UINT32_MAX; /* static plus dynamic overflows 32 bits */
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_SHARED_MEMORY, "4294967295");
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* One kernel, two sizes: the larger opt-in stays whichever order they are asked for in. */
Test(launch, F50_opt_in_is_only_raised)
{
    fixture f;
    scale_args a;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *large = compile_with(ctx, 100000, NULL), *small = compile_with(ctx, 60000, NULL);
    scale_args_init(&a, &f, 1);
    a.args.tmpl.smem_bytes = 100000;
    OK(fa_launch(large, &a.args, NULL));
    a.args.tmpl.smem_bytes = 60000;
    OK(fa_launch(small, &a.args, NULL));
    OK(fa_launch(large, &a.args, NULL));
    fa_kernel_release(large);
    fa_kernel_release(small);
    fa_context_destroy(ctx);
    fixture_end(&f); /* sees a violation if it was lowered */
}

/* --- parameters --- */

Test(launch, F54_parameters_of_the_wrong_number_or_size)
{
    fixture f;
    scale_args a;
    fa_param many[FA_MAX_PARAMS + 1];
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    for (size_t count = 0; count <= 4; count++) {
        fa_param param[4];
        scale_args_init(&a, &f, 1);
        memcpy(param, a.param, sizeof a.param);
        param[3] = a.param[2];
        a.args.tmpl.params = param;
        a.args.tmpl.param_count = count;
        if (count != 3)
            REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_PARAM_COUNT, "3");
        else
            OK(fa_launch(kernel, &a.args, NULL));
    }
    for (size_t i = 0; i < 3; i++)
        for (int change = -1; change <= 1; change += 2) {
            scale_args_init(&a, &f, 1);
            a.param[i].size += (size_t)change;
            REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_PARAM_SIZE, "params[");
        }
    scale_args_init(&a, &f, 1);
    for (size_t i = 0; i <= FA_MAX_PARAMS; i++)
        many[i] = a.param[0];
    a.args.tmpl.params = many;
    a.args.tmpl.param_count = FA_MAX_PARAMS + 1;
    EXPECT(fa_launch(kernel, &a.args, NULL), FA_ERR_PARAM_COUNT);
    cr_expect_eq(f.cuda->launches(), 1u);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(launch, F53_nothing_is_narrowed)
{
    fixture f;
    scale_args a;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    scale_args_init(&a, &f, 1);
    a.param[2].size = (size_t)UINT32_MAX + 1 + 4; /* 4 in 32 bits */
    EXPECT(fa_launch(kernel, &a.args, NULL), FA_ERR_PARAM_SIZE);
    scale_args_init(&a, &f, 1);
    a.args.tmpl.param_count = (size_t)UINT32_MAX + 1 + 3;
    EXPECT(fa_launch(kernel, &a.args, NULL), FA_ERR_PARAM_COUNT);
    scale_args_init(&a, &f, 1);
    a.args.tmpl.block[0] = 65536; /* 65536^3 and 65536^2 * 1 are 0 in 32 bits */
    a.args.tmpl.block[1] = 65536;
    EXPECT(fa_launch(kernel, &a.args, NULL), FA_ERR_GEOMETRY);
    scale_args_init(&a, &f, 1);
    a.args.op = FA_OP_ROPE;
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_OP_MISMATCH, "template");
    cr_expect_eq(f.cuda->launches(), 0u);

    int64_t large = INT64_C(0x123456789abcdef0);
    scale_spec s;
    char *text = NULL;
    scale_spec_init(&s, large);
    OK(fa_render(ctx, &s.spec, FA_TEXT_SOURCE, &text));
    cr_expect(strstr(text, "1311768467463790320"), "%s", text);
    free(text);
    scale_spec_init(&s, INT64_MIN);
    OK(fa_render(ctx, &s.spec, FA_TEXT_SOURCE, &text));
    cr_expect(strstr(text, "9223372036854775807"), "no exact INT64_MIN in: %s", text);
    free(text);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
