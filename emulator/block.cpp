#include "block.h"

#include <sched.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "block_state.h"
#include "elf_tls.h"
#include "image.h"
#include "print.h"
#include "watch.h"

namespace fajit_emu {

thread_local block *current_block;

void name_thread(const thread_view &view, char *out, size_t size)
{
    snprintf(out, size, "thread (%u,%u,%u) of block (%u,%u,%u)", view.thread_idx.x,
             view.thread_idx.y, view.thread_idx.z, view.block_idx.x, view.block_idx.y,
             view.block_idx.z);
}

// --- shared memory -------------------------------------------------------------------------------

// What was never written is recognizable, NaN in every floating-point type, and AddressSanitizer
// knows where each array ends.
static void prepare_shared(const grid &g)
{
    char *base = reinterpret_cast<char *>(g.code->view_slot());
    const address_sanitizer *a = under_address_sanitizer();
    unsigned char *dynamic = g.code->dynamic_shared ? g.code->dynamic_shared() : nullptr;
    for (const shared_array &s : *g.shared) {
        char *at = base + s.offset;
        if (reinterpret_cast<unsigned char *>(at) == dynamic)
            continue;
        if (a)
            a->poison(at + s.bytes, RED_ZONE_BYTES);
        memset(at, 0xff, s.bytes);
    }
    if (dynamic) {
        if (a) {
            a->unpoison(dynamic, MAX_SHARED_BYTES);
            a->poison(dynamic + g.shared_bytes, MAX_SHARED_BYTES - g.shared_bytes);
        }
        memset(dynamic, 0xff, g.shared_bytes);
    }
}

// --- turns ---------------------------------------------------------------------------------------

static uint64_t draw(block *b)
{
    b->random += 0x9e3779b97f4a7c15u; // splitmix64
    uint64_t x = b->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void go_to(block *b, fiber *to)
{
    fiber *from = b->here;
    if (to == from)
        return;
    b->here = to;
    fiber_switch(from, to);
}

// Ends the block; the fibers of its threads are abandoned, so that nothing on their stacks may own
// memory.
[[noreturn]] static void give_up(block *b)
{
    go_to(b, &b->caller);
    __builtin_unreachable();
}

static void set_failure(block *b, int error, const std::string &what)
{
    b->why->error = error;
    b->why->what = what;
}

static void report_deadlock(block *b)
{
    struct place {
        unsigned count, first;
    };
    std::map<std::string, place> places;
    for (unsigned i = 0; i < b->size; i++) {
        const thread &t = b->threads[i];
        if (t.is != state::waiting)
            continue;
        const std::string key = std::string(t.where.operation) + " at " + t.where.file + ":" +
                                std::to_string(t.where.line);
        auto found = places.emplace(key, place{0, i}).first;
        found->second.count++;
    }
    const uint3 &at = b->threads[0].view.block_idx;
    char text[160];
    snprintf(text, sizeof text, "deadlock in block (%u,%u,%u), %u threads ended", at.x, at.y, at.z,
             b->ended);
    std::string what = text;
    for (const auto &p : places) {
        const uint3 &first = b->threads[p.second.first].view.thread_idx;
        snprintf(text, sizeof text, "; %u wait in ", p.second.count);
        what += text + p.first;
        snprintf(text, sizeof text, " (thread (%u,%u,%u) first)", first.x, first.y, first.z);
        what += text;
    }
    set_failure(b, LAUNCH_FAILED, what);
}

static void make_current(block *b, unsigned index)
{
    b->running = index;
    b->threads[index].is = state::running;
    *b->slot = &b->threads[index].view;
}

static fiber *free_fiber(block *b)
{
    if (!b->idle.empty()) {
        fiber *on = b->idle.back();
        b->idle.pop_back();
        return on;
    }
    fiber *on = fiber_make(thread_main, b);
    if (!on) {
        set_failure(b, 2, "no memory for another thread's stack");
        give_up(b);
    }
    b->all.push_back(on);
    return on;
}

// Nothing else can go on: the operating-system thread waits with the threads that wait for the grid
// before this one.
static void wait_for_grid_before(block *b)
{
    if (b->g->order->wait_for_before(b->index) == succession::FAILED) {
        set_failure(b, LAUNCH_FAILED, "the kernel before this one failed");
        give_up(b);
    }
    const auto order = std::make_shared<char>(); // this thread has seen what the grid before did
    if (b->watched)
        b->watched->release(order.get());
    for (unsigned i : b->before_grids) {
        b->threads[i].seen = order;
        b->threads[i].is = state::ready;
        b->ready.push_back(i);
    }
    b->before_grids.clear();
}

void go_on(block *b, bool has_ended)
{
    const bool fresh = b->started < b->size;
    if (!fresh && b->ready.empty() && !b->before_grids.empty())
        wait_for_grid_before(b);
    const bool start = fresh && (b->ready.empty() || !b->g->shuffled || draw(b) % 2 == 0);
    if (start) {
        const unsigned next = b->order[b->started++];
        thread &t = b->threads[next];
        if (!t.on)
            t.on = has_ended ? b->here : free_fiber(b);
        make_current(b, next);
        go_to(b, t.on);
        return;
    }
    if (!b->ready.empty()) {
        const size_t at = b->g->shuffled ? draw(b) % b->ready.size() : 0;
        const unsigned next = b->ready[at];
        b->ready.erase(b->ready.begin() + static_cast<ptrdiff_t>(at));
        if (has_ended && !b->watched)
            b->idle.push_back(b->here);
        make_current(b, next);
        go_to(b, b->threads[next].on);
        return;
    }
    if (b->ended == b->size) {
        go_to(b, &b->caller);
        __builtin_unreachable();
    }
    report_deadlock(b);
    give_up(b);
}

void thread_main(void *argument)
{
    block *b = static_cast<block *>(argument);
    for (;;) {
        become(b, running_identity(b));
        b->g->function->call(b->g->parameters);
        become(b, b->identity);
        b->threads[b->running].is = state::ended;
        b->ended++;
        meetings_without(b);
        go_on(b, true);
    }
}

static void report_failure(block *b, int error, const site &where, const char *what)
{
    char text[160];
    name_thread(b->threads[b->running].view, text, sizeof text);
    set_failure(b, error,
                std::string(where.operation) + " at " + where.file + ":" +
                    std::to_string(where.line) + ": " + what + ", in " + text);
}

void fail(int error, const site &where, const char *what)
{
    block *b = current_block;
    become(b, b->identity);
    report_failure(b, error, where, what);
    give_up(b);
}

// --- programmatic dependent launch ---------------------------------------------------------------

static void wait_for_grid(const site &where)
{
    block *b = current_block;
    pause now(b);
    const succession::state before = b->g->order ? b->g->order->before() : succession::ENDED;
    if (before == succession::FAILED)
        fail(LAUNCH_FAILED, where, "the kernel before this one failed");
    if (before == succession::ENDED) {
        now.catch_up();
        return;
    }
    b->threads[b->running].is = state::waiting_for_grid;
    b->before_grids.push_back(b->running);
    go_on(b, false);
}

// The first thread speaks for its block.
static void let_next_grid(const site &)
{
    block *b = current_block;
    pause now(b);
    if (b->lets_next || !b->g->order)
        return;
    b->lets_next = true;
    b->g->order->let_next(b->index);
}

static void yield()
{
    block *b = current_block;
    pause now(b);
    // Who polls may wait for a thread that waits for the grid before: that one goes on once it can.
    if (!b->before_grids.empty() && b->g->order->before() != succession::RUNNING)
        wait_for_grid_before(b);
    if (b->ready.empty() && b->started == b->size) {
        sched_yield(); // another block may have something to do
        return;
    }
    b->threads[b->running].is = state::ready;
    b->ready.push_back(b->running);
    go_on(b, false);
}

// --- address spaces ------------------------------------------------------------------------------

static bool is_shared(const void *address)
{
    const char *base = reinterpret_cast<const char *>(current_block->slot);
    const char *at = static_cast<const char *>(address);
    for (const shared_array &s : *current_block->g->shared)
        if (at >= base + s.offset && at < base + s.offset + s.bytes)
            return true;
    return false;
}

static long long clock_now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

static void set_up(block *b, uint64_t index)
{
    const grid &g = *b->g;
    b->index = index;
    b->size = g.threads.x * g.threads.y * g.threads.z;
    b->threads.resize(b->size);
    b->order.resize(b->size);
    thread_view view{};
    view.block_dim = g.threads;
    view.grid_dim = g.blocks;
    view.block_idx = {static_cast<unsigned>(index % g.blocks.x),
                      static_cast<unsigned>(index / g.blocks.x % g.blocks.y),
                      static_cast<unsigned>(index / g.blocks.x / g.blocks.y)};
    for (unsigned i = 0; i < b->size; i++) {
        view.linear = i;
        view.thread_idx = {i % g.threads.x, i / g.threads.x % g.threads.y,
                           i / g.threads.x / g.threads.y};
        b->threads[i].view = view;
        b->order[i] = i;
    }
    if (g.shuffled) {
        b->random = g.seed ^ index * 0x632be59bd9b4e019u;
        for (unsigned i = b->size; i > 1; i--)
            std::swap(b->order[i - 1], b->order[draw(b) % i]);
    }
}

const runtime block_runtime = {
    ABI,           meet, arrive,    defer, commit,    complete_groups, wait_for_grid,
    let_next_grid, fail, clock_now, yield, is_shared, print,           print_assertion};

bool block_run(const grid &g, uint64_t index, failure *why)
{
    // The emulator works on the threads' stacks, and they look into its block: nothing that is known
    // of orders one before the other.
    const unwatched emulator;
    auto b = std::make_unique<block>();
    b->g = &g;
    b->why = why;
    set_up(b.get(), index);
    b->slot = g.code->view_slot();
    prepare_shared(g);
    block *outer = current_block;
    current_block = b.get();
    const thread_sanitizer *watched = b->watched = under_thread_sanitizer();
    const unsigned first = b->order[b->started++];
    thread &t = b->threads[first];
    if (!watched || begin_watch(b.get())) {
        if (!watched && (t.on = fiber_make(thread_main, b.get())))
            b->all.push_back(t.on);
    }
    if (t.on) {
        make_current(b.get(), first);
        b->here = &b->caller;
        go_to(b.get(), t.on);
    } else {
        why->error = 2;
        why->what = "no memory for the threads' stacks";
    }
    if (watched)
        end_watch(b.get());
    for (fiber *f : b->all)
        fiber_free(f);
    current_block = outer;
    *b->slot = nullptr;
    return why->error == 0;
}

} // namespace fajit_emu
