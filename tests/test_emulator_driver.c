/* The driver look-alike by itself: what it refuses and with which code, streams, libraries, tensor
 * maps. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulator_world.h"

/* --- before there is anything --- */

Test(emulator_driver, without_initialization_or_context)
{
    int count = 0;
    CUdeviceptr memory = 0;
    CUcontext context = NULL;
    need_emulator();
    void *rtc = dlopen(getenv("FAJIT_CUDA_LIBRARY"), RTLD_NOW);
    GIVES(CUDA_ERROR_NOT_INITIALIZED, RTC(cuDeviceGetCount)(&count));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, RTC(cuCtxSynchronize)());
    GIVES(CUDA_ERROR_INVALID_VALUE, RTC(cuInit)(1));
    GOOD(RTC(cuInit)(0));
    GOOD(RTC(cuDeviceGetCount)(&count));
    cr_expect_eq(count, 1);
    GIVES(CUDA_ERROR_INVALID_DEVICE, RTC(cuDeviceGet)(&count, 1));
    GIVES(CUDA_ERROR_INVALID_DEVICE, RTC(cuDevicePrimaryCtxRetain)(&context, -1));
    CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
    *(void **)&alloc = dlsym(rtc, "cuMemAlloc_v2");
    GIVES(CUDA_ERROR_INVALID_CONTEXT, alloc(&memory, 16));
    cr_expect_null(dlsym(rtc, "cuMemcpy3D_v2"), "what does not exist must not be found");
}

/* --- misuse --- */

Test(emulator_driver, memory_misuse)
{
    world w;
    CUdeviceptr p = 0, q = 0;
    char host[64] = "";
    void *pinned = NULL;
    world_begin(&w);
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc)(&p, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc)(NULL, 16));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc)(&p, (size_t)1 << 40));
    GOOD(CU(cuMemAlloc)(&p, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(p + 16));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(p + 60, host, 5));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host, p, 65));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(NULL, p, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoD)(p, p + 8, 60));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoDAsync)(p, host, 65, w.a));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy)(p + 8, (CUdeviceptr)(uintptr_t)host, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(p, 0, 65));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD16)(p + 1, 0, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD32)(p + 2, 0, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD32)(p, 0, 17));
    GOOD(CU(cuMemcpyHtoD)(p, host, 0));
    GOOD(CU(cuMemFree)(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host, p, 4));
    GOOD(CU(cuMemFree)(0));
    GOOD(CU(cuMemAllocAsync)(&q, 64, w.a));
    GOOD(CU(cuMemsetD8Async)(q, 5, 64, w.a));
    GOOD(CU(cuMemcpyDtoHAsync)(host, q, 64, w.a));
    cr_expect_eq(host[63], 5, "pageable memory is there when the call returns");
    GOOD(CU(cuMemFreeAsync)(q, w.a));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(q, w.a));
    GOOD(CU(cuMemAllocHost)(&pinned, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeHost)((char *)pinned + 1));
    GOOD(CU(cuMemHostGetDevicePointer)(&q, pinned, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemHostGetDevicePointer)(&q, host, 0));
    GOOD(CU(cuMemFreeHost)(pinned));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeHost)(pinned));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, CU(cuMemHostRegister)(host, 64, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CU(cuMemHostUnregister)(host));
    world_end(&w);
}

Test(emulator_driver, what_a_pointer_points_to)
{
    world w;
    unsigned type = 0;
    size_t bytes = 0;
    CUdeviceptr base = 0;
    int local = 0;
    world_begin(&w);
    GOOD(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, w.x + 5));
    cr_expect_eq(type, (unsigned)CU_MEMORYTYPE_DEVICE);
    GOOD(CU(cuMemGetAddressRange)(&base, &bytes, w.x + 31));
    cr_expect(base == w.x && bytes == 32);
    GIVES(CUDA_ERROR_NOT_FOUND, CU(cuMemGetAddressRange)(&base, &bytes, w.x + 32));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    (CUdeviceptr)(uintptr_t)&local));
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    GOOD(CU(cuPointerGetAttributes)(2, what, (void *[]){&type, &bytes},
                                    (CUdeviceptr)(uintptr_t)&local));
    cr_expect(type == 0 && bytes == 0, "nobody's memory: %u %zu", type, bytes);
    world_end(&w);
}

typedef struct launch_case {
    const char *what;
    unsigned grid[3], block[3], shared, cluster[3];
    int cooperative, expected;
} launch_case;

