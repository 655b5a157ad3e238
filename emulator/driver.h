// State of the driver look-alike, shared by its files.
//
//     cuda_error.cpp       errors
//     cuda_device.cpp      devices
//     cuda_context.cpp     contexts
//     cuda_entry.cpp       functions by name
//     cuda_module.cpp      modules
//     cuda_function.cpp    functions of modules
//     cuda_library.cpp     libraries: modules of every context
//     cuda_memory.cpp      memory
//     cuda_copy.cpp        copying and filling it
//     cuda_stream.cpp      streams
//     cuda_event.cpp       events
//     cuda_capture.cpp     capturing what a stream does
//     cuda_graph.cpp       graphs
//     cuda_launch.cpp      launches
//     cuda_occupancy.cpp   how many blocks a device holds
//     cuda_grid.cpp        the blocks of a launch, and their order with the launches around it
//     cuda_tensor_map.cpp  tensor maps
//
// One lock guards all of it; kernels run without it.
#ifndef FAJIT_EMU_DRIVER_H
#define FAJIT_EMU_DRIVER_H

#include <cuda.h>

// cuda.h renames some functions to their newest version; what is exported here is spelled out.
#undef cuEventElapsedTime

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "block.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fajit_emu {

// --- devices -------------------------------------------------------------------------------------

struct device_limits {
    int cc; // 90
    int shared_per_sm, shared_optin, threads_per_sm, blocks_per_sm;
};
constexpr int SHARED_WITHOUT_OPTIN = 48 * 1024, SHARED_RESERVED = 1024, MULTIPROCESSORS = 4;
constexpr size_t DEVICE_MEMORY = size_t{4} << 30;

// --- work ----------------------------------------------------------------------------------------

struct operation;
using pending = std::shared_ptr<operation>;

// Runs without the lock; gives a CUresult and, for a failure, what happened.
using work = std::function<failure(operation &)>;

// What cuGraphKernelNodeGetParams gives.
struct kernel_call {
    CUDA_KERNEL_NODE_PARAMS params{};
    std::vector<uint64_t> values;
    size_t skip = 0;              // of values, for the alignment
    std::vector<void *> pointers; // kernelParams, into values
};

// What is put into a stream or a graph.
struct job {
    work run;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    bool programmatic = false; // a kernel that may start before the kernel before it has ended
    std::shared_ptr<kernel_call> call{}; // of a kernel
};

// A job in a stream, and what it waits for.
struct operation {
    job what;
    std::vector<pending> after; // in other streams
    CUctx_st *context = nullptr;
    CUstream_st *stream = nullptr;
    bool early = false;     // may start when the kernel before it lets it
    pending before;         // that kernel, when it had not ended at the start
    bool lets_next = false; // every block has let the next grid start, or has ended
    bool stuck = false;     // can do no more before the grid before it has ended
    bool awaited = false;   // somebody waits for it: perhaps nothing comes after it
    bool done = false;
    int64_t done_ns = 0;
};

// A capture under way, of one stream and of those that were joined to it.
struct capture_sequence {
    CUgraph graph = nullptr;
    CUstream origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    uint64_t thread = 0; // that began it
    cuuint64_t id = 0;
    bool broken = false;
    std::vector<CUstream> streams;
};
using capturing = std::shared_ptr<capture_sequence>;

} // namespace fajit_emu

struct CUctx_st {
    int device, retains;
    bool primary;
    unsigned flags;
    uint64_t id;
    CUstream legacy; // the default stream
    std::map<uint64_t, CUstream> of_thread;
    std::vector<CUstream> streams;
    std::map<int, size_t> limits;
    fajit_emu::failure broken; // of a kernel: every later call gives it
};

