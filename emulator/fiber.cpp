#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <deque>
#include <mutex>

#include "sanitizer.h"

namespace fajit_emu {

namespace {

// A thread of a device has up to 512 KiB of local memory; the rest is for the emulator's own calls.
constexpr size_t STACK_BYTES = (512 + 128) * 1024, GUARD_BYTES = 64 * 1024;

// Stacks that nobody uses, each with the next one's address at its beginning.
std::mutex unused_lock;
void *unused;

void *stack_take()
{
    {
        std::lock_guard<std::mutex> hold(unused_lock);
        if (void *stack = unused) {
            unused = *static_cast<void **>(stack);
            return stack;
        }
    }
    void *memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return nullptr;
    if (mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        munmap(memory, GUARD_BYTES + STACK_BYTES);
        return nullptr;
    }
    return static_cast<char *>(memory) + GUARD_BYTES;
}

void own_stack(const void **bottom, size_t *bytes)
{
    static thread_local void *at;
    static thread_local size_t size;
    if (!size) {
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &at, &size);
        pthread_attr_destroy(&attributes);
    }
    *bottom = at;
    *bytes = size;
}

void begin(fiber *self)
{
    if (const address_sanitizer *a = under_address_sanitizer())
        a->finish_switch(nullptr, nullptr, nullptr);
    self->entry(self->argument);
    __builtin_trap(); // entry returned
}

} // namespace

#ifdef __x86_64__

// Saves what the System V ABI lets a function rely on, and goes on where the other one left off.
extern "C" void fajit_emu_switch_stack(void **save, void *load);
extern "C" void fajit_emu_first_switch();
asm(R"(
    .text
    .globl fajit_emu_switch_stack
    .hidden fajit_emu_switch_stack
    .type fajit_emu_switch_stack, @function
fajit_emu_switch_stack:
    .cfi_startproc
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    subq $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .cfi_endproc
    .size fajit_emu_switch_stack, . - fajit_emu_switch_stack

    .globl fajit_emu_first_switch
    .hidden fajit_emu_first_switch
    .type fajit_emu_first_switch, @function
fajit_emu_first_switch:
    movq %r12, %rdi
    xorl %ebp, %ebp
    jmp *%r13
    .size fajit_emu_first_switch, . - fajit_emu_first_switch
)");

static void prepare(fiber *f)
{
    // A frame as fajit_emu_switch_stack leaves it; behind it the stack is aligned as at a call.
    uint64_t *top = reinterpret_cast<uint64_t *>(static_cast<char *>(f->stack) + f->bytes);
    *--top = 0; // in place of a return address
    *--top = reinterpret_cast<uint64_t>(fajit_emu_first_switch);
    *--top = 0;                                 // rbp
    *--top = 0;                                 // rbx
    *--top = reinterpret_cast<uint64_t>(f);     // r12
    *--top = reinterpret_cast<uint64_t>(begin); // r13
    *--top = 0;                                 // r14
    *--top = 0;                                 // r15
    uint32_t mxcsr = 0;
    uint16_t x87 = 0;
    __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
    *--top = static_cast<uint64_t>(x87) << 32 | mxcsr;
    f->sp = top;
}

static void jump(fiber *from, fiber *to)
{
    fajit_emu_switch_stack(&from->sp, to->sp);
}

#else

static void begin_halves(unsigned high, unsigned low)
{
    begin(reinterpret_cast<fiber *>(static_cast<uintptr_t>(high) << 32 | low));
}

static void prepare(fiber *f)
{
    const uint64_t self = reinterpret_cast<uintptr_t>(f);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->bytes;
    f->context.uc_link = nullptr;
    makecontext(&f->context, reinterpret_cast<void (*)()>(begin_halves), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

static void jump(fiber *from, fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#endif

static fiber *fiber_new()
{
    void *stack = stack_take();
    if (!stack)
        return nullptr;
    fiber *f = new fiber;
    f->stack = stack;
    f->bytes = STACK_BYTES;
    return f;
}

// --- to ThreadSanitizer a fiber is a thread ------------------------------------------------------
// Such threads are dear, so that they are used again, each with the stack that has its traces. What
// one does comes after what it did before, though: a kernel's threads must not meet the same one in
// every block, or their races would not be seen. So there are more than a block needs, and the one
// that has rested longest is taken.

namespace {

constexpr size_t SPARE = 61;
std::mutex resting_lock;
std::deque<fiber *> *resting; // never destroyed: threads may still run when the process exits

fiber *take_rested()
{
    std::lock_guard<std::mutex> hold(resting_lock);
    if (!resting || resting->empty())
        return nullptr;
    fiber *f = resting->front();
    resting->pop_front();
    return f;
}

fiber *fiber_watched()
{
    fiber *f = fiber_new();
    if (f)
        f->identity = under_thread_sanitizer()->create(0);
    return f;
}

} // namespace

bool fiber_prepare(size_t count)
{
    std::lock_guard<std::mutex> hold(resting_lock);
    if (!resting)
        resting = new std::deque<fiber *>;
    while (resting->size() < count + SPARE) {
        fiber *f = fiber_watched();
        if (!f)
            return false;
        resting->push_front(f);
    }
    return true;
}

fiber *fiber_make(void (*entry)(void *), void *argument)
{
    const bool watched = under_thread_sanitizer();
    fiber *f = watched ? take_rested() : fiber_new();
    if (!f && watched) // other blocks took what was prepared
        f = fiber_watched();
    if (!f)
        return nullptr;
    f->entry = entry;
    f->argument = argument;
    prepare(f);
    return f;
}

void fiber_free(fiber *f)
{
    if (f->identity) {
        std::lock_guard<std::mutex> hold(resting_lock);
        resting->push_back(f);
        return;
    }
    if (const address_sanitizer *a = under_address_sanitizer())
        a->unpoison(f->stack, f->bytes); // of frames that were abandoned
    {
        std::lock_guard<std::mutex> hold(unused_lock);
        *static_cast<void **>(f->stack) = unused;
        unused = f->stack;
    }
    delete f;
}

void fiber_switch(fiber *from, fiber *to)
{
    const address_sanitizer *a = under_address_sanitizer();
    if (a) {
        const void *bottom = to->stack;
        size_t bytes = to->bytes;
        if (!bottom)
            own_stack(&bottom, &bytes);
        a->start_switch(&from->fake_stack, bottom, bytes);
    }
    jump(from, to);
    if (a)
        a->finish_switch(from->fake_stack, nullptr, nullptr);
}

} // namespace fajit_emu
