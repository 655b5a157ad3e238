// How many blocks of a kernel a device holds.
#include <algorithm>

#include "driver.h"

using namespace fajit_emu;

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f,
                                                                     int threads,
                                                                     size_t shared_bytes,
                                                                     unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!(f = function_of(f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1 || threads > 1024 || flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = shared_bytes > static_cast<size_t>(f->shared_dynamic_max)
                  ? 0
                  : blocks_per_multiprocessor(f, static_cast<unsigned>(threads),
                                              static_cast<unsigned>(shared_bytes));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                            size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared_bytes,
                                                                0);
}

// The block size, a multiple of a warp, with the most threads on a multiprocessor; the largest of
// several.
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *threads, CUfunction f,
                                                          CUoccupancyB2DSize shared_of,
                                                          size_t shared_bytes, int limit,
                                                          unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!(f = function_of(f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid || !threads || limit < 0 || flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    int best = 0;
    *grid = *threads = 0;
    for (int size = limit && limit < 1024 ? limit : 1024; size > 0; size = (size - 1) / 32 * 32) {
        const size_t shared = shared_of ? shared_of(size) : shared_bytes;
        if (shared > static_cast<size_t>(f->shared_dynamic_max))
            continue;
        const int blocks = blocks_per_multiprocessor(f, static_cast<unsigned>(size),
                                                     static_cast<unsigned>(shared));
        if (blocks * size > best) {
            best = blocks * size;
            *grid = blocks * MULTIPROCESSORS;
            *threads = size;
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, CUfunction f,
                                                 CUoccupancyB2DSize shared_of, size_t shared_bytes,
                                                 int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, threads, f, shared_of, shared_bytes,
                                                     limit, 0);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks,
                                                        int threads)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!(f = function_of(f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes || blocks < 1 || threads < 1 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    const device_limits &d = limits_of(c.context);
    if (blocks > blocks_per_multiprocessor(f, static_cast<unsigned>(threads), 0))
        return CUDA_ERROR_INVALID_VALUE;
    const int reserved = d.cc >= 80 ? SHARED_RESERVED : 0;
    const int of_one = d.shared_per_sm / blocks - reserved - f->module->shared_static;
    *bytes = static_cast<size_t>(
        std::max(0, std::min(of_one, d.shared_optin - f->module->shared_static)));
    return CUDA_SUCCESS;
}

// --- clusters ------------------------------------------------------------------------------------

static CUresult cluster_of(const CUlaunchConfig *config, const CUfunc_st *f, int *size)
{
    *size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto &d = config->attrs[i].value.clusterDim;
            if (!d.x || !d.y || !d.z || uint64_t{d.x} * d.y * d.z > 16)
                return CUDA_ERROR_INVALID_CLUSTER_SIZE;
            *size = static_cast<int>(d.x * d.y * d.z);
        }
    return *size > (f->nonportable_cluster ? 16 : 8) ? CUDA_ERROR_INVALID_CLUSTER_SIZE
                                                     : CUDA_SUCCESS;
}

static CUresult cluster_call(api_call &c, CUfunction *f, const CUlaunchConfig *config, int *out)
{
    if (!c.context)
        return c.result;
    if (!(*f = function_of(*f, c.context)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return limits_of(c.context).cc < 90 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f,
                                                   const CUlaunchConfig *config)
{
    api_call c;
    CUresult result = cluster_call(c, &f, config, size);
    if (!result)
        *size = f->nonportable_cluster ? 16 : 8;
    return result;
}

EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f,
                                             const CUlaunchConfig *config)
{
    api_call c;
    int size = 1;
    CUresult result = cluster_call(c, &f, config, clusters);
    if (result || (result = cluster_of(config, f, &size)))
        return result;
    const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads < 1 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    *clusters =
        blocks_per_multiprocessor(f, threads, config->sharedMemBytes) * MULTIPROCESSORS / size;
    return CUDA_SUCCESS;
}
