#include "driver.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch.h"
#include "dynlib.h"
#include "fork.h"
#include "status.h"

/* X(member, exported name) for what every driver of CUDA 12 has. */
#define REQUIRED(X)                                                                                \
    X(cuInit, "cuInit")                                                                            \
    X(cuDriverGetVersion, "cuDriverGetVersion")                                                    \
    X(cuGetErrorName, "cuGetErrorName")                                                            \
    X(cuGetErrorString, "cuGetErrorString")                                                        \
    X(cuDeviceGetCount, "cuDeviceGetCount")                                                        \
    X(cuDeviceGet, "cuDeviceGet")                                                                  \
    X(cuDeviceGetName, "cuDeviceGetName")                                                          \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute")                                                \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2")                                                     \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2")                                   \
    X(cuCtxGetCurrent, "cuCtxGetCurrent")                                                          \
    X(cuCtxGetDevice, "cuCtxGetDevice")                                                            \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                                     \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                                       \
    X(cuModuleLoadData, "cuModuleLoadData")                                                        \
    X(cuModuleUnload, "cuModuleUnload")                                                            \
    X(cuModuleGetFunction, "cuModuleGetFunction")                                                  \
    X(cuFuncGetAttribute, "cuFuncGetAttribute")                                                    \
    X(cuFuncSetAttribute, "cuFuncSetAttribute")                                                    \
    X(cuLaunchKernel, "cuLaunchKernel")

static struct {
    fa__dynlib lib;
    int version;
    unsigned fork_generation;
#define MEMBER(name, symbol) __typeof__(&name) name;
    REQUIRED(MEMBER)
#undef MEMBER
    /* Optional: NULL on drivers that lack them. Declared by hand where older cuda.h do not. */
    __typeof__(&cuLaunchKernelEx) cuLaunchKernelEx;
    CUresult (*cuFuncLoad)(CUfunction);
    CUresult (*cuFuncGetParamInfo)(CUfunction, size_t, size_t *, size_t *);
    CUresult (*cuStreamGetCtx)(CUstream, CUcontext *);
    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *);
} cu;

static atomic_bool is_open; /* everything in `cu` is constant once it is true */
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

static fa_status failed(const char *call, CUresult result)
{
    const char *name = NULL, *text = NULL;
    cu.cuGetErrorName(result, &name);
    cu.cuGetErrorString(result, &text);
    return fa__fail(status_of(result), "%s failed: %s (%d): %s", call,
                    name ? name : "unknown error", (int)result, text ? text : "no description");
}

/* --- opening --- */

static fa_status load_symbols(void)
{
#define LOAD(name, symbol)                                                                         \
    *(void **)&cu.name = fa__dynlib_symbol(&cu.lib, symbol);                                       \
    if (!cu.name)                                                                                  \
        return fa__fail(FA_ERR_CUDA_MISSING,                                                       \
                        "%s lacks the function " symbol                                            \
                        "; a driver for CUDA 12.0 or later is "                                    \
                        "needed",                                                                  \
                        cu.lib.path);
    REQUIRED(LOAD)
#undef LOAD
#define OPTIONAL(name) *(void **)&cu.name = fa__dynlib_symbol(&cu.lib, #name)
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
    if (!fa__dynlib_open(&cu.lib, "FAJIT_CUDA_LIBRARY", candidates)) {
        fa__fail(
            FA_ERR_CUDA_MISSING,
            "cannot open the CUDA driver library; install the NVIDIA driver, or set "
            "FAJIT_CUDA_LIBRARY to the path of libcuda.so.1, or use an offline context. Tried:%s",
            cu.lib.tried.data ? cu.lib.tried.data : "");
        fa__buf_free(&cu.lib.tried);
        return FA_ERR_CUDA_MISSING;
    }
    fa_status status = load_symbols();
    if (status)
        return status;
    CUresult result = cu.cuInit(0);
    if (result != CUDA_SUCCESS)
        return failed("cuInit", result);
    result = cu.cuDriverGetVersion(&cu.version);
    if (result != CUDA_SUCCESS)
        return failed("cuDriverGetVersion", result);
    if (cu.version < 12000)
        return fa__fail(FA_ERR_CUDA_MISSING,
                        "the driver %s supports CUDA %d.%d; 12.0 or later is needed", cu.lib.path,
                        cu.version / 1000, cu.version % 1000 / 10);
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
                cu.fork_generation = fa__fork_generation();
                atomic_store_explicit(&is_open, true, memory_order_release);
            }
        }
        pthread_mutex_unlock(&fa__process_lock);
        if (status)
            return status;
    }
    if (cu.fork_generation != fa__fork_generation())
        return fa__fail(FA_ERR_FORKED,
                        "CUDA was initialised before this process was forked; it cannot "
                        "be used here (start the child with exec, or fork first)");
    return FA_OK;
}

