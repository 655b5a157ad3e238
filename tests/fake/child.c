/* A program that uses the library as an outsider would, for the tests that need whole processes:
 *
 *   load                 only loads the library
 *   key VALUE            compiles offline for sm_90a and prints the kernel's key
 *   compile VALUE...     waits for a byte on standard input (unless it is a terminal or closed),
 *                        compiles each value on device 0 and prints how many compiled here
 *   launch VALUE         compiles and launches
 *   exit-live            exits with a context, a kernel and a finished future alive
 *   exit-busy            exits while a compile is under way
 *
 * Exit status 0 when everything went right, 1 with a message on standard error otherwise. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fajit.h"

static const char source[] =
    "__global__ void scale(float *x, float factor, unsigned n)\n"
    "{\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        x[i] *= factor * static_cast<float>(VALUE);\n"
    "}\n";

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

static void exit_live(bool wait)
{
    fa_context *ctx = NULL;
    fa_kernel *kernel = NULL;
    fa_future *future = NULL;
    fa_constant constant;
    fa_spec spec = make_spec("1", &constant);
    check(fa_context_create(NULL, &ctx), "context");
    check(fa_compile_async(ctx, &spec, &future), "async");
    if (wait)
        check(fa_future_wait(future, &kernel), "wait");
    else
        usleep(20000);
    puts("alive");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!setlocale(LC_ALL, ""))
        setlocale(LC_ALL, "C");
    if (strcmp(what, "load") == 0)
        printf("%s\n", fa_version());
    else if (strcmp(what, "key") == 0 && argc == 3)
        print_key(argv[2]);
    else if (strcmp(what, "compile") == 0 && argc > 2)
        compile(argc - 2, argv + 2);
    else if (strcmp(what, "launch") == 0 && argc == 3)
        launch(argv[2]);
    else if (strcmp(what, "exit-live") == 0)
        exit_live(true);
    else if (strcmp(what, "exit-busy") == 0)
        exit_live(false);
    else {
        fprintf(stderr, "unknown request '%s'\n", what);
        return 2;
    }
    return 0;
}
