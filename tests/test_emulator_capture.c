/* Captures on the emulator: of several streams, of everything that can be captured, and what breaks
 * them. */
#include <unistd.h>

#include "emulator_world.h"

/* a: add 1; b: times 10, after it; a: add 3, after that. */
static CUgraph fork_and_join(world *w, CUevent there, CUevent back)
{
    CUgraph graph = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    GOOD(CU(cuStreamBeginCapture)(w->a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GOOD(start(w, w->add, 1, w->a));
    GOOD(CU(cuEventRecord)(there, w->a));
    GOOD(CU(cuStreamWaitEvent)(w->b, there, 0));
    GOOD(CU(cuStreamIsCapturing)(w->b, &status));
    cr_expect_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    GOOD(start(w, w->times, 10, w->b));
    GOOD(CU(cuEventRecord)(back, w->b));
    GOOD(CU(cuStreamWaitEvent)(w->a, back, 0));
    GOOD(start(w, w->add, 3, w->a));
    GOOD(CU(cuStreamEndCapture)(w->a, &graph));
    GOOD(CU(cuStreamIsCapturing)(w->b, &status));
    cr_expect_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    return graph;
}

static void pause_a_while(void *nothing)
{
    (void)nothing;
    usleep(200000);
}

Test(emulator_capture, of_two_streams)
{
    world w;
    CUevent there = NULL, back = NULL;
    CUgraphExec ready = NULL;
    CUgraphNode nodes[4] = {NULL};
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUDA_KERNEL_NODE_PARAMS params;
    size_t count = 4;
    world_begin(&w);
    GOOD(CU(cuEventCreate)(&there, 0));
    GOOD(CU(cuEventCreate)(&back, 0));
    CUgraph graph = fork_and_join(&w, there, back);
    cr_assert(graph);
    GOOD(CU(cuGraphGetNodes)(graph, nodes, &count));
    cr_assert_eq(count, 3);
    GOOD(CU(cuGraphNodeGetType)(nodes[1], &type));
    cr_expect_eq(type, CU_GRAPH_NODE_TYPE_KERNEL);
    GOOD(CU(cuGraphKernelNodeGetParams)(nodes[1], &params));
    cr_expect(params.func == w.times && *(int *)params.kernelParams[1] == 10);
    cr_expect_eq(result(&w), 0, "a capture runs nothing");
    GOOD(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0));
    GOOD(CU(cuGraphDestroy)(graph));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuGraphDestroy)(graph));
    GOOD(CU(cuLaunchHostFunc)(w.a, pause_a_while, NULL));
    GOOD(CU(cuGraphLaunch)(ready, w.a));
    GOOD(CU(cuGraphLaunch)(ready, w.b)); /* waits for the first */
    GOOD(start(&w, w.times, 2, w.b));
    cr_expect_eq(result(&w), 286);
    GOOD(CU(cuGraphExecDestroy)(ready));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(ready, w.a));
    world_end(&w);
}

static void add_100(void *x)
{
    ((int *)x)[7] += 100;
}

