// Memory: each allocation is one of the host's.
#include <cstdlib>
#include <cstring>

#include "driver.h"

using namespace fajit_emu;

namespace {

constexpr size_t ALIGNMENT = 256, POISON_AT_MOST = size_t{64} << 20;

using allocations = std::map<CUdeviceptr, allocation>;

// The one that an address is in; null: none.
const allocations::value_type *find_in(const allocations &all, CUdeviceptr at)
{
    auto next = all.upper_bound(at);
    if (next == all.begin())
        return nullptr;
    const auto &found = *--next;
    return at - found.first < found.second.bytes ? &found : nullptr;
}

const allocations::value_type *device_allocation(CUdeviceptr at)
{
    return find_in(driver().allocations, at);
}

const allocations::value_type *host_allocation(CUdeviceptr at)
{
    return find_in(driver().host_allocations, at);
}

CUresult device_alloc(CUctx_st *context, CUdeviceptr *out, size_t bytes)
{
    if (!out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > DEVICE_MEMORY - driver().memory_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = nullptr;
    if (posix_memalign(&memory, ALIGNMENT, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    // What was never written is recognizable: NaN in every floating-point type.
    if (bytes <= POISON_AT_MOST)
        memset(memory, 0xff, bytes);
    driver().memory_used += bytes;
    *out = reinterpret_cast<uintptr_t>(memory);
    driver().allocations[*out] = {bytes, context, context->device};
    return CUDA_SUCCESS;
}

// Nobody may use it from now on; the caller gives it back.
CUresult device_forget(CUdeviceptr at)
{
    auto found = driver().allocations.find(at);
    if (found == driver().allocations.end())
        return CUDA_ERROR_INVALID_VALUE;
    driver().memory_used -= found->second.bytes;
    driver().allocations.erase(found);
    return CUDA_SUCCESS;
}

} // namespace

void fajit_emu::free_memory_of(CUctx_st *context)
{
    for (auto *all : {&driver().allocations, &driver().host_allocations})
        for (auto a = all->begin(); a != all->end();) {
            if (a->second.context != context) {
                ++a;
                continue;
            }
            if (all == &driver().allocations)
                driver().memory_used -= a->second.bytes;
            free(pointer(a->first));
            a = all->erase(a);
        }
}

// --- of the device -------------------------------------------------------------------------------

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    return device_alloc(c.context, out, bytes);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned element)
{
    constexpr size_t ROW = 512;
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    if (!pitch || !width || !height || width > DEVICE_MEMORY || height > DEVICE_MEMORY ||
        (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t row = (width + ROW - 1) / ROW * ROW;
    if (row > DEVICE_MEMORY / height)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = row;
    return device_alloc(c.context, out, row * height);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
    api_call c;
    if (!at)
        return CUDA_SUCCESS;
    if (!c.context || (c.result = check_capture()) || (c.result = device_forget(at)))
        return c.result;
    wait_for_all(c.lock);
    free(pointer(at));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *total = DEVICE_MEMORY;
    *free_bytes = DEVICE_MEMORY - driver().memory_used;
    return CUDA_SUCCESS;
}

static CUresult check_memory_stream(const api_call &c, CUstream stream)
{
    if (!c.context)
        return c.result;
    const CUstream_st *s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    return s->capture ? not_implemented("memory nodes of graphs") : CUDA_SUCCESS;
}

// In the order of a stream. The memory is there at once: who uses it before its turn, on another
// stream, is not found out.
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    api_call c;
    if ((c.result = check_memory_stream(c, stream)))
        return c.result;
    return device_alloc(c.context, out, bytes);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    api_call c;
    if ((c.result = check_memory_stream(c, stream)))
        return c.result;
    if ((c.result = device_forget(at)))
        return c.result;
    return enqueue(c.context, stream,
                   {[at](operation &) {
                        free(pointer(at));
                        return failure{};
                    },
                    CU_GRAPH_NODE_TYPE_MEM_FREE},
                   nullptr);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned)
{
    return not_implemented("managed memory");
}

// --- of the host ---------------------------------------------------------------------------------

EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    if (!out || !bytes || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(out, ALIGNMENT, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver().host_allocations[reinterpret_cast<uintptr_t>(*out)] = {bytes, c.context,
                                                                    c.context->device};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *at)
{
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    if (!driver().host_allocations.erase(reinterpret_cast<uintptr_t>(at)))
        return CUDA_ERROR_INVALID_VALUE;
    wait_for_all(c.lock);
    free(at);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    const CUdeviceptr address = reinterpret_cast<uintptr_t>(at);
    if (!out || flags || !host_allocation(address))
        return CUDA_ERROR_INVALID_VALUE;
    *out = address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *, size_t, unsigned)
{
    return not_implemented("registering memory of the host");
}

EXPORT CUresult cuMemHostUnregister(void *)
{
    api_call c;
    return c.context ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : c.result;
}

// --- what is at an address -----------------------------------------------------------------------

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    api_call c;
    if (!c.context)
        return c.result;
    const auto *found = device_allocation(at);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = found->first;
    if (bytes)
        *bytes = found->second.bytes;
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *out, CUpointer_attribute what, CUdeviceptr at)
{
    const auto *device = device_allocation(at), *host = host_allocation(at);
    const auto *found = device ? device : host;
    if (!out || !found)
        return CUDA_ERROR_INVALID_VALUE;
    switch (what) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned *>(out) = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *static_cast<CUdeviceptr *>(out) = at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *static_cast<void **>(out) = pointer(at);
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<unsigned *>(out) = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *static_cast<CUcontext *>(out) = found->second.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int *>(out) = found->second.device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr *>(out) = found->first;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<size_t *>(out) = found->second.bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *static_cast<unsigned *>(out) = 1;
        return CUDA_SUCCESS;
    default:
        return not_implemented("this attribute of a pointer");
    }
}

EXPORT CUresult cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr at)
{
    locked lock(driver().lock);
    return driver().initialized ? pointer_attribute(out, what, at) : CUDA_ERROR_NOT_INITIALIZED;
}

// For an address that is nobody's every attribute is zero, and that is no failure.
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *what, void **out,
                                       CUdeviceptr at)
{
    locked lock(driver().lock);
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!what || !out || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        const bool small = what[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                           what[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                           what[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
                           what[i] == CU_POINTER_ATTRIBUTE_MAPPED;
        const CUresult result = pointer_attribute(out[i], what[i], at);
        if (result == CUDA_ERROR_NOT_SUPPORTED)
            return result;
        if (result && out[i])
            memset(out[i], 0, small ? 4 : 8);
        if (result && out[i] && what[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *static_cast<int *>(out[i]) = -2; // as the driver marks it
    }
    return CUDA_SUCCESS;
}
