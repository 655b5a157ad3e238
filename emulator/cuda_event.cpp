// Events.
#include "driver.h"

using namespace fajit_emu;

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!event || flags & ~7u ||
        (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS)
        return not_implemented("events for several processes");
    CUevent e = new CUevent_st{};
    e->context = c.context;
    e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    driver().handles[e] = handle::EVENT;
    *event = e;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    locked lock(driver().lock);
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    driver().handles.erase(event);
    delete event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(event) || event->context != c.context)
        return CUDA_ERROR_INVALID_HANDLE;
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) {
        if (s->capture->broken)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (flags & CU_EVENT_RECORD_EXTERNAL)
            return not_implemented("event nodes of graphs");
        event->capture = s->capture;
        event->frontier = s->frontier;
        event->at = nullptr;
        return CUDA_SUCCESS;
    }
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    pending p;
    if ((c.result = enqueue(c.context, stream, marker(), &p)))
        return c.result;
    event->capture = nullptr;
    event->frontier.clear();
    event->at = p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return cuEventRecordWithFlags(event, stream, 0);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture)
        return break_capture(event->capture, CUDA_ERROR_CAPTURED_EVENT);
    if ((result = check_capture()))
        return result;
    const pending at = event->at;
    return at ? wait_for(lock, at) : CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    locked lock(driver().lock);
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture)
        return break_capture(event->capture, CUDA_ERROR_CAPTURED_EVENT);
    if (!event->at || event->at->done)
        return static_cast<CUresult>(event->context->broken.error);
    event->at->awaited = true;
    driver().changed.notify_all();
    return CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    locked lock(driver().lock);
    if (!valid(begin) || !valid(end) || begin->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    if (begin->capture || end->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!begin->at || !end->at || !begin->timing || !end->timing)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!begin->at->done || !end->at->done)
        return CUDA_ERROR_NOT_READY;
    if (end->context->broken.error)
        return static_cast<CUresult>(end->context->broken.error);
    *ms = static_cast<float>(static_cast<double>(end->at->done_ns - begin->at->done_ns) * 1e-6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent begin, CUevent end)
{
    return cuEventElapsedTime(ms, begin, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & CU_EVENT_WAIT_EXTERNAL)
        return s->capture ? not_implemented("event nodes of graphs") : CUDA_ERROR_INVALID_VALUE;
    if (s->capture || event->capture)
        return capture_wait(s, event);
    if (s == c.context->legacy && (c.result = check_implicit(c.context)))
        return c.result;
    if (!event->at || event->at->done)
        return CUDA_SUCCESS;
    event->at->awaited = true;
    append(s, marker())->after.push_back(event->at);
    return CUDA_SUCCESS;
}
