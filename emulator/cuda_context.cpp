// Contexts.
#include <algorithm>

#include "driver.h"

namespace fajit_emu {

namespace {

thread_local std::vector<CUctx_st *> stack;
thread_local bool in_host_function;

CUctx_st *context_new(int device, bool primary, unsigned flags)
{
    static uint64_t next;
    CUctx_st *c = new CUctx_st{};
    c->device = device;
    c->primary = primary;
    c->flags = flags;
    c->id = ++next;
    c->legacy = stream_new(c, true, 0);
    driver().handles[c] = handle::CONTEXT;
    return c;
}

// Under the lock. The object itself stays: it may still be current in other threads.
void context_delete(locked &lock, CUctx_st *c)
{
    wait_for_context(lock, c);
    for (CUstream s : std::vector<CUstream>(c->streams))
        stream_delete(s);
    free_memory_of(c);
    driver().handles.erase(c);
    driver().past_contexts.push_back(c);
    c->legacy = nullptr;
    c->of_thread.clear();
}

constexpr unsigned KNOWN_FLAGS = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX;

bool good_flags(unsigned flags)
{
    const unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return !(flags & ~KNOWN_FLAGS) && (schedule & (schedule - 1)) == 0;
}

} // namespace

void inside_host_function(bool is)
{
    in_host_function = is;
}

CUctx_st *current_context(CUresult *result)
{
    *result = in_host_function        ? CUDA_ERROR_NOT_PERMITTED
              : !driver().initialized ? CUDA_ERROR_NOT_INITIALIZED
              : stack.empty()         ? CUDA_ERROR_INVALID_CONTEXT
              : !valid(stack.back())  ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                      : static_cast<CUresult>(stack.back()->broken.error);
    return *result ? nullptr : stack.back();
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- primary contexts ----------------------------------------------------------------------------

static CUctx_st *primary_of(CUdevice device)
{
    auto found = driver().primary.find(device);
    return found != driver().primary.end() && valid(found->second) ? found->second : nullptr;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUctx_st *c = primary_of(device);
    if (!c)
        c = driver().primary[device] = context_new(device, true, driver().primary_flags[device]);
    c->retains++;
    *context = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    CUctx_st *c = primary_of(device);
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--c->retains == 0)
        context_delete(lock, c);
    return CUDA_SUCCESS;
}

// Whoever retained it finds it destroyed.
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    CUctx_st *c = result ? nullptr : primary_of(device);
    if (c)
        context_delete(lock, c);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    if (flags)
        *flags = driver().primary_flags[device];
    if (active)
        *active = primary_of(device) != nullptr;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    if (!good_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    driver().primary_flags[device] = flags;
    if (CUctx_st *c = primary_of(device))
        c->flags = flags;
    return CUDA_SUCCESS;
}

// --- contexts of one's own -----------------------------------------------------------------------

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    if (!context || !good_flags(flags))
        return CUDA_ERROR_INVALID_VALUE;
    *context = context_new(device, false, flags);
    stack.push_back(*context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int count,
                               unsigned flags, CUdevice device)
{
    if (params || count)
        return not_implemented("contexts on a part of a device");
    return cuCtxCreate_v2(context, flags, device);
}

#if CUDA_VERSION >= 12050
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags,
                               CUdevice device)
{
    if (params &&
        (params->execAffinityParams || params->numExecAffinityParams || params->cigParams))
        return not_implemented("contexts on a part of a device, or for graphics");
    return cuCtxCreate_v2(context, flags, device);
}
#endif

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    locked lock(driver().lock);
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!valid(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_delete(lock, context);
    if (!stack.empty() && stack.back() == context)
        stack.pop_back();
    return CUDA_SUCCESS;
}

// --- the current one -----------------------------------------------------------------------------

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    locked lock(driver().lock);
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (context && !valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty())
        stack.pop_back();
    if (context)
        stack.push_back(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    locked lock(driver().lock);
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (stack.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize()
{
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    return wait_for_context(c.lock, c.context);
}

// --- what it is ----------------------------------------------------------------------------------

// Asking works in a context that a kernel broke.
static CUctx_st *asked(api_call &c, CUcontext context)
{
    if (context)
        c.result = valid(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    else
        context = stack.empty() ? nullptr : stack.back();
    if (context && valid(context) && c.result == static_cast<CUresult>(context->broken.error))
        c.result = CUDA_SUCCESS;
    return c.result ? nullptr : context;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    api_call c;
    CUctx_st *context = asked(c, nullptr);
    if (!context)
        return c.result;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = c.context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    api_call c;
    CUctx_st *found = asked(c, context);
    if (!found)
        return c.result;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = found->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    api_call c;
    if (!asked(c, context))
        return c.result;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    api_call c;
    if (c.context && config)
        *config = CU_FUNC_CACHE_PREFER_NONE;
    return c.context && !config ? CUDA_ERROR_INVALID_VALUE : c.result;
}

EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    api_call c;
    return c.context && config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : c.result;
}

// Limits are kept, and change nothing.
static bool known_limit(CUlimit limit, size_t *value)
{
    static constexpr std::pair<CUlimit, size_t> first[] = {
        {CU_LIMIT_STACK_SIZE, 1024},
        {CU_LIMIT_PRINTF_FIFO_SIZE, size_t{1} << 20},
        {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
        {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
        {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0}};
    for (const auto &known : first)
        if (known.first == limit) {
            *value = known.second;
            return true;
        }
    return false;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    api_call c;
    size_t first = 0;
    if (!c.context)
        return c.result;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!known_limit(limit, &first))
        return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
    auto set = c.context->limits.find(limit);
    *value = set != c.context->limits.end() ? set->second : first;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    api_call c;
    size_t first = 0;
    if (!c.context)
        return c.result;
    if (!known_limit(limit, &first))
        return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
    c.context->limits[limit] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxResetPersistingL2Cache()
{
    api_call c;
    return c.result;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned)
{
    api_call c;
    return c.context ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : c.result;
}

EXPORT CUresult cuProfilerStart()
{
    api_call c;
    return c.result;
}

EXPORT CUresult cuProfilerStop()
{
    api_call c;
    return c.result;
}
