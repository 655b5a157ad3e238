/* Failure injection: every call that the library makes to the driver and to NVRTC fails once, in a
 * process of its own each time. The request then fails with a status and a message that names the
 * function, nothing is leaked, and the same request works when made again. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

#define MAX_FUNCTIONS 64

typedef struct sequence {
    fa_status status; /* of the first step that failed */
    const char *step;
    bool out_was_null;
    char message[512];
} sequence;

static bool step(sequence *s, const char *name, fa_status status)
{
    if (status == FA_OK)
        return true;
    s->status = status;
    s->step = name;
    snprintf(s->message, sizeof s->message, "%s", fa_last_error());
    return false;
}

/* The first half of the sequence: context, compile, launch from a thread with no current context.
 */
static void run_forward(sequence *s, float *x, fa_context **ctx, fa_kernel **kernel)
{
    scale_spec spec;
    scale_args args;
    *s = (sequence){.status = FA_OK, .step = "", .out_was_null = true};
    scale_spec_init(&spec, 3);
    scale_args_init(&args, x, 100);
    spec.spec.tmpl.smem_bytes = 50000; /* more than 48 KiB: the opt-in is part of it */
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.no_disk_cache = true;
    *ctx = (fa_context *)x; /* anything but NULL */
    *kernel = (fa_kernel *)x;
    if (!step(s, "fa_context_create", fa_context_create(&options, ctx))) {
        s->out_was_null = *ctx == NULL;
        *kernel = NULL;
    } else if (!step(s, "fa_compile", fa_compile(*ctx, &spec.spec, kernel))) {
        s->out_was_null = *kernel == NULL;
    } else {
        (void)step(s, "fa_launch", fa_launch(*kernel, &args.args, NULL));
    }
}

static void run_sequence(sequence *s, float *x)
{
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    run_forward(s, x, &ctx, &kernel);
    if (s->out_was_null) {
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
    }
}

/* Failures without a word, besides those of the second half, whose functions return nothing: texts
 * that only decorate another failure, ends of things whose work is done, and putting a mode back
 * that the driver accepted a moment before. */
static bool may_pass(const char *function, int nth)
{
    static const struct {
        const char *function;
        int from;
    } quiet[] = {
        {"cuGetErrorName", 1},      {"cuGetErrorString", 1},
        {"nvrtcGetErrorString", 1}, {"cuCtxPopCurrent_v2", 1},
        {"nvrtcDestroyProgram", 1}, {"cuThreadExchangeStreamCaptureMode", 2},
    };
    for (size_t i = 0; i < sizeof quiet / sizeof quiet[0]; i++)
        if (strcmp(function, quiet[i].function) == 0 && nth >= quiet[i].from)
            return true;
    return false;
}

static bool names_function(const char *message, const char *function)
{
    char plain[64];
    snprintf(plain, sizeof plain, "%s", function);
    char *suffix = strstr(plain, "_v2");
    if (suffix)
        *suffix = '\0';
    return strstr(message, plain) != NULL;
}

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        fprintf(stderr, "%s, call %d: ", function, nth);                                           \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        return false;                                                                              \
    } while (0)

static bool check_books(const fake_control *cuda, const fake_control *nvrtc, const char *function,
                        int nth, const char *when)
{
    static const char *const kinds[] = {"module", "primary", "pushed"};
    for (size_t i = 0; i < 3; i++)
        if (cuda->live(kinds[i]) != 0)
            REFUSE("%d of '%s' alive %s", cuda->live(kinds[i]), kinds[i], when);
    if (nvrtc->live("program") != 0)
        REFUSE("%d programs alive %s", nvrtc->live("program"), when);
    if (cuda->violation()[0] || nvrtc->violation()[0])
        REFUSE("misuse %s: %s%s", when, cuda->violation(), nvrtc->violation());
    return true;
}

static bool with_failure(const fake_control *cuda, const fake_control *nvrtc, const char *function,
                         int nth, bool releasing, int code)
{
    sequence s;
    float x[100] = {0};
    const fake_control *side = strncmp(function, "nvrtc", 5) == 0 ? nvrtc : cuda;
    side->fail(function, nth, code);
    run_sequence(&s, x);
    side->fail(NULL, 0, 0);
    if (s.status == FA_OK && !releasing && !may_pass(function, nth))
        REFUSE("nothing failed");
    if (s.status != FA_OK && !names_function(s.message, function))
        REFUSE("%s gave %s without naming it: %s", s.step, fa_status_name(s.status), s.message);
    if (!s.out_was_null)
        REFUSE("%s left its result set", s.step);
    if (releasing && strcmp(function, "cuCtxPushCurrent_v2") == 0)
        return true; /* cannot be reached: in truth its context is gone, and it as well */
    if (!check_books(cuda, nvrtc, function, nth, "after the failure"))
        return false;
    run_sequence(&s, x);
    if (s.status != FA_OK)
        REFUSE("the next attempt fails in %s: %s", s.step, s.message);
    return check_books(cuda, nvrtc, function, nth, "after the next attempt");
}

