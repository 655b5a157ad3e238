// Launches: what the driver checks, and a grid's blocks on threads of the operating system.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "driver.h"
#include "print.h"
#include "sanitizer.h"

using namespace fajit_emu;

namespace {

struct geometry {
    dim3 grid, block, cluster{0, 0, 0};
    unsigned shared_bytes = 0;
    bool cooperative = false, programmatic = false;
};

// All of a grid's blocks. Those of a cooperative launch run at once, each on a thread of its own.
struct grid_run {
    grid g;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stop{false};
    uint64_t count = 0;
    std::mutex lock;
    failure first;

    void one(uint64_t index)
    {
        failure why;
        if (!block_run(g, index, &why)) {
            stop = true;
            std::lock_guard<std::mutex> hold(lock);
            if (!first.error)
                first = why;
        }
    }

    void blocks()
    {
        for (;;) {
            const uint64_t index = next++;
            if (index >= count || stop)
                return;
            // Shared memory belongs to a thread of the operating system. To ThreadSanitizer it has
            // to be new in every block.
            if (under_thread_sanitizer())
                std::thread([this, index] { one(index); }).join();
            else
                one(index);
        }
    }
};

// Below so many threads of a grid another thread of the operating system costs more than it saves.
constexpr uint64_t WORTH_A_THREAD = 4096;

failure run_grid(const grid &g, bool cooperative, unsigned threads)
{
    grid_run r;
    r.g = g;
    r.count = uint64_t{g.blocks.x} * g.blocks.y * g.blocks.z;
    const uint64_t work = r.count * g.threads.x * g.threads.y * g.threads.z;
    uint64_t wanted =
        cooperative ? r.count : std::min({uint64_t{threads}, r.count, 1 + work / WORTH_A_THREAD});
    std::vector<std::thread> others;
    try {
        while (others.size() + 1 < wanted)
            others.emplace_back([&r] { r.blocks(); });
    } catch (const std::system_error &) { // fewer do as well, unless they wait for each other
        if (cooperative) {
            r.stop = true;
            r.first = {CUDA_ERROR_OUT_OF_MEMORY, "too few threads for a cooperative launch"};
        }
    }
    r.blocks();
    for (std::thread &t : others)
        t.join();
    if (const thread_sanitizer *watching = under_thread_sanitizer())
        watching->acquire(&r.g); // all threads of the grid released it
    return r.first;
}

int blocks_per_multiprocessor(const CUfunc_st *f, unsigned threads, unsigned shared_bytes)
{
    const device_limits &d = driver().devices[static_cast<size_t>(f->module->context->device)];
    const int rounded = static_cast<int>((threads + 31) / 32 * 32);
    const int shared = f->module->shared_static + static_cast<int>(shared_bytes) +
                       (d.cc >= 80 ? SHARED_RESERVED : 0);
    int blocks = std::min(d.blocks_per_sm, d.threads_per_sm / std::max(rounded, 32));
    if (shared > 0)
        blocks = std::min(blocks, d.shared_per_sm / shared);
    return blocks;
}

CUresult check_sizes(const geometry &l)
{
    const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
    if (!l.grid.x || !l.grid.y || !l.grid.z || l.grid.x > 2147483647u || l.grid.y > 65535 ||
        l.grid.z > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads == 0 || threads > 1024 || l.block.z > 64)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult check_cluster(const CUfunc_st *f, const geometry &l)
{
    const device_limits &d = driver().devices[static_cast<size_t>(f->module->context->device)];
    const dim3 &c = l.cluster;
    if (!c.x && !c.y && !c.z)
        return CUDA_SUCCESS;
    if (d.cc < 90)
        return CUDA_ERROR_NOT_SUPPORTED;
    const uint64_t size = uint64_t{c.x} * c.y * c.z;
    if (size == 0 || size > (f->nonportable_cluster ? 16u : 8u) || l.grid.x % c.x ||
        l.grid.y % c.y || l.grid.z % c.z)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

CUresult check_launch(const CUctx_st *context, const CUfunc_st *f, const geometry &l)
{
    CUresult result = check_sizes(l);
    if (result)
        return result;
    if (f->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (l.block.x * l.block.y * l.block.z > max_threads_per_block(f))
        return CUDA_ERROR_INVALID_VALUE;
    if (l.shared_bytes > static_cast<unsigned>(f->shared_dynamic_max))
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = check_cluster(f, l)))
        return result;
    const uint64_t blocks = uint64_t{l.grid.x} * l.grid.y * l.grid.z;
    const unsigned threads = l.block.x * l.block.y * l.block.z;
    if (l.cooperative &&
        blocks > static_cast<uint64_t>(blocks_per_multiprocessor(f, threads, l.shared_bytes)) *
                     MULTIPROCESSORS)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    if (l.programmatic && driver().devices[static_cast<size_t>(context->device)].cc < 90)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

// The parameters as the kernel finds them.
std::shared_ptr<std::vector<uint64_t>> parameter_block(const kernel &k, void **params)
{
    auto block = std::make_shared<std::vector<uint64_t>>(k.parameter_bytes / 8 + 3);
    unsigned char *at = reinterpret_cast<unsigned char *>(block->data());
    for (unsigned i = 0; i < k.parameter_count; i++)
        memcpy(at + k.parameters[i].offset, params[i], k.parameters[i].size);
    return block;
}

// 16 bytes is the largest alignment of a parameter.
const unsigned char *aligned(const std::vector<uint64_t> &block, std::vector<uint64_t> *moved)
{
    if (reinterpret_cast<uintptr_t>(block.data()) % 16 == 0)
        return reinterpret_cast<const unsigned char *>(block.data());
    moved->assign(block.size() + 1, 0);
    const size_t skip = reinterpret_cast<uintptr_t>(moved->data()) % 16 == 0 ? 0 : 1;
    std::copy(block.begin(), block.end() - 1, moved->begin() + static_cast<ptrdiff_t>(skip));
    return reinterpret_cast<const unsigned char *>(moved->data() + skip);
}

CUresult launch(CUfunction f, const geometry &l, CUstream stream, void **params, void **extra)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!f || f->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (extra)
        return not_implemented("the `extra` argument of a launch");
    if ((result = check_launch(c, f, l)))
        return result;
    if (f->code->parameter_count && !params)
        return CUDA_ERROR_INVALID_VALUE;
    auto parameters = parameter_block(*f->code, params);
    grid g{};
    g.code = f->module->object->code;
    g.shared = &f->module->object->shared;
    g.function = f->code;
    g.blocks = l.grid;
    g.threads = l.block;
    g.shared_bytes = l.shared_bytes;
    g.shuffled = driver().shuffled;
    g.seed = driver().seed;
    const unsigned threads = driver().threads;
    return enqueue(
        lock, c, stream,
        [g, parameters, threads, cooperative = l.cooperative,
         object = f->module->object]() mutable {
            std::vector<uint64_t> moved;
            grid ready = g;
            ready.parameters = aligned(*parameters, &moved);
            const failure result = run_grid(ready, cooperative, threads);
            print_show();
            return result;
        },
        nullptr);
}

} // namespace

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                               unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                               void **params, void **extra)
{
    geometry l;
    l.grid = {gx, gy, gz};
    l.block = {bx, by, bz};
    l.shared_bytes = shared_bytes;
    return launch(f, l, stream, params, extra);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params,
                                 void **extra)
{
    geometry l;
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    l.grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
    l.block = {config->blockDimX, config->blockDimY, config->blockDimZ};
    l.shared_bytes = config->sharedMemBytes;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute &a = config->attrs[i];
        switch (a.id) {
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            l.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            l.cooperative = a.value.cooperative != 0;
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            l.programmatic = a.value.programmaticStreamSerializationAllowed != 0;
            break;
        default:
            return not_implemented("this launch attribute");
        }
    }
    return launch(f, l, config->hStream, params, extra);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                            size_t shared_bytes)
{
    locked lock(driver().lock);
    if (!f || f->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = shared_bytes > static_cast<size_t>(f->shared_dynamic_max)
                  ? 0
                  : blocks_per_multiprocessor(f, static_cast<unsigned>(threads),
                                              static_cast<unsigned>(shared_bytes));
    return CUDA_SUCCESS;
}
