#include "block.h"

#include <sched.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "elf_tls.h"
#include "fiber.h"
#include "image.h"
#include "print.h"
#include "sanitizer.h"

namespace fajit_emu {

namespace {

constexpr int LAUNCH_FAILED = 719;
constexpr unsigned WITHOUT_ORDER = 1; // a switch of ThreadSanitizer's that orders nothing

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
    bool unwatched = false;                    // what is done in the threads' name is not looked at
};

void thread_main(void *argument);

thread_local block *current_block;

void name_thread(const thread_view &view, char *out, size_t size)
{
    snprintf(out, size, "thread (%u,%u,%u) of block (%u,%u,%u)", view.thread_idx.x,
             view.thread_idx.y, view.thread_idx.z, view.block_idx.x, view.block_idx.y,
             view.block_idx.z);
}

// --- what ThreadSanitizer is told ----------------------------------------------------------------
// Every emulated thread is one of its threads, and the emulator itself is another. Nothing orders
// them but the operations that do so on a device.

void become(block *b, void *identity)
{
    if (b->watched)
        b->watched->switch_to(identity, WITHOUT_ORDER);
}

void *running_identity(block *b)
{
    return b->threads[b->running].on->identity;
}

void set_unwatched(block *b, bool now)
{
    const thread_sanitizer *t = b->watched;
    if (!t || b->unwatched == now)
        return;
    b->unwatched = now;
    (now ? t->ignore_reads_begin : t->ignore_reads_end)(__FILE__, __LINE__);
    (now ? t->ignore_writes_begin : t->ignore_writes_end)(__FILE__, __LINE__);
}

// The emulator at work, between two stretches of a thread.
class pause {
  public:
    explicit pause(block *b) : b(b)
    {
        become(b, b->identity);
    }
    pause(const pause &) = delete;
    pause &operator=(const pause &) = delete;
    ~pause()
    {
        thread &t = b->threads[b->running];
        if (b->watched && t.seen) {
            become(b, running_identity(b));
            b->watched->acquire(t.seen.get());
            become(b, b->identity);
            t.seen.reset(); // memory is the emulator's affair
        }
        become(b, running_identity(b));
    }

    // The thread has come to a meeting that orders: what it did is seen by all who leave it.
    void arrive_at(const meeting &m)
    {
        if (!b->watched || !m.who.orders)
            return;
        become(b, running_identity(b));
        b->watched->release(m.order.get());
        become(b, b->identity);
    }

    // The thread sees all that this operating-system thread has seen.
    void catch_up()
    {
        if (!b->watched)
            return;
        b->threads[b->running].seen = std::make_shared<char>();
        b->watched->release(b->threads[b->running].seen.get());
    }

    void leave(const meeting &m)
    {
        if (b->watched && m.who.orders)
            b->threads[b->running].seen = m.order;
    }

