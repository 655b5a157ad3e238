// Names and texts of errors.
#include "driver.h"

namespace fajit_emu {

namespace {

thread_local std::string unsupported, text_for_caller;

// What kernels said last, of any thread; never destroyed.
struct last_failure {
    std::mutex lock;
    int error = 0;
    std::string what;
};
last_failure &failures = *new last_failure;

} // namespace

void explain_unsupported(const std::string &text)
{
    unsupported = text;
}

CUresult not_implemented(const char *what)
{
    unsupported = std::string("emulator does not implement ") + what;
    return CUDA_ERROR_NOT_SUPPORTED;
}

void remember_failure(int error, const std::string &what)
{
    std::lock_guard<std::mutex> hold(failures.lock);
    failures.error = error;
    failures.what = what;
}

} // namespace fajit_emu

using namespace fajit_emu;

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
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                            \
    X(CUDA_ERROR_FILE_NOT_FOUND, "file not found")                                                 \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                       \
      "part or all of the requested memory range is not mapped")                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")               \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                         \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")                      \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process")      \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would merge two capture sequences")              \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                    \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,                                                         \
      "dependency created on uncaptured work in another stream")                                   \
    X(CUDA_ERROR_CAPTURED_EVENT,                                                                   \
      "operation not permitted on an event last recorded in a capturing stream")                   \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
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
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = plain_text(error);
    if (!*text)
        return CUDA_ERROR_INVALID_VALUE;
    std::string more;
    if (error == CUDA_ERROR_NOT_SUPPORTED) {
        more = unsupported;
    } else {
        std::lock_guard<std::mutex> hold(failures.lock);
        if (failures.error == static_cast<int>(error))
            more = failures.what;
    }
    if (error != CUDA_SUCCESS && !more.empty()) {
        text_for_caller = std::string(*text) + ": " + more;
        *text = text_for_caller.c_str();
    }
    return CUDA_SUCCESS;
}
