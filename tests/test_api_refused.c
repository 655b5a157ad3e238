/* What every public function says to a NULL pointer, a wrong struct size, a malformed template. The
 * driver and NVRTC are look-alikes. */
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

/* --- statuses and versions --- */

Test(api_refused, status_names_follow_the_list)
{
#define CHECK(name, value, text)                                                                   \
    cr_expect_str_eq(fa_status_name(name), #name);                                                 \
    cr_expect_eq((int)name, value);                                                                \
    cr_expect(strlen(text) > 3);
    FA_STATUS_LIST(CHECK)
#undef CHECK
    cr_expect_str_eq(fa_status_name((fa_status)1234), "FA_ERR_?");
    cr_expect_str_eq(fa_status_name((fa_status)-1), "FA_ERR_?");
}

Test(api_refused, version_matches_the_header)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH);
    cr_expect_str_eq(fa_version(), text);
}

Test(api_refused, last_error_starts_empty)
{
    cr_expect_str_eq(fa_last_error(), "");
}

/* --- NULL pointers --- */

Test(api_refused, null_pointers_without_a_context)
{
    fixture f;
    fixture_begin(&f);
    fa_context_info_t info = {.size = sizeof info};
    fa_device_info_t device = {.size = sizeof device};
    fa_stats stats = {.size = sizeof stats};
    fa_kernel_info_t kernel_info = {.size = sizeof kernel_info};
    fa_op_info_t op_info;
    scale_spec s;
    scale_args a;
    fa_kernel *kernel = NULL;
    fa_future *future = NULL;
    char *text = NULL;
    size_t bytes = 0, count = 0;
    uint64_t entries = 0, total = 0;
    scale_spec_init(&s, 1);
    scale_args_init(&a, &f, 1);

    EXPECT(fa_context_create(NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_context_info(NULL, &info), FA_ERR_NULL_POINTER);
    EXPECT(fa_device_info(0, NULL), FA_ERR_NULL_POINTER);
    OK(fa_device_info(0, &device));
    EXPECT(fa_seal(NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_stats_get(NULL, &stats), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile(NULL, &s.spec, &kernel), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile_async(NULL, &s.spec, &future), FA_ERR_NULL_POINTER);
    EXPECT(fa_future_wait(NULL, &kernel), FA_ERR_NULL_POINTER);
    cr_expect(fa_future_ready(NULL));
    EXPECT(fa_kernel_info(NULL, &kernel_info), FA_ERR_NULL_POINTER);
    EXPECT(fa_render(NULL, &s.spec, FA_TEXT_SOURCE, &text), FA_ERR_NULL_POINTER);
    EXPECT(fa_launch(NULL, &a.args, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_workspace_size(NULL, &a.args, &bytes), FA_ERR_NULL_POINTER);
    EXPECT(fa_warm(NULL, &s.spec, 1, NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_warm_manifest(NULL, "x", NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_manifest_write(NULL, "x"), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_list(NULL, count_entry, &count), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_verify(NULL, false, count_entry, &count), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_size(NULL, &entries, &total), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_clear(NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_op_info(FA_OP_ROPE, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_spec_set(NULL, "dtype", "f32"), FA_ERR_NULL_POINTER);
    OK(fa_op_info(FA_OP_ROPE, &op_info));
    fa_context_destroy(NULL);
    fa_kernel_release(NULL);
    fa_future_release(NULL);
    cr_expect_null(kernel);
    cr_expect_null(future);
    cr_expect_null(text);
    fixture_end(&f);
}

Test(api_refused, null_pointers_with_a_context)
{
    fixture f;
    fixture_begin(&f);
    scale_spec s;
    scale_args a;
    fa_kernel *out = NULL;
    fa_future *future = NULL;
    char *text = NULL;
    size_t bytes = 0;
    uint64_t n = 0;
    fa_spec rope = FA_SPEC_INIT(FA_OP_ROPE);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    scale_spec_init(&s, 2);
    scale_args_init(&a, &f, 1);

    EXPECT(fa_context_info(ctx, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_stats_get(ctx, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile(ctx, NULL, &out), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile(ctx, &s.spec, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile_async(ctx, NULL, &future), FA_ERR_NULL_POINTER);
    EXPECT(fa_compile_async(ctx, &s.spec, NULL), FA_ERR_NULL_POINTER);
    OK(fa_compile_async(ctx, &s.spec, &future));
    EXPECT(fa_future_wait(future, NULL), FA_ERR_NULL_POINTER);
    OK(fa_future_wait(future, &out));
    EXPECT(fa_kernel_info(kernel, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_render(ctx, NULL, FA_TEXT_SOURCE, &text), FA_ERR_NULL_POINTER);
    EXPECT(fa_render(ctx, &s.spec, FA_TEXT_SOURCE, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_launch(kernel, NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_workspace_size(kernel, NULL, &bytes), FA_ERR_NULL_POINTER);
    EXPECT(fa_workspace_size(kernel, &a.args, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_warm(ctx, NULL, 1, NULL, NULL), FA_ERR_NULL_POINTER);
    OK(fa_warm(ctx, NULL, 0, NULL, NULL));
    EXPECT(fa_warm_manifest(ctx, NULL, NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_manifest_write(ctx, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_list(ctx, NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_verify(ctx, false, NULL, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_size(ctx, NULL, &n), FA_ERR_NULL_POINTER);
    EXPECT(fa_cache_size(ctx, &n, NULL), FA_ERR_NULL_POINTER);
    EXPECT(fa_spec_set(&rope, NULL, "f32"), FA_ERR_NULL_POINTER);
    EXPECT(fa_spec_set(&rope, "dtype", NULL), FA_ERR_NULL_POINTER);

    s.spec.tmpl.source = NULL;
    REFUSED(fa_compile(ctx, &s.spec, &(fa_kernel *){NULL}), FA_ERR_NULL_POINTER, "source");
    scale_spec_init(&s, 2);
    s.spec.tmpl.entry = NULL;
    REFUSED(fa_compile(ctx, &s.spec, &(fa_kernel *){NULL}), FA_ERR_NULL_POINTER, "entry");
    scale_spec_init(&s, 2);
    s.spec.tmpl.constants = NULL;
    REFUSED(fa_compile(ctx, &s.spec, &(fa_kernel *){NULL}), FA_ERR_NULL_POINTER, "constants");
    a.param[1].data = NULL;
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_NULL_POINTER, "params");
    a.args.tmpl.params = NULL;
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_NULL_POINTER, "params");

    fa_future_release(future);
    fa_kernel_release(out);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- struct sizes --- */

static void sizes_of_context(const size_t *wrong, fa_context *ctx)
{
    fa_context *other = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context_info_t info = {.size = *wrong};
    fa_device_info_t device = {.size = *wrong};
    fa_stats stats = {.size = *wrong};
    options.size = *wrong;
    REFUSED(fa_context_create(&options, &other), FA_ERR_STRUCT_SIZE, "fa_context_options");
    cr_expect_null(other);
    REFUSED(fa_context_info(ctx, &info), FA_ERR_STRUCT_SIZE, "fa_context_info_t");
    REFUSED(fa_device_info(0, &device), FA_ERR_STRUCT_SIZE, "fa_device_info_t");
    REFUSED(fa_stats_get(ctx, &stats), FA_ERR_STRUCT_SIZE, "fa_stats");
}

static void sizes_of_kernel(const size_t *wrong, fa_context *ctx, fa_kernel *kernel)
{
    scale_spec s;
    scale_args a;
    fa_kernel *out = NULL;
    fa_future *future = NULL;
    char *text = NULL;
    size_t bytes = 0;
    fa_kernel_info_t info = {.size = *wrong};
    fa_warm_options warm = {.size = *wrong};
    scale_spec_init(&s, 2);
    scale_args_init(&a, ctx, 1);
    s.spec.size = *wrong;
    a.args.size = *wrong;
    REFUSED(fa_compile(ctx, &s.spec, &out), FA_ERR_STRUCT_SIZE, "fa_spec");
    REFUSED(fa_compile_async(ctx, &s.spec, &future), FA_ERR_STRUCT_SIZE, "fa_spec");
    REFUSED(fa_render(ctx, &s.spec, FA_TEXT_SOURCE, &text), FA_ERR_STRUCT_SIZE, "fa_spec");
    REFUSED(fa_warm(ctx, &s.spec, 1, NULL, NULL), FA_ERR_STRUCT_SIZE, "fa_spec");
    REFUSED(fa_spec_set(&s.spec, "dtype", "f32"), FA_ERR_STRUCT_SIZE, "fa_spec");
    REFUSED(fa_launch(kernel, &a.args, NULL), FA_ERR_STRUCT_SIZE, "fa_args");
    REFUSED(fa_workspace_size(kernel, &a.args, &bytes), FA_ERR_STRUCT_SIZE, "fa_args");
    REFUSED(fa_kernel_info(kernel, &info), FA_ERR_STRUCT_SIZE, "fa_kernel_info_t");
    scale_spec_init(&s, 2);
    REFUSED(fa_warm(ctx, &s.spec, 1, &warm, NULL), FA_ERR_STRUCT_SIZE, "fa_warm_options");
}

Test(api_refused, struct_sizes)
{
    fixture f;
    const size_t wrong[] = {0, 1, SIZE_MAX};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 1);
    for (size_t i = 0; i < 3; i++) {
        sizes_of_context(&wrong[i], ctx);
        sizes_of_kernel(&wrong[i], ctx, kernel);
    }
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- template specs that are refused --- */

Test(api_refused, template_specs_refused)
{
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    const char *const names[] = {"", "1x", "a b", "int", "fa_x", "__x", "x;", "VALUE\n", "x=1"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, 1);
        s.constant[0].name = names[i];
        EXPECT(fa_compile(ctx, &s.spec, &kernel), FA_ERR_CONSTANT);
        cr_expect_null(kernel);
    }
    const char *const options[] = {
        "-I/usr/include", "--include-path=/x", "-arch=sm_80",    "--gpu-architecture=x", "-I",
        "--pch",          "-include=x",        "--pre-include=x"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, 1);
        s.spec.tmpl.options = &options[i];
        s.spec.tmpl.option_count = 1;
        fa_status status = fa_compile(ctx, &s.spec, &kernel);
        cr_expect_eq(status, FA_ERR_OPTION, "%s: %s", options[i], fa_status_name(status));
        fa_kernel_release(kernel);
    }
    scale_spec s;
    fa_kernel *kernel = NULL;
    scale_spec_init(&s, 1);
    s.spec.op = (fa_op)77;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_UNKNOWN_NAME, "77");
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 0);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_refused, template_options_and_headers_reach_the_compiler)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    const char *const options[] = {"--fmad=false"};
    const fa_header headers[] = {{"mine.h", "#include \"inner.h\"\n"}, {"inner.h", "// inner\n"}};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "#include \"mine.h\"\n__global__ void scale() {}\n";
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE, "mine.h");
    s.spec.tmpl.options = options;
    s.spec.tmpl.option_count = 1;
    s.spec.tmpl.headers = headers;
    s.spec.tmpl.header_count = 2;
    OK(fa_compile(ctx, &s.spec, &kernel));
    cr_expect(strstr(f.nvrtc->last_options(), "--fmad=false\n"), "%s", f.nvrtc->last_options());
    cr_expect(strstr(f.nvrtc->last_headers(), "mine.h\n"), "%s", f.nvrtc->last_headers());
    cr_expect(strstr(f.nvrtc->last_headers(), "inner.h\n"), "%s", f.nvrtc->last_headers());
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