static const launch_case launches[] = {
    {"empty grid", {0, 1, 1}, {1, 1, 1}, 0, {0}, 0, 1},
    {"empty block", {1, 1, 1}, {1, 0, 1}, 0, {0}, 0, 1},
    {"2^64 threads and 64", {1, 1, 1}, {536838145, 536903681, 64}, 0, {0}, 0, 1},
    {"1024 threads", {1, 1, 1}, {1, 1024, 1}, 0, {0}, 0, 0},
    {"1025 threads", {1, 1, 1}, {1025, 1, 1}, 0, {0}, 0, 1},
    {"2 * 1024 threads", {1, 1, 1}, {1024, 2, 1}, 0, {0}, 0, 1},
    {"65 deep", {1, 1, 1}, {1, 1, 65}, 0, {0}, 0, 1},
    {"65536 rows", {1, 65536, 1}, {1, 1, 1}, 0, {0}, 0, 1},
    {"48 KiB", {1, 1, 1}, {1, 1, 1}, 48 << 10, {0}, 0, 0},
    {"48 KiB and more without the opt-in", {1, 1, 1}, {1, 1, 1}, (48 << 10) + 1, {0}, 0, 1},
    {"a cluster", {4, 1, 1}, {1, 1, 1}, 0, {2, 1, 1}, 0, 0},
    {"a grid that is no multiple of its clusters", {5, 1, 1}, {1, 1, 1}, 0, {2, 1, 1}, 0, 912},
    {"a cluster of 16", {16, 1, 1}, {1, 1, 1}, 0, {16, 1, 1}, 0, 912},
    {"cooperative", {8, 1, 1}, {1024, 1, 1}, 0, {0}, 1, 0},
    {"cooperative, too large", {9, 1, 1}, {1024, 1, 1}, 0, {0}, 1, 720},
};

Test(emulator_driver, launches_over_the_limits)
{
    world w;
    CUfunction f = NULL;
    int by = 1;
    world_begin(&w);
    GOOD(CU(cuMemFree)(w.x));
    GOOD(CU(cuMemAlloc)(&w.x, 4096));
    GOOD(CU(cuModuleGetFunction)(&f, w.module, "shared"));
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        const launch_case *l = &launches[i];
        CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE},
                                           {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}};
        attributes[0].value.cooperative = l->cooperative;
        attributes[1].value.clusterDim.x = l->cluster[0];
        attributes[1].value.clusterDim.y = l->cluster[1];
        attributes[1].value.clusterDim.z = l->cluster[2];
        const CUlaunchConfig config = {.gridDimX = l->grid[0],
                                       .gridDimY = l->grid[1],
                                       .gridDimZ = l->grid[2],
                                       .blockDimX = l->block[0],
                                       .blockDimY = l->block[1],
                                       .blockDimZ = l->block[2],
                                       .sharedMemBytes = l->shared,
                                       .attrs = attributes,
                                       .numAttrs = l->cluster[0] ? 2 : 1};
        const int code = (int)CU(cuLaunchKernelEx)(&config, f, (void *[]){&w.x, &by}, NULL);
        cr_expect_eq(code, l->expected, "%s: %d, not %d", l->what, code, l->expected);
    }
    GIVES(CUDA_ERROR_INVALID_VALUE,
          CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
    GOOD(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
    GOOD(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 232448, NULL, (void *[]){&w.x, &by}, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE,
          CU(cuLaunchKernel)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&w.x, &by}, NULL));
    GOOD(CU(cuCtxSynchronize)());
    world_end(&w);
}

Test(emulator_driver, parameters_in_a_buffer)
{
    world w;
    world_begin(&w);
    struct {
        CUdeviceptr x;
        int by;
    } block = {w.x, 5};
    size_t bytes = sizeof block, few = 8;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    GOOD(CU(cuLaunchKernel)(w.add, 1, 1, 1, 8, 1, 1, 0, NULL, NULL, extra));
    cr_expect_eq(result(&w), 5);
    extra[3] = &few;
    GIVES(CUDA_ERROR_INVALID_VALUE,
          CU(cuLaunchKernel)(w.add, 1, 1, 1, 8, 1, 1, 0, NULL, NULL, extra));
    world_end(&w);
}

