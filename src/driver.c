#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "arch.h"
#include "driver_impl.h"
#include "fork.h"
#include "status.h"

fa__cuda fa__cu;

static atomic_bool is_open; /* fa__cu is constant once it is true */
/* The driver's own exit handler runs after ours: no calls from then on. */
static atomic_bool exiting;

/* --- errors --- */

static fa_status status_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return FA_ERR_DEVICE_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return FA_ERR_NO_DEVICE;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        return FA_ERR_CAPTURE;
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
        return FA_ERR_GEOMETRY;
    case CUDA_ERROR_NOT_SUPPORTED:
        return FA_ERR_UNSUPPORTED;
    default:
        return FA_ERR_CUDA;
    }
}

fa_status fa__cuda_failed(const char *call, CUresult result)
{
    const char *name = NULL, *text = NULL;
    fa__cu.cuGetErrorName(result, &name);
    fa__cu.cuGetErrorString(result, &text);
    return fa__fail(status_of(result), "%s failed: %s (%d): %s", call,
                    name ? name : "unknown error", (int)result, text ? text : "no description");
}

/* --- opening --- */

static fa_status load_symbols(void)
{
#define LOAD(name, symbol)                                                                         \
    *(void **)&fa__cu.name = fa__dynlib_symbol(&fa__cu.lib, symbol);                               \
    if (!fa__cu.name)                                                                              \
        return fa__fail(FA_ERR_CUDA_MISSING,                                                       \
                        "%s lacks the function " symbol                                            \
                        "; a driver for CUDA 12.0 or later is "                                    \
                        "needed",                                                                  \
                        fa__cu.lib.path);
    FA__CUDA_REQUIRED(LOAD)
#undef LOAD
#define OPTIONAL(name) *(void **)&fa__cu.name = fa__dynlib_symbol(&fa__cu.lib, #name)
    OPTIONAL(cuLaunchKernelEx);
    OPTIONAL(cuFuncLoad);
    OPTIONAL(cuFuncGetParamInfo);
    OPTIONAL(cuStreamGetCtx);
    OPTIONAL(cuThreadExchangeStreamCaptureMode);
#undef OPTIONAL
    return FA_OK;
}

static void on_exit_begin(void)
{
    atomic_store(&exiting, true);
}

static fa_status open_library(void)
{
    static const char *const candidates[] = {"libcuda.so.1", "libcuda.so", NULL};
    if (!fa__dynlib_open(&fa__cu.lib, "FAJIT_CUDA_LIBRARY", candidates)) {
        fa__fail(
            FA_ERR_CUDA_MISSING,
            "cannot open the CUDA driver library; install the NVIDIA driver, or set "
            "FAJIT_CUDA_LIBRARY to the path of libcuda.so.1, or use an offline context. Tried:%s",
            fa__cu.lib.tried.data ? fa__cu.lib.tried.data : "");
        fa__buf_free(&fa__cu.lib.tried);
        return FA_ERR_CUDA_MISSING;
    }
    fa_status status = load_symbols();
    if (status)
        return status;
    CUresult result = fa__cu.cuInit(0);
    if (result != CUDA_SUCCESS)
        return fa__cuda_failed("cuInit", result);
    result = fa__cu.cuDriverGetVersion(&fa__cu.version);
    if (result != CUDA_SUCCESS)
        return fa__cuda_failed("cuDriverGetVersion", result);
    if (fa__cu.version < 12000)
        return fa__fail(FA_ERR_CUDA_MISSING,
                        "the driver %s supports CUDA %d.%d; 12.0 or later is needed",
                        fa__cu.lib.path, fa__cu.version / 1000, fa__cu.version % 1000 / 10);
    if (atexit(on_exit_begin))
        return fa__fail(FA_ERR_OUT_OF_MEMORY, "atexit failed");
    return FA_OK;
}

