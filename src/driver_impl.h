/* What the files of the driver share. Nothing else includes this.
 *
 *     driver.c          opening the library, errors, devices and contexts
 *     driver_load.c     modules and functions
 *     driver_launch.c   launches
 */
#ifndef FA_DRIVER_IMPL_H
#define FA_DRIVER_IMPL_H

#include <cuda.h>

#include "driver.h"
#include "dynlib.h"

/* X(member, exported name) for what every driver of CUDA 12 has. */
#define FA__CUDA_REQUIRED(X)                                                                       \
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

typedef struct fa__cuda {
    fa__dynlib lib;
    int version;
    unsigned fork_generation;
#define MEMBER(name, symbol) __typeof__(&name) name;
    FA__CUDA_REQUIRED(MEMBER)
#undef MEMBER
    /* Optional: NULL on drivers that lack them. Declared by hand where older cuda.h do not. */
    __typeof__(&cuLaunchKernelEx) cuLaunchKernelEx;
    CUresult (*cuFuncLoad)(CUfunction);
    CUresult (*cuFuncGetParamInfo)(CUfunction, size_t, size_t *, size_t *);
    CUresult (*cuStreamGetCtx)(CUstream, CUcontext *);
    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *);
} fa__cuda;

extern fa__cuda fa__cu; /* constant once fa__driver_open has succeeded */

/* Sets fa_last_error to what the driver says about a failed call. */
fa_status fa__cuda_failed(const char *call, CUresult result);

/* Calls a function of the driver; a failure is the calling function's. */
#define FA__CUDA_TRY(call, ...)                                                                    \
    do {                                                                                           \
        CUresult result_ = fa__cu.call(__VA_ARGS__);                                               \
        if (result_ != CUDA_SUCCESS)                                                               \
            return fa__cuda_failed(#call, result_);                                                \
    } while (0)

#endif
