#include "driver.h"
#include "driver_impl.h"
#include "status.h"

/* With an expected count only the sizes are asked for; else until the driver says that there is no
 * further parameter, which tools that watch for failing calls report. */
static fa_status read_params(CUfunction function, size_t expected, fa__function_info *info)
{
    info->param_count = SIZE_MAX;
    if (!fa__cu.cuFuncGetParamInfo)
        return FA_OK;
    for (size_t i = 0; !expected || i < expected; i++) {
        size_t offset = 0, size = 0;
        CUresult result = fa__cu.cuFuncGetParamInfo(function, i, &offset, &size);
        if (result == CUDA_ERROR_NOT_SUPPORTED)
            return FA_OK;                         /* this driver cannot tell */
        if (result == CUDA_ERROR_INVALID_VALUE) { /* past the last one */
            info->param_count = i;
            return FA_OK;
        }
        if (result != CUDA_SUCCESS)
            return fa__cuda_failed("cuFuncGetParamInfo", result);
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
    int threads = 0;
    FA__CUDA_TRY(cuFuncGetAttribute, &threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    info->max_threads = (uint32_t)threads;
    return read_params(function, param_count, info);
}

/* 48 KiB, static plus dynamic, need no opt-in on any architecture. */
#define SMEM_WITHOUT_OPTIN (48u * 1024u)

static fa_status prepare(CUfunction function, const fa__load *what, fa__function_info *info)
{
    fa_status status = describe(function, what->param_count, info);
    if (status)
        return status;
    if (what->smem_static_bytes + what->smem_dynamic_bytes > SMEM_WITHOUT_OPTIN)
        FA__CUDA_TRY(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                     (int)what->smem_dynamic_bytes);
    if (what->nonportable_cluster)
        FA__CUDA_TRY(cuFuncSetAttribute, function,
                     CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    if (fa__cu.cuFuncLoad)
        FA__CUDA_TRY(cuFuncLoad, function);
    return FA_OK;
}

static fa_status load(const fa__load *what, fa__cumodule *module, fa__cufunction *function,
                      fa__function_info *info)
{
    FA__CUDA_TRY(cuModuleLoadData, module, what->cubin);
    FA__CUDA_TRY(cuModuleGetFunction, function, *module, what->function);
    return prepare(*function, what, info);
}

/* Loading and unloading would end a capture that is under way on any thread in the strict modes; in
 * relaxed mode, which is set for this thread meanwhile, they leave it valid. */
static fa_status relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (fa__cu.cuThreadExchangeStreamCaptureMode)
        FA__CUDA_TRY(cuThreadExchangeStreamCaptureMode, mode);
    return FA_OK;
}

static void unrelax(CUstreamCaptureMode *mode)
{
    if (fa__cu.cuThreadExchangeStreamCaptureMode)
        (void)fa__cu.cuThreadExchangeStreamCaptureMode(
            mode); /* it was the thread's before: accepted */
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
        (void)fa__cu.cuModuleUnload(
            *module); /* what matters is the failure that is being reported */
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
    (void)fa__cu.cuModuleUnload(
        module); /* fails only when the driver, and so the module, is gone */
    if (relaxed)
        unrelax(&mode);
}
