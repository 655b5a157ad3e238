// Stream capture: what is put into a stream becomes the nodes of a graph.
#include <algorithm>

#include "driver.h"

namespace fajit_emu {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// May this thread call what a capture makes unsafe?
bool forbids(const capture_sequence &c)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return c.thread == this_thread() || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                         c.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

void add_frontier(std::vector<CUgraphNode> *to, const std::vector<CUgraphNode> &more)
{
    for (CUgraphNode n : more)
        if (std::find(to->begin(), to->end(), n) == to->end())
            to->push_back(n);
}

// Nothing is captured any more; the graph is the caller's.
CUgraph end(const capturing &c)
{
    CUgraph graph = c->graph;
    c->graph = nullptr;
    for (CUstream s : c->streams) {
        s->capture = nullptr;
        s->frontier.clear();
    }
    auto &all = driver().captures;
    all.erase(std::remove(all.begin(), all.end(), c), all.end());
    return graph;
}

// Does the origin's last node come after everything that the joined streams did?
bool joined(const capture_sequence &c)
{
    std::set<CUgraphNode> before(c.origin->frontier.begin(), c.origin->frontier.end());
    std::vector<CUgraphNode> left(before.begin(), before.end());
    while (!left.empty()) {
        const CUgraphNode n = left.back();
        left.pop_back();
        for (CUgraphNode earlier : n->after)
            if (before.insert(earlier).second)
                left.push_back(earlier);
    }
    for (const CUstream_st *s : c.streams)
        for (CUgraphNode n : s->frontier)
            if (!before.count(n))
                return false;
    return true;
}

CUresult join(CUstream s, CUevent event)
{
    const capturing &c = event->capture;
    if (s == s->context->legacy)
        return break_capture(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    s->capture = c;
    s->frontier = event->frontier;
    c->streams.push_back(s);
    return CUDA_SUCCESS;
}

} // namespace

CUresult check_capture()
{
    CUresult result = CUDA_SUCCESS;
    for (const capturing &c : driver().captures)
        if (forbids(*c))
            result = break_capture(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result;
}

CUresult check_implicit(CUctx_st *context)
{
    CUresult result = CUDA_SUCCESS;
    for (const capturing &c : driver().captures)
        for (const CUstream_st *s : c->streams)
            if (s->context == context && s->blocking)
                result = break_capture(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return result;
}

CUresult break_capture(const capturing &c, CUresult result)
{
    c->broken = true;
    return result;
}

// A kernel keeps the programmatic attribute when it comes right after the one that it depends on.
CUresult capture_job(CUstream s, job what)
{
    if (s->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    auto &nodes = s->capture->graph->nodes;
    auto n = std::make_unique<CUgraphNode_st>();
    n->graph = s->capture->graph;
    n->what = std::move(what);
    n->after = s->frontier;
    if (n->after.size() != 1 || n->after[0] != nodes.back().get() ||
        n->after[0]->what.type != CU_GRAPH_NODE_TYPE_KERNEL)
        n->what.programmatic = false;
    driver().handles[n.get()] = handle::NODE;
    s->frontier = {n.get()};
    nodes.push_back(std::move(n));
    return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream s, CUevent event)
{
    if (!event->capture) {
        if (!event->at)
            return CUDA_SUCCESS; // never recorded
        return break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (!event->capture->graph) { // of a capture that has ended
        if (s->capture)
            s->capture->broken = true;
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event->capture->broken || (s->capture && s->capture->broken))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!s->capture)
        return join(s, event);
    if (s->capture != event->capture) {
        event->capture->broken = true;
        return break_capture(s->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    add_frontier(&s->frontier, event->frontier);
    return CUDA_SUCCESS;
}

void capture_leave(CUstream s)
{
    const capturing c = s->capture;
    if (!c)
        return;
    c->broken = true;
    if (c->origin == s) {
        graph_delete(end(c));
        return;
    }
    c->streams.erase(std::remove(c->streams.begin(), c->streams.end(), s), c->streams.end());
    s->capture = nullptr;
}

} // namespace fajit_emu

using namespace fajit_emu;

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    static cuuint64_t next;
    api_call c;
    if (!c.context)
        return c.result;
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s == c.context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    s->capture = std::make_shared<capture_sequence>();
    s->capture->graph = graph_new(c.context);
    s->capture->origin = s;
    s->capture->mode = mode;
    s->capture->thread = this_thread();
    s->capture->id = ++next;
    s->capture->streams.push_back(s);
    driver().captures.push_back(s->capture);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    const capturing what = s->capture;
    if (!what)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (what->origin != s)
        return break_capture(what, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (what->mode != CU_STREAM_CAPTURE_MODE_RELAXED && what->thread != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (what->broken)
        c.result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(*what))
        c.result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    CUgraph made = end(what);
    if (c.result)
        graph_delete(made);
    else
        *graph = made;
    return c.result;
}

// --- asking --------------------------------------------------------------------------------------

static CUstreamCaptureStatus status_of(const CUstream_st *s)
{
    return !s->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
           : s->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// The stream that is asked about. Asking about the default one is no use of it that could be
// captured, and breaks nothing.
static CUstream asked(api_call &c, CUstream stream)
{
    CUstream s = c.context ? stream_of(c.context, stream) : nullptr;
    if (c.context && !s)
        c.result = CUDA_ERROR_INVALID_HANDLE;
    if (s && s == c.context->legacy)
        for (const capturing &other : driver().captures)
            for (const CUstream_st *captured : other->streams)
                if (captured->context == c.context && captured->blocking)
                    c.result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return c.result ? nullptr : s;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    api_call c;
    CUstream s = asked(c, stream);
    if (!s)
        return c.result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(s);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count)
{
    api_call c;
    CUstream s = asked(c, stream);
    if (!s)
        return c.result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(s);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = s->capture->id;
    if (graph)
        *graph = s->capture->graph;
    if (dependencies)
        *dependencies = s->frontier.data();
    if (count)
        *count = s->frontier.size();
    return CUDA_SUCCESS;
}

#undef cuStreamGetCaptureInfo
EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                       cuuint64_t *id)
{
    return cuStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}

#if CUDA_VERSION >= 12030
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies,
                                          const CUgraphEdgeData **edges, size_t *count)
{
    if (edges)
        *edges = nullptr;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}
#endif