Test(emulator_capture, of_copies_and_host_functions)
{
    world w;
    int host[8] = {0};
    int *pinned = NULL;
    CUgraph graph = NULL;
    CUgraphExec ready = NULL;
    world_begin(&w);
    GOOD(CU(cuMemAllocHost)((void **)&pinned, 32));
    GOOD(CU(cuStreamBeginCapture)(w.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    GOOD(CU(cuMemsetD32Async)(w.x, 7, 8, w.a));
    GOOD(CU(cuMemcpyDtoHAsync)(pinned, w.x, 32, w.a));
    GOOD(CU(cuLaunchHostFunc)(w.a, add_100, pinned));
    GOOD(CU(cuMemcpyHtoDAsync)(w.x, pinned, 32, w.a));
    GOOD(start(&w, w.times, 2, w.a));
    GOOD(CU(cuStreamEndCapture)(w.a, &graph));
    GOOD(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0));
    for (int again = 0; again < 2; again++) {
        GOOD(CU(cuGraphLaunch)(ready, w.a));
        GOOD(CU(cuMemcpyDtoHAsync)(host, w.x, 32, w.a));
        cr_expect_eq(host[7], 214);
        cr_expect_eq(host[6], 14);
    }
    GOOD(CU(cuGraphExecDestroy)(ready));
    GOOD(CU(cuGraphDestroy)(graph));
    GOOD(CU(cuMemFreeHost)(pinned));
    world_end(&w);
}

/* Each breaks the capture of w->a, which has one kernel and an event behind it. */
static CUresult wait_for_work_outside(world *w, CUevent inside, CUevent outside)
{
    (void)inside;
    return CU(cuStreamWaitEvent)(w->a, outside, 0);
}

static CUresult synchronize_stream(world *w, CUevent inside, CUevent outside)
{
    (void)inside, (void)outside;
    return CU(cuStreamSynchronize)(w->a);
}

static CUresult query_stream(world *w, CUevent inside, CUevent outside)
{
    (void)inside, (void)outside;
    return CU(cuStreamQuery)(w->a);
}

static CUresult synchronize_event(world *w, CUevent inside, CUevent outside)
{
    (void)w, (void)outside;
    return CU(cuEventSynchronize)(inside);
}

static CUresult query_event(world *w, CUevent inside, CUevent outside)
{
    (void)w, (void)outside;
    return CU(cuEventQuery)(inside);
}

static CUresult synchronize_context(world *w, CUevent inside, CUevent outside)
{
    (void)w, (void)inside, (void)outside;
    return CU(cuCtxSynchronize)();
}

static CUresult copy_at_once(world *w, CUevent inside, CUevent outside)
{
    int x = 0;
    (void)inside, (void)outside;
    return CU(cuMemcpyDtoH)(&x, w->x, 4);
}

static CUresult end_on_another_stream(world *w, CUevent inside, CUevent outside)
{
    CUgraph graph = NULL;
    (void)outside;
    GOOD(CU(cuStreamWaitEvent)(w->b, inside, 0));
    return CU(cuStreamEndCapture)(w->b, &graph);
}

static CUresult merge(world *w, CUevent inside, CUevent outside)
{
    CUgraph graph = NULL;
    (void)outside;
    GOOD(CU(cuStreamBeginCapture)(w->b, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUresult result = CU(cuStreamWaitEvent)(w->b, inside, 0);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(w->b, &graph));
    return result;
}

static const struct {
    const char *what;
    CUresult (*act)(world *w, CUevent inside, CUevent outside);
    int expected;
} violations[] = {
    {"wait_for_work_outside", wait_for_work_outside, CUDA_ERROR_STREAM_CAPTURE_ISOLATION},
    {"synchronize_stream", synchronize_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
    {"query_stream", query_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
    {"synchronize_event", synchronize_event, CUDA_ERROR_CAPTURED_EVENT},
    {"query_event", query_event, CUDA_ERROR_CAPTURED_EVENT},
    {"synchronize_context", synchronize_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
    {"copy_at_once", copy_at_once, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
    {"end_on_another_stream", end_on_another_stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED},
    {"merge", merge, CUDA_ERROR_STREAM_CAPTURE_MERGE},
};

Test(emulator_capture, what_breaks_a_capture)
{
    world w;
    CUevent inside = NULL, outside = NULL;
    world_begin(&w);
    GOOD(CU(cuEventCreate)(&inside, 0));
    GOOD(CU(cuEventCreate)(&outside, 0));
    GOOD(CU(cuEventRecord)(outside, w.b));
    for (size_t i = 0; i < sizeof violations / sizeof *violations; i++) {
        CUgraph graph = (CUgraph)&w;
        GOOD(CU(cuStreamBeginCapture)(w.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
        GOOD(start(&w, w.add, 1, w.a));
        GOOD(CU(cuEventRecord)(inside, w.a));
        const int code = (int)violations[i].act(&w, inside, outside);
        cr_expect_eq(code, violations[i].expected, "%s: %d, not %d", violations[i].what, code,
                     violations[i].expected);
        const int end = (int)CU(cuStreamEndCapture)(w.a, &graph);
        cr_expect_eq(end, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "%s: ended with %d",
                     violations[i].what, end);
        cr_expect_null(graph);
    }
    cr_expect_eq(result(&w), 0);
    world_end(&w);
}

Test(emulator_capture, captures_that_do_not_begin_or_end_well)
{
    world w;
    CUgraph graph = NULL;
    CUevent e = NULL;
    CUstream blocking = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    world_begin(&w);
    GOOD(CU(cuEventCreate)(&e, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          CU(cuStreamBeginCapture)(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuStreamBeginCapture)(w.a, (CUstreamCaptureMode)3));
    GIVES(CUDA_ERROR_ILLEGAL_STATE, CU(cuStreamEndCapture)(w.a, &graph));
    GOOD(CU(cuStreamBeginCapture)(w.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    GIVES(CUDA_ERROR_ILLEGAL_STATE, CU(cuStreamBeginCapture)(w.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    /* a fork that does not come back */
    GOOD(CU(cuEventRecord)(e, w.a));
    GOOD(CU(cuStreamWaitEvent)(w.b, e, 0));
    GOOD(start(&w, w.add, 1, w.b));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CU(cuStreamEndCapture)(w.a, &graph));
    cr_expect_null(graph);
    /* the default stream and a stream that waits for it */
    GOOD(CU(cuStreamCreate)(&blocking, 0));
    GOOD(CU(cuStreamBeginCapture)(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuStreamIsCapturing)(NULL, &status));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, start(&w, w.add, 1, NULL));
    GOOD(CU(cuStreamIsCapturing)(blocking, &status));
    cr_expect_eq(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(blocking, &graph));
    GOOD(CU(cuStreamDestroy)(blocking));
    world_end(&w);
}
