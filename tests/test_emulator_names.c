/* Which kernels a module has when nobody gave their names to nvrtcAddNameExpression. */
#include "emulator_world.h"

static const char source[] =
    "extern \"C\" __global__ void first(int *x) { x[0] = 1; }\n"
    "extern \"C\" __global__ void __launch_bounds__(64) second(int *x) { x[0] = 2; }\n"
    "extern \"C\" {\n"
    "__device__ int three() { return 3; }\n"
    "__global__ void third(int *x) { x[0] = three(); }\n"
    "}\n"
    "extern \"C\" __global__ void declared(int *x);\n"
    "__global__ void mangled(int *x) { x[0] = 5; }\n"
    "namespace n { extern \"C\" __global__ void hidden(int *x) { x[0] = 6; } }\n"
    "#if 0\n"
    "extern \"C\" __global__ void absent(int *x) { nothing; }\n"
    "#endif\n"
    "extern \"C\" __device__ int no_kernel() { return 7; }\n";

static CUmodule load(void)
{
    nvrtcProgram program = NULL;
    CUmodule module = NULL;
    size_t bytes = 0;
    const char *const arch = "--gpu-architecture=sm_90";
    void *rtc = dlopen(getenv("FAJIT_NVRTC_LIBRARY"), RTLD_NOW);
    cr_assert(rtc, "%s", dlerror());
    cr_assert_eq(RTC(nvrtcCreateProgram)(&program, source, "k.cu", 0, NULL, NULL), 0);
    cr_assert_eq(RTC(nvrtcCompileProgram)(program, 1, &arch), 0);
    cr_assert_eq(RTC(nvrtcGetCUBINSize)(program, &bytes), 0);
    char *image = malloc(bytes);
    cr_assert(image);
    cr_assert_eq(RTC(nvrtcGetCUBIN)(program, image), 0);
    RTC(nvrtcDestroyProgram)(&program);
    GOOD(CU(cuModuleLoadData)(&module, image));
    free(image);
    return module;
}

Test(emulator_names, those_with_c_linkage_have_their_own)
{
    static const char *const names[] = {"first", "second", "third"};
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    CUmodule module = load();
    CUdeviceptr x = 0;
    GOOD(CU(cuMemAlloc)(&x, sizeof(int)));
    for (int i = 0; i < 3; i++) {
        CUfunction found = NULL;
        int value = 0;
        GOOD(CU(cuModuleGetFunction)(&found, module, names[i]));
        GOOD(CU(cuLaunchKernel)(found, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&x}, NULL));
        GOOD(CU(cuMemcpyDtoH)(&value, x, sizeof value));
        cr_expect_eq(value, i + 1, "%s gave %d", names[i], value);
    }
    GOOD(CU(cuMemFree)(x));
    GOOD(CU(cuModuleUnload)(module));
    close_device(&f, ctx);
}

Test(emulator_names, others_are_not_found_and_why)
{
    static const char *const names[] = {"declared", "mangled", "hidden", "absent", "no_kernel"};
    fixture f;
    fa_context *ctx = open_emulator(&f, NULL, NULL);
    CUmodule module = load();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CUfunction found = NULL;
        const char *text = "";
        GIVES(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&found, module, names[i]));
        GOOD(CU(cuGetErrorString)(CUDA_ERROR_NOT_FOUND, &text));
        cr_expect(strstr(text, names[i]) && strstr(text, "nvrtcAddNameExpression"), "%s", text);
    }
    GOOD(CU(cuModuleUnload)(module));
    close_device(&f, ctx);
}