static int in_child(const fake_control *cuda, const fake_control *nvrtc, const char *function,
                    int nth, bool releasing, int code)
{
    fflush(NULL);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0)
        _exit(with_failure(cuda, nvrtc, function, nth, releasing, code) ? 0 : 1);
    return fixture_wait(pid, 20);
}

/* How often each function is called when nothing fails. */
typedef struct call_counts {
    int forward[MAX_FUNCTIONS], total[MAX_FUNCTIONS];
} call_counts;

static void count_side(const fake_control *side, int *counts)
{
    for (int i = 0; side->function(i); i++)
        counts[i] = side->calls(side->function(i));
}

/* counts[0] for the driver, counts[1] for NVRTC; made in a child. */
static void count_calls(const fixture *f, call_counts counts[2])
{
    call_counts *shared =
        mmap(NULL, 2 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) {
        sequence s;
        float x[100] = {0};
        fa_context *ctx = NULL;
        fa_kernel *kernel = NULL;
        run_forward(&s, x, &ctx, &kernel);
        if (s.status) {
            fprintf(stderr, "%s without a failure: %s\n", s.step, s.message);
            _exit(1);
        }
        count_side(f->cuda, shared[0].forward);
        count_side(f->nvrtc, shared[1].forward);
        fa_kernel_release(kernel);
        fa_context_destroy(ctx);
        count_side(f->cuda, shared[0].total);
        count_side(f->nvrtc, shared[1].total);
        _exit(0);
    }
    cr_assert_eq(fixture_wait(pid, 20), 0);
    memcpy(counts, shared, 2 * sizeof *shared);
    munmap(shared, 2 * sizeof *shared);
}

static int each_call(const fixture *f, const fake_control *side, const call_counts *counts,
                     int code)
{
    int tried = 0;
    for (int i = 0; side->function(i); i++)
        for (int nth = 1; nth <= counts->total[i]; nth++) {
            const char *function = side->function(i);
            int rc = in_child(f->cuda, f->nvrtc, function, nth, nth > counts->forward[i], code);
            cr_expect_eq(rc, 0, "%s, call %d of %d, code %d: status %d", function, nth,
                         counts->total[i], code, rc);
            tried++;
        }
    return tried;
}

static void inject(bool driver, int code, int at_least)
{
    fixture f;
    call_counts counts[2];
    fixture_begin(&f);
    count_calls(&f, counts);
    int tried = each_call(&f, driver ? f.cuda : f.nvrtc, &counts[driver ? 0 : 1], code);
    cr_expect_geq(tried, at_least, "only %d calls were made to fail", tried);
    fixture_end(&f);
}

Test(failures, every_driver_call_unknown_error)
{
    inject(true, 999 /* CUDA_ERROR_UNKNOWN */, 18);
}

Test(failures, F68_every_driver_call_out_of_memory)
{
    inject(true, 2 /* CUDA_ERROR_OUT_OF_MEMORY */, 18);
}

Test(failures, every_nvrtc_call_internal_error)
{
    inject(false, 11 /* NVRTC_ERROR_INTERNAL_ERROR */, 8);
}

Test(failures, every_nvrtc_call_out_of_memory)
{
    inject(false, 1 /* NVRTC_ERROR_OUT_OF_MEMORY */, 8);
}

/* --- statuses by kind --- */

static fa_status compile_failing(const fixture *f, const fake_control *side, const char *function,
                                 int code)
{
    scale_spec s;
    fa_kernel *kernel = NULL;
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 5);
    side->fail(function, 1, code);
    fa_status status = fa_compile(ctx, &s.spec, &kernel);
    side->fail(NULL, 0, 0);
    cr_expect_null(kernel);
    cr_expect_eq(f->cuda->live("module"), 0);
    fa_context_destroy(ctx);
    return status;
}

Test(failures, F68_module_load_out_of_memory_then_retry)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 5);
    f.cuda->fail("cuModuleLoadData", 0, 2);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(fa_compile(ctx, &s.spec, &kernel), FA_ERR_DEVICE_MEMORY, "%s",
                     fa_last_error());
        cr_expect_null(kernel);
    }
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 1, "the cubin was thrown away");
    f.cuda->fail(NULL, 0, 0);
    cr_assert_eq(fa_compile(ctx, &s.spec, &kernel), FA_OK, "%s", fa_last_error());
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    cr_expect_eq(f.cuda->live("primary"), 0);
    fixture_end(&f);
}

Test(failures, statuses_tell_kinds_apart)
{
    fixture f;
    fixture_begin(&f);
    cr_expect_eq(compile_failing(&f, f.cuda, "cuModuleLoadData", 2), FA_ERR_DEVICE_MEMORY);
    cr_expect_eq(compile_failing(&f, f.cuda, "cuModuleLoadData", 999), FA_ERR_CUDA);
    cr_expect_eq(compile_failing(&f, f.cuda, "cuModuleLoadData", 900), FA_ERR_CAPTURE);
    cr_expect_eq(compile_failing(&f, f.cuda, "cuModuleGetFunction", 500), FA_ERR_CUDA);
    setenv("FAJIT_CACHE_DIR", f.dir, 1); /* another one: the kernel is on disk by now */
    cr_expect_eq(compile_failing(&f, f.nvrtc, "nvrtcCreateProgram", 11), FA_ERR_NVRTC);
    cr_expect_eq(compile_failing(&f, f.nvrtc, "nvrtcCompileProgram", 11), FA_ERR_NVRTC);
    cr_expect_eq(compile_failing(&f, f.nvrtc, "nvrtcCreateProgram", 1), FA_ERR_OUT_OF_MEMORY);
    fixture_end(&f);
}