  private:
    block *b;
};

// All threads have their fibers from the beginning, made by nobody but the emulator.
bool begin_watch(block *b)
{
    char name[96];
    b->identity = b->watched->current();
    b->watched->release(b);
    if (!fiber_prepare(b->size))
        return false;
    for (thread &t : b->threads) {
        t.on = fiber_make(thread_main, b);
        if (!t.on)
            return false;
        b->all.push_back(t.on);
        name_thread(t.view, name, sizeof name);
        b->watched->set_name(t.on->identity, name);
        become(b, t.on->identity);
        b->watched->acquire(b);
        become(b, b->identity);
    }
    return true;
}

// All that they did is seen by whoever waits for the grid.
void end_watch(block *b)
{
    for (const thread &t : b->threads)
        if (t.on) {
            become(b, t.on->identity);
            b->watched->release(const_cast<grid *>(b->g));
            become(b, b->identity);
        }
}

// --- shared memory -------------------------------------------------------------------------------

// What was never written is recognizable, NaN in every floating-point type, and AddressSanitizer
// knows where each array ends.
void prepare_shared(const grid &g)
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

uint64_t draw(block *b)
{
    b->random += 0x9e3779b97f4a7c15u; // splitmix64
    uint64_t x = b->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void go_to(block *b, fiber *to)
{
    fiber *from = b->here;
    if (to == from)
        return;
    b->here = to;
    fiber_switch(from, to);
}

// Ends the block; the fibers of its threads are abandoned, so that nothing on their stacks may own
// memory.
[[noreturn]] void give_up(block *b)
{
    go_to(b, &b->caller);
    __builtin_unreachable();
}

void set_failure(block *b, int error, const std::string &what)
{
    b->why->error = error;
    b->why->what = what;
}

void report_deadlock(block *b)
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

void make_current(block *b, unsigned index)
{
    b->running = index;
    b->threads[index].is = state::running;
    *b->slot = &b->threads[index].view;
}

fiber *free_fiber(block *b)
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
void wait_for_grid_before(block *b)
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

// Goes on with some thread that can. The running one waits, is ready again or has ended; its fiber
// is b->here. Returns when it is its turn again, or, after an end, when the fiber has a new thread.
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

// Threads of the block that a meeting still has to wait for.
bool complete(block *b, const meeting &m)
{
    if (m.who.kind == WARP) {
        for (unsigned lane = 0; lane < 32; lane++) {
            const unsigned index = m.warp * 32 + lane;
            if ((m.who.members >> lane & 1u) && !m.arrived[lane] && index < b->size &&
                b->threads[index].is != state::ended)
                return false;
        }
        return true;
    }
    if (m.who.members)
        return m.count == m.who.members;
    return m.count + b->ended == b->size;
}

// What threads compute together knows no --ftz=true: no such instruction of the hardware does.
struct without_flushing {
#ifdef __x86_64__
    unsigned before = __builtin_ia32_stmxcsr();

    without_flushing()
    {
        __builtin_ia32_ldmxcsr(before & ~0x8040u);
    }
    ~without_flushing()
    {
        __builtin_ia32_ldmxcsr(before);
    }
#endif
};

// Lets everyone go who waits in m, save the running thread.
void release(block *b, meeting *m)
{
    if (m->how) {
        set_unwatched(b, true); // it reads and writes what the threads brought, in their name
        const without_flushing here;
        (void)here;
        m->how(m->brought.data(), static_cast<unsigned>(m->brought.size()));
        set_unwatched(b, false);
    }
    const unsigned base = m->who.kind == WARP ? m->warp * 32 : 0;
    for (unsigned i = 0; i < m->arrived.size(); i++)
        if (m->arrived[i] && b->threads[base + i].is == state::waiting) {
            b->threads[base + i].is = state::ready;
            b->ready.push_back(base + i);
        }
    b->meetings.remove_if([m](const meeting &other) { return &other == m; });
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
        // Nobody waits for a thread that has ended.
        for (auto m = b->meetings.begin(); m != b->meetings.end();) {
            auto next = std::next(m);
            if (complete(b, *m))
                release(b, &*m);
            m = next;
        }
        go_on(b, true);
    }
}

meeting *find_meeting(block *b, const group &who, const site &where, unsigned warp)
{
    for (meeting &m : b->meetings)
        if (m.who.kind == who.kind && m.who.members == who.members &&
            m.who.barrier == who.barrier && m.warp == warp &&
            strcmp(m.operation, where.operation) == 0)
            return &m;
    meeting m;
    m.who = who;
    m.operation = where.operation;
    m.how = nullptr;
    m.order = std::make_shared<char>();
    m.warp = warp;
    m.brought.resize(who.kind == WARP ? 32 : b->size);
    m.arrived.resize(m.brought.size());
    b->meetings.push_back(std::move(m));
    return &b->meetings.back();
}

void report_failure(block *b, int error, const site &where, const char *what)
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
    set_unwatched(b, false);
    report_failure(b, error, where, what);
    give_up(b);
}

void check_barrier(block *b, const group &who, const site &where)
{
    if (who.members % 32 || who.members > (b->size + 31) / 32 * 32 || who.barrier > 15)
        fail(LAUNCH_FAILED, where, "no such number of threads for a barrier, or no such barrier");
}

