// Streams: queues of jobs, each served by threads of its own.
#include <time.h>

#include <algorithm>
#include <thread>

#include "driver.h"
#include "sanitizer.h"

namespace fajit_emu {

namespace {

// Under the lock: may the first operation that has not started do so?
bool may_start(const CUstream_st *s)
{
    if (s->started == s->queue.size())
        return false;
    const operation &next = *s->queue[s->started];
    if (!std::all_of(next.after.begin(), next.after.end(),
                     [](const pending &before) { return before->done; }))
        return false;
    return s->started == 0 ||
           (next.early && s->queue[s->started - 1]->lets_next && s->started < OVERLAP);
}

// Under the lock, which it gives up while the job runs. Operations end in their order.
void perform(locked &lock, CUstream s)
{
    const pending p = s->queue[s->started];
    if (s->started)
        p->before = s->queue[s->started - 1];
    s->started++;
    stream_serve(s);
    if (!p->context->broken.error) {
        lock.unlock();
        failure f = p->what.run(*p);
        lock.lock();
        if (f.error && !p->context->broken.error) {
            p->context->broken = f;
            remember_failure(f.error, f.what);
        }
    }
    p->stuck = p->lets_next = true;
    driver().changed.notify_all();
    driver().changed.wait(lock, [&] { return s->queue.front() == p; });
    work finished;
    std::swap(finished, p->what.run);
    p->after.clear();
    p->before = nullptr;
    lock.unlock();
    finished = nullptr; // may unload a module
    lock.lock();
    s->queue.pop_front();
    s->started--;
    p->done = true;
    p->done_ns = now_ns();
    driver().changed.notify_all();
}

// Serves one stream until it is destroyed and empty. One thread more than needed ends.
void worker(CUstream s)
{
    locked lock(driver().lock);
    for (;;) {
        driver().changed.wait(
            lock, [&] { return may_start(s) || s->idle > 1 || (s->closing && s->queue.empty()); });
        s->idle--;
        if (!may_start(s))
            break;
        perform(lock, s);
        s->idle++;
    }
    s->workers--;
    if (s->workers == 0 && s->closing && s->queue.empty()) {
        driver().draining.erase(s);
        delete s;
    }
}

// Those of a context that have work, also after they were destroyed.
std::vector<CUstream> streams_of(const CUctx_st *context)
{
    std::vector<CUstream> all = context->streams;
    for (CUstream s : driver().draining)
        if (s->context == context)
            all.push_back(s);
    return all;
}

CUstream of_this_thread(CUctx_st *context)
{
    CUstream &s = context->of_thread[this_thread()];
    if (!s)
        s = stream_new(context, true, 0);
    return s;
}

} // namespace

int64_t now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

uint64_t this_thread()
{
    static std::atomic<uint64_t> next{1};
    static thread_local uint64_t mine = next++;
    return mine;
}

CUstream stream_new(CUctx_st *context, bool blocking, int priority)
{
    static uint64_t next;
    CUstream s = new CUstream_st{};
    s->context = context;
    s->blocking = blocking;
    s->priority = priority;
    s->id = ++next;
    driver().handles[s] = handle::STREAM;
    context->streams.push_back(s);
    return s;
}

void stream_delete(CUstream s)
{
    auto &all = s->context->streams;
    all.erase(std::remove(all.begin(), all.end(), s), all.end());
    driver().handles.erase(s);
    capture_leave(s);
    s->closing = true;
    if (!s->workers) {
        delete s;
        return;
    }
    driver().draining.insert(s);
    driver().changed.notify_all();
}

void stream_serve(CUstream s)
{
    driver().changed.notify_all();
    if (s->idle || (s->workers && !may_start(s))) // the first one waits for what comes before, too
        return;
    s->workers++;
    s->idle++;
    start_thread([s] { worker(s); }).detach();
}

CUstream stream_of(CUctx_st *context, CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY)
        return context->legacy;
    if (stream == CU_STREAM_PER_THREAD)
        return of_this_thread(context);
    return valid(stream) && stream->context == context ? stream : nullptr;
}

job marker()
{
    return {[](operation &) { return failure{}; }, CU_GRAPH_NODE_TYPE_EMPTY};
}

pending append(CUstream s, job what)
{
    CUctx_st *context = s->context;
    pending p = std::make_shared<operation>();
    p->what = std::move(what);
    p->context = context;
    p->stream = s;
    if (s == context->legacy) {
        for (CUstream other : streams_of(context))
            if (other != s && other->blocking && other->last && !other->last->done)
                p->after.push_back(other->last);
    } else if (s->blocking && context->legacy->last && !context->legacy->last->done) {
        p->after.push_back(context->legacy->last);
    }
    for (const pending &before : p->after)
        before->awaited = true;
    p->early = p->what.programmatic && p->after.empty() && s->last && !s->last->done &&
               s->last->what.type == CU_GRAPH_NODE_TYPE_KERNEL;
    s->queue.push_back(p);
    s->last = p;
    stream_serve(s);
    return p;
}