Test(emulator_driver, stale_handles)
{
    world w;
    CUstream s = NULL;
    CUevent e = NULL, timed = NULL;
    CUmodule m = NULL;
    CUfunction f = NULL;
    CUcontext own = NULL, context = NULL;
    float ms = 0;
    world_begin(&w);
    GOOD(CU(cuStreamCreate)(&s, 0));
    GOOD(CU(cuStreamDestroy)(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamDestroy)(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamSynchronize)(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamQuery)(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamGetCtx)(s, &context));
    GIVES(CUDA_ERROR_INVALID_HANDLE, start(&w, w.add, 1, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuStreamCreate)(&s, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuStreamCreate)(NULL, 0));
    GOOD(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING));
    GOOD(CU(cuEventCreate)(&timed, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, timed, timed)); /* not recorded */
    GOOD(CU(cuEventRecord)(e, w.a));
    GOOD(CU(cuEventRecord)(timed, w.a));
    GOOD(CU(cuEventSynchronize)(timed));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, e, timed)); /* has no time */
    GOOD(CU(cuEventElapsedTime)(&ms, timed, timed));
    GOOD(CU(cuEventDestroy)(e));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventDestroy)(e));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventRecord)(e, w.a));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamWaitEvent)(w.a, e, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuEventCreate)(&e, 8));
    GOOD(CU(cuModuleLoadData)(&m, w.image));
    GIVES(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&f, m, "nothing"));
    GOOD(CU(cuModuleGetFunction)(&f, m, "add"));
    GOOD(CU(cuModuleUnload)(m));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuModuleUnload)(m));
    GIVES(CUDA_ERROR_INVALID_HANDLE, start(&w, f, 1, w.a));
    GIVES(CUDA_ERROR_INVALID_IMAGE,
          CU(cuModuleLoadData)(&m, "no image at all, of any kind at all"));
    /* another context */
    CUresult (*create)(CUcontext *, unsigned, CUdevice) = NULL;
    *(void **)&create = symbol("cuCtxCreate_v2");
    GOOD(create(&own, 0, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, start(&w, w.add, 1, w.a));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventRecord)(timed, NULL));
    GOOD(CU(cuCtxDestroy)(own));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxDestroy)(own));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxSetCurrent)(own));
    GOOD(CU(cuCtxGetCurrent)(&context));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxDestroy)(context)); /* the primary one */
    GOOD(start(&w, w.add, 1, w.a));
    GOOD(CU(cuStreamSynchronize)(w.a));
    world_end(&w);
}

Test(emulator_driver, a_failed_kernel_breaks_its_context)
{
    world w;
    CUfunction f = NULL;
    CUdeviceptr p = 0;
    CUevent e = NULL;
    world_begin(&w);
    GOOD(CU(cuEventCreate)(&e, 0));
    GOOD(CU(cuModuleGetFunction)(&f, w.module, "trap"));
    GOOD(CU(cuEventRecord)(e, w.a));
    GOOD(start(&w, f, 1, w.a)); /* calls may fail from here on */
    GIVES(CUDA_ERROR_LAUNCH_FAILED, CU(cuStreamSynchronize)(w.a));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, CU(cuStreamSynchronize)(w.b));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, CU(cuCtxSynchronize)());
    GIVES(CUDA_ERROR_LAUNCH_FAILED, CU(cuMemAlloc)(&p, 16));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, start(&w, w.add, 1, w.b));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, CU(cuEventQuery)(e));
    free(w.image);
    close_device(&w.f, w.ctx);
}

/* --- streams --- */

static void set_flag(void *flag)
{
    int device = 0;
    *(int *)flag = (int)CU(cuCtxGetDevice)(&device);
}

static void *other_thread(void *argument)
{
    const world *w = argument;
    CUcontext context = NULL;
    CUresult failed = CU(cuStreamGetCtx)(w->a, &context);
    if (!failed)
        failed = CU(cuCtxSetCurrent)(context);
    if (!failed)
        failed = start(w, w->add, 2, CU_STREAM_PER_THREAD);
    return failed || CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD) ? argument : NULL;
}

