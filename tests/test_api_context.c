/* Contexts: architectures, what they tell about themselves, logging, the cache functions. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

static bool count_entry(void *user, const fa_cache_entry *entry)
{
    size_t *count = user;
    cr_expect_not_null(entry->path);
    ++*count;
    return true;
}

/* --- contexts --- */

Test(api_context, F45_default_architecture_has_its_feature_suffix)
{
    const int cc[] = {90, 100, 120, 80, 89, 103};
    const char *const arch[] = {"sm_90a", "sm_100a", "sm_120a", "sm_80", "sm_89", "sm_103a"};
    fixture f;
    fixture_begin(&f);
    f.cuda->set_devices(6, cc);
    for (int i = 0; i < 6; i++) {
        fa_context *ctx = NULL;
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        fa_context_info_t info = {.size = sizeof info};
        fa_device_info_t device = {.size = sizeof device};
        options.device = i;
        OK(fa_device_info(i, &device));
        cr_expect_str_eq(device.arch, arch[i]);
        cr_expect_eq(device.compute_major * 10 + device.compute_minor, cc[i]);
        cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
        OK(fa_context_info(ctx, &info));
        cr_expect_str_eq(info.arch, arch[i]);
        cr_expect_eq(info.device, i);
        fa_context_destroy(ctx);
    }
    fa_device_info_t device = {.size = sizeof device};
    REFUSED(fa_device_info(6, &device), FA_ERR_NO_DEVICE, "6");
    REFUSED(fa_device_info(-1, &device), FA_ERR_NO_DEVICE, "-1");
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

Test(api_context, F45_architecture_is_overridable)
{
    fixture f;
    fa_context *ctx = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.arch = "sm_90";
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
    fa_kernel *kernel = fixture_compile(ctx, 1);
    OK(fa_kernel_info(kernel, &info));
    cr_expect_str_eq(info.arch, "sm_90");
    cr_expect(strstr(f.nvrtc->last_options(), "=sm_90\n"), "%s", f.nvrtc->last_options());
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_context, F47_architecture_is_the_requested_devices)
{
    const int cc[] = {80, 90};
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    f.cuda->set_devices(2, cc);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.device = 1;
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
    fa_kernel_release(fixture_compile(ctx, 1));
    cr_expect(strstr(f.nvrtc->last_options(), "sm_90a"), "%s", f.nvrtc->last_options());
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_context, F46_suffix_is_part_of_compatibility)
{
    const int cc[] = {100, 103};
    fixture f;
    fixture_begin(&f);
    f.cuda->set_devices(2, cc);
    for (int device = 0; device < 2; device++) {
        fa_context *ctx = NULL;
        fa_stats stats = {.size = sizeof stats};
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        options.device = device;
        cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
        fa_kernel_release(fixture_compile(ctx, 1));
        OK(fa_stats_get(ctx, &stats));
        cr_expect_eq(stats.compiles, 1u, "device %d took the other one's entry", device);
        fa_context_destroy(ctx);
    }
    fixture_end(&f);
}

Test(api_context, F41_unknown_architecture_is_named_with_the_supported_ones)
{
    fixture f;
    const char *const wrong[] = {"sm_77", "sm_999", "sm_80a"};
    fixture_begin(&f);
    for (size_t i = 0; i < 3; i++) {
        fa_context *ctx = NULL;
        scale_spec s;
        fa_kernel *kernel = NULL;
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        options.offline = true;
        options.arch = wrong[i];
        fa_status status = fa_context_create(&options, &ctx);
        scale_spec_init(&s, 1);
        if (status == FA_OK)
            status = fa_compile(ctx, &s.spec, &kernel);
        cr_expect_eq(status, FA_ERR_ARCH, "%s: %s", wrong[i], fa_status_name(status));
        cr_expect(strstr(fa_last_error(), wrong[i]) && strstr(fa_last_error(), "13.0") &&
                      strstr(fa_last_error(), "sm_90"),
                  "%s", fa_last_error());
        fa_context_destroy(ctx);
    }
    cr_expect_eq(f.nvrtc->live("program"), 0);
    fixture_end(&f);
}

Test(api_context, malformed_architectures)
{
    fixture f;
    const char *const wrong[] = {"", "sm_", "90", "sm_90b", "compute_90", "sm_90a ", "sm_-90"};
    fixture_begin(&f);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fa_context *ctx = NULL;
        fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
        options.offline = true;
        options.arch = wrong[i];
        EXPECT(fa_context_create(&options, &ctx), FA_ERR_ARCH);
        cr_expect_null(ctx);
    }
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    cr_expect_neq(fa_context_create(&options, &ctx), FA_OK, "offline without an architecture");
    fixture_end(&f);
}

