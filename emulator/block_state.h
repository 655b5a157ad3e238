// What the files of a running block share.
//
//     block.cpp      its threads, whose turn it is, failures
//     meeting.cpp    collective operations
//     put_off.cpp    asynchronous operations
//     watch.cpp      what ThreadSanitizer is told
#ifndef FAJIT_EMU_BLOCK_STATE_H
#define FAJIT_EMU_BLOCK_STATE_H

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "block.h"
#include "fiber.h"
#include "sanitizer.h"

namespace fajit_emu {

constexpr int LAUNCH_FAILED = 719;

enum class state { unstarted, ready, running, waiting, waiting_for_grid, ended };

struct block;

struct thread {
    state is = state::unstarted;
    fiber *on = nullptr;
    thread_view view{};
    site where{};               // while it waits
    std::shared_ptr<char> seen; // what it has to tell ThreadSanitizer when it goes on
    std::vector<std::vector<deferred>> queued[QUEUES]; // groups; the last is not committed yet
};

// One collective operation that some threads have arrived at.
struct meeting {
    group who;
    const char *operation;
    combine how;
    std::shared_ptr<char> order; // its address stands for it to ThreadSanitizer
    unsigned warp = 0;
    std::vector<void *> brought; // what each member gave
    std::vector<bool> arrived;
    unsigned count = 0;
};

struct block {
    const grid *g;
    failure *why;
    fiber caller;
    unsigned size = 0, started = 0, ended = 0, running = 0;
    std::vector<thread> threads;
    std::vector<unsigned> order; // in which they start
    std::deque<unsigned> ready;
    std::list<meeting> meetings;
    uint64_t index = 0;                 // of the block
    bool lets_next = false;             // has called let_next_grid
    std::vector<unsigned> before_grids; // threads that wait for the grid before this one
    std::vector<fiber *> idle, all;
    fiber *here = nullptr; // that runs now
    uint64_t random = 0;
    const thread_view **slot = nullptr;
    const thread_sanitizer *watched = nullptr; // by ThreadSanitizer
    void *identity = nullptr;                  // the emulator's to it
};

extern thread_local block *current_block;

void thread_main(void *argument);
void name_thread(const thread_view &view, char *out, size_t size);

// Goes on with some thread that can. The running one waits, is ready again or has ended; its fiber
// is b->here. Returns when it is its turn again, or, after an end, when the fiber has a new thread.
void go_on(block *b, bool has_ended);

// Ends the launch.
[[noreturn]] void fail(int error, const site &where, const char *what);

// For the modules.
void meet(const group &who, const site &where, void *brought, combine how);
void arrive(const group &who, const site &where);
void defer(queue which, const deferred &what);
void commit(queue which);
void complete_groups(queue which, unsigned left);

// Nobody waits for a thread that has ended: lets those go who waited for the last one.
void meetings_without(block *b);

} // namespace fajit_emu

#endif