Test(emulator_driver, kinds_of_streams)
{
    world w;
    int flag = 0, least = 1, greatest = 1, priority = 1;
    unsigned long long id = 0, other = 0;
    CUstream s = NULL;
    pthread_t thread;
    void *failed = NULL;
    world_begin(&w);
    GOOD(CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
    cr_expect(least == 0 && greatest < 0);
    GOOD(CU(cuStreamCreateWithPriority)(&s, CU_STREAM_NON_BLOCKING, greatest - 100));
    GOOD(CU(cuStreamGetPriority)(s, &priority));
    cr_expect_eq(priority, greatest);
    GOOD(CU(cuStreamDestroy)(s));
    GOOD(start(&w, w.add, 1, CU_STREAM_PER_THREAD));
    GOOD(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &id));
    GOOD(CU(cuStreamGetId)(CU_STREAM_LEGACY, &other));
    cr_expect_neq(id, other);
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, &w), 0);
    pthread_join(thread, &failed);
    cr_expect_null(failed);
    GOOD(CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
    GOOD(start(&w, w.times, 10, CU_STREAM_LEGACY));
    cr_expect_eq(result(&w), 30);
    GOOD(CU(cuLaunchHostFunc)(w.a, set_flag, &flag));
    GOOD(CU(cuStreamSynchronize)(w.a));
    cr_expect_eq(flag, CUDA_ERROR_NOT_PERMITTED, "a host function called the driver: %d", flag);
    world_end(&w);
}

/* --- functions by name --- */

static void hold(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
}

/* What a stream is given first may have to wait for the default one. */
Test(emulator_driver, a_new_stream_behind_the_default_one, .timeout = 20)
{
    world w;
    CUstream s = NULL;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    world_begin(&w);
    for (int again = 0; again < 4; again++) {
        pthread_mutex_lock(&gate);
        GOOD(CU(cuLaunchHostFunc)(NULL, hold, &gate));
        GOOD(CU(cuStreamCreate)(&s, CU_STREAM_DEFAULT));
        GOOD(start(&w, w.add, 1, s));
        if (again % 2) /* what is queued still runs */
            GOOD(CU(cuStreamDestroy)(s));
        pthread_mutex_unlock(&gate);
        if (again % 2 == 0) {
            GOOD(CU(cuStreamSynchronize)(s));
            GOOD(CU(cuStreamDestroy)(s));
        }
    }
    cr_expect_eq(result(&w), 4);
    world_end(&w);
}

/* Its size is not believed before it is known to be whole. */
Test(emulator_driver, damaged_images)
{
    world w;
    CUmodule m = NULL;
    world_begin(&w);
    for (size_t bit = 0; bit < 512; bit++) {
        char *byte = (char *)w.image + bit / 8;
        *byte = (char)(*byte ^ 1 << bit % 8);
        GIVES(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadData)(&m, w.image));
        *byte = (char)(*byte ^ 1 << bit % 8);
    }
    GOOD(CU(cuModuleLoadData)(&m, w.image));
    GOOD(CU(cuModuleUnload)(m));
    world_end(&w);
}

Test(emulator_driver, in_a_child_process, .timeout = 20)
{
    world w;
    int status = -1;
    world_begin(&w);
    int (*synchronize)(void) = (int (*)(void))(uintptr_t)symbol("cuCtxSynchronize");
    int (*initialize)(unsigned) = (int (*)(unsigned))(uintptr_t)symbol("cuInit");
    const pid_t child = fork();
    if (child == 0)
        _exit(synchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                      initialize(0) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0);
    GOOD(start(&w, w.add, 1, w.a));
    cr_expect_eq(result(&w), 1);
    world_end(&w);
}

