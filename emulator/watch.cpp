#include "watch.h"

namespace fajit_emu {

static constexpr unsigned WITHOUT_ORDER = 1; // a switch that orders nothing

void become(block *b, void *identity)
{
    if (b->watched)
        b->watched->switch_to(identity, WITHOUT_ORDER);
}

void *running_identity(block *b)
{
    return b->threads[b->running].on->identity;
}

pause::~pause()
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

void pause::arrive_at(const meeting &m)
{
    if (!b->watched || !m.who.orders)
        return;
    become(b, running_identity(b));
    b->watched->release(m.order.get());
    become(b, b->identity);
}

void pause::leave(const meeting &m)
{
    if (b->watched && m.who.orders)
        b->threads[b->running].seen = m.order;
}

void pause::catch_up()
{
    if (!b->watched)
        return;
    b->threads[b->running].seen = std::make_shared<char>();
    b->watched->release(b->threads[b->running].seen.get());
}

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

void end_watch(block *b)
{
    for (const thread &t : b->threads)
        if (t.on) {
            become(b, t.on->identity);
            b->watched->release(const_cast<grid *>(b->g));
            become(b, b->identity);
        }
}

} // namespace fajit_emu