CUresult enqueue(CUctx_st *context, CUstream stream, job what, pending *out)
{
    CUstream s = stream_of(context, stream);
    CUresult result = CUDA_SUCCESS;
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) {
        if (out)
            return break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        return capture_job(s, std::move(what));
    }
    if (s == context->legacy && (result = check_implicit(context)))
        return result;
    pending p = append(s, std::move(what));
    if (out)
        *out = p;
    return CUDA_SUCCESS;
}

// --- waiting -------------------------------------------------------------------------------------

CUresult wait_for(locked &lock, const pending &p)
{
    p->awaited = true;
    driver().changed.notify_all();
    driver().changed.wait(lock, [&] { return p->done; });
    return static_cast<CUresult>(p->context->broken.error);
}

CUresult wait_for_stream(locked &lock, CUstream s)
{
    const pending last = s->last;
    return last ? wait_for(lock, last) : static_cast<CUresult>(s->context->broken.error);
}

CUresult wait_for_context(locked &lock, CUctx_st *context)
{
    std::vector<pending> all;
    for (CUstream s : streams_of(context))
        if (s->last)
            all.push_back(s->last);
    for (const pending &p : all)
        wait_for(lock, p);
    return static_cast<CUresult>(context->broken.error);
}

void wait_for_all(locked &lock)
{
    std::vector<pending> all;
    for (auto &h : driver().handles)
        if (h.second == handle::STREAM)
            all.push_back(static_cast<const CUstream_st *>(h.first)->last);
    for (CUstream s : driver().draining)
        all.push_back(s->last);
    all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
    for (const pending &p : all)
        wait_for(lock, p);
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- making them ---------------------------------------------------------------------------------

// Lower numbers are more urgent; here they change nothing.
static constexpr int LEAST_URGENT = 0, MOST_URGENT = -5;

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!stream || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = stream_new(c.context, flags != CU_STREAM_NON_BLOCKING,
                         std::min(LEAST_URGENT, std::max(MOST_URGENT, priority)));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, LEAST_URGENT);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    locked lock(driver().lock);
    if (!valid(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    stream_delete(stream); // what is queued still runs
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (least)
        *least = LEAST_URGENT;
    if (greatest)
        *greatest = MOST_URGENT;
    return CUDA_SUCCESS;
}

// --- what they are -------------------------------------------------------------------------------

// One of any context. Null: no such stream, or no context for a default one.
static CUstream any_stream(api_call &c, CUstream stream)
{
    if (stream > CU_STREAM_PER_THREAD) {
        c.result = valid(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        return valid(stream) ? stream : nullptr;
    }
    return c.context ? stream_of(c.context, stream) : nullptr;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    api_call c;
    CUstream s = any_stream(c, stream);
    if (!s)
        return c.result;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = s->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    api_call c;
    CUstream s = any_stream(c, stream);
    if (s && device)
        *device = s->context->device;
    return s && !device ? CUDA_ERROR_INVALID_VALUE : c.result;
}

EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    api_call c;
    CUstream s = any_stream(c, stream);
    if (s && priority)
        *priority = s->priority;
    return s && !priority ? CUDA_ERROR_INVALID_VALUE : c.result;
}

EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    api_call c;
    CUstream s = any_stream(c, stream);
    if (s && flags)
        *flags = s->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    return s && !flags ? CUDA_ERROR_INVALID_VALUE : c.result;
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    api_call c;
    CUstream s = any_stream(c, stream);
    if (s && id)
        *id = s->id;
    return s && !id ? CUDA_ERROR_INVALID_VALUE : c.result;
}

// --- waiting for them ----------------------------------------------------------------------------

// Null with c.result: there is no such stream, or it is captured, and the call breaks that.
static CUstream uncaptured_stream(api_call &c, CUstream stream)
{
    CUstream s = c.context ? any_stream(c, stream) : nullptr;
    if (!s || !s->capture)
        return s;
    c.result = break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return nullptr;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    api_call c;
    CUstream s = uncaptured_stream(c, stream);
    if (!s)
        return c.result;
    if ((c.result = check_capture()))
        return c.result;
    if (s != s->context->legacy)
        return wait_for_stream(c.lock, s);
    if ((c.result = check_implicit(s->context)))
        return c.result;
    return wait_for(c.lock, append(s, marker()));
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    api_call c;
    CUstream s = uncaptured_stream(c, stream);
    if (!s)
        return c.result;
    if (s == s->context->legacy && (c.result = check_implicit(s->context)))
        return c.result;
    if (!s->last || s->last->done)
        return static_cast<CUresult>(s->context->broken.error);
    s->last->awaited = true;
    driver().changed.notify_all();
    return CUDA_ERROR_NOT_READY;
}
