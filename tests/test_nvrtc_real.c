/* With the real NVRTC, skipped where there is none. No driver is needed; where one is, it is the
 * look-alike. */
#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

/* A context that has found NVRTC; skips the test without one. */
static fa_context *open_real(fixture *f, const char *arch)
{
    fixture_begin_with(f, "", "");
    fa_context *ctx = fixture_offline(arch);
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    if (info.nvrtc_version == 0)
        cr_skip_test("no NVRTC: %s", info.nvrtc_error);
    return ctx;
}

static void expect_cubin(const fa_kernel *kernel)
{
    fa_kernel_info_t info = {.size = sizeof info};
    OK(fa_kernel_info(kernel, &info));
    const unsigned char *b = info.cubin;
    cr_assert_gt(info.cubin_bytes, 64u);
    cr_expect_eq(memcmp(b, "\177ELF", 4), 0, "no ELF file");
    cr_expect_eq(b[18] | b[19] << 8, 190, "not for CUDA (e_machine)");
}

/* --- cubins --- */

Test(nvrtc_real, F40_the_output_is_a_cubin)
{
    fixture f;
    const char *const arch[] = {"sm_80", "sm_89", "sm_90a"}; /* every supported NVRTC has these */
    for (size_t i = 0; i < 3; i++) {
        fa_context *ctx = open_real(&f, arch[i]);
        fa_kernel *kernel = fixture_compile(ctx, 1);
        expect_cubin(kernel);
        fa_kernel_info_t info = {.size = sizeof info};
        OK(fa_kernel_info(kernel, &info));
        cr_expect_str_eq(info.arch, arch[i]);
        cr_expect_gt(info.registers, 0);
        cr_expect_lt(info.registers, 256);
        cr_expect_eq(info.spill_bytes, 0u);
        cr_expect_eq(strncmp(info.entry, "_Z5scale", 8), 0, "%s", info.entry);
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
        fixture_end(&f);
    }
}

static void keep_cubin(fa_context *ctx, const fa_spec *spec, void **bytes, size_t *size)
{
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    cr_assert_eq(fa_compile(ctx, spec, &kernel), FA_OK, "%s", fa_last_error());
    OK(fa_kernel_info(kernel, &info));
    *size = info.cubin_bytes;
    *bytes = malloc(info.cubin_bytes);
    cr_assert_not_null(*bytes);
    memcpy(*bytes, info.cubin, info.cubin_bytes);
    fa_kernel_release(kernel);
}

Test(nvrtc_real, cubin_is_byte_identical_each_time)
{
    fixture f;
    void *bytes[2];
    size_t size[2];
    char here[PATH_MAX];
    cr_assert_not_null(getcwd(here, sizeof here));
    for (int i = 0; i < 2; i++) {
        fa_context *ctx = open_real(&f, "sm_90a"); /* another cache folder each time */
        fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
        spec.rope.head_dim = 64;
        cr_assert_eq(chdir(i ? "/" : f.dir), 0);
        keep_cubin(ctx, &spec, &bytes[i], &size[i]);
        cr_assert_eq(chdir(here), 0);
        fa_context_destroy(ctx);
        fixture_end(&f);
    }
    cr_assert_eq(size[0], size[1]);
    cr_expect_eq(memcmp(bytes[0], bytes[1], size[0]), 0);
    free(bytes[0]);
    free(bytes[1]);
}

/* --- architectures --- */

Test(nvrtc_real, F41_unknown_architecture)
{
    fixture f;
    scale_spec s;
    const char *const wrong[] = {"sm_77", "sm_999a"};
    scale_spec_init(&s, 1);
    for (size_t i = 0; i < 2; i++) {
        fa_kernel *kernel = NULL;
        fa_context *ctx = open_real(&f, wrong[i]);
        fa_context_info_t info = {.size = sizeof info};
        char version[32];
        OK(fa_context_info(ctx, &info));
        snprintf(version, sizeof version, "%d.%d", info.nvrtc_version / 1000,
                 info.nvrtc_version % 1000 / 10);
        REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_ARCH, wrong[i]);
        cr_expect(strstr(fa_last_error(), version) && strstr(fa_last_error(), "sm_90"), "%s",
                  fa_last_error());
        fa_context_destroy(ctx);
        fixture_end(&f);
    }
}

