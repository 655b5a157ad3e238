#include "block.h"

#include <time.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <vector>

#include "fiber.h"

namespace fajit_emu {

namespace {

constexpr int LAUNCH_FAILED = 719;

enum class state { unstarted, ready, running, waiting, waiting_for_grid, ended };

struct block;

struct thread {
    state is = state::unstarted;
    fiber *on = nullptr;
    thread_view view{};
    site where{};                                      // while it waits
    std::vector<std::vector<deferred>> queued[QUEUES]; // groups; the last is not committed yet
};

// One collective operation that some threads have arrived at.
struct meeting {
    group who;
    const char *operation;
    combine how;
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
};

thread_local block *current_block;

uint64_t draw(block *b)
{
    b->random += 0x9e3779b97f4a7c15u; // splitmix64
    uint64_t x = b->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void thread_main(void *argument);

void name_thread(const thread_view &view, char *out, size_t size)
{
    snprintf(out, size, "thread (%u,%u,%u) of block (%u,%u,%u)", view.thread_idx.x,
             view.thread_idx.y, view.thread_idx.z, view.block_idx.x, view.block_idx.y,
             view.block_idx.z);
}

void go_to(block *b, fiber *to)
{
    fiber *from = b->here;
    if (to == from)
        return;
    b->here = to;
    fiber_switch(from, to);
}

// Ends the block; the fibers of its threads are abandoned.
[[noreturn]] void give_up(block *b, int error, const std::string &what)
{
    b->why->error = error;
    b->why->what = what;
    go_to(b, &b->caller);
    __builtin_unreachable();
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
    give_up(b, LAUNCH_FAILED, what);
}

void make_current(block *b, unsigned index)
{
    b->running = index;
    b->threads[index].is = state::running;
    *b->slot = &b->threads[index].view;
}

// Nothing else can go on: the operating-system thread waits with the threads that wait for the grid
// before this one.
void wait_for_grid_before(block *b)
{
    if (b->g->order->wait_for_before(b->index) == succession::FAILED)
        give_up(b, LAUNCH_FAILED, "the kernel before this one failed");
    for (unsigned i : b->before_grids) {
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
        fiber *on = b->here;
        if (!has_ended) {
            if (b->idle.empty()) {
                on = fiber_make(thread_main, b);
                if (!on)
                    give_up(b, 2, "no memory for another thread's stack");
                b->all.push_back(on);
            } else {
                on = b->idle.back();
                b->idle.pop_back();
            }
        }
        b->threads[next].on = on;
        make_current(b, next);
        go_to(b, on);
        return;
    }
    if (!b->ready.empty()) {
        const size_t at = b->g->shuffled ? draw(b) % b->ready.size() : 0;
        const unsigned next = b->ready[at];
        b->ready.erase(b->ready.begin() + static_cast<ptrdiff_t>(at));
        if (has_ended)
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

// Lets everyone go who waits in m, save the running thread.
void release(block *b, meeting *m)
{
    if (m->how)
        m->how(m->brought.data(), static_cast<unsigned>(m->brought.size()));
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
        b->g->function->call(b->g->parameters);
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
    m.warp = warp;
    m.brought.resize(who.kind == WARP ? 32 : b->size);
    m.arrived.resize(m.brought.size());
    b->meetings.push_back(std::move(m));
    return &b->meetings.back();
}

void fail(int error, const site &where, const char *what)
{
    block *b = current_block;
    char text[160];
    name_thread(b->threads[b->running].view, text, sizeof text);
    give_up(b, error,
            std::string(where.operation) + " at " + where.file + ":" + std::to_string(where.line) +
                ": " + what + ", in " + text);
}

void check_barrier(block *b, const group &who, const site &where)
{
    if (who.members % 32 || who.members > (b->size + 31) / 32 * 32 || who.barrier > 15)
        fail(LAUNCH_FAILED, where, "no such number of threads for a barrier, or no such barrier");
}

void meet(const group &who, const site &where, void *brought, combine how)
{
    block *b = current_block;
    const unsigned self = b->running;
    const unsigned warp = who.kind == WARP ? self / 32 : 0;
    const unsigned member = who.kind == WARP ? self % 32 : self;
    if (who.kind == WARP && !(who.members >> member & 1u))
        fail(LAUNCH_FAILED, where, "the calling lane is not in its own mask");
    if (who.kind == BLOCK)
        check_barrier(b, who, where);
    meeting *m = find_meeting(b, who, where, warp);
    m->brought[member] = brought;
    m->arrived[member] = true;
    m->count++;
    m->how = how;
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
    if (who.kind != BLOCK || !who.members)
        fail(LAUNCH_FAILED, where, "arriving at a barrier needs the number of threads");
    check_barrier(b, who, where);
    meeting *m = find_meeting(b, who, where, 0);
    m->count++;
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
    groups(which).back().push_back(what);
}

void commit(queue which)
{
    groups(which).emplace_back();
}

void complete_groups(queue which, unsigned left)
{
    std::vector<std::vector<deferred>> &all = groups(which);
    while (all.size() - 1 > left) {
        const std::vector<deferred> group = std::move(all.front());
        all.erase(all.begin());
        for (const deferred &d : group)
            d.run(d);
    }
}

// --- programmatic dependent launch ---------------------------------------------------------------

void wait_for_grid(const site &where)
{
    block *b = current_block;
    const succession::state before = b->g->order ? b->g->order->before() : succession::ENDED;
    if (before == succession::FAILED)
        fail(LAUNCH_FAILED, where, "the kernel before this one failed");
    if (before == succession::ENDED)
        return;
    b->threads[b->running].is = state::waiting_for_grid;
    b->before_grids.push_back(b->running);
    go_on(b, false);
}

// The first thread speaks for its block.
void let_next_grid(const site &)
{
    block *b = current_block;
    if (b->lets_next || !b->g->order)
        return;
    b->lets_next = true;
    b->g->order->let_next(b->index);
}

void yield()
{
    block *b = current_block;
    if (b->ready.empty() && b->started == b->size)
        return;
    b->threads[b->running].is = state::ready;
    b->ready.push_back(b->running);
    go_on(b, false);
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
    ABI,           meet,          arrive, defer,     commit, complete_groups,
    wait_for_grid, let_next_grid, fail,   clock_now, yield};

bool block_run(const grid &g, uint64_t index, failure *why)
{
    block b;
    b.g = &g;
    b.why = why;
    set_up(&b, index);
    b.slot = g.code->view_slot();
    // What was never written is recognizable: NaN in every floating-point type.
    if (g.shared_bytes && g.code->dynamic_shared)
        if (unsigned char *shared = g.code->dynamic_shared())
            memset(shared, 0xff, g.shared_bytes);
    block *outer = current_block;
    current_block = &b;
    fiber *first = fiber_make(thread_main, &b);
    if (!first) {
        why->error = 2;
        why->what = "no memory for a thread's stack";
    } else {
        b.all.push_back(first);
        const unsigned thread = b.order[b.started++];
        b.threads[thread].on = first;
        make_current(&b, thread);
        b.here = &b.caller;
        go_to(&b, first);
    }
    for (fiber *f : b.all)
        fiber_free(f);
    current_block = outer;
    *b.slot = nullptr;
    return why->error == 0;
}

} // namespace fajit_emu
