/* What the tests of the emulator share. Skipped on anything else. */
#ifndef EMULATED_FIXTURE_H
#define EMULATED_FIXTURE_H

#include "device_fixture.h"

#define THREADS 96

/* A context on an emulated device, with variables that it reads when it is opened. */
static inline fa_context *open_emulator(fixture *f, const char *variable, const char *value)
{
    need_emulator();
    if (variable)
        setenv(variable, value, 1);
    return open_device(f, 0);
}

/* One block; *why says what went wrong. */
static inline bool run_block(const fa_kernel *kernel, void *out, uint32_t threads, const char **why)
{
    const fa_param params[] = {{&out, sizeof out}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl =
        (fa_template_args){.grid = {1}, .block = {threads}, .params = params, .param_count = 1};
    OK(fa_launch(kernel, &args, NULL));
    return gpu_synchronize(NULL, why);
}

/* Runs `source` and gives what it wrote to out[0 .. THREADS). */
static inline void run_ints(fa_context *ctx, const char *source, int32_t out[THREADS])
{
    const char *why = "";
    fa_kernel *kernel = compile_text(ctx, source);
    void *memory = gpu_alloc(THREADS * sizeof *out);
    cr_assert(run_block(kernel, memory, THREADS, &why), "%s", why);
    gpu_download(out, memory, THREADS * sizeof *out);
    gpu_free(memory);
    fa_kernel_release(kernel);
}

/* Runs `source`, which must fail and say every word up to NULL. */
static inline void expect_failure(const char *source, const char *const *words)
{
    fixture f;
    const char *why = "";
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    fa_kernel *kernel = compile_text(ctx, source);
    void *memory = gpu_alloc(THREADS * sizeof(int32_t));
    cr_expect_not(run_block(kernel, memory, THREADS, &why), "it went through");
    for (; *words; words++)
        cr_expect(strstr(why, *words) != NULL, "no '%s' in: %s", *words, why);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* Compiles `source`, which must fail and say every word up to NULL. */
static inline void expect_compile_error(const char *source, const char *const *words)
{
    fixture f;
    fa_kernel *kernel = NULL;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "k.cu", .source = source, .entry = "k"};
    EXPECT(fa_compile(ctx, &spec, &kernel), FA_ERR_COMPILE);
    for (; *words; words++)
        cr_expect(strstr(fa_last_error(), *words) != NULL, "no '%s' in: %s", *words,
                  fa_last_error());
    close_device(&f, ctx);
}

#endif
