/* What the tests of the device headers share. They run on the emulated device, where they choose
 * its architecture, and on a real one, where they check that the instructions do the same. */
#ifndef DEVICE_FIXTURE_H
#define DEVICE_FIXTURE_H

#include <stdio.h>

#include "gpu_fixture.h"

static inline bool on_emulator(void)
{
    const char *library = getenv("FAJIT_CUDA_LIBRARY");
    return library && strstr(library, "fajit-emu-cuda");
}

static inline void need_emulator(void)
{
    if (!on_emulator())
        cr_skip_test("FAJIT_CUDA_LIBRARY is not the emulator");
}

/* A context on a device of compute capability `cc` (80: 8.0), on a real one at least that. */
static inline fa_context *open_arch(fixture *f, int cc)
{
    char value[16];
    int found = 0;
    fa_context_info_t info = {.size = sizeof info};
    snprintf(value, sizeof value, "%d.%d", cc / 10, cc % 10);
    if (on_emulator())
        setenv("FAJIT_EMU_ARCH", value, 1);
    fa_context *ctx = open_device(f, 0);
    OK(fa_context_info(ctx, &info));
    cr_assert_eq(sscanf(info.arch, "sm_%d", &found), 1, "%s", info.arch);
    if (found < cc || (on_emulator() && found != cc)) {
        cr_assert_not(on_emulator(), "the emulated device is %s, not %s", info.arch, value);
        close_device(f, ctx);
        cr_skip_test("needs compute capability %s", value);
    }
    return ctx;
}

/* Skips what only later releases of NVRTC compile. */
static inline void need_nvrtc(fixture *f, fa_context *ctx, int version)
{
    fa_context_info_t info = {.size = sizeof info};
    OK(fa_context_info(ctx, &info));
    if (info.nvrtc_version < version) {
        close_device(f, ctx);
        cr_skip_test("needs NVRTC %d.%d", version / 1000, version % 1000 / 10);
    }
}

static inline fa_kernel *compile_text(fa_context *ctx, const char *source)
{
    return compile(ctx, &(fa_template_spec){.name = "k.cu", .source = source, .entry = "k"});
}

/* Runs k(in, out) of `source`; false, with *why, when the launch fails. */
static inline bool try_text(fa_context *ctx, const char *source, uint32_t blocks, uint32_t threads,
                            const void *in, size_t in_bytes, void *out, size_t out_bytes,
                            const char **why)
{
    fa_kernel *kernel = compile_text(ctx, source);
    void *from = gpu_alloc(in_bytes), *to = gpu_alloc(out_bytes);
    gpu_upload(from, in, in_bytes);
    gpu_fill(to, 0xee, out_bytes);
    const fa_param params[] = {{&from, sizeof from}, {&to, sizeof to}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {blocks}, .block = {threads}, .params = params, .param_count = 2};
    OK(fa_launch(kernel, &args, NULL));
    const bool ok = gpu_synchronize(NULL, why);
    if (ok) { /* after a failure the driver takes no more calls */
        gpu_download(out, to, out_bytes);
        gpu_free(from);
        gpu_free(to);
    }
    fa_kernel_release(kernel);
    return ok;
}

static inline void run_text(fa_context *ctx, const char *source, uint32_t blocks, uint32_t threads,
                            const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    const char *why = "";
    cr_assert(try_text(ctx, source, blocks, threads, in, in_bytes, out, out_bytes, &why), "%s",
              why);
}

/* The launch of `source` must fail, and its message hold every word up to NULL. Emulator only: on a
 * GPU what these do is undefined. */
static inline void expect_text_fails(int cc, const char *source, uint32_t threads,
                                     const char *const *words)
{
    fixture f;
    const char *why = "";
    uint32_t in[64] = {0}, out[64];
    need_emulator();
    fa_context *ctx = open_arch(&f, cc);
    cr_expect_not(try_text(ctx, source, 1, threads, in, sizeof in, out, sizeof out, &why),
                  "it went through");
    for (; *words; words++)
        cr_expect(strstr(why, *words) != NULL, "no '%s' in: %s", *words, why);
    close_device(&f, ctx);
}

#endif
