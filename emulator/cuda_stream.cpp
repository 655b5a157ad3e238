// Streams, events, capture and graphs.
#include <time.h>

#include <algorithm>
#include <thread>

#include "driver.h"

namespace fajit_emu {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t this_thread()
{
    static std::atomic<uint64_t> next{1};
    static thread_local uint64_t mine = next++;
    return mine;
}

bool stream_valid(const CUstream_st *s)
{
    return s && s->magic == STREAM_MAGIC;
}

// Under the lock, which it gives up while the work runs.
void perform(locked &lock, const pending &p)
{
    driver().changed.wait(lock, [&] {
        return std::all_of(p->after.begin(), p->after.end(),
                           [](const pending &before) { return before->done; });
    });
    if (!p->context->broken.error) {
        lock.unlock();
        failure f = p->run();
        lock.lock();
        if (f.error && !p->context->broken.error) {
            p->context->broken = f;
            remember_failure(f.error, f.what);
        }
    }
    work finished;
    std::swap(finished, p->run);
    p->after.clear();
    lock.unlock();
    finished = nullptr; // may unload a module
    lock.lock();
    p->done = true;
    p->done_ns = now_ns();
    driver().changed.notify_all();
}

// Serves one stream until it is destroyed and empty.
void worker(CUstream s)
{
    locked lock(driver().lock);
    for (;;) {
        driver().changed.wait(lock, [&] { return !s->queue.empty() || s->closing; });
        if (s->queue.empty())
            break;
        pending p = s->queue.front();
        perform(lock, p);
        s->queue.pop_front();
    }
    lock.unlock();
    delete s;
}

void break_capture(CUstream s)
{
    s->capture_broken = true;
}

// May this thread call what a capture on s forbids?
bool forbids(const CUstream_st *s)
{
    const bool own = s->capture_thread == this_thread();
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        s->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return own || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                   s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

// The default stream would wait for a stream that is captured.
CUresult check_implicit(CUctx_st *context)
{
    CUresult result = CUDA_SUCCESS;
    for (CUstream s : driver().capturing)
        if (s->context == context && s->blocking) {
            break_capture(s);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

CUresult capture(CUstream s, work run)
{
    if (s->capture_broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    s->capture->nodes.push_back(std::move(run));
    return CUDA_SUCCESS;
}

} // namespace

int64_t now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

CUresult check_capture()
{
    CUresult result = CUDA_SUCCESS;
    for (CUstream s : driver().capturing)
        if (forbids(s)) {
            break_capture(s);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

CUstream stream_new(CUctx_st *context, bool blocking)
{
    CUstream s = new CUstream_st{};
    s->magic = STREAM_MAGIC;
    s->context = context;
    s->blocking = blocking;
    context->streams.push_back(s);
    return s;
}

void stream_delete(locked &, CUstream s)
{
    auto &all = s->context->streams;
    all.erase(std::remove(all.begin(), all.end(), s), all.end());
    auto &capturing = driver().capturing;
    capturing.erase(std::remove(capturing.begin(), capturing.end(), s), capturing.end());
    delete s->capture;
    s->capture = nullptr;
    s->magic = 0;
    s->closing = true;
    if (s->has_worker)
        driver().changed.notify_all();
    else
        delete s;
}

CUstream stream_of(CUctx_st *context, CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY)
        return context->legacy;
    if (stream == CU_STREAM_PER_THREAD)
        return nullptr;
    return stream_valid(stream) && stream->context == context ? stream : nullptr;
}

CUresult enqueue(locked &, CUctx_st *context, CUstream stream, work run, pending *out)
{
    CUstream s = stream_of(context, stream);
    CUresult result = CUDA_SUCCESS;
    if (!s)
        return stream == CU_STREAM_PER_THREAD ? not_implemented("the per-thread default stream")
                                              : CUDA_ERROR_INVALID_HANDLE;
    if (s->capture)
        return out ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture(s, std::move(run));
    if (s == context->legacy && (result = check_implicit(context)))
        return result;
    pending p = std::make_shared<operation>();
    p->run = std::move(run);
    p->context = context;
    if (s == context->legacy) {
        for (CUstream other : context->streams)
            if (other != s && other->blocking && other->last)
                p->after.push_back(other->last);
    } else if (s->blocking && context->legacy->last) {
        p->after.push_back(context->legacy->last);
    }
    s->queue.push_back(p);
    s->last = p;
    if (!s->has_worker) {
        s->has_worker = true;
        std::thread(worker, s).detach();
    }
    driver().changed.notify_all();
    if (out)
        *out = p;
    return CUDA_SUCCESS;
}

CUresult wait_for(locked &lock, const pending &p)
{
    driver().changed.wait(lock, [&] { return p->done; });
    return static_cast<CUresult>(p->context->broken.error);
}

CUresult wait_for_stream(locked &lock, CUstream s)
{
    const pending last = s->last;
    return last ? wait_for(lock, last) : CUDA_SUCCESS;
}

void wait_for_all(locked &lock)
{
    std::vector<pending> all;
    for (auto &c : driver().primary)
        if (valid(c.second))
            for (CUstream s : c.second->streams)
                if (s->last)
                    all.push_back(s->last);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *current = current_context(&result);
    if (current)
        for (CUstream s : current->streams)
            if (s->last)
                all.push_back(s->last);
    for (const pending &p : all)
        driver().changed.wait(lock, [&] { return p->done; });
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- streams -------------------------------------------------------------------------------------

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!stream || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = stream_new(c, flags != CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    locked lock(driver().lock);
    if (!stream_valid(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    stream_delete(lock, stream); // what is queued still runs
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (stream_valid(stream > CU_STREAM_PER_THREAD ? stream : nullptr)) {
        *context = stream->context;
        return CUDA_SUCCESS;
    }
    if (stream > CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = current_context(&result);
    return result;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    CUstream s = stream_of(
        stream_valid(stream > CU_STREAM_PER_THREAD ? stream : nullptr) ? stream->context : c,
        stream);
    if (!s)
        return stream == CU_STREAM_PER_THREAD ? not_implemented("the per-thread default stream")
                                              : CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) {
        break_capture(s);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if ((result = check_capture()))
        return result;
    if (s != s->context->legacy)
        return wait_for_stream(lock, s);
    pending p;
    if ((result = enqueue(
             lock, s->context, nullptr, [] { return failure{}; }, &p)))
        return result;
    return wait_for(lock, p);
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    CUstream s = stream_of(c, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    return s->last && !s->last->done ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

// --- events --------------------------------------------------------------------------------------

static bool event_valid(const CUevent_st *e)
{
    return e && e->magic == EVENT_MAGIC;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (flags & ~3u)
        return not_implemented("events of this kind");
    *event = new CUevent_st{};
    (*event)->magic = EVENT_MAGIC;
    (*event)->context = c;
    (*event)->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    locked lock(driver().lock);
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    event->magic = 0;
    delete event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!event_valid(event) || event->context != c)
        return CUDA_ERROR_INVALID_HANDLE;
    CUstream s = stream_of(c, stream);
    if (s && s->capture)
        return not_implemented("events in a capture");
    pending p;
    result = enqueue(
        lock, c, stream, [] { return failure{}; }, &p);
    if (result)
        return result;
    event->recorded = true;
    event->at = p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((result = check_capture()))
        return result;
    const pending at = event->at;
    return at ? wait_for(lock, at) : CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    locked lock(driver().lock);
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->at && !event->at->done)
        return CUDA_ERROR_NOT_READY;
    return static_cast<CUresult>(event->context->broken.error);
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    locked lock(driver().lock);
    if (!event_valid(begin) || !event_valid(end) || !begin->recorded || !end->recorded ||
        !begin->timing || !end->timing)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!begin->at->done || !end->at->done)
        return CUDA_ERROR_NOT_READY;
    *ms = static_cast<float>(static_cast<double>(end->at->done_ns - begin->at->done_ns) * 1e-6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    CUstream s = stream_of(c, stream);
    if (s && s->capture)
        return not_implemented("events in a capture");
    if (!event->at || event->at->done)
        return CUDA_SUCCESS;
    pending p;
    result = enqueue(
        lock, c, stream, [] { return failure{}; }, &p);
    if (!result)
        p->after.push_back(event->at);
    return result;
}

// --- capture, graphs -----------------------------------------------------------------------------

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    CUstream s = stream_of(c, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s == c->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    s->capture = new CUgraph_st{};
    s->capture->magic = GRAPH_MAGIC;
    s->capture->context = c;
    s->capture_mode = mode;
    s->capture_broken = false;
    s->capture_thread = this_thread();
    driver().capturing.push_back(s);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    locked lock(driver().lock);
    *graph = nullptr;
    if (!stream_valid(stream > CU_STREAM_PER_THREAD ? stream : nullptr))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        stream->capture_thread != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    auto &all = driver().capturing;
    all.erase(std::remove(all.begin(), all.end(), stream), all.end());
    CUgraph made = stream->capture;
    stream->capture = nullptr;
    if (stream->capture_broken) {
        delete made;
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *graph = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *ready, CUgraph graph,
                                            unsigned long long flags)
{
    locked lock(driver().lock);
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags)
        return not_implemented("flags of a graph");
    *ready = new CUgraphExec_st{EXEC_MAGIC, graph->context, graph->nodes};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    locked lock(driver().lock);
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    graph->magic = 0;
    delete graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c)
        return result;
    if (!graph || graph->magic != EXEC_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return enqueue(
        lock, c, stream,
        [nodes = graph->nodes] {
            for (const work &node : nodes) {
                failure f = node();
                if (f.error)
                    return f;
            }
            return failure{};
        },
        nullptr);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    locked lock(driver().lock);
    if (!graph || graph->magic != EXEC_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    graph->magic = 0;
    delete graph;
    return CUDA_SUCCESS;
}