struct CUstream_st {
    CUctx_st *context;
    bool blocking; // waits for the default stream, and that for it
    int priority;
    uint64_t id;
    std::deque<fajit_emu::pending> queue;
    fajit_emu::pending last;
    size_t started;         // operations at the front of the queue that run
    unsigned workers, idle; // threads that serve it
    bool closing;
    fajit_emu::capturing capture;
    std::vector<CUgraphNode> frontier; // what the next node of the capture depends on
};

struct CUevent_st {
    CUctx_st *context;
    bool timing;
    fajit_emu::pending at;
    fajit_emu::capturing capture; // was recorded in it last
    std::vector<CUgraphNode> frontier;
};

struct CUgraphNode_st {
    CUgraph_st *graph;
    fajit_emu::job what;
    std::vector<CUgraphNode> after;
};

struct CUgraph_st {
    CUctx_st *context;
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes; // each after those that it depends on
};

struct CUgraphExec_st {
    CUctx_st *context;
    std::vector<fajit_emu::job> jobs;
    fajit_emu::pending last; // of its latest launch
};

namespace fajit_emu {

// The loaded shared object; queued launches keep it.
struct loaded_object {
    void *handle = nullptr;
    int file = -1;
    const module *code = nullptr;
    std::vector<shared_array> shared;
    size_t bytes = 0; // of device memory
    ~loaded_object();
};

} // namespace fajit_emu

struct CUfunc_st {
    struct CUmod_st *module;
    const fajit_emu::kernel *code;
    int shared_dynamic_max;
    int carveout = -1;
    bool nonportable_cluster;
};

struct CUmod_st {
    struct CUlib_st *library; // that it is of; null: loaded by itself
    CUctx_st *context;
    int shared_static;
    std::shared_ptr<fajit_emu::loaded_object> object;
    std::vector<std::unique_ptr<CUfunc_st>> functions;
};

