// Graphs: lists of jobs in an order that respects what they depend on.
#include "driver.h"

namespace fajit_emu {

CUgraph graph_new(CUctx_st *context)
{
    CUgraph g = new CUgraph_st{};
    g->context = context;
    driver().handles[g] = handle::GRAPH;
    return g;
}

void graph_delete(CUgraph g)
{
    for (auto &n : g->nodes)
        driver().handles.erase(n.get());
    driver().handles.erase(g);
    delete g;
}

namespace {

// A graph in a stream that is captured: one node.
job child(const std::vector<job> &jobs)
{
    return {[jobs](operation &self) {
                for (const job &j : jobs) {
                    failure f = j.run(self);
                    if (f.error)
                        return f;
                }
                return failure{};
            },
            CU_GRAPH_NODE_TYPE_GRAPH};
}

CUresult instantiate(CUgraphExec *out, CUgraph graph)
{
    if (!valid(graph) || !out)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec made = new CUgraphExec_st{};
    made->context = graph->context;
    for (auto &n : graph->nodes)
        made->jobs.push_back(n->what);
    driver().handles[made] = handle::EXEC;
    *out = made;
    return CUDA_SUCCESS;
}

} // namespace

} // namespace fajit_emu

using namespace fajit_emu;

// --- graphs --------------------------------------------------------------------------------------

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = graph_new(c.context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    locked lock(driver().lock);
    if (!valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (const capturing &c : driver().captures)
        if (c->graph == graph)
            return CUDA_ERROR_ILLEGAL_STATE; // it belongs to the capture
    graph_delete(graph);
    return CUDA_SUCCESS;
}

static CUresult give_nodes(const std::vector<CUgraphNode> &all, CUgraphNode *nodes, size_t *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!nodes) {
        *count = all.size();
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < *count; i++)
        nodes[i] = i < all.size() ? all[i] : nullptr;
    *count = std::min(*count, all.size());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    locked lock(driver().lock);
    std::vector<CUgraphNode> all;
    if (!valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (auto &n : graph->nodes)
        all.push_back(n.get());
    return give_nodes(all, nodes, count);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    locked lock(driver().lock);
    std::vector<CUgraphNode> all;
    if (!valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (auto &n : graph->nodes)
        if (n->after.empty())
            all.push_back(n.get());
    return give_nodes(all, nodes, count);
}

#undef cuGraphNodeGetDependencies
EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    locked lock(driver().lock);
    return valid(node) ? give_nodes(node->after, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    locked lock(driver().lock);
    if (!valid(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->what.type;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
    locked lock(driver().lock);
    if (!valid(node) || !params || !node->what.call)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->what.call->params;
    return CUDA_SUCCESS;
}

// --- graphs that run -----------------------------------------------------------------------------

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *ready, CUgraph graph,
                                            unsigned long long flags)
{
    // What frees memory of earlier launches and what takes priorities from nodes changes nothing.
    constexpr unsigned long long WITHOUT_EFFECT = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                                  CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    locked lock(driver().lock);
    if (flags & ~15ull)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~WITHOUT_EFFECT)
        return not_implemented("uploading a graph, or launching it from the device");
    return instantiate(ready, graph);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *ready, CUgraph graph, CUgraphNode *failed,
                                      char *log, size_t log_bytes)
{
    locked lock(driver().lock);
    if (failed)
        *failed = nullptr;
    if (log && log_bytes)
        *log = '\0';
    return instantiate(ready, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *ready, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuGraphInstantiateWithFlags(ready, graph, params->flags);
    params->hErrNode_out = nullptr;
    params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return result;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)
{
    return not_implemented("updating a graph; instantiate it again");
}

EXPORT CUresult cuGraphUpload(CUgraphExec graph, CUstream)
{
    api_call c;
    return !c.context ? c.result : valid(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Two launches of one graph do not overlap.
EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    CUstream s = stream_of(c.context, stream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture)
        return capture_job(s, child(graph->jobs));
    if (s == c.context->legacy && (c.result = check_implicit(c.context)))
        return c.result;
    pending p = append(s, marker());
    if (graph->last && !graph->last->done) {
        graph->last->awaited = true;
        p->after.push_back(graph->last);
    }
    for (const job &j : graph->jobs)
        p = append(s, j);
    graph->last = p;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    locked lock(driver().lock);
    if (!valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    driver().handles.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
}