int32_t fa__driver_version(void)
{
    return atomic_load_explicit(&is_open, memory_order_acquire) ? cu.version : 0;
}

const char *fa__driver_path(void)
{
    return atomic_load_explicit(&is_open, memory_order_acquire) ? cu.lib.path : "";
}

/* --- devices and contexts --- */

#define TRY(call, ...)                                                                             \
    do {                                                                                           \
        CUresult result_ = cu.call(__VA_ARGS__);                                                   \
        if (result_ != CUDA_SUCCESS)                                                               \
            return failed(#call, result_);                                                         \
    } while (0)

static fa_status device_int(CUdevice device, CUdevice_attribute attribute, int *out)
{
    TRY(cuDeviceGetAttribute, out, attribute, device);
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
    TRY(cuDeviceGetCount, &count);
    if (ordinal < 0 || ordinal >= count)
        return fa__fail(FA_ERR_NO_DEVICE, "there is no CUDA device %d; %d visible", ordinal, count);
    TRY(cuDeviceGet, &device, ordinal);
    TRY(cuDeviceGetName, info->name, (int)sizeof info->name, device);
    TRY(cuDeviceTotalMem, &memory, device);
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
    TRY(cuDeviceGet, &device, ordinal);
    TRY(cuDevicePrimaryCtxRetain, context, device);
    return FA_OK;
}

void fa__driver_primary_release(int32_t ordinal)
{
    /* A CUdevice is its ordinal. Fails only when the driver is gone (at exit), and the context with it. */
    if (!atomic_load(&exiting))
        (void)cu.cuDevicePrimaryCtxRelease(ordinal);
}

fa__cuctx fa__driver_current(void)
{
    CUcontext current = NULL;
    return cu.cuCtxGetCurrent(&current) == CUDA_SUCCESS ? current : NULL;
}

fa_status fa__driver_enter(fa__cuctx context)
{
    if (atomic_load_explicit(&exiting, memory_order_acquire))
        return fa__fail(FA_ERR_CUDA,
                        "the process is exiting; the CUDA driver is not called any more");
    TRY(cuCtxPushCurrent, context);
    return FA_OK;
}

void fa__driver_leave(void)
{
    /* Pops what enter pushed on this thread; can only fail once the driver is gone. */
    CUcontext popped = NULL;
    (void)cu.cuCtxPopCurrent(&popped);
}

fa_status fa__driver_device_of(fa__cuctx context, int32_t *ordinal)
{
    CUdevice device = 0;
    fa_status status = fa__driver_enter(context);
    if (status)
        return status;
    CUresult result = cu.cuCtxGetDevice(&device);
    fa__driver_leave();
    if (result != CUDA_SUCCESS)
        return failed("cuCtxGetDevice", result);
    *ordinal = device; /* CUdevice is the ordinal */
    return FA_OK;
}

/* --- loading --- */

static fa_status function_int(CUfunction function, CUfunction_attribute attribute, uint32_t *out)
{
    int value = 0;
    TRY(cuFuncGetAttribute, &value, attribute, function);
    *out = (uint32_t)value;
    return FA_OK;
}

/* With an expected count only the sizes are asked for; else until the driver says that there is no
 * further parameter, which tools that watch for failing calls report. */
static fa_status read_params(CUfunction function, size_t expected, fa__function_info *info)
{
    info->param_count = SIZE_MAX;
    if (!cu.cuFuncGetParamInfo)
        return FA_OK;
    for (size_t i = 0; !expected || i < expected; i++) {
        size_t offset = 0, size = 0;
        CUresult result = cu.cuFuncGetParamInfo(function, i, &offset, &size);
        if (result == CUDA_ERROR_INVALID_VALUE) { /* past the last one */
            info->param_count = i;
            return FA_OK;
        }
        if (result != CUDA_SUCCESS)
            return failed("cuFuncGetParamInfo", result);
        if (i >= FA_MAX_PARAMS)
            return fa__fail(FA_ERR_PARAM_COUNT, "the kernel has more than %d parameters",
                            FA_MAX_PARAMS);
        info->param_size[i] = (uint32_t)size;
    }
    info->param_count = expected;
    return FA_OK;
}

static fa_status describe(CUfunction function, size_t param_count, fa__function_info *info)
{
    fa_status status = function_int(function, CU_FUNC_ATTRIBUTE_NUM_REGS, &info->registers);
    if (status == FA_OK)
        status = function_int(function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &info->local_bytes);
    if (status == FA_OK)
        status =
            function_int(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &info->smem_static_bytes);
    if (status == FA_OK)
        status =
            function_int(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &info->max_threads);
    return status ? status : read_params(function, param_count, info);
}

/* 48 KiB, static plus dynamic, need no opt-in on any architecture. */
#define SMEM_WITHOUT_OPTIN (48u * 1024u)

static fa_status prepare(CUfunction function, const fa__load *what, fa__function_info *info)
{
    fa_status status = describe(function, what->param_count, info);
    if (status)
        return status;
    if (info->smem_static_bytes + what->smem_dynamic_bytes > SMEM_WITHOUT_OPTIN)
        TRY(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            (int)what->smem_dynamic_bytes);
    if (what->nonportable_cluster)
        TRY(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    if (cu.cuFuncLoad)
        TRY(cuFuncLoad, function);
    return FA_OK;
}

static fa_status load(const fa__load *what, fa__cumodule *module, fa__cufunction *function,
                      fa__function_info *info)
{
    TRY(cuModuleLoadData, module, what->cubin);
    TRY(cuModuleGetFunction, function, *module, what->function);
    return prepare(*function, what, info);
}

/* Loading and unloading would end a capture that is under way on any thread in the strict modes; in
 * relaxed mode, which is set for this thread meanwhile, they leave it valid. */
static fa_status relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cu.cuThreadExchangeStreamCaptureMode)
        TRY(cuThreadExchangeStreamCaptureMode, mode);
    return FA_OK;
}

