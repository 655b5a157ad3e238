/* The CUDA driver for programs around the library. See gpu.h. */
#include "gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(member, exported name, parameters). Exported names are written out because those that cuda.h
 * maps its functions to depend on the toolkit this is built with, and older drivers lack the newest
 * ones. */
#define FUNCTIONS(X)                                                                               \
    X(init, "cuInit", (unsigned))                                                                  \
    X(error_name, "cuGetErrorName", (CUresult, const char **))                                     \
    X(error_text, "cuGetErrorString", (CUresult, const char **))                                   \
    X(device_count, "cuDeviceGetCount", (int *))                                                   \
    X(device_get, "cuDeviceGet", (CUdevice *, int))                                                \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                         \
    X(set_current, "cuCtxSetCurrent", (CUcontext))                                                 \
    X(mem_alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                         \
    X(mem_free, "cuMemFree_v2", (CUdeviceptr))                                                     \
    X(copy_to_device, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                      \
    X(copy_to_host, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                              \
    X(copy_async, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))            \
    X(fill, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t))                                 \
    X(stream_create, "cuStreamCreate", (CUstream *, unsigned))                                     \
    X(stream_destroy, "cuStreamDestroy_v2", (CUstream))                                            \
    X(stream_synchronize, "cuStreamSynchronize", (CUstream))                                       \
    X(event_create, "cuEventCreate", (CUevent *, unsigned))                                        \
    X(event_destroy, "cuEventDestroy_v2", (CUevent))                                               \
    X(event_record, "cuEventRecord", (CUevent, CUstream))                                          \
    X(event_synchronize, "cuEventSynchronize", (CUevent))                                          \
    X(event_elapsed, "cuEventElapsedTime", (float *, CUevent, CUevent))                            \
    X(capture_begin, "cuStreamBeginCapture_v2", (CUstream, CUstreamCaptureMode))                   \
    X(capture_end, "cuStreamEndCapture", (CUstream, CUgraph *))                                    \
    X(graph_destroy, "cuGraphDestroy", (CUgraph))                                                  \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (CUgraphExec *, CUgraph, unsigned long long))                                                \
    X(graph_launch, "cuGraphLaunch", (CUgraphExec, CUstream))                                      \
    X(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec))

static struct {
    void *library;
#define MEMBER(member, name, parameters) CUresult(*member) parameters;
    FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

static _Thread_local char message[1024];
static void (*tell_failure)(const char *message);

static const char *describe(const char *call, CUresult result)
{
    const char *name = NULL, *text = NULL;
    cu.error_name(result, &name);
    cu.error_text(result, &text);
    snprintf(message, sizeof message, "%s failed: %s (%d): %s", call, name ? name : "unknown error",
             (int)result, text ? text : "the driver has no text for it");
    return message;
}

static void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    if (tell_failure)
        tell_failure(describe(call, result));
    else
        fprintf(stderr, "gpu: %s\n", describe(call, result));
    exit(1);
}

void gpu_tell_failures(void (*tell)(const char *message))
{
    tell_failure = tell;
}

/* --- opening --- */

static bool open_library(void)
{
    const char *named = getenv("FAJIT_CUDA_LIBRARY");
    if (named && *named) {
        cu.library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!cu.library)
            snprintf(message, sizeof message, "FAJIT_CUDA_LIBRARY=%s cannot be opened: %s", named,
                     dlerror());
        return cu.library != NULL;
    }
    cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cu.library) {
        snprintf(message, sizeof message, "no CUDA driver: %s", dlerror());
        cu.library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);
    }
    return cu.library != NULL;
}

