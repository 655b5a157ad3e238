/* A program that uses the library as an outsider would, for the tests that need whole processes:
 *
 *   load                 only loads the library
 *   key VALUE            compiles offline for sm_90a and prints the kernel's key
 *   compile VALUE...     waits for a byte on standard input (unless it is a terminal or closed),
 *                        compiles each value on device 0 and prints how many compiled here
 *   launch VALUE         compiles and launches
 *   exit-live            exits with a context, a kernel and a finished future alive
 *   exit-busy            exits while a compile is under way
 *   exit-busy-offline    the same on an offline context
 *   exit-slow            the same, with an exit handler of its own that takes half a second
 *   fork                 forks with live handles; the child uses every call, then exits as usual
 *   fork-busy            the same while a compile is under way in another thread
 *
 * Exit status 0 when everything went right, 1 with a message on standard error otherwise. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fajit.h"

static const char source[] =
    "__global__ void scale(float *x, float factor, unsigned n)\n"
    "{\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        x[i] *= factor * static_cast<float>(VALUE);\n"
    "}\n";

/* LeakSanitizer asks this at exit: some requests end with live handles on purpose. */
int __lsan_is_turned_off(void);
static bool leaves_handles;
int __lsan_is_turned_off(void)
{
    return leaves_handles;
}

static void check(fa_status status, const char *what)
{
    if (status == FA_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, fa_status_name(status), fa_last_error());
    exit(1);
}

static fa_spec make_spec(const char *value, fa_constant *constant)
{
    *constant = (fa_constant){.name = "VALUE", .type = FA_CONSTANT_INT};
    constant->int_value = strtol(value, NULL, 10);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "scale.cu",
                                   .source = source,
                                   .entry = "scale",
                                   .constants = constant,
                                   .constant_count = 1};
    return spec;
}

static void print_key(const char *value)
{
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    fa_constant constant;
    fa_spec spec = make_spec(value, &constant);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    options.arch = "sm_90a";
    check(fa_context_create(&options, &ctx), "context");
    check(fa_compile(ctx, &spec, &kernel), "compile");
    fa_kernel_info_t info = {.size = sizeof info};
    check(fa_kernel_info(kernel, &info), "info");
    printf("%s\n", info.key);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
}

static void compile(int count, char **values)
{
    fa_context *ctx = NULL;
    char byte = 0;
    if (!isatty(STDIN_FILENO) && read(STDIN_FILENO, &byte, 1) < 0)
        perror("standard input");
    check(fa_context_create(NULL, &ctx), "context");
    for (int i = 0; i < count; i++) {
        fa_kernel *kernel = NULL;
        fa_constant constant;
        fa_spec spec = make_spec(values[i], &constant);
        check(fa_compile(ctx, &spec, &kernel), "compile");
        fa_kernel_release(kernel);
    }
    fa_stats stats = {.size = sizeof stats};
    check(fa_stats_get(ctx, &stats), "stats");
    printf("%llu\n", (unsigned long long)stats.compiles);
    fa_context_destroy(ctx);
}

static void launch(const char *value)
{
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    fa_constant constant;
    fa_spec spec = make_spec(value, &constant);
    check(fa_context_create(NULL, &ctx), "context");
    check(fa_compile(ctx, &spec, &kernel), "compile");
    float data = 1.0f, factor = 2.0f, *x = &data;
    uint32_t n = 0; /* touches nothing, on a real device too */
    fa_param params[] = {{&x, sizeof x}, {&factor, sizeof factor}, {&n, sizeof n}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.grid = {1}, .block = {32}, .params = params, .param_count = 3};
    check(fa_launch(kernel, &args, NULL), "launch");
    puts("launched");
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
}

static fa_context *open_context(bool offline)
{
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = offline;
    options.arch = offline ? "sm_90a" : NULL;
    options.compile_jobs = 1;
    check(fa_context_create(&options, &ctx), "context");
    return ctx;
}

static fa_future *start_compile(fa_context *ctx, const char *value)
{
    fa_future *future = NULL;
    fa_constant constant;
    fa_spec spec = make_spec(value, &constant);
    check(fa_compile_async(ctx, &spec, &future), "async");
    return future;
}

static void exit_live(void)
{
    fa_kernel *kernel = NULL;
    check(fa_future_wait(start_compile(open_context(false), "1"), &kernel), "wait");
    puts("alive");
}

static void exit_busy(bool offline)
{
    start_compile(open_context(offline), "1");
    usleep(20000);
    puts("alive");
}

static void dawdle(void)
{
    usleep(500000);
}

/* --- fork --- */