Test(emulator_driver, functions_by_name)
{
    world w;
    void *found = NULL;
    CUdriverProcAddressQueryResult why = CU_GET_PROC_ADDRESS_SUCCESS;
    world_begin(&w);
    __typeof__(&cuGetProcAddress_v2) get = CU(cuGetProcAddress_v2);
    GOOD(get("cuMemAlloc", &found, 12000, 0, &why));
    cr_expect_eq(found, symbol("cuMemAlloc_v2"));
    GOOD(get("cuStreamGetCaptureInfo", &found, 12000, 0, &why));
    cr_expect_eq(found, symbol("cuStreamGetCaptureInfo_v2"));
    GIVES(CUDA_ERROR_NOT_FOUND, get("cuNothing", &found, 12000, 0, &why));
    cr_expect_eq(why, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    cr_expect_null(found);
    GIVES(CUDA_ERROR_NOT_FOUND, get("cuCtxCreate", &found, 2000, 0, &why));
    cr_expect_eq(why, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          get("cuMemAlloc", &found, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &why));
    world_end(&w);
}

/* --- libraries --- */

Test(emulator_driver, libraries)
{
    world w;
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUfunction f = NULL, again = NULL;
    CUcontext own = NULL;
    unsigned count = 0;
    int value = 0;
    const int opt_in = 100000;
    world_begin(&w);
    GOOD(CU(cuLibraryLoadData)(&library, w.image, NULL, NULL, 0, NULL, NULL, 0));
    memset(w.image, 0, w.image_bytes); /* it has its own copy */
    GOOD(CU(cuLibraryGetKernelCount)(&count, library));
    cr_expect_eq(count, 4);
    GIVES(CUDA_ERROR_NOT_FOUND, CU(cuLibraryGetKernel)(&kernel, library, "nothing"));
    GOOD(CU(cuLibraryGetKernel)(&kernel, library, "add"));
    GOOD(CU(cuKernelSetAttribute)(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, opt_in, kernel,
                                  0));
    GIVES(CUDA_ERROR_INVALID_DEVICE,
          CU(cuKernelGetAttribute)(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 1));
    GOOD(CU(cuKernelGetFunction)(&f, kernel));
    GOOD(CU(cuKernelGetFunction)(&again, kernel));
    cr_expect_eq(f, again);
    GOOD(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
    cr_expect_eq(value, opt_in);
    GOOD(start(&w, f, 4, w.a));
    GOOD(CU(cuStreamSynchronize)(w.a));
    GOOD(start(&w, (CUfunction)kernel, 5, w.a)); /* a kernel serves as a function */
    cr_expect_eq(result(&w), 9);
    CUresult (*create)(CUcontext *, unsigned, CUdevice) = NULL;
    *(void **)&create = symbol("cuCtxCreate_v2");
    GOOD(create(&own, 0, 0));
    GOOD(CU(cuKernelGetFunction)(&again, kernel));
    cr_expect_neq(f, again, "each context has its own");
    GOOD(start(&w, (CUfunction)kernel, 6, NULL));
    GOOD(CU(cuCtxSynchronize)());
    GOOD(CU(cuCtxDestroy)(own));
    cr_expect_eq(result(&w), 15);
    GOOD(CU(cuLibraryUnload)(library));
    GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuLibraryUnload)(library));
    GIVES(CUDA_ERROR_INVALID_HANDLE, start(&w, f, 4, w.a));
    GIVES(CUDA_ERROR_INVALID_HANDLE, start(&w, (CUfunction)kernel, 4, w.a));
    world_end(&w);
}

/* --- tensor maps --- */

typedef struct map_case {
    const char *what;
    int type;
    unsigned rank;
    uintptr_t address;
    cuuint64_t size[5], stride[4];
    cuuint32_t box[5], step[5];
    int interleave, swizzle, promotion, fill, expected;
} map_case;

#define HALF CU_TENSOR_MAP_DATA_TYPE_FLOAT16
#define BYTE CU_TENSOR_MAP_DATA_TYPE_UINT8
#define TIB ((cuuint64_t)1 << 40)