Test(nvrtc_real, F45_every_default_architecture_compiles)
{
    fixture f;
    const int cc[] = {80, 86, 89, 90, 100, 120};
    fixture_begin_with(&f, "fake_cuda", "");
    f.cuda->set_devices(6, cc);
    for (int i = 0; i < 6; i++) {
        fa_device_info_t device = {.size = sizeof device};
        OK(fa_device_info(i, &device));
        fa_context *ctx = fixture_offline(device.arch);
        fa_context_info_t info = {.size = sizeof info};
        OK(fa_context_info(ctx, &info));
        if (info.nvrtc_version == 0)
            cr_skip_test("no NVRTC: %s", info.nvrtc_error);
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, 1);
        fa_status status = fa_compile(ctx, &s.spec, &kernel);
        /* an older NVRTC may not know the newest ones */
        cr_expect(status == FA_OK ||
                      (status == FA_ERR_ARCH && cc[i] >= 100 && info.nvrtc_version < 12090),
                  "%s: %s", device.arch, fa_last_error());
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
    }
    fixture_end(&f);
}

/* A real cubin on a driver that does not take it: an error by name, nothing left over. */
Test(nvrtc_real, cubin_refused_by_the_driver)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin_with(&f, "fake_cuda", "");
    fa_context *ctx = fixture_context();
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    if (info.nvrtc_version == 0)
        cr_skip_test("no NVRTC: %s", info.nvrtc_error);
    scale_spec_init(&s, 1);
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_CUDA, "cuModuleLoadData");
    cr_expect(strstr(fa_last_error(), "CUDA_ERROR_INVALID_IMAGE"), "%s", fa_last_error());
    cr_expect_null(kernel);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

/* --- what a user's source says --- */