static void unrelax(CUstreamCaptureMode *mode)
{
    if (cu.cuThreadExchangeStreamCaptureMode)
        (void)cu.cuThreadExchangeStreamCaptureMode(mode); /* it was the thread's before: accepted */
}

fa_status fa__driver_load(const fa__load *what, fa__cumodule *module, fa__cufunction *function,
                          fa__function_info *info)
{
    CUstreamCaptureMode mode;
    *module = NULL;
    *function = NULL;
    *info = (fa__function_info){0};
    fa_status status = relax(&mode);
    if (status)
        return status;
    status = load(what, module, function, info);
    if (status && *module)
        (void)cu.cuModuleUnload(*module); /* what matters is the failure that is being reported */
    if (status) {
        *module = NULL;
        *function = NULL;
    }
    unrelax(&mode);
    return status;
}

void fa__driver_unload(fa__cumodule module)
{
    CUstreamCaptureMode mode;
    bool relaxed = relax(&mode) == FA_OK;
    (void)cu.cuModuleUnload(module); /* fails only when the driver, and so the module, is gone */
    if (relaxed)
        unrelax(&mode);
}

/* --- launching --- */

static bool is_default_stream(fa_stream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* Another context is current: the launch may go on only if the stream says that it is the kernel's.
 */
static fa_status check_stream(fa__cuctx context, fa__cuctx current, fa_stream stream)
{
    if (is_default_stream(stream)) {
        if (!current)
            return FA_OK;
        return fa__fail(
            FA_ERR_WRONG_CONTEXT,
            "fa_launch: the kernel belongs to another CUDA context than the current one, "
            "and the stream is a default stream; make the kernel's context current or "
            "pass one of its streams");
    }
    if (!cu.cuStreamGetCtx)
        return FA_OK; /* the driver checks at the launch */
    CUcontext owner = NULL;
    TRY(cuStreamGetCtx, stream, &owner);
    if (owner != context)
        return fa__fail(FA_ERR_WRONG_CONTEXT,
                        "fa_launch: the stream belongs to another CUDA context "
                        "(device) than the kernel");
    return FA_OK;
}

static CUresult launch_with_attributes(CUfunction function, const fa__launch *l,
                                       const fa__launch_flags *flags, CUstream stream)
{
    CUlaunchAttribute attribute[3];
    CUlaunchConfig config = {
        .gridDimX = l->grid[0],
        .gridDimY = l->grid[1],
        .gridDimZ = l->grid[2],
        .blockDimX = l->block[0],
        .blockDimY = l->block[1],
        .blockDimZ = l->block[2],
        .sharedMemBytes = l->smem_bytes,
        .hStream = stream,
        .attrs = attribute,
    };
    memset(attribute, 0, sizeof attribute);
    if (flags->cluster[0]) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        a->value.clusterDim.x = flags->cluster[0];
        a->value.clusterDim.y = flags->cluster[1];
        a->value.clusterDim.z = flags->cluster[2];
    }
    if (flags->cooperative) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        a->value.cooperative = 1;
    }
    if (flags->programmatic) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        a->value.programmaticStreamSerializationAllowed = 1;
    }
    return cu.cuLaunchKernelEx(&config, function, l->params, NULL);
}

