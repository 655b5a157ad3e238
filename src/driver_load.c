#include <string.h>

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

/* The info of all functions, from that of the first ones and of one more. */
static fa_status merge(const fa__function_info *one, fa__function_info *all)
{
    if (one->max_threads < all->max_threads)
        all->max_threads = one->max_threads;
    bool same = one->param_count == all->param_count;
    for (size_t i = 0; same && one->param_count != SIZE_MAX && i < one->param_count; i++)
        same = one->param_size[i] == all->param_size[i];
    return same ? FA_OK
                : fa__fail(FA_ERR_PARAM_COUNT, "the functions of a kernel take other parameters");
}

/* The line at *name, and *name behind it. FA_ERR_LIMIT when it does not fit. */
static fa_status next_name(const char **name, char *out, size_t size)
{
    const size_t len = strcspn(*name, "\n");
    if (len >= size)
        return fa__fail(FA_ERR_LIMIT, "a function's name is longer than %zu", size - 1);
    memcpy(out, *name, len);
    out[len] = '\0';
    *name += len + ((*name)[len] ? 1 : 0);
    return FA_OK;
}

static fa_status load_further(const fa__load *what, fa__cumodule module, const char *names,
                              fa__cufunction *function, fa__function_info *info)
{
    fa__function_info one;
    char name[1024];
    for (size_t i = 1; *names; i++) {
        if (i == FA__MAX_FUNCTIONS)
            return fa__fail(FA_ERR_LIMIT, "more than %d functions", FA__MAX_FUNCTIONS);
        fa_status status = next_name(&names, name, sizeof name);
        if (status)
            return status;
        FA__CUDA_TRY(cuModuleGetFunction, &function[i], module, name);
        status = prepare(function[i], what, &one);
        if (status == FA_OK)
            status = merge(&one, info);
        if (status)
            return status;
        info->threads_of[i] = one.max_threads;
    }
    return FA_OK;
}

static fa_status load(const fa__load *what, fa__cumodule *module, fa__cufunction *function,
                      fa__function_info *info)
{
    FA__CUDA_TRY(cuModuleLoadData, module, what->cubin);
    const char *newline = strchr(what->function, '\n');
    if (!newline) {
        FA__CUDA_TRY(cuModuleGetFunction, function, *module, what->function);
        const fa_status only = prepare(*function, what, info);
        info->threads_of[0] = info->max_threads;
        return only;
    }
    char first[1024];
    const char *names = what->function;
    fa_status status = next_name(&names, first, sizeof first);
    if (status)
        return status;
    FA__CUDA_TRY(cuModuleGetFunction, function, *module, first);
    status = prepare(*function, what, info);
    info->threads_of[0] = info->max_threads;
    return status ? status : load_further(what, *module, names, function, info);
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

fa_status fa__driver_load(const fa__load *what, fa__cumodule *module,
                          fa__cufunction function[FA__MAX_FUNCTIONS], fa__function_info *info)
{
    CUstreamCaptureMode mode;
    *module = NULL;
    for (int i = 0; i < FA__MAX_FUNCTIONS; i++)
        function[i] = NULL;
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
        for (int i = 0; i < FA__MAX_FUNCTIONS; i++)
            function[i] = NULL;
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