static bool load_functions(void)
{
    const struct {
        const char *name;
        void *slot;
    } table[] = {
#define ENTRY(member, name, parameters) {name, &cu.member},
        FUNCTIONS(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *symbol = dlsym(cu.library, table[i].name);
        if (!symbol) {
            snprintf(message, sizeof message, "the CUDA driver lacks %s: install a newer driver",
                     table[i].name);
            return false;
        }
        memcpy(table[i].slot, &symbol, sizeof symbol);
    }
    return true;
}

/* Library, functions and cuInit, once; false leaves the reason in `message`. */
static bool open_driver(void)
{
    static bool ready;
    if (ready)
        return true;
    if (!open_library() || !load_functions())
        return false;
    CUresult result = cu.init(0);
    if (result != CUDA_SUCCESS) {
        describe("cuInit", result);
        return false;
    }
    ready = true;
    return true;
}

int gpu_device_count(void)
{
    int count = 0;
    if (!open_driver() || cu.device_count(&count) != CUDA_SUCCESS)
        return 0;
    return count;
}

bool gpu_open(int device, const char **why)
{
    CUdevice handle;
    CUcontext context;
    CUresult result = CUDA_SUCCESS;
    const char *call = "cuDeviceGet";
    if (why)
        *why = message;
    if (!open_driver())
        return false;
    int count = gpu_device_count();
    if (device < 0 || device >= count) {
        snprintf(message, sizeof message, "there is no CUDA device %d (devices: %d)", device,
                 count);
        return false;
    }
    result = cu.device_get(&handle, device);
    if (result == CUDA_SUCCESS) {
        call = "cuDevicePrimaryCtxRetain";
        result = cu.primary_retain(&context, handle);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuCtxSetCurrent";
        result = cu.set_current(context);
    }
    if (result != CUDA_SUCCESS)
        describe(call, result);
    return result == CUDA_SUCCESS;
}

/* --- memory --- */

void *gpu_alloc(size_t bytes)
{
    CUdeviceptr memory = 0;
    /* The driver refuses 0 bytes; callers need not care. */
    check("cuMemAlloc", cu.mem_alloc(&memory, bytes ? bytes : 1));
    return (void *)(uintptr_t)memory;
}

void gpu_free(void *memory)
{
    if (memory)
        check("cuMemFree", cu.mem_free((CUdeviceptr)(uintptr_t)memory));
}

/* Small copies and fills may still be on their way when the driver returns, and streams made here
 * do not wait for the default stream: hence the waits. */
void gpu_upload(void *device, const void *host, size_t bytes)
{
    if (bytes == 0)
        return;
    check("cuMemcpyHtoD", cu.copy_to_device((CUdeviceptr)(uintptr_t)device, host, bytes));
    check("cuStreamSynchronize", cu.stream_synchronize(NULL));
}

void gpu_download(void *host, const void *device, size_t bytes)
{
    if (bytes > 0)
        check("cuMemcpyDtoH", cu.copy_to_host(host, (CUdeviceptr)(uintptr_t)device, bytes));
}

void gpu_fill(void *device, unsigned char value, size_t bytes)
{
    if (bytes == 0)
        return;
    check("cuMemsetD8", cu.fill((CUdeviceptr)(uintptr_t)device, value, bytes));
    check("cuStreamSynchronize", cu.stream_synchronize(NULL));
}

void gpu_copy(void *to, const void *from, size_t bytes, gpu_stream stream)
{
    if (bytes > 0)
        check("cuMemcpyDtoDAsync", cu.copy_async((CUdeviceptr)(uintptr_t)to,
                                                 (CUdeviceptr)(uintptr_t)from, bytes, stream));
}

/* --- streams and events --- */

gpu_stream gpu_stream_create(void)
{
    CUstream stream = NULL;
    check("cuStreamCreate", cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void gpu_stream_destroy(gpu_stream stream)
{
    if (stream)
        check("cuStreamDestroy", cu.stream_destroy(stream));
}

bool gpu_synchronize(gpu_stream stream, const char **why)
{
    CUresult result = cu.stream_synchronize(stream);
    if (!why)
        check("cuStreamSynchronize", result);
    else if (result != CUDA_SUCCESS)
        *why = describe("cuStreamSynchronize", result);
    return result == CUDA_SUCCESS;
}

gpu_event gpu_event_create(void)
{
    CUevent event = NULL;
    check("cuEventCreate", cu.event_create(&event, CU_EVENT_DEFAULT));
    return event;
}

void gpu_event_destroy(gpu_event event)
{
    if (event)
        check("cuEventDestroy", cu.event_destroy(event));
}

void gpu_event_record(gpu_event event, gpu_stream stream)
{
    check("cuEventRecord", cu.event_record(event, stream));
}

float gpu_event_elapsed_ms(gpu_event begin, gpu_event end)
{
    float ms = 0.0f;
    check("cuEventSynchronize", cu.event_synchronize(end));
    check("cuEventElapsedTime", cu.event_elapsed(&ms, begin, end));
    return ms;
}

/* --- graphs --- */

void gpu_capture_begin(gpu_stream stream)
{
    /* The strictest mode: it also catches unsafe calls made by other threads. */
    check("cuStreamBeginCapture", cu.capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

gpu_graph gpu_capture_end(gpu_stream stream)
{
    CUgraph graph = NULL;
    CUgraphExec ready = NULL;
    CUresult result = cu.capture_end(stream, &graph);
    if (result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        return NULL;
    check("cuStreamEndCapture", result);
    check("cuGraphInstantiateWithFlags", cu.graph_instantiate(&ready, graph, 0));
    check("cuGraphDestroy", cu.graph_destroy(graph));
    return ready;
}

void gpu_graph_launch(gpu_graph graph, gpu_stream stream)
{
    check("cuGraphLaunch", cu.graph_launch(graph, stream));
}

void gpu_graph_destroy(gpu_graph graph)
{
    if (graph)
        check("cuGraphExecDestroy", cu.graph_exec_destroy(graph));
}

void *gpu_symbol(const char *name)
{
    return cu.library ? dlsym(cu.library, name) : NULL;
}
