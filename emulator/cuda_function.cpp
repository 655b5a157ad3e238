// Functions of modules: what can be asked and set.
#include "driver.h"

using namespace fajit_emu;

CUresult fajit_emu::function_attribute(const CUfunc_st *f, CUfunction_attribute attribute,
                                       int *value)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = static_cast<int>(max_threads_per_block(f));
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = f->module->shared_static;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32; // as the compiler look-alike reports
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = f->shared_dynamic_max;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = limits_of(f->module->context).cc;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *value = f->nonportable_cluster;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = f->carveout;
        return CUDA_SUCCESS;
    default:
        return attribute < CU_FUNC_ATTRIBUTE_MAX ? not_implemented("this function attribute")
                                                 : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult fajit_emu::function_set_attribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    const device_limits &device = limits_of(f->module->context);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > device.shared_optin - f->module->shared_static)
            return CUDA_ERROR_INVALID_VALUE;
        f->shared_dynamic_max = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        f->nonportable_cluster = value != 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        f->carveout = value;
        return CUDA_SUCCESS;
    default: // the others can only be read
        return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!(f = function_of(f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    return value ? function_attribute(f, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    api_call c;
    if (!c.context)
        return c.result;
    f = function_of(f, c.context);
    return f ? function_set_attribute(f, attribute, value) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config)
{
    locked lock(driver().lock);
    if (!valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction f)
{
    locked lock(driver().lock);
    if (!valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = f->module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction f)
{
    locked lock(driver().lock);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = f->code->name;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12040
EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction f)
{
    locked lock(driver().lock);
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
#endif

EXPORT CUresult cuFuncLoad(CUfunction f)
{
    locked lock(driver().lock);
    return valid(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    locked lock(driver().lock);
    if (!valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= f->code->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset)
        *offset = f->code->parameters[index].offset;
    if (size)
        *size = f->code->parameters[index].size;
    return CUDA_SUCCESS;
}
