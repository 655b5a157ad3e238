// Asynchronous operations, put off until they are waited for.
#include "block_state.h"
#include "watch.h"

namespace fajit_emu {

static std::vector<std::vector<deferred>> &groups(queue which)
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

} // namespace fajit_emu