static __attribute__((cold)) fa_status launch_failed(fa__cuctx context, fa_stream stream,
                                                     CUresult result)
{
    CUcontext owner = NULL;
    if (!is_default_stream(stream) && cu.cuStreamGetCtx &&
        cu.cuStreamGetCtx(stream, &owner) == CUDA_SUCCESS && owner != context)
        return fa__fail(FA_ERR_WRONG_CONTEXT,
                        "fa_launch: the stream belongs to another CUDA context "
                        "(device) than the kernel");
    return failed("cuLaunchKernel", result);
}

fa_status fa__driver_launch(fa__cuctx context, fa__cufunction function, const fa__launch *l,
                            const fa__launch_flags *flags, fa_stream stream)
{
    CUcontext current = NULL;
    TRY(cuCtxGetCurrent, &current);
    bool enter = current != context;
    if (enter) {
        fa_status status = check_stream(context, current, stream);
        if (status == FA_OK)
            status = fa__driver_enter(context);
        if (status)
            return status;
    }
    CUresult result;
    if (!flags)
        result =
            cu.cuLaunchKernel(function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                              l->block[1], l->block[2], l->smem_bytes, stream, l->params, NULL);
    else if (cu.cuLaunchKernelEx)
        result = launch_with_attributes(function, l, flags, stream);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    fa_status status = result == CUDA_SUCCESS ? FA_OK : launch_failed(context, stream, result);
    if (enter)
        fa__driver_leave();
    return status;
}
