// Errors, devices and contexts.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "driver.h"

namespace fajit_emu {

driver_state &driver()
{
    static driver_state *state = new driver_state;
    return *state;
}

namespace {

thread_local std::vector<CUctx_st *> stack;
thread_local std::string unsupported, text_for_caller;

const device_limits known_devices[] = {
    {75, 65536, 65536, 1024, 16},    {80, 167936, 166912, 2048, 32},
    {86, 102400, 101376, 1536, 16},  {87, 167936, 166912, 1536, 16},
    {89, 102400, 101376, 1536, 24},  {90, 233472, 232448, 2048, 32},
    {100, 233472, 232448, 2048, 32}, {103, 233472, 232448, 2048, 32},
    {120, 102400, 101376, 1536, 24}, {121, 102400, 101376, 1536, 24}};

// What kernels said last, of any thread; never destroyed.
struct last_failure {
    std::mutex lock;
    int error = 0;
    std::string what;
};
last_failure &failures()
{
    static last_failure *last = new last_failure;
    return *last;
}

bool number(const char *variable, unsigned long smallest, unsigned long largest, unsigned long *out)
{
    const char *text = getenv(variable);
    if (!text || !*text)
        return true;
    char *end = nullptr;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || *text == '-' || value < smallest || value > largest) {
        unsupported = std::string(variable) + "=" + text + ": a number from " +
                      std::to_string(smallest) + " to " + std::to_string(largest) + " is needed";
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
    unsupported = std::string("emulator does not implement FAJIT_EMU_ARCH=") + text +
                  "; it has 7.5, 8.0, 8.6, 8.7, 8.9, 9.0, 10.0, 10.3, 12.0 and 12.1";
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
    d.initialized = true;
    return true;
}

CUctx_st *context_new(int device, bool primary)
{
    CUctx_st *c = new CUctx_st{};
    c->magic = CONTEXT_MAGIC;
    c->device = device;
    c->primary = primary;
    c->legacy = stream_new(c, true);
    return c;
}

// Under the lock.
void context_delete(locked &lock, CUctx_st *c)
{
    for (CUstream s : std::vector<CUstream>(c->streams))
        wait_for_stream(lock, s);
    for (CUstream s : std::vector<CUstream>(c->streams))
        stream_delete(lock, s);
    c->magic = 0; // the memory stays: a stale handle must be recognized
    c->legacy = nullptr;
}

CUresult check_device(CUdevice device)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && static_cast<size_t>(device) < driver().devices.size()
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
}

} // namespace

CUresult not_implemented(const char *what)
{
    unsupported = std::string("emulator does not implement ") + what;
    return CUDA_ERROR_NOT_SUPPORTED;
}

void remember_failure(int error, const std::string &what)
{
    std::lock_guard<std::mutex> hold(failures().lock);
    failures().error = error;
    failures().what = what;
}

CUctx_st *current_context(CUresult *result)
{
    if (!driver().initialized) {
        *result = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    CUctx_st *c = stack.empty() ? nullptr : stack.back();
    *result = !c         ? CUDA_ERROR_INVALID_CONTEXT
              : valid(c) ? static_cast<CUresult>(c->broken.error)
                         : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return *result ? nullptr : c;
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- initialization, errors ----------------------------------------------------------------------

EXPORT CUresult cuInit(unsigned flags)
{
    locked lock(driver().lock);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
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

#define ERRORS(X)                                                                                  \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")    \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")          \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                     \
    X(CUDA_ERROR_ASSERT, "device-side assert triggered")                                           \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                    \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                         \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                      \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")            \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                       \
      "operation failed due to a previous error during capture")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                          \
      "operation would make the legacy stream depend on a capturing blocking stream")              \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,                                                      \
      "attempt to terminate a thread-local capture sequence from another thread")                  \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration")                                 \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    switch (error) {
#define NAME(CODE, TEXT)                                                                           \
    case CODE:                                                                                     \
        *name = #CODE;                                                                             \
        return CUDA_SUCCESS;
        ERRORS(NAME)
#undef NAME
    default:
        *name = nullptr;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static const char *plain_text(CUresult error)
{
    switch (error) {
#define TEXT_OF(CODE, TEXT)                                                                        \
    case CODE:                                                                                     \
        return TEXT;
        ERRORS(TEXT_OF)
#undef TEXT_OF
    default:
        return nullptr;
    }
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = plain_text(error);
    if (!*text)
        return CUDA_ERROR_INVALID_VALUE;
    std::string more;
    if (error == CUDA_ERROR_NOT_SUPPORTED) {
        more = unsupported;
    } else {
        std::lock_guard<std::mutex> hold(failures().lock);
        if (failures().error == static_cast<int>(error))
            more = failures().what;
    }
    if (error != CUDA_SUCCESS && !more.empty()) {
        text_for_caller = std::string(*text) + ": " + more;
        *text = text_for_caller.c_str();
    }
    return CUDA_SUCCESS;
}

// --- devices -------------------------------------------------------------------------------------

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = static_cast<int>(driver().devices.size());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = check_device(ordinal);
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
    if (!result)
        *bytes = DEVICE_MEMORY;
    return result;
}

static bool attribute_value(const device_limits &d, CUdevice_attribute attribute, int *value)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = d.cc / 10;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = d.cc % 10;
        return true;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = MULTIPROCESSORS;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = d.shared_optin;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = SHARED_WITHOUT_OPTIN;
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
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        *value = 1024;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        *value = 64;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        *value = 2147483647;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        *value = 65535;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        *value = 65536;
        return true;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        *value = 1;
        return true;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        *value = d.cc >= 90;
        return true;
    default:
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
    return attribute_value(driver().devices[static_cast<size_t>(device)], attribute, value)
               ? CUDA_SUCCESS
               : not_implemented("this device attribute");
}

// --- contexts ------------------------------------------------------------------------------------

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    CUctx_st *&c = driver().primary[device];
    if (!c || !valid(c))
        c = context_new(device, true);
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
    CUctx_st *c = driver().primary[device];
    if (!valid(c) || c->retains == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--c->retains == 0)
        context_delete(lock, c);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice device)
{
    locked lock(driver().lock);
    CUresult result = check_device(device);
    if (result)
        return result;
    *context = context_new(device, false);
    stack.push_back(*context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    locked lock(driver().lock);
    if (!valid(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_delete(lock, context);
    if (!stack.empty() && stack.back() == context)
        stack.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *context = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
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

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (c)
        *device = c->device;
    return result;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (stack.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize()
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if ((result = check_capture()))
        return result;
    for (CUstream s : std::vector<CUstream>(c->streams))
        if ((result = wait_for_stream(lock, s)))
            return result;
    return CUDA_SUCCESS;
}