void meet(const group &who, const site &where, void *brought, combine how)
{
    block *b = current_block;
    pause now(b);
    const unsigned self = b->running;
    const unsigned warp = who.kind == WARP ? self / 32 : 0;
    const unsigned member = who.kind == WARP ? self % 32 : self;
    if (who.kind == WARP && !(who.members >> member & 1u))
        fail(LAUNCH_FAILED, where, "the calling lane is not in its own mask");
    if (who.kind == BLOCK)
        check_barrier(b, who, where);
    meeting *m = find_meeting(b, who, where, warp);
    if (m->count && m->how != how)
        fail(LAUNCH_FAILED, where, "threads of one operation bring values of different types");
    m->brought[member] = brought;
    m->arrived[member] = true;
    m->count++;
    m->how = how;
    now.arrive_at(*m);
    now.leave(*m);
    thread &t = b->threads[self];
    t.where = where;
    if (complete(b, *m)) {
        release(b, m);
        if (b->g->shuffled) { // the last to arrive need not be the first to go on
            t.is = state::ready;
            b->ready.push_back(self);
            go_on(b, false);
        }
        return;
    }
    t.is = state::waiting;
    go_on(b, false);
}

// Barriers of this kind count those who come, and need not know them all.
void arrive(const group &who, const site &where)
{
    block *b = current_block;
    pause now(b);
    if (who.kind != BLOCK || !who.members)
        fail(LAUNCH_FAILED, where, "arriving at a barrier needs the number of threads");
    check_barrier(b, who, where);
    meeting *m = find_meeting(b, who, where, 0);
    m->count++;
    now.arrive_at(*m);
    if (complete(b, *m))
        release(b, m);
}

// --- asynchronous operations ---------------------------------------------------------------------

std::vector<std::vector<deferred>> &groups(queue which)
{
    block *b = current_block;
    std::vector<std::vector<deferred>> &all = b->threads[b->running].queued[which];
    if (all.empty())
        all.emplace_back();
    return all;
}

void defer(queue which, const deferred &what)
{
    pause now(current_block);
    groups(which).back().push_back(what);
}

void commit(queue which)
{
    pause now(current_block);
    groups(which).emplace_back();
}

void complete_groups(queue which, unsigned left)
{
    block *b = current_block;
    pause now(b);
    std::vector<std::vector<deferred>> &all = groups(which);
    while (all.size() - 1 > left) {
        for (const deferred &d : all.front()) {
            const deferred own = d;         // on its stack, since the kernel's code reads it
            become(b, running_identity(b)); // it is the thread's own work
            own.run(own);
            become(b, b->identity);
        }
        all.erase(all.begin());
    }
}

// --- programmatic dependent launch ---------------------------------------------------------------

void wait_for_grid(const site &where)
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
void let_next_grid(const site &)
{
    block *b = current_block;
    pause now(b);
    if (b->lets_next || !b->g->order)
        return;
    b->lets_next = true;
    b->g->order->let_next(b->index);
}

void yield()
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

bool is_shared(const void *address)
{
    const char *base = reinterpret_cast<const char *>(current_block->slot);
    const char *at = static_cast<const char *>(address);
    for (const shared_array &s : *current_block->g->shared)
        if (at >= base + s.offset && at < base + s.offset + s.bytes)
            return true;
    return false;
}

long long clock_now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void set_up(block *b, uint64_t index)
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

} // namespace

const runtime block_runtime = {
    ABI,           meet, arrive,    defer, commit,    complete_groups, wait_for_grid,
    let_next_grid, fail, clock_now, yield, is_shared, print,           print_assertion};

bool block_run(const grid &g, uint64_t index, failure *why)
{
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
    // Its threads have looked at this memory, and nothing orders them before this.
    if (watched)
        watched->ignore_writes_begin(__FILE__, __LINE__);
    b.reset();
    if (watched)
        watched->ignore_writes_end(__FILE__, __LINE__);
    return why->error == 0;
}

} // namespace fajit_emu
