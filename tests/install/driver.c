/* Somebody else's program that knows nothing of fajit: compiles a kernel with NVRTC and runs it with
 * the driver, opened by name or, with -DLINKED, linked. Its folder of headers is its argument. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000 };

#ifdef LINKED
#define FUNCTION(library, name, ...) extern int name(__VA_ARGS__)
#define OPEN(library, name)
#else
#define FUNCTION(library, name, ...) static int (*name)(__VA_ARGS__)
#define OPEN(library, name) open_one((void **)&name, library, #name)
static void open_one(void **function, const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    *function = handle ? dlsym(handle, name) : NULL;
    if (!*function) {
        fprintf(stderr, "%s: %s\n", library, dlerror());
        exit(1);
    }
}
#endif
#define DRIVER "libcuda.so.1"
#ifndef NVRTC
#define NVRTC "libnvrtc.so.12"
#endif

FUNCTION(DRIVER, cuInit, unsigned);
FUNCTION(DRIVER, cuDevicePrimaryCtxRetain, void **, int);
FUNCTION(DRIVER, cuCtxSetCurrent, void *);
FUNCTION(DRIVER, cuModuleLoadData, void **, const void *);
FUNCTION(DRIVER, cuModuleGetFunction, void **, void *, const char *);
FUNCTION(DRIVER, cuMemAlloc_v2, unsigned long long *, size_t);
FUNCTION(DRIVER, cuMemcpyDtoH_v2, void *, unsigned long long, size_t);
FUNCTION(DRIVER, cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
         unsigned, void *, void **, void **);
FUNCTION(NVRTC, nvrtcCreateProgram, void **, const char *, const char *, int, const char *const *,
         const char *const *);
FUNCTION(NVRTC, nvrtcAddNameExpression, void *, const char *);
FUNCTION(NVRTC, nvrtcCompileProgram, void *, int, const char *const *);
FUNCTION(NVRTC, nvrtcGetProgramLogSize, void *, size_t *);
FUNCTION(NVRTC, nvrtcGetProgramLog, void *, char *);
FUNCTION(NVRTC, nvrtcGetLoweredName, void *, const char *, const char **);
FUNCTION(NVRTC, nvrtcGetCUBINSize, void *, size_t *);
FUNCTION(NVRTC, nvrtcGetCUBIN, void *, char *);

static void check(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s gave %d\n", what, result);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static const char source[] =
    "#include \"fajit/dtype.cuh\"\n"
    "template <class T> __global__ void __launch_bounds__(128) square(T *out, int n)\n"
    "{\n"
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) out[i] = fajit::from_float<T>(i * 0.5f) * fajit::from_float<T>(i);\n"
    "}\n";

static void open_all(void)
{
    OPEN(DRIVER, cuInit);
    OPEN(DRIVER, cuDevicePrimaryCtxRetain);
    OPEN(DRIVER, cuCtxSetCurrent);
    OPEN(DRIVER, cuModuleLoadData);
    OPEN(DRIVER, cuModuleGetFunction);
    OPEN(DRIVER, cuMemAlloc_v2);
    OPEN(DRIVER, cuMemcpyDtoH_v2);
    OPEN(DRIVER, cuLaunchKernel);
    OPEN(NVRTC, nvrtcCreateProgram);
    OPEN(NVRTC, nvrtcAddNameExpression);
    OPEN(NVRTC, nvrtcCompileProgram);
    OPEN(NVRTC, nvrtcGetProgramLogSize);
    OPEN(NVRTC, nvrtcGetProgramLog);
    OPEN(NVRTC, nvrtcGetLoweredName);
    OPEN(NVRTC, nvrtcGetCUBINSize);
    OPEN(NVRTC, nvrtcGetCUBIN);
}

static void *compiled(const char *folder, const char **name)
{
    void *program = NULL;
    char *image = NULL, log[4096] = "", include[4096];
    size_t bytes = 0;
    snprintf(include, sizeof include, "--include-path=%s", folder);
    const char *const options[] = {"--gpu-architecture=sm_90", "-std=c++17", include};
    CHECK(nvrtcCreateProgram(&program, source, "square.cu", 0, NULL, NULL));
    CHECK(nvrtcAddNameExpression(program, "square<float>"));
    const int result = nvrtcCompileProgram(program, 3, options);
    CHECK(nvrtcGetProgramLogSize(program, &bytes));
    if (result && bytes <= sizeof log)
        CHECK(nvrtcGetProgramLog(program, log));
    if (result)
        fprintf(stderr, "%s\n", log);
    check(result, "nvrtcCompileProgram");
    CHECK(nvrtcGetLoweredName(program, "square<float>", name));
    CHECK(nvrtcGetCUBINSize(program, &bytes));
    image = malloc(bytes);
    CHECK(nvrtcGetCUBIN(program, image));
    return image;
}

int main(int argc, char **argv)
{
    void *context = NULL, *module = NULL, *function = NULL;
    const char *name = NULL;
    unsigned long long memory = 0;
    float out[N];
    int n = N, wrong = 0;
    void *parameters[] = {&memory, &n};
    if (argc != 2)
        return 2;
    open_all();
    void *image = compiled(argv[1], &name);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&function, module, name));
    CHECK(cuMemAlloc_v2(&memory, sizeof out));
    CHECK(cuLaunchKernel(function, (N + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemcpyDtoH_v2(out, memory, sizeof out));
    for (int i = 0; i < N; i++)
        wrong += out[i] != (float)i * 0.5f * (float)i;
    if (wrong || cuLaunchKernel(function, 1, 1, 1, 129, 1, 1, 0, NULL, parameters, NULL) != 1) {
        fprintf(stderr, "%d of %d values are wrong, or its bounds do not hold\n", wrong, N);
        return 1;
    }
    printf("%d squares\n", N);
    free(image);
    return 0;
}
