/* The part of the look-alike of libcuda that only tools/gpu.c calls: memory is the host's, copies are
 * made at once, events and graphs keep nothing. So the tool's commands run to their end, on kernels
 * that compute nothing. */
#include <cuda.h>

#include <stdlib.h>
#include <string.h>

#include "fake_core.h"

#undef cuEventElapsedTime /* newer cuda.h map it to another version */

/* Handles without content. */
static char an_event, a_graph, an_executable;

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    fake_control_get()->context_set_current(context);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes)
{
    void *host = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    *memory = (CUdeviceptr)host;
    return host ? CUDA_SUCCESS : bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr memory)
{
    free((void *)memory);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                          CUstream stream)
{
    (void)stream;
    memmove((void *)to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr memory, unsigned char value, size_t bytes)
{
    memset((void *)memory, value, bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = fake_control_get()->stream_create(NULL);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    fake_control_get()->stream_destroy(stream);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = (CUevent)&an_event;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    return event == (CUevent)&an_event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    return event == (CUevent)&an_event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuEventSynchronize(CUevent event)
{
    return event == (CUevent)&an_event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    (void)begin;
    (void)end;
    *ms = 1;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    fake_control_get()->capture_begin(stream);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    bool valid = fake_control_get()->capture_end(stream);
    *graph = valid ? (CUgraph)&a_graph : NULL;
    return valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

FAKE_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    return graph == (CUgraph)&a_graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                                 unsigned long long flags)
{
    (void)flags;
    *executable = (CUgraphExec)&an_executable;
    return graph == (CUgraph)&a_graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    (void)stream;
    return executable == (CUgraphExec)&an_executable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    return executable == (CUgraphExec)&an_executable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