/* --- libraries that lack something --- */

Test(failures, missing_driver_is_named)
{
    fixture f;
    fa_context *ctx = (fa_context *)&f;
    fixture_begin(&f);
    setenv("FAJIT_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
    cr_expect_eq(fa_context_create(NULL, &ctx), FA_ERR_CUDA_MISSING);
    cr_expect_null(ctx);
    cr_expect(strstr(fa_last_error(), "/nonexistent/libcuda.so.1") &&
                  strstr(fa_last_error(), "FAJIT_CUDA_LIBRARY"),
              "%s", fa_last_error());

    fa_context_options options = FA_CONTEXT_OPTIONS_INIT; /* offline needs no driver */
    options.offline = true;
    options.arch = "sm_90a";
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
    fa_kernel_release(fixture_compile(ctx, 1));
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(failures, missing_nvrtc_is_named_and_found_later)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    char path[PATH_MAX];
    fixture_begin(&f);
    setenv("FAJIT_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so", 1);
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    cr_expect_eq(fa_compile(ctx, &s.spec, &kernel), FA_ERR_NVRTC_MISSING);
    cr_expect_null(kernel);
    cr_expect(strstr(fa_last_error(), "/nonexistent/libnvrtc.so") &&
                  strstr(fa_last_error(), "FAJIT_NVRTC_LIBRARY"),
              "%s", fa_last_error());
    fa_context_info_t info = {.size = sizeof info};
    cr_expect_eq(fa_context_info(ctx, &info), FA_OK);
    cr_expect_eq(info.nvrtc_version, 0);
    cr_expect(strstr(info.nvrtc_error, "/nonexistent/libnvrtc.so"), "%s", info.nvrtc_error);

    fixture_path("libfake_nvrtc.so", path, sizeof path);
    setenv("FAJIT_NVRTC_LIBRARY", path, 1);
    cr_expect_eq(fa_compile(ctx, &s.spec, &kernel), FA_OK, "%s", fa_last_error());
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(failures, required_driver_symbol_is_named)
{
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin_with(&f, "fake_cuda_broken", "fake_nvrtc");
    cr_expect_eq(fa_context_create(NULL, &ctx), FA_ERR_CUDA_MISSING);
    cr_expect(strstr(fa_last_error(), "cuModuleLoadData"), "%s", fa_last_error());
    fixture_end(&f);
}

Test(failures, required_nvrtc_symbol_is_named)
{
    fixture f;
    scale_spec s;
    fa_kernel *kernel = NULL;
    fixture_begin_with(&f, "fake_cuda", "fake_nvrtc_broken");
    fa_context *ctx = fixture_context();
    scale_spec_init(&s, 1);
    cr_expect_eq(fa_compile(ctx, &s.spec, &kernel), FA_ERR_NVRTC_MISSING);
    cr_expect(strstr(fa_last_error(), "nvrtcGetCUBIN"), "%s", fa_last_error());
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(failures, optional_symbols_degrade)
{
    fixture f;
    scale_args a;
    float x[100] = {0};
    fixture_begin_with(&f, "fake_cuda_old", "fake_nvrtc_old");
    fa_context *ctx = fixture_context();
    fa_kernel *kernel = fixture_compile(ctx, 2);
    scale_args_init(&a, x, 100);
    cr_expect_eq(fa_launch(kernel, &a.args, NULL), FA_OK, "%s", fa_last_error());
    cr_expect_eq(f.cuda->launches(), 1u);
    fa_kernel_release(kernel);

    scale_spec s; /* what needs a newer driver says so */
    scale_spec_init(&s, 3);
    s.spec.tmpl.cooperative = true;
    fa_status status = fa_compile(ctx, &s.spec, &kernel);
    if (status == FA_OK) {
        status = fa_launch(kernel, &a.args, NULL);
        fa_kernel_release(kernel);
    }
    cr_expect_eq(status, FA_ERR_UNSUPPORTED, "%s", fa_status_name(status));
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(failures, too_old_driver_is_refused)
{
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    f.cuda->set_version(11080);
    cr_expect_neq(fa_context_create(NULL, &ctx), FA_OK);
    cr_expect(strstr(fa_last_error(), "11.8") && strstr(fa_last_error(), "12.0"), "%s",
              fa_last_error());
    fixture_end(&f);
}

Test(failures, no_device)
{
    fixture f;
    fa_context *ctx = NULL;
    fixture_begin(&f);
    f.cuda->set_devices(0, NULL);
    cr_expect_eq(fa_context_create(NULL, &ctx), FA_ERR_NO_DEVICE, "%s", fa_last_error());
    cr_expect_null(ctx);
    fixture_end(&f);
}
