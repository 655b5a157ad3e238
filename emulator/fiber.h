// Fibers: stacks that one operating-system thread switches between.
#ifndef FAJIT_EMU_FIBER_H
#define FAJIT_EMU_FIBER_H

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace fajit_emu {

struct fiber {
    void *stack = nullptr; // lowest address; null: the thread's own stack
    size_t bytes = 0;
#ifdef __x86_64__
    void *sp = nullptr;
#else
    ucontext_t context;
#endif
    void *fake_stack = nullptr; // under AddressSanitizer
    void *identity = nullptr;   // under ThreadSanitizer
    void (*entry)(void *) = nullptr;
    void *argument = nullptr;
};

// How many stacks a grid may have at a time: each is two mappings, of which Linux gives a process
// 65,530.
constexpr size_t STACKS = 24 * 1024;

// A fiber that will run entry(argument), which must not return. Its stack comes from a pool and has
// a page below it that must not be touched. Null: no memory.
fiber *fiber_make(void (*entry)(void *), void *argument);
// Under ThreadSanitizer, before so many are made.
bool fiber_prepare(size_t count);
// Gives the stack back; what was running on it is forgotten.
void fiber_free(fiber *f);
void fiber_switch(fiber *from, fiber *to);

} // namespace fajit_emu

#endif
