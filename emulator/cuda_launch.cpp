// Launches: what the driver checks.
#include <algorithm>
#include <cstring>

#include "driver.h"

using namespace fajit_emu;

int fajit_emu::blocks_per_multiprocessor(const CUfunc_st *f, unsigned threads,
                                         unsigned shared_bytes)
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

namespace {

struct geometry {
    dim3 grid, block, cluster{0, 0, 0};
    unsigned shared_bytes = 0;
    bool cooperative = false, programmatic = false;
};

CUresult check_sizes(const geometry &l)
{
    const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
    if (!l.grid.x || !l.grid.y || !l.grid.z || l.grid.x > 2147483647u || l.grid.y > 65535 ||
        l.grid.z > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (l.block.x > 1024 || l.block.y > 1024 || l.block.z > 64 || threads == 0 || threads > 1024)
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

// A block of parameters that the caller made: {POINTER, block, SIZE, &bytes, END}.
CUresult read_extra(void **extra, const kernel &k, const unsigned char **block)
{
    size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *block = static_cast<const unsigned char *>(extra[1]);
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *static_cast<const size_t *>(extra[1]);
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return *block && bytes >= k.parameter_bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The parameters as the kernel finds them, at a multiple of 16, the largest alignment of one.
CUresult read_parameters(const kernel &k, void **params, void **extra, kernel_call *call)
{
    const unsigned char *block = nullptr;
    CUresult result = CUDA_SUCCESS;
    if ((params && extra) || (!params && !extra && k.parameter_count))
        return CUDA_ERROR_INVALID_VALUE;
    if (extra && (result = read_extra(extra, k, &block)))
        return result;
    call->values.resize(k.parameter_bytes / 8 + 3);
    if (reinterpret_cast<uintptr_t>(call->values.data()) % 16)
        call->skip = 1;
    unsigned char *to = reinterpret_cast<unsigned char *>(call->values.data() + call->skip);
    for (unsigned i = 0; i < k.parameter_count; i++) {
        const parameter &p = k.parameters[i];
        const void *from = block ? block + p.offset : params[i];
        if (!from)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(to + p.offset, from, p.size);
        call->pointers.push_back(to + p.offset);
    }
    return CUDA_SUCCESS;
}

void describe(CUfunction f, const geometry &l, kernel_call *call)
{
    CUDA_KERNEL_NODE_PARAMS &p = call->params;
    p.func = f;
    p.gridDimX = l.grid.x;
    p.gridDimY = l.grid.y;
    p.gridDimZ = l.grid.z;
    p.blockDimX = l.block.x;
    p.blockDimY = l.block.y;
    p.blockDimZ = l.block.z;
    p.sharedMemBytes = l.shared_bytes;
    p.kernelParams = call->pointers.data();
    p.ctx = f->module->context;
}

CUresult launch(CUfunction f, const geometry &l, CUstream stream, void **params, void **extra)
{
    // Blocks of a multiprocessor that take part in programmatic dependent launch; every one that
    // waits costs a thread of the operating system.
    constexpr int RESIDENT = 2;
    api_call c;
    if (!c.context)
        return c.result;
    if (!(f = function_of(f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((c.result = check_launch(c.context, f, l)))
        return c.result;
    auto call = std::make_shared<kernel_call>();
    if ((c.result = read_parameters(*f->code, params, extra, call.get())))
        return c.result;
    describe(f, l, call.get());
    grid g{};
    g.code = f->module->object->code;
    g.shared = &f->module->object->shared;
    g.function = f->code;
    g.parameters = reinterpret_cast<const unsigned char *>(call->values.data() + call->skip);
    g.blocks = l.grid;
    g.threads = l.block;
    g.shared_bytes = l.shared_bytes;
    g.shuffled = driver().shuffled;
    g.seed = driver().seed;
    const int resident =
        blocks_per_multiprocessor(f, l.block.x * l.block.y * l.block.z, l.shared_bytes);
    job what;
    what.type = CU_GRAPH_NODE_TYPE_KERNEL;
    what.programmatic = l.programmatic;
    what.call = call;
    what.run = [g, call, threads = driver().threads, cooperative = l.cooperative,
                wave = static_cast<unsigned>(MULTIPROCESSORS * std::clamp(resident, 1, RESIDENT)),
                object = f->module->object](operation &self) {
        return grid_execute(g, self, cooperative, threads, wave);
    };
    return enqueue(c.context, stream, std::move(what), nullptr);
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

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                          unsigned bx, unsigned by, unsigned bz,
                                          unsigned shared_bytes, CUstream stream, void **params)
{
    geometry l;
    l.grid = {gx, gy, gz};
    l.block = {bx, by, bz};
    l.shared_bytes = shared_bytes;
    l.cooperative = true;
    return launch(f, l, stream, params, nullptr);
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
        case CU_LAUNCH_ATTRIBUTE_PRIORITY: // these are about speed
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
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

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(c.context, stream,
                   {[function, argument](operation &) {
                        inside_host_function(true);
                        function(argument);
                        inside_host_function(false);
                        return failure{};
                    },
                    CU_GRAPH_NODE_TYPE_HOST},
                   nullptr);
}