static int failures;

static void expect_forked(fa_status status, const char *what)
{
    if (status == FA_ERR_FORKED && strstr(fa_last_error(), "fork"))
        return;
    fprintf(stderr, "in the child, %s gave %s: %s\n", what, fa_status_name(status),
            fa_last_error());
    failures++;
}

static void use_handles(fa_context *ctx, fa_kernel *kernel, fa_future *future)
{
    fa_constant constant;
    fa_kernel *out = NULL;
    fa_future *another = NULL;
    char *text = NULL;
    uint64_t n = 0;
    size_t bytes = 0;
    fa_spec spec = make_spec("1", &constant);
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    fa_context_info_t info = {.size = sizeof info};
    fa_stats stats = {.size = sizeof stats};
    expect_forked(fa_compile(ctx, &spec, &out), "fa_compile");
    expect_forked(fa_compile_async(ctx, &spec, &another), "fa_compile_async");
    expect_forked(fa_launch(kernel, &args, NULL), "fa_launch");
    expect_forked(fa_workspace_size(kernel, &args, &bytes), "fa_workspace_size");
    expect_forked(fa_future_wait(future, &out), "fa_future_wait");
    expect_forked(fa_render(ctx, &spec, FA_TEXT_SOURCE, &text), "fa_render");
    expect_forked(fa_warm(ctx, &spec, 1, NULL, NULL), "fa_warm");
    expect_forked(fa_manifest_write(ctx, "/nonexistent"), "fa_manifest_write");
    expect_forked(fa_seal(ctx), "fa_seal");
    expect_forked(fa_context_info(ctx, &info), "fa_context_info");
    expect_forked(fa_stats_get(ctx, &stats), "fa_stats_get");
    expect_forked(fa_cache_size(ctx, &n, &n), "fa_cache_size");
    expect_forked(fa_cache_clear(ctx), "fa_cache_clear");
    fa_future_release(future);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    expect_forked(fa_context_create(NULL, &ctx), "fa_context_create on the device");
}

/* An offline context needs nothing of the driver. It works, or says that it cannot because a
 * compile was under way when the process forked; either way it answers. */
static void start_afresh(void)
{
    fa_kernel *kernel = NULL;
    fa_constant constant;
    fa_spec spec = make_spec("77", &constant);
    fa_context *ctx = open_context(true);
    fa_status status = fa_compile(ctx, &spec, &kernel);
    if (status != FA_OK)
        expect_forked(status, "fa_compile on a new offline context");
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
}

static int fork_with_handles(bool busy)
{
    int status = 0;
    fa_kernel *kernel = NULL;
    fa_context *ctx = open_context(false);
    fa_future *future = start_compile(ctx, "1");
    check(fa_future_wait(future, &kernel), "wait");
    if (busy) {
        fa_future_release(future);
        future = start_compile(ctx, "2");
        usleep(20000);
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20); /* instead of a hang */
        use_handles(ctx, kernel, future);
        start_afresh();
        exit(failures ? 1 : 0);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the forked child ended with wait status %#x\n", (unsigned)status);
        return 1;
    }
    fa_kernel *again = NULL; /* the parent goes on as before */
    check(fa_future_wait(future, &again), "wait in the parent");
    fa_kernel_release(again);
    fa_kernel_release(kernel);
    fa_future_release(future);
    fa_context_destroy(ctx);
    puts("forked");
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!setlocale(LC_ALL, ""))
        setlocale(LC_ALL, "C");
    leaves_handles = strncmp(what, "exit", 4) == 0 || strncmp(what, "fork", 4) == 0;
    if (strcmp(what, "load") == 0)
        printf("%s\n", fa_version());
    else if (strcmp(what, "key") == 0 && argc == 3)
        print_key(argv[2]);
    else if (strcmp(what, "compile") == 0 && argc > 2)
        compile(argc - 2, argv + 2);
    else if (strcmp(what, "launch") == 0 && argc == 3)
        launch(argv[2]);
    else if (strcmp(what, "exit-live") == 0)
        exit_live();
    else if (strcmp(what, "exit-busy") == 0)
        exit_busy(false);
    else if (strcmp(what, "exit-busy-offline") == 0)
        exit_busy(true);
    else if (strcmp(what, "exit-slow") == 0 && atexit(dawdle) == 0)
        exit_busy(false);
    else if (strncmp(what, "fork", 4) == 0)
        return fork_with_handles(strcmp(what, "fork-busy") == 0);
    else {
        fprintf(stderr, "unknown request '%s'\n", what);
        return 2;
    }
    return 0;
}
