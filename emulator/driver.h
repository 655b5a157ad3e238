// State of the driver look-alike, shared by its files.
//
//     cuda_device.cpp   errors, devices, contexts
//     cuda_module.cpp   modules and functions
//     cuda_memory.cpp   memory
//     cuda_stream.cpp   streams, events, capture, graphs
//     cuda_launch.cpp   launches
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

// Runs without the lock; gives a CUresult and, for a failure, what happened.
using work = std::function<failure()>;

// Something queued: an order of its own and what it waits for.
struct operation {
    work run;
    std::vector<std::shared_ptr<operation>> after;
    CUctx_st *context = nullptr;
    bool done = false;
    int64_t done_ns = 0;
};
using pending = std::shared_ptr<operation>;

} // namespace fajit_emu

struct CUctx_st {
    unsigned magic;
    int device, retains;
    bool primary;
    CUstream legacy; // the default stream
    std::vector<CUstream> streams;
    fajit_emu::failure broken; // of a kernel: every later call gives it
};

struct CUstream_st {
    unsigned magic;
    CUctx_st *context;
    bool blocking; // waits for the default stream, and that for it
    std::deque<fajit_emu::pending> queue;
    fajit_emu::pending last;
    bool has_worker, closing;
    // capture
    CUgraph capture;
    CUstreamCaptureMode capture_mode;
    bool capture_broken;
    uint64_t capture_thread;
};

struct CUevent_st {
    unsigned magic;
    CUctx_st *context;
    bool recorded, timing;
    fajit_emu::pending at;
};

struct CUgraph_st {
    unsigned magic;
    CUctx_st *context;
    std::vector<fajit_emu::work> nodes;
};

struct CUgraphExec_st {
    unsigned magic;
    CUctx_st *context;
    std::vector<fajit_emu::work> nodes;
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
    unsigned magic;
    struct CUmod_st *module;
    const fajit_emu::kernel *code;
    int shared_dynamic_max;
    bool nonportable_cluster;
};

struct CUmod_st {
    unsigned magic;
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

enum : unsigned {
    CONTEXT_MAGIC = 0x43545821,
    STREAM_MAGIC = 0x53545221,
    EVENT_MAGIC = 0x45564521,
    GRAPH_MAGIC = 0x47524121,
    EXEC_MAGIC = 0x47455821,
    MODULE_MAGIC = 0x4d4f4421,
    FUNCTION_MAGIC = 0x46554e21
};

// Never destroyed: workers and the caller's exit handlers may outlive static objects.
struct driver_state {
    std::mutex lock;
    std::condition_variable changed;
    bool initialized = false;
    std::vector<device_limits> devices;
    std::map<int, CUctx_st *> primary;
    std::map<CUdeviceptr, size_t> allocations;
    std::set<CUmodule> modules; // after a failed launch they cannot be unloaded, and stay
    std::atomic<size_t> memory_used{0};
    std::vector<CUstream> capturing;
    bool shuffled = false;
    uint64_t seed = 0;
    unsigned threads = 1; // of the operating system, for one launch
};
driver_state &driver();
using locked = std::unique_lock<std::mutex>;

// The current context of this thread; null with the code that a call has to give.
CUctx_st *current_context(CUresult *result);
inline bool valid(const CUctx_st *c)
{
    return c && c->magic == CONTEXT_MAGIC;
}

// What cuGetErrorString adds for this thread's or the kernels' last failure.
CUresult not_implemented(const char *what);
void remember_failure(int error, const std::string &what);

// A call that a capture under way forbids; breaks the capture. Under the lock.
CUresult check_capture();

// Puts work at the end of a stream (null: the default one), or into the graph that it captures.
// Under the lock.
CUresult enqueue(locked &lock, CUctx_st *context, CUstream stream, work run, pending *out);
CUresult wait_for(locked &lock, const pending &p);
CUresult wait_for_stream(locked &lock, CUstream stream);
void wait_for_all(locked &lock);                        // of every context
CUstream stream_of(CUctx_st *context, CUstream stream); // null: no such stream of it
CUstream stream_new(CUctx_st *context, bool blocking);
void stream_delete(locked &lock, CUstream stream);

int64_t now_ns();

} // namespace fajit_emu

#endif