static const map_case maps[] = {
    {"plain", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 3, 2, 0, 0},
    {"rank 0", HALF, 0, 4096, {64}, {128}, {64}, {1}, 0, 0, 0, 0, 1},
    {"rank 1", HALF, 1, 4096, {64}, {0}, {64}, {1}, 0, 0, 0, 0, 0},
    {"rank 6",
     HALF,
     6,
     4096,
     {1, 1, 1, 1, 1},
     {16, 16, 16, 16},
     {8, 1, 1, 1, 1},
     {1},
     0,
     0,
     0,
     0,
     1},
    {"address 8", HALF, 1, 4096 + 8, {64}, {0}, {64}, {1}, 0, 0, 0, 0, 1},
    {"no address", HALF, 1, 0, {64}, {0}, {64}, {1}, 0, 0, 0, 0, 1},
    {"size 0", HALF, 2, 4096, {64, 0}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 0, 1},
    {"size 2^32", HALF, 2, 4096, {64, TIB >> 8}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 0, 0},
    {"size 2^32 + 1", HALF, 2, 4096, {64, (TIB >> 8) + 1}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 0, 1},
    {"stride 8", HALF, 2, 4096, {64, 9}, {136}, {64, 4}, {1, 1}, 0, 0, 0, 0, 1},
    {"stride 2^40", HALF, 2, 4096, {64, 9}, {TIB}, {64, 4}, {1, 1}, 0, 0, 0, 0, 1},
    {"stride below 2^40", HALF, 2, 4096, {64, 9}, {TIB - 16}, {64, 4}, {1, 1}, 0, 0, 0, 0, 0},
    {"box 0", HALF, 2, 4096, {64, 9}, {128}, {64, 0}, {1, 1}, 0, 0, 0, 0, 1},
    {"box 256", HALF, 2, 4096, {64, 9}, {128}, {64, 256}, {1, 1}, 0, 0, 0, 0, 0},
    {"box 257", HALF, 2, 4096, {64, 9}, {128}, {64, 257}, {1, 1}, 0, 0, 0, 0, 1},
    {"box of 14 bytes", HALF, 2, 4096, {64, 9}, {128}, {7, 4}, {1, 1}, 0, 0, 0, 0, 1},
    {"step 0", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 0}, 0, 0, 0, 0, 1},
    {"step 9", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 9}, 0, 0, 0, 0, 1},
    {"first step is ignored", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {0, 8}, 0, 0, 0, 0, 0},
    {"128 bytes, swizzle 64", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 2, 0, 0, 1},
    {"144 bytes, swizzle 128", HALF, 2, 4096, {96, 9}, {192}, {72, 4}, {1, 1}, 0, 3, 0, 0, 1},
    {"32 bytes, swizzle 32", HALF, 2, 4096, {64, 9}, {128}, {16, 4}, {1, 1}, 0, 1, 0, 0, 0},
    {"swizzle 7", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 7, 0, 0, 1},
    {"interleave of rank 2", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 1, 0, 0, 0, 1},
    {"interleave 16", HALF, 3, 4096, {8, 9, 9}, {128, 128}, {8, 4, 4}, {1, 1, 1}, 1, 0, 0, 0, 0},
    {"interleave 32", HALF, 3, 4096, {8, 9, 9}, {128, 128}, {8, 4, 4}, {1, 1, 1}, 2, 1, 0, 0, 0},
    {"interleave 32, no swizzle",
     HALF,
     3,
     4096,
     {8, 9, 9},
     {128, 128},
     {8, 4, 4},
     {1, 1, 1},
     2,
     0,
     0,
     0,
     1},
    {"interleave 32, stride 48",
     HALF,
     3,
     4096,
     {8, 9, 9},
     {48, 128},
     {8, 4, 4},
     {1, 1, 1},
     2,
     1,
     0,
     0,
     1},
    {"interleave 32, address 16",
     HALF,
     3,
     4112,
     {8, 9, 9},
     {128, 128},
     {8, 4, 4},
     {1, 1, 1},
     2,
     1,
     0,
     0,
     1},
    {"NaN for numbers", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 1, 0},
    {"NaN for bytes", BYTE, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 1, 1},
    {"promotion 4", HALF, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 0, 4, 0, 1},
    {"type 16", 16, 2, 4096, {64, 9}, {128}, {64, 4}, {1, 1}, 0, 0, 0, 0, 1},
};

Test(emulator_driver, tensor_maps)
{
    world w;
    CUtensorMap map[2];
    world_begin(&w);
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        const map_case *m = &maps[i];
        const int code = (int)CU(cuTensorMapEncodeTiled)(
            &map[0], (CUtensorMapDataType)m->type, m->rank, (void *)m->address, m->size, m->stride,
            m->box, m->step, (CUtensorMapInterleave)m->interleave, (CUtensorMapSwizzle)m->swizzle,
            (CUtensorMapL2promotion)m->promotion, (CUtensorMapFloatOOBfill)m->fill);
        cr_expect_eq(code, m->expected, "%s: %d, not %d", m->what, code, m->expected);
    }
    const map_case *m = &maps[0];
    GIVES(CUDA_ERROR_INVALID_VALUE,
          CU(cuTensorMapEncodeTiled)((CUtensorMap *)((char *)map + 32), HALF, 2, (void *)m->address,
                                     m->size, m->stride, m->box, m->step, 0, 0, 0, 0));
    GOOD(CU(cuTensorMapEncodeTiled)(&map[0], HALF, 2, (void *)m->address, m->size, m->stride,
                                    m->box, m->step, 0, 0, 0, 0));
    map[1] = map[0];
    GOOD(CU(cuTensorMapReplaceAddress)(&map[0], (void *)8192));
    cr_expect_neq(memcmp(&map[0], &map[1], sizeof map[0]), 0);
    GOOD(CU(cuTensorMapReplaceAddress)(&map[0], (void *)m->address));
    cr_expect_eq(memcmp(&map[0], &map[1], sizeof map[0]), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuTensorMapReplaceAddress)(&map[0], (void *)8200));
    memset(&map[1], 0, sizeof map[1]);
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuTensorMapReplaceAddress)(&map[1], (void *)8192));
    world_end(&w);
}
