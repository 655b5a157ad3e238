// What an emulated module (a shared object made by the compiler look-alike) and the driver
// look-alike know of each other. The text is part of the prelude of every kernel, so that it uses
// no header at all.
#ifndef FAJIT_EMU_ABI_H
#define FAJIT_EMU_ABI_H

namespace fajit_emu {

constexpr unsigned ABI = 5;

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// The running thread as the kernel sees it.
struct thread_view {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
    unsigned linear;          // thread_idx in the order of warps
    mutable unsigned atomics; // how many it has done
};

// Where in the kernel's source something was called.
struct site {
    const char *operation, *file;
    int line;
};

enum scope : unsigned { WARP, BLOCK };

// Who takes part in a collective operation. Threads meet when scope, members and operation agree.
struct group {
    scope kind;
    unsigned members;    // WARP: the mask of lanes. BLOCK: how many threads; 0 is all of them
    unsigned barrier;    // BLOCK: number of the barrier
    bool orders = false; // what a member wrote before is seen by every member after
};

// Called once, in the last thread to arrive, with what every member brought (WARP: 32 lanes, BLOCK:
// every thread of the block); a member that is absent or has ended is a null pointer.
using combine = void (*)(void *const *brought, unsigned count);

// A part of an asynchronous operation that is put off: `run` is called when it is waited for, by
// the thread that started it. A copy brings the first `valid` of `bytes` and fills the rest with zeros.
struct deferred {
    void (*run)(const deferred &);
    void *to;
    const void *from;
    unsigned bytes, valid;
    site where;
};

// Each thread has these queues of asynchronous operations; each is done in order, group by group.
enum queue : unsigned { COPIES, QUEUES };

struct runtime {
    unsigned abi;
    // Waits for the whole group. `brought` stays valid until it returns. `how` may be null.
    void (*meet)(const group &who, const site &where, void *brought, combine how);
    // Counts as having come, and goes on. BLOCK with `members` alone.
    void (*arrive)(const group &who, const site &where);
    // Asynchronous operations: adds one, ends a group, does all groups but the last `left`.
    void (*defer)(queue where, const deferred &what);
    void (*commit)(queue where);
    void (*complete)(queue where, unsigned left);
    // Programmatic dependent launch.
    void (*wait_for_grid)(const site &where); // until the grid before this one has ended
    void (*let_next_grid)(const site &where); // the blocks of the next may start
    // Ends the launch with a CUresult. Does not return.
    void (*fail)(int error, const site &where, const char *what);
    long long (*clock)();
    void (*yield)(); // lets other threads of the block run
    bool (*is_shared)(const void *address);
    int (*print)(const char *format, __builtin_va_list values);
    void (*assertion)(const site &where, const char *condition, const char *function,
                      const thread_view &who);
};

struct parameter {
    unsigned offset, size;
};

struct kernel {
    const char *name;
    unsigned parameter_count, parameter_bytes;
    const parameter *parameters;
    void (*call)(const unsigned char *parameters);
    unsigned max_threads; // of a block; 0: no __launch_bounds__
};

struct module {
    unsigned abi, kernel_count;
    const kernel *kernels;
    const runtime **runtime_slot;
    const thread_view **(*view_slot)(); // of the calling operating-system thread
    unsigned char *(*dynamic_shared)(); // of the calling operating-system thread; null: has none
};

} // namespace fajit_emu

#endif