Test(nvrtc_real, F04_errors_have_the_users_line_numbers)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_context *ctx = open_real(&f, "sm_90a");
    scale_spec_init(&s, 1);
    s.spec.tmpl.name = "mine.cu";
    s.spec.tmpl.source =
        "__global__ void scale(float *x)\n"
        "{\n"
        "    x[0] = undefined_thing;\n"
        "    x[1] = 1 +* 2;\n"
        "}\n";
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE, "mine.cu(3)");
    cr_expect(strstr(fa_last_error(), "undefined_thing"), "%s", fa_last_error());
    cr_expect(strstr(fa_last_error(), "mine.cu(4)"), "the log is cut: %s", fa_last_error());
    cr_expect_null(kernel);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), 0u);
    s.spec.tmpl.source = "__global__ void scale(float *x)\n{\n    x[0] = VALUE;\n}\n";
    OK(fa_compile(ctx, &s.spec, &kernel));
    expect_cubin(kernel);
    fa_kernel_release(kernel);

    s.spec.tmpl.entry = "scald";
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE, "scald");
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, errors_in_a_header_name_the_header)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    const fa_header headers[] = {{"part/mine.h", "// one\nint f( {}\n"}};
    fa_context *ctx = open_real(&f, "sm_90a");
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "#include \"part/mine.h\"\n__global__ void scale() {}\n";
    s.spec.tmpl.headers = headers;
    s.spec.tmpl.header_count = 1;
    REFUSED(fa_compile(ctx, &s.spec, &kernel), FA_ERR_COMPILE, "mine.h(2)");
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, name_expressions_with_template_arguments)
{
    fixture f;
    scale_spec s;
    const char *const entries[] = {"kernel<float, 4>", "kernel<double, 2>", "space::plain",
                                   "kernel<fajit_test_alias, 1>"};
    fa_context *ctx = open_real(&f, "sm_90a");
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        fa_kernel *kernel = NULL;
        fa_kernel_info_t info = {.size = sizeof info};
        scale_spec_init(&s, 1);
        s.spec.tmpl.source =
            "using fajit_test_alias = float;\n"
            "template <typename T, int N> __global__ void kernel(T *x) { x[0] = T(N * VALUE); }\n"
            "namespace space { __global__ void plain(int *x) { *x = 1; } }\n";
        s.spec.tmpl.entry = entries[i];
        cr_expect_eq(fa_compile(ctx, &s.spec, &kernel), FA_OK, "%s: %s", entries[i],
                     fa_last_error());
        if (!kernel)
            continue;
        OK(fa_kernel_info(kernel, &info));
        cr_expect_eq(strncmp(info.entry, "_Z", 2), 0, "%s", info.entry);
        cr_expect_gt(info.registers, 0);
        fa_kernel_release(kernel);
    }
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, extern_c_entry)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    fa_context *ctx = open_real(&f, "sm_90a");
    scale_spec_init(&s, 1);
    s.spec.tmpl.source = "extern \"C\" __global__ void scale(float *x) { x[0] = VALUE; }\n";
    OK(fa_compile(ctx, &s.spec, &kernel));
    OK(fa_kernel_info(kernel, &info));
    cr_expect_str_eq(info.entry, "scale");
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, constants_are_typed)
{
    fixture f;
    fa_kernel *kernel = NULL;
    const fa_constant constants[] = {
        {.name = "N", .type = FA_CONSTANT_INT, .int_value = INT64_MIN},
        {.name = "M", .type = FA_CONSTANT_INT, .int_value = INT64_MAX},
        {.name = "R", .type = FA_CONSTANT_FLOAT, .float_value = 0.1},
        {.name = "S", .type = FA_CONSTANT_FLOAT, .float_value = -5e-324},
        {.name = "B", .type = FA_CONSTANT_BOOL, .int_value = 1},
        {.name = "T", .type = FA_CONSTANT_DTYPE, .int_value = FA_BF16},
        {.name = "F", .type = FA_CONSTANT_IDENTIFIER, .identifier = "space::twice"},
    };
    fa_context *ctx = open_real(&f, "sm_90a");
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){
        .name = "typed.cu",
        .source =
            "#include \"fajit/dtype.cuh\"\n"
            "namespace space { __device__ constexpr int twice(int x) { return 2 * x; } }\n"
            "static_assert(N == -9223372036854775807LL - 1 && M == 9223372036854775807LL);\n"
            "static_assert(R == 0.1 && S < 0 && S * 2 == S + S && B);\n"
            "static_assert(sizeof(T) == 2 && F(3) == 6);\n"
            "#ifndef FAJIT_INSTANCE\n#error not an instance\n#endif\n"
            "__global__ void typed(T *x) { x[0] = x[1]; }\n",
        .entry = "typed",
        .constants = constants,
        .constant_count = sizeof constants / sizeof constants[0],
    };
    OK(fa_compile(ctx, &spec, &kernel));
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* A header that no template of the library includes. */
static void check_clock(const char *arch)
{
    fixture f;
    char *text = NULL;
    fa_context *ctx = open_real(&f, arch);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){
        .name = "clock.cu",
        .source =
            "#include \"fajit/clock.cuh\"\n"
            "__global__ void now(unsigned long long *x) { *x = fajit::nanoseconds(); }\n",
        .entry = "now",
    };
    OK(fa_render(ctx, &spec, FA_TEXT_PTX, &text));
    cr_expect(text && strstr(text, "%globaltimer"), "%s", text);
    free(text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, clock_of_the_oldest_architecture)
{
    check_clock("sm_75");
}

Test(nvrtc_real, clock_of_hopper)
{
    check_clock("sm_90a");
}

