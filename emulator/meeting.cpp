// Collective operations: the last thread to arrive combines what all have brought, and all go on.
#include <cstring>

#include "block_state.h"
#include "watch.h"

namespace fajit_emu {

namespace {

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
        const without_flushing here;
        (void)here;
        m->how(m->brought.data(), static_cast<unsigned>(m->brought.size()));
    }
    const unsigned base = m->who.kind == WARP ? m->warp * 32 : 0;
    for (unsigned i = 0; i < m->arrived.size(); i++)
        if (m->arrived[i] && b->threads[base + i].is == state::waiting) {
            b->threads[base + i].is = state::ready;
            b->ready.push_back(base + i);
        }
    b->meetings.remove_if([m](const meeting &other) { return &other == m; });
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

void check_barrier(block *b, const group &who, const site &where)
{
    if (who.members % 32 || who.members > (b->size + 31) / 32 * 32 || who.barrier > 15)
        fail(LAUNCH_FAILED, where, "no such number of threads for a barrier, or no such barrier");
}

} // namespace

void meetings_without(block *b)
{
    for (auto m = b->meetings.begin(); m != b->meetings.end();) {
        auto next = std::next(m);
        if (complete(b, *m))
            release(b, &*m);
        m = next;
    }
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

} // namespace fajit_emu
