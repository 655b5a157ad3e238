// Copying and filling memory.
#include <cstring>

#include "driver.h"

using namespace fajit_emu;

namespace {

// Under the lock: is [at, at + bytes) inside one allocation of the driver's?
bool inside(CUdeviceptr at, size_t bytes)
{
    for (const auto *all : {&driver().allocations, &driver().host_allocations}) {
        auto next = all->upper_bound(at);
        if (next == all->begin())
            continue;
        const auto &a = *--next;
        if (at - a.first <= a.second.bytes && bytes <= a.second.bytes - (at - a.first))
            return true;
    }
    return false;
}

enum class place { DEVICE, HOST, EITHER };

bool good(CUdeviceptr at, size_t bytes, place where)
{
    if (where == place::DEVICE || (where == place::EITHER && inside(at, 1)))
        return inside(at, bytes);
    return at != 0;
}

bool pageable(CUdeviceptr at)
{
    return !inside(at, 1);
}

// Where a call puts its work: in a stream, or in the default one, and then it waits for it.
struct target_stream {
    bool waits;
    CUstream stream;
};
constexpr target_stream NOW{true, nullptr};

CUresult put(api_call &c, const target_stream &where, job what)
{
    pending p;
    if (!where.waits)
        return enqueue(c.context, where.stream, std::move(what), nullptr);
    c.result = enqueue(c.context, nullptr, std::move(what), &p);
    return c.result ? c.result : wait_for(c.lock, p);
}

// From pageable memory of the host a copy is taken at once, and what goes to it is there when the
// call returns; not so in a capture.
CUresult put_async(api_call &c, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    std::shared_ptr<std::vector<char>> kept;
    if (!s->capture && pageable(from)) {
        const char *begin = static_cast<const char *>(pointer(from));
        kept = std::make_shared<std::vector<char>>(begin, begin + bytes);
    }
    const bool waits = !s->capture && pageable(to);
    c.result = enqueue(c.context, stream,
                       {[=](operation &) {
                            memmove(pointer(to), kept ? kept->data() : pointer(from), bytes);
                            return failure{};
                        },
                        CU_GRAPH_NODE_TYPE_MEMCPY},
                       nullptr);
    return c.result || !waits ? c.result : wait_for(c.lock, s->last);
}

CUresult copy(CUdeviceptr to, place to_place, CUdeviceptr from, place from_place, size_t bytes,
              const target_stream &where)
{
    api_call c;
    if (!c.context || (where.waits && (c.result = check_capture())))
        return c.result;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!good(to, bytes, to_place) || !good(from, bytes, from_place))
        return CUDA_ERROR_INVALID_VALUE;
    if (!where.waits)
        return put_async(c, to, from, bytes, where.stream);
    return put(c, where,
               {[=](operation &) {
                    memmove(pointer(to), pointer(from), bytes);
                    return failure{};
                },
                CU_GRAPH_NODE_TYPE_MEMCPY});
}

template <class T> CUresult fill(CUdeviceptr at, T value, size_t count, const target_stream &where)
{
    api_call c;
    if (!c.context || (where.waits && (c.result = check_capture())))
        return c.result;
    if (count == 0)
        return CUDA_SUCCESS;
    if (at % sizeof(T) || count > DEVICE_MEMORY || !inside(at, count * sizeof(T)))
        return CUDA_ERROR_INVALID_VALUE;
    return put(c, where,
               {[=](operation &) {
                    std::fill_n(static_cast<T *>(pointer(at)), count, value);
                    return failure{};
                },
                CU_GRAPH_NODE_TYPE_MEMSET});
}

CUdeviceptr address(const void *host)
{
    return reinterpret_cast<uintptr_t>(host);
}

} // namespace

// --- copies --------------------------------------------------------------------------------------

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, place::EITHER, from, place::EITHER, bytes, NOW);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, place::EITHER, from, place::EITHER, bytes, {false, stream});
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy(to, place::DEVICE, address(from), place::HOST, bytes, NOW);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     CUstream stream)
{
    return copy(to, place::DEVICE, address(from), place::HOST, bytes, {false, stream});
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return copy(address(to), place::HOST, from, place::DEVICE, bytes, NOW);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(address(to), place::HOST, from, place::DEVICE, bytes, {false, stream});
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, place::DEVICE, from, place::DEVICE, bytes, NOW);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream)
{
    return copy(to, place::DEVICE, from, place::DEVICE, bytes, {false, stream});
}

// --- fills ---------------------------------------------------------------------------------------

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count)
{
    return fill(at, value, count, NOW);
}

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t count)
{
    return fill(at, value, count, NOW);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned value, size_t count)
{
    return fill(at, value, count, NOW);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream stream)
{
    return fill(at, value, count, {false, stream});
}

EXPORT CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t count,
                                 CUstream stream)
{
    return fill(at, value, count, {false, stream});
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream)
{
    return fill(at, value, count, {false, stream});
}
