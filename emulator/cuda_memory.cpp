// Device memory: each allocation is one of the host's.
#include <cstdlib>
#include <cstring>

#include "driver.h"

using namespace fajit_emu;

namespace {

constexpr size_t ALIGNMENT = 256, POISON_AT_MOST = size_t{64} << 20;

// Under the lock: is [at, at + bytes) inside one allocation?
bool inside(CUdeviceptr at, size_t bytes)
{
    auto next = driver().allocations.upper_bound(at);
    if (next == driver().allocations.begin())
        return false;
    const auto &a = *--next;
    return at - a.first <= a.second && bytes <= a.second - (at - a.first);
}

void *pointer(CUdeviceptr at)
{
    return reinterpret_cast<void *>(static_cast<uintptr_t>(at));
}

// What every synchronous call does first: the default stream's work is done when it is past.
CUresult begin_synchronous(locked &lock, CUdeviceptr at, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if ((result = check_capture()))
        return result;
    if (!inside(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    pending p;
    if ((result = enqueue(
             lock, c, nullptr, [] { return failure{}; }, &p)))
        return result;
    return wait_for(lock, p);
}

} // namespace

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!current_context(&result) || (result = check_capture()))
        return result;
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
    driver().allocations[*out] = bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!at)
        return CUDA_SUCCESS;
    if (!current_context(&result) || (result = check_capture()))
        return result;
    auto found = driver().allocations.find(at);
    if (found == driver().allocations.end())
        return CUDA_ERROR_INVALID_VALUE;
    driver().memory_used -= found->second;
    driver().allocations.erase(found);
    wait_for_all(lock);
    free(pointer(at));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!current_context(&result))
        return result;
    *total = DEVICE_MEMORY;
    *free_bytes = DEVICE_MEMORY - driver().memory_used;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    locked lock(driver().lock);
    CUresult result = begin_synchronous(lock, to, bytes);
    if (!result)
        memcpy(pointer(to), from, bytes);
    return result;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    locked lock(driver().lock);
    CUresult result = begin_synchronous(lock, from, bytes);
    if (!result)
        memcpy(to, pointer(from), bytes);
    return result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t bytes)
{
    locked lock(driver().lock);
    CUresult result = begin_synchronous(lock, at, bytes);
    if (!result)
        memset(pointer(at), value, bytes);
    return result;
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!inside(to, bytes) || !inside(from, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(
        lock, c, stream,
        [=] {
            memmove(pointer(to), pointer(from), bytes);
            return failure{};
        },
        nullptr);
}