namespace fajit_emu {

inline unsigned max_threads_per_block(const CUfunc_st *f)
{
    return f->code->max_threads ? std::min(f->code->max_threads, 1024u) : 1024;
}

struct allocation {
    size_t bytes;
    CUctx_st *context;
    int device;
};

inline void *pointer(CUdeviceptr at)
{
    return reinterpret_cast<void *>(static_cast<uintptr_t>(at));
}

// Handles that were given out and not taken back: a stale one must be recognized without reading
// what it points to.
enum class handle { CONTEXT, STREAM, EVENT, GRAPH, NODE, EXEC, MODULE, FUNCTION, LIBRARY, KERNEL };

// Never destroyed: workers and the caller's exit handlers may outlive static objects.
struct driver_state {
    std::mutex lock;
    std::condition_variable changed;
    bool initialized = false;
    bool in_child = false; // of the process that initialized it
    std::vector<device_limits> devices;
    std::map<int, CUctx_st *> primary;
    std::map<int, unsigned> primary_flags;
    std::vector<CUctx_st *> past_contexts; // may still be current somewhere
    std::map<CUdeviceptr, allocation> allocations, host_allocations;
    std::atomic<size_t> memory_used{0};
    std::unordered_map<const void *, handle> handles;
    std::vector<capturing> captures; // under way
    std::set<CUstream> draining;     // destroyed, with work left
    bool shuffled = false;
    uint64_t seed = 0;
    unsigned threads = 1; // of the operating system, for one launch
};
driver_state &driver();
using locked = std::unique_lock<std::mutex>;

// --- handles, contexts ---------------------------------------------------------------------------

inline bool is(const void *h, handle kind)
{
    auto found = driver().handles.find(h);
    return found != driver().handles.end() && found->second == kind;
}
inline bool valid(const CUctx_st *c)
{
    return is(c, handle::CONTEXT);
}
inline bool valid(const CUstream_st *s)
{
    return is(s, handle::STREAM);
}
inline bool valid(const CUevent_st *e)
{
    return is(e, handle::EVENT);
}
inline bool valid(const CUgraph_st *g)
{
    return is(g, handle::GRAPH);
}
inline bool valid(const CUgraphNode_st *n)
{
    return is(n, handle::NODE);
}
inline bool valid(const CUgraphExec_st *g)
{
    return is(g, handle::EXEC);
}
inline bool valid(const CUmod_st *m)
{
    return is(m, handle::MODULE);
}
inline bool valid(const CUfunc_st *f)
{
    return is(f, handle::FUNCTION);
}

// The current context of this thread; null with the code that a call has to give.
CUctx_st *current_context(CUresult *result);

// Every call that needs a current context begins with one.
struct api_call {
    locked lock{driver().lock};
    CUresult result = CUDA_SUCCESS;
    CUctx_st *context = current_context(&result);
};

CUresult check_device(CUdevice device);
const device_limits &limits_of(const CUctx_st *context);
uint64_t this_thread(); // a number of its own
// The calling thread runs a function of cuLaunchHostFunc, which may call nothing.
void inside_host_function(bool is);

// Gives back all memory that was allocated in it and is still there. Under the lock.
void free_memory_of(CUctx_st *context);

// --- errors --------------------------------------------------------------------------------------

// What cuGetErrorString adds for this thread's or the kernels' last failure.
CUresult not_implemented(const char *what);
void explain_unsupported(const std::string &text); // the text of the next CUDA_ERROR_NOT_SUPPORTED
void remember_failure(int error, const std::string &what);

// --- streams -------------------------------------------------------------------------------------
// All of it under the lock.

// Puts a job at the end of a stream (null: the default one), or into the graph that it captures.
// `out` is only for streams that capture nothing.
CUresult enqueue(CUctx_st *context, CUstream stream, job what, pending *out);
// The same behind that.
pending append(CUstream s, job what);
CUresult wait_for(locked &lock, const pending &p);
CUresult wait_for_stream(locked &lock, CUstream stream);
CUresult wait_for_context(locked &lock, CUctx_st *context);
void wait_for_all(locked &lock); // of every context
// Null: no such stream of it.
CUstream stream_of(CUctx_st *context, CUstream stream);
CUstream stream_new(CUctx_st *context, bool blocking, int priority);
void stream_delete(CUstream stream);
void stream_serve(CUstream stream); // what can start now has a thread
// Does nothing, in order.
job marker();

// At most so many kernels of a stream run at once.
constexpr size_t OVERLAP = 8;

// --- capture -------------------------------------------------------------------------------------
// All of it under the lock.

// A call that a capture under way forbids; breaks the capture.
CUresult check_capture();
// The default stream would wait for a stream that is captured; breaks the capture.
CUresult check_implicit(CUctx_st *context);
// For what a stream or an event that takes part in a capture does not allow; gives `result`.
CUresult break_capture(const capturing &c, CUresult result);
CUresult capture_job(CUstream s, job what);
CUresult capture_wait(CUstream s, CUevent event);
void capture_leave(CUstream s); // that is destroyed
CUgraph graph_new(CUctx_st *context);
void graph_delete(CUgraph graph);

// --- modules, launches ---------------------------------------------------------------------------

// Runs all blocks of a grid, of which `wave` are on the device at once.
failure grid_execute(const grid &g, operation &self, bool cooperative, unsigned threads,
                     unsigned wave);
CUresult module_load(CUctx_st *context, const void *image, CUmodule *out);
void module_unload(CUmodule m);
CUfunction module_function(CUmodule m, const char *name); // null: it has none
CUresult read_image(const char *path, std::string *image);
CUresult function_attribute(const CUfunc_st *f, CUfunction_attribute attribute, int *value);
CUresult function_set_attribute(CUfunction f, CUfunction_attribute attribute, int value);
// A function, or that of a kernel in this context; null: neither.
CUfunction function_of(CUfunction f, CUctx_st *context);
int blocks_per_multiprocessor(const CUfunc_st *f, unsigned threads, unsigned shared_bytes);

int64_t now_ns();

} // namespace fajit_emu

#endif
