/* What the tests of the emulator itself share. Skipped on anything else. */
#ifndef EMULATOR_FIXTURE_H
#define EMULATOR_FIXTURE_H

#include "gpu_fixture.h"

/* A context on an emulated device, with variables that it reads when it is opened. */
static inline fa_context *open_emulator(fixture *f, const char *variable, const char *value)
{
    const char *library = getenv("FAJIT_CUDA_LIBRARY");
    if (!library || !strstr(library, "fajit-emu-cuda"))
        cr_skip_test("FAJIT_CUDA_LIBRARY is not the emulator");
    if (variable)
        setenv(variable, value, 1);
    return open_device(f, 0);
}

static inline fa_kernel *compile_text(fa_context *ctx, const char *source)
{
    return compile(ctx, &(fa_template_spec){.name = "k.cu", .source = source, .entry = "k"});
}

#endif