Test(api_context, context_info_tells_what_was_found)
{
    fixture f;
    char path[PATH_MAX];
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    fixture_path("libfake_cuda.so", path, sizeof path);
    cr_expect_str_eq(info.driver_path, path);
    fixture_path("libfake_nvrtc.so", path, sizeof path);
    cr_expect_str_eq(info.nvrtc_path, path);
    cr_expect_str_eq(info.device_name, "look-alike 0");
    cr_expect_eq(info.driver_version, 13000);
    cr_expect_eq(info.nvrtc_version, 13000);
    cr_expect_str_eq(info.nvrtc_error, "");
    cr_expect_str_eq(info.cache_dir, f.cache);
    cr_expect_gt(strlen(info.nvrtc_id), 7u);
    cr_expect_geq(info.compile_jobs, 1u);
    cr_expect(!info.sealed);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

/* --- cache functions --- */

Test(api_context, cache_functions)
{
    fixture f;
    size_t count = 0;
    uint64_t entries = 0, bytes = 0;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    for (int i = 0; i < 3; i++)
        fa_kernel_release(fixture_compile(ctx, i));
    OK(fa_cache_list(ctx, count_entry, &count));
    cr_expect_eq(count, 3u);
    count = 0;
    OK(fa_cache_verify(ctx, false, count_entry, &count));
    cr_expect_eq(count, 3u);
    OK(fa_cache_size(ctx, &entries, &bytes));
    cr_expect_eq(entries, 3u);
    cr_expect_gt(bytes, 3u * 64);
    OK(fa_cache_clear(ctx));
    OK(fa_cache_size(ctx, &entries, &bytes));
    cr_expect_eq(entries, 0u);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), 0u);
    fa_kernel_release(fixture_compile(ctx, 1)); /* still in memory */
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 3);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_context, idle_kernels_are_bounded)
{
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.max_idle_kernels = 4;
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK);
    for (int i = 0; i < 32; i++)
        fa_kernel_release(fixture_compile(ctx, i));
    cr_expect_leq(f.cuda->live("module"), 4);
    cr_expect_geq(f.cuda->live("module"), 1);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

/* --- logging --- */

typedef struct lines {
    size_t count[5];
    bool newline;
} lines;

static void on_log(void *user, fa_log_level level, const char *line)
{
    lines *l = user;
    l->count[level <= FA_LOG_DEBUG ? level : 0]++;
    l->newline |= strchr(line, '\n') != NULL;
}

Test(api_context, log_levels)
{
    fixture f;
    lines quiet = {0}, chatty = {0};
    fixture_begin(&f);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    for (int i = 0; i < 2; i++) {
        fa_context *ctx = NULL;
        options.log_user = i ? &chatty : &quiet;
        options.log_level = i ? FA_LOG_DEBUG : FA_LOG_DEFAULT;
        cr_assert_eq(fa_context_create(&options, &ctx), FA_OK);
        fa_kernel_release(fixture_compile(ctx, 10 + i));
        fa_context_destroy(ctx);
    }
    cr_expect_eq(quiet.count[FA_LOG_INFO] + quiet.count[FA_LOG_DEBUG], 0u);
    cr_expect_geq(chatty.count[FA_LOG_INFO], 1u);
    cr_expect(!chatty.newline);
    fixture_end(&f);
}

/* --- operations by name --- */

Test(api_context, op_info_is_contiguous_from_one)
{
    fa_op_info_t info;
    int op = 1;
    while (fa_op_info((fa_op)op, &info) == FA_OK) {
        cr_expect(info.name && info.name[0] && info.text && info.text[0]);
        op++;
    }
    cr_expect_eq(op, FA_OP_CROSS_ATTENTION + 1);
    EXPECT(fa_op_info((fa_op)op, &info), FA_ERR_UNKNOWN_NAME);
    EXPECT(fa_op_info(FA_OP_NONE, &info), FA_ERR_UNKNOWN_NAME);
}

Test(api_context, spec_set_by_name_and_alias)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    fa_spec tmpl = FA_SPEC_INIT(FA_OP_TEMPLATE);
    OK(fa_spec_set(&spec, "dtype", "bf16"));
    OK(fa_spec_set(&spec, "head_dim", "64"));
    OK(fa_spec_set(&spec, "style", "interleaved"));
    OK(fa_spec_set(&spec, "B", "4"));
    OK(fa_spec_set(&spec, "base", "500000.5"));
    OK(fa_spec_set(&spec, "in_place", "true"));
    cr_expect_eq(spec.rope.dtype, FA_BF16);
    cr_expect_eq(spec.rope.head_dim, 64);
    cr_expect_eq(spec.rope.style, FA_ROPE_INTERLEAVED);
    cr_expect_eq(spec.rope.batch, 4);
    cr_expect_eq(spec.rope.base, 500000.5);
    cr_expect(spec.rope.in_place);
    const fa_spec before = spec;
    REFUSED(fa_spec_set(&spec, "headdim", "64"), FA_ERR_UNKNOWN_NAME, "head_dim");
    REFUSED(fa_spec_set(&spec, "dtype", "f64"), FA_ERR_VALUE, "bf16");
    EXPECT(fa_spec_set(&spec, "head_dim", "64x"), FA_ERR_VALUE);
    EXPECT(fa_spec_set(&spec, "head_dim", ""), FA_ERR_VALUE);
    EXPECT(fa_spec_set(&spec, "head_dim", "99999999999999999999"), FA_ERR_VALUE);
    EXPECT(fa_spec_set(&spec, "base", "1,5"), FA_ERR_VALUE);
    cr_expect_eq(memcmp(&before, &spec, sizeof spec), 0, "a refused value was stored");
    EXPECT(fa_spec_set(&tmpl, "dtype", "f32"), FA_ERR_UNSUPPORTED);
}
