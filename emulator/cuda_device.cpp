// Devices.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "driver.h"

namespace fajit_emu {

// Made when the library is loaded: ThreadSanitizer sees no order in what is made when first needed.
static driver_state &state = *new driver_state;

driver_state &driver()
{
    return state;
}

namespace {

const device_limits known_devices[] = {
    {75, 65536, 65536, 1024, 16},    {80, 167936, 166912, 2048, 32},
    {86, 102400, 101376, 1536, 16},  {87, 167936, 166912, 1536, 16},
    {89, 102400, 101376, 1536, 24},  {90, 233472, 232448, 2048, 32},
    {100, 233472, 232448, 2048, 32}, {103, 233472, 232448, 2048, 32},
    {120, 102400, 101376, 1536, 24}, {121, 102400, 101376, 1536, 24}};

bool number(const char *variable, unsigned long smallest, unsigned long largest, unsigned long *out)
{
    const char *text = getenv(variable);
    if (!text || !*text)
        return true;
    char *end = nullptr;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || *text == '-' || value < smallest || value > largest) {
        explain_unsupported(std::string(variable) + "=" + text + ": a number from " +
                            std::to_string(smallest) + " to " + std::to_string(largest) +
                            " is needed");
        return false;
    }
    *out = value;
    return true;
}

const device_limits *device_of_environment()
{
    const char *text = getenv("FAJIT_EMU_ARCH");
    int major = 9, minor = 0, used = 0;
    if (text && *text &&
        (sscanf(text, "%d.%d%n", &major, &minor, &used) != 2 || text[used] != '\0' || minor > 9))
        major = -1;
    for (const device_limits &d : known_devices)
        if (major >= 0 && d.cc == major * 10 + minor)
            return &d;
    explain_unsupported(std::string("emulator does not implement FAJIT_EMU_ARCH=") + text +
                        "; it has 7.5, 8.0, 8.6, 8.7, 8.9, 9.0, 10.0, 10.3, 12.0 and 12.1");
    return nullptr;
}

bool initialize()
{
    unsigned long count = 1, threads = std::thread::hardware_concurrency(), seed = 0;
    const char *seeded = getenv("FAJIT_EMU_SEED");
    const device_limits *device = device_of_environment();
    if (!device || !number("FAJIT_EMU_DEVICES", 0, 64, &count) ||
        !number("FAJIT_EMU_THREADS", 1, 1024, &threads) ||
        !number("FAJIT_EMU_SEED", 0, ~0ul, &seed))
        return false;
    driver_state &d = driver();
    d.devices.assign(count, *device);
    d.threads = threads ? static_cast<unsigned>(threads) : 1;
    d.shuffled = seeded && *seeded;
    d.seed = seed;
    // As with the driver, a child has none: the threads of this one stay behind.
    pthread_atfork([] { driver().lock.lock(); }, [] { driver().lock.unlock(); },
                   [] {
                       driver().initialized = false;
                       driver().in_child = true;
                       driver().lock.unlock();
                   });
    d.initialized = true;
    return true;
}

} // namespace

CUresult check_device(CUdevice device)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && static_cast<size_t>(device) < driver().devices.size()
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
}

const device_limits &limits_of(const CUctx_st *context)
{
    return driver().devices[context ? static_cast<size_t>(context->device) : 0];
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- initialization, errors ----------------------------------------------------------------------

EXPORT CUresult cuInit(unsigned flags)
{
    locked lock(driver().lock);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (driver().in_child)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!driver().initialized && !initialize())
        return CUDA_ERROR_NOT_SUPPORTED;
    return driver().devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}

// --- devices -------------------------------------------------------------------------------------

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver().devices.size());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = check_device(ordinal);
    if (!result && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *device = ordinal;
    return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    CUresult result = check_device(device);
    if (!result && (!name || size < 1))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        snprintf(name, static_cast<size_t>(size), "emulated on the CPU");
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = check_device(device);
    if (!result && !bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *bytes = DEVICE_MEMORY;
    return result;
}

// The same on every device.
static const struct {
    CUdevice_attribute attribute;
    int value;
} common_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_WITHOUT_OPTIN},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 0},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 0},
    {CU_DEVICE_ATTRIBUTE_TCC_DRIVER, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0},
#if CUDA_VERSION >= 12010
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0},
#endif
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0},
};

static bool attribute_value(int device, CUdevice_attribute attribute, int *value)
{
    const device_limits &d = driver().devices[static_cast<size_t>(device)];
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = d.cc / 10;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = d.cc % 10;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = d.shared_optin;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = d.shared_per_sm;
        return true;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        *value = d.cc >= 80 ? SHARED_RESERVED : 0;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = d.threads_per_sm;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        *value = d.blocks_per_sm;
        return true;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
        *value = d.cc >= 90;
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = device + 1;
        return true;
    default:
        for (const auto &common : common_attributes)
            if (common.attribute == attribute) {
                *value = common.value;
                return true;
            }
        return false;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult result = check_device(device);
    if (result)
        return result;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_value(device, attribute, value) ? CUDA_SUCCESS
                                                     : not_implemented("this device attribute");
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = check_device(device);
    if (!result && (!major || !minor))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *major = driver().devices[static_cast<size_t>(device)].cc / 10;
        *minor = driver().devices[static_cast<size_t>(device)].cc % 10;
    }
    return result;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = check_device(device);
    if (!result && !uuid)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        memcpy(uuid->bytes, "fajit emulator", 14);
        uuid->bytes[14] = 0;
        uuid->bytes[15] = static_cast<char>(device);
    }
    return result;
}

#undef cuDeviceGetUuid
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
    CUresult result = check_device(device);
    if (!result && (!id || size < 1))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        snprintf(id, static_cast<size_t>(size), "0000:%02X:00.0",
                 static_cast<unsigned>(device + 1));
    return result;
}

// Devices do not see each other's memory.
EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = check_device(device);
    if (!result)
        result = check_device(peer);
    if (!result && !can)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *can = 0;
    return result;
}
