/* A module, a buffer and two streams on the emulated device, for tests through the driver's own
 * calls. */
#ifndef EMULATOR_WORLD_H
#define EMULATOR_WORLD_H

#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include "emulated_fixture.h"

static inline void *symbol(const char *name)
{
    void *found = gpu_symbol(name);
    cr_assert(found, "no %s", name);
    return found;
}

/* CU(cuMemAlloc)(...) calls what cuda.h makes of that name. */
#define TEXT_OF(NAME) #NAME
#define TEXT(NAME) TEXT_OF(NAME)
#define CU(NAME) ((__typeof__(&NAME))(uintptr_t)symbol(TEXT(NAME)))
#define GIVES(CODE, ...)                                                                           \
    do {                                                                                           \
        const int code_ = (int)(__VA_ARGS__);                                                      \
        cr_expect_eq(code_, (int)(CODE), "%s: %d, not %d", #__VA_ARGS__, code_, (int)(CODE));      \
    } while (0)
#define GOOD(...) GIVES(CUDA_SUCCESS, __VA_ARGS__)

/* --- a module to work with --- */

static const char kernels[] =
    "extern __shared__ int dynamic[];\n"
    "__global__ void add(int *x, int by) { x[threadIdx.x] += by; }\n"
    "__global__ void times(int *x, int by) { x[threadIdx.x] *= by; }\n"
    "__global__ void trap(int *x, int by) { __trap(); }\n"
    "__global__ void shared(int *x, int by) { if (by < 0) dynamic[0] = by; }\n";

#define RTC(NAME) ((__typeof__(&NAME))(uintptr_t)dlsym(rtc, #NAME))

static inline void *compile_image(const char *arch, size_t *bytes)
{
    nvrtcProgram program = NULL;
    void *rtc = dlopen(getenv("FAJIT_NVRTC_LIBRARY"), RTLD_NOW);
    cr_assert(rtc, "%s", dlerror());
    cr_assert_eq(RTC(nvrtcCreateProgram)(&program, kernels, "k.cu", 0, NULL, NULL), 0);
    for (const char *const *name = (const char *const[]){"add", "times", "trap", "shared", NULL};
         *name; name++)
        cr_assert_eq(RTC(nvrtcAddNameExpression)(program, *name), 0);
    cr_assert_eq(RTC(nvrtcCompileProgram)(program, 1, &arch), 0);
    cr_assert_eq(RTC(nvrtcGetCUBINSize)(program, bytes), 0);
    char *image = malloc(*bytes);
    cr_assert(image);
    cr_assert_eq(RTC(nvrtcGetCUBIN)(program, image), 0);
    RTC(nvrtcDestroyProgram)(&program);
    return image;
}

typedef struct world {
    fixture f;
    fa_context *ctx;
    void *image;
    size_t image_bytes;
    CUmodule module;
    CUfunction add, times;
    CUdeviceptr x; /* 8 numbers */
    CUstream a, b;
} world;

static inline void world_begin(world *w)
{
    w->ctx = open_emulator(&w->f, NULL, NULL);
    w->image = compile_image("--gpu-architecture=sm_90", &w->image_bytes);
    GOOD(CU(cuModuleLoadData)(&w->module, w->image));
    GOOD(CU(cuModuleGetFunction)(&w->add, w->module, "add"));
    GOOD(CU(cuModuleGetFunction)(&w->times, w->module, "times"));
    GOOD(CU(cuMemAlloc)(&w->x, 32));
    GOOD(CU(cuMemsetD32)(w->x, 0, 8));
    GOOD(CU(cuStreamCreate)(&w->a, CU_STREAM_NON_BLOCKING));
    GOOD(CU(cuStreamCreate)(&w->b, CU_STREAM_NON_BLOCKING));
}

static inline void world_end(world *w)
{
    GOOD(CU(cuStreamDestroy)(w->a));
    GOOD(CU(cuStreamDestroy)(w->b));
    GOOD(CU(cuMemFree)(w->x));
    GOOD(CU(cuModuleUnload)(w->module));
    free(w->image);
    close_device(&w->f, w->ctx);
}

static inline CUresult start(const world *w, CUfunction f, int by, CUstream stream)
{
    CUdeviceptr x = w->x;
    return CU(cuLaunchKernel)(f, 1, 1, 1, 8, 1, 1, 0, stream, (void *[]){&x, &by}, NULL);
}

static inline int result(const world *w)
{
    int x = -1;
    GOOD(CU(cuCtxSynchronize)());
    GOOD(CU(cuMemcpyDtoH)(&x, w->x + 28, 4));
    return x;
}

#endif