fa_status fa__driver_open(void)
{
    fa__fork_watch();
    if (!atomic_load_explicit(&is_open, memory_order_acquire)) {
        fa_status status = FA_OK;
        pthread_mutex_lock(&fa__process_lock);
        if (!atomic_load_explicit(&is_open, memory_order_relaxed)) {
            status = open_library();
            if (status == FA_OK) {
                fa__cu.fork_generation = fa__fork_generation();
                atomic_store_explicit(&is_open, true, memory_order_release);
            }
        }
        pthread_mutex_unlock(&fa__process_lock);
        if (status)
            return status;
    }
    if (fa__cu.fork_generation != fa__fork_generation())
        return fa__fail(FA_ERR_FORKED,
                        "CUDA was initialised before this process was forked; it cannot "
                        "be used here (start the child with exec, or fork first)");
    return FA_OK;
}

int32_t fa__driver_version(void)
{
    return atomic_load_explicit(&is_open, memory_order_acquire) ? fa__cu.version : 0;
}

const char *fa__driver_path(void)
{
    return atomic_load_explicit(&is_open, memory_order_acquire) ? fa__cu.lib.path : "";
}

/* --- devices and contexts --- */

static fa_status device_int(CUdevice device, CUdevice_attribute attribute, int *out)
{
    FA__CUDA_TRY(cuDeviceGetAttribute, out, attribute, device);
    return FA_OK;
}

static fa_status device_attributes(CUdevice device, fa_device_info_t *info)
{
    int smem = 0;
    fa_status status =
        device_int(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info->compute_major);
    if (status == FA_OK)
        status =
            device_int(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info->compute_minor);
    if (status == FA_OK)
        status =
            device_int(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->multiprocessors);
    if (status == FA_OK)
        status = device_int(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &smem);
    info->smem_per_block_bytes = (uint32_t)smem;
    return status;
}

fa_status fa__driver_device_info(int32_t ordinal, fa_device_info_t *info)
{
    int count = 0;
    CUdevice device = 0;
    size_t memory = 0;
    FA__CUDA_TRY(cuDeviceGetCount, &count);
    if (ordinal < 0 || ordinal >= count)
        return fa__fail(FA_ERR_NO_DEVICE, "there is no CUDA device %d; %d visible", ordinal, count);
    FA__CUDA_TRY(cuDeviceGet, &device, ordinal);
    FA__CUDA_TRY(cuDeviceGetName, info->name, (int)sizeof info->name, device);
    FA__CUDA_TRY(cuDeviceTotalMem, &memory, device);
    info->memory_bytes = memory;
    fa_status status = device_attributes(device, info);
    if (status == FA_OK)
        fa__arch_name(info->compute_major, info->compute_minor, info->arch);
    return status;
}

fa_status fa__driver_primary_retain(int32_t ordinal, fa__cuctx *context)
{
    CUdevice device = 0;
    *context = NULL;
    FA__CUDA_TRY(cuDeviceGet, &device, ordinal);
    FA__CUDA_TRY(cuDevicePrimaryCtxRetain, context, device);
    return FA_OK;
}

void fa__driver_primary_release(int32_t ordinal)
{
    /* A CUdevice is its ordinal. Fails only when the driver is gone (at exit), and the context with
     * it. */
    if (!atomic_load(&exiting))
        (void)fa__cu.cuDevicePrimaryCtxRelease(ordinal);
}

fa_status fa__driver_current(fa__cuctx *context)
{
    FA__CUDA_TRY(cuCtxGetCurrent, context);
    return FA_OK;
}

fa_status fa__driver_enter(fa__cuctx context)
{
    if (atomic_load_explicit(&exiting, memory_order_acquire))
        return fa__fail(FA_ERR_CUDA,
                        "the process is exiting; the CUDA driver is not called any more");
    FA__CUDA_TRY(cuCtxPushCurrent, context);
    return FA_OK;
}

void fa__driver_leave(void)
{
    /* Pops what enter pushed on this thread; can only fail once the driver is gone. */
    CUcontext popped = NULL;
    (void)fa__cu.cuCtxPopCurrent(&popped);
}

fa_status fa__driver_device_of(fa__cuctx context, int32_t *ordinal)
{
    CUdevice device = 0;
    fa_status status = fa__driver_enter(context);
    if (status)
        return status;
    CUresult result = fa__cu.cuCtxGetDevice(&device);
    fa__driver_leave();
    if (result != CUDA_SUCCESS)
        return fa__cuda_failed("cuCtxGetDevice", result);
    *ordinal = device; /* CUdevice is the ordinal */
    return FA_OK;
}