Test(nvrtc_real, render_ptx)
{
    fixture f;
    scale_spec s;
    char *text = NULL;
    fa_context *ctx = open_real(&f, "sm_90a");
    scale_spec_init(&s, 1);
    OK(fa_render(ctx, &s.spec, FA_TEXT_PTX, &text));
    cr_expect(text && strstr(text, ".target sm_90a") && strstr(text, ".entry"), "%s", text);
    free(text);
    s.spec.tmpl.source = "#error in PTX as well\n__global__ void scale() {}\n";
    text = NULL;
    REFUSED(fa_render(ctx, &s.spec, FA_TEXT_PTX, &text), FA_ERR_COMPILE, "in PTX as well");
    cr_expect_null(text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- surroundings --- */

/* No toolkit folder is known to the process, PATH is empty, and the headers' usual places are named
 * nowhere: the built-in templates need none of them. */
Test(nvrtc_real, F43_F44_no_headers_and_an_empty_path)
{
    fixture f;
    const fa_dtype dtypes[] = {FA_F32, FA_F16, FA_BF16};
    setenv("PATH", "", 1);
    const char *const variables[] = {"CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH",
                                     "NVCC_PREPEND_FLAGS"};
    for (size_t i = 0; i < 4; i++)
        unsetenv(variables[i]);
    fa_context *ctx = open_real(&f, "sm_90a");
    for (size_t i = 0; i < 3; i++) {
        fa_kernel *kernel = NULL;
        fa_kernel_info_t info = {.size = sizeof info};
        fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
        spec.rope.dtype = dtypes[i];
        spec.rope.head_dim = 64;
        OK(fa_compile(ctx, &spec, &kernel));
        OK(fa_kernel_info(kernel, &info));
        cr_expect_eq(info.spill_bytes, 0u);
        fa_kernel_release(kernel);
    }
    char *source = NULL; /* and its includes are the project's own */
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    OK(fa_render(ctx, &spec, FA_TEXT_SOURCE, &source));
    for (const char *at = source; (at = strstr(at, "#include")) != NULL; at++)
        cr_expect_eq(strncmp(at, "#include \"fajit/", 16), 0, "%.40s", at);
    free(source);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* Stands in for a folder that holds libnvrtc alone: what it finds beside itself under the names of
 * its builtins is no library. Merely leaving them out would let the loader find those of a toolkit
 * that the machine has elsewhere. */
static void make_lonely(const char *lonely, const char *nvrtc_path)
{
    char command[2 * PATH_MAX + 500];
    cr_assert_eq(mkdir(lonely, 0700), 0);
    snprintf(command, sizeof command,
             "cp -L '%s' '%s/libnvrtc.so' && cd '%s' && "
             "for f in \"$(dirname '%s')\"/libnvrtc-builtins.so*; do "
             "echo 'not a library' >\"${f##*/}\"; done",
             nvrtc_path, lonely, lonely, nvrtc_path);
    cr_assert_eq(system(command), 0);
}

Test(nvrtc_real, F42_builtins_missing)
{
    fixture f;
    char line[64], lonely[300], copy[400], search[4096], error[300], text[8192] = "";
    const char *libraries =
        getenv("FAJIT_TEST_LD_LIBRARY_PATH"); /* where this test's own may lie */
    fa_context *ctx = open_real(&f, "sm_90a");
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    snprintf(lonely, sizeof lonely, "%s/lonely", f.dir);
    make_lonely(lonely, info.nvrtc_path);
    fa_context_destroy(ctx);

    snprintf(copy, sizeof copy, "%s/libnvrtc.so", lonely);
    setenv("FAJIT_NVRTC_LIBRARY", copy, 1); /* this process has its NVRTC: a child takes the copy */
    snprintf(search, sizeof search, "%s%s%s", lonely, libraries ? ":" : "",
             libraries ? libraries : "");
    setenv("LD_LIBRARY_PATH", search, 1);
    snprintf(error, sizeof error, "%s/error", f.dir);
    cr_assert_not_null(freopen(error, "w", stderr));
    const char *const argv[] = {"key", "1", NULL};
    int rc = fixture_run(line, sizeof line, argv);
    FILE *file = fopen(error, "r");
    cr_assert_not_null(file);
    size_t len = fread(text, 1, sizeof text - 1, file);
    text[len] = '\0';
    fclose(file);
    cr_expect_eq(rc, 1, "exit status %d", rc);
    cr_expect(strstr(text, "FA_ERR_NVRTC") || strstr(text, "FA_ERR_COMPILE"), "%s", text);
    cr_expect(strstr(text, "libnvrtc-builtins"), "the file is not named: %s", text);
    cr_expect_eq(fixture_files(f.cache, ".fajit"), 0u);
    fixture_end(&f);
}

Test(nvrtc_real, F14_no_precompiled_headers)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_context *ctx = open_real(&f, "sm_90a");
    cr_assert_eq(chdir(f.dir), 0);
    const char *const options[] = {"--pch", "-pch", "--create-pch=x", "--use-pch=x", "--pch-dir=x"};
    for (size_t i = 0; i < 5; i++) {
        scale_spec_init(&s, 1);
        s.spec.tmpl.options = &options[i];
        s.spec.tmpl.option_count = 1;
        EXPECT(fa_compile(ctx, &s.spec, &kernel), FA_ERR_OPTION);
    }
    fa_kernel_release(fixture_compile(ctx, 1));
    cr_expect_eq(fixture_files(f.dir, ".pch"), 0u);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, F37_decimal_commas)
{
    fixture f;
    void *bytes[2];
    size_t size[2];
    fa_context *ctx = open_real(&f, "sm_90a");
    const char *name = fixture_comma_locale(&f);
    if (!name[0])
        cr_skip_test("no locale with decimal commas, and localedef cannot make one");
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope.head_dim = 64;
    spec.rope.base = 1234.5;
    keep_cubin(ctx, &spec, &bytes[0], &size[0]);
    fa_context_destroy(ctx);
    setenv("FAJIT_CACHE_DIR", f.dir, 1);
    cr_assert_not_null(setlocale(LC_ALL, name));
    ctx = fixture_offline("sm_90a");
    keep_cubin(ctx, &spec, &bytes[1], &size[1]);
    cr_assert_eq(size[0], size[1]);
    cr_expect_eq(memcmp(bytes[0], bytes[1], size[0]), 0);
    free(bytes[0]);
    free(bytes[1]);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(nvrtc_real, F61_exit_while_compiling, .timeout = 60)
{
    fixture f;
    char line[64];
    fa_context *ctx = open_real(&f, "sm_90a");
    fa_context_destroy(ctx);
    const char *const argv[] = {"exit-busy-offline", NULL};
    for (int i = 0; i < 5; i++) {
        setenv("FAJIT_CACHE_DIR", i % 2 ? f.dir : f.cache, 1);
        cr_expect_eq(fixture_run(line, sizeof line, argv), 0);
        cr_expect_str_eq(line, "alive");
    }
    fixture_end(&f);
}

Test(nvrtc_real, F66_good_and_failed_compiles_keep_memory_flat, .timeout = 90)
{
    fixture f;
    long before = 0;
    fa_context *ctx = open_real(&f, "sm_90a");
    fa_context_destroy(ctx);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    options.arch = "sm_90a";
    options.no_disk_cache = true;
    options.max_idle_kernels = 1;
    OK(fa_context_create(&options, &ctx));
    const int pairs = getenv("FAJIT_TEST_LONG") ? 500 : 60;
    for (int i = 0; i < 2 * pairs; i++) {
        scale_spec s;
        fa_kernel *kernel = NULL;
        scale_spec_init(&s, i % 8);
        if (i % 2)
            s.spec.tmpl.source = "__global__ void scale() { nothing_of_that_name(); }\n";
        EXPECT(fa_compile(ctx, &s.spec, &kernel), i % 2 ? FA_ERR_COMPILE : FA_OK);
        fa_kernel_release(kernel);
        if (i == pairs / 2)
            before = fixture_rss_kb();
    }
    if (!fixture_sanitized())
        cr_expect_leq(fixture_rss_kb() - before, 16384, "RSS grew by %ld kB in %d compiles",
                      fixture_rss_kb() - before, 3 * pairs / 2);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
